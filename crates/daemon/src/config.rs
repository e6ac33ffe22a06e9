//! The configuration: a TOML file, read into checked values.
//!
//! Two layers. The `Raw…` types mirror the file (`docs/uvala.toml` shows all of it), refuse unknown
//! keys, and parse each value where it stands, so that every error has a line number. Those of
//! switches are the protocol's, because `uvala apply` reads them, too. [`Config`] is what the rest
//! of the daemon uses: every value is there and checked.

mod file;
mod switches;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use port::group::Size;
pub use protocol::config::ConfigError;
use protocol::config::{self, InvalidValue};
use protocol::{Mode, RunBy, toml_error};
pub use tracing::Level;

use crate::log::LogFormat;
use crate::model::plan::{GroupPlan, Quota, SwitchPlan};
use crate::model::specs::RingSpec;
use file::RawConfig;
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
    /// Form of the log.
    pub log_format: LogFormat,
    /// Helper that opens network interfaces where the daemon may not: a program or a socket.
    pub helper: Option<PathBuf>,
    /// Whether the daemon is confined after its start.
    pub confine: confine::Mode,
    /// Directories in which a confined daemon makes sockets for VMs, besides the usual ones.
    pub vm_sockets: Vec<PathBuf>,
    /// The worker threads.
    pub workers: WorkersConfig,
    /// Limits of one user.
    pub quota: Quota,
    /// Rings of a port whose client does not choose.
    pub rings: RingSpec,
    /// Permissions of switches that clients create.
    pub switch_mode: Mode,
    /// Workers of switches that clients create.
    pub switch_workers: RunBy,
    /// Addresses that are learned on a port of an ordinary user if nothing else is set; 0: any
    /// number.
    pub max_macs: u32,
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
    /// CPUs of the workers, in turn; empty: the system chooses.
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

impl Config {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&config::read(path)?, path)
    }

    /// The directory of the saved state of a daemon whose socket is in `dir`.
    #[must_use]
    pub fn saved_state(&self, dir: &Path) -> PathBuf {
        self.state_dir.clone().unwrap_or_else(|| dir.join("state"))
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
        let refuse = |at, message| ConfigError::at(path, text, at, message);
        let raw: RawConfig = toml::from_str(text).map_err(|error| {
            let (at, why) = toml_error::describe(error.message(), error.span());
            refuse(at, why)
        })?;
        raw.into_config().map_err(|InvalidValue { at, error }| refuse(at, error.to_string()))
    }
}

impl Default for Config {
    fn default() -> Self {
        let raw = RawConfig::default();
        raw.into_config().expect("a configuration without names has no bad name")
    }
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
