//! Requests that are refused.

use rustix::io::Errno;

/// Why a request was not served. The VMM gets the number, and the log the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The error number.
    pub errno: Errno,
    /// The reason.
    pub why: String,
}

impl Refused {
    /// A refusal.
    #[must_use]
    pub fn new(errno: Errno, why: impl Into<String>) -> Self {
        Self { errno, why: why.into() }
    }
}
