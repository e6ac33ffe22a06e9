/* A slow link, as a function of a chain: holds every frame for 10 ms and sends it on. "delay
 * PORT..." runs an instance on each port, each in a thread of its own: one for each core. */
#define _POSIX_C_SOURCE 200809L /* for clock_gettime, where the compiler is told -std=c99 */
#include <err.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <uvala.h>

enum { DELAY = 10000 /* microseconds */, MOST = UVALA_NF_HELD_MAX };

struct link {
	struct uvala_port *port;
	uint32_t first, end, held[MOST]; /* of those that wait, counted on and on */
	int64_t now, due[MOST];
};

static void go_on(void *context, uint32_t slots)
{
	struct link *link = context;
	struct timespec time;
	(void)slots;
	clock_gettime(CLOCK_MONOTONIC, &time);
	link->now = (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
	for (; link->first != link->end && link->due[link->first % MOST] <= link->now; link->first++)
		uvala_nf_send_on(link->port, link->held[link->first % MOST], UVALA_NF_NEXT, 0);
}

static int delay(void *context, struct uvala_nf_frame *frame)
{
	struct link *link = context;

	if (frame->held != 0) { /* else it is dropped: a jumbo frame, or too many wait */
		link->held[link->end % MOST] = frame->held;
		link->due[link->end++ % MOST] = link->now + DELAY;
	}
	return UVALA_NF_HOLD;
}

static void *run(void *name)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct link *link = calloc(1, sizeof(*link));

	options.group = "nf";
	if (link == NULL || uvala_open(name, &options, &link->port) < 0)
		errx(1, "%s", uvala_errmsg());
	uvala_nf_on_batch(link->port, go_on);
	while (uvala_nf_step(link->port, delay, link, link->first == link->end ? -1 : 1000) >= 0);
	errx(1, "%s", uvala_errmsg());
}

int main(int argc, char **argv)
{
	pthread_t thread;

	while (argc-- > 1)
		pthread_create(&thread, NULL, run, *++argv);
	pthread_exit(NULL);
}
