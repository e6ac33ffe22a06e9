//! The daemon's side: starts the helper (a confined daemon by its broker), or connects to one that
//! the service manager starts.
//!
//! However the helper behaves, a call returns within `PATIENCE`, which is shorter than a client
//! waits for the daemon.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hostif::{Undo, broker};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, socketpair,
    sockopt,
};

use crate::wire::{Confirmation, Reply, Request, receive_reply, send_message};

/// The time within which the helper must answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why the helper did not answer. The message continues a sentence that names the helper.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The file does not exist.
    #[error("is not there; see helper in the daemon's configuration")]
    Missing,
    /// The daemon may not start or reach the helper.
    #[error("is closed to user {0}; let that user execute it, or join the group of its socket")]
    NotForUs(u32),
    /// The socket is stale.
    #[error(
        "is a stale socket, on which no helper listens; try: systemctl start uvala-helper.socket"
    )]
    NobodyListens,
    /// The helper hangs, or is busy with other daemons.
    #[error("did not answer within {} s; find what blocks it, or end it: ps", PATIENCE.as_secs())]
    Silent,
    /// The helper ended.
    #[error("ended without an answer; is it uvala-helper, of the daemon's version?")]
    Gone,
    /// The answer is invalid.
    #[error("sent an invalid answer; is it uvala-helper, of the daemon's version?")]
    Nonsense,
    /// A system call failed for another reason.
    #[error("cannot be asked: {0}")]
    System(#[source] io::Error),
}

impl From<io::Error> for HelperError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::PermissionDenied => Self::NotForUs(rustix::process::geteuid().as_raw()),
            io::ErrorKind::ConnectionRefused => Self::NobodyListens,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Silent,
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Gone,
            _ => Self::System(error),
        }
    }
}

impl From<Errno> for HelperError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::BADMSG => Self::Nonsense,
            errno => io::Error::from(errno).into(),
        }
    }
}

/// The helper's answer.
#[derive(Debug)]
pub struct Answer {
    /// The reply.
    pub reply: Reply,
    /// The descriptors.
    pub fds: Vec<OwnedFd>,
    /// The helper, which waits for the confirmation that the port was made.
    pub listener: Listener,
}

/// A helper that may wait for a confirmation.
#[derive(Debug)]
pub struct Listener {
    socket: Option<OwnedFd>,
    /// The process, if the daemon started it.
    helper: Option<Child>,
}

impl Undo for Listener {
    fn keep(&mut self) -> io::Result<()> {
        match &self.socket {
            Some(socket) => Ok(send_message(socket, &Confirmation::Made, &[])?),
            None => Ok(()),
        }
    }
}

impl Listener {
    /// Kills a helper that has not answered, unless it runs as another user.
    fn end(&mut self) {
        if let Some(helper) = &mut self.helper {
            let _ = helper.kill();
        }
    }
}

impl Drop for Listener {
    /// Lets the helper revert its changes, without waiting for that.
    fn drop(&mut self) {
        self.socket = None;
        if let Some(mut helper) = self.helper.take() {
            let wait = move || drop(helper.wait());
            let _ = std::thread::Builder::new().name("reaper".to_owned()).spawn(wait);
        }
    }
}

/// Asks the helper at `path`, a program or a socket, to open an interface.
///
/// # Errors
/// The helper cannot be reached, or does not answer.
pub fn ask(path: &Path, request: &Request) -> Result<Answer, HelperError> {
    ask_within(PATIENCE, path, request)
}

fn ask_within(patience: Duration, path: &Path, request: &Request) -> Result<Answer, HelperError> {
    let end = Instant::now() + patience;
    let mut listener = reach(patience, path)?;
    let socket = listener.socket.as_ref().expect("it is there until the end");
    match converse(socket, request, end) {
        Ok((reply, fds)) => Ok(Answer { reply, fds, listener }),
        Err(error) => {
            listener.end();
            Err(error)
        }
    }
}

/// Connects to the helper, or starts it.
fn reach(patience: Duration, path: &Path) -> Result<Listener, HelperError> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    if std::fs::metadata(path)?.file_type().is_socket() {
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        // The limit includes the time in the socket's backlog.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        return Ok(Listener { socket: Some(socket), helper: None });
    }
    let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    if let Some(broker) = broker::get() {
        broker.start_helper(theirs)?;
        return Ok(Listener { socket: Some(ours), helper: None });
    }
    let mut command = Command::new(path);
    command.env_clear().stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    // The helper gets the only copy of its end, so the daemon notices when the helper dies.
    let helper = Some(command.spawn()?);
    Ok(Listener { socket: Some(ours), helper })
}

fn converse(
    socket: &OwnedFd,
    request: &Request,
    end: Instant,
) -> Result<(Reply, Vec<OwnedFd>), HelperError> {
    send_message(socket, request, &[])?;
    Ok(broker::receive_until(end, socket, || receive_reply(socket))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Kind;

    fn question() -> Request {
        Request::plain(Kind::Tap, "tap0")
    }

    #[test]
    fn what_is_no_helper_is_said_to_be_none() {
        let error = |path| ask(Path::new(path), &question()).expect_err(path);
        assert!(matches!(error("/no/such/helper"), HelperError::Missing));
        assert!(matches!(error("/bin/true"), HelperError::Gone));
        assert!(matches!(error("/etc"), HelperError::NotForUs(_)));
    }

    #[test]
    fn a_helper_that_hangs_is_not_waited_for() {
        // `cat` reads the request and waits for more.
        let silent = ask_within(Duration::from_millis(50), Path::new("/bin/cat"), &question());
        let error = silent.expect_err("it says nothing");
        assert!(matches!(error, HelperError::Silent), "{error}");
    }

    #[test]
    fn a_daemon_that_is_stopped_and_continued_still_waits_for_its_helper() {
        let pause =
            format!("sleep 0.1; kill -STOP {0}; sleep 0.1; kill -CONT {0}", std::process::id());
        let mut pause = Command::new("sh").args(["-c", &pause]).spawn().expect("a shell");
        let silent = ask_within(Duration::from_millis(400), Path::new("/bin/cat"), &question());
        assert!(pause.wait().expect("a child").success());
        let error = silent.expect_err("it says nothing");
        assert!(matches!(error, HelperError::Silent), "{error}");
    }

    #[test]
    fn an_answer_that_is_none_is_nonsense() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("descriptors");
        rustix::net::send(&pair.1, b"{}", rustix::net::SendFlags::empty()).expect("room");
        let end = Instant::now() + PATIENCE;
        assert!(matches!(converse(&pair.0, &question(), end), Err(HelperError::Nonsense)));
        drop(pair.1);
        assert!(matches!(converse(&pair.0, &question(), end), Err(HelperError::Gone)));
    }
}
