//! The mixing step of the hash functions of flow keys, flow tables and load balancing.

/// A folded multiply: the two halves of the product, XORed. Each bit of the factors reaches nearly
/// every bit of the result.
#[inline]
#[must_use]
pub fn folded_multiply(a: u64, b: u64) -> u64 {
    let (low, high) = a.carrying_mul(b, 0);
    low ^ high
}
