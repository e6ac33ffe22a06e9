//! Packet sockets: `recvmmsg` and `sendmmsg`, which no safe wrapper that we use knows.
//!
//! Frames lie in memory of ours; the kernel copies. A ring that the kernel maps would save one
//! copy of those that come in, at the price of a delay (version 3 hands over blocks) or a slot per
//! frame as long as the longest (version 2), which for runs of 64 KiB is 16 MB.

#![allow(unsafe_code)] // UNSAFETY: raw socket calls.

use std::io;
use std::mem::{size_of, zeroed};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_int;
use rustix::io::Errno;
use switch::offload::VNET_LEN;

use super::bpf::MARK;

/// Most frames of one call.
pub const BATCH: usize = 64;
/// Bytes kept for each frame: the longest run that Linux hands out, with a tag.
const FRAME: usize = 65_536 + 64;
/// The kernel's buffers, if it lets us: what arrives while the worker does other things.
const KERNEL_BUFFER: c_int = 4 << 20;
/// Sends without queueing and without the programs at the queue (`linux/if_packet.h`).
const PACKET_QDISC_BYPASS: c_int = 20;

/// `tpacket_auxdata`, and where in it is what we read.
mod aux {
    use std::ops::Range;

    pub const LEN: usize = 20;
    pub const STATUS: Range<usize> = 0..4;
    pub const TCI: Range<usize> = 16..18;
    pub const TPID: Range<usize> = 18..20;
    pub const VLAN_VALID: u32 = 1 << 4;
    pub const TPID_VALID: u32 = 1 << 6;
}

/// A socket that sends and receives the frames of one interface.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens one on the interface of this number in the thread's namespace: promiscuous, without
    /// the frames that the host itself sends. `alone`: what it sends passes by the programs that
    /// stand in the host's way.
    ///
    /// # Errors
    /// What the kernel says: `EPERM`, `ENODEV`, `ENETDOWN` never.
    pub fn open(index: u32, alone: bool) -> Result<Self, Errno> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: a system call without pointers; protocol 0 receives nothing yet.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: a descriptor that was made just now and is nobody else's.
        let socket = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        let index = index.cast_signed();
        socket.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
        socket.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, &1)?;
        socket.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
        if alone {
            socket.set(libc::SOL_PACKET, PACKET_QDISC_BYPASS, &1)?;
        }
        socket.ignore_marked()?;
        for (forced, asked) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            // Without the right to more than the limit, the limit.
            if socket.set(libc::SOL_SOCKET, forced, &KERNEL_BUFFER).is_err() {
                socket.set(libc::SOL_SOCKET, asked, &KERNEL_BUFFER)?;
            }
        }
        socket.hear(index, None)?;
        socket.bind(index)?;
        Ok(socket)
    }

    /// As long as this is open, the interface of this number in the thread's namespace takes in
    /// frames for these addresses; for all, if none is named. It receives nothing itself.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn listening(index: u32, macs: &[[u8; 6]]) -> Result<OwnedFd, Errno> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: a system call without pointers; protocol 0 receives nothing.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: a descriptor that was made just now and is nobody else's.
        let socket = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        let index = index.cast_signed();
        if macs.is_empty() {
            socket.hear(index, None)?;
        }
        macs.iter().try_for_each(|mac| socket.hear(index, Some(*mac)))?;
        Ok(socket.0)
    }

    /// The interface takes in frames for an address, or for all.
    fn hear(&self, index: c_int, mac: Option<[u8; 6]>) -> Result<(), Errno> {
        let kind = match mac {
            None => libc::PACKET_MR_PROMISC,
            Some([first, ..]) if first & 1 != 0 => libc::PACKET_MR_MULTICAST,
            Some(_) => libc::PACKET_MR_UNICAST,
        };
        let mut request = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: u16::try_from(kind).expect("a small number"),
            mr_alen: 0,
            mr_address: [0; 8],
        };
        if let Some(mac) = mac {
            request.mr_alen = 6;
            request.mr_address[..6].copy_from_slice(&mac);
        }
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    /// Frames that we hand to the host's stack arrive here too; they are not the cable's.
    fn ignore_marked(&self) -> Result<(), Errno> {
        const LOAD_MARK: u32 = 0xffff_f000 + 20;
        let word = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut code = [
            word(0x20, 0, 0, LOAD_MARK),
            word(0x15, 0, 1, MARK),
            word(0x06, 0, 0, 0),
            word(0x06, 0, 0, u32::MAX),
        ];
        let program = libc::sock_fprog { len: 4, filter: code.as_mut_ptr() };
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    fn bind(&self, index: c_int) -> Result<(), Errno> {
        // SAFETY: all zeros are a value of this structure.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).expect("a small number");
        address.sll_protocol = u16::try_from(libc::ETH_P_ALL).expect("a small number").to_be();
        address.sll_ifindex = index;
        let len = length(size_of::<libc::sockaddr_ll>());
        // SAFETY: the kernel reads `len` bytes of the address.
        check(unsafe { libc::bind(self.0.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
    }

    fn set<T: Copy>(&self, level: c_int, option: c_int, value: &T) -> Result<(), Errno> {
        let (value, len) = (std::ptr::from_ref(value), length(size_of::<T>()));
        // SAFETY: the kernel reads `len` bytes of the value.
        check(unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, value.cast(), len) })
            .map(drop)
    }

    /// Receives up to [`BATCH`] frames; returns how many.
    ///
    /// # Errors
    /// `EAGAIN` where there are none, `ENETDOWN` once when the interface has gone down.
    pub fn receive(&self, inbox: &mut Inbox) -> Result<usize, Errno> {
        inbox.count = 0;
        // SAFETY: all zeros are values of these structures.
        let (mut pieces, mut messages): ([[libc::iovec; 2]; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        for i in 0..BATCH {
            let (frame, head, control) = (
                inbox.frames[i * FRAME..][..FRAME].as_mut_ptr(),
                inbox.heads[i].as_mut_ptr(),
                inbox.controls[i].as_mut_ptr(),
            );
            pieces[i] = [
                libc::iovec { iov_base: head.cast(), iov_len: VNET_LEN },
                libc::iovec { iov_base: frame.cast(), iov_len: FRAME },
            ];
            messages[i].msg_hdr.msg_iov = pieces[i].as_mut_ptr();
            messages[i].msg_hdr.msg_iovlen = 2;
            messages[i].msg_hdr.msg_control = control.cast();
            messages[i].msg_hdr.msg_controllen = size_of::<Control>();
        }
        let (fd, none) = (self.0.as_raw_fd(), std::ptr::null_mut());
        let most = u32::try_from(BATCH).expect("a small number");
        // SAFETY: every message names pieces and room for control data that live until the call
        // returns, with their lengths.
        let count = check(unsafe {
            libc::recvmmsg(fd, messages.as_mut_ptr(), most, libc::MSG_DONTWAIT, none)
        })?;
        inbox.count = usize::try_from(count).expect("not negative");
        for (i, message) in messages.iter().enumerate().take(inbox.count) {
            let whole = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            inbox.lens[i] = (message.msg_len as usize).checked_sub(VNET_LEN).filter(|_| whole);
            inbox.control_lens[i] = message.msg_hdr.msg_controllen;
        }
        Ok(inbox.count)
    }

    /// Sends frames, each behind its virtio-net header; returns how many, at least one.
    ///
    /// # Errors
    /// What the kernel says of the first.
    pub fn send(&self, frames: &[&[u8]]) -> Result<usize, Errno> {
        // SAFETY: all zeros are values of these structures.
        let (mut pieces, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        for (i, frame) in frames.iter().enumerate().take(BATCH) {
            let (iov_base, iov_len) = (frame.as_ptr().cast_mut().cast(), frame.len());
            // The kernel only reads what is sent.
            pieces[i] = libc::iovec { iov_base, iov_len };
            messages[i].msg_hdr.msg_iov = &raw mut pieces[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        let count = u32::try_from(frames.len().min(BATCH)).expect("a small number");
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the first `count` messages name pieces that live until the call returns.
        let sent = check(unsafe {
            libc::sendmmsg(self.0.as_raw_fd(), messages.as_mut_ptr(), count, flags)
        })?;
        Ok(usize::try_from(sent).expect("not negative"))
    }
}

/// Is there an interface of this name in the thread's namespace? Netlink says so too, one question
/// at a time, and only when nobody changes an interface.
///
/// # Errors
/// `ENODEV`: there is none. `EPERM`: an old kernel tells that to those with `CAP_NET_RAW`.
pub fn is_interface(name: &str) -> Result<(), Errno> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: a system call without pointers.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: a descriptor that was made just now and is nobody else's.
    let socket = PacketSocket(unsafe { OwnedFd::from_raw_fd(fd) });
    let mut text = [0u8; libc::IFNAMSIZ];
    text.get_mut(..name.len()).ok_or(Errno::NODEV)?.copy_from_slice(name.as_bytes());
    socket.set(libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &text)
}

/// One that was opened as [`PacketSocket::open`] does it.
impl From<OwnedFd> for PacketSocket {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<PacketSocket> for OwnedFd {
    fn from(socket: PacketSocket) -> Self {
        socket.0
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Room for control data, aligned as the kernel wants it.
type Control = [u64; 8];

/// Received frames.
#[derive(Debug)]
pub struct Inbox {
    frames: Box<[u8]>,
    heads: [[u8; VNET_LEN]; BATCH],
    controls: [Control; BATCH],
    control_lens: [usize; BATCH],
    /// Lengths of the frames; none of those that were cut off.
    lens: [Option<usize>; BATCH],
    count: usize,
}

/// A received frame.
#[derive(Debug)]
pub struct Received<'a> {
    /// What is left to do to it.
    pub head: [u8; VNET_LEN],
    /// The frame without the tag that the kernel took out.
    pub frame: &'a [u8],
    /// That tag: protocol and TCI.
    pub tag: Option<[u8; 4]>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            // Memory that no frame has needed yet is not committed.
            frames: vec![0; BATCH * FRAME].into_boxed_slice(),
            heads: [[0; VNET_LEN]; BATCH],
            controls: [[0; 8]; BATCH],
            control_lens: [0; BATCH],
            lens: [None; BATCH],
            count: 0,
        }
    }
}

impl Inbox {
    /// How many frames there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// One of them; none if it was cut off.
    pub fn get(&self, i: usize) -> Option<Received<'_>> {
        let (len, tag) = (self.lens[i]?, self.tag(i));
        let frame = self.frames[i * FRAME..][..FRAME].get(..len)?;
        Some(Received { head: self.heads[i], frame, tag })
    }

    fn tag(&self, i: usize) -> Option<[u8; 4]> {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        let mut control = [0; size_of::<Control>()];
        for (to, from) in control.chunks_exact_mut(8).zip(self.controls[i]) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        let control = control.get(..self.control_lens[i])?;
        let number =
            |at: usize| Some(i32::from_ne_bytes(control.get(at..at + 4)?.try_into().ok()?));
        if number(8)? != libc::SOL_PACKET || number(12)? != libc::PACKET_AUXDATA {
            return None;
        }
        let data = control.get(HEADER..HEADER + aux::LEN)?;
        let status = u32::from_ne_bytes(data[aux::STATUS].try_into().ok()?);
        if status & aux::VLAN_VALID == 0 {
            return None;
        }
        let short = |at: Range<usize>| Some(u16::from_ne_bytes(data[at].try_into().ok()?));
        let (tci, tpid) = (short(aux::TCI)?, short(aux::TPID)?);
        let tpid = if status & aux::TPID_VALID != 0 { tpid } else { 0x8100 };
        let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
        Some([a, b, c, d])
    }
}

fn check(result: c_int) -> Result<c_int, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

fn length(bytes: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(bytes).expect("a small number")
}
