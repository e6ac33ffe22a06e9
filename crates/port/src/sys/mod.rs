//! The system calls of this crate.

pub mod aio;
pub mod descriptors;
mod doorbell;
pub mod packet;
mod slow_calls;
pub mod steering;
pub mod tun;
pub mod udp;
pub mod unread;
pub mod vhost;
mod wake;
pub mod xdp;

pub use doorbell::{Doorbell, Kick, PortBell, Ringer, new_event, prepare_kicks, said};
pub use slow_calls::{Probation, SlowCalls, UserCount};
pub use wake::{
    ClosedElsewhere, Closer, Closing, MirrorWakers, PortWaker, Waker, Wakers, doorbell_pair,
};

/// Whether the kernel takes UDP segmentation behind a virtio-net header (Linux 6.2).
#[must_use]
pub fn knows_datagram_runs() -> bool {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    [numbers.next(), numbers.next()] >= [Some(6u32), Some(2)]
}
