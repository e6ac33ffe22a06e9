//! What a port has that netmap programs share: its region, its holders, its rings.

use std::sync::Weak;

use super::groups::Charge;
use crate::model::keys::{ConnKey, SwitchKey};
use crate::model::policy::Process;
use crate::model::specs::{Claim, RingSpec};

/// The number by which a user's ports share a region without knowing another number.
pub const COMMON: u16 = 1;

/// A region, as each port in it knows it.
#[derive(Clone, Debug)]
pub struct Region {
    /// The number by which ports join it.
    pub mem_id: u16,
    /// The price of all of it, and the user that pays.
    pub charge: Charge,
    /// Ends when the system has the memory again.
    pub life: Weak<()>,
}

/// What a bound port has that others have not.
#[derive(Clone, Debug)]
pub struct Shared {
    /// A worker has it; before, it is reserved and being built.
    pub ready: bool,
    /// The region that the port is in.
    pub region: Region,
    /// The region is the one which all of this user's ports may join as [`COMMON`].
    pub common: bool,
    /// The user whose processes share the region.
    pub uid: u32,
    /// Bytes of the region that the port has, extra buffers of holders not counted.
    pub memory: u64,
    /// Connections that have bound the port.
    pub holders: Vec<Binder>,
    /// For the end of a pipe: the switch that connects both ends.
    pub patch: Option<SwitchKey>,
}

/// What a port has that has a name of its own, `netmap:v0`, and is alone in its switch until it is
/// put into another one.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Rings of the interface, the same for each client.
    pub rings: RingSpec,
    /// The region that the interface keeps.
    pub region: Region,
    /// As in [`Shared::common`].
    pub common: bool,
    /// The group of the switch in which it is alone.
    pub group: u32,
}

/// A connection that has bound a port.
#[derive(Clone, Debug)]
pub struct Binder {
    /// The connection.
    pub conn: ConnKey,
    /// PID of the client, for messages.
    pub pid: u32,
    /// The client's process.
    pub process: Process,
    /// What it calls itself.
    pub name: String,
    /// Bytes of its extra buffers.
    pub memory: u64,
    /// Rings that the client claimed.
    pub claim: Claim,
}

impl Shared {
    /// Bytes of the region that the port and its holders have. No user is charged for these: see
    /// [`Region`].
    #[must_use]
    pub fn all_memory(&self) -> u64 {
        self.memory + self.holders.iter().map(|holder| holder.memory).sum::<u64>()
    }
}
