//! Instances of services: their numbers, which ports may be one, and that they have chains.

use super::*;
use protocol::SessionRequest;

fn add(port: &str, settings: &str) -> String {
    format!(r#"{{"port_add":{{"port":"vale0:{port}","settings":{{{settings}}}}}}}"#)
}

fn set(port: &str, settings: &str) -> String {
    format!(r#"{{"port_set":{{"port":"vale0:{port}","settings":{{{settings}}}}}}}"#)
}

fn forwarding(of: &str) -> String {
    format!(r#"{{"switch_set":{{"switch":"vale0","settings":{{"forwarding":"{of}"}}}}}}"#)
}

/// Rows of a listing of vale0.
fn list(bench: &mut Bench, what: &str) -> Vec<serde_json::Value> {
    let reply = bench.ask(0, 0, &format!(r#"{{"{what}":{{"switch":"vale0"}}}}"#)).unwrap();
    let mut rows = serde_json::to_value(reply).unwrap();
    let page = rows.as_object_mut().unwrap().values_mut().next().unwrap();
    page["items"].as_array().unwrap().clone()
}

#[test]
fn test_two_instances_have_two_numbers() {
    let mut bench = Bench::with_chain();
    let numbers = |bench: &mut Bench| {
        let rows = list(bench, "function_list");
        rows.iter().map(|row| row["instance"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&mut bench), [0, 1], "the lowest that are free");
    let third = add("f3", r#""service":"fw","instance":1"#);
    let (code, why) = bench.refused(0, 0, &third);
    assert!(code == ErrorCode::BadRequest && why.contains("fw is port f2"), "{why}");
    bench.done(&add("f3", r#""service":"other""#));
    // It was 0 there, and is 2 here.
    bench.done(&set("f3", r#""service":"fw""#));
    assert_eq!(numbers(&mut bench), [0, 1, 2]);
    assert!(bench.refused(0, 0, &set("f3", r#""instance":0"#)).1.contains("is port f1"));
    bench.done(&set("f3", r#""service":"fw","instance":2"#));
    bench.done(r#"{"port_del":{"port":"vale0:f1"}}"#);
    bench.done(&set("f2", r#""isolated":true"#));
    bench.done(&add("f4", r#""service":"fw""#));
    assert_eq!(numbers(&mut bench), [1, 2, 0]);
}

#[test]
fn test_a_switch_keeps_its_chains_while_a_function_runs() {
    let mut bench = Bench::with_chain();
    bench.attach(2, 0, "vale0:f1").unwrap();
    for other in ["learning", "hub"] {
        let (code, why) = bench.refused(0, 0, &forwarding(other));
        assert!(code == ErrorCode::InUse && why.contains("vale0:f1"), "{why}");
    }
    bench.done(&forwarding("chain"));
    bench.control.hang_up(ConnKey(2));
    bench.done(&forwarding("learning"));
    // The listing does not claim that frames pass.
    for what in ["chain_list", "rule_list"] {
        let rows = list(&mut bench, what);
        let broken = rows[0]["broken"].as_str().unwrap();
        assert!(broken.contains("forwarding is learning, not chain"), "{broken}");
    }
}

#[test]
fn test_who_attaches_hears_whether_chains_lead_there() {
    let mut bench = Bench::with_chain();
    let leads = |bench: &mut Bench, port: &str| {
        let reply = bench.attach(7, 0, port).unwrap();
        bench.control.hang_up(ConnKey(7));
        let Reply::Attached(attached) = reply else { panic!("{reply:?}") };
        attached.function
    };
    assert!(leads(&mut bench, "vale0:f1"));
    assert!(!leads(&mut bench, "vale0:new"));
    assert!(!leads(&mut bench, "vale0:f1{0"), "a pipe has no service");
    bench.done(&forwarding("learning"));
    assert!(!leads(&mut bench, "vale0:f1"));
    bench.done(&forwarding("chain"));
    bench.done(&set("f1", r#""service":"""#));
    assert!(!leads(&mut bench, "vale0:f1"));
}

#[test]
fn test_a_rule_is_as_broken_as_its_chain() {
    let mut bench = Bench::with_chain();
    let rule = r#"{"action":"chain:web","vlan":7,"priority":9}"#;
    bench.ask(0, 0, &format!(r#"{{"rule_add":{{"switch":"vale0","rules":[{rule}]}}}}"#)).unwrap();
    let state = |bench: &mut Bench| list(bench, "rule_list")[0]["broken"].clone();
    assert_eq!(state(&mut bench), "chain web: no process runs fw");
    bench.attach(2, 0, "vale0:f1").unwrap();
    assert_eq!(state(&mut bench), serde_json::Value::Null);
}

#[test]
fn test_a_port_that_becomes_an_instance_breaks_rules_and_chains_that_name_it() {
    let mut bench = Bench::with_chain();
    bench.attach(2, 0, "vale0:f1").unwrap();
    bench.done(&add("x", ""));
    let rule = r#"{"action":"drop","in":"x","priority":9}"#;
    let rule = format!(r#"{{"rule_add":{{"switch":"vale0","rules":[{rule}]}}}}"#);
    bench.ask(0, 0, &rule).unwrap();
    let chain = r#"{"name":"away","services":["fw"],"out":"x"}"#;
    bench.done(&format!(r#"{{"chain_add":{{"switch":"vale0","chain":{chain}}}}}"#));
    bench.done(&set("x", r#""service":"fw""#));
    let broken = |rows: &[serde_json::Value], key: &str| {
        let row = rows.iter().find(|row| row.to_string().contains(key)).unwrap();
        row["broken"].as_str().unwrap().to_owned()
    };
    let why = broken(&list(&mut bench, "rule_list"), r#""in":"x""#);
    assert!(why.starts_with("port x is an instance of service fw"), "{why}");
    let why = broken(&list(&mut bench, "chain_list"), "away");
    assert!(why.starts_with("out is x, an instance of its own service"), "{why}");
    // What was there stays as it is; what is new is refused.
    let (code, why) = bench.refused(0, 0, &rule.replace(r#""in":"x""#, r#""in":"f1""#));
    assert!(code == ErrorCode::BadRequest && why.contains("meets no rule"), "{why}");
}

#[test]
fn test_listings_say_whose_process_a_function_is() {
    let mut bench = Bench::with_chain();
    bench.attach(2, 0, "vale0:f1").unwrap();
    let rows = list(&mut bench, "function_list");
    assert_eq!(rows[0]["user"], 0);
    assert_eq!(rows[1].get("user"), None);
}

/// The process of a connection: 0 is the number of all that the kernel gives none.
fn process(conn: u64, pid: u32) -> Process {
    if pid == 0 { Process::Connection(ConnKey(conn)) } else { Process::Number(pid) }
}

/// What a process that attaches a port sends; user 0.
fn attach(
    bench: &mut Bench,
    (conn, pid): (u64, u32),
    port: &str,
    alone: bool,
) -> Result<(), (ErrorCode, String)> {
    let mut client = client(conn, 0);
    client.caller.pid = pid;
    client.caller.process = process(conn, pid);
    let attach = Attach { alone, ..Attach::new(format!("vale0:{port}").parse().unwrap()) };
    let step = bench.control.call(&mut client, Request::Session(SessionRequest::Attach(attach)));
    bench.follow(conn, step).map(drop).map_err(|why| (why.code(), why.to_string()))
}

#[test]
fn test_an_instance_that_is_alone_has_no_other_process_beside_it() {
    let mut bench = Bench::with_chain();
    attach(&mut bench, (2, 7), "f1", true).unwrap();
    for alone in [false, true] {
        let (code, why) = attach(&mut bench, (3, 8), "f2", alone).unwrap_err();
        assert_eq!(code, ErrorCode::InUse);
        assert!(why.contains("test 2, process 7 of root, runs at vale0:f1 of service fw"), "{why}");
        assert!(why.contains("one instance of it only"), "{why}");
    }
    // Its other threads may, whatever they say; others at other services, too.
    attach(&mut bench, (4, 7), "f2", false).unwrap();
    bench.done(&add("g", r#""service":"other""#));
    attach(&mut bench, (5, 8), "g", true).unwrap();
    bench.control.hang_up(ConnKey(2));
    bench.control.hang_up(ConnKey(4));
    attach(&mut bench, (6, 8), "f2", false).unwrap();
    let (code, why) = attach(&mut bench, (7, 7), "f1", true).unwrap_err();
    assert_eq!(code, ErrorCode::InUse);
    assert!(why.contains("test 6, process 8 of root, runs at vale0:f2"), "{why}");
    attach(&mut bench, (7, 7), "f1", false).unwrap();
}

#[test]
fn test_processes_without_a_number_are_several() {
    let mut bench = Bench::with_chain();
    attach(&mut bench, (2, 0), "f1", true).unwrap();
    let (code, why) = attach(&mut bench, (3, 0), "f2", false).unwrap_err();
    assert!(code == ErrorCode::InUse && why.contains("runs at vale0:f1"), "{why}");
}

#[test]
fn test_of_two_that_ask_at_once_the_second_is_refused() {
    let mut bench = Bench::with_chain();
    let ask = |pid: u32, port: &str| {
        let mut client = client(pid.into(), 0);
        client.caller.pid = pid;
        client.caller.process = Process::Number(pid);
        let port = port.parse().unwrap();
        (
            client,
            Request::Session(SessionRequest::Attach(Attach { alone: true, ..Attach::new(port) })),
        )
    };
    let (mut first, attach) = ask(7, "vale0:f1");
    let Step::Build(build) = bench.control.call(&mut first, attach) else { panic!("it waits") };
    let (mut second, attach) = ask(8, "vale0:f2");
    let Step::Answer(Err(why)) = bench.control.call(&mut second, attach) else { panic!("both") };
    assert_eq!(why.code(), ErrorCode::InUse);
    bench.finish(7, build()).unwrap();
}

#[test]
fn test_who_has_a_port_becomes_no_instance_beside_one_that_is_alone() {
    let mut bench = Bench::with_chain();
    for port in ["p", "q"] {
        bench.done(&add(port, ""));
    }
    attach(&mut bench, (2, 7), "f1", true).unwrap();
    attach(&mut bench, (3, 8), "p", false).unwrap();
    attach(&mut bench, (4, 7), "q", false).unwrap();
    let (code, why) = bench.refused(0, 0, &set("p", r#""service":"fw""#));
    assert!(code == ErrorCode::InUse && why.contains("runs at vale0:f1"), "{why}");
    bench.done(&set("q", r#""service":"fw""#));
    // So it is with netmap programs.
    let bind = r#"{"bind":{"port":"vale0:f2"}}"#;
    let (code, why) = bench.refused(9, 0, bind);
    assert!(code == ErrorCode::InUse && why.contains("runs at vale0:f1"), "{why}");
    bench.control.hang_up(ConnKey(2));
    bench.ask(9, 0, bind).unwrap();
    let (_, why) = attach(&mut bench, (2, 7), "f1", true).unwrap_err();
    assert!(why.contains("runs at vale0:f2"), "{why}");
}
