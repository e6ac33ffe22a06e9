//! How long frames take: quantiles and a histogram.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use terminal::units;

/// A distribution of times in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Number of samples.
    pub samples: u64,
    /// Shortest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 90 of 100 are shorter.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
    /// Longest.
    pub max: f64,
    /// How many took how long, each bucket twice as wide as the one before.
    pub histogram: Vec<Bucket>,
}

/// One bucket of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Upper limit of the bucket in microseconds; the bucket before ends where this one begins.
    pub below: f64,
    /// How many samples.
    pub samples: u64,
}

impl Latency {
    /// The rows of a table.
    pub fn rows(&self, rows: &mut Vec<(&str, String)>) {
        let us = units::micros;
        rows.push(("latency p50", us(self.p50)));
        rows.push(("p90", us(self.p90)));
        rows.push(("p99", us(self.p99)));
        rows.push(("p99.9", us(self.p999)));
        rows.push(("max", us(self.max)));
    }

    /// A bar for each bucket.
    pub fn picture(&self) -> String {
        const WIDTH: u64 = 50;
        let most = self.histogram.iter().map(|bucket| bucket.samples).max().unwrap_or(0);
        let line = |bucket: &Bucket| {
            let bar = (bucket.samples * WIDTH).div_ceil(most.max(1));
            let bar = "#".repeat(usize::try_from(bar).unwrap_or(0));
            let (below, count) = (units::micros(bucket.below), units::count(bucket.samples));
            format!("  < {below:>8} {count:>12} {bar}\n")
        };
        self.histogram.iter().map(line).collect()
    }
}

/// Collects times.
#[derive(Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    /// Starts without a sample; keeps three digits of times of up to a minute.
    fn default() -> Self {
        let longest_ns = 60_000_000_000;
        Self(Histogram::new_with_bounds(1, longest_ns, 3).expect("these bounds are legal"))
    }
}

impl Times {
    /// Adds one.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// The distribution, where there is one.
    pub fn latency(&self) -> Option<Latency> {
        let at = |quantile| us(self.0.value_at_quantile(quantile));
        (!self.0.is_empty()).then(|| Latency {
            samples: self.0.len(),
            min: us(self.0.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: us(self.0.max()),
            histogram: self.buckets(),
        })
    }

    /// From the first bucket that is not empty to the last one.
    fn buckets(&self) -> Vec<Bucket> {
        const NARROWEST_NS: u64 = 125;
        let all = self.0.iter_log(NARROWEST_NS, 2.0).map(|step| Bucket {
            below: us(step.value_iterated_to() + 1),
            samples: step.count_since_last_iteration(),
        });
        all.skip_while(|bucket| bucket.samples == 0).collect()
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thousand() -> Latency {
        let mut times = Times::default();
        assert!(times.latency().is_none());
        (1..=1000).for_each(|us| times.add(us * 1000));
        times.latency().unwrap()
    }

    #[test]
    fn test_times_give_quantiles_in_order() {
        let json = serde_json::to_value(thousand()).unwrap();
        assert_eq!(json["samples"], 1000);
        for (name, us) in [("min", 1.0), ("p50", 500.0), ("p90", 900.0), ("p99", 990.0)] {
            let value = json[name].as_f64().unwrap();
            assert!((value / us - 1.0).abs() < 0.01, "{name} {value}");
        }
        assert!(json["p999"].as_f64() <= json["max"].as_f64());
        assert_eq!(json.as_object().unwrap().len(), 8);
    }

    #[test]
    fn test_every_sample_is_in_one_bucket_of_the_histogram() {
        let latency = thousand();
        let buckets = &latency.histogram;
        assert_eq!(buckets.iter().map(|bucket| bucket.samples).sum::<u64>(), 1000);
        assert!(buckets.is_sorted_by(|a, b| b.below == 2.0 * a.below), "{buckets:?}");
        assert!(buckets[0].samples > 0 && buckets.last().unwrap().samples > 0);
        assert_eq!(latency.picture().lines().count(), buckets.len());
        assert_eq!(
            latency.picture().lines().filter(|line| line.ends_with(&"#".repeat(50))).count(),
            1
        );
    }
}
