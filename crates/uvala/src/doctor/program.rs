//! Forwarding programs that fail, or that the daemon refused.

use std::collections::BTreeMap;

use protocol::PortStats;
use protocol::name::SwitchName;

use super::{Finding, problem};

/// A switch that should have a program, and has none.
pub fn missing(switch: &SwitchName) -> Finding {
    let what = "drops all frames: it has no forwarding program";
    let cure = format!(
        "load one: uvala switch set {switch} --forwarding program:FILE; the daemon's log says why \
         it refused a saved one"
    );
    problem(&switch.to_string(), what, cure)
}

/// Names the switches whose programs have failed.
pub fn failing(stats: &[PortStats]) -> Vec<Finding> {
    let mut switches = BTreeMap::new();
    for port in stats {
        if let Some(frames) = port.drops.get("program_fault") {
            *switches.entry(port.port.switch()).or_insert(0) += frames;
        }
    }
    let finding = |(switch, frames)| {
        let what = format!("dropped {frames} frames because the forwarding program failed");
        let cure = format!("see why: uvala program show {switch}");
        problem(&format!("{switch}"), what, cure)
    };
    switches.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn test_a_switch_is_named_once_for_all_its_ports() {
        let port = |name: &str, faults: u64| -> PortStats {
            let none = json!({ "frames": 0, "bytes": 0 });
            serde_json::from_value(json!({
                "port": name, "tx": none, "rx": none, "drops": { "program_fault": faults },
                "tx_queues": [], "rx_queues": [],
            }))
            .unwrap()
        };
        let found = failing(&[port("vale0:a", 2), port("vale0:b", 3)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.starts_with("dropped 5 frames"), "{found:?}");
        assert_eq!(failing(&[]), []);
    }
}
