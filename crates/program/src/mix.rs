//! The hash of keys, and of what programs ask for.

use packet::hash::folded_multiply;

/// Two odd numbers without a pattern: digits of π.
const MIX: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345];

/// Where a hash with this seed begins.
#[inline]
pub(crate) fn begin(seed: u64) -> u64 {
    folded_multiply(seed ^ MIX[0], MIX[1])
}

/// A hash of some words, the same on each machine and in each version.
#[inline]
pub(crate) fn mix(begin: u64, words: impl Iterator<Item = u64>) -> u64 {
    let hash = words.fold(begin, |hash, word| folded_multiply(hash ^ word, MIX[1]));
    folded_multiply(hash, MIX[0])
}

/// Bytes as words, the last one with zeros behind them.
#[inline(always)]
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (words, rest) = bytes.as_chunks::<8>();
    let whole = words.iter().map(|&word| u64::from_le_bytes(word));
    whole.chain((!rest.is_empty()).then(|| word(rest)))
}

/// Writes bytes to as many words, with zeros behind them in the last one.
///
/// Word by word: one that was written in parts, and is read as a whole soon after, waits until the
/// processor has put each part into its cache. Headers and short keys take no loop.
#[inline(always)]
pub(crate) fn put_words(bytes: &[u8], places: &mut [[u8; 8]]) {
    match bytes.len() {
        0 => {}
        1..=8 => places[0] = word(bytes).to_le_bytes(),
        9..=16 => {
            let (first, rest) = bytes.split_at(8);
            places[0] = word(first).to_le_bytes();
            places[1] = word(rest).to_le_bytes();
        }
        _ => words(bytes).zip(places).for_each(|(word, place)| *place = word.to_le_bytes()),
    }
}

/// One to eight bytes, some of which are read twice.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    let number = |four: &[u8; 4]| u64::from(u32::from_le_bytes(*four));
    let count = bytes.len();
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return number(first) | number(last) << (8 * (count - 4));
    }
    let at = |place: usize| u64::from(bytes[place]) << (8 * place);
    at(0) | at(count / 2) | at(count - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_words_are_the_bytes_with_zeros_behind_them() {
        let bytes: Vec<u8> = (1..=24).collect();
        for count in 0..=bytes.len() {
            let mut padded = bytes[..count].to_vec();
            padded.resize(count.next_multiple_of(8), 0);
            let expected = padded.as_chunks().0;
            let whole = expected.iter().map(|&word| u64::from_le_bytes(word));
            assert!(words(&bytes[..count]).eq(whole), "{count} bytes");
            let mut places = [[0xff; 8]; 3];
            put_words(&bytes[..count], &mut places);
            assert_eq!(places[..expected.len()], *expected, "{count} bytes");
            assert!(places[expected.len()..].iter().all(|place| *place == [0xff; 8]));
        }
    }
}
