//! The switch: decides where frames go, and moves them there.
#![forbid(unsafe_code)]

pub mod config;
pub mod error;
pub mod fdb;
pub mod frame;
pub mod id;
pub mod stats;
pub mod vlan;

pub use config::{Forwarding, OnFull, PortConfig, SwitchConfig, VlanMode};
pub use error::ParseError;
pub use frame::{EtherType, Header, MacAddr, Tag};
pub use id::{MAX_PORTS, Now, PortId};
pub use stats::{Counters, DropReason, PortStats};
pub use vlan::{VlanId, VlanSet};
