//! Names of things inside one switch: ports, and moments in time.

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
    pub(crate) fn from_low_bits(word: u64) -> Self {
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

/// A moment: milliseconds since the daemon started.
///
/// The switch never reads a clock; whoever calls it says what time it is. 51 bits are kept where
/// moments are stored (71 000 years), so they do not wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Now(u64);

impl Now {
    /// The start of the daemon.
    pub const START: Self = Self(0);

    /// The moment `ms` milliseconds after the start.
    #[inline]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the start.
    #[inline]
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// Milliseconds from `earlier` to this moment; 0 when `earlier` is in fact later.
    #[inline]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
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

    #[test]
    fn test_time_that_steps_back_is_no_time() {
        assert_eq!(Now::from_ms(5).ms_since(Now::from_ms(7)), 0);
        assert_eq!(Now::from_ms(7).ms_since(Now::from_ms(5)), 2);
    }
}
