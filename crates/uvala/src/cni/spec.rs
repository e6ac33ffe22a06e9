//! What the specification of CNI says (1.0.0): the configuration, the results, the errors.

use client::api::Address;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Versions of the specification that are spoken here; their results have one form.
pub const VERSIONS: [&str; 2] = ["1.0.0", "1.1.0"];

/// The network configuration. What is for others, such as `ipam`, is passed on as it is.
#[derive(Debug, Deserialize)]
pub struct Network {
    /// Of the specification.
    #[serde(rename = "cniVersion")]
    pub version: String,
    /// Of the network.
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
    /// Who gives addresses.
    #[serde(default)]
    pub ipam: Option<Ipam>,
    /// What ADD answered, for CHECK and DEL.
    #[serde(default, rename = "prevResult")]
    pub previous: Option<Success>,
}

fn vale0() -> String {
    "vale0".to_owned()
}

/// The plugin that gives addresses.
#[derive(Debug, Deserialize)]
pub struct Ipam {
    /// Its name.
    #[serde(rename = "type")]
    pub kind: String,
}

/// What ADD answers, and what a plugin for addresses does.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Success {
    /// Of the specification.
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

/// An interface of the container.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its Ethernet address.
    #[serde(default)]
    pub mac: String,
    /// Its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
}

/// An address.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Ip {
    /// The address with its prefix.
    pub address: Address,
    /// Who leads out of that network.
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
    /// By whom; by default, the gateway of the addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<std::net::IpAddr>,
}

/// What is answered when something fails.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// Of the specification.
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
    pub const DAEMON: u32 = 100;
    pub const IPAM: u32 = 101;
    pub const CHECK: u32 = 102;
}
