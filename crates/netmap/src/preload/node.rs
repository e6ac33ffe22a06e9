//! `/dev/netmap` as a file that can be looked at: `stat`, `access`, `getxattr`, `chmod` and their
//! relatives.
//!
//! It is there while a daemon is, or a ptnet in the machine: a character device that says of itself
//! what `/dev/null` does, but for its numbers, and for its mode where the daemon refuses this user.
//! It has no extended attributes, and nothing changes its mode or owner: those of the daemon's
//! socket count.
//!
//! The names of the C library before 2.33, `__xstat` and the like, may be hidden in a later one,
//! which has the others.

#![allow(unsafe_code)] // UNSAFETY: the C library's functions, with the program's pointers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use client::control::ControlError;
use libc::{gid_t, mode_t, size_t, ssize_t, stat as Stat, stat64 as Stat64, statx as Statx, uid_t};
use rustix::io::Errno;

use crate::daemon::connect;
use crate::errno::fail;
use crate::next::{self, pass};

/// A device of every system, which answers in the place of ours.
const TEMPLATE: &CStr = c"/dev/null";
/// The number of devices with a driver of their own.
const MAJOR: c_uint = 10;
/// The number that such a driver asks for to get a free one.
const MINOR: c_uint = 255;
/// A number that no file of a `devtmpfs` gets so far.
const INODE: u32 = u32::MAX;
const OPEN_TO_ALL: u16 = 0o666;
const OPEN_TO_ROOT: u16 = 0o600;

/// Whether the path names `/dev/netmap`.
///
/// # Safety
/// `path` is NULL or a zero-terminated text.
#[inline]
pub unsafe fn is_device(path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !path.is_null() && names_device(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Whether this is `/dev/netmap`, with as many `/` and `/.` as there may be. The ends are compared
/// first: nearly all other paths fail there.
#[inline]
fn names_device(path: &[u8]) -> bool {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !matches!(part, [] | [b'.']));
    path.starts_with(b"/") && path.ends_with(b"/netmap") && parts.eq([&b"dev"[..], b"netmap"])
}

/// The permissions of the device, by what the daemon says to a connection.
fn permissions() -> Result<u16, Errno> {
    match connect() {
        Err(ControlError::NoDaemon(_)) => Err(Errno::NOENT),
        Err(ControlError::Permission(_) | ControlError::Untrusted { .. }) => Ok(OPEN_TO_ROOT),
        _ => Ok(OPEN_TO_ALL),
    }
}

/// Asks the function behind ours; for the device it asks for another, and `change` corrects what
/// that one says.
///
/// # Safety
/// `path` is NULL or a zero-terminated text.
#[inline]
unsafe fn describe(
    path: *const c_char,
    ask: impl FnOnce(*const c_char) -> c_int,
    change: impl FnOnce(u16),
) -> c_int {
    // SAFETY: the caller's promise.
    if !unsafe { is_device(path) } {
        return ask(path);
    }
    match permissions() {
        Err(error) => fail(error),
        Ok(mode) => {
            let answer = ask(TEMPLATE.as_ptr());
            if answer == 0 {
                change(mode);
            }
            answer
        }
    }
}

/// Whether the program may do this with the file; root may not with a daemon that refuses it.
///
/// # Safety
/// `path` is NULL or a zero-terminated text.
#[inline]
unsafe fn admit(
    path: *const c_char,
    wanted: c_int,
    ask: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    if !unsafe { is_device(path) } {
        return ask(path);
    }
    match permissions() {
        Err(error) => fail(error),
        Ok(OPEN_TO_ROOT) if wanted & (libc::R_OK | libc::W_OK) != 0 => fail(Errno::ACCESS),
        Ok(_) => ask(TEMPLATE.as_ptr()),
    }
}

// Both are one structure where a file's size has 64 bits.
const _: () = assert!(size_of::<Stat>() == size_of::<Stat64>());

/// Says of the device what is its own.
///
/// # Safety
/// `answer` points to what a `stat` has written.
unsafe fn set(answer: *mut Stat, mode: u16) {
    // SAFETY: the caller's promise.
    let answer = unsafe { &mut *answer };
    answer.st_mode = libc::S_IFCHR | u32::from(mode);
    answer.st_rdev = libc::makedev(MAJOR, MINOR);
    answer.st_ino = INODE.into();
}

/// Declares `stat` and its like: the arguments before the path, those between it and the answer,
/// and those behind.
macro_rules! stats {
    ($($name:ident(
        $($first:ident: $type:ty)?; $answer:ty $(; $last:ident: $last_type:ty)?
    ))*) => {$(
        /// The C library's function of this name, as the program calls it.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            $($first: $type,)?
            path: *const c_char,
            answer: *mut $answer
            $(, $last: $last_type)?
        ) -> c_int {
            let ask = |path| pass!($name($($first,)? path, answer $(, $last)?));
            // SAFETY: the program's promise to this function, which has written an answer.
            unsafe { describe(path, ask, |mode| set(answer.cast(), mode)) }
        }
    )*};
}

stats! {
    stat(; Stat)
    stat64(; Stat64)
    lstat(; Stat)
    lstat64(; Stat64)
    fstatat(dir: c_int; Stat; flags: c_int)
    fstatat64(dir: c_int; Stat64; flags: c_int)
}

/// Declares the functions of earlier C libraries, which have the version of the answer in front.
macro_rules! old_stats {
    ($($name:ident($($first:ident: $type:ty)?; $answer:ty $(; $last:ident: $last_type:ty)?)
        => $new:ident;)*) => {$(
        /// The function of this name of C libraries before 2.33.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            version: c_int,
            $($first: $type,)?
            path: *const c_char,
            answer: *mut $answer
            $(, $last: $last_type)?
        ) -> c_int {
            let Some(next) = next::$name() else {
                // SAFETY: the program's own arguments; there is one version on this machine.
                return unsafe { $new($($first,)? path, answer $(, $last)?) };
            };
            // SAFETY: the program's own arguments, or as good.
            let ask = |path| unsafe { next(version, $($first,)? path, answer $(, $last)?) };
            // SAFETY: the program's promise to this function, which has written an answer.
            unsafe { describe(path, ask, |mode| set(answer.cast(), mode)) }
        }
    )*};
}

old_stats! {
    __xstat(; Stat) => stat;
    __xstat64(; Stat64) => stat64;
    __lxstat(; Stat) => lstat;
    __lxstat64(; Stat64) => lstat64;
    __fxstatat(dir: c_int; Stat; flags: c_int) => fstatat;
    __fxstatat64(dir: c_int; Stat64; flags: c_int) => fstatat64;
}

/// `statx`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    answer: *mut Statx,
) -> c_int {
    let ask = |path| pass!(statx(dir, path, flags, mask, answer));
    let change = |mode: u16| {
        // SAFETY: the program's place, which `statx` has just written.
        let answer = unsafe { &mut *answer };
        answer.stx_mode = u16::try_from(libc::S_IFCHR).expect("16 bits of a mode") | mode;
        (answer.stx_rdev_major, answer.stx_rdev_minor) = (MAJOR, MINOR);
        answer.stx_ino = INODE.into();
    };
    // SAFETY: the program's promise to `statx`.
    unsafe { describe(path, ask, change) }
}

/// Declares `access` and its like.
macro_rules! accesses {
    ($($name:ident($($first:ident: $type:ty)? $(; $last:ident: $last_type:ty)?))*) => {$(
        /// The C library's function of this name, as the program calls it.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            $($first: $type,)?
            path: *const c_char,
            wanted: c_int
            $(, $last: $last_type)?
        ) -> c_int {
            let ask = |path| pass!($name($($first,)? path, wanted $(, $last)?));
            // SAFETY: the program's promise to this function.
            unsafe { admit(path, wanted, ask) }
        }
    )*};
}

accesses! {
    access()
    eaccess()
    euidaccess()
    faccessat(dir: c_int; flags: c_int)
}

/// What a call about the device returns: 0, or -1 with this error; with `ENOENT` where no daemon
/// is.
fn answer<T: From<i8>>(given: Result<(), Errno>) -> T {
    permissions().and(given).map_or_else(failed, |()| T::from(0))
}

fn failed<T: From<i8>>(error: Errno) -> T {
    fail(error);
    T::from(-1)
}

/// Declares functions that give one answer for the device: the arguments before the path, those
/// behind it, and the answer.
macro_rules! fixed {
    ($($name:ident(
        $($first:ident: $first_type:ty)?; $($last:ident: $type:ty),*
    ) -> $result:ty => $given:expr;)*) => {$(
        /// The C library's function of this name, as the program calls it.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            $($first: $first_type,)?
            path: *const c_char,
            $($last: $type),*
        ) -> $result {
            // SAFETY: the program's promise to this function.
            if unsafe { is_device(path) } {
                return answer($given);
            }
            match next::$name() {
                // SAFETY: with the program's own arguments.
                Some(next) => unsafe { next($($first,)? path, $($last),*) },
                None => failed(Errno::NOSYS),
            }
        }
    )*};
}

fixed! {
    getxattr(; name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t
        => Err(Errno::NODATA);
    lgetxattr(; name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t
        => Err(Errno::NODATA);
    listxattr(; names: *mut c_char, size: size_t) -> ssize_t => Ok(());
    llistxattr(; names: *mut c_char, size: size_t) -> ssize_t => Ok(());
    chmod(; mode: mode_t) -> c_int => Err(Errno::PERM);
    fchmodat(dir: c_int; mode: mode_t, flags: c_int) -> c_int => Err(Errno::PERM);
    chown(; owner: uid_t, group: gid_t) -> c_int => Err(Errno::PERM);
    lchown(; owner: uid_t, group: gid_t) -> c_int => Err(Errno::PERM);
    fchownat(dir: c_int; owner: uid_t, group: gid_t, flags: c_int) -> c_int => Err(Errno::PERM);
}

#[cfg(test)]
mod tests {
    use super::names_device;

    #[test]
    fn the_path_may_have_more_slashes_and_points() {
        for path in ["/dev/netmap", "/dev//netmap", "//dev/./netmap", "/.//dev/.//./netmap"] {
            assert!(names_device(path.as_bytes()), "{path}");
        }
        for path in ["netmap", "dev/netmap", "/netmap", "/dev/netmap/", "/dev/x/netmap"] {
            assert!(!names_device(path.as_bytes()), "{path}");
        }
    }
}
