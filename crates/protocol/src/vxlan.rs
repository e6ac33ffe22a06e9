//! Hosts on an IP network behind a port: VXLAN (RFC 7348).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use packet::vxlan::{UDP_PORT, Vni};
use packet::{MacAddr, VlanId, VlanSet};
use serde::{Deserialize, Serialize};

use super::values::ValueError;
use crate::name::PortName;

/// Most remotes of a port.
pub const REMOTES_MAX: usize = 256;
/// Most virtual networks of one local address and UDP port.
pub const VNIS_MAX: usize = 256;
/// Most remotes that a routing daemon may find, each counted once for each of its VLANs: what
/// `port_show` says of them fits into a message.
pub const EXTERN_REMOTES_MAX: usize = 2048;
/// Most static entries of a port's table.
pub const VXLAN_FDB_MAX: usize = 256;
/// Most stations that a routing daemon may name behind the remotes of a port.
pub const EXTERN_LEARN_MAX: usize = 65_536;
/// Most neighbours that a routing daemon may name behind the remotes of a port.
pub const EXTERN_NEIGH_MAX: usize = 65_536;
/// What every tunnel has.
pub(crate) const VXLAN_NEEDS: &str = "kind vxlan needs vni, the number of the virtual network (or \
                                      vlan_vni, one for each VLAN), and local, an address of this \
                                      host: --vni 100 --local 10.0.0.1";

/// The tunnel of a port of kind [`Vxlan`](super::PortKind::Vxlan).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Vxlan {
    /// The number of the virtual network, 24 bits. A port with `vlan_vni` has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// For a trunk: the virtual networks of its VLANs, whose frames have no tag in the tunnel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vlan_vni: Vec<VlanVni>,
    /// The daemon's own address, which one of the host's interfaces has.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub local: IpAddr,
    /// The other hosts: floods go to all of them, and datagrams of others are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub remote: Vec<IpAddr>,
    /// UDP port of the daemon and of all remotes; by default 4789.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<u16>,
    /// MTU of the frames inside; by default, what the routes to the remotes leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Time to live, or hop limit, of the packets; by default 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u8>,
    /// Differentiated services code point of the packets, 6 bits; by default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<u8>,
    /// Whether routers may not fragment the packets; by default, they may not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub df: Option<bool>,
    /// The port answers ARP requests and neighbour solicitations for stations behind remotes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub neigh_suppress: bool,
    /// Static entries: stations, each behind one of the remotes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fdb: Vec<VxlanStation>,
    /// Remotes that a routing daemon has found, which are no part of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extern_remote: Vec<ExternRemote>,
}

/// What an operator says of a tunnel, in a command or a file: anything may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of a tunnel")]
pub struct VxlanKeys {
    pub vni: Option<u32>,
    pub vlan_vni: Vec<VlanVni>,
    pub local: Option<IpAddr>,
    pub remote: Vec<IpAddr>,
    pub dst_port: Option<u16>,
    pub mtu: Option<u32>,
    pub ttl: Option<u8>,
    pub dscp: Option<u8>,
    pub df: Option<bool>,
    pub neigh_suppress: Option<bool>,
    pub fdb: Vec<VxlanStation>,
}

impl VxlanKeys {
    /// The tunnel. `None`: nothing is said of one, but perhaps `mtu`, which other kinds have, too.
    ///
    /// # Errors
    /// VNI or local address is missing.
    pub fn tunnel(self) -> Result<Option<Vxlan>, String> {
        if self == (Self { mtu: self.mtu, ..Self::default() }) {
            return Ok(None);
        }
        let Self { vni, vlan_vni, local, remote, dst_port, mtu, ttl, dscp, df, .. } = self;
        let local = local.filter(|_| vni.is_some() || !vlan_vni.is_empty());
        Ok(Some(Vxlan {
            vni,
            vlan_vni,
            local: local.ok_or(VXLAN_NEEDS)?,
            remote,
            dst_port,
            mtu,
            ttl,
            dscp,
            df,
            neigh_suppress: self.neigh_suppress.unwrap_or(false),
            fdb: self.fdb,
            extern_remote: Vec::new(),
        }))
    }
}

impl Vxlan {
    /// The UDP port of the daemon and of all remotes.
    #[must_use]
    pub fn udp_port(&self) -> u16 {
        self.dst_port.unwrap_or(UDP_PORT)
    }

    /// Where datagrams arrive. Ports with one address have different virtual networks.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.local, self.udp_port())
    }

    /// The numbers of the virtual networks.
    pub fn vnis(&self) -> impl Iterator<Item = u32> + '_ {
        self.vni.into_iter().chain(self.vlan_vni.iter().map(|it| it.vni))
    }

    /// Time to live, or hop limit, of the packets.
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        self.ttl.unwrap_or(64)
    }

    /// The tunnel with its defaults, and its lists in order: equal ones look equal.
    #[must_use]
    pub fn normal(&self) -> Self {
        let mut normal = Self {
            dst_port: Some(self.udp_port()),
            ttl: Some(self.hop_limit()),
            dscp: self.dscp.or(Some(0)),
            df: self.df.or(Some(true)),
            ..self.clone()
        };
        normal.vlan_vni.sort_unstable_by_key(|it| it.vlan);
        normal.remote.sort_unstable();
        normal.extern_remote.sort_unstable();
        normal.fdb.sort_unstable_by_key(|station| station.mac);
        normal
    }

    /// What a [`VxlanChange`] leaves as it is.
    #[must_use]
    pub fn fixed(&self) -> Self {
        let (vlan_vni, remote, fdb) = (Vec::new(), Vec::new(), Vec::new());
        Self { vlan_vni, remote, fdb, neigh_suppress: false, ..self.configured() }
    }

    /// The tunnel as an operator has made it.
    #[must_use]
    pub fn configured(&self) -> Self {
        Self { extern_remote: Vec::new(), ..self.clone() }
    }

    /// The remotes of the operator, and those of a routing daemon, each once.
    #[must_use]
    pub fn all_remotes(&self) -> Vec<IpAddr> {
        let mut seen = BTreeSet::new();
        let more = self.extern_remote.iter().map(|it| it.address);
        self.remote.iter().copied().chain(more).filter(|remote| seen.insert(*remote)).collect()
    }

    /// Which remotes are in which VLANs: the operator's in all, those of a routing daemon in those
    /// that it names.
    #[must_use]
    pub fn remote_vlans(&self) -> RemoteVlans {
        let mut remotes: BTreeMap<IpAddr, Option<VlanSet>> =
            self.remote.iter().map(|&remote| (remote, None)).collect();
        for &ExternRemote { vlan, address } in &self.extern_remote {
            let Some(vlan) = vlan else {
                remotes.insert(address, None);
                continue;
            };
            let vlans = remotes.entry(address).or_insert_with(|| Some(VlanSet::none()));
            if let Some(vlans) = vlans {
                vlans.insert(vlan);
            }
        }
        RemoteVlans(remotes)
    }

    /// The VLANs that have the same network in another tunnel.
    #[must_use]
    pub fn same_vlans(&self, other: &Self) -> VlanSet {
        let same = self.vlan_vni.iter().filter(|it| other.vlan_vni.contains(it));
        same.map(|it| it.vlan).collect()
    }
}

/// The remotes of a tunnel, each with the VLANs whose floods it gets, and into which it sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteVlans(BTreeMap<IpAddr, Option<VlanSet>>);

impl RemoteVlans {
    /// The VLANs of a remote; `None`: all.
    #[must_use]
    pub fn vlans(&self, remote: IpAddr) -> Option<&VlanSet> {
        self.0.get(&remote)?.as_ref()
    }

    /// Whether the tunnel has this remote in this VLAN.
    #[must_use]
    pub fn has(&self, remote: IpAddr, vlan: VlanId) -> bool {
        let is_in = |vlans: &Option<VlanSet>| vlans.as_ref().is_none_or(|it| it.contains(vlan));
        self.0.get(&remote).is_some_and(is_in)
    }
}

/// A VLAN and its virtual network, in JSON as the text `"10:1010"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VlanVni {
    /// The VLAN.
    pub vlan: VlanId,
    /// The number of the virtual network, 24 bits.
    pub vni: u32,
}

impl FromStr for VlanVni {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parsed = text.split_once(':').and_then(|(vlan, vni)| {
            let vni = vni.parse().ok().and_then(Vni::new)?.get();
            Some(Self { vlan: vlan.parse().ok()?, vni })
        });
        parsed.ok_or_else(|| ValueError::VlanVni(text.escape_debug().to_string()))
    }
}

impl fmt::Display for VlanVni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.vlan, self.vni)
    }
}

packet::text_form!(VlanVni);

/// A remote that a routing daemon has found, in JSON as the text `"10.0.0.2"`, or
/// `"10=10.0.0.2"` where it gets the floods of one VLAN of a port with `vlan_vni`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExternRemote {
    /// The VLAN; `None`: all.
    pub vlan: Option<VlanId>,
    /// The host's address.
    pub address: IpAddr,
}

impl FromStr for ExternRemote {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parsed = match text.split_once('=') {
            None => text.parse().ok().map(|address| Self { vlan: None, address }),
            Some((vlan, address)) => vlan.parse().ok().and_then(|vlan| {
                let address = address.parse().ok()?;
                Some(Self { vlan: Some(vlan), address })
            }),
        };
        parsed.ok_or_else(|| ValueError::ExternRemote(text.escape_debug().to_string()))
    }
}

impl fmt::Display for ExternRemote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vlan {
            None => self.address.fmt(f),
            Some(vlan) => write!(f, "{vlan}={}", self.address),
        }
    }
}

packet::text_form!(ExternRemote);

/// A station behind a remote, in JSON as the text `"02:00:00:00:00:01=10.0.0.2"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VxlanStation {
    /// The station's address.
    pub mac: MacAddr,
    /// The remote.
    pub remote: IpAddr,
}

impl FromStr for VxlanStation {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parsed = text.split_once('=').and_then(|(mac, remote)| {
            Some(Self { mac: mac.parse().ok()?, remote: remote.parse().ok()? })
        });
        parsed.ok_or_else(|| ValueError::VxlanStation(text.escape_debug().to_string()))
    }
}

impl fmt::Display for VxlanStation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.mac, self.remote)
    }
}

packet::text_form!(VxlanStation);

/// Changes the remotes, the static entries and the VLANs of a port, and whether it answers for
/// stations behind remotes. The daemon makes all changes or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VxlanChange {
    /// The whole tunnel: its remotes, static entries, `vlan_vni` and `neigh_suppress` become these;
    /// the rest must be what it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all: Option<Vxlan>,
    /// More remotes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add_remote: Vec<IpAddr>,
    /// Remotes that go, with their static entries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub del_remote: Vec<IpAddr>,
    /// More VLANs with a virtual network; one that has another gets this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add_vlan_vni: Vec<VlanVni>,
    /// VLANs that go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub del_vlan_vni: Vec<u16>,
    /// More static entries; one for a station that has an entry replaces it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add_fdb: Vec<VxlanStation>,
    /// Stations whose static entries go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub del_fdb: Vec<MacAddr>,
    /// Whether the port answers for stations behind remotes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neigh_suppress: Option<bool>,
    /// More remotes that a routing daemon has found. The operator's stay what they are, with or
    /// without them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add_extern_remote: Vec<ExternRemote>,
    /// Remotes of a routing daemon that go, with the stations that it has named behind them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub del_extern_remote: Vec<ExternRemote>,
}

/// Names stations behind the remotes of a port, as a routing daemon has learned them. The port and
/// its switch know them at once, and until they are taken back; a station that is heard on another
/// port is there. Nothing of this is saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternLearn {
    /// The port, of kind vxlan.
    pub port: PortName,
    /// For a port with `vlan_vni`, which needs it: the VLAN of the stations and IP addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// More stations; one for a station that has a remote gives it another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<VxlanStation>,
    /// Stations that go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub del: Vec<MacAddr>,
    /// More IP addresses of stations; one that has a station gets another. The port takes them
    /// with `neigh_suppress` only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add_neigh: Vec<ExternNeigh>,
    /// IP addresses that go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub del_neigh: Vec<IpAddr>,
    /// Marks all stations, of whatever VLAN, and neighbours as old, before the others are added.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mark: bool,
    /// Takes back those that were marked and not added since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sweep: bool,
}

/// An IP address of a station behind a remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternNeigh {
    /// The address.
    pub address: IpAddr,
    /// The station.
    pub mac: MacAddr,
    /// The station is a router, which neighbour advertisements say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub router: bool,
}

/// Which neighbours to list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighList {
    /// The port, of kind vxlan with `neigh_suppress`.
    pub port: PortName,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// An IP address of a station, as a port of kind vxlan knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NeighEntry {
    /// The VLAN in which the station has it, of a port with `vlan_vni`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The address.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub address: IpAddr,
    /// The station.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub mac: MacAddr,
    /// The station is a router.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub router: bool,
    /// A routing daemon has named it, behind a remote; else it is a station of this host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extern_learn: bool,
    /// Another host's frame has named another station, so the port does not answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disputed: bool,
    /// Seconds since a station of this host has said that it has the address.
    pub age_s: u32,
}

/// What a port with `neigh_suppress` knows and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NeighInfo {
    /// Addresses of stations of this host.
    pub local: u32,
    /// Addresses that a routing daemon has named.
    pub extern_learned: u32,
    /// How often an address of this host has come, gone or got another station.
    pub changes: u64,
    /// Requests that the port has answered, and not sent to the remotes.
    pub suppressed: u64,
    /// Addresses of stations of this host that had no room.
    pub refused: u64,
}

/// A tunnel as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct VxlanInfo {
    /// The number of the virtual network, unless each VLAN has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// The virtual networks of VLANs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vlan_vni: Vec<VlanVni>,
    /// The daemon's own address.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub local: IpAddr,
    /// UDP port of the daemon and of all remotes.
    pub dst_port: u16,
    /// MTU of the frames inside: as it was set, or what the routes to the remotes leave now. `None`
    /// while there is no route, and no remote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// MTU that the routes to the remotes leave to frames inside. `None` while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u32>,
    /// Time to live, or hop limit, of the packets.
    pub ttl: u8,
    /// Differentiated services code point of the packets.
    pub dscp: u8,
    /// Whether routers may not fragment the packets.
    pub df: bool,
    /// The other hosts.
    pub remotes: Vec<VxlanRemote>,
    /// Static entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fdb: Vec<VxlanStation>,
    /// The number of stations that a routing daemon has named.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub extern_learned: u32,
    /// With `neigh_suppress`: what the port knows of neighbours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neigh: Option<NeighInfo>,
    /// Why the port carries nothing, and what helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A remote as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct VxlanRemote {
    /// The host's address.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub address: IpAddr,
    /// Stations that the port has learned behind it.
    pub learned: u32,
    /// A routing daemon has found it, and no operator has named it.
    #[serde(rename = "extern", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_extern: bool,
    /// The VLANs whose floods it gets, unless it gets all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vlans: Vec<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_has_a_network_of_24_bits() {
        for good in ["1:0", "10:1010", "4094:16777215"] {
            assert_eq!(good.parse::<VlanVni>().unwrap().to_string(), good);
        }
        for bad in ["", "10", "0:1", "4095:1", "10:16777216", "10:x", "1010=10"] {
            let error = bad.parse::<VlanVni>().unwrap_err().to_string();
            assert!(error.contains("VLAN:VNI"), "{error}");
        }
    }

    #[test]
    fn a_remote_of_a_routing_daemon_has_a_vlan_or_all() {
        for good in ["10.0.0.2", "fd00::2", "10=10.0.0.2", "4094=fd00::2"] {
            assert_eq!(good.parse::<ExternRemote>().unwrap().to_string(), good);
        }
        for bad in ["", "10", "0=10.0.0.2", "10=", "=10.0.0.2", "10.0.0.2=10"] {
            let error = bad.parse::<ExternRemote>().unwrap_err().to_string();
            assert!(error.contains("VLAN=REMOTE"), "{error}");
        }
    }

    #[test]
    fn the_operators_remotes_are_in_all_vlans_and_others_in_those_that_are_named() {
        let fields = r#"{"vlan_vni":["10:1010","20:1020"],"local":"10.0.0.1",
            "remote":["10.0.0.2"],"extern_remote":["10=10.0.0.2","10=10.0.0.3","20=10.0.0.3",
            "20=10.0.0.4","10.0.0.5","10=10.0.0.5"]}"#;
        let tunnel: Vxlan = serde_json::from_str(fields).unwrap();
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        assert_eq!(tunnel.all_remotes(), [2, 3, 4, 5].map(ip));
        let remotes = tunnel.remote_vlans();
        let of = |vlan| {
            let vlan = VlanId::new(vlan).unwrap();
            (1..=6).filter(|&last| remotes.has(ip(last), vlan)).collect::<Vec<u8>>()
        };
        assert_eq!([10, 20, 30].map(of), [vec![2, 3, 5], vec![2, 3, 4, 5], vec![2, 5]]);
        assert_eq!(remotes.vlans(ip(3)).map(ToString::to_string).as_deref(), Some("10,20"));
        assert_eq!(remotes.vlans(ip(2)), None);
        let vlan_vni = ["10:7", "20:1020", "30:1010"].map(|it| it.parse().unwrap()).to_vec();
        let other = Vxlan { vlan_vni, ..tunnel.clone() };
        assert_eq!(tunnel.same_vlans(&other).to_string(), "20");
    }

    #[test]
    fn a_station_is_an_address_and_a_remote() {
        for good in ["02:00:00:00:00:01=10.0.0.2", "02:00:00:00:00:01=fd00::2"] {
            assert_eq!(good.parse::<VxlanStation>().unwrap().to_string(), good);
        }
        for bad in ["", "02:00:00:00:00:01", "02:00:00:00:00:01=x", "x=10.0.0.2", "=10.0.0.2"] {
            let error = bad.parse::<VxlanStation>().unwrap_err().to_string();
            assert!(error.contains("MAC=REMOTE"), "{error}");
        }
    }
}
