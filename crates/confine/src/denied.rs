//! What a process says of a call that the kernel refused it.
//!
//! The kernel does not run the call, and sends the thread SIGSYS. The handler writes a line to
//! stderr, sets the call's result, and the thread goes on. It does only what a signal handler may:
//! it formats into memory of its own stack, and writes. If the thread blocks signals, as the C
//! library does while it starts a program, the kernel ends the process instead.

#![allow(unsafe_code)] // UNSAFETY: a signal handler that sets a register.

use core::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::calls;

/// Lines that a process writes: one that is taken over must not fill the log.
const LINES: u32 = 100;

/// Lines written, and those that would have been. Written and read by the handler in any thread.
static WRITTEN: AtomicU32 = AtomicU32::new(0);

/// From now on refused calls are logged.
pub(crate) fn catch() -> io::Result<()> {
    // SAFETY: a structure of integers, of which zeros are a value.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigsys;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the handler does nothing that a handler may not.
    let done = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The part of `siginfo_t` that SIGSYS fills, by the kernel's `asm-generic/siginfo.h`.
#[repr(C)]
struct Refused {
    signal: c_int,
    errno: c_int,
    code: c_int,
    _pad: c_int,
    address: *mut c_void,
    call: c_int,
    arch: u32,
}

/// The signal handler: logs the call and fails it.
extern "C" fn on_sigsys(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel fills this part for SIGSYS; errno belongs to this thread.
    let (refused, errno) = unsafe { (&*info.cast::<Refused>(), *libc::__errno_location()) };
    if WRITTEN.fetch_add(1, Ordering::Relaxed) < LINES {
        say(refused.call);
    }
    // SAFETY: the kernel gives a valid context, and restores the registers from it.
    unsafe { set_result(context.cast(), -libc::EPERM) };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(target_arch = "x86_64")]
unsafe fn set_result(context: *mut libc::ucontext_t, result: c_int) {
    let at = usize::try_from(libc::REG_RAX).unwrap_or_default();
    // SAFETY: the caller's.
    unsafe { (*context).uc_mcontext.gregs[at] = result.into() };
}

#[cfg(target_arch = "aarch64")]
unsafe fn set_result(context: *mut libc::ucontext_t, result: c_int) {
    // SAFETY: the caller's.
    unsafe { (*context).uc_mcontext.regs[0] = i64::from(result).cast_unsigned() };
}

/// Writes the line.
fn say(call: c_int) {
    let mut name = [0u8; 16];
    // SAFETY: the kernel writes at most 16 bytes, the last of which is zero.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let mut line = Line { bytes: [0; 160], len: 0 };
    line.put(b"confinement: thread ");
    line.put(&name[..end]);
    line.put(b" was denied system call ");
    match calls::name(call.into()) {
        Some(known) => line.put(known.as_bytes()),
        None => line.put_number(call.unsigned_abs()),
    }
    line.put(b"\n");
    // SAFETY: the bytes are there.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
}

/// A line that is made without memory from elsewhere.
struct Line {
    bytes: [u8; 160],
    len: usize,
}

impl Line {
    fn put(&mut self, text: &[u8]) {
        for &byte in text.iter().take(self.bytes.len() - self.len) {
            self.bytes[self.len] = byte;
            self.len += 1;
        }
    }

    fn put_number(&mut self, number: u32) {
        let mut digits = [0u8; 10];
        let (mut rest, mut at) = (number, digits.len());
        loop {
            at -= 1;
            digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or_default();
            rest /= 10;
            if rest == 0 {
                return self.put(&digits[at..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_numbers_and_is_cut_at_its_end() {
        let mut line = Line { bytes: [0; 160], len: 0 };
        [0, 7, 4_294_967_295].into_iter().for_each(|number| {
            line.put_number(number);
            line.put(b" ");
        });
        assert_eq!(&line.bytes[..line.len], b"0 7 4294967295 ");
        line.put(&[b'x'; 500]);
        assert_eq!(line.len, 160);
    }
}
