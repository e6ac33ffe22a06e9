//! The host's stack in place of an interface's other side: netmap's host rings.
//!
//! ```text
//!   programs ── socket ── routes ── eth0 ──┐ egress: sent by the helper instead
//!                                          ▼
//!                                       helper (a TAP) ◄──► this port
//!                                          │
//!                           eth0 ◄─────────┘ ingress: received on eth0 instead
//! ```
//!
//! What the host sends by the interface comes in here, and what is sent to this port the host
//! receives as if it had arrived there. The cable is not touched: a `packet` port that has the
//! interface alone is that. All of it goes with the descriptors: the helper and the programs.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::namespace::{self, Home};
use super::netlink::{Change, Interface, Netlink};
use super::tap::{Tap, Wish, attach};
use super::{HostError, Link, Opened, check_name, system};
use crate::sys::Waker;
use crate::sys::bpf::{self, Attached, Hook, Program};

/// Opens the stack's side of an interface that is there.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(name: &str, namespace: Option<&str>, bell: &Arc<Waker>) -> Result<Opened, HostError> {
    check_name(name)?;
    let target = namespace.map(namespace::open).transpose()?;
    let (helper, programs, interface) =
        namespace::within(namespace.zip(target.as_ref()), || connect(name))?;
    let home = Home::of(target.as_ref());
    let link = Link::new(&interface, home.is_foreign(), bell);
    let tap = Tap::new(vec![helper], Wish::default(), programs, link.clone(), name)?;
    Ok(Opened { adapter: Box::new(tap), link, interface, home, undo: None })
}

fn connect(name: &str) -> Result<(OwnedFd, Vec<Attached>, Interface), HostError> {
    let netlink = Netlink::open().map_err(system("open netlink for", name))?;
    let find = |name: &str| {
        let found = netlink.find(name).map_err(system("look up", name))?;
        found.ok_or_else(|| HostError::Missing(name.to_owned()))
    };
    let interface = find(name)?;
    if !interface.ethernet {
        return Err(HostError::NotEthernet(name.to_owned()));
    }
    let (helper, helper_name) = attach("uvala%d", name, true).map_err(|error| match error {
        // One that somebody makes for us is none that we could put there.
        HostError::MayNotTap(..) => HostError::MayNotCut(name.to_owned()),
        error => error,
    })?;
    let index = find(&helper_name)?.index;
    // It has no life of its own: neither addresses nor announcements. Without IPv6 there is
    // nothing to switch off.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{helper_name}/disable_ipv6"), "1");
    let failed = |errno: Errno| HostError::System {
        doing: "set up the helper of",
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
    Ok((helper, programs.map_err(|errno| super::refused(name, errno))?, interface))
}
