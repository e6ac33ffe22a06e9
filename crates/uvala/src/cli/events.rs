//! `uvala events`

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use client::control::Connection;
use protocol::name::{PortName, SwitchName};
use protocol::parse;
use protocol::users::user_name;
use protocol::{Change, Event, EventsQuery, PortStats};
use serde::Serialize;

use super::{Global, stats, takeover};
use crate::pcap::decode::time_of_day;
use terminal::say;

/// How often the counters are read for --drops.
const SECOND: Duration = Duration::from_secs(1);
/// The longest wait for events.
const LONG: Duration = Duration::from_secs(3600);

/// Print what changes, as it changes
///
/// Prints a line for each event: switches, ports, their clients, states of interfaces and virtual
/// machines, addresses, loops, and chains that break and recover; with --drops also ports that
/// drop. Only root and the daemon's user may listen. Ends by Ctrl-C, or when the daemon ends and
/// no other one takes over.
///
/// With a port or its client go the addresses on the port, without events of their own. Times are
/// in UTC. The daemon keeps 256 events for a listener that is slow, and says how many were lost
/// after these. A user has 16 listeners at most.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Switch (vale0) [default: all]
    switch: Option<String>,
    /// Also print ports that drop at least this many frames in a second, with the reason
    #[arg(long, value_name = "FRAMES", value_parser = parse::positive)]
    drops: Option<u64>,
    /// Print each event as a line of JSON
    #[arg(long)]
    json: bool,
}

/// Events that were lost, as a line of JSON.
#[derive(Serialize)]
struct Lost {
    event: &'static str,
    count: u64,
}

/// Counters, and what they were a second ago.
struct Drops {
    connection: Connection,
    limit: u64,
    before: Option<(Instant, BTreeMap<PortName, PortStats>)>,
    next: Instant,
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let switch = args.switch.as_deref().map(str::parse).transpose()?;
    let listen = || {
        let listener = global.connect()?;
        listener.listen(EventsQuery { switch: switch.clone() })?;
        let next = Instant::now();
        let drops =
            |limit| anyhow::Ok(Drops { connection: global.connect()?, limit, before: None, next });
        Ok((listener, args.drops.map(drops).transpose()?))
    };
    let (mut listener, mut drops) = listen()?;
    say::remark("uvala: listening to events; Ctrl-C ends it");
    loop {
        if let Err(why) = args.print_next(&listener, &mut drops, switch.as_ref()) {
            if !takeover::is_loss(&why) {
                return Err(why);
            }
            (listener, drops) = takeover::again(why, listen)?;
            say::remark("uvala: another daemon has taken over; what happened meanwhile is unknown");
        }
    }
}

impl Args {
    /// Prints what comes next, after a while at most if drops are to be looked for.
    fn print_next(
        &self,
        listener: &Connection,
        drops: &mut Option<Drops>,
        switch: Option<&SwitchName>,
    ) -> anyhow::Result<()> {
        let wait = drops
            .as_ref()
            .map_or(LONG, |drops| drops.next.saturating_duration_since(Instant::now()));
        let events = listener.events(wait)?;
        if events.lost > 0 {
            self.print_lost(events.lost)?;
        }
        events.events.iter().try_for_each(|event| self.print(event))?;
        for event in drops.as_mut().map(Drops::look).transpose()?.unwrap_or_default() {
            if switch.is_none_or(|only| only == event.change.switch()) {
                self.print(&event)?;
            }
        }
        Ok(())
    }

    fn print(&self, event: &Event) -> anyhow::Result<()> {
        if self.json { say::json(event) } else { say::out(line(event)) }
    }

    fn print_lost(&self, count: u64) -> anyhow::Result<()> {
        match self.json {
            true => say::json(&Lost { event: "lost", count }),
            false => {
                say::out(format!("{count} events lost: they came faster than they were read\n"))
            }
        }
    }
}

impl Drops {
    /// The ports that have dropped too much in the last second.
    fn look(&mut self) -> anyhow::Result<Vec<Event>> {
        if Instant::now() < self.next {
            return Ok(Vec::new());
        }
        self.next = Instant::now() + SECOND;
        let now = stats::all(&self.connection)?;
        let now: BTreeMap<_, _> = now.into_iter().map(|port| (port.port.clone(), port)).collect();
        let at = Instant::now();
        let before = self.before.replace((at, now.clone()));
        // Longer than a second, where the output is slow or the daemon busy.
        let elapsed = before.as_ref().map_or(SECOND, |(then, _)| at - *then);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let all = now.iter().flat_map(|(port, stats)| {
            let old = before.as_ref().and_then(|(_, before)| before.get(port));
            exceeding(old, stats, elapsed, self.limit)
        });
        Ok(all.map(|change| Event { time_ms, change }).collect())
    }
}

/// The reasons for which a port has dropped at least as many frames in a second as the limit.
fn exceeding(
    before: Option<&PortStats>,
    now: &PortStats,
    elapsed: Duration,
    limit: u64,
) -> Vec<Change> {
    let Some(before) = before else { return Vec::new() };
    let grown = now.drops.iter().map(|(reason, frames)| {
        let frames = frames.saturating_sub(before.drops.get(reason).copied().unwrap_or(0));
        let ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        (reason, frames.saturating_mul(1000) / ms.max(1000))
    });
    let exceeding = grown.filter(|(_, frames)| *frames >= limit);
    let drops = exceeding.map(|(reason, frames_per_s)| Change::Drops {
        port: now.port.clone(),
        reason: reason.clone(),
        frames_per_s,
    });
    drops.collect()
}

fn line(event: &Event) -> String {
    let time = time_of_day(event.time_ms.saturating_mul(1_000_000));
    // To the millisecond.
    format!("{} {}\n", &time[..time.len().min(12)], text(&event.change))
}

fn text(change: &Change) -> String {
    match change {
        Change::SwitchAdded { switch } => format!("switch {switch} added"),
        Change::SwitchChanged { switch } => format!("switch {switch} changed"),
        Change::SwitchDeleted { switch } => format!("switch {switch} deleted"),
        Change::PortAdded { port, kind } => format!("port {port} added, kind {}", kind.name()),
        Change::PortChanged { port } => format!("port {port} changed"),
        Change::PortDeleted { port } => format!("port {port} deleted"),
        Change::ClientAttached { port, client } => {
            let (pid, user) = (client.pid, user_name(client.uid));
            format!("port {port} attached by process {pid} of {user} ({})", client.name)
        }
        Change::ClientLeft { port } => format!("port {port} left by its client"),
        Change::Link { port, state } => format!("port {port} link {state}"),
        Change::PortDisabled { port, by } => format!("port {port} disabled by {by}"),
        Change::PortEnabled { port } => format!("port {port} enabled"),
        Change::Loop { ports: [a, b], mac, vlan } => {
            format!("loop between {a} and {b}: {mac} VLAN {vlan}")
        }
        Change::FdbAdded { mac, vlan, port, is_static } => {
            let kind = if *is_static { ", static" } else { "" };
            format!("fdb {mac} VLAN {vlan} on {port}{kind}")
        }
        Change::FdbMoved { mac, vlan, port, from } => {
            format!("fdb {mac} VLAN {vlan} moved from {from} to {port}")
        }
        Change::FdbDeleted { mac, vlan, port } => {
            format!("fdb {mac} VLAN {vlan} deleted from {port}")
        }
        Change::ChainSet { switch, chain } => format!("chain {chain} of {switch} set"),
        Change::ChainDeleted { switch, chain } => format!("chain {chain} of {switch} deleted"),
        Change::ChainBroken { switch, chain, why } => {
            format!("chain {chain} of {switch} broken: {why}")
        }
        Change::ChainRuns { switch, chain } => format!("chain {chain} of {switch} runs again"),
        Change::Drops { port, reason, frames_per_s } => {
            format!("port {port} drops {frames_per_s} frames/s: {reason}")
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  uvala events                      of all switches
  uvala events vale0 --drops 100    also ports of vale0 that drop 100 frames in a second
  uvala events --json | jq -c 'select(.event == \"link\")'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_an_event_is_a_line_with_the_time() {
        let change = Change::Link { port: "vale0:a".parse().unwrap(), state: "up".to_owned() };
        let event = Event { time_ms: 86_399_007, change };
        assert_eq!(line(&event), "23:59:59.007 port vale0:a link up\n");
    }

    #[test]
    fn test_drops_count_from_the_second_look_on_and_from_the_limit_on() {
        let stats = |no_room: u64| -> PortStats {
            let json = serde_json::json!({
                "port": "vale0:a", "tx": {"frames": 0, "bytes": 0}, "rx": {"frames": 0, "bytes": 0},
                "drops": {"no_room": no_room, "vlan": 5}, "tx_queues": [], "rx_queues": [],
            });
            serde_json::from_value(json).unwrap()
        };
        assert_eq!(exceeding(None, &stats(100), SECOND, 10), []);
        assert_eq!(exceeding(Some(&stats(100)), &stats(109), SECOND, 10), []);
        let [Change::Drops { reason, frames_per_s, .. }] =
            &exceeding(Some(&stats(100)), &stats(120), 2 * SECOND, 10)[..]
        else {
            panic!("one")
        };
        assert_eq!((&**reason, *frames_per_s), ("no_room", 10));
    }
}
