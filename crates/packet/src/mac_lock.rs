//! MAC locks: the source addresses that a port may use.

use std::fmt;
use std::str::FromStr;

use crate::error::ParseError;
use crate::mac::MacAddr;

/// Most addresses of a [`MacLock`].
pub const LOCKED_MACS_MAX: usize = 32;

/// The source addresses that a port may use. Its text is `off`, `first:N` or addresses with commas
/// between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "settings are copied, and there are few of them")]
pub enum MacLock {
    /// The port may use any address.
    #[default]
    Off,
    /// The port may use the addresses of this list.
    Only(MacList),
    /// The port may use the first N addresses that it sends from.
    First(u8),
}

impl fmt::Display for MacLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Only(macs) => fmt::Display::fmt(macs, f),
            Self::First(count) => write!(f, "first:{count}"),
        }
    }
}

impl FromStr for MacLock {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let error = || ParseError::new("off, first:N or at most 32 addresses with commas", text);
        if text == "off" {
            return Ok(Self::Off);
        }
        if let Some(count) = text.strip_prefix("first:") {
            let count = count.parse().ok();
            let fits = |&count: &u8| (1..=LOCKED_MACS_MAX).contains(&usize::from(count));
            return count.filter(fits).map(Self::First).ok_or_else(error);
        }
        let mut macs = MacList::default();
        for part in text.split(',') {
            let mac: MacAddr = part.trim().parse().map_err(|_| error())?;
            if !mac.is_station() || !macs.insert(mac) {
                return Err(error());
            }
        }
        Ok(Self::Only(macs))
    }
}

/// At most [`LOCKED_MACS_MAX`] different addresses.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct MacList {
    macs: [MacAddr; LOCKED_MACS_MAX],
    count: u8,
}

impl MacList {
    /// Adds an address; false if there is no room for it.
    #[must_use]
    pub fn insert(&mut self, mac: MacAddr) -> bool {
        if self.contains(mac) {
            return true;
        }
        let Some(free) = self.macs.get_mut(usize::from(self.count)) else { return false };
        *free = mac;
        self.count += 1;
        true
    }

    /// Whether it has this address.
    #[inline]
    #[must_use]
    pub fn contains(&self, mac: MacAddr) -> bool {
        self.as_slice().contains(&mac)
    }

    /// The addresses, in the order of their insertion.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[MacAddr] {
        &self.macs[..usize::from(self.count)]
    }
}

impl fmt::Display for MacList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, mac) in self.as_slice().iter().enumerate() {
            write!(f, "{}{mac}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for MacList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_locks_survive_their_text() {
        for text in ["off", "first:4", "02:00:00:00:00:01", "02:00:00:00:00:01,02:00:00:00:00:02"] {
            assert_eq!(text.parse::<MacLock>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn test_text_that_is_no_lock_is_refused() {
        let many: Vec<_> = (0..33).map(|n| format!("02:00:00:00:00:{n:02x}")).collect();
        let many = many.join(",");
        for text in ["", "on", "first:", "first:0", "first:33", "01:00:5e:00:00:01", "02:", &many] {
            assert!(text.parse::<MacLock>().is_err(), "{text:?} was taken");
        }
    }
}
