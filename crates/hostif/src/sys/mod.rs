//! The system calls of this crate that no safe wrapper offers.

#![allow(unsafe_code)] // UNSAFETY: raw socket calls.

pub mod bpf;
pub mod ethtool;
pub mod packet;
pub mod steer;
pub mod tun;

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::c_int;
use rustix::io::Errno;

/// Creates a socket of protocol 0, which receives nothing before it is bound.
fn socket(domain: c_int, kind: c_int) -> Result<OwnedFd, Errno> {
    // SAFETY: a system call without pointers.
    let fd = check(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option whose value is a `T`.
fn set_option<T: Copy>(
    socket: &OwnedFd,
    level: c_int,
    option: c_int,
    value: &T,
) -> Result<(), Errno> {
    let (value, len) = (std::ptr::from_ref(value), length(size_of::<T>()));
    // SAFETY: the kernel reads `len` bytes of the value.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.cast(), len) })
        .map(drop)
}

/// The result of a system call that returns -1 on failure.
fn check(result: c_int) -> Result<c_int, Errno> {
    if result >= 0 { Ok(result) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn length(bytes: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(bytes).expect("a small number")
}

/// Writes the name of an interface into a request of an ioctl.
fn set_name(request: &mut libc::ifreq, name: &str) -> Result<(), Errno> {
    if name.len() >= request.ifr_name.len() {
        return Err(Errno::NAMETOOLONG);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    Ok(())
}

fn new_request() -> libc::ifreq {
    // SAFETY: all zeros are a value of this structure.
    unsafe { std::mem::zeroed() }
}
