//! The workers as the control plane uses them: [`Datapath`] on real threads.
//!
//! Control knows switches and ports by keys that are never used twice. This file keeps what stands
//! behind each key: the worker, the place in it, the number that a client writes to the doorbell,
//! and the memory. Everything that can fail (memory, descriptors) is done before a worker hears of
//! it; a job for a worker cannot fail. Memory is committed by a [`Build`], and given back by the
//! [`Sweeper`]: both take as long as the memory is large, and nobody else waits for them.

mod audit;
mod bound;
mod cable;
mod fdb;
mod host;
mod lone;
mod machine;
mod memory;
mod open;
mod stats;
mod system;
mod twins;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use packet::{MacAddr, PortId, VlanId};
use port::group::{Group, Size};
use port::netmap_region::NetmapRegion;
use port::null::NullPort;
use port::pipe::{self, Pipe};
use port::shm::{self, PortMemory, plug};
use port::sys::Waker;
use protocol::name::{PipeSide, PortName};
use protocol::{FdbCounters, HostIf, HostIfInfo, MachineInfo, PortGeometry, PortKind, PortStats};
use ring::table::HugeTable;
use switch::chain::{Report, Tables};
use switch::{Plug, PortConfig, Switch, SwitchConfig};

use crate::config::{Config, WaitPolicy};
use crate::control::counters;
use crate::control::datapath::Datapath;
use crate::control::declared::Declared;
use crate::model::audit::Audited;
use crate::model::error::{DatapathError, MakeHostError, MakeMachineError};
use crate::model::keys::{ConnKey, GroupKey, PipeKey, PortKey, SwitchKey};
use crate::model::opening::{Build, Opening};
use crate::model::replies::{Attachment, Binding, FdbRow};
use crate::model::specs::{
    BoundSpec, Claim, HostSpec, MachineSpec, RingSpec, ShmSpec, UnswitchedSpec,
};
use crate::start::{StartError, raise_descriptor_limit};
use crate::sweeper::Sweeper;
use crate::worker::Worker;
use crate::worker::handle::{WorkerHandle, WorkerOptions, check_cores};
use crate::worker::idle::{IdleStrategy, Spin};
use bound::BoundPlace;
use host::HostPorts;
use machine::MachinePlace;
use memory::{Memory, geometry};
use open::Closing;
use stats::{counted, shown};
use system::{random_seed, usable_cpus};

/// Turns without work after which a worker sleeps.
const YIELDS: u32 = 100;

/// All workers, and where everything is.
#[derive(Debug)]
pub struct Workers {
    workers: Vec<Crew>,
    switches: BTreeMap<SwitchKey, SwitchPlace>,
    ports: BTreeMap<PortKey, PortPlace>,
    /// Trust groups, by user and name.
    groups: BTreeMap<GroupKey, Group>,
    /// What the region of one is like that begins with an interface.
    new_group: Size,
    declared: Declared,
    /// Ports that are reserved, and not attached yet.
    sites: BTreeMap<PortKey, Site>,
    pipes: BTreeMap<PipeKey, Pipe>,
    /// Ports of netmap programs, and their regions by number.
    bound: BTreeMap<PortKey, BoundPlace>,
    regions: BTreeMap<u16, NetmapRegion>,
    /// Regions that stay without ports; as often as they were asked to.
    kept: Vec<u16>,
    host: HostPorts,
    /// Ports of machines. Their threads end by themselves, and nobody waits for that.
    machines: BTreeMap<PortKey, MachinePlace>,
    sweeper: Sweeper,
    /// Interfaces whose ports are gone, for another thread to close.
    closing: Vec<Closing>,
}

/// A worker and the places that are taken in it.
#[derive(Debug)]
struct Crew {
    handle: WorkerHandle,
    switches: Places,
    ports: Places,
}

/// Numbers from 0 on; the lowest free one is given out first.
#[derive(Debug, Default)]
struct Places(Vec<bool>);

impl Places {
    fn free(&self) -> usize {
        self.0.iter().position(|taken| !taken).unwrap_or(self.0.len())
    }

    fn take(&mut self, place: usize) {
        self.0.resize(self.0.len().max(place + 1), false);
        self.0[place] = true;
    }

    fn give_back(&mut self, place: usize) {
        self.0[place] = false;
    }

    fn taken(&self) -> usize {
        self.0.iter().filter(|taken| **taken).count()
    }
}

#[derive(Debug)]
struct SwitchPlace {
    worker: usize,
    at: usize,
    ids: Places,
    keys: BTreeMap<PortId, PortKey>,
}

#[derive(Debug)]
struct PortPlace {
    switch: SwitchKey,
    id: PortId,
    number: u32,
    /// Bytes of its region, if nobody else holds it.
    bytes: usize,
    memory: Option<Memory>,
}

/// A port that is reserved.
#[derive(Debug)]
struct Site {
    spec: ShmSpec,
    memory: PortMemory,
}

impl Workers {
    /// Starts the workers, with what the configuration says of trust groups' regions.
    ///
    /// # Errors
    /// No descriptors or threads left, or a core that is not there.
    pub fn start(all: &Config) -> Result<Self, StartError> {
        let config = &all.workers;
        raise_descriptor_limit();
        check_cores(&config.cpus)?;
        let strategy = match config.wait {
            WaitPolicy::Auto => IdleStrategy::auto(YIELDS, config.count, usable_cpus()),
            WaitPolicy::Yield => IdleStrategy { yields: YIELDS, spin: Spin::Never },
            WaitPolicy::Spin => IdleStrategy { yields: 0, spin: Spin::Always },
            WaitPolicy::Block => IdleStrategy { yields: 0, spin: Spin::Never },
        };
        let failed = |error| StartError::Workers { count: config.count, error };
        let sweeper = Sweeper::start().map_err(failed)?;
        let mut cpus = config.cpus.iter().copied().cycle();
        let start = |number| {
            let options = WorkerOptions { strategy, cpu: cpus.next(), batch: config.batch };
            let handle = WorkerHandle::spawn(number, options, sweeper.clone())?;
            Ok(Crew { handle, switches: Places::default(), ports: Places::default() })
        };
        let workers = (0..config.count).map(start).collect::<io::Result<_>>();
        let workers = workers.map_err(failed)?;
        Ok(Self {
            workers,
            switches: BTreeMap::new(),
            ports: BTreeMap::new(),
            groups: BTreeMap::new(),
            new_group: all.new_group(),
            declared: Declared::of(all),
            sites: BTreeMap::new(),
            pipes: BTreeMap::new(),
            bound: BTreeMap::new(),
            regions: BTreeMap::new(),
            kept: Vec::new(),
            host: HostPorts::new().map_err(failed)?,
            machines: BTreeMap::new(),
            sweeper,
            closing: Vec::new(),
        })
    }

    fn place(&self, switch: SwitchKey) -> &SwitchPlace {
        &self.switches[&switch]
    }

    /// Runs `job` on the worker of a switch, with the switch's place.
    fn on_switch<R: Send + 'static>(
        &self,
        switch: SwitchKey,
        job: impl FnOnce(&mut Worker, usize) -> R + Send + 'static,
    ) -> R {
        let SwitchPlace { worker, at, .. } = *self.place(switch);
        self.workers[worker].handle.call(move |worker| job(worker, at))
    }

    /// Where the next port of a switch goes: its number in the switch, and at the worker.
    fn next_place(&self, switch: SwitchKey) -> Result<(PortId, u32), DatapathError> {
        let place = self.place(switch);
        let full = || DatapathError::Full("ports of one switch: 4096 is the limit");
        let id = PortId::new(place.ids.free()).ok_or_else(full)?;
        let number = u32::try_from(self.workers[place.worker].ports.free()).ok();
        Ok((id, number.filter(|n| *n < crate::worker::CONTROL).ok_or_else(full)?))
    }

    /// Plugs a finished port in. Cannot fail.
    fn plug(&mut self, key: PortKey, place: PortPlace, plug: Plug, config: PortConfig) {
        let PortPlace { switch, id, number, .. } = place;
        let home = self.switches.get_mut(&switch).expect("control made the switch");
        home.ids.take(id.index());
        home.keys.insert(id, key);
        self.workers[home.worker].ports.take(number as usize);
        self.ports.insert(key, place);
        self.on_switch(switch, move |worker, at| worker.plug(number, at, id, plug, config));
    }

    fn switch_of(&self, port: PortKey) -> Option<(SwitchKey, PortId)> {
        self.ports.get(&port).map(|place| (place.switch, place.id))
    }
}

impl Datapath for Workers {
    fn workers(&self) -> u32 {
        u32::try_from(self.workers.len()).unwrap_or(u32::MAX)
    }

    fn worker_of(&self, switch: SwitchKey) -> u32 {
        u32::try_from(self.place(switch).worker).unwrap_or(u32::MAX)
    }

    fn add_switch(
        &mut self,
        key: SwitchKey,
        config: SwitchConfig,
        beside: Option<SwitchKey>,
    ) -> Result<(), DatapathError> {
        let taken = |worker: &usize| self.workers[*worker].switches.taken();
        let worker = match beside {
            Some(other) => Some(self.place(other).worker),
            None => (0..self.workers.len()).min_by_key(taken),
        };
        let worker = worker.ok_or(DatapathError::Full("switches: there is no worker"))?;
        let (at, seed) = (self.workers[worker].switches.free(), random_seed());
        self.workers[worker].switches.take(at);
        let place = SwitchPlace { worker, at, ids: Places::default(), keys: BTreeMap::new() };
        self.switches.insert(key, place);
        let switch = Switch::new(config, seed, HugeTable::new);
        self.on_switch(key, move |worker, at| worker.add_switch(at, switch));
        Ok(())
    }

    fn set_switch(&mut self, key: SwitchKey, config: SwitchConfig) -> Result<(), DatapathError> {
        let flows = self.on_switch(key, move |worker, at| worker.switch(at).set_config(config));
        self.sweeper.run(move || drop(flows));
        Ok(())
    }

    fn steer(&mut self, key: SwitchKey, tables: Option<Tables>) {
        let old = self.on_switch(key, move |worker, at| match tables {
            Some(tables) => {
                let now = worker.now();
                (Some(worker.switch(at).steer(tables, now)), None)
            }
            None => (None, worker.switch(at).steer_no_more()),
        });
        self.sweeper.run(move || drop(old));
    }

    fn steering(&mut self, key: SwitchKey) -> Option<Report> {
        self.on_switch(key, |worker, at| worker.switch(at).steering())
    }

    fn groups(&self) -> Vec<GroupKey> {
        self.groups.keys().cloned().collect()
    }

    fn has_group(&self, group: &GroupKey) -> bool {
        self.groups.contains_key(group)
    }

    fn audit(&mut self, group: &GroupKey, from: PortKey) -> Option<Audited> {
        self.audit_group(group, from)
    }

    fn tell(&mut self, port: PortKey) {
        let Some((switch, id)) = self.switch_of(port) else { return };
        self.on_switch(switch, move |worker, at| {
            if let Some(Plug::Rings(host, wake)) = worker.switch(at).plug_mut(id) {
                host.tell();
                wake.wake();
            }
        });
    }

    fn del_switch(&mut self, key: SwitchKey) {
        let old = self.on_switch(key, Worker::remove_switch);
        self.sweeper.run(move || drop(old));
        if let Some(place) = self.switches.remove(&key) {
            self.workers[place.worker].switches.give_back(place.at);
        }
    }

    fn memory_of(&self, rings: &RingSpec) -> Option<u64> {
        let layout = shm::region_layout(rings.counts, rings.extra_bufs, rings.stride);
        layout.ok().map(|layout| layout.size() as u64)
    }

    fn pipe_memory_of(&self, rings: &RingSpec) -> Option<u64> {
        let layout = pipe::region_layout(rings.counts, rings.extra_bufs, rings.stride);
        layout.ok().map(|layout| layout.size() as u64)
    }

    fn reserve_shm(&mut self, spec: &ShmSpec) -> Result<Build, DatapathError> {
        self.next_place(spec.switch)?;
        let memory = self.memory(spec)?;
        let reservation = memory.reservation.clone();
        self.sites.insert(spec.key, Site { spec: spec.clone(), memory });
        Ok(Box::new(move || reservation.build_while_wanted()))
    }

    fn attach_shm(
        &mut self,
        port: PortKey,
        config: PortConfig,
    ) -> Result<Attachment, DatapathError> {
        let switch = self.sites[&port].spec.switch;
        let (id, number) = self.next_place(switch)?;
        let (wake, waker) = Waker::new()?;
        let kick = self.workers[self.place(switch).worker].handle.client_end()?;
        // From here on nothing fails.
        let Site { spec, memory } = self.sites.remove(&port).expect("looked up just now");
        let (region, layout) = (memory.reservation.region(), *memory.reservation.layout());
        let given = spec.rings.buffers();
        let group = spec.group.map(|group| Memory { group, layout, given });
        let bytes = if group.is_some() { 0 } else { region.layout().size() };
        let place = PortPlace { switch, id, number, bytes, memory: group };
        self.plug(port, place, plug(region, &layout, waker), config);
        let mut geometry = geometry(&spec.name, region, &layout, &spec.rings);
        geometry.bell = number;
        Ok(Attachment { geometry, region: memory.fd, kick, wake })
    }

    fn reserve_bound(&mut self, spec: &BoundSpec) -> Result<u16, DatapathError> {
        self.plan_bound(spec)
    }

    fn reserve_holder(
        &mut self,
        holds: &[(PortKey, Claim)],
        parts: &[PortKey],
        holder: ConnKey,
        extra_bufs: u32,
    ) -> Result<(Build, u32), DatapathError> {
        self.lend(holds, parts, holder, extra_bufs)
    }

    fn attach_bound(&mut self, port: PortKey, config: PortConfig) -> Result<(), DatapathError> {
        self.plug_bound(port, config)
    }

    fn resume(&mut self, port: PortKey, holder: ConnKey) -> Result<Binding, DatapathError> {
        self.admit(port, holder)
    }

    fn remove_holder(&mut self, port: PortKey, holder: ConnKey) {
        self.end_loan(port, holder);
    }

    fn rings_of(&self, port: PortKey) -> Option<RingSpec> {
        let bound = self.bound.get(&port).map(BoundPlace::rings);
        bound.or_else(|| self.plugged_rings(port))
    }

    fn reserve_lone(&mut self, spec: &UnswitchedSpec) -> Result<u16, DatapathError> {
        self.plan_lone(spec)
    }

    fn attach_lone(&mut self, port: PortKey) {
        self.start_lone(port);
    }

    fn remove_lone(&mut self, port: PortKey) {
        self.drop_lone(port);
    }

    fn keep_region(
        &mut self,
        region: Option<u16>,
        name: &PortName,
        rings: &RingSpec,
    ) -> Result<u16, DatapathError> {
        let region = match region {
            Some(region) => region,
            None => self.make_region(name, rings, None)?,
        };
        self.kept.push(region);
        Ok(region)
    }

    fn drop_region(&mut self, region: u16) {
        let at = self.kept.iter().position(|kept| *kept == region).expect("it was kept");
        self.kept.swap_remove(at);
        self.drop_region_if_empty(region);
    }

    fn region_sizes(&self, region: Option<u16>, rings: &RingSpec) -> PortGeometry {
        self.sizes(region, rings)
    }

    fn add_null(
        &mut self,
        port: PortKey,
        switch: SwitchKey,
        config: PortConfig,
    ) -> Result<(), DatapathError> {
        let (id, number) = self.next_place(switch)?;
        let place = PortPlace { switch, id, number, bytes: 0, memory: None };
        self.plug(port, place, Plug::Adapter(Box::new(NullPort)), config);
        Ok(())
    }

    fn add_machine(&mut self, spec: &MachineSpec) -> Result<(), MakeMachineError> {
        self.open_machine(spec)
    }

    fn add_silent(&mut self, spec: &MachineSpec, why: String) -> Result<(), MakeMachineError> {
        self.plug_silent(spec, why)
    }

    fn machine_info(&self, port: PortKey) -> Option<MachineInfo> {
        self.describe_machine(port)
    }

    fn add_cable(
        &mut self,
        ends: [(PortKey, SwitchKey, PortConfig); 2],
    ) -> Result<(), DatapathError> {
        self.lay_cable(ends)
    }

    fn move_bound(
        &mut self,
        port: PortKey,
        name: &PortName,
        switch: SwitchKey,
        config: PortConfig,
    ) {
        self.replant(port, name, switch, config);
    }

    fn add_host(&mut self, spec: &HostSpec) -> Result<(), MakeHostError> {
        self.open_host(spec)
    }

    fn opening(
        &mut self,
        switch: Option<SwitchKey>,
        kind: PortKind,
        host: &HostIf,
        given: Vec<OwnedFd>,
    ) -> Option<(Opening, Build)> {
        self.begin_host(switch, kind, host, given).ok()
    }

    fn forget_opening(&mut self, opening: Opening) {
        self.sweeper.run(move || drop(opening));
    }

    fn closing(&mut self) -> Option<Build> {
        open::close(std::mem::take(&mut self.closing))
    }

    fn close_later(&mut self) {
        let closing = std::mem::take(&mut self.closing);
        self.sweeper.run(move || drop(closing));
    }

    fn add_soon(&mut self, spec: &HostSpec) -> Result<(), MakeHostError> {
        self.open_soon(spec)
    }

    fn await_interfaces(&mut self, patience: Duration) {
        self.await_opened(patience);
    }

    fn host_info(&self, port: PortKey) -> Option<HostIfInfo> {
        self.describe_host(port)
    }

    fn host_bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.host_fd())
    }

    fn hear_host(&mut self) {
        self.tend_host();
        self.tend_machines();
        self.drop_empty_groups();
    }

    fn detach(&mut self, port: PortKey, name: &PortName) -> PortStats {
        if let Some(site) = self.sites.remove(&port) {
            self.abandon(&site);
            let bytes = site.memory.reservation.region().layout().size();
            self.sweeper.drop(site, bytes);
            return counters::none(name.clone());
        }
        self.blind_monitors(port);
        // Nothing may be counted between the last look and the end: one job does both.
        let Some(place) = self.ports.remove(&port) else {
            self.remove_bound(port, false);
            return counters::none(name.clone());
        };
        let (number, id) = (place.number, place.id);
        let (counted, abandoned, unplugged) = self.on_switch(place.switch, move |worker, at| {
            let switch = worker.switch(at);
            let (counted, abandoned) = (counted(switch, id), switch.in_rings(id));
            (counted, abandoned, worker.unplug(number))
        });
        match self.host.has(port) {
            true => self.closing.extend(unplugged.map(Closing)),
            false => self.sweeper.drop(unplugged, place.bytes),
        }
        if let Some(home) = self.switches.get_mut(&place.switch) {
            home.ids.give_back(place.id.index());
            home.keys.remove(&place.id);
            self.workers[home.worker].ports.give_back(number as usize);
        }
        self.give_back(place.memory);
        self.host.forget(port).into_iter().for_each(|opening| self.forget_opening(opening));
        self.machines.remove(&port);
        self.remove_bound(port, true);
        PortStats { abandoned, ..shown(name.clone(), &counted) }
    }

    fn number_of(&self, port: PortKey) -> Option<u16> {
        self.switch_of(port).map(|(_, id)| id.number())
    }

    fn set_port(&mut self, port: PortKey, config: PortConfig) {
        if let Some((switch, id)) = self.switch_of(port) {
            self.on_switch(switch, move |worker, at| worker.switch(at).set_port(id, config));
        }
    }

    fn add_pipe(&mut self, pipe: PipeKey, rings: &RingSpec) -> Result<(), DatapathError> {
        let made = Pipe::new("pipe", rings.counts, rings.extra_bufs, rings.stride)?;
        self.pipes.insert(pipe, made);
        Ok(())
    }

    fn build_pipe(&mut self, pipe: PipeKey) -> Build {
        let reservation = self.pipes[&pipe].reservation().clone();
        Box::new(move || reservation.build_while_wanted())
    }

    fn open_pipe(
        &mut self,
        pipe: PipeKey,
        side: PipeSide,
        name: &PortName,
    ) -> Result<Attachment, DatapathError> {
        let end = match side {
            PipeSide::Master => 0,
            PipeSide::Slave => 1,
        };
        let open = self.pipes[&pipe].open(end)?;
        let counts = open.layout.counts();
        let (extra_bufs, stride) = (open.extra_bufs, open.region.stride());
        let rings = RingSpec { counts, extra_bufs, stride };
        let mut geometry = geometry(name, &open.region, &open.layout, &rings);
        geometry.peer_block = Some(open.peer.nifp() as u64);
        Ok(Attachment { geometry, region: open.fd, kick: open.kick, wake: open.wake })
    }

    fn del_pipe(&mut self, pipe: PipeKey) {
        if let Some(pipe) = self.pipes.remove(&pipe) {
            let bytes = pipe.reservation().region().layout().size();
            self.sweeper.drop(pipe, bytes);
        }
    }

    fn stats(&mut self, ports: &[(PortKey, PortName)]) -> Vec<PortStats> {
        ports.iter().map(|(key, name)| self.stats_of(*key, name.clone())).collect()
    }

    fn fdb_count(&mut self, switch: SwitchKey) -> (usize, FdbCounters) {
        self.count_stations(switch)
    }

    fn fdb_page(
        &mut self,
        switch: SwitchKey,
        cursor: u64,
        max: usize,
    ) -> (Vec<FdbRow>, Option<u64>) {
        self.page_of_stations(switch, cursor, max)
    }

    fn fdb_add(&mut self, port: PortKey, mac: MacAddr, vlan: VlanId) -> Result<(), DatapathError> {
        self.add_station(port, mac, vlan)
    }

    fn fdb_del(&mut self, switch: SwitchKey, mac: MacAddr, vlan: VlanId) -> bool {
        self.on_switch(switch, move |worker, at| {
            worker.switch(at).bridge_mut().remove_entry(vlan, mac)
        })
    }

    fn fdb_flush(&mut self, switch: SwitchKey, port: Option<PortKey>) {
        self.forget_stations(switch, port);
    }
}

impl Workers {
    fn stats_of(&self, key: PortKey, name: PortName) -> PortStats {
        let Some((switch, id)) = self.switch_of(key) else { return counters::none(name) };
        let counted = self.on_switch(switch, move |worker, at| counted(worker.switch(at), id));
        shown(name, &counted)
    }
}

#[cfg(test)]
mod tests;
