//! What the specification of CNI says (1.0.0, 1.1.0): the configuration, the results, the errors.

use protocol::Address;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Supported versions of the specification; their results have one form.
pub const VERSIONS: [&str; 2] = ["1.0.0", "1.1.0"];

/// Keys of the specification that are for other parties.
const FOREIGN: [&str; 5] = ["type", "dns", "args", "capabilities", "cniVersions"];

/// The network configuration. What is for others, such as `ipam`, is passed on as it is.
#[derive(Debug, Deserialize)]
pub struct Network {
    /// Version of the CNI specification.
    #[serde(rename = "cniVersion")]
    pub version: String,
    /// Name of the network.
    #[serde(default)]
    pub name: String,
    /// The switch.
    #[serde(default = "vale0")]
    pub switch: String,
    /// Directory of the daemon's socket.
    #[serde(default)]
    pub dir: Option<String>,
    /// MTU of the container's interface.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// VLANs of the port.
    #[serde(default)]
    pub vlan: Option<String>,
    /// Whether ports exchange frames only with those that are not isolated.
    #[serde(default)]
    pub isolated: Option<bool>,
    /// The IPAM plugin, which assigns addresses.
    #[serde(default)]
    pub ipam: Option<Ipam>,
    /// What the plugin before has answered to ADD; to CHECK and DEL, what the last one has.
    #[serde(default, rename = "prevResult")]
    pub previous: Option<Success>,
    /// For GC: all interfaces of containers that are in use.
    #[serde(default, rename = "cni.dev/valid-attachments")]
    pub valid: Option<Vec<Attachment>>,
    /// What the runtime asks for by a capability.
    #[serde(default, rename = "runtimeConfig")]
    pub runtime: Value,
    /// All other keys.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

impl Network {
    /// The first key that neither this plugin nor the specification has.
    pub fn unknown_key(&self) -> Option<&str> {
        let is_foreign = |key: &str| FOREIGN.contains(&key) || key.starts_with("cni.dev/");
        self.others.keys().map(String::as_str).find(|key| !is_foreign(key))
    }

    /// The MAC address that a runtime asks for, by its capability or by `args`.
    pub fn mac(&self) -> Option<&str> {
        let args = self.others.get("args").and_then(|args| args["cni"]["mac"].as_str());
        self.runtime["mac"].as_str().or(args)
    }
}

/// An interface of a container, as a runtime names it.
#[derive(Debug, Deserialize)]
pub struct Attachment {
    /// The container.
    #[serde(rename = "containerID")]
    pub container: String,
    /// The interface.
    pub ifname: String,
}

fn vale0() -> String {
    "vale0".to_owned()
}

/// The plugin that gives addresses.
#[derive(Debug, Deserialize)]
pub struct Ipam {
    /// The plugin's name.
    #[serde(rename = "type")]
    pub kind: String,
}

/// What ADD answers, and what a plugin for addresses does.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Success {
    /// Version of the CNI specification.
    #[serde(rename = "cniVersion", default)]
    pub version: String,
    /// What was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    /// Addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<Ip>,
    /// Routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Name servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<Value>,
}

impl Success {
    /// What a plugin before has answered and what we do, as one answer.
    #[must_use]
    pub fn after(mut self, before: Option<Self>) -> Self {
        let Some(before) = before else { return self };
        let there = before.interfaces.len();
        for ip in &mut self.ips {
            ip.interface = ip.interface.map(|at| at + there);
        }
        Self {
            version: self.version,
            interfaces: [before.interfaces, self.interfaces].concat(),
            ips: [before.ips, self.ips].concat(),
            routes: [before.routes, self.routes].concat(),
            dns: self.dns.or(before.dns),
        }
    }

    /// The addresses of an interface in a namespace. Where it is not said whose one is, it is of
    /// the only interface that there is.
    pub fn ips_of<'a>(&'a self, ifname: &str) -> impl Iterator<Item = &'a Ip> {
        let is_it = |it: &Interface| it.name == ifname && it.sandbox.is_some();
        let at = self.interfaces.iter().position(is_it);
        self.ips.iter().filter(move |ip| ip.interface.is_none() || ip.interface == at)
    }
}

/// An interface of the container.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// MAC address of the interface.
    #[serde(default)]
    pub mac: String,
    /// Network namespace of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// What others say of theirs.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// An address.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Ip {
    /// The address with its prefix.
    pub address: Address,
    /// The gateway of that network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<std::net::IpAddr>,
    /// Index of the interface that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
}

/// A route.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Route {
    /// Where to.
    pub dst: Address,
    /// The gateway; by default, the gateway of the addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<std::net::IpAddr>,
    /// What others say of theirs.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// What is answered when something fails.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// Version of the CNI specification.
    #[serde(rename = "cniVersion")]
    pub version: String,
    /// Which kind of failure.
    pub code: u32,
    /// In a line.
    pub msg: String,
    /// What came of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
}

/// Kinds of failures: those of the specification, and our own from 100 on.
pub mod code {
    pub const VERSION: u32 = 1;
    pub const UNKNOWN_CONTAINER: u32 = 3;
    pub const ENVIRONMENT: u32 = 4;
    pub const IO: u32 = 5;
    pub const DECODE: u32 = 6;
    pub const CONFIG: u32 = 7;
    pub const TRY_AGAIN: u32 = 11;
    /// STATUS: nothing can be added.
    pub const UNAVAILABLE: u32 = 50;
    /// STATUS: and what was added has no network.
    pub const CUT_OFF: u32 = 51;
    /// The daemon has refused it.
    pub const DAEMON: u32 = 100;
    /// The plugin for addresses has said no code.
    pub const IPAM: u32 = 101;
    /// CHECK: something is not as ADD left it.
    pub const CHECK: u32 = 102;
}
