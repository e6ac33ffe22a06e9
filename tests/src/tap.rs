//! TAPs of a test's own, written from the kernel's documentation and not from what they test.

#![allow(unsafe_code)] // UNSAFETY: no safe wrapper that we use knows these ioctls.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::ioctl::{IntegerSetter, Setter, ioctl};

/// Requests of `linux/if_tun.h`.
const TUNSETIFF: u32 = 0x4004_54ca;
const TUNSETOFFLOAD: u32 = 0x4004_54d0;
const TUNSETVNETHDRSZ: u32 = 0x4004_54d8;
const TUNSETSNDBUF: u32 = 0x4004_54d4;
const TUNSETQUEUE: u32 = 0x4004_54d9;
const TUNSETVNETBE: u32 = 0x4004_54de;
const TUNSETCARRIER: u32 = 0x4004_54e2;
/// A TAP without information on packets, with a header of virtio-net.
const FLAGS: u16 = 0x0002 | 0x1000 | 0x4000;
/// One of several queues.
const QUEUE: u16 = 0x0100;
/// `IFF_DETACH_QUEUE`: the queue leaves the TAP.
const DETACH: u16 = 0x0400;
/// Checksums, TCP over IPv4 and IPv6, with marks of congestion, datagrams over both.
const OFFLOADS: usize = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40;

/// Makes a TAP in the thread's namespace, whose frames lie behind a header of `header` bytes, and
/// may be `unfinished`.
///
/// # Panics
/// Without the right to.
#[must_use]
pub fn make(name: &str, header: i32, unfinished: bool) -> OwnedFd {
    open(name, FLAGS, header, unfinished)
}

/// Makes a TAP in the thread's namespace with information on packets in front of its frames.
///
/// # Panics
/// Without the right to.
#[must_use]
pub fn make_with_information(name: &str) -> OwnedFd {
    open(name, FLAGS & !0x1000, 10, false)
}

/// Makes a TAP of this many queues in the thread's namespace.
///
/// # Panics
/// Without the right to.
#[must_use]
pub fn make_queues(name: &str, count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| open(name, FLAGS | QUEUE, 10, false)).collect()
}

fn open(name: &str, flags: u16, header: i32, unfinished: bool) -> OwnedFd {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let tap: OwnedFd = options.open("/dev/net/tun").expect("a system with TAPs").into();
    let mut request = [0u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&flags.to_ne_bytes());
    let offloads = if unfinished { OFFLOADS } else { 0 };
    // SAFETY: the kernel reads an `ifreq` of 40 bytes and writes its first 16, of which this call
    // has a copy; then an `int`; then a number.
    unsafe {
        ioctl(&tap, Setter::<TUNSETIFF, [u8; 40]>::new(request)).expect("a TAP");
        ioctl(&tap, Setter::<TUNSETVNETHDRSZ, i32>::new(header)).expect("a header");
        ioctl(&tap, IntegerSetter::<TUNSETOFFLOAD>::new_usize(offloads)).expect("Linux 6.2");
    }
    tap
}

/// Something to do to a TAP, and what it is called.
pub type Trick = (&'static str, fn(&OwnedFd));

/// What one holder of a TAP can do to the others.
pub const TRICKS: [Trick; 8] = [
    ("shorter headers", |tap| set::<TUNSETVNETHDRSZ>(tap, 10)),
    ("longer headers", |tap| set::<TUNSETVNETHDRSZ>(tap, 14)),
    ("headers longer than any frame", |tap| set::<TUNSETVNETHDRSZ>(tap, i32::MAX)),
    ("the other order of bytes", |tap| set::<TUNSETVNETBE>(tap, 1)),
    ("no room", |tap| set::<TUNSETSNDBUF>(tap, 1)),
    ("no carrier", |tap| set::<TUNSETCARRIER>(tap, 0)),
    ("no part any more", |tap| {
        let mut request = [0u8; 40];
        request[16..18].copy_from_slice(&DETACH.to_ne_bytes());
        // SAFETY: the kernel reads an `ifreq`. That it refuses this is as good.
        let _ = unsafe { ioctl(tap, Setter::<TUNSETQUEUE, [u8; 40]>::new(request)) };
    }),
    ("blocking", |tap| rustix::fs::fcntl_setfl(tap, OFlags::RDWR).expect("our own")),
];

/// Sets a number, where the kernel lets us.
fn set<const REQUEST: u32>(tap: &OwnedFd, number: i32) {
    // SAFETY: the kernel reads an `int`.
    let _ = unsafe { ioctl(tap, Setter::<REQUEST, i32>::new(number)) };
}
