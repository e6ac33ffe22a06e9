//! Shares of a table: no source has more entries than its part of it, so no host can fill the table
//! for all others.

use std::collections::HashMap;

use serde::Deserialize;
use toml::Spanned;

use super::table::Seed;
use super::text::{entries, wrong};

/// A host: an IPv4 address, or the network of an IPv6 address (64 bits), of which one host can have
/// all addresses; for a router a MAC address.
pub type Source = u64;

/// The most entries of one source, in a file.
#[derive(Clone, Copy, Deserialize)]
pub struct Entries(#[serde(deserialize_with = "entries")] u32);

/// How many entries each source has.
#[derive(Debug)]
pub struct Shares {
    counts: HashMap<Source, u32, Seed>,
    most: u32,
}

impl Shares {
    /// Shares of a table of `connections`: what the file says, or a quarter each.
    pub fn new(
        text: &str,
        wanted: Option<&Spanned<Entries>>,
        connections: u32,
    ) -> anyhow::Result<Self> {
        Self::read(text, ["max_per_source", "connections"], wanted, connections)
    }

    /// Shares of a table of so many entries, likewise, where the file has these two numbers by the
    /// keys `each` and `all`.
    pub fn read(
        text: &str,
        [each, all]: [&str; 2],
        wanted: Option<&Spanned<Entries>>,
        entries: u32,
    ) -> anyhow::Result<Self> {
        let most = match wanted.map(|wanted| (wanted, wanted.get_ref().0)) {
            None => return Ok(Self::quarters(entries)),
            Some((_, most)) if most <= entries => most,
            Some((wanted, most)) => {
                let why = format_args!(
                    "{each}: one source would have {most}, and all together have {entries} \
                     ({all}); lower it, or raise {all}"
                );
                return Err(wrong(text, wanted, why));
            }
        };
        Ok(Self::of(entries, most))
    }

    /// Shares of a table of so many entries: a quarter each.
    pub fn quarters(entries: u32) -> Self {
        Self::of(entries, entries.div_ceil(4))
    }

    /// Takes all its memory at once, as the table does: each entry may be of another source.
    fn of(entries: u32, most: u32) -> Self {
        Self { counts: HashMap::with_capacity_and_hasher(entries as usize, Seed::default()), most }
    }

    /// How many a source has.
    pub fn count(&self, source: Source) -> u32 {
        self.counts.get(&source).copied().unwrap_or(0)
    }

    /// Whether a source has as many as it may.
    pub fn is_used_up(&self, source: Source) -> bool {
        self.counts.get(&source).is_some_and(|count| *count >= self.most)
    }

    /// Counts an entry.
    pub fn add(&mut self, source: Source) {
        *self.counts.entry(source).or_default() += 1;
    }

    /// Counts an entry that is gone.
    pub fn remove(&mut self, source: Source) {
        if let Some(count) = self.counts.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&source);
            }
        }
    }

    /// Counts these entries and no others.
    pub fn count_anew(&mut self, sources: impl Iterator<Item = Source>) {
        self.counts.clear();
        sources.for_each(|source| self.add(source));
    }

    /// The number of entries of each source that has any.
    #[cfg(test)]
    pub fn entries(&self) -> Vec<u32> {
        self.counts.values().copied().collect()
    }

    /// Goes on with the counts of another, whose table goes on.
    pub fn take_counts(&mut self, old: Self) {
        self.counts = old.counts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_source_has_its_share_and_gets_it_back() {
        let mut shares = Shares::new("", None, 5).unwrap();
        for _ in 0..2 {
            assert!(!shares.is_used_up(1));
            shares.add(1);
        }
        assert!(shares.is_used_up(1) && !shares.is_used_up(2));
        shares.remove(1);
        assert!(!shares.is_used_up(1));
        shares.remove(1);
        assert!(shares.counts.is_empty());
        shares.count_anew([2, 2, 3].into_iter());
        assert!(shares.is_used_up(2) && !shares.is_used_up(3));
    }
}
