//! What a virtual machine and its VMM may say: queues in memory, messages on a socket.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use device::virtqueue::features::{EVENT_IDX, IN_ORDER, INDIRECT_DESC, RING_PACKED};
use device::virtqueue::{Buffers, Direction, Inflight, PIECES_MAX, Places, Queue, area_len};
use port::machine::quota::{Limits, Quota, Resource};
use port::sys::SlowCalls;
use port::sys::vhost::KickPlace;
use port::vhost_user::handoff::{Queues, Ring};
use port::vhost_user::message::{HEADER, Header, Message, PAYLOAD_MAX};
use port::vhost_user::session::{Session, Shared};
use ring::guest::{Extent, GuestMapping, GuestMemory, Reader, Writer};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::Input;

/// Two pages at 0 and two at 32 KiB, mapped the other way round.
const PAGE: u64 = 4096;
const FAR: u64 = 8 * PAGE;
const USER: u64 = 1 << 40;
const SIZE: u32 = 8;

pub(crate) fn memory() -> GuestMemory {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, 4 * PAGE).expect("ours");
    let lent = GuestMapping::map(&file, 0, 4 * 4096).expect("memory");
    let extent = |guest, offset| Extent {
        guest,
        user: USER + guest,
        size: 2 * PAGE,
        offset,
        lent: lent.clone(),
    };
    GuestMemory::new(vec![extent(0, 2 * 4096), extent(FAR, 0)]).expect("apart")
}

/// Whatever stands in a queue, what is taken from it lies in the machine's memory, can be copied,
/// and is given back; a queue that is broken says so and never goes round for ever. Its successor
/// begins where a frontend, a record and the ring say, all of which may lie.
pub fn virtqueue(data: &[u8]) {
    let mut input = Input(data);
    let flags = input.u8();
    let features = INDIRECT_DESC
        | if flags & 1 == 0 { 0 } else { RING_PACKED }
        | if flags & 2 == 0 { 0 } else { EVENT_IDX }
        | if flags & 16 == 0 { 0 } else { IN_ORDER };
    let direction = if flags & 4 == 0 { Direction::Read } else { Direction::Write };
    let memory = memory();
    let [near, far] = [0, FAR].map(|at| memory.window(USER + at, 2 * 4096, 16).expect("there"));
    let places = Places { descriptors: USER, driver: USER + PAGE, device: USER + PAGE + 512 };
    let base = u32::from(input.u8()) % SIZE;
    let make = |base| Queue::new(&memory, places, direction, SIZE, base, features);
    let record = || {
        let len = if flags & 64 == 0 { area_len(8) } else { 64 };
        let area = || memory.window(USER + FAR + PAGE, len, 64).expect("there");
        (flags & 32 != 0).then(|| Inflight::new(area()))
    };
    let mut queue = make(base).expect("a good place");
    let mut buffers = Buffers::default();
    while !input.is_empty() {
        // Most of what is written lies where the queue looks.
        let place = usize::from(input.u16());
        let window = if place & 1 == 0 { &near } else { &far };
        let place = if place & 2 == 0 { place % 1024 } else { 4096 + place % 640 };
        window.u16(place & !1).store(input.u16(), Relaxed);
        buffers.clear();
        let mark = queue.mark();
        queue.prefetch(&memory);
        match queue.next(&memory, &mut buffers) {
            Err(_) => {
                let base = if input.u8() & 1 == 0 { queue.base() } else { input.u16().into() };
                queue = make(base & 0x8007).unwrap_or(queue);
                if flags & 8 != 0 {
                    queue.resume(record().as_ref());
                }
                let _too_small = record().map(|record| queue.track(record, features));
            }
            Ok(None) => queue.want_kicks(),
            Ok(Some(_)) if input.u8() & 7 == 0 => queue.rewind(mark),
            Ok(Some(taken)) => {
                assert!(taken.bytes > 0 && buffers.slices().len() <= PIECES_MAX);
                let mut bytes = vec![0; usize::try_from(taken.bytes.min(70_000)).expect("small")];
                match direction {
                    Direction::Read => Reader::new(&memory, buffers.slices()).read(&mut bytes),
                    Direction::Write => Writer::new(&memory, buffers.slices()).write(&bytes),
                }
                queue.give_back(taken, 1);
                queue.publish();
                queue.must_tell();
            }
        }
    }
}

/// What a session does with its queues, where there is no worker.
#[derive(Debug)]
struct Held(Vec<Option<Box<Ring>>>);

impl Queues for &mut Held {
    fn swap(&mut self, at: usize, ring: Option<Box<Ring>>) -> Option<Box<Ring>> {
        std::mem::replace(&mut self.0[at], ring)
    }

    fn announce(&mut self, _: [u8; 6]) {}
}

const PAIRS: u16 = 2;
const LIMITS: Limits = Limits { bytes: 1 << 20, regions: 6, descriptors: 7 };
/// Every request that is served, and some that are not.
const REQUESTS: u8 = 42;

/// A descriptor of some kind.
pub fn descriptor(kind: u8) -> OwnedFd {
    if kind & 1 == 0 {
        let file = memfd_create("machine", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, 4 * PAGE).expect("ours");
        file
    } else {
        eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors")
    }
}

/// Whatever a frontend says, a device that is reset is not up, and when it goes nothing is left: no
/// queue with a worker, nothing charged to its user.
pub fn vhost_message(data: &[u8]) {
    let mut input = Input(data);
    if let Ok(header) = Header::parse(input.bytes::<HEADER>()) {
        assert!(header.size <= PAYLOAD_MAX);
    }
    let kicks = Arc::new(KickPlace::new().expect("descriptors"));
    let (quota, slow) = (Quota::new(0, LIMITS), Arc::new(SlowCalls::unreported()));
    let shared = Shared { kicks, quota: quota.clone(), slow };
    let mut held = Held((0..2 * PAIRS).map(|_| None).collect());
    for _ in 0..2 {
        let mut session = Session::new(&mut held, PAIRS, &shared);
        for _ in 0..40 {
            if input.is_empty() {
                break;
            }
            let request = u32::from(input.u8() % REQUESTS);
            let words = input.below(6);
            // Small numbers have a chance.
            let word = |_| u64::from(input.u16()) << (input.u8() & 40);
            let payload: Vec<u8> = (0..words).map(word).flat_map(u64::to_ne_bytes).collect();
            let fds = (0..input.below(3)).map(|_| descriptor(input.u8())).collect();
            let Ok(message) = Message::parse(request, &payload, fds) else { continue };
            let stops = matches!(message, Message::ResetDevice);
            let taken = session.take(message);
            assert!(!(stops && taken.is_ok() && session.is_up()), "a reset device is not up");
            session.find_trouble();
        }
        drop(session);
        assert!(held.0.iter().all(Option::is_none), "a queue is left");
        for (resource, limit) in [
            (Resource::Bytes, LIMITS.bytes),
            (Resource::Regions, LIMITS.regions),
            (Resource::Descriptors, LIMITS.descriptors),
        ] {
            assert!(quota.take(resource, limit).is_ok(), "{resource:?} are left");
        }
    }
}
