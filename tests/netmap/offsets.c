/*
 * offsets.c - the option OFFSETS: frames that begin inside of their buffers.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "check.h"

static struct nmreq_opt_offsets asked(uint64_t max, uint64_t initial, uint32_t bits)
{
	struct nmreq_opt_offsets option;

	memset(&option, 0, sizeof(option));
	option.nro_opt.nro_reqtype = NETMAP_REQ_OPT_OFFSETS;
	option.nro_max_offset = max;
	option.nro_initial_offset = initial;
	option.nro_offset_bits = bits;
	return option;
}

static int try_port(struct port *port, const char *name, struct nmreq_opt_offsets *option)
{
	memset(port, 0, sizeof(*port));
	port->fd = device();
	port->reg.nr_mode = NR_REG_ALL_NIC;
	return request(port->fd, NETMAP_REQ_REGISTER, name, &port->reg, &option->nro_opt);
}

static struct port open_offsets(const char *name, uint64_t initial)
{
	struct nmreq_opt_offsets option = asked(256, initial, 16);
	struct port port;

	CHECK(try_port(&port, name, &option) == 0);
	CHECK(option.nro_opt.nro_status == 0 && option.nro_max_offset == 256);
	map_port(&port);
	return port;
}

/* Puts a frame of len bytes at an offset into the next transmit slot. */
static void put_at(struct port *port, uint64_t offset, int len, int fill, int flags)
{
	struct netmap_ring *ring = port->tx;
	struct netmap_slot *slot = &ring->slot[ring->head];
	char *frame;

	NETMAP_WOFFSET(ring, slot, offset);
	frame = NETMAP_BUF_OFFSET(ring, slot);
	memset(frame - offset, 0x55, offset);
	memset(frame, fill, (size_t)len);
	if (flags >= 0) {
		memset(frame, 0xff, 6);
		memcpy(frame + 6, "\2\0\0\0\0\7", 6);
	}
	slot->len = (uint16_t)len;
	slot->flags = (uint16_t)(flags < 0 ? 0 : flags);
	ring->head = ring->cur = nm_ring_next(ring, ring->head);
}

/* Waits for a slot and checks that it holds part of a frame, at this offset. */
static void expect_at(struct port *port, uint64_t offset, int len, int first, int fill, int flags)
{
	struct netmap_slot *slot;
	char *frame;
	int come, i;

	if (nm_ring_empty(port->rx)) {
		CHECK(poll_one(port->fd, POLLIN, 5000, &come) == 1);
		CHECK(come == POLLIN);
	}
	slot = &port->rx->slot[port->rx->head];
	CHECK(NETMAP_ROFFSET(port->rx, slot) == offset);
	CHECK(slot->len == len && (slot->flags & ~NS_BUF_CHANGED) == flags);
	frame = NETMAP_BUF_OFFSET(port->rx, slot);
	for (i = first; i < len; i++)
		CHECK(frame[i] == (char)fill);
	if (first)
		CHECK(frame[0] == (char)0xff && frame[11] == 7);
	port->rx->head = port->rx->cur = nm_ring_next(port->rx, port->rx->head);
}

static void the_option_is_checked(void)
{
	static const struct {
		uint64_t max, initial;
		uint32_t bits;
	} bad[] = { { 0, 0, 65 }, { 100000, 0, 64 }, { 256, 0, 8 }, { 64, 65, 16 },
		    { UINT64_MAX, 0, 0 } };
	struct nmreq_opt_offsets option;
	struct port port;
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		option = asked(bad[i].max, bad[i].initial, bad[i].bits);
		FAILS(EINVAL, try_port(&port, "vale0:a", &option));
		CHECK(option.nro_opt.nro_status == EINVAL);
		/* Nothing was bound. */
		CHECK(request(port.fd, NETMAP_REQ_REGISTER, "vale0:a", &port.reg, NULL) == 0);
		close(port.fd);
	}
}

static void slots_say_the_initial_offset(void)
{
	struct nmreq_opt_offsets option = asked(128, 64, 0);
	struct port port;
	uint32_t i;

	CHECK(try_port(&port, "vale0:a", &option) == 0);
	map_port(&port);
	CHECK(port.tx->offset_mask == UINT64_MAX && port.rx->offset_mask == UINT64_MAX);
	for (i = 0; i < port.tx->num_slots; i++)
		CHECK(port.tx->slot[i].ptr == 64 && port.rx->slot[i].ptr == 64);
	close(port.fd);
	port = open_offsets("vale0:a", 0);
	CHECK(port.tx->offset_mask == 0xffff && port.tx->slot[0].ptr == 0);
	close(port.fd);
	port = open_port("vale0:a", 0);
	CHECK(port.tx->offset_mask == 0);
}

static void frames_leave_from_where_the_slot_says(void)
{
	struct port a = open_offsets("vale0:a", 64), b = open_port("vale0:b", 0);
	int i;

	for (i = 0; i < 3000; i++) {
		put_at(&a, (uint64_t)(i % 257), 60, i & 0x7f, 0);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		expect_at(&b, 0, 60, 12, i & 0x7f, 0);
	}
	/* A frame that fills the buffer to its end. */
	put_at(&a, 256, 1514, 3, 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	expect_at(&b, 0, 1514, 12, 3, 0);
}

static void frames_arrive_where_the_slot_says(void)
{
	struct port a = open_port("vale0:a", 0), b = open_offsets("vale0:b", 66);
	int i;

	for (i = 0; i < 3000; i++) {
		send_frame(&a, 60, i & 0x7f);
		while (nm_ring_empty(b.rx))
			CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
		b.rx->slot[b.rx->head].ptr |= 0xabcdULL << 48;
		CHECK(NETMAP_ROFFSET(b.rx, &b.rx->slot[b.rx->head]) == 66);
		CHECK(NETMAP_BUF_OFFSET(b.rx, &b.rx->slot[b.rx->head])[59] == (char)(i & 0x7f));
		b.rx->head = b.rx->cur = nm_ring_next(b.rx, b.rx->head);
	}
	/* What the mask does not cover is the program's. */
	CHECK(b.rx->slot[0].ptr == (0xabcdULL << 48 | 66));
}

static void both_ends_have_their_own(void)
{
	struct port a = open_offsets("vale0:a", 32), b = open_offsets("vale0:b", 200);
	int i;

	for (i = 0; i < 3000; i++) {
		put_at(&a, 17, 100, i & 0x7f, 0);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		expect_at(&b, 200, 100, 12, i & 0x7f, 0);
	}
}

static void long_frames_take_the_slots_they_need(void)
{
	struct port a = open_offsets("vale0:a", 0), b = open_offsets("vale0:b", 100);
	int room = (int)b.rx->nr_buf_size - 100;

	put_at(&a, 100, 1900, 9, NS_MOREFRAG);
	put_at(&a, 50, 1900, 9, -1);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	expect_at(&b, 100, room, 12, 9, 2 << 8 | NS_MOREFRAG);
	expect_at(&b, 100, 3800 - room, 0, 9, 2 << 8);
}

static void an_offset_outside_costs_the_frame(void)
{
	struct port a = open_offsets("vale0:a", 0), b = open_port("vale0:b", 0);

	put_at(&a, 0, 60, 1, 0);
	NETMAP_WOFFSET(a.tx, &a.tx->slot[0], 0xffff);
	put_at(&a, 0, 60, 2, 0);
	NETMAP_WOFFSET(a.tx, &a.tx->slot[1], a.tx->nr_buf_size - 59);
	put_at(&a, 0, 60, 3, 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	expect_at(&b, 0, 60, 12, 3, 0);
}

static void a_receiver_without_room_gets_nothing(void)
{
	struct port a = open_port("vale0:a", 0), b = open_offsets("vale0:b", 0);
	struct netmap_slot *slot;
	int i, come;

	for (i = 0; i < 5; i++)
		NETMAP_WOFFSET(b.rx, &b.rx->slot[i], 0xfff0);
	for (i = 0; i < 10; i++)
		send_frame(&a, 60, 4);
	for (i = 0; i < 5; ) {
		if (nm_ring_empty(b.rx))
			CHECK(poll_one(b.fd, POLLIN, 5000, &come) == 1);
		slot = &b.rx->slot[b.rx->head];
		CHECK(slot->len == (b.rx->head < 5 ? 0 : 60));
		i += slot->len != 0;
		b.rx->head = b.rx->cur = nm_ring_next(b.rx, b.rx->head);
	}
}

static void pipes_have_offsets(void)
{
	struct port a = open_offsets("vale0:p{1", 0), b = open_offsets("vale0:p}1", 0);
	struct netmap_slot *slot;
	int i, come;

	for (i = 0; i < 3000; i++) {
		put_at(&a, (uint64_t)(i % 200), 60, i & 0x7f, 0);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		if (nm_ring_empty(b.rx))
			CHECK(poll_one(b.fd, POLLIN, 5000, &come) == 1);
		slot = &b.rx->slot[b.rx->head];
		CHECK(slot->len == 60);
		/* The buffer changes hands, and the frame stays where it is. */
		CHECK(NETMAP_ROFFSET(b.rx, slot) == (uint64_t)(i % 200));
		CHECK(NETMAP_BUF_OFFSET(b.rx, slot)[59] == (char)(i & 0x7f));
		b.rx->head = b.rx->cur = nm_ring_next(b.rx, b.rx->head);
	}
}

static void a_pipe_end_without_offsets_reads_from_the_start(void)
{
	struct port a = open_offsets("vale0:p{1", 0), b = open_port("vale0:p}1", 0);
	int i;

	for (i = 0; i < 300; i++) {
		put_at(&a, (uint64_t)(i % 200), 60, i & 0x7f, 0);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		expect_at(&b, 0, 60, 12, i & 0x7f, 0);
	}
}

static void holders_of_a_ring_share_its_offsets(void)
{
	struct port first = open_offsets("vale0:a", 64), second;
	struct nmreq_opt_offsets option = asked(128, 32, 8);

	CHECK(try_port(&second, "vale0:a", &option) == 0);
	CHECK(option.nro_max_offset == 256);
	map_port(&second);
	CHECK(second.tx->offset_mask == 0xffff && second.tx->slot[7].ptr == 64);
	option = asked(257, 0, 16);
	FAILS(EBUSY, try_port(&second, "vale0:a", &option));
	CHECK(option.nro_opt.nro_status == EBUSY);
	option = asked(128, 0, 20);
	FAILS(EBUSY, try_port(&second, "vale0:a", &option));
	CHECK(first.tx->offset_mask == 0xffff);
}

/* Run again by exec: the descriptor with this number has offsets, and frames still begin there. */
static void after_exec(void)
{
	struct port b;

	memset(&b, 0, sizeof(b));
	b.fd = atoi(getenv("PORT_FD"));
	b.reg.nr_memsize = strtoul(getenv("PORT_SIZE"), NULL, 10);
	b.reg.nr_offset = strtoul(getenv("PORT_OFFSET"), NULL, 10);
	map_port(&b);
	CHECK(b.rx->offset_mask == 0xffff);
	expect_at(&b, 100, 60, 12, 6, 0);
}

static void offsets_survive_exec(void)
{
	struct port a = open_port("vale0:a", 0), b = open_offsets("vale0:b", 100);
	char text[32];
	pid_t pid;

	snprintf(text, sizeof(text), "%d", b.fd);
	setenv("PORT_FD", text, 1);
	snprintf(text, sizeof(text), "%lu", (unsigned long)b.reg.nr_memsize);
	setenv("PORT_SIZE", text, 1);
	snprintf(text, sizeof(text), "%lu", (unsigned long)b.reg.nr_offset);
	setenv("PORT_OFFSET", text, 1);
	pid = fork();
	if (pid == 0) {
		execl("/proc/self/exe", "offsets", "after_exec", NULL);
		_exit(1);
	}
	usleep(50000);
	put_frame(&a, 60, 6);
	memcpy(NETMAP_BUF(a.tx, a.tx->slot[0].buf_idx) + 6, "\2\0\0\0\0\7", 6);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	expect_child(pid);
}

static const struct test tests[] = {
	TEST(the_option_is_checked),
	TEST(slots_say_the_initial_offset),
	TEST(frames_leave_from_where_the_slot_says),
	TEST(frames_arrive_where_the_slot_says),
	TEST(both_ends_have_their_own),
	TEST(long_frames_take_the_slots_they_need),
	TEST(an_offset_outside_costs_the_frame),
	TEST(a_receiver_without_room_gets_nothing),
	TEST(pipes_have_offsets),
	TEST(a_pipe_end_without_offsets_reads_from_the_start),
	TEST(holders_of_a_ring_share_its_offsets),
	TEST(offsets_survive_exec),
};

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "after_exec"))
		return after_exec(), 0;
	return run_tests(tests, sizeof(tests) / sizeof(*tests), argc, argv);
}
