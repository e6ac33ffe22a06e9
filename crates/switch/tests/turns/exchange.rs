//! Ports without rings that have buffers of a shared region, and exchange them with members.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};

use ring::exchange::{Exchange, Giver};
use ring::umem::{Chunk, Umem};
use ring::{BufferIndex, Region};
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, Drops, Notify, Sent};

use super::*;

/// A port as one of AF_XDP is, without a kernel: what it receives is told to it, and what it sends
/// comes back at once.
struct Desk {
    umem: Umem,
    trader: Exchange,
    stock: Vec<BufferIndex>,
    out: Range<usize>,
    arrived: Receiver<Vec<u8>>,
    /// What was sent, and whether it was copied.
    sent: Sender<(Vec<u8>, bool)>,
}

impl Desk {
    /// The buffer at an address that the kernel gives.
    fn put(&mut self, frame: &[u8], batch: &mut Batch) {
        let chunk = Chunk::from(self.stock.pop().expect("there are enough"));
        let len = u32::try_from(frame.len()).expect("short");
        let piece = self.umem.piece(self.umem.address(chunk), len).expect("one of these");
        self.umem.write_at(piece, 0, frame);
        let first = batch.frags().len();
        batch.frags().push(piece);
        batch.push_received(first, len);
    }

    fn copied(&self, batch: &Batch, delivery: Delivery) -> usize {
        let mut frame = Vec::new();
        batch.append(delivery, &mut frame);
        let bytes = frame.len();
        self.sent.send((frame, true)).expect("the test looks");
        bytes
    }
}

impl Adapter for Desk {
    fn recv(&mut self, batch: &mut Batch, _: &mut Drops) {
        batch.restart(self.umem.region());
        batch.set_exchange(self.trader);
        while batch.has_room()
            && let Ok(frame) = self.arrived.try_recv()
        {
            self.put(&frame, batch);
        }
        self.out = 0..batch.frags().len();
    }

    fn take_back(&mut self, batch: &Batch) {
        let pieces = &batch.received()[std::mem::take(&mut self.out)];
        self.stock.extend(pieces.iter().map(ring::frame::Frag::buffer));
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        Sent::each(list, |delivery| Ok(self.copied(batch, delivery)))
    }

    fn send_owned(&mut self, batch: &mut Batch, list: &[Delivery], from: Giver<'_>) -> Sent {
        Sent::each(list, |delivery| {
            let Some((piece, slot)) = batch.exchangeable(delivery, self.umem.region()) else {
                return Ok(self.copied(batch, delivery));
            };
            let spare = self.stock.pop().expect("there are enough");
            if !self.trader.take(self.umem.region(), piece, from, slot, spare) {
                self.stock.push(spare);
                return Ok(self.copied(batch, delivery));
            }
            if let Giver::Port(_) = from {
                batch.replace_buffer(delivery.frame, spare);
            }
            let mut frame = vec![0; piece.len().into()];
            self.umem.read(piece, 0, &mut frame);
            let bytes = frame.len();
            self.sent.send((frame, false)).expect("the test looks");
            self.stock.insert(0, piece.buffer());
            Ok(bytes)
        })
    }
}

impl Notify for Desk {}

/// The other side of a desk.
struct Beyond {
    arrives: Sender<Vec<u8>>,
    sent: Receiver<(Vec<u8>, bool)>,
}

/// Puts a desk into the place of a port, with its buffers; it can use those below `end`.
fn seat(net: &mut Net, port: usize, end: u32) -> Beyond {
    let Some(Plug::Rings(host, _)) = net.switch.remove_port(id(port)) else { panic!("rings") };
    let (region, layout) = (host.region().clone(), *host.layout());
    let stock = region.slot_buffers(&layout).collect();
    let trader = Exchange::new(Owner::of(&layout), end);
    let umem = Umem::shared(&region, end).expect("large enough");
    let ((arrives, arrived), (sent, seen)) = (channel(), channel());
    let desk = Desk { umem, trader, stock, out: 0..0, arrived, sent };
    net.switch.add_port(id(port), Plug::adapter(Box::new(desk)), PortConfig::default());
    Beyond { arrives, sent: seen }
}

/// Two desks, two members with rings, and a stranger; the region of the first four.
fn office(end: u32) -> (Net, [Beyond; 2], std::sync::Arc<Region>) {
    let mut net = Net::new(SwitchConfig::default());
    net.add_group(4);
    net.add(PortConfig::default());
    net.introduce();
    let Some(rings) = net.switch.plug_mut(id(0)).and_then(Plug::rings) else { panic!("rings") };
    let region = rings.region().clone();
    let desks = [0, 1].map(|port| seat(&mut net, port, end));
    for (desk, station) in desks.iter().zip([0, 1]) {
        desk.arrives.send(frame(ALL, mac(station), 60, 0)).expect("open");
        net.turn(station.into());
    }
    [2, 3, 4].into_iter().for_each(|port| drop(net.received(port)));
    desks.iter().for_each(|desk| assert!(desk.sent.try_iter().count() <= 1));
    (net, desks, region)
}

/// Every port has as many buffers as it was given.
fn assert_whole(region: &Region) {
    let mut all = vec![0; 1 << 16];
    region.owners().count_into(&mut all);
    all[Owner::POOL.number()] = 0;
    let all: Vec<_> = all.into_iter().filter(|count| *count > 0).collect();
    assert_eq!(all, [counts().buffers(); 4]);
}

/// Which of what has arrived came by its buffer, before it is looked at.
fn exchanged(net: &mut Net, port: usize) -> Vec<bool> {
    let rx = &mut net.clients[port].rx;
    let count = rx.refresh();
    (0..count).map(|i| rx.flags(i) & slot_flag::BUF_CHANGED != 0).collect()
}

#[test]
fn members_get_buffers_strangers_and_many_get_copies_and_all_stay_whole() {
    let (mut net, [desk, other], region) = office(u32::MAX);
    for round in 0..40 {
        let sent = [2, 3, 4, 2, 255].map(|to| {
            let to = if to == 255 { ALL } else { mac(to) };
            frame(to, mac(0), 60 + usize::from(round) * 30, round)
        });
        sent.iter().for_each(|frame| desk.arrives.send(frame.clone()).expect("open"));
        net.turn(0);
        let [a, b, c, d, all] = sent;
        assert_eq!(exchanged(&mut net, 2), [true, true, false]);
        assert_eq!(exchanged(&mut net, 4), [false, false]);
        assert_eq!(net.received(2), [a, d, all.clone()]);
        assert_eq!(net.received(3), [b, all.clone()]);
        assert_eq!(net.received(4), [c, all.clone()]);
        assert_eq!(other.sent.try_iter().collect::<Vec<_>>(), [(all, true)]);
        assert_whole(&region);
    }
}

#[test]
fn what_members_send_goes_from_where_it_lies_and_from_desk_to_desk_too() {
    let (mut net, [desk, other], region) = office(u32::MAX);
    for round in 0..40 {
        let of = |from, to| frame(mac(to), mac(from), 100 + usize::from(round) * 30, round);
        net.send(2, &[of(2, 0), of(2, 1), of(2, 0)]);
        net.turn(2);
        net.send(4, &[of(4, 0)]);
        net.turn(4);
        net.received(2);
        net.received(4);
        let seen: Vec<_> = desk.sent.try_iter().collect();
        assert_eq!(seen, [(of(2, 0), false), (of(2, 0), false), (of(4, 0), true)]);
        desk.arrives.send(of(0, 1)).expect("open");
        net.turn(0);
        let seen: Vec<_> = other.sent.try_iter().collect();
        assert_eq!(seen, [(of(2, 1), false), (of(0, 1), false)]);
        assert_whole(&region);
    }
}

#[test]
fn a_desk_gets_only_what_it_can_use_and_what_is_its_givers() {
    // The buffers of the last member lie behind those that the desks can use.
    let (mut net, [desk, _other], region) =
        office(ring::abi::FIRST_BUFFER + 3 * counts().buffers());
    for to in [2, 3] {
        desk.arrives.send(frame(mac(to), mac(0), 60, 1)).expect("open");
        net.turn(0);
        assert_eq!(exchanged(&mut net, to.into()), [to == 2]);
        assert_eq!(net.received(to.into()).len(), 1);
    }
    net.send(3, &[frame(mac(0), mac(3), 60, 1)]);
    net.turn(3);
    // A member sends what is the desk's.
    let others = ring::abi::FIRST_BUFFER;
    net.clients[2].tx.refresh();
    net.clients[2].tx.set_buffer_index(0, others);
    net.send(2, &[frame(mac(0), mac(2), 60, 1)]);
    net.turn(2);
    assert_eq!(desk.sent.try_iter().map(|(_, copied)| copied).collect::<Vec<_>>(), [true, true]);
    assert_whole(&region);
}
