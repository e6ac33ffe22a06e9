//! What changes, as it changes.

use packet::MacAddr;
use serde::{Deserialize, Serialize};

use crate::name::{PortName, SwitchName};
use crate::{ClientInfo, PortKind};

/// Asks for events from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Events of this switch alone; by default, of all that the caller may see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchName>,
}

/// Some events, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Events {
    /// The number of events before these that the listener did not read in time, or that came too
    /// fast.
    pub lost: u64,
    /// The events.
    pub events: Vec<Event>,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Event {
    /// When the daemon saw it, in milliseconds since 1970.
    pub time_ms: u64,
    /// What.
    #[serde(flatten)]
    pub change: Change,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// A switch is there.
    SwitchAdded {
        /// The switch.
        switch: SwitchName,
    },
    /// Settings or rules of a switch have changed.
    SwitchChanged {
        /// The switch.
        switch: SwitchName,
    },
    /// A switch is gone.
    SwitchDeleted {
        /// The switch.
        switch: SwitchName,
    },
    /// A port is there.
    PortAdded {
        /// The port.
        port: PortName,
        /// Kind of the port.
        kind: PortKind,
    },
    /// Settings of a port have changed, or its networks of VLANs.
    PortChanged {
        /// The port.
        port: PortName,
    },
    /// A port is gone.
    PortDeleted {
        /// The port.
        port: PortName,
    },
    /// A program has attached to a port.
    ClientAttached {
        /// The port.
        port: PortName,
        /// The program.
        client: ClientInfo,
    },
    /// The program of a port has left it.
    ClientLeft {
        /// The port.
        port: PortName,
    },
    /// The interface or virtual machine of a port has changed its state.
    Link {
        /// The port.
        port: PortName,
        /// The state, as listings have it.
        state: String,
    },
    /// The switch has disabled a port.
    PortDisabled {
        /// The port.
        port: PortName,
        /// The setting for which it did.
        by: String,
    },
    /// A port that was disabled is enabled.
    PortEnabled {
        /// The port.
        port: PortName,
    },
    /// Addresses move back and forth between two ports.
    Loop {
        /// The ports.
        ports: [PortName; 2],
        /// One of the addresses.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        mac: MacAddr,
        /// VLAN of the address.
        vlan: u16,
    },
    /// An address is in the forwarding database.
    FdbAdded {
        /// The address.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        mac: MacAddr,
        /// VLAN of the address.
        vlan: u16,
        /// The port on which it is.
        port: PortName,
        /// Whether an operator has put it there.
        #[serde(rename = "static")]
        is_static: bool,
    },
    /// An address is on another port.
    FdbMoved {
        /// The address.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        mac: MacAddr,
        /// VLAN of the address.
        vlan: u16,
        /// The port on which it is.
        port: PortName,
        /// The port on which it was.
        from: PortName,
    },
    /// An address is in the forwarding database no more.
    FdbDeleted {
        /// The address.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        mac: MacAddr,
        /// VLAN of the address.
        vlan: u16,
        /// The port on which it was.
        port: PortName,
    },
    /// A chain is there, or has changed.
    ChainSet {
        /// The switch.
        switch: SwitchName,
        /// The chain.
        chain: String,
    },
    /// A chain is gone.
    ChainDeleted {
        /// The switch.
        switch: SwitchName,
        /// The chain.
        chain: String,
    },
    /// No frame passes a chain any more.
    ChainBroken {
        /// The switch.
        switch: SwitchName,
        /// The chain.
        chain: String,
        /// The reason.
        why: String,
    },
    /// Frames pass a chain again.
    ChainRuns {
        /// The switch.
        switch: SwitchName,
        /// The chain.
        chain: String,
    },
    /// A port has dropped at least as many frames in a second as `uvala events --drops` was given.
    /// The daemon does not send this; the command finds it in the counters.
    Drops {
        /// The port.
        port: PortName,
        /// The reason, as counters name it.
        reason: String,
        /// Frames in a second.
        frames_per_s: u64,
    },
}

impl Change {
    /// The switch that it is about.
    #[must_use]
    pub fn switch(&self) -> &SwitchName {
        match self {
            Self::SwitchAdded { switch }
            | Self::SwitchChanged { switch }
            | Self::SwitchDeleted { switch }
            | Self::ChainSet { switch, .. }
            | Self::ChainDeleted { switch, .. }
            | Self::ChainBroken { switch, .. }
            | Self::ChainRuns { switch, .. } => switch,
            Self::PortAdded { port, .. }
            | Self::PortChanged { port }
            | Self::PortDeleted { port }
            | Self::ClientAttached { port, .. }
            | Self::ClientLeft { port }
            | Self::Link { port, .. }
            | Self::PortDisabled { port, .. }
            | Self::PortEnabled { port }
            | Self::FdbAdded { port, .. }
            | Self::FdbMoved { port, .. }
            | Self::FdbDeleted { port, .. }
            | Self::Drops { port, .. }
            | Self::Loop { ports: [port, _], .. } => port.switch(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_flat_object() {
        let port: PortName = "vale0:a".parse().unwrap();
        let change = Change::Link { port: port.clone(), state: "up".to_owned() };
        assert_eq!(change.switch(), port.switch());
        let text = serde_json::to_string(&Event { time_ms: 7, change: change.clone() }).unwrap();
        assert_eq!(text, r#"{"time_ms":7,"event":"link","port":"vale0:a","state":"up"}"#);
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap().change, change);
    }
}
