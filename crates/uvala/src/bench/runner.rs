//! Runs one scenario: subject and limit in turns, probe around every sample, then the peers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::limit::{self, Limit};
use super::peers::{self, Peer};
use super::probe::{self, Regime};
use super::report::{PeerResult, Report};
use super::sample::{Sample, Series, Summary, settle, summarize};
use super::scenario::{Scenario, Traffic, Work};
use super::subject;
use crate::say;

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
        peer_repeats: 3,
        peer: Duration::from_millis(500),
        budget: Duration::from_secs(120),
    };
}

/// What a run measures.
#[derive(Debug, Clone, Copy, Default)]
pub struct Choice {
    /// Leave out the subject: the machine and the others only.
    pub no_subject: bool,
    /// Leave out the peers.
    pub no_peers: bool,
}

/// Runs a scenario. A subject or a peer that fails is an entry in the report, not an error.
pub fn run(scenario: &Scenario, effort: Effort, choice: Choice) -> Report {
    let begin = Instant::now();
    let mut series = Series::new(scenario.one_core());
    let mut problems = Vec::new();
    let mut subject_samples = Vec::new();
    let mut limit_samples = Vec::new();
    for repeat in 1..=effort.repeats {
        progress(scenario.name, repeat, effort.repeats, series.last_probe());
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
    }
    let own = settle(&subject_samples);
    let regime =
        own.as_ref().or(settle(&limit_samples).as_ref()).map_or(Regime::Unknown, |s| s.regime);
    let limit = in_regime(&limit_samples, regime);
    let run_peers = if choice.no_peers { &[] } else { scenario.peers };
    let peers = run_peers
        .iter()
        .map(|&peer| {
            let left = effort.budget.saturating_sub(begin.elapsed());
            run_peer(peer, scenario, effort, &mut series, own.as_ref(), left)
        })
        .collect();
    Report::new(scenario, regime, own, limit, peers, series.probes(), problems)
}

/// One value of the subject, in the scenario's unit.
fn subject_value(scenario: &Scenario, work: &Work, effort: Effort) -> Result<f64> {
    let value = subject::run(work, effort.sample)?;
    match &scenario.baseline {
        None => Ok(value),
        Some(baseline) => {
            let full = subject::run(baseline, effort.sample)?;
            Ok((1.0 - value / full) * 100.0)
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

fn run_peer(
    peer: Peer,
    scenario: &Scenario,
    effort: Effort,
    series: &mut Series,
    own: Option<&Summary>,
    left: Duration,
) -> PeerResult {
    if left.is_zero() {
        return PeerResult::missing(peer, "no time left for it: run without --quick".into());
    }
    // A peer forwards from one port to one other, whatever our scenario does beside that.
    let traffic = match scenario.work.traffic {
        trip @ Traffic::RoundTrip(_) => trip,
        _ => Traffic::OneWay,
    };
    let work = Work { traffic, ..scenario.work };
    let mut samples = Vec::new();
    for _ in 0..effort.peer_repeats {
        progress(peer.name(), samples.len() + 1, effort.peer_repeats, series.last_probe());
        match series.take(|| peers::measure(peer, &work, effort.peer)) {
            Ok(sample) => samples.push(sample),
            Err(error) => return PeerResult::missing(peer, format!("{error:#}")),
        }
    }
    let summary = own
        .and_then(|own| summarize(&samples, own.regime))
        .or_else(|| settle(&samples))
        .expect("at least one sample was taken");
    PeerResult::measured(peer, &summary, own)
}

/// The samples of a regime, or of the prevailing one where that regime has none.
fn in_regime(samples: &[Sample], regime: Regime) -> Option<Summary> {
    summarize(samples, regime).or_else(|| settle(samples))
}

fn progress(what: &str, repeat: usize, of: usize, probe_ns: Option<f64>) {
    let probe = probe_ns.map_or_else(String::new, |ns| format!(", cores {ns:.0} ns apart"));
    say::remark(format_args!("{what}: sample {repeat} of {of}{probe}"));
}
