//! Counters of ports, as the control API shows them: `tx` is what the port's user sends, `rx` what
//! it receives. The switch counts from the same point of view.

use std::time::Duration;

use packet::PortId;
use protocol::name::PortName;
use protocol::{Counter, Fill, PortStats};
use switch::{Plug, QueueStats};

use super::Workers;
use super::worker::Worker;
use super::worker::handle::PendingCall;
use crate::model::keys::{PortKey, SwitchKey};

/// Counters of a port, and what its rings say.
#[derive(Debug)]
pub(super) struct Counted {
    stats: switch::PortStats,
    /// How often its rings were re-synchronised.
    resyncs: u32,
    /// Frames that a function got by calls, and of these, those that it passed on.
    calls: [u64; 2],
    rx_fill: Option<Fill>,
    longest_turn: Duration,
}

impl Counted {
    /// Adds what another worker has counted of the same port.
    pub(super) fn add(&mut self, other: &Self) {
        self.stats.add(&other.stats);
        self.resyncs = self.resyncs.max(other.resyncs);
        self.calls = self.calls.max(other.calls);
        self.rx_fill = self.rx_fill.or(other.rx_fill);
        self.longest_turn = self.longest_turn.max(other.longest_turn);
    }
}

/// Looks at the counters of a port, whose switch is at a place of the worker.
pub(super) fn counted(worker: &mut Worker, at: usize, id: PortId) -> Counted {
    let longest_turn = worker.longest_turn(at, id);
    let switch = worker.switch(at);
    let stats = switch.stats(id).cloned().unwrap_or_default();
    let mut plug = switch.plug_mut(id);
    let fill = plug.as_mut().and_then(|plug| plug.rx_fill());
    let rx_fill = fill.map(|[slots, capacity]| Fill { slots, capacity });
    let resyncs = plug.as_ref().map_or(0, |plug| plug.resyncs());
    let calls = plug.and_then(Plug::rings).map_or([0; 2], |rings| rings.calls());
    Counted { stats, resyncs, calls, rx_fill, longest_turn }
}

impl Workers {
    /// The counters of ports, in their order. Each worker is asked once, and none waits for
    /// another; a port that no worker knows has none.
    pub(super) fn counted(&self, ports: impl Iterator<Item = PortKey>) -> Vec<Option<Counted>> {
        let places: Vec<_> = ports.map(|key| self.switch_of(key)).collect();
        let mut sums: Vec<Option<Counted>> = places.iter().map(|_| None).collect();
        let begin = |worker| self.begin_count(worker, &places);
        let pending: Vec<_> = (0..self.workers.len()).filter_map(begin).collect();
        for (row, more) in pending.into_iter().flat_map(PendingCall::wait) {
            match &mut sums[row] {
                Some(sum) => sum.add(&more),
                none => *none = Some(more),
            }
        }
        sums
    }

    /// Asks a worker for the counters of those of these ports that it knows, with their rows.
    fn begin_count(
        &self,
        worker: usize,
        places: &[Option<(SwitchKey, PortId)>],
    ) -> Option<PendingCall<Vec<(usize, Counted)>>> {
        let known = |(row, place): (usize, &Option<_>)| {
            let (switch, id) = (*place)?;
            let knows = self.workers_of(switch).contains(&worker);
            knows.then(|| (row, self.place(switch).at, id))
        };
        let known: Vec<_> = places.iter().enumerate().filter_map(known).collect();
        let is_asked = !known.is_empty();
        let look = |worker: &mut Worker| {
            let look = |(row, at, id)| (row, counted(worker, at, id));
            known.into_iter().map(look).collect()
        };
        is_asked.then(|| self.workers[worker].handle.begin(look))
    }
}

/// The counters of a port as clients see them.
pub(super) fn shown(port: PortName, counted: &Counted) -> PortStats {
    let Counted { stats, resyncs, calls: [called_in, called_out], rx_fill, longest_turn } = counted;
    let total = stats.total();
    let drops = stats.drops.iter().filter(|(_, frames)| *frames > 0);
    let queues = |of: fn(&QueueStats) -> switch::Counters| {
        stats.queues.iter().map(|queue| counter(of(queue))).collect()
    };
    PortStats {
        port,
        serial: 0,
        tx: counter(total.tx),
        rx: counter(total.rx),
        drops: drops.map(|(reason, frames)| (reason.name().to_owned(), frames)).collect(),
        tx_queues: queues(|queue| queue.tx),
        rx_queues: queues(|queue| queue.rx),
        resyncs: u64::from(*resyncs),
        abandoned: 0,
        wakes: stats.wakes,
        longest_turn_ns: u64::try_from(longest_turn.as_nanos()).unwrap_or(u64::MAX),
        rx_fill: *rx_fill,
        called_in: *called_in,
        called_out: *called_out,
        gone_s: None,
    }
}

fn counter(counters: switch::Counters) -> Counter {
    Counter { frames: counters.frames, bytes: counters.bytes }
}

#[cfg(test)]
mod tests {
    use switch::Counters;

    use super::*;

    #[test]
    fn tx_is_what_the_port_s_user_sends_in_the_switch_and_in_json() {
        let of = |frames| Counters { frames, bytes: 60 * frames };
        let queues = vec![
            QueueStats { tx: of(3), rx: of(5) },
            QueueStats { tx: of(1), rx: Counters::default() },
        ];
        let stats = switch::PortStats { queues, wakes: 6, ..switch::PortStats::default() };
        let rx_fill = Some(Fill { slots: 7, capacity: 8 });
        let longest_turn = Duration::from_micros(7);
        let counted = Counted { stats, resyncs: 2, calls: [0; 2], rx_fill, longest_turn };
        let shown = shown("vale0:a".parse().expect("a name"), &counted);
        let json = serde_json::to_value(shown).expect("numbers and names");
        let expected = serde_json::json!({
            "port": "vale0:a",
            "serial": 0,
            "tx": { "frames": 4, "bytes": 240 },
            "rx": { "frames": 5, "bytes": 300 },
            "drops": {},
            "tx_queues": [{ "frames": 3, "bytes": 180 }, { "frames": 1, "bytes": 60 }],
            "rx_queues": [{ "frames": 5, "bytes": 300 }, { "frames": 0, "bytes": 0 }],
            "resyncs": 2,
            "abandoned": 0,
            "wakes": 6,
            "longest_turn_ns": 7000,
            "rx_fill": { "slots": 7, "capacity": 8 },
        });
        assert_eq!(json, expected);
    }
}
