//! Port kinds: what can be plugged into a switch.
//!
//! | kind | peer | frames lie in | woken by |
//! |---|---|---|---|
//! | [`shm`] | a process | netmap rings in a region | a pipe, one for each port |
//! | [`pipe`] | two processes, without the switch | one region | a pipe, one for each end |
//! | [`null`] | nobody | – | – |
//! | [`cable`] | a port of another switch | memory of ours | the kernel: it is readable |
//! | [`host`] | a network interface | memory of ours | the kernel: it is readable |
//! | [`vhost_user`] | a virtual machine | virtqueues in its memory | an eventfd for each queue |
//!
//! Ports that netmap programs bind live in [`netmap_region`]: regions with room for more ports.
//! Ports of one [`group`] share a region: frames between them are swapped, not copied.
//! System calls are made in [`sys`] only.

pub mod cable;
mod free_space;
pub mod group;
pub mod host;
pub mod machine;
pub mod netdev;
pub mod netmap_region;
pub mod null;
pub mod pipe;
pub mod reservation;
pub mod shm;
pub mod sys;
pub mod vhost_user;
