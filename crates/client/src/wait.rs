//! When to look, when to yield, when to sleep.
//!
//! Sleeping and waking costs microseconds, spinning on a core that others need costs them
//! everything. So a wait looks; yields the core some times, looking after each; then arms, looks
//! once more (the handshake of [`ring::doorbell`]) and blocks in the doorbell. A thread with a core
//! of its own may ask to spin instead.

use std::time::{Duration, Instant};

use crate::{Error, Lost};

/// How a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// How often to yield the core before going to sleep.
    pub yields: u32,
    /// Never sleep: for a thread that owns its core.
    pub spin: bool,
}

impl Default for WaitPolicy {
    /// A hundred yields: on shared cores that keeps a busy port awake, and costs 50 µs once when
    /// traffic stops.
    fn default() -> Self {
        Self { yields: 100, spin: false }
    }
}

/// Slots that a sender has handed over since it last waited: after a ring of them it yields.
///
/// A receiver on the same core runs only when the sender waits. While the receiver's ring is full
/// the switch drops, which is faster than the sender writes, so the sender always finds room and
/// never waits by itself.
#[derive(Debug, Default)]
pub struct Unwaited(u32);

impl Unwaited {
    /// Adds slots. `true`: they are a ring now, and the count begins again.
    #[inline(always)]
    pub fn add(&mut self, slots: u32, ring: u32) -> bool {
        self.0 = self.0.saturating_add(slots);
        let is_ring = self.0 >= ring;
        if is_ring {
            self.0 = 0;
        }
        is_ring
    }

    /// The sender waits.
    pub fn reset(&mut self) {
        self.0 = 0;
    }
}

/// Something that may become ready through a kick.
pub trait Waits {
    /// Whether the event has happened.
    fn ready(&mut self) -> bool;
    /// Asks for a kick. `false`: it is ready, and nothing has been asked for.
    fn arm(&mut self) -> bool;
    /// Takes the request back.
    fn disarm(&mut self);
    /// How often the switch re-synchronised the rings since the last call.
    fn new_resyncs(&mut self) -> u32;
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The other side rang the doorbell.
    Kicked,
    /// The time is over.
    TimedOut,
}

/// What a thread sleeps on: see `crate::link`.
pub trait Sleeps {
    /// Before a thread arms for the first time.
    fn enter(&self);
    /// After a thread has disarmed for the last time.
    fn leave(&self);
    /// A thread that slept has found something.
    fn found(&self);
    /// To be noted before arming.
    fn kicks(&self) -> u64;
    /// Sleeps until there has been a kick after `seen`.
    fn sleep(&self, seen: u64, deadline: Option<Instant>) -> Result<Woken, Lost>;
    /// Checks that the daemon still holds the other side.
    fn check(&self) -> Result<(), Lost>;
    /// Why it is gone.
    fn why(&self) -> Error;
}

/// Waits until `on` is ready. `false`: `timeout` is over.
pub fn wait(
    on: &mut impl Waits,
    link: &(impl Sleeps + ?Sized),
    policy: WaitPolicy,
    timeout: Option<Duration>,
) -> Result<bool, Error> {
    if on.ready() {
        return Ok(true);
    }
    match on.new_resyncs() {
        0 => {}
        times => return Err(Error::Resynced { times }),
    }
    // A time so far away that no clock can say it is no limit.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    if policy.spin {
        return spin(on, link, deadline).map_err(|Lost| link.why());
    }
    for _ in 0..policy.yields {
        if is_over(deadline) {
            break;
        }
        rustix::thread::sched_yield();
        if on.ready() {
            return Ok(true);
        }
    }
    sleep(on, link, deadline).map_err(|Lost| link.why())
}

fn spin(
    on: &mut impl Waits,
    link: &(impl Sleeps + ?Sized),
    deadline: Option<Instant>,
) -> Result<bool, Lost> {
    /// Looks at the ring between two looks at the clock and at the other side's health.
    const LOOKS: u32 = 4096;
    loop {
        for _ in 0..LOOKS {
            if on.ready() {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        link.check()?;
        if is_over(deadline) {
            return Ok(false);
        }
    }
}

fn sleep(
    on: &mut impl Waits,
    link: &(impl Sleeps + ?Sized),
    deadline: Option<Instant>,
) -> Result<bool, Lost> {
    let _sleeper = Sleeper::new(link);
    loop {
        let seen = link.kicks();
        if !on.arm() {
            return Ok(true);
        }
        let woken = link.sleep(seen, deadline);
        on.disarm();
        // What has arrived counts more than the end of its sender.
        if on.ready() {
            link.found();
            return Ok(true);
        }
        if woken? == Woken::TimedOut {
            return Ok(false);
        }
    }
}

/// A thread that may be asleep.
struct Sleeper<'a, L: Sleeps + ?Sized>(&'a L);

impl<'a, L: Sleeps + ?Sized> Sleeper<'a, L> {
    fn new(link: &'a L) -> Self {
        link.enter();
        Self(link)
    }
}

impl<L: Sleeps + ?Sized> Drop for Sleeper<'_, L> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_sender_yields_once_a_ring_and_not_after_a_wait() {
        let mut unwaited = Unwaited::default();
        let yields = (0..64).filter(|_| unwaited.add(64, 1023)).count();
        assert_eq!(yields, 4, "4096 slots are four rings");
        assert!(unwaited.add(1023, 1023) && !unwaited.add(1022, 1023));
        unwaited.reset();
        assert!(!unwaited.add(1022, 1023) && unwaited.add(1, 1023));
    }
}
