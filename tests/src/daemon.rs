//! The daemon of one test, in a directory of its own.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

use client::control::{Connection, ControlError};
use client::{Options, Port};
use protocol::{
    ErrorCode, Hello, PortInfo, PortRef, PortRequest, PortStats, Reply, Request, SessionRequest,
    StatsQuery, SwitchInfo, SwitchRef, SwitchRequest,
};
use rustix::process::Signal;

use crate::measure::{self, Holdings};
use crate::process::{Owned, Scratch, uvala};
use crate::role::{At, Become};
use crate::service::ServiceManager;
use crate::wait;

/// A running daemon. Killed and removed when dropped; a test that fails shows its log.
#[derive(Debug)]
pub struct Daemon {
    process: Owned,
    place: Scratch,
    setup: Setup,
    /// For calls of the test itself; always open, so that it never disturbs a count.
    control: Mutex<Option<Connection>>,
}

/// How to start a daemon.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    config: String,
    limits: Become,
    user: Option<u32>,
}

impl Setup {
    /// A daemon with this configuration.
    #[must_use]
    pub fn new(config: &str) -> Self {
        Self { config: config.to_owned(), ..Self::default() }
    }

    /// A daemon with three workers that all run switch `vale0`, and ports of it that are at these
    /// workers.
    #[must_use]
    pub fn spread(ports: &[(&str, u32)]) -> Self {
        let config = "[workers]\ncount = 3\n[switch.vale0]\nworkers = \"all\"\n".to_owned();
        let port = |(name, worker)| format!("[switch.vale0.port.{name}]\nworker = {worker}\n");
        let ports = ports.iter().copied().map(port);
        Self { config: config + &ports.collect::<String>(), ..Self::default() }
    }

    /// With at most this many descriptors.
    #[must_use]
    pub fn descriptors(mut self, count: u64) -> Self {
        self.limits.descriptors = Some(count);
        self
    }

    /// With at most this many bytes of address space.
    #[must_use]
    pub fn address_space(mut self, bytes: u64) -> Self {
        self.limits.address_space = Some(bytes);
        self
    }

    /// As a service of this manager.
    #[must_use]
    pub fn service(mut self, manager: &ServiceManager) -> Self {
        self.limits.service = Some(manager.dir().to_path_buf());
        self
    }

    /// As another user.
    #[must_use]
    pub fn user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(self) -> Daemon {
        let place = Scratch::new("daemon");
        std::fs::write(place.path().join("uvala.toml"), all_workers(&self.config)).expect("room");
        if self.user.is_some() {
            std::os::unix::fs::chown(place.path(), self.user, self.user).expect("root may");
        }
        let process = self.spawn(place.path(), &[]);
        let control = Mutex::default();
        let mut daemon = Daemon { process, place, setup: self, control };
        daemon.wait_until_ready();
        daemon
    }

    fn spawn(&self, place: &Path, more: &[&str]) -> Owned {
        let text = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
        let (config, dir) = (text(place.join("uvala.toml")), text(place.join("run")));
        let count = std::env::var(WORKERS).unwrap_or_default();
        let workers = ["--workers", &count];
        let workers = if count.is_empty() { &[] } else { &workers[..] };
        let args = [&["daemon", "-c", &config, "--dir", &dir], workers, more].concat();
        let log = File::options().create(true).append(true).open(place.join("log"));
        let mut command = uvala(self.limits.clone(), &args, self.user);
        Owned::spawn(command.stdin(Stdio::null()).stderr(log.expect("room for a log")))
    }
}

/// Starts a daemon in this directory, with more arguments, and does not wait for it.
///
/// # Panics
/// If there is no such program.
#[must_use]
pub fn launch(dir: &Path, more: &[&str], limits: Become, log: Stdio) -> Owned {
    let dir = dir.to_str().expect("UTF-8");
    let args = [&["daemon", "--dir", dir], more].concat();
    Owned::spawn(uvala(limits, &args, None).stdin(Stdio::null()).stderr(log))
}

/// The number of workers that daemons of tests get. All workers then run each switch of which the
/// test does not say otherwise.
const WORKERS: &str = "UVALA_WORKERS";

/// The configuration with switches of all workers, if the environment asks for several. Switches
/// with chains stay as they are, and so do configurations that say which workers there are.
fn all_workers(config: &str) -> String {
    const ALL: &str = "workers = \"all\"\n";
    let says_so = config.contains("\"chain\"") || config.contains("[workers]");
    if std::env::var_os(WORKERS).is_none() || says_so {
        return config.to_owned();
    }
    let tables = config.lines().filter_map(|line| line.strip_prefix("[switch."));
    let names: BTreeSet<&str> = tables.filter_map(|rest| rest.split(['.', ']']).next()).collect();
    let mut text = config.to_owned();
    for name in names {
        let table = format!("[switch.{name}]\n");
        match text.contains(&table) {
            true => text = text.replace(&table, &format!("{table}{ALL}")),
            false => text += &format!("\n{table}{ALL}"),
        }
    }
    match text.contains("[new_switch]\n") {
        true => text.replace("[new_switch]\n", &format!("[new_switch]\n{ALL}")),
        false => format!("{text}\n[new_switch]\n{ALL}"),
    }
}

impl Daemon {
    /// A daemon with every default.
    #[must_use]
    pub fn start() -> Self {
        Setup::default().start()
    }

    fn wait_until_ready(&mut self) {
        wait::until("the daemon's first answer", || {
            let log = || std::fs::read_to_string(self.place.path().join("log"));
            assert!(!self.process.has_ended(), "the daemon ended: {:?}", log());
            match self.connect() {
                Ok(connection) if connection.hello("test").is_ok() => {
                    self.control = Mutex::new(Some(connection));
                    true
                }
                _ => false,
            }
        });
    }

    /// A process that was told what a VMM is told, and does nothing of it. `DIR` stands for the
    /// daemon's directory.
    ///
    /// # Panics
    /// If there is no shell.
    #[must_use]
    pub fn monitor(&self, words: &str) -> Owned {
        let words = words.replace("DIR", self.dir().to_str().expect("UTF-8"));
        let mut command = Command::new("sh");
        command.args(["-c", "read never", "qemu-system-x86_64"]).args(words.split_whitespace());
        Owned::spawn(command.stdin(Stdio::piped()))
    }

    /// Starts it again after its end.
    pub fn restart(&mut self) {
        self.restart_with(&[]);
    }

    /// Starts it again after its end, with more arguments.
    pub fn restart_with(&mut self, more: &[&str]) {
        self.process.kill();
        self.process = self.setup.spawn(self.place.path(), more);
        self.wait_until_ready();
    }

    /// Starts another one that takes over from it.
    ///
    /// # Panics
    /// If it does not.
    pub fn replace(&mut self) {
        self.begin_to_replace().wait();
        self.wait_until_ready();
    }

    /// Starts a daemon that takes over, and returns the process of the one before it.
    ///
    /// # Panics
    /// As [`Daemon::replace`].
    #[must_use]
    pub fn begin_to_replace(&mut self) -> Owned {
        let next = self.setup.spawn(self.place.path(), &["--replace"]);
        std::mem::replace(&mut self.process, next)
    }

    /// Changes its configuration, for the next start.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn reconfigure(&self, config: &str) {
        std::fs::write(self.place.path().join("uvala.toml"), all_workers(config)).expect("room");
    }

    /// The directory of the daemon's socket.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.place.path().join("run")
    }

    /// The daemon's process.
    pub fn process(&mut self) -> &mut Owned {
        &mut self.process
    }

    /// The daemon's PID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it holds, after it has taken note of everything that was closed before.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        self.call(Request::Session(SessionRequest::Hello(Hello::default()))).expect("an answer");
        measure::holdings(self.pid())
    }

    /// Waits until it holds what it held before.
    ///
    /// # Panics
    /// If that never happens.
    pub fn assert_holds(&self, before: Holdings) {
        let deadline = std::time::Instant::now() + wait::PATIENCE;
        while self.holdings() != before {
            let (now, files) = (self.holdings(), measure::descriptors(self.pid()));
            let is_late = std::time::Instant::now() > deadline;
            assert!(!is_late, "it held {before:?}, now {now:?}: {files:#?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Kills it as by `kill -9`.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// What it has logged.
    ///
    /// # Panics
    /// If there is no log.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.place.path().join("log")).expect("a log")
    }

    /// A control connection.
    pub fn connect(&self) -> Result<Connection, ControlError> {
        Connection::open(Some(&self.dir()))
    }

    /// One call.
    ///
    /// # Panics
    /// If the daemon was never there.
    pub fn call(&self, request: Request) -> Result<Reply, ControlError> {
        let control = self.control.lock().expect("no call panics");
        control.as_ref().expect("a daemon that was ready").call(request)
    }

    /// A port, with every default, held by the test itself.
    ///
    /// # Panics
    /// If the daemon refuses.
    #[must_use]
    pub fn open(&self, name: &str) -> Port {
        open_when_free(&self.options(), name)
    }

    /// Options for a port of this daemon.
    #[must_use]
    pub fn options(&self) -> Options {
        Options::new().dir(self.dir())
    }

    /// A port of this daemon for a client process.
    #[must_use]
    pub fn at(&self, port: &str) -> At {
        At { dir: self.dir(), port: port.to_owned(), ..At::default() }
    }

    /// Runs `uvala` with arguments against this daemon.
    ///
    /// # Panics
    /// If it cannot be run.
    #[must_use]
    pub fn uvala(&self, args: &[&str]) -> Output {
        self.uvala_as(args, None)
    }

    /// Runs `uvala` as another user.
    ///
    /// # Panics
    /// If it cannot be run.
    #[must_use]
    pub fn uvala_as(&self, args: &[&str], user: Option<u32>) -> Output {
        let dir = self.dir();
        let dir = ["--dir", dir.to_str().expect("UTF-8")];
        let args: Vec<&str> = args.iter().copied().chain(dir).collect();
        uvala(Become::default(), &args, user).output().expect("a program")
    }

    /// Names of all ports.
    ///
    /// # Panics
    /// If the daemon does not say.
    #[must_use]
    pub fn ports(&self) -> Vec<String> {
        match self.call(Request::Port(PortRequest::List(Default::default()))) {
            Ok(Reply::Ports(page)) => page.items.iter().map(|info| info.port.to_string()).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// A port, if there is one of that name.
    ///
    /// # Panics
    /// If the daemon does not say.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<PortInfo> {
        let port = name.parse().expect("a name");
        match self.call(Request::Port(PortRequest::Show(PortRef { port }))) {
            Ok(Reply::Port(info)) => Some(info),
            Err(ControlError::Refused(_)) => None,
            other => panic!("{other:?}"),
        }
    }

    /// A switch, if there is one of that name.
    ///
    /// # Panics
    /// If the daemon does not say.
    #[must_use]
    pub fn switch(&self, name: &str) -> Option<SwitchInfo> {
        let switch = name.parse().expect("a name");
        match self.call(Request::Switch(SwitchRequest::Show(SwitchRef { switch }))) {
            Ok(Reply::Switch(info)) => Some(info),
            Err(ControlError::Refused(_)) => None,
            other => panic!("{other:?}"),
        }
    }

    /// Counters of a port.
    ///
    /// # Panics
    /// If there is no such port.
    #[must_use]
    pub fn stats(&self, name: &str) -> PortStats {
        let port = Some(name.parse().expect("a name"));
        match self
            .call(Request::Port(PortRequest::Stats(StatsQuery { port, ..StatsQuery::default() })))
        {
            Ok(Reply::Stats(page)) => page.items.into_iter().next().expect("a port"),
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- log of the daemon\n{}----", self.log());
            return;
        }
        let log = self.log();
        let denied = log.lines().find(|line| line.contains("was denied system call"));
        assert_eq!(denied, None, "a thread lacks a row in the table of calls");
    }
}

/// Opens a port that a client of this process may have closed just now.
///
/// A process that another thread starts has a copy of each connection from `fork` to `exec`, so the
/// daemon may see the end of one a moment after it is closed.
///
/// # Panics
/// When that takes too long, or the port cannot be opened for another reason.
#[must_use]
pub fn open_when_free(options: &Options, name: &str) -> Port {
    wait::find("a free port", || match options.clone().open(name) {
        Ok(port) => Some(port),
        Err(error) if error.code() == Some(ErrorCode::InUse) => None,
        Err(error) => panic!("{name}: {error}"),
    })
}
