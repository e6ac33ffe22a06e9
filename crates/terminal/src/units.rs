//! Figures for people: three digits and a unit.

use std::time::Duration;

use crate::table::short;

/// A number of frames: `12,345,678`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Frames per second: `1.23 Mpps`.
pub fn packet_rate(per_second: f64) -> String {
    scaled(per_second, "pps")
}

/// Bits per second: `9.87 Gbit/s`.
pub fn bit_rate(per_second: f64) -> String {
    scaled(per_second, "bit/s")
}

/// Bytes, in powers of 1000: `4.98 MB`.
pub fn bytes(number: u64) -> String {
    scaled(number as f64, "B")
}

/// A time given in microseconds: `850 ns`, `12.3 µs`, `1.20 ms`.
pub fn micros(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{:.0} ns", us * 1e3),
        us if us < 1e3 => format!("{} µs", digits(us)),
        us if us < 1e6 => format!("{} ms", digits(us / 1e3)),
        us => format!("{} s", digits(us / 1e6)),
    }
}

/// A number divided by a time; 0 where no time has passed.
pub fn per_second(number: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { number as f64 / seconds } else { 0.0 }
}

fn scaled(value: f64, unit: &str) -> String {
    let text = short(value);
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    format!("{digits} {}{unit}", &text[digits.len()..])
}

/// Three significant digits.
fn digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Two columns, the first as wide as it must be.
pub fn table(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("  {name:<width$}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_figures_have_three_digits_and_a_unit() {
        assert_eq!(count(0), "0");
        assert_eq!(count(123), "123");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(packet_rate(12_345_678.0), "12.3 Mpps");
        assert_eq!(packet_rate(999.0), "999 pps");
        assert_eq!(bit_rate(5.926e9), "5.93 Gbit/s");
        assert_eq!(bytes(4_980_736), "4.98 MB");
        assert_eq!(micros(0.85), "850 ns");
        assert_eq!(micros(12.34), "12.3 µs");
        assert_eq!(micros(1200.0), "1.20 ms");
        assert_eq!(micros(2.5e6), "2.50 s");
    }

    #[test]
    fn test_per_second_of_no_time_is_nothing() {
        assert!(per_second(5, Duration::ZERO).abs() < f64::EPSILON);
    }

    #[test]
    fn test_table_is_aligned() {
        let table = table(&[("a", "1".into()), ("longer", "2".into())]);
        assert_eq!(table, "  a       1\n  longer  2\n");
    }
}
