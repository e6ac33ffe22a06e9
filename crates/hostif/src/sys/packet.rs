//! Packet and AF_XDP sockets: opened and configured.

#![allow(unsafe_code)] // UNSAFETY: binding a packet socket is in no safe wrapper that we use.

use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, OwnedFd};

use libc::c_int;
use packet::MacAddr;
use rustix::io::Errno;

use super::bpf::MARK;
use super::{check, length, set_option, socket};

/// The size of the socket's buffers, if the limit allows it: room for the frames that arrive while
/// the worker serves other ports.
const SOCKET_BUFFER: c_int = 4 << 20;
/// Sends without queueing, and without the programs at the queue (`linux/if_packet.h`).
const PACKET_QDISC_BYPASS: c_int = 20;

/// Opens a packet socket on the interface of this number in the namespace of the thread. It is
/// promiscuous, and does not receive what the host itself sends. `alone`: what it sends bypasses
/// the programs that cut the host's stack off.
///
/// # Errors
/// The error of the system call: `EPERM`, `ENODEV`; never `ENETDOWN`.
pub fn open(index: u32, alone: bool) -> Result<OwnedFd, Errno> {
    let packet = socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK)?;
    let index = index.cast_signed();
    set_option(&packet, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
    set_option(&packet, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1)?;
    set_option(&packet, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
    if alone {
        set_option(&packet, libc::SOL_PACKET, PACKET_QDISC_BYPASS, &1)?;
    }
    ignore_marked(&packet)?;
    for (forced, asked) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        // Only CAP_NET_ADMIN may exceed the limit.
        if set_option(&packet, libc::SOL_SOCKET, forced, &SOCKET_BUFFER).is_err() {
            set_option(&packet, libc::SOL_SOCKET, asked, &SOCKET_BUFFER)?;
        }
    }
    add_membership(&packet, index, None)?;
    bind(&packet, index)?;
    Ok(packet)
}

/// Opens an AF_XDP socket in the namespace of the thread.
///
/// # Errors
/// `EPERM` without CAP_NET_RAW; `EAFNOSUPPORT`.
pub fn open_xdp() -> Result<OwnedFd, Errno> {
    socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_NONBLOCK)
}

/// Opens a socket that makes the interface of this number in the namespace of the thread accept
/// frames for these addresses; for all, if `macs` is empty. The socket itself receives nothing.
///
/// # Errors
/// The error of the system call.
pub(super) fn membership(index: u32, macs: &[MacAddr]) -> Result<OwnedFd, Errno> {
    let packet = socket(libc::AF_PACKET, libc::SOCK_RAW)?;
    let index = index.cast_signed();
    if macs.is_empty() {
        add_membership(&packet, index, None)?;
    }
    macs.iter().try_for_each(|mac| add_membership(&packet, index, Some(*mac)))?;
    Ok(packet)
}

/// Makes the interface accept frames for `mac`, or all frames.
fn add_membership(packet: &OwnedFd, index: c_int, mac: Option<MacAddr>) -> Result<(), Errno> {
    let kind = match mac {
        None => libc::PACKET_MR_PROMISC,
        Some(mac) if mac.is_multicast() => libc::PACKET_MR_MULTICAST,
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
        request.mr_address[..6].copy_from_slice(&mac.octets());
    }
    set_option(packet, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Makes the socket drop the frames that a stack port passes to the host: they did not arrive by
/// the wire.
fn ignore_marked(packet: &OwnedFd) -> Result<(), Errno> {
    const LOAD_MARK: u32 = 0xffff_f000 + 20;
    let word = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut code = [
        word(0x20, 0, 0, LOAD_MARK),
        word(0x15, 0, 1, MARK),
        word(0x06, 0, 0, 0),
        word(0x06, 0, 0, u32::MAX),
    ];
    let program = libc::sock_fprog { len: 4, filter: code.as_mut_ptr() };
    set_option(packet, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

fn bind(packet: &OwnedFd, index: c_int) -> Result<(), Errno> {
    // SAFETY: all zeros are a value of this structure.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).expect("a small number");
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).expect("a small number").to_be();
    address.sll_ifindex = index;
    let len = length(size_of::<libc::sockaddr_ll>());
    // SAFETY: the kernel reads `len` bytes of the address.
    check(unsafe { libc::bind(packet.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Whether the namespace of the thread has an interface of this name. Netlink would tell, too, but
/// waits while another program changes an interface.
///
/// # Errors
/// `ENODEV`: there is none. `EPERM`: an old kernel tells it only with `CAP_NET_RAW`.
pub(crate) fn is_interface(name: &str) -> Result<(), Errno> {
    let any = socket(libc::AF_UNIX, libc::SOCK_DGRAM)?;
    let mut text = [0u8; libc::IFNAMSIZ];
    text.get_mut(..name.len()).ok_or(Errno::NODEV)?.copy_from_slice(name.as_bytes());
    set_option(&any, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &text)
}
