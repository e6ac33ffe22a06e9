/*
 * Connects two ports: bridge PORT PORT [GROUP]. In a trust group frames change hands without a
 * copy. One thread serves each direction, and both may sleep.
 */
#include <err.h>
#include <pthread.h>
#include <stdio.h>
#include <uvala.h>

#define BATCH 64 /* slots moved at once */

struct direction {
	struct uvala_queue *rx, *tx;
};

/* Moves what one port receives to the other one, for ever. */
static void *forward(void *argument)
{
	struct direction *d = argument;
	int moved;

	while (uvala_queue_wait(d->rx, 1, -1) > 0) {
		moved = uvala_forward(d->rx, d->tx, BATCH);
		/* Not even the first frame found room: wait for what the longest needs. */
		if (moved == 0)
			moved = uvala_queue_wait(d->tx, d->tx->num_slots - 1, -1);
		if (moved < 0)
			break;
	}
	errx(1, "%s", uvala_errmsg());
}

int main(int argc, char **argv)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct uvala_port *left, *right;
	struct direction there, back;
	pthread_t thread;

	if (argc < 3)
		errx(2, "usage: bridge PORT PORT [GROUP]");
	options.group = argc > 3 ? argv[3] : NULL;
	if (uvala_open(argv[1], &options, &left) < 0 || uvala_open(argv[2], &options, &right) < 0)
		errx(1, "%s", uvala_errmsg());
	printf("bridging %s and %s, %s\n", argv[1], argv[2],
	       uvala_same_region(left, right) ? "swapping buffers" : "copying");
	fflush(stdout);
	there.rx = uvala_rx(left, 0);
	there.tx = uvala_tx(right, 0);
	back.rx = uvala_rx(right, 0);
	back.tx = uvala_tx(left, 0);
	if (pthread_create(&thread, NULL, forward, &back) != 0)
		errx(1, "no thread");
	forward(&there);
	return 0;
}
