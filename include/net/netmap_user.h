/*
 * net/netmap_user.h - walking netmap's memory, and a small library in a header.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Always here: the macros and functions that find rings, buffers and slots. With NETMAP_WITH_LIBS
 * defined before the inclusion also the nm_... calls, modelled on libpcap:
 *
 *	struct nm_desc *d = nm_open("vale0:a", NULL, 0, NULL);
 *	struct pollfd p = { NETMAP_FD(d), POLLIN, 0 };
 *	poll(&p, 1, 1000);
 *	while ((frame = nm_nextpkt(d, &header)) != NULL)
 *		...
 *	nm_inject(d, frame, length);
 *	nm_close(d);
 *
 * A descriptor of these calls is for one thread.
 */
#ifndef UVALA_NET_NETMAP_USER_H
#define UVALA_NET_NETMAP_USER_H
/* Code that tests for netmap's own header finds it included. */
#define _NET_NETMAP_USER_H_

#include <stdint.h>
#include <stddef.h>
#include <ctype.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <net/if.h>
#include <net/netmap.h>

#define NETMAP_DEVICE_NAME "/dev/netmap"

#ifndef likely
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#endif

/* ---- from one structure to the next ---- */

/* What lies offset bytes after ptr. */
#define _NETMAP_OFFSET(type, ptr, offset) ((type)(void *)((char *)(ptr) + (offset)))

/* The netmap_if at nr_offset of the mapped memory. */
#define NETMAP_IF(_base, _ofs) _NETMAP_OFFSET(struct netmap_if *, _base, _ofs)

/* Transmit ring number index; the host's follow those of the port. */
#define NETMAP_TXRING(nifp, index) \
	_NETMAP_OFFSET(struct netmap_ring *, nifp, (nifp)->ring_ofs[index])

/* Receive ring number index, likewise. */
#define NETMAP_RXRING(nifp, index) \
	NETMAP_TXRING(nifp, (index) + (nifp)->ni_tx_rings + (nifp)->ni_host_tx_rings)

/* The beginning of buffer number index. */
#define NETMAP_BUF(ring, index) \
	((char *)(ring) + (ring)->buf_ofs + (size_t)(index) * (ring)->nr_buf_size)

/* The number of the buffer that begins at buf. */
#define NETMAP_BUF_IDX(ring, buf) \
	(((char *)(buf) - (char *)(ring) - (ring)->buf_ofs) / (ring)->nr_buf_size)

/* Where in its buffer the frame of a slot begins, with the option OFFSETS; else 0. */
#define NETMAP_ROFFSET(ring, slot) ((slot)->ptr & (ring)->offset_mask)

/* Says where it begins. */
#define NETMAP_WOFFSET(ring, slot, offset) \
	do { \
		(slot)->ptr &= ~(ring)->offset_mask; \
		(slot)->ptr |= (offset) & (ring)->offset_mask; \
	} while (0)

/* The first byte of the frame in a slot, offset or not. */
#define NETMAP_BUF_OFFSET(ring, slot) \
	(NETMAP_BUF(ring, (slot)->buf_idx) + NETMAP_ROFFSET(ring, slot))

/* The slot after slot i. */
static inline uint32_t nm_ring_next(struct netmap_ring *ring, uint32_t i)
{
	i++;
	return unlikely(i == ring->num_slots) ? 0 : i;
}

/* How many slots the application has, from head on. */
static inline uint32_t nm_ring_space(struct netmap_ring *ring)
{
	uint32_t head = ring->head, tail = ring->tail;

	return tail < head ? ring->num_slots - head + tail : tail - head;
}

/* Has it none? */
static inline int nm_ring_empty(struct netmap_ring *ring)
{
	return ring->head == ring->tail;
}

/* Transmit rings: has netmap still frames to send? */
static inline int nm_tx_pending(struct netmap_ring *ring)
{
	return ring->head != nm_ring_next(ring, ring->tail);
}

/* Copies a frame of len bytes from one netmap buffer to another. */
static inline void nm_pkt_copy(const void *src, void *dst, int len)
{
	if (len > 0)
		memcpy(dst, src, (size_t)len);
}

/* Messages that programs for netmap use: D prints a line, RD at most so many a second, ND none.
 * They need stdio.h. */
#ifndef ND
#define ND(...) do { } while (0)
#define D(format, ...) \
	fprintf(stderr, "%s [%d] " format "\n", __func__, __LINE__, ##__VA_ARGS__)
#define RD(per_second, format, ...) \
	do { \
		static time_t second_; \
		static int printed_; \
		struct timeval now_; \
		gettimeofday(&now_, NULL); \
		if (now_.tv_sec != second_) { \
			second_ = now_.tv_sec; \
			printed_ = 0; \
		} \
		if (printed_++ < (per_second)) \
			D(format, ##__VA_ARGS__); \
	} while (0)
#endif

#ifdef NETMAP_WITH_LIBS
#ifndef HAVE_NETMAP_WITH_LIBS
#define HAVE_NETMAP_WITH_LIBS

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define NM_ERRBUF_SIZE 512

struct nm_desc;

/* A received frame. It begins like a pcap_pkthdr. */
struct nm_pkthdr {
	struct timeval ts;
	uint32_t caplen; /* bytes here: at buf, and in a frame of several slots there are more */
	uint32_t len;
	uint64_t flags;  /* NM_MORE_PKTS */
#define NM_MORE_PKTS 1   /* others are waiting in the same ring */
	struct nm_desc *d;
	struct netmap_slot *slot;
	uint8_t *buf;
};

/* As a pcap_stat. */
struct nm_stat {
	unsigned int ps_recv;
	unsigned int ps_drop;
	unsigned int ps_ifdrop;
};

/* What nm_open() opens. To be read, except where a comment says more. */
struct nm_desc {
	struct nm_desc *self; /* this structure, as long as it is open */
	int fd;
	void *mem;
	size_t memsize;
	int done_mmap;        /* the memory was mapped here, not by a parent */
	struct netmap_if *nifp;
	uint16_t first_tx_ring, last_tx_ring, cur_tx_ring;
	uint16_t first_rx_ring, last_rx_ring, cur_rx_ring;
	struct nmreq req;     /* as NIOCREGIF answered it */
	struct nm_pkthdr hdr; /* of nm_dispatch() */
	struct netmap_ring *some_ring;
	void *buf_start;      /* the buffers lie from here ... */
	void *buf_end;        /* ... to here */
	int snaplen;          /* the caller's, like the next three */
	int promisc;
	int to_ms;
	char *errbuf;
	uint32_t if_flags;
	uint32_t if_reqcap;
	uint32_t if_curcap;
	struct nm_stat st;
	char msg[NM_ERRBUF_SIZE];
};

#define P2NMD(p) ((const struct nm_desc *)(p))
#define IS_NETMAP_DESC(d) ((d) && P2NMD(d)->self == P2NMD(d))
#define NETMAP_FD(d) (P2NMD(d)->fd)

/* Called by nm_dispatch() for each frame. */
typedef void (*nm_cb_t)(unsigned char *arg, const struct nm_pkthdr *header,
			const unsigned char *frame);

/* Flags of nm_open(), beside the NR_... flags of the request: what to take from the parent. */
enum {
	NM_OPEN_NO_MMAP = 0x040000,  /* its mapping, where the memory is the same */
	NM_OPEN_IFNAME = 0x080000,   /* nr_name, nr_ringid, nr_flags */
	NM_OPEN_ARG1 = 0x100000,     /* nr_arg1 */
	NM_OPEN_ARG2 = 0x200000,     /* nr_arg2 */
	NM_OPEN_ARG3 = 0x400000,     /* nr_arg3 */
	NM_OPEN_RING_CFG = 0x800000, /* numbers of rings and slots */
};

/* Reads a number of at most max; returns what follows it, or NULL where there is none. */
static inline const char *nm_number_(const char *at, unsigned long max, unsigned long *number)
{
	char *end;

	if (!isdigit((unsigned char)*at))
		return NULL;
	*number = strtoul(at, &end, 10);
	return *number <= max ? end : NULL;
}

/* Reads the letters after '/'; returns what follows, or NULL. */
static inline const char *nm_letters_(const char *at, uint32_t *flags)
{
	static const struct { char letter; uint32_t flag; } table[] = {
		{ 'x', NR_EXCLUSIVE }, { 'z', NR_ZCOPY_MON }, { 't', NR_MONITOR_TX },
		{ 'r', NR_MONITOR_RX }, { 'R', NR_RX_RINGS_ONLY }, { 'T', NR_TX_RINGS_ONLY },
	};
	size_t i;

	if (!*at || *at == '@')
		return NULL;
	for (; *at && *at != '@'; at++) {
		for (i = 0; i < sizeof(table) / sizeof(*table); i++)
			if (table[i].letter == *at)
				break;
		if (i == sizeof(table) / sizeof(*table))
			return NULL;
		*flags |= table[i].flag;
	}
	return at;
}

/* Reads what says which rings: ^ * -N {N }N, or nothing; returns what follows, or NULL. */
static inline const char *nm_rings_(const char *at, uint32_t *mode, unsigned long *ring)
{
	static const char signs[] = "-{}";
	static const uint32_t modes[] = { NR_REG_ONE_NIC, NR_REG_PIPE_MASTER, NR_REG_PIPE_SLAVE };
	const char *sign;

	*mode = NR_REG_ALL_NIC;
	*ring = 0;
	if (*at == '^' || *at == '*') {
		*mode = *at == '^' ? NR_REG_SW : NR_REG_NIC_SW;
		return at + 1;
	}
	sign = *at ? strchr(signs, *at) : NULL;
	if (!sign)
		return at;
	*mode = modes[sign - signs];
	return nm_number_(at + 1, NETMAP_RING_MASK, ring);
}

/*
 * Reads a name, "netmap:NAME" (also of a port of a switch) or "valeX:NAME" with rings, /flags and
 * @memory after it, into the request of d. Returns 0; or -1, errno EINVAL, with the reason in the
 * NM_ERRBUF_SIZE bytes at err.
 */
static inline int nm_parse(const char *ifname, struct nm_desc *d, char *err)
{
	const char *start = ifname, *port, *end, *why;
	uint32_t mode, flags = 0;
	unsigned long ring, memory = 0;

	why = "it begins neither with netmap: nor with vale";
	port = strchr(ifname, ':');
	if (!port || (strncmp(ifname, "netmap:", 7) && strncmp(ifname, NM_BDG_NAME, 4)))
		goto bad;
	port++;
	if (!strncmp(ifname, "netmap:", 7))
		start = port;
	end = port + strcspn(port, "-*^{}/@");
	why = "nothing follows the colon";
	if (end == port)
		goto bad;
	why = "it is too long";
	if ((size_t)(end - start) >= sizeof(d->req.nr_name))
		goto bad;
	memset(d->req.nr_name, 0, sizeof(d->req.nr_name));
	memcpy(d->req.nr_name, start, (size_t)(end - start));

	why = "no ring or pipe has this number";
	end = nm_rings_(end, &mode, &ring);
	if (!end)
		goto bad;
	while (*end == '/' || *end == '@') {
		if (*end == '/') {
			why = "an unknown letter follows the slash, or none";
			end = nm_letters_(end + 1, &flags);
		} else {
			why = "no memory has this number, or there are two";
			end = memory ? NULL : nm_number_(end + 1, UINT16_MAX, &memory);
			end = memory ? end : NULL;
		}
		if (!end)
			goto bad;
	}
	why = "something follows its end";
	if (*end)
		goto bad;
	d->req.nr_arg2 = memory ? (uint16_t)memory : d->req.nr_arg2;
	d->req.nr_flags = (d->req.nr_flags & ~(uint32_t)NR_REG_MASK) | mode | flags;
	d->req.nr_ringid = (uint16_t)((d->req.nr_ringid & ~NETMAP_RING_MASK) | ring);
	d->self = d;
	return 0;
bad:
	if (err)
		snprintf(err, NM_ERRBUF_SIZE, "bad port name '%.100s': %s", ifname, why);
	errno = EINVAL;
	return -1;
}

/* Notes where things lie, once the memory is mapped; d->memsize counts. */
static inline void nm_look_(struct nm_desc *d)
{
	uint32_t i, rings;

	d->nifp = NETMAP_IF(d->mem, d->req.nr_offset);
	rings = d->nifp->ni_tx_rings + d->nifp->ni_host_tx_rings + d->nifp->ni_rx_rings +
		d->nifp->ni_host_rx_rings;
	for (i = 0; i < rings && !d->nifp->ring_ofs[i]; i++)
		;
	if (i == rings)
		return;
	d->some_ring = NETMAP_TXRING(d->nifp, i);
	d->buf_start = NETMAP_BUF(d->some_ring, 0);
	d->buf_end = (char *)d->mem + d->memsize;
}

/* Maps the memory of d, or takes the mapping of parent where it is the same memory. 0, or EINVAL
 * or what mmap() said. */
static inline int nm_mmap(struct nm_desc *d, const struct nm_desc *parent)
{
	if (d->done_mmap)
		return 0;
	if (IS_NETMAP_DESC(parent) && parent->mem && parent->req.nr_arg2 == d->req.nr_arg2) {
		d->mem = parent->mem;
		d->memsize = parent->memsize;
	} else {
		d->memsize = d->req.nr_memsize;
		d->mem = mmap(NULL, d->memsize, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);
		if (d->mem == MAP_FAILED) {
			d->mem = NULL;
			return errno;
		}
		d->done_mmap = 1;
	}
	nm_look_(d);
	return 0;
}

/* Closes; returns 0, or EINVAL where d is no open descriptor. */
static inline int nm_close(struct nm_desc *d)
{
	if (!IS_NETMAP_DESC(d))
		return EINVAL;
	if (d->done_mmap && d->mem)
		munmap(d->mem, d->memsize);
	if (d->fd != -1)
		close(d->fd);
	memset(d, 0, sizeof(*d));
	free(d);
	return 0;
}

/* Which rings the flags bind. */
static inline void nm_bound_(struct nm_desc *d)
{
	uint16_t ring = d->req.nr_ringid & NETMAP_RING_MASK;
	uint16_t tx = d->req.nr_tx_rings, rx = d->req.nr_rx_rings;

	switch (d->req.nr_flags & NR_REG_MASK) {
	case NR_REG_SW: /* the host's come after the others */
		d->first_tx_ring = d->last_tx_ring = tx;
		d->first_rx_ring = d->last_rx_ring = rx;
		break;
	case NR_REG_NIC_SW:
		d->last_tx_ring = tx;
		d->last_rx_ring = rx;
		break;
	case NR_REG_ONE_NIC:
		d->first_tx_ring = d->last_tx_ring = ring;
		d->first_rx_ring = d->last_rx_ring = ring;
		break;
	default:
		d->last_tx_ring = (uint16_t)(tx - 1);
		d->last_rx_ring = (uint16_t)(rx - 1);
	}
	d->cur_tx_ring = d->first_tx_ring;
	d->cur_rx_ring = d->first_rx_ring;
}

/*
 * Opens the port called ifname. req: numbers to begin with, or NULL. flags: NR_... of the request,
 * NETMAP_NO_TX_POLL and NETMAP_DO_RX_POLL, and NM_OPEN_...; arg: the parent these speak of, or
 * NULL. Returns the descriptor, or NULL with errno set.
 */
static inline struct nm_desc *nm_open(const char *ifname, const struct nmreq *req, uint64_t flags,
				      const struct nm_desc *arg)
{
	const struct nm_desc *parent = arg;
	const uint32_t polls = NETMAP_NO_TX_POLL | NETMAP_DO_RX_POLL;
	const uint32_t opens = 0xfc0000;
	struct nm_desc *d;
	int error;

	if (strncmp(ifname, "netmap:", 7) && strncmp(ifname, NM_BDG_NAME, 4)) {
		errno = 0; /* not one of ours: the caller may know better */
		return NULL;
	}
	d = (struct nm_desc *)calloc(1, sizeof(*d));
	if (!d) {
		errno = ENOMEM;
		return NULL;
	}
	d->self = d;
	d->fd = -1;
	if (req)
		d->req = *req;
	error = EINVAL;
	if (flags & NM_OPEN_IFNAME && parent) {
		memcpy(d->req.nr_name, parent->req.nr_name, sizeof(d->req.nr_name));
		d->req.nr_ringid = parent->req.nr_ringid;
		d->req.nr_flags = parent->req.nr_flags;
	} else if (nm_parse(ifname, d, d->msg)) {
		goto fail;
	}
	d->req.nr_version = NETMAP_API;
	d->req.nr_ringid = (uint16_t)(d->req.nr_ringid | (flags & polls));
	d->req.nr_flags |= (uint32_t)flags & ~(opens | polls | NR_REG_MASK);
	/* The bit of NR_ACCEPT_VNET_HDR is that of NETMAP_DO_RX_POLL; the former is meant more. */
	if (flags & NR_ACCEPT_VNET_HDR)
		d->req.nr_flags |= NR_ACCEPT_VNET_HDR;
	if (parent && flags & NM_OPEN_ARG1)
		d->req.nr_arg1 = parent->req.nr_arg1;
	if (parent && flags & (NM_OPEN_ARG2 | NM_OPEN_NO_MMAP))
		d->req.nr_arg2 = parent->req.nr_arg2;
	if (parent && flags & NM_OPEN_ARG3)
		d->req.nr_arg3 = parent->req.nr_arg3;
	if (parent && flags & NM_OPEN_RING_CFG) {
		d->req.nr_tx_slots = parent->req.nr_tx_slots;
		d->req.nr_rx_slots = parent->req.nr_rx_slots;
		d->req.nr_tx_rings = parent->req.nr_tx_rings;
		d->req.nr_rx_rings = parent->req.nr_rx_rings;
	}

	d->fd = open(NETMAP_DEVICE_NAME, O_RDWR);
	if (d->fd < 0 || ioctl(d->fd, NIOCREGIF, &d->req)) {
		error = errno;
		goto fail;
	}
	nm_bound_(d);
	error = nm_mmap(d, flags & NM_OPEN_NO_MMAP ? parent : NULL);
	if (error)
		goto fail;
	return d;
fail:
	nm_close(d);
	errno = error;
	return NULL;
}

/* Puts a frame of size bytes into a transmit ring; it leaves with the next NIOCTXSYNC or poll().
 * Returns size, or 0 where there is no room. */
static inline int nm_inject(struct nm_desc *d, const void *buf, size_t size)
{
	unsigned int tried, count = (unsigned int)(d->last_tx_ring - d->first_tx_ring + 1);
	const char *from = (const char *)buf;

	for (tried = 0; tried < count; tried++, d->cur_tx_ring++) {
		struct netmap_ring *ring;
		struct netmap_slot *slot;
		size_t left = size, part;
		uint32_t at;

		if (d->cur_tx_ring > d->last_tx_ring)
			d->cur_tx_ring = d->first_tx_ring;
		ring = NETMAP_TXRING(d->nifp, d->cur_tx_ring);
		if ((size_t)nm_ring_space(ring) * ring->nr_buf_size < size ||
		    nm_ring_empty(ring))
			continue;
		for (at = ring->head;; at = nm_ring_next(ring, at)) {
			slot = &ring->slot[at];
			part = left < ring->nr_buf_size ? left : ring->nr_buf_size;
			memcpy(NETMAP_BUF(ring, slot->buf_idx), from + (size - left), part);
			slot->len = (uint16_t)part;
			left -= part;
			slot->flags = left ? NS_MOREFRAG : 0;
			if (!left)
				break;
		}
		ring->head = ring->cur = nm_ring_next(ring, at);
		return (int)size;
	}
	return 0;
}

/* The next frame, or NULL where none waits. It may be used until the next call; a frame of several
 * slots is complete only in the ring: hdr->caplen bytes are here, and its first slot is hdr->slot.
 */
static inline unsigned char *nm_nextpkt(struct nm_desc *d, struct nm_pkthdr *hdr)
{
	unsigned int tried, count = (unsigned int)(d->last_rx_ring - d->first_rx_ring + 1);

	for (tried = 0; tried < count; tried++, d->cur_rx_ring++) {
		struct netmap_ring *ring;
		uint32_t at;

		if (d->cur_rx_ring > d->last_rx_ring)
			d->cur_rx_ring = d->first_rx_ring;
		ring = NETMAP_RXRING(d->nifp, d->cur_rx_ring);
		/* The frame of the last call stays until this one: head follows cur. */
		ring->head = ring->cur;
		if (nm_ring_empty(ring))
			continue;
		at = ring->cur;
		hdr->ts = ring->ts;
		hdr->d = d;
		hdr->slot = &ring->slot[at];
		hdr->buf = (uint8_t *)NETMAP_BUF_OFFSET(ring, hdr->slot);
		hdr->caplen = hdr->len = hdr->slot->len;
		while (ring->slot[at].flags & NS_MOREFRAG &&
		       nm_ring_next(ring, at) != ring->tail) {
			at = nm_ring_next(ring, at);
			hdr->len += ring->slot[at].len;
		}
		ring->cur = nm_ring_next(ring, at);
		hdr->flags = ring->cur != ring->tail ? NM_MORE_PKTS : 0;
		return hdr->buf;
	}
	return NULL;
}

/* Calls cb for each frame that waits, for cnt at most (negative: for all). Returns their number. */
static inline int nm_dispatch(struct nm_desc *d, int cnt, nm_cb_t cb, unsigned char *arg)
{
	unsigned char *frame;
	int got = 0;

	while ((cnt < 0 || got < cnt) && (frame = nm_nextpkt(d, &d->hdr)) != NULL) {
		cb(arg, &d->hdr, frame);
		got++;
	}
	return got;
}

#endif /* HAVE_NETMAP_WITH_LIBS */
#endif /* NETMAP_WITH_LIBS */

#endif /* UVALA_NET_NETMAP_USER_H */
