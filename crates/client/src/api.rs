//! The control protocol: what client and daemon say to each other.
//!
//! One `SOCK_SEQPACKET` UNIX socket; one JSON message each way per call, at most [`MAX_MESSAGE`]
//! bytes; listings come in pages. The reply to [`Request::Attach`] carries file descriptors beside
//! the text.
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

mod netmap;
mod values;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::name::{PortName, SwitchName};

pub use netmap::{Bind, Bound, BoundRings, GeometryQuery, Pool, PortGeometry, RingChoice};
pub use values::{Mac, Mode, ValueError};

/// The version in every message; the daemon refuses every other one.
pub const PROTOCOL_VERSION: u32 = 1;
/// Upper bound of a message in bytes, either way.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Most descriptors beside a reply.
pub const MAX_FDS: usize = 4;

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
pub enum Outcome {
    /// Done.
    Ok(Reply),
    /// Refused; nothing has changed.
    Err(Failure),
}

/// Every call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Who is there? Answer: [`Reply::Daemon`].
    Hello(Hello),
    /// Makes a switch that stays until it is deleted.
    SwitchAdd(SwitchSpec),
    /// Changes the settings that are given.
    SwitchSet(SwitchSpec),
    /// Deletes a switch with all its ports.
    SwitchDel(SwitchRef),
    /// All switches the caller may see, a page at a time. Answer: [`Reply::Switches`].
    SwitchList(PageFrom),
    /// One switch. Answer: [`Reply::Switch`].
    SwitchShow(SwitchRef),
    /// Makes a persistent port. Answer: [`Reply::Done`].
    PortAdd(PortAdd),
    /// Changes the settings that are given.
    PortSet(PortSet),
    /// Deletes a port; a client that holds it loses it.
    PortDel(PortRef),
    /// Ports, a page at a time. Answer: [`Reply::Ports`].
    PortList(PortList),
    /// One port. Answer: [`Reply::Port`].
    PortShow(PortRef),
    /// The forwarding database of a switch, a page at a time. Answer: [`Reply::Fdb`].
    FdbList(FdbList),
    /// Adds a static entry.
    FdbAdd(FdbAdd),
    /// Deletes one entry.
    FdbDel(FdbDel),
    /// Forgets all learnt entries of a switch or of one of its ports.
    FdbFlush(FdbFlush),
    /// Counters, a page at a time. Answer: [`Reply::Stats`].
    Stats(StatsQuery),
    /// Opens a port, creating switch and port where there are none.
    /// Answer: [`Reply::Attached`] with descriptors.
    Attach(Attach),
    /// Gives an attached port back.
    Detach(PortRef),
    /// Opens a port as netmap does. Answer: [`Reply::Bound`] with descriptors.
    Bind(Bind),
    /// What has this connection bound? Answer: [`Reply::Bound`] with descriptors.
    Resume,
    /// Sizes of a port or of a region. Answer: [`Reply::PortGeometry`].
    PortGeometry(GeometryQuery),
}

/// Every answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Done, nothing to say.
    Done,
    /// To [`Request::Hello`].
    Daemon(DaemonInfo),
    /// To [`Request::SwitchShow`].
    Switch(SwitchInfo),
    /// To [`Request::SwitchList`].
    Switches(Page<SwitchInfo>),
    /// To [`Request::PortShow`].
    Port(PortInfo),
    /// To [`Request::PortList`].
    Ports(Page<PortInfo>),
    /// To [`Request::FdbList`].
    Fdb(Page<FdbEntry>),
    /// To [`Request::Stats`].
    Stats(StatsPage),
    /// To [`Request::Attach`].
    Attached(Attached),
    /// To [`Request::Bind`] and [`Request::Resume`].
    Bound(Bound),
    /// To [`Request::PortGeometry`].
    PortGeometry(PortGeometry),
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

/// Names a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchRef {
    /// Its name.
    pub switch: SwitchName,
}

/// Names a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRef {
    /// Its name.
    pub port: PortName,
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
#[serde(deny_unknown_fields)]
pub struct Page<T> {
    /// The entries of this page.
    pub items: Vec<T>,
    /// Ask again from here; `None` on the last page.
    pub next: Option<String>,
}

/// A switch and the settings to give it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchSpec {
    /// Its name.
    pub switch: SwitchName,
    /// Settings; what is missing keeps its value.
    #[serde(default)]
    pub settings: SwitchSettings,
}

/// Settings of a switch; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchSettings {
    /// How frames find their port: `learning`, `hub`, `patch`, `static` or `static-flood`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding: Option<String>,
    /// Seconds until a learnt address is forgotten; 0 for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_s: Option<u32>,
    /// Addresses that the forwarding database holds, 1 to 1048576.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fdb_capacity: Option<u32>,
    /// Numeric user that owns the switch (only root and the daemon's user may give it away).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// Numeric group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Who may attach (`w`) and look (`r`), as for a file: `0o660`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

/// A switch in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchInfo {
    /// Its name.
    pub switch: SwitchName,
    /// Stays without ports.
    pub persistent: bool,
    /// How frames find their port.
    pub forwarding: String,
    /// Seconds until a learnt address is forgotten; 0 for never.
    pub age_s: u32,
    /// Addresses that the forwarding database holds.
    pub fdb_capacity: u32,
    /// Numeric owner.
    pub owner: u32,
    /// Numeric group.
    pub group: u32,
    /// Permissions.
    pub mode: Mode,
    /// Number of ports.
    pub ports: u32,
    /// Entries of the forwarding database.
    pub fdb_entries: u32,
    /// Number of the worker that runs it.
    pub worker: u32,
}

/// What is behind a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// Rings in shared memory, for a client to attach.
    #[default]
    Shm,
    /// Takes every frame and drops it.
    Null,
    /// One end of a pipe; the switch does not see its frames.
    Pipe,
}

/// Makes a persistent port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortAdd {
    /// Its name.
    pub port: PortName,
    /// What is behind it.
    #[serde(default)]
    pub kind: PortKind,
    /// Settings; what is missing has its default.
    #[serde(default)]
    pub settings: PortSettings,
}

/// Changes a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSet {
    /// Its name.
    pub port: PortName,
    /// Settings; what is missing keeps its value.
    pub settings: PortSettings,
}

/// Settings of a port; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PortSettings {
    /// VLANs: `transparent[:VLAN]`, `access:VLAN` or `trunk:VLANS[,native=VLAN]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<String>,
    /// Exchanges frames only with ports that are not isolated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolated: Option<bool>,
    /// Source addresses that arrive here are learnt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning: Option<bool>,
    /// Gets unicast frames to unknown addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unicast_flood: Option<bool>,
    /// Gets multicast frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicast_flood: Option<bool>,
    /// Gets broadcast frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcast_flood: Option<bool>,
    /// Most addresses learnt here; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_macs: Option<u32>,
    /// What happens to a frame that finds no room: `drop` or `wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_full: Option<String>,
}

/// A port in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortInfo {
    /// Its name.
    pub port: PortName,
    /// What is behind it.
    pub kind: PortKind,
    /// Stays without a client.
    pub persistent: bool,
    /// Numeric user that made it.
    pub owner: u32,
    /// The client that holds it.
    pub client: Option<ClientInfo>,
    /// Bytes of shared memory.
    pub memory: u64,
    /// Trust group whose region it lives in.
    pub group: Option<String>,
    /// All settings.
    pub settings: PortSettings,
}

/// A client process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientInfo {
    /// Process number when it connected.
    pub pid: u32,
    /// Numeric user.
    pub uid: u32,
    /// What it said in [`Hello::client`].
    pub name: String,
}

/// Which ports to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortList {
    /// Only those of one switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchName>,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Which forwarding database to list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FdbList {
    /// The switch.
    pub switch: SwitchName,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// An entry of the forwarding database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FdbEntry {
    /// Address.
    pub mac: Mac,
    /// VLAN.
    pub vlan: u16,
    /// The port behind which it is.
    pub port: PortName,
    /// Made by command, never ages.
    #[serde(rename = "static")]
    pub is_static: bool,
    /// Seconds since it was last seen.
    pub age_s: u32,
}

/// Adds a static entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FdbAdd {
    /// The port, which names the switch too.
    pub port: PortName,
    /// Address.
    pub mac: Mac,
    /// VLAN, 1 unless said otherwise.
    #[serde(default = "default_vlan")]
    pub vlan: u16,
}

/// Deletes an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FdbDel {
    /// The switch.
    pub switch: SwitchName,
    /// Address.
    pub mac: Mac,
    /// VLAN, 1 unless said otherwise.
    #[serde(default = "default_vlan")]
    pub vlan: u16,
}

/// The VLAN of ports that nobody configured.
fn default_vlan() -> u16 {
    1
}

/// Forgets learnt entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FdbFlush {
    /// The switch.
    pub switch: SwitchName,
    /// Only those behind this port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<PortName>,
}

/// Whose counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsQuery {
    /// Only those of one switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchName>,
    /// Only those of one port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<PortName>,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Counters, all read between two batches of the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsPage {
    /// Monotonic clock of the daemon, for rates.
    pub at_ns: u64,
    /// The ports of this page.
    pub items: Vec<PortStats>,
    /// Ask again from here; `None` on the last page.
    pub next: Option<String>,
}

/// Counters of a port. `tx` is what its client sends, `rx` what it receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortStats {
    /// The port.
    pub port: PortName,
    /// Frames from the client, all rings.
    pub tx: Counter,
    /// Frames to the client, all rings.
    pub rx: Counter,
    /// Frames that were dropped, by reason; only reasons that occurred.
    pub drops: BTreeMap<String, u64>,
    /// Transmit rings.
    pub tx_queues: Vec<Counter>,
    /// Receive rings.
    pub rx_queues: Vec<Counter>,
    /// How often a ring was re-synchronised because its client wrote an index out of range.
    #[serde(default)]
    pub resyncs: u64,
}

/// Frames and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// Frames.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
}

/// Opens a port. What is `None` has the daemon's configured default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Its name: a port of a switch, or one end of a pipe.
    pub port: PortName,
    /// Transmit rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_rings: Option<u16>,
    /// Receive rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_rings: Option<u16>,
    /// Slots of each transmit ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_slots: Option<u32>,
    /// Slots of each receive ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_slots: Option<u32>,
    /// Extra buffers, for clients that keep frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_bufs: Option<u32>,
    /// Trust group: its ports share a region, frames between them are swapped, not copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Only open a port that exists already.
    #[serde(default)]
    pub existing: bool,
}

impl Attach {
    /// Opens `port` with every default.
    #[must_use]
    pub fn new(port: PortName) -> Self {
        Self {
            port,
            tx_rings: None,
            rx_rings: None,
            tx_slots: None,
            rx_slots: None,
            extra_bufs: None,
            group: None,
            existing: false,
        }
    }
}

/// Where everything lies in the region of an attached port.
///
/// These numbers, not the region's contents, are what a client computes its offsets from. The
/// descriptors beside the reply are, in this order: the region (map it shared), the doorbell to
/// write to (the number [`Attached::bell`]; for a pipe: any byte), the doorbell to read from
/// (poll-able; end of file means that the other side is gone).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attached {
    /// Its name.
    pub port: PortName,
    /// The number to write to the doorbell, as [`ring::kick::encode`] writes it.
    pub bell: u32,
    /// Size of the region in bytes.
    pub region_bytes: u64,
    /// Offset of the port's block, at whose start the `netmap_if` lies.
    pub block: u64,
    /// Offset of buffer 0.
    pub pool: u64,
    /// Distance between buffers in bytes.
    pub stride: u32,
    /// Number of buffers, the two reserved ones included.
    pub buffers: u32,
    /// Transmit rings.
    pub tx_rings: u16,
    /// Receive rings.
    pub rx_rings: u16,
    /// Slots of each transmit ring.
    pub tx_slots: u32,
    /// Slots of each receive ring.
    pub rx_slots: u32,
    /// Extra buffers, a list that starts in the `netmap_if`.
    pub extra_bufs: u32,
    /// For a pipe: offset of the other end's block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_block: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str) -> Result<CallMessage, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn test_a_call_reads_as_documented() {
        let attach = Attach::new("vale0:vm1".parse().unwrap());
        let message = CallMessage { v: 1, call: Request::Attach(attach) };
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
        assert_eq!(mac.parse::<Mac>().unwrap().to_string(), mac);
        for bad in ["", "1777", "+66", "rw"] {
            assert!(bad.parse::<Mode>().is_err(), "{bad}");
        }
        for bad in ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "+2:00:00:00:00:01"] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }

    #[test]
    fn test_every_error_has_its_own_exit_code() {
        use ErrorCode as E;
        let all = [E::BadName, E::NotFound, E::Exists, E::InUse, E::Permission];
        let more = [E::Quota, E::NoMemory, E::BadRequest, E::Unsupported, E::Internal];
        let mut codes: Vec<u8> = all.iter().chain(&more).map(|e| e.exit_code()).collect();
        codes.extend([exit::OK, exit::FAILURE, exit::USAGE, exit::NO_DAEMON, exit::BAD_CONFIG]);
        codes.sort_unstable();
        assert_eq!(codes, (0..=14).collect::<Vec<u8>>());
    }
}
