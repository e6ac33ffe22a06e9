//! Between the protocol's types and the switch's: settings and rings.

use protocol::name::SwitchName;
use protocol::{Attach, Bind, GeometryQuery, InterfaceAdd, Mode, PortSettings, SwitchSettings};
use ring::cursor::RingSize;
use ring::layout::{MAX_RINGS, RingCounts};
use switch::{FDB_CAPACITY_MAX, Forwarding, PortConfig, Role, SwitchConfig};

use super::error::BadValue;
use super::plan::InterfaceText;
use super::policy::Grant;
use super::specs::{MAX_EXTRA_BUFS, RingSpec};

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
    if let Some(text) = &settings.forwarding {
        config.forwarding = parse("forwarding", text)?;
    }
    if let Some(age_s) = settings.age_s {
        config.ageing_ms = u64::from(age_s) * 1000;
    }
    if let Some(capacity) = settings.fdb_capacity {
        config.fdb_capacity = in_range("fdb_capacity", capacity as usize, 1, FDB_CAPACITY_MAX)?;
    }
    Ok(config)
}

/// The settings of a port, changed as asked.
pub fn change_port(
    mut config: PortConfig,
    settings: &PortSettings,
) -> Result<PortConfig, BadValue> {
    if let Some(text) = &settings.vlan {
        config.vlan = parse("vlan", text)?;
    }
    if let Some(text) = &settings.on_full {
        config.on_full = parse("on_full", text)?;
    }
    if let Some(bytes) = settings.vnet_header {
        config.vnet_header = vnet_header(bytes)?;
    }
    if let Some(max) = settings.max_macs {
        config.max_macs = Some(max).filter(|&max| max != 0);
    }
    change_role(&mut config.role, settings)?;
    let flags = [
        (&mut config.isolated, settings.isolated),
        (&mut config.learning, settings.learning),
        (&mut config.unicast_flood, settings.unicast_flood),
        (&mut config.multicast_flood, settings.multicast_flood),
        (&mut config.broadcast_flood, settings.broadcast_flood),
    ];
    for (flag, wanted) in flags {
        *flag = wanted.unwrap_or(*flag);
    }
    Ok(config)
}

fn change_role(role: &mut Role, settings: &PortSettings) -> Result<(), BadValue> {
    let named = |what: &str, name: &String| match name.is_empty() || is_ident(name) {
        true => Ok(Some(name.clone()).filter(|name| !name.is_empty())),
        false => Err(BadValue(format!("{what}: {IDENT}"))),
    };
    if let Some(service) = &settings.service {
        role.service = named("service", service)?;
    }
    if let Some(chain) = &settings.chain {
        role.chain = named("chain", chain)?;
    }
    if role.service.is_some() && role.chain.is_some() {
        let text = "chain: not for an instance of a service, which gets its frames from chains";
        return Err(BadValue(text.to_owned()));
    }
    role.instance = settings.instance.unwrap_or(role.instance);
    Ok(())
}

/// Is this a name for a service or a chain?
pub fn is_ident(name: &str) -> bool {
    (1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Characters of the name of a service or a chain.
pub const IDENT: &str = "only letters, digits and '_', 32 at most, as in firewall";

/// The grant of a port, changed as a request asks.
pub fn change_grant(grant: Grant, settings: &PortSettings) -> Result<Grant, BadValue> {
    check_owners(settings.owner, settings.group, settings.mode)?;
    Ok(grant.changed(settings))
}

/// Checks the owner, the group and the mode of a switch or a port.
pub fn check_owners(
    owner: Option<u32>,
    group: Option<u32>,
    mode: Option<Mode>,
) -> Result<(), BadValue> {
    for (what, id) in [("owner", owner), ("group", group)] {
        if id == Some(u32::MAX) {
            return Err(BadValue(format!("{what} = {}: there is no such number", u32::MAX)));
        }
    }
    match mode {
        Some(mode) if mode.bits() & 0o111 != 0 => {
            let text = "only r (4, list) and w (2, attach) are allowed, as in 660";
            Err(BadValue(format!("mode = {mode}: {text}")))
        }
        _ => Ok(()),
    }
}

/// The settings of a port, all of them, as a listing shows them; of whose it is, what was said.
#[must_use]
pub fn show_port(config: &PortConfig, grant: Grant) -> PortSettings {
    PortSettings {
        owner: grant.owner,
        group: grant.group,
        mode: grant.mode,
        vlan: Some(config.vlan.to_string()),
        isolated: Some(config.isolated),
        learning: Some(config.learning),
        unicast_flood: Some(config.unicast_flood),
        multicast_flood: Some(config.multicast_flood),
        broadcast_flood: Some(config.broadcast_flood),
        max_macs: Some(config.max_macs.unwrap_or(0)),
        on_full: Some(config.on_full.to_string()),
        vnet_header: Some(config.vnet_header),
        service: config.role.service.clone(),
        instance: config.role.service.as_ref().map(|_| config.role.instance),
        chain: config.role.chain.clone(),
    }
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
    let rings = |what, wanted: Option<u16>, default| match wanted {
        Some(count) => in_range(what, count, 1, MAX_RINGS),
        None => Ok(default),
    };
    let slots = |what, wanted: Option<u32>, default| match wanted {
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
pub fn bound_rings(wanted: &WantedRings, default: &RingSpec) -> RingSpec {
    let rings = |wanted: Option<u16>, default| wanted.unwrap_or(default).clamp(1, MAX_RINGS);
    let slots = |wanted: Option<u32>, default: RingSize| {
        wanted
            .and_then(|count| RingSize::new(count.clamp(RingSize::MIN, RingSize::MAX)))
            .unwrap_or(default)
    };
    let counts = RingCounts {
        tx_rings: rings(wanted.tx_rings, default.counts.tx_rings),
        rx_rings: rings(wanted.rx_rings, default.counts.rx_rings),
        tx_slots: slots(wanted.tx_slots, default.counts.tx_slots),
        rx_slots: slots(wanted.rx_slots, default.counts.rx_slots),
    };
    RingSpec { counts, extra_bufs: 0, stride: default.stride }
}

/// Rings as a program asks for them.
#[derive(Clone, Copy, Debug)]
pub struct WantedRings {
    /// Transmit rings.
    pub tx_rings: Option<u16>,
    /// Receive rings.
    pub rx_rings: Option<u16>,
    /// Slots of each transmit ring.
    pub tx_slots: Option<u32>,
    /// Slots of each receive ring.
    pub rx_slots: Option<u32>,
}

impl From<&Bind> for WantedRings {
    fn from(bind: &Bind) -> Self {
        let Bind { tx_rings, rx_rings, tx_slots, rx_slots, .. } = *bind;
        Self { tx_rings, rx_rings, tx_slots, rx_slots }
    }
}

impl From<&InterfaceAdd> for WantedRings {
    fn from(add: &InterfaceAdd) -> Self {
        let InterfaceAdd { tx_rings, rx_rings, tx_slots, rx_slots, .. } = *add;
        Self { tx_rings, rx_rings, tx_slots, rx_slots }
    }
}

impl From<&InterfaceText> for WantedRings {
    fn from(text: &InterfaceText) -> Self {
        let InterfaceText { tx_rings, rx_rings, tx_slots, rx_slots, .. } = *text;
        let (tx_rings, rx_rings) = (Some(tx_rings), Some(rx_rings));
        Self { tx_rings, rx_rings, tx_slots: Some(tx_slots), rx_slots: Some(rx_slots) }
    }
}

impl From<&GeometryQuery> for WantedRings {
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
        let wanted = PortSettings {
            vlan: Some("trunk:10,20-29,native=1".to_owned()),
            isolated: Some(true),
            learning: Some(false),
            unicast_flood: Some(false),
            multicast_flood: Some(true),
            broadcast_flood: Some(false),
            max_macs: Some(7),
            on_full: Some("wait".to_owned()),
            vnet_header: Some(10),
            service: Some("fw".to_owned()),
            instance: Some(3),
            chain: None,
            owner: Some(7),
            group: None,
            mode: Mode::new(0o600),
        };
        let config = change_port(PortConfig::default(), &wanted).unwrap();
        let grant = change_grant(Grant::default(), &wanted).unwrap();
        assert_eq!(show_port(&config, grant), wanted);
        let unchanged = change_port(config.clone(), &PortSettings::default()).unwrap();
        assert_eq!(unchanged, config);
    }

    #[test]
    fn test_bad_values_name_themselves() {
        let settings = PortSettings { vnet_header: Some(11), ..Default::default() };
        assert!(change_port(PortConfig::default(), &settings).is_err());
        let settings = PortSettings { vlan: Some("access:0".to_owned()), ..Default::default() };
        let refusal = change_port(PortConfig::default(), &settings).unwrap_err();
        assert!(refusal.to_string().starts_with("vlan: expected"), "{refusal}");
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
