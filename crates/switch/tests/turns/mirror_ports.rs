//! Mirror ports: ports that get copies of what other ports send and receive.

use std::sync::Arc;

use packet::dropped::Dropped;
use switch::{CopyRate, DropReasons, MirrorPoint, MirrorSource};

use super::random::Random;
use super::*;

const IN: MirrorPoint = MirrorPoint::Sent;
const OUT: MirrorPoint = MirrorPoint::Received;

impl Net {
    fn mirror(&mut self, to: usize, rate: u32, from: &[(usize, MirrorPoint)]) {
        let from: Vec<_> = from.iter().map(|&(port, point)| (id(port), point)).collect();
        self.switch.set_mirror_port(id(to), CopyRate::new(rate), &from);
    }

    /// A port whose ring holds all that a turn can bring.
    fn add_wide(&mut self) -> usize {
        let slots = RingSize::new(1024).expect("legal");
        let counts = RingCounts { rx_slots: slots, ..counts() };
        self.add_with(counts, PortConfig::default(), DEFAULT_STRIDE);
        self.clients.len() - 1
    }
}

fn frames(to: u8, from: u8, count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|i| frame(mac(to), mac(from), 60, i)).collect()
}

#[test]
fn a_mirror_port_gets_what_its_ports_send_and_receive() {
    for (points, is_in, is_out) in
        [(&[IN][..], true, false), (&[OUT], false, true), (&[IN, OUT], true, true)]
    {
        let mut net = Net::learning(4);
        net.introduce();
        let from: Vec<_> = points.iter().map(|&point| (1, point)).collect();
        net.mirror(3, 0, &from);
        // A run, interleaved destinations, and what others say to each other.
        net.send(0, &frames(1, 0, 10));
        net.turn(0);
        let mixed: Vec<_> = (0..8).map(|i| frame(mac(1 + i % 2), mac(0), 60, 50 + i)).collect();
        net.send(0, &mixed);
        net.turn(0);
        net.send(2, &frames(0, 2, 5));
        net.turn(2);
        let arrived = net.received(1);
        let expected = if is_out { arrived } else { Vec::new() };
        assert_eq!(net.received(3), expected);
        let whole = frame(mac(0), mac(1), 300, 7);
        net.send_chain(1, &[&whole[..100], &whole[100..]]);
        let lost = frame(mac(1), mac(1), 60, 5);
        net.send(1, std::slice::from_ref(&lost));
        net.turn(1);
        let expected = if is_in { vec![whole, lost] } else { Vec::new() };
        assert_eq!(net.received(3), expected);
        let total = net.switch.stats(id(3)).expect("a port").total();
        assert_eq!(total.rx.frames, 3 + 14 * u64::from(is_out) + 2 * u64::from(is_in));
    }
}

#[test]
fn a_mirror_port_gets_nothing_else_and_what_it_sends_is_dropped() {
    let mut net = Net::learning(4);
    net.introduce();
    net.mirror(3, 0, &[(1, IN)]);
    net.send(0, &[frame(ALL, mac(0), 60, 1), frame(mac(3), mac(0), 60, 2)]);
    net.turn(0);
    assert!(net.received(3).is_empty());
    assert_eq!(net.received(1).len(), 2, "its address is unknown now");
    net.received(2);
    net.send(3, &frames(1, 3, 9));
    net.turn(3);
    assert_eq!((net.received(1).len(), net.drops(3, DropReason::MirrorInput)), (0, 9));
    assert!(net.clients[3].tx.is_drained());
    net.switch.set_port(id(3), PortConfig::default());
    net.send(3, &frames(1, 3, 4));
    net.turn(3);
    net.send(1, &frames(3, 1, 4));
    net.turn(1);
    assert_eq!((net.received(1).len(), net.received(3)), (4, frames(3, 1, 4)));
}

#[test]
fn a_mirror_port_that_does_not_read_loses_frames_and_costs_others_none() {
    let [mut with, mut without] = [(); 2].map(|()| {
        let mut net = Net::learning(3);
        net.introduce();
        net
    });
    let config = PortConfig { on_full: OnFull::Wait, ..PortConfig::default() };
    with.switch.set_port(id(2), config);
    with.mirror(2, 0, &[(0, IN), (1, OUT)]);
    without.switch.remove_port(id(2)).expect("there it was");
    let before = with.switch.stats(id(2)).expect("a port").total().rx.frames;
    for _ in 0..5 {
        for net in [&mut with, &mut without] {
            net.send(0, &frames(1, 0, 12));
            assert_eq!(net.look(0).slots, 12);
            assert_eq!(net.received(1), frames(1, 0, 12));
        }
    }
    for port in 0..2 {
        assert_eq!(with.switch.stats(id(port)), without.switch.stats(id(port)));
    }
    assert_eq!(with.received(2).len(), SLOTS as usize - 1);
    let total = with.switch.stats(id(2)).expect("a port").total();
    assert_eq!(total.rx.frames - before, u64::from(SLOTS - 1));
    assert_eq!(with.drops(2, DropReason::NoRoom), 120 - u64::from(SLOTS - 1));
}

#[test]
fn a_rate_limits_the_copies_of_a_second() {
    let mut net = Net::learning(3);
    net.introduce();
    net.mirror(2, 5, &[(0, IN)]);
    for seconds in [1, 2] {
        net.send(0, &frames(1, 0, 12));
        net.turn(0);
        assert_eq!((net.received(1).len(), net.received(2)), (12, frames(1, 0, 5)));
        // Also where it is told of other ports meanwhile.
        net.mirror(2, 5, &[(0, IN), (1, IN)]);
        net.send(0, &frames(1, 0, 3));
        net.turn(0);
        assert_eq!((net.received(1).len(), net.received(2).len()), (3, 0));
        assert_eq!(net.drops(2, DropReason::MirrorRate), 10 * seconds);
        net.now = Now::from_ms(1 + 1000 * seconds);
    }
}

#[test]
fn a_mirror_port_that_goes_leaves_its_number_to_a_port_that_gets_no_copies() {
    let mut net = Net::learning(3);
    net.introduce();
    net.mirror(2, 0, &[(0, IN), (0, OUT), (1, IN)]);
    net.switch.remove_port(id(2)).expect("there it was");
    net.send(0, &frames(1, 0, 3));
    net.turn(0);
    assert_eq!(net.received(1).len(), 3);
    net.clients.truncate(2);
    net.add(PortConfig::default());
    net.send(0, &frames(1, 0, 3));
    net.turn(0);
    assert_eq!((net.received(1).len(), net.received(2).len()), (3, 0));
    net.send(0, &[frame(ALL, mac(0), 60, 1)]);
    net.turn(0);
    assert_eq!(net.received(2).len(), 1, "a port like others");
    // And a source that goes takes nothing with it.
    net.mirror(2, 0, &[(0, IN), (1, IN)]);
    net.switch.remove_port(id(1)).expect("there it was");
    net.send(0, &[frame(ALL, mac(0), 60, 1)]);
    net.turn(0);
    assert_eq!(net.received(2).len(), 1);
}

#[test]
fn a_change_of_a_mirror_mirrors_no_frame_twice() {
    let mut net = Net::learning(4);
    net.introduce();
    net.mirror(3, 0, &[(0, IN)]);
    net.send(0, &frames(1, 0, 20));
    assert_eq!(net.look(0).slots, u32::from(BATCH));
    net.mirror(3, 0, &[(0, IN), (1, IN)]);
    net.turn(0);
    assert_eq!(net.received(3), frames(1, 0, 20));
    net.send(1, &frames(0, 1, 2));
    net.turn(1);
    assert_eq!(net.received(3), frames(0, 1, 2));
}

#[test]
fn a_capture_of_a_mirror_port_sees_its_copies_and_drops_show_its_input() {
    let mut net = Net::learning(3);
    net.introduce();
    let (place, eye) = net.add_mirror(&Arc::default());
    net.switch.mirror_port(id(2), place, MirrorSource { point: OUT, rings: 0..1 });
    let (_, dropped) = net.watch_drops(DropReasons::only(DropReason::MirrorInput));
    net.mirror(2, 0, &[(0, IN)]);
    net.send(0, &frames(1, 0, 4));
    net.turn(0);
    assert_eq!((net.received(eye), net.received(2)), (frames(1, 0, 4), frames(1, 0, 4)));
    net.send(2, &frames(1, 2, 1));
    net.turn(2);
    let shown = net.received(dropped);
    let (dropped, bytes) = Dropped::split(&shown[0]).expect("a head");
    assert_eq!((dropped.reason, bytes), ("mirror_input", &frames(1, 2, 1)[0][..]));
}

#[test]
fn tags_are_those_on_the_wire_of_the_mirrored_port() {
    let trunk = VlanMode::Trunk { native: None, allowed: "10,20".parse().expect("VLANs") };
    let ten = VlanMode::Access("10".parse().expect("a VLAN"));
    let mut net = Net::new(SwitchConfig::default());
    for vlan in [ten, trunk] {
        net.add(PortConfig { vlan, ..PortConfig::default() });
    }
    (0..2).for_each(|_| net.add(PortConfig::default()));
    net.mirror(2, 0, &[(0, IN)]);
    net.mirror(3, 0, &[(1, OUT)]);
    let plain = frame(ALL, mac(0), 64, 5);
    net.send(0, std::slice::from_ref(&plain));
    net.turn(0);
    let tagged = [&plain[..12], &[0x81, 0, 0, 10], &plain[12..]].concat();
    assert_eq!(net.received(2), [plain]);
    assert_eq!((net.received(3), net.received(1)), (vec![tagged.clone()], vec![tagged]));
}

#[test]
fn copies_equal_what_random_ports_send_and_receive() {
    for seed in 0..200 {
        copy_of_random_traffic(seed);
    }
}

/// Random ports, one of them in a group with another, and random frames. The mirror port gets the
/// frames that its ports have sent and received, turn by turn.
fn copy_of_random_traffic(seed: u64) {
    let mut random = Random(seed);
    let forwarding = random.pick(&[Forwarding::Learning, Forwarding::Hub]);
    let mut net = Net::new(SwitchConfig { forwarding, ..SwitchConfig::default() });
    let ports = 5;
    net.add_group(2);
    (2..ports).for_each(|_| {
        let mode = random.pick(&["transparent", "transparent", "trunk:1-3,native=1", "access:1"]);
        let vlan = mode.parse().expect("a mode");
        net.add(PortConfig { vlan, ..PortConfig::default() });
    });
    let eye = net.add_wide();
    let points = [(); 5].map(|()| [random.one_in(2), random.one_in(2)]);
    let from = points.iter().enumerate().flat_map(|(port, [is_in, is_out])| {
        let both = [(IN, *is_in), (OUT, *is_out)];
        both.into_iter().filter(|(_, is)| *is).map(move |(point, _)| (port, point))
    });
    let from: Vec<_> = from.collect();
    net.mirror(eye, 0, &from);
    for step in 0..40 {
        let src = random.below(ports);
        let sent = some_frames(&mut random, src, step);
        net.send(src, &sent);
        while net.turn(src).slots > 0 {}
        let mut expected = if points[src][0] { sent } else { Vec::new() };
        for (port, [_, is_out]) in points.iter().enumerate() {
            let arrived = net.received(port);
            expected.extend(arrived.into_iter().filter(|_| *is_out));
        }
        let mut copies = net.received(eye);
        copies.sort();
        expected.sort();
        assert_eq!(copies, expected, "seed {seed}, step {step}");
    }
    let stats = net.switch.stats(id(eye)).expect("a port");
    assert_eq!(stats.drops.total(), 0, "seed {seed}");
}

fn some_frames(random: &mut Random, src: usize, step: u8) -> Vec<Vec<u8>> {
    let from = mac(u8::try_from(src).expect("few"));
    let count = 1 + random.below(24);
    let one = |random: &mut Random| {
        let dst = if random.one_in(6) { ALL } else { mac(random.pick(&[0, 1, 2, 3, 4, 9])) };
        match random.one_in(4) {
            true => tagged(dst, from, random.pick(&[1, 2, 7]), step),
            false => frame(dst, from, 60 + random.below(1400), step),
        }
    };
    match random.one_in(3) {
        true => vec![one(random); count],
        false => (0..count).map(|_| one(random)).collect(),
    }
}
