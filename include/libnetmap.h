/*
 * libnetmap.h - netmap ports by one string.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The names, structures and strings are those of netmap's libnetmap, so programs written for that
 * compile with this header and link with the libnetmap.a that comes with it:
 *
 *	struct nmport_d *d = nmport_open("vale0:a@conf:rings=2,slots=512");
 *	struct pollfd p = { d->fd, POLLOUT, 0 };
 *	poll(&p, 1, 1000);
 *	nmport_inject(d, frame, length);
 *	ioctl(d->fd, NIOCTXSYNC, NULL);
 *	nmport_close(d);
 *
 * The library opens /dev/netmap as any program does, so its programs need "uvala run -- PROGRAM",
 * or netmap's kernel module.
 *
 * A PORT STRING is a name, then what to bind, then options:
 *
 *	netmap:NAME    an interface, or any name that netmap knows: letters, digits, _ and .
 *	valeX:NAME     a port of switch valeX; X may be empty
 *	...{PIPE       one end of a pipe in the memory of that port
 *	...}PIPE       its other end
 *
 *	^   ^N         all rings of the host's side, or pair N of them
 *	*              the rings of both sides
 *	-N             pair N
 *	/xztrRT        exclusive; zero-copy monitor; monitor of what is sent, of what is received;
 *	               receive rings only; transmit rings only
 *	@N             in memory N
 *
 *	@share=NAME    in the memory of that port (netmap:NAME or valeX:NAME)
 *	@conf:KEY=N,...    for a port that is made by this: rings, tx-rings, rx-rings, host-rings,
 *	               host-tx-rings, host-rx-rings, slots, tx-slots, rx-slots. Keys for one
 *	               direction take precedence. @conf=N: rings
 *	@extmem:file=PATH,KEY=N,...    in the memory of that file: if-num, if-size, ring-num,
 *	               ring-size, buf-num, buf-size. @extmem=PATH
 *	@offset:initial=N,bits=N    frames begin N bytes into their buffers. @offset=N. Only after
 *	               nmport_enable_option("offset"): the program must look at slot.ptr
 *
 * ERRORS. On error, functions return NULL or -1 and set errno. The context's error() gets a line
 * that says why (of options that netmap refuses one each), unless its verbose is 0.
 *
 * THREADS may use different ports at the same time. One port is for one thread at a time.
 * LIBNETMAP_NOTHREADSAFE has no effect: the lock needs no library.
 */
#ifndef UVALA_LIBNETMAP_H
#define UVALA_LIBNETMAP_H
#ifdef LIBNETMAP_H_
#error "netmap's own libnetmap.h is included already; do not mix the two"
#endif
/* Code that tests for netmap's own header finds it included. */
#define LIBNETMAP_H_

#include <stddef.h>
#include <stdint.h>
#include <net/netmap_user.h>

#ifdef __cplusplus
extern "C" {
#endif

struct nmctx;
struct nmem_d;
struct nmport_cleanup_d;

/* ---- ports ---- */

/* A port. Between nmport_prepare() and nmport_open_desc(), hdr and reg are the program's to change
 * (extra buffers, for example); all else is to be read. */
struct nmport_d {
	struct nmreq_header hdr;
	struct nmreq_register reg;  /* asked for, then what there is */
	struct nmem_d *mem;         /* the same for two ports of a context: frames move uncopied */
	struct nmctx *ctx;
	int register_done;
	int mmap_done;
	struct nmreq_opt_extmem *extmem; /* the option, if the port has it */
	int fd;                     /* for poll() and ioctl(); -1 where it is not open */
	struct netmap_if *nifp;
	uint16_t first_tx_ring, last_tx_ring; /* bound ones; none: the last is before the first */
	uint16_t first_rx_ring, last_rx_ring;
	uint16_t cur_tx_ring;       /* where nmport_inject() goes on */
	uint16_t cur_rx_ring;       /* the program's */
	struct nmport_cleanup_d *clist;
};

/* Opens the port; closes it, and frees d, which may be NULL. Closing leaves errno as it is. */
struct nmport_d *nmport_open(const char *portspec);
void nmport_close(struct nmport_d *d);

/* Copies a frame into a transmit ring; it leaves with the next NIOCTXSYNC or poll(). Returns its
 * size, or 0 where there is no room, as programs for netmap expect. */
int nmport_inject(struct nmport_d *d, const void *buf, size_t size);

/* The same in two steps: what the string says, without a system call but for @share and @extmem;
 * then the port. Each has its reverse. */
struct nmport_d *nmport_prepare(const char *portspec);
int nmport_open_desc(struct nmport_d *d);
void nmport_undo_open_desc(struct nmport_d *d);
void nmport_undo_prepare(struct nmport_d *d);

/* The same in four: new and parse make prepare; register and mmap make open_desc. One that fails
 * leaves d as it was. */
struct nmport_d *nmport_new(void);
int nmport_parse(struct nmport_d *d, const char *portspec);
int nmport_register(struct nmport_d *d);
int nmport_mmap(struct nmport_d *d);
void nmport_undo_mmap(struct nmport_d *d);
void nmport_undo_register(struct nmport_d *d);
void nmport_undo_parse(struct nmport_d *d);
void nmport_delete(struct nmport_d *d);

/* Another port with the request of d, but without its options: prepared, not open. Of an open d it
 * asks for the same memory. A port with external memory must be open (EINVAL). */
struct nmport_d *nmport_clone(struct nmport_d *d);

/* What @extmem does, before nmport_register(): memory of the program, or of a file, which is
 * unmapped with the port: close that port last, after its clones and others in its memory. EINVAL
 * if the port has such memory. */
int nmport_extmem(struct nmport_d *d, void *base, size_t size);
int nmport_extmem_from_file(struct nmport_d *d, const char *fname);

/* Sizes of that memory: to be set before nmport_register(), to be read after it. NULL: none. */
struct nmreq_pools_info *nmport_extmem_getinfo(struct nmport_d *d);

/* What @offset does, before nmport_register(): the lowest bits of slot.ptr (0: all) say where a
 * frame begins, initial at first and maxoff at most; mingap as in nmreq_opt_offsets. */
int nmport_offset(struct nmport_d *d, uint64_t initial, uint64_t maxoff, uint64_t bits,
		  uint64_t mingap);

/* Options of port strings that the program refuses (EOPNOTSUPP), or accepts. Before any thread
 * parses a string. Enabling what there is not fails: EOPNOTSUPP. */
void nmport_disable_option(const char *opt);
int nmport_enable_option(const char *opt);

/* ---- parts of port strings ---- */

/* A request with this body; all else is 0. */
void nmreq_header_init(struct nmreq_header *hdr, uint16_t reqtype, void *body);

/* Reads the name at *ppspec into hdr->nr_name, and moves *ppspec behind it. EINVAL. */
int nmreq_header_decode(const char **ppspec, struct nmreq_header *hdr, struct nmctx *ctx);

/* Reads what to bind: nr_mode, nr_ringid, nr_flags, and with @N nr_mem_id, which may not be another
 * one already; *pmode moves to the options, if there are some. EINVAL. */
int nmreq_register_decode(const char **pmode, struct nmreq_register *reg, struct nmctx *ctx);

/* The memory of the port named at *portname, which moves behind the name. EINVAL where it is
 * NULL. */
int32_t nmreq_get_mem_id(const char **portname, struct nmctx *ctx);

struct nmreq_parse_ctx;
typedef int (*nmreq_opt_parser_cb)(struct nmreq_parse_ctx *);

#define NMREQ_OPT_MAXKEYS 16

struct nmreq_opt_key {
	const char *key; /* NULL ends the keys of an option; - and _ are the same */
	int id;          /* its place in nmreq_parse_ctx.keys */
	unsigned int flags;
#define NMREQ_OPTK_ALLOWEMPTY (1U << 0) /* may stand without =value; the value is then the key */
#define NMREQ_OPTK_MUSTSET (1U << 1)
#define NMREQ_OPTK_DEFAULT (1U << 2)    /* for programs that look; default_key counts */
};

/* An option that a program knows. */
struct nmreq_opt_parser {
	const char *prefix;        /* its name */
	nmreq_opt_parser_cb parse; /* called with the values; returns 0, or -1 with errno */
	int default_key;           /* the key of @name=value; -1: none */
	int nr_keys;               /* for programs that count */
	unsigned int flags;
#define NMREQ_OPTF_DISABLED (1U << 0)
#define NMREQ_OPTF_ALLOWEMPTY (1U << 1) /* may stand alone: @name */
	struct nmreq_opt_parser *next;
	struct nmreq_opt_key keys[NMREQ_OPT_MAXKEYS];
} __attribute__((aligned(16)));

/* What a parse callback gets. */
struct nmreq_parse_ctx {
	struct nmctx *ctx;
	void *token;
	const char *keys[NMREQ_OPT_MAXKEYS]; /* values by id; NULL where a key was not given */
};

/* Reads "@name...@name..." and calls the parser of each. EINVAL, EOPNOTSUPP, ENOMEM, or the
 * parser's; options before it may have had their effect. */
int nmreq_options_decode(const char *opt, struct nmreq_opt_parser *parsers, void *token,
			 struct nmctx *ctx);

/* The options of a request: added in front, taken out, found by NETMAP_REQ_OPT_... (or NULL), all
 * freed by free(), named for messages. */
void nmreq_push_option(struct nmreq_header *hdr, struct nmreq_option *opt);
void nmreq_remove_option(struct nmreq_header *hdr, struct nmreq_option *opt);
struct nmreq_option *nmreq_find_option(struct nmreq_header *hdr, uint32_t reqtype);
void nmreq_free_options(struct nmreq_header *hdr);
const char *nmreq_option_name(uint32_t reqtype);

#define nmreq_next_option_(address) ((struct nmreq_option *)(uintptr_t)(address))
#define nmreq_foreach_option(hdr, opt) \
	for ((opt) = nmreq_next_option_((hdr)->nr_options); (opt) != NULL; \
	     (opt) = nmreq_next_option_((opt)->nro_next))

/* ---- contexts ---- */

typedef void (*nmctx_error_cb)(struct nmctx *, const char *);
typedef void *(*nmctx_malloc_cb)(struct nmctx *, size_t);
typedef void (*nmctx_free_cb)(struct nmctx *, void *);
typedef void (*nmctx_lock_cb)(struct nmctx *, int);

/* How the library speaks, and where its memory is from. A program that wants another way copies
 * the default context, changes the copy, and passes it or makes it the default. */
struct nmctx {
	int verbose;            /* 0: no messages */
	nmctx_error_cb error;   /* gets a line without its end */
	nmctx_malloc_cb malloc;
	nmctx_free_cb free;
	nmctx_lock_cb lock;     /* 1: take, 0: give back; may be NULL */
	struct nmem_d *mem_descs;
};

/* A mapped memory. Ports of a context share one where they have the same. */
struct nmem_d {
	uint16_t mem_id;
	int refcount;
	void *mem;
	size_t size;
	int is_extmem;
	struct nmem_d *next, *prev;
};

/* The default context; makes ctx the default, and returns the one before. */
struct nmctx *nmctx_get(void);
struct nmctx *nmctx_set_default(struct nmctx *ctx);

/* Gives the default context a lock, which it has from the beginning. */
void nmctx_set_threadsafe(void);

/* The callbacks, as the library calls them. */
void nmctx_ferror(struct nmctx *ctx, const char *format, ...);
void *nmctx_malloc(struct nmctx *ctx, size_t size);
void nmctx_free(struct nmctx *ctx, void *memory);
void nmctx_lock(struct nmctx *ctx);
void nmctx_unlock(struct nmctx *ctx);

#ifdef __cplusplus
}
#endif

#endif /* UVALA_LIBNETMAP_H */
