//! The rules of a switch as its worker uses them: in the order in which they are tried, with a
//! classifier that finds the first match.

use packet::flow::FlowKey;

use super::classifier::Classifier;
use super::rule::Action;

/// Rules in the order in which they are tried.
#[derive(Default)]
pub(super) struct Rules {
    classifier: Classifier,
    entries: Box<[Entry]>,
}

/// The action of a rule, and the place of its counters.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) id: u32,
    /// Index of the rule's counters.
    pub(super) place: u16,
    pub(super) action: Action,
}

impl Rules {
    /// Rules in this order; `classifier` finds their places in it.
    pub(super) fn new(classifier: Classifier, entries: Box<[Entry]>) -> Self {
        Self { classifier, entries }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The rule at this place in the order.
    #[inline]
    pub(super) fn get(&self, at: u16) -> Option<Entry> {
        self.entries.get(usize::from(at)).copied()
    }

    /// Place of the first rule that matches, and the number of comparisons that found it.
    pub(super) fn find(&self, key: &FlowKey) -> (Option<u16>, u32) {
        self.classifier.find(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }
}
