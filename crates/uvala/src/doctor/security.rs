//! Loops between ports, and ports that their switches have disabled.

use protocol::{PortInfo, SwitchInfo};

use super::{Finding, problem};

/// Loops that switches have seen within a minute.
pub fn loops(switches: &[SwitchInfo]) -> Vec<Finding> {
    let finding = |switch: &SwitchInfo| {
        let found = switch.looped.as_ref()?;
        let ([a, b], mac, vlan) = (&found.ports, found.mac, found.vlan);
        let what = format!(
            "loop between {a} and {b}: {mac} of VLAN {vlan} moves back and forth (seen {} s ago)",
            found.age_ms / 1000
        );
        let cure = "disconnect one of the two ports, or give the stations different addresses; \
                    --loop-protect makes the switch disable a port";
        Some(problem(&switch.switch.to_string(), what, cure))
    };
    switches.iter().filter_map(finding).collect()
}

/// Ports that their switches have disabled.
pub fn disabled(ports: &[PortInfo]) -> Vec<Finding> {
    let finding = |port: &PortInfo| {
        let cause = match port.disabled.as_deref()? {
            "bpdu_guard" => "a bridge with a spanning tree is connected to it (bpdu-guard)",
            "loop_protect" => "a loop leads through it (loop-protect)",
            other => other,
        };
        let (port, what) = (port.port.to_string(), format!("disabled: {cause}"));
        Some(problem(&port, what, format!("disconnect that, then: uvala port enable {port}")))
    };
    ports.iter().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn test_a_loop_is_named_with_its_ports() {
        let mut switch = json!({
            "switch": "vale0", "persistent": true, "forwarding": "learning", "age_s": 300,
            "fdb_capacity": 1, "owner": 0, "group": 0, "mode": "600", "new_ports": "any",
            "ports": 2, "fdb_entries": 0, "worker": 0, "port_settings": {},
            "fdb": { "learned": 0, "moved": 0, "aged": 0, "evicted": 0, "refused_limit": 0,
                     "refused_full": 0 },
        });
        let read = |value: &serde_json::Value| -> Vec<SwitchInfo> {
            vec![serde_json::from_value(value.clone()).unwrap()]
        };
        assert_eq!(loops(&read(&switch)), []);
        switch["loop"] = json!({
            "ports": ["vale0:a", "vale0:b"], "mac": "02:00:00:00:00:01", "vlan": 1, "age_ms": 2500,
        });
        let found = loops(&read(&switch));
        assert!(found[0].what.starts_with("loop between vale0:a and vale0:b: 02:"), "{found:?}");
    }

    #[test]
    fn test_a_disabled_port_is_named_with_its_cure() {
        let mut port = json!({
            "port": "vale0:a", "kind": "shm", "number": 0, "persistent": true, "creator": 0,
            "client": null, "memory": 0, "trust_group": null, "settings": {},
        });
        let read = |value: &serde_json::Value| -> Vec<PortInfo> {
            vec![serde_json::from_value(value.clone()).unwrap()]
        };
        assert_eq!(disabled(&read(&port)), []);
        port["disabled"] = json!("bpdu_guard");
        let found = disabled(&read(&port));
        assert!(found[0].cure.ends_with("uvala port enable vale0:a"), "{found:?}");
    }
}
