//! What workers tell each other: that the client of a full port has made room.
//!
//! ```text
//!   client ── kick ──► worker of the port ── flag, doorbell ──► worker with a port that waits
//! ```
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | `Peer::has_room` | workers that tell | its worker, which clears it | Release, Acquire |
//!
//! The Release comes before the doorbell rings, and the Acquire after that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use port::sys::Ringer;

/// A worker, as the others see it.
#[derive(Debug)]
struct Peer {
    ringer: Ringer,
    /// Another worker has seen room that this one may wait for.
    has_room: AtomicBool,
}

/// All workers of the daemon, by their numbers.
#[derive(Clone, Debug, Default)]
pub struct Peers(Arc<[Peer]>);

impl Peers {
    /// The workers with these doorbells.
    #[must_use]
    pub fn new(ringers: impl Iterator<Item = Ringer>) -> Self {
        Self(ringers.map(|ringer| Peer { ringer, has_room: AtomicBool::new(false) }).collect())
    }

    /// Tells workers, a bit each, that there is room.
    pub fn tell_of_room(&self, mut workers: u64) {
        while workers != 0 {
            if let Some(peer) = self.0.get(workers.trailing_zeros() as usize) {
                peer.has_room.store(true, Ordering::Release);
                peer.ringer.ring();
            }
            workers &= workers - 1;
        }
    }

    /// Whether this worker was told of room since the last call.
    pub fn take_room(&self, worker: u32) -> bool {
        // A look first: the line stays in the caches of all that only look.
        let has_room = self.0.get(worker as usize).map(|peer| &peer.has_room);
        has_room.is_some_and(|it| it.load(Ordering::Relaxed) && it.swap(false, Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use port::sys::Doorbell;

    #[test]
    fn only_the_workers_that_wait_are_told() {
        let bells: Vec<_> = (0..3).map(|_| Doorbell::new().expect("descriptors")).collect();
        let peers = Peers::new(bells.iter().map(Doorbell::ringer));
        peers.tell_of_room(0b1101);
        assert_eq!([0, 1, 2, 3].map(|worker| peers.take_room(worker)), [true, false, true, false]);
        assert!(!peers.take_room(0), "once");
    }
}
