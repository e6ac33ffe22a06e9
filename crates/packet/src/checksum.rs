//! The Internet checksum (RFC 1071), and how a change of a packet changes it (RFC 1624).

use crate::bytes::u16_at;

/// A one's-complement sum of 16-bit words, before its carries are added.
///
/// Words are added as they lie in memory, in the machine's byte order and two at a time: the sum
/// of swapped words is the swapped sum (RFC 1071, 2 B). 64 bits hold the sum of 16 GiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The sum of `bytes`, with a zero behind an odd last byte.
    #[inline]
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        let total: u64 = words.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        Self(total + u64::from(u32::from_ne_bytes(last)))
    }

    /// The sum of the header that TCP and UDP put in front of themselves for the checksum: the IP
    /// `addresses`, the protocol, and the length of the transport header and its payload.
    #[inline]
    #[must_use]
    pub fn pseudo_header(addresses: &[u8], protocol: u8, length: u16) -> Self {
        Self::of(addresses).and_word(protocol.into()).and_word(length)
    }

    /// The sum of both. The second must begin an even number of bytes behind the first.
    #[inline]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The sum with one more word, which the packet has in network order.
    #[inline]
    #[must_use]
    pub const fn and_word(self, word: u16) -> Self {
        Self(self.0 + word.to_be() as u64)
    }

    /// The sum of `count` runs of bytes that are alike, each of an even length.
    #[inline]
    #[must_use]
    pub const fn times(self, count: u64) -> Self {
        Self(self.0 * count)
    }

    /// The sum of the same bytes if they begin an odd number of bytes behind the first.
    #[inline]
    #[must_use]
    pub const fn at_odd(self) -> Self {
        Self(self.fold().to_be().swap_bytes() as u64)
    }

    /// The sum with all carries added. Over a packet with a right checksum it is 0xffff.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "after four steps no carry is left")]
    pub const fn fold(self) -> u16 {
        let sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        debug_assert!(sum <= 0xffff);
        u16::from_be(sum as u16)
    }

    /// The checksum of an IPv4 header, an ICMP message or a TCP segment.
    #[inline]
    #[must_use]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// The checksum of a UDP datagram, where 0 says that there is none (RFC 768). All ones is the
    /// same number, for TCP too.
    #[inline]
    #[must_use]
    pub const fn nonzero_checksum(self) -> u16 {
        match self.checksum() {
            0 => u16::MAX,
            checksum => checksum,
        }
    }
}

/// The Internet checksum of `bytes`; 0 if they contain their right checksum.
#[inline]
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::of(bytes).checksum()
}

/// What a change of words does to the checksums over them (RFC 1624, equation 3).
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta(u32);

impl Delta {
    /// Writes a word, and adds its change.
    #[inline]
    pub fn put(&mut self, bytes: &mut [u8], at: usize, new: u16) {
        self.changed(u16_at(bytes, at), new);
        bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
    }

    /// Adds the change of a word.
    #[inline]
    pub fn changed(&mut self, old: u16, new: u16) {
        self.0 += u32::from(!old) + u32::from(new);
    }

    /// Both changes.
    #[inline]
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The checksum after the change of one that was `checksum` before.
    #[inline]
    #[must_use]
    pub fn apply(self, checksum: u16) -> u16 {
        let sum = u32::from(!checksum) + self.0;
        let sum = (sum & 0xffff) + (sum >> 16);
        !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The checksum word by word, in the plainest way.
    fn plain(bytes: &[u8]) -> u16 {
        let words = bytes.chunks(2).map(|pair| {
            u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
        });
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap()
    }

    #[test]
    fn test_a_checksum_is_that_of_the_words_one_by_one() {
        let bytes: Vec<u8> = (0..64u8).map(|n| n.wrapping_mul(0x9d) ^ 0xc5).collect();
        for (from, to) in (0..8).flat_map(|from| (from..64).map(move |to| (from, to))) {
            assert_eq!(checksum(&bytes[from..to]), plain(&bytes[from..to]), "{from}..{to}");
        }
        assert_eq!(
            [checksum(&[0; 20]), checksum(&[0xff; 1514]), checksum(&[])],
            [0xffff, 0, 0xffff]
        );
    }

    #[test]
    fn test_the_largest_sum_is_folded_and_zero_is_written_as_all_ones() {
        assert_eq!(Sum(u64::MAX).fold(), 0xffff);
        assert_eq!(
            (Sum::of(&[0xff; 4]).checksum(), Sum::of(&[0xff; 4]).nonzero_checksum()),
            (0, 0xffff)
        );
        assert_eq!(Sum::of(&[0; 4]).nonzero_checksum(), 0xffff);
    }

    proptest! {
        #[test]
        fn prop_parts_add_up(bytes in prop::collection::vec(any::<u8>(), 0..200), cut: usize) {
            let cut = cut % (bytes.len() + 1);
            let (first, second) = bytes.split_at(cut);
            let second = Sum::of(second);
            let second = if cut.is_multiple_of(2) { second } else { second.at_odd() };
            prop_assert_eq!(Sum::of(first).and(second).checksum(), plain(&bytes));
        }

        #[test]
        fn prop_a_repeated_word_counts_as_often(word: u16, count in 0usize..3000) {
            let bytes = word.to_be_bytes().repeat(count);
            let sum = Sum::default().and_word(word).times(count as u64);
            prop_assert_eq!(sum.checksum(), plain(&bytes));
        }

        #[test]
        fn prop_a_changed_word_changes_the_checksum(
            mut bytes in prop::collection::vec(any::<u8>(), 2..100), at: usize, new: u16,
        ) {
            let (mut delta, at) = (Delta::default(), at % (bytes.len() / 2) * 2);
            let before = checksum(&bytes);
            delta.put(&mut bytes, at, new);
            let [after, right] = [delta.apply(before), checksum(&bytes)];
            // Zero and all ones are one number.
            let is_zero = |sum: u16| [0, u16::MAX].contains(&sum);
            prop_assert!(after == right || is_zero(after) && is_zero(right));
        }
    }
}
