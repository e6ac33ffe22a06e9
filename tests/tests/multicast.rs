//! IGMP and MLD snooping: members are the kernels of namespaces, and a Linux bridge gets the same
//! frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Output;
use std::time::Duration;

use client::Port;
use harness::daemon::{Daemon, Setup};
use harness::fabric::{Host, Underlay};
use harness::lab::{Lab, add, inside};
use harness::net::{Namespace, ip};
use harness::{tap, wait};
use packet::checksum::checksum;
use packet::{MacAddr, build, mcast};
use protocol::PortKind;
use serde_json::{Value, json};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
const GROUP6: Ipv6Addr = Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0, 7);

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn said(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.uvala(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    text(&output)
}

fn mdb(daemon: &Daemon) -> Vec<Value> {
    let text = said(daemon, &["mdb", "list", "vale0", "--json"]);
    let all: Value = serde_json::from_str(&text).expect("JSON");
    all.as_array().expect("a list").clone()
}

/// Ports with a member of this group, by name.
fn members(daemon: &Daemon, group: &str) -> Vec<String> {
    let of = |row: &&Value| row["type"] == "member" && row["group"] == group;
    let port = |row: &Value| row["port"].as_str().expect("a name").to_owned();
    let mut ports: Vec<String> = mdb(daemon).iter().filter(of).map(port).collect();
    ports.sort();
    ports
}

/// A socket that is a member of the group, by the namespace's only interface.
fn join(guest: &Namespace, group: IpAddr) -> UdpSocket {
    guest.within(|| match group {
        IpAddr::V4(group) => {
            let socket = UdpSocket::bind((group, 5000)).expect("a port");
            socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED).expect("a route");
            socket
        }
        IpAddr::V6(group) => {
            let socket = UdpSocket::bind((group, 5000)).expect("a port");
            socket.join_multicast_v6(&group, index("eth0")).expect("an interface");
            socket
        }
    })
}

/// The number of an interface of this thread's namespace.
fn index(name: &str) -> u32 {
    let show = std::process::Command::new("ip").args(["-o", "link", "show", name]).output();
    let text = String::from_utf8(show.expect("iproute2").stdout).expect("text");
    text.split(':').next().and_then(|number| number.parse().ok()).expect("a number")
}

fn send(guest: &Namespace, group: IpAddr) {
    guest.within(|| match group {
        IpAddr::V4(group) => {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
            socket.send_to(b"to the group", (group, 5000)).expect("a route");
        }
        IpAddr::V6(group) => {
            let socket = UdpSocket::bind("[::]:0").expect("a port");
            let to = std::net::SocketAddrV6::new(group, 5000, 0, index("eth0"));
            socket.send_to(b"to the group", to).expect("a route");
        }
    });
}

/// Whether a datagram arrives soon.
fn hears(socket: &UdpSocket) -> bool {
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("ours");
    socket.recv(&mut [0; 64]).is_ok()
}

/// How many frames for a group have come to a port before the one that the guest now sends to all.
fn seen(port: &mut Port, guest: &Namespace, group: IpAddr) -> usize {
    let to_all = Ipv4Addr::new(224, 0, 0, 251);
    send(guest, to_all.into());
    let [mac, end] =
        [group, to_all.into()].map(|group| mcast::group_mac(group).expect("a group").octets());
    let (mut frame, mut count) = (Vec::new(), 0);
    loop {
        assert!(port.recv_timeout(&mut frame, Some(wait::PATIENCE)).unwrap(), "it comes");
        match frame[..6] {
            ref dst if *dst == end => return count,
            ref dst => count += usize::from(*dst == mac),
        }
    }
}

#[test]
fn frames_of_a_group_reach_the_kernels_that_have_joined_it_and_no_other() {
    let Some(lab) = Lab::new(3) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue, green] = &lab.guests[..] else { panic!() };
        said(daemon, &["switch", "add", "vale0", "--mcast-snooping", "--mcast-querier"]);
        for (guest, name, address) in [
            (red, "vale0:red", "10.0.0.1/24"),
            (blue, "vale0:blue", "10.0.0.2/24"),
            (green, "vale0:green", "10.0.0.3/24"),
        ] {
            add(daemon, name, PortKind::Tap, inside(guest, address)).unwrap();
            guest.ip("route add 224.0.0.0/4 dev eth0");
        }
        let mut spy = daemon.open("vale0:spy");
        for group in [IpAddr::from(GROUP), IpAddr::from(GROUP6)] {
            let socket = join(red, group);
            let name = group.to_string();
            wait::until("a member", || members(daemon, &name) == ["vale0:red"]);
            // Until all hosts had time to answer, frames are flooded.
            wait::until("others to be spared", || {
                seen(&mut spy, blue, group);
                (0..5).for_each(|_| send(blue, group));
                assert!((0..5).all(|_| hears(&socket)), "{group}: red has joined");
                seen(&mut spy, blue, group) == 0
            });
            let before = daemon.stats("vale0:green").rx.frames;
            (0..100).for_each(|_| send(blue, group));
            assert!((0..100).all(|_| hears(&socket)));
            let more = daemon.stats("vale0:green").rx.frames - before;
            assert!(more < 50, "{group}: {more} frames for green");
            // Two members behind two ports, then none.
            let other = join(green, group);
            wait::until("two", || members(daemon, &name) == ["vale0:green", "vale0:red"]);
            send(blue, group);
            assert!(hears(&socket) && hears(&other));
            drop((socket, other));
            wait::until("none", || members(daemon, &name).is_empty());
            let lost = || daemon.stats("vale0:blue").drops.get("no_member").copied().unwrap_or(0);
            let before = lost();
            send(blue, group);
            wait::until("a drop", || lost() > before);
        }
        // Neighbours are found all the same.
        let local = |guest: &Namespace| {
            guest.within(|| {
                let show = ["-6", "-o", "addr", "show", "dev", "eth0", "scope", "link"];
                let show = std::process::Command::new("ip").args(show).output().expect("iproute2");
                let text = String::from_utf8(show.stdout).expect("text");
                let address = text.split_whitespace().find(|word| word.starts_with("fe80"));
                address.and_then(|it| it.split('/').next()).expect("an address").to_owned()
            })
        };
        let to = local(green);
        let listener = green.within(|| UdpSocket::bind("[::]:6000").expect("a port"));
        blue.within(|| {
            let socket = UdpSocket::bind("[::]:0").expect("a port");
            let to = std::net::SocketAddrV6::new(to.parse().expect("IPv6"), 6000, 0, index("eth0"));
            socket.send_to(b"found", to).expect("a route");
        });
        assert!(hears(&listener), "a neighbour by its solicited-node group");
        let metrics = said(daemon, &["metrics"]);
        assert!(metrics.contains("uvala_switch_mdb_queriers{switch=\"vale0\"} 2"), "{metrics}");
        assert!(metrics.contains("uvala_switch_mdb_messages_total"), "{metrics}");
    });
}

/// A frame from station `host` with an IGMP message.
fn igmp(host: u8, dst: Ipv4Addr, mut message: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let packet = build::ipv4(2, Ipv4Addr::new(10, 0, 0, host), dst, &message);
    ethernet(host, dst, &packet)
}

fn ethernet(host: u8, dst: Ipv4Addr, packet: &[u8]) -> Vec<u8> {
    let src = MacAddr::new([2, 0, 0, 0, 0, host]);
    build::ethernet(mcast::group_mac(dst.into()).expect("a group"), src, 0x0800, packet)
}

fn with_group(head: &[u8], group: Ipv4Addr) -> Vec<u8> {
    [head, &group.octets()].concat()
}

fn data(host: u8, dst: Ipv4Addr) -> Vec<u8> {
    ethernet(host, dst, &build::ipv4(17, Ipv4Addr::new(10, 0, 0, host), dst, &[host; 40]))
}

/// The four ports of a bridge.
trait Bridge {
    fn send(&mut self, port: usize, frame: &[u8]);
    /// Whether this frame has come to a port.
    fn got(&mut self, port: usize, frame: &[u8]) -> bool;
}

struct Uvala([Port; 4]);

impl Bridge for Uvala {
    fn send(&mut self, port: usize, frame: &[u8]) {
        assert!(self.0[port].send_timeout(frame, Some(wait::PATIENCE)).unwrap());
    }

    fn got(&mut self, port: usize, frame: &[u8]) -> bool {
        let (mut bytes, mut got) = (Vec::new(), false);
        while self.0[port].try_recv(&mut bytes).unwrap() {
            got |= bytes == frame;
        }
        got
    }
}

/// A bridge of the kernel, with a TAP for each port.
struct Linux([OwnedFd; 4]);

/// Bytes of the virtio-net header in front of a frame.
const VNET: usize = 10;

impl Linux {
    fn new() -> Self {
        ip("link add br0 type bridge mcast_snooping 1 mcast_querier 0 forward_delay 0");
        ip("link set br0 up");
        Self([0, 1, 2, 3].map(|port| {
            let (name, header) = (format!("t{port}"), i32::try_from(VNET).expect("short"));
            let tap = tap::make(&name, header, false);
            ip(&format!("link set {name} master br0 up"));
            tap
        }))
    }
}

impl Bridge for Linux {
    fn send(&mut self, port: usize, frame: &[u8]) {
        let all = [&[0; VNET][..], frame].concat();
        assert_eq!(rustix::io::write(&self.0[port], &all), Ok(all.len()));
    }

    fn got(&mut self, port: usize, frame: &[u8]) -> bool {
        let (mut bytes, mut got) = ([0; 2048], false);
        while let Ok(count) = rustix::io::read(&self.0[port], &mut bytes) {
            got |= bytes[VNET..count] == *frame;
        }
        got
    }
}

/// The ports that get each frame of a story, in order. Pauses are for what ends with time.
fn story(bridge: &mut impl Bridge) -> Vec<(&'static str, Vec<usize>)> {
    let local = Ipv4Addr::new(224, 0, 0, 251);
    let (all, v3) = (Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::new(224, 0, 0, 22));
    let query = |group: Ipv4Addr, dst| igmp(9, dst, with_group(&[0x11, 1, 0, 0], group));
    let join_v3 = [0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0];
    let pause = |ms| Some(Duration::from_millis(ms));
    let steps = [
        ("data before a query", 0, data(1, GROUP), None),
        ("a query", 3, query(Ipv4Addr::UNSPECIFIED, all), pause(500)),
        ("data without members", 0, data(1, GROUP), None),
        ("a report", 1, igmp(2, GROUP, with_group(&[0x16, 0, 0, 0], GROUP)), None),
        ("data with a member", 0, data(1, GROUP), None),
        ("data of the member", 1, data(2, GROUP), None),
        ("data of a local group", 0, data(1, local), None),
        ("a report of version 3", 2, igmp(3, v3, with_group(&join_v3, GROUP)), None),
        ("data with two members", 0, data(1, GROUP), None),
        (
            "a leave",
            1,
            igmp(2, Ipv4Addr::new(224, 0, 0, 2), with_group(&[0x17, 0, 0, 0], GROUP)),
            None,
        ),
        ("data after the leave", 0, data(1, GROUP), None),
        ("a query of the group", 3, query(GROUP, GROUP), None),
        ("a report again", 2, igmp(3, GROUP, with_group(&[0x16, 0, 0, 0], GROUP)), pause(2500)),
        ("data after the time-out", 0, data(1, GROUP), None),
    ];
    let mut told = Vec::new();
    for (what, from, frame, pause) in steps {
        bridge.send(from, &frame);
        std::thread::sleep(Duration::from_millis(200));
        told.push((what, (0..4).filter(|&port| bridge.got(port, &frame)).collect()));
        pause.into_iter().for_each(std::thread::sleep);
    }
    told
}

/// A Linux bridge gets the same frames: each must come out of the same ports.
#[test]
fn groups_are_forwarded_as_by_a_linux_bridge() {
    let Some(place) = Namespace::new() else { return };
    let (linux, daemon) = (place.within(|| story(&mut Linux::new())), Daemon::start());
    said(&daemon, &["switch", "add", "vale0", "--mcast-snooping"]);
    let ports = [0, 1, 2, 3].map(|port| daemon.open(&format!("vale0:p{port}")));
    let ours = story(&mut Uvala(ports));
    assert_eq!(ours, linux);
    let of = |what: &str| ours.iter().find(|it| it.0 == what).map(|it| it.1.clone());
    assert_eq!(of("data with a member"), Some(vec![1, 3]), "{ours:?}");
    assert_eq!(of("data after the time-out"), Some(vec![2, 3]), "{ours:?}");
}

/// Two switches that snoop, of which one asks, with the source 0.0.0.0. The tunnel's port is a
/// router port all the same.
#[test]
fn a_member_on_another_host_is_reached_through_the_tunnel() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(one), Some(two)) = (underlay.host(1, &[2]), underlay.host(2, &[1])) else { return };
    let guests = [&one, &two].map(|host| {
        let address = format!("192.168.7.{}/24", host.number);
        let guest = host.station(&address, None).expect("as before");
        guest.ip("route add 224.0.0.0/4 dev eth0");
        guest
    });
    let [first, second] = &guests;
    one.done(&["switch", "set", "vale0", "--mcast-snooping", "--mcast-querier"]);
    two.done(&["switch", "set", "vale0", "--mcast-snooping"]);
    let group = IpAddr::from(GROUP);
    let socket = join(first, group);
    let querier = |host: &Host, port: Value| {
        let is_it = |row: &Value| {
            row["type"] == "querier" && row["family"] == "ipv4" && row["port"] == port
        };
        mdb(&host.daemon).iter().any(is_it)
    };
    wait::until("a querier", || querier(&one, Value::Null) && querier(&two, json!("vale0:fabric")));
    wait::until("a member", || members(&one.daemon, "239.1.1.1") == ["vale0:station"]);
    let mut spy = two.daemon.open("vale0:spy");
    wait::until("others to be spared", || {
        seen(&mut spy, second, group);
        (0..5).for_each(|_| send(second, group));
        assert!((0..5).all(|_| hears(&socket)), "the member is reached meanwhile");
        seen(&mut spy, second, group) == 0
    });
    let router = json!({ "type": "router", "port": "vale0:fabric" });
    assert!(mdb(&two.daemon).contains(&router), "{:?}", mdb(&two.daemon));
}

#[test]
fn static_groups_and_settings_stay_and_what_cannot_be_is_refused() {
    let mut daemon = Daemon::start();
    said(&daemon, &["switch", "add", "vale0", "--mcast-snooping"]);
    said(&daemon, &["port", "add", "vale0:a", "--mcast-router=off", "--mcast-fast-leave"]);
    said(&daemon, &["mdb", "add", "vale0:a", "239.1.1.1"]);
    said(&daemon, &["mdb", "add", "vale0:a", "ff15::7", "--vlan", "10"]);
    said(&daemon, &["mdb", "add", "vale0:a", "01:00:5e:02:02:02"]);
    let doctor = text(&daemon.uvala(&["doctor"]));
    assert!(
        doctor.contains("no querier is heard") && doctor.contains("--mcast-querier"),
        "{doctor}"
    );
    daemon.terminate();
    daemon.restart();
    assert_eq!(members(&daemon, "239.1.1.1"), ["vale0:a"], "without a client");
    let _a = daemon.open("vale0:a");
    assert_eq!(members(&daemon, "239.1.1.1"), ["vale0:a"]);
    assert_eq!(members(&daemon, "01:00:5e:02:02:02"), ["vale0:a"]);
    let settings = daemon.port("vale0:a").unwrap().settings;
    let groups: Vec<String> =
        settings.mcast_groups.unwrap_or_default().iter().map(ToString::to_string).collect();
    assert_eq!(groups, ["239.1.1.1", "01:00:5e:02:02:02", "ff15::7@10"]);
    assert_eq!(settings.mcast_fast_leave, Some(true));
    said(&daemon, &["mdb", "del", "vale0:a", "239.1.1.1"]);
    assert!(members(&daemon, "239.1.1.1").is_empty());
    let listed = said(&daemon, &["mdb", "list", "vale0"]);
    assert!(listed.contains("01:00:5e:02:02:02") && listed.contains("never"), "{listed}");
    for (args, why) in [
        (&["mdb", "del", "vale0:a", "239.1.1.1"][..], "no static entry 239.1.1.1"),
        (&["mdb", "add", "vale0:a", "224.0.0.5"], "do not reach every host"),
        (&["mdb", "add", "vale0:a", "10.0.0.1"], "expected"),
        (&["port", "set", "vale0:a", "--mcast-max-groups", "5000"], "a number from 0 to 4096"),
        (&["switch", "set", "vale0", "--forwarding", "hub"], "choose learning"),
        (
            &["switch", "add", "vale1", "--forwarding", "chain", "--mcast-snooping"],
            "choose learning",
        ),
    ] {
        let refused = daemon.uvala(args);
        assert!(!refused.status.success() && text(&refused).contains(why), "{}", text(&refused));
    }
}

/// `uvala apply` makes what a file says, and changes what is there.
#[test]
fn apply_changes_the_settings_of_groups() {
    let daemon = Daemon::start();
    let file = daemon.dir().join("groups.toml");
    for (snooping, groups) in [("true", "[\"239.1.1.1\", \"239.1.1.2@7\"]"), ("false", "[]")] {
        let text = format!(
            "[switch.vale0]\nmcast_snooping = {snooping}\nbpdu_filter = true\n\
             [switch.vale0.port.a]\nmcast_groups = {groups}\nmcast_router = \"on\"\n"
        );
        std::fs::write(&file, text).expect("a folder");
        said(&daemon, &["apply", file.to_str().expect("UTF-8")]);
        let switch = daemon.switch("vale0").expect("a switch");
        assert_eq!(switch.mcast_snooping.to_string(), snooping);
        assert_eq!(switch.port_settings.bpdu_filter, Some(true));
        let settings = daemon.port("vale0:a").expect("a port").settings;
        let count = settings.mcast_groups.map_or(0, |groups| groups.len());
        assert_eq!(count, if snooping == "true" { 2 } else { 0 });
        assert_eq!(settings.mcast_router, Some(protocol::McastRouter::On));
    }
}

/// The file says the same, and a trace says where a frame of a group goes.
#[test]
fn a_file_turns_snooping_on_and_a_trace_says_where_frames_go() {
    let daemon = Setup::new(
        "[switch.vale0]\nmcast_snooping = true\nmcast_querier = true\nworkers = \"all\"\n\
         [switch.vale0.port.a]\nmcast_groups = [\"239.1.1.1\"]\n\
         [switch.vale0.port.b]\nmcast_router = \"on\"\nmcast_max_groups = 9\n\
         [switch.vale0.port.c]\n",
    )
    .start();
    let _ports = ["a", "b", "c"].map(|port| daemon.open(&format!("vale0:{port}")));
    let trace = |group: &str| {
        let frame = format!("udp 10.0.0.9:1 > {group}:2");
        let dst = mcast::group_mac(group.parse().expect("IP")).expect("a group").to_string();
        let args = ["trace", "vale0:c", &frame, "--src", "02:00:00:00:00:09", "--dst", &dst];
        said(&daemon, &args)
    };
    assert!(
        trace("239.1.1.1").contains("because the VLAN has no querier"),
        "{}",
        trace("239.1.1.1")
    );
    wait::until("hosts to have answered", || trace("239.1.1.1").contains("to its members"));
    let known = trace("239.1.1.1");
    assert!(known.contains("sent to vale0:a") && known.contains("sent to vale0:b"), "{known}");
    let unknown = trace("239.1.1.2");
    assert!(unknown.contains("no port has a member") && !unknown.contains("vale0:a"), "{unknown}");
    assert!(trace("224.0.0.251").contains("whatever members say"));
}
