/*
 * Sends frames without a copy: send PORT [COUNT]. Each is a broadcast of 60 bytes with its number
 * in it.
 */
#include <arpa/inet.h>
#include <err.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <uvala.h>

#define BATCH 64u /* frames handed over at once */
#define LEN 60

static void write_frame(unsigned char *frame, uint32_t number)
{
	static const unsigned char head[14] = {
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, /* broadcast */
		0x88, 0xb5, /* an EtherType for experiments, IEEE 802 */
	};

	number = htonl(number);
	memcpy(frame, head, sizeof(head));
	memcpy(frame + sizeof(head), &number, sizeof(number));
	memset(frame + sizeof(head) + sizeof(number), 0, LEN - sizeof(head) - sizeof(number));
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "vale0:send";
	uint32_t count = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 1000;
	struct uvala_port *port;
	struct uvala_queue *tx;
	uint32_t i, n, number;

	if (uvala_open(name, NULL, &port) < 0)
		errx(1, "%s", uvala_errmsg());
	tx = uvala_tx(port, 0);
	for (number = 0; number < count; number += n) {
		if (uvala_queue_wait(tx, 1, -1) < 0)
			errx(1, "%s", uvala_errmsg());
		n = tx->count < BATCH ? tx->count : BATCH;
		if (n > count - number)
			n = count - number;
		for (i = 0; i < n; i++)
			write_frame(uvala_tx_frame(tx, i, LEN), number + i);
		if (uvala_submit(tx, n) < 0)
			errx(1, "%s", uvala_errmsg());
	}
	/* The port goes away with this program: first let the switch take what it holds. */
	if (uvala_drain(port, -1) < 0)
		errx(1, "%s", uvala_errmsg());
	printf("sent %u frames to %s\n", count, name);
	uvala_close(port);
	return 0;
}
