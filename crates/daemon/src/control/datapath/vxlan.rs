//! Ports of tunnels to other hosts.

use packet::VlanId;
use port::vxlan::neighbours::Place;
use protocol::{ExternLearn, NeighEntry, Vxlan, VxlanInfo};

use crate::model::error::MakeVxlanError;
use crate::model::keys::PortKey;
use crate::model::plan::Origin;
use crate::model::specs::VxlanSpec;

/// Ports of tunnels to other hosts.
pub trait VxlanPorts {
    /// Adds a port with its sockets. For one of a plan, the host may have the local address only
    /// later.
    fn add_vxlan(&mut self, spec: &VxlanSpec, origin: Origin) -> Result<(), MakeVxlanError>;

    /// Adds a port whose sockets could not be opened.
    fn add_vxlan_without_sockets(
        &mut self,
        spec: &VxlanSpec,
        why: String,
    ) -> Result<(), MakeVxlanError>;

    /// Sets what can change of a port; the rest of `vxlan` is what it was.
    fn set_vxlan(&mut self, port: PortKey, vxlan: &Vxlan);

    /// Names stations of a VLAN behind remotes of a port, and their addresses, or takes them back.
    fn extern_learn(&mut self, port: PortKey, vlan: VlanId, learn: &ExternLearn);

    /// At most `count` IP addresses of stations that a port knows, from `from` on, and where to go
    /// on. Those of a port with one network are in the default VLAN.
    fn neigh_page(
        &self,
        port: PortKey,
        from: Option<Place>,
        count: usize,
    ) -> (Vec<NeighEntry>, Option<Place>);

    /// What `port show` says of the tunnel of a port.
    fn vxlan_info(&self, port: PortKey) -> Option<VxlanInfo>;
}

#[cfg(test)]
mod fake {
    use packet::VlanId;
    use port::vxlan::neighbours::Place;
    use protocol::{ExternLearn, ExternNeigh, NeighEntry, Vxlan, VxlanInfo};

    use super::VxlanPorts;
    use crate::control::datapath::ports::Ports;
    use crate::control::fake::Fake;
    use crate::model::error::MakeVxlanError;
    use crate::model::keys::PortKey;
    use crate::model::plan::Origin;
    use crate::model::specs::VxlanSpec;

    impl VxlanPorts for Fake {
        fn add_vxlan(&mut self, spec: &VxlanSpec, _: Origin) -> Result<(), MakeVxlanError> {
            Ok(self.add_null(spec.key, spec.switch, spec.config.clone())?)
        }

        fn add_vxlan_without_sockets(
            &mut self,
            spec: &VxlanSpec,
            _: String,
        ) -> Result<(), MakeVxlanError> {
            self.add_vxlan(spec, Origin::Plan)
        }

        fn set_vxlan(&mut self, port: PortKey, vxlan: &Vxlan) {
            self.tunnels.insert(port, vxlan.clone());
        }

        fn extern_learn(&mut self, port: PortKey, vlan: VlanId, learn: &ExternLearn) {
            self.extern_learned.push((port, vlan, learn.clone()));
        }

        fn neigh_page(
            &self,
            _: PortKey,
            from: Option<Place>,
            count: usize,
        ) -> (Vec<NeighEntry>, Option<Place>) {
            let told = self.extern_learned.iter().flat_map(|(_, vlan, learn)| {
                learn.add_neigh.iter().map(|it| ((*vlan, it.address), it))
            });
            let known = told.filter(|(place, _)| from.is_none_or(|from| *place >= from));
            let entry = |((vlan, address), it): (Place, &ExternNeigh)| {
                let (mac, router, extern_learn) = (it.mac, it.router, true);
                let (disputed, age_s) = (false, 0);
                let shown = Some(vlan.get());
                let entry =
                    NeighEntry { vlan: shown, address, mac, router, extern_learn, disputed, age_s };
                ((vlan, address), entry)
            };
            let mut entries: Vec<_> = known.map(entry).collect();
            let next = entries.get(count).map(|(place, _)| *place);
            entries.truncate(count);
            (entries.into_iter().map(|(_, entry)| entry).collect(), next)
        }

        fn vxlan_info(&self, _: PortKey) -> Option<VxlanInfo> {
            None
        }
    }
}
