//! The functions behind ours: what the program would call without this library.
//!
//! Found once, at start; a program that comes here earlier (from a constructor) has its look-up
//! done at that moment. Where the C library has no such function, the program gets `ENOSYS`.

#![allow(unsafe_code)] // UNSAFETY: functions found by name.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, epoll_event, fd_set, gid_t, mode_t, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t,
    ssize_t, timespec, timeval, uid_t,
};

/// A function and where it was found.
struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, at: AtomicPtr::new(std::ptr::null_mut()) }
    }

    #[inline]
    fn get(&self) -> *mut c_void {
        let at = self.at.load(Ordering::Relaxed);
        if at.is_null() { self.find() } else { at }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: a zero-terminated name.
        let at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

/// Declares the functions: `name(types) -> type`.
macro_rules! next {
    ($($name:ident($($type:ty),* $(; $dots:tt)?) -> $result:ty;)*) => {
        $(
            /// The function of this name behind ours.
            #[inline]
            pub fn $name() -> Option<unsafe extern "C-unwind" fn($($type),* $(, $dots)?) -> $result>
            {
                let at = table::$name.get();
                // SAFETY: null, or the C library's function of this name, which has this type.
                unsafe { std::mem::transmute(at) }
            }
        )*

        #[allow(non_upper_case_globals)] // reason: named after what they hold.
        mod table {
            use super::Next;
            $(pub static $name: Next = Next::new(
                match std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes()
                ) {
                    Ok(name) => name,
                    Err(_) => panic!("a name"),
                }
            );)*
        }

        /// Finds all of them, so that later calls need no look-up.
        pub fn find_all() {
            $(let _ = table::$name.get();)*
        }
    };
}

next! {
    open(*const c_char, c_int; ...) -> c_int;
    open64(*const c_char, c_int; ...) -> c_int;
    openat(c_int, *const c_char, c_int; ...) -> c_int;
    openat64(c_int, *const c_char, c_int; ...) -> c_int;
    __open_2(*const c_char, c_int) -> c_int;
    __open64_2(*const c_char, c_int) -> c_int;
    __openat_2(c_int, *const c_char, c_int) -> c_int;
    __openat64_2(c_int, *const c_char, c_int) -> c_int;
    stat(*const c_char, *mut libc::stat) -> c_int;
    stat64(*const c_char, *mut libc::stat64) -> c_int;
    lstat(*const c_char, *mut libc::stat) -> c_int;
    lstat64(*const c_char, *mut libc::stat64) -> c_int;
    fstatat(c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    fstatat64(c_int, *const c_char, *mut libc::stat64, c_int) -> c_int;
    __xstat(c_int, *const c_char, *mut libc::stat) -> c_int;
    __xstat64(c_int, *const c_char, *mut libc::stat64) -> c_int;
    __lxstat(c_int, *const c_char, *mut libc::stat) -> c_int;
    __lxstat64(c_int, *const c_char, *mut libc::stat64) -> c_int;
    __fxstatat(c_int, c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    __fxstatat64(c_int, c_int, *const c_char, *mut libc::stat64, c_int) -> c_int;
    statx(c_int, *const c_char, c_int, c_uint, *mut libc::statx) -> c_int;
    access(*const c_char, c_int) -> c_int;
    eaccess(*const c_char, c_int) -> c_int;
    euidaccess(*const c_char, c_int) -> c_int;
    faccessat(c_int, *const c_char, c_int, c_int) -> c_int;
    getxattr(*const c_char, *const c_char, *mut c_void, size_t) -> ssize_t;
    lgetxattr(*const c_char, *const c_char, *mut c_void, size_t) -> ssize_t;
    listxattr(*const c_char, *mut c_char, size_t) -> ssize_t;
    llistxattr(*const c_char, *mut c_char, size_t) -> ssize_t;
    chmod(*const c_char, mode_t) -> c_int;
    fchmodat(c_int, *const c_char, mode_t, c_int) -> c_int;
    chown(*const c_char, uid_t, gid_t) -> c_int;
    lchown(*const c_char, uid_t, gid_t) -> c_int;
    fchownat(c_int, *const c_char, uid_t, gid_t, c_int) -> c_int;
    fopen(*const c_char, *const c_char) -> *mut FILE;
    fclose(*mut FILE) -> c_int;
    close(c_int) -> c_int;
    close_range(c_uint, c_uint, c_int) -> c_int;
    dup(c_int) -> c_int;
    dup2(c_int, c_int) -> c_int;
    dup3(c_int, c_int, c_int) -> c_int;
    fcntl(c_int, c_int; ...) -> c_int;
    fcntl64(c_int, c_int; ...) -> c_int;
    ioctl(c_int, c_ulong; ...) -> c_int;
    read(c_int, *mut c_void, size_t) -> ssize_t;
    __read_chk(c_int, *mut c_void, size_t, size_t) -> ssize_t;
    write(c_int, *const c_void, size_t) -> ssize_t;
    mmap(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
    mmap64(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
    recvmsg(c_int, *mut msghdr, c_int) -> ssize_t;
    poll(*mut pollfd, nfds_t, c_int) -> c_int;
    ppoll(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    __poll_chk(*mut pollfd, nfds_t, c_int, size_t) -> c_int;
    __ppoll_chk(*mut pollfd, nfds_t, *const timespec, *const sigset_t, size_t) -> c_int;
    select(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
    pselect(
        c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t
    ) -> c_int;
    epoll_ctl(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    epoll_wait(c_int, *mut epoll_event, c_int, c_int) -> c_int;
    epoll_pwait(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
    epoll_pwait2(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int;
}

/// The type of the last argument of `fcntl` and `ioctl`: any integer or pointer fits.
pub type Argument = c_long;

/// The mode of `open`.
pub type Mode = mode_t;

/// Calls the function behind ours.
macro_rules! pass {
    ($name:ident($($argument:expr),*)) => {
        match $crate::next::$name() {
            // SAFETY: with the program's own arguments, or as good.
            Some(next) => unsafe { next($($argument),*) },
            None => $crate::errno::fail(rustix::io::Errno::NOSYS).into(),
        }
    };
}
pub(crate) use pass;
