//! The keys by which `control` and `engine` know switches, ports, pipes and connections.
//!
//! A key is given out once in the life of the daemon, so a late message about a switch that is
//! gone never means another switch.

use std::fmt;

/// The key of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchKey(pub u32);

/// The key of a port, on any switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortKey(pub u32);

/// The key of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PipeKey(pub u32);

/// The key of a control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnKey(pub u64);

/// A trust group: the user that owns it, and its name.
pub type GroupKey = (u32, String);

macro_rules! show_number {
    ($($key:ty),*) => {$(
        impl fmt::Display for $key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
show_number!(SwitchKey, PortKey, PipeKey);
