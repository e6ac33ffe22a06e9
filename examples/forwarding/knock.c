/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Port knocking: TCP to port 22 passes only from an address that has sent TCP to ports 7000, 8000
 * and 9000 before, in this order, each within a second. A right knock opens for a minute.
 * Other than untagged, whole IPv4 packets, ARP alone passes: what is not read is not let through.
 */
#include "uvala_program.h"

#define SECOND 1000000ULL

struct knocks {
	__u64 since;
	__u64 count;
};

UVALA_MAP(senders, HASH, 4, sizeof(struct knocks), 4096);

static const __u16 sequence[] = { 7000, 8000, 9000 };

SEC("forward/packet") int forward(struct uvala_frame *frame)
{
	const __u8 *ip = frame->bytes + 14;
	struct knocks knocks = { .since = frame->now_us, .count = 1 }, *old;
	__u64 limit;
	__u16 port;

	if (uvala_u16(frame, 12) == 0x0806)
		return UVALA_LEARNING;
	if (uvala_u16(frame, 12) != 0x0800 || (uvala_u16(frame, 20) & 0x3fff))
		return UVALA_DROP;
	if (ip[9] != 6)
		return UVALA_LEARNING;
	port = uvala_u16(frame, 14 + (ip[0] & 15) * 4 + 2);
	old = bpf_map_lookup_elem(&senders, ip + 12);
	if (old) {
		limit = old->count == 3 ? 60 * SECOND : SECOND;
		if (frame->now_us - old->since > limit) {
			bpf_map_delete_elem(&senders, ip + 12);
			old = 0;
		}
	}
	if (port == 22)
		return old && old->count == 3 ? UVALA_LEARNING : UVALA_DROP;
	if (old && old->count < 3 && port == sequence[old->count])
		knocks.count = old->count + 1;
	else if (port != sequence[0] || (old && old->count == 3))
		return UVALA_LEARNING;
	bpf_map_update_elem(&senders, ip + 12, &knocks, 0);
	return UVALA_DROP;
}
