// SPDX-License-Identifier: MIT OR Apache-2.0
/* libnetmap: ports by one string, as programs for netmap open them. */

#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <libnetmap.h>

/* A context that notes messages, and which of its memory is in use. */
static char said[1200];
static int messages, in_use, allocations, refuses_at;

static void hear(struct nmctx *ctx, const char *message)
{
	(void)ctx;
	snprintf(said, sizeof(said), "%s", message);
	messages++;
}

static void *take(struct nmctx *ctx, size_t size)
{
	(void)ctx;
	if (refuses_at && ++allocations >= refuses_at)
		return NULL;
	in_use++;
	return malloc(size);
}

static void give(struct nmctx *ctx, void *memory)
{
	(void)ctx;
	in_use -= memory != NULL;
	free(memory);
}

static struct nmctx *listen_in(void)
{
	static struct nmctx ctx;

	ctx = *nmctx_get();
	ctx.error = hear, ctx.malloc = take, ctx.free = give;
	nmctx_set_default(&ctx);
	return &ctx;
}

/* The call failed with this errno, and with one message that has these words. */
#define REFUSED(wanted, words, call) \
	do { \
		messages = errno = 0; \
		CHECK(call); \
		CHECK(errno == (wanted)); \
		CHECK(messages == 1); \
		if (!strstr(said, words)) \
			fprintf(stderr, "it says: %s\n", said); \
		CHECK(strstr(said, words) != NULL); \
	} while (0)

static struct nmport_d *opened(const char *portspec)
{
	struct nmport_d *d = nmport_open(portspec);

	CHECK(d != NULL);
	CHECK(d->fd >= 0 && d->register_done && d->mmap_done && d->nifp);
	return d;
}

static int open_files(void)
{
	int fd = dup(0), count = fd;

	CHECK(fd >= 0);
	close(fd);
	return count;
}

static void names_are_read(void)
{
	static const struct {
		const char *spec, *name, *rest;
		uint32_t mode;
		uint16_t ring, memory;
		uint64_t flags;
	} good[] = {
		{ "netmap:eth0", "eth0", "", NR_REG_ALL_NIC, 0, 0, 0 },
		{ "netmap:eth0.100", "eth0.100", "", NR_REG_ALL_NIC, 0, 0, 0 },
		{ "vale:a", "vale:a", "", NR_REG_ALL_NIC, 0, 0, 0 },
		{ "vale0:a", "vale0:a", "", NR_REG_ALL_NIC, 0, 0, 0 },
		{ "netmap:eth0-3", "eth0", "", NR_REG_ONE_NIC, 3, 0, 0 },
		{ "netmap:eth0^", "eth0", "", NR_REG_SW, 0, 0, 0 },
		{ "netmap:eth0^2", "eth0", "", NR_REG_ONE_SW, 2, 0, 0 },
		{ "netmap:eth0*", "eth0", "", NR_REG_NIC_SW, 0, 0, 0 },
		{ "netmap:eth0-2/Tx", "eth0", "", NR_REG_ONE_NIC, 2, 0,
		  NR_TX_RINGS_ONLY | NR_EXCLUSIVE },
		{ "vale0:a/zt", "vale0:a", "", NR_REG_ALL_NIC, 0, 0, NR_ZCOPY_MON | NR_MONITOR_TX },
		{ "vale0:a/r@7", "vale0:a", "", NR_REG_ALL_NIC, 0, 7, NR_MONITOR_RX },
		{ "vale0:a@7/R", "vale0:a", "", NR_REG_ALL_NIC, 0, 7, NR_RX_RINGS_ONLY },
		{ "vale0:a@7/R@7", "vale0:a", "", NR_REG_ALL_NIC, 0, 7, NR_RX_RINGS_ONLY },
		{ "netmap:eth0^0/xT@conf:host-rings=2", "eth0", "@conf:host-rings=2",
		  NR_REG_ONE_SW, 0, 0, NR_EXCLUSIVE | NR_TX_RINGS_ONLY },
		{ "vale0:a{in-1", "vale0:a{in", "", NR_REG_ONE_NIC, 1, 0, 0 },
		{ "vale0:a}0@1", "vale0:a}0", "", NR_REG_ALL_NIC, 0, 1, 0 },
		{ "vale0:a-1@conf:rings=2@share=x", "vale0:a", "@conf:rings=2@share=x",
		  NR_REG_ONE_NIC, 1, 0, 0 },
		{ "vale0:a/x@2@conf=2", "vale0:a", "@conf=2", NR_REG_ALL_NIC, 0, 2, NR_EXCLUSIVE },
	};
	struct nmreq_header hdr;
	struct nmreq_register reg;
	const char *at;
	size_t i;

	for (i = 0; i < sizeof(good) / sizeof(*good); i++) {
		memset(&hdr, 0, sizeof(hdr)), memset(&reg, 0, sizeof(reg));
		at = good[i].spec;
		if (nmreq_header_decode(&at, &hdr, nmctx_get()) ||
		    nmreq_register_decode(&at, &reg, nmctx_get()))
			_exit(1);
		if (strcmp(hdr.nr_name, good[i].name) || strcmp(at, good[i].rest) ||
		    reg.nr_mode != good[i].mode || reg.nr_ringid != good[i].ring ||
		    reg.nr_mem_id != good[i].memory || reg.nr_flags != good[i].flags) {
			fprintf(stderr, "%s is misread\n", good[i].spec);
			_exit(1);
		}
	}
}

static void bad_names_say_what_is_bad(void)
{
	static const struct { const char *spec, *why; } bad[] = {
		{ "eth0", "begins neither" },
		{ "", "begins neither" },
		{ "netmapx:a", "begins neither" },
		{ "vale-0:a", "begins neither" },
		{ "vale0", "begins neither" },
		{ "netmap:", "no name follows" },
		{ "vale0:^", "no name follows" },
		{ "netmap:{", "no name follows" },
		{ "netmap:{x", "no name follows" },
		{ "netmap:eth0&", "letters, digits" },
		{ "netmap:vale0:0", "letters, digits" },
		{ "vale0:a b{1", "letters, digits" },
		{ "netmap:a{1}2", "pipe" },
		{ "vale0:a{!", "pipe" },
		{ "vale0:this_is_much_too_long_for_a_name_of_a_port_of_any_switch_in_the_world",
		  "too long" },
		{ "netmap:eth0-", "no ring" },
		{ "netmap:eth0-4095", "no ring" },
		{ "netmap:eth0/q", "unknown letter" },
		{ "netmap:eth0/", "no letter" },
		{ "netmap:eth0/@2", "no letter" },
		{ "netmap:eth0@", "no memory" },
		{ "netmap:eth0@0", "no memory" },
		{ "netmap:eth0@65536", "no memory" },
		{ "netmap:eth0@2/R@3", "no memory" },
		{ "netmap:eth0^x", "follows its end" },
	};
	struct nmport_d *d, before;
	const char *at;
	size_t i;

	listen_in();
	d = nmport_prepare("vale0:good/x@conf:rings=2");
	CHECK(d != NULL);
	before = *d;
	for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		REFUSED(EINVAL, bad[i].why, nmport_open(bad[i].spec) == NULL);
		/* One that was read before stays as it was. */
		REFUSED(EINVAL, bad[i].why, nmport_parse(d, bad[i].spec) == -1);
		CHECK(!memcmp(d, &before, sizeof(before)));
	}
	nmport_undo_prepare(d);
	at = NULL;
	REFUSED(EINVAL, "no port", nmreq_get_mem_id(&at, nmctx_get()) == -1);
	CHECK(in_use == 0);
}

/* A sender and a receiver, in processes of their own. */
static void a_sender_and_a_receiver_meet(void)
{
	enum { FRAMES = 5000 };
	char frame[200] = { 0 };
	struct nmport_d *d;
	struct pollfd place;
	int ready[2], i = 0;
	pid_t child;

	CHECK(pipe(ready) == 0);
	child = fork();
	if (!child) {
		struct netmap_ring *ring;

		d = opened("vale0:receiver@conf:slots=1024");
		CHECK(write(ready[1], "", 1) == 1);
		place.fd = d->fd, place.events = POLLIN;
		while (i < FRAMES) {
			CHECK(poll(&place, 1, 10000) == 1 && place.revents == POLLIN);
			ring = NETMAP_RXRING(d->nifp, d->first_rx_ring);
			for (; !nm_ring_empty(ring); i++) {
				struct netmap_slot *slot = &ring->slot[ring->head];
				int got;

				memcpy(&got, NETMAP_BUF(ring, slot->buf_idx) + 60, sizeof(got));
				CHECK(slot->len == sizeof(frame) && got == i);
				ring->head = ring->cur = nm_ring_next(ring, ring->head);
			}
		}
		nmport_close(d);
		_exit(0);
	}
	CHECK(read(ready[0], frame, 1) == 1);
	d = opened("vale0:sender@conf:slots=1024");
	memset(frame, 0xff, 6);
	frame[6] = 2;
	place.fd = d->fd, place.events = POLLOUT;
	/* The receiver has to keep up: not more at a time than it has slots for. */
	while (i < FRAMES) {
		memcpy(frame + 60, &i, sizeof(i));
		if (nmport_inject(d, frame, sizeof(frame)) == sizeof(frame) && ++i % 500)
			continue;
		CHECK(ioctl(d->fd, NIOCTXSYNC, NULL) == 0);
		CHECK(poll(&place, 1, 10000) == 1);
		usleep(20000);
	}
	while (nm_tx_pending(NETMAP_TXRING(d->nifp, 0)))
		CHECK(ioctl(d->fd, NIOCTXSYNC, NULL) == 0);
	expect_child(child);
	nmport_close(d);
}

static void options_shape_a_port(void)
{
	struct nmport_d *d = opened("vale0:a@conf:tx-slots=512,rings=2,tx-rings=3,slots=256");

	CHECK(d->reg.nr_tx_rings == 3 && d->reg.nr_rx_rings == 2);
	CHECK(d->reg.nr_tx_slots == 512 && d->reg.nr_rx_slots == 256);
	CHECK(d->first_tx_ring == 0 && d->last_tx_ring == 2 && d->last_rx_ring == 1);
	CHECK(NETMAP_TXRING(d->nifp, 2)->num_slots == 512);
	CHECK(NETMAP_RXRING(d->nifp, 1)->num_slots == 256);
	nmport_close(d);
	d = opened("vale0:b-1/R@conf=2");
	CHECK(d->first_rx_ring == 1 && d->last_rx_ring == 1);
	CHECK(d->last_tx_ring < d->first_tx_ring);
	CHECK(nmport_inject(d, "", 1) == 0);
	nmport_close(d);
}

static void bad_options_say_what_is_bad(void)
{
	static const struct { const char *options, *why; int error; } bad[] = {
		{ "@what:x=1", "no option 'what'", EINVAL },
		{ "@conf", "needs a value", EINVAL },
		{ "@conf:", "needs a value", EINVAL },
		{ "@conf=", "needs a value", EINVAL },
		{ "@conf:ring=2", "no key 'ring'", EINVAL },
		{ "@conf:rings", "key rings needs a value", EINVAL },
		{ "@conf:rings=", "key rings needs a value", EINVAL },
		{ "@conf:rings=2,rings=2", "given twice", EINVAL },
		{ "@conf:rings=two", "not a number", EINVAL },
		{ "@conf:rings=-1", "not a number", EINVAL },
		{ "@conf:rings=65536", "up to 65535", EINVAL },
		{ "@conf:slots=99999999999999999999", "not a number", EINVAL },
		{ "@conf:rings=2@extmem:buf-num=4", "needs key file", EINVAL },
		{ "@extmem=/nowhere/file", "cannot map /nowhere/file", ENOENT },
		{ "@share=nothing", "begins neither", EINVAL },
		{ "@share=netmap:absent", "absent: No such device", ENXIO },
		{ "@offset=64", "this program has no option 'offset'", EOPNOTSUPP },
	};
	char spec[200];
	size_t i;

	listen_in();
	for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		snprintf(spec, sizeof(spec), "vale0:a%s", bad[i].options);
		REFUSED(bad[i].error, bad[i].why, nmport_open(spec) == NULL);
	}
	CHECK(in_use == 0);
	nmport_disable_option("conf");
	REFUSED(EOPNOTSUPP, "no option 'conf'", nmport_open("vale0:a@conf:rings=2") == NULL);
	CHECK(nmport_enable_option("conf") == 0);
	nmport_close(opened("vale0:a@conf:rings=2"));
	nmport_disable_option("none");
	FAILS(EOPNOTSUPP, nmport_enable_option("none"));
}

static void the_context_decides(void)
{
	struct nmctx *ctx = listen_in(), own = *ctx;
	int files = open_files();
	struct nmport_d *d;

	CHECK(nmctx_get() == ctx && nmctx_set_default(&own) == ctx && nmctx_get() == &own);
	d = opened("vale0:a");
	CHECK(d->ctx == &own && own.mem_descs == d->mem && !ctx->mem_descs && in_use > 0);
	nmport_close(d);
	CHECK(in_use == 0 && !own.mem_descs);
	own.verbose = 0;
	messages = 0;
	FAILS(EINVAL, nmport_open("bad") ? 0 : -1);
	CHECK(messages == 0);
	own.verbose = 1;
	nmctx_ferror(&own, "%s %d%2000s", "a long one:", 7, "");
	CHECK(messages == 1 && !strncmp(said, "a long one: 7", 13));
	/* Whatever it has no memory for, it says so and keeps none. */
	for (refuses_at = 1; refuses_at < 50; refuses_at++) {
		allocations = errno = 0;
		d = nmport_open("vale0:a@conf:rings=2");
		if (d)
			break;
		CHECK(errno == ENOMEM && in_use == 0 && open_files() == files);
	}
	CHECK(refuses_at > 2 && refuses_at < 50);
	nmport_close(d);
	CHECK(in_use == 0 && open_files() == files);
}

static void ports_of_one_memory_share_it(void)
{
	struct nmport_d *a = opened("vale0:a"), *b, *c, *to = opened("vale0:to");
	struct netmap_ring *ring = NETMAP_TXRING(a->nifp, 0);
	char spec[64], frame[60] = { (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff,
				     (char)0xff, 2 };
	uint32_t buffer;

	b = opened("vale1:b@share=vale0:a");
	snprintf(spec, sizeof(spec), "vale0:c@%d", a->reg.nr_mem_id);
	c = opened(spec);
	CHECK(a->mem == b->mem && b->mem == c->mem && a->mem->refcount == 3);
	CHECK(to->mem != a->mem && a->mem->mem_id == a->reg.nr_mem_id);
	/* A buffer of one is sent by the other. */
	buffer = ring->slot[0].buf_idx;
	memcpy(NETMAP_BUF(ring, buffer), frame, sizeof(frame));
	ring->slot[0].buf_idx = NETMAP_TXRING(c->nifp, 0)->slot[0].buf_idx;
	ring->slot[0].flags = NS_BUF_CHANGED;
	ring = NETMAP_TXRING(c->nifp, 0);
	ring->slot[0].buf_idx = buffer;
	ring->slot[0].len = sizeof(frame);
	ring->slot[0].flags = NS_BUF_CHANGED;
	ring->head = ring->cur = 1;
	CHECK(ioctl(c->fd, NIOCTXSYNC, NULL) == 0);
	ring = NETMAP_RXRING(to->nifp, 0);
	while (nm_ring_empty(ring))
		CHECK(ioctl(to->fd, NIOCRXSYNC, NULL) == 0);
	CHECK(!memcmp(NETMAP_BUF(ring, ring->slot[0].buf_idx), frame, sizeof(frame)));
	nmport_close(a);
	nmport_close(c);
	CHECK(b->mem->refcount == 1 && b->nifp->ni_tx_rings == 1);
	nmport_close(to);
	CHECK(nmctx_get()->mem_descs == b->mem && !b->mem->next && !b->mem->prev);
	nmport_close(b);
	CHECK(!nmctx_get()->mem_descs);
}

/* As pkt-gen has a thread for each ring. */
static void a_clone_opens_the_same_port_again(void)
{
	struct nmport_d *d = nmport_prepare("vale0:a@conf:rings=2"), *clone;

	CHECK(d && !d->register_done && d->fd == -1);
	d->reg.nr_extra_bufs = 10;
	CHECK(nmport_open_desc(d) == 0 && d->reg.nr_extra_bufs == 10 && d->nifp->ni_bufs_head);
	clone = nmport_clone(d);
	CHECK(clone && clone->fd == -1 && clone->ctx == d->ctx && !clone->hdr.nr_options);
	CHECK(clone->hdr.nr_body == (uintptr_t)&clone->reg);
	clone->reg.nr_mode = NR_REG_ONE_NIC;
	clone->reg.nr_ringid = 1;
	clone->reg.nr_extra_bufs = 0;
	CHECK(nmport_open_desc(clone) == 0 && clone->mem == d->mem && clone->fd != d->fd);
	CHECK(clone->first_tx_ring == 1 && clone->last_tx_ring == 1);
	CHECK(NETMAP_TXRING(clone->nifp, 1) == NETMAP_TXRING(d->nifp, 1));
	nmport_close(d);
	CHECK(nmport_inject(clone, "a frame that is longer than a header", 36) == 36);
	nmport_close(clone);
}

static void a_long_frame_takes_several_slots(void)
{
	struct nmport_d *a = opened("vale0:a@conf:slots=64"), *b = opened("vale0:b");
	struct netmap_ring *ring = NETMAP_TXRING(a->nifp, 0);
	char frame[9000], got[9000];
	uint32_t size = ring->nr_buf_size, slots = (9000 + size - 1) / size, at, from = 0;
	int count;

	memset(frame, 0x5a, sizeof(frame)), memset(frame, 0xff, 6);
	frame[6] = 2, frame[8999] = 1;
	for (count = 0; nmport_inject(a, frame, sizeof(frame)) == sizeof(frame); count++)
		;
	CHECK(count == (int)(63 / slots) && ring->head == slots * (uint32_t)count);
	CHECK(ring->slot[0].flags == NS_MOREFRAG && ring->slot[slots - 1].flags == 0);
	/* What has no room changes nothing. */
	CHECK(nm_ring_space(ring) < slots && nmport_inject(a, frame, 60) == 60);
	CHECK(ioctl(a->fd, NIOCTXSYNC, NULL) == 0);
	ring = NETMAP_RXRING(b->nifp, 0);
	while (nm_ring_space(ring) < slots)
		CHECK(ioctl(b->fd, NIOCRXSYNC, NULL) == 0);
	for (at = 0; at < slots; at++) {
		memcpy(got + from, NETMAP_BUF(ring, ring->slot[at].buf_idx), ring->slot[at].len);
		from += ring->slot[at].len;
	}
	CHECK(from == sizeof(frame) && !memcmp(got, frame, sizeof(frame)));
	nmport_close(a);
	nmport_close(b);
}

static void a_frame_without_room_leaves_the_port_as_it_was(void)
{
	struct nmport_d *d = opened("vale0:a@conf:rings=3,slots=64");
	char frame[60] = { 0 };

	while (nmport_inject(d, frame, sizeof(frame)))
		;
	CHECK(d->cur_tx_ring == d->last_tx_ring);
	d->cur_tx_ring = d->first_tx_ring;
	CHECK(nmport_inject(d, frame, sizeof(frame)) == 0);
	CHECK(d->cur_tx_ring == d->first_tx_ring);
	nmport_close(d);
}

/* slot.len has 16 bits; buffers may be larger. */
static void a_slot_takes_no_more_than_its_length_can_say(void)
{
	enum { BUFFER = 200000, AT = 4096, SLOTS = 4, SIZE = 100000 };
	char *memory = calloc(1, 2 * AT + SLOTS * BUFFER), *frame = malloc(SIZE);
	struct netmap_ring *ring = (struct netmap_ring *)(memory + AT);
	struct nmport_d d = { .nifp = (struct netmap_if *)memory };
	uint32_t i;

	*(ssize_t *)(uintptr_t)&d.nifp->ring_ofs[0] = AT;
	*(int64_t *)(uintptr_t)&ring->buf_ofs = AT;
	*(uint32_t *)(uintptr_t)&ring->num_slots = SLOTS;
	*(uint32_t *)(uintptr_t)&ring->nr_buf_size = BUFFER;
	for (i = 0; i < SLOTS; i++)
		ring->slot[i].buf_idx = i;
	ring->tail = SLOTS - 1;
	memset(frame, 0x5a, SIZE);
	CHECK(nmport_inject(&d, frame, SIZE) == SIZE && ring->head == 2);
	CHECK(ring->slot[0].len == 65535 && ring->slot[0].flags == NS_MOREFRAG);
	CHECK(ring->slot[1].len == SIZE - 65535 && !ring->slot[1].flags);
	CHECK(!memcmp(NETMAP_BUF(ring, 0), frame, 65535) && !NETMAP_BUF(ring, 0)[65535]);
	free(memory);
	free(frame);
}

static void a_file_becomes_the_memory(void)
{
	char path[] = "/tmp/libnetmap-XXXXXX", spec[100];
	size_t size = 16 << 20;
	int fd = mkstemp(path);
	struct nmport_d *d;
	void *memory;

	CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	snprintf(spec, sizeof(spec), "vale0:a@extmem:file=%s,buf-size=2048", path);
	d = opened(spec);
	memory = d->mem->mem;
	CHECK(d->extmem && (uintptr_t)memory == d->extmem->nro_usrptr && d->mem->is_extmem);
	CHECK(d->mem->size == size && (char *)d->nifp < (char *)memory + size);
	CHECK(nmport_extmem_getinfo(d)->nr_memsize == size);
	CHECK(NETMAP_TXRING(d->nifp, 0)->nr_buf_size == 2048);
	CHECK(nmreq_find_option(&d->hdr, NETMAP_REQ_OPT_EXTMEM) == &d->extmem->nro_opt);
	nmport_close(d);
	/* It was unmapped: this place is free. */
	CHECK(mmap(memory, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
		   0) == memory);
	listen_in();
	d = nmport_prepare(spec);
	CHECK(d != NULL);
	REFUSED(EINVAL, "external memory already", nmport_extmem(d, spec, 1) == -1);
	REFUSED(EINVAL, "external memory is not in use", nmport_clone(d) == NULL);
	nmport_undo_prepare(d);
	/* Of a port that netmap refuses, the option is named that it did not like. */
	snprintf(spec, sizeof(spec), "vale0:a@extmem:file=%s,ring-size=1048576", path);
	REFUSED(EINVAL, "refuses option extmem of vale0:a: Invalid", nmport_open(spec) == NULL);
	CHECK(in_use == 0);
	close(fd);
	unlink(path);
}

static void frames_begin_at_an_offset(void)
{
	struct nmport_d *a, *b = opened("vale0:b");
	struct netmap_ring *ring;
	char frame[60] = { (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff,
			   2 };

	CHECK(nmport_enable_option("offset") == 0);
	a = opened("vale0:a@offset=64");
	ring = NETMAP_TXRING(a->nifp, 0);
	CHECK(ring->offset_mask && NETMAP_ROFFSET(ring, &ring->slot[0]) == 64);
	CHECK(nmport_inject(a, frame, sizeof(frame)) == sizeof(frame));
	CHECK(!memcmp(NETMAP_BUF(ring, ring->slot[0].buf_idx) + 64, frame, sizeof(frame)));
	CHECK(ioctl(a->fd, NIOCTXSYNC, NULL) == 0);
	ring = NETMAP_RXRING(b->nifp, 0);
	while (nm_ring_empty(ring))
		CHECK(ioctl(b->fd, NIOCRXSYNC, NULL) == 0);
	CHECK(!memcmp(NETMAP_BUF(ring, ring->slot[0].buf_idx), frame, sizeof(frame)));
	nmport_close(a);
	nmport_close(b);
}

static void each_step_has_its_reverse(void)
{
	struct nmport_d *d;
	int files = open_files();

	listen_in();
	d = nmport_new();
	CHECK(d && d->fd == -1 && d->hdr.nr_reqtype == NETMAP_REQ_REGISTER);
	nmport_undo_parse(d);
	CHECK(d->hdr.nr_reqtype == NETMAP_REQ_REGISTER && d->hdr.nr_body == (uintptr_t)&d->reg);
	REFUSED(EINVAL, "not registered", nmport_mmap(d) == -1);
	REFUSED(ENXIO, "netmap_none", nmport_parse(d, "netmap:netmap_none") == 0 &&
		nmport_register(d) == -1);
	/* Programs look at errno after they have tidied up. */
	nmport_close(d);
	CHECK(errno == ENXIO);
	d = nmport_new();
	CHECK(nmport_parse(d, "vale0:a@conf:rings=2") == 0 && d->reg.nr_tx_rings == 2);
	CHECK(nmport_register(d) == 0 && d->fd >= 0 && !d->nifp);
	REFUSED(EINVAL, "registered already", nmport_register(d) == -1);
	REFUSED(EINVAL, "registered already", nmport_offset(d, 1, 1, 0, 0) == -1);
	CHECK(nmport_mmap(d) == 0 && d->last_tx_ring == 1);
	REFUSED(EINVAL, "mapped already", nmport_mmap(d) == -1);
	nmport_undo_mmap(d);
	CHECK(!d->nifp && !d->mem && d->register_done);
	CHECK(nmport_mmap(d) == 0);
	nmport_undo_open_desc(d);
	CHECK(open_files() == files && d->reg.nr_tx_rings == 2 && d->reg.nr_mem_id == 0);
	CHECK(nmport_open_desc(d) == 0);
	nmport_undo_open_desc(d);
	nmport_undo_open_desc(d);
	nmport_undo_parse(d);
	nmport_undo_parse(d);
	CHECK(nmport_parse(d, "vale0:a") == 0 && nmport_open_desc(d) == 0);
	nmport_close(d);
	nmport_close(NULL);
	nmport_undo_prepare(NULL);
	CHECK(in_use == 0 && open_files() == files);
}

/* A program's own options. */
static int parsed, result;
static const char *values[NMREQ_OPT_MAXKEYS];

static int note(struct nmreq_parse_ctx *p)
{
	size_t i;

	CHECK(p->token == &parsed);
	parsed++;
	for (i = 0; i < NMREQ_OPT_MAXKEYS; i++)
		values[i] = p->keys[i] ? strdup(p->keys[i]) : NULL;
	errno = result ? EDOM : 0;
	return result;
}

static void programs_have_options_of_their_own(void)
{
	struct nmreq_opt_parser flag = { .prefix = "flag", .parse = note, .default_key = -1,
					 .flags = NMREQ_OPTF_ALLOWEMPTY };
	struct nmreq_opt_parser many = {
		.prefix = "many", .parse = note, .default_key = 2, .nr_keys = 3, .next = &flag,
		.keys = { { "two_words", 5, NMREQ_OPTK_MUSTSET }, { "bare", 1, NMREQ_OPTK_ALLOWEMPTY },
			  { "plain", 2, NMREQ_OPTK_DEFAULT } },
	};
	struct nmctx *ctx = listen_in();

	CHECK(nmreq_options_decode("", &many, &parsed, ctx) == 0 && parsed == 0);
	CHECK(nmreq_options_decode("@flag@many:two-words=a=b,bare", &many, &parsed, ctx) == 0);
	CHECK(parsed == 2 && !strcmp(values[5], "a=b") && !strcmp(values[1], "bare") && !values[2]);
	CHECK(nmreq_options_decode("@many:plain=x,two_words=y", &many, &parsed, ctx) == 0);
	CHECK(!strcmp(values[2], "x") && !strcmp(values[5], "y") && !values[1]);
	many.keys[0].flags = 0;
	CHECK(nmreq_options_decode("@many=z", &many, &parsed, ctx) == 0 && !strcmp(values[2], "z"));
	REFUSED(EINVAL, "needs keys", nmreq_options_decode("@flag=1", &many, &parsed, ctx) == -1);
	REFUSED(EINVAL, "begin with @", nmreq_options_decode("flag", &many, &parsed, ctx) == -1);
	REFUSED(EINVAL, "no option ''", nmreq_options_decode("@@flag", &many, &parsed, ctx) == -1);
	result = -1;
	FAILS(EDOM, nmreq_options_decode("@flag", &many, &parsed, ctx));
	CHECK(in_use == 0);
}

static void lists_of_options(void)
{
	struct nmreq_option *options[3], *at;
	struct nmreq_header hdr;
	int i;

	nmreq_header_init(&hdr, NETMAP_REQ_CSB_ENABLE, NULL);
	CHECK(hdr.nr_version == NETMAP_API && hdr.nr_reqtype == NETMAP_REQ_CSB_ENABLE);
	for (i = 0; i < 3; i++) {
		options[i] = calloc(1, sizeof(**options));
		options[i]->nro_reqtype = (uint32_t)i + 1;
		nmreq_push_option(&hdr, options[i]);
	}
	CHECK(nmreq_find_option(&hdr, 2) == options[1] && !nmreq_find_option(&hdr, 4));
	nmreq_remove_option(&hdr, options[1]);
	CHECK(!nmreq_find_option(&hdr, 2) && !options[1]->nro_next);
	nmreq_foreach_option(&hdr, at)
		i--;
	CHECK(i == 1);
	nmreq_remove_option(&hdr, options[1]);
	nmreq_free_options(&hdr);
	CHECK(!hdr.nr_options);
	free(options[1]);
	CHECK(!strcmp(nmreq_option_name(NETMAP_REQ_OPT_CSB), "csb"));
	CHECK(!strcmp(nmreq_option_name(NETMAP_REQ_OPT_EXTMEM), "extmem"));
	CHECK(!strcmp(nmreq_option_name(77), "unknown"));
}

static void *open_and_close(void *name)
{
	struct nmport_d *own, *other;
	char spec[64];
	int i;

	for (i = 0; i < 30; i++) {
		own = opened(name);
		snprintf(spec, sizeof(spec), "vale9:x%.10s@%d", strchr(name, ':') + 1,
			 own->reg.nr_mem_id);
		other = opened(spec);
		CHECK(own->mem == other->mem && own->mem->refcount == 2);
		nmport_close(own);
		nmport_close(other);
	}
	return NULL;
}

static void threads_have_ports_of_their_own(void)
{
	static char names[4][10] = { "vale0:a", "vale0:b", "vale0:c", "vale0:d" };
	pthread_t threads[4];
	int i;

	for (i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, open_and_close, names[i]) == 0);
	for (i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(!nmctx_get()->mem_descs);
	nmctx_get()->lock = NULL;
	nmctx_set_threadsafe();
	CHECK(nmctx_get()->lock != NULL);
}

/* Neither the archive nor the preloaded library shows libnetmap's names to others in a process. */
static void no_other_copy_is_disturbed(void)
{
	static const char *const names[] = { "nmport_open", "nmport_close", "nmreq_header_decode",
					     "nmctx_get", "nmctx_ferror" };
	size_t i;

	nmport_close(opened("vale0:a"));
	for (i = 0; i < sizeof(names) / sizeof(*names); i++)
		CHECK(!dlsym(RTLD_DEFAULT, names[i]));
}

static const struct test tests[] = {
	TEST(names_are_read),
	TEST(bad_names_say_what_is_bad),
	TEST(a_sender_and_a_receiver_meet),
	TEST(options_shape_a_port),
	TEST(bad_options_say_what_is_bad),
	TEST(the_context_decides),
	TEST(ports_of_one_memory_share_it),
	TEST(a_clone_opens_the_same_port_again),
	TEST(a_long_frame_takes_several_slots),
	TEST(a_frame_without_room_leaves_the_port_as_it_was),
	TEST(a_slot_takes_no_more_than_its_length_can_say),
	TEST(a_file_becomes_the_memory),
	TEST(frames_begin_at_an_offset),
	TEST(each_step_has_its_reverse),
	TEST(programs_have_options_of_their_own),
	TEST(lists_of_options),
	TEST(threads_have_ports_of_their_own),
	TEST(no_other_copy_is_disturbed),
};

MAIN(tests)
