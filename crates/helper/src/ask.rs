//! The daemon's side: starts the helper, or connects to one that the system starts.
//!
//! However the helper behaves, who asks knows after `PATIENCE`: clients wait for the daemon
//! longer than that.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hostif::Undo;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, socketpair,
    sockopt,
};

use crate::wire::{Ask, Told, Word, hear_told, tell};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no answer: what is to be said of the helper, with what to do.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No such file.
    #[error("is not there; see helper in the daemon's configuration")]
    Missing,
    /// Not for us.
    #[error("is not for user {0}; let that user start it, or into the group of its socket")]
    NotForUs(u32),
    /// A socket that was left behind.
    #[error("is a socket on which nobody listens; try: systemctl start uvala-helper.socket")]
    NobodyListens,
    /// It hangs, or others have it busy.
    #[error("did not answer within {} s; see what keeps it, or end it: ps", PATIENCE.as_secs())]
    Silent,
    /// It has ended.
    #[error("ended without an answer; is it uvala-helper, of the daemon's version?")]
    Gone,
    /// It speaks something else.
    #[error("answered what makes no sense; is it uvala-helper, of the daemon's version?")]
    Nonsense,
    /// Something else.
    #[error("cannot be asked: {0}")]
    System(#[source] io::Error),
}

impl From<io::Error> for AskError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::PermissionDenied => Self::NotForUs(rustix::process::geteuid().as_raw()),
            io::ErrorKind::ConnectionRefused => Self::NobodyListens,
            io::ErrorKind::WouldBlock => Self::Silent,
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Gone,
            _ => Self::System(error),
        }
    }
}

impl From<Errno> for AskError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::BADMSG => Self::Nonsense,
            errno => io::Error::from(errno).into(),
        }
    }
}

/// What the helper has said and given.
#[derive(Debug)]
pub struct Answer {
    /// What it said.
    pub told: Told,
    /// What it gave.
    pub fds: Vec<OwnedFd>,
    /// The helper, which ends when it has heard the last word, or that there is none.
    pub listener: Listener,
}

/// A helper that may wait for the last word.
#[derive(Debug)]
pub struct Listener {
    socket: Option<OwnedFd>,
    /// If we have started it ourselves.
    helper: Option<Child>,
}

impl Undo for Listener {
    fn keep(&mut self) -> io::Result<()> {
        match &self.socket {
            Some(socket) => Ok(tell(socket, &Word::Made, &[])?),
            None => Ok(()),
        }
    }
}

impl Listener {
    /// Who has not answered is not waited for. One that runs as somebody else may not be killed.
    fn end(&mut self) {
        if let Some(helper) = &mut self.helper {
            let _ = helper.kill();
        }
    }
}

impl Drop for Listener {
    /// It may have something to put back, which nobody who opens something waits for.
    fn drop(&mut self) {
        self.socket = None;
        if let Some(mut helper) = self.helper.take() {
            let wait = move || drop(helper.wait());
            let _ = std::thread::Builder::new().name("reaper".to_owned()).spawn(wait);
        }
    }
}

/// Has the helper at `path`, a program or a socket, open something.
///
/// # Errors
/// It cannot be asked, or does not answer.
pub fn ask(path: &Path, ask: &Ask) -> Result<Answer, AskError> {
    ask_within(PATIENCE, path, ask)
}

fn ask_within(patience: Duration, path: &Path, ask: &Ask) -> Result<Answer, AskError> {
    let end = Instant::now() + patience;
    let mut listener = reach(patience, path)?;
    let socket = listener.socket.as_ref().expect("it is there until the end");
    match converse(socket, ask, end) {
        Ok((told, fds)) => Ok(Answer { told, fds, listener }),
        Err(error) => {
            listener.end();
            Err(error)
        }
    }
}

/// Connects to the helper, or starts it.
fn reach(patience: Duration, path: &Path) -> Result<Listener, AskError> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    if std::fs::metadata(path)?.file_type().is_socket() {
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        // Also for a place in the line of those who wait to be served.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        return Ok(Listener { socket: Some(socket), helper: None });
    }
    let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new(path);
    command.env_clear().stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    // The only copy of its end is its own when the command is gone, so its death is noticed.
    let helper = Some(command.spawn()?);
    Ok(Listener { socket: Some(ours), helper })
}

fn converse(socket: &OwnedFd, ask: &Ask, end: Instant) -> Result<(Told, Vec<OwnedFd>), AskError> {
    // No time at all would be for ever.
    let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(left))?;
    tell(socket, ask, &[])?;
    Ok(hear_told(socket)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Kind;

    fn question() -> Ask {
        Ask::plain(Kind::Tap, "tap0")
    }

    #[test]
    fn what_is_no_helper_is_said_to_be_none() {
        let error = |path| ask(Path::new(path), &question()).expect_err(path);
        assert!(matches!(error("/no/such/helper"), AskError::Missing));
        assert!(matches!(error("/bin/true"), AskError::Gone));
        assert!(matches!(error("/etc"), AskError::NotForUs(_)));
    }

    #[test]
    fn a_helper_that_hangs_is_not_waited_for() {
        // It hears what is asked, and waits for more.
        let silent = ask_within(Duration::from_millis(50), Path::new("/bin/cat"), &question());
        let error = silent.expect_err("it says nothing");
        assert!(matches!(error, AskError::Silent), "{error}");
    }

    #[test]
    fn an_answer_that_is_none_is_nonsense() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("descriptors");
        rustix::net::send(&pair.1, b"{}", rustix::net::SendFlags::empty()).expect("room");
        let end = Instant::now() + PATIENCE;
        assert!(matches!(converse(&pair.0, &question(), end), Err(AskError::Nonsense)));
        drop(pair.1);
        assert!(matches!(converse(&pair.0, &question(), end), Err(AskError::Gone)));
    }
}
