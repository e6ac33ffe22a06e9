//! The daemon's log: lines on stderr, as far as stderr takes them.
//!
//! Whoever reads the log may go away, and the disk that it is written to may be full. Neither is a
//! reason to stop moving frames, so a line that cannot be written is lost and nothing more happens.

use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Sends the daemon's log to stderr, as the process that is the daemon does. In colours, if that is
/// a terminal and `stays` one.
pub fn to_stderr(level: tracing::Level, stays: bool) {
    let to_terminal = stays && rustix::termios::isatty(io::stderr());
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| Forgiving(io::stderr()))
        // What it says about a line that failed goes to stderr too, and there it panics.
        .log_internal_errors(false)
        .with_ansi(to_terminal)
        .with_target(false)
        .init();
}

/// Drops what cannot be written.
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

/// Characters of such a text. No refusal of an honest call is as long.
const TEXT_MAX: usize = 800;

/// Lets something be said at most once in a while.
#[derive(Debug)]
pub struct Seldom {
    pause: Duration,
    last: Option<Instant>,
}

impl Seldom {
    /// Nothing was said yet.
    #[must_use]
    pub fn new(pause: Duration) -> Self {
        Self { pause, last: None }
    }

    /// May it be said again? Then it was said `now`.
    pub fn may_say(&mut self, now: Instant) -> bool {
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
        let (mut seldom, start) = (Seldom::new(Duration::from_secs(60)), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let said = [0, 1, 59, 60, 61, 200].map(|seconds| seldom.may_say(after(seconds)));
        assert_eq!(said, [true, false, false, true, false, true]);
    }
}
