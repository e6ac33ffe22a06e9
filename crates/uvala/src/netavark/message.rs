//! The messages of netavark's plugin interface (1.0.0), and what they ask for.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use hostif::check_name;
use protocol::name::{PortName, SwitchName};
use protocol::{Address, HostIf, PortSettings};
use serde::{Deserialize, Serialize};

use crate::cni::inside::{Route, everywhere};
use crate::cni::port;

/// What the names of this plugin's ports begin with.
const PLUGIN: char = 'n';
/// The options of a network that are this plugin's.
const OPTIONS: [&str; 7] =
    ["switch", "dir", "mtu", "vlan", "isolated", "metric", "no_default_route"];
/// What assigns addresses: podman does, or nothing.
const IPAM: [&str; 3] = ["", "host-local", "none"];
/// netavark's own networks have 100: of a container that is in one of them, too, they have the
/// default route, for what is published there.
const METRIC: u32 = 101;

type Options = BTreeMap<String, String>;

/// A network of podman's. What is not named here is passed on as it is.
#[derive(Debug, Deserialize)]
pub struct Network {
    name: String,
    /// Without a way to other networks.
    #[serde(default)]
    internal: bool,
    /// What another driver would be connected to.
    network_interface: Option<String>,
    options: Option<Options>,
    ipam_options: Option<Options>,
    subnets: Option<Vec<Subnet>>,
    routes: Option<Vec<StaticRoute>>,
}

#[derive(Debug, Deserialize)]
struct Subnet {
    subnet: Address,
    gateway: Option<IpAddr>,
}

#[derive(Debug, Deserialize)]
struct StaticRoute {
    destination: Address,
    gateway: Option<IpAddr>,
    metric: Option<u32>,
    route_type: Option<String>,
}

/// A container that is to be in a network, or no longer.
#[derive(Debug, Deserialize)]
pub struct Container {
    container_id: String,
    container_name: String,
    network: Network,
    network_options: Interface,
}

#[derive(Debug, Deserialize)]
struct Interface {
    interface_name: String,
    static_ips: Option<Vec<IpAddr>>,
    static_mac: Option<String>,
    options: Option<Options>,
}

/// An address that an interface has got, as netavark tells podman.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Given {
    #[serde(rename = "ipnet")]
    pub address: Address,
    pub gateway: Option<IpAddr>,
}

/// What a network asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    mtu: Option<u32>,
    settings: PortSettings,
    metric: Option<u32>,
    no_default_route: bool,
}

/// What a container asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    pub host: HostIf,
    pub settings: PortSettings,
    pub given: Vec<Given>,
    pub routes: Vec<Route>,
}

impl Network {
    /// Checks all that can be checked before there is a container.
    pub fn check(&self) -> Result<(), String> {
        if self.network_interface.as_ref().is_some_and(|name| !name.is_empty()) {
            return Err("there is no interface to choose; name a switch: --opt switch=vale0".into());
        }
        let driver = self.ipam_options.as_ref().and_then(|options| options.get("driver"));
        if let Some(driver) = driver.filter(|driver| !IPAM.contains(&driver.as_str())) {
            return Err(format!("--ipam-driver {driver}: use host-local, or none"));
        }
        self.switch()?;
        self.asked()?;
        self.static_routes().map(drop)
    }

    fn option(&self, name: &str) -> Option<&str> {
        self.options.as_ref()?.get(name).map(String::as_str)
    }

    fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, String>
    where
        T::Err: std::fmt::Display,
    {
        let bad = |text: &str, error| format!("{name}={text}: {error}");
        self.option(name).map(|text| text.parse().map_err(|error| bad(text, error))).transpose()
    }

    /// Directory of the daemon's socket.
    fn dir(&self) -> Option<PathBuf> {
        self.option("dir").map(PathBuf::from)
    }

    fn switch(&self) -> Result<SwitchName, String> {
        let name = self.option("switch").unwrap_or("vale0");
        name.parse().map_err(|error| format!("switch={name}: {error}"))
    }

    fn asked(&self) -> Result<Asked, String> {
        known(self.options.as_ref(), &OPTIONS)?;
        let (vlan, isolated) = (self.parsed("vlan")?, self.parsed("isolated")?);
        Ok(Asked {
            mtu: self.parsed("mtu")?,
            settings: PortSettings { vlan, isolated, ..PortSettings::default() },
            metric: self.parsed("metric")?,
            no_default_route: self.parsed("no_default_route")?.unwrap_or_default(),
        })
    }

    fn static_routes(&self) -> Result<Vec<Route>, String> {
        let route = |it: &StaticRoute| {
            let kind = it.route_type.as_deref().unwrap_or_default();
            match ["", "unicast"].contains(&kind) && it.gateway.is_some() {
                true => Ok(Route { to: it.destination, by: it.gateway, metric: it.metric }),
                false => Err(format!("--route {}: only by a gateway", it.destination)),
            }
        };
        self.routes.iter().flatten().map(route).collect()
    }

    /// An address of a container with what its subnet says.
    fn given(&self, ip: IpAddr) -> Result<Given, String> {
        let mut subnets = self.subnets.iter().flatten();
        let of = subnets.find(|it| Address::alone(ip).is_within(it.subnet));
        let of = of.ok_or_else(|| format!("{ip} is in no subnet of network {}", self.name))?;
        let address = Address { ip, prefix: of.subnet.prefix };
        Ok(Given { address, gateway: of.gateway.filter(|_| !self.internal) })
    }
}

impl Container {
    /// Directory of the daemon's socket.
    pub fn dir(&self) -> Option<PathBuf> {
        self.network.dir()
    }

    /// The port of the interface.
    pub fn port(&self) -> Result<PortName, String> {
        let (network, ifname) = (&self.network.name, &self.network_options.interface_name);
        let name = port::name(PLUGIN, network, &self.container_id, ifname);
        let name = format!("{}:{name}", self.network.switch()?);
        name.parse().map_err(|error| format!("{name}: {error}"))
    }

    /// The interface, in the namespace at this path.
    pub fn plan(&self, netns: &str) -> Result<Plan, String> {
        let Interface { interface_name, static_ips, static_mac, options } = &self.network_options;
        known(options.as_ref(), &[])?;
        check_name(interface_name).map_err(|error| error.to_string())?;
        self.network.check()?;
        let Asked { mtu, settings, metric, no_default_route } = self.network.asked()?;
        let mac = static_mac.as_deref().filter(|text| !text.is_empty()).map(str::parse);
        let host = HostIf {
            ifname: Some(interface_name.clone()),
            netns: Some(netns.to_owned()),
            mtu,
            mac: mac.transpose().map_err(|error| format!("static_mac: {error}"))?,
            ..HostIf::default()
        };
        let ips = static_ips.iter().flatten();
        let given: Vec<_> = ips.map(|ip| self.network.given(*ip)).collect::<Result<_, _>>()?;
        let mut routes = self.network.static_routes()?;
        if !no_default_route {
            routes.extend(default_routes(&given, metric.unwrap_or(METRIC)));
        }
        let settings = PortSettings { label: port::label(&self.container_name), ..settings };
        Ok(Plan { host, settings, given, routes })
    }
}

/// A default route for each family.
fn default_routes(given: &[Given], metric: u32) -> impl Iterator<Item = Route> {
    let first = |is_v4: bool| {
        let mut gateways = given.iter().filter_map(|it| it.gateway);
        gateways.find(|gateway| gateway.is_ipv4() == is_v4)
    };
    let by = move |gateway| Route { metric: Some(metric), ..everywhere(gateway) };
    [first(true), first(false)].into_iter().flatten().map(by)
}

/// Refuses options that are none, by name.
fn known(options: Option<&Options>, names: &[&str]) -> Result<(), String> {
    let mut keys = options.into_iter().flat_map(BTreeMap::keys);
    match keys.find(|key| !names.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) if names.is_empty() => Err(format!("a container has no option {key:?}")),
        Some(key) => Err(format!("unknown option {key:?}; there are {}", names.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use packet::VlanMode;
    use serde_json::{Value, json};

    use super::*;

    /// As podman asks.
    fn message() -> Value {
        json!({
            "container_id": "752947ff91f9",
            "container_name": "web",
            "port_mappings": [{ "container_port": 80, "host_port": 8080, "protocol": "tcp",
                                "host_ip": "", "range": 1 }],
            "network": {
                "name": "lab", "id": "2f259bab93aa", "driver": "uvala-netavark",
                "created": "2026-11-28T12:00:00Z", "network_interface": null,
                "dns_enabled": false, "ipv6_enabled": true, "internal": false,
                "ipam_options": { "driver": "host-local" },
                "options": { "switch": "vale1", "dir": "/run/x", "mtu": "1400",
                             "vlan": "access:7", "isolated": "true" },
                "subnets": [
                    { "subnet": "10.7.0.0/24", "gateway": "10.7.0.1", "lease_range": null },
                    { "subnet": "fd07::/64", "gateway": "fd07::1" },
                ],
                "routes": [
                    { "destination": "10.9.0.0/16", "gateway": "10.7.0.9", "metric": 5 },
                ],
            },
            "network_options": {
                "aliases": ["752947ff91f9"], "interface_name": "eth0", "options": null,
                "static_ips": ["10.7.0.2", "fd07::2"], "static_mac": "02:00:00:00:0a:0b",
            },
        })
    }

    fn plan(message: Value) -> Result<Plan, String> {
        let container: Container = serde_json::from_value(message).unwrap();
        container.plan("/run/netns/red")
    }

    fn by(to: &str, gateway: &str, metric: u32) -> Route {
        let by = Some(gateway.parse().unwrap());
        Route { to: to.parse().unwrap(), by, metric: Some(metric) }
    }

    #[test]
    fn test_a_container_gets_what_podman_says_of_it_and_of_its_network() {
        let container: Container = serde_json::from_value(message()).unwrap();
        assert_eq!(container.dir(), Some(PathBuf::from("/run/x")));
        assert!(container.port().unwrap().to_string().starts_with("vale1:n"));
        let Plan { host, settings, given, routes } = plan(message()).unwrap();
        let (ifname, netns) = (host.ifname.as_deref(), host.netns.as_deref());
        assert_eq!((ifname, netns, host.mtu), (Some("eth0"), Some("/run/netns/red"), Some(1400)));
        assert_eq!(host.mac.unwrap().to_string(), "02:00:00:00:0a:0b");
        let vlan: VlanMode = "access:7".parse().unwrap();
        assert_eq!((settings.vlan, settings.isolated), (Some(vlan), Some(true)));
        assert_eq!(settings.label.as_deref(), Some("web"));
        let given: Vec<_> = given.iter().map(|it| json!(it).to_string()).collect();
        assert_eq!(
            given,
            [
                r#"{"gateway":"10.7.0.1","ipnet":"10.7.0.2/24"}"#,
                r#"{"gateway":"fd07::1","ipnet":"fd07::2/64"}"#,
            ]
        );
        assert_eq!(
            routes,
            [
                by("10.9.0.0/16", "10.7.0.9", 5),
                by("0.0.0.0/0", "10.7.0.1", 101),
                by("::/0", "fd07::1", 101),
            ]
        );
    }

    #[test]
    fn test_a_network_may_have_little_or_no_way_out() {
        let mut internal = message();
        internal["network"]["internal"] = true.into();
        let Plan { given, routes, .. } = plan(internal).unwrap();
        assert!(given.iter().all(|it| it.gateway.is_none()));
        assert_eq!(routes.len(), 1, "{routes:?}");
        let mut less = message();
        less["network"]["options"] = json!({ "no_default_route": "true" });
        assert_eq!(plan(less.clone()).unwrap().routes.len(), 1);
        less["network"]["options"] = json!({ "metric": "7" });
        assert_eq!(plan(less.clone()).unwrap().routes[1], by("0.0.0.0/0", "10.7.0.1", 7));
        for key in ["options", "ipam_options", "subnets", "routes"] {
            less["network"][key] = Value::Null;
        }
        less["network_options"]["static_ips"] = Value::Null;
        less["network_options"]["static_mac"] = "".into();
        let container: Container = serde_json::from_value(less.clone()).unwrap();
        assert!(container.port().unwrap().to_string().starts_with("vale0:n"));
        let Plan { host, given, routes, .. } = plan(less).unwrap();
        assert!(host.mac.is_none() && given.is_empty() && routes.is_empty());
    }

    #[test]
    fn test_what_cannot_be_done_is_refused_by_name() {
        for (place, value, said) in [
            ("/network/options/vlna", json!("access:7"), "unknown option \"vlna\"; there are"),
            ("/network/options/vlan", json!("access:9999"), "vlan=access:9999: "),
            ("/network/options/mtu", json!("wide"), "mtu=wide: "),
            ("/network/options/isolated", json!("1"), "isolated=1: "),
            ("/network/options/switch", json!("eth0"), "switch=eth0: "),
            ("/network/network_interface", json!("eth0"), "--opt switch=vale0"),
            ("/network/ipam_options/driver", json!("dhcp"), "--ipam-driver dhcp"),
            ("/network/routes/0/route_type", json!("blackhole"), "--route 10.9.0.0/16: "),
            ("/network_options/options", json!({ "vlan": "access:7" }), "no option \"vlan\""),
            ("/network_options/interface_name", json!("a/b"), "a/b"),
            ("/network_options/static_mac", json!("x"), "static_mac: "),
            ("/network_options/static_ips/0", json!("10.8.0.2"), "10.8.0.2 is in no subnet"),
        ] {
            let (parent, key) = place.rsplit_once('/').unwrap();
            let mut message = message();
            let parent = message.pointer_mut(parent).unwrap();
            match key.parse::<usize>() {
                Ok(at) => parent[at] = value,
                Err(_) => parent[key] = value,
            }
            let error = plan(message).unwrap_err();
            assert!(error.contains(said), "{place}: {error}");
        }
    }
}
