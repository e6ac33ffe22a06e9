//! Frames of ports by `uvala-http`, and the last hour.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use client::Port;
use harness::daemon::{Daemon, Setup};
use harness::frames::{fill, mac};
use harness::http::{Http, Messages, request};
use harness::process::USER;
use harness::{is_root, measure, skip, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A frame of this length from one station to another.
fn frame(to: u32, from: u32, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    fill(&mut frame, mac(to), from, 0, len);
    frame
}

/// Two ports that know each other.
fn pair(daemon: &Daemon) -> [Port; 2] {
    let [mut a, mut b] = ["vale0:a", "vale0:b"].map(|name| daemon.open(name));
    let mut got = Vec::new();
    a.send(&frame(2, 1, 60)).expect("room");
    b.recv(&mut got).expect("it arrives");
    b.send(&frame(1, 2, 60)).expect("room");
    a.recv(&mut got).expect("it arrives");
    [a, b]
}

fn send(from: &mut Port, to: &mut Port, frame: &[u8]) {
    let mut got = Vec::new();
    from.send(frame).expect("room");
    to.recv(&mut got).expect("it arrives");
    assert_eq!(got, frame);
}

/// A stream that has begun.
fn listen(http: &Http, path: &str) -> Messages {
    let mut stream = http.listen(path);
    let status = stream.status();
    assert!(status.contains("200"), "{status}");
    stream
}

#[test]
fn frames_of_a_port_are_seen_as_they_pass_with_filter_direction_and_limit() {
    let daemon = Daemon::start();
    let http = Http::start(&daemon);
    let [mut a, mut b] = pair(&daemon);
    let mut seen = listen(&http, "/v1/ports/vale0:a/frames?limit=2");
    let mut out = listen(&http, "/v1/ports/vale0%3Aa/frames?direction=out");
    let mut long = listen(&http, "/v1/ports/vale0:a/frames?filter=greater%20200&direction=in");
    send(&mut a, &mut b, &frame(2, 1, 100));
    send(&mut b, &mut a, &frame(1, 2, 101));
    send(&mut a, &mut b, &frame(2, 1, 300));
    let first = seen.data();
    let [one, two] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
    let text = format!("{one} > {two} ethertype 0x88b5");
    for (name, expected) in [
        ("direction", json!("in")),
        ("src", json!(one)),
        ("dst", json!(two)),
        ("bytes", json!(100)),
        ("text", json!(text)),
    ] {
        assert_eq!(first[name], expected, "{first}");
    }
    assert!(first["time_ns"].as_u64() > Some(1 << 60), "{first}");
    assert_eq!(seen.data()["bytes"], 101);
    assert_eq!(seen.message(), None, "two were wanted");
    assert_eq!(out.data()["bytes"], 101);
    assert_eq!(long.data()["bytes"], 300);
}

#[test]
fn captures_that_cannot_be_are_refused_with_a_cure() {
    let daemon = Setup::new("[switch.vale0.port.a]\n").start();
    let http = Http::start(&daemon);
    let place = "/v1/ports/vale0:a/frames";
    for (path, status, code, why) in [
        (format!("{place}?filter=udp%20prt"), 400, "bad_request", "syntax error"),
        (
            format!("{place}?filter={}", "udp%20or%20".repeat(100)),
            400,
            "bad_request",
            "longer than",
        ),
        (format!("{place}?filter=host%20evil.example"), 400, "bad_request", "evil.example"),
        (format!("{place}?direction=up"), 400, "bad_request", "in, out or both"),
        (format!("{place}?limit=-1"), 400, "bad_request", ""),
        (format!("{place}?fliter=udp"), 400, "bad_request", "fliter"),
        ("/v1/ports/vale0:x/frames".to_owned(), 404, "not_found", "vale0:x"),
        ("/v1/ports/eth0/frames".to_owned(), 400, "bad_name", "eth0"),
    ] {
        let said = http.get(&path).problem(status, code);
        assert!(said.contains(why), "{path}: {said}");
    }
    let mut running: Vec<_> = (0..4).map(|_| listen(&http, place)).collect();
    assert!(http.get(place).problem(503, "busy").contains("end one"));
    running.pop();
    wait::until("room for another", || http.listen(place).status().contains("200"));
    // The capture of a port ends with it.
    let mut last = running.pop().unwrap();
    http.ask("DELETE", "/v1/ports/vale0:a", None);
    wait::until("its end", || match last.message() {
        Some((kind, problem)) => kind == "problem" && problem["code"] == "not_found",
        None => panic!("it ended without a word"),
    });
}

#[test]
fn a_caller_sees_the_frames_of_ports_that_its_server_may_capture() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let daemon = Setup::new("[switch.vale0]\nmode = \"600\"\n[switch.vale0.port.a]\n").start();
    let http = Http::start_with(&daemon, Some(USER), &[]);
    let refused = http.get("/v1/ports/vale0:a/frames").problem(403, "permission");
    let said = daemon.uvala_as(&["capture", "vale0:a", "-c", "1"], Some(USER));
    assert!(String::from_utf8_lossy(&said.stderr).contains(&refused), "{refused}, {said:?}");
}

#[test]
fn a_capture_ends_with_its_caller_and_leaves_nothing() {
    let daemon = Daemon::start();
    let mut http = Http::start(&daemon);
    let [mut a, mut b] = pair(&daemon);
    http.get("/v1/ports");
    let before = daemon.holdings();
    let [threads, descriptors] =
        [measure::threads(http.process.pid()), measure::descriptors(http.process.pid()).len()];
    for round in 0..10 {
        let mut seen = listen(&http, "/v1/ports/vale0:a/frames?filter=ether%20proto%200x88b5");
        send(&mut a, &mut b, &frame(2, 1, 100));
        assert_eq!(seen.data()["bytes"], 100, "round {round}");
    }
    daemon.assert_holds(before);
    wait::until("the end of threads and descriptors", || {
        let pid = http.process.pid();
        // Threads of the pool rest for a while.
        measure::threads(pid) <= threads + 4 && measure::descriptors(pid).len() <= descriptors
    });
    http.process.signal(Signal::TERM);
    assert!(http.process.wait().success());
    let mut log = String::new();
    http.log.read_to_string(&mut log).unwrap();
    assert_eq!(log, "", "a capture makes a call that the sandbox refuses");
}

#[test]
fn a_slow_caller_loses_frames_and_costs_the_port_none() {
    let daemon = Daemon::start();
    let http = Http::start(&daemon);
    let [mut a, mut b] = pair(&daemon);
    let mut slow = UnixStream::connect(&http.socket).unwrap();
    slow.write_all(&request("GET", "/v1/ports/vale0:a/frames?direction=in", "", None)).unwrap();
    let mut slow = BufReader::new(slow);
    let mut line = String::new();
    slow.read_line(&mut line).unwrap();
    assert!(line.contains("200"), "{line}");
    const SENT: u64 = 20_000;
    for _ in 0..SENT {
        send(&mut a, &mut b, &frame(2, 1, 60));
    }
    let (mut seen, mut lost, mut data) = (0, 0, 0);
    while seen + lost < SENT {
        line.clear();
        assert_ne!(slow.read_line(&mut line).unwrap(), 0, "it ended");
        if let Some(text) = line.strip_prefix("data: ") {
            data = text.trim().parse().unwrap_or_default();
            seen += u64::from(text.starts_with('{'));
        } else if line.starts_with("event: lost") {
            lost += data;
        }
    }
    assert!(seen > 0 && lost > 0 && seen + lost == SENT, "{seen} and {lost} of {SENT}");
}

#[test]
fn the_last_hour_is_kept_in_steps() {
    let daemon = Daemon::start();
    let http = Http::start(&daemon);
    let [mut a, mut b] = pair(&daemon);
    let history = || http.get("/v1/ports/vale0:a/history").json();
    assert_eq!((&history()["port"], &history()["step_s"]), (&json!("vale0:a"), &json!(10)));
    let steps = || history()["steps"].as_array().unwrap().clone();
    wait::until("two steps", || {
        send(&mut a, &mut b, &frame(2, 1, 60));
        steps().len() >= 2
    });
    let sum =
        |steps: &[Value], name: &str| steps.iter().filter_map(|it| it[name].as_u64()).sum::<u64>();
    let known = steps();
    assert!(sum(&known, "tx_frames") > 0, "{known:?}");
    assert_eq!(sum(&known, "tx_bytes"), 60 * sum(&known, "tx_frames"), "{known:?}");
    http.get("/v1/ports/vale0:x/history").problem(404, "not_found");
}
