/* Asks for what is no action, told by the 15th byte of frames. "wrong PORT" */
#include <err.h>
#include <uvala.h>

static int handle(void *context, struct uvala_nf_frame *frame)
{
	int *done = context;

	switch (frame->data[14]) {
	case 'a':
		return 99;
	case 'b':
		return -1;
	case 'c':
		frame->target = 70000;
		return UVALA_NF_SERVICE;
	case 'd':
		frame->target = 0x1000 + 1; /* port 1, if 12 bits of it counted */
		return UVALA_NF_PORT;
	case 'e':
		frame->len = frame->room + 1;
		return UVALA_NF_NEXT;
	case 'z':
		*done = 1;
	}
	return UVALA_NF_NEXT;
}

int main(int argc, char **argv)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct uvala_port *port;
	int done = 0;

	options.group = "nf";
	if (argc != 2 || uvala_open(argv[1], &options, &port) < 0)
		errx(1, "%s", uvala_errmsg());
	while (!done)
		if (uvala_nf_step(port, handle, &done, -1) < 0)
			errx(1, "%s", uvala_errmsg());
	uvala_drain(port, -1);
	uvala_close(port);
	return 0;
}
