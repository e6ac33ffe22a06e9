//! Mirrored ports, and the rings of the mirrors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use switch::{Clock, Mirror, MirrorPoint, MirrorSource};

use super::*;

/// Counts instead of ringing.
struct Count(Arc<AtomicU32>);

impl Wake for Count {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Net {
    /// A mirror in a region of its own; returns its place and its client's number.
    pub(super) fn add_mirror(&mut self, woken: &Arc<AtomicU32>) -> (usize, usize) {
        self.add_mirror_with_clock(woken, None)
    }

    fn add_mirror_with_clock(
        &mut self,
        woken: &Arc<AtomicU32>,
        clock: Option<Clock>,
    ) -> (usize, usize) {
        let port = PortLayout::new(FIRST_BLOCK, counts());
        let size = port.end() - FIRST_BLOCK;
        let layout = RegionLayout::new(size, DEFAULT_STRIDE, counts().buffers()).expect("legal");
        let (region, fd) = Region::create("test", layout).expect("memory");
        region.format_port("test", &port, region.buffers(), true).expect("memory");
        let client = Region::attach(fd.as_fd(), layout).expect("sealed");
        let (tx, rx) = (TxRing::new(&client, &port, 0), RxRing::new(&client, &port, 0));
        self.clients.push(Client { tx, rx, region: client });
        let mirror = Mirror::new(Krings::new(&region, &port), Arc::new(Count(woken.clone())));
        let mirror = mirror.with_clock(clock);
        // The daemon keeps a region for as long as its client has it.
        std::mem::forget(region);
        (self.switch.add_mirror(mirror), self.clients.len() - 1)
    }

    fn mirror_port(&mut self, port: usize, place: usize, point: MirrorPoint) {
        self.switch.mirror_port(id(port), place, MirrorSource { point, rings: 0..1 });
    }
}

fn frames(to: u8, from: u8, count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|i| frame(mac(to), mac(from), 60, i)).collect()
}

#[test]
fn a_monitor_sees_what_a_port_sends_and_receives_whichever_way_it_goes() {
    let mut net = Net::learning(3);
    net.introduce();
    let woken = Arc::default();
    let (place, eye) = net.add_mirror(&woken);
    net.mirror_port(1, place, MirrorPoint::Sent);
    net.mirror_port(1, place, MirrorPoint::Received);
    let mut seen = Vec::new();
    // A run, a flood, interleaved destinations, a chain, and what is dropped.
    net.send(0, &frames(1, 0, 10));
    seen.extend(frames(1, 0, 10));
    net.turn(0);
    net.send(1, &[frame(ALL, mac(1), 60, 9)]);
    seen.push(frame(ALL, mac(1), 60, 9));
    net.turn(1);
    assert_eq!(net.received(eye), seen);
    let mixed: Vec<_> = (0..8).map(|i| frame(mac(1 + i % 2), mac(0), 60, i)).collect();
    net.send(0, &mixed);
    net.turn(0);
    let whole = frame(mac(0), mac(1), 300, 7);
    net.send_chain(1, &[&whole[..100], &whole[100..]]);
    net.turn(1);
    let lost = frame(mac(1), mac(1), 60, 5);
    net.send(1, std::slice::from_ref(&lost));
    net.turn(1);
    let mut seen: Vec<_> = mixed.into_iter().step_by(2).collect();
    seen.extend([whole, lost]);
    assert_eq!(net.received(eye), seen);
    assert_eq!(net.received(1).len(), 14);
    net.switch.remove_mirror(place).expect("there it was");
    net.send(0, &frames(1, 0, 3));
    net.turn(0);
    assert_eq!((net.received(eye).len(), net.received(1).len()), (0, 3));
}

#[test]
fn a_monitor_that_sleeps_is_woken_and_one_that_does_not_read_holds_nobody_up() {
    let mut net = Net::learning(2);
    net.introduce();
    let woken: Arc<AtomicU32> = Arc::default();
    let (place, eye) = net.add_mirror(&woken);
    net.mirror_port(1, place, MirrorPoint::Received);
    assert!(net.clients[eye].rx.arm(1));
    for _ in 0..10 {
        net.send(0, &frames(1, 0, 15));
        assert_eq!(net.turn(0).slots, 15);
        assert_eq!(net.received(1).len(), 15);
    }
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert_eq!(net.received(eye).len(), 31);
    let mirror = net.switch.remove_mirror(place).expect("there it was");
    assert_eq!(mirror.missed(), 150 - 31);
}

#[test]
fn what_has_been_returned_is_seen_before_the_slot_is_used_again() {
    let mut net = Net::learning(2);
    net.introduce();
    let (place, eye) = net.add_mirror(&Arc::default());
    net.mirror_port(1, place, MirrorPoint::Returned);
    let (mut seen, mut sent) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        sent.extend(frames(1, 0, 15));
        net.send(0, &frames(1, 0, 15));
        assert_eq!(net.turn(0).slots, 15);
        seen.extend(net.received(eye));
        assert_eq!(net.received(1).len(), 15);
    }
    assert!((240..sent.len()).contains(&seen.len()), "not before, and not later than needed");
    // No port sends, and yet the mirror gets it, at a turn of the port itself.
    net.turn(1);
    seen.extend(net.received(eye));
    assert_eq!(seen, sent);
    net.switch.remove_mirror(place);
    assert_eq!(net.drops(1, DropReason::NoRoom), 0);
}

#[test]
fn a_port_without_rings_is_mirrored_both_ways_with_the_time() {
    let mut net = Net::learning(2);
    let (wire, sent) = adapters::Wire::new(vec![frame(mac(1), mac(5), 60, 7)]);
    net.switch.add_port(id(2), Plug::adapter(Box::new(wire)), PortConfig::default());
    let (place, eye) = net.add_mirror_with_clock(&Arc::default(), Some(|| 1_234_567));
    for point in [MirrorPoint::Sent, MirrorPoint::Received] {
        net.switch.mirror_port(id(2), place, MirrorSource { point, rings: 0..u16::MAX });
    }
    net.turn(2);
    let answer = frame(mac(5), mac(1), 70, 8);
    net.send(1, std::slice::from_ref(&answer));
    net.turn(1);
    assert_eq!(sent.try_iter().collect::<Vec<_>>(), std::slice::from_ref(&answer));
    let rx = &mut net.clients[eye].rx;
    assert_eq!(rx.refresh(), 2);
    let seen: Vec<_> = (0..2).map(|i| (rx.flags(i), rx.metadata(i))).collect();
    assert_eq!(seen, [(slot_flag::TXMON, 1_234_567), (0, 1_234_567)]);
    assert_eq!(net.received(eye), [frame(mac(1), mac(5), 60, 7), answer]);
    net.switch.remove_mirror(place).expect("there it was");
}
