//! Processes that never outlive their test: each dies with the thread that started it, is killed
//! when its handle is dropped, and ends when its stdin does.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::frames::Tally;
use crate::role::{Become, Report, Role};
use crate::wait::{self, PATIENCE};

/// A user that is neither root nor in `/etc/passwd`.
pub const USER: u32 = 54_321;
/// Another one.
pub const OTHER_USER: u32 = 54_322;

/// A client process.
#[derive(Debug)]
pub struct Peer {
    child: Owned,
    reports: Receiver<Report>,
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub struct Owned(Child);

impl Owned {
    /// Starts a program.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Starts one that is told what to do on its standard input, which is piped.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn_with_input(command: &mut Command) -> (Self, ChildStdin) {
        let mut owned = Self::spawn(command);
        let input = owned.0.stdin.take().expect("piped");
        (owned, input)
    }

    /// The PID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Takes the standard output, once.
    ///
    /// # Panics
    /// If it was not started with a pipe there.
    pub fn stdout(&mut self) -> ChildStdout {
        self.0.stdout.take().expect("piped, and not taken before")
    }

    /// Takes the standard error, once.
    ///
    /// # Panics
    /// If it was not started with a pipe there.
    pub fn stderr(&mut self) -> ChildStderr {
        self.0.stderr.take().expect("piped, and not taken before")
    }

    /// Takes the standard input, once.
    ///
    /// # Panics
    /// If it was not started with a pipe there.
    pub fn stdin(&mut self) -> ChildStdin {
        self.0.stdin.take().expect("piped, and not taken before")
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it is gone.
    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal)
            .expect("our own child");
    }

    /// Has it run only where nothing else would (`SCHED_IDLE`). Call this before the process starts
    /// threads: they inherit it.
    ///
    /// Not by `nice`: a process of nice 19 keeps a processor that it has got for its whole slice,
    /// also when another wakes up for it.
    ///
    /// # Panics
    /// If it is gone.
    pub fn run_idly(&self) {
        let pid = self.0.id().to_string();
        let chrt = Command::new("chrt").args(["--idle", "--pid", "0", &pid]).status();
        assert!(chrt.expect("chrt, of util-linux").success(), "our own child");
    }

    /// Kills it as by `kill -9` and waits for its end.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Waits until it ends.
    ///
    /// # Panics
    /// If it takes longer than [`PATIENCE`].
    pub fn wait(&mut self) -> ExitStatus {
        wait::find("the end of a process", || self.0.try_wait().expect("our own child"))
    }

    /// Whether the process has ended.
    ///
    /// # Panics
    /// If the system cannot say.
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("our own child").is_some()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Peer {
    /// Starts a client process and waits until its port is open.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn start(role: &Role) -> Self {
        let peer = Self::launch(role, None);
        assert_eq!(peer.report(), Report::Ready, "{role:?}");
        peer
    }

    /// Starts a client process, as another user if one is named. Does not wait.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn launch(role: &Role, user: Option<u32>) -> Self {
        let mut command = command(role, user);
        let mut child = Owned::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let stdout = child.stdout();
        let (sender, reports) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let report = serde_json::from_str(&line).expect("a report");
                if sender.send(report).is_err() {
                    return;
                }
            }
        });
        Self { child, reports }
    }

    /// What it says next.
    ///
    /// # Panics
    /// If it says nothing within [`PATIENCE`], or ends without a word.
    #[must_use]
    pub fn report(&self) -> Report {
        self.report_within(PATIENCE).expect("a report in time")
    }

    /// What it says next, if it says something in time.
    ///
    /// # Panics
    /// If it ends without a word.
    #[must_use]
    pub fn report_within(&self, time: Duration) -> Option<Report> {
        match self.reports.recv_timeout(time) {
            Ok(report) => Some(report),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("a client process died"),
        }
    }

    /// The last that it says before it ends; `None` if it has not said anything, or does not end.
    #[must_use]
    pub fn last_report(&self, time: Duration) -> Option<Report> {
        let (deadline, mut last) = (Instant::now() + time, None);
        loop {
            match self.reports.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(report) => last = Some(report),
                Err(RecvTimeoutError::Disconnected) => return last,
                Err(RecvTimeoutError::Timeout) => return None,
            }
        }
    }

    /// Tells it to come to its end.
    pub fn finish(&mut self) {
        drop(self.child.0.stdin.take());
    }

    /// The number of frames sent, from a sender at its end.
    ///
    /// # Panics
    /// If it is no sender.
    #[must_use]
    pub fn sent(&self) -> u64 {
        match self.report() {
            Report::Sent(count) => count,
            other => panic!("a sender says {other:?}"),
        }
    }

    /// What a receiver saw, from one that is at its end.
    ///
    /// # Panics
    /// If it is no receiver.
    #[must_use]
    pub fn received(&self) -> Tally {
        match self.report() {
            Report::Received(tally) => tally,
            other => panic!("a receiver says {other:?}"),
        }
    }

    /// The peer's process.
    pub fn process(&mut self) -> &mut Owned {
        &mut self.child
    }
}

/// A command that dies with the thread that starts it, within limits, as another user if one is
/// named.
#[must_use]
pub fn command(role: &Role, user: Option<u32>) -> Command {
    let program = sibling("uvala-peer");
    let mut command = match user {
        None => Command::new(program),
        Some(user) => {
            let mut command = Command::new(for_everybody(&program));
            command.uid(user).gid(user).current_dir("/");
            command
        }
    };
    command.arg(serde_json::to_string(role).expect("plain data"));
    command
}

/// The program under test with arguments, as [`command`].
#[must_use]
pub fn uvala(limits: Become, args: &[&str], user: Option<u32>) -> Command {
    let program = match user {
        None => uvala_path().to_path_buf(),
        Some(_) => for_everybody(uvala_path()),
    };
    let program = program.to_str().expect("a path in UTF-8");
    let words = [program].into_iter().chain(args.iter().copied());
    let become_it = Become { command: words.map(str::to_owned).collect(), ..limits };
    command(&Role::Become(become_it), user)
}

/// Where the program under test is: `$UVALA`, or built now.
///
/// # Panics
/// If it does not build.
#[must_use]
pub fn uvala_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        if let Some(path) = std::env::var_os("UVALA") {
            return PathBuf::from(path);
        }
        if let Some(cargo) = std::env::var_os("CARGO") {
            let packages = ["uvala", "uvala-nic", "uvala-evpn", "uvala-http"];
            let packages = packages.map(|it| ["--package", it]);
            let build = [["build", "--quiet"]].into_iter().chain(packages).flatten();
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let status = Command::new(cargo).args(build).current_dir(root).status();
            assert!(status.is_ok_and(|status| status.success()), "uvala does not build");
        }
        sibling("uvala")
    })
}

/// A program that cargo puts beside the directory of the tests, and beside this one.
fn sibling(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("/proc");
    let dir = this.ancestors().skip(1).find(|dir| !dir.ends_with("deps"));
    dir.expect("target/debug/deps/test, or target/debug/program").join(name)
}

/// A path by which every user can run a program, though it may lie in a directory that is closed to
/// others: children inherit the open file.
///
/// # Panics
/// If there is no such program.
pub fn for_everybody(program: &Path) -> PathBuf {
    static OPEN: Mutex<BTreeMap<PathBuf, OwnedFd>> = Mutex::new(BTreeMap::new());
    let mut open = OPEN.lock().expect("no thread panics with it");
    let file = open.entry(program.to_path_buf()).or_insert_with(|| {
        rustix::fs::open(program, OFlags::RDONLY, Mode::empty()).expect("a program")
    });
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A directory that goes with its handle.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new directory, open to all.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("uvala-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory for tests");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("ours");
        Self(path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left is in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How a program ended: its status, or the signal that killed it as a negative number.
#[must_use]
pub fn outcome(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or(0))
}
