//! What a switch has counted, as clients see it.

use packet::PortId;
use protocol::name::PortName;
use protocol::{Counter, PortStats};
use switch::{Plug, QueueStats, Switch};

/// What was counted of a port.
#[derive(Debug)]
pub(super) struct Counted {
    stats: switch::PortStats,
    /// How often its rings were re-synchronised.
    resyncs: u32,
    /// Frames that a function got by calls, and of these, those that it passed on.
    calls: [u64; 2],
}

/// Looks at the counters of a port.
pub(super) fn counted(switch: &mut Switch, id: PortId) -> Counted {
    let stats = switch.stats(id).cloned().unwrap_or_default();
    let plug = switch.plug_mut(id);
    let resyncs = plug.as_ref().map_or(0, |plug| plug.resyncs());
    let calls = plug.and_then(Plug::rings).map_or([0; 2], |rings| rings.calls());
    Counted { stats, resyncs, calls }
}

/// The counters of a port as clients see them.
pub(super) fn shown(port: PortName, counted: &Counted) -> PortStats {
    let Counted { stats, resyncs, calls: [called_in, called_out] } = counted;
    let total = stats.total();
    let drops = stats.drops.iter().filter(|(_, frames)| *frames > 0);
    let queues = |of: fn(&QueueStats) -> switch::Counters| {
        stats.queues.iter().map(|queue| counter(of(queue))).collect()
    };
    PortStats {
        port,
        tx: counter(total.tx),
        rx: counter(total.rx),
        drops: drops.map(|(reason, frames)| (reason.name().to_owned(), frames)).collect(),
        tx_queues: queues(|queue| queue.tx),
        rx_queues: queues(|queue| queue.rx),
        resyncs: u64::from(*resyncs),
        abandoned: 0,
        called_in: *called_in,
        called_out: *called_out,
    }
}

fn counter(counters: switch::Counters) -> Counter {
    Counter { frames: counters.frames, bytes: counters.bytes }
}
