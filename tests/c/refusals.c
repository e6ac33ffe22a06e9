/* The library refuses waits that cannot end, and reports a port that an operator deleted. */
#include <assert.h>
#include <err.h>
#include <poll.h>
#include <stdio.h>
#include <uvala.h>

int main(void)
{
	struct uvala_port *port;
	struct uvala_queue *tx;

	if (uvala_open("vale0:a", NULL, &port) < 0)
		errx(1, "%s", uvala_errmsg());
	tx = uvala_tx(port, 0);
	assert(uvala_wait(port, UVALA_TX, tx->num_slots - 1, 0) == 1);
	assert(uvala_wait(port, UVALA_TX, tx->num_slots, 0) == UVALA_EARG);
	assert(uvala_arm(port, UVALA_TX, tx->num_slots) == UVALA_EARG);
	assert(uvala_queue_wait(tx, tx->num_slots - 1, 0) == 1);
	assert(uvala_queue_wait(tx, 1000000, 0) == UVALA_EARG);
	assert(uvala_check(port) == 0);

	puts("ready");
	fflush(stdout);
	getchar(); /* until the port has been deleted */
	/* The daemon tells the client a moment later. */
	for (int ms = 0; ms < 60000 && uvala_check(port) == 0; ms++)
		poll(NULL, 0, 1);
	assert(uvala_check(port) == UVALA_EDELETED);
	uvala_close(port);
	return 0;
}
