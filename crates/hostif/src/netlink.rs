//! The kernel's interfaces by rtnetlink: looked up, configured, watched.
//!
//! A message is a header and attributes, in host byte order, padded to four bytes. The kernel
//! answers each request with an error number, 0 for success. The parser bounds everything that it
//! reads, although the kernel is trusted: the checks cost nothing.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use packet::MacAddr;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

/// Message types (`linux/rtnetlink.h`, `linux/netlink.h`).
mod kind {
    pub const ERROR: u16 = 2;
    pub const NEWLINK: u16 = 16;
    pub const DELLINK: u16 = 17;
    pub const GETLINK: u16 = 18;
    pub const NEWADDR: u16 = 20;
    pub const DELADDR: u16 = 21;
    pub const NEWROUTE: u16 = 24;
}

/// Message flags.
mod flag {
    pub const REQUEST: u16 = 1;
    pub const ACK: u16 = 4;
    pub const REPLACE: u16 = 0x100;
    pub const EXCL: u16 = 0x200;
    pub const CREATE: u16 = 0x400;
    /// Create the object, or replace an existing one.
    pub const MAKE: u16 = REQUEST | ACK | CREATE | REPLACE;
}

/// Fields of a route message.
mod route {
    pub const TABLE_MAIN: u8 = 254;
    pub const PROTO_STATIC: u8 = 4;
    pub const SCOPE_UNIVERSE: u8 = 0;
    pub const SCOPE_LINK: u8 = 253;
    pub const UNICAST: u8 = 1;
}

/// Attributes of links, addresses and routes.
mod attribute {
    pub const ADDRESS: u16 = 1;
    pub const IFNAME: u16 = 3;
    pub const MTU: u16 = 4;
    pub const LINKINFO: u16 = 18;
    pub const PROP_LIST: u16 = 52;
    pub const ALT_IFNAME: u16 = 53;
    pub const NET_NS_FD: u16 = 28;
    pub const INFO_KIND: u16 = 1;
    pub const INFO_DATA: u16 = 2;
    pub const TUN_OWNER: u16 = 1;
    pub const IFA_ADDRESS: u16 = 1;
    pub const IFA_LOCAL: u16 = 2;
    pub const RTA_DST: u16 = 1;
    pub const RTA_OIF: u16 = 4;
    pub const RTA_GATEWAY: u16 = 5;
    pub const RTA_PRIORITY: u16 = 6;
}

const IFF_UP: u32 = 1;
const IFF_RUNNING: u32 = 0x40;
const ARPHRD_ETHER: u16 = 1;
const GROUP_LINK: u32 = 1;
const HEADER: usize = 16;
const IFINFO: usize = 16;

/// An interface as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// The interface index.
    pub index: u32,
    /// The interface name.
    pub name: String,
    /// Alternative names (`ip link property add`).
    pub altnames: Vec<String>,
    /// The interface is up and has a carrier.
    pub running: bool,
    /// The interface is administratively up, with or without a carrier.
    pub up: bool,
    /// The interface carries Ethernet frames.
    pub ethernet: bool,
    /// The MTU.
    pub mtu: u32,
    /// The MAC address.
    pub mac: MacAddr,
    /// The kernel's name of the link type, such as `tun` or `veth`; empty for hardware.
    pub driver: String,
    /// The user that a TAP was made for (`ip tuntap add … user`), if any.
    pub owner: Option<u32>,
}

/// A change of an interface.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Set the link up.
    Up,
    /// Set the link down.
    Down,
    /// Set the MTU.
    Mtu(u32),
    /// Set the MAC address.
    Mac(MacAddr),
    /// Move the interface to a namespace, and give it a name there.
    Move(BorrowedFd<'a>, &'a str),
}

/// A change that the kernel reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An interface exists, with these properties.
    Is(Interface),
    /// The interface of this index was deleted.
    Gone(u32),
    /// The socket's buffer overflowed and events were lost; the caller looks up all interfaces
    /// again.
    Lost,
}

impl Event {
    /// The index of the interface, if the event is about one.
    #[must_use]
    pub fn index(&self) -> Option<u32> {
        match self {
            Self::Is(interface) => Some(interface.index),
            Self::Gone(index) => Some(*index),
            Self::Lost => None,
        }
    }
}

/// A socket for requests, in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: Cell<u32>,
}

impl Netlink {
    /// Opens a socket.
    ///
    /// # Errors
    /// No descriptors left, or no netlink.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: open(SocketFlags::CLOEXEC, 0)?, sequence: Cell::new(1) })
    }

    /// Looks up an interface by name.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn find(&self, name: &str) -> io::Result<Option<Interface>> {
        let mut message = Message::new(kind::GETLINK, flag::REQUEST, &[0; IFINFO]);
        message.text(attribute::IFNAME, name);
        self.look_up(message)
    }

    /// Looks up an interface by index.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn get(&self, index: u32) -> io::Result<Option<Interface>> {
        self.look_up(Message::new(kind::GETLINK, flag::REQUEST, &ifinfo(index, 0, 0)))
    }

    fn look_up(&self, message: Message) -> io::Result<Option<Interface>> {
        match self.exchange(message) {
            Ok(Some((kind::NEWLINK, body))) => Ok(parse_link(&body)),
            Ok(_) => Ok(None),
            Err(Errno::NODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Changes an interface.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn change(&self, index: u32, change: Change<'_>) -> Result<(), Errno> {
        let flags = flag::REQUEST | flag::ACK;
        let up = if matches!(change, Change::Up) { IFF_UP } else { 0 };
        let meant = if matches!(change, Change::Up | Change::Down) { IFF_UP } else { 0 };
        let mut message = Message::new(kind::NEWLINK, flags, &ifinfo(index, up, meant));
        match change {
            Change::Up | Change::Down => {}
            Change::Mtu(mtu) => message.attribute(attribute::MTU, &mtu.to_ne_bytes()),
            Change::Mac(mac) => message.attribute(attribute::ADDRESS, &mac.octets()),
            Change::Move(namespace, name) => {
                let fd = namespace.as_raw_fd().to_ne_bytes();
                message.attribute(attribute::NET_NS_FD, &fd);
                message.text(attribute::IFNAME, name);
            }
        }
        self.exchange(message).map(drop)
    }

    /// Adds an IP address to an interface; returns `false` if the interface has it already. The
    /// kernel skips duplicate address detection, so the address works at once.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> Result<bool, Errno> {
        let how = flag::CREATE | flag::EXCL;
        match self.address(kind::NEWADDR, how, (index, address, prefix)) {
            Err(Errno::EXIST) => Ok(false),
            added => added.map(|()| true),
        }
    }

    /// Removes an IP address from an interface.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn del_address(&self, index: u32, address: IpAddr, prefix: u8) -> Result<(), Errno> {
        self.address(kind::DELADDR, 0, (index, address, prefix))
    }

    fn address(
        &self,
        kind: u16,
        how: u16,
        (index, address, prefix): (u32, IpAddr, u8),
    ) -> Result<(), Errno> {
        const NODAD: u8 = 2;
        let (family, bytes) = parts(address);
        let mut body = vec![family, prefix, NODAD, 0];
        body.extend(index.to_ne_bytes());
        let mut message = Message::new(kind, flag::REQUEST | flag::ACK | how, &body);
        message.attribute(attribute::IFA_LOCAL, &bytes);
        message.attribute(attribute::IFA_ADDRESS, &bytes);
        self.exchange(message).map(drop)
    }

    /// Adds or replaces a route by an interface: through the gateway `by`, or to directly connected
    /// stations.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn add_route(
        &self,
        index: u32,
        (to, prefix): (IpAddr, u8),
        by: Option<IpAddr>,
        metric: Option<u32>,
    ) -> Result<(), Errno> {
        let (family, bytes) = parts(to);
        let scope = if by.is_some() { route::SCOPE_UNIVERSE } else { route::SCOPE_LINK };
        let mut body = vec![family, prefix, 0, 0];
        body.extend([route::TABLE_MAIN, route::PROTO_STATIC, scope, route::UNICAST]);
        body.extend([0; 4]);
        let mut message = Message::new(kind::NEWROUTE, flag::MAKE, &body);
        if prefix > 0 {
            message.attribute(attribute::RTA_DST, &bytes);
        }
        if let Some(by) = by {
            message.attribute(attribute::RTA_GATEWAY, &parts(by).1);
        }
        message.attribute(attribute::RTA_OIF, &index.to_ne_bytes());
        if let Some(metric) = metric {
            message.attribute(attribute::RTA_PRIORITY, &metric.to_ne_bytes());
        }
        self.exchange(message).map(drop)
    }

    /// Sends a request and returns the answer: a message, or `None` for a plain success.
    fn exchange(&self, message: Message) -> Result<Option<(u16, Vec<u8>)>, Errno> {
        let sequence = self.sequence.get();
        self.sequence.set(sequence.wrapping_add(1));
        send(&self.socket, &message.finish(sequence), SendFlags::empty())?;
        let mut buffer = vec![0; 32 * 1024];
        loop {
            let length = match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, length)) => length,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            };
            for (kind, number, body) in messages(&buffer[..length.min(buffer.len())]) {
                if number != sequence {
                    continue;
                }
                if kind != kind::ERROR {
                    return Ok(Some((kind, body.to_vec())));
                }
                let code = number_at(body, 0).unwrap_or(0).cast_signed();
                return if code == 0 { Ok(None) } else { Err(Errno::from_raw_os_error(-code)) };
            }
        }
    }
}

/// A socket that reports changes of a namespace's interfaces.
#[derive(Debug)]
pub struct Monitor(OwnedFd);

impl Monitor {
    /// Opens a socket in the namespace of this thread.
    ///
    /// # Errors
    /// No descriptors left, or no netlink.
    pub fn open() -> io::Result<Self> {
        open(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, GROUP_LINK).map(Self)
    }

    /// The changes since the last call; bounded, so that a flood of changes does not starve other
    /// work.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        const READS: usize = 256;
        let (mut events, mut buffer) = (Vec::new(), vec![0; 32 * 1024]);
        for _ in 0..READS {
            match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, 0)) => return events,
                Ok((_, length)) => {
                    let all = messages(&buffer[..length.min(buffer.len())]);
                    events.extend(all.filter_map(|(kind, _, body)| event(kind, body)));
                }
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => events.push(Event::Lost),
                Err(_) => return events,
            }
        }
        events
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn event(kind: u16, body: &[u8]) -> Option<Event> {
    match kind {
        // A bridge reports its ports with an address family.
        _ if body.first() != Some(&0) => None,
        kind::NEWLINK => parse_link(body).map(Event::Is),
        kind::DELLINK => number_at(body, 4).map(Event::Gone),
        _ => None,
    }
}

fn open(flags: SocketFlags, groups: u32) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// A message under construction.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend(body);
        Self(bytes)
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(value.len() + 4).expect("values are short");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat());
    }

    fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).expect("messages are short");
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}

/// The address family, and the bytes of the address.
fn parts(address: IpAddr) -> (u8, Vec<u8>) {
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    match address {
        IpAddr::V4(address) => (AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, address.octets().to_vec()),
    }
}

/// The body of a link message: sets the flags in `meant` to `up`.
fn ifinfo(index: u32, up: u32, meant: u32) -> [u8; IFINFO] {
    let mut body = [0; IFINFO];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..12].copy_from_slice(&up.to_ne_bytes());
    body[12..].copy_from_slice(&meant.to_ne_bytes());
    body
}

/// The type, sequence number and body of each message.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let length = number_at(bytes, 0)? as usize;
        let (kind, sequence) = (short_at(bytes, 4)?, number_at(bytes, 8)?);
        let body = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, sequence, body))
    })
}

/// The type and value of each attribute.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const NESTED_OR_ORDER: u16 = 0xc000;
    std::iter::from_fn(move || {
        let length = usize::from(short_at(bytes, 0)?);
        let (kind, value) = (short_at(bytes, 2)?, bytes.get(4..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & !NESTED_OR_ORDER, value))
    })
}

fn parse_link(body: &[u8]) -> Option<Interface> {
    let flags = number_at(body, 8)?;
    let mut interface = Interface {
        index: number_at(body, 4)?,
        name: String::new(),
        altnames: Vec::new(),
        running: flags & IFF_UP != 0 && flags & IFF_RUNNING != 0,
        up: flags & IFF_UP != 0,
        ethernet: short_at(body, 2)? == ARPHRD_ETHER,
        mtu: 0,
        mac: MacAddr::ZERO,
        driver: String::new(),
        owner: None,
    };
    for (kind, value) in attributes(body.get(IFINFO..)?) {
        match kind {
            attribute::IFNAME => interface.name = text(value),
            attribute::PROP_LIST => {
                let names = attributes(value).filter(|(kind, _)| *kind == attribute::ALT_IFNAME);
                interface.altnames = names.map(|(_, value)| text(value)).collect();
            }
            attribute::MTU => interface.mtu = number_at(value, 0)?,
            attribute::ADDRESS => {
                interface.mac = MacAddr::new(value.try_into().unwrap_or_default());
            }
            attribute::LINKINFO => {
                (interface.driver, interface.owner) = parse_kind(value);
            }
            _ => {}
        }
    }
    Some(interface)
}

/// The kind of a link, and what is said of one that is a TAP.
fn parse_kind(info: &[u8]) -> (String, Option<u32>) {
    let find = |bytes, wanted| attributes(bytes).find(|(kind, _)| *kind == wanted);
    let kind = find(info, attribute::INFO_KIND).map(|(_, value)| text(value)).unwrap_or_default();
    let data = find(info, attribute::INFO_DATA).filter(|_| kind == "tun");
    let owner = data.and_then(|(_, data)| find(data, attribute::TUN_OWNER));
    (kind, owner.and_then(|(_, value)| number_at(value, 0)))
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn short_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_found_by_name_and_by_number() {
        let netlink = Netlink::open().expect("netlink");
        let lo = netlink.find("lo").expect("an answer").expect("it is everywhere");
        assert_eq!((lo.name.as_str(), lo.ethernet, lo.mac), ("lo", false, MacAddr::ZERO));
        assert_eq!(netlink.get(lo.index).expect("an answer"), Some(lo));
        assert_eq!(netlink.find("no-such-link").expect("an answer"), None);
    }

    #[test]
    fn cut_off_and_senseless_messages_end_the_list() {
        let mut message = Message::new(kind::NEWLINK, 0, &ifinfo(7, IFF_UP, IFF_UP));
        message.text(attribute::IFNAME, "eth0");
        message.attribute(attribute::MTU, &1500u32.to_ne_bytes());
        // Two alternative names, nested.
        let mut names = Message(Vec::new());
        names.text(attribute::ALT_IFNAME, "enp1s0");
        names.text(attribute::ALT_IFNAME, "lan");
        message.attribute(attribute::PROP_LIST | 0x8000, &names.0);
        // A TAP of user 7.
        let (mut info, mut data) = (Message(Vec::new()), Message(Vec::new()));
        data.attribute(attribute::TUN_OWNER, &7u32.to_ne_bytes());
        info.text(attribute::INFO_KIND, "tun");
        info.attribute(attribute::INFO_DATA, &data.0);
        message.attribute(attribute::LINKINFO, &info.0);
        let bytes = message.finish(3);
        let whole: Vec<_> = messages(&bytes).collect();
        let Some(Event::Is(found)) = event(whole[0].0, whole[0].2) else { panic!("{whole:?}") };
        assert_eq!((found.index, found.name.as_str(), found.mtu), (7, "eth0", 1500));
        assert_eq!(found.altnames, ["enp1s0", "lan"]);
        assert_eq!((found.driver.as_str(), found.owner), ("tun", Some(7)));
        for cut in 0..bytes.len() {
            for (kind, _, body) in messages(&bytes[..cut]) {
                let _ = event(kind, body);
            }
            let _ = parse_link(&bytes[..cut]);
        }
        assert_eq!(messages(&[0; 64]).count(), 0, "a message of no length");
        assert_eq!(attributes(&[0; 64]).count(), 0);
    }
}
