//! Port kinds, in one table.
//!
//! A kind has one row in [`TABLE`]: its name, what is at the other end, and the options that it
//! takes. The daemon checks requests and files by this table, and the command line and messages
//! list kinds from it. Code that is a kind's own stands in:
//!
//! | module | code |
//! |---|---|
//! | `hostif` and `port::host` | open an interface, and move its frames |
//! | `daemon::engine::machines` | opens the socket of a virtual machine |
//! | `daemon::engine::vxlan` | opens the sockets of a tunnel |
//! | `port` | moves the frames: an adapter for each kind |

use serde::{Deserialize, Serialize};

/// The kind of a port: how its frames come and go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// Rings in shared memory, for a client to attach.
    #[default]
    Shm,
    /// A sink: it takes every frame and drops it.
    Null,
    /// One end of a pipe; the switch does not see its frames.
    Pipe,
    /// A TAP: the host's own stack, or that of a namespace.
    Tap,
    /// An Ethernet interface, by a packet socket.
    Packet,
    /// An Ethernet interface, by AF_XDP.
    Xdp,
    /// The host's stack behind an Ethernet interface, without the interface.
    Stack,
    /// A virtual machine, by vhost-user.
    #[serde(rename = "vhost-user")]
    VhostUser,
    /// A virtual machine, by a byte stream of frames: QEMU's `-netdev stream`.
    Stream,
    /// A virtual machine, by datagrams: QEMU's `-netdev dgram`.
    Dgram,
    /// Other hosts, by VXLAN.
    Vxlan,
}

/// What is at the other end of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client that attaches to rings.
    Client,
    /// A client at the other end of a pipe.
    Pipe,
    /// Nothing: frames are dropped.
    Sink,
    /// A network interface of the host.
    Interface(Side),
    /// A virtual machine.
    Machine,
    /// Switches of other hosts on an IP network.
    Hosts,
}

/// Which side of a network interface a port stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The wire: what arrives by the interface and leaves by it.
    Wire,
    /// The host's stack: what the host sends and receives by the interface.
    Stack,
    /// A TAP has no wire but the port.
    Tap,
}

/// An option that some kinds take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortOption {
    /// The host's stack is cut off from the interface.
    Alone,
    /// Whether the connection to the VMM is made by the daemon.
    Connect,
    /// Interrupt coalescing.
    Coalesce,
    /// Open descriptors that come with the call.
    Descriptors,
    /// The frames that the port gets.
    Filter,
    /// MTU, MAC address and IP address of the interface.
    LinkSettings,
    /// The VMM's own socket.
    PeerSocket,
    /// The number of queues.
    QueueCount,
    /// The numbers of queues.
    QueueNumbers,
    /// The number of pairs of virtqueues.
    QueuePairs,
    /// The trust group whose memory the port uses.
    TrustGroup,
}

/// A kind's row.
struct Row {
    kind: PortKind,
    name: &'static str,
    /// What is behind the port, for the help of the command line.
    what: &'static str,
    peer: Peer,
    options: &'static [PortOption],
}

const fn row(
    kind: PortKind,
    (name, what): (&'static str, &'static str),
    peer: Peer,
    options: &'static [PortOption],
) -> Row {
    Row { kind, name, what, peer, options }
}

/// Every kind, in the order of [`PortKind`].
#[rustfmt::skip]
static TABLE: [Row; 11] = {
    use PortOption as O;
    [
        row(PortKind::Shm, ("shm", "a client that attaches"), Peer::Client, &[]),
        row(PortKind::Null, ("null", "a sink that drops every frame"), Peer::Sink, &[]),
        row(PortKind::Pipe, ("pipe", "a client at the other end"), Peer::Pipe, &[]),
        row(PortKind::Tap, ("tap", "the network stack of the host or of a namespace"),
            Peer::Interface(Side::Tap),
            &[O::LinkSettings, O::QueueCount, O::Descriptors]),
        row(PortKind::Packet, ("packet", "an Ethernet interface of the host"),
            Peer::Interface(Side::Wire), &[O::Alone]),
        row(PortKind::Xdp, ("xdp", "an Ethernet interface by AF_XDP, which is faster"),
            Peer::Interface(Side::Wire),
            &[O::QueueCount, O::QueueNumbers, O::Filter, O::TrustGroup]),
        row(PortKind::Stack, ("stack", "the host's network stack behind such an interface"),
            Peer::Interface(Side::Stack), &[]),
        row(PortKind::VhostUser, ("vhost-user", "a virtual machine with virtio-net"), Peer::Machine,
            &[O::Connect, O::QueuePairs, O::Coalesce]),
        row(PortKind::Stream, ("stream", "a virtual machine with any network card"),
            Peer::Machine, &[O::Connect]),
        row(PortKind::Dgram, ("dgram", "the same by datagrams"), Peer::Machine, &[O::PeerSocket]),
        row(PortKind::Vxlan, ("vxlan", "switches of other hosts"), Peer::Hosts, &[]),
    ]
};

impl PortKind {
    /// Every kind.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.kind)
    }

    /// The kinds that an operator can add; pipes come and go with their clients.
    pub fn persistent_kinds() -> impl Iterator<Item = Self> {
        Self::all().filter(|kind| kind.peer() != Peer::Pipe)
    }

    /// The persistent kind of this name.
    #[must_use]
    pub fn persistent(name: &str) -> Option<Self> {
        Self::persistent_kinds().find(|kind| kind.name() == name)
    }

    /// The persistent kinds, each with what is behind the port, for help texts.
    #[must_use]
    pub fn descriptions() -> String {
        let rows = TABLE.iter().filter(|row| row.peer != Peer::Pipe);
        let texts: Vec<_> = rows.map(|row| format!("{} ({})", row.name, row.what)).collect();
        texts.join(", ")
    }

    /// The names of the kinds that are interfaces of the host, for messages.
    #[must_use]
    pub fn interface_names() -> String {
        listed(Self::all().filter(|kind| kind.is_host()), "and")
    }

    /// The names of all persistent kinds, for messages.
    #[must_use]
    pub fn names() -> String {
        listed(Self::persistent_kinds(), "or")
    }

    /// The names of the kinds that take an option, for messages.
    #[must_use]
    pub fn names_with(option: PortOption) -> String {
        listed(Self::all().filter(|kind| kind.takes(option)), "and")
    }

    fn row(self) -> &'static Row {
        let row = &TABLE[self as usize];
        debug_assert!(row.kind == self, "the table is in the order of the kinds");
        row
    }

    /// The name in messages, files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// What is at the other end.
    #[must_use]
    pub fn peer(self) -> Peer {
        self.row().peer
    }

    /// Whether ports of this kind take an option.
    #[must_use]
    pub fn takes(self, option: PortOption) -> bool {
        self.row().options.contains(&option)
    }

    /// Whether a port can be granted to a user and a group, to attach to it or to connect to its
    /// socket.
    #[must_use]
    pub fn is_given(self) -> bool {
        matches!(self.peer(), Peer::Client | Peer::Machine)
    }

    /// Whether a virtual machine is at the other end.
    #[must_use]
    pub fn is_machine(self) -> bool {
        self.peer() == Peer::Machine
    }

    /// The word for the program at the other end of a machine's port. By `stream` and `dgram` any
    /// program may be there: QEMU, passt, another switch.
    #[must_use]
    pub fn peer_word(self) -> &'static str {
        if self == Self::VhostUser { "VMM" } else { "peer" }
    }

    /// Whether a network interface of the host is at the other end.
    #[must_use]
    pub fn is_host(self) -> bool {
        matches!(self.peer(), Peer::Interface(_))
    }
}

/// `a`, `a or b`, `a, b or c`.
fn listed(kinds: impl Iterator<Item = PortKind>, last: &str) -> String {
    let names: Vec<_> = kinds.map(PortKind::name).collect();
    match names.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{} {last} {end}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_kinds_of_ports_have_one_name_everywhere() {
        for kind in PortKind::all() {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
            let stays = (kind != PortKind::Pipe).then_some(kind);
            assert_eq!(PortKind::persistent(kind.name()), stays);
        }
    }

    #[test]
    fn test_kinds_are_listed_by_what_they_take() {
        let names = "shm, null, tap, packet, xdp, stack, vhost-user, stream, dgram or vxlan";
        assert_eq!(PortKind::names(), names);
        assert_eq!(PortKind::names_with(PortOption::Alone), "packet");
        assert_eq!(PortKind::names_with(PortOption::QueueCount), "tap and xdp");
    }
}
