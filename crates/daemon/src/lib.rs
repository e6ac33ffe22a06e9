//! The daemon as a library: workers that move frames, and the control plane that directs them.
//!
//! ```text
//! Daemon::start    directory, lock, socket, switches of the configuration
//! Daemon::run      serves the control socket in this thread until the stopper is used
//! drop             ports detached, workers end after the batch in hand, socket removed
//! ```

pub mod config;
pub mod confinement;
pub mod control;
mod cpu_time;
pub mod engine;
pub mod handed;
mod heap;
pub mod kept;
pub mod lockfile;
pub mod log;
pub mod model;
pub mod start;
pub mod store;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use protocol::{exit, paths};
use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use thiserror::Error;

use config::Config;
use control::Control;
use control::datapath::Datapath;
use control::socket::Server;
use model::policy::{Caller, Process};
use start::{Place, StartError};
use store::Store;
use store::writer::Writer;

/// A daemon that is ready to run.
#[derive(Debug)]
pub struct Daemon<D> {
    // The order of the fields is the order of the end: no more calls, then no more socket.
    server: Server<D>,
    /// `None`: it is the next daemon's.
    place: Option<Place>,
    /// Held: its end means stop.
    _stop: OwnedFd,
    stopper: Stopper,
}

/// Ends a daemon from another thread, or from a signal.
#[derive(Debug)]
pub struct Stopper(OwnedFd);

impl<D: Datapath> Daemon<D> {
    /// Takes the directory, makes the switches that are configured or kept, and listens.
    pub fn start(config: &Config, datapath: D) -> Result<Self, StartError> {
        heap::give_large_pieces_back();
        let dir = paths::daemon_dir(config.dir.as_deref());
        let (place, listener) = Place::take(&dir, &config.socket)?;
        let mut control = Control::new(config, datapath);
        make_switches(&mut control, config, Store::open(config.saved_state(&dir))?)?;
        let io = |error: io::Error| StartError::Io {
            doing: "serve",
            path: place.socket().to_path_buf(),
            error,
        };
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (stop, stopper) = pipe_with(flags).map_err(|error| io(error.into()))?;
        let server =
            Server::new(listener, stop.as_fd(), control, config.quota.connections).map_err(io)?;
        let (place, stopper) = (Some(place), Stopper(stopper));
        Ok(Self { server, place, _stop: stop, stopper })
    }

    /// Goes on with the clients of the daemon before this one. Workers that wait go on.
    pub fn succeed(&mut self, clients: handed::Clients) {
        let all = clients.len();
        let lost = self.server.succeed(clients);
        tracing::info!("took over {} of {all} ports of clients", all - lost);
    }

    /// Where the socket is.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.place.as_ref().expect("only `run` gives it up").socket()
    }

    /// A handle that ends the daemon.
    pub fn stopper(&self) -> io::Result<Stopper> {
        self.stopper.0.try_clone().map(Stopper)
    }

    /// From now on SIGTERM and SIGINT end the daemon in good order, and SIGHUP is noted: there is
    /// nothing to read again, and a terminal that goes takes no client's network away.
    pub fn heed_signals(&mut self) -> Result<(), StartError> {
        let path = self.socket().to_path_buf();
        let mut heed = || -> io::Result<()> {
            let (noted, notes) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            self.server.note_hangups(noted)?;
            signal_hook::low_level::pipe::register(SIGHUP, notes)?;
            for signal in [SIGTERM, SIGINT] {
                signal_hook::low_level::pipe::register(signal, self.stopper.0.try_clone()?)?;
            }
            Ok(())
        };
        heed().map_err(|error| StartError::Io { doing: "serve", path, error })
    }

    /// Serves until told to stop.
    pub fn run(mut self) -> Result<(), EndError> {
        // The process that starts the daemon counts on them.
        self.server.await_interfaces();
        tracing::info!(socket = %self.socket().display(), "ready");
        let state = sd_notify::NotifyState::Ready;
        if let Err(error) = sd_notify::notify(&[state]) {
            tracing::warn!("systemd was not told that we are ready: {error}");
        }
        let (result, lost) = self.server.run();
        tracing::info!("stopping");
        // The next daemon, which waits for this one's lock, is the service's process from here on.
        let change = self.server.successor().map(sd_notify::NotifyState::MainPid);
        // An error changes nothing any more: systemd sees the daemon end.
        let _ = sd_notify::notify(&[change.unwrap_or(sd_notify::NotifyState::Stopping)]);
        for (switch, why) in &lost {
            tracing::error!("{switch}: what commands have changed is lost: {why}");
        }
        if self.server.leave() {
            // Before anything that a client has a hand in: it could hold the next daemon up.
            self.place = None;
        }
        result.map_err(io::Error::from)?;
        if lost.is_empty() { Ok(()) } else { Err(EndError::Lost(lost.len())) }
    }
}

/// What went wrong while a daemon served.
#[derive(Debug, Error)]
pub enum EndError {
    /// The system cannot wait for calls.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The state files of so many switches are older than what commands have changed.
    #[error(
        "changes of {0} of its switches are lost, and the log names them; free disk space or \
         repair the state directory, start the daemon, and make the changes again"
    )]
    Lost(usize),
}

impl EndError {
    /// The exit status of a daemon that ends by it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Io(_) => exit::FAILURE,
            Self::Lost(_) => exit::NOT_KEPT,
        }
    }
}

impl Stopper {
    /// Ends the daemon: it finishes the call in hand.
    pub fn stop(&self) {
        // A full pipe has been told already.
        let _ = rustix::io::write(&self.0, b"x");
    }
}

/// Makes what the configuration says and what commands made before, and keeps what they make.
fn make_switches<D: Datapath>(
    control: &mut Control<D>,
    config: &Config,
    mut store: Store,
) -> Result<(), StartError> {
    if config.forget {
        store.forget()?;
    }
    let (mut records, dir) = (store.load()?, store.dir().to_path_buf());
    records.values_mut().for_each(|record| control.forget_lost(record));
    if !records.is_empty() {
        tracing::info!("restored {} switches from the state directory", records.len());
    }
    let daemon = Caller {
        pid: std::process::id(),
        process: Process::Number(std::process::id()),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: Vec::new(),
        privileged: true,
    };
    for plan in store::record::merge(&config.switches, records) {
        control
            .make_planned(&daemon, &plan)
            .map_err(Box::new)
            .map_err(|refusal| StartError::Switch { name: plan.name.to_string(), refusal })?;
    }
    let start = |error| StartError::Io { doing: "keep what commands make in", path: dir, error };
    control.save_with(Writer::start(store).map_err(start)?, &config.switches);
    Ok(())
}
