//! Frames on their way from one port to others.
//!
//! The fast path needs no batch: a run of frames with one header goes from ring to ring in one
//! loop. What is left (interleaved destinations, floods, chains, tags to insert or strip, ports
//! without rings) is taken into a batch: pieces by reference, the header by copy. Everything has
//! its capacity from the start.

use std::sync::Arc;

use ring::Region;
use ring::cursor::Index;
use ring::kring::{FRONT_MAX, Frag, Front};
use ring::put::{Frame, Prologue, SLOTS_MAX};

use crate::asks::Asks;
use crate::bridge::TagAction;
use crate::frame::{EtherType, Header, Tag, field};
use crate::vlan::VlanId;

/// Most pieces of one frame: what its sender may use, its receiver gets.
pub const FRAGS_MAX: usize = SLOTS_MAX as usize;

/// Up to a fixed number of frames from one port, all in one region.
#[derive(Debug)]
pub struct Batch {
    region: Option<Arc<Region>>,
    frames: Vec<Entry>,
    frags: Vec<Frag>,
    /// What was in front of each, if anything was.
    fronts: Vec<Front>,
    /// How many bytes of it.
    front_len: u8,
    capacity: usize,
}

/// A frame in a batch.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its first bytes, read once.
    pub header: Header,
    /// Length in bytes.
    pub bytes: u32,
    /// The slot it came from, if it came from a ring in one piece.
    pub slot: Option<Index>,
    /// What its sender asks for.
    pub asks: Asks,
    first: u32,
    count: u32,
}

/// One frame of a batch for one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Index in the batch.
    pub frame: u16,
    /// What to do to its VLAN tag.
    pub tag: TagAction,
}

impl Batch {
    /// Room for `capacity` frames.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        assert!((1..=usize::from(u16::MAX)).contains(&capacity));
        Self {
            region: None,
            frames: Vec::with_capacity(capacity),
            frags: Vec::with_capacity(capacity * 2 + FRAGS_MAX),
            fronts: Vec::with_capacity(capacity),
            front_len: 0,
            capacity,
        }
    }

    /// Empties the batch.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.frags.clear();
        self.fronts.clear();
        self.front_len = 0;
    }

    /// Empties the batch for frames of `region`.
    pub fn restart(&mut self, region: &Arc<Region>) {
        self.clear();
        if !self.region.as_ref().is_some_and(|mine| Arc::ptr_eq(mine, region)) {
            self.region = Some(region.clone());
        }
    }

    /// Empties the batch and lets its region go.
    pub fn release(&mut self) {
        self.clear();
        self.region = None;
    }

    /// Can one more frame of any shape be taken without an allocation?
    #[must_use]
    pub fn has_room(&self) -> bool {
        let frags = self.frags.capacity() - self.frags.len();
        self.frames.len() < self.capacity && frags >= FRAGS_MAX
    }

    /// Where the pieces of the next frame go, before [`Batch::push`].
    pub fn frags(&mut self) -> &mut Vec<Frag> {
        &mut self.frags
    }

    /// Closes a frame of `bytes` bytes whose pieces were appended since `first`, and whose first
    /// slot is `slot`, with these flags.
    pub fn push(&mut self, first: usize, bytes: u32, slot: Index, flags: u16) {
        let region = self.region.as_ref().expect("a batch is restarted before it is filled");
        let header = Header::new(region.header(self.frags[first]).to_le_bytes());
        let count = narrow(self.frags.len() - first);
        let (slot, asks) = (Some(slot).filter(|_| count == 1), Asks::new(flags, count > 1));
        self.frames.push(Entry { header, bytes, slot, asks, first: narrow(first), count });
    }

    /// The same for a frame that came from no ring.
    pub fn push_received(&mut self, first: usize, bytes: u32) {
        let region = self.region.as_ref().expect("a batch is restarted before it is filled");
        let header = Header::new(region.header(self.frags[first]).to_le_bytes());
        let count = narrow(self.frags.len() - first);
        let (first, asks) = (narrow(first), Asks::NOTHING);
        self.frames.push(Entry { header, bytes, slot: None, asks, first, count });
    }

    /// The frame that was pushed last had this in front of it, so many bytes, as all others have.
    pub fn push_front(&mut self, front: Front, len: u8) {
        self.fronts.push(front);
        self.front_len = len;
        debug_assert_eq!(self.fronts.len(), self.frames.len());
    }

    /// What is in front of a frame for a port that wants `len` bytes there: what was there, if it
    /// was as long, else zeros.
    #[must_use]
    pub fn front(&self, frame: u16, len: u8) -> &[u8] {
        const NOTHING: Front = [0; FRONT_MAX];
        let front = self.fronts.get(usize::from(frame)).filter(|_| len == self.front_len);
        &front.unwrap_or(&NOTHING)[..usize::from(len)]
    }

    /// Forgets all frames after the first `count`.
    pub fn truncate(&mut self, count: usize) {
        self.frames.truncate(count);
    }

    /// The frames, in the order they were taken.
    #[must_use]
    pub fn frames(&self) -> &[Entry] {
        &self.frames
    }

    /// First frame after `start` with another key or other wishes, or the end.
    #[must_use]
    pub fn run_end(&self, start: usize) -> usize {
        let of = |frame: &Entry| (frame.header.key(), frame.asks);
        let (first, rest) = (of(&self.frames[start]), &self.frames[start + 1..]);
        let same = rest.iter().take_while(|frame| of(frame) == first).count();
        start + 1 + same
    }

    /// The region that all pieces lie in.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        self.region.as_ref().expect("a batch with frames has a region")
    }

    /// The pieces of a frame.
    #[inline]
    #[must_use]
    pub fn pieces(&self, entry: &Entry) -> &[Frag] {
        &self.frags[entry.first as usize..][..entry.count as usize]
    }

    /// A frame as the port format takes it.
    #[must_use]
    pub fn frame(&self, entry: &Entry) -> Frame<'_> {
        Frame { region: self.region(), frags: self.pieces(entry), bytes: entry.bytes }
    }

    /// Appends a frame to `to` as it is to be delivered, for whoever has no rings.
    pub fn append(&self, delivery: Delivery, to: &mut Vec<u8>) {
        let entry = &self.frames[usize::from(delivery.frame)];
        self.frame(entry).append_to(prologue(entry.header, entry.bytes, delivery.tag), to);
    }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("a batch is small")
}

/// The first bytes of a frame as the destination gets them, from the snapshot that was decided
/// from.
#[must_use]
pub fn prologue(header: Header, bytes: u32, tag: TagAction) -> Prologue {
    const ADDRESSES: u8 = 12;
    const TAGGED: u8 = 16;
    let keep = Prologue {
        bytes: header.bytes(),
        len: u8::try_from(bytes).map_or(TAGGED, |b| b.min(TAGGED)),
        skip: u8::try_from(bytes).map_or(TAGGED, |b| b.min(TAGGED)),
    };
    match tag {
        TagAction::Keep => keep,
        TagAction::Strip => Prologue { len: ADDRESSES, ..keep },
        TagAction::Insert(vlan) => {
            Prologue { bytes: with_tag(header, vlan), len: TAGGED, skip: ADDRESSES }
        }
        TagAction::Replace(vlan) => Prologue { bytes: with_tag(header, vlan), ..keep },
    }
}

fn with_tag(header: Header, vlan: VlanId) -> [u8; 16] {
    let mut bytes = header.bytes();
    let old = header.tag().unwrap_or(Tag { vid: 0, pcp: 0, dei: false });
    let tag = Tag { vid: vlan.get(), ..old };
    bytes[field::ETHERTYPE].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
    bytes[field::TCI].copy_from_slice(&tag.tci().to_be_bytes());
    bytes
}
