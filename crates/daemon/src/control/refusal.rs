//! Why a call is refused: every reason once, each with its code and a line that says what to do.

mod code;
mod group;
mod service;

use protocol::name::{NameError, PortName, SwitchName};
use thiserror::Error;

use hostif::HostError;
use port::machine::SocketError;

use crate::keeper::NotKept;
use crate::log::cut;
use crate::model::error::{BadValue, DatapathError, MakeHostError, MakeMachineError};
use crate::model::policy::Access;
pub use group::{GroupRefusal, Unaffordable};
use protocol::{Failure, Mac, PROTOCOL_VERSION, users};
pub use service::Clash;

/// Why a call is refused. Nothing has changed, but for [`Refusal::NotKept`].
#[derive(Debug, Error)]
pub enum Refusal {
    /// No such switch.
    #[error("no switch {0}; see: uvala switch list")]
    NoSwitch(SwitchName),
    /// No such port.
    #[error("no port {0}; see: uvala port list")]
    NoPort(PortName),
    /// No such entry in a forwarding database.
    #[error("no entry {mac} in VLAN {vlan} of {switch}; see: uvala fdb list {switch}")]
    NoFdbEntry {
        /// The switch.
        switch: SwitchName,
        /// The address.
        mac: Mac,
        /// The VLAN.
        vlan: u16,
    },
    /// No such chain.
    #[error("{0} has no chain {1}; see: uvala chain list {0}")]
    NoChain(SwitchName, String),
    /// A function that could not say what it wants of a frame.
    #[error("{0} is no port of kind shm: what a function wants of a frame stands in its slots")]
    ServiceKind(PortName),
    /// No such rule.
    #[error("{0} has no rule {1}; see: uvala rule list {0}")]
    NoRule(SwitchName, u32),
    /// There is no such hop, or it is none of this port's.
    #[error("port {0} has no hop {1}")]
    NoHop(PortName, u32),
    /// Chains or rules that cannot be meant.
    #[error("{0}: {1}")]
    Steering(SwitchName, String),
    /// Chains on a switch that does not look at them.
    #[error("{0} has no chains; give it some with: uvala switch set {0} --forwarding chain")]
    NotSteered(SwitchName),
    /// Detach of a port that the caller does not hold.
    #[error("port {0} is not attached by this connection")]
    NotHeld(PortName),
    /// There is a switch of that name.
    #[error("switch {0} exists already; change it with: uvala switch set {0}")]
    SwitchExists(SwitchName),
    /// An interface that there is not.
    #[error("no interface {0}; make one with: vale-ctl -n NAME")]
    NoInterface(PortName),
    /// A name of the wrong kind.
    #[error("{0}: an interface is named netmap:v0, and vale0:v0 in a switch")]
    NoInterfaceName(PortName),
    /// There is an interface of that name, in a switch or not, or the system has one.
    #[error("interface {0} exists already; choose another name")]
    InterfaceExists(PortName),
    /// An interface as a port of a switch.
    #[error("{0} is an interface: make it with vale-ctl -n, and put it into a switch with -a")]
    InterfaceAdded(PortName),
    /// Threads for a port that is moved by none.
    #[error("{0} is no interface of the system: nothing polls it")]
    NotPolled(PortName),
    /// Polling twice, or the end of what was not begun.
    #[error("{0} is in that state already")]
    PollState(PortName),
    /// A port that nobody made as an interface.
    #[error("{0} came with its pipes and goes with them")]
    NotAdded(PortName),
    /// An interface that is in a switch.
    #[error("it is port {0}; take it out of the switch first: vale-ctl -d {0}")]
    AttachedTo(PortName),
    /// What is not an interface of the system.
    #[error("{0} has no host rings: it is no interface of the system")]
    NoHostSide(PortName),
    /// An interface in two switches, which is a cable between them and nothing else.
    #[error("the interface is in two switches, a cable between them; first: vale-ctl -d {0}")]
    InTwoSwitches(PortName),
    /// The name of an interface that is not in the switch.
    #[error("{0} is an interface of yours, which is not in this switch; first: vale-ctl -a {0}")]
    NotAttached(PortName),
    /// An interface is to become a port that there is.
    #[error("port {0} exists already")]
    PortTaken(PortName),
    /// There is a port of that name.
    #[error("port {0} exists already; change it with: uvala port set {0}")]
    PortExists(PortName),
    /// Another client holds the port.
    #[error(
        "port {port} is taken by process {pid} of {}; choose another name",
        users::user_name(*.uid)
    )]
    InUse {
        /// The port.
        port: PortName,
        /// Who holds it.
        pid: u32,
        /// Its user.
        uid: u32,
    },
    /// The kind of port cannot be attached.
    #[error("port {0} is served by the daemon itself and cannot be attached")]
    NotAttachable(PortName),
    /// A pipe end as a persistent port.
    #[error("{0} is the end of a pipe; pipes come with their clients and cannot be added")]
    PipePersistent(PortName),
    /// A function is to be of another service while it may have frames of a chain.
    #[error(
        "a function runs at {0}, and the frames that it has would go on as anybody's: end it first \
         (uvala nf list)"
    )]
    FunctionRuns(PortName),
    /// An instance that is the only one of its service.
    #[error(
        "{0} and says that there can be one instance of it only: end it first, or take another \
         service (--service)"
    )]
    Alone(Box<Clash>),
    /// An instance that has to be the only one, where there is another.
    #[error(
        "there can be one instance only of the function that is to run, and {0}: end that one \
         first, or take another service (--service)"
    )]
    NotAlone(Box<Clash>),
    /// Chains are not taken away from functions.
    #[error(
        "a function runs at {0}, and without chains it would send frames round and round: end it \
         first (uvala nf list)"
    )]
    NeedsChains(PortName),
    /// A setting on the end of a pipe.
    #[error("{0} is the end of a pipe, which the switch does not see: there is nothing to set")]
    PipeSettings(PortName),
    /// A netmap program that does not cope with headers.
    #[error("frames of {0} have a virtio-net header: uvala port set {0} --vnet-header 0")]
    HasHeader(PortName),
    /// A pipe in a trust group.
    #[error("{0} is the end of a pipe, whose ends share their own region: it takes no group")]
    PipeGroup(PortName),
    /// The caller is neither owner nor in the group, or their bits are missing.
    #[error(
        "switch {switch} belongs to {} with mode {mode}: no permission to {}; {}",
        users::user_name(*.owner), .access.verb(), remedy(*.access, .switch)
    )]
    Denied {
        /// The switch.
        switch: SwitchName,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: protocol::Mode,
        /// What the caller wanted.
        access: Access,
    },
    /// The port is somebody else's.
    #[error(
        "port {port} is for {} with mode {mode}: no permission to attach; the switch's owner can \
         change that with: uvala port set {port} --owner USER",
        users::user_name(*.owner)
    )]
    NotGranted {
        /// The port.
        port: PortName,
        /// Whose it is.
        owner: u32,
        /// Its mode.
        mode: protocol::Mode,
    },
    /// Only the owner makes ports of this switch.
    #[error(
        "there is no port {port}, and on its switch only {} makes ports (new-ports owner); ask \
         for: uvala port add {port} --owner USER",
        users::user_name(*.owner)
    )]
    NoNewPorts {
        /// The port.
        port: PortName,
        /// The owner of the switch.
        owner: u32,
    },
    /// A port that is its client's.
    #[error("port {0} goes with its client, and is given to nobody else; see: uvala port add")]
    GivesTransient(PortName),
    /// A port that nobody attaches to.
    #[error("port {0} is served by the daemon itself: it is nobody's to attach to")]
    GivesServed(PortName),
    /// A socket that is there already.
    #[error("whose the socket of {0} is was said when it was added: delete the port and add it")]
    GivesSocket(PortName),
    /// A socket at a place of choice.
    #[error("only root, or the daemon's own user, may choose the socket; leave it out")]
    SocketPrivilege,
    /// No socket.
    #[error("{0}")]
    Socket(SocketError),
    /// Only the administrator may give a switch away.
    #[error("only root may give a switch to another user, or to a group you are not in")]
    GiveAway,
    /// The other end of the pipe, or a region of netmap ports, belongs to somebody else.
    #[error(
        "{what} belongs to {}: memory is shared only between processes of one user",
        users::user_name(*.owner)
    )]
    NotYours {
        /// What it is.
        what: String,
        /// Its owner.
        owner: u32,
    },
    /// A monitor of a port that nobody has open.
    #[error("nobody has port {0} open; a monitor needs somebody to look at, open it first")]
    NotOpen(PortName),
    /// A monitor of a port whose frames pass no worker.
    #[error("frames of {0} do not pass the daemon; only ports of a switch can be monitored")]
    NotWatchable(PortName),
    /// A monitor of somebody else's port.
    #[error(
        "port {port} belongs to {}: only that user and root may monitor it",
        users::user_name(*.owner)
    )]
    NotYoursToWatch {
        /// The port.
        port: PortName,
        /// Its user.
        owner: u32,
    },
    /// A null port without a region.
    #[error("a null port needs the number of a region to live in (nr_mem_id)")]
    NoMemory,
    /// The user has as much as one user may have.
    #[error(
        "{} has {have} {what}, the limit for one user; give some back, or raise quota.{what}",
        users::user_name(*.uid)
    )]
    Quota {
        /// The user.
        uid: u32,
        /// What there is too much of: a key of the configuration's `[quota]`.
        what: &'static str,
        /// How much of it.
        have: u64,
    },
    /// The user's switches hold as many addresses as they may.
    #[error(
        "it takes {asked} addresses, and {} has {have} of {limit} (quota.addresses): ask for fewer \
         with --fdb-capacity, give some back, or raise the quota",
        users::user_name(*.uid)
    )]
    Addresses {
        /// The user.
        uid: u32,
        /// How many the switch is to hold more.
        asked: u64,
        /// How many all of them may hold now.
        have: u64,
        /// How many they may at most.
        limit: u64,
    },
    /// The switch's database is full of static addresses.
    #[error(
        "{switch} holds {have} addresses, all static; for more: uvala switch set {switch} \
         --fdb-capacity N"
    )]
    AddressesFull {
        /// The switch.
        switch: SwitchName,
        /// Its capacity.
        have: usize,
    },
    /// The user has not so much memory left.
    #[error(
        "it takes {}, and {} has {} of {} (quota.memory); give some back, or raise the quota",
        mib(*.asked), users::user_name(*.uid), tenths(*.held), mib(*.limit)
    )]
    Memory {
        /// The user.
        uid: u32,
        /// Bytes that the port or pipe takes.
        asked: u64,
        /// Bytes that the user has.
        held: u64,
        /// Bytes that a user may have.
        limit: u64,
    },
    /// No user may have so much memory.
    #[error(
        "it takes {}, more than one user may have in all: {} (quota.memory); ask for fewer slots \
         or extra buffers, or raise the quota",
        mib(*.asked), mib(*.limit)
    )]
    MoreThanQuota {
        /// Bytes that the port or pipe takes.
        asked: u64,
        /// Bytes that a user may have.
        limit: u64,
    },
    /// A trust group.
    #[error(transparent)]
    Group(#[from] GroupRefusal),
    /// No region has so much memory.
    #[error("{0} takes more than 4 GiB, the most there is; ask for fewer rings, slots or buffers")]
    TooLarge(PortName),
    /// A port was deleted before its client had it.
    #[error("port {0} was deleted while it was being made; attach it again")]
    Deleted(PortName),
    /// A value is out of range.
    #[error(transparent)]
    Value(#[from] BadValue),
    /// A second bind on one connection.
    #[error("this connection has bound port {0} already; open another one for another port")]
    BoundAlready(PortName),
    /// Nothing to resume.
    #[error("this connection has bound no port")]
    NothingBound,
    /// A region that is not there.
    #[error("there is no memory region {0}; a port's region is gone when nobody holds the port")]
    NoRegion(u16),
    /// A port of another region.
    #[error("port {port} lives in region {mem_id}; bind it without a region, or with that one")]
    OtherRegion {
        /// The port.
        port: PortName,
        /// Where it is.
        mem_id: u16,
    },
    /// Another version of the protocol.
    #[error(
        "this daemon speaks protocol {ours}, not {0}; use the same uvala for both",
        ours = PROTOCOL_VERSION
    )]
    Version(u32),
    /// No port or switch can have this name.
    #[error(transparent)]
    BadName(#[from] NameError),
    /// Not a message of this protocol.
    #[error("not a call of this protocol: {0}")]
    BadMessage(String),
    /// The caller may not have what the daemon's rights would give.
    #[error("only root and the daemon's own user may make ports of network interfaces")]
    HostPrivilege,
    /// It is a port already.
    #[error("this interface is port {0} already, which must go first")]
    HostTaken(PortName),
    /// A network interface cannot be had.
    #[error(transparent)]
    Host(HostError),
    /// A change that could not be written down.
    #[error(
        "done, but not kept: a restart of the daemon would undo it; make room or mend \
         what is wrong with {0}; it is tried again every few seconds"
    )]
    NotKept(NotKept),
    /// The workers had no room.
    #[error("{0}; close other ports, or raise the daemon's limits")]
    Datapath(#[from] DatapathError),
}

impl Refusal {
    /// A value of the request is not valid; the text says what is.
    pub fn bad_value(text: impl Into<String>) -> Self {
        Self::Value(BadValue(text.into()))
    }
}

/// What somebody who lacks a permission can do.
fn remedy(access: Access, switch: &SwitchName) -> String {
    match access {
        Access::Look | Access::Attach => {
            let set = format!("uvala switch set {switch} --group GROUP --mode 660");
            format!("its owner can let a group in (--mode 666: everybody): {set}")
        }
        Access::Manage => "only its owner and root may, whatever the mode".to_owned(),
    }
}

impl From<MakeMachineError> for Refusal {
    fn from(error: MakeMachineError) -> Self {
        match error {
            MakeMachineError::Socket(error) => Self::Socket(error),
            MakeMachineError::Datapath(error) => Self::Datapath(error),
        }
    }
}

impl From<MakeHostError> for Refusal {
    fn from(error: MakeHostError) -> Self {
        match error {
            MakeHostError::Host(error) => Self::Host(error),
            MakeHostError::Datapath(error) => Self::Datapath(error),
        }
    }
}

/// Bytes as people count them.
fn mib(bytes: u64) -> String {
    format!("{} MiB", tenths(bytes))
}

/// The same without the unit. What is left over counts as a tenth.
fn tenths(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10).div_ceil(1 << 20);
    format!("{}.{}", tenths / 10, tenths % 10)
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        // It may quote what somebody sent, which fills a message by itself.
        Self::new(refusal.code(), cut(refusal.to_string()))
    }
}
