//! Ports of tunnels: opened here, used by a worker, changed and read by its jobs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use packet::{MacAddr, VlanId, VlanSet};
use port::host::Absent;
use port::vxlan::address::Place;
use port::vxlan::neighbours::Place as NeighPlace;
use port::vxlan::networks::Networks;
use port::vxlan::{Around, LocalAddress, VxlanPort, open, path_mtu};
use protocol::{
    EXTERN_LEARN_MAX, ExternLearn, NeighEntry, RemoteVlans, Vxlan, VxlanInfo, VxlanRemote,
};
use switch::{Adapter, Plug};

use super::Workers;
use super::system::random_seed;
use crate::control::datapath::vxlan::VxlanPorts;
use crate::model::error::MakeVxlanError;
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::plan::Origin;
use crate::model::replies::count;
use crate::model::specs::VxlanSpec;

/// Stations that a job of a worker changes: its ports wait meanwhile.
const STATIONS_IN_JOB: usize = 1024;

/// A tunnel's port.
#[derive(Debug)]
pub(super) struct VxlanPlace {
    vxlan: Vxlan,
    /// Where its datagrams arrive, or why it has no sockets.
    arrival: Result<Place, String>,
    /// Where a routing daemon says that stations are.
    externs: BTreeMap<Station, Extern>,
}

/// A station, and the VLAN in which the port knows it: of one VNI, all share the default VLAN.
type Station = (VlanId, MacAddr);
/// Stations, and what a routing daemon says of each.
type Externs = Vec<(Station, Extern)>;

/// What a routing daemon says of a station.
#[derive(Clone, Copy, Debug)]
struct Extern {
    remote: IpAddr,
    /// The VLAN in the switch.
    vlan: VlanId,
    /// The station was named before the last mark.
    is_old: bool,
}

impl VxlanPlace {
    /// Takes stations out, and returns them.
    fn take(&mut self, gone: impl Fn(Station, &Extern) -> bool) -> Externs {
        self.externs.extract_if(.., |station, there| gone(*station, there)).collect()
    }

    /// Sets what can change; returns the stations whose network, or remote in it, goes.
    fn change(&mut self, vxlan: &Vxlan, remotes: &RemoteVlans) -> Externs {
        let before = std::mem::replace(&mut self.vxlan, vxlan.clone());
        let same = vxlan.same_vlans(&before);
        let is_left = |vlan| vxlan.vni.is_some() || same.contains(vlan);
        self.take(|(vlan, _), it| !is_left(vlan) || !remotes.has(it.remote, vlan))
    }

    /// The VLAN in which the port knows the stations that are in this one.
    fn inside(&self, vlan: VlanId) -> VlanId {
        if self.vxlan.vni.is_some() { VlanId::DEFAULT } else { vlan }
    }

    /// Changes what is known of stations; returns what goes and what comes.
    fn learn(&mut self, vlan: VlanId, learn: &ExternLearn) -> (Externs, Externs) {
        if learn.mark {
            self.externs.values_mut().for_each(|it| it.is_old = true);
        }
        let inside = self.inside(vlan);
        let dels = learn.del.iter().map(|&mac| (inside, mac));
        let mut gone: Vec<_> =
            dels.filter_map(|key| Some((key, self.externs.remove(&key)?))).collect();
        let mut come = Vec::new();
        for station in &learn.add {
            let key = (inside, station.mac);
            let now = Extern { remote: station.remote, vlan, is_old: false };
            let is_known = self.externs.contains_key(&key);
            if !is_known && self.externs.len() >= EXTERN_LEARN_MAX {
                continue;
            }
            let before = self.externs.insert(key, now);
            let moved = before.filter(|it| (it.remote, it.vlan) != (now.remote, now.vlan));
            gone.extend(moved.map(|before| (key, before)));
            come.push((key, now));
        }
        if learn.sweep {
            gone.extend(self.take(|_, it| it.is_old));
        }
        (gone, come)
    }
}

impl Workers {
    fn plug_vxlan(
        &mut self,
        spec: &VxlanSpec,
        adapter: Box<dyn Adapter>,
        arrival: Result<Place, String>,
    ) -> Result<(), MakeVxlanError> {
        let place = self.new_place(spec.switch, &spec.config)?;
        self.plug(spec.key, place, Plug::adapter(adapter), spec.config.clone());
        let (vxlan, externs) = (spec.vxlan.clone(), BTreeMap::new());
        self.tunnels.insert(spec.key, VxlanPlace { vxlan, arrival, externs });
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

    /// Brings what a routing daemon says of stations to the switch, and to the port as far as the
    /// switch has room for it, some at a time.
    fn change_externs(&mut self, port: PortKey, gone: &Externs, come: &Externs) {
        let gone = gone.chunks(STATIONS_IN_JOB).map(|some| (some.to_vec(), Vec::new()));
        let come = come.chunks(STATIONS_IN_JOB).map(|some| (Vec::new(), some.to_vec()));
        gone.chain(come).for_each(|(gone, come)| self.change_some_externs(port, gone, come));
    }

    fn change_some_externs(&mut self, port: PortKey, gone: Externs, mut come: Externs) {
        let Some((switch, id)) = self.switch_of(port) else { return };
        let (gone, come) = self.on_switch(switch, move |worker, at| {
            let bridge = worker.switch(at).bridge_mut();
            gone.iter().for_each(|((_, mac), it)| bridge.remove_external(it.vlan, *mac, id));
            come.retain(|((_, mac), it)| bridge.add_external(it.vlan, *mac, id));
            (gone, come)
        });
        self.on_vxlan(port, move |port| {
            let remotes = port.remotes();
            gone.iter().for_each(|(key, it)| remotes.remove_external(*key, it.remote));
            come.iter().for_each(|(key, it)| remotes.add_external(*key, it.remote));
        });
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
    fn add_vxlan(&mut self, spec: &VxlanSpec, origin: Origin) -> Result<(), MakeVxlanError> {
        self.new_place(spec.switch, &spec.config)?;
        let (ageing_ms, learning) = (spec.ageing_ms, spec.config.learning);
        let around = Around { ageing_ms, learning, seed: random_seed() };
        let when = match origin {
            Origin::Plan => LocalAddress::Later,
            Origin::Call => LocalAddress::Present,
        };
        let adapter = open(&mut self.addresses, &spec.vxlan, around, when)?;
        let place = adapter.place();
        self.plug_vxlan(spec, Box::new(adapter), Ok(place))
    }

    fn add_vxlan_without_sockets(
        &mut self,
        spec: &VxlanSpec,
        why: String,
    ) -> Result<(), MakeVxlanError> {
        self.plug_vxlan(spec, Box::new(Absent), Err(why))
    }

    fn set_vxlan(&mut self, port: PortKey, vxlan: &Vxlan) {
        let (remotes, stations) = (vxlan.all_remotes(), vxlan.fdb.clone());
        let remote_vlans = vxlan.remote_vlans();
        let place = self.tunnels.get_mut(&port);
        let gone = place.map(|place| place.change(vxlan, &remote_vlans)).unwrap_or_default();
        self.change_externs(port, &gone, &Vec::new());
        let (neigh_suppress, networks) = (vxlan.neigh_suppress, Networks::of(vxlan));
        let vnis = networks.all();
        self.on_vxlan(port, move |port| {
            port.set_networks(networks);
            port.set(&remotes, &remote_vlans, &stations);
            port.neighbours().set(neigh_suppress);
        });
        if let Some(Ok(place)) = self.tunnels.get(&port).map(|tunnel| &tunnel.arrival)
            && let Err(error) = place.set(vnis)
        {
            tracing::warn!("cannot steer datagrams of {}: {error}", vxlan.address());
        }
    }

    fn extern_learn(&mut self, port: PortKey, vlan: VlanId, learn: &ExternLearn) {
        let Some(place) = self.tunnels.get_mut(&port) else { return };
        let (inside, (gone, come)) = (place.inside(vlan), place.learn(vlan, learn));
        self.change_externs(port, &gone, &come);
        let (add, del) = (learn.add_neigh.clone(), learn.del_neigh.clone());
        let (mark, sweep) = (learn.mark, learn.sweep);
        if mark || sweep || !add.is_empty() || !del.is_empty() {
            self.on_vxlan(port, move |port| {
                let neighbours = port.neighbours();
                if mark {
                    neighbours.mark();
                }
                del.iter().for_each(|address| neighbours.remove_external((inside, *address)));
                add.iter().for_each(|neigh| neighbours.add_external(inside, *neigh));
                if sweep {
                    neighbours.remove_old();
                }
            });
        }
    }

    fn neigh_page(
        &self,
        port: PortKey,
        from: Option<NeighPlace>,
        count: usize,
    ) -> (Vec<NeighEntry>, Option<NeighPlace>) {
        self.on_vxlan(port, move |port| port.neighbour_page(from, count)).unwrap_or_default()
    }

    fn vxlan_info(&self, port: PortKey) -> Option<VxlanInfo> {
        let VxlanPlace { vxlan, arrival, externs } = self.tunnels.get(&port)?;
        let seen = self.on_vxlan(port, |port| (port.remotes().learned(), port.neighbours().info()));
        let (learned, neigh) = seen.map_or((None, None), |(learned, neigh)| (Some(learned), neigh));
        let remote_vlans = vxlan.remote_vlans();
        let none = || vxlan.all_remotes().into_iter().map(|remote| (remote, 0)).collect();
        let learned = learned.unwrap_or_else(none).into_iter();
        let shown = |(address, learned)| {
            let is_extern = !vxlan.remote.contains(&address);
            let vlans = remote_vlans.vlans(address).into_iter().flat_map(VlanSet::iter);
            let vlans = vlans.map(VlanId::get).collect();
            VxlanRemote { address, learned, is_extern, vlans }
        };
        let path_mtu = path_mtu(vxlan);
        Some(VxlanInfo {
            vni: vxlan.vni,
            vlan_vni: vxlan.vlan_vni.clone(),
            local: vxlan.local,
            dst_port: vxlan.udp_port(),
            mtu: vxlan.mtu.or(path_mtu),
            path_mtu,
            ttl: vxlan.hop_limit(),
            dscp: vxlan.dscp.unwrap_or(0),
            df: vxlan.df.unwrap_or(true),
            remotes: learned.map(shown).collect(),
            fdb: vxlan.fdb.clone(),
            extern_learned: count(externs.len()),
            neigh,
            trouble: arrival.as_ref().err().cloned(),
        })
    }
}
