//! A virtual machine without a processor: a vhost-user frontend and the driver of two split
//! queues, written from the specifications and not from what they test.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use ring::guest::{Extent, GuestMemory, Lent, Reader, Window, Writer};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::wait;

/// Feature bits: mergeable buffers, notification by index, version 1, features of the protocol.
const FEATURES: u64 = (1 << 15) | (1 << 29) | (1 << 32) | (1 << 30);
/// Features of the protocol: every request is answered.
const REPLY_ACK: u64 = 1 << 3;

/// Buffers of each queue, and their size.
const SIZE: u16 = 64;
const BUFFER: u32 = 2048;
const HEADER: usize = 12;
/// Where things lie in the machine's memory of 1 MiB: two queues of four pages, then buffers.
const BYTES: u64 = 1 << 20;
const QUEUE: u64 = 4 * 4096;
const BUFFERS: u64 = 1 << 16;
/// Where its memory is in this process, as far as the switch is told.
const USER: u64 = 1 << 42;

/// A queue of the machine: 0 to receive, 1 to send.
#[derive(Debug)]
struct Driver {
    index: u32,
    /// Buffers made available, and taken back.
    made: u16,
    seen: u16,
    kick: OwnedFd,
    call: OwnedFd,
}

/// A machine.
#[derive(Debug)]
pub struct Machine {
    socket: UnixStream,
    file: OwnedFd,
    memory: GuestMemory,
    whole: Window,
    queues: [Driver; 2],
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("descriptors")
}

fn at(address: u64) -> usize {
    usize::try_from(address).expect("64 bits")
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Two words of four bytes as one of eight.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
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

    /// The same where the switch has connected to us.
    #[must_use]
    pub fn boot_with(socket: UnixStream) -> Self {
        let file = memfd_create("machine", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, BYTES).expect("ours");
        let lent = Lent::map(&file, 0, at(BYTES)).expect("memory");
        let extent = Extent { guest: 0, user: USER, size: BYTES, offset: 0, lent };
        let memory = GuestMemory::new(vec![extent]).expect("one");
        let whole = memory.window(USER, at(BYTES), 1).expect("all of it");
        let queues =
            [0, 1].map(|index| Driver { index, made: 0, seen: 0, kick: event(), call: event() });
        let mut machine = Self { socket, file, memory, whole, queues };
        (0..SIZE).for_each(|_| machine.offer());
        machine.set_up();
        machine
    }

    /// What a frontend says before a driver is at work; in QEMU's order.
    fn set_up(&mut self) {
        assert_eq!(self.ask(1) & FEATURES, FEATURES, "features");
        self.tell(16, &words(&[REPLY_ACK & self.ask(15)]), &[]);
        self.order(3, &[], &[]);
        for queue in [0, 1] {
            self.order(18, &words(&[pair(queue, 1)]), &[]);
        }
        self.order(2, &words(&[FEATURES]), &[]);
        self.order(5, &words(&[1, 0, BYTES, USER, 0]), &[self.file.as_fd()]);
        for queue in &self.queues {
            let index = queue.index;
            let base = USER + QUEUE * u64::from(index);
            self.order(8, &words(&[pair(index, SIZE.into())]), &[]);
            // Where the last one was: all that was given back was taken.
            self.order(10, &words(&[pair(index, self.used(queue).into())]), &[]);
            let places = [pair(index, 0), base, base + 2 * 4096, base + 4096, 0];
            self.order(9, &words(&places), &[]);
            self.order(12, &words(&[index.into()]), &[queue.kick.as_fd()]);
            self.order(13, &words(&[index.into()]), &[queue.call.as_fd()]);
        }
    }

    /// Goes on with another connection: the switch was started again.
    pub fn reconnect(&mut self, socket: &Path) {
        self.socket = wait::find("a socket to connect to", || UnixStream::connect(socket).ok());
        self.set_up();
    }

    fn tell(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.say(request, 1, payload, fds).expect("the switch listens");
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
        let size = u32::try_from(payload.len()).expect("short");
        let header = [request, flags, size].into_iter().flat_map(u32::to_ne_bytes);
        let bytes: Vec<u8> = header.chain(payload.iter().copied()).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let slices = [io::IoSlice::new(&bytes)];
        sendmsg(&self.socket, &slices, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Asks for a number.
    fn ask(&self, request: u32) -> u64 {
        self.tell(request, &[], &[]);
        self.answer(request)
    }

    /// Says something that must be done.
    fn order(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        const NEED_REPLY: u32 = 8;
        self.say(request, 1 | NEED_REPLY, payload, fds).expect("the switch listens");
        assert_eq!(self.answer(request), 0, "request {request} is refused");
    }

    fn answer(&self, request: u32) -> u64 {
        let mut bytes = [0; 20];
        io::Read::read_exact(&mut &self.socket, &mut bytes).expect("an answer");
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"));
        assert_eq!([word(0), word(4), word(8)], [request, 5, 8]);
        u64::from_ne_bytes(bytes[12..].try_into().expect("eight"))
    }

    /// Has the switch hung up?
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Stops a queue; returns where it was.
    #[must_use]
    pub fn stop(&self, queue: u32) -> u64 {
        self.tell(11, &words(&[queue.into()]), &[]);
        self.answer(11) >> 32
    }

    fn base(queue: &Driver) -> u64 {
        QUEUE * u64::from(queue.index)
    }

    fn used(&self, queue: &Driver) -> u16 {
        self.whole.u16(at(Self::base(queue) + 2 * 4096 + 2)).load(Acquire)
    }

    /// Address of a buffer of a queue.
    fn buffer(queue: &Driver, slot: u16) -> u64 {
        let index = u64::from(queue.index) * u64::from(SIZE) + u64::from(slot);
        BUFFERS + index * u64::from(BUFFER)
    }

    /// Makes the next buffer of a queue available, `len` bytes of it.
    fn make(&mut self, queue: usize, len: u32) {
        const WRITE: u64 = 2;
        let driver = &mut self.queues[queue];
        let (slot, base) = (driver.made % SIZE, Self::base(driver));
        let flags = if queue == 0 { WRITE } else { 0 };
        let place = base + 16 * u64::from(slot);
        self.whole.u64(at(place)).store(Self::buffer(driver, slot), Relaxed);
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
        if self.used(driver) == driver.seen {
            return None;
        }
        let place = Self::base(driver) + 2 * 4096 + 4 + 8 * u64::from(driver.seen % SIZE);
        let slot = self.whole.u32(at(place)).load(Relaxed);
        let len = self.whole.u32(at(place + 4)).load(Relaxed);
        self.queues[queue].seen = driver.seen.wrapping_add(1);
        Some((u16::try_from(slot).expect("its slot"), len))
    }

    /// Offers a buffer to receive into.
    fn offer(&mut self) {
        self.make(0, BUFFER);
    }

    /// Sends a frame of at most a buffer; waits for room.
    ///
    /// # Panics
    /// If there never is any.
    pub fn send(&mut self, frame: &[u8]) {
        self.send_behind([0; HEADER], frame);
    }

    /// The same with a header of its own.
    ///
    /// # Panics
    /// As [`Machine::send`].
    pub fn send_behind(&mut self, header: [u8; HEADER], frame: &[u8]) {
        wait::until("room to send", || {
            while self.take_back(1).is_some() {}
            self.queues[1].made.wrapping_sub(self.queues[1].seen) < SIZE
        });
        let driver = &self.queues[1];
        let mut spans = Vec::new();
        let len = u32::try_from(HEADER + frame.len()).expect("short");
        assert!(len <= BUFFER);
        let place = Self::buffer(driver, driver.made % SIZE);
        assert!(self.memory.spans(place, len, &mut spans, 1));
        let mut writer = Writer::new(&self.memory, &spans);
        writer.write(&header);
        writer.write(frame);
        self.make(1, len);
    }

    /// A frame, if there is one, out of as many buffers as it fills.
    pub fn try_receive(&mut self) -> Option<Vec<u8>> {
        let (slot, len) = self.take_back(0)?;
        let mut bytes = self.bytes(slot, len);
        let buffers = u16::from_le_bytes([bytes[10], bytes[11]]);
        for _ in 1..buffers {
            let (slot, len) = self.take_back(0).expect("all of a frame at once");
            bytes.extend(self.bytes(slot, len));
        }
        (0..buffers).for_each(|_| self.offer());
        Some(bytes.split_off(HEADER))
    }

    fn bytes(&self, slot: u16, len: u32) -> Vec<u8> {
        let mut spans = Vec::new();
        assert!(self.memory.spans(Self::buffer(&self.queues[0], slot), len, &mut spans, 1));
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
        let driver = &self.queues[0];
        let event = Self::base(driver) + 4096 + 4 + 2 * u64::from(SIZE);
        self.whole.u16(at(event)).store(driver.seen, Relaxed);
        std::sync::atomic::fence(SeqCst);
        if self.used(driver) != driver.seen {
            return;
        }
        let seconds = i64::try_from(wait::PATIENCE.as_secs()).expect("a minute");
        let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let mut fds = [PollFd::new(&driver.call, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "nobody interrupts");
        rustix::io::read(&driver.call, &mut [0; 8]).expect("it was readable");
    }

    /// Breaks the rules: the sending queue's index is far ahead.
    pub fn break_queue(&mut self) {
        let driver = &self.queues[1];
        let index = Self::base(driver) + 4096 + 2;
        self.whole.u16(at(index)).store(driver.made.wrapping_add(SIZE * 2), Release);
        self.kick();
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
