//! Whether a process is confined.

use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

/// What happens to a call that is not allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is confined.
    Off,
    /// The kernel allows the call, and logs it (audit, dmesg).
    Log,
    /// The kernel refuses the call.
    #[default]
    On,
}

/// A text names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("confinement is on, log or off, not {0:?}")]
pub struct ParseModeError(String);

impl FromStr for Mode {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Self, ParseModeError> {
        match text {
            "off" => Ok(Self::Off),
            "log" => Ok(Self::Log),
            "on" => Ok(Self::On),
            _ => Err(ParseModeError(text.to_owned())),
        }
    }
}

/// The mode of this process. Written once, before it starts threads; read by threads at their
/// start, which are ordered after that.
static MODE: AtomicU8 = AtomicU8::new(0);

pub(crate) fn set(mode: Mode) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// The mode of this process; [`Mode::Off`] before it is confined.
#[must_use]
pub fn mode() -> Mode {
    match MODE.load(Ordering::Relaxed) {
        0 => Mode::Off,
        1 => Mode::Log,
        _ => Mode::On,
    }
}
