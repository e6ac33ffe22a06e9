//! Which ports of an address are in use.

use std::ops::RangeInclusive;

const WORDS: usize = 1 << 10;
/// Every second port, from 0 and from 1.
const PARITY: [u64; 2] = [0x5555_5555_5555_5555, 0xaaaa_aaaa_aaaa_aaaa];

/// The ports of one address and protocol.
#[derive(Debug)]
pub struct Ports {
    /// A bit for each that may be given out and is not.
    free: Box<[u64; WORDS]>,
    range: RangeInclusive<u16>,
}

impl Ports {
    /// All of a range are free.
    pub fn new(range: RangeInclusive<u16>) -> Self {
        let mut ports = Self { free: Box::new([0; WORDS]), range: range.clone() };
        range.for_each(|port| ports.give_back(port));
        ports
    }

    /// Takes this one; `false`: it is taken.
    pub fn take_this(&mut self, port: u16) -> bool {
        let (word, bit) = place(port);
        let is_free = self.free[word] & bit != 0;
        self.free[word] &= !bit;
        is_free
    }

    /// The one that is wanted, or else any other; of the same parity while there are such
    /// (RFC 4787, REQ-4), and from anywhere, so that no host can guess which (RFC 6056). Of one
    /// that is kept, as most are, it is for its host not to be guessed.
    pub fn take(&mut self, wanted: u16, random: u64) -> Option<u16> {
        if self.take_this(wanted) {
            return Some(wanted);
        }
        let same = usize::from(wanted & 1);
        let port = [same, 1 - same].into_iter().find_map(|odd| self.find(PARITY[odd], random))?;
        self.take_this(port);
        Some(port)
    }

    fn find(&self, mask: u64, random: u64) -> Option<u16> {
        let [word, turn] = [random >> 6, random & 63];
        let first = usize::try_from(word % WORDS as u64).expect("small");
        let turn = u32::try_from(turn).expect("small");
        let found = (first..WORDS).chain(0..first).find(|&word| self.free[word] & mask != 0)?;
        let bits = (self.free[found] & mask).rotate_right(turn);
        let bit = (bits.trailing_zeros() + turn) % 64;
        u16::try_from(found * 64 + usize::try_from(bit).expect("small")).ok()
    }

    /// Frees a port, if it belongs to the range.
    pub fn give_back(&mut self, port: u16) {
        let (word, bit) = place(port);
        if self.range.contains(&port) {
            self.free[word] |= bit;
        }
    }
}

fn place(port: u16) -> (usize, u64) {
    (usize::from(port / 64), 1 << (port % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_the_wanted_port_is_given_then_one_of_its_parity_then_any() {
        let mut ports = Ports::new(1024..=1033);
        assert_eq!(ports.take(1026, 7), Some(1026));
        let even: Vec<u16> = (0..4).map(|random| ports.take(1026, random * 77).unwrap()).collect();
        assert!(even.iter().all(|port| port % 2 == 0), "{even:?}");
        let rest: Vec<u16> = (0..5).map(|random| ports.take(1026, random * 91).unwrap()).collect();
        assert!(rest.iter().all(|port| port % 2 == 1), "{rest:?}");
        assert_eq!(ports.take(9, 1), None);
        ports.give_back(1030);
        assert_eq!(ports.take(9, 1), Some(1030));
        ports.give_back(80);
        assert!(!ports.take_this(80), "it was never ours");
    }
}
