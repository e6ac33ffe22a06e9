//! Events: what changes, for clients that listen.
//!
//! # Theory of operation
//!
//! ```text
//!  calls, hang-ups ──► State: touched names ──┐ compared with     ┌─ queue ─► message ─► listener
//!  interfaces, machines, chains: each LOOK ───┼─► Known ─► Change ┼─ queue ─► …
//!  forwarding databases: their changes ───────┘                   └─ (has asked)
//! ```
//!
//! While clients listen, the state notes which switches and ports calls touch. After each round of
//! calls these are compared with what the listeners know; a difference is an event. What changes
//! without a call is looked at every [`LOOK`]. While no client listens, nothing is noted, compared
//! or kept, and the databases keep no changes.
//!
//! Root and the daemon's user may listen. A look asks each switch's worker, so what it costs grows
//! with what all users have; an ordinary user's share of the control thread could not pay for it.
//!
//! Limits: [`QUEUE`] events for each listener, [`LISTENERS`] for each user. A listener that does
//! not read has a full socket and then a full queue; what comes then is counted, and the next
//! message says how many events were lost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use protocol::name::{PortName, SwitchName};
use protocol::{
    Change, ClientInfo, Event, Events, EventsQuery, PortKind, PortSettings, Reply, SwitchSettings,
    VlanVni,
};
use switch::Disabled;

use super::save::all_settings;
use super::{Client, Control};
use crate::control::datapath::Datapath;
use crate::control::refusal::{AccessRefusal, QuotaRefusal, Refusal};
use crate::control::state::{Port, Switch};
use crate::model::keys::{ConnKey, PortKey, SwitchKey};
use crate::model::policy::Access;
use crate::model::replies::{FdbChange, FdbRow};
use crate::model::settings::show_port;

/// Most events that wait for a listener.
const QUEUE: usize = 256;
/// Most listeners of one user.
const LISTENERS: usize = 16;
/// Time between two looks, and between two messages to a listener.
const LOOK: Duration = Duration::from_millis(200);

/// The clients that listen, and what they know.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    all: BTreeMap<ConnKey, Listener>,
    known: Known,
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Listener {
    uid: u32,
    query: EventsQuery,
    queue: Vec<Event>,
    lost: u64,
}

/// What was last told of.
#[derive(Debug, Default)]
struct Known {
    switches: BTreeMap<SwitchName, SwitchSettings>,
    ports: BTreeMap<PortName, SeenPort>,
    /// States of interfaces and machines.
    links: BTreeMap<PortName, String>,
    /// Chains that no frame passes, with the reason.
    broken: BTreeMap<SwitchName, BTreeMap<String, String>>,
}

/// A port as events know it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenPort {
    kind: PortKind,
    client: Option<ClientInfo>,
    settings: PortSettings,
    /// The networks of VLANs, for which a routing daemon speaks.
    vlan_vni: Vec<VlanVni>,
    disabled: Option<&'static str>,
}

impl Listeners {
    fn is_none(&self) -> bool {
        self.all.is_empty()
    }

    /// Queues an event for those that have asked for its switch.
    pub(super) fn tell(&mut self, change: &Change) {
        self.each_that_asked(change.switch(), |listener, time_ms| {
            if listener.queue.len() < QUEUE {
                listener.queue.push(Event { time_ms, change: change.clone() });
            } else {
                listener.lost += 1;
            }
        });
    }

    /// Some events of a switch were not kept.
    fn lose(&mut self, switch: &SwitchName, count: u64) {
        if count > 0 {
            self.each_that_asked(switch, |listener, _| listener.lost += count);
        }
    }

    fn each_that_asked(&mut self, switch: &SwitchName, mut each: impl FnMut(&mut Listener, u64)) {
        if !self.known.switches.contains_key(switch) {
            return;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let asked = |listener: &&mut Listener| {
            listener.query.switch.as_ref().is_none_or(|only| only == switch)
        };
        self.all.values_mut().filter(asked).for_each(|listener| each(listener, time_ms));
    }
}

impl Listener {
    /// As many events as a message holds.
    fn next(&self) -> Events {
        let mut bytes = 0;
        let fits = |event: &&Event| {
            bytes += serde_json::to_vec(event).map_or(super::PAGE_BYTES, |text| text.len() + 1);
            bytes <= super::PAGE_BYTES
        };
        let events = self.queue.iter().take_while(fits).cloned().collect();
        Events { lost: self.lost, events }
    }
}

impl<D: Datapath> Control<D> {
    /// Sends events to a client from now on.
    pub(super) fn listen(&mut self, client: &Client, query: EventsQuery) -> Result<Reply, Refusal> {
        let (caller, conn) = (&client.caller, client.conn);
        if !caller.privileged {
            return Err(AccessRefusal::Events.into());
        }
        if let Some(name) = &query.switch {
            self.state.switch(caller, name, Access::Look)?;
        }
        let others = self.listeners.all.iter().filter(|(other, _)| **other != conn);
        let have = others.filter(|(_, listener)| listener.uid == caller.uid).count();
        if have >= LISTENERS {
            return Err(QuotaRefusal::Listeners { uid: caller.uid, have }.into());
        }
        match self.listeners.is_none() {
            true => self.begin_noting(),
            // What has happened so far is not for the new one.
            false => self.look(),
        }
        let (uid, queue) = (caller.uid, Vec::new());
        self.listeners.all.insert(conn, Listener { uid, query, queue, lost: 0 });
        Ok(Reply::Done)
    }

    /// A connection listens no more.
    pub(super) fn forget_listener(&mut self, conn: ConnKey) {
        if self.listeners.all.remove(&conn).is_some() && self.listeners.is_none() {
            self.listeners = Listeners::default();
            self.state.note_touched(false);
            for switch in self.switch_keys().into_values() {
                self.datapath.fdb_changes(switch, false);
            }
        }
    }

    /// Whether a connection listens.
    pub(super) fn listens(&self, conn: ConnKey) -> bool {
        self.listeners.all.contains_key(&conn)
    }

    /// How long until the next look, while clients listen.
    #[must_use]
    pub fn next_look(&self, now: Instant) -> Option<Duration> {
        let since = self.listeners.looked.map(|looked| now.saturating_duration_since(looked));
        let left = LOOK.saturating_sub(since.unwrap_or(LOOK));
        (!self.listeners.is_none()).then_some(left)
    }

    /// Finds out what has changed. Returns the listeners that are to be told of events now.
    pub fn find_events(&mut self, now: Instant) -> Vec<ConnKey> {
        if self.listeners.is_none() {
            return Vec::new();
        }
        self.compare_touched();
        if !self.next_look(now).is_some_and(|left| left.is_zero()) {
            return Vec::new();
        }
        self.listeners.looked = Some(now);
        self.look();
        let has_some = |listener: &Listener| !listener.queue.is_empty() || listener.lost > 0;
        let all = self.listeners.all.iter().filter(|(_, listener)| has_some(listener));
        all.map(|(conn, _)| *conn).collect()
    }

    /// The next message to a listener.
    #[must_use]
    pub fn next_events(&self, conn: ConnKey) -> Option<Events> {
        self.listeners.all.get(&conn).map(Listener::next)
    }

    /// The listener has the message.
    pub fn note_told(&mut self, conn: ConnKey, events: &Events) {
        if let Some(listener) = self.listeners.all.get_mut(&conn) {
            listener.queue.drain(..events.events.len());
            listener.lost -= events.lost;
        }
    }

    /// From now on there is something to compare with.
    fn begin_noting(&mut self) {
        self.state.note_touched(true);
        let switches = self.state.switches_from("");
        let switches = switches.map(|(name, switch)| (name.clone(), all_settings(switch)));
        let switches = switches.collect();
        let ports = self.state.ports().filter(|(_, port)| port.is_listed());
        let ports = ports.map(|(name, port)| (name.clone(), seen(port))).collect();
        let links = self.links();
        self.listeners.known = Known { switches, ports, links, broken: BTreeMap::new() };
        for (name, switch) in self.switch_keys() {
            self.datapath.fdb_changes(switch, true);
            let broken = self.broken_chains(&name);
            self.listeners.known.broken.insert(name, broken);
        }
    }

    pub(super) fn switch_keys(&self) -> BTreeMap<SwitchName, SwitchKey> {
        self.state.switches_from("").map(|(name, switch)| (name.clone(), switch.key)).collect()
    }

    /// Compares what calls have touched.
    fn compare_touched(&mut self) {
        let touched = self.state.take_touched();
        let (there, gone): (Vec<_>, Vec<_>) =
            touched.switches.into_iter().partition(|name| self.state.has_switch(name));
        there.iter().for_each(|name| self.compare_switch(name));
        touched.ports.iter().for_each(|name| self.compare_port(name));
        for switch in gone {
            if !self.listeners.known.switches.contains_key(&switch) {
                continue;
            }
            if !switch.is_interface() {
                self.listeners.tell(&Change::SwitchDeleted { switch: switch.clone() });
            }
            self.listeners.known.switches.remove(&switch);
            self.listeners.known.broken.remove(&switch);
        }
    }

    fn compare_switch(&mut self, name: &SwitchName) {
        let Some(switch) = self.state.find_switch(name) else { return };
        let (key, now) = (switch.key, all_settings(switch));
        let before = self.listeners.known.switches.insert(name.clone(), now.clone());
        let Some(before) = before else {
            if !name.is_interface() {
                self.listeners.tell(&Change::SwitchAdded { switch: name.clone() });
            }
            self.compare_chains(name, &SwitchSettings::default(), &now);
            return self.begin_addresses(name, key);
        };
        if before == now {
            return;
        }
        self.compare_chains(name, &before, &now);
        if (SwitchSettings { chains: now.chains.clone(), ..before }) != now {
            self.listeners.tell(&Change::SwitchChanged { switch: name.clone() });
        }
    }

    fn compare_chains(&mut self, name: &SwitchName, before: &SwitchSettings, now: &SwitchSettings) {
        let (before, now) = (before.chains.iter().flatten(), now.chains.iter().flatten());
        let is_new = |chain: &&_| !before.clone().any(|old| old == *chain);
        for chain in now.clone().filter(is_new) {
            let (switch, chain) = (name.clone(), chain.name.clone());
            self.listeners.tell(&Change::ChainSet { switch, chain });
        }
        for old in before.filter(|old| !now.clone().any(|chain| chain.name == old.name)) {
            let (switch, chain) = (name.clone(), old.name.clone());
            self.listeners.tell(&Change::ChainDeleted { switch, chain });
        }
    }

    /// Has the database of a new switch keep its changes, and tells of the addresses that it has
    /// already.
    fn begin_addresses(&mut self, name: &SwitchName, key: SwitchKey) {
        self.datapath.fdb_changes(key, true);
        let (rows, _) = self.datapath.fdb_page(key, 0, QUEUE);
        let change = |row: FdbRow| FdbChange {
            mac: row.mac,
            vlan: row.vlan,
            from: None,
            to: Some(row.port),
            is_static: row.is_static,
        };
        self.tell_addresses(name, rows.into_iter().map(change).collect());
    }

    fn compare_port(&mut self, name: &PortName) {
        let port = name.clone();
        let now = self.state.find_port(name).filter(|port| port.is_listed()).map(seen);
        let ports = &mut self.listeners.known.ports;
        let before = match &now {
            Some(now) => ports.insert(name.clone(), now.clone()),
            None => ports.remove(name),
        };
        let (before, now) = match (before, now) {
            (None, None) => return,
            (Some(_), None) => {
                self.listeners.known.links.remove(name);
                return self.listeners.tell(&Change::PortDeleted { port });
            }
            (None, Some(now)) => {
                self.listeners.tell(&Change::PortAdded { port: port.clone(), kind: now.kind });
                (SeenPort { client: None, ..now.clone() }, now)
            }
            (Some(before), Some(now)) => (before, now),
        };
        if before.client != now.client {
            if before.client.is_some() {
                self.listeners.tell(&Change::ClientLeft { port: port.clone() });
            }
            if let Some(client) = now.client {
                self.listeners.tell(&Change::ClientAttached { port: port.clone(), client });
            }
        }
        if before.settings != now.settings || before.vlan_vni != now.vlan_vni {
            self.listeners.tell(&Change::PortChanged { port: port.clone() });
        }
        match (before.disabled, now.disabled) {
            (old, Some(by)) if old != Some(by) => {
                self.listeners.tell(&Change::PortDisabled { port, by: by.to_owned() });
            }
            (Some(_), None) => self.listeners.tell(&Change::PortEnabled { port }),
            _ => {}
        }
    }

    /// Looks at what changes without a call.
    fn look(&mut self) {
        let links = self.links();
        let before = std::mem::replace(&mut self.listeners.known.links, links.clone());
        for (port, state) in links {
            if before.get(&port) != Some(&state) {
                self.listeners.tell(&Change::Link { port, state });
            }
        }
        for (name, key) in self.switch_keys() {
            // Also of switches that none sees now: one that comes later is not told of it.
            self.look_at_addresses(&name, key);
            self.look_at_chains(&name);
        }
    }

    fn links(&self) -> BTreeMap<PortName, String> {
        let ports = self.state.ports().filter(|(_, port)| port.is_listed());
        ports.filter_map(|(name, port)| Some((name.clone(), self.link(port)?))).collect()
    }

    /// The state of a port's interface or machine, as listings have it.
    fn link(&self, port: &Port) -> Option<String> {
        let host = self.host_info(port).map(|info| info.state.to_string());
        host.or_else(|| self.machine_info(port).map(|info| info.state.to_string()))
    }

    /// A port is about to leave its switch, and another one may get its number.
    pub(super) fn note_addresses(&mut self, name: &SwitchName) {
        if self.listeners.is_none() {
            return;
        }
        if let Some(key) = self.state.find_switch(name).map(|switch| switch.key) {
            self.look_at_addresses(name, key);
        }
    }

    fn look_at_addresses(&mut self, name: &SwitchName, key: SwitchKey) {
        let (changes, lost) = self.datapath.fdb_changes(key, true);
        self.tell_addresses(name, changes);
        self.listeners.lose(name, lost);
    }

    fn tell_addresses(&mut self, name: &SwitchName, changes: Vec<FdbChange>) {
        if changes.is_empty() {
            return;
        }
        let names = self.names_of(name);
        let port = |key: PortKey| names.get(&key).map(|name| (*name).clone());
        let told = changes.into_iter().filter_map(|change| {
            let FdbChange { mac, vlan, from, to, is_static } = change;
            let vlan = vlan.get();
            Some(match (from.and_then(port), to.and_then(port)) {
                (Some(from), Some(port)) if from != port => {
                    Change::FdbMoved { mac, vlan, port, from }
                }
                (_, Some(port)) => Change::FdbAdded { mac, vlan, port, is_static },
                (Some(port), None) => Change::FdbDeleted { mac, vlan, port },
                (None, None) => return None,
            })
        });
        let told: Vec<Change> = told.collect();
        told.iter().for_each(|change| self.listeners.tell(change));
    }

    fn look_at_chains(&mut self, name: &SwitchName) {
        let now = self.broken_chains(name);
        let before = self.listeners.known.broken.insert(name.clone(), now.clone());
        let before = before.unwrap_or_default();
        for (chain, why) in &now {
            if before.get(chain) != Some(why) {
                let (switch, chain, why) = (name.clone(), chain.clone(), why.clone());
                self.listeners.tell(&Change::ChainBroken { switch, chain, why });
            }
        }
        for chain in before.into_keys().filter(|chain| !now.contains_key(chain)) {
            let is_there = |switch: &Switch| switch.steering.has_chain(&chain);
            if self.state.find_switch(name).is_some_and(is_there) {
                self.listeners.tell(&Change::ChainRuns { switch: name.clone(), chain });
            }
        }
    }
}

fn seen(port: &Port) -> SeenPort {
    SeenPort {
        kind: port.kind,
        client: port.client(),
        settings: show_port(&port.config, port.grant),
        vlan_vni: port.vxlan.as_ref().map(|it| it.vlan_vni.clone()).unwrap_or_default(),
        disabled: port.config.security_state.disabled.map(Disabled::name),
    }
}
