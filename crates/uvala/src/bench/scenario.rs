//! The scenarios: what is measured, in which unit, against which goal, limit and peers.
//!
//! Goals are those of the design for two shared cores. They are stated for the near regime; where a
//! goal for far exists it stands beside it.

use serde::{Deserialize, Serialize};

use super::limit::{Limit, of_round_trip};
use super::peers::Peer;
use super::probe::Regime;

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
}

/// What the programs at the ends are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// The client library.
    Native,
    /// netmap's interface, under the preloaded library; nothing of ours is known to them.
    Netmap,
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
    /// Nothing is sent: nanoseconds that a poll of a port and a pipe takes, above the system call.
    Poll,
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
    /// Whether payload is used.
    pub payload: Payload,
    /// How the ends are written.
    pub api: Api,
    /// What lies between the ends.
    pub path: Path,
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
    payload: Payload::Touched,
    api: Api::Native,
    path: Path::Isolated,
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
    /// Microseconds, lower is better.
    Microseconds,
    /// Nanoseconds, lower is better.
    Nanoseconds,
    /// Percent of the rate lost, lower is better.
    PercentLost,
    /// Percent of one core, lower is better.
    PercentCpu,
    /// Megabytes, lower is better.
    Megabytes,
}

impl Unit {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Mpps => "Mpps",
            Unit::Deliveries => "M deliveries/s",
            Unit::Microseconds => "us",
            Unit::Nanoseconds => "ns",
            Unit::PercentLost => "% lost",
            Unit::PercentCpu => "% of a core",
            Unit::Megabytes => "MB",
        }
    }

    /// Whether a bigger value is a better one.
    pub fn higher_is_better(self) -> bool {
        matches!(self, Unit::Mpps | Unit::Deliveries)
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

const SWITCHES: &[Peer] = &[Peer::Bridge, Peer::Memif, Peer::Vhost, Peer::Vde];
const ZERO_COPY: &[Peer] = &[Peer::MemifZeroCopy, Peer::Bridge];
const KERNEL: &[Peer] = &[Peer::Bridge, Peer::Vde];

fn rate(name: &'static str, what: &'static str, goal: Option<f64>, work: Work) -> Scenario {
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
    }
}

fn round_trip(
    name: &'static str,
    what: &'static str,
    goal: f64,
    path: Path,
    wait: Wait,
) -> Scenario {
    let placement = if wait == Wait::Asleep { Placement::ONE } else { Placement::TWO };
    let work = Work { path, placement, batch: Batch::all(1), ..COPY };
    Scenario {
        unit: Unit::Microseconds,
        limit: of_round_trip(wait, path == Path::Isolated),
        ..rate(name, what, Some(goal), Work { traffic: Traffic::RoundTrip(wait), ..work })
    }
}

fn quiet(name: &'static str, what: &'static str, goal: f64, unit: Unit, t: Traffic) -> Scenario {
    let work = Work { traffic: t, idle_ports: 10, placement: Placement::ONE, ..COPY };
    Scenario { unit, limit: Limit::None, ..rate(name, what, Some(goal), work) }
}

/// Every scenario, in the order in which they run.
pub fn all() -> Vec<Scenario> {
    let mut all = throughput();
    all.extend(one_region());
    all.extend(fan_out());
    all.extend(netmap());
    all.extend(latency_and_rest());
    all
}

fn throughput() -> Vec<Scenario> {
    let long = Work { frame_len: 1514, batch: Batch::all(64), ..COPY };
    let one = Work { placement: Placement::ONE, ..COPY };
    let untouched = Work { payload: Payload::Untouched, ..COPY };
    let sender1 = Work {
        batch: Batch { sender: 1, switch: 256, receiver: 256 },
        placement: Placement::APART,
        ..COPY
    };
    vec![
        Scenario {
            peers: SWITCHES,
            ..rate("copy-60", "60 B, sender, switch and receiver isolated", Some(120.0), COPY)
        },
        Scenario {
            peers: SWITCHES,
            goal_far: Some(13.0),
            far: Some(Placement::ONE),
            ..rate("copy-1514", "1514 B, the same; all on one core when far", Some(18.0), long)
        },
        Scenario {
            peers: KERNEL,
            ..rate("one-core-60", "60 B, everything on one core", Some(85.0), one)
        },
        Scenario {
            peers: KERNEL,
            ..rate(
                "one-core-1514",
                "1514 B, everything on one core",
                Some(13.0),
                Work { placement: Placement::ONE, ..long },
            )
        },
        Scenario {
            peers: &[Peer::Memif],
            ..rate("untouched-60", "60 B, ends use slots only (pkt-gen)", Some(200.0), untouched)
        },
        Scenario {
            peers: &[Peer::Memif],
            ..rate(
                "batch1",
                "60 B, every party handles one frame at a time",
                Some(20.0),
                Work { batch: Batch::all(1), ..COPY },
            )
        },
        rate("sender-batch1", "60 B, the sender publishes every frame", Some(75.0), sender1),
        rate(
            "both-60",
            "60 B, two ports, both directions at once",
            None,
            Work { traffic: Traffic::Both, ..COPY },
        ),
    ]
}

fn one_region() -> Vec<Scenario> {
    let group = Work { path: Path::Group, ..COPY };
    let pipe = Work { path: Path::Pipe, placement: Placement::APART, ..COPY };
    vec![
        Scenario {
            peers: &[Peer::MemifZeroCopy],
            ..rate("group-60", "60 B inside a trust group: buffers are swapped", None, group)
        },
        Scenario {
            peers: ZERO_COPY,
            ..rate(
                "group-1514",
                "1514 B inside a trust group, read by the receiver",
                Some(25.0),
                Work { frame_len: 1514, batch: Batch::all(64), ..group },
            )
        },
        Scenario {
            peers: &[Peer::MemifZeroCopy],
            ..rate(
                "pipe",
                "a pipe, descriptors only",
                Some(600.0),
                Work { payload: Payload::Untouched, ..pipe },
            )
        },
        Scenario {
            peers: &[Peer::MemifZeroCopy],
            ..rate("pipe-60", "a pipe, 60 B written and read", Some(200.0), pipe)
        },
    ]
}

fn fan_out() -> Vec<Scenario> {
    let broadcast = Work {
        traffic: Traffic::Broadcast(8),
        payload: Payload::Untouched,
        placement: Placement { sender: 0, switch: 0, receiver: 1 },
        batch: Batch::all(64),
        ..COPY
    };
    let busy = Work { payload: Payload::Untouched, batch: Batch::all(64), ..COPY };
    vec![
        Scenario {
            unit: Unit::Deliveries,
            ..rate("broadcast-8", "60 B from one port to eight", Some(200.0), broadcast)
        },
        rate(
            "unicast-8",
            "60 B from one port to eight in turn, which are waited for",
            None,
            Work { traffic: Traffic::Unicast(8), ..broadcast },
        ),
        Scenario {
            unit: Unit::PercentLost,
            baseline: Some(busy),
            limit: Limit::None,
            ..rate(
                "idle-48",
                "rate lost when 48 idle ports are attached, 60 B untouched",
                Some(10.0),
                Work { idle_ports: 48, ..busy },
            )
        },
    ]
}

fn netmap() -> Vec<Scenario> {
    let touched = Work { api: Api::Netmap, ..COPY };
    let untouched = Work { payload: Payload::Untouched, ..touched };
    let small = Work { batch: Batch { sender: 64, switch: 256, receiver: 64 }, ..untouched };
    let poll = Work { placement: Placement::ONE, traffic: Traffic::Poll, ..touched };
    let peers = &[Peer::Native];
    vec![
        Scenario {
            peers,
            ..rate(
                "netmap-60",
                "60 B, ends are netmap programs, slots only",
                Some(150.0),
                untouched,
            )
        },
        Scenario {
            peers,
            ..rate("netmap-60-touched", "the same, payload written and read", Some(100.0), touched)
        },
        Scenario {
            peers,
            ..rate("netmap-60-batch64", "slots only, 64 slots a poll at either end", None, small)
        },
        Scenario {
            unit: Unit::Nanoseconds,
            limit: Limit::None,
            ..rate(
                "netmap-poll",
                "poll of a netmap port and a pipe, nothing to do, above a bare poll",
                Some(400.0),
                poll,
            )
        },
    ]
}

fn latency_and_rest() -> Vec<Scenario> {
    use Path::{Group, Isolated};
    vec![
        Scenario {
            peers: KERNEL,
            ..round_trip("rtt-asleep", "round trip, clients asleep", 8.5, Isolated, Wait::Asleep)
        },
        Scenario {
            peers: &[Peer::Bridge],
            ..round_trip(
                "rtt-group",
                "round trip in a trust group, clients asleep",
                3.6,
                Group,
                Wait::Asleep,
            )
        },
        round_trip("rtt-yield", "round trip, all yielding", 3.0, Isolated, Wait::Yield),
        Scenario {
            goal_far: Some(1.2),
            ..round_trip("rtt-spin", "round trip, all spinning", 0.3, Isolated, Wait::Spin)
        },
        quiet("idle-cpu", "the daemon with ten idle ports", 1.0, Unit::PercentCpu, Traffic::Quiet),
        quiet(
            "memory",
            "the daemon with ten idle ports, beyond the ports' own memory",
            30.0,
            Unit::Megabytes,
            Traffic::DaemonMemory,
        ),
        quiet("memory-port", "one default port", 6.0, Unit::Megabytes, Traffic::PortMemory),
    ]
}

/// The scenario of a name.
pub fn find(name: &str) -> Option<Scenario> {
    all().into_iter().find(|s| s.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn test_all_promised_scenarios_exist_once() {
        let promised = [
            "copy-60",
            "copy-1514",
            "one-core-60",
            "one-core-1514",
            "untouched-60",
            "batch1",
            "sender-batch1",
            "group-60",
            "group-1514",
            "pipe",
            "pipe-60",
            "broadcast-8",
            "idle-48",
            "netmap-60",
            "netmap-60-touched",
            "netmap-poll",
            "rtt-asleep",
            "rtt-group",
            "rtt-spin",
            "idle-cpu",
            "memory",
        ];
        let names: Vec<_> = all().iter().map(|s| s.name).collect();
        for name in promised {
            assert!(names.contains(&name), "{name}");
        }
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    }

    #[test]
    fn test_goal_in_far_is_another_or_none() {
        let long = find("copy-1514").unwrap();
        assert_eq!(long.goal_in(Regime::Near), Some(18.0));
        assert_eq!(long.goal_in(Regime::Far), Some(13.0));
        assert!(long.work_in(Regime::Far).placement.one_core());
        assert_eq!(find("copy-60").unwrap().goal_in(Regime::Far), None);
        assert_eq!(find("one-core-60").unwrap().goal_in(Regime::OneCore), Some(85.0));
    }

    #[test]
    fn test_reaches_knows_which_way_is_better() {
        let rate = find("copy-60").unwrap();
        assert!(rate.reaches(121.0, 120.0) && !rate.reaches(119.0, 120.0));
        let trip = find("rtt-asleep").unwrap();
        assert!(trip.reaches(8.4, 8.5) && !trip.reaches(8.6, 8.5));
    }

    #[test]
    fn test_limit_crosses_cores_only_where_the_work_does() {
        for s in all() {
            let crosses = matches!(s.limit, Limit::Exchange | Limit::LineTrips(_));
            assert!(!(s.one_core() && crosses), "{}", s.name);
        }
    }
}
