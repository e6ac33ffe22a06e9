//! Receiving: frames leave a port, in a run or as a batch.

pub mod batch;
pub mod slot_flags;
pub(crate) mod take;
