//! Dropped frames, and the mirrors that get them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use packet::dropped::Dropped;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReasons, Notify, PortStats, Sent};

use super::*;

/// A frame that was shown: the reason, the port that counts it, the one it came from, its bytes.
pub(super) type Shown = (String, usize, usize, Vec<u8>);

impl Net {
    /// A mirror of drops; returns its place and its client's number.
    pub(super) fn watch_drops(&mut self, reasons: DropReasons) -> (usize, usize) {
        let (place, eye) = self.add_mirror(&Arc::default());
        self.switch.mirror_drops(place, reasons);
        (place, eye)
    }

    pub(super) fn shown(&mut self, eye: usize) -> Vec<Shown> {
        let each = |bytes: Vec<u8>| {
            let (dropped, frame) = Dropped::split(&bytes).expect("a head");
            let Dropped { reason, at, from } = dropped;
            (reason.to_owned(), at.index(), from.index(), frame.to_vec())
        };
        self.received(eye).into_iter().map(each).collect()
    }
}

fn shown(reason: DropReason, at: usize, from: usize, frames: &[Vec<u8>]) -> Vec<Shown> {
    frames.iter().map(|frame| (reason.name().to_owned(), at, from, frame.clone())).collect()
}

fn frames(to: u8, count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|i| frame(mac(to), mac(0), 60 + usize::from(i), i)).collect()
}

#[test]
fn a_run_that_goes_nowhere_is_shown_with_reason_and_port() {
    let mut net = Net::learning(2);
    net.introduce();
    let (place, eye) = net.watch_drops(DropReasons::ALL);
    for port in 0..2 {
        net.switch.set_port(id(port), PortConfig { isolated: true, ..PortConfig::default() });
    }
    net.send(0, &frames(1, 12));
    net.turn(0);
    assert_eq!(net.shown(eye), shown(DropReason::Isolated, 0, 0, &frames(1, 12)));
    net.switch.remove_mirror(place).expect("it was there");
    net.send(0, &frames(1, 12));
    net.turn(0);
    assert!(net.shown(eye).is_empty());
    assert_eq!(net.drops(0, DropReason::Isolated), 24);
}

#[test]
fn what_finds_no_room_is_shown_whichever_way_it_went() {
    let mut net = Net::learning(3);
    net.introduce();
    let (_, eye) = net.watch_drops(DropReasons::only(DropReason::NoRoom));
    // Runs fill the ring, and the last one is cut short.
    net.send(0, &frames(1, 16));
    net.turn(0);
    net.send(0, &frames(1, 16));
    net.turn(0);
    assert_eq!(net.shown(eye), shown(DropReason::NoRoom, 1, 0, &frames(1, 16)[15..]));
    // Interleaved destinations are sent as lists.
    let mixed: Vec<_> = (0..8).map(|i| frame(mac(1 + i % 2), mac(0), 60, i)).collect();
    net.send(0, &mixed);
    net.turn(0);
    let lost: Vec<_> = mixed.iter().step_by(2).cloned().collect();
    assert_eq!(net.shown(eye), shown(DropReason::NoRoom, 1, 0, &lost));
    assert_eq!(net.received(2).len(), 4, "others get theirs");
    // A frame of several slots.
    let long = frame(mac(1), mac(0), 1000, 7);
    net.send_chain(0, &[&long[..500], &long[500..]]);
    net.turn(0);
    assert_eq!(net.shown(eye), shown(DropReason::NoRoom, 1, 0, &[long]));
}

#[test]
fn a_flood_that_reaches_no_port_is_shown() {
    let mut net = Net::learning(2);
    net.introduce();
    let (_, eye) = net.watch_drops(DropReasons::ALL);
    for port in 0..2 {
        net.switch.set_port(id(port), PortConfig { isolated: true, ..PortConfig::default() });
    }
    let flood = frame(ALL, mac(0), 60, 9);
    net.send(0, std::slice::from_ref(&flood));
    net.turn(0);
    assert_eq!(net.drops(0, DropReason::NoDestination), 1);
    assert_eq!(net.shown(eye), shown(DropReason::NoDestination, 0, 0, &[flood]));
}

#[test]
fn only_the_reasons_that_are_asked_for_are_shown_to_each() {
    let mut net = Net::learning(2);
    net.introduce();
    let (_, vlan) = net.watch_drops(DropReasons::only(DropReason::Vlan));
    let (_, back) = net.watch_drops(DropReasons::only(DropReason::SamePort));
    let own = frame(mac(0), mac(0), 60, 3);
    net.send(0, std::slice::from_ref(&own));
    net.turn(0);
    assert!(net.shown(vlan).is_empty());
    assert_eq!(net.shown(back), shown(DropReason::SamePort, 0, 0, &[own]));
}

/// A port that is down, or refuses every second frame. It counts how often it is called.
struct Picky {
    is_down: bool,
    calls: Arc<AtomicU32>,
}

impl Adapter for Picky {
    fn send(&mut self, _: &Batch, list: &[Delivery]) -> Sent {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut number = 0;
        Sent::each(list, |_| {
            number += 1;
            match number % 2 {
                _ if self.is_down => Err(DropReason::LinkDown),
                0 => Err(DropReason::TooLong),
                _ => Ok(60),
            }
        })
    }
}

impl Notify for Picky {}

/// What is shown and missed of eight frames for a port without rings, what it counts, and how often
/// it is called.
fn to_picky(is_down: bool, is_watched: bool) -> (Vec<Shown>, u64, PortStats, u32) {
    let mut net = Net::learning(1);
    let calls = Arc::<AtomicU32>::default();
    let port = Picky { is_down, calls: calls.clone() };
    net.switch.add_port(id(1), Plug::adapter(Box::new(port)), PortConfig::default());
    let watch = is_watched.then(|| net.watch_drops(DropReasons::ALL));
    net.send(0, &floods());
    net.turn(0);
    let stats = net.switch.stats(id(1)).expect("a port").clone();
    let (seen, missed) = watch.map_or((Vec::new(), 0), |(place, eye)| {
        (net.shown(eye), net.switch.remove_mirror(place).expect("there").missed())
    });
    (seen, missed, stats, calls.load(Ordering::Relaxed))
}

fn floods() -> Vec<Vec<u8>> {
    (0..8).map(|i| frame(ALL, mac(0), 60, i)).collect()
}

#[test]
fn a_port_without_rings_gets_its_lists_whole_and_what_it_names_is_shown() {
    let (seen, missed, counted, calls) = to_picky(true, true);
    assert_eq!((seen, missed), (shown(DropReason::LinkDown, 1, 0, &floods()), 0));
    assert_eq!((counted, calls), (to_picky(true, false).2, to_picky(true, false).3));
    // Which of them it refused it does not say.
    let (seen, missed, counted, calls) = to_picky(false, true);
    assert_eq!((seen, missed), (Vec::new(), counted.drops.total()));
    assert!(missed > 0);
    assert_eq!((counted, calls), (to_picky(false, false).2, to_picky(false, false).3));
}

#[test]
fn a_mirror_that_does_not_read_misses_frames_and_changes_no_count() {
    let [mut with, mut without] = [(); 2].map(|()| {
        let mut net = Net::learning(2);
        net.introduce();
        net
    });
    let (place, _) = with.watch_drops(DropReasons::ALL);
    for net in [&mut with, &mut without] {
        for _ in 0..5 {
            net.send(0, &frames(1, 8));
            net.send(0, &frames(0, 8));
            net.turn(0);
        }
    }
    for port in 0..2 {
        assert_eq!(with.switch.stats(id(port)), without.switch.stats(id(port)));
    }
    assert_eq!(with.received(1), without.received(1));
    let lost = with.drops(0, DropReason::SamePort) + with.drops(1, DropReason::NoRoom);
    let mirror = with.switch.remove_mirror(place).expect("it was there");
    assert_eq!(mirror.missed(), lost - u64::from(SLOTS - 1));
}

#[test]
fn a_virtio_net_header_is_not_shown() {
    let mut net = Net::learning(2);
    net.introduce();
    let (_, eye) = net.watch_drops(DropReasons::ALL);
    net.switch
        .set_port(id(0), PortConfig { vnet_header: 12, isolated: true, ..PortConfig::default() });
    net.switch.set_port(id(1), PortConfig { isolated: true, ..PortConfig::default() });
    let plain = frame(mac(1), mac(0), 60, 5);
    net.send_chain(0, &[&[&[0; 12], &plain[..]].concat()]);
    net.turn(0);
    assert_eq!(net.shown(eye), shown(DropReason::Isolated, 0, 0, &[plain]));
}
