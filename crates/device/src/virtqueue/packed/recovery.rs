//! Where a packed queue goes on after a device that stopped, moved away or died.
//!
//! The frontend names a position, its *base*. After an orderly stop and after a migration it is
//! right. After a device died it is old: QEMU names the position of the last orderly stop. The ring
//! tells the two apart, and says how far a device came that died.
//!
//! # What a ring shows
//!
//! AVAIL of a descriptor is the wrap counter of the driver's last pass, for the device leaves that
//! bit as it is. So AVAIL changes once along the ring, where the driver is; from there on, round
//! the ring, all descriptors have been given back as far as the device came:
//!
//! ```text
//!   AVAIL   1  1  1  1 │ 0  0  0  0  0        driver: slot 4, wrap 1
//!   USED    0  0  0  0 │ 0  0  1  1  1        device: slot 6, wrap 0
//! ```
//!
//! A driver writes the first descriptor of a chain last. While it does, the others behind its
//! position bear the new AVAIL already, and AVAIL changes three times.
//!
//! For the device's position, all descriptors of a chain must be marked as given back. This device
//! marks them. Others mark the first one, because the driver looks at no other; the rest of that
//! chain still looks available.
//!
//! # Whom to believe
//!
//! The base, where the ring agrees with it: from the base to the driver, all is available; before
//! it, round the ring, all was given back. There, descriptors that look available are the rest of
//! the chain whose first one was given back, if the last of them bears its buffer ID and no NEXT.
//! (Where the driver has written over the first one, the ID is gone.) Else the ring. A ring agrees
//! with a wrong base if that is exactly one buffer ahead, and this buffer bears the ID of the one
//! before it: no queue can tell that from a chain of two.
//!
//! # What a device left undone
//!
//! A device that gives several buffers back writes the first descriptor of the first one last, and
//! that of each other buffer after its rest. It may die between any two stores:
//!
//! ```text
//!   A n │ U   U  │ A n  U n  A │ A …      U given back, A not, n NEXT
//!   1st │ others │  the last   │ not begun
//! ```
//!
//! The driver has seen none of them. What was begun is given back here, buffer by buffer, in the
//! same order, so that a device that dies here leaves the same picture. Nothing says how much of
//! the first buffer was written, and a frame may lie in several, so all their lengths become 0:
//! their frames are lost.

use core::sync::atomic::Ordering;

use super::super::flag;
use super::super::store::Put;
use super::{AVAIL, DESCRIPTOR, Descriptor, Inflight, Log, Packed, Position, USED, Where, mark};

/// The descriptors of a ring, each read once: the driver may write on.
struct Snapshot {
    descriptors: Vec<Descriptor>,
    size: u16,
}

impl Snapshot {
    fn of(queue: &Packed) -> Self {
        let read = |slot| {
            let bits = queue.owner_bits(slot);
            let descriptor = Descriptor::packed(queue.areas.descriptor(slot));
            Descriptor { flags: descriptor.flags & !(AVAIL | USED) | bits, ..descriptor }
        };
        Self { descriptors: (0..queue.size).map(read).collect(), size: queue.size }
    }

    fn at(&self, at: Position) -> Descriptor {
        self.descriptors[usize::from(at.slot)]
    }

    fn is_available(&self, at: Position) -> bool {
        self.at(at).flags & (AVAIL | USED) == at.flags().0
    }

    fn is_returned(&self, at: Position) -> bool {
        self.at(at).flags & (AVAIL | USED) == at.flags().1
    }

    fn has_next(&self, at: Position) -> bool {
        self.at(at).flags & (flag::NEXT | flag::INDIRECT) == flag::NEXT
    }

    /// Whether AVAIL is not as the slot before lets expect.
    fn changes_at(&self, slot: u16) -> bool {
        let avail = |slot: u16| self.descriptors[usize::from(slot)].flags & AVAIL != 0;
        let before = if slot == 0 { !avail(self.size - 1) } else { avail(slot - 1) };
        avail(slot) != before
    }

    /// The driver's next position.
    fn driver(&self) -> Position {
        let after = |slot: u16| if slot + 1 == self.size { 0 } else { slot + 1 };
        let before = |slot: u16| if slot == 0 { self.size - 1 } else { slot - 1 };
        let changes = || (0..self.size).filter(|slot| self.changes_at(*slot));
        let is_first =
            |slot: &u16| self.changes_at(after(*slot)) && !self.changes_at(before(*slot));
        let slot = changes().find(is_first).or_else(|| changes().next());
        let slot = slot.expect("AVAIL changes an odd number of times");
        let wrap = self.descriptors[usize::from(slot)].flags & AVAIL == 0;
        Position { slot, wrap }
    }

    /// What the driver wrote in its last pass, the oldest first.
    fn last_pass(&self, driver: Position) -> Vec<Position> {
        let written = |slots| {
            let at = driver.after(slots, self.size);
            Position { wrap: !at.wrap, ..at }
        };
        (0..self.size).map(written).collect()
    }

    /// Whether a device can have stopped before `ahead`, with all of `behind` given back.
    fn agrees(&self, behind: &[Position], ahead: &[Position]) -> bool {
        // The ID of the buffer that was given back last, unless the driver writes there again.
        let mut id = None;
        let mut is_whole = true;
        for at in behind {
            if self.is_available(*at) {
                is_whole = !self.has_next(*at) && id.is_none_or(|id| id == self.at(*at).next);
            } else if is_whole {
                id = self.is_returned(*at).then(|| self.at(*at).next);
            } else {
                return false;
            }
        }
        let is_returned = id.is_some() || behind.last().is_none_or(|at| !self.is_available(*at));
        is_whole && is_returned && ahead.iter().all(|at| self.is_available(*at))
    }

    /// The number of descriptors of the chain that begins `pass`.
    fn chain(&self, pass: &[Position]) -> usize {
        let others = pass.iter().take_while(|at| self.has_next(**at)).count();
        (others + 1).min(pass.len())
    }
}

impl Packed {
    pub(super) fn continue_at(&mut self, at: Position) {
        (self.next, self.used, self.published) = (at, at, at);
    }

    /// Completes what a device left unfinished when it died, as `area` records it; returns the
    /// position to continue at. A device that dies here leaves a record for the next one.
    pub(super) fn recover(&self, area: &Inflight) -> Option<Position> {
        if !area.is_left(self.size) {
            return None;
        }
        let Where { used, old } = area.place();
        let [used, old] = [used, old].map(|(slot, wrap)| Position { slot, wrap });
        if used.slot >= self.size || old.slot >= self.size {
            return None;
        }
        let is_seen = used != old && !self.is_available(old);
        for slot in 0..self.size {
            let Some(words) = area.kept(slot) else { continue };
            if !is_seen {
                self.restore(slot, words);
            }
            area.forget(slot);
        }
        let Position { slot, wrap } = if is_seen { used } else { old };
        area.set_where(Where { used: (slot, wrap), old: (slot, wrap) });
        self.log_all();
        Some(Position { slot, wrap })
    }

    /// Writes a descriptor as the driver made it.
    fn restore(&self, slot: u16, [address, rest]: [u64; 2]) {
        let place = usize::from(slot) * DESCRIPTOR;
        self.areas.descriptors.u64(place).put(address, Ordering::Relaxed);
        self.areas.descriptors.u64(place + 8).put(rest, Ordering::Release);
    }

    /// [`super::super::Queue::resume`] for a packed queue.
    pub(in super::super) fn resume(&mut self, area: Option<&Inflight>) {
        if area.is_some_and(|area| area.is_left(self.size)) {
            return;
        }
        let snapshot = Snapshot::of(self);
        let driver = snapshot.driver();
        let pass = snapshot.last_pass(driver);
        let is_base = |at: &Position| *at == self.next;
        let base = pass.iter().position(is_base).or((self.next == driver).then_some(pass.len()));
        if !base.is_some_and(|base| snapshot.agrees(&pass[..base], &pass[base..])) {
            self.continue_at(self.finish(&snapshot, driver, &pass));
        }
    }

    /// Gives back what a device that died had begun to give back; returns the position after it.
    fn finish(&self, snapshot: &Snapshot, driver: Position, pass: &[Position]) -> Position {
        let Some(first) = pass.iter().position(|at| snapshot.is_available(*at)) else {
            return driver;
        };
        let pass = &pass[first..];
        let Some(last) = pass.iter().rposition(|at| snapshot.is_returned(*at)) else {
            return pass[0];
        };
        let end = last + snapshot.chain(&pass[last..]);
        let (unseen, rest) = (&pass[..end], pass.get(end));
        let (first, others) = unseen.split_at(snapshot.chain(unseen));
        for at in others.iter().filter(|at| snapshot.is_returned(**at)) {
            let place = usize::from(at.slot) * DESCRIPTOR + 8;
            self.areas.descriptors.u32(place).put(0, Ordering::Relaxed);
        }
        if let Some(last) = others.iter().position(|at| snapshot.is_available(*at)) {
            self.finish_buffer(snapshot, &others[last..]);
        }
        self.finish_buffer(snapshot, first);
        self.log_all();
        *rest.unwrap_or(&driver)
    }

    /// Gives back one buffer, with the ID that is in its last descriptor.
    fn finish_buffer(&self, snapshot: &Snapshot, chain: &[Position]) {
        let (first, last) = (chain[0], chain[chain.len() - 1]);
        self.mark_rest(first, u16::try_from(chain.len()).expect("a part of the ring"));
        let word = self.returned(first, snapshot.at(last).next, 0);
        let place = usize::from(first.slot) * DESCRIPTOR + 8;
        self.areas.descriptors.u64(place).put(word, Ordering::Release);
    }

    /// Logs a write to any descriptor.
    fn log_all(&self) {
        let ring = &self.areas.descriptors;
        if let Some(Log { log, .. }) = &self.areas.log {
            mark(log, ring.guest(), 0, ring.len());
        }
    }
}
