//! A client that attacks by what the switch wakes it by: a descriptor, and words in its memory.
//!
//! Another port of the same process sends frames to it all the time, and it asks for a wake-up for
//! each of them.

#![allow(unsafe_code)] // UNSAFETY: memory that faults slowly has no safe interface.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use client::Error;
use client::control::{Connection, PortFds};
use harness::Random;
use harness::frames::{announcement, mac};
use harness::role::{At, Report, ReturnAttack, WakeAssault, WakeAttack};
use packet::build::ethernet;
use protocol::{Attached, ErrorCode};
use ring::Region;
use ring::cursor::RingSize;
use ring::doorbell::WakeBy;
use ring::layout::{PortLayout, RegionLayout, RingCounts};
use ring::user::{RxRing, TxRing};
use ring::wake::PortWake;
use rustix::fs::OFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, send, sendmsg, socketpair,
};
use rustix::pipe::{SpliceFlags, pipe, splice};

use super::futex_bucket::{Crowd, crowd};

/// The address that the attacker receives by.
pub const STATION: u32 = 7;
/// An Ethernet type that receivers of streams pass over.
pub const OTHER: u16 = 0x88b6;
/// Wake-ups that are quick, between two that are slow.
const QUICK: u32 = 100;
/// How often it looks for frames.
const LOOK: Duration = Duration::from_micros(200);
/// Bytes of a page.
const PAGE: usize = 4096;

/// Attaches and attacks until stdin ends, or its time is over.
pub fn run(attack: &WakeAttack) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    let (connection, attached, fds) = super::attach_for(&attack.at, attack.seconds)?;
    let mut victim = Woken::new(&attached, &fds);
    victim.announce(&fds);
    feed(&attack.at)?;
    let (mut held, mut others) = (Vec::new(), None);
    let mut wake = Some(fds.wake);
    let copy = || wake.as_ref().expect("open").try_clone().expect("descriptors");
    match attack.assault {
        WakeAssault::Nothing | WakeAssault::Scribble | WakeAssault::Flags => {}
        WakeAssault::Watch { watches } => held = super::doorbells::watch(copy().as_fd(), watches),
        WakeAssault::Splice => splice_for_ever(copy),
        WakeAssault::SlowMemory => read_into_slow_memory(copy()),
        WakeAssault::Pass => {
            held = pass_on(copy());
            wake = None;
        }
        WakeAssault::Close => wake = None,
        WakeAssault::Alternate { watches } => {
            // More often than there is room for, and before it is slow.
            victim.be_woken(1000, LOOK);
            held = super::doorbells::watch(copy().as_fd(), watches);
        }
        WakeAssault::Futex { waiters } => match victim.wait_in_a_crowd(waiters) {
            Ok(all) => others = Some(all),
            Err(why) => return Ok(Report::Missing(why)),
        },
    }
    // What sleeps in the kernel sleeps by now.
    std::thread::sleep(Duration::from_millis(300));
    super::say(&Report::Ready);
    let modes = [OFlags::empty(), OFlags::NONBLOCK, OFlags::APPEND, OFlags::ASYNC];
    let (mut random, mut turns, mut woken) = (Random::new(1), 0, 0);
    while !ended.load(Ordering::Relaxed) {
        woken += u32::from(victim.ask() > 0);
        match (attack.assault, &wake) {
            (WakeAssault::Scribble, _) => victim.scribble(&mut random),
            (WakeAssault::Flags, Some(wake)) => {
                // What may be changed is changed; what may not is refused.
                let _ = rustix::fs::fcntl_setfl(wake, modes[turns % modes.len()]);
            }
            (WakeAssault::Alternate { .. }, Some(wake)) if woken >= QUICK => {
                // There is room for one byte: the next wake-up calls all that watch.
                let _ = recv(wake, &mut [0; 1], RecvFlags::DONTWAIT);
                woken = 0;
            }
            _ => {}
        }
        turns += 1;
        std::thread::sleep(LOOK);
    }
    drop((held, others, wake, connection));
    Ok(Report::Ready)
}

/// Attaches, makes two wake-ups slow, leaves, and attaches again, until it is refused.
pub fn come_again(attack: &ReturnAttack) -> Result<Report, Error> {
    /// After so long, a wake-up is over, and the daemon knows how long it took.
    const SLOW: Duration = Duration::from_millis(200);
    feed(&attack.at)?;
    super::say(&Report::Ready);
    let end = Instant::now() + Duration::from_secs(attack.seconds);
    while Instant::now() < end {
        let (connection, attached, fds) = attach_again(attack)?;
        if attack.by_kicks {
            let _held = super::doorbells::watch(fds.kick.as_fd(), attack.watches);
            super::doorbells::kick_beside(fds.kick.as_fd(), || {
                drop(connection);
                std::thread::sleep(SLOW);
            });
            continue;
        }
        let mut victim = Woken::new(&attached, &fds);
        victim.announce(&fds);
        let held = super::doorbells::watch(fds.wake.as_fd(), attack.watches);
        victim.be_woken(2, SLOW);
        drop((held, fds, connection));
    }
    Ok(Report::Ready)
}

/// Attaches, as soon as the daemon has seen that the last connection is over.
fn attach_again(attack: &ReturnAttack) -> Result<(Connection, Attached, PortFds), Error> {
    loop {
        match super::attach_for(&attack.at, 2 * attack.seconds) {
            Err(error) if error.code() == Some(ErrorCode::InUse) => std::thread::sleep(LOOK),
            other => return other,
        }
    }
}

/// The port that is woken.
pub struct Woken {
    /// Memory of the port.
    pub region: Arc<Region>,
    tx: TxRing,
    rx: RxRing,
    words: PortWake,
}

impl Woken {
    /// Maps the memory of a port.
    pub fn new(attached: &Attached, fds: &PortFds) -> Self {
        let number = |n: u64| usize::try_from(n).expect("it fits the address space");
        let size = |slots| RingSize::new(slots).expect("what the daemon says");
        let counts = RingCounts {
            tx_rings: attached.tx_rings,
            rx_rings: attached.rx_rings,
            tx_slots: size(attached.tx_slots),
            rx_slots: size(attached.rx_slots),
        };
        let pool = number(attached.pool);
        let layout = RegionLayout { stride: attached.stride, buffers: attached.buffers, pool };
        let port = PortLayout::new(number(attached.block), counts);
        let region = Region::attach(fds.region.as_fd(), layout).expect("a region to map");
        Self {
            tx: TxRing::new(&region, &port, 0),
            rx: RxRing::new(&region, &port, 0),
            words: PortWake::new(&region, &port),
            region,
        }
    }

    /// Makes the switch learn its address.
    pub fn announce(&mut self, fds: &PortFds) {
        let frame = announcement(STATION);
        assert!(self.tx.refresh() > 0);
        self.tx.buffer(0)[..frame.len()].copy_from_slice(&frame);
        self.tx.set(0, 60, 0);
        let _ = self.tx.submit(1);
        rustix::io::write(&fds.kick, &1_u64.to_ne_bytes()).expect("room");
    }

    /// Gives all frames back, and asks to be woken for the next. Returns how many there were.
    pub fn ask(&mut self) -> u32 {
        let frames = self.rx.refresh();
        let _ = self.rx.release(frames);
        let _ = self.rx.arm(1);
        frames
    }

    /// Asks so often to be woken, and waits for a while each time.
    fn be_woken(&mut self, times: u32, wait: Duration) {
        for _ in 0..times {
            self.ask();
            std::thread::sleep(wait);
        }
    }

    /// Has the switch ring by the futex, and very many others wait in its bucket.
    fn wait_in_a_crowd(&self, waiters: u32) -> Result<Crowd, String> {
        let all = crowd(self.words.futex(), waiters)?;
        self.words.words().sleep_by(WakeBy::Futex);
        Ok(all)
    }

    fn scribble(&self, random: &mut Random) {
        let words = self.words.words();
        let value = u32::try_from(random.below(4)).expect("small");
        words.mode.store(value, Ordering::Relaxed);
        words.wakes.store(u32::try_from(random.any() >> 32).expect("half"), Ordering::Relaxed);
    }
}

/// Another port of this process sends to the attacker.
fn feed(at: &At) -> Result<(), Error> {
    let mut feeder = at.options().open("vale0:feeder")?;
    std::thread::spawn(move || {
        let frame = ethernet(mac(STATION), mac(STATION + 1), OTHER, &[0; 46]);
        while feeder.send_timeout(&frame, Some(Duration::from_secs(1))).is_ok() {
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    Ok(())
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("descriptors")
}

/// Moves what the descriptor says to where there is no room, and what never comes into it. One end
/// of each move is a pipe, whatever the descriptor is. The kernel may refuse some of it.
fn splice_for_ever(copy: impl Fn() -> OwnedFd) {
    let (full, empty) = (pair(), pair());
    let (full_pipe, empty_pipe) = (pipe().expect("descriptors"), pipe().expect("descriptors"));
    while send(&full.0, &[0; 4096], SendFlags::DONTWAIT).is_ok() {}
    while send(&full.0, &[0], SendFlags::DONTWAIT).is_ok() {}
    rustix::fs::fcntl_setfl(&full_pipe.1, OFlags::NONBLOCK).expect("ours");
    while rustix::io::write(&full_pipe.1, &[0; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&full_pipe.1, OFlags::empty()).expect("ours");
    let _ = rustix::fs::fcntl_setfl(copy(), OFlags::empty());
    let move_all = |from: OwnedFd, to: OwnedFd, others: [OwnedFd; 2]| {
        std::thread::spawn(move || {
            let _ = splice(&from, None, &to, None, 4096, SpliceFlags::empty());
            drop(others);
        });
    };
    let again = |fd: &OwnedFd| fd.try_clone().expect("descriptors");
    move_all(copy(), again(&full.0), [full.0, full.1]);
    move_all(copy(), again(&full_pipe.1), [full_pipe.0, full_pipe.1]);
    move_all(again(&empty.0), copy(), [empty.0, empty.1]);
    move_all(again(&empty_pipe.0), copy(), [empty_pipe.0, empty_pipe.1]);
}

/// Leaves the only copy in a message that no process reads.
fn pass_on(fd: OwnedFd) -> Vec<OwnedFd> {
    let (from, to) = pair();
    let fds = [fd.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let bytes = [std::io::IoSlice::new(&[0])];
    sendmsg(&from, &bytes, &mut control, SendFlags::empty()).expect("room");
    vec![from, to]
}

/// Reads into memory that never comes.
pub fn read_into_slow_memory(fd: OwnedFd) {
    // SAFETY: the kernel writes into a page that no reference is to.
    call_with_slow_page(move |page| unsafe { libc::read(fd.as_raw_fd(), page, PAGE) });
}

/// Writes from memory that never comes.
pub fn write_from_slow_memory(fd: OwnedFd) {
    let len = size_of::<u64>();
    // SAFETY: the kernel reads a page that no reference is to.
    call_with_slow_page(move |page| unsafe { libc::write(fd.as_raw_fd(), page, len) });
}

/// Waits for what is ready in a set, which takes its lock, and has the kernel write that into
/// memory that never comes.
pub fn wait_into_slow_memory(set: OwnedFd) {
    // SAFETY: the kernel writes into a page that no reference is to; there is room for one event.
    call_with_slow_page(move |page| unsafe {
        libc::epoll_wait(set.as_raw_fd(), page.cast(), 1, -1) as isize
    });
}

/// Makes a call with a page that never comes, in a thread. This takes root, or a system that lets
/// users do it.
fn call_with_slow_page(call: impl FnOnce(*mut libc::c_void) -> isize + Send + 'static) {
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice, never unmapped.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::PRIVATE) };
    let page = page.expect("memory");
    // SAFETY: a call that returns a descriptor.
    let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    assert!(faults >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
    let faults = i32::try_from(faults).expect("a descriptor");
    let mut api = [0xaa_u64, 0, 0];
    let mut register = [page.addr() as u64, PAGE as u64, 1, 0];
    // SAFETY: the structures of linux/userfaultfd.h, in place of which arrays of their numbers.
    let outcomes = unsafe {
        [
            libc::ioctl(faults, UFFDIO_API, api.as_mut_ptr()),
            libc::ioctl(faults, UFFDIO_REGISTER, register.as_mut_ptr()),
        ]
    };
    assert_eq!(outcomes, [0, 0], "userfaultfd");
    // SAFETY: just opened, and owned by nothing else.
    let faults = unsafe { OwnedFd::from_raw_fd(faults) };
    let address = page.expose_provenance();
    std::thread::spawn(move || {
        call(std::ptr::with_exposed_provenance_mut(address));
        drop(faults);
    });
}
