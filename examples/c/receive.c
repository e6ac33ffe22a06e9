/*
 * Prints frames where they lie, without a copy: receive PORT [COUNT]. Long frames come in a chain
 * of slots, each but the last marked with uvala_more().
 */
#include <err.h>
#include <stdlib.h>
#include <stdio.h>
#include <uvala.h>

/* Prints the frame that starts in slot i; returns the slot after it. */
static uint32_t print_frame(struct uvala_queue *rx, uint32_t i)
{
	uint16_t len;
	const unsigned char *head = uvala_rx_frame(rx, i, &len);
	uint16_t in_head = len;
	size_t total = len;
	unsigned int at;

	while (uvala_more(rx, i) && i + 1 < rx->count) {
		uvala_rx_frame(rx, ++i, &len);
		total += len;
	}
	printf("%5zu bytes:", total);
	for (at = 0; at < 18 && at < in_head; at++)
		printf(" %02x", head[at]);
	printf("\n");
	return i + 1;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "vale0:receive";
	unsigned long left = argc > 2 ? strtoul(argv[2], NULL, 10) : (unsigned long)-1;
	struct uvala_port *port;
	struct uvala_queue *rx;
	uint32_t i;

	if (uvala_open(name, NULL, &port) < 0)
		errx(1, "%s", uvala_errmsg());
	printf("listening on %s\n", name);
	fflush(stdout);
	rx = uvala_rx(port, 0);
	while (left > 0) {
		if (uvala_queue_wait(rx, 1, -1) < 0)
			errx(1, "%s", uvala_errmsg());
		for (i = 0; i < rx->count && left > 0; left--)
			i = print_frame(rx, i);
		if (uvala_release(rx, i) < 0)
			errx(1, "%s", uvala_errmsg());
	}
	uvala_close(port);
	return 0;
}
