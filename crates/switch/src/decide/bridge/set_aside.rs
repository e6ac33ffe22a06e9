//! Ports that are set aside: mirror ports, which take no part in forwarding.
//!
//! The rest of the bridge does not know such a port: floods, lookups and patches pass it by, the
//! bridge learns nothing behind it, and none of its frames enters.

use std::collections::BTreeMap;

use packet::PortId;

use super::Bridge;
use crate::model::config::PortConfig;
use crate::model::stats::DropReason;

/// The ports that are set aside, with their settings.
pub(super) type SetAside = BTreeMap<PortId, PortConfig>;

impl Bridge {
    /// Takes a port out of forwarding, with all that is known to be behind it. Of bridges with one
    /// forwarding database, the one that takes the port's frames does this first: see
    /// [`remove_port`](Self::remove_port).
    pub fn set_aside(&mut self, port: PortId) {
        if let Some(config) = self.port(port).cloned() {
            self.remove_port(port);
            self.set_aside.insert(port, config);
        }
    }

    /// Lets a port that was set aside take part in forwarding again.
    pub fn readmit(&mut self, port: PortId) {
        if let Some(config) = self.set_aside.remove(&port) {
            self.add_port(port, config);
        }
    }

    /// The user of a port, also of one that is set aside.
    pub fn user_of(&self, port: PortId) -> Option<u32> {
        let config = self.port(port).or_else(|| self.set_aside.get(&port));
        config.map(|config| config.user)
    }

    /// Why the frames of a port that is not among the others are dropped.
    #[cold]
    pub(super) fn refuse_absent(&self, src: PortId) -> DropReason {
        match self.set_aside.contains_key(&src) {
            true => DropReason::MirrorInput,
            false => DropReason::DeadPort,
        }
    }
}
