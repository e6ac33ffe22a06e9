//! The reference: the bytes of one direction of a connection, and how many of them have come to
//! the other end.

use ring::frame::{ETHERNET, FRAME_MAX};
use switch::DropReason::{TooLong, TooShort};
use switch::Drops;

/// Bytes of the length in front of each frame.
pub const LENGTH: usize = 4;

/// What the reader finds next.
#[derive(PartialEq, Eq)]
pub enum Next<'a> {
    /// No bytes, or fewer than were announced.
    Nothing,
    /// A frame, or bytes that are too few for one.
    Frame(&'a [u8]),
    /// The length of a frame that is too long.
    Long(u32),
}

/// One direction of a connection. Datagrams are in it behind their lengths, as frames of a stream
/// are.
pub struct Record {
    is_stream: bool,
    bytes: Vec<u8>,
    at: usize,
    /// Where the first bytes begin that descriptors came with. The port disconnects there.
    cut: Option<usize>,
}

impl Record {
    pub fn new(is_stream: bool) -> Self {
        Self { is_stream, bytes: Vec::new(), at: 0, cut: None }
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn add_frame(&mut self, frame: &[u8]) {
        self.add(&length_of(frame));
        self.add(frame);
    }

    /// Says that descriptors come with the next bytes.
    pub fn cut_here(&mut self) {
        self.cut = self.cut.or(Some(self.bytes.len()));
    }

    pub fn peek(&self) -> Next<'_> {
        let end = self.cut.unwrap_or(self.bytes.len());
        let Some((length, rest)) = self.bytes[self.at..end].split_first_chunk::<LENGTH>() else {
            return Next::Nothing;
        };
        let length = u32::from_be_bytes(*length);
        if length > FRAME_MAX {
            return Next::Long(length);
        }
        rest.get(..length as usize).map_or(Next::Nothing, Next::Frame)
    }

    pub fn is_ready(&self) -> bool {
        !matches!(self.peek(), Next::Nothing)
    }

    pub fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// The bytes that have not come to the other end.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Passes up to `most` frames that are to be dropped, and counts them.
    pub fn pass_dropped(&mut self, most: u64) -> Drops {
        let mut drops = Drops::default();
        while drops.total() < most {
            let (reason, bytes) = match self.peek() {
                Next::Frame(frame) if frame.len() < ETHERNET => (TooShort, frame.len()),
                // In a stream, nothing behind it is a frame.
                Next::Long(length) if !self.is_stream => (TooLong, length as usize),
                _ => break,
            };
            drops.add(reason, 1);
            self.at += LENGTH + bytes;
        }
        drops
    }

    /// Passes the frame that has come.
    pub fn pass_frame(&mut self, frame: &[u8]) {
        let Next::Frame(wanted) = self.peek() else { panic!("a frame that was not sent") };
        assert!(wanted == frame, "{} bytes, {} or others were sent", frame.len(), wanted.len());
        self.at += LENGTH + frame.len();
    }

    /// Passes bytes of a stream that have come.
    pub fn pass_bytes(&mut self, bytes: &[u8]) {
        assert!(self.rest().starts_with(bytes), "other bytes than were sent");
        self.at += bytes.len();
    }
}

/// The length in front of a frame.
pub fn length_of(frame: &[u8]) -> [u8; LENGTH] {
    u32::try_from(frame.len()).expect("short").to_be_bytes()
}
