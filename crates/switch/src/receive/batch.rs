//! A batch: frames on their way from one port to others.
//!
//! # Theory of operation
//!
//! The fast path needs no batch: a run of frames with one header goes from ring to ring in one
//! loop. All other frames go through a batch: interleaved destinations, floods, chains, tags to
//! insert or strip, ports without rings. The batch holds the pieces of a frame by reference and its
//! header by copy, and beside them its pending offload (a partial checksum, GSO), its virtio-net
//! header and its metadata. All lists have their capacity from the start.
//!
//! All frames of a batch lie in one region, or in the memory of one guest. The frames stay where
//! they are until the batch is cleared or restarted.

use std::sync::Arc;

use packet::ethernet::{Header, Tag, field};
use packet::flow::{FlowKey, PREFIX, Prefix};
use packet::offload::PendingOffload;
use packet::{EtherType, PortId, VlanId};
use ring::cursor::Index;
use ring::exchange::Exchange;
use ring::frame::{Frag, Frame, Pieces, Prologue, SLOTS_MAX, VNET_HEADER_MAX};
use ring::guest::{GuestMemory, GuestSlice, Reader};
use ring::kring::{Single, VnetHeader};
use ring::{BufferIndex, Region};

use crate::decide::bridge::TagAction;
use crate::receive::slot_flags::SlotFlags;

/// Most pieces of one frame: what its sender may use, its receiver gets.
pub const FRAGS_MAX: usize = SLOTS_MAX as usize;

/// Up to a fixed number of frames from one port, all in one region or in memory guest by a guest.
#[derive(Debug)]
pub struct Batch {
    region: Option<Arc<Region>>,
    guest: Option<Arc<GuestMemory>>,
    /// The pieces of those that lie there.
    spans: Vec<GuestSlice>,
    frames: Vec<Entry>,
    frags: Vec<Frag>,
    /// What was in header of each, if anything was.
    vnet_headers: Vec<VnetHeader>,
    /// How many bytes of it.
    vnet_header_len: u8,
    /// What is left to do to those that are not finished.
    offloads: Vec<PendingOffload>,
    /// The port that has received the frames, if it exchanges their buffers for others.
    exchange: Option<Exchange>,
    capacity: usize,
    /// How many frames it takes. A run of segments counts for more than one: it may be more work.
    limit: usize,
    /// The limit of an empty batch.
    most: usize,
}

/// So many segments count for one frame.
const SEGMENTS_A_FRAME: usize = 8;
/// Pieces of guests' memory that there is room for: of more the list grows.
const SPANS: usize = 2048;
/// In the place of an index: nothing is left to do.
const NO_OFFLOAD: u16 = u16::MAX;

/// A frame in a batch.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The first bytes of the frame, read once.
    pub header: Header,
    /// Length in bytes.
    pub bytes: u32,
    /// The slot it came from, if it came from a ring in one piece.
    pub slot: Option<Index>,
    /// Requests of the sender.
    pub flags: SlotFlags,
    /// The service that it names, if it comes from a function.
    pub named: u8,
    /// Where it stands what is left to do.
    offload: u16,
    /// Whether the frame lies in the memory of a guest.
    in_guest: bool,
    /// What its slot will say of it, inside a chain of functions.
    pub metadata: u64,
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
            guest: None,
            spans: Vec::with_capacity(SPANS),
            frames: Vec::with_capacity(capacity),
            frags: Vec::with_capacity(capacity * 2 + FRAGS_MAX),
            vnet_headers: Vec::with_capacity(capacity),
            vnet_header_len: 0,
            offloads: Vec::with_capacity(capacity),
            exchange: None,
            capacity,
            limit: capacity,
            most: capacity,
        }
    }

    /// Empties the batch.
    pub fn clear(&mut self) {
        self.guest = None;
        self.spans.clear();
        self.frames.clear();
        self.frags.clear();
        self.vnet_headers.clear();
        self.vnet_header_len = 0;
        self.offloads.clear();
        self.exchange = None;
        self.limit = self.most;
    }

    /// The frames of this batch may be delivered by exchange: their pieces name the buffers that
    /// came for them when their [port](crate::model::port::Adapter::take_back) gets them back.
    pub fn set_exchange(&mut self, exchange: Exchange) {
        self.exchange = Some(exchange);
    }

    /// Who takes other buffers for those of the frames.
    #[inline]
    #[must_use]
    pub fn exchange(&self) -> Option<Exchange> {
        self.exchange
    }

    /// A frame that came from a ring in one piece and is delivered as it is.
    #[inline]
    #[must_use]
    pub fn single(&self, delivery: Delivery) -> Option<Single> {
        let entry = &self.frames[usize::from(delivery.frame)];
        let slot = entry.slot.filter(|_| delivery.tag == TagAction::Keep)?;
        Some(Single { slot, piece: self.frags[entry.first as usize], metadata: entry.metadata })
    }

    /// The only piece of a frame of this region that is delivered as it is, and its slot if it came
    /// from a ring.
    #[must_use]
    pub fn exchangeable(
        &self,
        delivery: Delivery,
        region: &Arc<Region>,
    ) -> Option<(Frag, Option<Index>)> {
        let entry = &self.frames[usize::from(delivery.frame)];
        let &[piece] = self.pieces(entry) else { return None };
        let as_it_is = entry.offload == NO_OFFLOAD && delivery.tag == TagAction::Keep;
        (as_it_is && Arc::ptr_eq(self.region(), region)).then_some((piece, entry.slot))
    }

    /// The pieces of all frames, in order, and of those that came for them.
    #[must_use]
    pub fn received(&self) -> &[Frag] {
        &self.frags
    }

    /// A frame of one piece went by its buffer, and this one came for it.
    pub fn replace_buffer(&mut self, frame: u16, spare: BufferIndex) {
        debug_assert!(self.frames[usize::from(frame)].count == 1, "one buffer goes for one");
        let first = self.frames[usize::from(frame)].first as usize;
        self.frags[first] = self.frags[first].in_buffer(spare);
    }

    /// From now on, takes at most so many frames at a time; more than its capacity are that.
    pub fn restrict(&mut self, most: usize) {
        self.most = most.min(self.capacity);
        self.limit = self.most;
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
        self.frames.len() < self.limit && frags >= FRAGS_MAX
    }

    /// How many frames of at most so many pieces can be taken without an allocation?
    #[must_use]
    pub fn room(&self, pieces: u32) -> u32 {
        let frags = to_u32(self.frags.capacity() - self.frags.len());
        to_u32(self.limit.saturating_sub(self.frames.len())).min(frags / pieces)
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
        debug_assert!(first < self.frags.len() && bytes > 0, "a frame has a piece");
        let count = to_u32(self.frags.len() - first);
        let ([_, named], first, left) = (flags.to_le_bytes(), to_u32(first), NO_OFFLOAD);
        let (slot, flags) = (Some(slot).filter(|_| count == 1), SlotFlags::new(flags, count > 1));
        self.frames.push(Entry {
            header,
            bytes,
            slot,
            flags,
            named,
            metadata: 0,
            offload: left,
            first,
            count,
            in_guest: false,
        });
    }

    /// Closes a frame that came from no ring.
    pub fn push_received(&mut self, first: usize, bytes: u32) {
        let region = self.region.as_ref().expect("a batch is restarted before it is filled");
        let header = Header::new(region.header(self.frags[first]).to_le_bytes());
        let count = to_u32(self.frags.len() - first);
        let (first, flags, left) = (to_u32(first), SlotFlags::NONE, NO_OFFLOAD);
        self.frames.push(Entry {
            header,
            bytes,
            slot: None,
            flags,
            named: 0,
            metadata: 0,
            offload: left,
            first,
            count,
            in_guest: false,
        });
    }

    /// Pushes a frame that lies in memory guest by a guest: all that is left to be read. The memory
    /// is used until the batch is cleared; all such frames of a batch lie in one.
    pub fn push_guest(&mut self, memory: &Arc<GuestMemory>, frame: &Reader<'_>, bytes: u32) {
        let first = self.spans.len();
        frame.rest(&mut self.spans);
        let guest = self.guest.get_or_insert_with(|| memory.clone());
        assert!(Arc::ptr_eq(guest, memory), "one memory in a batch");
        let mut header = [0; 16];
        let pieces = Pieces::Guest(guest, &self.spans[first..]);
        Frame { pieces, bytes }.prefix(&mut header);
        self.push_spans(header, bytes, first);
    }

    /// Pushes a frame that lies in one piece of guest memory. `false`: it has no whole header.
    #[inline]
    #[must_use]
    pub fn push_guest_slice(&mut self, memory: &Arc<GuestMemory>, frame: GuestSlice) -> bool {
        let Some(header) = memory.first(frame) else { return false };
        let first = self.spans.len();
        self.spans.push(frame);
        let guest = self.guest.get_or_insert_with(|| memory.clone());
        assert!(Arc::ptr_eq(guest, memory), "one memory in a batch");
        self.push_spans(header, frame.len(), first);
        true
    }

    /// A frame in all spans from `first` on.
    #[inline]
    fn push_spans(&mut self, header: [u8; 16], bytes: u32, first: usize) {
        let (count, flags) = (to_u32(self.spans.len() - first), SlotFlags::NONE);
        let (header, first, offload) = (Header::new(header), to_u32(first), NO_OFFLOAD);
        let (slot, named, metadata, in_guest) = (None, 0, 0, true);
        let entry =
            Entry { header, bytes, slot, flags, named, offload, in_guest, metadata, first, count };
        self.frames.push(entry);
    }

    /// May frames be pushed that lie in this memory?
    #[must_use]
    pub fn accepts_guest(&self, memory: &Arc<GuestMemory>) -> bool {
        self.guest.as_ref().is_none_or(|guest| Arc::ptr_eq(guest, memory))
    }

    /// This is to be said of the frame that was pushed last.
    pub fn push_offload(&mut self, left: PendingOffload) {
        let frame = self.frames.last_mut().expect("a frame was pushed");
        frame.offload = u16::try_from(self.offloads.len()).expect("a batch is small");
        debug_assert!(frame.bytes > 0, "an offload belongs to a frame");
        let segments = left.segments(frame.bytes as usize);
        self.limit = self.limit.saturating_sub(segments / SEGMENTS_A_FRAME);
        self.offloads.push(left);
    }

    /// Whether any frame has a pending offload.
    #[inline]
    #[must_use]
    pub fn has_offloads(&self) -> bool {
        !self.offloads.is_empty()
    }

    /// What is left to do to a frame, as it is to be delivered.
    #[inline]
    #[must_use]
    pub fn offload(&self, delivery: Delivery) -> Option<PendingOffload> {
        let left = self.frames[usize::from(delivery.frame)].offload;
        (left != NO_OFFLOAD).then(|| self.offloads[usize::from(left)].moved(delivery.tag.growth()))
    }

    /// The frame that was pushed last had this in header of it, so many bytes, as all others have.
    pub fn push_vnet_header(&mut self, header: VnetHeader, len: u8) {
        self.vnet_headers.push(header);
        self.vnet_header_len = len;
        debug_assert_eq!(self.vnet_headers.len(), self.frames.len());
    }

    /// What is in header of a frame for a port that wants `len` bytes there: what was there, if it
    /// was as long, else zeros.
    #[must_use]
    pub fn vnet_header(&self, frame: u16, len: u8) -> &[u8] {
        const NOTHING: VnetHeader = [0; VNET_HEADER_MAX];
        let header =
            self.vnet_headers.get(usize::from(frame)).filter(|_| len == self.vnet_header_len);
        &header.unwrap_or(&NOTHING)[..usize::from(len)]
    }

    /// What the slot of a frame will say of it.
    pub(crate) fn set_metadata(&mut self, frame: usize, metadata: u64) {
        self.frames[frame].metadata = metadata;
    }

    /// Forgets all frames after the first `count`.
    pub fn truncate(&mut self, count: usize) {
        debug_assert!(count <= self.frames.len(), "a batch is cut, not extended");
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
        let of = |frame: &Entry| (frame.header.key(), frame.flags);
        let (first, rest) = (of(&self.frames[start]), &self.frames[start + 1..]);
        let same = rest.iter().take_while(|frame| of(frame) == first).count();
        start + 1 + same
    }

    /// The region that all pieces lie in.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        self.region.as_ref().expect("a batch with frames has a region")
    }

    /// The pieces of a frame in a region; of a guest one, none.
    #[inline]
    #[must_use]
    pub fn pieces(&self, entry: &Entry) -> &[Frag] {
        let count = if entry.in_guest { 0 } else { entry.count as usize };
        &self.frags[if count == 0 { 0 } else { entry.first as usize }..][..count]
    }

    /// A frame as the port format takes it.
    #[must_use]
    pub fn frame(&self, entry: &Entry) -> Frame<'_> {
        let pieces = match &self.guest {
            Some(memory) if entry.in_guest => {
                let spans = &self.spans[entry.first as usize..][..entry.count as usize];
                Pieces::Guest(memory, spans)
            }
            _ => Pieces::Region(self.region(), self.pieces(entry)),
        };
        Frame { pieces, bytes: entry.bytes }
    }

    /// A frame that is delivered as it is, with nothing left to do to it, and its first bytes.
    #[inline]
    #[must_use]
    pub fn plain(&self, delivery: Delivery) -> Option<(Frame<'_>, u128)> {
        let entry = &self.frames[usize::from(delivery.frame)];
        let as_it_is = entry.offload == NO_OFFLOAD && delivery.tag == TagAction::Keep;
        as_it_is.then(|| (self.frame(entry), u128::from_le_bytes(entry.header.bytes())))
    }

    /// A number that all frames of a flow have in common, in both directions: of the addresses and
    /// ports of IP, or of the stations.
    #[must_use]
    pub fn flow(&self, entry: &Entry) -> u32 {
        let port = PortId::new(0).expect("there is a first");
        self.flow_key(entry, VlanId::DEFAULT, port).hash(0)
    }

    /// What a frame says, that came in by a port and is in a VLAN.
    #[inline]
    pub(crate) fn flow_key(&self, entry: &Entry, vlan: VlanId, port: PortId) -> FlowKey {
        let words = match self.pieces(entry) {
            &[only] => self.region().words(only),
            _ => None,
        };
        let common = words.and_then(|words| FlowKey::read_common(words, vlan, port));
        common.unwrap_or_else(|| self.any_flow_key(entry, vlan, port))
    }

    #[inline(never)]
    fn any_flow_key(&self, entry: &Entry, vlan: VlanId, port: PortId) -> FlowKey {
        let mut prefix = [0; PREFIX];
        let len = self.prefix(entry, &mut prefix);
        FlowKey::read(Prefix::new(&prefix, len), vlan, port)
    }

    /// Copies the beginning of a frame out, once; returns how many bytes of it there are.
    #[inline]
    fn prefix(&self, entry: &Entry, to: &mut [u8; PREFIX]) -> usize {
        match self.pieces(entry) {
            &[only] => self.region().prefix(only, to),
            _ => self.frame(entry).prefix(to),
        }
    }

    /// A frame as it is to be delivered, for a port without rings.
    #[must_use]
    pub fn outgoing(&self, delivery: Delivery) -> (Frame<'_>, Prologue) {
        let entry = &self.frames[usize::from(delivery.frame)];
        (self.frame(entry), prologue(entry.header, entry.bytes, delivery.tag))
    }

    /// Appends it to `to`.
    pub fn append(&self, delivery: Delivery, to: &mut Vec<u8>) {
        let (frame, head) = self.outgoing(delivery);
        frame.append_to(head, to);
    }
}

/// A number of frames, slots or pieces of a batch.
pub(crate) fn to_u32(count: usize) -> u32 {
    u32::try_from(count).expect("a batch is small")
}

/// A place in a batch.
pub(crate) fn to_u16(index: usize) -> u16 {
    u16::try_from(index).expect("a batch is small")
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
