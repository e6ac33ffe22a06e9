//! Delivering: frames go into the rings and adapters of their destinations.

mod doorbells;
mod dropped;
mod edge;
pub(crate) mod groups;
pub(crate) mod into_ring;
mod members;
pub(crate) mod room;
pub(crate) mod run;
pub(crate) mod software_offload;
mod staged;
