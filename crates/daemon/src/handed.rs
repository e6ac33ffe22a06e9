//! Ports of clients that the daemon before this one hands over ([`model::handed`]).
//!
//! While that one runs, their memory is mapped here, which takes long. When it has stopped, only
//! numbers are read.
//!
//! An ordinary user cannot keep this daemon from taking over, or make the pause long: so many of
//! its ports are taken over, and so long is their memory waited for (`PORTS`, `PATIENCE`). The
//! clients of its other ports attach again.
//!
//! [`model::handed`]: crate::model::handed

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use packet::{MacAddr, VlanId};
use port::shm::PortMemory;
use port::sys::{ClosedElsewhere, Closer, try_to_watch};
use protocol::HandedPort;
use protocol::peer::Peer;

use crate::config::Config;
use crate::model::handed::{Inherited, Parting, StoppedPort};
use crate::model::policy::is_privileged;
use crate::model::settings;
use crate::model::specs::RingSpec;

/// Most ports of an ordinary user: each takes part of a millisecond of the pause.
const PORTS: u32 = 128;
/// Longest wait for the memory of a port: its client can hold it up.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait for the memory of all ports of an ordinary user.
const PATIENCE_OF_USER: Duration = Duration::from_secs(2);

/// Ports of which the daemon before this one has sent copies.
#[derive(Debug, Default)]
pub struct Handed {
    ports: BTreeMap<u32, Copied>,
    /// By user.
    taken: BTreeMap<u32, Taken>,
}

/// What has been taken over of a user.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    ports: u32,
    /// How long their memory was waited for.
    waited: Duration,
}

impl Taken {
    /// How long the memory of one more port may take.
    fn patience(self) -> io::Result<Duration> {
        let left = PATIENCE_OF_USER.saturating_sub(self.waited).min(PATIENCE);
        match self.ports < PORTS && !left.is_zero() {
            true => Ok(left),
            false => Err(io::Error::other("its user has many ports, or their memory takes long")),
        }
    }
}

/// A port, its connection, and what a worker needs of it but where to go on.
#[derive(Debug)]
struct Copied {
    port: HandedPort,
    rings: RingSpec,
    connection: OwnedFd,
    memory: PortMemory,
    kicks: ClosedElsewhere,
    wake: OwnedFd,
}

/// A port to go on with.
#[derive(Debug)]
pub struct Successor {
    /// The port and its client.
    pub port: HandedPort,
    /// The rings and buffers of the port.
    pub rings: RingSpec,
    /// What a worker needs.
    pub inherited: Inherited,
    /// The addresses that were learned behind it.
    pub stations: Vec<(MacAddr, VlanId)>,
}

impl Handed {
    /// Adds a port, and maps its memory. What its user can keep from being closed has a closer.
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
        let [region, kicks, wake, connection] = fds.try_into().map_err(|_| bad())?;
        let usual = RingSpec { stride: port.stride, ..Config::default().rings };
        let rings = settings::rings(&port.attach, &usual).map_err(|_| bad())?;
        let RingSpec { counts, extra_bufs, stride } = rings;
        let uid = Peer::of(&connection)?.uid;
        let kicks = ClosedElsewhere::new(kicks, &closer_for(uid));
        let taken = self.taken.entry(uid).or_default();
        let patience = if is_privileged(uid) { PATIENCE } else { taken.patience()? };
        let (name, begin) = (port.attach.port.to_string(), Instant::now());
        let map = move || {
            try_to_watch(kicks.fd())?;
            let memory = PortMemory::take_over(&name, counts, extra_bufs, stride, region)?;
            Ok((memory, kicks))
        };
        let mapped = within(patience, map);
        taken.waited += begin.elapsed();
        let (memory, kicks) = mapped?;
        taken.ports += 1;
        self.ports.insert(port.key, Copied { port, rings, connection, memory, kicks, wake });
        Ok(())
    }

    /// The ports that were there until the other daemon stopped, which has ended, each with the
    /// daemon's end of its client's connection. What the other one has said is in this file.
    ///
    /// # Errors
    /// The file cannot be read: all clients attach again.
    pub fn at_the_end(mut self, said: OwnedFd) -> io::Result<Vec<(OwnedFd, Successor)>> {
        let successor = |stopped: StoppedPort| {
            let Copied { port, rings, connection, memory, kicks, wake } =
                self.ports.remove(&stopped.key)?;
            memory.reservation.region().own();
            let inherited = Inherited { memory, kicks, wake, at: stopped.positions() };
            let station = |&(mac, vlan): &(MacAddr, u16)| Some((mac, VlanId::new(vlan)?));
            let stations = stopped.stations.iter().filter_map(station).collect();
            Some((connection, Successor { port, rings, inherited, stations }))
        };
        Ok(Parting::read(said)?.ports.into_iter().filter_map(successor).collect())
    }
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
    done.recv_timeout(patience).map_err(|_| io::Error::other("its memory takes long to map"))?
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
        assert!(stuck.unwrap_err().to_string().contains("takes long"));
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
