//! A function on several cores: instances of its service in threads of one process.
//!
//! ```no_run
//! use client::nf::{Action, Frame, Generated, Threads};
//!
//! let stop = client::Stop::new()?;
//! let function = |_instance| |_: &mut Frame<'_>, _: &mut Generated| Action::Next;
//! Threads::new("vale0:fw".parse()?)
//!     .service("firewall", 0)                     // missing ports are created
//!     .cores("2-3".parse()?)                      // one thread each
//!     .options(client::Options::new().group("nf"))
//!     .run(&stop, function)?;                     // until another thread sets `stop`
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each instance has a port, a thread, a core if requested, and a handler of its own: they share
//! nothing, and the switch distributes the flows over them. They start and end together: when one
//! ends, for whatever reason, all stop, and sleeping threads wake up at once.

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use protocol::name::PortName;

use super::cpus::{CpuError, CpuList, pin};
use super::service::Ports;
use super::{Handler, step};
use crate::{Error, Options, Port, Stop};

/// The instances to run, and their ports and cores.
#[derive(Clone, Debug)]
pub struct Threads {
    port: PortName,
    count: Option<u16>,
    cores: Option<CpuList>,
    service: Option<(String, u16)>,
    others: Vec<(PortName, String)>,
    options: Options,
    tick: Option<Duration>,
}

/// An instance, as its thread gets it.
#[derive(Debug)]
pub struct Instance {
    /// Counted from 0.
    pub thread: u16,
    /// The port of the instance.
    pub port: Port,
    /// Ports of other functions in the first thread ([`Threads::and`]).
    pub others: Vec<Port>,
}

/// Why a function did not start, or ended.
#[derive(Debug)]
pub enum Failed<E = Error> {
    /// Before any thread was started.
    Start(E),
    /// Not with these cores.
    Cores(CpuError),
    /// No thread could be started.
    Thread(io::Error),
    /// The first instance that failed.
    Instance {
        /// Counted from 0.
        thread: u16,
        /// The name of its port.
        port: String,
        /// The error.
        error: E,
    },
}

impl Threads {
    /// One thread, whose port this is.
    #[must_use]
    pub fn new(port: PortName) -> Self {
        let (options, others) = (Options::new(), Vec::new());
        Self { port, count: None, cores: None, service: None, others, options, tick: None }
    }

    /// The number of threads. The ports after the first, `vale0:fw`, are `vale0:fw_1`, `vale0:fw_2`
    /// and so on.
    #[must_use]
    pub fn count(self, count: u16) -> Self {
        Self { count: Some(count), ..self }
    }

    /// Runs a thread on each of these cores, unless [`count`](Self::count) is set.
    #[must_use]
    pub fn cores(self, cores: CpuList) -> Self {
        Self { cores: Some(cores), ..self }
    }

    /// Creates missing ports as instances of this service, with instance numbers from `first` on;
    /// 0: the lowest free ones. They are permanent; if the function cannot start, they are deleted.
    #[must_use]
    pub fn service(self, service: impl Into<String>, first: u16) -> Self {
        Self { service: Some((service.into(), first)), ..self }
    }

    /// Adds the port of another function, of this service, to the first thread
    /// ([`step_all`](super::step_all)). A missing port is created as those of the first function.
    #[must_use]
    pub fn and(mut self, port: PortName, service: impl Into<String>) -> Self {
        self.others.push((port, service.into()));
        self
    }

    /// How the ports are opened. A [`Stop`] in the options is ignored in favour of that of the
    /// call.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Self { options, ..self }
    }

    /// The time without frames after which handlers get a batch of 0.
    #[must_use]
    pub fn tick(self, tick: Duration) -> Self {
        Self { tick: Some(tick), ..self }
    }

    /// Runs the function that `make` makes, in its thread, for each instance, until `stop`. With
    /// [other functions](Self::and) in the thread, use [`Threads::each`].
    ///
    /// # Errors
    /// The first of any instance; all have ended then.
    pub fn run<H: Handler>(
        &self,
        stop: &Stop,
        make: impl Fn(u16) -> H + Sync,
    ) -> Result<(), Failed> {
        self.each(stop, |Instance { thread, mut port, .. }| {
            let mut handler = make(thread);
            until_stopped(stop, || step(&mut port, &mut handler, self.tick).map(drop))
        })
    }

    /// Runs this for each instance until `stop`; it calls [`step`], [`step_all`](super::step_all)
    /// or anything else.
    ///
    /// # Errors
    /// As [`Threads::run`].
    pub fn each<E: From<Error> + Send>(
        &self,
        stop: &Stop,
        body: impl Fn(Instance) -> Result<(), E> + Sync,
    ) -> Result<(), Failed<E>> {
        let start = |error| Failed::Start(E::from(error));
        let names = self.names().map_err(start)?;
        self.check_cores().map_err(Failed::Cores)?;
        let mut ports = Ports::add(&self.options, self.service.as_ref(), &names).map_err(start)?;
        for (port, service) in &self.others {
            ports = ports.and(&self.options, port, service, None).map_err(start)?;
        }
        let first = First(Mutex::new(None));
        thread::scope(|scope| {
            for (number, name) in (0..).zip(&names) {
                let (first, ports, body) = (&first, &ports, &body);
                let begin = move || {
                    let _end = End(stop);
                    if let Err(failed) = self.instance(stop, ports, (number, name), body) {
                        first.note(failed);
                    }
                };
                let thread = thread::Builder::new().name(name.port().to_owned());
                if let Err(error) = thread.spawn_scoped(scope, begin) {
                    first.note((Failed::Thread(error), Phase::Start));
                    stop.stop();
                }
            }
        });
        match first.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some((failed, Phase::Run)) => Err(failed),
            Some((failed, Phase::Start)) => {
                ports.undo();
                Err(failed)
            }
        }
    }

    fn instance<E: From<Error>>(
        &self,
        stop: &Stop,
        ports: &Ports,
        (thread, name): (u16, &PortName),
        body: &impl Fn(Instance) -> Result<(), E>,
    ) -> Result<(), (Failed<E>, Phase)> {
        let failed = |error| Failed::Instance { thread, port: name.to_string(), error };
        if let Some(cores) = &self.cores {
            pin(cores.of(thread)).map_err(|error| (Failed::Thread(error), Phase::Start))?;
        }
        let open = |options: Options, name: &PortName| {
            let failed = |error| Failed::Instance { thread, port: name.to_string(), error };
            let opened = ports.open(options.stop(stop).names_thread(), name);
            opened.map_err(|error| (failed(E::from(error)), Phase::Start))
        };
        let port = open(self.options.clone(), name)?;
        let others = self.others.iter().filter(|_| thread == 0);
        let others = others.map(|(name, what)| open(self.options.clone().client(what), name));
        let others = others.collect::<Result<_, _>>()?;
        body(Instance { thread, port, others }).map_err(|error| (failed(error), Phase::Run))
    }

    /// The names of all ports.
    ///
    /// # Errors
    /// One is too long.
    pub fn names(&self) -> Result<Vec<PortName>, Error> {
        let name = |thread: u16| match thread {
            0 => Ok(self.port.clone()),
            _ => self.port.switch().join(&format!("{}_{thread}", self.port.port())),
        };
        Ok((0..self.threads()).map(name).collect::<Result<_, _>>()?)
    }

    /// The number of threads to start.
    fn threads(&self) -> u16 {
        let cores = || self.cores.as_ref().and_then(|cores| u16::try_from(cores.count()).ok());
        self.count.or_else(cores).unwrap_or(1).max(1)
    }

    fn check_cores(&self) -> Result<(), CpuError> {
        match &self.cores {
            Some(cores) if cores.count() != usize::from(self.threads()) => {
                Err(CpuError::Count { threads: self.threads(), cores: cores.count() })
            }
            Some(cores) => cores.check(),
            None => Ok(()),
        }
    }
}

/// Repeats a call until `stop` is set. It goes on after [`Error::Resynced`]: a neighbour has spoilt
/// a ring, and the switch has repaired it.
///
/// # Errors
/// Any other of the call's.
pub fn until_stopped(
    stop: &Stop,
    mut call: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    while !stop.is_said() {
        match call() {
            Ok(()) | Err(Error::Stopped | Error::Resynced { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The phase in which an instance failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Start,
    Run,
}

/// The first failure; later ones are its consequences, or the same.
struct First<E>(Mutex<Option<(Failed<E>, Phase)>>);

impl<E> First<E> {
    fn note(&self, failed: (Failed<E>, Phase)) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failed);
    }
}

/// Stops all threads when this one ends, in whatever way.
struct End<'a>(&'a Stop);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl<E: fmt::Display> fmt::Display for Failed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(error) => error.fmt(f),
            Self::Cores(error) => error.fmt(f),
            Self::Thread(error) => write!(f, "cannot start a thread: {error}"),
            Self::Instance { thread, port, error } => {
                write!(f, "thread {thread}, at {port}: {error}")
            }
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for Failed<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(count: u16) -> Threads {
        Threads::new("vale0:fw".parse().unwrap()).count(count)
    }

    #[test]
    fn test_ports_behind_the_first_are_numbered() {
        let names = |count| {
            let names = threads(count).names().unwrap();
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(3), ["vale0:fw", "vale0:fw_1", "vale0:fw_2"]);
        assert_eq!(names(0), ["vale0:fw"], "none is one");
        let long = format!("vale0:{}", "x".repeat(PortName::MAX_BYTES - 6));
        assert!(Threads::new(long.parse().unwrap()).count(2).names().is_err());
    }

    #[test]
    fn test_there_is_a_core_for_each_thread_or_an_error() {
        let cores: CpuList = "0-2".parse().unwrap();
        let port = "vale0:fw".parse().unwrap();
        assert_eq!(Threads::new(port).cores(cores.clone()).threads(), 3);
        let two = threads(2).cores(cores).check_cores();
        assert_eq!(two, Err(CpuError::Count { threads: 2, cores: 3 }));
    }

    #[test]
    fn test_without_a_daemon_every_thread_ends_and_one_is_named() {
        let dir = std::env::temp_dir().join("uvala-no-daemon-here");
        let (stop, threads) = (Stop::new().unwrap(), threads(3));
        let threads = threads.options(Options::new().dir(dir));
        let failed = threads.each(&stop, |_| Ok::<_, Error>(())).unwrap_err();
        assert!(stop.is_said());
        assert!(matches!(failed, Failed::Instance { error: Error::Control(_), .. }), "{failed}");
    }
}
