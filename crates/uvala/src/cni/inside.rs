//! What is done inside of a network namespace: addresses and routes, by a thread that enters it.

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use hostif::netlink::Netlink;
use ipnet::IpNet;
use protocol::Address;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A way out of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to.
    pub to: Address,
    /// The gateway; without one, the network is directly connected.
    pub by: Option<IpAddr>,
    /// The metric: the kernel takes the route to a place that has the least. `None`: the kernel's
    /// own choice.
    pub metric: Option<u32>,
}

/// A route to everywhere.
pub fn everywhere(by: IpAddr) -> Route {
    let ip = match by {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    Route { to: Address { ip, prefix: 0 }, by: Some(by), metric: None }
}

/// Runs `job` in a namespace.
///
/// # Errors
/// We may not enter it; and those of the job.
pub fn within<R: Send>(
    namespace: &OwnedFd,
    job: impl FnOnce() -> io::Result<R> + Send,
) -> io::Result<R> {
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
    let interface = netlink.find(ifname)?;
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("no interface {ifname}"));
    let index = interface.ok_or_else(none)?.index;
    for address in addresses {
        let added = netlink.add_address(index, address.ip, address.prefix);
        added.map_err(|error| about(error.into(), format_args!("address {address}")))?;
    }
    for Route { to, by, metric } in routes {
        let added = netlink.add_route(index, (to.ip, to.prefix), *by, *metric);
        let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
        added.map_err(|error| about(error.into(), format_args!("route to {to}{by}")))?;
    }
    Ok(())
}

fn about(error: io::Error, what: impl Display) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// What is not here, of an interface, its addresses and its routes, if anything is.
///
/// # Errors
/// The interface cannot be read.
pub fn missing(ifname: &str, addresses: &[IpAddr], routes: &[Route]) -> io::Result<Option<String>> {
    if Netlink::open()?.find(ifname)?.is_none() {
        return Ok(Some(format!("interface {ifname}")));
    }
    // Only an address of our own can be bound to.
    let gone = addresses.iter().find(|address| UdpSocket::bind((**address, 0)).is_err());
    if let Some(address) = gone {
        return Ok(Some(format!("address {address}")));
    }
    let there = routes_here(ifname)?;
    let network = |to: Address| IpNet::new(to.ip, to.prefix).map(|network| network.trunc());
    let gone = routes.iter().find(|route| network(route.to).is_ok_and(|to| !there.contains(&to)));
    Ok(gone.map(|route| format!("route to {}", route.to)))
}

/// Whether an interface has no address, here: it reaches no network but its own link.
///
/// # Errors
/// No `/proc`.
pub fn is_bare(ifname: &str) -> io::Result<bool> {
    let is_local = |to: IpNet| match to.addr() {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
    };
    Ok(routes_here(ifname)?.into_iter().all(is_local))
}

/// The networks that are reached by an interface.
fn routes_here(ifname: &str) -> io::Result<Vec<IpNet>> {
    let v4 = std::fs::read_to_string("/proc/thread-self/net/route")?;
    // There is none without IPv6.
    let v6 = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap_or_default();
    let v4 = v4.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [name, to, _, _, _, _, _, mask, ..] = words[..] else { return None };
        // Numbers of the machine whose bytes are in the order of the network.
        let number = |text| u32::from_str_radix(text, 16).ok().map(u32::to_ne_bytes);
        let prefix = u32::from_be_bytes(number(mask)?).leading_ones();
        let ip = IpAddr::V4(Ipv4Addr::from(number(to)?));
        IpNet::new(ip, u8::try_from(prefix).ok()?).ok().filter(|_| name == ifname)
    });
    let v6 = v6.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let ([to, prefix, ..], Some(name)) = (&words[..], words.last()) else { return None };
        let ip = IpAddr::V6(Ipv6Addr::from_bits(u128::from_str_radix(to, 16).ok()?));
        IpNet::new(ip, u8::from_str_radix(prefix, 16).ok()?).ok().filter(|_| *name == ifname)
    });
    Ok(v4.chain(v6).collect())
}
