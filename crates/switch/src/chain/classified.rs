//! What the switch knows of each frame of a batch before it steers the first one.

use crate::chain::cache::Flow;
use crate::model::stats::DropReason;

/// Flows and verdicts of frames that come from outside of the chains, by their places in the batch.
pub(crate) struct Classified {
    pub(crate) flows: Vec<Flow>,
    /// The reason why the bridge refuses the frame.
    pub(crate) refused: Vec<Option<DropReason>>,
}

impl Classified {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { flows: Vec::with_capacity(capacity), refused: Vec::with_capacity(capacity) }
    }
}
