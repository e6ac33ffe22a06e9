//! Loops: addresses that move back and forth between two ports.
//!
//! A frame that circles through two switches, or through two ports of one, comes back by one port
//! after the other, and so does the address of its sender. A station that moves does so once. The
//! detector counts the moves between two ports in each direction, in intervals of a second. Two
//! stations with one address look the same, and are as wrong.
//!
//! A loop with 16 rounds in a second or more is found in its 32nd round at the latest: the first of
//! them may be in the interval before. So one with 32 rounds in a second is found within it.
//!
//! The detector tells of one new loop in a second, and of others in the seconds after it: clients
//! that make loops between many pairs of ports in turn cause one notice in a second.

use packet::{MacAddr, PortId, VlanId};

use crate::model::now::Now;

/// Moves in each direction within [`INTERVAL_MS`] that make a loop.
const MOVES: u32 = 16;
const INTERVAL_MS: u64 = 1000;
/// A loop that is not seen for so long is a new one when it is seen again.
const QUIET_MS: u64 = 10_000;
/// Pairs of ports that are watched at a time.
const PAIRS: usize = 8;

/// A loop between two ports of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The two ports: the one that an address was moved away from, then the one that it came to.
    pub ports: [PortId; 2],
    /// An address that moves between them.
    pub mac: MacAddr,
    /// The VLAN of the address.
    pub vlan: VlanId,
    /// When the switch has seen the loop last.
    pub seen: Now,
}

/// Moves between two ports in this interval.
#[derive(Clone, Copy, Debug)]
struct Pair {
    ports: [PortId; 2],
    forth: u32,
    back: u32,
    /// The moves make a loop.
    is_loop: bool,
    /// When there was a loop before this interval.
    before: Option<Now>,
    /// The loop was told of.
    is_told: bool,
}

impl Pair {
    const fn new(ports: [PortId; 2]) -> Self {
        Self { ports, forth: 0, back: 0, is_loop: false, before: None, is_told: false }
    }

    fn is_of(&self, [a, b]: [PortId; 2]) -> bool {
        self.ports == [a, b] || self.ports == [b, a]
    }

    fn moves(&self) -> u32 {
        self.forth.saturating_add(self.back)
    }

    /// The pair in an interval that starts now, after the one that started at `start`. The order of
    /// its ports stays while addresses move, or a loop was there a short time ago.
    fn renewed(self, start: Now, now: Now) -> Option<Self> {
        let before = if self.is_loop { Some(start) } else { self.before };
        let is_fresh = before.is_some_and(|before| now.ms_since(before) < QUIET_MS);
        let is_kept = self.moves() > 0 || is_fresh;
        let (before, is_told) = (before.filter(|_| is_fresh), self.is_told && is_fresh);
        is_kept.then(|| Self { before, is_told, ..Self::new(self.ports) })
    }
}

/// Counts moves of addresses between ports.
#[derive(Debug, Default)]
pub(super) struct LoopDetector {
    /// The start of the interval.
    start: Now,
    pairs: [Option<Pair>; PAIRS],
    /// The loop that was seen last, of several the one with the fastest moves.
    last: Option<Loop>,
    /// A loop of this interval that was not taken yet, and whether it is to be told of.
    found: Option<(Loop, bool)>,
    /// When a loop was last told of.
    told: Option<Now>,
    /// Intervals in which there was a loop, for each pair of ports.
    intervals: u64,
}

impl LoopDetector {
    /// Counts a move of an address from the first port to the second.
    pub(super) fn count(&mut self, mac: MacAddr, vlan: VlanId, ports: [PortId; 2], now: Now) {
        if now.ms_since(self.start) >= INTERVAL_MS {
            let start = std::mem::replace(&mut self.start, now);
            self.pairs = self.pairs.map(|pair| pair.and_then(|pair| pair.renewed(start, now)));
        }
        let is_time = self.told.is_none_or(|told| now.ms_since(told) >= INTERVAL_MS);
        let pair = self.pair(ports);
        let direction = if pair.ports == ports { &mut pair.forth } else { &mut pair.back };
        *direction = direction.saturating_add(1);
        if pair.forth.min(pair.back) < MOVES || std::mem::replace(&mut pair.is_loop, true) {
            return;
        }
        let found = Loop { ports: pair.ports, mac, vlan, seen: now };
        let is_new = is_time && !pair.is_told;
        if is_new {
            pair.is_told = true;
            self.told = Some(now);
        }
        self.intervals += 1;
        self.found = self.found.filter(|(_, is_new)| *is_new).or(Some((found, is_new)));
        if self.last.is_none_or(|last| last.seen < self.start) {
            self.last = Some(found);
        }
    }

    /// A loop that was found since the last call, and whether it is to be told of: it has begun,
    /// and no other was told of in this interval.
    pub(super) fn take_found(&mut self) -> Option<(Loop, bool)> {
        self.found.take()
    }

    /// The loop that was seen last.
    pub(super) fn last(&self) -> Option<Loop> {
        self.last
    }

    /// Seconds in which there was a loop.
    pub(super) fn intervals(&self) -> u64 {
        self.intervals
    }

    /// The counters of two ports: those that exist, free ones, or those with the fewest moves.
    fn pair(&mut self, ports: [PortId; 2]) -> &mut Pair {
        let same = self.pairs.iter().position(|pair| pair.is_some_and(|pair| pair.is_of(ports)));
        let fewest = || {
            let moves = |at: &usize| self.pairs[*at].map_or(0, |pair| pair.moves() + 1);
            (0..PAIRS).min_by_key(moves).unwrap_or(0)
        };
        let at = same.unwrap_or_else(fewest);
        if same.is_none() {
            self.pairs[at] = None;
        }
        self.pairs[at].get_or_insert(Pair::new(ports))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(index: usize) -> PortId {
        PortId::new(index).unwrap()
    }

    /// An address moves `times` times from `a` to `b`, and as often back.
    fn bounce(detector: &mut LoopDetector, [a, b]: [usize; 2], times: u32, ms: u64) {
        let (mac, vlan) = (MacAddr::new([2, 0, 0, 0, 0, 1]), VlanId::DEFAULT);
        for _ in 0..times {
            detector.count(mac, vlan, [port(a), port(b)], Now::from_ms(ms));
            detector.count(mac, vlan, [port(b), port(a)], Now::from_ms(ms));
        }
    }

    #[test]
    fn test_address_that_moves_to_and_fro_is_a_loop_that_begins_once() {
        let mut detector = LoopDetector::default();
        bounce(&mut detector, [2, 5], MOVES, 5000);
        let (found, is_new) = detector.take_found().expect("a loop");
        assert_eq!((found.ports, found.seen.as_ms(), is_new), ([port(2), port(5)], 5000, true));
        bounce(&mut detector, [5, 2], 1000, 5500);
        assert_eq!((detector.take_found(), detector.intervals()), (None, 1));
        for second in 6..50 {
            bounce(&mut detector, [5, 2], MOVES, second * 1000);
            let again = detector.take_found().map(|(it, is_new)| (it.ports, is_new));
            assert_eq!(again, Some((found.ports, false)), "it goes on");
        }
        assert_eq!(detector.last().map(|it| it.seen.as_ms()), Some(49_000));
        bounce(&mut detector, [2, 5], MOVES, 50_000 + QUIET_MS);
        assert_eq!(detector.take_found().map(|it| it.1), Some(true), "it has come back");
    }

    #[test]
    fn test_loop_of_32_rounds_in_a_second_is_found_within_that_second() {
        let round = INTERVAL_MS / u64::from(2 * MOVES);
        let (mac, vlan) = (MacAddr::new([2, 0, 0, 0, 0, 1]), VlanId::DEFAULT);
        for begin in 5000..5000 + INTERVAL_MS {
            let mut detector = LoopDetector::default();
            // The interval begins with another move, somewhere before the loop.
            bounce(&mut detector, [8, 9], 1, 5000);
            for ms in (begin..begin + INTERVAL_MS).step_by(usize::try_from(round).unwrap()) {
                detector.count(mac, vlan, [port(1), port(2)], Now::from_ms(ms));
                detector.count(mac, vlan, [port(2), port(1)], Now::from_ms(ms + round / 2));
            }
            assert!(detector.take_found().is_some_and(|(_, is_new)| is_new), "{begin}");
        }
    }

    /// The pairs that loop in each millisecond; those that are told of, and when.
    fn told(loops: impl Iterator<Item = (u64, [usize; 2])>) -> Vec<([usize; 2], u64)> {
        let mut detector = LoopDetector::default();
        let mut told = Vec::new();
        for (ms, ports) in loops {
            bounce(&mut detector, ports, MOVES, ms);
            let new = detector.take_found().filter(|(_, is_new)| *is_new);
            told.extend(new.map(|(found, _)| (found.ports.map(PortId::index), ms)));
        }
        told
    }

    #[test]
    fn test_more_pairs_than_are_watched_loop_in_turn_and_one_is_told_of_in_a_second() {
        let pairs = (0..=PAIRS).map(|at| [2 * at, 2 * at + 1]).cycle();
        let told = told((5000..5000 + INTERVAL_MS).zip(pairs));
        assert_eq!(told, [([0, 1], 5000)]);
    }

    #[test]
    fn test_second_of_two_loops_is_told_of_in_the_next_second() {
        let pairs = [[1, 2], [3, 4]];
        let told = told((5..20).flat_map(|second| pairs.map(|ports| (second * 1000, ports))));
        assert_eq!(told, [([1, 2], 5000), ([3, 4], 6000)]);
    }

    #[test]
    fn test_stations_that_move_in_one_direction_are_no_loop() {
        let mut detector = LoopDetector::default();
        for host in 0..100 {
            let mac = MacAddr::new([2, 0, 0, 0, 0, host]);
            detector.count(mac, VlanId::DEFAULT, [port(0), port(1)], Now::START);
        }
        bounce(&mut detector, [0, 1], MOVES - 1, 0);
        assert_eq!(detector.take_found(), None);
        for second in 1..100 {
            bounce(&mut detector, [0, 1], MOVES - 1, second * INTERVAL_MS);
        }
        assert_eq!(detector.take_found(), None, "a few moves in a second");
    }

    #[test]
    fn test_loop_is_found_among_many_other_moves() {
        let mut detector = LoopDetector::default();
        for round in 0..MOVES {
            let other = 10 + 2 * round as usize;
            bounce(&mut detector, [1, 2], 2, 0);
            bounce(&mut detector, [other, other + 1], 1, 0);
        }
        assert_eq!(detector.take_found().map(|it| it.0.ports), Some([port(1), port(2)]));
    }
}
