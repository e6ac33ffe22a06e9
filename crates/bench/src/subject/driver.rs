//! A machine without a processor: a vhost-user frontend, and the driver of two split queues.
//!
//! The driver does what a guest's does: buffers are made available in batches, the switch is kicked
//! where it asks for that, and a driver without work yields a few times, asks for an interrupt,
//! and sleeps. All buffers of a queue are described once; they come back in order.
//!
//! ```text
//!   0        16K      32K     48K      64K                    64K + 1024 · 2112
//!   │ descr. │ avail  │ used   │        │ buffers …              │   one queue, and then the other
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ring::doorbell::store_load_fence;
use ring::guest::{Extent, GuestMapping, GuestMemory, GuestSlice, Reader, Window, Writer};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::frontend::{Frontend, pair, request};

/// Buffers of a queue, and the distance of two: no power of two (`docs/design/0008-what-paid.md`).
pub const SIZE: u16 = 1024;
const STRIDE: u64 = 2112;
/// In front of each frame.
const HEADER: usize = 12;
/// Where the parts of a queue lie, and where the next queue begins.
const AVAIL: u64 = 16 << 10;
const USED: u64 = 32 << 10;
const BUFFERS: u64 = 64 << 10;
const QUEUE: u64 = BUFFERS + 4096 * 540;
const BYTES: u64 = 2 * QUEUE;
/// Where its memory is, in the addresses that the switch gets.
const USER: u64 = 1 << 42;
/// Mergeable buffers, notification by index, features of the protocol, version 1.
const FEATURES: u64 = (1 << 15) | (1 << 29) | (1 << 30) | (1 << 32);
/// `VIRTIO_F_EVENT_IDX`, which an old driver does not know.
const EVENT_IDX: u64 = 1 << 29;
const HUNG_UP: &str = "the switch has closed the socket";
/// Looks without work before it sleeps.
const YIELDS: u32 = 100;

/// One of its queues.
struct Queue {
    index: u32,
    /// Buffers made available so far, and those of them that the switch knows of.
    made: u16,
    published: u16,
    /// Buffers taken back.
    seen: u16,
    /// As far as the switch had come when we looked last.
    used: u16,
    kick: OwnedFd,
    call: OwnedFd,
    window: Window,
    buffers: Vec<GuestSlice>,
    /// Whether both sides suppress notifications by index (`VIRTIO_F_EVENT_IDX`).
    by_index: bool,
}

/// A machine.
pub struct Machine {
    path: PathBuf,
    backend: Frontend,
    file: OwnedFd,
    memory: GuestMemory,
    receive: Queue,
    transmit: Queue,
    features: u64,
}

fn at(place: u64) -> usize {
    usize::try_from(place).expect("64 bits")
}

fn ring_of(index: u16) -> u64 {
    u64::from(index % SIZE)
}

impl Queue {
    fn new(index: u32, memory: &GuestMemory, by_index: bool) -> Result<Queue> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let base = QUEUE * u64::from(index);
        let window = memory.window(USER + base, at(BUFFERS), 4096).context("no window")?;
        let length = u32::try_from(STRIDE)?;
        let buffer = |slot| base + BUFFERS + STRIDE * u64::from(slot);
        let buffers = (0..SIZE).map(|slot| memory.slice(buffer(slot), length));
        let buffers = buffers.collect::<Option<Vec<_>>>().context("no buffers")?;
        let (kick, call) = (event()?, event()?);
        let (made, published, seen, used) = (0, 0, 0, 0);
        let queue =
            Queue { index, made, published, seen, used, kick, call, window, buffers, by_index };
        for slot in 0..SIZE {
            queue.describe(slot, buffer(slot), length);
            queue.window.u16(at(AVAIL + 4 + 2 * u64::from(slot))).store(slot, Ordering::Relaxed);
        }
        Ok(queue)
    }

    fn describe(&self, slot: u16, address: u64, length: u32) {
        const WRITE: u64 = 2;
        let flags = if self.index == 0 { WRITE } else { 0 };
        let place = at(16 * u64::from(slot));
        self.window.u64(place).store(address, Ordering::Relaxed);
        self.window.u64(place + 8).store(u64::from(length) | flags << 32, Ordering::Relaxed);
    }

    /// The switch sees what was made available, and is kicked if it asks for that.
    fn publish(&mut self) {
        let old = std::mem::replace(&mut self.published, self.made);
        // Release, pairs with the switch's Acquire: it sees the buffers.
        self.window.u16(at(AVAIL + 2)).store(self.made, Ordering::Release);
        store_load_fence();
        if self.is_kick_wanted(self.made.wrapping_sub(old)) {
            // It cannot overflow, and a reader that does not look at it has it set.
            let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
        }
    }

    /// Whether the switch asks for a kick once `news` more buffers are available.
    fn is_kick_wanted(&self, news: u16) -> bool {
        if !self.by_index {
            return self.window.u16(at(USED)).load(Ordering::Relaxed) == 0;
        }
        let event = self.window.u16(at(USED + 4 + 8 * u64::from(SIZE))).load(Ordering::Relaxed);
        self.made.wrapping_sub(event).wrapping_sub(1) < news
    }

    /// How many buffers can be taken back.
    fn ready(&mut self) -> u16 {
        if self.used == self.seen {
            // Acquire, pairs with the switch's Release: we see what it wrote.
            self.used = self.window.u16(at(USED + 2)).load(Ordering::Acquire);
        }
        self.used.wrapping_sub(self.seen)
    }

    /// Bytes that were written into the buffer that is taken back next.
    fn written(&self) -> u32 {
        self.window.u32(at(USED + 8 + 8 * ring_of(self.seen))).load(Ordering::Relaxed)
    }

    /// Waits until this many buffers can be taken back, yielding first and then asleep.
    fn wait(&mut self, many: u16, time: Duration) -> Result<bool> {
        for _ in 0..YIELDS {
            std::thread::yield_now();
            if self.is_ready(many) {
                return Ok(true);
            }
        }
        let event = self.window.u16(at(AVAIL + 4 + 2 * u64::from(SIZE)));
        event.store(self.seen.wrapping_add(many - 1), Ordering::Relaxed);
        store_load_fence();
        if self.is_ready(many) {
            return Ok(true);
        }
        let limit = Timespec {
            tv_sec: i64::try_from(time.as_secs())?,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        poll(&mut [PollFd::new(&self.call, PollFlags::IN)], Some(&limit))?;
        // Interrupted or not: what counts is what is there.
        let _ = rustix::io::read(&self.call, &mut [0; 8]);
        Ok(self.is_ready(many))
    }

    fn is_ready(&mut self, many: u16) -> bool {
        self.used = self.window.u16(at(USED + 2)).load(Ordering::Acquire);
        self.used.wrapping_sub(self.seen) >= many
    }
}

impl Machine {
    /// One whose driver is at work, with all its receive buffers out.
    pub fn boot(path: &Path) -> Result<Machine> {
        Machine::boot_with(path, FEATURES)
    }

    /// One whose driver cannot say when it wants to be interrupted: it is, for whatever comes.
    pub fn boot_old(path: &Path) -> Result<Machine> {
        Machine::boot_with(path, FEATURES & !EVENT_IDX)
    }

    fn boot_with(path: &Path, features: u64) -> Result<Machine> {
        let file = memfd_create("machine", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, BYTES)?;
        let lent = GuestMapping::map(&file, 0, at(BYTES))?;
        let extent = Extent { guest: 0, user: USER, size: BYTES, offset: 0, lent };
        let memory = GuestMemory::new(vec![extent]).context("no memory")?;
        let by_index = features & EVENT_IDX != 0;
        let queue = |index| Queue::new(index, &memory, by_index);
        let (receive, transmit) = (queue(0)?, queue(1)?);
        let backend = Frontend(connect(path)?);
        let path = path.to_owned();
        let mut machine = Machine { path, backend, file, memory, receive, transmit, features };
        machine.receive.made = SIZE;
        machine.receive.publish();
        machine.set_up()?;
        Ok(machine)
    }

    /// Goes on with a switch that was started again.
    pub fn reconnect(&mut self) -> Result<()> {
        self.backend = Frontend(connect(&self.path)?);
        self.set_up()
    }

    /// Requests in QEMU's order.
    fn set_up(&self) -> Result<()> {
        let backend = &self.backend;
        let offered = backend.ask(request::GET_FEATURES).context(HUNG_UP)?;
        ensure!(offered & self.features == self.features, "the switch offers {offered:#x} only");
        backend.tell(request::SET_OWNER, &[], &[])?;
        backend.tell(request::SET_FEATURES, &[self.features], &[])?;
        let memory = [1, 0, BYTES, USER, 0];
        backend.tell(request::SET_MEM_TABLE, &memory, &[self.file.as_fd()])?;
        for queue in [&self.receive, &self.transmit] {
            let (index, base) = (queue.index, USER + QUEUE * u64::from(queue.index));
            let used = queue.window.u16(at(USED + 2)).load(Ordering::Acquire);
            backend.tell(request::SET_VRING_NUM, &[pair(index, SIZE.into())], &[])?;
            backend.tell(request::SET_VRING_BASE, &[pair(index, used.into())], &[])?;
            let places = [pair(index, 0), base, base + USED, base + AVAIL, 0];
            backend.tell(request::SET_VRING_ADDR, &places, &[])?;
            backend.tell(request::SET_VRING_CALL, &[index.into()], &[queue.call.as_fd()])?;
            backend.tell(request::SET_VRING_KICK, &[index.into()], &[queue.kick.as_fd()])?;
            backend.tell(request::SET_VRING_ENABLE, &[pair(index, 1)], &[])?;
        }
        // Answered when everything before it has been done.
        backend.ask(request::GET_FEATURES).context(HUNG_UP).map(drop)
    }

    /// How many frames can be sent now.
    pub fn room(&mut self) -> u16 {
        let back = self.transmit.ready();
        self.transmit.seen = self.transmit.seen.wrapping_add(back);
        SIZE - self.transmit.made.wrapping_sub(self.transmit.seen)
    }

    /// Waits until this many more can be sent.
    pub fn wait_for_room(&mut self, many: u16, time: Duration) -> Result<bool> {
        self.transmit.wait(many, time)
    }

    /// Writes a frame, which goes with the next [`Machine::send`]; there is room for it.
    pub fn put(&mut self, frame: &[u8]) -> Result<()> {
        let Machine { transmit: queue, memory, .. } = self;
        let slot = usize::from(queue.made % SIZE);
        let length = u32::try_from(HEADER + frame.len())?;
        ensure!(u64::from(length) <= STRIDE, "a frame of {} bytes", frame.len());
        if queue.made < SIZE {
            // Frames of one machine are of one length: that of the buffer's first frame.
            let address = QUEUE + BUFFERS + STRIDE * u64::try_from(slot)?;
            queue.describe(queue.made % SIZE, address, length);
        }
        let mut writer = Writer::new(memory, &queue.buffers[slot..=slot]);
        writer.write(&[0; HEADER]);
        writer.write(frame);
        queue.made = queue.made.wrapping_add(1);
        Ok(())
    }

    /// Sends what was put.
    pub fn send(&mut self) {
        self.transmit.publish();
    }

    /// Reads the next frame, if there is one, whose buffer goes back with
    /// [`Machine::give_back`]. One that does not fit is cut.
    pub fn next<'a>(&mut self, frame: &'a mut [u8]) -> Option<&'a [u8]> {
        let Machine { receive: queue, memory, .. } = self;
        if queue.ready() == 0 {
            return None;
        }
        let written = usize::try_from(queue.written()).ok()?.checked_sub(HEADER)?;
        let slot = usize::from(queue.seen % SIZE);
        let mut reader = Reader::new(memory, &queue.buffers[slot..=slot]);
        reader.read(&mut [0; HEADER]);
        let length = written.min(frame.len());
        reader.read(&mut frame[..length]);
        queue.seen = queue.seen.wrapping_add(1);
        queue.made = queue.made.wrapping_add(1);
        Some(&frame[..length])
    }

    /// Gives the buffers back that were read.
    pub fn give_back(&mut self) {
        self.receive.publish();
    }

    /// How often it was interrupted for what it received, since it was asked last.
    pub fn interrupts(&self) -> u64 {
        let mut count = [0; 8];
        // There is nothing to read where there was none.
        let read = rustix::io::read(&self.receive.call, &mut count);
        read.map_or(0, |_| u64::from_ne_bytes(count))
    }

    /// Waits for a frame.
    pub fn wait_for_frame(&mut self, time: Duration) -> Result<bool> {
        self.receive.wait(1, time)
    }
}

/// Connects to a process that may be about to listen.
pub fn connect(path: &Path) -> Result<UnixStream> {
    let begin = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(socket) => return Ok(socket),
            Err(_) if begin.elapsed() < Duration::from_secs(5) => {
                std::thread::sleep(Duration::from_micros(500));
            }
            Err(error) => bail!("{}: {error}", path.display()),
        }
    }
}
