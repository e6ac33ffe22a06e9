//! Measures the lines of a figure.
//!
//! All points in turn, round after round: whatever happens to the machine meanwhile happens to all
//! of them. Nothing that was asked for disappears: what has no sample in the figure's regime is
//! drawn from those it has, and marked; what has none at all is marked as missing, with the reason.

use std::time::Duration;

use anyhow::{Context, Result};

use super::plot::{Look, Mark, Point, Series};
use crate::limit;
use crate::peers;
use crate::probe::Regime;
use crate::sample::{Sample, Series as Samples, best_supported, prevailing, summarize};
use crate::scenario::Limit;
use crate::scenario::Peer;
use crate::subject;
use crate::work::Work;
use terminal::say;

/// Length of a sample.
const TIME: Duration = Duration::from_millis(250);

/// A line before it is measured.
pub struct Line {
    /// In the legend.
    pub name: &'static str,
    /// How it looks.
    pub look: Look,
    /// The subject of the measurement.
    pub of: Of,
    /// Where, and at which work.
    pub points: Vec<(f64, Work)>,
}

/// The subject of a measurement.
#[derive(Clone, Copy)]
pub enum Of {
    /// This switch.
    Subject,
    /// The machine.
    Limit(Limit),
    /// Other software.
    Peer(Peer),
}

/// What came of it.
pub struct Measured {
    /// Lines with at least one point.
    pub series: Vec<Series>,
    /// Sentences about samples and regime, and about what is missing.
    pub notes: Vec<String>,
}

/// A point while it is measured.
struct Spot<'a> {
    line: &'a Line,
    x: f64,
    work: &'a Work,
    samples: Vec<Sample>,
    problem: Option<String>,
}

/// Measures every point of all lines `rounds` times.
pub fn measure(figure: &str, lines: &[Line], rounds: usize) -> Measured {
    let spots = lines
        .iter()
        .flat_map(|line| line.points.iter().map(move |(x, work)| Spot::new(line, *x, work)));
    let mut spots: Vec<Spot<'_>> = spots.collect();
    let (mut one_core, mut crossing) = (Samples::new(true), Samples::new(false));
    for round in 1..=rounds {
        say::remark(format_args!("{figure}: round {round} of {rounds}"));
        for spot in &mut spots {
            let alone = spot.work.placement.one_core();
            spot.take(if alone { &mut one_core } else { &mut crossing });
        }
    }
    let all = spots.iter().flat_map(|spot| &spot.samples).copied();
    let all: Vec<Sample> = all.filter(|sample| sample.regime != Regime::OneCore).collect();
    let regime = prevailing(&all).unwrap_or(Regime::OneCore);
    let mut notes = vec![about_samples(&spots, regime, rounds)];
    notes.extend(about_marks(&spots, regime));
    let of = |line: &Line| {
        let points = spots.iter().filter(|spot| std::ptr::eq(spot.line, line));
        let points: Vec<Point> = points.map(|spot| spot.point(regime)).collect();
        let any = points.iter().any(|point| point.mark != Mark::Missing);
        any.then(|| Series { name: line.name.to_owned(), look: line.look, points })
    };
    Measured { series: lines.iter().filter_map(of).collect(), notes }
}

impl<'a> Spot<'a> {
    fn new(line: &'a Line, x: f64, work: &'a Work) -> Self {
        Self { line, x, work, samples: Vec::new(), problem: None }
    }

    /// Takes a sample. What fails is tried again in the next round: the machine may have been busy.
    fn take(&mut self, series: &mut Samples) {
        match series.take(|| self.line.of.measure(self.work)) {
            Ok(sample) => self.samples.push(sample),
            Err(error) => {
                if self.problem.is_none() {
                    say::remark(format_args!("{} at {}: {error:#}", self.line.name, self.x));
                }
                self.problem = Some(format!("{error:#}"));
            }
        }
    }

    /// The regime to show: the given one if measured, else one core, else the prevailing one.
    fn regime(&self, regime: Regime) -> Option<Regime> {
        let has = |regime| self.samples.iter().any(|sample| sample.regime == regime);
        let own = [regime, Regime::OneCore].into_iter().find(|&regime| has(regime));
        own.or_else(|| prevailing(&self.samples))
    }

    fn point(&self, regime: Regime) -> Point {
        let own = self.regime(regime);
        let summary = own.and_then(|own| summarize(&self.samples, own));
        let mark = match (&summary, own) {
            (None, _) | (_, None) => Mark::Missing,
            (_, Some(own)) if own == regime || own == Regime::OneCore => Mark::Measured,
            (_, Some(own)) => Mark::Elsewhere(own.name()),
        };
        let (y, spread) = summary.map_or((0.0, None), |s| (s.median, Some(s.spread)));
        Point { x: self.x, y, spread, mark }
    }
}

impl Of {
    fn measure(self, work: &Work) -> Result<f64> {
        match self {
            Of::Subject => Ok(subject::run(work, TIME)?.value),
            Of::Limit(kind) => {
                limit::measure(kind, work, TIME / 2)?.context("there is no limit for this work")
            }
            Of::Peer(peer) => Ok(peers::measure(peer, work, TIME)?.value),
        }
    }
}

/// How many samples there are, and which of them are drawn.
fn about_samples(spots: &[Spot<'_>], regime: Regime, rounds: usize) -> String {
    let drawn = |spot: &Spot<'_>| {
        let own = spot.regime(regime);
        spot.samples.iter().filter(|sample| Some(sample.regime) == own).count()
    };
    let counts = spots.iter().map(drawn).filter(|&count| count > 0);
    let range = counts.fold(None, |range, count| {
        let (low, high) = range.unwrap_or((count, count));
        Some((count.min(low), count.max(high)))
    });
    let Some((low, high)) = range else { return "Nothing was measured.".to_owned() };
    let count = if low == high { low.to_string() } else { format!("{low} to {high}") };
    let cores = whereabouts(regime);
    format!("Marks: median; bars: smallest and largest; of {count} samples of {rounds}, {cores}.")
}

fn whereabouts(regime: Regime) -> &'static str {
    match regime {
        Regime::Smt => "both threads on one core",
        Regime::Near => "taken while the cores were near each other",
        Regime::Far => "taken while the cores were far apart",
        Regime::Unknown => "the distance of the cores unknown",
        Regime::Straddled => "taken while the cores moved",
        Regime::OneCore => "all on one core",
    }
}

/// What hollow marks and crosses mean, where there are some.
fn about_marks(spots: &[Spot<'_>], regime: Regime) -> Vec<String> {
    let mut notes = Vec::new();
    let marks = || spots.iter().map(|spot| spot.point(regime).mark);
    if marks().any(|mark| matches!(mark, Mark::Elsewhere(_))) {
        notes.push("Hollow: no such sample; the cores were where the mark says.".to_owned());
    }
    let mut missing: Vec<(&str, Vec<&Spot<'_>>)> = Vec::new();
    for spot in spots.iter().filter(|spot| best_supported(&spot.samples).is_none()) {
        match missing.last_mut() {
            Some((name, of)) if *name == spot.line.name => of.push(spot),
            _ => missing.push((spot.line.name, vec![spot])),
        }
    }
    for (name, of) in missing {
        let why = of[0].problem.as_deref().unwrap_or("no sample");
        let which = if of.len() == of[0].line.points.len() {
            name.to_owned()
        } else {
            let at: Vec<String> = of.iter().map(|spot| spot.x.to_string()).collect();
            format!("{name} at {} (crosses)", at.join(", "))
        };
        notes.push(format!("Not measured: {which}: {why}."));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::COPY;

    fn spot(line: &Line, values: &[(f64, Regime)]) -> (Point, Vec<String>) {
        let samples = values
            .iter()
            .map(|&(value, regime)| Sample { value, regime, reading: value.into() })
            .collect();
        let problem = values.is_empty().then(|| "no program for it".to_owned());
        let spot = Spot { line, x: 4.0, work: &COPY, samples, problem };
        (spot.point(Regime::Near), about_marks(&[spot], Regime::Near))
    }

    #[test]
    fn test_no_point_disappears() {
        let points = vec![(4.0, COPY), (8.0, COPY)];
        let line = Line { name: "ours", look: Look::Own(0), of: Of::Subject, points };
        let near = [(3.0, Regime::Near), (9.0, Regime::Far), (1.0, Regime::Near)];
        let (point, notes) = spot(&line, &near);
        assert_eq!((point.y, point.spread, point.mark), (2.0, Some((1.0, 3.0)), Mark::Measured));
        assert!(notes.is_empty());
        let (point, notes) = spot(&line, &[(9.0, Regime::Far)]);
        assert_eq!((point.y, point.mark), (9.0, Mark::Elsewhere("far")));
        assert!(notes[0].starts_with("Hollow"));
        let (point, notes) = spot(&line, &[]);
        assert_eq!(point.mark, Mark::Missing);
        assert_eq!(notes, ["Not measured: ours at 4 (crosses): no program for it."]);
    }

    #[test]
    fn test_caption_tells_how_many_samples_there_are() {
        let line = Line { name: "", look: Look::Own(0), of: Of::Subject, points: vec![] };
        let near = Sample { value: 1.0, regime: Regime::Near, reading: 1.0.into() };
        let spots =
            [5, 3].map(|count| Spot { samples: vec![near; count], ..Spot::new(&line, 1.0, &COPY) });
        let text = about_samples(&spots, Regime::Near, 5);
        assert!(text.contains("of 3 to 5 samples of 5, taken while the cores were near"), "{text}");
        assert_eq!(about_samples(&[], Regime::Near, 5), "Nothing was measured.");
    }
}
