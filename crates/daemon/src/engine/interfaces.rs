//! Ports of network interfaces: a thread opens each, a worker uses it, netlink watches it.
//!
//! # Theory of operation
//!
//! ```text
//!                    ┌── add, found ──► up ◄──► down      netlink says which; of an interface in
//!  (port is made) ───┤                   │       │        another namespace, the worker does
//!                    │                   ▼       ▼
//!                    └── not found ────► gone ──────► up, down     one of that name appears
//! ```
//!
//! [`HostPorts`] belongs to the control thread. It owns the netlink socket, a timer, and the bell
//! that other threads ring, which control polls with its own descriptors. All of them are there
//! from the start: control never has to put something into the set that it waits for.
//! The adapter of an interface belongs to the worker; the [`Link`] between them holds the state.
//!
//! Opening takes long (the helper, another namespace, XDP), so a thread of its own does it and
//! rings when it is done ([`opening`]). Events that come meanwhile are kept and applied afterwards.
//!
//! The service manager keeps the descriptors of TAPs, so that the next daemon has the same
//! ([`stored`]).
//!
//! While another program has the interface, or the namespace does not exist yet, the daemon tries
//! again every second. If netlink loses events, [`lost`] looks the interfaces up.
//!
//! Each change is one line in the log, up to a number of them in a minute. When a port goes down,
//! the bridge forgets the addresses that it learned there, so that it finds the stations elsewhere.

mod lost;
mod opening;
mod place;
pub(super) mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Instant;

use hostif::HostError;
use hostif::netlink::{Event, Monitor};
use port::group::Share;
use port::host::{Opened, State, bell};
use port::sys::Waker;
use protocol::{HostIf, LinkState, PortKind};
use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_gettime,
    timerfd_settime,
};

use super::duplicates::Others;
use super::open::{Means, open};
use crate::kept::{FdStore, Kept};
use crate::model::keys::PortKey;
use crate::model::opening::{Opening, OpeningSlot};
use lost::{Lost, Sought};
use place::HostPlace;
use stored::Given;

/// The interfaces that are ports.
#[derive(Debug)]
pub struct HostPorts {
    bell: OwnedFd,
    ringer: Arc<Waker>,
    /// Readable when it is time to try again.
    timer: OwnedFd,
    monitor: Monitor,
    /// Helper that opens interfaces where the daemon may not.
    helper: Option<PathBuf>,
    /// What the daemon before this one left, until the ports are made.
    kept: Kept,
    /// Keeps what this one opens.
    fd_store: FdStore,
    /// Interfaces that are being opened.
    pending: Vec<Weak<OpeningSlot>>,
    /// Events since the first interface began to open, by interface index.
    meanwhile: BTreeMap<u32, Event>,
    /// Interfaces to look up because netlink has lost events.
    lost: Lost,
    ports: BTreeMap<PortKey, HostPlace>,
}

impl HostPorts {
    pub(super) fn new() -> io::Result<Self> {
        let (bell, ringer) = bell()?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            bell,
            ringer,
            timer,
            monitor: Monitor::open()?,
            helper: None,
            kept: Kept::default(),
            fd_store: FdStore::default(),
            pending: Vec::new(),
            meanwhile: BTreeMap::new(),
            lost: Lost::default(),
            ports: BTreeMap::new(),
        })
    }

    /// What becomes readable when something has happened.
    fn bells(&self) -> [BorrowedFd<'_>; 3] {
        [self.bell.as_fd(), self.timer.as_fd(), self.monitor.as_fd()]
    }

    /// Rung when a link's state has changed.
    pub(super) fn ringer(&self) -> &Arc<Waker> {
        &self.ringer
    }

    /// The port that has this share.
    pub(super) fn who_has(&self, share: &Arc<Share>) -> Option<PortKey> {
        let has = |place: &HostPlace| {
            let own = place.link.as_ref().and_then(|link| link.share());
            own.is_some_and(|own| Arc::ptr_eq(&own, share))
        };
        self.ports.iter().find(|(_, place)| has(place)).map(|(key, _)| *key)
    }

    pub(super) fn has(&self, port: PortKey) -> bool {
        self.ports.contains_key(&port)
    }

    /// Ports whose interfaces the next daemon opens anew, which may need that this one has not.
    pub(super) fn opened_anew(&self) -> impl Iterator<Item = PortKey> {
        let anew = self.ports.iter().filter(|(_, place)| place.kind != PortKind::Tap);
        anew.map(|(key, _)| *key)
    }

    /// Removes a port. The caller closes what is being opened for it.
    pub(super) fn forget(&mut self, port: PortKey) -> Option<Opening> {
        self.ports.remove(&port)?.opening
    }

    /// Begins to open an interface: the job puts what it has opened into the slot.
    fn begin(
        &mut self,
        kind: PortKind,
        wanted: HostIf,
        given: Given,
        share: Option<Arc<Share>>,
        others: Others,
        existing: bool,
    ) -> (Opening, impl FnOnce() + Send + use<>) {
        let (opening, ringer, helper) =
            (Opening::default(), self.ringer.clone(), self.helper.clone());
        let fd_store = self.fd_store.clone();
        let slot = opening.clone();
        self.pending.retain(|slot| slot.strong_count() > 0);
        self.pending.push(opening.watch());
        let job = move || {
            let (bell, helper) = (&ringer, helper.as_deref());
            let means = Means { bell, helper, share, others, existing, fd_store: &fd_store };
            slot.put(open(kind, &wanted, given, &means));
        };
        (opening, job)
    }

    /// Remembers what happens while interfaces are opened.
    fn remember(&mut self, event: &Event) {
        self.pending.retain(|slot| slot.strong_count() > 0);
        self.lost.hear(event);
        if self.pending.is_empty() {
            return self.meanwhile.clear();
        }
        if let Some(index) = event.index() {
            self.meanwhile.insert(index, event.clone());
        }
    }

    /// Applies the events that came while an interface was opened, which is in the table now.
    fn catch_up(&mut self, index: u32) {
        if let Some(event) = self.meanwhile.get(&index).cloned() {
            self.note(&[event]);
        }
    }

    /// Ports whose interface has been opened again, or could not be.
    fn reopened(&mut self) -> Vec<(PortKey, Result<Opened, HostError>)> {
        let take = |(key, place): (&PortKey, &mut HostPlace)| {
            let opened = place.opening.as_ref()?.take()?;
            place.opening = None;
            Some((*key, opened))
        };
        self.ports.iter_mut().filter_map(take).collect()
    }

    /// Sets the timer: in a second, or before, the daemon tries ports in trouble again.
    fn try_again(&self) {
        let runs = timerfd_gettime(&self.timer);
        if runs.is_ok_and(|it| it.it_value.tv_sec > 0 || it.it_value.tv_nsec > 0) {
            return;
        }
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec { it_interval: never, it_value: second };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        debug_assert!(set.is_ok(), "a timer of ours: {set:?}");
    }

    /// Ports to try again, if it is time.
    fn due(&mut self) -> Vec<PortKey> {
        if rustix::io::read(&self.timer, &mut [0; 8]).is_err() {
            return Vec::new();
        }
        let due = self.ports.iter_mut().filter(|(_, place)| place.retry);
        due.map(|(key, place)| {
            place.retry = false;
            *key
        })
        .collect()
    }

    /// New events of netlink, and the answers to lookups of lost ones.
    fn events(&mut self) -> Vec<Event> {
        // The bell does not tell which link has changed: look at all.
        let _ = rustix::io::read(&self.bell, &mut [0; 256]);
        let mut events = self.lost.found().unwrap_or_default();
        for event in self.monitor.events() {
            match event {
                Event::Lost => {
                    self.lost.note();
                    // The lost events may include its removal.
                    self.ports.values_mut().for_each(HostPlace::forget_gone);
                }
                event => events.push(event),
            }
        }
        let (lost, ports) = (&mut self.lost, &self.ports);
        lost.ask(Instant::now(), &self.ringer, || sought(ports));
        if self.lost.waits() {
            self.try_again();
        }
        events
    }

    /// Notes what happened; returns the ports whose interface has appeared again.
    fn note(&mut self, events: &[Event]) -> Vec<PortKey> {
        let mut appeared = Vec::new();
        for event in events {
            self.remember(event);
            for (&key, place) in &mut self.ports {
                match event {
                    Event::Is(now) if place.is(now.index) => {
                        let Some(link) = &place.link else { continue };
                        link.note_mtu(now.mtu);
                        link.note(State::of(now));
                        place.interface = now.clone();
                    }
                    Event::Is(now) if place.waits_for(now) && !appeared.contains(&key) => {
                        appeared.push(key);
                    }
                    Event::Gone(index) if place.was(*index) => {
                        if let Some(link) = &place.link {
                            link.note(State::Gone);
                        }
                        place.interface.index = 0;
                    }
                    _ => {}
                }
            }
        }
        appeared
    }

    /// Logs what has changed; returns the ports that are down now.
    fn log(&mut self) -> Vec<PortKey> {
        let mut silent = Vec::new();
        for (&key, place) in &mut self.ports {
            let state = place.state();
            if std::mem::replace(&mut place.logged, state) == state {
                continue;
            }
            if state != LinkState::Up {
                silent.push(key);
            }
            if !place.may_log() {
                continue;
            }
            let (port, ifname) = (&place.name, &place.interface.name);
            match state {
                LinkState::Up => tracing::info!("{port}: interface {ifname} is up"),
                LinkState::Down => tracing::info!("{port}: interface {ifname} is down"),
                LinkState::Gone if place.comes_back() => tracing::warn!(
                    "{port}: interface {ifname} is gone; one of that name is taken when it appears"
                ),
                LinkState::Gone => tracing::warn!(
                    "{port}: interface {ifname} is gone; to have it again, delete the port and add \
                     it"
                ),
            }
        }
        silent
    }
}

/// Interfaces to look up after netlink has lost events.
fn sought(ports: &BTreeMap<PortKey, HostPlace>) -> BTreeSet<Sought> {
    let seek = |place: &HostPlace| match place.state() {
        LinkState::Gone => place.comes_back().then(|| Sought::Name(place.ifname().to_owned())),
        _ => place.is_ours().then_some(Sought::Number(place.interface.index)),
    };
    ports.values().filter_map(seek).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostif::namespace::Home;
    use hostif::netlink::Interface;
    use port::host::Link;
    use rustix::event::{PollFd, PollFlags, poll};

    fn place(ifname: &str) -> HostPlace {
        let name = "vale0:x".parse().expect("a name");
        let wanted = HostIf { ifname: Some(ifname.to_owned()), ..HostIf::default() };
        HostPlace::new(name, PortKind::Packet, wanted, Home::Ours, Interface::default())
    }

    fn interface(index: u32, name: &str, running: bool) -> Interface {
        Interface { index, name: name.to_owned(), running, mtu: 9000, ..Interface::default() }
    }

    #[test]
    fn what_netlink_says_is_noted_and_what_appears_is_opened() {
        let mut ports = HostPorts::new().expect("descriptors");
        let (a, b) = (PortKey(1), PortKey(2));
        let link = Link::new(&interface(7, "a", true), false, &ports.ringer);
        let there = HostPlace {
            link: Some(link.clone()),
            interface: interface(7, "a", true),
            logged: LinkState::Up,
            ..place("a")
        };
        ports.ports = BTreeMap::from([(a, there), (b, place("b"))]);
        let events =
            [Event::Is(interface(7, "renamed", false)), Event::Is(interface(9, "c", true))];
        assert_eq!(ports.note(&events), []);
        assert_eq!((link.state(), link.mtu()), (State::Down, 9000));
        assert_eq!(ports.log(), [a]);
        assert_eq!(ports.log(), []);
        assert_eq!(ports.note(&[Event::Is(interface(8, "b", false))]), [b]);
        assert_eq!(ports.note(&[Event::Gone(7), Event::Is(interface(10, "a", true))]), [a]);
        assert_eq!((link.state(), ports.log()), (State::Gone, vec![a]));
    }

    #[test]
    fn an_interface_that_is_up_and_down_does_not_fill_the_log() {
        let mut ports = HostPorts::new().expect("descriptors");
        let key = PortKey(1);
        let link = Link::new(&interface(7, "a", true), false, &ports.ringer);
        let there = HostPlace {
            link: Some(link.clone()),
            logged: LinkState::Up,
            interface: interface(7, "a", true),
            ..place("a")
        };
        ports.ports = BTreeMap::from([(key, there)]);
        for _ in 0..100 {
            ports.note(&[Event::Is(interface(7, "a", false))]);
            assert_eq!(ports.log(), [key], "its addresses are forgotten each time");
            ports.note(&[Event::Is(interface(7, "a", true))]);
            assert_eq!(ports.log(), []);
        }
        assert_eq!(ports.ports[&key].lines.suppressed(), 160);
    }

    #[test]
    fn the_last_that_is_heard_of_an_interface_does_not_bring_it_back() {
        let mut ports = HostPorts::new().expect("descriptors");
        let (key, old) = (PortKey(1), interface(7, "a", true));
        let link = Link::new(&old, false, &ports.ringer);
        let there = HostPlace { link: Some(link.clone()), interface: old, ..place("a") };
        ports.ports = BTreeMap::from([(key, there)]);
        // A worker has seen it go before netlink said so.
        link.note(State::Gone);
        let last = Event::Is(interface(7, "a", false));
        assert_eq!(ports.note(&[last.clone(), Event::Gone(7)]), []);
        // Numbers may be used again.
        assert_eq!(ports.note(&[last]), [key]);
    }

    #[test]
    fn what_was_begun_and_is_over_takes_no_memory() {
        let mut ports = HostPorts::new().expect("descriptors");
        for _ in 0..3 {
            let (kind, others) = (PortKind::Tap, Others::default());
            drop(ports.begin(kind, HostIf::default(), Given::default(), None, others, false));
        }
        let others = Others::default();
        let (_opening, _job) =
            ports.begin(PortKind::Tap, HostIf::default(), Given::default(), None, others, false);
        assert_eq!(ports.pending.len(), 1);
    }

    #[test]
    fn what_is_opened_for_a_port_that_goes_is_closed_by_another_thread() {
        let mut ports = HostPorts::new().expect("descriptors");
        let opening = Some(Opening::default());
        ports.ports.insert(PortKey(1), HostPlace { opening, ..place("a") });
        assert!(ports.forget(PortKey(1)).is_some());
        assert!(ports.forget(PortKey(1)).is_none());
    }

    #[test]
    fn a_bell_that_is_rung_wakes_who_waits() {
        let mut ports = HostPorts::new().expect("descriptors");
        let link = Link::new(&interface(7, "a", true), false, &ports.ringer);
        link.note(State::Down);
        let mut bells = ports.bells().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        assert!(poll(&mut bells, None).expect("ours") > 0);
        assert_eq!(ports.events(), []);
    }
}
