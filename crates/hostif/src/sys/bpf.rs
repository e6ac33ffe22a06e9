//! BPF programs of a few instructions between an interface and the host's stack.
//!
//! Programs are attached by links (TCX, Linux 6.6): the kernel detaches a program when the last
//! descriptor of its link is closed, so nothing is left behind however the daemon ends.
//!
//! Frames that a stack port passes to the host arrive by the interface again. They carry a mark, by
//! which packet sockets and the program that cuts the stack off recognise them.

#![allow(unsafe_code)] // UNSAFETY: bpf(2) is in no safe wrapper that we use.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// The mark of frames that a stack port passes to the host.
pub const MARK: u32 = 0x7576_6c61;

pub(super) const PROG_LOAD: i64 = 5;
pub(super) const LINK_CREATE: i64 = 28;
const SCHED_CLS: u32 = 3;
/// The program runs before those that are attached already (`BPF_F_BEFORE`).
const BEFORE: u32 = 1 << 3;
/// Return values of a program: run the next one; drop the frame.
const NEXT: i32 = -1;
const DROP: i32 = 2;
/// The offset of the mark in `struct __sk_buff`.
const OFFSET_OF_MARK: i16 = 8;
/// The BPF function `bpf_redirect`, and its flag to receive the frame there.
const REDIRECT: i32 = 23;
const INGRESS: i32 = 1;

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// On arriving frames, before the stack receives them.
    Ingress = 46,
    /// On frames that the stack sends.
    Egress = 47,
}

/// What a program does with each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Drops the frame.
    Drop,
    /// Drops the frame, unless a stack port passed it.
    DropOthers,
    /// Sends the frame by the interface of this index, before other programs see it.
    SendBy(u32),
    /// Passes the frame to the stack as if it had arrived on the interface of this index.
    ReceiveOn(u32),
}

/// A program, attached until this is dropped.
#[derive(Debug)]
pub struct Attached {
    _link: OwnedFd,
}

/// Attaches a program to the interface of this index in the thread's namespace.
///
/// # Errors
/// `EPERM`, or `EINVAL` if the kernel has no TCX.
pub fn attach(program: Program, hook: Hook, index: u32) -> Result<Attached, Errno> {
    let code = program.code();
    let license = c"Dual MIT/GPL";
    let mut attr = Attr::default();
    attr.put(0, SCHED_CLS);
    attr.put(4, u32::try_from(code.len()).expect("short"));
    attr.put_address(8, code.as_ptr().addr());
    attr.put_address(16, license.as_ptr().addr());
    // SAFETY: the kernel reads the program and the licence, which live until the call returns.
    let loaded = unsafe { bpf(PROG_LOAD, &attr) }?;
    let first = matches!(program, Program::SendBy(_) | Program::ReceiveOn(_));
    let mut attr = Attr::default();
    attr.put(0, loaded.as_raw_fd().cast_unsigned());
    attr.put(4, index);
    attr.put(8, hook as u32);
    attr.put(12, if first { BEFORE } else { 0 });
    // SAFETY: no addresses are in it.
    let link = unsafe { bpf(LINK_CREATE, &attr) }?;
    Ok(Attached { _link: link })
}

impl Program {
    fn code(self) -> Vec<u64> {
        match self {
            Self::Drop => vec![set(0, DROP), EXIT],
            Self::DropOthers => vec![
                op(0x61, 2, 1, OFFSET_OF_MARK, 0),
                op(0x15, 2, 0, 2, MARK.cast_signed()),
                set(0, DROP),
                EXIT,
                op(0x62, 1, 0, OFFSET_OF_MARK, 0),
                set(0, NEXT),
                EXIT,
            ],
            Self::SendBy(index) => {
                vec![set(1, index.cast_signed()), set(2, 0), op(0x85, 0, 0, 0, REDIRECT), EXIT]
            }
            Self::ReceiveOn(index) => vec![
                op(0x62, 1, 0, OFFSET_OF_MARK, MARK.cast_signed()),
                set(1, index.cast_signed()),
                set(2, INGRESS),
                op(0x85, 0, 0, 0, REDIRECT),
                EXIT,
            ],
        }
    }
}

pub(super) const EXIT: u64 = 0x95;

/// An instruction that puts a number into a register.
pub(super) fn set(register: u8, value: i32) -> u64 {
    op(0xb7, register, 0, 0, value)
}

/// One instruction: operation, target and source register, offset, immediate value.
pub(super) fn op(code: u8, to: u8, from: u8, offset: i16, number: i32) -> u64 {
    let registers = u64::from(from << 4 | to) << 8;
    let offset = u64::from(offset.cast_unsigned()) << 16;
    u64::from(code) | registers | offset | u64::from(number.cast_unsigned()) << 32
}

/// The argument of bpf(2): fields at offsets, zeros elsewhere.
#[derive(Default)]
#[repr(C, align(8))]
pub(super) struct Attr([[u32; 16]; 2]);

impl Attr {
    pub(super) fn put(&mut self, offset: usize, value: u32) {
        self.0[offset / 64][offset % 64 / 4] = value;
    }

    pub(super) fn put_address(&mut self, offset: usize, address: usize) {
        let bytes = (address as u64).to_ne_bytes();
        let half = |i: usize| u32::from_ne_bytes(bytes[i..i + 4].try_into().expect("four"));
        self.put(offset, half(0));
        self.put(offset + 4, half(4));
    }
}

/// Runs a command that creates a descriptor.
///
/// # Safety
/// The addresses in `attr` are what the command expects.
pub(super) unsafe fn bpf(command: i64, attr: &Attr) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller's promise.
    let fd = unsafe { call(command, attr) }?;
    // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs a command.
///
/// # Safety
/// The addresses in `attr` are what the command expects.
pub(super) unsafe fn call(command: i64, attr: &Attr) -> Result<i32, Errno> {
    // SAFETY: the caller's promise; the kernel reads this many bytes of `attr`.
    let answer = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<Attr>())
    };
    match i32::try_from(answer) {
        Ok(answer @ 0..) => Ok(answer),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_encoded_as_the_kernel_reads_them() {
        assert_eq!(set(0, DROP), 0x0000_0002_0000_00b7);
        assert_eq!(op(0x61, 2, 1, 8, 0), 0x0000_0000_0008_1261);
        assert_eq!(set(0, NEXT) >> 32, 0xffff_ffff);
    }
}
