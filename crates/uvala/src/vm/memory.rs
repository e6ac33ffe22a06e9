//! How much memory a machine has.

use std::fmt;
use std::str::FromStr;

/// A machine's memory, in whole MiB; by default 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(u64);

/// As much as there are addresses for.
const MOST: u64 = 128 << 20;

/// Text that is no amount of memory.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected MiB, or a number with a unit: 512, 512M or 2G, from 1M to 128T")]
pub struct NoMemory;

impl Memory {
    /// How many MiB.
    pub fn mib(self) -> u64 {
        self.0
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self(1024)
    }
}

/// As QEMU reads it behind `-m`: a number without a unit is one of MiB.
impl FromStr for Memory {
    type Err = NoMemory;

    fn from_str(text: &str) -> Result<Self, NoMemory> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor = match text[digits.len()..].to_ascii_uppercase().as_str() {
            "" | "M" => 1,
            "G" => 1 << 10,
            "T" => 1 << 20,
            _ => return Err(NoMemory),
        };
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse::<u64>().ok().filter(|_| is_number);
        let mib = number.and_then(|number| number.checked_mul(factor));
        mib.filter(|mib| (1..=MOST).contains(mib)).map(Self).ok_or(NoMemory)
    }
}

/// With its unit: without one it is MiB to some, and bytes to others.
impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 1024 {
            0 => write!(f, "{}G", self.0 / 1024),
            _ => write!(f, "{}M", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_number_without_a_unit_is_of_mib_and_nonsense_is_none() {
        let of = |text: &str| text.parse::<Memory>().map(|memory| memory.to_string());
        for (text, said) in
            [("512", "512M"), ("512M", "512M"), ("2048", "2G"), ("1g", "1G"), ("128T", "131072G")]
        {
            assert_eq!(of(text).as_deref(), Ok(said), "{text}");
        }
        let nonsense = ["", "foo", "0", "0G", "M", "-1", "+1", "1.5G", "1Q", "129T", "9999999999G"];
        for text in nonsense.into_iter().chain(["99999999999999999999", "1G,slots=2", "1é"]) {
            assert_eq!(of(text), Err(NoMemory), "{text}");
        }
    }
}
