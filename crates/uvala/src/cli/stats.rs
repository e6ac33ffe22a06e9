//! `uvala stats`

use std::collections::{BTreeMap, HashMap};

use client::control::{Connection, unexpected};
use protocol::name::PortName;
use protocol::{Counter, DROP_REASONS, PortRequest, PortStats, Reply, Request, StatsQuery};
use serde::Serialize;

use super::Global;
use super::output::{Output, Watch};
use super::rates::Interval;
use terminal::table::{Align, Table, short};

/// Show counters of ports
///
/// TX counts frames that the port's client sends, RX frames that it receives. Dropped frames are
/// counted by reason, at the port that sent them or at the port whose ring was full. --watch shows
/// rates. RESYNCS counts how often the switch repaired a ring after its client wrote an invalid
/// index. A permanent port (uvala port add) keeps its counters when its client detaches; on other
/// ports they begin and end with the client, and --gone shows them for a minute longer.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Switch (vale0) or port (vale0:vm1) [default: all that you may see]
    name: Option<String>,
    /// Explain each reason for a drop, say what to do about it, and exit
    #[arg(long, conflicts_with = "name")]
    explain: bool,
    /// Show one row per ring
    #[arg(long)]
    queues: bool,
    /// Show ports that went within the last minute
    #[arg(long, conflicts_with = "watch")]
    gone: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    watch: Watch,
}

/// All counters at one moment.
#[derive(Serialize)]
pub struct Snapshot {
    /// The daemon's clock.
    pub at_ns: u64,
    pub ports: Vec<PortStats>,
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    if args.explain {
        let reasons = DROP_REASONS.map(|reason| (reason.name, reason.explanation));
        return args.output.print(&BTreeMap::from(reasons), |_| explain());
    }
    let all = StatsQuery { gone: args.gone, ..StatsQuery::default() };
    let query = match &args.name {
        None => all,
        Some(name) if name.contains(':') => StatsQuery { port: Some(name.parse()?), ..all },
        Some(name) => StatsQuery { switch: Some(name.parse()?), ..all },
    };
    let mut before: Option<Snapshot> = None;
    args.watch.repeat(global, |connection, again| {
        let now = snapshot(connection, &query)?;
        // Another daemon counts from zero.
        before = before.take().filter(|_| again);
        args.output.print(&now, |now| match &before {
            Some(before) => rates(before, now, args.queues),
            None if args.watch.is_on() => rates(now, now, args.queues),
            None => totals(now, args.queues),
        })?;
        before = Some(now);
        Ok(())
    })
}

/// The counters of all ports that we may see.
pub fn all(connection: &Connection) -> anyhow::Result<Vec<PortStats>> {
    Ok(snapshot(connection, &StatsQuery::default())?.ports)
}

/// The counters that a query is for.
pub fn snapshot(connection: &Connection, query: &StatsQuery) -> anyhow::Result<Snapshot> {
    let mut ports = Vec::new();
    let at_ns = each(connection, query, |page| ports.extend(page))?;
    Ok(Snapshot { at_ns, ports })
}

/// Gives the counters that a query is for to `take`, page by page. Returns the daemon's clock.
pub fn each(
    connection: &Connection,
    query: &StatsQuery,
    mut take: impl FnMut(Vec<PortStats>),
) -> anyhow::Result<u64> {
    let mut query = query.clone();
    loop {
        match connection.call(Request::Port(PortRequest::Stats(query.clone())))? {
            Reply::Stats(page) => {
                take(page.items);
                query.from = page.next;
                if query.from.is_none() {
                    return Ok(page.at_ns);
                }
            }
            other => return Err(unexpected(&other).into()),
        }
    }
}

fn totals(snapshot: &Snapshot, queues: bool) -> String {
    let mut table = Table::new(&[
        ("PORT", Align::Left),
        ("TX FRAMES", Align::Right),
        ("TX BYTES", Align::Right),
        ("RX FRAMES", Align::Right),
        ("RX BYTES", Align::Right),
        ("RESYNCS", Align::Right),
        ("DROPPED", Align::Left),
    ]);
    for port in &snapshot.ports {
        let ago = port.gone_s.map_or_else(String::new, |seconds| format!(" ({seconds} s ago)"));
        let (name, resyncs) = (format!("{}{ago}", port.port), port.resyncs.to_string());
        table.row(counters(name, port.tx, port.rx, resyncs, drops(port)));
        for queue in 0..if queues { rings(port) } else { 0 } {
            let [tx, rx] = ring(port, queue);
            table.row(counters(format!("  ring {queue}"), tx, rx, String::new(), String::new()));
        }
    }
    table.fitted()
}

/// The number of its rings, of either kind.
pub fn rings(port: &PortStats) -> usize {
    port.tx_queues.len().max(port.rx_queues.len())
}

/// What a ring has sent and received; a port may have more of one kind.
pub fn ring(port: &PortStats, queue: usize) -> [Counter; 2] {
    [&port.tx_queues, &port.rx_queues].map(|all| all.get(queue).copied().unwrap_or_default())
}

/// Each reason, and below it what to do.
fn explain() -> String {
    let mut table = Table::new(&[("REASON", Align::Left), ("", Align::Left)]);
    for reason in &DROP_REASONS {
        table.row([reason.name, reason.explanation].map(str::to_owned));
        table.row([String::new(), format!("  {}", reason.cure)]);
    }
    table.fitted()
}

fn counters(name: String, tx: Counter, rx: Counter, resyncs: String, drops: String) -> [String; 7] {
    let [a, b, c, d] = [tx.frames, tx.bytes, rx.frames, rx.bytes].map(|n| n.to_string());
    [name, a, b, c, d, resyncs, drops]
}

fn drops(port: &PortStats) -> String {
    let reasons: Vec<String> =
        port.drops.iter().map(|(reason, frames)| format!("{reason} {frames}")).collect();
    if reasons.is_empty() { "-".to_owned() } else { reasons.join(", ") }
}

fn rates(before: &Snapshot, now: &Snapshot, queues: bool) -> String {
    let mut table = Table::new(&[
        ("PORT", Align::Left),
        ("TX pps", Align::Right),
        ("TX bit/s", Align::Right),
        ("RX pps", Align::Right),
        ("RX bit/s", Align::Right),
        ("DROPS/s", Align::Right),
    ]);
    let known: HashMap<&PortName, &PortStats> =
        before.ports.iter().map(|port| (&port.port, port)).collect();
    let interval = Interval::between(before.at_ns, now.at_ns);
    let row = |name: String, now: [Counter; 2], old: [Counter; 2], drops: String| {
        let [tx, rx] = [0, 1].map(|way| interval.rate(old[way], now[way]));
        [name, short(tx.frames), short(tx.bits), short(rx.frames), short(rx.bits), drops]
    };
    for port in &now.ports {
        let old = known.get(&port.port).copied().unwrap_or(port);
        let drops = short(interval.growth(old.drops.values().sum(), port.drops.values().sum()));
        table.row(row(port.port.to_string(), [port.tx, port.rx], [old.tx, old.rx], drops));
        for queue in 0..if queues { rings(port) } else { 0 } {
            let (now, old) = (ring(port, queue), ring(old, queue));
            table.row(row(format!("  ring {queue}"), now, old, String::new()));
        }
    }
    table.fitted()
}

const EXAMPLES: &str = "\
Examples:
  uvala stats                  all ports
  uvala stats vale0 --watch    rates, every second
  uvala stats vale0:vm1 --queues
  uvala stats --gone           what programs that have ended had sent, received and lost
  uvala stats --explain        what the reasons for drops mean, and what to do
  uvala stats --json --watch=5 >> stats.jsonl";

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(at_s: u64, frames: u64) -> Snapshot {
        let tx = Counter { frames, bytes: frames * 60 };
        let drops = [("no_room".to_owned(), frames / 2)].into();
        let port = PortStats {
            port: "vale0:a".parse().unwrap(),
            serial: 0,
            tx,
            rx: Counter::default(),
            drops,
            tx_queues: vec![tx],
            rx_queues: vec![Counter::default()],
            resyncs: 0,
            abandoned: 0,
            wakes: 0,
            longest_turn_ns: 0,
            rx_fill: None,
            called_in: 0,
            called_out: 0,
            gone_s: None,
        };
        Snapshot { at_ns: at_s * 1_000_000_000, ports: vec![port] }
    }

    #[test]
    fn test_totals_show_reasons_and_rings() {
        let text = totals(&snapshot(1, 10), true);
        assert!(text.contains("no_room 5") && text.contains("  ring 0"), "{text}");
        let mut gone = snapshot(1, 10);
        gone.ports[0].gone_s = Some(7);
        assert!(totals(&gone, false).contains("vale0:a (7 s ago)"));
    }

    #[test]
    fn test_rates_are_differences_by_time() {
        let text = rates(&snapshot(1, 10), &snapshot(3, 2_000_010), false);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["vale0:a", "1.00M", "480M", "0", "0", "500k"]);
        assert_eq!(text.lines().count(), 2);
        let text = rates(&snapshot(1, 10), &snapshot(3, 2_000_010), true);
        let ring: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(ring, ["ring", "0", "1.00M", "480M", "0", "0"]);
        let restarted = rates(&snapshot(3, 100), &snapshot(4, 10), false);
        assert!(restarted.lines().nth(1).unwrap().contains(" 10 "), "{restarted}");
    }
}
