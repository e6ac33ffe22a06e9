//! The control plane decides which client may have which switch and port, and answers on a socket.
//!
//! # Theory of operation
//!
//! ```text
//!  client ══ SEQPACKET ══ socket ──► Control::call ──► handler of the subject ──► answer
//!                                                      │ 1. asks state and policy (pure)
//!                                                      │ 2. tells the datapath (the workers)
//!                                                      ▼ 3. enters the result in state
//! ```
//!
//! One thread runs all of it. A handler asks first, which changes nothing, then calls the workers,
//! which may run out of memory, and enters the result last, which cannot fail. So a refused request
//! leaves nothing behind.
//!
//! Three kinds of requests take more than one step, and the client waits meanwhile: memory of ports
//! is built and interfaces are opened on other threads ([`Step::Build`], `deferred`), and changes
//! that stay are answered when they are on the disk ([`Step::Save`], `save`).
//!
//! # Where things stand
//!
//! | folder | requests | beside the handlers |
//! |---|---|---|
//! | [`switches`] | `switch_*` | chains and rules that come in several messages |
//! | [`ports`] | `port_*`, attach, detach | |
//! | [`stats`] | `port_stats` | counters of clients that have left |
//! | [`fdb`] | `fdb_*` | static addresses |
//! | `mdb` | `mdb_*` | – |
//! | [`chains`] | `chain_*`, `rule_*`, `function_*` | services, functions that follow each other |
//! | [`groups`] | `audit` | trust groups and what they cost |
//! | [`netmap`] | bind, resume | null ports and netmap monitors |
//! | [`interfaces`] | `interface_*` | network interfaces of the host |
//! | [`machines`] | | ports of virtual machines |
//! | [`mirrors`] | | ports that get copies of what others send and receive |
//! | `vxlan` | | ports of tunnels to other hosts |
//! | [`workers`] | `worker_*` | ports that hold up a worker |
//! | `usage` | `usage`, `user_list` | |
//!
//! Each folder has the refusals of its subject (`refusal.rs`). [`state`] has the records of all
//! subjects, [`datapath`] what each subject needs of the workers, and `fake.rs` the workers of the
//! tests.

mod call_log;
pub mod chains;
mod closings;
mod compare;
pub mod datapath;
mod deferred;
mod devices;
mod difference;
mod events;
#[cfg(test)]
pub mod fake;
pub mod fdb;
pub mod groups;
mod hand_over;
pub mod interfaces;
pub mod machines;
mod mdb;
pub mod mirrors;
pub mod netmap;
mod parts;
pub mod ports;
pub mod programs;
pub mod refusal;
mod save;
mod security;
pub mod shares;
pub mod socket;
pub mod state;
pub mod stats;
pub mod switches;
mod traces;
mod usage;
mod vxlan;
pub mod workers;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::time::Instant;

use packet::shown::is_shown;
use protocol::name::PortName;
use protocol::{
    DaemonInfo, FdbRequest, FunctionRequest, GroupRequest, Hello, InterfaceRequest, Page, PortRef,
    PortRequest, Reply, Request, SessionRequest, SwitchRef, SwitchRequest, UsageRequest,
    WorkerRequest,
};
use serde::Serialize;

use crate::config::Config;
use crate::model::keys::{ConnKey, GroupKey};
use crate::model::opening::Build;
use crate::model::plan::{Origin, SwitchPlan};
use crate::model::policy::{Caller, Permissions};
use crate::model::replies::{Lease, count};
use call_log::CallLog;
use datapath::Datapath;
use events::Listeners;
use fdb::statics::Statics;
use groups::declared::Declared;
use parts::{Defaults, Pending, PortNotes};
use refusal::Refusal;
use save::Saving;
use shares::Shares;
use state::{Holder, State};

/// A connected client.
#[derive(Clone, Debug)]
pub struct Client {
    /// Connection of the client.
    pub conn: ConnKey,
    /// The process and user that call.
    pub caller: Caller,
    /// What it calls itself.
    pub name: String,
}

impl Client {
    /// This client as the holder of a port.
    fn holder(&self, memory: u64, group: Option<GroupKey>) -> Holder {
        let Caller { pid, process, uid, .. } = self.caller;
        let (conn, name) = (self.conn, self.name.clone());
        let (counts, gauges) = (BTreeMap::new(), BTreeMap::new());
        let (thread, alone, ready) = (None, false, false);
        Holder {
            conn,
            pid,
            process,
            thread,
            uid,
            name,
            memory,
            alone,
            ready,
            group,
            counts,
            gauges,
        }
    }
}

/// The answer to a call, with the descriptors that go beside it.
pub type Answer = Result<(Reply, Vec<OwnedFd>), Refusal>;

/// What comes of a call.
#[expect(clippy::large_enum_variant, reason = "taken apart at once, never kept")]
pub enum Step {
    /// The answer.
    Answer(Answer),
    /// Work for another thread. The client waits for it, and then gets the answer of
    /// [`Control::finish`].
    Build(Build),
    /// A change that is being written to the disk. The client waits for it, and then gets its
    /// answer of [`Control::saved`].
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
    listeners: Listeners,
    /// The number of connections of each user, which the socket counts.
    connections: HashMap<u32, u32>,
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
                switch_workers: config.switch_workers,
                max_macs: config.max_macs,
                started: Instant::now(),
            },
            pending: Pending::default(),
            notes: PortNotes {
                forgotten: BTreeSet::new(),
                uplinks: HashMap::new(),
                polled: BTreeSet::new(),
                followers: BTreeMap::new(),
                allowances: machines::Allowances::new(config.quota.machines),
                mirrors: BTreeSet::new(),
                routing: BTreeMap::new(),
                stalls: workers::Stalls::default(),
            },
            listeners: Listeners::default(),
            connections: HashMap::new(),
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
        self.check_workers(&plan.name, plan.config)?;
        self.make_switch(&plan.name, plan.persistent, permissions, plan.config, None)?;
        let switch = self.state.switch_mut(&plan.name).expect("made just now");
        switch.new_ports = plan.new_ports;
        self.plan_program(plan);
        for port in &plan.ports {
            let owner = port.owner.unwrap_or(permissions.owner);
            if let Some(text) = &port.interface {
                self.make_planned_interface(owner, port, text)?;
            } else {
                self.make_port(owner, &self.with_declared(port), Origin::Plan)?;
            }
            for &station in &port.stations {
                self.add_planned(&port.name, station)?;
            }
        }
        self.plan_steering(plan)
    }

    /// From now on each ordinary user has a share of the descriptors at most.
    fn share_descriptors(&mut self, shares: Shares) {
        self.state.share(shares);
        self.notes.allowances.share(shares);
    }

    /// Answers a call, or says what has to be done first.
    pub fn call(&mut self, client: &mut Client, request: Request) -> Step {
        if let Err(refusal) = devices::refuse(&request) {
            return Step::Answer(Err(refusal));
        }
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
            Request::Fdb(call) => self.fdb_call(client, call),
            Request::Mdb(call) => self.mdb_call(&caller, call),
            Request::Interface(call) => self.interface_call(&caller, call),
            Request::Chain(call) => self.chain_call(&caller, call),
            Request::Rule(call) => self.rule_call(&caller, call),
            Request::Function(FunctionRequest::Next(PortRef { port })) => {
                return self.next_functions(client, &port);
            }
            Request::Function(call) => self.function_call(&caller, call),
            Request::Program(call) => self.program_call(&caller, call),
            Request::Group(GroupRequest::Audit(from)) => self.audit(&caller, &from),
            Request::Worker(WorkerRequest::List(from)) => self.worker_list(&caller, &from),
            Request::Worker(WorkerRequest::Move(wanted)) => self.worker_move(&caller, &wanted),
            Request::Usage(UsageRequest::Show) => Ok(self.usage(&caller)),
            Request::Usage(UsageRequest::Users(from)) => self.user_list(&caller, &from),
        };
        reply.map(|reply| (reply, Vec::new()))
    }

    fn session_call(&mut self, client: &mut Client, call: SessionRequest) -> Answer {
        let reply = match call {
            SessionRequest::Hello(hello) => self.hello(client, &hello),
            SessionRequest::Detach(PortRef { port }) => self.detach(client.conn, &port)?,
            SessionRequest::Recover(PortRef { port }) => self.recover(client, &port)?,
            SessionRequest::Resume => return self.resume(client),
            SessionRequest::Missed => self.missed(client.conn)?,
            SessionRequest::Events(query) => self.listen(client, query)?,
            SessionRequest::HandOver(from) => return self.hand_over(&client.caller, &from),
            SessionRequest::HandOverPort(from) => {
                return self.hand_over_port(&client.caller, &from);
            }
            SessionRequest::End => return self.end(&client.caller),
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
            SwitchRequest::Compare(spec) => self.switch_compare(caller, &spec),
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
            PortRequest::Compare(add) => self.port_compare(&caller, &add),
            PortRequest::Enable(PortRef { port }) => self.port_enable(&caller, &port),
            PortRequest::Del(PortRef { port }) => self.port_del(&caller, &port),
            PortRequest::List(list) => self.port_list(&caller, &list),
            PortRequest::Show(PortRef { port }) => self.port_show(&caller, &port),
            PortRequest::Stats(query) => self.stats(&caller, &query),
            PortRequest::Trace(query) => self.trace(&caller, &query),
            PortRequest::Geometry(query) => self.port_geometry(&caller, &query),
        }
    }

    fn fdb_call(&mut self, client: &Client, call: FdbRequest) -> Result<Reply, Refusal> {
        let caller = &client.caller;
        match call {
            FdbRequest::List(list) => self.fdb_list(caller, &list),
            FdbRequest::Add(add) => self.fdb_add(caller, &add),
            FdbRequest::Del(del) => self.fdb_del(caller, &del),
            FdbRequest::Flush(flush) => self.fdb_flush(caller, &flush),
            FdbRequest::ExternLearn(learn) => self.extern_learn(client, &learn),
            FdbRequest::Neigh(list) => self.neigh_list(caller, &list),
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
        self.forget_listener(conn);
        self.pending.building.remove(&conn);
        self.pending.drafts.remove(&conn);
        self.notes.routing.retain(|_, (of, ..)| *of != conn);
        self.forget_deferred(conn);
        for port in self.state.held_by(conn) {
            let gone = self.state.release(&port);
            self.account_gone(&port, &gone);
        }
        self.unbind(conn);
        let leases = self.state.end_leases(conn);
        self.datapath.reclaim(leases);
        self.datapath.close_in_background();
    }

    /// From now on a connection has the memory of a port.
    fn lease(&mut self, conn: ConnKey, name: &PortName, lease: Lease) {
        let before = self.state.lease(conn, name.clone(), lease);
        self.datapath.reclaim(before.into_iter().collect());
    }

    fn hello(&self, client: &mut Client, hello: &Hello) -> Reply {
        client.name = hello.client.chars().filter(|it| is_shown(*it)).take(64).collect();
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

fn parse_port(text: &str) -> Result<PortName, Refusal> {
    text.parse().map_err(|error| Refusal::bad_value(format!("from: {error}")))
}

/// Where a page begins, as the page before it said.
fn page_from<T: FromStr>(from: Option<&str>) -> Result<Option<T>, Refusal> {
    let from = from.map(str::parse).transpose();
    from.map_err(|_| Refusal::bad_value("from: not what a page said".to_owned()))
}

/// As many rows as a message holds, and where the next page begins.
fn page<T: Serialize>(rows: impl Iterator<Item = (impl Display, T)>) -> Page<T> {
    let mut page = Page { items: Vec::new(), next: None };
    let mut bytes = Length(0);
    for (name, row) in rows {
        serde_json::to_writer(&mut bytes, &row).expect("replies are plain data");
        bytes.0 += ",".len();
        if bytes.0 > PAGE_BYTES && !page.items.is_empty() {
            page.next = Some(name.to_string());
            break;
        }
        page.items.push(row);
    }
    page
}

/// The length of what is written.
struct Length(usize);

impl std::io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Rows of a page, in bytes of JSON: a message less ample room for what is around them.
const PAGE_BYTES: usize = protocol::MAX_MESSAGE - 4096;
#[cfg(test)]
mod tests;
