//! Frames in datagrams.
//!
//! The kernel queues few unread datagrams (`net.unix.max_dgram_qlen`, 10 by default), so the port
//! keeps the frames that the peer does not take at once.

use std::any::Any;
use std::os::fd::OwnedFd;

use ring::frame::{ETHERNET, FRAME_MAX};
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Drops, Notify, Sent};

use super::connector::PeerChannel;
use super::{End, PeerCalls, WAITING};
use crate::sys::{PortBell, descriptors};

/// The most bytes to receive: one more than the longest frame has.
const READ: usize = FRAME_MAX as usize + 1;
/// The most frames that wait for the peer.
const QUEUE: usize = 256;

/// The worker's side of a port.
pub(super) struct Datagrams {
    channel: PeerChannel,
    slow: PeerCalls,
    /// The socket that sends to the peer.
    peer: Option<OwnedFd>,
    /// The longest frame that the socket takes.
    longest: usize,
    intake: Intake,
    read: Box<[u8]>,
    /// Frames that wait, one after another, and where each ends.
    outbox: Vec<u8>,
    ends: Vec<usize>,
    /// The number of them that the peer has taken.
    taken: usize,
    /// Nothing is sent before the next turn: the peer's queue is full, and the bell rings when it
    /// is not; or calls were slow.
    waits_for_room: bool,
}

impl Datagrams {
    pub(super) fn new(channel: PeerChannel, slow: PeerCalls) -> std::io::Result<Self> {
        Ok(Self {
            channel,
            slow,
            peer: None,
            longest: 0,
            intake: Intake::new(FRAMES, STANDARD_FRAME)?,
            read: vec![0; READ].into(),
            outbox: Vec::with_capacity(WAITING + FRAME_MAX as usize),
            ends: Vec::with_capacity(QUEUE),
            taken: 0,
            waits_for_room: false,
        })
    }

    /// Takes the next peer, if there is one, and hangs up if it is evicted.
    fn answer(&mut self) {
        self.channel.clear_signal();
        if self.peer.is_none()
            && let Some(peer) = self.channel.peer()
        {
            self.longest = longest(&peer);
            self.peer = Some(peer);
        }
        if self.peer.is_some() && self.channel.is_evicted() {
            self.hang_up(End::Evicted);
        }
        self.channel.update_watch();
    }

    fn hang_up(&mut self, end: End) {
        let peer = self.peer.take();
        if let Some(peer) = peer.as_ref().filter(|_| self.waits_for_room) {
            self.channel.unwatch(peer);
        }
        self.outbox.clear();
        self.ends.clear();
        (self.taken, self.waits_for_room) = (0, false);
        self.channel.leave(Some(end), peer.into_iter().collect());
    }

    fn push(&mut self, batch: &Batch, delivery: Delivery) -> Result<usize, DropReason> {
        if self.has_no_room() {
            self.write();
        }
        if self.peer.is_none() {
            return Err(DropReason::LinkDown);
        }
        if self.has_no_room() {
            return Err(DropReason::NoRoom);
        }
        let start = self.outbox.len();
        batch.append(delivery, &mut self.outbox);
        let bytes = self.outbox.len() - start;
        if bytes > self.longest {
            self.outbox.truncate(start);
            return Err(DropReason::TooLong);
        }
        self.ends.push(self.outbox.len());
        Ok(bytes)
    }

    fn has_no_room(&self) -> bool {
        self.ends.len() == QUEUE || self.outbox.len() >= WAITING
    }

    /// Sends the waiting frames, unless the port waits for room.
    fn write(&mut self) {
        if self.waits_for_room || self.ends.is_empty() {
            return;
        }
        let timing = self.slow.sends.begin();
        while let Some(peer) = self.peer.as_ref().filter(|_| !self.waits_for_room)
            && self.taken < self.ends.len()
        {
            let start = self.taken.checked_sub(1).map_or(0, |before| self.ends[before]);
            let frame = &self.outbox[start..self.ends[self.taken]];
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            // One frame a call: the kernel calls all that watch the peer's socket for each.
            match send(peer, frame, flags) {
                Ok(_) => {
                    self.taken += 1;
                    if timing.is_slow() {
                        self.wait_for_room();
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                // Not expected, because longer frames were refused. The peer would never take it.
                Err(Errno::MSGSIZE) => self.taken += 1,
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                    self.wait_for_room();
                    break;
                }
                Err(Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE) => {
                    return self.hang_up(End::Gone);
                }
                Err(errno) => return self.hang_up(errno.into()),
            }
        }
        self.slow.sends.end(&timing);
        self.forget_taken();
    }

    fn wait_for_room(&mut self) {
        if let Some(peer) = &self.peer {
            self.waits_for_room = self.channel.watch(peer).is_ok();
            self.channel.watch_room(peer, true);
        }
    }

    /// Removes the frames that the peer has taken.
    fn forget_taken(&mut self) {
        if let Some(last) = self.taken.checked_sub(1) {
            let bytes = self.ends[last];
            self.outbox.drain(..bytes);
            self.ends.drain(..self.taken);
            self.ends.iter_mut().for_each(|end| *end -= bytes);
            self.taken = 0;
        }
    }

    /// Sends again after the port has waited for room.
    fn write_again(&mut self) {
        if let Some(peer) = self.peer.as_ref().filter(|_| self.waits_for_room) {
            self.channel.unwatch(peer);
            self.waits_for_room = false;
            self.write();
        }
    }
}

impl Datagrams {
    /// Receives a datagram; returns `false` if there was none, or no room for one.
    fn receive(&mut self, batch: &mut Batch, drops: &mut Drops) -> bool {
        if !batch.has_room() || !self.intake.fits(FRAME_MAX as usize) {
            return false;
        }
        let Some(ours) = self.channel.socket() else { return false };
        // Any error means that there is no frame.
        let Ok((len, beside)) = descriptors::receive(ours, &mut self.read) else { return false };
        match len {
            ETHERNET..READ => {
                let first = batch.frags().len();
                self.intake.push(&[&self.read[..len]], batch.frags());
                batch.push_received(first, u32::try_from(len).expect("bounded"));
            }
            0..ETHERNET => drops.add(DropReason::TooShort, 1),
            _ => drops.add(DropReason::TooLong, 1),
        }
        if !beside.is_empty() {
            self.channel.pause(beside);
        }
        true
    }
}

/// The longest frame: FRAME_MAX, or less if the socket's buffer is smaller.
fn longest(peer: &OwnedFd) -> usize {
    /// The part of the buffer that the kernel uses itself.
    const OWN: usize = 32;
    let room = sockopt::socket_send_buffer_size(peer).unwrap_or(0);
    room.saturating_sub(OWN).min(FRAME_MAX as usize)
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        if let Some(peer) = self.peer.take() {
            self.channel.leave(None, vec![peer]);
        }
    }
}

impl Adapter for Datagrams {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        self.intake.clear();
        batch.restart(self.intake.region());
        self.answer();
        self.write_again();
        let timing = self.slow.receives.begin();
        // Counted, so that a peer whose frames are refused cannot prolong a turn for ever.
        for _ in 0..FRAMES {
            if !self.receive(batch, drops) || timing.is_slow() {
                break;
            }
        }
        self.slow.receives.end(&timing);
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        self.answer();
        Sent::each(list, |delivery| self.push(batch, delivery))
    }

    fn flush(&mut self) {
        self.answer();
        self.write();
    }
}

impl Notify for Datagrams {
    fn watch(&mut self, bell: &dyn Any) -> bool {
        let rings = self.channel.ring_by(PortBell::of(bell));
        self.channel.update_watch();
        if self.waits_for_room {
            self.wait_for_room();
        }
        rings
    }

    fn unwatch(&mut self, _: &dyn Any) {
        if let Some(peer) = self.peer.as_ref().filter(|_| self.waits_for_room) {
            self.channel.unwatch(peer);
        }
        self.channel.ring_no_more();
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{bell, send, send_longest_and_tagged};
    use super::super::fixture::{soon, soon_in, spec, turn};
    use super::super::open_dgram;
    use super::*;
    use crate::machine::{MachinePort, State};
    use crate::sys::Doorbell;
    use crate::sys::descriptors::accept;
    use crate::sys::descriptors::fixture::{at_once, send_lingering};
    use std::os::unix::net::UnixDatagram;
    use std::path::Path;
    use std::time::Duration;
    use tempfile::tempdir;

    fn opened(dir: &Path) -> (Box<dyn Adapter>, MachinePort) {
        // The machine that tests run on may be slow.
        open_dgram(&spec(dir, false), PeerCalls::unlimited(), &bell()).expect("no peer is there")
    }

    /// A port to which the kernel delivers descriptors, as an older kernel does to any, and a
    /// socket that sends to it.
    fn opened_for_descriptors(dir: &Path) -> (Box<dyn Adapter>, MachinePort, UnixDatagram) {
        let (adapter, port) = opened(dir);
        let _ = accept(port.listener.fd().expect("a socket"));
        let peer = UnixDatagram::unbound().expect("descriptors");
        peer.connect(dir.join("vm.sock")).expect("it is there");
        (adapter, port, peer)
    }

    #[test]
    fn frames_are_datagrams_in_both_directions() {
        let place = tempdir().expect("a directory");
        let dir = place.path();
        let (mut adapter, port) = opened(dir);
        assert_eq!(send(&mut *adapter, &[7; 60], 1), 0, "no peer is there");
        let _ = std::fs::remove_file(dir.join("vm.peer"));
        let peer = UnixDatagram::bind(dir.join("vm.peer")).expect("a place");
        soon_in(&port, State::Up);
        for (len, good) in [(0, false), (13, false), (14, true), (1514, true), (70_000, false)] {
            peer.send_to(&vec![3; len], dir.join("vm.sock")).expect("room");
            let (frames, drops) = turn(&mut *adapter);
            assert_eq!((frames.len(), drops), (usize::from(good), u64::from(!good)), "{len}");
        }
        assert_eq!(send(&mut *adapter, &[7; 60], 2), 2);
        let mut bytes = [0; 100];
        assert_eq!(peer.recv(&mut bytes).expect("a frame"), 60);
        assert_eq!(&bytes[..60], [7; 60]);
        drop(port);
        soon("its socket goes", || !dir.join("vm.sock").exists());
    }

    #[test]
    fn what_a_tag_makes_too_long_is_dropped_there() {
        let place = tempdir().expect("a directory");
        let dir = place.path();
        let (mut adapter, port) = opened(dir);
        let _ = std::fs::remove_file(dir.join("vm.peer"));
        let peer = UnixDatagram::bind(dir.join("vm.peer")).expect("a place");
        soon_in(&port, State::Up);
        let sent = send_longest_and_tagged(&mut *adapter);
        assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::TooLong)), (2, 1));
        for _ in 0..2 {
            let mut frame = vec![0; 2 * FRAME_MAX as usize];
            assert_eq!(peer.recv(&mut frame).expect("a frame"), FRAME_MAX as usize);
            turn(&mut *adapter);
        }
    }

    #[test]
    fn datagrams_ring_at_the_worker_that_has_the_port_unless_it_pauses() {
        let place = tempdir().expect("a directory");
        let (mut adapter, _port, peer) = opened_for_descriptors(place.path());
        let rings = |doorbell: &Doorbell| {
            let mut rung = Vec::new();
            doorbell.wait(&mut rung, Some(Duration::from_millis(20)));
            rung.pop()
        };
        for number in [5, 6] {
            let doorbell = Doorbell::new().expect("descriptors");
            assert!(adapter.watch(&doorbell.bell(number)));
            while !turn(&mut *adapter).0.is_empty() || rings(&doorbell).is_some() {}
            let deaf = send_lingering(&peer, &[1; 60], 1);
            assert_eq!(rings(&doorbell), Some(number));
            assert_eq!(turn(&mut *adapter).0, [[1; 60]]);
            peer.send(&[9; 60]).expect("room");
            assert_eq!(rings(&doorbell), None, "it pauses");
            // The end of the other end is the end of the wait.
            drop(deaf);
            // By then the connector has signalled that, most likely, and a frame for the peer is
            // sent before the bell is heard.
            std::thread::sleep(Duration::from_millis(50));
            adapter.flush();
            soon("the next one", || {
                rings(&doorbell).is_some() && turn(&mut *adapter).0 == [[9; 60]]
            });
            adapter.unwatch(&doorbell.bell(number));
            peer.send(&[9; 60]).expect("room");
            assert_eq!(rings(&doorbell), None, "another worker has it");
        }
    }

    #[test]
    fn an_evicted_port_neither_sends_nor_receives_for_a_while() {
        let place = tempdir().expect("a directory");
        let dir = place.path();
        let (mut adapter, port) = opened(dir);
        let peer = UnixDatagram::bind(dir.join("vm.peer")).expect("a place");
        soon_in(&port, State::Up);
        turn(&mut *adapter);
        port.evict(Duration::from_secs(600), "it is too loud".to_owned());
        soon("the end", || {
            turn(&mut *adapter);
            port.status().complaint().is_some()
        });
        peer.send_to(&[3; 60], dir.join("vm.sock")).expect("room");
        assert!(turn(&mut *adapter).0.is_empty());
        assert_eq!(send(&mut *adapter, &[7; 60], 1), 0);
        port.evict(Duration::ZERO, "it is too loud".to_owned());
        let mut frames = Vec::new();
        soon("its frame", || {
            frames.extend(turn(&mut *adapter).0);
            frames.len() == 1
        });
        soon("ours", || send(&mut *adapter, &[7; 60], 1) == 1);
    }

    #[test]
    fn a_peer_that_blocks_the_connector_is_evicted() {
        let place = tempdir().expect("a directory");
        let dir = place.path();
        let (mut adapter, port, peer) = opened_for_descriptors(dir);
        let _receives = UnixDatagram::bind(dir.join("vm.peer")).expect("a place");
        soon_in(&port, State::Up);
        assert_eq!(send(&mut *adapter, &[7; 60], 1), 1);
        let deaf = send_lingering(&peer, &[1; 60], 1);
        assert_eq!(turn(&mut *adapter).0, [[1; 60]]);
        // The connector closes the descriptor now.
        std::thread::sleep(Duration::from_millis(100));
        peer.send(&[9; 60]).expect("room");
        at_once(|| {
            port.evict(Duration::from_secs(600), "it is too loud".to_owned());
            assert!(turn(&mut *adapter).0.is_empty());
            assert_eq!(send(&mut *adapter, &[7; 60], 1), 0);
        });
        assert_eq!(port.status().complaint(), None, "the connector is blocked");
        // The end of the other end is the end of the wait.
        drop(deaf);
        soon("the end", || {
            assert!(turn(&mut *adapter).0.is_empty());
            port.status().complaint().is_some()
        });
        port.evict(Duration::ZERO, "it is too loud".to_owned());
        soon("the next frame", || turn(&mut *adapter).0 == [[9; 60]]);
        soon("ours", || send(&mut *adapter, &[7; 60], 1) == 1);
    }

    #[test]
    fn descriptors_are_closed_elsewhere_while_the_port_pauses() {
        let place = tempdir().expect("a directory");
        let dir = place.path();
        let (mut adapter, _port, peer) = opened_for_descriptors(dir);
        for byte in [1, 2] {
            let deaf = send_lingering(&peer, &[byte; 60], 253);
            peer.send(&[9; 60]).expect("room");
            let (frames, _) = at_once(|| turn(&mut *adapter));
            assert_eq!(frames, [[byte; 60]], "the next one waits");
            at_once(|| assert!(turn(&mut *adapter).0.is_empty()));
            // The end of the other end is the end of the wait.
            drop(deaf);
            soon("the next one", || turn(&mut *adapter).0 == [[9; 60]]);
        }
    }

    /// `net.core.wmem_default` may be smaller than a long frame.
    #[test]
    fn a_frame_goes_in_one_piece_or_is_too_long() {
        let (ours, theirs) = UnixDatagram::pair().expect("descriptors");
        let ours = OwnedFd::from(ours);
        sockopt::set_socket_send_buffer_size(&ours, 10_000).expect("less than there was");
        let longest = longest(&ours);
        assert!((10_000..FRAME_MAX as usize).contains(&longest), "{longest}");
        let sent = |len| rustix::net::send(&ours, &vec![0; len], SendFlags::DONTWAIT);
        assert_eq!(sent(longest + 1), Err(Errno::MSGSIZE));
        assert_eq!(sent(longest), Ok(longest));
        assert_eq!(theirs.recv(&mut vec![0; longest + 1]).expect("a frame"), longest);
    }

    #[test]
    fn a_peer_that_does_not_read_loses_frames_and_one_that_comes_again_is_found() {
        let place = tempdir().expect("a directory");
        let dir = place.path();
        let (mut adapter, port) = opened(dir);
        let _ = std::fs::remove_file(dir.join("vm.peer"));
        let peer = UnixDatagram::bind(dir.join("vm.peer")).expect("a place");
        soon_in(&port, State::Up);
        let taken: u64 = (0..100).map(|_| send(&mut *adapter, &[5; 1514], 32)).sum();
        assert!((100..3200).contains(&taken), "{taken}");
        peer.set_nonblocking(true).expect("a socket");
        let mut received = 0;
        soon("all that was taken", || {
            turn(&mut *adapter);
            while peer.recv(&mut [0; 2000]).is_ok_and(|bytes| bytes == 1514) {
                received += 1;
            }
            received == taken
        });
        std::fs::remove_file(dir.join("vm.peer")).expect("ours");
        drop(peer);
        let peer = UnixDatagram::bind(dir.join("vm.peer")).expect("a place");
        send(&mut *adapter, &[5; 60], 1);
        soon("it is found", || {
            send(&mut *adapter, &[6; 60], 1);
            peer.set_nonblocking(true).expect("a socket");
            peer.recv(&mut [0; 100]).is_ok()
        });
    }
}
