//! Ports of the host's network interfaces: opened here, used by a worker, watched by netlink.
//!
//! ```text
//!                    ┌── add, found ──► up ◄──► down      netlink says which; of an interface in
//!  (port is made) ───┤                   │       │        another namespace, the worker does
//!                    │                   ▼       ▼
//!                    └── not found ────► gone ──────► up, down     one of that name appears
//! ```
//!
//! Each change is one line in the log. Addresses learnt behind a port that carries nothing any more
//! are forgotten, so that the stations are found elsewhere.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use client::api::{HostIf, HostIfInfo, LinkState, Mac, PortKind};
use client::name::PortName;
use port::host::netlink::{Event, Interface, Monitor, Netlink};
use port::host::tap::{Opened, TapSpec};
use port::host::{Absent, HostError, Link, State, bell, packet, stack, tap};
use port::sys::Waker;
use rustix::event::epoll;
use switch::{Adapter, Flush, Plug};

use super::{PortPlace, Workers};
use crate::control::datapath::{HostSpec, MakeHostError, PortKey};

/// The interfaces that are ports.
#[derive(Debug)]
pub struct HostPorts {
    /// The bell and the monitor, for who waits for one of them.
    epoll: OwnedFd,
    bell: OwnedFd,
    ringer: Arc<Waker>,
    /// Opened with the first port.
    monitor: Option<Monitor>,
    ports: BTreeMap<PortKey, HostPlace>,
}

/// A port's interface.
#[derive(Debug)]
struct HostPlace {
    name: PortName,
    kind: PortKind,
    wanted: HostIf,
    /// None where there was none to open.
    link: Option<Arc<Link>>,
    /// As it was last seen; its name may change.
    interface: Interface,
    /// The state that the log knows.
    logged: LinkState,
    /// Why it could not be opened when it appeared.
    trouble: String,
}

impl HostPlace {
    fn state(&self) -> LinkState {
        match self.link.as_ref().map_or(State::Gone, |link| link.state()) {
            State::Up => LinkState::Up,
            State::Down => LinkState::Down,
            State::Gone => LinkState::Gone,
        }
    }

    /// Is it where netlink tells us of?
    fn is_ours(&self) -> bool {
        self.wanted.netns.is_none()
    }

    fn ifname(&self) -> &str {
        self.wanted.ifname.as_deref().unwrap_or_default()
    }

    fn waits_for(&self, name: &str) -> bool {
        self.is_ours() && self.state() == LinkState::Gone && self.ifname() == name
    }

    fn is(&self, index: u32) -> bool {
        self.is_ours() && self.state() != LinkState::Gone && self.interface.index == index
    }
}

impl HostPorts {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (bell, ringer) = bell()?;
        watch(&epoll, bell.as_fd())?;
        Ok(Self { epoll, bell, ringer, monitor: None, ports: BTreeMap::new() })
    }

    /// From now on netlink tells what happens.
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

    pub(super) fn forget(&mut self, port: PortKey) {
        self.ports.remove(&port);
        if self.ports.is_empty() {
            self.monitor = None;
        }
    }

    /// What has happened, with what is lost looked up.
    fn events(&self) -> Vec<Event> {
        // Whatever was rung: all links are looked at.
        let _ = rustix::io::read(&self.bell, &mut [0; 256]);
        let events = self.monitor.as_ref().map(Monitor::events).unwrap_or_default();
        if !events.contains(&Event::Lost) {
            return events;
        }
        let Ok(netlink) = Netlink::open() else { return Vec::new() };
        let here = self.ports.values().filter(|place| place.is_ours());
        let look = |place: &HostPlace| match netlink.find(place.ifname()) {
            Ok(Some(interface)) => Some(Event::Is(interface)),
            Ok(None) => Some(Event::Gone(place.interface.index)),
            Err(_) => None,
        };
        here.filter_map(look).collect()
    }

    /// Notes what happened; returns the ports whose interface has appeared again.
    fn note(&mut self, events: &[Event]) -> Vec<PortKey> {
        let mut appeared = Vec::new();
        for event in events {
            for (&key, place) in &mut self.ports {
                match event {
                    Event::Is(now) if place.is(now.index) => {
                        let Some(link) = &place.link else { continue };
                        link.note_mtu(now.mtu);
                        link.note(State::of(now));
                        place.interface = now.clone();
                    }
                    Event::Is(now) if place.waits_for(&now.name) && !appeared.contains(&key) => {
                        appeared.push(key);
                    }
                    Event::Gone(index) if place.is(*index) => {
                        if let Some(link) = &place.link {
                            link.note(State::Gone);
                        }
                    }
                    _ => {}
                }
            }
        }
        appeared
    }

    /// Logs what has changed; returns the ports that carry nothing any more.
    fn log(&mut self) -> Vec<PortKey> {
        let mut silent = Vec::new();
        for (&key, place) in &mut self.ports {
            let state = place.state();
            if std::mem::replace(&mut place.logged, state) == state {
                continue;
            }
            let (port, ifname) = (&place.name, &place.interface.name);
            match state {
                LinkState::Up => tracing::info!("{port}: interface {ifname} is up"),
                LinkState::Down => tracing::info!("{port}: interface {ifname} is down"),
                LinkState::Gone if place.is_ours() => tracing::warn!(
                    "{port}: interface {ifname} is gone; one of that name is taken when it appears"
                ),
                LinkState::Gone => tracing::warn!(
                    "{port}: interface {ifname} is gone with its namespace; to have it again, \
                     delete the port and add it"
                ),
            }
            if state != LinkState::Up {
                silent.push(key);
            }
        }
        silent
    }
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}

fn open(kind: PortKind, wanted: &HostIf, bell: &Arc<Waker>) -> Result<Opened, HostError> {
    let name = wanted.ifname.clone().unwrap_or_default();
    match kind {
        PortKind::Packet => {
            return packet::open(&name, wanted.netns.as_deref(), wanted.alone, bell);
        }
        PortKind::Stack => return stack::open(&name, wanted.netns.as_deref(), bell),
        _ => {}
    }
    let spec = TapSpec {
        name,
        mtu: wanted.mtu,
        mac: wanted.mac.map(|mac| mac.0),
        namespace: wanted.netns.clone(),
        address: wanted.address.map(|address| (address.ip, address.prefix)),
    };
    tap::open(&spec, bell)
}

impl Workers {
    pub(super) fn open_host(&mut self, spec: &HostSpec) -> Result<(), MakeHostError> {
        self.next_place(spec.switch)?;
        // First, so that nothing happens unseen between the two.
        self.host.monitor()?;
        let opened = open(spec.kind, &spec.host, &self.host.ringer)?;
        self.plug_host(spec, opened.adapter, Some(opened.link), opened.interface)
    }

    pub(super) fn plug_absent(&mut self, spec: &HostSpec) -> Result<(), MakeHostError> {
        self.host.monitor()?;
        let name = spec.host.ifname.clone().unwrap_or_default();
        let interface = Interface { name, ..Interface::default() };
        self.plug_host(spec, Box::new(Absent), None, interface)
    }

    fn plug_host(
        &mut self,
        spec: &HostSpec,
        adapter: Box<dyn Adapter>,
        link: Option<Arc<Link>>,
        interface: Interface,
    ) -> Result<(), MakeHostError> {
        let (id, number) = self.next_place(spec.switch)?;
        let place = PortPlace { switch: spec.switch, id, number, bytes: 0, memory: None };
        self.plug(spec.key, place, Plug::Adapter(adapter), spec.config.clone());
        let mut place = HostPlace {
            name: spec.name.clone(),
            kind: spec.kind,
            wanted: spec.host.clone(),
            link,
            interface,
            logged: LinkState::Gone,
            trouble: String::new(),
        };
        place.logged = place.state();
        if place.logged == LinkState::Down {
            tracing::info!("{}: interface {} is down", place.name, place.interface.name);
        }
        self.host.ports.insert(spec.key, place);
        Ok(())
    }

    pub(super) fn tend_host(&mut self) {
        let events = self.host.events();
        for key in self.host.note(&events) {
            self.reopen(key);
        }
        for key in self.host.log() {
            if let Some((switch, id)) = self.switch_of(key) {
                self.on_switch(switch, move |worker, at| {
                    worker.switch(at).bridge_mut().flush(Flush::Port(id))
                });
            }
        }
    }

    /// An interface of the name has appeared.
    fn reopen(&mut self, key: PortKey) {
        let Some(place) = self.host.ports.get_mut(&key) else { return };
        match open(place.kind, &place.wanted, &self.host.ringer) {
            Ok(opened) => {
                (place.link, place.interface) = (Some(opened.link), opened.interface);
                place.trouble.clear();
                let at = self.ports.get(&key).map(|place| (place.switch, place.number));
                let (switch, number) = at.expect("every port has its place");
                let plug = Plug::Adapter(opened.adapter);
                drop(self.on_switch(switch, move |worker, _| worker.replug(number, plug)));
            }
            Err(error) => {
                let trouble = error.to_string();
                if place.trouble != trouble {
                    tracing::warn!("{}: {trouble}", place.name);
                    place.trouble = trouble;
                }
            }
        }
    }

    pub(super) fn describe_host(&self, port: PortKey) -> Option<HostIfInfo> {
        let place = self.host.ports.get(&port)?;
        let mtu = place.link.as_ref().map_or(place.interface.mtu, |link| link.mtu());
        Some(HostIfInfo {
            ifname: place.interface.name.clone(),
            netns: place.wanted.netns.clone(),
            state: place.state(),
            mtu,
            mac: Mac(place.interface.mac),
        })
    }

    pub(super) fn host_fd(&self) -> BorrowedFd<'_> {
        self.host.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    fn place(ifname: &str) -> HostPlace {
        HostPlace {
            name: "vale0:x".parse().expect("a name"),
            kind: PortKind::Packet,
            wanted: HostIf { ifname: Some(ifname.to_owned()), ..HostIf::default() },
            link: None,
            interface: Interface::default(),
            logged: LinkState::Gone,
            trouble: String::new(),
        }
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
    fn a_bell_that_is_rung_wakes_who_waits() {
        let ports = HostPorts::new().expect("descriptors");
        let link = Link::new(&interface(7, "a", true), false, &ports.ringer);
        link.note(State::Down);
        let mut space = [MaybeUninit::uninit(); 4];
        let (events, _) = epoll::wait(&ports.epoll, &mut space, None).expect("ours");
        assert_eq!(events.len(), 1);
        assert_eq!(ports.events(), []);
    }
}
