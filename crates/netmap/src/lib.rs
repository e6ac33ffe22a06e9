//! netmap's interface for programs that know nothing of uvala.
//!
//! `libuvala_netmap.so` is preloaded (`uvala run -- PROGRAM` does that) and gives a dynamically
//! linked program `/dev/netmap`: it opens, asks, maps, syncs and polls as on a kernel with netmap,
//! and uvala's daemon is behind it.
//!
//! ```text
//!  program      open      ioctl             mmap         ioctl(TXSYNC), poll
//!                │          │                 │                │
//!  preload      files     device            device         device, poll, select, epoll
//!                │          │                 │                │
//!                │        request ── serve    │              wait
//!                ▼          ▼          │      ▼                ▼
//!  table ────► descriptor: connection  │    region       rings, doorbells
//!                │                     │      │                │
//!  daemon      socket ◄────────────────┘    memfd            pipes
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`abi`] | netmap's structures and numbers, API 14 and 15 |
//! | [`memory`], [`request`] | what programs ask, and how they are answered |
//! | [`serve`] | how the daemon carries it out |
//! | [`table`], [`descriptor`] | which descriptors are ours, and what they are bound to |
//! | [`kloop`] | CSB mode and the sync loop |
//! | [`wait`] | waiting for them and others at once |
//! | [`preload`] | the functions that a program finds in the place of its C library's |
//!
//! # Not yet
//!
//! | asked for | answer |
//! |---|---|
//! | monitors (`NR_MONITOR_*`), null ports (`NR_REG_NULL`) | `EOPNOTSUPP` |
//! | virtio-net headers of 10 or 12 bytes | `EOPNOTSUPP` |
//! | `NETMAP_REQ_VALE_NEWIF`, polling | `EOPNOTSUPP` |
//! | interfaces of the system (`netmap:eth0`), in requests of every kind | `ENXIO` |
//!
//! Out of reach for ever: programs that are linked statically or make system calls themselves.
//!
//! The conformance suite, in C, is in `tests/netmap`; `tests/tests/netmap_programs.rs` runs it.

pub mod abi;
pub mod descriptor;
pub mod kloop;
pub mod memory;
pub mod preload;
pub mod request;
pub mod serve;
pub mod table;
pub mod wait;
