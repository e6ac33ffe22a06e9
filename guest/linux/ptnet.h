/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The driver's own structures: main.c has the theory of operation. */
#ifndef PTNET_H
#define PTNET_H

#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/u64_stats_sync.h>

#include "uvala_ptnet.h"
#include "uvala_ring.h"

#define PTNET_NAME	"uvala_ptnet"

struct ptnet_stats {
	u64 packets;
	u64 bytes;
	u64 dropped;
	u64 kicks;
	u64 stops;
};

/* One ring. The NAPI context or the lock of the transmit queue guards it. */
struct ptnet_ring {
	struct uvala_ring *ring;
	struct uvala_csb_atok *atok;
	struct uvala_csb_ktoa *ktoa;
	u32 slots;
	u32 head;		/* first slot of ours */
	u32 tail;		/* first slot of the switch, as of the last look */
	u32 need;		/* the last number in appl_need_kick */
	u32 rung;		/* the last number that we rang for */
	void __iomem *doorbell;
	struct u64_stats_sync sync;
	struct ptnet_stats stats;
};

struct ptnet_pair {
	struct napi_struct napi;
	struct ptnet *pt;
	u16 index;
	u64 interrupts;
	struct ptnet_ring tx;
	struct ptnet_ring rx ____cacheline_aligned_in_smp;
};

struct ptnet {
	struct net_device *dev;
	struct pci_dev *pdev;
	void __iomem *regs;
	void __iomem *doorbells;
	void *region;
	u32 region_len;
	u32 bufs;
	u32 stride;
	void *pool;
	struct uvala_bell *bell;
	u32 epoch;		/* of the rings, as they were started */
	bool is_up;		/* they run; rtnl_lock guards this */
	u16 tx_rings;
	u16 rx_rings;
	u16 pairs;
	struct work_struct change;
	struct ptnet_pair pair[];
};

/* rings.c */
void ptnet_take_ring(struct ptnet_ring *r);
void ptnet_disarm(struct ptnet_ring *r);
netdev_tx_t ptnet_xmit(struct sk_buff *skb, struct net_device *dev);
int ptnet_poll(struct napi_struct *napi, int budget);

/* ethtool.c */
void ptnet_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *to);
extern const struct ethtool_ops ptnet_ethtool_ops;

#endif
