//! Permissions to attach: ports that were granted to a user, switches closed to new ports.

use protocol::Bind;
use protocol::SessionRequest;

use super::*;

const OPERATOR: u32 = 1000;
const ALICE: u32 = 1001;
const BOB: u32 = 1002;

/// A switch of an ordinary user that every user may attach to.
fn open_switch(settings: &str) -> Bench {
    let mut bench = Bench::new();
    let add =
        format!(r#"{{"switch_add":{{"switch":"vale0","settings":{{"mode":"666"{settings}}}}}}}"#);
    operate(&mut bench, &add);
    bench
}

fn operate(bench: &mut Bench, call: &str) {
    assert_eq!(bench.ask(0, OPERATOR, call).expect(call), Reply::Done);
}

fn add(bench: &mut Bench, port: &str, settings: &str) {
    let call = format!(r#"{{"port_add":{{"port":"{port}","settings":{{{settings}}}}}}}"#);
    operate(bench, &call);
}

/// Whether a user gets a port, which is given back at once; by both ways.
fn gets(bench: &mut Bench, uid: u32, port: &str) -> bool {
    let attached = bench.attach(77, uid, port);
    bench.control.hang_up(ConnKey(77));
    let bind = Bind::new(port.parse().unwrap());
    let bound = bench.answer(78, uid, Request::Session(SessionRequest::Bind(bind)));
    bench.control.hang_up(ConnKey(78));
    for refusal in [attached.as_ref().err(), bound.as_ref().err()].into_iter().flatten() {
        assert_eq!(refusal.code(), ErrorCode::Permission, "{refusal}");
    }
    assert_eq!(attached.is_ok(), bound.is_ok(), "{port}: attached, bound");
    attached.is_ok()
}

fn info(bench: &mut Bench, port: &str) -> PortInfo {
    let call = format!(r#"{{"port_show":{{"port":"{port}"}}}}"#);
    match bench.ask(0, OPERATOR, &call).unwrap() {
        Reply::Port(info) => info,
        other => panic!("{other:?}"),
    }
}

#[test]
fn test_a_port_that_was_given_to_somebody_is_taken_by_nobody_else() {
    let mut bench = open_switch("");
    add(&mut bench, "vale0:uplink", r#""vlan":"trunk:all""#);
    assert!(gets(&mut bench, BOB, "vale0:uplink"), "nothing was said: as before");
    operate(&mut bench, r#"{"port_set":{"port":"vale0:uplink","settings":{"owner":1001}}}"#);
    assert!(!gets(&mut bench, BOB, "vale0:uplink"));
    assert!(!gets(&mut bench, BOB, "vale0:uplink{1"), "nor a pipe of it");
    assert!(gets(&mut bench, ALICE, "vale0:uplink"));
    assert!(gets(&mut bench, OPERATOR, "vale0:uplink"), "the switch is theirs");
    assert!(gets(&mut bench, 0, "vale0:uplink"));
    operate(&mut bench, r#"{"port_set":{"port":"vale0:uplink","settings":{"group":1002}}}"#);
    assert!(gets(&mut bench, BOB, "vale0:uplink"), "a member of the group");
    operate(&mut bench, r#"{"port_set":{"port":"vale0:uplink","settings":{"mode":"600"}}}"#);
    assert!(!gets(&mut bench, BOB, "vale0:uplink"));
}

#[test]
fn test_a_closed_switch_has_no_ports_but_those_that_were_given() {
    let mut bench = open_switch(r#","new_ports":"owner""#);
    add(&mut bench, "vale0:web", r#""vlan":"access:10","owner":1001"#);
    add(&mut bench, "vale0:router", r#""vlan":"trunk:all""#);
    for port in ["vale0:new", "vale0:new{1", "vale0:router", "vale0:web", "vale0:web}x"] {
        assert!(!gets(&mut bench, BOB, port), "{port}");
    }
    assert!(gets(&mut bench, ALICE, "vale0:web"));
    assert!(!gets(&mut bench, ALICE, "vale0:router"));
    assert!(gets(&mut bench, OPERATOR, "vale0:new"), "a user that may add ports may open them");
    let text = bench.attach(1, BOB, "vale0:new").unwrap_err().to_string();
    assert!(text.contains("uvala port add vale0:new --owner"), "{text}");
    operate(&mut bench, r#"{"switch_set":{"switch":"vale0","settings":{"new_ports":"any"}}}"#);
    assert!(gets(&mut bench, BOB, "vale0:new"));
    assert!(gets(&mut bench, BOB, "vale0:router"), "of which nothing was said");
}

/// A function sees, changes and drops the frames of all users.
#[test]
fn test_an_instance_of_a_service_is_for_the_owner_of_the_switch() {
    let mut bench = open_switch("");
    add(&mut bench, "vale0:fw", r#""service":"fw""#);
    add(&mut bench, "vale0:his", r#""service":"fw","owner":1002"#);
    assert!(!gets(&mut bench, BOB, "vale0:fw"));
    assert!(gets(&mut bench, OPERATOR, "vale0:fw") && gets(&mut bench, 0, "vale0:fw"));
    assert!(gets(&mut bench, BOB, "vale0:his"), "its owner may attach");
    assert!(gets(&mut bench, BOB, "vale0:any"), "ports of no service: as before");
    assert_eq!(info(&mut bench, "vale0:fw").settings.mode.unwrap().to_string(), "600");
    operate(&mut bench, r#"{"port_set":{"port":"vale0:fw","settings":{"mode":"666"}}}"#);
    assert!(gets(&mut bench, BOB, "vale0:fw"), "mode 666 admits all users");
    add(&mut bench, "vale0:later", "");
    operate(&mut bench, r#"{"port_set":{"port":"vale0:later","settings":{"service":"fw"}}}"#);
    assert!(!gets(&mut bench, BOB, "vale0:later"));
}

#[test]
fn test_a_grant_is_worth_nothing_where_the_switch_lets_nobody_in() {
    let mut bench = open_switch("");
    add(&mut bench, "vale0:web", r#""owner":1001"#);
    operate(&mut bench, r#"{"switch_set":{"switch":"vale0","settings":{"mode":"644"}}}"#);
    assert!(!gets(&mut bench, ALICE, "vale0:web"));
}

#[test]
fn test_who_was_given_a_port_does_not_change_it() {
    let mut bench = open_switch("");
    add(&mut bench, "vale0:web", r#""owner":1001"#);
    let call = r#"{"port_set":{"port":"vale0:web","settings":{"vlan":"trunk:all"}}}"#;
    assert_eq!(bench.refused(1, ALICE, call).0, ErrorCode::Permission);
    assert_eq!(info(&mut bench, "vale0:web").creator, OPERATOR, "whose quota it is");
}

#[test]
fn test_listings_say_who_may_attach() {
    let mut bench = open_switch("");
    add(&mut bench, "vale0:a", "");
    let mode = |bench: &mut Bench| info(bench, "vale0:a").settings.mode.unwrap().to_string();
    assert_eq!(mode(&mut bench), "666");
    operate(&mut bench, r#"{"switch_set":{"switch":"vale0","settings":{"new_ports":"owner"}}}"#);
    assert_eq!(mode(&mut bench), "600");
    operate(&mut bench, r#"{"port_set":{"port":"vale0:a","settings":{"owner":1001,"group":7}}}"#);
    let settings = info(&mut bench, "vale0:a").settings;
    assert_eq!((settings.owner, settings.group), (Some(1001), Some(7)));
    assert_eq!(mode(&mut bench), "660");
    bench.attach(1, OPERATOR, "vale0:b").unwrap();
    assert_eq!(info(&mut bench, "vale0:b").settings.mode, None, "its client has it");
}

#[test]
fn test_what_nobody_attaches_to_is_given_to_nobody() {
    let mut bench = open_switch("");
    bench.attach(1, OPERATOR, "vale0:b").unwrap();
    for (call, code) in [
        (r#"{"port_set":{"port":"vale0:b","settings":{"owner":1001}}}"#, ErrorCode::Unsupported),
        (
            r#"{"port_add":{"port":"vale0:n","kind":"null","settings":{"mode":"600"}}}"#,
            ErrorCode::Unsupported,
        ),
        (
            r#"{"port_add":{"port":"vale0:c","settings":{"owner":4294967295}}}"#,
            ErrorCode::BadRequest,
        ),
        (r#"{"port_add":{"port":"vale0:c","settings":{"mode":"777"}}}"#, ErrorCode::BadRequest),
        (
            r#"{"switch_set":{"switch":"vale0","settings":{"group":4294967295}}}"#,
            ErrorCode::BadRequest,
        ),
        (r#"{"switch_set":{"switch":"vale0","settings":{"mode":"661"}}}"#, ErrorCode::BadRequest),
    ] {
        assert_eq!(bench.refused(0, OPERATOR, call).0, code, "{call}");
    }
}
