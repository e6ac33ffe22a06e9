/*
 * extmem.c - the option EXTMEM: a program's own memory as the region.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "check.h"

static char *memory(size_t size)
{
	char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

static struct nmreq_opt_extmem asked(void *at, size_t size)
{
	struct nmreq_opt_extmem option;

	memset(&option, 0, sizeof(option));
	option.nro_opt.nro_reqtype = NETMAP_REQ_OPT_EXTMEM;
	option.nro_usrptr = (uintptr_t)at;
	option.nro_info.nr_memsize = size;
	return option;
}

static int try_port(struct port *port, const char *name, struct nmreq_opt_extmem *option)
{
	memset(port, 0, sizeof(*port));
	port->fd = device();
	port->reg.nr_mode = NR_REG_ALL_NIC;
	return request(port->fd, NETMAP_REQ_REGISTER, name, &port->reg, &option->nro_opt);
}

/* A port whose region is this memory; nothing is mapped. */
static struct port open_at(const char *name, char *at, size_t size)
{
	struct nmreq_opt_extmem option = asked(at, size);
	struct nmreq_pools_info *info = &option.nro_info;
	struct port port;

	CHECK(try_port(&port, name, &option) == 0);
	CHECK(option.nro_opt.nro_status == 0);
	CHECK(option.nro_usrptr == (uintptr_t)at && info->nr_memsize == size);
	CHECK(port.reg.nr_memsize <= size && port.reg.nr_offset < size);
	CHECK(info->nr_mem_id == port.reg.nr_mem_id && info->nr_mem_id > 1);
	CHECK(info->nr_buf_pool_offset + (uint64_t)info->nr_buf_pool_objtotal *
	      info->nr_buf_pool_objsize <= size);
	port.memory = at;
	port.nifp = NETMAP_IF(at, port.reg.nr_offset);
	port.tx = NETMAP_TXRING(port.nifp, 0);
	port.rx = NETMAP_RXRING(port.nifp, 0);
	CHECK((char *)port.rx > at && (char *)port.rx < at + size);
	CHECK(port.tx->nr_buf_size == info->nr_buf_pool_objsize);
	return port;
}

static void frames_lie_in_the_programs_memory(void)
{
	size_t size = 16 << 20;
	char *at = memory(size), *frame;
	struct port a = open_port("vale0:a", 0), b = open_at("vale0:b", at, size);
	int i;

	CHECK(b.tx->num_slots == 1024 && b.tx->nr_buf_size == 2048);
	for (i = 0; i < 3000; i++) {
		send_frame(&a, 60, i & 0x7f);
		expect_frame(&b, 60, i & 0x7f);
		frame = NETMAP_BUF(b.rx, b.rx->slot[0].buf_idx);
		CHECK(frame > at && frame + 2048 <= at + size);
		send_frame(&b, 60, i & 0x7f);
		expect_frame(&a, 60, i & 0x7f);
	}
	/* The memory stays when the port goes. */
	close(b.fd);
	memset(at, 1, size);
	CHECK(munmap(at, size) == 0);
}

static void ports_share_one_memory(void)
{
	size_t size = 32 << 20;
	char *at = memory(size);
	struct port a = open_at("vale0:a", at, size), b = open_at("vale1:b", at, size),
		from = open_port("vale0:c", 0), to = open_port("vale1:d", 0);
	struct netmap_slot *in, *out;
	uint32_t buffer;
	int come;

	CHECK(a.reg.nr_mem_id == b.reg.nr_mem_id && a.reg.nr_offset != b.reg.nr_offset);
	/* A bridge that copies nothing. */
	send_frame(&from, 60, 7);
	CHECK(poll_one(a.fd, POLLIN, 5000, &come) == 1);
	in = &a.rx->slot[0];
	out = &b.tx->slot[0];
	buffer = out->buf_idx;
	out->buf_idx = in->buf_idx;
	out->len = in->len;
	in->buf_idx = buffer;
	in->flags = out->flags = NS_BUF_CHANGED;
	a.rx->head = a.rx->cur = 1;
	b.tx->head = b.tx->cur = 1;
	CHECK(ioctl(a.fd, NIOCRXSYNC, NULL) == 0 && ioctl(b.fd, NIOCTXSYNC, NULL) == 0);
	expect_frame(&to, 60, 7);
	/* When all are gone the memory may be used anew. */
	close(a.fd);
	close(b.fd);
	a = open_at("vale0:a", at, size);
	send_frame(&from, 60, 9);
	expect_frame(&a, 60, 9);
}

static void pipes_and_extra_buffers_come_out_of_it(void)
{
	size_t size = 24 << 20;
	char *at = memory(size);
	struct nmreq_opt_extmem option = asked(at, size);
	struct port port, end;
	uint32_t buffer;
	int count = 0;

	memset(&port, 0, sizeof(port));
	port.fd = device();
	port.reg.nr_mode = NR_REG_ALL_NIC;
	port.reg.nr_extra_bufs = 58;
	port.reg.nr_tx_slots = port.reg.nr_rx_slots = 256;
	CHECK(request(port.fd, NETMAP_REQ_REGISTER, "vale0:a", &port.reg, &option.nro_opt) == 0);
	CHECK(port.reg.nr_extra_bufs == 58);
	port.nifp = NETMAP_IF(at, port.reg.nr_offset);
	port.tx = NETMAP_TXRING(port.nifp, 0);
	for (buffer = port.nifp->ni_bufs_head; buffer; count++) {
		CHECK(NETMAP_BUF(port.tx, buffer) < at + size);
		buffer = *(uint32_t *)NETMAP_BUF(port.tx, buffer);
	}
	CHECK(count == 58);
	end = open_port("vale0:a{1", 0);
	CHECK(end.reg.nr_mem_id == port.reg.nr_mem_id);
}

static void sizes_are_checked(void)
{
	size_t size = 16 << 20;
	char *at = memory(size);
	struct nmreq_opt_extmem option;
	struct port port;

	option = asked(at, size);
	option.nro_info.nr_ring_pool_objsize = 1 << 20;
	FAILS(EINVAL, try_port(&port, "vale0:a", &option));
	CHECK(option.nro_opt.nro_status == EINVAL);
	option = asked(at, size);
	option.nro_info.nr_buf_pool_objsize = 63;
	FAILS(EINVAL, try_port(&port, "vale0:a", &option));
	option = asked(at, 0);
	FAILS(EINVAL, try_port(&port, "vale0:a", &option));
	option = asked(at, 1 << 20);
	FAILS(ENOMEM, try_port(&port, "vale0:a", &option));
	option = asked(at, size);
	option.nro_info.nr_ring_pool_objsize = 512;
	option.nro_info.nr_ring_pool_objtotal = 64;
	memset(&port, 0, sizeof(port));
	port.fd = device();
	port.reg.nr_mode = NR_REG_ALL_NIC;
	port.reg.nr_tx_slots = 17;
	FAILS(ENOMEM, request(port.fd, NETMAP_REQ_REGISTER, "vale0:a", &port.reg, &option.nro_opt));
	/* What was refused is the program's as it was, and the descriptor may be bound. */
	port.reg.nr_tx_slots = 16;
	CHECK(request(port.fd, NETMAP_REQ_REGISTER, "vale0:a", &port.reg, &option.nro_opt) == 0);
}

static void memory_is_looked_at(void)
{
	size_t size = 16 << 20;
	char *at = memory(size);
	struct nmreq_opt_extmem option = asked(at + 8, size);
	struct port port;

	FAILS(EINVAL, try_port(&port, "vale0:a", &option));
	option = asked((void *)0x1000, size);
	FAILS(EFAULT, try_port(&port, "vale0:a", &option));
	CHECK(munmap(at + (8 << 20), 4096) == 0);
	option = asked(at, size);
	FAILS(EFAULT, try_port(&port, "vale0:a", &option));
	CHECK(option.nro_opt.nro_status == EFAULT);
	at = mmap(NULL, size, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	option = asked(at, size);
	FAILS(EFAULT, try_port(&port, "vale0:a", &option));
}

static void a_port_that_is_there_has_its_memory(void)
{
	size_t size = 16 << 20;
	char *at = memory(size);
	struct port a = open_port("vale0:a", 0), other;
	struct nmreq_opt_extmem option = asked(at, size);

	at[0] = 77;
	FAILS(EINVAL, try_port(&other, "vale0:a", &option));
	CHECK(at[0] == 77);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
}

static void a_child_has_it_too(void)
{
	size_t size = 16 << 20;
	struct port a = open_port("vale0:a", 0), b = open_at("vale0:b", memory(size), size);
	pid_t pid = fork();

	if (pid == 0) {
		expect_frame(&b, 60, 5);
		_exit(0);
	}
	usleep(50000);
	send_frame(&a, 60, 5);
	expect_child(pid);
}

static const struct test tests[] = {
	TEST(frames_lie_in_the_programs_memory),
	TEST(ports_share_one_memory),
	TEST(pipes_and_extra_buffers_come_out_of_it),
	TEST(sizes_are_checked),
	TEST(memory_is_looked_at),
	TEST(a_port_that_is_there_has_its_memory),
	TEST(a_child_has_it_too),
};

MAIN(tests)
