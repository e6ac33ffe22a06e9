//! Counters of ports: those of clients that have left, and what a worker counts now.

use protocol::PortStats;
use protocol::name::PortName;

use super::Port;
use crate::control::counters;
use crate::control::datapath::Datapath;
use crate::model::keys::PortKey;

/// A port whose counters somebody wants to see.
pub(super) struct PortCounters {
    /// What was counted before.
    past: PortStats,
    /// Its key, where a worker is counting.
    live: Option<PortKey>,
}

impl PortCounters {
    pub(super) fn new(name: &PortName, port: &Port) -> Self {
        let past = port.past.as_deref().cloned();
        Self {
            past: past.unwrap_or_else(|| counters::none(name.clone())),
            live: port.is_live().then_some(port.key),
        }
    }

    pub(super) fn all<D: Datapath>(wanted: &[Self], datapath: &mut D) -> Vec<PortStats> {
        let key = |port: &Self| port.live.map(|key| (key, port.past.port.clone()));
        let mut live =
            datapath.stats(&wanted.iter().filter_map(key).collect::<Vec<_>>()).into_iter();
        let sum = |port: &Self| {
            let mut sum = port.past.clone();
            if let Some(now) = port.live.and_then(|_| live.next()) {
                counters::add(&mut sum, &now);
            }
            sum
        };
        wanted.iter().map(sum).collect()
    }
}
