//! The configuration: a TOML file, read into checked values.
//!
//! Two layers. The `Raw…` types mirror the file (`docs/uvala.toml` shows all of it), refuse unknown
//! keys, and parse each value where it stands, so that every error has a line number. [`Config`] is
//! what the rest of the daemon uses: every value is there and checked.

mod file;
mod misfit;
mod switches;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use port::group::Size;
use protocol::{Mode, toml_error};
use serde::de::IgnoredAny;
use thiserror::Error;
pub use tracing::Level;

use crate::model::plan::{GroupPlan, Quota, SwitchPlan};
use crate::model::specs::RingSpec;
use file::RawConfig;
use misfit::Misfit;
pub use switches::SwitchText;
pub use values::parse_workers;

/// All settings that an operator has.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the socket; `None`: the default.
    pub dir: Option<PathBuf>,
    /// Directory of the saved state; `None`: one in that of the socket.
    pub state_dir: Option<PathBuf>,
    /// Removes the saved state before the start.
    pub forget: bool,
    /// Owner, group and permissions of the socket.
    pub socket: SocketConfig,
    /// Log level.
    pub log: Level,
    /// Helper that opens network interfaces where the daemon may not: a program or a socket.
    pub helper: Option<PathBuf>,
    /// The worker threads.
    pub workers: WorkersConfig,
    /// Limits of one user.
    pub quota: Quota,
    /// Rings of a port whose client does not choose.
    pub rings: RingSpec,
    /// Permissions of switches that clients create.
    pub switch_mode: Mode,
    /// Bytes of a trust group's region if its first port does not choose.
    pub group_memory: u64,
    /// Trust groups that several users share, by name.
    pub groups: BTreeMap<String, GroupPlan>,
    /// Switches to make at start.
    pub switches: Vec<SwitchPlan>,
}

/// Owner, group and permissions of the socket.
#[derive(Clone, Copy, Debug)]
pub struct SocketConfig {
    /// Owner; `None` for the daemon's user.
    pub owner: Option<u32>,
    /// Group; `None` for the daemon's group.
    pub group: Option<u32>,
    /// Permissions: users that may write may connect.
    pub mode: Mode,
}

/// The worker threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkersConfig {
    /// Number of workers, at least 1.
    pub count: u32,
    /// Cores of the workers, in turn; empty: the system chooses.
    pub cpus: Vec<u32>,
    /// Largest batch that a worker takes from a port.
    pub batch: u16,
    /// What an idle worker does.
    pub wait: WaitPolicy,
}

/// What an idle worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitPolicy {
    /// [`WaitPolicy::Yield`], which suits shared cores; on idle cores a short spin before it, while
    /// that pays.
    #[default]
    Auto,
    /// Polls without end: for a core that no other program uses.
    Spin,
    /// Yields the core a few times, then sleeps until a doorbell rings.
    Yield,
    /// Sleeps at once.
    Block,
}

/// Why the daemon refuses a configuration, in one line.
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

impl Config {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&read(path)?, path)
    }

    /// Region of a trust group whose first port does not choose: at most a quarter of its user's
    /// memory.
    #[must_use]
    pub fn new_group(&self) -> Size {
        let bytes = self.group_memory.min(self.quota.memory / 4);
        Size { bytes, stride: self.rings.stride, first: None }
    }

    /// Reads a text; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        parse(text, path, RawConfig::into_config)
    }
}

/// Reads the switches of a file, and the names of its other tables, which count when a daemon
/// starts.
pub fn load_switches(path: &Path) -> Result<(Vec<SwitchText>, Vec<String>), ConfigError> {
    let text = read(path)?;
    let switches = parse(&text, path, |mut raw| {
        let mut switches = raw.switches()?;
        let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        let line = |at| ends.partition_point(|&end| end < at) + 1;
        switches.iter_mut().for_each(|it| it.places.map(line));
        raw.into_config().map(|_| switches)
    })?;
    let keys: BTreeMap<String, IgnoredAny> = toml::from_str(&text).unwrap_or_default();
    Ok((switches, keys.into_keys().filter(|key| key != "switch").collect()))
}

/// Reads a text; `mean` turns it into the result.
fn parse<T>(
    text: &str,
    path: &Path,
    mean: impl FnOnce(RawConfig) -> Result<T, Misfit>,
) -> Result<T, ConfigError> {
    let refuse = |at: usize, message: String| ConfigError::Parse {
        path: path.to_path_buf(),
        line: toml_error::line(text, at),
        message,
    };
    let raw: RawConfig = toml::from_str(text).map_err(|error| {
        let (at, why) = toml_error::describe(error.message(), error.span());
        refuse(at, why)
    })?;
    mean(raw).map_err(|Misfit { at, error }| refuse(at, error.to_string()))
}

impl Default for Config {
    fn default() -> Self {
        let raw = RawConfig::default();
        raw.into_config().expect("a configuration without names has no bad name")
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    protocol::file::read_text(path)
        .map_err(|error| ConfigError::Read { path: path.to_path_buf(), error })
}

impl FromStr for WaitPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "spin" => Ok(Self::Spin),
            "yield" => Ok(Self::Yield),
            "block" => Ok(Self::Block),
            _ => Err(format!("expected auto, spin, yield or block, found {text:?}")),
        }
    }
}

impl fmt::Display for WaitPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Spin => "spin",
            Self::Yield => "yield",
            Self::Block => "block",
        })
    }
}

#[cfg(test)]
mod tests;
