//! Changes by commands are saved before the commands are answered.
//!
//! ```text
//!  a command changes a switch   the writer has none       the writer is done
//!  ───────────────────────► pending ───────────────► sent ─────────────────► answered
//!                             │    the writer has one   ▲
//!                             └──► pending, with what ──┘ when that one is written
//!                                  comes meanwhile
//! ```
//!
//! So the [`Writer`] has at most one change of each switch, and writes those that come meanwhile
//! together. A command that changes two switches is answered when both are written. It moves
//! something from one to the other, which must not be missing in between, so control sends the
//! first change first.

use std::collections::{BTreeMap, BTreeSet};

use protocol::name::{PortName, SwitchName};
use protocol::{
    ChainAdd, ChainRef, ChainRequest, FdbRequest, HostIf, InterfaceAttach, InterfaceRequest,
    MdbRequest, PortRef, PortRequest, ProgramEntryRef, ProgramEntrySet, ProgramRequest,
    ProgramSpec, Reply, Request, RuleAdd, RuleDel, RuleRequest, StaticAddress, SwitchRequest,
    SwitchSettings,
};
use ring::layout::RingCounts;

use super::{Answer, Control, OwnedFd, Step};
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::control::state::shared::Interface;
use crate::control::state::{Port, Switch};
use crate::model::keys::ConnKey;
use crate::model::plan::{InterfaceText, SwitchPlan};
use crate::model::programs::LoadedProgram;
use crate::model::settings::show_port;
use crate::store::record::{PortRecord, PortText, SwitchChange, VERSION, configured, show_switch};
use crate::store::writer::{Change, NotWritten, Writer, Written};

/// The writer, and the changes and clients that wait for it.
#[derive(Debug)]
pub(super) struct Saving {
    pub(super) writer: Writer,
    plans: Plans,
    pending: BTreeMap<SwitchName, Pending>,
    waiting: BTreeMap<ConnKey, Waiting>,
    /// Answers that came while control waited for another one.
    early: Vec<(ConnKey, Answer)>,
}

/// A client whose change is being written.
#[derive(Debug)]
struct Waiting {
    answer: (Reply, Vec<OwnedFd>),
    /// Number of records that are still to be written for the client.
    left: usize,
    failed: Option<NotWritten>,
}

/// Switches and ports as the configuration has them.
#[derive(Debug)]
struct Plans {
    switches: BTreeMap<SwitchName, SwitchSettings>,
    ports: BTreeMap<PortName, PortText>,
}

/// Changes of a switch that are not written yet, and the clients that wait for them.
#[derive(Debug, Default)]
struct Pending {
    /// What changed since control sent the last change.
    noted: Option<Changed>,
    /// Clients that wait for that.
    later: Vec<ConnKey>,
    /// Clients that wait for the change at the writer. `None`: the writer has none.
    now: Option<Vec<ConnKey>>,
    /// The writer has the ports of the switch.
    known: bool,
}

/// What a command changes of a switch.
#[derive(Clone, Debug, Default)]
pub(super) struct Changed {
    ports: BTreeSet<PortName>,
    /// All ports of the switch.
    whole: bool,
}

impl<D: Datapath> Control<D> {
    /// Saves what commands make from now on; `plans` is what the configuration made.
    pub fn save_with(&mut self, writer: Writer, plans: &[SwitchPlan]) {
        let ports = plans.iter().flat_map(|plan| &plan.ports);
        let plans = Plans {
            ports: ports.map(|port| (port.name.clone(), PortText::of(port))).collect(),
            switches: plans.iter().map(|plan| (plan.name.clone(), configured(plan))).collect(),
        };
        let (pending, waiting, early) = Default::default();
        self.saving = Some(Saving { writer, plans, pending, waiting, early });
    }

    /// The writer's handle, readable when a change is written.
    pub fn writer(&self) -> Option<&Writer> {
        self.saving.as_ref().map(|saving| &saving.writer)
    }

    /// Has the changes of a command saved before the command is answered.
    pub(super) fn save(
        &mut self,
        conn: ConnKey,
        changed: Vec<(SwitchName, Changed)>,
        answer: (Reply, Vec<OwnedFd>),
    ) -> Step {
        let Some(saving) = self.saving.as_mut().filter(|_| !changed.is_empty()) else {
            return Step::Answer(Ok(answer));
        };
        let waiting = Waiting { answer, left: changed.len(), failed: None };
        saving.waiting.insert(conn, waiting);
        let mut before: Option<SwitchName> = None;
        for (switch, changed) in changed {
            if let Some(before) = before.replace(switch.clone()) {
                self.wait_for_first(&before);
            }
            self.note(conn, switch, changed);
        }
        Step::Save
    }

    fn note(&mut self, conn: ConnKey, switch: SwitchName, changed: Changed) {
        let saving = self.saving.as_mut().expect("the caller has looked");
        let entry = saving.pending.entry(switch.clone()).or_default();
        let noted = entry.noted.get_or_insert_default();
        noted.whole |= changed.whole;
        noted.ports.extend(changed.ports);
        entry.later.push(conn);
        self.send_noted(&switch);
    }

    /// Waits until the pending change of a switch is sent, for a change that must come after it.
    fn wait_for_first(&mut self, switch: &SwitchName) {
        while let Some(saving) = &mut self.saving
            && saving.pending.get(switch).is_some_and(|entry| entry.noted.is_some())
        {
            let written = saving.writer.wait();
            let early = self.note_saved(written);
            self.saving.as_mut().expect("it was there just now").early.extend(early);
        }
    }

    /// Takes the answers of commands whose changes are written, or cannot be, since the last call.
    pub fn saved(&mut self) -> Vec<(ConnKey, Answer)> {
        let Some(saving) = &mut self.saving else { return Vec::new() };
        let (mut answers, all) = (std::mem::take(&mut saving.early), saving.writer.written());
        answers.extend(all.into_iter().flat_map(|written| self.note_saved(written)));
        answers
    }

    /// Has everything written, and waits for that.
    pub fn save_all(&mut self) -> Vec<(ConnKey, Answer)> {
        let mut answers = self.forget_all_deferred();
        answers.extend(self.saved());
        while let Some(saving) = &mut self.saving
            && saving.pending.values().any(|entry| entry.now.is_some())
        {
            let written = saving.writer.wait();
            answers.extend(self.note_saved(written));
        }
        answers
    }

    /// Ends the writer, which tries everything again. Returns what it could not write.
    pub fn end_saving(&mut self) -> BTreeMap<SwitchName, NotWritten> {
        self.saving.take().map(|saving| saving.writer.end()).unwrap_or_default()
    }

    pub(super) fn note_saved(
        &mut self,
        Written { switch, result }: Written,
    ) -> Vec<(ConnKey, Answer)> {
        let saving = self.saving.as_mut().expect("it was sent");
        let entry = saving.pending.get_mut(&switch).expect("it was sent");
        let written = entry.now.take().expect("a change is written once");
        let answers = written.into_iter().filter_map(|conn| saving.count(conn, &result)).collect();
        self.send_noted(&switch);
        answers
    }

    /// Sends the pending change of a switch, unless the writer has one.
    fn send_noted(&mut self, switch: &SwitchName) {
        let Some(mut saving) = self.saving.take() else { return };
        let entry = saving.pending.get_mut(switch).expect("something was noted");
        if entry.now.is_none() {
            match entry.noted.take() {
                Some(noted) => {
                    entry.now = Some(std::mem::take(&mut entry.later));
                    let noted = Changed { whole: noted.whole || !entry.known, ..noted };
                    let change = self.change_of(switch, noted, &saving.plans);
                    entry.known = change.record.is_some();
                    saving.writer.write(change);
                }
                None if !entry.known => drop(saving.pending.remove(switch)),
                None => {}
            }
        }
        self.saving = Some(saving);
    }

    fn change_of(&self, name: &SwitchName, changed: Changed, plans: &Plans) -> Change {
        let Changed { ports, whole } = changed;
        let saved = |switch: &&Switch| {
            switch.persistent || self.state.ports_of(name).any(|(_, port)| is_saved(port))
        };
        let record = self.state.find_switch(name).filter(saved).map(|switch| {
            let all = || self.state.ports_of(name).map(|(name, _)| name.clone()).collect();
            let ports: BTreeSet<PortName> = if whole { all() } else { ports };
            let record = |name: PortName| {
                let record = self.record_of(&name, plans);
                (name, record)
            };
            SwitchChange {
                version: VERSION,
                switch: name.clone(),
                persistent: switch.persistent,
                settings: all_settings(switch),
                configured: plans.switches.get(name).cloned(),
                ports: ports.into_iter().map(record).collect(),
            }
        });
        Change { switch: name.clone(), record, whole }
    }

    fn record_of(&self, name: &PortName, plans: &Plans) -> Option<PortRecord> {
        let port = self.state.find_port(name).filter(|port| is_saved(port))?;
        let stations = self.statics.stations(name).collect();
        let (kind, settings) = (port.kind, show_port(&port.config, port.grant));
        let host = port.host.as_deref().map(show_host);
        let machine = port.machine.as_deref().cloned();
        let vxlan = port.vxlan.as_deref().cloned();
        let interface = port.interface.as_ref().map(show_interface);
        let now = PortText { kind, settings, host, machine, vxlan, interface, stations };
        Some(PortRecord { owner: port.owner, now, configured: plans.ports.get(name).cloned() })
    }

    /// What a command is going to change of the saved state.
    pub(super) fn changes_of(&self, request: &Request) -> Vec<(SwitchName, Changed)> {
        let home = |switch, mac, vlan| {
            let station = StaticAddress::new(mac, vlan).ok()?;
            self.statics.find(switch, station).cloned()
        };
        match request {
            Request::Switch(SwitchRequest::Add(spec))
            | Request::Switch(SwitchRequest::Set(spec)) => touch(&spec.switch, None),
            Request::Chain(ChainRequest::Add(ChainAdd { switch, .. }))
            | Request::Chain(ChainRequest::Del(ChainRef { switch, .. }))
            | Request::Rule(RuleRequest::Add(RuleAdd { switch, .. }))
            | Request::Rule(RuleRequest::Del(RuleDel { switch, .. }))
            | Request::Program(ProgramRequest::MapSet(ProgramEntrySet { switch, .. }))
            | Request::Program(ProgramRequest::MapDel(ProgramEntryRef { switch, .. })) => {
                touch(switch, None)
            }
            Request::Switch(SwitchRequest::Del(switch)) => {
                let whole = Changed { whole: true, ..Changed::default() };
                vec![(switch.switch.clone(), whole)]
            }
            Request::Port(PortRequest::Add(add)) => touch_port(&add.port),
            Request::Port(PortRequest::Set(set)) => touch_port(&set.port),
            Request::Port(PortRequest::Del(PortRef { port }))
            | Request::Interface(InterfaceRequest::Del(PortRef { port })) => touch_port(port),
            Request::Mdb(MdbRequest::Add(change) | MdbRequest::Del(change)) => {
                touch_port(&change.port)
            }
            Request::Fdb(FdbRequest::Add(add)) => {
                let before = home(add.port.switch(), add.mac, add.vlan);
                touch(add.port.switch(), before.into_iter().chain([add.port.clone()]))
            }
            Request::Fdb(FdbRequest::Del(del)) => {
                touch(&del.switch, home(&del.switch, del.mac, del.vlan))
            }
            Request::Interface(InterfaceRequest::Add(add)) => touch_port(&add.port),
            // The switch that gets the interface comes first: saved in two, it is made once.
            Request::Interface(InterfaceRequest::Attach(InterfaceAttach { port, .. })) => {
                [touch_port(port), touch_alone(port)].concat()
            }
            Request::Interface(InterfaceRequest::Detach(PortRef { port })) => {
                [touch_alone(port), touch_port(port)].concat()
            }
            _ => Vec::new(),
        }
    }
}

impl Saving {
    /// Counts a record that a client waits for as written, or as failed. Returns the client's
    /// answer after the last one.
    fn count(
        &mut self,
        conn: ConnKey,
        result: &Result<(), NotWritten>,
    ) -> Option<(ConnKey, Answer)> {
        let waiting = self.waiting.get_mut(&conn).expect("a client waits for its records");
        waiting.left -= 1;
        waiting.failed = waiting.failed.take().or(result.clone().err());
        if waiting.left > 0 {
            return None;
        }
        let Waiting { answer, failed, .. } = self.waiting.remove(&conn)?;
        Some((conn, failed.map_or(Ok(answer), |failed| Err(Refusal::NotSaved(failed)))))
    }
}

fn touch(
    switch: &SwitchName,
    ports: impl IntoIterator<Item = PortName>,
) -> Vec<(SwitchName, Changed)> {
    let ports = ports.into_iter().collect();
    vec![(switch.clone(), Changed { ports, whole: false })]
}

fn touch_port(port: &PortName) -> Vec<(SwitchName, Changed)> {
    touch(port.switch(), [port.clone()])
}

/// The change of the switch that an interface alone is.
fn touch_alone(port: &PortName) -> Vec<(SwitchName, Changed)> {
    PortName::interface(port.port()).map_or(Vec::new(), |alone| touch_port(&alone))
}

/// Whether state files hold the port.
fn is_saved(port: &Port) -> bool {
    // The first switch saves an interface that is in two.
    let is_second = port.cable.is_some() && port.interface.is_none();
    port.persistent && !is_second
}

/// An interface as a client asks for it: one that a client opened has no name in the request.
fn show_host(host: &HostIf) -> HostIf {
    let ifname = host.ifname.clone().filter(|_| host.fds == 0);
    HostIf { ifname, ..host.clone() }
}

fn show_interface(interface: &Interface) -> InterfaceText {
    let RingCounts { tx_rings, rx_rings, tx_slots, rx_slots } = interface.rings.counts;
    let (tx_slots, rx_slots) = (tx_slots.slots(), rx_slots.slots());
    InterfaceText { tx_rings, rx_rings, tx_slots, rx_slots, group: interface.group }
}

/// The program of a switch, or what is kept of a refused one.
fn program_of(switch: &Switch) -> Option<ProgramSpec> {
    let refused = || switch.refused_program.clone();
    switch.program.as_ref().map(LoadedProgram::spec).or_else(refused)
}

pub(super) fn all_settings(switch: &Switch) -> SwitchSettings {
    SwitchSettings {
        owner: Some(switch.permissions.owner),
        group: Some(switch.permissions.group),
        mode: Some(switch.permissions.mode),
        new_ports: Some(switch.new_ports),
        chains: Some(switch.steering.chains()).filter(|list| !list.is_empty()),
        rules: Some(switch.steering.rules()).filter(|list| !list.is_empty()),
        program: program_of(switch),
        ..show_switch(&switch.config)
    }
}
