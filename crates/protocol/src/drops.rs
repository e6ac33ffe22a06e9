//! Why the switch drops frames, as counters and listings name the reasons.
//!
//! The names stand in the API's `drops` and as labels of metrics. `switch::DropReason` counts
//! under the same names; a test of the daemon compares the two.

use std::fmt;
use std::str::FromStr;

use packet::ParseError;
use serde::{Deserialize, Serialize};

/// A reason for which the switch drops a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DropReason {
    /// The stable name: a label in metrics and a key in JSON.
    pub name: &'static str,
    /// A sentence that explains it to an operator.
    pub explanation: &'static str,
    /// Says what to do about it, where it is not wanted.
    pub cure: &'static str,
}

/// Every reason, in the order of the switch's counters.
pub const DROP_REASONS: [DropReason; 44] = [
    reason(
        "no_room",
        "The destination had no free slot.",
        "Give the port longer rings or a faster program, or set --on-full wait.",
    ),
    reason(
        "too_long",
        "The frame is longer than the destination's MTU or buffers allow.",
        "Lower the sender's MTU, or raise the receiver's.",
    ),
    reason(
        "too_short",
        "The frame is shorter than an Ethernet header.",
        "Correct the program that sends.",
    ),
    reason(
        "bad_slot",
        "The slot's length, flags or offset are invalid.",
        "Correct the program that sends.",
    ),
    reason(
        "bad_index",
        "The slot names a buffer that is not the port's.",
        "Correct the program of the port that counts it. A function sent the frame twice, or took \
         it from another: uvala nf list, REFUSED.",
    ),
    reason(
        "bad_fragments",
        "The frame has too many slots, or its last slot is missing.",
        "Correct the program that sends.",
    ),
    reason(
        "dead_port",
        "No client holds the destination's port.",
        "Start the program of that port. A chain (OUT) or a function may have named the port: \
         uvala chain list, uvala nf list (REFUSED).",
    ),
    reason(
        "pause",
        "A PAUSE frame, which a bridge does not forward.",
        "Switch flow control off at the sender: ethtool -A.",
    ),
    reason(
        "reserved_group",
        "The destination is a group not in group_fwd_mask.",
        "Expected of STP, LACP and LLDP; to forward them: uvala switch set --group-fwd-mask.",
    ),
    reason(
        "bad_source",
        "The source is a group's address, or zeros (allowed from shm).",
        "Correct the program that sends.",
    ),
    reason(
        "vlan",
        "The port is not a member of the frame's VLAN.",
        "Compare the VLANs of the ports: uvala port show.",
    ),
    reason(
        "nested_tag",
        "A second tag would be the frame's first (native VLAN, vlan_vni).",
        "Give the trunk another native VLAN, or none: uvala port set --vlan; with vlan_vni, send \
         frames with one tag.",
    ),
    reason(
        "isolated",
        "Both ports are isolated.",
        "Expected of isolated ports; else: uvala port set --isolated=false.",
    ),
    reason(
        "policy_unicast",
        "The destination takes no unknown unicast (unicast_flood off).",
        "Expected of this setting; else: uvala fdb add, or uvala port set --unicast-flood.",
    ),
    reason(
        "policy_multicast",
        "The destination takes no multicast (multicast_flood off).",
        "Expected of this setting; else: uvala port set --multicast-flood.",
    ),
    reason(
        "policy_broadcast",
        "The destination takes no broadcast (broadcast_flood off).",
        "Expected of this setting; else: uvala port set --broadcast-flood.",
    ),
    reason(
        "mac_lock",
        "The port may not send from the frame's source address (mac_lock).",
        "If the address is right, add it: uvala port set --mac-lock.",
    ),
    reason(
        "storm_unicast",
        "The port sends more unknown unicast than unknown_unicast_limit.",
        "Look for a loop (uvala switch show), or raise the limit.",
    ),
    reason(
        "storm_multicast",
        "The port sends more multicast than multicast_limit.",
        "Look for a loop (uvala switch show), or raise the limit.",
    ),
    reason(
        "storm_broadcast",
        "The port sends more broadcast than broadcast_limit.",
        "Look for a loop (uvala switch show), or raise the limit.",
    ),
    reason(
        "disabled",
        "The switch has disabled the port (bpdu_guard, loop_protect).",
        "Remove the cause, which uvala port show names; then: uvala port enable.",
    ),
    reason(
        "bpdu_filter",
        "A BPDU from or for a port with bpdu_filter.",
        "Expected of this setting; else: uvala port set --bpdu-filter=false.",
    ),
    reason(
        "same_port",
        "The destination is on the port that the frame came from.",
        "Harmless where a bridge is behind the port; else: uvala fdb flush.",
    ),
    reason("unknown", "No static entry names the destination.", "Add the address: uvala fdb add."),
    reason(
        "no_destination",
        "The flood reached no other port.",
        "Attach another port to the switch.",
    ),
    reason(
        "no_member",
        "No other port has a member of the group, or a router (mcast_snooping).",
        "Harmless if no host wants the frames; else: uvala mdb list, uvala mdb add.",
    ),
    reason(
        "link_down",
        "The destination's network interface or virtual machine is down or gone.",
        "Bring the interface up, or start the virtual machine: uvala port show.",
    ),
    reason(
        "offload",
        "The switch cannot do the checksum or segmentation that the frame asks for.",
        "Switch the offload off at the sender: ethtool -K.",
    ),
    reason(
        "patch_unconnected",
        "The patch does not have exactly two ports.",
        "Give the switch two ports: uvala port list.",
    ),
    reason("rule", "A rule drops the frame.", "Expected of this rule; else: uvala rule list."),
    reason(
        "function",
        "A function of the chain dropped the frame.",
        "Expected of some functions; their counters: uvala nf list.",
    ),
    reason(
        "chain_full",
        "A later function of the chain had too little room in its ring.",
        "Give that function a core of its own, or add an instance of its service.",
    ),
    reason(
        "no_instance",
        "A service of the chain has no running instance.",
        "Run one: uvala nf run.",
    ),
    reason(
        "chain_loop",
        "The frame has passed 31 functions, the limit.",
        "Find the function that sends frames back to an earlier one: uvala nf list.",
    ),
    reason(
        "stale",
        "The frame's place in its chain is wrong, or the chain changed too often meanwhile.",
        "Find the function that held the frame too long, or wrote a wrong position: uvala nf list.",
    ),
    reason(
        "ingress",
        "The ingress port in the frame's metadata sends no frames into chains.",
        "Start the program of that port, if it has left. A function must not change that field.",
    ),
    reason(
        "bad_action",
        "The action that the function set is invalid, or names no service.",
        "Correct the function's program: uvala nf list shows which (REFUSED).",
    ),
    reason(
        "vxlan_remote",
        "Not from a remote of the VXLAN port, or from a wrong one (fdb).",
        "If the sender is a host of this network, add it: uvala port set --add-remote.",
    ),
    reason(
        "vxlan_header",
        "The datagram has no VXLAN header with a VNI.",
        "Find the sender, which speaks another protocol: tcpdump udp port 4789.",
    ),
    reason(
        "vxlan_vni",
        "The VNI is not the VXLAN port's, or the VLAN has none (vlan_vni).",
        "Give both ends the same VNI, or the VLAN one: uvala port set --add-vlan-vni.",
    ),
    reason(
        "program",
        "The forwarding program drops the frame.",
        "Expected of this program; its maps: uvala program map list.",
    ),
    reason(
        "program_fault",
        "The forwarding program failed; see: uvala program show.",
        "Correct the program: uvala program show says what failed.",
    ),
    reason(
        "mirror_input",
        "It came from a mirror port, which sends copies out and takes nothing in.",
        "Expected of a host's interface; else send by another port: uvala mirror list.",
    ),
    reason(
        "mirror_rate",
        "The mirror port has a limit of copies per second (--rate).",
        "Expected of this limit; else raise it: uvala mirror add.",
    ),
];

impl DropReason {
    /// The reason of this name; `None`: a newer daemon has it.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        DROP_REASONS.iter().find(|reason| reason.name == name)
    }
}

/// The name of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DropReasonName(&'static DropReason);

impl DropReasonName {
    /// The name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0.name
    }
}

impl fmt::Display for DropReasonName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl FromStr for DropReasonName {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let known = DropReason::named(text).map(Self);
        known.ok_or_else(|| ParseError::new("a reason that uvala stats --explain lists", text))
    }
}

packet::text_form!(DropReasonName);

const fn reason(name: &'static str, explanation: &'static str, cure: &'static str) -> DropReason {
    DropReason { name, explanation, cure }
}
