//! The switches of a configuration file, for the daemon's start and for `uvala apply`.
//!
//! ```text
//!  RawSwitch, RawPort ──── read ───┬──► spec and ports: requests, without defaults
//!                                  └──► plan: with defaults, for a daemon that starts
//! ```

use std::collections::{BTreeMap, BTreeSet};

use packet::MacAddr;
use protocol::name::{PortName, SwitchName};
use protocol::{
    Address, ChainSpec, Filter, HostIf, Machine, Mode, NewPorts, PortAdd, PortKind, PortSettings,
    Queues, RuleSpec, SwitchSettings, SwitchSpec, sent_by_function,
};
use serde::Deserialize;
use switch::{Forwarding, OnFull, PortConfig, SwitchConfig, VlanMode};
use toml::Spanned;

use super::misfit::{Misfit, MisfitError};
use super::values::{
    Capacity, GroupId, Kind, Number, QueueNumbers, UserId, VnetHeader, some_from_text,
};
use crate::model::address::StaticAddress;
use crate::model::error::BadValue;
use crate::model::host::complete;
use crate::model::machine;
use crate::model::plan::{PortPlan, SwitchPlan};
use crate::model::policy::Grant;
use crate::model::settings::{change_grant, change_port, change_switch};
use crate::model::steering::{Steering, lowest_free};

/// A switch of a file.
#[derive(Debug)]
pub struct SwitchText {
    /// The settings in the file, without chains and rules.
    pub spec: SwitchSpec,
    /// The ports, in the order of those of the plan.
    pub ports: Vec<PortAdd>,
    /// The switch with defaults, chains and rules.
    pub plan: SwitchPlan,
    /// Places in the file.
    pub places: Places,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct RawSwitch {
    #[serde(deserialize_with = "some_from_text")]
    forwarding: Option<Forwarding>,
    age_s: Option<Number>,
    fdb_capacity: Option<Capacity>,
    owner: Option<UserId>,
    group: Option<GroupId>,
    mode: Option<Mode>,
    new_ports: Option<NewPorts>,
    chain: Vec<Spanned<ChainSpec>>,
    rule: Vec<Spanned<RuleSpec>>,
    port: BTreeMap<Spanned<String>, RawPort>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawPort {
    kind: Kind,
    #[serde(deserialize_with = "some_from_text")]
    vlan: Option<VlanMode>,
    isolated: Option<bool>,
    learning: Option<bool>,
    unicast_flood: Option<bool>,
    multicast_flood: Option<bool>,
    broadcast_flood: Option<bool>,
    max_macs: Option<Number>,
    #[serde(deserialize_with = "some_from_text")]
    on_full: Option<OnFull>,
    vnet_header: Option<VnetHeader>,
    service: Option<String>,
    instance: Option<u16>,
    chain: Option<String>,
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
    uring: Option<bool>,
    socket: Option<String>,
    connect: bool,
    queues: Option<QueueNumbers>,
    coalesce_usecs: Option<Number>,
    coalesce_frames: Option<Number>,
    peer: Option<String>,
}

/// A number of 16 bits; a larger one becomes the largest, which is refused in any case.
fn small(number: Option<&Number>) -> Option<u16> {
    number.map(|n| u16::try_from(n.0).unwrap_or(u16::MAX))
}

impl RawSwitch {
    /// Checks the switch.
    pub fn read(self, name: SwitchName) -> Result<SwitchText, Misfit> {
        check_steering(&name, &self.chain, &self.rule)?;
        check_entries(&name, &self.rule, &self.port)?;
        let instances = instances(&self.port)?;
        let places = Places::of(&self.chain, &self.rule, &self.port);
        let settings = SwitchSettings {
            forwarding: self.forwarding.map(|forwarding| forwarding.to_string()),
            age_s: self.age_s.map(|s| s.0),
            fdb_capacity: self.fdb_capacity.map(|n| u32::try_from(n.0).unwrap_or(u32::MAX)),
            owner: self.owner.map(|id| id.0),
            group: self.group.map(|id| id.0),
            mode: self.mode,
            new_ports: self.new_ports,
            ..SwitchSettings::default()
        };
        let config = change_switch(SwitchConfig::default(), &settings);
        let config = config.expect("each value was checked where it stands");
        let mut homes = BTreeMap::new();
        let ports = self.port.into_iter().map(|(key, raw)| raw.read(&name, &key, &mut homes));
        let (ports, mut plans): (_, Vec<PortPlan>) =
            ports.collect::<Result<Vec<_>, Misfit>>()?.into_iter().unzip();
        for plan in &mut plans {
            let number = instances.get(plan.name.port()).copied();
            plan.config.role.instance = number.unwrap_or(plan.config.role.instance);
        }
        let plan = SwitchPlan {
            config,
            persistent: true,
            owner: settings.owner,
            group: settings.group,
            mode: settings.mode,
            new_ports: settings.new_ports.unwrap_or_default(),
            ports: plans,
            chains: self.chain.into_iter().map(Spanned::into_inner).collect(),
            rules: self.rule.into_iter().map(Spanned::into_inner).collect(),
            name: name.clone(),
        };
        Ok(SwitchText { spec: SwitchSpec { switch: name, settings }, ports, plan, places })
    }
}

/// Numbers of all instances of services, by port. An instance without a number in the file gets the
/// lowest free one.
fn instances(ports: &BTreeMap<Spanned<String>, RawPort>) -> Result<BTreeMap<String, u16>, Misfit> {
    let mut taken: BTreeMap<(&str, u16), &str> = BTreeMap::new();
    let all = ports.iter().filter_map(|(key, port)| Some((key, port.service.as_deref()?, port)));
    for (key, service, port) in all.clone() {
        let Some(number) = port.instance else { continue };
        if let Some(other) = taken.insert((service, number), key.get_ref()) {
            let error = MisfitError::Instance(service.to_owned(), number, other.to_owned());
            return Err((key, error).into());
        }
    }
    let mut numbers = BTreeMap::new();
    for (key, service, port) in all {
        let free = || lowest_free(|number| taken.contains_key(&(service, number)));
        let number = port.instance.unwrap_or_else(free);
        taken.insert((service, number), key.get_ref());
        numbers.insert(key.get_ref().clone(), number);
    }
    Ok(numbers)
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
) -> Result<(), Misfit> {
    let check = |&count: &usize| {
        let chains: Vec<_> = chains.iter().take(count).map(|it| it.get_ref().clone()).collect();
        let rules = rules.iter().take(count - chains.len());
        let rules: Vec<_> = rules.map(|it| it.get_ref().clone()).collect();
        let mut steering = Steering::default();
        steering.replace(Some(&chains), Some(&rules)).and_then(|()| steering.check(None))
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
    Err(Misfit { at: spans[first].start, error: MisfitError::Steering(name.clone(), why) })
}

/// Checks that rules are for ports whose frames meet rules.
fn check_entries(
    name: &SwitchName,
    rules: &[Spanned<RuleSpec>],
    ports: &BTreeMap<Spanned<String>, RawPort>,
) -> Result<(), Misfit> {
    let services = ports.iter().filter_map(|(key, port)| {
        let service = port.service.as_deref().filter(|service| !service.is_empty())?;
        Some((key.get_ref().as_str(), service))
    });
    let services: BTreeMap<_, _> = services.collect();
    let wrong = rules.iter().find_map(|rule| {
        let port = rule.get_ref().port.as_deref()?;
        let why = sent_by_function(port, services.get(port)?);
        let error = MisfitError::Steering(name.clone(), why);
        Some(Misfit { at: rule.span().start, error })
    });
    wrong.map_or(Ok(()), Err)
}

impl RawPort {
    /// Checks it; `homes` are the ports that have static addresses.
    fn read(
        self,
        switch: &SwitchName,
        key: &Spanned<String>,
        homes: &mut BTreeMap<StaticAddress, PortName>,
    ) -> Result<(PortAdd, PortPlan), Misfit> {
        let name = switch.join(key.get_ref()).map_err(|error| (key, error))?;
        if name.pipe().is_some() {
            return Err((key, MisfitError::Pipe(name)).into());
        }
        let kind = self.kind.0;
        if self.service.is_some() && kind != PortKind::Shm {
            return Err((key, MisfitError::Service(name)).into());
        }
        let host = complete(&name, kind, self.host().as_ref())
            .map_err(|error| (key, MisfitError::Host(Box::new(name.clone()), error)))?;
        let machine = machine::complete(kind, self.machine().as_ref())
            .map_err(|error| (key, MisfitError::Host(Box::new(name.clone()), error)))?;
        for station in &self.stations {
            if let Some(first) = homes.insert(*station.get_ref(), name.clone()) {
                let ports = Box::new([first, name]);
                let error = MisfitError::TwoPorts(*station.get_ref(), ports);
                return Err(Misfit { at: station.span().start, error });
            }
        }
        let settings = self.settings();
        let misfit = |error: BadValue| {
            Misfit::from((key, MisfitError::Settings(name.clone(), error.to_string())))
        };
        let config = change_port(PortConfig::default(), &settings).map_err(misfit)?;
        let grant = change_grant(Grant::default(), &settings).map_err(misfit)?;
        let stations = self.stations.iter().map(|station| *station.get_ref()).collect();
        let (owner, interface) = (None, None);
        let add = PortAdd {
            port: name.clone(),
            kind,
            settings,
            host: self.host(),
            machine: self.machine(),
        };
        let plan =
            PortPlan { name, kind, config, host, machine, interface, stations, owner, grant };
        Ok((add, plan))
    }

    /// The settings and permissions in the file.
    fn settings(&self) -> PortSettings {
        PortSettings {
            vlan: self.vlan.as_ref().map(ToString::to_string),
            isolated: self.isolated,
            learning: self.learning,
            unicast_flood: self.unicast_flood,
            multicast_flood: self.multicast_flood,
            broadcast_flood: self.broadcast_flood,
            max_macs: self.max_macs.as_ref().map(|max| max.0),
            on_full: self.on_full.map(|way| way.to_string()),
            vnet_header: self.vnet_header.as_ref().map(|bytes| bytes.0),
            service: self.service.clone(),
            instance: self.instance,
            chain: self.chain.clone(),
            owner: self.owner.as_ref().map(|id| id.0),
            group: self.group.as_ref().map(|id| id.0),
            mode: self.mode,
        }
    }

    /// The network interface in the file, if there is one.
    fn host(&self) -> Option<HostIf> {
        let host = HostIf {
            ifname: self.ifname.clone(),
            mtu: self.mtu.as_ref().map(|mtu| mtu.0),
            mac: self.mac,
            netns: self.netns.clone(),
            address: self.address,
            alone: self.alone,
            queues: self.queues.as_ref().filter(|_| self.has_queues()).map(|it| it.0.clone()),
            filter: self.filter.clone(),
            trust_group: self.trust_group.clone(),
            uring: self.uring,
            fds: 0,
        };
        (host != HostIf::default()).then_some(host)
    }

    /// Is `queues` a set of an interface's queues, and no number of pairs?
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
}
