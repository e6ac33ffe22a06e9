//! TAPs: the host's stack, a namespace's, or a program's that wants one.
//!
//! Frames come and go behind a header that says what is left to do to them: the host's stack hands
//! out runs of segments of up to 64 KiB, and takes them (`adapter`). A TAP that is made for
//! a port goes with it; one that was there before (`ip tuntap add`) is opened, and stays. What is
//! made for a namespace is made here and moved there: whoever holds a TAP of another namespace
//! would keep that alive. Somebody who has the right may also open a TAP and hand it over.
//!
//! A TAP may have several queues. The kernel sends what belongs to a conversation by the queue that
//! the other side of it has used last, and by any before that. Which we use depends on who talks
//! to whom alone, so frames of a conversation stay in order.

mod adapter;
mod before;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

pub(super) use adapter::{Tap, Wish};

use super::namespace::{self, Home};
use super::netlink::{Change, Interface, Netlink};
use super::strangers::disbelieve;
use super::{HostError, Link, Opened, Undo, check_name, system};
use crate::sys::Waker;
use crate::sys::tun::{self, About};
use before::Before;

/// What a TAP is to be.
#[derive(Clone, Debug, Default)]
pub struct TapSpec {
    /// Its name.
    pub name: String,
    /// Its MTU, if it is to be set.
    pub mtu: Option<u32>,
    /// Its address, likewise.
    pub mac: Option<[u8; 6]>,
    /// The namespace to move it to.
    pub namespace: Option<String>,
    /// An address of the host on it, with the length of the prefix.
    pub address: Option<(std::net::IpAddr, u8)>,
    /// How many queues it is to have; one, if not said.
    pub queues: Option<u16>,
    /// Whether several frames are read and written in one system call, if that is said.
    pub uring: Option<bool>,
    /// Only one that is there is opened, and none is made.
    pub existing: bool,
    /// It is for somebody who must not change the host's routes: rather none than one by which
    /// that can be done.
    pub strict: bool,
}

/// Most queues of a TAP.
pub const QUEUES_MAX: u16 = 16;

/// Opens a TAP, making it if there is none; where something fails, one that was made goes again.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(spec: &TapSpec, bell: &Arc<Waker>) -> Result<Opened, HostError> {
    let target = spec.namespace.as_deref().map(namespace::open).transpose()?;
    let (taps, interface, undo) = rights(spec, target.as_ref())?;
    let opened = open_with(taps, interface, Home::of(target.as_ref()), spec.uring, bell)?;
    Ok(Opened { undo: Some(undo), ..opened })
}

/// Makes a port of a TAP that was opened, with its queues; `home`: where it is; `uring`: see
/// [`TapSpec`].
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open_with(
    taps: Vec<OwnedFd>,
    interface: Interface,
    home: Home,
    uring: Option<bool>,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    make(taps, interface, home, Wish { uring, shared: false }, bell)
}

fn make(
    taps: Vec<OwnedFd>,
    interface: Interface,
    home: Home,
    wish: Wish,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    let link = Link::new(&interface, home.is_foreign(), bell);
    let adapter = Tap::new(taps, wish, Vec::new(), link.clone(), &interface.name)?;
    Ok(Opened { adapter: Box::new(adapter), link, interface, home, undo: None })
}

/// Makes a port of a TAP that somebody else has opened, with its queues; `uring`: see [`TapSpec`].
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open_given(
    taps: Vec<OwnedFd>,
    uring: Option<bool>,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    let (home, interface) = look_given(&taps)?;
    make(taps, interface, home, Wish { uring, shared: true }, bell)
}

/// Which TAP somebody else has opened, and where that is.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn look_given(taps: &[OwnedFd]) -> Result<(Home, Interface), HostError> {
    let mut all = taps.iter().map(|tap| tun::look(tap).map_err(|_| HostError::NotGivenTap));
    let about = all.next().ok_or(HostError::NotGivenTap)??;
    for other in all {
        if other? != about {
            return Err(HostError::GivenTaps);
        }
    }
    if !about.fits {
        return Err(HostError::GivenOtherwise(about.name));
    }
    let name = about.name.as_str();
    let netlink = Netlink::open().map_err(system("open netlink for", name))?;
    let here = netlink.find(name).map_err(system("look up", name))?;
    // One of that name and that address, which is a TAP: it is the one, or it is elsewhere.
    Ok(match here.filter(|here| here.driver == "tun" && here.mac == about.mac) {
        Some(here) => (Home::Ours, here),
        None => (Home::Unknown, elsewhere(&about)),
    })
}

/// What is known of a TAP in a namespace where we cannot look.
fn elsewhere(about: &About) -> Interface {
    /// The longest that a TAP takes.
    const MTU: u32 = 65_521;
    let (name, mac, driver) = (about.name.clone(), about.mac, "tun".to_owned());
    let (mtu, running, up, ethernet) = (MTU, true, true, true);
    Interface { name, mac, driver, mtu, running, up, ethernet, ..Interface::default() }
}

/// A TAP with its queues, and what was changed of one that was there before.
pub type Rights = (Vec<OwnedFd>, Interface, Box<dyn Undo>);

/// Gets what takes rights: the TAP, as it is to be; `target`: the namespace that
/// it is to be moved to, opened.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn rights(spec: &TapSpec, target: Option<&OwnedFd>) -> Result<Rights, HostError> {
    check_name(&spec.name)?;
    let name = spec.name.as_str();
    let target = spec.namespace.as_deref().zip(target);
    let netlink = Netlink::open().map_err(system("open netlink for", name))?;
    let there = match target {
        // Of one that moves, the name matters only where it goes.
        Some(_) => None,
        None => netlink.find(name).map_err(system("look up", name))?,
    };
    match &there {
        Some(there) if there.driver != "tun" => return Err(HostError::NotTap(name.to_owned())),
        Some(there) if !there.ethernet => return Err(HostError::IsTun(name.to_owned())),
        None if spec.existing && target.is_none() => {
            return Err(HostError::Missing(name.to_owned()));
        }
        _ => {}
    }
    let made = there.is_none();
    let (taps, here) = attach_all(if target.is_some() { "uvala%d" } else { name }, spec, made)?;
    let index = netlink.find(&here).map_err(system("look up", name))?;
    let index = index.ok_or_else(|| HostError::Missing(name.to_owned()))?.index;
    // It went when it had been looked up, and opening it made another, which goes again.
    if there.is_some_and(|there| there.index != index) {
        return Err(HostError::Missing(name.to_owned()));
    }
    if let Some((into, namespace)) = target {
        let moved = netlink.change(index, Change::Move(namespace.as_fd(), name));
        moved.map_err(|errno| match errno {
            Errno::EXIST => HostError::Taken(name.to_owned(), into.to_owned()),
            Errno::PERM => HostError::MayNotEnter(into.to_owned()),
            // A namespace, and none of a network.
            Errno::INVAL => namespace::none(into),
            errno => system("move", name)(errno.into()),
        })?;
    }
    let (interface, mut before) = namespace::within(target, || set_up(spec, made))?;
    if made {
        // It goes with its port, as it is.
        before.forget();
    }
    Ok((taps, interface, Box::new(before)))
}

/// All queues of a TAP, and its name.
fn attach_all(
    template: &str,
    spec: &TapSpec,
    makes: bool,
) -> Result<(Vec<OwnedFd>, String), HostError> {
    let (name, count) = (spec.name.as_str(), spec.queues.unwrap_or(1));
    if !(1..=QUEUES_MAX).contains(&count) {
        return Err(HostError::TapQueues(QUEUES_MAX));
    }
    if count == 1 {
        let (tap, here) = attach(template, name, makes)?;
        return Ok((vec![tap], here));
    }
    let (first, here) = attach_with(template, name, makes, tun::attach_queue)?;
    let mut taps = vec![first];
    for _ in 1..count {
        taps.push(attach_with(&here, name, makes, tun::attach_queue)?.0);
    }
    Ok((taps, here))
}

pub(super) fn attach(
    template: &str,
    name: &str,
    makes: bool,
) -> Result<(OwnedFd, String), HostError> {
    attach_with(template, name, makes, tun::attach)
}

fn attach_with(
    template: &str,
    name: &str,
    makes: bool,
    attach: fn(&OwnedFd, &str) -> Result<String, Errno>,
) -> Result<(OwnedFd, String), HostError> {
    let own = || name.to_owned();
    let may_not = || {
        let user = rustix::process::geteuid().as_raw().to_string();
        HostError::MayNotTap(if makes { "make a TAP" } else { "open this TAP" }, own(), user)
    };
    let tap = tun::open().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => HostError::NoTun,
        std::io::ErrorKind::PermissionDenied => HostError::MayNotTun,
        _ => system("open /dev/net/tun for", name)(error),
    })?;
    let here = attach(&tap, template).map_err(|errno| match errno {
        Errno::PERM => may_not(),
        Errno::BUSY | Errno::TOOBIG => HostError::Busy(own()),
        // It was looked up before: it is a TAP, of another kind.
        Errno::INVAL if !makes => HostError::OneQueue(own()),
        Errno::INVAL => HostError::NotTap(own()),
        errno => system("open", name)(errno.into()),
    })?;
    Ok((tap, here))
}

/// Gives the TAP what it is to have. One that was made is set up; one that was there is left as it
/// was, but for what is asked.
fn set_up(spec: &TapSpec, made: bool) -> Result<(Interface, Before), HostError> {
    let name = spec.name.as_str();
    let netlink = Netlink::open().map_err(system("open netlink for", name))?;
    let look = || {
        let found = netlink.find(name).map_err(system("look up", name))?;
        found.ok_or_else(|| HostError::Missing(name.to_owned()))
    };
    let was = look()?;
    let sets_up = made || spec.address.is_some();
    // What is made for a namespace is its interface to the world, which may have routers.
    if sets_up && spec.namespace.is_none() {
        match disbelieve(&was.name) {
            // Root may do so, and may have shut us off from the settings.
            Err(_) if !spec.strict => {}
            done => done?,
        }
    }
    let failed = |what| {
        move |errno| match errno {
            Errno::PERM => HostError::MayNotChange(what, name.to_owned()),
            errno => system(what, name)(errno.into()),
        }
    };
    let own = Netlink::open().map_err(system("open netlink for", name))?;
    let mut before = Before::new(own, was);
    if let Some(mac) = spec.mac {
        before.mac(mac).map_err(failed("set the address"))?;
    }
    if let Some(mtu) = spec.mtu {
        before.mtu(mtu).map_err(|errno| match errno {
            Errno::INVAL | Errno::RANGE => {
                HostError::Mtu(name.to_owned(), mtu, "68 to 65521 is what a TAP takes")
            }
            errno => failed("set the MTU")(errno),
        })?;
    }
    if sets_up {
        before.up().map_err(failed("set up the link"))?;
    }
    if let Some((address, prefix)) = spec.address {
        before.address(address, prefix).map_err(|errno| match errno {
            Errno::ACCESS | Errno::OPNOTSUPP if address.is_ipv6() => {
                HostError::NoIpv6(name.to_owned())
            }
            errno => failed("add the address")(errno),
        })?;
    }
    Ok((look()?, before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_not_there_is_not_made_where_one_is_to_be_opened() {
        let name = "uvala-none0".to_owned();
        let spec = TapSpec { name, existing: true, ..TapSpec::default() };
        let refused = rights(&spec, None).err();
        assert!(matches!(refused, Some(HostError::Missing(_))), "{refused:?}");
    }
}
