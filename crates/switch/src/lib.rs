//! The switch: decides where frames go, and moves them there.
//!
//! A switch forwards frames between its ports, as an Ethernet bridge does (IEEE 802.1D, 802.1Q),
//! and as VALE does: a batch at a time, in two passes.
//!
//! 1. *Decide.* The switch copies the first 16 bytes of a frame out once
//!    ([`packet::ethernet::Header`]) and reads nothing else. [`Bridge`] finds the VLAN, learns the
//!    source, and asks a forwarding function for a [`Verdict`]: to one port, to many, or to none
//!    for a [`DropReason`].
//! 2. *Deliver.* The switch sends all frames for one destination at once. This pass knows nothing
//!    of addresses, and the first knows nothing of rings.
//!
//! | module | holds |
//! |---|---|
//! | [`receive`] | frames taken from a port: the batch, what a slot's flags request |
//! | [`decide`] | the bridge: forwarding database, forwarding functions, members of VLANs |
//! | [`chain`] | chains of functions: rules, services, the flow cache |
//! | `deliver` | lists of frames, one for each destination |
//! | [`mirror`] | rings and ports that get copies of what passes other ports |
//! | [`model`] | settings, ports, counters, moments, the worker's heartbeat |
//! | [`trace`] | what the switch would do with a frame, and why |
//! | [`turn`] | one batch from one port, through all of these |
//!
//! # Invariants
//!
//! - What happens is a function of the state, the frames and `now`, which the caller passes: there
//!   is no clock here, no thread, no system call, and no randomness but the caller's seed. Maps
//!   that are iterated are ordered. The same run gives the same result (`tests/simulation.rs`).
//! - Decisions use the copy of a header, never the frame, which its sender may change meanwhile.
//! - Numbers from outside are made into types that cannot be out of range ([`packet::PortId`],
//!   [`packet::VlanId`]) where they enter.
//! - A frame that is not delivered is counted, under one reason.
//! - A frame costs the same whether the switch has 2 ports or 4096 that do not get it.
//! - Deciding does not allocate, except for the tables of the forwarding database: these double
//!   when new stations appear, up to their configured size.
#![forbid(unsafe_code)]

pub mod chain;
pub mod decide;
mod deliver;
pub mod mirror;
pub mod model;
pub mod receive;
mod switch;
pub mod trace;
pub mod turn;

pub use decide::bridge::{Bridge, News, Payload, StaticError, TagAction, Tagging, VlanVerdict};
pub use decide::fdb::{Fdb, FdbChange, FdbChanges, FdbEntry, FdbStats, Flush, Learned};
pub use decide::forward::user::UserFunction;
pub use decide::forward::{FloodClass, Verdict};
pub use decide::loops::Loop;
pub use decide::snooping::{
    McastFamily, McastMember, McastQuerier, McastRouterPort, McastRow, McastScope, McastStats,
};
pub use mirror::{Clock, CopyRate, DropReasons, Mirror, MirrorPoint, MirrorSource};
pub use model::config::{
    FDB_CAPACITY_MAX, Forwarding, McastRouter, MirrorConfig, OnFull, PortConfig, Role, SwitchConfig,
};
pub use model::heartbeat::{Beat, Heartbeat, HeartbeatReader, Stage};
pub use model::now::Now;
pub use model::port::{Adapter, Full, Notify, Plug, Sent, Wake};
pub use model::security::{Disabled, PortSecurity, SecurityState};
pub use model::stats::{Counters, DropReason, Drops, PortStats, QueueStats};
pub use model::users::Users;
pub use switch::{GivenPort, Switch};
pub use trace::TraceStep;
pub use turn::{Moved, Scratch};
