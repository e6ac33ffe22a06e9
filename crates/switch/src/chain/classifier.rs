//! Which rule is the first to match, among thousands: tuple space search.
//!
//! ```text
//!   key ──► under the mask of a tuple ──► its rules that ask for just this ──► the first
//!           in order of the tuples' first rules, until no tuple has an earlier one
//! ```
//!
//! Rules that ask for the same bits are a *tuple*: one look-up in a hash table finds those of them
//! that a frame can be of (Srinivasan, Suri and Varghese, Packet Classification using Tuple Space
//! Search, SIGCOMM 1999). A thousand rules that differ in a port cost one look-up. Where few rules
//! ask for the same, comparing them is cheaper than hashing: these are tried one after the other.

use std::collections::HashMap;

use packet::fields::Matcher;
use packet::flow::{FlowKey, WORDS};

/// Fewer rules are no tuple.
const FEW: usize = 8;
/// Comparisons that take as long as one look-up.
const LOOK_UP: u32 = 8;

/// Rules in the order in which they are tried, by their places in it.
#[derive(Default)]
pub struct Classifier {
    matchers: Box<[Matcher]>,
    /// By their first rules.
    tuples: Box<[Tuple]>,
    /// Rules of no tuple.
    others: Box<[u16]>,
}

struct Tuple {
    mask: [u64; WORDS],
    first: u16,
    /// Rules by the values that they ask for.
    rules: HashMap<[u64; WORDS], Vec<u16>>,
}

impl Classifier {
    /// A classifier of at most 65535 rules.
    #[must_use]
    pub fn new(matchers: Box<[Matcher]>) -> Self {
        assert!(matchers.len() < usize::from(u16::MAX), "a rule's place has 16 bits");
        let mut by_mask: HashMap<[u64; WORDS], Vec<u16>> = HashMap::new();
        for (at, matcher) in (0..u16::MAX).zip(&matchers) {
            by_mask.entry(*matcher.mask()).or_default().push(at);
        }
        let (many, few): (Vec<_>, Vec<_>) =
            by_mask.into_iter().partition(|(_, rules)| rules.len() >= FEW);
        let tuple = |(mask, rules)| Tuple::new(mask, rules, &matchers);
        let mut tuples: Vec<_> = many.into_iter().map(tuple).collect();
        tuples.sort_by_key(|tuple| tuple.first);
        let mut others: Vec<_> = few.into_iter().flat_map(|(_, rules)| rules).collect();
        others.sort_unstable();
        Self { matchers, tuples: tuples.into(), others: others.into() }
    }

    /// The first rule that matches, and how many comparisons it took to find it.
    #[must_use]
    pub fn find(&self, key: &FlowKey) -> (Option<u16>, u32) {
        let mut search = Search { matchers: &self.matchers, key, found: None, compared: 0 };
        for tuple in &self.tuples {
            if !search.wants(tuple.first) {
                break;
            }
            search.compared += LOOK_UP;
            search.among(tuple.alike(key));
        }
        search.among(&self.others);
        (search.found, search.compared)
    }
}

struct Search<'a> {
    matchers: &'a [Matcher],
    key: &'a FlowKey,
    found: Option<u16>,
    compared: u32,
}

impl Search<'_> {
    /// Whether this rule comes before the best match so far.
    fn wants(&self, rule: u16) -> bool {
        self.found.is_none_or(|found| rule < found)
    }

    fn among(&mut self, rules: &[u16]) {
        for &rule in rules {
            if !self.wants(rule) {
                return;
            }
            self.compared += 1;
            if self.matchers[usize::from(rule)].matches(self.key) {
                self.found = Some(rule);
                return;
            }
        }
    }
}

impl Tuple {
    fn new(mask: [u64; WORDS], all: Vec<u16>, matchers: &[Matcher]) -> Self {
        assert!(all.is_sorted(), "the first rule of a tuple comes first");
        let first = all[0];
        let mut rules: HashMap<_, Vec<_>> = HashMap::new();
        for rule in all {
            rules.entry(*matchers[usize::from(rule)].want()).or_default().push(rule);
        }
        Self { mask, first, rules }
    }

    /// The rules of the tuple that this frame matches, ranges of ports aside.
    fn alike(&self, key: &FlowKey) -> &[u16] {
        let masked = std::array::from_fn(|word| key.words()[word] & self.mask[word]);
        self.rules.get(&masked).map_or(&[], Vec::as_slice)
    }
}
