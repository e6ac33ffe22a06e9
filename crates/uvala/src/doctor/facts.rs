//! The facts that checks look at: sockets, processes of VMMs, and users.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// A socket's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Socket {
    /// There is none, as far as we may look.
    Missing,
    /// There is.
    There {
        /// Who may connect.
        file: Rights,
        /// Who may search the directories above it, the innermost first.
        dirs: Vec<Rights>,
    },
    /// We may not look.
    Unknown,
}

/// Who may do what with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Its permissions.
    pub mode: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Rights {
    /// The rights that a file system tells.
    pub fn of(metadata: &Metadata) -> Self {
        Self { mode: metadata.mode(), uid: metadata.uid(), gid: metadata.gid() }
    }
}

/// A process that is a machine's monitor, by its command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitor {
    /// Its number.
    pub pid: u32,
    /// What it was told.
    pub words: Vec<String>,
    /// Whose it is.
    pub user: Person,
}

/// A user whose machines would connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// Its name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// Its groups.
    pub gids: Vec<u32>,
    /// The name of one of them: its own if there is one of its name.
    pub group: Option<String>,
}
