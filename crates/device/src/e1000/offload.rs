//! What a driver leaves to the device: checksums and segments (3.3.3, 3.3.6, 3.5, 3.6).
//!
//! The device does not segment, nor does it sum up payload. It hands that on, as a virtio-net
//! header has it ([`PendingOffload`]), and makes the headers what such a header promises:
//!
//! | the driver leaves out | in the frame that is handed on |
//! |---|---|
//! | IPv4 checksum (IXSM) | done |
//! | TCP or UDP checksum (TXSM, IC) | left: the field holds the pseudo-header's sum |
//! | the same, with an end or in front of that header | done, if it lies in the head |
//! | segments (TSE): lengths of IP, and in the pseudo-header | done, for the whole run |
//! | segments (TSE): everything else | left |
//!
//! The context names offsets in the frame, and the driver can name any. What does not fit the
//! frame, or the headers that are in it, drops the frame ([`Malformed`]). A real device would send
//! such a frame with a useless checksum, which no driver is known to want.

use packet::checksum::Sum;
use packet::offload::run::TcpRun;
use packet::offload::{PendingOffload, VNET_LEN};

/// The bit of TUCMD for TCP (3.3.6.1); without it, UDP would be cut into fragments.
const TUCMD_TCP: u8 = 1 << 0;
/// The offset of the checksum in the TCP header.
const TCP_CHECKSUM: usize = 16;

/// What the driver left to the device does not fit the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// A checksum that is to be inserted (3.3.5): that of all bytes from `start` to `end`, at `at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Insert {
    pub start: usize,
    pub at: usize,
    /// The last byte; 0: the frame's last one.
    pub end: usize,
}

impl Insert {
    /// From three fields of a context: css, cso, cse.
    fn context(fields: u64) -> Self {
        let [start, at, low, high, ..] = fields.to_le_bytes();
        Self { start: start.into(), at: at.into(), end: u16::from_le_bytes([low, high]).into() }
    }

    /// Behind the last byte, in a frame of this many.
    fn end(self, bytes: usize) -> usize {
        if self.end == 0 { bytes } else { bytes.min(self.end + 1) }
    }

    /// Inserts it, if all of it lies in `head`, the first bytes of a frame.
    fn insert(self, head: &mut [u8], bytes: usize) -> Result<(), Malformed> {
        let end = self.end(bytes);
        if end > head.len() || self.start >= end || self.at + 2 > end {
            return Err(Malformed);
        }
        let sum = Sum::of(&head[self.start..end]).nonzero_checksum();
        head[self.at..self.at + 2].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }
}

/// A TCP/IP context (3.3.6): where headers are, and how to segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Context {
    ip: Insert,
    transport: Insert,
    header_len: usize,
    payload_len: usize,
    segment_size: usize,
    command: u8,
}

impl Context {
    pub fn new([first, second]: [u64; 2]) -> Self {
        let [.., command, _, header_len, low, high] = second.to_le_bytes();
        Self {
            ip: Insert::context(first),
            transport: Insert::context(first >> 32),
            header_len: header_len.into(),
            payload_len: (second & 0xf_ffff) as usize,
            segment_size: u16::from_le_bytes([low, high]).into(),
            command,
        }
    }
}

/// What is to be done to a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Task {
    /// Nothing: legacy descriptors without a checksum.
    #[default]
    None,
    /// A legacy descriptor: one checksum.
    Legacy(Insert),
    /// Data descriptors: the checksums of IP and of the transport.
    Checksums { context: Context, ip: bool, transport: bool },
    /// Data descriptors: segments.
    Segments(Context),
}

impl Task {
    /// Does its part in `head`, the first bytes of a frame of `bytes` bytes; returns what is left.
    pub fn apply(self, head: &mut [u8], bytes: usize) -> Result<Option<PendingOffload>, Malformed> {
        match self {
            Self::None => Ok(None),
            Self::Legacy(insert) => leave_checksum(insert, head, bytes),
            Self::Checksums { context, ip, transport } => {
                if ip {
                    context.ip.insert(head, bytes)?;
                }
                let left = transport.then(|| leave_checksum(context.transport, head, bytes));
                left.unwrap_or(Ok(None))
            }
            Self::Segments(context) => context.leave_segments(head, bytes).map(Some),
        }
    }
}

/// Leaves a checksum as it is begun, or inserts it, if it is none of a transport header.
fn leave_checksum(
    insert: Insert,
    head: &mut [u8],
    bytes: usize,
) -> Result<Option<PendingOffload>, Malformed> {
    let offset = insert.at.checked_sub(insert.start).ok_or(Malformed)?;
    let left = PendingOffload::partial(insert.start, offset, bytes).ok();
    let left = left.filter(|left| left.is_behind(head) && insert.end(bytes) == bytes);
    if left.is_none() {
        insert.insert(head, bytes)?;
    }
    Ok(left)
}

impl Context {
    /// Makes the headers those of one long segment, and leaves its segmentation (3.5.7). Which IP
    /// it is, the frame says; FreeBSD's driver sets the bit of IPv4 for both.
    fn leave_segments(self, head: &mut [u8], bytes: usize) -> Result<PendingOffload, Malformed> {
        let run = TcpRun {
            l3: self.ip.start,
            l4: self.transport.start,
            payload: self.header_len,
            size: self.segment_size,
        };
        let is_tcp = self.command & TUCMD_TCP != 0 && self.transport.at == run.l4 + TCP_CHECKSUM;
        if !is_tcp || bytes != self.header_len + self.payload_len {
            return Err(Malformed);
        }
        run.fill_in(head, bytes).map_err(|_| Malformed)
    }

    /// The segments of a frame, and the bytes of the first ones and of the last.
    pub fn segments(&self) -> (u32, u32, u32) {
        let size = self.segment_size.max(1);
        let count = self.payload_len.div_ceil(size).max(1);
        let last = self.payload_len - (count - 1) * size;
        let [count, first, last] = [count, self.header_len + size, self.header_len + last]
            .map(|number| u32::try_from(number).expect("20 bits and less"));
        (count, first, last)
    }
}

/// The ten bytes of a virtio-net header.
pub(super) fn header(left: Option<PendingOffload>) -> [u8; VNET_LEN] {
    left.map_or([0; VNET_LEN], PendingOffload::bytes)
}
