//! Port kinds: what can be plugged into a switch.
//!
//! | kind | peer | frames are in | woken by |
//! |---|---|---|---|
//! | [`shm`] | a client | netmap rings in a region | a pipe for each port |
//! | [`pipe`] | two clients, without the switch | one region | a pipe for each end |
//! | [`null`] | none: a sink | – | – |
//! | [`cable`] | a port of another switch | memory of the daemon | a socket that is readable |
//! | [`host`] | a network interface | memory of the daemon | a descriptor that is readable |
//! | [`vhost_user`] | a virtual machine | virtqueues in its memory | an eventfd for each queue |
//! | [`netdev`] | a virtual machine | memory of the daemon | a socket that is readable |
//! | [`vxlan`] | switches of other hosts | memory of the daemon | a socket that is readable |
//!
//! Options and names of the kinds are one table in the crate `protocol` (`PortKind`). [`hostif`]
//! opens interfaces. A [`queue`] may stand in front of a virtual machine's ring. Ports that netmap
//! programs bind are in a [`netmap_region`], which has room for more ports. Ports of one [`group`]
//! share a region: the switch swaps buffers between them instead of copying frames. A
//! [`log_budget`] bounds what they log. System calls are made in [`sys`] only.

pub mod cable;
mod free_space;
pub mod group;
pub mod host;
pub mod log_budget;
pub mod machine;
pub mod netdev;
pub mod netmap_region;
pub mod null;
pub mod pipe;
pub mod queue;
pub mod reservation;
pub mod shm;
pub mod sys;
pub mod vhost_user;
pub mod vxlan;
