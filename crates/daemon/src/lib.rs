//! The daemon as a library: workers that move frames, and the control plane that tells them what to
//! do.

pub mod config;
pub mod control;
pub mod datapath;
pub mod users;
pub mod worker;
