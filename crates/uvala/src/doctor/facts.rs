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
        /// The rights to connect.
        file: Rights,
        /// The rights to search the directories above it, the innermost first.
        dirs: Vec<Rights>,
    },
    /// We may not look.
    Unknown,
}

/// Owner, group and mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Permissions of the file.
    pub mode: u32,
    /// Owner of the file.
    pub uid: u32,
    /// Group of the file.
    pub gid: u32,
}

impl Rights {
    /// The rights that a file system tells.
    pub fn of(metadata: &Metadata) -> Self {
        Self { mode: metadata.mode(), uid: metadata.uid(), gid: metadata.gid() }
    }
}

/// A process that is a machine's VMM, by its command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vmm {
    /// PID of the process.
    pub pid: u32,
    /// Arguments of the process.
    pub words: Vec<String>,
    /// User that runs it.
    pub user: Person,
}

/// A user whose machines would connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// Name of the user.
    pub name: String,
    /// UID of the user.
    pub uid: u32,
    /// Groups of the user.
    pub gids: Vec<u32>,
    /// The name of one of them: its own if there is one of its name.
    pub group: Option<String>,
}
