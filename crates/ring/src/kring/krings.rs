//! Krings: the switch's half of all rings of a port, and the port's bell.
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | [`Bell::need_kick`] | the worker | the client | Relaxed, then a fence: [`crate::doorbell`] |
//! | [`Bell::news`] | the worker | the client | Relaxed; a kick follows |

#![allow(unsafe_code)] // UNSAFETY: the bell is a word of shared memory.

mod positions;

pub use positions::{Positions, RxPosition, TxPosition};

use core::mem::offset_of;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use crate::format::abi::{Bell, CsbAtok};
use crate::format::doorbell::Sleeper;
use crate::format::layout::{PortLayout, RingCounts};
use crate::group::leaver::Leaver;
use crate::group::owners::Owner;
use crate::kring::{RxKring, TxKring};
use crate::region::Region;
use crate::shared::Shared;

/// The krings of a port.
#[derive(Debug)]
pub struct Krings {
    /// Transmit rings: frames come out of them.
    pub tx: Vec<TxKring>,
    /// Receive rings: frames go into them. Workers to which the port does not belong have these
    /// only.
    pub rx: Vec<Shared<RxKring>>,
    bell: *const Bell,
    sleeper: Sleeper,
    layout: PortLayout,
    /// Owner of the buffers in its slots.
    owner: Owner,
    /// Buffers that the pool gave the port, in a shared region.
    given: usize,
    region: Arc<Region>,
}

// SAFETY: the bell lies in `region`, which is kept alive and may be used from any thread.
unsafe impl Send for Krings {}

impl Krings {
    /// The switch's half of a port that was just formatted.
    #[must_use]
    pub fn new(region: &Arc<Region>, port: &PortLayout) -> Self {
        let counts = port.counts();
        Self {
            tx: (0..counts.tx_rings).map(|i| TxKring::new(region, port, i)).collect(),
            rx: (0..counts.rx_rings).map(|i| Shared::sole(RxKring::new(region, port, i))).collect(),
            bell: region.memory().at(port.bell()),
            sleeper: Sleeper::default(),
            layout: *port,
            owner: Owner::of(port),
            given: region.owners().count(Owner::of(port)),
            region: region.clone(),
        }
    }

    /// Lets several workers put frames into the receive rings.
    #[must_use]
    pub fn into_common(mut self) -> Self {
        self.rx = self.rx.into_iter().map(Shared::into_common).collect();
        self
    }

    /// What a worker has to which the port does not belong: handles of the receive rings.
    ///
    /// # Panics
    /// If the rings have no lock: see [`Krings::into_common`].
    #[must_use]
    pub fn for_delivery(&self) -> Self {
        Self {
            tx: Vec::new(),
            rx: self.rx.iter().map(Shared::handle).collect(),
            bell: self.bell,
            sleeper: Sleeper::default(),
            layout: self.layout,
            owner: self.owner,
            given: self.given,
            region: self.region.clone(),
        }
    }

    /// The region that the port lives in.
    #[inline]
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where the port's structures lie in the region.
    #[must_use]
    pub fn layout(&self) -> &PortLayout {
        &self.layout
    }

    /// Frames that the function behind the port got by calls, and of these, those that it passed
    /// on. The numbers are its client's word.
    #[must_use]
    pub fn calls(&self) -> [u64; 2] {
        let atok = self.layout.atok(self.layout.counts().tx_rings.into());
        let memory = self.region.memory();
        [offset_of!(CsbAtok, called), offset_of!(CsbAtok, passed)].map(|at| memory.read(atok + at))
    }

    /// Tells the client that other functions follow this one now. The caller rings the client's
    /// doorbell.
    pub fn tell(&self) {
        // The worker alone writes the word.
        let news = &self.bell().news;
        news.store(news.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Sets how many bytes of a virtio-net header each frame has in front.
    pub fn set_vnet_header_len(&mut self, len: u8) {
        self.tx.iter_mut().for_each(|tx| tx.set_vnet_header_len(len));
        self.rx.iter_mut().for_each(|rx| rx.lock().set_vnet_header_len(len));
    }

    /// How many rings the port has, and how many slots.
    #[must_use]
    pub fn counts(&self) -> RingCounts {
        self.layout.counts()
    }

    /// Settles the ownership of buffers with a member that leaves the region: this port keeps the
    /// leaver's buffers that stand in its slots, and gives up as many of its own that the leaver
    /// holds ([`crate::group::owners`]). To be called between turns. Returns the cost: about as
    /// many slots as were looked at.
    pub fn reconcile(&self, leaver: &Leaver) -> u32 {
        // The port's own worker does it.
        let is_elsewhere = self.tx.is_empty();
        if is_elsewhere || !Arc::ptr_eq(&self.region, &leaver.region) {
            return 0;
        }
        self.keep(leaver);
        let slots = self.layout.counts().buffers();
        let (owners, own) = (self.region.owners(), self.owner);
        let left_behind = || leaver.foreign(own).filter(|buffer| owners.of(*buffer) == own);
        if left_behind().next().is_none() {
            return slots;
        }
        let surplus = owners.count(own).saturating_sub(self.given);
        for buffer in left_behind().take(surplus) {
            owners.pass(buffer, own, leaver.owner);
        }
        // A client that died in the middle of an exchange left one buffer in two slots.
        self.keep(leaver);
        // Counting reads two bytes for each buffer.
        2 * slots + self.region.layout().buffers / 8
    }

    /// The leaver's buffers that stand in this port's slots become this port's.
    fn keep(&self, leaver: &Leaver) {
        for buffer in self.region.slot_buffers(&self.layout) {
            self.region.owners().pass(buffer, leaver.owner, self.owner);
        }
    }

    #[inline]
    fn bell(&self) -> &Bell {
        // SAFETY: a line of `region`; an atomic may be shared with the client.
        unsafe { &*self.bell }
    }

    /// Asks the client to kick at its next publication. The caller then fences, and looks at the
    /// rings once more before it sleeps.
    pub fn arm(&mut self) {
        // SAFETY: as in `bell`; borrowed apart from the sleeper.
        let bell = unsafe { &*self.bell };
        self.sleeper.arm(&bell.need_kick);
        for mut rx in self.rx.iter_mut().map(Shared::lock).filter(|rx| rx.is_mirrored()) {
            rx.want_room();
        }
    }

    /// Takes the request for a kick back.
    pub fn disarm(&mut self) {
        self.sleeper.disarm(&self.bell().need_kick);
    }

    /// Looks how far the client has published on all transmit rings; returns the number of slots to
    /// take.
    #[inline]
    pub fn sync_tx(&mut self) -> u32 {
        self.tx.iter_mut().map(TxKring::sync).sum()
    }

    /// Whether the client has returned slots that a monitor has not got yet.
    pub fn has_returned(&mut self) -> bool {
        self.rx.iter_mut().any(|rx| rx.lock().has_returned())
    }

    /// Whether the client publishes without fences on any ring. A worker that goes to sleep must
    /// then run the process-wide barrier.
    #[must_use]
    pub fn is_light(&self) -> bool {
        let rx_is_light = || self.rx.iter().any(|rx| rx.with(RxKring::is_light));
        self.tx.iter().any(TxKring::is_light) || rx_is_light()
    }

    /// How often any ring was re-synchronised.
    #[must_use]
    pub fn resyncs(&self) -> u32 {
        let tx = self.tx.iter().map(TxKring::resyncs);
        let rx = self.rx.iter().map(|rx| rx.with(RxKring::resyncs));
        tx.chain(rx).fold(0, u32::wrapping_add)
    }
}
