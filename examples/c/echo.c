/* Round trips with the copying calls: "echo pong PORT" sends everything back, "echo ping PORT"
 * measures. Both survive a restart of the daemon. */
#define _POSIX_C_SOURCE 200809L /* for clock_gettime, where the compiler is told -std=c99 */
#include <err.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <uvala.h>

#define ROUNDS 10000
#define SECOND 1000000 /* in microseconds */

static unsigned char frame[65553];

static void pong(struct uvala_port *port)
{
	static const unsigned char own[6] = { 2, 0, 0, 0, 0, 3 };
	int len;

	while ((len = uvala_recv(port, frame, sizeof(frame), -1)) >= 0) {
		/* Back to its sender; a broadcast address is none to send from. */
		memcpy(frame, frame + 6, 6);
		memcpy(frame + 6, own, 6);
		if (uvala_send(port, frame, (size_t)len, -1) < 0)
			return;
	}
}

static void ping(struct uvala_port *port)
{
	static const unsigned char head[14] = {
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 2, 0x88, 0xb5,
	};
	struct timespec start, end;
	int answers;

	clock_gettime(CLOCK_MONOTONIC, &start);
	for (answers = 0; answers < ROUNDS; answers++) {
		memcpy(frame, head, sizeof(head));
		if (uvala_send(port, frame, 60, SECOND) < 0 ||
		    uvala_recv(port, frame, sizeof(frame), SECOND) <= 0)
			break;
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%d of %d answers, %ld us in all\n", answers, ROUNDS,
	       (end.tv_sec - start.tv_sec) * SECOND + (end.tv_nsec - start.tv_nsec) / 1000);
}

int main(int argc, char **argv)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct uvala_port *port;

	options.flags = UVALA_RECONNECT;
	if (argc < 3 || uvala_open(argv[2], &options, &port) < 0)
		errx(1, "%s", argc < 3 ? "usage: echo ping|pong PORT" : uvala_errmsg());
	strcmp(argv[1], "ping") == 0 ? ping(port) : pong(port);
	uvala_close(port);
	return 0;
}
