//! What applications link: ports by name, and the control protocol of the daemon.

pub mod api;
pub mod name;
