//! Huge pages for the memory of ports, after their clients have the ports.
//!
//! # Theory of operation
//!
//! ```text
//!   control thread ── attached, answered ──► queue ──► this thread: a call, a rest, a call, …
//! ```
//!
//! A call moves a part of a port's memory ([`Region::collapse`]). It may take a third of a second
//! where other programs keep the cores busy, and for most of that time no other thread can map or
//! unmap memory, or start a thread, which every attach does. So the thread makes a call
//!
//! - when no port has been attached for `QUIET`: more ports of the same program come faster. But
//!   if ports never stop coming, the oldest request waits no longer than `LATE` for that;
//! - when it has rested, `RESTS` times as long as its last call took;
//! - for one port after the other, so that a large one keeps none waiting.
//!
//! An attach waits here only if it comes while a call is under way. Ports that are gone by then are
//! left out, so a port that lives for a moment costs nothing here.
//!
//! *Slow memory.* A client can map its region tens of thousands of times, and the kernel looks at
//! every mapping of every page that it moves. Meanwhile a worker may have to wait for the page. So
//! the first call for a port is for one huge page, and if a call takes more than `SLOW` of this
//! thread's processor time for each, the rest stays on small pages. The wait at the beginning of a
//! call does not count: it takes no processor time.
//!
//! *Memory.* A request keeps none. For the time of a call the thread holds the region, and the life
//! of the lease by which its user pays for it: if the port goes meanwhile, the user pays until this
//! thread has given the memory back. A region of a trust group or a pipe has several leases, and
//! the thread holds the life of one. If the last of the others ends during a call, what it pays for
//! counts as given back, too early by the length of that call at most.
//!
//! What a call has not moved stays in the port's reservation. So the second end of a pipe asks for
//! it again if the first one went too early.
//!
//! Limits: `QUEUE` ports wait, and as many more during a call. The memory of further ones stays on
//! small pages, as it does where the kernel has no huge ones: it serves all the same.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use port::reservation::{Reservation, Runs};
use ring::Region;

use crate::cpu_time::thread_time;

/// Most ports that wait.
const QUEUE: usize = 256;
/// Time without a new port before a call.
const QUIET: Duration = Duration::from_millis(300);
/// Longest wait for that.
const LATE: Duration = Duration::from_secs(5);
/// Length of a rest, in lengths of the call before it.
const RESTS: u32 = 4;
/// Most processor time for a huge page. Without thousands of mappings it takes about a millisecond,
/// or a few if the kernel first has to make room for one.
const SLOW: Duration = Duration::from_millis(10);

/// The thread. It ends with its handle, after the call in hand.
#[derive(Debug)]
pub struct HugePages(SyncSender<Request>);

impl HugePages {
    /// Starts the thread.
    ///
    /// # Errors
    /// No threads left.
    pub fn start() -> io::Result<Self> {
        let (sender, requests) = sync_channel(QUEUE);
        let body = move || {
            confine::narrow(confine::Thread::Collapser);
            run(&requests);
        };
        std::thread::Builder::new().name("huge-pages".to_owned()).spawn(body)?;
        Ok(Self(sender))
    }

    /// Asks for huge pages for memory that was built, unless it has been moved; `life` ends when
    /// its user pays for it no longer.
    pub fn request(&self, memory: &Reservation, life: Weak<()>) {
        if let Some(request) = Request::new(memory, life, Instant::now()) {
            // If too many wait, this port does without.
            let _ = self.0.try_send(request);
        }
    }
}

fn run(requests: &Receiver<Request>) {
    let mut queue = Queue::new(Instant::now());
    loop {
        let next = match queue.pause(Instant::now()) {
            None => requests.recv().map_err(RecvTimeoutError::from),
            Some(pause) => requests.recv_timeout(pause),
        };
        match next {
            Ok(request) => queue.push(request),
            Err(RecvTimeoutError::Timeout) => queue.step(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Memory of a port that waits.
#[derive(Debug)]
struct Request {
    region: Weak<Region>,
    life: Weak<()>,
    /// Huge pages for each call. Other requests for the memory share them.
    runs: Arc<Runs>,
    at: Instant,
}

impl Request {
    /// `None` for memory without huge pages, and for memory that was moved before.
    fn new(memory: &Reservation, life: Weak<()>, at: Instant) -> Option<Self> {
        let (region, runs) = (Arc::downgrade(memory.region()), memory.huge_pages().clone());
        (!runs.is_empty()).then_some(Self { region, life, runs, at })
    }

    /// Whether the port is still there.
    fn is_wanted(&self) -> bool {
        self.life.strong_count() > 0 && self.region.strong_count() > 0
    }

    /// Makes one call; returns `false` if there is nothing left to do.
    fn step(&self) -> bool {
        let Some(life) = self.life.upgrade() else { return false };
        let Some(region) = self.region.upgrade() else { return false };
        if let Some(run) = self.runs.take() {
            let most = SLOW * u32::try_from(run.len()).expect("few");
            let begin = thread_time();
            region.collapse(run);
            if thread_time().saturating_sub(begin) > most {
                self.runs.clear();
            }
        }
        // The last reference to the region may be this one: its memory goes before its life.
        drop(region);
        drop(life);
        !self.runs.is_empty()
    }
}

/// Ports that wait, and when the next one gets its call.
#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Request>,
    /// When the last request came.
    newest: Instant,
    /// The end of the rest after the last call.
    rested: Instant,
}

impl Queue {
    fn new(now: Instant) -> Self {
        Self { waiting: VecDeque::new(), newest: now, rested: now }
    }

    fn push(&mut self, request: Request) {
        self.newest = request.at;
        if self.waiting.len() == QUEUE {
            self.waiting.retain(Request::is_wanted);
        }
        if self.waiting.len() < QUEUE {
            self.waiting.push_back(request);
        }
    }

    /// Time until the next call; `None` if no port waits.
    fn pause(&self, now: Instant) -> Option<Duration> {
        // Not always the first: one with more to do goes to the end.
        let oldest = self.waiting.iter().map(|request| request.at).min()?;
        let quiet = (self.newest + QUIET).min(oldest + LATE);
        Some(quiet.max(self.rested).saturating_duration_since(now))
    }

    /// Makes a call for the first port. If there is more to do for it, it goes to the end.
    fn step(&mut self) {
        let Some(request) = self.waiting.pop_front() else { return };
        let begin = Instant::now();
        let has_more = request.step();
        self.rested = begin + (RESTS + 1) * begin.elapsed();
        if has_more {
            self.waiting.push_back(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use port::shm::PortMemory;
    use ring::cursor::RingSize;
    use ring::layout::{PAGE, RegionLayout, RingCounts};

    use super::*;

    fn built() -> PortMemory {
        let slots = RingSize::new(1024).expect("legal");
        let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
        let memory = PortMemory::reserve("x", counts, 0, 2112).expect("memory");
        memory.reservation.build().expect("memory");
        memory
    }

    fn request(memory: &PortMemory, life: &Arc<()>) -> Request {
        let request = Request::new(&memory.reservation, Arc::downgrade(life), Instant::now());
        request.expect("two huge pages")
    }

    /// A request of a port that is gone.
    fn in_vain(at: Instant) -> Request {
        Request { region: Weak::new(), life: Weak::new(), runs: Arc::default(), at }
    }

    /// A region of which no call moves anything: no buffer is a port's.
    fn unused() -> Arc<Region> {
        let layout = RegionLayout::new(PAGE, 2112, 8).expect("legal");
        Region::create_shared("x", layout).expect("memory").0
    }

    #[test]
    fn a_call_waits_for_quiet_and_for_its_rest_but_not_for_ever() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut queue = Queue::new(start);
        assert_eq!(queue.pause(start), None);
        let mut pause = |came: u64, now: u64| {
            queue.push(in_vain(start + ms(came)));
            queue.pause(start + ms(now))
        };
        assert_eq!(pause(0, 30), Some(ms(270)));
        assert_eq!(pause(50, 100), Some(ms(250)));
        assert_eq!(pause(60, 360), Some(ms(0)));
        assert_eq!(pause(4980, 4990), Some(ms(10)), "the first is late");
        assert_eq!(pause(6000, 6010), Some(ms(0)));
        queue.rested = start + ms(6500);
        assert_eq!(queue.pause(start + ms(6010)), Some(ms(490)));
        queue.rested = start;
        queue.waiting.rotate_right(1);
        assert_eq!(queue.pause(start + ms(6010)), Some(ms(0)), "the first is not the oldest");
    }

    #[test]
    fn what_waits_keeps_no_memory_and_a_call_holds_it_for_its_time() {
        let (mut queue, life, over) = (Queue::new(Instant::now()), Arc::new(()), Arc::new(()));
        let (goes, unpaid, stays) = (built(), built(), built());
        let others = [request(&goes, &life), request(&unpaid, &over)];
        others.into_iter().for_each(|request| queue.push(request));
        queue.push(request(&stays, &life));
        let region = Arc::downgrade(goes.reservation.region());
        drop((goes, over));
        assert!(region.upgrade().is_none());
        (0..4).for_each(|_| queue.step());
        assert!(queue.waiting.is_empty());
        let again = Request::new(&unpaid.reservation, Arc::downgrade(&life), Instant::now());
        assert!(again.is_some(), "as the second end of a pipe asks");
        let region = stays.reservation.region();
        assert_eq!((Arc::strong_count(region), Arc::strong_count(&life)), (1, 1));
        assert!(Request::new(&stays.reservation, Weak::new(), Instant::now()).is_none(), "once");
    }

    #[test]
    fn large_ports_take_turns_with_others() {
        let (region, life, at) = (unused(), Arc::new(()), Instant::now());
        let mut queue = Queue::new(at);
        for runs in [vec![0_usize..1, 1..2, 0..2], vec![0..1, 1..2]] {
            let (region, life) = (Arc::downgrade(&region), Arc::downgrade(&life));
            queue.push(Request { region, life, runs: Arc::new(runs.into()), at });
        }
        let calls_left = |queue: &Queue| {
            let all = queue.waiting.iter().map(|request| request.runs.len());
            all.collect::<Vec<_>>()
        };
        assert_eq!(calls_left(&queue), [3, 2]);
        queue.step();
        assert_eq!(calls_left(&queue), [2, 2]);
        queue.step();
        assert_eq!(calls_left(&queue), [2, 1]);
        (0..2).for_each(|_| queue.step());
        assert_eq!(calls_left(&queue), [1]);
        queue.step();
        assert!(queue.waiting.is_empty());
    }

    #[test]
    fn a_full_queue_leaves_further_ports_as_they_are() {
        let (region, life, at) = (unused(), Arc::new(()), Instant::now());
        let wanted = || {
            let (region, life) = (Arc::downgrade(&region), Arc::downgrade(&life));
            Request { region, life, runs: Arc::default(), at }
        };
        let mut queue = Queue::new(at);
        (0..QUEUE).for_each(|_| queue.push(in_vain(at)));
        (0..5).for_each(|_| queue.push(wanted()));
        assert_eq!(queue.waiting.len(), 5, "those of ports that are gone make room");
        (0..QUEUE).for_each(|_| queue.push(wanted()));
        assert_eq!(queue.waiting.len(), QUEUE);
        (0..QUEUE).for_each(|_| queue.step());
        assert!(queue.waiting.is_empty());
    }

    #[test]
    fn the_thread_moves_what_it_is_asked_for_and_goes_on_without_what_is_gone() {
        let pages = HugePages::start().expect("a thread");
        let (memory, life) = (built(), Arc::new(()));
        pages.request(&built().reservation, Arc::downgrade(&life));
        pages.request(&memory.reservation, Arc::downgrade(&life));
        let end = Instant::now() + Duration::from_secs(60);
        // The thread drops a request that is done.
        while Arc::weak_count(&life) > 0 {
            assert!(Instant::now() < end, "it waits for ever");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(Arc::strong_count(memory.reservation.region()), 1);
    }
}
