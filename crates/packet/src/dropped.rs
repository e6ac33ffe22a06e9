//! What stands in front of a frame that a switch has dropped, where the frame is shown.
//!
//! ```text
//!  reason:20 (its name, then zeros) │ at:2 │ from:2 │ frame
//! ```
//!
//! Numbers are little-endian. The reason travels by its name, which is the same in all versions.

use crate::port::PortId;

/// Bytes of the name.
const NAME: usize = 20;
/// Bytes of all of it.
const HEAD: usize = NAME + 4;

/// Why and where a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped<'a> {
    /// Name of the reason.
    pub reason: &'a str,
    /// Number of the port that counts the drop.
    pub at: PortId,
    /// Number of the port that the frame came from.
    pub from: PortId,
}

impl<'a> Dropped<'a> {
    /// Bytes of the longest name.
    pub const NAME_MAX: usize = NAME;

    /// The bytes.
    ///
    /// # Panics
    /// If the name is too long.
    #[must_use]
    pub fn write(&self) -> [u8; HEAD] {
        assert!(self.reason.len() <= NAME, "{}: a name of {NAME} bytes at most", self.reason);
        let mut bytes = [0; HEAD];
        bytes[..self.reason.len()].copy_from_slice(self.reason.as_bytes());
        bytes[NAME..NAME + 2].copy_from_slice(&self.at.number().to_le_bytes());
        bytes[NAME + 2..].copy_from_slice(&self.from.number().to_le_bytes());
        bytes
    }

    /// Splits a frame with such bytes in front; `None`: it has none.
    #[must_use]
    pub fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (head, frame) = bytes.split_at_checked(HEAD)?;
        let (name, ports) = head.split_at(NAME);
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        let reason = std::str::from_utf8(&name[..len]).ok()?;
        let port = |at: usize| PortId::new(u16::from_le_bytes([ports[at], ports[at + 1]]).into());
        Some((Self { reason, at: port(0)?, from: port(2)? }, frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_what_is_written_is_read() {
        let port = |number| PortId::new(number).unwrap();
        let dropped = Dropped { reason: "patch_unconnected", at: port(4095), from: port(7) };
        let bytes = [&dropped.write()[..], b"frame"].concat();
        assert_eq!(Dropped::split(&bytes), Some((dropped, &b"frame"[..])));
        let longest = Dropped { reason: "a_reason_of_20_bytes", ..dropped };
        assert_eq!(Dropped::split(&longest.write()).unwrap().0, longest);
        for len in 0..HEAD {
            assert_eq!(Dropped::split(&bytes[..len]), None);
        }
        assert_eq!(Dropped::split(&[0xff; HEAD]), None, "neither a name nor a port");
    }
}
