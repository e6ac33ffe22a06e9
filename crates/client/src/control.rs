//! The control connection: one call, one reply, blocking.
//!
//! A [`Connection`] owns the ports that were attached through it: when it is dropped, the daemon
//! detaches them at once. It can be polled ([`AsFd`]): if it is readable or hung up between two
//! calls, the daemon has ended, because a daemon sends replies only, and events to a connection
//! that [listens](Connection::listen).
//!
//! Replies have no numbers: a daemon answers the calls of a connection in their order, each once.
//! So a connection counts the calls that it has given up after a timeout, and drops as many replies
//! before that of the next call. Connections that share a socket do not know of each other's.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use protocol::paths;
pub use protocol::peer::Peer;
use protocol::{
    Attach, Attached, Bind, Bound, CallMessage, DaemonInfo, ErrorCode, Events, EventsQuery,
    Failure, GeometryQuery, Hello, MAX_FDS, MAX_GIVEN, MAX_MESSAGE, Outcome, PROTOCOL_VERSION,
    PortGeometry, PortRequest, Reply, ReplyMessage, Request, SessionRequest, exit,
};
use ring::Region;
use ring::layout::RegionLayout;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};
use thiserror::Error;

use crate::kick::Kick;

/// How long a call may take before the daemon counts as stuck.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a call may take for which the daemon commits memory. That may be much memory, and calls
/// of other clients may come first.
pub const ATTACH_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a call has no answer.
#[derive(Debug, Error)]
pub enum ControlError {
    /// No daemon listens on the socket.
    #[error("no daemon at {}; start one with: uvala daemon{}", .0.display(), dir_option(.0))]
    NoDaemon(PathBuf),
    /// The socket's permissions keep this user out.
    #[error(
        "no permission for {}; ask its owner, or run a daemon of your own: uvala daemon --dir DIR",
        .0.display()
    )]
    Permission(PathBuf),
    /// The socket's directory belongs to another user, below one that every user may write to: that
    /// user may have put the socket there, so the client does not trust it.
    #[error(
        "the daemon in {} is not trusted: the directory belongs to user {owner}, below one that \
         every user may write to; run the daemon in another directory: uvala daemon --dir DIR",
        .dir.display()
    )]
    Untrusted {
        /// The directory of its socket.
        dir: PathBuf,
        /// The owner of the directory.
        owner: u32,
    },
    /// The connection broke.
    #[error("the daemon at {} has closed the connection; connect again when it runs", .0.display())]
    Lost(PathBuf),
    /// No answer in time.
    #[error("the daemon at {} did not answer in time; see: uvala doctor", .0.display())]
    Timeout(PathBuf),
    /// The daemon refused the call.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The answer is not one of this protocol.
    #[error("invalid reply from the daemon ({0}); is it another version of uvala?")]
    Protocol(String),
    /// This process may have no more descriptors, or the system has none.
    #[error("no descriptors left in this process: close some, or raise the limit (ulimit -n)")]
    NoDescriptors,
    /// A system call failed.
    #[error("control connection to {}: {error}", .socket.display())]
    Io {
        /// The socket.
        socket: PathBuf,
        /// The error of the system call.
        error: Errno,
    },
}

/// The option with which a daemon listens on this socket.
fn dir_option(socket: &Path) -> String {
    match socket.parent() {
        Some(dir) if dir != paths::daemon_dir(None) => format!(" --dir {}", dir.display()),
        _ => String::new(),
    }
}

impl ControlError {
    /// Exit status of a program that stops for this reason.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoDaemon(_) | Self::Lost(_) | Self::Timeout(_) => exit::NO_DAEMON,
            Self::Permission(_) | Self::Untrusted { .. } => exit::PERMISSION,
            Self::Refused(failure) => failure.code.exit_code(),
            Self::Protocol(_) => exit::BAD_REQUEST,
            Self::NoDescriptors => exit::NO_MEMORY,
            Self::Io { .. } => exit::FAILURE,
        }
    }

    /// The daemon's error code, if the daemon refused the call.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(failure) => Some(failure.code),
            _ => None,
        }
    }
}

/// A connection to the daemon; `S` is its socket, owned or borrowed.
#[derive(Debug)]
pub struct Connection<S = OwnedFd> {
    socket: S,
    path: PathBuf,
    /// Replies that may still come to calls that were given up. Calls take turns: relaxed.
    late: AtomicU32,
}

/// The descriptors of an attached port; see [`Attached`].
#[derive(Debug)]
pub struct PortFds {
    /// The shared memory.
    pub region: OwnedFd,
    /// What wakes the other side.
    pub kick: Kick,
    /// Readable when the other side woke us.
    pub wake: OwnedFd,
}

impl Connection {
    /// Connects to the daemon in `dir`, or where [`paths`] says.
    pub fn open(dir: Option<&Path>) -> Result<Self, ControlError> {
        Self::connect(&paths::client_socket(dir))
    }

    /// Connects to the daemon behind `socket`.
    pub fn connect(socket: &Path) -> Result<Self, ControlError> {
        let path = socket.to_path_buf();
        check_owner(socket)?;
        let socket = connect(socket).map_err(|error| connect_error(&path, error))?;
        Ok(Self::from_fd(socket, &path))
    }

    /// The socket alone: closing its last copy ends the connection.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.socket
    }
}

impl<S: AsFd> Connection<S> {
    /// A connection over a socket that is connected to the daemon at `path` already. It may have
    /// come from another process, with whatever flags.
    #[must_use]
    pub fn from_fd(socket: S, path: &Path) -> Self {
        Self { socket, path: path.to_path_buf(), late: AtomicU32::new(0) }
    }

    /// Whether the daemon has gone. One system call.
    #[must_use]
    pub fn is_over(&self) -> bool {
        // No event asked for: what remains is the hang-up.
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        retry_on_intr(|| rustix::event::poll(&mut fds, Some(&now))) != Ok(0)
    }

    /// The daemon's process and user, as the kernel says.
    ///
    /// # Errors
    /// `getsockopt` fails.
    pub fn peer(&self) -> Result<Peer, Errno> {
        Peer::of(&self.socket)
    }

    /// The socket's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Introduces this program; the name appears in the daemon's listings.
    pub fn hello(&self, client: &str) -> Result<DaemonInfo, ControlError> {
        match self
            .call(Request::Session(SessionRequest::Hello(Hello { client: client.to_owned() })))?
        {
            Reply::Daemon(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    /// Opens a port.
    pub fn attach(&self, attach: Attach) -> Result<(Attached, PortFds), ControlError> {
        match self.call_with_fds(Request::Session(SessionRequest::Attach(attach)))? {
            (Reply::Attached(attached), fds) => Ok((attached, PortFds::new(fds)?)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Opens a port as netmap does. The port is the connection's until its last copy is closed.
    pub fn bind(&self, bind: Bind) -> Result<(Bound, PortFds), ControlError> {
        self.bound(Request::Session(SessionRequest::Bind(bind)))
    }

    /// What this connection has bound, for a process that got it from another one: the same answer
    /// as to [`Connection::bind`], with a doorbell of its own.
    pub fn resume(&self) -> Result<(Bound, PortFds), ControlError> {
        self.bound(Request::Session(SessionRequest::Resume))
    }

    fn bound(&self, request: Request) -> Result<(Bound, PortFds), ControlError> {
        match self.call_with_fds(request)? {
            (Reply::Bound(bound), fds) => Ok((bound, PortFds::new(fds)?)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Sizes of a port or of a region.
    pub fn port_geometry(&self, query: GeometryQuery) -> Result<PortGeometry, ControlError> {
        match self.call(Request::Port(PortRequest::Geometry(query)))? {
            Reply::PortGeometry(geometry) => Ok(geometry),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes a call whose reply carries no descriptors (if it does, they are closed).
    pub fn call(&self, request: Request) -> Result<Reply, ControlError> {
        self.call_with_fds(request).map(|(reply, _)| reply)
    }

    /// Makes a call.
    pub fn call_with_fds(&self, call: Request) -> Result<(Reply, Vec<OwnedFd>), ControlError> {
        self.converse(call, &[])
    }

    /// Makes a call that takes descriptors, at most [`MAX_GIVEN`], along.
    pub fn call_giving(
        &self,
        call: Request,
        given: &[BorrowedFd<'_>],
    ) -> Result<Reply, ControlError> {
        self.converse(call, given).map(|(reply, _)| reply)
    }

    fn converse(
        &self,
        call: Request,
        given: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), ControlError> {
        let timeout = match call {
            Request::Session(SessionRequest::Attach(_))
            | Request::Session(SessionRequest::Bind(_)) => ATTACH_TIMEOUT,
            _ => TIMEOUT,
        };
        self.converse_within(timeout, call, given)
    }

    fn converse_within(
        &self,
        timeout: Duration,
        call: Request,
        given: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), ControlError> {
        let message = CallMessage { v: PROTOCOL_VERSION, call };
        let text = serde_json::to_vec(&message)
            .map_err(|error| ControlError::Protocol(error.to_string()))?;
        // A daemon that refuses a connection sends the reason and closes before it reads: that
        // reason says more than the failure to send.
        let sent = self.send(&text, given);
        let received = self.receive_in_order(timeout);
        if sent.is_ok() && matches!(received, Err(ControlError::Timeout(_))) {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        let (text, fds) = received.map_err(|error| sent.err().unwrap_or(error))?;
        Ok((read(&text)?, fds))
    }

    /// Asks for events from now on. The connection is for them alone: [`Connection::events`].
    pub fn listen(&self, query: EventsQuery) -> Result<(), ControlError> {
        match self.call(Request::Session(SessionRequest::Events(query)))? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// The next events of a connection that listens; none, if none came within `timeout`.
    pub fn events(&self, timeout: Duration) -> Result<Events, ControlError> {
        match self.receive_in_order(timeout) {
            Ok((text, _)) => match read(&text)? {
                Reply::Events(events) => Ok(events),
                other => Err(unexpected(&other)),
            },
            Err(ControlError::Timeout(_)) => Ok(Events::default()),
            Err(error) => Err(error),
        }
    }

    fn send(&self, text: &[u8], given: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
        let mut sent = self.offer(text, given);
        if sent == Err(Errno::PERM) && !given.is_empty() {
            // The daemon admits descriptors of a caller after its first reply, if the caller may
            // send some. From others it takes the call alone, and refuses it with the reason.
            let _ = self.call(Request::Port(PortRequest::Geometry(GeometryQuery::default())));
            sent = match self.offer(text, given) {
                Err(Errno::PERM) => self.offer(text, &[]),
                sent => sent,
            };
        }
        sent.map_err(|error| self.io_error(error))
    }

    fn offer(&self, text: &[u8], given: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let flags = SendFlags::NOSIGNAL;
        let parts = [IoSlice::new(text)];
        let sent = retry_on_intr(|| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_GIVEN))];
            let mut beside = SendAncillaryBuffer::new(&mut space);
            if !given.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(given)) {
                return Err(Errno::TOOBIG);
            }
            rustix::net::sendmsg(&self.socket, &parts, &mut beside, flags)
        });
        sent.map(drop)
    }

    /// Receives the reply to the last call; those to calls that were given up come before it.
    fn receive_in_order(&self, timeout: Duration) -> Result<(Vec<u8>, Vec<OwnedFd>), ControlError> {
        use ControlError::{Io, Lost, Timeout};
        let begin = Instant::now();
        let left = || timeout.saturating_sub(begin.elapsed());
        while self.late.load(Ordering::Relaxed) > 0 {
            match self.receive(left()) {
                Err(error @ (Timeout(_) | Lost(_) | Io { .. })) => return Err(error),
                // Whatever the late reply says, it has come.
                Ok(_) | Err(_) => self.late.fetch_sub(1, Ordering::Relaxed),
            };
        }
        self.receive(left())
    }

    fn receive(&self, timeout: Duration) -> Result<(Vec<u8>, Vec<OwnedFd>), ControlError> {
        let mut text = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut receive = || {
            let mut parts = [IoSliceMut::new(&mut text)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            rustix::net::recvmsg(&self.socket, &mut parts, &mut ancillary, flags)
        };
        self.await_reply(timeout)?;
        let received = match retry_on_intr(&mut receive) {
            // The kernel reports this once, before a reply that came earlier and is still there.
            Err(Errno::CONNRESET) => retry_on_intr(&mut receive),
            other => other,
        };
        let RecvMsg { bytes, flags, .. } = received.map_err(|error| self.io_error(error))?;
        let fds = take_fds(&mut ancillary);
        if bytes == 0 {
            return Err(ControlError::Lost(self.path.clone()));
        }
        if flags.contains(ReturnFlags::TRUNC) {
            return Err(ControlError::Protocol("message too long".to_owned()));
        }
        if flags.contains(ReturnFlags::CTRUNC) {
            // The buffer has room for all descriptors of a reply, so the process has reached its
            // limit. Alignment may make room for one more.
            return Err(if fds.len() >= MAX_FDS {
                ControlError::Protocol("too many descriptors".to_owned())
            } else {
                ControlError::NoDescriptors
            });
        }
        text.truncate(bytes);
        Ok((text, fds))
    }

    /// Waits for the reply by `poll`: a process that had the socket before may have made it
    /// non-blocking.
    fn await_reply(&self, timeout: Duration) -> Result<(), ControlError> {
        let timeout = Timespec::try_from(timeout).expect("an hour at most");
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        match retry_on_intr(|| rustix::event::poll(&mut fds, Some(&timeout))) {
            Ok(0) => Err(ControlError::Timeout(self.path.clone())),
            Ok(_) => Ok(()),
            Err(error) => Err(self.io_error(error)),
        }
    }

    fn io_error(&self, error: Errno) -> ControlError {
        let socket = self.path.clone();
        match error {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => ControlError::Lost(socket),
            Errno::AGAIN => ControlError::Timeout(socket),
            error => ControlError::Io { socket, error },
        }
    }
}

impl PortFds {
    fn new(fds: Vec<OwnedFd>) -> Result<Self, ControlError> {
        let count = fds.len();
        let [region, kick, wake] = <[OwnedFd; 3]>::try_from(fds)
            .map_err(|_| ControlError::Protocol(format!("{count} descriptors instead of 3")))?;
        Ok(Self { region, kick: Kick::Descriptor(kick), wake })
    }

    /// Maps the region.
    pub(crate) fn map(&self, layout: RegionLayout) -> io::Result<Arc<Region>> {
        let attach = if self.kick.is_device() { Region::attach_device } else { Region::attach };
        attach(self.region.as_fd(), layout)
    }
}

impl<S: AsFd> AsFd for Connection<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The reply in a message, or why there is none.
fn read(text: &[u8]) -> Result<Reply, ControlError> {
    let reply: ReplyMessage =
        serde_json::from_slice(text).map_err(|error| ControlError::Protocol(error.to_string()))?;
    match reply.result {
        Outcome::Ok(reply) => Ok(reply),
        Outcome::Err(failure) => Err(failure.into()),
    }
}

/// The reply belongs to another call.
#[must_use]
pub fn unexpected(reply: &Reply) -> ControlError {
    let mut text = format!("{reply:?}");
    text.truncate(text.find(['(', ' ']).unwrap_or(text.len()));
    ControlError::Protocol(format!("unexpected answer {text}"))
}

fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    for direction in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, direction, Some(TIMEOUT))?;
    }
    retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket)
}

/// Any user may put a socket of that name in a directory that every user may write to, such as
/// `/tmp`. Below one, the client trusts only a directory of its own user or of root. Root
/// administers daemons of other users, and trusts what it names: SECURITY.md.
fn check_owner(socket: &Path) -> Result<(), ControlError> {
    let Some(dir) = socket.parent().filter(|_| is_below_open(socket)) else { return Ok(()) };
    let owner = rustix::fs::lstat(dir).map_err(|error| connect_error(socket, error))?.st_uid;
    if is_trusted(owner, rustix::process::geteuid().as_raw()) {
        return Ok(());
    }
    Err(ControlError::Untrusted { dir: dir.to_path_buf(), owner })
}

/// Whether every user may write to a directory above the path.
fn is_below_open(path: &Path) -> bool {
    let is_open = |dir: &Path| rustix::fs::stat(dir).is_ok_and(|stat| stat.st_mode & 0o002 != 0);
    let absolute = std::path::absolute(path).unwrap_or_default();
    absolute.ancestors().skip(1).any(is_open)
}

/// Whether the user `ours` trusts a directory of `owner` that any user may have made.
const fn is_trusted(owner: u32, ours: u32) -> bool {
    owner == ours || owner == 0 || ours == 0
}

fn connect_error(path: &Path, error: Errno) -> ControlError {
    let socket = path.to_path_buf();
    match error {
        Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR => ControlError::NoDaemon(socket),
        Errno::ACCESS | Errno::PERM => ControlError::Permission(socket),
        Errno::AGAIN => ControlError::Timeout(socket),
        Errno::MFILE | Errno::NFILE => ControlError::NoDescriptors,
        error => ControlError::Io { socket, error },
    }
}

fn take_fds(ancillary: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    rights.flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A connection whose other end the test plays.
    fn pair() -> (Connection, OwnedFd) {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        (Connection::from_fd(ours, Path::new("test.sock")), theirs)
    }

    fn answer(to: &OwnedFd, text: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        let parts = [IoSlice::new(text)];
        rustix::net::sendmsg(to, &parts, &mut ancillary, SendFlags::empty()).unwrap();
    }

    const DONE: &[u8] = br#"{"v":1,"result":{"ok":"done"}}"#;

    #[test]
    fn test_a_daemon_of_another_user_is_not_trusted_where_any_user_may_start_one() {
        assert!(!is_trusted(1000, 1001));
        assert!(is_trusted(1000, 1000) && is_trusted(0, 1000) && is_trusted(1000, 0));
        let open = std::env::temp_dir().join(format!("uvala-open-{}", std::process::id()));
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        assert!(is_below_open(&open.join("dir/uvala.sock")));
        std::fs::remove_dir(&open).unwrap();
        assert!(!is_below_open(Path::new("/nowhere/uvala.sock")));
    }

    #[test]
    fn test_a_missing_daemon_is_told_how_to_start() {
        let error = Connection::connect(Path::new("/nowhere/uvala.sock")).unwrap_err();
        let text = error.to_string();
        let hint = "start one with: uvala daemon --dir /nowhere";
        assert_eq!(text, format!("no daemon at /nowhere/uvala.sock; {hint}"));
        assert_eq!(error.exit_code(), exit::NO_DAEMON);
    }

    #[test]
    fn test_descriptors_come_with_the_reply() {
        let (connection, daemon) = pair();
        answer(&daemon, DONE, &[daemon.as_fd(), daemon.as_fd()]);
        let (reply, fds) = connection
            .call_with_fds(Request::Session(SessionRequest::Hello(Hello::default())))
            .unwrap();
        assert_eq!((reply, fds.len()), (Reply::Done, 2));
    }

    #[test]
    fn test_a_refusal_keeps_its_code() {
        let (connection, daemon) = pair();
        answer(&daemon, br#"{"v":1,"result":{"err":{"code":"quota","message":"m"}}}"#, &[]);
        let error = connection.hello("test").unwrap_err();
        assert_eq!((error.code(), error.exit_code()), (Some(ErrorCode::Quota), exit::QUOTA));
        assert_eq!(error.to_string(), "m");
    }

    #[test]
    fn test_a_daemon_that_leaves_is_reported() {
        let (connection, daemon) = pair();
        drop(daemon);
        assert!(matches!(connection.hello("test"), Err(ControlError::Lost(_))));
    }

    #[test]
    fn test_an_answer_that_comes_late_is_for_no_other_call() {
        let (connection, daemon) = pair();
        let hello = || Request::Session(SessionRequest::Hello(Hello::default()));
        let refusal = br#"{"v":1,"result":{"err":{"code":"quota","message":"m"}}}"#;
        let give_up = || {
            let late = connection.converse_within(Duration::from_millis(1), hello(), &[]);
            assert!(matches!(late, Err(ControlError::Timeout(_))), "{late:?}");
        };
        (0..2).for_each(|_| give_up());
        answer(&daemon, refusal, &[daemon.as_fd()]);
        // The other one is still to come.
        give_up();
        answer(&daemon, b"nonsense", &[]);
        answer(&daemon, refusal, &[]);
        answer(&daemon, DONE, &[]);
        assert_eq!(connection.call(hello()).unwrap(), Reply::Done);
        answer(&daemon, DONE, &[]);
        assert_eq!(connection.call(hello()).unwrap(), Reply::Done, "nothing is late any more");
        give_up();
        drop(daemon);
        assert!(matches!(connection.hello("test"), Err(ControlError::Lost(_))));
    }

    #[test]
    fn test_nonsense_is_an_error_and_no_panic() {
        for text in [&b"hello"[..], b"{}", br#"{"v":1,"result":{"ok":{"what":1}}}"#, b"\xff\xfe"] {
            let (connection, daemon) = pair();
            answer(&daemon, text, &[]);
            assert!(matches!(connection.hello("test"), Err(ControlError::Protocol(_))));
        }
        let (connection, daemon) = pair();
        answer(&daemon, DONE, &[]);
        let text = connection.hello("test").unwrap_err().to_string();
        assert!(text.contains("unexpected answer Done"), "{text}");
    }

    #[test]
    fn test_a_borrowed_socket_that_does_not_block_waits_for_its_reply() {
        let (connection, daemon) = pair();
        rustix::io::ioctl_fionbio(&connection, true).unwrap();
        let replier = std::thread::spawn(move || {
            let (mut text, mut length) = (vec![0; MAX_MESSAGE], 0);
            while length == 0 {
                length = rustix::io::read(&daemon, &mut text[..]).unwrap();
            }
            let refusal = br#"{"v":1,"result":{"err":{"code":"not_found","message":"m"}}}"#;
            std::thread::sleep(Duration::from_millis(20));
            answer(&daemon, refusal, &[]);
        });
        let borrowed = Connection::from_fd(connection.as_fd(), Path::new("test.sock"));
        assert_eq!(borrowed.resume().unwrap_err().code(), Some(ErrorCode::NotFound));
        replier.join().unwrap();
    }

    #[test]
    fn test_too_many_descriptors_are_refused() {
        let (connection, daemon) = pair();
        answer(&daemon, DONE, &[daemon.as_fd(); 2 * MAX_FDS]);
        let result = connection.call(Request::Session(SessionRequest::Hello(Hello::default())));
        assert!(matches!(result, Err(ControlError::Protocol(_))));
    }
}
