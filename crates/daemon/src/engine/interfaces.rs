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
//! [`HostPorts`] belongs to the control thread. It owns the netlink socket, a timer, and one
//! epoll set of both and of the bell that other threads ring, which control polls with its own.
//! The adapter of an interface belongs to the worker; the [`Link`] between them holds the state.
//!
//! Opening takes long (the helper, another namespace, XDP), so a thread of its own does it and
//! rings when it is done. Events that come meanwhile are kept and applied afterwards.
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
mod place;
pub(super) mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hostif::HostError;
use hostif::namespace::{self, Home};
use hostif::netlink::{Event, Interface, Monitor};
use port::group::Share;
use port::host::{Absent, Link, Opened, State, bell};
use port::sys::Waker;
use protocol::name::PortName;
use protocol::{HostIf, HostIfInfo, LinkState, PortKind};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_gettime,
    timerfd_settime,
};
use switch::{Adapter, Flush, Plug};

use super::duplicates::{Other, Others, Side};
use super::open::{Means, open};
use super::worker::Worker;
use super::{PortPlace, Workers, open};
use crate::control::datapath::interfaces::{Copies, Interfaces};
use crate::kept::{FdStore, Kept};
use crate::model::error::MakeHostError;
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::opening::{Build, Opening, OpeningSlot};
use crate::model::specs::HostSpec;
use lost::{Lost, Sought};
use place::HostPlace;
use stored::Given;

/// The interfaces that are ports.
#[derive(Debug)]
pub struct HostPorts {
    /// The bell, the timer and the netlink socket, for control to poll.
    epoll: OwnedFd,
    bell: OwnedFd,
    ringer: Arc<Waker>,
    /// Readable when it is time to try again.
    timer: OwnedFd,
    /// Opened with the first port.
    monitor: Option<Monitor>,
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
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (bell, ringer) = bell()?;
        watch(&epoll, bell.as_fd())?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        watch(&epoll, timer.as_fd())?;
        Ok(Self {
            epoll,
            bell,
            ringer,
            timer,
            monitor: None,
            helper: None,
            kept: Kept::default(),
            fd_store: FdStore::default(),
            pending: Vec::new(),
            meanwhile: BTreeMap::new(),
            lost: Lost::default(),
            ports: BTreeMap::new(),
        })
    }

    /// Opens the netlink socket, if it is not open.
    fn monitor(&mut self) -> io::Result<()> {
        if self.monitor.is_none() {
            let monitor = Monitor::open()?;
            watch(&self.epoll, monitor.as_fd())?;
            self.monitor = Some(monitor);
        }
        Ok(())
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

    /// Removes a port. The caller closes what is being opened for it.
    pub(super) fn forget(&mut self, port: PortKey) -> Option<Opening> {
        let place = self.ports.remove(&port);
        if self.ports.is_empty() {
            self.monitor = None;
        }
        place?.opening
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
        for event in self.monitor.as_ref().map(Monitor::events).unwrap_or_default() {
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

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}

impl Workers {
    /// Sets the helper that opens what the daemon may not: a program, or the socket of one.
    pub fn set_helper(&mut self, helper: Option<PathBuf>) {
        self.host.helper = helper;
    }

    pub(super) fn begin_host(
        &mut self,
        switch: Option<SwitchKey>,
        kind: PortKind,
        wanted: &HostIf,
        given: Vec<OwnedFd>,
    ) -> io::Result<(Opening, Build)> {
        // First, so that nothing happens unseen between the two.
        self.host.monitor()?;
        let share = self.enrol(wanted)?;
        let others = switch.map(|switch| self.others(switch)).unwrap_or_default();
        let (opening, job) =
            self.host.begin(kind, wanted.clone(), Given::ByClient(given), share, others, false);
        let build = move || {
            job();
            Ok(())
        };
        Ok((opening, Box::new(build)))
    }

    /// Accepts an opened interface for a port, unless the switch has got it otherwise meanwhile;
    /// what the daemon changed at the interface stays from now on.
    fn accept(
        &self,
        switch: SwitchKey,
        kind: PortKind,
        wanted: &HostIf,
        mut opened: Opened,
    ) -> Result<Opened, HostError> {
        let mut undo = opened.undo.take();
        let admitted = self.others(switch).admit(kind, wanted, &opened);
        let kept = admitted.and_then(|()| {
            let kept = undo.as_mut().map_or(Ok(()), |undo| undo.keep());
            kept.map_err(|_| HostError::PutBack(opened.interface.name.clone()))
        });
        match kept {
            Ok(()) => {
                self.reclaimer.run(move || drop(undo));
                Ok(opened)
            }
            Err(error) => {
                self.reclaimer.run(move || drop((opened, undo)));
                Err(error)
            }
        }
    }

    /// The interfaces that are ports of a switch.
    fn others(&self, switch: SwitchKey) -> Others {
        let other = |(key, place): (&PortKey, &HostPlace)| {
            let is_there = place.state() != LinkState::Gone && self.ports[key].switch == switch;
            let side = Side::of(place.kind, &place.wanted);
            let (port, interface) = (place.name.clone(), place.interface.clone());
            is_there.then_some(Other { port, side, home: place.home, interface })
        };
        Others(self.host.ports.iter().filter_map(other).collect())
    }

    fn plug_host(
        &mut self,
        spec: &HostSpec,
        adapter: Box<dyn Adapter>,
        link: Option<Arc<Link>>,
        home: Home,
        interface: Interface,
    ) -> Result<(), MakeHostError> {
        let place = self.new_place(spec.switch, &spec.config)?;
        let absent = link.is_none();
        self.plug(spec.key, place, Plug::adapter(adapter), spec.config.clone());
        let (name, wanted) = (spec.name.clone(), spec.host.clone());
        let new = HostPlace::new(name, spec.kind, wanted, home, interface);
        // The daemon looks once more for an interface that is not there now.
        let mut place = HostPlace { link, retry: absent, ..new };
        place.say_how();
        if absent {
            self.host.try_again();
        }
        place.logged = place.state();
        if place.logged == LinkState::Down && place.may_log() {
            tracing::info!("{}: interface {} is down", place.name, place.interface.name);
        }
        self.host.ports.insert(spec.key, place);
        Ok(())
    }

    pub(super) fn refresh_interfaces(&mut self) {
        let events = self.host.events();
        let mut wanted = self.host.note(&events);
        wanted.extend(self.host.due());
        wanted.into_iter().for_each(|key| self.reopen(key));
        for (key, opened) in self.host.reopened() {
            self.take_back(key, opened);
        }
        for key in self.host.log() {
            if let Some((switch, id)) = self.switch_of(key) {
                self.on_switch(switch, move |worker, at| {
                    worker.switch(at).bridge_mut().flush(Flush::Port(id))
                });
            }
        }
    }

    /// An interface of the name has appeared: it is opened, by a thread that rings when it is done.
    fn reopen(&mut self, key: PortKey) {
        let Some(place) = self.host.ports.get(&key) else { return };
        if place.state() != LinkState::Gone || place.opening.is_some() {
            return;
        }
        // Another program removed the interface: the daemon waits for it and does not create it.
        let (kind, wanted, existing) = (place.kind, place.wanted.clone(), place.link.is_some());
        let share = match self.enrol(&wanted) {
            Ok(share) => share,
            Err(error) => return self.put_off(key, &format!("no place in its group: {error}")),
        };
        let others = self.others(self.ports[&key].switch);
        let given = self.host.inherited(key);
        if given.fds().is_empty() && self.host.ports[&key].only_inherited {
            return;
        }
        let (opening, job) = self.host.begin(kind, wanted, given, share, others, existing);
        let ringer = self.host.ringer.clone();
        let body = move || {
            confine::narrow(confine::Thread::Opener);
            job();
            ringer.wake();
        };
        let thread = std::thread::Builder::new().name("opener".to_owned()).spawn(body);
        match (thread, self.host.ports.get_mut(&key)) {
            (Ok(_), Some(place)) => place.opening = Some(opening),
            (Err(error), _) => {
                self.host.give_up_inherited(key, &self.reclaimer);
                self.put_off(key, &format!("no thread to open it: {error}"));
            }
            (Ok(_), None) => {}
        }
    }

    /// The interface cannot be opened now: the daemon tries again later.
    fn put_off(&mut self, key: PortKey, why: &str) {
        if let Some(place) = self.host.ports.get_mut(&key) {
            if place.may_log() {
                tracing::warn!("{}: {why}", place.name);
            }
            place.retry = true;
        }
        self.host.try_again();
    }

    /// The interface has been opened again, or could not be.
    fn take_back(&mut self, key: PortKey, opened: Result<Opened, HostError>) {
        let PortPlace { switch, worker, number, .. } = self.ports[&key];
        let Some(place) = self.host.ports.get(&key) else { return };
        let (kind, wanted) = (place.kind, &place.wanted);
        let accepted = opened.and_then(|opened| self.accept(switch, kind, wanted, opened));
        let Some(place) = self.host.ports.get_mut(&key) else { return };
        match accepted {
            Ok(opened) => {
                (place.link, place.interface) = (Some(opened.link), opened.interface);
                place.inherited = false;
                place.home = opened.home;
                place.trouble.clear();
                place.say_how();
                let adapter = opened.adapter;
                let job = move |worker: &mut Worker| worker.replug(number, adapter);
                let old = self.workers[worker].handle.call(job);
                self.reclaimer.run(move || drop(old));
                self.host.keep(key, &self.reclaimer);
                let index = self.host.ports[&key].interface.index;
                self.host.catch_up(index);
            }
            Err(error) => {
                let trouble = error.to_string();
                place.retry = error.passes() && !place.only_inherited;
                if place.trouble != trouble {
                    if place.may_log() {
                        tracing::warn!("{}: {trouble}", place.name);
                    }
                    place.trouble = trouble;
                }
                if place.retry {
                    self.host.try_again();
                }
                self.host.give_up_inherited(key, &self.reclaimer);
            }
        }
    }

    pub(super) fn host_fd(&self) -> BorrowedFd<'_> {
        self.host.epoll.as_fd()
    }
}

impl Interfaces for Workers {
    fn begin_opening(
        &mut self,
        switch: Option<SwitchKey>,
        kind: PortKind,
        host: &HostIf,
        given: Vec<OwnedFd>,
    ) -> Option<(Opening, Build)> {
        self.begin_host(switch, kind, host, given).ok()
    }

    fn cancel_opening(&mut self, opening: Opening) {
        self.reclaimer.run(move || drop(opening));
    }

    fn take_closing(&mut self) -> Option<Build> {
        open::close(std::mem::take(&mut self.closing))
    }

    fn close_in_background(&mut self) {
        let closing = std::mem::take(&mut self.closing);
        self.reclaimer.run(move || drop(closing));
    }

    fn add_host(&mut self, spec: &HostSpec) -> Result<(), MakeHostError> {
        self.new_place(spec.switch, &spec.config)?;
        self.host.monitor()?;
        let opened = match spec.opening.as_ref().and_then(Opening::take) {
            Some(opened) => opened?,
            None => {
                let share = self.enrol(&spec.host)?;
                let (bell, helper) = (&self.host.ringer, self.host.helper.as_deref());
                let (others, existing) = (self.others(spec.switch), false);
                let fd_store = &self.host.fd_store;
                let means = Means { bell, helper, share, others, existing, fd_store };
                open(spec.kind, &spec.host, Given::default(), &means)?
            }
        };
        let opened = self.accept(spec.switch, spec.kind, &spec.host, opened)?;
        let Opened { adapter, link, interface, home, .. } = opened;
        let index = interface.index;
        self.plug_host(spec, adapter, Some(link), home, interface)?;
        self.host.keep(spec.key, &self.reclaimer);
        self.host.catch_up(index);
        Ok(())
    }

    fn add_host_later(&mut self, spec: &HostSpec) -> Result<(), MakeHostError> {
        self.host.monitor()?;
        let name = spec.host.ifname.clone().unwrap_or_default();
        let interface = Interface { name, ..Interface::default() };
        self.plug_host(spec, Box::new(Absent), None, Home::Ours, interface)?;
        let inherits = self.host.inherits(&spec.name, spec.kind, &spec.host);
        let of_process = spec.host.netns.as_deref().is_some_and(namespace::is_of_process);
        if let Some(place) = self.host.ports.get_mut(&spec.key) {
            place.only_inherited = inherits && of_process;
        }
        self.reopen(spec.key);
        Ok(())
    }

    fn inherits(&self, port: &PortName, kind: PortKind, wanted: &HostIf) -> bool {
        self.host.inherits(port, kind, wanted)
    }

    fn discard_inherited(&mut self) {
        self.host.discard_rest(&self.reclaimer);
    }

    fn hand_over(&self, from: PortKey) -> io::Result<Option<(PortKey, Copies)>> {
        self.host.copies(from)
    }

    fn await_interfaces(&mut self, patience: Duration) {
        let end = Instant::now() + patience;
        loop {
            self.refresh_interfaces();
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.host.ports.values().all(|place| place.opening.is_none()) {
                return;
            }
            let left = Timespec::try_from(left).expect("seconds");
            let mut bell = [PollFd::new(&self.host.epoll, PollFlags::IN)];
            // A signal ends the wait as the bell does: the loop looks again.
            let _ = poll(&mut bell, Some(&left));
        }
    }

    fn host_info(&self, port: PortKey) -> Option<HostIfInfo> {
        let place = self.host.ports.get(&port)?;
        let mtu = place.link.as_ref().map_or(place.interface.mtu, |link| link.mtu());
        Some(HostIfInfo {
            ifname: place.interface.name.clone(),
            netns: place.wanted.netns.clone(),
            state: place.state(),
            mtu,
            mac: place.interface.mac,
            how: place.link.as_ref().and_then(|link| link.how()).map(str::to_owned),
            trouble: place.why_not(),
        })
    }

    fn host_events_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.host_fd())
    }

    fn take_host_events(&mut self) {
        self.refresh_interfaces();
        self.refresh_machines();
        self.drop_empty_groups();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

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
        assert_eq!(ports.ports[&key].lines.left_out(), 160);
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
        let mut space = [MaybeUninit::uninit(); 4];
        let (events, _) = epoll::wait(&ports.epoll, &mut space, None).expect("ours");
        assert_eq!(events.len(), 1);
        assert_eq!(ports.events(), []);
    }
}
