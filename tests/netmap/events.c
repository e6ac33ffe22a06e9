/*
 * events.c - event loops: edges, single shots, sets in sets, threads and children on one set.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "check.h"

#include <linux/io_uring.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/syscall.h>

static int new_set(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC);

	CHECK(set >= 0);
	return set;
}

static void control(int set, int call, int fd, uint32_t events)
{
	struct epoll_event event = { events, { .u64 = 0x1000000000ULL + (uint32_t)fd } };

	CHECK(epoll_ctl(set, call, fd, &event) == 0);
}

/* Waits; returns the events of the one descriptor that is reported, 0 for none. */
static int await(int set, int fd, int timeout)
{
	struct epoll_event got[4];
	int count = epoll_wait(set, got, 4, timeout);

	CHECK(count == 0 || count == 1);
	if (count == 0)
		return 0;
	CHECK(got[0].data.u64 == 0x1000000000ULL + (uint32_t)fd);
	return (int)got[0].events;
}

/* Takes frames without a system call. */
static int take_all(struct port *port)
{
	int count = 0;

	while (!nm_ring_empty(port->rx)) {
		port->rx->head = port->rx->cur = nm_ring_next(port->rx, port->rx->head);
		count++;
	}
	return count;
}

/* Takes frames and syncs until there are none, as a loop on edges must. */
static int drain(struct port *port)
{
	int count = 0, now;

	do {
		now = take_all(port);
		count += now;
		CHECK(ioctl(port->fd, NIOCRXSYNC, NULL) == 0);
	} while (!nm_ring_empty(port->rx));
	return count;
}

/* An io_uring for single polls. It asks the kernel itself, as liburing does. */
struct uring {
	int fd;
	struct io_uring_params params;
	char *rings;
	struct io_uring_sqe *entries;
};

/* 0: the kernel refuses io_uring here. */
static int new_uring(struct uring *uring)
{
	int both = PROT_READ | PROT_WRITE;

	memset(uring, 0, sizeof(*uring));
	uring->fd = (int)syscall(SYS_io_uring_setup, 4, &uring->params);
	if (uring->fd < 0)
		return 0;
	CHECK(uring->params.features & IORING_FEAT_SINGLE_MMAP);
	uring->rings = mmap(NULL, 4096, both, MAP_SHARED, uring->fd, IORING_OFF_SQ_RING);
	uring->entries = mmap(NULL, 4096, both, MAP_SHARED, uring->fd, IORING_OFF_SQES);
	CHECK(uring->rings != MAP_FAILED && uring->entries != MAP_FAILED);
	return 1;
}

static uint32_t *in_ring(struct uring *uring, uint32_t offset)
{
	return (uint32_t *)(uring->rings + offset);
}

/* Asks for the next POLLIN of a descriptor. */
static void uring_poll(struct uring *uring, int fd)
{
	uint32_t *tail = in_ring(uring, uring->params.sq_off.tail);
	uint32_t at = *tail & 3;

	memset(&uring->entries[at], 0, sizeof(uring->entries[at]));
	uring->entries[at].opcode = IORING_OP_POLL_ADD;
	uring->entries[at].fd = fd;
	uring->entries[at].poll32_events = POLLIN;
	uring->entries[at].user_data = (uint64_t)fd;
	in_ring(uring, uring->params.sq_off.array)[at] = at;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	CHECK(syscall(SYS_io_uring_enter, uring->fd, 1, 0, 0, NULL, 0) == 1);
}

/* The descriptor whose poll is complete, or -1. */
static int uring_completed(struct uring *uring)
{
	uint32_t *head = in_ring(uring, uring->params.cq_off.head);
	uint32_t tail = __atomic_load_n(in_ring(uring, uring->params.cq_off.tail),
					__ATOMIC_ACQUIRE);
	struct io_uring_cqe *entries = (void *)(uring->rings + uring->params.cq_off.cqes);

	if (*head == tail)
		return -1;
	CHECK(entries[*head & 7].res & POLLIN);
	return (int)entries[(*head)++ & 7].user_data;
}

/* The kernel does not know when a ring is ready; a set that holds the port says it. */
static void io_uring_polls_sets(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int set = new_set();
	struct uring uring;

	if (!new_uring(&uring))
		skip("the kernel refuses io_uring (kernel.io_uring_disabled, or a seccomp filter)");
	control(set, EPOLL_CTL_ADD, b.fd, EPOLLIN);
	CHECK(await(set, b.fd, 0) == 0);
	uring_poll(&uring, b.fd);
	uring_poll(&uring, set);
	CHECK(uring_completed(&uring) == -1);
	send_frame(&a, 60, 1);
	CHECK(syscall(SYS_io_uring_enter, uring.fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 0);
	CHECK(uring_completed(&uring) == set);
	CHECK(await(set, b.fd, 5000) == EPOLLIN);
	expect_frame(&b, 60, 1);
	CHECK(uring_completed(&uring) == -1);
}

static void an_edge_is_reported_once(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int set = new_set();

	control(set, EPOLL_CTL_ADD, b.fd, EPOLLIN | EPOLLET);
	CHECK(await(set, b.fd, 30) == 0);
	send_frame(&a, 60, 1);
	CHECK(await(set, b.fd, 5000) == EPOLLIN);
	/* The descriptor is ready, and nothing new has come. */
	CHECK(await(set, b.fd, 30) == 0);
	send_frame(&a, 60, 2);
	CHECK(await(set, b.fd, 5000) == EPOLLIN);
	CHECK(await(set, b.fd, 0) == 0);
	CHECK(take_all(&b) == 2);
	CHECK(await(set, b.fd, 30) == 0);
	/* Asked anew, it is reported as it is. */
	send_frame(&a, 60, 3);
	CHECK(await(set, b.fd, 5000) == EPOLLIN);
	control(set, EPOLL_CTL_MOD, b.fd, EPOLLIN | EPOLLET);
	CHECK(await(set, b.fd, 0) == EPOLLIN);
	CHECK(await(set, b.fd, 0) == 0);
}

static void an_edge_that_a_sync_has_found_counts(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int set = new_set();

	control(set, EPOLL_CTL_ADD, b.fd, EPOLLIN | EPOLLET);
	send_frame(&a, 60, 1);
	while (nm_ring_empty(b.rx))
		CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	CHECK(await(set, b.fd, 0) == EPOLLIN);
	CHECK(await(set, b.fd, 0) == 0);
}

static void room_is_an_edge_too(void)
{
	struct port a = open_port("vale0:p{1", 0), b = open_port("vale0:p}1", 0);
	int set = new_set();

	control(set, EPOLL_CTL_ADD, a.fd, EPOLLOUT | EPOLLET);
	CHECK(await(set, a.fd, 0) == EPOLLOUT);
	CHECK(await(set, a.fd, 20) == 0);
	/* Fill both rings of the pipe. */
	do {
		while (nm_ring_space(a.tx))
			put_frame(&a, 60, 1);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		usleep(20000);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	} while (nm_ring_space(a.tx));
	while (await(set, a.fd, 20))
		;
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	CHECK(take_all(&b) > 0);
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	CHECK(await(set, a.fd, 5000) == EPOLLOUT);
	CHECK(nm_ring_space(a.tx) > 0);
}

static void a_single_shot_is_one(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int set = new_set();

	control(set, EPOLL_CTL_ADD, b.fd, EPOLLIN | EPOLLONESHOT);
	send_frame(&a, 60, 1);
	CHECK(await(set, b.fd, 5000) == EPOLLIN);
	send_frame(&a, 60, 1);
	CHECK(await(set, b.fd, 50) == 0);
	control(set, EPOLL_CTL_MOD, b.fd, EPOLLIN | EPOLLONESHOT | EPOLLET);
	CHECK(await(set, b.fd, 5000) == EPOLLIN);
	CHECK(await(set, b.fd, 0) == 0);
	control(set, EPOLL_CTL_MOD, b.fd, EPOLLIN);
	CHECK(await(set, b.fd, 0) == EPOLLIN && await(set, b.fd, 0) == EPOLLIN);
}

static void errors_come_unasked(void)
{
	int fd = device(), set = new_set();

	control(set, EPOLL_CTL_ADD, fd, 0);
	CHECK(await(set, fd, 0) == EPOLLERR);
	control(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET);
	CHECK(await(set, fd, 5000) == EPOLLERR);
	CHECK(await(set, fd, 20) == 0);
}

static void a_port_that_is_bound_later_is_heard(void)
{
	struct port a = open_port("vale0:a", 0), b;
	int set = new_set();

	memset(&b, 0, sizeof(b));
	b.fd = device();
	control(set, EPOLL_CTL_ADD, b.fd, EPOLLIN | EPOLLET);
	CHECK(await(set, b.fd, 0) == EPOLLERR);
	b.reg.nr_mode = NR_REG_ALL_NIC;
	CHECK(request(b.fd, NETMAP_REQ_REGISTER, "vale0:b", &b.reg, NULL) == 0);
	map_port(&b);
	send_frame(&a, 60, 1);
	CHECK(await(set, b.fd, 5000) == EPOLLIN);
}

/* ---- sets in sets ---- */

static int is_readable(int fd, int timeout)
{
	struct pollfd place = { fd, POLLIN, 0 };
	int count = poll(&place, 1, timeout);

	CHECK(count == 0 || place.revents == POLLIN);
	return count;
}

static int is_selected(int fd, int ms)
{
	struct timeval time = { ms / 1000, ms % 1000 * 1000 };
	fd_set set;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	return select(fd + 1, &set, NULL, NULL, &time);
}

/* A set is readable when one of its members is ready; looking in vain settles what is not. */
static void nested(struct port *a, struct port *b, int inner, int outer, int outermost)
{
	int i;

	for (i = 0; i < 5; i++) {
		while (await(outermost, outer, 0)) {
			CHECK(await(outer, inner, 5000) == EPOLLIN);
			CHECK(await(inner, b->fd, 0) == 0);
		}
		CHECK(!is_readable(inner, 0) && !is_readable(outer, 20));
		CHECK(!is_selected(inner, 0) && !is_selected(outermost, 0));
		send_frame(a, 60, i);
		switch (i) {
		case 0:
			CHECK(await(outermost, outer, 5000) == EPOLLIN);
			break;
		case 1:
			CHECK(is_readable(outermost, 5000));
			break;
		case 2:
			CHECK(is_selected(outermost, 5000) == 1);
			break;
		case 3:
			CHECK(is_readable(inner, 5000));
			break;
		}
		CHECK(await(outer, inner, 5000) == EPOLLIN);
		CHECK(await(inner, b->fd, 0) == EPOLLIN);
		/* The member is still ready, and so is the set. */
		CHECK(await(outermost, outer, 0) == EPOLLIN && is_readable(inner, 0));
		CHECK(await(inner, b->fd, 0) == EPOLLIN);
		CHECK(take_all(b) == 1);
		CHECK(await(inner, b->fd, 0) == 0);
	}
}

static void sets_in_sets(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int inner = new_set(), outer = new_set(), outermost = new_set();

	control(inner, EPOLL_CTL_ADD, b.fd, EPOLLIN);
	control(outer, EPOLL_CTL_ADD, inner, EPOLLIN);
	control(outermost, EPOLL_CTL_ADD, outer, EPOLLIN);
	nested(&a, &b, inner, outer, outermost);
}

static void sets_in_sets_from_the_outside(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int inner = new_set(), outer = new_set(), outermost = new_set();

	control(outermost, EPOLL_CTL_ADD, outer, EPOLLIN);
	control(outer, EPOLL_CTL_ADD, inner, EPOLLIN);
	control(inner, EPOLL_CTL_ADD, b.fd, EPOLLIN);
	nested(&a, &b, inner, outer, outermost);
}

static void a_set_beside_a_port_in_a_poll(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0),
		c = open_port("vale0:c", 0);
	struct pollfd places[2] = { { c.fd, POLLIN, 0 }, { 0, POLLIN, 0 } };
	int inner = new_set(), i;

	control(inner, EPOLL_CTL_ADD, b.fd, EPOLLIN);
	places[1].fd = inner;
	while (is_readable(inner, 0))
		CHECK(await(inner, b.fd, 0) == 0);
	CHECK(poll(places, 2, 20) == 0);
	send_frame(&a, 60, 1);
	/* Both get it, one before the other. */
	for (i = 0; poll(places, 2, 5000) < 2; i++)
		CHECK(i < 5000 && usleep(1000) == 0);
	CHECK(places[0].revents == POLLIN && places[1].revents == POLLIN);
}

/* ---- what comes and goes ---- */

static void members_come_and_go(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int set = new_set(), pipes[2], copy, i;

	CHECK(pipe(pipes) == 0);
	control(set, EPOLL_CTL_ADD, pipes[0], EPOLLIN);
	for (i = 0; i < 50; i++) {
		control(set, EPOLL_CTL_ADD, b.fd, EPOLLIN);
		send_frame(&a, 60, 1);
		CHECK(await(set, b.fd, 5000) == EPOLLIN);
		CHECK(epoll_ctl(set, EPOLL_CTL_DEL, b.fd, NULL) == 0);
		CHECK(await(set, b.fd, 0) == 0);
		take_all(&b);
	}
	/* A copy is a member of its own. */
	copy = dup(b.fd);
	CHECK(copy >= 0);
	control(set, EPOLL_CTL_ADD, b.fd, EPOLLIN);
	control(set, EPOLL_CTL_ADD, copy, EPOLLIN);
	close(b.fd);
	send_frame(&a, 60, 1);
	CHECK(await(set, copy, 5000) == EPOLLIN);
	close(copy);
	CHECK(await(set, 0, 20) == 0);
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(await(set, pipes[0], 0) == EPOLLIN);
	close(set);
	close(pipes[0]);
	close(pipes[1]);
}

static void *add_later(void *argument)
{
	int *fds = argument;

	usleep(50000);
	control(fds[0], EPOLL_CTL_ADD, fds[1], EPOLLIN);
	return NULL;
}

static void who_sleeps_hears_of_new_members(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0),
		c = open_port("vale0:c", 0);
	int set = new_set(), fds[2] = { set, b.fd };
	pthread_t thread;
	long start = now_ms();

	control(set, EPOLL_CTL_ADD, c.fd, EPOLLOUT | EPOLLET);
	CHECK(await(set, c.fd, 0) == EPOLLOUT);
	send_frame(&a, 60, 1);
	CHECK(pthread_create(&thread, NULL, add_later, fds) == 0);
	CHECK(await(set, b.fd, 5000) == EPOLLIN);
	CHECK(now_ms() - start < 400);
	CHECK(pthread_join(thread, NULL) == 0);
}

/* ---- threads ---- */

#define FRAMES 20000
static struct port sender, receiver;
static int shared_set, stop_event;
static unsigned int taken, reports;

/* Sends, but never more than the receiver's ring holds. */
static void *send_many(void *unused)
{
	unsigned int sent = 0, room = receiver.rx->num_slots / 2;

	while (sent < FRAMES) {
		while (nm_ring_space(sender.tx) && sent < FRAMES &&
		       sent - __atomic_load_n(&taken, __ATOMIC_ACQUIRE) < room) {
			put_frame(&sender, 60, 1);
			sent++;
		}
		CHECK(ioctl(sender.fd, NIOCTXSYNC, NULL) == 0);
		if (sent % 7 == 0)
			usleep(50);
	}
	return unused;
}

static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;

/* A worker of a runtime: waits on the shared set, works on what is ready. */
static void *work(void *argument)
{
	uint32_t rearm = *(uint32_t *)argument;
	struct epoll_event got[4];
	int count, i;

	for (;;) {
		count = epoll_wait(shared_set, got, 4, 10000);
		CHECK(count > 0);
		for (i = 0; i < count; i++) {
			if (got[i].data.u64 == 0x1000000000ULL + (uint32_t)stop_event)
				return NULL;
			__atomic_fetch_add(&reports, 1, __ATOMIC_RELAXED);
			pthread_mutex_lock(&ring_lock);
			count = drain(&receiver);
			if (__atomic_add_fetch(&taken, (unsigned int)count, __ATOMIC_RELEASE) == FRAMES)
				CHECK(eventfd_write(stop_event, 1) == 0);
			pthread_mutex_unlock(&ring_lock);
			if (rearm)
				control(shared_set, EPOLL_CTL_MOD, receiver.fd, rearm);
			break;
		}
	}
}

static void workers(uint32_t events, uint32_t rearm, int count)
{
	pthread_t threads[4], other;
	int i;

	taken = reports = 0;
	sender = open_port("vale0:a", 0);
	receiver = open_port("vale0:b", 0);
	shared_set = new_set();
	stop_event = eventfd(0, 0);
	control(shared_set, EPOLL_CTL_ADD, stop_event, EPOLLIN);
	control(shared_set, EPOLL_CTL_ADD, receiver.fd, events);
	for (i = 0; i < count; i++)
		CHECK(pthread_create(&threads[i], NULL, work, &rearm) == 0);
	CHECK(pthread_create(&other, NULL, send_many, NULL) == 0);
	for (i = 0; i < count; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(pthread_join(other, NULL) == 0);
	CHECK(taken == FRAMES);
}

static void one_thread_on_edges(void)
{
	workers(EPOLLIN | EPOLLET, 0, 1);
}

static void four_threads_on_edges(void)
{
	workers(EPOLLIN | EPOLLET, 0, 4);
}

static void four_threads_on_levels(void)
{
	workers(EPOLLIN, 0, 4);
}

static void four_threads_on_single_shots(void)
{
	uint32_t once = EPOLLIN | EPOLLONESHOT;

	workers(once, once, 4);
}

static void *shoot(void *argument)
{
	int *count = argument;
	struct epoll_event got;

	if (epoll_wait(shared_set, &got, 1, 300) == 1)
		__atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void one_report_is_one_threads(void)
{
	static const uint32_t kinds[] = { EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT };
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	pthread_t threads[4];
	int i, kind, count;

	for (kind = 0; kind < 2; kind++) {
		shared_set = new_set();
		count = 0;
		control(shared_set, EPOLL_CTL_ADD, b.fd, kinds[kind]);
		for (i = 0; i < 4; i++)
			CHECK(pthread_create(&threads[i], NULL, shoot, &count) == 0);
		usleep(30000);
		send_frame(&a, 60, 1);
		for (i = 0; i < 4; i++)
			CHECK(pthread_join(threads[i], NULL) == 0);
		CHECK(count == 1);
		take_all(&b);
		CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	}
}

/* ---- children ---- */

static void a_child_waits_on_the_set_it_was_born_with(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int set = new_set(), i;
	pid_t pid;

	control(set, EPOLL_CTL_ADD, b.fd, EPOLLIN | EPOLLET);
	CHECK(await(set, b.fd, 10) == 0);
	pid = fork();
	if (pid == 0) {
		for (i = 0; i < 20; i++) {
			CHECK(await(set, b.fd, 5000) == EPOLLIN);
			CHECK(drain(&b) >= 1);
			CHECK(write(1, "", 0) == 0);
		}
		_exit(0);
	}
	for (i = 0; i < 500 && waitpid(pid, NULL, WNOHANG) == 0; i++) {
		send_frame(&a, 60, 1);
		usleep(10000);
	}
	CHECK(i < 500);
}

static void parent_and_child_have_their_own_edges(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int go[2], set;
	pid_t pid;
	char byte;

	CHECK(pipe(go) == 0);
	pid = fork();
	if (pid == 0) {
		set = new_set();
		control(set, EPOLL_CTL_ADD, b.fd, EPOLLIN | EPOLLET);
		CHECK(write(go[1], "x", 1) == 1);
		CHECK(await(set, b.fd, 5000) == EPOLLIN);
		CHECK(await(set, b.fd, 20) == 0);
		_exit(0);
	}
	CHECK(read(go[0], &byte, 1) == 1);
	set = new_set();
	control(set, EPOLL_CTL_ADD, b.fd, EPOLLIN | EPOLLET);
	send_frame(&a, 60, 1);
	CHECK(await(set, b.fd, 5000) == EPOLLIN);
	CHECK(await(set, b.fd, 20) == 0);
	expect_child(pid);
}

static const struct test tests[] = {
	TEST(an_edge_is_reported_once),
	TEST(an_edge_that_a_sync_has_found_counts),
	TEST(room_is_an_edge_too),
	TEST(a_single_shot_is_one),
	TEST(errors_come_unasked),
	TEST(a_port_that_is_bound_later_is_heard),
	TEST(sets_in_sets),
	TEST(sets_in_sets_from_the_outside),
	TEST(a_set_beside_a_port_in_a_poll),
	TEST(io_uring_polls_sets),
	TEST(members_come_and_go),
	TEST(who_sleeps_hears_of_new_members),
	TEST(one_thread_on_edges),
	TEST(four_threads_on_edges),
	TEST(four_threads_on_levels),
	TEST(four_threads_on_single_shots),
	TEST(one_report_is_one_threads),
	TEST(a_child_waits_on_the_set_it_was_born_with),
	TEST(parent_and_child_have_their_own_edges),
};

MAIN(tests)
