//! Frames through real rings: what clients put in, what other clients get, and how it is counted.

#[path = "turns/adapters.rs"]
mod adapters;
#[path = "turns/chain.rs"]
mod chain;
#[path = "turns/drops.rs"]
mod drops;
#[path = "turns/exchange.rs"]
mod exchange;
#[path = "turns/floods.rs"]
mod floods;
#[path = "turns/foreign.rs"]
mod foreign;
#[path = "turns/groups.rs"]
mod groups;
#[path = "turns/mirror_ports.rs"]
mod mirror_ports;
#[path = "turns/mirrors.rs"]
mod mirrors;
#[path = "common/no_doorbell.rs"]
mod no_doorbell;
#[path = "turns/offloads.rs"]
mod offloads;
#[path = "turns/order.rs"]
mod order;
#[path = "turns/owed_wakes.rs"]
mod owed_wakes;
#[path = "common/program_code.rs"]
mod program_code;
#[path = "turns/programs.rs"]
mod programs;
#[path = "common/random.rs"]
mod random;
#[path = "turns/security.rs"]
mod security;
#[path = "turns/slot_flags.rs"]
mod slot_flags;
#[path = "turns/steps.rs"]
mod steps;
#[path = "turns/trace.rs"]
mod trace;
#[path = "turns/vnet_headers.rs"]
mod vnet_headers;
#[path = "turns/waits.rs"]
mod waits;

use std::os::fd::AsFd;

use no_doorbell::NoDoorbell;
use packet::{PortId, VlanMode};
use ring::Region;
use ring::abi::slot_flag;
use ring::cursor::RingSize;
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use ring::krings::Krings;
use ring::layout::{DEFAULT_STRIDE, FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use ring::owners::Owner;
use ring::table::HugeTable;
use ring::user::{RxRing, TxRing};
use switch::chain::Planner;
use switch::{
    DropReason, Forwarding, Moved, Now, OnFull, Plug, PortConfig, Scratch, Switch, SwitchConfig,
    Wake,
};

const SLOTS: u32 = 32;
const BATCH: u16 = 16;

struct Client {
    tx: TxRing,
    rx: RxRing,
    region: std::sync::Arc<Region>,
}

struct Net {
    switch: Switch,
    planner: Planner,
    scratch: Scratch,
    clients: Vec<Client>,
    now: Now,
}

fn counts() -> RingCounts {
    let slots = RingSize::new(SLOTS).expect("legal");
    RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots }
}

fn id(port: usize) -> PortId {
    PortId::new(port).expect("few ports")
}

fn mac(host: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, host]
}

const ALL: [u8; 6] = [0xff; 6];

fn frame(dst: [u8; 6], src: [u8; 6], len: usize, fill: u8) -> Vec<u8> {
    let mut bytes = vec![fill; len];
    bytes[..6].copy_from_slice(&dst);
    bytes[6..12].copy_from_slice(&src);
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes
}

fn tagged(dst: [u8; 6], src: [u8; 6], vlan: u16, fill: u8) -> Vec<u8> {
    let mut bytes = frame(dst, src, 68, fill);
    bytes[12..14].copy_from_slice(&[0x81, 0]);
    bytes[14..16].copy_from_slice(&vlan.to_be_bytes());
    bytes[16..18].copy_from_slice(&[8, 0]);
    bytes
}

impl Net {
    fn new(config: SwitchConfig) -> Self {
        let switch = Switch::new(config, 7, HugeTable::new);
        let (planner, scratch) = (
            Planner::default(),
            Scratch::new(BATCH, Intake::new(FRAMES, STANDARD_FRAME).expect("memory")),
        );
        Self { switch, planner, scratch, clients: Vec::new(), now: Now::from_ms(1) }
    }

    fn learning(ports: usize) -> Self {
        let mut net = Self::new(SwitchConfig::default());
        (0..ports).for_each(|_| net.add(PortConfig::default()));
        net
    }

    fn add(&mut self, config: PortConfig) {
        self.add_with_stride(config, DEFAULT_STRIDE);
    }

    fn add_with_stride(&mut self, config: PortConfig, stride: u32) {
        self.add_with(counts(), config, stride);
    }

    /// Adds a port in a region of its own, and returns where it is.
    fn add_with(&mut self, counts: RingCounts, config: PortConfig, stride: u32) -> PortLayout {
        let port = PortLayout::new(FIRST_BLOCK, counts);
        let size = port.end() - FIRST_BLOCK;
        let layout = RegionLayout::new(size, stride, counts.buffers()).expect("legal");
        let (region, fd) = Region::create("test", layout).expect("memory");
        region.format_port("test", &port, region.buffers(), true).expect("memory");
        let client = Region::attach(fd.as_fd(), layout).expect("sealed");
        let (tx, rx) = (TxRing::new(&client, &port, 0), RxRing::new(&client, &port, 0));
        self.plug(&region, &port, Client { tx, rx, region: client }, config);
        port
    }

    /// `ports` ports in one region.
    fn add_group(&mut self, ports: usize) {
        let size = PortLayout::new(FIRST_BLOCK, counts()).end() - FIRST_BLOCK;
        let buffers = counts().buffers() * u32::try_from(ports).expect("few");
        let layout = RegionLayout::new(size * ports, DEFAULT_STRIDE, buffers).expect("legal");
        let (region, fd) = Region::create_shared("test", layout).expect("memory");
        let client = Region::attach(fd.as_fd(), layout).expect("sealed");
        let mut free = region.buffers();
        for i in 0..ports {
            let port = PortLayout::new(FIRST_BLOCK + i * size, counts());
            let own: Vec<_> = free.by_ref().take(counts().buffers() as usize).collect();
            for &buffer in &own {
                assert!(region.owners().pass(buffer, Owner::POOL, Owner::of(&port)));
            }
            region.format_port("test", &port, own, false).expect("memory");
            let (tx, rx) = (TxRing::new(&client, &port, 0), RxRing::new(&client, &port, 0));
            let client = Client { tx, rx, region: client.clone() };
            self.plug(&region, &port, client, PortConfig::default());
        }
    }

    fn plug(
        &mut self,
        region: &std::sync::Arc<Region>,
        port: &PortLayout,
        client: Client,
        config: PortConfig,
    ) {
        let host = Plug::rings_with(Krings::new(region, port), NoDoorbell);
        self.switch.add_port(id(self.clients.len()), host, config);
        self.clients.push(client);
    }

    /// Makes the switch know that host `i` is behind port `i`, for all ports.
    fn introduce(&mut self) {
        for i in 0..self.clients.len() {
            self.send(i, &[frame(ALL, mac(u8::try_from(i).expect("few")), 60, 0)]);
            self.turn(i);
        }
        (0..self.clients.len()).for_each(|i| drop(self.received(i)));
    }

    fn send(&mut self, port: usize, frames: &[Vec<u8>]) {
        for bytes in frames {
            self.send_chain(port, &[bytes]);
        }
    }

    /// One frame in several slots.
    fn send_chain(&mut self, port: usize, pieces: &[&[u8]]) {
        let tx = &mut self.clients[port].tx;
        assert!(tx.refresh() as usize >= pieces.len(), "room to send");
        for (i, piece) in (0..).zip(pieces) {
            let len = u16::try_from(piece.len()).expect("a slot");
            tx.frame(i, len).copy_from_slice(piece);
            let last = i as usize == pieces.len() - 1;
            tx.set(i, len, if last { 0 } else { slot_flag::MOREFRAG });
        }
        let _ = tx.submit(u32::try_from(pieces.len()).expect("few"));
    }

    /// One turn.
    fn look(&mut self, port: usize) -> Moved {
        self.switch.turn(id(port), self.now, &mut self.scratch)
    }

    /// One turn, and another after each brief wait, until that is over.
    fn turn(&mut self, port: usize) -> Moved {
        let mut slots = 0;
        loop {
            let moved = self.look(port);
            slots += moved.slots;
            if !moved.blocked_on.is_some_and(switch::Full::is_brief) {
                return Moved { slots, ..moved };
            }
            self.now = self.now.after_us(200);
        }
    }

    /// What has arrived, chains joined; the slots are given back.
    fn received(&mut self, port: usize) -> Vec<Vec<u8>> {
        let rx = &mut self.clients[port].rx;
        let (count, mut frames, mut open) = (rx.refresh(), Vec::new(), Vec::new());
        for i in 0..count {
            open.extend_from_slice(rx.frame(i));
            if rx.flags(i) & slot_flag::MOREFRAG == 0 {
                frames.push(std::mem::take(&mut open));
            }
        }
        let _ = rx.release(count);
        frames
    }

    fn drops(&self, port: usize, reason: DropReason) -> u64 {
        self.switch.stats(id(port)).expect("a port").drops.get(reason)
    }

    /// Frames taken, and frames delivered or counted as dropped.
    fn balance(&self) -> (u64, u64) {
        let stats = (0..self.clients.len()).map(|i| self.switch.stats(id(i)).expect("a port"));
        stats.fold((0, 0), |(taken, gone), port| {
            let total = port.total();
            (taken + total.tx.frames, gone + total.rx.frames + port.drops.total())
        })
    }
}

#[test]
fn a_run_goes_to_the_port_of_its_destination_whole_and_in_order() {
    let mut net = Net::learning(3);
    net.introduce();
    let sent: Vec<_> = (0..10).map(|i| frame(mac(1), mac(0), 60 + usize::from(i), i)).collect();
    net.send(0, &sent);
    assert_eq!(net.turn(0).slots, 10);
    assert_eq!(net.received(1), sent);
    assert!(net.received(2).is_empty());
    let total = net.switch.stats(id(1)).expect("a port").total();
    assert_eq!((total.rx.frames, total.rx.bytes), (10 + 2, 120 + 645));
}

#[test]
fn interleaved_destinations_keep_their_order() {
    let mut net = Net::learning(4);
    net.introduce();
    let sent: Vec<_> = (0..15).map(|i| frame(mac(1 + i % 3), mac(0), 70, i)).collect();
    net.send(0, &sent);
    net.turn(0);
    for port in 1..4 {
        let expected: Vec<_> = sent.iter().skip(port - 1).step_by(3).cloned().collect();
        assert_eq!(net.received(port), expected);
    }
    assert!(net.clients.iter_mut().all(|client| client.tx.is_drained()));
}

#[test]
fn a_flood_does_not_overtake_or_get_overtaken() {
    let mut net = Net::learning(3);
    net.introduce();
    let sent: Vec<_> =
        (0..9).map(|i| frame(if i % 4 == 3 { ALL } else { mac(1) }, mac(0), 64, i)).collect();
    net.send(0, &sent);
    net.turn(0);
    assert_eq!(net.received(1), sent);
    assert_eq!(net.received(2), [sent[3].clone(), sent[7].clone()]);
}

#[test]
fn a_batch_is_bounded() {
    let mut net = Net::learning(2);
    net.introduce();
    net.send(0, &vec![frame(mac(1), mac(0), 60, 1); 20]);
    assert_eq!(net.turn(0).slots, u32::from(BATCH));
    assert_eq!(net.turn(0).slots, 20 - u32::from(BATCH));
}

#[test]
fn an_overflow_is_dropped_and_counted_at_the_destination() {
    let mut net = Net::learning(3);
    net.introduce();
    for _ in 0..3 {
        net.send(0, &vec![frame(mac(1), mac(0), 60, 1); 16]);
        net.turn(0);
    }
    assert_eq!(net.received(1).len(), SLOTS as usize - 1);
    assert_eq!(net.drops(1, DropReason::NoRoom), 48 - 31);
    net.send(0, &[frame(mac(2), mac(0), 60, 1)]);
    net.turn(0);
    assert_eq!(net.received(2).len(), 1, "others are not affected");
}

#[test]
fn chains_arrive_whole_also_where_buffers_have_another_size() {
    let mut net = Net::learning(2);
    net.add_with_stride(PortConfig::default(), 512);
    net.introduce();
    let long = frame(mac(2), mac(0), 5000, 7);
    net.send_chain(0, &[&long[..1999], &long[1999..2000], &long[2000..4000], &long[4000..]]);
    net.turn(0);
    let slots = net.clients[2].rx.refresh();
    assert_eq!(slots, 10, "5000 bytes in buffers of 512");
    assert!((0..slots).all(|i| net.clients[2].rx.flags(i) >> slot_flag::RFRAGS_SHIFT == 10));
    assert_eq!(net.received(2), std::slice::from_ref(&long));
    let jumbo = frame(ALL, mac(2), 512 * 2, 5);
    net.send_chain(2, &[&jumbo[..512], &jumbo[512..]]);
    net.turn(2);
    assert_eq!(net.received(0), std::slice::from_ref(&jumbo));
    assert_eq!(net.received(1), [jumbo]);
}

#[test]
fn a_chain_that_has_no_room_is_dropped_as_a_whole() {
    let mut net = Net::learning(1);
    net.add_with_stride(PortConfig::default(), 512);
    net.introduce();
    net.send(0, &vec![frame(mac(1), mac(0), 60, 1); 16]);
    net.turn(0);
    net.send(0, &vec![frame(mac(1), mac(0), 60, 1); 13]);
    net.turn(0);
    let long = frame(mac(1), mac(0), 2000, 1);
    net.send(0, &[long, frame(mac(1), mac(0), 61, 1)]);
    net.turn(0);
    let got = net.received(1);
    assert_eq!((got.len(), got[29].len()), (30, 61));
    assert_eq!(net.drops(1, DropReason::NoRoom), 1);
}

#[test]
fn the_head_of_a_chain_is_in_one_piece() {
    let mut net = Net::learning(2);
    net.introduce();
    let sent = frame(mac(1), mac(0), 200, 7);
    net.send_chain(0, &[&sent[..14], &sent[14..]]);
    net.send_chain(0, &[&sent[..18], &sent[18..]]);
    net.turn(0);
    assert_eq!(net.received(1), [sent]);
    assert_eq!(net.drops(0, DropReason::TooShort), 1);
}

#[test]
fn a_tag_that_is_cut_off_is_no_tag() {
    let ten = "10".parse().expect("a VLAN");
    let mut net = Net::new(SwitchConfig::default());
    net.add(PortConfig {
        vlan: VlanMode::Trunk { native: None, allowed: "10".parse().expect("VLANs") },
        ..PortConfig::default()
    });
    net.add(PortConfig { vlan: VlanMode::Access(ten), ..PortConfig::default() });
    net.send(0, &[tagged(ALL, mac(0), 10, 1)[..16].to_vec()]);
    net.turn(0);
    assert!(net.received(1).is_empty());
    assert_eq!(net.drops(0, DropReason::TooShort), 1);
}

#[test]
fn what_was_in_the_senders_buffer_before_stays_there() {
    let mut net = Net::learning(2);
    net.introduce();
    for len in [14, 60, 61, 63, 64, 65, 100, 1514] {
        let secret = 0xa5;
        net.clients[0].tx.refresh();
        net.clients[0].tx.buffer(0).fill(secret);
        net.send(0, &[frame(mac(1), mac(0), len, 1)]);
        net.turn(0);
        net.clients[1].rx.refresh();
        assert!(!net.clients[1].rx.buffer(0)[len..].contains(&secret), "{len} bytes");
        net.received(1);
    }
}

#[test]
fn a_frame_larger_than_the_ring_is_too_long() {
    let mut net = Net::learning(1);
    net.add_with_stride(PortConfig::default(), 64);
    net.introduce();
    let long = frame(mac(1), mac(0), 2112, 1);
    net.send(0, &[long]);
    net.turn(0);
    assert_eq!(net.drops(1, DropReason::TooLong), 1);
}

#[test]
fn tags_are_put_in_and_taken_out() {
    let ten = "10".parse().expect("a VLAN");
    let trunk = VlanMode::Trunk { native: None, allowed: "10,20".parse().expect("VLANs") };
    let mut net = Net::new(SwitchConfig::default());
    net.add(PortConfig { vlan: VlanMode::Access(ten), ..PortConfig::default() });
    net.add(PortConfig { vlan: trunk, ..PortConfig::default() });
    let plain = frame(ALL, mac(0), 64, 5);
    net.send(0, &[plain.clone(), plain.clone()]);
    net.turn(0);
    let mut expected = plain[..12].to_vec();
    expected.extend([0x81, 0, 0, 10]);
    expected.extend(&plain[12..]);
    assert_eq!(net.received(1), [expected.clone(), expected]);
    let (mine, other) = (tagged(ALL, mac(1), 10, 6), tagged(ALL, mac(1), 20, 6));
    net.send(1, &[mine.clone(), other]);
    net.turn(1);
    let stripped = [&mine[..12], &mine[16..]].concat();
    assert_eq!(net.received(0), [stripped]);
}

#[test]
fn a_group_swaps_buffers_also_where_destinations_interleave() {
    let mut net = Net::new(SwitchConfig::default());
    net.add_group(3);
    net.introduce();
    let sent: Vec<_> = (0..12).map(|i| frame(mac(1 + i % 2), mac(0), 60, i)).collect();
    net.clients[0].tx.refresh();
    let buffers: Vec<_> = (0..12).map(|i| net.clients[0].tx.buffer_index(i)).collect();
    net.send(0, &sent);
    net.turn(0);
    for port in 1..3 {
        assert_eq!(net.clients[port].rx.refresh(), 6);
        let got: Vec<_> = (0..6).map(|i| net.clients[port].rx.buffer_index(i)).collect();
        let expected: Vec<_> = buffers.iter().skip(port - 1).step_by(2).copied().collect();
        assert_eq!(got, expected, "the buffers themselves have moved");
        let frames: Vec<_> = sent.iter().skip(port - 1).step_by(2).cloned().collect();
        assert_eq!(net.received(port), frames);
    }
    let mut all: Vec<u32> = Vec::new();
    for client in &mut net.clients {
        let layout = client.region.layout();
        client.tx.refresh();
        all.extend((0..client.tx.owned()).map(|i| client.tx.buffer_index(i)));
        assert!(all.iter().all(|index| *index < layout.buffers));
    }
    let owned = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), owned, "no buffer is in two slots");
}

#[test]
fn a_flood_inside_a_group_is_copied() {
    let mut net = Net::new(SwitchConfig::default());
    net.add_group(3);
    net.introduce();
    let sent = frame(ALL, mac(0), 200, 3);
    net.send(0, std::slice::from_ref(&sent));
    net.turn(0);
    assert_eq!((net.received(1), net.received(2)), (vec![sent.clone()], vec![sent]));
}

#[test]
fn a_patch_connects_two_ports_and_a_hub_all() {
    let config = |forwarding| SwitchConfig { forwarding, ..SwitchConfig::default() };
    let mut patch = Net::new(config(Forwarding::Patch));
    (0..2).for_each(|_| patch.add(PortConfig::default()));
    let sent = frame(mac(77), mac(0), 60, 1);
    patch.send(0, std::slice::from_ref(&sent));
    patch.turn(0);
    assert_eq!(patch.received(1), std::slice::from_ref(&sent));
    let mut hub = Net::new(config(Forwarding::Hub));
    (0..3).for_each(|_| hub.add(PortConfig::default()));
    hub.introduce();
    hub.send(0, &[frame(mac(1), mac(0), 60, 1)]);
    hub.turn(0);
    assert_eq!((hub.received(1).len(), hub.received(2).len()), (1, 1));
}

#[test]
fn hostile_slots_cost_their_own_frames_only() {
    let mut net = Net::learning(2);
    net.introduce();
    let good = frame(mac(1), mac(0), 60, 1);
    let tx = &mut net.clients[0].tx;
    tx.refresh();
    (0..6).for_each(|i| tx.frame(i, 60).copy_from_slice(&good));
    tx.set_buffer_index(1, u32::MAX);
    tx.set(2, 60_000, 0);
    tx.set(3, 13, 0);
    tx.set(4, 60, slot_flag::INDIRECT);
    let _ = tx.submit(6);
    net.turn(0);
    assert_eq!(net.received(1), [good.clone(), good]);
    assert_eq!(net.drops(0, DropReason::BadIndex), 1);
    assert_eq!(net.drops(0, DropReason::BadSlot), 2);
    assert_eq!(net.drops(0, DropReason::TooShort), 1);
}

#[test]
fn every_frame_is_delivered_or_counted() {
    let mut net = Net::learning(2);
    net.add(PortConfig { isolated: true, ..PortConfig::default() });
    net.add(PortConfig { isolated: true, ..PortConfig::default() });
    net.introduce();
    let before = net.balance();
    for i in 0..12u8 {
        let to = mac(i % 4);
        net.send(2, &vec![frame(to, mac(2), 60 + usize::from(i), i); 3]);
        net.turn(2);
        (0..4).for_each(|port| drop(net.received(port)));
    }
    assert_eq!(net.drops(2, DropReason::Isolated), 9);
    assert_eq!(net.drops(2, DropReason::SamePort), 9);
    let after = net.balance();
    assert_eq!(after.0 - before.0, 36);
    assert_eq!(after.1 - before.1, 36);
}

#[test]
fn a_slot_that_a_worker_has_reserved_holds_no_frame() {
    let mut net = Net::learning(2);
    net.introduce();
    net.send(0, &[frame(mac(1), mac(0), 60, 0), frame(mac(1), mac(0), 60, 1)]);
    net.turn(0);
    let plug = net.switch.plug_mut(id(1)).expect("a port");
    plug.rings().expect("it has rings").rx[0].lock().reserve(5);
    assert_eq!((plug.rx_fill(), plug.in_rings()), (Some([2, SLOTS - 1]), 2));
}
