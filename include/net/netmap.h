/*
 * net/netmap.h - the netmap interface, API versions 14 and 15, as uvala provides it.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * With this header, programs for netmap compile where netmap is not installed. The structures,
 * numbers and names are netmap's, so the binary also runs on netmap's kernel module, and a binary
 * compiled against netmap's own header also runs on uvala ("uvala run -- PROGRAM").
 *
 *	open("/dev/netmap")          a descriptor, bound to nothing
 *	ioctl(NIOCCTRL, REGISTER)    binds it to a port: answers nr_offset and nr_memsize
 *	mmap(nr_memsize)             the memory of that port:
 *
 *	base + nr_offset             struct netmap_if
 *	    + ring_ofs[i]            struct netmap_ring, slots
 *	        + buf_ofs            buffer 0, buffer 1, ... nr_buf_size bytes apart
 *
 *	ioctl(NIOCTXSYNC, NIOCRXSYNC), poll(): tell the other side, and hear from it
 *
 * WHO WRITES WHAT. A field marked A is the application's, one marked N is netmap's (here: the
 * preload library's or the daemon's); fields without a mark are written once, before the
 * application sees them. Netmap's fields change only inside a call of the application: ioctl,
 * poll, select or epoll on that very descriptor.
 *
 * Everything here is for 64-bit little-endian Linux and checked against the library by a test.
 */
#ifndef UVALA_NET_NETMAP_H
#define UVALA_NET_NETMAP_H
/* Code that tests for netmap's own header finds it included. */
#define _NET_NETMAP_H_

#include <stdint.h>
#include <sys/types.h>
#include <sys/time.h>
#include <sys/ioctl.h>
#include <net/if.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NETMAP_API 14     /* nr_version of a program that needs nothing newer */
#define NETMAP_MIN_API 14 /* least nr_version that is accepted */
#define NETMAP_MAX_API 15 /* greatest one that NIOCCTRL accepts; the legacy calls take any */

#define NM_CACHE_ALIGN 128 /* alignment of rings */

/* ---- shared memory ---- */

/* One slot of a ring: a buffer, and what is in it. */
struct netmap_slot {
	uint32_t buf_idx; /* A: number of the buffer; set NS_BUF_CHANGED when you change it */
	uint16_t len;     /* A on transmit, N on receive: bytes in the buffer */
	uint16_t flags;   /* NS_* */
	uint64_t ptr;     /* NS_INDIRECT: address of the data. Option OFFSETS: see offset_mask */
};

/* netmap_slot.flags */
#define NS_BUF_CHANGED 0x0001 /* buf_idx is not the one that netmap put there */
#define NS_REPORT 0x0002      /* hardware: report when this slot is sent */
#define NS_FORWARD 0x0004     /* receive, ring with NR_FORWARD: pass on to the host or NIC */
#define NS_NO_LEARN 0x0008    /* transmit: do not learn the source address of this frame */
#define NS_INDIRECT 0x0010    /* transmit on VALE ports: data at ptr, in no buffer */
#define NS_MOREFRAG 0x0020    /* the frame goes on in the next slot */
#define NS_TXMON 0x0040       /* monitors: seen on a transmit ring of the monitored port */
#define NS_PORT_SHIFT 8       /* transmit on VALE ports: number of the port to send to... */
#define NS_PORT_MASK (0xff << NS_PORT_SHIFT)
/* ... receive on VALE ports: number of slots that the frame takes. */
#define NS_RFRAGS(_slot) (((_slot)->flags >> 8) & 0xff)

#define NETMAP_MAX_FRAGS 64 /* most slots of one frame */

/*
 * A ring. Slots from head up to, not including, tail are the application's; it may use those and
 * their buffers and then move head and cur forward, never beyond tail. The others are netmap's.
 * One slot is always netmap's, so that an empty ring and a full one can be told apart:
 *
 *	transmit: head == tail  no room      receive: head == tail  nothing there
 *
 * Waiting looks at cur, not at head: a descriptor is ready when cur != tail. An application that
 * holds slots and waits for more sets cur = tail and leaves head.
 */
struct netmap_ring {
	const int64_t buf_ofs;       /* from this structure to buffer 0 */
	const uint32_t num_slots;
	const uint32_t nr_buf_size;  /* distance of the buffers; the room in each */
	const uint16_t ringid;       /* number of the ring in its direction */
	const uint16_t dir;          /* 0: transmit, 1: receive */
	uint32_t head;               /* A: first slot the application keeps */
	uint32_t cur;                /* A: first slot it has not looked at */
	uint32_t tail;               /* N: first slot it must not touch */
	uint32_t flags;              /* A: NR_TIMESTAMP, NR_FORWARD */
	struct timeval ts;           /* N: time of the last receive sync */
	const uint64_t offset_mask;  /* option OFFSETS: bits of slot.ptr that are an offset */
	const uint64_t buf_align;    /* option OFFSETS: alignment that buffers need */
	uint8_t sem[128] __attribute__((__aligned__(NM_CACHE_ALIGN))); /* not for applications */
	__extension__ struct netmap_slot slot[0];
};

/* netmap_ring.flags */
#define NR_TIMESTAMP 0x0002 /* set ts at every sync */
#define NR_FORWARD 0x0004   /* heed NS_FORWARD in the slots of this ring */

/*
 * What a descriptor is bound to. ring_ofs counts from this structure; first the transmit rings,
 * then the host's transmit rings, then the receive rings and the host's. It is 0 for rings that
 * this descriptor did not bind.
 */
struct netmap_if {
	char ni_name[IFNAMSIZ];
	const uint32_t ni_version;
	const uint32_t ni_flags;         /* NI_* */
	const uint32_t ni_tx_rings;
	const uint32_t ni_rx_rings;
	uint32_t ni_bufs_head;           /* A: first extra buffer; each begins with the number of
					  * the next, 0 ends the list */
	const uint32_t ni_host_tx_rings; /* at least 1, even where there are none */
	const uint32_t ni_host_rx_rings;
	uint32_t ni_spare1[3];
	__extension__ const ssize_t ring_ofs[0];
};

#define NI_PRIV_MEM 0x1 /* ni_flags: the memory is not that of all hardware ports */

/* ---- requests: ioctl(fd, NIOCCTRL, &header) ---- */

#define NETMAP_REQ_IFNAMSIZ 64   /* room for a name, its end included */
#define NETMAP_REQ_MAXSIZE 4096  /* most bytes of a body and its options together */

/* Every request. Each has a body of its own, given with it. */
struct nmreq_header {
	uint16_t nr_version;  /* NETMAP_MIN_API to NETMAP_MAX_API */
	uint16_t nr_reqtype;  /* NETMAP_REQ_* */
	uint32_t nr_reserved; /* 0 */
	char nr_name[NETMAP_REQ_IFNAMSIZ]; /* "eth0", "vale0:a", "vale0:a{1" */
	uint64_t nr_options;  /* address of the first option, or 0 */
	uint64_t nr_body;     /* address of the body, or 0 where there is none */
};

enum {
	NETMAP_REQ_REGISTER = 1,             /* nmreq_register: bind this descriptor to a port */
	NETMAP_REQ_PORT_INFO_GET = 2,        /* nmreq_port_info_get: what a port looks like */
	NETMAP_REQ_VALE_ATTACH = 3,          /* nmreq_vale_attach: put a port into a switch */
	NETMAP_REQ_VALE_DETACH = 4,          /* nmreq_vale_detach: take a port out */
	NETMAP_REQ_VALE_LIST = 5,            /* nmreq_vale_list: which ports a switch has */
	NETMAP_REQ_PORT_HDR_SET = 6,         /* nmreq_port_hdr: length of the virtio-net header */
	NETMAP_REQ_PORT_HDR_GET = 7,         /* nmreq_port_hdr */
	NETMAP_REQ_VALE_NEWIF = 8,           /* nmreq_vale_newif: make a persistent port */
	NETMAP_REQ_VALE_DELIF = 9,           /* no body: delete a persistent port */
	NETMAP_REQ_VALE_POLLING_ENABLE = 10, /* nmreq_vale_polling */
	NETMAP_REQ_VALE_POLLING_DISABLE = 11, /* nmreq_vale_polling */
	NETMAP_REQ_POOLS_INFO_GET = 12,      /* nmreq_pools_info: what a memory looks like */
	NETMAP_REQ_SYNC_KLOOP_START = 13,    /* nmreq_sync_kloop_start: run a sync loop */
	NETMAP_REQ_SYNC_KLOOP_STOP = 14,     /* no body: end the sync loop */
	NETMAP_REQ_CSB_ENABLE = 15,          /* no body, option CSB: enter CSB mode */
};

/* Options: a list of structures that each begin with this one. */
struct nmreq_option {
	uint64_t nro_next;    /* address of the next option, or 0 */
	uint32_t nro_reqtype; /* NETMAP_REQ_OPT_* */
	uint32_t nro_status;  /* answer: 0, or an errno */
	uint64_t nro_size;    /* bytes of the whole option, where its size varies */
};

enum {
	NETMAP_REQ_OPT_EXTMEM = 1,             /* nmreq_opt_extmem: program's memory */
	NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS = 2, /* nmreq_opt_sync_kloop_eventfds */
	NETMAP_REQ_OPT_CSB = 3,                /* nmreq_opt_csb */
	NETMAP_REQ_OPT_SYNC_KLOOP_MODE = 4,    /* nmreq_opt_sync_kloop_mode */
	NETMAP_REQ_OPT_OFFSETS = 5,            /* nmreq_opt_offsets: frames begin inside buffers */
	NETMAP_REQ_OPT_MAX = 6,                /* the first number that is no option */
};

/* NETMAP_REQ_REGISTER. Asked for: 0 stands for the default. Answered: what there is. */
struct nmreq_register {
	uint64_t nr_offset;  /* answer: where the netmap_if lies in the memory */
	uint64_t nr_memsize; /* answer: bytes to map */
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_host_tx_rings;
	uint16_t nr_host_rx_rings;
	uint16_t nr_mem_id;  /* number of the memory to share, and the one it got */
	uint16_t nr_ringid;  /* which ring, for NR_REG_ONE_* */
	uint32_t nr_mode;    /* NR_REG_* */
	uint32_t nr_extra_bufs; /* buffers beside those of the slots; it may get fewer */
	uint64_t nr_flags;   /* NR_* below */
};

/* nmreq_register.nr_mode: which rings */
enum {
	NR_REG_DEFAULT = 0,     /* legacy only: nr_ringid says it */
	NR_REG_ALL_NIC = 1,     /* all of the port */
	NR_REG_SW = 2,          /* all of the host */
	NR_REG_NIC_SW = 3,      /* all of both */
	NR_REG_ONE_NIC = 4,     /* pair nr_ringid of the port */
	NR_REG_PIPE_MASTER = 5, /* legacy only: new requests write it in the name */
	NR_REG_PIPE_SLAVE = 6,  /* likewise */
	NR_REG_NULL = 7,        /* memory and rings of no port */
	NR_REG_ONE_SW = 8,      /* pair nr_ringid of the host */
};
#define NR_REG_MASK 0xf /* of the legacy nr_flags, which hold the mode too */

/* nmreq_register.nr_flags, and those of the legacy nmreq */
#define NR_MONITOR_TX 0x100       /* see what is sent */
#define NR_MONITOR_RX 0x200       /* see what is received */
#define NR_ZCOPY_MON 0x400        /* a monitor that copies nothing */
#define NR_EXCLUSIVE 0x800        /* no other descriptor may bind these rings */
#define NR_RX_RINGS_ONLY 0x2000
#define NR_TX_RINGS_ONLY 0x4000
#define NR_ACCEPT_VNET_HDR 0x8000 /* the program handles a virtio-net header */
#define NR_DO_RX_POLL 0x10000     /* no effect */
#define NR_NO_TX_POLL 0x20000     /* a poll for input alone does not send */

struct nmreq_port_info_get {
	uint64_t nr_memsize;
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_host_tx_rings;
	uint16_t nr_host_rx_rings;
	uint16_t nr_mem_id;
	uint16_t pad[3];
};

/* Names of switches begin with this. */
#define NM_BDG_NAME "vale"

struct nmreq_vale_attach {
	struct nmreq_register reg; /* NR_REG_ALL_NIC, or NR_REG_NIC_SW: the host's rings too */
	uint32_t port_index;       /* answer: number of the port in its switch */
	uint32_t pad1;
};

struct nmreq_vale_detach {
	uint32_t port_index; /* answer */
	uint32_t pad1;
};

/* Named: where is this port? Not named: the first port at or after these two numbers. */
struct nmreq_vale_list {
	uint16_t nr_bridge_idx;
	uint16_t pad1;
	uint32_t nr_port_idx;
};

struct nmreq_port_hdr {
	uint32_t nr_hdr_len; /* 0, 10 or 12 */
	uint32_t pad1;
};

struct nmreq_vale_newif {
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_mem_id;
	uint16_t pad1;
};

struct nmreq_vale_polling {
	uint32_t nr_mode; /* NETMAP_POLLING_MODE_* */
	uint32_t nr_first_cpu_id;
	uint32_t nr_num_polling_cpus;
	uint32_t pad1;
};

#define NETMAP_POLLING_MODE_SINGLE_CPU 1
#define NETMAP_POLLING_MODE_MULTI_CPU 2

/* Where the three kinds of objects lie in a memory, how many, and how large. */
struct nmreq_pools_info {
	uint64_t nr_memsize;
	uint16_t nr_mem_id; /* asked about, where no port is named */
	uint16_t pad1[3];
	uint64_t nr_if_pool_offset;
	uint32_t nr_if_pool_objtotal;
	uint32_t nr_if_pool_objsize;
	uint64_t nr_ring_pool_offset;
	uint32_t nr_ring_pool_objtotal;
	uint32_t nr_ring_pool_objsize;
	uint64_t nr_buf_pool_offset;
	uint32_t nr_buf_pool_objtotal;
	uint32_t nr_buf_pool_objsize;
};

struct nmreq_sync_kloop_start {
	uint32_t sleep_us; /* between two looks, where no eventfds are given; at most 1000000 */
	uint32_t pad1;
};

/* ---- options ---- */

/* For each ring, transmit rings first: what the application rings, and what it listens to. */
struct nmreq_opt_sync_kloop_eventfds {
	struct nmreq_option nro_opt;
	__extension__ struct {
		int32_t ioeventfd; /* negative for one of them: the loop sleeps instead */
		int32_t irqfd;     /* negative: this ring is never notified */
	} eventfds[0];
};

struct nmreq_opt_sync_kloop_mode {
	struct nmreq_option nro_opt;
	uint32_t mode; /* NM_OPT_SYNC_KLOOP_* */
};

#define NM_OPT_SYNC_KLOOP_DIRECT_TX (1 << 0) /* sync when the program rings: transmit */
#define NM_OPT_SYNC_KLOOP_DIRECT_RX (1 << 1) /* receive */

struct nmreq_opt_extmem {
	struct nmreq_option nro_opt;
	uint64_t nro_usrptr;              /* address of the memory; its size is in the next */
	struct nmreq_pools_info nro_info; /* wanted, and what became of it */
};

struct nmreq_opt_csb {
	struct nmreq_option nro_opt;
	uint64_t csb_atok; /* address of a struct nm_csb_atok for each ring, transmit first */
	uint64_t csb_ktoa; /* address of a struct nm_csb_ktoa for each ring */
};

struct nmreq_opt_offsets {
	struct nmreq_option nro_opt;
	uint64_t nro_max_offset;     /* no offset will be larger */
	uint64_t nro_initial_offset; /* what the slots say at first */
	uint32_t nro_offset_bits;    /* of slot.ptr; 0: all of them */
	uint32_t nro_tx_align;       /* frames to send begin at a multiple of this; 0 or 1: anywhere */
	uint64_t nro_min_gap;        /* 0 */
};

/* ---- the communication status block ---- */

/* From the application to the loop. Order: cur, then head; the loop loads head, then cur. */
struct nm_csb_atok {
	uint32_t head;           /* A */
	uint32_t cur;            /* A */
	uint32_t appl_need_kick; /* A: ring my irqfd */
	uint32_t sync_flags;     /* A */
	uint32_t pad[12];
};

/* From the loop to the application. Order: hwcur, then hwtail; loaded hwtail, then hwcur. */
struct nm_csb_ktoa {
	uint32_t hwcur;          /* N */
	uint32_t hwtail;         /* N */
	uint32_t kern_need_kick; /* N: ring my ioeventfd */
	uint32_t pad[13];
};

/* No store after this becomes visible before a load or store before it. */
static inline void nm_stst_barrier(void)
{
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

/* No load before this is done after a load or store after it. */
static inline void nm_ldld_barrier(void)
{
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
}

/*
 * Tells the loop how far the application has got. The loop may see a newer cur than head, which
 * is harmless; the other way round head would seem to have overtaken cur.
 */
static inline void nm_sync_kloop_appl_write(struct nm_csb_atok *atok, uint32_t cur, uint32_t head)
{
	__atomic_store_n(&atok->cur, cur, __ATOMIC_RELEASE);
	__atomic_store_n(&atok->head, head, __ATOMIC_RELEASE);
}

/* Reads how far the loop has got; afterwards the slots before *hwtail may be read. */
static inline void nm_sync_kloop_appl_read(struct nm_csb_ktoa *ktoa, uint32_t *hwtail,
					   uint32_t *hwcur)
{
	*hwtail = __atomic_load_n(&ktoa->hwtail, __ATOMIC_ACQUIRE);
	*hwcur = __atomic_load_n(&ktoa->hwcur, __ATOMIC_ACQUIRE);
}

/* ---- legacy requests: ioctl(fd, NIOCGINFO or NIOCREGIF, &nmreq) ---- */

struct nmreq {
	char nr_name[IFNAMSIZ]; /* "eth0", "vale0:a" */
	uint32_t nr_version;    /* at least NETMAP_MIN_API */
	uint32_t nr_offset;     /* answer */
	uint32_t nr_memsize;    /* answer */
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_ringid;     /* a number, and NETMAP_* bits */
	uint16_t nr_cmd;        /* 0: bind; else NETMAP_BDG_* */
	uint16_t nr_arg1;
	uint16_t nr_arg2;       /* number of the memory */
	uint32_t nr_arg3;       /* extra buffers */
	uint32_t nr_flags;      /* NR_REG_* and NR_* */
	uint32_t spare2[1];
};

/* nmreq.nr_ringid */
#define NETMAP_RING_MASK 0x0fff   /* number of the ring, or of the pipe */
#define NETMAP_NO_TX_POLL 0x1000  /* NR_NO_TX_POLL */
#define NETMAP_SW_RING 0x2000     /* with NR_REG_DEFAULT: NR_REG_SW */
#define NETMAP_HW_RING 0x4000     /* with NR_REG_DEFAULT: NR_REG_ONE_NIC */
#define NETMAP_DO_RX_POLL 0x8000  /* NR_DO_RX_POLL */

/* nmreq.nr_cmd */
#define NETMAP_BDG_ATTACH 1
#define NETMAP_BDG_DETACH 2
#define NETMAP_BDG_REGOPS 3      /* not from user space */
#define NETMAP_BDG_LIST 4        /* through NIOCGINFO */
#define NETMAP_BDG_VNET_HDR 5    /* nr_arg1: the length */
#define NETMAP_BDG_NEWIF 6
#define NETMAP_BDG_DELIF 7
#define NETMAP_PT_HOST_CREATE 8  /* not supported */
#define NETMAP_PT_HOST_DELETE 9  /* not supported */
#define NETMAP_BDG_POLLING_ON 10
#define NETMAP_BDG_POLLING_OFF 11
#define NETMAP_VNET_HDR_GET 12
#define NETMAP_BDG_HOST 1        /* nr_arg1 of NETMAP_BDG_ATTACH: the host's rings too */

#define NM_IFRDATA_LEN 256

/* For switches with forwarding code of their own. */
struct nm_ifreq {
	char nifr_name[IFNAMSIZ];
	char data[NM_IFRDATA_LEN];
};

/* ---- numbers of the calls ---- */

#define NIOCCTRL _IOWR('i', 151, struct nmreq_header)
#define NIOCGINFO _IOWR('i', 145, struct nmreq)
#define NIOCREGIF _IOWR('i', 146, struct nmreq)
#define NIOCTXSYNC _IO('i', 148) /* send everything before head; ENXIO without a port */
#define NIOCRXSYNC _IO('i', 149) /* give back everything before head, look for more */
#define NIOCCONFIG _IOWR('i', 150, struct nm_ifreq)

#ifdef __cplusplus
}
#endif

#endif /* UVALA_NET_NETMAP_H */
