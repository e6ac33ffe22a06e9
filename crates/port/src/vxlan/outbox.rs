//! Datagrams that wait to be sent, in the form in which the kernel takes many at once.
//!
//! ```text
//!   bytes   │ header frame │ header frame │ header frame │ header frame │
//!   frames     0              1              2              3
//!   runs      ├── 0 and 1 to remote 5 ────┤├─ 2 to 5 ─────┤├─ 3 to 5 ─────┤
//!                                                          ├─ 3 to 6 ─────┤
//! ```
//!
//! A frame is copied once, behind its VXLAN header, whatever the number of remotes that get it. A
//! *run* is a message for the kernel: frames of one length and network that follow each other to
//! one remote by one socket, of which the last may be shorter. The segments of a guest's TCP stream
//! are such a run.

use packet::PortId;
use packet::vxlan::HEADER;
use ring::frame::{Frame, Prologue};
use switch::DropReason;

use crate::sys::udp::{PAYLOAD_MAX, SEGMENTS_MAX};

/// Sockets that send: source ports among which flows are spread.
pub const SENDERS: u8 = 8;
/// The most frames that wait.
const FRAMES_MAX: usize = 256;
/// The most bytes after which no more frames are taken.
const BYTES_MAX: usize = 256 << 10;
/// The most runs that wait: copies of one frame for all remotes fit.
const RUNS_MAX: usize = 1024;

/// A frame behind its header.
#[derive(Clone, Copy, Debug)]
struct Queued {
    start: usize,
    end: usize,
    /// What became of it: sent to one remote at least, or why not.
    outcome: Result<(), DropReason>,
}

/// Frames that go in one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The remote.
    pub remote: PortId,
    first: u16,
    count: u16,
}

/// Frames that wait.
pub struct Outbox {
    bytes: Vec<u8>,
    frames: Vec<Queued>,
    /// For each sending socket, in order.
    runs: [Vec<Run>; SENDERS as usize],
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            bytes: Vec::with_capacity(BYTES_MAX + 2 * PAYLOAD_MAX),
            frames: Vec::with_capacity(FRAMES_MAX),
            runs: std::array::from_fn(|_| Vec::with_capacity(RUNS_MAX)),
        }
    }
}

impl Outbox {
    /// Whether one more frame and its copies have room, for this many remotes.
    pub fn has_room(&self, remotes: usize) -> bool {
        let fits = |runs: &Vec<Run>| runs.is_empty() || runs.len() + remotes <= RUNS_MAX;
        self.frames.len() < FRAMES_MAX && self.bytes.len() < BYTES_MAX && self.runs.iter().all(fits)
    }

    /// Copies a frame, which begins with `head`, behind its header. The frame goes to no remote
    /// yet.
    ///
    /// # Errors
    /// The frame is longer than `longest` bytes.
    pub fn push(
        &mut self,
        header: [u8; HEADER],
        (frame, head): (Frame<'_>, Prologue),
        longest: usize,
    ) -> Result<(), DropReason> {
        let start = self.bytes.len();
        self.bytes.extend(header);
        frame.append_to(head, &mut self.bytes);
        let end = self.bytes.len();
        if end - start - HEADER > longest {
            self.bytes.truncate(start);
            return Err(DropReason::TooLong);
        }
        self.frames.push(Queued { start, end, outcome: Err(DropReason::NoDestination) });
        Ok(())
    }

    /// Sends the frame that was pushed last to a remote, with the frames before it where they are
    /// of one run.
    pub fn send_to(&mut self, remote: PortId, sender: u8) {
        let last = self.frames.len() - 1;
        let number = u16::try_from(last).expect("few frames wait");
        let runs = &mut self.runs[usize::from(sender)];
        if let Some(run) = runs.last_mut()
            && run.remote == remote
            && run.first + run.count == number
            && fits_behind(&self.frames[usize::from(run.first)..=last])
            && header_of(&self.frames[usize::from(run.first)], &self.bytes)
                == header_of(&self.frames[last], &self.bytes)
        {
            run.count += 1;
            return;
        }
        runs.push(Run { remote, first: number, count: 1 });
    }

    /// The frame that was pushed last.
    pub fn last(&self) -> &[u8] {
        let last = self.frames.last().expect("it was pushed");
        &self.bytes[last.start + HEADER..last.end]
    }

    /// Sends the frame that was pushed last to no remote: it was answered.
    pub fn keep_last(&mut self) {
        self.frames.last_mut().expect("it was pushed").outcome = Ok(());
    }

    /// Takes the frame that was pushed last out again.
    pub fn discard_last(&mut self) {
        let last = self.frames.pop().expect("it was pushed");
        self.bytes.truncate(last.start);
    }

    /// Takes the runs of a sending socket, in order, until [`put_back`](Self::put_back).
    pub fn take_runs(&mut self, sender: u8) -> Vec<Run> {
        std::mem::take(&mut self.runs[usize::from(sender)])
    }

    /// Gives the memory back for the next runs.
    pub fn put_back(&mut self, sender: u8, mut runs: Vec<Run>) {
        runs.clear();
        self.runs[usize::from(sender)] = runs;
    }

    /// The datagrams of a run, and the length of each but the last.
    pub fn datagrams(&self, run: Run) -> (&[u8], u16) {
        let frames = self.frames_of(run);
        let (first, last) = (frames[0], frames[frames.len() - 1]);
        let segment = u16::try_from(first.end - first.start).unwrap_or(u16::MAX);
        (&self.bytes[first.start..last.end], segment)
    }

    /// Notes what became of a run.
    pub fn note(&mut self, run: Run, outcome: Result<(), DropReason>) {
        let (first, count) = (usize::from(run.first), usize::from(run.count));
        for frame in &mut self.frames[first..first + count] {
            // A frame counts as sent if any remote gets it.
            if frame.outcome.is_err() {
                frame.outcome = outcome;
            }
        }
    }

    /// Empties it: how long each frame was, and what became of it.
    pub fn drain(&mut self) -> impl Iterator<Item = (usize, Result<(), DropReason>)> + '_ {
        self.bytes.clear();
        self.frames.drain(..).map(|frame| (frame.end - frame.start - HEADER, frame.outcome))
    }

    fn frames_of(&self, run: Run) -> &[Queued] {
        &self.frames[usize::from(run.first)..][..usize::from(run.count)]
    }
}

impl Run {
    /// The frames of a run of several, each in a run of its own.
    pub fn split(self) -> Option<impl Iterator<Item = Self>> {
        let each = move |first| Self { first, count: 1, ..self };
        (self.count > 1).then(|| (self.first..self.first + self.count).map(each))
    }
}

/// The VXLAN header of a frame. Frames of a run have one: the far end may look at the first only
/// before it gives the run to a port.
fn header_of<'a>(frame: &Queued, bytes: &'a [u8]) -> &'a [u8] {
    &bytes[frame.start..][..HEADER]
}

/// Whether the last of these frames can follow the others in one message: those have one length,
/// which it does not exceed.
fn fits_behind(frames: &[Queued]) -> bool {
    let len = |frame: &Queued| frame.end - frame.start;
    let (first, last) = (&frames[0], &frames[frames.len() - 1]);
    let before = &frames[frames.len() - 2];
    frames.len() <= SEGMENTS_MAX
        && len(before) == len(first)
        && len(last) <= len(first)
        && last.end - first.start <= PAYLOAD_MAX
}

#[cfg(test)]
mod tests {
    use ring::intake::{Intake, STANDARD_FRAME};
    use switch::TagAction;
    use switch::receive::batch::{Batch, Delivery};

    use super::*;

    const HEAD: [u8; HEADER] = [8, 0, 0, 0, 0, 0, 7, 0];

    fn remote(number: usize) -> PortId {
        PortId::new(number).expect("a small number")
    }

    /// An outbox with frames of these lengths, all for one remote by one socket.
    fn with(lens: &[usize]) -> Outbox {
        let mut intake = Intake::new(64, STANDARD_FRAME).expect("memory");
        let mut outbox = Outbox::default();
        for &len in lens {
            let mut batch = Batch::new(4);
            intake.clear();
            batch.restart(intake.region());
            intake.push(&[&vec![7; len]], batch.frags());
            batch.push_received(0, u32::try_from(len).expect("small"));
            let delivery = Delivery { frame: 0, tag: TagAction::Keep };
            outbox.push(HEAD, batch.outgoing(delivery), 1514).expect("it is short");
            outbox.send_to(remote(5), 0);
        }
        outbox
    }

    fn segments(mut outbox: Outbox) -> Vec<(usize, u16)> {
        let runs = outbox.take_runs(0);
        let runs = runs.iter().map(|&run| outbox.datagrams(run));
        runs.map(|(bytes, segment)| (bytes.len(), segment)).collect()
    }

    #[test]
    fn frames_of_one_length_are_one_message_with_a_shorter_one_behind_them() {
        assert_eq!(segments(with(&[1514, 1514, 60])), [(1522 * 2 + 68, 1522)]);
        assert_eq!(segments(with(&[60, 60])), [(136, 68)]);
        let after = with(&[1514, 60, 60]);
        assert_eq!(segments(after), [(1522 + 68, 1522), (68, 68)], "nothing follows a shorter one");
        assert_eq!(segments(with(&[60, 1514])), [(68, 68), (1522, 1522)]);
    }

    #[test]
    fn a_message_has_as_many_bytes_and_segments_as_the_kernel_takes() {
        let long = segments(with(&[1514; 50]));
        assert_eq!(long, [(43 * 1522, 1522), (7 * 1522, 1522)]);
        let short = segments(with(&[60; 70]));
        assert_eq!(short, [(64 * 68, 68), (6 * 68, 68)]);
    }

    #[test]
    fn frames_of_two_networks_are_two_messages() {
        let mut intake = Intake::new(64, STANDARD_FRAME).expect("memory");
        let (mut outbox, mut batch) = (Outbox::default(), Batch::new(4));
        batch.restart(intake.region());
        intake.push(&[&[7; 60]], batch.frags());
        batch.push_received(0, 60);
        let frame = batch.outgoing(Delivery { frame: 0, tag: TagAction::Keep });
        for vni in [7, 7, 8, 8, 7] {
            outbox.push([8, 0, 0, 0, 0, 0, vni, 0], frame, 1514).expect("it is short");
            outbox.send_to(remote(5), 0);
        }
        assert_eq!(segments(outbox), [(136, 68), (136, 68), (68, 68)]);
    }

    #[test]
    fn a_frame_for_several_remotes_is_one_frame_and_sent_if_one_gets_it() {
        let mut outbox = with(&[60]);
        outbox.send_to(remote(6), 0);
        outbox.send_to(remote(7), 3);
        let [first, other] = [0, 3].map(|sender| outbox.take_runs(sender));
        assert_eq!((first.len(), other.len()), (2, 1));
        let runs = [first, other].concat();
        assert!(runs[0].split().is_none());
        outbox.note(runs[0], Err(DropReason::LinkDown));
        outbox.note(runs[1], Ok(()));
        outbox.note(runs[2], Err(DropReason::NoRoom));
        assert_eq!(outbox.drain().collect::<Vec<_>>(), [(60, Ok(()))]);
        assert!(outbox.frames.is_empty() && outbox.has_room(1024));
    }

    #[test]
    fn what_is_too_long_is_not_taken_and_what_is_left_waits_for_no_remote() {
        let mut intake = Intake::new(64, STANDARD_FRAME).expect("memory");
        let (mut outbox, mut batch) = (Outbox::default(), Batch::new(4));
        batch.restart(intake.region());
        intake.push(&[&[7; 1515]], batch.frags());
        batch.push_received(0, 1515);
        let delivery = Delivery { frame: 0, tag: TagAction::Keep };
        let refused = outbox.push(HEAD, batch.outgoing(delivery), 1514);
        assert_eq!((refused, outbox.frames.len()), (Err(DropReason::TooLong), 0));
        outbox.push(HEAD, batch.outgoing(delivery), 1515).expect("it is short");
        assert_eq!(outbox.drain().collect::<Vec<_>>(), [(1515, Err(DropReason::NoDestination))]);
    }
}
