// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * request.c - requests, and the first two parts of a port string: the name, and what to bind.
 *
 * A parser reads into variables of its own, and writes to the caller's when it has read all.
 */
#include <ctype.h>
#include "internal.h"

/* Are there only letters, digits and these from here to there? */
static int is_word(const char *from, const char *to, const char *others)
{
	for (; from < to; from++)
		if (!isalnum((unsigned char)*from) && !strchr(others, *from))
			return 0;
	return 1;
}

void nmreq_header_init(struct nmreq_header *hdr, uint16_t reqtype, void *body)
{
	memset(hdr, 0, sizeof(*hdr));
	hdr->nr_version = NETMAP_API;
	hdr->nr_reqtype = reqtype;
	hdr->nr_body = (uintptr_t)body;
}

int nmreq_header_decode(const char **ppspec, struct nmreq_header *hdr, struct nmctx *ctx)
{
	const char *spec = *ppspec, *name = spec, *port, *end, *pipe, *why;

	port = strchr(spec, ':');
	why = "it begins neither with netmap: nor with valeX:";
	if (!port)
		goto bad;
	port++;
	if (!strncmp(spec, "netmap:", 7))
		name = port;
	else if (strncmp(spec, NM_BDG_NAME, 4) || !is_word(spec + 4, port - 1, "_"))
		goto bad;
	end = port + strcspn(port, "-*^/@");
	pipe = port + strcspn(port, "{}");
	pipe = pipe < end ? pipe : end;
	why = "no name follows the colon";
	if (pipe == port)
		goto bad;
	why = "a name has letters, digits, '_' and '.' only";
	if (!is_word(port, pipe, "_."))
		goto bad;
	why = "a pipe is named by letters, digits and underscores";
	if (pipe < end && (pipe + 1 == end || !is_word(pipe + 1, end, "_")))
		goto bad;
	why = "its name is too long";
	if ((size_t)(end - name) >= sizeof(hdr->nr_name))
		goto bad;
	memset(hdr->nr_name, 0, sizeof(hdr->nr_name));
	memcpy(hdr->nr_name, name, (size_t)(end - name));
	*ppspec = end;
	return 0;
bad:
	return nmctx_fails_(ctx, EINVAL, "bad port name '%.100s': %s", spec, why);
}

/* Reads a number of at most max; returns what follows it, or NULL where there is none. */
static const char *read_number(const char *at, unsigned long max, unsigned long *number)
{
	char *end;

	if (!isdigit((unsigned char)*at))
		return NULL;
	*number = strtoul(at, &end, 10);
	return *number <= max ? end : NULL;
}

/* Reads the letters after a slash; returns what follows, or NULL. */
static const char *read_flags(const char *at, uint64_t *flags)
{
	static const char letters[] = "xztrRT";
	static const uint64_t values[] = {
		NR_EXCLUSIVE, NR_ZCOPY_MON, NR_MONITOR_TX, NR_MONITOR_RX, NR_RX_RINGS_ONLY,
		NR_TX_RINGS_ONLY,
	};
	const char *letter;

	if (!*at || *at == '@')
		return NULL;
	for (; *at && *at != '@'; at++) {
		letter = strchr(letters, *at);
		if (!letter)
			return NULL;
		*flags |= values[letter - letters];
	}
	return at;
}

/* Reads which rings; returns what follows, or NULL. */
static const char *read_rings(const char *at, uint32_t *mode, unsigned long *ring)
{
	*mode = NR_REG_ALL_NIC;
	switch (*at) {
	case '*':
		*mode = NR_REG_NIC_SW;
		return at + 1;
	case '-':
		*mode = NR_REG_ONE_NIC;
		return read_number(at + 1, NETMAP_RING_MASK - 1, ring);
	case '^':
		if (!isdigit((unsigned char)at[1])) {
			*mode = NR_REG_SW;
			return at + 1;
		}
		*mode = NR_REG_ONE_SW;
		return read_number(at + 1, NETMAP_RING_MASK - 1, ring);
	default:
		return at;
	}
}

/* Does an option begin here, and no memory's number? */
static int is_option(const char *at)
{
	return *at == '@' && at[1] && !isdigit((unsigned char)at[1]);
}

int nmreq_register_decode(const char **pmode, struct nmreq_register *reg, struct nmctx *ctx)
{
	unsigned long ring = 0, memory = 0, number;
	const char *why = "no ring has this number";
	uint64_t flags = 0;
	const char *at;
	uint32_t mode;

	at = read_rings(*pmode, &mode, &ring);
	while (at && *at && !is_option(at)) {
		if (*at == '/') {
			why = at[1] && at[1] != '@' ? "an unknown letter follows the slash" :
						      "no letter follows the slash";
			at = read_flags(at + 1, &flags);
		} else if (*at == '@') {
			why = "no memory has this number, or there are two";
			at = read_number(at + 1, UINT16_MAX, &number);
			if (!at || !number || (memory && memory != number) ||
			    (reg->nr_mem_id && reg->nr_mem_id != number))
				goto bad;
			memory = number;
		} else {
			why = "something follows its end";
			goto bad;
		}
	}
	if (!at)
		goto bad;
	reg->nr_mode = mode;
	reg->nr_ringid = (uint16_t)ring;
	reg->nr_flags = flags;
	reg->nr_mem_id = memory ? (uint16_t)memory : reg->nr_mem_id;
	*pmode = at;
	return 0;
bad:
	return nmctx_fails_(ctx, EINVAL, "bad end of a port name '%.100s': %s", *pmode, why);
}

int32_t nmreq_get_mem_id(const char **portname, struct nmctx *ctx)
{
	struct nmreq_port_info_get info;
	struct nmreq_header hdr;
	const char *at = *portname;
	int fd, error;

	if (!at)
		return nmctx_fails_(ctx, EINVAL, "no port is named");
	nmreq_header_init(&hdr, NETMAP_REQ_PORT_INFO_GET, &info);
	memset(&info, 0, sizeof(info));
	if (nmreq_header_decode(&at, &hdr, ctx))
		return -1;
	fd = open(NETMAP_DEVICE_NAME, O_RDWR);
	if (fd < 0)
		return nmctx_fails_(ctx, errno, "%s: %s", NETMAP_DEVICE_NAME, strerror(errno));
	error = ioctl(fd, NIOCCTRL, &hdr) ? errno : 0;
	close(fd);
	if (error)
		return nmctx_fails_(ctx, error, "%s: %s", hdr.nr_name, strerror(error));
	*portname = at;
	return info.nr_mem_id;
}

/* ---- lists of options ---- */

void nmreq_push_option(struct nmreq_header *hdr, struct nmreq_option *opt)
{
	opt->nro_next = hdr->nr_options;
	hdr->nr_options = (uintptr_t)opt;
}

void nmreq_remove_option(struct nmreq_header *hdr, struct nmreq_option *opt)
{
	uint64_t *place = &hdr->nr_options;
	struct nmreq_option *at;

	nmreq_foreach_option(hdr, at) {
		if (at == opt) {
			*place = opt->nro_next;
			opt->nro_next = 0;
			return;
		}
		place = &at->nro_next;
	}
}

struct nmreq_option *nmreq_find_option(struct nmreq_header *hdr, uint32_t reqtype)
{
	struct nmreq_option *at;

	nmreq_foreach_option(hdr, at)
		if (at->nro_reqtype == reqtype)
			break;
	return at;
}

void nmreq_free_options(struct nmreq_header *hdr)
{
	struct nmreq_option *at = nmreq_next_option_(hdr->nr_options), *next;

	for (; at; at = next) {
		next = nmreq_next_option_(at->nro_next);
		free(at);
	}
	hdr->nr_options = 0;
}

const char *nmreq_option_name(uint32_t reqtype)
{
	static const char *const names[NETMAP_REQ_OPT_MAX] = {
		[NETMAP_REQ_OPT_EXTMEM] = "extmem",
		[NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS] = "sync-kloop-eventfds",
		[NETMAP_REQ_OPT_CSB] = "csb",
		[NETMAP_REQ_OPT_SYNC_KLOOP_MODE] = "sync-kloop-mode",
		[NETMAP_REQ_OPT_OFFSETS] = "offsets",
	};
	const char *name = reqtype < NETMAP_REQ_OPT_MAX ? names[reqtype] : NULL;

	return name ? name : "unknown";
}
