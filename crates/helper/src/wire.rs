//! One question, one answer: messages of JSON on a SEQPACKET socket, descriptors beside the answer.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use hostif::netlink::Interface;
use protocol::{Address, Filter, Mac, Queues};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recv, recvmsg, send, sendmsg, shutdown, sockopt,
};
use serde::{Deserialize, Serialize};

/// Most bytes of a message.
pub const MESSAGE_MAX: usize = 4096;
/// Most descriptors of an answer: a socket for each queue, a map, a program, and what has the
/// interface listen.
pub const FDS_MAX: usize = 67;

/// What is to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A TAP, made if there is none.
    Tap,
    /// A packet socket on an interface that is there.
    Packet,
    /// AF_XDP sockets on its queues, and a program in front of its driver.
    Xdp,
}

impl Kind {
    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
        }
    }
}

/// The question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// What.
    pub kind: Kind,
    /// The interface.
    pub ifname: String,
    /// For a TAP: its MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// An IP address for the host on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Only one that is there is opened, and none is made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub existing: bool,
    /// For AF_XDP: which queues. For a TAP: how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<Queues>,
    /// Which frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
}

impl Ask {
    /// For an interface as it is, in tests.
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

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// Here it is: the queues of a TAP; a packet socket;
    /// or the map, the program, what has the interface listen, and a socket for each queue.
    Opened {
        /// The program runs in the driver.
        native: bool,
        /// Something of it was changed, and is put back unless the helper [hears](hear_made) that
        /// the port is made.
        changed: bool,
        /// The network namespace that it is in, by number.
        namespace: u64,
        /// What it is: whoever looks it up by its name may find another one.
        #[serde(with = "InterfaceText")]
        interface: Interface,
    },
    /// Why it is not, with what to do.
    Refused(String),
}

/// An interface in the answer.
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
    mac: [u8; 6],
    driver: String,
}

/// The last word, where the helper waits for one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The port is made.
    Made,
}

/// Sends a message, with descriptors.
///
/// # Errors
/// What the kernel says.
pub fn tell(
    socket: impl AsFd,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let text = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    if text.len() > MESSAGE_MAX || fds.len() > FDS_MAX {
        return Err(Errno::MSGSIZE);
    }
    if fds.is_empty() {
        return send(socket, &text, SendFlags::NOSIGNAL).map(drop);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !beside.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    sendmsg(socket, &[IoSlice::new(&text)], &mut beside, SendFlags::NOSIGNAL).map(drop)
}

/// Receives the question. There is no room for descriptors, so the kernel closes what comes.
///
/// # Errors
/// What the kernel says, `EAGAIN` where nobody asks for a second; `EBADMSG` for nonsense.
pub fn hear(socket: impl AsFd) -> Result<Ask, Errno> {
    // Who only keeps others out is not waited for: a daemon asks at once.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(1)))?;
    let mut text = [0; MESSAGE_MAX];
    let (_, length) = recv(socket, &mut text[..], RecvFlags::TRUNC)?;
    let text = text.get(..length).ok_or(Errno::MSGSIZE)?;
    serde_json::from_slice(text).map_err(|_| Errno::BADMSG)
}

/// Waits for the last word: is the port made? It is not where nobody says so for `patience`; who
/// says it later gets an error.
pub fn hear_made(socket: impl AsFd, patience: Duration) -> bool {
    let hear = |flags| {
        let mut text = [0; 16];
        let (_, length) = recv(&socket, &mut text[..], flags)?;
        Ok(matches!(serde_json::from_slice(&text[..length]), Ok(Word::Made)))
    };
    let waits = sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(patience));
    match waits.and_then(|()| hear(RecvFlags::empty())) {
        Err(Errno::AGAIN) => {
            // What was said before is heard.
            let shut = shutdown(&socket, Shutdown::Read);
            shut.and_then(|()| hear(RecvFlags::DONTWAIT)).unwrap_or(false)
        }
        heard => heard.unwrap_or(false),
    }
}

/// Receives the answer.
///
/// # Errors
/// What the kernel says; `ECONNRESET` if there is none, `EBADMSG` for nonsense.
pub fn hear_told(socket: impl AsFd) -> Result<(Told, Vec<OwnedFd>), Errno> {
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
    let told = serde_json::from_slice(&text[..came.bytes.min(MESSAGE_MAX)]);
    told.map(|told| (told, fds)).map_err(|_| Errno::BADMSG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("descriptors")
    }

    #[test]
    fn who_asks_nothing_is_not_waited_for() {
        let (helper, _silent) = pair();
        assert_eq!(hear(&helper), Err(Errno::AGAIN));
    }

    #[test]
    fn the_last_word_is_heard_or_cannot_be_said() {
        let short = Duration::from_millis(1);
        let (daemon, helper) = pair();
        tell(&daemon, &Word::Made, &[]).expect("somebody hears");
        assert!(hear_made(&helper, Duration::from_secs(60)));
        assert!(!hear_made(&helper, short), "once");
        assert!(tell(&daemon, &Word::Made, &[]).is_err(), "too late");
        for odd in [&b"{"[..], &[0xff; 64], b"[]"] {
            let (daemon, helper) = pair();
            send(&daemon, odd, SendFlags::empty()).expect("room");
            assert!(!hear_made(&helper, short), "{odd:?}");
        }
        let (daemon, helper) = pair();
        drop(daemon);
        assert!(!hear_made(&helper, Duration::from_secs(60)), "its end");
    }

    #[test]
    fn an_answer_says_which_interface_it_is() {
        let (daemon, helper) = pair();
        let mac = [2, 0, 0, 0, 0, 7];
        let (name, driver) = ("eth1".to_owned(), "veth".to_owned());
        let (index, mtu) = (7, 9000);
        let interface =
            Interface { index, name, mtu, mac, driver, running: true, ..Interface::default() };
        let (native, changed, namespace) = (true, true, 4_026_531_840);
        let told = Told::Opened { native, changed, namespace, interface };
        tell(&helper, &told, &[helper.as_fd()]).expect("room");
        let (heard, fds) = hear_told(&daemon).expect("an answer");
        assert_eq!((heard, fds.len()), (told, 1));
    }
}
