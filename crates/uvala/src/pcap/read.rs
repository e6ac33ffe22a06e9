//! Reads the frames of a capture file, pcap or pcapng, in either byte order.
//!
//! ```text
//!  pcap      magic:4 version:4 zone:4 sigfigs:4 snap:4 link:4
//!            │ seconds:4 fraction:4 caplen:4 len:4 bytes │ …
//!  pcapng    type:4 length:4 body length:4 │ …            section, interfaces, packets
//! ```
//!
//! Limits: frames of Ethernet interfaces only; a block of at most 16 MiB.

use std::io::{self, Read};

/// Most bytes of a block or a frame.
const BLOCK_MAX: u32 = 16 << 20;
/// The link type of Ethernet.
pub(super) const ETHERNET: u16 = 1;

/// Kinds of blocks of pcapng.
pub(super) mod block {
    pub const SECTION: u32 = 0x0a0d_0d0a;
    pub const INTERFACE: u32 = 1;
    pub const SIMPLE_PACKET: u32 = 3;
    pub const STATISTICS: u32 = 5;
    pub const PACKET: u32 = 6;
    /// In the first word of a section: the order of bytes.
    pub const BYTE_ORDER: u32 = 0x1a2b_3c4d;
}

/// Magic numbers of pcap: with microseconds, and with nanoseconds.
const PCAP: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];

/// Returns frame `number`, counted from 1, of a capture file.
///
/// # Errors
/// The file cannot be read, is no capture file, or has fewer frames.
pub fn frame(file: impl Read, number: u64) -> io::Result<Vec<u8>> {
    find(file, number).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => wrong("the file is cut short, within a header or a frame"),
        _ => error,
    })
}

fn find(file: impl Read, number: u64) -> io::Result<Vec<u8>> {
    let mut reader = Reader::new(file)?;
    let skipped = number.saturating_sub(1);
    for at in 0..skipped {
        reader.next()?.ok_or_else(|| wrong(format!("the file has {at} frames only")))?;
    }
    reader.next()?.ok_or_else(|| wrong(format!("the file has {skipped} frames only")))
}

/// A capture file at its next frame.
struct Reader<R> {
    file: R,
    is_big: bool,
    is_pcapng: bool,
    /// The link types of the interfaces of the section.
    links: Vec<u16>,
}

impl<R: Read> Reader<R> {
    fn new(mut file: R) -> io::Result<Self> {
        let magic = word(&mut file)?;
        let mut reader = Self { file, is_big: false, is_pcapng: false, links: Vec::new() };
        if u32::from_le_bytes(magic) == block::SECTION {
            reader.is_pcapng = true;
            reader.begin_section()?;
            return Ok(reader);
        }
        let orders = [u32::from_le_bytes(magic), u32::from_be_bytes(magic)];
        let order = orders.iter().position(|magic| PCAP.contains(magic));
        reader.is_big = order.ok_or_else(|| wrong("the file is neither pcap nor pcapng"))? == 1;
        let mut head = [0; 20];
        reader.file.read_exact(&mut head)?;
        reader.check_link(reader.u32_at(&head, 16) & 0xffff)?;
        Ok(reader)
    }

    /// The next frame; `None` at the end of the file.
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.is_pcapng { self.next_block_with_frame() } else { self.next_record() }
    }

    fn next_record(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut head = [0; 16];
        if !self.begin(&mut head)? {
            return Ok(None);
        }
        let len = self.u32_at(&head, 8);
        self.take(len).map(Some)
    }

    fn next_block_with_frame(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let mut kind = [0; 4];
            if !self.begin(&mut kind)? {
                return Ok(None);
            }
            // The number of this block is the same in both orders.
            if u32::from_le_bytes(kind) == block::SECTION {
                self.begin_section()?;
                continue;
            }
            let length = self.number()?;
            let body = length.checked_sub(12).ok_or_else(|| wrong("a block is too short"))?;
            let body = self.take(body)?;
            self.number()?;
            if let Some(frame) = self.block(self.u32_at(&kind, 0), body)? {
                return Ok(Some(frame));
            }
        }
    }

    /// The rest of the block that begins a section.
    fn begin_section(&mut self) -> io::Result<()> {
        let (length, order) = (word(&mut self.file)?, word(&mut self.file)?);
        self.is_big = u32::from_be_bytes(order) == block::BYTE_ORDER;
        if !self.is_big && u32::from_le_bytes(order) != block::BYTE_ORDER {
            return Err(wrong("the byte order of a section is unknown"));
        }
        self.links.clear();
        let rest = self.u32_at(&length, 0).checked_sub(12);
        self.take(rest.ok_or_else(|| wrong("a section is too short"))?).map(drop)
    }

    /// The frame of a block, if it has one.
    fn block(&mut self, kind: u32, mut body: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
        let short = || wrong("a block is too short");
        let at = match kind {
            block::INTERFACE => {
                let link = body.first_chunk::<2>().ok_or_else(short)?;
                let link =
                    if self.is_big { u16::from_be_bytes(*link) } else { u16::from_le_bytes(*link) };
                self.links.push(link);
                return Ok(None);
            }
            block::PACKET if body.len() >= 20 => 20,
            block::SIMPLE_PACKET if body.len() >= 4 => 4,
            block::PACKET | block::SIMPLE_PACKET => return Err(short()),
            _ => return Ok(None),
        };
        let interface = if kind == block::PACKET { self.u32_at(&body, 0) } else { 0 };
        let link = usize::try_from(interface).ok().and_then(|at| self.links.get(at));
        self.check_link((*link.ok_or_else(|| wrong("a frame of no interface"))?).into())?;
        let len =
            if kind == block::PACKET { self.u32_at(&body, 12) } else { self.u32_at(&body, 0) };
        body.drain(..at);
        body.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(Some(body))
    }

    fn check_link(&self, link: u32) -> io::Result<()> {
        match link == u32::from(ETHERNET) {
            true => Ok(()),
            false => Err(wrong(format!("link type {link} is not Ethernet"))),
        }
    }

    /// Fills `to`; `false` if the file ends here.
    fn begin(&mut self, to: &mut [u8]) -> io::Result<bool> {
        match self.file.read(&mut to[..1])? {
            0 => Ok(false),
            _ => self.file.read_exact(&mut to[1..]).map(|()| true),
        }
    }

    fn number(&mut self) -> io::Result<u32> {
        let bytes = word(&mut self.file)?;
        Ok(self.u32_at(&bytes, 0))
    }

    fn u32_at(&self, bytes: &[u8], at: usize) -> u32 {
        let bytes = bytes[at..].first_chunk().copied().unwrap_or_default();
        if self.is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    fn take(&mut self, len: u32) -> io::Result<Vec<u8>> {
        if len > BLOCK_MAX {
            return Err(wrong("a block of the file is too long"));
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn word(file: &mut impl Read) -> io::Result<[u8; 4]> {
    let mut word = [0; 4];
    file.read_exact(&mut word)?;
    Ok(word)
}

fn wrong(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pcap(is_big: bool, frames: &[&[u8]]) -> Vec<u8> {
        let number = |value: u32| if is_big { value.to_be_bytes() } else { value.to_le_bytes() };
        let mut file = [PCAP[0], 0x0002_0004, 0, 0, 65535, 1].map(number).concat();
        for frame in frames {
            let len = u32::try_from(frame.len()).unwrap();
            file.extend([1, 2, len, len].map(number).concat());
            file.extend_from_slice(frame);
        }
        file
    }

    #[test]
    fn test_frames_of_a_pcap_file_are_read_in_both_byte_orders() {
        for is_big in [false, true] {
            let file = pcap(is_big, &[b"first frame", b"second"]);
            assert_eq!(frame(&file[..], 1).unwrap(), b"first frame");
            assert_eq!(frame(&file[..], 2).unwrap(), b"second");
            let error = frame(&file[..], 3).unwrap_err().to_string();
            assert_eq!(error, "the file has 2 frames only");
        }
    }

    #[test]
    fn test_no_input_of_a_stranger_panics() {
        let whole = pcap(false, &[b"frame"]);
        for end in 0..whole.len() {
            let error = frame(&whole[..end], 1).unwrap_err().to_string();
            assert!(error.contains("cut short") || end == 24, "{end}: {error}");
        }
        let mut huge = whole;
        huge[32..36].fill(0xff);
        assert!(frame(&huge[..], 1).is_err());
        let section = [block::SECTION, 28, block::BYTE_ORDER, 1, 0, 0, 28];
        let mut file: Vec<u8> = section.map(u32::to_le_bytes).concat();
        file.extend([block::PACKET, 12, 12].map(u32::to_le_bytes).concat());
        assert!(frame(&file[..], 1).is_err(), "a packet without a body");
        assert!(frame(&b"neither"[..], 1).is_err());
    }
}
