//! Ports of tunnels: opened here, used by a worker, changed and read by its jobs.

use port::host::Absent;
use port::vxlan::{Around, VxlanPort, inner_mtu, open};
use protocol::{Vxlan, VxlanInfo, VxlanRemote};
use switch::{Adapter, Plug};

use super::Workers;
use super::system::random_seed;
use crate::control::datapath::vxlan::VxlanPorts;
use crate::model::error::MakeVxlanError;
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::specs::VxlanSpec;

/// A tunnel's port.
#[derive(Debug)]
pub(super) struct VxlanPlace {
    vxlan: Vxlan,
    /// Why it has no sockets.
    trouble: Option<String>,
}

impl Workers {
    fn plug_vxlan(
        &mut self,
        spec: &VxlanSpec,
        adapter: Box<dyn Adapter>,
        trouble: Option<String>,
    ) -> Result<(), MakeVxlanError> {
        let place = self.new_place(spec.switch, &spec.config)?;
        self.plug(spec.key, place, Plug::adapter(adapter), spec.config.clone());
        self.tunnels.insert(spec.key, VxlanPlace { vxlan: spec.vxlan.clone(), trouble });
        Ok(())
    }

    /// Runs `job` on the port of a tunnel, where its worker has it; `None` for other ports.
    pub(super) fn on_vxlan<R: Send + 'static>(
        &self,
        port: PortKey,
        job: impl FnOnce(&mut VxlanPort) -> R + Send + 'static,
    ) -> Option<R> {
        let place = self.ports.get(&port).filter(|_| self.tunnels.contains_key(&port))?;
        let id = place.id;
        self.on_port(place, move |worker, at| {
            worker.switch(at).plug_mut(id).and_then(|plug| plug.with_adapter(job))
        })
    }

    /// Runs `job` on the port of each tunnel of a switch.
    pub(super) fn on_vxlans_of(
        &self,
        switch: SwitchKey,
        job: impl FnOnce(&mut VxlanPort) + Copy + Send + 'static,
    ) {
        let is_there = |key: &&PortKey| self.ports.get(key).is_some_and(|it| it.switch == switch);
        self.tunnels.keys().filter(is_there).for_each(|key| {
            self.on_vxlan(*key, job);
        });
    }
}

impl VxlanPorts for Workers {
    fn add_vxlan(&mut self, spec: &VxlanSpec, may_wait: bool) -> Result<(), MakeVxlanError> {
        self.new_place(spec.switch, &spec.config)?;
        let (ageing_ms, learning) = (spec.ageing_ms, spec.config.learning);
        let around = Around { ageing_ms, learning, seed: random_seed() };
        let adapter = open(&spec.vxlan, around, may_wait)?;
        self.plug_vxlan(spec, Box::new(adapter), None)
    }

    fn add_vxlan_without_sockets(
        &mut self,
        spec: &VxlanSpec,
        why: String,
    ) -> Result<(), MakeVxlanError> {
        self.plug_vxlan(spec, Box::new(Absent), Some(why))
    }

    fn set_vxlan(&mut self, port: PortKey, vxlan: &Vxlan) {
        let (remotes, stations) = (vxlan.remote.clone(), vxlan.fdb.clone());
        self.on_vxlan(port, move |port| port.set(&remotes, &stations));
        if let Some(place) = self.tunnels.get_mut(&port) {
            place.vxlan = vxlan.clone();
        }
    }

    fn vxlan_info(&self, port: PortKey) -> Option<VxlanInfo> {
        let VxlanPlace { vxlan, trouble } = self.tunnels.get(&port)?;
        let learned = self.on_vxlan(port, |port| port.remotes().learned());
        let none = || vxlan.remote.iter().map(|&remote| (remote, 0)).collect();
        let learned = learned.unwrap_or_else(none).into_iter();
        Some(VxlanInfo {
            vni: vxlan.vni,
            local: vxlan.local,
            dst_port: vxlan.udp_port(),
            mtu: inner_mtu(vxlan),
            ttl: vxlan.hop_limit(),
            dscp: vxlan.dscp.unwrap_or(0),
            df: vxlan.df.unwrap_or(true),
            remotes: learned.map(|(address, learned)| VxlanRemote { address, learned }).collect(),
            fdb: vxlan.fdb.clone(),
            trouble: trouble.clone(),
        })
    }
}
