//! The file as it is written: what may be missing, and what stands for it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use client::api::{
    Address, ChainSpec, Filter, HostIf, Mac, Machine, Mode, NewPorts, PortKind, Queues, RuleSpec,
};
use client::name::{NameError, PortName, SwitchName};
use port::vhost_user::allowance::Limits;
use ring::cursor::Span;
use ring::layout::{DEFAULT_STRIDE, RingCounts};
use serde::Deserialize;
use switch::{Forwarding, OnFull, PortConfig, Role, SwitchConfig, VlanMode};
use thiserror::Error;
use toml::Spanned;

use super::values::{
    Bytes, Capacity, ExtraBufs, FrameCount, GroupId, Kind, Log, Number, QueueNumbers, Rings, Slots,
    Stride, UserId, VnetHeader, WorkerCount, from_text, some_from_text,
};
use super::{Config, PortPlan, Quota, SocketConfig, SwitchPlan, WaitPolicy, WorkersConfig};
use crate::control::datapath::RingSpec;
use crate::control::handlers::host::complete;
use crate::control::handlers::machine;
use crate::control::policy::Grant;
use crate::control::statics::Station;
use crate::worker::BATCH;

/// Something that can be read and cannot be meant, and where it stands.
#[derive(Debug)]
pub struct Misfit {
    /// Bytes before it.
    pub at: usize,
    /// What is wrong.
    pub error: MisfitError,
}

/// What is wrong with values that are right by themselves.
#[derive(Debug, Error)]
pub enum MisfitError {
    /// The name of a port is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It is the end of a pipe.
    #[error("{0} is the end of a pipe; pipes come with their clients: take it out of the file")]
    Pipe(PortName),
    /// A function that could not say what it wants of a frame.
    #[error("{0} is no port of kind shm, and only these are of a service: take `service` out")]
    Service(PortName),
    /// Its network interface.
    #[error("{0}: {1}")]
    Host(Box<PortName>, String),
    /// A static address has one port.
    #[error(
        "{0} is on {one} and on {other}; an address has one port: take one out",
        one = .1[0],
        other = .1[1]
    )]
    TwoPorts(Station, Box<[PortName; 2]>),
    /// The rings of ports that do not say.
    #[error(
        "[rings]: a port of these takes more than 4 GiB, the most there is; lower rings, slots, \
         extra_bufs or buffer_stride"
    )]
    Rings,
}

impl<E: Into<MisfitError>> From<(&Spanned<String>, E)> for Misfit {
    fn from((key, error): (&Spanned<String>, E)) -> Self {
        Self { at: key.span().start, error: error.into() }
    }
}

/// The file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct RawConfig {
    log: Log,
    helper: Option<PathBuf>,
    #[serde(deserialize_with = "state_dir")]
    state_dir: Option<PathBuf>,
    socket: RawSocket,
    workers: RawWorkers,
    quota: RawQuota,
    rings: Option<Spanned<RawRings>>,
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
    machine_memory: Bytes,
    machine_regions: Number,
    machine_descriptors: Number,
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
    chain: Vec<ChainSpec>,
    rule: Vec<RuleSpec>,
    port: BTreeMap<Spanned<String>, RawPort>,
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
    service: Option<String>,
    instance: Option<u16>,
    chain: Option<String>,
    owner: Option<UserId>,
    group: Option<GroupId>,
    mode: Option<Mode>,
    #[serde(rename = "static")]
    stations: BTreeSet<Spanned<Station>>,
    ifname: Option<String>,
    mtu: Option<Number>,
    mac: Option<Mac>,
    netns: Option<String>,
    address: Option<Address>,
    alone: bool,
    filter: Option<Filter>,
    trust_group: Option<String>,
    socket: Option<String>,
    connect: bool,
    queues: Option<QueueNumbers>,
    coalesce_usecs: Option<Number>,
    coalesce_frames: Option<Number>,
    peer: Option<String>,
}

/// More than there can be are too many in any case.
fn small(number: Option<&Number>) -> Option<u16> {
    number.map(|n| u16::try_from(n.0).unwrap_or(u16::MAX))
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
    /// What it means.
    pub fn into_config(self) -> Result<Config, Misfit> {
        let switches = self.switch.into_iter().map(|(name, raw)| raw.into_plan(name));
        let rings = self.rings.unwrap_or_else(|| Spanned::new(0..0, RawRings::default()));
        let at = rings.span().start;
        let rings = rings.into_inner().into_spec().map_err(|error| Misfit { at, error })?;
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
            helper: self.helper,
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
                machines: Limits {
                    bytes: self.quota.machine_memory.0,
                    regions: self.quota.machine_regions.0.into(),
                    descriptors: self.quota.machine_descriptors.0.into(),
                },
            },
            rings,
            switch_mode: self.new_switch.mode,
            switches: switches.collect::<Result<_, _>>()?,
        })
    }
}

impl RawRings {
    fn into_spec(self) -> Result<RingSpec, MisfitError> {
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
        fits.then_some(spec).ok_or(MisfitError::Rings)
    }
}

impl RawSwitch {
    fn into_plan(self, name: SwitchName) -> Result<SwitchPlan, Misfit> {
        let default = SwitchConfig::default();
        let config = SwitchConfig {
            forwarding: self.forwarding.unwrap_or(default.forwarding),
            ageing_ms: self.age_s.map_or(default.ageing_ms, |s| u64::from(s.0) * 1000),
            fdb_capacity: self.fdb_capacity.map_or(default.fdb_capacity, |n| n.0),
        };
        let mut homes = BTreeMap::new();
        let ports = self.port.into_iter().map(|(key, raw)| raw.into_plan(&name, &key, &mut homes));
        Ok(SwitchPlan {
            config,
            persistent: true,
            owner: self.owner.map(|id| id.0),
            group: self.group.map(|id| id.0),
            mode: self.mode,
            new_ports: self.new_ports,
            ports: ports.collect::<Result<_, Misfit>>()?,
            chains: self.chain,
            rules: self.rule,
            name,
        })
    }
}

impl RawPort {
    /// The port of this name; `homes` are the ports that have static addresses.
    fn into_plan(
        self,
        switch: &SwitchName,
        key: &Spanned<String>,
        homes: &mut BTreeMap<Station, PortName>,
    ) -> Result<PortPlan, Misfit> {
        let name = switch.join(key.get_ref()).map_err(|error| (key, error))?;
        if name.pipe().is_some() {
            return Err((key, MisfitError::Pipe(name)).into());
        }
        let kind = self.kind.0;
        if self.service.is_some() && kind != PortKind::Shm {
            return Err((key, MisfitError::Service(name)).into());
        }
        let host = complete(&name, kind, self.host().as_ref())
            .map_err(|error| (key, MisfitError::Host(Box::new(name.clone()), error)))?;
        let machine = machine::complete(kind, self.machine().as_ref())
            .map_err(|error| (key, MisfitError::Host(Box::new(name.clone()), error)))?;
        for station in &self.stations {
            if let Some(first) = homes.insert(*station.get_ref(), name.clone()) {
                let ports = Box::new([first, name]);
                let error = MisfitError::TwoPorts(*station.get_ref(), ports);
                return Err(Misfit { at: station.span().start, error });
            }
        }
        let stations = self.stations.iter().map(|station| *station.get_ref()).collect();
        let (grant, config) = (self.grant(), self.into_config());
        let (owner, interface) = (None, None);
        Ok(PortPlan { name, kind, config, host, machine, interface, stations, owner, grant })
    }

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
            queues: self.queues.as_ref().filter(|_| self.has_queues()).map(|it| it.0.clone()),
            filter: self.filter.clone(),
            trust_group: self.trust_group.clone(),
            fds: 0,
        };
        (host != HostIf::default()).then_some(host)
    }

    /// Are the queues that are named those of an interface? Of machines there are so many.
    fn has_queues(&self) -> bool {
        let is_set = self.queues.as_ref().is_some_and(|it| matches!(it.0, Queues::Set(_)));
        is_set || matches!(self.kind.0, PortKind::Xdp | PortKind::Tap)
    }

    /// How many pairs of queues a machine may have.
    fn pairs(&self) -> Option<u16> {
        match self.queues {
            Some(QueueNumbers(Queues::First(count))) if !self.has_queues() => Some(count),
            _ => None,
        }
    }

    /// What is said of its socket, if anything is.
    fn machine(&self) -> Option<Machine> {
        let machine = Machine {
            held: false,
            socket: self.socket.clone(),
            connect: self.connect,
            queues: self.pairs(),
            coalesce_usecs: small(self.coalesce_usecs.as_ref()),
            coalesce_frames: small(self.coalesce_frames.as_ref()),
            peer: self.peer.clone(),
        };
        (machine != Machine::default()).then_some(machine)
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
            role: Role {
                service: self.service,
                instance: self.instance.unwrap_or(0),
                chain: self.chain,
            },
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
            // A thirty-second of what there is, a quarter, and an eighth of what the unit asks for.
            machine_memory: Bytes(4 << 40),
            machine_regions: Number(2048),
            machine_descriptors: Number(8192),
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
