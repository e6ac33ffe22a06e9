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
use std::sync::Arc;

use ring::Region;
use ring::layout::PortLayout;

/// The memory of a port, to be lent. It stays when the port is gone.
#[derive(Clone, Debug)]
pub struct PortMemory {
    file: Arc<OwnedFd>,
    region: Arc<Region>,
    port: PortLayout,
}

impl PortMemory {
    pub(crate) fn new(file: OwnedFd, region: &Arc<Region>, port: PortLayout) -> Self {
        Self { file: file.into(), region: region.clone(), port }
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
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
