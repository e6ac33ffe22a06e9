//! What applications link: ports by name, and the control protocol of the daemon.

pub mod api;
pub mod control;
pub mod name;
pub mod paths;
