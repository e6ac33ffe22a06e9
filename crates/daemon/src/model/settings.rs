//! Between the protocol's types and the switch's: settings and rings.

use std::collections::BTreeSet;

use packet::VlanId;
use packet::mcast::GroupAddr;
use protocol::name::SwitchName;
use protocol::{
    Attach, Bind, FDB_CAPACITY_MAX, GeometryQuery, InterfaceAdd, PortKind, PortSettings,
    PortWorker, QUEUE_FRAMES_MAX, RunBy, StaticGroup, SwitchSettings, check,
};
use ring::cursor::RingSize;
use ring::layout::{MAX_RINGS, RingCounts};
use switch::{FloodClass, Forwarding, McastRouter, PortConfig, PortSecurity, Role, SwitchConfig};

use super::choices;
use super::error::BadValue;
use super::plan::InterfaceText;
use super::policy::Grant;
use super::specs::{MAX_EXTRA_BUFS, RingSpec};

const _: () = assert!(FDB_CAPACITY_MAX as usize == switch::FDB_CAPACITY_MAX);

/// The settings of a switch that comes with its first port. The switch of a virtual interface is a
/// patch, which learns no addresses.
#[must_use]
pub fn new_switch(name: &SwitchName) -> SwitchConfig {
    match name.is_interface() {
        false => SwitchConfig::default(),
        true => SwitchConfig {
            forwarding: Forwarding::Patch,
            fdb_capacity: 1,
            ..SwitchConfig::default()
        },
    }
}

/// The settings of a switch, changed as asked.
pub fn change_switch(
    mut config: SwitchConfig,
    settings: &SwitchSettings,
) -> Result<SwitchConfig, BadValue> {
    if let Some(name) = settings.forwarding {
        config.forwarding = choices::forwarding(name);
    }
    if let Some(age_s) = settings.age_s {
        config.ageing_ms = u64::from(age_s) * 1000;
    }
    config.security = asked_security(&of_all_ports(settings))?.or(config.security);
    if let Some(capacity) = settings.fdb_capacity {
        config.fdb_capacity = in_range("fdb_capacity", capacity, 1, FDB_CAPACITY_MAX)? as usize;
    }
    if let Some(mask) = settings.group_fwd_mask {
        let checked = protocol::parse::check_group_fwd_mask(mask);
        config.group_fwd_mask =
            checked.map_err(|why| BadValue(format!("group_fwd_mask: {why}")))?;
    }
    config.mcast_snooping = settings.mcast_snooping.unwrap_or(config.mcast_snooping);
    config.mcast_querier = settings.mcast_querier.unwrap_or(config.mcast_querier);
    if config.mcast_snooping {
        check::snooping(choices::show_forwarding(config.forwarding)).map_err(BadValue)?;
    }
    if let Some(workers) = settings.workers {
        config.is_spread = workers == RunBy::All;
    }
    Ok(config)
}

/// The settings of a new port of this kind. Behind a tunnel there are switches that hear of members
/// here only if their ports and this one lead to routers (`mcast_router`).
pub fn new_port(kind: PortKind, settings: &PortSettings) -> Result<PortConfig, BadValue> {
    let mcast_router = match kind {
        PortKind::Vxlan => McastRouter::On,
        _ => McastRouter::default(),
    };
    change_port(PortConfig { mcast_router, ..PortConfig::default() }, settings)
}

/// The settings of a port, changed as asked.
pub fn change_port(
    mut config: PortConfig,
    settings: &PortSettings,
) -> Result<PortConfig, BadValue> {
    if let Some(vlan) = &settings.vlan {
        config.vlan = vlan.clone();
    }
    if let Some(name) = settings.on_full {
        config.on_full = choices::on_full(name);
    }
    if let Some(worker) = settings.worker {
        config.worker = match worker {
            PortWorker::Auto => None,
            PortWorker::Number(number) => Some(number),
        };
    }
    if let Some(bytes) = settings.vnet_header {
        config.vnet_header = vnet_header(bytes)?;
    }
    if let Some(frames) = settings.queue_frames {
        config.queue_frames = in_range("queue_frames", frames, 0, QUEUE_FRAMES_MAX)?;
    }
    if settings.label.is_some() {
        let label = check::label(settings.label.as_deref()).map_err(BadValue)?;
        config.label = label.map(str::to_owned);
    }
    check::groups(settings).map_err(BadValue)?;
    config.mcast_router = settings.mcast_router.map_or(config.mcast_router, choices::mcast_router);
    config.mcast_max_groups = settings.mcast_max_groups.unwrap_or(config.mcast_max_groups);
    if let Some(groups) = &settings.mcast_groups {
        let all: BTreeSet<_> = groups.iter().map(|it| (it.vlan, it.group)).collect();
        config.mcast_groups = all.into_iter().collect();
    }
    config.security = asked_security(settings)?.or(config.security);
    change_role(&mut config.role, settings)?;
    if let Some(mirror) = &settings.mirror {
        check::mirror(mirror).map_err(BadValue)?;
        config.mirror = choices::mirror(mirror);
    }
    let flags = [
        (&mut config.isolated, settings.isolated),
        (&mut config.learning, settings.learning),
        (&mut config.unicast_flood, settings.unicast_flood),
        (&mut config.multicast_flood, settings.multicast_flood),
        (&mut config.broadcast_flood, settings.broadcast_flood),
        (&mut config.mcast_fast_leave, settings.mcast_fast_leave),
    ];
    for (flag, requested) in flags {
        *flag = requested.unwrap_or(*flag);
    }
    Ok(config)
}

/// The port security that a request asks for.
fn asked_security(settings: &PortSettings) -> Result<PortSecurity, BadValue> {
    Ok(PortSecurity {
        mac_lock: settings.mac_lock.as_deref().map(|text| parse("mac_lock", text)).transpose()?,
        max_macs: settings.max_macs,
        flood_limits: FloodClass::ALL.map(|class| match class {
            FloodClass::Unicast => settings.unknown_unicast_limit,
            FloodClass::Multicast => settings.multicast_limit,
            FloodClass::Broadcast => settings.broadcast_limit,
        }),
        bpdu_filter: settings.bpdu_filter,
        bpdu_guard: settings.bpdu_guard,
        loop_protect: settings.loop_protect,
    })
}

/// Port security as settings of a port.
#[must_use]
pub fn show_security(security: &PortSecurity) -> PortSettings {
    let limit = |class: FloodClass| security.flood_limits[class.index()];
    PortSettings {
        mac_lock: security.mac_lock.map(|lock| lock.to_string()),
        max_macs: security.max_macs,
        broadcast_limit: limit(FloodClass::Broadcast),
        multicast_limit: limit(FloodClass::Multicast),
        unknown_unicast_limit: limit(FloodClass::Unicast),
        bpdu_filter: security.bpdu_filter,
        bpdu_guard: security.bpdu_guard,
        loop_protect: security.loop_protect,
        ..PortSettings::default()
    }
}

/// The settings of a switch that are those of its ports.
fn of_all_ports(settings: &SwitchSettings) -> PortSettings {
    PortSettings {
        mac_lock: settings.mac_lock.clone(),
        max_macs: settings.max_macs,
        broadcast_limit: settings.broadcast_limit,
        multicast_limit: settings.multicast_limit,
        unknown_unicast_limit: settings.unknown_unicast_limit,
        bpdu_filter: settings.bpdu_filter,
        bpdu_guard: settings.bpdu_guard,
        loop_protect: settings.loop_protect,
        ..PortSettings::default()
    }
}

fn change_role(role: &mut Role, settings: &PortSettings) -> Result<(), BadValue> {
    for (what, asked, name) in [
        ("service", &settings.service, &mut role.service),
        ("chain", &settings.chain, &mut role.chain),
    ] {
        let checked = check::role_name(what, asked.as_deref()).map_err(BadValue)?;
        if asked.is_some() {
            *name = checked.map(str::to_owned);
        }
    }
    check::role(role.service.as_deref(), role.chain.as_deref()).map_err(BadValue)?;
    if settings.instance.is_some() && role.service.is_none() {
        return Err(BadValue(check::INSTANCE.to_owned()));
    }
    role.instance = settings.instance.unwrap_or(role.instance);
    Ok(())
}

/// The grant of a port, changed as a request asks.
pub fn change_grant(grant: Grant, settings: &PortSettings) -> Result<Grant, BadValue> {
    check::owners(settings.owner, settings.group, settings.mode).map_err(BadValue)?;
    Ok(grant.changed(settings))
}

/// The settings of a port, all of them, as a listing shows them; of whose it is, what was said.
#[must_use]
pub fn show_port(config: &PortConfig, grant: Grant) -> PortSettings {
    PortSettings {
        owner: grant.owner,
        group: grant.group,
        mode: grant.mode,
        vlan: Some(config.vlan.clone()),
        isolated: Some(config.isolated),
        learning: Some(config.learning),
        unicast_flood: Some(config.unicast_flood),
        multicast_flood: Some(config.multicast_flood),
        broadcast_flood: Some(config.broadcast_flood),
        mcast_router: Some(choices::show_mcast_router(config.mcast_router)),
        mcast_fast_leave: Some(config.mcast_fast_leave),
        mcast_max_groups: Some(config.mcast_max_groups),
        mcast_groups: show_groups(&config.mcast_groups),
        on_full: Some(choices::show_on_full(config.on_full)),
        worker: Some(config.worker.map_or(PortWorker::Auto, PortWorker::Number)),
        vnet_header: Some(config.vnet_header),
        queue_frames: Some(config.queue_frames),
        service: config.role.service.clone(),
        instance: config.role.service.as_ref().map(|_| config.role.instance),
        chain: config.role.chain.clone(),
        label: config.label.clone(),
        mirror: config.mirror.as_deref().map(choices::show_mirror),
        ..show_security(&config.security)
    }
}

/// Static groups, as a listing shows them.
#[must_use]
pub fn show_groups(groups: &[(VlanId, GroupAddr)]) -> Option<Vec<StaticGroup>> {
    let all = groups.iter().map(|&(vlan, group)| StaticGroup { vlan, group });
    (!groups.is_empty()).then(|| all.collect())
}

/// Port security in force on a port of a switch with this configuration, nothing left out.
#[must_use]
pub fn security_in_force(port: &PortConfig, switch: &SwitchConfig) -> PortSecurity {
    let security = port.security.or(switch.security);
    let usual = PortSecurity { max_macs: port.usual_max_macs, ..PortSecurity::default() };
    security.or(usual).or(PortSecurity::OFF)
}

/// Bytes of a virtio-net header, which is one of the two that there are, or none.
fn vnet_header(bytes: u8) -> Result<u8, BadValue> {
    match bytes {
        0 | 10 | 12 => Ok(bytes),
        _ => Err(BadValue(format!("vnet_header = {bytes}: expected 0, 10 or 12"))),
    }
}

/// The rings that a client asks for, with the daemon's defaults where it does not say.
pub fn rings(attach: &Attach, default: &RingSpec) -> Result<RingSpec, BadValue> {
    let rings = |what, requested: Option<u16>, default| match requested {
        Some(count) => in_range(what, count, 1, MAX_RINGS),
        None => Ok(default),
    };
    let slots = |what, requested: Option<u32>, default| match requested {
        Some(count) => {
            RingSize::new(count).ok_or_else(|| out_of(what, count, RingSize::MIN, RingSize::MAX))
        }
        None => Ok(default),
    };
    let counts = RingCounts {
        tx_rings: rings("tx_rings", attach.tx_rings, default.counts.tx_rings)?,
        rx_rings: rings("rx_rings", attach.rx_rings, default.counts.rx_rings)?,
        tx_slots: slots("tx_slots", attach.tx_slots, default.counts.tx_slots)?,
        rx_slots: slots("rx_slots", attach.rx_slots, default.counts.rx_slots)?,
    };
    let extra_bufs = attach.extra_bufs.unwrap_or(default.extra_bufs);
    let extra_bufs = in_range("extra_bufs", extra_bufs, 0, MAX_EXTRA_BUFS)?;
    Ok(RingSpec { counts, extra_bufs, stride: default.stride })
}

/// The rings that a netmap program asks for: as netmap does, what is out of range becomes the
/// nearest that is in it.
#[must_use]
pub fn bound_rings(requested: &RequestedRings, default: &RingSpec) -> RingSpec {
    let rings = |requested: Option<u16>, default| requested.unwrap_or(default).clamp(1, MAX_RINGS);
    let slots = |requested: Option<u32>, default: RingSize| {
        requested
            .and_then(|count| RingSize::new(count.clamp(RingSize::MIN, RingSize::MAX)))
            .unwrap_or(default)
    };
    let counts = RingCounts {
        tx_rings: rings(requested.tx_rings, default.counts.tx_rings),
        rx_rings: rings(requested.rx_rings, default.counts.rx_rings),
        tx_slots: slots(requested.tx_slots, default.counts.tx_slots),
        rx_slots: slots(requested.rx_slots, default.counts.rx_slots),
    };
    RingSpec { counts, extra_bufs: 0, stride: default.stride }
}

/// Rings as a program asks for them.
#[derive(Clone, Copy, Debug)]
pub struct RequestedRings {
    /// Transmit rings.
    pub tx_rings: Option<u16>,
    /// Receive rings.
    pub rx_rings: Option<u16>,
    /// Slots of each transmit ring.
    pub tx_slots: Option<u32>,
    /// Slots of each receive ring.
    pub rx_slots: Option<u32>,
}

impl From<&Bind> for RequestedRings {
    fn from(bind: &Bind) -> Self {
        let Bind { tx_rings, rx_rings, tx_slots, rx_slots, .. } = *bind;
        Self { tx_rings, rx_rings, tx_slots, rx_slots }
    }
}

impl From<&InterfaceAdd> for RequestedRings {
    fn from(add: &InterfaceAdd) -> Self {
        let InterfaceAdd { tx_rings, rx_rings, tx_slots, rx_slots, .. } = *add;
        Self { tx_rings, rx_rings, tx_slots, rx_slots }
    }
}

impl From<&InterfaceText> for RequestedRings {
    fn from(text: &InterfaceText) -> Self {
        let InterfaceText { tx_rings, rx_rings, tx_slots, rx_slots, .. } = *text;
        let (tx_rings, rx_rings) = (Some(tx_rings), Some(rx_rings));
        Self { tx_rings, rx_rings, tx_slots: Some(tx_slots), rx_slots: Some(rx_slots) }
    }
}

impl From<&GeometryQuery> for RequestedRings {
    fn from(query: &GeometryQuery) -> Self {
        let GeometryQuery { tx_rings, rx_rings, tx_slots, rx_slots, .. } = *query;
        Self { tx_rings, rx_rings, tx_slots, rx_slots }
    }
}

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(
    what: &str,
    text: &str,
) -> Result<T, BadValue> {
    text.parse().map_err(|error| BadValue(format!("{what}: {error}")))
}

fn in_range<T: PartialOrd + std::fmt::Display>(
    what: &str,
    number: T,
    low: T,
    high: T,
) -> Result<T, BadValue> {
    if (&low..=&high).contains(&&number) {
        Ok(number)
    } else {
        Err(out_of(what, number, low, high))
    }
}

fn out_of<T: std::fmt::Display>(what: &str, number: T, low: T, high: T) -> BadValue {
    BadValue(format!("{what} = {number} is out of range, {low} to {high}"))
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::model::settings::*;

    #[test]
    fn test_settings_survive_a_listing() {
        let requested = PortSettings {
            vlan: Some("trunk:10,20-29,native=1".parse().unwrap()),
            isolated: Some(true),
            learning: Some(false),
            unicast_flood: Some(false),
            multicast_flood: Some(true),
            broadcast_flood: Some(false),
            mcast_router: Some(protocol::McastRouter::On),
            mcast_fast_leave: Some(true),
            mcast_max_groups: Some(12),
            mcast_groups: Some(vec!["239.1.1.1".parse().unwrap(), "ff15::7@7".parse().unwrap()]),
            max_macs: Some(7),
            on_full: Some(protocol::OnFull::Wait),
            worker: Some(PortWorker::Number(2)),
            vnet_header: Some(10),
            queue_frames: Some(64),
            service: Some("fw".to_owned()),
            instance: Some(3),
            chain: None,
            label: Some("web server".to_owned()),
            mirror: Some(protocol::Mirror {
                from: vec!["a".to_owned(), "b".to_owned()],
                direction: protocol::Direction::Out,
                rate: 1000,
            }),
            mac_lock: Some("first:3".to_owned()),
            broadcast_limit: Some(100),
            multicast_limit: Some(0),
            unknown_unicast_limit: None,
            bpdu_filter: Some(true),
            bpdu_guard: Some(true),
            loop_protect: Some(false),
            owner: Some(7),
            group: None,
            mode: protocol::Mode::new(0o600),
        };
        let config = change_port(PortConfig::default(), &requested).unwrap();
        let grant = change_grant(Grant::default(), &requested).unwrap();
        assert_eq!(show_port(&config, grant), requested);
        let unchanged = change_port(config.clone(), &PortSettings::default()).unwrap();
        assert_eq!(unchanged, config);
    }

    #[test]
    fn test_bad_values_name_themselves() {
        let settings = PortSettings { vnet_header: Some(11), ..Default::default() };
        assert!(change_port(PortConfig::default(), &settings).is_err());
        let settings = PortSettings { mac_lock: Some("on".to_owned()), ..Default::default() };
        let refusal = change_port(PortConfig::default(), &settings).unwrap_err();
        assert!(refusal.to_string().starts_with("mac_lock: expected"), "{refusal}");
        let settings = PortSettings { label: Some("a\tb".to_owned()), ..Default::default() };
        assert!(change_port(PortConfig::default(), &settings).is_err());
        let mut attach = Attach::new("vale0:a".parse().unwrap());
        attach.tx_slots = Some(3);
        let refusal = rings(&attach, &Config::default().rings).unwrap_err();
        assert_eq!(refusal.to_string(), "tx_slots = 3 is out of range, 8 to 16384");
        let settings = SwitchSettings { fdb_capacity: Some(u32::MAX), ..Default::default() };
        let refusal = change_switch(SwitchConfig::default(), &settings).unwrap_err().to_string();
        assert_eq!(refusal, "fdb_capacity = 4294967295 is out of range, 1 to 1048576");
        attach.tx_slots = None;
        attach.rx_rings = Some(0);
        assert!(rings(&attach, &Config::default().rings).is_err());
    }
}
