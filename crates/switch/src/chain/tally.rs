//! What was counted of chains, rules and instances.

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
    /// Frames that were let in.
    pub entered: u64,
    /// Frames that were not let in or did not get through it, because of the chain and not of a
    /// function's ring: [`DropReason::ChainFull`] is what was shed at the entrance.
    pub drops: Drops,
    /// How often its entrances were opened while frames from before a change were still in it.
    pub early: u64,
}

/// What there is to say of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceReport {
    /// The port of the instance.
    pub port: PortId,
    /// Frames that wait there.
    pub waiting: u32,
    /// How many have room.
    pub capacity: u32,
    /// Whether the instance has frames and reads none.
    pub stalled: bool,
}

/// What there is to say of it all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By number.
    pub chains: Vec<ChainStats>,
    /// By number of the rule.
    pub rules: Vec<(u32, Counters)>,
    /// Instances of services.
    pub instances: Vec<InstanceReport>,
    /// What was asked of the flow cache.
    pub cache: CacheStats,
}

impl Steering {
    /// So many more frames, or fewer, were delivered on the next_hop of one that was asked for.
    pub(crate) fn count_sent_on(&mut self, next_hop: &NextHop, frames: i64) {
        if let NextHop::Function(port, _) = next_hop {
            self.count_sent(*port, i32::try_from(frames).expect("a run is short"));
        }
    }

    /// So many more frames, or fewer, entered the chain of one that was asked for.
    pub(crate) fn count_entered(&mut self, next_hop: &NextHop, frames: i64) {
        if let NextHop::Function(_, meta) = next_hop
            && let Some(stats) = self.chain_stats.get_mut(meta.chain())
        {
            stats.entered = stats.entered.wrapping_add_signed(frames);
        }
    }

    /// So many more frames, or fewer, were delivered to an instance than were meant for it.
    pub(crate) fn count_sent(&mut self, port: PortId, frames: i32) {
        let Some(service) = self.service_of(port) else { return };
        let instances = self.services[usize::from(service)].instances_mut();
        if let Some(instance) = instances.iter_mut().find(|instance| instance.port == port) {
            instance.sent = instance.sent.wrapping_add_signed(frames);
        }
    }

    /// Frames with this mark end: in their chain, if they are in one.
    pub(crate) fn count_ended(&mut self, mark: u64, reason: DropReason, frames: u32) {
        if let Some(meta) = Metadata::read(mark) {
            self.adjust_drops(meta.chain(), reason, frames.into());
        }
    }

    /// So many more frames, or fewer, end in a chain than the one that was asked for.
    pub(crate) fn adjust_drops(&mut self, chain: usize, reason: DropReason, frames: i64) {
        if let Some(stats) = self.chain_stats.get_mut(chain) {
            stats.drops.adjust(reason, frames);
        }
    }

    /// Corrects the drops at the entrance of a port.
    pub(crate) fn adjust_refused(&mut self, src: PortId, reason: DropReason, frames: i64) {
        if let Role::Ingress(chain) = self.roles[src.index()] {
            self.adjust_drops(chain.into(), reason, frames);
        }
    }

    /// What there is to say.
    #[must_use]
    pub fn report(&self) -> Report {
        let instances = self.services.iter().flat_map(Service::instances);
        let instances = instances.map(|instance| InstanceReport {
            port: instance.port,
            // What found no room since the last look is counted as waiting until the next.
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
