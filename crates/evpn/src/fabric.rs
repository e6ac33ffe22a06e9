//! The port, by uvala's control socket: what it is, which stations its switch has on other ports,
//! and what this process sets.

use std::collections::BTreeSet;
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
    Change, EventsQuery, ExternLearn, ExternNeigh, FdbEntry, FdbList, FdbRequest, NeighEntry,
    NeighList, PortInfo, PortKind, PortRef, PortRequest, PortSet, PortSettings, REMOTES_MAX, Reply,
    Request, Vxlan, VxlanChange, VxlanInfo, VxlanStation, check,
};

use crate::plan::{Station, Todo};

/// Stations in one call, whose message has 64 KiB.
const STATIONS_IN_CALL: usize = 800;
/// IP addresses in one call.
const NEIGHBOURS_IN_CALL: usize = 400;

/// What the network is, as the port has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The number of the network.
    pub vni: u32,
    /// This host's address in it.
    pub local: IpAddr,
    /// The VLAN that it is in the switch.
    pub vlan: VlanId,
}

impl Network {
    /// Whether the port can have this remote.
    #[must_use]
    pub fn has_remote(&self, host: IpAddr) -> bool {
        let Self { vni, local, .. } = *self;
        let tunnel = Vxlan {
            vni: Some(vni),
            vlan_vni: Vec::new(),
            local,
            remote: vec![host],
            dst_port: None,
            mtu: None,
            ttl: None,
            dscp: None,
            df: None,
            neigh_suppress: false,
            fdb: Vec::new(),
            extern_remote: Vec::new(),
        };
        check::vxlan(PortKind::Vxlan, Some(&tunnel)).is_ok()
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
    /// Remotes, whose ever.
    pub remotes: BTreeSet<IpAddr>,
    /// How often stations of this host have told it of an IP address; `None`: it does not listen.
    pub changes: Option<u64>,
}

/// What the switch has of stations.
#[derive(Clone, Debug, Default)]
pub struct Stations {
    /// Stations on other ports.
    pub here: Vec<Station>,
    /// Stations that this process, or one before it, has named behind the port.
    pub named: BTreeSet<MacAddr>,
}

/// A daemon and a port of it.
#[derive(Debug)]
pub struct Fabric {
    port: PortName,
    network: Network,
    /// Remotes of the operator.
    fixed: Vec<IpAddr>,
    /// Remotes that this process, or one before it, has set.
    found: Vec<IpAddr>,
    calls: Connection,
    events: Connection,
}

impl Fabric {
    /// Connects, and marks the stations that an earlier process has named.
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
        let (network, vxlan) = network_of(&info)?;
        let remotes = |is_extern| {
            let those = vxlan.remotes.iter().filter(move |it| it.is_extern == is_extern);
            those.map(|it| it.address).collect()
        };
        let (fixed, found) = (remotes(false), remotes(true));
        let fabric = Self { port: port.clone(), network, fixed, found, calls, events };
        fabric.learn(|learn| learn.mark = true)?;
        Ok(fabric)
    }

    /// What network it is.
    #[must_use]
    pub fn network(&self) -> Network {
        self.network
    }

    /// Remotes that this process, or one before it, had set when it connected.
    #[must_use]
    pub fn found(&self) -> &[IpAddr] {
        &self.found
    }

    /// The number of remotes that it may set.
    #[must_use]
    pub fn room(&self) -> usize {
        REMOTES_MAX.saturating_sub(self.fixed.len())
    }

    /// The stations that the switch has.
    ///
    /// # Errors
    /// The daemon is gone, or refuses.
    pub fn stations(&self) -> Result<Stations, ControlError> {
        let switch = self.port.switch();
        let ask = |from| Request::Fdb(FdbRequest::List(FdbList { switch: switch.clone(), from }));
        let entries: Vec<FdbEntry> = listing::all(|request| self.calls.call(request), ask)?;
        let mut stations = Stations::default();
        for entry in entries.iter().filter(|it| it.vlan == self.network.vlan.get()) {
            if entry.port != self.port {
                let (mac, is_static) = (entry.mac, entry.is_static);
                stations.here.push(Station { mac, is_static });
            } else if entry.extern_learn {
                stations.named.insert(entry.mac);
            }
        }
        Ok(stations)
    }

    /// Looks at the port, without its lists.
    ///
    /// # Errors
    /// The daemon is gone, or the port is another one.
    pub fn look(&self) -> anyhow::Result<Shown> {
        let info = show(&self.calls, &self.port)?;
        let (network, vxlan) = network_of(&info)?;
        if network != self.network {
            bail!("the port has changed");
        }
        let remotes = vxlan.remotes.iter().map(|it| it.address).collect();
        Ok(Shown { remotes, changes: vxlan.neigh.map(|neigh| neigh.changes) })
    }

    /// The IP addresses of stations of this host, and those behind remotes that the port answers
    /// for.
    ///
    /// # Errors
    /// The daemon is gone, or the port does not listen to addresses.
    pub fn neighbours(&self) -> Result<[Vec<Neighbour>; 2], ControlError> {
        let ask =
            |from| Request::Fdb(FdbRequest::Neigh(NeighList { port: self.port.clone(), from }));
        let entries: Vec<NeighEntry> = listing::all(|request| self.calls.call(request), ask)?;
        Ok([false, true].map(|is_extern| {
            let those = entries.iter().filter(|it| it.extern_learn == is_extern);
            let neighbour =
                |it: &NeighEntry| Neighbour { ip: it.address, mac: it.mac, is_router: it.router };
            those.map(neighbour).collect()
        }))
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

    /// Does what is to be done for the port.
    ///
    /// # Errors
    /// The daemon is gone, or refuses.
    pub fn change(&self, todo: &Todo) -> Result<(), ControlError> {
        for some in todo.del_neighbours.chunks(NEIGHBOURS_IN_CALL) {
            self.learn(|learn| learn.del_neigh = some.to_vec())?;
        }
        if !todo.add_remotes.is_empty() || !todo.del_remotes.is_empty() {
            let vxlan = VxlanChange {
                add_extern_remote: todo.add_remotes.clone(),
                del_extern_remote: todo.del_remotes.clone(),
                ..VxlanChange::default()
            };
            let (port, settings) = (self.port.clone(), PortSettings::default());
            let set = PortSet { port, settings, vxlan: Some(Box::new(vxlan)) };
            done(self.calls.call(Request::Port(PortRequest::Set(Box::new(set))))?)?;
        }
        for some in todo.add_stations.chunks(STATIONS_IN_CALL) {
            let stations = some.iter().map(|&(mac, remote)| VxlanStation { mac, remote });
            self.learn(|learn| learn.add = stations.collect())?;
        }
        for some in todo.del_stations.chunks(STATIONS_IN_CALL) {
            self.learn(|learn| learn.del = some.to_vec())?;
        }
        for some in todo.add_neighbours.chunks(NEIGHBOURS_IN_CALL) {
            let named = some.iter().map(|it| ExternNeigh {
                address: it.ip,
                mac: it.mac,
                router: it.is_router,
            });
            self.learn(|learn| learn.add_neigh = named.collect())?;
        }
        Ok(())
    }

    /// Takes back the stations that no route has confirmed since [`Fabric::open`].
    ///
    /// # Errors
    /// The daemon is gone, or refuses.
    pub fn sweep(&self) -> Result<(), ControlError> {
        self.learn(|learn| learn.sweep = true)
    }

    fn learn(&self, what: impl FnOnce(&mut ExternLearn)) -> Result<(), ControlError> {
        let mut learn = ExternLearn {
            port: self.port.clone(),
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

/// The network of a port, and its tunnel.
fn network_of(info: &PortInfo) -> anyhow::Result<(Network, &VxlanInfo)> {
    let port = &info.port;
    let Some(vxlan) = info.vxlan.as_deref() else {
        bail!(
            "{port} is of kind {}, not vxlan; add one: \
             uvala port add {port} --kind vxlan --vni 100 --local IP",
            info.kind.name()
        );
    };
    let Some(vni) = vxlan.vni else {
        bail!(
            "{port} has a VNI for each VLAN (vlan_vni), and this is for ports with one: add a \
               port for each, with --vni and --vlan access:VLAN"
        );
    };
    let mode = info.settings.vlan.clone().unwrap_or_default();
    let vlan = mode.untagged().context(
        "the port has no VLAN without a tag: uvala port set … --vlan trunk:…,native=VLAN",
    )?;
    Ok((Network { vni, local: vxlan.local, vlan }, vxlan))
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
