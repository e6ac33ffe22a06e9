//! What is done inside of a network namespace: addresses and routes, by a thread that enters it.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use client::api::Address;
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A way out of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to.
    pub to: Address,
    /// By whom; directly, if nobody is named.
    pub by: Option<IpAddr>,
}

/// A route to everywhere.
pub fn everywhere(by: IpAddr) -> Route {
    let ip = match by {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    Route { to: Address { ip, prefix: 0 }, by: Some(by) }
}

/// Runs `job` in the namespace at `path`.
///
/// # Errors
/// There is none, or we may not enter it; and those of the job.
pub fn within<R: Send>(path: &Path, job: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
    let namespace: OwnedFd = File::open(path)?.into();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), network)?;
            job()
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

/// Gives an interface addresses and routes, here.
///
/// # Errors
/// What the kernel says.
pub fn set_up(ifname: &str, addresses: &[Address], routes: &[Route]) -> io::Result<()> {
    let netlink = Netlink::open()?;
    let index = netlink.index(ifname)?;
    for address in addresses {
        netlink.add_address(index, *address)?;
    }
    for route in routes {
        netlink.add_route(index, *route)?;
    }
    Ok(())
}

/// What is not here, of an interface and addresses, if anything is.
#[must_use]
pub fn missing(ifname: &str, addresses: &[IpAddr]) -> Option<String> {
    if !Netlink::open().is_ok_and(|netlink| netlink.index(ifname).is_ok()) {
        return Some(format!("interface {ifname}"));
    }
    // Only an address of our own can be bound to.
    let gone = addresses.iter().find(|address| UdpSocket::bind((**address, 0)).is_err());
    gone.map(|address| format!("address {address}"))
}

/// A socket to the kernel's tables of interfaces and routes.
struct Netlink(OwnedFd);

/// Kinds of messages, flags and attributes (`linux/rtnetlink.h`, `linux/netlink.h`).
mod rt {
    pub const ERROR: u16 = 2;
    pub const NEWADDR: u16 = 20;
    pub const NEWROUTE: u16 = 24;
    /// Request, answer, make, and replace what is there.
    pub const MAKE: u16 = 1 | 4 | 0x400 | 0x100;
    pub const IFA_ADDRESS: u16 = 1;
    pub const IFA_LOCAL: u16 = 2;
    pub const RTA_DST: u16 = 1;
    pub const RTA_OIF: u16 = 4;
    pub const RTA_GATEWAY: u16 = 5;
    pub const TABLE_MAIN: u8 = 254;
    pub const PROTO_STATIC: u8 = 4;
    pub const SCOPE_UNIVERSE: u8 = 0;
    pub const SCOPE_LINK: u8 = 253;
    pub const UNICAST: u8 = 1;
    /// No test whether somebody else has the address.
    pub const NODAD: u8 = 2;
}

impl Netlink {
    fn open() -> io::Result<Self> {
        let kind = SocketType::RAW;
        let socket = socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self(socket))
    }

    fn index(&self, ifname: &str) -> io::Result<u32> {
        Ok(name_to_index(&self.0, ifname)?)
    }

    fn add_address(&self, index: u32, address: Address) -> io::Result<()> {
        let (family, bytes) = parts(address.ip);
        let mut body = vec![family, address.prefix, rt::NODAD, rt::SCOPE_UNIVERSE];
        body.extend(index.to_ne_bytes());
        attribute(&mut body, rt::IFA_LOCAL, &bytes);
        attribute(&mut body, rt::IFA_ADDRESS, &bytes);
        self.order(rt::NEWADDR, &body)
    }

    fn add_route(&self, index: u32, route: Route) -> io::Result<()> {
        let (family, bytes) = parts(route.to.ip);
        let scope = if route.by.is_some() { rt::SCOPE_UNIVERSE } else { rt::SCOPE_LINK };
        let mut body = vec![family, route.to.prefix, 0, 0];
        body.extend([rt::TABLE_MAIN, rt::PROTO_STATIC, scope, rt::UNICAST]);
        body.extend([0; 4]);
        if route.to.prefix > 0 {
            attribute(&mut body, rt::RTA_DST, &bytes);
        }
        if let Some(by) = route.by {
            attribute(&mut body, rt::RTA_GATEWAY, &parts(by).1);
        }
        attribute(&mut body, rt::RTA_OIF, &index.to_ne_bytes());
        self.order(rt::NEWROUTE, &body)
    }

    /// Sends a message and takes its answer, an error number.
    fn order(&self, kind: u16, body: &[u8]) -> io::Result<()> {
        const HEADER: usize = 16;
        let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend(rt::MAKE.to_ne_bytes());
        message.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        message.extend(body);
        send(&self.0, &message, SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (_, length) = recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        let said = answer[..length.min(answer.len())].get(4..HEADER + 4);
        let said = said.filter(|said| said[..2] == rt::ERROR.to_ne_bytes());
        let code = said.and_then(|said| said[12..16].try_into().ok()).map(i32::from_ne_bytes);
        match code {
            Some(0) => Ok(()),
            Some(code) => Err(Errno::from_raw_os_error(code.wrapping_neg()).into()),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn parts(ip: IpAddr) -> (u8, Vec<u8>) {
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    match ip {
        IpAddr::V4(ip) => (AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AF_INET6, ip.octets().to_vec()),
    }
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}
