//! Ports of the host's network interfaces: who may have them, and what becomes of them.

use std::os::fd::BorrowedFd;

use client::api::{HostIf, HostIfInfo, PortAdd, PortKind};
use client::name::PortName;

use super::Control;
use crate::control::datapath::{Datapath, HostSpec};
use crate::control::policy::Caller;
use crate::control::refusal::Refusal;
use crate::control::state::Port;

impl<D: Datapath> Control<D> {
    /// Readable when something has happened to an interface of the host.
    pub fn host_bell(&self) -> Option<BorrowedFd<'_>> {
        self.datapath.host_bell()
    }

    /// Takes note of it.
    pub fn hear_host(&mut self) {
        self.datapath.hear_host();
    }

    pub(super) fn host_info(&self, port: &Port) -> Option<HostIfInfo> {
        port.host.as_ref().and_then(|_| self.datapath.host_info(port.key))
    }

    /// Makes the port's interface. One that cannot be had now is waited for, where `may_wait`.
    pub(super) fn add_host(&mut self, spec: &HostSpec, may_wait: bool) -> Result<(), Refusal> {
        match self.datapath.add_host(spec) {
            Err(error) if may_wait => {
                tracing::warn!("{}: {error}", spec.name);
                Ok(self.datapath.add_absent(spec)?)
            }
            made => Ok(made?),
        }
    }
}

/// The interface that a new port is to have. It is opened with the daemon's rights, so it is for
/// those who have these anyway.
pub(super) fn wanted(caller: &Caller, add: &PortAdd) -> Result<Option<HostIf>, Refusal> {
    if add.kind.is_host() && !caller.privileged {
        return Err(Refusal::HostPrivilege);
    }
    complete(&add.port, add.kind, add.host.as_ref()).map_err(Refusal::BadValue)
}

/// The interface of a port, with its name in any case.
pub fn complete(
    port: &PortName,
    kind: PortKind,
    host: Option<&HostIf>,
) -> Result<Option<HostIf>, String> {
    let host = host.cloned();
    if !kind.is_host() {
        return match host {
            None => Ok(None),
            Some(_) => Err("ifname, netns …: for kinds tap, packet and stack".to_owned()),
        };
    }
    let mut host = host.unwrap_or_default();
    let sets = host.mtu.is_some() || host.mac.is_some() || host.address.is_some();
    if kind != PortKind::Tap && sets {
        let what = "mtu, mac, address: only a tap is changed; use ip link for other interfaces";
        return Err(what.to_owned());
    }
    if kind != PortKind::Packet && host.alone {
        return Err("alone: only for kind packet".to_owned());
    }
    let name = host.ifname.get_or_insert_with(|| port.port().to_owned());
    port::host::check_name(name).map_err(|error| error.to_string())?;
    Ok(Some(host))
}
