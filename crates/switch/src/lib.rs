//! The switch: decides where frames go, and moves them there.
//!
//! A switch connects ports. What comes in by one port goes out by others, as a bridge between
//! Ethernet segments does it (IEEE 802.1D, 802.1Q), and as VALE does it: a batch at a time, in two
//! passes.
//!
//! 1. *Decide.* The first 16 bytes of a frame, copied out once ([`packet::ethernet::Header`]), are all that is looked
//!    at. [`Bridge`] finds the VLAN, learns the source, and asks a forwarding function, which gives
//!    a [`Verdict`]: to one port, to many, or to none for a [`DropReason`].
//! 2. *Deliver.* Frames for one destination are sent in one go. This pass knows nothing of
//!    addresses, and the first knows nothing of rings.
//!
//! | module | holds |
//! |---|---|
//! | [`packet`], [`id`] | addresses, headers, VLANs, port numbers; moments |
//! | [`config`] | what an operator can set |
//! | [`fdb`] | which address is behind which port |
//! | [`forward`] | the forwarding functions, one per file |
//! | [`bridge`] | the three above as one: the deciding half |
//! | [`stats`] | counters and drop reasons |
//!
//! # Invariants
//!
//! - What happens is a function of the state, the frames and `now`, which the caller passes: there
//!   is no clock here, no thread, no system call, and no randomness but the caller's seed. Maps
//!   that are iterated are ordered. The same run gives the same result (`tests/simulation.rs`).
//! - Decisions use the copy of a header, never the frame, which its sender may change meanwhile.
//! - Numbers from outside are made into types that cannot be out of range ([`packet::PortId`], [`packet::VlanId`])
//!   where they enter.
//! - A frame that is not delivered is counted, under one reason.
//! - A frame costs the same whether the switch has 2 ports or 4096 that do not get it.
//! - Deciding does not allocate, but for the tables of the forwarding database: these double when
//!   stations come that were never seen, up to their configured size.
#![forbid(unsafe_code)]

pub mod asks;
pub mod batch;
pub mod bridge;
pub mod config;
pub mod fdb;
pub mod forward;
mod groups;
pub mod id;
mod members;
pub mod monitor;
pub mod offload;
pub mod port;
pub mod stats;
mod switch;
pub mod turn;

pub use bridge::{Bridge, Decision, StaticError, TagAction, Tagging};
pub use config::{FDB_CAPACITY_MAX, Forwarding, OnFull, PortConfig, Role, SwitchConfig, VlanMode};
pub use fdb::{Fdb, FdbEntry, FdbStats, Flush, Learned};
pub use forward::{FloodClass, Verdict};
pub use id::Now;
pub use monitor::{Moment, Monitor, Sight};
pub use port::{Adapter, Plug, Sent, Wake};
pub use stats::{Counters, DropReason, Drops, PortStats, QueueStats};
pub use switch::Switch;
pub use turn::{Full, Moved, Scratch};
