//! Where a router's neighbours are, as they have said.
//!
//! What a neighbour said is fresh for [`FRESH`]. Then the router asks again, and goes on with the
//! old answer; a neighbour that was not heard of for [`KEPT`] is unknown again. A hand goes round
//! the table, as in [`Table`], and takes out those.
//!
//! Any station may claim any address of a network, and as many as it likes. So each has a share of
//! the table, and in a full one a newcomer takes the place of a station that has more: neither one
//! station nor a few with many addresses keep others out or push them out. A station is the source
//! of the frame, which a switch can lock (`mac_lock`); what is inside of it may be anything.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::shares::Shares;
use crate::table::{Table, places};
use packet::mac::MacAddr;

/// How long a neighbour is not asked again. Linux has it so: a station that came back with another
/// address is found by then.
pub const FRESH: Duration = Duration::from_secs(30);
/// When a neighbour that says nothing is forgotten.
pub const KEPT: Duration = Duration::from_secs(60);
/// Between two claims of the same that both count: repetitions do not fill the board.
const REPETITION: Duration = Duration::from_millis(100);
/// Most neighbours that are known.
const MOST: u32 = 16_384;
/// In how many places of a full table a newcomer looks for one that it may have.
const LOOKS: usize = 32;

/// What a frame of a station says: where the neighbour of an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub address: Ipv4Addr,
    pub station: MacAddr,
    /// The source of the frame.
    pub source: MacAddr,
}

/// What a claim has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing: it was said just now, or there is no room for its source.
    Nothing,
    /// The neighbour was unknown, or is where it was.
    Known,
    /// The neighbour has moved to another station.
    Moved,
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    station: MacAddr,
    source: MacAddr,
    heard: Instant,
}

impl Neighbour {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.heard) >= KEPT
    }
}

/// The neighbours that are known.
pub struct Neighbours {
    table: Table<Ipv4Addr, Neighbour>,
    /// The entries of each source.
    shares: Shares,
}

impl Default for Neighbours {
    fn default() -> Self {
        Self { table: Table::new(MOST), shares: Shares::quarters(MOST) }
    }
}

impl Neighbours {
    /// The table without the entries that are no neighbours any more.
    pub fn of(self, is_neighbour: impl Fn(Ipv4Addr) -> bool) -> Self {
        let mut kept = Self::default();
        for (address, known) in self.table.into_values().filter(|(it, _)| is_neighbour(*it)) {
            kept.shares.add(known.source.as_u64());
            kept.table.insert(address, known);
        }
        kept
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.table.len() as u64
    }

    /// The station of a neighbour, and whether that is fresh.
    pub fn get(&mut self, address: Ipv4Addr, now: Instant) -> Option<(MacAddr, bool)> {
        let known = self.table.get(&address).filter(|known| !known.is_over(now))?;
        Some((known.station, now.duration_since(known.heard) < FRESH))
    }

    /// A station has said something.
    pub fn hear(&mut self, claim: Claim, now: Instant) -> Change {
        let Claim { address, station, source } = claim;
        let before = self.table.get(&address).copied();
        if let Some(Neighbour { heard, .. }) = before.filter(|it| it.station == station)
            && now.duration_since(heard) < REPETITION
        {
            return Change::Nothing;
        }
        if before.is_none_or(|before| before.source != source) {
            if self.shares.is_used_up(source.as_u64())
                || before.is_none() && !self.make_room(source, now)
            {
                return Change::Nothing;
            }
            before.into_iter().for_each(|before| self.shares.remove(before.source.as_u64()));
            self.shares.add(source.as_u64());
        }
        self.table.insert(address, Neighbour { station, source, heard: now });
        let has_moved = before.is_some_and(|before| before.station != station);
        if has_moved { Change::Moved } else { Change::Known }
    }

    /// Whether there is a place for one more of a source. In a full table that is one of an entry
    /// that is over, or of a source that has more than this one will have.
    fn make_room(&mut self, source: MacAddr, now: Instant) -> bool {
        let Self { table, shares } = self;
        if !table.is_full() {
            return true;
        }
        let count = shares.count(source.as_u64()) + 1;
        let may_go =
            |known: &Neighbour| known.is_over(now) || shares.count(known.source.as_u64()) > count;
        let gone = (0..LOOKS).find_map(|_| table.turn(may_go));
        gone.iter().for_each(|(_, gone)| shares.remove(gone.source.as_u64()));
        gone.is_some()
    }

    /// Forgets those that are over, in as many places as the table looks at with a batch.
    pub fn sweep(&mut self, frames: u32, now: Instant) {
        for _ in 0..places(frames) {
            let gone = self.table.turn(|known| known.is_over(now));
            gone.into_iter().for_each(|(_, gone)| self.shares.remove(gone.source.as_u64()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(address: u32, source: u64) -> Claim {
        let source = MacAddr::from_u64(source << 8 | 2);
        Claim { address: Ipv4Addr::from_bits(address), station: source, source }
    }

    /// How many neighbours each of these sources has.
    fn shares(neighbours: &Neighbours, sources: [u64; 2]) -> [u32; 2] {
        sources.map(|source| neighbours.shares.count(claim(0, source).source.as_u64()))
    }

    #[test]
    fn test_a_source_has_a_quarter_and_gets_it_back_when_it_is_over() {
        let (mut neighbours, now) = (Neighbours::default(), Instant::now());
        let heard = (0..MOST).filter(|n| neighbours.hear(claim(*n, 7), now) == Change::Known);
        assert_eq!(heard.count(), 4096);
        assert_eq!(neighbours.hear(claim(MOST, 8), now), Change::Known, "another");
        let late = now + KEPT;
        assert_eq!(neighbours.get(Ipv4Addr::from_bits(0), late), None);
        (0..2).for_each(|_| neighbours.sweep(0, late));
        assert_eq!((neighbours.count(), shares(&neighbours, [7, 8])), (0, [0, 0]));
        assert_eq!(neighbours.hear(claim(0, 7), late), Change::Known);
    }

    #[test]
    fn test_in_a_full_table_a_newcomer_has_a_place_of_one_that_has_more() {
        let (mut neighbours, now) = (Neighbours::default(), Instant::now());
        // Each of 128 sources has 128 addresses.
        for n in 0..MOST {
            assert_eq!(neighbours.hear(claim(n, 100 + u64::from(n) / 128), now), Change::Known);
        }
        assert!(neighbours.table.is_full());
        for n in MOST..MOST + 3 {
            assert_eq!(neighbours.hear(claim(n, 7), now), Change::Known);
        }
        assert_eq!((neighbours.count(), shares(&neighbours, [7, 8])), (MOST.into(), [3, 0]));
        // A source that has as many as each other one pushes none out.
        assert_eq!(neighbours.hear(claim(MOST + 9, 227), now), Change::Nothing);
        assert_eq!(neighbours.get(Ipv4Addr::from_bits(MOST), now).map(|known| known.1), Some(true));
    }

    #[test]
    fn test_a_neighbour_that_moves_counts_for_its_new_source() {
        let (mut neighbours, now) = (Neighbours::default(), Instant::now());
        assert_eq!(neighbours.hear(claim(1, 7), now), Change::Known);
        assert_eq!(neighbours.hear(claim(1, 7), now), Change::Nothing, "just now");
        assert_eq!(neighbours.hear(claim(1, 8), now), Change::Moved);
        assert_eq!(shares(&neighbours, [7, 8]), [0, 1]);
        assert_eq!(neighbours.hear(claim(1, 8), now + REPETITION), Change::Known);
        let neighbours = neighbours.of(|address| address != Ipv4Addr::from_bits(1));
        assert_eq!((neighbours.count(), shares(&neighbours, [7, 8])), (0, [0, 0]));
    }
}
