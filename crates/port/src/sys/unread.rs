//! The bytes that a socket's peer has not read.
//!
//! The kernel frees what was sent when the peer reads it, or when the last descriptor of the peer's
//! end is closed. A peer that only shuts its end down keeps what it has not read, and descriptors
//! in it are still on their way: a hang-up says nothing of them, these bytes do.
// UNSAFETY: TIOCOUTQ is in no safe wrapper that we use.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

/// True if the peer has read all that was sent, or has closed its end, or the kernel does not say.
#[must_use]
pub fn is_read(socket: impl AsFd) -> bool {
    let (fd, mut unread) = (socket.as_fd().as_raw_fd(), libc::c_int::default());
    // SAFETY: the kernel writes one `int`.
    let status = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, (&raw mut unread).cast::<()>()) };
    // While the kernel frees the last message, which is larger, one byte is left.
    status != 0 || unread <= 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_are_read_when_the_peer_reads_them_all_or_closes_its_end() {
        let (mut ours, mut theirs) = UnixStream::pair().expect("descriptors");
        assert!(is_read(&ours));
        ours.write_all(b"two").expect("room");
        theirs.read_exact(&mut [0; 2]).expect("they are there");
        assert!(!is_read(&ours), "one is left");
        theirs.read_exact(&mut [0]).expect("it is there");
        assert!(is_read(&ours) && is_read(&theirs));
        ours.write_all(b"three").expect("room");
        theirs.shutdown(Shutdown::Both).expect("connected");
        assert!(!is_read(&ours), "they can still be read");
        drop(theirs);
        assert!(is_read(&ours));
    }
}
