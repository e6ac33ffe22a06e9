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
pub const DROP_REASONS: [DropReason; 38] = [
    reason("no_room", "The destination had no free slot."),
    reason("too_long", "The frame is longer than the destination's MTU or buffers allow."),
    reason("too_short", "The frame is shorter than an Ethernet header."),
    reason("bad_slot", "The slot's length, flags or offset are invalid."),
    reason("bad_index", "The slot names a buffer that is not the port's."),
    reason("bad_fragments", "The frame has too many slots, or its last slot is missing."),
    reason("dead_port", "No client holds the destination's port."),
    reason("pause", "A PAUSE frame, which a bridge does not forward."),
    reason("reserved_group", "The destination is a group not in group_fwd_mask."),
    reason("bad_source", "The source is a group's address, or zeros (allowed from shm)."),
    reason("vlan", "The port is not a member of the frame's VLAN."),
    reason("nested_tag", "A second tag would be the frame's first on a trunk (native VLAN)."),
    reason("isolated", "Both ports are isolated."),
    reason("policy_unicast", "The destination takes no unknown unicast (unicast_flood off)."),
    reason("policy_multicast", "The destination takes no multicast (multicast_flood off)."),
    reason("policy_broadcast", "The destination takes no broadcast (broadcast_flood off)."),
    reason("mac_lock", "The port may not send from the frame's source address (mac_lock)."),
    reason("storm_unicast", "The port sends more unknown unicast than unknown_unicast_limit."),
    reason("storm_multicast", "The port sends more multicast than multicast_limit."),
    reason("storm_broadcast", "The port sends more broadcast than broadcast_limit."),
    reason("disabled", "The switch has disabled the port (bpdu_guard, loop_protect)."),
    reason("same_port", "The destination is on the port that the frame came from."),
    reason("unknown", "No static entry names the destination."),
    reason("no_destination", "The flood reached no other port."),
    reason("link_down", "The destination's network interface or virtual machine is down or gone."),
    reason("offload", "The switch cannot do the checksum or segmentation that the frame asks for."),
    reason("patch_unconnected", "The patch does not have exactly two ports."),
    reason("rule", "A rule drops the frame."),
    reason("function", "A function of the chain dropped the frame."),
    reason("chain_full", "A later function of the chain had too little room in its ring."),
    reason("no_instance", "A service of the chain has no running instance."),
    reason("chain_loop", "The frame has passed 31 functions, the limit."),
    reason(
        "stale",
        "The frame's place in its chain is wrong, or the chain changed too often \
         meanwhile.",
    ),
    reason("ingress", "The ingress port in the frame's metadata sends no frames into chains."),
    reason("bad_action", "The action that the function set is invalid, or names no service."),
    reason("vxlan_remote", "Not from a remote of the VXLAN port, or from a wrong one (fdb)."),
    reason("vxlan_header", "The datagram has no VXLAN header with a VNI."),
    reason("vxlan_vni", "The datagram is for another VNI than the VXLAN port's."),
];

const fn reason(name: &'static str, explanation: &'static str) -> DropReason {
    DropReason { name, explanation }
}
