//! Workers: how they do, and what becomes of a port that holds one up.
//!
//! The watchdog reports each worker that stands still for 50 ms, and how long it stood when that is
//! over. Every stall is counted, and logged within limits: as a line of the user of the port that
//! is to blame, or, without such a port, as one of a number for all users. The longest one in a
//! turn is kept: few turns are timed, and most stalls are in one that is not.
//!
//! A port is to blame if the worker was in a system call for it alone: it received from the port,
//! sent to it or woke its peer, and was not merely short of a core. While the worker copies between
//! two ports, either of them may be the cause, so neither is to blame for that alone. But another
//! thread reads the memory of both, and reports the one whose memory holds it up, too: that port is
//! to blame.
//!
//! The stalls of an ordinary user are counted together, whichever of its ports is to blame, for it
//! can have many ports, and attach again and again; those of root's ports are counted for each. At
//! the third within a minute, the port is taken from its client, or from its VMM: it admits none
//! for a minute. The client's user, or the owner of the VMM's port, may attach no port for a
//! minute. If another one of its ports stalls the switch meanwhile, it loses all of them.
//!
//! A worker reports slow calls for a peer itself: they are stalls of some milliseconds.
//!
//! `moves` has an operator move ports between workers.

pub(super) mod moves;
mod strikes;

use std::time::{Duration, Instant};

use port::log_budget::Budget;
use protocol::name::PortName;
use protocol::users::user_name;
use protocol::{PageFrom, Reply, StallCause, StallInfo, StallStage, WorkerInfo};
use std::os::fd::BorrowedFd;
use switch::Heartbeat;

use super::{Control, page};
use crate::control::datapath::Datapath;
use crate::control::datapath::workers::{WorkerHealth, WorkerStall};
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::Refusal;
use crate::model::keys::PortKey;
use crate::model::policy::{Access, Caller, is_privileged};
use crate::model::replies::count;
use strikes::{Answerable, Departed, Excluded, STRIKES, Strikes, WINDOW};

/// Why a port is taken away.
const STALLS: &str = "stalls the switch (3 times within a minute)";
const _: () = assert!(STRIKES == 3, "as the text says");

/// What control remembers of stalls.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// By worker.
    workers: Vec<WorkerStalls>,
    strikes: Strikes,
    excluded: Excluded,
    departed: Departed,
    /// Log lines about stalls for which no port is to blame.
    lines: Budget,
}

/// The stalls of one worker.
#[derive(Clone, Copy, Debug, Default)]
struct WorkerStalls {
    count: u64,
    /// The last one, and when it was noticed.
    last: Option<(Instant, WorkerStall)>,
    /// The length of the longest one in a turn, and its port.
    longest: (Duration, Option<PortKey>),
}

impl WorkerStalls {
    fn count(&mut self, stall: &WorkerStall, now: Instant) {
        // The stall after which memory was read has been counted.
        self.count += u64::from(stall.stage != StallStage::Memory);
        self.last = Some((now, *stall));
        self.keep_longest(stall);
    }

    /// A stall that was counted is over.
    fn end(&mut self, stall: &WorkerStall) {
        if let Some((_, last)) = &mut self.last
            && (last.stage, last.cause) == (stall.stage, stall.cause)
        {
            last.lasted = last.lasted.max(stall.lasted);
        }
        self.keep_longest(stall);
    }

    fn keep_longest(&mut self, stall: &WorkerStall) {
        let is_in_turn = !matches!(stall.stage, StallStage::Control | StallStage::Memory);
        if is_in_turn && stall.lasted > self.longest.0 {
            self.longest = (stall.lasted, stall.port);
        }
    }

    /// The longest turn of the worker, whether it was timed or a stall, and its port.
    fn longest_turn(&self, health: &WorkerHealth) -> (Duration, Option<PortKey>) {
        let timed = (health.longest_turn, health.longest_port);
        if self.longest.0 > timed.0 { self.longest } else { timed }
    }
}

impl Stalls {
    fn of(&self, worker: usize) -> WorkerStalls {
        self.workers.get(worker).copied().unwrap_or_default()
    }

    /// The stalls of the worker that a stall is of; `None`: it is the control thread's.
    fn of_worker(&mut self, stall: &WorkerStall) -> Option<&mut WorkerStalls> {
        let worker = usize::try_from(stall.worker?).ok()?;
        if self.workers.len() <= worker {
            self.workers.resize(worker + 1, WorkerStalls::default());
        }
        self.workers.get_mut(worker)
    }

    /// Notes that the port of a user is gone.
    pub(super) fn note_departed(&mut self, port: PortKey, uid: u32, now: Instant) {
        self.departed.note(port, uid, now);
    }

    /// Counts a stall for what answers for its port; reports whether it is one too many.
    fn count(&mut self, stall: &WorkerStall, who: Option<Answerable>, now: Instant) -> bool {
        if let Some(worker) = self.of_worker(stall) {
            worker.count(stall, now);
        }
        let Some(who) = who.filter(|_| blames(stall)) else { return false };
        if let Answerable::User(uid) = who
            && self.excluded.left(uid, now).is_some()
        {
            return true;
        }
        if stall.stage == StallStage::Memory {
            self.strikes.stop_clock(who, stall.lasted);
        }
        self.strikes.count(who, now)
    }

    /// Notes how long a stall lasted that was counted.
    fn end(&mut self, stall: &WorkerStall) {
        if let Some(worker) = self.of_worker(stall) {
            worker.end(stall);
        }
    }
}

/// Whether the port alone held the worker up.
fn blames(stall: &WorkerStall) -> bool {
    let alone = match stall.stage {
        StallStage::Control | StallStage::Forward | StallStage::WakeByFutex => false,
        StallStage::Receive | StallStage::Send | StallStage::Wake | StallStage::Memory => true,
    };
    alone && stall.cause != StallCause::NoCpu
}

impl<D: Datapath> Control<D> {
    /// Readable when a worker has stood still.
    pub fn stall_bell(&self) -> Option<BorrowedFd<'_>> {
        self.datapath.stall_bell()
    }

    /// The control thread's heartbeat, for the loop that runs it.
    pub fn take_heartbeat(&mut self) -> Option<Heartbeat> {
        self.datapath.control_heartbeat()
    }

    /// Logs and counts what the watchdog has seen.
    pub fn poll_stalls(&mut self) {
        let now = Instant::now();
        for stall in self.datapath.take_stalls() {
            if stall.is_over {
                self.notes.stalls.end(&stall);
                continue;
            }
            if self.logs_stall(&stall, now) {
                log(&stall, &self.port_name(&stall));
            }
            let who = stall.port.map(|key| self.answerable(key));
            if self.notes.stalls.count(&stall, who, now)
                && let (Some(key), Some(who)) = (stall.port, who)
            {
                self.end_stalls(key, who, now);
            }
        }
    }

    /// What answers for the stalls of a port or a capture, which may be gone.
    fn answerable(&self, key: PortKey) -> Answerable {
        match self.user_behind(key).filter(|uid| !is_privileged(*uid)) {
            Some(uid) => Answerable::User(uid),
            None => Answerable::Port(key),
        }
    }

    /// The user of a port's peer, or of a capture, which may be gone.
    fn user_behind(&self, key: PortKey) -> Option<u32> {
        match (self.state.port_with(key), self.state.unswitched_with(key)) {
            (Some((_, port)), _) => port.peer_user(),
            (None, Some(capture)) => Some(capture.shared.uid),
            (None, None) => self.notes.stalls.departed.user(key),
        }
    }

    /// Takes away what has stalled its switch once too often.
    fn end_stalls(&mut self, key: PortKey, who: Answerable, now: Instant) {
        let again = match who {
            Answerable::User(uid) => self.notes.stalls.excluded.left(uid, now).map(|_| uid),
            Answerable::Port(_) => None,
        };
        match (self.port_of(key), again) {
            // The VMM of the port is being disconnected.
            (Some(_), Some(uid)) if self.notes.stalls.excluded.is_for(uid, key) => {}
            (Some(_), Some(uid)) => self.evict_all(uid, key, now),
            (Some(port), None) => self.evict(&port, now),
            (None, _) if self.state.unswitched_with(key).is_some() => {
                self.evict_capture(key, now);
            }
            // The port is gone, or control took it away while it stalled the switch once more.
            (None, _) => {
                if let (Answerable::User(uid), None) = (who, again) {
                    self.notes.stalls.excluded.add(uid, key, now);
                }
            }
        }
    }

    /// Whether a line about a stall is to be logged `now`, for the user of the port or capture that
    /// is to blame. Logs how many were not.
    fn logs_stall(&mut self, stall: &WorkerStall, now: Instant) -> bool {
        let blamed = stall.port.filter(|_| blames(stall));
        match blamed.and_then(|key| self.user_behind(key)) {
            Some(uid) => self.call_log.logs_change(uid, now),
            None => {
                let decision = self.notes.stalls.lines.decide(now);
                decision.allows("of stalls", |text| tracing::warn!("{text}"))
            }
        }
    }

    /// The name of the port that the worker was busy with.
    fn port_name(&self, stall: &WorkerStall) -> String {
        let capture = |key| self.state.unswitched_with(key).map(|capture| &capture.name);
        let name = stall.port.and_then(|key| self.port_of(key).or_else(|| capture(key).cloned()));
        name.map_or_else(|| "a port that is gone".to_owned(), |name| name.to_string())
    }

    /// Ends a monitor or a capture that stalls its switch.
    fn evict_capture(&mut self, key: PortKey, now: Instant) {
        let Some(capture) = self.state.unswitched_with(key) else { return };
        let (uid, name) = (capture.shared.uid, &capture.name);
        let what = match capture.captures_drops() {
            true => format!("the drops of {}", name.switch()),
            false => name.to_string(),
        };
        self.notes.stalls.excluded.add(uid, key, now);
        tracing::warn!("the capture of {what} by {} ended: it {STALLS}", user_name(uid));
        self.datapath.end_capture(key);
    }

    fn port_of(&self, key: PortKey) -> Option<PortName> {
        self.state.port_with(key).map(|(name, _)| name.clone())
    }

    /// Takes a port that stalls its switch from its client or its VMM.
    fn evict(&mut self, name: &PortName, now: Instant) {
        let Some(port) = self.state.find_port(name) else { return };
        let Some(uid) = port.peer_user() else {
            let user = port.config.user;
            if self.call_log.logs_change(user, now) {
                tracing::warn!(
                    "{name} stalled its switch {STRIKES} times within a minute; no client holds \
                     it, so it stays: look at the interface, or delete the port"
                );
            }
            return;
        };
        self.notes.stalls.excluded.add(uid, port.key, now);
        let peer = port.kind.peer_word();
        match port.holding_user() {
            Some(_) => tracing::warn!("{name}: detached: {STALLS}"),
            None => tracing::warn!(
                "{name}: disconnected its {peer}: {STALLS}; it admits none for a minute"
            ),
        }
        self.take_away(name);
    }

    /// Takes all ports from the clients and VMMs of a user that goes on stalling its switch.
    fn evict_all(&mut self, uid: u32, key: PortKey, now: Instant) {
        let its = self.state.ports().filter(|(_, port)| port.peer_user() == Some(uid));
        let names: Vec<_> = its.map(|(name, _)| name.clone()).collect();
        self.notes.stalls.excluded.add(uid, key, now);
        tracing::warn!(
            "{}: all {} ports taken away: one of them stalled the switch again within a minute",
            user_name(uid),
            names.len()
        );
        names.iter().for_each(|name| self.take_away(name));
    }

    /// Takes a port from its client, or disconnects its VMM.
    fn take_away(&mut self, name: &PortName) {
        // The end of a pipe may have gone with the other one.
        let Some(port) = self.state.find_port(name) else { return };
        if port.holding_user().is_some() {
            let gone = self.state.release(name);
            self.account_gone(name, &gone);
            return;
        }
        let (key, peer) = (port.key, port.kind.peer_word());
        let why = format!("it {STALLS}; for a minute after that, the port admits no {peer}");
        self.datapath.evict_machine(key, WINDOW, why);
    }

    /// Refuses a user whose port has stalled its switch a moment ago.
    pub(super) fn check_stalls(&self, caller: &Caller) -> Result<(), Refusal> {
        let left = self.notes.stalls.excluded.left(caller.uid, Instant::now());
        match left.filter(|_| !caller.privileged) {
            None => Ok(()),
            Some(left) => {
                Err(PortRefusal::Stalled { uid: caller.uid, left_s: left.as_secs() + 1 }.into())
            }
        }
    }

    pub(super) fn worker_list(
        &mut self,
        caller: &Caller,
        from: &PageFrom,
    ) -> Result<Reply, Refusal> {
        let first = match from.from.as_deref() {
            None => 0,
            Some(text) => text.parse().map_err(|_| {
                Refusal::bad_value(format!("from: {text:?} is not the number of a worker"))
            })?,
        };
        let now = Instant::now();
        let workers = self.datapath.worker_health();
        let rows = workers.into_iter().enumerate().skip(first);
        let rows =
            rows.map(|(at, health)| (at.to_string(), self.worker_info(caller, at, health, now)));
        Ok(Reply::Workers(page(rows)))
    }

    fn worker_info(
        &self,
        caller: &Caller,
        at: usize,
        health: WorkerHealth,
        now: Instant,
    ) -> WorkerInfo {
        let visible = |key: Option<PortKey>| {
            let name = self.port_of(key?)?;
            self.state.port(caller, &name, Access::Look).is_ok().then_some(name)
        };
        let stalls = self.notes.stalls.of(at);
        let (longest_turn, longest_port) = stalls.longest_turn(&health);
        WorkerInfo {
            worker: count(at),
            cpu: health.cpu,
            switches: health.switches,
            ports: health.ports,
            steps: health.steps,
            turns_ns_log2: health.turns_ns_log2,
            turns_ns: u64::try_from(health.turns.as_nanos()).unwrap_or(u64::MAX),
            batches_log2: health.batches_log2,
            batch_slots: health.batch_slots,
            cpu_ms: u64::try_from(health.cpu_time.as_millis()).unwrap_or(u64::MAX),
            kicks: health.kicks,
            longest_turn_ns: u64::try_from(longest_turn.as_nanos()).unwrap_or(u64::MAX),
            longest_turn_port: visible(longest_port),
            stalls: stalls.count,
            last_stall: stalls.last.map(|(at, stall)| StallInfo {
                ago_s: now.duration_since(at).as_secs(),
                lasted_ms: u64::try_from(stall.lasted.as_millis()).unwrap_or(u64::MAX),
                stage: stall.stage,
                cause: stall.cause,
                port: visible(stall.port),
            }),
        }
    }
}

/// `port`: the name of the port that the worker was busy with.
fn log(stall: &WorkerStall, port: &str) {
    let WorkerStall { stage, cause, lasted, .. } = stall;
    let (ms, did, cause) = (lasted.as_millis(), stage.describe(port), cause.describe());
    if *stage == StallStage::Memory {
        tracing::warn!("the memory of {port} held a thread up for {ms} ms: {cause}");
        return;
    }
    let thread = match stall.worker {
        Some(worker) => format!("worker {worker}"),
        None => "the control thread".to_owned(),
    };
    tracing::warn!("{thread} stood still for {ms} ms, {did}: {cause}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Option<Answerable> = Some(Answerable::Port(PortKey(7)));

    fn stall(stage: StallStage, cause: StallCause) -> WorkerStall {
        let lasted = Duration::from_millis(60);
        let (worker, port) = (Some(1), Some(PortKey(7)));
        WorkerStall { worker, port, stage, cause, lasted, is_over: false }
    }

    /// Whether the third of three such stalls costs the port its place.
    fn costs(stage: StallStage, cause: StallCause) -> bool {
        let now = Instant::now();
        let mut stalls = Stalls::default();
        let found = [0, 1, 2].map(|_| stalls.count(&stall(stage, cause), WHO, now));
        assert_eq!(found[..2], [false; 2]);
        assert_eq!(stalls.of(1).count, 3);
        assert_eq!(stalls.of(0).count, 0);
        found[2]
    }

    #[test]
    fn a_port_that_alone_holds_its_worker_up_three_times_goes() {
        for stage in [StallStage::Receive, StallStage::Send, StallStage::Wake] {
            assert!(costs(stage, StallCause::Blocked) && costs(stage, StallCause::Busy));
        }
    }

    #[test]
    fn a_port_whose_memory_is_slow_goes_and_no_stall_counts_twice() {
        let now = Instant::now();
        let mut stalls = Stalls::default();
        let both = [StallStage::Forward, StallStage::Memory];
        let both = both.map(|stage| stall(stage, StallCause::Blocked));
        let found = [0, 1, 2].map(|_| both.map(|stall| stalls.count(&stall, WHO, now)));
        assert_eq!(found, [[false, false], [false, false], [false, true]]);
        let WorkerStalls { count, last, .. } = stalls.of(1);
        assert_eq!((count, last.map(|(_, stall)| stall.stage)), (3, Some(StallStage::Memory)));
    }

    #[test]
    fn a_port_is_not_to_blame_for_what_others_may_have_done() {
        for stage in [StallStage::Receive, StallStage::Send, StallStage::Wake] {
            assert!(!costs(stage, StallCause::NoCpu));
        }
        for stage in [StallStage::Forward, StallStage::Control] {
            assert!(!costs(stage, StallCause::Blocked));
        }
        assert!(!costs(StallStage::WakeByFutex, StallCause::Busy));
    }
}
