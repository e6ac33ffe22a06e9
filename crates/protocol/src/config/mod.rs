//! The `switch` tables of a configuration file, for the daemon's start and for `uvala apply`.
//!
//! Two layers. The `Raw…` types mirror the file (`docs/uvala.toml` shows all of it), refuse unknown
//! keys, and parse each value where it stands, so that every error has a line number. What comes
//! out, a [`SwitchText`], is checked, and holds requests of the protocol.
//!
//! This crate reads no TOML itself: the daemon and the tool have a parser, and give it these types.

mod switches;
mod validation;
pub mod values;

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use switches::{FileAt, Places, PortText, RawSwitch, SwitchText};
pub use validation::{InvalidValue, ValidationError};

use crate::{file, toml_error};

/// Every table and key at the top of a configuration file. The daemon reads all of them when it
/// starts, and `uvala apply` reads `switch`.
pub const TOP_KEYS: [&str; 15] = [
    "log",
    "log_format",
    "helper",
    "confine",
    "vm_sockets",
    "state_dir",
    "socket",
    "workers",
    "quota",
    "rings",
    "new_switch",
    "new_port",
    "new_group",
    "group",
    "switch",
];

/// Why a configuration file is refused, in one line.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("config {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// Not TOML, an unknown key, a value out of range, or values that contradict each other.
    #[error("config {}:{line}: {message}", .path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The fault and the right form.
        message: String,
    },
}

impl ConfigError {
    /// A fault at a byte offset of the file's text.
    #[must_use]
    pub fn at(path: &Path, text: &str, offset: usize, message: String) -> Self {
        Self::Parse { path: path.to_path_buf(), line: toml_error::line(text, offset), message }
    }
}

/// Reads a configuration file.
///
/// # Errors
/// [`ConfigError::Read`].
pub fn read(path: &Path) -> Result<String, ConfigError> {
    file::read_text(path).map_err(|error| ConfigError::Read { path: path.to_path_buf(), error })
}
