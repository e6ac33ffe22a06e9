//! A worker: one thread that forwards the frames of its switches.
//!
//! # Theory of operation
//!
//! A port belongs to one worker, which alone takes its frames. A switch belongs to one worker too,
//! or to all of them: then each has a replica of it, with its own ports and those of the others,
//! and delivers to any of these ([`ring::shared`]). The thread owns its replicas, the numbers of
//! its ports, the scratch memory of a turn and its doorbell. It takes batches from its *active*
//! ports in turn, and polls no other port:
//!
//! ```text
//!             no frame for QUIET_TURNS
//!   active ──────────────────────────► armed      the client rings the doorbell when it
//!          ◄──────────────────────────            publishes; the worker does not look at it
//!             the port's kick
//!   active ──► blocked ──► active                 the port waits for a full port; only while the
//!                                                 worker sleeps: that port's kick wakes it
//! ```
//!
//! A port that waits briefly ([`Full::is_brief`]) stays active: its wait ends by the clock.
//!
//! *Idle ports cost nothing.* The worker arms a port that has had no frame for `QUIET_TURNS` turns.
//! A port whose sleeping client gets a frame becomes active: the client will probably answer, and
//! then need not ring.
//!
//! *Sleep.* A worker without work arms all its ports, looks at each once more (the barrier between
//! the two pairs with the client's fence) and blocks in its doorbell. While there is work it polls
//! the doorbell now and then. [`idle`] decides when it spins, yields and sleeps, [`looks`] when it
//! looks.
//!
//! *Interrupt moderation.* A guest whose interrupts are moderated is interrupted later, and so is a
//! client woken whose user's wake-ups have had their share of the time. The worker remembers such
//! ports, asks the switch after each round whether a wake-up is due, for a bounded number of them,
//! and does not sleep before. So it needs no timer.
//!
//! *Descriptors.* A port with a descriptor of its own, such as a network interface, has nothing to
//! arm: the doorbell watches the descriptor, and a readable one counts as a ring.
//!
//! *Room at another worker's port.* The client of a full port kicks the port's worker, which tells
//! the workers that wait for the room ([`peers`]). No worker tells of an address that has moved, so
//! one with a port that waits looks again after `BLOCKED`.
//!
//! *Control* reaches a worker as a [`Job`], which runs between two turns. It rings the doorbell
//! too.
//!
//! *Hostile clients.* Each client has a kick of its own ([`Doorbell`]), and the worker's only
//! system call about it is to wait in its own epoll set. A flood of kicks costs one look at that
//! port for each look at the doorbell, and takes no kick of another client away.
//!
//! *Fair rounds.* A turn takes one batch of a port. The ports of one user together get a bounded
//! share of a round (`shares`). Jobs run between two rounds, so they do not wait long either.

mod changes;
pub mod handle;
pub mod health;
pub mod idle;
mod kicks;
pub mod looks;
pub mod peers;
mod shares;
mod sys;
pub mod turn_times;
mod watch;

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use packet::PortId;
use port::sys::Doorbell;
use ring::doorbell::store_load_fence;
use rustix::thread::sched_yield;
use switch::{Full, Now, Plug, Scratch, Stage, Switch};

use crate::engine::notices::NoticeSender;
use crate::engine::reclaimer::Reclaimer;
use crate::engine::watchdog::Alarm;
use idle::{Idle, IdleStrategy, Next};
use kicks::Kicks;
use looks::Looks;
use peers::Peers;
use shares::{SHARE, Shares};
use turn_times::TurnTimes;

/// Turns without a frame after which a port is armed while others have work.
const QUIET_TURNS: u32 = 1024;
/// Quiet turns of a port with a watched descriptor, of which each turn is a system call.
const QUIET_TURNS_WATCHED: u32 = 16;
/// Turns with frames in a row after which the doorbell stops watching a socket until it is quiet: a
/// worker that needs no wake-up saves more than the two system calls cost.
const BUSY_TURNS: u32 = 16;
/// Most owed wake-ups that a worker asks for after a round. One user can have thousands.
const OWED_WAKES: usize = 256;

/// How long a worker sleeps beside others while a port of its own waits for a full one.
const BLOCKED: Duration = Duration::from_millis(20);

/// Something for a worker to do between two turns.
pub type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// The state of a worker thread.
pub struct Worker {
    /// The worker's place among its peers.
    number: u32,
    peers: Peers,
    switches: Vec<Option<Switch>>,
    /// Ports by their numbers at the doorbell.
    ports: Vec<Option<Plugged>>,
    kicks: Kicks,
    /// The number of each port by its switch and its place there.
    numbers: HashMap<(usize, PortId), u32>,
    /// Numbers of the active ports.
    active: Vec<u32>,
    /// Numbers of the ports that are being armed; kept for its memory.
    armed: Vec<u32>,
    /// Ports that wait for room while the worker sleeps, and the rings that are full.
    blocked: Vec<(u32, Full)>,
    /// Ports whose peers are owed a wake-up.
    owing: VecDeque<(usize, PortId)>,
    scratch: Scratch,
    idle: Idle,
    doorbell: Doorbell,
    jobs: Receiver<Job>,
    reclaimer: Reclaimer,
    notices: NoticeSender,
    alarm: Alarm,
    /// Ports that have rung.
    rung: Vec<u32>,
    /// Kicks so far.
    answered: u64,
    started: Instant,
    now: Now,
    /// The millisecond of the last housekeeping.
    ticked_ms: u64,
    looks: Looks,
    /// Whether a client was too slow in these turns.
    crowded: bool,
    /// The work since the last look that `looks` has not counted yet.
    work: u32,
    shares: Shares,
    times: TurnTimes,
    /// Whether the turns of this round are timed.
    timed: bool,
    /// No frame is taken: ports are still to come, or the next daemon takes them.
    waits: bool,
    stopping: bool,
}

/// Where a port is plugged in.
#[derive(Clone, Copy)]
struct Plugged {
    switch: usize,
    id: PortId,
    /// The place of its user in the worker's [`Shares`].
    user: usize,
    active: bool,
    /// The port has a descriptor that the doorbell watches.
    watched: bool,
    /// The doorbell does not watch it now, because frames come all the time.
    unwatched: bool,
    /// Turns with frames, since the last without.
    busy: u32,
    /// Turns without a frame.
    quiet: u32,
    /// The full port and ring for which the next frame waits.
    waits_for: Option<Full>,
    /// The longest timed turn.
    longest: Duration,
}

impl Worker {
    fn new(
        doorbell: Doorbell,
        jobs: Receiver<Job>,
        reclaimer: Reclaimer,
        notices: NoticeSender,
        alarm: Alarm,
        strategy: IdleStrategy,
        scratch: Scratch,
    ) -> Self {
        Self {
            number: 0,
            peers: Peers::default(),
            switches: Vec::new(),
            ports: Vec::new(),
            kicks: Kicks::default(),
            numbers: HashMap::new(),
            active: Vec::new(),
            armed: Vec::new(),
            blocked: Vec::new(),
            owing: VecDeque::with_capacity(64),
            scratch,
            idle: Idle::new(strategy),
            doorbell,
            jobs,
            reclaimer,
            notices,
            alarm,
            rung: Vec::with_capacity(64),
            answered: 0,
            started: Instant::now(),
            now: Now::START,
            ticked_ms: 0,
            looks: Looks::NEW,
            crowded: false,
            work: 0,
            shares: Shares::default(),
            times: TurnTimes::default(),
            timed: false,
            waits: false,
            stopping: false,
        }
    }

    /// The thread's whole life.
    fn run(mut self) {
        loop {
            while self.waits && !self.stopping {
                self.obey();
            }
            if self.stopping {
                break;
            }
            let work = self.turn();
            if !self.owing.is_empty() {
                self.send_due_wakes();
            }
            let crowded = std::mem::take(&mut self.crowded);
            match self.idle.step(work, crowded) {
                Next::Turn => self.look_now_and_then(),
                Next::Pause => {
                    std::hint::spin_loop();
                    self.look_now_and_then();
                }
                // The worker has yielded often enough, but has to look again soon.
                Next::Park if !self.owing.is_empty() => self.look(),
                Next::Yield => {
                    sched_yield();
                    if self.looks.is_due_after_yield() {
                        self.look();
                    }
                }
                Next::Park => self.park(),
            }
        }
        if !self.waits {
            self.drain(Duration::MAX);
        }
    }

    /// Does the next thing that control says.
    fn obey(&mut self) {
        self.scratch.heartbeat().rest(Stage::Asleep);
        let job = self.jobs.recv();
        self.scratch.heartbeat().rest(Stage::Control);
        match job {
            Ok(job) => job(self),
            Err(_) => self.stopping = true,
        }
    }

    /// Delivers what clients have published before the end, for about `limit`; bounded, because
    /// they may publish more.
    fn drain(&mut self, limit: Duration) {
        const TURNS: u32 = 1000;
        let begin = Instant::now();
        self.switches.iter_mut().flatten().for_each(Switch::open_gate);
        self.look_at_all();
        for _ in 0..TURNS {
            if self.turn() == 0 || begin.elapsed() >= limit {
                break;
            }
        }
    }

    /// Every active port gets one turn, unless its user has had its share. Returns the slots taken.
    fn turn(&mut self) -> u32 {
        let (mut work, mut i, mut left_out) = (0, 0, 0);
        self.timed = self.times.begin_round();
        self.shares.begin_round();
        while let Some(&number) = self.active.get(i) {
            let Some(taken) = self.turn_of(number) else {
                // The port comes first in the next round.
                self.active.swap(left_out, i);
                (left_out, i) = (left_out + 1, i + 1);
                continue;
            };
            work += taken;
            // A port that left the active set was replaced by the last one.
            i += usize::from(self.active.get(i) == Some(&number));
        }
        work
    }

    /// Gives a port a turn; returns the slots taken. `None`: its user has had its share.
    #[inline]
    fn turn_of(&mut self, number: u32) -> Option<u32> {
        let Some(port) = &mut self.ports[number as usize] else { return Some(0) };
        if self.shares.is_over(port.user) {
            return None;
        }
        let Some(switch) = &mut self.switches[port.switch] else { return Some(0) };
        let at = port.switch;
        let begin = self.timed.then(Instant::now);
        self.scratch.heartbeat().enter(at);
        let moved = switch.turn(port.id, self.now, &mut self.scratch);
        if let Some(begin) = begin {
            port.longest = port.longest.max(self.times.count(begin, moved.slots));
        }
        self.crowded |= self.scratch.crowded();
        let is_spent = moved.slots > 0 && switch.bridge().has_spent_turn();
        let work = if is_spent { SHARE } else { self.scratch.work() };
        if work > 0 {
            self.work = self.work.saturating_add(work);
            self.shares.charge(port.user, work);
        }
        let has_news = switch.has_news();
        port.waits_for = moved.blocked_on;
        if moved.blocked_on.is_some_and(Full::is_brief) {
            // The wait ends by the clock, which a busy worker seldom reads.
            self.now = time_since(self.started);
        }
        if moved.slots > 0 || moved.blocked_on.is_some() {
            port.quiet = 0;
            port.busy = port.busy.saturating_add(1);
            if port.busy == BUSY_TURNS && port.watched && !port.unwatched {
                self.unwatch(number);
            }
        } else {
            port.quiet += 1;
            port.busy = 0;
            let patience = if port.watched { QUIET_TURNS_WATCHED } else { QUIET_TURNS };
            let (patient, plug) = (port.quiet < patience, switch.plug_mut(port.id));
            if port.watched && plug.is_some_and(|plug| plug.is_over()) {
                self.look_away(number);
            }
            if !patient {
                self.rest(number);
            }
        }
        if has_news {
            self.send_news(at);
        }
        if !self.scratch.woken().is_empty() {
            self.expect_answers(at);
        }
        if !self.scratch.owed_wakes().is_empty() {
            self.note_owing(at);
        }
        Some(moved.slots)
    }

    /// Remembers the ports that the last turn owes a wake-up; the switch names none of them twice.
    #[cold]
    fn note_owing(&mut self, switch: usize) {
        self.owing.extend(self.scratch.owed_wakes().iter().map(|&id| (switch, id)));
    }

    /// Wakes the peers of owing ports, where the wake-up is due: the first ones, and those behind
    /// them after the next rounds.
    #[cold]
    fn send_due_wakes(&mut self) {
        for _ in 0..self.owing.len().min(OWED_WAKES) {
            let Some((switch, id)) = self.owing.pop_front() else { break };
            self.scratch.heartbeat().enter(switch);
            let place = self.switches.get_mut(switch).and_then(Option::as_mut);
            if place.is_some_and(|switch| switch.wake_if_due(id, self.scratch.heartbeat())) {
                self.owing.push_back((switch, id));
            }
        }
    }

    /// Makes the ports active whose clients the last turn woke.
    #[cold]
    fn expect_answers(&mut self, switch: usize) {
        for i in 0..self.scratch.woken().len() {
            let place = (switch, self.scratch.woken()[i]);
            if let Some(&number) = self.numbers.get(&place) {
                self.activate(number);
            }
        }
    }

    /// Arms one port while others have work.
    #[cold]
    fn rest(&mut self, number: u32) {
        let light = self.arm(number);
        self.barrier(light);
        if self.pending(number) {
            self.activate(number);
        }
    }

    /// The half of the handshake that follows arming: after it, a look at the port finds every
    /// frame that its client published without ringing.
    fn barrier(&self, light: bool) {
        store_load_fence();
        if light {
            sys::membarrier();
        }
    }

    /// Arms a port; returns whether its client publishes without fences. That flag is read after a
    /// fence of its own, see [`ring::doorbell`].
    fn arm(&mut self, number: u32) -> bool {
        self.deactivate(number);
        self.rewatch(number);
        let Some(plug) = self.plug_of(number) else { return false };
        plug.arm();
        store_load_fence();
        plug.is_light()
    }

    /// The plug of a port, to look at its memory, which the watchdog is told.
    fn plug_of(&mut self, number: u32) -> Option<&mut Plug> {
        let port = self.ports.get(number as usize)?.as_ref()?;
        self.scratch.heartbeat().enter(port.switch);
        self.scratch.heartbeat().beat(Stage::Forward, port.id);
        self.switches[port.switch].as_mut()?.plug_mut(port.id)
    }

    /// The switch with a port that is, or was, full, to look at that port's memory, which the
    /// watchdog is told.
    fn switch_with(&mut self, switch: usize, full: Full) -> &mut Switch {
        self.scratch.heartbeat().enter(switch);
        self.scratch.heartbeat().beat(Stage::Forward, full.port());
        self.switch(switch)
    }

    fn pending(&mut self, number: u32) -> bool {
        self.plug_of(number).is_some_and(Plug::pending)
    }

    fn deactivate(&mut self, number: u32) {
        if let Some(port) = self.ports.get_mut(number as usize).and_then(Option::as_mut)
            && std::mem::take(&mut port.active)
            && let Some(at) = self.active.iter().position(|&other| other == number)
        {
            self.active.swap_remove(at);
        }
    }

    /// Makes a port active, if it is there.
    fn activate(&mut self, number: u32) {
        let Some(Some(port)) = self.ports.get_mut(number as usize) else { return };
        port.quiet = 0;
        if std::mem::replace(&mut port.active, true) {
            return;
        }
        let switch = port.switch;
        self.active.push(number);
        let waits_for = self.blocked.iter().find(|(waiting, _)| *waiting == number);
        if let Some(full) = waits_for.map(|(_, full)| full.port()) {
            self.unblock_ring(switch, full);
        }
        if let Some(plug) = self.plug_of(number) {
            plug.disarm();
        }
    }

    /// Gives up the core until a client or control rings.
    fn park(&mut self) {
        let mut armed = std::mem::take(&mut self.armed);
        armed.clone_from(&self.active);
        let light = armed.iter().fold(false, |light, &number| self.arm(number) | light);
        let light = armed.iter().fold(light, |light, &number| self.want_room(number) | light);
        self.barrier(light);
        for &number in &armed {
            if !self.sleeps(number) {
                self.activate(number);
            }
        }
        self.armed = armed;
        if self.active.is_empty() {
            self.scratch.heartbeat().rest(Stage::Asleep);
            self.looks.rest();
            self.sleep();
            self.answer();
        } else {
            // The pending frames may wait for functions, and the functions for this worker: it
            // polls the doorbell and the clock, also where it never yields otherwise.
            sched_yield();
            self.looks.rest();
            self.look();
        }
    }

    /// Sleeps until the doorbell rings, a switch has a query to send, or another worker has learned
    /// that a station has moved for which a port of this one waits.
    fn sleep(&mut self) {
        let is_spread = self.waiting().any(|(switch, _)| switch.bridge().config().is_spread);
        let query = self.switches.iter().flatten().filter_map(Switch::next_query).min();
        let started = self.started;
        let left = || query.map(|at| Duration::from_micros(at.us_since(time_since(started))));
        let limit = || is_spread.then_some(BLOCKED).into_iter().chain(left()).min();
        while !self.doorbell.wait(&mut self.rung, limit())
            && left().is_none_or(|left| left > Duration::ZERO)
            && !self.waiting().any(|(switch, id)| switch.may_go_elsewhere(id))
        {}
    }

    /// The ports that wait for full ones, and their switches.
    fn waiting(&self) -> impl Iterator<Item = (&Switch, PortId)> {
        self.blocked.iter().filter_map(|&(number, _)| {
            let port = self.ports[number as usize]?;
            Some((self.switches[port.switch].as_ref()?, port.id))
        })
    }

    /// Asks for a kick from the full port that a port waits for, if it waits. Returns whether that
    /// port's client publishes without fences.
    fn want_room(&mut self, number: u32) -> bool {
        let Some(port) = self.ports[number as usize] else { return false };
        let full = port.waits_for.filter(|full| !full.is_brief());
        let worker = self.number;
        full.is_some_and(|full| self.switch_with(port.switch, full).want_room(full, worker))
    }

    /// Takes the request for a kick back.
    fn found_room(&mut self, switch: usize, full: Full) {
        let worker = self.number;
        self.switch_with(switch, full).found_room(full, worker);
    }

    /// Whether an armed port may be left alone: it has no frame, or its frame waits for a full
    /// port, which now owes a kick.
    fn sleeps(&mut self, number: u32) -> bool {
        let Some(port) = self.ports[number as usize] else { return true };
        let Some(full) = port.waits_for else { return !self.pending(number) };
        if full.is_brief() {
            return false;
        }
        if self.switch_with(port.switch, full).is_full(full) {
            self.blocked.push((number, full));
            return true;
        }
        // The request is taken back, also for other ports that wait for the same ring.
        self.unblock_ring(port.switch, full.port());
        self.found_room(port.switch, full);
        false
    }

    #[inline]
    fn look_now_and_then(&mut self) {
        let work = std::mem::take(&mut self.work);
        if self.looks.is_due_after_turn(work) {
            self.look();
        }
    }

    /// Looks at doorbell and clock.
    fn look(&mut self) {
        self.doorbell.poll(&mut self.rung);
        self.answer();
    }

    /// Serves the ports that rang, and what is due by the clock.
    fn answer(&mut self) {
        self.scratch.heartbeat().rest(Stage::Control);
        self.alarm.raise();
        self.now = time_since(self.started);
        let now = self.now;
        self.looks.looked(now);
        self.work = 0;
        let ticked = std::mem::replace(&mut self.ticked_ms, now.as_ms()) != now.as_ms();
        while let Some(number) = self.rung.pop() {
            self.answered += 1;
            self.serve(number);
            if let Some(other) = self.kicks.also(number) {
                self.serve(other);
            }
        }
        self.scratch.heartbeat().rest(Stage::Control);
        self.run_jobs();
        if self.waits {
            return;
        }
        if self.peers.take_room(self.number) {
            self.unblock_all();
        }
        if ticked {
            if self.idle.wants_ticks() {
                self.idle.tick(sys::preemptions());
            }
            self.housekeep(now);
            self.unblock_all();
        }
    }

    fn housekeep(&mut self, now: Now) {
        for at in 0..self.switches.len() {
            let Some(switch) = &mut self.switches[at] else { continue };
            if let Some(flows) = switch.housekeep(now) {
                self.reclaimer.run(move || drop(flows));
            }
            self.send_news(at);
        }
        let is_due = |it: &Switch| it.next_query().is_some_and(|next| next <= now);
        for at in 0..self.switches.len() {
            if self.switches[at].as_ref().is_some_and(is_due) {
                self.send_queries(at, now);
            }
        }
    }

    /// Sends the queries of a switch that are due.
    #[cold]
    fn send_queries(&mut self, at: usize, now: Now) {
        self.scratch.heartbeat().enter(at);
        let Self { switches, scratch, .. } = self;
        let sent = switches[at].as_mut().is_some_and(|switch| switch.send_queries(now, scratch));
        if sent {
            self.expect_answers(at);
            self.note_owing(at);
        }
        self.scratch.heartbeat().rest(Stage::Control);
    }

    /// Reports what a turn or the housekeeping has found.
    #[cold]
    fn send_news(&mut self, at: usize) {
        while let Some(news) = self.switch(at).take_news() {
            self.notices.send(at, news);
        }
    }

    /// A port has rung: for its own frames, or because it has made room.
    pub fn serve(&mut self, number: u32) {
        self.unblock(number);
        self.activate(number);
    }

    /// Treats every port with something pending as if it had rung.
    #[cold]
    fn look_at_all(&mut self) {
        for number in 0..u32::try_from(self.ports.len()).unwrap_or(u32::MAX) {
            self.unblock(number);
            if self.pending(number) {
                self.activate(number);
            }
        }
    }

    /// Ports that wait for room at this port look again, those of other workers too.
    fn unblock(&mut self, number: u32) {
        if let Some(Some(full)) = self.ports.get(number as usize).copied() {
            self.unblock_ring(full.switch, full.id);
            let waiting = self.switch(full.switch).take_waiting(full.id);
            self.peers.tell_of_room(waiting);
        }
    }

    /// All waiting ports look again: their frames may go elsewhere by now.
    fn unblock_all(&mut self) {
        while let Some((number, full)) = self.blocked.pop() {
            let Some(Some(port)) = self.ports.get(number as usize).copied() else { continue };
            self.found_room(port.switch, full);
            self.activate(number);
        }
    }

    fn unblock_ring(&mut self, switch: usize, full: PortId) {
        let mut waiting = std::mem::take(&mut self.blocked);
        let waits_here = |worker: &Self, &(number, ring): &(u32, Full)| {
            let of = worker.ports[number as usize].map(|port| port.switch);
            of == Some(switch) && ring.port() == full
        };
        waiting.retain(|entry| {
            let frees = waits_here(self, entry);
            if frees {
                self.found_room(switch, entry.1);
                self.activate(entry.0);
            }
            !frees
        });
        self.blocked = waiting;
    }

    fn run_jobs(&mut self) {
        while let Ok(job) = self.jobs.try_recv() {
            job(self);
        }
    }
}

/// The time, as the switches count it.
fn time_since(start: Instant) -> Now {
    Now::from_us(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
