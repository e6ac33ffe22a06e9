// SPDX-License-Identifier: MIT OR Apache-2.0
/* Opens a port, says so, and waits for what never comes until it learns that the daemon is gone. */

#include "check.h"
#include <sys/epoll.h>
#include <sys/select.h>

int main(int argc, char **argv)
{
	struct port port = open_port("vale0:sleeper", 0);
	struct epoll_event event = { EPOLLIN, { .u64 = 0 } };
	const char *how = argc > 1 ? argv[1] : "poll";
	int set = epoll_create1(0), come = 0;
	long end = now_ms() + 20000;
	fd_set in;

	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, port.fd, &event) == 0);
	puts("ready");
	fflush(stdout);
	if (!strcmp(how, "poll")) {
		CHECK(poll_one(port.fd, POLLIN, 20000, &come) == 1 && come == POLLERR);
	} else if (!strcmp(how, "select")) {
		FD_ZERO(&in);
		FD_SET(port.fd, &in);
		CHECK(select(port.fd + 1, &in, NULL, NULL, NULL) == 1);
	} else if (!strcmp(how, "epoll")) {
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
	/* Its socket may outlive its pipes for a moment. */
	while (open("/dev/netmap", O_RDWR) >= 0)
		CHECK(now_ms() < end);
	CHECK(errno == ENXIO);
	return 0;
}
