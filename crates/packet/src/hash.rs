//! The mixing step of the hash functions of flow keys, flow tables and load balancing.

/// A folded multiply: the upper half of the product of `a` and `b`, XORed with its lower half.
#[inline]
#[must_use]
#[allow(clippy::cast_possible_truncation)] // reason: takes a product apart.
pub fn folded_multiply(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}
