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
//! The port listens on its [socket](self), or connects to the VMM's again and again; one frontend
//! has the port at a time. A thread of the port [reads](message) the frontend's messages and
//! [acts](session) on them. So a frontend that sends half a message, or that lends gigabytes to be
//! mapped, blocks no other port. The worker receives queues that are ready for use ([`handoff`]),
//! and returns them when they change.
//!
//! When the frontend disconnects, its queues and its memory are released; the port stays and waits
//! for the next frontend, unless too many have left a descriptor unread (`unread`). A frontend can
//! hold that up, because it can block the thread; if it is evicted, the worker stops serving its
//! queues all the same. When the daemon ends, a frontend that reconnects finds its port again: the
//! guest's memory says how far each queue is, because the device uses buffers in order.

mod adapter;
pub mod handoff;
pub mod memory;
pub mod message;
pub mod session;
mod unread;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use protocol::{CURE_BY_QUEUES, CURE_IN_GUEST};
use switch::Adapter;

use crate::machine::log::RateLimitedLog;
use crate::machine::quota::{Charge, Resource};
use crate::machine::rejected::RejectedPeers;
use crate::machine::requests::{Admission, Request, Requests};
use crate::machine::socket::{Beside, Listener, failed};
use crate::machine::{MachinePort, RETRY_MS, SocketError, Spec, State, Status, process_of};
use crate::sys::unread::is_read;
use crate::sys::vhost::{Event, FDS_MAX, KickPlace, receive, send, wait};
use crate::sys::{SlowCalls, Waker};
use handoff::{Handoff, Trouble};
use message::{Answer, HEADER, Header, Malformed, Message, PAYLOAD_MAX};
use session::{Fault, Session, Shared};
use unread::Unread;

/// The descriptors of a port without those that a frontend passes: its socket, the connection, a
/// connection that is rejected, four for its threads to signal each other, one for temporary use.
const DESCRIPTORS: u64 = 8;

/// Opens a port; returns its adapter for the worker, and the rest. The port rings `bell` when its
/// state changes, and reports interrupts that are slow by `slow`.
///
/// # Errors
/// [`SocketError`], with what to do.
pub fn open(
    spec: &Spec,
    slow: SlowCalls,
    bell: &Arc<Waker>,
) -> Result<(Box<dyn Adapter>, MachinePort), SocketError> {
    let charge = spec.quota.take(Resource::Descriptors, DESCRIPTORS)?;
    let listener = Arc::new(Listener::of(spec, Beside::Descriptors)?);
    let system = failed(&spec.path);
    let kicks = Arc::new(KickPlace::new().map_err(&system)?);
    let requests = Arc::new(Requests::new().map_err(&system)?);
    let trouble = Arc::new(Event::new().map_err(&system)?);
    let (handoff, orders) = handoff::pair().map_err(&system)?;
    let queues = usize::from(spec.pairs) * 2;
    let adapter = adapter::Machine::new(queues, spec.coalesce, orders, &requests, &kicks, &trouble)
        .map_err(&system)?;
    let status = Arc::new(Status::new(bell));
    let shared = Shared { kicks, quota: spec.quota.clone(), slow: Arc::new(slow) };
    let server = Server {
        log: RateLimitedLog::new(spec.name.clone(), spec.quota.lines()),
        pairs: spec.pairs,
        shared,
        _charge: charge,
        listener: listener.clone(),
        handoff,
        requests: requests.clone(),
        trouble,
        status: status.clone(),
        unread: Unread::default(),
    };
    let builder = std::thread::Builder::new().name("vhost-user".to_owned());
    let port = MachinePort { listener, requests, status };
    let body = move || {
        confine::narrow(confine::Thread::Machine);
        server.run();
    };
    builder.spawn(body).map_err(&system)?;
    Ok((Box::new(adapter), port))
}

/// The protocol thread.
struct Server {
    log: RateLimitedLog,
    pairs: u16,
    shared: Shared,
    /// The charge for its descriptors.
    _charge: Charge,
    listener: Arc<Listener>,
    handoff: Handoff,
    requests: Arc<Requests>,
    trouble: Arc<Event>,
    status: Arc<Status>,
    unread: Unread,
}

/// Why the port disconnects a frontend.
#[derive(Debug, thiserror::Error)]
enum End {
    /// The port is being closed.
    #[error("the port is closed")]
    Stopped,
    /// The control thread wants the frontend out, and logs that itself.
    #[error("{0}")]
    Evicted(String),
    /// The frontend has closed the connection.
    #[error("it disconnected")]
    Gone,
    /// The frontend broke the protocol.
    #[error("it sent {0}")]
    Malformed(#[from] Malformed),
    /// The frontend asked for something impossible, and did not ask for a reply.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The frontend's receive buffer is full, or it asks for a descriptor while a reply to an
    /// earlier request is unread.
    #[error("it does not read the replies to its requests")]
    Deaf,
    /// The guest's memory is gone.
    #[error("{0}")]
    Trouble(#[from] Trouble),
    /// A system call failed.
    #[error("{0}")]
    System(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Gone,
            io::ErrorKind::WouldBlock | io::ErrorKind::WriteZero => Self::Deaf,
            _ => Self::System(error),
        }
    }
}

impl Server {
    fn run(mut self) {
        while let Some((frontend, admission)) = self.next_frontend() {
            let process = process_of(&frontend);
            self.status.welcome(process);
            self.log.info(format_args!("process {process} connected"));
            self.status.note(State::Connected);
            self.handoff.begin(admission);
            let mut session = Session::new(&mut self.handoff, self.pairs, &self.shared);
            let conversation = Conversation {
                log: &self.log,
                frontend: &frontend,
                listener: &self.listener,
                requests: &self.requests,
                trouble: &self.trouble,
                kicks: &self.shared.kicks,
                status: &self.status,
                rejected: RejectedPeers::new(&self.log, &self.status),
                owes: Cell::new(false),
            };
            let end = conversation.run(&mut session);
            let (owes, wants_others) = (conversation.owes.get(), session.knows_queues_only());
            drop(conversation);
            drop(session);
            if owes {
                self.unread.keep(frontend);
            }
            self.status.note_process(0);
            self.status.note(State::Waiting);
            match end {
                End::Stopped => break,
                End::Gone => {
                    self.log.info(format_args!("process {process} disconnected"));
                    if wants_others {
                        self.status.complain(Some(too_few_queues(self.pairs)));
                    }
                }
                // `next_frontend` complains of it.
                End::Evicted(_) => {}
                end => {
                    self.status.complain(Some(end.to_string()));
                    self.log.warn(format_args!("disconnected process {process}: {end}"));
                }
            }
            if self.requests.sleeps_until_end(RETRY_MS) {
                break;
            }
        }
        self.listener.outlast();
        self.unread.outlast(&self.shared.quota);
    }

    /// Waits for a frontend; returns `None` when the port is being closed.
    fn next_frontend(&mut self) -> Option<(OwnedFd, Admission)> {
        loop {
            if !self.waits_for_room() {
                return None;
            }
            let complain = |why| self.status.complain(Some(why));
            let admission = self.requests.wait_for_admission(Some(&self.listener), complain)?;
            match self.listener.next() {
                Ok(Some(frontend)) => return Some((frontend, admission)),
                Ok(None) if self.listener.fd().is_some() => {
                    match wait([Some(self.requests.as_fd()), self.listener.fd()], None) {
                        Ok([true, _]) if self.requests.take() == Some(Request::End) => return None,
                        Ok(_) => continue,
                        Err(_) => {}
                    }
                }
                Ok(None) | Err(_) => {}
            }
            if self.requests.sleeps_until_end(RETRY_MS) {
                return None;
            }
        }
    }

    /// Waits until few enough frontends have left a descriptor unread. `false`: the port is being
    /// closed.
    fn waits_for_room(&mut self) -> bool {
        let mut is_known = false;
        while !self.unread.makes_room(&self.shared.quota) {
            if !std::mem::replace(&mut is_known, true) {
                self.status.complain(Some(UNREAD.to_owned()));
                self.log.warn(format_args!("{UNREAD}"));
            }
            // An eviction would end the pause at once. Taken, it keeps frontends out all the same.
            self.requests.take();
            if self.requests.sleeps_until_end(RETRY_MS) {
                return false;
            }
        }
        true
    }
}

/// Why a port admits no frontend, and what to do.
const UNREAD: &str = "its last frontends asked for a descriptor that they have not read, and keep \
                      their ends of the connections; end these processes";

/// QEMU hangs up if a port has fewer queues than it was told to use.
fn too_few_queues(pairs: u16) -> String {
    format!(
        "it left when it heard that the port has queues = {pairs}{CURE_BY_QUEUES}delete the port \
         and add it with --queues N, the number of its queue pairs"
    )
}

/// Why a queue in doubt is stopped, and what to do.
fn stopped_in_doubt(queue: usize) -> String {
    format!(
        "queue {queue} is stopped: its packed ring does not say where the daemon or the backend \
         before it was{CURE_IN_GUEST}bind the driver anew (cd /sys/bus/virtio/drivers/virtio_net \
         && echo virtio0 > unbind && echo virtio0 > bind; ls shows the name), or start the machine \
         without packed=on"
    )
}

/// The conversation with one frontend.
struct Conversation<'a> {
    log: &'a RateLimitedLog,
    frontend: &'a OwnedFd,
    listener: &'a Listener,
    requests: &'a Requests,
    trouble: &'a Event,
    kicks: &'a KickPlace,
    status: &'a Status,
    rejected: RejectedPeers<'a>,
    /// The frontend was sent a descriptor.
    owes: Cell<bool>,
}

impl Conversation<'_> {
    fn run(&self, session: &mut Session<&mut Handoff>) -> End {
        loop {
            let outcome = self.serve(session);
            self.note_state(session);
            if let Err(end) = outcome {
                return end;
            }
        }
    }

    fn note_state(&self, session: &Session<&mut Handoff>) {
        let state = if session.is_up() { State::Up } else { State::Connected };
        let in_doubt = session.in_doubt().map(stopped_in_doubt);
        if state == State::Up && self.status.state() != State::Up {
            self.log.info(format_args!("its VM is up"));
            if in_doubt.is_none() {
                self.status.complain(None);
            }
        }
        self.status.note(state);
        if let Some(why) = in_doubt.filter(|why| self.status.complaint().as_ref() != Some(why)) {
            self.log.warn(format_args!("{why}"));
            self.status.complain(Some(why));
        }
    }

    /// Handles one message, or an event that came before it.
    fn serve(&self, session: &mut Session<&mut Handoff>) -> Result<(), End> {
        // Also if the frontend sends without a break.
        self.look_at_requests()?;
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
                self.status.complain(Some(format!("refused: {fault}")));
                self.log.warn(format_args!("refused: {fault}"));
                self.answer(header, Answer::U64(1))
            }
            Err(fault) => Err(fault.into()),
        }
    }

    fn answer(&self, header: Header, answer: Answer) -> Result<(), End> {
        let (bytes, fd) = answer.encode(header.request, header.size);
        if fd.is_some() {
            if !is_read(self.frontend) {
                return Err(End::Deaf);
            }
            self.owes.set(true);
        }
        Ok(send(self.frontend, &bytes, fd.as_ref().map(OwnedFd::as_fd))?)
    }

    /// Receives exactly this many bytes. Between two messages, `session` handles trouble of its
    /// queues.
    fn fill(
        &self,
        bytes: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        mut session: Option<&mut Session<&mut Handoff>>,
    ) -> Result<(), End> {
        let mut at = 0;
        while at < bytes.len() {
            match receive(self.frontend, &mut bytes[at..], fds) {
                Ok(0) => return Err(End::Gone),
                Ok(received) => at += received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(session.as_deref_mut())?;
                }
                Err(error) => return Err(error.into()),
            }
            if fds.len() > FDS_MAX {
                return Err(Malformed::Descriptors.into());
            }
        }
        Ok(())
    }

    fn look_at_requests(&self) -> Result<(), End> {
        match self.requests.is_set().then(|| self.requests.take()).flatten() {
            None => Ok(()),
            Some(Request::End) => Err(End::Stopped),
            Some(Request::Evict(why)) => Err(End::Evicted(why)),
        }
    }

    fn wait(&self, mut session: Option<&mut Session<&mut Handoff>>) -> Result<(), End> {
        let trouble = session.as_ref().map(|_| self.trouble.as_fd());
        let pause = self.rejected.pause_ms(Instant::now());
        let listener = self.listener.fd().filter(|_| pause.is_none());
        let moved = session.as_ref().map(|_| self.kicks.moved().as_fd());
        let (requests, frontend) = (Some(self.requests.as_fd()), Some(self.frontend.as_fd()));
        let ready = wait([requests, frontend, trouble, moved, listener], pause)?;
        let [_, _, trouble, moved, another] = ready;
        self.look_at_requests()?;
        // A frontend that reconnects closes its first connection before it opens the second, so the
        // first is checked again.
        let [speaks] = wait([Some(self.frontend.as_fd())], Some(0))?;
        if another && !speaks {
            match self.listener.next() {
                Ok(Some(peer)) => self.rejected.reject(&peer),
                Ok(None) => {}
                Err(_) => self.rejected.defer(),
            }
        }
        if let Some(session) = session.as_mut().filter(|_| moved) {
            self.kicks.moved().clear();
            session.follow_port()?;
        }
        if let Some(session) = session.filter(|_| trouble) {
            self.trouble.clear();
            for (queue, why) in session.find_trouble() {
                if why == Trouble::Lost {
                    return Err(why.into());
                }
                self.status.complain(Some(format!("queue {queue} is stopped: {why}")));
                self.log.warn(format_args!("queue {queue} is stopped: {why}"));
            }
            self.note_state(session);
        }
        Ok(())
    }
}

#[cfg(test)]
mod evictions;

#[cfg(test)]
mod tests {
    use super::evictions::{event, say};
    use super::unread::UNREAD_MAX;
    use super::*;
    use crate::machine::Access;
    use crate::machine::quota::{Limits, Quota};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    pub(super) fn open_at(path: &Path) -> (Box<dyn Adapter>, MachinePort) {
        let (_, bell) = Waker::of_daemon().expect("descriptors");
        let (name, path) = ("vale0:vm".to_owned(), path.to_owned());
        let quota = Quota::new(0, Limits::NONE);
        let (peer, access) = (None, Access::default());
        let (connects, pairs, coalesce) = (false, 1, None);
        let spec = Spec { name, path, connects, pairs, coalesce, peer, access, quota };
        open(&spec, SlowCalls::unreported(), &Arc::new(bell)).expect("the path is free")
    }

    #[test]
    fn a_port_goes_while_its_thread_is_busy() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("vm.sock");
        let (adapter, port) = open_at(&path);
        let mut frontend = UnixStream::connect(&path).expect("it listens");
        // SEND_RARP: the thread waits for the worker, which never runs in this test.
        let message = [&[19, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0][..], &[2; 8]].concat();
        frontend.write_all(&message).expect("it reads");
        soon("it accepts", || port.status().state() == State::Connected);
        std::thread::sleep(Duration::from_millis(100));
        let (done, is_done) = channel();
        std::thread::spawn(move || {
            drop(port);
            let _ = done.send(());
        });
        is_done
            .recv_timeout(Duration::from_secs(10))
            .expect("the drop does not wait for the thread");
        assert!(!path.exists(), "another may be made there");
        drop(adapter);
    }

    pub(super) fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(10), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_frontend_is_evicted_whatever_it_does_and_none_is_admitted() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("vm.sock");
        let (_adapter, port) = open_at(&path);
        let connect = || UnixStream::connect(&path).expect("it listens");
        let mut frontend = connect();
        let flood = std::thread::spawn(move || {
            // SET_OWNER, which has no effect and no answer.
            while frontend.write_all(&[3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).is_ok() {}
        });
        soon("it accepts", || port.status().state() == State::Connected);
        port.evict(Duration::from_secs(600), "it is too loud".to_owned());
        flood.join().expect("its writes fail");
        let says = || port.status().complaint();
        soon("a complaint", || says().as_deref() == Some("it is too loud"));
        let mut another = connect();
        assert_eq!(another.read(&mut [0]).expect("closed"), 0);
        assert_eq!(port.status().state(), State::Waiting);
        port.evict(Duration::ZERO, "it is too loud".to_owned());
        let _frontend = connect();
        soon("it admits one", || port.status().state() == State::Connected);
        assert_eq!(says(), None);
    }

    #[test]
    fn a_port_says_what_to_do_for_a_packed_queue_in_doubt() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("vm.sock");
        let (_adapter, port) = open_at(&path);
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&memory, 16384).expect("ours");
        // A buffer that was given back, and one that is available, or the rest of the first.
        for (slot, flags) in [(0, 0x8082), (1, 0x0082)] {
            let words = [7_u16, flags].map(u16::to_le_bytes).concat();
            rustix::io::pwrite(&memory, &words, 16 * slot + 12).expect("ours");
        }
        let frontend = UnixStream::connect(&path).expect("it listens");
        // SET_FEATURES: VERSION_1, RING_PACKED; SET_MEM_TABLE.
        say(&frontend, 2, &[1 << 32 | 1 << 34], None);
        say(&frontend, 5, &[1, 0, 16384, 0, 0], Some(memory.as_fd()));
        // SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ADDR, SET_VRING_KICK.
        say(&frontend, 8, &[8 << 32], None);
        say(&frontend, 10, &[0x8002_8002 << 32], None);
        say(&frontend, 9, &[0, 0, 8192, 4096, 0], None);
        say(&frontend, 12, &[0], Some(event().as_fd()));
        let says = || port.status().complaint();
        soon("a complaint", || says().is_some());
        let why = says().expect("just seen");
        assert!(why.starts_with("queue 0 is stopped: ") && why.contains("; in the guest, bind"));
        assert_eq!(port.status().state(), State::Connected);
    }

    #[test]
    fn a_frontend_has_one_unread_descriptor_and_those_that_read_none_keep_the_port_closed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("vm.sock");
        let (_adapter, port) = open_at(&path);
        // GET_INFLIGHT_FD, for two queues of eight buffers; the answer is as long.
        let ask = [&[31, 0, 0, 0, 1, 0, 0, 0, 24, 0, 0, 0][..], &[0; 16], &[2, 0, 8, 0], &[0; 4]];
        let (ask, mut answer) = (ask.concat(), [0; 12 + 24]);
        let connect = || {
            let frontend = UnixStream::connect(&path).expect("it listens");
            frontend.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
            frontend
        };
        let mut honest = connect();
        for _ in 0..3 {
            honest.write_all(&ask).expect("it reads");
            honest.read_exact(&mut answer).expect("an answer");
        }
        drop(honest);
        let mut unread = Vec::new();
        while unread.len() < UNREAD_MAX {
            let mut frontend = connect();
            while frontend.write_all(&ask).is_ok() {}
            unread.push(frontend);
        }
        let mut next = connect();
        next.write_all(&ask).expect("room");
        let complaint = || port.status().complaint();
        soon("a complaint", || complaint().is_some_and(|why| why == UNREAD));
        assert_eq!(port.status().state(), State::Waiting);
        unread[0].read_exact(&mut answer).expect("an answer");
        assert_eq!(unread[0].read(&mut [0]).unwrap_or(0), 0, "and no more");
        next.read_exact(&mut answer).expect("it is admitted");
    }
}
