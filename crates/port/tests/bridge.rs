//! The same frames into a Linux bridge and into a learning switch: the same frames come out, at the
//! same ports, in the same order. Each has four veth pairs in a namespace of the test.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use port::host::namespace::within;
use port::host::netlink::Netlink;
use port::host::{HostError, bell, packet};
use port::sys::packet::{Inbox, PacketSocket};
use switch::{Now, Plug, PortConfig, PortId, Scratch, Switch, SwitchConfig};

const PORTS: usize = 4;
const FRAMES: u64 = 400;
const PATIENCE: Duration = Duration::from_secs(20);

/// A process in a namespace of its own, which goes with it.
struct Namespace(Child);

impl Namespace {
    fn new() -> Option<Self> {
        let args = ["--net", "sh", "-c", "ip link set lo up; echo; exec sleep infinity"];
        let child = Command::new("unshare").args(args).stdout(Stdio::piped()).spawn();
        let mut child = Self(child.expect("util-linux"));
        let said = child.0.stdout.take().expect("piped").read(&mut [0]);
        matches!(said, Ok(1)).then_some(child)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split_whitespace()).output().expect("iproute2");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The far ends of the cables of one switch.
struct Ends {
    sockets: Vec<PacketSocket>,
    arrived: Vec<Vec<Vec<u8>>>,
    inbox: Inbox,
}

impl Ends {
    /// Makes pairs `near0`, `far0` … with this beginning of their names.
    fn new(name: &str) -> Self {
        let netlink = Netlink::open().expect("netlink");
        let open = |i: usize| {
            ip(&format!("link add name {name}near{i} type veth peer name {name}far{i}"));
            ip(&format!("link set {name}near{i} up"));
            ip(&format!("link set {name}far{i} up"));
            let far = netlink.find(&format!("{name}far{i}")).expect("an answer").expect("made");
            PacketSocket::open(far.index, false).expect("root")
        };
        let sockets = (0..PORTS).map(open).collect();
        Self { sockets, arrived: vec![Vec::new(); PORTS], inbox: Inbox::default() }
    }

    fn receive(&mut self) {
        for (socket, arrived) in self.sockets.iter().zip(&mut self.arrived) {
            while socket.receive(&mut self.inbox).is_ok() {
                for i in 0..self.inbox.count() {
                    arrived.push(self.inbox.get(i).expect("whole").frame.to_vec());
                }
            }
        }
    }

    fn counts(&self) -> Vec<usize> {
        self.arrived.iter().map(Vec::len).collect()
    }
}

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }

    /// A frame of one of a few stations, which may move, to one of them or to others.
    fn frame(&mut self, number: u64) -> Vec<u8> {
        let station = |host: u64| [2, 0, 0, 0, 0, u8::try_from(host).expect("few")];
        let to = match self.below(10) {
            0 => [0xff; 6],
            1 => [0x33, 0x33, 0, 0, 0, 5],
            _ => station(self.below(8)),
        };
        let from = station(self.below(6));
        let mut frame = [&to[..], &from, &[0x88, 0xb5], &number.to_be_bytes()].concat();
        let len = 60 + usize::try_from(self.below(1455)).expect("short");
        frame.resize(len, u8::try_from(number % 256).expect("a byte"));
        frame
    }
}

fn compare() -> Result<(), HostError> {
    for which in ["all", "default"] {
        // What the kernel says by itself would be among the frames; without IPv6 it says nothing.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
    }
    let (mut theirs, mut ours) = (Ends::new("b"), Ends::new("u"));
    ip("link add name br0 type bridge stp_state 0 mcast_snooping 0");
    (0..PORTS).for_each(|i| ip(&format!("link set bnear{i} master br0")));
    ip("link set br0 up");
    let mut switch = Switch::new(SwitchConfig::default(), 1);
    let ids: Vec<PortId> = (0..PORTS).map(|i| PortId::new(i).expect("few")).collect();
    let (_bell, ringer) = bell().expect("descriptors");
    for (i, &id) in ids.iter().enumerate() {
        let opened = packet::open(&format!("unear{i}"), None, false, &ringer)?;
        switch.add_port(id, Plug::Adapter(opened.adapter), PortConfig::default());
    }
    wait_for_forwarding(&mut theirs);
    let (mut scratch, mut random) = (Scratch::new(64), Random(7));
    for number in 0..FRAMES {
        let (from, frame) = (usize::try_from(random.below(4)).expect("few"), random.frame(number));
        theirs.sockets[from].send(&[&frame]).expect("room");
        ours.sockets[from].send(&[&frame]).expect("room");
        let (start, taken) = (Instant::now(), switch_received(&switch, &ids));
        while switch_received(&switch, &ids) == taken {
            for &id in &ids {
                switch.turn(id, Now::from_ms(number), &mut scratch);
            }
            assert!(start.elapsed() < PATIENCE, "the frame does not arrive");
        }
        ours.receive();
        while theirs.counts() != ours.counts() {
            theirs.receive();
            ours.receive();
            let (a, b) = (theirs.counts(), ours.counts());
            assert!(start.elapsed() < PATIENCE, "frame {number}: bridge {a:?}, switch {b:?}");
        }
    }
    assert!(theirs.arrived == ours.arrived, "other frames, or in another order");
    Ok(())
}

fn switch_received(switch: &Switch, ids: &[PortId]) -> u64 {
    ids.iter().map(|&id| switch.stats(id).expect("a port").total().rx.frames).sum()
}

/// A bridge takes a moment before its ports forward.
fn wait_for_forwarding(ends: &mut Ends) {
    let mut probe = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0xfe], &[0x88, 0xb6]].concat();
    probe.resize(60, 0);
    let start = Instant::now();
    while ends.counts().contains(&0) {
        for socket in &ends.sockets {
            socket.send(&[&probe]).expect("room");
        }
        std::thread::sleep(Duration::from_millis(20));
        ends.receive();
        assert!(start.elapsed() < PATIENCE, "the bridge does not forward");
    }
    std::thread::sleep(Duration::from_millis(50));
    ends.receive();
    ends.arrived.iter_mut().for_each(Vec::clear);
}

#[test]
fn a_learning_switch_forwards_and_floods_as_a_linux_bridge() {
    let Some(namespace) = Namespace::new() else {
        eprintln!("SKIPPED: network namespaces need root; also: unshare -Urn");
        return;
    };
    let path = format!("/proc/{}/ns/net", namespace.0.id());
    let file: OwnedFd = File::open(path).expect("our own process").into();
    within(Some(("the test's", &file)), compare).expect("every interface");
}
