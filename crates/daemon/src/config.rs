//! The configuration: a TOML file, read into values that cannot be wrong.
//!
//! Two layers. The `Raw…` types mirror the file (`docs/uvala.toml` shows all of it), refuse unknown
//! keys, and parse each value where it stands, so that every error has a line number. [`Config`] is
//! what the rest of the daemon sees: nothing optional, nothing to check again.

mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use client::api::{Address, HostIf, Mac, Mode, NewPorts, PortKind};
use client::name::{NameError, PortName, SwitchName};
use ring::cursor::Span;
use ring::layout::{DEFAULT_STRIDE, RingCounts};
use serde::Deserialize;
use switch::{Forwarding, OnFull, PortConfig, SwitchConfig, VlanMode};
use thiserror::Error;
pub use tracing::Level;

use crate::control::datapath::RingSpec;
use crate::control::handlers::host::complete;
use crate::control::policy::Grant;
use crate::control::statics::Station;
use crate::records::InterfaceText;
use crate::worker::BATCH;
pub use values::parse_workers;
use values::{
    Bytes, Capacity, ExtraBufs, FrameCount, GroupId, Kind, Log, Number, Rings, Slots, Stride,
    UserId, VnetHeader, WorkerCount, from_text, some_from_text,
};

/// Everything an operator can decide.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the socket; `None` for the usual place.
    pub dir: Option<PathBuf>,
    /// Directory where is kept what commands make; `None` for one in that of the socket.
    pub state_dir: Option<PathBuf>,
    /// Starts without it, and removes it.
    pub forget: bool,
    /// Owner, group and permissions of the socket.
    pub socket: SocketConfig,
    /// How much is logged.
    pub log: Level,
    /// The worker threads.
    pub workers: WorkersConfig,
    /// What one user may have.
    pub quota: Quota,
    /// Rings of a port whose client does not say.
    pub rings: RingSpec,
    /// Permissions of switches that clients create.
    pub switch_mode: Mode,
    /// Switches to make at start.
    pub switches: Vec<SwitchPlan>,
}

/// Owner, group and permissions of the socket.
#[derive(Clone, Copy, Debug)]
pub struct SocketConfig {
    /// Owner; `None` for the daemon's user.
    pub owner: Option<u32>,
    /// Group; `None` for the daemon's group.
    pub group: Option<u32>,
    /// Permissions; who may write may connect.
    pub mode: Mode,
}

/// The worker threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkersConfig {
    /// How many, at least 1.
    pub count: u32,
    /// Cores they are bound to, in turn; empty for wherever the system puts them.
    pub cpus: Vec<u32>,
    /// Most frames that a worker takes from a port at once.
    pub batch: u16,
    /// What a worker does that has nothing to do.
    pub wait: WaitPolicy,
}

/// What a worker does that has nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitPolicy {
    /// [`WaitPolicy::Yield`], which suits shared cores; where there are cores for all and it pays,
    /// a short spin before it.
    #[default]
    Auto,
    /// Polls for ever: only for a core that nobody else uses.
    Spin,
    /// Gives the core away a few times, then sleeps until a doorbell rings.
    Yield,
    /// Sleeps at once.
    Block,
}

/// What one user may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Ports, pipe ends included.
    pub ports: u32,
    /// Bytes of shared memory.
    pub memory: u64,
    /// Switches.
    pub switches: u32,
    /// Addresses that the forwarding databases of these switches may hold, all together.
    pub addresses: u32,
    /// Control connections, one for each client process.
    pub connections: u32,
}

/// A switch to make at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPlan {
    /// Its name.
    pub name: SwitchName,
    /// How it forwards.
    pub config: SwitchConfig,
    /// Stays without ports.
    pub persistent: bool,
    /// Owner; `None` for the daemon's user.
    pub owner: Option<u32>,
    /// Group; `None` for the daemon's group.
    pub group: Option<u32>,
    /// Permissions.
    pub mode: Option<Mode>,
    /// Who may make ports of it by opening them.
    pub new_ports: NewPorts,
    /// Its persistent ports.
    pub ports: Vec<PortPlan>,
}

/// A persistent port to make at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// Its name.
    pub name: PortName,
    /// What is behind it.
    pub kind: PortKind,
    /// How the switch treats it.
    pub config: PortConfig,
    /// Its network interface, if its kind has one.
    pub host: Option<HostIf>,
    /// For a virtual interface; those are made by command.
    pub interface: Option<InterfaceText>,
    /// Its static addresses.
    pub stations: BTreeSet<Station>,
    /// The user who made it; `None` for the owner of the switch.
    pub owner: Option<u32>,
    /// To whom it is given.
    pub grant: Grant,
}

/// Why there is no configuration. Each message is one line.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("config {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Not TOML, an unknown key, a value out of range.
    #[error("config {}:{line}: {message}", .path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// A port under `[switch.NAME.port.NAME]`.
    #[error("config {}: {error}", .path.display())]
    Port {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: PortError,
    },
}

/// Why a port cannot be made at start.
#[derive(Debug, Error)]
pub enum PortError {
    /// Its name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It is the end of a pipe.
    #[error("{0} is the end of a pipe; pipes come with their clients: take it out of the file")]
    Pipe(PortName),
    /// Its network interface.
    #[error("{0}: {1}")]
    Host(Box<PortName>, String),
    /// The rings of ports that do not say.
    #[error(
        "[rings]: a port of these takes more than 4 GiB, the most there is; lower rings, slots, \
         extra_bufs or buffer_stride"
    )]
    Rings,
}

impl Config {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text =
            read(path).map_err(|error| ConfigError::Read { path: path.to_path_buf(), error })?;
        Self::parse(&text, path)
    }

    /// Reads a text; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let raw: RawConfig = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            let message = in_plain_words(error.message());
            ConfigError::Parse { path: path.to_path_buf(), line, message }
        })?;
        raw.into_config().map_err(|error| ConfigError::Port { path: path.to_path_buf(), error })
    }
}

impl Default for Config {
    fn default() -> Self {
        let raw = RawConfig::default();
        raw.into_config().expect("a configuration without names has no bad name")
    }
}

/// A file's text, which is no longer than a configuration can be: `/dev/zero` has no end.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = fs::File::open(path)?;
    if file.take(MAX_FILE).read_to_string(&mut text)? as u64 == MAX_FILE {
        return Err(io::Error::other("16 MiB or more: this is no configuration"));
    }
    Ok(text)
}

/// Bytes that no configuration has.
const MAX_FILE: u64 = 16 << 20;

/// What the parser says, without the words of its trade.
fn in_plain_words(message: &str) -> String {
    let words = [
        ("\n", "; "),
        ("unknown field", "unknown key"),
        ("invalid type: ", "found "),
        ("invalid value: ", "found "),
        ("found map", "found a table"),
        ("found sequence", "found a list"),
        ("found string", "found the text"),
        ("found integer", "found the number"),
        ("found floating point", "found the number"),
        ("found boolean", "found"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected a list such as [2, 3]"),
        ("expected path string", "expected a path in quotes"),
        ("expected a string", "expected a text in quotes"),
        ("expected a map", "expected a table"),
    ];
    words.iter().fold(message.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&b| b == b'\n').count() + 1
}

/// The file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawConfig {
    log: Log,
    #[serde(deserialize_with = "state_dir")]
    state_dir: Option<PathBuf>,
    socket: RawSocket,
    workers: RawWorkers,
    quota: RawQuota,
    rings: RawRings,
    new_switch: RawNewSwitch,
    switch: BTreeMap<SwitchName, RawSwitch>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawSocket {
    dir: Option<PathBuf>,
    owner: Option<UserId>,
    group: Option<GroupId>,
    mode: Mode,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawWorkers {
    count: WorkerCount,
    cpus: Vec<Number>,
    batch: FrameCount,
    #[serde(deserialize_with = "from_text")]
    wait: WaitPolicy,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawQuota {
    ports: Number,
    memory: Bytes,
    switches: Number,
    addresses: Number,
    connections: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawRings {
    tx_rings: Rings,
    rx_rings: Rings,
    tx_slots: Slots,
    rx_slots: Slots,
    extra_bufs: ExtraBufs,
    buffer_stride: Stride,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawNewSwitch {
    mode: Mode,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawSwitch {
    #[serde(deserialize_with = "some_from_text")]
    forwarding: Option<Forwarding>,
    age_s: Option<Number>,
    fdb_capacity: Option<Capacity>,
    owner: Option<UserId>,
    group: Option<GroupId>,
    mode: Option<Mode>,
    new_ports: NewPorts,
    port: BTreeMap<String, RawPort>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawPort {
    kind: Kind,
    #[serde(deserialize_with = "some_from_text")]
    vlan: Option<VlanMode>,
    isolated: Option<bool>,
    learning: Option<bool>,
    unicast_flood: Option<bool>,
    multicast_flood: Option<bool>,
    broadcast_flood: Option<bool>,
    max_macs: Option<Number>,
    #[serde(deserialize_with = "some_from_text")]
    on_full: Option<OnFull>,
    vnet_header: Option<VnetHeader>,
    owner: Option<UserId>,
    group: Option<GroupId>,
    mode: Option<Mode>,
    #[serde(rename = "static")]
    stations: BTreeSet<Station>,
    ifname: Option<String>,
    mtu: Option<Number>,
    mac: Option<Mac>,
    netns: Option<String>,
    address: Option<Address>,
    alone: bool,
}

/// Somewhere: without a directory nothing could be kept.
fn state_dir<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PathBuf>, D::Error> {
    let dir = PathBuf::deserialize(deserializer)?;
    if dir.as_os_str().is_empty() {
        return Err(serde::de::Error::custom(
            "state_dir is empty: what commands make is always kept; name a directory, as in \
             \"/var/lib/uvala\", or leave it out for \"state\" beside the socket",
        ));
    }
    Ok(Some(dir))
}

impl RawConfig {
    fn into_config(self) -> Result<Config, PortError> {
        let switches = self.switch.into_iter().map(|(name, raw)| raw.into_plan(name));
        Ok(Config {
            dir: self.socket.dir,
            state_dir: self.state_dir,
            forget: false,
            socket: SocketConfig {
                owner: self.socket.owner.map(|id| id.0),
                group: self.socket.group.map(|id| id.0),
                mode: self.socket.mode,
            },
            log: self.log.0,
            workers: WorkersConfig {
                count: self.workers.count.0,
                cpus: self.workers.cpus.iter().map(|core| core.0).collect(),
                batch: self.workers.batch.0,
                wait: self.workers.wait,
            },
            quota: Quota {
                ports: self.quota.ports.0,
                memory: self.quota.memory.0,
                switches: self.quota.switches.0,
                addresses: self.quota.addresses.0,
                connections: self.quota.connections.0,
            },
            rings: self.rings.into_spec()?,
            switch_mode: self.new_switch.mode,
            switches: switches.collect::<Result<_, _>>()?,
        })
    }
}

impl RawRings {
    fn into_spec(self) -> Result<RingSpec, PortError> {
        let spec = RingSpec {
            counts: RingCounts {
                tx_rings: self.tx_rings.0,
                rx_rings: self.rx_rings.0,
                tx_slots: self.tx_slots.0,
                rx_slots: self.rx_slots.0,
            },
            extra_bufs: self.extra_bufs.0,
            stride: self.buffer_stride.0,
        };
        let fits = port::shm::region_layout(spec.counts, spec.extra_bufs, spec.stride).is_ok();
        fits.then_some(spec).ok_or(PortError::Rings)
    }
}

impl RawSwitch {
    fn into_plan(self, name: SwitchName) -> Result<SwitchPlan, PortError> {
        let default = SwitchConfig::default();
        let config = SwitchConfig {
            forwarding: self.forwarding.unwrap_or(default.forwarding),
            ageing_ms: self.age_s.map_or(default.ageing_ms, |s| u64::from(s.0) * 1000),
            fdb_capacity: self.fdb_capacity.map_or(default.fdb_capacity, |n| n.0),
        };
        let ports = self.port.into_iter().map(|(port, raw)| {
            let name = name.join(&port)?;
            if name.pipe().is_some() {
                return Err(PortError::Pipe(name));
            }
            let (kind, stations) = (raw.kind.0, raw.stations.clone());
            let host = complete(&name, kind, raw.host().as_ref())
                .map_err(|error| PortError::Host(Box::new(name.clone()), error))?;
            let (grant, interface) = (raw.grant(), None);
            let config = raw.into_config();
            Ok(PortPlan { name, kind, config, host, interface, stations, owner: None, grant })
        });
        Ok(SwitchPlan {
            config,
            persistent: true,
            owner: self.owner.map(|id| id.0),
            group: self.group.map(|id| id.0),
            mode: self.mode,
            new_ports: self.new_ports,
            ports: ports.collect::<Result<_, _>>()?,
            name,
        })
    }
}

impl RawPort {
    /// What is said of whose it is.
    fn grant(&self) -> Grant {
        Grant {
            owner: self.owner.as_ref().map(|id| id.0),
            group: self.group.as_ref().map(|id| id.0),
            mode: self.mode,
        }
    }

    /// What is said of its network interface, if anything is.
    fn host(&self) -> Option<HostIf> {
        let host = HostIf {
            ifname: self.ifname.clone(),
            mtu: self.mtu.as_ref().map(|mtu| mtu.0),
            mac: self.mac,
            netns: self.netns.clone(),
            address: self.address,
            alone: self.alone,
        };
        (host != HostIf::default()).then_some(host)
    }

    fn into_config(self) -> PortConfig {
        let default = PortConfig::default();
        PortConfig {
            vlan: self.vlan.unwrap_or(default.vlan),
            isolated: self.isolated.unwrap_or(default.isolated),
            learning: self.learning.unwrap_or(default.learning),
            unicast_flood: self.unicast_flood.unwrap_or(default.unicast_flood),
            multicast_flood: self.multicast_flood.unwrap_or(default.multicast_flood),
            broadcast_flood: self.broadcast_flood.unwrap_or(default.broadcast_flood),
            max_macs: self.max_macs.map(|max| max.0).filter(|&max| max != 0),
            on_full: self.on_full.unwrap_or(default.on_full),
            vnet_header: self.vnet_header.map_or(default.vnet_header, |bytes| bytes.0),
            vacant: false,
        }
    }
}

// The defaults, all in one place. `docs/uvala.toml` repeats them, and a test compares.

impl Default for RawSocket {
    fn default() -> Self {
        Self { dir: None, owner: None, group: None, mode: mode(0o600) }
    }
}

impl Default for RawWorkers {
    fn default() -> Self {
        let batch = FrameCount(BATCH);
        Self { count: WorkerCount(1), cpus: Vec::new(), batch, wait: WaitPolicy::Auto }
    }
}

impl Default for RawQuota {
    fn default() -> Self {
        Self {
            ports: Number(4096),
            memory: Bytes(16 << 30),
            switches: Number(1024),
            // As many switches as one user may have, each of the default capacity.
            addresses: Number(64 << 20),
            connections: Number(4096),
        }
    }
}

impl Default for RawRings {
    fn default() -> Self {
        let slots = Slots(Span::new(1024).expect("in range"));
        Self {
            tx_rings: Rings(1),
            rx_rings: Rings(1),
            tx_slots: slots,
            rx_slots: slots,
            extra_bufs: ExtraBufs(0),
            buffer_stride: Stride(DEFAULT_STRIDE),
        }
    }
}

impl Default for RawNewSwitch {
    fn default() -> Self {
        Self { mode: mode(0o600) }
    }
}

fn mode(bits: u16) -> Mode {
    Mode::new(bits).expect("nine bits")
}

impl FromStr for WaitPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "spin" => Ok(Self::Spin),
            "yield" => Ok(Self::Yield),
            "block" => Ok(Self::Block),
            _ => Err(format!("expected auto, spin, yield or block, found {text:?}")),
        }
    }
}

impl fmt::Display for WaitPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Spin => "spin",
            Self::Yield => "yield",
            Self::Block => "block",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::values::parse_bytes;
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("test.toml"))
    }

    fn error(text: &str) -> String {
        let error = parse(text).expect_err(text).to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    }

    const SAMPLE: &str = include_str!("../../../docs/uvala.toml");

    #[test]
    fn test_sample_shows_the_defaults() {
        let mut sample = parse(SAMPLE).unwrap();
        assert!(sample.switches.is_empty());
        (sample.dir, sample.state_dir) = (None, None);
        assert_eq!(format!("{sample:?}"), format!("{:?}", Config::default()));
    }

    /// With every comment mark removed from its settings, the sample is still a configuration.
    #[test]
    fn test_sample_parses_with_everything_switched_on() {
        let text = SAMPLE.replace("\n#! ", "\n");
        let config = parse(&text).unwrap();
        assert_eq!(config.switches.len(), 1);
        let switch = &config.switches[0];
        assert_eq!(switch.mode, Mode::new(0o660));
        let names: Vec<_> = switch.ports.iter().map(|port| port.name.port()).collect();
        assert_eq!(names, ["eth1", "lan", "sink", "vm1"]);
        assert_eq!(switch.ports[3].config.vlan, "access:10".parse().unwrap());
        let host = |port: usize| switch.ports[port].host.clone().unwrap();
        assert_eq!(host(0).ifname.as_deref(), Some("eth1"), "as the port");
        assert_eq!(host(1).address.unwrap().to_string(), "10.0.0.1/24");
    }

    #[test]
    fn test_interfaces_are_for_ports_that_have_one() {
        let text = error("[switch.vale0.port.a]\nmtu = 9000\n");
        assert!(text.contains("vale0:a: ifname") && text.contains("tap, packet"), "{text}");
        let text = error("[switch.vale0.port.a]\nkind = \"packet\"\nmtu = 9000\n");
        assert!(text.contains("use ip link"), "{text}");
        let text = error("[switch.vale0.port.a]\nkind = \"tap\"\nifname = \"a/b\"\n");
        assert!(text.contains("no name of an interface"), "{text}");
        let text = error("[switch.vale0.port.a]\nkind = \"tap\"\naddress = \"10.0.0.1\"\n");
        assert!(text.starts_with("config test.toml:3: bad address"), "{text}");
    }

    #[test]
    fn test_unknown_key_is_refused_with_line_and_known_keys() {
        let text = error("[workers]\ncount = 2\nwiat = \"spin\"\n");
        assert!(text.starts_with("config test.toml:3: unknown key `wiat`"), "{text}");
        assert!(text.contains("`wait`"), "{text}");
        assert!(error("[swich.vale0]\n").contains("unknown key `swich`"));
        assert!(error("[switch.vale0.port.a]\nvlam = \"access:1\"\n").contains(":2: unknown"));
    }

    #[test]
    fn test_bad_value_is_refused_with_line_and_good_values() {
        let text = error("[workers]\n\nwait = \"lazy\"\n");
        assert_eq!(text, "config test.toml:3: expected auto, spin, yield or block, found \"lazy\"");
        assert!(error("[rings]\ntx_slots = 4\n").contains("from 8 to 16384, found 4"));
        assert!(error("[switch.vale0]\nfdb_capacity = 4294967295\n").contains("1 to 1048576"));
        let text = error("[switch.vale0.port.a]\nstatic = [\"03:00:00:00:00:01\"]\n");
        assert!(text.contains(":2: 03:00:00:00:00:01 is a group address"), "{text}");
        assert!(error("[rings]\nbuffer_stride = 2049\n").contains("multiple of 64"));
        assert!(error("[quota]\nmemory = \"much\"\n").contains("512MiB"));
        assert!(error("[workers]\ncount = 0\n").contains("from 1 to 256"));
        assert!(error("[workers]\nbatch = 0\n").contains("from 1 to 1024"));
        assert!(error("[switch.eth0]\n").contains("'vale'"));
        assert!(error("[switch.vale0.port.a-b]\n").contains("'-' (character 8)"));
        assert!(error("[switch.vale0]\nmode = \"999\"\n").contains("bad mode"));
        assert!(error("[switch.vale0]\nowner = \"nobody there\"\n").contains("no user"));
        assert!(error("[switch.vale0.port.a]\nvlan = \"access:0\"\n").contains("1 to 4094"));
        assert!(error("log = \"loud\"\n").contains("error, warn"));
        assert!(error("state_dir = \"\"\n").contains("state_dir is empty"));
        assert!(error("= 3").starts_with("config test.toml:1:"));
    }

    #[test]
    fn test_rings_that_no_region_holds_are_refused() {
        let text = "[rings]\ntx_rings = 64\nrx_rings = 64\ntx_slots = 16384\nrx_slots = 16384\n\
                    buffer_stride = 65472\n";
        assert!(error(text).contains("[rings]: a port of these takes more than 4 GiB"));
    }

    #[test]
    fn test_a_file_without_end_is_no_configuration() {
        let error = Config::load(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("16 MiB or more"), "{error}");
    }

    #[test]
    fn test_pipes_are_refused_as_the_control_socket_refuses_them() {
        let text = error("[switch.vale0.port.\"a{1\"]\n");
        assert!(text.contains("vale0:a{1 is the end of a pipe"), "{text}");
        let text = error("[switch.vale0.port.a]\nkind = \"pipe\"\n");
        assert_eq!(
            text,
            "config test.toml:2: expected shm, null, tap, packet or stack, found \"pipe\""
        );
    }

    #[test]
    fn test_wrong_kinds_of_values_are_named_in_plain_words() {
        for (text, expected) in [
            ("workers = 3\n", "found the number `3`, expected a table"),
            ("[switch]\nvale0 = \"x\"\n", "found the text \"x\", expected a table"),
            ("switch = 1\n", "found the number `1`, expected a table"),
            ("[quota]\nports = \"many\"\n", "expected a number from 0 to 4294967295, found many"),
            ("[quota]\nports = -1\n", "expected a number from 0 to 4294967295, found -1"),
            ("[quota]\nports = true\n", "found `true`, expected a number or a text"),
            ("[quota]\nports = 1.5\n", "found the number `1.5`, expected a number or a text"),
            ("[quota]\nports = []\n", "found a list, expected a number or a text"),
            ("[workers]\ncpus = 3\n", "found the number `3`, expected a list such as [2, 3]"),
            ("[workers]\ncpus = [\"a\"]\n", "expected a number from 0 to 4294967295, found a"),
            ("[workers]\nwait = 3\n", "found the number `3`, expected a text in quotes"),
            ("[socket]\ndir = 3\n", "found the number `3`, expected a path in quotes"),
            ("[switch.vale0.port.a]\nisolated = 1\n", "expected true or false"),
            ("[switch.vale0]\nage_s = 1e3\n", "expected a number or a text"),
        ] {
            let said = error(text);
            assert!(said.contains(expected), "{text}: {said}");
            let trade = ["struct", "Raw", "u32", "u64", "sequence", "map", "boolean", "invalid"];
            assert!(trade.iter().all(|word| !said.contains(word)), "{text}: {said}");
        }
    }

    #[test]
    fn test_sizes_take_suffixes() {
        assert_eq!(parse_bytes("512MiB"), Ok(512 << 20));
        assert_eq!(parse_bytes("2 G"), Ok(2 << 30));
        assert_eq!(parse_bytes("77"), Ok(77));
        assert!(parse_bytes("99999999999T").is_err());
    }

    proptest! {
        #[test]
        fn test_no_text_makes_the_parser_panic(text in "[\\[\\]a-z0-9_.=\"\n ]{0,80}") {
            let _ = parse(&text);
        }
    }
}
