//! What routers in threads of one process tell each other: where neighbours are.
//!
//! A frame that is no IP packet has the hash of its two stations, so that an ARP answer comes to
//! one instance, whichever has asked. That one pins it up here, and the others read it before their
//! next batch. A look costs one load; the lock is taken when there is something new. Of a flood of
//! answers the last are kept: an instance that misses one asks again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::neighbours::Claim;

/// Answers that are kept.
const MOST: usize = 1024;

/// An instance's side.
pub struct Board {
    shared: Arc<Shared>,
    /// Number of entries that have been read.
    seen: u64,
}

#[derive(Default)]
struct Shared {
    /// How many there have been. Written under the lock, after `last`.
    posted: AtomicU64,
    last: Mutex<VecDeque<Claim>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Claim>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Board {
    /// A board with a place for each of this many instances.
    pub fn among(count: usize) -> impl Iterator<Item = Self> {
        let shared = Arc::new(Shared::default());
        (0..count).map(move |_| Self { shared: shared.clone(), seen: 0 })
    }

    /// A neighbour has said where it is.
    pub fn post(&self, claim: Claim) {
        let mut last = self.shared.lock();
        if last.len() == MOST {
            last.pop_front();
        }
        last.push_back(claim);
        self.shared.posted.fetch_add(1, Ordering::Relaxed);
    }

    /// What was posted since the last call, by any thread. Relaxed: the lock orders the rest, and
    /// what is not seen yet is seen with the next batch.
    pub fn news(&mut self) -> Vec<Claim> {
        if self.shared.posted.load(Ordering::Relaxed) == self.seen {
            return Vec::new();
        }
        let last = self.shared.lock();
        let posted = self.shared.posted.load(Ordering::Relaxed);
        let count = usize::try_from(posted - self.seen).unwrap_or(usize::MAX);
        self.seen = posted;
        last.range(last.len().saturating_sub(count)..).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use packet::MacAddr;

    use super::*;

    #[test]
    fn test_each_reads_what_is_new_once_and_of_a_flood_the_last() {
        let [mut a, mut b] = Board::among(2).collect::<Vec<_>>().try_into().ok().unwrap();
        let at = |number: u16| {
            let [high, low] = number.to_be_bytes();
            let station = MacAddr::new([high, low, 0, 0, 0, 0]);
            Claim { address: Ipv4Addr::new(10, 0, high, low), station, source: station }
        };
        assert!(a.news().is_empty());
        a.post(at(1));
        assert_eq!((b.news(), b.news(), a.news()), (vec![at(1)], vec![], vec![at(1)]));
        for number in 0..2000 {
            b.post(at(number));
        }
        let news = a.news();
        assert_eq!((news.len(), news.last()), (MOST, Some(&at(1999))));
        assert!(a.news().is_empty());
    }
}
