//! Ports of the host's network interfaces: who may make them, and what happens without one.

use std::path::Path;

use super::*;

#[test]
fn test_interfaces_are_for_those_who_have_the_daemons_rights() {
    let mut bench = Bench::new();
    let add = r#"{"port_add":{"port":"vale0:a","kind":"tap"}}"#;
    let (code, text) = bench.refused(1, 1000, add);
    assert!(code == ErrorCode::Permission && text.contains("only root"), "{text}");
    assert!(bench.is_empty());
    bench.done(add);
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_what_cannot_be_had_leaves_nothing_behind() {
    let mut bench = Bench::new();
    let add = r#"{"port_add":{"port":"vale0:a","kind":"packet","host":{"ifname":"missing"}}}"#;
    assert_eq!(bench.refused(1, 0, add).0, ErrorCode::NotFound);
    assert_eq!(bench.refused(1, 0, &add.replace("packet", "shm")).0, ErrorCode::BadRequest);
    assert!(bench.is_empty());
}

#[test]
fn test_a_configured_interface_is_waited_for() {
    let text = "[switch.vale0.port.a]\nkind = \"packet\"\nifname = \"missing\"\n";
    let config = Config::parse(text, Path::new("test.toml")).unwrap();
    let mut bench = Bench::new();
    bench.control.make_planned(&client(1, 0).caller, &config.switches[0]).unwrap();
    assert_eq!(bench.control.state.counts(), (1, 1));
}

#[test]
fn test_ports_of_interfaces_are_not_attached() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:a","kind":"tap"}}"#);
    assert_eq!(bench.attach(1, 0, "vale0:a").unwrap_err().code(), ErrorCode::Unsupported);
}
