//! Direct hops: what a function is told of those that begin or end at it.

use serde::{Deserialize, Serialize};

use super::PortRef;
use crate::name::PortName;

/// What a function asks, on the connection that holds its port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HopCall {
    /// Its hops; who asks knows what to do with them. Answer: [`Reply::Hops`](super::Reply::Hops).
    List(PortRef),
    /// Opens one. Answer: done, with two descriptors: the doorbell to write to, and the one to read
    /// from.
    Open(HopRef),
    /// Has let go of one.
    Close(HopRef),
}

/// A hop of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HopRef {
    /// The function's port.
    pub port: PortName,
    /// The number of the hop.
    pub hop: u32,
}

/// One end of a direct hop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HopEnd {
    /// Its number, never given twice.
    pub hop: u32,
    /// This is the end that sends.
    pub sends: bool,
    /// Offset of its block in the region of the port. It has one ring of each kind; frames go
    /// through the receive ring.
    pub block: u64,
    /// Slots of the ring that is not used.
    pub tx_slots: u32,
    /// Slots of the other.
    pub rx_slots: u32,
    /// What is to be done with it.
    pub state: HopState,
    /// For the sender: chain, its order and position of frames whose next function is at the other
    /// end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<(u8, u8, u8)>,
}

/// What is to be done with an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HopState {
    /// Open it, and use it.
    Open,
    /// Let go of it when the other end has read what there is.
    Closing,
    /// The other end has gone: let go of it, after reading what there is.
    Ended,
}
