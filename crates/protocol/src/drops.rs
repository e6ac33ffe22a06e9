//! Why the switch drops frames, as counters and listings name the reasons.
//!
//! The names stand in the API's `drops` and as labels of metrics. `switch::DropReason` counts
//! under the same names; a test of the daemon compares the two.

/// A reason for which the switch drops a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropReason {
    /// The stable name: a label in metrics and a key in JSON.
    pub name: &'static str,
    /// A sentence that explains it to an operator.
    pub explanation: &'static str,
}

/// Every reason, in the order of the switch's counters.
pub const DROP_REASONS: [DropReason; 27] = [
    reason("no_room", "The destination had no free slot."),
    reason("too_long", "The frame is longer than the destination's buffers hold."),
    reason("too_short", "The frame is shorter than an Ethernet header."),
    reason("bad_slot", "The slot's length, flags or offset make no sense."),
    reason("bad_index", "The slot names a buffer that is not the port's."),
    reason("bad_fragments", "The frame's slots do not end, or are too many."),
    reason("dead_port", "No client holds the port that the destination is on."),
    reason("pause", "A PAUSE frame, which ends at the first bridge."),
    reason("vlan", "The port is not a member of the frame's VLAN."),
    reason("isolated", "Both ports are isolated."),
    reason("policy_unicast", "The destination takes no unknown unicast (unicast_flood off)."),
    reason("policy_multicast", "The destination takes no multicast (multicast_flood off)."),
    reason("policy_broadcast", "The destination takes no broadcast (broadcast_flood off)."),
    reason("same_port", "The destination is on the port that the frame came from."),
    reason("unknown", "No static entry names the destination."),
    reason("no_destination", "The flood reached no other port."),
    reason("link_down", "The destination's network interface is down or gone."),
    reason("offload", "The frame was left unfinished for a network card, and we cannot finish it."),
    reason("patch_unconnected", "The patch does not have exactly two ports."),
    reason("rule", "A rule says so."),
    reason("function", "A function of a chain says so."),
    reason("chain_full", "A later function of the chain had too little room."),
    reason("no_instance", "A service of the chain has no instance."),
    reason("chain_loop", "The frame has been to 31 functions."),
    reason("stale", "Its chain has no such place, or has been changed too often since it came."),
    reason("ingress", "The port that a function says it came by sends no frames into chains."),
    reason("bad_action", "What its function asks for is no action, or names no service."),
];

const fn reason(name: &'static str, explanation: &'static str) -> DropReason {
    DropReason { name, explanation }
}
