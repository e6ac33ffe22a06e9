//! A frame to all hosts, by a port of kind vxlan with as many remotes as it may have.
//!
//! The hosts are addresses behind a TAP that no program reads: datagrams take the whole way through
//! the kernel's stack, and end there. Frames come one by one, so none exceeds what a turn may copy,
//! and the time is that of the daemon with its wake-ups.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use client::control::Connection;
use client::{Options, Port};
use packet::build::{arp, ethernet};
use packet::{EtherType, MacAddr};
use protocol::name::PortName;
use protocol::{
    ExternLearn, ExternNeigh, FdbRequest, NeighInfo, PortInfo, PortRef, PortRequest, PortStats,
    REMOTES_MAX, Reply, Request, StatsQuery, VxlanStation, paths,
};

use crate::daemon::Daemon;
use crate::programs::ip::ip;
use crate::programs::tap;
use crate::sample::Reading;
use crate::stamp::address;

/// Frames that are sent.
const FRAMES: u32 = 500;
/// From one to the next: longer than the daemon takes for one.
const GAP: Duration = Duration::from_millis(2);
const FABRIC: &str = "vale0:fabric";
/// Addresses of the station that asks, and of the one that it asks for.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 168, 7, 1), Ipv4Addr::new(192, 168, 7, 2)];

/// Microseconds of the daemon for an ARP request, which it floods to all remotes, or answers.
pub fn request(is_answered: bool) -> Result<Reading> {
    let _tap = tap::open("underlay")?;
    for line in ["link set underlay arp off up", "addr add 10.9.0.1/16 dev underlay"] {
        ip(line)?;
    }
    let daemon = Daemon::with(&configuration())?;
    let connection = Connection::connect(&paths::client_socket(Some(daemon.dir())))?;
    if is_answered {
        name_station(&connection)?;
    }
    let mut port = Options::new().dir(daemon.dir()).open("vale0:s")?;
    send(&mut port, 1)?;
    let (before, time) = (seen(&connection)?, daemon.cpu_time()?);
    send(&mut port, FRAMES)?;
    let (time, after) = (daemon.cpu_time()? - time, seen(&connection)?);
    let [sent, answered] = [after.sent - before.sent, after.answered - before.answered];
    let expected = if is_answered { FRAMES } else { 0 };
    ensure!(
        sent == u64::from(FRAMES) && answered == u64::from(expected),
        "the port took {sent} frames and answered {answered}"
    );
    Ok((time.as_secs_f64() * 1e6 / f64::from(FRAMES)).into())
}

fn configuration() -> String {
    let remotes = remotes().map(|ip| format!("\"{ip}\"")).collect::<Vec<_>>().join(", ");
    format!(
        "[switch.vale0.port.s]\n[switch.vale0.port.fabric]\nkind = \"vxlan\"\nvni = 100\n\
         local = \"10.9.0.1\"\nneigh_suppress = true\nremote = [{remotes}]\n"
    )
}

fn remotes() -> impl Iterator<Item = Ipv4Addr> {
    (0..REMOTES_MAX).map(|host| {
        let [.., high, low] = host.to_be_bytes();
        Ipv4Addr::new(10, 9, 1 + high, low)
    })
}

/// Says what a routing daemon does: where the other station is, and which address it has.
fn name_station(connection: &Connection) -> Result<()> {
    let (mac, remote) = (MacAddr::new(address(2)), remotes().next().context("none")?.into());
    let address = IpAddr::V4(ADDRESSES[1]);
    let learn = ExternLearn {
        port: fabric()?,
        vlan: None,
        add: vec![VxlanStation { mac, remote }],
        del: Vec::new(),
        add_neigh: vec![ExternNeigh { address, mac, router: false }],
        del_neigh: Vec::new(),
        mark: false,
        sweep: false,
    };
    connection.call(Request::Fdb(FdbRequest::ExternLearn(learn)))?;
    Ok(())
}

fn send(port: &mut Port, count: u32) -> Result<()> {
    let [from, to] = ADDRESSES;
    let own = MacAddr::new(address(1));
    let packet = arp(1, (own, from), (MacAddr::ZERO, to));
    let mut frame = ethernet(MacAddr::BROADCAST, own, EtherType::ARP.0, &packet);
    frame.resize(60, 0);
    let mut answer = Vec::new();
    for _ in 0..count {
        port.send(&frame)?;
        std::thread::sleep(GAP);
        while port.recv_timeout(&mut answer, Some(Duration::ZERO))? {}
    }
    Ok(())
}

/// What the port has done.
struct Seen {
    sent: u64,
    answered: u64,
}

fn seen(connection: &Connection) -> Result<Seen> {
    let show = Request::Port(PortRequest::Show(PortRef { port: fabric()? }));
    let Reply::Port(PortInfo { vxlan: Some(vxlan), .. }) = connection.call(show)? else {
        bail!("no port {FABRIC}");
    };
    let NeighInfo { suppressed: answered, .. } = vxlan.neigh.context("it does not answer")?;
    Ok(Seen { sent: stats(connection)?.rx.frames, answered })
}

fn stats(connection: &Connection) -> Result<PortStats> {
    let query = StatsQuery { port: Some(fabric()?), ..StatsQuery::default() };
    match connection.call(Request::Port(PortRequest::Stats(query)))? {
        Reply::Stats(mut page) => page.items.pop().context("no counters"),
        other => bail!("no counters: {other:?}"),
    }
}

fn fabric() -> Result<PortName> {
    FABRIC.parse().context("a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_the_configuration_names_as_many_remotes_as_a_port_may_have() {
        let text = configuration();
        assert_eq!(text.matches("\"10.9.1.").count(), REMOTES_MAX);
        assert!(!text.contains("\"10.9.0.1\", "), "the port's own address is no remote");
    }
}
