//! Pacing: how many frames the switch takes from a port in a turn, where new flows cost much.
//!
//! # Theory of operation
//!
//! The switch compares the first frame of a flow with the rules. A client that makes every frame a
//! flow of its own has all frames compared. With thousands of different rules its turn takes long,
//! and all other ports of the worker wait. So a port whose last turn cost more than `WORK`
//! comparisons gets a shorter turn, in proportion. Its turns grow again little by little, as long
//! as they are cheap; a burst of new flows after a quiet time is therefore short. Frames that are
//! not taken wait in their ring and hold up their sender alone.

use packet::{MAX_PORTS, PortId};

/// Comparisons of a turn: 100 to 200 microseconds.
const WORK: u64 = 32_768;

/// Most frames of each port's next turn.
pub struct Pace(Box<[u16]>);

impl Pace {
    /// No limit for any port.
    #[must_use]
    pub fn new() -> Self {
        Self(vec![u16::MAX; MAX_PORTS].into_boxed_slice())
    }

    /// Lifts the limit of a port number, which another port gets.
    pub fn forget(&mut self, port: PortId) {
        self.0[port.index()] = u16::MAX;
    }

    /// Most frames of a port in its next turn.
    #[inline]
    #[must_use]
    pub fn most(&self, port: PortId) -> u16 {
        self.0[port.index()]
    }

    /// Notes that `frames` frames of a port took `compared` comparisons.
    #[inline]
    pub fn note(&mut self, port: PortId, frames: u32, compared: u64) {
        let most = &mut self.0[port.index()];
        if compared > WORK {
            let fewer = u64::from(frames) * WORK / compared;
            *most = u16::try_from(fewer).unwrap_or(u16::MAX).max(1);
        } else if compared <= WORK / 2 && frames >= u32::from(*most / 2).max(1) {
            *most = most.saturating_add(*most / 8 + 1);
        }
        debug_assert!(*most > 0, "a port may always send");
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_who_costs_much_gets_less_and_who_does_not_gets_all_again() {
        let (mut pace, port) = (Pace::new(), PortId::new(7).unwrap());
        let all = pace.most(port);
        pace.note(port, 256, 256 * 4096);
        assert_eq!(pace.most(port), 8);
        for (frames, compared) in [(8, 8 * 4096), (0, 0), (3, 0)] {
            pace.note(port, frames, compared);
            assert_eq!(pace.most(port), 8, "{frames} frames say nothing else");
        }
        pace.note(port, 8, 0);
        assert_eq!(pace.most(port), 10);
        pace.note(port, 1, u64::MAX);
        assert_eq!(pace.most(port), 1, "never none");
        (0..200).for_each(|_| pace.note(port, pace.most(port).into(), 0));
        assert_eq!(pace.most(port), all);
        pace.note(port, 256, 256 * 4096);
        pace.forget(port);
        assert_eq!(pace.most(port), all);
    }
}
