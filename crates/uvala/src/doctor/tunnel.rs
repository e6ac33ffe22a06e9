//! Ports of kind vxlan that carry nothing, and what arrives there and is dropped.

use std::collections::BTreeMap;

use protocol::{PortInfo, PortStats, VxlanInfo};

use super::{Finding, note, problem};

/// Drop reasons that point to the other end, what happens, and what to do about it at port `PORT`.
const ARRIVING: [(&str, &str, &str); 3] = [
    (
        "vxlan_vni",
        "datagrams of another virtual network",
        "give both ends one --vni; it is fixed, so delete the port and add it again; of a trunk, \
         give the VLAN one: uvala port set PORT --add-vlan-vni",
    ),
    (
        "vxlan_remote",
        "datagrams from hosts that are no remotes",
        "if they belong to the tunnel: uvala port set PORT --add-remote ADDRESS",
    ),
    (
        "too_long",
        "frames longer than the path takes",
        "give the stations the MTU that the routes leave (uvala port show PORT)",
    ),
];

/// Checks the tunnels among the ports.
pub fn tunnels(ports: &[PortInfo], stats: &[PortStats]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for port in ports {
        let Some(info) = port.vxlan.as_deref() else { continue };
        let name = port.port.to_string();
        findings.extend(way(&name, info));
        let counted = stats.iter().find(|it| it.port == port.port);
        findings.extend(counted.into_iter().flat_map(|it| arriving(&name, &it.drops)));
    }
    findings
}

/// What the port drops that says something of the other end.
fn arriving(name: &str, drops: &BTreeMap<String, u64>) -> Vec<Finding> {
    let finding = |&(reason, what, cure): &(&str, &str, &str)| {
        let frames = drops.get(reason)?;
        let cure = cure.replace("PORT", name);
        Some(note(name, format!("dropped {frames} {what} ({reason})"), cure))
    };
    ARRIVING.iter().filter_map(finding).collect()
}

/// Whether a tunnel has a way to its remotes.
fn way(name: &str, info: &VxlanInfo) -> Option<Finding> {
    if let Some(trouble) = &info.trouble {
        let cure = "mend that; the port opens its sockets when the daemon starts, or when you \
                    delete it and add it again";
        return Some(problem(name, trouble.as_str(), cure));
    }
    let Some(remote) = info.remotes.first() else {
        let cure =
            format!("uvala port set {name} --add-remote ADDRESS, or with BGP: uvala-evpn {name}");
        return Some(note(name, "the tunnel has no remote", cure));
    };
    let (local, remote) = (info.local, remote.address);
    let cure = format!(
        "give this host the address {local} (see: ip address), and a route (see: ip route get \
         {remote} from {local})"
    );
    let Some(path) = info.path_mtu else {
        return Some(problem(name, "no remote of the tunnel has a route", cure));
    };
    let mtu = info.mtu.filter(|mtu| *mtu > path)?;
    let what = format!("takes frames of {mtu} bytes (--mtu), and the routes leave {path}");
    let cure = "delete the port, and add it again with a smaller --mtu, or none";
    Some(note(name, what, cure))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is found about a tunnel that differs in this from one that works.
    fn found(change: &serde_json::Value) -> Vec<String> {
        let mut info = json!({
            "vni": 7, "local": "10.0.0.1", "dst_port": 4789, "ttl": 64, "dscp": 0, "df": true,
            "mtu": 1450, "path_mtu": 1450, "remotes": [{ "address": "10.0.0.2", "learned": 0 }],
        });
        for (key, value) in change.as_object().into_iter().flatten() {
            info[key] = value.clone();
        }
        let info: VxlanInfo = serde_json::from_value(info).unwrap();
        way("vale0:f", &info).into_iter().map(|it| it.what).collect()
    }

    #[test]
    fn test_a_tunnel_without_a_way_is_named() {
        assert_eq!(found(&json!({})), [""; 0]);
        let none = found(&json!({ "mtu": 9000, "path_mtu": null }));
        assert_eq!(none, ["no remote of the tunnel has a route"], "whatever was set");
        let long = found(&json!({ "mtu": 9000 }));
        assert_eq!(long, ["takes frames of 9000 bytes (--mtu), and the routes leave 1450"]);
        assert_eq!(found(&json!({ "mtu": 1400 })), [""; 0]);
        assert_eq!(found(&json!({ "remotes": [] })), ["the tunnel has no remote"]);
        assert_eq!(found(&json!({ "trouble": "port 4789 is taken" })), ["port 4789 is taken"]);
    }

    #[test]
    fn test_drops_that_point_to_the_other_end_are_named() {
        let drops = [("vxlan_vni", 3), ("no_room", 9)].map(|(why, n)| (why.to_owned(), n));
        let found = arriving("vale0:f", &drops.into());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.starts_with("dropped 3 datagrams of another"), "{found:?}");
    }
}
