/* Holds frames, sends them on, makes some, and does what is refused; told by their 15th byte. */
#include <assert.h>
#include <err.h>
#include <stdio.h>
#include <string.h>
#include <uvala.h>

#define TICK 10000 /* in microseconds */

struct state {
	struct uvala_port *port;
	uint32_t held, slots, quiet;
	int done;
};

static void refused(int result, const char *says)
{
	if (result != UVALA_EARG || strstr(uvala_errmsg(), says) == NULL)
		errx(1, "%d: %s", result, uvala_errmsg());
}

static void batch(void *context, uint32_t slots)
{
	struct state *state = context;

	state->slots += slots;
	state->quiet += slots == 0;
}

static int handle(void *context, struct uvala_nf_frame *frame)
{
	struct state *state = context;
	uint8_t *own = uvala_nf_own(frame);
	unsigned char made[60];

	assert(frame->held != 0 && own != NULL && own >= frame->data + frame->len);
	switch (frame->data[14]) {
	case 'h': /* hold it; it has no bytes to send on before this function returns */
		refused(uvala_nf_send_on(state->port, frame->held, UVALA_NF_NEXT, 0), "never held");
		state->held = frame->held;
		memset(own, 'o', UVALA_NF_OWN_BYTES);
		return UVALA_NF_HOLD;
	case 's': /* what is held goes to this service, and this one on */
		assert(uvala_nf_send_on(state->port, state->held, UVALA_NF_SERVICE,
					frame->data[15]) == 0);
		return UVALA_NF_NEXT;
	case 'b': /* what is held goes back to where this one is from, and this one on */
		assert(uvala_nf_send_on(state->port, state->held, UVALA_NF_PORT,
					(uint32_t)(frame->meta >> 32) & 0xfff) == 0);
		return UVALA_NF_NEXT;
	case 'm': /* another in its place */
		memcpy(made, frame->data, sizeof(made));
		made[15] = 'M';
		assert(uvala_nf_send(state->port, made, sizeof(made)) == 0);
		return UVALA_NF_DROP;
	case 'e': /* end, with the last one held */
		state->done = 1;
	}
	return UVALA_NF_NEXT;
}

/* Between two batches: sends the held frame on, changed, once. */
static void send_on(struct state *state, struct uvala_port *other)
{
	uint32_t len, held = state->held;
	uint8_t *data = uvala_nf_held(state->port, held, &len);

	assert(data != NULL && len == 60 && data[15] == 'n');
	data[15] = 'N';
	refused(uvala_nf_send_on(state->port, held + 1000, UVALA_NF_NEXT, 0), "never held");
	refused(uvala_nf_send_on(other, held, UVALA_NF_NEXT, 0), "never held");
	refused(uvala_nf_send_on(state->port, held, UVALA_NF_HOLD, 0), "UVALA_NF_NEXT");
	refused(uvala_nf_send_on(state->port, held, 77, 0), "UVALA_NF_NEXT");
	refused(uvala_nf_send_on(state->port, held, UVALA_NF_PORT, 0x10000), "UVALA_NF_NEXT");
	assert(uvala_nf_send_on(state->port, held, UVALA_NF_NEXT, 0) == 0);
	refused(uvala_nf_send_on(state->port, held, UVALA_NF_NEXT, 0), "sent on already");
	assert(uvala_nf_held(state->port, held, NULL) == NULL);
}

int main(int argc, char **argv)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct state state = { 0 };
	struct uvala_port *other;
	uint8_t *data;

	options.group = "nf";
	if (argc != 3 || uvala_open(argv[1], &options, &state.port) < 0 ||
	    uvala_open(argv[2], &options, &other) < 0)
		errx(1, "%s", uvala_errmsg());
	assert(uvala_nf_on_batch(state.port, batch) == 0);
	while (!state.done || state.quiet == 0) {
		if (uvala_nf_step(state.port, handle, &state, TICK) < 0)
			errx(1, "%s", uvala_errmsg());
		data = uvala_nf_held(state.port, state.held, NULL);
		if (data != NULL && data[15] == 'n')
			send_on(&state, other);
	}
	assert(uvala_nf_held(state.port, state.held, NULL) != NULL);
	printf("%u\n", state.slots);
	uvala_close(other);
	uvala_close(state.port);
	return 0;
}
