//! Finds out whether the host has KVM, and whether this user may use it.

#![allow(unsafe_code)] // UNSAFETY: KVM answers to an ioctl, which no library that we use wraps.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;

/// Whether this user may use KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device opens, and has the interface that every VMM speaks.
    Usable,
    /// The device opens, and is no KVM of that version.
    Foreign,
    /// The device is there, and closed to this user.
    Closed,
    /// There is no such device.
    Missing,
}

/// `KVM_GET_API_VERSION` of linux/kvm.h.
const GET_API_VERSION: libc::c_ulong = 0xae00;
/// The only version since Linux 2.6.22: VMMs refuse every other.
const API_VERSION: libc::c_int = 12;

/// Opens the device, and asks for the version of its interface.
pub fn access() -> Access {
    let file = match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Access::Closed,
        Err(_) => return Access::Missing,
    };
    // SAFETY: the request takes the number 0, and touches no memory of this process.
    match unsafe { libc::ioctl(file.as_raw_fd(), GET_API_VERSION, 0) } {
        API_VERSION => Access::Usable,
        _ => Access::Foreign,
    }
}

/// Whether this user may use KVM.
pub fn is_usable() -> bool {
    access() == Access::Usable
}
