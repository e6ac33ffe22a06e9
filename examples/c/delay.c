/* A slow link, as a function of a chain: holds every frame for 10 ms and sends it on.
 * "delay PORT SERVICE 0,2-3" runs an instance on each of these cores, "delay PORT" one. */
#define _POSIX_C_SOURCE 200809L /* for clock_gettime, where the compiler is told -std=c99 */
#include <err.h>
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
	(void)slots, clock_gettime(CLOCK_MONOTONIC, &time);
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

static int run(void *context, struct uvala_port *port, uint32_t thread)
{
	struct link *link = calloc(1, sizeof(*link));
	int slots = uvala_nf_on_batch(port, go_on);
	(void)context, (void)thread;
	if (link == NULL)
		return UVALA_ENOMEM;
	link->port = port;
	while (slots >= 0) /* sleeps until there are frames, or the next one is due */
		slots = uvala_nf_step(port, delay, link, link->first == link->end ? -1 : 1000);
	free(link);
	return slots;
}

int main(int argc, char **argv)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct uvala_nf_threads threads = UVALA_NF_THREADS_INIT;
	options.group = "nf", threads.options = &options;
	threads.port = argv[1];
	threads.service = argc > 2 ? argv[2] : NULL;
	threads.cores = argc > 3 ? argv[3] : NULL;
	if (uvala_nf_run(&threads, run, NULL) < 0)
		errx(1, "%s", uvala_errmsg());
}
