// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A netmap program in a guest, on the port of a device:
 *
 *	guest tx NAME COUNT		sends numbered frames
 *	guest rx NAME COUNT HOW		receives them, in order, and waits by poll, select or epoll
 *	guest die NAME			dies as it exchanges the buffers of two slots
 *	guest rules NAME		tries what such a port has, and what it has not
 */

#include "check.h"
#include <arpa/inet.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>

#define NUMBER 14	/* where the number of a frame stands */

static const char peer[6] = { 2, 0, 0, 0, 0, 9 }, own[6] = { 2, 0, 0, 0, 0, 8 };

/* Puts a frame of ours, by its number, into the transmit ring. */
static void put_numbered(struct port *port, uint32_t n)
{
	char *frame = NETMAP_BUF(port->tx, port->tx->slot[port->tx->head].buf_idx);

	put_frame(port, 60, 0);
	n = htonl(n);
	memcpy(frame, peer, 6);
	memcpy(frame + 6, own, 6);
	memcpy(frame + NUMBER, &n, sizeof(n));
}

static void send_all(const char *name, uint32_t count)
{
	struct port port = open_port(name, 0);
	uint32_t n;
	int come;

	for (n = 0; n < count; n++) {
		while (nm_ring_empty(port.tx))
			CHECK(poll_one(port.fd, POLLOUT, 20000, &come) == 1 && come == POLLOUT);
		put_numbered(&port, n);
	}
	while (nm_tx_pending(port.tx))
		CHECK(ioctl(port.fd, NIOCTXSYNC, NULL) == 0);
	close(port.fd);
	printf("sent %u\n", n);
}

static void wait_for_input(int fd, int set, const char *how)
{
	struct timeval time = { 20, 0 };
	struct epoll_event event;
	fd_set in;
	int come;

	if (!strcmp(how, "epoll")) {
		CHECK(epoll_wait(set, &event, 1, 20000) == 1 && event.events == EPOLLIN);
	} else if (!strcmp(how, "select")) {
		FD_ZERO(&in);
		FD_SET(fd, &in);
		CHECK(select(fd + 1, &in, NULL, NULL, &time) == 1);
	} else {
		CHECK(poll_one(fd, POLLIN, 20000, &come) == 1 && come == POLLIN);
	}
}

static void receive_all(const char *name, uint32_t count, const char *how)
{
	struct port port = open_port(name, 0);
	struct epoll_event event = { EPOLLIN, { .u64 = 0 } };
	int set = strcmp(how, "epoll") ? -1 : epoll_create1(0);
	uint32_t n = 0, number;

	CHECK(set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, port.fd, &event) == 0);
	/* The peer begins when it has heard of us. */
	put_numbered(&port, 0);
	CHECK(ioctl(port.fd, NIOCTXSYNC, NULL) == 0);
	while (n < count) {
		struct netmap_ring *rx = port.rx;

		wait_for_input(port.fd, set, how);
		for (; !nm_ring_empty(rx); rx->head = rx->cur = nm_ring_next(rx, rx->head)) {
			struct netmap_slot *slot = &rx->slot[rx->head];
			char *frame = NETMAP_BUF(rx, slot->buf_idx);

			if (memcmp(frame, own, 6))
				continue; /* for all */
			memcpy(&number, frame + NUMBER, sizeof(number));
			CHECK(slot->len == 60 && ntohl(number) == n);
			n++;
		}
	}
	CHECK(ioctl(port.fd, NIOCRXSYNC, NULL) == 0);
	CHECK(nm_ring_empty(port.rx));
	close(port.fd);
	printf("received %u\n", n);
}

static void die_in_an_exchange(const char *name)
{
	struct port port = open_port(name, 0);

	port.tx->slot[port.tx->head].buf_idx = port.rx->slot[port.rx->head].buf_idx;
	kill(getpid(), SIGKILL);
}

static void try_rules(const char *name)
{
	struct nmreq_register all = { .nr_mode = NR_REG_ALL_NIC };
	struct nmreq_register one = { .nr_mode = NR_REG_ONE_NIC, .nr_ringid = 63 };
	struct nmreq_register host = { .nr_mode = NR_REG_SW };
	struct nmreq_port_info_get info = { 0 };
	struct nmreq_port_hdr header = { .nr_hdr_len = 7 };
	struct port port;
	int fd = device(), other = device(), ends[2];
	char come;
	pid_t child;

	FAILS(ENXIO, request(fd, NETMAP_REQ_REGISTER, "vale0:a", &all, NULL));
	FAILS(ENXIO, request(fd, NETMAP_REQ_REGISTER, "0000:7f:1f.7", &all, NULL));
	FAILS(EOPNOTSUPP, request(fd, NETMAP_REQ_REGISTER, name, &one, NULL));
	FAILS(EOPNOTSUPP, request(fd, NETMAP_REQ_REGISTER, name, &host, NULL));
	all.nr_flags = NR_MONITOR_RX;
	FAILS(EOPNOTSUPP, request(fd, NETMAP_REQ_REGISTER, name, &all, NULL));
	CHECK(request(fd, NETMAP_REQ_PORT_INFO_GET, name, &info, NULL) == 0);
	CHECK(request(fd, NETMAP_REQ_PORT_HDR_GET, name, &header, NULL) == 0);
	CHECK(header.nr_hdr_len == 0);
	close(fd);
	/* The port has one descriptor at a time; copies of it are one. */
	port = open_port(name, 0);
	CHECK(port.reg.nr_memsize == info.nr_memsize && port.reg.nr_mem_id == info.nr_mem_id);
	CHECK(port.reg.nr_mem_id > 1 && port.tx->num_slots == info.nr_tx_slots);
	CHECK(port.nifp->ni_tx_rings == info.nr_tx_rings);
	all.nr_flags = 0;
	FAILS(EBUSY, request(other, NETMAP_REQ_REGISTER, name, &all, NULL));
	send_frame(&port, 60, 7);
	CHECK(pipe(ends) == 0);
	child = fork();
	if (!child) {
		/* As a daemon does: the parent has closed its copy. */
		CHECK(read(ends[0], &come, 1) == 1);
		send_frame(&port, 60, 7);
		while (nm_tx_pending(port.tx))
			CHECK(ioctl(port.fd, NIOCTXSYNC, NULL) == 0);
		_exit(0);
	}
	close(port.fd);
	FAILS(EBUSY, request(other, NETMAP_REQ_REGISTER, name, &all, NULL));
	CHECK(write(ends[1], "", 1) == 1);
	expect_child(child);
	CHECK(request(other, NETMAP_REQ_REGISTER, name, &all, NULL) == 0);
	puts("as they should be");
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "tx"))
		send_all(argv[2], (uint32_t)atoi(argv[3]));
	else if (argc == 5 && !strcmp(argv[1], "rx"))
		receive_all(argv[2], (uint32_t)atoi(argv[3]), argv[4]);
	else if (argc == 3 && !strcmp(argv[1], "die"))
		die_in_an_exchange(argv[2]);
	else if (argc == 3 && !strcmp(argv[1], "rules"))
		try_rules(argv[2]);
	else
		return 2;
	return 0;
}
