/*
 * csb.c - CSB mode and the sync loop: indexes in the program's own memory.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "check.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

/* A port whose indexes go through arrays of ours, and what its loop is asked for. */
struct csb_port {
	struct port port;
	struct nm_csb_atok *atok; /* transmit, receive */
	struct nm_csb_ktoa *ktoa;
	pthread_t thread;
	uint32_t sleep_us;
	int ended; /* what START returned, as an errno */
	struct nmreq_option *options;
};

static struct nmreq_opt_csb csb_option(struct csb_port *csb)
{
	struct nmreq_opt_csb option;
	char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	csb->atok = (void *)memory;
	csb->ktoa = (void *)(memory + 2048);
	memset(&option, 0, sizeof(option));
	option.nro_opt.nro_reqtype = NETMAP_REQ_OPT_CSB;
	option.csb_atok = (uintptr_t)csb->atok;
	option.csb_ktoa = (uintptr_t)csb->ktoa;
	return option;
}

static struct csb_port open_csb_as(const char *name, struct nmreq_register reg)
{
	struct csb_port csb;
	struct nmreq_opt_csb option;

	memset(&csb, 0, sizeof(csb));
	option = csb_option(&csb);
	csb.port = open_as(name, reg, &option.nro_opt);
	return csb;
}

static struct csb_port open_csb(const char *name)
{
	struct nmreq_register reg = { .nr_mode = NR_REG_ALL_NIC, .nr_flags = NR_EXCLUSIVE };

	return open_csb_as(name, reg);
}

static int start(struct csb_port *csb)
{
	struct nmreq_sync_kloop_start body = { csb->sleep_us, 0 };

	return request(csb->port.fd, NETMAP_REQ_SYNC_KLOOP_START, "", &body, csb->options);
}

static int stop(struct csb_port *csb)
{
	return request(csb->port.fd, NETMAP_REQ_SYNC_KLOOP_STOP, "", NULL, NULL);
}

static void *serve(void *argument)
{
	struct csb_port *csb = argument;

	csb->ended = start(csb) == 0 ? 0 : errno;
	return NULL;
}

static void begin(struct csb_port *csb)
{
	CHECK(pthread_create(&csb->thread, NULL, serve, csb) == 0);
}

static void end(struct csb_port *csb, int with)
{
	CHECK(stop(csb) == 0);
	CHECK(pthread_join(csb->thread, NULL) == 0);
	CHECK(csb->ended == with);
}

static void begin_both(struct csb_port *a, struct csb_port *b)
{
	begin(a);
	begin(b);
}

static void end_both(struct csb_port *a, struct csb_port *b)
{
	end(a, 0);
	end(b, 0);
}

#define LOAD(word) __atomic_load_n(&(word), __ATOMIC_ACQUIRE)
#define STORE(word, value) __atomic_store_n(&(word), value, __ATOMIC_RELEASE)
#define FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)

static int prev(struct netmap_ring *ring, uint32_t i)
{
	return i ? i - 1 : ring->num_slots - 1;
}

/* Puts a frame into the transmit slot at *head, and hands it over; rings if asked for. */
static void csb_send(struct csb_port *csb, uint32_t *head, int fill, int ioeventfd)
{
	struct netmap_ring *ring = csb->port.tx;
	struct netmap_slot *slot = &ring->slot[*head];
	char *frame = NETMAP_BUF(ring, slot->buf_idx);

	memset(frame, fill, 60);
	memset(frame, 0xff, 6);
	memcpy(frame + 6, "\2\0\0\0\0\7", 6);
	slot->len = 60;
	slot->flags = 0;
	*head = nm_ring_next(ring, *head);
	STORE(csb->atok[0].cur, *head);
	STORE(csb->atok[0].head, *head);
	FENCE();
	if (ioeventfd >= 0 && LOAD(csb->ktoa[0].kern_need_kick))
		CHECK(eventfd_write(ioeventfd, 1) == 0);
}

/* Waits for a frame in the receive ring, by looking or on an eventfd. */
static void csb_await(struct csb_port *csb, uint32_t head, int irqfd)
{
	long end = now_ms() + 5000;
	eventfd_t count;

	while (LOAD(csb->ktoa[1].hwtail) == head) {
		CHECK(now_ms() < end);
		if (irqfd < 0) {
			usleep(100);
			continue;
		}
		STORE(csb->atok[1].appl_need_kick, 1);
		FENCE();
		if (LOAD(csb->ktoa[1].hwtail) == head) {
			struct pollfd place = { irqfd, POLLIN, 0 };

			CHECK(poll(&place, 1, 5000) == 1);
			CHECK(eventfd_read(irqfd, &count) == 0);
		}
	}
}

static void csb_take(struct csb_port *csb, uint32_t *head, int fill, int irqfd, int ioeventfd)
{
	struct netmap_ring *ring = csb->port.rx;
	struct netmap_slot *slot = &ring->slot[*head];

	csb_await(csb, *head, irqfd);
	CHECK(slot->len == 60);
	CHECK(NETMAP_BUF(ring, slot->buf_idx)[59] == (char)fill);
	*head = nm_ring_next(ring, *head);
	STORE(csb->atok[1].cur, *head);
	STORE(csb->atok[1].head, *head);
	FENCE();
	if (ioeventfd >= 0 && LOAD(csb->ktoa[1].kern_need_kick))
		CHECK(eventfd_write(ioeventfd, 1) == 0);
}

/* ---- the mode ---- */

static void csb_begins_with_where_the_rings_stand(void)
{
	struct csb_port csb = open_csb("vale0:a");
	int come;

	CHECK(csb.atok[0].head == 0 && csb.atok[0].cur == 0);
	CHECK(csb.atok[0].appl_need_kick == 1 && csb.atok[0].sync_flags == 1);
	CHECK(csb.ktoa[0].hwcur == 0 && csb.ktoa[0].hwtail == csb.port.tx->num_slots - 1);
	CHECK(csb.ktoa[0].kern_need_kick == 1);
	CHECK(csb.ktoa[1].hwcur == 0 && csb.ktoa[1].hwtail == 0);
	FAILS(EBUSY, ioctl(csb.port.fd, NIOCTXSYNC, NULL));
	FAILS(EBUSY, ioctl(csb.port.fd, NIOCRXSYNC, NULL));
	CHECK(poll_one(csb.port.fd, POLLIN | POLLOUT, 1000, &come) == 1 && come == POLLERR);
}

static void csb_is_enabled_later_too(void)
{
	struct csb_port csb;
	struct nmreq_opt_csb option;
	int come;

	memset(&csb, 0, sizeof(csb));
	option = csb_option(&csb);
	csb.port = open_port("vale0:a", NR_EXCLUSIVE);
	put_frame(&csb.port, 60, 1);
	CHECK(ioctl(csb.port.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(request(csb.port.fd, NETMAP_REQ_CSB_ENABLE, "", NULL, &option.nro_opt) == 0);
	CHECK(option.nro_opt.nro_status == 0);
	CHECK(csb.atok[0].head == 1 && csb.atok[0].cur == 1);
	CHECK(poll_one(csb.port.fd, POLLIN, 0, &come) == 1 && come == POLLERR);
	/* And once more, elsewhere. */
	option = csb_option(&csb);
	CHECK(request(csb.port.fd, NETMAP_REQ_CSB_ENABLE, "", NULL, &option.nro_opt) == 0);
	CHECK(csb.atok[0].head == 1);
}

static void csb_needs_exclusive_rings(void)
{
	struct csb_port csb;
	struct nmreq_opt_csb option;
	struct port port;

	memset(&csb, 0, sizeof(csb));
	option = csb_option(&csb);
	port = open_port("vale0:a", 0);
	FAILS(EINVAL, request(port.fd, NETMAP_REQ_CSB_ENABLE, "", NULL, &option.nro_opt));
	CHECK(option.nro_opt.nro_status == EINVAL);
	port.fd = device();
	FAILS(EINVAL, request(port.fd, NETMAP_REQ_REGISTER, "vale0:b", &port.reg, &option.nro_opt));
	CHECK(option.nro_opt.nro_status == EINVAL);
	/* Nothing was bound: it may be tried again. */
	CHECK(request(port.fd, NETMAP_REQ_REGISTER, "vale0:b", &port.reg, NULL) == 0);
}

static void csb_memory_is_looked_at(void)
{
	static const uint64_t bad[][2] = { { 0x10, 0x800 }, { 0x40, 0x80 }, { 0, 0 } };
	struct csb_port csb;
	struct nmreq_opt_csb option;
	struct port port = open_port("vale0:a", NR_EXCLUSIVE);
	char *locked = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t i;

	memset(&csb, 0, sizeof(csb));
	CHECK(locked != MAP_FAILED);
	for (i = 0; i < 3; i++) {
		option = csb_option(&csb);
		option.csb_atok = bad[i][0];
		option.csb_ktoa = bad[i][1];
		CHECK(request(port.fd, NETMAP_REQ_CSB_ENABLE, "", NULL, &option.nro_opt) == -1);
		CHECK(errno == (i ? EFAULT : EINVAL));
		CHECK(option.nro_opt.nro_status == (uint32_t)errno);
	}
	option = csb_option(&csb);
	option.csb_ktoa = (uintptr_t)locked;
	FAILS(EFAULT, request(port.fd, NETMAP_REQ_CSB_ENABLE, "", NULL, &option.nro_opt));
	CHECK(ioctl(port.fd, NIOCTXSYNC, NULL) == 0);
}

static void csb_without_a_port_is_nothing(void)
{
	struct csb_port csb;
	struct nmreq_opt_csb option;
	int fd = device();

	memset(&csb, 0, sizeof(csb));
	option = csb_option(&csb);
	CHECK(request(fd, NETMAP_REQ_CSB_ENABLE, "", NULL, &option.nro_opt) == 0);
	FAILS(EINVAL, request(fd, NETMAP_REQ_CSB_ENABLE, "", NULL, NULL));
	FAILS(ENXIO, ioctl(fd, NIOCTXSYNC, NULL));
	csb.port.fd = fd;
	FAILS(ENXIO, start(&csb));
	FAILS(ENXIO, stop(&csb));
}

/* ---- several rings ---- */

/* Opens with three transmit rings and two receive rings, and a CSB. */
static struct csb_port open_rings(uint32_t mode, uint16_t ring)
{
	struct nmreq_register reg = {
		.nr_mode = mode,
		.nr_ringid = ring,
		.nr_flags = NR_EXCLUSIVE,
		.nr_tx_rings = 3,
		.nr_rx_rings = 2,
	};
	struct csb_port csb = open_csb_as("vale0:a", reg);

	csb.sleep_us = 20;
	return csb;
}

static void entries_follow_the_rings(void)
{
	struct csb_port a = open_rings(NR_REG_ALL_NIC, 0);
	struct port b = open_port("vale0:b", 0);
	struct netmap_ring *ring = NETMAP_TXRING(a.port.nifp, 2);
	int i, come;

	for (i = 0; i < 6; i++) {
		CHECK(a.ktoa[i].hwtail == (i < 3 ? ring->num_slots - 1 : 0));
		CHECK(a.ktoa[i].kern_need_kick == (i < 5));
	}
	begin(&a);
	memset(NETMAP_BUF(ring, ring->slot[0].buf_idx), 0xff, 60);
	memcpy(NETMAP_BUF(ring, ring->slot[0].buf_idx) + 6, "\2\0\0\0\0\3", 6);
	ring->slot[0].len = 60;
	STORE(a.atok[2].cur, 1);
	STORE(a.atok[2].head, 1);
	CHECK(poll_one(b.fd, POLLIN, 5000, &come) == 1);
	send_frame(&b, 60, 4);
	for (i = 0; LOAD(a.ktoa[3].hwtail) != 1; i++) {
		CHECK(i < 5000);
		usleep(1000);
	}
	CHECK(a.ktoa[0].hwcur == 0 && a.ktoa[2].hwcur == 1);
	end(&a, 0);
}

static void one_ring_has_two_entries(void)
{
	struct csb_port a = open_rings(NR_REG_ONE_NIC, 1);

	CHECK(a.ktoa[0].hwtail == 1023 && a.ktoa[1].hwtail == 0);
	CHECK(a.ktoa[1].kern_need_kick == 1 && a.ktoa[2].kern_need_kick == 0);
}

/* ---- the loop ---- */

static void a_loop_needs_a_csb(void)
{
	struct csb_port csb;

	memset(&csb, 0, sizeof(csb));
	csb.port = open_port("vale0:a", NR_EXCLUSIVE);
	FAILS(EINVAL, start(&csb));
	csb.sleep_us = 1000001;
	FAILS(EINVAL, start(&csb));
	CHECK(stop(&csb) == 0);
}

static void a_loop_ends_when_it_is_stopped(void)
{
	struct csb_port csb = open_csb("vale0:a");
	uint32_t sleeps[] = { 0, 100, 1000000 };
	size_t i;

	for (i = 0; i < 3; i++) {
		csb.sleep_us = sleeps[i];
		begin(&csb);
		usleep(i == 1 ? 20000 : 0);
		end(&csb, 0);
	}
	/* Stopped before it began: it ends at once, and the next one runs. */
	CHECK(stop(&csb) == 0);
	CHECK(start(&csb) == 0);
	begin(&csb);
	usleep(1000);
	end(&csb, 0);
}

static void one_of_two_loops_wins(void)
{
	struct csb_port csb = open_csb("vale0:a");
	struct csb_port other = csb;
	long limit = now_ms() + 5000;

	csb.ended = other.ended = -1;
	begin(&csb);
	begin(&other);
	while (LOAD(csb.ended) == -1 && LOAD(other.ended) == -1)
		CHECK(now_ms() < limit);
	CHECK(LOAD(csb.ended) == EBUSY || LOAD(other.ended) == EBUSY);
	usleep(5000);
	CHECK(LOAD(csb.ended) == -1 || LOAD(other.ended) == -1);
	CHECK(stop(&csb) == 0);
	CHECK(pthread_join(csb.thread, NULL) == 0 && pthread_join(other.thread, NULL) == 0);
	CHECK(csb.ended + other.ended == EBUSY);
}

static void the_csb_stays_while_a_loop_runs(void)
{
	struct csb_port csb = open_csb("vale0:a");
	struct csb_port other = csb;
	struct nmreq_opt_csb option = csb_option(&other);
	long limit = now_ms() + 5000;

	csb.sleep_us = 10;
	begin(&csb);
	/* The loop is there when it has taken the request for kicks back. */
	while (LOAD(csb.ktoa[0].kern_need_kick))
		CHECK(now_ms() < limit);
	FAILS(EBUSY, request(csb.port.fd, NETMAP_REQ_CSB_ENABLE, "", NULL, &option.nro_opt));
	CHECK(option.nro_opt.nro_status == EBUSY);
	end(&csb, 0);
	CHECK(request(csb.port.fd, NETMAP_REQ_CSB_ENABLE, "", NULL, &option.nro_opt) == 0);
}

/* Frames between two loops, round both rings some times. */
static void exchange(struct csb_port *a, struct csb_port *b, int fds[4], uint32_t before)
{
	uint32_t sent = before % a->port.tx->num_slots, got = before % b->port.rx->num_slots;
	int i;

	for (i = 0; i < 3000; i++) {
		csb_send(a, &sent, i & 0x7f, fds[0]);
		csb_take(b, &got, i & 0x7f, fds[3], fds[2]);
	}
	/* The sender has its slots back. */
	for (i = 0; LOAD(a->ktoa[0].hwtail) != (uint32_t)prev(a->port.tx, sent); i++) {
		CHECK(i < 5000);
		usleep(1000);
	}
	CHECK(LOAD(a->ktoa[0].hwcur) == sent);
}

/* Exchanges frames while the sync loops of both ends run. */
static void converse(struct csb_port *a, struct csb_port *b, int fds[4], uint32_t before)
{
	begin_both(a, b);
	exchange(a, b, fds, before);
	end_both(a, b);
}

static void frames_go_through_loops_that_come_round(void)
{
	struct csb_port a = open_csb("vale0:a"), b = open_csb("vale0:b");
	int none[4] = { -1, -1, -1, -1 };

	a.sleep_us = b.sleep_us = 20;
	begin_both(&a, &b);
	exchange(&a, &b, none, 0);
	CHECK(LOAD(a.ktoa[0].kern_need_kick) == 0);
	end_both(&a, &b);
}

struct events {
	struct nmreq_opt_sync_kloop_eventfds option;
	struct {
		int32_t ioeventfd, irqfd;
	} pairs[3];
};

static struct events events(struct csb_port *csb, int rings)
{
	struct events events;
	int i;

	memset(&events, 0, sizeof(events));
	events.option.nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS;
	events.option.nro_opt.nro_size = sizeof(events.option) + 8 * (size_t)rings;
	for (i = 0; i < rings; i++) {
		events.pairs[i].ioeventfd = eventfd(0, EFD_NONBLOCK);
		events.pairs[i].irqfd = eventfd(0, 0);
		CHECK(events.pairs[i].ioeventfd >= 0 && events.pairs[i].irqfd >= 0);
	}
	csb->options = NULL;
	return events;
}

static void with_events(uint32_t mode)
{
	struct csb_port a = open_csb("vale0:a"), b = open_csb("vale0:b");
	struct events of_a = events(&a, 2), of_b = events(&b, 2);
	struct nmreq_opt_sync_kloop_mode modes[2];
	int fds[4];
	int i;

	memset(modes, 0, sizeof(modes));
	for (i = 0; i < 2; i++) {
		modes[i].nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_MODE;
		modes[i].nro_opt.nro_next = (uintptr_t)(i ? &of_b : &of_a);
		modes[i].mode = mode;
	}
	a.options = &modes[0].nro_opt;
	b.options = &modes[1].nro_opt;
	fds[0] = of_a.pairs[0].ioeventfd;
	fds[1] = of_a.pairs[0].irqfd;
	fds[2] = of_b.pairs[1].ioeventfd;
	fds[3] = of_b.pairs[1].irqfd;
	begin_both(&a, &b);
	exchange(&a, &b, fds, 0);
	if (mode & NM_OPT_SYNC_KLOOP_DIRECT_TX)
		CHECK(LOAD(a.ktoa[0].kern_need_kick) == 1);
	end_both(&a, &b);
	CHECK(of_a.option.nro_opt.nro_status == 0 && modes[0].nro_opt.nro_status == 0);
	close(a.port.fd);
	close(b.port.fd);
}

static void frames_go_through_loops_that_sleep(void)
{
	with_events(0);
}

static void frames_go_through_direct_loops(void)
{
	with_events(NM_OPT_SYNC_KLOOP_DIRECT_TX);
	with_events(NM_OPT_SYNC_KLOOP_DIRECT_RX);
	with_events(NM_OPT_SYNC_KLOOP_DIRECT_TX | NM_OPT_SYNC_KLOOP_DIRECT_RX);
}

static void without_an_ioeventfd_the_loop_comes_round(void)
{
	struct csb_port a = open_csb("vale0:a"), b = open_csb("vale0:b");
	struct events of_b = events(&b, 2);
	int fds[4] = { -1, -1, -1, of_b.pairs[1].irqfd };

	of_b.pairs[1].ioeventfd = -1;
	a.sleep_us = b.sleep_us = 20;
	b.options = &of_b.option.nro_opt;
	converse(&a, &b, fds, 0);
}

static void a_full_receiver_says_when_it_has_room(void)
{
	struct csb_port b = open_csb("vale0:b");
	struct port a = open_port("vale0:a", 0);
	struct events of_b = events(&b, 2);
	uint32_t got = 0, i, slots = b.port.rx->num_slots;
	long limit = now_ms() + 5000;

	b.options = &of_b.option.nro_opt;
	begin(&b);
	for (i = 0; i < slots - 1; i++)
		put_frame(&a, 60, 5);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	while (LOAD(b.ktoa[1].hwtail) != slots - 1 || !LOAD(b.ktoa[1].kern_need_kick))
		CHECK(now_ms() < limit);
	for (i = 0; i < slots - 1; i++)
		csb_take(&b, &got, 5, of_b.pairs[1].irqfd, of_b.pairs[1].ioeventfd);
	/* Frames may be lost until the loop has passed the room on, but not for ever. */
	while (LOAD(b.ktoa[1].hwtail) == got) {
		CHECK(now_ms() < limit);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		if (nm_ring_space(a.tx))
			send_frame(&a, 60, 6);
		usleep(5000);
	}
	csb_take(&b, &got, 6, of_b.pairs[1].irqfd, of_b.pairs[1].ioeventfd);
	end(&b, 0);
}

static void events_are_looked_at(void)
{
	struct csb_port csb = open_csb("vale0:a");
	struct events wrong = events(&csb, 3);
	struct nmreq_opt_sync_kloop_mode mode;

	csb.options = &wrong.option.nro_opt;
	FAILS(EINVAL, start(&csb));
	CHECK(wrong.option.nro_opt.nro_status == EINVAL);
	wrong.option.nro_opt.nro_size -= 8;
	wrong.pairs[1].ioeventfd = 1000000;
	FAILS(EBADF, start(&csb));
	wrong.pairs[1].ioeventfd = csb.port.fd;
	FAILS(EINVAL, start(&csb));
	wrong.pairs[1].ioeventfd = -1;
	memset(&mode, 0, sizeof(mode));
	mode.nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_MODE;
	mode.nro_opt.nro_next = (uintptr_t)&wrong;
	mode.mode = NM_OPT_SYNC_KLOOP_DIRECT_RX;
	csb.options = &mode.nro_opt;
	FAILS(EINVAL, start(&csb));
	CHECK(mode.nro_opt.nro_status == 0 && wrong.option.nro_opt.nro_status == EINVAL);
	mode.mode = 4;
	FAILS(EINVAL, start(&csb));
	CHECK(mode.nro_opt.nro_status == EINVAL);
	/* None of these is running. */
	csb.options = NULL;
	begin(&csb);
	usleep(1000);
	end(&csb, 0);
}

static void nonsense_in_the_csb_stops_the_ring_until_it_is_gone(void)
{
	struct csb_port a = open_csb("vale0:a"), b = open_csb("vale0:b");
	uint32_t sent = 0, got = 0;

	a.sleep_us = b.sleep_us = 20;
	begin_both(&a, &b);
	STORE(a.atok[0].head, 0xffffffff);
	STORE(b.atok[1].head, 5);
	usleep(5000);
	STORE(b.atok[1].head, 0);
	STORE(a.atok[0].head, 0);
	csb_send(&a, &sent, 3, -1);
	csb_take(&b, &got, 3, -1, -1);
	end_both(&a, &b);
}

static void a_loop_of_pipes(void)
{
	struct csb_port a = open_csb("vale0:p{1"), b = open_csb("vale0:p}1");
	struct events of_a = events(&a, 2), of_b = events(&b, 2);
	int fds[4] = { of_a.pairs[0].ioeventfd, -1, of_b.pairs[1].ioeventfd,
		of_b.pairs[1].irqfd };

	a.options = &of_a.option.nro_opt;
	b.options = &of_b.option.nro_opt;
	converse(&a, &b, fds, 0);
}

static void a_child_runs_a_loop_of_its_own(void)
{
	struct csb_port a = open_csb("vale0:a"), b = open_csb("vale0:b");
	int none[4] = { -1, -1, -1, -1 };
	pid_t pid;

	struct events of_a = events(&a, 2), of_b = events(&b, 2);
	int fds[4] = { of_a.pairs[0].ioeventfd, -1, of_b.pairs[1].ioeventfd,
		of_b.pairs[1].irqfd };

	a.sleep_us = b.sleep_us = 20;
	pid = fork();
	if (pid == 0) {
		converse(&a, &b, none, 0);
		a.options = &of_a.option.nro_opt;
		b.options = &of_b.option.nro_opt;
		converse(&a, &b, fds, 3000);
		_exit(0);
	}
	expect_child(pid);
}

static void a_loop_ends_with_its_descriptor(void)
{
	struct csb_port a = open_csb("vale0:a");
	struct events of_a = events(&a, 2);
	struct port again;
	int fd = a.port.fd;

	a.options = &of_a.option.nro_opt;
	begin(&a);
	usleep(20000);
	close(fd);
	CHECK(pthread_join(a.thread, NULL) == 0);
	CHECK(a.ended == ENXIO);
	again = open_port("vale0:a", NR_EXCLUSIVE);
	CHECK(ioctl(again.fd, NIOCTXSYNC, NULL) == 0);
}

static const struct test tests[] = {
	TEST(csb_begins_with_where_the_rings_stand),
	TEST(csb_is_enabled_later_too),
	TEST(csb_needs_exclusive_rings),
	TEST(csb_memory_is_looked_at),
	TEST(csb_without_a_port_is_nothing),
	TEST(entries_follow_the_rings),
	TEST(one_ring_has_two_entries),
	TEST(a_loop_needs_a_csb),
	TEST(a_loop_ends_when_it_is_stopped),
	TEST(one_of_two_loops_wins),
	TEST(the_csb_stays_while_a_loop_runs),
	TEST(frames_go_through_loops_that_come_round),
	TEST(frames_go_through_loops_that_sleep),
	TEST(frames_go_through_direct_loops),
	TEST(without_an_ioeventfd_the_loop_comes_round),
	TEST(a_full_receiver_says_when_it_has_room),
	TEST(events_are_looked_at),
	TEST(nonsense_in_the_csb_stops_the_ring_until_it_is_gone),
	TEST(a_loop_of_pipes),
	TEST(a_child_runs_a_loop_of_its_own),
	TEST(a_loop_ends_with_its_descriptor),
};

MAIN(tests)
