//! The thread that gets a port its peers, one after the other, so that the worker waits for none.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::End;
use crate::machine::rivals::Rivals;
use crate::machine::socket::{Door, aim};
use crate::machine::voice::Voice;
use crate::machine::{MachinePort, RETRY_MS, Spec, State, Status, process_of};
use crate::sys::vhost::{Event, wait};
use crate::vhost_user::allowance::Charge;

/// How long one that comes while another is there is kept waiting. The other may have gone, and
/// the worker not have seen it yet.
const GRACE_MS: u32 = 200;

/// Where peers come from.
pub(super) enum Source {
    /// The port's door.
    Door,
    /// Datagrams are sent to this path; the door is where ours arrive.
    Aim(PathBuf),
}

/// The keeper of a port.
pub(super) struct Keeper {
    voice: Voice,
    source: Source,
    door: Arc<Door>,
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

/// The worker's end of what it and the keeper say to each other.
pub(super) struct Line {
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
    door: Door,
    status: Status,
) -> io::Result<(Keeper, Line)> {
    let ((peers, come), (ends, end)) = (channel(), channel());
    let (given, ended) = (Arc::new(Event::new()?), Arc::new(Event::new()?));
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let line = Line { peers: come, given: given.clone(), ends, ended: ended.clone(), epoll };
    line.watch(given.as_fd())?;
    let keeper = Keeper {
        voice: Voice::new(spec.name.clone()),
        source,
        door: Arc::new(door),
        stop: Arc::new(Event::new()?),
        status: Arc::new(status),
        peers,
        given,
        ends: end,
        ended,
        next: None,
        _charge: charge,
    };
    Ok((keeper, line))
}

impl Line {
    /// A new peer, if there is one.
    pub(super) fn peer(&self) -> Option<OwnedFd> {
        let peer = self.peers.try_recv().ok()?;
        self.given.clear();
        Some(peer)
    }

    /// Tells the keeper that its peer is let go.
    pub(super) fn end(&self, end: End) {
        // A keeper that is gone has stopped.
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

impl Line {
    /// What the worker waits for.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.epoll
    }
}

impl Keeper {
    /// What control has of the port.
    pub(super) fn port(&self) -> MachinePort {
        let (door, stop, status) = (self.door.clone(), self.stop.clone(), self.status.clone());
        MachinePort { door, stop, status }
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
                Some(End::Gone) => self.voice.info(format_args!("{whom} has gone")),
                Some(end) => {
                    self.status.complain(Some(end.to_string()));
                    self.voice.warn(format_args!("{whom} is let go: {end}"));
                }
            }
            if self.is_stopped_within(RETRY_MS) {
                return;
            }
        }
    }

    /// Notes who it is.
    fn greet(&self, peer: &OwnedFd) -> String {
        if let Source::Aim(path) = &self.source {
            self.status.welcome(0);
            self.voice.info(format_args!("{} is there", path.display()));
            return path.display().to_string();
        }
        let process = process_of(peer);
        self.status.welcome(process);
        self.voice.info(format_args!("process {process} has connected"));
        format!("process {process}")
    }

    /// Waits for one; none if the port is to be closed.
    fn next_peer(&mut self) -> Option<OwnedFd> {
        loop {
            let next = match &self.source {
                Source::Aim(path) => Ok(aim(path).ok()),
                Source::Door => self.next.take().map_or_else(|| self.door.next(), |p| Ok(Some(p))),
            };
            let listener = self.door.listener().filter(|_| matches!(self.source, Source::Door));
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
        let rivals = Rivals::new(&self.voice, &self.status);
        loop {
            let pause = rivals.pause_ms(Instant::now());
            let listener = self.door.listener().filter(|_| matches!(self.source, Source::Door));
            let listener = listener.filter(|_| pause.is_none());
            let fds = [Some(self.stop.as_fd()), Some(self.ended.as_fd()), listener];
            match wait(fds, pause) {
                Ok([true, ..]) => return None,
                Ok([_, true, _]) => return self.ends.recv().ok(),
                Ok([.., true]) => match self.door.next() {
                    Ok(None) => {}
                    Ok(Some(another)) if self.ends_within(GRACE_MS) => self.next = Some(another),
                    Ok(Some(rival)) => rivals.turn_away(&rival),
                    Err(_) => rivals.rest(),
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
