//! What a program finds in the place of its C library: the interposed functions.
//!
//! Each looks whether a descriptor of ours is meant and passes on everything else, at the price of
//! one load. Nothing here allocates, locks or sets `errno` on that way, so the functions are as
//! safe in signal handlers, and as good as points of cancellation, as those behind them. For the
//! latter the library is built with unwinding (`--profile preload`): a cancelled thread unwinds
//! through our frames, and gives back what it used.
//!
//! | module | functions |
//! |---|---|
//! | [`node`] | `stat`, `access`, `getxattr`, `chmod` and their relatives |
//! | [`files`] | `open` and its relatives, `fopen`, `close`, `dup`, `fcntl`, `recvmsg` |
//! | [`device`] | `ioctl`, `mmap` |
//! | [`poll`], [`select`] | `poll`, `ppoll`, `select`, `pselect` |
//! | [`epoll`] | `epoll_ctl`, `epoll_wait`, `epoll_pwait`, `epoll_pwait2` |
//!
//! On x86-64 and other machines where variable arguments travel as fixed ones do, `open`, `fcntl`
//! and `ioctl` can be functions with three arguments; that is the one thing assumed of the ABI.
//!
//! At start the library looks through the descriptors that the program was born with: what is a
//! connection to the daemon came through `exec` from a netmap program and stays what it was.

#![allow(unsafe_code)] // UNSAFETY: the C library's functions, called and replaced.

pub mod device;
pub mod epoll;
pub mod files;
pub mod node;
pub mod poll;
pub mod select;

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use protocol::paths::UNREADY_SOCKET_NAME;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};

use crate::daemon::socket_path;
use crate::descriptor::Descriptor;
use crate::errno::{get_errno, set_errno};
use crate::table::{Kind, TABLE};
use crate::{next, notice};

/// Runs before the program's `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let errno = get_errno();
    next::find_all();
    notice::remember_stderr();
    TABLE.own();
    // SAFETY: a function without arguments that lives for ever.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    adopt_all();
    set_errno(errno);
}

extern "C" fn in_child() {
    TABLE.after_fork();
}

/// Takes over the connections to the daemon among the descriptors of this process.
fn adopt_all() {
    use rustix::fs::{CWD, Mode, OFlags, RawDir};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::openat(CWD, c"/proc/self/fd", flags, Mode::empty()) else { return };
    let mut room = [std::mem::MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&dir, &mut room);
    while let Some(Ok(entry)) = entries.next() {
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if let Some(fd) = number.filter(|&fd| fd != dir.as_raw_fd()) {
            adopt(fd);
        }
    }
}

/// Takes `fd` over if it is a connection to the daemon. What it is bound to is asked later.
pub fn adopt(fd: RawFd) {
    TABLE.remove(fd);
    if is_connection(fd) {
        TABLE.insert(fd, Kind::Netmap(Descriptor::new(true)));
    }
}

fn is_connection(fd: RawFd) -> bool {
    // SAFETY: used within this call; a number that is not open is an error below.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let packets = sockopt::socket_type(fd) == Ok(SocketType::SEQPACKET);
    if !packets || sockopt::socket_domain(fd) != Ok(AddressFamily::UNIX) {
        return false;
    }
    let Ok(Some(peer)) = rustix::net::getpeername(fd) else { return false };
    let Ok(peer) = SocketAddrUnix::try_from(peer) else { return false };
    peer.path().and_then(|path| path.to_str().ok().map(PathBuf::from)).is_some_and(|path| {
        let same = |a: &Path, b: &Path| Some(identity(a)? == identity(b)?);
        let dirs = path.parent().zip(socket_path().parent());
        path.file_name().is_some_and(|name| name == UNREADY_SOCKET_NAME)
            && dirs.is_some_and(|(a, b)| a == b || same(a, b) == Some(true))
    })
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}
