//! How the workers do: their turns, and what the watchdog has seen.

use std::os::fd::BorrowedFd;

use packet::PortId;
use protocol::{StallCause, StallStage};
use switch::{Heartbeat, Stage};

use super::watchdog::judge::{Cause, Stall};
use super::worker::Worker;
use super::worker::health::Health;
use super::{Crew, SwitchPlace, Workers};
use crate::control::datapath::workers::{WorkerHealth, WorkerStall, WorkerWatch};
use crate::model::keys::PortKey;
use crate::model::replies::count;

impl WorkerWatch for Workers {
    fn control_heartbeat(&mut self) -> Option<Heartbeat> {
        self.heartbeat.take()
    }

    fn stall_bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watchdog.bell())
    }

    fn take_stalls(&mut self) -> Vec<WorkerStall> {
        let seen = self.watchdog.take();
        let stalls = seen.into_iter().map(|(number, stall)| self.named(number, &stall));
        stalls.chain(self.slow_reports.take()).collect()
    }

    fn worker_health(&mut self) -> Vec<WorkerHealth> {
        let all = self.workers.iter().enumerate();
        all.map(|(number, crew)| self.health_of(number, crew)).collect()
    }
}

impl Workers {
    fn health_of(&self, number: usize, crew: &Crew) -> WorkerHealth {
        let Health { steps, times, longest, cpu_time, kicks } = crew.handle.call(Worker::health);
        let longest_port = longest.iter().max_by_key(|(.., took)| *took);
        WorkerHealth {
            cpu: crew.handle.cpu(),
            switches: count(self.switches_at(number)),
            ports: count(crew.ports.taken()),
            steps,
            turns_ns_log2: times.buckets().to_vec(),
            turns: times.total(),
            batches_log2: times.batches().to_vec(),
            batch_slots: times.slots(),
            cpu_time,
            kicks,
            longest_turn: times.longest(),
            longest_port: longest_port.and_then(|&(at, id, _)| self.key_at(at, id)),
        }
    }

    fn named(&self, number: usize, stall: &Stall) -> WorkerStall {
        let Stall { beat, lasted, cause, is_over } = *stall;
        WorkerStall {
            worker: (number < self.workers.len()).then(|| count(number)),
            port: beat.port.and_then(|id| self.key_at(beat.switch, id)),
            stage: stage(beat.stage),
            cause: match cause {
                Cause::NoCpu => StallCause::NoCpu,
                Cause::Busy => StallCause::Busy,
                Cause::Blocked => StallCause::Blocked,
            },
            lasted,
            is_over,
        }
    }

    /// The port with this number in the switch at a place of the workers.
    fn key_at(&self, at: usize, id: PortId) -> Option<PortKey> {
        let here = |place: &&SwitchPlace| place.at == at;
        self.switches.values().find(here)?.keys.get(&id).copied()
    }
}

fn stage(stage: Stage) -> StallStage {
    match stage {
        Stage::Asleep | Stage::Control => StallStage::Control,
        Stage::Forward => StallStage::Forward,
        Stage::Receive => StallStage::Receive,
        Stage::Send => StallStage::Send,
        Stage::Wake => StallStage::Wake,
        Stage::WakeByFutex => StallStage::WakeByFutex,
    }
}
