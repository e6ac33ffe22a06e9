//! The need-kick handshake: a side that sleeps is woken, and a side that polls is not disturbed.
//!
//! Either side may stop polling and sleep. Before it sleeps it *arms*: it stores a non-zero
//! number into its need-kick word and then looks at the other's index once more. The other side
//! *publishes* its index and then looks at the need-kick word. Each stores first and looks
//! second, so at least one of them sees the other (Dekker's pattern):
//!
//! ```text
//!   publisher                          sleeper
//!   STORE index (Release)              STORE need_kick = n
//!   fence SeqCst            ◄────────► fence SeqCst
//!   LOAD  need_kick                    LOAD  index (Acquire)
//!   n seen: ring the doorbell          moved: do not sleep
//! ```
//!
//! The number changes each time a side arms, and the publisher remembers the last one it rang
//! for: one kick for each sleep, however many publications fall into it.
//!
//! **Light publishers.** The fence costs a sender of single frames a third of its speed. A client
//! that publishes often without ever sleeping goes *light*: it says so in [`sync_flag::LIGHT`]
//! and leaves its fence out. A worker that arms reads the flag *after* its own fence; where it is
//! set, the worker runs a barrier in every thread of every registered process
//! (`membarrier(2)`, `GLOBAL_EXPEDITED`) before it looks at the index. The flag needs its own
//! argument:
//!
//! - going light: STORE flag, fence, then light publications. A worker that read the old flag had
//!   its need-kick word visible before that fence, so every light publication sees it.
//! - going back: STORE flag = 0 (Release) after the last light publication. A worker that loads
//!   0 (Acquire) also sees every index published before it.
//!
//! A client that lies about the flag, or has not registered, only delays its own wake-up.
//!
//! **How a client is woken.** By a futex, which costs half of what a descriptor does, or by its
//! descriptor, which tells more: that the switch is gone, that a program is to stop. The client
//! says in a word which of the two it sleeps by. It stores the mode *before* it arms, and the other
//! side loads the mode *after* the need-kick word:
//!
//! ```text
//!   publisher                          sleeper
//!   STORE index (Release)              STORE mode
//!   fence SeqCst                       STORE need_kick = n (Release)
//!   LOAD  need_kick                    fence SeqCst
//!   fence Acquire                      LOAD  index (Acquire)
//!   LOAD  mode: futex or descriptor    moved: do not sleep
//! ```
//!
//! So a publisher that sees a number sees a mode that is not older. A sleeper that changes its mode
//! arms once more afterwards, with a new number. A publisher that still saw the old number, and so
//! may ring the wrong bell, has published before the sleeper looks at the index.
//!
//! The models at the end of this file check both sides with loom.
//!
//! [`sync_flag::LIGHT`]: crate::format::abi::sync_flag::LIGHT

use crate::format::atomic::{AtomicU32, Ordering, fence};

/// [`sleep_mode::FUTEX`](crate::format::abi::sleep_mode), which models have no page for.
const BY_FUTEX: u32 = 1;
/// What each wake-up adds to the futex.
const WAKE: u32 = 2;
/// The bit of the futex that says that the publisher rings by it.
const OFFERED: u32 = 1;

/// The publisher's side: the last sleep for which it rang the doorbell.
#[derive(Debug, Default)]
pub struct Ringer {
    last: u32,
}

impl Ringer {
    /// Value of a need-kick word that asks for a kick at every publication: what netmap's own
    /// clients write.
    pub const ALWAYS: u32 = 1;

    /// Whether the doorbell must be rung. Call after the fence that follows the publication.
    #[inline(always)]
    pub fn must_ring(&mut self, need_kick: &AtomicU32) -> bool {
        self.is_first(need_kick.load(Ordering::Relaxed))
    }

    /// Whether this number of a sleeper's asks for a ring, and none was rung for it.
    #[inline(always)]
    pub fn is_first(&mut self, number: u32) -> bool {
        number != 0 && self.first_time(number)
    }

    #[cold]
    fn first_time(&mut self, number: u32) -> bool {
        let first = number != self.last || number == Self::ALWAYS;
        self.last = number;
        first
    }
}

/// The sleeper's side: a number for each time it arms.
#[derive(Debug)]
pub struct Sleeper {
    number: u32,
}

impl Default for Sleeper {
    fn default() -> Self {
        Self { number: Ringer::ALWAYS }
    }
}

impl Sleeper {
    /// Starts at the caller's number: for a side that may have had a predecessor, whose last number
    /// the other side remembers.
    #[must_use]
    pub fn starting_at(number: u32) -> Self {
        Self { number }
    }

    /// The last number, for a successor to start at.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Stores the next number. The caller fences and looks at the other side's index afterwards.
    #[inline]
    pub fn arm(&mut self, need_kick: &AtomicU32) {
        self.number = self.number.wrapping_add(1).max(Ringer::ALWAYS + 1);
        // Release: a publisher that sees the number sees the mode of sleep, too.
        need_kick.store(self.number, Ordering::Release);
    }

    /// Takes the request for a kick back.
    #[inline]
    pub fn disarm(&self, need_kick: &AtomicU32) {
        need_kick.store(0, Ordering::Relaxed);
    }
}

/// The words by which a client that sleeps is woken; the two sides of a port share them.
#[derive(Clone, Copy, Debug)]
pub struct WakeWords<'a> {
    /// How the client sleeps.
    pub mode: &'a AtomicU32,
    /// The futex that it may sleep on.
    pub wakes: &'a AtomicU32,
}

/// How to wake a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeBy {
    /// One waiter of the futex, which has changed already.
    Futex,
    /// The descriptor that the client was given.
    Descriptor,
}

impl WakeWords<'_> {
    /// The publisher's side: how to ring, after [`Ringer::must_ring`] has said so. It must ring
    /// then.
    #[inline]
    #[must_use]
    pub fn ring(self) -> WakeBy {
        // Partner: the Release of `Sleeper::arm`.
        fence(Ordering::Acquire);
        if !self.is_by_futex() {
            return WakeBy::Descriptor;
        }
        // Release: the index stands before it.
        self.wakes.fetch_add(WAKE, Ordering::Release);
        WakeBy::Futex
    }

    /// The publisher's side: whether the sleeper asks for its futex. It may ask for something else
    /// a moment later.
    #[inline]
    #[must_use]
    pub fn is_by_futex(self) -> bool {
        self.mode.load(Ordering::Relaxed) == BY_FUTEX
    }

    /// The publisher's side: from here on it rings by futex if it is asked to.
    pub fn offer_futex(self) {
        self.wakes.fetch_or(OFFERED, Ordering::Relaxed);
    }

    /// The publisher's side: from here on it rings by descriptor, whatever it is asked to.
    pub fn withdraw_futex(self) {
        self.wakes.fetch_and(!OFFERED, Ordering::Relaxed);
    }

    /// The sleeper's side: whether the publisher rings by futex.
    #[must_use]
    pub fn offers_futex(self) -> bool {
        self.wakes.load(Ordering::Relaxed) & OFFERED != 0
    }

    /// The sleeper's side: how it sleeps from the next time on that it arms.
    #[inline]
    pub fn sleep_by(self, by: WakeBy) {
        self.mode.store(u32::from(by == WakeBy::Futex), Ordering::Relaxed);
    }

    /// The sleeper's side: the futex. Where it has changed, there was a wake-up.
    #[inline]
    #[must_use]
    pub fn wakes(self) -> u32 {
        self.wakes.load(Ordering::Acquire)
    }
}

/// The fence between the store of one's own word and the load of the other side's. Its partner is
/// the same fence on the other side, or the worker's process-wide barrier.
#[inline(always)]
pub fn store_load_fence() {
    fence(Ordering::SeqCst);
}

/// A client's publications, with a fence each or light.
#[derive(Debug, Default)]
pub struct Publisher {
    ringer: Ringer,
    streak: u32,
    light: bool,
}

impl Publisher {
    /// Publications in a row without a sleep, after which a client goes light.
    const LIGHT_AFTER: u32 = 64;

    /// Publishes `index` and says whether the doorbell must be rung. `may_be_light`: this process
    /// is registered for the worker's barrier.
    #[inline(always)]
    pub fn publish(
        &mut self,
        index: (&AtomicU32, u32),
        flags: (&AtomicU32, u32),
        need_kick: &AtomicU32,
        may_be_light: bool,
    ) -> bool {
        index.0.store(index.1, Ordering::Release);
        if !self.light {
            store_load_fence();
            if may_be_light {
                self.count(flags);
            }
        }
        let ring = self.ringer.must_ring(need_kick);
        if ring {
            // The other side sleeps between our publications: this is no stream.
            self.calm(flags.0);
        }
        ring
    }

    #[inline]
    fn count(&mut self, flags: (&AtomicU32, u32)) {
        self.streak += 1;
        if self.streak == Self::LIGHT_AFTER {
            flags.0.store(flags.1, Ordering::Relaxed);
            store_load_fence();
            self.light = true;
        }
    }

    /// Goes back to fences: this client is about to sleep, so its peer will sleep too.
    #[inline]
    pub fn calm(&mut self, flags: &AtomicU32) {
        self.streak = 0;
        if self.light {
            self.light = false;
            flags.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn one_ring_for_each_sleep() {
        let (need, mut ringer, mut sleeper) =
            (AtomicU32::new(0), Ringer::default(), Sleeper::default());
        assert!(!ringer.must_ring(&need));
        for _ in 0..3 {
            sleeper.arm(&need);
            assert!(ringer.must_ring(&need));
            assert!(!ringer.must_ring(&need));
            sleeper.disarm(&need);
            assert!(!ringer.must_ring(&need));
        }
    }

    #[test]
    fn always_rings_at_every_publication() {
        let (need, mut ringer) = (AtomicU32::new(Ringer::ALWAYS), Ringer::default());
        assert!(ringer.must_ring(&need) && ringer.must_ring(&need));
    }

    #[test]
    fn numbers_never_wrap_to_the_reserved_ones() {
        let (need, mut sleeper) = (AtomicU32::new(0), Sleeper { number: u32::MAX - 1 });
        for _ in 0..4 {
            sleeper.arm(&need);
            assert!(need.load(Ordering::Relaxed) > Ringer::ALWAYS);
        }
    }

    #[test]
    fn a_busy_publisher_goes_light_and_calms_down() {
        let (head, flags, need) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let mut publisher = Publisher::default();
        for i in 0..Publisher::LIGHT_AFTER {
            assert_eq!(flags.load(Ordering::Relaxed), 0);
            publisher.publish((&head, i), (&flags, 1), &need, true);
        }
        assert_eq!(flags.load(Ordering::Relaxed), 1);
        publisher.calm(&flags);
        assert_eq!(flags.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_sleeper_says_how_it_is_woken() {
        let (mode, wakes) = (AtomicU32::new(0), AtomicU32::new(0));
        let words = WakeWords { mode: &mode, wakes: &wakes };
        assert!(!words.offers_futex());
        wakes.store(u32::MAX - 1, Ordering::Relaxed);
        words.offer_futex();
        for _ in 0..3 {
            words.sleep_by(WakeBy::Futex);
            let before = words.wakes();
            assert_eq!(words.ring(), WakeBy::Futex);
            assert!(words.wakes() != before && words.offers_futex());
            words.sleep_by(WakeBy::Descriptor);
            let before = words.wakes();
            assert_eq!(words.ring(), WakeBy::Descriptor);
            assert_eq!(words.wakes(), before);
        }
    }

    #[test]
    fn an_offer_of_the_futex_can_be_withdrawn_and_made_again() {
        let (mode, wakes) = (AtomicU32::new(BY_FUTEX), AtomicU32::new(0));
        let words = WakeWords { mode: &mode, wakes: &wakes };
        for _ in 0..2 {
            words.offer_futex();
            assert!(words.offers_futex());
            words.withdraw_futex();
            assert_eq!(words.ring(), WakeBy::Futex, "the client has not seen it yet");
            assert!(!words.offers_futex());
        }
    }

    #[test]
    fn an_unknown_mode_of_sleep_is_that_by_descriptor() {
        let (mode, wakes) = (AtomicU32::new(u32::MAX), AtomicU32::new(1));
        assert_eq!(WakeWords { mode: &mode, wakes: &wakes }.ring(), WakeBy::Descriptor);
    }

    #[test]
    fn an_unregistered_publisher_never_goes_light() {
        let (head, flags, need) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let mut publisher = Publisher::default();
        for i in 0..1000 {
            publisher.publish((&head, i), (&flags, 1), &need, false);
        }
        assert_eq!(flags.load(Ordering::Relaxed), 0);
    }
}

#[cfg(all(test, loom))]
mod models;
