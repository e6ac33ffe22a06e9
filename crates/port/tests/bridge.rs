//! A Linux bridge and a learning switch get the same frames, and the same frames come out, at the
//! same ports, in the same order. Each has four veth pairs in a namespace of the test. What ports
//! with VLANs do is compared with a model, in `switch/tests/simulation.rs`: the bridges of many
//! kernels know no VLANs.

mod namespace;

use std::process::Command;
use std::time::{Duration, Instant};

use ::packet::PortId;
use ::packet::offload::VNET_LEN;
use hostif::HostError;
use hostif::namespace::within;
use hostif::netlink::Netlink;
use namespace::Namespace;
use port::host::{bell, packet};
use port::sys::packet::{Inbox, PacketSocket};
use ring::intake::{self, Intake, STANDARD_FRAME};
use ring::table::HugeTable;
use switch::{Now, Plug, PortConfig, Scratch, Switch, SwitchConfig};

const PORTS: usize = 4;
const FRAMES: u64 = 400;
const PATIENCE: Duration = Duration::from_secs(20);

fn ip(words: &str) {
    run("ip", words);
}

fn run(program: &str, words: &str) -> String {
    let output = Command::new(program).args(words.split_whitespace()).output().expect("iproute2");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words}: {said}");
    String::from_utf8(output.stdout).expect("text")
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
            hostif::sys::packet::open(far.index, false).map(PacketSocket::from).expect("root")
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

/// A finished frame as a packet socket takes it.
fn behind_header(frame: &[u8]) -> Vec<u8> {
    [&[0; VNET_LEN], frame].concat()
}

/// A bridge and a switch, and the far ends of their cables.
struct Pair {
    theirs: Ends,
    ours: Ends,
    switch: Switch,
    ids: Vec<PortId>,
    scratch: Scratch,
}

impl Pair {
    fn new() -> Result<Self, HostError> {
        for which in ["all", "default"] {
            // What the kernel says by itself would be among the frames; without IPv6 it says
            // nothing.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
        }
        let (mut theirs, ours) = (Ends::new("b"), Ends::new("u"));
        ip("link add name br0 type bridge stp_state 0 mcast_snooping 0");
        (0..PORTS).for_each(|i| ip(&format!("link set bnear{i} master br0")));
        ip("link set br0 up");
        wait_for_forwarding(&mut theirs);
        let mut switch =
            Switch::new(SwitchConfig { ageing_ms: 1000, ..Default::default() }, 1, HugeTable::new);
        let ids: Vec<PortId> = (0..PORTS).map(|i| PortId::new(i).expect("few")).collect();
        let (_bell, ringer) = bell().expect("descriptors");
        for (i, &id) in ids.iter().enumerate() {
            let opened = packet::open(&format!("unear{i}"), None, false, &ringer)?;
            switch.add_port(id, Plug::adapter(opened.adapter), PortConfig::default());
        }
        let scratch =
            Scratch::new(64, Intake::new(intake::FRAMES, STANDARD_FRAME).expect("memory"));
        Ok(Self { theirs, ours, switch, ids, scratch })
    }

    /// Sends a frame to both, and waits until it has left both.
    fn send(&mut self, from: usize, frame: &[u8], now: Now) {
        let message = behind_header(frame);
        self.theirs.sockets[from].send(&[&message]).expect("room");
        self.ours.sockets[from].send(&[&message]).expect("room");
        let (start, taken) = (Instant::now(), switch_received(&self.switch, &self.ids));
        while switch_received(&self.switch, &self.ids) == taken {
            for &id in &self.ids {
                self.switch.turn(id, now, &mut self.scratch);
            }
            assert!(start.elapsed() < PATIENCE, "the frame does not arrive");
        }
        self.ours.receive();
        while self.theirs.counts() != self.ours.counts() {
            self.theirs.receive();
            self.ours.receive();
            let (a, b) = (self.theirs.counts(), self.ours.counts());
            let late = start.elapsed() > PATIENCE;
            assert!(!late, "bridge {a:?}, switch {b:?}: {frame:?}");
        }
    }

    fn check(&self) {
        assert!(self.theirs.arrived == self.ours.arrived, "other frames, or in another order");
    }
}

fn compare() -> Result<(), HostError> {
    let (mut pair, mut random) = (Pair::new()?, Random(7));
    for number in 0..FRAMES {
        let from = usize::try_from(random.below(4)).expect("few");
        let frame = random.frame(number);
        // So slowly that nothing is forgotten.
        pair.send(from, &frame, Now::from_ms(number / 2));
    }
    pair.check();
    let all = FRAMES * (PORTS as u64 - 1);
    let seen = pair.ours.counts().iter().sum::<usize>() as u64;
    assert!(seen > all / 10 && seen < all, "some are flooded, and some are not: {seen}");
    Ok(())
}

/// Both forget a station that is silent, and flood what is for it.
fn forget() -> Result<(), HostError> {
    let mut pair = Pair::new()?;
    // Hundredths of a second.
    ip("link set br0 type bridge ageing_time 100");
    let station = |host: u8| [2, 0, 0, 0, 1, host];
    let frame = |to: [u8; 6], from: [u8; 6], number: u8| {
        let mut frame = [&to[..], &from, &[0x88, 0xb5, number]].concat();
        frame.resize(60, 0);
        frame
    };
    let now = Now::from_ms;
    pair.send(1, &frame([0xff; 6], station(1), 1), now(1));
    pair.send(0, &frame(station(1), station(2), 2), now(2));
    assert_eq!(pair.ours.counts(), [1, 1, 1, 1], "a broadcast, and one to a station");
    let start = Instant::now();
    while run("bridge", "fdb show br br0").contains("02:00:00:00:01:01") {
        assert!(start.elapsed() < PATIENCE, "the bridge does not forget");
        std::thread::sleep(Duration::from_millis(50));
    }
    (0..1000).for_each(|_| drop(pair.switch.housekeep(now(2000))));
    pair.send(0, &frame(station(1), station(2), 3), now(2000));
    assert_eq!(pair.ours.counts(), [1, 2, 2, 2], "to every port");
    pair.check();
    Ok(())
}

fn switch_received(switch: &Switch, ids: &[PortId]) -> u64 {
    ids.iter().map(|&id| switch.stats(id).expect("a port").total().tx.frames).sum()
}

/// A bridge takes a moment before its ports forward.
fn wait_for_forwarding(ends: &mut Ends) {
    let mut probe = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0xfe], &[0x88, 0xb6]].concat();
    probe.resize(60, 0);
    let start = Instant::now();
    while ends.counts().contains(&0) {
        for socket in &ends.sockets {
            socket.send(&[&behind_header(&probe)]).expect("room");
        }
        std::thread::sleep(Duration::from_millis(20));
        ends.receive();
        assert!(start.elapsed() < PATIENCE, "the bridge does not forward");
    }
    std::thread::sleep(Duration::from_millis(50));
    ends.receive();
    ends.arrived.iter_mut().for_each(Vec::clear);
}

fn in_a_namespace(story: impl FnOnce() -> Result<(), HostError> + Send) {
    let Some(namespace) = Namespace::new() else { return };
    within(Some(("the test's", &namespace.file())), story).expect("every interface");
}

#[test]
fn a_learning_switch_forwards_and_floods_as_a_linux_bridge() {
    in_a_namespace(compare);
}

#[test]
fn stations_are_forgotten_as_by_a_linux_bridge() {
    in_a_namespace(forget);
}
