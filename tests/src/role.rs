//! What a client process is told to do, and what it reports. Both are lines of JSON: the role is
//! the argument of `uvala-peer`, reports go to its stdout.

use std::path::PathBuf;

use client::Options;
use serde::{Deserialize, Serialize};

use crate::frames::{Mac, Tally};

/// The part that a test process plays.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Sends a stream until its end, or until stdin ends.
    Send(Send),
    /// Receives until there is enough, or until stdin ends and nothing more comes.
    Receive(Receive),
    /// Holds a port until stdin ends, and never looks at it.
    Hold(At),
    /// Keeps every buffer it gets, until stdin ends.
    Hoard(Hoard),
    /// Always has calls waiting, on many connections, until stdin ends.
    Flood(Flood),
    /// Sends by very many ports at once, until stdin ends.
    Crowd(Crowd),
    /// Writes random numbers all over its port's memory until stdin ends.
    Scribble(Scribble),
    /// Does to the daemon what a client can, at random, until stdin ends.
    HostileClient(HostileClient),
    /// Does to the daemon what a VMM and its guest can, at random, until stdin ends.
    HostileGuest(HostileGuest),
    /// Does to a stream or dgram port what its peer can, at random, until stdin ends.
    HostilePeer(HostilePeer),
    /// Attacks by its doorbell until stdin ends.
    Doorbells(DoorbellAttack),
    /// Attacks by what the switch wakes it by, until stdin ends.
    WakeUps(WakeAttack),
    /// Attacks by its wake-ups, leaves and comes again, until it is refused.
    Returns(ReturnAttack),
    /// Attacks by the wake-ups of many ports, none of which is slow, until stdin ends.
    WakeCrowd(WakeCrowd),
    /// Keeps what it had of pipes from being closed, until stdin ends.
    Closings(ClosingAttack),
    /// Gives the daemon a TAP, and keeps it from being closed, until stdin ends.
    GivenTap(GivenTap),
    /// Has no port, and holds the lock of nested epoll sets, until stdin ends.
    NestedSets(NestedSets),
    /// Attacks by the interrupts of a machine, until stdin ends.
    Interrupts(InterruptAttack),
    /// Attacks by its socket as the peer of a port, until the port hangs up.
    Sockets(SocketAttack),
    /// Attacks by the memory of its port, until stdin ends.
    Memory(MemoryAttack),
    /// Sends a stream as a netmap program does.
    NetmapSend(Send),
    /// Receives as a netmap program does.
    NetmapReceive(Receive),
    /// Receives on a netmap descriptor that it is given.
    NetmapResume(Resume),
    /// Becomes another program, which dies with its parent.
    Become(Become),
}

/// Which port, and how to open it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct At {
    /// The daemon's directory.
    pub dir: PathBuf,
    /// The port's name.
    pub port: String,
    /// Rings each way.
    pub rings: Option<u16>,
    /// Slots of each ring.
    pub slots: Option<u32>,
    /// Buffers beyond those of the slots.
    pub extra_bufs: Option<u32>,
    /// Trust group.
    pub group: Option<String>,
    /// Bytes of its region, if this is its first port.
    pub group_memory: Option<u64>,
    /// Never sleep.
    pub spin: bool,
    /// Sleep at once, without yielding first.
    pub sleepy: bool,
    /// Survive a restart of the daemon.
    pub reconnect: bool,
}

impl At {
    /// As options for opening it.
    #[must_use]
    pub fn options(&self) -> Options {
        let mut options = Options::new().dir(&self.dir).reconnect(self.reconnect);
        if let Some(count) = self.extra_bufs {
            options = options.extra_bufs(count);
        }
        if let Some(rings) = self.rings {
            options = options.rings(rings);
        }
        if let Some(slots) = self.slots {
            options = options.slots(slots);
        }
        if let Some(group) = &self.group {
            options = options.group(group.clone());
        }
        if let Some(bytes) = self.group_memory {
            options = options.group_memory(bytes);
        }
        let yields = if self.sleepy { 0 } else { client::WaitPolicy::default().yields };
        options.wait(client::WaitPolicy { yields, spin: self.spin })
    }
}

/// A sender.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Send {
    /// The peer's port.
    pub at: At,
    /// Number of the stream; the source address follows from it.
    pub stream: u32,
    /// Destination.
    pub to: Mac,
    /// How many frames; `None` for no end.
    pub count: Option<u64>,
    /// Lengths of the frames, in turn.
    pub lens: Vec<usize>,
    /// Frames handed over at once, at most.
    pub batch: usize,
}

/// A receiver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Receive {
    /// The peer's port.
    pub at: At,
    /// The address it makes known, if any.
    pub station: Option<u32>,
    /// How many frames of streams are enough; `None` for never.
    pub count: Option<u64>,
    /// Sends each frame of a stream back to where it came from.
    pub echo: bool,
}

/// A client that takes buffers out of its slots.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Hoard {
    /// The peer's port.
    pub at: At,
    /// The address it makes known.
    pub station: u32,
    /// Buffers that it never had in a slot.
    pub extra_bufs: u32,
}

/// A receiver on a descriptor that another process has bound.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Resume {
    /// The daemon; the port is the descriptor's.
    pub at: At,
    /// A socket where the descriptor comes from.
    pub from: PathBuf,
    /// How many frames of streams are enough.
    pub count: Option<u64>,
}

/// A hostile client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Scribble {
    /// The peer's port.
    pub at: At,
    /// Where its random numbers begin.
    pub seed: u64,
    /// First it writes once into every page that it can map.
    pub fill: bool,
}

/// A client that does everything that its socket, its memory and its descriptors allow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostileClient {
    /// The daemon's directory.
    pub dir: PathBuf,
    /// Ports that it attaches to, and that its calls name.
    pub ports: Vec<String>,
    /// Where its random numbers begin.
    pub seed: u64,
}

/// A VMM that says anything, with a guest that writes anything.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostileGuest {
    /// The socket of its port.
    pub socket: PathBuf,
    /// Where its random numbers begin.
    pub seed: u64,
}

/// The peer of a stream or dgram port that sends anything.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostilePeer {
    /// The socket of its port.
    pub socket: PathBuf,
    /// The peer's own socket; none: it connects by a stream.
    pub peer: Option<PathBuf>,
    /// Where its random numbers begin.
    pub seed: u64,
}

/// A client that attacks by its doorbell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DoorbellAttack {
    /// The peer's port.
    pub at: At,
    /// What it does.
    pub assault: Assault,
    /// After so long it ends by itself.
    pub seconds: u64,
}

/// What a client does to its doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Assault {
    /// Changes the mode of the file.
    Flags,
    /// Leaves no room in the counter.
    Fill,
    /// Registers copies of the descriptor in epoll sets.
    Watch {
        /// Watches in all.
        watches: u32,
    },
    /// Moves data to it that never comes, and from it to where there is no room.
    Splice,
    /// Gives it to another process, which goes on with it, and ends.
    Pass,
    /// Closes the descriptor.
    Close,
    /// Writes into it from memory that never comes, and reads it into such memory.
    SlowMemory,
}

/// A client that attacks by what the switch wakes it by.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WakeAttack {
    /// The peer's port.
    pub at: At,
    /// What it does.
    pub assault: WakeAssault,
    /// After so long it ends by itself.
    pub seconds: u64,
}

/// What a client does to what the switch wakes it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WakeAssault {
    /// Never reads the descriptor.
    Nothing,
    /// Changes the mode of the file.
    Flags,
    /// Moves data from it to where there is no room, and to it what never comes.
    Splice,
    /// Registers copies of the descriptor in epoll sets.
    Watch {
        /// Watches in all.
        watches: u32,
    },
    /// Reads the descriptor into memory that never comes.
    SlowMemory,
    /// Leaves the only copy of the descriptor in a socket.
    Pass,
    /// Closes the descriptor.
    Close,
    /// Registers copies of the descriptor in epoll sets, and leaves it full for most wake-ups,
    /// which are quick then.
    Alternate {
        /// Watches in all.
        watches: u32,
    },
    /// Sleeps by the futex, in whose bucket of the kernel's table very many others wait.
    Futex {
        /// Number of the others.
        waiters: u32,
    },
    /// Writes random numbers into the words.
    Scribble,
}

/// A client that makes its wake-ups slow, and attaches anew after two of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReturnAttack {
    /// The peer's port.
    pub at: At,
    /// Epoll watches of what it is woken by, in all.
    pub watches: u32,
    /// The watches are of what it kicks by, and it leaves while it kicks.
    pub by_kicks: bool,
    /// After so long it ends by itself.
    pub seconds: u64,
}

/// A client with many ports, all of which sleep and get each broadcast of its feeder.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WakeCrowd {
    /// The first port; the others have its name and a number.
    pub at: At,
    /// How many there are.
    pub ports: u32,
    /// Epoll watches of what each of them is woken by.
    pub watches: u32,
    /// After so long it ends by itself.
    pub seconds: u64,
}

/// A process that holds the kernel's lock of epoll sets that are put into another one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NestedSets {
    /// After so long it ends by itself.
    pub seconds: u64,
}

/// A client that leaves pipes and keeps their doorbells from being closed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClosingAttack {
    /// The first part of the names of its pipes.
    pub at: At,
    /// How many pipes it leaves.
    pub pipes: u32,
    /// After so long it ends by itself.
    pub seconds: u64,
}

/// A process that gives the daemon a TAP and keeps it from being closed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GivenTap {
    /// The port to be.
    pub at: At,
    /// After so long it ends by itself.
    pub seconds: u64,
}

/// A VMM that makes it slow to interrupt its machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct InterruptAttack {
    /// The socket of its port.
    pub socket: PathBuf,
    /// The address that its machine receives by.
    pub station: u32,
    /// Epoll watches of its interrupts, in all.
    pub watches: u32,
}

/// The peer of a stream or dgram port that makes it slow to send to it, or to take what it sends.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SocketAttack {
    /// The socket of its port.
    pub socket: PathBuf,
    /// The peer's own socket; none: it connects by a stream.
    pub peer: Option<PathBuf>,
    /// The address that it receives by.
    pub station: u32,
    /// Epoll watches of its socket, in all.
    pub watches: u32,
    /// How many bytes the peer sends at a time, by a stream; none: it receives.
    pub sends: Option<usize>,
    /// Frames that the peer sends by a socket that nothing watches, before each by one that is
    /// watched; by datagrams only.
    pub quick: u32,
}

/// A client, or a VMM, that holds up accesses to the memory that it shares with the switch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MemoryAttack {
    /// The client's port.
    pub at: At,
    /// The socket of the VMM's port; none: a client.
    pub machine: Option<PathBuf>,
    /// After so long it ends by itself.
    pub seconds: u64,
}

/// A hostile caller.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Flood {
    /// The daemon's directory.
    pub dir: PathBuf,
    /// How many connections the peer opens.
    pub connections: u32,
}

/// A user that has very many ports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Crowd {
    /// The daemon's directory.
    pub dir: PathBuf,
    /// The switch of its ports.
    pub switch: String,
    /// How many ports it opens, if the daemon lets it.
    pub ports: u32,
    /// The station that its frames come from.
    pub station: u32,
}

/// Another program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Become {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Most descriptors (`RLIMIT_NOFILE`).
    pub descriptors: Option<u64>,
    /// Most bytes of address space (`RLIMIT_AS`).
    pub address_space: Option<u64>,
    /// The directory of the service manager that starts it.
    #[serde(default)]
    pub service: Option<PathBuf>,
}

/// What a client process says, a line each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The port is open.
    Ready,
    /// A sender has ended: how many frames the switch has taken.
    Sent(u64),
    /// A receiver is at its end.
    Received(Tally),
    /// A hostile client has ended: how many numbers it wrote.
    Scribbled(u64),
    /// A hostile client or guest has ended: how many attacks it made.
    Attacked(u64),
    /// One of many connections is at its end: what its calls usually waited, in microseconds.
    Waited {
        /// The microseconds.
        us: u64,
    },
    /// The peer cannot play its part: what it needs is not here.
    Missing(String),
    /// The peer failed.
    Failed {
        /// Exit status of a program that fails for this reason.
        exit: u8,
        /// The line for people.
        message: String,
    },
}
