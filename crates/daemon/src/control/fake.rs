//! Workers that move no frame: what the tests of the control plane look at.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{BorrowedFd, OwnedFd};

use hostif::HostError;
use packet::{MacAddr, VlanId};
use protocol::name::{PipeSide, PortName};
use protocol::{
    Attached, Bound, Counter, FdbCounters, HostIf, HostIfInfo, MachineInfo, Pool, PortGeometry,
    PortKind, PortStats,
};
use ring::audit::Held;
use switch::chain::{Report, Tables};
use switch::{PortConfig, SwitchConfig};

use super::datapath::Datapath;
use crate::model::audit::{Audited, AuditedMember};
use crate::model::error::{DatapathError, MakeHostError, MakeMachineError};
use crate::model::host::trust_group;
use crate::model::keys::{ConnKey, GroupKey, PipeKey, PortKey, SwitchKey};
use crate::model::opening::{Build, Opening};
use crate::model::replies::{Attachment, Binding, FdbRow};
use crate::model::specs::{
    BoundSpec, Claim, HostSpec, MachineSpec, RingSpec, ShmSpec, UnswitchedSpec,
};

/// Everything the control plane said, and what there is after it.
#[derive(Debug, Default)]
pub struct Fake {
    pub(super) switches: BTreeMap<SwitchKey, SwitchConfig>,
    /// Switches whose workers were told of chains.
    pub(super) steered: BTreeSet<SwitchKey>,
    pub(super) ports: BTreeMap<PortKey, (SwitchKey, PortConfig)>,
    pub(super) reserved: BTreeMap<PortKey, ShmSpec>,
    pub(super) pipes: BTreeMap<PipeKey, u32>,
    pub(super) bound: BTreeMap<PortKey, FakeBound>,
    /// Those of them that no switch serves and that are attached.
    pub(super) lone: Vec<PortKey>,
    /// Functions that were to ask for theirs.
    pub(super) told: Vec<PortKey>,
    pub(super) fdb: BTreeMap<(u64, u16), (SwitchKey, PortKey, MacAddr, VlanId)>,
    /// Regions that are kept without a port.
    pub(super) kept: Vec<u16>,
    /// What every port has sent.
    pub(super) counted: Counter,
    /// How often addresses were put somewhere, and ports made or changed.
    pub(super) calls: usize,
    /// The next call that needs memory fails.
    pub(super) out_of_memory: bool,
    /// So many such calls succeed before one fails.
    pub(super) fails_after: Option<u32>,
    /// Interfaces are opened by another thread; so many of them nobody wanted in the end.
    pub(super) opens_elsewhere: bool,
    pub(super) unwanted: usize,
    /// Trust groups with the keys of their members, and which were looked at.
    pub(super) groups: BTreeMap<GroupKey, Vec<PortKey>>,
    pub(super) audited: Vec<GroupKey>,
    /// Ports that were made in groups, and which.
    pub(super) grouped: BTreeMap<PortKey, GroupKey>,
    /// How often a worker was asked what it has counted of chains.
    pub(super) reports: usize,
    /// The next memory that is built cannot be had.
    pub(super) build_fails: bool,
}

/// A bound port and who holds it, with how many extra buffers.
#[derive(Debug)]
pub struct FakeBound {
    name: PortName,
    switch: SwitchKey,
    pub(super) rings: RingSpec,
    pub(super) region: u16,
    pub(super) holders: BTreeMap<ConnKey, (Claim, u32)>,
}

impl Fake {
    fn allocate(&mut self) -> Result<(), DatapathError> {
        let fails = self.fails_after.is_some_and(|left| left == 0);
        self.fails_after = self.fails_after.and_then(|left| left.checked_sub(1));
        if std::mem::take(&mut self.out_of_memory) || fails {
            return Err(std::io::Error::from(std::io::ErrorKind::OutOfMemory).into());
        }
        Ok(())
    }

    fn new_region(&self) -> u16 {
        let taken =
            |id: &u16| self.kept.contains(id) || self.bound.values().any(|port| port.region == *id);
        (2..).find(|id| !taken(id)).expect("numbers")
    }

    fn build(&mut self) -> Build {
        let fails = std::mem::take(&mut self.build_fails);
        Box::new(move || match fails {
            true => Err(std::io::ErrorKind::OutOfMemory.into()),
            false => Ok(()),
        })
    }
}

fn attachment(name: &PortName, rings: &RingSpec) -> Attachment {
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").expect("the test's own file"));
    let geometry = Attached {
        port: name.clone(),
        bell: 1,
        region_bytes: 4096,
        block: 4096,
        pool: 8192,
        stride: rings.stride,
        buffers: 2,
        tx_rings: rings.counts.tx_rings,
        rx_rings: rings.counts.rx_rings,
        tx_slots: rings.counts.tx_slots.slots(),
        rx_slots: rings.counts.rx_slots.slots(),
        extra_bufs: rings.extra_bufs,
        peer_block: None,
        function: false,
    };
    Attachment { geometry, region: file(), kick: file(), wake: file() }
}

impl Datapath for Fake {
    fn workers(&self) -> u32 {
        1
    }

    fn worker_of(&self, _: SwitchKey) -> u32 {
        0
    }

    fn opening(
        &mut self,
        _: Option<SwitchKey>,
        _: PortKind,
        _: &HostIf,
        _: Vec<OwnedFd>,
    ) -> Option<(Opening, Build)> {
        let opening = Opening::default();
        opening.put(Err(HostError::NoTun));
        self.opens_elsewhere.then(|| (opening, self.build()))
    }

    fn forget_opening(&mut self, opening: Opening) {
        self.unwanted += usize::from(opening.take().is_some());
    }

    fn add_switch(
        &mut self,
        key: SwitchKey,
        config: SwitchConfig,
        beside: Option<SwitchKey>,
    ) -> Result<(), DatapathError> {
        self.allocate()?;
        assert!(beside.is_none_or(|other| self.switches.contains_key(&other)));
        assert!(self.switches.insert(key, config).is_none());
        Ok(())
    }

    fn set_switch(&mut self, key: SwitchKey, config: SwitchConfig) -> Result<(), DatapathError> {
        *self.switches.get_mut(&key).expect("known") = config;
        Ok(())
    }

    fn steer(&mut self, key: SwitchKey, tables: Option<Tables>) {
        match tables {
            Some(_) => self.steered.insert(key),
            None => self.steered.remove(&key),
        };
    }

    fn steering(&mut self, key: SwitchKey) -> Option<Report> {
        self.reports += 1;
        self.steered.get(&key).map(|_| Report::default())
    }

    fn groups(&self) -> Vec<GroupKey> {
        self.groups.keys().cloned().collect()
    }

    fn has_group(&self, group: &GroupKey) -> bool {
        self.groups.contains_key(group) || self.grouped.values().any(|of| of == group)
    }

    fn audit(&mut self, group: &GroupKey, from: PortKey) -> Option<Audited> {
        self.audited.push(group.clone());
        let mut rest = self.groups.get(group)?.iter().filter(|port| **port >= from);
        let held = Held { given: 2, owned: 2, ..Held::default() };
        let member = |port: &PortKey| AuditedMember { port: *port, held, begins: false };
        let members = rest.by_ref().take(2).map(member).collect();
        let (buffers, free, given, owned) = (10, 10, 0, 0);
        let next = rest.next().copied();
        Some(Audited { committed: 0, buffers, free, given, owned, members, listed: 0, next })
    }

    fn tell(&mut self, port: PortKey) {
        self.told.push(port);
    }

    fn del_switch(&mut self, key: SwitchKey) {
        assert!(self.ports.values().all(|(switch, _)| *switch != key), "ports go first");
        self.switches.remove(&key).expect("known");
    }

    fn memory_of(&self, rings: &RingSpec) -> Option<u64> {
        let buffers = rings.counts.buffers().checked_add(rings.extra_bufs)?;
        let bytes = u64::from(buffers) * u64::from(rings.stride);
        (bytes <= u64::from(u32::MAX)).then_some(bytes)
    }

    fn pipe_memory_of(&self, rings: &RingSpec) -> Option<u64> {
        self.memory_of(rings).map(|bytes| 2 * bytes)
    }

    fn reserve_shm(&mut self, spec: &ShmSpec) -> Result<Build, DatapathError> {
        self.allocate()?;
        assert!(self.switches.contains_key(&spec.switch));
        self.grouped.extend(spec.group.clone().map(|group| (spec.key, group)));
        assert!(self.reserved.insert(spec.key, spec.clone()).is_none());
        Ok(self.build())
    }

    fn attach_shm(
        &mut self,
        key: PortKey,
        config: PortConfig,
    ) -> Result<Attachment, DatapathError> {
        self.allocate()?;
        let spec = self.reserved.remove(&key).expect("reserved");
        assert!(self.ports.insert(key, (spec.switch, config)).is_none());
        Ok(attachment(&spec.name, &spec.rings))
    }

    fn reserve_bound(&mut self, spec: &BoundSpec) -> Result<u16, DatapathError> {
        self.allocate()?;
        assert!(self.switches.contains_key(&spec.switch));
        let region = spec.region.unwrap_or_else(|| self.new_region());
        let (name, switch) = (spec.name.clone(), spec.switch);
        let holders = BTreeMap::new();
        let port = FakeBound { name, switch, rings: spec.rings, region, holders };
        assert!(self.bound.insert(spec.key, port).is_none());
        Ok(region)
    }

    fn reserve_holder(
        &mut self,
        holds: &[(PortKey, Claim)],
        parts: &[PortKey],
        holder: ConnKey,
        extra_bufs: u32,
    ) -> Result<(Build, u32), DatapathError> {
        self.allocate()?;
        assert!(parts.iter().all(|port| self.bound.contains_key(port)));
        let region = self.bound[&holds[0].0].region;
        for (port, claim) in holds {
            let bound = self.bound.get_mut(port).expect("known");
            assert!(parts.contains(port) && bound.region == region);
            assert!(bound.holders.insert(holder, (*claim, extra_bufs)).is_none());
        }
        Ok((self.build(), extra_bufs))
    }

    fn attach_bound(&mut self, port: PortKey, config: PortConfig) -> Result<(), DatapathError> {
        self.allocate()?;
        let switch = self.bound[&port].switch;
        assert!(self.ports.insert(port, (switch, config)).is_none());
        Ok(())
    }

    fn resume(&mut self, port: PortKey, holder: ConnKey) -> Result<Binding, DatapathError> {
        self.allocate()?;
        assert!(self.ports.contains_key(&port) || self.lone.contains(&port), "attached");
        let bound = &self.bound[&port];
        let (claim, extra_bufs) = bound.holders[&holder];
        let rings = RingSpec { extra_bufs, ..bound.rings };
        let Attachment { geometry, region, kick, wake } = attachment(&bound.name, &rings);
        let reply = Bound {
            attached: geometry,
            nifp: holder.0,
            mem_id: bound.region,
            peer_block: None,
            tx: claim.tx,
            rx: claim.rx,
            exclusive: claim.exclusive,
            no_tx_poll: claim.no_tx_poll,
            host: None,
        };
        Ok(Binding { bound: reply, region, kick, wake })
    }

    fn remove_holder(&mut self, port: PortKey, holder: ConnKey) {
        assert!(self.bound.contains_key(&port), "known");
        for bound in self.bound.values_mut() {
            bound.holders.remove(&holder);
        }
    }

    fn reserve_lone(&mut self, spec: &UnswitchedSpec) -> Result<u16, DatapathError> {
        self.allocate()?;
        assert!(spec.sights.iter().all(|(port, _)| self.ports.contains_key(port)));
        let region = spec.region.unwrap_or_else(|| self.new_region());
        let (name, holders) = (spec.name.clone(), BTreeMap::new());
        let switch = SwitchKey(u32::MAX);
        let port = FakeBound { name, switch, rings: spec.rings, region, holders };
        assert!(self.bound.insert(spec.key, port).is_none());
        Ok(region)
    }

    fn attach_lone(&mut self, port: PortKey) {
        self.lone.push(port);
    }

    fn remove_lone(&mut self, port: PortKey) {
        self.lone.retain(|lone| *lone != port);
        self.bound.remove(&port).expect("known");
    }

    fn rings_of(&self, port: PortKey) -> Option<RingSpec> {
        let native = || crate::config::Config::default().rings;
        let bound = self.bound.get(&port).map(|bound| bound.rings);
        bound.or_else(|| self.ports.contains_key(&port).then(native))
    }

    fn keep_region(
        &mut self,
        region: Option<u16>,
        _: &PortName,
        _: &RingSpec,
    ) -> Result<u16, DatapathError> {
        self.allocate()?;
        let region = region.unwrap_or_else(|| self.new_region());
        self.kept.push(region);
        Ok(region)
    }

    fn drop_region(&mut self, region: u16) {
        let at = self.kept.iter().position(|kept| *kept == region).expect("kept");
        self.kept.remove(at);
    }

    fn region_sizes(&self, region: Option<u16>, rings: &RingSpec) -> PortGeometry {
        let pool = Pool { offset: 4096, count: 1, size: 4096 };
        PortGeometry {
            mem_id: region.unwrap_or(77),
            region_bytes: self.memory_of(rings).unwrap_or(0),
            tx_rings: 0,
            rx_rings: 0,
            tx_slots: 0,
            rx_slots: 0,
            ifs: pool,
            rings: pool,
            buffers: pool,
        }
    }

    fn add_null(
        &mut self,
        port: PortKey,
        switch: SwitchKey,
        config: PortConfig,
    ) -> Result<(), DatapathError> {
        self.calls += 1;
        self.allocate()?;
        assert!(self.ports.insert(port, (switch, config)).is_none());
        Ok(())
    }

    fn add_machine(&mut self, spec: &MachineSpec) -> Result<(), MakeMachineError> {
        Ok(self.add_null(spec.key, spec.switch, spec.config.clone())?)
    }

    fn add_silent(&mut self, spec: &MachineSpec, _: String) -> Result<(), MakeMachineError> {
        self.add_machine(spec)
    }

    fn machine_info(&self, _: PortKey) -> Option<MachineInfo> {
        None
    }

    fn add_cable(
        &mut self,
        ends: [(PortKey, SwitchKey, PortConfig); 2],
    ) -> Result<(), DatapathError> {
        self.allocate()?;
        for (key, switch, config) in ends {
            assert!(self.switches.contains_key(&switch));
            assert!(self.ports.insert(key, (switch, config)).is_none());
        }
        Ok(())
    }

    fn move_bound(
        &mut self,
        port: PortKey,
        name: &PortName,
        switch: SwitchKey,
        config: PortConfig,
    ) {
        self.ports.insert(port, (switch, config)).expect("attached");
        let bound = self.bound.get_mut(&port).expect("known");
        (bound.name, bound.switch) = (name.clone(), switch);
    }

    fn add_host(&mut self, spec: &HostSpec) -> Result<(), MakeHostError> {
        self.allocate()?;
        drop(spec.opening.as_ref().and_then(Opening::take));
        if spec.host.ifname.as_deref() == Some("missing") {
            return Err(HostError::Missing("missing".to_owned()).into());
        }
        self.add_soon(spec)
    }

    fn add_soon(&mut self, spec: &HostSpec) -> Result<(), MakeHostError> {
        let group = spec.host.trust_group.as_deref().and_then(trust_group);
        self.grouped.extend(group.map(|group| (spec.key, group)));
        Ok(self.add_null(spec.key, spec.switch, spec.config.clone())?)
    }

    fn host_info(&self, _: PortKey) -> Option<HostIfInfo> {
        None
    }

    fn host_bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn hear_host(&mut self) {}

    fn detach(&mut self, port: PortKey, name: &PortName) -> PortStats {
        let last = self.stats(&[(port, name.clone())]).remove(0);
        let reserved = self.reserved.remove(&port).is_some();
        self.grouped.remove(&port);
        let bound = self.bound.remove(&port).is_some();
        assert!(self.ports.remove(&port).is_some() || reserved || bound, "known");
        self.fdb.retain(|_, entry| entry.1 != port);
        last
    }

    fn number_of(&self, port: PortKey) -> Option<u16> {
        self.ports.get(&port).map(|_| 3)
    }

    fn set_port(&mut self, port: PortKey, config: PortConfig) {
        self.calls += 1;
        self.ports.get_mut(&port).expect("known").1 = config;
    }

    fn add_pipe(&mut self, pipe: PipeKey, _: &RingSpec) -> Result<(), DatapathError> {
        self.allocate()?;
        assert!(self.pipes.insert(pipe, 0).is_none());
        Ok(())
    }

    fn build_pipe(&mut self, pipe: PipeKey) -> Build {
        assert!(self.pipes.contains_key(&pipe));
        self.build()
    }

    fn open_pipe(
        &mut self,
        pipe: PipeKey,
        _: PipeSide,
        name: &PortName,
    ) -> Result<Attachment, DatapathError> {
        self.allocate()?;
        *self.pipes.get_mut(&pipe).expect("known") += 1;
        Ok(attachment(name, &crate::config::Config::default().rings))
    }

    fn del_pipe(&mut self, pipe: PipeKey) {
        self.pipes.remove(&pipe).expect("known");
    }

    fn stats(&mut self, ports: &[(PortKey, PortName)]) -> Vec<PortStats> {
        let known = |key| {
            self.ports.contains_key(key)
                || self.reserved.contains_key(key)
                || self.bound.contains_key(key)
        };
        assert!(ports.iter().all(|(key, _)| known(key)));
        let stats = |port: &PortName| PortStats {
            port: port.clone(),
            tx: self.counted,
            rx: Counter::default(),
            drops: BTreeMap::new(),
            tx_queues: vec![Counter::default(); 2],
            rx_queues: vec![Counter::default(); 2],
            resyncs: 0,
            abandoned: 0,
            called_in: 0,
            called_out: 0,
        };
        ports.iter().map(|(_, name)| stats(name)).collect()
    }

    fn fdb_count(&mut self, switch: SwitchKey) -> (usize, FdbCounters) {
        let entries = self.fdb.values().filter(|entry| entry.0 == switch);
        (entries.count(), FdbCounters::default())
    }

    fn fdb_page(
        &mut self,
        switch: SwitchKey,
        cursor: u64,
        max: usize,
    ) -> (Vec<FdbRow>, Option<u64>) {
        let skip = usize::try_from(cursor).expect("what a page said");
        let row = |&(_, port, mac, vlan): &(SwitchKey, PortKey, MacAddr, VlanId)| FdbRow {
            mac,
            vlan,
            port,
            is_static: true,
            age_ms: 0,
        };
        let all: Vec<FdbRow> = self.fdb.values().filter(|e| e.0 == switch).map(row).collect();
        let next = (skip + max < all.len()).then_some(cursor + max as u64);
        (all.into_iter().skip(skip).take(max).collect(), next)
    }

    fn fdb_add(&mut self, port: PortKey, mac: MacAddr, vlan: VlanId) -> Result<(), DatapathError> {
        self.calls += 1;
        let switch = self.ports[&port].0;
        self.fdb.insert((mac.as_u64(), vlan.get()), (switch, port, mac, vlan));
        Ok(())
    }

    fn fdb_del(&mut self, _: SwitchKey, mac: MacAddr, vlan: VlanId) -> bool {
        self.fdb.remove(&(mac.as_u64(), vlan.get())).is_some()
    }

    fn fdb_flush(&mut self, switch: SwitchKey, port: Option<PortKey>) {
        self.fdb.retain(|_, e| e.0 != switch || port.is_some_and(|port| port != e.1));
    }
}
