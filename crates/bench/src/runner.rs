//! Runs one scenario: subject and limit in turns, probe around every sample, then the peers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::probe::{self, Regime};
use super::report::{PeerResult, Report};
use super::sample::{Reading, Sample, Series, Summary, best_supported, summarize};
use super::subject;
use crate::limit;
use crate::peers;
use crate::scenario::Limit;
use crate::scenario::Peer;
use crate::scenario::Scenario;
use crate::work::{Traffic, Work};
use terminal::say;

/// How much time a scenario may take.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Samples of the subject and of its limit.
    pub repeats: usize,
    /// Length of one sample of the subject.
    pub sample: Duration,
    /// Length of one sample of the limit.
    pub limit: Duration,
    /// Samples of a peer.
    pub peer_repeats: usize,
    /// Length of one sample of a peer.
    pub peer: Duration,
    /// No peer is started after this much time.
    pub budget: Duration,
}

impl Effort {
    /// Less than ten seconds a scenario.
    pub const QUICK: Effort = Effort {
        repeats: 3,
        sample: Duration::from_millis(250),
        limit: Duration::from_millis(120),
        peer_repeats: 1,
        peer: Duration::from_millis(250),
        budget: Duration::from_millis(7500),
    };

    /// What results are published with.
    pub const FULL: Effort = Effort {
        repeats: 5,
        sample: Duration::from_millis(600),
        limit: Duration::from_millis(250),
        peer_repeats: 5,
        peer: Duration::from_millis(500),
        budget: Duration::from_secs(120),
    };

    /// The effort where every sample takes seconds to prepare.
    fn slow(self) -> Effort {
        Effort {
            repeats: self.peer_repeats,
            sample: 2 * self.peer,
            peer: 2 * self.peer,
            budget: Duration::from_secs(600),
            ..self
        }
    }
}

/// What a run measures.
#[derive(Debug, Clone, Copy, Default)]
pub struct Choice {
    /// Leave out the subject: the machine and the others only.
    pub no_subject: bool,
    /// Leave out the peers.
    pub no_peers: bool,
}

/// Runs a scenario: its limit, the subject and the peers in turn, again and again, so that
/// whatever happens to the machine meanwhile happens to all of them. A subject or a peer that fails
/// is an entry in the report, not an error.
pub fn run(scenario: &Scenario, effort: Effort, choice: Choice) -> Report {
    let effort = if scenario.slow { effort.slow() } else { effort };
    let begin = Instant::now();
    let mut series = Series::new(scenario.one_core());
    let mut problems = Vec::new();
    let mut subject_samples = Vec::new();
    let mut limit_samples = Vec::new();
    let run_peers = if choice.no_peers { &[] } else { scenario.peers };
    let mut peers: Vec<Contender> = run_peers.iter().map(|&peer| Contender::new(peer)).collect();
    for repeat in 1..=effort.repeats {
        let left = time_left(begin.elapsed(), repeat - 1, effort.repeats);
        progress(scenario.name, repeat, effort.repeats, series.last_probe(), left);
        if let Some(sample) = limit_sample(scenario, effort, &mut series, &mut problems) {
            limit_samples.push(sample);
        }
        if !choice.no_subject && problems.is_empty() {
            let work = scenario.work_in(probe::classify(series.last_probe()));
            match series.take(|| subject_value(scenario, &work, effort)) {
                Ok(sample) => subject_samples.push(sample),
                Err(error) => problems.push(format!("uvala: {error:#}")),
            }
        }
        if repeat <= effort.peer_repeats {
            for peer in &mut peers {
                let left = effort.budget.saturating_sub(begin.elapsed());
                peer.take(scenario, effort, &mut series, left);
            }
        }
    }
    let own = best_supported(&subject_samples);
    let regime = own
        .as_ref()
        .or(best_supported(&limit_samples).as_ref())
        .map_or(Regime::Unknown, |s| s.regime);
    let limit = in_regime(&limit_samples, regime);
    let peers = peers.into_iter().map(|peer| peer.result(own.as_ref())).collect();
    Report::new(scenario, regime, own, limit, peers, series.probes(), problems)
}

/// One value of the subject, in the scenario's unit.
fn subject_value(scenario: &Scenario, work: &Work, effort: Effort) -> Result<Reading> {
    let value = subject::run(work, effort.sample)?;
    match &scenario.baseline {
        None => Ok(value),
        Some(baseline) => {
            let full = subject::run(baseline, effort.sample)?;
            Ok(((1.0 - value.value / full.value) * 100.0).into())
        }
    }
}

fn limit_sample(
    scenario: &Scenario,
    effort: Effort,
    series: &mut Series,
    problems: &mut Vec<String>,
) -> Option<Sample> {
    if scenario.limit == Limit::None {
        return None;
    }
    let measure = || {
        limit::measure(scenario.limit, &scenario.work, effort.limit)?
            .context("the probe did not end: something else keeps a CPU busy")
    };
    match series.take(measure) {
        Ok(sample) => Some(sample),
        Err(error) => {
            let problem = format!("limit: {error:#}");
            if !problems.contains(&problem) {
                problems.push(problem);
            }
            None
        }
    }
}

/// A peer while it is measured.
struct Contender {
    peer: Peer,
    samples: Vec<Sample>,
    problem: Option<String>,
}

impl Contender {
    fn new(peer: Peer) -> Contender {
        Contender { peer, samples: Vec::new(), problem: None }
    }

    /// Takes a sample, unless it has failed before.
    fn take(&mut self, scenario: &Scenario, effort: Effort, series: &mut Series, left: Duration) {
        if self.problem.is_some() {
            return;
        }
        if left.is_zero() {
            self.problem = Some("no time left for it: run without --quick".into());
            return;
        }
        // A peer forwards from one port to one other, whatever our scenario does beside that.
        let traffic = match scenario.work.traffic {
            trip @ Traffic::RoundTrip(_) => trip,
            _ => Traffic::OneWay,
        };
        let work = Work { traffic, ..scenario.work };
        let number = self.samples.len() + 1;
        progress(self.peer.name(), number, effort.peer_repeats, series.last_probe(), None);
        match series.take(|| peers::measure(self.peer, &work, effort.peer)) {
            Ok(sample) => self.samples.push(sample),
            Err(error) => self.problem = Some(format!("{error:#}")),
        }
    }

    fn result(self, own: Option<&Summary>) -> PeerResult {
        let summary = own
            .and_then(|own| summarize(&self.samples, own.regime))
            .or_else(|| best_supported(&self.samples));
        match (summary, self.problem) {
            (Some(summary), _) => PeerResult::measured(self.peer, &summary, own),
            (None, problem) => PeerResult::missing(self.peer, problem.unwrap_or_default()),
        }
    }
}

/// The samples of a regime, or of the prevailing one where that regime has none.
fn in_regime(samples: &[Sample], regime: Regime) -> Option<Summary> {
    summarize(samples, regime).or_else(|| best_supported(samples))
}

fn progress(what: &str, repeat: usize, of: usize, probe_ns: Option<f64>, left: Option<Duration>) {
    let probe = probe_ns.map_or_else(String::new, |ns| format!(", cores {ns:.0} ns apart"));
    let left = left.map_or_else(String::new, |left| format!(", {} s left", left.as_secs()));
    say::remark(format_args!("{what}: sample {repeat} of {of}{probe}{left}"));
}

/// What the other samples take, if they take as long as those that are done.
fn time_left(elapsed: Duration, done: usize, of: usize) -> Option<Duration> {
    let (done, left) = (u32::try_from(done).ok()?, u32::try_from(of - done).ok()?);
    Some(elapsed.checked_div(done)? * left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_the_time_left_is_that_of_the_samples_so_far() {
        let minute = Duration::from_secs(60);
        assert_eq!(time_left(minute, 2, 5), Some(minute * 3 / 2));
        assert_eq!(time_left(Duration::ZERO, 0, 5), None, "nothing is known before the first");
    }
}
