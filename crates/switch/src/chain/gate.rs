//! The gate: ports whose frames wait until older ones have left a chain.
//!
//! # Theory of operation
//!
//! When a chain changes, frames inside it finish in the old order. Newer frames of the same flow
//! may pass fewer functions, another instance, or none, and must not overtake them. So the switch
//! takes no frames from the ports by which such frames enter until the older ones have left:
//!
//! ```text
//!   a change ──► stage 0 is past ──► stage 1 is past ──► … ──► the last is past ──► open
//!       │        (what its instances had been sent, as noted when the stage before was)
//!       └─────────────────────── PAUSE_MS ─────────────────────────────────────────► open, counted
//! ```
//!
//! A stage is past when each instance of its service has read all that the switch had delivered to
//! it, and the switch has taken all that the instance sent ([`Instance::is_past`]). All of these
//! frames are then with the next stage.
//!
//! *Which ports.* A [`Planner`](super::Planner) compares each new plan with the one before:
//!
//! | change | ports that wait | for the frames of |
//! |---|---|---|
//! | the order of a chain, or its deletion | those that could enter it | that chain |
//! | a service gets its second instance | those that could enter its chains | these chains |
//! | the chain of a port | that port | its old chain |
//! | a rule | those that the rule applies to | every chain that they could enter |
//!
//! Only the old plan counts: a port that could not enter a chain has no frames in it. A port that
//! waits for a chain already has sent nothing into it since, and does not wait again.
//!
//! *Waiting.* Frames that the switch does not take stay in their sender's ring, or in the kernel's
//! queue, as when a worker is busy. The gate wakes no sender when it opens. A worker does not sleep
//! while a port is [pending](crate::Plug::pending) or readable, so a port with frames keeps its
//! turns, and each turn asks the gate first. Between turns the worker looks at the functions and
//! the clock. A worker whose ports are empty sleeps, and finds the gate open later.
//!
//! *The bound.* An instance may be slow, stop, or never return what it has read, and must not close
//! an ingress port for longer than [`PAUSE_MS`]. After that the gate opens in any case, which is
//! [counted](super::ChainStats::early), and for [`REST_MS`] no change closes it again for that
//! chain. So frames wait for at most a fiftieth of the time, however often chains change. No port
//! waits for an instance that is stalled or has gone.
//!
//! *Not waited for* are frames that a function holds to send later, frames that it sent back to an
//! earlier service or to one outside of the chain, and functions at ports without rings.

use packet::{MAX_PORTS, PortId};

use super::service::{Instance, Service};

/// The longest pause, in milliseconds. Functions that keep up take less than one: at
/// most a ring for each, of which they read a million frames a second or more. Longer than this,
/// senders would notice: it is what a VoIP packet is late by anyway, a tenth of the shortest time
/// after which TCP sends again, and 20,000 frames at a million per second.
pub const PAUSE_MS: u64 = 20;
/// If that was not enough, no port waits for that chain again for this long.
const REST_MS: u64 = 980;

/// A set of ports.
#[derive(Clone, Debug)]
pub(super) struct Ports([u64; MAX_PORTS / 64]);

impl Ports {
    pub(super) fn none() -> Self {
        Self([0; MAX_PORTS / 64])
    }

    pub(super) fn add(&mut self, port: PortId) {
        self.0[port.index() / 64] |= 1 << (port.index() % 64);
    }

    /// `None`: all ports.
    pub(super) fn add_one_or_all(&mut self, port: Option<PortId>) {
        match port {
            Some(port) => self.add(port),
            None => self.0.fill(u64::MAX),
        }
    }

    /// Leaves those that are in both.
    pub(super) fn keep(&mut self, others: &Self) {
        self.0.iter_mut().zip(&others.0).for_each(|(word, other)| *word &= other);
    }

    fn remove(&mut self, others: &Self) {
        self.0.iter_mut().zip(&others.0).for_each(|(word, other)| *word &= !other);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    #[inline]
    fn has(&self, port: PortId) -> bool {
        self.0[port.index() / 64] >> (port.index() % 64) & 1 != 0
    }
}

impl FromIterator<PortId> for Ports {
    fn from_iter<T: IntoIterator<Item = PortId>>(ports: T) -> Self {
        ports.into_iter().fold(Self::none(), |mut set, port| {
            set.add(port);
            set
        })
    }
}

/// Ports that wait until older frames have left a chain.
#[derive(Debug)]
pub(super) struct Pause {
    chain: u8,
    /// The order of services that those go by.
    services: Vec<u8>,
    ports: Ports,
    /// The stage that is not past, and what its instances had been sent when the one before was.
    stage: usize,
    sent: Vec<(PortId, u32)>,
    began_ms: u64,
    /// The pause took too long, and no port waits any more.
    over: bool,
}

impl Pause {
    /// Has all its memory from here on: a worker asks for none.
    pub(super) fn new(chain: u8, services: &[u8], ports: Ports) -> Self {
        let (services, sent) =
            (services.to_vec(), Vec::with_capacity(super::service::INSTANCES_MAX));
        Self { chain, services, ports, stage: 0, sent, began_ms: 0, over: false }
    }

    /// Notes what the instances of its stage have been sent.
    fn note(&mut self, all: &[Service]) {
        let service = self.services.get(self.stage).and_then(|&it| all.get(usize::from(it)));
        let instances = service.into_iter().flat_map(Service::instances);
        self.sent.clear();
        self.sent.extend(instances.map(|instance| (instance.port, instance.sent)));
        debug_assert!(
            self.sent.len() <= super::service::INSTANCES_MAX,
            "a worker allocates nothing"
        );
    }

    /// Whether the older frames are out. `look` notes what an instance has read and sent.
    fn is_done(&mut self, all: &mut [Service], look: &mut impl FnMut(&mut Instance)) -> bool {
        while let Some(&service) = self.services.get(self.stage) {
            let service = all.get_mut(usize::from(service));
            let instances = service.into_iter().flat_map(Service::instances_mut);
            for instance in instances.filter(|instance| !instance.stalled) {
                let noted = self.sent.iter().find(|(port, _)| *port == instance.port);
                let Some(&(_, last)) = noted else { continue };
                look(instance);
                if !instance.is_past(last) {
                    return false;
                }
            }
            self.stage += 1;
            debug_assert!(self.stage <= self.services.len(), "a chain has as many stages");
            self.note(all);
        }
        true
    }
}

/// All that wait.
#[derive(Debug, Default)]
pub(super) struct Gate {
    pauses: Vec<Pause>,
}

impl Gate {
    /// Whether this port has to wait for earlier frames, as far as is known.
    #[inline]
    pub(super) fn shuts(&self, port: PortId) -> bool {
        self.pauses.iter().any(|pause| !pause.over && pause.ports.has(port))
    }

    /// Whether there is nothing to [refresh](Self::refresh).
    pub(super) fn is_idle(&self) -> bool {
        self.pauses.is_empty()
    }

    /// Shuts for those of `ports` that do not wait for this chain already, and have not lately
    /// waited in vain.
    pub(super) fn begin(&mut self, mut pause: Pause, ports: &Ports, all: &[Service], now_ms: u64) {
        pause.ports.keep(ports);
        let known = self.pauses.iter().filter(|known| known.chain == pause.chain);
        known.for_each(|known| pause.ports.remove(&known.ports));
        if !pause.ports.is_empty() {
            assert!(!pause.over && pause.stage == 0, "a pause begins once");
            pause.began_ms = now_ms;
            pause.note(all);
            self.pauses.push(pause);
        }
    }

    /// Opens for ports that need not wait any longer. Calls `early` for each chain that older
    /// frames are still in.
    pub(super) fn refresh(
        &mut self,
        all: &mut [Service],
        now_ms: u64,
        mut look: impl FnMut(&mut Instance),
        mut early: impl FnMut(u8),
    ) {
        self.pauses.retain_mut(|pause| {
            let age = now_ms.saturating_sub(pause.began_ms);
            if pause.over {
                return age < PAUSE_MS + REST_MS;
            }
            if pause.is_done(all, &mut look) {
                return false;
            }
            if age >= PAUSE_MS {
                pause.over = true;
                early(pause.chain);
            }
            true
        });
    }

    /// A port has gone.
    pub(super) fn forget(&mut self, port: PortId) {
        let gone = Ports::from_iter([port]);
        self.pauses.iter_mut().for_each(|pause| pause.ports.remove(&gone));
        self.pauses.retain(|pause| !pause.ports.is_empty());
    }

    /// Opens for all ports.
    pub(super) fn open(&mut self) {
        self.pauses.clear();
    }
}
