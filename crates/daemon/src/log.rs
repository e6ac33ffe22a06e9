//! The daemon's log, on stderr or in the journal.
//!
//! The reader of the log may go away, and the disk of its file may be full. The daemon goes on
//! moving frames then, and drops the lines that it cannot write.

mod format;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

pub use format::LogFormat;
use format::{Journal, JournalSocket, Json, is_journal};

/// The journal's socket.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// Begins the daemon's log: on stderr, in colours if that is a terminal and `stays` one; in the
/// journal, if that is what stderr leads to.
pub fn begin(level: tracing::Level, form: LogFormat, stays: bool) {
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        // Its report of a failed line would go to stderr too, and panic there.
        .log_internal_errors(false);
    match (form, journal(form, stays)) {
        (_, Some(journal)) => log.event_format(Journal).with_writer(journal).init(),
        (LogFormat::Json, None) => {
            log.event_format(Json).with_writer(|| Forgiving(io::stderr())).init();
        }
        (LogFormat::Auto | LogFormat::Text, None) => {
            let to_terminal = stays && rustix::termios::isatty(io::stderr());
            let log = log.with_writer(|| Forgiving(io::stderr())).with_ansi(to_terminal);
            log.with_target(false).init();
        }
    }
}

/// The journal, if the log goes there.
fn journal(form: LogFormat, stays: bool) -> Option<JournalSocket> {
    let stream = std::env::var("JOURNAL_STREAM").ok();
    let leads_there = stays && is_journal(io::stderr().as_fd(), stream.as_deref());
    let is_wanted = form == LogFormat::Auto && leads_there;
    is_wanted.then(|| JournalSocket::connect(Path::new(JOURNAL)).ok()).flatten()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_line_that_cannot_be_written_is_lost_and_no_error() {
        let mut full = Forgiving(std::fs::File::options().write(true).open("/dev/full").unwrap());
        assert_eq!(full.write(b"a line\n").unwrap(), 7);
        full.flush().unwrap();
    }
}
