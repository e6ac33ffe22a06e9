//! The port, by uvala's control socket: what it is, which stations its switch has on other ports,
//! and what this process sets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use client::control::{Connection, ControlError};
use client::listing;
use packet::neigh::Neighbour;
use packet::{MacAddr, VlanId};
use protocol::name::PortName;
use protocol::{
    Change, EventsQuery, ExternLearn, ExternNeigh, ExternRemote, FdbEntry, FdbList, FdbRequest,
    NeighEntry, NeighList, PortInfo, PortRef, PortRequest, PortSet, PortSettings, REMOTES_MAX,
    Reply, Request, VxlanChange, VxlanInfo, VxlanRemote, VxlanStation,
};

use crate::plan::{Station, Todo};

/// Stations or remotes in one call, whose message has 64 KiB.
const STATIONS_IN_CALL: usize = 800;
/// IP addresses in one call.
const NEIGHBOURS_IN_CALL: usize = 400;

/// A network of the port: its only one, or that of a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The number of the network.
    pub vni: u32,
    /// This host's address in it.
    pub local: IpAddr,
    /// The VLAN that it is in the switch.
    pub vlan: VlanId,
    /// The port has a network for each VLAN.
    pub is_of_vlan: bool,
}

impl Network {
    /// The VLAN as calls name it.
    fn named(&self) -> Option<VlanId> {
        self.is_of_vlan.then_some(self.vlan)
    }

    /// A host as a remote of this network.
    fn remote(&self, address: IpAddr) -> ExternRemote {
        ExternRemote { vlan: self.named(), address }
    }

    /// Whether a remote of the port is one of this network.
    fn is_of(&self, remote: &VxlanRemote) -> bool {
        remote.vlans.is_empty() || remote.vlans.contains(&self.vlan.get())
    }
}

/// What events say of the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Stations have come, gone or moved.
    pub stations: bool,
    /// The port itself is gone, or another.
    pub port: bool,
}

/// The port as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The operator's, and those of a routing daemon.
    remotes: Vec<VxlanRemote>,
    /// How often stations of this host have told it of an IP address; `None`: it does not listen.
    pub changes: Option<u64>,
}

impl Shown {
    /// The remotes of a network.
    #[must_use]
    pub fn remotes(&self, network: &Network) -> BTreeSet<IpAddr> {
        self.remotes.iter().filter(|it| network.is_of(it)).map(|it| it.address).collect()
    }
}

/// What the switch has of stations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stations {
    /// Stations on other ports.
    pub here: Vec<Station>,
    /// Stations that this process, or one before it, has named behind the port.
    pub named: BTreeSet<MacAddr>,
}

/// The IP addresses of stations in a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Addresses of stations of this host.
    pub here: Vec<Neighbour>,
    /// Addresses behind remotes, which the port answers for.
    pub answered: Vec<Neighbour>,
}

/// A daemon and a port of it.
#[derive(Debug)]
pub struct Fabric {
    port: PortName,
    networks: Vec<Network>,
    /// The remotes of the port when it was opened.
    remotes: Vec<VxlanRemote>,
    calls: Connection,
    events: Connection,
}

impl Fabric {
    /// Connects, and marks the stations that an earlier process has named. What that has set for
    /// VLANs that are none of the port's any more is taken back.
    ///
    /// # Errors
    /// There is no daemon, or no such port of kind vxlan.
    pub fn open(dir: Option<&Path>, port: &PortName) -> anyhow::Result<Self> {
        let (calls, events) = (Connection::open(dir)?, Connection::open(dir)?);
        for connection in [&calls, &events] {
            connection.hello("uvala-evpn")?;
        }
        events.listen(EventsQuery { switch: Some(port.switch().clone()) })?;
        let info = show(&calls, port)?;
        let (networks, vxlan) = networks_of(&info)?;
        let remotes = vxlan.remotes.clone();
        let fabric = Self { port: port.clone(), networks, remotes, calls, events };
        fabric.learn(&fabric.networks[0], |learn| learn.mark = true)?;
        for some in strays(&fabric.remotes, &fabric.networks).chunks(STATIONS_IN_CALL) {
            fabric.set_remotes(Vec::new(), some.to_vec())?;
        }
        Ok(fabric)
    }

    /// The networks of the port, of which there is one at least.
    #[must_use]
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }

    /// Remotes of a network that this process, or one before it, had set when it connected.
    #[must_use]
    pub fn found(&self, network: &Network) -> Vec<IpAddr> {
        let found = self.remotes.iter().filter(|it| it.is_extern && network.is_of(it));
        found.map(|it| it.address).collect()
    }

    /// The number of remotes that it may set.
    #[must_use]
    pub fn room(&self) -> usize {
        REMOTES_MAX.saturating_sub(self.remotes.iter().filter(|it| !it.is_extern).count())
    }

    /// The stations that the switch has in the VLAN of each network.
    ///
    /// # Errors
    /// The daemon is gone, or refuses.
    pub fn stations(&self) -> Result<BTreeMap<VlanId, Stations>, ControlError> {
        let switch = self.port.switch();
        let ask = |from| Request::Fdb(FdbRequest::List(FdbList { switch: switch.clone(), from }));
        let entries: Vec<FdbEntry> = listing::all(|request| self.calls.call(request), ask)?;
        Ok(stations_of(&entries, &self.port, &self.networks))
    }

    /// Looks at the port, without its lists.
    ///
    /// # Errors
    /// The daemon is gone, or the port is another one.
    pub fn look(&self) -> anyhow::Result<Shown> {
        let info = show(&self.calls, &self.port)?;
        let (networks, vxlan) = networks_of(&info)?;
        if networks != self.networks {
            bail!("the port has changed");
        }
        let remotes = vxlan.remotes.clone();
        Ok(Shown { remotes, changes: vxlan.neigh.map(|neigh| neigh.changes) })
    }

    /// The IP addresses of stations in the VLAN of each network.
    ///
    /// # Errors
    /// The daemon is gone, or the port does not listen to addresses.
    pub fn addresses(&self) -> Result<BTreeMap<VlanId, Addresses>, ControlError> {
        let ask =
            |from| Request::Fdb(FdbRequest::Neigh(NeighList { port: self.port.clone(), from }));
        let entries: Vec<NeighEntry> = listing::all(|request| self.calls.call(request), ask)?;
        Ok(addresses_of(&entries, &self.networks))
    }

    /// Reads what makes [`AsFd`] readable.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn news(&self) -> Result<News, ControlError> {
        let events = self.events.events(Duration::ZERO)?;
        let mut news = News { stations: events.lost > 0, port: events.lost > 0 };
        for event in &events.events {
            match &event.change {
                // What this process sets itself is no news.
                Change::FdbAdded { port, .. } | Change::FdbDeleted { port, .. } => {
                    news.stations |= port != &self.port;
                }
                Change::PortAdded { port, .. }
                | Change::PortDeleted { port }
                | Change::PortChanged { port }
                    if port == &self.port =>
                {
                    news.port = true;
                }
                Change::FdbMoved { .. }
                | Change::PortDeleted { .. }
                | Change::ClientLeft { .. }
                | Change::Link { .. } => news.stations = true,
                Change::SwitchDeleted { .. } => news.port = true,
                _ => {}
            }
        }
        Ok(news)
    }

    /// Does what is to be done for a network of the port.
    ///
    /// # Errors
    /// The daemon is gone, or refuses.
    pub fn change(&self, network: &Network, todo: &Todo) -> Result<(), ControlError> {
        for some in todo.del_neighbours.chunks(NEIGHBOURS_IN_CALL) {
            self.learn(network, |learn| learn.del_neigh = some.to_vec())?;
        }
        if !todo.add_remotes.is_empty() || !todo.del_remotes.is_empty() {
            let [add, del] = [&todo.add_remotes, &todo.del_remotes]
                .map(|hosts| hosts.iter().map(|&host| network.remote(host)).collect());
            self.set_remotes(add, del)?;
        }
        for some in todo.add_stations.chunks(STATIONS_IN_CALL) {
            let stations = some.iter().map(|&(mac, remote)| VxlanStation { mac, remote });
            self.learn(network, |learn| learn.add = stations.collect())?;
        }
        for some in todo.del_stations.chunks(STATIONS_IN_CALL) {
            self.learn(network, |learn| learn.del = some.to_vec())?;
        }
        for some in todo.add_neighbours.chunks(NEIGHBOURS_IN_CALL) {
            let named = some.iter().map(|it| ExternNeigh {
                address: it.ip,
                mac: it.mac,
                router: it.is_router,
            });
            self.learn(network, |learn| learn.add_neigh = named.collect())?;
        }
        Ok(())
    }

    fn set_remotes(
        &self,
        add_extern_remote: Vec<ExternRemote>,
        del_extern_remote: Vec<ExternRemote>,
    ) -> Result<(), ControlError> {
        let vxlan = VxlanChange { add_extern_remote, del_extern_remote, ..VxlanChange::default() };
        let (port, settings) = (self.port.clone(), PortSettings::default());
        let set = PortSet { port, settings, vxlan: Some(Box::new(vxlan)) };
        done(self.calls.call(Request::Port(PortRequest::Set(Box::new(set))))?)
    }

    /// Takes back the stations that no route has confirmed since [`Fabric::open`].
    ///
    /// # Errors
    /// The daemon is gone, or refuses.
    pub fn sweep(&self) -> Result<(), ControlError> {
        self.learn(&self.networks[0], |learn| learn.sweep = true)
    }

    fn learn(
        &self,
        network: &Network,
        what: impl FnOnce(&mut ExternLearn),
    ) -> Result<(), ControlError> {
        let mut learn = ExternLearn {
            port: self.port.clone(),
            vlan: network.named().map(VlanId::get),
            add: Vec::new(),
            del: Vec::new(),
            add_neigh: Vec::new(),
            del_neigh: Vec::new(),
            mark: false,
            sweep: false,
        };
        what(&mut learn);
        done(self.calls.call(Request::Fdb(FdbRequest::ExternLearn(learn)))?)
    }
}

impl AsFd for Fabric {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// The networks of a port, and its tunnel: of a trunk, those of the VLANs that it carries.
fn networks_of(info: &PortInfo) -> anyhow::Result<(Vec<Network>, &VxlanInfo)> {
    let port = &info.port;
    let Some(vxlan) = info.vxlan.as_deref() else {
        bail!(
            "{port} is of kind {}, not vxlan; add one: \
             uvala port add {port} --kind vxlan --vni 100 --local IP",
            info.kind.name()
        );
    };
    let (mode, local) = (info.settings.vlan.clone().unwrap_or_default(), vxlan.local);
    if let Some(vni) = vxlan.vni {
        let vlan = mode.untagged().context(
            "the port has no VLAN without a tag: uvala port set … --vlan trunk:…,native=VLAN",
        )?;
        return Ok((vec![Network { vni, local, vlan, is_of_vlan: false }], vxlan));
    }
    let carried = vxlan.vlan_vni.iter().filter(|it| mode.carries(it.vlan));
    let networks: Vec<Network> =
        carried.map(|it| Network { vni: it.vni, local, vlan: it.vlan, is_of_vlan: true }).collect();
    if networks.is_empty() {
        bail!("the port carries no VLAN of its vlan_vni: uvala port set … --vlan trunk:VLAN,…");
    }
    Ok((networks, vxlan))
}

/// Remotes of a routing daemon in VLANs of which the port has no network.
fn strays(remotes: &[VxlanRemote], networks: &[Network]) -> Vec<ExternRemote> {
    let is_stray = |vlan: &VlanId| !networks.iter().any(|it| it.vlan == *vlan);
    let found = remotes.iter().filter(|it| it.is_extern);
    let all = found.flat_map(|it| it.vlans.iter().map(|vlan| (*vlan, it.address)));
    let stray = all.filter_map(|(vlan, address)| {
        let vlan = VlanId::new(vlan).filter(is_stray)?;
        Some(ExternRemote { vlan: Some(vlan), address })
    });
    stray.collect()
}

/// The stations in the VLAN of each network: those on other ports than this one, and those that a
/// routing daemon has named behind it.
fn stations_of(
    entries: &[FdbEntry],
    port: &PortName,
    networks: &[Network],
) -> BTreeMap<VlanId, Stations> {
    let mut all: BTreeMap<VlanId, Stations> =
        networks.iter().map(|it| (it.vlan, Stations::default())).collect();
    for entry in entries {
        let vlan = VlanId::new(entry.vlan);
        let Some(stations) = vlan.and_then(|vlan| all.get_mut(&vlan)) else { continue };
        if entry.port != *port {
            let (mac, is_static) = (entry.mac, entry.is_static);
            stations.here.push(Station { mac, is_static });
        } else if entry.extern_learn {
            stations.named.insert(entry.mac);
        }
    }
    all
}

/// The IP addresses in the VLAN of each network. Where the port has one network, entries name none.
fn addresses_of(entries: &[NeighEntry], networks: &[Network]) -> BTreeMap<VlanId, Addresses> {
    let of = |it: &Network| (it.named().map(VlanId::get), it.vlan);
    let vlans: BTreeMap<_, _> = networks.iter().map(of).collect();
    let mut all = BTreeMap::<VlanId, Addresses>::new();
    for entry in entries {
        let Some(vlan) = vlans.get(&entry.vlan) else { continue };
        let addresses = all.entry(*vlan).or_default();
        let list = match entry.extern_learn {
            true => &mut addresses.answered,
            false => &mut addresses.here,
        };
        list.push(Neighbour { ip: entry.address, mac: entry.mac, is_router: entry.router });
    }
    all
}

fn show(calls: &Connection, port: &PortName) -> Result<PortInfo, ControlError> {
    match calls.call(Request::Port(PortRequest::Show(PortRef { port: port.clone() })))? {
        Reply::Port(info) => Ok(info),
        other => Err(client::control::unexpected(&other)),
    }
}

fn done(reply: Reply) -> Result<(), ControlError> {
    match reply {
        Reply::Done => Ok(()),
        other => Err(client::control::unexpected(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(vlan: u16) -> Network {
        let (vni, local) = (1000 + u32::from(vlan), IpAddr::from([10, 0, 0, 1]));
        Network { vni, local, vlan: VlanId::new(vlan).expect("a VLAN"), is_of_vlan: true }
    }

    fn remote(last: u8, is_extern: bool, vlans: &[u16]) -> VxlanRemote {
        let address = IpAddr::from([10, 0, 0, last]);
        VxlanRemote { address, learned: 0, is_extern, vlans: vlans.to_vec() }
    }

    #[test]
    fn remotes_are_of_the_networks_that_they_are_in() {
        let (three, four) = (remote(3, true, &[10, 30]), remote(4, true, &[20]));
        let remotes = vec![remote(2, false, &[]), three, four];
        let shown = Shown { remotes: remotes.clone(), changes: None };
        let of = |vlan| {
            let remotes = shown.remotes(&network(vlan)).into_iter();
            remotes.map(|it| it.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!([10, 20].map(of), ["10.0.0.2 10.0.0.3", "10.0.0.2 10.0.0.4"]);
        let strays = strays(&remotes, &[network(10), network(20)]);
        assert_eq!(strays.iter().map(ToString::to_string).collect::<Vec<_>>(), ["30=10.0.0.3"]);
        let alone = Network { is_of_vlan: false, ..network(10) };
        let texts = [network(10), alone].map(|it| it.remote(remotes[0].address).to_string());
        assert_eq!(texts, ["10=10.0.0.2", "10.0.0.2"]);
    }

    #[test]
    fn an_address_is_in_the_network_of_its_vlan() {
        let entry = |vlan, last: u8, extern_learn| NeighEntry {
            vlan,
            address: IpAddr::from([192, 168, 7, last]),
            mac: MacAddr::new([2, 0, 0, 0, 0, last]),
            router: false,
            extern_learn,
            disputed: false,
            age_s: 0,
        };
        let lasts =
            |list: &[Neighbour]| list.iter().map(|it| it.mac.octets()[5]).collect::<Vec<_>>();
        let entries = [(10, 1, false), (10, 2, true), (20, 3, true), (30, 4, false)];
        let entries = entries.map(|(vlan, last, learned)| entry(Some(vlan), last, learned));
        let all = addresses_of(&entries, &[network(10), network(20)]);
        let shown = all.values().map(|it| (lasts(&it.here), lasts(&it.answered)));
        assert_eq!(shown.collect::<Vec<_>>(), [(vec![1], vec![2]), (vec![], vec![3])]);
        let alone = Network { is_of_vlan: false, ..network(10) };
        let all = addresses_of(&[entry(None, 5, false)], &[alone]);
        assert_eq!(lasts(&all[&alone.vlan].here), [5]);
    }

    #[test]
    fn a_station_is_in_the_network_of_its_vlan() {
        let entry = |last: u8, vlan: u16, port: &str, extern_learn: bool| FdbEntry {
            mac: MacAddr::new([2, 0, 0, 0, 0, last]),
            vlan,
            port: port.parse().expect("a name"),
            is_static: last == 7,
            extern_learn,
            age_s: 0,
        };
        let entries = [
            entry(7, 10, "vale0:a", false),
            entry(7, 20, "vale0:fabric", true),
            entry(8, 20, "vale0:fabric", false),
            entry(9, 30, "vale0:a", false),
        ];
        let port = "vale0:fabric".parse().expect("a name");
        let all = stations_of(&entries, &port, &[network(10), network(20)]);
        let station = entries[0].mac;
        let here = Stations {
            here: vec![Station { mac: station, is_static: true }],
            named: BTreeSet::new(),
        };
        let there = Stations { here: Vec::new(), named: [station].into() };
        let expected = [(network(10).vlan, here), (network(20).vlan, there)];
        assert_eq!(all, BTreeMap::from(expected));
    }
}
