//! TAPs: the host's stack, a namespace's, or a program's that wants one.
//!
//! Each frame is one `read` or one `write`. A TAP that is made for a port goes with it; one that
//! was there before (`ip tuntap add`) is opened, and stays. What is made for a namespace is made
//! here and moved there: whoever holds a TAP of another namespace would keep that alive.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ring::plain::Intake;
use ring::put::FRAME_MAX;
use rustix::io::Errno;
use switch::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Drops, Sent};

use super::netlink::{Change, Interface, Netlink};
use super::{FRAMES, HostError, Link, State, check_name, namespace, system};
use crate::sys::bpf::Attached;
use crate::sys::{Waker, tun};

/// Bytes that a TAP may hand us at most.
const READ: usize = FRAME_MAX as usize + 1;
const ETHERNET: usize = 14;

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
}

/// An opened interface.
pub struct Opened {
    /// For the worker.
    pub adapter: Box<dyn Adapter>,
    /// What both know of it.
    pub link: Arc<Link>,
    /// As the kernel described it last.
    pub interface: Interface,
}

/// Opens a TAP, making it if there is none; where something fails, one that was made goes again.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(spec: &TapSpec, bell: &Arc<Waker>) -> Result<Opened, HostError> {
    check_name(&spec.name)?;
    let name = spec.name.as_str();
    let target = spec.namespace.as_deref().map(namespace::open).transpose()?;
    let target = spec.namespace.as_deref().zip(target.as_ref());
    let netlink = Netlink::open().map_err(system("open netlink for", name))?;
    let there = match target {
        // Of one that moves, the name matters only where it goes.
        Some(_) => None,
        None => netlink.find(name).map_err(system("look up", name))?,
    };
    if there.as_ref().is_some_and(|there| there.driver != "tun") {
        return Err(HostError::NotTap(name.to_owned()));
    }
    let made = there.is_none();
    let (tap, here) = attach(if target.is_some() { "uvala%d" } else { name }, name, made)?;
    let index = netlink.find(&here).map_err(system("look up", name))?;
    let index = index.ok_or_else(|| HostError::Missing(name.to_owned()))?.index;
    if let Some((into, namespace)) = target {
        let moved = netlink.change(index, Change::Move(namespace.as_fd(), name));
        moved.map_err(|errno| match errno {
            Errno::EXIST => HostError::Taken(name.to_owned(), into.to_owned()),
            Errno::PERM => HostError::MayNotEnter(into.to_owned()),
            errno => system("move", name)(errno.into()),
        })?;
    }
    let interface = namespace::within(target, || set_up(spec, made))?;
    let link = Link::new(&interface, target.is_some(), bell);
    let adapter = Tap::new(tap, Vec::new(), link.clone(), name)?;
    Ok(Opened { adapter: Box::new(adapter), link, interface })
}

pub(super) fn attach(
    template: &str,
    name: &str,
    makes: bool,
) -> Result<(OwnedFd, String), HostError> {
    let own = || name.to_owned();
    let may_not = || {
        let user = rustix::process::geteuid().as_raw().to_string();
        HostError::MayNotTap(if makes { "make a TAP" } else { "open this TAP" }, own(), user)
    };
    let tap = tun::open().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => HostError::NoTun,
        std::io::ErrorKind::PermissionDenied => may_not(),
        _ => system("open /dev/net/tun for", name)(error),
    })?;
    let here = tun::attach(&tap, template).map_err(|errno| match errno {
        Errno::PERM => may_not(),
        Errno::BUSY => HostError::Busy(own()),
        Errno::INVAL => HostError::NotTap(own()),
        errno => system("open", name)(errno.into()),
    })?;
    Ok((tap, here))
}

/// Gives the TAP what it is to have. One that was made is set up; one that was there is left as it
/// was, but for what is asked.
fn set_up(spec: &TapSpec, made: bool) -> Result<Interface, HostError> {
    let name = spec.name.as_str();
    let netlink = Netlink::open().map_err(system("open netlink for", name))?;
    let look = || {
        let found = netlink.find(name).map_err(system("look up", name))?;
        found.ok_or_else(|| HostError::Missing(name.to_owned()))
    };
    let index = look()?.index;
    let failed = |what| {
        move |errno| match errno {
            Errno::PERM => HostError::MayNotChange(what, name.to_owned()),
            errno => system(what, name)(errno.into()),
        }
    };
    if let Some(mac) = spec.mac {
        netlink.change(index, Change::Mac(mac)).map_err(failed("set the address"))?;
    }
    if let Some(mtu) = spec.mtu {
        netlink.change(index, Change::Mtu(mtu)).map_err(|errno| match errno {
            Errno::INVAL => HostError::Mtu(name.to_owned(), mtu, "68 to 65521 is what a TAP takes"),
            errno => failed("set the MTU")(errno),
        })?;
    }
    if made || spec.address.is_some() {
        netlink.change(index, Change::Up).map_err(failed("set up the link"))?;
    }
    if let Some((address, prefix)) = spec.address {
        let added = netlink.add_address(index, address, prefix);
        added.map_err(failed("add the address"))?;
    }
    look()
}

/// The worker's side of a TAP.
pub(super) struct Tap {
    /// Closed when the interface is gone, so that nobody watches it any more.
    tap: Option<OwnedFd>,
    link: Arc<Link>,
    intake: Intake,
    read: Box<[u8]>,
    write: Vec<u8>,
    /// Attached as long as the TAP is a port.
    _programs: Vec<Attached>,
}

impl Tap {
    pub(super) fn new(
        tap: OwnedFd,
        programs: Vec<Attached>,
        link: Arc<Link>,
        name: &str,
    ) -> Result<Self, HostError> {
        let intake = Intake::new(FRAMES, link.mtu() + super::HEADERS);
        let intake = intake.map_err(system("memory for", name))?;
        let (read, write) = (vec![0; READ].into(), Vec::with_capacity(READ));
        Ok(Self { tap: Some(tap), link, intake, read, write, _programs: programs })
    }

    fn write(&mut self, batch: &Batch, delivery: Delivery) -> Result<usize, DropReason> {
        let tap = self.tap.as_ref().ok_or(DropReason::LinkDown)?;
        self.write.clear();
        batch.append(delivery, &mut self.write);
        if !self.link.takes(self.write.len()) {
            return Err(DropReason::TooLong);
        }
        let written = loop {
            match rustix::io::write(tap, &self.write) {
                Err(Errno::INTR) => {}
                result => break result,
            }
        };
        written.map(|_| self.write.len()).map_err(|errno| self.link.refused(errno))
    }
}

impl Adapter for Tap {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        self.intake.clear();
        batch.restart(self.intake.region());
        let Some(tap) = &self.tap else { return };
        while batch.has_room() && self.intake.fits(FRAME_MAX as usize) {
            match rustix::io::read(tap, &mut self.read[..]) {
                Ok(len @ ETHERNET..READ) => {
                    let first = batch.frags().len();
                    self.intake.push(&[&self.read[..len]], batch.frags());
                    batch.push_received(first, u32::try_from(len).expect("bounded"));
                }
                Ok(0..ETHERNET) => drops.add(DropReason::TooShort, 1),
                Ok(_) => drops.add(DropReason::TooLong, 1),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.link.seen(State::Gone);
                    self.tap = None;
                    return;
                }
            }
        }
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        let sent = Sent::each(list, |delivery| self.write(batch, delivery));
        if sent.delivered.frames > 0 {
            self.link.seen(State::Up);
        }
        sent
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        self.tap.as_ref().map(AsFd::as_fd)
    }
}
