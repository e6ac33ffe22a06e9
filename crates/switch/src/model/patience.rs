//! How long frames wait for a full port whose client reads.
//!
//! A client that shares its core with the sender, or sleeps, cannot read before it gets the core.
//! The switch fills its ring in less time than that takes, and drops faster than any sender writes.
//! So frames wait for a moment. Both sides of a wait earn it by frames:
//!
//! ```text
//!             full                      WAIT_US over
//!   Patient ────────► Waiting ───────────────────────► Over: frames are dropped at once
//!      ▲                 │                               │
//!      └─────────────────┴───────────────────────────────┘
//!         enough frames since: the client has read them, the sender has sent them
//! ```
//!
//! *The client* of a ring earns a wait by reading a quarter of it. A ring that is full, and was
//! full before, has been read as often as it was filled meanwhile: so the counter of slots that all
//! workers have filled says how much its client reads. Of a port without rings each worker counts
//! the frames that it has sent there. A client that reads nothing is waited for once.
//!
//! *The sender* earns a wait by `SENT` frames, to whatever ports. So no ring, and no number of
//! rings, slows it down to less than `SENT` frames in `WAIT_US`.

use crate::model::now::Now;

/// Longest wait: a sender on the receiver's core fills its own ring meanwhile, waits, and so lets
/// the receiver run.
const WAIT_US: u64 = 200;
/// Frames by which a sender earns a wait: 5 million a second.
pub(crate) const SENT: u64 = 1024;

/// The patience with the client of a receive ring, or that of a sender.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Patience {
    /// Enough frames since the last wait, or none yet.
    #[default]
    Patient,
    /// A frame waits.
    Waiting {
        /// The count of slots or frames at the beginning.
        count: u64,
        /// The time of the first look. It may be old by then: a busy worker seldom reads its clock.
        since: Now,
        /// The end of the wait, from a look at a later time on.
        until: Option<Now>,
    },
    /// The wait has ended.
    Over {
        /// The count of slots or frames at the beginning of the wait.
        count: u64,
    },
}

impl Patience {
    /// At a look at a full ring: begins a wait, goes on with it, or ends it. Returns whether the
    /// frame waits. `count` slots or frames have passed so far; `enough` of them earn a wait.
    pub(crate) fn look(&mut self, count: u64, enough: u64, now: Now) -> bool {
        if let Self::Waiting { count: begin, .. } | Self::Over { count: begin } = *self
            && count.saturating_sub(begin) >= enough
        {
            *self = Self::Patient;
        }
        *self = match *self {
            Self::Patient => Self::Waiting { count, since: now, until: None },
            Self::Waiting { count, until: Some(until), .. } if now >= until => Self::Over { count },
            Self::Waiting { count, since, until: None } if now != since => {
                Self::Waiting { count, since, until: Some(now.after_us(WAIT_US)) }
            }
            as_it_is => as_it_is,
        };
        matches!(self, Self::Waiting { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Now {
        Now::from_us(us)
    }

    #[test]
    fn test_a_wait_lasts_from_the_second_moment_on() {
        let mut patience = Patience::default();
        let looks = [7, 7, 1000, 1199, 1200, 1201, 9_000_000];
        let waits = looks.map(|at| patience.look(5, 10, us(at)));
        assert_eq!(waits, [true, true, true, true, false, false, false]);
    }

    #[test]
    fn test_enough_frames_earn_another_wait_and_fewer_do_not() {
        let mut patience = Patience::default();
        assert!(patience.look(0, 10, us(0)) && patience.look(0, 10, us(1)));
        assert!(!patience.look(9, 10, us(201)) && !patience.look(9, 10, us(210)));
        assert!(patience.look(10, 10, us(210)) && patience.look(10, 10, us(211)));
        // A receiver that reads during a wait earns another.
        assert!(patience.look(20, 10, us(410)) && patience.look(20, 10, us(411)));
        assert!(patience.look(20, 10, us(610)) && !patience.look(20, 10, us(611)));
    }
}
