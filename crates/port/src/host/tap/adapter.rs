//! The worker's side of a TAP: its queues read and written, one system call for each frame.
//!
//! ```text
//!   kernel ── read ──► intake ──► batch ──► switch ── write ──► kernel
//! ```
//!
//! Frames are read directly into memory that the switch delivers from, behind their virtio-net
//! headers. Long frames are written from where they lie; short ones are copied behind their header.

use std::any::Any;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Weak};

use hostif::HostError;
use hostif::sys::bpf::Attached;
use hostif::sys::tun::{HEADER, disable_offloads, enable_offloads};
use packet::offload::{Offloads, PendingOffload, VNET_LEN};
use ring::frame::{ETHERNET, FRAME_MAX};
use ring::intake::{FRAMES, Intake};
use ring::umem::delivered;
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2, retry_on_intr};
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Drops, Notify, Sent};

use crate::host::{HEADERS, Link, State, TapQueues, write_out};
use crate::sys::PortBell;
use crate::sys::tun::Pieces;

/// The length from which on it is cheaper to write a frame in fragments than to copy it together.
const LONG: usize = 4096;
/// A TAP has no offsets.
const NO_PLACE: u64 = u64::MAX;
/// Longer than any frame with its header.
const LONGER: usize = HEADER + FRAME_MAX as usize + 1;

/// The adapter of a TAP.
pub(in crate::host) struct Tap {
    /// The queues. The adapter does not close them, because the kernel closes one interface at a
    /// time, and another program that changes an interface would block the worker. The control
    /// thread passes copies on.
    queues: Arc<TapQueues>,
    /// Flags of each read and write.
    flags: ReadWriteFlags,
    /// The interface was deleted.
    gone: bool,
    /// The queue to begin with.
    next: usize,
    accepts: Offloads,
    link: Arc<Link>,
    intake: Intake,
    /// A short frame behind its header, to be written.
    copied: Vec<u8>,
    pieces: Pieces,
    /// The programs of a stack port, attached while the port exists.
    programs: Vec<Attached>,
}

impl Tap {
    /// The adapter of these queues, which are read and written with these flags.
    pub(in crate::host) fn new(
        queues: TapQueues,
        flags: ReadWriteFlags,
        programs: Vec<Attached>,
        link: Arc<Link>,
        name: &str,
    ) -> Result<Self, HostError> {
        let failed = |errno: Errno| HostError::system("set up the offloads of", name)(errno.into());
        let has_uso = enable_offloads(&queues.get()[0]).map_err(failed)?;
        let accepts = if has_uso { Offloads::ALL } else { Offloads::ALL.without(Offloads::USO) };
        if queues.get().len() > 1 {
            let _ = link.how.set(format!("{} queues", queues.get().len()));
        }
        let mut tap = Self::with(queues, link).map_err(HostError::system("memory for", name))?;
        (tap.flags, tap.accepts, tap.programs) = (flags, accepts, programs);
        Ok(tap)
    }

    /// A TAP without offloads, whose descriptors do not block.
    fn with(queues: TapQueues, link: Arc<Link>) -> io::Result<Self> {
        Ok(Self {
            queues: Arc::new(queues),
            flags: ReadWriteFlags::empty(),
            gone: false,
            next: 0,
            accepts: Offloads::NONE,
            intake: Intake::new(FRAMES, link.mtu() + HEADERS)?,
            link,
            copied: Vec::with_capacity(LONG + HEADER),
            pieces: Pieces::new(),
            programs: Vec::new(),
        })
    }

    /// The queues, for as long as the adapter lives.
    pub(in crate::host) fn queues(&self) -> Weak<TapQueues> {
        Arc::downgrade(&self.queues)
    }

    /// Reads the frames of one queue; returns `false` if there is no more room, if the turn is
    /// over, or if the interface is gone.
    fn read(&mut self, at: usize, left: &mut u32, batch: &mut Batch, drops: &mut Drops) -> bool {
        // Counted, so that a sender of invalid frames cannot prolong a turn for ever.
        while *left > 0 && batch.has_room() && self.intake.fits(FRAME_MAX as usize) {
            *left -= 1;
            let mut header = [0; HEADER];
            let mut room = [IoSliceMut::new(&mut header), IoSliceMut::new(self.intake.space())];
            match preadv2(&self.queues.get()[at], &mut room, NO_PLACE, self.flags) {
                Ok(len) => {
                    if let Err(why) = push(header, len, batch, &mut self.intake) {
                        drops.add(why, 1);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => {
                    self.gone = true;
                    return false;
                }
            }
        }
        false
    }

    /// Writes a frame; returns its length.
    fn write(&mut self, batch: &Batch, delivery: Delivery) -> Result<usize, DropReason> {
        let queue = match self.queues.get().len() {
            1 => 0,
            count => batch.flow(&batch.frames()[usize::from(delivery.frame)]) as usize % count,
        };
        let (frame, head) = batch.outgoing(delivery);
        let bytes = delivered(frame, head) as usize;
        let written = if bytes < LONG {
            self.copied.clear();
            write_out(batch, delivery, HEADER, &self.link, &mut self.copied)?;
            let (queue, copied) = (&self.queues.get()[queue], [IoSlice::new(&self.copied)]);
            retry_on_intr(|| pwritev2(queue, &copied, NO_PLACE, self.flags))
        } else {
            let left = batch.offload(delivery);
            if !self.link.takes(left.map_or(bytes, |left| left.longest(bytes))) {
                return Err(DropReason::TooLong);
            }
            let mut header = [0; HEADER];
            header[..VNET_LEN].copy_from_slice(&left.map_or([0; VNET_LEN], PendingOffload::bytes));
            self.pieces.write(&self.queues.get()[queue], &header, frame, &head, self.flags)
        };
        match written {
            Ok(bytes) => Ok(bytes.saturating_sub(HEADER)),
            // The interface is up, but cannot take such a frame.
            Err(Errno::INVAL) => Err(DropReason::Offload),
            Err(errno) => Err(self.link.refused(errno)),
        }
    }
}

/// Puts the frame that was read into the intake, `len` bytes with its header, into the batch.
fn push(
    header: [u8; HEADER],
    len: usize,
    batch: &mut Batch,
    intake: &mut Intake,
) -> Result<(), DropReason> {
    let (bytes, left) = check(header, len)?;
    let first = batch.frags().len();
    intake.take(bytes, batch.frags());
    batch.push_received(first, u32::try_from(bytes).expect("bounded"));
    left.map_or(Ok(()), |left| batch.push_offload(left)).map_err(|_| DropReason::Offload)
}

/// The length and the offload of a frame.
fn check(header: [u8; HEADER], len: usize) -> Result<(usize, Option<PendingOffload>), DropReason> {
    if len >= LONGER {
        return Err(DropReason::TooLong);
    }
    let bytes = len.checked_sub(HEADER).ok_or(DropReason::TooShort)?;
    let left = PendingOffload::read(*header.first_chunk().expect("it is longer"), bytes);
    let left = left.map_err(|_| DropReason::Offload)?;
    if bytes < ETHERNET { Err(DropReason::TooShort) } else { Ok((bytes, left)) }
}

impl Adapter for Tap {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        self.intake.clear();
        batch.restart(self.intake.region());
        let mut left = FRAMES;
        for _ in 0..self.queues.get().len() {
            if self.gone {
                return self.link.seen(State::Gone);
            }
            let at = self.next;
            self.next = (at + 1) % self.queues.get().len();
            if !self.read(at, &mut left, batch, drops) {
                break;
            }
        }
        if self.gone {
            self.link.seen(State::Gone);
        }
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        let mut sent = Sent::default();
        if self.gone {
            sent.drops.add(DropReason::LinkDown, list.len() as u64);
            return sent;
        }
        for &delivery in list {
            match self.write(batch, delivery) {
                Ok(bytes) => sent.delivered.add(1, bytes as u64),
                Err(why) => sent.drops.add(why, 1),
            }
        }
        if sent.delivered.frames > 0 {
            self.link.seen(State::Up);
        }
        sent
    }

    fn accepts(&self) -> Offloads {
        self.accepts
    }
}

impl Notify for Tap {
    fn watch(&mut self, bell: &dyn Any) -> bool {
        PortBell::of(bell).watch_all(self.queues.get())
    }

    fn unwatch(&mut self, bell: &dyn Any) {
        PortBell::of(bell).unwatch_all(self.queues.get());
    }

    fn is_over(&self) -> bool {
        self.gone
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // A TAP that existed before stays, and the next program may not know virtio-net headers.
        self.queues.get().iter().take(1).for_each(disable_offloads);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
    use rustix::net::{recv, send, socketpair};
    use switch::TagAction;

    use super::*;
    use crate::sys::{Closer, Waker};
    use hostif::netlink::Interface;

    /// This many queues, and their other ends.
    fn queues(count: usize) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = |_| socketpair(family, kind, SocketFlags::NONBLOCK, None).expect("two");
        (0..count).map(pair).unzip()
    }

    /// A TAP with these queues.
    fn tap(queues: Vec<OwnedFd>) -> Tap {
        let (_, bell) = Waker::of_daemon().expect("descriptors");
        let interface = Interface { mtu: 1500, ..Interface::default() };
        let queues = TapQueues::new(queues, &Closer::in_place());
        Tap::with(queues, Link::new(&interface, false, &Arc::new(bell))).expect("memory")
    }

    /// A TAP with this many queues, and their other ends.
    fn with_queues(count: usize) -> (Tap, Vec<OwnedFd>) {
        let (queues, theirs) = queues(count);
        (tap(queues), theirs)
    }

    #[test]
    fn frames_that_are_refused_end_a_turn_too() {
        let (mut tap, theirs) = with_queues(1);
        for _ in 0..FRAMES + 10 {
            send(&theirs[0], &[0; HEADER + ETHERNET - 1], SendFlags::empty()).expect("room");
        }
        let (mut batch, mut drops) = (Batch::new(256), Drops::default());
        let mut refused = Vec::new();
        while refused.last() != Some(&0) {
            let before = drops.get(DropReason::TooShort);
            tap.recv(&mut batch, &mut drops);
            refused.push(drops.get(DropReason::TooShort) - before);
        }
        assert_eq!(drops.get(DropReason::TooShort), u64::from(FRAMES) + 10);
        assert!(refused.iter().all(|count| *count <= FRAMES.into()), "{refused:?}");
    }

    #[test]
    fn a_tap_that_is_gone_is_closed_by_whom_the_port_is_given_to() {
        let (mut queues, theirs) = queues(2);
        // A file that is not open for reading fails as a deleted TAP does.
        queues[1] = std::fs::File::create("/dev/null").expect("there is one").into();
        let mut tap = tap(queues);
        let (mut batch, mut drops) = (Batch::new(256), Drops::default());
        tap.recv(&mut batch, &mut drops);
        assert!(tap.is_over());
        assert_eq!((tap.link.state(), tap.queues.get().len()), (State::Gone, 2));
        send(&theirs[0], &[0; HEADER + ETHERNET], SendFlags::empty()).expect("room");
        tap.recv(&mut batch, &mut drops);
        assert_eq!((batch.frames().len(), drops.total()), (0, 0), "not looked at any more");
        let list = [Delivery { frame: 0, tag: TagAction::Keep }];
        assert_eq!(tap.send(&batch, &list).drops.get(DropReason::LinkDown), 1);
    }

    const BYTES: usize = 60;
    const CONVERSATION: usize = 35;
    const NUMBER: usize = 42;

    /// A UDP datagram of a flow, with its number.
    fn datagram(conversation: u8, number: u8) -> [u8; BYTES] {
        let mut frame = [0; BYTES];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17]);
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        (frame[CONVERSATION], frame[NUMBER]) = (conversation, number);
        frame
    }

    #[test]
    fn a_conversation_keeps_its_queue_and_others_have_theirs() {
        const QUEUES: usize = 4;
        // More flows than queues, and not a multiple.
        const CONVERSATIONS: u8 = 63;
        const NUMBERS: u8 = 4;
        let mut intake = Intake::new(256, 1518).expect("memory");
        let mut batch = Batch::new(256);
        batch.restart(intake.region());
        for (number, conversation) in
            (0..NUMBERS).flat_map(|number| (0..CONVERSATIONS).map(move |c| (number, c)))
        {
            let first = batch.frags().len();
            intake.push(&[&datagram(conversation, number)], batch.frags());
            batch.push_received(first, u32::try_from(BYTES).expect("short"));
        }
        let all = 0..u16::from(CONVERSATIONS) * u16::from(NUMBERS);
        let list: Vec<_> = all.map(|frame| Delivery { frame, tag: TagAction::Keep }).collect();
        let (mut tap, theirs) = with_queues(QUEUES);
        let sent = tap.send(&batch, &list).delivered;
        assert_eq!((sent.frames, sent.bytes), (list.len() as u64, (list.len() * BYTES) as u64));
        let mut seen = [None; CONVERSATIONS as usize];
        let mut conversations = [0; QUEUES];
        for (queue, theirs) in theirs.iter().enumerate() {
            let mut frame = [0; HEADER + BYTES];
            while recv(theirs, &mut frame[..], RecvFlags::empty()).is_ok() {
                let conversation = frame[HEADER + CONVERSATION];
                let number = frame[HEADER + NUMBER];
                let last = seen[usize::from(conversation)].replace((queue, number));
                conversations[queue] += u32::from(last.is_none());
                let expected = number.checked_sub(1).map(|before| (queue, before));
                assert_eq!(last, expected, "conversation {conversation}");
            }
        }
        let is_last =
            |last: &Option<(_, u8)>| last.is_some_and(|(_, number)| number + 1 == NUMBERS);
        assert!(seen.iter().all(is_last));
        assert!(conversations.iter().all(|count| *count >= 8), "{conversations:?}");
    }

    /// The bytes of all frames of a batch.
    fn bytes_of(batch: &Batch) -> Vec<Vec<u8>> {
        let count = u16::try_from(batch.frames().len()).expect("few");
        let bytes = |frame| {
            let mut bytes = Vec::new();
            batch.append(Delivery { frame, tag: TagAction::Keep }, &mut bytes);
            bytes
        };
        (0..count).map(bytes).collect()
    }

    #[test]
    fn frames_of_any_length_go_through_in_order() {
        let lens = [14, 60, 1514, LONG - 1, LONG, 9014, 65_000, 60, 65_535, 61];
        let (mut from, outside) = with_queues(1);
        let (mut to, others) = with_queues(1);
        from.link.note_mtu(65_521);
        to.link.note_mtu(65_521);
        let (mut batch, mut drops) = (Batch::new(256), Drops::default());
        let mut unsent = (0u8..).zip(lens).map(|(number, len)| vec![number; HEADER + len]);
        let mut expected = unsent.clone().map(|message| message[HEADER..].to_vec());
        let mut message = unsent.next();
        let mut frames = 0;
        while frames < lens.len() {
            while let Some(bytes) = &mut message
                && send(
                    &outside[0],
                    {
                        bytes[..HEADER].fill(0);
                        &bytes[..]
                    },
                    SendFlags::empty(),
                )
                .is_ok()
            {
                message = unsent.next();
            }
            from.recv(&mut batch, &mut drops);
            let list: Vec<_> = (0..u16::try_from(batch.frames().len()).expect("few"))
                .map(|frame| Delivery { frame, tag: TagAction::Keep })
                .collect();
            for bytes in bytes_of(&batch) {
                assert!(expected.next() == Some(bytes), "frame {frames}");
                frames += 1;
            }
            for delivery in list.chunks(3) {
                assert_eq!(to.send(&batch, delivery).delivered.frames, delivery.len() as u64);
                let mut got = vec![0; HEADER + 65_535];
                for sent in delivery {
                    let (len, _) =
                        recv(&others[0], &mut got[..], RecvFlags::empty()).expect("sent");
                    let mut bytes = Vec::new();
                    batch.append(*sent, &mut bytes);
                    assert!(got[HEADER..len] == bytes && got[..HEADER] == [0; HEADER]);
                }
            }
        }
        assert_eq!(drops.total(), 0);
    }

    #[test]
    fn a_queue_that_is_never_empty_leaves_the_others_their_turn() {
        const QUEUES: usize = 4;
        let (mut tap, theirs) = with_queues(QUEUES);
        let message = |conversation| [&[0; HEADER][..], &datagram(conversation, 0)].concat();
        let quiet = QUEUES - 1;
        send(&theirs[quiet], &message(1), SendFlags::empty()).expect("room");
        let (mut batch, mut drops) = (Batch::new(256), Drops::default());
        let mut heard = false;
        for _ in 0..QUEUES {
            while send(&theirs[0], &message(0), SendFlags::empty()).is_ok() {}
            tap.recv(&mut batch, &mut drops);
            heard |= bytes_of(&batch).iter().any(|bytes| bytes[CONVERSATION] == 1);
        }
        assert!(heard && drops.total() == 0);
    }
}
