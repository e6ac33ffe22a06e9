//! Memory of a port between the decision to make it and its first use.
//!
//! ```text
//!  reserve   region, place in it, descriptors: fast, so the control thread does it
//!  build     commits the memory and writes the structures: takes as long as the memory is large,
//!            so a thread of its own does it
//! ```
//!
//! The owner knows at once what is reserved, so no other port gets it. Building twice has no effect
//! the second time. Building stops when the reservation is not wanted any more: its place may be
//! another port's by then, whose builder waits for the lock.
//!
//! What is built lies on small pages. Moving it to huge ones takes long where the machine is busy,
//! so the owner has that done after the port is in use ([`Reservation::huge_pages`]).

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::layout::PortLayout;
use ring::{BufferIndex, Region};

/// The bytes to commit between two checks whether the memory is still wanted.
const PIECE: usize = 32 << 20;

/// Memory that is reserved for ports of one region.
#[derive(Debug)]
pub struct Reservation {
    region: Arc<Region>,
    name: String,
    ports: Vec<ReservedPort>,
    /// All memory of the region belongs to these ports.
    whole: bool,
    /// The lock of the thread that builds in the region.
    building: Arc<Mutex<()>>,
    built: AtomicBool,
    huge_pages: Arc<Runs>,
}

/// A port's structures and buffers.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    pub layout: PortLayout,
    /// The buffers of the slots, then the extra ones; if empty, the next ones of the region.
    pub buffers: Vec<BufferIndex>,
    pub extra_bufs: u32,
}

impl Reservation {
    pub(crate) fn new(
        region: &Arc<Region>,
        name: &str,
        ports: Vec<ReservedPort>,
        whole: bool,
    ) -> Self {
        let (region, name) = (region.clone(), name.to_owned());
        let (building, built) = (Arc::default(), AtomicBool::new(false));
        Self { region, name, ports, whole, building, built, huge_pages: Arc::default() }
    }

    /// The memory of one port, which has a region of its own, after it was built.
    pub(crate) fn built(region: &Arc<Region>, name: &str, port: ReservedPort) -> Self {
        let this = Self::new(region, name, vec![port], true);
        this.huge_pages.fill(region.huge_pages());
        this.built.store(true, Ordering::Relaxed);
        this
    }

    /// Makes this one of several reservations of a region, which are built one at a time.
    pub(crate) fn among(self, building: &Arc<Mutex<()>>) -> Self {
        Self { building: building.clone(), ..self }
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The structures of the first port.
    ///
    /// # Panics
    /// If there is no port, which is a bug of this crate.
    #[must_use]
    pub fn layout(&self) -> &PortLayout {
        &self.ports[0].layout
    }

    /// Commits the memory and writes the structures, unless that was done before.
    ///
    /// # Errors
    /// `ENOMEM` if there is not enough memory.
    pub fn build(&self) -> io::Result<()> {
        self.build_while(|| true)
    }

    /// [`Reservation::build`], but stops when only the caller refers to the reservation.
    ///
    /// # Errors
    /// The errors of [`Reservation::build`]; `Interrupted` if the reservation is not wanted any
    /// more.
    pub fn build_while_wanted(self: Arc<Self>) -> io::Result<()> {
        self.build_while(|| Arc::strong_count(&self) > 1)
    }

    /// The huge pages that the ports lie on; none before they are built.
    #[must_use]
    pub fn huge_pages(&self) -> &Arc<Runs> {
        &self.huge_pages
    }

    fn build_while(&self, wanted: impl Fn() -> bool) -> io::Result<()> {
        // A thread that panicked in the lock has built nothing.
        let _building = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        if self.built.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut next = self.region.buffers();
        for port in &self.ports {
            let count = (port.layout.counts().buffers() + port.extra_bufs) as usize;
            let next: Vec<_> = match port.buffers.is_empty() {
                true => next.by_ref().take(count).collect(),
                false => Vec::new(),
            };
            let buffers = if next.is_empty() { &port.buffers } else { &next };
            self.furnish(port, buffers, &wanted)?;
        }
        let of_port = |port: &ReservedPort| self.region.huge_pages_of(&port.buffers);
        self.huge_pages.fill(match self.whole {
            true => self.region.huge_pages(),
            false => self.ports.iter().flat_map(of_port).collect(),
        });
        self.built.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn furnish(
        &self,
        port: &ReservedPort,
        buffers: &[BufferIndex],
        wanted: &impl Fn() -> bool,
    ) -> io::Result<()> {
        commit(&self.region, buffers, wanted)?;
        let (standing, extra) = buffers.split_at(port.layout.counts().buffers() as usize);
        let standing = standing.iter().copied();
        self.region.format_port(&self.name, &port.layout, standing, self.is_private())?;
        self.region.format_extra(&port.layout, extra);
        Ok(())
    }

    fn is_private(&self) -> bool {
        self.whole && self.ports.len() == 1
    }
}

/// Huge pages that ports lie on, in runs for [`Region::collapse`], from when the ports are built
/// until they are taken. All requests for them share them, so each is taken once.
#[derive(Debug, Default)]
pub struct Runs(Mutex<VecDeque<Range<usize>>>);

impl Runs {
    /// Takes the next run.
    #[must_use]
    pub fn take(&self) -> Option<Range<usize>> {
        self.lock().pop_front()
    }

    /// Leaves all that are not taken.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// How many runs are not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no run is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The first huge page goes alone: it shows how long moving one takes.
    fn fill(&self, runs: Vec<Range<usize>>) {
        let mut runs = VecDeque::from(runs);
        if let Some(first) = runs.front_mut().filter(|run| run.len() > 1) {
            let alone = first.start..first.start + 1;
            first.start += 1;
            runs.push_front(alone);
        }
        *self.lock() = runs;
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Range<usize>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Vec<Range<usize>>> for Runs {
    fn from(runs: Vec<Range<usize>>) -> Self {
        Self(Mutex::new(runs.into()))
    }
}

/// Commits the memory of buffers, while they are wanted.
pub(crate) fn commit(
    region: &Region,
    buffers: &[BufferIndex],
    wanted: impl Fn() -> bool,
) -> io::Result<()> {
    let piece = PIECE / region.stride() as usize;
    let runs = buffers.chunk_by(|a, b| a.get() + 1 == b.get());
    for run in runs.flat_map(|run| run.chunks(piece)) {
        if !wanted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let count = u32::try_from(run.len()).expect("a region is below 4 GiB");
        region.populate_buffers(run[0], count)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::PortMemory;
    use ring::HUGE_PAGE;
    use ring::cursor::RingSize;
    use ring::layout::RingCounts;

    #[test]
    fn huge_pages_are_known_when_the_memory_is_built_and_taken_once() {
        let slots = RingSize::new(1024).expect("legal");
        let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
        let memory = PortMemory::reserve("x", counts, 0, 2112).expect("memory");
        let runs = memory.reservation.huge_pages();
        let take = || std::iter::from_fn(|| runs.take()).flatten().count();
        assert!(runs.is_empty());
        memory.reservation.build().expect("memory");
        memory.reservation.build().expect("it is built already");
        let all = memory.reservation.region().layout().size() / HUGE_PAGE;
        assert_eq!((all, runs.len(), take(), take()), (2, 2, 2, 0));
    }

    #[test]
    fn the_first_huge_page_goes_alone() {
        let runs = Runs::default();
        runs.fill(vec![3..11, 11..13]);
        assert_eq!([(); 4].map(|()| runs.take()), [Some(3..4), Some(4..11), Some(11..13), None]);
        runs.fill(vec![3..4, 5..7]);
        assert_eq!((runs.take(), runs.len()), (Some(3..4), 1));
        runs.clear();
        assert!(runs.is_empty());
    }

    #[test]
    fn a_plot_that_nobody_waits_for_is_not_finished() {
        let slots = RingSize::new(8).expect("legal");
        let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
        let memory = PortMemory::reserve("x", counts, 0, 2112).expect("memory");
        let (reservation, waiting) = (memory.reservation.clone(), memory);
        reservation.clone().build_while_wanted().expect("memory");
        reservation.build().expect("it is built already");
        drop(waiting);
        let memory = PortMemory::reserve("x", counts, 0, 2112).expect("memory");
        let reservation = memory.reservation.clone();
        drop(memory);
        let built = reservation.build_while_wanted().map_err(|error| error.kind());
        assert_eq!(built, Err(io::ErrorKind::Interrupted));
    }
}
