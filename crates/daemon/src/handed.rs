//! Ports of clients that the daemon before this one hands over ([`model::handed`]).
//!
//! While that one runs, their memory is mapped here, which takes long, and their kicks are put into
//! the sets of all workers. When it has stopped, only numbers are read.
//!
//! An ordinary user cannot keep this daemon from taking over, or make the pause long: so many of
//! its ports are taken over, and so long are they waited for (`PORTS`, `PATIENCE`). What is not
//! taken over its closer closes. The clients of these ports attach again.
//!
//! [`model::handed`]: crate::model::handed

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use packet::{MacAddr, VlanId};
use port::shm::PortMemory;
use port::sys::{ClosedElsewhere, Closer, Kick, Ringer, SlowCalls, prepare_kicks};
use protocol::HandedPort;
use protocol::peer::Peer;

use crate::config::Config;
use crate::model::handed::{Inherited, Parting, StoppedPort};
use crate::model::policy::is_privileged;
use crate::model::settings;
use crate::model::specs::RingSpec;

/// Most ports of an ordinary user: each takes part of a millisecond of the pause.
const PORTS: u32 = 128;
/// Longest wait for the memory of a port and its kicks: its client can hold it up.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait for all ports of an ordinary user.
const PATIENCE_OF_USER: Duration = Duration::from_secs(2);
/// A number that the kernel gives to no user: whose files these are is not known.
const NO_USER: u32 = u32::MAX;

/// Ports of which the daemon before this one has sent copies.
#[derive(Debug)]
pub struct Handed {
    /// What rings the workers that will have the ports.
    ringers: Vec<Ringer>,
    ports: BTreeMap<u32, Copied>,
    /// By user.
    taken: BTreeMap<u32, Taken>,
}

/// What has been taken over of a user.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    ports: u32,
    /// How long they were waited for.
    waited: Duration,
}

impl Taken {
    /// How long one more port may take.
    fn patience(self) -> io::Result<Duration> {
        let left = PATIENCE_OF_USER.saturating_sub(self.waited).min(PATIENCE);
        match self.ports < PORTS && !left.is_zero() {
            true => Ok(left),
            false => Err(io::Error::other("its user has many ports, or they take long")),
        }
    }
}

/// A port, its connection, and what a worker needs of it but where to go on.
#[derive(Debug)]
struct Copied {
    port: HandedPort,
    rings: RingSpec,
    connection: ClosedElsewhere,
    held: ClosedElsewhere<Held>,
}

/// What a worker needs of a port.
#[derive(Debug)]
struct Held {
    memory: PortMemory,
    kicks: Vec<Kick>,
    wake: OwnedFd,
}

/// A port to go on with.
#[derive(Debug)]
pub struct Successor {
    /// The port and its client.
    pub port: HandedPort,
    /// The rings and buffers of the port.
    pub rings: RingSpec,
    /// What a worker needs. The user's closer closes it, if none gets it.
    pub inherited: ClosedElsewhere<Inherited>,
    /// The addresses that were learned behind it.
    pub stations: Vec<(MacAddr, VlanId)>,
}

/// What the daemon that has ended leaves.
#[derive(Debug)]
pub struct Left {
    /// The ports of its clients.
    pub clients: Clients,
    /// The time in which systemd wanted to hear that it goes on; zero: systemd did not.
    pub watchdog: Duration,
}

impl Default for Left {
    /// Nothing is known: to report often does no harm, and not to report may be the daemon's end.
    fn default() -> Self {
        Self { clients: Vec::new(), watchdog: Duration::from_secs(1) }
    }
}

/// Ports to go on with, each with the daemon's end of its client's connection.
pub type Clients = Vec<(ClosedElsewhere, Successor)>;

impl Handed {
    /// No ports yet, for the workers that these ring.
    #[must_use]
    pub fn new(ringers: Vec<Ringer>) -> Self {
        Self { ringers, ports: BTreeMap::new(), taken: BTreeMap::new() }
    }

    /// Adds a port, and has its memory mapped and its kicks prepared. Whatever fails, its user's
    /// closer closes the descriptors, or the thread that makes a port of them.
    ///
    /// # Errors
    /// No port can be made of this, or there is no memory.
    pub fn add(
        &mut self,
        port: HandedPort,
        fds: Vec<OwnedFd>,
        closer_for: impl FnOnce(u32) -> Closer,
    ) -> io::Result<()> {
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        // The connection is the last.
        let peer = fds.last().ok_or_else(bad).and_then(|fd| Ok(Peer::of(fd)?));
        let closer = closer_for(peer.as_ref().map_or(NO_USER, |peer| peer.uid));
        let (fds, uid) = (ClosedElsewhere::new(fds, &closer), peer?.uid);
        let usual = RingSpec { stride: port.stride, ..Config::default().rings };
        let rings = settings::rings(&port.attach, &usual).map_err(|_| bad())?;
        let taken = self.taken.entry(uid).or_default();
        let patience = if is_privileged(uid) { PATIENCE } else { taken.patience()? };
        let (name, begin) = (port.attach.port.to_string(), Instant::now());
        let (ringers, own) = (self.ringers.clone(), closer.clone());
        let made = within(patience, move || hold(&name, &rings, fds.into_inner(), &ringers, &own));
        taken.waited += begin.elapsed();
        let (held, connection) = made?;
        taken.ports += 1;
        let held = ClosedElsewhere::new(held, &closer);
        let connection = ClosedElsewhere::new(connection, &closer);
        self.ports.insert(port.key, Copied { port, rings, connection, held });
        Ok(())
    }

    /// What was there until the other daemon stopped, which has ended. What it has said is in this
    /// file.
    ///
    /// # Errors
    /// The file cannot be read: all clients attach again.
    pub fn at_the_end(mut self, said: OwnedFd) -> io::Result<Left> {
        let successor = |stopped: StoppedPort| {
            let Copied { port, rings, connection, held } = self.ports.remove(&stopped.key)?;
            held.get().memory.reservation.region().own();
            let at = stopped.positions();
            let inherit = |Held { memory, kicks, wake }| Inherited { memory, kicks, wake, at };
            let inherited = held.map(inherit);
            let station = |&(mac, vlan): &(MacAddr, u16)| Some((mac, VlanId::new(vlan)?));
            let stations = stopped.stations.iter().filter_map(station).collect();
            Some((connection, Successor { port, rings, inherited, stations }))
        };
        let Parting { watchdog_us, ports } = Parting::read(said)?;
        let clients = ports.into_iter().filter_map(successor).collect();
        Ok(Left { clients, watchdog: Duration::from_micros(watchdog_us) })
    }
}

/// Makes of descriptors what a worker needs, and the connection. Their client may hold all of this
/// up: the memory, the kicks, and the closing of what is of no use.
fn hold(
    name: &str,
    rings: &RingSpec,
    fds: Vec<OwnedFd>,
    ringers: &[Ringer],
    closer: &Closer,
) -> io::Result<(Held, OwnedFd)> {
    let fds = <[OwnedFd; 4]>::try_from(fds);
    let [region, event, wake, connection] =
        fds.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let RingSpec { counts, extra_bufs, stride } = *rings;
    let memory = PortMemory::take_over(name, counts, extra_bufs, stride, region)?;
    let (first, others) = ringers.split_first().expect("a worker at least");
    let first = first.kick(event, closer, Arc::new(SlowCalls::unreported()));
    let mut kicks: Vec<_> = others.iter().map(|ringer| first.also_at(ringer)).collect();
    kicks.insert(0, first);
    prepare_kicks(&mut kicks)?;
    Ok((Held { memory, kicks, wake }, connection))
}

/// Does what a client may hold up in a thread of its own, and waits for it no longer than this.
fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, done) = channel();
    let body = move || {
        // Nothing waits for it any more.
        let _ = sender.send(work());
    };
    std::thread::Builder::new().name("mapper".to_owned()).spawn(body)?;
    done.recv_timeout(patience)
        .map_err(|_| io::Error::other("its memory or its kicks take long"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_what_a_client_holds_up_is_not_waited_for() {
        let (end, ended) = channel::<()>();
        let stuck = within(Duration::from_millis(1), move || {
            let _ = ended.recv();
            Ok(())
        });
        assert!(stuck.unwrap_err().to_string().contains("take long"));
        assert_eq!(within(PATIENCE, || Ok(7)).unwrap(), 7);
        drop(end);
    }

    #[test]
    fn test_a_user_with_many_ports_or_slow_memory_keeps_some_of_them() {
        let left = |ports, waited| Taken { ports, waited }.patience().ok();
        assert_eq!(left(PORTS - 1, Duration::ZERO), Some(PATIENCE));
        assert_eq!(left(PORTS, Duration::ZERO), None);
        assert_eq!(left(0, PATIENCE_OF_USER - PATIENCE / 2), Some(PATIENCE / 2));
        assert_eq!(left(0, PATIENCE_OF_USER), None);
    }
}
