//! Counts how often workers were held up, and says when it is enough.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::model::keys::PortKey;

/// Number of stalls within [`WINDOW`] for which the switch detaches a port.
pub const STRIKES: usize = 3;
/// A stall counts for so long.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Most ports that are remembered after they went.
const DEPARTED: usize = 4096;

/// What answers for a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answerable {
    /// An ordinary user, for all its ports together: it can have many, and leave and attach again.
    User(u32),
    /// A port of root's or of the daemon's own user, or one without a user at its other end.
    Port(PortKey),
}

/// Times of the last stalls.
#[derive(Debug, Default)]
pub struct Strikes(BTreeMap<Answerable, VecDeque<Instant>>);

impl Strikes {
    /// The time for which a worker was held up makes earlier stalls no older: else stalls that last
    /// for half a minute would never be three.
    pub fn stop_clock(&mut self, who: Answerable, lasted: Duration) {
        let times = self.0.get_mut(&who).into_iter().flatten();
        times.for_each(|at| *at += lasted);
    }

    /// Counts a stall; reports whether it is one too many. The count starts over then.
    pub fn count(&mut self, who: Answerable, now: Instant) -> bool {
        let recent = |at: &Instant| now.duration_since(*at) < WINDOW;
        self.0.retain(|_, times| times.back().is_some_and(recent));
        let times = self.0.entry(who).or_default();
        times.retain(recent);
        times.push_back(now);
        let enough = times.len() >= STRIKES;
        if enough {
            self.0.remove(&who);
        }
        enough
    }
}

/// Users that may not attach for a while, because a port of theirs has stalled its switch.
#[derive(Debug, Default)]
pub struct Excluded(BTreeMap<u32, (Instant, PortKey)>);

impl Excluded {
    /// Excludes a user for [`WINDOW`], because of a port.
    pub fn add(&mut self, uid: u32, port: PortKey, now: Instant) {
        self.0.retain(|_, (since, _)| now.duration_since(*since) < WINDOW);
        self.0.insert(uid, (now, port));
    }

    /// Whether this port is why the user is excluded.
    pub fn is_for(&self, uid: u32, port: PortKey) -> bool {
        self.0.get(&uid).is_some_and(|&(_, why)| why == port)
    }

    /// How long the user is excluded for, from now on.
    pub fn left(&self, uid: u32, now: Instant) -> Option<Duration> {
        let left = WINDOW.saturating_sub(now.duration_since(self.0.get(&uid)?.0));
        Some(left).filter(|left| !left.is_zero())
    }
}

/// The users of ports that went a moment ago: a stall may be reported after that.
#[derive(Debug, Default)]
pub struct Departed(VecDeque<(Instant, PortKey, u32)>);

impl Departed {
    /// Notes that the port of a user is gone.
    pub fn note(&mut self, port: PortKey, uid: u32, now: Instant) {
        while let Some((at, ..)) = self.0.front()
            && (*at + WINDOW <= now || self.0.len() >= DEPARTED)
        {
            self.0.pop_front();
        }
        self.0.push_back((now, port, uid));
    }

    /// The user of such a port.
    pub fn user(&self, port: PortKey) -> Option<u32> {
        self.0.iter().rev().find(|(_, key, _)| *key == port).map(|&(.., uid)| uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: Answerable = Answerable::Port(PortKey(1));

    #[test]
    fn three_stalls_within_a_minute_are_enough() {
        let (mut strikes, begin) = (Strikes::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let found = [0, 1, 2, 3, 4, 64, 70].map(|second| strikes.count(PORT, at(second)));
        assert_eq!(found, [false, false, true, false, false, false, false]);
    }

    #[test]
    fn the_time_of_a_stall_makes_the_earlier_ones_no_older() {
        let (mut strikes, begin) = (Strikes::default(), Instant::now());
        let found = [0, 1, 2].map(|minute: u32| {
            strikes.stop_clock(PORT, WINDOW);
            strikes.count(PORT, begin + minute * WINDOW)
        });
        assert_eq!(found, [false, false, true]);
    }

    #[test]
    fn a_user_is_excluded_for_a_minute() {
        let (mut excluded, begin) = (Excluded::default(), Instant::now());
        excluded.add(1000, PortKey(7), begin);
        assert!(excluded.is_for(1000, PortKey(7)) && !excluded.is_for(1000, PortKey(8)));
        let left = |uid, seconds| excluded.left(uid, begin + Duration::from_secs(seconds));
        assert_eq!(left(1000, 59), Some(Duration::from_secs(1)));
        assert_eq!([left(1000, 60), left(2000, 0)], [None, None]);
        excluded.add(2000, PortKey(8), begin + WINDOW);
        assert_eq!(excluded.0.len(), 1);
    }

    #[test]
    fn users_are_counted_apart_and_forgotten_in_time() {
        let (mut strikes, begin) = (Strikes::default(), Instant::now());
        for n in 0..100 {
            assert!(!strikes.count(Answerable::User(n), begin));
        }
        assert_eq!(strikes.0.len(), 100);
        assert!(!strikes.count(Answerable::User(0), begin + WINDOW));
        assert_eq!(strikes.0.len(), 1);
    }

    #[test]
    fn ports_that_went_are_remembered_for_a_minute_and_not_without_bound() {
        let (mut departed, begin) = (Departed::default(), Instant::now());
        for key in 0..5000 {
            departed.note(PortKey(key), 1000, begin);
        }
        assert_eq!(departed.0.len(), DEPARTED);
        assert_eq!([0, 4999].map(|key| departed.user(PortKey(key))), [None, Some(1000)]);
        departed.note(PortKey(5000), 1000, begin + WINDOW);
        assert_eq!(departed.0.len(), 1);
    }
}
