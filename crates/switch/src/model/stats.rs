//! Counters, and the reasons why frames are dropped.
//!
//! Every counter has one writer, the worker that owns the switch, so they are plain numbers. They
//! are added to once per run of frames, never once per frame. Others get a copy (`clone`) that
//! the worker makes between two batches.

use std::ops::AddAssign;

/// Declares [`DropReason`]: variant, stable name, documentation. `protocol::DROP_REASONS` explains
/// each name to operators.
macro_rules! drop_reasons {
    ($($variant:ident $name:literal $why:literal,)*) => {
        /// Why a frame was not delivered. Each frame that a client gave to the switch is either
        /// sent or counted under one of these.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $why] $variant,)*
        }

        impl DropReason {
            /// Every reason, in the order of [`index`](Self::index).
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The stable name: a label in metrics and a key in JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

drop_reasons! {
    NoRoom "no_room" "The destination had no free slot.",
    TooLong "too_long" "The frame is longer than the destination's MTU or buffers allow.",
    TooShort "too_short" "The frame is shorter than an Ethernet header.",
    BadSlot "bad_slot" "The slot's length, flags or offset are invalid.",
    BadIndex "bad_index" "The slot names a buffer that is not the port's.",
    BadFragments "bad_fragments" "The frame has too many slots, or its last slot is missing.",
    DeadPort "dead_port" "No client holds the destination's port.",
    Pause "pause" "A PAUSE frame, which a bridge does not forward.",
    ReservedGroup "reserved_group" "The destination is a group not in group_fwd_mask.",
    BadSource "bad_source" "The source is a group's address, or zeros (allowed from shm).",
    Vlan "vlan" "The port is not a member of the frame's VLAN.",
    NestedTag "nested_tag" "A second tag would be the frame's first (native VLAN, vlan_vni).",
    Isolated "isolated" "Both ports are isolated.",
    PolicyUnicast "policy_unicast" "The destination takes no unknown unicast (unicast_flood off).",
    PolicyMulticast "policy_multicast" "The destination takes no multicast (multicast_flood off).",
    PolicyBroadcast "policy_broadcast" "The destination takes no broadcast (broadcast_flood off).",
    MacLock "mac_lock" "The port may not send from the frame's source address (mac_lock).",
    StormUnicast "storm_unicast" "The port sends more unknown unicast than unknown_unicast_limit.",
    StormMulticast "storm_multicast" "The port sends more multicast than multicast_limit.",
    StormBroadcast "storm_broadcast" "The port sends more broadcast than broadcast_limit.",
    Disabled "disabled" "The switch has disabled the port (bpdu_guard, loop_protect).",
    BpduFilter "bpdu_filter" "A BPDU from or for a port with bpdu_filter.",
    SamePort "same_port" "The destination is on the port that the frame came from.",
    Unknown "unknown" "No static entry names the destination.",
    NoDestination "no_destination" "The flood reached no other port.",
    NoMember "no_member" "No other port has a member of the group, or a router (mcast_snooping).",
    LinkDown "link_down" "The destination's network interface or virtual machine is down or gone.",
    Offload "offload" "The switch cannot do the checksum or segmentation that the frame asks for.",
    PatchUnconnected "patch_unconnected" "The patch does not have exactly two ports.",
    Rule "rule" "A rule drops the frame.",
    Function "function" "A function of the chain dropped the frame.",
    ChainFull "chain_full" "A later function of the chain had too little room in its ring.",
    NoInstance "no_instance" "A service of the chain has no running instance.",
    ChainLoop "chain_loop" "The frame has passed 31 functions, the limit.",
    Stale "stale" "The frame's place in its chain is wrong, or the chain changed too often \
                   meanwhile.",
    Ingress "ingress" "The ingress port in the frame's metadata sends no frames into chains.",
    BadAction "bad_action" "The action that the function set is invalid, or names no service.",
    VxlanRemote "vxlan_remote" "Not from a remote of the VXLAN port, or from a wrong one (fdb).",
    VxlanHeader "vxlan_header" "The datagram has no VXLAN header with a VNI.",
    VxlanVni "vxlan_vni" "The VNI is not the VXLAN port's, or the VLAN has none (vlan_vni).",
    Program "program" "The forwarding program drops the frame.",
    ProgramFault "program_fault" "The forwarding program failed; see: uvala program show.",
    MirrorInput "mirror_input" "It came from a mirror port, which sends copies out and takes \
                                nothing in.",
    MirrorRate "mirror_rate" "The mirror port has a limit of copies per second (--rate).",
}

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The position of this reason in a table of reasons.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl std::fmt::Display for DropReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Frames and their bytes (without preamble and checksum).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Counters {
    /// Counts a run of frames.
    #[inline]
    pub fn add(&mut self, frames: u64, bytes: u64) {
        debug_assert!(frames > 0 || bytes == 0, "bytes belong to frames");
        self.frames += frames;
        self.bytes += bytes;
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.add(other.frames, other.bytes);
    }
}

/// Drops by reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drops([u64; DropReason::COUNT]);

impl Default for Drops {
    fn default() -> Self {
        Self([0; DropReason::COUNT])
    }
}

impl Drops {
    /// Counts `frames` dropped for `reason`.
    #[inline]
    pub fn add(&mut self, reason: DropReason, frames: u64) {
        self.0[reason.index()] += frames;
    }

    /// Corrects the count of `reason` by this many frames, up or down.
    #[inline]
    pub fn adjust(&mut self, reason: DropReason, frames: i64) {
        let count = &mut self.0[reason.index()];
        debug_assert!(count.checked_add_signed(frames).is_some(), "a count stays above zero");
        *count = count.wrapping_add_signed(frames);
    }

    /// Frames dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason.index()]
    }

    /// Frames dropped for whatever reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every reason with its frames, zeros too.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }
}

impl AddAssign<&Self> for Drops {
    fn add_assign(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// Counters of one queue pair, as `ip -s link` shows them at the interface that is plugged into the
/// port: `tx` counts what the port's user sends, `rx` what it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Frames from the port's user, which the switch has taken.
    pub tx: Counters,
    /// Frames to the port's user, which the switch has delivered.
    pub rx: Counters,
}

/// Counters of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// One entry per queue.
    pub queues: Vec<QueueStats>,
    /// Dropped frames: frames of the port's user without a destination, and frames for the port
    /// that did not fit.
    pub drops: Drops,
    /// How often the port's client was woken.
    pub wakes: u64,
}

impl PortStats {
    /// Zeros, for a port of this many queues.
    pub fn new(queues: usize) -> Self {
        assert!(queues > 0, "a port has a queue at least");
        Self { queues: vec![QueueStats::default(); queues], ..Self::default() }
    }

    /// Adds what another worker has counted of the same port.
    pub fn add(&mut self, other: &Self) {
        if self.queues.len() < other.queues.len() {
            self.queues.resize(other.queues.len(), QueueStats::default());
        }
        for (queue, more) in self.queues.iter_mut().zip(&other.queues) {
            queue.tx += more.tx;
            queue.rx += more.rx;
        }
        self.drops += &other.drops;
        self.wakes += other.wakes;
    }

    /// All queues together.
    pub fn total(&self) -> QueueStats {
        self.queues.iter().fold(QueueStats::default(), |mut sum, queue| {
            sum.tx += queue.tx;
            sum.rx += queue.rx;
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn test_reasons_have_unique_names_fit_for_labels() {
        let names: HashSet<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), DropReason::COUNT);
        let is_label = |name: &&str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        assert!(names.iter().all(is_label));
    }

    #[test]
    fn test_reasons_know_their_place() {
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
    }
}
