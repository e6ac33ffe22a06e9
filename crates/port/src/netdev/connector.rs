//! The thread that gets peers for a port, one after the other, so that the worker never waits for
//! one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::End;
use crate::machine::log::RateLimitedLog;
use crate::machine::quota::Charge;
use crate::machine::rejected::RejectedPeers;
use crate::machine::socket::{Listener, connect_datagrams};
use crate::machine::{MachinePort, RETRY_MS, Spec, State, Status, process_of};
use crate::sys::vhost::{Event, wait};

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
    stop: Arc<Event>,
    status: Arc<Status>,
    peers: Sender<OwnedFd>,
    given: Arc<Event>,
    ends: Receiver<End>,
    ended: Arc<Event>,
    /// A peer that connected while another one had the port.
    next: Option<OwnedFd>,
    /// The charge for its descriptors.
    _charge: Charge,
}

/// The worker's end of the channel between the two.
pub(super) struct PeerChannel {
    peers: Receiver<OwnedFd>,
    given: Arc<Event>,
    ends: Sender<End>,
    ended: Arc<Event>,
    /// The epoll set that wakes the worker.
    epoll: OwnedFd,
}

/// Both ends of a new channel.
pub(super) fn pair(
    spec: &Spec,
    charge: Charge,
    source: Source,
    listener: Listener,
    status: Status,
) -> io::Result<(Connector, PeerChannel)> {
    let ((peers, come), (ends, end)) = (channel(), channel());
    let (given, ended) = (Arc::new(Event::new()?), Arc::new(Event::new()?));
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let channel =
        PeerChannel { peers: come, given: given.clone(), ends, ended: ended.clone(), epoll };
    channel.watch(given.as_fd())?;
    let connector = Connector {
        log: RateLimitedLog::new(spec.name.clone()),
        source,
        listener: Arc::new(listener),
        stop: Arc::new(Event::new()?),
        status: Arc::new(status),
        peers,
        given,
        ends: end,
        ended,
        next: None,
        _charge: charge,
    };
    Ok((connector, channel))
}

impl PeerChannel {
    /// A new peer, if there is one.
    pub(super) fn peer(&self) -> Option<OwnedFd> {
        let peer = self.peers.try_recv().ok()?;
        self.given.clear();
        Some(peer)
    }

    /// Tells the connector that the port has disconnected its peer.
    pub(super) fn end(&self, end: End) {
        // Fails only if the connector has ended.
        let _ = self.ends.send(end);
        self.ended.set();
    }

    /// Wakes the worker when the descriptor is readable.
    pub(super) fn watch(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN)
    }

    /// Wakes the worker when the descriptor is writable, too, if `wanted`.
    pub(super) fn watch_room(&self, fd: impl AsFd, wanted: bool) {
        let room = if wanted { EventFlags::OUT } else { EventFlags::empty() };
        // Changing a watch that exists cannot fail.
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN | room);
    }

    pub(super) fn unwatch(&self, fd: impl AsFd) {
        // The descriptor is closed next.
        let _ = epoll::delete(&self.epoll, fd);
    }
}

impl PeerChannel {
    /// The descriptor that the worker waits for.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.epoll
    }
}

impl Connector {
    /// The control thread's part of the port.
    pub(super) fn port(&self) -> MachinePort {
        let (listener, stop, status) =
            (self.listener.clone(), self.stop.clone(), self.status.clone());
        MachinePort { listener, stop, status }
    }

    pub(super) fn run(mut self) {
        while let Some(peer) = self.next_peer() {
            let described = self.greet(&peer);
            self.ended.clear();
            // Set first: the worker clears it when it takes the peer.
            self.given.set();
            if self.peers.send(peer).is_err() {
                return;
            }
            self.status.note(State::Up);
            let end = self.wait_for_end();
            self.status.note_process(0);
            self.status.note(State::Waiting);
            match end {
                None => return,
                Some(End::Gone) => self.log.info(format_args!("{described} disconnected")),
                Some(end) => {
                    self.status.complain(Some(end.to_string()));
                    self.log.warn(format_args!("disconnected {described}: {end}"));
                }
            }
            if self.is_stopped_within(RETRY_MS) {
                return;
            }
        }
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
                    match wait([Some(self.stop.as_fd()), listener], None) {
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

    /// Waits until the peer is disconnected; returns why, or `None` when the port is being closed.
    fn wait_for_end(&mut self) -> Option<End> {
        let rejected = RejectedPeers::new(&self.log, &self.status);
        loop {
            let pause = rejected.pause_ms(Instant::now());
            let listener = self.listener.fd().filter(|_| matches!(self.source, Source::Accept));
            let listener = listener.filter(|_| pause.is_none());
            let fds = [Some(self.stop.as_fd()), Some(self.ended.as_fd()), listener];
            match wait(fds, pause) {
                Ok([true, ..]) => return None,
                Ok([_, true, _]) => return self.ends.recv().ok(),
                Ok([.., true]) => match self.listener.next() {
                    Ok(None) => {}
                    Ok(Some(another)) if self.ends_within(GRACE_MS) => self.next = Some(another),
                    Ok(Some(peer)) => rejected.reject(&peer),
                    Err(_) => rejected.defer(),
                },
                Ok(_) => {}
                Err(_) if self.is_stopped_within(RETRY_MS) => return None,
                Err(_) => {}
            }
        }
    }

    fn ends_within(&self, ms: u32) -> bool {
        let ended = wait([Some(self.ended.as_fd()), Some(self.stop.as_fd())], Some(ms));
        matches!(ended, Ok([true, _]))
    }

    /// Waits so long; returns whether the port is being closed.
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
