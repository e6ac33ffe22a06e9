//! What a switch would do with a frame.

use std::fmt::Write as _;

use packet::MacAddr;
use serde::{Deserialize, Serialize};

use crate::FdbEntry;
use crate::name::PortName;

/// Bytes of a frame on which its way depends.
pub const TRACE_HEAD: usize = packet::flow::PREFIX;

/// Asks what the switch would do with a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceQuery {
    /// The port that would send it.
    pub port: PortName,
    /// The beginning of the frame in hexadecimal digits, at most [`TRACE_HEAD`] bytes.
    pub head: String,
    /// Length of the frame in bytes.
    pub bytes: u32,
}

impl TraceQuery {
    /// The query about a frame.
    #[must_use]
    pub fn new(port: PortName, frame: &[u8]) -> Self {
        let head =
            frame[..frame.len().min(TRACE_HEAD)].iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            });
        Self { port, head, bytes: u32::try_from(frame.len()).unwrap_or(u32::MAX) }
    }
}

/// The steps of a frame through the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// The steps in their order.
    pub steps: Vec<TraceStep>,
    /// Copies of a flood for which the message has no room.
    pub left_out: u32,
}

/// A step of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "step", rename_all = "snake_case", deny_unknown_fields)]
pub enum TraceStep {
    /// The frame is in a VLAN.
    Vlan {
        /// The VLAN.
        vlan: u16,
        /// How the frame says so.
        tagging: Tagging,
    },
    /// The switch looks at the source address.
    Learn {
        /// The address.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        mac: MacAddr,
        /// What it would do.
        result: Learning,
        /// The port on which the address was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<PortName>,
    },
    /// A rule matches.
    Rule {
        /// Number of the rule.
        rule: u32,
    },
    /// The frame enters a chain.
    Chain {
        /// The chain.
        chain: String,
    },
    /// A function gets the frame. The trace goes on as if the function passed it on unchanged.
    Function {
        /// The port of the function.
        port: PortName,
    },
    /// The switch asks its forwarding program, which says what the next steps do.
    Program,
    /// The switch looks for the destination address.
    Lookup {
        /// The address.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        mac: MacAddr,
        /// What it finds.
        entry: Option<FdbEntry>,
    },
    /// The frame is flooded.
    Flood {
        /// As what.
        class: FloodClass,
    },
    /// The frame is for a multicast group, in a switch with `mcast_snooping`.
    Group {
        /// The destination.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        mac: MacAddr,
        /// Where its frames go.
        scope: GroupScope,
    },
    /// A port gets the frame, or a copy of it.
    Send {
        /// The port.
        port: PortName,
        /// What is done to its VLAN tag.
        tag: TagAction,
        /// The VLAN in the tag, where it is new.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
    },
    /// The frame is dropped, or its copy for one port.
    Drop {
        /// The port that counts the drop.
        port: PortName,
        /// The reason, as counters name it.
        reason: String,
    },
}

/// How a frame carries its VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Tagging {
    /// Without a tag.
    Untagged,
    /// With a tag that is payload: the port is transparent to VLANs.
    Payload,
    /// With a tag that gives a priority only.
    Priority,
    /// With the tag of its VLAN.
    Tagged,
}

/// What the forwarding database does with a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Learning {
    /// Learns it.
    New,
    /// Refreshes its entry.
    Refreshed,
    /// Moves its entry from another port.
    Moved,
    /// Nothing: a static entry names the address.
    Static,
    /// Nothing: the port has learned as many addresses as it may.
    PortLimit,
    /// Nothing: static entries take its places.
    Full,
}

/// Why a frame is flooded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FloodClass {
    /// The destination is unknown.
    UnknownUnicast,
    /// The destination is a group.
    Multicast,
    /// The destination is every station.
    Broadcast,
}

/// Where the frames of a multicast group go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GroupScope {
    /// Flooded, whatever members say.
    Always,
    /// Flooded, for want of a querier.
    NoQuerier,
    /// Flooded, because the multicast database was full.
    Full,
    /// To members and router ports.
    Members,
    /// To router ports: no port has a member.
    NoMember,
    /// A report, which goes to router ports.
    Report,
    /// A query, which goes to all ports of its VLAN.
    Query,
}

/// What is done to the VLAN tag of a frame that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TagAction {
    /// Nothing.
    Keep,
    /// The tag is removed.
    Strip,
    /// A tag is put in.
    Insert,
    /// The VLAN in it is replaced.
    Replace,
}
