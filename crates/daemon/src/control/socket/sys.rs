//! The credentials of a socket's peer, and the bytes that it has not read.
// UNSAFETY: SO_PEERGROUPS and TIOCOUTQ are in no safe wrapper that we use.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use protocol::peer::Peer;
use rustix::io::Errno;

use crate::model::policy::Caller;

/// The process that connected, as the kernel saw it at that moment. Its number is 0 if it is in
/// another PID namespace, as the host is for a daemon in a container.
pub fn caller(socket: BorrowedFd<'_>) -> Result<Caller, Errno> {
    let Peer { pid, uid, gid } = Peer::of(socket)?;
    Ok(Caller {
        pid: pid.unwrap_or(0),
        uid,
        gid,
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

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
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
        let error = last_error();
        let count = bytes as usize / size_of::<u32>();
        match (status, error) {
            (0, _) => {
                groups.truncate(count);
                return Ok(groups);
            }
            (_, Errno::RANGE) if count > groups.len() => groups.resize(count, 0),
            _ => return Err(error),
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
