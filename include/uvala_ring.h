/*
 * uvala_ring.h - the port format: rings, slots and the communication status block.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * This header describes shared memory. Programs that only want to send and receive include
 * uvala.h and link with libuvala; this one is for programs that work on the rings themselves: guest
 * drivers, debuggers, other languages. docs/spec/ring-abi.md and docs/spec/csb.md are the long
 * form; section numbers below are theirs.
 *
 *   uvala_if --ring_ofs[]--> uvala_ring, slot[0], slot[1], ...
 *                                          | buf_idx
 *                                          v
 *                            pool: [buffer 0][buffer 1][buffer 2] ... one every nr_buf_size bytes
 *
 * uvala_if, uvala_ring and uvala_slot are netmap's structures (API 14, 64-bit), field by field.
 *
 * WHO OWNS WHAT. Slots from head up to, not including, tail belong to the client; the others to
 * the switch. Each side moves its own index forward and never the other's. One slot of a ring is
 * always empty. The indexes travel in the CSB, one cache line per ring and writer; those in
 * uvala_ring are the client's own notes, for netmap's accessors.
 *
 * Client's marks below: C writes, S reads ("C>S"), or the other way round ("S>C").
 */
#ifndef UVALA_RING_H
#define UVALA_RING_H

#ifdef __KERNEL__
#include <linux/stddef.h>
#include <linux/types.h>
#else
#include <stddef.h>
#include <stdint.h>
#endif

#ifdef __cplusplus
#define UVALA_STATIC_ASSERT(condition, message) static_assert(condition, message)
extern "C" {
#else
#define UVALA_STATIC_ASSERT(condition, message) _Static_assert(condition, message)
#endif

#define UVALA_LINE 64          /* a cache line; every CSB entry fills one */
#define UVALA_NAME_SIZE 16     /* ni_name, with its final zero */
#define UVALA_FIRST_BUFFER 2u  /* 0 means "no buffer", 1 is reserved */
#define UVALA_NI_PRIV_MEM 0x1u /* ni_flags: the region belongs to this port alone */

/* slot.flags */
#define UVALA_NS_BUF_CHANGED 0x0001u /* the client put another buffer into the slot */
#define UVALA_NS_REPORT 0x0002u      /* drivers only */
#define UVALA_NS_FORWARD 0x0004u     /* host rings only */
#define UVALA_NS_NO_LEARN 0x0008u    /* asks not to learn the source address */
#define UVALA_NS_INDIRECT 0x0010u    /* data at slot.ptr; resolved on the client's side */
#define UVALA_NS_MOREFRAG 0x0020u    /* the frame goes on in the next slot */
#define UVALA_NS_RFRAGS_SHIFT 8      /* receive: number of slots of the frame, in bits 8..15 */
#define UVALA_NS_PORT_MASK 0xff00u   /* transmit: number of the port to go to, 0 for none */

/* ring.dir */
#define UVALA_DIR_TX 0u
#define UVALA_DIR_RX 1u

/* csb_atok.sync_flags */
#define UVALA_SYNC_LIGHT 0x1u /* the client publishes without a fence; csb.md section 4 */
#define UVALA_SYNC_OFFSETS 0x2u /* slot.ptr says where frames begin; csb.md section 7.4 */
#define UVALA_SYNC_OFFSET_MAX_SHIFT 8 /* of the largest offset */

/* csb_atok.sleep_mode of RX ring 0; csb.md section 5.5 */
#define UVALA_SLEEP_DESCRIPTOR 0u /* wake the client by its descriptor */
#define UVALA_SLEEP_FUTEX 1u      /* wake it by wakes */

/* need-kick words: 0 asks for nothing, this for a kick at every publication */
#define UVALA_KICK_ALWAYS 1u

/* One slot. ring-abi.md section 4. */
struct uvala_slot {
	uint32_t buf_idx; /* in [UVALA_FIRST_BUFFER, buffers) */
	uint16_t len;     /* bytes in this buffer, in [0, nr_buf_size] */
	uint16_t flags;   /* UVALA_NS_* */
	uint64_t ptr;     /* not used by native ports */
};
UVALA_STATIC_ASSERT(sizeof(struct uvala_slot) == 16, "slot");
UVALA_STATIC_ASSERT(offsetof(struct uvala_slot, ptr) == 8, "slot.ptr");

/* Head of a ring; num_slots slots follow at once. ring-abi.md section 3. */
struct uvala_ring {
	int64_t buf_ofs;      /* from this structure to buffer 0 */
	uint32_t num_slots;   /* one of them is always empty */
	uint32_t nr_buf_size; /* distance and size of the buffers */
	uint16_t ringid;      /* within its direction */
	uint16_t dir;         /* UVALA_DIR_* */
	uint32_t head;        /* client's note: first slot it owns */
	uint32_t cur;         /* client's note: wake-up point */
	uint32_t tail;        /* client's note: first slot the switch owns */
	uint32_t flags;       /* 0 */
	uint32_t turn;        /* odd while a netmap program syncs: csb.md section 7.3 */
	int64_t ts[2];        /* seconds, microseconds */
	uint64_t offset_mask; /* 0 */
	uint64_t buf_align;   /* 0 */
	uint8_t pad1[56];
	uint8_t sem[128];     /* opaque */
#if !defined(__cplusplus)
	struct uvala_slot slot[];
#endif
};
UVALA_STATIC_ASSERT(sizeof(struct uvala_ring) == 256, "ring");
UVALA_STATIC_ASSERT(offsetof(struct uvala_ring, head) == 20, "ring.head");
UVALA_STATIC_ASSERT(offsetof(struct uvala_ring, ts) == 40, "ring.ts");
UVALA_STATIC_ASSERT(offsetof(struct uvala_ring, sem) == 128, "ring.sem");

/* Description of a port. ring-abi.md section 2. */
struct uvala_if {
	uint8_t ni_name[UVALA_NAME_SIZE];
	uint32_t ni_version; /* 0 */
	uint32_t ni_flags;   /* UVALA_NI_* */
	uint32_t ni_tx_rings;
	uint32_t ni_rx_rings;
	uint32_t ni_bufs_head;     /* first extra buffer; each names the next, 0 ends the list */
	uint32_t ni_host_tx_rings; /* 1, though there is none: ring_ofs has an entry for it */
	uint32_t ni_host_rx_rings; /* 1, likewise */
	uint32_t ni_spare1[3];
#if !defined(__cplusplus)
	int64_t ring_ofs[]; /* from this structure: TX, host TX, RX, host RX */
#endif
};
UVALA_STATIC_ASSERT(sizeof(struct uvala_if) == 56, "if");
UVALA_STATIC_ASSERT(offsetof(struct uvala_if, ni_bufs_head) == 32, "if.ni_bufs_head");

/* CSB, client to switch; one line per ring. csb.md section 2. */
struct uvala_csb_atok {
	uint32_t head;           /* C>S first slot the client owns; release after the slots */
	uint32_t cur;            /* C>S kick me when hwtail has passed this; before head */
	uint32_t appl_need_kick; /* C>S the client sleeps: csb.md section 3 */
	uint32_t sync_flags;     /* C>S UVALA_SYNC_* */
	uint64_t called;         /* C>S RX 0: frames that a function got by a call */
	uint64_t passed;         /* C>S RX 0: of these, those that it passed on */
	uint32_t sleep_mode;     /* C>S RX 0: UVALA_SLEEP_*, for all rings of the port */
	uint32_t pad[7];
};
UVALA_STATIC_ASSERT(sizeof(struct uvala_csb_atok) == UVALA_LINE, "csb_atok");

/* CSB, switch to client; one line per ring. csb.md section 2. */
struct uvala_csb_ktoa {
	uint32_t hwcur;          /* S>C first slot the switch has not taken; before hwtail */
	uint32_t hwtail;         /* S>C first slot the switch owns; acquire before the slots */
	uint32_t kern_need_kick; /* S>C RX: the switch waits for room. TX: always 1 */
	uint32_t resyncs;        /* S>C how often an index was out of range */
	uint32_t wakes;          /* S>C RX 0: futex that wakes the client; 0: by descriptor only */
	uint32_t pad[11];
};
UVALA_STATIC_ASSERT(sizeof(struct uvala_csb_ktoa) == UVALA_LINE, "csb_ktoa");

/* The worker's need-kick word; one line per port. csb.md section 3. */
struct uvala_bell {
	uint32_t need_kick; /* S>C the worker sleeps: kick once per value */
	uint32_t news;      /* S>C goes up when a function should ask which ones follow it */
	uint32_t pad[14];
};
UVALA_STATIC_ASSERT(sizeof(struct uvala_bell) == UVALA_LINE, "bell");

/* Head of a region, at its start. ring-abi.md section 1. */
struct uvala_region_header {
	uint8_t magic[8];     /* "uvala\0r\1" */
	uint32_t version;     /* 1 */
	uint32_t stride;      /* distance of the buffers */
	uint32_t buffers;     /* the two reserved ones included */
	uint32_t pad;
	uint64_t pool_offset; /* of buffer 0 */
	uint64_t size;        /* of the region */
};
UVALA_STATIC_ASSERT(sizeof(struct uvala_region_header) == 40, "region_header");

/* ---- accessors ---- */

/* Ring number i, in the order of ring_ofs: TX, host TX, RX, host RX. */
static inline struct uvala_ring *uvala_ring_at(struct uvala_if *nifp, uint32_t i)
{
	const int64_t *ring_ofs = (const int64_t *)(nifp + 1);
	return (struct uvala_ring *)((char *)nifp + ring_ofs[i]);
}

static inline struct uvala_ring *uvala_tx_ring(struct uvala_if *nifp, uint32_t i)
{
	return uvala_ring_at(nifp, i);
}

static inline struct uvala_ring *uvala_rx_ring(struct uvala_if *nifp, uint32_t i)
{
	return uvala_ring_at(nifp, nifp->ni_tx_rings + nifp->ni_host_tx_rings + i);
}

static inline struct uvala_slot *uvala_slot_at(struct uvala_ring *ring, uint32_t i)
{
	return (struct uvala_slot *)(ring + 1) + i;
}

static inline void *uvala_buffer(struct uvala_ring *ring, uint32_t buf_idx)
{
	return (char *)ring + ring->buf_ofs + (size_t)buf_idx * ring->nr_buf_size;
}

/* The slot after i. */
static inline uint32_t uvala_next(const struct uvala_ring *ring, uint32_t i)
{
	return i + 1 == ring->num_slots ? 0 : i + 1;
}

/* Slots from head up to tail: what the client may use. */
static inline uint32_t uvala_space(uint32_t num_slots, uint32_t head, uint32_t tail)
{
	return tail >= head ? tail - head : tail + num_slots - head;
}

/* How far the switch has got. Partner: the switch's release of hwtail. */
static inline uint32_t uvala_csb_tail(const struct uvala_csb_ktoa *ktoa)
{
	return __atomic_load_n(&ktoa->hwtail, __ATOMIC_ACQUIRE);
}

/*
 * Hands over every slot before head. The return value is the need-kick word: if it is not 0, and
 * is UVALA_KICK_ALWAYS or differs from the last value you rang for, ring the doorbell.
 *
 *   client                          switch
 *   STORE head (release)            STORE need_kick
 *   fence            <---------->   fence
 *   LOAD need_kick                  LOAD head (acquire)
 */
static inline uint32_t uvala_csb_publish(struct uvala_csb_atok *atok, uint32_t head,
					 const uint32_t *need_kick)
{
	__atomic_store_n(&atok->cur, head, __ATOMIC_RELAXED);
	__atomic_store_n(&atok->head, head, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return __atomic_load_n(need_kick, __ATOMIC_RELAXED);
}

/*
 * Asks for a kick once hwtail has passed cur. Look at uvala_csb_tail() once more afterwards, and
 * sleep only if it has not moved: the other half of the drawing above. number: not 0; either
 * UVALA_KICK_ALWAYS, or another one each time.
 */
static inline void uvala_csb_arm(struct uvala_csb_atok *atok, uint32_t cur, uint32_t number)
{
	__atomic_store_n(&atok->cur, cur, __ATOMIC_RELAXED);
	__atomic_store_n(&atok->appl_need_kick, number, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Takes the request back, awake again. */
static inline void uvala_csb_disarm(struct uvala_csb_atok *atok)
{
	__atomic_store_n(&atok->appl_need_kick, 0, __ATOMIC_RELAXED);
}

#ifdef __cplusplus
}
#endif

#endif /* UVALA_RING_H */
