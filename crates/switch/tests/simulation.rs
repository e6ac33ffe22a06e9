//! A seeded simulation: hosts talk, move, fall silent; an operator reconfigures ports. Every frame
//! is switched by the [`Bridge`] and by a model as naive as can be, and must come out of the same
//! ports with the same tags. The counters of the run are held against `simulation.snap`, so that a
//! change of behaviour shows as a difference in review; `UPDATE_SNAPSHOT=1` rewrites the file.
//!
//! A switch of several workers has a bridge for each, and switches a frame by the bridge of its
//! port's worker. The result is the same for any number of workers.

#[path = "common/random.rs"]
mod random;

use std::collections::HashMap;
use std::fmt::Write as _;

use packet::ethernet::Header;
use packet::{EtherType, MacAddr, MacLock, PortId, VlanId, VlanMode};
use program::{Image, Looks, Program};
use random::Random;
use switch::receive::slot_flags::SlotFlags;
use switch::{
    Bridge, DropReason, Flush, Forwarding, Now, PortConfig, PortSecurity, PortStats, SwitchConfig,
    TagAction, UserFunction, Verdict,
};

const HOSTS: usize = 40;
const STEPS: usize = 50_000;
const AGEING_MS: u64 = 5_000;
/// LACP and LLDP.
const GROUPS: u16 = 1 << 2 | 1 << 14;
const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation.snap");

#[test]
fn test_bridge_switches_as_the_model_does() {
    let report = simulate(1, &Forwarding::ALL);
    if std::env::var_os("UPDATE_SNAPSHOT").is_some() {
        std::fs::write(SNAPSHOT, &report).unwrap();
    }
    let committed = std::fs::read_to_string(SNAPSHOT).unwrap_or_default();
    assert!(
        report == committed,
        "not as in simulation.snap (UPDATE_SNAPSHOT=1 accepts):\n{report}"
    );
}

#[test]
fn test_bridges_of_several_workers_switch_as_that_of_one() {
    let one = simulate(1, &Forwarding::ALL);
    for workers in 2..=4 {
        assert!(simulate(workers, &Forwarding::ALL) == one, "{workers} workers");
    }
}

/// Runs a world for each forwarding function; returns its counters.
fn simulate(workers: usize, functions: &[Forwarding]) -> String {
    let mut report = String::new();
    for &forwarding in functions {
        let mut world = World::new(forwarding, workers);
        if forwarding == Forwarding::Program {
            let first = UserFunction::new(leave_to_learning().into_common());
            let (home, others) = world.bridges.split_first_mut().expect("a worker");
            for other in others {
                drop(other.set_function(Some(first.handle())));
            }
            drop(home.set_function(Some(first)));
        }
        (0..STEPS).for_each(|_| world.step());
        world.report(&mut report);
    }
    report
}

/// A program that leaves each frame to learning.
fn leave_to_learning() -> Program {
    let code = vec![0xb7, 0, 0, 0, 1, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let (function, looks) = ("learn".to_owned(), Looks::Header);
    let image = Image { function, looks, code, data: Vec::new(), maps: Vec::new() };
    Program::new(&image, 1).expect("a program")
}

/// The tags of a frame, outermost first.
type Tags = Vec<u16>;

#[derive(Clone, Debug)]
struct Frame {
    dst: MacAddr,
    src: MacAddr,
    tags: Tags,
    length: u64,
}

impl Frame {
    fn header(&self) -> Header {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&self.dst.octets());
        bytes[6..12].copy_from_slice(&self.src.octets());
        let (ethertype, rest) = match self.tags.first() {
            Some(&vid) => (EtherType::VLAN, vid),
            None => (EtherType::IPV4, 0x4500),
        };
        bytes[12..14].copy_from_slice(&ethertype.0.to_be_bytes());
        bytes[14..].copy_from_slice(&rest.to_be_bytes());
        Header::new(bytes)
    }

    fn flags(&self) -> SlotFlags {
        let is_nested = self.tags.len() > 1;
        if is_nested { SlotFlags::NONE.with_inner_tag() } else { SlotFlags::NONE }
    }
}

/// What is done with a frame: the ports it leaves by, with its tags there.
type Outcome = Result<Vec<(usize, Tags)>, DropReason>;

struct World {
    random: Random,
    /// How many sockets there are; a port is there while something is plugged in.
    sockets: usize,
    now: u64,
    /// One for each worker. A port belongs to the worker that its number names.
    bridges: Vec<Bridge>,
    model: Model,
    /// The port that each host is plugged into.
    hosts: Vec<usize>,
    stats: Vec<PortStats>,
}

impl World {
    fn new(forwarding: Forwarding, workers: usize) -> Self {
        let config = SwitchConfig {
            forwarding,
            ageing_ms: AGEING_MS,
            fdb_capacity: 1024,
            group_fwd_mask: GROUPS,
            ..SwitchConfig::default()
        };
        let sockets = if forwarding == Forwarding::Patch { 3 } else { 12 };
        let mut world = Self {
            random: Random(1),
            sockets,
            now: 0,
            bridges: Bridge::new(config, 1).into_replicas(workers),
            model: Model {
                forwarding,
                ports: vec![None; sockets],
                first: vec![Vec::new(); sockets],
                fdb: HashMap::new(),
                moved: 0,
            },
            hosts: (0..HOSTS).map(|host| host % sockets).collect(),
            stats: vec![PortStats::new(1); sockets],
        };
        (0..sockets).for_each(|index| world.replug(index));
        world
    }

    fn step(&mut self) {
        match self.random.below(1000) {
            0..4 => self.reconfigure(),
            4..6 => self.unplug_or_plug(),
            6..10 => self.put_static(),
            10..12 => self.flush(),
            12..40 => self.move_host(),
            40..140 => self.wait(),
            _ => self.talk(),
        }
    }

    /// One host sends a frame, and both switches say where it goes.
    fn talk(&mut self) {
        let (src, frame) = self.some_frame();
        let outcome = self.switch(src, &frame);
        let expected = self.model.switch(src, &frame, self.now);
        assert_eq!(outcome, expected, "port {src} at {} ms: {frame:?}", self.now);
        self.stats[src].queues[0].tx.add(1, frame.length);
        match outcome {
            Ok(copies) => copies.into_iter().for_each(|(dst, tags)| {
                let added = 4 * u64::try_from(tags.len()).unwrap();
                let removed = 4 * u64::try_from(frame.tags.len()).unwrap();
                self.stats[dst].queues[0].rx.add(1, frame.length + added - removed);
            }),
            Err(reason) => self.stats[src].drops.add(reason, 1),
        }
    }

    fn some_frame(&mut self) -> (usize, Frame) {
        let random = &mut self.random;
        let host = random.below(HOSTS);
        let src = match random.below(200) {
            0 => MacAddr::BROADCAST,
            1 => MacAddr::ZERO,
            _ => mac(host),
        };
        let dst = match random.below(20) {
            0 => MacAddr::BROADCAST,
            1 => MacAddr::new([0x01, 0x00, 0x5e, 0, 0, 5]),
            2 => MacAddr::new([0x01, 0x80, 0xc2, 0, 0, random.pick(&[0, 1, 2, 3, 14])]),
            _ => mac(random.below(HOSTS)),
        };
        let tags = match random.below(8) {
            0 => vec![0],
            1 => vec![4095],
            2 | 3 => vec![random.pick(&[1, 2, 3, 4])],
            4 => vec![random.pick(&[0, 1, 2, 3]), random.pick(&[1, 2, 3, 4])],
            _ => vec![],
        };
        let length = 60 + u64::try_from(random.below(1440)).unwrap();
        (self.hosts[host], Frame { dst, src, tags, length })
    }

    /// Switches a frame with the real thing. The same frame again gets the same verdict, and
    /// leaves the generation as it is: else verdicts could not be cached.
    fn switch(&mut self, src: usize, frame: &Frame) -> Outcome {
        let now = Now::from_ms(self.now);
        let (header, flags) = (frame.header(), frame.flags());
        let bridge = self.bridge_of(src);
        let peeked = bridge.peek(port(src), header, flags, now);
        let verdict = bridge.decide_with_flags(port(src), header, flags, now);
        assert_eq!(peeked, verdict, "a look ahead sees what comes");
        let generation = bridge.generation();
        assert_eq!(bridge.decide_with_flags(port(src), header, flags, now), verdict);
        assert_eq!(bridge.generation(), generation);
        let targets = match verdict.forward {
            Verdict::Drop(reason) => return Err(reason),
            Verdict::To(dst) => vec![dst],
            Verdict::Flood(_) | Verdict::Set(..) | Verdict::Members => {
                bridge.flood_targets(port(src), &verdict).collect()
            }
        };
        let copy = |dst: PortId| {
            let action = bridge.egress(port(src), dst, &verdict)?;
            Ok((dst.index(), retag(&frame.tags, action)))
        };
        // A flood reaches the others all the same.
        let floods = matches!(verdict.forward, Verdict::Flood(_));
        let arrives = |copy: &Result<_, _>| !floods || *copy != Err(DropReason::NestedTag);
        let copies = targets.into_iter().map(copy).filter(arrives);
        let copies: Vec<_> = copies.collect::<Result<_, _>>()?;
        if copies.is_empty() { Err(DropReason::NoDestination) } else { Ok(copies) }
    }

    /// The bridge of a port's worker.
    fn bridge_of(&mut self, index: usize) -> &mut Bridge {
        let workers = self.bridges.len();
        &mut self.bridges[index % workers]
    }

    /// The bridges of all workers, that of the port's worker first.
    fn bridges_from(&mut self, index: usize) -> impl DoubleEndedIterator<Item = &mut Bridge> {
        let first = index % self.bridges.len();
        let (before, from) = self.bridges.split_at_mut(first);
        from.iter_mut().chain(before)
    }

    fn move_host(&mut self) {
        let host = self.random.below(HOSTS);
        self.hosts[host] = self.random.below(self.sockets);
    }

    /// Time passes. The sweep is complete, so that a port's limit means the same to the model.
    fn wait(&mut self) {
        self.now += u64::try_from(self.random.below(300)).unwrap();
        if self.random.one_in(50) {
            self.now += AGEING_MS;
        }
        let now = Now::from_ms(self.now);
        self.bridges[0].age(now, usize::MAX);
        self.model.sweep(self.now);
    }

    fn reconfigure(&mut self) {
        let index = self.random.below(self.sockets);
        if self.model.ports[index].is_some() {
            let config = self.some_config();
            self.bridges_from(index).for_each(|it| it.set_port(port(index), config.clone()));
            self.model.set_port(index, config);
        }
    }

    fn unplug_or_plug(&mut self) {
        let index = self.random.below(self.sockets);
        if self.model.ports[index].is_none() {
            return self.replug(index);
        }
        if self.sockets > 3 && !self.random.one_in(4) {
            return;
        }
        self.bridges_from(index).for_each(|it| it.remove_port(port(index)));
        self.model.ports[index] = None;
        self.model.fdb.retain(|_, entry| entry.port != index);
    }

    fn replug(&mut self, index: usize) {
        let config = self.some_config();
        self.bridges_from(index).rev().for_each(|it| it.add_port(port(index), config.clone()));
        self.model.ports[index] = Some(config);
        self.model.first[index].clear();
    }

    fn some_config(&mut self) -> PortConfig {
        let random = &mut self.random;
        let modes =
            ["transparent", "transparent", "access:1", "access:2", "trunk:2-4", "trunk:all"];
        let few = (0..8).map(|host| mac(host).to_string()).collect::<Vec<_>>().join(",");
        let locks = ["first:3".to_owned(), few, "off".to_owned()];
        let mode = random.pick(&modes).to_owned();
        let native = if mode.starts_with("trunk") && random.one_in(2) { ",native=1" } else { "" };
        PortConfig {
            vlan: format!("{mode}{native}").parse().unwrap(),
            isolated: random.one_in(4),
            learning: !random.one_in(8),
            unicast_flood: !random.one_in(8),
            multicast_flood: !random.one_in(8),
            broadcast_flood: !random.one_in(8),
            security: PortSecurity {
                max_macs: random.one_in(4).then_some(2),
                mac_lock: random.one_in(8).then(|| random.pick(&locks).parse().unwrap()),
                ..PortSecurity::default()
            },
            zero_source: random.one_in(2),
            ..PortConfig::default()
        }
    }

    fn put_static(&mut self) {
        let (host, index) = (self.random.below(HOSTS), self.random.below(self.sockets));
        let vlan = VlanId::new(self.random.pick(&[1, 2, 3])).unwrap();
        if self.random.one_in(2) {
            self.bridge_of(host).remove_entry(vlan, mac(host));
            self.model.fdb.remove(&(vlan, mac(host)));
        } else if self.bridge_of(host).add_static(vlan, mac(host), port(index)).is_ok() {
            self.model.fdb.insert((vlan, mac(host)), Entry { port: index, seen: None });
        }
    }

    fn flush(&mut self) {
        let index = self.random.below(self.sockets);
        self.bridge_of(index + 1).flush(Flush::Port(port(index)));
        self.model.fdb.retain(|_, entry| entry.port != index || entry.seen.is_none());
    }

    fn report(&self, out: &mut String) {
        let bridge = &self.bridges[0];
        let stats = bridge.fdb().stats();
        assert_eq!(stats.moved, self.model.moved);
        assert_eq!((stats.evicted, stats.refused_full), (0, 0));
        let name = bridge.config().forwarding;
        writeln!(
            out,
            "{name:?}: {} ms, entries {}, learned {}, moved {}, aged {}, refused {}",
            self.now,
            bridge.fdb().count(),
            stats.learned,
            stats.moved,
            stats.aged,
            stats.refused_limit
        )
        .unwrap();
        for (index, port) in self.stats.iter().enumerate() {
            let total = port.total();
            let (tx, rx) = (total.tx, total.rx);
            write!(out, "  {index:2} tx {}/{} rx {}/{}", tx.frames, tx.bytes, rx.frames, rx.bytes)
                .unwrap();
            for (reason, frames) in port.drops.iter().filter(|(_, frames)| *frames > 0) {
                write!(out, " {reason} {frames}").unwrap();
            }
            out.push('\n');
        }
    }
}

fn retag(tags: &Tags, action: TagAction) -> Tags {
    match action {
        TagAction::Keep => tags.clone(),
        TagAction::Strip => tags[1..].to_vec(),
        TagAction::Insert(vlan) => [&[vlan.get()], &tags[..]].concat(),
        TagAction::Replace(vlan) => [&[vlan.get()], &tags[1..]].concat(),
    }
}

fn port(index: usize) -> PortId {
    PortId::new(index).unwrap()
}

fn mac(host: usize) -> MacAddr {
    MacAddr::new([2, 0, 0, 0, 0, u8::try_from(host).unwrap()])
}

/// A switch that asks every port about every frame, and keeps addresses in a `HashMap`.
struct Model {
    forwarding: Forwarding,
    ports: Vec<Option<PortConfig>>,
    /// The addresses that each port has sent from first, where it is locked to them.
    first: Vec<Vec<MacAddr>>,
    fdb: HashMap<(VlanId, MacAddr), Entry>,
    moved: u64,
}

struct Entry {
    port: usize,
    /// When it was last seen; none if it is static.
    seen: Option<u64>,
}

impl Model {
    fn switch(&mut self, src: usize, frame: &Frame, now: u64) -> Outcome {
        let config = self.ports[src].clone().ok_or(DropReason::DeadPort)?;
        if !self.unlocks(src, &config, frame.src) {
            return Err(DropReason::MacLock);
        }
        let (vlan, payload) = ingress(&config.vlan, &frame.tags).ok_or(DropReason::Vlan)?;
        if self.forwarding != Forwarding::Patch {
            check_addresses(frame, config.zero_source)?;
        }
        let learns = matches!(
            self.forwarding,
            Forwarding::Learning | Forwarding::Chain | Forwarding::Program
        );
        if learns && config.learning {
            self.learn(vlan, frame.src, src, &config, now);
        }
        match self.destination(src, vlan, frame.dst)? {
            Some(dst) if dst == src => Err(DropReason::SamePort),
            Some(dst) => self.unicast(&config, dst, vlan, &payload),
            None => self.flood(src, &config, frame.dst, vlan, &payload),
        }
    }

    fn unlocks(&mut self, src: usize, config: &PortConfig, mac: MacAddr) -> bool {
        let first = &mut self.first[src];
        match config.security.mac_lock.unwrap_or_default() {
            MacLock::Off => true,
            MacLock::Only(macs) => macs.contains(mac),
            MacLock::First(_) if first.contains(&mac) => true,
            MacLock::First(most) => {
                let new = mac.is_station() && first.len() < usize::from(most);
                first.extend(new.then_some(mac));
                new
            }
        }
    }

    fn learn(&mut self, vlan: VlanId, mac: MacAddr, src: usize, config: &PortConfig, now: u64) {
        let known = self.fdb.get(&(vlan, mac));
        let no_station = mac == MacAddr::ZERO || mac.is_multicast();
        if no_station || known.is_some_and(|entry| entry.seen.is_none()) {
            return;
        }
        let here = known.is_some_and(|entry| entry.port == src);
        let learned =
            self.fdb.values().filter(|entry| entry.port == src && entry.seen.is_some()).count();
        if here
            || config.security.max_macs.is_none_or(|max| learned < usize::try_from(max).unwrap())
        {
            self.moved += u64::from(known.is_some() && !here);
            self.fdb.insert((vlan, mac), Entry { port: src, seen: Some(now) });
        }
    }

    fn sweep(&mut self, now: u64) {
        self.fdb.retain(|_, entry| entry.seen.is_none_or(|seen| seen + AGEING_MS > now));
    }

    /// The one port to send to, or none to flood.
    fn destination(
        &self,
        src: usize,
        vlan: VlanId,
        dst: MacAddr,
    ) -> Result<Option<usize>, DropReason> {
        let known = self.fdb.get(&(vlan, dst)).map(|entry| entry.port);
        match self.forwarding {
            Forwarding::Hub => Ok(None),
            Forwarding::Patch => {
                let plugged = (0..self.ports.len()).filter(|&index| self.ports[index].is_some());
                let others: Vec<_> = plugged.filter(|&index| index != src).collect();
                let [other] = others[..] else { return Err(DropReason::PatchUnconnected) };
                Ok(Some(other))
            }
            Forwarding::Static if known.is_none() && !dst.is_multicast() => {
                Err(DropReason::Unknown)
            }
            _ => Ok(known),
        }
    }

    fn unicast(&self, from: &PortConfig, dst: usize, vlan: VlanId, payload: &Tags) -> Outcome {
        let to = self.ports[dst].as_ref().expect("stations of a removed port are forgotten");
        let tags = egress(&to.vlan, vlan, payload).ok_or(DropReason::Vlan)?;
        match from.isolated && to.isolated {
            true => Err(DropReason::Isolated),
            false if is_hop(&to.vlan, vlan, &tags) => Err(DropReason::NestedTag),
            false => Ok(vec![(dst, tags)]),
        }
    }

    fn flood(
        &self,
        src: usize,
        from: &PortConfig,
        dst: MacAddr,
        vlan: VlanId,
        payload: &Tags,
    ) -> Outcome {
        let copy = |index: usize| {
            let to = self.ports[index].as_ref().filter(|_| index != src)?;
            let takes = match dst {
                MacAddr::BROADCAST => to.broadcast_flood,
                dst if dst.is_multicast() => to.multicast_flood,
                _ => to.unicast_flood,
            };
            let passes = takes && !(from.isolated && to.isolated);
            let tags = egress(&to.vlan, vlan, payload).filter(|_| passes)?;
            (!is_hop(&to.vlan, vlan, &tags)).then_some((index, tags))
        };
        let copies: Vec<_> = (0..self.ports.len()).filter_map(copy).collect();
        if copies.is_empty() { Err(DropReason::NoDestination) } else { Ok(copies) }
    }

    fn set_port(&mut self, index: usize, config: PortConfig) {
        let mode = &config.vlan;
        self.fdb.retain(|(vlan, _), entry| {
            entry.port != index || entry.seen.is_none() || egress(mode, *vlan, &vec![]).is_some()
        });
        let lock = |config: &PortConfig| config.security.mac_lock.unwrap_or_default();
        if self.ports[index].as_ref().map(lock) != Some(lock(&config)) {
            self.first[index].clear();
        }
        self.ports[index] = Some(config);
    }
}

/// What a bridge says to the addresses of a frame.
fn check_addresses(frame: &Frame, zero_source: bool) -> Result<(), DropReason> {
    match (frame.src.octets(), frame.dst.octets()) {
        ([0, 0, 0, 0, 0, 0], _) if !zero_source => Err(DropReason::BadSource),
        ([first, ..], _) if first % 2 == 1 => Err(DropReason::BadSource),
        (_, [0x01, 0x80, 0xc2, 0, 0, 1]) => Err(DropReason::Pause),
        (_, [0x01, 0x80, 0xc2, 0, 0, 2 | 14]) => Ok(()),
        (_, [0x01, 0x80, 0xc2, 0, 0, 0..16]) => Err(DropReason::ReservedGroup),
        _ => Ok(()),
    }
}

/// The VLAN of a frame that comes in, and the tags that are not the switch's.
fn ingress(mode: &VlanMode, tags: &Tags) -> Option<(VlanId, Tags)> {
    let untagged_in = match mode {
        VlanMode::Transparent(vlan) => return Some((*vlan, tags.clone())),
        VlanMode::Access(vlan) => Some(*vlan),
        VlanMode::Trunk { native, .. } => *native,
    };
    match tags.split_first() {
        None => Some((untagged_in?, vec![])),
        Some((0, inner)) => Some((untagged_in?, inner.to_vec())),
        Some((&vid, inner)) => {
            let vlan = VlanId::new(vid)?;
            egress(mode, vlan, &vec![]).map(|_| (vlan, inner.to_vec()))
        }
    }
}

/// Whether the other end of a trunk takes a frame of one VLAN for one of another.
fn is_hop(mode: &VlanMode, vlan: VlanId, tags: &Tags) -> bool {
    let native = matches!(mode, VlanMode::Trunk { native: Some(native), .. } if *native == vlan);
    native && !tags.is_empty()
}

/// The tags of a frame that goes out, if the port carries its VLAN.
fn egress(mode: &VlanMode, vlan: VlanId, payload: &Tags) -> Option<Tags> {
    match mode {
        VlanMode::Transparent(own) | VlanMode::Access(own) => {
            (*own == vlan).then(|| payload.clone())
        }
        VlanMode::Trunk { native: Some(native), .. } if *native == vlan => Some(payload.clone()),
        VlanMode::Trunk { allowed, .. } => {
            allowed.contains(vlan).then(|| [&[vlan.get()], &payload[..]].concat())
        }
    }
}
