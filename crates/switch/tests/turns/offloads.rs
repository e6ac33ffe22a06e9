//! Unfinished frames on their way to ports that take them, and to ports that do not.

use std::sync::mpsc::{Receiver, Sender, channel};

use packet::offload::{Offloads, PendingOffload, VNET_LEN};
use proptest::prelude::*;
use ring::intake::Intake;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, CopyRate, Drops, Notify, Sent};

use super::*;

type Seen = (Option<[u8; VNET_LEN]>, Vec<u8>);

/// A port without rings whose frames have a header in front.
struct Card {
    intake: Intake,
    arrived: Vec<([u8; VNET_LEN], Vec<u8>)>,
    accepts: Offloads,
    sent: Sender<Seen>,
}

impl Card {
    fn new(
        arrived: Vec<([u8; VNET_LEN], Vec<u8>)>,
        accepts: Offloads,
    ) -> (Box<Self>, Receiver<Seen>) {
        let (sent, seen) = channel();
        let intake = Intake::new(64, 1518).expect("memory");
        (Box::new(Self { intake, arrived, accepts, sent }), seen)
    }
}

impl Adapter for Card {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        self.intake.clear();
        batch.restart(self.intake.region());
        while batch.has_room() && self.arrived.first().is_some_and(|f| self.intake.fits(f.1.len()))
        {
            let ((head, frame), first) = (self.arrived.remove(0), batch.frags().len());
            let Ok(left) = PendingOffload::read(head, frame.len()) else {
                drops.add(DropReason::Offload, 1);
                continue;
            };
            self.intake.push(&[&frame], batch.frags());
            batch.push_received(first, u32::try_from(frame.len()).expect("short"));
            if left.is_some_and(|left| batch.push_offload(left).is_err()) {
                drops.add(DropReason::Offload, 1);
            }
        }
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        Sent::each(list, |delivery| {
            let left = batch.offload(delivery);
            assert!(left.is_none_or(|left| self.accepts.contain(left.left())), "{left:?}");
            let mut frame = Vec::new();
            batch.append(delivery, &mut frame);
            let bytes = frame.len();
            self.sent.send((left.map(PendingOffload::bytes), frame)).expect("the test looks");
            Ok(bytes)
        })
    }

    fn accepts(&self) -> Offloads {
        self.accepts
    }
}

impl Notify for Card {}

/// A run of TCP segments over IPv4 with this payload, and the header that says so.
fn run(dst: [u8; 6], payload: &[u8], size: u16) -> ([u8; VNET_LEN], Vec<u8>) {
    let mut bytes = frame(dst, mac(9), 14, 0);
    let total = u16::try_from(40 + payload.len()).expect("a packet").to_be_bytes();
    bytes.extend([0x45, 0, total[0], total[1], 0, 1, 0x40, 0, 64, 6, 0, 0]);
    bytes.extend([10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 80, 0, 0, 1, 0, 0, 0, 2, 0]);
    bytes.extend([0x50, 0x18, 1, 0]);
    let words = 0x4500 + 1 + 0x4000 + 0x4006 + 0x0a00 + 1 + 0x0a00 + 2u32;
    let header = words + u32::try_from(40 + payload.len()).expect("short");
    let header = !u16::try_from((header & 0xffff) + (header >> 16)).expect("folded");
    bytes[24..26].copy_from_slice(&header.to_be_bytes());
    // The sum of the pseudo-header, as a sender leaves it.
    let pseudo = 0x0a00u32 + 1 + 0x0a00 + 2 + 6 + u32::try_from(20 + payload.len()).expect("short");
    let pseudo = u16::try_from((pseudo & 0xffff) + (pseudo >> 16)).expect("folded");
    bytes.extend(pseudo.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    let mut head = [0; VNET_LEN];
    (head[0], head[1]) = (1, u8::from(size > 0));
    head[2..4].copy_from_slice(&54u16.to_ne_bytes());
    head[4..6].copy_from_slice(&size.to_ne_bytes());
    head[6..8].copy_from_slice(&34u16.to_ne_bytes());
    head[8..10].copy_from_slice(&16u16.to_ne_bytes());
    (head, bytes)
}

fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| u8::try_from(i % 251).expect("small")).collect()
}

/// The payload of finished segments that follow each other, all checked in the plainest way.
fn joined(frames: &[Vec<u8>], l3: usize) -> Vec<u8> {
    let word = |bytes: &[u8], at: usize| u32::from(bytes[at]) << 8 | u32::from(bytes[at + 1]);
    let folded = |mut total: u32| {
        while total > 0xffff {
            total = (total & 0xffff) + (total >> 16);
        }
        total
    };
    let sum = |bytes: &[u8]| {
        let padded = [bytes, &[0]].concat();
        (0..bytes.len()).step_by(2).map(|at| word(&padded, at)).sum::<u32>()
    };
    let (mut all, mut next) = (Vec::new(), 0x100);
    for frame in frames {
        let (ip, tcp) = frame[l3..].split_at(20);
        assert_eq!((folded(sum(ip)), word(ip, 2) as usize), (0xffff, frame.len() - l3));
        let length = u32::try_from(tcp.len()).expect("short");
        assert_eq!(folded(sum(&ip[12..]) + 6 + length + sum(tcp)), 0xffff, "a checksum");
        assert_eq!(word(tcp, 4) << 16 | word(tcp, 6), next, "a sequence");
        all.extend(&tcp[20..]);
        next += length - 20;
    }
    all
}

#[test]
fn a_flood_is_unfinished_for_some_and_finished_for_others() {
    let mut net = Net::learning(1);
    let data = payload(10_000);
    let sent = vec![run(ALL, &data, 1448), run(ALL, &data[..900], 0)];
    let (source, _) = Card::new(sent.clone(), Offloads::NONE);
    let (all, whole) = Card::new(Vec::new(), Offloads::ALL);
    let (some, part) = Card::new(Vec::new(), Offloads::CHECKSUM);
    let (none, finished) = Card::new(Vec::new(), Offloads::NONE);
    for (port, card) in (1..).zip([source, all, some, none]) {
        net.switch.add_port(id(port), Plug::adapter(card), PortConfig::default());
    }
    assert_eq!(net.turn(1).slots, 2);
    let expected: Vec<Seen> =
        sent.iter().map(|(head, frame)| (Some(*head), frame.clone())).collect();
    assert_eq!(whole.try_iter().collect::<Vec<_>>(), expected);
    let some: Vec<_> = part.try_iter().collect();
    assert_eq!((some.len(), &some[7]), (8, &expected[1]), "only runs are cut");
    let none: Vec<_> = finished.try_iter().collect();
    assert!(none.iter().all(|(left, _)| left.is_none()));
    let none: Vec<_> = none.into_iter().map(|(_, frame)| frame).collect();
    assert_eq!(joined(&none[..7], 14), data);
    assert_eq!(joined(&none[7..], 14), data[..900]);
    assert_eq!(net.received(0), none);
    let stats = |port| net.switch.stats(id(port)).expect("a port").total();
    assert_eq!([stats(2).rx.frames, stats(4).rx.frames, stats(0).rx.frames], [2, 8, 8]);
    assert_eq!(stats(1).tx.frames, 2);
}

#[test]
fn tags_move_what_is_left() {
    let mut net = Net::new(SwitchConfig::default());
    let vlan =
        |mode: &str| PortConfig { vlan: mode.parse().expect("a mode"), ..Default::default() };
    net.add(vlan("trunk:10"));
    let data = payload(5000);
    let sent = run(ALL, &data, 1448);
    let (source, back) = Card::new(vec![sent.clone()], Offloads::ALL);
    let (trunk, seen) = Card::new(Vec::new(), Offloads::ALL);
    net.switch.add_port(id(1), Plug::adapter(source), vlan("access:10"));
    net.switch.add_port(id(2), Plug::adapter(trunk), vlan("trunk:10"));
    net.turn(1);
    assert_eq!(joined(&net.received(0), 18), data);
    let (head, tagged) = seen.try_iter().next().expect("a run");
    let head = head.expect("unfinished");
    assert_eq!((head[2], head[6], &tagged[12..16]), (58, 38, &[0x81, 0, 0, 10][..]));
    // And back again.
    let (other, _) = Card::new(vec![(head, tagged)], Offloads::ALL);
    net.switch.add_port(id(3), Plug::adapter(other), vlan("trunk:10"));
    net.turn(3);
    assert_eq!(back.try_iter().collect::<Vec<_>>(), [(Some(sent.0), sent.1)]);
}

/// Whether this header in front of a priority-tagged frame for VLAN 10 lets it leave a trunk in
/// another VLAN, or lets the receiver of an unfinished frame write into the tag.
fn escapes(head: [u8; VNET_LEN], frame: &[u8]) -> bool {
    let mut net = Net::new(SwitchConfig::default());
    let vlan =
        |mode: &str| PortConfig { vlan: mode.parse().expect("a mode"), ..Default::default() };
    net.add(vlan("trunk:10,20"));
    let (source, _) = Card::new(vec![(head, frame.to_vec())], Offloads::NONE);
    let (none, finished) = Card::new(Vec::new(), Offloads::NONE);
    let (all, whole) = Card::new(Vec::new(), Offloads::ALL);
    for (port, card, mode) in
        [(1, source, "access:10"), (2, none, "trunk:all"), (3, all, "trunk:all")]
    {
        net.switch.add_port(id(port), Plug::adapter(card), vlan(mode));
    }
    net.turn(1);
    let in_ring = net.received(0).into_iter().map(|frame| (None, frame));
    let out: Vec<_> = in_ring.chain(finished.try_iter()).chain(whole.try_iter()).collect();
    out.into_iter().any(|(left, frame)| {
        let start = left.map_or(18, |left| u16::from_ne_bytes([left[6], left[7]]));
        frame[12..16] != [0x81, 0, 0, 10] || start < 18
    })
}

#[test]
fn a_checksum_is_not_written_into_a_tag() {
    let mut frame = frame(ALL, mac(9), 64, 0);
    frame[12..18].copy_from_slice(&[0x81, 0, 0, 0, 8, 0]);
    let (mut head, _) = run(ALL, &[], 0);
    for start in [0u16, 12, 14, 15, 16, 17] {
        for offset in 0u16..4 {
            head[6..8].copy_from_slice(&start.to_ne_bytes());
            head[8..10].copy_from_slice(&offset.to_ne_bytes());
            assert!(!escapes(head, &frame), "{start} and {offset}");
        }
    }
}

#[test]
fn what_nobody_can_finish_is_counted_where_it_was_to_go() {
    let mut net = Net::learning(1);
    let (mut head, frame) = run(ALL, &payload(3000), 1000);
    head[1] = 4;
    let (source, _) = Card::new(vec![(head, frame)], Offloads::NONE);
    net.switch.add_port(id(1), Plug::adapter(source), PortConfig::default());
    net.turn(1);
    assert!(net.received(0).is_empty());
    assert_eq!(net.drops(0, DropReason::Offload), 1, "it is no IPv6");
}

#[test]
fn a_tag_that_makes_a_frame_too_long_ends_it() {
    let mut net = Net::new(SwitchConfig::default());
    let vlan =
        |mode: &str| PortConfig { vlan: mode.parse().expect("a mode"), ..Default::default() };
    net.add(vlan("trunk:10"));
    let max = ring::frame::FRAME_MAX as usize;
    let sent = [max, max - 3, max - 4].map(|len| {
        let (head, mut frame) = run(ALL, &payload(60_000), 0);
        frame.resize(len, 0);
        (head, frame)
    });
    let (source, _) = Card::new(sent.into(), Offloads::NONE);
    let (none, finished) = Card::new(Vec::new(), Offloads::NONE);
    net.switch.add_port(id(1), Plug::adapter(source), vlan("access:10"));
    net.switch.add_port(id(2), Plug::adapter(none), vlan("trunk:10"));
    while net.turn(1).slots > 0 {}
    let lens: Vec<_> = finished.try_iter().map(|(_, frame)| frame.len()).collect();
    assert_eq!((lens, net.drops(2, DropReason::TooLong)), (vec![max], 2));
}

#[test]
fn runs_of_many_segments_end_a_batch() {
    let mut net = Net::learning(1);
    let sent = vec![run(ALL, &payload(60_000), 32); 8];
    let (source, _) = Card::new(sent, Offloads::NONE);
    net.switch.add_port(id(1), Plug::adapter(source), PortConfig::default());
    assert_eq!(net.turn(1).slots, 1);
    let total = net.switch.stats(id(0)).expect("a port").total();
    assert_eq!(total.rx.frames + net.drops(0, DropReason::NoRoom), 60_000 / 32);
}

proptest! {
    /// Whatever a header says, nothing is out of bounds, and a port that accepts nothing gets
    /// nothing that is unfinished.
    #[test]
    fn headers_of_nonsense_harm_nobody(
        heads in proptest::collection::vec(any::<[u8; VNET_LEN]>(), 1..8),
        limits in proptest::collection::vec((0usize..5, 0u8..4), 0..8),
        len in 14usize..3000,
        vlan in any::<bool>(),
    ) {
        let mut net = Net::learning(1);
        let sent = heads.into_iter().enumerate().map(|(i, mut head)| {
            (head[0], head[1]) = (head[0] & 3, head[1] & 0x87);
            if let Some((field, value)) = limits.get(i).filter(|(field, _)| *field > 0) {
                let value = [0, 1, u16::MAX - 1, u16::MAX][usize::from(*value)];
                head[2 * field..2 * field + 2].copy_from_slice(&value.to_ne_bytes());
            }
            let (_, mut frame) = run(ALL, &payload(len.saturating_sub(54)), 1000);
            frame.truncate(len);
            if vlan && len >= 18 {
                frame[12..16].copy_from_slice(&[0x81, 0, 0, 1]);
            }
            (head, frame)
        });
        let (source, _) = Card::new(sent.collect(), Offloads::NONE);
        let (all, _whole) = Card::new(Vec::new(), Offloads::ALL);
        let (none, finished) = Card::new(Vec::new(), Offloads::NONE);
        for (port, card) in (1..).zip([source, all, none]) {
            net.switch.add_port(id(port), Plug::adapter(card), PortConfig::default());
        }
        while net.turn(1).slots > 0 {}
        for (left, frame) in finished.try_iter() {
            prop_assert!(frame.len() <= len && left.is_none_or(|left| left[1..] == [0; 9]));
        }
    }
}

#[test]
fn all_frames_of_a_flow_have_one_number_and_other_flows_others() {
    let mut intake = Intake::new(64, 1518).expect("memory");
    let mut batch = Batch::new(64);
    batch.restart(intake.region());
    let mut flow = |change: &dyn Fn(&mut Vec<u8>)| {
        let (_, mut frame) = run(mac(1), b"payload", 0);
        change(&mut frame);
        let first = batch.frags().len();
        intake.push(&[&frame], batch.frags());
        batch.push_received(first, u32::try_from(frame.len()).expect("short"));
        batch.flow(batch.frames().last().expect("pushed"))
    };
    let one = flow(&|_| {});
    assert_eq!(one, flow(&|frame| frame.extend([7; 200])), "other payload");
    let answer = flow(&|frame| {
        frame[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
        frame[34..38].copy_from_slice(&[0, 80, 0x12, 0x34]);
    });
    assert_eq!(one, answer);
    let tagged = flow(&|frame| drop(frame.splice(12..12, [0x81, 0, 0, 5])));
    assert_eq!(one, tagged);
    assert_ne!(one, flow(&|frame| frame[35] = 0x35), "another port");
    let fragments = [0x2000u16, 0x00b9]
        .map(|place| flow(&|frame| frame[20..22].copy_from_slice(&place.to_be_bytes())));
    assert_eq!(fragments[0], fragments[1], "pieces of a packet have no ports");
}

#[test]
fn copies_for_a_mirror_port_are_segments_where_it_accepts_no_runs() {
    let data = payload(5000);
    for accepts in [Offloads::NONE, Offloads::ALL] {
        let mut net = Net::learning(2);
        let sent = run(mac(0), &data, 1000);
        let (card, _) = Card::new(vec![sent.clone()], Offloads::ALL);
        net.switch.add_port(id(2), Plug::adapter(card), PortConfig::default());
        let (eye, seen) = Card::new(Vec::new(), accepts);
        net.switch.add_port(id(3), Plug::adapter(eye), PortConfig::default());
        let from = [(id(2), switch::MirrorPoint::Sent)];
        net.switch.set_mirror_port(id(3), CopyRate::new(0), &from);
        net.switch.set_mirror_port(id(1), CopyRate::new(3), &from);
        net.turn(2);
        let copies: Vec<_> = seen.try_iter().collect();
        match accepts == Offloads::NONE {
            true => {
                assert!(copies.iter().all(|(left, _)| left.is_none()));
                let plain: Vec<_> = copies.into_iter().map(|(_, frame)| frame).collect();
                assert_eq!(joined(&plain, 14), data);
            }
            false => assert_eq!(copies, [(Some(sent.0), sent.1)]),
        }
        assert_eq!(joined(&net.received(0), 14), data, "the copy left the run as it was");
        // Five segments are more than the rate of this one.
        assert!(net.received(1).is_empty());
        assert_eq!(net.drops(1, DropReason::MirrorRate), 1);
    }
}
