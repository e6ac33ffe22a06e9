//! Senders and receivers of frames at interfaces, many in one system call.

// UNSAFETY: sendmmsg, recvmmsg and the addresses of packet sockets are in no safe wrapper that we
// use.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use client::Port;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::Meter;
use crate::machine;
use crate::role::{self, Role};
use crate::sample::Reading;
use crate::stamp::{self, address, header};
use crate::work::Work;
use terminal::say;

/// Frames of a system call.
const BATCH: usize = 64;
/// Longest frame.
const LONGEST: usize = 2048;

/// The senders and receivers, with what they send.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Packets {
    interface: String,
    from: u8,
    to: u8,
    length: u16,
    cpu: usize,
    millis: u64,
}

impl Packets {
    /// The end of a station on an interface.
    pub fn of(work: &Work, interface: &str, from: u8, to: u8, time: Duration) -> Packets {
        let cpu = if from == 1 { work.placement.sender } else { work.placement.receiver };
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Packets { interface: interface.into(), from, to, length: work.frame_len, cpu, millis }
    }
}

/// A process of the laboratory.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// Sends until it is ended.
    Sender(Packets),
    /// Counts.
    Receiver(Packets),
    /// Copies frames from its input to its output.
    Relay,
}

impl Role for End {
    const NAME: &'static str = "host-end";

    fn run(self) -> Result<()> {
        match self {
            End::Sender(packets) => send(&packets),
            End::Receiver(packets) => receive(&packets),
            End::Relay => relay(),
        }
    }
}

/// Starts one.
pub fn start(packets: &Packets, receives: bool) -> Result<Child> {
    let end = if receives { End::Receiver } else { End::Sender };
    let mut child = role::command(&end(packets.clone()), Stdio::null())?.spawn()?;
    if receives {
        // It says when it listens.
        let output = child.stdout.as_mut().context("no output")?;
        output.read_exact(&mut [0; 1])?;
    }
    Ok(child)
}

fn relay() -> Result<()> {
    let mut from = File::from(rustix::io::dup(rustix::stdio::stdin())?);
    let mut to = File::from(rustix::io::dup(rustix::stdio::stdout())?);
    let mut frame = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut frame)?;
        // A full queue drops it, as it does everywhere.
        let _ = to.write(&frame[..length]);
    }
}

/// A packet socket at an interface.
fn open(interface: &str) -> Result<OwnedFd> {
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: a string that ends with a zero.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    ensure!(index > 0, "no interface {interface}");
    let protocol = u16::try_from(libc::ETH_P_ALL)?.to_be();
    // SAFETY: plain numbers; the result is checked.
    let fd = unsafe {
        libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol.into())
    };
    ensure!(fd >= 0, "a packet socket: {}", std::io::Error::last_os_error());
    // SAFETY: it was just made, and this is its only owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeros is a value of this plain structure.
    let mut place: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    place.sll_family = u16::try_from(libc::AF_PACKET)?;
    place.sll_protocol = protocol;
    place.sll_ifindex = index.try_into()?;
    let length = libc::socklen_t::try_from(size_of_val(&place))?;
    // SAFETY: the address is that of a sockaddr_ll, and `length` its size.
    let bound = unsafe { libc::bind(fd, (&raw const place).cast(), length) };
    ensure!(bound == 0, "{interface}: {}", std::io::Error::last_os_error());
    let one: libc::c_int = 1;
    let bypass = libc::PACKET_QDISC_BYPASS;
    // SAFETY: the option's value is an int. Where it cannot be set, frames take the long way.
    unsafe {
        libc::setsockopt(fd, libc::SOL_PACKET, bypass, (&raw const one).cast(), 4);
    }
    Ok(socket)
}

/// Buffers of a batch, and what the kernel wants to know of them.
struct Messages {
    frames: Vec<[u8; LONGEST]>,
    _pieces: Vec<libc::iovec>,
    heads: Vec<libc::mmsghdr>,
}

impl Messages {
    fn new(length: usize) -> Messages {
        let mut frames = vec![[0; LONGEST]; BATCH];
        let piece = |frame: &mut [u8; LONGEST]| libc::iovec {
            iov_base: frame.as_mut_ptr().cast(),
            iov_len: length,
        };
        let mut pieces: Vec<_> = frames.iter_mut().map(piece).collect();
        let head = |piece: &mut libc::iovec| {
            // SAFETY: all zeros is a value of this plain structure.
            let mut head: libc::mmsghdr = unsafe { std::mem::zeroed() };
            head.msg_hdr.msg_iov = piece;
            head.msg_hdr.msg_iovlen = 1;
            head
        };
        let heads = pieces.iter_mut().map(head).collect();
        Messages { frames, _pieces: pieces, heads }
    }

    fn send(&mut self, socket: &OwnedFd) {
        let count = libc::c_uint::try_from(BATCH).expect("few");
        // SAFETY: heads, pieces and frames are ours and stay where they are: the vectors are never
        // grown. What does not fit is dropped, and counts nowhere but in the rate.
        unsafe { libc::sendmmsg(socket.as_raw_fd(), self.heads.as_mut_ptr(), count, 0) };
    }

    fn receive(&mut self, socket: &OwnedFd) -> usize {
        let (fd, heads) = (socket.as_raw_fd(), self.heads.as_mut_ptr());
        let count = libc::c_uint::try_from(BATCH).expect("few");
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: as in `send`.
        let got = unsafe { libc::recvmmsg(fd, heads, count, flags, std::ptr::null_mut()) };
        usize::try_from(got).unwrap_or(0)
    }
}

fn send(packets: &Packets) -> Result<()> {
    machine::pin(packets.cpu);
    let socket = open(&packets.interface)?;
    let length = usize::from(packets.length);
    let mut messages = Messages::new(length);
    for frame in &mut messages.frames {
        let header = header(address(packets.to), address(packets.from));
        stamp::write(&mut frame[..length], &header, 1);
    }
    loop {
        messages.send(&socket);
    }
}

fn receive(packets: &Packets) -> Result<()> {
    machine::pin(packets.cpu);
    let socket = open(&packets.interface)?;
    let mut messages = Messages::new(LONGEST);
    // To itself: the switch learns where we are.
    let mut frame = [0; 60];
    stamp::write(&mut frame, &header(address(packets.from), address(packets.from)), 0);
    rustix::net::send(&socket, &frame, rustix::net::SendFlags::empty())?;
    say::out("\n")?;
    let wanted = header(address(packets.from), address(packets.to));
    let mut take = || {
        let got = messages.receive(&socket);
        if got == 0 {
            wait(&socket);
        }
        messages.frames[..got].iter().filter(|frame| frame[..14] == wanted[..14]).count()
    };
    let reading = count(&mut take, packets.length, Duration::from_millis(packets.millis))?;
    say::json(&reading)
}

fn wait(fd: impl std::os::fd::AsFd) {
    let time = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    // A signal is as good as a frame: the caller looks again.
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time));
}

/// Million frames a second, after a start that does not count.
fn count(take: &mut impl FnMut() -> usize, length: u16, time: Duration) -> Result<Reading> {
    let run = |take: &mut dyn FnMut() -> usize, time: Duration| {
        let (mut count, end) = (0, Instant::now() + time);
        while Instant::now() < end {
            count += take();
        }
        u32::try_from(count).unwrap_or(u32::MAX)
    };
    // Sender and switch have to find their feet.
    run(take, time / 2 + Duration::from_millis(300));
    let (meter, start) = (Meter::start()?, Instant::now());
    let frames = f64::from(run(take, time));
    ensure!(frames > 0.0, "no frame arrived");
    let mpps = frames / start.elapsed().as_secs_f64() / 1e6;
    let gbit = mpps * 8.0 * f64::from(length) / 1e3;
    Ok(Reading { cpu_per_gbit: Some(meter.percent()? / gbit), ..mpps.into() })
}

/// Shows a port to the switch.
pub fn introduce(port: &mut Port) -> Result<()> {
    let mut frame = [0; 60];
    stamp::write(&mut frame, &header(address(2), address(2)), 0);
    port.send(&frame)?;
    port.drain(Some(Duration::from_secs(2)))?;
    Ok(())
}

/// Counts what a port of shared memory gets.
pub fn count_port(port: &mut Port, work: &Work, time: Duration) -> Result<Reading> {
    machine::pin(work.placement.receiver);
    let mut take = || {
        let rx = port.rx(0);
        let (mut slots, mut got) = (0, 0);
        for frame in rx.frames() {
            slots = frame.first_slot() + frame.slots();
            got += usize::from(frame.as_slice().is_some_and(|f| stamp::read(f).is_some()));
        }
        // A port that is no more has nothing to give back.
        let _ = rx.release(slots);
        if slots == 0 {
            let _ = rx.wait(Some(Duration::from_millis(20)));
        }
        got
    };
    count(&mut take, work.frame_len, time)
}

/// Counts what comes out of a TAP, one system call a frame.
pub fn count_file(file: &File, work: &Work, time: Duration) -> Result<Reading> {
    machine::pin(work.placement.receiver);
    rustix::io::ioctl_fionbio(file, true)?;
    let mut frame = [0; LONGEST];
    let mut take = || match rustix::io::read(file, &mut frame) {
        Ok(n) => usize::from(stamp::read(&frame[..n]).is_some()),
        Err(_) => {
            wait(file);
            0
        }
    };
    count(&mut take, work.frame_len, time)
}
