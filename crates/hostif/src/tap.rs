//! TAPs: created or opened, configured, and moved to a namespace.
//!
//! # Theory of operation
//!
//! [`open`] attaches to the TAP of a name, or creates it if there is none; one that another program
//! made meanwhile is never taken for a new one. The kernel deletes a TAP that was created here when
//! its last descriptor is closed; one that existed before (`ip tuntap add`) stays. A TAP for a
//! namespace is created in the daemon's namespace and moved: the descriptor of a TAP that was
//! created inside would keep the namespace alive. A client with the capabilities can also open a
//! TAP and pass its descriptors ([`identify`]).
//!
//! ```text
//!   attach ──► move to the namespace ──► accept_ra = 0 ──► MAC, MTU ──► up ──► IP address
//!                                         └──── of an existing TAP: reverted by [`Undo`] ────┘
//! ```
//!
//! A TAP can have several queues. The kernel sends the frames of a flow by the queue on which it
//! last received a frame of the flow's other direction.

mod kept;
mod saved;

use std::os::fd::{AsFd, OwnedFd};

use packet::MacAddr;
use rustix::io::Errno;

use crate::namespace::{self, Home};
use crate::netlink::{Change, Interface, Netlink};
use crate::sys::tun::{self, About, Which};
use crate::sysctl::ignore_advertisements;
use crate::{HostError, Undo, check_name, mac};
pub use kept::{Ending, resume};
use saved::SavedState;

/// The settings of a TAP.
#[derive(Clone, Debug, Default)]
pub struct TapSpec {
    /// The name of the interface.
    pub name: String,
    /// The MTU to set, if any.
    pub mtu: Option<u32>,
    /// The MAC address to set. By default a TAP that is created gets a [stable](mac) one, and an
    /// existing TAP keeps its own.
    pub mac: Option<MacAddr>,
    /// The namespace to move the TAP to.
    pub namespace: Option<String>,
    /// An IP address for the host on the TAP, with its prefix length.
    pub address: Option<(std::net::IpAddr, u8)>,
    /// The number of queues; the default is 1.
    pub queues: Option<u16>,
    /// Open an existing TAP only; do not create one.
    pub existing: bool,
    /// Fail if router advertisements cannot be switched off. The helper sets this, because its
    /// caller must not change the host's routes.
    pub strict: bool,
}

/// The most queues of a TAP.
pub const QUEUES_MAX: u16 = 16;

/// An open TAP.
pub struct Handles {
    /// One descriptor for each queue.
    pub queues: Vec<OwnedFd>,
    /// The interface after all changes.
    pub interface: Interface,
    /// Reverts the changes to a TAP that existed before.
    pub undo: Box<dyn Undo>,
}

/// Opens the TAP of `spec`, or creates it, and configures it. `target` is the open namespace that
/// the TAP is moved to. If a step fails, a TAP that was created is deleted.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(spec: &TapSpec, target: Option<&OwnedFd>) -> Result<Handles, HostError> {
    open_if(spec, target, |_| Ok(()))
}

/// As [`open`]; `may_open` says whether a TAP may be opened that was there before.
///
/// # Errors
/// [`HostError`], with what to do; that of `may_open`.
pub fn open_if(
    spec: &TapSpec,
    target: Option<&OwnedFd>,
    may_open: impl FnOnce(&Interface) -> Result<(), HostError>,
) -> Result<Handles, HostError> {
    check_name(&spec.name)?;
    let name = spec.name.as_str();
    let target = spec.namespace.as_deref().zip(target);
    let netlink = Netlink::open().map_err(HostError::system("open netlink for", name))?;
    let there = match target {
        // The name of a TAP that moves matters only in the target namespace.
        Some(_) => None,
        None => netlink.find(name).map_err(HostError::system("look up", name))?,
    };
    match &there {
        Some(there) if there.driver != "tun" => return Err(HostError::NotTap(name.to_owned())),
        Some(there) if !there.ethernet => return Err(HostError::IsTun(name.to_owned())),
        None if spec.existing && target.is_none() => {
            return Err(HostError::Missing(name.to_owned()));
        }
        _ => {}
    }
    there.as_ref().map_or(Ok(()), may_open)?;
    let creates = there.is_none();
    let template = if target.is_some() { "uvala%d" } else { name };
    let (queues, here) = attach_all(template, spec, creates)?;
    let index = netlink.find(&here).map_err(HostError::system("look up", name))?;
    let index = index.ok_or_else(|| HostError::Missing(name.to_owned()))?.index;
    // The TAP was deleted after the lookup, so attaching created another. Dropping deletes that.
    if there.is_some_and(|there| there.index != index) {
        // Where a TAP is created if there is none, trying again does that.
        let error = if spec.existing { HostError::Missing } else { HostError::Busy };
        return Err(error(name.to_owned()));
    }
    if let Some((into, namespace)) = target {
        let moved = netlink.change(index, Change::Move(namespace.as_fd(), name));
        moved.map_err(|errno| match errno {
            Errno::EXIST => HostError::Taken(name.to_owned(), into.to_owned()),
            Errno::PERM => HostError::MayNotEnter(into.to_owned()),
            // The file is a namespace of another type.
            Errno::INVAL => namespace::none(into),
            errno => HostError::system("move", name)(errno.into()),
        })?;
    }
    let (interface, mut saved) = namespace::within(target, || configure(spec, creates))?;
    if creates {
        // The kernel deletes it with its settings.
        saved.discard();
    }
    Ok(Handles { queues, interface, undo: Box::new(saved) })
}

/// Finds the TAP that the descriptors of a client belong to, and its namespace.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn identify(queues: &[OwnedFd]) -> Result<(Home, Interface), HostError> {
    let about = about(queues)?;
    Ok(match here(&about)? {
        Some(here) => (Home::Ours, here),
        None => (Home::Unknown, elsewhere(&about)),
    })
}

/// What there is to say of the TAP that all these are queues of.
fn about(queues: &[OwnedFd]) -> Result<About, HostError> {
    let mut all = queues.iter().map(|tap| tun::look(tap).map_err(|_| HostError::NotGivenTap));
    let about = all.next().ok_or(HostError::NotGivenTap)??;
    for other in all {
        if other? != about {
            return Err(HostError::GivenTaps);
        }
    }
    if about.fits { Ok(about) } else { Err(HostError::GivenOtherwise(about.name)) }
}

/// The TAP, if it is here: one with that name and that MAC address is the one.
fn here(about: &About) -> Result<Option<Interface>, HostError> {
    let name = about.name.as_str();
    let netlink = Netlink::open().map_err(HostError::system("open netlink for", name))?;
    let here = netlink.find(name).map_err(HostError::system("look up", name))?;
    Ok(here.filter(|here| here.driver == "tun" && here.mac == about.mac))
}

/// What is known of a TAP in a namespace that the daemon cannot look into.
fn elsewhere(about: &About) -> Interface {
    /// The largest MTU of a TAP.
    const MTU: u32 = 65_521;
    let (name, mac, driver) = (about.name.clone(), about.mac, "tun".to_owned());
    let (mtu, running, up, ethernet) = (MTU, true, true, true);
    Interface { name, mac, driver, mtu, running, up, ethernet, ..Interface::default() }
}

/// Attaches to all queues of a TAP; returns them with the TAP's name.
fn attach_all(
    template: &str,
    spec: &TapSpec,
    creates: bool,
) -> Result<(Vec<OwnedFd>, String), HostError> {
    let (name, count) = (spec.name.as_str(), spec.queues.unwrap_or(1));
    if !(1..=QUEUES_MAX).contains(&count) {
        return Err(HostError::TapQueues(QUEUES_MAX));
    }
    let which = if creates { Which::New } else { Which::Any };
    if count == 1 {
        let (tap, here) = attach(template, name, which)?;
        return Ok((vec![tap], here));
    }
    let (first, here) = attach_with(template, name, which, tun::attach_queue)?;
    let mut queues = vec![first];
    for _ in 1..count {
        queues.push(attach_with(&here, name, Which::Any, tun::attach_queue)?.0);
    }
    Ok((queues, here))
}

pub(crate) fn attach(
    template: &str,
    name: &str,
    which: Which,
) -> Result<(OwnedFd, String), HostError> {
    attach_with(template, name, which, tun::attach)
}

/// Attaches to the TAP of name `template`, in which `%d` is a number that the kernel chooses. Error
/// messages show `name`.
fn attach_with(
    template: &str,
    name: &str,
    which: Which,
    attach: fn(&OwnedFd, &str, Which) -> Result<String, Errno>,
) -> Result<(OwnedFd, String), HostError> {
    let own = || name.to_owned();
    let creates = which == Which::New;
    let may_not = || {
        let user = rustix::process::geteuid().as_raw().to_string();
        HostError::MayNotTap(if creates { "make a TAP" } else { "open this TAP" }, own(), user)
    };
    let tap = tun::open().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => HostError::NoTun,
        std::io::ErrorKind::PermissionDenied => HostError::MayNotTun,
        _ => HostError::system("open /dev/net/tun for", name)(error),
    })?;
    let here = attach(&tap, template, which).map_err(|errno| match errno {
        Errno::PERM => may_not(),
        Errno::BUSY | Errno::TOOBIG => HostError::Busy(own()),
        // The lookup found a TAP, so its number of queues does not match.
        Errno::INVAL if !creates => HostError::OneQueue(own()),
        Errno::INVAL => HostError::NotTap(own()),
        errno => HostError::system("open", name)(errno.into()),
    })?;
    Ok((tap, here))
}

/// Configures the TAP in the namespace of the thread. A new TAP is set up; an existing one gets
/// only the settings that `spec` names.
fn configure(spec: &TapSpec, is_new: bool) -> Result<(Interface, SavedState), HostError> {
    let name = spec.name.as_str();
    let netlink = Netlink::open().map_err(HostError::system("open netlink for", name))?;
    let look = || {
        let found = netlink.find(name).map_err(HostError::system("look up", name))?;
        found.ok_or_else(|| HostError::Missing(name.to_owned()))
    };
    let was = look()?;
    let sets_up = is_new || spec.address.is_some();
    // In a namespace, the TAP is the uplink, and routers behind it are wanted.
    if sets_up && spec.namespace.is_none() {
        match ignore_advertisements(&was.name) {
            // An operator with root rights may have made /proc/sys read-only.
            Err(_) if !spec.strict => {}
            done => done?,
        }
    }
    let failed = |what| {
        move |errno| match errno {
            Errno::PERM => HostError::MayNotChange(what, name.to_owned()),
            errno => HostError::system(what, name)(errno.into()),
        }
    };
    let own = Netlink::open().map_err(HostError::system("open netlink for", name))?;
    let mut saved = SavedState::new(own, was);
    let stable = || mac::derived(spec.namespace.as_deref(), name).filter(|_| is_new);
    if let Some(mac) = spec.mac.or_else(stable) {
        saved.set_mac(mac).map_err(failed("set the address"))?;
    }
    if let Some(mtu) = spec.mtu {
        saved.set_mtu(mtu).map_err(|errno| match errno {
            Errno::INVAL | Errno::RANGE => {
                HostError::Mtu(name.to_owned(), mtu, "a TAP takes 68 to 65521")
            }
            errno => failed("set the MTU")(errno),
        })?;
    }
    if sets_up {
        saved.set_up().map_err(failed("set up the link"))?;
    }
    if let Some((address, prefix)) = spec.address {
        saved.add_address(address, prefix).map_err(|errno| match errno {
            Errno::ACCESS | Errno::OPNOTSUPP if address.is_ipv6() => {
                HostError::NoIpv6(name.to_owned())
            }
            errno => failed("add the address")(errno),
        })?;
    }
    Ok((look()?, saved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_that_is_to_exist_is_not_created() {
        let name = "uvala-none0".to_owned();
        let spec = TapSpec { name, existing: true, ..TapSpec::default() };
        let refused = open(&spec, None).err();
        assert!(matches!(refused, Some(HostError::Missing(_))), "{refused:?}");
    }
}
