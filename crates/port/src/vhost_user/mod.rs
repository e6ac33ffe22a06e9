//! Virtual machines as ports: the backend's side of vhost-user.
//!
//! ```text
//!   frontend (QEMU, …)          protocol thread, one for each port          worker
//!  ┌────────────────┐  socket  ┌─────────────────────────────────┐ orders ┌─────────┐
//!  │ virtio-net     │ ◄──────► │ message ──► session             │ ◄────► │ adapter │
//!  └───────┬────────┘          │             memory, queues' state│        └────┬────┘
//!          │ lends             └─────────────────────────────────┘             │
//!     ┌────┴─────────────── the guest's memory: virtqueues, buffers ───────────┴───┐
//! ```
//!
//! The [socket](self) is listened on, or connected to again and again; one frontend has the port
//! at a time. What it says is [read](message) and [followed](session) by a thread of the port's
//! own, so that one that says half a message, or has gigabytes to be mapped, keeps nobody waiting.
//! The worker gets queues that are ready for use ([`hand`]), and gives them back when they change.
//!
//! When the frontend goes, its queues and its memory go; the port stays and waits for the next.
//! When the daemon goes, a frontend that reconnects finds its port again: how far each queue was
//! stands in the guest's memory, for buffers go back in order.

mod adapter;
pub mod hand;
pub mod memory;
pub mod message;
pub mod session;
mod socket;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::thread::JoinHandle;

use switch::{Adapter, Wake};

use crate::sys::Waker;
use crate::sys::vhost::{Ear, Event, receive, send, wait};
use hand::{Hand, Trouble};
use message::{Answer, FDS_MAX, HEADER, Header, Malformed, Message, PAYLOAD_MAX};
use session::{Fault, Session};
pub use socket::{Access, SocketError};
use socket::{Door, bind, failed};

/// Most pairs of queues: QEMU's own limit is far above, a guest has seldom as many processors.
pub const PAIRS_MAX: u16 = 64;
/// Between two tries to connect, in milliseconds.
const RETRY_MS: u32 = 50;

/// What a port is to be.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its name, for the log.
    pub name: String,
    /// The socket.
    pub path: PathBuf,
    /// The frontend listens, and we connect.
    pub connects: bool,
    /// Pairs of queues.
    pub pairs: u16,
    /// Who may connect to a socket of ours.
    pub access: Access,
}

/// Whether a machine can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No frontend.
    Waiting,
    /// A frontend, whose guest has no driver for the device yet.
    Connected,
    /// Its driver is at work.
    Up,
}

/// What control knows of a port.
#[derive(Debug)]
pub struct Status {
    state: AtomicU8,
    /// The process at the other end, 0 if there is none.
    process: AtomicU32,
    bell: Arc<Waker>,
}

impl Status {
    /// The state.
    #[must_use]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Waiting,
            1 => State::Connected,
            _ => State::Up,
        }
    }

    /// The process at the other end.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        Some(self.process.load(Ordering::Relaxed)).filter(|process| *process != 0)
    }

    fn note(&self, state: State) {
        if self.state() != state {
            self.state.store(state as u8, Ordering::Relaxed);
            self.bell.wake();
        }
    }
}

/// A port's socket and its thread. Dropped, after the adapter has been, it ends both.
#[derive(Debug)]
pub struct VhostPort {
    stop: Arc<Event>,
    status: Arc<Status>,
    thread: Option<JoinHandle<()>>,
}

impl VhostPort {
    /// What is known of it.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }
}

impl Drop for VhostPort {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said why already.
            let _ = thread.join();
        }
    }
}

/// Opens a port: its adapter for the worker, and the rest. `bell` is rung when its state changes.
///
/// # Errors
/// [`SocketError`], with what to do.
pub fn open(spec: &Spec, bell: &Arc<Waker>) -> Result<(Box<dyn Adapter>, VhostPort), SocketError> {
    let door = if spec.connects { Door::Theirs(spec.path.clone()) } else { bind(spec)? };
    let system = failed(&spec.path);
    let (ear, stop) =
        (Arc::new(Ear::new().map_err(&system)?), Arc::new(Event::new().map_err(&system)?));
    let trouble = Arc::new(Event::new().map_err(&system)?);
    let (hand, inbox) = hand::hands().map_err(&system)?;
    ear.add(inbox.mail.event()).map_err(&system)?;
    let queues = usize::from(spec.pairs) * 2;
    let adapter = adapter::Machine::new(queues, inbox, &ear, &trouble).map_err(&system)?;
    let (state, process) = (AtomicU8::new(State::Waiting as u8), AtomicU32::new(0));
    let status = Arc::new(Status { state, process, bell: bell.clone() });
    let server = Server {
        name: spec.name.clone(),
        pairs: spec.pairs,
        door,
        hand,
        ear,
        stop: stop.clone(),
        trouble,
        status: status.clone(),
    };
    let builder = std::thread::Builder::new().name("vhost-user".to_owned());
    let thread = builder.spawn(move || server.run()).map_err(&system)?;
    Ok((Box::new(adapter), VhostPort { stop, status, thread: Some(thread) }))
}

/// The protocol thread.
struct Server {
    name: String,
    pairs: u16,
    door: Door,
    hand: Hand,
    ear: Arc<Ear>,
    stop: Arc<Event>,
    trouble: Arc<Event>,
    status: Arc<Status>,
}

/// Why a frontend is let go.
#[derive(Debug, thiserror::Error)]
enum End {
    /// We are to stop.
    #[error("the port is closed")]
    Stopped,
    /// It has closed its end.
    #[error("it has gone")]
    Gone,
    /// It does not speak our language.
    #[error("it sent {0}")]
    Malformed(#[from] Malformed),
    /// It asked for something that cannot be, without waiting for an answer.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// Its memory is gone.
    #[error("{0}")]
    Trouble(#[from] Trouble),
    /// The system cannot.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl Server {
    fn run(mut self) {
        while let Some(frontend) = self.next_frontend() {
            let process = rustix::net::sockopt::socket_peercred(&frontend);
            let process = process.map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
            self.status.process.store(process, Ordering::Relaxed);
            tracing::info!("{}: process {process} has connected", self.name);
            self.status.note(State::Connected);
            let mut session = Session::new(&mut self.hand, &self.ear, self.pairs);
            let conversation = Conversation {
                name: &self.name,
                frontend: &frontend,
                door: &self.door,
                stop: &self.stop,
                trouble: &self.trouble,
                status: &self.status,
            };
            let end = conversation.run(&mut session);
            drop(session);
            self.status.process.store(0, Ordering::Relaxed);
            self.status.note(State::Waiting);
            match end {
                End::Stopped => break,
                End::Gone => tracing::info!("{}: process {process} has gone", self.name),
                end => tracing::warn!("{}: process {process} is let go: {end}", self.name),
            }
        }
        self.door.close();
    }

    /// Waits for one; none if the port is to be closed.
    fn next_frontend(&self) -> Option<OwnedFd> {
        loop {
            if let Some(frontend) = self.door.next() {
                return Some(frontend);
            }
            let timeout = if self.door.listener().is_none() { Some(RETRY_MS) } else { None };
            match wait([Some(self.stop.as_fd()), self.door.listener()], timeout) {
                Ok([false, _]) => {}
                Ok([true, _]) | Err(_) => return None,
            }
        }
    }
}

/// With one frontend.
struct Conversation<'a> {
    name: &'a str,
    frontend: &'a OwnedFd,
    door: &'a Door,
    stop: &'a Event,
    trouble: &'a Event,
    status: &'a Status,
}

impl Conversation<'_> {
    fn run(&self, session: &mut Session<&mut Hand>) -> End {
        loop {
            let outcome = self.serve(session);
            self.status.note(if session.is_up() { State::Up } else { State::Connected });
            if let Err(end) = outcome {
                return end;
            }
        }
    }

    /// One message, or what happened meanwhile.
    fn serve(&self, session: &mut Session<&mut Hand>) -> Result<(), End> {
        let mut bytes = [0; HEADER];
        let mut fds = Vec::with_capacity(FDS_MAX);
        self.fill(&mut bytes, &mut fds, Some(&mut *session))?;
        let header = Header::parse(bytes)?;
        let mut payload = [0; PAYLOAD_MAX];
        let payload = &mut payload[..header.size];
        self.fill(payload, &mut fds, None)?;
        let asked = header.need_reply && session.acknowledges();
        let taken = Message::parse(header.request, payload, fds)?;
        match session.take(taken) {
            Ok(Some(answer)) => self.answer(header, answer),
            Ok(None) if asked => self.answer(header, Answer::U64(0)),
            Ok(None) => Ok(()),
            Err(fault) if asked => {
                tracing::warn!("{}: refused: {fault}", self.name);
                self.answer(header, Answer::U64(1))
            }
            Err(fault) => Err(fault.into()),
        }
    }

    fn answer(&self, header: Header, answer: Answer) -> Result<(), End> {
        Ok(send(self.frontend, &answer.encode(header.request))?)
    }

    /// Receives exactly so many bytes. Between two messages the `session` may hear of trouble.
    fn fill(
        &self,
        bytes: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        mut session: Option<&mut Session<&mut Hand>>,
    ) -> Result<(), End> {
        let mut at = 0;
        while at < bytes.len() {
            match receive(self.frontend, &mut bytes[at..], fds) {
                Ok(0) => return Err(End::Gone),
                Ok(received) => at += received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(session.as_deref_mut())?;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(End::Gone);
                }
                Err(error) => return Err(error.into()),
            }
            if fds.len() > FDS_MAX {
                return Err(Malformed::Descriptors.into());
            }
        }
        Ok(())
    }

    fn wait(&self, session: Option<&mut Session<&mut Hand>>) -> Result<(), End> {
        let trouble = session.as_ref().map(|_| self.trouble.as_fd());
        let fds =
            [Some(self.stop.as_fd()), Some(self.frontend.as_fd()), trouble, self.door.listener()];
        let [stopped, _, trouble, another] = wait(fds, None)?;
        if stopped {
            return Err(End::Stopped);
        }
        // Looked at last: one that has gone and comes again has closed its first connection before.
        let [speaks] = wait([Some(self.frontend.as_fd())], Some(0))?;
        if another && !speaks && self.door.next().is_some() {
            tracing::warn!("{}: a second frontend is turned away", self.name);
        }
        if let Some(session) = session.filter(|_| trouble) {
            self.trouble.clear();
            for (queue, why) in session.find_trouble() {
                if why == Trouble::Lost {
                    return Err(why.into());
                }
                tracing::warn!("{}: queue {queue} is stopped: {why}", self.name);
            }
            self.status.note(if session.is_up() { State::Up } else { State::Connected });
        }
        Ok(())
    }
}
