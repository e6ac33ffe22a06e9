//! What workers find out about ports and loops.

use packet::{MacAddr, VlanId};
use switch::{Disabled, SecurityState};

use crate::model::keys::{PortKey, SwitchKey};

/// What port security knows, and what it has to say.
pub trait Security {
    /// What port security remembers of a port that a worker knows.
    fn security_state(&self, port: PortKey) -> Option<SecurityState>;

    /// Enables a port that its switch has disabled.
    fn enable_port(&mut self, port: PortKey);

    /// The loop of a switch that was seen last.
    fn last_loop(&self, switch: SwitchKey) -> Option<FoundLoop>;

    /// Some of what the workers have reported. The bell of interfaces rings again for the rest.
    fn take_notices(&mut self) -> Vec<Notice>;
}

/// A loop between two ports.
#[derive(Clone, Copy, Debug)]
pub struct FoundLoop {
    /// The ports.
    pub ports: [PortKey; 2],
    /// An address that moves between them.
    pub mac: MacAddr,
    /// The VLAN of the address.
    pub vlan: VlanId,
    /// Milliseconds since the switch has seen that last.
    pub age_ms: u64,
}

/// Something that an operator wants to hear of.
#[derive(Clone, Copy, Debug)]
pub enum Notice {
    /// A loop has begun.
    Loop {
        /// The ports.
        ports: [PortKey; 2],
        /// An address that moves between them.
        mac: MacAddr,
        /// The VLAN of the address.
        vlan: VlanId,
    },
    /// A switch has disabled a port.
    Disabled(PortKey, Disabled),
}

#[cfg(test)]
mod fake {
    use switch::SecurityState;

    use super::{FoundLoop, Notice, Security};
    use crate::control::fake::Fake;
    use crate::model::keys::{PortKey, SwitchKey};

    impl Security for Fake {
        fn security_state(&self, port: PortKey) -> Option<SecurityState> {
            self.ports.get(&port).map(|(_, config)| config.security_state)
        }

        fn enable_port(&mut self, port: PortKey) {
            self.ports.get_mut(&port).expect("known").1.security_state.disabled = None;
        }

        fn last_loop(&self, _: SwitchKey) -> Option<FoundLoop> {
            None
        }

        fn take_notices(&mut self) -> Vec<Notice> {
            std::mem::take(&mut self.notices)
        }
    }
}
