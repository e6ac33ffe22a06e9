//! Network namespaces: named, and entered by a thread that ends afterwards.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{HostError, system};

/// A namespace as an operator names it: one of `ip netns`, the number of a process, a path.
///
/// # Errors
/// If there is none, or we may not look.
pub fn open(name: &str) -> Result<OwnedFd, HostError> {
    let path = if name.starts_with('/') {
        name.to_owned()
    } else if is_process(name) {
        format!("/proc/{name}/ns/net")
    } else if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(HostError::NoNamespaceAt(format!("{name:?}")));
    } else {
        format!("/run/netns/{name}")
    };
    match File::open(path) {
        Ok(file) => Ok(file.into()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(HostError::MayNotEnter(name.to_owned()))
        }
        Err(_) => Err(none(name)),
    }
}

fn is_process(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// There is none of that name.
fn none(name: &str) -> HostError {
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
            Err(error) => Err(system("enter network namespace", name)(error.into())),
        }
    };
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("namespace".to_owned());
        let thread = builder.spawn_scoped(scope, body).map_err(system("thread for", name))?;
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
    }
}
