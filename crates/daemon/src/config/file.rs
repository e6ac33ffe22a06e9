//! The configuration file as text: its keys and their defaults.

use std::collections::BTreeMap;
use std::path::PathBuf;

use port::machine::quota::Limits;
use protocol::check::is_group_name;
use protocol::config::values::{GroupId, Number, UserId, from_text};
use protocol::config::{InvalidValue, RawSwitch, ValidationError};
use protocol::name::SwitchName;
use protocol::{Mode, RunBy};
use ring::cursor::RingSize;
use ring::layout::{DEFAULT_STRIDE, RingCounts};
use serde::Deserialize;
use toml::Spanned;

use super::switches::plan;
use super::values::{
    Bytes, ExtraBufs, FrameCount, GroupMemory, Log, Rings, Slots, Stride, WorkerCount,
};
use super::{Config, SocketConfig, WaitPolicy, WorkersConfig};
use crate::log::LogFormat;
use crate::model::plan::{GroupPlan, Quota};
use crate::model::policy::Grant;
use crate::model::specs::{NEW_GROUP, RingSpec};

/// Frames of a batch unless configured otherwise: more do not fit the first-level cache.
const BATCH: u16 = 256;

/// The file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct RawConfig {
    log: Log,
    #[serde(deserialize_with = "from_text")]
    log_format: LogFormat,
    helper: Option<PathBuf>,
    #[serde(deserialize_with = "from_text")]
    confine: confine::Mode,
    vm_sockets: Vec<PathBuf>,
    #[serde(deserialize_with = "state_dir")]
    state_dir: Option<PathBuf>,
    socket: RawSocket,
    workers: RawWorkers,
    quota: RawQuota,
    rings: Option<Spanned<RawRings>>,
    new_switch: RawNewSwitch,
    new_port: RawNewPort,
    new_group: RawNewGroup,
    group: BTreeMap<Spanned<String>, RawGroup>,
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
    rules: Number,
    static_addresses: Number,
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
    workers: RunBy,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawNewPort {
    max_macs: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawNewGroup {
    memory: GroupMemory,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct RawGroup {
    owner: Option<UserId>,
    group: Option<GroupId>,
    mode: Option<Mode>,
    memory: Option<Spanned<GroupMemory>>,
}

/// The saved state needs a directory: an empty path is refused.
fn state_dir<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PathBuf>, D::Error> {
    let dir = PathBuf::deserialize(deserializer)?;
    if dir.as_os_str().is_empty() {
        return Err(serde::de::Error::custom(
            "state_dir is empty: the daemon always saves what commands make; name a directory, as \
             in \"/var/lib/uvala\", or leave it out for \"state\" beside the socket",
        ));
    }
    Ok(Some(dir))
}

impl RawConfig {
    /// The checked configuration.
    pub fn into_config(self) -> Result<Config, InvalidValue> {
        let switches = self.switch.into_iter().map(|(name, raw)| raw.read(name).and_then(plan));
        let switches = switches.collect::<Result<_, InvalidValue>>()?;
        let quota = self.quota.memory.0;
        let groups = self.group.into_iter().map(|(key, raw)| raw.read(key, quota));
        let groups = groups.collect::<Result<_, InvalidValue>>()?;
        let rings = self.rings.unwrap_or_else(|| Spanned::new(0..0, RawRings::default()));
        let at = rings.span().start;
        let rings = rings.into_inner().into_spec().map_err(|error| InvalidValue { at, error })?;
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
            log_format: self.log_format,
            helper: self.helper,
            confine: self.confine,
            vm_sockets: self.vm_sockets,
            workers: WorkersConfig {
                count: self.workers.count.0,
                cpus: self.workers.cpus.iter().map(|cpu| cpu.0).collect(),
                batch: self.workers.batch.0,
                wait: self.workers.wait,
            },
            quota: Quota {
                ports: self.quota.ports.0,
                memory: self.quota.memory.0,
                switches: self.quota.switches.0,
                addresses: self.quota.addresses.0,
                rules: self.quota.rules.0,
                static_addresses: self.quota.static_addresses.0,
                connections: self.quota.connections.0,
                machines: Limits {
                    bytes: self.quota.machine_memory.0,
                    regions: self.quota.machine_regions.0.into(),
                    descriptors: self.quota.machine_descriptors.0.into(),
                },
            },
            rings,
            switch_mode: self.new_switch.mode,
            switch_workers: self.new_switch.workers,
            max_macs: self.new_port.max_macs.0,
            group_memory: self.new_group.memory.0,
            groups,
            switches,
        })
    }
}

impl RawGroup {
    /// The checked group; `quota` is the memory that each user may have.
    fn read(self, key: Spanned<String>, quota: u64) -> Result<(String, GroupPlan), InvalidValue> {
        if !is_group_name(key.get_ref()) {
            return Err((&key, ValidationError::Group(key.get_ref().clone())).into());
        }
        let (owner, group) = (self.owner.map(|id| id.0), self.group.map(|id| id.0));
        let grant = Grant { owner, group, mode: self.mode };
        if let Some(memory) = self.memory.as_ref().filter(|memory| memory.get_ref().0 > quota) {
            let error = ValidationError::Unpayable(key.into_inner(), quota >> 20);
            return Err(InvalidValue { at: memory.span().start, error });
        }
        let memory = self.memory.map(|memory| memory.into_inner().0);
        Ok((key.into_inner(), GroupPlan { grant, memory }))
    }
}

impl RawRings {
    fn into_spec(self) -> Result<RingSpec, ValidationError> {
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
        fits.then_some(spec).ok_or(ValidationError::Rings)
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
            // `switches` switches of the default capacity.
            addresses: Number(64 << 20),
            // Four switches with as many as a switch may have.
            rules: Number(16_384),
            static_addresses: Number(65_536),
            connections: Number(4096),
            // A thirty-second of the address space, a quarter of the kernel's mappings, and an
            // eighth of the unit's LimitNOFILE.
            machine_memory: Bytes(4 << 40),
            machine_regions: Number(2048),
            machine_descriptors: Number(8192),
        }
    }
}

impl Default for RawRings {
    fn default() -> Self {
        let slots = Slots(RingSize::new(1024).expect("in range"));
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
        Self { mode: mode(0o600), workers: RunBy::One }
    }
}

impl Default for RawNewPort {
    fn default() -> Self {
        Self { max_macs: Number(128) }
    }
}

impl Default for RawNewGroup {
    fn default() -> Self {
        Self { memory: GroupMemory(NEW_GROUP) }
    }
}

fn mode(bits: u16) -> Mode {
    Mode::new(bits).expect("nine bits")
}
