//! From a call to its answer: ask the state, tell the workers, enter the result.

mod addresses;
mod attach;
mod audit;
mod call_log;
mod chains;
mod defer;
mod draft;
mod followers;
mod groups;
pub mod host;
mod interfaces;
mod lone;
pub mod machine;
mod netmap;
mod parts;
mod roles;
mod save;
mod switches;
mod wanted;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::time::Instant;

use protocol::name::{PortName, SwitchName};
use protocol::{
    Attach, ClientInfo, DaemonInfo, FdbRequest, FunctionRequest, GroupRequest, Hello,
    InterfaceRequest, NewPorts, Page, Peer, PortAdd, PortInfo, PortKind, PortList, PortRef,
    PortRequest, PortSet, PortSettings, PortStats, Reply, Request, SessionRequest, StatsPage,
    StatsQuery, SwitchRef, SwitchRequest, SwitchSpec,
};
use serde::Serialize;
use switch::{PortConfig, SwitchConfig};

use super::counters;
use super::datapath::Datapath;
use super::declared::Declared;
use super::refusal::{ChainRefusal, InterfaceRefusal, PortRefusal, Refusal, SwitchRefusal};
use super::state::bound::Shared;
use super::state::{Gone, Holder, Port, State, Switch, change_permissions};
use super::statics::Statics;
use crate::config::Config;
use crate::model::keys::{ConnKey, GroupKey, PortKey, SwitchKey};
use crate::model::opening::Build;
use crate::model::plan::{PortPlan, SwitchPlan};
use crate::model::policy::{Access, Caller, Grant, Permissions};
use crate::model::settings;
use crate::model::specs::HostSpec;
use crate::model::steering::Steering;
use call_log::CallLog;
use parts::{Defaults, Pending, PortNotes};
use save::Saving;
use wanted::PortCounters;

/// A connected client.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its connection.
    pub conn: ConnKey,
    /// Who it is.
    pub caller: Caller,
    /// What it calls itself.
    pub name: String,
}

/// The answer to a call, with the descriptors that go beside it.
pub type Answer = Result<(Reply, Vec<OwnedFd>), Refusal>;

/// What comes of a call.
#[expect(clippy::large_enum_variant, reason = "taken apart at once, never kept")]
pub enum Step {
    /// This.
    Answer(Answer),
    /// The answer of [`Control::finish`], when this is done. Until then the client waits.
    Build(Build),
    /// One of those that [`Control::saved`] has, when the change is on the disk, likewise.
    Save,
}

/// The control plane behind the socket.
#[derive(Debug)]
pub struct Control<D> {
    state: State,
    datapath: D,
    statics: Statics,
    saving: Option<Saving>,
    call_log: CallLog,
    defaults: Defaults,
    pending: Pending,
    notes: PortNotes,
}

impl<D: Datapath> Control<D> {
    /// A control plane without switches.
    #[must_use]
    pub fn new(config: &Config, datapath: D) -> Self {
        Self {
            state: State::new(config.quota),
            datapath,
            statics: Statics::default(),
            saving: None,
            call_log: CallLog::default(),
            defaults: Defaults {
                dir: protocol::paths::daemon_dir(config.dir.as_deref()),
                rings: config.rings,
                new_group: config.new_group().bytes,
                declared: Declared::of(config),
                switch_mode: config.switch_mode,
                started: Instant::now(),
            },
            pending: Pending::default(),
            notes: PortNotes {
                uplinks: HashMap::new(),
                polled: BTreeSet::new(),
                followers: BTreeMap::new(),
                allowances: machine::Allowances::new(config.quota.machines),
            },
        }
    }

    /// Makes a switch and its ports at the start, for the daemon's user unless the plan says
    /// whose they are.
    pub fn make_planned(&mut self, daemon: &Caller, plan: &SwitchPlan) -> Result<(), Refusal> {
        let mine = self.new_permissions(daemon);
        let permissions = Permissions {
            owner: plan.owner.unwrap_or(mine.owner),
            group: plan.group.unwrap_or(mine.group),
            mode: plan.mode.unwrap_or(mine.mode),
        };
        self.make_switch(&plan.name, plan.persistent, permissions, plan.config, None)?;
        let switch = self.state.switch_mut(&plan.name).expect("made just now");
        switch.new_ports = plan.new_ports;
        for port in &plan.ports {
            let owner = port.owner.unwrap_or(permissions.owner);
            if let Some(text) = &port.interface {
                self.make_planned_interface(owner, port, text)?;
            } else {
                self.make_port(owner, &self.with_declared(port), true)?;
            }
            for &station in &port.stations {
                self.add_planned(&port.name, station)?;
            }
        }
        self.plan_steering(plan)
    }

    /// Answers a call, or says what has to be done first.
    pub fn call(&mut self, client: &mut Client, request: Request) -> Step {
        match self.begin_open(client, &request) {
            Some(build) => Step::Build(build),
            None => self.begin(client, request),
        }
    }

    fn carry_out(&mut self, client: &mut Client, request: Request) -> Answer {
        let caller = client.caller.clone();
        let reply = match request {
            Request::Session(call) => return self.session_call(client, call),
            Request::Switch(call) => self.switch_call(client, call),
            Request::Port(call) => self.port_call(client, call),
            Request::Fdb(call) => self.fdb_call(&caller, call),
            Request::Interface(call) => self.interface_call(&caller, call),
            Request::Chain(call) => self.chain_call(&caller, call),
            Request::Rule(call) => self.rule_call(&caller, call),
            Request::Function(FunctionRequest::Next(PortRef { port })) => {
                return self.next_functions(client, &port);
            }
            Request::Function(call) => self.function_call(&caller, call),
            Request::Group(GroupRequest::Audit(from)) => self.audit(&caller, &from),
        };
        reply.map(|reply| (reply, Vec::new()))
    }

    fn session_call(&mut self, client: &mut Client, call: SessionRequest) -> Answer {
        let reply = match call {
            SessionRequest::Hello(hello) => self.hello(client, &hello),
            SessionRequest::Detach(PortRef { port }) => self.detach(client.conn, &port)?,
            SessionRequest::Resume => return self.resume(client),
            SessionRequest::Attach(_) | SessionRequest::Bind(_) => {
                unreachable!("a call that takes two steps")
            }
        };
        Ok((reply, Vec::new()))
    }

    fn switch_call(&mut self, client: &Client, call: SwitchRequest) -> Result<Reply, Refusal> {
        let caller = &client.caller;
        match call {
            SwitchRequest::Add(spec) => self.switch_add(caller, &spec),
            SwitchRequest::Set(spec) => {
                let spec = self.with_draft(client.conn, spec);
                self.switch_set(caller, &spec)
            }
            SwitchRequest::Draft(spec) => self.switch_draft(client, spec),
            SwitchRequest::Del(SwitchRef { switch }) => self.switch_del(caller, &switch),
            SwitchRequest::List(from) => Ok(self.switch_list(caller, &from)),
            SwitchRequest::Show(SwitchRef { switch }) => self.switch_show(caller, &switch),
        }
    }

    fn port_call(&mut self, client: &mut Client, call: PortRequest) -> Result<Reply, Refusal> {
        let caller = client.caller.clone();
        match call {
            PortRequest::Add(add) => self.port_add(client, &add),
            PortRequest::Set(set) => self.port_set(&caller, &set),
            PortRequest::Del(PortRef { port }) => self.port_del(&caller, &port),
            PortRequest::List(list) => self.port_list(&caller, &list),
            PortRequest::Show(PortRef { port }) => self.port_show(&caller, &port),
            PortRequest::Stats(query) => self.stats(&caller, &query),
            PortRequest::Geometry(query) => self.port_geometry(&caller, &query),
        }
    }

    fn fdb_call(&mut self, caller: &Caller, call: FdbRequest) -> Result<Reply, Refusal> {
        match call {
            FdbRequest::List(list) => self.fdb_list(caller, &list),
            FdbRequest::Add(add) => self.fdb_add(caller, &add),
            FdbRequest::Del(del) => self.fdb_del(caller, &del),
            FdbRequest::Flush(flush) => self.fdb_flush(caller, &flush),
        }
    }

    fn interface_call(
        &mut self,
        caller: &Caller,
        call: InterfaceRequest,
    ) -> Result<Reply, Refusal> {
        match call {
            InterfaceRequest::Add(add) => self.interface_add(caller, &add),
            InterfaceRequest::Del(PortRef { port }) => self.interface_del(caller, &port),
            InterfaceRequest::Attach(attach) => self.interface_attach(caller, &attach),
            InterfaceRequest::Detach(PortRef { port }) => self.interface_detach(caller, &port),
            InterfaceRequest::Poll(poll) => self.interface_poll(caller, &poll),
        }
    }

    /// Takes back everything that a connection held.
    pub fn hang_up(&mut self, conn: ConnKey) {
        self.note_leaving(conn);
        self.pending.awaited.remove(&conn);
        self.pending.drafts.remove(&conn);
        self.forget_deferred(conn);
        for port in self.state.held_by(conn) {
            let gone = self.state.release(&port);
            self.settle(&port, &gone);
        }
        self.unbind(conn);
        self.datapath.close_in_background();
    }

    fn hello(&self, client: &mut Client, hello: &Hello) -> Reply {
        client.name = hello.client.chars().filter(|c| !c.is_control()).take(64).collect();
        let (switches, ports) = self.state.counts();
        Reply::Daemon(DaemonInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            uptime_s: self.defaults.started.elapsed().as_secs(),
            workers: self.datapath.workers(),
            switches: count(switches),
            ports: count(ports),
        })
    }
}

/// Switches.
impl<D: Datapath> Control<D> {
    fn switch_add(&mut self, caller: &Caller, spec: &SwitchSpec) -> Result<Reply, Refusal> {
        match self.state.find_switch(&spec.switch) {
            None => {}
            Some(switch) if switch.persistent || spec.switch.is_interface() => {
                return Err(SwitchRefusal::Exists(spec.switch.clone()).into());
            }
            Some(_) => return self.switch_keep(caller, spec),
        }
        let config = settings::change_switch(SwitchConfig::default(), &spec.settings)?;
        self.state.claim_switch(caller, config.fdb_capacity)?;
        let mine = self.new_permissions(caller);
        let permissions = change_permissions(mine, caller, &spec.settings)?;
        let steering = self.wanted_steering(&spec.switch, &spec.settings)?;
        self.make_switch(&spec.switch, true, permissions, config, None)?;
        let switch = self.state.switch_mut(&spec.switch).expect("made just now");
        switch.new_ports = spec.settings.new_ports.unwrap_or_default();
        switch.steering = steering.unwrap_or_default();
        self.refresh_forwarding(&spec.switch);
        Ok(Reply::Done)
    }

    /// A switch that came with its first port stays from now on.
    fn switch_keep(&mut self, caller: &Caller, spec: &SwitchSpec) -> Result<Reply, Refusal> {
        self.switch_set(caller, spec)?;
        self.state.switch_mut(&spec.switch).expect("it was there just now").persistent = true;
        Ok(Reply::Done)
    }

    fn switch_set(&mut self, caller: &Caller, spec: &SwitchSpec) -> Result<Reply, Refusal> {
        let switch = self.state.switch(caller, &spec.switch, Access::Manage)?;
        let key = switch.key;
        let permissions = change_permissions(switch.permissions, caller, &spec.settings)?;
        let config = settings::change_switch(switch.config, &spec.settings)?;
        self.check_capacity(&spec.switch, config)?;
        self.check_forwarding(&spec.switch, config)?;
        let steering = self.wanted_steering(&spec.switch, &spec.settings)?;
        let more = config.fdb_capacity.saturating_sub(switch.config.fdb_capacity);
        self.state.claim_addresses(switch.permissions.owner, more)?;
        if config != switch.config {
            self.datapath.set_switch(key, config)?;
        }
        let switch = self.state.switch_mut(&spec.switch).expect("it was there just now");
        switch.permissions = permissions;
        switch.config = config;
        switch.new_ports = spec.settings.new_ports.unwrap_or(switch.new_ports);
        if let Some(steering) = steering {
            switch.steering = steering;
        }
        self.refresh_forwarding(&spec.switch);
        Ok(Reply::Done)
    }

    fn switch_del(&mut self, caller: &Caller, name: &SwitchName) -> Result<Reply, Refusal> {
        self.state.switch(caller, name, Access::Manage)?;
        let ports: Vec<PortName> = self.state.ports_of(name).map(|(n, _)| n.clone()).collect();
        for port in ports {
            self.drop_port(&port);
        }
        if let Some(key) = self.state.remove_switch(name) {
            self.datapath.del_switch(key);
        }
        Ok(Reply::Done)
    }

    fn new_permissions(&self, caller: &Caller) -> Permissions {
        Permissions { owner: caller.uid, group: caller.gid, mode: self.defaults.switch_mode }
    }

    fn make_switch(
        &mut self,
        name: &SwitchName,
        persistent: bool,
        permissions: Permissions,
        config: SwitchConfig,
        beside: Option<SwitchKey>,
    ) -> Result<SwitchKey, Refusal> {
        let key = SwitchKey(self.state.new_key());
        self.datapath.add_switch(key, config, beside)?;
        let (new_ports, steering) = (NewPorts::Any, Steering::default());
        let switch = Switch {
            key,
            persistent,
            permissions,
            new_ports,
            config,
            steering,
            planner: None,
            listed: None,
        };
        self.state.add_switch(name.clone(), switch);
        Ok(key)
    }

    /// The switch of an attach or of a new port, made if there is none. The caller's right to it
    /// has been checked.
    fn find_or_make(&mut self, caller: &Caller, name: &SwitchName) -> Result<SwitchKey, Refusal> {
        if let Some(switch) = self.state.switch_mut(name) {
            return Ok(switch.key);
        }
        let permissions = self.new_permissions(caller);
        // One descriptor may hold both sides of an interface, and rings one worker's doorbell.
        let other_side = name.other_side().and_then(|other| self.state.find_switch(&other));
        let beside = other_side.map(|switch| switch.key);
        self.make_switch(name, false, permissions, settings::new_switch(name), beside)
    }

    /// Tells the workers what went away, and keeps the counters of a port that stays.
    fn settle(&mut self, name: &PortName, gone: &Gone) {
        if let Some(key) = gone.port {
            self.notes.polled.remove(&key);
            let last = self.datapath.detach(key, name);
            if let Some(uplink) = self.notes.uplinks.remove(&key) {
                self.datapath.detach(uplink, name);
            }
            if let Some(port) = self.state.port_mut(name) {
                let past = port.past.get_or_insert_with(|| counters::none(name.clone()).into());
                counters::add(past, &last);
            }
        }
        self.refresh_port(name);
        if let Some(pipe) = gone.pipe {
            self.datapath.del_pipe(pipe);
        }
        for switch in gone.patch.into_iter().chain(gone.switch) {
            self.datapath.del_switch(switch);
        }
        if let Some(region) = gone.region {
            self.datapath.drop_region(region);
        }
        self.refresh_groups();
    }
}

/// Ports.
impl<D: Datapath> Control<D> {
    fn detach(&mut self, conn: ConnKey, name: &PortName) -> Result<Reply, Refusal> {
        let port = self.state.port_mut(name);
        let holder = port.and_then(|port| port.holder.as_ref());
        if holder.is_none_or(|holder| holder.conn != conn) {
            return Err(PortRefusal::NotHeld(name.clone()).into());
        }
        let gone = self.state.release(name);
        self.settle(name, &gone);
        Ok(Reply::Done)
    }

    fn port_add(&mut self, client: &Client, add: &PortAdd) -> Result<Reply, Refusal> {
        let caller = &client.caller;
        if add.port.is_interface() {
            return Err(InterfaceRefusal::NotByPortAdd(add.port.clone()).into());
        }
        self.state.claim_persistent(caller, &add.port)?;
        let mut config = settings::change_port(PortConfig::default(), &add.settings)?;
        self.assign_role(&add.port, add.kind, (&mut config.role, &add.settings))?;
        check_header(add.kind, &add.settings)?;
        let (name, host, stations) = (
            add.port.clone(),
            host::wanted(caller, add, &self.defaults.declared)?,
            BTreeSet::new(),
        );
        let (machine, owner) = (machine::wanted(caller, add)?, None);
        let grant = settings::change_grant(Grant::default(), &add.settings)?;
        let (kind, interface) = (add.kind, None);
        let plan =
            PortPlan { name, kind, config, host, machine, interface, stations, owner, grant };
        self.find_or_make(caller, add.port.switch())?;
        let made = self.make_port(caller.uid, &plan, false);
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

    /// Makes a persistent port of a switch that exists; without the network interface that it
    /// wants, where it `may_wait` for that.
    fn make_port(&mut self, owner: u32, plan: &PortPlan, may_wait: bool) -> Result<(), Refusal> {
        let (name, kind, config) = (plan.name.clone(), plan.kind, plan.config.clone());
        let switch = self.state.switch_mut(name.switch()).expect("its switch comes first").key;
        if !kind.is_given() && plan.grant != Grant::default() {
            return Err(PortRefusal::GrantServed(name).into());
        }
        let key = PortKey(self.state.new_key());
        match kind.peer() {
            Peer::Client => {}
            Peer::Sink => self.datapath.add_null(key, switch, config.clone())?,
            Peer::Machine => self.add_machine(key, switch, owner, plan, may_wait)?,
            Peer::Interface(_) => {
                let host = plan.host.clone().expect("a plan names the interface");
                let (name, config) = (name.clone(), config.clone());
                let opening = self.opened(kind, &host);
                let spec = HostSpec { key, name, switch, kind, host, config, opening };
                self.add_host(&spec, owner, may_wait)?;
            }
            Peer::Pipe => return Err(PortRefusal::PipePersistent(name).into()),
        }
        let (host, grant) = (plan.host.clone().map(Box::new), plan.grant);
        let machine = plan.machine.clone().map(Box::new);
        let port = Port { host, machine, grant, ..Port::persistent(key, kind, owner, config) };
        self.state.add_port(name, port);
        self.refresh_steering(plan.name.switch());
        Ok(())
    }

    fn port_set(&mut self, caller: &Caller, set: &PortSet) -> Result<Reply, Refusal> {
        let port = self.state.port(caller, &set.port, Access::Manage)?;
        if port.kind == PortKind::Pipe {
            return Err(PortRefusal::PipeSettings(set.port.clone()).into());
        }
        let mut config = settings::change_port(port.config.clone(), &set.settings)?;
        let grant = settings::change_grant(port.grant, &set.settings)?;
        check_gift(&set.port, port, grant)?;
        check_header(port.kind, &set.settings)?;
        if config.role != port.config.role {
            self.assign_role(&set.port, port.kind, (&mut config.role, &set.settings))?;
        }
        let service = port.config.role.service.as_ref();
        if service.is_some() && config.role.service.as_ref() != service && port.is_live() {
            return Err(ChainRefusal::FunctionRuns(set.port.clone()).into());
        }
        if port.is_live() {
            self.datapath.set_port(port.key, config.clone());
        }
        let port = self.state.port_mut(&set.port).expect("it was there just now");
        (port.config, port.grant) = (config, grant);
        self.refresh_port(&set.port);
        Ok(Reply::Done)
    }

    fn port_del(&mut self, caller: &Caller, name: &PortName) -> Result<Reply, Refusal> {
        self.state.port(caller, name, Access::Manage)?;
        self.drop_port(name);
        Ok(Reply::Done)
    }

    /// Removes a port, whoever holds it, and what cannot be without it.
    fn drop_port(&mut self, name: &PortName) {
        self.part_switches(name);
        for port in self.state.family(name) {
            let holders = self.state.binders(&port);
            if self.state.port_mut(&port).is_some() {
                let gone = self.state.remove_port(&port);
                self.settle(&port, &gone);
            }
            // Who held both sides of an interface holds neither any more.
            holders.into_iter().for_each(|conn| self.unbind(conn));
        }
        self.retire(name);
    }

    fn port_list(&self, caller: &Caller, list: &PortList) -> Result<Reply, Refusal> {
        let visible = self.visible_ports(caller, list.switch.as_ref(), list.from.as_deref())?;
        let rows =
            visible.into_iter().map(|(name, port)| (name.to_string(), self.port_info(name, port)));
        Ok(Reply::Ports(page(rows)))
    }

    fn port_show(&self, caller: &Caller, name: &PortName) -> Result<Reply, Refusal> {
        let name = &self.state.resolve(name);
        let port = self.state.port(caller, name, Access::Look)?;
        Ok(Reply::Port(self.port_info(name, port)))
    }

    fn port_info(&self, name: &PortName, port: &Port) -> PortInfo {
        let holder = port.holder.as_ref().filter(|holder| holder.ready);
        let shared = port.bound.as_ref();
        let client = |h: &Holder| ClientInfo { pid: h.pid, uid: h.uid, name: h.name.clone() };
        // Of several, the one that came first.
        let binder = || {
            let (shared, first) = shared.zip(shared.and_then(|shared| shared.holders.first()))?;
            Some(ClientInfo { pid: first.pid, uid: shared.uid, name: first.name.clone() })
        };
        PortInfo {
            port: name.clone(),
            kind: port.kind,
            number: self.datapath.number_of(port.key),
            persistent: port.persistent,
            owner: port.owner,
            client: holder.map(client).or_else(binder),
            memory: holder.map_or(0, |h| h.memory) + shared.map_or(0, Shared::all_memory),
            group: holder.and_then(Holder::shown_group).or_else(|| host::trust_group_of(port)),
            settings: settings::show_port(&port.config, self.shown_grant(name, port)),
            host: self.host_info(port).map(Box::new),
            machine: self.machine_info(port).map(Box::new),
        }
    }

    /// Who may attach to a port, if it stays.
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
    fn visible_ports<'a>(
        &'a self,
        caller: &Caller,
        switch: Option<&'a SwitchName>,
        from: Option<&str>,
    ) -> Result<Vec<(&'a PortName, &'a Port)>, Refusal> {
        let from = from.map(parse_port).transpose()?;
        if let Some(name) = switch {
            self.state.switch(caller, name, Access::Look)?;
        }
        let mut may_look: HashMap<&SwitchName, bool> = HashMap::new();
        let ports = self.state.ports().filter(|(name, port)| {
            port.is_listed()
                && switch.is_none_or(|switch| switch == name.switch())
                && from.as_ref().is_none_or(|from| *name >= from)
        });
        let visible = ports.filter(|(name, _)| {
            *may_look
                .entry(name.switch())
                .or_insert_with(|| self.state.switch(caller, name.switch(), Access::Look).is_ok())
        });
        Ok(visible.collect())
    }
}

/// Addresses and counters.
impl<D: Datapath> Control<D> {
    fn stats(&mut self, caller: &Caller, query: &StatsQuery) -> Result<Reply, Refusal> {
        let ports = match &query.port {
            Some(name) => vec![(name, self.state.port(caller, name, Access::Look)?)],
            None => self.visible_ports(caller, query.switch.as_ref(), query.from.as_deref())?,
        };
        let counted =
            ports.into_iter().filter(|(_, port)| port.kind != PortKind::Pipe || port.is_live());
        let wanted: Vec<PortCounters> =
            counted.map(|(name, port)| PortCounters::new(name, port)).collect();
        let at = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let datapath = &mut self.datapath;
        let rows = wanted.chunks(STATS_CHUNK).flat_map(|chunk| PortCounters::all(chunk, datapath));
        let Page { items, next } = page(rows.map(|row: PortStats| (row.port.to_string(), row)));
        Ok(Reply::Stats(StatsPage { at_ns: nanoseconds(at), items, next }))
    }
}

/// Whether a port can be given to anybody.
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

fn held_port(
    client: &Client,
    group: Option<GroupKey>,
    (key, memory): (PortKey, u64),
    attach: &Attach,
) -> Port {
    let holder = holder(client, memory, group);
    let Attach { thread, alone, .. } = *attach;
    let holder = Some(Holder { thread, alone, ..holder });
    Port { holder, ..Port::new(key, PortKind::Shm, client.caller.uid) }
}

fn holder(client: &Client, memory: u64, group: Option<GroupKey>) -> Holder {
    let Caller { pid, uid, .. } = client.caller;
    let (conn, name) = (client.conn, client.name.clone());
    let (counts, gauges) = (BTreeMap::new(), BTreeMap::new());
    let (thread, alone, ready) = (None, false, false);
    Holder { conn, pid, thread, uid, name, memory, alone, ready, group, counts, gauges }
}

fn parse_port(text: &str) -> Result<PortName, Refusal> {
    text.parse().map_err(|error| Refusal::bad_value(format!("from: {error}")))
}

/// As many rows as a message holds, and where the next page begins.
fn page<T: Serialize>(rows: impl Iterator<Item = (String, T)>) -> Page<T> {
    let mut page = Page { items: Vec::new(), next: None };
    let mut bytes = 0;
    for (name, row) in rows {
        bytes += serde_json::to_vec(&row).map_or(PAGE_BYTES, |text| text.len() + 1);
        if bytes > PAGE_BYTES && !page.items.is_empty() {
            page.next = Some(name);
            break;
        }
        page.items.push(row);
    }
    page
}

fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Rows of a page, in bytes of JSON: a message less ample room for what is around them.
const PAGE_BYTES: usize = protocol::MAX_MESSAGE - 4096;
/// Ports whose counters are asked for at once.
const STATS_CHUNK: usize = 16;

#[cfg(test)]
mod tests;
