//! Scenarios: what they are made of. [Which there are](list) is a file of its own.

use serde::{Deserialize, Serialize};

use super::chain::Chain;
use super::limit::Limit;
use super::peers::Peer;
use super::probe::Regime;

mod list;

pub use list::{all, find, rate};

/// Frames handled per turn by each party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Slots filled before the sender publishes.
    pub sender: u16,
    /// Most frames the switch takes from a port at once.
    pub switch: u16,
    /// Slots read before the receiver gives them back.
    pub receiver: u16,
}

impl Batch {
    /// The same for all.
    pub const fn all(frames: u16) -> Batch {
        Batch { sender: frames, switch: frames, receiver: frames }
    }
}

/// Whether the programs at the ends use the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Payload {
    /// The sender writes and the receiver reads and checks every byte.
    Touched,
    /// Both handle slots only, as pkt-gen does; an isolated switch still copies.
    Untouched,
}

/// What lies between the ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// Ports of different memory regions: frames are copied.
    Isolated,
    /// Ports of one trust group: buffers are swapped.
    Group,
    /// A pipe: two processes, no switch.
    Pipe,
    /// Ports of one trust group, with functions between them.
    Chain(Chain),
    /// Ports of virtual machines.
    Guests,
    /// Ports of virtual machines with kernels in them.
    GuestsTcp,
    /// TAPs in two namespaces.
    HostTcp,
    /// Two veths, by packet sockets.
    HostSmall,
    /// Two veths, by AF_XDP.
    HostXdp,
    /// From a TAP to a port of shared memory.
    HostTap,
}

impl Path {
    /// Is it measured in a network namespace of its own?
    pub fn needs_laboratory(self) -> bool {
        use Path::{GuestsTcp, HostSmall, HostTap, HostTcp, HostXdp};
        matches!(self, GuestsTcp | HostTcp | HostSmall | HostXdp | HostTap)
    }
}

/// What the switch does with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// It looks the address up that it has learnt.
    Learning,
    /// It hands each frame to the other of two ports.
    Patch,
}

/// What the programs at the ends are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// The client library.
    Native,
    /// netmap's interface, under the preloaded library; nothing of ours is known to them.
    Netmap,
    /// The queues of a virtual machine, as `dpdk-testpmd` does it.
    Dpdk,
    /// The queues of a virtual machine, by a driver of ours that sleeps when it can.
    Driver,
}

/// How the parties of a round trip wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// Blocked in the kernel.
    Asleep,
    /// Yielding the core to each other.
    Yield,
    /// Spinning, on cores of their own.
    Spin,
}

/// Who sends to whom, and what is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// One sender, one receiver: million frames received a second.
    OneWay,
    /// Two ports, both send and receive: million frames received a second, together.
    Both,
    /// One sender to all of this many receivers: million deliveries a second.
    Broadcast(u8),
    /// One sender to this many receivers in turn: million frames received a second, together.
    Unicast(u8),
    /// One frame there and back: median microseconds.
    RoundTrip(Wait),
    /// Nothing is sent: percent of one core that the daemon uses.
    Quiet,
    /// Nothing is sent: megabytes of the daemon beyond its ports' memory.
    DaemonMemory,
    /// Nothing is sent: megabytes of one default port.
    PortMemory,
    /// One sender, and a receiver that takes nothing: nanoseconds of the daemon for each frame.
    Overrun,
    /// The daemon is killed: milliseconds until a frame passes again.
    Resume,
    /// One sender, and a machine that is slow: thousand frames a second that it gets done.
    Slow(Offer),
    /// A tenth of what passes, and nearly all: how many times longer a frame takes then.
    Latency,
    /// Nothing is sent: nanoseconds that a poll of a port and a pipe takes, above the system call.
    Poll,
}

/// What a slow machine is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Thousand frames a second.
    pub kpps: u16,
    /// Least time between two interrupts, in microseconds; none: it adapts.
    pub gap_usecs: Option<u16>,
}

/// The CPU of each party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// CPU of the sender.
    pub sender: usize,
    /// CPU of the daemon's worker.
    pub switch: usize,
    /// CPU of the receivers.
    pub receiver: usize,
}

impl Placement {
    /// Two cores: the ends share one, the switch has the other.
    pub const TWO: Placement = Placement { sender: 0, switch: 1, receiver: 0 };
    /// Two cores: the sender alone, switch and receiver together.
    pub const APART: Placement = Placement { sender: 0, switch: 1, receiver: 1 };
    /// Everything on CPU 0.
    pub const ONE: Placement = Placement { sender: 0, switch: 0, receiver: 0 };

    /// Whether nothing crosses cores.
    pub fn one_core(self) -> bool {
        self.sender == self.switch && self.switch == self.receiver
    }
}

/// One piece of work for the subject: everything it needs to know to run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Bytes of a frame, without the checksum.
    pub frame_len: u16,
    /// Frames per turn.
    pub batch: Batch,
    /// Slots of each ring of a chain's ports.
    pub slots: u16,
    /// Whether payload is used.
    pub payload: Payload,
    /// How the ends are written.
    pub api: Api,
    /// What lies between the ends.
    pub path: Path,
    /// What the switch between them does.
    pub forwarding: Forwarding,
    /// Who sends to whom.
    pub traffic: Traffic,
    /// Where everybody runs.
    pub placement: Placement,
    /// Ports that are attached and do nothing.
    pub idle_ports: u16,
}

/// 60-byte frames between two isolated processes: what the other scenarios are variations of.
pub const COPY: Work = Work {
    frame_len: 60,
    batch: Batch::all(256),
    slots: 1024,
    payload: Payload::Touched,
    api: Api::Native,
    path: Path::Isolated,
    forwarding: Forwarding::Learning,
    traffic: Traffic::OneWay,
    placement: Placement::TWO,
    idle_ports: 0,
};

/// What a value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Million frames a second, higher is better.
    Mpps,
    /// Million deliveries a second, higher is better.
    Deliveries,
    /// Gigabits of payload a second, higher is better.
    Gbit,
    /// Microseconds, lower is better.
    Microseconds,
    /// Nanoseconds, lower is better.
    Nanoseconds,
    /// Milliseconds, lower is better.
    Milliseconds,
    /// Percent of the rate lost, lower is better.
    PercentLost,
    /// Percent of one core, lower is better.
    PercentCpu,
    /// Megabytes, lower is better.
    Megabytes,
    /// How many times another value, lower is better.
    Times,
}

impl Unit {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Mpps => "Mpps",
            Unit::Deliveries => "M deliveries/s",
            Unit::Gbit => "Gbit/s",
            Unit::Microseconds => "us",
            Unit::Nanoseconds => "ns",
            Unit::Milliseconds => "ms",
            Unit::PercentLost => "% lost",
            Unit::PercentCpu => "% of a core",
            Unit::Megabytes => "MB",
            Unit::Times => "times",
        }
    }

    /// Whether a bigger value is a better one.
    pub fn higher_is_better(self) -> bool {
        matches!(self, Unit::Mpps | Unit::Deliveries | Unit::Gbit)
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
    /// Who else does this work.
    pub peers: &'static [Peer],
    /// What is to be reached by comparison with them.
    pub ratios: &'static [Ratio],
    /// Do programs take part that take seconds to start? Then every sample is one of a peer's
    /// length, and `--quick` waits for all of them.
    pub slow: bool,
}

/// A goal that is stated by comparison.
#[derive(Debug, Clone, Copy)]
pub struct Ratio {
    /// This switch in another shape, if not that of the scenario.
    pub ours: Option<Peer>,
    /// Whom it is compared with.
    pub theirs: Peer,
    /// Ours is to be as many times theirs.
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
}
