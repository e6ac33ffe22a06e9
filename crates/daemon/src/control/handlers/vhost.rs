//! Ports of virtual machines: who may have which socket.

use std::path::PathBuf;

use client::api::{PortAdd, PortKind, Vhost, VhostInfo};
use client::name::PortName;
use port::vhost_user::{Access, PAIRS_MAX, Spec};

use super::Control;
use crate::config::PortPlan;
use crate::control::datapath::{Datapath, PortKey, SwitchKey, VhostSpec};
use crate::control::policy::Caller;
use crate::control::refusal::Refusal;
use crate::control::state::Port;

impl<D: Datapath> Control<D> {
    pub(super) fn vhost_info(&self, port: &Port) -> Option<VhostInfo> {
        port.vhost.as_ref().and_then(|_| self.datapath.vhost_info(port.key))
    }

    /// Makes the port with its socket; without, where one that cannot be had `may_wait`.
    pub(super) fn add_vhost(
        &mut self,
        key: PortKey,
        switch: SwitchKey,
        owner: u32,
        plan: &PortPlan,
        may_wait: bool,
    ) -> Result<(), Refusal> {
        let vhost = plan.vhost.clone().unwrap_or_default();
        let default = || self.dir.join(format!("{}.sock", plan.name));
        let path = vhost.socket.map_or_else(default, PathBuf::from);
        // Only root can give a socket away, and only what it makes for others needs giving.
        let privileged = rustix::process::geteuid().is_root();
        let access = Access {
            owner: plan.grant.owner.or_else(|| privileged.then_some(owner)),
            group: plan.grant.group,
            mode: plan.grant.mode.map(|mode| u32::from(mode.bits())),
        };
        let (connects, pairs) = (vhost.connect, vhost.queues.unwrap_or(1));
        let socket = Spec { name: plan.name.to_string(), path, connects, pairs, access };
        let (name, config) = (plan.name.clone(), plan.config.clone());
        let spec = VhostSpec { key, name, switch, socket, config };
        match self.datapath.add_vhost(&spec) {
            Err(error) if may_wait => {
                tracing::warn!("{}: {error}; then delete the port and add it again", spec.name);
                Ok(self.datapath.add_silent(&spec)?)
            }
            made => Ok(made?),
        }
    }
}

/// The socket that a new port is to have. It is made, or connected to, with the daemon's rights, so
/// one at a place of choice is for those who have these anyway.
pub(super) fn wanted(caller: &Caller, add: &PortAdd) -> Result<Option<Vhost>, Refusal> {
    let chosen = add.vhost.as_ref().is_some_and(|vhost| vhost.socket.is_some());
    if chosen && !caller.privileged {
        return Err(Refusal::SocketPrivilege);
    }
    complete(&add.port, add.kind, add.vhost.as_ref()).map_err(Refusal::BadValue)
}

/// The socket of a port.
pub fn complete(
    port: &PortName,
    kind: PortKind,
    vhost: Option<&Vhost>,
) -> Result<Option<Vhost>, String> {
    if kind != PortKind::VhostUser {
        return match vhost {
            None => Ok(None),
            Some(_) => Err(format!("{port}: socket, connect, queues: for kind vhost-user")),
        };
    }
    let vhost = vhost.cloned().unwrap_or_default();
    let queues = vhost.queues.unwrap_or(1);
    if !(1..=PAIRS_MAX).contains(&queues) {
        return Err(format!("{port}: queues = {queues}: 1 to {PAIRS_MAX} pairs can be had"));
    }
    match &vhost.socket {
        Some(path) if !path.starts_with('/') => {
            Err(format!("{port}: socket {path:?} is no absolute path"))
        }
        None if vhost.connect => {
            Err(format!("{port}: to connect, say where the machine's monitor listens: socket"))
        }
        _ => Ok(Some(vhost)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_for_machines_and_must_make_sense() {
        let port: PortName = "vale0:vm".parse().expect("a name");
        let of = |kind, vhost: Option<&Vhost>| complete(&port, kind, vhost);
        assert_eq!(of(PortKind::Shm, None), Ok(None));
        assert_eq!(of(PortKind::VhostUser, None), Ok(Some(Vhost::default())));
        let good = Vhost { socket: Some("/run/vm.sock".to_owned()), ..Vhost::default() };
        assert!(
            of(PortKind::Shm, Some(&good)).is_err() && of(PortKind::VhostUser, Some(&good)).is_ok()
        );
        for bad in [
            Vhost { socket: Some("vm.sock".to_owned()), ..Vhost::default() },
            Vhost { connect: true, ..Vhost::default() },
            Vhost { queues: Some(0), ..Vhost::default() },
            Vhost { queues: Some(PAIRS_MAX + 1), ..Vhost::default() },
        ] {
            assert!(of(PortKind::VhostUser, Some(&bad)).is_err(), "{bad:?}");
        }
    }
}
