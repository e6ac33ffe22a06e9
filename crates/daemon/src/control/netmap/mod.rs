//! Calls of netmap programs: ports that several connections may hold, pipes, and regions to share.
//!
//! # Theory of operation
//!
//! ```text
//!        ┌─ no such port: made, in a region, without a holder ─┐     another thread
//!  bind ─┤                                                     ├─► joined ──► built ──► opened,
//!   │    └─ there ─────────────────────────────────────────────┘     │                  answered
//!   │ refused                    hang-up, port deleted, no memory: unbind
//!   └────────────────────► retire: what no client needs goes ◄───────┘
//! ```
//!
//! *Ports.* A port is made first and held afterwards, by any number of connections of one user, as
//! far as the rings that they claim go together. The first that is built plugs the port in. With
//! its last holder it goes, or loses its rings if it is permanent; the parent of pipes goes with
//! its last pipe.
//!
//! *Two sides.* A bind may ask for an interface and the host's side of it together. Both are made,
//! and held, or neither is, and the second is in the region of the first.
//!
//! *Pipes.* Both ends of a pipe are ports of a switch of their own, the *patch*, in the region of
//! their parent, which is made with the first of them if need be.
//!
//! *Regions.* `Place` says where a port is to be: in the region that its program names, in that of
//! its interface or of its other side, or in a new one, for which its user pays.
//!
//! Null ports, monitors and captures are `unswitched`: they have rings and one holder, and no name
//! among the ports.

pub mod refusal;
pub mod regions;
mod unswitched;

use std::os::fd::OwnedFd;

use ::port::netmap_region::Needs;
use protocol::name::PortName;
use protocol::{
    Bind, BindKind, BoundRings, GeometryQuery, HostRings, PortGeometry, PortKind, Reply,
};
use ring::layout::RingCounts;
use switch::{Forwarding, OnFull, PortConfig, SwitchConfig};

use super::{Answer, Client, Control};
use crate::control::datapath::Datapath;
use crate::control::interfaces::refusal::InterfaceRefusal;
use crate::control::netmap::refusal::NetmapRefusal;
use crate::control::netmap::regions::{Place, needs_of, refused};
use crate::control::ports::attach::{Building, when_paid};
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::Refusal;
use crate::control::state::shared::{Binder, COMMON, Interface, Region, Shared};
use crate::control::state::{Port, Wish};
use crate::model::keys::{ConnKey, PortKey, SwitchKey};
use crate::model::opening::Build;
use crate::model::policy::{Access, Caller};
use crate::model::replies::Binding;
use crate::model::settings;
use crate::model::settings::RequestedRings;
use crate::model::specs::{BoundSpec, Claim, RegionSpec, RingSpec};

impl<D: Datapath> Control<D> {
    /// Reserves what a program binds; [`Control::finish`] is to be called when it is built.
    pub(super) fn bind(&mut self, client: &Client, bind: &Bind) -> Result<Build, Refusal> {
        self.check_stalls(&client.caller)?;
        if let Some(port) = self.state.bound_by(client.conn) {
            return Err(NetmapRefusal::BoundAlready(port.clone()).into());
        }
        let bind = &Bind { port: self.state.resolve(&bind.port), ..bind.clone() };
        if bind.kind != BindKind::Port {
            return self.bind_unswitched(client, bind);
        }
        let mut sides = vec![bind.clone()];
        let bound = self.find_or_make_sides(client, &mut sides);
        let bound = bound.and_then(|()| self.join(client, &sides));
        if bound.is_err() {
            sides.iter().for_each(|side| self.retire(&side.port));
        }
        bound
    }

    /// The answer for a program whose port was built.
    pub(super) fn finish_bind(&mut self, conn: ConnKey, name: &PortName) -> Answer {
        let sides = self.state.sides_bound_by(conn);
        let parts: Vec<_> = sides.iter().flat_map(|side| self.state.parts(side)).collect();
        for part in parts {
            let port = self.state.find_port(&part).expect("parts of a port are there");
            let (key, config) = (port.key, port.config.clone());
            if !port.is_live() {
                self.datapath.attach_bound(key, config)?;
                let port = self.state.port_mut(&part).and_then(|port| port.bound.as_mut());
                port.expect("it is bound").ready = true;
                self.refresh_port(&part);
            }
        }
        self.open_bound(conn, name)
    }

    pub(super) fn resume(&mut self, client: &Client) -> Answer {
        if let Some(unswitched) = self.state.unswitched_of(client.conn) {
            let name = unswitched.name.clone();
            let (key, uid) = (unswitched.key, unswitched.shared.uid);
            let binding = self.datapath.open_bound(key, client.conn, uid)?;
            return Ok(self.bound_answer(client.conn, &name, binding));
        }
        let name = self.state.bound_by(client.conn).ok_or(NetmapRefusal::NothingBound)?.clone();
        self.open_bound(client.conn, &name)
    }

    fn open_bound(&mut self, conn: ConnKey, name: &PortName) -> Answer {
        let port = self.state.find_port(name).expect("a port is a part of itself");
        let (key, uid) = (port.key, port.bound.as_ref().expect("it is bound").uid);
        let binding = self.datapath.open_bound(key, conn, uid)?;
        Ok(self.bound_answer(conn, name, binding))
    }

    /// The answer to a program that has bound a port, and from now on has its memory.
    pub(super) fn bound_answer(
        &mut self,
        conn: ConnKey,
        name: &PortName,
        binding: Binding,
    ) -> (Reply, Vec<OwnedFd>) {
        let Binding { bound, lease, region, kick, wake } = binding;
        self.lease(conn, name, lease);
        (Reply::Bound(bound), vec![region, kick, wake])
    }

    /// Takes back what a connection has bound.
    pub(super) fn unbind(&mut self, conn: ConnKey) {
        if let Some(unswitched) = self.state.remove_unswitched(conn) {
            return self.datapath.remove_unswitched(unswitched.key);
        }
        let sides = self.state.sides_bound_by(conn);
        for side in &sides {
            let key = self.state.remove_binder(side, conn);
            self.datapath.remove_holder(key, conn);
        }
        sides.iter().for_each(|side| self.retire(side));
    }

    /// A bound port goes when no client needs it any more; the parent of a pipe with its last pipe.
    pub(super) fn retire(&mut self, name: &PortName) {
        let parent = name.pipe().map(|_| name.parent());
        let family = self.state.port_and_pipes(name);
        for name in family.iter().chain(&parent) {
            if self.state.shared(name).is_some() && self.state.is_idle(name) {
                let gone = self.state.release(name);
                self.account_gone(name, &gone);
            }
        }
    }
}

/// Making ports.
impl<D: Datapath> Control<D> {
    /// The port that is asked for, and after it the other side of the interface, where that is
    /// asked for too.
    fn find_or_make_sides(
        &mut self,
        client: &Client,
        sides: &mut Vec<Bind>,
    ) -> Result<(), Refusal> {
        let bind = sides[0].clone();
        if let Some(HostRings { tx_rings, rx_rings }) = bind.host {
            if !bind.port.is_interface() || bind.port.pipe().is_some() {
                return Err(InterfaceRefusal::NoHostSide(bind.port).into());
            }
            let port = bind.port.host_side()?;
            sides.push(Bind { port, tx_rings, rx_rings, room: None, ..bind.clone() });
        }
        let host = sides.get(1).map(|host| self.planned_rings(host).counts);
        self.find_or_make_bound(client, &bind, host.as_slice())?;
        let Some(host) = sides.get_mut(1) else { return Ok(()) };
        host.mem_id = self.state.shared(&bind.port).expect("made just now").region.mem_id;
        self.find_or_make_bound(client, host, &[])
    }

    /// Rings of a port whose program may say.
    fn planned_rings(&self, bind: &Bind) -> RingSpec {
        settings::bound_rings(&RequestedRings::from(bind), &self.defaults.rings)
    }

    /// The port that is asked for. Those of `company` come after it, into its region.
    fn find_or_make_bound(
        &mut self,
        client: &Client,
        bind: &Bind,
        company: &[RingCounts],
    ) -> Result<(), Refusal> {
        let caller = &client.caller;
        if let Some(shared) = self.state.shared(&bind.port) {
            let mem_id = shared.region.mem_id;
            let requested = self.state.region(caller, bind.mem_id)?;
            let any = bind.mem_id == 0 && bind.room.is_none();
            return match any || requested.is_some_and(|region| region.mem_id == mem_id) {
                true => Ok(()),
                false => Err(NetmapRefusal::OtherRegion { port: bind.port.clone(), mem_id }.into()),
            };
        }
        if bind.port.pipe().is_some() {
            return self.make_bound_pipe(client, bind, &bind.port.parent());
        }
        self.check_place(caller, &bind.port)?;
        let rings = self.planned_rings(bind);
        self.make_bound(client, bind, &bind.port, rings, company)
    }

    /// Whether a port may come into being where there is none yet.
    fn check_place(&self, caller: &Caller, port: &PortName) -> Result<(), Refusal> {
        if self.state.home(port).is_some() {
            return Ok(());
        }
        if port.is_interface() {
            return self.check_host(caller, port);
        }
        // The name of an interface stands for it, in whatever switch.
        let interface = PortName::interface(port.port()).ok();
        let home = interface.and_then(|name| self.state.home(&name));
        let owner = home.and_then(|home| self.state.owner_of(&home));
        match owner {
            Some(owner) if owner == caller.uid => {
                Err(InterfaceRefusal::NotAttached(port.clone()).into())
            }
            _ => Ok(()),
        }
    }

    /// Whether the caller may make this port; how much memory it takes of its region.
    fn check_bound(
        &self,
        caller: &Caller,
        name: &PortName,
        rings: &RingSpec,
    ) -> Result<u64, Refusal> {
        let memory = self.datapath.memory_of(rings);
        let memory = memory.ok_or_else(|| PortRefusal::TooLarge(name.clone()))?;
        let wish = Wish { port: name, memory: 0, group: None, existing: false, alone: false };
        self.state.check(caller, &wish).map(|()| memory)
    }

    /// Makes a port of a switch, which no client holds yet.
    fn make_bound(
        &mut self,
        client: &Client,
        bind: &Bind,
        name: &PortName,
        rings: RingSpec,
        company: &[RingCounts],
    ) -> Result<(), Refusal> {
        let own = self.state.interface(name).cloned();
        let stride = bind.room.map_or(rings.stride, |room| room.stride);
        let rings = own.as_ref().map_or(RingSpec { stride, ..rings }, |interface| interface.rings);
        let memory = self.check_bound(&client.caller, name, &rings)?;
        let place = self.place_in_region(&client.caller, bind, name, rings, company)?;
        let switch = self.find_or_make(&client.caller, name.switch())?;
        let key = PortKey(self.state.new_key());
        let config = self.state.find_port(name).map(|port| port.config.clone());
        let config = config.unwrap_or_default();
        let spec = BoundSpec { key, name: name.clone(), switch, rings, region: place.spec() };
        let made = self.datapath.reserve_bound(&spec).map_err(|error| place.refused(error));
        if made.is_err()
            && let Some(switch) = self.state.forget_switch(name.switch())
        {
            self.datapath.del_switch(switch);
        }
        let is_new = own.is_none();
        let common = own.map_or(bind.mem_id == COMMON, |interface| interface.common);
        let region = place.region(made?);
        let shared = Shared { common, memory, ..new_shared(region, client.caller.uid) };
        let port = Port { config, ..bound_port(client, key, PortKind::Shm, shared) };
        self.state.add_bound(name, port);
        self.note_user(name, client.caller.uid);
        // The parent of a pipe need not be one of the system.
        let of_the_system = || hostif::exists(name.interface_name());
        if name.is_interface() && is_new && of_the_system() {
            self.check_host(&client.caller, name)?;
            self.connect_host(name, switch, key)?;
        }
        Ok(())
    }

    /// The region in which a port is made, with those that come after it.
    fn place_in_region(
        &self,
        caller: &Caller,
        bind: &Bind,
        name: &PortName,
        rings: RingSpec,
        company: &[RingCounts],
    ) -> Result<Place, Refusal> {
        let region = self.state.region(caller, bind.mem_id)?;
        let region = self.region_of(caller, name, bind.mem_id, region)?;
        let ports = [&[rings.counts], company].concat();
        let needs = Needs::new(rings.stride, &ports, bind.extra_bufs);
        self.place(caller.uid, region.filter(|_| bind.room.is_none()), &needs, bind.room)
    }

    /// The region in which a port is made, if not in a new one: an interface has its own, and both
    /// sides of one of the system have the same.
    fn region_of(
        &self,
        caller: &Caller,
        name: &PortName,
        mem_id: u16,
        requested: Option<Region>,
    ) -> Result<Option<Region>, Refusal> {
        let other_side = || {
            let shared = self.state.shared(&name.other_side()?)?;
            (shared.uid == caller.uid).then(|| shared.region.clone())
        };
        let Some(Interface { region: own, .. }) = self.state.interface(name) else {
            return Ok(requested.or_else(other_side));
        };
        match mem_id == 0 || requested.is_some_and(|region| region.mem_id == own.mem_id) {
            true => Ok(Some(own.clone())),
            false => {
                Err(NetmapRefusal::OtherRegion { port: name.clone(), mem_id: own.mem_id }.into())
            }
        }
    }

    /// Makes both ends of a pipe, and its parent where there is none.
    fn make_bound_pipe(
        &mut self,
        client: &Client,
        bind: &Bind,
        parent: &PortName,
    ) -> Result<(), Refusal> {
        let other = bind.port.peer().expect("a pipe has two ends");
        if self.state.shared(parent).is_none() {
            let rings = self.defaults.rings;
            let end = settings::bound_rings(&RequestedRings::from(bind), &of_a_pipe(rings));
            let ends = [end.counts, turned(end).counts];
            self.make_bound(client, bind, parent, rings, &ends)?;
        }
        let shared = self.state.shared(parent).expect("made just now");
        let region = shared.region.clone();
        // The parent's owner is the caller, or the caller shares no memory with it.
        let nothing = BoundRings { first: 0, count: 0 };
        let look = Claim { tx: nothing, rx: nothing, exclusive: false, no_tx_poll: false };
        self.state.check_rings(&client.caller, parent, &look)?;
        let rings = settings::bound_rings(&RequestedRings::from(bind), &self.pipe_rings(parent));
        let ends = [(&bind.port, rings), (&other, turned(rings))];
        for (end, rings) in ends {
            self.check_bound(&client.caller, end, &rings)?;
        }
        let patch = self.make_patch()?;
        for (name, rings) in ends {
            let made = self.make_end(client, name, rings, patch, &region);
            if made.is_err() && self.state.shared(&bind.port).is_none() {
                self.datapath.del_switch(patch);
            }
            made?;
        }
        Ok(())
    }

    /// Rings of a pipe whose program does not say: one, of its parent's size.
    fn pipe_rings(&self, parent: &PortName) -> RingSpec {
        let slots = self.state.find_port(parent).map(|port| port.key);
        let parent =
            slots.and_then(|key| self.datapath.rings_of(key)).unwrap_or(self.defaults.rings);
        of_a_pipe(parent)
    }

    /// The switch of a pipe: what comes in at one port goes out at the other, when there is room.
    fn make_patch(&mut self) -> Result<SwitchKey, Refusal> {
        let key = SwitchKey(self.state.new_key());
        let config = SwitchConfig { forwarding: Forwarding::Patch, ..SwitchConfig::default() };
        self.datapath.add_switch(key, config, None)?;
        Ok(key)
    }

    fn make_end(
        &mut self,
        client: &Client,
        name: &PortName,
        rings: RingSpec,
        patch: SwitchKey,
        region: &Region,
    ) -> Result<(), Refusal> {
        let memory = self.check_bound(&client.caller, name, &rings)?;
        let key = PortKey(self.state.new_key());
        let config = PortConfig { on_full: OnFull::Wait, ..PortConfig::of_user(client.caller.uid) };
        let (name, place) = (name.clone(), RegionSpec::Known(region.mem_id));
        let spec = BoundSpec { key, name, switch: patch, rings, region: place };
        self.datapath.reserve_bound(&spec).map_err(|error| refused(error, region))?;
        let name = &spec.name;
        let patch = Some(patch);
        let shared = Shared { memory, patch, ..new_shared(region.clone(), client.caller.uid) };
        let port = Port { config, ..bound_port(client, key, PortKind::Pipe, shared) };
        self.state.add_bound(name, port);
        Ok(())
    }
}

/// Holding them.
impl<D: Datapath> Control<D> {
    /// Reserves for a connection its rings of a port that is there, or of both sides of one. The
    /// first has its extra buffers.
    fn join(&mut self, client: &Client, sides: &[Bind]) -> Result<Build, Refusal> {
        let holds = sides.iter().map(|bind| self.may_hold(client, bind));
        let holds = holds.collect::<Result<Vec<_>, _>>()?;
        let (key, bind) = (holds[0].0, &sides[0]);
        let stride = self.datapath.rings_of(key).expect("a bound port has rings").stride;
        let region = self.state.shared(&bind.port).expect("it is bound").region.clone();
        let parts: Vec<_> = sides.iter().flat_map(|side| self.state.parts(&side.port)).collect();
        let keys: Vec<PortKey> =
            parts.iter().filter_map(|name| self.state.find_port(name).map(|p| p.key)).collect();
        let held = self.datapath.reserve_holder(&holds, &keys, client.conn, bind.extra_bufs);
        let (build, mut granted) = held.map_err(|error| refused(error, &region))?;
        let build = self.when_closed(client.caller.uid, build);
        for (side, (_, claim)) in sides.iter().zip(holds) {
            let holder = binder(client, claim, std::mem::take(&mut granted), stride);
            self.state.add_binder(&side.port, holder);
        }
        let building = Building { name: bind.port.clone(), key, bound: true };
        self.pending.building.insert(client.conn, building);
        Ok(self.build_when_paid(&region, build))
    }

    /// What is built in a region of which no client has memory yet waits until its user can pay.
    pub(super) fn build_when_paid(&self, region: &Region, build: Build) -> Build {
        let owed = self.state.is_untouched(region).then(|| self.state.owed(region.charge.uid));
        when_paid(owed.flatten(), build)
    }

    /// Whether a connection may hold what it asks for of a port that is there. Changes nothing.
    fn may_hold(&self, client: &Client, bind: &Bind) -> Result<(PortKey, Claim), Refusal> {
        let port = self.state.port(&client.caller, &bind.port, Access::Attach)?;
        self.state.may_attach(&client.caller, &bind.port)?;
        let (key, header) = (port.key, port.config.vnet_header);
        if header != 0 && !bind.accepts_header {
            return Err(NetmapRefusal::HasHeader(bind.port.clone()).into());
        }
        let rings = self.datapath.rings_of(key).expect("a bound port has rings");
        let claim = claim(bind, rings.counts)?;
        self.state.check_rings(&client.caller, &bind.port, &claim)?;
        self.state.check_service(&bind.port, client.caller.process, false)?;
        Ok((key, claim))
    }

    pub(super) fn port_geometry(
        &mut self,
        caller: &Caller,
        query: &GeometryQuery,
    ) -> Result<Reply, Refusal> {
        let planned = settings::bound_rings(&RequestedRings::from(query), &self.defaults.rings);
        let Some(name) = &query.port else {
            let region = self.state.region(caller, query.mem_id)?;
            let region = self.planned(caller.uid, region, &planned)?;
            let mut sizes = self.datapath.region_sizes(&region, &planned);
            sizes.mem_id = if query.mem_id <= COMMON { COMMON } else { sizes.mem_id };
            return Ok(Reply::PortGeometry(sizes));
        };
        let name = &self.state.resolve(name);
        let (region, rings) = match self.state.shared(name) {
            Some(shared) => {
                let region = Some(shared.region.clone());
                let key = self.state.port(caller, name, Access::Look)?.key;
                (region, self.datapath.rings_of(key).unwrap_or(planned))
            }
            None => {
                if name.pipe().is_none() {
                    self.check_place(caller, name)?;
                }
                let region = self.state.region(caller, query.mem_id)?;
                let region = self.region_of(caller, name, query.mem_id, region)?;
                (region, self.state.interface(name).map_or(planned, |own| own.rings))
            }
        };
        let is_new = region.is_none();
        let mut sizes = self.sizes(&self.planned(caller.uid, region, &rings)?, &rings);
        if is_new && name.is_interface() {
            // As netmap's network cards do: a program may ask for the number that it was told.
            sizes.mem_id = COMMON;
        }
        Ok(Reply::PortGeometry(sizes))
    }

    /// The region in which a port with these rings is or would be made.
    fn planned(
        &self,
        uid: u32,
        region: Option<Region>,
        rings: &RingSpec,
    ) -> Result<RegionSpec, Refusal> {
        let needs = needs_of(rings, 0);
        // Only what makes a port is refused for want of quota.
        let new = || {
            let paid = self.new_region(uid, &needs, None);
            paid.or_else(|_| self.restored_region(uid, &needs))
        };
        region.map_or_else(new, |region| Ok(Place::Known(region))).map(|place| place.spec())
    }

    /// Sizes of a port with these rings and of its region.
    pub(super) fn sizes(&self, region: &RegionSpec, rings: &RingSpec) -> PortGeometry {
        let sizes = self.datapath.region_sizes(region, rings);
        let RingCounts { tx_rings, rx_rings, tx_slots, rx_slots } = rings.counts;
        let (tx_slots, rx_slots) = (tx_slots.slots(), rx_slots.slots());
        PortGeometry { tx_rings, rx_rings, tx_slots, rx_slots, ..sizes }
    }
}

/// The rings that a program binds.
pub(super) fn claim(bind: &Bind, counts: RingCounts) -> Result<Claim, Refusal> {
    let Some([tx, rx]) = bind.rings_of(counts.tx_rings, counts.rx_rings) else {
        let last = counts.tx_rings.max(counts.rx_rings) - 1;
        let text = format!("port {} has rings 0 to {last}, and no others", bind.port);
        return Err(Refusal::bad_value(text));
    };
    Ok(Claim { tx, rx, exclusive: bind.exclusive, no_tx_poll: bind.no_tx_poll })
}

/// What the other end of a pipe has: one's transmit rings are the other's receive rings.
fn turned(rings: RingSpec) -> RingSpec {
    let RingCounts { tx_rings, rx_rings, tx_slots, rx_slots } = rings.counts;
    let counts = RingCounts {
        tx_rings: rx_rings,
        rx_rings: tx_rings,
        tx_slots: rx_slots,
        rx_slots: tx_slots,
    };
    RingSpec { counts, ..rings }
}

/// Rings of a pipe's end like those of its parent.
fn of_a_pipe(parent: RingSpec) -> RingSpec {
    RingSpec { counts: RingCounts { tx_rings: 1, rx_rings: 1, ..parent.counts }, ..parent }
}

pub(super) fn new_shared(region: Region, uid: u32) -> Shared {
    Shared { ready: false, region, common: false, uid, memory: 0, holders: Vec::new(), patch: None }
}

/// A connection that has bound rings, with the extra buffers that it got.
pub(super) fn binder(client: &Client, claim: Claim, granted: u32, stride: u32) -> Binder {
    Binder {
        conn: client.conn,
        pid: client.caller.pid,
        process: client.caller.process,
        name: client.name.clone(),
        memory: u64::from(granted) * u64::from(stride),
        claim,
    }
}

fn bound_port(client: &Client, key: PortKey, kind: PortKind, shared: Shared) -> Port {
    Port { bound: Some(shared), ..Port::new(key, kind, client.caller.uid) }
}
