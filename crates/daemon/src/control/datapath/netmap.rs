//! Ports that netmap programs bind.

use protocol::name::PortName;
use switch::PortConfig;

use crate::model::error::DatapathError;
use crate::model::keys::{ConnKey, PortKey, SwitchKey};
use crate::model::opening::Build;
use crate::model::replies::Binding;
use crate::model::specs::{BoundSpec, Claim};

/// Ports that netmap programs bind.
pub trait NetmapPorts {
    /// Reserves a port that no program has bound yet, and returns the number of its region. A new
    /// region goes with its last port.
    fn reserve_bound(&mut self, spec: &BoundSpec) -> Result<u16, DatapathError>;

    /// Reserves rings for a connection: those of one port, or of both sides of an interface, which
    /// share a region and a worker. Returns the work that commits `parts` (`holds` among them), and
    /// how many of the extra buffers the region has.
    fn reserve_holder(
        &mut self,
        holds: &[(PortKey, Claim)],
        parts: &[PortKey],
        holder: ConnKey,
        extra_bufs: u32,
    ) -> Result<(Build, u32), DatapathError>;

    /// Attaches a port whose memory is built. After an error the port is still reserved.
    fn attach_bound(&mut self, port: PortKey, config: PortConfig) -> Result<(), DatapathError>;

    /// Opens an attached port for a connection of this user, with a doorbell of its own. One
    /// connection may call this once for each of its processes.
    fn open_bound(
        &mut self,
        port: PortKey,
        holder: ConnKey,
        user: u32,
    ) -> Result<Binding, DatapathError>;

    /// Takes back one connection's rings and buffers, on both sides of an interface. [`detach`]
    /// does it for all connections.
    ///
    /// [`detach`]: super::ports::Ports::detach
    fn remove_holder(&mut self, port: PortKey, holder: ConnKey);

    /// Moves an attached port without pipes to another switch of the same worker. Its monitors see
    /// nothing more.
    fn move_bound(&mut self, port: PortKey, name: &PortName, switch: SwitchKey, config: PortConfig);
}

#[cfg(test)]
mod fake {
    use protocol::Bound;
    use protocol::name::PortName;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use switch::PortConfig;

    use super::NetmapPorts;
    use crate::control::fake::Fake;
    use crate::control::fake::FakeBound;
    use crate::control::fake::attachment;
    use crate::model::error::DatapathError;
    use crate::model::keys::{ConnKey, PortKey, SwitchKey};
    use crate::model::opening::Build;
    use crate::model::replies::{Attachment, Binding, Lease};
    use crate::model::specs::{BoundSpec, Claim, RingSpec};

    impl NetmapPorts for Fake {
        fn reserve_bound(&mut self, spec: &BoundSpec) -> Result<u16, DatapathError> {
            self.allocate()?;
            assert!(self.switches.contains_key(&spec.switch));
            let region = self.find_or_make_region(&spec.region);
            let (name, switch) = (spec.name.clone(), spec.switch);
            let holders = BTreeMap::new();
            let port = FakeBound { name, switch, rings: spec.rings, region, holders };
            assert!(self.bound.insert(spec.key, port).is_none());
            Ok(region)
        }

        fn reserve_holder(
            &mut self,
            holds: &[(PortKey, Claim)],
            parts: &[PortKey],
            holder: ConnKey,
            extra_bufs: u32,
        ) -> Result<(Build, u32), DatapathError> {
            self.allocate()?;
            assert!(parts.iter().all(|port| self.bound.contains_key(port)));
            let region = self.bound[&holds[0].0].region;
            for (port, claim) in holds {
                let bound = self.bound.get_mut(port).expect("known");
                assert!(parts.contains(port) && bound.region == region);
                assert!(bound.holders.insert(holder, (*claim, extra_bufs)).is_none());
            }
            Ok((self.build(), extra_bufs))
        }

        fn attach_bound(&mut self, port: PortKey, config: PortConfig) -> Result<(), DatapathError> {
            self.allocate()?;
            let switch = self.bound[&port].switch;
            assert!(self.ports.insert(port, (switch, config)).is_none());
            Ok(())
        }

        fn open_bound(
            &mut self,
            port: PortKey,
            holder: ConnKey,
            _user: u32,
        ) -> Result<Binding, DatapathError> {
            self.allocate()?;
            assert!(self.ports.contains_key(&port) || self.unswitched.contains(&port), "attached");
            let bound = &self.bound[&port];
            let (claim, extra_bufs) = bound.holders[&holder];
            let rings = RingSpec { extra_bufs, ..bound.rings };
            let Attachment { geometry, region, kick, wake, .. } = attachment(&bound.name, &rings);
            let lease = Lease::shared(Arc::new(()), self.regions[&bound.region].life.clone());
            let reply = Bound {
                attached: geometry,
                nifp: holder.0,
                mem_id: bound.region,
                peer_block: None,
                tx: claim.tx,
                rx: claim.rx,
                exclusive: claim.exclusive,
                no_tx_poll: claim.no_tx_poll,
                host: None,
            };
            Ok(Binding { bound: reply, lease, region, kick, wake })
        }

        fn remove_holder(&mut self, port: PortKey, holder: ConnKey) {
            assert!(self.bound.contains_key(&port), "known");
            for bound in self.bound.values_mut() {
                bound.holders.remove(&holder);
            }
        }

        fn move_bound(
            &mut self,
            port: PortKey,
            name: &PortName,
            switch: SwitchKey,
            config: PortConfig,
        ) {
            self.ports.insert(port, (switch, config)).expect("attached");
            let bound = self.bound.get_mut(&port).expect("known");
            (bound.name, bound.switch) = (name.clone(), switch);
        }
    }
}
