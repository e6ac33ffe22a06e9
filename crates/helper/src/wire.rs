//! The helper's protocol: one request, one reply, as JSON on a SEQPACKET socket, with descriptors
//! beside the reply.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use hostif::netlink::Interface;
use packet::MacAddr;
use protocol::{Address, Filter, Queues};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recv, recvmsg, send, sendmsg, shutdown, sockopt,
};
use serde::{Deserialize, Serialize};

/// The most bytes of a message.
pub const MESSAGE_MAX: usize = 4096;
/// The most descriptors of a reply: a socket for each queue, a map, a program, and the socket that
/// makes the interface accept frames.
pub const FDS_MAX: usize = 67;

/// The kind of port to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A TAP, created if there is none.
    Tap,
    /// A packet socket on an existing interface.
    Packet,
    /// AF_XDP sockets on the queues of an existing interface, and an XDP program.
    Xdp,
}

impl Kind {
    /// The name in messages and in the policy.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
        }
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The kind of port.
    pub kind: Kind,
    /// The name of the interface.
    pub ifname: String,
    /// The MTU of a TAP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The MAC address of a TAP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// An IP address for the host on a TAP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Open an existing TAP only; do not create one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub existing: bool,
    /// The numbers of queues for AF_XDP, the number of queues for a TAP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<Queues>,
    /// The frames that AF_XDP sockets get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
}

impl Request {
    /// A request without options, for tests.
    #[cfg(test)]
    pub(crate) fn plain(kind: Kind, ifname: &str) -> Self {
        Self {
            kind,
            ifname: ifname.to_owned(),
            mtu: None,
            mac: None,
            address: None,
            existing: false,
            queues: None,
            filter: None,
        }
    }

    /// The IP address and the length of its prefix.
    #[must_use]
    pub fn ip(&self) -> Option<(IpAddr, u8)> {
        self.address.map(|address| (address.ip, address.prefix))
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The interface is open. The descriptors are the queues of a TAP; or a packet socket; or the
    /// map, the program, the socket that makes the interface accept frames, and a socket for each
    /// queue.
    Opened {
        /// The XDP program runs in the driver.
        native: bool,
        /// The helper has changed the interface, and reverts the changes unless it is told that
        /// the port [was made](wait_for_confirmation).
        changed: bool,
        /// The inode number of the network namespace.
        namespace: u64,
        /// The interface, because a lookup by name could find another one.
        #[serde(with = "InterfaceText")]
        interface: Interface,
    },
    /// The reason, with what to do.
    Refused(String),
}

/// An interface in a reply.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Interface")]
struct InterfaceText {
    index: u32,
    name: String,
    #[serde(skip)]
    altnames: Vec<String>,
    running: bool,
    up: bool,
    ethernet: bool,
    mtu: u32,
    #[serde(with = "octets")]
    mac: MacAddr,
    driver: String,
    #[serde(skip)]
    owner: Option<u32>,
}

/// A MAC address in a reply: six numbers.
mod octets {
    use packet::MacAddr;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
    pub fn serialize<S: Serializer>(mac: &MacAddr, to: S) -> Result<S::Ok, S::Error> {
        mac.octets().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<MacAddr, D::Error> {
        <[u8; 6]>::deserialize(from).map(MacAddr::new)
    }
}

/// The confirmation for which the helper may wait.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confirmation {
    /// The port was made.
    Made,
}

/// Sends a message, with descriptors.
///
/// # Errors
/// The error of the system call.
pub fn send_message(
    socket: impl AsFd,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let text = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    if text.len() > MESSAGE_MAX || fds.len() > FDS_MAX {
        return Err(Errno::MSGSIZE);
    }
    if fds.is_empty() {
        return retry_on_intr(|| send(&socket, &text, SendFlags::NOSIGNAL)).map(drop);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !beside.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    let text = [IoSlice::new(&text)];
    retry_on_intr(|| sendmsg(&socket, &text, &mut beside, SendFlags::NOSIGNAL)).map(drop)
}

/// Receives the request. There is no room for descriptors, so the kernel closes any that come.
///
/// # Errors
/// The error of the system call; `EAGAIN` if there is no request within a second; `EBADMSG` if it
/// is invalid.
pub fn receive_request(socket: impl AsFd) -> Result<Request, Errno> {
    // A daemon sends its request at once. A client that sends none must not block the helper.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(1)))?;
    let mut text = [0; MESSAGE_MAX];
    let (_, length) = retry_on_intr(|| recv(&socket, &mut text[..], RecvFlags::TRUNC))?;
    let text = text.get(..length).ok_or(Errno::MSGSIZE)?;
    serde_json::from_slice(text).map_err(|_| Errno::BADMSG)
}

/// Waits for the confirmation that the port was made; returns `false` if it does not come within
/// `patience`. A daemon that confirms later gets an error.
pub fn wait_for_confirmation(socket: impl AsFd, patience: Duration) -> bool {
    let receive = |flags| {
        let mut text = [0; 16];
        let (_, length) = retry_on_intr(|| recv(&socket, &mut text[..], flags))?;
        Ok(matches!(serde_json::from_slice(&text[..length]), Ok(Confirmation::Made)))
    };
    let waits = sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(patience));
    match waits.and_then(|()| receive(RecvFlags::empty())) {
        Err(Errno::AGAIN) => {
            // A confirmation that arrived before the shutdown counts.
            let shut = shutdown(&socket, Shutdown::Read);
            shut.and_then(|()| receive(RecvFlags::DONTWAIT)).unwrap_or(false)
        }
        heard => heard.unwrap_or(false),
    }
}

/// Receives the reply.
///
/// # Errors
/// The error of the system call; `ECONNRESET` if there is no reply, `EBADMSG` if it is invalid.
pub fn receive_reply(socket: impl AsFd) -> Result<(Reply, Vec<OwnedFd>), Errno> {
    let mut text = [0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let came = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut beside, flags)?;
    let fds = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    if came.bytes == 0 {
        return Err(Errno::CONNRESET);
    }
    let reply = serde_json::from_slice(&text[..came.bytes.min(MESSAGE_MAX)]);
    reply.map(|reply| (reply, fds)).map_err(|_| Errno::BADMSG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("descriptors")
    }

    /// Daemon and helper may be of two releases: systemd starts the new one for the old daemon.
    #[test]
    fn the_confirmation_is_the_word_that_earlier_releases_send() {
        assert_eq!(serde_json::to_string(&Confirmation::Made).unwrap(), "\"made\"");
    }

    #[test]
    fn who_asks_nothing_is_not_waited_for() {
        let (helper, _silent) = pair();
        assert_eq!(receive_request(&helper), Err(Errno::AGAIN));
    }

    #[test]
    fn the_last_word_is_heard_or_cannot_be_said() {
        let short = Duration::from_millis(1);
        let (daemon, helper) = pair();
        send_message(&daemon, &Confirmation::Made, &[]).expect("the helper waits");
        assert!(wait_for_confirmation(&helper, Duration::from_secs(60)));
        assert!(!wait_for_confirmation(&helper, short), "once");
        assert!(send_message(&daemon, &Confirmation::Made, &[]).is_err(), "too late");
        for odd in [&b"{"[..], &[0xff; 64], b"[]"] {
            let (daemon, helper) = pair();
            send(&daemon, odd, SendFlags::empty()).expect("room");
            assert!(!wait_for_confirmation(&helper, short), "{odd:?}");
        }
        let (daemon, helper) = pair();
        drop(daemon);
        assert!(!wait_for_confirmation(&helper, Duration::from_secs(60)), "its end");
    }

    #[test]
    fn an_answer_says_which_interface_it_is() {
        let (daemon, helper) = pair();
        let mac = MacAddr::new([2, 0, 0, 0, 0, 7]);
        let (name, driver) = ("eth1".to_owned(), "veth".to_owned());
        let (index, mtu) = (7, 9000);
        let interface =
            Interface { index, name, mtu, mac, driver, running: true, ..Interface::default() };
        let (native, changed, namespace) = (true, true, 4_026_531_840);
        let reply = Reply::Opened { native, changed, namespace, interface };
        send_message(&helper, &reply, &[helper.as_fd()]).expect("room");
        let (heard, fds) = receive_reply(&daemon).expect("an answer");
        assert_eq!((heard, fds.len()), (reply, 1));
    }
}
