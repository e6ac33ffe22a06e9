//! Headers of HTTP/2 (RFC 7541), as far as a gRPC client needs them.
//!
//! The client allows its server no dynamic table. So it writes names and values as they are, and of
//! what it reads, a name that is an index is one of the static table, in which gRPC's are not.

use std::sync::LazyLock;

/// Bytes that are no headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed headers")]
pub struct Malformed;

/// Headers, written.
#[must_use]
pub fn encode(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0); // literal, not to be indexed, with a name of its own
        for text in [name, value] {
            integer(&mut block, 7, text.len());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// Appends an integer whose first byte has this many bits for it, which are the lowest.
fn integer(block: &mut Vec<u8>, bits: u8, value: usize) {
    let most = (1 << bits) - 1;
    if value < most {
        block.push((value & 0xff).to_le_bytes()[0]);
        return;
    }
    block.push((most & 0xff).to_le_bytes()[0]);
    let mut rest = value - most;
    while rest >= 0x80 {
        block.push((rest & 0x7f).to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    block.push((rest & 0x7f).to_le_bytes()[0]);
}

/// The headers of a block, without those whose names are in a table.
///
/// # Errors
/// The bytes are no header block.
pub fn decode(block: &[u8]) -> Result<Vec<(String, String)>, Malformed> {
    let (mut rest, mut headers) = (block, Vec::new());
    while let Some(&first) = rest.first() {
        let bits = match first {
            0x80.. => 7,      // all of it is in a table
            0x40..=0x7f => 6, // literal, to be indexed
            0x20..=0x3f => 5, // size of the dynamic table
            0..=0x1f => 4,    // literal
        };
        let index = take_integer(&mut rest, bits)?;
        if matches!(bits, 5 | 7) {
            continue;
        }
        let name = if index == 0 { take_text(&mut rest)? } else { String::new() };
        let value = take_text(&mut rest)?;
        if index == 0 {
            headers.push((name, value));
        }
    }
    Ok(headers)
}

fn take_integer(rest: &mut &[u8], bits: u8) -> Result<usize, Malformed> {
    let most = (1 << bits) - 1;
    let mut value = usize::from(take_byte(rest)?) & most;
    if value < most {
        return Ok(value);
    }
    for shift in [0, 7, 14] {
        let byte = take_byte(rest)?;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

fn take_byte(rest: &mut &[u8]) -> Result<u8, Malformed> {
    let (&first, others) = rest.split_first().ok_or(Malformed)?;
    *rest = others;
    Ok(first)
}

fn take_text(rest: &mut &[u8]) -> Result<String, Malformed> {
    let is_packed = rest.first().is_some_and(|first| first & 0x80 != 0);
    let length = take_integer(rest, 7)?;
    let (text, others) = rest.split_at_checked(length).ok_or(Malformed)?;
    *rest = others;
    let text = if is_packed { unpack(text)? } else { text.to_vec() };
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Bits of the code of each byte, and of the end. The code is canonical: codes of one length follow
/// each other in the order of their bytes, and a longer code follows the last shorter one.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
const LONGEST: usize = 30;
const END: u16 = 256;

/// The code, by length: the first code of that length, and the bytes of its codes in order.
static CODE: LazyLock<[(u32, Vec<u16>); LONGEST + 1]> = LazyLock::new(|| {
    let mut next = 0;
    std::array::from_fn(|length| {
        let of_length = (0..=END).filter(|&byte| usize::from(LENGTHS[usize::from(byte)]) == length);
        let (first, bytes) = (next, of_length.collect::<Vec<_>>());
        next = (first + u32::try_from(bytes.len()).expect("257 at most")) << 1;
        (first, bytes)
    })
});

/// Bytes in Huffman's code.
fn unpack(packed: &[u8]) -> Result<Vec<u8>, Malformed> {
    let (mut bytes, mut code, mut length) = (Vec::new(), 0, 0);
    let bits = packed.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
    for bit in bits {
        (code, length) = (code << 1 | u32::from(bit), length + 1);
        let (first, of_length) = CODE.get(length).ok_or(Malformed)?;
        let found = code.checked_sub(*first).and_then(|at| of_length.get(at as usize));
        if let Some(&byte) = found {
            bytes.push(u8::try_from(byte).map_err(|_| Malformed)?);
            (code, length) = (0, 0);
        }
    }
    // What is left are the first bits of the end.
    if length < 8 { Ok(bytes) } else { Err(Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_code_is_complete() {
        let sum: u64 = LENGTHS.iter().map(|&length| 1 << (LONGEST - usize::from(length))).sum();
        assert_eq!(sum, 1 << LONGEST);
    }

    /// Examples of RFC 7541, C.4 and C.6.
    #[test]
    fn packed_texts_of_the_standard_are_read() {
        let texts: [(&[u8], &str); 4] = [
            (
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff],
                "www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf], "custom-value"),
            (&[0x64, 0x02], "302"),
        ];
        for (packed, text) in texts {
            assert_eq!(unpack(packed).unwrap(), text.as_bytes());
        }
    }

    #[test]
    fn what_is_written_is_read_and_what_a_table_has_is_passed_over() {
        let long = "x".repeat(400);
        let headers = [("grpc-status", "0"), ("grpc-message", &long)];
        let mut block = vec![0x20, 0x88, 0x5f, 3, b'a', b'b', b'c'];
        block.extend(encode(&headers));
        let read = decode(&block).unwrap();
        let read: Vec<_> = read.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(read, headers);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }
}
