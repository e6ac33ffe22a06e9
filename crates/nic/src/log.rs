//! Lines on stderr, of which a VMM cannot cause more than some: it may come and go.

use std::fmt::Display;

use terminal::say;

/// Lines in a minute.
const LINES: u32 = 40;
const MINUTE_NS: u64 = 60_000_000_000;

/// A log.
#[derive(Debug, Default)]
pub struct Log {
    since_ns: u64,
    lines: u32,
}

impl Log {
    /// Writes a line, unless there were too many.
    pub fn line(&mut self, now_ns: u64, text: impl Display) {
        if now_ns - self.since_ns.min(now_ns) >= MINUTE_NS {
            (self.since_ns, self.lines) = (now_ns, 0);
        }
        self.lines += 1;
        match self.lines {
            ..LINES => say::remark(format_args!("uvala-device: {text}")),
            LINES => say::remark("uvala-device: more lines of this minute are left out"),
            _ => self.lines = LINES + 1,
        }
    }
}
