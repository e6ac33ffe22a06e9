//! Counters of ports: those of clients that have left, and what a worker counts now.

pub mod counters;

use std::time::Instant;

use protocol::name::PortName;
use protocol::{Page, PortKind, PortStats, Reply, StatsPage, StatsQuery};

use super::{Control, page, parse_port};
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::control::state::Port;
use crate::model::keys::PortKey;
use crate::model::policy::{Access, Caller};

impl<D: Datapath> Control<D> {
    pub(super) fn stats(&mut self, caller: &Caller, query: &StatsQuery) -> Result<Reply, Refusal> {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let at_ns = nanoseconds(now);
        if query.gone {
            let Page { items, next } = self.gone(caller, query)?;
            return Ok(Reply::Stats(StatsPage { at_ns, items, next }));
        }
        let ports = match &query.port {
            Some(name) => vec![(name, self.state.port(caller, name, Access::Look)?)],
            None => self.visible_ports(caller, query.switch.as_ref(), query.from.as_deref())?,
        };
        let counted =
            ports.into_iter().filter(|(_, port)| port.kind != PortKind::Pipe || port.is_live());
        let wanted: Vec<PortCounters> =
            counted.map(|(name, port)| PortCounters::new(name, port)).collect();
        let datapath = &mut self.datapath;
        let rows = wanted.chunks(STATS_CHUNK).flat_map(|chunk| PortCounters::all(chunk, datapath));
        let Page { items, next } = page(rows.map(|row: PortStats| (row.port.to_string(), row)));
        Ok(Reply::Stats(StatsPage { at_ns, items, next }))
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

/// Ports whose counters are asked for at once.
const STATS_CHUNK: usize = 16;

/// A port whose counters a client asked for.
pub(super) struct PortCounters {
    /// What was counted before.
    past: PortStats,
    /// Key of the port, where a worker is counting.
    live: Option<PortKey>,
}

impl PortCounters {
    pub(super) fn new(name: &PortName, port: &Port) -> Self {
        let past = port.past.as_deref().cloned();
        let past = past.unwrap_or_else(|| counters::none(name.clone()));
        Self {
            past: PortStats { serial: port.first_key.0, ..past },
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
                sum.rx_fill = now.rx_fill;
            }
            sum
        };
        wanted.iter().map(sum).collect()
    }
}
