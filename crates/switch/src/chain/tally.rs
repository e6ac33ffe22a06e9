//! Counters of chains, rules and instances.

use packet::PortId;

use super::cache::CacheStats;
use super::rule_table::Entry;
use super::service::Service;
use super::{NextHop, Role, Steering};
use crate::model::stats::{Counters, DropReason, Drops};
use packet::metadata::Metadata;

/// Counters of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainStats {
    /// Frames that entered the chain.
    pub entered: u64,
    /// Frames that the chain, not a function's ring, dropped at its entrance or on the way:
    /// [`DropReason::ChainFull`] counts the load shed at the entrance.
    pub drops: Drops,
    /// How often the gate opened the chain's entrances while frames from before a change were still
    /// in the chain.
    pub early: u64,
}

/// The load of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceReport {
    /// The port of the instance.
    pub port: PortId,
    /// Frames that wait in the instance's ring.
    pub waiting: u32,
    /// Frames that the ring has room for.
    pub capacity: u32,
    /// Whether the instance has frames and reads none.
    pub stalled: bool,
}

/// Counters of all chains and rules, and the load of all instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Chains, by number.
    pub chains: Vec<ChainStats>,
    /// Counters of rules, with the numbers of the rules.
    pub rules: Vec<(u32, Counters)>,
    /// Instances of services.
    pub instances: Vec<InstanceReport>,
    /// Counters of the flow cache.
    pub cache: CacheStats,
}

impl Steering {
    /// Corrects the frames sent to a function by `frames`, up or down.
    pub(crate) fn count_sent_on(&mut self, next_hop: &NextHop, frames: i64) {
        if let NextHop::Function(port, _) = next_hop {
            self.count_sent(*port, i32::try_from(frames).expect("a run is short"));
        }
    }

    /// Corrects the frames that entered the next hop's chain by `frames`, up or down.
    pub(crate) fn count_entered(&mut self, next_hop: &NextHop, frames: i64) {
        if let NextHop::Function(_, meta) = next_hop
            && let Some(stats) = self.chain_stats.get_mut(meta.chain())
        {
            stats.entered = stats.entered.wrapping_add_signed(frames);
        }
    }

    /// Corrects the frames sent to an instance by `frames`, up or down.
    pub(crate) fn count_sent(&mut self, port: PortId, frames: i32) {
        let Some(service) = self.service_of(port) else { return };
        let instances = self.services[usize::from(service)].instances_mut();
        if let Some(instance) = instances.iter_mut().find(|instance| instance.port == port) {
            instance.sent = instance.sent.wrapping_add_signed(frames);
        }
    }

    /// Counts dropped frames with this metadata in their chain, if they are in one.
    pub(crate) fn count_ended(&mut self, mark: u64, reason: DropReason, frames: u32) {
        if let Some(meta) = Metadata::read(mark) {
            self.adjust_drops(meta.chain(), reason, frames.into());
        }
    }

    /// Corrects a chain's drops by `frames`, up or down.
    pub(crate) fn adjust_drops(&mut self, chain: usize, reason: DropReason, frames: i64) {
        if let Some(stats) = self.chain_stats.get_mut(chain) {
            stats.drops.adjust(reason, frames);
        }
    }

    /// Corrects the drops of the chain that a port's frames enter.
    pub(crate) fn adjust_refused(&mut self, src: PortId, reason: DropReason, frames: i64) {
        if let Role::Ingress(chain) = self.roles[src.index()] {
            self.adjust_drops(chain.into(), reason, frames);
        }
    }

    /// All counters now.
    #[must_use]
    pub fn report(&self) -> Report {
        let instances = self.services.iter().flat_map(Service::instances);
        let instances = instances.map(|instance| InstanceReport {
            port: instance.port,
            // Frames without room since the last look count as waiting until the next one.
            waiting: instance.pending.min(instance.capacity),
            capacity: instance.capacity,
            stalled: instance.stalled,
        });
        let counted = |rule: &Entry| (rule.id, self.counted[usize::from(rule.place)]);
        Report {
            chains: self.chain_stats[..self.chains.len()].to_vec(),
            rules: self.rules.iter().map(counted).collect(),
            instances: instances.collect(),
            cache: self.cache.stats,
        }
    }
}
