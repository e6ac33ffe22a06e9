//! Several virtual networks at one address: ports of kind vxlan with one `--local` each.
//!
//! ```text
//!   station ── vale0 ── fabric, VNI 100 ─┐              ┌─ VNI 100 ── vale0 ── station
//!                                        ├─ 10.0.0.N ───┤
//!   station ── vale1 ── fabric, VNI 200 ─┘   underlay   └─ VNI 200 ── vale1 ── station
//! ```
//!
//! The networks have the same IP and MAC addresses, so that whatever strays is seen.

use std::net::UdpSocket;
use std::process::Command;

use harness::daemon::Setup;
use harness::fabric::{FABRIC, Host, Underlay, station};
use harness::lab;
use harness::net::{Namespace, tcp};
use harness::{skip, wait};

const MEGABYTE: usize = 1 << 20;
/// The port of the second network.
const SECOND: &str = "vale1:fabric";

/// A host with a port in each network, to one other host.
fn host(underlay: &Underlay, number: u8, other: u8) -> Option<Host> {
    let home = underlay.home(number)?;
    let all = "workers = \"all\"\n";
    let config = format!("[workers]\ncount = 2\n[switch.vale0]\n{all}[switch.vale1]\n{all}");
    let daemon = home.visit(|| Setup::new(&config).start());
    let host = Host { home, daemon, number };
    for (port, vni) in [(FABRIC, 100), (SECOND, 200)] {
        add(&host, port, vni, other);
    }
    Some(host)
}

fn add(host: &Host, port: &str, vni: u32, other: u8) {
    let (vni, local) = (format!("--vni={vni}"), format!("--local=10.0.0.{}", host.number));
    let remote = format!("--remote=10.0.0.{other}");
    host.done(&["port", "add", port, "--kind=vxlan", &vni, &local, &remote]);
}

/// A station in each network, with the same addresses.
fn stations(host: &Host) -> Option<[Namespace; 2]> {
    let address = format!("192.168.7.{}/24", host.number);
    let station = |port| station(host, port, &address, None);
    Some([station("vale0:station")?, station("vale1:station")?])
}

fn dropped(host: &Host, port: &str, why: &str) -> u64 {
    host.daemon.stats(port).drops.get(why).copied().unwrap_or(0)
}

/// TCP in both networks at once, in both directions.
fn both(ones: &[Namespace; 2], twos: &[Namespace; 2], bytes: usize) {
    std::thread::scope(|scope| {
        for (one, two) in ones.iter().zip(twos) {
            scope.spawn(move || {
                tcp(one, two, "192.168.7.2", bytes);
                tcp(two, one, "192.168.7.1", bytes);
            });
        }
    });
}

#[test]
fn networks_of_one_address_stay_apart() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let hosts = (host(&underlay, 1, 2), host(&underlay, 2, 1));
    let (Some(one), Some(two)) = hosts else { return };
    let (Some(ones), Some(twos)) = (stations(&one), stations(&two)) else { return };
    both(&ones, &twos, 8 * MEGABYTE);
    for (port, worker) in [(FABRIC, "1"), (SECOND, "0"), (FABRIC, "0"), (SECOND, "1")] {
        one.done(&["worker", "move", port, worker]);
        both(&ones, &twos, MEGABYTE);
    }
    // A station that only one network has.
    lab::delete(&two.daemon, "vale0:station");
    let before = one.daemon.stats(FABRIC).tx.frames;
    tcp(&ones[1], &twos[1], "192.168.7.2", 4 * MEGABYTE);
    let strayed = one.daemon.stats(FABRIC).tx.frames - before;
    assert!(strayed < 100, "{strayed} frames");
    for (host, port) in [(&one, FABRIC), (&one, SECOND), (&two, FABRIC), (&two, SECOND)] {
        assert_eq!(dropped(host, port, "vxlan_vni"), 0, "{port} of host {}", host.number);
        assert_eq!(dropped(host, port, "vxlan_remote"), 0, "{port} of host {}", host.number);
    }
}

#[test]
fn one_network_of_an_address_comes_and_goes_while_the_other_goes_on() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let hosts = (host(&underlay, 1, 2), host(&underlay, 2, 1));
    let (Some(one), Some(two)) = hosts else { return };
    let (Some(ones), Some(twos)) = (stations(&one), stations(&two)) else { return };
    both(&ones, &twos, 1000);
    // The first to come, then the last, goes: the other takes its place in the kernel's group.
    for (gone, vni, stays) in [(FABRIC, 100, 1), (SECOND, 200, 0)] {
        let (from, to) = (&ones[stays], &twos[stays]);
        std::thread::scope(|scope| {
            let stream = scope.spawn(|| tcp(to, from, "192.168.7.1", 32 * MEGABYTE));
            while !stream.is_finished() {
                one.done(&["port", "del", gone]);
                add(&one, gone, vni, 2);
            }
        });
        both(&ones, &twos, MEGABYTE);
    }
    let taken =
        one.refused(&["port", "add", "vale2:x", "--kind=vxlan", "--vni=200", "--local=10.0.0.1"]);
    assert!(taken.contains("port vale1:fabric has VNI 200"), "{taken}");
}

#[test]
fn a_datagram_of_no_ports_network_is_counted_once_at_the_port_that_came_first() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(one), Some(two)) = (host(&underlay, 1, 2), underlay.home(2)) else { return };
    let socket = two.within(|| UdpSocket::bind("10.0.0.2:0")).expect("a port");
    let send = |vni: u8| {
        let header = [8, 0, 0, 0, 0, 0, vni, 0];
        let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9, 0x88, 0xb5], &[7; 46]].concat();
        socket.send_to(&[&header[..], &frame].concat(), "10.0.0.1:4789").expect("a route");
    };
    for _ in 0..3 {
        send(101);
    }
    wait::until("three strays", || dropped(&one, FABRIC, "vxlan_vni") == 3);
    send(200);
    wait::until("a frame", || one.daemon.stats(SECOND).tx.frames == 1);
    one.done(&["port", "del", FABRIC]);
    send(101);
    wait::until("a stray", || dropped(&one, SECOND, "vxlan_vni") == 1);
    add(&one, FABRIC, 100, 2);
    send(101);
    wait::until("one more", || dropped(&one, SECOND, "vxlan_vni") == 2);
    assert_eq!(dropped(&one, FABRIC, "vxlan_vni"), 0);
    assert_eq!(one.daemon.stats(SECOND).tx.frames, 1, "no other frame was delivered");
}

#[test]
fn a_restart_and_a_successor_have_both_networks_again() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let hosts = (host(&underlay, 1, 2), host(&underlay, 2, 1));
    let (Some(mut one), Some(two)) = hosts else { return };
    let Some(twos) = stations(&two) else { return };
    let check = |one: &Host| {
        for port in [FABRIC, SECOND] {
            let tunnel = one.daemon.port(port).expect("saved").vxlan.expect("a tunnel");
            assert_eq!(tunnel.trouble, None, "{port}");
        }
    };
    one.home.visit(|| one.daemon.restart());
    check(&one);
    let Some(ones) = stations(&one) else { return };
    both(&ones, &twos, MEGABYTE);
    one.home.visit(|| one.daemon.replace());
    check(&one);
    both(&ones, &twos, MEGABYTE);
}

/// The kernel's far end: a vxlan device for each network, which share one socket.
#[test]
fn the_kernels_vxlan_devices_at_one_address_are_far_ends_of_both_networks() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(one), Some(kernel)) = (host(&underlay, 1, 2), underlay.home(2)) else { return };
    let run = |program: &str, words: &str| {
        let output =
            kernel.within(|| Command::new(program).args(words.split_whitespace()).output());
        output.is_ok_and(|output| output.status.success())
    };
    for (vni, net) in [(100, 7), (200, 8)] {
        let device = format!("vx{vni}");
        let make = format!("link add {device} type vxlan id {vni} local 10.0.0.2 dstport 4789");
        if !run("ip", &format!("{make} dev eth0 remote 10.0.0.1")) {
            return skip("the kernel has no vxlan device");
        }
        kernel.ip(&format!("link set {device} mtu 1450 up"));
        kernel.ip(&format!("addr add 192.168.{net}.2/24 dev {device}"));
        // Between namespaces the kernel leaves checksums inside to a card that is not there.
        if !run("ethtool", &format!("-K {device} tx off gso off tso off")) {
            return skip("ethtool is needed: apt-get install ethtool");
        }
    }
    for (switch, net) in [("vale0", 7), ("vale1", 8)] {
        let (port, address) = (format!("{switch}:station"), format!("192.168.{net}.1/24"));
        let Some(station) = one.station_at(&port, &address, None) else { return };
        tcp(&station, &kernel, &format!("192.168.{net}.2"), MEGABYTE);
        tcp(&kernel, &station, &format!("192.168.{net}.1"), MEGABYTE);
    }
    assert_eq!(dropped(&one, FABRIC, "vxlan_vni") + dropped(&one, SECOND, "vxlan_vni"), 0);
}
