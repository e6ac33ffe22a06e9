/* Asks for numbers by names, sends frames there, and does what is refused; told by their 15th
 * byte. "names PORT OUT SERVICE CHAIN" */
#include <assert.h>
#include <err.h>
#include <string.h>
#include <uvala.h>

struct state {
	struct uvala_port *port;
	int service, out, chain;
	int done;
};

static void refused(int result, int code, const char *says)
{
	if (result != code || strstr(uvala_errmsg(), says) == NULL)
		errx(1, "%d: %s", result, uvala_errmsg());
}

static int handle(void *context, struct uvala_nf_frame *frame)
{
	struct state *state = context;
	unsigned char byte[60] = { 0 };

	assert((int)(frame->meta >> 44 & 0xff) == state->chain);
	switch (frame->data[14]) {
	case 's':
		frame->target = (uint32_t)state->service;
		return UVALA_NF_SERVICE;
	case 'p':
		frame->target = (uint32_t)state->out;
		return UVALA_NF_PORT;
	case 'r': /* what a callback may not call */
		refused(uvala_nf_step(state->port, handle, state, 0), UVALA_EARG, "callback");
		refused(uvala_nf_service(state->port, "mark"), UVALA_EARG, "callback");
		refused(uvala_send(state->port, byte, sizeof(byte), 0), UVALA_EARG, "callback");
		refused(uvala_recv(state->port, byte, sizeof(byte), 0), UVALA_EARG, "callback");
		refused(uvala_reconnect(state->port, 0), UVALA_EARG, "callback");
		refused(uvala_check(state->port), UVALA_EARG, "callback");
		refused(uvala_same_region(state->port, state->port), UVALA_EARG, "callback");
		refused(uvala_nf_on_batch(state->port, NULL), UVALA_EARG, "callback");
		uvala_close(state->port); /* it is open still */
		assert(uvala_nf_count(state->port, "asked", 1) == 0);
		assert(uvala_tx(state->port, 0) == NULL && uvala_rx(state->port, 0) == NULL);
		return UVALA_NF_NEXT;
	case 'e':
		state->done = 1;
	}
	return UVALA_NF_NEXT;
}

int main(int argc, char **argv)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct state state = { 0 };

	options.group = "nf";
	if (argc != 5 || uvala_open(argv[1], &options, &state.port) < 0)
		errx(1, "%s", uvala_errmsg());
	state.out = uvala_nf_port(state.port, argv[2]);
	state.service = uvala_nf_service(state.port, argv[3]);
	state.chain = uvala_nf_chain(state.port, argv[4]);
	if (state.out < 0 || state.service < 0 || state.chain < 0)
		errx(1, "%s", uvala_errmsg());
	refused(uvala_nf_service(state.port, "nobody"), UVALA_ENOTFOUND, "--service nobody");
	refused(uvala_nf_chain(state.port, "nothing"), UVALA_ENOTFOUND, "uvala chain add");
	refused(uvala_nf_port(state.port, "valenf:none"), UVALA_ENOTFOUND, "valenf:none");
	refused(uvala_nf_port(state.port, "valenf:unheld"), UVALA_ENOTFOUND, "no client holds");
	refused(uvala_nf_port(state.port, "vale9:b"), UVALA_ENOTFOUND, "no port of switch valenf");
	refused(uvala_nf_port(state.port, "b"), UVALA_ENAME, "vale0:vm1");
	refused(uvala_nf_port(state.port, NULL), UVALA_EARG, "NULL");
	refused(uvala_nf_service(state.port, "\xff"), UVALA_EARG, "UTF-8");
	refused(uvala_nf_count(state.port, "a b", 1), UVALA_EARG, "letters");
	refused(uvala_nf_gauge(state.port, NULL, 1), UVALA_EARG, "NULL");
	while (!state.done)
		if (uvala_nf_step(state.port, handle, &state, -1) < 0)
			errx(1, "%s", uvala_errmsg());
	uvala_drain(state.port, -1);
	uvala_close(state.port);
	return 0;
}
