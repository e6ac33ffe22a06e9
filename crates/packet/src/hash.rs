//! The mixing step of the hash functions of flow keys, flow tables and load balancing, and a hash
//! of names.

/// A folded multiply: the two halves of the product, XORed. Each bit of the factors reaches nearly
/// every bit of the result.
#[inline]
#[must_use]
pub fn folded_multiply(a: u64, b: u64) -> u64 {
    let (low, high) = a.carrying_mul(b, 0);
    low ^ high
}

/// FNV-1a. The hashes of names are in saved state and on the wire, so they stay from version to
/// version.
#[must_use]
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    bytes.into_iter().fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that the authors of the function publish.
    #[test]
    fn fnv1a_gives_the_published_values() {
        for (text, hash) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(fnv1a(text.bytes()), hash, "{text}");
        }
    }
}
