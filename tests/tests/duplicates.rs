//! One interface is one port of a switch, however it is named and whenever it comes; of two
//! switches, it is a cable.

use client::control::ControlError;
use harness::daemon::{Daemon, Setup};
use harness::lab::{Lab, add, becomes, delete, give_taps, has_xdp, host, refusal, touched, veth};
use harness::net::{ip, tcp};
use harness::{tap, wait};
use protocol::{ErrorCode, HostIf, LinkState, PortKind};

fn named(ifname: &str) -> HostIf {
    HostIf { ifname: Some(ifname.to_owned()), ..HostIf::default() }
}

/// Expects the error that names the port of the interface.
fn refused_for(result: Result<(), ControlError>, other: &str) {
    let (code, text) = refusal(result);
    assert_eq!(code, ErrorCode::InUse, "{text}");
    assert!(text.contains(&format!("is port {other} of this switch already")), "{text}");
    assert!(text.contains(&format!("uvala port del {other}")), "{text}");
}

#[test]
fn an_interface_is_one_port_of_a_switch_whatever_it_is_called() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        veth(&lab.guests[0], "red", "10.0.0.1/24", "");
        ip("link property add dev red altname crimson");
        add(daemon, "vale0:a", PortKind::Packet, named("red")).unwrap();
        let before = touched("red");
        let inside = HostIf { netns: Some(lab.home.name()), ..named("red") };
        let alone = HostIf { alone: true, ..named("red") };
        for again in [named("red"), named("crimson"), inside, alone] {
            refused_for(add(daemon, "vale0:b", PortKind::Packet, again), "vale0:a");
        }
        refused_for(add(daemon, "vale0:b", PortKind::Xdp, named("red")), "vale0:a");
        assert_eq!(touched("red"), before, "nothing was done to it");
        assert!(daemon.port("vale0:b").is_none());
        // The host would have all that arrives, and once more by its side.
        let (code, text) = refusal(add(daemon, "vale0:b", PortKind::Stack, named("red")));
        assert!(code == ErrorCode::InUse && text.contains("vale0:a") && text.contains("--alone"));
        // Another switch may have it, and this one another.
        add(daemon, "vale1:a", PortKind::Packet, named("red")).unwrap();
        ip("link add blue type veth peer name green");
        add(daemon, "vale0:blue", PortKind::Packet, named("blue")).unwrap();
        delete(daemon, "vale0:a");
        add(daemon, "vale0:b", PortKind::Packet, named("red")).unwrap();
    });
}

#[test]
fn an_interface_of_af_xdp_is_no_packet_port_too() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        veth(&lab.guests[0], "red", "10.0.0.1/24", "numrxqueues 2 numtxqueues 2");
        let some = |queues: &str| HostIf { queues: Some(queues.parse().unwrap()), ..named("red") };
        if !has_xdp(add(daemon, "vale0:a", PortKind::Xdp, some("0-0"))) {
            return;
        }
        refused_for(add(daemon, "vale0:b", PortKind::Packet, named("red")), "vale0:a");
        // A program in front of the driver is for all queues.
        refused_for(add(daemon, "vale0:b", PortKind::Xdp, some("1-1")), "vale0:a");
    });
}

#[test]
fn a_tap_is_one_port_whoever_has_opened_it() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        // What the switch has made itself.
        let address = Some("10.0.0.2/24".parse().unwrap());
        let lan = HostIf { address, ..named("lan") };
        add(daemon, "vale0:lan", PortKind::Tap, lan).unwrap();
        refused_for(add(daemon, "vale0:b", PortKind::Packet, named("lan")), "vale0:lan");
        let (code, _) = refusal(add(daemon, "vale0:b", PortKind::Stack, named("lan")));
        assert_eq!(code, ErrorCode::InUse);
        // Of one with several queues another may be had.
        ip("tuntap add dev many mode tap multi_queue");
        add(daemon, "vale0:many", PortKind::Tap, named("many")).unwrap();
        let changed = HostIf { mtu: Some(1400), ..named("many") };
        refused_for(add(daemon, "vale0:b", PortKind::Tap, changed), "vale0:many");
        assert_eq!(host(daemon, "vale0:many").mtu, 1500, "it was left as it is");
        // What another process has opened, here and elsewhere, by one descriptor and by another.
        let here = tap::make_queues("given", 2);
        let far = red.within(|| tap::make("eth0", 10, false));
        for (port, fds) in [("vale0:here", &here[..1]), ("vale0:far", std::slice::from_ref(&far))] {
            give_taps(daemon, port, fds).unwrap();
            refused_for(give_taps(daemon, "vale0:b", fds), port);
        }
        refused_for(give_taps(daemon, "vale0:b", &here[1..]), "vale0:here");
        refused_for(add(daemon, "vale0:b", PortKind::Packet, named("given")), "vale0:here");
        let inside = HostIf { netns: Some(red.name()), ..named("eth0") };
        refused_for(add(daemon, "vale0:b", PortKind::Packet, inside), "vale0:far");
        // One of the same name is another one, and the ports work as before.
        let other = blue.within(|| tap::make("eth0", 10, false));
        give_taps(daemon, "vale0:other", &[other]).unwrap();
        red.ip("link set eth0 up");
        red.ip("addr add 10.0.0.1/24 dev eth0");
        tcp(red, &lab.home, "10.0.0.2", 1 << 20);
    });
}

#[test]
fn of_two_that_are_added_at_once_one_is_made() {
    let Some(lab) = Lab::new(0) else { return };
    lab.tell(|daemon, _| {
        ip("link add red type veth peer name blue");
        ip("tuntap add dev keep mode tap");
        add(daemon, "vale0:keep", PortKind::Tap, named("keep")).unwrap();
        for _ in 0..10 {
            let try_one = |port: &'static str| {
                move || add(daemon, port, PortKind::Packet, named("red")).is_ok()
            };
            let made = std::thread::scope(|scope| {
                let all = ["vale0:a", "vale0:b", "vale0:c"].map(|port| scope.spawn(try_one(port)));
                all.map(|one| usize::from(one.join().unwrap())).iter().sum::<usize>()
            });
            assert_eq!(made, 1, "{:?}", daemon.ports());
            let left = daemon.ports().into_iter().filter(|port| port != "vale0:keep");
            left.for_each(|port| delete(daemon, &port));
        }
    });
}

#[test]
fn of_two_that_are_configured_the_second_waits_until_the_first_is_gone() {
    let Some(lab) = Lab::new(1) else { return };
    lab.home.within(|| {
        let red = &lab.guests[0];
        veth(red, "red", "10.0.0.1/24", "");
        let port = |name: &str| {
            format!("[switch.vale0.port.{name}]\nkind = \"packet\"\nifname = \"red\"\n")
        };
        let mut daemon = Setup::new(&(port("a") + &port("b"))).start();
        let one_is_up = |daemon: &Daemon| {
            let info = ["vale0:a", "vale0:b"].map(|port| (port, host(daemon, port)));
            let (up, down): (Vec<_>, Vec<_>) =
                info.into_iter().partition(|(_, info)| info.state == LinkState::Up);
            let ([(up, _)], [(down, info)]) = (&up[..], &down[..]) else { return None };
            let named = info.trouble.as_ref()?.contains(&format!("is port {up} of this switch"));
            named.then_some((*up, *down))
        };
        wait::find("one of them", || one_is_up(&daemon));
        // It comes again, and then the daemon does.
        ip("link del red");
        becomes(&daemon, "vale0:a", LinkState::Gone);
        becomes(&daemon, "vale0:b", LinkState::Gone);
        veth(red, "red", "10.0.0.1/24", "");
        wait::find("one of them again", || one_is_up(&daemon));
        daemon.restart();
        let (up, down) = wait::find("one of them after all", || one_is_up(&daemon));
        delete(&daemon, up);
        becomes(&daemon, down, LinkState::Up);
        assert_eq!(host(&daemon, down).trouble, None);
    });
}
