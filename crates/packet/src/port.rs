//! The number of a switch port, which frame metadata and flow keys carry.

use std::fmt;

/// Ports of one switch, at most.
pub const MAX_PORTS: usize = 4096;

/// The number of a port within its switch: always below [`MAX_PORTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(u16);

impl PortId {
    /// The port with this index, unless the index is out of range.
    #[inline]
    pub fn new(index: usize) -> Option<Self> {
        let number = u16::try_from(index).ok()?;
        (index < MAX_PORTS).then_some(Self(number))
    }

    /// The port in the lowest 12 bits of a packed word.
    #[inline]
    pub fn from_low_bits(word: u64) -> Self {
        Self((word & 0xfff) as u16)
    }

    /// The position of this port in a table of ports.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The number as it travels in doorbells and packed tables.
    #[inline]
    pub fn number(self) -> u16 {
        self.0
    }
}

const _: () = assert!(MAX_PORTS == 0xfff + 1, "a port number is 12 bits wide");

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_port_id_is_bounded() {
        assert_eq!(PortId::new(MAX_PORTS - 1).map(PortId::index), Some(MAX_PORTS - 1));
        assert_eq!(PortId::new(MAX_PORTS), None);
        assert_eq!(PortId::new(65536), None);
    }
}
