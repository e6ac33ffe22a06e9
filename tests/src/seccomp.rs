//! What the kernel refuses a program, as the sandbox of a container does.

#![allow(unsafe_code)] // UNSAFETY: filters of system calls are in no safe wrapper that we use.

use std::io::Error;

/// From now on this process, and what it becomes, gets `EPERM` for a ring.
///
/// # Panics
/// If the kernel takes no filters.
pub fn refuse_uring() {
    const LOAD: u16 = 0x20;
    const IS: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const REFUSED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    let step = |code, k| libc::sock_filter { code, jt: 0, jf: u8::from(code == IS), k };
    let number = u32::try_from(libc::SYS_io_uring_setup).expect("a small number");
    // The number of the call is the first word that a filter sees.
    let mut filter = [
        step(LOAD, 0),
        step(IS, number),
        step(RETURN, REFUSED),
        step(RETURN, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: numbers only.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(done, 0, "{}", Error::last_os_error());
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the kernel reads a program of four steps, which lives longer than the call.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    assert_eq!(done, 0, "{}", Error::last_os_error());
}
