//! The interfaces of ports, as control asks for them: opened for the call that adds the port, or by
//! a thread when the interface appears, accepted beside those that the switch has, given to the
//! port's worker, shown, and handed over.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostif::HostError;
use hostif::namespace::{self, Home};
use hostif::netlink::Interface;
use port::host::{Absent, Link, Opened, TapQueues};
use protocol::name::PortName;
use protocol::{HostIf, HostIfInfo, LinkState, PortKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::geteuid;
use switch::{Adapter, Flush, Plug};

use super::place::HostPlace;
use super::stored::Given;
use crate::control::datapath::interfaces::{Copies, Interfaces};
use crate::engine::duplicates::{Other, Others, Side};
use crate::engine::open::{Means, close, open};
use crate::engine::worker::Worker;
use crate::engine::{PortPlace, Workers};
use crate::model::error::MakeHostError;
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::opening::{Build, Opening};
use crate::model::specs::HostSpec;

impl Workers {
    /// Sets the helper that opens what the daemon may not: a program, or the socket of one.
    pub fn set_helper(&mut self, helper: Option<PathBuf>) {
        self.host.helper = helper;
    }

    fn begin_host(
        &mut self,
        switch: Option<SwitchKey>,
        kind: PortKind,
        wanted: &HostIf,
        given: Option<TapQueues>,
    ) -> io::Result<(Opening, Build)> {
        let share = self.enrol(wanted)?;
        let others = switch.map(|switch| self.others(switch)).unwrap_or_default();
        let given = given.map_or_else(Given::default, Given::ByClient);
        let (opening, job) = self.host.begin(kind, wanted.clone(), given, share, others, false);
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

    fn refresh_interfaces(&mut self) {
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
        // Only root and the daemon's user give any.
        let closer = self.reclaimer.closer_for(geteuid().as_raw());
        let given = self.host.inherited(key, &closer);
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
}

impl Interfaces for Workers {
    fn begin_opening(
        &mut self,
        switch: Option<SwitchKey>,
        kind: PortKind,
        host: &HostIf,
        given: Option<TapQueues>,
    ) -> Option<(Opening, Build)> {
        self.begin_host(switch, kind, host, given).ok()
    }

    fn cancel_opening(&mut self, opening: Opening) {
        self.reclaimer.run(move || drop(opening));
    }

    fn take_closing(&mut self) -> Option<Build> {
        close(std::mem::take(&mut self.closing))
    }

    fn close_in_background(&mut self) {
        let closing = std::mem::take(&mut self.closing);
        self.reclaimer.run(move || drop(closing));
    }

    fn add_host(&mut self, spec: &HostSpec) -> Result<(), MakeHostError> {
        self.new_place(spec.switch, &spec.config)?;
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
        self.host.discard_rest(geteuid().as_raw(), &self.reclaimer);
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
            let bells = self.host.bells();
            let mut bells = bells.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            // A signal ends the wait as a bell does: the loop looks again.
            let _ = poll(&mut bells, Some(&left));
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

    fn host_bells(&self) -> Vec<BorrowedFd<'_>> {
        self.host.bells().into()
    }

    fn take_host_events(&mut self) {
        self.refresh_interfaces();
        self.refresh_machines();
        self.drop_empty_groups();
    }
}
