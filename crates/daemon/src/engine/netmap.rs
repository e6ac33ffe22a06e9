//! Ports that netmap programs have bound: their regions, their holders and their doorbells.
//!
//! # Theory of operation
//!
//! netmap lets several processes bind the rings of one port: each of them is a *holder*. The worker
//! sees one port with rings, and wakes all its holders at once.
//!
//! ```text
//!   region ─┬─ port ──── rings ◄────────► worker (ServedBy::Switch), or no worker: a null port
//!           │   ├── holder: page (netmap_if), extra buffers, a doorbell for each process
//!           │   └── holder: …
//!           └─ port ── …
//! ```
//!
//! The control thread owns all of it: the regions by number (netmap's `nr_mem_id`), the ports by
//! key, the holders of each port by connection. It reserves memory first, and a `Build` commits the
//! pages elsewhere: no worker sees the port before.
//!
//! A holder of both sides of an interface (NIC and host) has its page at the first of the two
//! ports, and one doorbell for each process, which both ports ring. It loses both when one of the
//! ports goes. A region goes with its last port, unless a command keeps it.
//!
//! Limits: 64 doorbells for each holder, 65534 regions.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use port::netmap_region::{HolderMemory, NetmapRegion};
use port::reservation::Reservation;
use port::shm::plug;
use port::sys::{Waker, Wakers, new_event};
use protocol::name::PortName;
use protocol::{Attached, Bound, BoundRings, HostBound, Pool, PortGeometry};
use ring::abi::{NetmapRing, Slot};
use ring::held::{HeldRings, HeldSides};
use ring::krings::Krings;
use ring::layout::{PAGE, RingCounts};
use ring::leaver::Leaver;
use switch::{Clock, Mirror, PortConfig, Wake};

use super::memory::{geometry, reconcile};
use super::slow_calls::PeerOf;
use super::{PortPlace, Workers};
use crate::control::datapath::netmap::NetmapPorts;
use crate::control::datapath::regions::Regions;
use crate::model::error::DatapathError;
use crate::model::keys::{ConnKey, PortKey, SwitchKey};
use crate::model::opening::Build;
use crate::model::replies::{Binding, Lease};
use crate::model::specs::{BoundSpec, Claim, Mirrored, RegionSpec, RingSpec};

/// Most doorbells of one holder: processes that have copies of one descriptor.
const DOORBELLS: usize = 64;

/// A bound port: its region, its rings and its holders.
#[derive(Debug)]
pub struct BoundPlace {
    pub(super) name: PortName,
    /// The name in the `netmap_if` of its holders.
    pub(super) label: String,
    pub(super) served_by: ServedBy,
    pub(super) region: u16,
    pub(super) reservation: Arc<Reservation>,
    pub(super) holders: BTreeMap<ConnKey, HolderPlace>,
}

/// Where the frames of a bound port go.
#[derive(Debug)]
pub(super) enum ServedBy {
    /// A switch serves the port, from the moment it is plugged in.
    Switch(SwitchKey),
    /// No switch yet: the rings are reserved for a null port, or for a mirror, which gets the time
    /// if it has a clock.
    Reserved(Mirrored, Option<Clock>),
    /// No switch: a null port. When another port of the region goes, its slots are searched here.
    Null(Krings),
    /// The switch of `port` mirrors frames into the rings: a monitor at this place of the switch.
    Monitor { port: PortKey, place: usize },
    /// The switch mirrors the frames that it drops: a mirror at this place of the switch.
    Drops { switch: SwitchKey, place: usize },
    /// No switch for now: the port that the capture mirrored has no client.
    Waiting(Box<Mirror>),
    /// No switch any more: the port that the monitor mirrored is gone. The number of frames that it
    /// missed until then.
    Orphaned(u64),
}

impl ServedBy {
    /// Reconciles the slots of a null port with those of a port that leaves the region. Workers do
    /// it for the ports that they serve.
    pub(super) fn reconcile(&self, leaver: &Leaver) {
        if let Self::Null(rings) = self {
            rings.reconcile(leaver);
        }
    }
}

/// The memory and the doorbells of a holder.
#[derive(Debug)]
pub(super) struct HolderPlace {
    /// The holder's page and extra buffers; `None` at the second of its ports.
    memory: Option<Arc<HolderMemory>>,
    claim: Claim,
    pub(super) wakers: Vec<Arc<Waker>>,
    /// The port of the other side (NIC or host), if the holder has both.
    other: Option<PortKey>,
}

impl BoundPlace {
    /// A port with this memory, which no program holds yet.
    pub(super) fn new(
        name: PortName,
        label: String,
        served_by: ServedBy,
        region: u16,
        reservation: Arc<Reservation>,
    ) -> Self {
        Self { name, label, served_by, region, reservation, holders: BTreeMap::new() }
    }

    /// Sizes of the port's rings.
    pub fn rings(&self) -> RingSpec {
        let stride = self.reservation.region().stride();
        RingSpec { counts: self.reservation.layout().counts(), extra_bufs: 0, stride }
    }

    pub(super) fn wakers(&self) -> Wakers {
        let all = self.holders.values().flat_map(|holder| &holder.wakers);
        Wakers(all.cloned().collect())
    }
}

impl Workers {
    /// Reserves rings for a port in a region, which is made if need be. `shown` is the name in the
    /// port's own `netmap_if`. Returns the number of the region.
    pub(super) fn reserve_in(
        &mut self,
        region: &RegionSpec,
        name: &PortName,
        shown: &str,
        counts: RingCounts,
    ) -> Result<(u16, Arc<Reservation>), DatapathError> {
        let region = self.find_or_make_region(name, region)?;
        let memory = self.regions.get_mut(&region).expect("control knows which regions there are");
        let joined = memory.add_port(shown, counts);
        self.drop_region_if_empty(region);
        Ok((region, joined?.reservation))
    }

    fn find_or_make_region(
        &mut self,
        name: &PortName,
        region: &RegionSpec,
    ) -> Result<u16, DatapathError> {
        let new = match region {
            RegionSpec::Known(number) => return Ok(*number),
            RegionSpec::New(new) => new,
        };
        let number = self.next_region().ok_or(DatapathError::Full("memory regions"))?;
        let region = NetmapRegion::new(&name.to_string(), &new.parts, new.life.clone())?;
        self.region_numbers.advance(number);
        self.regions.insert(number, region);
        Ok(number)
    }

    /// The number of the next region.
    fn next_region(&self) -> Option<u16> {
        self.region_numbers.next(|number| self.regions.contains_key(&number))
    }

    fn drop_region_if_empty(&mut self, region: u16) {
        if !self.kept.contains(&region)
            && self.regions.get(&region).is_some_and(NetmapRegion::is_empty)
            && let Some(region) = self.regions.remove(&region)
        {
            let bytes = region.region().layout().size();
            self.reclaimer.drop(region, bytes);
        }
    }

    fn held_sides(&self, holds: &[(PortKey, Claim)]) -> HeldSides {
        let mut sides = HeldSides::default();
        for (port, claim) in holds {
            let bound = &self.bound[port];
            let (port, tx, rx) = (*bound.reservation.layout(), range(claim.tx), range(claim.rx));
            let is_host_side = bound.name.is_host_side();
            let side = if is_host_side { &mut sides.host } else { &mut sides.nic };
            *side = Some(HeldRings { port, tx, rx });
        }
        sides
    }

    /// Removes a port that no worker has any more, with its holders and its memory; `seen`: a
    /// worker had it.
    pub(super) fn remove_bound(&mut self, port: PortKey, seen: bool) {
        let holders = self.bound.get(&port).map(|bound| bound.holders.keys().copied().collect());
        let holders: Vec<ConnKey> = holders.unwrap_or_default();
        holders.into_iter().for_each(|holder| self.remove_holder(port, holder));
        let Some(bound) = self.bound.remove(&port) else { return };
        self.forget_memory(port);
        if let Some(region) = self.regions.get_mut(&bound.region) {
            let (workers, others, layout) =
                (&self.workers, &self.bound, bound.reservation.layout());
            let leave = |leaver: Arc<Leaver>| {
                reconcile(workers, &leaver);
                others.values().for_each(|place| place.served_by.reconcile(&leaver));
            };
            match seen {
                true => region.remove_port(layout, leave),
                false => region.abandon_port(layout),
            }
        }
        self.drop_region_if_empty(bound.region);
    }

    /// Tells the worker which holders to wake.
    fn update_wakers(&mut self, port: PortKey) {
        if self
            .bound
            .get(&port)
            .is_some_and(|bound| !matches!(bound.served_by, ServedBy::Switch(_)))
        {
            return self.update_unswitched_wakers(port);
        }
        let (Some(bound), Some((switch, id))) = (self.bound.get(&port), self.switch_of(port))
        else {
            return;
        };
        let wakers: Arc<dyn Wake> = Arc::new(bound.wakers());
        self.on_replicas(switch, move |worker, at| {
            if let Some(plug) = worker.switch(at).plug_mut(id) {
                plug.set_wake(wakers.clone());
            }
        });
    }

    /// Has the memory of a port moved to huge pages, as long as its region is paid for.
    pub(super) fn request_huge_pages(&self, port: PortKey) {
        let bound = &self.bound[&port];
        let life = Arc::downgrade(self.regions[&bound.region].life());
        self.huge_pages.request(&bound.reservation, life);
    }

    /// Notes where the memory is that a worker touches in steps for `port`: this one, or the one
    /// that it mirrors.
    pub(super) fn note_bound_memory(&self, whose: PortKey, port: PortKey) {
        let bound = &self.bound[&whose];
        let life = Arc::downgrade(self.regions[&bound.region].life());
        self.note_memory(whose, port, &bound.reservation, life);
    }

    /// Notes where the memory is that a worker touches in steps for any port of a switch.
    pub(super) fn note_drops_memory(&self, whose: PortKey, switch: SwitchKey) {
        let bound = &self.bound[&whose];
        let life = Arc::downgrade(self.regions[&bound.region].life());
        self.note_memory_of_switch(whose, switch, &bound.reservation, life);
    }

    fn region_fd(&self, port: PortKey) -> io::Result<OwnedFd> {
        self.regions[&self.bound[&port].region].fd().try_clone_to_owned()
    }

    /// What a new process kicks a port by. A port that no switch serves is kicked in vain.
    fn kick_of(&self, port: PortKey) -> io::Result<OwnedFd> {
        let Some(place) = self.ports.get(&port) else { return new_event() };
        let number = place.number;
        self.on_port(place, move |worker, _| worker.kick_copy(number))?.map_or_else(new_event, Ok)
    }

    /// A doorbell for a holder of a bound port, which is this user. Slow wake-ups of a monitor or a
    /// capture are reported for itself: its user is not that of the port that it mirrors.
    pub(super) fn bound_waker(&mut self, port: PortKey, user: u32) -> io::Result<(OwnedFd, Waker)> {
        let switch = match &self.bound[&port].served_by {
            ServedBy::Switch(switch) | ServedBy::Drops { switch, .. } => Some(*switch),
            ServedBy::Monitor { port, .. } => self.switch_of(*port).map(|at| at.0),
            ServedBy::Reserved(..)
            | ServedBy::Null(_)
            | ServedBy::Waiting(_)
            | ServedBy::Orphaned(_) => None,
        };
        self.waker(PeerOf { port, user, switch })
    }

    /// Has the kicks of a holder of both sides of an interface ring for both.
    fn connect_sides(&self, port: PortKey, other: PortKey) {
        let (Some(place), Some(beside)) = (self.ports.get(&port), self.ports.get(&other)) else {
            return;
        };
        let (number, beside) = (place.number, beside.number);
        self.on_port(place, move |worker, _| worker.connect_also(number, beside));
    }

    /// The layout of a port's memory, for a holder with this many extra buffers.
    fn attached(&self, port: PortKey, extra_bufs: u32) -> Attached {
        let bound = &self.bound[&port];
        let rings = RingSpec { extra_bufs, ..bound.rings() };
        let (region, layout) = (self.regions[&bound.region].region(), bound.reservation.layout());
        geometry(&bound.name, region, layout, &rings)
    }

    fn describe(&self, port: PortKey, holder: ConnKey) -> Bound {
        let bound = &self.bound[&port];
        let place = &bound.holders[&holder];
        let memory = place.memory.as_ref().expect("asked at the port where its page is");
        let host = place.other.map(|other| {
            let HolderPlace { claim: Claim { tx, rx, .. }, .. } =
                self.bound[&other].holders[&holder];
            Box::new(HostBound { attached: self.attached(other, 0), tx, rx })
        });
        let plugged = |place: &BoundPlace| matches!(place.served_by, ServedBy::Switch(_));
        let peer = bound.name.peer().filter(|_| plugged(bound));
        let is_peer = |other: &&BoundPlace| Some(&other.name) == peer.as_ref() && plugged(other);
        let peer = self.bound.values().find(is_peer);
        Bound {
            attached: self.attached(port, memory.extra_bufs()),
            nifp: memory.nifp() as u64,
            mem_id: bound.region,
            peer_block: peer.map(|other| other.reservation.layout().nifp() as u64),
            tx: place.claim.tx,
            rx: place.claim.rx,
            exclusive: place.claim.exclusive,
            no_tx_poll: place.claim.no_tx_poll,
            host,
        }
    }
}

fn range(rings: BoundRings) -> Range<u16> {
    rings.first..rings.first + rings.count
}

fn pool(part: &Range<usize>, size: usize) -> Pool {
    let narrow = |n: usize| u32::try_from(n).expect("a region is below 4 GiB");
    Pool { offset: part.start as u64, count: narrow(part.len() / size), size: narrow(size) }
}

impl NetmapPorts for Workers {
    fn reserve_bound(&mut self, spec: &BoundSpec) -> Result<u16, DatapathError> {
        self.next_place(spec.switch, self.place(spec.switch).home)?;
        let (name, counts) = (spec.name.clone(), spec.rings.counts);
        let (region, reservation) =
            self.reserve_in(&spec.region, &name, &name.to_string(), counts)?;
        let (label, served_by) = (name.netmap_name(), ServedBy::Switch(spec.switch));
        self.bound.insert(spec.key, BoundPlace::new(name, label, served_by, region, reservation));
        Ok(region)
    }

    fn reserve_holder(
        &mut self,
        holds: &[(PortKey, Claim)],
        parts: &[PortKey],
        holder: ConnKey,
        extra_bufs: u32,
    ) -> Result<(Build, u32), DatapathError> {
        let reservations: Vec<_> =
            parts.iter().map(|key| self.bound[key].reservation.clone()).collect();
        let (first, sides) = (&self.bound[&holds[0].0], self.held_sides(holds));
        let region = self.regions.get_mut(&first.region).expect("a port has a region");
        let memory = region.reserve_holder(&first.label, sides, extra_bufs)?;
        let granted = memory.extra_bufs();
        for (i, &(port, claim)) in holds.iter().enumerate() {
            let other = holds.iter().map(|hold| hold.0).find(|other| *other != port);
            let memory = Some(memory.clone()).filter(|_| i == 0);
            let place = HolderPlace { memory, claim, wakers: Vec::new(), other };
            let bound = self.bound.get_mut(&port).expect("control knows which ports there are");
            bound.holders.insert(holder, place);
        }
        let build = move || {
            reservations.into_iter().try_for_each(Reservation::build_while_wanted)?;
            memory.build_while_wanted()
        };
        Ok((Box::new(build), granted))
    }

    fn attach_bound(&mut self, key: PortKey, config: PortConfig) -> Result<(), DatapathError> {
        let bound = &self.bound[&key];
        let ServedBy::Switch(switch) = bound.served_by else {
            panic!("only ports of a switch are plugged in")
        };
        let reservation = bound.reservation.clone();
        // What programs bind is at the home of its switch: monitors mirror what this worker sees.
        let worker = self.place(switch).home;
        let (id, number) = self.next_place(switch, worker)?;
        let peer = PeerOf { port: key, user: config.user, switch: Some(switch) };
        let kick = self.kick(worker, new_event()?, peer);
        self.on_switch(switch, move |worker, _| worker.connect(number, kick))?;
        let port = plug(reservation.region(), reservation.layout(), Wakers(Vec::new()));
        let place = PortPlace { switch, id, worker, number, bytes: 0, memory: None, handles: None };
        self.plug(key, place, port, config);
        self.note_bound_memory(key, key);
        self.request_huge_pages(key);
        Ok(())
    }

    fn open_bound(
        &mut self,
        port: PortKey,
        holder: ConnKey,
        user: u32,
    ) -> Result<Binding, DatapathError> {
        let (region, kick) = (self.region_fd(port)?, self.kick_of(port)?);
        let (wake, waker) = self.bound_waker(port, user)?;
        let bound = self.bound.get_mut(&port).expect("control knows which ports there are");
        let place = bound.holders.get_mut(&holder).expect("control knows the holders");
        place.wakers.retain(|waker| !waker.is_deserted());
        if place.wakers.len() >= DOORBELLS {
            return Err(DatapathError::Full("processes with copies of one descriptor"));
        }
        place.wakers.push(Arc::new(waker));
        let (wakers, other) = (place.wakers.clone(), place.other);
        if let Some(place) =
            other.and_then(|key| self.bound.get_mut(&key)?.holders.get_mut(&holder))
        {
            place.wakers = wakers;
        }
        let reply = self.describe(port, holder);
        if let Some(other) = other {
            self.connect_sides(port, other);
        }
        other.into_iter().chain([port]).for_each(|port| self.update_wakers(port));
        let memory = &self.regions[&self.bound[&port].region];
        let lease = Lease::shared(memory.region().clone(), memory.life().clone());
        Ok(Binding { bound: reply, lease, region, kick, wake })
    }

    fn remove_holder(&mut self, port: PortKey, holder: ConnKey) {
        let Some(bound) = self.bound.get_mut(&port) else { return };
        let Some(HolderPlace { memory, other, .. }) = bound.holders.remove(&holder) else { return };
        if let (Some(memory), Some(region)) = (memory, self.regions.get_mut(&bound.region)) {
            region.release_holder(&memory);
        }
        self.update_wakers(port);
        if let Some(other) = other {
            self.remove_holder(other, holder);
        }
    }

    fn move_bound(
        &mut self,
        port: PortKey,
        name: &PortName,
        switch: SwitchKey,
        config: PortConfig,
    ) {
        self.orphan_monitors(port);
        let home = self.place(switch).home;
        let (id, _) = self.next_place(switch, home).expect("a new switch has room");
        let place = self.ports.get_mut(&port).expect("control knows which ports there are");
        let (number, left_id) = (place.number, std::mem::replace(&mut place.id, id));
        let left = std::mem::replace(&mut place.switch, switch);
        assert_eq!(self.place(left).home, home, "made beside it");
        let old = self.switches.get_mut(&left).expect("it was there");
        old.ids.give_back(left_id.index());
        old.keys.remove(&left_id);
        let new = self.switches.get_mut(&switch).expect("it is there");
        new.ids.take(id.index());
        new.keys.insert(id, port);
        self.note_move(port);
        self.on_switch(switch, move |worker, at| {
            let plug = worker.unplug(number).expect("it was plugged in");
            worker.plug(number, at, id, plug, config);
        });
        let bound = self.bound.get_mut(&port).expect("a port of netmap programs");
        (bound.name, bound.served_by) = (name.clone(), ServedBy::Switch(switch));
    }
}

impl Regions for Workers {
    fn keep_region(&mut self, region: &RegionSpec, name: &PortName) -> Result<u16, DatapathError> {
        let region = self.find_or_make_region(name, region)?;
        self.kept.push(region);
        Ok(region)
    }

    fn drop_region(&mut self, region: u16) {
        let at = self.kept.iter().position(|kept| *kept == region).expect("it was kept");
        self.kept.swap_remove(at);
        self.drop_region_if_empty(region);
    }

    fn region_sizes(&self, region: &RegionSpec, rings: &RingSpec) -> PortGeometry {
        let (number, parts) = match region {
            RegionSpec::Known(number) => (Some(*number), self.regions[number].parts()),
            RegionSpec::New(new) => (self.next_region(), &new.parts),
        };
        let layout = parts.layout();
        let slots = rings.counts.tx_slots.slots().max(rings.counts.rx_slots.slots()) as usize;
        let ring = size_of::<NetmapRing>() + slots * size_of::<Slot>();
        PortGeometry {
            mem_id: number.unwrap_or(0),
            region_bytes: layout.size() as u64,
            tx_rings: 0,
            rx_rings: 0,
            tx_slots: 0,
            rx_slots: 0,
            ifs: pool(&parts.holders, PAGE),
            rings: pool(&parts.blocks, ring),
            buffers: Pool {
                offset: layout.pool as u64,
                count: layout.buffers,
                size: layout.stride,
            },
        }
    }
}
