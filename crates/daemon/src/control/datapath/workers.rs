//! How the workers do.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use protocol::{StallCause, StallStage};
use switch::Heartbeat;

use crate::model::keys::PortKey;

/// How a worker does.
#[derive(Clone, Debug, Default)]
pub struct WorkerHealth {
    /// The CPU that it is bound to.
    pub cpu: Option<u32>,
    /// Switches that it runs.
    pub switches: u32,
    /// Ports of these switches.
    pub ports: u32,
    /// Steps of its heartbeat so far, modulo 2³².
    pub steps: u32,
    /// Timed turns by their length: entry `n` counts those of `2ⁿ` ns up to twice that.
    pub turns_ns_log2: Vec<u64>,
    /// All timed turns together.
    pub turns: Duration,
    /// Timed turns that took frames by their slots, likewise.
    pub batches_log2: Vec<u64>,
    /// Slots of all timed turns.
    pub batch_slots: u64,
    /// How long the worker has run.
    pub cpu_time: Duration,
    /// Kicks that the worker has answered.
    pub kicks: u64,
    /// The longest timed turn.
    pub longest_turn: Duration,
    /// The port with the longest timed turn of those that are still there.
    pub longest_port: Option<PortKey>,
}

/// A stall of a worker, or of the control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStall {
    /// Number of the worker; `None`: the control thread.
    pub worker: Option<u32>,
    /// The port that it is busy with.
    pub port: Option<PortKey>,
    /// What it does.
    pub stage: StallStage,
    /// What holds it up.
    pub cause: StallCause,
    /// How long it has stood still so far. With [`StallStage::Memory`], how long the memory of the
    /// port held up another thread after that.
    pub lasted: Duration,
    /// The stall was reported before, and is over: it lasted at least until the last look.
    pub is_over: bool,
}

/// The workers' health, and the watchdog.
pub trait WorkerWatch {
    /// The control thread's heartbeat, for the control thread to write. `None`: it has it already,
    /// or nothing watches.
    fn control_heartbeat(&mut self) -> Option<Heartbeat> {
        None
    }

    /// Readable when a worker has stood still: then call [`WorkerWatch::take_stalls`].
    fn stall_bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// What was seen of stalls since the last call.
    fn take_stalls(&mut self) -> Vec<WorkerStall> {
        Vec::new()
    }

    /// How each worker does, in the order of their numbers.
    fn worker_health(&mut self) -> Vec<WorkerHealth>;
}

#[cfg(test)]
mod fake {
    use super::{WorkerHealth, WorkerStall, WorkerWatch};
    use crate::control::fake::Fake;

    impl WorkerWatch for Fake {
        fn take_stalls(&mut self) -> Vec<WorkerStall> {
            std::mem::take(&mut self.stalls)
        }

        fn worker_health(&mut self) -> Vec<WorkerHealth> {
            vec![WorkerHealth::default()]
        }
    }
}
