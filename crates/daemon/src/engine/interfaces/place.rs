//! The interface of a port, as the control thread knows it.

use std::sync::Arc;
use std::time::Instant;

use hostif::namespace::{self, Home};
use hostif::netlink::Interface;
use port::host::{Link, State};
use port::log_budget::Budget;
use protocol::name::PortName;
use protocol::{HostIf, LinkState, PortKind};

use crate::model::opening::Opening;

/// A port's interface.
#[derive(Debug)]
pub(super) struct HostPlace {
    pub name: PortName,
    pub kind: PortKind,
    pub wanted: HostIf,
    /// The open interface; `None` if there was none to open.
    pub link: Option<Arc<Link>>,
    /// The interface as netlink last described it; its name may change. Its number is 0 once
    /// netlink has reported it gone; a worker may have noticed that before.
    pub interface: Interface,
    /// The interface's network namespace.
    pub home: Home,
    /// The state that was logged last, or was left out.
    pub logged: LinkState,
    /// Log lines about the interface: what is at its other end may change its state at any rate.
    pub lines: Budget,
    /// Why the daemon could not open the interface when it appeared.
    pub trouble: String,
    /// The trouble may pass by itself: the daemon tries again.
    pub retry: bool,
    /// The descriptors that the daemon before this one left are being tried.
    pub inherited: bool,
    /// The namespace is named by a process, which may be another one by now: without these
    /// descriptors the interface is not opened.
    pub only_inherited: bool,
    /// The attempt to open the interface again, while it is under way.
    pub opening: Option<Opening>,
}

impl HostPlace {
    /// The interface of a new port; none is open yet.
    pub fn new(
        name: PortName,
        kind: PortKind,
        wanted: HostIf,
        home: Home,
        interface: Interface,
    ) -> Self {
        Self {
            name,
            kind,
            wanted,
            link: None,
            interface,
            home,
            logged: LinkState::Gone,
            lines: Budget::default(),
            trouble: String::new(),
            retry: false,
            inherited: false,
            only_inherited: false,
            opening: None,
        }
    }

    pub fn state(&self) -> LinkState {
        match self.link.as_ref().map_or(State::Gone, |link| link.state()) {
            State::Up => LinkState::Up,
            State::Down => LinkState::Down,
            State::Gone => LinkState::Gone,
        }
    }

    /// Whether the interface is in the daemon's namespace, of which netlink reports changes.
    pub fn is_ours(&self) -> bool {
        self.wanted.netns.is_none()
    }

    /// Whether the daemon can open an interface of this name again after this one is deleted.
    pub fn comes_back(&self) -> bool {
        self.is_ours() && self.wanted.fds == 0
    }

    /// Whether one more line about the interface is to be logged. Logs how many were not.
    pub fn may_log(&self) -> bool {
        let decision = self.lines.decide(Instant::now());
        decision.allows("of its interface", |text| tracing::info!("{}: {text}", self.name))
    }

    /// Logs how frames come and go, where there are several ways.
    pub fn say_how(&self) {
        let how = self.link.as_ref().and_then(|link| link.how());
        if let Some(how) = how.filter(|_| self.may_log()) {
            tracing::info!("{}: interface {}: {how}", self.name, self.interface.name);
        }
    }

    pub fn ifname(&self) -> &str {
        self.wanted.ifname.as_deref().unwrap_or_default()
    }

    /// Whether `interface` is this one come back, by this name or one that it was given. What is
    /// still heard of the one that goes is not it.
    pub fn waits_for(&self, interface: &Interface) -> bool {
        let mut names = std::iter::once(&interface.name).chain(&interface.altnames);
        let waits = self.comes_back() && self.state() == LinkState::Gone;
        waits && !self.was(interface.index) && names.any(|it| it == self.ifname())
    }

    pub fn is(&self, index: u32) -> bool {
        self.was(index) && self.state() != LinkState::Gone
    }

    /// If it is gone, one of its number is another one.
    pub fn forget_gone(&mut self) {
        if self.state() == LinkState::Gone {
            self.interface.index = 0;
        }
    }

    /// Whether netlink last reported this index for the interface, even if a worker saw it go.
    pub fn was(&self, index: u32) -> bool {
        self.is_ours() && self.interface.index == index
    }

    /// Why it carries nothing, and what helps; nothing, if it does, or is being opened.
    pub fn why_not(&self) -> Option<String> {
        let (name, place) = (&self.interface.name, self.wanted.netns.as_deref());
        match self.state() {
            LinkState::Up => None,
            LinkState::Gone if !self.trouble.is_empty() => Some(self.trouble.clone()),
            LinkState::Gone if self.link.is_none() => None,
            LinkState::Gone if self.comes_back() => Some(format!(
                "interface {name} is gone; one named {} is taken when it appears: ip link",
                self.ifname()
            )),
            LinkState::Gone => Some(match place {
                Some(netns) if namespace::open(netns).is_err() => format!(
                    "network namespace {netns} is gone, and interface {name} with it; delete the \
                     port, and add it again when there is one: uvala port del {}",
                    self.name
                ),
                _ => format!(
                    "interface {name} is gone; delete the port, and add it again: uvala port del \
                     {}",
                    self.name
                ),
            }),
            LinkState::Down if self.home.is_foreign() => {
                let inside = place.map_or("ip".to_owned(), namespace::command);
                Some(format!(
                    "interface {name} takes no frames; set it up, if it is down: {inside} link set \
                     {name} up"
                ))
            }
            LinkState::Down if self.interface.up => Some(format!(
                "interface {name} has no carrier; look at its cable, or set up its other end"
            )),
            LinkState::Down => {
                Some(format!("interface {name} is down; set it up: ip link set {name} up"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port whose interface is in this state.
    fn with(state: State, wanted: HostIf, home: Home) -> HostPlace {
        let (_, bell) = port::host::bell().expect("descriptors");
        let interface = Interface { name: "red".to_owned(), ..Interface::default() };
        let link = Link::new(&interface, home.is_foreign(), &bell);
        link.note(state);
        let name = "vale0:a".parse().expect("a name");
        let new = HostPlace::new(name, PortKind::Packet, wanted, home, interface);
        HostPlace { link: Some(link), ..new }
    }

    #[test]
    fn what_carries_nothing_says_why_and_what_helps() {
        let named = || HostIf { ifname: Some("red".to_owned()), ..HostIf::default() };
        let inside = |netns: &str| HostIf { netns: Some(netns.to_owned()), ..named() };
        let given = || HostIf { fds: 1, ..named() };
        let own = std::process::id().to_string();
        let carrier = HostPlace {
            interface: Interface { up: true, name: "red".to_owned(), ..Interface::default() },
            ..with(State::Down, named(), Home::Ours)
        };
        let refused =
            HostPlace { trouble: "no right".into(), ..with(State::Gone, named(), Home::Ours) };
        for (place, why) in [
            (with(State::Down, named(), Home::Ours), "is down; set it up: ip link set red up"),
            (carrier, "red has no carrier; look at its cable"),
            (with(State::Down, inside("x"), Home::Other(1)), "down: ip -n x link set red up"),
            (with(State::Down, inside("7"), Home::Other(1)), "nsenter --net=/proc/7/ns/net ip"),
            (with(State::Down, given(), Home::Unknown), "if it is down: ip link set red up"),
            (with(State::Gone, named(), Home::Ours), "one named red is taken when it appears"),
            (with(State::Gone, inside(&own), Home::Other(1)), "interface red is gone; delete"),
            (with(State::Gone, inside("no-such"), Home::Other(1)), "namespace no-such is gone"),
            (with(State::Gone, given(), Home::Ours), "add it again: uvala port del vale0:a"),
            (refused, "no right"),
        ] {
            let said = place.why_not().expect(why);
            assert!(said.contains(why), "{said}");
        }
        assert_eq!(with(State::Up, named(), Home::Ours).why_not(), None);
        let begun = HostPlace { link: None, ..with(State::Gone, named(), Home::Ours) };
        assert_eq!(begun.why_not(), None, "it is being opened");
    }

    #[test]
    fn an_interface_is_there_again_by_any_of_its_names() {
        let named = HostIf { ifname: Some("red".to_owned()), ..HostIf::default() };
        let place = with(State::Gone, named, Home::Ours);
        let (name, altnames) = ("eth7".to_owned(), vec!["enp1".to_owned(), "red".to_owned()]);
        let of_name = || Interface { index: 8, name: name.clone(), ..Interface::default() };
        assert!(!place.waits_for(&of_name()));
        assert!(place.waits_for(&Interface { altnames, ..of_name() }));
    }
}
