//! Network interfaces of the host: finding, opening and configuring them.
//!
//! # Theory of operation
//!
//! This crate makes the system calls that need capabilities, and only those. It opens descriptors
//! and returns them; it never reads or writes a frame. The daemon uses it when it has the
//! capabilities itself, and `uvala-helper` uses it when the daemon has none. The helper is a
//! privileged program, so this crate links no switch, no ring and no client.
//!
//! ```text
//!   daemon ──► port ──► hostif ──► kernel        the daemon has the capabilities
//!   daemon ──► helper ──► hostif ──► kernel      the helper has them, and passes descriptors
//! ```
//!
//! | module | opens | needs |
//! |---|---|---|
//! | [`tap`] | a TAP, which it creates if there is none | `CAP_NET_ADMIN`, or an own TAP |
//! | [`packet`] | a packet socket on an interface | `CAP_NET_RAW` |
//! | [`xdp`] | AF_XDP sockets, and their XDP program | `CAP_NET_RAW`, `_NET_ADMIN`, `CAP_BPF` |
//! | [`stack`] | the host stack's side of an interface | `CAP_NET_ADMIN`, `CAP_BPF` |
//! | [`netlink`] | rtnetlink: lookups, changes, events | `CAP_NET_ADMIN` for changes |
//! | [`namespace`] | a network namespace | `CAP_SYS_ADMIN` to enter it |
//!
//! What a function changes on an interface that existed before, it can change back: see [`Undo`].
//! A new TAP gets a stable MAC address: see [`mac`]. Each [`HostError`] tells an operator what to
//! do. A confined daemon has a [`broker`]. Only that and [`sys`] contain unsafe code.

pub mod broker;
mod error;
mod interface;
pub mod mac;
pub mod namespace;
pub mod netlink;
pub mod packet;
pub mod stack;
pub mod sys;
mod sysctl;
pub mod tap;
pub mod xdp;

use std::io;

pub use error::HostError;
pub use interface::{check_name, exists, find, is_same, look};

/// Changes to an interface that existed before. Dropping this reverts them, unless
/// [`keep`](Undo::keep) was called because the port now exists.
pub trait Undo: Send {
    /// Makes the changes permanent.
    ///
    /// # Errors
    /// The process that was to make them permanent has reverted them already.
    fn keep(&mut self) -> io::Result<()>;
}
