// SPDX-License-Identifier: MIT OR Apache-2.0
/* Regions: shared by number, described truthfully, and had without a port. */

#include "check.h"
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static struct port open_in(const char *name, uint16_t mem_id)
{
	struct nmreq_register reg = { .nr_mode = NR_REG_ALL_NIC, .nr_mem_id = mem_id };

	return open_as(name, reg, NULL);
}

/* A buffer of one ring, swapped for one of another: what bridge does with ports of one region. */
static void swap(struct netmap_slot *a, struct netmap_slot *b)
{
	uint32_t buffer = a->buf_idx;

	a->buf_idx = b->buf_idx;
	b->buf_idx = buffer;
	a->flags |= NS_BUF_CHANGED;
	b->flags |= NS_BUF_CHANGED;
}

static void forward(struct port *from, struct port *to, int len)
{
	struct netmap_slot *in, *out;
	int come;

	CHECK(poll_one(from->fd, POLLIN, 5000, &come) == 1);
	in = &from->rx->slot[from->rx->head];
	out = &to->tx->slot[to->tx->head];
	CHECK(in->len == len && nm_ring_space(to->tx) > 0);
	swap(in, out);
	out->len = in->len;
	from->rx->head = from->rx->cur = nm_ring_next(from->rx, from->rx->head);
	to->tx->head = to->tx->cur = nm_ring_next(to->tx, to->tx->head);
	CHECK(ioctl(to->fd, NIOCTXSYNC, NULL) == 0);
	CHECK(ioctl(from->fd, NIOCRXSYNC, NULL) == 0);
}

static void bridge_without_copies(void)
{
	struct port out = open_port("vale1:z", 0), in = open_port("vale0:z", 0);
	struct port a = open_port("vale0:a", 0), b = open_in("vale1:b", a.reg.nr_mem_id);
	int i;

	CHECK(a.reg.nr_mem_id == b.reg.nr_mem_id && a.reg.nr_memsize == b.reg.nr_memsize);
	CHECK(in.reg.nr_mem_id != a.reg.nr_mem_id && out.reg.nr_mem_id != a.reg.nr_mem_id);
	for (i = 0; i < 5000; i++) {
		send_frame(&in, 60, i & 0x7f);
		forward(&a, &b, 60);
		expect_frame(&out, 60, i & 0x7f);
	}
	/* Each goes by itself, and what is left has all its buffers. */
	close(b.fd);
	b = open_in("vale1:b", a.reg.nr_mem_id);
	for (i = 0; i < 3000; i++) {
		send_frame(&in, 60, i & 0x7f);
		forward(&a, &b, 60);
		expect_frame(&out, 60, i & 0x7f);
	}
}

/* Frames that change places with the receiver's buffers leave the sender's slot as it was. */
static void a_sent_slot_keeps_its_length(void)
{
	struct port a = open_port("vale0:a{1", 0), b = open_port("vale0:a}1", 0);
	struct port c = open_port("vale0:c", 0), d = open_in("vale0:d", c.reg.nr_mem_id);
	int i;

	for (i = 0; i < 3; i++) {
		send_frame(&a, 60 + i, i), expect_frame(&b, 60 + i, i);
		send_frame(&c, 70 + i, i), expect_frame(&d, 70 + i, i);
		CHECK(a.tx->slot[i].len == 60 + i && c.tx->slot[i].len == 70 + i);
	}
}

/* Programs know a region that they still map by its number. */
static void a_number_is_not_given_again_at_once(void)
{
	struct port old = open_port("vale0:a", 0), new;
	int i;

	close(old.fd);
	for (i = 0; i < 50; i++) {
		new = open_port("vale0:b", 0);
		CHECK(new.reg.nr_mem_id != old.reg.nr_mem_id);
		close(new.fd);
	}
}

/* libnetmap's @share=: the number of a port's region is asked for, and then given. */
static void share_with_a_port(void)
{
	struct port a = open_port("vale0:a", 0), b;
	struct nmreq_port_info_get info;
	int fd = device();

	memset(&info, 0, sizeof(info));
	CHECK(request(fd, NETMAP_REQ_PORT_INFO_GET, "vale0:a", &info, NULL) == 0);
	b = open_in("vale5:x", info.nr_mem_id);
	CHECK(b.reg.nr_mem_id == a.reg.nr_mem_id);
	/* The region of a port that was never there is not there either. */
	memset(&info, 0, sizeof(info));
	CHECK(request(fd, NETMAP_REQ_PORT_INFO_GET, "vale0:nobody", &info, NULL) == 0);
	b.reg.nr_mem_id = info.nr_mem_id;
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale5:y", &b.reg, NULL));
	/* A region goes with its last port. */
	close(b.fd);
	close(a.fd);
	b.reg.nr_mem_id = a.reg.nr_mem_id;
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale5:y", &b.reg, NULL));
}

static void the_common_region(void)
{
	struct port a = open_in("vale0:a", 1), b = open_in("vale1:b", 1);
	struct port own = open_port("vale1:own", 0);
	struct nmreq_port_info_get info;

	CHECK(a.reg.nr_mem_id == b.reg.nr_mem_id);
	CHECK(own.reg.nr_mem_id != a.reg.nr_mem_id);
	memset(&info, 0, sizeof(info));
	CHECK(request(a.fd, NETMAP_REQ_PORT_INFO_GET, "", &info, NULL) == 0);
	CHECK(info.nr_mem_id == 1 && info.nr_memsize == a.reg.nr_memsize);
}

/* What POOLS_INFO_GET says is where things are. */
static void pools_are_where_they_are(void)
{
	struct port port = open_port("vale0:a", 0);
	struct nmreq_pools_info pools;
	uint64_t at, buffers;
	uint32_t i;

	memset(&pools, 0, sizeof(pools));
	CHECK(request(port.fd, NETMAP_REQ_POOLS_INFO_GET, "vale0:a", &pools, NULL) == 0);
	CHECK(pools.nr_memsize == port.reg.nr_memsize);
	CHECK(pools.nr_mem_id == port.reg.nr_mem_id);
	CHECK(port.reg.nr_offset >= pools.nr_if_pool_offset);
	CHECK(port.reg.nr_offset < pools.nr_if_pool_offset +
	      (uint64_t)pools.nr_if_pool_objtotal * pools.nr_if_pool_objsize);
	at = (uint64_t)((char *)port.rx - port.memory);
	CHECK(at >= pools.nr_ring_pool_offset);
	CHECK(at < pools.nr_ring_pool_offset +
	      (uint64_t)pools.nr_ring_pool_objtotal * pools.nr_ring_pool_objsize);
	CHECK(pools.nr_buf_pool_objsize == port.rx->nr_buf_size);
	buffers = pools.nr_buf_pool_offset +
		(uint64_t)pools.nr_buf_pool_objtotal * pools.nr_buf_pool_objsize;
	CHECK(buffers <= pools.nr_memsize);
	for (i = 0; i < port.rx->num_slots; i++) {
		at = (uint64_t)(NETMAP_BUF(port.rx, port.rx->slot[i].buf_idx) - port.memory);
		CHECK(at >= pools.nr_buf_pool_offset && at < buffers);
		CHECK(port.rx->slot[i].buf_idx < pools.nr_buf_pool_objtotal);
	}
}

/* All ports of a region describe the same memory. */
static void one_region_seen_from_two_ports(void)
{
	struct port a = open_port("vale0:a", 0), b = open_in("vale1:b", a.reg.nr_mem_id);
	struct port pipe = open_port("vale0:a{7", 0);
	struct netmap_ring *other;

	CHECK(pipe.reg.nr_mem_id == a.reg.nr_mem_id);
	*NETMAP_BUF(b.tx, b.tx->slot[3].buf_idx) = 42;
	other = (struct netmap_ring *)(a.memory + ((char *)b.tx - b.memory));
	CHECK(other->slot[3].buf_idx == b.tx->slot[3].buf_idx);
	CHECK(*NETMAP_BUF(other, other->slot[3].buf_idx) == 42);
	CHECK(*NETMAP_BUF(a.tx, b.tx->slot[3].buf_idx) == 42);
}

static struct nmreq_register null_request(uint16_t mem_id)
{
	struct nmreq_register reg;

	memset(&reg, 0, sizeof(reg));
	reg.nr_mode = NR_REG_NULL;
	reg.nr_mem_id = mem_id;
	return reg;
}

static void null_port(void)
{
	struct port port;
	int i, come;

	memset(&port, 0, sizeof(port));
	port.fd = device();
	port.reg = null_request(1);
	port.reg.nr_tx_rings = 10, port.reg.nr_rx_rings = 5;
	port.reg.nr_tx_slots = 256, port.reg.nr_rx_slots = 100;
	CHECK(request(port.fd, NETMAP_REQ_REGISTER, "any", &port.reg, NULL) == 0);
	CHECK(port.reg.nr_mode == NR_REG_NULL);
	CHECK(port.reg.nr_tx_rings == 10 && port.reg.nr_rx_rings == 5);
	CHECK(port.reg.nr_tx_slots == 256 && port.reg.nr_rx_slots == 100);
	map_port(&port);
	CHECK(!strcmp(port.nifp->ni_name, "null:any"));
	for (i = 0; i < 10; i++)
		CHECK(nm_ring_space(NETMAP_TXRING(port.nifp, i)) == 255);
	for (i = 0; i < 5; i++)
		CHECK(nm_ring_empty(NETMAP_RXRING(port.nifp, i)));
	/* Syncs do nothing. */
	for (i = 0; i < 255; i++)
		put_frame(&port, 60, i & 0x7f);
	CHECK(ioctl(port.fd, NIOCTXSYNC, NULL) == 0 && ioctl(port.fd, NIOCRXSYNC, NULL) == 0);
	CHECK(nm_ring_space(port.tx) == 0);
	CHECK(poll_one(port.fd, POLLIN, 50, &come) == 0);
	FAILS(EBUSY, request(port.fd, NETMAP_REQ_REGISTER, "any", &port.reg, NULL));
}

/* No rings at all: memory, and buffers in it if they are asked for. */
static void null_port_without_rings(void)
{
	struct port port, a;
	uint32_t buffer, count = 0;

	memset(&port, 0, sizeof(port));
	port.fd = device();
	port.reg = null_request(1);
	port.reg.nr_extra_bufs = 20;
	CHECK(request(port.fd, NETMAP_REQ_REGISTER, "", &port.reg, NULL) == 0);
	CHECK(port.reg.nr_tx_rings == 0 && port.reg.nr_rx_rings == 0);
	CHECK(port.reg.nr_tx_slots == 0 && port.reg.nr_rx_slots == 0);
	CHECK(port.reg.nr_extra_bufs == 20 && port.reg.nr_mem_id == 1);
	CHECK(ioctl(port.fd, NIOCTXSYNC, NULL) == 0 && ioctl(port.fd, NIOCRXSYNC, NULL) == 0);
	/* The region is there for others, who see the buffers. */
	a = open_in("vale0:a", port.reg.nr_mem_id);
	CHECK(a.reg.nr_memsize == port.reg.nr_memsize);
	port.memory = mmap(NULL, port.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, port.fd,
			   0);
	CHECK(port.memory != MAP_FAILED);
	port.nifp = NETMAP_IF(port.memory, port.reg.nr_offset);
	for (buffer = port.nifp->ni_bufs_head; buffer; count++)
		buffer = *(uint32_t *)NETMAP_BUF(a.tx, buffer);
	CHECK(count == 20);
}

static void null_port_refusals(void)
{
	struct nmreq_register reg = null_request(0);
	int fd = device();

	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "any", &reg, NULL));
	reg = null_request(60000);
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "any", &reg, NULL));
	reg = null_request(1);
	reg.nr_tx_rings = 60000, reg.nr_tx_slots = 1024;
	FAILS(ENOMEM, request(fd, NETMAP_REQ_REGISTER, "any", &reg, NULL));
	FAILS(ENXIO, ioctl(fd, NIOCTXSYNC, NULL));
}

/* Two of one name are two, and the region goes with the last. */
static void null_ports_are_private(void)
{
	struct port port = open_port("vale0:a", 0);
	struct nmreq_register reg = null_request(port.reg.nr_mem_id), second = reg;
	int a = device(), b = device();

	CHECK(request(a, NETMAP_REQ_REGISTER, "any", &reg, NULL) == 0);
	CHECK(request(b, NETMAP_REQ_REGISTER, "any", &second, NULL) == 0);
	CHECK(second.nr_mem_id == reg.nr_mem_id && second.nr_offset != reg.nr_offset);
	close(port.fd);
	close(a);
	a = device();
	reg = null_request(port.reg.nr_mem_id);
	CHECK(request(a, NETMAP_REQ_REGISTER, "any", &reg, NULL) == 0);
	close(a);
	close(b);
	a = device();
	reg = null_request(port.reg.nr_mem_id);
	FAILS(EINVAL, request(a, NETMAP_REQ_REGISTER, "any", &reg, NULL));
}

static void put_indirect(struct port *port, char *data, int len, int flags)
{
	struct netmap_slot *slot = &port->tx->slot[port->tx->head];

	slot->ptr = (uintptr_t)data;
	slot->len = (uint16_t)len;
	slot->flags = (uint16_t)(NS_INDIRECT | flags);
	port->tx->head = port->tx->cur = nm_ring_next(port->tx, port->tx->head);
}

/* Data of the program's own: as much as a buffer holds in each slot, and more slots for more. */
static void indirect_data(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	static char data[5000];
	uint32_t i, sum = 0;
	int come;

	memset(data, 7, sizeof(data));
	memset(data, 0xff, 6);
	memcpy(data + 6, "\2\0\0\0\0\7", 6);
	put_indirect(&a, data, 5000, 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(poll_one(b.fd, POLLIN, 200, &come) == 0);
	put_indirect(&a, data, 2000, NS_MOREFRAG);
	put_indirect(&a, data + 2000, 2000, NS_MOREFRAG);
	put_indirect(&a, data + 4000, 1000, 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(poll_one(b.fd, POLLIN, 5000, &come) == 1);
	for (i = 0; i < nm_ring_space(b.rx); i++)
		sum += b.rx->slot[i].len;
	CHECK(sum == 5000 && NS_RFRAGS(&b.rx->slot[0]) == nm_ring_space(b.rx));
	/* An address outside of every mapping costs that frame. */
	b.rx->head = b.rx->cur = b.rx->tail;
	put_indirect(&a, (char *)8, 60, 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	send_frame(&a, 60, 3);
	expect_frame(&b, 60, 3);
}

/* What the kernel says of the mappings of regions: all have one of these flags, or none has. */
static void mappings_have(const char *flag, int wanted)
{
	FILE *maps = fopen("/proc/self/smaps", "r");
	char line[512];
	int in_region = 0, seen = 0;

	CHECK(maps);
	while (fgets(line, sizeof(line), maps)) {
		if (strstr(line, "/memfd:"))
			in_region = 1;
		if (strncmp(line, "VmFlags:", 8))
			continue;
		if (in_region)
			CHECK(!strstr(line, flag) == !wanted);
		seen += in_region;
		in_region = 0;
	}
	CHECK(seen >= 2); /* the program's and the library's */
	fclose(maps);
}

static size_t resident(const struct port *port)
{
	size_t pages = port->reg.nr_memsize / 4096, count = 0, i;
	unsigned char *vec = calloc(pages, 1);

	CHECK(vec && mincore(port->memory, pages * 4096, vec) == 0);
	for (i = 0; i < pages; i++)
		count += vec[i] & 1;
	free(vec);
	return count;
}

/* A program that locks all its memory, as tlem does: that is not meant for the region. */
static void locked_memory_is_not_the_region(void)
{
	struct port a, b;

	if (mlockall(MCL_FUTURE))
		return; /* no user may lock memory here */
	a = open_port("vale0:a", 0);
	b = open_port("vale0:b", 0);
	mappings_have(" lo", 0);
	CHECK(resident(&a) < a.reg.nr_memsize / 4096 / 16);
	send_frame(&a, 60, 1);
	expect_frame(&b, 60, 1);
}

/* Locks as little as an ordinary user may lock. */
static void a_limit_for_locked_memory_is_not_the_regions(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];
	struct rlimit limit = { 8 << 20, 8 << 20 };

	CHECK(syscall(SYS_capget, &header, data) == 0);
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	CHECK(syscall(SYS_capset, &header, data) == 0);
	if (setrlimit(RLIMIT_MEMLOCK, &limit))
		return; /* the limit is lower already */
	locked_memory_is_not_the_region();
}

static void regions_are_not_in_core_dumps(void)
{
	open_port("vale0:a", 0);
	mappings_have(" dd", 1);
}

static const struct test tests[] = {
	TEST(bridge_without_copies),
	TEST(share_with_a_port),
	TEST(a_sent_slot_keeps_its_length),
	TEST(a_number_is_not_given_again_at_once),
	TEST(the_common_region),
	TEST(pools_are_where_they_are),
	TEST(one_region_seen_from_two_ports),
	TEST(indirect_data),
	TEST(null_port),
	TEST(null_port_without_rings),
	TEST(null_port_refusals),
	TEST(null_ports_are_private),
	TEST(locked_memory_is_not_the_region),
	TEST(a_limit_for_locked_memory_is_not_the_regions),
	TEST(regions_are_not_in_core_dumps),
};

MAIN(tests)
