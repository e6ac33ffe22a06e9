// SPDX-License-Identifier: MIT OR GPL-2.0
/* Statistics, and what ethtool shows. */
#include <linux/ethtool.h>

#include "ptnet.h"

static void ptnet_sum(struct ptnet_ring *r, struct ptnet_stats *to)
{
	unsigned int start;

	do {
		start = u64_stats_fetch_begin(&r->sync);
		*to = r->stats;
	} while (u64_stats_fetch_retry(&r->sync, start));
}

void ptnet_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *to)
{
	struct ptnet *pt = netdev_priv(dev);
	int i;

	for (i = 0; i < pt->pairs; i++) {
		struct ptnet_stats tx, rx;

		ptnet_sum(&pt->pair[i].tx, &tx);
		ptnet_sum(&pt->pair[i].rx, &rx);
		to->tx_packets += tx.packets;
		to->tx_bytes += tx.bytes;
		to->tx_dropped += tx.dropped;
		to->rx_packets += rx.packets;
		to->rx_bytes += rx.bytes;
		to->rx_dropped += rx.dropped;
	}
}

static const char * const ptnet_names[] = {
	"tx%d_packets", "tx%d_bytes", "tx%d_kicks", "tx%d_stops", "tx%d_resyncs",
	"rx%d_packets", "rx%d_bytes", "rx%d_kicks", "rx%d_resyncs", "pair%d_interrupts",
};

static int ptnet_get_sset_count(struct net_device *dev, int set)
{
	struct ptnet *pt = netdev_priv(dev);

	return set == ETH_SS_STATS ? pt->pairs * ARRAY_SIZE(ptnet_names) : -EOPNOTSUPP;
}

static void ptnet_get_strings(struct net_device *dev, u32 set, u8 *to)
{
	struct ptnet *pt = netdev_priv(dev);
	int i, j;

	if (set != ETH_SS_STATS)
		return;
	for (i = 0; i < pt->pairs; i++)
		for (j = 0; j < ARRAY_SIZE(ptnet_names); j++)
			ethtool_sprintf(&to, ptnet_names[j], i);
}

static void ptnet_get_ethtool_stats(struct net_device *dev, struct ethtool_stats *set, u64 *to)
{
	struct ptnet *pt = netdev_priv(dev);
	int i;

	for (i = 0; i < pt->pairs; i++) {
		struct ptnet_pair *pair = &pt->pair[i];
		struct ptnet_stats tx, rx;

		ptnet_sum(&pair->tx, &tx);
		ptnet_sum(&pair->rx, &rx);
		*to++ = tx.packets;
		*to++ = tx.bytes;
		*to++ = tx.kicks;
		*to++ = tx.stops;
		*to++ = READ_ONCE(pair->tx.ktoa->resyncs);
		*to++ = rx.packets;
		*to++ = rx.bytes;
		*to++ = rx.kicks;
		*to++ = READ_ONCE(pair->rx.ktoa->resyncs);
		*to++ = pair->interrupts;
	}
}

static void ptnet_get_drvinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	struct ptnet *pt = netdev_priv(dev);

	strscpy(info->driver, PTNET_NAME, sizeof(info->driver));
	strscpy(info->bus_info, pci_name(pt->pdev), sizeof(info->bus_info));
}

static void ptnet_get_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	struct ptnet *pt = netdev_priv(dev);

	channels->max_combined = pt->pairs;
	channels->combined_count = pt->pairs;
}

static void ptnet_get_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
				struct kernel_ethtool_ringparam *kernel_ring,
				struct netlink_ext_ack *extack)
{
	struct ptnet *pt = netdev_priv(dev);

	ring->tx_pending = ring->tx_max_pending = pt->pair[0].tx.slots;
	ring->rx_pending = ring->rx_max_pending = pt->pair[0].rx.slots;
}

const struct ethtool_ops ptnet_ethtool_ops = {
	.get_drvinfo = ptnet_get_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_channels = ptnet_get_channels,
	.get_ringparam = ptnet_get_ringparam,
	.get_sset_count = ptnet_get_sset_count,
	.get_strings = ptnet_get_strings,
	.get_ethtool_stats = ptnet_get_ethtool_stats,
};
