//! Senders and receivers that are netmap programs.
//!
//! The programs use the C library's `open`, `ioctl`, `mmap` and `poll` on `/dev/netmap` and nothing
//! of ours, and are started with the preloaded library, as an old program would be. Their
//! loops are pkt-gen's: poll, fill or read at most a batch, move `head` and `cur`, and again; every
//! poll is a sync. The frames are those of [`super::ends`], so that the two can be compared.

// UNSAFETY: functions of the C library, and memory that the kernel or its stand-in maps.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_short, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ring::abi::{NetmapIf, NetmapRing, Slot};

use super::Part;
use super::ends::{PATIENCE, SENDER, check, million};
use crate::machine;
use crate::sample;
use crate::stamp::{self, address, header};
use crate::work::Payload;

/// netmap's `struct nmreq_header`.
#[repr(C)]
struct Header {
    version: u16,
    request: u16,
    reserved: u32,
    name: [u8; 64],
    options: u64,
    body: u64,
}

/// netmap's `struct nmreq_register`.
#[repr(C)]
#[derive(Default)]
struct Register {
    offset: u64,
    size: u64,
    slots: [u32; 2],
    rings: [u16; 4],
    region: u16,
    ring: u16,
    mode: u32,
    extra_buffers: u32,
    flags: u64,
}

const _: () = assert!(size_of::<Header>() == 88 && size_of::<Register>() == 56);

const API: u16 = 14;
const REGISTER: u16 = 1;
const ALL_RINGS: u32 = 1;
/// `NIOCCTRL`.
const CONTROL: libc::c_ulong = 0xc058_6997;
/// `NIOCTXSYNC`.
const SEND: libc::c_ulong = 0x6994;

/// A bound port, for as long as the process lives.
struct Device {
    fd: c_int,
    tx: Ring,
    rx: Ring,
}

/// A ring of it.
struct Ring {
    ring: *mut NetmapRing,
    slots: *mut Slot,
    buffers: *mut u8,
    count: u32,
    size: usize,
}

/// What the C library says went wrong.
fn succeeded(result: c_int, what: &'static str) -> Result<c_int> {
    if result < 0 {
        return Err(std::io::Error::last_os_error()).context(what);
    }
    Ok(result)
}

impl Device {
    fn open(name: &str) -> Result<Device> {
        let device: &CStr = c"/dev/netmap";
        // SAFETY: a text that ends.
        let fd = unsafe { libc::open(device.as_ptr(), libc::O_RDWR) };
        let fd = succeeded(fd, "/dev/netmap")?;
        let mut register = Register { mode: ALL_RINGS, ..Register::default() };
        let mut header = Header {
            version: API,
            request: REGISTER,
            reserved: 0,
            name: [0; 64],
            options: 0,
            body: (&raw mut register).expose_provenance() as u64,
        };
        header.name[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: a request whose body is live.
        let bound = unsafe { libc::ioctl(fd, CONTROL, &raw mut header) };
        succeeded(bound, "binding a netmap port")?;
        let size = usize::try_from(register.size)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping, wherever there is room.
        let memory = unsafe { libc::mmap(null, size, access, libc::MAP_SHARED, fd, 0) };
        ensure!(memory != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        let nifp = usize::try_from(register.offset)?;
        // SAFETY: where netmap said that the description is.
        let (tx, rx) = unsafe { rings(memory.byte_add(nifp)) };
        Ok(Device { fd, tx, rx })
    }

    /// Syncs, and waits until there is something at `cur`.
    fn poll(&self, events: c_short, time: Duration) -> Result<bool> {
        let mut place = libc::pollfd { fd: self.fd, events, revents: 0 };
        // SAFETY: one place.
        let come = unsafe { libc::poll(&raw mut place, 1, c_int::try_from(time.as_millis())?) };
        succeeded(come, "poll")?;
        ensure!(place.revents & libc::POLLERR == 0, "poll: an error of the port");
        Ok(come > 0)
    }
}

/// The first ring of each direction.
///
/// # Safety
/// `nifp` is a mapped `netmap_if` with its rings.
unsafe fn rings(nifp: *mut c_void) -> (Ring, Ring) {
    // SAFETY: the caller's promise.
    let port = unsafe { nifp.cast::<NetmapIf>().read() };
    let first_rx = (port.ni_tx_rings + port.ni_host_tx_rings) as usize;
    let ring = |number: usize| {
        // SAFETY: offsets of the rings follow the description.
        let at = unsafe { nifp.byte_add(size_of::<NetmapIf>()).cast::<isize>().add(number).read() };
        // SAFETY: a ring at this offset.
        let ring = unsafe { nifp.byte_offset(at).cast::<NetmapRing>() };
        // SAFETY: its head, which says the same as long as it is mapped, but for the indexes.
        let head = unsafe { ring.read_volatile() };
        let pool = isize::try_from(head.buf_ofs).expect("an offset inside the mapping");
        Ring {
            ring,
            // SAFETY: the slots follow the head.
            slots: unsafe { ring.add(1).cast() },
            // SAFETY: the buffers are in the same mapping.
            buffers: unsafe { ring.byte_offset(pool).cast() },
            count: head.num_slots,
            size: head.nr_buf_size as usize,
        }
    };
    (ring(0), ring(first_rx))
}

impl Ring {
    fn head(&self) -> u32 {
        // SAFETY: a word of the mapped ring.
        unsafe { (&raw const (*self.ring).head).read_volatile() }
    }

    /// Slots between `head` and `tail`.
    fn space(&self) -> u32 {
        // SAFETY: a word of the mapped ring.
        let tail = unsafe { (&raw const (*self.ring).tail).read_volatile() };
        let head = self.head();
        if tail < head { self.count - head + tail } else { tail - head }
    }

    fn next(&self, at: u32) -> u32 {
        if at + 1 == self.count { 0 } else { at + 1 }
    }

    fn slot(&self, at: u32) -> *mut Slot {
        assert!(at < self.count);
        // SAFETY: inside the ring.
        unsafe { self.slots.add(at as usize) }
    }

    /// The first `length` bytes of a slot's buffer.
    fn frame(&mut self, at: u32, length: usize) -> &mut [u8] {
        assert!(length <= self.size);
        // SAFETY: a slot that is ours until `head` has passed it.
        let buffer = unsafe { (&raw const (*self.slot(at)).buf_idx).read() } as usize;
        // SAFETY: its buffer, likewise.
        unsafe { std::slice::from_raw_parts_mut(self.buffers.add(buffer * self.size), length) }
    }

    fn len(&self, at: u32) -> u16 {
        // SAFETY: a slot that is ours until `head` has passed it.
        unsafe { (&raw const (*self.slot(at)).len).read() }
    }

    fn set(&self, at: u32, length: u16) {
        let slot = self.slot(at);
        // SAFETY: a slot that is ours until `head` has passed it.
        unsafe { (&raw mut (*slot).len).write(length) };
        // SAFETY: likewise.
        unsafe { (&raw mut (*slot).flags).write(0) };
    }

    /// Everything before `at` is handed over, with the next sync.
    fn advance(&self, at: u32) {
        // SAFETY: words of the mapped ring, which no other thread writes.
        let words = unsafe { [&raw mut (*self.ring).cur, &raw mut (*self.ring).head] };
        for word in words {
            // SAFETY: as above. Release: the slots come first.
            unsafe { AtomicU32::from_ptr(word) }.store(at, Ordering::Release);
        }
    }
}

/// Sends until it is ended.
pub fn send(part: &Part) -> Result<()> {
    machine::pin(part.work.placement.sender);
    let mut device = Device::open(&part.sender_port())?;
    let header = header(address(1), address(SENDER));
    let untouched = part.work.payload == Payload::Untouched;
    // Every slot's frame is written once: with no payload to make there is still an address.
    let to_write = if untouched { 2 * u64::from(device.tx.count) } else { u64::MAX };
    let (length, batch) = (part.work.frame_len, u32::from(part.work.batch.sender).max(1));
    part.ready()?;
    let mut sequence = 1;
    loop {
        ensure!(device.poll(libc::POLLOUT, PATIENCE)?, "the switch takes no frames");
        let tx = &mut device.tx;
        let mut at = tx.head();
        for _ in 0..tx.space().min(batch) {
            if sequence < to_write {
                stamp::write(tx.frame(at, usize::from(length)), &header, sequence);
                sequence += 1;
            }
            tx.set(at, length);
            at = tx.next(at);
        }
        tx.advance(at);
    }
}

/// Counts and checks what arrives.
pub fn receive(part: &Part) -> Result<()> {
    machine::pin(part.work.placement.receiver);
    let mut device = Device::open(&part.receiver_port(0))?;
    introduce(&mut device)?;
    part.ready()?;
    let batch = u32::from(part.work.batch.receiver).max(1);
    let mut sink = Sink { touched: part.work.payload == Payload::Touched, count: 0, last: None };
    ensure!(device.poll(libc::POLLIN, PATIENCE)?, "no frame arrived");
    sink.count_for(&mut device, batch, part.warm_up())?;
    let (before, start) = (sink.count, Instant::now());
    sink.count_for(&mut device, batch, part.time())?;
    part.report(million(sink.count - before) / start.elapsed().as_secs_f64())
}

/// Sends a frame to itself, so that the switch knows where the address lives.
fn introduce(device: &mut Device) -> Result<()> {
    let tx = &mut device.tx;
    let at = tx.head();
    stamp::write(tx.frame(at, 60), &header(address(1), address(1)), 0);
    tx.set(at, 60);
    tx.advance(tx.next(at));
    // SAFETY: a call without an argument.
    let sent = unsafe { libc::ioctl(device.fd, SEND) };
    succeeded(sent, "NIOCTXSYNC").map(drop)
}

/// Takes frames and checks them.
struct Sink {
    touched: bool,
    count: u64,
    last: Option<u64>,
}

impl Sink {
    fn count_for(&mut self, device: &mut Device, batch: u32, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            for _ in 0..16 {
                if device.poll(libc::POLLIN, Duration::from_millis(20))? {
                    self.take(&mut device.rx, batch)?;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, rx: &mut Ring, batch: u32) -> Result<()> {
        let (mut at, count) = (rx.head(), rx.space().min(batch));
        for _ in 0..count {
            let length = usize::from(rx.len(at));
            if self.touched {
                check(&mut self.last, stamp::read(rx.frame(at, length)))?;
            }
            at = rx.next(at);
        }
        rx.advance(at);
        self.count += u64::from(count);
        Ok(())
    }
}

/// Polls of one round, of either kind.
const POLLS: u32 = 1000;

/// Compares a poll of a quiet port and a pipe with the bare system call on the pipe, in turns.
/// Reports the median of the differences.
pub fn poll_nothing(part: &Part) -> Result<()> {
    machine::pin(part.work.placement.sender);
    let device = Device::open(&part.receiver_port(0))?;
    let (pipe, _open) = std::io::pipe()?;
    let pipe = std::os::fd::AsRawFd::as_raw_fd(&pipe);
    part.ready()?;
    let place = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut both = [place(device.fd), place(pipe)];
    let mut alone = [place(pipe)];
    // SAFETY: live places, for both calls.
    let ours = || c_int::from(unsafe { libc::poll(both.as_mut_ptr(), 2, 0) } != 0);
    let (mut ours, begin) = (ours, Instant::now());
    let mut differences = Vec::new();
    while begin.elapsed() < part.time() {
        let netmap = nanoseconds_of(&mut ours)?;
        let bare = nanoseconds_of(|| {
            // SAFETY: live places; the C library's `poll` is not asked.
            let come = unsafe { libc::syscall(libc::SYS_poll, alone.as_mut_ptr(), 1, 0) };
            c_int::from(come != 0)
        })?;
        differences.push(netmap - bare);
    }
    part.report(sample::median(&mut differences).context("no time to measure")?)
}

/// What one call takes, on average.
fn nanoseconds_of(mut call: impl FnMut() -> c_int) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..POLLS {
        if call() != 0 {
            bail!("a poll said that there was something to do");
        }
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(POLLS))
}
