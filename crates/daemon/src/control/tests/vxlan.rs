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
