//! Deciding: which ports get a frame.

pub mod bridge;
pub(crate) mod egress;
pub mod fdb;
pub mod forward;
mod lookup;
pub mod loops;
mod members;
pub(crate) mod snooping;
