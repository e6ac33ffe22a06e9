//! Direct hops: which there are to be, and who has to be told what.
//!
//! ```text
//!            sender: opens it ── sends once the receiver has it ── lets go ─┐
//!  wanted ─┤                                                               ├─► removed
//!            receiver: opens it ──────────── reads what is left, lets go ──┘
//!                                            when the sender has
//! ```
//!
//! A hop is wanted where a chain says `direct` and two services that follow each other have one
//! instance each, both in one trust group, with functions that have asked for their hops. Memory is
//! taken back when both ends have let go, or are gone: until then somebody may still write there.
//! Hops make no circle, for whoever waits for room in one reads nothing meanwhile. Pure.

use std::collections::{BTreeMap, BTreeSet};

use protocol::name::{PortName, SwitchName};
use protocol::{ErrorCode, HopState};

use crate::model::keys::{HopKey, PortKey};

/// Most hops that begin, or that end, at one function.
pub const HOPS_MAX: usize = 4;

/// Chain, its order and position of frames that go by a hop.
pub type Routes = Vec<(u8, u8, u8)>;

/// All hops.
#[derive(Debug, Default)]
pub struct Hops {
    all: BTreeMap<HopKey, Hop>,
    /// Ports whose functions have asked.
    aware: BTreeSet<PortKey>,
    next: u32,
    /// What hops that are gone have carried.
    past: BTreeMap<PortName, Carried>,
    /// Those that are wanted and could not be made, and why.
    failed: BTreeMap<[PortName; 2], ErrorCode>,
}

/// A hop.
#[derive(Clone, Debug)]
pub struct Hop {
    switch: SwitchName,
    /// Sender and receiver.
    pub ends: [PortKey; 2],
    /// Their names.
    pub names: [PortName; 2],
    routes: Routes,
    has: [Has; 2],
    /// What they were told last.
    shown: [Option<Seen>; 2],
}

/// What an end has of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    /// It was told.
    Not,
    /// It has opened it.
    Open,
    /// It has let go, or is gone.
    Gone,
}

/// What an end is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What is to be done.
    pub state: HopState,
    /// Frames of these go by it.
    pub routes: Routes,
}

/// Frames that a port has got and sent by hops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Got.
    pub received: u64,
    /// Sent.
    pub sent: u64,
    /// Of those that were sent to it, lost with it.
    pub lost: u64,
}

/// A hop that is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Sender and receiver.
    pub ends: [PortKey; 2],
    /// Their names.
    pub names: [PortName; 2],
    /// What goes by it.
    pub routes: Routes,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Hops that nobody has any more.
    pub over: Vec<(HopKey, [PortName; 2])>,
    /// Hops that are to be made.
    pub new: Vec<Wanted>,
    /// Functions that have to ask.
    pub tell: BTreeSet<PortKey>,
}

impl Hop {
    /// What an end is told of it; `None`: nothing, it has let go.
    #[must_use]
    pub fn seen(&self, end: usize) -> Option<Seen> {
        let [own, other] = [self.has[end], self.has[1 - end]];
        let state = match (own, other) {
            (Has::Gone, _) => return None,
            (_, Has::Gone) => HopState::Ended,
            _ if end == 0 && self.routes.is_empty() => HopState::Closing,
            _ => HopState::Open,
        };
        // A receiver that has not opened it reads nothing there.
        let sends = end == 0 && state == HopState::Open && other == Has::Open;
        Some(Seen { state, routes: if sends { self.routes.clone() } else { Routes::new() } })
    }

    /// Takes note of who is gone and of what is wanted.
    fn settle(&mut self, routes: Routes, live: impl Fn(PortKey) -> bool) {
        self.routes = routes;
        let [sender, receiver] = &mut self.has;
        for (has, port) in [&mut *sender, &mut *receiver].into_iter().zip(self.ends) {
            if !live(port) {
                *has = Has::Gone;
            }
        }
        // Who has not opened it has nothing to let go of.
        if *sender == Has::Not && (self.routes.is_empty() || *receiver == Has::Gone) {
            *sender = Has::Gone;
        }
        if *receiver == Has::Not && *sender == Has::Gone {
            *receiver = Has::Gone;
        }
    }

    /// The ends that have to be told something new.
    fn news(&mut self) -> Vec<PortKey> {
        let mut tell = Vec::new();
        for end in 0..2 {
            let seen = self.seen(end);
            if seen != self.shown[end] {
                tell.extend(seen.is_some().then_some(self.ends[end]));
                self.shown[end] = seen;
            }
        }
        tell
    }

    /// Do frames go this way now?
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.has == [Has::Open; 2] && !self.routes.is_empty()
    }

    /// Is it, or was it, a hop of this chain?
    #[must_use]
    pub fn carries(&self, switch: &SwitchName, chain: u8) -> bool {
        self.switch == *switch && self.routes.iter().any(|route| route.0 == chain)
    }
}

impl Hops {
    /// The function behind a port knows what hops are. `true`: that is new.
    pub fn note_aware(&mut self, port: PortKey) -> bool {
        self.aware.insert(port)
    }

    /// Whether it does.
    #[must_use]
    pub fn is_aware(&self, port: PortKey) -> bool {
        self.aware.contains(&port)
    }

    /// All hops.
    pub fn all(&self) -> impl Iterator<Item = (HopKey, &Hop)> {
        self.all.iter().map(|(key, hop)| (*key, hop))
    }

    /// The end of a hop that a port is.
    #[must_use]
    pub fn end_of(&self, hop: HopKey, port: PortKey) -> Option<usize> {
        self.all.get(&hop)?.ends.iter().position(|end| *end == port)
    }

    /// An end was opened.
    pub fn open(&mut self, hop: HopKey, end: usize) {
        self.set(hop, end, Has::Open);
    }

    /// An end has let go.
    pub fn close(&mut self, hop: HopKey, end: usize) {
        self.set(hop, end, Has::Gone);
    }

    fn set(&mut self, hop: HopKey, end: usize, has: Has) {
        if let Some(hop) = self.all.get_mut(&hop) {
            hop.has[end] = has;
        }
    }

    /// A number for a new one.
    pub fn next_key(&mut self) -> HopKey {
        self.next += 1;
        HopKey(self.next)
    }

    /// One that is wanted cannot be made, for a reason of this kind. `true`: that is new, which is
    /// said once, and not with each port that comes or goes.
    pub fn note_failure(&mut self, names: &[PortName; 2], why: ErrorCode) -> bool {
        self.failed.insert(names.clone(), why) != Some(why)
    }

    /// It was made.
    pub fn add(&mut self, key: HopKey, switch: &SwitchName, wanted: Wanted) {
        let Wanted { ends, names, routes } = wanted;
        self.failed.remove(&names);
        let (switch, has, shown) = (switch.clone(), [Has::Not; 2], [None, None]);
        self.all.insert(key, Hop { switch, ends, names, routes, has, shown });
    }

    /// Of the hops that chains ask for, those that there can be, each once.
    #[must_use]
    pub fn choose(&self, switch: &SwitchName, asked: impl Iterator<Item = Wanted>) -> Vec<Wanted> {
        let known = self.all.values().filter(|hop| hop.switch == *switch);
        let mut edges: Vec<[PortKey; 2]> = known.map(|hop| hop.ends).collect();
        let mut chosen: Vec<Wanted> = Vec::new();
        for asked in asked {
            if let Some(same) = chosen.iter_mut().find(|same| same.ends == asked.ends) {
                same.routes.extend(asked.routes);
                continue;
            }
            if !edges.contains(&asked.ends) {
                let [from, to] = asked.ends;
                let has = |end: usize| edges.iter().filter(|e| e[end] == asked.ends[end]).count();
                if reaches(&edges, to, from) || has(0) >= HOPS_MAX || has(1) >= HOPS_MAX {
                    continue;
                }
                edges.push(asked.ends);
            }
            chosen.push(asked);
        }
        chosen
    }

    /// What has to be done so that there are these hops in a switch, and no others; `live` tells of
    /// a port whether somebody has it.
    pub fn plan(
        &mut self,
        switch: &SwitchName,
        wanted: Vec<Wanted>,
        live: impl Fn(PortKey) -> bool,
    ) -> Changes {
        self.aware.retain(|port| live(*port));
        let is_wanted = |names: &[PortName; 2]| wanted.iter().any(|wanted| wanted.names == *names);
        self.failed.retain(|names, _| names[0].switch() != switch || is_wanted(names));
        let mut changes = Changes::default();
        self.all.retain(|key, hop| {
            if hop.switch != *switch {
                return true;
            }
            let now = wanted.iter().find(|wanted| wanted.ends == hop.ends);
            hop.settle(now.map(|wanted| wanted.routes.clone()).unwrap_or_default(), &live);
            let is_over = hop.has == [Has::Gone; 2];
            match is_over {
                true => changes.over.push((*key, hop.names.clone())),
                false => changes.tell.extend(hop.news()),
            }
            !is_over
        });
        let is_new = |wanted: &Wanted| !self.all.values().any(|hop| hop.ends == wanted.ends);
        changes.new = wanted.into_iter().filter(is_new).collect();
        changes
    }

    /// A hop that is gone has carried so many frames, and these were lost with it.
    pub fn note_past(&mut self, [from, to]: [PortName; 2], frames: u64, lost: u64) {
        self.past.entry(from).or_default().sent += frames;
        let past = self.past.entry(to).or_default();
        past.received += frames;
        past.lost += lost;
    }

    /// Forgets what was counted for ports that are gone.
    pub fn forget(&mut self, is_there: impl Fn(&PortName) -> bool) {
        self.past.retain(|name, _| is_there(name));
    }

    /// What hops have carried for a port, those that are gone; `of` tells of the others.
    pub fn carried(&self, port: &PortName, of: impl Fn(HopKey) -> u64) -> Carried {
        let mut sum = self.past.get(port).copied().unwrap_or_default();
        for (key, hop) in &self.all {
            if hop.names[0] == *port {
                sum.sent += of(*key);
            }
            if hop.names[1] == *port {
                sum.received += of(*key);
            }
        }
        sum
    }
}

/// Does a way lead from one port to another?
fn reaches(edges: &[[PortKey; 2]], from: PortKey, to: PortKey) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(port) = next.pop() {
        if port == to {
            return true;
        }
        if seen.insert(port) {
            next.extend(edges.iter().filter(|edge| edge[0] == port).map(|edge| edge[1]));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: &str = "vale0";

    fn wanted(from: u32, to: u32, (chain, position): (u8, u8)) -> Wanted {
        let name = |port: u32| format!("{SWITCH}:p{port}").parse().unwrap();
        let names = [name(from), name(to)];
        Wanted { ends: [PortKey(from), PortKey(to)], names, routes: vec![(chain, 0, position)] }
    }

    fn plan(hops: &mut Hops, asked: &[Wanted], dead: &[u32]) -> Changes {
        let switch = SWITCH.parse().unwrap();
        let chosen = hops.choose(&switch, asked.iter().cloned());
        let changes = hops.plan(&switch, chosen, |port| !dead.contains(&port.0));
        for new in changes.new.clone() {
            let key = hops.next_key();
            hops.add(key, &switch, new);
        }
        changes
    }

    fn told(changes: &Changes) -> Vec<u32> {
        changes.tell.iter().map(|port| port.0).collect()
    }

    fn state(hops: &Hops, end: usize) -> Option<(HopState, usize)> {
        let hop = hops.all.first_key_value()?.1;
        hop.seen(end).map(|seen| (seen.state, seen.routes.len()))
    }

    /// A hop that both ends have opened.
    fn opened() -> (Hops, HopKey, [Wanted; 1]) {
        let (mut hops, asked) = (Hops::default(), [wanted(1, 2, (0, 0))]);
        plan(&mut hops, &asked, &[]);
        let key = HopKey(1);
        assert_eq!(told(&plan(&mut hops, &asked, &[])), [1, 2], "both are to open it");
        hops.open(key, 0);
        assert_eq!(state(&hops, 0), Some((HopState::Open, 0)), "nobody reads there yet");
        hops.open(key, 1);
        assert_eq!(told(&plan(&mut hops, &asked, &[])), [1], "now it may send");
        assert_eq!(state(&hops, 0), Some((HopState::Open, 1)));
        (hops, key, asked)
    }

    #[test]
    fn test_one_that_is_not_wanted_ends_at_its_sender_first() {
        let (mut hops, key, asked) = opened();
        assert_eq!(told(&plan(&mut hops, &[], &[])), [1]);
        assert_eq!(state(&hops, 0), Some((HopState::Closing, 0)));
        assert_eq!(state(&hops, 1), Some((HopState::Open, 0)), "it has frames to read");
        hops.close(key, 0);
        assert_eq!(told(&plan(&mut hops, &asked, &[])), [2], "there is no second meanwhile");
        assert_eq!(state(&hops, 1), Some((HopState::Ended, 0)));
        hops.close(key, 1);
        let changes = plan(&mut hops, &asked, &[]);
        assert_eq!((changes.over.len(), changes.new.len()), (1, 1));
    }

    #[test]
    fn test_memory_stays_until_the_one_who_lives_has_let_go() {
        for (dead, lives) in [(1, 1), (2, 0)] {
            let (mut hops, key, _) = opened();
            let changes = plan(&mut hops, &[], &[dead]);
            assert_eq!((changes.over.len(), told(&changes)), (0, vec![3 - dead]));
            assert_eq!(state(&hops, lives), Some((HopState::Ended, 0)));
            hops.close(key, lives);
            assert_eq!(plan(&mut hops, &[], &[dead]).over.len(), 1);
        }
        let (mut hops, ..) = opened();
        assert_eq!(plan(&mut hops, &[], &[1, 2]).over.len(), 1, "both died");
    }

    #[test]
    fn test_one_that_nobody_has_opened_goes_at_once() {
        let mut hops = Hops::default();
        plan(&mut hops, &[wanted(1, 2, (0, 0))], &[]);
        assert_eq!(plan(&mut hops, &[], &[]).over.len(), 1);
    }

    #[test]
    fn test_hops_make_no_circle_and_a_function_has_few() {
        let hops = Hops::default();
        let switch = SWITCH.parse().unwrap();
        let asked = [
            wanted(1, 2, (0, 0)),
            wanted(2, 3, (0, 1)),
            wanted(3, 1, (1, 0)),
            wanted(1, 2, (2, 4)),
        ];
        let chosen = hops.choose(&switch, asked.into_iter());
        let ends: Vec<_> = chosen.iter().map(|wanted| wanted.ends.map(|port| port.0)).collect();
        assert_eq!(ends, [[1, 2], [2, 3]]);
        assert_eq!(chosen[0].routes, [(0, 0, 0), (2, 0, 4)]);
        let many = (2..20).map(|to| wanted(1, to, (0, 0)));
        assert_eq!(hops.choose(&switch, many).len(), HOPS_MAX);
    }

    #[test]
    fn test_a_circle_with_one_that_is_closing_waits_for_its_end() {
        let (mut hops, key, _) = opened();
        let back = [wanted(2, 1, (0, 0))];
        assert!(plan(&mut hops, &back, &[]).new.is_empty());
        hops.close(key, 0);
        hops.close(key, 1);
        assert_eq!(plan(&mut hops, &back, &[]).over.len(), 1);
        assert_eq!(plan(&mut hops, &back, &[]).new.len(), 1);
        assert_eq!(plan(&mut hops, &back, &[]).tell.len(), 2, "now there is one");
    }

    #[test]
    fn test_why_one_cannot_be_made_is_said_once_until_that_changes() {
        let (mut hops, asked) = (Hops::default(), [wanted(1, 2, (0, 0))]);
        let switch: SwitchName = SWITCH.parse().unwrap();
        let plan = |hops: &mut Hops, asked: &[Wanted]| {
            let chosen = hops.choose(&switch, asked.iter().cloned());
            hops.plan(&switch, chosen, |_| true).new.len()
        };
        let names = asked[0].names.clone();
        for (why, is_new) in [
            (ErrorCode::Quota, true),
            (ErrorCode::Quota, false),
            (ErrorCode::NoMemory, true),
            (ErrorCode::NoMemory, false),
        ] {
            assert_eq!(plan(&mut hops, &asked), 1, "it is tried again");
            assert_eq!(hops.note_failure(&names, why), is_new);
        }
        plan(&mut hops, &[]);
        assert_eq!(plan(&mut hops, &asked), 1);
        assert!(hops.note_failure(&names, ErrorCode::NoMemory), "it is wanted anew");
        let key = hops.next_key();
        hops.add(key, &switch, asked[0].clone());
        assert!(hops.note_failure(&names, ErrorCode::NoMemory), "there was one meanwhile");
    }

    #[test]
    fn test_what_was_carried_is_remembered_for_ports_that_stay() {
        let (mut hops, key, asked) = opened();
        let [from, to] = asked[0].names.clone();
        assert_eq!(hops.carried(&from, |_| 7).sent, 7);
        hops.close(key, 0);
        hops.close(key, 1);
        for (_, names) in plan(&mut hops, &[], &[]).over {
            hops.note_past(names, 7, 2);
        }
        let expected = Carried { received: 7, sent: 0, lost: 2 };
        assert_eq!(hops.carried(&to, |_| 0), expected);
        hops.forget(|name| *name == from);
        assert_eq!(hops.carried(&to, |_| 0), Carried::default());
    }
}
