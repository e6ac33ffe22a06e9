/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A static table of stations: what is not in it is not reached.
 *
 *	uvala program map set vale0 stations 02:00:00:00:00:01 port:web
 */
#include "uvala_program.h"

UVALA_MAP(stations, HASH, 6, sizeof(__u16), 1024);

SEC("forward/header") int forward(struct uvala_frame *frame)
{
	__u16 *port;

	if (frame->bytes[0] & 1)
		return UVALA_FLOOD;
	port = bpf_map_lookup_elem(&stations, frame->bytes);
	return port ? UVALA_TO(*port) : UVALA_DROP;
}
