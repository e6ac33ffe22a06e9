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

use packet::bytes::u16_at;
use packet::ethernet::{Header, Tag, field};
use packet::flow::{FlowKey, PREFIX, Prefix};
use packet::offload::{OffloadError, PendingOffload, VNET_LEN};
use packet::{EtherType, PortId, VlanId};
use ring::cursor::Index;
use ring::exchange::Exchange;
use ring::frame::{Frag, Frame, Pieces, Prologue, SLOTS_MAX, VNET_HEADER_MAX};
use ring::guest::{GuestMemory, GuestSlice, Reader};
use ring::kring::{Single, VnetHeader};
use ring::{BufferIndex, Region};

use crate::decide::bridge::TagAction;
use crate::receive::slot_flags::SlotFlags;

/// Shortest frame with a whole tag.
pub(crate) const TAGGED_MIN: u32 = 18;
/// Most pieces of one frame: a receiver gets as many as the sender used.
pub const FRAGS_MAX: usize = SLOTS_MAX as usize;

/// Up to a fixed number of frames from one port, all in one region or in the memory of one guest.
#[derive(Debug)]
pub struct Batch {
    region: Option<Arc<Region>>,
    guest: Option<Arc<GuestMemory>>,
    /// The pieces of frames in guest memory.
    spans: Vec<GuestSlice>,
    frames: Vec<Entry>,
    frags: Vec<Frag>,
    /// The virtio-net headers in front of the frames, if they have any.
    vnet_headers: Vec<VnetHeader>,
    /// Bytes of each virtio-net header.
    vnet_header_len: u8,
    /// The pending offloads of frames that are not finished.
    offloads: Vec<PendingOffload>,
    /// The port that has received the frames, if it exchanges their buffers for others.
    exchange: Option<Exchange>,
    capacity: usize,
    /// How many frames the batch takes. A GSO run counts for more than one: it may be more work.
    limit: usize,
    /// The limit of an empty batch.
    most: usize,
}

/// Segments of a GSO run that count as one frame.
const SEGMENTS_A_FRAME: usize = 8;
/// Pieces of guest memory for which there is room at the start; the list grows if there are more.
const SPANS: usize = 2048;
/// In place of an index: no pending offload.
const NO_OFFLOAD: u16 = u16::MAX;

/// A frame in a batch.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The first bytes of the frame, read once.
    pub header: Header,
    /// Length in bytes.
    pub bytes: u32,
    /// The first slot, of a frame that came from a ring.
    first_slot: Option<Index>,
    /// Requests of the sender.
    pub flags: SlotFlags,
    /// The service that it names, if it comes from a function.
    pub named: u8,
    /// The type behind the first tag, read once too; 0 without a tag.
    inner: EtherType,
    /// Index of its pending offload.
    offload: u16,
    /// Whether the frame lies in the memory of a guest.
    in_guest: bool,
    /// Metadata of its slot, inside a chain of functions.
    pub metadata: u64,
    first: u32,
    count: u32,
}

/// In place of the type behind a tag: there is no tag.
const UNTAGGED: EtherType = EtherType(0);

impl Entry {
    /// A frame in `count` pieces from `first` on, without requests, metadata and offload.
    #[inline(always)]
    fn new(header: Header, bytes: u32, first: u32, count: u32) -> Self {
        Self {
            header,
            bytes,
            first_slot: None,
            flags: SlotFlags::NONE,
            named: 0,
            inner: UNTAGGED,
            offload: NO_OFFLOAD,
            in_guest: false,
            metadata: 0,
            first,
            count,
        }
    }

    /// The slot of a frame that came from a ring in one piece.
    #[inline]
    #[must_use]
    pub fn slot(&self) -> Option<Index> {
        self.first_slot.filter(|_| self.count == 1)
    }

    /// Whether the frame has no tag, or one that names its VLAN.
    pub(crate) fn is_of_one_vlan(&self) -> bool {
        match self.header.ethertype() {
            EtherType::VLAN => !self.inner.is_tag(),
            ethertype => !ethertype.is_tag(),
        }
    }

    /// The first bytes of the frame, as they were read once: its header, and the type behind a tag.
    fn head(&self) -> [u8; field::INNER_ETHERTYPE.end] {
        let mut head = [0; field::INNER_ETHERTYPE.end];
        head[field::HEADER].copy_from_slice(&self.header.bytes());
        head[field::INNER_ETHERTYPE].copy_from_slice(&self.inner.0.to_be_bytes());
        head
    }
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

    /// Allows delivery by exchange of buffers. Afterwards, the pieces name the buffers that came in
    /// exchange, and the ingress port [takes them back](crate::model::port::Adapter::take_back).
    pub fn set_exchange(&mut self, exchange: Exchange) {
        self.exchange = Some(exchange);
    }

    /// Whether the frames of a port without rings lie in the daemon's own memory, and not in that
    /// of a guest or of a trust group.
    #[inline]
    #[must_use]
    pub fn is_own_memory(&self) -> bool {
        self.guest.is_none() && self.exchange.is_none()
    }

    /// How the buffers of the frames are exchanged, if they are.
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
        let slot = entry.slot().filter(|_| delivery.tag == TagAction::Keep)?;
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
        (as_it_is && Arc::ptr_eq(self.region(), region)).then_some((piece, entry.slot()))
    }

    /// The pieces of all frames, in order; a piece that was exchanged names the new buffer.
    #[must_use]
    pub fn received(&self) -> &[Frag] {
        &self.frags
    }

    /// Notes that the buffer of a frame of one piece was exchanged for this one.
    pub fn replace_buffer(&mut self, frame: u16, spare: BufferIndex) {
        debug_assert!(self.frames[usize::from(frame)].count == 1, "one buffer goes for one");
        let first = self.frames[usize::from(frame)].first as usize;
        self.frags[first] = self.frags[first].in_buffer(spare);
    }

    /// Limits the batch to `most` frames, and to its capacity.
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

    /// Whether one more frame of any shape can be taken without an allocation.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let frags = self.frags.capacity() - self.frags.len();
        self.frames.len() < self.limit && frags >= FRAGS_MAX
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
        let ([_, named], first_slot) = (flags.to_le_bytes(), Some(slot));
        let flags = SlotFlags::new(flags, count > 1);
        let entry = Entry::new(header, bytes, to_u32(first), count);
        self.push_entry(Entry { first_slot, flags, named, ..entry });
    }

    /// Closes a frame that came from no ring.
    pub fn push_received(&mut self, first: usize, bytes: u32) {
        let region = self.region.as_ref().expect("a batch is restarted before it is filled");
        let header = Header::new(region.header(self.frags[first]).to_le_bytes());
        let count = to_u32(self.frags.len() - first);
        self.push_adapted(header, bytes, to_u32(first), count, false);
    }

    /// Pushes a frame that lies in guest memory: all that the reader has not read yet. The batch
    /// keeps the memory until it is cleared; all such frames of a batch lie in the same memory.
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

    /// A frame in all pieces of guest memory from `first` on.
    #[inline]
    fn push_spans(&mut self, header: [u8; 16], bytes: u32, first: usize) {
        let count = to_u32(self.spans.len() - first);
        self.push_adapted(Header::new(header), bytes, to_u32(first), count, true);
    }

    /// A frame of an adapter, in `count` pieces from `first` on.
    #[inline]
    fn push_adapted(&mut self, header: Header, bytes: u32, first: u32, count: u32, in_guest: bool) {
        self.push_entry(Entry { in_guest, ..Entry::new(header, bytes, first, count) });
    }

    /// Pushed first and looked at then: an entry that changes on its way is built on the stack and
    /// copied.
    #[inline(always)]
    fn push_entry(&mut self, entry: Entry) {
        let is_tagged = entry.header.ethertype().is_tag();
        self.frames.push(entry);
        if is_tagged {
            self.look_behind_tag();
        }
    }

    /// Notes what follows the first tag of the frame that was pushed last.
    #[inline(never)]
    fn look_behind_tag(&mut self) {
        let entry = *self.frames.last().expect("a frame was pushed");
        let inner = self.inner_type(&entry);
        let noted = self.frames.last_mut().expect("a frame was pushed");
        noted.inner = inner;
        if entry.header.tag().is_some() && inner == EtherType::VLAN {
            noted.flags = entry.flags.with_inner_tag();
        }
    }

    /// The type behind the first tag of a frame.
    fn inner_type(&self, entry: &Entry) -> EtherType {
        let mut head = [0; field::INNER_ETHERTYPE.end];
        self.frame(entry).prefix(&mut head);
        EtherType(u16_at(&head, field::INNER_ETHERTYPE.start))
    }

    /// Whether frames that lie in this memory may be pushed.
    #[must_use]
    pub fn accepts_guest(&self, memory: &Arc<GuestMemory>) -> bool {
        self.guest.as_ref().is_none_or(|guest| Arc::ptr_eq(guest, memory))
    }

    /// Sets the pending offload of the frame that was pushed last. The batch checks it against the
    /// header from which the switch decides.
    ///
    /// # Errors
    /// The offload would change that header. The frame is taken out of the batch again.
    pub fn push_offload(&mut self, left: PendingOffload) -> Result<(), OffloadError> {
        let frame = self.frames.last_mut().expect("a frame was pushed");
        if !left.is_behind(&frame.head()) {
            self.frames.pop();
            return Err(OffloadError);
        }
        frame.offload = u16::try_from(self.offloads.len()).expect("a batch is small");
        debug_assert!(frame.bytes > 0, "an offload belongs to a frame");
        let segments = left.segments(frame.bytes as usize);
        self.limit = self.limit.saturating_sub(segments / SEGMENTS_A_FRAME);
        self.offloads.push(left);
        Ok(())
    }

    /// How many frames a frame becomes, at most, for a destination that accepts no offloads.
    #[inline]
    #[must_use]
    pub fn segments(&self, frame: usize) -> u32 {
        let Entry { offload, bytes, .. } = self.frames[frame];
        let left = (offload != NO_OFFLOAD).then(|| self.offloads[usize::from(offload)]);
        left.map_or(1, |left| to_u32(left.segments(bytes as usize)))
    }

    /// Whether any frame has a pending offload.
    #[inline]
    #[must_use]
    pub fn has_offloads(&self) -> bool {
        !self.offloads.is_empty()
    }

    /// The pending offload of a frame, as it is to be delivered.
    #[inline]
    #[must_use]
    pub fn offload(&self, delivery: Delivery) -> Option<PendingOffload> {
        let left = self.frames[usize::from(delivery.frame)].offload;
        (left != NO_OFFLOAD).then(|| self.offloads[usize::from(left)].moved(delivery.tag.growth()))
    }

    /// Sets the virtio-net header of the frame that was pushed last. All headers of a batch have
    /// the same length.
    pub fn push_vnet_header(&mut self, header: VnetHeader, len: u8) {
        self.vnet_headers.push(header);
        self.vnet_header_len = len;
        debug_assert_eq!(self.vnet_headers.len(), self.frames.len());
    }

    /// The virtio-net header of a frame for a port whose headers have `len` bytes: that of the
    /// sender, if its headers have as many and this one does not point in front of the frame's
    /// network header, else zeros.
    #[must_use]
    pub fn vnet_header(&self, delivery: Delivery, len: u8) -> VnetHeader {
        let frame = usize::from(delivery.frame);
        let header = self.vnet_headers.get(frame).filter(|_| len == self.vnet_header_len);
        let Some(&header) = header else { return [0; VNET_HEADER_MAX] };
        let (mut passed, head) = (header, self.frames[frame].head());
        let fields = header.first_chunk().expect("it is longer");
        let fields = PendingOffload::pass_on(*fields, &head, delivery.tag.growth());
        passed[..VNET_LEN].copy_from_slice(&fields);
        passed
    }

    /// Sets the metadata of a frame's slot.
    pub(crate) fn set_metadata(&mut self, frame: usize, metadata: u64) {
        self.frames[frame].metadata = metadata;
    }

    /// Forgets all frames after the first `count`. Returns the slot of the first that is forgotten.
    pub fn truncate(&mut self, count: usize) -> Option<Index> {
        debug_assert!(count <= self.frames.len(), "a batch is cut, not extended");
        let cut = self.frames.get(count).and_then(|entry| entry.first_slot);
        self.frames.truncate(count);
        cut
    }

    /// The frames, in the order of their arrival.
    #[must_use]
    pub fn frames(&self) -> &[Entry] {
        &self.frames
    }

    /// The first frame after `start` with another key or other flags, or the end.
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

    /// The pieces of a frame in a region; none for a frame in guest memory.
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

    /// A frame that is delivered as it is, without a pending offload, and its first bytes.
    #[inline]
    #[must_use]
    pub fn plain(&self, delivery: Delivery) -> Option<(Frame<'_>, u128)> {
        let entry = &self.frames[usize::from(delivery.frame)];
        let as_it_is = entry.offload == NO_OFFLOAD && delivery.tag == TagAction::Keep;
        as_it_is.then(|| (self.frame(entry), u128::from_le_bytes(entry.header.bytes())))
    }

    /// A hash that all frames of a flow share, in both directions: of the IP addresses and ports,
    /// or of the MAC addresses.
    #[must_use]
    pub fn flow(&self, entry: &Entry) -> u32 {
        let port = PortId::new(0).expect("there is a first");
        self.flow_key(entry, VlanId::DEFAULT, port).hash(0)
    }

    /// The flow key of a frame that came in by a port and is in a VLAN.
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

    /// Copies the beginning of a frame out, once; returns how many bytes were copied.
    #[inline]
    fn prefix(&self, entry: &Entry, to: &mut [u8; PREFIX]) -> usize {
        match self.pieces(entry) {
            &[only] => self.region().prefix(only, to),
            _ => self.frame(entry).prefix(to),
        }
    }

    /// The first bytes of a frame, and how many there are. Its header is the copy that was made
    /// before.
    pub(crate) fn packet(&self, frame: usize) -> ([u8; PREFIX], usize) {
        let (entry, mut bytes) = (&self.frames[frame], [0; PREFIX]);
        let count = self.prefix(entry, &mut bytes);
        bytes[field::HEADER].copy_from_slice(&entry.header.bytes());
        (bytes, count)
    }

    /// A frame as it is to be delivered, for a port without rings.
    #[must_use]
    pub fn outgoing(&self, delivery: Delivery) -> (Frame<'_>, Prologue) {
        let entry = &self.frames[usize::from(delivery.frame)];
        (self.frame(entry), prologue(entry, delivery.tag))
    }

    /// Appends a frame to `to`, as it is to be delivered.
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
pub fn prologue(entry: &Entry, tag: TagAction) -> Prologue {
    const ADDRESSES: u8 = 12;
    const UNTAGGED: u8 = 14;
    const TAGGED: u8 = 16;
    const WITH_TYPE: u8 = 18;
    let &Entry { header, bytes, inner, .. } = entry;
    let keep = Prologue {
        bytes: header.bytes(),
        len: u8::try_from(bytes).map_or(TAGGED, |b| b.min(TAGGED)),
        skip: u8::try_from(bytes).map_or(TAGGED, |b| b.min(TAGGED)),
    };
    match tag {
        TagAction::Keep => keep,
        TagAction::Strip => {
            debug_assert!(bytes >= WITH_TYPE.into(), "a frame that ends in its tag is dropped");
            let mut bytes = keep.bytes;
            bytes[field::ETHERTYPE].copy_from_slice(&inner.0.to_be_bytes());
            Prologue { bytes, len: UNTAGGED, skip: WITH_TYPE }
        }
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
