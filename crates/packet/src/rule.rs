//! Rules: which frames, and what becomes of them.
//!
//! A rule is compared as words under masks, so that one that asks for three fields costs as much as
//! one that asks for seven; ranges of L4 ports are compared beside it. The switch tries rules in
//! order, highest priority first; the first that matches counts. Rules that contradict or hide each
//! other are refused: see [`check`].

use std::fmt;

use crate::fields::{Fields, Matcher};
use crate::port::PortId;

/// Most rules of a switch.
pub const RULES_MAX: usize = 4096;

/// What becomes of a frame that enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Dropped.
    Drop,
    /// Into a chain, by its number.
    Chain(u8),
    /// To a port.
    Port(PortId),
    /// To where its address is, past all functions.
    Forward,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The number of the rule, which stays the same.
    pub id: u32,
    /// Higher ones are tried first; of the same, the one with the lower number.
    pub priority: u32,
    /// Which frames.
    pub fields: Fields,
    /// What becomes of them.
    pub action: Action,
}

/// Why a list of rules cannot be meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// The first hides the second, which no frame would ever reach.
    Shadowed(u32, u32),
    /// Both have the same priority, frames in common, and different actions.
    Contradict(u32, u32),
    /// No frame can be what this one is for, for this reason.
    Impossible(u32, &'static str),
    /// More than [`RULES_MAX`].
    TooMany,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shadowed(by, rule) => write!(
                f,
                "rule {rule} would never be reached: rule {by} comes first and takes all its \
                 frames; give {rule} a higher priority, or delete one"
            ),
            Self::Contradict(a, b) => write!(
                f,
                "rules {a} and {b} have the same priority, match the same frames and differ in \
                 action; give one of them another priority"
            ),
            Self::Impossible(rule, why) => {
                write!(f, "rule {rule} is for no frame: {why}; leave one of the two out")
            }
            Self::TooMany => write!(f, "more than {RULES_MAX} rules of a switch"),
        }
    }
}

impl std::error::Error for RuleError {}

/// Puts rules into the order in which they are tried.
pub fn sort(rules: &mut [Rule]) {
    rules.sort_by_key(|rule| (std::cmp::Reverse(rule.priority), rule.id));
}

/// Looks whether rules go with each other, those that are new with all others; sorts them.
///
/// # Errors
/// The rules contradict or hide each other.
pub fn check(rules: &mut [Rule], is_new: impl Fn(u32) -> bool) -> Result<(), RuleError> {
    if rules.len() > RULES_MAX {
        return Err(RuleError::TooMany);
    }
    sort(rules);
    let matchers: Vec<_> = rules.iter().map(|rule| Matcher::from(&rule.fields)).collect();
    let all: Vec<_> = rules.iter().zip(&matchers).collect();
    for (at, rule) in all.iter().enumerate().filter(|(_, (rule, _))| is_new(rule.id)) {
        if let Some(why) = rule.0.fields.mistake() {
            return Err(RuleError::Impossible(rule.0.id, why));
        }
        all[..at].iter().try_for_each(|before| check_pair(before, rule))?;
        // A new one behind it will look at this one.
        let mut behind = all[at + 1..].iter().filter(|(rule, _)| !is_new(rule.id));
        behind.try_for_each(|behind| check_pair(rule, behind))?;
    }
    Ok(())
}

/// Two of them, in the order in which they are tried.
fn check_pair(
    (before, theirs): &(&Rule, &Matcher),
    (rule, ours): &(&Rule, &Matcher),
) -> Result<(), RuleError> {
    let one_priority = before.priority == rule.priority;
    if one_priority && before.action != rule.action && ours.meets(theirs) {
        return Err(RuleError::Contradict(before.id, rule.id));
    }
    if theirs.covers(ours) {
        return Err(RuleError::Shadowed(before.id, rule.id));
    }
    Ok(())
}
