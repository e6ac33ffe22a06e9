//! The words by which a sleeping client is woken, in a port's memory.
//!
//! | word | writer | reader |
//! |---|---|---|
//! | [`CsbAtok::sleep_mode`] of receive ring 0 | the client | the side that wakes it |
//! | [`CsbKtoa::wakes`] of receive ring 0 | that side: the worker, a pipe's end | the client |
//!
//! [`crate::doorbell`] has the orderings.
//!
//! A peer may write both words at any time. That changes which of two calls wakes it, and nothing
//! else. The caller makes these calls: the futex is [`PortWake::futex`].

#![allow(unsafe_code)] // UNSAFETY: words of shared memory.

use core::mem::offset_of;
use core::sync::atomic::AtomicU32;
use std::sync::Arc;

use crate::format::abi::{CsbAtok, CsbKtoa};
use crate::format::doorbell::WakeWords;
use crate::format::layout::PortLayout;
use crate::region::Region;

/// The words of one port.
#[derive(Debug)]
pub struct PortWake {
    _region: Arc<Region>,
    mode: *const AtomicU32,
    wakes: *const AtomicU32,
}

// SAFETY: the words lie in a region that is kept alive and may be used from any thread.
unsafe impl Send for PortWake {}
// SAFETY: the words are atomics.
unsafe impl Sync for PortWake {}

impl PortWake {
    /// The words of a port that was formatted.
    #[must_use]
    pub fn new(region: &Arc<Region>, port: &PortLayout) -> Self {
        let rx = port.counts().tx_rings.into();
        Self {
            mode: region.memory().at(port.atok(rx) + offset_of!(CsbAtok, sleep_mode)),
            wakes: region.memory().at(port.ktoa(rx) + offset_of!(CsbKtoa, wakes)),
            _region: region.clone(),
        }
    }

    /// The words.
    #[inline]
    #[must_use]
    pub fn words(&self) -> WakeWords<'_> {
        // SAFETY: a word of the region, which is alive; an atomic may be shared.
        let mode = unsafe { &*self.mode };
        WakeWords { mode, wakes: self.futex() }
    }

    /// The futex.
    #[inline]
    #[must_use]
    pub fn futex(&self) -> &AtomicU32 {
        // SAFETY: a word of the region, which is alive; an atomic may be shared.
        unsafe { &*self.wakes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::port;
    use crate::format::doorbell::WakeBy;

    #[test]
    fn both_sides_of_a_port_have_the_same_words() {
        let both = port();
        let [ours, theirs] =
            [both.host.region(), both.rx.region()].map(|at| PortWake::new(at, both.host.layout()));
        assert!(!theirs.words().offers_futex());
        ours.words().offer_futex();
        assert!(theirs.words().offers_futex());
        theirs.words().sleep_by(WakeBy::Futex);
        assert_eq!((ours.words().ring(), theirs.words().wakes()), (WakeBy::Futex, 3));
    }
}
