//! The credentials of a socket's peer.
// UNSAFETY: SO_PEERGROUPS and SO_PEERPIDFD are in no safe wrapper that we use.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use protocol::peer::Peer;
use rustix::io::Errno;

use crate::model::keys::ConnKey;
use crate::model::policy::{Caller, Process, is_privileged};

/// The file system of pidfds, where each has an inode of its own (`linux/magic.h`).
const PID_FS_MAGIC: u64 = 0x5049_4446;

/// The process that connected, as the kernel saw it at that moment. Its number is 0 if it is in
/// another PID namespace, as the host is for a daemon in a container.
pub fn caller(socket: BorrowedFd<'_>, conn: ConnKey) -> Result<Caller, Errno> {
    let Peer { pid, uid, gid } = Peer::of(socket)?;
    let process = match (pidfd_inode(socket), pid) {
        (Some(inode), _) => Process::Pidfd(inode),
        (None, Some(pid)) => Process::Number(pid),
        (None, None) => Process::Connection(conn),
    };
    Ok(Caller {
        pid: pid.unwrap_or(0),
        process,
        uid,
        gid,
        groups: peer_groups(socket)?,
        privileged: is_privileged(uid),
    })
}

/// The inode of the peer's pidfd, where each process has one of its own.
fn pidfd_inode(socket: BorrowedFd<'_>) -> Option<u64> {
    let pidfd = pidfd(socket)?;
    let place = rustix::fs::fstatfs(&pidfd).ok()?;
    let own = u64::try_from(place.f_type) == Ok(PID_FS_MAGIC);
    own.then(|| rustix::fs::fstat(&pidfd).ok()).flatten().map(|stat| stat.st_ino)
}

fn pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut bytes = libc::socklen_t::try_from(size_of_val(&pidfd)).expect("a few bytes");
    // SAFETY: the kernel writes at most `bytes` bytes to `pidfd`, which has that many.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut bytes,
        )
    };
    // SAFETY: the kernel has opened this descriptor for us, and nothing else has its number.
    (status == 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) })
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
        let caller = |conn| caller(a.as_fd(), ConnKey(conn)).unwrap();
        assert_eq!(caller(1).process, caller(2).process);
        let caller = caller(1);
        assert_eq!(caller.pid, std::process::id());
        assert_eq!(caller.uid, rustix::process::geteuid().as_raw());
        assert!(caller.privileged);
        let own = rustix::process::getgroups().unwrap();
        assert_eq!(caller.groups.len(), own.len());
    }
}
