//! Memory of ports that clients attach: reserved here, given back when the port goes.
//!
//! # Theory of operation
//!
//! A port without a trust group has a region (a sealed memfd) of its own, which goes with the port.
//! The ports of a trust group share one region:
//!
//! ```text
//!   first member ──► the group's region is reserved, for all members to come
//!   each member  ──► block of rings and buffers in it ──► attached ──► leaves
//!                                                                        │ reconcile: workers take
//!   last member gone ──► the reclaimer unmaps the region ◄───────────────┘ its buffers back
//! ```
//!
//! The control thread owns the table of groups and reserves address ranges only. A `Build` commits
//! the pages in another thread; the reclaimer frees them. When a member leaves, its buffers may
//! stand in the rings of other members: each worker exchanges them for the members' own, in jobs of
//! bounded work, and only then is the memory free.
//!
//! Limits: a region is below 4 GiB; its size is fixed by its first member or by the configuration.

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
use crate::model::groups::trust_group;
use crate::model::keys::GroupKey;
use crate::model::specs::{RingSpec, ShmSpec};

/// Memory of a port in a trust group, which the daemon takes back when the port goes.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) group: GroupKey,
    pub(super) layout: PortLayout,
    /// Number of the port's buffers in the group's region.
    pub(super) given: u32,
}

impl Workers {
    /// Reserves a port's memory: in its group's region, or in a region of its own.
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

    /// Gives an interface its share of its trust group's region, if its configuration names one.
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

    /// Gives back the memory of a port that was reserved and will not be attached.
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
            group.leave(&layout, |leaver| reconcile(workers, &leaver));
        }
        self.drop_empty_groups();
    }
}

/// Has every worker take the leaver's buffers out of the rings of its ports, in several jobs. The
/// workers forward frames in between: a buffer of the leaver that moves then, out of a port that no
/// job has reached yet, belongs to its receiver.
pub(super) fn reconcile(workers: &[Crew], leaver: &Arc<Leaver>) {
    for Crew { handle, .. } in workers {
        let mut next = Some((0, 0));
        while let Some(from) = next {
            let leaver = leaver.clone();
            next = handle.call(move |worker| worker.reconcile(&leaver, from));
        }
    }
}

/// The layout of a port's memory, as its client has to know it.
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
