/* A function in C: counts frames by EtherType and passes them on. */
#include <err.h>
#include <stdio.h>
#include <uvala.h>

#define SECOND 1000000 /* in microseconds */

static unsigned counts[0x10000];

static int count(void *context, struct uvala_nf_frame *frame)
{
	unsigned *all = context;

	all[frame->data[12] << 8 | frame->data[13]]++;
	return UVALA_NF_NEXT;
}

static void show(struct uvala_port *port)
{
	unsigned i, types = 0;

	for (i = 0; i < sizeof(counts) / sizeof(*counts); i++)
		types += counts[i] > 0;
	if (uvala_nf_count(port, "type_88b5", counts[0x88b5]) < 0 ||
	    uvala_nf_gauge(port, "types", types) < 0)
		errx(1, "%s", uvala_errmsg());
}

int main(int argc, char **argv)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct uvala_port *port;
	int done;

	options.group = "nf";
	if (argc != 2 || uvala_open(argv[1], &options, &port) < 0)
		errx(1, "%s", uvala_errmsg());
	while ((done = uvala_nf_step(port, count, counts, SECOND)) >= 0) {
		show(port);
		if (done == 0) {
			printf("{'0x88b5': %u, '0x0806': %u}\n", counts[0x88b5], counts[0x0806]);
			fflush(stdout);
		}
	}
	errx(1, "%s", uvala_errmsg());
}
