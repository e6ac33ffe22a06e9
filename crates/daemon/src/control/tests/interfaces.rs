//! Interfaces: names of their own, in a switch and alone.

use protocol::{Bind, Bound, PortGeometry, SessionRequest};

use super::*;

impl Bench {
    fn add(&mut self, uid: u32, text: &str) -> Result<PortGeometry, Refusal> {
        match self.ask(9, uid, &format!(r#"{{"interface_add":{text}}}"#))? {
            Reply::PortGeometry(geometry) => Ok(geometry),
            other => panic!("{other:?}"),
        }
    }

    fn interface(&mut self, uid: u32, what: &str, port: &str) -> Result<Reply, Refusal> {
        self.ask(9, uid, &format!(r#"{{"interface_{what}":{{"port":"{port}"}}}}"#))
    }

    fn code_of(&mut self, what: &str, port: &str) -> ErrorCode {
        self.interface(0, what, port).unwrap_err().code()
    }

    fn open(&mut self, conn: u64, uid: u32, port: &str) -> Result<Bound, Refusal> {
        let bind = Request::Session(SessionRequest::Bind(Bind::new(port.parse().unwrap())));
        match self.answer(conn, uid, bind)? {
            (Reply::Bound(bound), _) => Ok(bound),
            other => panic!("{other:?}"),
        }
    }
}

/// Messages of each call, one on each line.
const CALLS: &str = include_str!("../../../../protocol/tests/calls.txt");

#[test]
fn test_every_call_refuses_the_name_of_a_device_in_the_same_words() {
    let mut bench = Bench::new();
    let names = ["netmap:0000:00:04.0", "netmap:0000:00:04.0^", "netmap:0000:00:04.0{1"];
    let mut refused = 0;
    for line in CALLS.lines() {
        let serde_json::Value::Object(call) = serde_json::from_str(line).unwrap() else { continue };
        let (name, body) = call.into_iter().next().expect("a call");
        for (field, device) in
            names.map(|name| ("port", name)).into_iter().chain([("switch", names[0])])
        {
            let mut body = body.clone();
            let Some(value) = body.get_mut(field) else { continue };
            *value = device.into();
            let text = serde_json::json!({ &name: body }).to_string();
            let (code, why) = bench.refused(1, 0, &text);
            assert_eq!(code, ErrorCode::Unsupported, "{text}: {why}");
            assert!(why.starts_with(&format!("{device} is a PCI device of a virtual")), "{why}");
            refused += 1;
        }
    }
    assert!(refused > 100, "{refused}: of most calls");
    assert!(bench.is_empty(), "and nothing was made");
}

const V0: &str = r#"{"port":"netmap:v0","tx_rings":2,"rx_slots":64}"#;

#[test]
fn test_an_interface_keeps_its_rings_and_its_region_wherever_it_is() {
    let mut bench = Bench::new();
    let made = bench.add(1000, V0).unwrap();
    assert_eq!((made.tx_rings, made.rx_rings, made.rx_slots), (2, 1, 64));
    for (conn, name) in [(1, "netmap:v0"), (2, "vale0:v0"), (3, "netmap:v0")] {
        if conn == 2 {
            bench.interface(1000, "attach", "vale0:v0").unwrap();
        }
        let bound = bench.open(conn, 1000, name).unwrap();
        assert_eq!((bound.mem_id, bound.attached.tx_rings), (made.mem_id, 2), "{name}");
        let at = if conn == 1 { "netmap:v0" } else { "vale0:v0" };
        assert_eq!(bound.attached.port.to_string(), at);
        bench.control.hang_up(ConnKey(conn));
    }
    bench.interface(1000, "detach", "vale0:v0").unwrap();
    assert_eq!(bench.open(4, 1000, "netmap:v0").unwrap().mem_id, made.mem_id);
    bench.control.hang_up(ConnKey(4));
    bench.interface(1000, "del", "netmap:v0").unwrap();
    assert!(bench.is_empty());
}

#[test]
fn test_an_interface_that_is_needed_stays_where_it_is() {
    let mut bench = Bench::new();
    bench.add(1000, V0).unwrap();
    assert_eq!(bench.add(1000, V0).unwrap_err().code(), ErrorCode::Exists);
    bench.open(1, 1000, "netmap:v0}x").unwrap();
    assert_eq!(bench.code_of("attach", "vale0:v0"), ErrorCode::InUse);
    assert_eq!(bench.code_of("del", "netmap:v0"), ErrorCode::InUse);
    bench.control.hang_up(ConnKey(1));
    bench.interface(1000, "attach", "vale0:v0").unwrap();
    assert_eq!(bench.code_of("attach", "vale0:v0"), ErrorCode::InUse);
    assert_eq!(bench.code_of("del", "netmap:v0"), ErrorCode::InUse);
    assert_eq!(bench.add(1000, V0).unwrap_err().code(), ErrorCode::Exists);
    bench.attach(1, 1000, "vale0:v0").unwrap();
    assert_eq!(bench.code_of("detach", "vale0:v0"), ErrorCode::InUse);
    bench.control.hang_up(ConnKey(1));
    bench.open(1, 1000, "netmap:v0{x").unwrap();
    assert_eq!(bench.code_of("detach", "vale0:v0"), ErrorCode::InUse);
    bench.control.hang_up(ConnKey(1));
    bench.interface(1000, "detach", "vale0:v0").unwrap();
    bench.interface(1000, "del", "netmap:v0").unwrap();
    assert!(bench.is_empty());
}

#[test]
fn test_who_holds_an_interface_goes_with_it_out_of_its_switch() {
    let mut bench = Bench::new();
    bench.add(1000, V0).unwrap();
    bench.interface(1000, "attach", "vale0:v0").unwrap();
    bench.open(1, 1000, "vale0:v0").unwrap();
    // A client that opens it at this moment learns its place when it is built.
    let bind = Request::Session(SessionRequest::Bind(Bind::new("netmap:v0".parse().unwrap())));
    let Step::Build(build) = bench.control.call(&mut client(2, 1000), bind) else {
        panic!("it has to be built")
    };
    assert_eq!(bench.code_of("detach", "vale0:v0"), ErrorCode::InUse);
    bench.finish(2, build()).unwrap();
    bench.interface(1000, "detach", "vale0:v0").unwrap();
    assert!(!bench.control.state.has_switch(&"vale0".parse().unwrap()));
    assert_eq!(bench.control.state.bound_by(ConnKey(1)).unwrap().to_string(), "netmap:v0");
    let (reply, _) = bench.answer(2, 1000, Request::Session(SessionRequest::Resume)).unwrap();
    let Reply::Bound(bound) = reply else { panic!("another answer") };
    assert_eq!(bound.attached.port.to_string(), "netmap:v0");
    assert_eq!(bench.code_of("attach", "vale0:v0"), ErrorCode::InUse);
    [1, 2].into_iter().for_each(|conn| bench.control.hang_up(ConnKey(conn)));
    bench.interface(1000, "del", "netmap:v0").unwrap();
    assert!(bench.is_empty());
}

#[test]
fn test_an_interface_in_two_switches_is_a_cable_until_it_leaves_the_second() {
    let ends = [
        r#"{"interface_detach":{"port":"vale1:v0"}}"#,
        r#"{"port_del":{"port":"vale1:v0"}}"#,
        r#"{"switch_del":{"switch":"vale1"}}"#,
        r#"{"port_del":{"port":"vale0:v0"}}"#,
        r#"{"switch_del":{"switch":"vale0"}}"#,
    ];
    for (i, end) in ends.into_iter().enumerate() {
        let mut bench = Bench::new();
        bench.add(0, V0).unwrap();
        bench.interface(0, "attach", "vale0:v0").unwrap();
        bench.control.datapath.out_of_memory = true;
        assert_eq!(bench.code_of("attach", "vale1:v0"), ErrorCode::NoMemory);
        assert!(!bench.control.state.has_switch(&"vale1".parse().unwrap()));
        bench.interface(0, "attach", "vale1:v0").unwrap();
        assert_eq!(bench.control.datapath.ports.len(), 2);
        for port in ["netmap:v0", "vale0:v0", "vale1:v0", "netmap:v0{x"] {
            assert_eq!(bench.open(1, 0, port).unwrap_err().code(), ErrorCode::InUse, "{port}");
        }
        assert_eq!(bench.attach(1, 0, "vale1:v0").unwrap_err().code(), ErrorCode::InUse);
        assert_eq!(bench.code_of("attach", "vale2:v0"), ErrorCode::InUse);
        assert_eq!(bench.code_of("detach", "vale0:v0"), ErrorCode::InUse);
        bench.done(end);
        assert!(bench.control.datapath.ports.is_empty(), "{end}");
        if i < 3 {
            bench.open(1, 0, "vale0:v0").unwrap();
            bench.control.hang_up(ConnKey(1));
            bench.interface(0, "detach", "vale0:v0").unwrap();
            bench.interface(0, "del", "netmap:v0").unwrap();
        }
        assert!(bench.is_empty(), "{end}");
    }
}

#[test]
fn test_names_that_are_no_interface() {
    let mut bench = Bench::new();
    assert_eq!(bench.add(0, r#"{"port":"vale0:v0"}"#).unwrap_err().code(), ErrorCode::BadRequest);
    assert_eq!(bench.add(0, r#"{"port":"netmap:a{1"}"#).unwrap_err().code(), ErrorCode::BadRequest);
    assert_eq!(bench.add(0, r#"{"port":"netmap:lo"}"#).unwrap_err().code(), ErrorCode::Exists);
    let foreign = r#"{"port":"netmap:v0","mem_id":99}"#;
    assert_eq!(bench.add(0, foreign).unwrap_err().code(), ErrorCode::BadRequest);
    assert_eq!(bench.code_of("del", "netmap:none"), ErrorCode::NotFound);
    assert_eq!(bench.code_of("attach", "vale0:none"), ErrorCode::NotFound);
    assert_eq!(bench.code_of("detach", "vale0:none"), ErrorCode::NotFound);
    assert_eq!(bench.open(1, 0, "netmap:none").unwrap_err().code(), ErrorCode::NotFound);
    assert!(bench.attach(1, 0, "netmap:none").is_err());
    let add = r#"{"port_add":{"port":"netmap:v0"}}"#;
    assert_eq!(bench.refused(1, 0, add).0, ErrorCode::Unsupported);
    assert!(bench.is_empty());
}

#[test]
fn test_the_parent_of_a_pipe_comes_and_goes_with_it() {
    let mut bench = Bench::new();
    bench.open(1, 1000, "netmap:pipe{1").unwrap();
    bench.open(2, 1000, "netmap:pipe}1").unwrap();
    assert_eq!(bench.code_of("del", "netmap:pipe"), ErrorCode::BadRequest);
    let Reply::Switches(page) = bench.ask(9, 0, r#"{"switch_list":{}}"#).unwrap() else {
        panic!("another answer")
    };
    assert!(page.items.is_empty(), "an interface alone is no switch to anybody");
    [1, 2].into_iter().for_each(|conn| bench.control.hang_up(ConnKey(conn)));
    assert!(bench.is_empty());
}

#[test]
fn test_the_name_of_an_interface_stands_for_it_to_its_owner() {
    let mut bench = Bench::new();
    bench.add(1000, V0).unwrap();
    assert_eq!(bench.open(1, 1000, "vale0:v0").unwrap_err().code(), ErrorCode::BadRequest);
    bench.open(2, 1001, "vale1:v0").unwrap();
    assert_eq!(bench.open(3, 1001, "netmap:v0").unwrap_err().code(), ErrorCode::Permission);
    let refused = bench.interface(1001, "del", "netmap:v0").unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Permission);
    let refused = bench.interface(1001, "attach", "vale2:v0").unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Permission);
    bench.control.hang_up(ConnKey(2));
    bench.interface(1000, "del", "netmap:v0").unwrap();
    assert!(bench.is_empty());
}

#[test]
fn test_memory_that_is_missing_leaves_no_interface() {
    for step in 0..2 {
        let mut bench = Bench::new();
        bench.control.datapath.fails_after = Some(step);
        assert_eq!(bench.add(0, V0).unwrap_err().code(), ErrorCode::NoMemory);
        assert!(bench.is_empty());
    }
    let mut bench = Bench::new();
    bench.add(0, V0).unwrap();
    bench.done(r#"{"port_del":{"port":"netmap:v0"}}"#);
    assert!(bench.is_empty(), "once it is deleted");
}

#[test]
fn test_threads_may_poll_interfaces_of_the_system_and_no_others() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:eth9","kind":"packet"}}"#);
    bench.done(r#"{"port_add":{"port":"vale0:plain"}}"#);
    let mut poll = |port: &str, threads: &str| {
        let text = format!(r#"{{"interface_poll":{{"port":"{port}"{threads}}}}}"#);
        bench.ask(0, 0, &text).map_err(|refusal| refusal.code())
    };
    let threads = |count| format!(r#","threads":{{"per_ring":false,"first":0,"count":{count}}}"#);
    assert_eq!(poll("vale0:none", &threads(1)), Err(ErrorCode::NotFound));
    assert_eq!(poll("vale0:plain", &threads(1)), Err(ErrorCode::Unsupported));
    assert_eq!(poll("vale0:eth9", &threads(0)), Err(ErrorCode::BadRequest));
    assert_eq!(poll("vale0:eth9", &threads(u32::MAX)), Err(ErrorCode::BadRequest));
    assert_eq!(poll("vale0:eth9", ""), Err(ErrorCode::InUse));
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        assert_eq!(poll("vale0:eth9", &threads(1)), Ok(Reply::Done));
        assert_eq!(poll("vale0:eth9", &threads(1)), Err(ErrorCode::InUse));
        assert_eq!(poll("vale0:eth9", ""), Ok(Reply::Done));
    }
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
    assert!(bench.is_empty());
}
