//! One interface is one port of a switch: a second one would double its frames, or send them in
//! circles.
//!
//! An interface is compared with those of the switch before anything of it is changed, by the
//! thread that opens it, and again where it is plugged in: another one may have been quicker.
//!
//! The host's side of an interface (`stack`) and its cable are two things, where the host has
//! nothing but its side. In two switches, an interface is a cable between them.

use std::os::fd::OwnedFd;

use hostif::namespace::Home;
use hostif::netlink::Interface;
use hostif::{HostError, is_same, look, tap};
use port::host::Opened;
use protocol::name::PortName;
use protocol::{HostIf, Peer, PortKind, PortOption};

/// The interfaces that are ports of a switch already.
#[derive(Debug, Default)]
pub(super) struct Others(pub Vec<Other>);

/// An interface that is a port of a switch already.
#[derive(Debug)]
pub(super) struct Other {
    pub port: PortName,
    pub side: Side,
    pub home: Home,
    pub interface: Interface,
}

/// What a port has of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// What the host sends and gets.
    Host,
    /// The cable, alone.
    Cable,
    /// The cable, beside the host.
    Shared,
    /// All there is: a TAP.
    Both,
}

impl Side {
    pub fn of(kind: PortKind, wanted: &HostIf) -> Self {
        match kind.peer() {
            Peer::Interface(protocol::Side::Stack) => Self::Host,
            Peer::Interface(protocol::Side::Wire) => {
                let shares = kind.takes(PortOption::Alone) && !wanted.alone;
                if shares { Self::Shared } else { Self::Cable }
            }
            _ => Self::Both,
        }
    }

    /// Why one switch may not have both sides of an interface, if it may not.
    fn beside(self, other: Self) -> Option<fn(String, String) -> HostError> {
        match (self, other) {
            (Self::Host, Self::Cable) | (Self::Cable, Self::Host) => None,
            (Self::Host, Self::Shared) | (Self::Shared, Self::Host) => Some(HostError::Beside),
            _ => Some(HostError::Duplicate),
        }
    }
}

impl Others {
    /// Checks an interface before it is opened: the switch must not have it already. An interface
    /// that cannot be looked up passes; opening it reports why.
    pub fn admit_wanted(
        &self,
        kind: PortKind,
        wanted: &HostIf,
        given: &[OwnedFd],
    ) -> Result<(), HostError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let name = wanted.ifname.as_deref().unwrap_or_default();
        let looked = match wanted.fds {
            0 => look(name, wanted.netns.as_deref()),
            _ => tap::identify(given),
        };
        let Ok((home, interface)) = looked else { return Ok(()) };
        self.admit_as(Side::of(kind, wanted), home, &interface)
    }

    /// Checks an interface that has been opened.
    pub fn admit(&self, kind: PortKind, wanted: &HostIf, opened: &Opened) -> Result<(), HostError> {
        self.admit_as(Side::of(kind, wanted), opened.home, &opened.interface)
    }

    fn admit_as(&self, side: Side, home: Home, interface: &Interface) -> Result<(), HostError> {
        let clash = |other: &Other| {
            let is_it = is_same((home, interface), (other.home, &other.interface));
            let why = side.beside(other.side).filter(|_| is_it)?;
            Some(why(interface.name.clone(), other.port.to_string()))
        };
        self.0.iter().find_map(clash).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(kind: PortKind, alone: bool) -> Side {
        Side::of(kind, &HostIf { alone, ..HostIf::default() })
    }

    #[test]
    fn both_sides_of_an_interface_are_two_ports_where_the_host_has_but_its_own() {
        let interface =
            |index| Interface { index, name: "eth0".to_owned(), ..Interface::default() };
        let kinds = [
            with(PortKind::Tap, false),
            with(PortKind::Packet, false),
            with(PortKind::Packet, true),
            with(PortKind::Xdp, false),
            with(PortKind::Stack, false),
        ];
        for (a, b) in kinds.iter().flat_map(|a| kinds.iter().map(move |b| (*a, *b))) {
            let port: PortName = "vale0:a".parse().expect("a name");
            let (home, there) = (Home::Other(9), interface(7));
            let others = Others(vec![Other { port, side: a, home, interface: there }]);
            assert!(others.admit_as(b, home, &interface(8)).is_ok());
            let sides = matches!((a, b), (Side::Host, Side::Cable) | (Side::Cable, Side::Host));
            let refused = others.admit_as(b, home, &interface(7));
            assert_eq!(refused.is_ok(), sides, "{a:?} {b:?}");
            let named = |error: HostError| {
                error.to_string().contains("eth0 and port vale0:a")
                    || error.to_string().contains("eth0 is port vale0:a")
            };
            assert!(refused.err().is_none_or(named));
        }
    }
}
