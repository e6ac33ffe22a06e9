//! A piece of work: what is sent between which ports, by which programs, and where they run.

use protocol::OnFull;
use serde::{Deserialize, Serialize};

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
    /// One batch size for all parties.
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
    /// Network cards of two virtual machines with kernels in them.
    Kernels(Card, Exchange),
    /// TAPs in two namespaces.
    HostTcp,
    /// Two veths, by packet sockets.
    HostSmall,
    /// Two veths, by AF_XDP.
    HostXdp,
    /// From a TAP to a port of shared memory.
    HostTap,
    /// From a port of shared memory into a tunnel to as many hosts as a port may have.
    Tunnel,
}

impl Path {
    /// Whether the work is measured in a network namespace of its own.
    pub fn needs_laboratory(self) -> bool {
        use Path::{HostSmall, HostTap, HostTcp, HostXdp, Kernels, Tunnel};
        matches!(self, Kernels(..) | HostTcp | HostSmall | HostXdp | HostTap | Tunnel)
    }
}

/// The network card of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Card {
    /// virtio-net.
    Virtio,
    /// An e1000, with Linux' own driver.
    E1000,
    /// An e1000 that shares a page with its driver: a communication status block.
    E1000Csb,
    /// The port itself.
    Ptnet,
}

/// What two guests send each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// One TCP stream: Gbit/s that arrive.
    Stream,
    /// UDP in the shortest frames, as fast as a program can: thousand that arrive a second.
    Datagrams,
    /// ICMP echo requests 5 ms apart: median microseconds until the reply.
    Echo,
}

/// What the switch does with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// Looks up learned addresses.
    Learning,
    /// Hands each frame to the other of two ports.
    Patch,
    /// Looks up addresses in a map of a forwarding program.
    Program,
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

/// Direction of the traffic, and what is measured.
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
    /// Nothing is sent: nanoseconds in which a forwarding program decides about a header.
    Decision,
    /// Nothing is sent: milliseconds until a client has the metrics of a daemon with idle ports.
    Scrape,
    /// A million stations send a frame each: nanoseconds of the daemon for each, which it learns.
    Learn,
    /// A million stations send a frame each: megabytes by which the daemon grows.
    StationsMemory,
    /// ARP requests one by one, which a tunnel's port floods: microseconds of the daemon for each.
    Flooded,
    /// ARP requests one by one, which a tunnel's port answers: microseconds of the daemon for each.
    Answered,
    /// Nothing is sent: percent of one core while a viewer of the web page sees idle ports.
    Page,
    /// Another daemon takes over: milliseconds between two frames, at most.
    Replace,
    /// A million frames at this rate, in thousand frames a second, all by default: million frames
    /// that arrive in a second.
    Offered(u16),
    /// A million frames, all by default: percent that are lost. They come at this rate, in thousand
    /// frames a second, or at once.
    Burst(Option<u16>),
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
    /// Direction of the traffic.
    pub traffic: Traffic,
    /// CPU of each party.
    pub placement: Placement,
    /// What happens to frames for a full receiver.
    pub on_full: OnFull,
    /// Ports that are attached and do nothing.
    pub idle_ports: u16,
    /// Whether `uvala capture` runs at the receiver's port.
    pub captured: bool,
}

impl Work {
    /// How many ports receive.
    #[must_use]
    pub fn receivers(&self) -> u8 {
        match self.traffic {
            Traffic::Broadcast(count) | Traffic::Unicast(count) => count,
            _ => 1,
        }
    }
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
    // No work is spent on frames that are dropped, unless that is measured.
    on_full: OnFull::Wait,
    idle_ports: 0,
    captured: false,
};

/// What a value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Million frames a second, higher is better.
    Mpps,
    /// Thousand frames a second, higher is better.
    Kpps,
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
    /// Percent of a rate or of frames lost, lower is better.
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
            Unit::Kpps => "kpps",
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
        matches!(self, Unit::Mpps | Unit::Kpps | Unit::Deliveries | Unit::Gbit)
    }
}

/// The functions between the ends of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Chain {
    /// This many functions from one wire to another; where payload is touched, each reads words of
    /// the first line and writes one there.
    Functions(u8),
    /// Functions of which each reads every byte.
    Readers(u8),
    /// Functions between learning ports; frames leave by their destination address.
    Bridged(u8),
    /// Functions in one thread.
    Together(u8),
    /// What one function more costs, by a call within a thread and by the switch.
    Call,
    /// No function, but a thousand rules, and a million flows that take turns.
    Rules,
    /// Functions in the box: a firewall, a NAT and a router.
    Box,
    /// Functions of the box in one thread.
    BoxTogether,
}

/// Rules of [`Chain::Rules`], and live flows.
pub const RULES: u16 = 1000;
pub const FLOWS: u64 = 1 << 20;

/// Functions in the box, and what they are told: packets of 10.0.1.2 may go to 10.0.2.2.
pub const BOX: [(&str, &str); 3] = [
    ("firewall", "[[rule]]\naction = \"accept\"\nsrc = \"10.0.1.0/24\"\n"),
    ("nat", "inside = [\"10.0.1.0/24\"]\noutside = [\"10.0.2.1\"]\n"),
    (
        "router",
        "[[interface]]\naddress = \"10.0.1.1/24\"\n[[interface]]\naddress = \"10.0.2.1/24\"\n",
    ),
];

impl Chain {
    /// How many functions there are.
    pub fn functions(self) -> u8 {
        match self {
            Chain::Functions(count)
            | Chain::Readers(count)
            | Chain::Bridged(count)
            | Chain::Together(count) => count,
            Chain::Rules | Chain::Call => 0,
            Chain::Box | Chain::BoxTogether => u8::try_from(BOX.len()).expect("few"),
        }
    }

    /// Whether the functions are those that come with uvala.
    pub fn is_box(self) -> bool {
        matches!(self, Chain::Box | Chain::BoxTogether)
    }

    /// Whether the functions share a thread.
    pub fn is_together(self) -> bool {
        matches!(self, Chain::Together(_) | Chain::BoxTogether)
    }
}

/// A sender and a receiver with functions between them; those have the receiver's core.
pub const fn between(functions: u8) -> Work {
    Work { path: Path::Chain(Chain::Functions(functions)), placement: Placement::TWO, ..COPY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_functions_in_the_box_understand_what_they_are_told() {
        for (name, config) in BOX {
            assert!(functions::Function::new(name, config).is_ok(), "{name}");
        }
        assert_eq!(Chain::Box.functions(), 3);
    }
}
