//! Ports of any kind, and those that clients attach.

use protocol::PortStats;
use protocol::name::PortName;
use switch::PortConfig;

use crate::model::error::DatapathError;
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::opening::Build;
use crate::model::replies::{Attachment, Lease};
use crate::model::specs::{RingSpec, ShmSpec};

/// Ports of any kind, and those that clients attach.
pub trait Ports {
    /// Bytes of shared memory of a port with these rings; `None`: no region is that large.
    fn memory_of(&self, rings: &RingSpec) -> Option<u64>;

    /// Reserves a port for a client under its key. The switch sees the port once it is attached.
    fn reserve_shm(&mut self, spec: &ShmSpec) -> Result<Build, DatapathError>;

    /// Attaches a port whose memory is built. The client gets the descriptors; the datapath keeps
    /// duplicates. After an error the port is still reserved.
    fn attach_shm(
        &mut self,
        port: PortKey,
        config: PortConfig,
    ) -> Result<Attachment, DatapathError>;

    /// Adds a port that drops each frame it gets.
    fn add_null(
        &mut self,
        port: PortKey,
        switch: SwitchKey,
        config: PortConfig,
    ) -> Result<(), DatapathError>;

    /// Connects two switches by a cable, which is a port in each.
    fn add_cable(
        &mut self,
        ends: [(PortKey, SwitchKey, PortConfig); 2],
    ) -> Result<(), DatapathError>;

    /// Removes a port of any kind with its addresses and its memory, and returns its last counters.
    fn detach(&mut self, port: PortKey, name: &PortName) -> PortStats;

    /// Gives each slot of a port a buffer of its own that stands nowhere else; returns how many
    /// slots got another one. No program uses the rings meanwhile.
    fn recover(&mut self, port: PortKey) -> u32;

    /// Gives memory back to the system that clients had, in another thread.
    fn reclaim(&mut self, leases: Vec<Lease>);

    /// The number of a port in its switch.
    fn number_of(&self, port: PortKey) -> Option<u16>;

    /// Changes how the switch treats a port.
    fn set_port(&mut self, port: PortKey, config: PortConfig);

    /// Rings of a port whose frames a worker moves from ring to ring; `None` for other ports.
    fn rings_of(&self, port: PortKey) -> Option<RingSpec>;

    /// Counters of ports, in the order of `ports`.
    fn stats(&self, ports: &[(PortKey, &PortName)]) -> Vec<PortStats>;
}

#[cfg(test)]
mod fake {
    use protocol::name::PortName;
    use protocol::{Counter, PortStats};
    use std::collections::BTreeMap;
    use switch::PortConfig;

    use super::Ports;
    use crate::control::fake::Fake;
    use crate::control::fake::attachment;
    use crate::model::error::DatapathError;
    use crate::model::keys::{PortKey, SwitchKey};
    use crate::model::opening::Build;
    use crate::model::replies::{Attachment, Lease};
    use crate::model::specs::{RingSpec, ShmSpec};

    impl Ports for Fake {
        fn memory_of(&self, rings: &RingSpec) -> Option<u64> {
            let buffers = rings.counts.buffers().checked_add(rings.extra_bufs)?;
            let bytes = u64::from(buffers) * u64::from(rings.stride);
            (bytes <= u64::from(u32::MAX)).then_some(bytes)
        }

        fn reserve_shm(&mut self, spec: &ShmSpec) -> Result<Build, DatapathError> {
            self.allocate()?;
            assert!(self.switches.contains_key(&spec.switch));
            self.grouped.extend(spec.group.clone().map(|group| (spec.key, group)));
            assert!(self.reserved.insert(spec.key, spec.clone()).is_none());
            Ok(self.build())
        }

        fn attach_shm(
            &mut self,
            key: PortKey,
            config: PortConfig,
        ) -> Result<Attachment, DatapathError> {
            self.allocate()?;
            let spec = self.reserved.remove(&key).expect("reserved");
            assert!(self.ports.insert(key, (spec.switch, config)).is_none());
            Ok(attachment(&spec.name, &spec.rings))
        }

        fn add_null(
            &mut self,
            port: PortKey,
            switch: SwitchKey,
            config: PortConfig,
        ) -> Result<(), DatapathError> {
            self.calls += 1;
            self.allocate()?;
            assert!(self.ports.insert(port, (switch, config)).is_none());
            Ok(())
        }

        fn add_cable(
            &mut self,
            ends: [(PortKey, SwitchKey, PortConfig); 2],
        ) -> Result<(), DatapathError> {
            self.allocate()?;
            for (key, switch, config) in ends {
                assert!(self.switches.contains_key(&switch));
                assert!(self.ports.insert(key, (switch, config)).is_none());
            }
            Ok(())
        }

        fn detach(&mut self, port: PortKey, name: &PortName) -> PortStats {
            let last = self.stats(&[(port, name)]).remove(0);
            let reserved = self.reserved.remove(&port).is_some();
            self.grouped.remove(&port);
            let bound = self.bound.remove(&port).is_some();
            self.drop_empty_regions();
            assert!(self.ports.remove(&port).is_some() || reserved || bound, "known");
            self.fdb.retain(|_, entry| entry.1 != port);
            last
        }

        fn recover(&mut self, port: PortKey) -> u32 {
            self.recovered.push(port);
            0
        }

        fn reclaim(&mut self, leases: Vec<Lease>) {
            if self.reclaims_late {
                self.ended.extend(leases);
            }
        }

        fn number_of(&self, port: PortKey) -> Option<u16> {
            self.ports.get(&port).map(|_| 3)
        }

        fn set_port(&mut self, port: PortKey, config: PortConfig) {
            self.calls += 1;
            self.ports.get_mut(&port).expect("known").1 = config;
        }

        fn rings_of(&self, port: PortKey) -> Option<RingSpec> {
            let native = || crate::config::Config::default().rings;
            let bound = self.bound.get(&port).map(|bound| bound.rings);
            bound.or_else(|| self.ports.contains_key(&port).then(native))
        }

        fn stats(&self, ports: &[(PortKey, &PortName)]) -> Vec<PortStats> {
            let known = |key| {
                self.ports.contains_key(key)
                    || self.reserved.contains_key(key)
                    || self.bound.contains_key(key)
            };
            assert!(ports.iter().all(|(key, _)| known(key)));
            let stats = |port: &PortName| PortStats {
                port: port.clone(),
                serial: 0,
                tx: self.counted,
                rx: Counter::default(),
                drops: BTreeMap::new(),
                tx_queues: vec![Counter::default(); 2],
                rx_queues: vec![Counter::default(); 2],
                resyncs: 0,
                abandoned: 0,
                wakes: 0,
                longest_turn_ns: 0,
                rx_fill: None,
                called_in: 0,
                called_out: 0,
                gone_s: None,
            };
            ports.iter().map(|(_, name)| stats(name)).collect()
        }
    }
}
