//! The helper: opens network interfaces for a daemon without the capabilities to do so.
//!
//! # Theory of operation
//!
//! ```text
//!   daemon             ── socket ──► uvala-helper (CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF)
//!                       question        which user asks? /etc/uvala/helper.toml: may it?
//!                      ◄─────────        opens one interface, and ends
//!                       descriptors
//!                      ─────────►        where it has changed something: stays so
//!                       made             (nothing for 30 s, or the end: puts it back, and ends)
//! ```
//!
//! Any user may start the helper, and it has capabilities that its users lack. So it takes nothing
//! from its caller but one message of at most 4 KiB on its standard input: no arguments, no
//! environment, no paths. The kernel tells which user asks. What that user may have is in one file,
//! at a fixed path, which only root may have written. The helper opens one interface in the network
//! namespace that it was started in, passes the descriptors, and ends. It reverts its changes if
//! the daemon makes no port of the interface.
//!
//! Descriptors that were passed are out of the helper's control. A TAP is one interface and no
//! other, with an address only of the networks that the policy names. Packet and AF_XDP sockets are
//! not tied to an interface: their holder can bind them to another one of the namespace.
//! For these kinds, the names in the policy are a guard against mistakes. Allow them only to users
//! that may read the traffic of the whole namespace.

pub mod ask;
pub mod policy;
pub mod wire;
