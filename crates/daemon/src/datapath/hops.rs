//! Direct hops between functions: their memory, and whose the buffers are that they exchange.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use packet::PortId;
use port::hop::Hop;
use ring::Region;
use ring::audit::Member;
use ring::family::{Family, Traffic};
use ring::layout::PortLayout;
use switch::Plug;

use super::Workers;
use super::memory::Memory;
use crate::model::error::DatapathError;
use crate::model::keys::{GroupKey, HopKey, PortKey, SwitchKey};
use crate::model::replies::HopPlaceInfo;

/// Families of one group at the same time.
const FAMILIES: u16 = 4096;

/// A hop, and where it is.
#[derive(Debug)]
pub(super) struct HopPlace {
    hop: Hop,
    switch: SwitchKey,
    group: GroupKey,
    ends: [PortKey; 2],
}

impl Workers {
    /// Makes a hop between two functions of one group and one switch.
    pub(super) fn make_hop(
        &mut self,
        key: HopKey,
        ends: [PortKey; 2],
    ) -> Result<(), DatapathError> {
        let place = &self.ports[&ends[0]];
        let (switch, memory) = (place.switch, place.memory.as_ref());
        let group = memory.expect("control knows that it is in a group").group.clone();
        let layouts = ends.map(|port| self.layout_of(port));
        let memory = self.groups.get_mut(&group).expect("it has members");
        let hop = Hop::new(memory)?;
        let region = memory.region().clone();
        let all = [layouts[0], layouts[1], *hop.layout()];
        self.hops.insert(key, HopPlace { hop, switch, group: group.clone(), ends });
        self.unite(switch, &group, &region, all);
        Ok(())
    }

    fn layout_of(&self, port: PortKey) -> PortLayout {
        let memory = self.ports[&port].memory.as_ref();
        memory.expect("control knows that it is in a group").layout
    }

    /// These have their buffers together from now on.
    fn unite(
        &mut self,
        switch: SwitchKey,
        group: &GroupKey,
        region: &Arc<Region>,
        all: [PortLayout; 3],
    ) {
        let families = self.families.entry(group.clone()).or_default();
        let concerned = |family: &mut Family| all.iter().any(|layout| family.has(layout));
        let mut known: Vec<Family> = families.extract_if(.., concerned).collect();
        let taken = |number: u16| {
            let owner = ring::owners::Owner::family(number);
            families.iter().chain(&known).any(|family| family.owner() == owner)
        };
        let number = (0..FAMILIES).find(|&number| !taken(number)).expect("fewer than members");
        let mut family = known.pop().unwrap_or_else(|| Family::new(region, number));
        let members = self.neighbours(switch, group);
        let family = self.on_switch(switch, move |worker, at| {
            known.into_iter().for_each(|other| family.merge(other));
            for layout in &all {
                if !family.has(layout) {
                    family.join(layout);
                }
            }
            adopt(worker.switch(at), &family, members);
            family
        });
        self.families.entry(group.clone()).or_default().push(family);
    }

    /// The ports of a group in a switch.
    fn neighbours(&self, switch: SwitchKey, group: &GroupKey) -> Vec<(PortLayout, PortId)> {
        let places = self.ports.values().filter(|place| place.switch == switch);
        let neighbour = |place: &super::PortPlace| {
            let memory = place.memory.as_ref().filter(|memory| memory.group == *group)?;
            Some((memory.layout, place.id))
        };
        places.filter_map(neighbour).collect()
    }

    /// Says of a port whose its buffers are, and which hops count as its: a hop is its receiver's,
    /// or its sender's when that has gone.
    pub(super) fn join_places(&self, group: &GroupKey, port: PortKey, place: &mut Member) {
        let mut families = self.families.get(group).into_iter().flatten();
        let Some(family) = families.find(|family| family.has(&place.port)) else { return };
        place.owner = family.owner();
        for HopPlace { hop, ends: [from, to], .. } in self.hops.values() {
            let holder = if self.ports.contains_key(to) { to } else { from };
            if *holder == port {
                place.given += hop.layout().counts().buffers();
                place.hops.push(*hop.layout());
            }
        }
    }

    /// Takes back the memory of a port or a hop that is of a family; `false`: it is of none.
    pub(super) fn leave_family(&mut self, switch: SwitchKey, memory: &Memory) -> bool {
        let Memory { group, layout, .. } = memory;
        let Some(families) = self.families.get_mut(group) else { return false };
        let Some(at) = families.iter().position(|family| family.has(layout)) else {
            return false;
        };
        let (mut family, layout) = (families.swap_remove(at), *layout);
        let members = self.neighbours(switch, group);
        let owner = family.owner();
        let (family, freed) = self.on_switch(switch, move |worker, at| {
            let freed = family.leave(&layout);
            adopt(worker.switch(at), &family, members);
            (family, freed)
        });
        if !family.is_empty() {
            self.families.get_mut(group).expect("it was there").push(family);
        }
        if let Some(group) = self.groups.get_mut(group) {
            group.region().free_some(owner, &freed);
            group.vacate(&layout);
        }
        self.families.retain(|_, families| !families.is_empty());
        true
    }

    /// Removes a hop that both ends have let go of; what stood in it is lost.
    pub(super) fn remove_hop(&mut self, hop: HopKey) -> Traffic {
        let HopPlace { hop, switch, group, .. } = self.hops.remove(&hop).expect("control made it");
        let traffic = hop.traffic();
        let layout = *hop.layout();
        let given = layout.counts().buffers();
        self.leave_family(switch, &Memory { group, layout, given });
        self.drop_empty_groups();
        traffic
    }

    pub(super) fn place_of_hop(&self, hop: HopKey) -> HopPlaceInfo {
        let layout = self.hops[&hop].hop.layout();
        let counts = layout.counts();
        HopPlaceInfo {
            block: layout.nifp() as u64,
            tx_slots: counts.tx_slots.slots(),
            rx_slots: counts.rx_slots.slots(),
        }
    }

    pub(super) fn open_end(&self, hop: HopKey, end: usize) -> io::Result<[OwnedFd; 2]> {
        self.hops[&hop].hop.open(end)
    }

    pub(super) fn traffic_of(&self, hop: HopKey) -> Traffic {
        self.hops[&hop].hop.traffic()
    }

    /// Has the function behind a port ask for its hops.
    pub(super) fn tell_function(&self, port: PortKey) {
        let Some((switch, id)) = self.switch_of(port) else { return };
        self.on_switch(switch, move |worker, at| {
            if let Some(Plug::Rings(host, wake)) = worker.switch(at).plug_mut(id) {
                host.tell();
                wake.wake();
            }
        });
    }
}

/// The members of a family know whose their buffers are.
fn adopt(switch: &mut switch::Switch, family: &Family, members: Vec<(PortLayout, PortId)>) {
    for (_, id) in members.into_iter().filter(|(layout, _)| family.has(layout)) {
        if let Some(host) = switch.plug_mut(id).and_then(Plug::rings) {
            host.adopt(family.owner());
        }
    }
}
