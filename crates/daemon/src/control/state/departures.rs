//! Ports that went a short time ago: what they had counted, for those that ask too late.
//!
//! A program that drops frames at its end, or is killed, takes its port along. Its counters stay
//! for a minute, or until a port of the same name goes. Limits: 128 ports of one user, 1024 of
//! all; those that went first make room.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use protocol::PortStats;
use protocol::name::PortName;

use crate::model::policy::{Access, Caller, Permissions};

const KEPT: Duration = Duration::from_secs(60);
const PER_USER: usize = 128;
const ALL: usize = 1024;

/// A port that goes: the users that may see its counters, and what its earlier clients counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The user that made the port.
    pub owner: u32,
    /// The permissions of its switch.
    pub switch: Permissions,
    /// As of the port while it was there.
    pub past: Option<Box<PortStats>>,
}

#[derive(Debug)]
struct Departure {
    at: Instant,
    left: Left,
    counted: PortStats,
}

/// The departures of the last minute.
#[derive(Debug, Default)]
pub struct Departures(BTreeMap<PortName, Departure>);

impl Departures {
    /// A port went at `now` that had counted this much.
    pub fn note(&mut self, left: Left, counted: PortStats, now: Instant) {
        self.expire(now);
        let owner = left.owner;
        self.0.insert(counted.port.clone(), Departure { at: now, left, counted });
        self.limit(PER_USER, |departure| departure.left.owner == owner);
        self.limit(ALL, |_| true);
    }

    /// The counters that a caller may see at `now`, by name.
    pub fn seen_by(&mut self, caller: &Caller, now: Instant) -> impl Iterator<Item = PortStats> {
        self.expire(now);
        let may_look = |Left { owner, switch, .. }: &Left| {
            *owner == caller.uid || switch.allow(caller, Access::Look)
        };
        self.0.values().filter(move |departure| may_look(&departure.left)).map(move |departure| {
            let gone_s = Some(now.saturating_duration_since(departure.at).as_secs());
            PortStats { gone_s, ..departure.counted.clone() }
        })
    }

    fn expire(&mut self, now: Instant) {
        self.0.retain(|_, departure| now.saturating_duration_since(departure.at) < KEPT);
    }

    /// Removes the first departure of these, if they are more than `most`.
    fn limit(&mut self, most: usize, is_one: impl Fn(&Departure) -> bool) {
        let these = || self.0.iter().filter(|(_, departure)| is_one(departure));
        let is_over = these().count() > most;
        let first = these().min_by_key(|(_, departure)| departure.at).map(|(name, _)| name.clone());
        if let Some(first) = first.filter(|_| is_over) {
            self.0.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::Mode;

    use super::*;
    use crate::control::stats::counters;
    use crate::model::policy::Process;

    fn caller(uid: u32) -> Caller {
        let process = Process::Number(1);
        Caller { pid: 1, process, uid, gid: uid, groups: Vec::new(), privileged: uid == 0 }
    }

    fn go(departures: &mut Departures, name: &str, owner: u32, now: Instant) {
        let mode = Mode::new(0o640).expect("nine bits");
        let switch = Permissions { owner: 1000, group: 50, mode };
        let counted = counters::none(name.parse().expect("a name"));
        departures.note(Left { owner, switch, past: None }, counted, now);
    }

    fn names(departures: &mut Departures, uid: u32, now: Instant) -> Vec<String> {
        departures.seen_by(&caller(uid), now).map(|stats| stats.port.to_string()).collect()
    }

    #[test]
    fn counters_stay_for_a_minute_and_the_last_of_a_name_count() {
        let (mut departures, start) = (Departures::default(), Instant::now());
        let after = |s| start + Duration::from_secs(s);
        go(&mut departures, "vale0:a", 1000, start);
        go(&mut departures, "vale0:b", 1000, after(30));
        assert_eq!(names(&mut departures, 1000, after(59)), ["vale0:a", "vale0:b"]);
        let ages: Vec<_> = departures.seen_by(&caller(0), after(59)).map(|it| it.gone_s).collect();
        assert_eq!(ages, [Some(59), Some(29)]);
        go(&mut departures, "vale0:b", 1000, after(60));
        assert_eq!(names(&mut departures, 1000, after(119)), ["vale0:b"]);
        assert!(names(&mut departures, 1000, after(120)).is_empty());
    }

    #[test]
    fn users_see_their_own_and_those_of_switches_that_they_may_look_at() {
        let (mut departures, now) = (Departures::default(), Instant::now());
        go(&mut departures, "vale0:own", 7, now);
        assert_eq!(names(&mut departures, 7, now).len(), 1);
        assert_eq!(names(&mut departures, 1000, now).len(), 1, "the switch's owner");
        assert_eq!(names(&mut departures, 8, now).len(), 0);
    }

    #[test]
    fn a_user_whose_ports_come_and_go_pushes_out_its_own() {
        let (mut departures, now) = (Departures::default(), Instant::now());
        go(&mut departures, "vale0:other", 8, now);
        for i in 0..1000 {
            go(&mut departures, &format!("vale0:p{i}"), 7, now + Duration::from_millis(i));
        }
        assert_eq!(names(&mut departures, 8, now), ["vale0:other"]);
        assert_eq!(names(&mut departures, 7, now).len(), PER_USER);
        for i in 0..2000 {
            go(&mut departures, &format!("vale0:u{i}"), i, now);
        }
        assert_eq!(names(&mut departures, 0, now).len(), ALL);
    }
}
