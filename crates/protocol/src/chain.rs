//! Chains of functions: services, chains, and the rules that send frames into them.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::name::{PortName, SwitchName};
use packet::MacAddr;

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(from = "ChainText")]
pub struct ChainSpec {
    /// The chain's name.
    pub name: String,
    /// Services in order. `@least` behind a name picks the instance with most room; the default,
    /// `@hash`, picks one for each flow.
    pub services: Vec<String>,
    /// The port where its frames leave; else they do by their addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<String>,
}

/// A chain as a file or a client writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "ChainSpec")]
struct ChainText {
    name: String,
    services: Vec<String>,
    #[serde(default)]
    out: Option<String>,
    /// Only `false` is left, which programs of the release before may send.
    #[serde(default, rename = "direct", deserialize_with = "no_direct_hops")]
    _direct: (),
}

impl From<ChainText> for ChainSpec {
    fn from(ChainText { name, services, out, .. }: ChainText) -> Self {
        Self { name, services, out }
    }
}

/// Why `direct = true` is refused, and what to do instead.
pub const NO_DIRECT_HOPS: &str = "direct hops are gone: leave `direct` out, and the frames go by \
                                  the switch; run the functions in one thread (uvala nf run ... \
                                  --with ...), and one calls the next";

fn no_direct_hops<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
    if bool::deserialize(from)? { Err(D::Error::custom(NO_DIRECT_HOPS)) } else { Ok(()) }
}

impl ChainSpec {
    /// The names of its services in order, without what stands behind the `@`.
    pub fn service_names(&self) -> impl Iterator<Item = &str> {
        self.services.iter().map(|text| text.split('@').next().unwrap_or_default())
    }
}

/// A rule: which frames, and what becomes of them. All that is said must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RuleSpec {
    /// The rule's number; a new rule without one gets the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// Rules of a higher one are tried first; of the same, those with lower numbers.
    pub priority: u32,
    /// `drop`, `forward` (past all functions), `chain:NAME` or `port:NAME`.
    pub action: String,
    /// The port by which the frame comes in.
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Source address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub src_mac: Option<MacAddr>,
    /// Destination address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub dst_mac: Option<MacAddr>,
    /// VLAN of the switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Type: `ipv4`, `ipv6`, `arp`, or a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<String>,
    /// IP source, as `10.0.0.0/8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src: Option<String>,
    /// IP destination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst: Option<String>,
    /// IP protocol: `tcp`, `udp`, `icmp`, `icmpv6`, `sctp`, or a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proto: Option<String>,
    /// Source ports of TCP, UDP and SCTP: `80`, or `1000-1999`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sport: Option<String>,
    /// Destination ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dport: Option<String>,
}

/// Makes a chain, or another of one that there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainAdd {
    /// In this switch.
    pub switch: SwitchName,
    /// The chain.
    pub chain: ChainSpec,
}

/// Names a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainRef {
    /// The switch.
    pub switch: SwitchName,
    /// The chain.
    pub chain: String,
}

/// Adds rules, all or none. One with the number of a rule that there is takes its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleAdd {
    /// To this switch.
    pub switch: SwitchName,
    /// The rules.
    pub rules: Vec<RuleSpec>,
}

/// Deletes rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleDel {
    /// The switch.
    pub switch: SwitchName,
    /// Numbers of the rules; empty for all rules.
    pub rules: Vec<u32>,
}

/// Asks for chains, rules or services, a page at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SteeringQuery {
    /// The switch.
    pub switch: SwitchName,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// A function that follows another in a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextFunction {
    /// Number of the chain.
    pub chain: u8,
    /// Number of the order of services that the chain has now.
    pub order: u8,
    /// Position of the function that asks.
    pub position: u8,
    /// Port of the one that follows.
    pub port: PortName,
}

/// A chain in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ChainInfo {
    /// The chain.
    pub chain: ChainSpec,
    /// The chain's number in the frames' metadata.
    pub number: u8,
    /// Ports whose frames enter it.
    pub ports: Vec<String>,
    /// Frames that entered.
    pub entered: u64,
    /// Frames that were dropped at its entrance because a later function had too little room.
    pub shed: u64,
    /// How often frames of its ports were let in after a change although older ones had not left
    /// it: of a flow, newer ones may have overtaken these.
    #[serde(default)]
    pub early: u64,
    /// Frames that ended in it, by reason; those that were shed are here too. What had no room at a
    /// function is counted at that ([`FunctionInfo::no_room`]).
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
    /// Frames that functions of its services held when they ended ([`FunctionInfo::lost`]), of all
    /// chains that these are in.
    #[serde(default)]
    pub lost: u64,
    /// What all chains of the switch have in common.
    #[serde(default)]
    pub flow_cache: FlowCacheInfo,
    /// Why frames cannot pass it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// What was asked of the flow cache of a switch, where rules are found once for each flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FlowCacheInfo {
    /// Frames whose flow was there.
    pub hits: u64,
    /// Frames whose flow was looked for in the rules.
    pub misses: u64,
    /// Flows that made room for others while they were live.
    pub evicted: u64,
}

/// A rule in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RuleInfo {
    /// The rule.
    pub rule: RuleSpec,
    /// Frames that it was for.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Why it is for no frames now, or drops them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// An instance of a service in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FunctionInfo {
    /// The service of which the port is an instance.
    pub service: String,
    /// The number of that, for metadata.
    pub number: u8,
    /// Which instance it is.
    pub instance: u16,
    /// The function's port.
    pub port: PortName,
    /// Process that runs it.
    pub pid: Option<u32>,
    /// User whose process that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Trust group whose region its port lives in.
    pub trust_group: Option<String>,
    /// Frames that wait for it.
    pub waiting: u32,
    /// How many have room there: what of it is taken is how busy it is.
    #[serde(default)]
    pub capacity: u32,
    /// Milliseconds on a core that it has had since it began: its share of a core is what two of
    /// these differ in the time between. Of its thread, where the process has said which that is
    /// (`thread`); else all of the process, where it does other things too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// The thread's ID, where one process runs several instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    /// Cores that it may run on, such as `0-3`; of its thread, or of its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<String>,
    /// The function has frames and reads none: the switch sends its flows elsewhere.
    pub stalled: bool,
    /// Frames that the function was given, by the switch and by calls.
    pub frames_in: u64,
    /// Frames that it passed on, likewise: none that it wanted dropped.
    pub frames_out: u64,
    /// The part of `frames_in` that functions of its thread gave it by calls. The function itself
    /// counts these.
    #[serde(default)]
    pub called_in: u64,
    /// The part of `frames_out` that left by no ring of its own, or that a function of its thread
    /// dropped later.
    #[serde(default)]
    pub called_out: u64,
    /// Frames that stood in the rings of its port when it went. They are lost, unless it had sent
    /// on a last batch of them.
    #[serde(default)]
    pub lost: u64,
    /// Frames that found no room at it.
    pub no_room: u64,
    /// Frames of it that it wanted dropped, or a function of its thread that it passed them to.
    pub dropped: u64,
    /// All frames that ended at it, by reason, these included: what it sent that was not its own to
    /// send is there, too.
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
    /// What it has counted itself, as it said last: a firewall by its rules.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// What grows and shrinks, likewise: connections that a firewall knows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gauges: BTreeMap<String, u64>,
}

/// What a function says that it has counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionNote {
    /// The function's port.
    pub port: PortName,
    /// Names, of letters, digits and `_`, and counts since it began; with `gauges` at most
    /// [`COUNTS_MAX`].
    #[serde(default)]
    pub counts: BTreeMap<String, u64>,
    /// Values that grow and shrink (gauges).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gauges: BTreeMap<String, u64>,
}

/// Most counts and gauges of a function.
pub const COUNTS_MAX: usize = 256;
/// Longest name of one, in bytes.
pub const COUNT_NAME_MAX: usize = 64;

impl FunctionInfo {
    /// Frames of it that the switch did not take: because of their buffers, or of where to.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.drops.values().sum::<u64>().saturating_sub(self.no_room + self.dropped)
    }
}

/// Why a rule for what `port` sends never matches, where a function holds that port: what functions
/// send goes on in its chain, whatever rules say.
#[must_use]
pub fn sent_by_function(port: &str, service: &str) -> String {
    format!(
        "port {port} is an instance of service {service}, and what functions send meets no rule; \
         name the port by which frames come in"
    )
}
