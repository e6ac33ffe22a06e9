//! AF_XDP sockets on the queues of an existing interface, and the XDP program that feeds them.
//!
//! The sockets are returned unbound: binding takes no capability, and needs the memory of the port.

use std::io;
use std::os::fd::OwnedFd;

use protocol::Filter;
use rustix::io::Errno;

use crate::netlink::Interface;
use crate::sys::ethtool::{self, Stripping, Tags};
use crate::sys::packet::open_xdp;
use crate::sys::steer::{self, Steering};
use crate::{HostError, Undo, find};

/// The most queues of an AF_XDP port.
pub const QUEUES_MAX: u16 = 64;

/// The settings of an AF_XDP port.
#[derive(Clone, Debug, Default)]
pub struct XdpSpec {
    /// The name of the interface.
    pub name: String,
    /// The namespace that the interface is in.
    pub namespace: Option<String>,
    /// The queues to use, in ascending order; all, if `None`.
    pub queues: Option<Vec<u16>>,
    /// The frames that the port gets; the host's stack gets the others.
    pub filter: Filter,
}

/// Open AF_XDP sockets.
pub struct Handles {
    /// The number of each queue, with an unbound socket for it.
    pub sockets: Vec<(u16, OwnedFd)>,
    /// The XDP program, attached to the interface.
    pub steering: Steering,
    /// The interface of the queues.
    pub interface: Interface,
    /// Whether VLAN tags stay in received frames.
    pub tags: Tags,
    /// Restores VLAN stripping, if it was switched off here.
    pub undo: Option<Box<dyn Undo>>,
}

impl Undo for Stripping {
    fn keep(&mut self) -> io::Result<()> {
        self.leave();
        Ok(())
    }
}

/// Opens sockets on the queues of an existing interface in the namespace of the thread. Attaches a
/// program that passes them the frames that match the filter.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(spec: &XdpSpec) -> Result<Handles, HostError> {
    let name = spec.name.as_str();
    let interface = find(name)?;
    if !interface.ethernet {
        return Err(HostError::NotEthernet(name.to_owned()));
    }
    let socket = || {
        open_xdp().map_err(|errno| match errno {
            Errno::PERM | Errno::ACCESS => HostError::MayNotXdp(name.to_owned()),
            Errno::AFNOSUPPORT => HostError::NoXdp(name.to_owned()),
            errno => HostError::system("open an AF_XDP socket on", name)(errno.into()),
        })
    };
    // The first socket shows whether the capability is there, before anything else can fail.
    let mut first = Some(socket()?);
    let there = ethtool::queues(name);
    let all: Vec<u16> = (0..QUEUES_MAX).take(there as usize).collect();
    let wanted = spec.queues.as_ref().unwrap_or(&all);
    let Some(&highest) = wanted.last().filter(|queue| u32::from(**queue) < there) else {
        return Err(HostError::Queues(name.to_owned(), there));
    };
    let mut sockets = Vec::new();
    for &queue in wanted {
        sockets.push((queue, first.take().map_or_else(socket, Ok)?));
    }
    let steering = steer::attach(&spec.filter, u32::from(highest) + 1, interface.index);
    let steering = steering.map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS => HostError::MayNotXdp(name.to_owned()),
        Errno::BUSY | Errno::EXIST => HostError::ProgramTaken(name.to_owned()),
        Errno::NOSYS => HostError::NoXdp(name.to_owned()),
        errno => HostError::system("attach an XDP program to", name)(errno.into()),
    })?;
    let (tags, stripping) = ethtool::keep_tags(name);
    let undo = stripping.map(|stripping| Box::new(stripping) as Box<dyn Undo>);
    Ok(Handles { sockets, steering, interface, tags, undo })
}
