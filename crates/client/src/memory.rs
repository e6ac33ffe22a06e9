//! A port's memory for another party that drives the rings: a guest, behind its device.
//!
//! ```text
//!   guest ── rings, frames ──► region ◄── rings, frames ── switch
//!     └─ kicks, interrupts ─► device ◄─ doorbell, socket ────┘
//! ```
//!
//! The guest publishes slots and sleeps by the port's words, as any client does. The device has the
//! port: it rings the switch's doorbell for the guest ([`Port::kick`]), and tells it of the
//! switch's wake-ups ([`Port::acknowledge`], [`ring::lent`]). While the memory is lent it leaves
//! the port's own rings alone.
//!
//! [`Port::kick`]: crate::Port::kick
//! [`Port::acknowledge`]: crate::Port::acknowledge

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use protocol::{PortRef, Request, SessionRequest};
use ring::Region;
use ring::layout::PortLayout;

use crate::control::ControlError;
use crate::link::Link;

/// The memory of a port, to be lent. It stays when the port is gone.
#[derive(Clone, Debug)]
pub struct PortMemory {
    file: Arc<OwnedFd>,
    region: Arc<Region>,
    port: PortLayout,
    link: Weak<Link>,
}

impl PortMemory {
    pub(crate) fn new(
        file: OwnedFd,
        region: &Arc<Region>,
        port: PortLayout,
        link: &Arc<Link>,
    ) -> Self {
        let (file, link) = (file.into(), Arc::downgrade(link));
        Self { file, region: region.clone(), port, link }
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Has the switch put the buffers of the port in order, for a program that takes over the rings
    /// of one that was perhaps killed as it exchanged two. Nothing, if the port is gone.
    ///
    /// # Errors
    /// The daemon does not answer, or refuses.
    pub fn recover(&self) -> Result<(), ControlError> {
        let Some(link) = self.link.upgrade() else { return Ok(()) };
        let call = SessionRequest::Recover(PortRef { port: link.name().clone() });
        match link.call(Request::Session(call)) {
            Ok(_) | Err(ControlError::Lost(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Where everything of the port lies in the region.
    #[must_use]
    pub fn layout(&self) -> &PortLayout {
        &self.port
    }
}

impl AsFd for PortMemory {
    /// The region's memfd.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
