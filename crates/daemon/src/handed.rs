//! Ports of clients that the daemon before this one hands over ([`model::handed`]).
//!
//! While that one runs, their memory is mapped here, which takes long. When it has stopped, only
//! numbers are read.
//!
//! [`model::handed`]: crate::model::handed

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use packet::{MacAddr, VlanId};
use port::shm::PortMemory;
use port::sys::PortSet;
use protocol::HandedPort;

use crate::config::Config;
use crate::model::handed::{Inherited, Parting, StoppedPort};
use crate::model::settings;
use crate::model::specs::RingSpec;

/// Ports of which the daemon before this one has sent copies.
#[derive(Debug, Default)]
pub struct Handed(BTreeMap<u32, Copied>);

/// A port, its connection, and what a worker needs of it but where to go on.
#[derive(Debug)]
struct Copied {
    port: HandedPort,
    rings: RingSpec,
    connection: OwnedFd,
    memory: PortMemory,
    kicks: PortSet,
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
    /// Adds a port, and maps its memory; `prepare` has its kicks ring for the workers.
    ///
    /// # Errors
    /// No port can be made of this, or there is no memory.
    pub fn add(
        &mut self,
        port: HandedPort,
        fds: Vec<OwnedFd>,
        prepare: impl FnOnce(&PortSet) -> io::Result<()>,
    ) -> io::Result<()> {
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        let [region, kicks, wake, connection] = fds.try_into().map_err(|_| bad())?;
        let usual = RingSpec { stride: port.stride, ..Config::default().rings };
        let rings = settings::rings(&port.attach, &usual).map_err(|_| bad())?;
        let RingSpec { counts, extra_bufs, stride } = rings;
        let name = port.attach.port.to_string();
        let memory = PortMemory::take_over(&name, counts, extra_bufs, stride, region)?;
        let kicks = PortSet(kicks.into());
        prepare(&kicks)?;
        self.0.insert(port.key, Copied { port, rings, connection, memory, kicks, wake });
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
                self.0.remove(&stopped.key)?;
            memory.reservation.region().own();
            let inherited = Inherited { memory, kicks, wake, at: stopped.positions() };
            let station = |&(mac, vlan): &(MacAddr, u16)| Some((mac, VlanId::new(vlan)?));
            let stations = stopped.stations.iter().filter_map(station).collect();
            Some((connection, Successor { port, rings, inherited, stations }))
        };
        Ok(Parting::read(said)?.ports.into_iter().filter_map(successor).collect())
    }
}
