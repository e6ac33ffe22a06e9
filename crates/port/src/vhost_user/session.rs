//! One frontend: what it has set up, and what follows from each of its messages.
//!
//! Frontends set queues up in various orders: QEMU enables a queue before it names the features,
//! others lend memory after they have said where the queue lies. So nothing is checked by order. A
//! queue *runs* as long as all that it needs is there:
//!
//! ```text
//!   size, places, memory ──┐
//!   SET_VRING_KICK ────────┴──► runs ──── GET_VRING_BASE, RESET_DEVICE, end ────► stopped
//!                                │                                                  │
//!                                └── it breaks ──► stopped until its next KICK ◄────┘
//! ```
//!
//! and whatever changes while it runs (memory, features, a descriptor, enabled or not) is done by
//! taking it out of the worker's hands, and putting it back.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use device::virtio_net::{features as net, header_len};
use device::virtqueue::{BadQueue, Direction, Places, Queue, features as virtio};
use ring::guest::GuestMemory;

use super::hand::{Queues, Ring, Trouble};
use super::memory::{BadMemory, REGIONS_MAX, Table};
use super::message::{Answer, Bell, Message};
use crate::sys::vhost::{Call, Ear, Kick};

/// Features of the protocol.
mod protocol {
    /// There may be more queues than two.
    pub const MQ: u64 = 1 << 0;
    /// `SEND_RARP`.
    pub const RARP: u64 = 1 << 2;
    /// Every request can be answered.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// `NET_SET_MTU`.
    pub const MTU: u64 = 1 << 4;
    /// `RESET_DEVICE`.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory comes and goes region by region.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// `SET_STATUS`.
    pub const STATUS: u64 = 1 << 16;

    pub const OFFERED: u64 =
        MQ | RARP | REPLY_ACK | MTU | RESET_DEVICE | CONFIGURE_MEM_SLOTS | STATUS;
}

/// The feature that there are features of the protocol.
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// A driver may lay its buffers out as it likes (6.3): a legacy feature, always so since.
const ANY_LAYOUT: u64 = 1 << 27;

/// What a device with so many pairs of queues offers.
#[must_use]
pub fn offered(pairs: u16) -> u64 {
    let several = if pairs > 1 { net::MQ } else { 0 };
    let unfinished = net::CSUM | net::HOST_TSO4 | net::HOST_TSO6 | net::HOST_ECN | net::HOST_USO;
    let control = net::CTRL_VQ | net::GUEST_ANNOUNCE;
    let queues = virtio::INDIRECT_DESC | virtio::EVENT_IDX | virtio::RING_PACKED | ANY_LAYOUT;
    several
        | unfinished
        | control
        | queues
        | virtio::MRG_RXBUF
        | virtio::VERSION_1
        | net::MTU
        | PROTOCOL_FEATURES
}

/// What a frontend did wrong.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A queue that there is not.
    #[error("there is no queue {0}")]
    NoQueue(u32),
    /// A queue that cannot be.
    #[error("queue {0} cannot be: {1}")]
    Queue(usize, BadQueue),
    /// Features that are not offered.
    #[error("features {0:#x} are not offered")]
    Features(u64),
    /// Memory that is not taken.
    #[error("{0}")]
    Memory(#[from] BadMemory),
    /// For a kick or a call.
    #[error("a descriptor of queue {0} that is no eventfd")]
    NoEventfd(u32),
    /// An MTU that no Ethernet has.
    #[error("an MTU of {0}")]
    Mtu(u64),
}

/// One queue as it was set up.
#[derive(Debug, Default)]
struct Vring {
    size: u32,
    base: u32,
    places: Option<Places>,
    kick: Option<Kick>,
    call: Option<Arc<Call>>,
    err: Option<Call>,
    enabled: bool,
    /// A kick was set, and it was not stopped since.
    started: bool,
    /// The worker has it.
    runs: bool,
}

/// A frontend.
#[derive(Debug)]
pub struct Session<Q: Queues> {
    queues: Q,
    ear: Arc<Ear>,
    offered: u64,
    features: u64,
    protocol: u64,
    table: Table,
    memory: Arc<GuestMemory>,
    vrings: Vec<Vring>,
    status: u8,
}

impl<Q: Queues> Session<Q> {
    /// One that has said nothing yet, for so many pairs of queues.
    #[must_use]
    pub fn new(queues: Q, ear: &Arc<Ear>, pairs: u16) -> Self {
        let vrings = (0..2 * pairs).map(|_| Vring::default()).collect();
        Self {
            queues,
            ear: ear.clone(),
            offered: offered(pairs),
            features: 0,
            protocol: 0,
            table: Table::default(),
            memory: Arc::default(),
            vrings,
            status: 0,
        }
    }

    /// May any queue carry frames?
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.vrings.iter().any(|vring| vring.runs && self.is_enabled(vring))
    }

    /// Does the frontend understand an answer to any request?
    #[must_use]
    pub fn acknowledges(&self) -> bool {
        self.protocol & protocol::REPLY_ACK != 0
    }

    /// What follows from a message, and what is to be answered, if anything is.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn take(&mut self, message: Message) -> Result<Option<Answer>, Fault> {
        match message {
            Message::GetFeatures => return Ok(Some(Answer::U64(self.offered))),
            Message::GetProtocolFeatures => return Ok(Some(Answer::U64(protocol::OFFERED))),
            Message::GetQueueNum => {
                return Ok(Some(Answer::U64(self.vrings.len() as u64 / 2)));
            }
            Message::GetMaxMemSlots => return Ok(Some(Answer::U64(REGIONS_MAX as u64))),
            Message::GetStatus => return Ok(Some(Answer::U64(self.status.into()))),
            Message::GetVringBase(queue) => return self.stop(queue).map(Some),
            Message::SetFeatures(features) => self.set_features(features)?,
            Message::SetProtocolFeatures(features) => {
                self.protocol = check(features, protocol::OFFERED)?;
            }
            Message::SetOwner | Message::ResetOwner => {}
            Message::ResetDevice => self.reset(),
            Message::SetMemTable(regions) => self.set_table(regions)?,
            Message::AddMemReg(region, fd) => {
                self.table.add(region, &fd)?;
                self.change_memory();
            }
            Message::RemMemReg(region) => {
                self.table.remove(region)?;
                self.change_memory();
            }
            Message::SetVringNum(queue, size) => self.vring(queue)?.size = size,
            Message::SetVringBase(queue, base) => self.vring(queue)?.base = base,
            Message::SetVringAddr(queue, places) => {
                self.vring(queue)?.places = Some(places);
                self.settle(queue)?;
            }
            Message::SetBell(bell, queue, fd) => self.set_bell(bell, queue, fd)?,
            Message::SetVringEnable(queue, enabled) => {
                self.vring(queue)?.enabled = enabled;
                self.settle_later(queue);
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

    /// A frontend without features of the protocol does not enable its queues.
    fn is_enabled(&self, vring: &Vring) -> bool {
        vring.enabled || self.features & PROTOCOL_FEATURES == 0
    }

    fn set_features(&mut self, features: u64) -> Result<(), Fault> {
        self.features = check(features, self.offered)?;
        self.settle_all();
        Ok(())
    }

    /// 0 is a reset (2.1.1).
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
            let vring = &mut self.vrings[at];
            (vring.started, vring.enabled, vring.kick) = (false, false, None);
        }
    }

    fn set_table(&mut self, regions: Vec<(super::message::Region, OwnedFd)>) -> Result<(), Fault> {
        let mut table = Table::default();
        regions.into_iter().try_for_each(|(region, fd)| table.add(region, &fd))?;
        self.table = table;
        self.change_memory();
        Ok(())
    }

    fn change_memory(&mut self) {
        self.memory = self.table.memory();
        self.settle_all();
    }

    fn set_bell(&mut self, bell: Bell, queue: u32, fd: Option<OwnedFd>) -> Result<(), Fault> {
        let ear = self.ear.clone();
        let no_eventfd = |_| Fault::NoEventfd(queue);
        let vring = self.vring(queue)?;
        match bell {
            Bell::Kick => {
                // The old one first: the frontend may give the same file again.
                vring.kick = None;
                let kick = fd.map(|fd| Kick::new(fd, &ear)).transpose();
                vring.kick = kick.map_err(no_eventfd)?;
                vring.started = true;
                self.settle(queue)
            }
            Bell::Call => {
                let call = fd.map(Call::new).transpose().map_err(no_eventfd)?;
                vring.call = call.map(Arc::new);
                self.settle_later(queue);
                Ok(())
            }
            Bell::Err => {
                vring.err = fd.map(Call::new).transpose().map_err(no_eventfd)?;
                Ok(())
            }
        }
    }

    /// Stops a queue and says where it was.
    fn stop(&mut self, queue: u32) -> Result<Answer, Fault> {
        self.vring(queue)?;
        self.take_out(queue as usize);
        let vring = self.vring(queue)?;
        (vring.started, vring.kick) = (false, None);
        Ok(Answer::Vring(queue, vring.base))
    }

    /// Takes a queue out of the worker's hands; it goes on from there if it is put back.
    fn take_out(&mut self, at: usize) -> Option<Box<Ring>> {
        if !std::mem::take(&mut self.vrings[at].runs) {
            return None;
        }
        let ring = self.queues.swap(at, None)?;
        self.vrings[at].base = ring.queue.base();
        Some(ring)
    }

    /// Lets a queue run as it is now set up, if it can.
    fn settle(&mut self, queue: u32) -> Result<(), Fault> {
        let at = queue as usize;
        self.take_out(at);
        let (vring, memory) = (&self.vrings[at], self.memory.clone());
        let Some(places) = vring.places.filter(|_| vring.started && !self.table.is_empty()) else {
            return Ok(());
        };
        // The first queue of each pair is the driver's to receive.
        let direction = if at.is_multiple_of(2) { Direction::Write } else { Direction::Read };
        let made = Queue::new(&memory, places, direction, vring.size, vring.base, self.features);
        let ring = Ring {
            queue: made.map_err(|why| Fault::Queue(at, why))?,
            memory,
            call: vring.call.clone(),
            enabled: self.is_enabled(vring),
            header: header_len(self.features),
            mergeable: self.features & virtio::MRG_RXBUF != 0,
            trouble: None,
        };
        self.queues.swap(at, Some(Box::new(ring)));
        self.vrings[at].runs = true;
        Ok(())
    }

    /// The same for one that may wait for what comes, if it cannot run now.
    fn settle_later(&mut self, queue: u32) {
        let _ = self.settle(queue);
    }

    /// The same for all.
    fn settle_all(&mut self) {
        for queue in 0..u32::try_from(self.vrings.len()).unwrap_or(0) {
            self.settle_later(queue);
        }
    }

    /// Looks for queues that the worker does not use any more: which, and why. They stay stopped
    /// until the driver starts them again.
    pub fn find_trouble(&mut self) -> Vec<(usize, Trouble)> {
        let mut found = Vec::new();
        for queue in 0..u32::try_from(self.vrings.len()).unwrap_or(0) {
            let at = queue as usize;
            let Some(ring) = self.take_out(at) else { continue };
            let Some(why) = ring.trouble else {
                self.settle_later(queue);
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
