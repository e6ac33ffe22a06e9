//! `uvala-evpn`: hosts that are namespaces, each with a daemon, a GoBGP and the process between.
//!
//! ```text
//!   station ── TAP ── switch ── vxlan ── 10.0.0.N ──┬── underlay
//!                       ▲                           │
//!                  uvala-evpn ◄─ gRPC ─► gobgpd ────┘  BGP
//! ```

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use client::capture::Capture;
use client::{Port, Stop};
use harness::evpn::{Member, Part, log_file, members, start_evpn};
use harness::fabric::{FABRIC, Underlay, stations};
use harness::lab;
use harness::net::{Namespace, tcp};
use harness::process::{Owned, Scratch};
use harness::wait;
use packet::MacAddr;
use packet::build::{arp, ethernet};
use protocol::CaptureOf;
use rustix::process::Signal;

const MEGABYTE: usize = 1 << 20;

#[test]
fn stations_of_other_hosts_are_known_before_they_send_there_and_not_flooded() {
    let Some((_underlay, mut all)) = members([1, 2, 3]) else { return };
    let [(one, first), (two, second), (three, third)] = &mut all[..] else { panic!("three") };
    assert_eq!(one.remotes(), ["10.0.0.2", "10.0.0.3"]);
    let shown = one.host.done(&["port", "show", FABRIC]);
    assert!(shown.contains("from a routing daemon"), "{shown}");
    assert!(shown.contains("extern_learn     2 stations"), "{shown}");
    // A second process for the port waits, and takes nothing back when it ends.
    let mut other = start_evpn(&one.host, &one.scratch, "20");
    wait::until("a refusal", || one.log().contains("end it first"));
    other.signal(Signal::TERM);
    assert!(other.wait().success(), "{}", one.log());
    assert!(one.remotes().len() == 2 && one.knows("02:00:00:00:00:02"), "{}", one.log());
    // What two exchange does not reach the third, from the first frame to a station on.
    let before = three.host.stats().tx.frames;
    tcp(first, second, "192.168.7.2", 4 * MEGABYTE);
    let more = three.host.stats().tx.frames - before;
    assert!(more < 100, "{more} frames, which are ARP and what stations say of themselves");
    tcp(third, first, "192.168.7.1", MEGABYTE);
    // A host that leaves takes its routes along, and what was set for it.
    two.evpn.signal(Signal::TERM);
    assert!(two.evpn.wait().success(), "{}", two.log());
    assert_eq!(two.remotes(), [""; 0]);
    assert!(!two.knows("02:00:00:00:00:01"));
    wait::until("the remote is gone", || one.remotes() == ["10.0.0.3"]);
    assert!(!one.knows("02:00:00:00:00:02") && one.knows("02:00:00:00:00:03"));
    tcp(third, first, "192.168.7.1", MEGABYTE);
    // One whose switch is gone for the hold time gets no floods any more.
    three.restart_evpn("1");
    three.host.daemon.kill();
    wait::until("no remote is left", || one.remotes().is_empty());
}

fn ping(from: &Namespace, to: &str) {
    let output = from.within(|| {
        Command::new("ping").args(["-n", "-c", "1", "-W", "5", to]).output().expect("ping")
    });
    assert!(output.status.success(), "{to}: {output:?}");
}

/// Frames by which stations ask all others for an address, among those that a capture has, and
/// whether a long one is among these.
fn requests(eye: &mut Capture) -> (usize, bool) {
    let (mut count, mut has_long) = (0, false);
    let taken = eye.take(|seen| {
        let head: Vec<u8> = seen.frame.parts().flatten().take(18).copied().collect();
        let kind = if head[12..14] == [0x81, 0] { &head[16..] } else { &head[12..14] };
        let is_arp = head[..6] == [0xff; 6] && kind == [8, 6];
        let is_nd = head[..3] == [0x33, 0x33, 0xff];
        count += usize::from(is_arp || is_nd);
        has_long |= seen.frame.len() > 1000;
        true
    });
    taken.expect("the daemon is there");
    (count, has_long)
}

#[test]
fn the_request_for_a_known_station_is_answered_here_and_crosses_no_tunnel() {
    let Some((_underlay, all)) = members([1, 2]) else { return };
    let [(one, first), (two, second)] = &all[..] else { panic!("two") };
    for (number, station) in [(1, first), (2, second)] {
        station.ip(&format!("addr add fd07::{number}/64 dev eth0 nodad"));
    }
    let stop = Stop::new().expect("an eventfd");
    let mut eye = eye_of(two, &stop);
    for to in ["192.168.7.2", "fd07::2"] {
        ping(first, to);
        wait::until(to, || one.neighbours().contains(&to.to_owned()));
    }
    wait::until("the first at the second", || two.neighbours().contains(&"192.168.7.1".to_owned()));
    wait::until("the requests that no port could answer", || requests(&mut eye).0 > 0);
    let before = one.host.tunnel().neigh.expect("it is on").suppressed;
    for _ in 0..5 {
        for to in ["192.168.7.2", "fd07::2"] {
            first.ip("neigh flush dev eth0");
            ping(first, to);
        }
    }
    let crossed = requests_until_now(first, "192.168.7.2", &mut eye);
    assert_eq!(crossed, 0, "{:?}", one.host.tunnel());
    let answered = one.host.tunnel().neigh.expect("it is on").suppressed - before;
    assert!(answered >= 10, "{answered}");
    assert!(one.host.done(&["metrics"]).contains("uvala_vxlan_neigh_suppressed_total{"));
    // It is asked for as before when it is gone there.
    lab::delete(&two.host.daemon, "vale0:station");
    wait::until("a withdrawal", || one.neighbours().is_empty());
    first.ip("neigh flush dev eth0");
    first.within(|| drop(Command::new("ping").args(["-c1", "-W1", "192.168.7.2"]).output()));
    wait::until("a request at the other host", || requests(&mut eye).0 > 0);
}

/// How many requests a capture at the other host has: those before a long frame, which `station`
/// sends to this address now.
fn requests_until_now(station: &Namespace, to: &str, eye: &mut Capture) -> usize {
    let ping = || Command::new("ping").args(["-c1", "-s1200", to]).output();
    station.within(ping).expect("ping");
    let mut crossed = 0;
    wait::until("a long frame", || {
        let (count, has_long) = requests(eye);
        crossed += count;
        has_long
    });
    crossed
}

/// What enters the switch from the port's remotes.
fn eye_of(member: &Member, stop: &Stop) -> Capture {
    let of = CaptureOf { entering: true, leaving: false };
    let fabric = FABRIC.parse().expect("a name");
    Capture::open(Some(&member.host.daemon.dir()), fabric, of, 1024, stop).expect("it may")
}

#[test]
fn a_request_in_the_network_of_a_vlan_is_answered_there_and_in_no_other() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let both = ["--vlan=trunk:10,20", "--vlan-vni=10:1010,20:1020"];
    let members = [1, 2].map(|number| Member::of_vlans(&underlay, number, both));
    let [Some(mut one), Some(two)] = members else { return };
    let (Some(ones), Some(twos)) = (stations(&one.host), stations(&two.host)) else { return };
    let to = "192.168.7.2";
    wait::until("the addresses of both VLANs", || {
        ask_all([&ones, &twos]);
        [10, 20].iter().all(|vlan| one.has_neighbour_in(to, *vlan))
    });
    let stop = Stop::new().expect("an eventfd");
    let mut eye = eye_of(&two, &stop);
    ping(&ones[0], to);
    requests_until_now(&ones[1], to, &mut eye);
    let before = one.host.tunnel().neigh.expect("it is on").suppressed;
    let ask_again = |station: &Namespace| {
        station.ip("neigh flush dev eth0");
        ping(station, to);
    };
    (0..5).for_each(|_| ones.iter().for_each(ask_again));
    assert_eq!(requests_until_now(&ones[0], to, &mut eye), 0, "{:?}", one.host.tunnel());
    let answered = one.host.tunnel().neigh.expect("it is on").suppressed - before;
    assert!(answered >= 10, "{answered}");
    // A process that follows another names what is left, and the rest goes with the hold time.
    one.evpn.kill();
    lab::delete(&two.host.daemon, "vale0:twenty");
    wait::until("a withdrawal", || one.gobgp("global rib -a evpn").matches(to).count() == 1);
    assert!([10, 20].iter().all(|vlan| one.has_neighbour_in(to, *vlan)));
    one.restart_evpn("1");
    wait::until("the sweep", || !one.has_neighbour_in(to, 20));
    assert!(one.has_neighbour_in(to, 10), "{}", one.log());
    ask_again(&ones[0]);
    ones[1].ip("neigh flush dev eth0");
    ones[1].within(|| drop(Command::new("ping").args(["-c1", "-W1", to]).output()));
    assert!(requests_until_now(&ones[0], to, &mut eye) > 0);
}

#[test]
fn a_port_that_is_made_again_gets_its_remotes_stations_and_addresses_again() {
    let Some((_underlay, all)) = members([1, 2]) else { return };
    let [(one, first), (_, _)] = &all[..] else { panic!("two") };
    ping(first, "192.168.7.2");
    let address = "192.168.7.2".to_owned();
    wait::until("the address", || one.neighbours().contains(&address));
    one.host.done(&["port", "del", FABRIC]);
    let add = ["port", "add", FABRIC, "--kind=vxlan", "--vni=100", "--local=10.0.0.1"];
    one.host.done(&[&add[..], &["--learning=false", "--neigh-suppress"]].concat());
    wait::until("the remote", || one.remotes() == ["10.0.0.2"]);
    wait::until("the station", || one.knows("02:00:00:00:00:02"));
    wait::until("the address again", || one.neighbours().contains(&address));
    ping(first, "192.168.7.2");
}

#[test]
fn a_process_that_is_restarted_at_once_waits_for_the_end_of_the_one_before_it() {
    let Some((_underlay, mut all)) = members([1]) else { return };
    let (mut one, _station) = all.pop().expect("one");
    let speaks = |member: &Member| member.log().matches("route distinguisher").count();
    wait::until("the first", || speaks(&one) == 1);
    let next = start_evpn(&one.host, &one.scratch, "20");
    // Each try is some calls, for whose answers it sleeps.
    wait::until("tries of the second", || sleeps(next.pid()) > 30);
    one.evpn.signal(Signal::HUP);
    assert!(one.evpn.wait().success());
    one.evpn = next;
    wait::until("the second", || speaks(&one) == 2);
    assert!(!one.log().contains("tells the stations"), "{}", one.log());
}

/// How often a process has slept.
fn sleeps(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("a line").trim().parse().expect("a number")
}

#[test]
fn the_process_is_confined_once_it_speaks() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let Some(one) = Member::new(&underlay, 1, &[]) else { return };
    wait::until("it speaks", || one.log().contains("route distinguisher"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", one.evpn.pid()));
    let status = status.expect("it runs");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect(name);
        line.split_whitespace().nth(1).expect(name).to_owned()
    };
    assert_eq!((field("Seccomp:"), field("NoNewPrivs:")), ("2".to_owned(), "1".to_owned()));
    assert_eq!(field("Threads:"), "1");
    assert!(!one.log().contains("denied"), "{}", one.log());
}

/// Pings all the time while `job` runs; returns how many were not answered.
fn lost_while(from: &Namespace, to: &str, job: impl FnOnce()) -> usize {
    let mut ping = from.visit(|| {
        let mut command = Command::new("ping");
        command.args(["-n", "-i", "0.02", to]).stdout(Stdio::piped());
        Owned::spawn(&mut command)
    });
    let mut output = ping.stdout();
    job();
    ping.signal(Signal::INT);
    ping.wait();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut output, &mut text).expect("text");
    let counts = text.lines().find(|line| line.contains("packets transmitted")).expect(&text);
    let count = |at: usize| -> usize {
        let word = counts.split(", ").nth(at).and_then(|part| part.split_whitespace().next());
        word.expect(counts).parse().expect(counts)
    };
    // The last ones may be on their way.
    (count(0) - count(1)).saturating_sub(5)
}

#[test]
fn a_process_that_is_killed_and_started_again_loses_no_frame_of_a_flow_by_that() {
    let Some((_underlay, mut all)) = members([1, 2]) else { return };
    let (mut two, second) = all.pop().expect("two");
    let (mut one, first) = all.pop().expect("two");
    let lost = lost_while(&first, "192.168.7.2", || {
        one.restart_evpn("20");
        two.gobgpd.kill();
        two.restart_gobgpd();
        // The session is there again, and the routes.
        wait::until("the session", || one.gobgp("neighbor").contains("Establ"));
        wait::until("routes of both", || {
            two.gobgp("global rib -a evpn").matches("multicast").count() == 2
        });
    });
    assert_eq!(lost, 0, "{}\n{}", one.log(), two.log());
    wait::until("the stations", || {
        one.knows("02:00:00:00:00:02") && two.knows("02:00:00:00:00:01")
    });
    // The switch itself forgets what it has learned. What it was told, it is told again.
    two.host.home.visit(|| two.host.daemon.kill());
    two.host.home.visit(|| two.host.daemon.restart());
    assert_eq!(two.remotes(), ["10.0.0.1"], "it has kept its remotes");
    second.die();
    let again = two.host.station("192.168.7.2/24", Some("02:00:00:00:00:02"));
    let second = again.expect("a namespace");
    wait::until("stations at the new daemon", || two.knows("02:00:00:00:00:01"));
    tcp(&first, &second, "192.168.7.2", MEGABYTE);
    // A host whose process ends so that another follows leaves all as it is.
    one.evpn.signal(Signal::HUP);
    assert!(one.evpn.wait().success());
    assert_eq!((one.remotes().len(), one.knows("02:00:00:00:00:02")), (1, true));
    one.restart_evpn("20");
    lab::delete(&two.host.daemon, "vale0:station");
    wait::until("a withdrawal", || !one.knows("02:00:00:00:00:02"));
}

/// Waits until two hosts have each other's routes and stations again.
fn reconcile(one: &Member, two: &Member) {
    wait::until("routes of both", || {
        let ribs = [one, two].map(|it| it.gobgp("global rib -a evpn"));
        ribs.iter().all(|rib| rib.matches("multicast").count() == 2)
    });
    wait::until("the stations", || {
        one.knows("02:00:00:00:00:02") && two.knows("02:00:00:00:00:01")
    });
}

#[test]
fn parts_that_end_and_start_in_any_order_lose_no_frame_of_a_flow_by_that() {
    let Some((_underlay, mut all)) = members([1, 2]) else { return };
    let (mut two, second) = all.pop().expect("two");
    let (one, first) = all.pop().expect("two");
    let (there, back) = ("192.168.7.2", "192.168.7.1");
    ping(&first, there);
    for order in [[Part::Speaker, Part::Process], [Part::Process, Part::Speaker]] {
        let lost = lost_while(&first, there, || {
            order.iter().for_each(|part| two.kill(*part));
            order.iter().for_each(|part| two.start(*part));
            reconcile(&one, &two);
        });
        assert_eq!(lost, 0, "{}\n{}", one.log(), two.log());
        // The daemon is another one when the first of them starts: it has its remotes, and floods.
        order.iter().for_each(|part| two.kill(*part));
        two.host.home.visit(|| two.host.daemon.replace());
        assert_eq!((two.remotes().len(), two.knows("02:00:00:00:00:01")), (1, false));
        let lost = lost_while(&second, back, || {
            order.iter().for_each(|part| two.start(*part));
            reconcile(&one, &two);
        });
        assert_eq!(lost, 0, "{}\n{}", one.log(), two.log());
        // And one that is replaced while they are there is told again what it has forgotten.
        two.host.home.visit(|| two.host.daemon.replace());
        let lost = lost_while(&first, there, || reconcile(&one, &two));
        assert_eq!(lost, 0, "{}\n{}", one.log(), two.log());
    }
    // What does not come back counts for its time only, at both.
    two.restart_evpn("1");
    two.kill(Part::Speaker);
    wait::until("the remote of a speaker that is gone", || two.remotes().is_empty());
    assert!(!two.knows("02:00:00:00:00:01"));
    wait::until("the host whose speaker is gone", || one.remotes().is_empty());
    assert!(!one.knows("02:00:00:00:00:02"));
}

#[test]
fn a_station_that_moves_is_announced_with_a_higher_number_and_found_by_the_third() {
    let Some((_underlay, all)) = members([1, 2, 3]) else { return };
    let [(one, first), (two, _), (three, _)] = &all[..] else { panic!("three") };
    let mac = "02:00:00:00:00:99";
    lab::delete(&two.host.daemon, "vale0:station");
    lab::delete(&three.host.daemon, "vale0:station");
    let guest = two.host.station("192.168.7.9/24", Some(mac)).expect("a namespace");
    wait::until("the station at two hosts", || one.knows(mac) && three.knows(mac));
    tcp(first, &guest, "192.168.7.9", MEGABYTE);
    // There it is silent from now on, and here it speaks.
    guest.within(|| std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").expect("ours"));
    guest.ip("addr flush dev eth0");
    let guest = three.host.station("192.168.7.9/24", Some(mac)).expect("a namespace");
    let routes = |member: &Member| {
        let rib = member.gobgp("global rib -a evpn");
        let of_mac = rib.lines().filter(|line| line.contains(mac) && line.contains("ip:<nil>"));
        of_mac.map(str::to_owned).collect::<Vec<_>>()
    };
    wait::until("the number", || {
        guest.within(|| {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("any port");
            // It asks for the address of the other.
            let _ = socket.send_to(b"here", "192.168.7.1:9");
        });
        match &routes(one)[..] {
            [route] => route.contains("10.0.0.3") && route.contains("mac-mobility: 1"),
            _ => false,
        }
    });
    wait::until("the station at the second", || two.knows(mac));
    tcp(first, &guest, "192.168.7.9", MEGABYTE);
    tcp(&guest, first, "192.168.7.1", MEGABYTE);
}

/// A port of a station that is migrated, and what the station says where it goes on: the reverse
/// ARP that QEMU sends, or a port of kind vhost-user for it.
fn arrive(member: &Member, mac: MacAddr) -> Port {
    let mut port = member.host.daemon.open("vale0:vm");
    let (none, zero) = (Ipv4Addr::UNSPECIFIED, MacAddr::ZERO);
    let reverse = arp(3, (mac, none), (zero, none));
    port.send(&ethernet(MacAddr::BROADCAST, mac, 0x8035, &reverse)).expect("the daemon is there");
    port
}

/// Takes frames until one for this station comes.
fn await_frame(port: &mut Port, mac: MacAddr) {
    let mut frame = Vec::new();
    wait::until("a frame for the station", || {
        let has_come = port.recv_timeout(&mut frame, Some(Duration::from_millis(1)));
        has_come.expect("the daemon is there") && frame[..6] == mac.octets()
    });
}

#[test]
fn a_station_that_is_migrated_gets_its_frames_at_the_new_place() {
    let Some((_underlay, all)) = members([1, 2, 3]) else { return };
    let [(one, first), (two, _), (three, _)] = &all[..] else { panic!("three") };
    let mut times = Vec::new();
    // Stations of their own, for one that moves again and again is a duplicate.
    for last in 0x90..0x9a {
        let (mac, ip) = (MacAddr::new([2, 0, 0, 0, 0, last]), format!("192.168.7.{last}"));
        first.ip(&format!("neigh add {ip} lladdr {mac} dev eth0 nud permanent"));
        let mut before = arrive(two, mac);
        // A host that has not heard of it takes it for new, and two hosts with a new station at one
        // time settle by their addresses whose it is (RFC 7432, section 15).
        let station = mac.to_string();
        wait::until("the station", || one.knows(&station) && three.knows(&station));
        let mut flow = first.visit(|| {
            let mut command = Command::new("ping");
            Owned::spawn(command.args(["-n", "-i", "0.005", &ip]).stdout(Stdio::null()))
        });
        await_frame(&mut before, mac);
        // The port that it has left is there for some time.
        let start = Instant::now();
        await_frame(&mut arrive(three, mac), mac);
        times.push(start.elapsed());
        flow.kill();
    }
    times.sort();
    println!("it has frames {:?} after it is there, {:?} at most", times[5], times[9]);
}

/// Makes stations ask for an address that none of them has.
fn ask_all(stations: [&[Namespace; 2]; 2]) {
    for station in stations.into_iter().flatten() {
        station.within(|| {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("any port");
            let _ = socket.send_to(b"here", "192.168.7.99:9");
        });
    }
}

#[test]
fn each_vlan_with_a_network_of_its_own_has_routes_floods_and_stations_of_its_own() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let both = ["--vlan=trunk:10,20", "--vlan-vni=10:1010,20:1020"];
    let one = Member::of_vlans(&underlay, 1, both);
    let two = Member::of_vlans(&underlay, 2, ["--vlan=trunk:10", "--vlan-vni=10:1010"]);
    let (Some(mut one), Some(two)) = (one, two) else { return };
    let there = (stations(&one.host), stations(&two.host));
    let (Some(ones), Some(twos)) = there else { return };
    let macs = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
    let know_each_other = |one: &Member, two: &Member, vlan: u16| {
        ask_all([&ones, &twos]);
        one.knows_in(macs[1], vlan) && two.knows_in(macs[0], vlan)
    };
    wait::until("VLAN 10 of each at the other", || know_each_other(&one, &two, 10));
    wait::until("routes of VLAN 20", || {
        let rib = one.gobgp("global rib -a evpn");
        rib.contains("10.0.0.1:1020") && rib.contains("65001:1020") && rib.contains("65001:1010")
    });
    assert_eq!(one.floods(), ["10.0.0.2 [10]"]);
    assert_eq!(two.floods(), ["10.0.0.1 [10]"]);
    tcp(&ones[0], &twos[0], "192.168.7.2", MEGABYTE);
    assert!(!one.knows_in(macs[1], 20) && !two.knows_in(macs[0], 20));
    assert_eq!(two.host.dropped("vxlan_vni"), 0, "floods of VLAN 20 are not for this host");
    // The other host gets the second VLAN, while the first goes on.
    let lost = lost_while(&ones[0], "192.168.7.2", || {
        two.host.done(&["port", "set", FABRIC, both[0], "--add-vlan-vni=20:1020"]);
        wait::until("VLAN 20 of each at the other", || know_each_other(&one, &two, 20));
    });
    assert_eq!(lost, 0, "{}\n{}", one.log(), two.log());
    assert_eq!([one.floods(), two.floods()], [["10.0.0.2 [10, 20]"], ["10.0.0.1 [10, 20]"]]);
    tcp(&ones[1], &twos[1], "192.168.7.2", MEGABYTE);
    // One loses it again.
    one.host.done(&["port", "set", FABRIC, "--del-vlan-vni=20"]);
    wait::until("a withdrawal of VLAN 20", || !two.knows_in(macs[0], 20));
    wait::until("floods of VLAN 20 end", || two.floods() == ["10.0.0.1 [10]"]);
    assert!(know_each_other(&one, &two, 10) && !one.knows_in(macs[1], 20));
    tcp(&ones[0], &twos[0], "192.168.7.2", MEGABYTE);
    one.evpn.signal(Signal::TERM);
    assert!(one.evpn.wait().success(), "{}", one.log());
    assert_eq!(one.remotes(), [""; 0]);
    wait::until("the host is gone", || two.remotes().is_empty());
}

/// Between namespaces the kernel leaves checksums inside to a card that is not there.
fn finish_checksums(home: &Namespace, interface: &str) {
    home.within(|| {
        let off = Command::new("ethtool").args(["-K", interface, "tx", "off"]).output();
        assert!(off.expect("ethtool").status.success(), "apt-get install ethtool");
    });
}

/// A host whose bridge and vxlan device are the kernel's, with FRR.
struct FrrHost {
    home: Namespace,
    _processes: [Owned; 2],
    _scratch: Scratch,
}

impl FrrHost {
    fn new(underlay: &Underlay, number: u8, neighbour: u8) -> Option<Self> {
        let (home, scratch) = (underlay.home(number)?, Scratch::new("frr"));
        for words in [
            &format!(
                "link add vx100 type vxlan id 100 local 10.0.0.{number} dstport 4789 nolearning"
            ),
            "link add br0 mtu 1450 type bridge",
            "link set vx100 mtu 1450 master br0 addrgenmode none",
            "link set vx100 up",
            "link set br0 up",
            &format!("addr add 192.168.7.{number}/24 dev br0"),
        ] {
            home.ip(words);
        }
        finish_checksums(&home, "br0");
        let conf = format!(
            "router bgp 65001\n bgp router-id 10.0.0.{number}\n no bgp default ipv4-unicast\n \
             neighbor 10.0.0.{neighbour} remote-as 65001\n \
             neighbor 10.0.0.{neighbour} timers 3 9\n \
             neighbor 10.0.0.{neighbour} timers connect 1\n address-family l2vpn evpn\n  \
             neighbor 10.0.0.{neighbour} activate\n  advertise-all-vni\n exit-address-family\n"
        );
        std::fs::write(scratch.path().join("bgpd.conf"), conf).expect("room");
        std::fs::write(scratch.path().join("zebra.conf"), "").expect("room");
        // FRR works as a user of its own.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(scratch.path(), all).expect("ours");
        let start = |name: &str| {
            let program = format!("/usr/lib/frr/{name}");
            assert!(std::path::Path::new(&program).exists(), "apt-get install frr");
            let at = |file: &str| scratch.path().join(file).into_os_string();
            let mut command = Command::new(program);
            command.arg("-f").arg(at(&format!("{name}.conf")));
            command.arg("-i").arg(at(&format!("{name}.pid"))).arg("-z").arg(at("zserv.api"));
            command.arg("--vty_socket").arg(scratch.path()).args(["-P", "0"]);
            let log = format!("{name}.log");
            command.stdout(log_file(&scratch, &log)).stderr(log_file(&scratch, &log));
            home.visit(|| Owned::spawn(&mut command))
        };
        let zebra = start("zebra");
        let socket = scratch.path().join("zserv.api");
        wait::until("zebra", || socket.exists());
        let bgpd = start("bgpd");
        Some(Self { home, _processes: [bgpd, zebra], _scratch: scratch })
    }

    /// What the kernel has of IP addresses.
    fn neigh(&self) -> String {
        self.home.within(|| {
            let output = Command::new("ip").args(["neigh", "show", "dev", "br0"]).output();
            String::from_utf8(output.expect("iproute2").stdout).expect("text")
        })
    }

    /// What the kernel has of stations behind its vxlan device.
    fn fdb(&self) -> String {
        self.home.within(|| {
            let output = Command::new("bridge").args(["fdb", "show", "dev", "vx100"]).output();
            String::from_utf8(output.expect("iproute2").stdout).expect("text")
        })
    }
}

#[test]
fn frr_with_the_kernels_bridge_is_a_far_end() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let Some(frr) = FrrHost::new(&underlay, 2, 1) else { return };
    let Some(mut one) = Member::new(&underlay, 1, &[2]) else { return };
    let mac = "02:00:00:00:00:01";
    let first = one.host.station("192.168.7.1/24", Some(mac)).expect("a namespace");
    // Our routes are remotes and stations there, and theirs are here.
    let ours = format!("{mac} dst 10.0.0.1 self extern_learn");
    wait::until("our station at the kernel", || frr.fdb().contains(&ours));
    assert!(frr.fdb().contains("00:00:00:00:00:00 dst 10.0.0.1"), "{}", frr.fdb());
    wait::until("the remote", || one.remotes() == ["10.0.0.2"]);
    // With an address, which the host's own stack then believes.
    first.within(|| drop(Command::new("ping").args(["-c1", "-W1", "192.168.7.2"]).output()));
    let address = format!("192.168.7.1 lladdr {mac}");
    wait::until("our address at the kernel", || {
        let neigh = frr.neigh();
        neigh.lines().any(|line| line.starts_with(&address) && line.contains("extern_learn"))
    });
    // FRR announces what the bridge has learned on ports other than the vxlan device.
    let guest = Namespace::new().expect("as before");
    frr.home.within(|| {
        lab::veth(&guest, "guest", "192.168.7.3/24", "mtu 1450");
        harness::net::ip("link set guest master br0");
    });
    guest.ip("link set eth0 address 02:00:00:00:00:03");
    finish_checksums(&guest, "eth0");
    tcp(&guest, &first, "192.168.7.1", 1000);
    wait::until("their station at our switch", || one.knows("02:00:00:00:00:03"));
    // Its address, once the host itself knows that.
    ping(&frr.home, "192.168.7.3");
    let theirs = "192.168.7.3".to_owned();
    wait::until("their address at our port", || one.neighbours().contains(&theirs));
    tcp(&first, &guest, "192.168.7.3", MEGABYTE);
    one.evpn.signal(Signal::TERM);
    assert!(one.evpn.wait().success(), "{}", one.log());
    wait::until("the kernel floods to us no more", || !frr.fdb().contains("dst 10.0.0.1"));
}
