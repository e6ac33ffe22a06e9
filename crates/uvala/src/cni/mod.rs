//! The CNI plugin: containers on a switch, as Kubernetes, containerd, podman and `cnitool` ask.
//!
//! ```text
//!   runtime ── CNI_COMMAND, configuration ──► uvala cni ──► daemon: a TAP in the container
//!                                                 │
//!                                                 ├──► ipam plugin: which addresses?
//!                                                 └──► in the namespace: addresses, routes
//! ```
//!
//! A container's port is called after the container and the interface, so DEL and CHECK find what
//! ADD made without any note of it. ADD makes the port first: from then on all is its own, and what
//! it cannot finish it takes back; where there is a port, it touches nothing. DEL succeeds also
//! where there is nothing left, as the specification wants it: ports of containers end with their
//! daemon.

pub mod inside;
mod ipam;
mod spec;

use std::io::Read;
use std::path::Path;

use client::api::{
    ErrorCode, HostIf, LinkState, PortAdd, PortInfo, PortKind, PortRef, PortSettings, Reply,
    Request,
};
use client::control::{Connection, ControlError};
use client::name::PortName;
use serde_json::json;

use crate::say;
use inside::Route;
use spec::{Failure, Interface, Network, Success, VERSIONS, code};

/// Something failed: a kind, and what to say.
#[derive(Debug)]
pub struct Trouble {
    code: u32,
    msg: String,
    details: String,
}

impl Trouble {
    fn new(code: u32, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new() }
    }
}

impl From<ControlError> for Trouble {
    fn from(error: ControlError) -> Self {
        let number = match &error {
            ControlError::NoDaemon(_) => code::TRY_AGAIN,
            _ => code::DAEMON,
        };
        Self::new(number, error.to_string())
    }
}

/// Carries out what the environment and standard input say; returns the exit status.
pub fn run() -> u8 {
    let mut config = Vec::new();
    let read = std::io::stdin().take(1 << 20).read_to_end(&mut config);
    let version = || {
        let config: Option<serde_json::Value> = serde_json::from_slice(&config).ok();
        let version = config.and_then(|config| Some(config["cniVersion"].as_str()?.to_owned()));
        version.filter(|version| VERSIONS.contains(&version.as_str()))
    };
    let answer = match read {
        Ok(_) => answer(&config),
        Err(error) => Err(Trouble::new(code::IO, format!("standard input: {error}"))),
    };
    let (text, status) = match answer {
        Ok(None) => return 0,
        Ok(Some(text)) => (text, 0),
        Err(Trouble { code, msg, details }) => {
            let version = version().unwrap_or_else(|| VERSIONS[0].to_owned());
            (json!(Failure { version, code, msg, details }), 1)
        }
    };
    match say::out(format_args!("{text}\n")) {
        Ok(()) => status,
        Err(_) => 1,
    }
}

fn answer(config: &[u8]) -> Result<Option<serde_json::Value>, Trouble> {
    let command = variable("CNI_COMMAND")?;
    if command == "VERSION" {
        return Ok(Some(json!({ "cniVersion": "1.0.0", "supportedVersions": VERSIONS })));
    }
    let network: Network = serde_json::from_slice(config)
        .map_err(|error| Trouble::new(code::DECODE, format!("configuration: {error}")))?;
    if !VERSIONS.contains(&network.version.as_str()) {
        let text = format!("cniVersion {} is not spoken here: {VERSIONS:?}", network.version);
        return Err(Trouble::new(code::VERSION, text));
    }
    let call = Call::new(config, network)?;
    match command.as_str() {
        "ADD" => call.add().map(Some),
        "DEL" => call.del().map(|()| None),
        "CHECK" => call.check().map(|()| None),
        // Of version 1.1. Other networks may be on the switch, so no port is seen to be garbage.
        "GC" => call.addresses("GC").map(|_| None),
        "STATUS" => call.connect().and_then(|_| call.addresses("STATUS")).map(|_| None),
        other => Err(Trouble::new(code::ENVIRONMENT, format!("CNI_COMMAND is {other:?}"))),
    }
}

fn variable(name: &str) -> Result<String, Trouble> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.ok_or_else(|| Trouble::new(code::ENVIRONMENT, format!("{name} is not set")))
}

/// A call about one interface of one container.
struct Call<'a> {
    /// As it came: for the plugin that gives addresses.
    config: &'a [u8],
    network: Network,
    port: PortName,
    ifname: String,
    paths: String,
}

impl<'a> Call<'a> {
    fn new(config: &'a [u8], network: Network) -> Result<Self, Trouble> {
        let (container, ifname) = match variable("CNI_COMMAND")?.as_str() {
            "GC" | "STATUS" => ("none".to_owned(), "none".to_owned()),
            _ => (variable("CNI_CONTAINERID")?, variable("CNI_IFNAME")?),
        };
        let bad = ifname.len() > 15 || ifname.contains(['/', ':', ' ']);
        if bad {
            return Err(Trouble::new(code::ENVIRONMENT, format!("CNI_IFNAME is {ifname:?}")));
        }
        if network.name.is_empty() {
            return Err(Trouble::new(code::CONFIG, "the network has no name"));
        }
        let name = format!("{}:{}", network.switch, port_name(&container, &ifname));
        let port =
            name.parse().map_err(|error| Trouble::new(code::CONFIG, format!("switch: {error}")))?;
        let paths = std::env::var("CNI_PATH").unwrap_or_default();
        Ok(Self { config, network, port, ifname, paths })
    }

    fn connect(&self) -> Result<Connection, Trouble> {
        let connection = Connection::open(self.network.dir.as_deref().map(Path::new))?;
        connection.hello(concat!("uvala cni ", env!("CARGO_PKG_VERSION")))?;
        Ok(connection)
    }

    fn add(&self) -> Result<serde_json::Value, Trouble> {
        let netns = variable("CNI_NETNS")?;
        if !Path::new(&netns).exists() {
            return Err(Trouble::new(code::UNKNOWN_CONTAINER, format!("no namespace {netns}")));
        }
        let connection = self.connect()?;
        self.make_port(&connection, &netns)?;
        let made = self.addresses("ADD").and_then(|given| self.make(&connection, &netns, given));
        if made.is_err() {
            // What is not finished is taken back; what the first trouble was matters.
            let _ = self.remove(&connection);
            let _ = self.addresses("DEL");
        }
        made
    }

    fn make_port(&self, connection: &Connection, netns: &str) -> Result<(), Trouble> {
        let host = HostIf {
            ifname: Some(self.ifname.clone()),
            netns: Some(netns.to_owned()),
            mtu: self.network.mtu,
            ..HostIf::default()
        };
        let settings = PortSettings {
            vlan: self.network.vlan.clone(),
            isolated: self.network.isolated,
            ..PortSettings::default()
        };
        let (port, kind) = (self.port.clone(), PortKind::Tap);
        let add = PortAdd { port, kind, settings, host: Some(host), machine: None };
        connection.call(Request::PortAdd(Box::new(add)))?;
        Ok(())
    }

    /// Gives the interface its addresses and routes.
    fn make(
        &self,
        connection: &Connection,
        netns: &str,
        given: Success,
    ) -> Result<serde_json::Value, Trouble> {
        let addresses: Vec<_> = given.ips.iter().map(|ip| ip.address).collect();
        let routes: Vec<_> = routes(&given);
        let set_up = || inside::set_up(&self.ifname, &addresses, &routes);
        inside::within(Path::new(netns), set_up).map_err(|error| {
            Trouble::new(code::IO, format!("addresses of {} in {netns}: {error}", self.ifname))
        })?;
        let mac = self.show(connection)?.host.map(|host| host.mac.to_string());
        let ips = given.ips.into_iter().map(|ip| spec::Ip { interface: Some(0), ..ip });
        let success = Success {
            version: self.network.version.clone(),
            interfaces: vec![Interface {
                name: self.ifname.clone(),
                mac: mac.unwrap_or_default(),
                sandbox: Some(netns.to_owned()),
            }],
            ips: ips.collect(),
            ..given
        };
        Ok(json!(success))
    }

    fn del(&self) -> Result<(), Trouble> {
        // Without a daemon there is no port, and the interface is gone with it.
        match self.connect() {
            Ok(connection) => self.remove(&connection)?,
            Err(trouble) if trouble.code == code::TRY_AGAIN => {}
            Err(trouble) => return Err(trouble),
        }
        self.addresses("DEL").map(drop)
    }

    fn check(&self) -> Result<(), Trouble> {
        let netns = variable("CNI_NETNS")?;
        let connection = self.connect()?;
        let info = self.show(&connection)?;
        let state = info.host.as_ref().map(|host| host.state);
        if info.kind != PortKind::Tap || state != Some(LinkState::Up) {
            let state = state.map_or("no interface".to_owned(), |state| state.to_string());
            return Err(Trouble::new(code::CHECK, format!("{} is {state}", self.port)));
        }
        let ips = self.network.previous.iter().flat_map(|previous| &previous.ips);
        let ips: Vec<_> = ips.map(|ip| ip.address.ip).collect();
        let missing = inside::within(Path::new(&netns), || Ok(inside::missing(&self.ifname, &ips)));
        let missing = missing.map_err(|error| {
            Trouble::new(code::UNKNOWN_CONTAINER, format!("namespace {netns}: {error}"))
        })?;
        if let Some(what) = missing {
            return Err(Trouble::new(code::CHECK, format!("no {what} in {netns}")));
        }
        self.addresses("CHECK").map(drop)
    }

    fn show(&self, connection: &Connection) -> Result<PortInfo, Trouble> {
        match connection.call(Request::PortShow(PortRef { port: self.port.clone() }))? {
            Reply::Port(info) => Ok(info),
            _ => Err(Trouble::new(code::DAEMON, "the daemon answered something else")),
        }
    }

    fn remove(&self, connection: &Connection) -> Result<(), Trouble> {
        match connection.call(Request::PortDel(PortRef { port: self.port.clone() })) {
            Err(ControlError::Refused(failure)) if failure.code == ErrorCode::NotFound => Ok(()),
            done => Ok(done.map(drop)?),
        }
    }

    /// What the plugin that gives addresses says; nothing, where there is none.
    fn addresses(&self, command: &str) -> Result<Success, Trouble> {
        let Some(ipam) = &self.network.ipam else { return Ok(Success::default()) };
        let said = ipam::run(&ipam.kind, &self.paths, command, self.config)?;
        if command == "ADD" { ipam::parse(&ipam.kind, &said) } else { Ok(Success::default()) }
    }
}

/// The routes of an answer. Who has no gateway of his own goes by that of the addresses.
fn routes(given: &Success) -> Vec<Route> {
    let same = |a: &client::api::Address, b: &std::net::IpAddr| a.ip.is_ipv4() == b.is_ipv4();
    let gateways: Vec<_> = given.ips.iter().filter_map(|ip| ip.gateway).collect();
    let by = |route: &spec::Route| {
        let found = gateways.iter().copied().find(|gateway| same(&route.dst, gateway));
        Route { to: route.dst, by: route.gw.or(found) }
    };
    given.routes.iter().map(by).collect()
}

/// The port of a container's interface: names of containers are longer than those of ports.
fn port_name(container: &str, ifname: &str) -> String {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    let bytes = container.bytes().chain([0]).chain(ifname.bytes());
    let hash = bytes.fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    format!("c{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_each_interface_of_each_container_has_a_port() {
        let names = [("a", "eth0"), ("a", "eth1"), ("b", "eth0"), ("ae", "th0")];
        let names: std::collections::BTreeSet<_> =
            names.iter().map(|(container, ifname)| port_name(container, ifname)).collect();
        assert_eq!(names.len(), 4);
        assert!(names.iter().all(|name| format!("vale0:{name}").parse::<PortName>().is_ok()));
    }

    #[test]
    fn test_routes_go_by_the_gateway_of_their_family() {
        let text = r#"{"ips":[{"address":"10.1.0.2/16","gateway":"10.1.0.1"},
            {"address":"fd00::2/64","gateway":"fd00::1"}],
            "routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"10.2.0.0/16","gw":"10.1.0.9"}]}"#;
        let given: Success = serde_json::from_str(text).unwrap();
        let by: Vec<_> = routes(&given).iter().map(|r| r.by.unwrap().to_string()).collect();
        assert_eq!(by, ["10.1.0.1", "fd00::1", "10.1.0.9"]);
    }
}
