//! Attaching a port: decided and charged at once, built on another thread, opened when it is built.
//!
//! ```text
//!  attach ─► claimed ─► reserved: has its name, ─► built ─► opened, answered
//!               │       its key, its price           │
//!            refused        │                        │
//!                           └─ client gone, port deleted, no memory ─► as if it had never been
//! ```
//!
//! Between the two halves other calls are answered, also calls about this port. The client itself
//! waits: nothing that it sends is read before it has its answer.

use std::io;

use protocol::check::is_group_name;
use protocol::name::PortName;
use protocol::{Attach, PortKind, Reply};
use switch::PortConfig;

use crate::control::datapath::Datapath;
use crate::control::interfaces::refusal::InterfaceRefusal;
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::{QuotaRefusal, Refusal};
use crate::control::state::groups::{Charge, GroupWish};
use crate::control::state::leases::Owed;
use crate::control::state::{Holder, Port, Wish};
use crate::control::{Answer, Client, Control, groups};
use crate::model::error::DatapathError;
use crate::model::keys::{ConnKey, GroupKey, PipeKey, PortKey, SwitchKey};
use crate::model::opening::Build;
use crate::model::replies::Attachment;
use crate::model::settings;
use crate::model::specs::{RingSpec, ShmSpec};

/// A port that is reserved for a client that waits for it.
#[derive(Debug)]
pub(in crate::control) struct Building {
    pub name: PortName,
    pub key: PortKey,
    /// For a netmap program.
    pub bound: bool,
}

/// Where a port is to be.
struct Place<'a> {
    switch: SwitchKey,
    group: Option<&'a GroupWish>,
}

impl<D: Datapath> Control<D> {
    /// Reserves a port; [`Control::finish`] is to be called when it is built.
    pub(in crate::control) fn attach(
        &mut self,
        client: &Client,
        attach: &Attach,
    ) -> Result<Build, Refusal> {
        self.check_stalls(&client.caller)?;
        if attach.port.is_interface() && self.state.home(&attach.port.parent()).is_none() {
            return Err(InterfaceRefusal::Missing(attach.port.clone()).into());
        }
        let rings = settings::rings(attach, &self.defaults.rings)?;
        check_group(attach)?;
        let memory = self.price(&attach.port, &rings)?;
        self.refresh_groups();
        let group = self.group_of(&client.caller, attach, memory)?;
        let (port, group) = (&attach.port, group.as_ref());
        let (existing, alone) = (attach.existing, attach.alone);
        let wish = Wish { port, memory, group, existing, alone };
        self.state.check(&client.caller, &wish)?;
        let switch = self.find_or_make(&client.caller, attach.port.switch())?;
        let key = PortKey(self.state.new_key());
        let reserved = match attach.port.pipe() {
            Some(_) => self.reserve_pipe(client, attach, &rings, key),
            None => self.reserve_shm(client, attach, Place { switch, group }, rings, key),
        };
        match reserved {
            Ok((port, build)) => {
                self.state.hold(&attach.port, port);
                self.note_user(&attach.port, client.caller.uid);
                let building = Building { name: attach.port.clone(), key, bound: false };
                self.pending.building.insert(client.conn, building);
                Ok(when_paid(self.state.owed(client.caller.uid), build))
            }
            Err(error) => {
                if let Some(switch) = self.state.forget_switch(attach.port.switch()) {
                    self.datapath.del_switch(switch);
                }
                Err(error)
            }
        }
    }

    /// What a port costs the user that attaches it. The end of a pipe that comes first pays for
    /// both.
    pub(super) fn price(&self, name: &PortName, rings: &RingSpec) -> Result<u64, Refusal> {
        let price = match name.peer() {
            None => self.datapath.memory_of(rings),
            Some(peer) if self.state.find_port(&peer).is_some() => Some(0),
            Some(_) => self.datapath.pipe_memory_of(rings),
        };
        price.ok_or_else(|| Refusal::from(PortRefusal::TooLarge(name.clone())))
    }

    fn reserve_shm(
        &mut self,
        client: &Client,
        attach: &Attach,
        Place { switch, group: wish }: Place<'_>,
        rings: RingSpec,
        key: PortKey,
    ) -> Result<(Port, Build), Refusal> {
        let config = self.state.find_port(&attach.port).map(|port| port.config.clone());
        let worker = config.as_ref().and_then(|config| config.worker);
        let (name, group) = (attach.port.clone(), wish.map(|wish| wish.key.clone()));
        let group_memory = wish.map_or(0, |wish| wish.memory);
        let spec = ShmSpec { key, name, switch, worker, rings, group, group_memory };
        let build = self.datapath.reserve_shm(&spec);
        let build = build.map_err(|error| groups::refused(error, wish))?;
        let build = self.when_closed(client.caller.uid, build);
        if let Some(GroupWish { key, memory, payer, .. }) = wish.cloned() {
            let uid = payer.unwrap_or(client.caller.uid);
            self.state.charge_group(key, Charge { uid, memory });
        }
        let memory = self.price(&attach.port, &rings)?;
        let config = config.unwrap_or_default();
        Ok((Port { config, ..held_port(client, spec.group, key, memory, attach) }, build))
    }

    fn reserve_pipe(
        &mut self,
        client: &Client,
        attach: &Attach,
        rings: &RingSpec,
        key: PortKey,
    ) -> Result<(Port, Build), Refusal> {
        let memory = self.price(&attach.port, rings)?;
        let peer = attach.port.peer().and_then(|peer| self.state.find_port(&peer)?.pipe);
        let pipe = peer.unwrap_or(PipeKey(key.0));
        if peer.is_none() {
            self.datapath.add_pipe(pipe, rings)?;
        }
        let port = held_port(client, None, key, memory, attach);
        let build = self.datapath.build_pipe(pipe);
        let build = self.when_closed(client.caller.uid, build);
        Ok((Port { kind: PortKind::Pipe, pipe: Some(pipe), ..port }, build))
    }

    /// The answer for a client whose port was built, or could not be.
    pub(in crate::control) fn finish_attach(
        &mut self,
        conn: ConnKey,
        built: io::Result<()>,
    ) -> Answer {
        let Building { name, key, bound } =
            self.pending.building.remove(&conn).expect("the client waits");
        if self.state.unswitched_of(conn).is_some() {
            return self.finish_unswitched(conn, key, built);
        }
        let port = self.state.find_port(&name).filter(|port| port.key == key);
        let (pipe, config) = match port {
            Some(port) => (port.pipe, port.config.clone()),
            None => return Err(PortRefusal::Deleted(name).into()),
        };
        if bound {
            let answer = built.map_err(not_built);
            let answer = answer.and_then(|()| self.finish_bind(conn, &name));
            match &answer {
                Ok(_) => self.note_bound(conn, &name),
                Err(_) => self.unbind(conn),
            }
            return answer;
        }
        let opened = match built {
            Ok(()) => self.open(&name, key, pipe, config).map_err(Refusal::from),
            Err(error) => Err(not_built(error)),
        };
        if opened.is_err() {
            let gone = self.state.release(&name);
            self.account_gone(&name, &gone);
        }
        let Attachment { mut geometry, lease, region, kick, wake } = opened?;
        self.lease(conn, &name, lease);
        geometry.function = self.is_function(&name);
        let holder = self.state.port_mut(&name).and_then(|port| port.holder.as_mut());
        let holder = holder.expect("reserved until now");
        holder.ready = true;
        let holder = holder.clone();
        self.note_attached(&name, &holder);
        self.refresh_port(&name);
        Ok((Reply::Attached(geometry), vec![region, kick, wake]))
    }

    fn open(
        &mut self,
        name: &PortName,
        key: PortKey,
        pipe: Option<PipeKey>,
        config: PortConfig,
    ) -> Result<Attachment, DatapathError> {
        match (pipe, name.pipe()) {
            (Some(pipe), Some(end)) => self.datapath.open_pipe(pipe, end.side, name, config.user),
            _ => self.datapath.attach_shm(key, config),
        }
    }
}

/// Why something could not be built: a quota, or the system.
fn not_built(error: io::Error) -> Refusal {
    match error.downcast::<QuotaRefusal>() {
        Ok(refusal) => refusal.into(),
        Err(error) => DatapathError::from(error).into(),
    }
}

/// What is built waits for memory that its user owes.
pub(in crate::control) fn when_paid(owed: Option<Owed>, build: Build) -> Build {
    match owed {
        None => build,
        Some(owed) => Box::new(move || owed.wait().and_then(|()| build())),
    }
}

fn check_group(attach: &Attach) -> Result<(), Refusal> {
    let Some(group) = &attach.group else { return Ok(()) };
    if attach.port.pipe().is_some() {
        return Err(PortRefusal::PipeGroup(attach.port.clone()).into());
    }
    if is_group_name(group) { Ok(()) } else { Err(Refusal::bad_value(GROUP_NAME.to_owned())) }
}

const GROUP_NAME: &str = "group: only letters, digits and '_', as in --group chain1";

pub(super) fn held_port(
    client: &Client,
    group: Option<GroupKey>,
    key: PortKey,
    memory: u64,
    attach: &Attach,
) -> Port {
    let holder = client.holder(memory, group);
    let Attach { thread, alone, .. } = *attach;
    let holder = Some(Holder { thread, alone, ..holder });
    Port { holder, ..Port::new(key, PortKind::Shm, client.caller.uid) }
}
