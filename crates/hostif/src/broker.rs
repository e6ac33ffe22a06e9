//! The broker: a process beside a confined daemon, for the two things that confinement rules out.
//!
//! ```text
//!   daemon (confined)                          broker (as the daemon was before)
//!     "n/proc/7/ns/net", answer ──────────────► opens it, if it is a network namespace
//!     "h", answer, its standard input ────────► starts the helper that the configuration names
//!     error number, descriptor ◄──────────────
//! ```
//!
//! A process under Landlock may not enter `/proc/PID/ns` of others, and one without new privileges
//! starts the helper without the helper's capabilities. The daemon forks the broker before it is
//! confined. The broker takes no path of a program from the daemon, ends with it, and kills a
//! helper that lives longer than `HELPER_MAX`.
//!
//! A path can lead to a file system that does not answer, and holds the broker up as long. So the
//! daemon waits for `PATIENCE` only. Each question has a socket of its own for the answer: one that
//! comes late is the answer to no other question.

#![allow(unsafe_code)] // UNSAFETY: fork(2).

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, fstatfs, openat};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    sockopt,
};

/// The time within which the broker must answer: as long as the daemon waits for a helper.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time within which a helper must end.
const HELPER_MAX: Duration = Duration::from_secs(60);
/// The longest request: a letter and a path.
const REQUEST_MAX: usize = 4097;
const HELPER: u8 = b'h';
const NAMESPACE: u8 = b'n';

static BROKER: OnceLock<Broker> = OnceLock::new();

/// The daemon's end.
#[derive(Debug)]
pub struct Broker {
    socket: OwnedFd,
    patience: Duration,
}

/// The broker of this process, if it has one.
#[must_use]
pub fn get() -> Option<&'static Broker> {
    BROKER.get()
}

/// Starts the broker of this process, which must have one thread. `helper`: the program that the
/// broker may start.
///
/// # Errors
/// No processes or descriptors left, or the process has more threads.
pub fn start(helper: Option<PathBuf>) -> io::Result<()> {
    let (ours, theirs) = pair()?;
    if std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count) != 1 {
        return Err(io::Error::other("the process has threads already"));
    }
    // SAFETY: one thread: no lock is held that the child could wait for.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(ours);
            let _ = rustix::thread::set_name(c"uvala-broker");
            // Ctrl-C at the daemon's terminal is the daemon's.
            let _ = rustix::process::setsid();
            let_go(&theirs);
            serve(&theirs, helper.as_deref());
            std::process::exit(0);
        }
        _ => {
            // A second one would be a bug, and is not used.
            let _ = BROKER.set(Broker::new(ours, PATIENCE)?);
            Ok(())
        }
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Broker {
    fn new(socket: OwnedFd, patience: Duration) -> io::Result<Self> {
        // Where questions wait for a broker that is held up, there is soon no room for more.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))?;
        Ok(Self { socket, patience })
    }

    /// Opens a network namespace by its path.
    ///
    /// # Errors
    /// The broker's error, or it has gone.
    pub fn namespace(&self, path: &str) -> io::Result<OwnedFd> {
        let text = [&[NAMESPACE], path.as_bytes()].concat();
        self.ask(&text, None)?.ok_or_else(|| Errno::BADMSG.into())
    }

    /// Starts the helper with this standard input.
    ///
    /// # Errors
    /// The helper cannot be started.
    pub fn start_helper(&self, stdin: OwnedFd) -> io::Result<()> {
        self.ask(&[HELPER], Some(stdin.as_fd())).map(drop)
    }

    /// Sends a request with a socket of its own for the answer, so that threads need no lock.
    fn ask(&self, text: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<Option<OwnedFd>> {
        let late = |errno: Errno| match errno {
            Errno::AGAIN => io::Error::new(
                io::ErrorKind::TimedOut,
                "no answer in time; see whether the file system of its path hangs",
            ),
            errno => errno.into(),
        };
        let end = Instant::now() + self.patience;
        let (ours, theirs) = pair()?;
        let fds: Vec<_> = [theirs.as_fd()].into_iter().chain(fd).collect();
        send(self.socket.as_fd(), text, &fds).map_err(late)?;
        drop(theirs);
        let mut answer = [0; 4];
        let received = receive_until(end, &ours, || receive(ours.as_fd(), &mut answer));
        let (size, mut fds) = received.map_err(late)?;
        match (size, i32::from_ne_bytes(answer)) {
            (4, 0) => Ok(fds.pop()),
            (4, errno) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(Errno::PIPE.into()),
        }
    }
}

/// Closes what the daemon had open, but for its socket: the reader of the daemon's output must not
/// wait for the broker.
fn let_go(socket: &OwnedFd) {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let own = socket.as_raw_fd().cast_unsigned();
    for (first, last) in [(3, own - 1), (own + 1, u32::MAX)] {
        // A kernel that lacks the call leaves them open.
        if first <= last {
            // SAFETY: this process uses none of them: it continues in `serve`, and then ends.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// Serves until the daemon has gone.
fn serve(socket: &OwnedFd, helper: Option<&Path>) {
    let mut helpers: Vec<(Child, Instant)> = Vec::new();
    loop {
        helpers.retain_mut(|(helper, started)| {
            if started.elapsed() > HELPER_MAX {
                let _ = helper.kill();
            }
            !matches!(helper.try_wait(), Ok(Some(_)))
        });
        let wait = Timespec { tv_sec: 1, tv_nsec: 0 };
        let wait = (!helpers.is_empty()).then_some(&wait);
        if let Ok(0) | Err(_) = poll(&mut [PollFd::new(socket, PollFlags::IN)], wait) {
            continue;
        }
        let mut text = vec![0; REQUEST_MAX];
        let Ok((size @ 1.., fds)) = receive(socket.as_fd(), &mut text) else { return };
        text.truncate(size);
        let mut fds = fds.into_iter();
        let Some(answer) = fds.next() else { continue };
        let (errno, fd) = match act(&text, fds.next(), helper) {
            Ok(Done::Opened(fd)) => (0, Some(fd)),
            Ok(Done::Started(child)) => {
                helpers.push((child, Instant::now()));
                (0, None)
            }
            Err(error) => (error.raw_os_error().unwrap_or(libc::EIO), None),
        };
        let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
        // A daemon that does not wait any more has given up, or has gone: the next call tells.
        let _ = send(answer.as_fd(), &errno.to_ne_bytes(), &fds);
    }
}

enum Done {
    Opened(OwnedFd),
    Started(Child),
}

fn act(request: &[u8], fd: Option<OwnedFd>, helper: Option<&Path>) -> io::Result<Done> {
    match (request, fd, helper) {
        ([NAMESPACE, path @ ..], ..) => {
            let path = std::str::from_utf8(path).map_err(|_| Errno::INVAL)?;
            open_path(path).map(Done::Opened)
        }
        ([HELPER], Some(stdin), Some(helper)) => {
            let mut command = Command::new(helper);
            command.env_clear().stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().map(Done::Started)
        }
        _ => Err(Errno::INVAL.into()),
    }
}

/// Opens the file of a namespace, and no other: not one that takes its place after the look.
pub(crate) fn open_path(path: &str) -> io::Result<OwnedFd> {
    // Opening another kind of file could do something, or block, as with a FIFO; this does not.
    let found = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if fstatfs(&found)?.f_type != NAMESPACES {
        return Err(Errno::NOENT.into());
    }
    Ok(File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?.into())
}

/// The magic number of the namespace file system (`linux/magic.h`).
const NAMESPACES: rustix::fs::FsWord = 0x6e73_6673;

fn send(socket: BorrowedFd<'_>, text: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    let text = [IoSlice::new(text)];
    retry_on_intr(|| sendmsg(socket, &text, &mut control, SendFlags::NOSIGNAL)).map(drop)
}

/// Receives by `receive` what comes until then.
///
/// # Errors
/// The errors of `receive`; `EAGAIN` if nothing has come.
pub fn receive_until<T>(
    end: Instant,
    socket: &OwnedFd,
    mut receive: impl FnMut() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    retry_on_intr(|| {
        // A timeout of zero would mean to wait for ever.
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(left))?;
        receive()
    })
}

fn receive(socket: BorrowedFd<'_>, text: &mut [u8]) -> rustix::io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(text)], &mut control, flags)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((received.bytes, fds))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A broker in a thread of the test.
    fn broker(helper: Option<PathBuf>) -> Broker {
        let (ours, theirs) = pair().expect("descriptors");
        std::thread::spawn(move || serve(&theirs, helper.as_deref()));
        Broker::new(ours, PATIENCE).expect("a socket")
    }

    #[test]
    fn a_broker_opens_namespaces_and_nothing_else() {
        let broker = broker(None);
        broker.namespace("/proc/self/ns/net").expect("our own");
        for path in ["/etc/passwd", "/", "/no/such", "/proc/self/mem"] {
            let error = broker.namespace(path).expect_err(path);
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{path}");
        }
    }

    /// One path of two, which take turns, is a namespace.
    #[test]
    fn a_file_that_takes_the_place_of_a_namespace_is_not_opened() {
        let dir = tempfile::tempdir().expect("a directory");
        let [path, next] = ["ns", "next"].map(|name| dir.path().join(name));
        let done = std::sync::atomic::AtomicBool::new(false);
        let (path, done) = (path.to_str().expect("text"), &done);
        std::os::unix::fs::symlink("/proc/self/ns/net", path).expect("a place");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for file in ["/etc/passwd", "/proc/self/ns/net"].iter().cycle() {
                    std::os::unix::fs::symlink(file, &next).expect("a place");
                    std::fs::rename(&next, path).expect("the same directory");
                    if done.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let mut opened = (0..20_000).filter_map(|_| open_path(path).ok());
            let others = opened.find(|fd| fstatfs(fd).expect("open").f_type != NAMESPACES);
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(others.is_none());
        });
    }

    #[test]
    fn a_broker_that_is_held_up_is_not_waited_for_and_its_late_answer_is_for_no_other_question() {
        let (ours, theirs) = pair().expect("descriptors");
        // The least that the kernel gives: room for a few questions.
        sockopt::set_socket_send_buffer_size(&ours, 1).expect("a socket");
        let mut broker = Broker::new(ours, Duration::from_millis(50)).expect("a socket");
        let mut text = [0; REQUEST_MAX];
        let mut hear = || {
            let (size, mut fds) = receive(theirs.as_fd(), &mut text).expect("a question");
            (size, fds.pop().expect("a socket for the answer"))
        };
        let late = broker.namespace("/a").expect_err("no answer");
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let (_, first) = hear();
        broker.patience = PATIENCE;
        std::thread::scope(|scope| {
            let second = scope.spawn(|| broker.namespace("/bb"));
            let (size, answer) = hear();
            assert_eq!(size, 4);
            // The daemon has closed the other end.
            send(first.as_fd(), &[0; 4], &[first.as_fd()]).expect_err("too late");
            send(answer.as_fd(), &libc::EACCES.to_ne_bytes(), &[]).expect("it waits");
            let error = second.join().expect("no panic").expect_err("not allowed");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        });
        broker.patience = Duration::from_millis(1);
        // However many questions wait, none more waits for ever.
        for _ in 0..20 {
            let late = broker.start_helper(pair().expect("descriptors").0);
            assert_eq!(late.expect_err("no answer").kind(), io::ErrorKind::TimedOut);
        }
    }

    #[test]
    fn a_broker_starts_the_one_program_that_it_was_given() {
        use std::io::Read;
        let (ours, theirs) = pair().expect("descriptors");
        let error = broker(None).start_helper(theirs).expect_err("it was given none");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        drop(ours);
        let (ours, theirs) = pair().expect("descriptors");
        broker(Some("/no/such".into())).start_helper(theirs).expect_err("there is none");
        drop(ours);
        // `true` closes its standard input when it ends.
        let (ours, theirs) = pair().expect("descriptors");
        let broker = broker(Some("/bin/true".into()));
        broker.start_helper(theirs).expect("it is there");
        assert_eq!(File::from(ours).read(&mut [0; 8]).expect("its end"), 0);
    }
}
