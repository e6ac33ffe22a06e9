//! The port format: netmap rings and a communication status block in one sealed memory region.
//!
//! # Theory of operation
//!
//! A *region* ([`Region`]) is a sealed memfd. It holds the structures of one port, or of all ports
//! of a trust group, and a pool of buffers:
//!
//! ```text
//!  NetmapIf ──ring_ofs──► NetmapRing  slot 0   slot 1   slot 2  …
//!                                       │ buf_idx, len, flags
//!                                       ▼
//!                         pool:  [buffer 0][buffer 1][buffer 2] …   one every `stride` bytes
//! ```
//!
//! Client and switch share slots by turns. A slot between `head` and `tail` of a ring is the
//! client's, all others are the switch's; each side moves its own index forward and never the
//! other's. The indexes travel in the CSB, a cache line for each direction and writer:
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | [`abi::CsbAtok::head`] | client | switch | Release after the slots / Acquire before them |
//! | [`abi::CsbKtoa::hwtail`] | switch | client | Release after the slots / Acquire before them |
//! | [`abi::CsbAtok::appl_need_kick`] | client | switch | see [`doorbell`] |
//! | [`abi::Bell::need_kick`] | switch | client | see [`doorbell`] |
//!
//! # Where to look
//!
//! | folder | holds |
//! |---|---|
//! | `format` | [`abi`], [`cursor`], [`layout`], [`doorbell`], [`ptnet`]: what the sides agree on |
//! | `region` | the sealed memory: created, attached, formatted; its pool of buffers; huge pages |
//! | `frame` | a frame in pieces, in a region or in a guest's memory, and copies of it |
//! | `kring` | the switch's half of a ring: take, put, run, mirror, exchange |
//! | `user` | the client's half of a ring, its extra buffers, netmap's syncs |
//! | `group` | trust groups: who owns which buffer, what a leaving member leaves, audits, holders |
//! | `guest`, `umem` | memory that a VMM lends, and memory that the kernel fills |
//! | `intake` | frames that the daemon reads itself |
//! | `memory` | mappings, copies, and a large table of words |
//! | `shared`, `sequence` | what several workers use one at a time, or read while one changes it |
//! | `waiters` | workers that wait for room in a ring |
//!
//! The client's half ([`user`]) and the switch's half ([`kring`]) are different types with
//! different trust. The client may see its own slots and buffers as slices. The switch sees nothing
//! of a region as a slice, keeps the truth about every ring in private memory, and bounds each
//! number that it reads.
//!
//! # What is absent
//!
//! No policy, no addresses, no VLANs: a header is sixteen opaque bytes here. No clock, no thread.
//! System calls only to make and map regions, and in netmap's syncs: to fetch data that is not in
//! the region, and to let another sync of the same ring go on.

#[cfg(all(test, not(loom)))]
mod fixture;
mod format;
#[cfg(not(loom))]
pub mod frame;
#[cfg(not(loom))]
mod group;
#[cfg(not(loom))]
pub mod guest;
#[cfg(not(loom))]
pub mod intake;
#[cfg(not(loom))]
pub mod kring;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
pub mod region;
pub mod sequence;
#[cfg(not(loom))]
pub mod shared;
#[cfg(not(loom))]
pub mod umem;
#[cfg(not(loom))]
pub mod user;
#[cfg(any(test, not(loom)))]
pub mod waiters;
#[cfg(not(loom))]
pub mod wake;

pub use format::{cursor, doorbell, ptnet};

#[cfg(not(loom))]
pub use format::layout::BufferIndex;
#[cfg(not(loom))]
pub use format::{abi, held, layout};
#[cfg(not(loom))]
pub use group::{audit, holder, leaver, owners};
#[cfg(not(loom))]
pub use kring::{exchange, krings, metadata, run};
#[cfg(not(loom))]
pub use memory::{HUGE_PAGE, map_as_device, table};
#[cfg(not(loom))]
pub use region::{Region, RegionId};
#[cfg(not(loom))]
pub use user::{extra, lent, sync};
