//! Network interfaces as ports: the host's stack, namespaces, VLANs, and interfaces that go.

use std::time::Duration;

use client::control::ControlError;
use harness::daemon::{Daemon, Setup};
use harness::frames::{BROADCAST, mac};
use harness::net::{Namespace, ip, tcp, udp};
use harness::netmap::Descriptor;
use harness::wait;
use packet::{MacAddr, build};
use protocol::{
    Address, Bind, ErrorCode, HostIf, HostIfInfo, HostRings, InterfaceAttach, InterfaceRequest,
    LinkState, PortAdd, PortKind, PortRef, PortRequest, PortSettings, Request,
};

const MEGABYTE: usize = 1 << 20;

/// A daemon in a namespace of its own, and namespaces to connect.
struct Lab {
    home: Namespace,
    guests: Vec<Namespace>,
}

impl Lab {
    fn new(guests: usize) -> Option<Self> {
        let guests = (0..guests).map(|_| Namespace::new()).collect::<Option<_>>()?;
        Some(Self { home: Namespace::new()?, guests })
    }

    /// Runs a story with a daemon in the home namespace.
    fn tell(self, story: impl FnOnce(&Daemon, &Lab) + Send) {
        self.home.within(|| story(&Daemon::start(), &self));
    }
}

fn add(daemon: &Daemon, port: &str, kind: PortKind, host: HostIf) -> Result<(), ControlError> {
    add_with(daemon, port, kind, host, PortSettings::default())
}

fn add_with(
    daemon: &Daemon,
    port: &str,
    kind: PortKind,
    host: HostIf,
    settings: PortSettings,
) -> Result<(), ControlError> {
    let add = PortAdd {
        port: port.parse().unwrap(),
        kind,
        settings,
        host: Some(host),
        machine: None,
        vxlan: None,
    };
    daemon.call(Request::Port(PortRequest::Add(Box::new(add)))).map(drop)
}

fn refusal(result: Result<(), ControlError>) -> (ErrorCode, String) {
    match result {
        Err(ControlError::Refused(failure)) => (failure.code, failure.message),
        other => panic!("{other:?}"),
    }
}

/// A TAP `eth0` in a namespace, with an address there.
fn inside(guest: &Namespace, address: &str) -> HostIf {
    HostIf {
        ifname: Some("eth0".to_owned()),
        netns: Some(guest.name()),
        address: Some(address.parse().unwrap()),
        ..HostIf::default()
    }
}

fn named(ifname: &str) -> HostIf {
    HostIf { ifname: Some(ifname.to_owned()), ..HostIf::default() }
}

/// A veth pair: `name` here, `eth0` with an address in a namespace.
fn veth(guest: &Namespace, name: &str, address: &str) {
    ip(&format!("link add {name} type veth peer name eth0 netns {}", guest.name()));
    ip(&format!("link set {name} up"));
    guest.ip("link set eth0 up");
    guest.ip(&format!("addr add {address} dev eth0 nodad"));
}

fn host(daemon: &Daemon, port: &str) -> HostIfInfo {
    *daemon.port(port).expect("a port").host.expect("an interface")
}

fn becomes(daemon: &Daemon, port: &str, state: LinkState) {
    wait::until("the state of a link", || host(daemon, port).state == state);
}

#[test]
fn namespaces_exchange_tcp_through_taps() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = [&lab.guests[0], &lab.guests[1]];
        add(daemon, "vale0:red", PortKind::Tap, inside(red, "10.0.0.1/24")).unwrap();
        add(daemon, "vale0:blue", PortKind::Tap, inside(blue, "10.0.0.2/24")).unwrap();
        tcp(red, blue, "10.0.0.2", 4 * MEGABYTE);
        tcp(blue, red, "10.0.0.1", 4 * MEGABYTE);
        let info = host(daemon, "vale0:red");
        assert_eq!((info.ifname.as_str(), info.state, info.mtu), ("eth0", LinkState::Up, 1500));
        assert!(daemon.stats("vale0:red").tx.bytes > 4 * MEGABYTE as u64);
    });
}

#[test]
fn the_host_has_an_address_on_the_switch_and_answers_programs() {
    let Some(lab) = Lab::new(0) else { return };
    lab.tell(|daemon, _| {
        let address: Address = "10.0.0.1/24".parse().unwrap();
        let wanted = HostIf { address: Some(address), mac: Some(mac(7).into()), ..named("lan") };
        add(daemon, "vale0:host", PortKind::Tap, wanted).unwrap();
        assert_eq!(host(daemon, "vale0:host").mac, mac(7).into());
        let mut port = daemon.open("vale0:program");
        let request = arp(&mac(1), [10, 0, 0, 9], [10, 0, 0, 1]);
        let mut frame = Vec::new();
        wait::until("an answer to ARP", || {
            port.send(&request).unwrap();
            let answered = port.recv_timeout(&mut frame, Some(Duration::from_millis(50)));
            matches!(answered, Ok(true)) && frame[..12] == [mac(1), mac(7)].concat()
        });
        assert_eq!(frame[20..22], [0, 2], "a reply");
    });
}

fn arp(from: &[u8; 6], sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let from = MacAddr::new(*from);
    let request = build::arp(1, (from, sender.into()), (MacAddr::ZERO, target.into()));
    let mut frame = build::ethernet(BROADCAST, from, 0x0806, &request);
    frame.resize(60, 0);
    frame
}

#[test]
fn what_a_stack_left_to_its_card_another_takes_as_it_is() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = [&lab.guests[0], &lab.guests[1]];
        veth(red, "red", "10.0.0.1/24");
        veth(blue, "blue", "10.0.0.2/24");
        for guest in [red, blue] {
            let number = if std::ptr::eq(guest, red) { 1 } else { 2 };
            guest.ip(&format!("addr add fd00::{number}/64 dev eth0 nodad"));
        }
        add(daemon, "vale0:red", PortKind::Packet, HostIf::default()).unwrap();
        add(daemon, "vale0:blue", PortKind::Packet, HostIf::default()).unwrap();
        tcp(red, blue, "10.0.0.2", 8 * MEGABYTE);
        tcp(blue, red, "fd00::1", 8 * MEGABYTE);
        red.within(|| udp(blue, "10.0.0.2", 100));
        red.within(|| udp(blue, "10.0.0.2", 5000));
        for port in ["vale0:red", "vale0:blue"] {
            assert_eq!(daemon.stats(port).drops.get("offload"), None);
        }
        // The runs that one stack hands out are what the other takes.
        let stats = daemon.stats("vale0:red");
        assert!(stats.rx.bytes / stats.rx.frames > 1514, "{stats:?}");
    });
}

#[test]
fn veth_and_tap_are_on_one_switch() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = [&lab.guests[0], &lab.guests[1]];
        veth(red, "red", "10.0.0.1/24");
        add(daemon, "vale0:red", PortKind::Packet, HostIf::default()).unwrap();
        add(daemon, "vale0:blue", PortKind::Tap, inside(blue, "10.0.0.2/24")).unwrap();
        tcp(red, blue, "10.0.0.2", 2 * MEGABYTE);
        tcp(blue, red, "10.0.0.1", 2 * MEGABYTE);
    });
}

/// Two switches with a cable between them: the kernel takes tags out of frames that it receives,
/// and the port puts them back.
#[test]
fn trunks_carry_vlans_to_those_who_belong_there() {
    let Some(lab) = Lab::new(3) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue, green] = [&lab.guests[0], &lab.guests[1], &lab.guests[2]];
        ip("link add here type veth peer name there");
        let vlan = |mode: &str| PortSettings { vlan: mode.parse().ok(), ..Default::default() };
        for port in ["vale0:here", "vale1:there"] {
            ip(&format!("link set {} up", &port[6..]));
            let trunk = vlan("trunk:10,20");
            add_with(daemon, port, PortKind::Packet, HostIf::default(), trunk).unwrap();
        }
        let access = |port, guest, address, mode| {
            add_with(daemon, port, PortKind::Tap, inside(guest, address), vlan(mode)).unwrap();
        };
        access("vale0:red", red, "10.0.0.1/24", "access:10");
        access("vale1:blue", blue, "10.0.0.2/24", "access:10");
        access("vale1:green", green, "10.0.0.2/24", "access:20");
        tcp(red, blue, "10.0.0.2", MEGABYTE);
        tcp(blue, red, "10.0.0.1", MEGABYTE);
        assert_eq!(daemon.stats("vale1:green").rx.frames, 0, "the same address, elsewhere");
        assert_eq!(daemon.stats("vale1:there").drops.get("too_long"), None);
    });
}

#[test]
fn long_frames_pass_where_they_fit_and_are_dropped_where_they_do_not() {
    let Some(lab) = Lab::new(3) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue, far] = [&lab.guests[0], &lab.guests[1], &lab.guests[2]];
        for (guest, name, number) in [(red, "red", 1), (blue, "blue", 2)] {
            let tap = inside(guest, &format!("10.0.0.{number}/24"));
            let tap = HostIf { mtu: Some(9000), ..tap };
            add(daemon, &format!("vale0:{name}"), PortKind::Tap, tap).unwrap();
        }
        let address = Some("10.0.0.3/24".parse().unwrap());
        let small = HostIf { address, ..HostIf::default() };
        add(daemon, "vale0:small", PortKind::Tap, small).unwrap();
        add(daemon, "vale0:far", PortKind::Tap, inside(far, "10.0.0.4/24")).unwrap();
        tcp(red, blue, "10.0.0.2", 4 * MEGABYTE);
        let stats = daemon.stats("vale0:red");
        assert!(stats.tx.bytes / stats.tx.frames > 2000, "frames of 9000 bytes");
        red.within(|| udp(blue, "10.0.0.2", 8900));
        red.within(|| udp(&lab.home, "10.0.0.3", 1400));
        // In another namespace the kernel decides, which takes it.
        red.within(|| udp(far, "10.0.0.4", 8900));
        red.within(|| {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(&[7; 8900], "10.0.0.3:9").unwrap();
        });
        wait::until("a drop", || daemon.stats("vale0:small").drops.get("too_long") == Some(&1));
    });
}

#[test]
fn interfaces_go_and_come_while_frames_flow() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let red = &lab.guests[0];
        veth(red, "red", "10.0.0.1/24");
        let address = Some("10.0.0.2/24".parse().unwrap());
        add(daemon, "vale0:red", PortKind::Packet, HostIf::default()).unwrap();
        add(daemon, "vale0:host", PortKind::Tap, HostIf { address, ..HostIf::default() }).unwrap();
        for round in 0..3 {
            // The kernel takes its time to forget where an address was.
            ip("neigh flush all");
            becomes(daemon, "vale0:red", LinkState::Up);
            udp(red, "10.0.0.1", 100);
            let socket = std::net::UdpSocket::bind("10.0.0.2:0").unwrap();
            let flood = || (0..200).for_each(|_| drop(socket.send_to(&[1; 1000], "10.0.0.1:9")));
            flood();
            ip(if round == 0 { "link set red down" } else { "link del red" });
            flood();
            let gone = if round == 0 { LinkState::Down } else { LinkState::Gone };
            becomes(daemon, "vale0:red", gone);
            if round == 0 {
                ip("link set red up");
            } else {
                veth(red, "red", "10.0.0.1/24");
            }
        }
        ip("neigh flush all");
        becomes(daemon, "vale0:red", LinkState::Up);
        udp(red, "10.0.0.1", 100);
        ip("link del host");
        becomes(daemon, "vale0:host", LinkState::Gone);
        let log = daemon.log();
        assert_eq!(log.matches("interface host is gone").count(), 1, "{log}");
        assert_eq!(log.matches("interface red is gone").count(), 2, "{log}");
    });
}

#[test]
fn a_namespace_that_dies_takes_its_interfaces_and_nothing_else() {
    let Some(mut lab) = Lab::new(2) else { return };
    let dying = lab.guests.remove(0);
    lab.tell(|daemon, lab| {
        let stays = &lab.guests[0];
        add(daemon, "vale0:dying", PortKind::Tap, inside(&dying, "10.0.0.1/24")).unwrap();
        add(daemon, "vale0:stays", PortKind::Tap, inside(stays, "10.0.0.2/24")).unwrap();
        tcp(&dying, stays, "10.0.0.2", MEGABYTE);
        dying.die();
        becomes(daemon, "vale0:dying", LinkState::Gone);
        let address = Some("10.0.0.3/24".parse().unwrap());
        add(daemon, "vale0:host", PortKind::Tap, HostIf { address, ..named("lan") }).unwrap();
        udp(stays, "10.0.0.2", 100);
    });
}

#[test]
fn an_interface_of_before_is_opened_and_stays() {
    let Some(lab) = Lab::new(0) else { return };
    lab.tell(|daemon, _| {
        ip("tuntap add dev mine mode tap");
        add(daemon, "vale0:mine", PortKind::Tap, HostIf::default()).unwrap();
        assert_eq!(host(daemon, "vale0:mine").state, LinkState::Down, "it was left as it was");
        ip("link set mine up");
        becomes(daemon, "vale0:mine", LinkState::Up);
        add(daemon, "vale0:made", PortKind::Tap, HostIf::default()).unwrap();
        for port in ["vale0:mine", "vale0:made"] {
            daemon
                .call(Request::Port(PortRequest::Del(PortRef { port: port.parse().unwrap() })))
                .unwrap();
        }
        let is_there =
            |name| std::process::Command::new("ip").args(["link", "show", name]).output();
        assert!(is_there("mine").unwrap().status.success());
        assert!(!is_there("made").unwrap().status.success());
    });
}

#[test]
fn what_cannot_be_had_is_named_with_its_cure() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let refused = |kind, host| refusal(add(daemon, "vale0:x", kind, host));
        let (tap, packet) = (PortKind::Tap, PortKind::Packet);
        let (code, text) = refused(packet, named("nothere"));
        assert_eq!(
            (code, text.as_str()),
            (ErrorCode::NotFound, "no interface nothere; see: ip link")
        );
        let (code, text) = refused(packet, named("lo"));
        assert_eq!(code, ErrorCode::Unsupported, "{text}");
        ip("link add veth0 type veth peer name veth1");
        let (code, text) = refused(tap, named("veth0"));
        assert!(code == ErrorCode::Exists && text.contains("is not a TAP"), "{text}");
        add(daemon, "vale1:one", tap, named("tap0")).unwrap();
        let (code, text) = refused(tap, named("tap0"));
        assert!(code == ErrorCode::InUse && text.contains("another program"), "{text}");
        let (code, text) = refused(tap, HostIf { mtu: Some(10), ..named("tap1") });
        assert!(code == ErrorCode::BadRequest && text.contains("68 to 65521"), "{text}");
        let (code, text) = refused(tap, HostIf { netns: Some("nowhere".into()), ..named("tap1") });
        assert!(code == ErrorCode::NotFound && text.contains("namespace nowhere"), "{text}");
        lab.guests[0].ip("link add eth0 type veth");
        let (code, text) = refused(tap, inside(&lab.guests[0], "10.0.0.1/24"));
        assert!(code == ErrorCode::Exists && text.contains("already"), "{text}");
        let (code, text) = refused(packet, HostIf { mtu: Some(1500), ..named("veth0") });
        assert!(code == ErrorCode::BadRequest && text.contains("ip link"), "{text}");
        let (code, text) = refused(PortKind::Null, named("x"));
        assert!(code == ErrorCode::BadRequest && text.contains("tap, packet"), "{text}");
        let (code, text) = refused(tap, named("a/b"));
        assert!(code == ErrorCode::BadRequest && text.contains("name of an interface"), "{text}");
        assert_eq!(daemon.ports(), ["vale1:one"]);
        assert!(daemon.port("vale0:x").is_none());
    });
}

/// Whether there are other users here: not in a user namespace that has one only.
fn has_users() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    let count = |line: &str| line.split_whitespace().nth(2).and_then(|n| n.parse::<u64>().ok());
    map.lines().filter_map(count).any(|users| users > 65534)
}

#[test]
fn a_daemon_without_rights_says_what_to_grant() {
    if !has_users() {
        return harness::skip("a daemon of another user needs root");
    }
    let Some(lab) = Lab::new(0) else { return };
    lab.home.within(|| {
        ip("link add veth0 type veth peer name veth1");
        ip("tuntap add dev given mode tap user 65534");
        let daemon = Setup::default().user(65534).start();
        let (code, text) = refusal(add(&daemon, "vale0:x", PortKind::Tap, named("tap0")));
        assert_eq!(code, ErrorCode::Permission);
        assert!(text.contains("CAP_NET_ADMIN") && text.contains("user 65534"), "{text}");
        let (code, text) = refusal(add(&daemon, "vale0:x", PortKind::Packet, named("veth0")));
        assert!(code == ErrorCode::Permission && text.contains("CAP_NET_RAW"), "{text}");
        assert!(text.contains("helper (docs/host.md)"), "{text}");
        let (code, text) = refusal(add(&daemon, "vale0:x", PortKind::Stack, named("veth0")));
        assert!(code == ErrorCode::Permission && text.contains("cut the host off"), "{text}");
        assert!(!text.contains("tuntap"), "{text}");
        assert!(daemon.log().contains("give the daemon CAP_NET_ADMIN"));
        add(&daemon, "vale0:x", PortKind::Tap, named("given")).unwrap();
        ip("link set given up");
        becomes(&daemon, "vale0:x", LinkState::Up);
    });
}

#[test]
fn the_next_daemon_has_the_interfaces_or_waits_for_them() {
    let Some(lab) = Lab::new(1) else { return };
    lab.home.within(|| {
        let mut daemon = Daemon::start();
        let guest = inside(&lab.guests[0], "10.0.0.9/24");
        add(&daemon, "vale0:guest", PortKind::Tap, guest).unwrap();
        ip("link add veth0 type veth peer name veth1");
        ip("link set veth0 up");
        ip("link set veth1 up");
        add(&daemon, "vale0:veth0", PortKind::Packet, HostIf::default()).unwrap();
        let address = Some("10.0.0.1/24".parse().unwrap());
        add(&daemon, "vale0:lan", PortKind::Tap, HostIf { address, ..named("lan") }).unwrap();
        daemon.kill();
        ip("link del veth0");
        daemon.restart();
        assert_eq!(host(&daemon, "vale0:veth0").state, LinkState::Gone);
        becomes(&daemon, "vale0:lan", LinkState::Up);
        assert!(daemon.port("vale0:guest").is_none(), "the number may be another process's now");
        assert!(daemon.log().contains("no interface veth0"));
        ip("link add veth0 type veth peer name veth1");
        ip("link set veth1 up");
        ip("link set veth0 up");
        becomes(&daemon, "vale0:veth0", LinkState::Up);
    });
}

#[test]
fn idle_interfaces_wake_nobody() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        veth(&lab.guests[0], "red", "10.0.0.1/24");
        // What the kernel says by itself: neighbours, groups.
        std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        lab.guests[0].within(|| {
            std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        });
        add(daemon, "vale0:red", PortKind::Packet, HostIf::default()).unwrap();
        add(daemon, "vale0:host", PortKind::Tap, HostIf::default()).unwrap();
        wait::until("a second of sleep", || {
            let before = harness::measure::switches(daemon.pid());
            std::thread::sleep(Duration::from_secs(1));
            harness::measure::switches(daemon.pid()) == before
        });
    });
}

/// Whether programs can be put in front of the stack here.
fn can_cut(result: Result<(), ControlError>) -> bool {
    match result {
        Ok(()) => true,
        Err(ControlError::Refused(failure)) => {
            harness::skip(&format!("root with BPF is needed: {}", failure.message));
            false
        }
        other => panic!("{other:?}"),
    }
}

fn reaches(from: &Namespace, address: &str) -> bool {
    from.within(|| {
        let to = format!("{address}:9").parse().unwrap();
        let limit = Duration::from_millis(300);
        // No program listens there: the answer is a refusal.
        let answer = std::net::TcpStream::connect_timeout(&to, limit);
        answer.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    })
}

#[test]
fn a_host_that_is_cut_off_comes_back_by_its_own_port_and_when_the_daemon_is_killed() {
    let Some(lab) = Lab::new(1) else { return };
    let red = &lab.guests[0];
    lab.home.within(|| {
        let mut daemon = Daemon::start();
        veth(red, "red", "10.0.0.1/24");
        ip("addr add 10.0.0.2/24 dev red");
        wait::until("the host to answer", || reaches(red, "10.0.0.2"));
        let alone = HostIf { alone: true, ..HostIf::default() };
        if !can_cut(add(&daemon, "vale0:red", PortKind::Packet, alone)) {
            return;
        }
        assert!(!reaches(red, "10.0.0.2"), "no station is there any more");
        add(&daemon, "vale0:host", PortKind::Stack, named("red")).unwrap();
        wait::until("the host to answer by its port", || reaches(red, "10.0.0.2"));
        tcp(&lab.home, red, "10.0.0.1", 2 * MEGABYTE);
        tcp(red, &lab.home, "10.0.0.2", 2 * MEGABYTE);
        let sent = daemon.stats("vale0:host").tx.bytes;
        assert!(sent > 2 * MEGABYTE as u64, "all of it went through the switch");
        daemon
            .call(Request::Port(PortRequest::Del(PortRef { port: "vale0:host".parse().unwrap() })))
            .unwrap();
        assert!(!reaches(red, "10.0.0.2"));
        daemon.kill();
        wait::until("the kernel to take its programs away", || reaches(red, "10.0.0.2"));
    });
}

/// Whether such a frame is among those that are there, or come soon.
fn hears(descriptor: &Descriptor, wanted: impl Fn(&[u8]) -> bool) -> bool {
    let soon = Duration::from_millis(50);
    std::iter::from_fn(|| descriptor.receive(soon).unwrap()).take(100).any(|frame| wanted(&frame))
}

#[test]
fn netmap_programs_have_an_interface_and_the_hosts_side_of_it() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let red = &lab.guests[0];
        veth(red, "red", "10.0.0.1/24");
        let lost = Bind::new("netmap:nothere".parse().unwrap());
        assert!(Descriptor::bind(&daemon.dir(), lost).is_err());
        let nic =
            Descriptor::bind(&daemon.dir(), Bind::new("netmap:red".parse().unwrap())).unwrap();
        let request = arp(&mac(1), [10, 0, 0, 9], [10, 0, 0, 1]);
        wait::until("an answer to ARP", || {
            nic.send(&request).unwrap();
            hears(&nic, |frame| frame[..6] == mac(1) && frame[12..14] == [8, 6])
        });
        let attach = InterfaceAttach { port: "vale0:red".parse().unwrap(), host: false, mem_id: 0 };
        let attach = Request::Interface(InterfaceRequest::Attach(attach));
        let (code, _) = refusal(daemon.call(attach.clone()).map(drop));
        assert_eq!(code, ErrorCode::InUse, "as long as a program has it");
        drop(nic);
        wait::until("the port to go", || daemon.ports().is_empty());
        daemon.call(attach).unwrap();
        let bind = Bind::new("netmap:red".parse().unwrap());
        assert!(Descriptor::bind(&daemon.dir(), bind).is_err(), "as long as a switch has it");
        assert_eq!(daemon.port("vale0:red").unwrap().kind, PortKind::Packet);
        let detach = PortRef { port: "vale0:red".parse().unwrap() };
        daemon.call(Request::Interface(InterfaceRequest::Detach(detach))).unwrap();
        assert_eq!(daemon.ports(), [""; 0]);
        assert!(daemon.switch("vale0").is_none());
    });
}

#[test]
fn the_hosts_rings_are_what_the_host_sends_and_gets() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        veth(&lab.guests[0], "red", "10.0.0.1/24");
        ip("addr add 10.0.0.2/24 dev red");
        let host = Bind::new("netmap:red^".parse().unwrap());
        let host = match Descriptor::bind(&daemon.dir(), host) {
            Ok(host) => host,
            Err(error) => return harness::skip(&format!("root with BPF is needed: {error}")),
        };
        let socket = std::net::UdpSocket::bind("10.0.0.2:0").unwrap();
        wait::until("what the host sends", || {
            socket.send_to(b"x", "10.0.0.1:9").unwrap();
            hears(&host, |frame| frame[12..14] == [8, 6])
        });
        let request = arp(&mac(1), [10, 0, 0, 9], [10, 0, 0, 2]);
        wait::until("what the host answers", || {
            host.send(&request).unwrap();
            hears(&host, |frame| frame[..6] == mac(1))
        });
        let vale = InterfaceAttach { port: "vale0:red".parse().unwrap(), host: true, mem_id: 0 };
        drop(host);
        wait::until("the port to go", || daemon.ports().is_empty());
        daemon.call(Request::Interface(InterfaceRequest::Attach(vale))).unwrap();
        assert_eq!(daemon.ports(), ["vale0:red", "vale0:red^"]);
        tcp(&lab.guests[0], &lab.home, "10.0.0.2", MEGABYTE);
        daemon
            .call(Request::Interface(InterfaceRequest::Detach(PortRef {
                port: "vale0:red".parse().unwrap(),
            })))
            .unwrap();
        assert_eq!(daemon.ports(), [""; 0]);
    });
}

/// Both sides of an interface by one descriptor, in the order of netmap's rings: the cable's first.
#[test]
fn a_program_with_both_sides_stands_between_the_host_and_its_cable() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let red = &lab.guests[0];
        veth(red, "red", "10.0.0.1/24");
        ip("addr add 10.0.0.2/24 dev red");
        let bind = || Bind::new("netmap:red".parse().unwrap());
        let both = Bind { host: Some(HostRings::default()), ..bind() };
        let both = match Descriptor::bind(&daemon.dir(), both) {
            Ok(both) => both,
            Err(error) => return harness::skip(&format!("root with BPF is needed: {error}")),
        };
        assert_eq!(daemon.ports(), ["netmap:red", "netmap:red^"]);
        assert!(!reaches(red, "10.0.0.2"), "nothing carries frames yet");
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let bridge = scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    both.poll(false, true, Duration::from_millis(20)).unwrap();
                    for (from, to) in [(0, 1), (1, 0)] {
                        while let Some(frame) = both.take(from) {
                            assert!(both.put(to, &frame, 0));
                        }
                    }
                    both.txsync().unwrap();
                }
            });
            wait::until("the host to answer", || reaches(red, "10.0.0.2"));
            udp(red, "10.0.0.1", 100);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            bridge.join().unwrap();
        });
        // Others hold the same rings; one side in a region of its own is none to hold with another.
        let nic = Descriptor::bind(&daemon.dir(), bind()).unwrap();
        assert_eq!(nic.binding().bound().mem_id, both.binding().bound().mem_id);
        let alone = Bind { exclusive: true, ..Bind::new("netmap:red^".parse().unwrap()) };
        assert!(Descriptor::bind(&daemon.dir(), alone).is_err());
        drop(both);
        wait::until("the host's side to go", || daemon.ports() == ["netmap:red"]);
        let both = Bind { host: Some(HostRings::default()), ..bind() };
        let both = Descriptor::bind(&daemon.dir(), both).unwrap();
        // One side is taken away: the descriptor is worth nothing any more.
        let host = PortRef { port: "netmap:red^".parse().unwrap() };
        daemon.call(Request::Port(PortRequest::Del(host))).unwrap();
        // Not while it waits for frames: those that have come before count more.
        assert!(both.poll(false, false, Duration::from_secs(5)).is_err());
        drop((both, nic));
        wait::until("all to go", || daemon.ports().is_empty());
    });
}
