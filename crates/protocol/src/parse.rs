//! Values of command lines and configuration files: sizes, numbers, times, VLAN numbers.
//!
//! Each parser returns one line that shows the right form. Values with a type of their own
//! ([`MacAddr`](packet::MacAddr), [`Mode`](crate::Mode), names) implement `FromStr` instead.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes with or without a unit: `77`, `512MiB`, `2G`.
///
/// # Errors
/// The text is no size, or more than 64 bits hold.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim() {
        "" | "B" => Some(0),
        "K" | "KiB" => Some(10),
        "M" | "MiB" => Some(20),
        "G" | "GiB" => Some(30),
        "T" | "TiB" => Some(40),
        _ => None,
    };
    let number: Option<u64> = digits.parse().ok();
    let bytes = number.zip(shift).and_then(|(n, shift)| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("expected a size such as 512MiB or 16GiB, found {text:?}"))
}

/// A set of reserved group addresses: `0x4000`, `16384`. Bit N stands for 01:80:C2:00:00:0N.
///
/// # Errors
/// The text is no number of 16 bits, or it names PAUSE.
pub fn group_fwd_mask(text: &str) -> Result<u16, String> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let number = hex.map_or_else(|| text.parse(), |hex| u16::from_str_radix(hex, 16));
    let wrong = |_| format!("expected a mask of 16 bits such as 0x4000 (LLDP), found {text:?}");
    check_group_fwd_mask(number.map_err(wrong)?)
}

/// A set of reserved group addresses that a switch may forward: without PAUSE (bit 1), which is
/// meant for the other end of one link.
///
/// # Errors
/// PAUSE is among them.
pub fn check_group_fwd_mask(mask: u16) -> Result<u16, String> {
    const PAUSE: u16 = 1 << 1;
    match mask & PAUSE {
        0 => Ok(mask),
        _ => Err(format!("bit 1 is PAUSE, which ends at the switch: take {:#06x}", mask & !PAUSE)),
    }
}

/// A number with or without one of the suffixes k, M, G: `500`, `10k`, `1.5M`.
///
/// # Errors
/// The text is no whole number.
pub fn number(text: &str) -> Result<u64, String> {
    scaled(text).ok_or_else(|| format!("'{text}' is not a number such as 500, 10k or 1.5M"))
}

fn scaled(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1_000_u128),
        (at, 'M' | 'm') => (&text[..at], 1_000_000),
        (at, 'G' | 'g') => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_plain(whole) || !is_plain(part) || part.len() > 9 {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let value = format!("{whole}{part}").parse::<u128>().ok()?.checked_mul(unit)?;
    // 1.5 is no count: the suffix has to make it whole.
    value.is_multiple_of(scale).then_some(value / scale)?.try_into().ok()
}

/// A [`number`] other than 0.
///
/// # Errors
/// The text is no number, or it is 0.
pub fn positive(text: &str) -> Result<u64, String> {
    match number(text)? {
        0 => Err("0 is too little".to_owned()),
        number => Ok(number),
    }
}

/// A [`number`] of at most 32 bits.
///
/// # Errors
/// The text is no number, or is too large.
pub fn number32(text: &str) -> Result<u32, String> {
    number(text)?.try_into().map_err(|_| format!("{text} is too much"))
}

/// A [`positive`] number of at most 32 bits.
///
/// # Errors
/// The text is no number, is 0, or is too large.
pub fn positive32(text: &str) -> Result<u32, String> {
    positive(text)?.try_into().map_err(|_| format!("{text} is too much"))
}

/// A [`number`] of at most 16 bits.
///
/// # Errors
/// The text is no number, or is too large.
pub fn number16(text: &str) -> Result<u16, String> {
    number(text)?.try_into().map_err(|_| format!("{text} is too much"))
}

/// A parser of whole numbers of this range.
pub fn within<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected a number from {} to {}", range.start(), range.end()))
    }
}

/// A VLAN number, 1 to 4094.
///
/// # Errors
/// The text is no VLAN number.
pub fn vlan(text: &str) -> Result<u16, String> {
    let vlan = text.parse().ok().filter(|vlan| (1..=4094).contains(vlan));
    vlan.ok_or_else(|| format!("'{text}' is not a VLAN ID, 1 to 4094"))
}

/// A time in seconds: `10`, `0.5`.
///
/// # Errors
/// The text is no time.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| format!("'{text}' is not a number of seconds such as 10 or 0.5"))
}

/// A time in [`seconds`] other than 0.
///
/// # Errors
/// The text is no time, or it is 0.
pub fn positive_seconds(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err("0 is too little".to_owned()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_mask_of_groups_has_16_bits_without_pause() {
        assert_eq!(group_fwd_mask("0x4008"), Ok(0x4008));
        assert_eq!(group_fwd_mask("5"), Ok(5));
        assert_eq!(group_fwd_mask("0xfffd"), Ok(0xfffd));
        assert!(group_fwd_mask("0xffff").unwrap_err().contains("0xfffd"));
        for text in ["", "x", "0x", "0x10000", "65536", "-1"] {
            assert!(group_fwd_mask(text).unwrap_err().contains("0x4000"), "{text}");
        }
    }

    #[test]
    fn test_what_is_not_within_a_range_is_told_the_range() {
        let usecs = within(1..=1000_u16);
        assert_eq!((usecs("1"), usecs("1000")), (Ok(1), Ok(1000)));
        for wrong in ["0", "1001", "70000", "99999999999999999999", "-1", "x", ""] {
            assert_eq!(usecs(wrong).unwrap_err(), "expected a number from 1 to 1000", "{wrong}");
        }
    }

    #[test]
    fn test_sizes_take_suffixes() {
        assert_eq!(bytes("512MiB"), Ok(512 << 20));
        assert_eq!(bytes("2 G"), Ok(2 << 30));
        assert_eq!(bytes("77"), Ok(77));
        assert!(bytes("99999999999T").is_err());
    }

    #[test]
    fn test_number_knows_units_and_fractions() {
        for (text, value) in
            [("0", 0), ("512", 512), ("10k", 10_000), ("1.5M", 1_500_000), ("2G", 2_000_000_000)]
        {
            assert_eq!(number(text), Ok(value), "{text}");
        }
        for bad in ["", "k", "-1", "+1", "1.5", "1e6", ".5k", "1.0001k", "99999999999G", "1kk"] {
            assert!(number(bad).is_err(), "{bad}");
        }
        assert!(positive("0").is_err());
    }

    #[test]
    fn test_seconds_take_fractions_and_refuse_nonsense() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "-1", "nan", "inf", "1s", "1e300"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
