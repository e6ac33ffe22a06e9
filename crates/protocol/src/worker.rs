//! Workers: the threads that run switches.

use std::fmt;
use std::str::FromStr;

use packet::ParseError;
use serde::{Deserialize, Serialize};

use crate::name::PortName;

/// Which worker takes the frames of a port, where all workers run its switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PortWorker {
    /// The one with the fewest ports.
    #[default]
    Auto,
    /// The one with this number.
    Number(u32),
}

impl fmt::Display for PortWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Number(number) => number.fmt(f),
        }
    }
}

impl FromStr for PortWorker {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.parse() {
            Ok(number) => Ok(Self::Number(number)),
            Err(_) if text == "auto" => Ok(Self::Auto),
            Err(_) => Err(ParseError::new("auto or the number of a worker", text)),
        }
    }
}

packet::text_form!(PortWorker);

/// A port that is to move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerMove {
    /// The port.
    pub port: PortName,
    /// Number of the worker, from 0 on.
    pub worker: u32,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkerInfo {
    /// Number of the worker, from 0 on.
    pub worker: u32,
    /// The CPU that it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Switches that it runs.
    pub switches: u32,
    /// Ports of these switches.
    pub ports: u32,
    /// Steps of its heartbeat so far, modulo 2²⁰: the number does not change while it sleeps, or
    /// stands still.
    pub steps: u32,
    /// Timed turns by their length: entry `n` counts those of `2ⁿ` ns up to twice that. One round
    /// of turns in 128 is timed.
    pub turns_ns_log2: Vec<u64>,
    /// Nanoseconds of all timed turns together.
    #[serde(default)]
    pub turns_ns: u64,
    /// Timed turns that took frames, by the number of slots: entry `n` counts those of `2ⁿ` slots
    /// up to twice that.
    #[serde(default)]
    pub batches_log2: Vec<u64>,
    /// Slots of all timed turns together.
    #[serde(default)]
    pub batch_slots: u64,
    /// Milliseconds that the worker has run.
    #[serde(default)]
    pub cpu_ms: u64,
    /// Kicks of clients and guests that the worker has answered.
    #[serde(default)]
    pub kicks: u64,
    /// The longest timed turn, or the longest stall in a turn, in nanoseconds.
    pub longest_turn_ns: u64,
    /// The port of that turn, if the caller may see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_turn_port: Option<PortName>,
    /// How often the worker stood still for 50 ms or longer.
    pub stalls: u64,
    /// The last time that it stood still, if it ever did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_stall: Option<StallInfo>,
}

/// A time during which a worker stood still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StallInfo {
    /// Seconds since it was noticed.
    pub ago_s: u64,
    /// Milliseconds that it lasted, as far as the watchdog has seen, which looks every 20 ms: until
    /// it is over, those until it was noticed. With [`StallStage::Memory`], how long the memory
    /// held up the thread that read it.
    pub lasted_ms: u64,
    /// What the worker did.
    pub stage: StallStage,
    /// What held it up.
    pub cause: StallCause,
    /// The port that it was busy with, if the caller may see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<PortName>,
}

/// What a worker did when it stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StallStage {
    /// The worker carried out what control asked for.
    Control,
    /// The worker moved frames from or to the port's rings, or looked at them.
    Forward,
    /// The worker read from the port's socket, interface or guest.
    Receive,
    /// The worker wrote to the port's socket, interface or guest.
    Send,
    /// The worker woke the port's client or guest.
    Wake,
    /// The worker woke the port's client by futex, which any user can make slow.
    WakeByFutex,
    /// The worker waited in [`StallStage::Forward`], and a thread that then read the memory of the
    /// port had to wait for it, too. This is no stall of its own.
    Memory,
}

/// What held a worker up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StallCause {
    /// Other programs held its CPU.
    NoCpu,
    /// The worker ran all the time.
    Busy,
    /// The worker waited inside a system call or for a page of memory.
    Blocked,
}

impl WorkerInfo {
    /// The length in nanoseconds that this share of the timed turns (0 to 1) did not reach or
    /// hardly exceeded: the upper end of a bucket. 0 without timed turns.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let total: u64 = self.turns_ns_log2.iter().sum();
        let mut seen = 0;
        for (bucket, turns) in (1..).zip(&self.turns_ns_log2) {
            seen += turns;
            if *turns > 0 && seen as f64 >= total as f64 * share {
                return 1u64.checked_shl(bucket).unwrap_or(u64::MAX).min(self.longest_turn_ns);
            }
        }
        0
    }
}

impl StallInfo {
    /// When and why the worker stood still.
    #[must_use]
    pub fn describe(&self) -> String {
        let Self { ago_s, lasted_ms, stage, cause, port } = self;
        let unseen = || "a port that is gone, or that you may not see".to_owned();
        let port = port.as_ref().map_or_else(unseen, ToString::to_string);
        let (did, cause) = (stage.describe(&port), cause.describe());
        format!("{ago_s} s ago for {lasted_ms} ms or more, {did}: {cause}")
    }
}

impl StallStage {
    /// What the worker did with a port, for a line of the log.
    #[must_use]
    pub fn describe(self, port: &str) -> String {
        let did = match self {
            Self::Control => return "carrying out changes".to_owned(),
            Self::Forward => "forwarding frames of",
            Self::Receive => "receiving from",
            Self::Send => "sending to",
            Self::Wake => "waking the client of",
            Self::WakeByFutex => return format!("waking the client of {port} by futex"),
            Self::Memory => "reading the memory of",
        };
        format!("{did} {port}")
    }
}

impl StallCause {
    /// What held it up, for a line of the log.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::NoCpu => "other programs held its CPU",
            Self::Busy => "it ran all the time",
            Self::Blocked => "blocked in the kernel",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(turns_ns_log2: Vec<u64>, longest_turn_ns: u64) -> WorkerInfo {
        WorkerInfo {
            worker: 0,
            cpu: None,
            switches: 0,
            ports: 0,
            steps: 0,
            turns_ns_log2,
            turns_ns: 0,
            batches_log2: Vec::new(),
            batch_slots: 0,
            cpu_ms: 0,
            kicks: 0,
            longest_turn_ns,
            longest_turn_port: None,
            stalls: 0,
            last_stall: None,
        }
    }

    #[test]
    fn quantiles_are_ends_of_buckets_and_no_longer_than_the_longest() {
        assert_eq!(worker(vec![0; 32], 0).quantile_ns(0.5), 0);
        let mut turns = vec![0; 32];
        (turns[9], turns[20]) = (99, 1);
        let worker = worker(turns, 1_100_000);
        assert_eq!([0.0, 0.5, 0.99].map(|share| worker.quantile_ns(share)), [1024; 3]);
        assert_eq!(worker.quantile_ns(1.0), 1_100_000);
    }
}
