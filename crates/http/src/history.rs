//! The last hour: what ports sent, got and dropped, in steps.
//!
//! ```text
//!   counters, every 10 s ──► differences ──► of each port its last 360
//! ```
//!
//! One task writes ([`counters::keep`](crate::counters::keep)); callers read. At most
//! [`PORTS_MAX`] ports have a history, the first that there are; that of a port goes with the port.
//! While no daemon answers, the steps are unknown. A counter that is smaller than before has begun
//! anew.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::name::PortName;
use protocol::{PortStats, StatsPage};
use serde::Serialize;
use utoipa::ToSchema;

/// Seconds of a step.
pub const STEP_S: u64 = 10;
/// Steps of an hour.
const STEPS: usize = 360;
/// Ports that have a history: of 48 bytes for each step, 18 MB.
const PORTS_MAX: usize = 1024;

/// Everything that is kept.
#[derive(Debug, Default)]
pub struct History(Mutex<HashMap<PortName, Kept>>);

/// Counters of a port, and their steps.
#[derive(Debug)]
struct Kept {
    /// `None`: the daemon did not answer last time, and has perhaps not since longer than a step.
    last: Option<Step>,
    /// Oldest first. `None`: unknown.
    steps: VecDeque<Option<Step>>,
}

/// What a port did in one step. `tx` is what its client sends, `rx` what it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
struct Step {
    /// Frames from the client.
    tx_frames: u64,
    /// Bytes of these frames.
    tx_bytes: u64,
    /// Frames to the client.
    rx_frames: u64,
    /// Bytes of these frames.
    rx_bytes: u64,
    /// Frames that were dropped, for all reasons.
    dropped: u64,
}

/// The last hour of a port.
#[derive(Debug, Serialize, ToSchema)]
pub struct PortHistory {
    /// The port.
    port: PortName,
    /// Seconds of a step.
    step_s: u64,
    /// Steps that are over, oldest first, 360 at most. `null`: the daemon did not answer.
    steps: Vec<Option<Step>>,
}

impl History {
    fn kept(&self) -> MutexGuard<'_, HashMap<PortName, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last hour of a port.
    pub fn of(&self, port: PortName) -> PortHistory {
        let kept = self.kept();
        let steps = kept.get(&port).map(|kept| kept.steps.iter().copied().collect());
        PortHistory { port, step_s: STEP_S, steps: steps.unwrap_or_default() }
    }

    /// Takes counters in. `None`: the daemon did not answer.
    pub fn take(&self, page: Option<&StatsPage>) {
        let mut ports = self.kept();
        let Some(StatsPage { items, .. }) = page else {
            for kept in ports.values_mut() {
                kept.push(None);
                kept.last = None;
            }
            return;
        };
        let there: HashSet<&PortName> = items.iter().map(|item| &item.port).collect();
        ports.retain(|port, _| there.contains(port));
        for item in items {
            let totals = Step::totals(item);
            if let Some(kept) = ports.get_mut(&item.port) {
                kept.push(kept.last.map(|before| totals.since(before)));
                kept.last = Some(totals);
            } else if ports.len() < PORTS_MAX {
                ports
                    .insert(item.port.clone(), Kept { last: Some(totals), steps: VecDeque::new() });
            }
        }
    }
}

impl Kept {
    fn push(&mut self, step: Option<Step>) {
        if self.steps.len() == STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }
}

impl Step {
    fn totals(stats: &PortStats) -> Self {
        let PortStats { tx, rx, drops, .. } = stats;
        Self {
            tx_frames: tx.frames,
            tx_bytes: tx.bytes,
            rx_frames: rx.frames,
            rx_bytes: rx.bytes,
            dropped: drops.values().sum(),
        }
    }

    fn since(self, before: Self) -> Self {
        let grown = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Self {
            tx_frames: grown(self.tx_frames, before.tx_frames),
            tx_bytes: grown(self.tx_bytes, before.tx_bytes),
            rx_frames: grown(self.rx_frames, before.rx_frames),
            rx_bytes: grown(self.rx_bytes, before.rx_bytes),
            dropped: grown(self.dropped, before.dropped),
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::Counter;

    use super::*;

    fn name(number: usize) -> PortName {
        format!("vale0:p{number}").parse().unwrap()
    }

    fn page(ports: impl IntoIterator<Item = (usize, u64)>) -> StatsPage {
        let item = |(number, frames)| PortStats {
            port: name(number),
            tx: Counter { frames, bytes: 60 * frames },
            rx: Counter::default(),
            drops: [("no_room".to_owned(), frames / 2)].into(),
            tx_queues: Vec::new(),
            rx_queues: Vec::new(),
            resyncs: 0,
            abandoned: 0,
            wakes: 0,
            rx_fill: None,
            called_in: 0,
            called_out: 0,
            gone_s: None,
        };
        StatsPage { at_ns: 0, items: ports.into_iter().map(item).collect(), next: None }
    }

    fn sent(history: &History, number: usize) -> Vec<Option<u64>> {
        let steps = history.of(name(number)).steps;
        steps.iter().map(|step| step.map(|step| step.tx_frames)).collect()
    }

    #[test]
    fn steps_are_differences_and_unknown_without_a_daemon() {
        let history = History::default();
        for frames in [10, 14, 14, 3] {
            history.take(Some(&page([(1, frames)])));
        }
        assert_eq!(sent(&history, 1), [Some(4), Some(0), Some(3)], "it began anew at 0");
        history.take(None);
        for frames in [5000, 5001] {
            history.take(Some(&page([(1, frames)])));
        }
        assert_eq!(sent(&history, 1)[3..], [None, None, Some(1)], "a gap is no rate");
        assert_eq!(history.of(name(1)).steps[0].unwrap().dropped, 2);
        assert_eq!(sent(&history, 2), []);
    }

    #[test]
    fn an_hour_of_the_first_ports_is_kept_and_no_more() {
        let history = History::default();
        for frames in 0..400 {
            history.take(Some(&page([(1, frames * frames)])));
        }
        let steps = sent(&history, 1);
        assert_eq!((steps.len(), steps[359]), (STEPS, Some(399 + 398)));
        history.take(Some(&page((0..2 * PORTS_MAX).map(|number| (number, 0)))));
        assert_eq!(history.kept().len(), PORTS_MAX);
        history.take(Some(&page([])));
        assert_eq!(history.kept().len(), 0, "ports that are gone");
    }
}
