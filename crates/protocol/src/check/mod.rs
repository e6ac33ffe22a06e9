//! Checks of requests and files whose values are valid by themselves: whether they go together.
//!
//! The daemon checks with these what clients ask for, and the tools check files with the same
//! before they ask. A check needs nothing but the values: what depends on the switches and ports
//! that there are, the daemon decides.

mod host;
mod machine;
pub mod steering;
mod vxlan;

use packet::MacAddr;

pub use host::{host, is_group_name, is_interface_name, trust_group};
pub use machine::machine;
pub use vxlan::{extern_learn, vlan_vni, vxlan, vxlan_remote};

use crate::{
    Forwarding, LABEL_MAX, MCAST_GROUPS_MAX, MIRROR_PORTS_MAX, Machine, Mirror, Mode, PortKind,
    PortSettings, QUEUE_FRAMES_MAX, STATIC_GROUPS_MAX,
};

/// The names of the options that are set, in one line.
fn named(each: &[(&str, bool)]) -> String {
    let said = each.iter().filter(|(_, is_said)| *is_said).map(|(name, _)| *name);
    said.collect::<Vec<_>>().join(", ")
}

/// Checks that a single station can have this address: it is unicast and not zero.
///
/// # Errors
/// What is wrong, and an address that is right.
pub fn unicast(mac: MacAddr) -> Result<(), String> {
    if mac.is_multicast() {
        return Err(format!(
            "{mac} is a multicast address; choose a unicast address, whose first byte is even, \
             such as 02:00:00:00:00:01"
        ));
    }
    if mac.octets() == [0; 6] {
        return Err(format!(
            "{mac} is not the address of a station; choose one such as \
             02:00:00:00:00:01"
        ));
    }
    Ok(())
}

/// Checks the owner, the group and the mode of a switch or a port.
///
/// # Errors
/// What is wrong, and what is allowed.
pub fn owners(owner: Option<u32>, group: Option<u32>, mode: Option<Mode>) -> Result<(), String> {
    for (what, id) in [("owner", owner), ("group", group)] {
        if id == Some(u32::MAX) {
            return Err(format!("{what} = {}: there is no such number", u32::MAX));
        }
    }
    match mode {
        Some(mode) if mode.bits() & 0o111 != 0 => {
            let text = "only r (4, list) and w (2, attach) are allowed, as in 660";
            Err(format!("mode = {mode}: {text}"))
        }
        _ => Ok(()),
    }
}

/// Checks the settings of a new port whose values depend on each other, or have their own form.
///
/// # Errors
/// What is wrong, and what is allowed.
pub fn port_settings(settings: &PortSettings) -> Result<(), String> {
    let service = role_name("service", settings.service.as_deref())?;
    role(service, role_name("chain", settings.chain.as_deref())?)?;
    if settings.instance.is_some() && service.is_none() {
        return Err(INSTANCE.to_owned());
    }
    label(settings.label.as_deref())?;
    if let Some(it) = &settings.mirror {
        mirror(it)?;
    }
    groups(settings)?;
    owners(settings.owner, settings.group, settings.mode)
}

/// Checks that a switch with this function can send multicast frames to members only.
///
/// # Errors
/// The function does not look addresses up; and which do.
pub fn snooping(forwarding: Forwarding) -> Result<(), String> {
    match forwarding {
        Forwarding::Learning | Forwarding::Static | Forwarding::StaticFlood => Ok(()),
        Forwarding::Hub | Forwarding::Patch | Forwarding::Chain | Forwarding::Program => {
            Err(format!(
                "mcast_snooping: a switch with forwarding = {forwarding} does not look addresses \
                 up; choose learning, static or static-flood, or set mcast_snooping = false"
            ))
        }
    }
}

/// Checks what a port's settings say of multicast groups.
///
/// # Errors
/// There are too many.
pub fn groups(settings: &PortSettings) -> Result<(), String> {
    let count = settings.mcast_groups.as_ref().map_or(0, Vec::len);
    if count > STATIC_GROUPS_MAX {
        return Err(format!("mcast_groups: {count} groups are more than {STATIC_GROUPS_MAX}"));
    }
    match settings.mcast_max_groups {
        Some(most) if most > MCAST_GROUPS_MAX => {
            Err(format!("mcast_max_groups = {most} is out of range, 0 to {MCAST_GROUPS_MAX}"))
        }
        _ => Ok(()),
    }
}

/// Checks the queue in front of a guest's ring.
///
/// # Errors
/// The port has no such ring or several, or the queue is too long.
pub fn queue_frames(
    kind: PortKind,
    machine: Option<&Machine>,
    frames: Option<u32>,
) -> Result<(), String> {
    let has_pairs = machine.and_then(|machine| machine.queues).is_some_and(|pairs| pairs > 1);
    match frames {
        Some(1..) if kind != PortKind::VhostUser => Err(format!(
            "queue_frames: only for ports of kind {}; others have rings or sockets of a length of \
             their own",
            PortKind::VhostUser.name()
        )),
        Some(1..) if has_pairs => Err("queue_frames: only for guests of one queue pair, because \
                                       one that is full would hold up the others; add the port \
                                       with --queues 1, in a file queues = 1"
            .to_owned()),
        Some(frames) if frames > QUEUE_FRAMES_MAX => {
            Err(format!("queue_frames = {frames} is out of range, 0 to {QUEUE_FRAMES_MAX}"))
        }
        _ => Ok(()),
    }
}

/// Checks what a mirror port mirrors.
///
/// # Errors
/// Too many ports, or one of them twice.
pub fn mirror(mirror: &Mirror) -> Result<(), String> {
    let Mirror { from, .. } = mirror;
    if from.len() > MIRROR_PORTS_MAX {
        return Err(format!("mirror: at most {MIRROR_PORTS_MAX} ports in `from`"));
    }
    let twice = from.iter().enumerate().find(|(at, name)| from[..*at].contains(name));
    twice.map_or(Ok(()), |(_, name)| Err(format!("mirror: {name} is in `from` twice")))
}

/// Why an instance number is refused without a service.
pub const INSTANCE: &str = "instance: only a port of a service has an instance number; set \
                            service, too, as in service firewall";

/// Checks the name of a service or a chain; an empty one stands for none.
///
/// # Errors
/// What a name may have.
pub fn role_name<'a>(what: &str, name: Option<&'a str>) -> Result<Option<&'a str>, String> {
    let name = name.filter(|name| !name.is_empty());
    match name.is_none_or(is_ident) {
        true => Ok(name),
        false => Err(format!("{what}: {IDENT}")),
    }
}

/// Checks the label of a port; an empty one stands for none. What it may have neither moves a
/// terminal's cursor nor turns its text around.
///
/// # Errors
/// What a label may have.
pub fn label(text: Option<&str>) -> Result<Option<&str>, String> {
    let text = text.filter(|text| !text.is_empty());
    match text.is_none_or(is_label) {
        true => Ok(text),
        false => Err(format!(
            "label: only Latin letters, digits, ASCII punctuation and single blanks between them, \
             {LABEL_MAX} characters at most, as in \"web server\""
        )),
    }
}

fn is_label(text: &str) -> bool {
    let is_shown = |c: char| c.is_ascii_graphic() || (c.is_alphanumeric() && c < '\u{300}');
    let words = || text.split(' ');
    text.chars().count() <= LABEL_MAX
        && words().all(|word| !word.is_empty() && word.chars().all(is_shown))
}

/// Checks that an instance of a service enters no chain.
///
/// # Errors
/// Both are given.
pub fn role(service: Option<&str>, chain: Option<&str>) -> Result<(), String> {
    match (service, chain) {
        (Some(_), Some(_)) => {
            Err("chain: not for an instance of a service, which gets its frames from chains".into())
        }
        _ => Ok(()),
    }
}

/// Whether a service or a chain may have this name.
fn is_ident(name: &str) -> bool {
    (1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Characters of the name of a service or a chain.
const IDENT: &str = "only letters, digits and '_', 32 at most, as in firewall";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_an_instance_number_is_refused_without_a_service() {
        let settings = |service: Option<&str>, instance| PortSettings {
            service: service.map(str::to_owned),
            instance,
            ..PortSettings::default()
        };
        assert_eq!(port_settings(&settings(Some("fw"), Some(3))), Ok(()));
        assert_eq!(port_settings(&settings(None, None)), Ok(()));
        for none in [None, Some("")] {
            assert_eq!(port_settings(&settings(none, Some(3))), Err(INSTANCE.to_owned()));
        }
    }

    #[test]
    fn test_a_label_is_short_and_printable() {
        let longest = "ü".repeat(LABEL_MAX);
        for good in ["web", "web server (10%)", "shop/frontend-7d4b", "Küche", &longest] {
            assert_eq!(label(Some(good)), Ok(Some(good)));
        }
        for none in [None, Some("")] {
            assert_eq!(label(none), Ok(None));
        }
        let too_long = "a".repeat(LABEL_MAX + 1);
        for bad in ["a\nb", "\u{1b}[2J", "a  b", " a", "a ", "\u{5d0}", "a\u{200b}", &too_long] {
            assert!(label(Some(bad)).unwrap_err().starts_with("label: only"), "{bad:?}");
        }
    }
}
