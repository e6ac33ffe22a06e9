//! Delivering: frames are put into the rings of their destinations.

pub(crate) mod groups;
