/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Forwarding programs: eBPF functions that say where a switch sends a frame.
 *
 *	clang -O2 -target bpf -c NAME.c
 *	uvala switch set vale0 --forwarding program:NAME.o
 *
 * docs/forwarding-programs.md describes all of it.
 */
#ifndef UVALA_PROGRAM_H
#define UVALA_PROGRAM_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

/* The only argument of the function. Numbers are little-endian, bytes in the order of the wire. */
struct uvala_frame {
	__u64 now_us;		/* microseconds since the daemon started */
	__u16 port;		/* number of the ingress port */
	__u16 vlan;		/* the VLAN that the frame is in */
	__u8 len;		/* how many of `bytes` are the frame's */
	__u8 reserved[3];
	/*
	 * SEC("forward/header"): addresses and type, and the tag if there is one: 14 or 16 bytes.
	 * SEC("forward/packet"): up to 96 bytes. What is behind `len` is zero.
	 */
	__u8 bytes[96];
};

/* What the function returns. */
enum {
	UVALA_DROP = 0,
	UVALA_LEARNING = 1,	/* where a learning switch would send the frame */
	UVALA_FLOOD = 2,	/* to all ports that take such floods */
	UVALA_PORTS = 3,	/* to the ports of uvala_add_port() */
};
#define UVALA_TO(port) (0x10000 | (__u16)(port))

/* Maps: UVALA_MAP(stations, HASH, 6, sizeof(__u16), 1024); */
struct uvala_map {
	__u32 type, key_size, value_size, max_entries, flags;
};
#define UVALA_MAP_HASH 1
#define UVALA_MAP_ARRAY 2	/* key: a __u32 below `entries` */
#define UVALA_MAP_LPM 11	/* key: a __u32, the bits of the prefix, and the address */
#define UVALA_MAP(name, kind, key, value, entries) \
	struct uvala_map name SEC("maps") = { UVALA_MAP_##kind, (key), (value), (entries), 0 }

/* The value of a key, or 0. It may be written. */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
/* Sets a value; flags: 0, or 1 (only a new one) or 2 (only an old one). 0, or a negative errno. */
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
					 __u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
/* Nanoseconds since the daemon started, the same for a batch of frames. */
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
/* A hash, the same on each machine. */
static __u64 (*const uvala_hash)(const void *data, __u64 bytes, __u64 seed) = (void *)1001;
/* Adds a port to those of UVALA_PORTS, 64 at most. */
static long (*const uvala_add_port)(__u64 port) = (void *)1002;

/* Two bytes of the packet as a number. */
static __always_inline __u16 uvala_u16(const struct uvala_frame *frame, __u32 at)
{
	return (__u16)(frame->bytes[at] << 8 | frame->bytes[at + 1]);
}

#endif
