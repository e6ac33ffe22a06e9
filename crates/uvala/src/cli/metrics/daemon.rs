//! Samples of the daemon, its users and its workers.

use protocol::users::user_name;
use protocol::{UserUsage, WorkerInfo};

use super::Seen;
use super::page::Kind::{Counter, Gauge, Histogram};
use super::page::{Family, Labels, Page, billionths, thousandths};

/// The families, in order.
pub const FAMILIES: [Family; 21] = [
    ("daemon_info", Gauge, "The daemon, with its version; always 1."),
    ("daemon_uptime_seconds", Gauge, "Time since the daemon started."),
    ("daemon_cpu_seconds_total", Counter, "Processor time of all threads of the daemon."),
    ("daemon_resident_memory_bytes", Gauge, "Memory of the daemon that is resident."),
    ("daemon_open_fds", Gauge, "Descriptors that the daemon has open."),
    ("daemon_max_fds", Gauge, "Descriptors that the daemon may have open."),
    ("daemon_unsaved_switches", Gauge, "Switches whose state the daemon cannot write."),
    ("user_switches", Gauge, "Switches that a user owns."),
    ("user_ports", Gauge, "Ports that a user has created."),
    ("user_memory_bytes", Gauge, "Memory that a user is charged for."),
    ("user_connections", Gauge, "Connections of a user to the control socket."),
    ("user_rules", Gauge, "Rules and chains of the switches that a user owns."),
    ("user_static_addresses", Gauge, "Static addresses of the switches that a user owns."),
    ("worker_ports", Gauge, "Ports of a worker."),
    ("worker_cpu_seconds_total", Counter, "Processor time of a worker."),
    ("worker_kicks_total", Counter, "Kicks of clients and guests that a worker answered."),
    ("worker_stalls_total", Counter, "How often a worker stood still for 50 ms or longer."),
    ("worker_longest_turn_seconds", Gauge, "The longest timed turn of a worker, or stall in one."),
    (
        "worker_turn_seconds",
        Histogram,
        "Turns of a worker by their length; one round of turns in 128 is timed.",
    ),
    (
        "worker_batch_slots",
        Histogram,
        "Batches that a worker took in timed turns, by their number of slots.",
    ),
    ("worker_info", Gauge, "A worker, with the core that it is bound to; always 1."),
];

/// Adds the samples.
pub fn add(page: &mut Page, seen: &Seen) {
    let (Seen { info, usage, .. }, none) = (seen, &Labels::default());
    page.add("daemon_info", &Labels::of("version", &info.version), 1);
    page.add("daemon_uptime_seconds", none, info.uptime_s);
    page.add("daemon_cpu_seconds_total", none, thousandths(usage.cpu_ms));
    page.add("daemon_resident_memory_bytes", none, usage.resident_memory);
    page.add("daemon_open_fds", none, usage.descriptors);
    if let Some(most) = usage.descriptors_max {
        page.add("daemon_max_fds", none, most);
    }
    page.add("daemon_unsaved_switches", none, usage.unsaved_files);
    seen.users.iter().for_each(|usage| user(page, usage));
    seen.workers.iter().for_each(|info| worker(page, info));
}

fn user(page: &mut Page, usage: &UserUsage) {
    let own = Labels::of("user", user_name(usage.uid));
    page.add("user_switches", &own, usage.switches);
    page.add("user_ports", &own, usage.ports);
    page.add("user_memory_bytes", &own, usage.memory);
    page.add("user_connections", &own, usage.connections);
    page.add("user_rules", &own, usage.rules);
    page.add("user_static_addresses", &own, usage.static_addresses);
}

fn worker(page: &mut Page, info: &WorkerInfo) {
    let own = Labels::of("worker", info.worker.to_string());
    let core = info.cpu.map(|core| core.to_string()).unwrap_or_default();
    page.add("worker_info", &own.and("core", core), 1);
    page.add("worker_ports", &own, info.ports);
    page.add("worker_cpu_seconds_total", &own, thousandths(info.cpu_ms));
    page.add("worker_kicks_total", &own, info.kicks);
    page.add("worker_stalls_total", &own, info.stalls);
    page.add("worker_longest_turn_seconds", &own, billionths(info.longest_turn_ns));
    let turns = (&info.turns_ns_log2[..], info.turns_ns);
    page.histogram("worker_turn_seconds", &own, turns, billionths);
    let batches = (&info.batches_log2[..], info.batch_slots);
    page.histogram("worker_batch_slots", &own, batches, |slots| slots.to_string());
}
