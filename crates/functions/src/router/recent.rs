//! What was found for destinations just now.
//!
//! Most packets go where others have gone: a look-up here costs one cache line, instead of a walk
//! through the routes and a look at the neighbours. A new destination replaces the one that has its
//! place. Each entry is looked up anew at least once a second, so nothing is removed when a
//! neighbour grows old; when a neighbour or a route changes, all entries are void.

use std::hash::BuildHasher;
use std::net::Ipv4Addr;

use crate::table::Seed;
use packet::mac::MacAddr;

const PLACES: usize = 1024;

/// Recent destinations and their stations.
pub struct Recent {
    /// A seed, so that no host can choose destinations that share a place.
    seed: Seed,
    /// The current round; places that were never written have 0.
    round: u32,
    places: Box<[Found; PLACES]>,
}

#[derive(Clone, Copy)]
struct Found {
    round: u32,
    dst: Ipv4Addr,
    next: Ipv4Addr,
    station: MacAddr,
}

impl Recent {
    /// Nothing was found yet.
    pub fn new() -> Self {
        let none = Ipv4Addr::UNSPECIFIED;
        let empty = Found { round: 0, dst: none, next: none, station: MacAddr::ZERO };
        Self { seed: Seed::default(), round: 1, places: Box::new([empty; PLACES]) }
    }

    /// The next router on the way to a destination, or itself, and its station.
    #[inline]
    pub fn get(&self, dst: Ipv4Addr) -> Option<(Ipv4Addr, MacAddr)> {
        let found = self.places[self.place(dst)];
        (found.dst == dst && found.round == self.round).then_some((found.next, found.station))
    }

    /// Keeps what was found for a destination.
    pub fn put(&mut self, dst: Ipv4Addr, (next, station): (Ipv4Addr, MacAddr)) {
        self.places[self.place(dst)] = Found { round: self.round, dst, next, station };
    }

    /// Nothing holds any more.
    pub fn forget(&mut self) {
        match self.round.checked_add(1) {
            Some(round) => self.round = round,
            None => *self = Self::new(),
        }
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // reason: takes the lower bits.
    fn place(&self, dst: Ipv4Addr) -> usize {
        self.seed.hash_one(u32::from(dst)) as usize % PLACES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_what_was_found_holds_until_it_is_forgotten() {
        let mut recent = Recent::new();
        let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!((recent.get(a), recent.get(Ipv4Addr::UNSPECIFIED)), (None, None));
        recent.put(a, (b, MacAddr::new([7; 6])));
        assert_eq!((recent.get(a), recent.get(b)), (Some((b, MacAddr::new([7; 6]))), None));
        recent.forget();
        assert_eq!(recent.get(a), None);
        recent.put(a, (a, MacAddr::new([8; 6])));
        recent.round = u32::MAX;
        recent.put(b, (a, MacAddr::new([9; 6])));
        recent.forget();
        assert_eq!((recent.get(a), recent.get(b)), (None, None), "numbers of rounds begin again");
    }

    #[test]
    fn test_more_destinations_than_places_are_right_or_unknown() {
        let mut recent = Recent::new();
        let all = (0..4 * 1024).map(Ipv4Addr::from_bits);
        all.clone().for_each(|dst| recent.put(dst, (dst, MacAddr::new([1; 6]))));
        let known = all.filter_map(|dst| recent.get(dst).map(|(next, _)| assert_eq!(next, dst)));
        assert!((600..=PLACES).contains(&known.count()));
    }
}
