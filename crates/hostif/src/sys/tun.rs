//! TAPs: the ioctls of `/dev/net/tun`.

#![allow(unsafe_code)] // UNSAFETY: no safe wrapper that we use knows these ioctls.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use packet::MacAddr;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{check, new_request, set_name};

/// The length of the virtio-net header in front of each frame, with the number of buffers at its
/// end, which a TAP ignores.
pub const HEADER: usize = 12;

/// The flags of a TAP as a port uses it: Ethernet frames behind a virtio-net header.
const FLAGS: i32 = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;

/// Opens `/dev/net/tun`, non-blocking.
///
/// # Errors
/// The device file is missing, or the process may not open it.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags.bits().cast_signed());
    Ok(options.open("/dev/net/tun")?.into())
}

/// Which TAP [`attach`] attaches to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// A new one: where an interface has the name, the call fails.
    New,
    /// The one that has the name, or a new one if there is none.
    Any,
}

/// Attaches `fd` to a TAP of this name, or to the first queue of one with several. The kernel
/// replaces a `%d` in the name by a number. Returns the name.
///
/// # Errors
/// The error of the system call: `EBUSY`, also if there is an interface where there should be none,
/// `EPERM`, `EINVAL` for an interface that is not a TAP.
pub(crate) fn attach(fd: &OwnedFd, name: &str, which: Which) -> Result<String, Errno> {
    match set(fd, name, FLAGS, which) {
        Err(Errno::INVAL) => attach_queue(fd, name, which),
        result => result,
    }
}

/// Attaches `fd` to a queue of a multi-queue TAP of this name. Returns the name.
///
/// # Errors
/// The errors of [`attach`]; `EINVAL` also for a TAP that was made with one queue.
pub(crate) fn attach_queue(fd: &OwnedFd, name: &str, which: Which) -> Result<String, Errno> {
    set(fd, name, FLAGS | libc::IFF_MULTI_QUEUE, which)
}

/// Properties of an open TAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct About {
    /// The name in the TAP's own namespace.
    pub name: String,
    /// The MAC address.
    pub mac: MacAddr,
    /// The flags are those of a port: a TAP, with a virtio-net header and nothing else in front of
    /// frames.
    pub fits: bool,
    /// The TAP stays when its last descriptor is closed.
    pub persistent: bool,
}

/// Finds out what a descriptor of another program is.
///
/// # Errors
/// `ENOTTY`: the descriptor is neither a TAP nor a TUN. `EBADFD`: it is not attached.
pub(crate) fn look(fd: &OwnedFd) -> Result<About, Errno> {
    /// The device number of `/dev/net/tun`.
    const TUN: (u32, u32) = (10, 200);
    let stat = rustix::fs::fstat(fd)?;
    let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device();
    let number = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if !is_device || number != TUN {
        return Err(Errno::NOTTY);
    }
    let mut request = new_request();
    let flags = flags_of(fd, &mut request)?;
    let name = name_of(&request);
    let is_tap = flags & (FLAGS | libc::IFF_TUN) == FLAGS;
    let fits = is_tap && has_no_packet_info(fd, &mut request)?;
    // SAFETY: the kernel reads and writes one `ifreq`, and this is one.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) })?;
    // SAFETY: the call has set the address.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr }.sa_data;
    let mac = MacAddr::new(std::array::from_fn(|i| address[i].cast_unsigned()));
    let persistent = flags & libc::IFF_PERSIST != 0;
    Ok(About { name, mac, fits, persistent })
}

/// Opens the network namespace that a TAP is in now.
///
/// # Errors
/// `EPERM`: the process has no `CAP_NET_ADMIN` there. `EBADFD`: the TAP is gone.
pub(crate) fn namespace(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    /// `linux/if_tun.h`.
    const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;
    // SAFETY: a system call without pointers.
    let opened = check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNGETDEVNETNS) })?;
    // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

/// Reads the flags of a TAP; `request` then has its name.
fn flags_of(fd: &OwnedFd, request: &mut libc::ifreq) -> Result<i32, Errno> {
    // SAFETY: the kernel writes one `ifreq`, and this is one.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut *request) })?;
    // SAFETY: the call has set the flags.
    Ok(i32::from(unsafe { request.ifr_ifru.ifru_flags }))
}

/// Whether frames of a TAP come without packet information in front (`IFF_NO_PI`). The kernel uses
/// the same bit for "no filter is attached" (`IFF_NOFILTER`), so this attaches a filter that passes
/// everything while it reads the flags.
fn has_no_packet_info(fd: &OwnedFd, request: &mut libc::ifreq) -> Result<bool, Errno> {
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

/// Makes frames come and go behind a virtio-net header of [`HEADER`] bytes, and switches on the
/// offloads that the kernel has: TCP segmentation and checksums always; returns whether it has UDP
/// segmentation, too (Linux 6.2).
///
/// # Errors
/// The error of the system call: the kernel is older than any supported one.
pub fn enable_offloads(fd: &OwnedFd) -> Result<bool, Errno> {
    let size = libc::c_int::try_from(HEADER).expect("a small number");
    // SAFETY: the kernel reads one `int`.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const size) })?;
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    match set_offload(fd, tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6) {
        Ok(()) => Ok(true),
        Err(_) => set_offload(fd, tcp).map(|()| false),
    }
}

/// Switches the offloads off, so that the next program that opens the TAP gets complete frames.
pub fn disable_offloads(fd: &OwnedFd) {
    // The call fails if the TAP is gone, and then no program opens it.
    let _ = set_offload(fd, 0);
}

fn set_offload(fd: &OwnedFd, offloads: libc::c_uint) -> Result<(), Errno> {
    let flags = libc::c_ulong::from(offloads);
    // SAFETY: a system call without pointers.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, flags) }).map(drop)
}

fn set(fd: &OwnedFd, name: &str, flags: i32, which: Which) -> Result<String, Errno> {
    let alone = if which == Which::New { libc::IFF_TUN_EXCL } else { 0 };
    let mut request = new_request();
    set_name(&mut request, name)?;
    let flags = u16::try_from(flags | alone).expect("flags of 16 bits");
    request.ifr_ifru.ifru_flags = flags.cast_signed();
    // SAFETY: the kernel reads and writes one `ifreq`, and this is one.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(name_of(&request))
}

fn name_of(request: &libc::ifreq) -> String {
    let bytes = request.ifr_name.iter().map(|byte| byte.cast_unsigned());
    let name = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8(name).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rustix::thread::{UnshareFlags, unshare_unsafe};

    use super::*;

    /// In a network namespace of its own.
    fn story() {
        // SAFETY: a network namespace is no memory and no table of descriptors.
        if unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.is_err() {
            return eprintln!("SKIPPED: network namespaces need root; also: unshare -Urn");
        }
        let Ok(taps) = std::iter::repeat_with(open).take(4).collect::<io::Result<Vec<_>>>() else {
            return eprintln!("SKIPPED: no /dev/net/tun");
        };
        assert_eq!(attach_queue(&taps[0], "new0", Which::New).as_deref(), Ok("new0"));
        for name in ["new0", "lo"] {
            assert_eq!(attach_queue(&taps[1], name, Which::New), Err(Errno::BUSY), "{name}");
            assert_eq!(attach(&taps[1], name, Which::New), Err(Errno::BUSY), "{name}");
        }
        assert_eq!(attach_queue(&taps[1], "new0", Which::Any).as_deref(), Ok("new0"));
        assert_eq!(attach(&taps[2], "lo", Which::Any), Err(Errno::INVAL));
        assert_eq!(attach(&taps[2], "other%d", Which::New).as_deref(), Ok("other0"));
        assert!(look(&taps[2]).expect("a TAP").fits, "the flag is none of the TAP");
    }

    #[test]
    fn a_new_tap_is_none_that_was_there() {
        std::thread::spawn(story).join().expect("no panic");
    }
}
