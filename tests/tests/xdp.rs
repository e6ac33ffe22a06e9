//! Ports of kind xdp: interfaces by AF_XDP, in namespaces of the tests.

use std::net::UdpSocket;
use std::time::Duration;

use harness::daemon::Daemon;
use harness::lab::{
    Lab, Locks, add, becomes, delete, has_xdp, host, inside, refusal, touched, veth,
};
use harness::net::{ip, tcp, udp};
use harness::{measure, skip, wait};
use protocol::{
    ErrorCode, Filter, HostIf, LinkState, PortAdd, PortKind, PortRequest, PortSettings, Request,
};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

const MEGABYTE: usize = 1 << 20;

fn xdp(daemon: &Daemon, port: &str) -> bool {
    has_xdp(add(daemon, port, PortKind::Xdp, HostIf::default()))
}

fn program_is_on(ifname: &str) -> bool {
    let output = std::process::Command::new("ip").args(["link", "show", ifname]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("xdp")
}

/// Stacks that leave checksums to their cards among themselves and with others.
#[test]
fn namespaces_exchange_tcp_by_af_xdp_and_with_other_kinds() {
    let Some(lab) = Lab::new(4) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue, green, grey] = &lab.guests[..] else { panic!() };
        for (i, (guest, name)) in [(red, "red"), (blue, "blue"), (grey, "grey")].iter().enumerate()
        {
            veth(guest, name, &format!("10.0.0.{}/24", i + 1), "");
            guest.ip(&format!("addr add fd00::{}/64 dev eth0 nodad", i + 1));
        }
        if !xdp(daemon, "vale0:red") {
            return;
        }
        assert!(xdp(daemon, "vale0:blue"));
        add(daemon, "vale0:green", PortKind::Tap, inside(green, "10.0.0.9/24")).unwrap();
        add(daemon, "vale0:grey", PortKind::Packet, HostIf::default()).unwrap();
        tcp(red, blue, "10.0.0.2", 4 * MEGABYTE);
        tcp(blue, red, "fd00::1", 4 * MEGABYTE);
        red.within(|| udp(blue, "10.0.0.2", 100));
        red.within(|| udp(blue, "10.0.0.2", 5000));
        tcp(red, green, "10.0.0.9", 2 * MEGABYTE);
        tcp(green, blue, "10.0.0.2", 2 * MEGABYTE);
        tcp(grey, red, "10.0.0.1", 2 * MEGABYTE);
        tcp(blue, grey, "fd00::3", 2 * MEGABYTE);
        let info = host(daemon, "vale0:red");
        let how = info.how.expect("there are several ways");
        assert!(how.starts_with("1 queue, in the driver, copied by the kernel"), "{how}");
        assert!(daemon.log().contains(&how));
        assert_eq!(daemon.stats("vale0:red").drops.get("offload"), None);
    });
}

#[test]
fn long_frames_take_several_chunks() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        veth(red, "red", "10.0.0.1/24", "mtu 9000");
        veth(blue, "blue", "10.0.0.2/24", "mtu 9000");
        if !xdp(daemon, "vale0:red") {
            return;
        }
        assert!(xdp(daemon, "vale0:blue"));
        if host(daemon, "vale0:red").how.is_some_and(|how| how.contains("lost")) {
            return skip("frames of several chunks need Linux 6.6");
        }
        tcp(red, blue, "10.0.0.2", 8 * MEGABYTE);
        tcp(blue, red, "10.0.0.1", 8 * MEGABYTE);
        let stats = daemon.stats("vale0:red");
        assert!(stats.tx.bytes / stats.tx.frames > 2000, "frames of 9000 bytes");
        red.within(|| udp(blue, "10.0.0.2", 8900));
        // A frame that one of them does not take.
        ip("link set blue mtu 1500");
        wait::until("the MTU to be known", || host(daemon, "vale0:blue").mtu == 1500);
        red.within(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            wait::until("a drop", || {
                socket.send_to(&[7; 8900], "10.0.0.2:9").unwrap();
                daemon.stats("vale0:blue").drops.contains_key("too_long")
            });
        });
    });
}

#[test]
fn all_queues_of_an_interface_are_taken() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        veth(red, "red", "10.0.0.1/24", "numrxqueues 4 numtxqueues 4");
        veth(blue, "blue", "10.0.0.2/24", "");
        if !xdp(daemon, "vale0:red") {
            return;
        }
        assert!(xdp(daemon, "vale0:blue"));
        let how = host(daemon, "vale0:red").how.unwrap();
        assert!(how.starts_with("4 queues"), "{how}");
        // Each sender's core has a queue of its own; connections come by several of them.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| tcp(red, blue, "10.0.0.2", MEGABYTE));
            }
        });
        delete(daemon, "vale0:red");
        let queues =
            |text: &str| HostIf { queues: Some(text.parse().unwrap()), ..HostIf::default() };
        for (wanted, shown) in [
            ("2", "2 queues, in"),
            ("1-3", "3 queues (1 to 3), in"),
            ("0-0,2-3", "3 queues (0, 2, 3), in"),
            ("3-3", "1 queue (3), in"),
        ] {
            add(daemon, "vale0:red", PortKind::Xdp, queues(wanted)).unwrap();
            let how = host(daemon, "vale0:red").how.unwrap();
            assert!(how.starts_with(shown), "{wanted}: {how}");
            delete(daemon, "vale0:red");
        }
        for bad in ["5", "0", "2-4"] {
            let (code, text) = refusal(add(daemon, "vale0:red", PortKind::Xdp, queues(bad)));
            assert!(code == ErrorCode::BadRequest && text.contains("has 4 queues"), "{text}");
        }
        // What comes by the others, the host has: flows are spread over the queues.
        add(daemon, "vale0:red", PortKind::Xdp, queues("1-3")).unwrap();
        ip("addr add 10.0.0.3/24 dev red");
        let own = host(daemon, "vale0:red").mac;
        red.ip(&format!("neigh replace 10.0.0.3 lladdr {own} dev eth0"));
        let there = UdpSocket::bind("10.0.0.3:0").unwrap();
        there.set_nonblocking(true).unwrap();
        let here: Vec<_> =
            red.within(|| (0..64).map(|_| UdpSocket::bind("10.0.0.1:0").unwrap()).collect());
        let taken = || daemon.stats("vale0:red").tx.frames;
        let before = taken();
        wait::until("some to arrive at each", || {
            for socket in &here {
                socket.send_to(&[1], there.local_addr().unwrap()).unwrap();
            }
            there.recv(&mut [0; 9]).is_ok() && taken() > before
        });
    });
}

/// How often something has an interface take in frames for others.
fn promiscuity(ifname: &str) -> u32 {
    touched(ifname).0.parse().unwrap()
}

/// The interface of a port that is not made is what it was before, as the next one finds it.
#[test]
fn what_was_changed_for_a_port_that_is_not_made_is_put_back() {
    let Some(lab) = Lab::new(1) else { return };
    lab.home.within(|| {
        // With this right, it may lock what it likes.
        if let Err(error) = remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK) {
            return skip(&format!("root is needed: {error}"));
        }
        let _little = Locks::little();
        let daemon = Daemon::start();
        veth(&lab.guests[0], "red", "10.0.0.1/24", "numrxqueues 4 numtxqueues 4");
        let with = |queues: &str| {
            let queues = Some(queues.parse().unwrap());
            add(&daemon, "vale0:red", PortKind::Xdp, HostIf { queues, ..HostIf::default() })
        };
        for _ in 0..3 {
            let (code, text) = refusal(with("4"));
            if matches!(code, ErrorCode::Permission | ErrorCode::Unsupported) {
                return skip(&format!("root with AF_XDP is needed: {text}"));
            }
            assert!(code == ErrorCode::NoMemory && text.contains("LimitMEMLOCK"), "{text}");
            wait::until("it to be put back", || touched("red") == ("0".to_owned(), false));
        }
        with("1").unwrap();
        let how = host(&daemon, "vale0:red").how.unwrap();
        assert!(how.contains("rxvlan is off now"), "it was on before: {how}");
        delete(&daemon, "vale0:red");
        // That was a port, and what is off stays off.
        wait::until("its memory to be free", || with("1").is_ok());
        let how = host(&daemon, "vale0:red").how.unwrap();
        assert!(!how.contains("rxvlan"), "{how}");
    });
}

/// A bridge takes in what is for itself, as a card does; and its driver knows nothing of AF_XDP.
#[test]
fn an_interface_takes_in_what_is_for_stations_of_the_switch_also_where_its_driver_knows_nothing() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let red = &lab.guests[0];
        veth(red, "red", "10.0.0.1/24", "");
        ip("link add name br0 type bridge forward_delay 0");
        ip("link set br0 up");
        ip("link set red master br0");
        assert_eq!(promiscuity("br0"), 0);
        if !xdp(daemon, "vale0:br0") {
            return;
        }
        assert_eq!(promiscuity("br0"), 1);
        let how = host(daemon, "vale0:br0").how.expect("there are several ways");
        assert_eq!(how, "1 queue, behind the driver (slower), copied by the kernel");
        assert_eq!(daemon.log().matches(&how).count(), 1, "said once");
        let shown = String::from_utf8(daemon.uvala(&["port", "show", "vale0:br0"]).stdout);
        assert!(shown.unwrap().contains(&how));
        becomes(daemon, "vale0:br0", LinkState::Up);
        let mac = Some("02:00:00:00:00:07".parse().unwrap());
        let address = Some("10.0.0.2/24".parse().unwrap());
        let lan = HostIf { mac, address, ..HostIf::default() };
        add(daemon, "vale0:lan", PortKind::Tap, lan).unwrap();
        // Datagrams: a stack's runs of segments come as they are, and cannot be taken.
        red.within(|| udp(&lab.home, "10.0.0.2", 1000));
        udp(red, "10.0.0.1", 1000);
        delete(daemon, "vale0:br0");
        assert_eq!(promiscuity("br0"), 0);
        let station = "mac=02:00:00:00:00:07,mac=ff:ff:ff:ff:ff:ff";
        let some = HostIf { filter: Some(station.parse().unwrap()), ..HostIf::default() };
        add(daemon, "vale0:br0", PortKind::Xdp, some).unwrap();
        becomes(daemon, "vale0:br0", LinkState::Up);
        red.within(|| udp(&lab.home, "10.0.0.2", 1000));
    });
}

/// The end of a veth takes tags out, as cards do; where one cannot see that, they would be lost.
#[test]
fn trunks_carry_vlans_to_those_who_belong_there() {
    let Some(lab) = Lab::new(3) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue, green] = &lab.guests[..] else { panic!() };
        ip("link add here type veth peer name there");
        let with = |port: &str, kind, host, vlan: &str| {
            let (port, host) = (port.parse().unwrap(), Some(host));
            let settings = PortSettings { vlan: vlan.parse().ok(), ..Default::default() };
            let add = PortAdd { port, kind, settings, host, machine: None, vxlan: None };
            daemon.call(Request::Port(PortRequest::Add(Box::new(add)))).map(drop)
        };
        for (port, end) in [("vale0:here", "here"), ("vale1:there", "there")] {
            ip(&format!("link set {end} up"));
            if !has_xdp(with(port, PortKind::Xdp, HostIf::default(), "trunk:10,20")) {
                return;
            }
            let how = host(daemon, port).how.unwrap();
            assert!(how.ends_with("rxvlan is off now, so that VLAN tags stay in frames"), "{how}");
        }
        for (port, guest, address, vlan) in [
            ("vale0:red", red, "10.0.0.1/24", "access:10"),
            ("vale1:blue", blue, "10.0.0.2/24", "access:10"),
            ("vale1:green", green, "10.0.0.2/24", "access:20"),
        ] {
            with(port, PortKind::Tap, inside(guest, address), vlan).unwrap();
        }
        tcp(red, blue, "10.0.0.2", MEGABYTE);
        tcp(blue, red, "10.0.0.1", MEGABYTE);
        assert_eq!(daemon.stats("vale1:green").rx.frames, 0, "the same address, elsewhere");
    });
}

#[test]
fn what_the_filter_leaves_goes_on_to_the_host() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        veth(red, "red", "10.0.0.1/24", "");
        ip("addr add 10.0.0.2/24 dev red");
        // A type of its own is for the switch, and what is said to a station on it.
        let filter: Filter = "type=0x88b5".parse().unwrap();
        let taken = HostIf { filter: Some(filter), ..HostIf::default() };
        if !has_xdp(add(daemon, "vale0:red", PortKind::Xdp, taken)) {
            return;
        }
        tcp(red, &lab.home, "10.0.0.2", MEGABYTE);
        tcp(&lab.home, red, "10.0.0.1", MEGABYTE);
        assert_eq!(daemon.stats("vale0:red").tx.frames, 0, "the host has all of it");
        delete(daemon, "vale0:red");
        let station = "mac=02:00:00:00:00:07,mac=ff:ff:ff:ff:ff:ff";
        let taken = HostIf { filter: Some(station.parse().unwrap()), ..HostIf::default() };
        add(daemon, "vale0:red", PortKind::Xdp, taken).unwrap();
        let mac = Some("02:00:00:00:00:07".parse().unwrap());
        let tap = HostIf { mac, ..inside(blue, "10.0.0.7/24") };
        add(daemon, "vale0:blue", PortKind::Tap, tap).unwrap();
        tcp(red, blue, "10.0.0.7", MEGABYTE);
        // Its peers ask for the host by broadcast, which it does not get any more; what is
        // addressed to it, it does.
        let mac = std::fs::read_to_string("/proc/net/arp").unwrap();
        assert!(!mac.contains("10.0.0.7"));
        let own = std::process::Command::new("ip").args(["-o", "link", "show", "red"]).output();
        let text = String::from_utf8(own.unwrap().stdout).unwrap();
        let own = text.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        red.ip(&format!("neigh replace 10.0.0.2 lladdr {own} dev eth0"));
        tcp(red, &lab.home, "10.0.0.2", MEGABYTE);
    });
}

#[test]
fn interfaces_go_and_come_while_frames_flow() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        veth(red, "red", "10.0.0.1/24", "");
        if !xdp(daemon, "vale0:red") {
            return;
        }
        add(daemon, "vale0:blue", PortKind::Tap, inside(blue, "10.0.0.2/24")).unwrap();
        for round in 0..3 {
            blue.ip("neigh flush all");
            becomes(daemon, "vale0:red", LinkState::Up);
            blue.within(|| udp(red, "10.0.0.1", 100));
            let flood = || {
                blue.within(|| {
                    let socket = UdpSocket::bind("10.0.0.2:0").unwrap();
                    (0..200).for_each(|_| drop(socket.send_to(&[1; 1000], "10.0.0.1:9")));
                });
            };
            flood();
            ip(if round == 0 { "link set red down" } else { "link del red" });
            flood();
            let gone = if round == 0 { LinkState::Down } else { LinkState::Gone };
            becomes(daemon, "vale0:red", gone);
            if round == 0 {
                // A name is a name, the interface is the same.
                ip("link set red name other");
                ip("link set other up");
                becomes(daemon, "vale0:red", LinkState::Up);
                assert_eq!(host(daemon, "vale0:red").ifname, "other");
                blue.within(|| udp(red, "10.0.0.1", 100));
                ip("link set other down");
                ip("link set other name red");
                ip("link set red up");
            } else {
                veth(red, "red", "10.0.0.1/24", "");
            }
        }
        blue.ip("neigh flush all");
        becomes(daemon, "vale0:red", LinkState::Up);
        blue.within(|| udp(red, "10.0.0.1", 100));
    });
}

#[test]
fn a_namespace_lives_as_long_as_a_port_of_its_interface_which_may_go_before() {
    let Some(mut lab) = Lab::new(2) else { return };
    let left = lab.guests.remove(0);
    lab.tell(|daemon, lab| {
        let blue = &lab.guests[0];
        left.ip(&format!("link add red type veth peer name eth0 netns {}", blue.name()));
        left.ip("link set red up");
        blue.ip("link set eth0 up");
        blue.ip("addr add 10.0.0.1/24 dev eth0");
        let red = || HostIf {
            ifname: Some("red".to_owned()),
            netns: Some(left.name()),
            ..HostIf::default()
        };
        if !has_xdp(add(daemon, "vale0:red", PortKind::Xdp, red())) {
            return;
        }
        let mac = Some("02:00:00:00:00:09".parse().unwrap());
        let address = Some("10.0.0.2/24".parse().unwrap());
        add(daemon, "vale0:lan", PortKind::Tap, HostIf { mac, address, ..HostIf::default() })
            .unwrap();
        udp(blue, "10.0.0.1", 100);
        left.die();
        udp(blue, "10.0.0.1", 100);
        blue.ip("link del eth0");
        // The kernel does not report events of another namespace: the port notices when it sends.
        let socket = UdpSocket::bind("10.0.0.2:0").unwrap();
        wait::until("the interface to be gone", || {
            drop(socket.send_to(&[1; 100], "10.0.0.1:9"));
            host(daemon, "vale0:red").state != LinkState::Up
        });
        assert_eq!(host(daemon, "vale0:lan").state, LinkState::Up);
    });
}

#[test]
fn another_program_has_the_interface_until_it_ends() {
    let Some(lab) = Lab::new(1) else { return };
    lab.home.within(|| {
        let (first, mut second) = (Daemon::start(), Daemon::start());
        veth(&lab.guests[0], "red", "10.0.0.1/24", "");
        if !xdp(&second, "vale0:red") {
            return;
        }
        assert!(program_is_on("red"));
        let (code, text) = refusal(add(&first, "vale0:red", PortKind::Xdp, HostIf::default()));
        assert!(code == ErrorCode::InUse && text.contains("ip link set red xdp off"), "{text}");
        second.kill();
        wait::until("the kernel to take the program away", || !program_is_on("red"));
        assert!(xdp(&first, "vale0:red"));
        // A daemon that finds it taken waits for it, and says so.
        second.restart();
        let trouble = || host(&second, "vale0:red").trouble.is_some();
        wait::until("the second to try", trouble);
        assert!(second.log().contains("another XDP program is on interface red"));
        delete(&first, "vale0:red");
        becomes(&second, "vale0:red", LinkState::Up);
        assert_eq!(host(&second, "vale0:red").trouble, None);
    });
}

/// A busy socket is not watched, and one that rests is.
#[test]
fn interfaces_are_heard_again_after_each_time_they_were_busy() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        veth(red, "red", "10.0.0.1/24", "");
        veth(blue, "blue", "10.0.0.2/24", "");
        for kind in [PortKind::Packet, PortKind::Xdp] {
            if !has_xdp(add(daemon, "vale0:red", kind, HostIf::default())) {
                return;
            }
            add(daemon, "vale0:blue", kind, HostIf::default()).unwrap();
            for _ in 0..20 {
                tcp(red, blue, "10.0.0.2", MEGABYTE / 4);
                red.within(|| udp(blue, "10.0.0.2", 100));
            }
            // One may go while it is busy.
            let blast = || {
                let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
                (0..5000).for_each(|_| drop(socket.send_to(&[1; 100], "10.0.0.2:9")));
            };
            std::thread::scope(|scope| {
                scope.spawn(|| red.within(blast));
                delete(daemon, "vale0:red");
            });
            delete(daemon, "vale0:blue");
        }
    });
}

#[test]
fn an_idle_interface_wakes_nobody() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let quiet = || drop(std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"));
        quiet();
        lab.guests[0].within(quiet);
        veth(&lab.guests[0], "red", "10.0.0.1/24", "numrxqueues 2 numtxqueues 2");
        if !xdp(daemon, "vale0:red") {
            return;
        }
        wait::until("a second of sleep", || {
            let before = measure::switches(daemon.pid());
            std::thread::sleep(Duration::from_secs(1));
            measure::switches(daemon.pid()) == before
        });
    });
}

#[test]
fn a_daemon_without_rights_says_what_to_grant() {
    let Some(lab) = Lab::new(0) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("a daemon of another user needs root");
    }
    lab.home.within(|| {
        ip("link add red type veth peer name blue");
        let daemon = harness::daemon::Setup::default().user(65534).start();
        let (code, text) = refusal(add(&daemon, "vale0:red", PortKind::Xdp, HostIf::default()));
        assert!(code == ErrorCode::Permission && text.contains("CAP_BPF"), "{text}");
        let some = || HostIf { queues: Some("0-1".parse().unwrap()), ..HostIf::default() };
        for (kind, word) in [(PortKind::Tap, "a number"), (PortKind::Packet, "only for kinds")] {
            let (code, text) = refusal(add(&daemon, "vale0:x", kind, some()));
            assert!(code == ErrorCode::BadRequest && text.contains(word), "{text}");
        }
    });
}
