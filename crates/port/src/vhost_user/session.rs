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
use crate::sys::SlowWakes;
use crate::sys::vhost::{Call, EpollSet, Kick};
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
            Bell::Kick => self.kick = Some(Kick::new(fd, &shared.epoll_set).map_err(no_eventfd)?),
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
    /// Where kicks are watched.
    pub epoll_set: Arc<EpollSet>,
    /// The quota of the port's user.
    pub quota: Arc<Quota>,
    /// Takes the time of interrupts.
    pub slow: Arc<SlowWakes>,
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
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::super::message::Region;
    use super::*;
    use crate::machine::quota::Limits;

    /// Stands in for the worker: returns queues as they were.
    #[derive(Default)]
    struct Shelf([Option<Box<Ring>>; 2]);

    impl Queues for Shelf {
        fn swap(&mut self, at: usize, ring: Option<Box<Ring>>) -> Option<Box<Ring>> {
            std::mem::replace(&mut self.0[at], ring)
        }

        fn announce(&mut self, _: [u8; 6]) {}
    }

    fn session(limits: Limits) -> Session<Shelf> {
        let epoll_set = Arc::new(EpollSet::new().expect("descriptors"));
        let (quota, slow) = (Quota::new(0, limits), Arc::new(SlowWakes::new(drop)));
        Session::new(Shelf::default(), 1, &Shared { epoll_set, quota, slow })
    }

    fn machine(bytes: u64) -> Message {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&fd, bytes).expect("ours");
        Message::SetMemTable(vec![(Region { guest: 0, size: bytes, user: 0, offset: 0 }, fd)])
    }

    fn event() -> Option<OwnedFd> {
        Some(eventfd(0, EventfdFlags::NONBLOCK).expect("descriptors"))
    }

    /// Starts the first queue.
    fn start(session: &mut Session<Shelf>) {
        let places = Places { descriptors: 0, driver: 4096, device: 8192 };
        session.take(Message::SetVringNum(0, 8)).expect("a queue");
        session.take(Message::SetVringAddr(0, places, None)).expect("a queue");
        session.take(Message::SetBell(Bell::Kick, 0, event())).expect("a queue");
    }

    #[test]
    fn a_machine_that_lends_its_memory_again_needs_no_more_of_it() {
        let mut session = session(Limits { bytes: 16384, regions: 1, ..Limits::NONE });
        session.take(machine(16384)).expect("all that there is");
        start(&mut session);
        session.take(machine(16384)).expect("the same again");
        assert!(session.is_up());
        session.take(machine(20480)).expect_err("too much");
        assert!(!session.is_up(), "what it has lent before means nothing");
        session.take(machine(12288)).expect("less");
        assert!(session.is_up());
    }

    #[test]
    fn a_descriptor_that_is_none_costs_nothing_and_stops_its_queue() {
        let mut session = session(Limits { descriptors: 2, ..Limits::NONE });
        session.take(machine(16384)).expect("memory");
        start(&mut session);
        let no_eventfd = || std::fs::File::open("/proc/self/status").expect("Linux").into();
        for bell in [Bell::Call, Bell::Err] {
            session.take(Message::SetBell(bell, 0, Some(no_eventfd()))).expect_err("a file");
        }
        assert!(session.is_up());
        session.take(Message::SetBell(Bell::Kick, 0, Some(no_eventfd()))).expect_err("a file");
        assert!(!session.is_up(), "no worker watches its driver");
        for bell in [Bell::Kick, Bell::Call, Bell::Kick] {
            session.take(Message::SetBell(bell, 0, event())).expect("there is room for two");
        }
        assert!(session.is_up());
        session.take(Message::SetBell(Bell::Err, 0, event())).expect_err("not for three");
    }

    /// The queue that `start` has set up.
    fn ring(session: &mut Session<Shelf>) -> &mut Ring {
        session.queues.0[0].as_mut().expect("it runs")
    }

    #[test]
    fn a_queue_in_trouble_stays_stopped_until_it_is_started_again() {
        let mut session = session(Limits::NONE);
        session.take(machine(16384)).expect("memory");
        start(&mut session);
        let told = event().expect("descriptors");
        let err = told.try_clone().expect("descriptors");
        session.take(Message::SetBell(Bell::Err, 0, Some(err))).expect("an eventfd");
        assert!(session.find_trouble().is_empty() && session.is_up(), "nothing is wrong");
        ring(&mut session).trouble = Some(Trouble::Lost);
        assert_eq!(session.find_trouble(), [(0, Trouble::Lost)]);
        assert!(!session.is_up() && session.queues.0[0].is_none());
        assert_eq!(rustix::io::read(&told, &mut [0; 8]), Ok(8), "its driver's vmm is told");
        // What changes beside it does not start it.
        session.take(Message::SetFeatures(virtio::VERSION_1)).expect("offered");
        session.take(Message::SetVringEnable(0, true)).expect("a queue");
        assert!(!session.is_up());
        session.take(Message::SetBell(Bell::Kick, 0, event())).expect("an eventfd");
        assert!(session.is_up());
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_leaves_things_as_they_were() {
        let mut session = session(Limits::NONE);
        session.take(machine(16384)).expect("memory");
        start(&mut session);
        let shape = |queues, size| Shape { queues, size };
        for (message, fault) in [
            (Message::SetVringNum(2, 8), "there is no queue 2"),
            (Message::SetVringBase(9, 8), "there is no queue 9"),
            (Message::GetVringBase(7), "there is no queue 7"),
            (Message::SetVringEnable(u32::MAX, true), "there is no queue 4294967295"),
            (Message::SetBell(Bell::Call, 2, None), "there is no queue 2"),
            (Message::SetFeatures(1 << 63), "0x8000000000000000 are not offered"),
            (Message::SetProtocolFeatures(1 << 9), "features 0x200 are not offered"),
            (Message::SetMtu(67), "an MTU of 67"),
            (Message::SetMtu(1 << 40), "an MTU of 1099511627776"),
            (Message::GetInflight(shape(3, 8)), "there is no queue 3"),
            (Message::GetInflight(shape(0, 8)), "queue 0 is invalid"),
            (Message::GetInflight(shape(1, u16::MAX)), "queue 0 is invalid"),
        ] {
            let shown = format!("{message:?}");
            let error = session.take(message).expect_err(&shown).to_string();
            assert!(error.contains(fault), "{shown}: {error}");
            assert!(session.is_up(), "{shown}");
        }
        session.take(Message::SetMtu(1500)).expect("Ethernet");
    }

    /// Starts a packed queue whose device asks for a kick at a position. Another backend gave a
    /// chain of two back and marked its first descriptor; the next buffer is available. Or nothing
    /// gave the second of three buffers back.
    fn start_packed(said: u32, waits_at: u16) -> Session<Shelf> {
        const AVAIL: u16 = 1 << 7;
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&memory, 16384).expect("ours");
        for (slot, id, flags) in [(0, 7, AVAIL | 1 << 15), (1, 7, AVAIL), (2, 8, AVAIL)] {
            let words = [id, flags | 2].map(u16::to_le_bytes).concat();
            rustix::io::pwrite(&memory, &words, 16 * slot + 12).expect("ours");
        }
        let words = [waits_at, 2].map(u16::to_le_bytes).concat();
        rustix::io::pwrite(&memory, &words, 8192).expect("ours");
        let region = Region { guest: 0, size: 16384, user: 0, offset: 0 };
        let mut session = session(Limits::NONE);
        let features = virtio::VERSION_1 | virtio::RING_PACKED | virtio::EVENT_IDX;
        session.take(Message::SetFeatures(features)).expect("offered");
        session.take(Message::SetMemTable(vec![(region, memory)])).expect("memory");
        session.take(Message::SetVringBase(0, said)).expect("a queue");
        start(&mut session);
        session
    }

    #[test]
    fn a_packed_queue_begins_where_its_frontend_says_if_the_queue_agrees() {
        for (said, waits_at, begins) in [
            (0x8002_8002, 0x8002, 0x8002_8002),
            (0x8002_8002, 0x8001, 0x8001_8001),
            (0x8000_8000, 0x8001, 0x8001_8001),
        ] {
            let mut session = start_packed(said, waits_at);
            assert_eq!(ring(&mut session).queue.base(), begins, "{said:x}, {waits_at:x}");
        }
    }

    #[test]
    fn a_packed_queue_in_doubt_carries_nothing_until_its_driver_sets_it_up_again() {
        let mut session = start_packed(0x8002_8002, 0);
        // What changes beside it does not start it.
        session.take(Message::SetVringEnable(0, true)).expect("a queue");
        assert_eq!((session.in_doubt(), session.is_up()), (Some(0), false));
        assert!(session.queues.0[0].is_none(), "no worker has it");
        session.take(Message::ResetDevice).expect("known");
        assert_eq!((session.in_doubt(), session.is_up()), (None, false));
        session.take(Message::SetVringBase(0, 0x8001_8001)).expect("a queue");
        session.take(Message::SetBell(Bell::Kick, 0, event())).expect("an eventfd");
        assert_eq!((session.in_doubt(), session.is_up()), (None, true));
    }

    #[test]
    fn a_queue_goes_on_where_its_area_says_that_it_was() {
        // Five buffers were given back.
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&memory, 16384).expect("ours");
        rustix::io::pwrite(&memory, &[5, 0], 8192 + 2).expect("ours");
        let lent = || {
            let region = Region { guest: 0, size: 16384, user: 0, offset: 0 };
            Message::SetMemTable(vec![(region, memory.try_clone().expect("descriptors"))])
        };
        let mut session = session(Limits::NONE);
        session.take(lent()).expect("memory");
        let shape = Shape { queues: 2, size: 8 };
        let Some(Answer::Inflight(_, area)) =
            session.take(Message::GetInflight(shape)).expect("memory")
        else {
            panic!("no area");
        };
        let copy = Area { fd: area.fd.try_clone().expect("descriptors"), ..area };
        let again = |area: &Area| {
            let fd = area.fd.try_clone().expect("descriptors");
            Message::SetInflight(shape, Area { fd, ..*area })
        };
        session.take(again(&copy)).expect("ours");
        session.take(Message::SetVringBase(0, 5)).expect("a queue");
        start(&mut session);
        assert_eq!(ring(&mut session).queue.base(), 5);
        // The next one is told something else, by a frontend that does not look.
        drop(session);
        let mut session = self::session(Limits::NONE);
        session.take(lent()).expect("memory");
        session.take(again(&copy)).expect("ours");
        session.take(Message::SetVringBase(0, 7)).expect("a queue");
        start(&mut session);
        assert_eq!(ring(&mut session).queue.base(), 5);
        // One that stopped it itself is believed.
        session.take(Message::GetVringBase(0)).expect("it runs");
        session.take(Message::SetVringBase(0, 7)).expect("a queue");
        start(&mut session);
        assert_eq!(ring(&mut session).queue.base(), 7);
    }
}
