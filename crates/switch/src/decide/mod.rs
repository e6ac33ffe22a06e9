//! Deciding: which ports get a frame.

pub mod bridge;
pub mod fdb;
pub mod forward;
mod members;
