//! Tests against a switch of one port that sends every frame back: the daemon's side of rings and
//! doorbells, without a daemon.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ring::cursor::RingSize;
use ring::doorbell::{WakeBy, store_load_fence};
use ring::frame::{Frame, Pieces, Prologue};
use ring::kring::Taken;
use ring::krings::Krings;
use ring::layout::{DEFAULT_STRIDE, FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use ring::region::Region;
use ring::wake::PortWake;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::MembarrierCommand;

use protocol::Attached;

use crate::control::PortFds;
use crate::geometry::Geometry;
use crate::kick::Kick;
use crate::link::Link;
use crate::nf::calls::Calls;
use crate::nf::pass::{Look, Others, look, pass};
use crate::nf::{self, Action, Generated};
use crate::port::halves;
use crate::wait::{Sleeps, Woken};
use crate::{Error, FRAME_MAX, Lost, Receiver, Sender, WaitPolicy, slot_flag};

/// Extra buffers of the first port of a region.
const EXTRA_BUFS: u32 = 2;
const SLEEPY: WaitPolicy = WaitPolicy { yields: 0, spin: false };
const SOON: Option<Duration> = Some(Duration::from_secs(20));

/// The other side of a port.
struct Fake {
    host: Krings,
    kicks: OwnedFd,
    wake: OwnedFd,
    client_end: OwnedFd,
    words: PortWake,
    memory: OwnedFd,
    layout: PortLayout,
}

fn counts(slots: u32) -> RingCounts {
    let slots = RingSize::new(slots).unwrap();
    RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots }
}

/// A region with `blocks` ports, and what an attach reply says about the first of them.
fn region(blocks: usize, slots: u32, stride: u32) -> (Arc<Region>, OwnedFd, Attached) {
    let counts = counts(slots);
    let size = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
    let buffers = counts.buffers() * u32::try_from(blocks).unwrap() + EXTRA_BUFS;
    let layout = RegionLayout::new(size * blocks, stride, buffers).unwrap();
    let (region, fd) = Region::create("fake", layout).unwrap();
    let mut free = region.buffers();
    for i in 0..blocks {
        let port = PortLayout::new(FIRST_BLOCK + i * size, counts);
        region.format_port("fake", &port, &mut free, true).unwrap();
    }
    region.format_extra(&PortLayout::new(FIRST_BLOCK, counts), &free.collect::<Vec<_>>());
    let attached = Attached {
        port: "vale0:a".parse().unwrap(),
        region_bytes: layout.size() as u64,
        block: FIRST_BLOCK as u64,
        pool: layout.pool as u64,
        stride,
        buffers: layout.buffers,
        tx_rings: 1,
        rx_rings: 1,
        tx_slots: slots,
        rx_slots: slots,
        extra_bufs: EXTRA_BUFS,
        peer_block: None,
        function: false,
    };
    (region, fd, attached)
}

fn open(slots: u32, stride: u32, policy: WaitPolicy) -> (Fake, Sender, Receiver) {
    let (region, memory, attached) = region(1, slots, stride);
    let (kicks, kick) = rustix::pipe::pipe().unwrap();
    let (wake_end, wake) = rustix::pipe::pipe().unwrap();
    let client_end = wake_end.try_clone().unwrap();
    let fds = PortFds {
        region: memory.try_clone().unwrap(),
        kick: Kick::Descriptor(kick),
        wake: wake_end,
    };
    let (sender, receiver) = halves(&attached, fds, None, policy, None).unwrap();
    let layout = Geometry::new(&attached).unwrap().port;
    let (host, words) = (Krings::new(&region, &layout), PortWake::new(&region, &layout));
    words.words().offer_futex();
    // A daemon that ends drops no region, so its clients find their frames.
    std::mem::forget(region);
    (Fake { host, kicks, wake, client_end, words, memory, layout }, sender, receiver)
}

impl Fake {
    /// Sends back what there is; returns the number of frames.
    fn turn(&mut self) -> u32 {
        let Krings { tx, rx, .. } = &mut self.host;
        let (tx, mut rx, mut frames, mut frags) = (&mut tx[0], rx[0].lock(), 0, Vec::new());
        let region = tx.region().clone();
        tx.sync();
        loop {
            frags.clear();
            rx.sync();
            let Some(Taken::Frame { bytes, slot, .. }) = tx.take(&mut frags, 300) else { break };
            let frame = Frame { pieces: Pieces::Region(&region, &frags), bytes };
            if rx.put(frame, Prologue { bytes: [0; 16], len: 0, skip: 0 }).is_err() {
                tx.untake(slot);
                break;
            }
            rx.publish();
            frames += 1;
        }
        tx.publish();
        store_load_fence();
        let is_due = rx.wants_kick() | tx.wants_kick();
        drop(rx);
        if is_due {
            self.wake();
        }
        frames
    }

    fn wake(&self) {
        match self.words.words().ring() {
            // The doorbell may have lost its reader: the test is about to end.
            WakeBy::Descriptor => drop(rustix::io::write(&self.wake, &[1])),
            WakeBy::Futex => crate::sys::wake_futex(self.words.futex()),
        }
    }

    /// Sleeps until the client kicks. `false`: it is gone.
    fn park(&mut self) -> bool {
        self.host.arm();
        self.host.rx[0].lock().want_room();
        store_load_fence();
        if self.host.is_light() {
            rustix::thread::membarrier(MembarrierCommand::GlobalExpedited).unwrap();
        }
        let mut kicks = [0; 64];
        let here = self.turn() > 0 || rustix::io::read(&self.kicks, &mut kicks).unwrap() > 0;
        self.host.disarm();
        self.host.rx[0].lock().found_room();
        here
    }

    /// Runs until the client is gone.
    fn run(mut self) -> JoinHandle<()> {
        thread::spawn(move || while self.turn() > 0 || self.park() {})
    }
}

fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![number.to_le_bytes()[0]; len];
    frame[..4].copy_from_slice(&number.to_le_bytes());
    frame
}

#[test]
fn test_ping_pong_with_everybody_asleep() {
    let (fake, mut tx, mut rx) = open(16, DEFAULT_STRIDE, SLEEPY);
    let fake = fake.run();
    let mut got = Vec::new();
    for i in 0..3000 {
        tx.tx(0).send(&frame(i, 60)).unwrap();
        assert!(rx.recv_timeout(&mut got, SOON).unwrap(), "frame {i}");
        assert_eq!(got, frame(i, 60));
    }
    drop((tx, rx));
    fake.join().unwrap();
}

/// Sender and receiver sleep on one doorbell, in tiny rings that make both sleep all the time.
#[test]
fn test_two_threads_share_a_doorbell_and_lose_no_wake_up() {
    const FRAMES: u32 = 30_000;
    for policy in [SLEEPY, WaitPolicy::default()] {
        let (fake, mut tx, mut rx) = open(16, DEFAULT_STRIDE, policy);
        let fake = fake.run();
        let sender = thread::spawn(move || {
            assert_eq!(
                tx.tx(0).send_all((0..FRAMES).map(|i| frame(i, 60))).unwrap(),
                u64::from(FRAMES)
            );
            assert!(tx.drain(SOON).unwrap());
            tx
        });
        let mut got = Vec::new();
        for i in 0..FRAMES {
            assert!(rx.recv_timeout(&mut got, SOON).unwrap(), "frame {i}");
            assert_eq!(got[..4], i.to_le_bytes());
        }
        drop((sender.join().unwrap(), rx));
        fake.join().unwrap();
    }
}

#[test]
fn test_a_spinner_needs_no_kick() {
    let (mut fake, mut tx, mut rx) = open(16, 256, WaitPolicy { yields: 0, spin: true });
    tx.tx(0).send(&frame(1, 60)).unwrap();
    fake.turn();
    assert!(rx.wait(SOON).unwrap());
    rx.rx(0).release(1).unwrap();
    assert!(!rx.wait(Some(Duration::from_millis(1))).unwrap());
    drop(fake);
    assert!(matches!(rx.wait(None), Err(Error::Lost(Lost))));
}

#[test]
fn test_a_timeout_ends_a_wait() {
    let (_fake, mut tx, mut rx) = open(16, 256, WaitPolicy::default());
    let start = Instant::now();
    assert!(!rx.wait(Some(Duration::from_millis(20))).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert!(!rx.wait(Some(Duration::ZERO)).unwrap());
    tx.tx(0).send(&frame(1, 60)).unwrap();
    assert!(!tx.drain(Some(Duration::from_millis(1))).unwrap());
}

/// What had arrived before the daemon died can still be read; then every call says so at once.
#[test]
fn test_end_of_file_is_lost_after_the_last_frame() {
    let (mut fake, mut tx, mut rx) = open(16, 256, SLEEPY);
    tx.tx(0).send(&frame(1, 60)).unwrap();
    fake.turn();
    let waiting = thread::spawn(move || {
        let mut got = Vec::new();
        assert!(rx.recv_timeout(&mut got, None).unwrap());
        assert!(matches!(rx.recv_timeout(&mut got, None), Err(Error::Lost(Lost))));
        assert!(matches!(rx.wait(None), Err(Error::Lost(Lost))));
    });
    thread::sleep(Duration::from_millis(30));
    drop(fake);
    waiting.join().unwrap();
    while tx.tx(0).try_send(&frame(2, 60)).unwrap() {}
    assert!(matches!(tx.wait(1, None), Err(Error::Lost(Lost))));
}

#[test]
fn test_a_kick_into_nowhere_is_lost_and_no_signal() {
    let (mut fake, mut tx, _rx) = open(16, 256, SLEEPY);
    fake.host.arm();
    drop(fake);
    assert!(matches!(tx.tx(0).send(&frame(1, 60)), Err(Error::Lost(Lost))));
}

#[test]
fn test_waits_too_short_to_sleep_find_out_that_the_other_side_is_gone() {
    let is_lost = |wait: &mut dyn FnMut() -> Result<bool, Error>| {
        let (end, mut lost) = (Instant::now() + Duration::from_secs(20), false);
        while !lost && Instant::now() < end {
            lost = matches!(wait(), Err(Error::Lost(Lost)));
        }
        lost
    };
    let now = Some(Duration::ZERO);
    for policy in [SLEEPY, WaitPolicy::default(), WaitPolicy { yields: 0, spin: true }] {
        let (fake, _tx, mut rx) = open(16, 256, policy);
        drop(fake);
        let mut got = Vec::new();
        assert!(is_lost(&mut || rx.recv_timeout(&mut got, now)), "{policy:?}");
        let (fake, mut tx, _rx) = open(16, 256, policy);
        while tx.tx(0).send_timeout(&frame(1, 60), now).unwrap() {}
        drop(fake);
        assert!(is_lost(&mut || tx.tx(0).send_timeout(&frame(1, 60), now)), "{policy:?}");
    }
}

#[test]
fn test_a_full_doorbell_does_not_block() {
    let (mut fake, mut tx, _rx) = open(1024, 256, SLEEPY);
    rustix::pipe::fcntl_setpipe_size(&fake.kicks, 4096).unwrap();
    for i in 0..1023 {
        fake.host.arm();
        tx.tx(0).send(&frame(i, 60)).unwrap();
    }
}

#[test]
fn test_busy_ports_publish_lightly_and_calm_down_before_sleep() {
    let (mut fake, mut tx, mut rx) = open(16, 256, SLEEPY);
    let mut got = Vec::new();
    for i in 0..100 {
        tx.tx(0).send(&frame(i, 60)).unwrap();
        fake.turn();
        assert!(rx.try_recv(&mut got).unwrap());
    }
    assert_eq!(fake.host.is_light(), crate::sys::has_barrier());
    let _ = tx.tx(0).arm(15);
    assert!(rx.rx(0).arm());
    assert!(!fake.host.is_light());
}

fn readable(doorbell: impl AsFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(&doorbell, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
}

/// A link, its other side, and a copy of its descriptor that it knows nothing of.
fn link() -> (Arc<Link>, Fake, OwnedFd) {
    let (fake, mut tx, _rx) = open(16, 256, SLEEPY);
    let (link, bytes) = (tx.link().clone(), fake.client_end.try_clone().unwrap());
    assert!(tx.tx(0).space() > 0);
    (link, fake, bytes)
}

fn soon() -> Option<Instant> {
    SOON.map(|soon| Instant::now() + soon)
}

#[test]
fn test_a_short_sleep_is_ended_by_the_futex() {
    let (link, fake, bytes) = link();
    for _ in 0..3 {
        link.enter();
        let seen = link.kicks();
        fake.wake();
        assert_eq!(link.sleep(seen, None), Ok(Woken::Kicked));
        link.leave();
        assert!(!readable(&bytes));
    }
    let seen = link.kicks();
    fake.wake();
    link.enter();
    assert_eq!(link.sleep(seen, None), Ok(Woken::Kicked), "it came between two sleeps");
    assert!(!readable(&bytes));
    link.leave();
}

#[test]
fn test_a_long_sleep_goes_on_by_descriptor() {
    let (link, fake, bytes) = link();
    link.enter();
    let seen = link.kicks();
    // No wake-up came: the thread arms once more.
    assert_eq!(link.sleep(seen, None), Ok(Woken::Kicked));
    let seen = link.kicks();
    fake.wake();
    assert!(readable(&bytes));
    assert_eq!(link.sleep(seen, None), Ok(Woken::Kicked));
    assert!(!readable(&bytes));
    drop(fake);
    let seen = link.kicks();
    assert_eq!(link.sleep(seen, None), Err(Lost));
    link.leave();
}

#[test]
fn test_all_threads_of_a_port_arm_once_more_when_it_goes_on_by_descriptor() {
    let (link, _fake, _bytes) = link();
    let sleepers: Vec<_> = (0..3)
        .map(|_| {
            link.enter();
            (link.clone(), link.kicks())
        })
        .map(|(link, seen)| thread::spawn(move || link.sleep(seen, soon())))
        .collect();
    for sleeper in sleepers {
        assert_eq!(sleeper.join().unwrap(), Ok(Woken::Kicked));
    }
}

#[test]
fn test_a_program_that_has_taken_the_descriptor_is_woken_by_it() {
    let (link, fake, bytes) = link();
    link.enter();
    let seen = link.kicks();
    let taken = link.as_fd();
    fake.wake();
    assert!(readable(taken));
    assert_eq!(link.sleep(seen, None), Ok(Woken::Kicked));
    assert_eq!(link.acknowledge(), Ok(()));
    link.leave();
    link.enter();
    fake.wake();
    assert!(readable(&bytes), "from then on always");
    link.leave();
}

#[test]
fn test_bytes_of_earlier_sleeps_end_no_wait() {
    let (fake, _tx, mut rx) = open(16, 256, SLEEPY);
    let bytes = fake.client_end.try_clone().unwrap();
    (0..3).for_each(|_| fake.wake());
    assert!(readable(&bytes));
    assert!(!rx.wait(Some(Duration::from_millis(50))).unwrap());
    assert!(!readable(&bytes));
}

#[test]
fn test_a_switch_that_knows_no_futex_wakes_by_descriptor() {
    let (link, fake, bytes) = link();
    let rx = fake.layout.ktoa(fake.layout.counts().tx_rings.into());
    let wakes = rx + std::mem::offset_of!(ring::abi::CsbKtoa, wakes);
    rustix::io::pwrite(&fake.memory, &[0; 4], wakes as u64).unwrap();
    link.enter();
    let seen = link.kicks();
    fake.wake();
    assert!(readable(&bytes));
    assert_eq!(link.sleep(seen, None), Ok(Woken::Kicked));
    link.leave();
}

#[test]
fn test_an_event_loop_of_its_own() {
    let (mut fake, mut tx, mut rx) = open(16, 256, SLEEPY);
    assert!(rx.rx(0).arm() && !readable(&rx));
    tx.tx(0).send(&frame(1, 60)).unwrap();
    fake.turn();
    assert!(readable(&rx));
    rx.rx(0).disarm().unwrap();
    assert!(!readable(&rx), "disarming empties the doorbell");
    assert!(!rx.rx(0).arm(), "there is a frame: no sleep");
    drop(fake);
    assert!(readable(&rx));
    assert_eq!(rx.rx(0).disarm(), Err(Lost));
}

#[test]
fn test_the_client_is_told_once_of_a_resync() {
    let (mut fake, _tx, mut rx) = open(16, 256, SLEEPY);
    let head = fake.layout.atok(1) as u64;
    rustix::io::pwrite(&fake.memory, &99u32.to_ne_bytes(), head).unwrap();
    fake.turn();
    let error = rx.wait(Some(Duration::ZERO)).unwrap_err();
    assert!(matches!(error, Error::Resynced { times: 1 }), "{error}");
    assert!(!rx.wait(Some(Duration::ZERO)).unwrap());
}

#[test]
fn test_a_pipe_needs_no_switch() {
    let (_region, memory, mut ours) = region(2, 16, 256);
    let mut theirs = ours.clone();
    let second = PortLayout::new(FIRST_BLOCK, counts(16)).end() as u64;
    (ours.peer_block, theirs.block, theirs.peer_block) = (Some(second), second, Some(ours.block));
    let flags = SocketFlags::CLOEXEC;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let fds = |socket: OwnedFd| PortFds {
        region: memory.try_clone().unwrap(),
        kick: Kick::Descriptor(socket.try_clone().unwrap()),
        wake: socket,
    };
    let (mut tx_a, mut rx_a) = halves(&ours, fds(a), None, SLEEPY, None).unwrap();
    let (mut tx_b, mut rx_b) = halves(&theirs, fds(b), None, SLEEPY, None).unwrap();
    let echo = thread::spawn(move || {
        let mut got = Vec::new();
        while rx_b.recv_timeout(&mut got, None).is_ok() {
            tx_b.tx(0).send(&got).unwrap();
        }
    });
    let mut got = Vec::new();
    for i in 0..2000 {
        for len in [60, 700] {
            tx_a.tx(0).send(&frame(i, len)).unwrap();
            assert!(rx_a.recv_timeout(&mut got, SOON).unwrap());
            assert_eq!(got, frame(i, len));
        }
    }
    assert!(tx_a.drain(SOON).unwrap());
    drop((tx_a, rx_a));
    echo.join().unwrap();
}

/// However short the ring, however full: no more is passed than has room, and no frame in parts.
#[test]
fn test_a_function_passes_what_has_room() {
    let (mut fake, mut tx, mut rx) = open(64, 256, SLEEPY);
    let (mut far, mut small, _) = open(16, 256, SLEEPY);
    let (tx, rx, small) = (tx.tx(0), rx.rx(0), small.tx(0));
    let mut next = |_: &mut nf::Frame<'_>, _: &mut Generated| Action::Next;
    let calls = &Calls::default();
    assert_eq!(look(tx, rx, rx.owned()), Look::Pass(0));
    // Slots: 1, 1, 1, 2, 5, 16.
    for (i, len) in [60, 60, 60, 500, 1200, 4096].into_iter().enumerate() {
        assert!(tx.try_send(&frame(u32::try_from(i).unwrap(), len)).unwrap());
    }
    assert_eq!(fake.turn(), 6);
    while small.space() > 3 {
        assert!(small.try_send(&frame(0, 60)).unwrap());
    }
    let all = rx.available();
    assert_eq!(look(small, rx, all), Look::Wait(5), "half of the ring, whole frames");
    assert_eq!(far.turn(), 12);
    let made = &mut Generated::default();
    for count in [5, 5] {
        assert_eq!(look(small, rx, rx.owned()), Look::Pass(count));
        assert_eq!(pass((small, calls), rx, count, &mut Others::none(&mut next), made), count);
        small.submit(count).unwrap();
        rx.release(count).unwrap();
    }
    assert_eq!(look(small, rx, rx.owned()), Look::TooLong(16));
}

/// What a function made of a frame is sent, be it by a buffer's number or by its bytes.
#[test]
fn test_a_function_passes_what_it_made_of_a_frame() {
    let (mut fake, mut tx, mut rx) = open(16, 256, SLEEPY);
    let (_other, mut far, _) = open(16, 256, SLEEPY);
    tx.tx(0).send_all([frame(1, 60), frame(2, 60)]).unwrap();
    fake.turn();
    let mut grow = |frame: &mut nf::Frame<'_>, _: &mut Generated| {
        assert!(frame.resize(70));
        frame.bytes_mut()[69] = 7;
        Action::Service(3)
    };
    let (rx, made, calls) = (rx.rx(0), &mut Generated::default(), &Calls::default());
    assert_eq!(rx.available(), 2);
    for to in [tx.tx(0), far.tx(0)] {
        assert!(to.space() > 0);
        assert_eq!(pass((to, calls), rx, 1, &mut Others::none(&mut grow), made), 1);
        rx.release(1).unwrap();
        let sent = to.ring().slot(0);
        assert_eq!((sent.len, sent.flags >> 8, to.buffer(0)[69]), (70, 3, 7));
    }
}

#[test]
fn test_passing_on_swaps_inside_a_region_and_copies_between_two() {
    let (mut fake, mut tx, mut rx) = open(16, 256, SLEEPY);
    let (_other, mut far, _) = open(16, 256, SLEEPY);
    tx.tx(0).send_all([frame(1, 60), frame(2, 300)]).unwrap();
    fake.turn();
    let (tx, rx, far) = (tx.tx(0), rx.rx(0), far.tx(0));
    assert_eq!((rx.available(), tx.space(), far.space()), (3, 15, 15));
    let sent = rx.frame(0).as_ptr();
    assert!(rx.pass(1, far, 0) && rx.pass(0, tx, 0));
    assert_eq!(tx.buffer(0).as_ptr(), sent);
    assert_ne!(rx.frame(0).as_ptr(), sent);
    assert_eq!(far.buffer(0)[..4], 2u32.to_le_bytes());
    assert_ne!(rx.flags(1) & slot_flag::MOREFRAG, 0);
}

#[test]
fn test_a_frame_is_kept_and_sent_later_without_a_copy() {
    let (mut fake, mut tx, mut rx) = open(16, 256, SLEEPY);
    let (tx, rx) = (tx.tx(0), rx.rx(0));
    let mut kept = rx.extra_bufs().take().unwrap();
    tx.send(&frame(1, 60)).unwrap();
    fake.turn();
    assert_eq!(rx.available(), 1);
    let received = rx.frame(0).as_ptr();
    assert!(rx.swap(0, &mut kept));
    rx.release(1).unwrap();
    // Other frames come and go, as many as there are slots.
    for i in 2..40 {
        tx.send(&frame(i, 60)).unwrap();
        fake.turn();
        rx.available();
        rx.release(1).unwrap();
    }
    assert_eq!((kept.as_ptr(), &kept[..60]), (received, &frame(1, 60)[..]));
    assert!(tx.space() > 0 && tx.swap(0, &mut kept));
    assert_eq!(tx.buffer(0).as_ptr(), received);
    tx.set(0, 60, 0);
    tx.submit(1).unwrap();
    fake.turn();
    let mut got = Vec::new();
    assert!(rx.try_recv(&mut got).unwrap());
    assert_eq!(got, frame(1, 60));
    let (_other, mut far, _) = open(16, 256, SLEEPY);
    assert!(!far.tx(0).swap(0, &mut kept), "another region");
}

#[test]
fn test_forwarding_moves_whole_frames_as_far_as_there_is_room() {
    let (mut fake, mut tx, mut rx) = open(64, 256, SLEEPY);
    let (mut narrow, mut far, mut back) = open(8, 256, SLEEPY);
    // 1 + 2 + 4 slots, one that 7 slots can never hold, 1 slot.
    for (i, len) in [60, 300, 1000, 2000, 80].into_iter().enumerate() {
        assert!(tx.tx(0).try_send(&frame(u32::try_from(i).unwrap(), len)).unwrap());
        fake.turn();
    }
    let (rx, far) = (rx.rx(0), far.tx(0));
    assert_eq!(rx.forward(far, 4).unwrap(), 3);
    assert_eq!(rx.forward(far, 4).unwrap(), 4);
    assert_eq!(rx.forward(far, 4).unwrap(), 0, "no room");
    assert_eq!(narrow.turn(), 3);
    let mut got = Vec::new();
    for (i, len) in (0..3).zip([60, 300, 1000]) {
        assert!(back.try_recv(&mut got).unwrap());
        assert_eq!(got, frame(i, len));
    }
    assert_eq!(rx.forward(far, 4).unwrap(), 1);
    assert_eq!((narrow.turn(), rx.available()), (1, 0));
    assert!(back.try_recv(&mut got).unwrap());
    assert_eq!(got, frame(4, 80));
}

#[test]
fn test_frames_of_impossible_length_are_refused() {
    let (_fake, mut tx, _) = open(16, 256, SLEEPY);
    assert!(matches!(tx.tx(0).send(&[0; 13]), Err(Error::TooShort { len: 13 })));
    let max = 15 * 256;
    let error = tx.tx(0).send(&vec![0; max + 1]).unwrap_err();
    assert!(matches!(error, Error::TooLong { max: most, .. } if most == max), "{error}");
    tx.tx(0).send(&vec![0; max]).unwrap();
    let (_fake, mut tx, _) = open(512, DEFAULT_STRIDE, SLEEPY);
    assert!(tx.tx(0).try_send(&vec![0; FRAME_MAX]).unwrap());
    assert!(tx.tx(0).try_send(&vec![0; FRAME_MAX + 1]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any frames, split into chains and joined again, come back whole and in order.
    #[test]
    fn test_chains_split_and_join(lens in prop::collection::vec(14usize..7000, 1..40)) {
        let (mut fake, mut tx, mut rx) = open(64, 256, SLEEPY);
        let (mut got, mut small) = (Vec::new(), [0; 100]);
        for (i, &len) in (0..).zip(&lens) {
            prop_assert!(tx.tx(0).try_send(&frame(i, len)).unwrap());
            prop_assert_eq!(fake.turn(), 1);
            rx.rx(0).available();
            let whole: usize = rx.rx(0).frames().map(|frame| frame.len()).sum();
            prop_assert_eq!(whole, len);
            if i % 2 == 0 {
                prop_assert!(rx.try_recv(&mut got).unwrap());
                prop_assert_eq!(&got, &frame(i, len));
            } else {
                prop_assert_eq!(rx.try_recv_into(&mut small).unwrap(), Some(len));
                prop_assert_eq!(&small[..len.min(100)], &frame(i, len)[..len.min(100)]);
            }
            prop_assert!(!rx.try_recv(&mut got).unwrap());
        }
    }

    /// Whatever a daemon announces: an error, or a port that lies inside its region.
    #[test]
    fn test_hostile_numbers_are_refused_or_fit(
        spoil in prop::collection::vec((0usize..12, prop_oneof![
            any::<u64>(),
            0u64..5000,
            Just(0),
            Just(u64::MAX),
            (0u64..1 << 20).prop_map(|p| p * 4096),
        ]), 0..4),
    ) {
        let (_, memory, mut attached) = region(2, 16, 256);
        spoil.iter().for_each(|&(field, value)| spoil_field(&mut attached, field, value));
        if let Ok(geometry) = Geometry::new(&attached) {
            for block in [Some(geometry.port), geometry.peer].into_iter().flatten() {
                prop_assert!(block.nifp() >= FIRST_BLOCK && block.end() <= geometry.region.pool);
            }
            prop_assert_eq!(geometry.region.size() as u64, attached.region_bytes);
            let (_end, pipe) = rustix::pipe::pipe().unwrap();
            let kick = Kick::Descriptor(pipe.try_clone().unwrap());
            let fds = PortFds { region: memory, kick, wake: pipe };
            if let Ok((mut tx, _)) = halves(&attached, fds, None, SLEEPY, None) {
                tx.tx(0).space();
            }
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // Any number serves.
fn spoil_field(attached: &mut Attached, field: usize, value: u64) {
    match field {
        0 => attached.region_bytes = value,
        1 => attached.block = value,
        2 => attached.pool = value,
        3 => attached.stride = value as u32,
        4 => attached.buffers = value as u32,
        5 => attached.tx_rings = value as u16,
        6 => attached.rx_rings = value as u16,
        7 => attached.tx_slots = value as u32,
        8 => attached.rx_slots = value as u32,
        9 => attached.peer_block = Some(value),
        _ => attached.peer_block = None,
    }
}

#[test]
fn test_a_region_without_seals_is_refused() {
    let (_, _, attached) = region(1, 16, 256);
    let plain = rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&plain, attached.region_bytes).unwrap();
    let (wake, kick) = rustix::pipe::pipe().unwrap();
    let fds = PortFds { region: plain, kick: Kick::Descriptor(kick), wake };
    assert!(matches!(halves(&attached, fds, None, SLEEPY, None), Err(Error::Map(_))));
}
