//! `uvala bench figures`: the sweeps as plots, beside the machine's limits and what VALE published.
//!
//! The figures follow the evaluation of the VALE paper (CoNEXT 2012, figures 6 to 12): rate by
//! frame length, by batch, by number of destinations and of ports, in both directions, and the time
//! of a round trip; and add what VALE did not have, trust groups and pipes. What the paper states
//! in words is drawn beside ours ([`published`]); every caption says what is not.

mod chain;
mod measure;
mod plot;
mod published;

use std::path::Path as FilePath;

use anyhow::{Context, Result};

use super::machine::{self, Machine};
use crate::scenario::Limit;
use crate::scenario::Peer;
use crate::work::{
    Api, Batch, COPY, Forwarding, Offer, Path, Payload, Placement, Traffic, Wait, Work,
};
use measure::{Line, Of};
use plot::{Axis, Look, Plot, Series};
use terminal::Usage;
use terminal::say;

/// A figure before it is measured.
struct Figure {
    file: &'static str,
    title: &'static str,
    x: Axis,
    y: Axis,
    lines: Vec<Line>,
    published: Vec<Series>,
    notes: Vec<&'static str>,
}

const LENGTHS: [u16; 7] = [60, 128, 256, 512, 1024, 1514, 9000];

/// Measures and draws all figures, or those named.
pub fn draw(names: &[String], out: &FilePath, rounds: usize) -> Result<()> {
    let known: Vec<&str> = all().iter().map(|figure| figure.file).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(Usage(format!("no figure {name}; there are: {}", known.join(", "))).into());
    }
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let wanted = |f: &Figure| names.is_empty() || names.iter().any(|name| name == f.file);
    for figure in all().into_iter().filter(wanted) {
        let path = out.join(format!("{}.svg", figure.file));
        let plot = figure.measure(rounds);
        std::fs::write(&path, plot.svg())
            .with_context(|| format!("cannot write {}", path.display()))?;
        say::remark(format_args!("wrote {}", path.display()));
    }
    Ok(())
}

fn all() -> Vec<Figure> {
    let mut all = vec![by_length(), by_batch(), by_destinations(), by_idle_ports()];
    all.extend([both_directions(), round_trips(), by_path(), by_offer()]);
    all.extend(chain::figures());
    all
}

impl Figure {
    fn measure(self, rounds: usize) -> Plot {
        let measured = measure::measure(self.file, &self.lines, rounds);
        let mut series = measured.series;
        series.extend(self.published);
        let mut caption = vec![conditions()];
        caption.extend(measured.notes);
        caption.extend(self.notes.iter().map(|&note| note.to_owned()));
        Plot { title: self.title.into(), caption, x: self.x, y: self.y, series }
    }
}

/// Where and when this was measured.
fn conditions() -> String {
    let machine = Machine::here();
    format!("{}, {}, Linux {}.", machine::today(), machine.cpu, machine.kernel)
}

fn axis(label: &str, log: bool) -> Axis {
    Axis { label: label.into(), log, joined: true, ticks: vec![] }
}

fn marked(label: &str, ticks: &[u16]) -> Axis {
    let ticks = ticks.iter().map(|&t| (f64::from(t), t.to_string())).collect();
    Axis { label: label.into(), log: true, joined: true, ticks }
}

const RATE: &str = "million frames a second";

/// A line over frame lengths.
fn over_lengths(name: &'static str, look: Look, of: Of, base: Work, longest: u16) -> Line {
    let lengths = LENGTHS.into_iter().filter(|&l| l <= longest);
    let point = |length: u16| {
        let batch = if length > 256 { Batch::all(64) } else { base.batch };
        (f64::from(length), Work { frame_len: length, batch, ..base })
    };
    Line { name, look, of, points: lengths.map(point).collect() }
}

const ONE_CORE: Work = Work { placement: Placement::ONE, ..COPY };

fn by_length() -> Figure {
    Figure {
        file: "frame-length",
        title: "Rate by frame length, one sender to one receiver",
        // 1024 would touch 1514.
        x: marked("frame length, bytes", &[60, 128, 256, 512, 1514, 9000]),
        y: axis(RATE, true),
        lines: vec![
            over_lengths(
                "uvala, three processes on two cores",
                Look::Own(0),
                Of::Subject,
                COPY,
                9000,
            ),
            over_lengths("uvala, on one core", Look::Own(1), Of::Subject, ONE_CORE, 9000),
            over_lengths(
                "limit: ring, two cores",
                Look::Limit,
                Of::Limit(Limit::Exchange),
                COPY,
                1514,
            ),
            over_lengths("DPDK memif, no switch", Look::Peer(0), Of::Peer(Peer::Memif), COPY, 1514),
            over_lengths("Linux bridge, TAP", Look::Peer(1), Of::Peer(Peer::Bridge), COPY, 1514),
        ],
        published: vec![published::vale_by_length()],
        notes: vec!["Payload written, copied, read and checked.", published::SOURCE],
    }
}

fn by_batch() -> Figure {
    const BATCHES: [u16; 8] = [1, 4, 16, 32, 64, 128, 256, 1024];
    let line = |name, number, of: fn(u16) -> Batch| {
        let point = |batch| (f64::from(batch), Work { batch: of(batch), ..COPY });
        Line {
            name,
            look: Look::Own(number),
            of: Of::Subject,
            points: BATCHES.into_iter().map(point).collect(),
        }
    };
    let ring = Line {
        look: Look::Limit,
        of: Of::Limit(Limit::Exchange),
        ..line("limit: ring, two cores", 0, Batch::all)
    };
    Figure {
        file: "batch",
        title: "Rate by batch, 60-byte frames",
        x: marked("frames a batch", &BATCHES),
        y: axis(RATE, true),
        lines: vec![
            line("uvala, all parties", 0, Batch::all),
            line("uvala, sender only", 1, |sender| Batch { sender, ..Batch::all(256) }),
            line("uvala, switch only", 2, |switch| Batch { switch, ..Batch::all(256) }),
            line("uvala, receiver only", 3, |receiver| Batch { receiver, ..Batch::all(256) }),
            ring,
        ],
        published: vec![published::vale_by_batch(), published::vale_by_switch_batch()],
        notes: vec![
            "Payload written, copied, read and checked; the others' batch is 256.",
            published::SOURCE,
        ],
    }
}

fn by_destinations() -> Figure {
    const COUNTS: [u8; 5] = [1, 2, 4, 8, 16];
    let base = Work {
        payload: Payload::Untouched,
        batch: Batch::all(64),
        placement: Placement { sender: 0, switch: 0, receiver: 1 },
        ..COPY
    };
    let line = |name, number, traffic: fn(u8) -> Traffic| {
        let point = |count| (f64::from(count), Work { traffic: traffic(count), ..base });
        let points = COUNTS.into_iter().map(point).collect();
        Line { name, look: Look::Own(number), of: Of::Subject, points }
    };
    Figure {
        file: "destinations",
        title: "Deliveries by number of destinations, 60-byte frames",
        x: marked("receiving ports", &COUNTS.map(u16::from)),
        y: axis("million deliveries a second", false),
        lines: vec![
            line("uvala, broadcast", 0, Traffic::Broadcast),
            line("uvala, unicast in turn", 1, Traffic::Unicast),
        ],
        published: vec![published::vale_to_one()],
        notes: vec![
            "Sender and switch on one core, one process drains all ports on the other; untouched.",
            published::SOURCE,
        ],
    }
}

fn by_idle_ports() -> Figure {
    const PORTS: [u16; 8] = [2, 4, 8, 16, 32, 64, 128, 256];
    let base = Work { payload: Payload::Untouched, batch: Batch::all(64), ..COPY };
    let point = |ports: u16| (f64::from(ports), Work { idle_ports: ports - 2, ..base });
    let points = PORTS.into_iter().map(point).collect();
    Figure {
        file: "idle-ports",
        title: "Rate between two ports by number of attached ports",
        x: marked("attached ports, two of them busy", &PORTS),
        y: axis(RATE, false),
        lines: vec![Line { name: "uvala", look: Look::Own(0), of: Of::Subject, points }],
        published: vec![],
        notes: vec!["60-byte frames, payload untouched. VALE published no number for this."],
    }
}

fn both_directions() -> Figure {
    let both = Work { traffic: Traffic::Both, ..COPY };
    Figure {
        file: "both-directions",
        title: "Rate in one and in both directions",
        x: marked("frame length, bytes", &LENGTHS[..6]),
        y: axis(RATE, true),
        lines: vec![
            over_lengths("uvala, one direction", Look::Own(0), Of::Subject, COPY, 1514),
            over_lengths("uvala, both, together", Look::Own(1), Of::Subject, both, 1514),
        ],
        published: vec![published::vale_by_length()],
        notes: vec!["Payload written, copied, read and checked.", published::SOURCE],
    }
}

fn round_trips() -> Figure {
    let kinds = [
        (Wait::Asleep, Placement::ONE, "asleep, one core"),
        (Wait::Asleep, Placement::TWO, "asleep, two cores"),
        (Wait::Yield, Placement::TWO, "yielding, two cores"),
        (Wait::Spin, Placement::TWO, "spinning, two cores"),
    ];
    let line = |name, look, of, path: Path, which: &[usize]| {
        let point = |&i: &usize| {
            let (wait, placement, _) = kinds[i];
            // Without a switch the second core has the other end alone.
            let apart = path == Path::Pipe && placement == Placement::TWO;
            let placement = if apart { Placement::APART } else { placement };
            let traffic = Traffic::RoundTrip(wait);
            (i as f64, Work { path, placement, traffic, batch: Batch::all(1), ..COPY })
        };
        Line { name, look, of, points: which.iter().map(point).collect() }
    };
    let ticks = kinds.iter().enumerate().map(|(i, kind)| (i as f64, kind.2.to_owned())).collect();
    let floor = |wait| Of::Limit(crate::scenario::of_round_trip(wait, true));
    let all = [0, 1, 2, 3];
    let (isolated, subject) = (Path::Isolated, Of::Subject);
    Figure {
        file: "round-trip",
        title: "Round trip of a 60-byte frame, median",
        x: Axis { label: "wait policy of all parties".into(), log: false, joined: false, ticks },
        y: axis("microseconds", true),
        lines: vec![
            line("uvala, isolated ports", Look::Own(0), subject, isolated, &all),
            line("uvala, trust group", Look::Own(1), subject, Path::Group, &all),
            line("uvala, pipe", Look::Own(2), subject, Path::Pipe, &all),
            line("floor: four wake-ups", Look::Limit, floor(Wait::Asleep), isolated, &[0]),
            line("floor: two line trips", Look::Limit, floor(Wait::Spin), isolated, &[3]),
            line("Linux bridge, TAP", Look::Peer(1), Of::Peer(Peer::Bridge), isolated, &[0, 1]),
            line("vde", Look::Peer(2), Of::Peer(Peer::Vde), isolated, &[0, 1]),
        ],
        published: vec![],
        notes: vec!["The times in the VALE paper were not at hand in numbers."],
    }
}

fn by_path() -> Figure {
    let group = Work { path: Path::Group, ..COPY };
    let pipe = Work { path: Path::Pipe, placement: Placement::APART, ..COPY };
    let zero_copy = Of::Peer(Peer::MemifZeroCopy);
    Figure {
        file: "trust",
        title: "Rate between isolated ports, in a trust group, through a pipe",
        x: marked("frame length, bytes", &LENGTHS[..6]),
        y: axis(RATE, true),
        lines: vec![
            over_lengths("uvala, isolated: one copy", Look::Own(0), Of::Subject, COPY, 1514),
            over_lengths("uvala, trust group: swap", Look::Own(1), Of::Subject, group, 1514),
            over_lengths("uvala, pipe", Look::Own(2), Of::Subject, pipe, 1514),
            over_lengths(
                "limit: ring, two cores",
                Look::Limit,
                Of::Limit(Limit::Exchange),
                COPY,
                1514,
            ),
            over_lengths("DPDK memif, zero-copy", Look::Peer(0), zero_copy, COPY, 1514),
        ],
        published: vec![published::netmap_pipe()],
        notes: vec!["Payload written, read and checked.", published::PIPE_SOURCE],
    }
}

/// After figure 3 of the ANCS paper: how much a machine still receives that is interrupted for
/// every frame.
fn by_offer() -> Figure {
    const OFFERS: [u16; 8] = [20, 50, 100, 150, 200, 300, 500, 1000];
    let base = Work {
        api: Api::Driver,
        path: Path::Guests,
        forwarding: Forwarding::Patch,
        batch: Batch::all(64),
        placement: Placement { sender: 1, switch: 1, receiver: 0 },
        ..COPY
    };
    let line = |name, number, gap_usecs| {
        let offer = |kpps| Traffic::Slow(Offer { kpps, gap_usecs });
        let point = |kpps| (f64::from(kpps), Work { traffic: offer(kpps), ..base });
        let points = OFFERS.into_iter().map(point).collect();
        Line { name, look: Look::Own(number), of: Of::Subject, points }
    };
    Figure {
        file: "livelock",
        title: "What a slow machine gets done of what it is offered",
        x: marked("offered, thousand frames a second", &OFFERS),
        y: axis("done, thousand frames a second", false),
        lines: vec![
            line("interrupts adapt", 0, None),
            line("50 µs apart", 1, Some(50)),
            line("not moderated", 2, Some(0)),
        ],
        published: vec![],
        notes: vec![
            "A driver interrupted for whatever comes: 4 µs for each interrupt, 2 µs a frame.",
            "60-byte frames; sender and switch on one core, the machine on the other.",
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_figures_have_lines_and_points_of_distinct_files() {
        let all = all();
        let mut files: Vec<_> = all.iter().map(|f| f.file).collect();
        files.sort_unstable();
        files.dedup();
        assert_eq!(files.len(), all.len());
        for figure in &all {
            assert!(figure.lines.iter().all(|l| !l.points.is_empty()), "{}", figure.file);
        }
    }

    #[test]
    fn test_sweeps_cover_what_is_promised() {
        let points = |figure: Figure, line: usize| {
            let ends = &figure.lines[line].points;
            (ends[0].0, ends[ends.len() - 1].0)
        };
        assert_eq!(points(by_length(), 0), (60.0, 9000.0));
        assert_eq!(points(by_batch(), 0), (1.0, 1024.0));
        assert_eq!(points(by_destinations(), 0), (1.0, 16.0));
        assert_eq!(points(by_idle_ports(), 0), (2.0, 256.0));
    }
}
