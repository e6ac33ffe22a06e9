//! The thread that gets a port its peers, one after the other, so that the worker waits for none.

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

/// How long one that comes while another is there is kept waiting. The other may have gone, and
/// the worker not have seen it yet.
const GRACE_MS: u32 = 200;

/// Where peers come from.
pub(super) enum Source {
    /// The port's listener.
    Accept,
    /// Datagrams are sent to this path; the listener is where ours arrive.
    Datagrams(PathBuf),
}

/// The connector of a port.
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
    /// Came while another was there.
    next: Option<OwnedFd>,
    /// For its descriptors.
    _charge: Charge,
}

/// The worker's end of what it and the connector say to each other.
pub(super) struct PeerChannel {
    peers: Receiver<OwnedFd>,
    given: Arc<Event>,
    ends: Sender<End>,
    ended: Arc<Event>,
    /// Readable when there is something to do for the adapter.
    epoll: OwnedFd,
}

/// Both.
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

    /// Tells the connector that its peer is let go.
    pub(super) fn end(&self, end: End) {
        // A connector that is gone has stopped.
        let _ = self.ends.send(end);
        self.ended.set();
    }

    /// From now on there is something to do when this is readable.
    pub(super) fn watch(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN)
    }

    /// The same when it is writable, too.
    pub(super) fn watch_room(&self, fd: impl AsFd, wanted: bool) {
        let room = if wanted { EventFlags::OUT } else { EventFlags::empty() };
        // What is watched can be watched otherwise.
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN | room);
    }

    pub(super) fn unwatch(&self, fd: impl AsFd) {
        // It is closed next.
        let _ = epoll::delete(&self.epoll, fd);
    }
}

impl PeerChannel {
    /// What the worker waits for.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.epoll
    }
}

impl Connector {
    /// What control has of the port.
    pub(super) fn port(&self) -> MachinePort {
        let (listener, stop, status) =
            (self.listener.clone(), self.stop.clone(), self.status.clone());
        MachinePort { listener, stop, status }
    }

    pub(super) fn run(mut self) {
        while let Some(peer) = self.next_peer() {
            let whom = self.greet(&peer);
            self.ended.clear();
            // First: who has taken the peer clears this.
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
                Some(End::Gone) => self.log.info(format_args!("{whom} has gone")),
                Some(end) => {
                    self.status.complain(Some(end.to_string()));
                    self.log.warn(format_args!("{whom} is let go: {end}"));
                }
            }
            if self.is_stopped_within(RETRY_MS) {
                return;
            }
        }
    }

    /// Notes who it is.
    fn greet(&self, peer: &OwnedFd) -> String {
        if let Source::Datagrams(path) = &self.source {
            self.status.welcome(0);
            self.log.info(format_args!("{} is there", path.display()));
            return path.display().to_string();
        }
        let process = process_of(peer);
        self.status.welcome(process);
        self.log.info(format_args!("process {process} has connected"));
        format!("process {process}")
    }

    /// Waits for one; none if the port is to be closed.
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

    /// Why the peer was let go; none if the port is to be closed.
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
