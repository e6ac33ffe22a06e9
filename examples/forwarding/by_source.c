/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Segments by source address: a frame goes only to ports of its sender's segment. Senders that
 * are in none are dropped.
 *
 *	uvala program map set vale0 segments 02:00:00:00:00:01 10
 *	uvala program map set vale0 ports 0 port:web        the first port ...
 *	uvala program map set vale0 members 0 10            ... is one of segment 10
 */
#include "uvala_program.h"

#define PORTS 32

UVALA_MAP(segments, HASH, 6, sizeof(__u32), 1024);
UVALA_MAP(ports, HASH, 4, sizeof(__u32), PORTS);
UVALA_MAP(members, ARRAY, 4, sizeof(__u32), PORTS);

SEC("forward/header") int forward(struct uvala_frame *frame)
{
	__u32 *segment, *member, *port, at;

	segment = bpf_map_lookup_elem(&segments, frame->bytes + 6);
	if (!segment || !*segment)
		return UVALA_DROP;
	for (at = 0; at < PORTS; at++) {
		member = bpf_map_lookup_elem(&members, &at);
		port = bpf_map_lookup_elem(&ports, &at);
		if (member && port && *member == *segment)
			uvala_add_port(*port);
	}
	return UVALA_PORTS;
}
