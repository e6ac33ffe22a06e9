//! The state of a switch as its file has it, and what the next daemon makes of it.
//!
//! There is one record for each switch that persists or has a persistent port:
//!
//! ```text
//! {"version":2,"switch":"vale0","persistent":true,"settings":{"forwarding":"hub",…},
//!  "ports":{"vale0:vm1":{"owner":1000,"now":{"kind":"shm","settings":{…},"static":[…]}}}}
//! ```
//!
//! If the configuration file names the switch or port, too, the record also has the file's settings
//! at the time of the record (`configured`). While the file still has the same settings, the
//! command came later and counts. If they differ, an operator has edited the file since, and the
//! file counts. A switch or port that was removed from the file is gone.
//!
//! This module does no input or output: files are the business of [`super::Store`].

use std::collections::{BTreeMap, BTreeSet};

use hostif::namespace;
use packet::text;
use protocol::name::{PortName, SwitchName};
use protocol::{
    HostIf, MAX_STATIC, Machine, NO_DIRECT_HOPS, NewPorts, PortKind, PortSettings, RunBy,
    StaticAddress, SwitchSettings, Vxlan, check,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use switch::SwitchConfig;

use super::unique::Unique;
use crate::model::choices::show_forwarding;
use crate::model::plan::{InterfaceText, PortPlan, SwitchPlan};
use crate::model::policy::Grant;
use crate::model::programs::with_entries_of;
use crate::model::settings::{change_grant, change_switch, new_port, show_port, show_security};

/// Version of the records.
pub const VERSION: u32 = 2;
/// The version before, in which a port without a limit of addresses had `max_macs` 0. Now 0 means
/// no limit, and a port without a value has the default limit.
const OLD_VERSION: u32 = 1;
/// Limit for the ports of a switch.
const MAX_PORTS: usize = 4096;

/// A record of a switch; `P` is its record of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchRecord<P = PortRecord> {
    /// [`VERSION`].
    pub version: u32,
    /// Name of the switch.
    pub switch: SwitchName,
    /// The switch stays when it has no ports.
    pub persistent: bool,
    /// All settings of the switch.
    pub settings: SwitchSettings,
    /// Settings of the switch in the configuration file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<SwitchSettings>,
    /// The persistent ports.
    pub ports: BTreeMap<PortName, P>,
}

/// A change of a switch: its settings, and those of its ports that are new, different or gone.
pub type SwitchChange = SwitchRecord<Option<PortRecord>>;

/// A persistent port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRecord {
    /// User that made the port.
    pub owner: u32,
    /// The port as it is now.
    pub now: PortText,
    /// The port in the configuration file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<PortText>,
}

/// A port as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortText {
    /// Kind of the port.
    pub kind: PortKind,
    /// All settings of the port.
    pub settings: PortSettings,
    /// The network interface behind the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostIf>,
    /// The socket of its virtual machine.
    #[serde(alias = "vhost", default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// The tunnel to other hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vxlan: Option<Vxlan>,
    /// Geometry of a virtual interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<InterfaceText>,
    /// Static addresses.
    #[serde(rename = "static", default)]
    pub stations: BTreeSet<StaticAddress>,
}

impl PortText {
    /// The text of a port that the configuration makes.
    #[must_use]
    pub fn of(plan: &PortPlan) -> Self {
        let (kind, stations) = (plan.kind, plan.stations.clone());
        let (settings, host) = (show_port(&plan.config, plan.grant), plan.host.clone());
        let (machine, interface) = (plan.machine.clone(), plan.interface);
        let vxlan = plan.vxlan.clone();
        Self { kind, settings, host, machine, vxlan, interface, stations }
    }
}

/// Settings of a switch that the configuration makes; those that it leaves to the daemon are
/// `None`.
#[must_use]
pub fn configured(plan: &SwitchPlan) -> SwitchSettings {
    SwitchSettings {
        owner: plan.owner,
        group: plan.group,
        mode: plan.mode,
        new_ports: Some(plan.new_ports).filter(|&rule| rule != NewPorts::Any),
        chains: some(&plan.chains),
        rules: some(&plan.rules),
        program: plan.program.clone(),
        ..show_switch(&plan.config)
    }
}

/// `None` for an empty list.
fn some<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    (!list.is_empty()).then(|| list.to_vec())
}

/// The settings of a switch without its permissions.
#[must_use]
pub fn show_switch(config: &SwitchConfig) -> SwitchSettings {
    let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let security = show_security(&config.security);
    SwitchSettings {
        forwarding: Some(show_forwarding(config.forwarding)),
        age_s: Some(number(config.ageing_ms / 1000)),
        fdb_capacity: Some(number(config.fdb_capacity as u64)),
        group_fwd_mask: Some(config.group_fwd_mask).filter(|&mask| mask != 0),
        mcast_snooping: config.mcast_snooping.then_some(true),
        mcast_querier: config.mcast_querier.then_some(true),
        workers: config.is_spread.then_some(RunBy::All),
        mac_lock: security.mac_lock,
        max_macs: security.max_macs,
        broadcast_limit: security.broadcast_limit,
        multicast_limit: security.multicast_limit,
        unknown_unicast_limit: security.unknown_unicast_limit,
        bpdu_filter: security.bpdu_filter,
        bpdu_guard: security.bpdu_guard,
        loop_protect: security.loop_protect,
        ..SwitchSettings::default()
    }
}

impl<P: Serialize> SwitchRecord<P> {
    /// Content of the file.
    #[must_use]
    pub fn to_text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).expect("records are plain data");
        text.push(b'\n');
        text
    }
}

impl<P> SwitchRecord<P> {
    /// Whether both records are the same but for the ports.
    pub fn says_of_the_switch_what<Q>(&self, other: &SwitchRecord<Q>) -> bool {
        (&self.switch, self.persistent, &self.settings, &self.configured)
            == (&other.switch, other.persistent, &other.settings, &other.configured)
    }

    /// The record with other ports.
    pub fn with_ports<Q>(
        self,
        change: impl FnOnce(BTreeMap<PortName, P>) -> BTreeMap<PortName, Q>,
    ) -> SwitchRecord<Q> {
        let Self { version, switch, persistent, settings, configured, ports } = self;
        SwitchRecord { version, switch, persistent, settings, configured, ports: change(ports) }
    }
}

/// A record whose values have been checked.
#[derive(Clone, Debug)]
pub struct Checked {
    plan: SwitchPlan,
    configured: Option<SwitchSettings>,
    /// The ports in the configuration file.
    bases: BTreeMap<PortName, PortText>,
}

impl SwitchRecord {
    /// Reads a file. An older daemon appended changes to the record; it confirmed a change to its
    /// client only when the whole line was written.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        let mut parts = serde_json::Deserializer::from_slice(text).into_iter::<Unique>();
        let first = parts.next().unwrap_or_else(|| serde_json::from_slice(text));
        let mut all = first.and_then(change).map_err(|error| error.to_string())?;
        for part in parts {
            let mut later = match part.and_then(change) {
                Err(error) if error.is_eof() => break,
                part => part.map_err(|error| error.to_string())?,
            };
            if later.switch != all.switch {
                return Err(format!("it is of {} and of {}", all.switch, later.switch));
            }
            let mut ports = all.ports;
            ports.append(&mut later.ports);
            all = SwitchChange { ports, ..later };
        }
        let there = |(name, port): (PortName, Option<PortRecord>)| Some((name, port?));
        if all.version == OLD_VERSION {
            all.version = VERSION;
            for port in all.ports.values_mut().flatten() {
                let texts = [Some(&mut port.now), port.configured.as_mut()].into_iter().flatten();
                texts.for_each(|text| {
                    text.settings.max_macs = text.settings.max_macs.filter(|&max| max > 0);
                });
            }
        }
        Ok(all.with_ports(|ports| ports.into_iter().filter_map(there).collect()))
    }

    /// Checks every value, as in a file from another user.
    pub fn check(self) -> Result<Checked, String> {
        if self.version != VERSION {
            let newer = if self.version > VERSION { ", of a newer uvala" } else { "" };
            let version = self.version;
            return Err(format!("version {version}{newer} instead of {VERSION}"));
        }
        if self.ports.len() > MAX_PORTS {
            return Err(format!("more than {MAX_PORTS} ports"));
        }
        let (name, mut settings, mut configured) = (self.switch, self.settings, self.configured);
        for (id, was, is) in mask(&mut settings) {
            tracing::warn!("switch {name}: rule {id} has {was:?}, which older daemons took: {is}");
        }
        configured.iter_mut().for_each(|base| drop(mask(base)));
        let settings = &settings;
        let config = change_switch(SwitchConfig::default(), settings).map_err(|e| e.to_string())?;
        let mut plan = SwitchPlan {
            config,
            persistent: self.persistent,
            owner: settings.owner,
            group: settings.group,
            mode: settings.mode,
            new_ports: settings.new_ports.unwrap_or_default(),
            ports: Vec::new(),
            chains: settings.chains.clone().unwrap_or_default(),
            rules: settings.rules.clone().unwrap_or_default(),
            program: settings.program.clone(),
            name,
        };
        let (mut bases, mut stations) = (BTreeMap::new(), 0);
        for (port, record) in self.ports {
            stations += record.now.stations.len();
            plan.ports.push(check_port(&plan.name, &port, &record)?);
            bases.extend(record.configured.map(|base| (port, base)));
        }
        if stations > MAX_STATIC.min(config.fdb_capacity) {
            return Err(format!("{stations} static addresses are too many"));
        }
        Ok(Checked { plan, configured, bases })
    }
}

/// Reads one part of a file. A chain of an older daemon may ask for direct hops, which were
/// removed: its frames go through the switch. A TAP may say in which of two ways it was read
/// (`uring`), of which one is left.
fn change(Unique(mut part): Unique) -> serde_json::Result<SwitchChange> {
    let switch = part["switch"].clone();
    for of in ["settings", "configured"] {
        let chains = part.get_mut(of).and_then(|of| of.get_mut("chains"));
        for chain in chains.and_then(Value::as_array_mut).into_iter().flatten() {
            let direct = chain.as_object_mut().and_then(|chain| chain.remove("direct"));
            if of == "settings" && direct == Some(Value::Bool(true)) {
                let name = &chain["name"];
                tracing::warn!(
                    "switch {switch}, chain {name}, in the saved state: {NO_DIRECT_HOPS}"
                );
            }
        }
    }
    let ports = part.get_mut("ports").and_then(Value::as_object_mut);
    for (_, port) in ports.into_iter().flatten() {
        for of in ["now", "configured"] {
            let host = port.get_mut(of).and_then(|of| of.get_mut("host"));
            if let Some(host) = host.and_then(Value::as_object_mut) {
                host.remove("uring");
            }
        }
    }
    serde_json::from_value(part)
}

/// Corrects networks of rules that name a host in them, such as `10.0.0.1/8`: older daemons took
/// them as `10.0.0.0/8`, and now they are refused. Returns rule, old text and new text.
fn mask(settings: &mut SwitchSettings) -> Vec<(u32, String, String)> {
    let mut masked = Vec::new();
    for rule in settings.rules.iter_mut().flatten() {
        for text in [&mut rule.src, &mut rule.dst].into_iter().flatten() {
            if let Some(network) = text::masked(text) {
                let was = std::mem::replace(text, network.clone());
                masked.push((rule.id.unwrap_or_default(), was, network));
            }
        }
    }
    masked
}

/// Whether an interface ends with its daemon, unless that one's descriptors are kept. One that a
/// client handed over does. So does one in a network namespace that a process number or a path
/// names, as those of containers: when the next daemon starts, another namespace may have that
/// name, or none, and the interface's addresses are gone. An operator keeps the names of `ip
/// netns`, and those in the configuration.
fn is_of_one_daemon(host: &HostIf) -> bool {
    host.fds > 0 || !host.netns.as_deref().is_none_or(namespace::is_lasting)
}

fn check_port(
    switch: &SwitchName,
    name: &PortName,
    record: &PortRecord,
) -> Result<PortPlan, String> {
    if name.switch() != switch || name.pipe().is_some() || record.now.kind == PortKind::Pipe {
        return Err(format!("{name} cannot be a persistent port of {switch}"));
    }
    let config = new_port(record.now.kind, &record.now.settings)
        .map_err(|error| format!("{name}: {error}"))?;
    let grant = change_grant(Grant::default(), &record.now.settings)
        .map_err(|error| format!("{name}: {error}"))?;
    let (kind, stations) = (record.now.kind, record.now.stations.clone());
    let host = check::host(name, kind, record.now.host.as_ref())
        .map_err(|error| format!("{name}: {error}"))?;
    let machine = check::machine(kind, record.now.machine.as_ref())
        .map_err(|error| format!("{name}: {error}"))?;
    check::queue_frames(kind, machine.as_ref(), record.now.settings.queue_frames)
        .map_err(|error| format!("{name}: {error}"))?;
    let vxlan = check::vxlan(kind, record.now.vxlan.as_ref())
        .map_err(|error| format!("{name}: {error}"))?;
    check::vlan_vni(vxlan.as_ref(), &config.vlan).map_err(|error| format!("{name}: {error}"))?;
    let interface = record.now.interface;
    if interface.is_some() && kind != PortKind::Shm || name.is_interface() && interface.is_none() {
        return Err(format!("{name} is no interface"));
    }
    let (name, owner) = (name.clone(), Some(record.owner));
    Ok(PortPlan { name, kind, config, host, machine, vxlan, interface, stations, owner, grant })
}

/// The switches that a daemon makes when it starts: configured ones and saved ones.
#[must_use]
pub fn merge(plans: &[SwitchPlan], mut records: BTreeMap<SwitchName, Checked>) -> Vec<SwitchPlan> {
    let with_record = |plan: &SwitchPlan| match records.remove(&plan.name) {
        Some(record) => record.beside(plan),
        None => plan.clone(),
    };
    let mut merged: Vec<SwitchPlan> = plans.iter().map(with_record).collect();
    merged.extend(records.into_values().filter_map(Checked::alone));
    merged
}

impl Checked {
    /// Forgets the ports whose interface the daemon before this one had alone, and did not leave:
    /// `is_left` tells which it did. Returns their names.
    pub fn forget_lost(
        &mut self,
        is_left: impl Fn(&PortName, PortKind, &HostIf) -> bool,
    ) -> Vec<PortName> {
        let is_lost = |port: &PortPlan| {
            let host = port.host.as_ref().filter(|host| is_of_one_daemon(host));
            host.is_some_and(|host| !is_left(&port.name, port.kind, host))
        };
        let lost: Vec<_> = self.plan.ports.extract_if(.., |port| is_lost(port)).collect();
        for lost in &lost {
            let is_given = lost.host.as_ref().is_some_and(|host| host.fds > 0);
            let cure = match is_given {
                true => "add it again: uvala port add --fd",
                false => {
                    "set up the container's network again: podman network reload, or uvala ns \
                     attach"
                }
            };
            tracing::warn!(
                "{}: forgotten: its interface ended with the daemon before this one; {cure}",
                lost.name
            );
        }
        lost.into_iter().map(|port| port.name).collect()
    }

    /// The plan of a switch that the configuration names.
    fn beside(self, plan: &SwitchPlan) -> SwitchPlan {
        let same = self.configured == Some(configured(plan));
        let (ours, name) = (self.plan, &plan.name);
        if !same {
            tracing::info!(
                "{name}: the configuration was edited and replaces what commands had set"
            );
        }
        let mut switch = if same { ours.clone() } else { plan.clone() };
        if let (Some(new), Some(old), false) = (&plan.program, &ours.program, same) {
            switch.program = Some(with_entries_of(new.clone(), old));
        }
        let mut theirs: BTreeMap<_, _> = plan.ports.iter().map(|port| (&port.name, port)).collect();
        let mut ports = Vec::new();
        let mut by_command = Vec::new();
        for port in ours.ports {
            match (theirs.remove(&port.name), self.bases.get(&port.name)) {
                (None, None) => by_command.push(port),
                (Some(now), Some(base)) if PortText::of(now) == *base => by_command.push(port),
                (None, Some(_)) => tracing::info!(
                    "{}: removed, since the configuration no longer has it",
                    port.name
                ),
                (Some(now), _) => {
                    tracing::info!("{}: settings taken from the edited configuration", now.name);
                    ports.push(now.clone());
                }
            }
        }
        ports.extend(theirs.into_values().cloned());
        // An address is on one port, and the configuration decides which.
        let taken: BTreeSet<_> = ports.iter().flat_map(|port| port.stations.clone()).collect();
        for port in &mut by_command {
            port.stations.retain(|station| !taken.contains(station));
        }
        ports.extend(by_command);
        switch.ports = ports;
        switch
    }

    /// The plan of a switch that the configuration does not name.
    fn alone(self) -> Option<SwitchPlan> {
        let mut plan = self.plan;
        plan.ports.retain(|port| !self.bases.contains_key(&port.name));
        plan.persistent &= self.configured.is_none();
        (plan.persistent || !plan.ports.is_empty()).then_some(plan)
    }
}

#[cfg(test)]
mod tests;
