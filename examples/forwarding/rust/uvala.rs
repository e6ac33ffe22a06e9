// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a forwarding program in Rust has of the switch, as uvala_program.h is for C. Copy this file
//! beside your program.
#![allow(dead_code, unused_imports, reason = "a program needs some of it")]

use core::marker::PhantomData;
use core::mem::transmute;

/// The only argument of the function.
#[repr(C)]
pub struct Frame {
    /// Microseconds since the daemon started.
    pub now_us: u64,
    /// Number of the ingress port.
    pub port: u16,
    /// The VLAN that the frame is in.
    pub vlan: u16,
    /// How many of `bytes` are the frame's.
    pub len: u8,
    reserved: [u8; 3],
    /// In section `forward/header` addresses and type, and the tag if there is one: 14 or 16 bytes;
    /// in `forward/packet` up to 96 bytes. What is behind `len` is zero.
    pub bytes: [u8; 96],
}

impl Frame {
    /// Two bytes as a number.
    pub fn u16_at(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }
}

/// Returned: nowhere.
pub const DROP: u32 = 0;
/// Returned: where a learning switch would send the frame.
pub const LEARNING: u32 = 1;
/// Returned: to all ports that take such floods.
pub const FLOOD: u32 = 2;
/// Returned: to the ports of [`add_port`].
pub const PORTS: u32 = 3;

/// Returned: to the port of this number.
pub const fn to(port: u32) -> u32 {
    0x1_0000 | port & 0xffff
}

/// What keys and values may be.
///
/// # Safety
/// Any bytes are a value of the type, and none of its bytes is padding.
pub unsafe trait Pod: Copy {}

// SAFETY: numbers.
unsafe impl Pod for u8 {}
// SAFETY: numbers.
unsafe impl Pod for u16 {}
// SAFETY: numbers.
unsafe impl Pod for u32 {}
// SAFETY: numbers.
unsafe impl Pod for u64 {}
// SAFETY: between elements is nothing.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}
// SAFETY: nothing is behind the address: it is a whole number of words.
unsafe impl Pod for Prefix<[u8; 4]> {}
// SAFETY: likewise.
unsafe impl Pod for Prefix<[u8; 16]> {}

/// The key of an [`Lpm`]: a network. To look an address up, give all its bits.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Prefix<A> {
    /// Length of the prefix.
    pub bits: u32,
    /// The address.
    pub address: A,
}

/// A map. [`map!`] declares one.
#[repr(C)]
pub struct Map<const KIND: u32, K, V> {
    declaration: [u32; 5],
    of: PhantomData<fn(K) -> V>,
}

/// Any keys.
pub type Hash<K, V> = Map<1, K, V>;
/// Keys are numbers below that of the entries.
pub type Array<V> = Map<2, u32, V>;
/// Keys are networks; the longest prefix of an address is found.
pub type Lpm<A, V> = Map<11, Prefix<A>, V>;

/// `map!(stations: Hash<[u8; 6], u16>, 1024)` declares a map of 1024 entries.
macro_rules! map {
    ($name:ident: $map:ty, $entries:expr) => {
        #[allow(non_upper_case_globals, reason = "commands know it by this name")]
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "maps")]
        static $name: $map = <$map>::new($entries);
    };
}
pub(crate) use map;

impl<const KIND: u32, K: Pod, V: Pod> Map<KIND, K, V> {
    /// What [`map!`] declares.
    pub const fn new(entries: u32) -> Self {
        let declaration = [KIND, size_of::<K>() as u32, size_of::<V>() as u32, entries, 0];
        Self { declaration, of: PhantomData }
    }

    /// The value of a key, as it is now.
    pub fn get(&self, key: &K) -> Option<V> {
        // SAFETY: the helper of this number, which reads a map and its key.
        let lookup: extern "C" fn(&Self, &K) -> *const V = unsafe { transmute(1usize) };
        // SAFETY: 0, or a value of the map. It is copied at once: the map may change later.
        unsafe { lookup(self, key).as_ref() }.copied()
    }

    /// Sets the value of a key; or a negative `errno`: -7 if the map is full, or an array has no
    /// such entry.
    pub fn set(&self, key: &K, value: &V) -> Result<(), i64> {
        // SAFETY: as above; it reads a value, too.
        let update: extern "C" fn(&Self, &K, &V, u64) -> i64 = unsafe { transmute(2usize) };
        result(update(self, key, value, 0))
    }

    /// Deletes an entry.
    pub fn delete(&self, key: &K) -> Result<(), i64> {
        // SAFETY: as above.
        let delete: extern "C" fn(&Self, &K) -> i64 = unsafe { transmute(3usize) };
        result(delete(self, key))
    }
}

fn result(returned: i64) -> Result<(), i64> {
    if returned == 0 { Ok(()) } else { Err(returned) }
}

/// A hash, the same on each machine.
pub fn hash<T: Pod>(data: &T, seed: u64) -> u64 {
    // SAFETY: the helper of this number, which reads as many bytes.
    let hash: extern "C" fn(&T, u64, u64) -> u64 = unsafe { transmute(1001usize) };
    hash(data, size_of::<T>() as u64, seed)
}

/// Adds a port to those of [`PORTS`], 64 at most.
pub fn add_port(port: u32) {
    // SAFETY: the helper of this number, which takes a number.
    let add: extern "C" fn(u64) -> i64 = unsafe { transmute(1002usize) };
    add(port.into());
}
