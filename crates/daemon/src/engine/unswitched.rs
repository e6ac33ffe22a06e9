//! Rings of one connection that no switch serves: null ports and monitors.
//!
//! Both live in a region and have holders, like [ports that programs bind](super::netmap). The
//! switch of the mirrored port puts frames into the rings of a monitor port. No worker knows a null
//! port. A capture is a monitor with one ring, of a port of any kind, and with the time in its
//! slots.
//!
//! ```text
//!            attach            its port goes: of a monitor
//!  Reserved ────────► Monitor ───────────────────────────────► Orphaned
//!                      ▲   │ of a capture                         ▲
//!       resume_capture │   ▼                                      │
//!                     Waiting ────────────────────────────────────┘
//!                                       end_capture
//! ```
//!
//! A capture that waits keeps its rings and what it has missed. A capture of drops is a mirror of
//! its switch (`ServedBy::Drops`), and orphaned when the switch goes. Where all workers run the
//! switch, each of them has a handle of the mirror ([`switch::Mirror::handle`]).

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use port::sys::{MirrorWakers, Wakers};
use ring::krings::Krings;
use switch::{Clock, DropReasons, Mirror, MirrorSource};

use super::Workers;
use super::netmap::{BoundPlace, ServedBy};
use super::worker::Worker;
use crate::control::datapath::unswitched::Unswitched;
use crate::model::error::DatapathError;
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::specs::{Mirrored, RingSpec, UnswitchedSpec};

/// Why there is a mirror at a place.
const THERE: &str = "it was installed";

impl Workers {
    /// Has the switch of the ports mirror their frames into the rings of `key`.
    fn install(
        &self,
        key: PortKey,
        mirror: Mirror,
        sources: &[(PortKey, MirrorSource)],
    ) -> ServedBy {
        let port = sources[0].0;
        let places = sources.iter().map(|(port, source)| (self.ports[port].id, source.clone()));
        let (switch, sources): (_, Vec<_>) = (self.ports[&port].switch, places.collect());
        let install = move |worker: &mut Worker, at, mirror| worker.add_mirror(at, mirror, sources);
        let place = self.add_mirror(switch, mirror, install);
        self.note_bound_memory(key, port);
        ServedBy::Monitor { port, place }
    }

    /// Has a switch mirror the frames that it drops into the rings of `key`.
    fn install_drops(
        &self,
        key: PortKey,
        mirror: Mirror,
        switch: SwitchKey,
        reasons: DropReasons,
    ) -> ServedBy {
        let install = move |worker: &mut Worker, at, mirror| {
            let place = worker.switch(at).add_mirror(mirror);
            worker.switch(at).mirror_drops(place, reasons);
            place
        };
        let place = self.add_mirror(switch, mirror, install);
        self.note_drops_memory(key, switch);
        ServedBy::Drops { switch, place }
    }

    /// Adds a mirror to a switch, at each of its workers; returns its place, which is the same
    /// everywhere: workers hear of all mirrors in one order.
    fn add_mirror(
        &self,
        switch: SwitchKey,
        mirror: Mirror,
        install: impl FnOnce(&mut Worker, usize, Mirror) -> usize + Clone + Send + 'static,
    ) -> usize {
        let mirror = if self.place(switch).is_spread { mirror.into_common() } else { mirror };
        let places = self.on_others(switch, || {
            let (mirror, install) = (mirror.handle(), install.clone());
            move |worker: &mut Worker, at| install(worker, at, mirror)
        });
        let home = self.on_switch(switch, move |worker, at| install(worker, at, mirror));
        assert!(places.iter().all(|&place| place == home), "one place at all workers");
        home
    }

    fn uninstall(&self, key: PortKey, switch: SwitchKey, place: usize) -> Box<Mirror> {
        let remove =
            move |worker: &mut Worker, at| worker.switch(at).remove_mirror(place).expect(THERE);
        let others =
            self.on_others(switch, || move |worker: &mut Worker, at| remove(worker, at).missed());
        let missed = others.into_iter().sum();
        let mut mirror = self.on_switch(switch, remove);
        mirror.add_missed(missed);
        self.forget_memory(key);
        tracing::debug!("{}: {} frames not seen", self.bound[&key].label, mirror.missed());
        mirror
    }

    /// A port goes: its monitors get no more frames, and their doorbells tell their holders. Its
    /// captures wait, until control knows whether it comes back.
    pub(super) fn orphan_monitors(&mut self, gone: PortKey) {
        let looks = |served_by: &ServedBy| match served_by {
            ServedBy::Monitor { port, place } if *port == gone => Some(*place),
            _ => None,
        };
        let all = self.bound.iter().filter_map(|(key, at)| Some((*key, looks(&at.served_by)?)));
        let monitors: Vec<_> = all.collect();
        for (key, place) in monitors {
            let mirror = self.uninstall(key, self.ports[&gone].switch, place);
            let bound = self.bound.get_mut(&key).expect("looked at just now");
            bound.served_by = match mirror.has_clock() {
                true => ServedBy::Waiting(mirror),
                false => ServedBy::Orphaned(mirror.missed()),
            };
            self.update_unswitched_wakers(key);
        }
    }

    /// A switch goes, or is made anew: captures of its drops end.
    pub(super) fn orphan_drops(&mut self, gone: SwitchKey) {
        let switch_of = |bound: &BoundPlace| match bound.served_by {
            ServedBy::Drops { switch, .. } => Some(switch),
            _ => None,
        };
        let all = self.bound.iter().filter(|(_, bound)| switch_of(bound) == Some(gone));
        let captures: Vec<_> = all.map(|(key, _)| *key).collect();
        captures.into_iter().for_each(|key| self.end_capture(key));
    }

    /// Where a worker mirrors frames into the rings: a switch, and a place there.
    fn mirror_of(&self, key: PortKey) -> Option<(SwitchKey, usize)> {
        match self.bound.get(&key)?.served_by {
            ServedBy::Monitor { port, place } => Some((self.ports[&port].switch, place)),
            ServedBy::Drops { switch, place } => Some((switch, place)),
            _ => None,
        }
    }

    /// The mirror of a capture that waits; what is left sees nothing any more.
    fn take_waiting(&mut self, capture: PortKey) -> Option<Box<Mirror>> {
        let served_by = &mut self.bound.get_mut(&capture)?.served_by;
        let missed = match served_by {
            ServedBy::Waiting(mirror) => mirror.missed(),
            _ => return None,
        };
        match std::mem::replace(served_by, ServedBy::Orphaned(missed)) {
            ServedBy::Waiting(mirror) => Some(mirror),
            _ => unreachable!("looked at just now"),
        }
    }

    /// Tells the worker which holders to wake. A holder of an orphaned monitor port finds its
    /// doorbell closed.
    pub(super) fn update_unswitched_wakers(&mut self, key: PortKey) {
        let mirror = self.mirror_of(key);
        let Some(bound) = self.bound.get_mut(&key) else { return };
        let wakers = Arc::new(MirrorWakers(bound.wakers()));
        match &mut bound.served_by {
            ServedBy::Waiting(mirror) => mirror.set_wake(wakers.clone()),
            ServedBy::Orphaned(_) => {
                bound.holders.values_mut().for_each(|holder| holder.wakers.clear());
            }
            _ => {}
        }
        if let Some((switch, place)) = mirror {
            self.on_replicas(switch, move |worker, at| {
                if let Some(mirror) = worker.switch(at).mirror_mut(place) {
                    mirror.set_wake(wakers);
                }
            });
        }
    }

    /// Rings of a port that a client attached, which no other place of this file remembers.
    pub(super) fn plugged_rings(&self, port: PortKey) -> Option<RingSpec> {
        let (switch, id) = self.switch_of(port)?;
        self.on_switch(switch, move |worker, at| {
            let rings = worker.switch(at).plug_mut(id)?.rings()?;
            let stride = rings.region().stride();
            Some(RingSpec { counts: rings.counts(), extra_bufs: 0, stride })
        })
    }
}

impl Unswitched for Workers {
    fn reserve_unswitched(&mut self, spec: &UnswitchedSpec) -> Result<u16, DatapathError> {
        let (name, label, counts) = (spec.name.clone(), spec.label.clone(), spec.rings.counts);
        let (region, reservation) = self.reserve_in(&spec.region, &name, &label, counts)?;
        let clock = spec.is_stamped.then_some(unix_time_ns as Clock);
        let served_by = ServedBy::Reserved(spec.mirrored.clone(), clock);
        self.bound.insert(spec.key, BoundPlace::new(name, label, served_by, region, reservation));
        Ok(region)
    }

    fn attach_unswitched(&mut self, key: PortKey) {
        let bound = &self.bound[&key];
        let ServedBy::Reserved(mirrored, clock) = &bound.served_by else { panic!("started once") };
        let rings = Krings::new(bound.reservation.region(), bound.reservation.layout());
        let mirror = |rings| Mirror::new(rings, Arc::new(Wakers(Vec::new()))).with_clock(*clock);
        let served_by = match mirrored {
            Mirrored::Nothing => ServedBy::Null(rings),
            Mirrored::Ports(sources) => {
                let is_gone = |(port, _): &(PortKey, _)| !self.ports.contains_key(port);
                match sources.iter().any(is_gone) {
                    true if clock.is_some() => ServedBy::Waiting(mirror(rings).into()),
                    true => ServedBy::Orphaned(0),
                    false => self.install(key, mirror(rings), sources),
                }
            }
            Mirrored::Drops(switch, reasons) => match self.switches.get(switch) {
                Some(_) => self.install_drops(key, mirror(rings), *switch, *reasons),
                None => ServedBy::Orphaned(0),
            },
        };
        self.bound.get_mut(&key).expect("looked at just now").served_by = served_by;
        self.request_huge_pages(key);
    }

    fn missed(&self, key: PortKey) -> u64 {
        if let Some((switch, place)) = self.mirror_of(key) {
            let missed = self.on_replicas(switch, move |worker, at| {
                worker.switch(at).mirror_mut(place).map_or(0, |mirror| mirror.missed())
            });
            return missed.into_iter().sum();
        }
        match self.bound.get(&key).map(|bound| &bound.served_by) {
            Some(ServedBy::Waiting(mirror)) => mirror.missed(),
            Some(ServedBy::Orphaned(missed)) => *missed,
            _ => 0,
        }
    }

    fn resume_capture(&mut self, capture: PortKey, sources: &[(PortKey, MirrorSource)]) {
        let Some(mirror) = self.take_waiting(capture) else { return };
        let served_by = self.install(capture, *mirror, sources);
        self.bound.get_mut(&capture).expect("looked at just now").served_by = served_by;
    }

    fn end_capture(&mut self, capture: PortKey) {
        if let Some((switch, place)) = self.mirror_of(capture) {
            let missed = self.uninstall(capture, switch, place).missed();
            let bound = self.bound.get_mut(&capture).expect("looked at just now");
            bound.served_by = ServedBy::Orphaned(missed);
        }
        self.take_waiting(capture);
        self.update_unswitched_wakers(capture);
    }

    fn remove_unswitched(&mut self, key: PortKey) {
        // The region's last user is the reclaimer.
        self.take_waiting(key);
        let served_by = self.bound.get(&key).map(|bound| &bound.served_by);
        let seen = !matches!(served_by, Some(ServedBy::Reserved(..)));
        if let Some((switch, place)) = self.mirror_of(key) {
            self.uninstall(key, switch, place);
        }
        self.remove_bound(key, seen);
    }
}

/// Nanoseconds since 1970.
fn unix_time_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
