//! Errors of the switch's text forms.

use std::fmt;

/// A text that is not what it should be: says what was expected, and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    expected: &'static str,
    found: String,
}

impl ParseError {
    pub(crate) fn new(expected: &'static str, found: &str) -> Self {
        Self { expected, found: found.to_owned() }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {:?}", self.expected, self.found)
    }
}

impl std::error::Error for ParseError {}
