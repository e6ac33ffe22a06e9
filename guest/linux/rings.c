// SPDX-License-Identifier: MIT OR GPL-2.0
/* Slots filled and emptied, and the handshake with the switch. */
#include <linux/etherdevice.h>
#include <linux/random.h>

#include "ptnet.h"

/* Free slots that a stopped queue waits for, at most half of the ring */
#define PTNET_WAKE	64u

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
	mb();	/* Partner: the switch's, between its word and our head */
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
	mb();	/* Partner: the switch's, between hwtail and our word */
	if (ptnet_refresh(r) < wanted)
		return true;
	WRITE_ONCE(r->atok->appl_need_kick, 0);
	return false;
}

void ptnet_disarm(struct ptnet_ring *r)
{
	WRITE_ONCE(r->atok->appl_need_kick, 0);
}

/* Takes a ring over as it stands. */
void ptnet_take_ring(struct ptnet_ring *r)
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

netdev_tx_t ptnet_xmit(struct sk_buff *skb, struct net_device *dev)
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

int ptnet_poll(struct napi_struct *napi, int budget)
{
	struct ptnet_pair *pair = container_of(napi, struct ptnet_pair, napi);
	int done;

	if (!budget)
		return 0;
	ptnet_tx_wake(pair);
	ptnet_disarm(&pair->rx);
	done = ptnet_rx(pair, budget);
	if (done == budget)
		return done;
	/* Armed while no other processor polls; a vector from now on polls again */
	if (!ptnet_arm(&pair->rx, 1))
		return budget;
	napi_complete_done(napi, done);
	return done;
}
