//! What a switch has counted, as clients see it.

use packet::PortId;
use protocol::name::PortName;
use protocol::{Counter, PortStats};
use switch::{QueueStats, Switch};

/// The counters of a port, and how often its rings were re-synchronised.
pub(super) fn counted(switch: &mut Switch, id: PortId) -> (switch::PortStats, u32) {
    let resyncs = switch.plug_mut(id).map_or(0, |plug| plug.resyncs());
    (switch.stats(id).cloned().unwrap_or_default(), resyncs)
}

/// The same as a client is told.
pub(super) fn shown(port: PortName, (stats, resyncs): &(switch::PortStats, u32)) -> PortStats {
    let total = stats.total();
    let drops = stats.drops.iter().filter(|(_, frames)| *frames > 0);
    // The switch receives what the client transmits, and the other way round.
    let queues = |of: fn(&QueueStats) -> switch::Counters| {
        stats.queues.iter().map(|queue| counter(of(queue))).collect()
    };
    PortStats {
        port,
        tx: counter(total.rx),
        rx: counter(total.tx),
        drops: drops.map(|(reason, frames)| (reason.name().to_owned(), frames)).collect(),
        tx_queues: queues(|queue| queue.rx),
        rx_queues: queues(|queue| queue.tx),
        resyncs: u64::from(*resyncs),
        abandoned: 0,
    }
}

fn counter(counters: switch::Counters) -> Counter {
    Counter { frames: counters.frames, bytes: counters.bytes }
}
