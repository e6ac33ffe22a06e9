//! The process at the other end of a socket, which the kernel knows. All programs of uvala read it
//! here.
// UNSAFETY: rustix takes a process number from SO_PEERCRED as never 0. It is 0 for a process of
// another PID namespace.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// The credentials of a process, as the kernel saw them when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process number; none for a process of another PID namespace, as those of a container.
    pub pid: Option<u32>,
    /// The effective user ID.
    pub uid: u32,
    /// The effective group ID.
    pub gid: u32,
}

impl Peer {
    /// The process that connected this socket, or listened when this end connected.
    ///
    /// # Errors
    /// The descriptor is no socket.
    pub fn of(socket: impl AsFd) -> Result<Self, Errno> {
        let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut bytes = libc::socklen_t::try_from(size_of_val(&credentials)).expect("a few bytes");
        // SAFETY: the kernel writes at most `bytes` bytes to `credentials`, which has that many and
        // whose fields are numbers.
        let status = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut bytes,
            )
        };
        if status != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
        }
        let libc::ucred { pid, uid, gid } = credentials;
        Ok(Self { pid: u32::try_from(pid).ok().filter(|&pid| pid > 0), uid, gid })
    }
}
