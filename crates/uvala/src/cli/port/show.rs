//! What `uvala port list` and `uvala port show` print.

use packet::shown::shown;
use packet::{MacAddr, VlanMode};
use protocol::{
    ClientInfo, HostIfInfo, LinkState, MachineInfo, Mirror, Mode, PortInfo, PortKind, SocketPlace,
    StaticGroup, users,
};

use crate::cli::{security, vxlan_args};
use terminal::table::{Table, cut, left, or_dash, right, short, yes};

/// The table of `port list`.
pub fn table(ports: &[PortInfo]) -> String {
    let mut columns = vec![
        left("PORT", |info: &PortInfo| info.port.to_string()),
        left("KIND", |info| info.kind.name().to_owned()),
        left("VLAN", |info| {
            cut(&info.settings.vlan.as_ref().map(VlanMode::to_string).unwrap_or_default(), 20)
        }),
        right("PID", |info| or_dash(vmm(info).or(info.client.as_ref().map(|client| client.pid)))),
        left("USER", |info| or_dash(info.client.as_ref().map(|it| users::user_name(it.uid)))),
        left("CLIENT", |info| or_dash(client_name(info).map(|name| cut(&name, 24)))),
        left("OWNER", |info| {
            let socket = socket_rights(info).map(|(owner, ..)| owner);
            users::user_name(info.settings.owner.or(socket).unwrap_or(info.creator))
        }),
        left("MODE", |info| or_dash(info.settings.mode.or(socket_rights(info).map(|it| it.2)))),
        right("MEMORY", |info| memory(info.memory)),
        left("TRUST GROUP", |info| or_dash(info.trust_group.as_ref())),
        left("LINK", |info| {
            let machine = || info.machine.as_ref().map(|machine| machine.state.to_string());
            or_dash(info.host.as_ref().map(|host| host.state.to_string()).or_else(machine))
        }),
        left("PERM", |info| yes(info.persistent)),
    ];
    if ports.iter().any(|info| info.settings.label.is_some()) {
        columns.push(left("LABEL", |info| {
            or_dash(info.settings.label.as_ref().map(|label| cut(label, 24)))
        }));
    }
    Table::of(ports, &columns).fitted()
}

/// PID of the VMM that is connected.
pub fn vmm(info: &PortInfo) -> Option<u32> {
    info.machine.as_ref()?.pid
}

/// Name of the VMM, or of the client as it calls itself.
pub fn client_name(info: &PortInfo) -> Option<String> {
    let vmm = vmm(info).and_then(|pid| std::fs::read(format!("/proc/{pid}/comm")).ok());
    let vmm = vmm.map(|comm| process_name(&comm));
    vmm.or_else(|| info.client.as_ref().map(|client| client.name.clone()))
}

/// The name of a process, which it can set to anything.
fn process_name(comm: &[u8]) -> String {
    let name = String::from_utf8_lossy(comm);
    shown(name.strip_suffix('\n').unwrap_or(&name), 64)
}

/// Why some carry nothing, and what helps.
pub fn troubles(ports: &[PortInfo]) -> String {
    let said = |info: &PortInfo| {
        let tunnel = || info.vxlan.as_ref()?.trouble.as_ref();
        let trouble = info.host.as_ref().and_then(|host| host.trouble.as_ref()).or_else(tunnel)?;
        Some(format!("{}: {trouble}\n", info.port))
    };
    ports.iter().filter_map(said).collect()
}

/// Owner, group and mode of the socket that a machine's port has.
fn socket_rights(info: &PortInfo) -> Option<(u32, u32, Mode)> {
    match info.machine.as_ref()?.place? {
        SocketPlace::Ours { owner, group, mode } => Some((owner, group, mode)),
        SocketPlace::Gone | SocketPlace::Replaced => None,
    }
}

fn show_machine(kind: PortKind, machine: &MachineInfo) -> String {
    let process = machine.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
    let role = if machine.connect { ", which the daemon connects to" } else { "" };
    let spaced = match (machine.coalesce_usecs, machine.coalesce_frames) {
        (None, _) => "adaptive".to_owned(),
        (Some(usecs), None) => format!("{usecs} us apart"),
        (Some(usecs), Some(frames)) => format!("{usecs} us or {frames} frames apart"),
    };
    let lost = match machine.place {
        Some(SocketPlace::Replaced) => {
            " (replaced by another program: delete the port and add it again)"
        }
        Some(SocketPlace::Gone) => " (missing: delete the port and add it again)",
        Some(SocketPlace::Ours { .. }) | None => "",
    };
    let mut text = format!(
        "socket           {}{role}{lost}\nmachine          {}{process}\n",
        machine.socket, machine.state
    );
    if kind == PortKind::VhostUser {
        text += &format!("queue pairs      {}\ninterrupts       {spaced}\n", machine.queues);
    }
    if let Some(peer) = &machine.peer {
        text += &format!("frames go to     {peer}\n");
    }
    if let Some(complaint) = &machine.complaint {
        text += &format!("last error       {complaint}\n");
    }
    if let Some(peer) = machine.rejected_peer {
        text += &format!("rejected peer    process {peer}; give it a port of its own\n");
    }
    text
}

/// `is_now`: the MTU is the present one.
fn show_host(host: &HostIfInfo, is_now: bool) -> String {
    let place = host.netns.as_ref().map(|name| format!(" in namespace {name}"));
    let is_known = host.state != LinkState::Gone || host.mtu > 0;
    let when = if is_now { "" } else { " when it was added" };
    let about = is_known.then(|| format!(", mtu {}{when}, {}", host.mtu, host.mac));
    let (place, about) = (place.unwrap_or_default(), about.unwrap_or_default());
    let mut text = format!("interface        {}{place} ({}){about}\n", host.ifname, host.state);
    for (name, value) in [("frames", &host.how), ("trouble", &host.trouble)] {
        if let Some(value) = value {
            text += &format!("{name:<15}  {value}\n");
        }
    }
    text
}

/// All about a port; `is_now`: the MTU of its interface is the present one.
pub fn details(info: &PortInfo, is_now: bool) -> String {
    let client = info.client.as_ref().map_or_else(|| "none".to_owned(), show_client);
    let number = info.number.map_or("-".to_owned(), |number| number.to_string());
    let mut text = format!(
        "port             {} ({})\nkind             {}\ncreated by       {}\n\
         number           {number}\n\
         client           {client}\nmemory           {}\ntrust group      {}\n",
        info.port,
        if info.persistent { "permanent" } else { "deleted with its client" },
        info.kind.name(),
        users::user_name(info.creator),
        memory(info.memory),
        info.trust_group.as_deref().unwrap_or("-"),
    );
    if let Some(host) = &info.host {
        text += &show_host(host, is_now);
    }
    if let Some(machine) = &info.machine {
        text += &show_machine(info.kind, machine);
    }
    if let Some(vxlan) = &info.vxlan {
        text += &vxlan_args::show(vxlan);
    }
    let settings = &info.settings;
    let (owner, group, mode) = match socket_rights(info) {
        Some((owner, group, mode)) => (Some(owner), Some(group), Some(mode)),
        None => (settings.owner, settings.group, settings.mode),
    };
    let flag = |value: Option<bool>| value.map(|value| value.to_string());
    for (name, value) in [
        ("label", settings.label.clone()),
        ("owner", Some(users::user_name(owner.unwrap_or(info.creator)))),
        ("unix group", group.map(users::group_name)),
        ("mode", mode.map(|mode| mode.to_string())),
        ("vlan", settings.vlan.as_ref().map(VlanMode::to_string)),
        ("isolated", flag(settings.isolated)),
        ("learning", flag(settings.learning)),
        ("unicast-flood", flag(settings.unicast_flood)),
        ("multicast-flood", flag(settings.multicast_flood)),
        ("broadcast-flood", flag(settings.broadcast_flood)),
        ("mcast-router", settings.mcast_router.map(|it| it.to_string())),
        ("fast-leave", flag(settings.mcast_fast_leave)),
        ("max-groups", settings.mcast_max_groups.map(|most| most.to_string())),
        ("mcast-groups", settings.mcast_groups.as_deref().map(show_groups)),
        ("on-full", settings.on_full.map(|it| it.to_string())),
        ("worker", show_worker(info)),
        ("vnet-header", settings.vnet_header.map(|bytes| bytes.to_string())),
        ("queue-frames", settings.queue_frames.map(|frames| frames.to_string())),
        ("service", settings.service.clone()),
        ("instance", settings.instance.map(|number| number.to_string())),
        ("chain", settings.chain.clone()),
        ("mirror of", settings.mirror.as_ref().map(show_mirror)),
    ] {
        text += &format!("{name:<15}  {}\n", value.as_deref().unwrap_or("-"));
    }
    text += &show_security(info);
    for (name, count) in &info.counts {
        text += &format!("{name:<21}  {count}\n");
    }
    text
}

fn show_client(client: &ClientInfo) -> String {
    let ClientInfo { pid, uid, name } = client;
    let name = if name.is_empty() { "unnamed" } else { name.as_str() };
    format!("process {pid} of {} ({name})", users::user_name(*uid))
}

/// The static multicast groups of a port.
fn show_groups(groups: &[StaticGroup]) -> String {
    groups.iter().map(StaticGroup::to_string).collect::<Vec<_>>().join(",")
}

/// The ports that a mirror port mirrors.
fn show_mirror(mirror: &Mirror) -> String {
    let rate = Some(mirror.rate).filter(|&rate| rate > 0);
    let rate = rate.map(|rate| format!(", at most {rate} frames/s")).unwrap_or_default();
    format!("{} ({}{rate})", mirror.from.join(","), mirror.direction)
}

/// The worker that the port asks for, and the one that it has.
fn show_worker(info: &PortInfo) -> Option<String> {
    let wanted = info.settings.worker?.to_string();
    Some(match info.worker {
        Some(now) if now.to_string() != wanted => format!("{wanted}, now {now}"),
        _ => wanted,
    })
}

fn show_security(info: &PortInfo) -> String {
    let rows = security::rows(&info.settings)
        .map(|(name, value)| format!("{name:<21}  {}\n", value.as_deref().unwrap_or("-")));
    let mut text = rows.concat();
    if !info.first_macs.is_empty() {
        let macs: Vec<_> = info.first_macs.iter().map(MacAddr::to_string).collect();
        text += &format!("locked to              {}\n", macs.join(","));
    }
    if let Some(cause) = &info.disabled {
        let cure = format!("uvala port enable {}", info.port);
        text += &format!("disabled by            {cause}; after removing the cause, run: {cure}\n");
    }
    text
}

/// Exact numbers of bytes are in the JSON.
fn memory(bytes: u64) -> String {
    let kib = u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
    if bytes == 0 { "-".to_owned() } else { short(f64::from(kib) * 1024.0) + "B" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_the_name_of_a_process_controls_no_terminal() {
        assert_eq!(process_name(b"qemu-system-x86\n"), "qemu-system-x86");
        assert_eq!(process_name(b"\x1b[2Ja\rb\n\n"), r"\u{1b}[2Ja\rb\n");
        assert_eq!(process_name(b"\xff\n"), "\u{fffd}");
    }
}
