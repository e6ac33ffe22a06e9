//! Ports of virtual machines: who may have which socket.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use port::machine::{Access, Spec};
use port::vhost_user::Coalesce;
use port::vhost_user::PAIRS_MAX;
use port::vhost_user::allowance::{Allowance, Limits};
use protocol::name::PortName;
use protocol::{COALESCE_USECS_MAX, Machine, MachineInfo, PortAdd, PortKind};

use super::host::named;
use super::{Client, Control, holder};
use crate::config::PortPlan;
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::control::state::{Holder, Port};
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::policy::Caller;
use crate::model::specs::MachineSpec;

/// What the machines of each user may take together, as long as any port of theirs is there.
#[derive(Debug)]
pub(super) struct Allowances {
    limits: Limits,
    users: BTreeMap<u32, Weak<Allowance>>,
}

impl Allowances {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, users: BTreeMap::new() }
    }

    fn of(&mut self, user: u32) -> Arc<Allowance> {
        self.users.retain(|_, allowance| allowance.strong_count() > 0);
        let found = self.users.get(&user).and_then(Weak::upgrade);
        found.unwrap_or_else(|| {
            let new = Allowance::new(user, self.limits);
            self.users.insert(user, Arc::downgrade(&new));
            new
        })
    }
}

impl<D: Datapath> Control<D> {
    pub(super) fn machine_info(&self, port: &Port) -> Option<MachineInfo> {
        port.machine.as_ref().and_then(|_| self.datapath.machine_info(port.key))
    }

    /// From now on the port goes with the connection.
    pub(super) fn give(&mut self, client: &Client, name: &PortName) {
        let port = self.state.port_mut(name).expect("made just now");
        port.persistent = false;
        let holder = Some(Holder { ready: true, ..holder(client, 0, None) });
        let held = Port { holder, ..port.clone() };
        self.state.hold(name, held);
    }

    /// Makes the port with its socket; without, where one that cannot be had `may_wait`.
    pub(super) fn add_machine(
        &mut self,
        key: PortKey,
        switch: SwitchKey,
        owner: u32,
        plan: &PortPlan,
        may_wait: bool,
    ) -> Result<(), Refusal> {
        let machine = plan.machine.clone().unwrap_or_default();
        let default = || self.dir.join(format!("{}.sock", plan.name));
        let path = machine.socket.as_ref().map_or_else(default, PathBuf::from);
        // Only root can give a socket away, and only what it makes for others needs giving.
        let privileged = rustix::process::geteuid().is_root();
        let access = Access {
            owner: plan.grant.owner.or_else(|| privileged.then_some(owner)),
            group: plan.grant.group,
            mode: plan.grant.mode.map(|mode| u32::from(mode.bits())),
        };
        let (connects, pairs) = (machine.connect, machine.queues.unwrap_or(1));
        let (coalesce, allowance) = (coalesce(&machine), self.allowances.of(owner));
        let peer = machine.peer.map_or_else(|| path.with_extension("peer"), PathBuf::from);
        let peer = (plan.kind == PortKind::Dgram).then_some(peer);
        let name = plan.name.to_string();
        let socket = Spec { name, path, connects, pairs, coalesce, peer, access, allowance };
        let (name, kind, config) = (plan.name.clone(), plan.kind, plan.config.clone());
        let spec = MachineSpec { key, kind, name, switch, socket, config };
        let made = match &spec.socket.peer {
            Some(peer) if *peer == spec.socket.path => Err(Refusal::BadValue(format!(
                "{}: the peer {} is the port's own socket; name the monitor's",
                spec.name,
                peer.display()
            ))),
            _ => self.datapath.add_machine(&spec).map_err(Refusal::from),
        };
        match made {
            Err(error) if may_wait => {
                tracing::warn!("{}: {error}; then delete the port and add it again", spec.name);
                Ok(self.datapath.add_silent(&spec, error.to_string())?)
            }
            made => made,
        }
    }
}

/// How its interrupts are spaced, if that is said.
fn coalesce(machine: &Machine) -> Option<Coalesce> {
    let usecs = machine.coalesce_usecs?;
    Some(Coalesce { frames: machine.coalesce_frames.unwrap_or(0), usecs })
}

/// The socket that a new port is to have. It is made, or connected to, with the daemon's rights, so
/// one at a place of choice is for those who have these anyway.
pub(super) fn wanted(caller: &Caller, add: &PortAdd) -> Result<Option<Machine>, Refusal> {
    let chosen = |machine: &Machine| machine.socket.is_some() || machine.peer.is_some();
    let chosen = add.machine.as_ref().is_some_and(chosen);
    if chosen && !caller.privileged {
        return Err(Refusal::SocketPrivilege);
    }
    complete(add.kind, add.machine.as_ref())
        .map_err(|error| Refusal::BadValue(format!("{}: {error}", add.port)))
}

/// The options that say it.
fn said(machine: &Machine) -> String {
    named(&[
        ("socket", machine.socket.is_some()),
        ("connect", machine.connect),
        ("queues", machine.queues.is_some()),
        ("coalesce_usecs", machine.coalesce_usecs.is_some()),
        ("coalesce_frames", machine.coalesce_frames.is_some()),
        ("peer", machine.peer.is_some()),
        ("held", machine.held),
    ])
}

/// The socket of a port.
pub fn complete(kind: PortKind, machine: Option<&Machine>) -> Result<Option<Machine>, String> {
    if !kind.is_machine() {
        return match machine {
            None => Ok(None),
            Some(machine) => Err(format!(
                "{}: not for kind {}, only for virtual machines",
                said(machine),
                kind.name()
            )),
        };
    }
    let machine = machine.cloned().unwrap_or_default();
    check_queues(kind, &machine)?;
    check_sockets(kind, &machine)?;
    Ok(Some(machine))
}

fn only(what: &str, of: PortKind) -> Result<(), String> {
    Err(format!("{what}: for kind {}", of.name()))
}

fn check_queues(kind: PortKind, machine: &Machine) -> Result<(), String> {
    let is_vhost_user = kind == PortKind::VhostUser;
    match machine.queues {
        Some(_) if !is_vhost_user => return only("queues", PortKind::VhostUser),
        Some(n) if !(1..=PAIRS_MAX).contains(&n) => {
            return Err(format!("queues = {n}: 1 to {PAIRS_MAX} pairs can be had"));
        }
        _ => {}
    }
    match (machine.coalesce_usecs, machine.coalesce_frames) {
        (None, None) => Ok(()),
        _ if !is_vhost_user => only("coalesce_…", PortKind::VhostUser),
        (None, Some(_)) => {
            Err("coalesce_frames: say how long fewer frames may wait: coalesce_usecs".to_owned())
        }
        (Some(usecs), _) if usecs > COALESCE_USECS_MAX => {
            Err(format!("coalesce_usecs = {usecs}: 0 to {COALESCE_USECS_MAX} can be had"))
        }
        _ => Ok(()),
    }
}

fn check_sockets(kind: PortKind, machine: &Machine) -> Result<(), String> {
    if machine.peer.is_some() && kind != PortKind::Dgram {
        return only("peer", PortKind::Dgram);
    }
    if machine.connect && kind == PortKind::Dgram {
        return Err("connect: each side of kind dgram has a socket; name the other's: peer".into());
    }
    for path in [&machine.socket, &machine.peer].into_iter().flatten() {
        if !path.starts_with('/') {
            return Err(format!("socket {path:?} is no absolute path"));
        }
    }
    if machine.connect && machine.socket.is_none() {
        return Err("to connect, say where the machine's monitor listens: socket".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_one_allowance_for_all_ports() {
        let mut allowances = Allowances::new(Limits::NONE);
        let [first, other, again] = [1, 2, 1].map(|user| allowances.of(user));
        assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
        drop((first, again));
        let _new = allowances.of(3);
        assert_eq!(allowances.users.keys().collect::<Vec<_>>(), [&2, &3]);
    }

    #[test]
    fn sockets_are_for_machines_and_must_make_sense() {
        let of = |kind, machine: Option<&Machine>| complete(kind, machine);
        assert_eq!(of(PortKind::Shm, None), Ok(None));
        assert_eq!(of(PortKind::VhostUser, None), Ok(Some(Machine::default())));
        let good = Machine { socket: Some("/run/vm.sock".to_owned()), ..Machine::default() };
        assert!(
            of(PortKind::Shm, Some(&good)).is_err() && of(PortKind::VhostUser, Some(&good)).is_ok()
        );
        for bad in [
            Machine { socket: Some("vm.sock".to_owned()), ..Machine::default() },
            Machine { connect: true, ..Machine::default() },
            Machine { coalesce_frames: Some(8), ..Machine::default() },
            Machine { coalesce_usecs: Some(COALESCE_USECS_MAX + 1), ..Machine::default() },
            Machine { queues: Some(0), ..Machine::default() },
            Machine { queues: Some(PAIRS_MAX + 1), ..Machine::default() },
        ] {
            assert!(of(PortKind::VhostUser, Some(&bad)).is_err(), "{bad:?}");
        }
        let peer = Machine { peer: Some("/run/vm.peer".to_owned()), ..Machine::default() };
        let queues = Machine { queues: Some(2), ..Machine::default() };
        let connect = Machine { connect: true, ..good };
        for (kind, machine, fits) in [
            (PortKind::Dgram, &peer, true),
            (PortKind::Stream, &peer, false),
            (PortKind::Stream, &queues, false),
            (PortKind::Stream, &connect, true),
            (PortKind::Dgram, &connect, false),
        ] {
            assert_eq!(of(kind, Some(machine)).is_ok(), fits, "{kind:?} {machine:?}");
        }
    }
}
