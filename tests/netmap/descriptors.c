// SPDX-License-Identifier: MIT OR Apache-2.0
/* Descriptors: copied, inherited, passed on, closed in every way. */

#include "check.h"
#include <sys/socket.h>
#include <sys/syscall.h>

/* No other descriptor may hold a port that is opened exclusively. */
static int is_free(const char *name)
{
	struct nmreq_register reg;
	int fd = device(), got;

	memset(&reg, 0, sizeof(reg));
	reg.nr_mode = NR_REG_ALL_NIC;
	reg.nr_flags = NR_EXCLUSIVE;
	got = request(fd, NETMAP_REQ_REGISTER, name, &reg, NULL);
	CHECK(got == 0 || errno == EBUSY);
	close(fd);
	return got == 0;
}

static void copies_are_one(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int copies[4], i, come;

	copies[0] = dup(a.fd);
	copies[1] = dup2(a.fd, 300);
	copies[2] = dup3(a.fd, 301, O_CLOEXEC);
	copies[3] = fcntl(a.fd, F_DUPFD_CLOEXEC, 310);
	CHECK(copies[1] == 300 && copies[2] == 301 && copies[3] >= 310);
	CHECK(close(a.fd) == 0);
	for (i = 0; i < 4; i++) {
		CHECK(copies[i] >= 0 && !is_free("vale0:a"));
		a.fd = copies[i];
		send_frame(&a, 60, i);
		expect_frame(&b, 60, i);
		CHECK(poll_one(copies[i], POLLOUT, 0, &come) == 1 && come == POLLOUT);
		CHECK(close(copies[i]) == 0);
	}
	CHECK(is_free("vale0:a"));
	CHECK(dup2(b.fd, b.fd) == b.fd && !is_free("vale0:b"));
	CHECK(dup2(0, b.fd) == b.fd && is_free("vale0:b"));
	FAILS(ENOTTY, ioctl(b.fd, NIOCTXSYNC, NULL));
}

static void everything_else_is_closed(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int i, come;

	/* As daemons do. What the library needs for itself stays. */
	for (i = 3; i < 1024; i++)
		if (i != a.fd && i != b.fd)
			close(i);
	send_frame(&a, 60, 1);
	expect_frame(&b, 60, 1);
	CHECK(close_range((unsigned int)b.fd + 1, ~0u, 0) == 0);
	CHECK(poll_one(b.fd, POLLIN, 20, &come) == 0);
	CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(close_range(3, ~0u, 0) == 0);
	CHECK(is_free("vale0:a") && is_free("vale0:b"));
}

static void children_share(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	pid_t child = fork();

	if (child == 0) {
		expect_frame(&b, 60, 1); /* sleeps on a doorbell of its own */
		send_frame(&b, 61, 2);
		_exit(0);
	}
	usleep(100000);
	send_frame(&a, 60, 1);
	expect_frame(&a, 61, 2);
	expect_child(child);
	child = fork();
	if (child == 0) {
		sleep(1);
		_exit(0);
	}
	close(a.fd);
	CHECK(!is_free("vale0:a")); /* the child has it */
	expect_child(child);
	CHECK(is_free("vale0:a"));
}

static void both_wait(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int come, i, status, pipes[2];
	volatile uint32_t *head = &b.rx->head;
	uint32_t seen;
	char byte = 0;
	pid_t child;

	CHECK(pipe(pipes) == 0);
	child = fork();
	if (child == 0) {
		for (i = 0; i < 50; i++) {
			CHECK(poll_one(b.fd, POLLIN, 5000, &come) == 1);
			seen = *head;
			CHECK(write(pipes[1], &byte, 1) == 1);
			while (*head == seen)
				usleep(100);
		}
		_exit(0);
	}
	for (i = 0; i < 50; i++) {
		send_frame(&a, 60, i);
		CHECK(poll_one(b.fd, POLLIN, 5000, &come) == 1);
		CHECK(read(pipes[0], &byte, 1) == 1); /* the child has seen it too */
		expect_frame(&b, 60, i);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void vforked_children_change_nothing(void)
{
	struct port a = open_port("vale0:a", 0);
	pid_t child = vfork();

	if (child == 0) {
		close(a.fd);
		_exit(0);
	}
	expect_child(child);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(system("exec 5>&-; true") == 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
}

/* In a program that was executed: descriptor 100 is bound to vale0:a, its sizes are in the
 * environment. */
static void after_exec(void)
{
	struct port a = { .fd = 100 }, b = open_port("vale0:b", 0);
	int come;

	a.reg.nr_memsize = strtoul(getenv("MEMSIZE"), NULL, 10);
	a.reg.nr_offset = strtoul(getenv("OFFSET"), NULL, 10);
	FAILS(EBUSY, request(100, NETMAP_REQ_REGISTER, "vale0:c", &a.reg, NULL));
	map_port(&a);
	send_frame(&a, 60, 8);
	expect_frame(&b, 60, 8);
	send_frame(&b, 60, 9);
	expect_frame(&a, 60, 9);
	FAILS(ENXIO, ioctl(101, NIOCTXSYNC, NULL)); /* bound to nothing, then as now */
	FAILS(EBADF, ioctl(102, NIOCTXSYNC, NULL)); /* O_CLOEXEC */
	/* NR_NO_TX_POLL. */
	put_frame(&a, 60, 10);
	CHECK(poll_one(a.fd, POLLIN, 0, &come) == 0);
	CHECK(poll_one(b.fd, POLLIN, 100, &come) == 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	expect_frame(&b, 60, 10);
}

static void execs_keep(void)
{
	struct port a = open_port("vale0:a", NR_NO_TX_POLL);
	char number[32];
	int fd = device();

	CHECK(dup2(a.fd, 100) == 100 && dup2(fd, 101) == 101);
	CHECK(dup3(a.fd, 102, O_CLOEXEC) == 102);
	close(a.fd), close(fd);
	snprintf(number, sizeof(number), "%lu", (unsigned long)a.reg.nr_memsize);
	setenv("MEMSIZE", number, 1);
	snprintf(number, sizeof(number), "%lu", (unsigned long)a.reg.nr_offset);
	setenv("OFFSET", number, 1);
	execl("/proc/self/exe", "descriptors", "after_exec", (char *)NULL);
	CHECK(0);
}

static int move_fd(int socket, int fd)
{
	char room[CMSG_SPACE(sizeof(int))] = { 0 }, byte = 0;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof(room) };
	struct cmsghdr *header;

	if (fd < 0) {
		CHECK(recvmsg(socket, &message, 0) == 1);
		header = CMSG_FIRSTHDR(&message);
		CHECK(header && header->cmsg_type == SCM_RIGHTS);
		memcpy(&fd, CMSG_DATA(header), sizeof(fd));
		return fd;
	}
	header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	CHECK(sendmsg(socket, &message, 0) == 1);
	return fd;
}

static void passed_on(void)
{
	struct port a = { 0 }, b;
	int sockets[2];
	pid_t child;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	child = fork();
	if (child == 0) { /* makes the port, keeps nothing */
		a = open_port("vale0:a", 0);
		CHECK(write(sockets[1], &a.reg, sizeof(a.reg)) == sizeof(a.reg));
		move_fd(sockets[1], a.fd);
		move_fd(sockets[1], device());
		_exit(0);
	}
	b = open_port("vale0:b", 0);
	CHECK(read(sockets[0], &a.reg, sizeof(a.reg)) == sizeof(a.reg));
	a.fd = move_fd(sockets[0], -1);
	expect_child(child);
	CHECK(!is_free("vale0:a"));
	map_port(&a);
	send_frame(&b, 60, 1);
	expect_frame(&a, 60, 1);
	send_frame(&a, 60, 2);
	expect_frame(&b, 60, 2);
	close(a.fd);
	CHECK(is_free("vale0:a"));
	/* The other one was bound to nothing, and can be bound here. */
	a.fd = move_fd(sockets[0], -1);
	memset(&a.reg, 0, sizeof(a.reg));
	a.reg.nr_mode = NR_REG_ALL_NIC;
	CHECK(request(a.fd, NETMAP_REQ_REGISTER, "vale0:a", &a.reg, NULL) == 0);
	map_port(&a);
	send_frame(&b, 60, 3);
	expect_frame(&a, 60, 3);
}

/* Closed behind the library's back: the number is another file by now. */
static void closed_by_system_call(void)
{
	struct port a = open_port("vale0:a", 0);
	int fd = a.fd, pipes[2];

	CHECK(syscall(SYS_close, fd) == 0);
	CHECK(is_free("vale0:a"));
	CHECK(pipe(pipes) == 0);
	close(fd);
}

static void many(void)
{
	int fds[200], i, come;
	struct nmreq_register reg;
	char name[32];

	for (i = 0; i < 100; i++) {
		fds[i] = device();
		memset(&reg, 0, sizeof(reg));
		reg.nr_mode = NR_REG_ALL_NIC;
		reg.nr_tx_slots = reg.nr_rx_slots = 64;
		snprintf(name, sizeof(name), "vale0:p%d", i);
		CHECK(request(fds[i], NETMAP_REQ_REGISTER, name, &reg, NULL) == 0);
		CHECK(poll_one(fds[i], POLLOUT, 0, &come) == 1 && come == POLLOUT);
	}
	for (i = 0; i < 100; i++)
		CHECK(close(fds[i]) == 0);
	CHECK(is_free("vale0:p0") && is_free("vale0:p99"));
}

static const struct test tests[] = {
	TEST(copies_are_one), TEST(everything_else_is_closed), TEST(children_share),
	TEST(both_wait), TEST(vforked_children_change_nothing), TEST(execs_keep),
	TEST(passed_on), TEST(closed_by_system_call), TEST(many),
};

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "after_exec"))
		return after_exec(), 0;
	return run_tests(tests, sizeof(tests) / sizeof(*tests), argc, argv);
}
