//! Receiving: frames are taken from a port into a batch.

pub mod batch;
pub mod slot_flags;
