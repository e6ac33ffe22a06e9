//! Whether a switch or a port is the one that a script would add.
//!
//! Of settings, which may change, only those that the script gives are compared: they differ if
//! setting them would change anything. A port's kind, interface and socket stay as they are from
//! its beginning, so all of these are compared, with the defaults where nothing is given.

use protocol::{
    HostIf, Machine, PortAdd, PortKind, PortSettings, ProgramSpec, Reply, SwitchSettings,
    SwitchSpec, Vxlan,
};
use serde::Serialize;

use super::difference::difference;
use super::save::all_settings;
use super::{Control, machines, vxlan};
use crate::control::datapath::Datapath;
use crate::control::interfaces::host;
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::Refusal;
use crate::control::switches::refusal::SwitchRefusal;
use crate::model::policy::{Access, Caller};
use crate::model::settings::{change_grant, change_port, change_switch, show_port};
use crate::store::record::show_switch;

/// A port, as a comparison sees it.
#[derive(Serialize)]
struct Compared<'a> {
    kind: PortKind,
    #[serde(flatten)]
    host: Option<&'a HostIf>,
    #[serde(flatten)]
    machine: Option<&'a Machine>,
    #[serde(flatten)]
    vxlan: Option<&'a Vxlan>,
    #[serde(flatten)]
    settings: PortSettings,
}

impl<D: Datapath> Control<D> {
    pub(super) fn port_compare(&self, caller: &Caller, add: &PortAdd) -> Result<Reply, Refusal> {
        let port = self.state.port(caller, &add.port, Access::Manage)?;
        let host = host::request_of(caller, add, &self.defaults.declared)?;
        let machine = machines::request_of(caller, add)?;
        let vxlan = vxlan::request_of(caller, add)?;
        let config = change_port(port.config.clone(), &add.settings)?;
        let grant = change_grant(port.grant, &add.settings)?;
        let tunnel = port.vxlan.as_deref().map(Vxlan::configured);
        let has = Compared {
            kind: port.kind,
            host: port.host.as_deref(),
            machine: port.machine.as_deref(),
            vxlan: tunnel.as_ref(),
            settings: show_port(&port.config, port.grant),
        };
        let wanted = Compared {
            kind: add.kind,
            host: host.as_ref(),
            machine: machine.as_ref(),
            vxlan: vxlan.as_ref(),
            settings: show_port(&config, grant),
        };
        let is_held = machine.as_ref().is_some_and(|machine| machine.held);
        let transient =
            (!port.persistent && !is_held).then(|| "it goes with its client".to_owned());
        match transient.or_else(|| difference(&has, &wanted)) {
            None => Ok(Reply::Done),
            Some(what) => Err(PortRefusal::Differs(add.port.clone(), what.into()).into()),
        }
    }

    pub(super) fn switch_compare(
        &self,
        caller: &Caller,
        spec: &SwitchSpec,
    ) -> Result<Reply, Refusal> {
        let (name, asked) = (&spec.switch, &spec.settings);
        let switch = self.state.switch(caller, name, Access::Manage)?;
        let has = all_settings(switch);
        let wanted = SwitchSettings {
            owner: asked.owner.or(has.owner),
            group: asked.group.or(has.group),
            mode: asked.mode.or(has.mode),
            new_ports: asked.new_ports.or(has.new_ports),
            chains: asked.chains.clone().or_else(|| has.chains.clone()),
            rules: asked.rules.clone().or_else(|| has.rules.clone()),
            program: compared(asked.program.as_ref(), has.program.as_ref()),
            ..show_switch(&change_switch(switch.config, asked)?)
        };
        let transient = (!switch.persistent).then(|| "it goes with its last port".to_owned());
        match transient.or_else(|| difference(&has, &wanted)) {
            None => Ok(Reply::Done),
            Some(what) => Err(SwitchRefusal::Differs(name.clone(), what.into()).into()),
        }
    }
}

/// The program that is asked for, with the entries that commands have set in the one that is there.
fn compared(asked: Option<&ProgramSpec>, has: Option<&ProgramSpec>) -> Option<ProgramSpec> {
    let entries = has.map(|has| has.entries.clone()).unwrap_or_default();
    let asked = asked.map(|asked| ProgramSpec { entries, ..asked.clone() });
    asked.or_else(|| has.cloned())
}
