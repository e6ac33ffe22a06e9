//! Counters of ports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::name::{PortName, SwitchName};

/// Whose counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsQuery {
    /// Only those of one switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchName>,
    /// Only those of one port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<PortName>,
    /// Ports that went within the last minute, in place of those that are there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Counters, all read between two batches of the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StatsPage {
    /// Monotonic clock of the daemon, for rates.
    pub at_ns: u64,
    /// The ports of this page.
    pub items: Vec<PortStats>,
    /// Ask again from here; `None` on the last page.
    pub next: Option<String>,
}

/// Counters of a port. `tx` is what its client sends, `rx` what it receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PortStats {
    /// The port.
    pub port: PortName,
    /// A number that the daemon gives to this port alone: one that is deleted and made again has
    /// another.
    #[serde(default)]
    pub serial: u32,
    /// Frames from the client, all rings.
    pub tx: Counter,
    /// Frames to the client, all rings.
    pub rx: Counter,
    /// Frames that were dropped, by reason; only reasons that occurred.
    pub drops: BTreeMap<String, u64>,
    /// Transmit rings.
    pub tx_queues: Vec<Counter>,
    /// Receive rings.
    pub rx_queues: Vec<Counter>,
    /// How often a ring was re-synchronised because its client wrote an index out of range.
    #[serde(default)]
    pub resyncs: u64,
    /// Slots of frames that stood in its rings when a client of it went: not given back by that, or
    /// not taken from it yet.
    #[serde(default)]
    pub abandoned: u64,
    /// How often the switch woke the port's program, which slept.
    #[serde(default)]
    pub wakes: u64,
    /// The longest of its turns that were timed, in nanoseconds: one round of turns in 128 is. It
    /// begins anew when the port moves to another worker.
    #[serde(default)]
    pub longest_turn_ns: u64,
    /// What stands in the receive rings now; `None`: no program has rings there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_fill: Option<Fill>,
    /// Frames that a function got by calls of others in its thread, which it counts itself.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub called_in: u64,
    /// Frames that it passed on and that left by no ring of this port, or that a function of its
    /// thread dropped later.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub called_out: u64,
    /// Seconds since the port went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_s: Option<u64>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How full rings are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Fill {
    /// Slots with frames, which the program has not returned.
    pub slots: u32,
    /// Slots that may have frames.
    pub capacity: u32,
}

/// Frames and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// Frames.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
}
