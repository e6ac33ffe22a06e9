//! The text that Prometheus reads: families of samples, in format 0.0.4.
//!
//! A family is a name with its help and its type, and then a sample for each set of labels. Names
//! follow Prometheus' rules: base units, `_total` for what only grows.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

/// The type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a family's numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The number only grows, until its owner begins anew.
    Counter,
    /// The number grows and shrinks.
    Gauge,
    /// Counts by size.
    Histogram,
}

/// A family: its name, without the program's in front, its type, and what it counts.
pub type Family = (&'static str, Kind, &'static str);

/// Labels of a sample with their values, in the way that the text has them. A port has many
/// samples, and its labels are written once.
#[derive(Clone, Debug, Default)]
pub struct Labels(String);

impl Labels {
    /// One label.
    pub fn of(name: &str, value: impl AsRef<str>) -> Self {
        Self::default().and(name, value)
    }

    /// Adds a label to a copy of these.
    pub fn and(&self, name: &str, value: impl AsRef<str>) -> Self {
        let value = value.as_ref();
        let mut all = String::with_capacity(self.0.len() + name.len() + value.len() + 8);
        all.push_str(&self.0);
        let comma = if all.is_empty() { "" } else { "," };
        all.extend([comma, name, "=\""]);
        for letter in value.chars() {
            match letter {
                '\n' => all.push_str("\\n"),
                '"' | '\\' => all.extend(['\\', letter]),
                other => all.push(other),
            }
        }
        all.push('"');
        Self(all)
    }
}

/// Samples by their family.
#[derive(Debug, Default)]
pub struct Page(BTreeMap<&'static str, String>);

impl Page {
    /// Removes all samples, and keeps their memory for as many.
    pub fn clear(&mut self) {
        self.0.values_mut().for_each(String::clear);
    }

    /// Adds a sample.
    pub fn add(&mut self, family: &'static str, labels: &Labels, value: impl Display) {
        self.sample(family, "", labels, value);
    }

    /// Adds a sample for each of these reasons.
    pub fn by_reason(
        &mut self,
        family: &'static str,
        own: &Labels,
        counts: &BTreeMap<String, u64>,
    ) {
        for (reason, count) in counts {
            self.add(family, &own.and("reason", reason), count);
        }
    }

    /// Adds a histogram of whole numbers: entry `n` of `log2` counts those of `2ⁿ` up to twice
    /// that. `show` writes a number in the family's unit.
    pub fn histogram(
        &mut self,
        family: &'static str,
        own: &Labels,
        (log2, sum): (&[u64], u64),
        show: impl Fn(u64) -> String,
    ) {
        let mut below = 0;
        for (power, count) in (1..).zip(log2) {
            below += count;
            // The last one has all that are larger, too.
            let is_last = power as usize == log2.len();
            let most = 1u64.checked_shl(power).filter(|_| !is_last);
            let most = most.map_or_else(|| "+Inf".to_owned(), |end| show(end - 1));
            self.sample(family, "_bucket", &own.and("le", most), below);
        }
        self.sample(family, "_sum", own, show(sum));
        self.sample(family, "_count", own, below);
    }

    fn sample(&mut self, family: &'static str, suffix: &str, labels: &Labels, value: impl Display) {
        let text = self.0.entry(family).or_default();
        let [begin, end] = if labels.0.is_empty() { ["", " "] } else { ["{", "} "] };
        text.extend(["uvala_", family, suffix, begin, &labels.0, end]);
        // A string takes everything.
        let _ = writeln!(text, "{value}");
    }

    /// The text of those of these families that have samples.
    pub fn text(&self, families: impl Iterator<Item = Family>) -> String {
        // 256 is more than the help and type of a family take: the text is not copied as it grows.
        let bytes = self.0.values().map(|samples| samples.len() + 256).sum();
        let (mut text, mut known) = (String::with_capacity(bytes), 0);
        for (name, kind, help) in families {
            let Some(samples) = self.0.get(name) else { continue };
            known += 1;
            if samples.is_empty() {
                continue;
            }
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let _ =
                write!(text, "# HELP uvala_{name} {help}\n# TYPE uvala_{name} {kind}\n{samples}");
        }
        debug_assert!(known == self.0.len(), "each family has a help");
        text
    }
}

/// A number of thousandths.
pub fn thousandths(number: u64) -> String {
    format!("{}.{:03}", number / 1000, number % 1000)
}

/// A number of billionths.
pub fn billionths(number: u64) -> String {
    format!("{}.{:09}", number / 1_000_000_000, number % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_label_may_have_any_letter() {
        let labels = Labels::of("port", "n1").and("label", "a\"b\\c\n");
        assert_eq!(labels.0, r#"port="n1",label="a\"b\\c\n""#);
    }

    #[test]
    fn test_buckets_of_a_histogram_add_up_and_the_last_has_the_rest() {
        let mut page = Page::default();
        let own = Labels::of("worker", "0");
        page.histogram("turns", &own, (&[3, 0, 2, 1], 30), |number| number.to_string());
        let text = page.text([("turns", Kind::Histogram, "Turns.")].into_iter());
        let expected = "# HELP uvala_turns Turns.\n# TYPE uvala_turns histogram\n\
             uvala_turns_bucket{worker=\"0\",le=\"1\"} 3\n\
             uvala_turns_bucket{worker=\"0\",le=\"3\"} 3\n\
             uvala_turns_bucket{worker=\"0\",le=\"7\"} 5\n\
             uvala_turns_bucket{worker=\"0\",le=\"+Inf\"} 6\n\
             uvala_turns_sum{worker=\"0\"} 30\nuvala_turns_count{worker=\"0\"} 6\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn test_a_family_without_samples_is_not_in_the_text() {
        let families = || [("a", Kind::Gauge, "A."), ("b", Kind::Gauge, "B.")].into_iter();
        let mut page = Page::default();
        page.add("a", &Labels::of("port", "n1"), 1);
        page.add("b", &Labels::default(), 2);
        page.clear();
        page.add("b", &Labels::default(), 3);
        assert_eq!(page.text(families()), "# HELP uvala_b B.\n# TYPE uvala_b gauge\nuvala_b 3\n");
    }

    #[test]
    fn test_numbers_have_their_base_unit() {
        assert_eq!((&*thousandths(1234), &*billionths(1_000_000_007)), ("1.234", "1.000000007"));
    }
}
