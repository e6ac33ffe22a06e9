//! Ports of tunnels: permission to add and change them, and what a change may be.

use protocol::Vxlan;

use super::*;

const ADD: &str = r#"{"port_add":{"port":"vale0:v","kind":"vxlan","vxlan":{"vni":100,
    "local":"10.0.0.1","remote":["10.0.0.2","10.0.0.3"],"fdb":["02:00:00:00:00:01=10.0.0.2"]}}}"#;

fn set(change: &str) -> String {
    format!(r#"{{"port_set":{{"port":"vale0:v","settings":{{}},"vxlan":{change}}}}}"#)
}

/// The tunnel of the port, as its records have it.
fn tunnel(bench: &mut Bench) -> Vxlan {
    let port = bench.control.state.port_mut(&"vale0:v".parse().unwrap()).unwrap();
    *port.vxlan.clone().unwrap()
}

fn remotes(bench: &mut Bench) -> Vec<String> {
    tunnel(bench).remote.iter().map(ToString::to_string).collect()
}

#[test]
fn test_tunnels_are_for_those_who_have_the_daemons_rights() {
    let mut bench = Bench::new();
    let (code, text) = bench.refused(1, 1000, ADD);
    assert!(code == ErrorCode::Permission && text.contains("only root"), "{text}");
    assert!(bench.is_empty());
    bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"owner":1000,"mode":"666"}}}"#);
    bench.done(ADD);
    let change = set(r#"{"add_remote":["10.0.0.4"]}"#);
    assert_eq!(bench.refused(1, 1000, &change).0, ErrorCode::Permission, "its switch's owner");
    bench.done(&change);
    assert_eq!(remotes(&mut bench), ["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
}

#[test]
fn test_a_change_is_made_whole_or_not_at_all() {
    let mut bench = Bench::new();
    bench.done(ADD);
    for (change, said) in [
        (r#"{"add_remote":["10.0.0.4"],"del_remote":["10.0.0.9"]}"#, "no remote 10.0.0.9"),
        (r#"{"add_remote":["10.0.0.4","10.0.0.1"]}"#, "is local, too"),
        (r#"{"add_fdb":["02:00:00:00:00:02=10.0.0.9"]}"#, "add the remote 10.0.0.9 first"),
        (r#"{"del_fdb":["02:00:00:00:00:09"]}"#, "no static entry"),
    ] {
        let before = tunnel(&mut bench);
        let (code, text) = bench.refused(1, 0, &set(change));
        assert!(code == ErrorCode::BadRequest && text.contains(said), "{text}");
        assert_eq!(tunnel(&mut bench), before);
    }
    assert!(bench.control.datapath.tunnels.is_empty(), "the datapath was told of none");
    bench.done(&set(r#"{"add_remote":["10.0.0.3"]}"#));
    assert_eq!(remotes(&mut bench), ["10.0.0.2", "10.0.0.3"], "it is there already");
    bench.done(&set(r#"{"del_remote":["10.0.0.2"]}"#));
    assert_eq!((remotes(&mut bench).len(), tunnel(&mut bench).fdb.len()), (1, 0));
    let told: Vec<_> = bench.control.datapath.tunnels.values().cloned().collect();
    assert_eq!(told, [tunnel(&mut bench)]);
}

#[test]
fn test_only_remotes_and_stations_of_a_tunnel_change() {
    let mut bench = Bench::new();
    bench.done(ADD);
    let all = |vni: u32| {
        set(&format!(r#"{{"all":{{"vni":{vni},"local":"10.0.0.1","remote":["10.0.0.7"]}}}}"#))
    };
    let (_, text) = bench.refused(1, 0, &all(200));
    assert!(text.contains("--vni is 100 there, and 200 here"), "{text}");
    bench.done(&all(100));
    assert_eq!((remotes(&mut bench), tunnel(&mut bench).fdb.len()), (vec!["10.0.0.7".into()], 0));
    bench.done(r#"{"port_add":{"port":"vale0:a"}}"#);
    let other = set(r#"{"add_remote":["10.0.0.4"]}"#).replace("vale0:v", "vale0:a");
    assert!(bench.refused(1, 0, &other).1.contains("only for vxlan"));
}

#[test]
fn test_ports_of_one_address_have_different_networks() {
    let mut bench = Bench::new();
    bench.done(ADD);
    let other = |vni: u32, more: &str| {
        let vxlan = format!(r#"{{"vni":{vni},"local":"10.0.0.1"{more}}}"#);
        let port = format!("vale1:v{vni}{}", more.len());
        format!(r#"{{"port_add":{{"port":"{port}","kind":"vxlan","vxlan":{vxlan}}}}}"#)
    };
    let (code, text) = bench.refused(1, 0, &other(100, ""));
    assert!(code == ErrorCode::InUse && text.contains("port vale0:v has VNI 100"), "{text}");
    bench.done(&other(100, r#","dst_port":4790"#));
    for vni in 101..356 {
        bench.done(&other(vni, ""));
    }
    let (code, text) = bench.refused(1, 0, &other(999, ""));
    assert!(code == ErrorCode::InUse && text.contains("more than 256 VNIs"), "{text}");
    bench.done(r#"{"port_del":{"port":"vale0:v"}}"#);
    bench.done(&other(100, ""));
}

#[test]
fn test_what_a_routing_daemon_has_found_stands_beside_what_the_operator_has_said() {
    let mut bench = Bench::new();
    bench.done(ADD);
    bench.done(&set(r#"{"add_extern_remote":["10.0.0.3","10.0.0.5"]}"#));
    assert_eq!(remotes(&mut bench), ["10.0.0.2", "10.0.0.3"]);
    assert_eq!(tunnel(&mut bench).all_remotes().len(), 3);
    let other = r#"{"all":{"vni":100,"local":"10.0.0.1","remote":["10.0.0.7"]}}"#;
    bench.done(&set(other));
    assert_eq!(tunnel(&mut bench).extern_remote.len(), 2, "an operator's file does not name them");
    bench.done(&ADD.replace("port_add", "port_compare").replace(
        r#""remote":["10.0.0.2","10.0.0.3"],"fdb":["02:00:00:00:00:01=10.0.0.2"]"#,
        r#""remote":["10.0.0.7"]"#,
    ));
    bench.done(&set(r#"{"del_extern_remote":["10.0.0.3","10.0.0.9"]}"#));
    let left: Vec<_> = tunnel(&mut bench).all_remotes().iter().map(ToString::to_string).collect();
    assert_eq!(left, ["10.0.0.7", "10.0.0.5"]);
    let wrong = set(r#"{"add_extern_remote":["10.0.0.1"]}"#);
    assert!(bench.refused(1, 0, &wrong).1.contains("is local, too"));
}

#[test]
fn test_remotes_of_a_vlan_go_with_its_network() {
    let mut bench = Bench::new();
    let of_vlans = r#""vxlan":{"vlan_vni":["10:1010","20:1020"],"#;
    let of_vlans = format!(r#""settings":{{"vlan":"trunk:10,20"}},{of_vlans}"#);
    bench.done(&ADD.replace(r#""vxlan":{"vni":100,"#, &of_vlans));
    let all = r#"{"add_extern_remote":["10=10.0.0.5","20=10.0.0.5","20=10.0.0.6"]}"#;
    let left = |bench: &mut Bench| {
        let left: Vec<String> =
            tunnel(bench).extern_remote.iter().map(ToString::to_string).collect();
        left.join(" ")
    };
    bench.done(&set(all));
    assert_eq!(left(&mut bench), "10=10.0.0.5 20=10.0.0.5 20=10.0.0.6");
    let wrong = set(r#"{"add_extern_remote":["30=10.0.0.5"]}"#);
    assert!(bench.refused(1, 0, &wrong).1.contains("no such VLAN"));
    bench.done(&set(r#"{"del_extern_remote":["20=10.0.0.5","10=10.0.0.9"]}"#));
    assert_eq!(left(&mut bench), "10=10.0.0.5 20=10.0.0.6");
    // Another network, of which nothing is known yet.
    bench.done(&set(r#"{"add_vlan_vni":["20:1021","30:1030"]}"#));
    assert_eq!(left(&mut bench), "10=10.0.0.5");
    bench.done(&set(r#"{"add_extern_remote":["20=10.0.0.6"]}"#));
    let learn = r#"{"extern_learn":{"port":"vale0:v","vlan":20,"add":["STATION"]}}"#;
    let at = |host: u8| learn.replace("STATION", &format!("02:00:00:00:00:09=10.0.0.{host}"));
    assert!(bench.refused(1, 0, &at(5)).1.contains("add the remote 10.0.0.5 first"));
    assert!(bench.refused(1, 0, &at(6).replace(r#""vlan":20,"#, "")).1.contains("needs vlan"));
    bench.done(&at(6));
    assert_eq!(bench.control.datapath.extern_learned[0].1.get(), 20);
    bench.done(&set(r#"{"del_vlan_vni":[20]}"#));
    assert_eq!(left(&mut bench), "10=10.0.0.5");
    assert!(bench.refused(1, 0, &at(6)).1.contains("no VLAN 20"));
}

#[test]
fn test_stations_of_a_routing_daemon_are_checked_before_the_datapath_is_told() {
    let mut bench = Bench::new();
    bench.done(ADD);
    bench.done(r#"{"port_add":{"port":"vale0:a"}}"#);
    let learn = |port: &str, station: &str| {
        format!(r#"{{"extern_learn":{{"port":"{port}","add":["{station}"]}}}}"#)
    };
    for (port, station, said) in [
        ("vale0:a", "02:00:00:00:00:09=10.0.0.2", "only for vxlan"),
        ("vale0:v", "02:00:00:00:00:09=10.0.0.9", "add the remote 10.0.0.9 first"),
        ("vale0:v", "03:00:00:00:00:09=10.0.0.2", "multicast"),
    ] {
        let (_, text) = bench.refused(1, 0, &learn(port, station));
        assert!(text.contains(said), "{text}");
    }
    let good = learn("vale0:v", "02:00:00:00:00:09=10.0.0.2");
    let (code, _) = bench.refused(1, 1000, &good);
    assert_eq!(code, ErrorCode::Permission);
    assert!(bench.control.datapath.extern_learned.is_empty());
    bench.done(&good);
    let told = &bench.control.datapath.extern_learned;
    assert_eq!((told.len(), told[0].1.get()), (1, 1));
    let trunk = r#"{"port_set":{"port":"vale0:v","settings":{"vlan":"trunk:7"}}}"#;
    bench.done(trunk);
    assert!(bench.refused(1, 0, &good).1.contains("native="));
}

#[test]
fn test_a_tunnel_has_one_routing_daemon_until_that_one_hangs_up() {
    let mut bench = Bench::new();
    bench.done(ADD);
    let mark = r#"{"extern_learn":{"port":"vale0:v","mark":true}}"#;
    for _ in 0..2 {
        assert_eq!(bench.ask(1, 0, mark).unwrap(), Reply::Done);
    }
    let (code, text) = bench.refused(2, 0, mark);
    assert!(code == ErrorCode::InUse && text.contains("end it first"), "{text}");
    let sweep = r#"{"extern_learn":{"port":"vale0:v","sweep":true}}"#;
    assert_eq!(bench.refused(2, 0, sweep).0, ErrorCode::InUse, "it would take all back");
    bench.control.hang_up(ConnKey(1));
    assert_eq!(bench.ask(2, 0, mark).unwrap(), Reply::Done);
}

#[test]
fn test_addresses_of_stations_are_for_a_port_that_answers_for_them() {
    let mut bench = Bench::new();
    bench.done(ADD);
    bench.done(r#"{"port_add":{"port":"vale0:a"}}"#);
    let list = |port: &str| format!(r#"{{"neigh_list":{{"port":"{port}"}}}}"#);
    for port in ["vale0:v", "vale0:a"] {
        let (_, text) = bench.refused(1, 0, &list(port));
        assert!(text.contains("--neigh-suppress"), "{text}");
    }
    bench.done(&set(r#"{"neigh_suppress":true}"#));
    assert!(tunnel(&mut bench).neigh_suppress);
    let learn = |address: &str, mac: &str| {
        let neigh = format!(r#"{{"address":"{address}","mac":"{mac}"}}"#);
        format!(r#"{{"extern_learn":{{"port":"vale0:v","add_neigh":[{neigh}]}}}}"#)
    };
    for (address, mac, said) in [
        ("224.0.0.1", "02:00:00:00:00:09", "no single station"),
        ("192.168.7.9", "03:00:00:00:00:09", "multicast"),
    ] {
        let (_, text) = bench.refused(1, 0, &learn(address, mac));
        assert!(text.contains(said), "{text}");
    }
    bench.done(&learn("192.168.7.9", "02:00:00:00:00:09"));
    let listed = bench.ask(1, 0, &list("vale0:v"));
    assert!(format!("{listed:?}").contains("192.168.7.9"), "{listed:?}");
    let wrong = list("vale0:v").replace(r#""vale0:v""#, r#""vale0:v","from":"x""#);
    assert!(bench.refused(1, 0, &wrong).1.contains("not what a page said"));
    // A file that does not name it turns it off.
    let all = r#"{"all":{"vni":100,"local":"10.0.0.1","remote":["10.0.0.2"]}}"#;
    bench.done(&set(all));
    assert!(!tunnel(&mut bench).neigh_suppress);
}
