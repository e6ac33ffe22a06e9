//! Terminal output that commands share: tables, figures with units, a closed stdout, words for a
//! shell; also the path and the parent of the running program, and where a command listens.

#![deny(clippy::print_stdout, clippy::print_stderr)] // `say` does not panic

pub mod place;
pub mod process;
pub mod remover;
pub mod say;
pub mod shell;
pub mod table;
pub mod units;

/// A command line that means nothing, though each of its words is right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; see --help")]
pub struct Usage(pub String);
