//! A packet socket on an existing interface.
//!
//! The socket receives what arrives on the interface, also for other stations (promiscuous mode).
//! The host's stack receives the frames too, unless the port has the interface alone: then two BPF
//! programs drop what the stack would receive and send ([`crate::sys::bpf`]).

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::netlink::Interface;
use crate::sys::bpf::{self, Attached, Hook, Program};
use crate::{HostError, find, sys};

/// An open packet socket.
#[derive(Debug)]
pub struct Handles {
    /// The socket, bound to the interface.
    pub socket: OwnedFd,
    /// The programs that cut the host's stack off, if the port has the interface alone.
    pub programs: Vec<Attached>,
    /// The interface that the socket is bound to.
    pub interface: Interface,
}

/// Opens a packet socket on interface `name` in the namespace of the thread; `alone` cuts the
/// host's stack off from the interface.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(name: &str, alone: bool) -> Result<Handles, HostError> {
    let interface = find(name)?;
    if !interface.ethernet {
        return Err(HostError::NotEthernet(name.to_owned()));
    }
    let socket = sys::packet::open(interface.index, alone).map_err(|errno| match errno {
        // A sandbox answers EAFNOSUPPORT.
        Errno::PERM | Errno::ACCESS | Errno::AFNOSUPPORT => HostError::MayNotPacket,
        Errno::NODEV => HostError::Missing(name.to_owned()),
        errno => HostError::system("open a packet socket on", name)(errno.into()),
    })?;
    let cuts = [(Program::DropOthers, Hook::Ingress), (Program::Drop, Hook::Egress)];
    let cuts = cuts.into_iter().filter(|_| alone);
    let programs: Result<Vec<_>, _> =
        cuts.map(|(program, hook)| bpf::attach(program, hook, interface.index)).collect();
    let programs = programs.map_err(|errno| HostError::attaching(name, errno))?;
    Ok(Handles { socket, programs, interface })
}
