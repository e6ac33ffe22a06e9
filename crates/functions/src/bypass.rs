//! `bypass`: what a chain costs that does nothing.

use client::nf::{Action, Frame, Generated, Handler};
use serde::Deserialize;

use super::Counts;
use super::text::parse;

/// Passes everything on.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bypass {
    /// Reads and writes 60 bytes of each frame.
    touch: bool,
}

impl Bypass {
    /// Reads its file.
    pub fn new(text: &str) -> anyhow::Result<Self> {
        parse(text)
    }

    /// Is from now on what another file says.
    pub fn replace(&mut self, new: Self) {
        *self = new;
    }

    /// Counters: this function has none.
    #[expect(clippy::unused_self, reason = "as of all functions")]
    pub fn counts(&self) -> Counts {
        Counts::new()
    }
}

impl Handler for Bypass {
    fn frame(&mut self, frame: &mut Frame<'_>, _: &mut Generated) -> Action {
        if self.touch {
            let bytes = frame.bytes_mut();
            let end = bytes.len().min(60);
            let sum = bytes[..end].iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            // Twice the same is none: every frame arrives as it was sent.
            bytes[..end].iter_mut().for_each(|byte| *byte ^= sum);
            bytes[..end].iter_mut().for_each(|byte| *byte ^= sum);
        }
        Action::Next
    }
}
