//! Tests: the orders in which QEMU 7 to 11 say things, one case for each version and situation in
//! which they differ. After each, queues run where they should, and buffers are taken and given
//! back.
//!
//! What 7.2.22, 10.0.13 and 11.1.3 say to us was recorded, for a guest that boots, binds its driver
//! again and whose switch is killed; the rest is as `hw/net/vhost_net.c`, `hw/virtio/vhost.c` and
//! `vhost-user.c` have it. What differs:
//!
//! | since | what |
//! |---|---|
//! | 7.2 | queues are enabled before features are named; before that, at last |
//! | 7.2 | the status is set; errors of a queue have an eventfd |
//! | 7.2, 8.0 | the status is reset before a queue is asked where it was; since 8.1 after that |
//! | 8.0 | the log is set once, not for each pair of queues |
//! | 8.0 | memory is lent once, not for each pair of queues |
//! | 10.0 at the latest | the device is reset before it starts, and again when it has stopped |

use std::os::fd::OwnedFd;
use std::sync::Arc;

use device::virtio_net::features as net;
use device::virtqueue::{Buffers, Places};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};

use super::super::handoff::{Queues, Ring};
use super::super::message::{Answer, Area, Bell, Message, Region};
use super::{LOG_ALL, PROTOCOL_FEATURES, Session, Shared, protocol, virtio};
use crate::machine::quota::{Limits, Quota};
use crate::sys::SlowCalls;
use crate::sys::vhost::KickPlace;

const SIZE: u16 = 8;
/// Descriptors, the driver's area and the device's of each queue; behind those of four, buffers.
const PLACE: u64 = 3 * 4096;
const BUFFERS: u64 = 4 * PLACE;
const BYTES: u64 = BUFFERS + 4096;
/// What a driver of our days takes.
const FEATURES: u64 = virtio::VERSION_1 | virtio::MRG_RXBUF | net::MQ | PROTOCOL_FEATURES;
/// FEATURES_OK, and with it ACKNOWLEDGE, DRIVER and DRIVER_OK.
const AGREED: u8 = 8;
const AT_WORK: u8 = 15;

/// What is said, done or expected.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// All that is said when one has connected, for this many pairs.
    Hello(u32),
    Owner,
    ResetOwner,
    ResetDevice,
    Features(u64),
    /// Enables or disables a queue.
    Enable(u32, bool),
    Table,
    AddMemory,
    RemoveMemory,
    /// NUM, BASE, ADDR, KICK and CALL, where it was.
    Start(u32),
    /// A start at the index that guest memory records.
    StartAtUsed(u32),
    /// Where it lies, and if that is to be logged.
    Addr(u32, bool),
    Call(u32, bool),
    LogBase,
    Status(u8),
    Rarp,
    /// A stop.
    GetBase(u32),
    /// The connection ends, and there is another.
    Again,
    /// The driver makes this many buffers available, and they are used.
    Use(u32, u16),
    /// A check that these queues run and are enabled.
    Runs(&'static [u32]),
    /// Writes are noted by those that run, or not.
    Logs(bool),
}

use Step::{
    AddMemory, Addr, Again, Call, Enable, Features, GetBase, Hello, LogBase, Logs, Owner, Rarp,
    RemoveMemory, ResetDevice, ResetOwner, Runs, Start, StartAtUsed, Status, Table, Use,
};

/// No worker: queues lie here.
#[derive(Debug, Default)]
struct Shelf([Option<Box<Ring>>; 4]);

impl Queues for Shelf {
    fn swap(&mut self, at: usize, ring: Option<Box<Ring>>) -> Option<Box<Ring>> {
        std::mem::replace(&mut self.0[at], ring)
    }

    fn announce(&mut self, address: [u8; 6]) {
        assert_eq!(address, [2, 0, 0, 0, 0, 1]);
    }
}

fn file(bytes: u64) -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, bytes).expect("ours");
    file
}

fn event() -> Option<OwnedFd> {
    Some(eventfd(0, EventfdFlags::NONBLOCK).expect("descriptors"))
}

fn session() -> Session<Shelf> {
    let kicks = Arc::new(KickPlace::new().expect("descriptors"));
    let (quota, slow) = (Quota::new(0, Limits::NONE), Arc::new(SlowCalls::unreported()));
    Session::new(Shelf::default(), 2, &Shared { kicks, quota, slow })
}

/// A QEMU with its guest.
struct Vmm {
    session: Session<Shelf>,
    memory: OwnedFd,
    /// Buffers that were made available, by queue, and where a queue said that it was.
    made: [u16; 4],
    bases: [u32; 4],
}

impl Vmm {
    fn new() -> Self {
        Self { session: session(), memory: file(BYTES), made: [0; 4], bases: [0; 4] }
    }

    fn say(&mut self, message: Message) -> Option<Answer> {
        self.session.take(message).expect("QEMU may say that")
    }

    fn copy(&self) -> OwnedFd {
        self.memory.try_clone().expect("descriptors")
    }

    fn hello(&mut self, pairs: u32) {
        for message in [Message::GetFeatures, Message::GetProtocolFeatures] {
            assert!(self.say(message).is_some());
        }
        self.say(Message::SetProtocolFeatures(protocol::OFFERED));
        for message in [Message::GetQueueNum, Message::GetMaxMemSlots] {
            assert!(self.say(message).is_some());
        }
        self.say(Message::SetOwner);
        for queue in 0..2 * pairs {
            self.say(Message::GetFeatures);
            self.say(Message::SetBell(Bell::Call, queue, event()));
            self.say(Message::SetBell(Bell::Err, queue, event()));
        }
    }

    fn start(&mut self, queue: u32, base: u32) {
        self.say(Message::SetVringNum(queue, SIZE.into()));
        self.say(Message::SetVringBase(queue, base));
        self.place(queue, false);
        self.say(Message::SetBell(Bell::Kick, queue, event()));
        self.say(Message::SetBell(Bell::Call, queue, event()));
    }

    fn place(&mut self, queue: u32, is_logged: bool) {
        let at = PLACE * u64::from(queue);
        let places = Places { descriptors: at, driver: at + 4096, device: at + 8192 };
        self.say(Message::SetVringAddr(queue, places, is_logged.then_some(at + 8192)));
    }

    /// Where the guest's memory says that it is.
    fn used(&self, queue: u32) -> u16 {
        let mut index = [0; 2];
        pread(&self.memory, &mut index, PLACE * u64::from(queue) + 8192 + 2).expect("ours");
        u16::from_le_bytes(index)
    }

    fn use_buffers(&mut self, queue: u32, count: u16) {
        let (at, index) = (PLACE * u64::from(queue), queue as usize);
        let write = |bytes: &[u8], at: u64| pwrite(&self.memory, bytes, at).expect("ours");
        for made in &mut self.made[index..=index] {
            for _ in 0..count {
                let slot = u64::from(*made % SIZE);
                // An address, a length, a flag: may it be written?
                write(&BUFFERS.to_le_bytes(), at + 16 * slot);
                write(&64_u32.to_le_bytes(), at + 16 * slot + 8);
                let flags = if queue.is_multiple_of(2) { 2_u16 } else { 0 };
                write(&flags.to_le_bytes(), at + 16 * slot + 12);
                write(&(*made % SIZE).to_le_bytes(), at + 4096 + 4 + 2 * slot);
                *made = made.wrapping_add(1);
            }
            write(&made.to_le_bytes(), at + 4096 + 2);
        }
        let ring = self.session.queues.0[index].as_mut().expect("it runs");
        let mut buffers = Buffers::default();
        for _ in 0..count {
            let taken = ring.queue.next(&ring.memory, &mut buffers).expect("it makes sense");
            ring.queue.give_back(taken.expect("there is one"), 1);
        }
        ring.queue.publish();
        assert!(!ring.queue.pending(), "no more than that");
        assert_eq!(self.used(queue), self.made[index]);
    }

    fn step(&mut self, step: Step) {
        let region = Region { guest: 0, size: BYTES, user: 0, offset: 0 };
        match step {
            Hello(pairs) => self.hello(pairs),
            Owner => drop(self.say(Message::SetOwner)),
            ResetOwner => drop(self.say(Message::ResetOwner)),
            ResetDevice => drop(self.say(Message::ResetDevice)),
            Features(features) => drop(self.say(Message::SetFeatures(features))),
            Enable(queue, enabled) => drop(self.say(Message::SetVringEnable(queue, enabled))),
            Table => drop(self.say(Message::SetMemTable(vec![(region, self.copy())]))),
            AddMemory => drop(self.say(Message::AddMemReg(region, self.copy()))),
            RemoveMemory => drop(self.say(Message::RemMemReg(region))),
            Start(queue) => self.start(queue, self.bases[queue as usize]),
            StartAtUsed(queue) => self.start(queue, self.used(queue).into()),
            Addr(queue, is_logged) => self.place(queue, is_logged),
            Call(queue, is_there) => {
                let call = event().filter(|_| is_there);
                self.say(Message::SetBell(Bell::Call, queue, call));
            }
            LogBase => {
                let area = Area { size: 4096, offset: 0, fd: file(4096) };
                assert!(self.say(Message::SetLogBase(area)).is_some(), "it is answered");
            }
            Status(status) => {
                self.say(Message::SetStatus(status));
                assert!(matches!(self.say(Message::GetStatus), Some(Answer::U64(now))
                    if now == u64::from(status)));
            }
            Rarp => drop(self.say(Message::SendRarp([2, 0, 0, 0, 0, 1]))),
            GetBase(queue) => {
                let Some(Answer::Vring(_, base)) = self.say(Message::GetVringBase(queue)) else {
                    panic!("no base");
                };
                assert_eq!(base, u32::from(self.made[queue as usize]), "all was given back");
                self.bases[queue as usize] = base;
            }
            Again => self.session = session(),
            Use(queue, count) => self.use_buffers(queue, count),
            Runs(queues) => {
                let runs = |queue: &u32| {
                    let ring = self.session.queues.0[*queue as usize].as_ref();
                    ring.is_some_and(|ring| ring.enabled)
                };
                let found: Vec<u32> = (0..4).filter(runs).collect();
                assert_eq!((&found[..], self.session.is_up()), (queues, !queues.is_empty()));
            }
            Logs(logs) => {
                let all = self.session.queues.0.iter().flatten();
                assert!(all.clone().count() > 0);
                assert!(all.clone().all(|ring| ring.log.is_some() == logs));
            }
        }
    }
}

/// A driver sets its device up, one pair of queues.
const START: &[Step] =
    &[Enable(0, true), Enable(1, true), Features(FEATURES), AddMemory, Start(0), Start(1)];
const USE: &[Step] = &[Runs(&[0, 1]), Use(0, 5), Use(1, 7), Use(0, 6), Runs(&[0, 1])];
const STOP: &[Step] = &[GetBase(0), GetBase(1), Runs(&[])];

fn check(name: &str, steps: &[&[Step]]) {
    let mut vmm = Vmm::new();
    let steps: Vec<Step> = steps.concat();
    for (at, step) in steps.iter().enumerate() {
        // Shown if what follows panics.
        eprintln!("{name}: {at} {step:?}");
        vmm.step(*step);
    }
}

#[test]
fn a_driver_starts_its_device() {
    let table = &[Enable(0, true), Enable(1, true), Features(FEATURES), Table, Start(0), Start(1)];
    let at_last = &[Features(FEATURES), Table, Start(0), Start(1), Runs(&[])];
    let enabled = &[Enable(0, true), Runs(&[0]), Enable(1, true)];
    let without = FEATURES & !PROTOCOL_FEATURES;
    for (name, steps) in [
        ("7.0, 7.1: enabled at last", &[&at_last[..], enabled][..]),
        ("7.2 to 11: enabled before features", &[START]),
        ("7.2 to 11, vectors=0: no call", &[START, &[Call(0, false), Call(1, false)]]),
        ("7.2 to 11: a table of memory", &[table]),
        ("7.2 to 11: and a status", &[START, &[Status(AT_WORK)]]),
        ("7 to 11, seen by its BIOS before", &[START, USE, STOP, &[RemoveMemory], START]),
        (
            "7 to 11, without features of the protocol",
            &[&[Features(without), Table, Start(0), Start(1)]],
        ),
    ] {
        check(name, &[&[Hello(1)], steps.concat().as_slice(), USE]);
    }
}

#[test]
fn whole_lives_as_they_were_recorded() {
    const ENABLED: &[Step] = &[Enable(0, true), Enable(1, true)];
    const AGREE: &[Step] = &[Features(FEATURES), Status(AGREED)];
    const AT_LAST: &[Step] = &[Start(0), Start(1), Status(AT_WORK)];
    let enabled = ENABLED.repeat(4);
    for (version, resets) in [("7.2.22", false), ("10.0.13", true), ("11.1.3", true)] {
        let (before, stop) = if resets {
            ([&[ResetDevice], ENABLED].concat(), [STOP, &[Status(0), ResetDevice]].concat())
        } else {
            (ENABLED.to_vec(), [&[Status(0)], STOP].concat())
        };
        let boot = [&[Hello(1)], &before[..], &before, &enabled, AGREE, &[AddMemory]].concat();
        let bind_again = [&stop, &enabled[..], AGREE, AT_LAST].concat();
        let at_used = &[StartAtUsed(0), StartAtUsed(1), Status(AT_WORK)];
        let killed = [&[Again, Hello(1)], ENABLED, AGREE, &[AddMemory], at_used].concat();
        let (rounds, end) = ([AT_LAST, USE, &bind_again, USE, &killed, USE].concat(), ENABLED);
        check(version, &[&boot, &rounds, &stop, end, &[Runs(&[])]]);
    }
}

#[test]
fn a_device_is_stopped_and_started_again() {
    let again = &[Enable(0, true), Enable(1, true), Features(FEATURES), Start(0), Start(1)];
    let begin = [&[Hello(1)], START, &[Status(AT_WORK)], USE].concat();
    for (name, steps) in [
        ("7.0, 7.1: where was it?", &[STOP][..]),
        ("7.2, 8.0: the status, then where it was", &[&[Status(0), Runs(&[])], STOP]),
        ("8.1 to 11: where it was, then the status", &[STOP, &[Status(0)]]),
        ("10, 11: a reset of the device behind it", &[STOP, &[Status(0), ResetDevice]]),
        ("a reset of the device before it", &[&[ResetDevice, Runs(&[])], STOP]),
        ("of old: the owner is reset", &[STOP, &[ResetOwner, Owner]]),
        ("disabled before", &[&[Enable(0, false), Enable(1, false), Runs(&[])], STOP]),
        ("asked twice", &[STOP, STOP]),
        ("its memory goes before", &[&[RemoveMemory, Runs(&[])], STOP, &[AddMemory, Runs(&[])]]),
        ("its memory goes behind it", &[STOP, &[RemoveMemory, AddMemory, Runs(&[])]]),
    ] {
        let steps = steps.concat();
        check(name, &[&begin, &steps, again, &[Status(AT_WORK)], USE, &steps, again, USE]);
    }
}

#[test]
fn a_queue_is_stopped_in_the_middle() {
    let begin = [&[Hello(1)], START, USE].concat();
    for (name, steps) in [
        ("one of them is asked where it is", &[GetBase(0), Runs(&[1]), Use(1, 3), Start(0)][..]),
        ("only the call changes: a vector is masked", &[Call(0, true), Runs(&[0, 1])]),
        ("it is polled", &[Call(1, false), Use(1, 2), Call(1, true)]),
        ("features are named again", &[Features(FEATURES)]),
        ("memory is lent again: a DIMM is plugged", &[Table]),
        ("disabled for a while", &[Enable(1, false), Runs(&[0]), Use(0, 1), Enable(1, true)]),
    ] {
        check(name, &[&begin, steps, USE, STOP]);
    }
}

#[test]
fn a_driver_uses_several_pairs() {
    let pair = |queue| {
        [
            Enable(queue, true),
            Enable(queue + 1, true),
            Features(FEATURES),
            Start(queue),
            Start(queue + 1),
        ]
    };
    let (first, second) = (pair(0), pair(2));
    let both = &[Runs(&[0, 1, 2, 3]), Use(2, 3), Use(3, 4), Use(0, 1), Use(1, 2)][..];
    let one = &[Enable(2, false), Enable(3, false), Runs(&[0, 1]), Use(0, 3), Use(1, 4)][..];
    let more = &[Enable(2, true), Enable(3, true)][..];
    let stop = &[GetBase(0), GetBase(1), Runs(&[2, 3]), GetBase(2), GetBase(3), Runs(&[])][..];
    let status_within = &[
        &[GetBase(0), GetBase(1), Status(0), Runs(&[]), GetBase(2), GetBase(3)][..],
        &[Runs(&[])],
    ]
    .concat();
    let begin: &[(&str, &[&[Step]])] = &[
        ("7: memory for each pair", &[&first, &[AddMemory], &second, &[AddMemory]]),
        ("8 to 11: memory once", &[&[AddMemory], &first, &second]),
        ("memory between the pairs", &[&first, &[Table], &second]),
    ];
    for (name, steps) in begin {
        let steps = steps.concat();
        for stop in [stop, &[stop, &[Status(0)]].concat(), status_within] {
            let round = [both, one, more, both].concat();
            check(name, &[&[Hello(2)], &steps, &round, stop, &first, &second, &round]);
        }
    }
    // A driver that knows one pair, on a device that has two.
    let unused = &[Enable(2, false), Enable(3, false)];
    check("8 to 11: one of two pairs", &[&[Hello(2), AddMemory], &first, unused, USE]);
}

#[test]
fn a_monitor_connects_again() {
    let start = &[Enable(0, true), Enable(1, true), Features(FEATURES), AddMemory][..];
    let at_used = &[StartAtUsed(0), StartAtUsed(1)][..];
    let begin = [&[Hello(1)], START, USE].concat();
    for (name, steps) in [
        ("7 to 11", &[start, at_used][..]),
        ("7.0, 7.1", &[&start[2..], at_used, &start[..2]]),
        ("7.2 to 11, with a status", &[start, at_used, &[Status(AT_WORK)]]),
        (
            "11: it looks at the protocol and goes, then comes",
            &[&[Again, Hello(1)], start, at_used],
        ),
    ] {
        let steps = [&[Again, Hello(1)], &steps.concat()[..]].concat();
        check(name, &[&begin, &steps, USE, &steps, USE]);
    }
}

#[test]
fn a_machine_moves() {
    let logged = &[Features(FEATURES | LOG_ALL), Addr(0, true), Addr(1, true), Logs(true)][..];
    let not_logged = &[Features(FEATURES), Addr(0, false), Addr(1, false), Logs(false)][..];
    let begin = [&[Hello(1)], START, &[Status(AT_WORK)], USE, &[Logs(false)]].concat();
    for (name, steps) in [
        ("7: the log for each pair", &[&[LogBase, LogBase][..], logged][..]),
        ("8 to 11: the log once", &[&[LogBase], logged]),
        ("the log grows meanwhile", &[&[LogBase], logged, &[LogBase, Logs(true)]]),
    ] {
        let log = steps.concat();
        // It is stopped, or goes on here.
        check(name, &[&begin, &log, USE, STOP, &[Status(0)]]);
        check(name, &[&begin, &log, USE, not_logged, USE, &log, USE, STOP]);
        // It starts while it moves.
        let moving = [&[LogBase][..], &[Features(FEATURES | LOG_ALL)]].concat();
        check(name, &[&begin, STOP, &moving, &[Start(0), Start(1), Addr(0, true), Logs(true)]]);
    }
    // Where it comes to: for guests that cannot announce themselves.
    check("the other end", &[&[Hello(1)], START, &[Rarp], USE, &[Rarp], STOP]);
}
