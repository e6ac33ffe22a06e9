//! What a program does with `/dev/netmap`: requests, syncs, and its memory.

#![allow(unsafe_code)] // UNSAFETY: the C library's functions, with the program's pointers.

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use libc::{off_t, size_t, ssize_t};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::abi::{IfReq, ioctl as number};
use crate::descriptor::Descriptor;
use crate::errno::{fail, result};
use crate::memory::{OwnMemory, UserMemory};
use crate::next::{self, Argument, pass};
use crate::request::{self, LegacyCall};
use crate::serve::Service;
use crate::table::TABLE;

/// `ioctl`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, call: c_ulong, argument: Argument) -> c_int {
    let Some(used) = TABLE.get(fd) else { return pass!(ioctl(fd, call, argument)) };
    let Some(descriptor) = used.netmap() else { return pass!(ioctl(fd, call, argument)) };
    // The number is 32 bits wide; programs that sign-extend it mean the same.
    match call & 0xffff_ffff {
        number::TXSYNC => synced(descriptor.txsync(fd)),
        number::RXSYNC => synced(descriptor.rxsync(fd)),
        call if is_generic(call) => {
            drop(used);
            pass!(ioctl(fd, call, argument))
        }
        call => result(|| control(descriptor, fd, call, argument.cast_unsigned()).map(|()| 0)),
    }
}

#[inline]
fn synced(outcome: Result<(), Errno>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}

/// Calls that the kernel answers for every open file.
fn is_generic(call: c_ulong) -> bool {
    [libc::FIOCLEX, libc::FIONCLEX, libc::FIONBIO, libc::FIOASYNC].contains(&call)
}

fn control(descriptor: &Descriptor, fd: RawFd, call: c_ulong, address: u64) -> Result<(), Errno> {
    let mut service = Service::new(descriptor, fd);
    match call {
        number::CTRL => request::control(&OwnMemory, address, &mut service),
        number::REGIF => request::legacy(&OwnMemory, LegacyCall::Regif, address, &mut service),
        number::GINFO => request::legacy(&OwnMemory, LegacyCall::Info, address, &mut service),
        // For forwarding code that a kernel module has put into a switch: there is none.
        number::CONFIG if address != 0 => {
            OwnMemory.read_struct::<IfReq>(address).and(Err(Errno::INVAL))
        }
        number::CONFIG => Err(Errno::INVAL),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Whether `fd` is a netmap descriptor. Programs cannot read or write `/dev/netmap`, as in netmap
/// itself; the socket behind the descriptor would let them wait for ever.
#[inline]
fn is_device(fd: c_int) -> bool {
    TABLE.get(fd).is_some_and(|used| used.netmap().is_some())
}

fn refuse(error: Errno) -> ssize_t {
    fail(error);
    -1
}

/// `read`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, size: size_t) -> ssize_t {
    match next::read() {
        // SAFETY: with the program's own arguments.
        Some(next) if !is_device(fd) => unsafe { next(fd, buffer, size) },
        Some(_) => refuse(Errno::INVAL),
        None => refuse(Errno::NOSYS),
    }
}

/// `read` of a program compiled with checks.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    size: size_t,
    room: size_t,
) -> ssize_t {
    match next::__read_chk() {
        // SAFETY: with the program's own arguments.
        Some(next) if !is_device(fd) => unsafe { next(fd, buffer, size, room) },
        Some(_) => refuse(Errno::INVAL),
        None => refuse(Errno::NOSYS),
    }
}

/// `write`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, size: size_t) -> ssize_t {
    match next::write() {
        // SAFETY: with the program's own arguments.
        Some(next) if !is_device(fd) => unsafe { next(fd, buffer, size) },
        Some(_) => refuse(Errno::INVAL),
        None => refuse(Errno::NOSYS),
    }
}

type Mmap =
    unsafe extern "C-unwind" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;

/// Maps the region in the place of a netmap descriptor, anything else as asked.
#[inline]
fn map(
    next: Option<Mmap>,
    address: *mut c_void,
    size: size_t,
    (protection, flags): (c_int, c_int),
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let Some(next) = next else { return failed(Errno::NOSYS) };
    let anonymous = flags & libc::MAP_ANONYMOUS != 0;
    let used = if anonymous || fd < 0 { None } else { TABLE.get(fd) };
    let region = match used.as_ref().and_then(|used| used.netmap()) {
        None => None,
        Some(descriptor) => match region(descriptor, fd, size, flags, offset) {
            Ok(region) => Some(region),
            Err(error) => return failed(error),
        },
    };
    match region {
        Some((region, start)) if flags & !ORDINARY == 0 => {
            let protection = ProtFlags::from_bits_retain(protection.cast_unsigned());
            let hint = address.addr();
            ring::map_as_device(hint, size, protection, region, start).unwrap_or_else(failed)
        }
        other => {
            let fd = other.map_or(fd, |(region, _)| region.as_raw_fd());
            // SAFETY: with the program's own arguments, but for the descriptor.
            unsafe { next(address, size, protection, flags, fd, offset) }
        }
    }
}

/// Flags that need nothing of the kernel. A program that asks for more (a fixed address, all pages
/// at once) gets a mapping by the kernel's own rules.
const ORDINARY: c_int = libc::MAP_TYPE | libc::MAP_NORESERVE;

/// The region and where in it the range begins, if all of that lies in it.
fn region(
    descriptor: &Descriptor,
    fd: RawFd,
    size: size_t,
    flags: c_int,
    offset: off_t,
) -> Result<(BorrowedFd<'_>, u64), Errno> {
    let binding = descriptor.binding(fd).ok_or(Errno::INVAL)?;
    let shared = matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    let start = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
    // As the kernel counts: whole pages.
    let end = start.checked_add((size as u64).next_multiple_of(4096)).ok_or(Errno::INVAL)?;
    if !shared || size == 0 || end > binding.bound().attached.region_bytes {
        return Err(Errno::INVAL);
    }
    Ok((binding.region(), start))
}

fn failed(error: Errno) -> *mut c_void {
    fail(error);
    libc::MAP_FAILED
}

/// `mmap`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mmap(
    address: *mut c_void,
    size: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    map(next::mmap(), address, size, (protection, flags), fd, offset)
}

/// `mmap64`, as the program calls it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mmap64(
    address: *mut c_void,
    size: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    map(next::mmap64(), address, size, (protection, flags), fd, offset)
}
