// SPDX-License-Identifier: MIT OR Apache-2.0
/* Monitors: which frames they get, when, and how they end. */

#include "check.h"

static struct port open_monitor(const char *name, uint64_t flags)
{
	struct port port = open_port(name, flags);

	CHECK((port.reg.nr_flags & flags) == flags);
	CHECK(port.rx && nm_ring_empty(port.rx));
	return port;
}

static uint64_t tx_mon(struct port *port)
{
	return port->rx->slot[port->rx->head].flags & NS_TXMON;
}

static void expect_nothing(struct port *port)
{
	int come;

	CHECK(poll_one(port->fd, POLLIN, 200, &come) == 0);
	CHECK(nm_ring_empty(port->rx));
}

static void wait_for(struct port *port)
{
	int come;

	CHECK(poll_one(port->fd, POLLIN, 5000, &come) == 1 && come == POLLIN);
}

/* What is received is seen at once, though the port has not read it. */
static void receive_monitor(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct port mon = open_monitor("vale0:b", NR_MONITOR_RX);

	CHECK(mon.reg.nr_mem_id != b.reg.nr_mem_id);
	CHECK(!strcmp(mon.nifp->ni_name, "vale0:b/r"));
	send_frame(&a, 60, 1);
	wait_for(&mon);
	CHECK(!tx_mon(&mon));
	expect_frame(&mon, 60, 1);
	send_frame(&b, 70, 2);
	expect_frame(&a, 70, 2);
	expect_nothing(&mon);
	expect_frame(&b, 60, 1);
}

static void send_monitor(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct port mon = open_monitor("vale0:a", NR_MONITOR_TX);

	send_frame(&a, 60, 1);
	wait_for(&mon);
	CHECK(tx_mon(&mon));
	expect_frame(&mon, 60, 1);
	expect_frame(&b, 60, 1);
	send_frame(&b, 70, 2);
	expect_frame(&a, 70, 2);
	expect_nothing(&mon);
}

/* Both directions, several at once, and each goes by itself. */
static void several_monitors(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct port all = open_monitor("vale0:a", NR_MONITOR_TX | NR_MONITOR_RX);
	struct port tx = open_monitor("vale0:a", NR_MONITOR_TX);

	send_frame(&a, 60, 1);
	expect_frame(&b, 60, 1);
	expect_frame(&all, 60, 1);
	expect_frame(&tx, 60, 1);
	send_frame(&b, 61, 2);
	expect_frame(&a, 61, 2);
	expect_frame(&all, 61, 2);
	CHECK(close(all.fd) == 0);
	send_frame(&a, 62, 3);
	expect_frame(&tx, 62, 3);
	expect_frame(&b, 62, 3);
}

/* A monitor that does not read delays no port. */
static void full_monitor(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct port mon = open_monitor("vale0:b", NR_MONITOR_RX);
	uint32_t seen;
	int i;

	for (i = 0; i < 3000; i++) {
		send_frame(&a, 60, i & 0x7f);
		expect_frame(&b, 60, i & 0x7f);
	}
	CHECK(ioctl(mon.fd, NIOCRXSYNC, NULL) == 0);
	seen = nm_ring_space(mon.rx);
	CHECK(seen == 1023);
	for (i = 0; i < 1023; i++)
		expect_frame(&mon, 60, i & 0x7f);
	/* What has been read makes room. */
	CHECK(ioctl(mon.fd, NIOCRXSYNC, NULL) == 0 && nm_ring_empty(mon.rx));
	send_frame(&a, 60, 5);
	expect_frame(&b, 60, 5);
	expect_frame(&mon, 60, 5);
}

static struct port one_of_three(int ring, uint64_t flags)
{
	struct port port;

	memset(&port, 0, sizeof(port));
	port.fd = device();
	port.reg.nr_mode = ring < 0 ? NR_REG_ALL_NIC : NR_REG_ONE_NIC;
	port.reg.nr_ringid = ring < 0 ? 0 : (uint16_t)ring;
	port.reg.nr_flags = flags;
	port.reg.nr_tx_rings = flags ? 0 : 3;
	port.reg.nr_rx_rings = flags ? 0 : 2;
	CHECK(request(port.fd, NETMAP_REQ_REGISTER, "vale0:m", &port.reg, NULL) == 0);
	map_port(&port);
	return port;
}

/* A monitor of one ring sees that ring, in its ring of the same number. */
static void monitor_of_one_ring(void)
{
	struct port m = one_of_three(-1, 0), b = open_port("vale0:b", 0);
	struct port mon = one_of_three(2, NR_MONITOR_TX);
	struct netmap_ring *ring;
	struct nmreq_register reg = mon.reg;
	int i, come, fd = device();

	CHECK(mon.reg.nr_rx_rings == 3 && mon.reg.nr_tx_rings == 1);
	ring = NETMAP_RXRING(mon.nifp, 2);
	for (i = 0; i < 3; i++) {
		m.tx = NETMAP_TXRING(m.nifp, i);
		put_frame(&m, 60 + i, i);
	}
	CHECK(ioctl(m.fd, NIOCTXSYNC, NULL) == 0);
	for (i = 0; i < 3; i++)
		expect_frame(&b, 60 + i, i);
	CHECK(poll_one(mon.fd, POLLIN, 5000, &come) == 1);
	CHECK(nm_ring_space(ring) == 1 && ring->slot[0].len == 62);
	reg.nr_ringid = 3;
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale0:m", &reg, NULL));
}

/* Without copies: the port's memory, and a frame is seen when its slot comes back. */
static void zero_copy_monitor(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct port mon = open_port("vale0:b", NR_ZCOPY_MON);
	uint32_t buffer;

	CHECK(mon.reg.nr_flags == (NR_ZCOPY_MON | NR_MONITOR_TX | NR_MONITOR_RX));
	CHECK(mon.reg.nr_mem_id == b.reg.nr_mem_id);
	send_frame(&a, 60, 1);
	wait_for(&b);
	expect_nothing(&mon);
	buffer = b.rx->slot[0].buf_idx;
	expect_frame(&b, 60, 1);
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	wait_for(&mon);
	CHECK(mon.rx->slot[0].buf_idx == buffer);
	CHECK(mon.rx->slot[0].flags & NS_BUF_CHANGED);
	expect_frame(&mon, 60, 1);
	send_frame(&b, 61, 2);
	wait_for(&mon);
	CHECK(tx_mon(&mon));
	expect_frame(&mon, 61, 2);
	expect_frame(&a, 61, 2);
}

/* Streams, long enough for every buffer to have changed hands. */
static void zero_copy_stream(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct port mon = open_port("vale0:b", NR_ZCOPY_MON);
	int i;

	for (i = 0; i < 5000; i++) {
		send_frame(&a, 60 + i % 50, i & 0x7f);
		expect_frame(&b, 60 + i % 50, i & 0x7f);
		CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
		expect_frame(&mon, 60 + i % 50, i & 0x7f);
	}
}

static void pipe_monitors(void)
{
	struct port a = open_port("vale0:p{1", 0), b = open_port("vale0:p}1", 0);
	struct port tx = open_monitor("vale0:p{1", NR_MONITOR_TX);
	struct port rx = open_monitor("vale0:p}1", NR_MONITOR_RX);

	send_frame(&a, 60, 1);
	expect_frame(&tx, 60, 1);
	expect_frame(&rx, 60, 1);
	expect_frame(&b, 60, 1);
	send_frame(&b, 61, 2);
	expect_frame(&a, 61, 2);
	expect_nothing(&tx);
	expect_nothing(&rx);
}

/* What one end has sent is seen when the other has read it. */
static void zero_copy_pipe_monitor(void)
{
	struct port a = open_port("vale0:p{1", 0), b = open_port("vale0:p}1", 0);
	struct port mon = open_port("vale0:p{1", NR_ZCOPY_MON);
	int i;

	CHECK(mon.reg.nr_mem_id == a.reg.nr_mem_id);
	send_frame(&a, 60, 1);
	wait_for(&b);
	expect_nothing(&mon);
	expect_frame(&b, 60, 1);
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	wait_for(&mon);
	CHECK(tx_mon(&mon));
	expect_frame(&mon, 60, 1);
	for (i = 0; i < 3000; i++) {
		send_frame(&b, 60, i & 0x7f);
		expect_frame(&a, 60, i & 0x7f);
		CHECK(ioctl(a.fd, NIOCRXSYNC, NULL) == 0);
		wait_for(&mon);
		CHECK(!tx_mon(&mon));
		expect_frame(&mon, 60, i & 0x7f);
	}
}

static void monitor_refusals(void)
{
	struct nmreq_register reg;
	int fd = device();

	memset(&reg, 0, sizeof(reg));
	reg.nr_mode = NR_REG_ALL_NIC;
	reg.nr_flags = NR_MONITOR_RX;
	/* No program has the port open. */
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale0:none", &reg, NULL));
	reg.nr_flags = NR_ZCOPY_MON;
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale0:none", &reg, NULL));
	open_port("vale0:a", 0);
	reg.nr_mem_id = 60000;
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, NULL));
	reg.nr_mem_id = 0;
	reg.nr_mode = NR_REG_SW;
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, NULL));
	FAILS(ENXIO, ioctl(fd, NIOCRXSYNC, NULL));
}

/* A monitor is no port: no name finds it, and the switch ignores what it sends. */
static void monitor_sends_nothing(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct port mon = open_monitor("vale0:a", NR_MONITOR_TX);
	struct nmreq_vale_list list;

	send_frame(&mon, 60, 1);
	expect_nothing(&a);
	expect_nothing(&b);
	memset(&list, 0, sizeof(list));
	CHECK(request(a.fd, NETMAP_REQ_VALE_LIST, "", &list, NULL) == 0);
	memset(&list, 0, sizeof(list));
	list.nr_port_idx = 2;
	FAILS(ENOENT, request(a.fd, NETMAP_REQ_VALE_LIST, "", &list, NULL));
}

/* The port goes: what was seen can be read, and then there is an error. */
static void monitored_port_goes(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct port mon = open_monitor("vale0:b", NR_MONITOR_RX), again;
	int come = 0, i;

	send_frame(&a, 60, 1);
	wait_for(&mon);
	CHECK(close(b.fd) == 0);
	munmap(b.memory, b.reg.nr_memsize);
	expect_frame(&mon, 60, 1);
	for (i = 0; i < 100 && !(come & POLLERR); i++)
		CHECK(poll_one(mon.fd, POLLIN, 50, &come) <= 1);
	CHECK(come & POLLERR);
	/* The name may be taken again; this monitor stays blind. */
	again = open_port("vale0:b", 0);
	send_frame(&a, 60, 2);
	expect_frame(&again, 60, 2);
	CHECK(poll_one(mon.fd, POLLIN, 0, &come) == 1 && (come & POLLERR));
	CHECK(nm_ring_empty(mon.rx));
}

static void monitor_of_a_chain(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct port mon = open_monitor("vale0:b", NR_MONITOR_RX);
	uint32_t i;

	for (i = 0; i < 3; i++) {
		put_frame(&a, 500, 7);
		a.tx->slot[i].flags = i < 2 ? NS_MOREFRAG : 0;
	}
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	wait_for(&b);
	wait_for(&mon);
	CHECK(nm_ring_space(mon.rx) == nm_ring_space(b.rx));
	for (i = 0; i < nm_ring_space(b.rx); i++) {
		CHECK(mon.rx->slot[i].len == b.rx->slot[i].len);
		CHECK(NS_RFRAGS(&mon.rx->slot[i]) == NS_RFRAGS(&b.rx->slot[i]));
	}
}

/* A monitor that travels with fork is the same monitor. */
static void monitor_in_a_child(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct port mon = open_monitor("vale0:b", NR_MONITOR_RX);
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		expect_frame(&mon, 60, 1);
		_exit(0);
	}
	usleep(100000);
	send_frame(&a, 60, 1);
	expect_child(child);
	expect_frame(&b, 60, 1);
}

static const struct test tests[] = {
	TEST(receive_monitor),
	TEST(send_monitor),
	TEST(several_monitors),
	TEST(full_monitor),
	TEST(monitor_of_one_ring),
	TEST(zero_copy_monitor),
	TEST(zero_copy_stream),
	TEST(pipe_monitors),
	TEST(zero_copy_pipe_monitor),
	TEST(monitor_refusals),
	TEST(monitor_sends_nothing),
	TEST(monitored_port_goes),
	TEST(monitor_of_a_chain),
	TEST(monitor_in_a_child),
};

MAIN(tests)
