//! The configuration: a TOML file, read into values that cannot be wrong.
//!
//! Two layers. The `Raw…` types mirror the file (`docs/uvala.toml` shows all of it), refuse unknown
//! keys, and parse each value where it stands, so that every error has a line number. [`Config`] is
//! what the rest of the daemon sees: nothing optional, nothing to check again.

mod file;
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
use file::{Misfit, RawConfig};
pub use switches::SwitchText;
pub use values::parse_workers;

/// Everything an operator can decide.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the socket; `None` for the usual place.
    pub dir: Option<PathBuf>,
    /// Directory where is kept what commands make; `None` for one in that of the socket.
    pub state_dir: Option<PathBuf>,
    /// Starts without it, and removes it.
    pub forget: bool,
    /// Owner, group and permissions of the socket.
    pub socket: SocketConfig,
    /// How much is logged.
    pub log: Level,
    /// What opens network interfaces where the daemon may not: a program or a socket.
    pub helper: Option<PathBuf>,
    /// The worker threads.
    pub workers: WorkersConfig,
    /// What one user may have.
    pub quota: Quota,
    /// Rings of a port whose client does not say.
    pub rings: RingSpec,
    /// Permissions of switches that clients create.
    pub switch_mode: Mode,
    /// Bytes of the region of a trust group whose first port does not say.
    pub group_memory: u64,
    /// Trust groups that are for several users, by name.
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
    /// Permissions; who may write may connect.
    pub mode: Mode,
}

/// The worker threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkersConfig {
    /// How many, at least 1.
    pub count: u32,
    /// Cores they are bound to, in turn; empty for wherever the system puts them.
    pub cpus: Vec<u32>,
    /// Most frames that a worker takes from a port at once.
    pub batch: u16,
    /// What a worker does that has nothing to do.
    pub wait: WaitPolicy,
}

/// What a worker does that has nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitPolicy {
    /// [`WaitPolicy::Yield`], which suits shared cores; where there are cores for all and it pays,
    /// a short spin before it.
    #[default]
    Auto,
    /// Polls for ever: only for a core that nobody else uses.
    Spin,
    /// Gives the core away a few times, then sleeps until a doorbell rings.
    Yield,
    /// Sleeps at once.
    Block,
}

/// Why there is no configuration. Each message is one line.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("config {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Not TOML, an unknown key, a value out of range, a port that cannot be.
    #[error("config {}:{line}: {message}", .path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong, and what would be right.
        message: String,
    },
}

impl Config {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&read(path)?, path)
    }

    /// What the region of a trust group is like whose first port does not say: a quarter of what
    /// its user may have at most.
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

/// What a file says of switches; and what else there is in it, which is for a daemon that begins.
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

/// Reads a text for what `mean` finds in it.
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
