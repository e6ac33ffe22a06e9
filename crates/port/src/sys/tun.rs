//! TAPs: the ioctls of `/dev/net/tun`.

#![allow(unsafe_code)] // UNSAFETY: no safe wrapper that we use knows these ioctls.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};
use switch::offload::Offloads;

use super::outbox::Outbox;

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

const PLAIN: i32 = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;

/// Makes `fd` the TAP of this name, or the first queue of one that was made with several; makes
/// the TAP where there is none. A `%d` in the name is a number that the kernel chooses. Returns the
/// name.
///
/// # Errors
/// What the kernel says: `EBUSY`, `EPERM`, `EINVAL` for an interface that is no TAP.
pub fn attach(fd: &OwnedFd, name: &str) -> Result<String, Errno> {
    match set(fd, name, PLAIN) {
        Err(Errno::INVAL) => attach_queue(fd, name),
        result => result,
    }
}

/// Makes `fd` one of several queues of the TAP of this name, which is made where there is none.
/// Returns the name.
///
/// # Errors
/// As [`attach`]; `EINVAL` also for a TAP that was made with one queue.
pub fn attach_queue(fd: &OwnedFd, name: &str) -> Result<String, Errno> {
    set(fd, name, PLAIN | libc::IFF_MULTI_QUEUE)
}

/// What an open TAP is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Its name in its own namespace.
    pub name: String,
    /// Its address.
    pub mac: [u8; 6],
    /// It is opened as we open it: a TAP, with our header and nothing else in front of frames.
    pub fits: bool,
}

/// Says what somebody else has opened.
///
/// # Errors
/// `ENOTTY`: something else than a TAP or a TUN. `EBADFD`: one that nobody has attached.
pub fn look(fd: &OwnedFd) -> Result<About, Errno> {
    /// Number of `/dev/net/tun`.
    const TUN: (u32, u32) = (10, 200);
    let stat = rustix::fs::fstat(fd)?;
    let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device();
    let number = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if !is_device || number != TUN {
        return Err(Errno::NOTTY);
    }
    // SAFETY: all zeros are a value of this structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let flags = flags_of(fd, &mut request)?;
    let name = name_of(&request);
    let is_tap = flags & (PLAIN | libc::IFF_TUN) == PLAIN;
    let fits = is_tap && has_nothing_before(fd, &mut request)?;
    // SAFETY: the kernel reads and writes one `ifreq`, and this is one.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) })?;
    // SAFETY: the call has set the address.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr }.sa_data;
    let mac = std::array::from_fn(|i| address[i].cast_unsigned());
    Ok(About { name, mac, fits })
}

/// Has the kernel say which TAP this is; returns its flags.
fn flags_of(fd: &OwnedFd, request: &mut libc::ifreq) -> Result<i32, Errno> {
    // SAFETY: the kernel writes one `ifreq`, and this is one.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut *request) })?;
    // SAFETY: the call has set the flags.
    Ok(i32::from(unsafe { request.ifr_ifru.ifru_flags }))
}

/// Whether frames of a TAP come without information on packets in front (`IFF_NO_PI`). With the
/// same bit the kernel says that nobody has attached a filter (`IFF_NOFILTER`); so one that lets
/// all pass is attached while we look.
fn has_nothing_before(fd: &OwnedFd, request: &mut libc::ifreq) -> Result<bool, Errno> {
    const RETURN: u16 = 0x06;
    let mut all = libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: u32::MAX };
    let program = libc::sock_fprog { len: 1, filter: &raw mut all };
    // SAFETY: the kernel reads a program of one instruction, which lives longer than the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNATTACHFILTER, &raw const program) })?;
    let flags = flags_of(fd, request);
    // SAFETY: the kernel reads nothing.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNDETACHFILTER, &raw const program) })?;
    Ok(flags? & libc::IFF_NO_PI != 0)
}

/// Bytes in front of each frame: the header of virtio-net, with a number of buffers that nobody
/// looks at.
pub const HEADER: usize = 12;

/// Has frames come and go with a header of [`HEADER`] bytes, and those that the host's stack hands
/// out unfinished as the kernel knows how to. Returns what it knows.
///
/// # Errors
/// What the kernel says: it is older than any that we know.
pub fn leave_unfinished(fd: &OwnedFd) -> Result<Offloads, Errno> {
    let size = libc::c_int::try_from(HEADER).expect("a small number");
    // SAFETY: the kernel reads one `int`.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const size) })?;
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    match set_offload(fd, tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6) {
        Ok(()) => Ok(Offloads::ALL),
        // Before Linux 6.2.
        Err(_) => set_offload(fd, tcp).map(|()| Offloads::ALL.without(Offloads::USO)),
    }
}

/// Writes letters, one system call each, and tells in order what became of them.
pub fn write_each(
    queues: &[OwnedFd],
    mut outbox: Outbox<'_, '_>,
    flags: ReadWriteFlags,
    mut tell: impl FnMut(Result<usize, Errno>),
) {
    let flags = flags.bits().cast_signed();
    outbox.each(|queue, pieces| {
        let (tap, at) = (queues[queue].as_raw_fd(), pieces.as_ptr());
        let count = libc::c_int::try_from(pieces.len()).expect("a few hundred");
        loop {
            // SAFETY: the kernel only reads the pieces, which live until it returns; whoever else
            // may write there does it to their own frame.
            let written = unsafe { libc::pwritev2(tap, at, count, -1, flags) };
            match usize::try_from(written).map_err(|_| last_error()) {
                Err(Errno::INTR) => {}
                result => return tell(result),
            }
        }
    });
}

/// Has the host's stack finish its frames: for whoever opens the TAP next.
pub fn leave_finished(fd: &OwnedFd) {
    // A TAP that is gone has no next.
    let _ = set_offload(fd, 0);
}

fn set_offload(fd: &OwnedFd, offloads: libc::c_uint) -> Result<(), Errno> {
    let flags = libc::c_ulong::from(offloads);
    // SAFETY: a system call without pointers.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, flags) })
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
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(name_of(&request))
}

fn name_of(request: &libc::ifreq) -> String {
    let bytes = request.ifr_name.iter().map(|byte| byte.cast_unsigned());
    let name = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8(name).unwrap_or_default()
}

fn check(result: libc::c_int) -> Result<(), Errno> {
    if result >= 0 {
        return Ok(());
    }
    Err(last_error())
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
