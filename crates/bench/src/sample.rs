//! Samples, their regime, and what a series of them says: median and spread of one regime.

use serde::{Deserialize, Serialize};

use super::probe::{self, Regime};

/// What one measurement says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// In the scenario's unit.
    pub value: f64,
    /// Frames that did not arrive, in percent of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_percent: Option<f64>,
    /// Percent of a core that a Gbit/s took, of all processes of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_per_gbit: Option<f64>,
    /// How long a frame took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
}

impl From<f64> for Reading {
    fn from(value: f64) -> Reading {
        Reading { value, ..Reading::default() }
    }
}

/// One measured value with the distance of the cores around it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// In the scenario's unit.
    pub value: f64,
    /// Where the cores were.
    pub regime: Regime,
    /// What was seen beside the value.
    pub reading: Reading,
}

/// What a series of samples says.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The regime of all samples below.
    pub regime: Regime,
    /// Middle value; the mean of the two middle ones of an even number.
    pub median: f64,
    /// Smallest and largest value.
    pub spread: (f64, f64),
    /// How many samples were in that regime, of how many taken.
    pub used: (usize, usize),
    /// Medians of what was seen beside the values, and of these themselves.
    pub reading: Reading,
}

/// Takes samples between probes, the later probe of one sample being the earlier of the next.
pub struct Series {
    one_core: bool,
    last: Option<f64>,
    probes: Vec<Option<f64>>,
}

impl Series {
    /// A series whose work crosses cores, or (`one_core`) does not and needs no probe.
    pub fn new(one_core: bool) -> Series {
        let last = if one_core { None } else { probe::round_trip_ns(0, 1) };
        Series { one_core, last, probes: vec![last] }
    }

    /// Measures once and labels the value.
    pub fn take<R: Into<Reading>, E>(
        &mut self,
        measure: impl FnOnce() -> Result<R, E>,
    ) -> Result<Sample, E> {
        let reading = measure()?.into();
        let value = reading.value;
        if self.one_core {
            return Ok(Sample { value, regime: Regime::OneCore, reading });
        }
        let before = self.last;
        self.last = probe::round_trip_ns(0, 1);
        self.probes.push(self.last);
        Ok(Sample { value, regime: probe::between(before, self.last), reading })
    }

    /// Every probe that was made, in nanoseconds; nothing for one that did not end.
    pub fn probes(&self) -> &[Option<f64>] {
        &self.probes
    }

    /// The latest probe.
    pub fn last_probe(&self) -> Option<f64> {
        self.last
    }
}

/// The regime that most samples share. Near wins a tie, because goals are stated for it; straddled
/// samples only speak where nothing else does.
pub fn prevailing(samples: &[Sample]) -> Option<Regime> {
    let rank = |r: Regime| match r {
        Regime::Near | Regime::OneCore => 4,
        Regime::Far => 3,
        Regime::Smt => 2,
        Regime::Unknown => 1,
        Regime::Straddled => 0,
    };
    let count = |r: Regime| samples.iter().filter(|s| s.regime == r).count();
    let clean = samples.iter().any(|s| rank(s.regime) > 1);
    let candidates = samples.iter().map(|s| s.regime).filter(|&r| !clean || rank(r) > 1);
    candidates.max_by_key(|&r| (count(r), rank(r)))
}

/// Median and spread of the samples of one regime.
pub fn summarize(samples: &[Sample], regime: Regime) -> Option<Summary> {
    let ours = || samples.iter().filter(|s| s.regime == regime);
    let of_all = |of: fn(&Reading) -> Option<f64>| {
        let mut values: Vec<f64> = ours().filter_map(|s| of(&s.reading)).collect();
        median(&mut values)
    };
    let (lost_percent, cpu_per_gbit) = (of_all(|r| r.lost_percent), of_all(|r| r.cpu_per_gbit));
    let mut values: Vec<f64> = ours().map(|s| s.value).collect();
    let median = median(&mut values)?;
    let spread = (*values.first()?, *values.last()?);
    let used = (values.len(), samples.len());
    let latency_us = of_all(|r| r.latency_us);
    let reading = Reading { value: median, lost_percent, cpu_per_gbit, latency_us };
    Some(Summary { regime, median, spread, used, reading })
}

/// The summary in the prevailing regime.
pub fn best_supported(samples: &[Sample]) -> Option<Summary> {
    summarize(samples, prevailing(samples)?)
}

/// The middle value, or the mean of the two middle ones, of values that it sorts.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
}

/// The value below which `share` (0 to 1) of the values lie.
pub fn quantile(values: &mut [u64], share: f64) -> Option<u64> {
    values.sort_unstable();
    let last = values.len().checked_sub(1)?;
    // Bounded by `last`, an index.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let index = (last as f64 * share.clamp(0.0, 1.0)).round() as usize;
    values.get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(list: &[(f64, Regime)]) -> Vec<Sample> {
        list.iter()
            .map(|&(value, regime)| Sample { value, regime, reading: value.into() })
            .collect()
    }

    #[test]
    fn test_settle_compares_inside_one_regime_only() {
        let s = samples(&[
            (120.0, Regime::Near),
            (37.0, Regime::Far),
            (118.0, Regime::Near),
            (60.0, Regime::Straddled),
            (124.0, Regime::Near),
        ]);
        let summary = best_supported(&s).unwrap();
        assert_eq!(summary.regime, Regime::Near);
        assert_eq!(summary.median, 120.0);
        assert_eq!(summary.spread, (118.0, 124.0));
        assert_eq!(summary.used, (3, 5));
    }

    #[test]
    fn test_settle_even_number_takes_the_middle() {
        let s = samples(&[(1.0, Regime::Far), (3.0, Regime::Far)]);
        assert_eq!(best_supported(&s).unwrap().median, 2.0);
    }

    #[test]
    fn test_prevailing_tie_goes_to_near() {
        let s = samples(&[(1.0, Regime::Far), (3.0, Regime::Near)]);
        assert_eq!(prevailing(&s), Some(Regime::Near));
    }

    #[test]
    fn test_prevailing_dirty_samples_only_speak_alone() {
        let s = samples(&[
            (1.0, Regime::Straddled),
            (2.0, Regime::Unknown),
            (2.0, Regime::Unknown),
            (3.0, Regime::Far),
        ]);
        assert_eq!(prevailing(&s), Some(Regime::Far));
        assert_eq!(prevailing(&s[..3]), Some(Regime::Unknown));
        assert_eq!(prevailing(&[]), None);
    }

    #[test]
    fn test_quantile_ends_and_middle() {
        let mut v = vec![5, 1, 4, 2, 3];
        assert_eq!(quantile(&mut v, 0.0), Some(1));
        assert_eq!(quantile(&mut v, 0.5), Some(3));
        assert_eq!(quantile(&mut v, 1.0), Some(5));
        assert_eq!(quantile(&mut [], 0.5), None);
    }

    #[test]
    fn test_series_one_core_needs_no_probe() {
        let mut series = Series::new(true);
        let sample = series.take(|| Ok::<_, ()>(1.0)).unwrap();
        assert_eq!(sample.regime, Regime::OneCore);
    }
}
