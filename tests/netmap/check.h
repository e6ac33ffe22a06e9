/*
 * check.h - what the conformance programs have in common.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A program has a table of cases. Without arguments it lists them; with a name it runs that case,
 * alone in its process, and ends with status 0, or says which check failed. A case that cannot run
 * here says why, and ends with status 77.
 */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <net/netmap.h>
#include <net/netmap_user.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not so: %s (errno %d: %s)\n", __FILE__, \
				__LINE__, #condition, errno, strerror(errno)); \
			_exit(1); \
		} \
	} while (0)

/* The call fails, with this errno. */
#define FAILS(error, call) \
	do { \
		errno = 0; \
		CHECK((call) == -1); \
		CHECK(errno == (error)); \
	} while (0)

/* Ends a case that cannot run here. */
static inline void skip(const char *why)
{
	fprintf(stderr, "%s\n", why);
	_exit(77);
}

struct test {
	const char *name;
	void (*run)(void);
};

#define TEST(name) { #name, name }

static inline int run_tests(const struct test *tests, size_t count, int argc, char **argv)
{
	size_t i;

	for (i = 0; i < count; i++) {
		if (argc < 2)
			puts(tests[i].name);
		else if (!strcmp(tests[i].name, argv[1]))
			return tests[i].run(), 0;
	}
	return argc < 2 ? 0 : 2;
}

#define MAIN(tests) \
	int main(int argc, char **argv) \
	{ \
		return run_tests(tests, sizeof(tests) / sizeof(*(tests)), argc, argv); \
	}

static inline int device(void)
{
	int fd = open("/dev/netmap", O_RDWR);

	CHECK(fd >= 0);
	return fd;
}

static inline int request(int fd, int type, const char *name, void *body,
			  struct nmreq_option *options)
{
	struct nmreq_header header;

	memset(&header, 0, sizeof(header));
	header.nr_version = NETMAP_API;
	header.nr_reqtype = (uint16_t)type;
	header.nr_body = (uintptr_t)body;
	header.nr_options = (uintptr_t)options;
	snprintf(header.nr_name, sizeof(header.nr_name), "%s", name);
	return ioctl(fd, NIOCCTRL, &header);
}

/* A bound descriptor and its memory. */
struct port {
	int fd;
	struct nmreq_register reg;
	char *memory;
	struct netmap_if *nifp;
	struct netmap_ring *tx, *rx; /* the first of each, NULL where it is not bound */
};

static inline void map_port(struct port *port)
{
	struct netmap_if *nifp;

	port->memory = mmap(NULL, port->reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, port->fd,
			    0);
	CHECK(port->memory != MAP_FAILED);
	nifp = port->nifp = NETMAP_IF(port->memory, port->reg.nr_offset);
	port->tx = nifp->ring_ofs[0] ? NETMAP_TXRING(nifp, 0) : NULL;
	port->rx = nifp->ring_ofs[nifp->ni_tx_rings + nifp->ni_host_tx_rings] ?
		NETMAP_RXRING(nifp, 0) : NULL;
}

/* Opens a port as the request has it; the option is one that must be granted, or NULL. */
static inline struct port open_as(const char *name, struct nmreq_register reg,
				  struct nmreq_option *option)
{
	struct port port = { .fd = device(), .reg = reg };

	CHECK(request(port.fd, NETMAP_REQ_REGISTER, name, &port.reg, option) == 0);
	CHECK(!option || option->nro_status == 0);
	map_port(&port);
	return port;
}

/* Opens a port with these flags. */
static inline struct port open_port(const char *name, uint64_t flags)
{
	struct nmreq_register reg = { .nr_mode = NR_REG_ALL_NIC, .nr_flags = flags };

	return open_as(name, reg, NULL);
}

/* Puts a broadcast frame of len bytes, all but its addresses fill, into the transmit ring. */
static inline void put_frame(struct port *port, int len, int fill)
{
	struct netmap_slot *slot = &port->tx->slot[port->tx->head];
	char *frame = NETMAP_BUF(port->tx, slot->buf_idx);

	CHECK(nm_ring_space(port->tx) > 0);
	memset(frame, fill, (size_t)len);
	memset(frame, 0xff, 6);
	memcpy(frame + 6, "\2\0\0\0\0", 5);
	frame[11] = (char)getpid();
	slot->len = (uint16_t)len;
	slot->flags = 0;
	port->tx->head = port->tx->cur = nm_ring_next(port->tx, port->tx->head);
}

static inline void send_frame(struct port *port, int len, int fill)
{
	put_frame(port, len, fill);
	CHECK(ioctl(port->fd, NIOCTXSYNC, NULL) == 0);
}

static inline int poll_one(int fd, int events, int timeout, int *come)
{
	struct pollfd place = { fd, (short)events, 0 };
	int count = poll(&place, 1, timeout);

	*come = place.revents;
	return count;
}

/* Waits for a frame, checks and releases it. */
static inline void expect_frame(struct port *port, int len, int fill)
{
	struct netmap_slot *slot;
	int come;

	if (nm_ring_empty(port->rx)) {
		CHECK(poll_one(port->fd, POLLIN, 5000, &come) == 1);
		CHECK(come == POLLIN);
	}
	slot = &port->rx->slot[port->rx->head];
	CHECK(slot->len == len);
	CHECK(NETMAP_BUF(port->rx, slot->buf_idx)[len - 1] == fill);
	port->rx->head = port->rx->cur = nm_ring_next(port->rx, port->rx->head);
}

static inline long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits until the child has ended well. */
static inline void expect_child(pid_t pid)
{
	int status;

	CHECK(pid > 0);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif
