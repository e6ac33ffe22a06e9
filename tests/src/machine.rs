//! A virtual machine without a processor: a vhost-user frontend and the driver of split and packed
//! queues, written from the specifications and not from what they test.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use bench::frontend::{Frontend, pair, request};
use ring::guest::{Extent, GuestMapping, GuestMemory, Reader, Window, Writer};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::wait;

/// Feature bits: mergeable buffers, notification by index, version 1, features of the protocol.
const FEATURES: u64 = (1 << 15) | (1 << 29) | (1 << 32) | (1 << 30);
/// The queues are packed.
const RING_PACKED: u64 = 1 << 34;
/// What is written is noted.
const LOG_ALL: u64 = 1 << 26;
/// Checksums and runs may be left, by it and to it: CSUM, GUEST_CSUM, GUEST_TSO4 to GUEST_ECN,
/// HOST_TSO4 to HOST_ECN, GUEST_USO4, GUEST_USO6, HOST_USO.
const OFFLOADS: u64 = 0b11 | 0b111 << 7 | 0b111 << 11 | 0b111 << 54;
/// Features of the protocol: every request is answered.
const REPLY_ACK: u64 = 1 << 3;
/// More: the log is memory of ours; so is what the switch notes for its successor.
const LOG_SHMFD: u64 = 1 << 1;
const INFLIGHT_SHMFD: u64 = 1 << 12;

/// The number of queues and of the buffers of each, as messages say it.
const SHAPE: u64 = 2 | (SIZE as u64) << 16;
/// Most pairs of queues.
const PAIRS_MAX: u32 = 2;
/// Buffers of each queue, and their size: for a frame, and for a run of segments.
const SIZE: u16 = 64;
const BUFFER: u32 = 2048;
const RUN: u32 = 66 << 10;
/// Bytes of the header in front of each frame.
pub const HEADER: usize = 12;
/// Where things lie in the machine's memory of 9 MiB: queues of four pages, then buffers.
const BYTES: u64 = 9 << 20;
const QUEUE: u64 = 4 * 4096;
const BUFFERS: u64 = 1 << 16;
/// The flags of a packed descriptor that tell which side owns it.
const AVAIL: u64 = 1 << 7;
const USED: u64 = 1 << 15;
/// Where its memory is in this process, as far as the switch is told.
const USER: u64 = 1 << 42;

/// A queue of the machine: even ones to receive, odd ones to send.
#[derive(Debug)]
struct Driver {
    index: u32,
    /// Bytes of a buffer.
    buffer: u32,
    /// Buffers made available, and taken back.
    made: u16,
    seen: u16,
    is_packed: bool,
    kick: OwnedFd,
    call: OwnedFd,
}

/// A machine.
#[derive(Debug)]
pub struct Machine {
    backend: Frontend,
    file: OwnedFd,
    memory: GuestMemory,
    whole: Window,
    features: u64,
    queues: Vec<Driver>,
    /// The queue that it sends by.
    sends_by: usize,
    /// Where the switch notes how far it is.
    inflight: Option<(u64, OwnedFd)>,
}

/// A machine's memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// The memory's file.
    pub file: BorrowedFd<'a>,
    /// How much of it.
    pub bytes: u64,
    /// Where it is in this process, as far as the switch is told.
    pub user: u64,
}

/// A queue of a machine, as a switch is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'a> {
    /// How many buffers the queue has.
    pub size: u16,
    /// The first that is not given back.
    pub base: u16,
    /// Where its descriptors lie.
    pub descriptors: u64,
    /// Where the driver's area lies.
    pub driver: u64,
    /// Where the device's area lies.
    pub device: u64,
    /// By which its driver kicks.
    pub kick: BorrowedFd<'a>,
    /// By which its driver is interrupted.
    pub call: BorrowedFd<'a>,
}

/// What a switch notes of the pages that it writes.
#[derive(Debug)]
pub struct DirtyPages {
    file: OwnedFd,
    changed: OwnedFd,
    memory: OwnedFd,
    /// The memory as it was.
    contents: Vec<u8>,
}

impl DirtyPages {
    /// Whether an entry of the log was announced.
    #[must_use]
    pub fn is_told(&self) -> bool {
        rustix::io::read(&self.changed, &mut [0; 8]).is_ok()
    }

    /// Takes the memory away.
    ///
    /// # Panics
    /// If it cannot be.
    pub fn truncate(&self) {
        ftruncate(&self.file, 0).expect("ours");
    }

    /// The pages that were noted, and of those that only the switch writes, those that changed.
    ///
    /// # Panics
    /// If there is no memory.
    #[must_use]
    pub fn noted_and_changed(&self) -> [Vec<usize>; 2] {
        let (mut log, mut now) = ([0; 4096], vec![0; self.contents.len()]);
        rustix::io::pread(&self.file, &mut log, 0).expect("a file");
        rustix::io::pread(&self.memory, &mut now, 0).expect("a file");
        let pages = now.chunks(4096).zip(self.contents.chunks(4096)).enumerate();
        let changed = pages.filter(|(_, (new, old))| new != old).map(|(page, _)| page);
        let noted = (0..now.len() / 4096).filter(|page| log[8 + page / 8] >> (page % 8) & 1 == 1);
        // Descriptors, the driver's area, and what it sends.
        let [sent, end] = [1, 2].map(|queue| BUFFERS + queue * u64::from(SIZE) * u64::from(BUFFER));
        let sent = at(sent) / 4096..at(end) / 4096;
        let is_ours = |page: &usize| [0, 1, 4, 5].contains(page) || sent.contains(page);
        let noted: Vec<_> = noted.collect();
        assert!(!noted.iter().any(is_ours), "the switch does not write there: {noted:?}");
        [noted, changed.filter(|page| !is_ours(page)).collect()]
    }
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("descriptors")
}

fn at(address: u64) -> usize {
    usize::try_from(address).expect("64 bits")
}

impl Machine {
    /// Boots one whose driver is at work.
    ///
    /// # Panics
    /// If the switch does not let it.
    #[must_use]
    pub fn boot(socket: &Path) -> Self {
        let stream = wait::find("a socket to connect to", || UnixStream::connect(socket).ok());
        Self::boot_with(stream)
    }

    /// A machine whose socket the switch has connected to.
    #[must_use]
    pub fn boot_with(socket: UnixStream) -> Self {
        Self::boot_as(socket, FEATURES, BUFFER, SIZE)
    }

    /// Boots one whose driver makes only so many buffers available to receive.
    ///
    /// # Panics
    /// As [`Machine::boot`].
    #[must_use]
    pub fn boot_short(socket: &Path, buffers: u16) -> Self {
        let stream = wait::find("a socket to connect to", || UnixStream::connect(socket).ok());
        Self::boot_as(stream, FEATURES, BUFFER, buffers)
    }

    /// Boots one that leaves checksums and runs of segments to others, and takes them.
    ///
    /// # Panics
    /// As [`Machine::boot`].
    #[must_use]
    pub fn boot_unfinished(socket: &Path) -> Self {
        let stream = wait::find("a socket to connect to", || UnixStream::connect(socket).ok());
        Self::boot_as(stream, FEATURES | OFFLOADS, RUN, SIZE)
    }

    /// Boots one with packed queues. As QEMU, it tells the switch to begin at the beginning, also
    /// when it connects again.
    ///
    /// # Panics
    /// As [`Machine::boot`].
    #[must_use]
    pub fn boot_packed(socket: &Path) -> Self {
        let stream = wait::find("a socket to connect to", || UnixStream::connect(socket).ok());
        Self::boot_as(stream, FEATURES | RING_PACKED, BUFFER, SIZE)
    }

    fn boot_as(socket: UnixStream, features: u64, buffer: u32, buffers: u16) -> Self {
        let mut machine = Self::silent(socket, features, buffer, 1, buffers);
        machine.set_up();
        machine
    }

    /// A machine whose driver uses several queue pairs; the test speaks vhost-user for it.
    ///
    /// # Panics
    /// If there is no memory.
    #[must_use]
    pub fn spoken_for(socket: UnixStream, pairs: u32) -> Self {
        assert!(pairs <= PAIRS_MAX);
        Self::silent(socket, FEATURES, BUFFER, pairs, SIZE)
    }

    fn silent(socket: UnixStream, features: u64, buffer: u32, pairs: u32, buffers: u16) -> Self {
        let file = memfd_create("machine", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, BYTES).expect("ours");
        let lent = GuestMapping::map(&file, 0, at(BYTES)).expect("memory");
        let extent = Extent { guest: 0, user: USER, size: BYTES, offset: 0, lent };
        let memory = GuestMemory::new(vec![extent]).expect("one");
        let whole = memory.window(USER, at(BYTES), 1).expect("all of it");
        let is_packed = features & RING_PACKED != 0;
        let driver = |index| {
            let (made, seen) = (0, 0);
            Driver { index, buffer, made, seen, is_packed, kick: event(), call: event() }
        };
        let queues = (0..2 * pairs).map(driver).collect();
        let (inflight, sends_by) = (None, 1);
        let mut machine = Self {
            backend: Frontend(socket),
            file,
            memory,
            whole,
            features,
            queues,
            sends_by,
            inflight,
        };
        let receive = (0..machine.queues.len()).step_by(2);
        receive.for_each(|queue| (0..buffers).for_each(|_| machine.offer(queue)));
        machine
    }

    /// The machine's memory from guest address 0, for a test that speaks for it.
    #[must_use]
    pub fn memory(&self) -> Memory<'_> {
        Memory { file: self.file.as_fd(), bytes: BYTES, user: USER }
    }

    /// The part of its memory with the buffers of its queues.
    #[must_use]
    pub fn buffers(&self) -> Range<u64> {
        BUFFERS..BYTES
    }

    /// A queue, for a test that speaks for the machine.
    #[must_use]
    pub fn queue(&self, queue: usize) -> Queue<'_> {
        let driver = &self.queues[queue];
        let descriptors = USER + Self::base(driver);
        Queue {
            size: SIZE,
            base: self.used(driver),
            descriptors,
            driver: descriptors + 4096,
            device: descriptors + 2 * 4096,
            kick: driver.kick.as_fd(),
            call: driver.call.as_fd(),
        }
    }

    /// From now on it sends by this pair of queues.
    pub fn send_by(&mut self, pair: usize) {
        self.sends_by = 2 * pair + 1;
    }

    /// What a frontend says before a driver is at work; in QEMU's order.
    fn set_up(&mut self) {
        assert_eq!(self.ask(request::GET_FEATURES) & self.features, self.features, "features");
        self.tell(
            request::SET_PROTOCOL_FEATURES,
            &[(REPLY_ACK | LOG_SHMFD | INFLIGHT_SHMFD) & self.ask(request::GET_PROTOCOL_FEATURES)],
            &[],
        );
        self.order(request::SET_OWNER, &[], &[]);
        for queue in [0, 1] {
            self.order(request::SET_VRING_ENABLE, &[pair(queue, 1)], &[]);
        }
        self.order(request::SET_FEATURES, &[self.features], &[]);
        self.order(request::SET_MEM_TABLE, &[1, 0, BYTES, USER, 0], &[self.file.as_fd()]);
        if let Some((size, area)) = &self.inflight {
            self.order(request::SET_INFLIGHT_FD, &[*size, 0, SHAPE], &[area.as_fd()]);
        }
        for queue in &self.queues {
            let index = queue.index;
            self.order(request::SET_VRING_NUM, &[pair(index, SIZE.into())], &[]);
            // Where the last one was: all that was given back was taken. With an in-flight area the
            // switch need not look: then it is wherever the driver is.
            let base = match (queue.is_packed, &self.inflight) {
                (true, _) => 0x8000_8000,
                (false, Some(_)) => queue.made.into(),
                (false, None) => self.used(queue).into(),
            };
            self.order(request::SET_VRING_BASE, &[pair(index, base)], &[]);
            self.order(request::SET_VRING_ADDR, &Self::places(queue, false), &[]);
            self.order(request::SET_VRING_KICK, &[index.into()], &[queue.kick.as_fd()]);
            self.order(request::SET_VRING_CALL, &[index.into()], &[queue.call.as_fd()]);
        }
    }

    /// Lets the switch note from the next connection on how far it is.
    ///
    /// # Panics
    /// If it cannot.
    pub fn track(&mut self) {
        self.tell(request::GET_INFLIGHT_FD, &[0, 0, SHAPE], &[]);
        let mut bytes = [0; 12 + 24];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [io::IoSliceMut::new(&mut bytes)];
        let received = recvmsg(&self.backend, slices, &mut control, RecvFlags::WAITALL);
        assert_eq!(received.expect("an answer").bytes, 36);
        let rights = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let size = u64::from_ne_bytes(bytes[12..20].try_into().expect("eight"));
        self.inflight = Some((size, rights.expect("a descriptor")));
    }

    /// From now on each page of its memory that the switch writes is to be noted.
    ///
    /// # Panics
    /// If the switch cannot.
    pub fn start_log(&self) -> DirtyPages {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, 4096).expect("ours");
        // As many bytes as the memory needs, and not from the beginning.
        self.tell(request::SET_LOG_BASE, &[BYTES / 4096 / 8, 8], &[file.as_fd()]);
        self.answer(request::SET_LOG_BASE);
        let changed = event();
        self.order(request::SET_LOG_FD, &[], &[changed.as_fd()]);
        self.order(request::SET_FEATURES, &[self.features | LOG_ALL], &[]);
        for queue in &self.queues {
            self.order(request::SET_VRING_ADDR, &Self::places(queue, true), &[]);
        }
        let mut contents = vec![0; at(BYTES)];
        rustix::io::pread(&self.file, &mut contents, 0).expect("a file");
        let memory = self.file.try_clone().expect("descriptors");
        DirtyPages { file, changed, memory, contents }
    }

    /// What a queue's places are, as they are told to the switch.
    fn places(queue: &Driver, is_logged: bool) -> [u64; 5] {
        let at = QUEUE * u64::from(queue.index);
        let base = USER + at;
        let index = pair(queue.index, is_logged.into());
        [index, base, base + 2 * 4096, base + 4096, at + 2 * 4096]
    }

    /// Drops the connection; the test makes another.
    ///
    /// # Panics
    /// If there are no descriptors.
    pub fn hang_up(&mut self) {
        self.backend = Frontend(UnixStream::pair().expect("descriptors").0);
    }

    /// Goes on with another connection: the switch was started again.
    pub fn reconnect(&mut self, socket: &Path) {
        let stream = wait::find("a socket to connect to", || UnixStream::connect(socket).ok());
        self.backend = Frontend(stream);
        self.set_up();
    }

    fn tell(&self, request: u32, values: &[u64], fds: &[BorrowedFd<'_>]) {
        self.backend.tell(request, values, fds).expect("the switch listens");
    }

    /// Says something, right or wrong.
    ///
    /// # Errors
    /// The switch has hung up.
    pub fn say(
        &self,
        request: u32,
        flags: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.backend.send(request, flags, payload, fds)
    }

    /// Asks for a number.
    fn ask(&self, request: u32) -> u64 {
        self.backend.ask(request).expect("an answer")
    }

    /// Sends a request that the switch must do.
    fn order(&self, request: u32, values: &[u64], fds: &[BorrowedFd<'_>]) {
        self.backend.order(request, values, fds).expect("the switch does it");
    }

    fn answer(&self, request: u32) -> u64 {
        self.backend.answer(request).expect("an answer")
    }

    /// Whether the switch has hung up.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        let mut fds = [PollFd::new(&self.backend, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Stops a queue; returns where it was.
    #[must_use]
    pub fn stop(&self, queue: u32) -> u64 {
        self.tell(request::GET_VRING_BASE, &[queue.into()], &[]);
        self.answer(request::GET_VRING_BASE) >> 32
    }

    fn base(queue: &Driver) -> u64 {
        QUEUE * u64::from(queue.index)
    }

    fn used(&self, queue: &Driver) -> u16 {
        self.whole.u16(at(Self::base(queue) + 2 * 4096 + 2)).load(Acquire)
    }

    /// The wrap counter of a packed queue after this many buffers.
    fn wrap(buffers: u16) -> bool {
        (buffers / SIZE).is_multiple_of(2)
    }

    /// Whether there is a buffer to take back.
    fn has_used(&self, queue: &Driver) -> bool {
        if !queue.is_packed {
            return self.used(queue) != queue.seen;
        }
        let flags = Self::base(queue) + 16 * u64::from(queue.seen % SIZE) + 14;
        let owner = u64::from(self.whole.u16(at(flags)).load(Acquire)) & (AVAIL | USED);
        owner == if Self::wrap(queue.seen) { AVAIL | USED } else { 0 }
    }

    /// Address of a buffer of a queue.
    fn buffer(queue: &Driver, slot: u16) -> u64 {
        let index = u64::from(queue.index) * u64::from(SIZE) + u64::from(slot);
        BUFFERS + index * u64::from(queue.buffer)
    }

    /// Makes the next buffer of a queue available, `len` bytes of it.
    fn make(&mut self, queue: usize, len: u32) {
        const WRITE: u64 = 2;
        const NO_KICKS: u16 = 1;
        let driver = &mut self.queues[queue];
        let (slot, base) = (driver.made % SIZE, Self::base(driver));
        let flags = if queue.is_multiple_of(2) { WRITE } else { 0 };
        let place = base + 16 * u64::from(slot);
        self.whole.u64(at(place)).store(Self::buffer(driver, slot), Relaxed);
        if driver.is_packed {
            let owner = if Self::wrap(driver.made) { AVAIL } else { USED };
            let rest = u64::from(len) | u64::from(slot) << 32 | (flags | owner) << 48;
            self.whole.u64(at(place + 8)).store(rest, Release);
            driver.made = driver.made.wrapping_add(1);
            std::sync::atomic::fence(SeqCst);
            if self.whole.u16(at(base + 2 * 4096 + 2)).load(Relaxed) != NO_KICKS {
                rustix::io::write(&driver.kick, &1u64.to_ne_bytes()).expect("it counts");
            }
            return;
        }
        self.whole.u64(at(place + 8)).store(u64::from(len) | flags << 32, Relaxed);
        let ring = base + 4096 + 4 + 2 * u64::from(slot);
        self.whole.u16(at(ring)).store(slot, Relaxed);
        driver.made = driver.made.wrapping_add(1);
        self.whole.u16(at(base + 4096 + 2)).store(driver.made, Release);
        // Kicks if the switch has asked for this one.
        std::sync::atomic::fence(SeqCst);
        let event = base + 2 * 4096 + 4 + 8 * u64::from(SIZE);
        if self.whole.u16(at(event)).load(Relaxed) == driver.made.wrapping_sub(1) {
            rustix::io::write(&driver.kick, &1u64.to_ne_bytes()).expect("it counts");
        }
    }

    /// Takes a buffer back: its slot, and what was written.
    fn take_back(&mut self, queue: usize) -> Option<(u16, u32)> {
        let driver = &self.queues[queue];
        if !self.has_used(driver) {
            return None;
        }
        let next = u64::from(driver.seen % SIZE);
        let [slot, len] = if driver.is_packed {
            let place = Self::base(driver) + 16 * next + 8;
            let slot = self.whole.u16(at(place + 4)).load(Relaxed);
            [slot.into(), self.whole.u32(at(place)).load(Relaxed)]
        } else {
            let place = Self::base(driver) + 2 * 4096 + 4 + 8 * next;
            [place, place + 4].map(|place| self.whole.u32(at(place)).load(Relaxed))
        };
        self.queues[queue].seen = driver.seen.wrapping_add(1);
        Some((u16::try_from(slot).expect("its slot"), len))
    }

    /// Offers a buffer to receive into.
    fn offer(&mut self, queue: usize) {
        self.make(queue, self.queues[queue].buffer);
    }

    /// Sends a frame of at most a buffer; waits for room.
    ///
    /// # Panics
    /// If there never is any.
    pub fn send(&mut self, frame: &[u8]) {
        self.send_behind([0; HEADER], frame);
    }

    /// Sends a frame behind this header.
    ///
    /// # Panics
    /// As [`Machine::send`].
    pub fn send_behind(&mut self, header: [u8; HEADER], frame: &[u8]) {
        wait::until("room to send", || {
            while self.take_back(self.sends_by).is_some() {}
            let driver = &self.queues[self.sends_by];
            driver.made.wrapping_sub(driver.seen) < SIZE
        });
        let driver = &self.queues[self.sends_by];
        let mut spans = Vec::new();
        let len = u32::try_from(HEADER + frame.len()).expect("short");
        assert!(len <= driver.buffer);
        let place = Self::buffer(driver, driver.made % SIZE);
        assert!(self.memory.slices(place, len, &mut spans, 1));
        let mut writer = Writer::new(&self.memory, &spans);
        writer.write(&header);
        writer.write(frame);
        self.make(self.sends_by, len);
    }

    /// A frame, if there is one, out of as many buffers as it fills.
    pub fn try_receive(&mut self) -> Option<Vec<u8>> {
        self.try_receive_whole().map(|mut bytes| bytes.split_off(HEADER))
    }

    /// Receives a frame with its header.
    pub fn try_receive_whole(&mut self) -> Option<Vec<u8>> {
        (0..self.queues.len()).step_by(2).find_map(|queue| self.take_whole(queue))
    }

    fn take_whole(&mut self, queue: usize) -> Option<Vec<u8>> {
        let (slot, len) = self.take_back(queue)?;
        let mut bytes = self.bytes(queue, slot, len);
        // A header of zeros is behind a hole.
        let buffers = u16::from_le_bytes([bytes[10], bytes[11]]).max(1);
        for _ in 1..buffers {
            let (slot, len) = self.take_back(queue).expect("all of a frame at once");
            bytes.extend(self.bytes(queue, slot, len));
        }
        (0..buffers).for_each(|_| self.offer(queue));
        Some(bytes)
    }

    fn bytes(&self, queue: usize, slot: u16, len: u32) -> Vec<u8> {
        let mut spans = Vec::new();
        assert!(self.memory.slices(Self::buffer(&self.queues[queue], slot), len, &mut spans, 1));
        let mut bytes = vec![0; len as usize];
        Reader::new(&self.memory, &spans).read(&mut bytes);
        bytes
    }

    /// The next frame that is no announcement; asleep until the switch interrupts.
    ///
    /// # Panics
    /// If none comes.
    pub fn receive(&mut self) -> Vec<u8> {
        loop {
            if let Some(frame) = self.try_receive() {
                if frame[12..14] != [0x88, 0xb6] {
                    return frame;
                }
                continue;
            }
            self.sleep();
        }
    }

    /// Asks for an interrupt at the next frame and sleeps until it comes.
    fn sleep(&self) {
        let queues = || self.queues.iter().step_by(2);
        // A packed queue interrupts for each frame, as its event area says from the beginning.
        for driver in queues().filter(|driver| !driver.is_packed) {
            let event = Self::base(driver) + 4096 + 4 + 2 * u64::from(SIZE);
            self.whole.u16(at(event)).store(driver.seen, Relaxed);
        }
        std::sync::atomic::fence(SeqCst);
        if queues().any(|driver| self.has_used(driver)) {
            return;
        }
        let seconds = i64::try_from(wait::PATIENCE.as_secs()).expect("a minute");
        let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let mut fds: Vec<_> =
            queues().map(|driver| PollFd::new(&driver.call, PollFlags::IN)).collect();
        assert!(poll(&mut fds, Some(&limit)).is_ok_and(|rung| rung > 0), "no interrupt came");
        for driver in queues() {
            // Those that have not rung have nothing to be read.
            let _ = rustix::io::read(&driver.call, &mut [0; 8]);
        }
    }

    /// Breaks the rules: the sending queue's index is far ahead.
    pub fn break_queue(&mut self) {
        let driver = &self.queues[1];
        let index = Self::base(driver) + 4096 + 2;
        self.whole.u16(at(index)).store(driver.made.wrapping_add(SIZE * 2), Release);
        self.kick();
    }

    /// Lends its memory once more, elsewhere.
    ///
    /// # Panics
    /// If the switch does not listen.
    pub fn lend_more(&self) {
        let region = [0, 2 * BYTES, BYTES, 2 * USER, 0];
        self.tell(request::ADD_MEM_REG, &region, &[self.file.as_fd()]);
    }

    /// Takes its memory away while the switch uses it.
    pub fn truncate_memory(&self) {
        ftruncate(&self.file, 0).expect("ours");
        self.kick();
    }

    fn kick(&self) {
        rustix::io::write(&self.queues[1].kick, &1u64.to_ne_bytes()).expect("it counts");
    }
}
