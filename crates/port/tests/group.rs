//! Members of a trust group under a switch: they take buffers out of their slots, exchange them by
//! hand, write nonsense, and die. The pool gets everything back, once.

use std::collections::BTreeSet;
use std::sync::Arc;

use packet::PortId;
use port::group::{Group, Size};
use port::shm::PortMemory;
use ring::cursor::RingSize;
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use ring::krings::Krings;
use ring::layout::RingCounts;
use ring::owners::Owner;
use ring::table::HugeTable;
use ring::user::{RxRing, TxRing};
use ring::{BufferIndex, Region};
use switch::{Moved, Now, Plug, PortConfig, Scratch, Switch, SwitchConfig, Wake};

const SLOTS: u32 = 128;
const SIZE: Size = Size { bytes: 64 << 20, stride: 2112, first: None };

/// Tests look at their rings themselves.
struct NoDoorbell;

impl Wake for NoDoorbell {
    fn wake(&self) {}
}

struct Member {
    memory: PortMemory,
    tx: TxRing,
    rx: RxRing,
    switch: usize,
}

/// A group whose members are on two switches, which two workers might run.
struct Net {
    group: Group,
    region: Option<Arc<Region>>,
    switches: [Switch; 2],
    scratch: Scratch,
    members: [Option<Member>; 6],
}

fn counts() -> RingCounts {
    let slots = RingSize::new(SLOTS).expect("legal");
    RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots }
}

fn id(member: usize) -> PortId {
    PortId::new(member).expect("few")
}

fn frame(to: usize, from: usize) -> [u8; 60] {
    let mut bytes = [0; 60];
    let last = |member: usize| u8::try_from(member).expect("few");
    bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, last(to)]);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, last(from)]);
    bytes
}

impl Net {
    fn new() -> Self {
        Self {
            group: Group::new("test", &SIZE).expect("memory"),
            region: None,
            switches: [1, 2].map(|seed| Switch::new(SwitchConfig::default(), seed, HugeTable::new)),
            scratch: Scratch::new(64, Intake::new(FRAMES, STANDARD_FRAME).expect("memory")),
            members: Default::default(),
        }
    }

    fn join(&mut self, at: usize, switch: usize, extra_bufs: u32) {
        let memory = self.group.join("member", counts(), extra_bufs).expect("room");
        memory.reservation.build().expect("memory");
        let (region, layout) = (memory.reservation.region(), memory.reservation.layout());
        let own = Owner::of(layout);
        assert_eq!(region.owners().count(own), (2 * SLOTS + extra_bufs) as usize);
        let buffers: BTreeSet<_> = region.slot_buffers(layout).map(BufferIndex::get).collect();
        assert_eq!(buffers.len(), 2 * SLOTS as usize, "each slot has a buffer of its own");
        assert!(region.slot_buffers(layout).all(|buffer| region.owners().of(buffer) == own));
        let host = Plug::rings_with(Krings::new(region, layout), NoDoorbell);
        self.switches[switch].add_port(id(at), host, PortConfig::default());
        let (tx, rx) = (TxRing::new(region, layout, 0), RxRing::new(region, layout, 0));
        self.region = Some(region.clone());
        self.members[at] = Some(Member { memory, tx, rx, switch });
    }

    /// The member dies, and holds nothing any more.
    fn leave(&mut self, at: usize) {
        let Some(Member { memory, switch, .. }) = self.members[at].take() else { return };
        self.switches[switch].remove_port(id(at)).expect("it was there");
        let switches = &self.switches;
        self.group.leave(memory.reservation.layout(), |leaver| {
            // One after the other, as a worker does that moves frames in between.
            for switch in &*switches {
                let mut next = Some(0);
                while let Some(from) = next {
                    next = switch.reconcile(&leaver, from, &mut 1);
                }
            }
        });
    }

    fn member(&mut self, at: usize) -> &mut Member {
        self.members[at].as_mut().expect("a member")
    }

    /// Sends this many frames, as far as there is room, to these members in turn.
    fn send(&mut self, from: usize, to: &[usize], frames: u32) {
        let tx = &mut self.member(from).tx;
        let frames = frames.min(tx.refresh());
        for (i, &to) in (0..frames).zip(to.iter().cycle()) {
            // A slot in which the client left nonsense has no buffer.
            if let Some(data) = tx.buffer(i).first_chunk_mut() {
                *data = frame(to, from);
            }
            tx.set(i, 60, 0);
        }
        let _ = tx.submit(frames);
        self.turn(from);
    }

    /// Turns until all frames are taken, and the waits for full members are over.
    fn turn(&mut self, from: usize) {
        let (switch, mut now) = (self.member(from).switch, Now::START);
        while self.switches[switch].turn(id(from), now, &mut self.scratch) != Moved::default() {
            now = now.after_us(50);
        }
    }

    fn receive(&mut self, at: usize) -> u32 {
        let rx = &mut self.member(at).rx;
        let frames = rx.refresh();
        let _ = rx.release(frames);
        frames
    }

    /// What the client library's `forward` does with two ports of one region. `halfway`: the
    /// client dies before it has put the last spare buffer into its new slot.
    fn forward(&mut self, from: usize, to: usize, halfway: bool) {
        let frames = self.member(from).rx.refresh().min(self.member(to).tx.refresh());
        for i in 0..frames {
            let full = self.member(from).rx.buffer_index(i);
            let tx = &mut self.member(to).tx;
            let spare = tx.buffer_index(i);
            tx.set(i, 60, 0);
            tx.set_buffer_index(i, full);
            if !halfway || i + 1 < frames {
                self.member(from).rx.set_buffer_index(i, spare);
            }
        }
        let _ = self.member(from).rx.release(frames);
        let _ = self.member(to).tx.submit(frames);
    }

    /// Takes buffers out of slots that the client has. Returns how many.
    fn take_out(&mut self, at: usize, buffers: u32) -> u32 {
        let Member { tx, rx, .. } = self.member(at);
        let (sent, received) = (buffers.min(tx.refresh()), buffers.min(rx.refresh()));
        (0..sent).for_each(|i| tx.set_buffer_index(i, 0));
        (0..received).for_each(|i| rx.set_buffer_index(i, 0));
        sent + received
    }

    fn in_pool(&self) -> usize {
        self.region.as_ref().expect("a member was here").owners().count(Owner::POOL)
    }

    /// No two slots of living members have the same buffer, and none is in the pool.
    fn assert_intact(&self) {
        let mut seen = BTreeSet::new();
        for member in self.members.iter().flatten() {
            let (region, layout) =
                (member.memory.reservation.region(), member.memory.reservation.layout());
            for buffer in region.slot_buffers(layout) {
                assert!(seen.insert(buffer.get()), "{buffer:?} stands in two slots");
                assert_ne!(region.owners().of(buffer), Owner::POOL, "{buffer:?}");
            }
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u32::try_from((self.0 >> 33) % u64::from(end)).expect("below")
    }

    fn member(&mut self) -> usize {
        self.below(6) as usize
    }
}

#[test]
fn what_a_member_has_taken_out_comes_back_when_it_dies() {
    let mut net = Net::new();
    net.join(0, 0, 7);
    net.join(2, 0, 0);
    let before = net.in_pool();
    for round in 0..1000 {
        net.join(1, 0, 30);
        // Each learns where the others are; from then on buffers are swapped, in runs and one by
        // one.
        net.send(0, &[9], 1);
        net.send(1, &[9], 1);
        net.send(2, &[9], 1);
        net.send(0, &[1], 70);
        net.send(0, &[1, 2], 50);
        net.send(2, &[1], 1);
        net.send(1, &[0], 70);
        net.send(1, &[0, 2], 40);
        assert_eq!([net.receive(0), net.receive(2)], [2 + 90, 2 + 45]);
        assert_eq!(net.member(1).rx.refresh(), 2 + 96);
        assert_eq!(net.take_out(1, 90), 180);
        net.leave(1);
        assert_eq!(net.in_pool(), before, "round {round}");
        net.assert_intact();
    }
}

#[test]
fn a_number_in_a_strange_slot_gives_no_buffer_away() {
    let mut net = Net::new();
    net.join(0, 0, 0);
    net.join(1, 0, 0);
    let before = net.in_pool();
    let (kept, left) = (net.member(0).tx.buffer_index(0), net.member(1).tx.buffer_index(0));
    let third = net.member(0).tx.buffer_index(1);
    net.member(0).tx.set_buffer_index(0, left);
    for (slot, buffer) in [kept, third, left].into_iter().enumerate() {
        net.member(1).tx.set_buffer_index(u32::try_from(slot).expect("small"), buffer);
    }
    // Taken out, and kept.
    net.member(0).tx.set_buffer_index(1, 0);
    net.leave(1);
    let own = Owner::of(net.member(0).memory.reservation.layout());
    let region = net.region.clone().expect("a member is here");
    let owner = |buffer| region.owners().of(region.check(buffer).expect("a buffer"));
    assert_eq!(owner(left), own, "it stands in the living one's slot");
    assert_eq!(owner(kept), Owner::POOL, "exchanged for the other");
    assert_eq!(owner(third), own, "nothing was given for it");
    assert_eq!(net.in_pool(), before + 2 * SLOTS as usize);
    net.leave(0);
    assert_eq!(net.in_pool(), before + 4 * SLOTS as usize);
}

/// A process joins two switches and forwards from one to the other: 0 → 1 ⇒ 2 → 3.
#[test]
fn ports_that_exchange_buffers_by_hand_come_and_go_alone() {
    let mut net = Net::new();
    let empty = {
        net.join(0, 0, 0);
        net.in_pool() + 2 * SLOTS as usize
    };
    net.join(1, 0, 0);
    net.join(2, 1, 5);
    net.join(3, 1, 0);
    let (before, mut random) = (net.in_pool(), Random(1));
    for round in 0..200 {
        net.send(1, &[0], 1);
        net.send(0, &[1], 1);
        net.send(3, &[2], 1);
        net.send(2, &[3], 1);
        for _ in 0..random.below(4) {
            net.send(0, &[1], random.below(100));
            net.forward(1, 2, false);
            if random.below(2) == 0 {
                net.turn(2);
            }
            net.receive(3);
        }
        net.assert_intact();
        let (gone, switch) = if random.below(2) == 0 { (1, 0) } else { (2, 1) };
        net.leave(gone);
        net.assert_intact();
        net.join(gone, switch, if gone == 2 { 5 } else { 0 });
        assert_eq!(net.in_pool(), before, "round {round}");
        net.assert_intact();
    }
    (0..4).for_each(|at| net.leave(at));
    assert_eq!(net.in_pool(), empty);
}

#[test]
fn a_process_that_dies_between_two_ports_leaves_nothing() {
    let mut net = Net::new();
    net.join(0, 0, 0);
    net.join(3, 1, 50);
    let (before, mut random) = (net.in_pool(), Random(2));
    for round in 0..200 {
        net.join(1, 0, 9);
        net.join(2, 1, 0);
        net.send(1, &[0], 1);
        net.send(0, &[1], 1);
        net.send(3, &[2], 1);
        net.send(2, &[3], 1);
        for dies in [false, true] {
            net.send(0, &[1], random.below(100));
            net.forward(1, 2, dies);
            if random.below(2) == 0 {
                net.turn(2);
            }
        }
        let (first, then) = if random.below(2) == 0 { (1, 2) } else { (2, 1) };
        net.leave(first);
        net.assert_intact();
        if then == 2 {
            // Its switch has not heard of the end yet.
            net.turn(2);
        }
        net.leave(then);
        net.receive(0);
        net.receive(3);
        assert_eq!(net.in_pool(), before, "round {round}");
        net.assert_intact();
    }
}

/// Members write buffers of other members, and of the pool, into their slots. It may cost the group
/// what it has, but when all are gone, the pool is whole, and no buffer was given to two at a time.
#[test]
fn nonsense_in_slots_costs_no_buffer_for_good() {
    let mut net = Net::new();
    let (empty, mut random) = {
        net.join(0, 0, 0);
        (net.in_pool() + 2 * SLOTS as usize, Random(3))
    };
    for _ in 0..2000 {
        let (at, other) = (random.member(), random.member());
        match random.below(8) {
            0 => net.leave(at),
            _ if net.members[at].is_none() => net.join(at, at % 2, random.below(20)),
            1 => drop(net.take_out(at, random.below(SLOTS))),
            2 | 3 => {
                let Member { tx, rx, .. } = net.member(at);
                for i in 0..tx.refresh() {
                    tx.set_buffer_index(i, random.below(12 * SLOTS));
                }
                for i in 0..rx.refresh() {
                    rx.set_buffer_index(i, random.below(12 * SLOTS));
                }
            }
            4 if net.members[other].is_some() => net.forward(at, other, random.below(2) == 0),
            5 => drop(net.receive(at)),
            _ => net.send(at, &[other], random.below(SLOTS)),
        }
    }
    (0..net.members.len()).for_each(|at| net.leave(at));
    assert_eq!(net.in_pool(), empty);
}
