//! Where a small server listens, and which names of it others cannot choose.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At an address.
    Tcp(SocketAddr),
    /// At a UNIX socket.
    Unix(PathBuf),
}

impl Place {
    /// Whether only this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let wrong = |_| format!("expected ADDRESS:PORT or unix:PATH, found {text:?}");
        // The one name that is the same on every machine.
        let port = text.strip_prefix("localhost:");
        let address = port.map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
        address.parse().map(Self::Tcp).map_err(wrong)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Listens at a UNIX socket. One that no process listens at is replaced.
///
/// # Errors
/// The path cannot be bound, or a process listens there.
pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if is_stale(path) {
        match std::fs::remove_file(path) {
            // The remover of the process that listened there came first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    UnixListener::bind(path)
}

/// Whether a socket is there and no process listens at it.
fn is_stale(path: &Path) -> bool {
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    let is_socket = path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_err_and(is_refused)
}

/// The name or address in a `Host`, without a port.
#[must_use]
pub fn host_name(host: &str) -> &str {
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name)
}

/// Whether a `Host` is none that others can choose: an address, or `localhost`.
#[must_use]
pub fn is_own(host: &str) -> bool {
    let name = host_name(host);
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_places_are_addresses_or_sockets() {
        assert_eq!("unix:/run/x".parse(), Ok(Place::Unix("/run/x".into())));
        assert!(matches!("[::1]:9776".parse(), Ok(Place::Tcp(_))));
        assert_eq!("localhost:9776".parse::<Place>(), "127.0.0.1:9776".parse());
        assert!("localhost".parse::<Place>().unwrap_err().contains("unix:PATH"));
    }

    #[test]
    fn test_hosts_that_others_can_choose_are_not_ours() {
        for host in
            ["localhost", "LOCALHOST:9776", "127.0.0.1", "127.0.0.1:1", "[::1]:9776", "[::1]"]
        {
            assert!(is_own(host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:9776", "", "127.0.0.1.evil.example"] {
            assert!(!is_own(host), "{host}");
        }
    }
}
