//! Frames in a byte stream, each behind its length.
//!
//! The inbox keeps received bytes that were not delivered yet: a part of a frame, or frames for
//! which the turn had no room. The outbox keeps bytes that the peer has not taken.

use std::any::Any;
use std::os::fd::OwnedFd;

use ring::frame::{ETHERNET, FRAME_MAX};
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{SendFlags, send};
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Drops, Notify, Sent};

use super::connector::PeerChannel;
use super::{End, PeerCalls, WAITING};
use crate::sys::{PortBell, descriptors, said};

/// The length of the length field.
const LENGTH: usize = 4;
/// The most bytes of one call that sends: the kernel makes one piece of them, and calls all that
/// watch the peer's socket for each piece.
const PIECE: usize = 32 << 10;
/// Room for the longest frame, and for as many bytes of short ones.
const INBOX: usize = LENGTH + FRAME_MAX as usize + (128 << 10);

/// The worker's side of a port.
pub(super) struct Stream {
    channel: PeerChannel,
    slow: PeerCalls,
    peer: Option<OwnedFd>,
    intake: Intake,
    inbox: Inbox,
    /// The most bytes that the next call receives: few after a slow one, then more each time.
    most: usize,
    outbox: Vec<u8>,
    /// The number of bytes of the outbox that the peer has taken.
    taken: usize,
    /// Nothing is sent before the next turn: the peer's buffer is full, and the bell rings when it
    /// is not; or a call was slow.
    waits_for_room: bool,
}

impl Stream {
    pub(super) fn new(channel: PeerChannel, slow: PeerCalls) -> std::io::Result<Self> {
        Ok(Self {
            channel,
            slow,
            peer: None,
            intake: Intake::new(FRAMES, STANDARD_FRAME)?,
            inbox: Inbox::default(),
            most: INBOX,
            outbox: Vec::with_capacity(WAITING + LENGTH + FRAME_MAX as usize),
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
            let watched = self.channel.watch(&peer);
            self.peer = Some(peer);
            if !said(watched) {
                self.hang_up(End::System(Errno::NOMEM));
            }
        }
        if self.peer.is_some() && self.channel.is_evicted() {
            self.hang_up(End::Evicted);
        }
    }

    fn hang_up(&mut self, end: End) {
        let mut left = std::mem::take(&mut self.inbox.beside);
        if let Some(peer) = self.peer.take() {
            self.channel.unwatch(&peer);
            left.push(peer);
        }
        self.inbox.clear();
        self.outbox.clear();
        (self.taken, self.waits_for_room) = (0, false);
        self.channel.leave(Some(end), left);
    }

    /// Receives once, and delivers the frames of the inbox.
    fn read(&mut self, batch: &mut Batch, drops: &mut Drops) -> Result<(), End> {
        let Some(peer) = &self.peer else { return Ok(()) };
        if !give_out(&mut self.inbox, &mut self.intake, batch, drops)? {
            return Ok(());
        }
        // Only what waits now: the kernel goes on for as long as the peer adds to it.
        let waiting = ioctl_fionread(peer).ok().and_then(|bytes| usize::try_from(bytes).ok());
        let most = self.most.min(waiting.unwrap_or(1).max(1));
        let timing = self.slow.receives.begin();
        let filled = self.inbox.fill(peer, most);
        self.most = if self.slow.receives.end(&timing) { 1 } else { (4 * self.most).min(INBOX) };
        filled?;
        give_out(&mut self.inbox, &mut self.intake, batch, drops).map(drop)
    }

    fn push(&mut self, batch: &Batch, delivery: Delivery) -> Result<usize, DropReason> {
        if self.outbox.len() >= WAITING {
            self.write();
        }
        if self.peer.is_none() {
            return Err(DropReason::LinkDown);
        }
        if self.outbox.len() >= WAITING {
            return Err(DropReason::NoRoom);
        }
        let start = self.outbox.len();
        self.outbox.extend([0; LENGTH]);
        batch.append(delivery, &mut self.outbox);
        let bytes = self.outbox.len() - start - LENGTH;
        let length = u32::try_from(bytes).expect("frames are short");
        // A tag can make a frame too long, and the peer would disconnect.
        if length > FRAME_MAX {
            self.outbox.truncate(start);
            return Err(DropReason::TooLong);
        }
        self.outbox[start..start + LENGTH].copy_from_slice(&length.to_be_bytes());
        Ok(bytes)
    }

    /// Sends the waiting bytes, unless the port waits for room.
    fn write(&mut self) {
        if self.waits_for_room || self.taken == self.outbox.len() {
            return;
        }
        let timing = self.slow.sends.begin();
        while let Some(peer) = self.peer.as_ref().filter(|_| !self.waits_for_room)
            && self.taken < self.outbox.len()
        {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let rest = &self.outbox[self.taken..];
            match send(peer, &rest[..rest.len().min(PIECE)], flags) {
                Ok(bytes) => {
                    self.taken += bytes;
                    if timing.is_slow() {
                        self.wait_for_room();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => self.wait_for_room(),
                Err(errno) => return self.hang_up(ended(errno)),
            }
        }
        self.slow.sends.end(&timing);
        if self.taken == self.outbox.len() {
            self.outbox.clear();
            self.taken = 0;
        }
    }

    fn wait_for_room(&mut self) {
        if let Some(peer) = &self.peer {
            self.waits_for_room = true;
            self.channel.watch_room(peer, true);
        }
    }

    /// Sends again after the port has waited for room.
    fn write_again(&mut self) {
        if let Some(peer) = self.peer.as_ref().filter(|_| self.waits_for_room) {
            self.channel.watch_room(peer, false);
            self.waits_for_room = false;
            self.write();
            // Frames that are sent next follow the bytes that wait.
            self.outbox.drain(..self.taken);
            self.taken = 0;
        }
    }
}

fn ended(errno: Errno) -> End {
    match errno {
        Errno::PIPE | Errno::CONNRESET => End::Gone,
        errno => End::System(errno),
    }
}

/// Delivers complete frames; returns `false` if there was no room for all.
fn give_out(
    inbox: &mut Inbox,
    intake: &mut Intake,
    batch: &mut Batch,
    drops: &mut Drops,
) -> Result<bool, End> {
    while let Some(frame) = inbox.frame()? {
        if frame.len() < ETHERNET {
            drops.add(DropReason::TooShort, 1);
        } else if batch.has_room() && intake.fits(frame.len()) {
            let first = batch.frags().len();
            intake.push(&[frame], batch.frags());
            batch.push_received(first, u32::try_from(frame.len()).expect("bounded"));
        } else {
            return Ok(false);
        }
        let bytes = frame.len();
        inbox.start += LENGTH + bytes;
    }
    Ok(true)
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(peer) = self.peer.take() {
            self.channel.leave(None, vec![peer]);
        }
    }
}

impl Adapter for Stream {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        self.intake.clear();
        batch.restart(self.intake.region());
        self.answer();
        self.write_again();
        if let Err(end) = self.read(batch, drops) {
            self.hang_up(end);
        }
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

impl Notify for Stream {
    fn pending(&mut self) -> bool {
        // The next call reports a frame that is too long.
        !matches!(self.inbox.frame(), Ok(None))
    }

    fn watch(&mut self, bell: &dyn Any) -> bool {
        let rings = self.channel.ring_by(PortBell::of(bell));
        if let Some(peer) = &self.peer {
            // Without a watch, nothing is received from the peer until it connects again.
            said(self.channel.watch(peer));
            self.channel.watch_room(peer, self.waits_for_room);
        }
        rings
    }

    fn unwatch(&mut self, _: &dyn Any) {
        self.peer.iter().for_each(|peer| self.channel.unwatch(peer));
        self.channel.ring_no_more();
    }
}

/// Bytes that were received and not delivered.
struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The descriptors for which the peer is disconnected.
    beside: Vec<OwnedFd>,
}

impl Default for Inbox {
    fn default() -> Self {
        // The kernel commits the memory when it is used first.
        let bytes = vec![0; INBOX].into_boxed_slice();
        Self { bytes, start: 0, end: 0, beside: Vec::new() }
    }
}

impl Inbox {
    fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// The next frame, if it is complete.
    fn frame(&self) -> Result<Option<&[u8]>, End> {
        let Some((length, rest)) = self.bytes[self.start..self.end].split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length);
        if length > FRAME_MAX {
            return Err(End::TooLong(length));
        }
        Ok(rest.get(..length as usize))
    }

    /// Receives more bytes, `most` at most. All complete frames have been delivered.
    fn fill(&mut self, peer: &OwnedFd, most: usize) -> Result<(), End> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        debug_assert!(self.end < LENGTH + FRAME_MAX as usize, "less than the longest frame");
        let room = &mut self.bytes[self.end..];
        let most = most.min(room.len());
        match descriptors::receive(peer, &mut room[..most]) {
            Ok((0, _)) => Err(End::Gone),
            Ok((received, beside)) => {
                self.end += received;
                self.beside = beside;
                if self.beside.is_empty() { Ok(()) } else { Err(End::Descriptors) }
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(ended(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{bell, send, send_longest_and_tagged};
    use super::super::fixture::{soon, soon_in, spec, turn};
    use super::super::open_stream;
    use super::{DropReason, FRAME_MAX, LENGTH, PeerCalls};
    use crate::machine::{MachinePort, State};
    use crate::sys::Doorbell;
    use crate::sys::descriptors::accept;
    use crate::sys::descriptors::fixture::{at_once, send_lingering};
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::time::Duration;
    use switch::Adapter;
    use tempfile::{TempDir, tempdir};

    /// Long enough for what rings at once.
    const SOON: Duration = Duration::from_millis(20);

    fn framed(frame: &[u8]) -> Vec<u8> {
        [&u32::try_from(frame.len()).expect("short").to_be_bytes(), frame].concat()
    }

    fn frame(len: usize) -> Vec<u8> {
        (0..len).map(|i| i.to_le_bytes()[0]).collect()
    }

    /// A port that was prepared, and then connected to a peer.
    fn opened_after(
        prepare: impl FnOnce(&MachinePort),
    ) -> (Box<dyn Adapter>, MachinePort, UnixStream, TempDir) {
        let dir = tempdir().expect("a directory");
        let (adapter, port) =
            open_stream(&spec(dir.path(), false), PeerCalls::unlimited(), &bell())
                .expect("no peer is there");
        prepare(&port);
        let peer = another(&dir);
        soon_in(&port, State::Up);
        (adapter, port, peer, dir)
    }

    /// A port that is connected to a peer.
    fn opened() -> (Box<dyn Adapter>, MachinePort, UnixStream, TempDir) {
        opened_after(|_| ())
    }

    /// One to which the kernel delivers descriptors, as an older kernel does to any.
    fn opened_for_descriptors() -> (Box<dyn Adapter>, MachinePort, UnixStream, TempDir) {
        opened_after(|port| {
            let _ = accept(port.listener.fd().expect("it listens"));
        })
    }

    fn another(dir: &TempDir) -> UnixStream {
        UnixStream::connect(dir.path().join("vm.sock")).expect("it listens")
    }

    #[test]
    fn frames_arrive_however_they_are_cut() {
        let (mut adapter, _port, mut peer, _dir) = opened();
        let frames = [14, 60, 1514, 9000, 65_535].map(frame);
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
        let mut found = Vec::new();
        for piece in bytes.chunks(1009) {
            peer.write_all(piece).expect("room");
            found.extend(turn(&mut *adapter).0);
        }
        assert!(found == frames && !adapter.pending());
    }

    #[test]
    fn what_does_not_fit_in_one_turn_comes_in_the_next() {
        let (mut adapter, _port, mut peer, _dir) = opened();
        let many: Vec<u8> = (0..100).flat_map(|_| framed(&frame(1514))).collect();
        peer.write_all(&many).expect("room");
        let first = turn(&mut *adapter).0.len();
        assert!(first < 100 && adapter.pending());
        let mut rest = 0;
        soon("all of them", || {
            rest += turn(&mut *adapter).0.len();
            first + rest == 100
        });
    }

    #[test]
    fn what_a_tag_makes_too_long_is_dropped_and_the_rest_goes_on() {
        let (mut adapter, port, mut peer, _dir) = opened();
        let sent = send_longest_and_tagged(&mut *adapter);
        assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::TooLong)), (2, 1));
        for len in [FRAME_MAX, FRAME_MAX] {
            let mut length = [0; LENGTH];
            peer.read_exact(&mut length).expect("a frame");
            assert_eq!(u32::from_be_bytes(length), len);
            peer.read_exact(&mut vec![0; len as usize]).expect("all of it");
            turn(&mut *adapter);
        }
        assert_eq!(port.status().state(), State::Up);
    }

    #[test]
    fn a_peer_rings_at_the_worker_that_has_the_port() {
        let (mut adapter, _port, mut peer, _dir) = opened();
        for number in [5, 6] {
            let (doorbell, mut rung) = (Doorbell::new().expect("descriptors"), Vec::new());
            assert!(adapter.watch(&doorbell.bell(number)));
            while !turn(&mut *adapter).0.is_empty() || doorbell.wait(&mut rung, Some(SOON)) {}
            peer.write_all(&framed(&frame(60))).expect("room");
            rung.clear();
            assert!(doorbell.wait(&mut rung, None));
            assert_eq!((rung, turn(&mut *adapter).0), (vec![number], vec![frame(60)]));
            adapter.unwatch(&doorbell.bell(number));
            peer.write_all(&framed(&frame(60))).expect("room");
            assert!(!doorbell.wait(&mut Vec::new(), Some(SOON)));
        }
    }

    #[test]
    fn nonsense_ends_the_connection_and_the_next_is_served() {
        let (mut adapter, port, mut peer, dir) = opened();
        peer.write_all(&[&framed(&[])[..], &framed(&[1; 13]), &framed(&frame(60))].concat())
            .expect("room");
        let (frames, drops) = turn(&mut *adapter);
        assert_eq!((frames, drops), (vec![frame(60)], 2), "too short is no nonsense");
        peer.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("room");
        assert!(turn(&mut *adapter).0.is_empty());
        assert_eq!(peer.read(&mut [0; 1]).expect("no error"), 0, "it is let go");
        soon_in(&port, State::Waiting);
        let mut peer = another(&dir);
        soon_in(&port, State::Up);
        peer.write_all(&framed(&frame(99))).expect("room");
        assert_eq!(turn(&mut *adapter).0, [frame(99)]);
        assert_eq!(port.status().ends(), 1);
    }

    #[test]
    fn a_peer_that_does_not_read_loses_frames_and_gets_whole_ones() {
        let (mut adapter, _port, mut peer, _dir) = opened();
        turn(&mut *adapter);
        let mut taken = 0;
        let mut lost = false;
        for _ in 0..100 {
            let now = send(&mut *adapter, &frame(1514), 32);
            taken += now;
            lost |= now < 32;
        }
        assert!(lost && taken > 100, "{taken}");
        peer.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
        let (mut bytes, mut piece) = (Vec::new(), vec![0; 1 << 16]);
        let whole = usize::try_from(taken).expect("few") * 1518;
        soon("all that was taken", || {
            turn(&mut *adapter);
            if let Ok(read) = peer.read(&mut piece) {
                bytes.extend_from_slice(&piece[..read]);
            }
            bytes.len() == whole
        });
        assert!(bytes.chunks(1518).all(|chunk| chunk == framed(&frame(1514))));
        assert_eq!(send(&mut *adapter, &frame(60), 1), 1);
    }

    #[test]
    fn peer_that_sends_descriptors_is_disconnected_and_they_are_closed_elsewhere() {
        let (mut adapter, port, peer, _dir) = opened_for_descriptors();
        let _deaf = send_lingering(&peer, &framed(&frame(60)), 253);
        at_once(|| turn(&mut *adapter));
        soon("a complaint", || port.status().complaint().is_some());
        let complaint = port.status().complaint().expect("just seen");
        assert!(complaint.contains("descriptors"), "{complaint}");
    }

    #[test]
    fn descriptors_that_were_never_received_are_closed_elsewhere() {
        let (adapter, port, peer, _dir) = opened_for_descriptors();
        let _deaf = send_lingering(&peer, b"x", 1);
        at_once(|| drop((port, adapter)));
    }

    #[test]
    fn we_connect_to_a_peer_that_listens_as_often_as_it_does() {
        let place = tempdir().expect("a directory");
        let dir = place.path();
        let (mut adapter, port) =
            open_stream(&spec(dir, true), PeerCalls::unlimited(), &bell()).expect("it may come");
        for _ in 0..2 {
            let listener = UnixListener::bind(dir.join("vm.sock")).expect("a place");
            let (mut peer, _) = listener.accept().expect("it connects");
            soon_in(&port, State::Up);
            peer.write_all(&framed(&frame(60))).expect("room");
            let mut frames = Vec::new();
            soon("a frame", || {
                frames.extend(turn(&mut *adapter).0);
                frames.len() == 1
            });
            std::fs::remove_file(dir.join("vm.sock")).expect("ours");
            drop((peer, listener));
            turn(&mut *adapter);
            soon_in(&port, State::Waiting);
        }
        assert_eq!(send(&mut *adapter, &frame(60), 1), 0, "no peer is there");
    }

    #[test]
    fn one_that_comes_when_another_goes_is_not_turned_away() {
        let (mut adapter, port, peer, dir) = opened();
        turn(&mut *adapter);
        drop(peer);
        let mut next = another(&dir);
        next.write_all(&framed(&frame(77))).expect("room");
        let mut frames = Vec::new();
        soon("its frame", || {
            frames.extend(turn(&mut *adapter).0);
            frames.len() == 1
        });
        assert_eq!((frames, port.status().ends()), (vec![frame(77)], 1));
    }

    #[test]
    fn a_peer_that_blocks_the_connector_is_evicted() {
        let (mut adapter, port, mut peer, dir) = opened_for_descriptors();
        peer.write_all(&framed(&frame(60))).expect("room");
        assert_eq!(turn(&mut *adapter).0, [frame(60)]);
        // The port rejects another connection, and then none for a moment: the next one waits until
        // it has the descriptor in it, and is closed with that.
        let _rejected = another(&dir);
        soon("a rejection", || port.status().rejected().is_some());
        let mut second = another(&dir);
        let deaf = send_lingering(&second, b"x", 1);
        // An end or an error: what it sent is unread.
        let _ = second.read(&mut [0]);
        peer.write_all(&framed(&frame(99))).expect("room");
        at_once(|| {
            port.evict(Duration::from_secs(600), "it is too loud".to_owned());
            assert_eq!(send(&mut *adapter, &frame(60), 1), 0);
            assert!(turn(&mut *adapter).0.is_empty());
        });
        assert_eq!(port.status().complaint(), None, "the connector is blocked");
        // The end of the other end is the end of the wait.
        drop(deaf);
        soon("the end", || port.status().complaint().is_some());
        port.evict(Duration::ZERO, "it is too loud".to_owned());
        let mut next = another(&dir);
        next.write_all(&framed(&frame(77))).expect("room");
        soon("its frame", || turn(&mut *adapter).0 == [frame(77)]);
    }

    #[test]
    fn a_peer_that_is_evicted_goes_and_none_is_admitted_for_a_while() {
        let (mut adapter, port, mut peer, dir) = opened();
        turn(&mut *adapter);
        port.evict(Duration::from_secs(600), "it is too loud".to_owned());
        soon("the end", || {
            turn(&mut *adapter);
            port.status().complaint().as_deref() == Some("it is too loud")
        });
        assert_eq!(peer.read(&mut [0; 1]).expect("no error"), 0, "it is let go");
        let mut next = another(&dir);
        assert_eq!(next.read(&mut [0; 1]).expect("no error"), 0, "so is the next");
        assert_eq!(send(&mut *adapter, &frame(60), 1), 0, "no peer is there");
        port.evict(Duration::ZERO, "it is too loud".to_owned());
        let mut next = another(&dir);
        next.write_all(&framed(&frame(60))).expect("room");
        let mut frames = Vec::new();
        soon("its frame", || {
            frames.extend(turn(&mut *adapter).0);
            frames.len() == 1
        });
        assert_eq!(port.status().complaint(), None);
    }
}
