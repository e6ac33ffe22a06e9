//! Scenarios: a piece of work, with its goal, its limit and its peers. [Which there are](list) is a
//! file of its own.

use crate::probe::Regime;
use crate::work::{Placement, Unit, Wait, Work};

mod chains;
mod list;

pub use list::{all, find};

/// Another system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Linux bridge with two TAPs.
    Bridge,
    /// DPDK memif.
    Memif,
    /// DPDK memif in zero-copy mode.
    MemifZeroCopy,
    /// DPDK vhost, switched by testpmd.
    Vhost,
    /// OVS-DPDK as a learning switch of virtual machines.
    OvsDpdk,
    /// This switch, learning, with virtual machines.
    GuestsLearning,
    /// This switch, with pollers at the ends.
    GuestsPollers,
    /// This switch, with virtio-net in the guests.
    GuestsVirtio,
    /// A Linux bridge of veths.
    BridgeVeth,
    /// A Linux bridge with TAPs, and programs at them: such as move frames to the ends' TAPs, or
    /// QEMU.
    BridgeRelay,
    /// Open vSwitch in user space, without DPDK.
    OvsUser,
    /// A program that reads a TAP.
    BareTap,
    /// vde_switch.
    Vde,
    /// The client library instead of netmap's interface.
    Native,
}

impl Peer {
    /// The name used in tables, in JSON, and by `--peer`.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Bridge => "linux-bridge-tap",
            Peer::Memif => "dpdk-memif",
            Peer::MemifZeroCopy => "dpdk-memif-zero-copy",
            Peer::Vhost => "dpdk-vhost",
            Peer::OvsDpdk => "ovs-dpdk",
            Peer::GuestsLearning => "uvala-learning",
            Peer::GuestsPollers => "uvala-dpdk-ends",
            Peer::GuestsVirtio => "uvala-virtio",
            Peer::BridgeVeth => "linux-bridge-veth",
            Peer::BridgeRelay => "linux-bridge-tap",
            Peer::OvsUser => "ovs-userspace",
            Peer::BareTap => "bare-tap",
            Peer::Vde => "vde-switch",
            Peer::Native => "native-client",
        }
    }
}

/// The kind of limit that a scenario is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// A ring between two cores, in million frames a second.
    Exchange,
    /// Write, copy and read on one core, in million frames a second.
    OneCore,
    /// Bare rings between as many functions, in million frames a second.
    Chain,
    /// This many cache-line round trips, in microseconds.
    LineTrips(u8),
    /// This many wake-ups through pipes on one core, in microseconds.
    WakeUps(u8),
    /// Nothing meaningful.
    None,
}

/// The limit of a round trip, by how its parties wait and how many there are.
pub fn of_round_trip(wait: Wait, isolated: bool) -> Limit {
    match (wait, isolated) {
        (Wait::Asleep, true) => Limit::WakeUps(4),
        (Wait::Asleep, false) => Limit::WakeUps(2),
        (Wait::Spin, true) => Limit::LineTrips(2),
        (Wait::Spin, false) => Limit::LineTrips(1),
        (Wait::Yield, _) => Limit::None,
    }
}

/// A scenario of `uvala bench`.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What one types.
    pub name: &'static str,
    /// What it is, in a line.
    pub what: &'static str,
    /// What its value counts.
    pub unit: Unit,
    /// The goal in the near regime, or on one core.
    pub goal: Option<f64>,
    /// The goal in the far regime, where it is another.
    pub goal_far: Option<f64>,
    /// What is run.
    pub work: Work,
    /// What the value is the loss against: the same measurement with this work.
    pub baseline: Option<Work>,
    /// Where to run when the cores are far apart, if elsewhere.
    pub far: Option<Placement>,
    /// What the machine allows.
    pub limit: Limit,
    /// The other software that does this work.
    pub peers: &'static [Peer],
    /// What is to be reached by comparison with them.
    pub ratios: &'static [Ratio],
    /// Whether programs take part that take seconds to start. Then every sample is one of a peer's
    /// length, and `--quick` waits for all of them.
    pub slow: bool,
}

/// A goal that is stated by comparison.
#[derive(Debug, Clone, Copy)]
pub struct Ratio {
    /// This switch in another shape, if not that of the scenario.
    pub ours: Option<Peer>,
    /// The peer to compare with.
    pub theirs: Peer,
    /// Ours is to be as many times theirs: at least, or at most where less is better.
    pub times: f64,
}

impl Scenario {
    /// The goal in a regime.
    pub fn goal_in(&self, regime: Regime) -> Option<f64> {
        match (regime, self.goal_far) {
            (Regime::Far, Some(far)) => Some(far),
            (Regime::Far, None) if !self.one_core() => None,
            _ => self.goal,
        }
    }

    /// Whether a value reaches the goal.
    pub fn reaches(&self, value: f64, goal: f64) -> bool {
        if self.unit.higher_is_better() { value >= goal } else { value <= goal }
    }

    /// Whether the value does not depend on the distance of the cores.
    pub fn one_core(&self) -> bool {
        self.work.placement.one_core()
    }

    /// The work as it is run in a regime.
    pub fn work_in(&self, regime: Regime) -> Work {
        match (regime, self.far) {
            (Regime::Far, Some(placement)) => Work { placement, ..self.work },
            _ => self.work,
        }
    }

    /// As one that counts something else than frames a second, for which no limit is known.
    fn counts(self, unit: Unit) -> Scenario {
        Scenario { unit, limit: Limit::None, ..self }
    }
}

/// A scenario that counts frames, without peers.
pub fn rate(name: &'static str, what: &'static str, goal: Option<f64>, work: Work) -> Scenario {
    let limit = if work.placement.one_core() { Limit::OneCore } else { Limit::Exchange };
    Scenario {
        name,
        what,
        unit: Unit::Mpps,
        goal,
        goal_far: None,
        work,
        baseline: None,
        far: None,
        limit,
        peers: &[],
        ratios: &[],
        slow: false,
    }
}
