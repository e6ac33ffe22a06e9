//! The shared structures, byte for byte.
//!
//! `NetmapIf`, `NetmapRing` and `Slot` are netmap's (API 14, x86-64), so that netmap's accessor
//! macros work on a region as it is. `CsbAtok` and `CsbKtoa` are netmap's communication status
//! block, one pair for each ring. `Bell` is ours: the worker's need-kick flag on a line of its own,
//! because the sender reads it after every publication and the switch writes it only when it goes
//! to sleep.
//!
//! The types here describe memory. No reference to one of them exists while a peer can write it:
//! the halves in [`crate::user`] and [`crate::kring`] read and write single words through
//! raw pointers.
//!
//! The C view of the same structures is `include/uvala_ring.h`.

#![allow(unsafe_code)] // UNSAFETY: marker trait of plain-data structs only.

use core::mem::{align_of, offset_of, size_of};

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Size of a cache line and of every CSB entry, in bytes.
pub const LINE: usize = 64;

/// Longest interface name in a [`NetmapIf`], terminator included.
pub const NAME_SIZE: usize = 16;

/// First buffer index that a slot may name; 0 means "none" and 1 is kept as netmap keeps it.
pub const FIRST_BUFFER: u32 = 2;

/// Slot flags (`NS_*`), netmap's values.
pub mod slot_flag {
    /// The client changed `buf_idx`.
    pub const BUF_CHANGED: u16 = 0x0001;
    /// Report when the slot has been sent (drivers only; no meaning to the switch).
    pub const REPORT: u16 = 0x0002;
    /// Forward the frame to the other side of the interface (rings of an interface only).
    pub const FORWARD: u16 = 0x0004;
    /// The switch must not learn the source address of this frame.
    pub const NO_LEARN: u16 = 0x0008;
    /// The data is at the address in `ptr` (netmap clients; resolved on the client's side).
    pub const INDIRECT: u16 = 0x0010;
    /// The frame continues in the next slot.
    pub const MOREFRAG: u16 = 0x0020;
    /// In a slot of a monitor: the mirrored port has sent the frame.
    pub const TXMON: u16 = 0x0040;
    /// Shift of the fragment count in the flags of a receive slot.
    pub const RFRAGS_SHIFT: u16 = 8;
    /// In a transmit slot: the number of the destination port, which overrides the forwarding
    /// database; 0 for none.
    pub const PORT_MASK: u16 = 0xff << RFRAGS_SHIFT;
}

/// Direction of a ring, the value of `NetmapRing::dir`.
pub mod dir {
    /// Client to switch.
    pub const TX: u16 = 0;
    /// Switch to client.
    pub const RX: u16 = 1;
}

/// Values of [`CsbAtok::sync_flags`] (ours; netmap leaves the bits to the implementation).
pub mod sync_flag {
    /// The client publishes without a store-load fence; a worker that goes to sleep must run a
    /// process-wide barrier on its behalf. See [`crate::format::doorbell`].
    pub const LIGHT: u32 = 0x1;
    /// Frames begin inside of their buffers: `Slot::ptr` says where, in the bits of
    /// [`NetmapRing::offset_mask`](super::NetmapRing).
    pub const OFFSETS: u32 = 0x2;
    /// Shift of the largest offset that the client has promised, with [`OFFSETS`]. Holders of the
    /// same ring tell it each other; the switch bounds each offset by itself.
    pub const OFFSET_MAX_SHIFT: u32 = 8;
}

/// Values of [`CsbAtok::sleep_mode`]; all others mean [`DESCRIPTOR`](sleep_mode::DESCRIPTOR).
pub mod sleep_mode {
    /// The client is woken by the descriptor that it was given.
    pub const DESCRIPTOR: u32 = 0;
    /// The client is woken by the futex [`CsbKtoa::wakes`](super::CsbKtoa).
    pub const FUTEX: u32 = 1;
}

/// One slot of a ring: which buffer, how long the frame is, and flags. 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Index of the buffer in the region's pool.
    pub buf_idx: u32,
    /// Length of the frame or fragment, in bytes.
    pub len: u16,
    /// [`slot_flag`] bits.
    pub flags: u16,
    /// netmap's pointer or offset; unused by native ports.
    pub ptr: u64,
}
const _: () = assert!(size_of::<Slot>() == 16 && align_of::<Slot>() == 8);
const _: () = assert!(offset_of!(Slot, len) == 4 && offset_of!(Slot, flags) == 6);
const _: () = assert!(offset_of!(Slot, ptr) == 8);

/// Head of a ring; `num_slots` slots follow at once. 256 bytes.
///
/// `head`, `cur` and `tail` belong to the client: it keeps them for the sake of netmap's
/// accessors. What client and switch tell each other goes through the CSB.
#[repr(C, align(128))]
#[derive(Clone, Copy)]
pub struct NetmapRing {
    /// Offset of buffer 0 from this structure, in bytes.
    pub buf_ofs: i64,
    /// Number of slots; one of them is always empty.
    pub num_slots: u32,
    /// Distance and size of the buffers, in bytes.
    pub nr_buf_size: u32,
    /// Index of the ring in its direction.
    pub ringid: u16,
    /// [`dir::TX`] or [`dir::RX`].
    pub dir: u16,
    /// First slot that the client owns.
    pub head: u32,
    /// Wake-up point.
    pub cur: u32,
    /// First slot that the switch owns.
    pub tail: u32,
    /// `NR_*` flags.
    pub flags: u32,
    /// Padding in netmap's ring; here the turn to sync it, 0 at first (`format::turn`). Writers and
    /// readers: the syncs of all holders. Taken with Acquire, given back with Release.
    pub turn: u32,
    /// Time of the last sync: seconds and microseconds.
    pub ts: [i64; 2],
    /// Bits of `Slot::ptr` that hold a data offset; 0 without the option.
    pub offset_mask: u64,
    /// Alignment of the buffers; 0 where not asked for.
    pub buf_align: u64,
    _pad2: [u8; 56],
    /// Room that netmap leaves opaque.
    pub sem: [u8; 128],
}
const _: () = assert!(size_of::<NetmapRing>() == 256 && align_of::<NetmapRing>() == 128);
const _: () = assert!(offset_of!(NetmapRing, num_slots) == 8);
const _: () = assert!(offset_of!(NetmapRing, nr_buf_size) == 12);
const _: () = assert!(offset_of!(NetmapRing, ringid) == 16 && offset_of!(NetmapRing, dir) == 18);
const _: () = assert!(offset_of!(NetmapRing, head) == 20 && offset_of!(NetmapRing, cur) == 24);
const _: () = assert!(offset_of!(NetmapRing, tail) == 28 && offset_of!(NetmapRing, flags) == 32);
const _: () = assert!(offset_of!(NetmapRing, turn) == 36 && offset_of!(NetmapRing, ts) == 40);
const _: () = assert!(offset_of!(NetmapRing, offset_mask) == 56);
const _: () = assert!(offset_of!(NetmapRing, buf_align) == 64);
const _: () = assert!(offset_of!(NetmapRing, sem) == 128);

impl NetmapRing {
    /// A ring head for `num_slots` slots whose buffer pool starts `buf_ofs` bytes after it.
    #[must_use]
    pub fn new(dir: u16, ringid: u16, num_slots: u32, buf_ofs: i64, nr_buf_size: u32) -> Self {
        let tail = if dir == dir::TX { num_slots - 1 } else { 0 };
        Self {
            buf_ofs,
            num_slots,
            nr_buf_size,
            ringid,
            dir,
            head: 0,
            cur: 0,
            tail,
            flags: 0,
            turn: 0,
            ts: [0; 2],
            offset_mask: 0,
            buf_align: 0,
            _pad2: [0; 56],
            sem: [0; 128],
        }
    }
}

/// Description of a port; `ring_ofs` follows: TX, host TX, RX, host RX. 56 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct NetmapIf {
    /// Port name, zero-terminated.
    pub ni_name: [u8; NAME_SIZE],
    /// Left 0, as netmap leaves it.
    pub ni_version: u32,
    /// `NI_*` flags.
    pub ni_flags: u32,
    /// Number of transmit rings.
    pub ni_tx_rings: u32,
    /// Number of receive rings.
    pub ni_rx_rings: u32,
    /// Head of the list of extra buffers; 0 ends it.
    pub ni_bufs_head: u32,
    /// Number of host transmit rings; at least 1 even where there are none, as netmap reports it.
    pub ni_host_tx_rings: u32,
    /// Number of host receive rings; at least 1, likewise.
    pub ni_host_rx_rings: u32,
    /// Unused.
    pub ni_spare1: [u32; 3],
}
const _: () = assert!(size_of::<NetmapIf>() == 56 && align_of::<NetmapIf>() == 4);
const _: () = assert!(offset_of!(NetmapIf, ni_version) == 16);
const _: () = assert!(offset_of!(NetmapIf, ni_flags) == 20);
const _: () = assert!(offset_of!(NetmapIf, ni_tx_rings) == 24);
const _: () = assert!(offset_of!(NetmapIf, ni_rx_rings) == 28);
const _: () = assert!(offset_of!(NetmapIf, ni_bufs_head) == 32);
const _: () = assert!(offset_of!(NetmapIf, ni_host_tx_rings) == 36);
const _: () = assert!(offset_of!(NetmapIf, ni_host_rx_rings) == 40);
const _: () = assert!(offset_of!(NetmapIf, ni_spare1) == 44);

/// `ni_flags`: the region belongs to this port alone.
pub const NI_PRIV_MEM: u32 = 0x1;

/// CSB, client to switch; one line for each ring. Writer: the client. Reader: the worker.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct CsbAtok {
    /// First slot the client owns: everything before it is handed over. Stored with Release after
    /// the slots; loaded with Acquire before them.
    pub head: AtomicU32,
    /// Wake-up point: the client wants a kick once `hwtail` has passed it. Relaxed, before `head`.
    pub cur: AtomicU32,
    /// 0: do not kick. 1: kick at every publication. Otherwise a number that the client changes
    /// each time it goes to sleep: one kick for each value.
    pub appl_need_kick: AtomicU32,
    /// [`sync_flag`] bits. Stored by the client, loaded by a worker that goes to sleep.
    pub sync_flags: AtomicU32,
    /// Receive ring 0 of a function: frames that functions of its thread handed to it by a call.
    /// Reader: the daemon. Relaxed.
    pub called: AtomicU64,
    /// Receive ring 0 of a function: of these frames, those that it passed on. Relaxed.
    pub passed: AtomicU64,
    /// Receive ring 0: how the client sleeps, for all rings of the port: [`sleep_mode`]. Stored
    /// before a need-kick word; loaded after it, by the side that wakes.
    pub sleep_mode: AtomicU32,
    _pad: [u32; 7],
}
const _: () = assert!(size_of::<CsbAtok>() == LINE && align_of::<CsbAtok>() == LINE);
const _: () = assert!(offset_of!(CsbAtok, head) == 0 && offset_of!(CsbAtok, cur) == 4);
const _: () = assert!(offset_of!(CsbAtok, appl_need_kick) == 8);
const _: () = assert!(offset_of!(CsbAtok, sync_flags) == 12);
const _: () = assert!(offset_of!(CsbAtok, called) == 16 && offset_of!(CsbAtok, passed) == 24);
const _: () = assert!(offset_of!(CsbAtok, sleep_mode) == 32);

/// CSB, switch to client; one line for each ring. Writer: the worker. Reader: the client.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct CsbKtoa {
    /// First slot the switch has not taken yet. Relaxed, before `hwtail`.
    pub hwcur: AtomicU32,
    /// First slot the switch owns. Stored with Release after the slots; loaded with Acquire.
    pub hwtail: AtomicU32,
    /// Receive rings: the switch waits for room and wants a kick when slots are given back.
    /// Transmit rings: always 1 (the precise flag is in [`Bell`]); a client that only knows this
    /// one kicks too often and is still correct.
    pub kern_need_kick: AtomicU32,
    /// How often the switch found an index out of range and re-synchronised the ring. Relaxed.
    pub resyncs: AtomicU32,
    /// Receive ring 0: the futex of a client that sleeps by [`sleep_mode::FUTEX`]. It goes up by 2
    /// with each such wake-up. Odd, unless the side that wakes knows no futex.
    pub wakes: AtomicU32,
    _pad: [u32; 11],
}
const _: () = assert!(size_of::<CsbKtoa>() == LINE && align_of::<CsbKtoa>() == LINE);
const _: () = assert!(offset_of!(CsbKtoa, hwcur) == 0 && offset_of!(CsbKtoa, hwtail) == 4);
const _: () = assert!(offset_of!(CsbKtoa, kern_need_kick) == 8);
const _: () = assert!(offset_of!(CsbKtoa, resyncs) == 12 && offset_of!(CsbKtoa, wakes) == 16);

/// The worker's need-kick flag, one line for each port. Writer: the worker. Reader: the client.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Bell {
    /// 0: the worker polls this port. Otherwise it sleeps, and the number changes each time it
    /// arms: the client sends one kick for each value.
    pub need_kick: AtomicU32,
    /// The daemon raises it when other functions follow the one behind this port, which then asks.
    /// Relaxed: a kick follows it, whether one was asked for or not.
    pub news: AtomicU32,
    _pad: [u32; 14],
}
const _: () = assert!(size_of::<Bell>() == LINE && align_of::<Bell>() == LINE);
const _: () = assert!(offset_of!(Bell, news) == 4);

/// Head of a region, at offset 0. Written once by the daemon, read by tools; the daemon itself
/// never reads it back.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RegionHeader {
    /// [`RegionHeader::MAGIC`].
    pub magic: [u8; 8],
    /// Version of the port format.
    pub version: u32,
    /// Distance of the buffers, in bytes.
    pub stride: u32,
    /// Number of buffers, the two reserved ones included.
    pub buffers: u32,
    /// Unused.
    pub pad: u32,
    /// Offset of buffer 0 from the start of the region, in bytes.
    pub pool_offset: u64,
    /// Size of the region, in bytes.
    pub size: u64,
}
const _: () = assert!(size_of::<RegionHeader>() == 40);
const _: () = assert!(offset_of!(RegionHeader, pool_offset) == 24);

impl RegionHeader {
    /// The first eight bytes of every region.
    pub const MAGIC: [u8; 8] = *b"uvala\0r\x01";
    /// The version this code speaks.
    pub const VERSION: u32 = 1;
}

/// Structures that any bit pattern makes a valid value of.
///
/// # Safety
/// The type holds integers and arrays of them only.
pub(crate) unsafe trait Pod: Copy {}
// SAFETY: integers only.
unsafe impl Pod for NetmapIf {}
// SAFETY: integers only.
unsafe impl Pod for NetmapRing {}
// SAFETY: integers only.
unsafe impl Pod for RegionHeader {}
// SAFETY: an integer.
unsafe impl Pod for u64 {}
// SAFETY: an integer.
unsafe impl Pod for u32 {}
// SAFETY: integers only.
unsafe impl Pod for Slot {}
