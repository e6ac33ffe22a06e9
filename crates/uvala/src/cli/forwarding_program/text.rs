//! Keys and values of maps as people write them, which depends on how many bytes they have.

use std::net::IpAddr;

use packet::MacAddr;
use program::image::{from_hex, to_hex};

/// The bytes of a text.
pub fn parse(text: &str, bytes: usize, is_lpm: bool) -> Result<Vec<u8>, String> {
    let read = match text.strip_prefix("hex:") {
        Some(digits) => from_hex(digits),
        None if is_lpm => prefix(text),
        None => number(text, bytes).or_else(|| address(text)),
    };
    match read {
        Some(read) if read.len() == bytes => Ok(read),
        Some(read) => Err(format!("it is {} bytes long; expected {bytes}", read.len())),
        None if !is_lpm && is_number(text) => Err(format!("it does not fit into {bytes} bytes")),
        None if is_lpm => Err("expected a network such as 10.0.0.0/8, or hex:DIGITS".to_owned()),
        None => Err("expected a number, a MAC or IP address, port:NAME, or hex:DIGITS".to_owned()),
    }
}

/// A number in so many bytes, the lowest first.
fn number(text: &str, bytes: usize) -> Option<Vec<u8>> {
    let number: u64 = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    let all = number.to_le_bytes();
    let (low, high) = all.split_at(bytes.min(all.len()));
    let mut read = low.to_vec();
    read.resize(bytes, 0);
    high.iter().all(|&byte| byte == 0).then_some(read)
}

/// Whether a text is a number, of any size.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix("0x");
    let is_digit = |c: char| c.is_digit(if digits.is_some() { 16 } else { 10 });
    let digits = digits.unwrap_or(text);
    !digits.is_empty() && digits.chars().all(is_digit)
}

fn address(text: &str) -> Option<Vec<u8>> {
    let mac = text.parse::<MacAddr>().ok().map(|mac| mac.octets().to_vec());
    mac.or_else(|| text.parse().ok().map(octets))
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The key of an `lpm` map: bits, and an address.
fn prefix(text: &str) -> Option<Vec<u8>> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
        None => (text, None),
    };
    let octets = octets(address.parse().ok()?);
    let all = u32::try_from(octets.len() * 8).ok()?;
    let bits = bits.unwrap_or(all);
    (bits <= all).then(|| [bits.to_le_bytes().to_vec(), octets].concat())
}

/// The text of some bytes, given in hexadecimal digits.
pub fn show(digits: &str, bytes: usize, is_lpm: bool) -> String {
    let read = from_hex(digits).filter(|read| read.len() == bytes);
    let Some(read) = read else { return digits.to_owned() };
    match read.as_slice() {
        &[a, b, c, d, ref octets @ ..] if is_lpm => {
            let bits = u32::from_le_bytes([a, b, c, d]);
            match <[u8; 4]>::try_from(octets) {
                Ok(octets) => format!("{}/{bits}", IpAddr::from(octets)),
                Err(_) => match <[u8; 16]>::try_from(octets) {
                    Ok(octets) => format!("{}/{bits}", IpAddr::from(octets)),
                    Err(_) => format!("hex:{}", to_hex(&read)),
                },
            }
        }
        &[a, b, c, d, e, f] => MacAddr::new([a, b, c, d, e, f]).to_string(),
        all if matches!(all.len(), 1 | 2 | 4 | 8) => {
            let mut number = [0; 8];
            number[..all.len()].copy_from_slice(all);
            u64::from_le_bytes(number).to_string()
        }
        _ => format!("hex:{}", to_hex(&read)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_keys_survive_their_text() {
        for (text, bytes, is_lpm) in [
            ("02:00:00:00:00:01", 6, false),
            ("7", 1, false),
            ("4000000000", 4, false),
            ("10.0.0.0/8", 8, true),
            ("fd00::/64", 20, true),
            ("hex:010203", 3, false),
        ] {
            let read = parse(text, bytes, is_lpm).expect(text);
            assert_eq!(show(&to_hex(&read), bytes, is_lpm), text);
        }
        assert_eq!(parse("10.0.0.1", 4, false), Ok(vec![10, 0, 0, 1]));
        assert_eq!(parse("0x0100", 2, false), Ok(vec![0, 1]));
    }

    #[test]
    fn test_a_number_that_does_not_fit_is_called_so() {
        for (text, bytes) in [("256", 1), ("0x10000", 2), ("99999999999999999999", 8)] {
            let why = parse(text, bytes, false).unwrap_err();
            assert_eq!(why, format!("it does not fit into {bytes} bytes"));
        }
    }

    #[test]
    fn test_a_text_that_does_not_fit_is_refused() {
        for (text, bytes, is_lpm) in [
            ("256", 1, false),
            ("02:00:00:00:00:01", 4, false),
            ("10.0.0.0/33", 8, true),
            ("10.0.0.0/8", 20, true),
            ("web", 4, false),
            ("hex:0", 1, false),
        ] {
            assert!(parse(text, bytes, is_lpm).is_err(), "{text}");
        }
    }
}
