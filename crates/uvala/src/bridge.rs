//! `uvala bridge`: what one port receives, the other one sends, both ways.
//!
//! Each direction has a thread that sleeps when there is nothing to do. It holds the receiving half
//! of one port and the sending half of the other. In one trust group the buffers change places,
//! otherwise the frame is copied. When the daemon goes away both directions end, and begin anew
//! with new ports when it is back.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use client::{Error, Port, Receiver, Sender};
use protocol::name::PortName;
use protocol::{Counter, PortStats};
use serde::Serialize;

use bench::traffic::session::{PortArgs, Stats, Stop, TICK, may_come_back};
use terminal::Usage;
use terminal::say;
use terminal::units;

/// Slots moved at once.
const BATCH: u32 = 256;

/// Connect two ports: forward frames both ways
///
/// The ports may belong to one switch or to two, or be ends of pipes. With --group both are in one
/// trust group, and the bridge forwards frames without a copy. It prints rates to stderr once a
/// second, and a summary to stdout. SIGINT and SIGTERM end it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// First port; a missing port or switch is created
    a: String,

    /// Second port
    b: String,

    /// Print rates even if stderr is not a terminal
    #[arg(long)]
    report: bool,

    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    port_args: PortArgs,
}

/// What went through, as the switch counted it since the ports were last opened.
#[derive(Debug, Serialize)]
struct Summary {
    ports: [String; 2],
    /// Whether the bridge swaps buffers rather than copies.
    zero_copy: bool,
    seconds: f64,
    /// From the first port to the second; nothing for pipes, which have no counters.
    forward: Option<Counter>,
    /// The other way.
    backward: Option<Counter>,
    /// Frames dropped at either port, by reason.
    drops: BTreeMap<String, u64>,
    reconnects: u32,
}

/// Runs the subcommand.
pub fn run(dir: Option<&Path>, args: &Args) -> Result<()> {
    let names: [PortName; 2] = [args.a.parse()?, args.b.parse()?];
    if names[0] == names[1] {
        return Err(Usage(format!("{} cannot be bridged with itself", names[0])).into());
    }
    let stop = Stop::on_signals()?;
    args.port_args.pin()?;
    let mut bridge = Bridge {
        names,
        dir,
        args,
        stop,
        start: Instant::now(),
        zero_copy: false,
        reconnects: 0,
        last: [None, None],
    };
    let mut ports = bridge.open()?;
    loop {
        bridge.zero_copy = ports[0].region() == ports[1].region();
        match bridge.forward(ports) {
            Ok(()) => break,
            Err(Error::Lost(_)) if !args.port_args.no_reconnect => match bridge.reopen()? {
                Some(again) => ports = again,
                None => break,
            },
            Err(error) => return Err(error.into()),
        }
    }
    bridge.summarise()
}

/// A bridge for as long as it runs.
struct Bridge<'a> {
    names: [PortName; 2],
    dir: Option<&'a Path>,
    args: &'a Args,
    stop: Stop,
    start: Instant,
    zero_copy: bool,
    reconnects: u32,
    /// Counters of the ports just before they were closed.
    last: [Option<PortStats>; 2],
}

impl Bridge<'_> {
    fn open(&self) -> Result<[Port; 2], Error> {
        let open = |name| self.args.port_args.open(name, self.dir);
        Ok([open(&self.names[0])?, open(&self.names[1])?])
    }

    /// Opens the ports when the daemon is back; `None` if a signal came first.
    fn reopen(&mut self) -> Result<Option<[Port; 2]>> {
        say::remark("the daemon has stopped; waiting for it to start again");
        while self.stop.sleep(TICK) {
            match self.open() {
                Ok(ports) => {
                    say::remark("the daemon is back");
                    self.reconnects += 1;
                    return Ok(Some(ports));
                }
                Err(error) if may_come_back(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Forwards both ways until a signal, or until one way fails.
    fn forward(&mut self, [a, b]: [Port; 2]) -> Result<(), Error> {
        let ((a_tx, a_rx), (b_tx, b_rx)) = (a.split(), b.split());
        let over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let there = scope.spawn(move || one_way(a_rx, b_tx, over));
            let back = scope.spawn(move || one_way(b_rx, a_tx, over));
            self.watch(over);
            // While the ports are still there.
            self.last = self.stats().map(|mut stats| stats.get());
            over.store(true, Ordering::Relaxed);
            let results = [there, back].map(|way| way.join().expect("no direction panics"));
            results.into_iter().collect()
        })
    }

    /// Prints rates until a signal, or until one way has failed.
    fn watch(&self, over: &AtomicBool) {
        let quiet = !self.args.report && !std::io::stderr().is_terminal();
        let mut stats = self.stats();
        let (mut before, mut since) = (None, Instant::now());
        while !over.load(Ordering::Relaxed) && self.stop.sleep(TICK) {
            let time = since.elapsed();
            if quiet || time < Duration::from_secs(1) {
                continue;
            }
            let now = stats.each_mut().map(|stats| stats.get().map(|stats| stats.tx));
            if let (Some(before), [Some(a), Some(b)]) = (before, now) {
                print_rates(before, [b, a], time);
            }
            before = now[1].zip(now[0]).map(|(b, a)| [b, a]);
            since = Instant::now();
        }
    }

    fn stats(&self) -> [Stats; 2] {
        self.names.clone().map(|name| Stats::new(name, self.dir.map(Path::to_owned)))
    }

    fn summarise(&self) -> Result<()> {
        let [a, b] = &self.last;
        let mut drops = BTreeMap::new();
        for (reason, count) in [a, b].into_iter().flatten().flat_map(|stats| &stats.drops) {
            *drops.entry(reason.clone()).or_default() += count;
        }
        let summary = Summary {
            ports: self.names.clone().map(|name| name.to_string()),
            zero_copy: self.zero_copy,
            seconds: self.start.elapsed().as_secs_f64(),
            forward: b.as_ref().map(|stats| stats.tx),
            backward: a.as_ref().map(|stats| stats.tx),
            drops,
            reconnects: self.reconnects,
        };
        if self.args.json { say::json(&summary) } else { say::out(summary.table()) }
    }
}

/// Forwards what one half receives to the other, until it is over or fails; then the other
/// direction ends too.
fn one_way(mut from: Receiver, mut to: Sender, over: &AtomicBool) -> Result<(), Error> {
    let mut turns = || -> Result<(), Error> {
        while !over.load(Ordering::Relaxed) {
            turn(&mut from, &mut to)?;
        }
        // The port ends with this thread: what it holds would end with it.
        to.drain(Some(Duration::from_secs(1))).map(drop)
    };
    let result = turns();
    over.store(true, Ordering::Relaxed);
    result
}

/// Forwards a batch from each ring, or waits.
fn turn(from: &mut Receiver, to: &mut Sender) -> Result<(), Error> {
    let mut moved = 0;
    for ring in 0..from.rings() {
        let (rx, tx) = (from.rx(ring), to.tx(ring % to.rings()));
        let slots = rx.forward(tx, BATCH)?;
        if slots == 0 && rx.owned() > 0 {
            // Not even the first frame has room.
            tx.wait(tx.owned() + 1, Some(TICK))?;
            moved += 1;
        }
        moved += slots;
    }
    if moved == 0 {
        match from.wait(Some(TICK)) {
            Err(error @ Error::Resynced { .. }) => say::remark(error),
            result => return result.map(drop),
        }
    }
    Ok(())
}

fn print_rates(before: [Counter; 2], now: [Counter; 2], time: Duration) {
    let rates = |way: usize| {
        let frames = now[way].frames.saturating_sub(before[way].frames);
        let bytes = now[way].bytes.saturating_sub(before[way].bytes);
        let packets = units::packet_rate(units::per_second(frames, time));
        let bits = units::bit_rate(units::per_second(bytes * 8, time));
        format!("{packets:>11} {bits:>11}")
    };
    say::remark(format_args!("-> {}   <- {}", rates(0), rates(1)));
}

impl Summary {
    fn table(&self) -> String {
        let way = |counter: Option<Counter>| {
            counter.map_or("not counted".to_owned(), |counter| {
                let frames = units::count(counter.frames);
                format!("{frames} frames, {}", units::bytes(counter.bytes))
            })
        };
        let (a, b) = (&self.ports[0], &self.ports[1]);
        let (there, back) = (format!("{a} -> {b}"), format!("{b} -> {a}"));
        let mut rows = vec![
            (there.as_str(), way(self.forward)),
            (back.as_str(), way(self.backward)),
            ("buffers", if self.zero_copy { "passed on" } else { "copied" }.to_owned()),
            ("time", format!("{:.3} s", self.seconds)),
        ];
        for (reason, count) in &self.drops {
            rows.push(("dropped", format!("{} ({reason})", units::count(*count))));
        }
        if self.reconnects > 0 {
            rows.push(("reconnects", self.reconnects.to_string()));
        }
        units::table(&rows)
    }
}

const EXAMPLES: &str = "\
Examples:
  uvala bridge vale0:x vale1:x                   join two switches
  uvala bridge vale0:x vale1:x --group chain     the same without a copy on the way
  uvala bridge vale0:x vale1:x --cpu 1 --wait spin    on a CPU of its own
  uvala bridge vale0:x vale1:x --report --json 2>rates.txt >summary.json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_table_says_what_went_where() {
        let counter = Some(Counter { frames: 12_345, bytes: 740_700 });
        let summary = Summary {
            ports: ["vale0:x".to_owned(), "vale1:x".to_owned()],
            zero_copy: true,
            seconds: 1.5,
            forward: counter,
            backward: None,
            drops: BTreeMap::from([("no_room".to_owned(), 7)]),
            reconnects: 0,
        };
        let table = summary.table();
        assert!(table.contains("vale0:x -> vale1:x  12,345 frames, 741 kB\n"), "{table}");
        assert!(table.contains("vale1:x -> vale0:x  not counted\n"), "{table}");
        assert!(table.contains("dropped             7 (no_room)\n"), "{table}");
    }
}
