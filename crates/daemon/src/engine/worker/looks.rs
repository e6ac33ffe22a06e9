//! When a busy worker looks at its doorbell and its clock: a pure function of its work.
//!
//! A look is a system call. A worker that polls full ports needs none, but a port that was idle
//! waits for it. So the worker looks about every 50 µs, which it estimates: by the work since the
//! last look, in frames of 60 bytes, and how long that took.

use switch::Now;

/// Time between two looks: what a look costs is a hundredth of it.
const PERIOD_US: u64 = 50;
/// Most work between two looks.
const MOST: u32 = 4096;
/// Least work, also where another thread had the core meanwhile.
const FEWEST: u32 = 256;
/// Turns without a frame count as so much work.
const EMPTY_TURN: u32 = 16;
/// Yields between two looks.
const YIELDS: u32 = 4;

/// The work since the last look.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    work: u32,
    /// How much work there is between two looks.
    period: u32,
    /// The worker has yielded or slept since, so the time says nothing about its frames.
    rested: bool,
    last: Now,
}

impl Looks {
    /// No work yet.
    pub const NEW: Self = Self { work: 0, period: MOST, rested: true, last: Now::START };

    /// After turns with so much work: whether to look.
    #[inline]
    #[must_use]
    pub fn is_due_after_turn(&mut self, work: u32) -> bool {
        self.add(work.max(EMPTY_TURN))
    }

    /// After a yield: whether to look.
    #[must_use]
    pub fn is_due_after_yield(&mut self) -> bool {
        self.rested = true;
        self.add(self.period.div_ceil(YIELDS))
    }

    #[inline]
    fn add(&mut self, work: u32) -> bool {
        self.work = self.work.saturating_add(work);
        self.work >= self.period
    }

    /// The worker has looked.
    pub fn looked(&mut self, now: Now) {
        let took = now.us_since(self.last).max(1);
        if !self.rested {
            let period = u64::from(self.work) * PERIOD_US / took;
            self.period = u32::try_from(period).unwrap_or(MOST).clamp(FEWEST, MOST);
        }
        (self.work, self.rested, self.last) = (0, false, now);
    }

    /// The worker sleeps before it looks again.
    pub fn rest(&mut self) {
        self.rested = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of `slots` slots, each of which takes `us`, until the next look: how many there were.
    fn turns(looks: &mut Looks, now: &mut Now, slots: u32, us: u64) -> u32 {
        let mut turns = 0;
        loop {
            turns += 1;
            *now = now.after_us(us);
            if looks.is_due_after_turn(slots) {
                looks.looked(*now);
                return turns;
            }
        }
    }

    #[test]
    fn a_busy_worker_looks_every_fifty_microseconds() {
        let (mut looks, mut now) = (Looks::NEW, Now::START);
        assert_eq!(turns(&mut looks, &mut now, 64, 10), 64, "before it knows its frames");
        turns(&mut looks, &mut now, 64, 10);
        assert_eq!(turns(&mut looks, &mut now, 64, 10), 5);
        assert_eq!(turns(&mut looks, &mut now, 256, 10), 2, "more than it was before");
        assert_eq!(turns(&mut looks, &mut now, 256, 10), 5);
    }

    #[test]
    fn fast_and_slow_frames_have_bounds() {
        let (mut looks, mut now) = (Looks::NEW, Now::START);
        for _ in 0..3 {
            turns(&mut looks, &mut now, 256, 1);
        }
        assert_eq!(turns(&mut looks, &mut now, 256, 1), 16);
        for _ in 0..3 {
            turns(&mut looks, &mut now, 256, 5000);
        }
        assert_eq!(turns(&mut looks, &mut now, 256, 5000), 1);
    }

    #[test]
    fn yields_are_no_work() {
        let (mut looks, mut now) = (Looks::NEW, Now::START);
        for _ in 0..3 {
            turns(&mut looks, &mut now, 64, 10);
        }
        for _ in 0..10 {
            let due: Vec<_> = (0..4).map(|_| looks.is_due_after_yield()).collect();
            assert_eq!(due, [false, false, false, true]);
            now = now.after_us(2);
            looks.looked(now);
        }
        assert_eq!(turns(&mut looks, &mut now, 64, 10), 5);
    }
}
