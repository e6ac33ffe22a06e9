//! How a worker does, for listings.

use std::time::Duration;

use packet::PortId;

use super::Worker;
use super::turn_times::TurnTimes;
use crate::cpu_time::thread_time;

/// How a worker does, for listings.
#[derive(Clone, Debug)]
pub struct Health {
    /// Steps so far, modulo 2³².
    pub steps: u32,
    /// The times of its turns.
    pub times: TurnTimes,
    /// The longest timed turn of each port, by the switch's place and the port's.
    pub longest: Vec<(usize, PortId, Duration)>,
    /// How long the worker has run.
    pub cpu_time: Duration,
    /// Kicks that the worker has answered.
    pub kicks: u64,
}

impl Worker {
    /// The times of its turns, its steps so far, and the longest timed turn of each port.
    pub fn health(&mut self) -> Health {
        let longest = self.ports.iter().flatten().map(|port| (port.switch, port.id, port.longest));
        Health {
            steps: self.scratch.heartbeat().steps(),
            times: self.times.clone(),
            longest: longest.filter(|(.., longest)| !longest.is_zero()).collect(),
            cpu_time: thread_time(),
            kicks: self.answered,
        }
    }

    /// The longest timed turn of a port since it came here. Ports of other workers have none.
    pub fn longest_turn(&self, switch: usize, id: PortId) -> Duration {
        let number = self.numbers.get(&(switch, id));
        let port = number.and_then(|&number| self.ports[number as usize].as_ref());
        port.map_or(Duration::ZERO, |port| port.longest)
    }
}
