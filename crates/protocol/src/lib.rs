//! The control protocol: what client and daemon say to each other.
//!
//! One `SOCK_SEQPACKET` UNIX socket; one JSON message each way per call, at most [`MAX_MESSAGE`]
//! bytes; listings come in pages. The reply to [`SessionRequest::Attach`] carries file descriptors
//! beside the text.
//!
//! ```text
//! → {"v":1,"call":{"attach":{"port":"vale0:vm1"}}}
//! ← {"v":1,"result":{"ok":{"attached":{"port":"vale0:vm1","region_bytes":4542464,…}}}}   + 3 fds
//! → {"v":1,"call":{"port_del":{"port":"vale0:x"}}}
//! ← {"v":1,"result":{"err":{"code":"not_found","message":"no port vale0:x; …"}}}
//! ```
//!
//! A connection stands for one client process: what it attached is detached when it closes,
//! whatever the reason. Unknown fields are refused on both sides, so a typing error is never a
//! silent default.

mod address;
mod attach;
mod audit;
mod chain;
pub mod check;
mod choices;
pub mod config;
mod drops;
mod event;
mod fdb;
pub mod file;
mod host;
mod interface;
mod kind;
mod machine;
mod mdb;
mod mirror;
pub mod name;
mod netmap;
pub mod parse;
pub mod paths;
pub mod peer;
mod port;
mod program;
mod request;
#[cfg(feature = "schema")]
mod schema;
mod stats;
mod switch;
pub mod toml_error;
mod trace;
mod usage;
pub mod users;
mod values;
mod vxlan;
mod worker;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use address::{MAX_STATIC, StaticAddress};
pub use attach::{Attach, Attached, HandedPort};
pub use audit::{GroupAccess, GroupAudit, MemberAudit};
pub use chain::{
    COUNT_NAME_MAX, COUNTS_MAX, ChainAdd, ChainInfo, ChainRef, ChainSpec, FlowCacheInfo,
    FunctionInfo, FunctionNote, NO_DIRECT_HOPS, NextFunction, RuleAdd, RuleDel, RuleInfo, RuleSpec,
    SteeringQuery, sent_by_function,
};
pub use choices::{
    Direction, Forwarding, ForwardingChoice, McastFamily, McastRouter, OnFull, RunBy,
};
pub use drops::{DROP_REASONS, DropReason, DropReasonName};
pub use event::{Change, Event, Events, EventsQuery};
pub use fdb::{FdbAdd, FdbDel, FdbEntry, FdbFlush, FdbList};
pub use host::{Address, Filter, HandedOver, HostIf, HostIfInfo, LinkState, QueueSet, Queues};
pub use interface::{InterfaceAdd, InterfaceAttach, InterfacePoll, PollThreads};
pub use kind::{Peer, PortKind, PortOption, Side};
pub use machine::{
    COALESCE_USECS_MAX, CURE_BY_QUEUES, CURE_IN_GUEST, Machine, MachineInfo, MachineState,
    PAIRS_MAX, SocketPlace,
};
pub use mdb::{
    MCAST_GROUPS_MAX, McastCounters, MdbChange, MdbEntry, MdbList, STATIC_GROUPS_MAX, StaticGroup,
};
pub use mirror::{MIRROR_PORTS_MAX, Mirror};
pub use netmap::{
    Bind, BindKind, Bound, BoundRings, CaptureOf, DropsOf, GeometryQuery, HostBound, HostRings,
    MonitorOf, Pool, PortGeometry, RingChoice, Room,
};
pub use port::{
    ClientInfo, LABEL_MAX, PortAdd, PortInfo, PortList, PortRef, PortSet, PortSettings,
    QUEUE_FRAMES_MAX,
};
pub use program::{
    PROGRAM_ENTRIES_MAX, ProgramEntry, ProgramEntryRef, ProgramEntrySet, ProgramInfo, ProgramMap,
    ProgramMapQuery, ProgramSpec,
};
pub use request::{
    ChainRequest, FdbRequest, FunctionRequest, GroupRequest, InterfaceRequest, MdbRequest,
    PortRequest, ProgramRequest, Request, RuleRequest, SessionRequest, SwitchRequest, UsageRequest,
    WorkerRequest,
};
pub use stats::{Counter, Fill, PortStats, StatsPage, StatsQuery};
pub use switch::{
    FDB_CAPACITY_MAX, FdbCounters, LoopInfo, SwitchInfo, SwitchRef, SwitchSettings, SwitchSpec,
};
pub use trace::{
    FloodClass, GroupScope, Learning, TRACE_HEAD, TagAction, Tagging, Trace, TraceQuery, TraceStep,
};
pub use usage::{Usage, UserUsage};
pub use values::{Mode, NewPorts, ValueError};
pub use vxlan::{
    EXTERN_LEARN_MAX, EXTERN_NEIGH_MAX, EXTERN_REMOTES_MAX, ExternLearn, ExternNeigh, ExternRemote,
    NeighEntry, NeighInfo, NeighList, REMOTES_MAX, RemoteVlans, VNIS_MAX, VXLAN_FDB_MAX, VlanVni,
    Vxlan, VxlanChange, VxlanInfo, VxlanKeys, VxlanRemote, VxlanStation,
};
pub use worker::{PortWorker, StallCause, StallInfo, StallStage, WorkerInfo, WorkerMove};

/// The version in every message; the daemon refuses every other one.
pub const PROTOCOL_VERSION: u32 = 1;
/// Upper bound of a message in bytes, either way.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Most descriptors beside a reply: those of a TAP that is handed over.
pub const MAX_FDS: usize = 16;
/// Most descriptors beside a call: those of a TAP that is handed over.
pub const MAX_GIVEN: usize = 16;

/// A call as it stands in a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallMessage {
    /// [`PROTOCOL_VERSION`].
    pub v: u32,
    /// What to do.
    pub call: Request,
}

/// A reply as it stands in a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplyMessage {
    /// [`PROTOCOL_VERSION`].
    pub v: u32,
    /// How it went.
    pub result: Outcome,
}

/// How a call went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "taken apart at once, never kept")]
pub enum Outcome {
    /// Done.
    Ok(Reply),
    /// Refused; nothing has changed ([`ErrorCode::NotKept`] apart).
    Err(Failure),
}

/// Every answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Done, nothing to say.
    Done,
    /// To [`SessionRequest::Hello`].
    Daemon(DaemonInfo),
    /// To [`SwitchRequest::Show`].
    Switch(SwitchInfo),
    /// To [`SwitchRequest::List`].
    Switches(Page<SwitchInfo>),
    /// To [`PortRequest::Show`].
    Port(PortInfo),
    /// To [`PortRequest::List`].
    Ports(Page<PortInfo>),
    /// To [`FdbRequest::List`].
    Fdb(Page<FdbEntry>),
    /// To [`FdbRequest::Neigh`].
    Neigh(Page<NeighEntry>),
    /// To [`MdbRequest::List`].
    Mdb(Page<MdbEntry>),
    /// To [`PortRequest::Stats`].
    Stats(StatsPage),
    /// To [`PortRequest::Trace`].
    Trace(Trace),
    /// To [`SessionRequest::Attach`].
    Attached(Attached),
    /// To [`SessionRequest::Bind`] and [`SessionRequest::Resume`].
    Bound(Bound),
    /// To [`SessionRequest::Missed`].
    Missed(u64),
    /// After [`SessionRequest::Events`], again and again.
    Events(Events),
    /// To [`SessionRequest::HandOver`].
    HandedOver(HandedOver),
    /// To [`SessionRequest::HandOverPort`]: one port, or none where it cannot be handed over.
    HandedPort(Page<HandedPort>),
    /// To [`PortRequest::Geometry`] and [`InterfaceRequest::Add`].
    PortGeometry(PortGeometry),
    /// To [`ChainRequest::List`].
    Chains(Page<ChainInfo>),
    /// To [`RuleRequest::Add`]: the numbers of the rules.
    RulesAdded(Vec<u32>),
    /// To [`RuleRequest::List`].
    Rules(Page<RuleInfo>),
    /// To [`FunctionRequest::List`].
    Functions(Page<FunctionInfo>),
    /// To [`ProgramRequest::Show`].
    Program(ProgramInfo),
    /// To [`ProgramRequest::MapGet`].
    ProgramEntry(ProgramEntry),
    /// To [`ProgramRequest::MapList`].
    ProgramEntries(Page<ProgramEntry>),
    /// To [`GroupRequest::Audit`].
    Audit(Page<GroupAudit>),
    /// To [`FunctionRequest::Next`].
    NextFunctions(Vec<NextFunction>),
    /// To [`WorkerRequest::List`].
    Workers(Page<WorkerInfo>),
    /// To [`UsageRequest::Show`].
    Usage(Usage),
    /// To [`UsageRequest::Users`].
    Users(Page<UserUsage>),
}

/// Why a call was refused: a code for programs, a line for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(deny_unknown_fields)]
#[error("{message}")]
pub struct Failure {
    /// For programs.
    pub code: ErrorCode,
    /// One line that says what to do.
    pub message: String,
}

impl Failure {
    /// A failure.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// What can go wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// No port or switch can have this name.
    BadName,
    /// No such switch, port or entry.
    NotFound,
    /// There is one already.
    Exists,
    /// Another client holds the port.
    InUse,
    /// The caller may not do that.
    Permission,
    /// The caller has as much as the daemon lets one user have.
    Quota,
    /// Neither memory nor descriptors left in the daemon.
    NoMemory,
    /// The message is no call of this protocol, or its values are out of range.
    BadRequest,
    /// A call that this daemon, or this kind of port, does not know.
    Unsupported,
    /// The daemon's own fault.
    Internal,
    /// Done, but not written down: the next daemon will not know of it. Nothing else that is an
    /// error has changed anything.
    NotKept,
}

impl ErrorCode {
    /// Exit status of a program that stops for this reason; the whole table is in [`exit`].
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::BadName => exit::BAD_NAME,
            Self::NotFound => exit::NOT_FOUND,
            Self::Exists => exit::EXISTS,
            Self::InUse => exit::IN_USE,
            Self::Permission => exit::PERMISSION,
            Self::Quota => exit::QUOTA,
            Self::NoMemory => exit::NO_MEMORY,
            Self::BadRequest => exit::BAD_REQUEST,
            Self::Unsupported => exit::UNSUPPORTED,
            Self::Internal => exit::INTERNAL,
            Self::NotKept => exit::NOT_KEPT,
        }
    }
}

/// Exit statuses of `uvala`, the one table.
pub mod exit {
    /// Done.
    pub const OK: u8 = 0;
    /// Failed for a reason that has no status of its own.
    pub const FAILURE: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 2;
    /// No daemon answers, or it went away.
    pub const NO_DAEMON: u8 = 3;
    /// The user may not do that.
    pub const PERMISSION: u8 = 4;
    /// No such switch, port or entry.
    pub const NOT_FOUND: u8 = 5;
    /// Another client holds the port.
    pub const IN_USE: u8 = 6;
    /// The user's quota is used up.
    pub const QUOTA: u8 = 7;
    /// Neither memory nor descriptors left.
    pub const NO_MEMORY: u8 = 8;
    /// The configuration file is wrong.
    pub const BAD_CONFIG: u8 = 9;
    /// Not the name of a port or switch.
    pub const BAD_NAME: u8 = 10;
    /// There is one of that name already, or another daemon on the same socket.
    pub const EXISTS: u8 = 11;
    /// This daemon or this kind of port cannot do that.
    pub const UNSUPPORTED: u8 = 12;
    /// The daemon refused the message: values out of range, another protocol version.
    pub const BAD_REQUEST: u8 = 13;
    /// A fault of uvala itself.
    pub const INTERNAL: u8 = 14;
    /// Done, but it will not outlive the daemon: its state directory cannot be written.
    pub const NOT_KEPT: u8 = 15;
}

/// The caller introduces itself; the name appears in listings and logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// Program and version, for people.
    pub client: String,
}

/// The daemon introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DaemonInfo {
    /// Version of the program.
    pub version: String,
    /// Process number.
    pub pid: u32,
    /// User it runs as.
    pub uid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Worker threads.
    pub workers: u32,
    /// Switches, including those the caller may not see.
    pub switches: u32,
    /// Ports, likewise.
    pub ports: u32,
}

/// Where a listing goes on: `None` for the first page, then [`Page::next`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageFrom {
    /// [`Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// A part of a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Page<T> {
    /// The entries of this page.
    pub items: Vec<T>,
    /// Ask again from here; `None` on the last page.
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use packet::MacAddr;

    use super::*;

    fn call(text: &str) -> Result<CallMessage, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn test_a_call_reads_as_documented() {
        let attach = Attach::new("vale0:vm1".parse().unwrap());
        let message = CallMessage { v: 1, call: Request::Session(SessionRequest::Attach(attach)) };
        let text = r#"{"v":1,"call":{"attach":{"port":"vale0:vm1"}}}"#;
        assert_eq!(call(text).unwrap(), message);
        assert_eq!(call(&serde_json::to_string(&message).unwrap()).unwrap(), message);
    }

    #[test]
    fn test_a_refusal_reads_as_documented() {
        let failure = Failure::new(ErrorCode::NotFound, "no port vale0:x");
        let message = ReplyMessage { v: 1, result: Outcome::Err(failure) };
        let text = r#"{"v":1,"result":{"err":{"code":"not_found","message":"no port vale0:x"}}}"#;
        assert_eq!(serde_json::to_string(&message).unwrap(), text);
        assert_eq!(serde_json::from_str::<ReplyMessage>(text).unwrap(), message);
    }

    #[test]
    fn test_unknown_fields_and_bad_values_are_refused() {
        for text in [
            r#"{"v":1,"call":{"attach":{"port":"vale0:vm1","slots":4}}}"#,
            r#"{"v":1,"call":{"attach":{"port":"eth0"}}}"#,
            r#"{"v":1,"call":{"fly":{}}}"#,
            r#"{"v":1,"call":{"switch_add":{"switch":"vale0","settings":{"mode":"888"}}}}"#,
            r#"{"v":1,"call":{"port_set":{"port":"vale0:a","settings":{"vlam":"access:7"}}}}"#,
            r#"{"v":1,"x":2,"call":{"hello":{"client":""}}}"#,
        ] {
            assert!(call(text).is_err(), "{text}");
        }
    }

    #[test]
    fn test_text_forms_roundtrip() {
        assert_eq!("660".parse::<Mode>().unwrap().to_string(), "660");
        assert_eq!("0o600".parse::<Mode>().unwrap().bits(), 0o600);
        let mac = "02:00:00:00:0a:ff";
        assert_eq!(mac.parse::<MacAddr>().unwrap().to_string(), mac);
        assert_eq!(serde_json::to_value(mac.parse::<MacAddr>().unwrap()).unwrap(), mac);
        for bad in ["", "1777", "+66", "rw"] {
            assert!(bad.parse::<Mode>().is_err(), "{bad}");
        }
        for bad in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "+2:00:00:00:00:01", "2:0:0:0:0:1"]
        {
            assert!(bad.parse::<MacAddr>().is_err(), "{bad}");
            assert!(serde_json::from_value::<MacAddr>(bad.into()).is_err(), "{bad}");
        }
    }

    #[test]
    fn test_every_error_has_its_own_exit_code() {
        use ErrorCode as E;
        let all = [E::BadName, E::NotFound, E::Exists, E::InUse, E::Permission];
        let more = [E::Quota, E::NoMemory, E::BadRequest, E::Unsupported, E::Internal, E::NotKept];
        let mut codes: Vec<u8> = all.iter().chain(&more).map(|e| e.exit_code()).collect();
        codes.extend([exit::OK, exit::FAILURE, exit::USAGE, exit::NO_DAEMON, exit::BAD_CONFIG]);
        codes.sort_unstable();
        assert_eq!(codes, (0..=15).collect::<Vec<u8>>());
    }
}
