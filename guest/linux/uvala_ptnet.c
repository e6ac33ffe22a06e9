// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Network driver for a port of uvala that is passed through to this guest.
 *
 * The port's memory is a BAR of the device. This driver is the client of the
 * port: it fills transmit slots and empties receive slots there, and talks to
 * the switch by the words in the same memory. uvala_ring.h has their layout,
 * and says which of them each side writes.
 *
 *	xmit ──► slot, head ──► need_kick? ──► doorbell ──► uvala-device ──► switch
 *	poll ◄── slot, hwtail ◄── vector ◄── uvala-device ◄── appl_need_kick? ◄──┘
 *
 * A ring pair has one NAPI context, which both of its vectors schedule. Frames
 * are copied: transmit slots hold no skb, so nothing is to be cleaned there, and
 * a transmit vector comes only after the ring was full.
 *
 * Sleeping. A side that is about to sleep stores a new number in its need-kick
 * word, executes a full barrier, and looks at the other side's index once more.
 * A side that publishes stores its index, executes a full barrier, and loads that
 * word. So one of them sees the other. The barriers are virt_mb(): the other side
 * runs on another processor even if this kernel has only one.
 *
 * Trust. The switch is trusted as any device with DMA is. Indexes and numbers of
 * buffers are bounded all the same, because the memory is zeroed when the switch
 * ends.
 *
 * The end of the switch. The device lowers the link, increments EPOCH and sends
 * its last vector. The driver then stops and starts its rings: it finds them as
 * new, whichever process is on their other side by then.
 */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/random.h>
#include <linux/rtnetlink.h>
#include <linux/u64_stats_sync.h>
#include <linux/workqueue.h>

#include "uvala_ptnet.h"
#include "uvala_ring.h"

#define PTNET_NAME	"uvala_ptnet"
/* Free slots that a stopped queue waits for, at most half of the ring */
#define PTNET_WAKE	64u

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

static u32 ptnet_read(const struct ptnet *pt, u32 reg)
{
	return ioread32(pt->regs + reg);
}

static int ptnet_command(const struct ptnet *pt, u32 command)
{
	iowrite32(command, pt->regs + PTNET_PTCTL);
	return -(int)ptnet_read(pt, PTNET_PTCTL);
}

/* Rings */

static struct uvala_slot *ptnet_slot(const struct ptnet_ring *r, u32 i)
{
	return uvala_slot_at(r->ring, i);
}

static u32 ptnet_next(const struct ptnet_ring *r, u32 i)
{
	return i + 1 == r->slots ? 0 : i + 1;
}

/* The buffer of a slot, or NULL if the slot names none. */
static void *ptnet_buffer(const struct ptnet *pt, const struct uvala_slot *slot)
{
	u32 i = READ_ONCE(slot->buf_idx);

	if (unlikely(i < UVALA_FIRST_BUFFER || i >= pt->bufs))
		return NULL;
	return pt->pool + (size_t)i * pt->stride;
}

/* Looks how far the switch has got; returns the slots that are ours. */
static u32 ptnet_refresh(struct ptnet_ring *r)
{
	u32 tail = virt_load_acquire(&r->ktoa->hwtail);

	if (likely(tail < r->slots))
		r->tail = tail;
	return uvala_space(r->slots, r->head, r->tail);
}

/* Gives up the slots before head, and rings if the word asks for it. */
static void ptnet_publish(struct ptnet_ring *r, const u32 *need_kick)
{
	u32 need;

	WRITE_ONCE(r->atok->cur, r->head);
	virt_store_release(&r->atok->head, r->head);
	virt_mb();	/* Partner: the switch's, between its word and our head */
	need = READ_ONCE(*need_kick);
	if (need == 0 || (need != UVALA_KICK_ALWAYS && need == r->rung))
		return;
	r->rung = need;
	writel(0, r->doorbell);
	u64_stats_update_begin(&r->sync);
	r->stats.kicks++;
	u64_stats_update_end(&r->sync);
}

/* Asks for a vector once wanted slots are ours. Returns false if they are. */
static bool ptnet_arm(struct ptnet_ring *r, u32 wanted)
{
	u32 cur = r->head + wanted - 1;

	if (++r->need <= UVALA_KICK_ALWAYS)
		r->need = UVALA_KICK_ALWAYS + 1;
	WRITE_ONCE(r->atok->cur, cur < r->slots ? cur : cur - r->slots);
	WRITE_ONCE(r->atok->appl_need_kick, r->need);
	virt_mb();	/* Partner: the switch's, between hwtail and our word */
	if (ptnet_refresh(r) < wanted)
		return true;
	WRITE_ONCE(r->atok->appl_need_kick, 0);
	return false;
}

static void ptnet_disarm(struct ptnet_ring *r)
{
	WRITE_ONCE(r->atok->appl_need_kick, 0);
}

/* Takes a ring over as it stands. */
static void ptnet_take_ring(struct ptnet_ring *r)
{
	u32 head = READ_ONCE(r->atok->head);

	r->head = head < r->slots ? head : 0;
	r->tail = r->head;
	/* A number that an earlier driver hardly stopped at, and one that is none */
	r->need = get_random_u32();
	r->rung = 0;
	WRITE_ONCE(r->atok->sync_flags, 0);
	ptnet_disarm(r);
	ptnet_refresh(r);
}

static u32 ptnet_wake_at(const struct ptnet_ring *r)
{
	return min(PTNET_WAKE, r->slots / 2);
}

/* Transmission */

static bool ptnet_tx_put(const struct ptnet *pt, struct ptnet_ring *r, const struct sk_buff *skb)
{
	struct uvala_slot *slot = ptnet_slot(r, r->head);
	void *buffer = ptnet_buffer(pt, slot);

	if (unlikely(!buffer || skb->len > pt->stride))
		return false;
	skb_copy_and_csum_dev(skb, buffer);
	WRITE_ONCE(slot->len, skb->len);
	WRITE_ONCE(slot->flags, 0);
	r->head = ptnet_next(r, r->head);
	return true;
}

/* Stops a queue without room. Returns false, and lets it run, if there is some by now. */
static bool ptnet_tx_stop(struct ptnet_ring *r, struct netdev_queue *txq)
{
	netif_tx_stop_queue(txq);
	if (!ptnet_arm(r, ptnet_wake_at(r))) {
		netif_tx_start_queue(txq);
		return false;
	}
	u64_stats_update_begin(&r->sync);
	r->stats.stops++;
	u64_stats_update_end(&r->sync);
	return true;
}

static void ptnet_count(struct ptnet_ring *r, unsigned int bytes, bool sent)
{
	u64_stats_update_begin(&r->sync);
	if (sent) {
		r->stats.packets++;
		r->stats.bytes += bytes;
	} else {
		r->stats.dropped++;
	}
	u64_stats_update_end(&r->sync);
}

static netdev_tx_t ptnet_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct ptnet *pt = netdev_priv(dev);
	u16 q = skb_get_queue_mapping(skb);
	struct ptnet_ring *r = &pt->pair[q].tx;
	struct netdev_queue *txq = netdev_get_tx_queue(dev, q);
	bool more = netdev_xmit_more();
	bool full;

	if (unlikely(!uvala_space(r->slots, r->head, r->tail)) && !ptnet_refresh(r) &&
	    ptnet_tx_stop(r, txq))
		return NETDEV_TX_BUSY;
	ptnet_count(r, skb->len, ptnet_tx_put(pt, r, skb));
	full = !uvala_space(r->slots, r->head, r->tail) && !ptnet_refresh(r);
	if (!more || full)
		ptnet_publish(r, &pt->bell->need_kick);
	/* Behind the publication, which sets the wake-up point, too */
	if (full)
		ptnet_tx_stop(r, txq);
	dev_consume_skb_any(skb);
	return NETDEV_TX_OK;
}

/* Lets a queue run again if it was stopped and there is room. */
static void ptnet_tx_wake(struct ptnet_pair *pair)
{
	struct netdev_queue *txq = netdev_get_tx_queue(pair->pt->dev, pair->index);
	struct ptnet_ring *r = &pair->tx;

	if (likely(!netif_tx_queue_stopped(txq)))
		return;
	__netif_tx_lock(txq, smp_processor_id());
	if (netif_tx_queue_stopped(txq) && !ptnet_arm(r, ptnet_wake_at(r)))
		netif_tx_wake_queue(txq);
	__netif_tx_unlock(txq);
}

/* Reception */

/* Bytes and slots of the frame at head; 0 bytes: no frame. */
static u32 ptnet_rx_len(const struct ptnet *pt, const struct ptnet_ring *r, u32 ready, u32 *slots)
{
	u32 i = r->head, total = 0, n = 0;
	bool good = true;
	u16 flags;

	do {
		const struct uvala_slot *slot = ptnet_slot(r, i);
		u16 len = READ_ONCE(slot->len);

		flags = READ_ONCE(slot->flags);
		good = good && len <= pt->stride && ptnet_buffer(pt, slot);
		total += len;
		i = ptnet_next(r, i);
		n++;
	} while ((flags & UVALA_NS_MOREFRAG) && n < ready);
	*slots = n;
	return good ? total : 0;
}

static struct sk_buff *ptnet_rx_frame(struct ptnet_pair *pair, u32 total, u32 slots)
{
	struct sk_buff *skb = napi_alloc_skb(&pair->napi, total);
	u32 i = pair->rx.head, left = total;

	if (unlikely(!skb))
		return NULL;
	for (; slots; slots--, i = ptnet_next(&pair->rx, i)) {
		const struct uvala_slot *slot = ptnet_slot(&pair->rx, i);
		const void *buffer = ptnet_buffer(pair->pt, slot);
		/* Not more than there is room for, whatever it says by now */
		u32 len = min_t(u32, READ_ONCE(slot->len), left);

		if (buffer)
			skb_put_data(skb, buffer, len);
		left -= len;
	}
	if (unlikely(skb->len < ETH_HLEN)) {
		dev_kfree_skb_any(skb);
		return NULL;
	}
	skb->protocol = eth_type_trans(skb, pair->pt->dev);
	skb_record_rx_queue(skb, pair->index);
	return skb;
}

static int ptnet_rx(struct ptnet_pair *pair, int budget)
{
	struct ptnet_ring *r = &pair->rx;
	u32 ready = ptnet_refresh(r);
	int done = 0;

	while (done < budget && ready) {
		u32 slots, total = ptnet_rx_len(pair->pt, r, ready, &slots);
		struct sk_buff *skb = NULL;

		if (likely(total >= ETH_HLEN)) {
			skb = ptnet_rx_frame(pair, total, slots);
			ptnet_count(r, total, skb);
		}
		r->head += slots;
		if (r->head >= r->slots)
			r->head -= r->slots;
		ready -= slots;
		done++;
		if (skb)
			napi_gro_receive(&pair->napi, skb);
	}
	if (done)
		ptnet_publish(r, &r->ktoa->kern_need_kick);
	return done;
}

static int ptnet_poll(struct napi_struct *napi, int budget)
{
	struct ptnet_pair *pair = container_of(napi, struct ptnet_pair, napi);
	int done;

	ptnet_tx_wake(pair);
	if (!budget)
		return 0;
	ptnet_disarm(&pair->rx);
	done = ptnet_rx(pair, budget);
	if (done < budget && napi_complete_done(napi, done) && !ptnet_arm(&pair->rx, 1))
		napi_schedule(napi);
	return done;
}

/* Interrupts */

static irqreturn_t ptnet_interrupt(int irq, void *arg)
{
	struct ptnet_pair *pair = arg;

	pair->interrupts++;
	napi_schedule_irqoff(&pair->napi);
	return IRQ_HANDLED;
}

static irqreturn_t ptnet_change_interrupt(int irq, void *arg)
{
	struct ptnet *pt = arg;

	schedule_work(&pt->change);
	return IRQ_HANDLED;
}

/* Start and stop */

static int ptnet_up(struct ptnet *pt)
{
	int i, err;

	pt->epoch = ptnet_read(pt, PTNET_EPOCH);
	err = ptnet_command(pt, PTNET_CREATE);
	if (err) {
		netdev_err(pt->dev, "the device does not start its rings: %d\n", err);
		return err;
	}
	WRITE_ONCE(pt->pair[0].rx.atok->sleep_mode, UVALA_SLEEP_DESCRIPTOR);
	for (i = 0; i < pt->pairs; i++) {
		ptnet_take_ring(&pt->pair[i].tx);
		ptnet_take_ring(&pt->pair[i].rx);
		napi_enable(&pt->pair[i].napi);
		/* The first poll arms the ring. */
		local_bh_disable();
		napi_schedule(&pt->pair[i].napi);
		local_bh_enable();
	}
	netif_tx_start_all_queues(pt->dev);
	return 0;
}

static void ptnet_down(struct ptnet *pt)
{
	int i;

	/* First what lets stopped queues run again */
	for (i = 0; i < pt->pairs; i++)
		napi_disable(&pt->pair[i].napi);
	netif_tx_disable(pt->dev);
	for (i = 0; i < pt->pairs; i++) {
		ptnet_disarm(&pt->pair[i].tx);
		ptnet_disarm(&pt->pair[i].rx);
	}
	ptnet_command(pt, PTNET_DELETE);
}

static void ptnet_show_link(struct ptnet *pt)
{
	if (ptnet_read(pt, PTNET_STATUS) & PTNET_S_LINK)
		netif_carrier_on(pt->dev);
	else
		netif_carrier_off(pt->dev);
}

/* The link has changed, or the rings are new ones. */
static void ptnet_change(struct work_struct *work)
{
	struct ptnet *pt = container_of(work, struct ptnet, change);

	rtnl_lock();
	if (pt->is_up && ptnet_read(pt, PTNET_EPOCH) != pt->epoch) {
		netif_carrier_off(pt->dev);
		ptnet_down(pt);
		pt->is_up = !ptnet_up(pt);
	}
	ptnet_show_link(pt);
	rtnl_unlock();
}

static int ptnet_open(struct net_device *dev)
{
	struct ptnet *pt = netdev_priv(dev);
	int err = ptnet_up(pt);

	pt->is_up = !err;
	if (!err)
		ptnet_show_link(pt);
	return err;
}

static int ptnet_stop(struct net_device *dev)
{
	struct ptnet *pt = netdev_priv(dev);

	if (pt->is_up)
		ptnet_down(pt);
	pt->is_up = false;
	netif_carrier_off(dev);
	return 0;
}

/* Statistics */

static void ptnet_sum(struct ptnet_ring *r, struct ptnet_stats *to)
{
	unsigned int start;

	do {
		start = u64_stats_fetch_begin(&r->sync);
		*to = r->stats;
	} while (u64_stats_fetch_retry(&r->sync, start));
}

static void ptnet_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *to)
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

static const struct ethtool_ops ptnet_ethtool_ops = {
	.get_drvinfo = ptnet_get_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_channels = ptnet_get_channels,
	.get_ringparam = ptnet_get_ringparam,
	.get_sset_count = ptnet_get_sset_count,
	.get_strings = ptnet_get_strings,
	.get_ethtool_stats = ptnet_get_ethtool_stats,
};

static const struct net_device_ops ptnet_ops = {
	.ndo_open = ptnet_open,
	.ndo_stop = ptnet_stop,
	.ndo_start_xmit = ptnet_xmit,
	.ndo_get_stats64 = ptnet_get_stats64,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

/* The device */

static int ptnet_map(struct ptnet *pt)
{
	struct pci_dev *pdev = pt->pdev;
	resource_size_t start = pci_resource_start(pdev, PTNET_BAR_REGION);

	pt->doorbells = pci_iomap_range(pdev, PTNET_BAR_VECTORS, PTNET_DOORBELLS, PAGE_SIZE);
	if (!pt->doorbells || !start)
		return -ENODEV;
	pt->region = memremap(start, pt->region_len, MEMREMAP_WB);
	return pt->region ? 0 : -ENOMEM;
}

static void ptnet_unmap(struct ptnet *pt)
{
	if (pt->region)
		memunmap(pt->region);
	if (pt->doorbells)
		pci_iounmap(pt->pdev, pt->doorbells);
}

/* Whether size bytes at an offset that the device told lie in the region. */
static bool ptnet_holds(const struct ptnet *pt, u64 at, u64 size)
{
	return at <= pt->region_len && size <= pt->region_len - at && IS_ALIGNED(at, 8);
}

static int ptnet_find_ring(struct ptnet *pt, struct ptnet_ring *r, u16 number, s64 at, u32 slots)
{
	u32 atok = ptnet_read(pt, PTNET_ATOK_OFS) + number * sizeof(*r->atok);
	u32 ktoa = ptnet_read(pt, PTNET_KTOA_OFS) + number * sizeof(*r->ktoa);

	if (slots < 2 || at < 0 || !ptnet_holds(pt, atok, sizeof(*r->atok)) ||
	    !ptnet_holds(pt, ktoa, sizeof(*r->ktoa)) ||
	    !ptnet_holds(pt, at, sizeof(*r->ring) + (u64)slots * sizeof(struct uvala_slot)))
		return -EINVAL;
	r->ring = pt->region + at;
	r->atok = pt->region + atok;
	r->ktoa = pt->region + ktoa;
	r->slots = slots;
	r->doorbell = pt->doorbells + 4 * number;
	u64_stats_init(&r->sync);
	return 0;
}

/* Where everything is does not change while this device has a driver. */
static int ptnet_find(struct ptnet *pt)
{
	u32 nifp_ofs = ptnet_read(pt, PTNET_NIFP_OFS);
	u32 bell_ofs = ptnet_read(pt, PTNET_BELL_OFS);
	u32 tx_slots = ptnet_read(pt, PTNET_NUM_TX_SLOTS);
	u32 rx_slots = ptnet_read(pt, PTNET_NUM_RX_SLOTS);
	u32 pool_ofs = ptnet_read(pt, PTNET_BUF_OFS);
	struct uvala_if *nifp = pt->region + nifp_ofs;
	int i, err = 0;

	/* Behind the list of rings are the two of the host's rings. */
	if (!ptnet_holds(pt, nifp_ofs, sizeof(*nifp) + 8 * (pt->tx_rings + pt->rx_rings + 2)) ||
	    !ptnet_holds(pt, bell_ofs, sizeof(*pt->bell)))
		return -EINVAL;
	pt->stride = ptnet_read(pt, PTNET_BUF_SIZE);
	pt->bufs = ptnet_read(pt, PTNET_NUM_BUFS);
	if (pt->stride < 128 || !ptnet_holds(pt, pool_ofs, (u64)pt->bufs * pt->stride))
		return -EINVAL;
	pt->bell = pt->region + bell_ofs;
	pt->pool = pt->region + pool_ofs;
	for (i = 0; i < pt->pairs && !err; i++) {
		const s64 *ofs = (const s64 *)(nifp + 1);
		struct ptnet_pair *pair = &pt->pair[i];

		err = ptnet_find_ring(pt, &pair->tx, i, nifp_ofs + READ_ONCE(ofs[i]), tx_slots);
		if (!err)
			err = ptnet_find_ring(pt, &pair->rx, pt->tx_rings + i,
					      nifp_ofs + READ_ONCE(ofs[pt->tx_rings + 1 + i]),
					      rx_slots);
	}
	return err;
}

/* Vectors belong to the rings in order; the last one to the device. */
static int ptnet_request_irqs(struct ptnet *pt)
{
	int n = pt->tx_rings + pt->rx_rings, err, i;

	err = pci_alloc_irq_vectors(pt->pdev, n + 1, n + 1, PCI_IRQ_MSIX);
	if (err < 0)
		return err;
	for (i = 0; i < pt->pairs; i++) {
		struct ptnet_pair *pair = &pt->pair[i];

		err = pci_request_irq(pt->pdev, i, ptnet_interrupt, NULL, pair,
				      PTNET_NAME "-tx%d", i);
		if (err)
			goto undo;
		err = pci_request_irq(pt->pdev, pt->tx_rings + i, ptnet_interrupt, NULL, pair,
				      PTNET_NAME "-rx%d", i);
		if (err) {
			pci_free_irq(pt->pdev, i, pair);
			goto undo;
		}
	}
	err = pci_request_irq(pt->pdev, n, ptnet_change_interrupt, NULL, pt, PTNET_NAME);
	if (!err)
		return 0;
undo:
	while (--i >= 0) {
		pci_free_irq(pt->pdev, i, &pt->pair[i]);
		pci_free_irq(pt->pdev, pt->tx_rings + i, &pt->pair[i]);
	}
	pci_free_irq_vectors(pt->pdev);
	return err;
}

static void ptnet_free_irqs(struct ptnet *pt)
{
	int i;

	pci_free_irq(pt->pdev, pt->tx_rings + pt->rx_rings, pt);
	for (i = 0; i < pt->pairs; i++) {
		pci_free_irq(pt->pdev, i, &pt->pair[i]);
		pci_free_irq(pt->pdev, pt->tx_rings + i, &pt->pair[i]);
	}
	pci_free_irq_vectors(pt->pdev);
}

static void ptnet_set_address(struct net_device *dev, u32 high, u32 low)
{
	u8 address[ETH_ALEN] = { high >> 8, high, low >> 24, low >> 16, low >> 8, low };

	if (is_valid_ether_addr(address))
		eth_hw_addr_set(dev, address);
	else
		eth_hw_addr_random(dev);
}

static int ptnet_register(struct ptnet *pt)
{
	struct net_device *dev = pt->dev;
	int i;

	ptnet_set_address(dev, ptnet_read(pt, PTNET_MAC_HI), ptnet_read(pt, PTNET_MAC_LO));
	dev->netdev_ops = &ptnet_ops;
	dev->ethtool_ops = &ptnet_ethtool_ops;
	/* The copy into a slot makes the checksum and joins the pieces. */
	dev->hw_features = NETIF_F_SG | NETIF_F_HW_CSUM;
	dev->features = dev->hw_features | NETIF_F_HIGHDMA;
	dev->vlan_features = dev->features;
	dev->min_mtu = ETH_MIN_MTU;
	dev->max_mtu = pt->stride - ETH_HLEN - 4;
	for (i = 0; i < pt->pairs; i++) {
		pt->pair[i].pt = pt;
		pt->pair[i].index = i;
		netif_napi_add(dev, &pt->pair[i].napi, ptnet_poll);
	}
	netif_carrier_off(dev);
	return register_netdev(dev);
}

/* Reads what the network device is made of. */
static int ptnet_ask(struct pci_dev *pdev, void __iomem *regs, u16 *tx_rings, u16 *rx_rings)
{
	iowrite32(PTNET_F_REGION, regs + PTNET_PTFEAT);
	if (!(ioread32(regs + PTNET_PTFEAT) & PTNET_F_REGION)) {
		dev_err(&pdev->dev, "a ptnet of other software: use netmap's driver\n");
		return -ENODEV;
	}
	*tx_rings = ioread32(regs + PTNET_NUM_TX_RINGS);
	*rx_rings = ioread32(regs + PTNET_NUM_RX_RINGS);
	return *tx_rings && *rx_rings ? 0 : -ENODEV;
}

static int ptnet_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	u16 tx_rings, rx_rings, pairs;
	struct net_device *dev;
	void __iomem *regs;
	struct ptnet *pt;
	int err;

	err = pcim_enable_device(pdev);
	if (!err)
		err = pci_request_regions(pdev, PTNET_NAME);
	if (err)
		return err;
	pci_set_master(pdev);
	regs = pci_iomap(pdev, PTNET_BAR_REGISTERS, 0);
	if (!regs) {
		err = -ENODEV;
		goto release;
	}
	err = ptnet_ask(pdev, regs, &tx_rings, &rx_rings);
	if (err)
		goto unmap_regs;
	pairs = min(tx_rings, rx_rings);
	err = -ENOMEM;
	dev = alloc_etherdev_mqs(struct_size(pt, pair, pairs), pairs, pairs);
	if (!dev)
		goto unmap_regs;
	SET_NETDEV_DEV(dev, &pdev->dev);
	pt = netdev_priv(dev);
	*pt = (struct ptnet) {
		.dev = dev, .pdev = pdev, .regs = regs, .pairs = pairs,
		.tx_rings = tx_rings, .rx_rings = rx_rings,
	};
	pt->region_len = ptnet_read(pt, PTNET_REGION_LEN);
	INIT_WORK(&pt->change, ptnet_change);
	pci_set_drvdata(pdev, pt);
	err = ptnet_map(pt);
	/* If the switch has ended, the device makes the rings anew at their start. */
	if (!err)
		err = ptnet_command(pt, PTNET_CREATE);
	if (err)
		goto unmap;
	err = ptnet_find(pt);
	ptnet_command(pt, PTNET_DELETE);
	if (err)
		goto unmap;
	err = ptnet_request_irqs(pt);
	if (err)
		goto unmap;
	err = ptnet_register(pt);
	if (!err)
		return 0;
	ptnet_free_irqs(pt);
	cancel_work_sync(&pt->change);
unmap:
	ptnet_unmap(pt);
	free_netdev(dev);
unmap_regs:
	pci_iounmap(pdev, regs);
release:
	pci_release_regions(pdev);
	dev_err(&pdev->dev, "no network device: %d\n", err);
	return err;
}

static void ptnet_remove(struct pci_dev *pdev)
{
	struct ptnet *pt = pci_get_drvdata(pdev);

	unregister_netdev(pt->dev);
	ptnet_free_irqs(pt);
	cancel_work_sync(&pt->change);
	ptnet_unmap(pt);
	pci_iounmap(pdev, pt->regs);
	free_netdev(pt->dev);
	pci_release_regions(pdev);
}

static const struct pci_device_id ptnet_ids[] = {
	{ PCI_DEVICE_SUB(PTNET_VENDOR, PTNET_DEVICE, PTNET_VENDOR, PTNET_SUBSYSTEM) },
	{ }
};
MODULE_DEVICE_TABLE(pci, ptnet_ids);

static struct pci_driver ptnet_driver = {
	.name = PTNET_NAME,
	.id_table = ptnet_ids,
	.probe = ptnet_probe,
	.remove = ptnet_remove,
};
module_pci_driver(ptnet_driver);

MODULE_DESCRIPTION("Network driver for ports of uvala");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("0.1.0");
