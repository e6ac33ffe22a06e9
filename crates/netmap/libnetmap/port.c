// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * port.c - ports, from a string to mapped rings and back.
 *
 *	new ──► parse ──► register ──► mmap
 *	│       │         │            └ a memory of the context, or one more
 *	│       │         └ a descriptor of /dev/netmap, bound
 *	│       └ hdr, reg, and a list of options with what they hold
 *	└ all 0
 *
 * Each step is undone by one function, which does nothing where the step was not taken.
 */
#include "internal.h"

static struct nmport_d *new_in(struct nmctx *ctx)
{
	struct nmport_d *d = (struct nmport_d *)nmctx_malloc(ctx, sizeof(*d));

	if (!d) {
		nmctx_fails_(ctx, ENOMEM, "no memory for a port");
		return NULL;
	}
	memset(d, 0, sizeof(*d));
	nmreq_header_init(&d->hdr, NETMAP_REQ_REGISTER, &d->reg);
	d->ctx = ctx;
	d->fd = -1;
	return d;
}

struct nmport_d *nmport_new(void)
{
	return new_in(nmctx_get());
}

void nmport_delete(struct nmport_d *d)
{
	nmctx_free(d->ctx, d);
}

/* ---- options, and what they hold ---- */

static struct nmport_cleanup_d *push_cleanup(struct nmport_d *d)
{
	struct nmport_cleanup_d *c;

	c = (struct nmport_cleanup_d *)nmctx_malloc(d->ctx, sizeof(*c));
	if (!c) {
		nmctx_fails_(d->ctx, ENOMEM, "no memory for an option");
		return NULL;
	}
	memset(c, 0, sizeof(*c));
	c->next = d->clist;
	d->clist = c;
	return c;
}

static void pop_cleanup(struct nmport_d *d)
{
	struct nmport_cleanup_d *c = d->clist;

	d->clist = c->next;
	if (c->option) {
		nmreq_remove_option(&d->hdr, c->option);
		if (d->extmem && c->option == &d->extmem->nro_opt)
			d->extmem = NULL;
		nmctx_free(d->ctx, c->option);
	}
	if (c->mapping)
		munmap(c->mapping, c->size);
	if (c->is_register)
		d->reg = c->asked;
	nmctx_free(d->ctx, c);
}

/* Adds an option of this size to the request. */
static struct nmreq_option *push_option(struct nmport_d *d, uint32_t reqtype, size_t size)
{
	struct nmport_cleanup_d *c;

	if (d->register_done) {
		nmctx_fails_(d->ctx, EINVAL, "%s: it is registered already", d->hdr.nr_name);
		return NULL;
	}
	c = push_cleanup(d);
	if (!c)
		return NULL;
	c->option = (struct nmreq_option *)nmctx_malloc(d->ctx, size);
	if (!c->option) {
		pop_cleanup(d);
		nmctx_fails_(d->ctx, ENOMEM, "no memory for an option");
		return NULL;
	}
	memset(c->option, 0, size);
	c->option->nro_reqtype = reqtype;
	nmreq_push_option(&d->hdr, c->option);
	return c->option;
}

int nmport_extmem(struct nmport_d *d, void *base, size_t size)
{
	struct nmreq_opt_extmem *extmem;

	if (d->extmem)
		return nmctx_fails_(d->ctx, EINVAL, "%s: it has external memory already",
				    d->hdr.nr_name);
	extmem = (struct nmreq_opt_extmem *)push_option(d, NETMAP_REQ_OPT_EXTMEM, sizeof(*extmem));
	if (!extmem)
		return -1;
	extmem->nro_usrptr = (uintptr_t)base;
	extmem->nro_info.nr_memsize = size;
	d->extmem = extmem;
	return 0;
}

/* Maps a file as a whole; NULL, with errno. */
static void *map_file(const char *fname, size_t *size)
{
	int fd = open(fname, O_RDWR | O_CLOEXEC), error;
	void *mapping = MAP_FAILED;
	off_t end;

	if (fd < 0)
		return NULL;
	end = lseek(fd, 0, SEEK_END);
	if (end >= 0) {
		*size = (size_t)end;
		mapping = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	}
	error = errno;
	close(fd);
	errno = error;
	return mapping == MAP_FAILED ? NULL : mapping;
}

int nmport_extmem_from_file(struct nmport_d *d, const char *fname)
{
	struct nmport_cleanup_d *c = push_cleanup(d);
	int error;

	if (!c)
		return -1;
	c->mapping = map_file(fname, &c->size);
	if (!c->mapping)
		nmctx_fails_(d->ctx, errno, "cannot map %s: %s", fname, strerror(errno));
	else if (!nmport_extmem(d, c->mapping, c->size))
		return 0;
	error = errno;
	pop_cleanup(d);
	errno = error;
	return -1;
}

struct nmreq_pools_info *nmport_extmem_getinfo(struct nmport_d *d)
{
	return d->extmem ? &d->extmem->nro_info : NULL;
}

int nmport_offset(struct nmport_d *d, uint64_t initial, uint64_t maxoff, uint64_t bits,
		  uint64_t mingap)
{
	struct nmreq_opt_offsets *offsets;

	offsets = (struct nmreq_opt_offsets *)push_option(d, NETMAP_REQ_OPT_OFFSETS,
							  sizeof(*offsets));
	if (!offsets)
		return -1;
	offsets->nro_initial_offset = initial;
	offsets->nro_max_offset = maxoff;
	offsets->nro_offset_bits = (uint32_t)bits;
	offsets->nro_min_gap = mingap;
	return 0;
}

static struct nmreq_opt_parser *option_of(const char *name)
{
	struct nmreq_opt_parser *option = nmport_options_;

	while (option && strcmp(option->prefix, name))
		option = option->next;
	return option;
}

void nmport_disable_option(const char *opt)
{
	struct nmreq_opt_parser *option = option_of(opt);

	if (option)
		option->flags |= NMREQ_OPTF_DISABLED;
}

int nmport_enable_option(const char *opt)
{
	struct nmreq_opt_parser *option = option_of(opt);

	if (!option) {
		errno = EOPNOTSUPP;
		return -1;
	}
	option->flags &= ~NMREQ_OPTF_DISABLED;
	return 0;
}

/* ---- from a string to a request ---- */

int nmport_parse(struct nmport_d *d, const char *portspec)
{
	struct nmport_cleanup_d *before = d->clist;
	struct nmreq_header hdr = d->hdr;
	struct nmreq_register reg = d->reg;
	int error;

	if (!nmreq_header_decode(&portspec, &d->hdr, d->ctx) &&
	    !nmreq_register_decode(&portspec, &d->reg, d->ctx) &&
	    !nmreq_options_decode(portspec, nmport_options_, d, d->ctx))
		return 0;
	error = errno;
	while (d->clist != before)
		pop_cleanup(d);
	d->hdr = hdr;
	d->reg = reg;
	errno = error;
	return -1;
}

void nmport_undo_parse(struct nmport_d *d)
{
	while (d->clist)
		pop_cleanup(d);
	memset(&d->reg, 0, sizeof(d->reg));
	nmreq_header_init(&d->hdr, NETMAP_REQ_REGISTER, &d->reg);
}

struct nmport_d *nmport_prepare(const char *portspec)
{
	struct nmport_d *d = nmport_new();
	int error;

	if (d && nmport_parse(d, portspec)) {
		error = errno;
		nmport_undo_prepare(d);
		errno = error;
		return NULL;
	}
	return d;
}

void nmport_undo_prepare(struct nmport_d *d)
{
	if (!d)
		return;
	nmport_undo_parse(d);
	nmport_delete(d);
}

struct nmport_d *nmport_clone(struct nmport_d *d)
{
	struct nmport_d *clone;

	if (d->extmem && !d->register_done) {
		nmctx_fails_(d->ctx, EINVAL, "%s: its external memory is not in use yet",
			     d->hdr.nr_name);
		return NULL;
	}
	clone = new_in(d->ctx);
	if (clone) {
		memcpy(clone->hdr.nr_name, d->hdr.nr_name, sizeof(clone->hdr.nr_name));
		clone->hdr.nr_version = d->hdr.nr_version;
		clone->reg = d->reg;
	}
	return clone;
}

/* ---- from a request to rings ---- */

/* Names the options that netmap refuses, if the request failed because of one. */
static int blame_options(struct nmport_d *d)
{
	const struct nmreq_option *option = nmreq_next_option_(d->hdr.nr_options);
	int refused = 0;

	for (; option; option = nmreq_next_option_(option->nro_next))
		if (option->nro_status) {
			nmctx_ferror(d->ctx, "netmap refuses option %s of %s: %s",
				     nmreq_option_name(option->nro_reqtype), d->hdr.nr_name,
				     strerror((int)option->nro_status));
			refused++;
		}
	return refused;
}

int nmport_register(struct nmport_d *d)
{
	struct nmport_cleanup_d *c;
	int error;

	if (d->register_done)
		return nmctx_fails_(d->ctx, EINVAL, "%s: it is registered already", d->hdr.nr_name);
	c = push_cleanup(d);
	if (!c)
		return -1;
	c->asked = d->reg;
	c->is_register = 1;
	d->fd = open(NETMAP_DEVICE_NAME, O_RDWR);
	if (d->fd >= 0 && !ioctl(d->fd, NIOCCTRL, &d->hdr)) {
		d->register_done = 1;
		return 0;
	}
	error = errno;
	if (d->fd < 0)
		nmctx_ferror(d->ctx, "%s: %s", NETMAP_DEVICE_NAME, strerror(error));
	else if (!blame_options(d))
		nmctx_ferror(d->ctx, "netmap refuses %s: %s", d->hdr.nr_name, strerror(error));
	nmport_undo_register(d);
	errno = error;
	return -1;
}

void nmport_undo_register(struct nmport_d *d)
{
	if (d->fd >= 0)
		close(d->fd);
	d->fd = -1;
	d->register_done = 0;
	if (d->clist && d->clist->is_register)
		pop_cleanup(d);
}

/* Adds the memory of a port to those of its context, whose lock is held. */
static struct nmem_d *add_memory(struct nmport_d *d)
{
	struct nmctx *ctx = d->ctx;
	struct nmem_d *memory = (struct nmem_d *)nmctx_malloc(ctx, sizeof(*memory));

	if (!memory) {
		errno = ENOMEM;
		return NULL;
	}
	memset(memory, 0, sizeof(*memory));
	memory->mem_id = d->reg.nr_mem_id;
	memory->is_extmem = d->extmem != NULL;
	if (d->extmem) {
		memory->mem = (void *)(uintptr_t)d->extmem->nro_usrptr;
		memory->size = d->extmem->nro_info.nr_memsize;
	} else {
		memory->size = d->reg.nr_memsize;
		memory->mem = mmap(NULL, memory->size, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd,
				   0);
		if (memory->mem == MAP_FAILED) {
			int error = errno;

			nmctx_free(ctx, memory);
			errno = error;
			return NULL;
		}
	}
	memory->next = ctx->mem_descs;
	if (memory->next)
		memory->next->prev = memory;
	ctx->mem_descs = memory;
	return memory;
}

/* The first and the last ring of count that a port has bound, from offsets. */
static void find_rings(const ssize_t *offsets, uint32_t count, uint16_t *first, uint16_t *last)
{
	uint32_t at = 0;

	while (at < count && !offsets[at])
		at++;
	*first = (uint16_t)at;
	while (at < count && offsets[at])
		at++;
	*last = (uint16_t)(at - 1);
}

int nmport_mmap(struct nmport_d *d)
{
	struct nmem_d *memory;
	uint32_t tx, rx;
	int error;

	if (d->mmap_done || !d->register_done)
		return nmctx_fails_(d->ctx, EINVAL, "%s: it is %s", d->hdr.nr_name,
				    d->mmap_done ? "mapped already" : "not registered");
	nmctx_lock(d->ctx);
	for (memory = d->ctx->mem_descs; memory; memory = memory->next)
		if (memory->mem_id == d->reg.nr_mem_id)
			break;
	if (!memory)
		memory = add_memory(d);
	error = errno;
	if (memory)
		memory->refcount++;
	nmctx_unlock(d->ctx);
	if (!memory)
		return nmctx_fails_(d->ctx, error, "%s: cannot map its memory: %s", d->hdr.nr_name,
				    strerror(error));
	d->mem = memory;
	d->nifp = NETMAP_IF(memory->mem, d->reg.nr_offset);
	tx = d->nifp->ni_tx_rings + d->nifp->ni_host_tx_rings;
	rx = d->nifp->ni_rx_rings + d->nifp->ni_host_rx_rings;
	find_rings(d->nifp->ring_ofs, tx, &d->first_tx_ring, &d->last_tx_ring);
	find_rings(d->nifp->ring_ofs + tx, rx, &d->first_rx_ring, &d->last_rx_ring);
	d->cur_tx_ring = d->first_tx_ring;
	d->cur_rx_ring = d->first_rx_ring;
	d->mmap_done = 1;
	return 0;
}

void nmport_undo_mmap(struct nmport_d *d)
{
	struct nmem_d *memory = d->mem;

	if (!memory)
		return;
	nmctx_lock(d->ctx);
	if (--memory->refcount == 0) {
		if (!memory->is_extmem)
			munmap(memory->mem, memory->size);
		if (memory->next)
			memory->next->prev = memory->prev;
		if (memory->prev)
			memory->prev->next = memory->next;
		else
			d->ctx->mem_descs = memory->next;
		nmctx_free(d->ctx, memory);
	}
	nmctx_unlock(d->ctx);
	d->mem = NULL;
	d->nifp = NULL;
	d->first_tx_ring = d->last_tx_ring = d->cur_tx_ring = 0;
	d->first_rx_ring = d->last_rx_ring = d->cur_rx_ring = 0;
	d->mmap_done = 0;
}

int nmport_open_desc(struct nmport_d *d)
{
	int error;

	if (nmport_register(d))
		return -1;
	if (!nmport_mmap(d))
		return 0;
	error = errno;
	nmport_undo_register(d);
	errno = error;
	return -1;
}

void nmport_undo_open_desc(struct nmport_d *d)
{
	nmport_undo_mmap(d);
	nmport_undo_register(d);
}

struct nmport_d *nmport_open(const char *portspec)
{
	struct nmport_d *d = nmport_prepare(portspec);
	int error;

	if (d && nmport_open_desc(d)) {
		error = errno;
		nmport_undo_prepare(d);
		errno = error;
		return NULL;
	}
	return d;
}

void nmport_close(struct nmport_d *d)
{
	int error = errno;

	if (d)
		nmport_undo_open_desc(d);
	nmport_undo_prepare(d);
	errno = error;
}

/* ---- frames ---- */

/* How much of a frame a slot takes: what is behind its offset, and what slot.len can say. */
static size_t room_of(const struct netmap_ring *ring, const struct netmap_slot *slot)
{
	size_t offset = NETMAP_ROFFSET(ring, slot), room;

	room = offset < ring->nr_buf_size ? ring->nr_buf_size - offset : 0;
	return room < UINT16_MAX ? room : UINT16_MAX;
}

/* Puts a frame into the free slots of a ring, if it fits there. */
static int put_frame(struct netmap_ring *ring, const char *frame, size_t size)
{
	uint32_t at, end = ring->head;
	size_t room = 0, left, part;
	struct netmap_slot *slot;

	do {
		if (end == ring->tail)
			return 0;
		room += room_of(ring, &ring->slot[end]);
		end = nm_ring_next(ring, end);
	} while (room < size);
	left = size;
	for (at = ring->head; at != end; at = nm_ring_next(ring, at)) {
		slot = &ring->slot[at];
		part = room_of(ring, slot);
		part = left < part ? left : part;
		memcpy(NETMAP_BUF_OFFSET(ring, slot), frame + (size - left), part);
		left -= part;
		slot->len = (uint16_t)part;
		slot->flags = left ? NS_MOREFRAG : 0;
	}
	ring->head = ring->cur = end;
	return 1;
}

int nmport_inject(struct nmport_d *d, const void *buf, size_t size)
{
	int tried, count = d->last_tx_ring - d->first_tx_ring + 1;
	uint16_t ring = d->cur_tx_ring;

	for (tried = 0; tried < count; tried++, ring++) {
		if (ring > d->last_tx_ring)
			ring = d->first_tx_ring;
		if (put_frame(NETMAP_TXRING(d->nifp, ring), (const char *)buf, size)) {
			d->cur_tx_ring = ring;
			return (int)size;
		}
	}
	return 0;
}
