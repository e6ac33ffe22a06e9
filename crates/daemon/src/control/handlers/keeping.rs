//! What commands made is written down for the next daemon, before they hear that it is done.

use std::collections::{BTreeMap, BTreeSet};

use client::api::{InterfaceAttach, PortRef, Request, SwitchSettings};
use client::name::{PortName, SwitchName};
use ring::layout::RingCounts;

use super::{Control, Port, Switch};
use crate::config::SwitchPlan;
use crate::control::datapath::Datapath;
use crate::control::settings::show_port;
use crate::control::state::bound::Interface;
use crate::records::{
    InterfaceText, PortRecord, PortText, SwitchRecord, VERSION, configured, show_switch,
};
use crate::store::Store;

/// Where, and beside what.
#[derive(Debug)]
pub(super) struct Keeping {
    store: Store,
    /// What the configuration says.
    plans: BTreeMap<SwitchName, SwitchPlan>,
    /// Switches whose last change could not be written.
    unsaved: BTreeSet<SwitchName>,
}

impl<D: Datapath> Control<D> {
    /// From now on everything that commands make is kept; `plans` is what the configuration made.
    pub fn keep_in(&mut self, store: Store, plans: &[SwitchPlan]) {
        let plans = plans.iter().map(|plan| (plan.name.clone(), plan.clone())).collect();
        self.keeping = Some(Keeping { store, plans, unsaved: BTreeSet::new() });
    }

    /// Writes down what a switch is now. Where that fails the change holds, but not for the next
    /// daemon: the log says so, and it is tried again with the next change.
    pub(super) fn keep(&mut self, switch: SwitchName) {
        let Some(mut keeping) = self.keeping.take() else { return };
        keeping.unsaved.insert(switch);
        keeping.unsaved.retain(|name| {
            let saved = keeping.store.save(name, self.record_of(name, &keeping.plans).as_ref());
            if let Err(error) = &saved {
                tracing::error!("{name}: not kept for the next daemon: {error}");
            }
            saved.is_err()
        });
        self.keeping = Some(keeping);
    }

    fn record_of(
        &self,
        name: &SwitchName,
        plans: &BTreeMap<SwitchName, SwitchPlan>,
    ) -> Option<SwitchRecord> {
        let switch = self.state.find_switch(name)?;
        let plan = plans.get(name);
        let persistent =
            self.state.ports_of(name).filter(|(_, port)| port.persistent && !is_of_a_process(port));
        let ports: BTreeMap<_, _> = persistent
            .map(|(name, port)| {
                let stations = self.statics.stations(name).collect();
                let (kind, settings) = (port.kind, show_port(&port.config, port.grant));
                let host = port.host.as_deref().cloned();
                let interface = port.interface.map(show_interface);
                let now = PortText { kind, settings, host, interface, stations };
                let base = plan.and_then(|plan| plan.ports.iter().find(|p| p.name == *name));
                let configured = base.map(PortText::of);
                (name.clone(), PortRecord { owner: port.owner, now, configured })
            })
            .collect();
        (switch.persistent || !ports.is_empty()).then(|| SwitchRecord {
            version: VERSION,
            switch: name.clone(),
            persistent: switch.persistent,
            settings: all_settings(switch),
            configured: plan.map(configured),
            ports,
        })
    }
}

/// Whether its network namespace is named by a process: another one may have the number when the
/// next daemon starts.
fn is_of_a_process(port: &Port) -> bool {
    let netns = port.host.as_ref().and_then(|host| host.netns.as_deref());
    netns.is_some_and(|name| name.starts_with("/proc/") || name.bytes().all(|b| b.is_ascii_digit()))
}

fn all_settings(switch: &Switch) -> SwitchSettings {
    SwitchSettings {
        owner: Some(switch.permissions.owner),
        group: Some(switch.permissions.group),
        mode: Some(switch.permissions.mode),
        new_ports: Some(switch.new_ports),
        ..show_switch(&switch.config)
    }
}

fn show_interface(interface: Interface) -> InterfaceText {
    let RingCounts { tx_rings, rx_rings, tx_slots, rx_slots } = interface.rings.counts;
    let (tx_slots, rx_slots) = (tx_slots.slots(), rx_slots.slots());
    InterfaceText { tx_rings, rx_rings, tx_slots, rx_slots, group: interface.group }
}

/// The switches of which a call changes something that is kept.
pub(super) fn changes(request: &Request) -> Vec<SwitchName> {
    let switch = match request {
        Request::SwitchAdd(spec) | Request::SwitchSet(spec) => &spec.switch,
        Request::SwitchDel(switch) => &switch.switch,
        Request::PortAdd(add) => add.port.switch(),
        Request::PortSet(set) => set.port.switch(),
        Request::PortDel(port) => port.port.switch(),
        Request::FdbAdd(add) => add.port.switch(),
        Request::FdbDel(del) => &del.switch,
        Request::InterfaceAdd(add) => add.port.switch(),
        Request::InterfaceDel(port) => port.port.switch(),
        // First where it is now: written twice, it is made once.
        Request::InterfaceAttach(InterfaceAttach { port, .. }) => {
            return [port.switch().clone()].into_iter().chain(alone(port)).collect();
        }
        Request::InterfaceDetach(PortRef { port }) => {
            return alone(port).into_iter().chain([port.switch().clone()]).collect();
        }
        _ => return Vec::new(),
    };
    vec![switch.clone()]
}

/// The switch in which an interface is alone.
fn alone(port: &PortName) -> Option<SwitchName> {
    PortName::interface(port.port()).ok().map(|name| name.switch().clone())
}
