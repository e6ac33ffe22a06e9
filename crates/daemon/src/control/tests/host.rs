//! Ports of the host's network interfaces: permission to create them, and a missing interface.

use std::path::Path;

use protocol::{Bind, HostRings, SessionRequest};

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

/// Closing waits for the kernel, so the control thread does not close.
#[test]
fn test_what_is_opened_for_nothing_is_not_closed_here() {
    let mut bench = Bench::new();
    bench.control.datapath.opens_elsewhere = true;
    let add = r#"{"port_add":{"port":"vale0:a","kind":"tap"}}"#;
    let request: Request = serde_json::from_str(add).unwrap();
    // The caller has gone.
    assert!(matches!(bench.control.call(&mut client(1, 0), request.clone()), Step::Build(_)));
    bench.control.hang_up(ConnKey(1));
    assert_eq!(bench.control.datapath.unwanted, 1);
    // Another client was faster.
    let step = bench.control.call(&mut client(1, 0), request.clone());
    bench.done(add);
    assert!(bench.follow(1, step).is_err());
    assert_eq!(bench.control.datapath.unwanted, 2);
    // It could not be made into a port.
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
    let step = bench.control.call(&mut client(1, 0), request);
    bench.control.datapath.fails_after = Some(1);
    assert!(bench.follow(1, step).is_err());
    assert_eq!(bench.control.datapath.unwanted, 3);
}

/// Another process may have the same file, and make it take long to close it last.
#[test]
fn test_descriptors_that_no_call_wants_are_closed_by_their_users_closer() {
    let mut bench = Bench::new();
    let closed = bench.control.datapath.closed.clone();
    let files = || vec![std::fs::File::open("/dev/null").unwrap().into()];
    let add = r#"{"port_add":{"port":"vale0:a","kind":"tap","host":{"fds":1}}}"#;
    let calls = [r#"{"port_add":{"port":"vale0:b"}}"#, add, &add.replace(":a", ":b")];
    for (at, call) in calls.iter().enumerate() {
        let given = bench.control.given(0, files());
        let step =
            bench.control.call_given(&mut client(1, 0), serde_json::from_str(call).unwrap(), given);
        let _ = bench.follow(1, step);
        assert_eq!(*closed.lock().unwrap(), vec![0; at + 1], "{call}");
        bench.control.datapath.opens_elsewhere = true;
    }
    // The message was none.
    drop(bench.control.given(7, files()));
    assert_eq!(closed.lock().unwrap().pop(), Some(7));
    assert!(bench.control.given(0, Vec::new()).is_none());
}

#[test]
fn test_interfaces_that_programs_name_are_not_opened_here_either() {
    let mut bench = Bench::new();
    bench.control.datapath.opens_elsewhere = true;
    let attach = r#"{"interface_attach":{"port":"vale0:lo","host":true}}"#;
    for (call, unwanted) in [(attach, 2), (r#"{"bind":{"port":"netmap:lo"}}"#, 3)] {
        let request: Request = serde_json::from_str(call).unwrap();
        // The caller has gone.
        let step = bench.control.call(&mut client(1, 0), request.clone());
        assert!(matches!(step, Step::Build(_)), "{call}");
        bench.control.hang_up(ConnKey(1));
        assert_eq!(bench.control.datapath.unwanted, unwanted);
        assert!(bench.is_empty());
    }
    let request: Request = serde_json::from_str(attach).unwrap();
    let step = bench.control.call(&mut client(2, 0), request);
    bench.follow(2, step).unwrap();
    assert_eq!(bench.control.state.counts(), (1, 2));
    assert_eq!(bench.control.datapath.unwanted, 3, "both were taken");
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

#[test]
fn test_the_mark_of_the_hosts_side_is_for_nothing_else() {
    let mut bench = Bench::new();
    assert_eq!(bench.attach(1, 0, "vale0:a^").unwrap_err().code(), ErrorCode::NotFound);
    let add = r#"{"port_add":{"port":"vale0:a^","kind":"null"}}"#;
    assert_eq!(bench.refused(1, 0, add).0, ErrorCode::BadRequest);
    assert!(bench.is_empty());
    bench.done(&add.replace("null", "stack"));
}

/// The loopback is in every namespace, and these workers open nothing.
#[test]
fn test_interfaces_of_the_system_are_put_into_switches_by_name() {
    let mut bench = Bench::new();
    let attach = |host| format!(r#"{{"interface_attach":{{"port":"vale0:lo","host":{host}}}}}"#);
    let detach = r#"{"interface_detach":{"port":"vale0:lo"}}"#;
    assert_eq!(bench.refused(1, 1000, &attach(true)).0, ErrorCode::Permission);
    for (host, ports) in [(false, 1), (true, 2)] {
        bench.done(&attach(host));
        assert_eq!(bench.control.state.counts(), (1, ports));
        assert_eq!(bench.refused(1, 0, &attach(host)).0, ErrorCode::InUse);
        bench.done(detach);
        assert!(bench.is_empty());
    }
}

#[test]
fn test_a_program_has_an_interface_or_a_switch_has_it() {
    let mut bench = Bench::new();
    let bind = r#"{"bind":{"port":"netmap:lo"}}"#;
    let request: Request = serde_json::from_str(bind).unwrap();
    bench.answer(1, 0, request.clone()).unwrap();
    let attach = r#"{"interface_attach":{"port":"vale0:lo"}}"#;
    assert_eq!(bench.refused(2, 0, attach).0, ErrorCode::InUse);
    bench.control.hang_up(ConnKey(1));
    assert!(bench.is_empty());
    bench.done(attach);
    assert_eq!(bench.answer(1, 0, request).unwrap_err().code(), ErrorCode::InUse);
    assert_eq!(bench.refused(1, 1000, bind).0, ErrorCode::Permission);
    bench.done(r#"{"interface_detach":{"port":"vale0:lo"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_both_sides_of_an_interface_come_and_go_together() {
    let mut bench = Bench::new();
    let bind = |port: &str| Bind::new(port.parse().unwrap());
    let both = Bind { host: Some(HostRings::default()), ..bind("netmap:lo") };
    let ask = |bench: &mut Bench, conn, bind| {
        bench.answer(conn, 0, Request::Session(SessionRequest::Bind(bind)))
    };
    ask(&mut bench, 1, both.clone()).unwrap();
    assert_eq!(bench.control.state.sides_bound_by(ConnKey(1)).len(), 2);
    let regions: Vec<u16> =
        bench.control.datapath.bound.values().map(|bound| bound.region).collect();
    assert!(regions.len() == 2 && regions[0] == regions[1]);
    // A holder of one side keeps it when the other goes; a holder of both keeps neither.
    ask(&mut bench, 2, bind("netmap:lo")).unwrap();
    bench.ask(0, 0, r#"{"port_del":{"port":"netmap:lo^"}}"#).unwrap();
    assert_eq!(bench.control.state.sides_bound_by(ConnKey(1)), []);
    assert_eq!(bench.control.state.sides_bound_by(ConnKey(2)).len(), 1);
    bench.control.hang_up(ConnKey(2));
    assert!(bench.is_empty());
    // Nothing is left of one side where the other cannot be had.
    let alone = Bind { exclusive: true, ..bind("netmap:lo^") };
    ask(&mut bench, 3, alone).unwrap();
    assert_eq!(ask(&mut bench, 4, both.clone()).unwrap_err().code(), ErrorCode::InUse);
    assert_eq!(bench.control.state.sides_bound_by(ConnKey(3)).len(), 1);
    bench.control.hang_up(ConnKey(3));
    assert!(bench.is_empty());
    let vale = Bind { port: "vale0:a".parse().unwrap(), ..both };
    assert_eq!(ask(&mut bench, 5, vale).unwrap_err().code(), ErrorCode::BadRequest);
    assert!(bench.is_empty());
}
