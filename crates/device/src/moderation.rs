//! Interrupt moderation: a driver is not interrupted for every frame, and never too late.
//!
//! ```text
//!   frames ──► owed ──► due? ──► told, owed = 0
//!                        │
//!                        └─ not yet: asked again with the next frames, or when time has passed
//! ```
//!
//! If the last interrupt is longer ago than the *gap*, the driver is interrupted at once. Otherwise
//! the frames wait for the rest of the gap, or until there are many of them. So the first frame on
//! an idle link never waits; and however many frames there are, interrupts are at least a gap
//! apart: a guest that cannot keep up spends its processor on frames, not on interrupts.
//!
//! The gap is fixed ([`Coalesce`]), or it adapts once per *epoch*, a millisecond or more: to the
//! number of frames that the driver took, and to whether frames were lost for want of room.
//!
//! ```text
//!             BUSY frames or more, or lost ones        twice, up to LONGEST
//!   gap 0 ─────────────────────────────────► SHORTEST ──────────────────► … LONGEST
//!         ◄────────────────────────────────────────────────────────────────
//!                           below CALM frames, and none lost
//! ```
//!
//! A driver that sleeps between round trips makes fewer than CALM of them, so an idle link has no
//! gap. A driver that cannot keep up soon has the longest gap, however few frames it takes.
//!
//! There is no clock here; the caller passes the time where it matters.

/// The frames in a millisecond from which on the gap grows, and below which there is none: one in
/// eight and one in twelve microseconds.
const BUSY: u64 = 120;
const CALM: u64 = 80;
/// The length of an epoch, in nanoseconds.
const EPOCH: u64 = 1_000_000;
/// The gap of a busy driver, in nanoseconds: 125 000 to 15 625 interrupts a second.
const SHORTEST: u64 = 8_000;
const LONGEST: u64 = 64_000;
/// Frames that end an adaptive gap early, so that a fast driver is not delayed.
const MANY: u16 = 64;

/// A fixed gap, in the terms of `ethtool -C`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalesce {
    /// Interrupt after this many frames, regardless of the timer; 0 means no such limit.
    pub frames: u16,
    /// The least time between two interrupts, in microseconds.
    pub usecs: u16,
}

/// The moderation of one queue.
#[derive(Clone, Copy, Debug)]
pub struct Moderation {
    /// The epoch of an adaptive gap.
    epoch: Option<Epoch>,
    /// The least time between two interrupts.
    gap_ns: u64,
    /// Frames that end the gap early; 0 means no such limit.
    many: u32,
    /// Frames since the last interrupt.
    owed: u32,
    /// The time of the last interrupt; not kept for a fixed gap of 0.
    told_ns: Option<u64>,
}

/// What has happened in the current epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    since_ns: u64,
    frames: u64,
    /// Frames were lost for want of room.
    lost: bool,
}

impl Moderation {
    /// Moderation with a fixed gap, or with an adaptive one.
    #[must_use]
    pub fn new(fixed: Option<Coalesce>) -> Self {
        let (epoch, Coalesce { frames, usecs }) = match fixed {
            Some(fixed) => (None, fixed),
            None => (Some(Epoch::default()), Coalesce { frames: MANY, usecs: 0 }),
        };
        let (gap_ns, many) = (u64::from(usecs) * 1000, frames.into());
        Self { epoch, gap_ns, many, owed: 0, told_ns: None }
    }

    /// Counts frames that the driver has got.
    #[inline]
    pub fn add(&mut self, frames: u32) {
        self.owed = self.owed.saturating_add(frames);
        if let Some(epoch) = &mut self.epoch {
            epoch.frames += u64::from(frames);
        }
    }

    /// Records that frames were lost for want of room.
    #[inline]
    pub fn lose(&mut self) {
        if let Some(epoch) = &mut self.epoch {
            epoch.lost = true;
        }
    }

    /// Whether there were frames since the last interrupt.
    #[inline]
    #[must_use]
    pub fn owes(&self) -> bool {
        self.owed > 0
    }

    /// Whether to interrupt the driver now; if so, the caller does it. `now_ns` is called only if
    /// time matters.
    #[inline]
    pub fn due(&mut self, now_ns: impl FnOnce() -> u64) -> bool {
        if self.owed == 0 {
            return false;
        }
        if self.epoch.is_some() || self.gap_ns > 0 {
            let now = now_ns();
            self.adapt(now);
            let rested = self.told_ns.is_none_or(|told| now.saturating_sub(told) >= self.gap_ns);
            let many = self.many > 0 && self.owed >= self.many;
            if !(rested || many) {
                return false;
            }
            self.told_ns = Some(now);
        }
        self.owed = 0;
        true
    }

    /// Adapts the gap at the end of an epoch.
    fn adapt(&mut self, now: u64) {
        let Some(epoch) = &mut self.epoch else { return };
        let time = now.saturating_sub(epoch.since_ns);
        if time < EPOCH {
            return;
        }
        // Frames in a millisecond.
        let rate = epoch.frames.saturating_mul(1_000_000) / time;
        if epoch.lost || rate >= BUSY {
            self.gap_ns = (self.gap_ns * 2).clamp(SHORTEST, LONGEST);
        } else if rate < CALM {
            self.gap_ns = 0;
        }
        *epoch = Epoch { since_ns: now, ..Epoch::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fixed(frames: u16, usecs: u16) -> Moderation {
        Moderation::new(Some(Coalesce { frames, usecs }))
    }

    /// Adds frames at this time; returns whether the driver is interrupted.
    fn tells(queue: &mut Moderation, frames: u32, now_ns: u64) -> bool {
        queue.add(frames);
        queue.due(|| now_ns)
    }

    #[test]
    fn the_first_frame_is_told_at_once_and_the_next_after_the_gap() {
        let mut queue = fixed(0, 100);
        assert!(!queue.due(|| 0), "nothing is owed");
        assert!(tells(&mut queue, 1, 0));
        assert!(!tells(&mut queue, 1, 1) && !queue.due(|| 99_999) && queue.owes());
        assert!(queue.due(|| 100_000) && !queue.owes());
        assert!(tells(&mut queue, 1, 1_000_000), "the link was idle");
    }

    #[test]
    fn many_frames_do_not_wait() {
        let mut queue = fixed(4, 100);
        assert!(tells(&mut queue, 1, 0));
        let told: Vec<bool> = (1..=8).map(|now| tells(&mut queue, 1, now)).collect();
        assert_eq!(told, [false, false, false, true, false, false, false, true]);
    }

    #[test]
    fn no_gap_tells_always_and_asks_for_no_time() {
        let mut queue = fixed(0, 0);
        for _ in 0..10 {
            queue.add(100);
            queue.lose();
            assert!(queue.due(|| unreachable!("time does not matter")));
        }
    }

    /// The interrupts in 20 ms, if this many frames come every this many nanoseconds.
    fn told_in_20_ms(queue: &mut Moderation, from: u64, frames: u32, every: u64) -> u64 {
        let times = (from..from + 20_000_000).step_by(usize::try_from(every).expect("short"));
        times.filter(|&now| tells(queue, frames, now)).count().try_into().expect("few")
    }

    #[test]
    fn one_that_adapts_leaves_round_trips_alone() {
        let mut queue = Moderation::new(None);
        // 14 µs: as fast as threads wake each other.
        assert_eq!(told_in_20_ms(&mut queue, 0, 1, 14_000), 20_000_000u64.div_ceil(14_000));
        // Now and then a burst.
        assert_eq!(told_in_20_ms(&mut queue, 20_000_000, 50, 1_000_000), 20);
    }

    #[test]
    fn one_that_adapts_spaces_interrupts_where_single_frames_are_many() {
        let mut queue = Moderation::new(None);
        // A million of them a second: after some milliseconds interrupts are LONGEST apart.
        let _ = told_in_20_ms(&mut queue, 0, 1, 1_000);
        let told = told_in_20_ms(&mut queue, 20_000_000, 1, 1_000);
        assert!(told <= 20_000_000 / LONGEST + 1, "{told}");
        // A fast driver is not held up.
        let told = told_in_20_ms(&mut queue, 40_000_000, 64, 10_000);
        assert_eq!(told, 2000);
        // An epoch of calm, and there is no gap.
        let _ = told_in_20_ms(&mut queue, 60_000_000, 1, 14_000);
        assert!(tells(&mut queue, 1, 80_000_000) && tells(&mut queue, 1, 80_000_001));
    }

    #[test]
    fn one_that_loses_frames_gets_fewer_interrupts_however_few_frames_it_takes() {
        let mut queue = Moderation::new(None);
        let mut told = 0;
        for now in (0..40_000_000).step_by(20_000) {
            queue.lose();
            told = if now < 20_000_000 { 0 } else { told };
            told += u64::from(tells(&mut queue, 1, now));
        }
        assert!(told <= 20_000_000 / LONGEST + 1, "{told}");
    }

    proptest! {
        /// Whatever comes when: interrupts are a gap apart unless there are many frames, and
        /// nothing waits longer than the gap where it is asked for.
        #[test]
        fn interrupts_are_a_gap_apart_and_nothing_waits_longer(
            frames in 0..20u16,
            usecs in 0..200u16,
            steps in prop::collection::vec((0..6u32, 0..50_000u64), 1..200),
        ) {
            let (mut queue, gap) = (fixed(frames, usecs), u64::from(usecs) * 1000);
            let (mut now, mut owed, mut last) = (0, 0, None::<u64>);
            for (more, pause) in steps {
                now += pause;
                queue.add(more);
                owed += more;
                let told = queue.due(|| now);
                let rested = last.is_none_or(|last| now - last >= gap);
                let many = frames > 0 && owed >= u32::from(frames);
                prop_assert_eq!(told, owed > 0 && (rested || many));
                if told {
                    (owed, last) = (0, Some(now));
                }
                prop_assert_eq!(queue.owes(), owed > 0);
            }
        }

        /// One that adapts: nothing waits longer than the longest gap, nor are many made to wait,
        /// and its gap is none or between the shortest and the longest.
        #[test]
        fn one_that_adapts_is_bounded(
            steps in prop::collection::vec((0..100u32, 0..100_000u64, any::<bool>()), 1..300),
        ) {
            let mut queue = Moderation::new(None);
            let (mut now, mut last) = (0, None::<u64>);
            for (more, pause, loses) in steps {
                now += pause;
                queue.add(more);
                if loses {
                    queue.lose();
                }
                let owed = queue.owed;
                let told = queue.due(|| now);
                prop_assert_eq!(told && owed == 0, false);
                if !told && owed > 0 {
                    prop_assert!(owed < MANY.into() && last.is_some_and(|t| now - t < LONGEST));
                }
                if told {
                    last = Some(now);
                }
                prop_assert!(queue.gap_ns == 0 || (SHORTEST..=LONGEST).contains(&queue.gap_ns));
            }
        }
    }
}
