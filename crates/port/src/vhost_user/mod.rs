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
mod voice;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use switch::{Adapter, Wake};

use crate::sys::Waker;
use crate::sys::vhost::{Ear, Event, receive, send, wait};
use hand::{Hand, Trouble};
use message::{Answer, FDS_MAX, HEADER, Header, Malformed, Message, PAYLOAD_MAX};
use session::{Fault, Session};
pub use socket::{Access, SocketError};
use socket::{Door, bind, failed};
use voice::Voice;

/// Most pairs of queues: QEMU's own limit is far above, a guest has seldom as many processors.
pub const PAIRS_MAX: u16 = 64;
/// Between two frontends, and between two tries to get one, in milliseconds. Nobody who comes and
/// goes, and no lack of descriptors, keeps a processor busy.
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
    /// How often it was no longer up, modulo 2^32. Written by the protocol thread alone.
    ends: AtomicU32,
    bell: Arc<Waker>,
}

impl Status {
    fn new(bell: &Arc<Waker>) -> Self {
        let (state, process) = (AtomicU8::new(State::Waiting as u8), AtomicU32::new(0));
        Self { state, process, ends: AtomicU32::new(0), bell: bell.clone() }
    }

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

    /// How often a machine that was up went away, or its driver did. Whoever looks seldom sees by
    /// this that one has gone and come again meanwhile.
    #[must_use]
    pub fn ends(&self) -> u32 {
        self.ends.load(Ordering::Relaxed)
    }

    fn note(&self, state: State) {
        let before = self.state();
        if before == state {
            return;
        }
        if before == State::Up {
            self.ends.store(self.ends().wrapping_add(1), Ordering::Relaxed);
        }
        self.state.store(state as u8, Ordering::Relaxed);
        // Whoever was woken by an earlier change and saw half of this one is woken again.
        self.bell.wake();
    }
}

/// A port's socket and its thread. Dropped, it takes the socket away at once and lets the thread
/// end, which nobody waits for: it may have gigabytes to unmap.
#[derive(Debug)]
pub struct VhostPort {
    door: Arc<Door>,
    stop: Arc<Event>,
    status: Arc<Status>,
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
        self.door.close();
        self.stop.set();
    }
}

/// Opens a port: its adapter for the worker, and the rest. `bell` is rung when its state changes.
///
/// # Errors
/// [`SocketError`], with what to do.
pub fn open(spec: &Spec, bell: &Arc<Waker>) -> Result<(Box<dyn Adapter>, VhostPort), SocketError> {
    let door = if spec.connects { Door::Theirs(spec.path.clone()) } else { bind(spec)? };
    let door = Arc::new(door);
    let system = failed(&spec.path);
    let (ear, stop) =
        (Arc::new(Ear::new().map_err(&system)?), Arc::new(Event::new().map_err(&system)?));
    let trouble = Arc::new(Event::new().map_err(&system)?);
    let (hand, inbox) = hand::hands().map_err(&system)?;
    ear.add(inbox.mail.event()).map_err(&system)?;
    let queues = usize::from(spec.pairs) * 2;
    let adapter = adapter::Machine::new(queues, inbox, &ear, &trouble).map_err(&system)?;
    let status = Arc::new(Status::new(bell));
    let server = Server {
        voice: Voice::new(spec.name.clone()),
        pairs: spec.pairs,
        door: door.clone(),
        hand,
        ear,
        stop: stop.clone(),
        trouble,
        status: status.clone(),
    };
    let builder = std::thread::Builder::new().name("vhost-user".to_owned());
    let port = VhostPort { door, stop, status };
    builder.spawn(move || server.run()).map_err(&system)?;
    Ok((Box::new(adapter), port))
}

/// The protocol thread.
struct Server {
    voice: Voice,
    pairs: u16,
    door: Arc<Door>,
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
            self.voice.info(format_args!("process {process} has connected"));
            self.status.note(State::Connected);
            let mut session = Session::new(&mut self.hand, &self.ear, self.pairs);
            let conversation = Conversation {
                voice: &self.voice,
                frontend: &frontend,
                door: &self.door,
                stop: &self.stop,
                trouble: &self.trouble,
                status: &self.status,
                is_deaf: Cell::new(false),
            };
            let end = conversation.run(&mut session);
            drop(session);
            self.status.process.store(0, Ordering::Relaxed);
            self.status.note(State::Waiting);
            match end {
                End::Stopped => break,
                End::Gone => self.voice.info(format_args!("process {process} has gone")),
                end => self.voice.warn(format_args!("process {process} is let go: {end}")),
            }
            if self.is_stopped_within(RETRY_MS) {
                break;
            }
        }
    }

    /// Waits for one; none if the port is to be closed.
    fn next_frontend(&self) -> Option<OwnedFd> {
        loop {
            match self.door.next() {
                Ok(Some(frontend)) => return Some(frontend),
                Ok(None) if self.door.listener().is_some() => {
                    match wait([Some(self.stop.as_fd()), self.door.listener()], None) {
                        Ok([true, _]) => return None,
                        Ok([false, _]) => continue,
                        Err(_) => {}
                    }
                }
                Ok(None) | Err(_) => {}
            }
            if self.is_stopped_within(RETRY_MS) {
                return None;
            }
        }
    }

    /// Is the port to be closed? Waits so long for that.
    fn is_stopped_within(&self, ms: u32) -> bool {
        match wait([Some(self.stop.as_fd())], Some(ms)) {
            Ok([stopped]) => stopped,
            Err(_) => {
                std::thread::sleep(Duration::from_millis(ms.into()));
                false
            }
        }
    }
}

/// With one frontend.
struct Conversation<'a> {
    voice: &'a Voice,
    frontend: &'a OwnedFd,
    door: &'a Door,
    stop: &'a Event,
    trouble: &'a Event,
    status: &'a Status,
    /// Is another frontend not listened for now? One that could not be accepted stays there.
    is_deaf: Cell<bool>,
}

impl Conversation<'_> {
    fn run(&self, session: &mut Session<&mut Hand>) -> End {
        loop {
            let outcome = self.serve(session);
            self.note_state(session);
            if let Err(end) = outcome {
                return end;
            }
        }
    }

    fn note_state(&self, session: &Session<&mut Hand>) {
        let state = if session.is_up() { State::Up } else { State::Connected };
        if state == State::Up && self.status.state() != State::Up {
            self.voice.info(format_args!("its machine is up"));
        }
        self.status.note(state);
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
                self.voice.warn(format_args!("refused: {fault}"));
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
        let is_deaf = self.is_deaf.take();
        let listener = self.door.listener().filter(|_| !is_deaf);
        let fds = [Some(self.stop.as_fd()), Some(self.frontend.as_fd()), trouble, listener];
        let [stopped, _, trouble, another] = wait(fds, is_deaf.then_some(RETRY_MS))?;
        if stopped {
            return Err(End::Stopped);
        }
        // Looked at last: one that has gone and comes again has closed its first connection before.
        let [speaks] = wait([Some(self.frontend.as_fd())], Some(0))?;
        if another && !speaks {
            match self.door.next() {
                Ok(Some(_)) => self.voice.warn(format_args!("a second frontend is turned away")),
                Ok(None) => {}
                Err(_) => self.is_deaf.set(true),
            }
        }
        if let Some(session) = session.filter(|_| trouble) {
            self.trouble.clear();
            for (queue, why) in session.find_trouble() {
                if why == Trouble::Lost {
                    return Err(why.into());
                }
                self.voice.warn(format_args!("queue {queue} is stopped: {why}"));
            }
            self.note_state(session);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    fn open_at(path: &Path) -> (Box<dyn Adapter>, VhostPort) {
        let (_, bell) = Waker::new().expect("descriptors");
        let (name, path) = ("vale0:vm".to_owned(), path.to_owned());
        let spec = Spec { name, path, connects: false, pairs: 1, access: Access::default() };
        open(&spec, &Arc::new(bell)).expect("nobody is there")
    }

    #[test]
    fn a_port_goes_while_its_thread_is_busy() {
        let path = std::env::temp_dir().join(format!("uvala-busy-{}", std::process::id()));
        let (adapter, port) = open_at(&path);
        let mut frontend = UnixStream::connect(&path).expect("it listens");
        // SEND_RARP: the thread waits for a worker that never does what it is told.
        let message = [&[19, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0][..], &[2; 8]].concat();
        frontend.write_all(&message).expect("it reads");
        let start = Instant::now();
        while port.status().state() != State::Connected {
            assert!(start.elapsed() < Duration::from_secs(10), "it accepts");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(100));
        let (done, is_done) = channel();
        std::thread::spawn(move || {
            drop(port);
            let _ = done.send(());
        });
        is_done.recv_timeout(Duration::from_secs(10)).expect("nobody waits for the thread");
        assert!(!path.exists(), "another may be made there");
        drop(adapter);
    }

    #[test]
    fn a_machine_that_has_gone_and_come_again_has_gone() {
        let (_, bell) = Waker::new().expect("descriptors");
        let status = Status::new(&Arc::new(bell));
        [State::Connected, State::Up, State::Up].into_iter().for_each(|state| status.note(state));
        assert_eq!(status.ends(), 0);
        let again = [State::Waiting, State::Connected, State::Up];
        again.into_iter().for_each(|state| status.note(state));
        assert_eq!((status.state(), status.ends()), (State::Up, 1));
    }
}
