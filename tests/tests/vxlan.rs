//! Ports of kind vxlan: hosts that are namespaces, connected by a bridge that knows only IP.
//!
//! ```text
//!   station ── TAP ── switch of host 1 ── vxlan ── 10.0.0.1 ─┐
//!   station ── TAP ── switch of host 2 ── vxlan ── 10.0.0.2 ─┼─ underlay
//!   station ── …                          host N   10.0.0.N ─┘
//! ```
//!
//! The far end is uvala, the kernel's vxlan device behind a bridge, or a socket of the test.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Output, Stdio};

use harness::daemon::Setup;
use harness::fabric::{FABRIC, Host, Underlay};
use harness::frames::announcement;
use harness::lab::{self, inside};
use harness::net::{Namespace, tcp, udp};
use harness::process::{Owned, Scratch, USER};
use harness::{skip, wait};
use protocol::{HostIf, PortKind};

const MEGABYTE: usize = 1 << 20;

/// Three hosts with a station each, 192.168.7.1 to .3.
fn three_hosts(mtu: u32) -> Option<(Underlay, [(Host, Namespace); 3])> {
    let underlay = Underlay::new(mtu)?;
    let host = |number: u8, others: &[u8]| {
        let host = underlay.host(number, others)?;
        let station = host.station(&format!("192.168.7.{number}/24"), None)?;
        Some((host, station))
    };
    let hosts = [host(1, &[2, 3])?, host(2, &[1, 3])?, host(3, &[1, 2])?];
    Some((underlay, hosts))
}

#[test]
fn stations_of_three_hosts_are_in_one_network() {
    let Some((_underlay, hosts)) = three_hosts(1500) else { return };
    let [(one, first), (two, second), (three, third)] = &hosts;
    assert_eq!(one.tunnel().mtu, Some(1450), "what the underlay leaves");
    first.within(|| udp(second, "192.168.7.2", 1000));
    tcp(second, third, "192.168.7.3", MEGABYTE);
    tcp(third, first, "192.168.7.1", MEGABYTE);
    assert!(one.learned("10.0.0.2") >= 1 && one.learned("10.0.0.3") >= 1);
    let metrics = one.done(&["metrics"]);
    let own = "switch=\"vale0\",port=\"fabric\"";
    for sample in [&format!("remotes{{{own}}} 2\n"), &format!("path_mtu_bytes{{{own}}} 1450\n")] {
        assert!(metrics.contains(&format!("\nuvala_vxlan_{sample}")), "{metrics}");
    }
    assert!(
        metrics.contains(&format!("remote_stations{{{own},remote=\"10.0.0.2\"}}")),
        "{metrics}"
    );
    assert!(two.learned("10.0.0.3") >= 1 && three.learned("10.0.0.1") >= 1);
    // What two hosts exchange does not reach the third.
    let before = three.stats().tx.frames;
    tcp(first, second, "192.168.7.2", 4 * MEGABYTE);
    let more = three.stats().tx.frames - before;
    assert!(more < 100, "{more} frames");
    assert!(two.stats().tx.frames > 1000);
}

/// The commands of the page, as they stand there: a block for each host.
#[test]
fn the_four_commands_of_the_page_connect_two_hosts() {
    let page = std::fs::read_to_string(harness::root().join("docs/multi-host.md")).expect("a page");
    let blocks: Vec<&str> =
        page.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
    let Some(underlay) = Underlay::new(1500) else { return };
    let hosts: Option<Vec<Host>> = (1..=2).map(|n| Host::new(underlay.home(n)?, n)).collect();
    let Some(hosts) = hosts else { return };
    for (host, block) in hosts.iter().zip(&blocks) {
        assert_eq!(block.lines().count(), 2, "{block}");
        for line in block.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[0], "uvala");
            host.done(&words[1..]);
        }
    }
    tcp(&hosts[0].home, &hosts[1].home, "192.168.7.2", MEGABYTE);
    // What the page says of further hosts.
    for line in blocks[2].lines() {
        hosts[0].done(&line.split_whitespace().skip(1).collect::<Vec<_>>());
    }
}

#[test]
fn a_flood_of_one_host_reaches_each_other_once_and_goes_no_further() {
    let Some((_underlay, hosts)) = three_hosts(1500) else { return };
    let [(one, first), (two, _), (three, _)] = &hosts;
    let sent = |host: &Host| host.stats().rx.frames;
    first.within(|| {
        let socket = UdpSocket::bind("192.168.7.1:0").expect("its address");
        socket.set_broadcast(true).expect("ours");
        // What stations say when they come up is over when the tunnels are quiet.
        let quiet = || [sent(one), sent(two), sent(three)];
        wait::until("silence", || {
            let before = quiet();
            std::thread::sleep(std::time::Duration::from_millis(300));
            before == quiet()
        });
        let [before_one, before_two, before_three] = quiet();
        let arrived = |host: &Host| host.stats().tx.frames;
        let there = [arrived(two), arrived(three)];
        for _ in 0..20 {
            socket.send_to(b"to all", "192.168.7.255:9").expect("a broadcast");
        }
        wait::until("a flood", || {
            sent(one) >= before_one + 20
                && arrived(two) >= there[0] + 20
                && arrived(three) >= there[1] + 20
        });
        let back = [sent(two) - before_two, sent(three) - before_three];
        assert!(back.iter().all(|frames| *frames < 10), "split horizon: {back:?}");
    });
}

#[test]
fn a_station_that_moves_to_another_host_is_found_there() {
    let Some((_underlay, hosts)) = three_hosts(1500) else { return };
    let [(one, first), (two, _), (three, _)] = &hosts;
    let mac = "02:00:00:00:00:99";
    lab::delete(&two.daemon, "vale0:station");
    lab::delete(&three.daemon, "vale0:station");
    let guest = two.station("192.168.7.9/24", Some(mac)).expect("a namespace");
    tcp(&guest, first, "192.168.7.1", 1000);
    let before = one.learned("10.0.0.3");
    lab::delete(&two.daemon, "vale0:station");
    guest.die();
    let guest = three.station("192.168.7.9/24", Some(mac)).expect("a namespace");
    tcp(&guest, first, "192.168.7.1", 1000);
    tcp(first, &guest, "192.168.7.9", MEGABYTE);
    assert!(one.learned("10.0.0.3") > before);
}

#[test]
fn datagrams_that_are_no_frames_of_the_tunnel_are_dropped_and_counted() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(one), Some(two), Some(nine)) =
        (underlay.host(1, &[2]), underlay.home(2), underlay.home(9))
    else {
        return;
    };
    let to: SocketAddr = "10.0.0.1:4789".parse().expect("an address");
    let send = |from: &Namespace, bytes: &[u8]| {
        let sent = from.within(|| UdpSocket::bind("0.0.0.0:0")?.send_to(bytes, to));
        assert_eq!(sent.expect("a route"), bytes.len());
    };
    let datagram = |flags: u8, vni: u8, len: usize| {
        let mut frame = vec![2; len];
        frame.iter_mut().take(6).for_each(|byte| *byte = 0xff);
        [&[flags, 0, 0, 0, 0, 0, vni, 0][..], &frame].concat()
    };
    let good = datagram(8, 100, 60);
    send(&two, &good);
    wait::until("a frame of the remote", || one.stats().tx.frames == 1);
    for (from, bytes, why) in [
        (&nine, &good, "vxlan_remote"),
        (&two, &datagram(8, 101, 60), "vxlan_vni"),
        (&two, &datagram(0, 100, 60), "vxlan_header"),
        (&two, &good[..7].to_vec(), "vxlan_header"),
        (&two, &Vec::new(), "vxlan_header"),
        (&two, &datagram(8, 100, 13), "too_short"),
    ] {
        let before = one.dropped(why);
        send(from, bytes);
        wait::until(why, || one.dropped(why) == before + 1);
    }
    assert_eq!(one.stats().tx.frames, 1, "no other frame was delivered");
    assert_eq!(one.learned("10.0.0.2"), 1);
    let explained = one.done(&["stats", "--explain"]);
    assert!(explained.contains("vxlan_vni"), "{explained}");
}

/// What a remote may send into the switch: port security is that of any port.
#[test]
fn a_tunnel_is_locked_and_guarded_as_any_port() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(one), Some(two)) = (underlay.host(1, &[2]), underlay.home(2)) else { return };
    let socket = two.within(|| UdpSocket::bind("0.0.0.0:0")).expect("a port");
    let to: SocketAddr = "10.0.0.1:4789".parse().expect("an address");
    let send = |frame: &[u8]| {
        let datagram = [&[8, 0, 0, 0, 0, 0, 100, 0][..], frame].concat();
        socket.send_to(&datagram, to).expect("a route");
    };
    let mut spy = one.daemon.open("vale0:spy");
    one.done(&["port", "set", FABRIC, "--mac-lock", "02:00:00:00:00:01"]);
    send(&announcement(2));
    wait::until("a locked address", || one.dropped("mac_lock") == 1);
    send(&announcement(1));
    let mut frame = Vec::new();
    assert!(spy.recv_timeout(&mut frame, Some(wait::PATIENCE)).expect("ours"), "the right one");
    assert_eq!(frame, announcement(1));
    let mut bpdu = announcement(1);
    bpdu[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0]);
    bpdu[12..17].copy_from_slice(&[0, 38, 0x42, 0x42, 3]);
    one.done(&["port", "set", FABRIC, "--bpdu-guard", "--bpdu-filter"]);
    send(&bpdu);
    wait::until("a filtered one", || one.dropped("bpdu_filter") == 1);
    one.done(&["port", "set", FABRIC, "--bpdu-filter=false"]);
    send(&bpdu);
    wait::until("the guard", || {
        one.daemon.port(FABRIC).expect("a port").disabled.as_deref() == Some("bpdu_guard")
    });
    one.done(&["port", "enable", FABRIC]);
    send(&announcement(1));
    assert!(spy.recv_timeout(&mut frame, Some(wait::PATIENCE)).expect("ours"));
}

#[test]
fn long_frames_and_unsegmented_ones_arrive_and_what_does_not_fit_is_counted() {
    let Some(underlay) = Underlay::new(9000) else { return };
    let (Some(one), Some(two)) = (underlay.host(1, &[2]), underlay.host(2, &[1])) else { return };
    assert_eq!(one.tunnel().mtu, Some(8950));
    let stations = [(&one, 1), (&two, 2)].map(|(host, number)| {
        let station = Namespace::new().expect("as before");
        let address = format!("192.168.7.{number}/24");
        // More than fits.
        let tap = HostIf { mtu: Some(9100), ..inside(&station, &address) };
        lab::add(&host.daemon, "vale0:station", PortKind::Tap, tap).expect("a TAP");
        station
    });
    let [first, second] = &stations;
    first.ip("link set eth0 mtu 8950");
    second.ip("link set eth0 mtu 8950");
    tcp(first, second, "192.168.7.2", 8 * MEGABYTE);
    first.within(|| udp(second, "192.168.7.2", 8950 - 28));
    assert_eq!(one.dropped("too_long"), 0);
    first.ip("link set eth0 mtu 9100");
    first.within(|| {
        let socket = UdpSocket::bind("192.168.7.1:0").expect("its address");
        wait::until("a frame that does not fit", || {
            let _ = socket.send_to(&[7; 9000], "192.168.7.2:9");
            one.dropped("too_long") > 0
        });
    });
    let doctor = one.done(&["doctor"]);
    assert!(doctor.contains("frames longer than the path takes (too_long)"), "{doctor}");
}

#[test]
fn stations_with_a_longer_mtu_are_told_that_of_the_path() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(one), Some(two)) = (underlay.host(1, &[2]), underlay.host(2, &[1])) else { return };
    let [first, second] = [(&one, 1), (&two, 2)].map(|(host, number)| {
        let station = Namespace::new().expect("as before");
        let address = format!("192.168.7.{number}/24");
        let tap = HostIf { mtu: Some(1500), ..inside(&station, &address) };
        lab::add(&host.daemon, "vale0:station", PortKind::Tap, tap).expect("a TAP");
        station.ip(&format!("addr add fd07::{number}/64 dev eth0 nodad"));
        station
    });
    for (address, known) in [("192.168.7.2", "mtu 1450"), ("fd07::2", "mtu 1450")] {
        tcp(&first, &second, address, MEGABYTE);
        let route = first.within(|| {
            Command::new("ip").args(["route", "get", address]).output().expect("iproute2").stdout
        });
        let route = String::from_utf8(route).expect("text");
        assert!(route.contains(known), "{route}");
    }
    assert!(one.dropped("too_long") > 0, "{:?}", one.stats());
}

#[test]
fn a_tunnel_over_ipv6_carries_frames() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let hosts: Option<Vec<_>> = [(1, 2), (2, 1)]
        .into_iter()
        .map(|(number, other)| {
            let host = Host::new(underlay.home(number)?, number)?;
            let (local, remote) =
                (format!("--local=fd00::{number}"), format!("--remote=fd00::{other}"));
            host.done(&["port", "add", FABRIC, "--kind=vxlan", "--vni=7", &local, &remote]);
            let station = host.station(&format!("192.168.7.{number}/24"), None)?;
            station.ip("link set eth0 mtu 1430");
            Some((host, station))
        })
        .collect();
    let Some(hosts) = hosts else { return };
    assert_eq!(hosts[0].0.tunnel().mtu, Some(1430));
    tcp(&hosts[0].1, &hosts[1].1, "192.168.7.2", MEGABYTE);
}

#[test]
fn remotes_and_static_stations_change_while_the_port_runs_and_survive_a_restart() {
    let Some((_underlay, hosts)) = three_hosts(1500) else { return };
    let [(mut one, first), (two, second), (_three, third)] = hosts;
    tcp(&first, &second, "192.168.7.2", 1000);
    one.done(&["port", "set", FABRIC, "--del-remote", "10.0.0.2"]);
    let before = one.dropped("vxlan_remote");
    second.within(|| {
        let socket = UdpSocket::bind("192.168.7.2:0").expect("its address");
        wait::until("a frame of a host that is no remote any more", || {
            let _ = socket.send_to(b"x", "192.168.7.1:9");
            one.dropped("vxlan_remote") > before
        });
    });
    tcp(&first, &third, "192.168.7.3", 1000);
    let station = "02:00:00:00:00:42=10.0.0.2";
    let error = one.refused(&["port", "set", FABRIC, "--add-fdb", station]);
    assert!(error.contains("add the remote 10.0.0.2 first"), "{error}");
    one.done(&["port", "set", FABRIC, "--add-remote", "10.0.0.2", "--add-fdb", station]);
    tcp(&first, &second, "192.168.7.2", 1000);
    let shown = one.done(&["port", "show", FABRIC]);
    for line in ["vni              100", "10.0.0.2, ", "02:00:00:00:00:42 behind 10.0.0.2"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    one.home.visit(|| one.daemon.restart());
    let tunnel = one.tunnel();
    assert_eq!((tunnel.remotes.len(), tunnel.fdb.len(), tunnel.trouble), (2, 1, None));
    // An interface in a namespace that a process number names goes with the daemon.
    first.die();
    let first = one.station("192.168.7.1/24", None).expect("a namespace");
    tcp(&first, &second, "192.168.7.2", 1000);
    drop(two);
}

#[test]
fn what_cannot_be_opened_is_refused_with_the_cure() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let Some(one) = underlay.host(1, &[2]) else { return };
    let add = |more: &[&str]| {
        let words = ["port", "add", "vale0:other", "--kind=vxlan"];
        one.refused(&[&words[..], more].concat())
    };
    let _other = one.home.within(|| UdpSocket::bind("0.0.0.0:4791")).expect("a free port");
    for (more, said) in [
        (&["--vni=100", "--local=10.0.0.1"][..], "port vale0:fabric has VNI 100 at the same local"),
        (&["--vni=1", "--local=10.0.0.1", "--dst-port=4791"], "choose another local or dst_port"),
        (&["--vni=101", "--local=10.0.0.77"], "ip address add 10.0.0.77/PREFIX"),
        (&["--vni=101"], "--local 10.0.0.1"),
        (&["--vni=16777216", "--local=10.0.0.1"], "0 to 16777215"),
        (&["--vni=1", "--local=10.0.0.1", "--remote=10.0.0.1"], "is local, too"),
    ] {
        let error = add(more);
        assert!(error.contains(said), "{error}");
    }
    let second = ["port", "add", "vale0:other", "--kind=vxlan", "--vni=101"];
    one.done(&[&second[..], &["--local=10.0.0.1", "--dst-port=4790"]].concat());
    // The port that goes gives its UDP port to the next one at once.
    for _ in 0..20 {
        one.done(&["port", "del", "vale0:other"]);
        one.done(&[&second[..], &["--local=10.0.0.1", "--dst-port=4790"]].concat());
    }
    let error = one.refused(&["port", "set", "vale0:other", "--del-remote=10.0.0.2"]);
    assert!(error.contains("no remote 10.0.0.2"), "{error}");
}

#[test]
fn a_file_makes_a_tunnel_and_apply_changes_its_remotes() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let Some(one) = underlay.home(1).and_then(|home| Host::new(home, 1)) else { return };
    let file = one.daemon.dir().join("fabric.toml");
    let apply = |text: &str| -> Output {
        std::fs::write(&file, format!("[switch.vale0.port.fabric]\nkind = \"vxlan\"\n{text}"))
            .expect("room");
        one.daemon.uvala(&["apply", file.to_str().expect("text")])
    };
    let text = "vni = 100\nlocal = \"10.0.0.1\"\nremote = [\"10.0.0.2\", \"10.0.0.3\"]\n\
                mtu = 1400\nfdb = [\"02:00:00:00:00:01=10.0.0.2\"]\n";
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let output = apply(text);
    assert!(output.status.success(), "{}", said(&output));
    let tunnel = one.tunnel();
    assert_eq!((tunnel.mtu, tunnel.remotes.len(), tunnel.fdb.len()), (Some(1400), 2, 1));
    let output = apply(&text.replace("\"10.0.0.2\", ", "").replace("fdb", "# fdb"));
    assert!(output.status.success(), "{}", said(&output));
    let tunnel = one.tunnel();
    let remotes: Vec<_> = tunnel.remotes.iter().map(|it| it.address.to_string()).collect();
    assert_eq!((remotes, tunnel.fdb.len()), (vec!["10.0.0.3".to_owned()], 0));
    let output = apply(&text.replace("100", "200"));
    assert!(said(&output).contains("--vni is 100 there, and 200 here"), "{}", said(&output));
    let output = apply("vni = 100\n");
    assert!(said(&output).contains("needs vni"), "{}", said(&output));
}

#[test]
fn a_daemon_starts_before_its_local_address_is_there() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(home), Some(two)) = (underlay.home(1), underlay.host(2, &[7])) else { return };
    let config = "[switch.vale0.port.fabric]\nkind = \"vxlan\"\nvni = 100\n\
                  local = \"10.0.0.7\"\nremote = [\"10.0.0.2\"]\n";
    let daemon = home.visit(|| Setup::new(config).start());
    let one = Host { home, daemon, number: 1 };
    assert_eq!(one.tunnel().trouble, None);
    let stations = (one.station("192.168.7.1/24", None), two.station("192.168.7.2/24", None));
    let (Some(first), Some(second)) = stations else { return };
    one.home.ip("addr add 10.0.0.7/24 dev eth0");
    tcp(&first, &second, "192.168.7.2", MEGABYTE);
}

#[test]
fn an_ordinary_user_may_not_add_a_tunnel() {
    if !harness::is_root() {
        return skip("root is needed to become another user");
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
    let add = ["port", "add", "vale1:x", "--kind=vxlan", "--vni=1", "--local=127.0.0.1"];
    let output = daemon.uvala_as(&add, Some(USER));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("only root and the daemon's user"), "{error}");
    assert!(daemon.ports().is_empty());
}

/// A host with the kernel's vxlan device, in a bridge with the address of a station. `None` where
/// the kernel has none, which is said.
fn kernel_host(underlay: &Underlay, number: u8, others: &[u8]) -> Option<Namespace> {
    let home = underlay.home(number)?;
    let made = home.within(|| {
        let words =
            format!("link add vx100 type vxlan id 100 local 10.0.0.{number} dstport 4789 dev eth0");
        Command::new("ip").args(words.split_whitespace()).output().expect("iproute2")
    });
    if !made.status.success() {
        let error = String::from_utf8_lossy(&made.stderr);
        skip(&format!("the kernel has no vxlan device: {}", error.trim()));
        return None;
    }
    for words in [
        "link add br0 mtu 1450 type bridge",
        "link set vx100 mtu 1450 master br0",
        "link set vx100 up",
        "link set br0 up",
    ] {
        home.ip(words);
    }
    home.ip(&format!("addr add 192.168.7.{number}/24 dev br0"));
    home.within(|| {
        for other in others {
            let entry = format!("fdb append 00:00:00:00:00:00 dev vx100 dst 10.0.0.{other}");
            let done = Command::new("bridge").args(entry.split_whitespace()).status();
            assert!(done.expect("iproute2").success(), "{entry}");
        }
        // Between namespaces the kernel leaves checksums inside to a card that is not there.
        let off = ["-K", "br0", "tx", "off", "gso", "off", "tso", "off"];
        let done = Command::new("ethtool").args(off).output();
        if !done.is_ok_and(|output| output.status.success()) {
            skip("ethtool is needed: apt-get install ethtool");
            return None;
        }
        Some(())
    })?;
    Some(home)
}

#[test]
fn the_kernels_vxlan_device_and_bridge_are_a_far_end() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let Some(kernel) = kernel_host(&underlay, 2, &[1, 3]) else { return };
    let (Some(one), Some(three)) = (underlay.host(1, &[2, 3]), underlay.host(3, &[1, 2])) else {
        return;
    };
    let stations = (one.station("192.168.7.1/24", None), three.station("192.168.7.3/24", None));
    let (Some(first), Some(third)) = stations else { return };
    first.within(|| udp(&kernel, "192.168.7.2", 1000));
    tcp(&first, &kernel, "192.168.7.2", MEGABYTE);
    tcp(&kernel, &third, "192.168.7.3", MEGABYTE);
    tcp(&first, &third, "192.168.7.3", MEGABYTE);
    assert!(one.learned("10.0.0.2") >= 1);
    // The kernel has learned our station, with the host that it is behind.
    let entries = kernel.within(|| {
        let output = Command::new("bridge").args(["fdb", "show", "dev", "vx100"]).output();
        String::from_utf8(output.expect("iproute2").stdout).expect("text")
    });
    assert!(entries.contains("dst 10.0.0.1") && entries.contains("dst 10.0.0.3"), "{entries}");
}

/// Open vSwitch with its data path in user space, in a namespace with the address of a station.
struct OpenVSwitch {
    home: Namespace,
    scratch: Scratch,
    processes: Vec<Owned>,
}

impl OpenVSwitch {
    fn new(underlay: &Underlay, number: u8, remote: u8) -> Option<Self> {
        let home = underlay.home(number)?;
        // Its data path takes the interface, and the bridge `wire` has the host's address.
        home.ip("addr flush dev eth0");
        let mut ovs = Self { home, scratch: Scratch::new("ovs"), processes: Vec::new() };
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        ovs.run("ovsdb-tool", &["create", "conf.db", schema]);
        ovs.start("ovsdb-server", &["conf.db", "--remote=punix:db.sock"]);
        let socket = ovs.scratch.path().join("db.sock");
        wait::until("Open vSwitch's database", || socket.exists());
        ovs.tell("--no-wait init");
        ovs.start("ovs-vswitchd", &["unix:db.sock"]);
        ovs.tell("add-br wire -- set bridge wire datapath_type=netdev");
        ovs.tell("add-port wire eth0");
        ovs.home.ip(&format!("addr add 10.0.0.{number}/24 dev wire"));
        ovs.home.ip("link set wire up");
        ovs.tell("add-br br0 -- set bridge br0 datapath_type=netdev");
        ovs.tell(&format!(
            "add-port br0 vx100 -- set interface vx100 type=vxlan options:key=100 \
             options:remote_ip=10.0.0.{remote} options:local_ip=10.0.0.{number}"
        ));
        ovs.home.ip("link set br0 mtu 1450 up");
        ovs.home.ip(&format!("addr add 192.168.7.{number}/24 dev br0"));
        Some(ovs)
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(name, self.scratch.path());
        }
        command.args(words).current_dir(self.scratch.path());
        command
    }

    fn start(&mut self, program: &str, words: &[&str]) {
        let mut command = self.command(program, words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.processes.insert(0, self.home.visit(|| Owned::spawn(&mut command)));
    }

    fn run(&self, program: &str, words: &[&str]) {
        let missing = "apt-get install openvswitch-switch (.ci/prepare does)";
        let output = self.home.within(|| self.command(program, words).output());
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}: {missing}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {words:?}: {error}");
    }

    fn tell(&self, words: &str) {
        let first = ["--db=unix:db.sock", "--timeout=30"].into_iter();
        self.run("ovs-vsctl", &first.chain(words.split_whitespace()).collect::<Vec<_>>());
    }
}

#[test]
fn open_vswitch_in_user_space_is_a_far_end() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let Some(one) = underlay.host(1, &[2]) else { return };
    let Some(first) = one.station("192.168.7.1/24", None) else { return };
    // It drops datagrams whose checksum is left to a card that is not there.
    one.home.within(|| {
        let off = Command::new("ethtool").args(["-K", "eth0", "tx", "off"]).output();
        assert!(off.expect("ethtool").status.success(), "apt-get install ethtool");
    });
    let Some(ovs) = OpenVSwitch::new(&underlay, 2, 1) else { return };
    ovs.home.within(|| {
        let off = Command::new("ethtool").args(["-K", "br0", "tx", "off"]).output();
        assert!(off.expect("ethtool").status.success());
    });
    first.within(|| udp(&ovs.home, "192.168.7.2", 1000));
    tcp(&first, &ovs.home, "192.168.7.2", MEGABYTE);
    tcp(&ovs.home, &first, "192.168.7.1", MEGABYTE);
    assert!(one.learned("10.0.0.2") >= 1);
}
