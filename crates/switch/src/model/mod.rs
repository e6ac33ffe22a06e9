//! What a switch is made of: settings, ports, counters, moments.

pub mod config;
pub mod heartbeat;
pub mod now;
pub(crate) mod patience;
pub mod port;
pub mod security;
pub mod stats;
pub mod users;
