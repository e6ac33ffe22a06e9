//! Delivering: frames go into the rings and adapters of their destinations.

mod doorbells;
mod edge;
pub(crate) mod groups;
mod into_ring;
pub(crate) mod room;
pub(crate) mod run;
pub(crate) mod software_offload;
mod staged;
