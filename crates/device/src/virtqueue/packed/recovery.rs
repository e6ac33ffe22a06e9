//! Where a packed queue goes on after a device that stopped, moved away or died.
//!
//! The frontend names a position, its *base*. After an orderly stop and after a migration it is
//! right. After a device died it is old: QEMU names the position of the last orderly stop. The ring
//! tells the two apart, and says how far a device came that died. Where it cannot, the queue is *in
//! doubt*: nothing is written, and its owner uses it only when its driver has set it up again. A
//! wrong position would give a buffer back twice, or never.
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
//! A driver leaves USED as it finds it. So USED changes once along the ring where a device stopped
//! that marks all descriptors, whatever the driver writes; the driver is where the available ones
//! end. If USED changes more often, AVAIL tells where the driver is: a device that died between two
//! stores had two descriptors at least, and a chain that the driver writes meanwhile leaves them.
//! Two cases mislead: a ring of two descriptors; and what another device left behind, while the
//! driver writes a chain of all descriptors, or of all but one.
//!
//! For the device's position, all descriptors of a chain must be marked as given back. This device
//! marks them. Others mark the first one, because the driver looks at no other; the rest of that
//! chain still looks available.
//!
//! # Base or ring
//!
//! The base, if everything from there to the driver is available, and all else was given back. This
//! takes no knowledge of the driver's position.
//!
//! The base, too, if another device can have left the ring: before the base, all was given back or
//! is the rest of a chain, which ends with the buffer ID of its first descriptor and no NEXT.
//! (Where the driver has written over the first one, the ID is gone. With IN_ORDER, a device may
//! give several buffers back as one.) That is not enough. Drivers reuse IDs, and a buffer that is
//! still to be given back, behind one that had the same ID, looks like a chain of two. An old base
//! may lie just behind that buffer; if it were believed, the buffer would never come back. So the
//! ring counts, unless one of these supports the base:
//!
//! - The device area asks for a kick at the base. A device that waits has left its position there.
//! - Two such rests have returned descriptors behind them. This device leaves one at most, when it
//!   dies while it gives buffers back.
//!
//! The base of a device that polled and gave back one chain has no such support, and the ring says
//! another place. Then the queue is in doubt, unless the device area asks for a kick where the ring
//! says. A device that died leaves such a picture by chance only: the old base must lie just behind
//! a buffer that had the ID of the one before it.
//!
//! Two pictures are not doubted, though another device can have left them. A ring in which all
//! looks available is taken for a full one, as receive queues mostly are, and not for one with a
//! rest whose beginning the driver has written over. And another device that died while the base
//! was old cannot be told from this one.
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
//!
//! Rests of another device's chains may look like buffers that were not given back. They lie before
//! these two, so only the last two are completed. If one of them is such a rest, that does no harm:
//! the driver has passed it.

use core::ops::Range;
use core::sync::atomic::Ordering;

use super::super::flag;
use super::super::store::Put;
use super::{
    AT, AVAIL, DESCRIPTOR, Descriptor, HOW, Inflight, Log, Packed, Position, USED, WHERE, Where,
    mark,
};

/// How often the ring is read, at most, to find it as it was at one time.
const TRIES: usize = 4;

/// The descriptors of a ring at one time. The driver may write on.
struct Snapshot {
    descriptors: Vec<Descriptor>,
    size: u16,
}

impl Snapshot {
    /// The device stands still, so a driver passes each descriptor once at most. Two looks that
    /// find the same owners show the ring as it was between them. A driver that never pauses harms
    /// its own queue.
    fn of(queue: &Packed) -> Self {
        let mut found = Self::read(queue);
        for _ in 1..TRIES {
            if found.is_current(queue) {
                break;
            }
            found = Self::read(queue);
        }
        found
    }

    fn read(queue: &Packed) -> Self {
        let read = |slot| {
            #[cfg(test)]
            meanwhile::before_a_look();
            let bits = queue.owner_bits(slot);
            let descriptor = Descriptor::packed(queue.areas.descriptor(slot));
            Descriptor { flags: descriptor.flags & !(AVAIL | USED) | bits, ..descriptor }
        };
        Self { descriptors: (0..queue.size).map(read).collect(), size: queue.size }
    }

    fn is_current(&self, queue: &Packed) -> bool {
        let owner = |found: &Descriptor| found.flags & (AVAIL | USED);
        (0..).zip(&self.descriptors).all(|(slot, found)| queue.owner_bits(slot) == owner(found))
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

    /// Whether AVAIL or USED is not as the slot before lets expect.
    fn changes_at(&self, slot: u16, bit: u16) -> bool {
        let is_set = |slot: u16| self.descriptors[usize::from(slot)].flags & bit != 0;
        let before = if slot == 0 { !is_set(self.size - 1) } else { is_set(slot - 1) };
        is_set(slot) != before
    }

    /// Where a device has stopped that marks all descriptors, as far as USED tells.
    fn stop(&self) -> Option<Position> {
        let mut changes = (0..self.size).filter(|slot| self.changes_at(*slot, USED));
        let slot = changes.next()?;
        let wrap = self.descriptors[usize::from(slot)].flags & USED == 0;
        let stop = Position { slot, wrap };
        (changes.next().is_none() && self.is_stop(stop)).then_some(stop)
    }

    /// The driver's next position.
    fn driver(&self) -> Position {
        let Some(stop) = self.stop() else { return self.driver_by_avail() };
        let is_available = |slots: &u16| self.is_available(stop.after(*slots, self.size));
        let end = (0..self.size).find(|slots| !is_available(slots));
        stop.after(end.unwrap_or(self.size), self.size)
    }

    fn driver_by_avail(&self) -> Position {
        let after = |slot: u16| if slot + 1 == self.size { 0 } else { slot + 1 };
        let before = |slot: u16| if slot == 0 { self.size - 1 } else { slot - 1 };
        let is_change = |slot: u16| self.changes_at(slot, AVAIL);
        let changes = || (0..self.size).filter(|slot| is_change(*slot));
        let is_first = |slot: &u16| is_change(after(*slot)) && !is_change(before(*slot));
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

    /// Whether a device that marks all descriptors has stopped at `base`: what is available begins
    /// there, and all else was given back, except what the driver is writing of one more chain.
    fn is_stop(&self, base: Position) -> bool {
        let round = (0..self.size).map(|slots| base.after(slots, self.size));
        let is_available = |at: &Position| self.is_available(*at);
        let is_returned = |at: Position| self.is_returned(Position { wrap: !at.wrap, ..at });
        let mut others = round.skip_while(is_available);
        others.next().is_none_or(is_returned) && others.skip_while(is_available).all(is_returned)
    }

    /// How many rests of chains in `behind`, all of which was given back, look available and have
    /// returned descriptors behind them. `None`: not all of it can have been given back.
    fn rests(&self, behind: &[Position], in_order: bool) -> Option<usize> {
        let mut rests = 0;
        // The ID of the buffer that was given back last, unless the driver writes there again.
        let mut id = None;
        let mut is_whole = true;
        let mut is_over = false;
        let mut was_available = false;
        for at in behind {
            let is_available = self.is_available(*at);
            if is_available {
                let is_last = !self.has_next(*at);
                is_whole = is_last && id.is_none_or(|id| id == self.at(*at).next);
                if is_over || is_last && !is_whole && !in_order {
                    return None;
                }
                is_over = is_whole && (id.is_some() || !in_order);
            } else if is_whole {
                id = self.is_returned(*at).then(|| self.at(*at).next);
                rests += usize::from(was_available);
                is_over = false;
            } else {
                return None;
            }
            was_available = is_available;
        }
        is_whole.then_some(rests)
    }

    /// The number of descriptors of the chain that begins `pass`.
    fn chain(&self, pass: &[Position]) -> usize {
        let others = pass.iter().take_while(|at| self.has_next(**at)).count();
        (others + 1).min(pass.len())
    }

    /// What of `pass` a device that died had begun to give back. The range ends where that device
    /// was.
    fn unseen(&self, pass: &[Position]) -> Range<usize> {
        let first = pass.iter().position(|at| self.is_available(*at)).unwrap_or(pass.len());
        let last = pass[first..].iter().rposition(|at| self.is_returned(*at));
        let count = last.map_or(0, |last| last + self.chain(&pass[first + last..]));
        first..first + count
    }

    /// The chains in `unseen` whose first descriptor looks available, in order.
    fn unfinished<'a>(&self, mut unseen: &'a [Position]) -> Vec<&'a [Position]> {
        let mut found = Vec::new();
        while let Some(first) = unseen.iter().position(|at| self.is_available(*at)) {
            let (chain, behind) = unseen[first..].split_at(self.chain(&unseen[first..]));
            found.push(chain);
            unseen = behind;
        }
        found
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
    pub(in super::super) fn resume(&mut self, area: Option<&Inflight>) -> bool {
        // What is too small, `track` refuses.
        if area.is_some_and(|area| !area.holds(self.size, true) || area.is_left(self.size)) {
            return true;
        }
        let snapshot = Snapshot::of(self);
        if snapshot.is_stop(self.next) {
            return true;
        }
        let driver = snapshot.driver();
        let pass = snapshot.last_pass(driver);
        let unseen = snapshot.unseen(&pass);
        let place = *pass.get(unseen.end).unwrap_or(&driver);
        if let Some(rests) = self.rests(&snapshot, driver, &pass) {
            if rests > 1 || self.is_awaited(self.next) {
                return true;
            }
            let is_full = unseen.end == 0;
            if place != self.next && !is_full && !self.is_awaited(place) {
                return false;
            }
        }
        self.finish(&snapshot, &pass[unseen]);
        self.continue_at(place);
        true
    }

    /// [`Snapshot::rests`] behind the base, if a device that marks the first descriptor of a chain
    /// only can have stopped there.
    fn rests(&self, snapshot: &Snapshot, driver: Position, pass: &[Position]) -> Option<usize> {
        let base = pass.iter().position(|at| *at == self.next);
        let base = base.or((self.next == driver).then_some(pass.len()))?;
        let (behind, ahead) = pass.split_at(base);
        let is_ahead = ahead.iter().all(|at| snapshot.is_available(*at));
        snapshot.rests(behind, self.in_order).filter(|_| is_ahead)
    }

    /// Whether the device area asks for a kick at this position.
    fn is_awaited(&self, at: Position) -> bool {
        let word = |at| u16::from_le(self.areas.device.u16(at).load(Ordering::Acquire));
        self.event_index && word(HOW) == AT && word(WHERE) == at.bits()
    }

    /// Gives back what a device that died had begun to give back.
    fn finish(&self, snapshot: &Snapshot, unseen: &[Position]) {
        if unseen.is_empty() {
            return;
        }
        for at in unseen.iter().filter(|at| snapshot.is_returned(**at)) {
            let place = usize::from(at.slot) * DESCRIPTOR + 8;
            self.areas.descriptors.u32(place).put(0, Ordering::Relaxed);
        }
        let unfinished = snapshot.unfinished(unseen);
        unfinished.iter().rev().take(2).for_each(|chain| self.finish_buffer(snapshot, chain));
        self.log_all();
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

#[cfg(test)]
pub(in super::super) mod meanwhile {
    use std::cell::RefCell;

    type Act = Box<dyn FnOnce()>;

    thread_local! {
        /// What the driver does, after this many looks at the ring.
        static NEXT: RefCell<Option<(usize, Act)>> = const { RefCell::new(None) };
    }

    /// Lets the driver act once, after a snapshot has looked at `looks` descriptors.
    pub fn act_after(looks: usize, act: impl FnOnce() + 'static) {
        NEXT.set(Some((looks, Box::new(act))));
    }

    pub(super) fn before_a_look() {
        match NEXT.take() {
            Some((0, act)) => act(),
            next => NEXT.set(next.map(|(looks, act)| (looks - 1, act))),
        }
    }
}
