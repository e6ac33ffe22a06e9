//! The helper: opens network interfaces for a daemon that has no right to.
//!
//! # Theory of operation
//!
//! ```text
//!   daemon (no rights) ── socket ──► uvala-helper (CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF)
//!                       question        who asks? /etc/uvala/helper.toml: may they?
//!                      ◄─────────        opens one interface, and ends
//!                       descriptors
//!                      ─────────►        where it has changed something: stays so
//!                       made             (nothing for 30 s, or the end: puts it back, and ends)
//! ```
//!
//! The helper is a program that anybody may start, with rights that they do not have. So it takes
//! nothing from who starts it but one message of at most 4 KiB on its standard input: no arguments,
//! no environment, no paths. Who asks is told by the kernel; what they may have stands in one file,
//! whose place is fixed and which only root may have written. It opens one thing, in the network
//! namespace that it was started in, hands over the descriptors, and ends; what it has changed of
//! the interface for that is put back where no port comes of it.
//!
//! What is handed over is out of the helper's hands. A TAP is that interface and no other, with
//! an address only of the networks that the policy names. Packet
//! and AF_XDP sockets are not tied to theirs: the kernel lets who holds one bind it to another
//! interface of the namespace. For these kinds the names in the policy are a guard against
//! mistakes, and only who may hear the whole namespace should be allowed them.

pub mod ask;
pub mod policy;
pub mod wire;
