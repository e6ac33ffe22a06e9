//! Packet sockets: `recvmmsg` and `sendmmsg`, which no safe wrapper that we use has.
//!
//! The kernel copies frames to and from memory of the daemon. A ring that the kernel maps would
//! save one copy of received frames, at the price of a delay (version 3 delivers blocks) or of a
//! slot for each frame that fits the longest one (version 2), which is 16 MB for frames of 64 KiB.

#![allow(unsafe_code)] // UNSAFETY: raw socket calls.

use std::io;
use std::mem::{size_of, zeroed};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::c_int;
use packet::offload::VNET_LEN;
use rustix::io::Errno;

/// The most frames of one call.
pub const BATCH: usize = 64;
/// The room for each frame: the longest unsegmented frame that Linux delivers, with a tag.
const FRAME: usize = 65_536 + 64;
/// The layout of `tpacket_auxdata`.
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
    /// Receives up to [`BATCH`] frames; returns how many.
    ///
    /// # Errors
    /// `EAGAIN` if there are none; `ENETDOWN`, once, when the interface has gone down.
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

    /// Sends frames, each behind its virtio-net header; returns how many it sent, at least one.
    ///
    /// # Errors
    /// The error of the first frame.
    pub fn send(&self, frames: &[&[u8]]) -> Result<usize, Errno> {
        // SAFETY: all zeros are values of these structures.
        let (mut pieces, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        for (i, frame) in frames.iter().enumerate().take(BATCH) {
            let (iov_base, iov_len) = (frame.as_ptr().cast_mut().cast(), frame.len());
            // The kernel only reads from these.
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

/// From a socket that [`hostif::packet::open`] opened.
impl From<OwnedFd> for PacketSocket {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl PacketSocket {
    /// The socket, readable when frames have arrived.
    #[must_use]
    pub fn descriptor(&self) -> &OwnedFd {
        &self.0
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Room for control data, with the kernel's alignment.
type Control = [u64; 8];

/// Received frames.
#[derive(Debug)]
pub struct Inbox {
    frames: Box<[u8]>,
    heads: [[u8; VNET_LEN]; BATCH],
    controls: [Control; BATCH],
    control_lens: [usize; BATCH],
    /// The lengths of the frames; `None` for those that were truncated.
    lens: [Option<usize>; BATCH],
    count: usize,
}

/// A received frame.
#[derive(Debug)]
pub struct Received<'a> {
    /// The virtio-net header.
    pub head: [u8; VNET_LEN],
    /// The frame, without the VLAN tag that the kernel stripped.
    pub frame: &'a [u8],
    /// The stripped tag: TPID and TCI.
    pub tag: Option<[u8; 4]>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            // The kernel commits memory when it is used first.
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
    /// The number of frames.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// A frame; `None` if it was truncated.
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
