//! The CNI plugin: containers on a switch, as Kubernetes, containerd, podman and `cnitool` ask.
//!
//! ```text
//!   runtime ── CNI_COMMAND, configuration ──► uvala cni ──► daemon: a TAP in the container
//!                                                 │
//!                                                 ├──► ipam plugin: which addresses?
//!                                                 └──► in the namespace: addresses, routes
//! ```
//!
//! A container's port is called after the network, the container and the interface, so DEL, CHECK
//! and GC find what ADD made without any note of it. ADD makes the port first: from then on all is
//! its own, and what it cannot finish it takes back; where there is a port, it touches nothing. DEL
//! succeeds also where there is nothing left, as the specification wants it: ports of containers
//! end with their daemon.

pub mod inside;
mod ipam;
pub mod port;
mod spec;

use std::collections::BTreeSet;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use client::control::{Connection, ControlError};
use hostif::namespace;
use packet::MacAddr;
use protocol::name::PortName;
use protocol::{ErrorCode, HostIf, LinkState, PortInfo, PortKind, PortSettings};
use serde_json::json;

use crate::cli::port::list;
use inside::Route;
use spec::{Failure, Interface, Network, Success, VERSIONS, code};
use terminal::say;

/// What the names of this plugin's ports begin with.
const PLUGIN: char = 'c';

/// The keys of a network that are this plugin's.
const KEYS: [&str; 6] = ["switch", "dir", "mtu", "vlan", "isolated", "ipam"];

/// Run as a CNI plugin
///
/// Container runtimes run this command by the name `uvala-cni` from their plugin folder. It reads
/// CNI_* from the environment and the network from stdin, and supports versions 1.0.0 and 1.1.0 of
/// the specification.
///
/// The plugin's keys of a network are switch (default vale0), dir (directory of the daemon's
/// socket), mtu, vlan and isolated (as for `uvala port add`), and ipam, the plugin that assigns
/// addresses. It refuses unknown keys by name. A MAC address comes from the capability mac, from
/// args.cni.mac, or from MAC= in CNI_ARGS, in this order.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {}

const EXAMPLES: &str = r#"Examples:
  ln -s /usr/local/bin/uvala /opt/cni/bin/uvala-cni     Debian's runtimes: /usr/lib/cni
  cat /etc/cni/net.d/10-uvala.conflist
  {
    "cniVersion": "1.0.0",
    "name": "lab",
    "plugins": [
      {
        "type": "uvala-cni",
        "switch": "vale0",
        "capabilities": { "mac": true },
        "ipam": {
          "type": "host-local",
          "ranges": [[{ "subnet": "10.7.0.0/24", "gateway": "10.7.0.1" }]],
          "routes": [{ "dst": "0.0.0.0/0" }]
        }
      }
    ]
  }
  uvala port add vale0:lan --kind tap --address 10.7.0.1/24     the gateway, on this host"#;

/// Something failed: a kind, and what to say.
#[derive(Debug)]
pub struct Trouble {
    code: u32,
    msg: String,
    details: String,
    /// The daemon knows no such thing.
    is_none: bool,
}

impl Trouble {
    fn new(code: u32, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new(), is_none: false }
    }
}

impl From<ControlError> for Trouble {
    fn from(error: ControlError) -> Self {
        let number = match &error {
            ControlError::NoDaemon(_) => code::TRY_AGAIN,
            _ => code::DAEMON,
        };
        let is_none = error.code() == Some(ErrorCode::NotFound);
        Self { is_none, ..Self::new(number, error.to_string()) }
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
        Err(Trouble { code, msg, details, .. }) => {
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
    let environment = Environment::read()?;
    if environment.command == "VERSION" {
        let asked = serde_json::from_slice::<serde_json::Value>(config).unwrap_or_default();
        let version = asked["cniVersion"].as_str().unwrap_or(VERSIONS[0]);
        return Ok(Some(json!({ "cniVersion": version, "supportedVersions": VERSIONS })));
    }
    let network: Network = serde_json::from_slice(config)
        .map_err(|error| Trouble::new(code::DECODE, format!("configuration: {error}")))?;
    if !VERSIONS.contains(&network.version.as_str()) {
        let text = format!("unsupported cniVersion {}; use one of {VERSIONS:?}", network.version);
        return Err(Trouble::new(code::VERSION, text));
    }
    let command = environment.command.clone();
    if network.version == VERSIONS[0] && matches!(command.as_str(), "GC" | "STATUS") {
        let text = format!("{command} needs cniVersion {}, not {}", VERSIONS[1], VERSIONS[0]);
        return Err(Trouble::new(code::VERSION, text));
    }
    // What is there can be deleted, whatever was written into the file since.
    let unknown = network.unknown_key().filter(|_| !matches!(command.as_str(), "DEL" | "GC"));
    if let Some(key) = unknown {
        let text = format!("unknown key {key:?}; the plugin's are {}", KEYS.join(", "));
        return Err(Trouble::new(code::CONFIG, text));
    }
    let call = Call::new(config, network, environment)?;
    match command.as_str() {
        "ADD" => call.add().map(Some),
        "DEL" => call.del().map(|()| None),
        "CHECK" => call.check().map(|()| None),
        "GC" => call.collect().map(|()| None),
        _ => call.status().map(|()| None),
    }
}

/// What a runtime says beside the configuration.
#[derive(Debug, Default)]
struct Environment {
    command: String,
    container: String,
    netns: String,
    ifname: String,
    paths: String,
    args: String,
}

impl Environment {
    fn read() -> Result<Self, Trouble> {
        Self::from(|name| std::env::var(name).unwrap_or_default())
    }

    /// All that is wrong is said at once.
    fn from(variable: impl Fn(&str) -> String) -> Result<Self, Trouble> {
        let command = variable("CNI_COMMAND");
        let required: &[&str] = match command.as_str() {
            "ADD" | "CHECK" => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
            "DEL" => &["CNI_CONTAINERID", "CNI_IFNAME"],
            "VERSION" | "GC" | "STATUS" => &[],
            _ => &["CNI_COMMAND"],
        };
        let wrong = required.iter().filter_map(|name| {
            let value = variable(name);
            let fits = match *name {
                "CNI_CONTAINERID" => is_identifier(&value),
                "CNI_IFNAME" => hostif::check_name(&value).is_ok(),
                "CNI_NETNS" => value.starts_with('/'),
                _ => false,
            };
            match value.is_empty() {
                true => Some(format!("{name} is not set")),
                false => (!fits).then(|| format!("{name} cannot be {value:?}")),
            }
        });
        let wrong: Vec<_> = wrong.collect();
        if !wrong.is_empty() {
            return Err(Trouble::new(code::ENVIRONMENT, wrong.join(", ")));
        }
        let [container, netns, ifname, paths, args] =
            ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH", "CNI_ARGS"].map(variable);
        Ok(Self { command, container, netns, ifname, paths, args })
    }

    /// An argument of the runtime. Those that are not asked for are for other plugins.
    fn arg(&self, name: &str) -> Option<&str> {
        let mut pairs = self.args.split(';').filter_map(|arg| arg.split_once('='));
        pairs.find_map(|(key, value)| (key == name).then_some(value))
    }

    /// The MAC address that the arguments ask for.
    fn mac(&self) -> Option<&str> {
        self.arg("MAC")
    }

    /// The container as its operator knows it: the name that Kubernetes and podman pass on, else
    /// the beginning of its number.
    fn label(&self) -> Option<String> {
        let pod = self.arg("K8S_POD_NAME").filter(|name| !name.is_empty());
        let namespace = self.arg("K8S_POD_NAMESPACE").filter(|name| !name.is_empty());
        let label: String = match (namespace, pod) {
            (Some(namespace), Some(pod)) => format!("{namespace}/{pod}"),
            (None, Some(pod)) => pod.to_owned(),
            (_, None) => self.container.chars().take(12).collect(),
        };
        port::label(&label)
    }
}

/// Whether the specification lets a container, or a network, be called so.
fn is_identifier(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    name.bytes().all(good) && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// A call about a network, mostly about one interface of one container.
struct Call<'a> {
    /// As it came: for the plugin that gives addresses.
    config: &'a [u8],
    network: Network,
    environment: Environment,
    port: PortName,
}

impl<'a> Call<'a> {
    fn new(config: &'a [u8], network: Network, environment: Environment) -> Result<Self, Trouble> {
        if !is_identifier(&network.name) {
            let text = format!("name: no network can be called {:?}", network.name);
            return Err(Trouble::new(code::CONFIG, text));
        }
        let Environment { container, ifname, .. } = &environment;
        let name = port::name(PLUGIN, &network.name, container, ifname);
        let name = format!("{}:{name}", network.switch);
        let port =
            name.parse().map_err(|error| Trouble::new(code::CONFIG, format!("switch: {error}")))?;
        Ok(Self { config, network, environment, port })
    }

    /// The namespace of the container.
    fn namespace(&self) -> Result<OwnedFd, Trouble> {
        let opened = namespace::open(&self.environment.netns);
        opened.map_err(|error| Trouble::new(code::UNKNOWN_CONTAINER, error.to_string()))
    }

    fn connect(&self) -> Result<Connection, Trouble> {
        let connection = Connection::open(self.network.dir.as_deref().map(Path::new))?;
        connection.hello(concat!("uvala cni ", env!("CARGO_PKG_VERSION")))?;
        Ok(connection)
    }

    fn add(&self) -> Result<serde_json::Value, Trouble> {
        let namespace = self.namespace()?;
        let connection = self.connect()?;
        self.make_port(&connection)?;
        let given = self.addresses("ADD");
        let made = given.and_then(|given| self.make(&connection, &namespace, given));
        if made.is_err() {
            // What is not finished is taken back; what the first trouble was matters.
            let _ = port::remove(&connection, &self.port);
            let _ = self.addresses("DEL");
        }
        made
    }

    /// The MAC address that the interface must have, if one is asked for.
    fn mac(&self) -> Result<Option<MacAddr>, Trouble> {
        let asked = self.network.mac().or(self.environment.mac());
        let bad = |error| Trouble::new(code::CONFIG, format!("mac: {error}"));
        asked.map(|text| text.parse().map_err(bad)).transpose()
    }

    fn make_port(&self, connection: &Connection) -> Result<(), Trouble> {
        let host = HostIf {
            ifname: Some(self.environment.ifname.clone()),
            netns: Some(self.environment.netns.clone()),
            mtu: self.network.mtu,
            mac: self.mac()?,
            ..HostIf::default()
        };
        let vlan = self.network.vlan.as_deref().map(str::parse).transpose();
        let settings = PortSettings {
            vlan: vlan.map_err(|error| Trouble::new(code::CONFIG, format!("vlan: {error}")))?,
            isolated: self.network.isolated,
            label: self.environment.label(),
            ..PortSettings::default()
        };
        Ok(port::add(connection, &self.port, host, settings)?)
    }

    /// Gives the interface its addresses and routes.
    fn make(
        &self,
        connection: &Connection,
        namespace: &OwnedFd,
        given: Success,
    ) -> Result<serde_json::Value, Trouble> {
        let Environment { ifname, netns, .. } = &self.environment;
        let addresses: Vec<_> = given.ips.iter().map(|ip| ip.address).collect();
        let routes: Vec<_> = routes(&given);
        let set_up = || inside::set_up(ifname, &addresses, &routes);
        inside::within(namespace, set_up)
            .map_err(|error| Trouble::new(code::IO, format!("{ifname} in {netns}: {error}")))?;
        let mac = port::show(connection, &self.port)?.host.map(|host| host.mac.to_string());
        let ips = given.ips.into_iter().map(|ip| spec::Ip { interface: Some(0), ..ip });
        let success = Success {
            version: self.network.version.clone(),
            interfaces: vec![Interface {
                name: ifname.clone(),
                mac: mac.unwrap_or_default(),
                sandbox: Some(netns.clone()),
                more: serde_json::Map::new(),
            }],
            ips: ips.collect(),
            ..given
        };
        Ok(json!(success.after(self.network.previous.clone())))
    }

    fn del(&self) -> Result<(), Trouble> {
        self.remove_all(|connection| Ok(port::remove(connection, &self.port)?))?;
        self.addresses("DEL").map(drop)
    }

    /// Deletes ports. Without a daemon there are none, and interfaces are gone with it.
    fn remove_all(
        &self,
        remove: impl FnOnce(&Connection) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        match self.connect() {
            Ok(connection) => remove(&connection),
            Err(trouble) if trouble.code == code::TRY_AGAIN => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// Whatever is not as ADD left it has one code; another one says that it cannot be looked at.
    fn check(&self) -> Result<(), Trouble> {
        let Some(previous) = &self.network.previous else {
            return Err(Trouble::new(code::CONFIG, "prevResult is missing; CHECK requires it"));
        };
        let Environment { ifname, netns, .. } = &self.environment;
        let wrong = |text: String| Err(Trouble::new(code::CHECK, text));
        let namespace = self.namespace()?;
        let info = match port::show(&self.connect()?, &self.port).map_err(Trouble::from) {
            Err(trouble) if trouble.is_none => return wrong(trouble.msg),
            shown => shown?,
        };
        let state = info.host.as_ref().map(|host| host.state);
        if info.kind != PortKind::Tap || state != Some(LinkState::Up) {
            let state = state.map_or("no interface".to_owned(), |state| state.to_string());
            return wrong(format!("{} is {state}", self.port));
        }
        let ips: Vec<_> = previous.ips_of(ifname).map(|ip| ip.address.ip).collect();
        // A plugin behind us may have its own interfaces, with routes by these.
        let routes = if previous.interfaces.len() == 1 { routes(previous) } else { Vec::new() };
        let missing = inside::within(&namespace, || inside::missing(ifname, &ips, &routes));
        match missing.map_err(|error| Trouble::new(code::IO, format!("{netns}: {error}")))? {
            Some(what) => wrong(format!("no {what} in {netns}")),
            None => self.addresses("CHECK").map(drop),
        }
    }

    /// Deletes the ports of this network that no container in use has.
    fn collect(&self) -> Result<(), Trouble> {
        let Some(valid) = &self.network.valid else {
            let text = "cni.dev/valid-attachments is missing; GC requires it";
            return Err(Trouble::new(code::CONFIG, text));
        };
        let network = &self.network.name;
        let valid: BTreeSet<_> =
            valid.iter().map(|it| port::name(PLUGIN, network, &it.container, &it.ifname)).collect();
        let is_garbage = |info: &PortInfo| {
            let name = info.port.port();
            let here = info.port.switch() == self.port.switch() && info.kind == PortKind::Tap;
            here && name.starts_with(&port::network_name(PLUGIN, network)) && !valid.contains(name)
        };
        let ports = self.remove_all(|connection| {
            // There need be no such switch.
            let all = list(connection, None)
                .map_err(|error| Trouble::new(code::DAEMON, format!("{error:#}")))?;
            let removed = all.iter().filter(|info| is_garbage(info));
            // As many as can be, whatever becomes of one.
            let removed = removed.map(|info| Ok(port::remove(connection, &info.port)?));
            removed.fold(Ok(()), Result::and)
        });
        self.addresses("GC").map(drop).and(ports)
    }

    /// Whether a container could be added now.
    fn status(&self) -> Result<(), Trouble> {
        self.connect().map_err(|trouble| match trouble.code {
            code::TRY_AGAIN => Trouble { code: code::CUT_OFF, ..trouble },
            _ => Trouble { code: code::UNAVAILABLE, ..trouble },
        })?;
        self.addresses("STATUS").map(drop)
    }

    /// What the plugin that gives addresses says; nothing, where there is none.
    fn addresses(&self, command: &str) -> Result<Success, Trouble> {
        let Some(ipam) = &self.network.ipam else { return Ok(Success::default()) };
        let (kind, paths) = (&ipam.kind, &self.environment.paths);
        let config = match self.network.version == VERSIONS[0] {
            true => self.config.to_vec(),
            false => match ipam::spoken(kind, paths, command, self.config)? {
                Some(config) => config,
                None => return Ok(Success::default()),
            },
        };
        let said = ipam::run(kind, paths, command, &config)?;
        if command == "ADD" { ipam::parse(&ipam.kind, &said) } else { Ok(Success::default()) }
    }
}

/// The routes of an answer. A route without a gateway uses that of the addresses.
fn routes(given: &Success) -> Vec<Route> {
    let same = |a: &protocol::Address, b: &std::net::IpAddr| a.ip.is_ipv4() == b.is_ipv4();
    let gateways: Vec<_> = given.ips.iter().filter_map(|ip| ip.gateway).collect();
    let by = |route: &spec::Route| {
        let found = gateways.iter().copied().find(|gateway| same(&route.dst, gateway));
        Route { to: route.dst, by: route.gw.or(found), metric: None }
    };
    given.routes.iter().map(by).collect()
}

#[cfg(test)]
mod tests {
    use protocol::LABEL_MAX;

    use super::*;

    #[test]
    fn test_all_that_is_wrong_with_the_environment_is_said_at_once() {
        let read = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(known, _)| *known == name);
            Environment::from(|name| {
                value(name).map(|(_, it)| (*it).to_owned()).unwrap_or_default()
            })
        };
        let trouble = read(&[("CNI_COMMAND", "ADD"), ("CNI_IFNAME", "a/b")]).unwrap_err();
        assert_eq!(trouble.code, code::ENVIRONMENT);
        let text = "CNI_CONTAINERID is not set, CNI_NETNS is not set, CNI_IFNAME cannot be \"a/b\"";
        assert_eq!(trouble.msg, text);
        assert_eq!(read(&[]).unwrap_err().msg, "CNI_COMMAND is not set");
        let trouble = read(&[("CNI_COMMAND", "FLY")]).unwrap_err();
        assert_eq!(trouble.msg, "CNI_COMMAND cannot be \"FLY\"");
        let del = [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c.1-x"), ("CNI_IFNAME", "eth0")];
        assert_eq!(read(&del).unwrap().netns, "", "it may be gone");
        assert!(read(&[("CNI_COMMAND", "GC")]).is_ok());
        let red = [("CNI_COMMAND", "CHECK"), ("CNI_CONTAINERID", "-"), ("CNI_NETNS", "red")];
        let text =
            "CNI_CONTAINERID cannot be \"-\", CNI_NETNS cannot be \"red\", CNI_IFNAME is not set";
        assert_eq!(read(&red).unwrap_err().msg, text);
    }

    #[test]
    fn test_a_mac_address_is_asked_for_in_three_ways_the_capability_first() {
        let network = |more: &str| -> Network {
            serde_json::from_str(&format!("{{\"cniVersion\":\"1.0.0\"{more}}}")).unwrap()
        };
        let args = r#","args":{"cni":{"mac":"02:00:00:00:00:02"}}"#;
        let runtime = r#","runtimeConfig":{"mac":"02:00:00:00:00:01","ips":[]}"#;
        assert_eq!(network("").mac(), None);
        assert_eq!(network(args).mac(), Some("02:00:00:00:00:02"));
        assert_eq!(network(&format!("{args}{runtime}")).mac(), Some("02:00:00:00:00:01"));
        assert_eq!(network(&format!("{args}{runtime}")).unknown_key(), None);
        assert_eq!(network(r#","vlna":"access:7""#).unknown_key(), Some("vlna"));
        let asked = |args: &str| Environment { args: args.to_owned(), ..Environment::default() };
        let environment = asked("IgnoreUnknown=1;MAC=02:00:00:00:00:03;K8S_POD_NAME=x");
        assert_eq!(environment.mac(), Some("02:00:00:00:00:03"));
        assert_eq!(asked("").mac(), None);
    }

    #[test]
    fn test_a_container_is_labelled_as_its_runtime_calls_it() {
        let label = |container: &str, args: &str| {
            let (container, args) = (container.to_owned(), args.to_owned());
            Environment { container, args, ..Environment::default() }.label()
        };
        let id = "8f3c0a9d2b7e41c6a5";
        let pod = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0";
        assert_eq!(label(id, pod).as_deref(), Some("shop/web-0"));
        assert_eq!(label(id, "K8S_POD_NAME=web;MAC=").as_deref(), Some("web"));
        assert_eq!(label(id, "K8S_POD_NAME=").as_deref(), Some("8f3c0a9d2b7e"));
        assert_eq!(label("", "").as_deref(), None);
        assert_eq!(label(id, "K8S_POD_NAME=a\nb"), None);
        let long = label(id, &format!("K8S_POD_NAME={}", "x".repeat(253))).unwrap();
        assert_eq!(long.len(), LABEL_MAX);
    }

    #[test]
    fn test_what_a_plugin_before_answered_is_passed_on() {
        let result = |text: &str| serde_json::from_str::<Success>(text).unwrap();
        let before = r#"{"interfaces":[{"name":"br0","mtu":9000},{"name":"net1","sandbox":"/n"}],
            "ips":[{"address":"10.1.0.2/16","interface":1}],"dns":{"domain":"x"}}"#;
        let ours = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"}],
            "ips":[{"address":"10.2.0.2/16","interface":0}],
            "routes":[{"dst":"0.0.0.0/0","priority":7}]}"#;
        let both = result(ours).after(Some(result(before)));
        let ips = |ifname: &str| -> Vec<_> {
            both.ips_of(ifname).map(|ip| ip.address.to_string()).collect()
        };
        assert_eq!(
            (ips("eth0"), ips("net1")),
            (vec!["10.2.0.2/16".into()], vec!["10.1.0.2/16".into()])
        );
        let text = json!(both);
        assert_eq!(
            (&text["interfaces"][0]["mtu"], &text["dns"]["domain"]),
            (&9000.into(), &"x".into())
        );
        assert_eq!(text["routes"][0]["priority"], 7);
        assert_eq!(text["cniVersion"], "1.0.0");
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
