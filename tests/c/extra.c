/* Keeps a frame in an extra buffer, without a copy, and sends it on later. */
#include <assert.h>
#include <err.h>
#include <string.h>
#include <uvala.h>

#define SECOND 1000000 /* in microseconds */

static struct uvala_port *open_port(const char *name)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct uvala_port *port;

	options.extra_bufs = 2;
	if (uvala_open(name, &options, &port) < 0)
		errx(1, "%s", uvala_errmsg());
	return port;
}

int main(void)
{
	struct uvala_port *a = open_port("vale0:a"), *b = open_port("vale0:b");
	struct uvala_queue *rx = uvala_rx(b, 0), *tx = uvala_tx(b, 0);
	unsigned char sent[60], got[60];
	const unsigned char *frame;
	uint32_t kept, spare = uvala_extra_take(rx), other = uvala_extra_take(tx);
	uint16_t len;

	assert(spare > 1 && other > 1 && spare != other && uvala_extra_take(rx) == 0);
	memset(sent, 0xff, sizeof(sent));
	sent[6] = 2; /* no group address sends */
	assert(uvala_send(a, sent, sizeof(sent), SECOND) == 1);
	assert(uvala_queue_wait(rx, 1, SECOND) == 1 && uvala_look(rx) == 1);
	frame = uvala_rx_frame(rx, 0, &len);
	kept = uvala_exchange(rx, 0, spare);
	assert(uvala_release(rx, 1) == 0);
	assert(uvala_extra_data(rx, kept) == frame && len == 60 && !memcmp(frame, sent, 60));

	assert(uvala_look(tx) > 0);
	uvala_tx_set(tx, 0, len, 0);
	spare = uvala_exchange(tx, 0, kept);
	assert(uvala_submit(tx, 1) == 0);
	assert(uvala_extra_give(tx, spare) == 0 && uvala_extra_give(rx, other) == 0);
	assert(uvala_extra_give(rx, 0xffffffff) == UVALA_EARG);
	assert(uvala_recv(a, got, sizeof(got), SECOND) == 60 && !memcmp(got, sent, 60));
	assert(uvala_extra_take(rx) == other && uvala_extra_take(tx) == spare);
	uvala_close(b);
	uvala_close(a);
	return 0;
}
