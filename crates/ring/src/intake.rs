//! The intake of a port without rings: a private region for frames that the daemon reads itself.
//!
//! A network interface of the host, a socket to a VMM or a cable to another daemon has no rings.
//! The port reads its frames into an [`Intake`], and the switch takes them from there like frames
//! of a ring. [`Frame::append_to`](crate::frame::Frame::append_to) is the way out.

#![allow(unsafe_code)] // UNSAFETY: copies between buffers and the daemon's memory.

use std::io;
use std::sync::Arc;

use crate::format::abi::FIRST_BUFFER;
use crate::format::layout::{DEFAULT_STRIDE, RegionLayout};
use crate::frame::{FRAME_MAX, Frag};
use crate::memory::copy;
use crate::region::Region;

/// Frames that a port without rings takes in one turn.
pub const FRAMES: u32 = 64;
/// Longest frame of a network with an MTU of 1500: with header, VLAN tag and check sequence.
pub const STANDARD_FRAME: u32 = 1518;

/// A private region, filled from its start and emptied as a whole.
#[derive(Debug)]
pub struct Intake {
    region: Arc<Region>,
    /// Buffers in use.
    used: u32,
}

impl Intake {
    /// Room for `frames` frames of at most `bytes` bytes each, and for one of [`FRAME_MAX`] behind
    /// them.
    ///
    /// # Errors
    /// `ENOMEM`, or too many files.
    pub fn new(frames: u32, bytes: u32) -> io::Result<Self> {
        let buffers = |bytes: u32| bytes.div_ceil(DEFAULT_STRIDE);
        let count = frames * buffers(bytes) + buffers(FRAME_MAX);
        let layout = RegionLayout::new(0, DEFAULT_STRIDE, count).ok_or(io::ErrorKind::InvalidInput);
        let (region, _) = Region::create("intake", layout?)?;
        let first = region.buffers().next().expect("there is one at least");
        region.populate_buffers(first, count)?;
        Ok(Self { region, used: 0 })
    }

    /// The region that the frames lie in.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Forgets all frames.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Whether there is room for a frame of `bytes` bytes.
    #[must_use]
    pub fn fits(&self, bytes: usize) -> bool {
        let room = (self.region.layout().buffers - FIRST_BUFFER - self.used) as usize;
        bytes <= FRAME_MAX as usize && bytes.div_ceil(self.region.stride() as usize) <= room
    }

    /// Puts a frame, given in pieces, behind the others and its place into `frags`.
    ///
    /// # Panics
    /// If it does not [fit](Intake::fits).
    pub fn push(&mut self, pieces: &[&[u8]], frags: &mut Vec<Frag>) {
        assert!(self.fits(pieces.iter().map(|piece| piece.len()).sum()), "the caller asked `fits`");
        let mut room = 0;
        for piece in pieces {
            let mut at = 0;
            self.place(piece.len(), &mut room, frags, |to, len| {
                let part = &piece[at..at + len];
                // SAFETY: there is room for `len` bytes; `part` lies in the daemon's memory.
                unsafe { copy::copy_bytes(to, part.as_ptr(), len) };
                at += len;
            });
        }
    }

    /// Room for the next frame: enough for one of [`FRAME_MAX`], and more. It is part of no frame
    /// before it is [taken](Intake::take).
    ///
    /// # Panics
    /// If such a frame does not [fit](Intake::fits).
    pub fn space(&mut self) -> &mut [u8] {
        assert!(self.fits(FRAME_MAX as usize), "the caller asked `fits`");
        let first = self.region.check(FIRST_BUFFER + self.used).expect("it fits");
        let left = (self.region.layout().buffers - FIRST_BUFFER - self.used) as usize;
        let bytes = left * self.region.stride() as usize;
        // SAFETY: the buffers from `first` to the last lie one behind the other; no other process
        // maps the region, only bytes that were taken are read, and `self` is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.region.buffer(first), bytes) }
    }

    /// Makes the first `bytes` bytes of that room a frame, whose place goes into `frags`.
    ///
    /// # Panics
    /// If it does not [fit](Intake::fits).
    pub fn take(&mut self, bytes: usize, frags: &mut Vec<Frag>) {
        assert!(self.fits(bytes), "the caller asked `fits`");
        self.place(bytes, &mut 0, frags, |_, _| {});
    }

    /// Finds room for `bytes` bytes more, `room` of them in the last buffer, and has them copied
    /// there.
    #[inline]
    fn place(
        &mut self,
        mut bytes: usize,
        room: &mut usize,
        frags: &mut Vec<Frag>,
        mut copy: impl FnMut(*mut u8, usize),
    ) {
        debug_assert!(*room < self.region.stride() as usize || *room == 0);
        while bytes > 0 {
            if *room == 0 {
                let buffer = self.region.check(FIRST_BUFFER + self.used);
                frags.push(Frag { buffer: buffer.expect("it fits"), offset: 0, len: 0 });
                self.used += 1;
                *room = self.region.stride() as usize;
            }
            let frag = frags.last_mut().expect("pushed just now");
            let part = bytes.min(*room);
            // SAFETY: `part` bytes more lie within the `stride` bytes of the buffer.
            copy(unsafe { self.region.buffer(frag.buffer).add(frag.len.into()) }, part);
            frag.len += u16::try_from(part).expect("a stride has 16 bits");
            *room -= part;
            bytes -= part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, Pieces, Prologue, RawSlice};

    fn head(frame: &[u8]) -> Prologue {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&frame[..16]);
        Prologue { bytes, len: 16, skip: 16 }
    }

    #[test]
    fn frames_come_out_as_they_went_in() {
        let mut intake = Intake::new(64, 1518).expect("memory");
        let mut frags = Vec::new();
        for len in [16, 60, 2112, 2113, 5000] {
            let frame: Vec<u8> = (0..len).map(|i: u32| i.to_le_bytes()[0] ^ 0x5a).collect();
            let first = frags.len();
            intake.push(&[&frame[..12], &frame[12..14], &[], &frame[14..]], &mut frags);
            let pieces = Pieces::Region(intake.region(), &frags[first..]);
            let frame_of = Frame { pieces, bytes: len };
            let mut out = b"before".to_vec();
            frame_of.append_to(head(&frame), &mut out);
            assert_eq!(&out[6..], frame);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "megabytes take Miri minutes")]
    fn frames_that_are_written_in_place_are_found_where_they_lie() {
        let mut intake = Intake::new(64, 1518).expect("memory");
        for len in [16, 60, 2112, 2113, 65_553] {
            let frame: Vec<u8> = (0..len).map(|i: u32| i.to_le_bytes()[0] ^ 0x3c).collect();
            let mut frags = Vec::new();
            intake.space()[..frame.len()].copy_from_slice(&frame);
            intake.take(frame.len(), &mut frags);
            let pieces = Pieces::Region(intake.region(), &frags);
            let (head, mut out) = (head(&frame), Vec::new());
            Frame { pieces, bytes: len }.raw_slices(&head, |RawSlice { at, len }| {
                // SAFETY: these bytes lie in `head` or in the region, which is ours.
                out.extend_from_slice(unsafe { std::slice::from_raw_parts(at, len) });
            });
            assert!(out == frame, "{len}");
            if len > 60_000 {
                intake.clear();
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_told_before() {
        let mut intake = Intake::new(1, 60).expect("memory");
        assert!(intake.fits(FRAME_MAX as usize) && !intake.fits(FRAME_MAX as usize + 1));
        (0..2).for_each(|_| intake.push(&[&[0; 60]], &mut Vec::new()));
        assert!(!intake.fits(FRAME_MAX as usize));
        intake.clear();
        assert!(intake.fits(FRAME_MAX as usize));
    }
}
