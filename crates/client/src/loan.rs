//! A port's memory for another party that drives the rings: a guest, behind its device.
//!
//! ```text
//!   guest ── rings, frames ──► region ◄── rings, frames ── switch
//!     └─ kicks, interrupts ─► lender ◄─ doorbell, socket ────┘
//! ```
//!
//! The borrower publishes slots and sleeps by the port's words, as any client does. The lender has
//! the port: it rings the switch's doorbell for the borrower, and tells it of the switch's
//! wake-ups. While the memory is lent it leaves the port's own rings alone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ring::lent::LentRings;

use crate::{Lost, Port};

/// The memory of a port, to be lent. It stays when the port is gone.
#[derive(Clone, Debug)]
pub struct Loan {
    memory: Arc<OwnedFd>,
    rings: Arc<LentRings>,
}

impl Loan {
    pub(crate) fn new(memory: OwnedFd, rings: LentRings) -> Self {
        Self { memory: memory.into(), rings: rings.into() }
    }

    /// The rings, and where everything lies.
    #[must_use]
    pub fn rings(&self) -> &LentRings {
        &self.rings
    }
}

impl AsFd for Loan {
    /// The region's memfd.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Port {
    /// The port's memory, if [`Options::lends`](crate::Options::lends) was set. A reconnect changes
    /// it.
    #[must_use]
    pub fn loan(&self) -> Option<&Loan> {
        self.loan.as_ref()
    }

    /// Rings the switch's doorbell for a borrower that has published slots.
    pub fn kick(&self) -> Result<(), Lost> {
        self.sender.link().kick()
    }

    /// Takes the switch's wake-ups for a borrower out of the doorbell.
    pub fn acknowledge(&self) -> Result<(), Lost> {
        self.sender.link().acknowledge()
    }
}
