//! Network namespaces: named, and entered by a thread that ends afterwards.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::HostError;

/// The namespace that an interface is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Ours: netlink tells what happens to it.
    Ours,
    /// The one of this number, whose it may be.
    Other(u64),
    /// Another one, of which we know nothing.
    Unknown,
}

impl Home {
    /// That of what is opened in a namespace, or here where there is none to enter.
    #[must_use]
    pub fn of(namespace: Option<&OwnedFd>) -> Self {
        match namespace {
            None => Self::Ours,
            Some(fd) => {
                rustix::fs::fstat(fd).map_or(Self::Unknown, |stat| Self::Other(stat.st_ino))
            }
        }
    }

    /// Netlink does not tell of it.
    #[must_use]
    pub fn is_foreign(self) -> bool {
        self != Self::Ours
    }

    /// Its number, by which the kernel tells it from all others that there are.
    #[must_use]
    pub fn number(self) -> Option<u64> {
        match self {
            Self::Ours => own().ok(),
            Self::Other(number) => Some(number),
            Self::Unknown => None,
        }
    }
}

/// The number of the namespace that this process is in.
///
/// # Errors
/// No `/proc`.
pub fn own() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/self/ns/net")?.ino())
}

/// Where a namespace is that an operator names: one of `ip netns`, the number of a process, a path.
///
/// # Errors
/// If that is no such name.
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
/// If there is none, or we may not look.
pub fn open(name: &str) -> Result<OwnedFd, HostError> {
    let path = path_of(name)?;
    // Other files are not even opened: there are some that keep waiting who opens them.
    let opened = rustix::fs::statfs(&path).map_err(io::Error::from).and_then(|on| {
        let is_namespace = on.f_type == NAMESPACES;
        if is_namespace { File::open(&path) } else { Err(io::ErrorKind::NotFound.into()) }
    });
    opened.map(OwnedFd::from).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => HostError::MayNotEnter(name.to_owned()),
        _ => none(name),
    })
}

/// The file system that namespaces are files of (`linux/magic.h`).
const NAMESPACES: rustix::fs::FsWord = 0x6e73_6673;

/// How an operator runs `ip` in it.
#[must_use]
pub fn command(name: &str) -> String {
    match path_of(name) {
        Ok(path) if name.starts_with('/') || is_process(name) => format!("nsenter --net={path} ip"),
        _ => format!("ip -n {name}"),
    }
}

fn is_process(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// There is none of that name.
pub(crate) fn none(name: &str) -> HostError {
    let name = name.to_owned();
    match name.starts_with('/') {
        true => HostError::NoNamespaceAt(name),
        false if is_process(&name) => HostError::NoProcess(name),
        false => HostError::NoNamespace(name),
    }
}

/// Runs `job` in a namespace, or here where there is none to enter.
///
/// # Errors
/// Those of `job`, or if the namespace cannot be entered.
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
        // A file that is none, one that would be waited for, and a namespace of another kind.
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
