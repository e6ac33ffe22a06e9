//! The thread that gets peers for a port, one after the other, so that the worker never waits for
//! one.
//!
//! A peer can block this thread, by a descriptor that takes long to close. So the worker looks
//! itself whether its peer was [evicted](crate::machine::requests), and hangs up; it sends and
//! receives nothing more before this thread gives it the next [`Admission`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use super::End;
use crate::machine::log::RateLimitedLog;
use crate::machine::quota::Charge;
use crate::machine::rejected::RejectedPeers;
use crate::machine::requests::{Admission, Request, Requests};
use crate::machine::socket::{Listener, connect_datagrams};
use crate::machine::{MachinePort, RETRY_MS, Spec, State, Status, process_of};
use crate::sys::vhost::{Event, wait};
use crate::sys::{PortBell, said};

/// How long a new peer waits while another one has the port. That one may have gone without the
/// worker's notice.
const GRACE_MS: u32 = 200;

/// The origin of peers.
pub(super) enum Source {
    /// Peers connect to the port's listener, or the port connects to them.
    Accept,
    /// The port sends datagrams to the socket of this path, and receives by its own.
    Datagrams(PathBuf),
}

/// The connector's end.
pub(super) struct Connector {
    log: RateLimitedLog,
    source: Source,
    listener: Arc<Listener>,
    requests: Arc<Requests>,
    status: Arc<Status>,
    given: Sender<Given>,
    signal: Arc<Signal>,
    leftovers: Receiver<Leftover>,
    left: Arc<Event>,
    pause: Arc<Pause>,
    /// The admission of peers.
    admission: Admission,
    /// A peer that connected while another one had the port.
    next: Option<OwnedFd>,
    /// The charge for its descriptors.
    _charge: Charge,
}

/// The worker's end of the channel between the two.
pub(super) struct PeerChannel {
    given: Receiver<Given>,
    signal: Arc<Signal>,
    leftovers: Sender<Leftover>,
    left: Arc<Event>,
    pause: Arc<Pause>,
    listener: Arc<Listener>,
    /// Says whether the port is evicted.
    requests: Arc<Requests>,
    /// The admission of peers that the connector has given last.
    admission: Admission,
    /// What rings at the worker, if one has the port.
    bell: Option<PortBell>,
    /// The bell watches the socket of a datagram port.
    watches_socket: bool,
}

/// What the connector gives to the worker.
struct Given {
    admission: Admission,
    /// A peer, if one has come.
    peer: Option<OwnedFd>,
}

/// The signal that the worker has to look at the channel, or at the admission.
struct Signal {
    event: Event,
    /// Set by the connector, behind the event; cleared by the worker, before the event. Release and
    /// acquire: a worker that finds it set finds the reason.
    is_set: AtomicBool,
}

/// What the worker leaves to the connector.
struct Leftover {
    /// Why it disconnected its peer, if it did.
    end: Option<End>,
    /// The connection, and descriptors that came by it. Closing them can take hours.
    descriptors: Vec<OwnedFd>,
}

/// A datagram port receives nothing while the connector closes descriptors: so it holds those of
/// one datagram at a time. Set by the worker when it pauses; cleared by the connector, which then
/// signals the worker. Release and acquire: a worker that finds it cleared finds them closed.
type Pause = AtomicBool;

/// Both ends of a new channel.
pub(super) fn pair(
    spec: &Spec,
    charge: Charge,
    source: Source,
    listener: Listener,
    status: Status,
) -> io::Result<(Connector, PeerChannel)> {
    let ((given, come), (leftovers, theirs)) = (channel(), channel());
    let signal = Arc::new(Signal { event: Event::new()?, is_set: AtomicBool::new(false) });
    let (left, requests) = (Arc::new(Event::new()?), Arc::new(Requests::new()?));
    let (pause, admission) = (Arc::<Pause>::default(), Admission::default());
    let listener = Arc::new(listener);
    let channel = PeerChannel {
        given: come,
        signal: signal.clone(),
        leftovers,
        left: left.clone(),
        pause: pause.clone(),
        listener: listener.clone(),
        requests: requests.clone(),
        admission,
        bell: None,
        watches_socket: false,
    };
    let connector = Connector {
        log: RateLimitedLog::new(spec.name.clone(), spec.quota.lines()),
        source,
        listener,
        requests,
        status: Arc::new(status),
        given,
        signal,
        leftovers: theirs,
        left,
        pause,
        admission,
        next: None,
        _charge: charge,
    };
    Ok((connector, channel))
}

impl PeerChannel {
    /// Clears the connector's signal. The worker looks for a peer and for an eviction after this.
    #[inline]
    pub(super) fn clear_signal(&self) {
        if self.signal.is_set.load(Ordering::Acquire) {
            self.signal.is_set.store(false, Ordering::Relaxed);
            self.signal.event.clear();
        }
    }

    /// A new peer, if there is one.
    pub(super) fn peer(&mut self) -> Option<OwnedFd> {
        loop {
            let Given { admission, peer } = self.given.try_recv().ok()?;
            self.admission = admission;
            if peer.is_some() {
                return peer;
            }
        }
    }

    /// Whether the port is evicted, and with it the peer.
    #[inline]
    pub(super) fn is_evicted(&self) -> bool {
        self.requests.is_evicted(self.admission)
    }

    /// Leaves descriptors to the connector, and tells it why the port has disconnected its peer, if
    /// it has.
    pub(super) fn leave(&self, end: Option<End>, descriptors: Vec<OwnedFd>) {
        // The connector outlasts this channel.
        let _ = self.leftovers.send(Leftover { end, descriptors });
        self.left.set();
    }

    /// The socket of a datagram port, unless the port pauses or is evicted.
    pub(super) fn socket(&mut self) -> Option<BorrowedFd<'_>> {
        let is_open = self.update_watch();
        self.listener.fd().filter(|_| is_open)
    }

    /// Watches the socket of a datagram port, unless the port pauses or is evicted; whether it is
    /// to be read. Whatever clears the connector's signal calls this after it, or the end of a
    /// pause would be lost.
    pub(super) fn update_watch(&mut self) -> bool {
        let is_open = !self.is_evicted() && !self.pause.load(Ordering::Acquire);
        self.watch_socket(is_open);
        is_open
    }

    fn watch_socket(&mut self, wanted: bool) {
        let (Some(bell), Some(socket)) = (&self.bell, self.listener.fd()) else { return };
        match (self.watches_socket, wanted) {
            (false, true) => self.watches_socket = said(bell.watch(socket)),
            (true, false) => {
                bell.unwatch(socket);
                self.watches_socket = false;
            }
            _ => {}
        }
    }

    /// Receives no datagrams until the connector has closed these descriptors.
    pub(super) fn pause(&mut self, descriptors: Vec<OwnedFd>) {
        self.pause.store(true, Ordering::Relaxed);
        self.watch_socket(false);
        self.leave(None, descriptors);
    }

    /// Has the connector's signals ring; whether they do.
    pub(super) fn ring_by(&mut self, bell: &PortBell) -> bool {
        let rings = bell.watch_all([&self.signal.event]);
        self.bell = rings.then(|| bell.clone());
        rings
    }

    /// Nothing of the channel rings any more.
    pub(super) fn ring_no_more(&mut self) {
        self.watch_socket(false);
        if let Some(bell) = self.bell.take() {
            bell.unwatch(&self.signal.event);
        }
    }

    /// Wakes the worker when the descriptor is readable.
    pub(super) fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        self.bell.as_ref().map_or(Ok(()), |bell| bell.watch(fd))
    }

    /// Wakes the worker when the descriptor is writable, too, if `wanted`.
    pub(super) fn watch_room(&self, fd: impl AsFd, wanted: bool) {
        if let Some(bell) = &self.bell {
            bell.watch_room(fd, wanted);
        }
    }

    pub(super) fn unwatch(&self, fd: impl AsFd) {
        if let Some(bell) = &self.bell {
            bell.unwatch(fd);
        }
    }
}

impl Drop for PeerChannel {
    fn drop(&mut self) {
        let peers = self.given.try_iter().filter_map(|given| given.peer).collect();
        self.leave(None, peers);
    }
}

impl Signal {
    /// Sets the event first: a worker that finds the word set clears both, and leaves no event
    /// behind that nothing clears.
    fn set(&self) {
        self.event.set();
        self.is_set.store(true, Ordering::Release);
    }
}

impl Connector {
    /// The control thread's part of the port.
    pub(super) fn port(&self) -> MachinePort {
        let (listener, requests, status) =
            (self.listener.clone(), self.requests.clone(), self.status.clone());
        MachinePort { listener, requests, status }
    }

    pub(super) fn run(mut self) {
        self.serve();
        // Until the worker has left its last descriptor.
        self.leftovers.iter().for_each(drop);
        self.listener.outlast();
    }

    fn serve(&mut self) {
        while let Some(peer) = self.next_peer() {
            let described = self.greet(&peer);
            if !self.give(peer) {
                return;
            }
            self.status.note(State::Up);
            let end = self.wait_for_end();
            self.status.note_process(0);
            self.status.note(State::Waiting);
            match end {
                None => return,
                // `next_peer` complains of it.
                Some(End::Evicted) => {}
                Some(End::Gone) => self.log.info(format_args!("{described} disconnected")),
                Some(end) => {
                    self.status.complain(Some(end.to_string()));
                    self.log.warn(format_args!("disconnected {described}: {end}"));
                }
            }
            if self.requests.sleeps_until_end(RETRY_MS) {
                return;
            }
        }
    }

    /// Gives the worker a peer; returns `false` if the worker has dropped the port.
    pub(super) fn give(&self, peer: OwnedFd) -> bool {
        self.send(Some(peer))
    }

    fn send(&self, peer: Option<OwnedFd>) -> bool {
        let is_sent = self.given.send(Given { admission: self.admission, peer }).is_ok();
        self.signal.set();
        is_sent
    }

    /// Records a new peer; returns its description.
    fn greet(&self, peer: &OwnedFd) -> String {
        if let Source::Datagrams(path) = &self.source {
            self.status.welcome(0);
            self.log.info(format_args!("{} exists", path.display()));
            return path.display().to_string();
        }
        let process = process_of(peer);
        self.status.welcome(process);
        self.log.info(format_args!("process {process} connected"));
        format!("process {process}")
    }

    /// Waits for a peer; returns `None` when the port is being closed.
    fn next_peer(&mut self) -> Option<OwnedFd> {
        loop {
            if !self.wait_for_admission() {
                return None;
            }
            self.close_leftovers();
            let next = match &self.source {
                Source::Datagrams(path) => Ok(connect_datagrams(path).ok()),
                Source::Accept => {
                    self.next.take().map_or_else(|| self.listener.next(), |p| Ok(Some(p)))
                }
            };
            let listener = self.listener.fd().filter(|_| matches!(self.source, Source::Accept));
            match next {
                Ok(Some(peer)) => return Some(peer),
                Ok(None) if listener.is_some() => {
                    match wait([Some(self.requests.as_fd()), listener], None) {
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

    /// Waits until the peer is disconnected; returns why, or `None` when the port is being closed.
    fn wait_for_end(&mut self) -> Option<End> {
        let rejected = RejectedPeers::new(&self.log, &self.status);
        loop {
            let pause = rejected.pause_ms(Instant::now());
            let listener = self.listener.fd().filter(|_| matches!(self.source, Source::Accept));
            let listener = listener.filter(|_| pause.is_none());
            let fds = [Some(self.requests.as_fd()), Some(self.left.as_fd()), listener];
            match wait(fds, pause) {
                Ok([true, ..]) => match self.requests.take() {
                    None => {}
                    Some(Request::End) => return None,
                    Some(Request::Evict(_)) => {
                        self.next = None;
                        // The worker hangs up when it looks.
                        self.signal.set();
                    }
                },
                Ok([_, true, _]) => match self.close_leftovers() {
                    None => {}
                    end => return end,
                },
                Ok([.., true]) => match self.listener.next() {
                    Ok(None) => {}
                    Ok(Some(another)) if self.ends_within(GRACE_MS) => self.next = Some(another),
                    Ok(Some(peer)) => rejected.reject(&peer),
                    Err(_) => rejected.defer(),
                },
                Ok(_) => {}
                Err(_) if self.requests.sleeps_until_end(RETRY_MS) => return None,
                Err(_) => {}
            }
        }
    }

    /// Waits until the port admits peers; returns `false` when the port is being closed. After an
    /// eviction, the worker sends and receives again.
    fn wait_for_admission(&mut self) -> bool {
        let listener = matches!(self.source, Source::Accept).then_some(&*self.listener);
        let complain = |why| self.status.complain(Some(why));
        let Some(admission) = self.requests.wait_for_admission(listener, complain) else {
            return false;
        };
        if admission != self.admission {
            (self.admission, self.next) = (admission, None);
            self.send(None);
        }
        true
    }

    /// Closes what the worker left; returns why it disconnected the peer, if it did.
    pub(super) fn close_leftovers(&self) -> Option<End> {
        self.left.clear();
        let mut end = None;
        for leftover in self.leftovers.try_iter() {
            end = end.or(leftover.end);
            drop(leftover.descriptors);
        }
        if self.pause.swap(false, Ordering::Release) {
            self.signal.set();
        }
        end
    }

    fn ends_within(&self, ms: u32) -> bool {
        let ended = wait([Some(self.left.as_fd()), Some(self.requests.as_fd())], Some(ms));
        matches!(ended, Ok([true, _]))
    }
}
