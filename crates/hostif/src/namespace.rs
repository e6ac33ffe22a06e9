//! Network namespaces: opened by name, and entered by a short-lived thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{HostError, broker};

/// The namespace that an interface is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// The daemon's own namespace, of which netlink reports changes.
    Ours,
    /// Another namespace, with this inode number.
    Other(u64),
    /// A namespace that the daemon cannot identify.
    Unknown,
}

impl Home {
    /// The home of an interface that was opened in `namespace`, or in the daemon's own for `None`.
    #[must_use]
    pub fn of(namespace: Option<&OwnedFd>) -> Self {
        match namespace {
            None => Self::Ours,
            Some(fd) => {
                rustix::fs::fstat(fd).map_or(Self::Unknown, |stat| Self::Other(stat.st_ino))
            }
        }
    }

    /// Whether netlink reports no changes of it.
    #[must_use]
    pub fn is_foreign(self) -> bool {
        self != Self::Ours
    }

    /// The inode number, which identifies a namespace.
    #[must_use]
    pub fn number(self) -> Option<u64> {
        match self {
            Self::Ours => own().ok(),
            Self::Other(number) => Some(number),
            Self::Unknown => None,
        }
    }
}

/// The inode number of this process's namespace.
///
/// # Errors
/// No `/proc`.
pub fn own() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/self/ns/net")?.ino())
}

/// The path of a namespace that an operator names: a name of `ip netns`, a process ID or a path.
///
/// # Errors
/// The text is none of these.
pub fn path_of(name: &str) -> Result<String, HostError> {
    if name.starts_with('/') {
        Ok(name.to_owned())
    } else if is_process(name) {
        Ok(format!("/proc/{name}/ns/net"))
    } else if name.is_empty() || name.contains('/') || name.starts_with('.') {
        Err(HostError::NoNamespaceAt(format!("{name:?}")))
    } else {
        Ok(format!("/run/netns/{name}"))
    }
}

/// Opens a namespace that an operator names.
///
/// # Errors
/// The namespace does not exist, or the process may not open it.
pub fn open(name: &str) -> Result<OwnedFd, HostError> {
    let path = path_of(name)?;
    let opened = match broker::get() {
        Some(broker) => broker.namespace(&path),
        None => broker::open_path(&path),
    };
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => HostError::MayNotEnter(name.to_owned()),
        io::ErrorKind::TimedOut => HostError::system("open network namespace", name)(error),
        _ => none(name),
    })
}

/// The command by which an operator runs `ip` in a namespace.
#[must_use]
pub fn command(name: &str) -> String {
    match path_of(name) {
        Ok(path) if name.starts_with('/') || is_process(name) => format!("nsenter --net={path} ip"),
        _ => format!("ip -n {name}"),
    }
}

/// Whether a name means the same namespace also for the next daemon: a name of `ip netns` does,
/// which an operator keeps. A path or the number of a process may mean another one by then.
#[must_use]
pub fn is_lasting(name: &str) -> bool {
    !name.starts_with('/') && !is_process(name)
}

/// Whether a name is the number of a process, or a path by one.
#[must_use]
pub fn is_of_process(name: &str) -> bool {
    is_process(name) || name.starts_with("/proc/")
}

fn is_process(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// The error for a namespace that does not exist.
pub(crate) fn none(name: &str) -> HostError {
    let name = name.to_owned();
    match name.starts_with('/') {
        true => HostError::NoNamespaceAt(name),
        false if is_process(&name) => HostError::NoProcess(name),
        false => HostError::NoNamespace(name),
    }
}

/// Runs `job` in a namespace, or in the current one for `None`.
///
/// # Errors
/// The errors of `job`, or the namespace cannot be entered.
pub fn within<R: Send>(
    namespace: Option<(&str, &OwnedFd)>,
    job: impl FnOnce() -> Result<R, HostError> + Send,
) -> Result<R, HostError> {
    let Some((name, namespace)) = namespace else { return job() };
    let body = || {
        let entered =
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
        match entered {
            Ok(()) => job(),
            Err(Errno::PERM) => Err(HostError::MayNotEnter(name.to_owned())),
            Err(Errno::INVAL) => Err(none(name)),
            Err(error) => Err(HostError::system("enter network namespace", name)(error.into())),
        }
    };
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("namespace".to_owned());
        let thread =
            builder.spawn_scoped(scope, body).map_err(HostError::system("thread for", name))?;
        thread.join().expect("no job panics")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_none() {
        for name in ["", "../x", "a/b", ".hidden", "no-such-namespace", "/no/such/file"] {
            let error = open(name).expect_err(name).to_string();
            assert!(error.starts_with("no network namespace"), "{error}");
        }
        for (name, cure) in [
            ("no-such", "ip netns add no-such"),
            ("4294967295", "of a process 4294967295"),
            ("/no/such", "at /no/such; those of ip netns are in /run/netns"),
            ("a/b", "at \"a/b\""),
        ] {
            let error = open(name).expect_err(name).to_string();
            assert!(error.contains(cure), "{error}");
        }
        open(&std::process::id().to_string()).expect("our own");
        // A regular file, a directory, a device, a FIFO that would block, and a namespace of
        // another type.
        let dir = tempfile::tempdir().expect("a directory");
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).expect("a place");
        for path in ["/etc/passwd", "/", "/dev/null", fifo.to_str().expect("text")] {
            let error = open(path).expect_err(path).to_string();
            assert!(error.contains(&format!("at {path}")) && error.contains("ip netns"), "{error}");
        }
        let mounts = "/proc/self/ns/mnt";
        let opened = open(mounts).expect("a namespace");
        let error = within(Some((mounts, &opened)), || Ok(())).expect_err("of another kind");
        assert!(error.to_string().contains(&format!("at {mounts}")), "{error}");
    }
}
