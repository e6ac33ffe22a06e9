//! Where the daemon's socket is.
//!
//! The same rule for daemon and clients, so that neither needs an option in the common cases:
//!
//! 1. what the command line says (`--dir`),
//! 2. `$UVALA_DIR`,
//! 3. `/run/uvala`, for root and for users that may write there (the service),
//! 4. `$XDG_RUNTIME_DIR/uvala`,
//! 5. `/tmp/uvala-UID`.
//!
//! A client without a daemon of its own falls back to the service's socket in `/run/uvala`.

use std::env;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Directory of the system's daemon.
pub const SYSTEM_DIR: &str = "/run/uvala";
/// File name of the socket in its directory.
pub const SOCKET_NAME: &str = "uvala.sock";
/// File name of the lock that a daemon holds there, with its PID.
pub const LOCK_NAME: &str = "uvala.lock";
/// The socket's name before the daemon is ready for clients. The kernel keeps it as the address of
/// a client's peer.
pub const UNREADY_SOCKET_NAME: &str = "uvala.sock.new";

/// Whether the user has named a directory, by an option or in the environment.
#[must_use]
pub fn is_chosen(given: Option<&Path>) -> bool {
    given.is_some() || env::var_os("UVALA_DIR").is_some_and(|dir| !dir.is_empty())
}

/// Directory where a daemon of this user puts its socket.
#[must_use]
pub fn daemon_dir(given: Option<&Path>) -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = given.map(Path::to_path_buf).or_else(|| set("UVALA_DIR")) {
        return dir;
    }
    let uid = rustix::process::geteuid();
    if uid.is_root() || access(SYSTEM_DIR, Access::WRITE_OK | Access::EXEC_OK).is_ok() {
        return PathBuf::from(SYSTEM_DIR);
    }
    match set("XDG_RUNTIME_DIR") {
        Some(dir) => dir.join("uvala"),
        None => PathBuf::from(format!("/tmp/uvala-{}", uid.as_raw())),
    }
}

/// The socket a client of this user connects to.
#[must_use]
pub fn client_socket(given: Option<&Path>) -> PathBuf {
    let own = daemon_dir(given).join(SOCKET_NAME);
    let system = Path::new(SYSTEM_DIR).join(SOCKET_NAME);
    if !is_chosen(given) && !own.exists() && system.exists() { system } else { own }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_given_directory_wins() {
        let dir = Path::new("/somewhere");
        assert_eq!(daemon_dir(Some(dir)), dir);
        assert_eq!(client_socket(Some(dir)), dir.join(SOCKET_NAME));
    }
}
