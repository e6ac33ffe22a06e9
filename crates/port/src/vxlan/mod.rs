//! Switches of other hosts behind one port: VXLAN (RFC 7348).
//!
//! ```text
//!              ┌──────────────────────── worker ────────────────────────┐
//!              │  batch ─► remote of the frame's MAC, or all remotes    │     ┌─────────┐
//!   switch ◄──►│        ─► outbox ─► sendmmsg ──────────────────────────┼──►  │ senders │ ─┐
//!              │                                                        │     └─────────┘  │ IP
//!              │  batch ◄─ learn ◄─ check ◄─ inbox ◄─ recvmmsg ─────────┼───  ┌──────────┐ │
//!              └────────────────────────────────────────────────────────┘     │ receiver │◄┘
//!                                                                             └──────────┘
//! ```
//!
//! # Theory of operation
//!
//! The control thread opens and binds the sockets, and hands the adapter to the worker. From then
//! on only the worker has it; the control thread changes and reads it by jobs of the worker.
//!
//! The switch knows that a station is behind the port. The port knows behind which remote
//! ([`remotes`]): it learns the source address of each frame with the sender of its datagram. A
//! frame to an address that is not in the table, and each broadcast and multicast frame, goes to
//! all remotes in a datagram each (*head-end replication*). The copies of a turn are bounded: what
//! exceeds the bound is dropped as `no_room`. Where VLANs have networks of their own, a remote of a
//! routing daemon gets the floods of those VLANs that it is in, and sends into no other. A port
//! with `neigh_suppress` answers requests for the addresses of stations behind remotes itself
//! ([`neighbours`]).
//!
//! *Split horizon*: a frame from a remote never goes to another remote by this port, because the
//! switch sends no frame to the port that it came from. So remotes form a full mesh.
//!
//! A datagram is taken only from a remote's address. That keeps strangers out of the network as
//! far as the network between the hosts keeps them from forging addresses; it is no authentication.
//!
//! Ports of different networks may have one local address and UDP port, with a socket each, between
//! which the kernel chooses by the VNI ([`address`]). Datagrams leave by one of several sockets
//! with different source ports (`outbox::SENDERS`). A hash of the frame's flow chooses the socket,
//! so that routers and network cards between the hosts spread flows over paths and queues, and keep
//! the order within each.
//!
//! The kernel cuts what a guest would have left to its network card: the switch makes segments of
//! it, and the `outbox` gives segments of one length to the kernel in one message. So the inner
//! headers of each segment are right, and the way through the kernel's stack is taken once.

mod adapter;
pub mod address;
mod answers;
pub mod inlet;
pub mod neighbours;
pub mod networks;
mod outbox;
pub mod remotes;
mod sender;

use std::io;
use std::net::{IpAddr, SocketAddr};

use protocol::Vxlan;
use rustix::io::Errno;

use crate::sys::udp::{self, PacketOptions};
pub use adapter::VxlanPort;
use address::Addresses;
use answers::Answers;
use inlet::Inlet;
use neighbours::Neighbours;
use networks::Networks;
use outbox::SENDERS;
use remotes::Remotes;

/// Bytes of a UDP header.
const UDP_HEADER: u32 = 8;
/// Bytes of an Ethernet header, which an MTU does not count, and of a VLAN tag, which it does not
/// count either.
const ETHERNET_AND_TAG: u32 = 14 + 4;

/// Why the sockets of a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum VxlanError {
    /// No interface of the host has the address.
    #[error(
        "no interface of this host has the address {0}; name one that it has (see: ip address), \
         or add it: ip address add {0}/PREFIX dev INTERFACE"
    )]
    NoAddress(IpAddr),
    /// Another socket has the address and the UDP port.
    #[error(
        "UDP port {} of {} is in use, by a vxlan device of the kernel (ip -d link show type \
         vxlan), another daemon or another program (ss -lunp); choose another local or dst_port",
        .0.port(), .0.ip()
    )]
    InUse(SocketAddr),
    /// The UDP port is one of those that root alone opens.
    #[error("the daemon may not open UDP port {0}; choose a dst_port above 1023")]
    LowPort(u16),
    /// The daemon's service has no Internet sockets.
    #[error(
        "the daemon may not open Internet sockets; if systemd runs it, add to its unit: \
         RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6, and IPAddressAllow= with the remotes"
    )]
    NoInternet,
    /// The system refused.
    #[error("cannot open a socket for {local}: {error}")]
    System {
        /// The local address.
        local: IpAddr,
        /// The system's error.
        error: io::Error,
    },
}

impl VxlanError {
    fn of(local: SocketAddr) -> impl Fn(io::Error) -> Self {
        move |error| match error.kind() {
            io::ErrorKind::AddrNotAvailable => Self::NoAddress(local.ip()),
            io::ErrorKind::AddrInUse => Self::InUse(local),
            io::ErrorKind::PermissionDenied if local.port() < 1024 => Self::LowPort(local.port()),
            _ if error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) => {
                Self::NoInternet
            }
            _ => Self::System { local: local.ip(), error },
        }
    }
}

/// What the adapter takes from the switch.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// The switch's ageing time.
    pub ageing_ms: u64,
    /// Source addresses are learned.
    pub learning: bool,
    /// A random number.
    pub seed: u64,
}

/// When the host has a port's local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAddress {
    /// The host has it now.
    Present,
    /// The host may get it later, as at boot (`IP_FREEBIND`).
    Later,
}

/// Opens the sockets of a port. No other port of its address may have one of its VNIs.
///
/// # Errors
/// The host does not have the address, another socket has it, or the system refused.
///
/// # Panics
/// If a VNI has more than 24 bits, or there is none.
pub fn open(
    addresses: &mut Addresses,
    spec: &Vxlan,
    around: Around,
    when: LocalAddress,
) -> Result<VxlanPort, VxlanError> {
    let (local, anywhere) = (spec.address(), when == LocalAddress::Later);
    let failed = VxlanError::of(local);
    let networks = Networks::of(spec);
    let (receiver, seat) = addresses.join(local, networks.all(), anywhere).map_err(&failed)?;
    let options = PacketOptions {
        ttl: spec.hop_limit(),
        dscp: spec.dscp.unwrap_or(0),
        df: spec.df.unwrap_or(true),
    };
    let sender = |_| udp::sender(spec.local, options, anywhere).map_err(&failed);
    let senders = (0..SENDERS).map(sender).collect::<Result<_, _>>()?;
    let remotes = Remotes::new(spec.udp_port(), around.ageing_ms, around.seed);
    let mut neighbours = Neighbours::default();
    neighbours.set(spec.neigh_suppress);
    let inlet =
        Inlet::new(networks, spec.local, around.learning, remotes, neighbours).map_err(&failed)?;
    let prober = udp::prober(spec.local, options, anywhere).map_err(&failed)?;
    let answers = Answers::new(prober, local);
    let mut port = VxlanPort::new(receiver, seat, senders, inlet, answers, spec.mtu);
    port.set(&spec.all_remotes(), &spec.remote_vlans(), &spec.fdb);
    Ok(port)
}

/// Bytes of the IP header of packets from this address.
fn ip_header(local: IpAddr) -> u32 {
    if local.is_ipv4() { 20 } else { 40 }
}

/// The MTU that the routes to all remotes leave to frames inside. `None`: there is no remote with a
/// route.
#[must_use]
pub fn path_mtu(spec: &Vxlan) -> Option<u32> {
    let overhead = ip_header(spec.local) + UDP_HEADER + 8 + 14;
    let remotes = spec.all_remotes().into_iter();
    let hosts = remotes.map(|remote| SocketAddr::new(remote, spec.udp_port()));
    udp::path_mtu(spec.local, hosts).ok()??.checked_sub(overhead)
}
