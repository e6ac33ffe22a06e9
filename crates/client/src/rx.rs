//! A receive ring: frames to read where they lie, and conveniences that copy.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use ring::RegionId;
use ring::abi::{Slot, slot_flag};
use ring::extra::{Buffer, ExtraBufs};
use ring::user::{RawRing, RxRing};

use crate::half::{Half, half};
use crate::link::Link;
use crate::wait::{WaitPolicy, Waits, wait};
use crate::{Error, Lost, Tx};

/// A receive ring. The slots that hold frames are counted from 0; read some, then
/// [`Rx::release`] them.
///
/// ```no_run
/// # let mut port = client::Port::open("vale0:b")?;
/// let rx = port.rx(0);
/// let count = rx.available();
/// for frame in rx.frames() {
///     println!("{} bytes", frame.len());
/// }
/// rx.release(count)?;
/// # Ok::<(), client::Error>(())
/// ```
#[derive(Debug)]
pub struct Rx(Half<RxRing>);

half!(Rx, RxRing);

impl Rx {
    /// Number of slots that hold frames, after a look at what has arrived.
    #[inline(always)]
    pub fn available(&mut self) -> u32 {
        self.0.ring.refresh()
    }

    /// The bytes in the `i`-th slot: a frame, or a piece of one where [`Rx::flags`] has
    /// `MOREFRAG`. Empty where the switch passed the slot over.
    ///
    /// # Panics
    /// If that slot does not hold a frame as of the last look.
    #[inline(always)]
    #[must_use]
    pub fn frame(&self, i: u32) -> &[u8] {
        self.0.ring.frame(i)
    }

    /// The [`slot_flag`]s of the `i`-th slot.
    ///
    /// # Panics
    /// If that slot does not hold a frame as of the last look.
    #[inline(always)]
    #[must_use]
    pub fn flags(&self, i: u32) -> u16 {
        self.0.ring.flags(i)
    }

    /// The whole buffer of the `i`-th slot, to be changed in place; the frame is its beginning.
    ///
    /// # Panics
    /// If that slot does not hold a frame as of the last look.
    #[inline(always)]
    #[must_use]
    pub fn buffer(&mut self, i: u32) -> &mut [u8] {
        self.0.ring.buffer(i)
    }

    /// Adds to the counters of frames that a function got by calls, and passed on.
    pub(crate) fn count_calls(&self, called: u32, passed: u32) {
        self.0.ring.count_calls(called, passed);
    }

    /// The `i`-th slot, read once.
    #[inline(always)]
    pub(crate) fn slot(&self, i: u32) -> Slot {
        self.0.ring.slot(i)
    }

    /// The whole buffer that a slot had when it was read.
    #[inline(always)]
    pub(crate) fn buffer_of(&mut self, slot: &Slot) -> &mut [u8] {
        self.0.ring.buffer_of(slot)
    }

    /// The frame that a slot had, likewise.
    #[inline(always)]
    fn bytes_of(&mut self, slot: &Slot) -> &[u8] {
        let buffer = self.0.ring.buffer_of(slot);
        &buffer[..usize::from(slot.len).min(buffer.len())]
    }

    /// The metadata of the `i`-th slot's frame inside a chain; see [`crate::nf`].
    ///
    /// # Panics
    /// If that slot does not hold a frame as of the last look.
    #[inline(always)]
    #[must_use]
    pub fn mark(&self, i: u32) -> u64 {
        self.0.ring.metadata(i)
    }

    /// All frames as of the last look, each with its whole chain.
    #[inline]
    #[must_use]
    pub fn frames(&self) -> Frames<'_> {
        Frames { rx: self, at: 0 }
    }

    /// Returns the first `count` slots to the switch.
    ///
    /// # Panics
    /// If fewer slots hold frames as of the last look.
    #[inline(always)]
    pub fn release(&mut self, count: u32) -> Result<(), Lost> {
        if self.0.ring.release(count) { self.0.link.kick() } else { Ok(()) }
    }

    /// Passes the `i`-th slot on into the `j`-th free slot of `tx`: inside a region the buffers
    /// change places, otherwise the bytes are copied. `false`: they do not fit a slot of `tx`.
    /// Release and submit the slots afterwards, in either order.
    ///
    /// # Panics
    /// If one of the slots is not the client's as of the last look.
    #[inline]
    pub fn pass(&mut self, i: u32, tx: &mut Tx, j: u32) -> bool {
        let slot = self.0.ring.slot(i);
        let Ok(len) = u16::try_from(self.bytes_of(&slot).len()) else { return false };
        let ptr = if self.0.region == tx.region() { slot.ptr } else { 0 };
        self.pass_as(i, tx, j, Slot { len, flags: slot.flags & slot_flag::MOREFRAG, ptr, ..slot })
    }

    /// Passes a frame on like [`Rx::pass`], with the buffer that the `i`-th slot had when it was
    /// [read](Self::slot); `sent` becomes the content of the slot of `tx`.
    #[inline(always)]
    pub(crate) fn pass_as(&mut self, i: u32, tx: &mut Tx, j: u32, sent: Slot) -> bool {
        if self.0.region == tx.region() {
            self.0.ring.exchange(i, tx.ring(), j, sent);
            return true;
        }
        let (bytes, buffer) = (self.bytes_of(&sent), tx.buffer(j));
        let fits = bytes.len() <= buffer.len();
        if fits {
            buffer[..bytes.len()].copy_from_slice(bytes);
            tx.set(j, sent.len, sent.flags);
            tx.set_mark(j, sent.ptr);
        }
        fits
    }

    /// Passes whole frames on to `tx`, about `max` slots of them, and gives up the slots on both
    /// sides. Returns the number of slots. 0: nothing has arrived, or `tx` has too little room for
    /// the first frame. A frame that can never fit, slot by slot, is dropped.
    pub fn forward(&mut self, tx: &mut Tx, max: u32) -> Result<u32, Lost> {
        let (room, mut from, mut to) = (tx.space(), 0, 0);
        self.available();
        while let Some((first, slots)) = self.frame_from(from) {
            if self.can_fit(first, slots, tx) {
                let end = to + slots;
                if end > room || (to > 0 && end > max) {
                    break;
                }
                for i in 0..slots {
                    let passed = self.pass(first + i, tx, to + i);
                    debug_assert!(passed, "checked to fit");
                }
                to = end;
            }
            from = first + slots;
        }
        if from > 0 {
            self.release(from)?;
        }
        if to > 0 {
            tx.submit(to)?;
        }
        Ok(to)
    }

    fn can_fit(&self, first: u32, slots: u32, tx: &Tx) -> bool {
        let fits = |i| self.0.ring.frame(i).len() <= tx.stride();
        slots <= tx.capacity() && (self.stride() <= tx.stride() || (first..first + slots).all(fits))
    }

    /// First slot and number of slots of the next frame from slot `at` on.
    #[inline]
    fn frame_from(&self, mut at: u32) -> Option<(u32, u32)> {
        let end = self.owned();
        while at < end {
            let first = at;
            // Whole chains are published at once: one that does not end is a neighbour's fault.
            while at + 1 < end && self.flags(at) & slot_flag::MOREFRAG != 0 {
                at += 1;
            }
            at += 1;
            if at - first > 1 || !self.0.ring.frame(first).is_empty() {
                return Some((first, at - first));
            }
        }
        None
    }

    /// Appends the next frame to `to` and returns its slots. `false`: there is none now.
    pub fn try_recv(&mut self, to: &mut Vec<u8>) -> Result<bool, Error> {
        to.clear();
        self.take(|part| to.extend_from_slice(part)).map_err(Error::from)
    }

    /// Copies the next frame to `to`, as far as it fits, and gives its slots back. Returns its
    /// whole length. `None`: there is none now.
    pub fn try_recv_into(&mut self, to: &mut [u8]) -> Result<Option<usize>, Error> {
        let mut len = 0;
        let found = self.take(|part| {
            let room = to.len().saturating_sub(len).min(part.len());
            if room > 0 {
                to[len..len + room].copy_from_slice(&part[..room]);
            }
            len += part.len();
        })?;
        Ok(found.then_some(len))
    }

    fn take(&mut self, each: impl FnMut(&[u8])) -> Result<bool, Lost> {
        loop {
            if self.owned() == 0 && self.available() == 0 {
                return Ok(false);
            }
            let Some(frame) = self.frames().next() else {
                // Slots that the switch passed over, nothing else.
                self.release(self.owned())?;
                continue;
            };
            let end = frame.first + frame.slots;
            frame.parts().for_each(each);
            return self.release(end).map(|()| true);
        }
    }

    /// Waits for a frame. `false`: `timeout` is over.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        let (link, policy) = (self.0.link.clone(), self.0.policy);
        wait(&mut WaitRx(std::slice::from_mut(self)), &link, policy, timeout)
    }

    /// Asks for a kick on the doorbell ([`AsFd`]) when a frame arrives. `false`: there is one
    /// already, do not sleep.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.0.ring.arm(1)
    }

    /// Cancels a request for a kick; kicks that have arrived stay in the doorbell.
    pub(crate) fn stop_waiting(&self) {
        self.0.ring.disarm();
    }
}

/// A received frame where it lies: one slot, or a chain of them.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    rx: &'a Rx,
    first: u32,
    slots: u32,
}

impl<'a> Frame<'a> {
    /// Position of its first slot.
    #[must_use]
    pub fn first_slot(&self) -> u32 {
        self.first
    }

    /// Number of its slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // reason: no frame is empty.
    pub fn len(&self) -> usize {
        self.parts().map(<[u8]>::len).sum()
    }

    /// The frame's pieces in order, one for each slot.
    pub fn parts(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let rx = self.rx;
        (self.first..self.first + self.slots).map(move |i| rx.frame(i))
    }

    /// The whole frame where it lies in one slot, as nearly all do.
    #[must_use]
    pub fn as_slice(&self) -> Option<&'a [u8]> {
        (self.slots == 1).then(|| self.rx.frame(self.first))
    }
}

/// The frames of a ring as of the last look. See [`Rx::frames`].
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    rx: &'a Rx,
    at: u32,
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        let (first, slots) = self.rx.frame_from(self.at)?;
        self.at = first + slots;
        Some(Frame { rx: self.rx, first, slots })
    }
}

/// A frame on any of these rings.
pub(crate) struct WaitRx<'a>(pub &'a mut [Rx]);

impl Waits for WaitRx<'_> {
    fn ready(&mut self) -> bool {
        self.0.iter_mut().any(|rx| rx.available() > 0)
    }

    fn arm(&mut self) -> bool {
        let armed = self.0.iter_mut().all(Rx::arm);
        if !armed {
            self.disarm();
        }
        armed
    }

    fn disarm(&mut self) {
        self.0.iter().for_each(|rx| rx.0.ring.disarm());
    }

    fn new_resyncs(&mut self) -> u32 {
        self.0.iter_mut().map(Rx::new_resyncs).sum()
    }
}
