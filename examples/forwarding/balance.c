/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A load balancer: IPv4 TCP and UDP for a service's network goes to one of its servers, by a hash
 * of addresses and ports, so that a connection stays with its server. All else is learned.
 *
 *	uvala program map set vale0 services 192.0.2.80/32 3      it has three servers
 *	uvala program map set vale0 servers 0 port:web0           ... and so on
 */
#include "uvala_program.h"

UVALA_MAP(services, LPM, 8, sizeof(__u32), 64);
UVALA_MAP(servers, HASH, 4, sizeof(__u32), 64);

struct flow {
	__u8 addresses[8], ports[4], protocol;
};

SEC("forward/packet") int forward(struct uvala_frame *frame)
{
	const __u8 *ip = frame->bytes + 14;
	struct { __u32 bits; __u8 address[4]; } to = { .bits = 32 };
	struct flow flow = {};
	__u32 *count, *port, server, head = (ip[0] & 15) * 4;

	if (uvala_u16(frame, 12) != 0x0800 || (ip[9] != 6 && ip[9] != 17))
		return UVALA_LEARNING;
	__builtin_memcpy(to.address, ip + 16, 4);
	count = bpf_map_lookup_elem(&services, &to);
	if (!count || !*count)
		return UVALA_LEARNING;
	__builtin_memcpy(flow.addresses, ip + 12, 8);
	__builtin_memcpy(flow.ports, ip + head, 4);
	flow.protocol = ip[9];
	server = uvala_hash(&flow, sizeof(flow), 0) % *count;
	port = bpf_map_lookup_elem(&servers, &server);
	return port ? UVALA_TO(*port) : UVALA_DROP;
}
