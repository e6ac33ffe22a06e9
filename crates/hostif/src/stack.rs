//! The host stack's side of an interface: netmap's host rings.
//!
//! ```text
//!   programs ── socket ── routes ── eth0 ──┐ egress program: redirect to the relay
//!                                          ▼
//!                                   relay (a TAP) ◄──► the port
//!                                          │
//!                           eth0 ◄─────────┘ ingress program: receive on eth0
//! ```
//!
//! What the host sends by the interface arrives at the relay TAP, and the host receives what is
//! written to the relay as if it had arrived on the interface. The wire is not involved: a `packet`
//! port that has the interface alone serves that. The kernel removes the relay and the programs
//! when their descriptors are closed.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::netlink::{Change, Interface, Netlink};
use crate::sys::bpf::{self, Attached, Hook, Program};
use crate::sys::tun::Which;
use crate::tap::attach;
use crate::{HostError, check_name};

/// The host stack's side of an interface.
#[derive(Debug)]
pub struct Handles {
    /// The TAP that relays the frames.
    pub relay: OwnedFd,
    /// The programs that redirect frames between interface and relay.
    pub programs: Vec<Attached>,
    /// The interface whose stack side this is.
    pub interface: Interface,
}

/// Opens the stack's side of interface `name` in the namespace of the thread.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(name: &str) -> Result<Handles, HostError> {
    check_name(name)?;
    let netlink = Netlink::open().map_err(HostError::system("open netlink for", name))?;
    let find = |name: &str| {
        let found = netlink.find(name).map_err(HostError::system("look up", name))?;
        found.ok_or_else(|| HostError::Missing(name.to_owned()))
    };
    let interface = find(name)?;
    if !interface.ethernet {
        return Err(HostError::NotEthernet(name.to_owned()));
    }
    let (relay, relay_name) = attach("uvala%d", name, Which::New).map_err(|error| match error {
        // A TAP that an operator makes cannot serve as the relay.
        HostError::MayNotTap(..) => HostError::MayNotCut(name.to_owned()),
        error => error,
    })?;
    let index = find(&relay_name)?.index;
    // The relay must not have addresses or send announcements. Without IPv6 the file is missing,
    // and there is nothing to switch off.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{relay_name}/disable_ipv6"), "1");
    let failed = |errno: Errno| HostError::System {
        doing: "set up the relay of",
        name: name.to_owned(),
        error: errno.into(),
    };
    netlink.change(index, Change::Mtu(interface.mtu)).map_err(failed)?;
    netlink.change(index, Change::Up).map_err(failed)?;
    let programs = [
        (Program::ReceiveOn(interface.index), Hook::Ingress, index),
        (Program::SendBy(index), Hook::Egress, interface.index),
    ];
    let attached = programs.map(|(program, hook, index)| bpf::attach(program, hook, index));
    let programs: Result<Vec<_>, _> = attached.into_iter().collect();
    let programs = programs.map_err(|errno| HostError::attaching(name, errno))?;
    Ok(Handles { relay, programs, interface })
}
