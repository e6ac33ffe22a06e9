/*
 * An event loop of one's own: "epoll PORT PORT..." sleeps in one epoll_wait for all ports and
 * counts what arrives on each.
 */
#include <err.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <uvala.h>

#define PORTS_MAX 16

static struct uvala_port *ports[PORTS_MAX];
static unsigned long slots[PORTS_MAX];

static void check(int result)
{
	if (result < 0)
		errx(1, "%s", uvala_errmsg());
}

/* Takes what has arrived. */
static void take(int i)
{
	struct uvala_queue *rx = uvala_rx(ports[i], 0);
	uint32_t n = uvala_look(rx);

	slots[i] += n;
	check(uvala_release(rx, n));
}

int main(int argc, char **argv)
{
	int i, n, loop = epoll_create1(EPOLL_CLOEXEC), count = argc - 1;
	struct epoll_event events[PORTS_MAX], event = { .events = EPOLLIN };

	if (count < 1 || count > PORTS_MAX)
		errx(2, "usage: epoll PORT... (at most %d)", PORTS_MAX);
	for (i = 0; i < count; i++) {
		check(uvala_open(argv[i + 1], NULL, &ports[i]));
		event.data.u32 = (uint32_t)i;
		if (epoll_ctl(loop, EPOLL_CTL_ADD, uvala_fd(ports[i]), &event) < 0)
			err(1, "epoll_ctl");
	}
	for (;;) {
		for (i = 0; i < count; i++) {
			/* Arming fails where a frame is there already: take it, try again. */
			while (uvala_arm(ports[i], UVALA_RX, 0) == 0)
				take(i);
			printf("%s: %lu slots so far\n", argv[i + 1], slots[i]);
		}
		fflush(stdout);
		n = epoll_wait(loop, events, PORTS_MAX, -1);
		for (i = 0; i < n; i++) {
			check(uvala_disarm(ports[events[i].data.u32]));
			take((int)events[i].data.u32);
		}
	}
}
