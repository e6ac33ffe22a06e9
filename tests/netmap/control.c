// SPDX-License-Identifier: MIT OR Apache-2.0
/* Requests: their answers, and the errno of each wrong one. */

#include "check.h"
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

static struct nmreq_register all_rings(void)
{
	struct nmreq_register reg;

	memset(&reg, 0, sizeof(reg));
	reg.nr_mode = NR_REG_ALL_NIC;
	return reg;
}

static void open_in_every_way(void)
{
	int fds[4], i;

	fds[0] = open("/dev/netmap", O_RDWR);
	fds[1] = openat(AT_FDCWD, "/dev/netmap", O_RDWR | O_CLOEXEC);
	fds[2] = open64("/dev/netmap", O_RDWR);
	fds[3] = openat64(-1, "/dev/netmap", O_RDWR);
	for (i = 0; i < 4; i++) {
		CHECK(fds[i] >= 0);
		CHECK(!!(fcntl(fds[i], F_GETFD) & FD_CLOEXEC) == (i == 1));
		FAILS(ENXIO, ioctl(fds[i], NIOCTXSYNC, NULL));
		CHECK(close(fds[i]) == 0);
		FAILS(EBADF, close(fds[i]));
	}
	FAILS(ENOENT, open("/dev/netmap0", O_RDWR));
}

/* Of programs that were linked with a C library before 2.33. */
int old_stat(int version, const char *path, struct stat *answer);
__asm__(".symver old_stat, __xstat@GLIBC_2.2.5");

static void is_netmap(const struct stat *answer)
{
	CHECK(S_ISCHR(answer->st_mode) && (answer->st_mode & 0777) == 0666);
	CHECK(major(answer->st_rdev) == 10 && answer->st_size == 0);
}

static void the_device_is_there_for_all_who_look(void)
{
	struct stat answer, null;
	struct stat64 large;
	struct statx more;
	FILE *stream;
	int fd;

	CHECK(stat("/dev/null", &null) == 0 && major(null.st_rdev) == 1);
	CHECK(stat("/dev/netmap", &answer) == 0);
	is_netmap(&answer);
	CHECK(answer.st_dev == null.st_dev && answer.st_ino != null.st_ino);
	CHECK(lstat("/dev/netmap", &answer) == 0);
	is_netmap(&answer);
	CHECK(fstatat(AT_FDCWD, "/dev/netmap", &answer, AT_SYMLINK_NOFOLLOW) == 0);
	is_netmap(&answer);
	CHECK(old_stat(1, "/dev/netmap", &answer) == 0);
	is_netmap(&answer);
	CHECK(old_stat(1, "/dev/null", &answer) == 0 && answer.st_rdev == null.st_rdev);
	CHECK(stat("/dev//netmap", &answer) == 0);
	is_netmap(&answer);
	CHECK(lstat("//dev/./netmap", &answer) == 0);
	is_netmap(&answer);
	CHECK(stat64("/dev/netmap", &large) == 0 && S_ISCHR(large.st_mode));
	CHECK(statx(AT_FDCWD, "/dev/netmap", 0, STATX_BASIC_STATS, &more) == 0);
	CHECK(S_ISCHR(more.stx_mode) && more.stx_rdev_major == 10);
	CHECK(access("/dev/netmap", F_OK) == 0 && access("/dev/netmap", R_OK | W_OK) == 0);
	CHECK(euidaccess("/dev/netmap", R_OK | W_OK) == 0);
	CHECK(faccessat(AT_FDCWD, "/dev/netmap", W_OK, AT_EACCESS) == 0);
	FAILS(EACCES, access("/dev/netmap", X_OK));
	FAILS(ENOENT, stat("/dev/netmap0", &answer));
	FAILS(ENOENT, access("/dev/netmap0", F_OK));
	stream = fopen("/dev/netmap", "r+e");
	CHECK(stream && (fcntl(fileno(stream), F_GETFD) & FD_CLOEXEC));
	fd = fileno(stream);
	FAILS(ENXIO, ioctl(fd, NIOCTXSYNC, NULL));
	CHECK(fclose(stream) == 0);
	/* The number may be another file's, which can be read. */
	CHECK(open("/dev/zero", O_RDONLY) == fd && read(fd, &answer, 1) == 1);
}

/* Even root changes nothing: the mode and the owner of the daemon's socket count. */
static void the_device_has_no_attributes_and_stays_as_it_is(void)
{
	char room[64];
	int dir = AT_FDCWD;

	FAILS(ENODATA, getxattr("/dev/netmap", "security.selinux", room, sizeof(room)));
	FAILS(ENODATA, lgetxattr("/dev/netmap", "system.posix_acl_access", room, sizeof(room)));
	CHECK(listxattr("/dev/netmap", room, sizeof(room)) == 0);
	CHECK(llistxattr("/dev/netmap", room, sizeof(room)) == 0);
	FAILS(EPERM, chmod("/dev/netmap", 0600));
	FAILS(EPERM, fchmodat(dir, "/dev/netmap", 0600, 0));
	FAILS(EPERM, chown("/dev/netmap", getuid(), getgid()));
	FAILS(EPERM, lchown("/dev/netmap", getuid(), getgid()));
	FAILS(EPERM, fchownat(dir, "/dev/netmap", getuid(), getgid(), AT_SYMLINK_NOFOLLOW));
	FAILS(ENOENT, getxattr("/dev/netmap0", "security.selinux", room, sizeof(room)));
	FAILS(ENOENT, llistxattr("/dev/netmap0", room, sizeof(room)));
	FAILS(ENOENT, fchmodat(dir, "/dev/netmap0", 0600, 0));
	FAILS(ENOENT, fchownat(dir, "/dev/netmap0", getuid(), getgid(), 0));
}

static void register_answers(void)
{
	struct port port = open_port("vale0:a", NR_NO_TX_POLL | 0x1000);
	uint32_t i;

	CHECK(port.reg.nr_mode == NR_REG_ALL_NIC && port.reg.nr_ringid == 0);
	CHECK(port.reg.nr_flags == (NR_NO_TX_POLL | 0x1000));
	CHECK(port.reg.nr_tx_rings == 1 && port.reg.nr_rx_rings == 1);
	CHECK(port.reg.nr_tx_slots == 1024 && port.reg.nr_rx_slots == 1024);
	CHECK(port.reg.nr_mem_id > 1 && port.reg.nr_extra_bufs == 0);
	CHECK(!strcmp(port.nifp->ni_name, "vale0:a"));
	/* No rings of a host: pkt-gen -p takes their number for that of threads. */
	CHECK(port.reg.nr_host_tx_rings == 0 && port.reg.nr_host_rx_rings == 0);
	CHECK(port.nifp->ni_host_tx_rings >= 1 && port.nifp->ni_host_rx_rings >= 1);
	CHECK(port.nifp->ni_bufs_head == 0);
	CHECK(port.tx && port.tx->dir == 0 && port.tx->ringid == 0);
	CHECK(port.rx && port.rx->dir == 1 && port.rx->num_slots == 1024);
	CHECK(nm_ring_space(port.tx) == 1023 && nm_ring_empty(port.rx));
	for (i = 0; i < 1024; i++)
		CHECK(port.tx->slot[i].buf_idx >= 2 && port.rx->slot[i].buf_idx >= 2);
}

/* As the kernel leaves them: programs take the length for the room in the buffer. */
static void has_lengths_of_buffers(struct netmap_ring *ring)
{
	uint32_t i;

	for (i = 0; i < ring->num_slots; i++)
		CHECK(ring->slot[i].len == ring->nr_buf_size);
}

static void slots_are_as_long_as_their_buffers(void)
{
	struct nmreq_register null = { .nr_mode = NR_REG_NULL, .nr_mem_id = 1,
				       .nr_tx_rings = 1, .nr_rx_rings = 1 };
	struct nmreq_vale_newif newif;
	struct port ports[5];
	int fd = device();
	size_t i;

	memset(&newif, 0, sizeof(newif));
	CHECK(request(fd, NETMAP_REQ_VALE_NEWIF, "len0", &newif, NULL) == 0);
	ports[0] = open_port("vale0:a", 0);
	ports[1] = open_port("vale0:a{1", 0);
	ports[2] = open_port("len0", 0);
	ports[3] = open_port("vale0:a", NR_MONITOR_RX);
	ports[4] = open_as("any", null, NULL);
	for (i = 0; i < sizeof(ports) / sizeof(*ports); i++) {
		CHECK(ports[i].tx && ports[i].rx);
		has_lengths_of_buffers(ports[i].tx);
		has_lengths_of_buffers(ports[i].rx);
		close(ports[i].fd);
	}
	CHECK(request(fd, NETMAP_REQ_VALE_DELIF, "len0", NULL, NULL) == 0);
}

static void register_sizes(void)
{
	struct port port;

	memset(&port, 0, sizeof(port));
	port.fd = device();
	port.reg = all_rings();
	port.reg.nr_tx_rings = 2, port.reg.nr_rx_rings = 3;
	port.reg.nr_tx_slots = 64, port.reg.nr_rx_slots = 128;
	CHECK(request(port.fd, NETMAP_REQ_REGISTER, "vale1:big", &port.reg, NULL) == 0);
	CHECK(port.reg.nr_tx_rings == 2 && port.reg.nr_rx_rings == 3);
	map_port(&port);
	CHECK(NETMAP_TXRING(port.nifp, 1)->num_slots == 64);
	CHECK(NETMAP_RXRING(port.nifp, 2)->num_slots == 128);
	CHECK(NETMAP_RXRING(port.nifp, 2)->ringid == 2);
}

static void register_one_ring(void)
{
	struct port all, one;

	memset(&all, 0, sizeof(all));
	all.fd = device();
	all.reg = all_rings();
	all.reg.nr_tx_rings = all.reg.nr_rx_rings = 3;
	CHECK(request(all.fd, NETMAP_REQ_REGISTER, "vale0:m", &all.reg, NULL) == 0);
	memset(&one, 0, sizeof(one));
	one.fd = device();
	one.reg.nr_mode = NR_REG_ONE_NIC;
	one.reg.nr_ringid = 2;
	CHECK(request(one.fd, NETMAP_REQ_REGISTER, "vale0:m", &one.reg, NULL) == 0);
	CHECK(one.reg.nr_mode == NR_REG_ONE_NIC && one.reg.nr_ringid == 2);
	CHECK(one.reg.nr_tx_rings == 3 && one.reg.nr_mem_id == all.reg.nr_mem_id);
	map_port(&one);
	CHECK(!one.tx && !one.rx);
	CHECK(one.nifp->ring_ofs[1] == 0 && one.nifp->ring_ofs[2] != 0);
	CHECK(NETMAP_RXRING(one.nifp, 2)->ringid == 2);
	one.fd = device();
	one.reg.nr_ringid = 3;
	FAILS(EINVAL, request(one.fd, NETMAP_REQ_REGISTER, "vale0:m", &one.reg, NULL));
}

static void register_one_direction(void)
{
	struct port rx = open_port("vale0:a", NR_RX_RINGS_ONLY);
	struct port tx = open_port("vale0:b", NR_TX_RINGS_ONLY);

	CHECK(!rx.tx && rx.rx && tx.tx && !tx.rx);
	CHECK(ioctl(rx.fd, NIOCTXSYNC, NULL) == 0);
	send_frame(&tx, 60, 7);
	expect_frame(&rx, 60, 7);
}

/* The shared region has the number by which the program asked for it. */
static void region_one_is_common(void)
{
	struct port a = open_port("vale0:own", 0), b, c;

	memset(&b, 0, sizeof(b));
	b.reg.nr_mode = NR_REG_ALL_NIC;
	b.reg.nr_mem_id = 1;
	c = b;
	b.fd = device();
	c.fd = device();
	CHECK(request(b.fd, NETMAP_REQ_REGISTER, "vale0:b", &b.reg, NULL) == 0);
	CHECK(request(c.fd, NETMAP_REQ_REGISTER, "vale1:c", &c.reg, NULL) == 0);
	CHECK(b.reg.nr_mem_id == 1 && c.reg.nr_mem_id == 1 && a.reg.nr_mem_id > 1);
	/* One region: what is written through one mapping is seen through the other. */
	map_port(&b);
	c.memory = mmap(NULL, c.reg.nr_memsize, PROT_READ, MAP_SHARED, c.fd, 0);
	CHECK(c.memory != MAP_FAILED);
	NETMAP_BUF(b.tx, b.tx->slot[0].buf_idx)[5] = 99;
	CHECK(c.memory[NETMAP_BUF(b.tx, b.tx->slot[0].buf_idx) + 5 - b.memory] == 99);
}

static void register_refusals(void)
{
	struct nmreq_register reg = all_rings();
	int fd = device();

	FAILS(ENXIO, request(fd, NETMAP_REQ_REGISTER, "nosuchif9", &reg, NULL));
	FAILS(ENXIO, request(fd, NETMAP_REQ_REGISTER, "", &reg, NULL));
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale0:a-b", &reg, NULL));
	reg.nr_mode = NR_REG_SW;
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, NULL));
	reg.nr_mode = NR_REG_PIPE_MASTER;
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, NULL));
	reg.nr_mode = 77;
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, NULL));
	reg = all_rings();
	reg.nr_mem_id = 60000;
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, NULL));
	reg.nr_mem_id = 0;
	CHECK(request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, NULL) == 0);
	FAILS(EBUSY, request(fd, NETMAP_REQ_REGISTER, "vale0:b", &reg, NULL));
}

static void exclusive(void)
{
	struct nmreq_register reg = all_rings();
	struct port first = open_port("vale0:a", 0);
	int fd = device();

	reg.nr_flags = NR_EXCLUSIVE;
	FAILS(EBUSY, request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, NULL));
	close(first.fd);
	CHECK(request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, NULL) == 0);
	reg.nr_flags = 0;
	FAILS(EBUSY, request(device(), NETMAP_REQ_REGISTER, "vale0:a", &reg, NULL));
}

/* A closed descriptor stays closed for the next caller. */
static void exclusive_again_and_again(void)
{
	int i, fd;

	for (i = 0; i < 300; i++) {
		struct nmreq_register reg = all_rings();

		fd = device();
		reg.nr_flags = NR_EXCLUSIVE;
		CHECK(request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, NULL) == 0);
		CHECK(close(fd) == 0);
	}
}

static void extra_buffers(void)
{
	struct port port;
	uint32_t index, count = 0;

	memset(&port, 0, sizeof(port));
	port.fd = device();
	port.reg = all_rings();
	port.reg.nr_extra_bufs = 58;
	CHECK(request(port.fd, NETMAP_REQ_REGISTER, "vale0:a", &port.reg, NULL) == 0);
	CHECK(port.reg.nr_extra_bufs == 58);
	map_port(&port);
	for (index = port.nifp->ni_bufs_head; index; count++)
		index = *(uint32_t *)NETMAP_BUF(port.tx, index);
	CHECK(count == 58);
}

static void pipes(void)
{
	struct port master = open_port("vale0:a{one", 0), slave = open_port("vale0:a}one", 0);
	struct nmreq_register reg = all_rings();
	struct nmreq old;
	int fd = device();

	CHECK(master.reg.nr_mem_id == slave.reg.nr_mem_id);
	send_frame(&master, 60, 1);
	expect_frame(&slave, 60, 1);
	send_frame(&slave, 61, 2);
	expect_frame(&master, 61, 2);
	reg.nr_flags = NR_EXCLUSIVE;
	FAILS(EBUSY, request(fd, NETMAP_REQ_REGISTER, "vale0:a{one", &reg, NULL));
	memset(&old, 0, sizeof(old)); /* old programs give pipes numbers */
	strcpy(old.nr_name, "vale0:a");
	old.nr_version = NETMAP_API;
	old.nr_flags = NR_REG_PIPE_MASTER;
	old.nr_ringid = 12;
	CHECK(ioctl(fd, NIOCREGIF, &old) == 0);
	slave = open_port("vale0:a}12", 0);
	CHECK(slave.reg.nr_mem_id == old.nr_arg2);
}

static void bad_headers(void)
{
	struct nmreq_register reg = all_rings();
	struct nmreq_header header;
	int fd = device();

	memset(&header, 0, sizeof(header));
	header.nr_version = NETMAP_API;
	header.nr_reqtype = NETMAP_REQ_REGISTER;
	header.nr_body = (uintptr_t)&reg;
	strcpy(header.nr_name, "vale0:a");
	FAILS(EINVAL, ioctl(fd, NIOCCTRL, NULL));
	FAILS(EFAULT, ioctl(fd, NIOCCTRL, (void *)8));
	header.nr_version = NETMAP_MIN_API - 1;
	FAILS(EINVAL, ioctl(fd, NIOCCTRL, &header));
	header.nr_version = NETMAP_MAX_API + 1;
	FAILS(EINVAL, ioctl(fd, NIOCCTRL, &header));
	header.nr_version = NETMAP_MAX_API;
	header.nr_reserved = 1;
	FAILS(EINVAL, ioctl(fd, NIOCCTRL, &header));
	header.nr_reserved = 0;
	header.nr_body = 0;
	FAILS(EINVAL, ioctl(fd, NIOCCTRL, &header));
	header.nr_body = 0x10;
	FAILS(EFAULT, ioctl(fd, NIOCCTRL, &header));
	header.nr_body = (uintptr_t)"read-only memory, not for answers, and long enough for a body";
	FAILS(EINVAL, (header.nr_reqtype = 99, ioctl(fd, NIOCCTRL, &header)));
	FAILS(EOPNOTSUPP, ioctl(fd, 0x12345678, NULL));
	CHECK(strcmp(header.nr_name, "vale0:a") == 0);
}

static void options(void)
{
	struct nmreq_register reg = all_rings();
	struct nmreq_option option[2];
	int fd = device();

	memset(option, 0, sizeof(option));
	option[0].nro_reqtype = 1234;
	FAILS(EOPNOTSUPP, request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, option));
	CHECK(option[0].nro_status == EOPNOTSUPP);
	option[0].nro_next = (uintptr_t)option;
	FAILS(EMSGSIZE, request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, option));
	option[0].nro_reqtype = 0;
	option[0].nro_next = 0;
	FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, option));
	CHECK(option[0].nro_status == EINVAL);
	option[0].nro_next = 0x10;
	option[0].nro_reqtype = 1234;
	FAILS(EFAULT, request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, option));
	CHECK(request(fd, NETMAP_REQ_REGISTER, "vale0:a", &reg, NULL) == 0);
}

static void port_info(void)
{
	struct nmreq_port_info_get info;
	struct nmreq_pools_info pools;
	struct port port;
	int fd = device();

	memset(&info, 0, sizeof(info));
	CHECK(request(fd, NETMAP_REQ_PORT_INFO_GET, "vale7:none", &info, NULL) == 0);
	CHECK(info.nr_tx_rings == 1 && info.nr_rx_slots == 1024 && info.nr_memsize > 0);
	CHECK(info.nr_host_tx_rings == 0 && info.nr_host_rx_rings == 0);
	port = open_port("vale0:a", 0);
	memset(&info, 0, sizeof(info));
	CHECK(request(fd, NETMAP_REQ_PORT_INFO_GET, "vale0:a", &info, NULL) == 0);
	CHECK(info.nr_memsize == port.reg.nr_memsize && info.nr_mem_id == port.reg.nr_mem_id);
	memset(&pools, 0, sizeof(pools));
	CHECK(request(fd, NETMAP_REQ_POOLS_INFO_GET, "vale0:a", &pools, NULL) == 0);
	CHECK(pools.nr_memsize == port.reg.nr_memsize && pools.nr_mem_id == port.reg.nr_mem_id);
	CHECK(pools.nr_buf_pool_objsize == port.tx->nr_buf_size);
	CHECK(pools.nr_buf_pool_offset < pools.nr_memsize);
	CHECK(request(fd, NETMAP_REQ_POOLS_INFO_GET, "", &pools, NULL) == -1);
	FAILS(ENXIO, request(fd, NETMAP_REQ_PORT_INFO_GET, "nosuchif9", &info, NULL));
	info.nr_mem_id = 60000;
	FAILS(EINVAL, request(fd, NETMAP_REQ_PORT_INFO_GET, "", &info, NULL));
}

static void lists(void)
{
	struct nmreq_vale_list list;
	struct nmreq_header header;
	struct port a = open_port("vale3:a", 0), b = open_port("vale3:b", 0);
	int fd = device(), seen = 0;

	memset(&list, 0, sizeof(list));
	CHECK(request(fd, NETMAP_REQ_VALE_LIST, "vale3:b", &list, NULL) == 0);
	CHECK(list.nr_port_idx == 1);
	FAILS(ENOENT, request(fd, NETMAP_REQ_VALE_LIST, "vale9:x", &list, NULL));
	FAILS(EINVAL, request(fd, NETMAP_REQ_VALE_LIST, "eth0", &list, NULL));
	memset(&list, 0, sizeof(list));
	for (;; list.nr_port_idx++) {
		memset(&header, 0, sizeof(header));
		header.nr_version = NETMAP_API;
		header.nr_reqtype = NETMAP_REQ_VALE_LIST;
		header.nr_body = (uintptr_t)&list;
		if (ioctl(fd, NIOCCTRL, &header))
			break;
		seen += !strncmp(header.nr_name, "vale3:", 6);
	}
	CHECK(errno == ENOENT && seen == 2);
	close(a.fd), close(b.fd);
}

static void headers_of_ports(void)
{
	struct nmreq_port_hdr header = { 99, 0 };
	struct port port = open_port("vale0:a", 0);

	CHECK(request(port.fd, NETMAP_REQ_PORT_HDR_GET, "vale0:a", &header, NULL) == 0);
	CHECK(header.nr_hdr_len == 0);
	CHECK(request(port.fd, NETMAP_REQ_PORT_HDR_SET, "vale0:a", &header, NULL) == 0);
	header.nr_hdr_len = 11;
	FAILS(EINVAL, request(port.fd, NETMAP_REQ_PORT_HDR_SET, "vale0:a", &header, NULL));
	header.nr_hdr_len = 0;
	FAILS(ENXIO, request(port.fd, NETMAP_REQ_PORT_HDR_SET, "eth99", &header, NULL));
	FAILS(ENXIO, request(port.fd, NETMAP_REQ_PORT_HDR_SET, "vale0:none", &header, NULL));
	FAILS(ENXIO, request(port.fd, NETMAP_REQ_PORT_HDR_SET, "vale0:a{1", &header, NULL));
	FAILS(ENXIO, request(port.fd, NETMAP_REQ_PORT_HDR_GET, "vale0:none", &header, NULL));
}

static void set_header(struct port *port, const char *name, uint32_t bytes)
{
	struct nmreq_port_hdr header = { bytes, 0 };

	CHECK(request(port->fd, NETMAP_REQ_PORT_HDR_SET, name, &header, NULL) == 0);
	header.nr_hdr_len = 99;
	CHECK(request(port->fd, NETMAP_REQ_PORT_HDR_GET, name, &header, NULL) == 0);
	CHECK(header.nr_hdr_len == bytes);
}

/* The bytes in front of a frame that a, with a header, sends, as b gets them. */
static void headers_pass(uint32_t of_a, uint32_t of_b)
{
	struct port a = open_port("vale6:a", NR_ACCEPT_VNET_HDR);
	struct port b = open_port("vale6:b", NR_ACCEPT_VNET_HDR);
	struct netmap_slot *slot = &a.tx->slot[a.tx->head];
	char *frame = NETMAP_BUF(a.tx, slot->buf_idx), *got;
	uint32_t i;

	set_header(&a, "vale6:a", of_a), set_header(&b, "vale6:b", of_b);
	memset(frame, 7, of_a);
	memset(frame + of_a, 0xff, 6);
	memset(frame + of_a + 6, 2, 54);
	slot->len = (uint16_t)(of_a + 60);
	a.tx->head = a.tx->cur = nm_ring_next(a.tx, a.tx->head);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	slot = &b.rx->slot[b.rx->head];
	got = NETMAP_BUF(b.rx, slot->buf_idx);
	expect_frame(&b, (int)(of_b + 60), 2);
	for (i = 0; i < of_b; i++)
		CHECK(got[i] == (of_a == of_b ? 7 : 0));
	CHECK((unsigned char)got[of_b] == 0xff && got[of_b + 6] == 2);
	close(a.fd), close(b.fd);
}

static void headers_in_front_of_frames(void)
{
	struct port port;
	struct nmreq_register reg = all_rings();
	int fd = device();

	headers_pass(0, 0), headers_pass(12, 12), headers_pass(10, 10);
	headers_pass(12, 10), headers_pass(12, 0), headers_pass(0, 12);
	/* A program that does not expect a header does not get the port. */
	port = open_port("vale6:c", 0);
	set_header(&port, "vale6:c", 12);
	FAILS(EIO, request(fd, NETMAP_REQ_REGISTER, "vale6:c", &reg, NULL));
	reg.nr_flags = NR_ACCEPT_VNET_HDR;
	CHECK(request(fd, NETMAP_REQ_REGISTER, "vale6:c", &reg, NULL) == 0);
	CHECK(reg.nr_flags == NR_ACCEPT_VNET_HDR);
}

static void legacy(void)
{
	struct nmreq old;
	int fd = device();

	memset(&old, 0, sizeof(old));
	strcpy(old.nr_name, "vale0:old");
	old.nr_version = NETMAP_MIN_API - 1;
	FAILS(EINVAL, ioctl(fd, NIOCREGIF, &old));
	old.nr_version = 99;
	CHECK(ioctl(fd, NIOCGINFO, &old) == 0);
	CHECK(old.nr_tx_rings == 1 && old.nr_memsize > 0);
	old.nr_arg2 = 0;
	old.nr_arg3 = 20;
	old.nr_ringid = NETMAP_NO_TX_POLL;
	CHECK(ioctl(fd, NIOCREGIF, &old) == 0);
	CHECK(old.nr_offset > 0 && old.nr_memsize > old.nr_offset && old.nr_arg3 == 20);
	CHECK(old.nr_ringid == NETMAP_NO_TX_POLL && old.nr_flags == 0);
	FAILS(EBUSY, ioctl(fd, NIOCREGIF, &old));
	old.nr_cmd = NETMAP_BDG_VNET_HDR;
	old.nr_arg1 = 0;
	CHECK(ioctl(fd, NIOCREGIF, &old) == 0);
	old.nr_cmd = NETMAP_BDG_REGOPS;
	FAILS(EINVAL, ioctl(fd, NIOCREGIF, &old));
}

static void memory(void)
{
	struct port port = open_port("vale0:a", 0);
	size_t size = port.reg.nr_memsize;
	int both = PROT_READ | PROT_WRITE, unbound = device();
	char *second;

#define NO_MAP(size, flags, fd, offset) \
	CHECK(mmap(NULL, size, both, flags, fd, offset) == MAP_FAILED && errno == EINVAL)
	NO_MAP(4096, MAP_SHARED, unbound, 0);
	NO_MAP(size + 4096, MAP_SHARED, port.fd, 0);
	NO_MAP(4096, MAP_SHARED, port.fd, (off_t)((size + 4095) & ~4095ul));
	NO_MAP(size, MAP_PRIVATE, port.fd, 0);
	second = mmap(NULL, size, both, MAP_SHARED, port.fd, 0);
	CHECK(second != MAP_FAILED && second != port.memory);
	port.memory[size - 1] = 42;
	CHECK(second[size - 1] == 42);
	CHECK(munmap(second, size) == 0);
	close(port.fd);
	port.memory[size - 1] = 43; /* a mapping outlives its descriptor */
}

static void loops(void)
{
	struct nmreq_sync_kloop_start start = { 1000001, 0 };
	struct port port = open_port("vale0:a", 0);

	FAILS(EINVAL, request(port.fd, NETMAP_REQ_SYNC_KLOOP_START, "vale0:a", &start, NULL));
	start.sleep_us = 100;
	FAILS(EINVAL, request(port.fd, NETMAP_REQ_SYNC_KLOOP_START, "vale0:a", &start, NULL));
	FAILS(EINVAL, request(port.fd, NETMAP_REQ_CSB_ENABLE, "vale0:a", NULL, NULL));
}

static const struct test tests[] = {
	TEST(region_one_is_common),
	TEST(open_in_every_way), TEST(the_device_is_there_for_all_who_look),
	TEST(the_device_has_no_attributes_and_stays_as_it_is),
	TEST(register_answers), TEST(register_sizes), TEST(slots_are_as_long_as_their_buffers),
	TEST(register_one_ring), TEST(register_one_direction), TEST(register_refusals),
	TEST(exclusive), TEST(exclusive_again_and_again), TEST(extra_buffers), TEST(pipes),
	TEST(bad_headers), TEST(options),
	TEST(port_info), TEST(lists), TEST(headers_of_ports),
	TEST(headers_in_front_of_frames), TEST(legacy), TEST(memory), TEST(loops),
};
MAIN(tests)
