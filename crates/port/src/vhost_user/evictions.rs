//! Tests: evictions of a frontend that blocks the port's thread.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use ring::intake::Intake;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pwrite;
use switch::decide::bridge::TagAction;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Drops, Sent};

use super::tests::{open_at, soon};
use crate::machine::State;
use crate::sys::descriptors::fixture::{at_once, send_lingering};
use crate::sys::vhost;

/// Descriptors, the driver's area and the device's of each queue, a page each.
const PLACE: u64 = 3 * 4096;
/// A buffer of zeros behind the two queues.
const BUFFER: u64 = 2 * PLACE;
const BYTES: u64 = 16 * 4096;
const SIZE: u64 = 8;
/// A frame of 60 bytes behind its header.
const BUFFER_LEN: u32 = 70;

/// Sends a message of 64-bit words.
pub(super) fn say(to: &UnixStream, request: u32, words: &[u64], fd: Option<BorrowedFd<'_>>) {
    let payload = words.iter().flat_map(|word| word.to_ne_bytes());
    let size = u32::try_from(8 * words.len()).expect("short");
    let header = [request, 1, size].into_iter().flat_map(u32::to_ne_bytes);
    let bytes: Vec<u8> = header.chain(payload).collect();
    vhost::send(to, &bytes, fd).expect("it reads");
}

/// A VMM without a processor.
struct Vmm {
    socket: UnixStream,
    memory: OwnedFd,
    /// The interrupt of both queues.
    call: OwnedFd,
    /// Buffers that were made available, by queue.
    made: [u16; 2],
}

pub(super) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK).expect("descriptors")
}

impl Vmm {
    /// Connects, and sets both queues up.
    fn connect(path: &Path) -> Self {
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&memory, BYTES).expect("ours");
        let socket = UnixStream::connect(path).expect("it listens");
        let vmm = Self { socket, memory, call: event(), made: [0; 2] };
        // SET_MEM_TABLE: one region.
        vmm.say(5, &[1, 0, BYTES, 0, 0], Some(vmm.memory.as_fd()));
        for queue in 0..2 {
            let at = PLACE * queue;
            // SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_CALL, SET_VRING_KICK.
            vmm.say(8, &[queue | SIZE << 32], None);
            vmm.say(9, &[queue, at, at + 8192, at + 4096, 0], None);
            vmm.say(13, &[queue], Some(vmm.call.as_fd()));
            vmm.say(12, &[queue], Some(event().as_fd()));
        }
        vmm
    }

    fn say(&self, request: u32, words: &[u64], fd: Option<BorrowedFd<'_>>) {
        say(&self.socket, request, words, fd);
    }

    /// Makes buffers available: room for frames, or frames.
    fn make(&mut self, queue: usize, count: u16) {
        let at = PLACE * queue as u64;
        let write = |bytes: &[u8], at: u64| pwrite(&self.memory, bytes, at).expect("ours");
        write(&BUFFER.to_le_bytes(), at);
        write(&BUFFER_LEN.to_le_bytes(), at + 8);
        let flags = if queue == 0 { 2_u16 } else { 0 };
        write(&flags.to_le_bytes(), at + 12);
        let made = self.made[queue] + count;
        write(&made.to_le_bytes(), at + 4096 + 2);
        self.made[queue] = made;
    }

    /// How often its driver was interrupted since the last call.
    fn interrupts(&self) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(&self.call, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }
}

/// Takes a turn of the port; returns the number of its frames.
fn turn(adapter: &mut dyn Adapter) -> usize {
    let (mut batch, mut drops) = (Batch::new(256), Drops::default());
    adapter.recv(&mut batch, &mut drops);
    let frames = batch.frames().len();
    batch.clear();
    adapter.delivered();
    adapter.flush();
    frames
}

/// Sends a frame to the port.
fn send(adapter: &mut dyn Adapter) -> Sent {
    let mut intake = Intake::new(1, 2048).expect("memory");
    let mut batch = Batch::new(256);
    batch.restart(intake.region());
    let frame = [7; 60];
    intake.push(&[&frame], batch.frags());
    batch.push_received(0, 60);
    let sent = adapter.send(&batch, &[Delivery { frame: 0, tag: TagAction::Keep }]);
    adapter.flush();
    sent
}

#[test]
fn a_frontend_that_blocks_the_thread_is_evicted() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("vm.sock");
    let (mut adapter, port) = open_at(&path);
    let adapter = &mut *adapter;
    let mut vmm = Vmm::connect(&path);
    vmm.make(0, 8);
    vmm.make(1, 2);
    let mut frames = 0;
    soon("its frames", || {
        frames += turn(adapter);
        frames == 2
    });
    assert_eq!(send(adapter).delivered.frames, 1);
    assert!(vmm.interrupts() > 0);
    // The port rejects another connection, and then none for a moment: the next one waits until it
    // has the descriptor in it, and is closed with that.
    let _rejected = UnixStream::connect(&path).expect("it listens");
    soon("a rejection", || port.status().rejected().is_some());
    let mut second = UnixStream::connect(&path).expect("it listens");
    let deaf = send_lingering(&second, b"x", 1);
    // An end or an error: what it sent is unread.
    let _ = second.read(&mut [0]);
    vmm.make(1, 2);
    at_once(|| {
        port.evict(Duration::from_secs(600), "it is too loud".to_owned());
        assert_eq!(turn(adapter), 0);
        let sent = send(adapter);
        assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::LinkDown)), (0, 1));
        adapter.wake_if_due();
        assert!(!adapter.pending() && !adapter.owes_wake());
        assert_eq!(vmm.interrupts(), 0);
    });
    assert_eq!(port.status().complaint(), None, "its thread is blocked");
    // The end of the other end is the end of the wait.
    drop(deaf);
    soon("its end", || {
        assert_eq!(turn(adapter), 0);
        port.status().complaint().is_some()
    });
    assert_eq!((port.status().state(), vmm.interrupts()), (State::Waiting, 0));
    port.evict(Duration::ZERO, "it is too loud".to_owned());
    let mut next = Vmm::connect(&path);
    next.make(1, 3);
    frames = 0;
    soon("frames of the next one", || {
        frames += turn(adapter);
        frames == 3
    });
}
