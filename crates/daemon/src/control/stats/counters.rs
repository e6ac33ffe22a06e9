//! The counters of a port over all its clients, and those of a forwarding database.
//!
//! A worker counts from one attach to the detach. What it has counted by then is added up here for
//! ports that stay, so that their counters only grow: see `Port::past`.

use protocol::name::PortName;
use protocol::{Counter, FdbCounters, McastCounters, PortStats};
use switch::{Bridge, FdbStats};

use crate::model::replies::count;

/// Zeros.
pub fn none(port: PortName) -> PortStats {
    PortStats {
        port,
        serial: 0,
        tx: Counter::default(),
        rx: Counter::default(),
        drops: Default::default(),
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
    }
}

/// The counters of a switch that snoops.
pub fn of_groups(bridge: &Bridge) -> McastCounters {
    let (stats, [groups, members], queriers) = bridge.mcast_stats();
    McastCounters {
        groups: count(groups),
        members: count(members),
        queriers: count(queriers),
        reports: stats.reports,
        leaves: stats.leaves,
        queries: stats.queries,
        queries_sent: stats.queries_sent,
        malformed: stats.malformed,
        expired: stats.expired,
        refused_limit: stats.refused_limit,
        refused_full: stats.refused_full,
    }
}

/// The counters of a forwarding database.
pub fn of_fdb(stats: FdbStats) -> FdbCounters {
    let FdbStats { learned, moved, aged, evicted, refused_limit, refused_full, loop_seconds } =
        stats;
    FdbCounters { learned, moved, aged, evicted, refused_limit, refused_full, loop_seconds }
}

/// Adds what was counted at another time; a client may have had more rings than the one before.
/// What stands in rings is nothing that adds up.
pub fn add(sum: &mut PortStats, more: &PortStats) {
    add_counter(&mut sum.tx, more.tx);
    add_counter(&mut sum.rx, more.rx);
    for (reason, frames) in &more.drops {
        *sum.drops.entry(reason.clone()).or_default() += frames;
    }
    add_queues(&mut sum.tx_queues, &more.tx_queues);
    add_queues(&mut sum.rx_queues, &more.rx_queues);
    sum.resyncs += more.resyncs;
    sum.abandoned += more.abandoned;
    sum.wakes += more.wakes;
    sum.longest_turn_ns = sum.longest_turn_ns.max(more.longest_turn_ns);
    // A client's word, which may be any number.
    sum.called_in = sum.called_in.saturating_add(more.called_in);
    sum.called_out = sum.called_out.saturating_add(more.called_out);
}

fn add_queues(sum: &mut Vec<Counter>, more: &[Counter]) {
    sum.resize(sum.len().max(more.len()), Counter::default());
    sum.iter_mut().zip(more).for_each(|(sum, more)| add_counter(sum, *more));
}

fn add_counter(sum: &mut Counter, more: Counter) {
    sum.frames += more.frames;
    sum.bytes += more.bytes;
}

#[cfg(test)]
mod tests {
    use protocol::DROP_REASONS;
    use switch::DropReason;

    use super::*;

    #[test]
    fn each_reason_of_the_switch_for_a_drop_is_explained() {
        assert_eq!(DROP_REASONS.map(|reason| reason.name), DropReason::ALL.map(DropReason::name));
        assert!(DROP_REASONS.iter().all(|reason| reason.explanation.ends_with('.')));
        assert!(DROP_REASONS.iter().all(|reason| reason.cure.ends_with('.')));
    }

    #[test]
    fn counters_of_ports_with_different_rings_and_drops_add_up() {
        let one = |n: u64| Counter { frames: n, bytes: 60 * n };
        let drops = |reason: &str, n| [(reason.to_owned(), n)].into();
        let name: PortName = "vale0:a".parse().unwrap();
        let mut sum = PortStats {
            tx: one(3),
            drops: drops("no_room", 2),
            tx_queues: vec![one(3)],
            ..none(name.clone())
        };
        add(&mut sum, &none(name.clone()));
        let queues = vec![one(1), one(4)];
        let more = PortStats {
            tx: one(5),
            tx_queues: queues,
            resyncs: 1,
            abandoned: 4,
            longest_turn_ns: 7000,
            ..none(name.clone())
        };
        add(&mut sum, &PortStats { drops: drops("no_room", 5), ..more.clone() });
        add(&mut sum, &PortStats { drops: drops("vlan", 1), rx: one(9), ..none(name.clone()) });
        assert_eq!((sum.tx, sum.rx, sum.resyncs), (one(8), one(9), 1));
        assert_eq!((sum.abandoned, sum.longest_turn_ns), (4, 7000));
        assert_eq!(sum.tx_queues, [one(4), one(4)]);
        assert_eq!((sum.drops["no_room"], sum.drops["vlan"]), (7, 1));
    }
}
