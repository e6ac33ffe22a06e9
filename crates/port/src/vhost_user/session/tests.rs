//! What frontends say to a session, and what becomes of its queues.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::super::message::Region;
use super::*;
use crate::machine::quota::Limits;

/// Stands in for the worker: returns queues as they were.
#[derive(Default)]
struct Shelf([Option<Box<Ring>>; 2]);

impl Queues for Shelf {
    fn swap(&mut self, at: usize, ring: Option<Box<Ring>>) -> Option<Box<Ring>> {
        std::mem::replace(&mut self.0[at], ring)
    }

    fn announce(&mut self, _: [u8; 6]) {}
}

fn session(limits: Limits) -> Session<Shelf> {
    let kicks = Arc::new(KickPlace::new().expect("descriptors"));
    let (quota, slow) = (Quota::new(0, limits), Arc::new(SlowCalls::unreported()));
    Session::new(Shelf::default(), 1, &Shared { kicks, quota, slow })
}

fn machine(bytes: u64) -> Message {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&fd, bytes).expect("ours");
    Message::SetMemTable(vec![(Region { guest: 0, size: bytes, user: 0, offset: 0 }, fd)])
}

fn event() -> Option<OwnedFd> {
    Some(eventfd(0, EventfdFlags::NONBLOCK).expect("descriptors"))
}

/// Starts the first queue.
fn start(session: &mut Session<Shelf>) {
    let places = Places { descriptors: 0, driver: 4096, device: 8192 };
    session.take(Message::SetVringNum(0, 8)).expect("a queue");
    session.take(Message::SetVringAddr(0, places, None)).expect("a queue");
    session.take(Message::SetBell(Bell::Kick, 0, event())).expect("a queue");
}

#[test]
fn a_machine_that_lends_its_memory_again_needs_no_more_of_it() {
    let mut session = session(Limits { bytes: 16384, regions: 1, ..Limits::NONE });
    session.take(machine(16384)).expect("all that there is");
    start(&mut session);
    session.take(machine(16384)).expect("the same again");
    assert!(session.is_up());
    session.take(machine(20480)).expect_err("too much");
    assert!(!session.is_up(), "what it has lent before means nothing");
    session.take(machine(12288)).expect("less");
    assert!(session.is_up());
}

#[test]
fn a_descriptor_that_is_none_costs_nothing_and_stops_its_queue() {
    let mut session = session(Limits { descriptors: 2, ..Limits::NONE });
    session.take(machine(16384)).expect("memory");
    start(&mut session);
    let no_eventfd = || std::fs::File::open("/proc/self/status").expect("Linux").into();
    for bell in [Bell::Call, Bell::Err] {
        session.take(Message::SetBell(bell, 0, Some(no_eventfd()))).expect_err("a file");
    }
    assert!(session.is_up());
    session.take(Message::SetBell(Bell::Kick, 0, Some(no_eventfd()))).expect_err("a file");
    assert!(!session.is_up(), "no worker watches its driver");
    for bell in [Bell::Kick, Bell::Call, Bell::Kick] {
        session.take(Message::SetBell(bell, 0, event())).expect("there is room for two");
    }
    assert!(session.is_up());
    session.take(Message::SetBell(Bell::Err, 0, event())).expect_err("not for three");
}

/// The queue that `start` has set up.
fn ring(session: &mut Session<Shelf>) -> &mut Ring {
    session.queues.0[0].as_mut().expect("it runs")
}

#[test]
fn a_queue_in_trouble_stays_stopped_until_it_is_started_again() {
    let mut session = session(Limits::NONE);
    session.take(machine(16384)).expect("memory");
    start(&mut session);
    let told = event().expect("descriptors");
    let err = told.try_clone().expect("descriptors");
    session.take(Message::SetBell(Bell::Err, 0, Some(err))).expect("an eventfd");
    assert!(session.find_trouble().is_empty() && session.is_up(), "nothing is wrong");
    ring(&mut session).trouble = Some(Trouble::Lost);
    assert_eq!(session.find_trouble(), [(0, Trouble::Lost)]);
    assert!(!session.is_up() && session.queues.0[0].is_none());
    assert_eq!(rustix::io::read(&told, &mut [0; 8]), Ok(8), "its driver's vmm is told");
    // What changes beside it does not start it.
    session.take(Message::SetFeatures(virtio::VERSION_1)).expect("offered");
    session.take(Message::SetVringEnable(0, true)).expect("a queue");
    assert!(!session.is_up());
    session.take(Message::SetBell(Bell::Kick, 0, event())).expect("an eventfd");
    assert!(session.is_up());
}

#[test]
fn what_makes_no_sense_is_refused_and_leaves_things_as_they_were() {
    let mut session = session(Limits::NONE);
    session.take(machine(16384)).expect("memory");
    start(&mut session);
    let shape = |queues, size| Shape { queues, size };
    for (message, fault) in [
        (Message::SetVringNum(2, 8), "there is no queue 2"),
        (Message::SetVringBase(9, 8), "there is no queue 9"),
        (Message::GetVringBase(7), "there is no queue 7"),
        (Message::SetVringEnable(u32::MAX, true), "there is no queue 4294967295"),
        (Message::SetBell(Bell::Call, 2, None), "there is no queue 2"),
        (Message::SetFeatures(1 << 63), "0x8000000000000000 are not offered"),
        (Message::SetProtocolFeatures(1 << 9), "features 0x200 are not offered"),
        (Message::SetMtu(67), "an MTU of 67"),
        (Message::SetMtu(1 << 40), "an MTU of 1099511627776"),
        (Message::GetInflight(shape(3, 8)), "there is no queue 3"),
        (Message::GetInflight(shape(0, 8)), "queue 0 is invalid"),
        (Message::GetInflight(shape(1, u16::MAX)), "queue 0 is invalid"),
    ] {
        let shown = format!("{message:?}");
        let error = session.take(message).expect_err(&shown).to_string();
        assert!(error.contains(fault), "{shown}: {error}");
        assert!(session.is_up(), "{shown}");
    }
    session.take(Message::SetMtu(1500)).expect("Ethernet");
}

/// Starts a packed queue whose device asks for a kick at a position. Another backend gave a
/// chain of two back and marked its first descriptor; the next buffer is available. Or nothing
/// gave the second of three buffers back.
fn start_packed(said: u32, waits_at: u16) -> Session<Shelf> {
    const AVAIL: u16 = 1 << 7;
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&memory, 16384).expect("ours");
    for (slot, id, flags) in [(0, 7, AVAIL | 1 << 15), (1, 7, AVAIL), (2, 8, AVAIL)] {
        let words = [id, flags | 2].map(u16::to_le_bytes).concat();
        rustix::io::pwrite(&memory, &words, 16 * slot + 12).expect("ours");
    }
    let words = [waits_at, 2].map(u16::to_le_bytes).concat();
    rustix::io::pwrite(&memory, &words, 8192).expect("ours");
    let region = Region { guest: 0, size: 16384, user: 0, offset: 0 };
    let mut session = session(Limits::NONE);
    let features = virtio::VERSION_1 | virtio::RING_PACKED | virtio::EVENT_IDX;
    session.take(Message::SetFeatures(features)).expect("offered");
    session.take(Message::SetMemTable(vec![(region, memory)])).expect("memory");
    session.take(Message::SetVringBase(0, said)).expect("a queue");
    start(&mut session);
    session
}

#[test]
fn a_packed_queue_begins_where_its_frontend_says_if_the_queue_agrees() {
    for (said, waits_at, begins) in [
        (0x8002_8002, 0x8002, 0x8002_8002),
        (0x8002_8002, 0x8001, 0x8001_8001),
        (0x8000_8000, 0x8001, 0x8001_8001),
    ] {
        let mut session = start_packed(said, waits_at);
        assert_eq!(ring(&mut session).queue.base(), begins, "{said:x}, {waits_at:x}");
    }
}

#[test]
fn a_packed_queue_in_doubt_carries_nothing_until_its_driver_sets_it_up_again() {
    let mut session = start_packed(0x8002_8002, 0);
    // What changes beside it does not start it.
    session.take(Message::SetVringEnable(0, true)).expect("a queue");
    assert_eq!((session.in_doubt(), session.is_up()), (Some(0), false));
    assert!(session.queues.0[0].is_none(), "no worker has it");
    session.take(Message::ResetDevice).expect("known");
    assert_eq!((session.in_doubt(), session.is_up()), (None, false));
    session.take(Message::SetVringBase(0, 0x8001_8001)).expect("a queue");
    session.take(Message::SetBell(Bell::Kick, 0, event())).expect("an eventfd");
    assert_eq!((session.in_doubt(), session.is_up()), (None, true));
}

#[test]
fn a_queue_goes_on_where_its_area_says_that_it_was() {
    // Five buffers were given back.
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&memory, 16384).expect("ours");
    rustix::io::pwrite(&memory, &[5, 0], 8192 + 2).expect("ours");
    let lent = || {
        let region = Region { guest: 0, size: 16384, user: 0, offset: 0 };
        Message::SetMemTable(vec![(region, memory.try_clone().expect("descriptors"))])
    };
    let mut session = session(Limits::NONE);
    session.take(lent()).expect("memory");
    let shape = Shape { queues: 2, size: 8 };
    let Some(Answer::Inflight(_, area)) =
        session.take(Message::GetInflight(shape)).expect("memory")
    else {
        panic!("no area");
    };
    let copy = Area { fd: area.fd.try_clone().expect("descriptors"), ..area };
    let again = |area: &Area| {
        let fd = area.fd.try_clone().expect("descriptors");
        Message::SetInflight(shape, Area { fd, ..*area })
    };
    session.take(again(&copy)).expect("ours");
    session.take(Message::SetVringBase(0, 5)).expect("a queue");
    start(&mut session);
    assert_eq!(ring(&mut session).queue.base(), 5);
    // The next one is told something else, by a frontend that does not look.
    drop(session);
    let mut session = self::session(Limits::NONE);
    session.take(lent()).expect("memory");
    session.take(again(&copy)).expect("ours");
    session.take(Message::SetVringBase(0, 7)).expect("a queue");
    start(&mut session);
    assert_eq!(ring(&mut session).queue.base(), 5);
    // One that stopped it itself is believed.
    session.take(Message::GetVringBase(0)).expect("it runs");
    session.take(Message::SetVringBase(0, 7)).expect("a queue");
    start(&mut session);
    assert_eq!(ring(&mut session).queue.base(), 7);
}
