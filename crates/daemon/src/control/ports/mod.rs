//! Ports: added, changed, deleted, listed.
//!
//! # Theory of operation
//!
//! ```text
//!  port_add ──► plan_of ──┐
//!  file, saved state ─────┴─► make_port ──► datapath, by kind ──► State ─┐
//!  port_set ──► checked_change ──► what can fail ──► datapath ──► State ─┼─► refresh_…: chains,
//!  port_del ──► drop_port ──► State ──► datapath (account_gone) ─────────┘   programs, mirrors
//! ```
//!
//! A call is checked as a whole before it changes anything. What the datapath may refuse comes
//! before what `State` notes, and a switch that was made for a port goes if the port is refused. A
//! port goes from `State` first, with what cannot be without it (its pipes, the other end of a
//! cable), and then from the workers, which say what they have counted.
//!
//! Ports that come with their clients are made by `attach` and `netmap`.

pub(super) mod attach;
pub mod refusal;
mod succeed;

use std::collections::{BTreeSet, HashMap};

use packet::MacList;
use port::queue::QueueMemory;
use protocol::name::{PortName, SwitchName};
use protocol::{
    Peer, PortAdd, PortInfo, PortKind, PortList, PortSet, PortSettings, Reply, Vxlan, check,
};
use switch::PortConfig;

use crate::control::chains::refusal::ChainRefusal;
use crate::control::datapath::Datapath;
use crate::control::interfaces::host;
use crate::control::interfaces::refusal::InterfaceRefusal;
use crate::control::mirrors::refusal::MirrorRefusal;
use crate::control::refusal::Refusal;
use crate::control::state::shared::Shared;
use crate::control::state::{Holder, Port};
use crate::control::workers::moves::wanted_worker;
use crate::control::{Client, Control, machines, page, parse_port, vxlan};
use crate::model::error::DatapathError;
use crate::model::keys::{ConnKey, PortKey};
use crate::model::plan::{Origin, PortPlan};
use crate::model::policy::{Access, Caller, Grant, Permissions};
use crate::model::settings;
use crate::model::specs::{HostSpec, VxlanSpec};
use refusal::PortRefusal;

/// A port after a change that a caller may make.
struct PortChange {
    key: PortKey,
    is_live: bool,
    config: PortConfig,
    grant: Grant,
    vxlan: Option<Vxlan>,
    /// Frames of its queue, if that changes.
    queue_frames: Option<u32>,
}

impl<D: Datapath> Control<D> {
    pub(in crate::control) fn detach(
        &mut self,
        conn: ConnKey,
        name: &PortName,
    ) -> Result<Reply, Refusal> {
        let port = self.state.find_port(name);
        let holder = port.and_then(|port| port.holder.as_ref());
        let is_held = holder.is_some_and(|holder| holder.conn == conn);
        if is_held {
            let gone = self.state.release(name);
            self.account_gone(name, &gone);
        }
        // Also of a port that was deleted meanwhile.
        let leases = self.state.end_lease(conn, name);
        self.datapath.reclaim(leases);
        match is_held {
            true => Ok(Reply::Done),
            false => Err(PortRefusal::NotHeld(name.clone()).into()),
        }
    }

    /// Puts the buffers of a port in order, for another program behind the client that holds it.
    pub(in crate::control) fn recover(
        &mut self,
        client: &Client,
        name: &PortName,
    ) -> Result<Reply, Refusal> {
        let port = self.own_port(client, name)?;
        let mended = self.datapath.recover(port);
        tracing::debug!("{name}: {mended} slots got another buffer");
        Ok(Reply::Done)
    }

    pub(super) fn port_add(&mut self, client: &Client, add: &PortAdd) -> Result<Reply, Refusal> {
        let caller = &client.caller;
        if add.port.is_interface() {
            return Err(InterfaceRefusal::NotByPortAdd(add.port.clone()).into());
        }
        if add.kind.is_machine() {
            self.check_stalls(caller)?;
        }
        self.state.check_persistent(caller, &add.port)?;
        let plan = self.plan_of(caller, add)?;
        self.find_or_make(caller, add.port.switch())?;
        let made = self.make_port(caller.uid, &plan, Origin::Call);
        if made.is_err()
            && let Some(switch) = self.state.forget_switch(add.port.switch())
        {
            self.datapath.del_switch(switch);
        }
        if made.is_ok() && plan.machine.is_some_and(|machine| machine.held) {
            self.give(client, &add.port);
        }
        made.map(|()| Reply::Done)
    }

    /// The port that is asked for, if the caller may have it.
    fn plan_of(&self, caller: &Caller, add: &PortAdd) -> Result<PortPlan, Refusal> {
        let mut config = settings::new_port(add.kind, &add.settings)?;
        self.check_worker(&add.settings)?;
        self.assign_role(&add.port, add.kind, &mut config.role, &add.settings)?;
        check_header(add.kind, &add.settings)?;
        check::queue_frames(add.kind, add.machine.as_ref(), add.settings.queue_frames)
            .map_err(Refusal::bad_value)?;
        self.state.check_memory(caller.uid, QueueMemory::bytes(config.queue_frames))?;
        let host = host::request_of(caller, add, &self.defaults.declared)?;
        let machine = machines::request_of(caller, add)?;
        let vxlan = vxlan::request_of(caller, add)?;
        check::vlan_vni(vxlan.as_ref(), &config.vlan).map_err(Refusal::bad_value)?;
        let grant = settings::change_grant(Grant::default(), &add.settings)?;
        Ok(PortPlan {
            name: add.port.clone(),
            kind: add.kind,
            config,
            host,
            machine,
            vxlan,
            interface: None,
            stations: BTreeSet::new(),
            owner: None,
            grant,
        })
    }

    /// Makes a persistent port of a switch that exists; one of a plan without what it cannot have
    /// now.
    pub(super) fn make_port(
        &mut self,
        owner: u32,
        plan: &PortPlan,
        origin: Origin,
    ) -> Result<(), Refusal> {
        let (name, kind, mut config) = (plan.name.clone(), plan.kind, plan.config.clone());
        config.user = plan.grant.owner.unwrap_or(owner);
        if kind.peer() == Peer::Machine {
            config.usual_max_macs = self.usual_max_macs(config.user);
        }
        let home = self.state.find_switch(name.switch()).expect("its switch comes first");
        let (switch, ageing_ms) = (home.key, home.config.ageing_ms);
        if !kind.is_given() && plan.grant != Grant::default() {
            return Err(PortRefusal::GrantServed(name).into());
        }
        self.admit_mirror(&name, &mut config, origin)?;
        let key = PortKey(self.state.new_key());
        match kind.peer() {
            Peer::Client => {}
            Peer::Sink => self.datapath.add_null(key, switch, config.clone())?,
            Peer::Machine => {
                let plan = PortPlan { config: config.clone(), ..plan.clone() };
                self.add_machine(key, switch, owner, &plan, origin)?;
            }
            Peer::Interface(_) => {
                let host = plan.host.clone().expect("a plan names the interface");
                let (name, config) = (name.clone(), config.clone());
                let opening = self.opened(kind, &host);
                let spec = HostSpec { key, name, switch, kind, host, config, opening };
                self.add_host(&spec, owner, origin)?;
            }
            Peer::Hosts => {
                let vxlan = plan.vxlan.clone().expect("a plan names the tunnel");
                let (name, config) = (name.clone(), config.clone());
                let spec = VxlanSpec { key, name, switch, vxlan, config, ageing_ms };
                self.add_vxlan(&spec, origin)?;
            }
            Peer::Pipe => return Err(PortRefusal::PipePersistent(name).into()),
        }
        let (host, grant) = (plan.host.clone().map(Box::new), plan.grant);
        let machine = plan.machine.clone().map(Box::new);
        let vxlan = plan.vxlan.clone().map(Box::new);
        let port = Port::persistent(key, kind, owner, config);
        let port = Port { host, machine, vxlan, grant, ..port };
        self.state.add_port(name, port);
        self.refresh_steering(plan.name.switch());
        self.refresh_programs(&plan.name);
        self.refresh_mirrors(&plan.name);
        Ok(())
    }

    pub(super) fn port_set(&mut self, caller: &Caller, set: &PortSet) -> Result<Reply, Refusal> {
        let PortChange { key, is_live, config, grant, vxlan, queue_frames } =
            self.checked_change(caller, set)?;
        // First what can fail.
        let memory = queue_frames.map(QueueMemory::new).transpose();
        let memory = memory.map_err(DatapathError::System)?;
        if let Some(wanted) = wanted_worker(set)
            && self.movable(caller, &wanted).is_ok()
        {
            self.move_to(&wanted, key)?;
        }
        if let Some(memory) = memory {
            self.datapath.set_queue(key, memory);
        }
        if is_live {
            self.datapath.set_port(key, config.clone());
        }
        if let Some(vxlan) = &vxlan {
            self.datapath.set_vxlan(key, vxlan);
        }
        let port = self.state.port_mut(&set.port).expect("it was there just now");
        port.vxlan = vxlan.map(Box::new).or_else(|| port.vxlan.take());
        (port.config, port.grant) = (config, grant);
        self.refresh_port(&set.port);
        Ok(Reply::Done)
    }

    /// What a call makes of a port, if the caller may change it so.
    fn checked_change(&self, caller: &Caller, set: &PortSet) -> Result<PortChange, Refusal> {
        let port = self.state.port(caller, &set.port, Access::Manage)?;
        if port.kind == PortKind::Pipe {
            return Err(PortRefusal::PipeSettings(set.port.clone()).into());
        }
        let mut config = settings::change_port(port.config.clone(), &set.settings)?;
        self.check_worker(&set.settings)?;
        let grant = settings::change_grant(port.grant, &set.settings)?;
        check_gift(&set.port, port, grant)?;
        check_header(port.kind, &set.settings)?;
        check::queue_frames(port.kind, port.machine.as_deref(), set.settings.queue_frames)
            .map_err(Refusal::bad_value)?;
        let (queue, old_queue) = (config.queue_frames, port.config.queue_frames);
        let more = QueueMemory::bytes(queue).saturating_sub(QueueMemory::bytes(old_queue));
        self.state.check_memory(port.owner, more)?;
        if config.mirror.is_some() && !port.persistent {
            return Err(MirrorRefusal::Transient(set.port.clone()).into());
        }
        self.check_mirror(&set.port, &config)?;
        if config.role != port.config.role {
            self.assign_role(&set.port, port.kind, &mut config.role, &set.settings)?;
        }
        let service = port.config.role.service.as_ref();
        if service.is_some() && config.role.service.as_ref() != service && port.is_live() {
            return Err(ChainRefusal::FunctionRuns(set.port.clone()).into());
        }
        if config.security.mac_lock != port.config.security.mac_lock {
            config.security_state.first_macs = MacList::default();
        }
        let vxlan =
            set.vxlan.as_ref().map(|change| vxlan::changed(caller, &set.port, port, change));
        let vxlan = vxlan.transpose()?;
        check::vlan_vni(vxlan.as_ref().or(port.vxlan.as_deref()), &config.vlan)
            .map_err(Refusal::bad_value)?;
        if let Some(vxlan) = vxlan.as_ref().filter(|vxlan| !vxlan.vlan_vni.is_empty()) {
            self.check_vnis(&set.port, vxlan)?;
        }
        let (key, is_live) = (port.key, port.is_live());
        let queue_frames = (queue != old_queue).then_some(queue);
        Ok(PortChange { key, is_live, config, grant, vxlan, queue_frames })
    }

    pub(super) fn port_del(&mut self, caller: &Caller, name: &PortName) -> Result<Reply, Refusal> {
        self.state.port(caller, name, Access::Manage)?;
        self.drop_port(name);
        Ok(Reply::Done)
    }

    /// Removes a port, held or not, and what cannot be without it.
    pub(super) fn drop_port(&mut self, name: &PortName) {
        self.part_switches(name);
        for port in self.state.port_and_pipes(name) {
            let holders = self.state.binders(&port);
            if self.state.find_port(&port).is_some() {
                let gone = self.state.remove_port(&port);
                self.account_gone(&port, &gone);
            }
            // A client that held both sides of an interface holds neither any more.
            holders.into_iter().for_each(|conn| self.unbind(conn));
        }
        self.retire(name);
    }

    pub(super) fn port_list(&self, caller: &Caller, list: &PortList) -> Result<Reply, Refusal> {
        let visible = self.visible_ports(caller, list.switch.as_ref(), list.from.as_deref())?;
        Ok(Reply::Ports(page(visible.map(|(name, port)| (name, self.row(name, port, list.brief))))))
    }

    pub(super) fn port_show(&self, caller: &Caller, name: &PortName) -> Result<Reply, Refusal> {
        let name = &self.state.resolve(name);
        let port = self.state.port(caller, name, Access::Look)?;
        Ok(Reply::Port(self.row(name, port, false)))
    }

    /// A port as a listing has it; a brief one does not look at settings that it leaves out.
    fn row(&self, name: &PortName, port: &Port, is_brief: bool) -> PortInfo {
        let holder = port.holder.as_ref().filter(|holder| holder.ready);
        let shared = port.bound.as_ref();
        let security = self.security_in_force(name, port);
        let state = self.security_state(port, &security);
        let settings = match is_brief {
            true => PortSettings { label: port.config.label.clone(), ..PortSettings::default() },
            false => {
                let config = PortConfig { security, ..port.config.clone() };
                settings::show_port(&config, self.shown_grant(name, port))
            }
        };
        PortInfo {
            port: name.clone(),
            kind: port.kind,
            number: self.datapath.number_of(port.key),
            worker: self.datapath.worker_of_port(port.key),
            persistent: port.persistent,
            creator: port.owner,
            client: port.client(),
            counts: holder.map(|holder| holder.counts.clone()).unwrap_or_default(),
            memory: holder.map_or(0, |h| h.memory)
                + shared.map_or(0, Shared::all_memory)
                + QueueMemory::bytes(port.config.queue_frames),
            trust_group: holder
                .and_then(Holder::shown_group)
                .or_else(|| host::trust_group_of(port)),
            settings,
            disabled: state.disabled.map(|why| why.name().to_owned()),
            first_macs: state.first_macs.as_slice().to_vec(),
            host: self.host_info(port).map(Box::new),
            machine: self.machine_info(port).map(Box::new),
            vxlan: self.vxlan_info(port).map(Box::new),
        }
    }

    /// The users that may attach to a permanent port, as listings show them.
    fn shown_grant(&self, name: &PortName, port: &Port) -> Grant {
        if port.kind.is_machine() {
            return port.grant;
        }
        if !port.persistent || port.kind != PortKind::Shm {
            return Grant::default();
        }
        let switch = self.state.find_switch(name.switch()).expect("a port has a switch");
        let Permissions { owner, group, mode } = port.permissions(switch);
        Grant { owner: Some(owner), group: Some(group), mode: Some(mode) }
    }

    /// The ports that a caller may see, of one switch or of all, from a name on.
    pub(super) fn visible_ports<'a>(
        &'a self,
        caller: &'a Caller,
        switch: Option<&'a SwitchName>,
        from: Option<&str>,
    ) -> Result<impl Iterator<Item = (&'a PortName, &'a Port)>, Refusal> {
        let from = from.map(parse_port).transpose()?;
        if let Some(name) = switch {
            self.state.switch(caller, name, Access::Look)?;
        }
        let ports = self.state.ports_from(from.max(switch.map(PortName::first_of)));
        let ports = ports.take_while(move |(name, _)| switch.is_none_or(|it| it == name.switch()));
        let mut may_look: HashMap<&SwitchName, bool> = HashMap::new();
        Ok(ports.filter(move |(name, port)| {
            let may_look = may_look.entry(name.switch()).or_insert_with_key(|switch| {
                self.state.switch(caller, switch, Access::Look).is_ok()
            });
            port.is_listed() && *may_look
        }))
    }
}

/// Whether a port can be given to a user.
fn check_gift(name: &PortName, port: &Port, grant: Grant) -> Result<(), Refusal> {
    match grant == port.grant {
        true => Ok(()),
        false if port.kind.is_machine() => Err(PortRefusal::GrantSocket(name.clone()).into()),
        false if port.kind != PortKind::Shm => Err(PortRefusal::GrantServed(name.clone()).into()),
        false if !port.persistent => Err(PortRefusal::GrantTransient(name.clone()).into()),
        false => Ok(()),
    }
}

/// A machine's queues have the header that its driver wants.
fn check_header(kind: PortKind, settings: &PortSettings) -> Result<(), Refusal> {
    match settings.vnet_header {
        Some(1..) if kind.is_machine() => Err(Refusal::bad_value(format!(
            "vnet_header: for ports that programs attach to, not for kind {}",
            kind.name()
        ))),
        _ => Ok(()),
    }
}
