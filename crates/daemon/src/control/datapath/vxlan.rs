//! Ports of tunnels to other hosts.

use std::net::IpAddr;

use packet::VlanId;
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
    /// on.
    fn neigh_page(
        &self,
        port: PortKey,
        from: Option<IpAddr>,
        count: usize,
    ) -> (Vec<NeighEntry>, Option<IpAddr>);

    /// What `port show` says of the tunnel of a port.
    fn vxlan_info(&self, port: PortKey) -> Option<VxlanInfo>;
}

#[cfg(test)]
mod fake {
    use std::net::IpAddr;

    use packet::VlanId;
    use protocol::{ExternLearn, NeighEntry, Vxlan, VxlanInfo};

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
            from: Option<IpAddr>,
            count: usize,
        ) -> (Vec<NeighEntry>, Option<IpAddr>) {
            let told = self.extern_learned.iter().flat_map(|(_, _, learn)| &learn.add_neigh);
            let known = told.filter(|it| from.is_none_or(|from| it.address >= from));
            let mut entries: Vec<_> = known
                .map(|it| NeighEntry {
                    address: it.address,
                    mac: it.mac,
                    router: it.router,
                    extern_learn: true,
                    disputed: false,
                    age_s: 0,
                })
                .collect();
            let next = entries.get(count).map(|entry| entry.address);
            entries.truncate(count);
            (entries, next)
        }

        fn vxlan_info(&self, _: PortKey) -> Option<VxlanInfo> {
            None
        }
    }
}
