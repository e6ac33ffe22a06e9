//! The hash of keys, and of what programs ask for.

use packet::hash::folded_multiply;

/// A hash of some words, the same on each machine and in each version.
#[inline]
pub(crate) fn mix(seed: u64, words: impl Iterator<Item = u64>) -> u64 {
    /// Two odd numbers without a pattern: digits of π.
    const MIX: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345];
    let begin = folded_multiply(seed ^ MIX[0], MIX[1]);
    let hash = words.fold(begin, |hash, word| folded_multiply(hash ^ word, MIX[1]));
    folded_multiply(hash, MIX[0])
}
