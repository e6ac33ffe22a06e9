//! Counts how often ports have held up their worker, and says when it is enough.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::model::keys::PortKey;

/// Number of stalls within [`WINDOW`] for which the switch detaches a port.
pub const STRIKES: usize = 3;
/// A stall counts for so long.
pub const WINDOW: Duration = Duration::from_secs(60);

/// Times of each port's last stalls.
#[derive(Debug, Default)]
pub struct Strikes(BTreeMap<PortKey, VecDeque<Instant>>);

impl Strikes {
    /// The time for which a port has held its worker up makes its earlier stalls no older: else a
    /// port whose stalls last for half a minute would never have three of them.
    pub fn stop_clock(&mut self, port: PortKey, lasted: Duration) {
        let times = self.0.get_mut(&port).into_iter().flatten();
        times.for_each(|at| *at += lasted);
    }

    /// Counts a stall of a port; reports whether it is one too many. The port starts over then.
    pub fn count(&mut self, port: PortKey, now: Instant) -> bool {
        let recent = |at: &Instant| now.duration_since(*at) < WINDOW;
        self.0.retain(|_, times| times.back().is_some_and(recent));
        let times = self.0.entry(port).or_default();
        times.retain(recent);
        times.push_back(now);
        let enough = times.len() >= STRIKES;
        if enough {
            self.0.remove(&port);
        }
        enough
    }
}

/// Users that may not attach for a while, because a port of theirs has stalled its switch.
#[derive(Debug, Default)]
pub struct Excluded(BTreeMap<u32, Instant>);

impl Excluded {
    /// Excludes a user for [`WINDOW`].
    pub fn add(&mut self, uid: u32, now: Instant) {
        self.0.retain(|_, since| now.duration_since(*since) < WINDOW);
        self.0.insert(uid, now);
    }

    /// How long the user is excluded for, from now on.
    pub fn left(&self, uid: u32, now: Instant) -> Option<Duration> {
        let left = WINDOW.saturating_sub(now.duration_since(*self.0.get(&uid)?));
        Some(left).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_stalls_within_a_minute_are_enough() {
        let (mut strikes, begin) = (Strikes::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let found = [0, 1, 2, 3, 4, 64, 70].map(|second| strikes.count(PortKey(1), at(second)));
        assert_eq!(found, [false, false, true, false, false, false, false]);
    }

    #[test]
    fn the_time_of_a_stall_makes_the_earlier_ones_no_older() {
        let (mut strikes, begin) = (Strikes::default(), Instant::now());
        let found = [0, 1, 2].map(|minute: u32| {
            strikes.stop_clock(PortKey(1), WINDOW);
            strikes.count(PortKey(1), begin + minute * WINDOW)
        });
        assert_eq!(found, [false, false, true]);
    }

    #[test]
    fn a_user_is_excluded_for_a_minute() {
        let (mut excluded, begin) = (Excluded::default(), Instant::now());
        excluded.add(1000, begin);
        let left = |uid, seconds| excluded.left(uid, begin + Duration::from_secs(seconds));
        assert_eq!(left(1000, 59), Some(Duration::from_secs(1)));
        assert_eq!([left(1000, 60), left(2000, 0)], [None, None]);
        excluded.add(2000, begin + WINDOW);
        assert_eq!(excluded.0.len(), 1);
    }

    #[test]
    fn ports_are_counted_apart_and_forgotten_in_time() {
        let (mut strikes, begin) = (Strikes::default(), Instant::now());
        for n in 0..100 {
            assert!(!strikes.count(PortKey(n), begin));
        }
        assert_eq!(strikes.0.len(), 100);
        assert!(!strikes.count(PortKey(0), begin + WINDOW));
        assert_eq!(strikes.0.len(), 1);
    }
}
