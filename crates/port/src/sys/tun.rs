//! TAPs: one ioctl on `/dev/net/tun`.

#![allow(unsafe_code)] // UNSAFETY: no safe wrapper that we use knows this ioctl.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens `/dev/net/tun`, non-blocking.
///
/// # Errors
/// There is none, or no right to it.
pub fn open() -> io::Result<OwnedFd> {
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags.bits().cast_signed());
    Ok(options.open("/dev/net/tun")?.into())
}

/// Makes `fd` the TAP of this name, or the first queue of one that was made with several; makes
/// the TAP where there is none. A `%d` in the name is a number that the kernel chooses. Returns the
/// name.
///
/// # Errors
/// What the kernel says: `EBUSY`, `EPERM`, `EINVAL` for an interface that is no TAP.
pub fn attach(fd: &OwnedFd, name: &str) -> Result<String, Errno> {
    let plain = libc::IFF_TAP | libc::IFF_NO_PI;
    match set(fd, name, plain) {
        Err(Errno::INVAL) => set(fd, name, plain | libc::IFF_MULTI_QUEUE),
        result => result,
    }
}

fn set(fd: &OwnedFd, name: &str, flags: i32) -> Result<String, Errno> {
    // SAFETY: all zeros are a value of this structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(Errno::NAMETOOLONG);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = i16::try_from(flags).expect("flags of 16 bits");
    // SAFETY: the kernel reads and writes one `ifreq`, and this is one.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
    }
    let bytes = request.ifr_name.iter().map(|byte| byte.cast_unsigned());
    let name = bytes.take_while(|byte| *byte != 0).collect();
    Ok(String::from_utf8(name).unwrap_or_default())
}
