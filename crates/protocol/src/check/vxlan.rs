//! Ports of kind vxlan: whether addresses and numbers go together.

use std::collections::BTreeSet;
use std::net::IpAddr;

use packet::vxlan::Vni;
use packet::{VlanId, VlanMode};

use super::unicast;
use crate::vxlan::VXLAN_NEEDS;
use crate::{
    Address, EXTERN_REMOTES_MAX, ExternLearn, PortKind, REMOTES_MAX, VNIS_MAX, VXLAN_FDB_MAX, Vxlan,
};

/// The least MTU: that of IPv4.
const MTU_MIN: u32 = 576;
/// The greatest: the longest frame that fits into a datagram, without its header and tag.
const MTU_MAX: u32 = 65_507 - 8 - 14 - 4;
/// The greatest code point of 6 bits.
const DSCP_MAX: u8 = 63;

/// Checks the tunnel of a port of this kind, and fills in defaults; `None` for kinds without one.
///
/// # Errors
/// What does not go together, and what does.
pub fn vxlan(kind: PortKind, vxlan: Option<&Vxlan>) -> Result<Option<Vxlan>, String> {
    match (kind, vxlan) {
        (PortKind::Vxlan, None) => Err(VXLAN_NEEDS.to_owned()),
        (PortKind::Vxlan, Some(vxlan)) => check(vxlan).map(|()| Some(vxlan.normal())),
        (_, None) => Ok(None),
        (kind, Some(_)) => Err(format!(
            "vni, vlan_vni, local, remote, dst_port, ttl, dscp, df, neigh_suppress and fdb: not \
             for kind {}, only for vxlan",
            kind.name()
        )),
    }
}

fn check(vxlan: &Vxlan) -> Result<(), String> {
    check_networks(vxlan)?;
    if vxlan.udp_port() == 0 {
        return Err("dst_port = 0 is out of range, 1 to 65535".to_owned());
    }
    if vxlan.ttl == Some(0) {
        return Err("ttl = 0 is out of range, 1 to 255".to_owned());
    }
    if let Some(dscp) = vxlan.dscp.filter(|dscp| *dscp > DSCP_MAX) {
        return Err(format!("dscp = {dscp} is out of range, 0 to {DSCP_MAX}"));
    }
    if let Some(mtu) = vxlan.mtu.filter(|mtu| !(MTU_MIN..=MTU_MAX).contains(mtu)) {
        return Err(format!("mtu = {mtu} is out of range, {MTU_MIN} to {MTU_MAX}"));
    }
    check_address("local", vxlan.local)?;
    check_remotes(vxlan)?;
    check_stations(vxlan)
}

/// Checks whether a port with these VLANs can have a tunnel with a network for each VLAN.
///
/// # Errors
/// The port is no trunk, or has a VLAN without a tag.
pub fn vlan_vni(vxlan: Option<&Vxlan>, vlan: &VlanMode) -> Result<(), String> {
    let is_trunk = matches!(vlan, VlanMode::Trunk { native: None, .. });
    match vxlan.is_some_and(|vxlan| !vxlan.vlan_vni.is_empty()) {
        true if !is_trunk => Err(format!(
            "vlan_vni needs a trunk whose frames all have a tag, and vlan is {vlan}; write \
             --vlan trunk:10,20"
        )),
        _ => Ok(()),
    }
}

fn check_networks(vxlan: &Vxlan) -> Result<(), String> {
    match (vxlan.vni, vxlan.vlan_vni.len()) {
        (None, 0) => return Err(VXLAN_NEEDS.to_owned()),
        (Some(_), 1..) => {
            return Err("vni and vlan_vni: a port has one VNI, or one for each VLAN".to_owned());
        }
        (_, count) if count > VNIS_MAX => {
            return Err(format!("vlan_vni: {count} are too many, {VNIS_MAX} at most"));
        }
        _ => {}
    }
    if let Some(vni) = vxlan.vnis().find(|vni| Vni::new(*vni).is_none()) {
        return Err(format!("vni = {vni} is out of range, 0 to {}", Vni::MAX));
    }
    let (mut vlans, mut vnis) = (BTreeSet::new(), BTreeSet::new());
    match vxlan.vlan_vni.iter().find(|it| !vlans.insert(it.vlan) || !vnis.insert(it.vni)) {
        Some(twice) => Err(format!("vlan_vni {twice}: the VLAN or the VNI is given twice")),
        None => Ok(()),
    }
}

/// Checks what a routing daemon says of stations behind this tunnel's remotes. Returns the VLAN of
/// the stations, where each VLAN has a VNI.
///
/// # Errors
/// The station that cannot be one, or whose remote the tunnel does not have in the VLAN.
pub fn extern_learn(vxlan: &Vxlan, learn: &ExternLearn) -> Result<Option<VlanId>, String> {
    let vlan = extern_vlan(vxlan, learn.vlan)?;
    let remotes = vxlan.remote_vlans();
    for station in &learn.add {
        unicast(station.mac).map_err(|error| format!("extern_learn: {error}"))?;
        if !remotes.has(station.remote, vlan.unwrap_or(VlanId::DEFAULT)) {
            let remote = station.remote;
            return Err(format!("extern_learn {station}: add the remote {remote} first"));
        }
    }
    for neigh in &learn.add_neigh {
        unicast(neigh.mac).map_err(|error| format!("extern_learn: {error}"))?;
        if !packet::neigh::is_unicast(neigh.address) {
            let ip = neigh.address;
            return Err(format!("extern_learn: no single station has the address {ip}"));
        }
    }
    Ok(vlan)
}

fn extern_vlan(vxlan: &Vxlan, vlan: Option<u16>) -> Result<Option<VlanId>, String> {
    match (vxlan.vni, vlan) {
        (Some(_), None) => Ok(None),
        (Some(_), Some(_)) => Err("extern_learn: vlan: only for a port with vlan_vni".to_owned()),
        (None, None) => Err("extern_learn: a port with vlan_vni needs vlan".to_owned()),
        (None, Some(vlan)) => {
            let found = vxlan.vlan_vni.iter().find(|it| it.vlan.get() == vlan);
            let wrong = || format!("extern_learn: vlan_vni has no VLAN {vlan}");
            found.map(|it| Some(it.vlan)).ok_or_else(wrong)
        }
    }
}

fn check_address(what: &str, ip: IpAddr) -> Result<(), String> {
    Address::alone(ip).check_host().map_err(|_| {
        format!("{what}: no single host has the address {ip}; name one such as 10.0.0.1")
    })?;
    match ip {
        // Such an address means nothing without an interface.
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            Err(format!("{what}: {ip} is link-local; use a global or unique local address"))
        }
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(format!("{what}: {ip} is an IPv4 address; write it as one"))
        }
        _ => Ok(()),
    }
}

fn check_remotes(vxlan: &Vxlan) -> Result<(), String> {
    let remotes = vxlan.all_remotes();
    if remotes.len() > REMOTES_MAX {
        let count = remotes.len();
        return Err(format!("remote: {count} are too many, {REMOTES_MAX} at most"));
    }
    if let Some(remote) = twice(&vxlan.remote) {
        return Err(format!("remote {remote} is given twice"));
    }
    check_extern_remotes(vxlan)?;
    remotes.into_iter().try_for_each(|remote| vxlan_remote(vxlan.local, remote))
}

/// Checks whether a tunnel with this local address can have this remote.
///
/// # Errors
/// What is wrong with the remote.
pub fn vxlan_remote(local: IpAddr, remote: IpAddr) -> Result<(), String> {
    check_address("remote", remote)?;
    if remote.is_ipv4() != local.is_ipv4() {
        return Err(format!("remote {remote} and local {local}: both IPv4, or both IPv6"));
    }
    if remote == local {
        return Err(format!("remote {remote} is local, too; name the other host"));
    }
    Ok(())
}

fn check_extern_remotes(vxlan: &Vxlan) -> Result<(), String> {
    let count = vxlan.extern_remote.len();
    if count > EXTERN_REMOTES_MAX {
        return Err(format!("extern_remote: {count} are too many, {EXTERN_REMOTES_MAX} at most"));
    }
    if let Some(remote) = twice(&vxlan.extern_remote) {
        return Err(format!("extern_remote {remote} is given twice"));
    }
    let vlans: BTreeSet<VlanId> = vxlan.vlan_vni.iter().map(|it| it.vlan).collect();
    let is_stray = |vlan: VlanId| !vlans.contains(&vlan);
    match vxlan.extern_remote.iter().find(|it| it.vlan.is_some_and(is_stray)) {
        Some(stray) => Err(format!("extern_remote {stray}: vlan_vni has no such VLAN")),
        None => Ok(()),
    }
}

/// What is in a list for the second time.
fn twice<T: Ord>(list: &[T]) -> Option<&T> {
    let mut seen = BTreeSet::new();
    list.iter().find(|it| !seen.insert(*it))
}

fn check_stations(vxlan: &Vxlan) -> Result<(), String> {
    if vxlan.fdb.len() > VXLAN_FDB_MAX {
        return Err(format!("fdb: {} are too many, {VXLAN_FDB_MAX} at most", vxlan.fdb.len()));
    }
    let mut seen = BTreeSet::new();
    for station in &vxlan.fdb {
        unicast(station.mac).map_err(|error| format!("fdb: {error}"))?;
        if !vxlan.remote.contains(&station.remote) {
            let remote = station.remote;
            return Err(format!("fdb {station}: add the remote {remote} first"));
        }
        if !seen.insert(station.mac) {
            return Err(format!("fdb: {} is given twice", station.mac));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnel() -> Vxlan {
        let fields = r#"{"vni":100,"local":"10.0.0.1","remote":["10.0.0.2","10.0.0.3"],
            "fdb":["02:00:00:00:00:01=10.0.0.2"]}"#;
        serde_json::from_str(fields).expect("a tunnel")
    }

    #[test]
    fn a_tunnel_is_for_its_kind_and_the_kind_needs_one() {
        let good = tunnel();
        assert_eq!(vxlan(PortKind::Vxlan, Some(&good)), Ok(Some(good.normal())));
        assert_eq!(vxlan(PortKind::Shm, None), Ok(None));
        assert!(vxlan(PortKind::Shm, Some(&good)).unwrap_err().contains("only for vxlan"));
        assert_eq!(vxlan(PortKind::Vxlan, None), Err(VXLAN_NEEDS.to_owned()));
        let alone = Vxlan { remote: vec![], fdb: vec![], ..good };
        assert!(vxlan(PortKind::Vxlan, Some(&alone)).is_ok(), "remotes may come later");
    }

    #[test]
    fn a_trunk_has_a_network_for_each_vlan_and_no_other() {
        let map = |pairs: &[&str]| {
            let vlan_vni = pairs.iter().map(|pair| pair.parse().expect("a pair")).collect();
            Vxlan { vni: None, vlan_vni, ..tunnel() }
        };
        let good = map(&["20:1020", "10:1010"]);
        let normal = vxlan(PortKind::Vxlan, Some(&good)).expect("good").expect("a tunnel");
        assert_eq!(normal.vnis().collect::<Vec<_>>(), [1010, 1020]);
        let many: Vec<String> = (1..=257).map(|i| format!("{i}:{i}")).collect();
        let many = map(&many.iter().map(String::as_str).collect::<Vec<_>>());
        for (bad, said) in [
            (map(&[]), "needs vni"),
            (Vxlan { vni: Some(7), ..good.clone() }, "one VNI, or one for each VLAN"),
            (map(&["10:1", "10:2"]), "10:2: the VLAN or the VNI is given twice"),
            (map(&["10:1", "20:1"]), "twice"),
            (many, "257 are too many"),
        ] {
            let error = vxlan(PortKind::Vxlan, Some(&bad)).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
        let mode = |text: &str| text.parse().expect("a mode");
        assert_eq!(vlan_vni(Some(&good), &mode("trunk:10,20")), Ok(()));
        for bad in ["transparent", "access:10", "trunk:10,native=20"] {
            let error = vlan_vni(Some(&good), &mode(bad)).unwrap_err();
            assert!(error.contains("--vlan trunk:"), "{error}");
            assert_eq!(vlan_vni(Some(&tunnel()), &mode(bad)), Ok(()));
        }
    }

    #[test]
    fn a_routing_daemon_names_remotes_and_stations_of_vlans_that_have_a_network() {
        let of_vlans = r#"{"vlan_vni":["10:1010","20:1020"],"local":"10.0.0.1",
            "extern_remote":["10=10.0.0.2"]}"#;
        let of_vlans: Vxlan = serde_json::from_str(of_vlans).expect("a tunnel");
        assert!(vxlan(PortKind::Vxlan, Some(&of_vlans)).is_ok());
        let remotes = |texts: &[&str]| {
            let remotes = texts.iter().map(|text| text.parse().expect("a remote"));
            let extern_remote = remotes.collect();
            vxlan(PortKind::Vxlan, Some(&Vxlan { extern_remote, ..of_vlans.clone() }))
        };
        assert!(remotes(&["10=10.0.0.2", "20=10.0.0.2", "10.0.0.2"]).is_ok());
        let many = (0..=EXTERN_REMOTES_MAX).map(|i| format!("10=10.1.1.{}", i % 256));
        let many: Vec<String> = many.collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        for (bad, said) in [
            (&["30=10.0.0.2"][..], "no such VLAN"),
            (&["10=10.0.0.2", "10=10.0.0.2"], "twice"),
            (&["10=10.0.0.1"], "is local, too"),
            (&many, "2049 are too many"),
        ] {
            let error = remotes(bad).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
        let learn = |vxlan: &Vxlan, vlan: &str| {
            let add = r#""port":"vale0:v","add":["02:00:00:00:00:09=10.0.0.2"]"#;
            let learn = format!("{{{add}{vlan}}}");
            extern_learn(vxlan, &serde_json::from_str(&learn).expect("a call"))
        };
        assert_eq!(learn(&of_vlans, r#","vlan":10"#), Ok(VlanId::new(10)));
        assert_eq!(learn(&tunnel(), ""), Ok(None));
        for (vxlan, vlan, said) in [
            (&of_vlans, r#","vlan":20"#, "add the remote 10.0.0.2 first"),
            (&of_vlans, r#","vlan":30"#, "no VLAN 30"),
            (&of_vlans, "", "needs vlan"),
            (&tunnel(), r#","vlan":10"#, "only for a port with vlan_vni"),
        ] {
            let error = learn(vxlan, vlan).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_default_that_is_said_and_another_order_make_no_other_tunnel() {
        let mut said = Vxlan { ttl: Some(64), df: Some(true), dst_port: Some(4789), ..tunnel() };
        said.remote.reverse();
        assert_eq!(said.normal(), tunnel().normal());
        assert_ne!(Vxlan { ttl: Some(9), ..tunnel() }.normal(), tunnel().normal());
    }

    #[test]
    fn a_value_that_cannot_be_meant_is_refused_by_its_name() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let station = |text: &str| text.parse().expect("a station");
        let many = (0..=REMOTES_MAX).map(|i| ip(&format!("10.1.{}.{}", i / 256, i % 256)));
        for (bad, said) in [
            (Vxlan { vni: Some(1 << 24), ..tunnel() }, "vni = 16777216"),
            (Vxlan { dst_port: Some(0), ..tunnel() }, "dst_port"),
            (Vxlan { ttl: Some(0), ..tunnel() }, "ttl"),
            (Vxlan { dscp: Some(64), ..tunnel() }, "dscp = 64"),
            (Vxlan { mtu: Some(575), ..tunnel() }, "mtu = 575"),
            (Vxlan { mtu: Some(MTU_MAX + 1), ..tunnel() }, "mtu"),
            (Vxlan { local: ip("0.0.0.0"), ..tunnel() }, "local"),
            (Vxlan { local: ip("fe80::1"), ..tunnel() }, "link-local"),
            (Vxlan { local: ip("::ffff:10.0.0.1"), ..tunnel() }, "IPv4 address"),
            (Vxlan { local: ip("fd00::1"), ..tunnel() }, "both IPv6"),
            (Vxlan { remote: vec![ip("224.0.0.1")], ..tunnel() }, "remote"),
            (Vxlan { remote: vec![ip("10.0.0.1")], ..tunnel() }, "is local, too"),
            (Vxlan { remote: vec![ip("10.0.0.2"); 2], ..tunnel() }, "twice"),
            (Vxlan { remote: many.collect(), ..tunnel() }, "257 are too many"),
            (Vxlan { fdb: vec![station("02:00:00:00:00:01=10.0.0.9")], ..tunnel() }, "add the"),
            (Vxlan { fdb: vec![station("03:00:00:00:00:01=10.0.0.2")], ..tunnel() }, "multicast"),
            (Vxlan { fdb: vec![tunnel().fdb[0]; 2], ..tunnel() }, "twice"),
        ] {
            let error = vxlan(PortKind::Vxlan, Some(&bad)).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
    }
}
