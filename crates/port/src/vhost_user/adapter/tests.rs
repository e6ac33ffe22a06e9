//! The worker's side alone, with drivers that make what they like.

mod full;

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use device::virtqueue::{Direction, Places, Queue};
use ring::guest::{Extent, GuestMapping, GuestMemory, Window};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use switch::Notify;
use switch::decide::bridge::TagAction;

use super::super::handoff::{Handoff, Queues, pair};
use super::*;
use crate::sys::SlowCalls;
use crate::sys::vhost::Call;

/// The guest's memory: 128 KiB for each queue, a buffer of zeros behind the four.
const BYTES: u64 = 1 << 20;
const USER: u64 = 1 << 40;
const QUEUE: u64 = 1 << 17;
const DRIVER: u64 = 1 << 15;
const DEVICE: u64 = 1 << 16;
const BUFFER: u64 = 4 * QUEUE;
const SIZE: u16 = 2048;
const WRITE: u16 = 2;
const NEXT: u16 = 1;
/// A frame of 60 bytes behind its header.
const USUAL_BUFFER: u32 = 72;

struct Guest {
    file: OwnedFd,
    memory: Arc<GuestMemory>,
    whole: Window,
}

fn at(address: u64) -> usize {
    usize::try_from(address).expect("small")
}

impl Guest {
    fn new() -> Self {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, BYTES).expect("ours");
        let lent = GuestMapping::map(&file, 0, at(BYTES)).expect("memory");
        let extent = Extent { guest: 0, user: USER, size: BYTES, offset: 0, lent };
        let memory = GuestMemory::new(vec![extent]).expect("one");
        let whole = memory.window(USER, at(BYTES), 1).expect("all of it");
        Self { file, memory: Arc::new(memory), whole }
    }

    /// A machine with two pairs of queues.
    fn machine(&self) -> Machine {
        self.machine_and_handoff().0
    }

    /// A machine, and the protocol thread's end of its hand-off.
    fn machine_and_handoff(&self) -> (Machine, Handoff) {
        let (handoff, orders) = pair().expect("descriptors");
        let requests = Arc::new(Requests::new().expect("descriptors"));
        let kicks = Arc::new(KickPlace::new().expect("descriptors"));
        let event = Arc::new(Event::new().expect("descriptors"));
        let made = Machine::new(4, None, orders, &requests, &kicks, &event);
        let mut machine = made.expect("memory");
        for queue in 0..4 {
            machine.rings[queue] = Some(Box::new(self.ring(queue)));
        }
        (machine, handoff)
    }

    fn ring(&self, queue: usize) -> Ring {
        let base = USER + QUEUE * queue as u64;
        let places = Places { descriptors: base, driver: base + DRIVER, device: base + DEVICE };
        let direction = if queue.is_multiple_of(2) { Direction::Write } else { Direction::Read };
        let made = Queue::new(&self.memory, places, direction, SIZE.into(), 0, 0);
        Ring {
            queue: made.expect("a good queue"),
            memory: self.memory.clone(),
            call: None,
            log: None,
            log_call: None,
            enabled: true,
            header: HEADER_MAX,
            mergeable: true,
            accepts: Offloads::NONE,
            most: 0,
            trouble: None,
        }
    }

    /// A descriptor of this many bytes, and the one behind it.
    fn describe(&self, queue: u64, slot: u16, len: u32, flags: u16, next: u16) {
        let place = at(QUEUE * queue + 16 * u64::from(slot));
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.whole.u64(place).store(BUFFER, Relaxed);
        self.whole.u64(place + 8).store(rest, Relaxed);
    }

    /// Makes the first descriptor available as if it were this many.
    fn make(&self, queue: u64, count: u16) {
        self.whole.u16(at(QUEUE * queue + DRIVER + 2)).store(count, Release);
    }

    /// Waits until the machine has frames, or room for them.
    fn load(&self, queue: u64, len: u32, count: u16) {
        let flags = if queue.is_multiple_of(2) { WRITE } else { 0 };
        self.describe(queue, 0, len, flags, 0);
        self.make(queue, count);
    }

    /// Buffers that were given back.
    fn used(&self, queue: u64) -> u16 {
        self.whole.u16(at(QUEUE * queue + DEVICE + 2)).load(Relaxed)
    }
}

fn turn(machine: &mut Machine) -> (Batch, Drops) {
    let (mut batch, mut drops) = (Batch::new(256), Drops::default());
    machine.recv(&mut batch, &mut drops);
    machine.delivered();
    (batch, drops)
}

fn untimed() -> Arc<SlowCalls> {
    Arc::new(SlowCalls::unreported())
}

#[test]
fn buffers_that_are_thrown_away_end_a_turn_too() {
    let guest = Guest::new();
    let mut machine = guest.machine();
    guest.load(1, 13, SIZE);
    guest.load(3, 13, SIZE);
    for turns in 1..=20u16 {
        let (batch, drops) = turn(&mut machine);
        assert_eq!((batch.frames().len(), drops.get(DropReason::TooShort)), (0, 64));
        assert_eq!(guest.used(1) + guest.used(3), 64 * turns);
        assert!(machine.pending(), "the rest is not forgotten");
    }
}

#[test]
fn pieces_that_are_looked_at_end_a_turn() {
    let guest = Guest::new();
    let mut machine = guest.machine();
    for slot in 0..1024 {
        let next = if slot < 1023 { 1 } else { 0 };
        guest.describe(1, slot, 256, next, slot + 1);
    }
    guest.make(1, SIZE);
    let (_, drops) = turn(&mut machine);
    assert_eq!((drops.get(DropReason::TooLong), machine.pending()), (1, true));
}

#[test]
fn long_frames_are_few_in_a_turn() {
    let guest = Guest::new();
    let mut machine = guest.machine();
    guest.load(1, 65_536, SIZE);
    let (mut batch, mut drops) = (Batch::new(256), Drops::default());
    machine.recv(&mut batch, &mut drops);
    assert_eq!(batch.frames().len(), 4);
    machine.delivered();
    assert!(machine.pending());
}

#[test]
fn an_interrupt_that_was_put_off_comes_before_the_port_goes() {
    let guest = Guest::new();
    let Owing { machine, event, .. } = owes_an_interrupt(&guest);
    drop(machine);
    assert_eq!(interrupts(&event), 1);
}

#[test]
fn no_transmit_queue_starves_another() {
    let guest = Guest::new();
    let mut machine = guest.machine();
    // One pair alone fills a turn, or nearly so.
    for load in [64, 60] {
        let before = [1, 3].map(|queue| guest.used(queue));
        for turns in 1..=10 {
            guest.load(1, USUAL_BUFFER, (before[0] + load * turns).max(guest.used(1)));
            guest.load(3, USUAL_BUFFER, before[1] + 64 * turns);
            assert!(!turn(&mut machine).0.frames().is_empty());
        }
        let taken = [0, 1].map(|i| guest.used([1, 3][i]) - before[i]);
        assert!(taken.iter().all(|taken| *taken >= 250), "{taken:?} of {load}");
        // What was left over.
        while machine.pending() {
            turn(&mut machine);
        }
    }
}

#[test]
fn memory_that_was_taken_away_is_known_for_what_it_is() {
    for (frames, queue) in [(100, 1), (0, 0)] {
        let guest = Guest::new();
        let mut machine = guest.machine();
        guest.load(1, USUAL_BUFFER, frames);
        while machine.pending() {
            turn(&mut machine);
        }
        ftruncate(&guest.file, 0).expect("ours");
        turn(&mut machine);
        machine.arm();
        let trouble = machine.rings[queue].as_ref().and_then(|ring| ring.trouble);
        assert_eq!(trouble, Some(Trouble::Lost), "after {frames} frames");
    }
}

#[test]
fn a_queue_of_tiny_buffers_is_full_once_for_all_frames() {
    let guest = Guest::new();
    let mut machine = guest.machine();
    guest.load(0, 1, SIZE);
    guest.load(2, 1, SIZE);
    let sender = Guest::new();
    let mut other = sender.machine();
    sender.load(1, 1500, 8);
    let (batch, _) = turn(&mut other);
    assert_eq!(batch.frames().len(), 8);
    let list: Vec<_> = (0..8).map(|frame| Delivery { frame, tag: TagAction::Keep }).collect();
    let sent = machine.send(&batch, &list);
    assert_eq!(sent.drops.get(DropReason::NoRoom), 8);
    assert_eq!(machine.full, [2], "the other one has not been asked: the same flow");
    // The same in one buffer, of a driver that knows no other.
    machine.rings[2] = Some(Box::new(Ring { mergeable: false, ..guest.ring(2) }));
    (0..1000).for_each(|slot| guest.describe(2, slot, 1, WRITE | u16::from(slot < 999), slot + 1));
    assert_eq!(machine.send(&batch, &list).drops.get(DropReason::NoRoom), 8);
    guest.load(2, 1499, SIZE);
    assert_eq!(machine.send(&batch, &list).drops.get(DropReason::TooLong), 8);
    machine.rings[2] = Some(Box::new(guest.ring(2)));
    // A few more bytes, and as many frames as it has buffers for.
    guest.load(2, 2, SIZE);
    assert_eq!(machine.send(&batch, &list).delivered.frames, 2);
    assert_eq!(guest.used(2), 2 * 750);
}

#[test]
fn tiny_buffers_do_not_make_a_turn_long() {
    let (guest, sender) = (Guest::new(), Guest::new());
    let (batch, list) = frames_of(&sender, &[1500; 48]);
    let mut machine = with_one_queue(&guest);
    // Each frame takes one chain of 756 buffers, and there are chains for all frames.
    guest.load(0, 2, SIZE);
    (0..756).for_each(|slot| guest.describe(0, slot, 2, WRITE | u16::from(slot < 755), slot + 1));
    let sent = machine.send(&batch, &list);
    assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::NoRoom)), (2, 46));
    // Buffers of an ordinary size are for all of them.
    guest.describe(0, 0, 300, WRITE | NEXT, 1);
    (1..6).for_each(|slot| guest.describe(0, slot, 300, WRITE | u16::from(slot < 5), slot + 1));
    let sent = machine.send(&batch, &list);
    assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::NoRoom)), (48, 0));
}

#[test]
fn frames_stay_where_they_are_until_they_are_delivered() {
    let guest = Guest::new();
    let mut machine = guest.machine();
    // Each in many pieces, of which the first ones hold the header and a part of the addresses.
    let place = at(BUFFER);
    (0..96).for_each(|i| guest.whole.u16(place + 2 * i).store(i.try_into().expect("few"), Relaxed));
    for slot in 0..8 {
        let (len, next) = if slot < 7 { (17, NEXT) } else { (31, 0) };
        guest.describe(1, slot, len, next, slot + 1);
    }
    guest.make(1, 1);
    let (mut batch, mut drops) = (Batch::new(256), Drops::default());
    machine.recv(&mut batch, &mut drops);
    assert_eq!((batch.frames().len(), guest.used(1)), (1, 0), "nothing was given back");
    let pieces: Vec<u8> = (0..17).map(|i| if i % 2 == 0 { i / 2 } else { 0 }).collect();
    let chain = [pieces.repeat(7), (0..31).map(|i| if i % 2 == 0 { i / 2 } else { 0 }).collect()];
    let frame = &chain.concat()[12..];
    let mut out = Vec::new();
    batch.append(Delivery { frame: 0, tag: TagAction::Keep }, &mut out);
    assert_eq!(out, frame);
    out.clear();
    let vlan = "10".parse().expect("a VLAN");
    batch.append(Delivery { frame: 0, tag: TagAction::Insert(vlan) }, &mut out);
    assert_eq!(out, [&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat());
    // Straight into another machine, and then back to the first one's driver.
    let other = Guest::new();
    let mut receiver = other.machine();
    other.load(0, 2000, 1);
    other.load(2, 2000, 1);
    let sent = receiver.send(&batch, &[Delivery { frame: 0, tag: TagAction::Keep }]);
    assert_eq!((sent.delivered.frames, other.used(0) + other.used(2)), (1, 1));
    let got: Vec<u8> = (0..frame.len().div_ceil(2))
        .flat_map(|i| other.whole.u16(place + 12 + 2 * i).load(Relaxed).to_le_bytes())
        .collect();
    assert_eq!(got[..frame.len()], *frame);
    machine.delivered();
    assert_eq!(guest.used(1), 1);
}

/// A driver that wants to be interrupted for all that it gets, and how often it was.
fn wants_interrupts(guest: &Guest, coalesce: Option<Coalesce>) -> (Machine, OwnedFd) {
    let event = eventfd(0, EventfdFlags::NONBLOCK).expect("descriptors");
    let mut machine = guest.machine();
    machine.moderation.fill(Moderation::new(coalesce));
    let call = Call::new(event.try_clone().expect("descriptors"), &untimed()).expect("an eventfd");
    machine.rings[0] = Some(Box::new(Ring { call: Some(Arc::new(call)), ..guest.ring(0) }));
    // Whatever the flow, it gets this one.
    machine.rings[2] = None;
    (machine, event)
}

fn interrupts(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

/// Eight frames to the same station.
fn eight_frames(sender: &Guest) -> (Batch, Vec<Delivery>) {
    let mut other = sender.machine();
    sender.load(1, USUAL_BUFFER, 8);
    let (batch, _) = turn(&mut other);
    (batch, (0..8).map(|frame| Delivery { frame, tag: TagAction::Keep }).collect())
}

/// A machine that owes its driver an interrupt for the second of two frames.
struct Owing {
    machine: Machine,
    event: OwnedFd,
    batch: Batch,
    list: Vec<Delivery>,
}

fn owes_an_interrupt(guest: &Guest) -> Owing {
    let (batch, list) = eight_frames(&Guest::new());
    let (mut machine, event) =
        wants_interrupts(guest, Some(Coalesce { frames: 0, usecs: u16::MAX }));
    guest.load(0, 1514, SIZE);
    for delivery in &list[..2] {
        machine.send(&batch, &[*delivery]);
        machine.flush();
    }
    assert_eq!((interrupts(&event), machine.owes_wake()), (1, true));
    Owing { machine, event, batch, list }
}

#[test]
fn a_driver_that_cannot_keep_up_loses_frames_and_not_its_processor() {
    const ROUNDS: u16 = 20_000;
    let (guest, sender) = (Guest::new(), Guest::new());
    let (batch, list) = eight_frames(&sender);
    let usecs = 1000;
    let (mut machine, event) = wants_interrupts(&guest, Some(Coalesce { frames: 0, usecs }));
    let (start, mut sent) = (Instant::now(), Sent::default());
    for round in 1..=ROUNDS {
        // It makes room for one of eight frames.
        guest.load(0, 1514, round);
        let now = machine.send(&batch, &list);
        sent.delivered.add(now.delivered.frames, now.delivered.bytes);
        sent.drops.add(DropReason::NoRoom, now.drops.get(DropReason::NoRoom));
        machine.flush();
        machine.wake_if_due();
    }
    assert_eq!(sent.delivered.frames, u64::from(ROUNDS));
    assert_eq!(sent.drops.get(DropReason::NoRoom), 7 * u64::from(ROUNDS));
    let most = start.elapsed().as_millis() + 1;
    let told = interrupts(&event);
    assert!((1..=most).contains(&told.into()), "{told} interrupts, {most} milliseconds");
    // One that takes nothing is not interrupted any more.
    for _ in 0..ROUNDS {
        assert_eq!(machine.send(&batch, &list).drops.get(DropReason::NoRoom), 8);
        machine.flush();
        machine.wake_if_due();
    }
    assert!(interrupts(&event) <= 1);
}

#[test]
fn single_frames_interrupt_at_once_and_of_a_stream_many_do() {
    let (guest, sender) = (Guest::new(), Guest::new());
    let (batch, list) = eight_frames(&sender);
    let (mut machine, event) = wants_interrupts(&guest, None);
    guest.load(0, 1514, SIZE);
    // Fewer than make a millisecond busy, however fast they are.
    for _ in 0..50 {
        machine.send(&batch, &list[..1]);
        machine.flush();
        assert_eq!((interrupts(&event), machine.owes_wake()), (1, false));
    }
    let stream: Vec<Delivery> = list.iter().copied().cycle().take(64).collect();
    for _ in 0..20 {
        machine.send(&batch, &stream);
        machine.flush();
        assert_eq!(
            (interrupts(&event), machine.owes_wake()),
            (1, false),
            "the limit of frames ends the wait"
        );
    }
}

/// What comes of orders that are given while the worker takes turns: the frames of all of them.
fn meanwhile<T: Send>(
    machine: &mut Machine,
    mut handoff: Handoff,
    orders: impl FnOnce(&mut Handoff) -> T + Send,
) -> (T, Vec<Vec<u8>>) {
    std::thread::scope(|scope| {
        let orders = scope.spawn(move || orders(&mut handoff));
        let (mut batch, mut drops, mut frames) = (Batch::new(256), Drops::default(), Vec::new());
        loop {
            let last = orders.is_finished();
            machine.recv(&mut batch, &mut drops);
            for frame in 0..batch.frames().len() {
                let frame = u16::try_from(frame).expect("few");
                frames.push(Vec::new());
                let whole = Delivery { frame, tag: TagAction::Keep };
                batch.append(whole, frames.last_mut().expect("just pushed"));
            }
            batch.clear();
            machine.delivered();
            if last {
                return (orders.join().expect("it does not panic"), frames);
            }
        }
    })
}

#[test]
fn a_queue_is_taken_and_put_back_between_two_turns() {
    let guest = Guest::new();
    let (mut machine, handoff) = guest.machine_and_handoff();
    guest.load(1, USUAL_BUFFER, 10);
    assert_eq!(turn(&mut machine).0.frames().len(), 10);
    let event = eventfd(0, EventfdFlags::NONBLOCK).expect("descriptors");
    let call = Arc::new(
        Call::new(event.try_clone().expect("descriptors"), &untimed()).expect("an eventfd"),
    );
    let ((gone, missing), none) = meanwhile(&mut machine, handoff, |mut handoff| {
        let mut gone = handoff.swap(1, None);
        gone.as_mut().expect("it was there").call = Some(call);
        let missing = handoff.swap(1, gone).is_none();
        (handoff.swap(1, None), missing)
    });
    let gone = gone.expect("it was put there");
    assert_eq!((gone.queue.base(), missing, none.len()), (10, true, 0));
    assert!(interrupts(&event) > 0, "its driver may have been told of nothing since");
    // It goes on where it was.
    guest.make(1, 15);
    assert_eq!(turn(&mut machine).0.frames().len(), 0, "no port has it");
    machine.rings[1] = Some(gone);
    assert_eq!(turn(&mut machine).0.frames().len(), 5);
}

/// Evicts the frontend; its protocol thread does nothing about that.
fn evict(machine: &Machine) {
    machine.requests.evict(Duration::ZERO, "it is too loud".to_owned());
}

#[test]
fn queues_of_an_evicted_frontend_are_not_served() {
    let guest = Guest::new();
    let Owing { mut machine, event, batch, list } = owes_an_interrupt(&guest);
    evict(&machine);
    guest.load(1, USUAL_BUFFER, 10);
    assert!(!machine.pending());
    assert_eq!((turn(&mut machine).0.frames().len(), guest.used(1)), (0, 0));
    let sent = machine.send(&batch, &list);
    machine.flush();
    assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::LinkDown)), (0, 8));
    assert_eq!((guest.used(0), machine.room()), (2, u32::MAX), "no sender waits for it");
    machine.wake_if_due();
    assert!(!machine.owes_wake());
    drop(machine);
    assert_eq!(interrupts(&event), 0);
}

#[test]
fn a_batch_that_was_taken_before_the_eviction_is_delivered_without_an_interrupt() {
    let (guest, event) = (Guest::new(), eventfd(0, EventfdFlags::NONBLOCK).expect("descriptors"));
    let call = Call::new(event.try_clone().expect("descriptors"), &untimed()).expect("an eventfd");
    let mut machine = guest.machine();
    machine.rings[1] = Some(Box::new(Ring { call: Some(Arc::new(call)), ..guest.ring(1) }));
    guest.load(1, USUAL_BUFFER, 3);
    let mut batch = Batch::new(256);
    machine.recv(&mut batch, &mut Drops::default());
    assert_eq!(batch.frames().len(), 3);
    evict(&machine);
    machine.delivered();
    machine.flush();
    assert_eq!((guest.used(1), interrupts(&event)), (3, 0));
}

#[test]
fn an_evicted_frontend_gets_its_queues_back_and_the_next_one_is_served() {
    let guest = Guest::new();
    let (mut machine, handoff) = guest.machine_and_handoff();
    let requests = machine.requests.clone();
    guest.load(1, USUAL_BUFFER, 10);
    let event = eventfd(0, EventfdFlags::NONBLOCK).expect("descriptors");
    let call = Call::new(event.try_clone().expect("descriptors"), &untimed()).expect("an eventfd");
    evict(&machine);
    let (early, frames) = meanwhile(&mut machine, handoff, |mut handoff| {
        let mut rings: Vec<_> = (0..4).map(|at| handoff.swap(at, None)).collect();
        let mut ring = rings.swap_remove(1).expect("it was there");
        ring.call = Some(Arc::new(call));
        // The thread does not know of the eviction yet.
        assert!(handoff.swap(1, Some(ring)).is_none());
        handoff.announce([2, 0, 0, 0, 0, 9]);
        let ring = handoff.swap(1, None).expect("it was put there");
        let early = (ring.queue.base(), interrupts(&event));
        handoff.begin(requests.wait_for_admission(None, drop).expect("the port stays"));
        assert!(handoff.swap(1, Some(ring)).is_none());
        early
    });
    assert_eq!(early, (0, 0), "nothing was taken or told");
    assert_eq!((frames.len(), interrupts(&event)), (10, 1));
}

#[test]
fn an_address_is_announced_as_hosts_do_it() {
    let guest = Guest::new();
    let (mut machine, handoff) = guest.machine_and_handoff();
    let address = [2, 0, 0, 0, 0, 9];
    let (_, frames) = meanwhile(&mut machine, handoff, |mut handoff| handoff.announce(address));
    let [frame] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!((frame.len(), &frame[..6], &frame[6..12]), (60, &[0xff; 6][..], &address[..]));
    // RARP (RFC 903): a request for the protocol address of this hardware address.
    assert_eq!(frame[12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    assert_eq!((&frame[22..28], &frame[32..38]), (&address[..], &address[..]));
}

/// A driver that has negotiated `IN_ORDER` (2.7.13): its buffers are descriptors one after the
/// other, and come back in that order.
struct Orderly<'a> {
    guest: &'a Guest,
    queue: u64,
    made: u16,
    seen: u16,
}

impl<'a> Orderly<'a> {
    fn new(guest: &'a Guest, queue: u64) -> Self {
        Self { guest, queue, made: 0, seen: 0 }
    }

    /// Makes buffers of these lengths available.
    fn make(&mut self, lens: &[u32]) {
        let flags = if self.queue.is_multiple_of(2) { WRITE } else { 0 };
        for len in lens {
            let slot = self.made % SIZE;
            self.guest.describe(self.queue, slot, *len, flags, 0);
            let entry = QUEUE * self.queue + DRIVER + 4 + 2 * u64::from(slot);
            self.guest.whole.u16(at(entry)).store(slot, Relaxed);
            self.made += 1;
        }
        self.guest.make(self.queue, self.made);
    }

    /// What was written into the buffers that came back.
    fn take_back(&mut self) -> Vec<u32> {
        let mut lens = Vec::new();
        while self.seen != self.guest.used(self.queue) {
            let slot = self.seen % SIZE;
            let entry = QUEUE * self.queue + DEVICE + 4 + 8 * u64::from(slot);
            let word = |place| self.guest.whole.u32(at(place)).load(Relaxed);
            assert_eq!(word(entry), u32::from(slot), "the next in order");
            lens.push(word(entry + 4));
            self.seen += 1;
        }
        lens
    }
}

/// Frames of these lengths to one station.
fn frames_of(sender: &Guest, lens: &[u32]) -> (Batch, Vec<Delivery>) {
    let mut other = sender.machine();
    let buffers: Vec<u32> = lens.iter().map(|len| len + 12).collect();
    Orderly::new(sender, 1).make(&buffers);
    let (batch, _) = turn(&mut other);
    let count = u16::try_from(lens.len()).expect("few");
    assert_eq!(batch.frames().len(), lens.len());
    (batch, (0..count).map(|frame| Delivery { frame, tag: TagAction::Keep }).collect())
}

/// A machine with one receive queue.
fn with_one_queue(guest: &Guest) -> Machine {
    let mut machine = guest.machine();
    machine.rings[2] = None;
    machine
}

#[test]
fn a_queue_that_broke_gets_no_more_frames_of_the_same_list() {
    let (guest, sender) = (Guest::new(), Guest::new());
    let (batch, list) = frames_of(&sender, &[1500, 60, 60, 60]);
    let mut machine = with_one_queue(&guest);
    // The first frame needs a second buffer, which makes no sense; the others need one.
    Orderly::new(&guest, 0).make(&[700; 4]);
    guest.describe(0, 1, 700, 0, 0);
    let sent = machine.send(&batch, &list);
    assert_eq!((sent.drops.get(DropReason::LinkDown), guest.used(0)), (4, 0));
    assert_eq!(sent.delivered.frames, 0);
}

#[test]
fn buffers_before_one_that_makes_no_sense_are_not_lost() {
    let (guest, sender) = (Guest::new(), Guest::new());
    let (batch, list) = frames_of(&sender, &[1500]);
    let (mut machine, mut driver) = (with_one_queue(&guest), Orderly::new(&guest, 0));
    driver.make(&[700; 3]);
    guest.describe(0, 1, 700, 0, 0);
    assert_eq!(machine.send(&batch, &list).drops.get(DropReason::LinkDown), 1);
    assert_eq!(machine.rings[0].as_ref().map(|ring| ring.queue.base()), Some(0));
    // The driver makes it good, and the monitor starts the queue again where it was.
    guest.describe(0, 1, 700, WRITE, 0);
    machine.rings[0] = Some(Box::new(guest.ring(0)));
    assert_eq!(machine.send(&batch, &list).delivered.frames, 1);
    assert_eq!(driver.take_back(), [700, 700, 112]);
}

#[test]
fn section_2_7_13_buffers_come_back_in_the_order_in_which_they_were_made() {
    let (guest, sender) = (Guest::new(), Guest::new());
    let (batch, list) = frames_of(&sender, &[1500, 60, 3000]);
    let (mut machine, mut driver) = (with_one_queue(&guest), Orderly::new(&guest, 0));
    let (mut lens, mut bytes) = (Vec::new(), 0);
    // Room for a whole list, or for a part of it: of the last frame, or of the first already.
    for room in [8, 3, 4, 1, 2, 9, 7, 0, 5] {
        driver.make(&vec![700; room]);
        let sent = machine.send(&batch, &list);
        assert_eq!(sent.delivered.frames + sent.drops.get(DropReason::NoRoom), 3);
        bytes += sent.delivered.bytes + 12 * sent.delivered.frames;
        lens.extend(driver.take_back());
    }
    assert!(driver.made - driver.seen < 5, "what is left is too little for a frame");
    // The ends of each of the frames.
    assert!([112, 72, 212].iter().all(|end| lens.contains(end)), "{lens:?}");
    assert_eq!(lens.into_iter().map(u64::from).sum::<u64>(), bytes);
}

#[test]
fn a_driver_that_sleeps_over_what_it_has_sent_is_told_behind_the_fence() {
    let guest = Guest::new();
    let mut machine = guest.machine();
    let events = [1, 3].map(|queue| {
        let event = eventfd(0, EventfdFlags::NONBLOCK).expect("descriptors");
        let call =
            Call::new(event.try_clone().expect("descriptors"), &untimed()).expect("an eventfd");
        machine.rings[queue] =
            Some(Box::new(Ring { call: Some(Arc::new(call)), ..guest.ring(queue) }));
        event
    });
    let turn = |machine: &mut Machine| {
        machine.recv(&mut Batch::new(256), &mut Drops::default());
        let is_to_be_told = machine.delivered();
        let early = events.each_ref().map(interrupts);
        machine.flush();
        (is_to_be_told, early, events.each_ref().map(interrupts))
    };
    assert_eq!(turn(&mut machine), (false, [0; 2], [0; 2]), "nothing was taken");
    guest.load(1, USUAL_BUFFER, 3);
    assert_eq!(turn(&mut machine), (true, [0; 2], [1, 0]));
    assert_eq!(turn(&mut machine), (false, [0; 2], [0; 2]), "told once");
    guest.load(1, USUAL_BUFFER, 5);
    guest.load(3, USUAL_BUFFER, 5);
    assert_eq!(turn(&mut machine), (true, [0; 2], [1, 1]));
    // Buffers of frames that are no frames are waited for as well.
    guest.load(3, 13, 9);
    assert_eq!(turn(&mut machine), (true, [0; 2], [0, 1]));
}
