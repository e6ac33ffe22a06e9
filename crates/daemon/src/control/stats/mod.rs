//! Counters of ports: those of clients that have left, and what a worker counts now.

pub mod counters;

use std::time::Instant;

use protocol::name::PortName;
use protocol::{Page, PortKind, PortStats, Reply, StatsPage, StatsQuery};

use super::{Control, page, parse_port};
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::control::state::Port;
use crate::model::policy::{Access, Caller};

impl<D: Datapath> Control<D> {
    pub(super) fn stats(&mut self, caller: &Caller, query: &StatsQuery) -> Result<Reply, Refusal> {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let at_ns = nanoseconds(now);
        if query.gone {
            let Page { items, next } = self.gone(caller, query)?;
            return Ok(Reply::Stats(StatsPage { at_ns, items, next }));
        }
        let (one, all) = match &query.port {
            Some(name) => (Some((name, self.state.port(caller, name, Access::Look)?)), None),
            None => {
                let (switch, from) = (query.switch.as_ref(), query.from.as_deref());
                (None, Some(self.visible_ports(caller, switch, from)?))
            }
        };
        let ports = one.into_iter().chain(all.into_iter().flatten());
        let mut counted = ports.filter(|(_, port)| port.kind != PortKind::Pipe || port.is_live());
        // One chunk after the other, so that no worker counts for the next page.
        let chunks = std::iter::from_fn(|| {
            let chunk: Vec<_> = counted.by_ref().take(STATS_CHUNK).collect();
            let counters = (!chunk.is_empty()).then(|| self.counters_of(&chunk))?;
            Some(chunk.into_iter().map(|(name, _)| name).zip(counters))
        });
        let Page { items, next } = page(chunks.flatten());
        Ok(Reply::Stats(StatsPage { at_ns, items, next }))
    }

    /// What was counted for clients that have left, and what workers count now, in the order of the
    /// ports.
    pub(super) fn counters_of(&self, ports: &[(&PortName, &Port)]) -> Vec<PortStats> {
        let live = ports.iter().filter(|(_, port)| port.is_live());
        let live: Vec<_> = live.map(|(name, port)| (port.key, *name)).collect();
        let mut live = self.datapath.stats(&live).into_iter();
        let sum = |(name, port): &(&PortName, &Port)| {
            let now = port.is_live().then(|| live.next()).flatten();
            let sum = sum(name, port.past.as_deref(), now);
            PortStats { serial: port.first_key.0, ..sum }
        };
        ports.iter().map(sum).collect()
    }

    /// The counters of ports that went within the last minute.
    fn gone(&mut self, caller: &Caller, query: &StatsQuery) -> Result<Page<PortStats>, Refusal> {
        let from = query.from.as_deref().map(parse_port).transpose()?;
        let is_asked_for = |PortStats { port, .. }: &PortStats| {
            query.port.as_ref().is_none_or(|name| name == port)
                && query.switch.as_ref().is_none_or(|switch| switch == port.switch())
                && from.as_ref().is_none_or(|from| port >= from)
        };
        let seen = self.state.departures.seen_by(caller, Instant::now());
        Ok(page(seen.filter(is_asked_for).map(|row| (row.port.to_string(), row))))
    }
}

fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// Ports whose counters are asked for at once. Their frames wait meanwhile.
const STATS_CHUNK: usize = 32;

/// The counters of a port that has had some before, or has some now.
fn sum(name: &PortName, past: Option<&PortStats>, now: Option<PortStats>) -> PortStats {
    match (past, now) {
        (None, None) => counters::none(name.clone()),
        (Some(past), None) => past.clone(),
        (None, Some(now)) => now,
        (Some(past), Some(mut now)) => {
            counters::add(&mut now, past);
            now
        }
    }
}
