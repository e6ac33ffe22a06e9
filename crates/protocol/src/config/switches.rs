//! The switches of a configuration file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use packet::{MacAddr, MacLock, VlanMode};
use serde::Deserialize;
use serde_spanned::Spanned;

use super::validation::{InvalidValue, ValidationError};
use super::values::{
    Capacity, GroupFwdMask, GroupId, Kind, Number, QueueNumbers, UserId, VnetHeader, some_from_text,
};
use crate::check::{self, steering};
use crate::name::{PortName, SwitchName};
use crate::{
    Address, ChainSpec, Filter, ForwardingChoice, HostIf, Machine, McastRouter, Mirror, Mode,
    NewPorts, OnFull, PortAdd, PortKind, PortSettings, PortWorker, Queues, RuleSpec, RunBy,
    StaticAddress, StaticGroup, SwitchSettings, SwitchSpec, VlanVni, Vxlan, VxlanKeys,
    VxlanStation, sent_by_function,
};

/// A switch of a file: requests, which leave open what the file does not say.
#[derive(Debug)]
pub struct SwitchText {
    /// The settings in the file, without chains and rules.
    pub spec: SwitchSpec,
    /// The ports.
    pub ports: Vec<PortText>,
    /// All chains.
    pub chains: Vec<ChainSpec>,
    /// All rules.
    pub rules: Vec<RuleSpec>,
    /// The object file of its forwarding program.
    pub program: Option<FileAt>,
    /// Places in the file.
    pub places: Places,
}

/// A file that another file names, and where it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAt {
    /// Offset of the name.
    pub at: usize,
    /// The name.
    pub path: PathBuf,
}

/// A port of a file.
#[derive(Debug)]
pub struct PortText {
    /// The port as the file has it.
    pub add: PortAdd,
    /// Static addresses of the port.
    pub stations: BTreeSet<StaticAddress>,
}

/// A `[switch.NAME]` table.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct RawSwitch {
    forwarding: Option<Spanned<ForwardingChoice>>,
    age_s: Option<Number>,
    fdb_capacity: Option<Capacity>,
    group_fwd_mask: Option<GroupFwdMask>,
    mcast_snooping: Option<bool>,
    mcast_querier: Option<bool>,
    workers: Option<RunBy>,
    owner: Option<UserId>,
    group: Option<GroupId>,
    mode: Option<Mode>,
    new_ports: Option<NewPorts>,
    #[serde(deserialize_with = "some_from_text")]
    mac_lock: Option<MacLock>,
    max_macs: Option<Number>,
    broadcast_limit: Option<Number>,
    multicast_limit: Option<Number>,
    unknown_unicast_limit: Option<Number>,
    bpdu_filter: Option<bool>,
    bpdu_guard: Option<bool>,
    loop_protect: Option<bool>,
    chain: Vec<Spanned<ChainSpec>>,
    rule: Vec<Spanned<RuleSpec>>,
    port: BTreeMap<Spanned<String>, RawPort>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawPort {
    kind: Kind,
    vlan: Option<VlanMode>,
    isolated: Option<bool>,
    learning: Option<bool>,
    unicast_flood: Option<bool>,
    multicast_flood: Option<bool>,
    broadcast_flood: Option<bool>,
    mcast_router: Option<McastRouter>,
    mcast_fast_leave: Option<bool>,
    mcast_max_groups: Option<Number>,
    mcast_groups: Option<Vec<StaticGroup>>,
    #[serde(deserialize_with = "some_from_text")]
    mac_lock: Option<MacLock>,
    max_macs: Option<Number>,
    broadcast_limit: Option<Number>,
    multicast_limit: Option<Number>,
    unknown_unicast_limit: Option<Number>,
    bpdu_filter: Option<bool>,
    bpdu_guard: Option<bool>,
    loop_protect: Option<bool>,
    on_full: Option<OnFull>,
    worker: Option<Number>,
    vnet_header: Option<VnetHeader>,
    queue_frames: Option<Number>,
    service: Option<String>,
    instance: Option<u16>,
    chain: Option<String>,
    label: Option<String>,
    mirror: Option<Mirror>,
    owner: Option<UserId>,
    group: Option<GroupId>,
    mode: Option<Mode>,
    #[serde(rename = "static")]
    stations: BTreeSet<Spanned<StaticAddress>>,
    ifname: Option<String>,
    mtu: Option<Number>,
    mac: Option<MacAddr>,
    netns: Option<String>,
    address: Option<Address>,
    alone: bool,
    filter: Option<Filter>,
    trust_group: Option<String>,
    /// Files of earlier builds may have it: there is one way left to read a TAP.
    #[serde(rename = "uring")]
    _uring: Option<bool>,
    socket: Option<String>,
    connect: bool,
    queues: Option<QueueNumbers>,
    coalesce_usecs: Option<Number>,
    coalesce_frames: Option<Number>,
    peer: Option<String>,
    vni: Option<u32>,
    vlan_vni: Vec<VlanVni>,
    local: Option<IpAddr>,
    remote: Vec<IpAddr>,
    dst_port: Option<u16>,
    ttl: Option<u8>,
    dscp: Option<u8>,
    df: Option<bool>,
    neigh_suppress: Option<bool>,
    fdb: Vec<VxlanStation>,
}

fn number(number: &Option<Number>) -> Option<u32> {
    number.as_ref().map(|number| number.0)
}

/// A number of 16 bits; a larger one becomes the largest, which is refused in any case.
fn small(number: Option<&Number>) -> Option<u16> {
    number.map(|n| u16::try_from(n.0).unwrap_or(u16::MAX))
}

impl RawSwitch {
    /// Checks the switch.
    ///
    /// # Errors
    /// What does not go together, and its place.
    pub fn read(self, name: SwitchName) -> Result<SwitchText, InvalidValue> {
        check_steering(&name, &self.chain, &self.rule)?;
        check_entries(&name, &self.rule, &self.port)?;
        check_instances(&self.port)?;
        check_mirrors(&name, &self.port)?;
        if let Some(choice) = self.forwarding.as_ref().filter(|_| self.mcast_snooping == Some(true))
        {
            check::snooping(choice.get_ref().function).map_err(|why| InvalidValue {
                at: choice.span().start,
                error: ValidationError::Snooping(name.clone(), why),
            })?;
        }
        let places = Places::of(&self.chain, &self.rule, &self.port);
        let program = self.forwarding.as_ref().and_then(|choice| {
            let path = choice.get_ref().program.clone()?;
            Some(FileAt { at: choice.span().start, path })
        });
        let settings = SwitchSettings {
            forwarding: self.forwarding.map(|choice| choice.into_inner().function),
            age_s: self.age_s.map(|s| s.0),
            fdb_capacity: self.fdb_capacity.map(|n| n.0),
            group_fwd_mask: self.group_fwd_mask.map(|mask| mask.0),
            mcast_snooping: self.mcast_snooping,
            mcast_querier: self.mcast_querier,
            workers: self.workers,
            owner: self.owner.map(|id| id.0),
            group: self.group.map(|id| id.0),
            mode: self.mode,
            new_ports: self.new_ports,
            mac_lock: self.mac_lock.map(|lock| lock.to_string()),
            max_macs: number(&self.max_macs),
            broadcast_limit: number(&self.broadcast_limit),
            multicast_limit: number(&self.multicast_limit),
            unknown_unicast_limit: number(&self.unknown_unicast_limit),
            bpdu_filter: self.bpdu_filter,
            bpdu_guard: self.bpdu_guard,
            loop_protect: self.loop_protect,
            ..SwitchSettings::default()
        };
        let mut homes = BTreeMap::new();
        let ports = self.port.into_iter().map(|(key, raw)| raw.read(&name, &key, &mut homes));
        Ok(SwitchText {
            ports: ports.collect::<Result<_, _>>()?,
            spec: SwitchSpec { switch: name, settings },
            chains: self.chain.into_iter().map(Spanned::into_inner).collect(),
            rules: self.rule.into_iter().map(Spanned::into_inner).collect(),
            program,
            places,
        })
    }
}

/// Checks that no two instances of a service have one number.
fn check_instances(ports: &BTreeMap<Spanned<String>, RawPort>) -> Result<(), InvalidValue> {
    let mut taken: BTreeMap<(&str, u16), &str> = BTreeMap::new();
    for (key, port) in ports {
        let (Some(service), Some(number)) = (port.service.as_deref(), port.instance) else {
            continue;
        };
        if let Some(other) = taken.insert((service, number), key.get_ref()) {
            let error = ValidationError::Instance(service.to_owned(), number, other.to_owned());
            return Err((key, error).into());
        }
    }
    Ok(())
}

/// Checks that a mirror port mirrors no mirror port, and is nothing else.
fn check_mirrors(
    switch: &SwitchName,
    ports: &BTreeMap<Spanned<String>, RawPort>,
) -> Result<(), InvalidValue> {
    let named = ports.iter().filter(|(_, port)| port.is_mirror());
    let named: BTreeSet<&str> = named.map(|(key, _)| key.get_ref().as_str()).collect();
    for (key, port) in ports.iter().filter(|(_, port)| port.is_mirror()) {
        for name in port.mirror.iter().flat_map(|mirror| &mirror.from) {
            let from = switch.join(name).map_err(|error| (key, error))?;
            if from.pipe().is_some() {
                return Err((key, ValidationError::Pipe(from)).into());
            }
            if named.contains(name.as_str()) {
                return Err((key, ValidationError::MirrorOfMirror(name.clone())).into());
            }
        }
        if port.service.is_some() || port.chain.is_some() || !port.stations.is_empty() {
            return Err((key, ValidationError::MirrorOnly(key.get_ref().clone())).into());
        }
    }
    Ok(())
}

/// Places of a switch's chains, rules and ports in the file: offsets, later lines.
#[derive(Debug)]
pub struct Places {
    /// Places of the chains, in order.
    pub chains: Vec<usize>,
    /// Places of the rules.
    pub rules: Vec<usize>,
    /// Places of the ports.
    pub ports: Vec<usize>,
}

impl Places {
    fn of(
        chains: &[Spanned<ChainSpec>],
        rules: &[Spanned<RuleSpec>],
        ports: &BTreeMap<Spanned<String>, RawPort>,
    ) -> Self {
        Self {
            chains: chains.iter().map(|chain| chain.span().start).collect(),
            rules: rules.iter().map(|rule| rule.span().start).collect(),
            ports: ports.keys().map(|key| key.span().start).collect(),
        }
    }

    /// Replaces each place.
    pub fn map(&mut self, number: impl Fn(usize) -> usize) {
        let all = [&mut self.chains, &mut self.rules, &mut self.ports];
        all.into_iter().flatten().for_each(|at| *at = number(*at));
    }
}

/// Checks chains and rules; the error has the place of the first one that does not fit those before
/// it.
fn check_steering(
    name: &SwitchName,
    chains: &[Spanned<ChainSpec>],
    rules: &[Spanned<RuleSpec>],
) -> Result<(), InvalidValue> {
    let check = |&count: &usize| {
        let chains: Vec<_> = chains.iter().take(count).map(|it| it.get_ref().clone()).collect();
        let rules = rules.iter().take(count - chains.len());
        let rules: Vec<_> = rules.map(|it| it.get_ref().clone()).collect();
        steering::check_all(&chains, &rules)
    };
    let spans = chains.iter().map(Spanned::span).chain(rules.iter().map(Spanned::span));
    let spans: Vec<_> = spans.collect();
    if check(&spans.len()).is_ok() {
        return Ok(());
    }
    // An invalid one stays invalid with more behind it.
    let counts: Vec<usize> = (1..=spans.len()).collect();
    let first = counts.partition_point(|count| check(count).is_ok());
    let why = check(&(first + 1)).expect_err("looked at just now");
    Err(InvalidValue {
        at: spans[first].start,
        error: ValidationError::Steering(name.clone(), why),
    })
}

/// Checks that rules are for ports whose frames meet rules.
fn check_entries(
    name: &SwitchName,
    rules: &[Spanned<RuleSpec>],
    ports: &BTreeMap<Spanned<String>, RawPort>,
) -> Result<(), InvalidValue> {
    let services = ports.iter().filter_map(|(key, port)| {
        let service = port.service.as_deref().filter(|service| !service.is_empty())?;
        Some((key.get_ref().as_str(), service))
    });
    let services: BTreeMap<_, _> = services.collect();
    let wrong = rules.iter().find_map(|rule| {
        let port = rule.get_ref().port.as_deref()?;
        let why = sent_by_function(port, services.get(port)?);
        let error = ValidationError::Steering(name.clone(), why);
        Some(InvalidValue { at: rule.span().start, error })
    });
    wrong.map_or(Ok(()), Err)
}

impl RawPort {
    fn is_mirror(&self) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| !mirror.from.is_empty())
    }

    /// Checks it; `homes` are the ports that have static addresses.
    fn read(
        self,
        switch: &SwitchName,
        key: &Spanned<String>,
        homes: &mut BTreeMap<StaticAddress, PortName>,
    ) -> Result<PortText, InvalidValue> {
        let name = switch.join(key.get_ref()).map_err(|error| (key, error))?;
        if name.pipe().is_some() {
            return Err((key, ValidationError::Pipe(name)).into());
        }
        let kind = self.kind.0;
        if self.service.is_some() && kind != PortKind::Shm {
            return Err((key, ValidationError::Service(name)).into());
        }
        let (host, machine, vxlan) = (self.host(), self.machine(), self.vxlan());
        let vxlan = vxlan.and_then(|vxlan| check::vxlan(kind, vxlan.as_ref()));
        let vxlan = check::host(&name, kind, host.as_ref())
            .and_then(|_| check::machine(kind, machine.as_ref()))
            .and(vxlan)
            .map_err(|error| (key, ValidationError::Host(Box::new(name.clone()), error)))?;
        for station in &self.stations {
            if let Some(first) = homes.insert(*station.get_ref(), name.clone()) {
                let ports = Box::new([first, name]);
                let error = ValidationError::TwoPorts(*station.get_ref(), ports);
                return Err(InvalidValue { at: station.span().start, error });
            }
        }
        let settings = self.settings();
        check::port_settings(&settings)
            .and_then(|()| check::queue_frames(kind, machine.as_ref(), settings.queue_frames))
            .and_then(|()| {
                check::vlan_vni(vxlan.as_ref(), &settings.vlan.clone().unwrap_or_default())
            })
            .map_err(|error| (key, ValidationError::Settings(name.clone(), error)))?;
        let stations = self.stations.into_iter().map(Spanned::into_inner).collect();
        let add = PortAdd { port: name, kind, settings, host, machine, vxlan };
        Ok(PortText { add, stations })
    }

    /// The settings and permissions in the file.
    fn settings(&self) -> PortSettings {
        PortSettings {
            vlan: self.vlan.clone(),
            isolated: self.isolated,
            learning: self.learning,
            unicast_flood: self.unicast_flood,
            multicast_flood: self.multicast_flood,
            broadcast_flood: self.broadcast_flood,
            mcast_router: self.mcast_router,
            mcast_fast_leave: self.mcast_fast_leave,
            mcast_max_groups: number(&self.mcast_max_groups),
            mcast_groups: self.mcast_groups.clone(),
            mac_lock: self.mac_lock.map(|lock| lock.to_string()),
            max_macs: number(&self.max_macs),
            broadcast_limit: number(&self.broadcast_limit),
            multicast_limit: number(&self.multicast_limit),
            unknown_unicast_limit: number(&self.unknown_unicast_limit),
            bpdu_filter: self.bpdu_filter,
            bpdu_guard: self.bpdu_guard,
            loop_protect: self.loop_protect,
            on_full: self.on_full,
            worker: number(&self.worker).map(PortWorker::Number),
            vnet_header: self.vnet_header.as_ref().map(|bytes| bytes.0),
            queue_frames: number(&self.queue_frames),
            service: self.service.clone(),
            instance: self.instance,
            chain: self.chain.clone(),
            label: self.label.clone(),
            mirror: self.mirror.clone(),
            owner: self.owner.as_ref().map(|id| id.0),
            group: self.group.as_ref().map(|id| id.0),
            mode: self.mode,
        }
    }

    /// The network interface in the file, if there is one.
    fn host(&self) -> Option<HostIf> {
        let host = HostIf {
            ifname: self.ifname.clone(),
            mtu: number(&self.mtu).filter(|_| self.kind.0 != PortKind::Vxlan),
            mac: self.mac,
            netns: self.netns.clone(),
            address: self.address,
            alone: self.alone,
            queues: self.queues.as_ref().filter(|_| self.has_queues()).map(|it| it.0.clone()),
            filter: self.filter.clone(),
            trust_group: self.trust_group.clone(),
            fds: 0,
        };
        (host != HostIf::default()).then_some(host)
    }

    /// Whether `queues` names queues of an interface, rather than a number of pairs.
    fn has_queues(&self) -> bool {
        let is_set = self.queues.as_ref().is_some_and(|it| matches!(it.0, Queues::Set(_)));
        is_set || self.kind.0.is_host()
    }

    /// Number of queue pairs of a virtual machine.
    fn pairs(&self) -> Option<u16> {
        match self.queues {
            Some(QueueNumbers(Queues::First(count))) if !self.has_queues() => Some(count),
            _ => None,
        }
    }

    /// The socket in the file, if there is one.
    fn machine(&self) -> Option<Machine> {
        let machine = Machine {
            held: false,
            socket: self.socket.clone(),
            connect: self.connect,
            queues: self.pairs(),
            coalesce_usecs: small(self.coalesce_usecs.as_ref()),
            coalesce_frames: small(self.coalesce_frames.as_ref()),
            peer: self.peer.clone(),
        };
        (machine != Machine::default()).then_some(machine)
    }

    /// The tunnel in the file, if there is one.
    fn vxlan(&self) -> Result<Option<Vxlan>, String> {
        let Self { vni, local, dst_port, ttl, dscp, df, neigh_suppress, .. } = *self;
        let (vlan_vni, mtu) = (self.vlan_vni.clone(), number(&self.mtu));
        let (remote, fdb) = (self.remote.clone(), self.fdb.clone());
        VxlanKeys {
            vni,
            vlan_vni,
            local,
            remote,
            dst_port,
            mtu,
            ttl,
            dscp,
            df,
            neigh_suppress,
            fdb,
        }
        .tunnel()
    }
}
