//! The kicks of ports that have clients.

use std::io;
use std::os::fd::OwnedFd;

use port::sys::{Kick, Ringer};

use super::Worker;

/// Kicks, by the numbers of their ports.
#[derive(Debug, Default)]
pub(super) struct Kicks(Vec<Option<Kicked>>);

/// What a port's clients ring by.
#[derive(Debug)]
struct Kicked {
    kick: Kick,
    /// Another port that they ring for too.
    also: Option<u32>,
}

impl Kicks {
    /// The other port that a port's clients ring for.
    pub(super) fn also(&self, number: u32) -> Option<u32> {
        self.0.get(number as usize)?.as_ref()?.also
    }
}

impl Worker {
    /// Lets a client ring for a port that is plugged in, or will be at once.
    pub fn connect(&mut self, number: u32, kick: Kick) -> io::Result<()> {
        kick.connect(number)?;
        self.keep_kick(number, kick);
        Ok(())
    }

    /// Keeps a kick that rings for a port's number already.
    pub fn keep_kick(&mut self, number: u32, kick: Kick) {
        let (at, kicks) = (number as usize, &mut self.kicks.0);
        if kicks.len() <= at {
            kicks.resize_with(at + 1, || None);
        }
        assert!(kicks[at].is_none(), "one kick for each number");
        kicks[at] = Some(Kicked { kick, also: None });
    }

    /// The kick of a port at another worker, if the port has a client.
    pub fn kick_at(&self, number: u32, ringer: &Ringer) -> io::Result<Option<Kick>> {
        self.kick(number).map(|kick| kick.at(ringer)).transpose()
    }

    /// A copy of what the client of a port kicks by.
    pub fn kick_copy(&self, number: u32) -> io::Result<Option<OwnedFd>> {
        self.kick(number).map(Kick::copy).transpose()
    }

    fn kick(&self, number: u32) -> Option<&Kick> {
        Some(&self.kicks.0.get(number as usize)?.as_ref()?.kick)
    }

    /// Has the clients of this port ring for `other` too.
    pub fn connect_also(&mut self, number: u32, other: u32) {
        if let Some(Some(kicked)) = self.kicks.0.get_mut(number as usize) {
            kicked.also = Some(other);
        }
    }

    /// Takes back what [`Worker::connect`] did.
    pub fn disconnect(&mut self, number: u32) {
        if let Some(kicked) = self.kicks.0.get_mut(number as usize).and_then(Option::take) {
            kicked.kick.disconnect();
        }
    }
}
