//! Interfaces in bad weather: a loop in the cables, a queue that stays full for a while.

use std::net::UdpSocket;
use std::time::Duration;

use client::control::ControlError;
use harness::daemon::Daemon;
use harness::fabric::{FABRIC, Host, Underlay};
use harness::frames::{BROADCAST, fill};
use harness::lab::{Lab, add, delete, inside, veth};
use harness::net::{ip, tcp, udp};
use harness::{skip, wait};
use protocol::{ErrorCode, HostIf, PortKind};
use rustix::process::{Pid, Signal, kill_process};

const MEGABYTE: usize = 1 << 20;

/// Both ends of a cable in one switch: a broadcast goes round for ever. It costs the worker's time,
/// a batch in each turn, and no other port's frames. The daemon names the two ports.
fn storm(kind: PortKind) {
    let Some(lab) = Lab::new(3) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue, green] = &lab.guests[..] else { panic!() };
        ip("link add here type veth peer name there");
        for end in ["here", "there"] {
            ip(&format!("link set {end} up"));
            match add(daemon, &format!("vale0:{end}"), kind, HostIf::default()) {
                Err(ControlError::Refused(failure))
                    if matches!(failure.code, ErrorCode::Permission | ErrorCode::Unsupported) =>
                {
                    return skip(&format!("root with AF_XDP is needed: {}", failure.message));
                }
                added => added.unwrap(),
            }
        }
        add(daemon, "vale0:red", PortKind::Tap, inside(red, "10.0.0.1/24")).unwrap();
        add(daemon, "vale1:blue", PortKind::Tap, inside(blue, "10.0.0.2/24")).unwrap();
        add(daemon, "vale1:green", PortKind::Tap, inside(green, "10.0.0.3/24")).unwrap();
        // A station asks for an unknown address.
        red.within(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            let seen = || daemon.stats("vale0:here").tx.frames;
            wait::until("a storm", || {
                drop(socket.send_to(b"x", "10.0.0.99:9"));
                seen() > 10_000
            });
        });
        wait::until("the loop in the log", || {
            let log = daemon.log();
            log.contains("between vale0:here and vale0:there")
                || log.contains("between vale0:there and vale0:here")
        });
        tcp(blue, green, "10.0.0.3", MEGABYTE);
        assert_eq!(daemon.ports().len(), 5, "it answers");
        delete(daemon, "vale0:there");
        let round = || daemon.stats("vale0:here").tx.frames;
        wait::until("the storm to end", || {
            let before = round();
            std::thread::sleep(Duration::from_millis(200));
            round() - before < 100
        });
        tcp(green, blue, "10.0.0.2", MEGABYTE);
    });
}

#[test]
fn a_loop_of_packet_ports_costs_others_nothing() {
    storm(PortKind::Packet);
}

#[test]
fn a_loop_of_xdp_ports_costs_others_nothing() {
    storm(PortKind::Xdp);
}

fn signal(daemon: &Daemon, signal: Signal) {
    let pid = i32::try_from(daemon.pid()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("our own");
}

/// The kernel fills the queue of a TAP without a reader, and drops what does not fit.
#[test]
fn a_tap_whose_queue_was_full_goes_on() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        add(daemon, "vale0:red", PortKind::Tap, inside(red, "10.0.0.1/24")).unwrap();
        add(daemon, "vale0:blue", PortKind::Tap, inside(blue, "10.0.0.2/24")).unwrap();
        red.within(|| udp(blue, "10.0.0.2", 100));
        signal(daemon, Signal::STOP);
        red.within(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            (0..5000).for_each(|_| drop(socket.send_to(&[7; 1000], "10.0.0.2:9")));
        });
        signal(daemon, Signal::CONT);
        red.within(|| udp(blue, "10.0.0.2", 100));
        tcp(blue, red, "10.0.0.1", MEGABYTE);
        // A stack that takes nothing in: its interface is down.
        blue.ip("link set eth0 down");
        red.within(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            wait::until("drops", || {
                drop(socket.send_to(&[7; 1000], "10.0.0.2:9"));
                daemon.stats("vale0:blue").drops.contains_key("link_down")
            });
        });
        blue.ip("link set eth0 up");
        red.within(|| udp(blue, "10.0.0.2", 100));
    });
}

/// Whether the log of a host names a loop between these ports.
fn names_loop(host: &Host, ports: [&str; 2]) -> bool {
    let log = host.daemon.log();
    let mut lines = log.lines().filter(|line| line.contains("loop between"));
    lines.any(|line| ports.iter().all(|port| line.contains(port)))
}

/// Sends a broadcast from a station's namespace.
fn broadcast(station: &harness::net::Namespace) {
    station.within(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
        socket.set_broadcast(true).expect("ours");
        let _ = socket.send_to(b"to all", "192.168.7.255:9");
    });
}

/// Two tunnels between the same two hosts: a broadcast goes round through both. Each host names its
/// two ports, the limit of one holds for it, and `loop_protect` ends it.
#[test]
fn a_loop_of_two_tunnels_is_named_limited_and_broken() {
    const SECOND: &str = "vale0:second";
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(one), Some(two)) = (underlay.host(1, &[2]), underlay.host(2, &[1])) else { return };
    for (host, other) in [(&one, 2), (&two, 1)] {
        let local = format!("--local=10.0.0.{}", host.number);
        let remote = format!("--remote=10.0.0.{other}");
        host.done(&[
            "port",
            "add",
            SECOND,
            "--kind=vxlan",
            "--vni=200",
            "--dst-port=4790",
            &local,
            &remote,
        ]);
    }
    let station = one.station("192.168.7.1/24", None).expect("as before");
    wait::until("the loop in both logs", || {
        broadcast(&station);
        [&one, &two].into_iter().all(|host| names_loop(host, [FABRIC, SECOND]))
    });
    let found = one.daemon.uvala(&["doctor"]);
    assert!(String::from_utf8_lossy(&found.stdout).contains("loop between"), "the diagnosis, too");
    for port in [FABRIC, SECOND] {
        two.done(&["port", "set", port, "--broadcast-limit", "20"]);
    }
    let cut = |port| two.daemon.stats(port).drops.contains_key("storm_broadcast");
    wait::until("the storm to be cut", || {
        broadcast(&station);
        cut(FABRIC) || cut(SECOND)
    });
    for port in [FABRIC, SECOND] {
        two.done(&["port", "set", port, "--broadcast-limit", "0", "--loop-protect"]);
    }
    let disabled = |port| two.daemon.port(port).and_then(|it| it.disabled);
    wait::until("a tunnel to be disabled", || {
        broadcast(&station);
        [FABRIC, SECOND].into_iter().any(|it| disabled(it).as_deref() == Some("loop_protect"))
    });
    let round = || one.stats().tx.frames;
    wait::until("the storm to end", || {
        let before = round();
        std::thread::sleep(Duration::from_millis(200));
        round() - before < 100
    });
}

/// A loop in the cables of another host: the station's address comes back through the tunnel, which
/// the first host names; the other one names the two ends of the cable.
#[test]
fn a_loop_behind_another_host_is_named_on_both() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(one), Some(two)) = (underlay.host(1, &[2]), underlay.host(2, &[1])) else { return };
    let station = one.station("192.168.7.1/24", None).expect("as before");
    two.home.ip("link add here type veth peer name there");
    for end in ["here", "there"] {
        two.home.ip(&format!("link set {end} up"));
        two.done(&["port", "add", &format!("vale0:{end}"), "--kind=packet"]);
    }
    wait::until("the loop in both logs", || {
        broadcast(&station);
        names_loop(&one, ["vale0:station", FABRIC])
            && names_loop(&two, ["vale0:here", "vale0:there"])
    });
    // The tunnel is cut where the frames come from.
    one.done(&["port", "set", FABRIC, "--loop-protect"]);
    wait::until("the tunnel to be disabled", || {
        broadcast(&station);
        one.daemon.port(FABRIC).unwrap().disabled.as_deref() == Some("loop_protect")
    });
    delete(&two.daemon, "vale0:there");
}

/// One long broadcast: a port that cannot take it as a whole gets nothing of it and counts it, and
/// who can has all of it.
#[test]
fn a_frame_is_dropped_where_it_is_too_long_and_counted_there() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [blue, green] = &lab.guests[..] else { panic!() };
        add(daemon, "vale0:tap", PortKind::Tap, HostIf::default()).unwrap();
        veth(blue, "packet", "10.0.0.2/24", "");
        add(daemon, "vale0:packet", PortKind::Packet, HostIf::default()).unwrap();
        veth(green, "quick", "10.0.0.3/24", "");
        let mut narrow = vec!["vale0:tap", "vale0:packet", "vale0:few"];
        match add(daemon, "vale0:quick", PortKind::Xdp, HostIf::default()) {
            Err(error) => skip(&format!("root with AF_XDP is needed: {error}")),
            Ok(()) => narrow.push("vale0:quick"),
        }
        let wide = HostIf { mtu: Some(60_000), ..HostIf::default() };
        add(daemon, "vale0:wide", PortKind::Tap, wide).unwrap();
        // Fewer buffers than it takes.
        let _few = daemon.options().slots(16).open("vale0:few").unwrap();
        let mut all = daemon.open("vale0:all");
        let mut from = daemon.open("vale0:from");
        let mut frame = Vec::new();
        fill(&mut frame, BROADCAST, 1, 0, 60_014);
        let too_long = |port: &str| daemon.stats(port).drops.get("too_long").copied();
        let before: Vec<u64> = narrow.iter().map(|port| daemon.stats(port).rx.bytes).collect();
        from.send(&frame).unwrap();
        let mut got = Vec::new();
        while got != frame {
            assert!(all.recv_timeout(&mut got, Some(wait::PATIENCE)).unwrap(), "it comes");
        }
        for (port, before) in narrow.iter().zip(before) {
            wait::until("it to be counted", || too_long(port) == Some(1));
            assert!(daemon.stats(port).rx.bytes - before < 60_014, "{port}: nothing of it");
        }
        for port in ["vale0:wide", "vale0:all", "vale0:from"] {
            assert_eq!(too_long(port), None, "{port}");
        }
        assert!(daemon.stats("vale0:wide").rx.bytes >= 60_014);
    });
}
