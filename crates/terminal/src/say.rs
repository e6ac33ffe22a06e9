//! What the program says: on stdout its results, on stderr its remarks.
//!
//! Either may be closed, on a full disk, or read by a program that has seen enough (`… | head`).
//! `println!` aborts then, in the middle of a run; clippy keeps it out of this crate. Here a result
//! that is read no more is [`Unread`], which ends the program quietly; other errors are
//! errors. A remark that cannot be made is not made.

use std::fmt;
use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::Serialize;

/// The reader of stdout is gone: no failure, but nothing more is worth printing.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the reader of the output is gone")]
pub struct Unread;

/// Writes to stdout, at once.
pub fn out(text: impl fmt::Display) -> Result<()> {
    write_to(&mut io::stdout().lock(), &text.to_string())
}

/// The width of the terminal that stdout is; `None` if it is none, or does not say.
pub fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    // Narrower, it would be words on lines of their own.
    (size.ws_col > 0).then(|| usize::from(size.ws_col).max(40))
}

/// Writes a value as one line of JSON.
pub fn json(value: &impl Serialize) -> Result<()> {
    out(serde_json::to_string(value)? + "\n")
}

fn write_to(to: &mut impl Write, text: &str) -> Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Unread.into()),
        other => other.context("cannot write the output"),
    }
}

/// Writes a line to stderr, if it takes it.
pub fn remark(line: impl fmt::Display) {
    // There is no place left to complain about a place for complaints.
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn test_a_reader_that_is_gone_is_told_from_a_full_disk() {
        let error = |kind| write_to(&mut Broken(kind), "text").unwrap_err();
        assert!(error(io::ErrorKind::BrokenPipe).is::<Unread>());
        let full = error(io::ErrorKind::StorageFull);
        assert!(!full.is::<Unread>());
        assert!(format!("{full:#}").starts_with("cannot write the output: "), "{full:#}");
    }
}
