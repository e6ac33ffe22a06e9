//! UDP sockets: opened for a tunnel, and read and written in batches.
//!
//! One message can be many datagrams of one length, of which the last may be shorter, one behind
//! the other: the kernel cuts it (`UDP_SEGMENT`), and joins what it receives (`UDP_GRO`).

#![allow(unsafe_code)] // UNSAFETY: raw socket calls.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

use libc::c_int;
use rustix::io::Errno;

/// The most messages of one call.
pub const BATCH: usize = 64;
/// The most datagrams of one message (`UDP_MAX_SEGMENTS` of Linux before 6.9).
pub const SEGMENTS_MAX: usize = 64;
/// The most bytes of one message, whose IP packet has 65,535 before the kernel cuts it.
pub const PAYLOAD_MAX: usize = 65_507;
/// The room for each message, with a byte that it must not have.
const ROOM: usize = PAYLOAD_MAX + 21;

/// Bytes that the kernel may queue, if `net.core.rmem_max` and `net.core.wmem_max` allow it.
const QUEUE: c_int = 4 << 20;

/// How the packets of a sending socket look.
#[derive(Clone, Copy, Debug)]
pub struct PacketOptions {
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Differentiated services code point.
    pub dscp: u8,
    /// Routers may not fragment the packets.
    pub df: bool,
}

/// A bound socket that receives. `anywhere`: the host need not have the address yet. `shared`: it
/// joins sockets that [share] the address.
///
/// # Errors
/// The address is in use, or the host does not have it.
pub fn receiver(local: SocketAddr, anywhere: bool, shared: bool) -> io::Result<OwnedFd> {
    let socket = open(local.ip())?;
    if anywhere {
        set(&socket, libc::SOL_IP, libc::IP_FREEBIND, 1)?;
    }
    if shared {
        share(&socket, true)?;
    }
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, QUEUE)?;
    if local.is_ipv6() {
        // VXLAN may come without a checksum, by IPv6, too (RFC 7348, 4.1.2; RFC 6935).
        set(&socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    }
    // An older kernel gives the datagrams one by one.
    let _ = set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    bind(&socket, local)?;
    Ok(socket)
}

/// Lets sockets of the same user that want this, too, share the address of this one, or lets none
/// join.
///
/// # Errors
/// The system refused.
pub fn share(socket: &OwnedFd, is_shared: bool) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, c_int::from(is_shared))
}

/// Takes the program away that [steers](super::steering).
pub(super) fn detach(socket: &OwnedFd) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, 0)
}

/// A socket that sends from a UDP port of the kernel's choice, and receives nothing.
///
/// # Errors
/// As [`receiver`].
pub fn sender(local: IpAddr, options: PacketOptions, anywhere: bool) -> io::Result<OwnedFd> {
    let socket = open(local)?;
    if anywhere {
        set(&socket, libc::SOL_IP, libc::IP_FREEBIND, 1)?;
    }
    set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, QUEUE)?;
    refuse_all(&socket)?;
    let (ttl, tos) = (c_int::from(options.ttl), c_int::from(options.dscp) << 2);
    if local.is_ipv4() {
        let discover = if options.df { libc::IP_PMTUDISC_DO } else { libc::IP_PMTUDISC_DONT };
        set(&socket, libc::SOL_IP, libc::IP_TTL, ttl)?;
        set(&socket, libc::SOL_IP, libc::IP_TOS, tos)?;
        set(&socket, libc::SOL_IP, libc::IP_MTU_DISCOVER, discover)?;
    } else {
        let discover = if options.df { libc::IPV6_PMTUDISC_DO } else { libc::IPV6_PMTUDISC_DONT };
        set(&socket, libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS, ttl)?;
        set(&socket, libc::SOL_IPV6, libc::IPV6_TCLASS, tos)?;
        set(&socket, libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER, discover)?;
        set(&socket, libc::SOL_IPV6, libc::IPV6_DONTFRAG, c_int::from(options.df))?;
    }
    bind(&socket, SocketAddr::new(local, 0))?;
    Ok(socket)
}

/// A [`sender`] that learns for which MTU the kernel refuses a datagram: see [`limit`].
///
/// # Errors
/// As [`receiver`].
pub fn prober(local: IpAddr, options: PacketOptions, anywhere: bool) -> io::Result<OwnedFd> {
    let socket = sender(local, options, anywhere)?;
    match local {
        IpAddr::V4(_) => set(&socket, libc::SOL_IP, libc::IP_RECVERR, 1)?,
        IpAddr::V6(_) => set(&socket, libc::SOL_IPV6, libc::IPV6_RECVERR, 1)?,
    }
    Ok(socket)
}

/// The MTU of the path for which a datagram is too long, by a [`prober`], which tries to send it.
/// `None`: it was not too long, and has gone out.
pub fn limit(prober: &OwnedFd, message: Message<'_>) -> Option<u32> {
    /// Errors that the network has reported before, which the kernel keeps with those of its own.
    const OTHERS: usize = 64;
    match send(prober, &[message]) {
        Err(Errno::MSGSIZE) => (0..OTHERS).map_while(|_| next_error(prober)).find_map(|mtu| mtu),
        _ => None,
    }
}

/// The next error of a [`prober`]: the MTU, if a datagram was too long for it.
fn next_error(prober: &OwnedFd) -> Option<Option<u32>> {
    /// Room for `cmsghdr`, `sock_extended_err` and the address of the reporter.
    const ROOM: usize = 16;
    let mut control = [0u64; ROOM];
    // SAFETY: all zeros are a value of this structure.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    let (fd, flags) = (prober.as_raw_fd(), libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
    // SAFETY: the message has no room for data, and its control data live until the call returns.
    if unsafe { libc::recvmsg(fd, &raw mut header, flags) } < 0 {
        return None;
    }
    // SAFETY: the kernel has written control data of the length that it says.
    let error = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        if first.is_null() || (*first).cmsg_len < size_of::<libc::sock_extended_err>() + 16 {
            return Some(None);
        }
        libc::CMSG_DATA(first).cast::<libc::sock_extended_err>().read_unaligned()
    };
    let is_too_long = i32::try_from(error.ee_errno) == Ok(libc::EMSGSIZE);
    Some(is_too_long.then_some(error.ee_info))
}

/// The least MTU of the paths to these hosts, as far as the kernel knows them: those of the routes,
/// at least. `None`: there is a route to none.
///
/// # Errors
/// The host does not have the local address.
pub fn path_mtu(local: IpAddr, hosts: impl Iterator<Item = SocketAddr>) -> io::Result<Option<u32>> {
    let socket = open(local)?;
    bind(&socket, SocketAddr::new(local, 0))?;
    let mtu = |to| {
        let (address, len) = raw(to);
        // SAFETY: the kernel reads `len` bytes of an address.
        check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
        match to {
            SocketAddr::V4(_) => get(&socket, libc::SOL_IP, libc::IP_MTU),
            SocketAddr::V6(_) => get(&socket, libc::SOL_IPV6, libc::IPV6_MTU),
        }
    };
    Ok(hosts.filter_map(|to| mtu(to).ok()).min())
}

fn open(local: IpAddr) -> io::Result<OwnedFd> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: the call has no pointers.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel has just made this descriptor, and it has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    if local.is_ipv6() {
        set(&socket, libc::SOL_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    Ok(socket)
}

fn bind(socket: &OwnedFd, local: SocketAddr) -> io::Result<()> {
    let (address, len) = raw(local);
    // SAFETY: the kernel reads `len` bytes of an address.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Drops every packet that arrives, before the kernel queues it.
fn refuse_all(socket: &OwnedFd) -> io::Result<()> {
    const RETURN: u16 = 0x06;
    let nothing = libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 };
    attach(socket, libc::SO_ATTACH_FILTER, &mut [nothing])
}

/// Gives a socket a program of classic BPF.
pub(super) fn attach(
    socket: &OwnedFd,
    option: c_int,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    let (fd, at) = (socket.as_raw_fd(), (&raw const program).cast());
    // SAFETY: the kernel copies the program, which lives longer than the call.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, at, size(&program)) }).map(drop)
}

fn set(socket: &OwnedFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let (fd, at) = (socket.as_raw_fd(), (&raw const value).cast());
    // SAFETY: the kernel reads one `int`.
    check(unsafe { libc::setsockopt(fd, level, option, at, size(&value)) }).map(drop)
}

fn size<T>(value: &T) -> libc::socklen_t {
    libc::socklen_t::try_from(size_of_val(value)).expect("a small number")
}

fn get(socket: &OwnedFd, level: c_int, option: c_int) -> io::Result<u32> {
    let (mut value, mut size) = (0u32, 4);
    let (fd, at) = (socket.as_raw_fd(), (&raw mut value).cast());
    // SAFETY: the kernel writes one `int`.
    check(unsafe { libc::getsockopt(fd, level, option, at, &raw mut size) })?;
    Ok(value)
}

/// An address in the kernel's form.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    address: libc::sockaddr_in6,
    len: libc::socklen_t,
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        let (address, len) = raw(address);
        Self { address, len }
    }
}

/// An address in the kernel's form, in room for one of either family, and its length.
fn raw(address: SocketAddr) -> (libc::sockaddr_in6, libc::socklen_t) {
    // SAFETY: all zeros are a value of this structure.
    let mut place: libc::sockaddr_in6 = unsafe { zeroed() };
    let len = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: all zeros are a value of this structure.
            let mut short: libc::sockaddr_in = unsafe { zeroed() };
            short.sin_family = family(libc::AF_INET);
            short.sin_port = v4.port().to_be();
            short.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            // SAFETY: the place is longer than this structure, and as much aligned.
            unsafe { (&raw mut place).cast::<libc::sockaddr_in>().write(short) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            place.sin6_family = family(libc::AF_INET6);
            place.sin6_port = v6.port().to_be();
            place.sin6_addr.s6_addr = v6.ip().octets();
            size_of::<libc::sockaddr_in6>()
        }
    };
    (place, libc::socklen_t::try_from(len).expect("a small number"))
}

fn family(family: c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).expect("a small number")
}

/// The host of an address that the kernel has written.
fn host(place: &libc::sockaddr_in6) -> Option<IpAddr> {
    if place.sin6_family == family(libc::AF_INET) {
        // SAFETY: the place is longer than this structure, and the kernel has written one there.
        let short = unsafe { (&raw const *place).cast::<libc::sockaddr_in>().read() };
        return Some(Ipv4Addr::from(short.sin_addr.s_addr.to_ne_bytes()).into());
    }
    let is_v6 = place.sin6_family == family(libc::AF_INET6);
    is_v6.then(|| Ipv6Addr::from(place.sin6_addr.s6_addr).into())
}

/// A message to send: datagrams of `segment` bytes each, of which the last may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The receiver.
    pub to: &'a Target,
    /// The datagrams, one behind the other; at most [`PAYLOAD_MAX`] bytes.
    pub bytes: &'a [u8],
    /// The length of each but the last.
    pub segment: u16,
}

/// Sends messages, at most [`BATCH`]; returns how many it sent, at least one.
///
/// # Errors
/// The error of the first message.
pub fn send(socket: &OwnedFd, messages: &[Message<'_>]) -> Result<usize, Errno> {
    // SAFETY: all zeros are values of these structures.
    let (mut pieces, mut raw): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
        unsafe { (zeroed(), zeroed()) };
    let mut controls = [[0u64; 3]; BATCH];
    for (i, message) in messages.iter().enumerate().take(BATCH) {
        let (bytes, to) = (message.bytes, message.to);
        // The kernel only reads from these.
        pieces[i] =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let header = &mut raw[i].msg_hdr;
        header.msg_name = (&raw const to.address).cast_mut().cast();
        header.msg_namelen = to.len;
        header.msg_iov = &raw mut pieces[i];
        header.msg_iovlen = 1;
        if bytes.len() > usize::from(message.segment) {
            controls[i] = segmented(message.segment);
            header.msg_control = controls[i].as_mut_ptr().cast();
            header.msg_controllen = size_of::<[u64; 3]>();
        }
    }
    let count = libc::c_uint::try_from(messages.len().min(BATCH)).expect("a small number");
    let (fd, at) = (socket.as_raw_fd(), raw.as_mut_ptr());
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the first `count` messages name pieces, addresses and control data that live until
    // the call returns, with their lengths.
    let sent = check(unsafe { libc::sendmmsg(fd, at, count, flags) }).map_err(errno)?;
    Ok(usize::try_from(sent).expect("not negative"))
}

/// Control data that says where the kernel cuts: `cmsghdr`, then 16 bits, padded.
fn segmented(segment: u16) -> [u64; 3] {
    const LEN: u64 = 16 + 2;
    const _: () = assert!(size_of::<libc::cmsghdr>() == 16, "the kernel's on 64 bits");
    let [a, b, c, d] = libc::SOL_UDP.to_ne_bytes();
    let [e, f, g, h] = libc::UDP_SEGMENT.to_ne_bytes();
    let [low, high] = segment.to_ne_bytes();
    let (kind, value) = ([a, b, c, d, e, f, g, h], [low, high, 0, 0, 0, 0, 0, 0]);
    [LEN, u64::from_ne_bytes(kind), u64::from_ne_bytes(value)]
}

/// Received messages.
#[derive(Debug)]
pub struct Inbox {
    bytes: Box<[u8]>,
    senders: Box<[libc::sockaddr_in6; BATCH]>,
    controls: [[u64; 3]; BATCH],
    /// Bytes of control data.
    control_lens: [usize; BATCH],
    /// The lengths of the messages; `None` for those that were truncated.
    lens: [Option<usize>; BATCH],
    count: usize,
}

/// A received message: datagrams of `segment` bytes each, of which the last may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The sender's host.
    pub from: IpAddr,
    /// The datagrams, one behind the other.
    pub bytes: &'a [u8],
    /// The length of each but the last, at least 1.
    pub segment: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            // The kernel commits memory when it is used first.
            bytes: vec![0; BATCH * ROOM].into_boxed_slice(),
            // SAFETY: all zeros are values of this structure.
            senders: Box::new(unsafe { zeroed() }),
            controls: [[0; 3]; BATCH],
            control_lens: [0; BATCH],
            lens: [None; BATCH],
            count: 0,
        }
    }
}

impl Inbox {
    /// Receives up to [`BATCH`] messages; returns how many.
    ///
    /// # Errors
    /// `EAGAIN` if there are none.
    pub fn receive(&mut self, from: impl AsFd) -> Result<usize, Errno> {
        self.count = 0;
        // SAFETY: all zeros are values of these structures.
        let (mut pieces, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        for (i, room) in self.bytes.chunks_exact_mut(ROOM).enumerate() {
            pieces[i] = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: ROOM };
            let header = &mut messages[i].msg_hdr;
            header.msg_name = (&raw mut self.senders[i]).cast();
            header.msg_namelen =
                libc::socklen_t::try_from(size_of::<libc::sockaddr_in6>()).expect("a small number");
            header.msg_iov = &raw mut pieces[i];
            header.msg_iovlen = 1;
            header.msg_control = self.controls[i].as_mut_ptr().cast();
            header.msg_controllen = size_of::<[u64; 3]>();
        }
        let (fd, at) = (from.as_fd().as_raw_fd(), messages.as_mut_ptr());
        let most = libc::c_uint::try_from(BATCH).expect("a small number");
        // SAFETY: every message names pieces and room for an address and control data that live
        // until the call returns, with their lengths.
        let count = check(unsafe { libc::recvmmsg(fd, at, most, libc::MSG_DONTWAIT, null_mut()) })
            .map_err(errno)?;
        self.count = usize::try_from(count).expect("not negative");
        for (i, message) in messages.iter().enumerate().take(self.count) {
            let whole = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            self.lens[i] = Some(message.msg_len as usize).filter(|_| whole);
            self.control_lens[i] = message.msg_hdr.msg_controllen;
        }
        Ok(self.count)
    }

    /// The number of messages.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// A message; `None` if it was truncated.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<Received<'_>> {
        let bytes = self.bytes[i * ROOM..][..ROOM].get(..self.lens[i]?)?;
        let segment = self.segment(i).unwrap_or(bytes.len()).max(1);
        Some(Received { from: host(&self.senders[i])?, bytes, segment })
    }

    /// Where the kernel has joined datagrams, as the control data says: `cmsghdr`, then an `int`.
    fn segment(&self, i: usize) -> Option<usize> {
        let [_, kind, value] = self.controls[i];
        let (kind, [a, b, c, d, ..]) = (kind.to_ne_bytes(), value.to_ne_bytes());
        let wanted = [libc::SOL_UDP.to_ne_bytes(), libc::UDP_GRO.to_ne_bytes()].concat();
        let is_there = self.control_lens[i] >= 16 + 4 && kind[..] == wanted[..];
        let segment = usize::try_from(i32::from_ne_bytes([a, b, c, d])).ok();
        segment.filter(|_| is_there)
    }
}

fn check(result: c_int) -> io::Result<c_int> {
    if result >= 0 { Ok(result) } else { Err(io::Error::last_os_error()) }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const USUAL: PacketOptions = PacketOptions { ttl: 64, dscp: 0, df: true };

    fn port_of(socket: &OwnedFd) -> u16 {
        let bound = rustix::net::getsockname(socket).expect("bound");
        SocketAddr::try_from(bound).expect("of a host").port()
    }

    fn datagrams(inbox: &Inbox) -> Vec<Vec<u8>> {
        let all = (0..inbox.count()).map(|i| inbox.get(i).expect("whole"));
        all.flat_map(|it| it.bytes.chunks(it.segment).map(<[u8]>::to_vec)).collect()
    }

    #[test]
    fn one_call_sends_many_datagrams_and_one_receives_them() {
        for local in [LOOPBACK, IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let Ok(ours) = receiver(SocketAddr::new(local, 0), false, false) else {
                eprintln!("SKIPPED: no address {local}");
                continue;
            };
            let to = Target::from(SocketAddr::new(local, port_of(&ours)));
            let socket = sender(local, USUAL, false).expect("a socket");
            let bytes: Vec<u8> = (0..10_000u32).map(|i| i.to_le_bytes()[0]).collect();
            let message = |bytes, segment| Message { to: &to, bytes, segment };
            let sent = send(&socket, &[message(&bytes, 3000), message(&bytes[..7], 7)]);
            assert_eq!(sent, Ok(2));
            let (mut inbox, mut got) = (Inbox::default(), Vec::new());
            while got.len() < 5 {
                if inbox.receive(&ours).is_ok() {
                    assert!((0..inbox.count()).all(|i| inbox.get(i).expect("one").from == local));
                    got.extend(datagrams(&inbox));
                }
            }
            let lens: Vec<_> = got.iter().map(Vec::len).collect();
            assert_eq!(lens, [3000, 3000, 3000, 1000, 7]);
            assert_eq!(got[..4].concat(), bytes);
            assert_eq!(inbox.receive(&ours), Err(Errno::AGAIN));
        }
    }

    #[test]
    fn a_sender_receives_nothing_and_a_longer_datagram_is_refused() {
        let ours = sender(LOOPBACK, USUAL, false).expect("a socket");
        let to = Target::from(SocketAddr::new(LOOPBACK, port_of(&ours)));
        let bytes = vec![0; PAYLOAD_MAX + 1];
        let message = |len: usize| Message { to: &to, bytes: &bytes[..len], segment: u16::MAX };
        assert_eq!(send(&ours, &[message(9)]), Ok(1));
        assert_eq!(Inbox::default().receive(&ours), Err(Errno::AGAIN));
        assert_eq!(send(&ours, &[message(PAYLOAD_MAX + 1)]), Err(Errno::MSGSIZE));
    }

    #[test]
    fn an_address_is_the_hosts_and_of_one_socket() {
        let ours = receiver(SocketAddr::new(LOOPBACK, 0), false, false).expect("a socket");
        let taken = receiver(SocketAddr::new(LOOPBACK, port_of(&ours)), false, false);
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // TEST-NET-1, which no host has.
        let foreign = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 0);
        let missing = receiver(foreign, false, false).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::AddrNotAvailable);
        receiver(foreign, true, false).expect("it may come later");
        let hosts = [SocketAddr::new(LOOPBACK, 1), SocketAddr::new(Ipv4Addr::BROADCAST.into(), 1)];
        let mtu = |hosts: &[SocketAddr]| path_mtu(LOOPBACK, hosts.iter().copied());
        assert!(mtu(&hosts).expect("ours") >= Some(1500));
        assert_eq!(mtu(&[]).expect("ours"), None);
    }
}
