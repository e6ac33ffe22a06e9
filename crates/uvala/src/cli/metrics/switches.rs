//! Samples of switches and their ports.

use protocol::name::PortName;
use protocol::{
    LinkState, MachineState, McastCounters, PortInfo, PortStats, SwitchInfo, VxlanInfo,
};

use super::page::Kind::{Counter, Gauge};
use super::page::{Family, Labels, Page, billionths};

/// The families, in order.
pub const FAMILIES: [Family; 38] = [
    ("switch_ports", Gauge, "Ports of a switch."),
    ("switch_fdb_entries", Gauge, "Addresses in the forwarding database."),
    ("switch_fdb_max_entries", Gauge, "Addresses that have room in the forwarding database."),
    ("switch_fdb_learned_total", Counter, "Addresses learned that were not known."),
    ("switch_fdb_moved_total", Counter, "Addresses that changed port."),
    ("switch_fdb_aged_total", Counter, "Addresses forgotten because their station was silent."),
    ("switch_fdb_evicted_total", Counter, "Addresses that made room for others."),
    ("switch_fdb_refused_total", Counter, "Addresses that were not learned, by reason."),
    (
        "switch_loop_seconds_total",
        Counter,
        "Seconds in which addresses moved back and forth between two ports.",
    ),
    ("switch_mdb_groups", Gauge, "Multicast groups with members (snooping)."),
    ("switch_mdb_members", Gauge, "Ports that are members of multicast groups."),
    ("switch_mdb_queriers", Gauge, "VLANs with a querier, for IGMP and for MLD."),
    ("switch_mdb_messages_total", Counter, "Messages about multicast groups, by type."),
    ("switch_mdb_queries_sent_total", Counter, "Queries that the switch has sent."),
    ("switch_mdb_expired_total", Counter, "Memberships that ended without a leave."),
    ("switch_mdb_refused_total", Counter, "Memberships that were not learned, by reason."),
    ("port_info", Gauge, "A port, with its kind and label; always 1."),
    ("port_attached", Gauge, "Whether a program or a virtual machine is at a port."),
    ("port_link_up", Gauge, "Whether the interface or virtual machine of a port is up."),
    ("port_disabled", Gauge, "Whether the switch has disabled a port (BPDU guard, loop)."),
    ("port_memory_bytes", Gauge, "Shared memory of a port."),
    ("vxlan_remotes", Gauge, "Remotes of a tunnel."),
    ("vxlan_remote_stations", Gauge, "Stations that a tunnel has learned behind a remote."),
    ("vxlan_path_mtu_bytes", Gauge, "MTU that the routes to all remotes leave to frames inside."),
    ("vxlan_neigh_entries", Gauge, "IP addresses of stations that a vxlan port knows, by origin."),
    ("vxlan_neigh_suppressed_total", Counter, "ARP and ND requests that a vxlan port answered."),
    ("vxlan_neigh_refused_total", Counter, "IP addresses for which a vxlan port had no room."),
    ("port_tx_frames_total", Counter, "Frames that the client of a port sent."),
    ("port_tx_bytes_total", Counter, "Bytes that the client of a port sent."),
    ("port_rx_frames_total", Counter, "Frames that the client of a port was given."),
    ("port_rx_bytes_total", Counter, "Bytes that the client of a port was given."),
    (
        "port_dropped_frames_total",
        Counter,
        "Frames dropped at a port, by reason (uvala stats --explain).",
    ),
    ("port_resyncs_total", Counter, "Rings repaired after their client wrote a bad index."),
    ("port_abandoned_slots_total", Counter, "Slots with frames that a client left behind."),
    ("port_wakeups_total", Counter, "How often the switch woke the program of a port."),
    ("port_longest_turn_seconds", Gauge, "The longest timed turn of a port at its worker."),
    ("port_rx_ring_used_slots", Gauge, "Slots with frames in the receive rings of a program."),
    ("port_rx_ring_slots", Gauge, "Slots of the receive rings of a program."),
];

/// Adds the samples of a switch.
pub fn switch(page: &mut Page, info: &SwitchInfo) {
    let (own, fdb) = (Labels::of("switch", info.switch.as_str()), &info.fdb);
    page.add("switch_ports", &own, info.ports);
    page.add("switch_fdb_entries", &own, info.fdb_entries);
    page.add("switch_fdb_max_entries", &own, info.fdb_capacity);
    page.add("switch_fdb_learned_total", &own, fdb.learned);
    page.add("switch_fdb_moved_total", &own, fdb.moved);
    page.add("switch_fdb_aged_total", &own, fdb.aged);
    page.add("switch_fdb_evicted_total", &own, fdb.evicted);
    for (reason, count) in [("limit", fdb.refused_limit), ("full", fdb.refused_full)] {
        page.add("switch_fdb_refused_total", &own.and("reason", reason), count);
    }
    page.add("switch_loop_seconds_total", &own, fdb.loop_seconds);
    if info.mcast_snooping {
        groups(page, &own, &info.mcast);
    }
}

fn groups(page: &mut Page, own: &Labels, mcast: &McastCounters) {
    page.add("switch_mdb_groups", own, mcast.groups);
    page.add("switch_mdb_members", own, mcast.members);
    page.add("switch_mdb_queriers", own, mcast.queriers);
    page.add("switch_mdb_queries_sent_total", own, mcast.queries_sent);
    page.add("switch_mdb_expired_total", own, mcast.expired);
    for (kind, count) in [
        ("report", mcast.reports),
        ("leave", mcast.leaves),
        ("query", mcast.queries),
        ("malformed", mcast.malformed),
    ] {
        page.add("switch_mdb_messages_total", &own.and("type", kind), count);
    }
    for (reason, count) in [("limit", mcast.refused_limit), ("full", mcast.refused_full)] {
        page.add("switch_mdb_refused_total", &own.and("reason", reason), count);
    }
}

/// The labels of a port: the two parts of its name, a pipe's end with its brace.
fn labels(port: &PortName) -> Labels {
    let name = port.to_string();
    let (switch, own) = name.split_once(':').expect("a port's name has a colon");
    Labels::of("switch", switch).and("port", own)
}

/// Adds the samples of a port.
pub fn port(page: &mut Page, info: &PortInfo) {
    let own = labels(&info.port);
    let about = own.and("kind", info.kind.name());
    let label = info.settings.label.as_ref();
    page.add("port_info", &label.map_or(about.clone(), |label| about.and("label", label)), 1);
    let machine = info.machine.as_ref().map(|machine| machine.state);
    let has_machine = matches!(machine, Some(MachineState::Connected | MachineState::Up));
    page.add("port_attached", &own, u8::from(info.client.is_some() || has_machine));
    let interface = info.host.as_ref().map(|host| host.state == LinkState::Up);
    if let Some(is_up) = interface.or(machine.map(|state| state == MachineState::Up)) {
        page.add("port_link_up", &own, u8::from(is_up));
    }
    page.add("port_disabled", &own, u8::from(info.disabled.is_some()));
    page.add("port_memory_bytes", &own, info.memory);
    if let Some(info) = &info.vxlan {
        tunnel(page, &own, info);
    }
}

fn tunnel(page: &mut Page, own: &Labels, info: &VxlanInfo) {
    page.add("vxlan_remotes", own, info.remotes.len());
    for remote in &info.remotes {
        let labels = own.and("remote", remote.address.to_string());
        page.add("vxlan_remote_stations", &labels, remote.learned);
    }
    if let Some(mtu) = info.path_mtu {
        page.add("vxlan_path_mtu_bytes", own, mtu);
    }
    if let Some(neigh) = info.neigh {
        for (origin, count) in [("local", neigh.local), ("extern_learn", neigh.extern_learned)] {
            page.add("vxlan_neigh_entries", &own.and("origin", origin), count);
        }
        page.add("vxlan_neigh_suppressed_total", own, neigh.suppressed);
        page.add("vxlan_neigh_refused_total", own, neigh.refused);
    }
}

/// Adds the counters of a port.
pub fn counters(page: &mut Page, stats: &PortStats) {
    let own = &labels(&stats.port);
    page.add("port_tx_frames_total", own, stats.tx.frames);
    page.add("port_tx_bytes_total", own, stats.tx.bytes);
    page.add("port_rx_frames_total", own, stats.rx.frames);
    page.add("port_rx_bytes_total", own, stats.rx.bytes);
    page.by_reason("port_dropped_frames_total", own, &stats.drops);
    page.add("port_resyncs_total", own, stats.resyncs);
    page.add("port_abandoned_slots_total", own, stats.abandoned);
    page.add("port_wakeups_total", own, stats.wakes);
    page.add("port_longest_turn_seconds", own, billionths(stats.longest_turn_ns));
    if let Some(fill) = stats.rx_fill {
        page.add("port_rx_ring_used_slots", own, fill.slots);
        page.add("port_rx_ring_slots", own, fill.capacity);
    }
}
