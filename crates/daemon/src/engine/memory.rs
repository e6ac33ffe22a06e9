//! Memory of ports that clients attach: reserved in a region of their own or in their group's, and
//! given back.

use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;

use port::group::{Group, Share, Size};
use port::shm::PortMemory;
use protocol::name::PortName;
use protocol::{Attached, HostIf};
use ring::Region;
use ring::layout::PortLayout;
use ring::leaver::Leaver;

use super::{Crew, Site, Workers};
use crate::model::host::trust_group;
use crate::model::keys::GroupKey;
use crate::model::specs::{RingSpec, ShmSpec};

/// Memory of a port in a trust group, to be given back.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) group: GroupKey,
    pub(super) layout: PortLayout,
    /// Buffers that it was given there.
    pub(super) given: u32,
}

impl Workers {
    /// A port's memory: in its group's region, or in one of its own.
    pub(super) fn memory(&mut self, spec: &ShmSpec) -> io::Result<PortMemory> {
        let (name, rings) = (spec.name.to_string(), &spec.rings);
        let Some(group) = &spec.group else {
            return PortMemory::reserve(&name, rings.counts, rings.extra_bufs, rings.stride);
        };
        if !self.groups.contains_key(group) {
            let first = Some((rings.counts, rings.extra_bufs));
            let size = Size { bytes: spec.group_memory, stride: rings.stride, first };
            self.groups.insert(group.clone(), Group::new(&group.1, &size)?);
        }
        let joined = self.groups.get_mut(group).map_or_else(
            || Err(io::ErrorKind::NotFound.into()),
            |group| group.join(&name, rings.counts, rings.extra_bufs),
        );
        self.drop_empty_groups();
        joined
    }

    /// What an interface gets of the trust group that it is to be in, if that is one.
    pub(super) fn enrol(&mut self, wanted: &HostIf) -> io::Result<Option<Arc<Share>>> {
        let Some(group) = wanted.trust_group.as_deref().and_then(trust_group) else {
            return Ok(None);
        };
        let bell = self.host.ringer().clone();
        let declared = self.declared.find(&group).map(|group| group.memory);
        let bytes = declared.unwrap_or(self.new_group.bytes);
        let size = Size { bytes, ..self.new_group };
        let share = match self.groups.entry(group.clone()) {
            Entry::Occupied(it) => it.into_mut(),
            Entry::Vacant(place) => place.insert(Group::new(&group.1, &size)?),
        }
        .enrol(&group.1, &bell);
        self.drop_empty_groups();
        share.map(Some)
    }

    pub(super) fn drop_empty_groups(&mut self) {
        let empty = self.groups.iter().filter(|(_, group)| group.is_empty());
        let names: Vec<_> = empty.map(|(name, _)| name.clone()).collect();
        for group in names.iter().filter_map(|name| self.groups.remove(name)) {
            let bytes = group.region().layout().size();
            self.reclaimer.drop(group, bytes);
        }
    }

    /// A reserved port that will not be attached.
    pub(super) fn abandon(&mut self, site: &Site) {
        if let Some(group) = site.spec.group.as_ref().and_then(|group| self.groups.get_mut(group)) {
            group.abandon(site.memory.reservation.layout());
        }
        self.drop_empty_groups();
    }

    pub(super) fn give_back(&mut self, memory: Option<Memory>) {
        let Some(memory) = memory else { return };
        let Memory { group, layout, .. } = memory;
        let workers = &self.workers;
        if let Some(group) = self.groups.get_mut(&group) {
            group.leave(&layout, |leaver| settle(workers, &leaver));
        }
        self.drop_empty_groups();
    }
}

/// Everybody who shares memory with a port that leaves settles with it. Workers move frames in
/// between: a buffer of the leaver's that moves then, from who has not settled, is its receiver's.
pub(super) fn settle(workers: &[Crew], leaver: &Arc<Leaver>) {
    for Crew { handle, .. } in workers {
        let mut next = Some((0, 0));
        while let Some(from) = next {
            let leaver = leaver.clone();
            next = handle.call(move |worker| worker.settle(&leaver, from));
        }
    }
}

/// What a client has to know about its port's memory.
pub(super) fn geometry(
    name: &PortName,
    region: &Region,
    port: &PortLayout,
    rings: &RingSpec,
) -> Attached {
    let layout = region.layout();
    let counts = port.counts();
    Attached {
        port: name.clone(),
        bell: 0,
        region_bytes: layout.size() as u64,
        block: port.nifp() as u64,
        pool: layout.pool as u64,
        stride: layout.stride,
        buffers: layout.buffers,
        tx_rings: counts.tx_rings,
        rx_rings: counts.rx_rings,
        tx_slots: counts.tx_slots.slots(),
        rx_slots: counts.rx_slots.slots(),
        extra_bufs: rings.extra_bufs,
        peer_block: None,
        function: false,
    }
}
