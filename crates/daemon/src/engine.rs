//! The engine: [`Datapath`] on worker threads.
//!
//! # Theory of operation
//!
//! ```text
//!   control thread                              worker threads
//!   Control ──► Workers ── Job, doorbell ─────► Worker: switches, ports, frames
//!               │ keys ► places   ◄── reply ──┘
//!               ├── Build ────► a thread that commits memory or opens an interface
//!               ├── Reclaimer ► a thread that frees memory and closes descriptors
//!               ├── HugePages ► a thread that moves the memory of ports to huge pages
//!               └── SlowMemory► a thread that reads the memory of ports to see which is slow
//! ```
//!
//! [`Workers`] belongs to the control thread. Control names switches and ports by keys that it
//! never uses twice. This module keeps what stands behind each key: the worker, the place in it,
//! the number that a client writes to the doorbell, and the memory.
//!
//! The control thread does everything that can fail (memory, descriptors) before a worker hears of
//! it: a job for a worker cannot fail. A job runs between two turns of the worker, so it is short,
//! and the control thread waits for its end. What takes long with the size of the memory does
//! neither of them: a [`Build`] commits memory, and the [`Reclaimer`] frees it. No client waits for
//! [`HugePages`].
//!
//! A switch belongs to one worker, its *home*. A switch of all workers has a replica at each: its
//! ports are spread over the workers, and each replica knows all of them (`Workers::plug`).
//! Control tells every replica what concerns the switch (`Workers::on_replicas`), and the port's
//! worker what concerns its frames (`Workers::on_port`).
//!
//! Limits: 4096 ports for each switch; 64 workers; a switch of one worker stays there.
//!
//! [`Build`]: crate::model::opening::Build
//! [`Datapath`]: crate::control::datapath::Datapath

mod audit;
mod duplicates;
mod fdb;
mod hand_over;
pub mod huge_pages;
mod interfaces;
mod machines;
mod mdb;
mod memory;
mod mirrors;
mod moves;
mod netmap;
pub mod notices;
mod open;
mod pipes;
mod ports;
mod programs;
pub mod reclaimer;
mod region_numbers;
mod security;
mod slow_calls;
mod slow_memory;
mod stats;
mod switches;
mod system;
mod traces;
mod unswitched;
pub mod usage;
mod vxlan;
pub mod watchdog;
pub mod worker;
mod workers;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use packet::PortId;
use port::group::{Group, Size};
use port::netmap_region::NetmapRegion;
use port::pipe::Pipe;
use port::shm::PortMemory;
use port::sys::Ringer;
use port::vxlan::address::Addresses;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::gettid;
use switch::{Heartbeat, Plug, PortConfig};

use crate::config::{Config, WaitPolicy};
use crate::control::groups::declared::Declared;
use crate::engine::huge_pages::HugePages;
use crate::engine::reclaimer::Reclaimer;
use crate::engine::watchdog::{Alarm, Watchdog, Watched};
use crate::engine::worker::Worker;
use crate::engine::worker::handle::{WorkerHandle, WorkerOptions, check_cpus};
use crate::engine::worker::idle::{IdleStrategy, Spin};
use crate::engine::worker::peers::Peers;
use crate::model::error::DatapathError;
use crate::model::keys::{GroupKey, PipeKey, PortKey, SwitchKey};
use crate::model::specs::ShmSpec;
use crate::start::{StartError, raise_descriptor_limit};
use hand_over::Handles;
use interfaces::HostPorts;
use machines::MachinePlace;
use memory::Memory;
use netmap::BoundPlace;
use notices::Notices;
use open::Closing;
use region_numbers::RegionNumbers;
use slow_calls::{Probations, SlowReports};
use slow_memory::SlowMemory;
use stats::{Counted, counted};
use system::{random_seed, usable_cpus};
use vxlan::VxlanPlace;

/// Turns without work after which a worker sleeps.
const YIELDS: u32 = 100;

/// All workers, and the places of all switches and ports in them.
#[derive(Debug)]
pub struct Workers {
    workers: Vec<Crew>,
    /// Places of switches, the same at all workers.
    places: Places,
    switches: BTreeMap<SwitchKey, SwitchPlace>,
    ports: BTreeMap<PortKey, PortPlace>,
    /// Trust groups, by user and name.
    groups: BTreeMap<GroupKey, Group>,
    /// Size of the region of a group whose first member is an interface.
    new_group: Size,
    declared: Declared,
    /// Ports that are reserved, and not attached yet.
    sites: BTreeMap<PortKey, Site>,
    pipes: BTreeMap<PipeKey, Pipe>,
    /// Ports of netmap programs, and their regions by number.
    bound: BTreeMap<PortKey, BoundPlace>,
    regions: BTreeMap<u16, NetmapRegion>,
    region_numbers: RegionNumbers,
    /// Regions that stay without ports: one entry for each request that keeps one.
    kept: Vec<u16>,
    host: HostPorts,
    /// Ports of virtual machines. Their threads end by themselves; the daemon does not wait for
    /// them.
    machines: BTreeMap<PortKey, MachinePlace>,
    /// Ports of tunnels, and the addresses that they share.
    tunnels: BTreeMap<PortKey, VxlanPlace>,
    addresses: Addresses,
    reclaimer: Reclaimer,
    huge_pages: HugePages,
    watchdog: Watchdog,
    slow_memory: SlowMemory,
    slow_reports: SlowReports,
    /// The probations of users.
    probations: Probations,
    /// The control thread's, until it takes it.
    heartbeat: Option<Heartbeat>,
    notices: Notices,
    /// Interfaces whose ports are gone, for another thread to close.
    closing: Vec<Closing>,
    /// The workers take no frames before all ports are there.
    wait: bool,
}

/// A worker and the places that are taken in it.
#[derive(Debug)]
struct Crew {
    handle: WorkerHandle,
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
    /// The worker that runs the switch; if all do, the one that ages the addresses and has the
    /// ports of netmap programs.
    home: usize,
    /// All workers have a replica.
    is_spread: bool,
    at: usize,
    ids: Places,
    keys: BTreeMap<PortId, PortKey>,
}

#[derive(Debug)]
struct PortPlace {
    switch: SwitchKey,
    id: PortId,
    worker: usize,
    number: u32,
    /// Bytes of the port's region, if no other port is in it.
    bytes: usize,
    memory: Option<Memory>,
    /// Descriptors for the next daemon, if the port can be handed over.
    handles: Option<Handles>,
}

/// What is left of a port.
struct Unplugged {
    plug: Option<Plug>,
    last: Counted,
    /// Slots with frames in its rings.
    abandoned: u64,
}

/// A port that is reserved.
#[derive(Debug)]
struct Site {
    spec: ShmSpec,
    worker: usize,
    memory: PortMemory,
}

/// Descriptors that the daemon needs beside its workers, to start and for one client with a port.
const SPARE_DESCRIPTORS: usize = 20;

impl Workers {
    /// Starts the workers.
    ///
    /// # Errors
    /// No descriptors or threads left, or a CPU that is not there.
    pub fn start(all: &Config) -> Result<Self, StartError> {
        let config = &all.workers;
        raise_descriptor_limit();
        check_cpus(&config.cpus)?;
        let strategy = match config.wait {
            WaitPolicy::Auto => IdleStrategy::auto(YIELDS, config.count, usable_cpus()),
            WaitPolicy::Yield => IdleStrategy { yields: YIELDS, spin: Spin::Never },
            WaitPolicy::Spin => IdleStrategy { yields: 0, spin: Spin::Always },
            WaitPolicy::Block => IdleStrategy { yields: 0, spin: Spin::Never },
        };
        let failed = |error| StartError::Workers { count: config.count, error };
        let reclaimer = Reclaimer::start().map_err(failed)?;
        let huge_pages = HugePages::start().map_err(failed)?;
        let (host, notices) = (HostPorts::new().map_err(failed)?, Notices::default());
        let (alarm, mut cpus) = (Alarm::default(), config.cpus.iter().copied().cycle());
        let start = |number| {
            let options = WorkerOptions { strategy, cpu: cpus.next(), batch: config.batch };
            let sender = notices.sender(host.ringer().clone());
            let (reclaimer, alarm) = (reclaimer.clone(), alarm.clone());
            let handle = WorkerHandle::spawn(number, options, reclaimer, sender, alarm)?;
            Ok(Crew { handle, ports: Places::default() })
        };
        let workers = (0..config.count).map(start).collect::<io::Result<_>>();
        let workers: Vec<Crew> = workers.map_err(failed)?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC);
        let spare = (0..SPARE_DESCRIPTORS).map(|_| event()).collect::<Result<Vec<_>, _>>();
        drop(spare.map_err(|error| failed(error.into()))?);
        introduce(&workers);
        let heartbeat = Heartbeat::default();
        let name = "the control thread".to_owned();
        let control = Watched { heartbeat: heartbeat.reader(), thread: gettid(), name };
        let watched = workers.iter().enumerate();
        let watched = watched.map(|(at, crew)| crew.handle.watched(format!("worker {at}")));
        let watched = watched.chain([control]);
        let slow_reports = SlowReports::default();
        let (slow_memory, queue) = SlowMemory::start(slow_reports.sender()).map_err(failed)?;
        let watchdog = Watchdog::start(watched.collect(), &alarm, queue).map_err(failed)?;
        Ok(Self {
            workers,
            places: Places::default(),
            switches: BTreeMap::new(),
            ports: BTreeMap::new(),
            groups: BTreeMap::new(),
            new_group: all.new_group(),
            declared: Declared::of(all),
            sites: BTreeMap::new(),
            pipes: BTreeMap::new(),
            bound: BTreeMap::new(),
            regions: BTreeMap::new(),
            region_numbers: RegionNumbers::new(random_seed()),
            kept: Vec::new(),
            host,
            machines: BTreeMap::new(),
            tunnels: BTreeMap::new(),
            addresses: Addresses::default(),
            reclaimer,
            huge_pages,
            watchdog,
            slow_memory,
            slow_reports,
            probations: Probations::default(),
            heartbeat: Some(heartbeat),
            notices,
            closing: Vec::new(),
            wait: false,
        })
    }

    fn place(&self, switch: SwitchKey) -> &SwitchPlace {
        &self.switches[&switch]
    }

    /// Runs `job` on the home of a switch, with the switch's place.
    fn on_switch<R: Send + 'static>(
        &self,
        switch: SwitchKey,
        job: impl FnOnce(&mut Worker, usize) -> R + Send + 'static,
    ) -> R {
        let SwitchPlace { home, at, .. } = *self.place(switch);
        self.workers[home].handle.call(move |worker| job(worker, at))
    }

    /// Runs `job` on the worker of a port, with the switch's place.
    fn on_port<R: Send + 'static>(
        &self,
        place: &PortPlace,
        job: impl FnOnce(&mut Worker, usize) -> R + Send + 'static,
    ) -> R {
        let at = self.place(place.switch).at;
        self.workers[place.worker].handle.call(move |worker| job(worker, at))
    }

    /// Runs `job` on all workers of a switch one after the other, with the switch's place.
    fn on_replicas<R: Send + 'static>(
        &self,
        switch: SwitchKey,
        job: impl FnOnce(&mut Worker, usize) -> R + Clone + Send + 'static,
    ) -> Vec<R> {
        let at = self.place(switch).at;
        let run = |worker: usize| {
            let job = job.clone();
            self.workers[worker].handle.call(move |worker| job(worker, at))
        };
        self.workers_of(switch).map(run).collect()
    }

    /// The workers that run a switch: one, or all.
    fn workers_of(&self, switch: SwitchKey) -> Range<usize> {
        let place = self.place(switch);
        if place.is_spread { 0..self.workers.len() } else { place.home..place.home + 1 }
    }

    /// Runs a job on each worker that runs a switch besides its home, with the switch's place.
    fn on_others<R: Send + 'static, J: FnOnce(&mut Worker, usize) -> R + Send + 'static>(
        &self,
        switch: SwitchKey,
        mut job: impl FnMut() -> J,
    ) -> Vec<R> {
        let SwitchPlace { home, at, .. } = *self.place(switch);
        let others = self.workers_of(switch).filter(|&other| other != home);
        let run = |other: usize| {
            let job = job();
            self.workers[other].handle.call(move |worker| job(worker, at))
        };
        others.map(run).collect()
    }

    /// The worker for the next port of a switch: the wanted one, or the one with the fewest ports,
    /// counting those that are reserved.
    fn next_worker(&self, switch: SwitchKey, wanted: Option<u32>) -> usize {
        let workers = self.workers_of(switch);
        let wanted = wanted.and_then(|number| usize::try_from(number).ok());
        if let Some(wanted) = wanted.filter(|number| workers.contains(number)) {
            return wanted;
        }
        let reserved = |it| self.sites.values().filter(|site| site.worker == it).count();
        let ports = |&it: &usize| self.workers[it].ports.taken() + reserved(it);
        workers.min_by_key(ports).expect("a switch has a worker")
    }

    /// The place of a switch's next port at a worker: its number in the switch, and at the worker.
    fn next_place(&self, switch: SwitchKey, worker: usize) -> Result<(PortId, u32), DatapathError> {
        let full = || DatapathError::Full("ports of one switch: 4096 is the limit");
        let id = PortId::new(self.place(switch).ids.free()).ok_or_else(full)?;
        let number = u32::try_from(self.workers[worker].ports.free()).ok();
        Ok((id, number.ok_or_else(full)?))
    }

    /// The place of a switch's next port, which has no region of its own.
    fn new_place(
        &self,
        switch: SwitchKey,
        config: &PortConfig,
    ) -> Result<PortPlace, DatapathError> {
        let worker = self.next_worker(switch, config.worker);
        let (id, number) = self.next_place(switch, worker)?;
        Ok(PortPlace { switch, id, worker, number, bytes: 0, memory: None, handles: None })
    }

    /// Has a worker do something. While the workers wait for ports, nothing waits for the worker:
    /// it moves no frame before it has done all.
    fn tell(&self, worker: usize, job: impl FnOnce(&mut Worker) + Send + 'static) {
        let handle = &self.workers[worker].handle;
        if self.wait { handle.post(job) } else { handle.call(job) }
    }

    /// Plugs a finished port in. Cannot fail. All other workers of the switch know the port before
    /// its own, which takes its first frames.
    fn plug(&mut self, key: PortKey, place: PortPlace, plug: Plug, config: PortConfig) {
        let PortPlace { switch, id, number, worker, .. } = place;
        let home = self.switches.get_mut(&switch).expect("control made the switch");
        home.ids.take(id.index());
        home.keys.insert(id, key);
        self.workers[worker].ports.take(number as usize);
        let plug = if home.is_spread { plug.into_common() } else { plug };
        let at = home.at;
        for other in self.workers_of(switch).filter(|&other| other != worker) {
            let (plug, config) = (plug.for_delivery(), config.clone());
            let job = move |worker: &mut Worker| worker.add_elsewhere(at, id, plug, config);
            self.tell(other, job);
        }
        self.tell(worker, move |worker| worker.plug(number, at, id, plug, config));
        self.ports.insert(key, place);
    }

    /// Unplugs a port: first its own worker, then the others, so that none delivers to it any more.
    /// Returns its last counters.
    fn unplug(&self, place: &PortPlace) -> Unplugged {
        let &PortPlace { switch, id, number, worker, .. } = place;
        let (mut last, plug) = self.on_port(place, move |worker, at| {
            worker.disconnect(number);
            // Nothing may be counted between the last look and the end: one job does both.
            (counted(worker, at, id), worker.unplug(number))
        });
        let at = self.place(switch).at;
        for other in self.workers_of(switch).filter(|&other| other != worker) {
            let job = move |worker: &mut Worker| {
                let last = counted(worker, at, id);
                (last, worker.remove_elsewhere(at, id))
            };
            let (more, handle) = self.workers[other].handle.call(job);
            last.add(&more);
            // Here the plug itself stays, so nothing takes long to free.
            drop(handle);
        }
        let (plug, abandoned) = self.on_port(place, move |_, _| {
            let mut plug = plug;
            let abandoned = plug.as_mut().map_or(0, Plug::in_rings);
            (plug, abandoned)
        });
        Unplugged { plug, last, abandoned }
    }

    /// The doorbell of a worker.
    fn ringer_of(&self, worker: usize) -> Ringer {
        self.workers[worker].handle.ringer().clone()
    }

    fn switch_of(&self, port: PortKey) -> Option<(SwitchKey, PortId)> {
        self.ports.get(&port).map(|place| (place.switch, place.id))
    }
}

/// Makes the workers known to each other.
fn introduce(workers: &[Crew]) {
    let peers = Peers::new(workers.iter().map(|crew| crew.handle.ringer().clone()));
    for (number, crew) in (0..).zip(workers) {
        let peers = peers.clone();
        crew.handle.call(move |worker| worker.join(number, peers));
    }
}

#[cfg(test)]
mod tests;
