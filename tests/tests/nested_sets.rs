//! A process without a port has the lock that the kernel takes for each epoll set that is put into
//! another one, and keeps it. Nothing in the daemon and its clients takes that lock.
//!
//! Every program of the machine that puts one epoll set into another waits meanwhile, so this is a
//! program of its own with one test.

use std::time::{Duration, Instant};

use client::Port;
use harness::byte_stream::{StreamPeer, is_up, socket_of};
use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, fill, mac};
use harness::lab::{Lab, add, has_xdp, inside, veth};
use harness::machine::Machine;
use harness::net::udp;
use harness::process::Peer;
use harness::role::{NestedSets, Report, Role};
use harness::round_trips::RoundTrips;
use harness::{is_root, skip};
use protocol::{HostIf, PortKind};

/// Two switches with a tunnel between them, and one of all workers with ports of machines.
const CONFIG: &str = r#"
[workers]
count = 2
[switch.vale0]
workers = "all"
[switch.vale0.port.stream]
kind = "stream"
[switch.vale0.port.vm]
kind = "vhost-user"
[switch.vale1.port.fabric]
kind = "vxlan"
vni = 7
local = "127.0.0.1"
remote = ["127.0.0.3"]
dst_port = 14899
[switch.vale2.port.fabric]
kind = "vxlan"
vni = 7
local = "127.0.0.3"
remote = ["127.0.0.1"]
dst_port = 14899
"#;
/// The attacker ends after so long, and with it what it holds up.
const ATTACK: u64 = 60;
/// Far more than all of it takes, and less than the attack.
const ALL: Duration = Duration::from_secs(45);
/// A busy port is quiet after far less.
const QUIET: Duration = Duration::from_millis(200);

/// A machine and the peer of a stream port exchange frames, for stations that the switch has not
/// learned.
fn assert_exchange(machine: &mut Machine, stream: &mut StreamPeer, seq: u64) {
    let (mut there, mut back) = (Vec::new(), Vec::new());
    fill(&mut there, mac(72), 71, seq, 60);
    fill(&mut back, mac(74), 73, seq, 60);
    stream.send(&there);
    while machine.receive() != there {}
    machine.send(&back);
    while stream.receive() != back {}
}

/// Frames go through the tunnel, one at a time and many at once.
fn assert_tunnel(ends: &mut [Port; 2]) {
    let [from, to] = ends;
    let (mut frame, mut received) = (Vec::new(), Vec::new());
    for (seq, burst) in (0..).zip([1, 200, 1, 1]) {
        fill(&mut frame, mac(32), 31, seq, 60);
        for _ in 0..burst {
            from.send_timeout(&frame, Some(Duration::from_secs(10))).unwrap();
        }
        while received != frame {
            to.recv_timeout(&mut received, Some(Duration::from_secs(10))).unwrap();
        }
        std::thread::sleep(QUIET);
    }
}

/// Two TAPs, and an interface by AF_XDP where that can be had, in a switch of all workers.
fn add_interfaces(daemon: &Daemon, lab: &Lab) -> bool {
    let [red, blue, green] = &lab.guests[..] else { panic!("three") };
    add(daemon, "vale0:red", PortKind::Tap, inside(red, "10.0.0.1/24")).unwrap();
    add(daemon, "vale0:blue", PortKind::Tap, inside(blue, "10.0.0.2/24")).unwrap();
    veth(green, "green", "10.0.0.3/24", "");
    has_xdp(add(daemon, "vale0:green", PortKind::Xdp, HostIf::default()))
}

/// The interfaces carry frames to and fro.
fn assert_interfaces(lab: &Lab, has_xdp: bool) {
    let [red, blue, green] = &lab.guests[..] else { panic!("three") };
    red.within(|| udp(blue, "10.0.0.2", 100));
    if has_xdp {
        blue.within(|| udp(green, "10.0.0.3", 100));
        green.within(|| udp(red, "10.0.0.1", 100));
    }
}

fn done(daemon: &Daemon, words: &[&str]) {
    let output = daemon.uvala(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
}

/// All that takes a descriptor into an epoll set of the daemon.
fn assert_goes_on(mut daemon: Daemon, lab: &Lab) {
    let has_xdp = add_interfaces(&daemon, lab);
    assert_interfaces(lab, has_xdp);
    let sockets = ["vale0:stream", "vale0:vm"].map(|port| socket_of(&daemon, port));
    let mut machine = Machine::boot(&sockets[1]);
    is_up(&daemon, "vale0:vm");
    for seq in 0..2 {
        // Once more: another peer of the same port.
        let mut stream = StreamPeer::connect(&daemon, "vale0:stream");
        assert_exchange(&mut machine, &mut stream, seq);
    }
    let trips = RoundTrips::start(&daemon, "vale0");
    let mut stream = StreamPeer::connect(&daemon, "vale0:stream");
    for (seq, worker) in (2..).zip(["1", "0"]) {
        let interfaces = ["vale0:red", "vale0:green"].into_iter().take(1 + usize::from(has_xdp));
        for port in ["vale0:stream", "vale0:vm", "vale0:ping"].into_iter().chain(interfaces) {
            done(&daemon, &["worker", "move", port, worker]);
        }
        assert_exchange(&mut machine, &mut stream, seq);
        assert_interfaces(lab, has_xdp);
        assert!(trips.beside(|| std::thread::sleep(QUIET)).1 > 0.0, "a client goes on");
    }
    assert_tunnel(&mut ["vale1:a", "vale2:b"].map(|port| daemon.open(port)));
    done(&daemon, &["port", "add", "vale0:more", "--kind=stream"]);
    done(&daemon, &["port", "add", "vale0:guest", "--kind=vhost-user"]);
    done(&daemon, &["port", "add", "vale0:tunnel", "--kind=vxlan", "--vni=8", "--local=127.0.0.3"]);
    let mut more = StreamPeer::connect(&daemon, "vale0:more");
    more.send(&announcement(3));
    while stream.receive() != announcement(3) {}
    done(&daemon, &["port", "del", "vale0:more"]);
    // The client of the pair goes on at another daemon, as do the interfaces.
    daemon.replace();
    assert_interfaces(lab, has_xdp);
    assert!(trips.beside(|| std::thread::sleep(QUIET)).1 > 0.0, "after a replacement");
    trips.finish();
    daemon.terminate();
    daemon.process().wait();
}

#[test]
fn the_lock_of_nested_epoll_sets_holds_nobody_up() {
    if !is_root() {
        return skip("userfaultfd for calls of the kernel takes root");
    }
    let Some(lab) = Lab::new(3) else { return };
    lab.home.within(|| {
        let daemon = Setup::new(CONFIG).start();
        let mut attacker = Peer::launch(&Role::NestedSets(NestedSets { seconds: ATTACK }), None);
        match attacker.report() {
            Report::Missing(what) => return skip(&what),
            report => assert_eq!(report, Report::Ready),
        }
        let begin = Instant::now();
        assert_goes_on(daemon, &lab);
        drop(Setup::new("").start());
        assert!(!attacker.process().has_ended(), "it has attacked all the time");
        attacker.process().kill();
        assert!(begin.elapsed() < ALL, "{:?}", begin.elapsed());
    });
}
