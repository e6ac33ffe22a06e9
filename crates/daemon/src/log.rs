//! The daemon's log on stderr.
//!
//! The reader of the log may go away, and the disk of its file may be full. The daemon goes on
//! moving frames then, and drops the lines that it cannot write.

use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Sends the daemon's log to stderr; in colours, if that is a terminal and `stays` one.
pub fn to_stderr(level: tracing::Level, stays: bool) {
    let to_terminal = stays && rustix::termios::isatty(io::stderr());
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| Forgiving(io::stderr()))
        // Its report of a failed line would go to stderr too, and panic there.
        .log_internal_errors(false)
        .with_ansi(to_terminal)
        .with_target(false)
        .init();
}

/// A writer that drops what it cannot write.
struct Forgiving<W>(W);

impl<W: Write> Write for Forgiving<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// A text from outside, cut to a readable length.
#[must_use]
pub fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(TEXT_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Limit for the characters of such a text; longer than every refusal of a valid request.
const TEXT_MAX: usize = 800;

/// A limit for the rate of log lines: at most one in each pause.
#[derive(Debug)]
pub struct RateLimit {
    pause: Duration,
    last: Option<Instant>,
}

impl RateLimit {
    /// A limit that lets the first line through.
    #[must_use]
    pub fn new(pause: Duration) -> Self {
        Self { pause, last: None }
    }

    /// Whether the next line may be logged. If so, it counts as logged `now`.
    pub fn allows(&mut self, now: Instant) -> bool {
        let rested = self.last.is_none_or(|last| now.duration_since(last) >= self.pause);
        if rested {
            self.last = Some(now);
        }
        rested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_line_that_cannot_be_written_is_lost_and_no_error() {
        let mut full = Forgiving(std::fs::File::options().write(true).open("/dev/full").unwrap());
        assert_eq!(full.write(b"a line\n").unwrap(), 7);
        full.flush().unwrap();
    }

    #[test]
    fn test_what_was_said_is_not_repeated_before_the_pause_is_over() {
        let (mut limit, start) = (RateLimit::new(Duration::from_secs(60)), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let said = [0, 1, 59, 60, 61, 200].map(|seconds| limit.allows(after(seconds)));
        assert_eq!(said, [true, false, false, true, false, true]);
    }
}
