//! Traces: what a switch would do with a frame, in the names of its ports and chains.

use std::collections::HashMap;

use packet::PortId;
use protocol::name::PortName;
use protocol::{
    FdbEntry, FloodClass, GroupScope, Learning, Reply, TRACE_HEAD, TagAction, Tagging, Trace,
    TraceQuery, TraceStep,
};
use switch::{Learned, McastScope};

use super::Control;
use crate::control::PAGE_BYTES;
use crate::control::datapath::Datapath;
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::Refusal;
use crate::model::keys::PortKey;
use crate::model::policy::{Access, Caller};
use crate::model::replies::count;

impl<D: Datapath> Control<D> {
    /// Says what a switch would do with a frame, to callers that may look at it.
    pub(super) fn trace(&mut self, caller: &Caller, query: &TraceQuery) -> Result<Reply, Refusal> {
        let name = self.state.resolve(&query.port);
        let port = self.state.port(caller, &name, Access::Look)?;
        port.check_switched(&name)?;
        let key = port.key;
        let head = packet::text::hex(&query.head).filter(|head| head.len() <= TRACE_HEAD);
        let head = head.ok_or_else(|| {
            Refusal::bad_value(format!("head: expected at most {TRACE_HEAD} bytes in hex"))
        })?;
        let steps = self.datapath.trace(key, head, query.bytes);
        let steps = steps.ok_or_else(|| PortRefusal::Idle(name.clone()))?;
        let names = self.names_of(name.switch());
        let view = View { control: self, port: &name, key, names };
        let mut bytes = 0;
        let fits = |step: &TraceStep| {
            bytes += serde_json::to_vec(step).map_or(PAGE_BYTES, |text| text.len() + 1);
            bytes <= PAGE_BYTES
        };
        let all = steps.len();
        let steps: Vec<_> =
            steps.into_iter().map(|step| view.step(step)).take_while(fits).collect();
        let left_out = count(all - steps.len());
        Ok(Reply::Trace(Trace { steps, left_out }))
    }
}

/// The names of a switch.
struct View<'a, D> {
    control: &'a Control<D>,
    /// The port that would send the frame.
    port: &'a PortName,
    key: PortKey,
    names: HashMap<PortKey, &'a PortName>,
}

impl<D: Datapath> View<'_, D> {
    fn step(&self, step: switch::TraceStep) -> TraceStep {
        use switch::TraceStep as Step;
        match step {
            Step::Vlan { vlan, tagging: how, has_tag } => {
                TraceStep::Vlan { vlan: vlan.get(), tagging: tagging(how, has_tag) }
            }
            Step::Learn(mac, learned) => {
                let (result, from) = learning(learned);
                TraceStep::Learn { mac, result, from: from.map(|port| self.port(port)) }
            }
            Step::Rule(rule) => TraceStep::Rule { rule },
            Step::Chain(number) => TraceStep::Chain { chain: self.chain(number) },
            Step::Function(port) => TraceStep::Function { port: self.port(port) },
            Step::Program => TraceStep::Program,
            Step::Lookup(mac, entry) => {
                TraceStep::Lookup { mac, entry: entry.map(|entry| self.entry(&entry)) }
            }
            Step::Flood(class) => TraceStep::Flood { class: flood_class(class) },
            Step::Group(mac, scope) => TraceStep::Group { mac, scope: group_scope(scope) },
            Step::Send(port, action) => {
                let (tag, vlan) = tag_action(action);
                TraceStep::Send { port: self.port(port), tag, vlan }
            }
            Step::Drop(port, reason) => {
                TraceStep::Drop { port: self.port(port), reason: reason.name().to_owned() }
            }
        }
    }

    /// The name of a port, or of the one for which it stands in.
    fn port(&self, id: PortId) -> PortName {
        let key = self.control.datapath.port_beside(self.key, id);
        let name = key.and_then(|key| self.names.get(&key).copied());
        name.unwrap_or(self.port).clone()
    }

    fn chain(&self, number: u8) -> String {
        let switch = self.control.state.find_switch(self.port.switch());
        let mut chains = switch.into_iter().flat_map(|switch| switch.steering.numbered());
        let chain = chains.find(|(chain, _)| *chain == number);
        chain.map_or_else(|| number.to_string(), |(_, chain)| chain.name.clone())
    }

    fn entry(&self, entry: &switch::FdbEntry) -> FdbEntry {
        FdbEntry {
            mac: entry.mac,
            vlan: entry.vlan.get(),
            port: self.port(entry.port),
            is_static: entry.age_ms.is_none(),
            extern_learn: entry.is_external,
            age_s: u32::try_from(entry.age_ms.unwrap_or(0) / 1000).unwrap_or(u32::MAX),
        }
    }
}

fn tagging(how: switch::Tagging, has_tag: bool) -> Tagging {
    match how {
        switch::Tagging::Untagged if has_tag => Tagging::Payload,
        switch::Tagging::Untagged => Tagging::Untagged,
        switch::Tagging::Priority => Tagging::Priority,
        switch::Tagging::Tagged => Tagging::Tagged,
    }
}

fn learning(learned: Learned) -> (Learning, Option<PortId>) {
    match learned {
        Learned::New => (Learning::New, None),
        Learned::Refreshed => (Learning::Refreshed, None),
        Learned::Moved { from } => (Learning::Moved, Some(from)),
        Learned::Static => (Learning::Static, None),
        Learned::PortLimit => (Learning::PortLimit, None),
        Learned::Full => (Learning::Full, None),
    }
}

fn flood_class(class: switch::FloodClass) -> FloodClass {
    match class {
        switch::FloodClass::Unicast => FloodClass::UnknownUnicast,
        switch::FloodClass::Multicast => FloodClass::Multicast,
        switch::FloodClass::Broadcast => FloodClass::Broadcast,
    }
}

fn group_scope(scope: McastScope) -> GroupScope {
    match scope {
        McastScope::Always => GroupScope::Always,
        McastScope::NoQuerier => GroupScope::NoQuerier,
        McastScope::Full => GroupScope::Full,
        McastScope::Members => GroupScope::Members,
        McastScope::NoMember => GroupScope::NoMember,
        McastScope::Report => GroupScope::Report,
        McastScope::Query => GroupScope::Query,
    }
}

fn tag_action(action: switch::TagAction) -> (TagAction, Option<u16>) {
    match action {
        switch::TagAction::Keep => (TagAction::Keep, None),
        switch::TagAction::Strip => (TagAction::Strip, None),
        switch::TagAction::Insert(vlan) => (TagAction::Insert, Some(vlan.get())),
        switch::TagAction::Replace(vlan) => (TagAction::Replace, Some(vlan.get())),
    }
}
