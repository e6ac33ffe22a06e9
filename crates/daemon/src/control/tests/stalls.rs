//! Ports that hold up their worker.

use std::time::Duration;

use protocol::{
    Bind, BindKind, MonitorOf, PageFrom, SessionRequest, StallCause, StallStage, WorkerRequest,
};

use super::log::logged;
use super::*;
use crate::control::datapath::workers::WorkerStall;
use crate::model::keys::PortKey;

impl Bench {
    fn stall(&mut self, port: &str, stage: StallStage) {
        self.see_stall(port, stage, 60, false);
    }

    fn end_stall(&mut self, port: &str, stage: StallStage, ms: u64) {
        self.see_stall(port, stage, ms, true);
    }

    fn see_stall(&mut self, port: &str, stage: StallStage, ms: u64, is_over: bool) {
        self.see_stall_of(self.key(port), stage, ms, is_over);
    }

    fn see_stall_of(&mut self, port: Option<PortKey>, stage: StallStage, ms: u64, is_over: bool) {
        let (worker, cause, lasted) = (Some(0), StallCause::Blocked, Duration::from_millis(ms));
        let stall = WorkerStall { worker, port, stage, cause, lasted, is_over };
        self.control.datapath.stalls.push(stall);
        self.control.poll_stalls();
    }

    fn key(&self, port: &str) -> Option<PortKey> {
        Some(self.control.state.find_port(&port.parse().unwrap())?.key)
    }

    fn has(&self, port: &str) -> bool {
        self.control.state.find_port(&port.parse().unwrap()).is_some()
    }

    fn workers(&mut self, uid: u32) -> Vec<protocol::WorkerInfo> {
        let request = Request::Worker(WorkerRequest::List(PageFrom { from: None }));
        let Reply::Workers(page) = self.answer(9, uid, request).unwrap().0 else {
            panic!("another answer")
        };
        page.items
    }
}

#[test]
fn test_a_port_that_stalls_three_times_is_taken_away() {
    let mut bench = Bench::new();
    bench.attach(1, 1000, "vale0:a").unwrap();
    bench.attach(2, 1000, "vale0:b").unwrap();
    for _ in 0..2 {
        bench.stall("vale0:a", StallStage::Wake);
    }
    assert!(bench.has("vale0:a"));
    bench.stall("vale0:a", StallStage::Wake);
    assert!(!bench.has("vale0:a") && bench.has("vale0:b"));
    let refused = bench.attach(3, 1000, "vale0:c").unwrap_err().to_string();
    assert!(refused.contains("stalled its switch; its programs can attach"), "{refused}");
    bench.attach(4, 2000, "vale1:a").unwrap();
    bench.attach(5, 0, "vale0:a").unwrap();
}

#[test]
fn test_stalls_of_a_user_count_together() {
    let mut bench = Bench::new();
    for (conn, port) in [(1, "vale0:a"), (2, "vale0:b"), (3, "vale0:c")] {
        bench.attach(conn, 4321, port).unwrap();
    }
    bench.attach(4, 4322, "vale1:d").unwrap();
    bench.stall("vale0:a", StallStage::Wake);
    bench.stall("vale1:d", StallStage::Wake);
    let key = bench.key("vale0:b");
    bench.control.hang_up(ConnKey(2));
    bench.see_stall_of(key, StallStage::Wake, 60, false);
    assert!(bench.has("vale0:a") && bench.has("vale0:c"));
    bench.stall("vale0:c", StallStage::Send);
    assert!(bench.has("vale0:a") && !bench.has("vale0:c") && bench.has("vale1:d"));
    assert!(bench.attach(5, 4321, "vale0:e").is_err());
    bench.attach(6, 4322, "vale1:e").unwrap();
}

#[test]
fn test_a_user_that_leaves_with_its_third_stall_attaches_no_port() {
    let mut bench = Bench::new();
    bench.attach(1, 4321, "vale0:a").unwrap();
    let key = bench.key("vale0:a");
    bench.control.hang_up(ConnKey(1));
    (0..3).for_each(|_| bench.see_stall_of(key, StallStage::Wake, 60, false));
    assert!(bench.attach(2, 4321, "vale0:a").is_err());
}

#[test]
fn test_a_user_that_goes_on_stalling_loses_all_its_ports() {
    let mut bench = Bench::new();
    for (conn, uid, port) in [(1, 4321, "vale0:a"), (2, 4321, "vale0:b"), (3, 4322, "vale1:c")] {
        bench.attach(conn, uid, port).unwrap();
    }
    bench.ask(4, 4321, r#"{"port_add":{"port":"vale0:s","kind":"stream"}}"#).unwrap();
    let first = bench.key("vale0:a");
    (0..3).for_each(|_| bench.stall("vale0:a", StallStage::Wake));
    // What was reported meanwhile is of the port that is gone.
    bench.see_stall_of(first, StallStage::Wake, 60, false);
    assert!(!bench.has("vale0:a") && bench.has("vale0:b"));
    bench.stall("vale0:b", StallStage::Wake);
    assert!(!bench.has("vale0:b") && bench.has("vale1:c"));
    assert_eq!(bench.control.datapath.evicted.len(), 1, "the stream port, which stays");
}

#[test]
fn test_more_reports_of_a_vmm_that_is_disconnected_cost_its_owner_no_other_port() {
    let mut bench = Bench::new();
    bench.ask(1, 4321, r#"{"port_add":{"port":"vale0:s","kind":"stream"}}"#).unwrap();
    bench.attach(2, 4321, "vale0:a").unwrap();
    (0..5).for_each(|_| bench.stall("vale0:s", StallStage::Wake));
    assert!(bench.has("vale0:a"));
    assert_eq!(bench.control.datapath.evicted.len(), 1);
}

#[test]
fn test_stalls_of_roots_ports_count_apart() {
    let mut bench = Bench::new();
    for (conn, port) in [(1, "vale0:a"), (2, "vale0:b")] {
        bench.attach(conn, 0, port).unwrap();
    }
    for port in ["vale0:a", "vale0:b", "vale0:a", "vale0:b"] {
        bench.stall(port, StallStage::Wake);
    }
    assert!(bench.has("vale0:a") && bench.has("vale0:b"));
    bench.stall("vale0:a", StallStage::Wake);
    assert!(!bench.has("vale0:a") && bench.has("vale0:b"));
}

#[test]
fn test_a_port_whose_memory_is_slow_three_times_is_taken_away_and_no_other() {
    let mut bench = Bench::new();
    bench.attach(1, 1000, "vale0:a").unwrap();
    bench.attach(2, 2000, "vale1:b").unwrap();
    for _ in 0..10 {
        bench.stall("vale0:a", StallStage::Forward);
        bench.stall("vale1:b", StallStage::Forward);
    }
    for _ in 0..2 {
        bench.stall("vale0:a", StallStage::Memory);
    }
    assert!(bench.has("vale0:a") && bench.has("vale1:b"));
    bench.stall("vale0:a", StallStage::Memory);
    assert!(!bench.has("vale0:a") && bench.has("vale1:b"));
    assert!(bench.attach(3, 1000, "vale0:c").is_err());
    bench.attach(4, 2000, "vale1:a").unwrap();
    let worker = bench.workers(0).remove(0);
    let last = worker.last_stall.expect("one of them");
    assert_eq!((worker.stalls, last.stage), (20, StallStage::Memory));
}

#[test]
fn test_the_length_of_a_stall_is_known_when_it_is_over_and_is_that_of_a_turn() {
    let mut bench = Bench::new();
    bench.attach(1, 1000, "vale0:a").unwrap();
    let seen = |bench: &mut Bench| {
        let worker = bench.workers(1000).remove(0);
        let port = worker.longest_turn_port.map(|port| port.to_string());
        let lasted_ms = worker.last_stall.map(|last| last.lasted_ms);
        (worker.stalls, lasted_ms, worker.longest_turn_ns / 1_000_000, port)
    };
    let port = || Some("vale0:a".to_owned());
    assert_eq!(seen(&mut bench), (0, None, 0, None));
    bench.stall("vale0:a", StallStage::Send);
    assert_eq!(seen(&mut bench), (1, Some(60), 60, port()));
    bench.end_stall("vale0:a", StallStage::Send, 750);
    assert_eq!(seen(&mut bench), (1, Some(750), 750, port()));
    // No turn waits while the worker carries out changes.
    bench.stall("vale0:a", StallStage::Control);
    bench.end_stall("vale0:a", StallStage::Control, 2000);
    assert_eq!(seen(&mut bench), (2, Some(2000), 750, port()));
    bench.stall("vale0:a", StallStage::Memory);
    bench.end_stall("vale0:a", StallStage::Forward, 900);
    assert_eq!(seen(&mut bench), (2, Some(60), 900, port()), "the memory was slow for 60 ms");
}

#[test]
fn test_stalls_do_not_fill_the_log() {
    let lines = logged(|bench| {
        bench.attach(1, 1000, "vale0:a").unwrap();
        bench.attach(2, 1001, "vale1:b").unwrap();
        for _ in 0..100 {
            bench.stall("vale0:a", StallStage::Forward);
        }
        for _ in 0..2 {
            bench.stall("vale0:a", StallStage::Wake);
            bench.stall("vale1:b", StallStage::Wake);
        }
        bench.control.call_log = CallLog::default();
        for _ in 0..40 {
            assert!(bench.control.call_log.logs_change(1001, Instant::now()));
        }
        bench.stall("vale1:b", StallStage::Wake);
    });
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(count("forwarding frames of vale0:a"), 40, "{lines:?}");
    assert_eq!(count("waking the client of vale0:a"), 2, "its user's own");
    assert_eq!(count("waking the client of vale1:b"), 2, "its user has no more lines");
    assert_eq!(count("vale1:b: detached: stalls the switch"), 1, "what follows is said");
}

#[test]
fn test_lines_about_a_port_that_is_gone_are_those_of_its_user() {
    let lines = logged(|bench| {
        bench.attach(1, 1000, "vale0:a").unwrap();
        let key = bench.key("vale0:a");
        bench.control.hang_up(ConnKey(1));
        (0..100).for_each(|_| bench.see_stall_of(key, StallStage::Wake, 60, false));
        bench.stall("vale0:b", StallStage::Forward);
    });
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert!((1..=40).contains(&count("waking the client of")), "{lines:?}");
    assert_eq!(count("forwarding frames of"), 1, "lines that are no user's are left");
}

#[test]
fn test_the_port_of_a_stall_may_be_gone() {
    let lines = logged(|bench| {
        bench.stall("vale0:a", StallStage::Wake);
        bench.stall("vale0:a", StallStage::Control);
    });
    assert!(lines[0].contains("waking the client of a port that is gone: blocked"), "{lines:?}");
    assert!(lines[1].contains("carrying out changes: blocked"), "{lines:?}");
}

#[test]
fn test_a_port_that_netmap_programs_hold_is_taken_away_like_any() {
    let mut bench = Bench::new();
    bench.bind(1, 1000, "vale0:a").unwrap();
    for _ in 0..3 {
        bench.stall("vale0:a", StallStage::Wake);
    }
    assert!(!bench.has("vale0:a"));
    assert!(bench.attach(3, 1000, "vale0:c").is_err());
}

#[test]
fn test_a_port_that_no_client_holds_stays() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:t","kind":"tap"}}"#);
    for _ in 0..10 {
        bench.stall("vale0:t", StallStage::Send);
    }
    assert!(bench.has("vale0:t"));
}

#[test]
fn test_a_vmm_that_stalls_its_port_is_disconnected_and_its_owner_gets_no_other() {
    let mut bench = Bench::new();
    let add = |port| format!(r#"{{"port_add":{{"port":"{port}","kind":"vhost-user"}}}}"#);
    let request = |port| serde_json::from_str::<Request>(&add(port)).unwrap();
    let [first, second] = ["vale0:vm", "vale0:vm2"].map(request);
    bench.answer(1, 1000, first).unwrap();
    for _ in 0..3 {
        assert_eq!(bench.control.datapath.evicted, []);
        bench.stall("vale0:vm", StallStage::Wake);
    }
    assert!(bench.has("vale0:vm"));
    let [(_, why)] = &bench.control.datapath.evicted[..] else { panic!("once") };
    assert!(why.contains("stalls the switch (3 times within a minute)"), "{why}");
    assert!(bench.attach(3, 1000, "vale0:c").is_err());
    let refused = bench.answer(1, 1000, second.clone()).unwrap_err().to_string();
    assert!(refused.contains("stalled its switch"), "{refused}");
    bench.answer(4, 0, second).unwrap();
}

#[test]
fn test_what_connects_to_a_stream_port_may_be_no_vmm() {
    let mut bench = Bench::new();
    bench.ask(1, 1000, r#"{"port_add":{"port":"vale0:s","kind":"stream"}}"#).unwrap();
    for _ in 0..3 {
        bench.stall("vale0:s", StallStage::Wake);
    }
    let [(_, why)] = &bench.control.datapath.evicted[..] else { panic!("once") };
    assert!(why.ends_with("the port admits no peer"), "{why}");
}

#[test]
fn test_stalls_are_listed_and_their_ports_shown_to_users_that_may_see_them() {
    let mut bench = Bench::new();
    bench.attach(1, 1000, "vale0:a").unwrap();
    assert_eq!(bench.workers(1000)[0].last_stall, None);
    bench.stall("vale0:a", StallStage::Forward);
    let [mine, root, others] = [1000, 0, 2000].map(|uid| {
        let worker = bench.workers(uid).remove(0);
        assert_eq!(worker.stalls, 1);
        worker.last_stall.expect("a stall").port.map(|port| port.to_string())
    });
    assert_eq!([mine.as_deref(), root.as_deref()], [Some("vale0:a"); 2]);
    assert_eq!(others, None);
}

#[test]
fn test_a_monitor_that_stalls_its_switch_ends_and_its_port_goes_on() {
    let mut bench = Bench::new();
    bench.attach(1, 4321, "vale0:a").unwrap();
    let all = BindKind::Monitor(MonitorOf { tx: true, rx: true, zero_copy: false });
    let bind = Bind { kind: all, ..Bind::new("vale0:a".parse().unwrap()) };
    bench.bind_unswitched(2, 0, bind).unwrap();
    let key = bench.control.state.unswitched_of(ConnKey(2)).unwrap().key;
    (0..3).for_each(|_| bench.see_stall_of(Some(key), StallStage::Wake, 60, false));
    assert_eq!(bench.control.datapath.ended_captures, [key]);
    assert!(bench.has("vale0:a"));
    bench.attach(3, 4321, "vale0:b").unwrap();
}

#[test]
fn test_a_capture_of_drops_that_stalls_its_switch_ends() {
    let mut bench = Bench::new();
    bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"owner":1000}}}"#);
    let bind = r#"{"bind":{"port":"vale0:d","kind":{"drops":{}}}}"#;
    let Request::Session(SessionRequest::Bind(bind)) = serde_json::from_str(bind).unwrap() else {
        panic!("another call")
    };
    bench.bind_unswitched(2, 1000, bind).unwrap();
    let key = bench.control.state.unswitched_of(ConnKey(2)).unwrap().key;
    for ended in [0, 0, 1] {
        bench.control.datapath.stalls.push(WorkerStall {
            worker: Some(0),
            port: Some(key),
            stage: StallStage::Memory,
            cause: StallCause::Blocked,
            lasted: Duration::from_millis(60),
            is_over: false,
        });
        bench.control.poll_stalls();
        assert_eq!(bench.control.datapath.ended_captures.len(), ended);
    }
    assert!(bench.attach(3, 1000, "vale0:c").is_err(), "for a minute");
}
