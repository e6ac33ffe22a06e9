/* Looks after TCP more closely, as a function of a chain: sends it to another service.
 * "divert PORT SERVICE"; "uvala nf list" shows how many frames. */
#include <err.h>
#include <uvala.h>

struct divert {
	uint32_t service;
	uint64_t diverted;
};

static int is_tcp(const struct uvala_nf_frame *frame)
{
	const uint8_t *data = frame->data;

	return frame->len > 23 && data[12] == 8 && data[13] == 0 && data[23] == 6;
}

static int choose(void *context, struct uvala_nf_frame *frame)
{
	struct divert *divert = context;

	if (!is_tcp(frame))
		return UVALA_NF_NEXT;
	divert->diverted++;
	frame->target = divert->service;
	return UVALA_NF_SERVICE;
}

int main(int argc, char **argv)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct divert divert = { 0 };
	struct uvala_port *port;
	int done;

	options.group = "nf";
	if (argc != 3 || uvala_open(argv[1], &options, &port) < 0)
		errx(1, "%s", uvala_errmsg());
	done = uvala_nf_service(port, argv[2]);
	divert.service = (uint32_t)done;
	while (done >= 0 && uvala_nf_count(port, "diverted", divert.diverted) == 0)
		done = uvala_nf_step(port, choose, &divert, -1);
	errx(1, "%s", uvala_errmsg());
}
