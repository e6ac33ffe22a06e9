//! The switch at rest: ports come and go, settings change, counters are read.
//!
//! A `Switch` owns its ports, the bridge with its tables, its mirrors, and the tables of its chains
//! if its forwarding function is `chain`. One worker owns the switch, and calls it between two
//! batches. [`crate::turn`] moves the frames.

use packet::PortId;
use ring::cursor::Index;
use ring::doorbell::store_load_fence;
use ring::kring::RxKring;
use ring::leaver::Leaver;
use ring::shared::Shared;
use ring::waiters::Waiters;

use crate::chain::cache::{FlowCache, MapTable};
use crate::chain::{Report, Steering, Tables};
use crate::decide::bridge::security::Guard;
use crate::decide::bridge::{Bridge, News};
use crate::decide::egress::{VerdictCache, Verdicts};
use crate::mirror::{
    CopyRate, DropMirrors, Mirror, MirrorPoint, MirrorSource, Mirrors, PortMirrors,
};
use crate::model::config::{COPIES, OnFull, PortConfig, SwitchConfig};
use crate::model::heartbeat::{Heartbeat, Stage};
use crate::model::now::Now;
use crate::model::patience::Patience;
use crate::model::port::{Full, Plug};
use crate::model::stats::{PortStats, QueueStats};

/// A switch.
pub struct Switch {
    pub(crate) bridge: Bridge,
    pub(crate) ports: Vec<Option<Box<Entry>>>,
    pub(crate) mirrors: Mirrors,
    /// Where mirrors get the frames that the switch drops.
    pub(crate) drop_mirrors: Option<Box<DropMirrors>>,
    /// Most frames that a turn takes before the switch knows whether it floods them.
    pub(crate) staged_max: usize,
    /// Where the forwarding function is `chain`.
    pub(crate) steering: Option<Box<Steering>>,
    seed: u64,
    /// Maps the tables of the flow cache.
    map: MapTable,
}

/// A port in its switch.
pub(crate) struct Entry {
    pub(crate) plug: Plug,
    pub(crate) stats: PortStats,
    /// The last verdict for its frames, and some before it.
    pub(crate) cache: VerdictCache,
    pub(crate) verdicts: Verdicts,
    pub(crate) on_full: OnFull,
    /// The port has got something in this turn, and its client may sleep.
    pub(crate) rung: bool,
    /// The client asked for a wake-up, and may not be woken yet.
    pub(crate) owes_wake: bool,
    /// The worker has been told that a wake-up is owed, and asks until it is not.
    pub(crate) is_owing: bool,
    /// Most frames of its next turn, from each ring.
    pub(crate) turn_frames: u32,
    /// The patience with the client of each of its receive rings.
    pub(crate) patience: Box<[Patience]>,
    /// The patience of its own frames with others' rings.
    pub(crate) own_patience: Patience,
    /// What the next frame waits for, and the generation of the bridge before it said so.
    pub(crate) waits: Option<(Full, u64)>,
    /// The mirrors of the port.
    pub(crate) mirrors: Option<Box<PortMirrors>>,
}

/// A port on its way from one replica of a switch to another.
pub struct GivenPort {
    plug: Plug,
    guard: Option<Box<Guard>>,
    /// How far its transmit rings are mirrored.
    sent: Vec<Index>,
}

impl Entry {
    /// Exchanges the plug for one of the same port, at the worker that takes its frames or at
    /// another one.
    fn exchange(&mut self, plug: Plug) -> Plug {
        self.waits = None;
        let queues = plug.queues().max(self.stats.queues.len());
        self.stats.queues.resize(queues, QueueStats::default());
        std::mem::replace(&mut self.plug, plug)
    }

    /// Wakes the client of a port with rings, now or later; returns whether it was now.
    pub(crate) fn wake_or_owe(&mut self, heartbeat: &mut Heartbeat, id: PortId) -> bool {
        let Plug::Rings(_, wake) = &self.plug else { return false };
        let is_woken = wake.try_wake(&mut |stage| heartbeat.beat(stage, id));
        self.owes_wake = !is_woken;
        self.stats.wakes += u64::from(is_woken);
        is_woken
    }

    /// Wakes the peer if it is owed that and may be woken. Returns whether it is owed that still.
    fn wake_if_due(&mut self, heartbeat: &mut Heartbeat, id: PortId) -> bool {
        self.is_owing = match &mut self.plug {
            Plug::Adapter(adapter) => {
                heartbeat.beat(Stage::Wake, id);
                let mut adapter = adapter.lock();
                adapter.wake_if_due();
                adapter.owes_wake()
            }
            Plug::Rings(..) => self.owes_wake && !self.wake_or_owe(heartbeat, id),
        };
        self.is_owing
    }

    /// What a frame for this port, `port`, waits for: so many slots of a receive ring.
    #[inline]
    pub(crate) fn full(&self, port: PortId, queue: usize, slots: u32) -> Full {
        Full::new(port, queue, slots, self.on_full != OnFull::Wait)
    }

    /// At a look at a receive ring that is full, or will be with `pending` more slots: whether its
    /// client may be about to read it.
    pub(crate) fn look_full(&mut self, queue: usize, pending: u32, now: Now) -> bool {
        /// Where the size of the ring is not known.
        const SOME: u32 = 256;
        let (filled, quarter) = match self.plug.rings() {
            Some(rings) => rings.rx[queue].with(|rx| (rx.total(), rx.capacity() / 4)),
            None => (self.stats.queues[queue].rx.frames, SOME),
        };
        self.patience[queue].look(filled + u64::from(pending), quarter.max(1).into(), now)
    }
}

impl Switch {
    /// A switch without ports. The seed of its hash functions should be random, so that clients
    /// cannot choose addresses that collide. `map` maps the tables of the flow cache.
    #[must_use]
    pub fn new(config: SwitchConfig, seed: u64, map: MapTable) -> Self {
        Self::with_bridge(Bridge::new(config, seed), seed, map)
    }

    fn with_bridge(bridge: Bridge, seed: u64, map: MapTable) -> Self {
        let (ports, mirrors, drop_mirrors) = (Vec::new(), Mirrors::default(), None);
        let staged_max = COPIES as usize;
        Self { bridge, ports, mirrors, drop_mirrors, staged_max, steering: None, seed, map }
    }

    /// A switch for each of so many workers, as [`Bridge::into_replicas`] makes bridges. Several
    /// replicas have no chains.
    #[must_use]
    pub fn into_replicas(self, workers: usize) -> Vec<Self> {
        let (seed, map) = (self.seed, self.map);
        let bridges = self.bridge.into_replicas(workers).into_iter();
        bridges.map(|bridge| Self::with_bridge(bridge, seed, map)).collect()
    }

    /// The tables.
    #[must_use]
    pub fn bridge(&self) -> &Bridge {
        &self.bridge
    }

    /// The tables, to change them.
    pub fn bridge_mut(&mut self) -> &mut Bridge {
        &mut self.bridge
    }

    /// Changes the settings of the switch. Returns a flow cache that it needs no more: to free it
    /// takes long, so a thread that moves no frames should do it.
    pub fn set_config(&mut self, config: SwitchConfig) -> Option<FlowCache> {
        self.bridge.set_config(config);
        self.steering.as_mut()?.set_flows(config.fdb_capacity)
    }

    /// Adds a port.
    ///
    /// # Panics
    /// If there is one with this number.
    pub fn add_port(&mut self, id: PortId, mut plug: Plug, mut config: PortConfig) {
        if self.ports.len() <= id.index() {
            self.ports.resize_with(id.index() + 1, || None);
        }
        assert!(self.ports[id.index()].is_none(), "port {id} is there already");
        plug.set_vnet_header(config.vnet_header);
        let stats = PortStats::new(plug.queues());
        let on_full = config.on_full;
        config.zero_source |= matches!(plug, Plug::Rings(..));
        let is_mirror = config.mirror.is_some();
        self.bridge.add_port(id, config);
        if is_mirror {
            self.bridge.set_aside(id);
        }
        assert!(stats.queues.len() == plug.queues(), "a row of counters for each queue");
        let cache = VerdictCache::default();
        let patience = vec![Patience::Patient; plug.queues()].into();
        let entry = Entry {
            plug,
            stats,
            cache,
            verdicts: Verdicts::new(),
            on_full,
            rung: false,
            owes_wake: false,
            is_owing: false,
            turn_frames: u32::MAX,
            patience,
            own_patience: Patience::default(),
            waits: None,
            mirrors: None,
        };
        self.ports[id.index()] = Some(Box::new(entry));
        self.limit_staging();
    }

    /// Removes a port and what was learned behind it. Of a switch of several workers, the one to
    /// which the port belongs removes it first: the others learn nothing by it.
    pub fn remove_port(&mut self, id: PortId) -> Option<Plug> {
        self.remove_mirror_port(id);
        let entry = self.ports.get_mut(id.index())?.take()?;
        self.bridge.remove_port(id);
        if let Some(steering) = &mut self.steering {
            steering.remove_port(id);
        }
        self.limit_staging();
        Some(entry.plug)
    }

    /// Gives a port away to the replica of another worker. This one delivers to it from here on.
    pub fn give_port(&mut self, id: PortId) -> Option<GivenPort> {
        let handle = self.plug_mut(id)?.for_delivery();
        let guard = self.bridge.guard(id);
        let entry = self.entry_mut(id)?;
        let sent = entry.mirrors.as_mut().map(|mirrors| mirrors.give_sent()).unwrap_or_default();
        Some(GivenPort { plug: entry.exchange(handle), guard, sent })
    }

    /// Takes frames from a port from here on, to which this replica delivers already.
    pub fn take_port(&mut self, id: PortId, given: GivenPort) {
        let GivenPort { plug, guard, sent } = given;
        if let Some(entry) = self.entry_mut(id) {
            entry.exchange(plug);
            if let Some(mirrors) = &mut entry.mirrors {
                mirrors.take_sent(sent);
            }
            self.bridge.take_guard(id, guard);
        }
    }

    /// Changes a port's configuration. Where a port becomes a mirror port, the worker that takes
    /// its frames is told first: see [`Bridge::set_aside`].
    pub fn set_port(&mut self, id: PortId, mut config: PortConfig) {
        if let Some(entry) = self.entry_mut(id) {
            entry.on_full = config.on_full;
            entry.plug.set_vnet_header(config.vnet_header);
            config.zero_source |= matches!(entry.plug, Plug::Rings(..));
            let is_mirror = config.mirror.is_some();
            self.bridge.set_port(id, config);
            match is_mirror {
                true => self.bridge.set_aside(id),
                false => self.end_mirror_port(id),
            }
        }
    }

    fn limit_staging(&mut self) {
        let ports = self.ports.iter().flatten().count();
        self.staged_max = (COPIES as usize / ports.max(1)).max(1);
    }

    /// Reconciles the members of a trust group with one that has left, here or in another switch.
    /// Begins with the port at `from`, and stops after as much work as `work` slots take. `Some`:
    /// the port to go on with.
    pub fn reconcile(&self, leaver: &Leaver, from: usize, work: &mut u32) -> Option<usize> {
        for (at, entry) in self.ports.iter().enumerate().skip(from) {
            if *work == 0 {
                return Some(at);
            }
            if let Some(Plug::Rings(host, _)) = entry.as_ref().map(|entry| &entry.plug) {
                *work = work.saturating_sub(host.reconcile(leaver));
            }
        }
        for mirror in self.mirrors.iter() {
            *work = work.saturating_sub(mirror.rings().reconcile(leaver));
        }
        None
    }

    /// Adds a mirror, which gets nothing yet; returns its place.
    pub fn add_mirror(&mut self, mirror: Mirror) -> usize {
        self.mirrors.add(mirror)
    }

    /// A mirror, by its place.
    pub fn mirror_mut(&mut self, place: usize) -> Option<&mut Mirror> {
        self.mirrors.get_mut(place)
    }

    /// Tells the switch what a port that its settings make a mirror port gets: copies of what these
    /// ports send and receive, as many as `rate` allows, and nothing else. Returns the rate's
    /// handle for other replicas. A mirror port that is one already keeps what it has used.
    pub fn set_mirror_port(
        &mut self,
        id: PortId,
        rate: CopyRate,
        from: &[(PortId, MirrorPoint)],
    ) -> CopyRate {
        if self.entry_mut(id).is_none() {
            return rate;
        }
        let before = self.mirrors.place_of(id);
        self.bridge.set_aside(id);
        let (place, rate) = self.mirrors.add_port(id, rate);
        for &(port, point) in from.iter().filter(|(port, _)| *port != id) {
            self.mirror_port(port, place, MirrorSource { point, rings: 0..u16::MAX });
        }
        // Last, so that a port that stays has been looked at without a gap.
        if let Some(before) = before {
            self.remove_mirror(before);
        }
        rate
    }

    /// Lets a port that was a mirror port take part in forwarding again.
    fn end_mirror_port(&mut self, id: PortId) {
        self.remove_mirror_port(id);
        self.bridge.readmit(id);
    }

    fn remove_mirror_port(&mut self, id: PortId) {
        if let Some(place) = self.mirrors.place_of(id) {
            self.remove_mirror(place);
            self.mirrors.tidy();
        }
    }

    /// Removes a mirror.
    pub fn remove_mirror(&mut self, place: usize) -> Option<Box<Mirror>> {
        for entry in self.ports.iter_mut().flatten() {
            if let Some(mirrors) = &mut entry.mirrors
                && !mirrors.remove(place, entry.plug.rings())
            {
                entry.mirrors = None;
            }
        }
        if self.drop_mirrors.as_mut().is_some_and(|drops| !drops.remove(place)) {
            self.drop_mirrors = None;
        }
        self.mirrors.remove(place)
    }

    /// Lets a mirror get these frames of a port.
    pub fn mirror_port(&mut self, port: PortId, mirror: usize, source: MirrorSource) {
        let Some(entry) = self.entry_mut(port) else { return };
        let rings = entry.plug.rings();
        let new = || PortMirrors::new(port, rings.as_deref()).into();
        entry.mirrors.get_or_insert_with(new).add(mirror, source, entry.plug.rings());
    }

    /// The plug of a port.
    pub fn plug_mut(&mut self, id: PortId) -> Option<&mut Plug> {
        self.entry_mut(id).map(|entry| &mut entry.plug)
    }

    /// Slots with frames in the rings of a port, which its client has not returned or the switch
    /// has not taken.
    pub fn in_rings(&mut self, id: PortId) -> u64 {
        self.plug_mut(id).map_or(0, Plug::in_rings)
    }

    /// Wakes a port's peer, if it is owed that, and if its interrupt moderation timer has expired
    /// or its client may be woken ([`Wake::try_wake`](crate::Wake::try_wake)). Returns whether the
    /// peer still waits for its wake-up.
    pub fn wake_if_due(&mut self, id: PortId, heartbeat: &mut Heartbeat) -> bool {
        self.entry_mut(id).is_some_and(|entry| entry.wake_if_due(heartbeat, id))
    }

    /// Owes the client of a port with rings a wake-up, which may have been lost. The caller asks
    /// for it by [`wake_if_due`](Self::wake_if_due).
    pub fn owe_wake(&mut self, id: PortId) {
        if let Some(entry) = self.entry_mut(id)
            && matches!(entry.plug, Plug::Rings(..))
        {
            (entry.owes_wake, entry.is_owing) = (true, true);
        }
    }

    /// A port's counters.
    #[must_use]
    pub fn stats(&self, id: PortId) -> Option<&PortStats> {
        self.ports.get(id.index())?.as_ref().map(|entry| &entry.stats)
    }

    pub(crate) fn entry_mut(&mut self, id: PortId) -> Option<&mut Entry> {
        self.ports.get_mut(id.index())?.as_deref_mut()
    }

    /// Asks the client of a full ring for a kick when it makes room. The worker, which has this
    /// number, calls this before it sleeps, and then asks [`Switch::is_full`] once more. `true`:
    /// the client publishes without fences, so the worker first issues its process-wide barrier.
    pub fn want_room(&mut self, full: Full, worker: u32) -> bool {
        if let Some(Plug::Adapter(adapter)) = self.plug_mut(full.port()) {
            adapter.waiters().inspect(|waiters| waiters.add(worker));
            adapter.lock().want_room();
            store_load_fence();
            return false;
        }
        let Some(rx) = self.rx_ring(full) else { return false };
        rx.waiters().inspect(|waiters| waiters.add(worker));
        let mut rx = rx.lock();
        rx.want_room();
        store_load_fence();
        rx.is_light()
    }

    /// Whether there is still no room.
    pub fn is_full(&mut self, full: Full) -> bool {
        if let Some(Plug::Adapter(adapter)) = self.plug_mut(full.port()) {
            return adapter.lock().room() < full.slots();
        }
        self.rx_ring(full).is_some_and(|rx| rx.lock().sync() < full.slots())
    }

    /// Whether the next frame of a port waits, and the bridge has changed since: the frame may go
    /// elsewhere.
    #[must_use]
    pub fn may_go_elsewhere(&self, id: PortId) -> bool {
        let entry = self.ports.get(id.index()).and_then(Option::as_ref);
        let waits = entry.and_then(|entry| entry.waits);
        waits.is_some_and(|(_, then)| then != self.bridge.generation())
    }

    fn rx_ring(&mut self, full: Full) -> Option<&mut Shared<RxKring>> {
        self.entry_mut(full.port())?.plug.rings()?.rx.get_mut(full.queue())
    }

    /// The workers that wait for room at this port, a bit each. Its client has made some, and from
    /// here on they wait no more.
    pub fn take_waiting(&mut self, id: PortId) -> u64 {
        match self.plug_mut(id) {
            None => 0,
            Some(Plug::Adapter(adapter)) => adapter.waiters().map_or(0, Waiters::take),
            Some(Plug::Rings(rings, _)) => {
                let waiters = rings.rx.iter().filter_map(Shared::waiters);
                waiters.fold(0, |all, waiters| all | waiters.take())
            }
        }
    }

    /// Withdraws the request of [`want_room`](Self::want_room), unless other workers wait for the
    /// same room.
    pub fn found_room(&mut self, full: Full, worker: u32) {
        if let Some(Plug::Adapter(adapter)) = self.plug_mut(full.port()) {
            if let Some(mut adapter) = adapter.stop_waiting(worker) {
                adapter.found_room();
            }
        } else if let Some(rx) = self.rx_ring(full)
            && let Some(rx) = rx.stop_waiting(worker)
        {
            rx.found_room();
        }
    }

    /// Steers frames through chains of functions from the next frame on. Returns the old tables, to
    /// be freed as those of [`Self::set_config`].
    #[must_use]
    pub fn steer(&mut self, tables: Tables, now: Now) -> Tables {
        let (seed, flows, map) = (self.seed, self.bridge.config().fdb_capacity, self.map);
        let new = || Steering::new(seed, flows, map).into();
        let there = self.ports.iter().enumerate().filter(|(_, entry)| entry.is_some());
        let there = there.filter_map(|(at, _)| PortId::new(at));
        self.steering.get_or_insert_with(new).set(tables, there, now)
    }

    /// Stops steering frames through chains. Returns the old tables, to be freed likewise.
    pub fn stop_steering(&mut self) -> Option<Box<Steering>> {
        self.steering.take()
    }

    /// Opens the gate: no port waits until frames from before a change have left their chains.
    pub fn open_gate(&mut self) {
        if let Some(steering) = &mut self.steering {
            steering.open_gate();
        }
    }

    /// Whether there is news that should not wait for the next housekeeping: the worker may sleep
    /// before that.
    #[inline]
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.bridge.has_news()
    }

    /// What has happened since the last call that an operator wants to hear of.
    pub fn take_news(&mut self) -> Option<News> {
        self.bridge.take_news()
    }

    /// The counters of chains, rules and instances.
    #[must_use]
    pub fn steering(&self) -> Option<Report> {
        self.steering.as_ref().map(|steering| steering.report())
    }

    /// Housekeeping: ages addresses, finds stalled instances, opens the gate. The work of one call
    /// is bounded. Returns a flow cache to be freed, as [`Self::set_config`] does.
    #[must_use]
    pub fn housekeep(&mut self, now: Now) -> Option<FlowCache> {
        const BUCKETS: usize = 256;
        self.bridge.age(now, BUCKETS);
        self.detect_stalls(now);
        self.refresh_gate(now);
        self.steering.as_mut()?.age(now)
    }
}
