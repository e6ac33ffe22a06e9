//! Ports of clients that the next daemon goes on with.

use std::io;
use std::time::Duration;

use packet::{MacAddr, VlanId};
use port::sys::ClosedElsewhere;
use ring::krings::Positions;
use switch::PortConfig;

use crate::model::error::DatapathError;
use crate::model::handed::{Copies, Inherited};
use crate::model::keys::PortKey;
use crate::model::replies::Lease;
use crate::model::specs::ShmSpec;

/// Ports of clients that the next daemon goes on with.
pub trait HandOver {
    /// Copies of what a port has. `None`: it cannot be handed over.
    fn copies_of(&self, _port: PortKey) -> io::Result<Option<Copies>> {
        Ok(None)
    }

    /// The time in which systemd wants to hear that all threads go on (`WatchdogSec=`).
    fn watchdog_limit(&self) -> Option<Duration> {
        None
    }

    /// Stops all workers: they take no frame any more.
    fn halt(&mut self) {}

    /// Lets workers that wait take frames.
    fn go_on(&mut self) {}

    /// Gives up what only one process can have, and the sockets of machines, when the workers have
    /// stopped. This waits for no client and no VMM.
    fn leave(&mut self) {}

    /// Where the workers of these ports are in their rings. Ports that cannot be handed over are
    /// left out.
    fn positions(&self, _ports: &[PortKey]) -> Vec<(PortKey, Positions)> {
        Vec::new()
    }

    /// Adds a port that the daemon before this one has served up to here.
    fn take_over(
        &mut self,
        spec: &ShmSpec,
        config: PortConfig,
        inherited: ClosedElsewhere<Inherited>,
    ) -> Result<Lease, DatapathError>;

    /// Learns addresses as if their stations had just sent a frame by this port.
    fn learn(&mut self, _port: PortKey, _stations: Vec<(MacAddr, VlanId)>) {}
}

#[cfg(test)]
mod fake {
    use std::io;
    use std::time::Duration;

    use packet::{MacAddr, VlanId};
    use port::sys::ClosedElsewhere;
    use ring::krings::Positions;
    use switch::PortConfig;

    use super::HandOver;
    use crate::config::Config;
    use crate::control::fake::{Fake, attachment};
    use crate::model::error::DatapathError;
    use crate::model::handed::{Copies, Inherited};
    use crate::model::keys::PortKey;
    use crate::model::replies::Lease;
    use crate::model::specs::ShmSpec;

    impl HandOver for Fake {
        fn copies_of(&self, port: PortKey) -> io::Result<Option<Copies>> {
            assert!(self.ports.contains_key(&port) && !self.is_halted);
            let rings = Config::default().rings;
            let given = attachment(&"vale0:x".parse().expect("a name"), &rings);
            Ok(Some(Copies { rings, fds: [given.region, given.kick, given.wake] }))
        }

        fn watchdog_limit(&self) -> Option<Duration> {
            Some(Duration::from_secs(30))
        }

        fn halt(&mut self) {
            self.is_halted = true;
        }

        fn leave(&mut self) {
            assert!(self.is_halted, "it takes no frame any more");
        }

        fn positions(&self, ports: &[PortKey]) -> Vec<(PortKey, Positions)> {
            assert!(self.is_halted && ports.iter().all(|port| self.ports.contains_key(port)));
            let of = |&port: &PortKey| {
                (port, Positions { bell: port.0, tx: Vec::new(), rx: Vec::new() })
            };
            ports.iter().map(of).collect()
        }

        fn take_over(
            &mut self,
            spec: &ShmSpec,
            config: PortConfig,
            _: ClosedElsewhere<Inherited>,
        ) -> Result<Lease, DatapathError> {
            self.allocate()?;
            assert!(self.ports.insert(spec.key, (spec.switch, config)).is_none());
            Ok(attachment(&spec.name, &spec.rings).lease)
        }

        fn learn(&mut self, port: PortKey, stations: Vec<(MacAddr, VlanId)>) {
            let (switch, _) = self.ports[&port];
            for (mac, vlan) in stations {
                self.fdb.insert((mac.as_u64(), vlan.get()), (switch, port, mac, vlan));
            }
        }
    }
}
