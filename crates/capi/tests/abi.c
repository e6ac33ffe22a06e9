/*
 * What the library answers to bad arguments, and whether header and library mean the same
 * structures. Also compiled as C++.
 */
#define _DEFAULT_SOURCE
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uvala.h>

UVALA_STATIC_ASSERT(sizeof(struct uvala_queue) == 48, "queue");
UVALA_STATIC_ASSERT(offsetof(struct uvala_queue, num_slots) == 16, "queue.num_slots");
UVALA_STATIC_ASSERT(offsetof(struct uvala_queue, count) == 32, "queue.count");
UVALA_STATIC_ASSERT(offsetof(struct uvala_queue, ring) == 40, "queue.ring");
UVALA_STATIC_ASSERT(sizeof(struct uvala_options) == 72, "options");
UVALA_STATIC_ASSERT(offsetof(struct uvala_options, tx_rings) == 24, "options.tx_rings");
UVALA_STATIC_ASSERT(offsetof(struct uvala_options, yields) == 40, "options.yields");
UVALA_STATIC_ASSERT(offsetof(struct uvala_options, flags) == 44, "options.flags");
UVALA_STATIC_ASSERT(offsetof(struct uvala_options, client) == 48, "options.client");
UVALA_STATIC_ASSERT(offsetof(struct uvala_options, stop) == 56, "options.stop");
UVALA_STATIC_ASSERT(offsetof(struct uvala_options, group_memory) == 64, "options.group_memory");
UVALA_STATIC_ASSERT(sizeof(struct uvala_nf_threads) == 48, "nf_threads");
UVALA_STATIC_ASSERT(offsetof(struct uvala_nf_threads, options) == 32, "nf_threads.options");
UVALA_STATIC_ASSERT(offsetof(struct uvala_nf_threads, instance) == 42, "nf_threads.instance");
UVALA_STATIC_ASSERT(sizeof(struct uvala_nf_frame) == 32, "nf_frame");
UVALA_STATIC_ASSERT(offsetof(struct uvala_nf_frame, meta) == 16, "nf_frame.meta");
UVALA_STATIC_ASSERT(offsetof(struct uvala_nf_frame, target) == 24, "nf_frame.target");
UVALA_STATIC_ASSERT(offsetof(struct uvala_nf_frame, held) == 28, "nf_frame.held");

static void refuses(int result, int code, const char *says)
{
	if (result != code || strstr(uvala_errmsg(), says) == NULL) {
		printf("%d instead of %d: %s\n", result, code, uvala_errmsg());
		assert(0);
	}
}

static void check_open(void)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct uvala_port *port = NULL;

	refuses(uvala_open(NULL, NULL, &port), UVALA_EARG, "NULL");
	refuses(uvala_open("vale0:a", NULL, NULL), UVALA_EARG, "NULL");
	refuses(uvala_open("\xff\xfe", NULL, &port), UVALA_EARG, "UTF-8");
	refuses(uvala_open("eth0", NULL, &port), UVALA_ENAME, "vale0:vm1");
	options.flags = 0x80;
	refuses(uvala_open("vale0:a", &options, &port), UVALA_EARG, "flags");
	options.flags = 0;
	options.dir = "/nowhere/uvala";
	refuses(uvala_open("vale0:a", &options, &port), UVALA_ENODAEMON, "uvala daemon");
	assert(port == NULL);
}

/* Options of this size, behind which there is no memory: looked at, they end the program. */
static void check_end(size_t size)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct uvala_port *port = NULL;
	char *pages, *given;

	pages = (char *)mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			     -1, 0);
	assert(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
	given = pages + page - size;
	options.size = size;
	options.dir = "/nowhere/uvala";
	memcpy(given, &options, size);
	refuses(uvala_open("vale0:a", (struct uvala_options *)given, &port), UVALA_ENODAEMON,
		"uvala daemon");
	munmap(pages, 2 * page);
}

/* Programs that were compiled with another version of the header. */
static void check_sizes(void)
{
	static const size_t bad[] = { 0, 3, 8, 47, 49, 55, 57, 63, 65, 71, 4097, (size_t)-1 };
	struct {
		struct uvala_options options;
		char tail[4096];
	} newer;
	struct uvala_port *port = NULL;
	size_t i;

	memset(&newer, 0, sizeof(newer));
	newer.options.dir = "/nowhere/uvala";
	for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		newer.options.size = bad[i];
		refuses(uvala_open("vale0:a", &newer.options, &port), UVALA_EARG, "size");
	}
	/* Older: it had no client, no stop then, and what is behind it is not looked at. */
	newer.options.size = offsetof(struct uvala_options, client);
	newer.options.client = (const char *)1;
	refuses(uvala_open("vale0:a", &newer.options, &port), UVALA_ENODAEMON, "uvala daemon");
	newer.options.client = NULL;
	newer.options.size = offsetof(struct uvala_options, stop);
	newer.options.stop = (struct uvala_stop *)1;
	refuses(uvala_open("vale0:a", &newer.options, &port), UVALA_ENODAEMON, "uvala daemon");
	newer.options.stop = NULL;
	check_end(offsetof(struct uvala_options, group_memory));
	/* Newer: as long as nothing new is asked for. */
	for (i = 73; i <= 4096; i += 77) {
		newer.options.size = i;
		newer.tail[i - 73] = 0;
		newer.tail[i - 72] = 1; /* the byte behind it */
		refuses(uvala_open("vale0:a", &newer.options, &port), UVALA_ENODAEMON, "uvala daemon");
		newer.tail[i - 73] = 1;
		refuses(uvala_open("vale0:a", &newer.options, &port), UVALA_EARG, "newer");
		memset(newer.tail, 0, sizeof(newer.tail));
	}
	assert(port == NULL);
}

static void check_null(void)
{
	struct uvala_queue queue;
	char byte;

	memset(&queue, 0, sizeof(queue));
	uvala_close(NULL);
	assert(uvala_tx(NULL, 0) == NULL && uvala_rx(NULL, 0) == NULL);
	assert(uvala_look(NULL) == 0 && uvala_resyncs(NULL) == 0);
	refuses(uvala_send(NULL, &byte, 1, 0), UVALA_EARG, "port");
	refuses(uvala_send(NULL, NULL, 1, 0), UVALA_EARG, "frame");
	refuses(uvala_send(NULL, &byte, (size_t)-1, 0), UVALA_EARG, "length");
	refuses(uvala_recv(NULL, &byte, 1, 0), UVALA_EARG, "port");
	refuses(uvala_recv(NULL, NULL, 1, 0), UVALA_EARG, "buffer");
	refuses(uvala_wait(NULL, UVALA_RX, 0, 0), UVALA_EARG, "port");
	refuses(uvala_wait(NULL, 77, 0, 0), UVALA_EARG, "UVALA_RX");
	refuses(uvala_drain(NULL, 0), UVALA_EARG, "port");
	refuses(uvala_fd(NULL), UVALA_EARG, "port");
	refuses(uvala_arm(NULL, UVALA_TX, 1), UVALA_EARG, "port");
	refuses(uvala_disarm(NULL), UVALA_EARG, "port");
	refuses(uvala_check(NULL), UVALA_EARG, "port");
	refuses(uvala_reconnect(NULL, 0), UVALA_EARG, "port");
	refuses(uvala_same_region(NULL, NULL), UVALA_EARG, "port");
	refuses(uvala_submit(NULL, 0), UVALA_EARG, "queue");
	refuses(uvala_submit(&queue, 0), UVALA_EARG, "queue");
	refuses(uvala_release(NULL, 0), UVALA_EARG, "queue");
	refuses(uvala_release(&queue, 0), UVALA_EARG, "queue");
	assert(uvala_extra_take(NULL) == 0 && uvala_extra_take(&queue) == 0);
	refuses(uvala_extra_give(NULL, 2), UVALA_EARG, "queue");
	refuses(uvala_extra_give(&queue, 2), UVALA_EARG, "ring");
	refuses(uvala_queue_wait(NULL, 1, 0), UVALA_EARG, "queue");
	refuses(uvala_queue_wait(&queue, 1, 0), UVALA_EARG, "ring");
	refuses(uvala_forward(NULL, &queue, 1), UVALA_EARG, "queue");
	refuses(uvala_forward(&queue, &queue, 1), UVALA_EARG, "itself");
}

static int pass(void *context, struct uvala_nf_frame *frame)
{
	(void)context;
	(void)frame;
	return UVALA_NF_NEXT;
}

static void check_functions(void)
{
	unsigned char byte[14] = { 0 };
	uint8_t buffer[64];
	struct uvala_nf_frame frame = { buffer, 48, sizeof(buffer), 0, 0, 0 };

	refuses(uvala_nf_step(NULL, pass, NULL, 0), UVALA_EARG, "port");
	refuses(uvala_nf_step(NULL, NULL, NULL, 0), UVALA_EARG, "callback");
	refuses(uvala_nf_on_batch(NULL, NULL), UVALA_EARG, "port");
	refuses(uvala_nf_service(NULL, "fw"), UVALA_EARG, "port");
	refuses(uvala_nf_port(NULL, "vale0:a"), UVALA_EARG, "port");
	refuses(uvala_nf_chain(NULL, "web"), UVALA_EARG, "port");
	refuses(uvala_nf_count(NULL, "frames", 1), UVALA_EARG, "port");
	refuses(uvala_nf_gauge(NULL, "flows", 1), UVALA_EARG, "port");
	refuses(uvala_nf_send_on(NULL, 1, UVALA_NF_NEXT, 0), UVALA_EARG, "port");
	refuses(uvala_nf_send_on(NULL, 1, UVALA_NF_HOLD, 0), UVALA_EARG, "UVALA_NF_NEXT");
	refuses(uvala_nf_send_on(NULL, 1, UVALA_NF_SERVICE, 256), UVALA_EARG, "UVALA_NF_NEXT");
	refuses(uvala_nf_send(NULL, byte, sizeof(byte)), UVALA_EARG, "port");
	refuses(uvala_nf_send(NULL, NULL, sizeof(byte)), UVALA_EARG, "frame");
	refuses(uvala_nf_send(NULL, byte, 13), UVALA_EARG, "14 to 65553");
	refuses(uvala_nf_send(NULL, byte, (size_t)-1), UVALA_EARG, "14 to 65553");
	assert(uvala_nf_held(NULL, 1, NULL) == NULL && strstr(uvala_errmsg(), "port") != NULL);
	assert(uvala_nf_own(&frame) == buffer + 48);
	frame.len = 49;
	assert(uvala_nf_own(&frame) == NULL);
	frame.len = frame.room = 15;
	assert(uvala_nf_own(&frame) == NULL);
}

static int body(void *context, struct uvala_port *port, uint32_t thread)
{
	(void)context;
	(void)port;
	(void)thread;
	assert(0);
	return 0;
}

static void check_threads(void)
{
	struct uvala_options options = UVALA_OPTIONS_INIT;
	struct uvala_nf_threads threads = UVALA_NF_THREADS_INIT;
	struct uvala_stop *stop = NULL;

	refuses(uvala_nf_run(NULL, body, NULL), UVALA_EARG, "threads are NULL");
	refuses(uvala_nf_run(&threads, NULL, NULL), UVALA_EARG, "body");
	refuses(uvala_nf_run(&threads, body, NULL), UVALA_EARG, "port is NULL");
	threads.port = "eth0";
	refuses(uvala_nf_run(&threads, body, NULL), UVALA_ENAME, "vale0:vm1");
	threads.port = "vale0:f";
	threads.cores = "0-";
	refuses(uvala_nf_run(&threads, body, NULL), UVALA_EARG, "0,2-3");
	threads.cores = "1023";
	refuses(uvala_nf_run(&threads, body, NULL), UVALA_EARG, "no core 1023");
	threads.threads = 2;
	refuses(uvala_nf_run(&threads, body, NULL), UVALA_EARG, "2 threads and 1 cores");
	threads.cores = NULL;
	threads.options = &options;
	options.dir = "/nowhere/uvala";
	refuses(uvala_nf_run(&threads, body, NULL), UVALA_ENODAEMON, "uvala daemon");
	threads.service = "s";
	refuses(uvala_nf_run(&threads, body, NULL), UVALA_ENODAEMON, "uvala daemon");
	threads.instance = 0xffff;
	refuses(uvala_nf_run(&threads, body, NULL), UVALA_EREQUEST, "65535");
	threads.reserved = 1;
	refuses(uvala_nf_run(&threads, body, NULL), UVALA_EARG, "reserved");
	threads.size = 47;
	refuses(uvala_nf_run(&threads, body, NULL), UVALA_EARG, "UVALA_NF_THREADS_INIT");
	refuses(uvala_stop_new(NULL), UVALA_EARG, "NULL");
	assert(uvala_stop_new(&stop) == 0 && stop != NULL);
	uvala_stop(stop);
	uvala_stop(NULL);
	uvala_stop_free(stop);
	uvala_stop_free(NULL);
}

int main(void)
{
	int code;

	assert(strcmp(uvala_errmsg(), "") == 0);
	check_open();
	check_sizes();
	check_null();
	check_functions();
	check_threads();
	assert(strcmp(uvala_strerror(0), "no error") == 0);
	for (code = UVALA_ESTOPPED; code < 0; code++)
		assert(strcmp(uvala_strerror(code), "unknown error") != 0);
	assert(strcmp(uvala_strerror(UVALA_ESTOPPED - 1), "unknown error") == 0);
	printf("%s\n", uvala_version());
	return 0;
}
