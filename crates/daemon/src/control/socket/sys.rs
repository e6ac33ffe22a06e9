//! The credentials of a socket's peer, and the bytes that it has not read.
// UNSAFETY: SO_PEERGROUPS and TIOCOUTQ are in no safe wrapper that we use.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

use crate::model::policy::Caller;

/// The process that connected, as the kernel saw it at that moment.
pub fn caller(socket: BorrowedFd<'_>) -> Result<Caller, Errno> {
    let credentials = socket_peercred(socket)?;
    let uid = credentials.uid.as_raw();
    Ok(Caller {
        pid: u32::try_from(credentials.pid.as_raw_pid()).unwrap_or(0),
        uid,
        gid: credentials.gid.as_raw(),
        groups: peer_groups(socket)?,
        privileged: uid == 0 || uid == rustix::process::geteuid().as_raw(),
    })
}

/// True if the peer has read all that was sent, or the kernel does not say.
pub fn is_read(socket: BorrowedFd<'_>) -> bool {
    let mut unread: libc::c_int = 0;
    // SAFETY: the kernel writes one `int`.
    let status =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, (&raw mut unread).cast::<()>()) };
    // While the kernel frees the last message, which is larger, one byte is left.
    status != 0 || unread <= 1
}

/// The supplementary groups of the peer.
fn peer_groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    let mut groups = vec![0u32; 32];
    loop {
        let room = groups.len() * size_of::<u32>();
        let mut bytes = libc::socklen_t::try_from(room).map_err(|_| Errno::OVERFLOW)?;
        // SAFETY: the kernel writes at most `bytes` bytes to `groups`, which has that many, and the
        // true size to `bytes`.
        let status = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let error = std::io::Error::last_os_error();
        let count = bytes as usize / size_of::<u32>();
        match (status, error.raw_os_error()) {
            (0, _) => {
                groups.truncate(count);
                return Ok(groups);
            }
            (_, Some(libc::ERANGE)) if count > groups.len() => groups.resize(count, 0),
            _ => return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    #[test]
    fn test_peer_of_a_pair_is_this_process() {
        let flags = SocketFlags::CLOEXEC;
        let (a, _b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let caller = caller(a.as_fd()).unwrap();
        assert_eq!(caller.pid, std::process::id());
        assert_eq!(caller.uid, rustix::process::geteuid().as_raw());
        assert!(caller.privileged);
        let own = rustix::process::getgroups().unwrap();
        assert_eq!(caller.groups.len(), own.len());
    }
}
