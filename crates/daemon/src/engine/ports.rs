//! Ports of any kind, and those that clients attach.

use std::sync::Arc;

use port::cable::cable;
use port::null::NullPort;
use port::shm;
use port::shm::{plug, port_waker};
use port::sys::new_event;
use protocol::PortStats;
use protocol::name::PortName;
use switch::{Plug, PortConfig};

use super::hand_over::Handles;
use super::memory::{Memory, geometry};
use super::netmap::BoundPlace;
use super::open::Closing;
use super::slow_calls::PeerOf;
use super::stats::{Counted, shown};
use super::worker::Worker;
use super::{PortPlace, Site, Unplugged, Workers};
use crate::control::datapath::interfaces::Interfaces;
use crate::control::datapath::ports::Ports;
use crate::control::stats::counters;
use crate::model::error::DatapathError;
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::opening::Build;
use crate::model::replies::{Attachment, Lease};
use crate::model::specs::{RingSpec, ShmSpec};

impl Ports for Workers {
    fn memory_of(&self, rings: &RingSpec) -> Option<u64> {
        let layout = shm::region_layout(rings.counts, rings.extra_bufs, rings.stride);
        layout.ok().map(|layout| layout.size() as u64)
    }

    fn reserve_shm(&mut self, spec: &ShmSpec) -> Result<Build, DatapathError> {
        let worker = self.next_worker(spec.switch, spec.worker);
        self.next_place(spec.switch, worker)?;
        let memory = self.memory(spec)?;
        let reservation = memory.reservation.clone();
        self.sites.insert(spec.key, Site { spec: spec.clone(), worker, memory });
        Ok(Box::new(move || reservation.build_while_wanted()))
    }

    fn attach_shm(
        &mut self,
        port: PortKey,
        config: PortConfig,
    ) -> Result<Attachment, DatapathError> {
        let Site { worker, spec: ShmSpec { switch, .. }, .. } = self.sites[&port];
        let (id, number) = self.next_place(switch, worker)?;
        // First: a doorbell that is made in vain is closed later, by the reclaimer.
        let Site { spec, memory, .. } = &self.sites[&port];
        let copy = spec.group.is_none().then(|| memory.fd.try_clone()).transpose()?;
        let peer = PeerOf { port, user: config.user, switch: Some(switch) };
        let (wake, waker) = self.waker(peer)?;
        let event = new_event()?;
        let kick = self.kick(worker, event.try_clone()?, peer);
        self.workers[worker].handle.call(move |worker| worker.connect(number, kick))?;
        // From here on nothing fails.
        let Site { spec, memory, .. } = self.sites.remove(&port).expect("looked up just now");
        let (region, layout) = (memory.reservation.region(), *memory.reservation.layout());
        let lease = Lease::new(region.clone());
        let given = spec.rings.buffers();
        let group = spec.group.map(|group| Memory { group, layout, given });
        let bytes = if group.is_some() { 0 } else { region.layout().size() };
        let waker = Arc::new(waker);
        let handles = |region| {
            let (rings, waker) = (spec.rings, Arc::downgrade(&waker));
            Handles { rings, region, waker }
        };
        let handles = copy.map(handles);
        let place = PortPlace { switch, id, worker, number, bytes, memory: group, handles };
        let waker = port_waker(region, &layout, waker);
        self.plug(port, place, plug(region, &layout, waker), config);
        let geometry = geometry(&spec.name, region, &layout, &spec.rings);
        self.note_memory(port, port, &memory.reservation, lease.life());
        self.huge_pages.request(&memory.reservation, lease.life());
        Ok(Attachment { geometry, lease, region: memory.fd, kick: event, wake })
    }

    fn add_null(
        &mut self,
        port: PortKey,
        switch: SwitchKey,
        config: PortConfig,
    ) -> Result<(), DatapathError> {
        let place = self.new_place(switch, &config)?;
        self.plug(port, place, Plug::adapter(Box::new(NullPort)), config);
        Ok(())
    }

    fn add_cable(
        &mut self,
        ends: [(PortKey, SwitchKey, PortConfig); 2],
    ) -> Result<(), DatapathError> {
        for (_, switch, config) in &ends {
            self.new_place(*switch, config)?;
        }
        for ((key, switch, config), end) in ends.into_iter().zip(cable()?) {
            let place = self.new_place(switch, &config)?;
            self.plug(key, place, Plug::adapter(Box::new(end)), config);
        }
        Ok(())
    }

    fn detach(&mut self, port: PortKey, name: &PortName) -> PortStats {
        if let Some(site) = self.sites.remove(&port) {
            self.abandon(&site);
            let bytes = site.memory.reservation.region().layout().size();
            self.reclaimer.drop(site, bytes);
            return counters::none(name.clone());
        }
        self.orphan_monitors(port);
        self.forget_memory(port);
        let Some(place) = self.ports.remove(&port) else {
            self.remove_bound(port, false);
            return counters::none(name.clone());
        };
        let Unplugged { plug, last, abandoned } = self.unplug(&place);
        let stored = self.host.stored(port);
        // The next port may want the interface or the UDP port at once.
        match self.host.has(port) || self.tunnels.remove(&port).is_some() {
            true => self.closing.extend(plug.map(|plug| Closing::new(plug, stored))),
            false => self.reclaimer.drop((plug, place.handles), place.bytes),
        }
        if let Some(switch) = self.switches.get_mut(&place.switch) {
            switch.ids.give_back(place.id.index());
            switch.keys.remove(&place.id);
        }
        self.workers[place.worker].ports.give_back(place.number as usize);
        self.give_back(place.memory);
        self.host.forget(port).into_iter().for_each(|opening| self.cancel_opening(opening));
        self.machines.remove(&port);
        self.remove_bound(port, true);
        PortStats { abandoned, ..shown(name.clone(), &last) }
    }

    fn recover(&mut self, port: PortKey) -> u32 {
        let Some(place) = self.ports.get(&port) else { return 0 };
        let id = place.id;
        self.on_port(place, move |worker, at| match worker.switch(at).plug_mut(id) {
            Some(Plug::Rings(host, _)) => host.recover(),
            _ => 0,
        })
    }

    fn reclaim(&mut self, leases: Vec<Lease>) {
        if !leases.is_empty() {
            self.reclaimer.run(move || drop(leases));
        }
    }

    fn number_of(&self, port: PortKey) -> Option<u16> {
        self.switch_of(port).map(|(_, id)| id.number())
    }

    fn set_port(&mut self, port: PortKey, config: PortConfig) {
        let learning = config.learning;
        self.on_vxlan(port, move |port| port.set_learning(learning));
        let Some(place) = self.ports.get(&port) else { return };
        let (id, at) = (place.id, self.place(place.switch).at);
        for worker in self.order_to_set(place, config.mirror.is_some()) {
            let config = config.clone();
            let set = move |worker: &mut Worker| worker.switch(at).set_port(id, config);
            self.workers[worker].handle.call(set);
        }
    }

    fn rings_of(&self, port: PortKey) -> Option<RingSpec> {
        let bound = self.bound.get(&port).map(BoundPlace::rings);
        bound.or_else(|| self.plugged_rings(port))
    }

    fn stats(&self, ports: &[(PortKey, &PortName)]) -> Vec<PortStats> {
        let counted = self.counted(ports.iter().map(|(key, _)| *key));
        let stats = |(counted, (_, name)): (Option<Counted>, &(PortKey, &PortName))| match counted {
            Some(counted) => shown((*name).clone(), &counted),
            None => counters::none((*name).clone()),
        };
        counted.into_iter().zip(ports).map(stats).collect()
    }
}

impl Workers {
    /// The workers of a port's switch, in the order in which they hear of its settings. Of a mirror
    /// port its own worker hears first, as in `unplug`: from then on none learns an address behind
    /// the port, which another would have to forget. Of other ports it hears last, as in `plug`.
    pub(super) fn order_to_set(&self, place: &PortPlace, is_mirror: bool) -> Vec<usize> {
        let mut order: Vec<usize> = self.workers_of(place.switch).collect();
        order.sort_by_key(|&worker| (worker == place.worker) != is_mirror);
        order
    }
}
