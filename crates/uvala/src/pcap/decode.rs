//! A frame as one line of text.

use packet::summary::summary;

use super::{Lost, Seen};

/// The line of a captured frame.
#[must_use]
pub fn line(seen: Seen<'_>) -> String {
    let passed = if seen.is_entering { "in " } else { "out" };
    let what = match seen.lost {
        None => passed.to_owned(),
        Some(Lost { reason, at, from }) if at == from => format!("{reason} at {at}:"),
        Some(Lost { reason, at, from }) => format!("{reason} at {at}, from {from}:"),
    };
    let (time, frame) = (time_of_day(seen.time_ns), summary(seen.bytes));
    format!("{time} {what} {frame}, {} bytes\n", seen.bytes.len())
}

/// The time of day in UTC.
pub fn time_of_day(time_ns: u64) -> String {
    const NS: u64 = 1_000_000_000;
    let (seconds, ns) = (time_ns / NS % 86_400, time_ns % NS);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02}.{ns:09}")
}

#[cfg(test)]
mod tests {
    use packet::MacAddr;

    use super::*;
    use crate::expression::{self, Ends};

    #[test]
    fn test_frames_are_one_line_each() {
        let mac = |last| Some(MacAddr::new([2, 0, 0, 0, 0, last]));
        let ends = Ends { src: mac(1), dst: mac(2), vlan: None };
        for (expression, expected) in [
            ("tcp 10.0.0.1:1024 > 10.0.0.2:80", "tcp 10.0.0.1:1024 > 10.0.0.2:80"),
            ("icmp 10.0.0.1 > 10.0.0.2", "icmp 10.0.0.1 > 10.0.0.2"),
            ("udp [fd00::1]:5 > [fd00::2]:6", "udp [fd00::1]:5 > [fd00::2]:6"),
            ("arp 10.0.0.1 > 10.0.0.2", "arp who-has 10.0.0.2 tell 10.0.0.1"),
        ] {
            let bytes = expression::frame(expression, ends).unwrap();
            let time_ns = 86_399_000_000_001;
            let seen = Seen { bytes: &bytes, time_ns, is_entering: true, lost: None };
            let text = line(seen);
            let head = "23:59:59.000000001 in  02:00:00:00:00:01 > 02:00:00:00:00:02 ";
            assert_eq!(
                text.strip_prefix(head).unwrap(),
                format!("{expected}, {} bytes\n", bytes.len())
            );
        }
    }

    #[test]
    fn test_drops_have_reason_and_ports() {
        let text = |from| {
            let lost = Some(Lost { reason: "no_room", at: "vale0:b", from });
            line(Seen { bytes: &[8; 60], time_ns: 0, is_entering: false, lost })
        };
        let head = "00:00:00.000000000 no_room at vale0:b";
        assert!(text("vale0:a").starts_with(&format!("{head}, from vale0:a: 08:")));
        assert!(text("vale0:b").starts_with(&format!("{head}: 08:")), "{}", text("vale0:b"));
    }
}
