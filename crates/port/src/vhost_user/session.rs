//! One frontend: its settings, and what each of its messages changes.
//!
//! Frontends set queues up in different orders: QEMU enables a queue before it sets the features,
//! others lend memory after they have placed the queue. So the session checks no order. A queue
//! *runs* while everything that it needs is there:
//!
//! ```text
//!   size, places, memory ──┐
//!   SET_VRING_KICK ────────┴──► runs ──── GET_VRING_BASE, RESET_DEVICE, end ────► stopped
//!                                │                                                  │
//!                                └── it breaks ──► stopped until its next KICK ◄────┘
//! ```
//!
//! A packed queue is stopped in the same way if its ring does not say where it is to begin
//! ([`Queue::resume`]).
//!
//! To change memory, features, a descriptor or the enabled flag of a running queue, the session
//! takes the queue from the worker and hands it back afterwards.

mod features;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use device::virtio_net::header_len;
use device::virtqueue::{
    BadQueue, Direction, Inflight, Places, Queue, SIZE_MAX, features as virtio,
};
use ring::guest::GuestMemory;

use super::handoff::{Queues, Ring, Trouble};
use super::memory::{BadMemory, InflightArea, LogArea, REGIONS_MAX, Table};
use super::message::{Answer, Area, Bell, Message, Shape};
use crate::machine::quota::{Charge, Quota, QuotaExceeded, Resource};
use crate::sys::SlowCalls;
use crate::sys::vhost::{Call, Kick, KickPlace};
use features::{LOG_ALL, PROTOCOL_FEATURES, accepted, offered, protocol};

/// A frontend's mistake.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The queue does not exist.
    #[error("there is no queue {0}")]
    NoQueue(u32),
    /// The queue's size, addresses or state are invalid.
    #[error("queue {0} is invalid: {1}")]
    Queue(usize, BadQueue),
    /// The frontend set features that the device does not offer.
    #[error("features {0:#x} are not offered")]
    Features(u64),
    /// The port cannot use the memory.
    #[error("{0}")]
    Memory(#[from] BadMemory),
    /// The user's quota is used up.
    #[error(transparent)]
    QuotaExceeded(#[from] QuotaExceeded),
    /// A kick or call descriptor is not an eventfd.
    #[error("a descriptor of queue {0} that is no eventfd")]
    NoEventfd(u32),
    /// The log's descriptor is not an eventfd.
    #[error("a descriptor of the log that is no eventfd")]
    NoLogEventfd,
    /// The MTU is out of range.
    #[error("an MTU of {0}")]
    Mtu(u64),
}

/// The settings of one queue.
#[derive(Debug, Default)]
struct Vring {
    size: u32,
    base: u32,
    /// The base is where this session left the queue, and not what the frontend says.
    is_left: bool,
    places: Option<Places>,
    /// The guest address under which writes to the device area are logged.
    logged_at: Option<u64>,
    kick: Option<Kick>,
    call: Option<Arc<Call>>,
    err: Option<Call>,
    /// The charges for the three descriptors.
    charges: [Option<Charge>; 3],
    enabled: bool,
    /// The frontend has set a kick descriptor and has not stopped the queue since.
    started: bool,
    /// The worker has the queue.
    runs: bool,
    /// The queue is stopped because nothing says where it is to begin.
    in_doubt: bool,
}

impl Vring {
    /// Replaces a descriptor. If that fails, the queue has none.
    fn set_bell(
        &mut self,
        bell: Bell,
        queue: u32,
        fd: Option<OwnedFd>,
        shared: &Shared,
    ) -> Result<(), Fault> {
        // The old charge is returned first, because the frontend may pass the same file again.
        self.drop_bell(bell);
        let Some(fd) = fd else { return Ok(()) };
        let charge = shared.quota.take(Resource::Descriptors, 1)?;
        let no_eventfd = |_| Fault::NoEventfd(queue);
        match bell {
            Bell::Kick => {
                let kick = Kick::new(fd, &shared.kicks, &shared.slow).map_err(no_eventfd)?;
                self.kick = Some(kick);
            }
            Bell::Call => {
                self.call = Some(Arc::new(Call::new(fd, &shared.slow).map_err(no_eventfd)?));
            }
            Bell::Err => self.err = Some(Call::new(fd, &shared.slow).map_err(no_eventfd)?),
        }
        self.charges[bell as usize] = Some(charge);
        Ok(())
    }

    fn drop_bell(&mut self, bell: Bell) {
        match bell {
            Bell::Kick => (self.kick, self.in_doubt) = (None, false),
            Bell::Call => self.call = None,
            Bell::Err => self.err = None,
        }
        self.charges[bell as usize] = None;
    }
}

/// What all sessions of a port use.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Where kicks ring.
    pub kicks: Arc<KickPlace>,
    /// The quota of the port's user.
    pub quota: Arc<Quota>,
    /// Takes the time of interrupts, and of what it takes to watch kicks.
    pub slow: Arc<SlowCalls>,
}

/// One frontend's session.
#[derive(Debug)]
pub struct Session<Q: Queues> {
    queues: Q,
    shared: Shared,
    offered: u64,
    features: u64,
    protocol: u64,
    /// Dropped before the table, which holds its charges.
    memory: Arc<GuestMemory>,
    table: Table,
    log: Option<LogArea>,
    log_call: Option<(Arc<Call>, Charge)>,
    inflight: Option<InflightArea>,
    vrings: Vec<Vring>,
    status: u8,
    /// The frontend has asked how many queues there are.
    knows_queues: bool,
}

impl<Q: Queues> Session<Q> {
    /// A session without messages yet, for this many pairs of queues.
    #[must_use]
    pub fn new(queues: Q, pairs: u16, shared: &Shared) -> Self {
        let vrings = (0..2 * pairs).map(|_| Vring::default()).collect();
        Self {
            queues,
            shared: shared.clone(),
            offered: offered(pairs),
            features: 0,
            protocol: 0,
            memory: Arc::default(),
            table: Table::default(),
            log: None,
            log_call: None,
            inflight: None,
            vrings,
            status: 0,
            knows_queues: false,
        }
    }

    /// Whether any queue can carry frames.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.vrings.iter().any(|vring| vring.runs && self.is_enabled(vring))
    }

    /// The first queue that is stopped because nothing says where it is to begin.
    #[must_use]
    pub fn in_doubt(&self) -> Option<usize> {
        self.vrings.iter().position(|vring| vring.in_doubt)
    }

    /// Whether all that the frontend has made of its knowledge of the number of queues is to leave.
    #[must_use]
    pub fn knows_queues_only(&self) -> bool {
        self.knows_queues && self.features == 0 && self.table.is_empty()
    }

    /// Whether the frontend accepts a reply to any request.
    #[must_use]
    pub fn acknowledges(&self) -> bool {
        self.protocol & protocol::REPLY_ACK != 0
    }

    /// Acts on a message; returns the answer, if there is one.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn take(&mut self, message: Message) -> Result<Option<Answer>, Fault> {
        match message {
            Message::GetFeatures => return Ok(Some(Answer::U64(self.offered))),
            Message::GetProtocolFeatures => return Ok(Some(Answer::U64(protocol::OFFERED))),
            Message::GetQueueNum => {
                self.knows_queues = true;
                return Ok(Some(Answer::U64(self.vrings.len() as u64 / 2)));
            }
            Message::GetMaxMemSlots => return Ok(Some(Answer::U64(REGIONS_MAX as u64))),
            Message::GetStatus => return Ok(Some(Answer::U64(self.status.into()))),
            Message::GetVringBase(queue) => return self.stop(queue).map(Some),
            Message::SetLogBase(area) => {
                self.set_log(&area)?;
                // The frontend expects an answer in any case.
                return Ok(Some(Answer::U64(0)));
            }
            Message::GetInflight(shape) => return self.make_inflight(shape).map(Some),
            Message::SetInflight(shape, area) => {
                let _old =
                    self.inflight.replace(InflightArea::new(shape, &area, &self.shared.quota)?);
                self.update_all_queues();
            }
            Message::SetLogFd(fd) => self.set_log_call(fd)?,
            Message::SetFeatures(features) => self.set_features(features)?,
            Message::SetProtocolFeatures(features) => {
                self.protocol = check(features, protocol::OFFERED)?;
            }
            Message::SetOwner | Message::ResetOwner => {}
            Message::ResetDevice => self.reset(),
            Message::SetMemTable(regions) => self.set_table(regions)?,
            Message::AddMemReg(region, fd) => {
                self.table.add(region, &fd, &self.shared.quota)?;
                self.change_memory();
            }
            Message::RemMemReg(region) => {
                let _charged_until_unused = self.table.remove(region)?;
                self.change_memory();
            }
            Message::SetVringNum(queue, size) => self.vring(queue)?.size = size,
            Message::SetVringBase(queue, base) => {
                let vring = self.vring(queue)?;
                (vring.base, vring.is_left) = (base, false);
            }
            Message::SetVringAddr(queue, places, logged_at) => {
                let vring = self.vring(queue)?;
                (vring.places, vring.logged_at) = (Some(places), logged_at);
                self.update_queue(queue)?;
            }
            Message::SetBell(bell, queue, fd) => self.set_bell(bell, queue, fd)?,
            Message::SetVringEnable(queue, enabled) => {
                self.vring(queue)?.enabled = enabled;
                self.try_update_queue(queue);
            }
            Message::SendRarp(address) => self.queues.announce(address),
            Message::SetMtu(mtu) if (68..=65535).contains(&mtu) => {}
            Message::SetMtu(mtu) => return Err(Fault::Mtu(mtu)),
            Message::SetStatus(status) => self.set_status(status),
        }
        Ok(None)
    }

    fn vring(&mut self, queue: u32) -> Result<&mut Vring, Fault> {
        self.vrings.get_mut(queue as usize).ok_or(Fault::NoQueue(queue))
    }

    /// Without protocol features, queues are always enabled.
    fn is_enabled(&self, vring: &Vring) -> bool {
        vring.enabled || self.features & PROTOCOL_FEATURES == 0
    }

    fn set_features(&mut self, features: u64) -> Result<(), Fault> {
        self.features = check(features, self.offered)?;
        self.update_all_queues();
        Ok(())
    }

    /// A status of 0 is a reset (2.1.1).
    fn set_status(&mut self, status: u8) {
        self.status = status;
        if status == 0 {
            self.reset();
        }
    }

    fn reset(&mut self) {
        self.status = 0;
        for at in 0..self.vrings.len() {
            self.take_out(at);
            self.track_of(at).iter().for_each(Inflight::clear);
            let vring = &mut self.vrings[at];
            (vring.started, vring.enabled) = (false, false);
            vring.drop_bell(Bell::Kick);
        }
    }

    fn set_table(&mut self, regions: Vec<(super::message::Region, OwnedFd)>) -> Result<(), Fault> {
        // The new table replaces the old one, whose charges are returned first.
        (0..self.vrings.len()).for_each(|at| drop(self.take_out(at)));
        self.memory = Arc::default();
        self.table = Table::default();
        let mut table = Table::default();
        for (region, fd) in regions {
            table.add(region, &fd, &self.shared.quota)?;
        }
        self.table = table;
        self.change_memory();
        Ok(())
    }

    fn change_memory(&mut self) {
        self.memory = self.table.memory();
        self.update_all_queues();
    }

    fn make_inflight(&self, shape: Shape) -> Result<Answer, Fault> {
        if usize::from(shape.queues) > self.vrings.len() {
            return Err(Fault::NoQueue(shape.queues.into()));
        }
        if shape.size > SIZE_MAX || shape.queues == 0 {
            return Err(Fault::Queue(0, BadQueue::Size(shape.size.into())));
        }
        let area = InflightArea::make(shape).map_err(BadMemory::from)?;
        Ok(Answer::Inflight(shape, area))
    }

    /// The in-flight area of a queue.
    fn track_of(&self, at: usize) -> Option<Inflight> {
        self.inflight.as_ref().and_then(|area| area.of(at))
    }

    fn set_log(&mut self, area: &Area) -> Result<(), Fault> {
        // The old log is charged until no queue uses it.
        let _old = self.log.replace(LogArea::new(area, &self.shared.quota)?);
        self.update_all_queues();
        Ok(())
    }

    fn set_log_call(&mut self, fd: OwnedFd) -> Result<(), Fault> {
        let charge = self.shared.quota.take(Resource::Descriptors, 1)?;
        let call = Call::new(fd, &self.shared.slow).map_err(|_| Fault::NoLogEventfd)?;
        let _old = self.log_call.replace((Arc::new(call), charge));
        self.update_all_queues();
        Ok(())
    }

    /// Has the kicks of all queues ring where the port is now.
    ///
    /// # Errors
    /// No memory.
    pub fn follow_port(&mut self) -> std::io::Result<()> {
        let mut kicks = self.vrings.iter_mut().filter_map(|vring| vring.kick.as_mut());
        kicks.try_for_each(Kick::follow)
    }

    fn set_bell(&mut self, bell: Bell, queue: u32, fd: Option<OwnedFd>) -> Result<(), Fault> {
        let shared = self.shared.clone();
        let vring = self.vring(queue)?;
        let set = vring.set_bell(bell, queue, fd, &shared);
        match bell {
            Bell::Kick => {
                vring.started = set.is_ok();
                set.and(self.update_queue(queue))
            }
            Bell::Call => {
                self.try_update_queue(queue);
                set
            }
            Bell::Err => set,
        }
    }

    /// Stops a queue and returns its index.
    fn stop(&mut self, queue: u32) -> Result<Answer, Fault> {
        self.vring(queue)?;
        self.take_out(queue as usize);
        // No buffer is in flight, so the next start begins at the index that the frontend sets.
        self.track_of(queue as usize).iter().for_each(Inflight::clear);
        let vring = self.vring(queue)?;
        vring.started = false;
        vring.drop_bell(Bell::Kick);
        Ok(Answer::Vring(queue, vring.base))
    }

    /// Takes a queue from the worker; if it is handed back, it continues where it was.
    fn take_out(&mut self, at: usize) -> Option<Box<Ring>> {
        if !std::mem::take(&mut self.vrings[at].runs) {
            return None;
        }
        let ring = self.queues.swap(at, None)?;
        let vring = &mut self.vrings[at];
        (vring.base, vring.is_left) = (ring.queue.base(), true);
        Some(ring)
    }

    /// Starts a queue with its current settings, if it has all that it needs.
    fn update_queue(&mut self, queue: u32) -> Result<(), Fault> {
        let at = queue as usize;
        self.take_out(at);
        let (vring, memory) = (&self.vrings[at], self.memory.clone());
        let Some(places) = vring.places.filter(|_| vring.started && !self.table.is_empty()) else {
            return Ok(());
        };
        // The first queue of each pair is the driver's receive queue.
        let direction = if at.is_multiple_of(2) { Direction::Write } else { Direction::Read };
        let made = Queue::new(&memory, places, direction, vring.size, vring.base, self.features);
        let mut queue = made.map_err(|why| Fault::Queue(at, why))?;
        let is_logged = self.features & LOG_ALL != 0;
        let log = self.log.as_ref().filter(|_| is_logged).map(|area| area.log().clone());
        if let Some(log) = &log {
            queue.log_to(log.clone(), vring.logged_at);
        }
        let area = self.track_of(at);
        if !vring.is_left && !queue.resume(area.as_ref()) {
            let vring = &mut self.vrings[at];
            (vring.started, vring.in_doubt) = (false, true);
            vring.err.iter().for_each(Call::tell);
            return Ok(());
        }
        if let Some(area) = area {
            queue.track(area, self.features).map_err(|why| Fault::Queue(at, why))?;
        }
        let log_call = self.log_call.as_ref().filter(|_| log.is_some());
        let ring = Ring {
            queue,
            memory,
            log,
            log_call: log_call.map(|(call, _)| call.clone()),
            call: vring.call.clone(),
            enabled: self.is_enabled(vring),
            header: header_len(self.features),
            mergeable: self.features & virtio::MRG_RXBUF != 0,
            accepts: accepted(self.features),
            most: 0,
            trouble: None,
        };
        self.queues.swap(at, Some(Box::new(ring)));
        self.vrings[at].runs = true;
        Ok(())
    }

    /// [`Self::update_queue`] for a queue that later messages may complete.
    fn try_update_queue(&mut self, queue: u32) {
        let _ = self.update_queue(queue);
    }

    /// [`Self::try_update_queue`] for every queue.
    fn update_all_queues(&mut self) {
        for queue in 0..u32::try_from(self.vrings.len()).unwrap_or(0) {
            self.try_update_queue(queue);
        }
    }

    /// Returns the queues that the worker has stopped, with the cause. They stay stopped until the
    /// driver starts them again.
    pub fn find_trouble(&mut self) -> Vec<(usize, Trouble)> {
        let mut found = Vec::new();
        for queue in 0..u32::try_from(self.vrings.len()).unwrap_or(0) {
            let at = queue as usize;
            let Some(ring) = self.take_out(at) else { continue };
            let Some(why) = ring.trouble else {
                self.try_update_queue(queue);
                continue;
            };
            self.vrings[at].started = false;
            self.vrings[at].err.iter().for_each(Call::tell);
            found.push((at, why));
        }
        found
    }
}

impl<Q: Queues> Drop for Session<Q> {
    fn drop(&mut self) {
        for at in 0..self.vrings.len() {
            self.take_out(at);
        }
    }
}

fn check(features: u64, offered: u64) -> Result<u64, Fault> {
    match features & !offered {
        0 => Ok(features),
        unknown => Err(Fault::Features(unknown)),
    }
}

#[cfg(test)]
mod orders;

#[cfg(test)]
mod tests;
