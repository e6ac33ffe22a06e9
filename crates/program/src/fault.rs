//! How a run fails.

use std::fmt;

use thiserror::Error;

use crate::limits::{CALLS_MAX, PORTS_MAX, STEPS_MAX};

/// Why a run ended without a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FaultKind {
    /// The program read where it has no memory.
    #[error("read outside of its memory")]
    Read,
    /// The program wrote where it has no memory, or may only read.
    #[error("wrote outside of its memory, or to the frame or constants")]
    Write,
    /// The program did not end.
    #[error("took more than {STEPS_MAX} steps")]
    Steps,
    /// Too many functions were called in each other.
    #[error("called more than {CALLS_MAX} functions in each other")]
    Calls,
    /// The code ended, or a jump led to no instruction.
    #[error("ran off its code")]
    Code,
    /// A helper was given something that is no map.
    #[error("called a helper for a map with something that is no map")]
    Map,
    /// The program chose too many ports.
    #[error("chose more than {PORTS_MAX} ports")]
    Ports,
    /// The program found that it cannot go on.
    #[error("panicked, as by an index out of its range, or called __builtin_trap()")]
    Panic,
    /// The program returned no decision.
    #[error("returned a value that is no decision")]
    Decision,
}

/// A fault, and the instruction at which it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// The instruction, counted from 0.
    pub at: usize,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (instruction {})", self.kind, self.at)
    }
}
