//! Slow memory: clients that hold up accesses to the memory of their ports.
//!
//! # Theory of operation
//!
//! A client can have the kernel work on the pages of its region: punch holes, or move them to huge
//! pages. Until that is done, other threads wait for these pages. It takes long in a thread that
//! seldom gets a core, and no seal prevents it. A worker that waits so while it copies between two
//! ports does not know for which. So a thread reads the memory of both:
//!
//! ```text
//!   watchdog ── waits, in a step for two ports ──► queue ──► this thread: reads the pages of both
//!   control ─── where the memory of ports is ────► table ──► for two seconds, again and again
//!                                                              │
//!   control ◄── the port for whose memory this thread waits ───┘
//! ```
//!
//! A reading is of a few pages of one port. It counts against that port if it takes 20 ms in which
//! the thread waits for something else than a core ([`Reading::is_slow`]). Two things make it wait
//! for which no port is to blame:
//!
//! - The machine swaps. From before the stall until the reading is over, no thread of the daemon
//!   may have read from a disk. Major page faults would not tell: the kernel also counts those that
//!   it had to try twice, as it does behind a hole that is being punched.
//! - The daemon itself moves the region to huge pages ([`Region::moves`]).
//!
//! A port is reported once for each stall.
//!
//! *Guests.* The memory of a guest is large, and where in it the worker waits only the worker
//! knows. So the thread does not read it. It finds a guest by [`exclusion`](Exclusion): the worker
//! waits on, and all other memory of the step can be read at once. Where the other port is a
//! guest's, too, or shares its memory with a trust group, no port is to blame.
//!
//! *Memory.* The thread keeps none but for the time of a reading. Then it holds the region, and the
//! life of the lease by which its user pays for it. It reads the port's own pages only: a read
//! commits a page. A hole among these is committed as by the worker's next access.
//!
//! Limits: `QUEUE` stalls wait; further ones are not looked into. A reading lasts for as long as
//! its memory is held up, and the other port has to wait for it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use packet::PortId;
use port::reservation::Reservation;
use protocol::{StallCause, StallStage};
use ring::Region;
use ring::layout::PortLayout;

use super::Workers;
use super::usage::Usage;
use super::watchdog::Suspicion;
use crate::control::datapath::workers::WorkerStall;
use crate::model::keys::{PortKey, SwitchKey};

/// Most stalls that wait.
const QUEUE: usize = 8;
/// How long the memory of two ports is read for one stall.
const TIME: Duration = Duration::from_secs(2);
/// Pages of one reading. Without a wait it takes microseconds, or a few hundred of them if all
/// pages have to be committed.
const PAGES: usize = 64;
/// A reading that waits so long is slow.
const SLOW: Duration = Duration::from_millis(20);
/// Passes without a wait that clear the ports whose memory they read.
const CLEAR: u32 = 8;
/// Shortest pause between two passes. A pause is as long as the pass before it, so that the thread
/// takes half of a core at most.
const PAUSE: Duration = Duration::from_millis(1);

/// Where a port is: the place of its switch, and its number there; `None`: any port of the switch.
type Seat = (usize, Option<PortId>);

/// The thread's handle.
#[derive(Debug)]
pub(super) struct SlowMemory(Arc<Mutex<Places>>);

/// Where memory is that workers touch.
#[derive(Debug, Default)]
struct Places {
    /// By the port whose memory it is.
    regions: BTreeMap<PortKey, MemoryPlace>,
    /// Ports whose frames are in the memory of a guest.
    guests: BTreeMap<PortKey, Seat>,
}

/// Memory that a worker touches in steps for a port.
#[derive(Clone, Debug)]
struct MemoryPlace {
    seat: Seat,
    /// The port that answers for it.
    port: PortKey,
    /// The port of the seat answers for it, and not one that looks at its frames.
    is_own: bool,
    region: Weak<Region>,
    layout: PortLayout,
    life: Weak<()>,
}

impl SlowMemory {
    /// Starts the thread, and returns its queue. The thread ends with the queue, after the stall in
    /// hand. It has opened what it needs when this returns.
    ///
    /// # Errors
    /// No threads left.
    pub fn start(reports: Sender<WorkerStall>) -> io::Result<(Self, SyncSender<Suspicion>)> {
        let ((queue, suspicions), (ready, started)) = (sync_channel(QUEUE), channel());
        let places = Arc::<Mutex<Places>>::default();
        let theirs = places.clone();
        let body = move || {
            let waits = CoreWaits::of_this_thread();
            confine::narrow(confine::Thread::Reader);
            // The other side waits for it.
            let _ = ready.send(());
            let reader = Reader { places: theirs, waits, reports };
            suspicions.into_iter().for_each(|suspicion| reader.look_into(&suspicion));
        };
        std::thread::Builder::new().name("memory-reader".to_owned()).spawn(body)?;
        started.recv().map_err(io::Error::other)?;
        Ok((Self(places), queue))
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Workers {
    /// Notes where the memory is that `whose` answers for, which is paid for as long as `life`
    /// lasts. A worker touches it in steps for `port`: this one, or the one that it mirrors.
    pub(super) fn note_memory(
        &self,
        whose: PortKey,
        port: PortKey,
        memory: &Reservation,
        life: Weak<()>,
    ) {
        let Some(seat) = self.seat_of(port) else { return };
        let (region, layout) = (Arc::downgrade(memory.region()), *memory.layout());
        let is_own = whose == port;
        let place = MemoryPlace { seat, port: whose, is_own, region, layout, life };
        self.slow_memory.places().regions.insert(whose, place);
    }

    /// Notes that a worker touches the memory of a guest for a port.
    pub(super) fn note_guest(&self, port: PortKey) {
        let Some(seat) = self.seat_of(port) else { return };
        self.slow_memory.places().guests.insert(port, seat);
    }

    /// Notes where the memory is that a worker may touch in steps for each port of a switch, and
    /// that `whose` answers for.
    pub(super) fn note_memory_of_switch(
        &self,
        whose: PortKey,
        switch: SwitchKey,
        memory: &Reservation,
        life: Weak<()>,
    ) {
        let (region, layout) = (Arc::downgrade(memory.region()), *memory.layout());
        let seat = (self.place(switch).at, None);
        let place = MemoryPlace { seat, port: whose, is_own: false, region, layout, life };
        self.slow_memory.places().regions.insert(whose, place);
    }

    /// Notes that a port has another place.
    pub(super) fn note_move(&self, port: PortKey) {
        let Some(seat) = self.seat_of(port) else { return };
        let mut places = self.slow_memory.places();
        if let Some(place) = places.regions.get_mut(&port) {
            place.seat = seat;
        }
        if let Some(guest) = places.guests.get_mut(&port) {
            *guest = seat;
        }
    }

    /// No worker touches the memory of a port any more.
    pub(super) fn forget_memory(&self, whose: PortKey) {
        let mut places = self.slow_memory.places();
        places.regions.remove(&whose);
        places.guests.remove(&whose);
    }

    fn seat_of(&self, port: PortKey) -> Option<Seat> {
        let (switch, id) = self.switch_of(port)?;
        Some((self.place(switch).at, Some(id)))
    }
}

/// The thread's state.
struct Reader {
    places: Arc<Mutex<Places>>,
    waits: CoreWaits,
    reports: Sender<WorkerStall>,
}

impl Reader {
    /// Reads the memory of the ports of a step until one is known to be slow, or the time is over.
    fn look_into(&self, suspicion: &Suspicion) {
        let (begin, mut exclusion) = (Instant::now(), Exclusion::default());
        while begin.elapsed() < TIME && !reads_disks(suspicion) {
            // Each time anew: what a port has left is not to be read.
            let (pass, places) = (Instant::now(), self.places_of(suspicion));
            let guest = self.guest_of(suspicion, &places);
            if places.is_empty() && guest.is_none() {
                return;
            }
            let reads: Vec<_> = places.iter().map(|place| (place.port, self.read(place))).collect();
            let slow = reads.iter().find_map(|(port, read)| Some((*port, read.slow?)));
            let is_clear = reads.iter().all(|(_, read)| read.is_free) && suspicion.waits();
            let left = exclusion.pass(is_clear).and_then(|took| Some((guest?, took)));
            match slow.or(left) {
                Some((port, took)) if !reads_disks(suspicion) => {
                    return self.report(suspicion, port, took);
                }
                _ => std::thread::sleep(pass.elapsed().max(PAUSE)),
            }
        }
    }

    /// The memory that a worker touches in this step.
    fn places_of(&self, suspicion: &Suspicion) -> Vec<MemoryPlace> {
        let beat = suspicion.beat;
        let ports = [beat.port, beat.other];
        let is_touched = |place: &&MemoryPlace| {
            let (switch, id) = place.seat;
            switch == beat.switch && (id.is_none() || ports.contains(&id))
        };
        let all = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        all.regions.values().filter(is_touched).cloned().collect()
    }

    /// The guest's port of a step, if all other memory of the step is in these places.
    fn guest_of(&self, suspicion: &Suspicion, places: &[MemoryPlace]) -> Option<PortKey> {
        let beat = suspicion.beat;
        let is_read = |seat: Seat| places.iter().any(|place| place.is_own && place.seat == seat);
        let seats = [beat.port, beat.other].into_iter().flatten().map(|id| (beat.switch, Some(id)));
        let rest: Vec<Seat> = seats.filter(|seat| !is_read(*seat)).collect();
        let [seat] = rest[..] else { return None };
        let all = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (port, _) = all.guests.iter().find(|(_, guest)| **guest == seat)?;
        places.iter().all(MemoryPlace::is_whole).then_some(*port)
    }

    /// Reads all pages of a port, up to the first slow reading.
    fn read(&self, place: &MemoryPlace) -> Pass {
        let mut pass = Pass { slow: None, is_free: place.region.strong_count() > 0 };
        for first in (0..).step_by(PAGES) {
            let Some(reading) = self.read_some(place, first) else { break };
            pass.is_free &= reading.waits == 0;
            if reading.is_slow() {
                pass.slow = Some(reading.took);
                break;
            }
        }
        pass
    }

    /// Reads some pages; `None`: there are none, or the port is gone.
    fn read_some(&self, place: &MemoryPlace, first: usize) -> Option<Reading> {
        let life = place.life.upgrade()?;
        let region = place.region.upgrade()?;
        let pages = first..region.pages().min(first + PAGES);
        if pages.is_empty() {
            return None;
        }
        let (moves, before) = (region.moves(), self.waits.now());
        region.read_pages(&place.layout, pages);
        let after = self.waits.now();
        let moved = moves != region.moves() || moves % 2 == 1;
        // The last reference to the region may be this one: its memory goes before its life.
        drop(region);
        drop(life);
        Some(Reading::between(before, after, moved))
    }

    fn report(&self, suspicion: &Suspicion, port: PortKey, lasted: Duration) {
        let (worker, port) = (u32::try_from(suspicion.worker).ok(), Some(port));
        let (stage, cause) = (StallStage::Memory, StallCause::Blocked);
        let stall = WorkerStall { worker, port, stage, cause, lasted, is_over: false };
        if self.reports.send(stall).is_ok() {
            suspicion.bell.ring();
        }
    }
}

impl MemoryPlace {
    /// Whether a pass reads all memory that a worker touches for the port. In a region of several
    /// ports it leaves out what others own.
    fn is_whole(&self) -> bool {
        self.region.upgrade().is_some_and(|region| region.owners().is_empty())
    }
}

/// One pass over the pages of a port.
#[derive(Clone, Copy, Debug)]
struct Pass {
    /// How long the slow reading took, if there was one.
    slow: Option<Duration>,
    /// All pages were there at once: the thread did not wait for any.
    is_free: bool,
}

/// Clears ports: for a while, a worker waits at each look, and no pass over the memory of these
/// ports had to wait. One pass says little, for memory that is held up again and again can be read
/// in between.
#[derive(Debug, Default)]
struct Exclusion {
    since: Option<Instant>,
    passes: u32,
}

impl Exclusion {
    /// Takes one pass; returns for how long the worker has waited for something else, as soon as
    /// that is known.
    fn pass(&mut self, is_clear: bool) -> Option<Duration> {
        if !is_clear {
            *self = Self::default();
            return None;
        }
        self.passes += 1;
        let lasted = self.since.get_or_insert_with(Instant::now).elapsed();
        (lasted >= SLOW && self.passes >= CLEAR).then_some(lasted)
    }
}

/// Whether the daemon has read from a disk since before the stall.
fn reads_disks(suspicion: &Suspicion) -> bool {
    Usage::of_process().disk_reads != suspicion.disk_reads
}

/// What is known of the thread at one moment. To find that out takes time, too, in which the thread
/// may lose its core.
#[derive(Clone, Copy, Debug)]
struct Moment {
    begin: Instant,
    /// Time that it has waited for a core.
    for_core: Duration,
    /// How often it has waited for something else.
    waits: u64,
    end: Instant,
}

/// A reading of a few pages.
#[derive(Clone, Copy, Debug)]
struct Reading {
    took: Duration,
    /// Time of that in which the thread waited for a core.
    for_core: Duration,
    /// How often it waited for something else.
    waits: u64,
    /// The daemon itself moved the memory meanwhile.
    moved: bool,
}

impl Reading {
    fn between(before: Moment, after: Moment, moved: bool) -> Self {
        Self {
            took: after.begin.duration_since(before.end),
            for_core: after.for_core.saturating_sub(before.for_core),
            waits: after.waits.saturating_sub(before.waits),
            moved,
        }
    }

    /// Whether another process held the memory up.
    fn is_slow(&self) -> bool {
        let held_up = self.took.saturating_sub(self.for_core);
        self.waits > 0 && held_up >= SLOW && !self.moved
    }
}

/// How long a thread has waited for a core: `/proc/PID/task/TID/schedstat`, kept open because the
/// thread has no way to it later. Where the kernel does not count that, such a wait counts as one
/// for the memory, if the thread also waited for something else.
struct CoreWaits(Option<File>);

impl CoreWaits {
    fn of_this_thread() -> Self {
        let id = rustix::thread::gettid().as_raw_pid();
        Self(File::open(format!("/proc/self/task/{id}/schedstat")).ok())
    }

    fn now(&self) -> Moment {
        let (begin, mut text) = (Instant::now(), [0; 64]);
        let read = self.0.as_ref().and_then(|stat| stat.read_at(&mut text, 0).ok()).unwrap_or(0);
        let (for_core, waits) = (for_core(&text[..read]), Usage::of_thread().waits);
        Moment { begin, for_core, waits, end: Instant::now() }
    }
}

/// The second number of a thread's `schedstat`: nanoseconds.
fn for_core(text: &[u8]) -> Duration {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let nanos = text.split_ascii_whitespace().nth(1).and_then(|number| number.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests;
