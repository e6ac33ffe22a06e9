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
//! A module imports those above it in this table and none below:
//!
//! | module | holds |
//! |---|---|
//! | [`abi`] | netmap's structures and numbers, API 14 and 15 |
//! | [`memory`], [`request`] | requests read from the program's memory, and answers written there |
//! | [`errno`], [`next`] | the C library's `errno`, and the functions that stand behind ours |
//! | [`daemon`] | where the daemon is, and its errors as netmap's |
//! | [`notice`] | what the library says on standard error |
//! | [`own`], [`turn`] | the library's own descriptors; turns that a child of `fork` gives back |
//! | [`csb`], [`descriptor`] | CSB mode, and what a `/dev/netmap` descriptor is bound to |
//! | [`table`] | which of the program's descriptors are netmap's, or epoll sets with such members |
//! | [`wait`], [`kloop`] | waiting for several descriptors at once; the sync loop |
//! | [`serve`] | requests, carried out by the daemon |
//! | [`preload`] | the functions that a program calls in place of its C library's |
//!
//! # What a program is refused
//!
//! | request | answer |
//! |---|---|
//! | a monitor or a null port together with rings of the host's side | `EOPNOTSUPP` |
//! | what the daemon calls unsupported | `EOPNOTSUPP` |
//! | an interface of the system (`netmap:eth0`) that the daemon does not serve | `ENXIO` |
//! | without a daemon, in a guest: what is no ptnet of its own (`netmap:0000:00:04.0`) | `ENXIO` |
//! | `NIOCCONFIG`: there is no forwarding code of a kernel module to configure | `EINVAL` |
//!
//! The library cannot help programs that are linked statically or that make system calls without
//! the C library.
//!
//! The conformance suite, in C, is in `tests/netmap`; `tests/tests/netmap_programs.rs` runs it.

pub mod abi;
pub mod csb;
pub mod daemon;
pub mod descriptor;
pub mod errno;
pub mod kloop;
pub mod memory;
pub mod next;
pub mod notice;
pub mod own;
pub mod preload;
pub mod request;
pub mod serve;
pub mod table;
pub mod turn;
pub mod wait;
