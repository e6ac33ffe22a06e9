//! Queues and VLAN stripping of an interface, by `ethtool`'s ioctl.

#![allow(unsafe_code)] // UNSAFETY: no safe wrapper that we use knows this ioctl.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use super::{check, new_request, set_name, socket};

/// How many queues the interface `ifname` of the thread's namespace receives by; 1 if its driver
/// does not tell.
#[must_use]
pub(crate) fn queues(ifname: &str) -> u32 {
    const GET_CHANNELS: u32 = 0x3c;
    /// Where `struct ethtool_channels` has the number of receive queues, and of combined ones.
    const RX: usize = 5;
    const COMBINED: usize = 8;
    let mut channels = [0u32; 9];
    channels[0] = GET_CHANNELS;
    match Ethtool::open(ifname).and_then(|ethtool| ethtool.ask(&mut channels)) {
        Ok(()) => channels[RX].saturating_add(channels[COMBINED]).max(1),
        Err(_) => 1,
    }
}

/// What the interface does with VLAN tags of received frames. AF_XDP has no metadata for a tag that
/// the hardware strips, so the tag would be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags {
    /// The interface leaves tags in frames.
    Kept,
    /// The interface stripped tags until `keep_tags` switched that off.
    KeptNow,
    /// The interface strips tags, and that cannot be switched off.
    Lost,
}

/// What the interface `ifname` of the thread's namespace does with VLAN tags.
#[must_use]
pub fn tags(ifname: &str) -> Tags {
    let strips = Ethtool::open(ifname).is_ok_and(|ethtool| ethtool.strips());
    if strips { Tags::Lost } else { Tags::Kept }
}

/// Switches VLAN stripping of the interface `ifname` off; returns the guard that restores it, if it
/// was on.
#[must_use]
pub(crate) fn keep_tags(ifname: &str) -> (Tags, Option<Stripping>) {
    let Ok(ethtool) = Ethtool::open(ifname) else { return (Tags::Kept, None) };
    if !ethtool.strips() {
        return (Tags::Kept, None);
    }
    ethtool.strip(false);
    // A driver may ignore the request, so the result is read back.
    if ethtool.strips() {
        return (Tags::Lost, None);
    }
    (Tags::KeptNow, Some(Stripping { ethtool, keeps: false }))
}

/// A guard that switches VLAN stripping on again when it is dropped, unless the port was made.
#[derive(Debug)]
pub(crate) struct Stripping {
    ethtool: Ethtool,
    keeps: bool,
}

impl Stripping {
    /// Leaves VLAN stripping off.
    pub fn leave(&mut self) {
        self.keeps = true;
    }
}

impl Drop for Stripping {
    fn drop(&mut self) {
        if !self.keeps {
            self.ethtool.strip(true);
        }
    }
}

/// A channel to the driver of an interface, by `ethtool`'s structures of 32-bit words.
#[derive(Debug)]
struct Ethtool {
    /// A socket of the namespace of the interface, so that any thread can use it.
    socket: OwnedFd,
    ifname: String,
}

impl Ethtool {
    fn open(ifname: &str) -> Result<Self, Errno> {
        // The ioctl works on any socket except AF_XDP ones.
        let socket = socket(libc::AF_UNIX, libc::SOCK_DGRAM)?;
        Ok(Self { socket, ifname: ifname.to_owned() })
    }

    fn ask<const N: usize>(&self, words: &mut [u32; N]) -> Result<(), Errno> {
        const SIOCETHTOOL: libc::Ioctl = 0x8946;
        let mut request = new_request();
        set_name(&mut request, &self.ifname)?;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        let fd = self.socket.as_raw_fd();
        // SAFETY: the kernel reads one `ifreq`, and reads and writes the words that it points to:
        // as many as the command in the first word has.
        check(unsafe { libc::ioctl(fd, SIOCETHTOOL, &raw mut request) }).map(drop)
    }

    fn flags(&self) -> u32 {
        const GET_FLAGS: u32 = 0x25;
        let mut value = [GET_FLAGS, 0];
        self.ask(&mut value).map_or(0, |()| value[1])
    }

    fn strips(&self) -> bool {
        self.flags() & RXVLAN != 0
    }

    fn strip(&self, strips: bool) {
        const SET_FLAGS: u32 = 0x26;
        let flags = self.flags() & !RXVLAN | if strips { RXVLAN } else { 0 };
        // Callers that need the result read it back.
        let _ = self.ask(&mut [SET_FLAGS, flags]);
    }
}

/// `ETH_FLAG_RXVLAN`: the hardware strips VLAN tags.
const RXVLAN: u32 = 1 << 8;
