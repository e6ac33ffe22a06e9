// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * options.c - the third part of a port string: "@name", "@name=value", "@name:key=value,...".
 *
 * A copy of each option is cut into strings, which its parser gets and which end with its call.
 * At the end are the options that this library knows.
 */
#include "internal.h"

/* Do two names mean the same key? */
static int is_key(const char *a, const char *b)
{
	while (*a && (*a == *b || (strchr("-_", *a) && *b && strchr("-_", *b))))
		a++, b++;
	return *a == *b;
}

static const struct nmreq_opt_key *next_key(const struct nmreq_opt_parser *parser,
					    const struct nmreq_opt_key *key)
{
	key = key ? key + 1 : parser->keys;
	return key < parser->keys + NMREQ_OPT_MAXKEYS && key->key ? key : NULL;
}

static const struct nmreq_opt_key *find_key(const struct nmreq_opt_parser *parser, const char *name)
{
	const struct nmreq_opt_key *key = NULL;

	while ((key = next_key(parser, key)) != NULL)
		if (is_key(key->key, name))
			break;
	return key;
}

/* Reads one "key=value" or "key". */
static int read_key(const struct nmreq_opt_parser *parser, struct nmreq_parse_ctx *p, char *text)
{
	const char *option = parser->prefix;
	char *value = strchr(text, '=');
	const struct nmreq_opt_key *key;

	if (value)
		*value++ = '\0';
	key = find_key(parser, text);
	if (!key || key->id < 0 || key->id >= NMREQ_OPT_MAXKEYS)
		return nmctx_fails_(p->ctx, EINVAL, "option %s has no key '%s'", option, text);
	if (p->keys[key->id])
		return nmctx_fails_(p->ctx, EINVAL, "option %s: key %s is given twice", option, text);
	if (!value && key->flags & NMREQ_OPTK_ALLOWEMPTY)
		value = text;
	if (!value || !*value)
		return nmctx_fails_(p->ctx, EINVAL, "option %s: key %s needs a value", option, text);
	p->keys[key->id] = value;
	return 0;
}

static int read_keys(const struct nmreq_opt_parser *parser, struct nmreq_parse_ctx *p, char *text)
{
	char *next;

	for (; text && *text; text = next) {
		next = strchr(text, ',');
		if (next)
			*next++ = '\0';
		if (read_key(parser, p, text))
			return -1;
	}
	return 0;
}

/* Has every key a value that must have one? */
static int check_keys(const struct nmreq_opt_parser *parser, struct nmreq_parse_ctx *p)
{
	const struct nmreq_opt_key *key = NULL;

	while ((key = next_key(parser, key)) != NULL)
		if (key->flags & NMREQ_OPTK_MUSTSET && !p->keys[key->id])
			return nmctx_fails_(p->ctx, EINVAL, "option %s needs key %s", parser->prefix,
					    key->key);
	return 0;
}

/* Reads one option, which this writes to. */
static int read_option(char *text, struct nmreq_opt_parser *parser, void *token, struct nmctx *ctx)
{
	struct nmreq_parse_ctx p = { .ctx = ctx, .token = token };
	char *body = text + strcspn(text, ":=");
	char sign = *body;

	if (sign)
		*body++ = '\0';
	while (parser && strcmp(parser->prefix, text))
		parser = parser->next;
	if (!parser)
		return nmctx_fails_(ctx, EINVAL, "there is no option '%s'", text);
	if (parser->flags & NMREQ_OPTF_DISABLED)
		return nmctx_fails_(ctx, EOPNOTSUPP, "this program has no option '%s'", text);
	if (!*body && !(parser->flags & NMREQ_OPTF_ALLOWEMPTY && !sign))
		return nmctx_fails_(ctx, EINVAL, "option %s needs a value", text);
	if (sign == '=') {
		if (parser->default_key < 0 || parser->default_key >= NMREQ_OPT_MAXKEYS)
			return nmctx_fails_(ctx, EINVAL, "option %s needs keys: %s:key=value", text,
					    text);
		p.keys[parser->default_key] = body;
	} else if (read_keys(parser, &p, body)) {
		return -1;
	}
	return check_keys(parser, &p) ? -1 : parser->parse(&p);
}

int nmreq_options_decode(const char *opt, struct nmreq_opt_parser *parsers, void *token,
			 struct nmctx *ctx)
{
	size_t length;
	char *copy;
	int failed;

	if (*opt && *opt != '@')
		return nmctx_fails_(ctx, EINVAL, "options begin with @: '%.100s'", opt);
	for (; *opt; opt += length) {
		opt++;
		length = strcspn(opt, "@");
		copy = (char *)nmctx_malloc(ctx, length + 1);
		if (!copy)
			return nmctx_fails_(ctx, ENOMEM, "no memory for an option");
		memcpy(copy, opt, length);
		copy[length] = '\0';
		failed = read_option(copy, parsers, token, ctx);
		nmctx_free(ctx, copy);
		if (failed)
			return -1;
	}
	return 0;
}

/* ---- the options of this library; the token is the port ---- */

/* The number that a key was given, if it was: 1; if it was not: 0. */
static int number_of(struct nmreq_parse_ctx *p, int key, unsigned long max, unsigned long *number)
{
	const char *text = p->keys[key];
	char *end;

	if (!text)
		return 0;
	errno = 0;
	*number = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || *number > max)
		return nmctx_fails_(p->ctx, EINVAL, "'%s' is not a number up to %lu", text, max);
	return 1;
}

static int set_rings(struct nmreq_parse_ctx *p, int key, uint16_t *tx, uint16_t *rx)
{
	unsigned long number;
	int has = number_of(p, key, UINT16_MAX, &number);

	if (has == 1 && tx)
		*tx = (uint16_t)number;
	if (has == 1 && rx)
		*rx = (uint16_t)number;
	return has < 0;
}

static int set_count(struct nmreq_parse_ctx *p, int key, uint32_t *one, uint32_t *other)
{
	unsigned long number;
	int has = number_of(p, key, UINT32_MAX, &number);

	if (has == 1 && one)
		*one = (uint32_t)number;
	if (has == 1 && other)
		*other = (uint32_t)number;
	return has < 0;
}

static int parse_share(struct nmreq_parse_ctx *p)
{
	struct nmport_d *d = (struct nmport_d *)p->token;
	const char *name = p->keys[0];
	int32_t memory = nmreq_get_mem_id(&name, p->ctx);

	if (memory < 0)
		return -1;
	if (*name)
		return nmctx_fails_(p->ctx, EINVAL, "option share: '%s' follows the name", name);
	if (d->reg.nr_mem_id && d->reg.nr_mem_id != memory)
		return nmctx_fails_(p->ctx, EINVAL, "%s is in memory %d, not in %d", p->keys[0],
				    (int)memory, d->reg.nr_mem_id);
	d->reg.nr_mem_id = (uint16_t)memory;
	return 0;
}

enum { RINGS, TX_RINGS, RX_RINGS, HOST_RINGS, HOST_TX_RINGS, HOST_RX_RINGS, SLOTS, TX_SLOTS,
       RX_SLOTS };

static int parse_conf(struct nmreq_parse_ctx *p)
{
	struct nmreq_register *reg = &((struct nmport_d *)p->token)->reg;
	int failed;

	failed = set_rings(p, RINGS, &reg->nr_tx_rings, &reg->nr_rx_rings) ||
		 set_rings(p, TX_RINGS, &reg->nr_tx_rings, NULL) ||
		 set_rings(p, RX_RINGS, NULL, &reg->nr_rx_rings) ||
		 set_rings(p, HOST_RINGS, &reg->nr_host_tx_rings, &reg->nr_host_rx_rings) ||
		 set_rings(p, HOST_TX_RINGS, &reg->nr_host_tx_rings, NULL) ||
		 set_rings(p, HOST_RX_RINGS, NULL, &reg->nr_host_rx_rings) ||
		 set_count(p, SLOTS, &reg->nr_tx_slots, &reg->nr_rx_slots) ||
		 set_count(p, TX_SLOTS, &reg->nr_tx_slots, NULL) ||
		 set_count(p, RX_SLOTS, NULL, &reg->nr_rx_slots);
	return failed ? -1 : 0;
}

enum { FILE_NAME, IF_NUM, IF_SIZE, RING_NUM, RING_SIZE, BUF_NUM, BUF_SIZE };

static int parse_extmem(struct nmreq_parse_ctx *p)
{
	struct nmport_d *d = (struct nmport_d *)p->token;
	struct nmreq_pools_info *info;
	int failed;

	if (nmport_extmem_from_file(d, p->keys[FILE_NAME]))
		return -1;
	info = nmport_extmem_getinfo(d);
	failed = set_count(p, IF_NUM, &info->nr_if_pool_objtotal, NULL) ||
		 set_count(p, IF_SIZE, &info->nr_if_pool_objsize, NULL) ||
		 set_count(p, RING_NUM, &info->nr_ring_pool_objtotal, NULL) ||
		 set_count(p, RING_SIZE, &info->nr_ring_pool_objsize, NULL) ||
		 set_count(p, BUF_NUM, &info->nr_buf_pool_objtotal, NULL) ||
		 set_count(p, BUF_SIZE, &info->nr_buf_pool_objsize, NULL);
	return failed ? -1 : 0;
}

enum { INITIAL, BITS };

static int parse_offset(struct nmreq_parse_ctx *p)
{
	uint32_t initial = 0, bits = 0;

	if (set_count(p, INITIAL, &initial, NULL) || set_count(p, BITS, &bits, NULL))
		return -1;
	return nmport_offset((struct nmport_d *)p->token, initial, initial, bits, 0);
}

static struct nmreq_opt_parser offset = {
	.prefix = "offset", .parse = parse_offset, .default_key = INITIAL, .nr_keys = 2,
	.flags = NMREQ_OPTF_DISABLED,
	.keys = {
		{ "initial", INITIAL, NMREQ_OPTK_DEFAULT | NMREQ_OPTK_MUSTSET },
		{ "bits", BITS, 0 },
	},
};

static struct nmreq_opt_parser extmem = {
	.prefix = "extmem", .parse = parse_extmem, .default_key = FILE_NAME, .nr_keys = 7,
	.next = &offset,
	.keys = {
		{ "file", FILE_NAME, NMREQ_OPTK_DEFAULT | NMREQ_OPTK_MUSTSET },
		{ "if-num", IF_NUM, 0 }, { "if-size", IF_SIZE, 0 },
		{ "ring-num", RING_NUM, 0 }, { "ring-size", RING_SIZE, 0 },
		{ "buf-num", BUF_NUM, 0 }, { "buf-size", BUF_SIZE, 0 },
	},
};

static struct nmreq_opt_parser conf = {
	.prefix = "conf", .parse = parse_conf, .default_key = RINGS, .nr_keys = 9, .next = &extmem,
	.keys = {
		{ "rings", RINGS, NMREQ_OPTK_DEFAULT },
		{ "tx-rings", TX_RINGS, 0 }, { "rx-rings", RX_RINGS, 0 },
		{ "host-rings", HOST_RINGS, 0 },
		{ "host-tx-rings", HOST_TX_RINGS, 0 }, { "host-rx-rings", HOST_RX_RINGS, 0 },
		{ "slots", SLOTS, 0 }, { "tx-slots", TX_SLOTS, 0 }, { "rx-slots", RX_SLOTS, 0 },
	},
};

static struct nmreq_opt_parser share = {
	.prefix = "share", .parse = parse_share, .default_key = 0, .nr_keys = 1, .next = &conf,
	.keys = { { "port", 0, NMREQ_OPTK_DEFAULT | NMREQ_OPTK_MUSTSET } },
};

struct nmreq_opt_parser *const nmport_options_ = &share;
