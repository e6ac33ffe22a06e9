//! What a port may send: locked addresses, limits for floods and for addresses, BPDUs, loops.

use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::Port;
use harness::daemon::{Daemon, Setup};
use harness::frames::{BROADCAST, announcement, fill, mac};
use harness::process::USER;
use harness::{skip, wait};
use protocol::{InterfaceAdd, InterfaceAttach, InterfaceRequest, Request};
use serde_json::{Value, json};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn said(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.uvala(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    text(&output)
}

fn shown(daemon: &Daemon, what: &str, name: &str) -> Value {
    serde_json::from_str(&said(daemon, &[what, "show", name, "--json"])).expect("JSON")
}

fn dropped(daemon: &Daemon, port: &str, reason: &str) -> u64 {
    daemon.stats(port).drops.get(reason).copied().unwrap_or(0)
}

/// Waits until no program holds the port.
fn free(daemon: &Daemon, port: &str) {
    wait::until("a free port", || daemon.port(port).unwrap().client.is_none());
}

/// Sends one frame from a station, and waits until the switch has taken it.
fn send(port: &mut Port, frame: &[u8]) {
    assert!(port.send_timeout(frame, Some(wait::PATIENCE)).unwrap());
    assert!(port.drain(Some(wait::PATIENCE)).unwrap());
}

/// The stations whose frames have arrived.
fn heard(port: &mut Port) -> Vec<u8> {
    let (mut frame, mut heard) = (Vec::new(), Vec::new());
    while port.try_recv(&mut frame).unwrap() {
        heard.push(frame[11]);
    }
    heard
}

#[test]
fn a_port_sends_from_the_addresses_that_it_is_locked_to() {
    let daemon = Daemon::start();
    let lock = "02:00:00:00:00:01,02:00:00:00:00:02";
    said(&daemon, &["port", "add", "vale0:vm", "--mac-lock", lock]);
    let (mut vm, mut other) = (daemon.open("vale0:vm"), daemon.open("vale0:other"));
    (1..5).for_each(|station| send(&mut vm, &announcement(station)));
    assert_eq!(heard(&mut other), [1, 2]);
    assert_eq!(dropped(&daemon, "vale0:vm", "mac_lock"), 2);
    assert_eq!(shown(&daemon, "port", "vale0:vm")["settings"]["mac_lock"], lock);
    said(&daemon, &["port", "set", "vale0:vm", "--mac-lock", "off"]);
    send(&mut vm, &announcement(4));
    assert_eq!(heard(&mut other), [4]);
    let refused = daemon.uvala(&["port", "set", "vale0:vm", "--mac-lock", "first:99"]);
    assert!(text(&refused).contains("mac_lock: expected off, first:N or"), "{}", text(&refused));
}

/// The first addresses stay the port's when its program ends; a lock of the switch holds for ports
/// that come later, too.
#[test]
fn all_ports_of_a_switch_are_locked_to_their_first_addresses() {
    let mut daemon = Daemon::start();
    said(&daemon, &["port", "add", "vale0:vm"]);
    said(&daemon, &["switch", "set", "vale0", "--mac-lock", "first:2"]);
    for _ in 0..2 {
        let (mut vm, mut other) = (daemon.open("vale0:vm"), daemon.open("vale0:other"));
        (1..4).for_each(|station| send(&mut vm, &announcement(station)));
        assert_eq!(heard(&mut other), [1, 2]);
        (5..9).for_each(|station| send(&mut other, &announcement(station)));
        assert_eq!(heard(&mut vm), [5, 6]);
        let macs = json!(["02:00:00:00:00:01", "02:00:00:00:00:02"]);
        assert_eq!(shown(&daemon, "port", "vale0:vm")["first_macs"], macs);
        drop((vm, other));
        wait::until("the other port to go", || daemon.port("vale0:other").is_none());
        free(&daemon, "vale0:vm");
        let mut vm = daemon.open("vale0:vm");
        send(&mut vm, &announcement(3));
        assert!(dropped(&daemon, "vale0:vm", "mac_lock") >= 2, "as before");
        drop(vm);
        free(&daemon, "vale0:vm");
    }
    said(&daemon, &["port", "set", "vale0:vm", "--mac-lock=off"]);
    daemon.terminate();
    daemon.restart();
    assert_eq!(shown(&daemon, "port", "vale0:vm")["settings"]["mac_lock"], "off");
    assert_eq!(shown(&daemon, "switch", "vale0")["port_settings"]["mac_lock"], "first:2");
}

#[test]
fn a_storm_is_cut_to_its_limit() {
    let daemon = Daemon::start();
    said(&daemon, &["switch", "add", "vale0", "--broadcast-limit", "50"]);
    said(&daemon, &["port", "add", "vale0:free", "--broadcast-limit", "0"]);
    let (mut loud, mut other) = (daemon.open("vale0:loud"), daemon.open("vale0:other"));
    let mut free = daemon.open("vale0:free");
    (0..500)
        .for_each(|_| assert!(loud.send_timeout(&announcement(1), Some(wait::PATIENCE)).unwrap()));
    send(&mut loud, &announcement(1));
    // A slow machine may take more than a second for that.
    let lost = dropped(&daemon, "vale0:loud", "storm_broadcast");
    assert!((1..=451).contains(&lost), "{lost} of 501");
    assert_eq!(heard(&mut other).len() as u64, 501 - lost);
    (0..500)
        .for_each(|_| assert!(free.send_timeout(&announcement(2), Some(wait::PATIENCE)).unwrap()));
    send(&mut free, &announcement(2));
    assert_eq!(heard(&mut other).len(), 501);
    assert_eq!(dropped(&daemon, "vale0:free", "storm_broadcast"), 0);
}

/// Addresses of a port of an ordinary user push out none of other ports, and so the frames of
/// others are not flooded to it.
#[test]
fn a_flood_of_addresses_from_an_ordinary_users_port_evicts_no_others() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be two users");
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
    said(&daemon, &["switch", "add", "vale0", "--mode", "666", "--fdb-capacity", "512"]);
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    send(&mut a, &announcement(1));
    send(&mut b, &announcement(2));
    let sources = "06:00:00:00:00:00-06:00:00:00:ff:ff";
    let (to, count) = ("02:00:00:00:00:99", "100000");
    let flood = ["gen", "-i", "vale0:flood", "-f", "tx", "-n", count, "-S", sources, "-D", to];
    let flooded = daemon.uvala_as(&flood, Some(USER));
    assert!(flooded.status.success(), "{}", text(&flooded));
    let fdb = shown(&daemon, "switch", "vale0")["fdb"].clone();
    assert_eq!((&fdb["evicted"], fdb["refused_limit"].as_u64() > Some(1000)), (&json!(0), true));
    let mut spy = daemon.open("vale0:spy");
    while a.try_recv(&mut Vec::new()).unwrap() || b.try_recv(&mut Vec::new()).unwrap() {}
    let mut frame = Vec::new();
    for (port, from, to) in [(&mut a, 1, 2), (&mut b, 2, 1)] {
        for seq in 0..1000 {
            fill(&mut frame, mac(to), from, seq, 60);
            assert!(port.send_timeout(&frame, Some(wait::PATIENCE)).unwrap());
        }
        assert!(port.drain(Some(wait::PATIENCE)).unwrap());
    }
    assert_eq!(daemon.stats("vale0:spy").rx.frames, 0);
    assert!(heard(&mut spy).is_empty());
    // What an operator says comes first.
    said(&daemon, &["switch", "set", "vale0", "--max-macs", "0"]);
    assert!(daemon.uvala_as(&flood, Some(USER)).status.success());
    assert_ne!(shown(&daemon, "switch", "vale0")["fdb"]["evicted"], 0);
}

#[test]
fn a_bpdu_disables_a_guarded_port_until_it_is_enabled() {
    let daemon = Daemon::start();
    said(&daemon, &["port", "add", "vale0:vm", "--bpdu-guard"]);
    let (mut vm, mut other) = (daemon.open("vale0:vm"), daemon.open("vale0:other"));
    send(&mut vm, &announcement(1));
    let mut bpdu = announcement(1);
    bpdu[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0]);
    bpdu[12..17].copy_from_slice(&[0, 38, 0x42, 0x42, 3]);
    send(&mut vm, &bpdu);
    send(&mut vm, &announcement(1));
    // Before that, other workers of the switch may still send to the port.
    wait::until("the log", || daemon.log().contains("vale0:vm is disabled by bpdu_guard"));
    send(&mut other, &announcement(2));
    assert_eq!((heard(&mut other), heard(&mut vm)), (vec![1], Vec::<u8>::new()));
    assert_eq!(dropped(&daemon, "vale0:vm", "disabled"), 2);
    assert_eq!(shown(&daemon, "port", "vale0:vm")["disabled"], "bpdu_guard");
    let found = text(&daemon.uvala(&["doctor"]));
    assert!(
        found.contains("PROBLEM  vale0:vm: disabled: a bridge with a spanning tree"),
        "{found}"
    );
    // A program that attaches again does not enable it.
    drop(vm);
    free(&daemon, "vale0:vm");
    let mut vm = daemon.open("vale0:vm");
    send(&mut vm, &announcement(1));
    assert!(heard(&mut other).is_empty());
    assert!(said(&daemon, &["port", "show", "vale0:vm"]).contains("uvala port enable vale0:vm"));
    said(&daemon, &["port", "enable", "vale0:vm"]);
    send(&mut vm, &announcement(1));
    assert_eq!(heard(&mut other), [1]);
    assert_eq!(shown(&daemon, "port", "vale0:vm").get("disabled"), None);
}

#[test]
fn a_bpdu_filter_drops_bpdus_in_both_directions_and_the_guard_sees_none() {
    let daemon = Daemon::start();
    said(&daemon, &["switch", "add", "vale0", "--group-fwd-mask", "1"]);
    said(&daemon, &["port", "add", "vale0:vm", "--bpdu-filter", "--bpdu-guard"]);
    let (mut vm, mut other) = (daemon.open("vale0:vm"), daemon.open("vale0:other"));
    let mut third = daemon.open("vale0:third");
    let bpdu = |station: u32| {
        let mut bpdu = announcement(station);
        bpdu[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0]);
        bpdu[12..17].copy_from_slice(&[0, 38, 0x42, 0x42, 3]);
        bpdu
    };
    send(&mut vm, &bpdu(1));
    send(&mut vm, &announcement(1));
    assert_eq!((heard(&mut other), heard(&mut third)), (vec![1], vec![1]));
    assert_eq!(dropped(&daemon, "vale0:vm", "bpdu_filter"), 1);
    assert_eq!(daemon.port("vale0:vm").unwrap().disabled, None);
    // group_fwd_mask lets BPDUs through, to the others.
    send(&mut other, &bpdu(2));
    assert_eq!((heard(&mut vm), heard(&mut third)), (Vec::<u8>::new(), vec![2]));
    assert_eq!(dropped(&daemon, "vale0:vm", "bpdu_filter"), 2);
    said(&daemon, &["port", "set", "vale0:vm", "--bpdu-filter=false", "--bpdu-guard=false"]);
    send(&mut other, &bpdu(2));
    send(&mut vm, &bpdu(1));
    assert_eq!((heard(&mut vm), heard(&mut other)), (vec![2], vec![1]));
}

/// Passes frames on between two ports, as a bridge does, until `over`.
fn bridge([a, b]: &mut [Port; 2], over: &AtomicBool) {
    let mut frame = Vec::new();
    while !over.load(Ordering::Relaxed) {
        while a.try_recv(&mut frame).unwrap() {
            b.try_send(&frame).unwrap();
        }
        while b.try_recv(&mut frame).unwrap() {
            a.try_send(&frame).unwrap();
        }
    }
}

/// Ends the bridge, also when the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two ports of one switch, and a program that passes on what comes: a broadcast circles. The
/// daemon names the two ports; where it is told to, it disables one.
#[test]
fn a_loop_is_named_with_its_ports_and_broken_on_demand() {
    let daemon = Daemon::start();
    said(&daemon, &["switch", "add", "vale0"]);
    let mut host = daemon.open("vale0:host");
    let mut ends = [daemon.open("vale0:left"), daemon.open("vale0:right")];
    assert!(!text(&daemon.uvala(&["doctor"])).contains("loop"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| bridge(&mut ends, &over));
        let _end = End(&over);
        let mut frame = Vec::new();
        fill(&mut frame, BROADCAST, 1, 0, 60);
        let is_named = |log: &str| {
            let mut lines = log.lines().filter(|line| line.contains("loop between"));
            lines.any(|line| line.contains("vale0:left") && line.contains("vale0:right"))
        };
        wait::until("the loop in the log", || {
            send(&mut host, &frame);
            is_named(&daemon.log())
        });
        wait::until("the loop in the diagnosis", || {
            let found = text(&daemon.uvala(&["doctor"]));
            is_named(&found) && found.contains("PROBLEM  vale0: loop between")
        });
        let switch = shown(&daemon, "switch", "vale0");
        assert_eq!(switch["loop"]["mac"], "02:00:00:00:00:01");
        assert!(switch["fdb"]["loop_seconds"].as_u64() > Some(0), "{switch}");
        for port in ["vale0:left", "vale0:right"] {
            said(&daemon, &["port", "set", port, "--loop-protect"]);
        }
        let disabled =
            |port: &str| daemon.port(port).unwrap().disabled.as_deref() == Some("loop_protect");
        wait::until("a port to be disabled", || {
            send(&mut host, &frame);
            disabled("vale0:left") || disabled("vale0:right")
        });
        let seen = || daemon.stats("vale0:host").rx.frames;
        wait::until("the end of the loop", || {
            let before = seen();
            std::thread::sleep(Duration::from_millis(200));
            seen() == before
        });
    });
    wait::until("the log", || daemon.log().contains("is disabled by loop_protect"));
}

/// An interface that is in two switches, as a cable between them.
fn join_switches(daemon: &Daemon, name: &str, switches: [&str; 2]) {
    let port = format!("netmap:{name}").parse().unwrap();
    let (tx_rings, rx_rings, tx_slots, rx_slots) = (None, None, None, None);
    let add = InterfaceAdd { port, tx_rings, rx_rings, tx_slots, rx_slots, mem_id: 0 };
    daemon.call(Request::Interface(InterfaceRequest::Add(add))).unwrap();
    for switch in switches {
        let port = format!("{switch}:{name}").parse().unwrap();
        let attach = InterfaceAttach { port, host: false, mem_id: 0 };
        daemon.call(Request::Interface(InterfaceRequest::Attach(attach))).unwrap();
    }
}

/// Two cables between two switches of one daemon: each switch names its ends of them.
#[test]
fn a_loop_of_two_switches_is_named_at_each() {
    const SWITCHES: [&str; 2] = ["vale0", "vale1"];
    let daemon = Daemon::start();
    let mut host = daemon.open("vale0:host");
    ["left", "right"].into_iter().for_each(|name| join_switches(&daemon, name, SWITCHES));
    let is_named = |text: &str, switch: &str| {
        let ends = ["left", "right"].map(|name| format!("{switch}:{name}"));
        let mut lines = text.lines().filter(|line| line.contains("loop between"));
        lines.any(|line| ends.iter().all(|end| line.contains(end)))
    };
    let mut frame = Vec::new();
    fill(&mut frame, BROADCAST, 1, 0, 60);
    wait::until("the loop in the log", || {
        send(&mut host, &frame);
        SWITCHES.into_iter().all(|switch| is_named(&daemon.log(), switch))
    });
    let found = text(&daemon.uvala(&["doctor"]));
    for switch in SWITCHES {
        assert!(is_named(&found, switch), "{found}");
        assert_eq!(shown(&daemon, "switch", switch)["loop"]["mac"], "02:00:00:00:00:01");
    }
}
