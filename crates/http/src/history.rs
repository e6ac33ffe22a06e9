//! The last hour: what ports sent, got and dropped, in steps.
//!
//! ```text
//!   counters, every 10 s ──► differences ──► of each port its last 360
//! ```
//!
//! One task writes ([`counters::keep`](crate::counters::keep)); callers read. At most
//! [`PORTS_MAX`] ports have a history, the first that there are; that of a port goes with the port:
//! another of its name, which has another serial number, begins its own. While no daemon answers,
//! the steps are unknown. The next daemon counts from 0 and gives ports other numbers; those of the
//! same names go on there. A counter that is smaller than before has begun anew.

use std::collections::{HashMap, VecDeque};
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
pub struct History(Mutex<Ports>);

#[derive(Debug, Default)]
struct Ports {
    /// How long the daemon had run when it answered last.
    uptime_s: u64,
    by_name: HashMap<PortName, Kept>,
}

/// Counters of a port, and their steps.
#[derive(Debug)]
struct Kept {
    /// The port's number at this daemon.
    serial: u32,
    /// `None`: the daemon did not answer last time, and has perhaps not since longer than a step.
    last: Option<Step>,
    /// Oldest first. `None`: unknown.
    steps: VecDeque<Option<Step>>,
}

/// What a port did in one step. `tx` is what its client sends, `rx` what it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
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
    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last hour of a port.
    pub fn of(&self, port: PortName) -> PortHistory {
        let ports = self.ports();
        let steps = ports.by_name.get(&port).map(|kept| kept.steps.iter().copied().collect());
        PortHistory { port, step_s: STEP_S, steps: steps.unwrap_or_default() }
    }

    /// Takes counters in, of a daemon that has run for so many seconds. `None`: it did not answer.
    pub fn take(&self, answer: Option<(u64, &StatsPage)>) {
        let mut ports = self.ports();
        match answer {
            Some((uptime_s, page)) => ports.take(uptime_s, &page.items),
            None => ports.by_name.values_mut().for_each(|kept| kept.push(None)),
        }
    }
}

impl Ports {
    fn take(&mut self, uptime_s: u64, items: &[PortStats]) {
        let is_next = std::mem::replace(&mut self.uptime_s, uptime_s) > uptime_s;
        let serials: HashMap<&PortName, u32> =
            items.iter().map(|item| (&item.port, item.serial)).collect();
        self.by_name.retain(|port, kept| match serials.get(port) {
            Some(serial) if is_next => {
                (kept.serial, kept.last) = (*serial, kept.last.map(|_| Step::default()));
                true
            }
            serial => serial == Some(&kept.serial),
        });
        for item in items {
            let totals = Step::totals(item);
            if let Some(kept) = self.by_name.get_mut(&item.port) {
                kept.push(Some(totals));
            } else if self.by_name.len() < PORTS_MAX {
                let (serial, last) = (item.serial, Some(totals));
                let kept = Kept { serial, last, steps: VecDeque::new() };
                self.by_name.insert(item.port.clone(), kept);
            }
        }
    }
}

impl Kept {
    /// Enters a step, at whose end these are the totals.
    fn push(&mut self, totals: Option<Step>) {
        if self.steps.len() == STEPS {
            self.steps.pop_front();
        }
        let before = std::mem::replace(&mut self.last, totals);
        self.steps.push_back(totals.zip(before).map(|(now, before)| now.since(before)));
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
            serial: 0,
            tx: Counter { frames, bytes: 60 * frames },
            rx: Counter::default(),
            drops: [("no_room".to_owned(), frames / 2)].into(),
            tx_queues: Vec::new(),
            rx_queues: Vec::new(),
            resyncs: 0,
            abandoned: 0,
            wakes: 0,
            longest_turn_ns: 0,
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
        for (uptime, frames) in (1..).zip([10, 14, 14, 3]) {
            history.take(Some((uptime, &page([(1, frames)]))));
        }
        assert_eq!(sent(&history, 1), [Some(4), Some(0), Some(3)], "it began anew at 0");
        history.take(None);
        for (uptime, frames) in (5..).zip([5000, 5001]) {
            history.take(Some((uptime, &page([(1, frames)]))));
        }
        assert_eq!(sent(&history, 1)[3..], [None, None, Some(1)], "a gap is no rate");
        assert_eq!(history.of(name(1)).steps[0].unwrap().dropped, 2);
        assert_eq!(sent(&history, 2), []);
    }

    #[test]
    fn a_port_that_was_made_again_between_two_looks_begins_anew() {
        let history = History::default();
        let take = |uptime, frames, serial| {
            let mut page = page([(1, frames)]);
            page.items[0].serial = serial;
            history.take(Some((uptime, &page)));
        };
        take(10, 5, 7);
        take(20, 9, 7);
        assert_eq!(sent(&history, 1), [Some(4)]);
        // The new port has sent more by now than the old one had.
        take(30, 1000, 8);
        take(40, 1001, 8);
        assert_eq!(sent(&history, 1), [Some(1)]);
        // The same port at the next daemon, whose counters begin at 0.
        take(3, 2000, 1);
        take(13, 2001, 1);
        assert_eq!(sent(&history, 1), [Some(1), Some(2000), Some(1)]);
    }

    #[test]
    fn an_hour_of_the_first_ports_is_kept_and_no_more() {
        let history = History::default();
        for frames in 0..400 {
            history.take(Some((frames, &page([(1, frames * frames)]))));
        }
        let steps = sent(&history, 1);
        assert_eq!((steps.len(), steps[359]), (STEPS, Some(399 + 398)));
        history.take(Some((400, &page((0..2 * PORTS_MAX).map(|number| (number, 0))))));
        assert_eq!(history.ports().by_name.len(), PORTS_MAX);
        history.take(Some((401, &page([]))));
        assert_eq!(history.ports().by_name.len(), 0, "ports that are gone");
    }
}
