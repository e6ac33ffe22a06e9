//! Samples of forwarding programs.

use protocol::ProgramInfo;

use super::page::Kind::{Counter, Gauge};
use super::page::{Family, Labels, Page};

/// The families, in order.
pub const FAMILIES: [Family; 4] = [
    ("program_decisions_total", Counter, "Decisions that a forwarding program was asked for."),
    ("program_failures_total", Counter, "Decisions that a forwarding program failed to give."),
    ("program_map_entries", Gauge, "Entries of a map of a forwarding program."),
    ("program_map_max_entries", Gauge, "Entries that have room in a map."),
];

/// Adds the samples of a program.
pub fn add(page: &mut Page, info: &ProgramInfo) {
    let own = Labels::of("switch", info.switch.as_str());
    page.add("program_decisions_total", &own, info.runs);
    page.add("program_failures_total", &own, info.faults);
    for map in &info.maps {
        let labels = own.and("map", &map.map);
        page.add("program_map_entries", &labels, map.entries);
        page.add("program_map_max_entries", &labels, map.max_entries);
    }
}
