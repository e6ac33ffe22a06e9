//! Descriptors: how they are made, copied, passed on and closed.

#![allow(unsafe_code)] // UNSAFETY: the C library's functions, with the program's pointers.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};

use client::control::ControlError;
use libc::{FILE, msghdr, ssize_t};
use rustix::io::{Errno, FdFlags};

use super::adopt;
use super::node::is_device;
use crate::daemon::connect;
use crate::descriptor::Descriptor;
use crate::errno::{fail, get_errno, result, set_errno};
use crate::next::{self, Argument, Mode, pass};
use crate::own;
use crate::table::{Kind, TABLE};

/// Opens `/dev/netmap`: a connection to the daemon, if there is one.
fn open_device(flags: c_int) -> c_int {
    result(|| {
        let socket = connect().map_err(|error| match error {
            ControlError::NoDaemon(_) => Errno::NXIO,
            ControlError::Permission(_) | ControlError::Untrusted { .. } => Errno::ACCESS,
            ControlError::NoDescriptors => Errno::MFILE,
            ControlError::Io { error, .. } => error,
            _ => Errno::IO,
        })?;
        if flags & libc::O_CLOEXEC == 0 {
            rustix::io::fcntl_setfd(&socket, FdFlags::empty())?;
        }
        let known = TABLE.insert(socket.as_raw_fd(), Kind::Netmap(Descriptor::new(false)));
        if !known {
            return Err(Errno::MFILE);
        }
        Ok(socket.into_raw_fd())
    })
}

/// `open`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn open(path: *const c_char, flags: c_int, mode: Mode) -> c_int {
    // SAFETY: the program's promise to `open`.
    if unsafe { is_device(path) } { open_device(flags) } else { pass!(open(path, flags, mode)) }
}

/// `open64`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn open64(path: *const c_char, flags: c_int, mode: Mode) -> c_int {
    // SAFETY: the program's promise to `open64`.
    if unsafe { is_device(path) } { open_device(flags) } else { pass!(open64(path, flags, mode)) }
}

/// `openat`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn openat(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: Mode,
) -> c_int {
    // SAFETY: the program's promise to `openat`.
    match unsafe { is_device(path) } {
        true => open_device(flags),
        false => pass!(openat(dir, path, flags, mode)),
    }
}

/// `openat64`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn openat64(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: Mode,
) -> c_int {
    // SAFETY: the program's promise to `openat64`.
    match unsafe { is_device(path) } {
        true => open_device(flags),
        false => pass!(openat64(dir, path, flags, mode)),
    }
}

/// `open` of a program compiled with checks.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's promise to `open`.
    if unsafe { is_device(path) } { open_device(flags) } else { pass!(__open_2(path, flags)) }
}

/// `open64` of a program compiled with checks.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's promise to `open64`.
    if unsafe { is_device(path) } { open_device(flags) } else { pass!(__open64_2(path, flags)) }
}

/// `openat` of a program compiled with checks.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's promise to `openat`.
    match unsafe { is_device(path) } {
        true => open_device(flags),
        false => pass!(__openat_2(dir, path, flags)),
    }
}

/// `openat64` of a program compiled with checks.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's promise to `openat64`.
    match unsafe { is_device(path) } {
        true => open_device(flags),
        false => pass!(__openat64_2(dir, path, flags)),
    }
}

/// A stream of the device.
///
/// # Safety
/// `mode` is NULL or a zero-terminated text.
unsafe fn open_stream(mode: *const c_char) -> *mut FILE {
    if mode.is_null() {
        fail(Errno::INVAL);
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let letters = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let flags = if letters.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    let fd = open_device(flags);
    if fd < 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: our descriptor, and the program's mode.
    let stream = unsafe { libc::fdopen(fd, mode) };
    if stream.is_null() {
        let errno = get_errno();
        // SAFETY: no pointers; it is ours.
        unsafe { close(fd) };
        set_errno(errno);
    }
    stream
}

/// `fopen`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the program's promise to `fopen`.
    if unsafe { is_device(path) } {
        // SAFETY: as above.
        return unsafe { open_stream(mode) };
    }
    match next::fopen() {
        // SAFETY: with the program's own arguments.
        Some(next) => unsafe { next(path, mode) },
        None => {
            fail(Errno::NOSYS);
            std::ptr::null_mut()
        }
    }
}

/// `fopen64`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: with the program's own arguments: both are one function.
    unsafe { fopen(path, mode) }
}

/// `fclose`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    if !TABLE.is_empty() && !stream.is_null() {
        // SAFETY: the program's stream.
        forget(unsafe { libc::fileno(stream) });
    }
    pass!(fclose(stream))
}

/// `close`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if own::contains(fd) && TABLE.may_change() {
        return fail(Errno::BADF);
    }
    forget(fd);
    pass!(close(fd))
}

/// Takes a descriptor that is about to be closed out of the table.
#[inline]
fn forget(fd: RawFd) {
    if TABLE.get(fd).is_some() && TABLE.may_change() {
        // What belongs to the entry is closed without the C library: `errno` stays.
        TABLE.remove(fd);
    }
}

/// `close_range`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let only_marks = flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() != 0;
    let none = TABLE.is_empty() && own::is_empty();
    if none || only_marks || first > last || !TABLE.may_change() {
        return pass!(close_range(first, last, flags));
    }
    for fd in TABLE.occupied(first, last).filter(|fd| !own::contains(*fd)) {
        TABLE.remove(fd);
    }
    let mut from = first;
    for fd in own::between(first, last) {
        let at = fd.cast_unsigned();
        if at > from && pass!(close_range(from, at - 1, flags)) < 0 {
            return -1;
        }
        from = at + 1;
    }
    if from > last {
        return 0;
    }
    pass!(close_range(from, last, flags))
}

/// `closefrom`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = c_uint::try_from(first).unwrap_or(0);
    // SAFETY: no pointers.
    unsafe { close_range(first, c_uint::MAX, 0) };
}

/// Notes that `new`, just made, is a copy of `old`.
#[inline]
fn copied(old: RawFd, new: RawFd) -> c_int {
    if new >= 0 && !TABLE.is_empty() && TABLE.may_change() {
        TABLE.copy(old, new);
    }
    new
}

/// `dup`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    copied(old, pass!(dup(old)))
}

/// `dup2`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    if own::contains(new) && TABLE.may_change() {
        return fail(Errno::BUSY);
    }
    match pass!(dup2(old, new)) {
        made if old == new => made,
        made => copied(old, made),
    }
}

/// `dup3`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if own::contains(new) && TABLE.may_change() {
        return fail(Errno::BUSY);
    }
    copied(old, pass!(dup3(old, new, flags)))
}

/// Whether this command of `fcntl` makes a copy.
fn copies(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// `fcntl`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: Argument) -> c_int {
    let made = pass!(fcntl(fd, command, argument));
    if copies(command) { copied(fd, made) } else { made }
}

/// `fcntl64`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: Argument) -> c_int {
    let made = pass!(fcntl64(fd, command, argument));
    if copies(command) { copied(fd, made) } else { made }
}

/// `recvmsg`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let received: ssize_t = pass_size(fd, message, flags);
    if received >= 0 && !message.is_null() {
        let errno = get_errno();
        // SAFETY: the program's message, which `recvmsg` has just written.
        unsafe { adopt_received(message) };
        set_errno(errno);
    }
    received
}

fn pass_size(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    match next::recvmsg() {
        // SAFETY: with the program's own arguments.
        Some(next) => unsafe { next(fd, message, flags) },
        None => fail(Errno::NOSYS) as ssize_t,
    }
}

/// Looks through the descriptors that came with a message.
///
/// # Safety
/// `message` is as `recvmsg` left it.
unsafe fn adopt_received(message: *const msghdr) {
    // SAFETY: as the caller promises; so are those below.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !part.is_null() {
        // SAFETY: a header inside the program's buffer.
        let header = unsafe { part.read_unaligned() };
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: the data follows its header.
            let data = unsafe { libc::CMSG_DATA(part) }.cast::<c_int>();
            // SAFETY: pure arithmetic.
            let bytes = header.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
            for i in 0..bytes / size_of::<c_int>() {
                // SAFETY: within the data.
                adopt(unsafe { data.add(i).read_unaligned() });
            }
        }
        // SAFETY: the next header, or NULL at the end.
        part = unsafe { libc::CMSG_NXTHDR(message, part) };
    }
}
