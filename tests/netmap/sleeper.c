// SPDX-License-Identifier: MIT OR Apache-2.0
/* Opens a port, says so, and waits for what never comes until it learns that the daemon is gone. */

#include "check.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>

/* Sleeps in a sync loop, on an eventfd for each ring. */
static void sleep_in_a_loop(struct port *port)
{
	struct {
		struct nmreq_opt_sync_kloop_eventfds option;
		struct {
			int32_t ioeventfd, irqfd;
		} pairs[2];
	} events = { .pairs = { { eventfd(0, 0), -1 }, { eventfd(0, 0), -1 } } };
	struct nmreq_opt_csb csb = { .csb_atok = 0 };
	struct nmreq_sync_kloop_start start = { 0, 0 };
	char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	csb.nro_opt.nro_reqtype = NETMAP_REQ_OPT_CSB;
	csb.csb_atok = (uintptr_t)memory;
	csb.csb_ktoa = (uintptr_t)memory + 2048;
	CHECK(request(port->fd, NETMAP_REQ_CSB_ENABLE, "", NULL, &csb.nro_opt) == 0);
	events.option.nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS;
	events.option.nro_opt.nro_size = sizeof(events);
	FAILS(ENXIO, request(port->fd, NETMAP_REQ_SYNC_KLOOP_START, "", &start,
			     &events.option.nro_opt));
	exit(0);
}

int main(int argc, char **argv)
{
	struct port port = open_port("vale0:sleeper", NR_EXCLUSIVE);
	struct epoll_event event = { EPOLLIN, { .u64 = 0 } };
	const char *how = argc > 1 ? argv[1] : "poll";
	int set = epoll_create1(0), outer = epoll_create1(0), come = 0;
	long end = now_ms() + 20000;
	fd_set in;

	if (!strcmp(how, "edge"))
		event.events |= EPOLLET;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, port.fd, &event) == 0);
	event.events = EPOLLIN;
	CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event) == 0);
	CHECK(epoll_wait(set, &event, 1, 0) == 0);
	puts("ready");
	fflush(stdout);
	if (!strcmp(how, "poll")) {
		CHECK(poll_one(port.fd, POLLIN, 20000, &come) == 1 && come == POLLERR);
	} else if (!strcmp(how, "select")) {
		FD_ZERO(&in);
		FD_SET(port.fd, &in);
		CHECK(select(port.fd + 1, &in, NULL, NULL, NULL) == 1);
	} else if (!strcmp(how, "loop")) {
		sleep_in_a_loop(&port);
	} else if (!strcmp(how, "nested")) {
		CHECK(epoll_wait(outer, &event, 1, 20000) == 1 && event.events == EPOLLIN);
		CHECK(epoll_wait(set, &event, 1, 0) == 1 && event.events == EPOLLERR);
	} else if (!strcmp(how, "epoll") || !strcmp(how, "edge")) {
		CHECK(epoll_wait(set, &event, 1, 20000) == 1 && event.events == EPOLLERR);
	} else if (!strcmp(how, "spin")) {
		while (!come && now_ms() < end)
			poll_one(port.fd, POLLIN, 0, &come);
		CHECK(come == POLLERR);
	} else {
		while (ioctl(port.fd, NIOCRXSYNC, NULL) == 0)
			CHECK(now_ms() < end);
		CHECK(errno == ENXIO);
	}
	FAILS(ENXIO, ioctl(port.fd, NIOCRXSYNC, NULL));
	/* The daemon's socket may outlive its pipes for a moment. */
	while (open("/dev/netmap", O_RDWR) >= 0)
		CHECK(now_ms() < end);
	CHECK(errno == ENXIO);
	return 0;
}
