/*
 * uvala.h - ports of a uvala switch: open by name, send, receive, wait.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 *	cc prog.c $(pkg-config --cflags --libs uvala)
 *
 *	struct uvala_port *port;
 *	if (uvala_open("vale0:a", NULL, &port) < 0)
 *		errx(1, "%s", uvala_errmsg());
 *	uvala_send(port, frame, 60, -1);
 *	int len = uvala_recv(port, buffer, sizeof(buffer), -1);
 *	uvala_close(port);
 *
 * RESULTS. Negative: an error, UVALA_E...; uvala_errmsg() has the whole story. Calls that wait
 * return 0 when the time is over. Times are microseconds; negative waits for ever, 0 not at all.
 *
 * POINTERS. NULL is an error unless said otherwise. A port pointer is valid from uvala_open to
 * uvala_close, a queue pointer as long as its port, reconnected or not. Memory behind the inline
 * functions is valid until the slot is given up, and no longer than the port. Texts are
 * zero-terminated and not kept.
 *
 * THREADS. A port has a sending side and a receiving side; one thread may use the one while
 * another uses the other, and both may sleep. Functions marked [tx] belong to the sending side,
 * [rx] to the receiving side, all others to both: call those from one thread while no other uses
 * the port. A port with UVALA_RECONNECT is for one thread altogether. Different ports are
 * independent.
 *
 * SIGNALS. None is caught, ignored or raised: a dead daemon is UVALA_ELOST and never SIGPIPE.
 * A wait goes on after a signal handler; use uvala_fd() with your own ppoll() to notice one.
 *
 * A broken promise of the library's own (not: a bad argument) aborts the program.
 */
#ifndef UVALA_H
#define UVALA_H

#include <stddef.h>
#include <stdint.h>

#include "uvala_ring.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */

enum uvala_error {
	UVALA_EARG = -1,          /* bad argument */
	UVALA_ENAME = -2,         /* not the name of a port */
	UVALA_ENODAEMON = -3,     /* no daemon listens, or it does not answer */
	UVALA_ELOST = -4,         /* the daemon is gone: uvala_reconnect() */
	UVALA_EPERM = -5,         /* this user may not */
	UVALA_ENOTFOUND = -6,     /* no such port (UVALA_EXISTING) */
	UVALA_EEXISTS = -7,       /* there is one already */
	UVALA_EINUSE = -8,        /* another client holds the port */
	UVALA_EQUOTA = -9,        /* this user has as much as one may have */
	UVALA_ENOMEM = -10,       /* neither memory nor descriptors left */
	UVALA_EREQUEST = -11,     /* the daemon refused a number */
	UVALA_EUNSUPPORTED = -12, /* not by this daemon, not for this kind of port */
	UVALA_EINTERNAL = -13,    /* a fault of the daemon */
	UVALA_ETOOSHORT = -14,    /* a frame has at least 14 bytes */
	UVALA_ETOOLONG = -15,     /* a frame has at most 65553 bytes, and must fit the ring */
	UVALA_ERESYNC = -16,      /* a broken ring was re-synchronised; said once, go on */
	UVALA_EPROTOCOL = -17,    /* the daemon is of another version */
	UVALA_ESYSTEM = -18,      /* a system call failed */
	UVALA_EDELETED = -19,     /* an operator deleted the port; nothing reconnects it */
	UVALA_ESTOPPED = -20,     /* uvala_stop() has ended the wait */
};

/* What an error number means; never NULL. */
const char *uvala_strerror(int error);

/* The last failure in this thread, one line, with names and numbers; "" if there was none. Valid
 * until the next call of this thread that fails. */
const char *uvala_errmsg(void);

/* Version of the library, like "0.1.0". */
const char *uvala_version(void);

/* ---- stopping ---- */

/* Ends waits: of the ports that were opened with it (uvala_options.stop), whatever they wait for,
 * and of the threads of uvala_nf_run(). It is said once, for good. */
struct uvala_stop;

/* Stores a new one in *stop. 0 or UVALA_ESYSTEM. */
int uvala_stop_new(struct uvala_stop **stop);

/* Says it. Any thread may, and any signal handler. NULL does nothing. */
void uvala_stop(struct uvala_stop *stop);

/* Frees it. Ports that use it go on, and can no longer be stopped by it. NULL does nothing. */
void uvala_stop_free(struct uvala_stop *stop);

/* ---- ports ---- */

struct uvala_port;

/* uvala_options.flags */
#define UVALA_EXISTING 0x1u  /* do not create switch or port */
#define UVALA_SPIN 0x2u      /* never sleep: for threads that own their cores */
#define UVALA_RECONNECT 0x4u /* uvala_send, _recv, _wait reconnect and go on by themselves; while
                              * there is no daemon their time runs out as if nothing came */

/* How to open a port; start from UVALA_OPTIONS_INIT. 0 and NULL stand for the default. In later
 * versions there will be more fields at the end. A program runs with an older library too, as long
 * as it leaves those at 0 which that library does not know; otherwise it gets UVALA_EARG. */
struct uvala_options {
	size_t size;         /* of this structure */
	const char *dir;     /* directory of the daemon's socket */
	const char *group;   /* trust group: its ports share memory and swap buffers; one of this
	                      * user's, or one of this name that the daemon's file declares */
	uint16_t tx_rings;   /* in [1, 64] */
	uint16_t rx_rings;   /* in [1, 64] */
	uint32_t tx_slots;   /* of each ring, in [8, 16384] */
	uint32_t rx_slots;   /* of each ring, in [8, 16384] */
	uint32_t extra_bufs; /* buffers beyond those of the slots: uvala_extra_take() */
	int32_t yields;      /* times to yield the core before sleeping; -1: sleep at once */
	uint32_t flags;      /* UVALA_EXISTING ... */
	const char *client;  /* what the program is called in listings; its file's name */
	struct uvala_stop *stop; /* waits end with UVALA_ESTOPPED when it is said */
	uint64_t group_memory; /* bytes of the group's memory, if the port is its first: all of it
	                        * counts in the user's quota, and no port of the group does */
};
#define UVALA_OPTIONS_INIT { sizeof(struct uvala_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Opens the port called name, like "vale0:a", creating switch and port where there are none.
 * options may be NULL. Stores the port in *port and returns 0; on error *port is untouched. */
int uvala_open(const char *name, const struct uvala_options *options, struct uvala_port **port);

/* Closes a port; the daemon detaches it. NULL does nothing. Frames sent and not yet taken are
 * lost: uvala_drain() first. */
void uvala_close(struct uvala_port *port);

/* Opens the port once more under its name, after UVALA_ELOST; tries again until the time is over.
 * All queues start empty. 0 or an error. */
int uvala_reconnect(struct uvala_port *port, int64_t timeout_us);

/* 0, UVALA_ELOST if the daemon is gone, or UVALA_EDELETED. One system call; waits find out by
 * themselves. */
int uvala_check(struct uvala_port *port);

/* How often the switch re-synchronised a ring of this port; NULL: 0. */
uint32_t uvala_resyncs(struct uvala_port *port);

/* 1 if the ports share their memory (a trust group), else 0: see uvala_swap(). */
int uvala_same_region(struct uvala_port *a, struct uvala_port *b);

/* ---- frames, copied ---- */

/* Sends the frame of len bytes on the first ring. 1: sent, 0: no room within the time. [tx]
 * Sent is what is in the ring: uvala_drain() tells whether the switch has taken it. That the other
 * side is gone shows when the ring is full, in any wait, and in uvala_check(). */
int uvala_send(struct uvala_port *port, const void *frame, size_t len, int64_t timeout_us);

/* Receives a frame from any ring into the size bytes at buffer. Returns the frame's length; where
 * that exceeds size, the rest is gone. 0: nothing came within the time. [rx] */
int uvala_recv(struct uvala_port *port, void *buffer, size_t size, int64_t timeout_us);

/* Waits until the switch has taken everything that was sent. 1: it has, 0: time over. [tx] */
int uvala_drain(struct uvala_port *port, int64_t timeout_us);

/* ---- waiting ---- */

#define UVALA_RX 1 /* a frame on any receive ring */
#define UVALA_TX 2 /* count free slots on any transmit ring */

/* Waits. 1: ready, 0: time over. count is for UVALA_TX; one that no ring ever has free, more than
 * its slots less one, is UVALA_EARG. [rx] or [tx], by what */
int uvala_wait(struct uvala_port *port, int what, uint32_t count, int64_t timeout_us);

/* The doorbell, for an event loop of your own. Poll it for reading; do not read it. [rx]
 *
 *	if (uvala_arm(port, UVALA_RX, 0))   // 0: frames are there already, do not sleep
 *		poll(...);                  // or epoll, level-triggered
 *	uvala_disarm(port);                 // UVALA_ELOST when the daemon is gone
 *	... use the queues until they have nothing more ...
 */
int uvala_fd(struct uvala_port *port);
int uvala_arm(struct uvala_port *port, int what, uint32_t count);
int uvala_disarm(struct uvala_port *port);

/* ---- queues: slots and buffers where they lie ---- */

/*
 * A transmit queue owns free slots, a receive queue slots with frames. They are counted from 0
 * to count - 1; look, use some, then hand over the first ones.
 *
 *	struct uvala_queue *tx = uvala_tx(port, 0);
 *	uint32_t i, n = uvala_look(tx);
 *	for (i = 0; i < n; i++)
 *		memcpy(uvala_tx_frame(tx, i, 60), frame, 60);
 *	uvala_submit(tx, n);
 *
 * Read the fields, never write them.
 */
struct uvala_queue {
	struct uvala_slot *slots;
	unsigned char *pool; /* buffer 0 */
	uint32_t num_slots;
	uint32_t stride;     /* distance and size of the buffers */
	uint32_t buffers;    /* number of buffers */
	uint32_t head;       /* first owned slot */
	uint32_t count;      /* owned slots, as of the last call */
	uint32_t dir;        /* UVALA_DIR_* */
	void *ring;          /* the library's */
};

/* Queue number i, or NULL if the port has no such ring. [tx] and [rx] */
struct uvala_queue *uvala_tx(struct uvala_port *port, uint32_t i);
struct uvala_queue *uvala_rx(struct uvala_port *port, uint32_t i);

/* Looks how far the other side has got; returns and stores count. NULL: 0. [tx] or [rx] */
uint32_t uvala_look(struct uvala_queue *queue);

/* Hands the first n slots to the switch: whole frames. Yields the core after a ring of slots
 * without a wait, unless the port spins. 0, UVALA_EARG (more than count) or
 * UVALA_ELOST, if the switch slept and is gone; 0 does not say that it is there. [tx] */
int uvala_submit(struct uvala_queue *tx, uint32_t n);

/* Gives the first n slots back to the switch. As above. [rx] */
int uvala_release(struct uvala_queue *rx, uint32_t n);

/* Waits until a transmit queue owns n slots, or a receive queue one. 1: it does, 0: time over,
 * UVALA_EARG: it never has that many. [tx] or [rx] */
int uvala_queue_wait(struct uvala_queue *queue, uint32_t n, int64_t timeout_us);

/* Extra buffers, uvala_options.extra_bufs of them, to keep frames without copying them. Take
 * returns the number of one, or 0 if there is none left; give takes one back, 0 or UVALA_EARG.
 * uvala_exchange() puts one, never 0, into a slot. Give back, or put into a slot, only what you
 * took out, once. After a reconnect there are new ones: the numbers of the old mean nothing. [tx]
 * or [rx]
 *
 *	const void *frame = uvala_rx_frame(rx, i, &len);
 *	kept = uvala_exchange(rx, i, uvala_extra_take(rx));     // the frame stays where it is
 *	uvala_release(rx, 1);
 *	... uvala_extra_data(rx, kept) == frame ... any time later:
 *	uvala_tx_set(tx, j, len, 0);
 *	uvala_extra_give(tx, uvala_exchange(tx, j, kept));
 *	uvala_submit(tx, 1);
 */
uint32_t uvala_extra_take(struct uvala_queue *queue);
int uvala_extra_give(struct uvala_queue *queue, uint32_t buffer);

/* Moves whole frames from rx to tx, about max slots of them, and hands over both sides. Inside a
 * trust group the buffers change places, otherwise the bytes are copied. Returns the number of
 * slots; 0: nothing is there, or tx has too little room for the first frame. [rx] of the one port
 * and [tx] of the other */
int uvala_forward(struct uvala_queue *rx, struct uvala_queue *tx, uint32_t max);

/* Slot i, i in [0, count). */
static inline struct uvala_slot *uvala_queue_slot(const struct uvala_queue *queue, uint32_t i)
{
	uint32_t at = queue->head + i;

	return &queue->slots[at >= queue->num_slots ? at - queue->num_slots : at];
}

/* The stride bytes of the buffer with this number. A number that no buffer has leads to buffer 0:
 * wrong bytes, never wrong memory. */
static inline unsigned char *uvala_extra_data(const struct uvala_queue *queue, uint32_t number)
{
	return queue->pool + (size_t)(number < queue->buffers ? number : 0) * queue->stride;
}

/* The stride bytes of slot i's buffer. */
static inline unsigned char *uvala_data(const struct uvala_queue *queue, uint32_t i)
{
	return uvala_extra_data(queue, uvala_queue_slot(queue, i)->buf_idx);
}

/* Puts another buffer into slot i, which keeps its length and flags; returns the number of the
 * one that stood there, yours from now on. */
static inline uint32_t uvala_exchange(struct uvala_queue *queue, uint32_t i, uint32_t number)
{
	struct uvala_slot *slot = uvala_queue_slot(queue, i);
	uint32_t stood = slot->buf_idx;

	slot->buf_idx = number;
	slot->flags = (uint16_t)(slot->flags | UVALA_NS_BUF_CHANGED);
	return stood;
}

/* Says that slot i holds len bytes, len in [0, stride]; flags UVALA_NS_MOREFRAG: the frame goes
 * on in the next slot. */
static inline void uvala_tx_set(struct uvala_queue *tx, uint32_t i, uint16_t len, uint16_t flags)
{
	struct uvala_slot *slot = uvala_queue_slot(tx, i);

	slot->len = len;
	slot->flags = flags;
}

/* Slot i as a frame of len bytes; returns where to write it. It holds an old frame. */
static inline unsigned char *uvala_tx_frame(struct uvala_queue *tx, uint32_t i, uint16_t len)
{
	uvala_tx_set(tx, i, len, 0);
	return uvala_data(tx, i);
}

/* The bytes received in slot i; stores their number. A slot without bytes holds no frame. */
static inline const unsigned char *uvala_rx_frame(const struct uvala_queue *rx, uint32_t i,
						  uint16_t *len)
{
	uint16_t n = uvala_queue_slot(rx, i)->len;

	*len = n <= rx->stride ? n : (uint16_t)rx->stride;
	return uvala_data(rx, i);
}

/* Does the frame of slot i go on in the next one? */
static inline int uvala_more(const struct uvala_queue *queue, uint32_t i)
{
	return (uvala_queue_slot(queue, i)->flags & UVALA_NS_MOREFRAG) != 0;
}

/* Puts the frame of rx's slot i into tx's slot j, and tx's buffer into rx's slot. Both ports must
 * share their memory: uvala_same_region(). */
static inline void uvala_swap(struct uvala_queue *rx, uint32_t i, struct uvala_queue *tx,
			      uint32_t j)
{
	struct uvala_slot *from = uvala_queue_slot(rx, i);
	struct uvala_slot *to = uvala_queue_slot(tx, j);
	uint32_t spare = to->buf_idx;

	to->buf_idx = from->buf_idx;
	to->len = from->len;
	to->flags = (uint16_t)((from->flags & UVALA_NS_MOREFRAG) | UVALA_NS_BUF_CHANGED);
	from->buf_idx = spare;
	from->flags = UVALA_NS_BUF_CHANGED;
}

/* ---- functions of a chain ---- */

/* A frame that a function is asked about, where it lies. docs/spec/frame-metadata.md has the bits
 * of meta; the hash and the bit "turned" are the function's to change. */
struct uvala_nf_frame {
	uint8_t *data;   /* to read and to write */
	uint32_t len;    /* bytes; may be changed, to at most room; in several buffers, not at all */
	uint32_t room;
	uint64_t meta;
	uint32_t target; /* with UVALA_NF_SERVICE, UVALA_NF_PORT: which number */
	uint32_t held;   /* with UVALA_NF_HOLD: its handle; 0: it cannot be held, and is dropped */
};

/* What becomes of it. Every other number, a target that no service or port can have, and a len that
 * is more than room are no action: the frame is dropped, and counted as bad_action. */
enum uvala_nf_action {
	UVALA_NF_NEXT = 0,    /* the next function, or out at the end of the chain */
	UVALA_NF_DROP = 1,
	UVALA_NF_SERVICE = 2, /* to a service */
	UVALA_NF_PORT = 3,    /* out by a port of the switch, or to that instance */
	UVALA_NF_HOLD = 4     /* nothing yet: uvala_nf_send_on() */
};
typedef int (*uvala_nf_callback)(void *context, struct uvala_nf_frame *frame);

/* Handles one batch on the first rings of a port that is an instance of a service, after waiting
 * for it; asks the callback about each frame. Returns the number of slots, 0 when the time is over,
 * or an error. Both sides of the port are this thread's meanwhile, and a callback calls nothing
 * about this port but uvala_nf_held, _send_on, _send, _count and _gauge: all else, this function
 * too, is UVALA_EARG there, NULL, or nothing (uvala_close, uvala_resyncs); it uses no queues that
 * it had before. When uvala_options.stop was said it is UVALA_ESTOPPED, whether there are frames or
 * not. A port that was no instance of a service when it was opened, or in a switch without chains,
 * is an error. */
int uvala_nf_step(struct uvala_port *port, uvala_nf_callback callback, void *context,
                  int64_t timeout_us);

/* Has this called too, with the context of the step: before each batch with its number of slots,
 * and with 0 when the time is over. NULL: nothing. 0 or an error. */
typedef void (*uvala_nf_batch)(void *context, uint32_t slots);
int uvala_nf_on_batch(struct uvala_port *port, uvala_nf_batch batch);

/* Most frames that a port holds. */
#define UVALA_NF_HELD_MAX 65536

/* A held frame is a copy that belongs to the library; the switch does not wait for it. One that is
 * never sent on is gone when the port is closed. It is as it was when the callback returned, with
 * its meta and its own bytes. Frames in several buffers cannot be held. A handle is this port's,
 * and good for one uvala_nf_send_on(); every other is UVALA_EARG. Handles outlive a reconnect. */

/* Its bytes, to read and to write until it is sent on; stores their number, if len is not NULL.
 * NULL: it is not held. */
uint8_t *uvala_nf_held(struct uvala_port *port, uint32_t held, uint32_t *len);

/* Sends it on, as what becomes of it now: an action but UVALA_NF_HOLD, with its target. It goes out
 * behind the batch, or in the next uvala_nf_step() if there is none now. 0 or UVALA_EARG: then it
 * is still held, if it was. */
int uvala_nf_send_on(struct uvala_port *port, uint32_t held, int action, uint32_t target);

/* Sends a copy of this as a new frame, which leaves by its address; likewise behind the batch. 0 or
 * UVALA_EARG. One that does not fit the ring is an error of that step. */
int uvala_nf_send(struct uvala_port *port, const void *frame, size_t len);

/* The numbers of a service, for UVALA_NF_SERVICE, of a port, like "vale0:out", for UVALA_NF_PORT,
 * and of a chain, as bits 44 to 51 of meta have it; all of the port's switch. They ask the daemon,
 * so call them before the first batch, and again after a reconnect: another daemon may count
 * differently. A service and a chain keep their numbers as long as they are there, a port as long
 * as a client holds it. Negative: an error, UVALA_ENOTFOUND where there is none of this name, the
 * service has no instance, or no client holds the port. */
int uvala_nf_service(struct uvala_port *port, const char *name);
int uvala_nf_port(struct uvala_port *port, const char *name);
int uvala_nf_chain(struct uvala_port *port, const char *name);

/* Has listings (uvala nf list, nf top) and metrics show a number of the function's own, by a name
 * of 1 to 64 letters, digits and '_': what it has counted since it began, or what there is now,
 * which also shrinks; the last call about a name says which. Of a port there are 256 at most. Each
 * call says the whole number; it costs a look-up, so better make it for a batch than for a frame.
 * The daemon is told within a second or two, by a thread that the first call starts: it takes no
 * signal, and ends soon after the port is closed. 0, UVALA_EARG, or UVALA_ESYSTEM: there is no
 * thread to be had. */
int uvala_nf_count(struct uvala_port *port, const char *name, uint64_t count);
int uvala_nf_gauge(struct uvala_port *port, const char *name, uint64_t gauge);

/* A function on several cores: instances of its service in threads of this process. Start from
 * UVALA_NF_THREADS_INIT; as with uvala_options there will be more fields. */
struct uvala_nf_threads {
	size_t size;         /* of this structure */
	const char *port;    /* of the first thread, like "vale0:fw"; then "vale0:fw_1", "vale0:fw_2" */
	const char *service; /* ports that are not there are made, as its instances; NULL: all are there */
	const char *cores;   /* one for each thread, like "0,2-3"; NULL: the system chooses */
	const struct uvala_options *options; /* how the ports are opened; stop: ends all threads */
	uint16_t threads;    /* 0: one for each core, or one */
	uint16_t instance;   /* number of the first instance; 0: the lowest that are free */
	uint32_t reserved;   /* 0 */
};
#define UVALA_NF_THREADS_INIT { sizeof(struct uvala_nf_threads), 0, 0, 0, 0, 0, 0, 0 }

/* What each thread does: calls uvala_nf_step() on its port until that is an error, and returns it.
 * thread is counted from 0. The context is that of all threads, which use it at once; what is one
 * thread's alone the body makes for itself. It does not close the port. */
typedef int (*uvala_nf_body)(void *context, struct uvala_port *port, uint32_t thread);

/* Starts a thread for each instance, which runs on its core alone, opens its port, and calls the
 * body; returns when all have ended. When one returns, whatever it returns, all are stopped: where
 * options have a stop, by that. 0, or the first error that is not UVALA_ESTOPPED, where
 * uvala_errmsg() says which thread's it was: also cores that are not there (UVALA_EARG, before
 * anything is opened), a port that another has (UVALA_EINUSE). Ports that were made stay, but when
 * not all threads could open theirs. */
int uvala_nf_run(const struct uvala_nf_threads *threads, uvala_nf_body body, void *context);

#define UVALA_NF_OWN_BYTES 16

/* The functions' own bytes, which travel with the buffer inside of the trust group, and with a
 * frame that is held; what is in them at first is anything. NULL: the frame reaches into them, or
 * lies in several buffers. For callbacks. */
static inline uint8_t *uvala_nf_own(const struct uvala_nf_frame *frame)
{
	return frame->room >= UVALA_NF_OWN_BYTES && frame->len <= frame->room - UVALA_NF_OWN_BYTES ?
		       frame->data + (frame->room - UVALA_NF_OWN_BYTES) :
		       NULL;
}

#ifdef __cplusplus
}
#endif

#endif /* UVALA_H */
