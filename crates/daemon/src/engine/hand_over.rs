//! Ports of clients that the next daemon goes on with.
//!
//! A port without a trust group can be handed over: its region is its own, and the client knows no
//! process by it. The next daemon gets copies of the region's memfd, of the client's eventfd, and
//! of the daemon's end of the doorbell, while this one goes on. When this one has stopped its
//! workers, it says where they are in the rings.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use packet::{MacAddr, PortId, VlanId};
use port::shm::plug_resumed;
use port::sys::{ClosedElsewhere, Ringer, Waker};
use protocol::StallStage;
use ring::krings::{Krings, Positions};
use switch::PortConfig;

use super::slow_calls::PeerOf;
use super::worker::Worker;
use super::worker::handle::PendingCall;
use super::{Crew, PortPlace, SwitchPlace, Workers};
use crate::control::datapath::hand_over::HandOver;
use crate::model::error::DatapathError;
use crate::model::handed::{Copies, Inherited};
use crate::model::keys::PortKey;
use crate::model::replies::Lease;
use crate::model::specs::{RingSpec, ShmSpec};

/// What is kept of a port for the next daemon.
#[derive(Debug)]
pub(super) struct Handles {
    pub(super) rings: RingSpec,
    /// The region's memfd.
    pub(super) region: OwnedFd,
    /// The doorbell goes with the port.
    pub(super) waker: Weak<Waker>,
}

impl HandOver for Workers {
    fn copies_of(&self, port: PortKey) -> io::Result<Option<Copies>> {
        let Some((place, handles)) = self.handles_of(port) else { return Ok(None) };
        let number = place.number;
        let kicks = self.on_port(place, move |worker, _| worker.kick_copy(number))?;
        let (Some(kicks), Some(waker)) = (kicks, handles.waker.upgrade()) else {
            return Ok(None);
        };
        let fds = [handles.region.try_clone()?, kicks, waker.copy()?];
        Ok(Some(Copies { rings: handles.rings, fds }))
    }

    fn watchdog_limit(&self) -> Option<Duration> {
        self.watchdog.limit()
    }

    fn halt(&mut self) {
        self.on_all(Worker::halt);
    }

    fn go_on(&mut self) {
        self.wait = false;
        self.on_all(Worker::go_on);
        self.reclaimer.let_closers_go();
    }

    fn leave(&mut self) {
        // Each removes its socket, and waits for nothing.
        self.machines.clear();
        let interfaces = self.host.opened_anew();
        let all: Vec<_> = self.tunnels.keys().copied().chain(interfaces).collect();
        for port in all {
            self.tunnels.remove(&port);
            if let Some(place) = self.ports.remove(&port) {
                drop(self.unplug(&place));
            }
        }
    }

    fn positions(&self, ports: &[PortKey]) -> Vec<(PortKey, Positions)> {
        let mut of_workers = BTreeMap::<_, Vec<_>>::new();
        for &port in ports {
            let Some((place, _)) = self.handles_of(port) else { continue };
            let seat = (port, self.place(place.switch).at, place.id);
            of_workers.entry(place.worker).or_default().push(seat);
        }
        // One job for each worker: no frame is moved until all are known.
        let of_worker = |(worker, seats): (usize, Vec<_>)| {
            let position = |worker: &mut Worker, (port, at, id): (PortKey, usize, PortId)| {
                let krings = worker.switch(at).plug_mut(id)?.rings()?;
                Some((port, krings.positions()))
            };
            let job = move |worker: &mut Worker| {
                seats.into_iter().filter_map(|seat| position(worker, seat)).collect::<Vec<_>>()
            };
            self.workers[worker].handle.call(job)
        };
        of_workers.into_iter().flat_map(of_worker).collect()
    }

    fn take_over(
        &mut self,
        spec: &ShmSpec,
        config: PortConfig,
        inherited: ClosedElsewhere<Inherited>,
    ) -> Result<Lease, DatapathError> {
        let worker = self.next_worker(spec.switch, config.worker);
        let (id, number) = self.next_place(spec.switch, worker)?;
        let Inherited { memory, kicks, at, .. } = inherited.get();
        let reservation = &memory.reservation;
        let rings = Krings::resumed(reservation.region(), reservation.layout(), at);
        let rings = rings.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        assert_eq!(kicks.len(), self.workers.len(), "one for each worker");
        kicks[worker].connect(number)?;
        // From here on nothing fails. All clients wait, so nothing here takes a lock of this one's
        // or touches its memory: its closer takes the kicks at other workers out after the pause.
        let Inherited { memory, mut kicks, wake, .. } = inherited.into_inner();
        let peer = PeerOf { port: spec.key, user: config.user, switch: Some(spec.switch) };
        let mut kick = kicks.swap_remove(worker);
        kick.time_by(self.slow_calls(peer, StallStage::Wake));
        self.tell(worker, move |worker| worker.keep_kick(number, kick));
        let slow = self.slow_calls(peer, StallStage::Wake);
        let waker = Arc::new(Waker::take_over(wake, &self.reclaimer.closer(), slow));
        let plug = plug_resumed(rings, waker.clone());
        let region = memory.reservation.region();
        let lease = Lease::new(region.clone());
        let waker = Arc::downgrade(&waker);
        let handles = Some(Handles { rings: spec.rings, region: memory.fd, waker });
        let bytes = region.layout().size();
        let place =
            PortPlace { switch: spec.switch, id, worker, number, bytes, memory: None, handles };
        self.plug(spec.key, place, plug, config);
        // The daemon before may have owed the client a wake-up.
        let at = self.place(spec.switch).at;
        self.tell(worker, move |worker| worker.owe_wake(at, id));
        self.note_memory(spec.key, spec.key, &memory.reservation, lease.life());
        self.huge_pages.request(&memory.reservation, lease.life());
        Ok(lease)
    }

    fn learn(&mut self, port: PortKey, stations: Vec<(MacAddr, VlanId)>) {
        let Some((switch, id)) = self.switch_of(port) else { return };
        let SwitchPlace { home, at, .. } = *self.place(switch);
        self.tell(home, move |worker| {
            let now = worker.now();
            for (mac, vlan) in stations {
                worker.switch(at).bridge_mut().learn_again(vlan, mac, id, now);
            }
        });
    }
}

impl Workers {
    /// Has the workers wait until all ports are there ([`HandOver::go_on`]): a frame for a port
    /// that is not there yet would be lost. The closers wait, too: one that takes a kick out of a
    /// worker's set holds the set's mutex as long as a client makes it, and the control thread
    /// would wait for that.
    pub fn wait(&mut self) {
        self.wait = true;
        self.reclaimer.hold_closers();
        self.on_all(Worker::wait);
    }

    /// Reports to systemd as often as the daemon before this one did, unless systemd has told this
    /// one.
    pub fn report_within(&self, limit: Duration) {
        if self.watchdog.limit().is_none() {
            self.watchdog.set_limit(limit);
        }
    }

    /// Has all workers do this; none waits for another.
    fn on_all(&self, job: fn(&mut Worker)) {
        let begin = |crew: &Crew| crew.handle.begin(job);
        let pending: Vec<_> = self.workers.iter().map(begin).collect();
        pending.into_iter().for_each(PendingCall::wait);
    }

    /// What rings each worker, in their order.
    #[must_use]
    pub fn ringers(&self) -> Vec<Ringer> {
        (0..self.workers.len()).map(|worker| self.ringer_of(worker)).collect()
    }

    fn handles_of(&self, port: PortKey) -> Option<(&PortPlace, &Handles)> {
        let place = self.ports.get(&port)?;
        Some((place, place.handles.as_ref()?))
    }
}
