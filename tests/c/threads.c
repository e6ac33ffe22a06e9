/* A function in two threads, which count what they pass on; SIGTERM ends them. */
#include <assert.h>
#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <uvala.h>

static struct uvala_stop *stop;

static void end(int number)
{
	(void)number;
	uvala_stop(stop);
}

static int count(void *context, struct uvala_nf_frame *frame)
{
	(void)frame;
	++*(uint32_t *)context;
	return UVALA_NF_NEXT;
}

/* Its count is the thread's own; what all have is the sum. */
static int run(void *context, struct uvala_port *port, uint32_t thread)
{
	uint32_t *counts = context, own = 0;
	int slots = 0;

	while (slots >= 0)
		slots = uvala_nf_step(port, count, &own, -1);
	assert(uvala_nf_step(port, count, &own, 0) == UVALA_ESTOPPED);
	counts[thread] += own;
	return slots;
}

/* One that fails, by a number of its own; the other is stopped. */
static int fail(void *context, struct uvala_port *port, uint32_t thread)
{
	(void)context;
	return thread == 1 ? -100 : uvala_wait(port, UVALA_RX, 0, -1);
}

int main(int argc, char **argv)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct uvala_nf_threads threads = UVALA_NF_THREADS_INIT;
	struct uvala_port *taken;
	uint32_t counts[2] = { 0, 0 };

	assert(argc == 2);
	options.group = "nf";
	threads.port = argv[1];
	threads.service = "count";
	threads.threads = 2;
	threads.options = &options;
	if (uvala_nf_run(&threads, fail, NULL) != -100)
		errx(1, "%s", uvala_errmsg());
	assert(strstr(uvala_errmsg(), "thread 1, at valenf:count_1: ") != NULL);
	assert(uvala_open("valenf:count_1", NULL, &taken) == 0);
	if (uvala_nf_run(&threads, run, counts) != UVALA_EINUSE)
		errx(1, "%s", uvala_errmsg());
	assert(strstr(uvala_errmsg(), "thread 1, at valenf:count_1: ") != NULL);
	uvala_close(taken);
	assert(uvala_stop_new(&stop) == 0);
	options.stop = stop;
	signal(SIGTERM, end);
	if (uvala_nf_run(&threads, run, counts) != 0)
		errx(1, "%s", uvala_errmsg());
	printf("%u %u\n", counts[0], counts[1]);
	uvala_stop_free(stop);
	return 0;
}
