// SPDX-License-Identifier: MIT OR Apache-2.0
/* Rings, syncs, and waiting for them: poll, select, epoll, threads. */

#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>

static void tail_moves_in_syncs_only(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int i;

	send_frame(&a, 60, 1);
	usleep(20000);
	CHECK(nm_ring_empty(b.rx));
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	CHECK(nm_ring_space(b.rx) == 1);
	CHECK(b.rx->ts.tv_sec > 0);
	expect_frame(&b, 60, 1);
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	CHECK(nm_ring_empty(b.rx));
	for (i = 0; i < 3000; i++) { /* around the ring */
		send_frame(&a, 60 + i % 1000, i % 128);
		expect_frame(&b, 60 + i % 1000, i % 128);
	}
}

static void readiness_follows_cur(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int come;

	CHECK(poll_one(b.fd, POLLIN, 0, &come) == 0 && come == 0);
	CHECK(poll_one(b.fd, POLLIN | POLLOUT, 0, &come) == 1 && come == POLLOUT);
	CHECK(poll_one(b.fd, POLLOUT | POLLWRNORM, 0, &come) == 1);
	CHECK(come == (POLLOUT | POLLWRNORM));
	send_frame(&a, 60, 1);
	CHECK(poll_one(b.fd, POLLIN, 5000, &come) == 1 && come == POLLIN);
	CHECK(poll_one(b.fd, POLLIN, 5000, &come) == 1 && come == POLLIN);
	b.rx->cur = b.rx->tail; /* seen and kept: wait for more */
	CHECK(poll_one(b.fd, POLLIN, 20, &come) == 0);
	CHECK(nm_ring_space(b.rx) == 1);
	send_frame(&a, 61, 2);
	CHECK(poll_one(b.fd, POLLIN | POLLRDNORM, 5000, &come) == 1);
	CHECK(come == (POLLIN | POLLRDNORM) && nm_ring_space(b.rx) == 2);
	b.rx->cur = b.rx->head;
	expect_frame(&b, 60, 1);
	expect_frame(&b, 61, 2);
}

static void polls_send(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct port quiet = open_port("vale0:q", NR_NO_TX_POLL);
	int come;

	put_frame(&a, 60, 1);
	CHECK(poll_one(a.fd, POLLIN, 0, &come) == 0);
	expect_frame(&b, 60, 1);
	put_frame(&quiet, 60, 2);
	CHECK(poll_one(quiet.fd, POLLIN, 50, &come) == 0 || come == POLLIN);
	CHECK(poll_one(b.fd, POLLIN, 50, &come) == 0);
	CHECK(poll_one(quiet.fd, POLLOUT, 0, &come) == 1 && come == POLLOUT);
	expect_frame(&b, 60, 2);
}

static void bad_rings_start_over(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	int come;

	CHECK(poll_one(device(), POLLIN, 1000, &come) == 1 && come == POLLERR);
	b.rx->head = 5000;
	CHECK(poll_one(b.fd, POLLIN, 1000, &come) == 1 && come & POLLERR);
	CHECK(b.rx->head == 0 && b.rx->cur == 0);
	CHECK(poll_one(b.fd, POLLIN, 0, &come) == 0);
	a.tx->cur = 700, a.tx->head = 800;
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(a.tx->head == 0 && a.tx->cur == 0 && nm_ring_space(a.tx) == 1023);
	send_frame(&a, 60, 9);
	expect_frame(&b, 60, 9);
}

static void no_events_no_wait(void)
{
	struct port a = open_port("vale0:a", 0);
	struct pollfd places[3] = { { -1, POLLIN, 0 }, { a.fd, 0, 7 }, { a.fd, POLLIN, 7 } };
	long begin = now_ms();
	int come;

	CHECK(poll(places, 3, 30) == 0);
	CHECK(now_ms() - begin >= 29 && now_ms() - begin < 2000);
	CHECK(places[0].revents == 0 && places[1].revents == 0 && places[2].revents == 0);
	CHECK(poll_one(a.fd, POLLIN | POLLOUT, -1, &come) == 1);
	errno = 77;
	CHECK(poll_one(a.fd, POLLIN, 0, &come) == 0 && errno == 77);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && errno == 77);
}

static void others_are_not_disturbed(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct pollfd many[100];
	int pipes[2], i;
	char byte;

	CHECK(pipe(pipes) == 0);
	for (i = 0; i < 100; i++)
		many[i] = (struct pollfd){ i == 50 ? b.fd : pipes[0], POLLIN, 0 };
	CHECK(poll(many, 100, 10) == 0);
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(poll(many, 100, 5000) == 99 && many[0].revents == POLLIN && !many[50].revents);
	send_frame(&a, 60, 3);
	usleep(20000);
	CHECK(poll(many, 100, 5000) == 100 && many[50].revents == POLLIN);
	CHECK(read(pipes[0], &byte, 1) == 1);
	CHECK(poll(many, 100, 5000) == 1 && many[50].revents == POLLIN && !many[99].revents);
	CHECK(many[50].fd == b.fd && many[50].events == POLLIN);
	many[3].fd = 999;
	CHECK(poll(many, 100, 5000) == 2 && many[3].revents == POLLNVAL);
}

/* Frames are pending until the receiver has released them; a ring of them, then all is shown. */
static void pipes_count_what_is_not_released(void)
{
	struct port a = open_port("vale0:p{1", 0), b = open_port("vale0:p}1", 0);
	uint32_t slots = a.tx->num_slots, sent = 0, i, come;

	for (i = 0; i < 10; i++)
		put_frame(&a, 60, 1);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	for (i = 0; i < 7; i++)
		expect_frame(&b, 60, 1);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(nm_ring_space(a.tx) >= slots - 1 - 10 && nm_ring_space(a.tx) <= slots - 1 - 3);
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(nm_ring_space(a.tx) == slots - 1 - 3 && nm_tx_pending(a.tx));
	for (i = 0; i < 3; i++)
		expect_frame(&b, 60, 1);
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(nm_ring_space(a.tx) == slots - 1 && !nm_tx_pending(a.tx));
	/* Two rings' worth, all of which arrive. */
	while (poll_one(a.fd, POLLOUT, 200, (int *)&come) == 1)
		for (; nm_ring_space(a.tx); sent++)
			put_frame(&a, 60, 2);
	CHECK(sent > slots && sent <= 2 * slots);
	for (i = 0; i < sent; i++)
		expect_frame(&b, 60, 2);
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0 && nm_ring_empty(b.rx));
	CHECK(poll_one(a.fd, POLLOUT, 5000, (int *)&come) == 1);
}

static void selects(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct timeval time = { 0, 30000 };
	struct timespec second = { 1, 0 };
	fd_set in, out;
	int pipes[2], come;

	CHECK(pipe(pipes) == 0);
	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(b.fd, &in);
	FD_SET(pipes[0], &in);
	CHECK(select(100, &in, NULL, NULL, &time) == 0);
	CHECK(!FD_ISSET(b.fd, &in) && time.tv_sec == 0 && time.tv_usec == 0);
	send_frame(&a, 60, 4);
	FD_SET(b.fd, &in);
	FD_SET(b.fd, &out);
	FD_SET(pipes[0], &in);
	time.tv_sec = 5;
	CHECK(poll_one(b.fd, POLLIN, 5000, &come) == 1 && come == POLLIN);
	CHECK(select(b.fd + 1, &in, &out, NULL, &time) == 2);
	CHECK(FD_ISSET(b.fd, &in) && FD_ISSET(b.fd, &out) && !FD_ISSET(pipes[0], &in));
	CHECK(time.tv_sec < 5);
	expect_frame(&b, 60, 4);
	CHECK(write(pipes[1], "x", 1) == 1);
	FD_SET(b.fd, &in);
	FD_SET(pipes[0], &in);
	CHECK(pselect(100, &in, NULL, NULL, &second, NULL) == 1 && FD_ISSET(pipes[0], &in));
	FD_SET(b.fd, &in);
	FD_SET(77, &in);
	FAILS(EBADF, select(100, &in, NULL, NULL, &time));
}

static void epolls(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	struct epoll_event event = { EPOLLIN, { .u64 = 0x1234567890 } }, got[4];
	int set = epoll_create1(0), pipes[2];

	CHECK(set >= 0 && pipe(pipes) == 0);
	FAILS(ENOENT, epoll_ctl(set, EPOLL_CTL_DEL, b.fd, NULL));
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, b.fd, &event) == 0);
	FAILS(EEXIST, epoll_ctl(set, EPOLL_CTL_ADD, b.fd, &event));
	FAILS(EINVAL, epoll_ctl(pipes[0], EPOLL_CTL_ADD, b.fd, &event));
	event.data.u64 = 7;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &event) == 0);
	CHECK(epoll_wait(set, got, 4, 20) == 0);
	send_frame(&a, 60, 5);
	CHECK(epoll_wait(set, got, 4, 5000) == 1);
	CHECK(got[0].events == EPOLLIN && got[0].data.u64 == 0x1234567890);
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(epoll_wait(set, got, 4, 5000) == 2);
	CHECK(epoll_wait(set, got, 1, 5000) == 1);
	expect_frame(&b, 60, 5);
	CHECK(epoll_pwait(set, got, 4, 5000, NULL) == 1 && got[0].data.u64 == 7);
	event.events = EPOLLOUT | EPOLLONESHOT;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, b.fd, &event) == 0);
	CHECK(epoll_wait(set, got, 4, 5000) == 2);
	CHECK(epoll_wait(set, got, 4, 5000) == 1 && got[0].events == EPOLLIN);
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, b.fd, &event) == 0);
	CHECK(epoll_wait(set, got, 4, 5000) == 2);
	event.events = EPOLLIN;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, b.fd, &event) == 0);
	close(b.fd);
	CHECK(epoll_wait(set, got, 4, 100) == 1 && got[0].data.u64 == 7);
	FAILS(EINVAL, epoll_wait(set, got, 0, 0));
}

static void *send_later(void *port)
{
	usleep(100000);
	send_frame(port, 60, 6);
	return NULL;
}

static void sleepers_are_woken(void)
{
	struct port a = open_port("vale0:a", 0), b = open_port("vale0:b", 0);
	pthread_t thread;
	long begin = now_ms();
	int come;

	CHECK(pthread_create(&thread, NULL, send_later, &a) == 0);
	CHECK(poll_one(b.fd, POLLIN, -1, &come) == 1 && come == POLLIN);
	CHECK(now_ms() - begin >= 90 && now_ms() - begin < 400);
	CHECK(pthread_join(thread, NULL) == 0);
}

static volatile sig_atomic_t rang;

static void ring(int number)
{
	rang = number;
}

static void signals_interrupt(void)
{
	struct sigaction action = { .sa_handler = ring };
	struct port a = open_port("vale0:a", 0);
	struct timespec long_time = { 20, 0 };
	struct pollfd place = { a.fd, POLLIN, 0 };
	sigset_t all, none;

	sigaction(SIGALRM, &action, NULL);
	alarm(1);
	errno = 0;
	CHECK(poll(&place, 1, 20000) == -1 && errno == EINTR && rang == SIGALRM);
	rang = 0;
	sigfillset(&all), sigemptyset(&none);
	sigprocmask(SIG_BLOCK, &all, NULL);
	kill(getpid(), SIGALRM);
	CHECK(!rang);
	CHECK(ppoll(&place, 1, &long_time, &none) == -1 && errno == EINTR && rang == SIGALRM);
}

static struct port shared;

static void *wait_for_one(void *events)
{
	int come;

	CHECK(poll_one(shared.fd, (int)(intptr_t)events, 10000, &come) == 1);
	return NULL;
}

static void threads_share_a_descriptor(void)
{
	struct port a = open_port("vale0:a", 0);
	pthread_t threads[4];
	int i, round;

	shared = open_port("vale0:b", 0);
	for (round = 0; round < 20; round++) {
		for (i = 0; i < 4; i++)
			CHECK(!pthread_create(&threads[i], NULL, wait_for_one, (void *)POLLIN));
		usleep(1000 * (round % 3));
		send_frame(&a, 60, round);
		for (i = 0; i < 4; i++)
			CHECK(pthread_join(threads[i], NULL) == 0);
		expect_frame(&shared, 60, round);
	}
}

static void *close_later(void *fd)
{
	usleep(50000);
	close(*(int *)fd);
	return NULL;
}

static void a_close_disturbs_no_other_thread(void)
{
	struct port a = open_port("vale0:a", 0);
	pthread_t thread;
	int come;

	CHECK(pthread_create(&thread, NULL, close_later, &a.fd) == 0);
	poll_one(a.fd, POLLIN, 300, &come);
	CHECK(pthread_join(thread, NULL) == 0);
	FAILS(EBADF, ioctl(a.fd, NIOCTXSYNC, NULL));
	a = open_port("vale0:a", NR_EXCLUSIVE);
}

static void threads_are_cancelled(void)
{
	pthread_t thread;
	void *result;

	shared = open_port("vale0:b", 0);
	CHECK(!pthread_create(&thread, NULL, wait_for_one, (void *)POLLIN));
	usleep(100000);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
}

static const struct test tests[] = {
	TEST(tail_moves_in_syncs_only), TEST(readiness_follows_cur), TEST(polls_send),
	TEST(bad_rings_start_over), TEST(no_events_no_wait), TEST(others_are_not_disturbed),
	TEST(pipes_count_what_is_not_released), TEST(selects), TEST(epolls),
	TEST(sleepers_are_woken), TEST(signals_interrupt),
	TEST(threads_share_a_descriptor), TEST(a_close_disturbs_no_other_thread),
	TEST(threads_are_cancelled),
};
MAIN(tests)
