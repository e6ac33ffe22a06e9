//! Forwarding programs: eBPF functions of users that say where a switch sends a frame.
//!
//! # Theory of operation
//!
//! ```text
//!  object file ──► [object] ──► Image ──► [code] decode, check ──► Program
//!  (clang)         sections,    code,     [quicken],               │ run: a frame in,
//!                  symbols,     data,     where it is loaded       │      a decision out
//!                  relocations  maps                               ▼
//!                               │  ▲                             [machine] registers, steps
//!                               ▼  │                             [memory]  regions: frame, stack,
//!                               text: messages, saved state                data
//!                                                                [store]   maps, of all workers
//! ```
//!
//! A program cannot harm the switch, whatever its code is. That rests on the machine and not on
//! what was checked before: each access to memory names a region and an offset, and is bounded
//! there; each instruction is paid for from a fixed number of steps, and so is each part of a
//! helper that takes longer than one. The check in [`code`] is for the user: it finds what could
//! never run while the user still looks.
//!
//! A program has its memory from the start: a run allocates nothing. One worker runs it, or each
//! worker of its switch does: then the maps are common, under a lock that a run takes once.
//!
//! | limit | |
//! |---|---|
//! | instructions | [`INSNS_MAX`] |
//! | steps of a run | [`STEPS_MAX`](limits::STEPS_MAX) |
//! | stack | [`STACK`](limits::STACK) bytes for each function |
//! | functions in each other | [`CALLS_MAX`](limits::CALLS_MAX) |
//! | maps | [`MAPS_MAX`], together [`MEMORY_MAX`] bytes |
//! | constants | [`DATA_MAX`] bytes |
//!
//! There is no unsafe code, no clock, no input and no output here.
#![forbid(unsafe_code)]

pub mod code;
mod dispatch;
mod fault;
pub mod image;
pub mod limits;
mod machine;
pub mod maps;
mod memory;
mod mix;
pub mod object;
mod program;
mod quicken;
#[cfg(test)]
mod reference;
mod store;

pub use fault::{Fault, FaultKind};
pub use image::{DATA_MAX, INSNS_MAX, Image, ImageError, Looks, MAPS_MAX, MEMORY_MAX};
pub use limits::PORTS_MAX;
pub use maps::{Map, MapDef, MapError, MapKind};
pub use program::{Counts, Decision, Frame, PACKET_BYTES, Program};
