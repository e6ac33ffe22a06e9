//! Files, devices, TCP and signals, by Landlock.
//!
//! Landlock refuses what it handles and no rule allows, at the time a file is opened: descriptors
//! that are open stay as they are. It does not handle connections to UNIX sockets, `stat`, or
//! changes of owner and mode.

#![allow(unsafe_code)] // UNSAFETY: Landlock's calls are in no safe wrapper that we use.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Rights on files, by `linux/landlock.h`.
mod right {
    pub const EXECUTE: u64 = 1 << 0;
    pub const WRITE_FILE: u64 = 1 << 1;
    pub const READ_FILE: u64 = 1 << 2;
    pub const READ_DIR: u64 = 1 << 3;
    pub const REMOVE_DIR: u64 = 1 << 4;
    pub const REMOVE_FILE: u64 = 1 << 5;
    pub const MAKE_CHAR: u64 = 1 << 6;
    pub const MAKE_DIR: u64 = 1 << 7;
    pub const MAKE_REG: u64 = 1 << 8;
    pub const MAKE_SOCK: u64 = 1 << 9;
    pub const MAKE_FIFO: u64 = 1 << 10;
    pub const MAKE_BLOCK: u64 = 1 << 11;
    pub const MAKE_SYM: u64 = 1 << 12;
    pub const REFER: u64 = 1 << 13;
    pub const TRUNCATE: u64 = 1 << 14;
    pub const IOCTL_DEV: u64 = 1 << 15;

    /// The rights of Landlock's first version.
    pub const FIRST: u64 = EXECUTE
        | WRITE_FILE
        | READ_FILE
        | READ_DIR
        | REMOVE_DIR
        | REMOVE_FILE
        | MAKE_CHAR
        | MAKE_DIR
        | MAKE_REG
        | MAKE_SOCK
        | MAKE_FIFO
        | MAKE_BLOCK
        | MAKE_SYM;
    /// The rights that a rule for a file may have.
    pub const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
}

/// To connect TCP sockets, and to bind them, too.
const CONNECT_TCP: u64 = 2;
const TCP: u64 = 3;
/// Landlock's version from which on it knows TCP.
const TCP_SINCE: i32 = 4;
/// Abstract UNIX sockets, and signals, of processes outside.
const SCOPE_ABSTRACT_SOCKETS: u64 = 1;
const SCOPE_SIGNALS: u64 = 2;

/// What a ruleset handles: `landlock_ruleset_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handled {
    files: u64,
    net: u64,
    scopes: u64,
}

/// A rule for a path: `landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    rights: u64,
    parent: RawFd,
}

/// A rule for a port: `landlock_net_port_attr`.
#[repr(C)]
struct NetPort {
    rights: u64,
    port: u64,
}
const _: () = assert!(size_of::<Handled>() == 24 && size_of::<Beneath>() == 12);
const _: () = assert!(size_of::<NetPort>() == 16);

/// What a process may do below a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read files and list directories.
    Read,
    /// Read and write files that are there.
    Write,
    /// Read and write a device, and command it.
    Device,
    /// Make and remove sockets.
    Sockets,
    /// Everything but to execute files and make devices.
    Own,
}

impl Access {
    fn rights(self) -> u64 {
        use right::{
            IOCTL_DEV, MAKE_DIR, MAKE_REG, MAKE_SOCK, READ_DIR, READ_FILE, REFER, REMOVE_DIR,
            REMOVE_FILE, TRUNCATE, WRITE_FILE,
        };
        let write = READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE;
        match self {
            Self::Read => READ_FILE | READ_DIR,
            Self::Write => write,
            Self::Device => READ_FILE | WRITE_FILE | IOCTL_DEV,
            Self::Sockets => MAKE_SOCK | REMOVE_FILE,
            Self::Own => write | REMOVE_FILE | REMOVE_DIR | MAKE_REG | MAKE_DIR | MAKE_SOCK | REFER,
        }
    }
}

/// A path and what a process may do below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    path: PathBuf,
    access: Access,
}

/// What a process may reach.
#[derive(Clone, Debug, Default)]
pub struct Files {
    places: Vec<Place>,
    ports: Vec<u16>,
    abstract_sockets: bool,
}

impl Files {
    /// Nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// What the libraries of a client ask for: cores, random numbers, and what `/proc` says of the
    /// process.
    #[must_use]
    pub fn of_a_client() -> Self {
        Self::none()
            .and("/proc", Access::Read)
            .and("/sys/devices/system/cpu", Access::Read)
            .and("/dev/null", Access::Write)
            .and("/dev/urandom", Access::Read)
    }

    /// Also this, if it is there when the process is confined.
    #[must_use]
    pub fn and(mut self, path: impl AsRef<Path>, access: Access) -> Self {
        self.places.push(Place { path: path.as_ref().to_owned(), access });
        self
    }

    /// Also servers at this TCP port.
    #[must_use]
    pub fn and_tcp(mut self, port: u16) -> Self {
        self.ports.push(port);
        self
    }

    /// Also abstract UNIX sockets of other processes.
    #[must_use]
    pub fn and_abstract_sockets(mut self, allowed: bool) -> Self {
        self.abstract_sockets |= allowed;
        self
    }

    /// Confines the calling thread and those that it starts; returns Landlock's version.
    pub(crate) fn confine(&self) -> Result<i32, String> {
        let Some(version) = version() else { return Err("the kernel has none".to_owned()) };
        self.restrict(version).map_err(|error| error.to_string())?;
        Ok(version)
    }

    fn restrict(&self, version: i32) -> io::Result<()> {
        let handled = self.handled(version);
        // SAFETY: the kernel reads the attributes, of which it knows as many as it has versions.
        let rules = new_fd(unsafe {
            let size = match version {
                ..4 => 8,
                4..6 => 16,
                _ => size_of::<Handled>(),
            };
            libc::syscall(libc::SYS_landlock_create_ruleset, &raw const handled, size, 0)
        })?;
        for place in &self.places {
            add(&rules, place, handled.files)?;
        }
        for &port in self.ports.iter().filter(|_| handled.net != 0) {
            add_port(&rules, port)?;
        }
        // SAFETY: the kernel reads numbers.
        done(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) })
    }

    /// What a kernel of this version is to refuse. Rights of later versions than those known here
    /// stay as they are.
    fn handled(&self, version: i32) -> Handled {
        let since = |first, bits| if version >= first { bits } else { 0 };
        let files = right::FIRST
            | since(2, right::REFER)
            | since(3, right::TRUNCATE)
            | since(5, right::IOCTL_DEV);
        let sockets = if self.abstract_sockets { 0 } else { SCOPE_ABSTRACT_SOCKETS };
        Handled { files, net: since(TCP_SINCE, TCP), scopes: since(6, SCOPE_SIGNALS | sockets) }
    }
}

/// The types of rules.
const PATH_BENEATH: libc::c_int = 1;
const NET_PORT: libc::c_int = 2;

/// Allows a place, if it is there.
fn add(rules: &OwnedFd, Place { path, access }: &Place, handled: u64) -> io::Result<()> {
    // What is not there cannot be allowed, and cannot be reached.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let Ok(at) = rustix::fs::open(path, flags, Mode::empty()) else { return Ok(()) };
    let is_dir = path.is_dir();
    let rights = access.rights() & handled & if is_dir { u64::MAX } else { right::OF_FILES };
    let rule = Beneath { rights, parent: at.as_raw_fd() };
    let rules = rules.as_raw_fd();
    // SAFETY: the kernel reads the rule, and takes no ownership of the descriptors.
    done(unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, rules, PATH_BENEATH, &raw const rule, 0)
    })
}

/// Allows connections to a TCP port.
fn add_port(rules: &OwnedFd, port: u16) -> io::Result<()> {
    let rule = NetPort { rights: CONNECT_TCP, port: port.into() };
    let rules = rules.as_raw_fd();
    // SAFETY: the kernel reads the rule, and takes no ownership of the descriptor.
    done(unsafe { libc::syscall(libc::SYS_landlock_add_rule, rules, NET_PORT, &raw const rule, 0) })
}

fn new_fd(result: libc::c_long) -> io::Result<OwnedFd> {
    done(result.min(0))?;
    let fd = RawFd::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Landlock's version on this kernel.
pub(crate) fn version() -> Option<i32> {
    const ASK_VERSION: u32 = 1;
    let nothing = std::ptr::null::<u8>();
    // SAFETY: the kernel reads nothing; it returns a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0usize, ASK_VERSION) };
    i32::try_from(version).ok().filter(|&version| version > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_asked_for_what_its_version_knows() {
        let handled = |version| Files::none().handled(version);
        assert_eq!(handled(1), Handled { files: 0x1fff, net: 0, scopes: 0 });
        assert_eq!(handled(3), Handled { files: 0x7fff, net: 0, scopes: 0 });
        assert_eq!(handled(4), Handled { files: 0x7fff, net: 3, scopes: 0 });
        let all = Handled { files: 0xffff, net: 3, scopes: 3 };
        assert_eq!((handled(6), handled(99)), (all, all));
        assert_eq!(Files::none().and_abstract_sockets(true).handled(7).scopes, SCOPE_SIGNALS);
    }
}
