//! `uvala-http`: its API, and what hostile callers get.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};

use harness::daemon::{Daemon, Setup};
use harness::frames::announcement;
use harness::http::{Http, Messages, exchange, program, request};
use harness::process::{Owned, USER};
use harness::{Random, is_root, measure, root, skip, wait};
use rustix::process::{Signal, Uid};
use serde_json::{Value, json};

/// What a command says that fails, without the program's name.
fn said(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("uvala: ").to_owned()
}

#[test]
fn switches_and_ports_are_made_changed_and_deleted_with_the_words_of_the_command_line() {
    let daemon = Daemon::start();
    let http = Http::start(&daemon);
    assert_eq!(http.get("/v1/daemon").json()["pid"], daemon.pid());
    let made = http.ask("POST", "/v1/switches", Some(json!({"switch": "vale0"})));
    assert_eq!(made.status, 201, "{made:?}");
    assert!(made.head.to_lowercase().contains("location: /v1/switches/vale0"), "{made:?}");
    let add = json!({"port": "vale0:a", "settings": {"vlan": "access:7"}});
    assert_eq!(http.ask("POST", "/v1/ports", Some(add.clone())).status, 201);
    let shown = http.get("/v1/ports/vale0:a").json();
    assert_eq!(shown, serde_json::to_value(daemon.port("vale0:a").unwrap()).unwrap());
    assert_eq!(http.get("/v1/ports?switch=vale0").json()["items"], json!([shown]));
    let twice = http.ask("POST", "/v1/ports", Some(add)).problem(409, "exists");
    assert_eq!(twice, said(&daemon.uvala(&["port", "add", "vale0:a"])));
    let changed = http.ask("PATCH", "/v1/ports/vale0%3Aa", Some(json!({"isolated": true})));
    assert_eq!(changed.status, 204, "{changed:?}");
    assert_eq!(daemon.port("vale0:a").unwrap().settings.isolated, Some(true));
    let age = http.ask("PATCH", "/v1/switches/vale0", Some(json!({"age_s": 5})));
    assert_eq!(
        (age.status, http.get("/v1/switches/vale0").json()["age_s"].as_u64()),
        (204, Some(5))
    );
    // Names that are none.
    let wrong =
        http.ask("POST", "/v1/ports", Some(json!({"port": "eth0"}))).problem(400, "bad_name");
    assert!(said(&daemon.uvala(&["port", "add", "eth0"])).contains(&wrong), "{wrong}");
    assert_eq!(http.get("/v1/ports/eth0").problem(400, "bad_name"), wrong);
    for (method, path, body, status, code) in [
        ("GET", "/v1/ports/vale0:no", None, 404, "not_found"),
        ("DELETE", "/v1/switches/vale9", None, 404, "not_found"),
        ("GET", "/v1/ports?swich=vale0", None, 400, "bad_request"),
        (
            "POST",
            "/v1/ports",
            Some(json!({"port": "vale0:b", "vlan": "access:7"})),
            400,
            "bad_request",
        ),
        ("PATCH", "/v1/ports/vale0:a", Some(json!({"vlan": "access:5000"})), 400, "bad_request"),
        ("PATCH", "/v1/switches/vale0", Some(json!({"fdb_capacity": 0})), 422, "bad_request"),
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("PUT", "/v1/ports", None, 405, "bad_request"),
    ] {
        let detail = http.ask(method, path, body).problem(status, code);
        assert!(!detail.is_empty(), "{method} {path}");
    }
    assert_eq!(http.ask("DELETE", "/v1/ports/vale0:a", None).status, 204);
    assert_eq!(daemon.port("vale0:a"), None);
    assert_eq!(http.ask("DELETE", "/v1/switches/vale0", None).status, 204);
    assert_eq!(http.get("/v1/switches").json(), json!({"items": [], "next": null}));
}

#[test]
fn addresses_chains_and_every_other_call_are_there() {
    let daemon =
        Setup::new("[switch.vale0.port.a]\n[switch.valenf]\nforwarding = \"chain\"\n").start();
    let http = Http::start(&daemon);
    let mac = "02:00:00:00:00:01";
    let entry = json!({"port": "vale0:a", "mac": mac, "vlan": 3});
    assert_eq!(http.ask("POST", "/v1/switches/vale0/fdb", Some(entry.clone())).status, 201);
    let foreign = http.ask("POST", "/v1/switches/valenf/fdb", Some(entry));
    assert!(foreign.problem(400, "bad_request").contains("no port of valenf"));
    let listed = http.get("/v1/switches/vale0/fdb").json();
    assert_eq!(
        (&listed["items"][0]["mac"], &listed["items"][0]["static"]),
        (&json!(mac), &json!(true))
    );
    http.ask("DELETE", &format!("/v1/switches/vale0/fdb/{mac}"), None).problem(404, "not_found");
    assert_eq!(
        http.ask("DELETE", &format!("/v1/switches/vale0/fdb/{mac}?vlan=3"), None).status,
        204
    );
    for list in ["chains", "rules", "functions"] {
        assert_eq!(http.get(&format!("/v1/switches/valenf/{list}")).json()["items"], json!([]));
    }
    for list in ["users", "workers", "groups", "switches", "ports", "stats"] {
        assert!(http.get(&format!("/v1/{list}")).json()["items"].is_array(), "{list}");
    }
    assert!(http.get("/v1/usage").json()["descriptors"].as_u64() > Some(3));
    let reasons = http.get("/v1/drop-reasons").json();
    assert!(reasons.as_array().unwrap().iter().all(|reason| reason["cure"].is_string()));
    let call = |call: Value| http.ask("POST", "/v1/calls", Some(call));
    let rule =
        json!({"rule_add": {"switch": "valenf", "rules": [{"action": "drop", "proto": "udp"}]}});
    assert_eq!(call(rule).json(), json!([1]));
    assert_eq!(http.get("/v1/switches/valenf/rules").json()["items"][0]["rule"]["proto"], "udp");
    assert_eq!(call(json!({"rule_del": {"switch": "valenf", "rules": [1]}})).status, 204);
    assert_eq!(call(json!("usage")).status, 200);
    // What ends with its connection is nothing that HTTP can do.
    let held =
        json!({"port_add": {"port": "vale0:h", "kind": "stream", "machine": {"held": true}}});
    for wrong in
        [json!({"attach": {"port": "vale0:a"}}), json!({"switch_draft": {"switch": "vale0"}}), held]
    {
        call(wrong).problem(422, "unsupported");
    }
    assert!(call(json!({"fly": {}})).problem(400, "bad_request").contains("switch_add"));
}

#[test]
fn groups_chains_rules_and_the_way_of_a_frame_are_operations() {
    let config = "[switch.vale0]\nmcast_snooping = true\n[switch.vale0.port.a]\n\
        [switch.valenf]\nforwarding = \"chain\"\n[switch.valenf.port.f]\nservice = \"fw\"\n";
    let daemon = Setup::new(config).start();
    let _a = daemon.open("vale0:a");
    let http = Http::start(&daemon);
    let ask = |method: &str, path: &str, body: Option<Value>| http.ask(method, path, body);
    let items = |path: &str| http.get(path).json()["items"].as_array().unwrap().clone();

    let mdb = "/v1/switches/vale0/mdb";
    let group = json!({"port": "vale0:a", "group": "239.1.1.1", "vlan": 1});
    let made = ask("POST", mdb, Some(group.clone()));
    let place = "/v1/ports/vale0:a/mdb/239.1.1.1?vlan=1";
    assert!(made.status == 201 && made.head.contains(place), "{made:?}");
    let listed = items(mdb);
    assert!(
        listed.iter().any(|it| it["group"] == "239.1.1.1" && it["static"] == true),
        "{listed:?}"
    );
    let wrong = ask("POST", "/v1/switches/valenf/mdb", Some(group)).problem(400, "bad_request");
    assert!(wrong.contains("no port of valenf"), "{wrong}");
    assert_eq!(ask("DELETE", place, None).status, 204);
    ask("DELETE", place, None).problem(404, "not_found");

    let chains = "/v1/switches/valenf/chains";
    let chain = json!({"name": "c", "services": ["fw"]});
    assert_eq!(ask("POST", chains, Some(chain)).status, 204);
    assert_eq!(items(chains)[0]["chain"]["name"], "c");
    let rules = "/v1/switches/valenf/rules";
    let two = json!([{"action": "drop", "vlan": 7}, {"action": "chain:c", "vlan": 8}]);
    assert_eq!(ask("POST", rules, Some(two)).json(), json!([1, 2]));
    assert_eq!(ask("DELETE", &format!("{rules}/1"), None).status, 204);
    assert_eq!(items(rules).len(), 1);
    assert_eq!(ask("DELETE", rules, None).status, 204);
    assert_eq!(items(rules).len(), 0);
    assert_eq!(ask("DELETE", &format!("{chains}/c"), None).status, 204);
    assert_eq!(items(chains).len(), 0);

    let head = "ffffffffffff02000000000188b5";
    let trace = http.get(&format!("/v1/ports/vale0:a/trace?head={head}&bytes=60")).json();
    assert_eq!(trace["steps"][0]["step"], "vlan", "{trace}");
    let fdb = "/v1/switches/vale0/fdb";
    assert_eq!(ask("DELETE", &format!("{fdb}?port=vale0:a"), None).status, 204);
    let moved = ask("PUT", "/v1/ports/vale0:a/worker", Some(json!({"worker": 999}))).json();
    assert!(moved["detail"].as_str().is_some_and(|words| words.contains("999")), "{moved}");
    http.get("/v1/switches/vale0/program").json()["detail"].as_str().unwrap();
    http.get("/v1/ports/vale0:a/neigh").problem(422, "bad_request");
}

#[test]
fn streams_have_counters_and_what_changes() {
    let mut daemon = Daemon::start();
    let (mut a, _b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let http = Http::start(&daemon);
    let mut events = http.listen("/v1/events?switch=vale0");
    let mut counters = http.listen("/v1/stats/stream?port=vale0:a");
    let sent = |message: &Value| message["items"][0]["tx"]["frames"].as_u64();
    assert_eq!(sent(&counters.data()), Some(0));
    a.send(&announcement(1)).unwrap();
    wait::until("a frame in the counters", || sent(&counters.data()) == Some(1));
    assert_eq!(events.data()["event"], "fdb_added");
    http.ask("POST", "/v1/ports", Some(json!({"port": "vale0:c"})));
    assert_eq!(events.data()["port"], "vale0:c");
    daemon.kill();
    wait::until("the end of events", || events.data()["code"] == "no_daemon");
    wait::until("no counters", || counters.data()["code"] == "no_daemon");
    let detail = http.get("/v1/ports").problem(503, "no_daemon");
    assert!(detail.contains("start one with"), "{detail}");
    daemon.restart();
    // The port went with its client.
    wait::until("the next daemon", || counters.data()["code"] == "not_found");
    let mut streams: Vec<_> = (0..40).map(|_| http.listen("/v1/stats/stream")).collect();
    let refused =
        streams.iter_mut().map(Messages::status).filter(|line| line.contains("503")).count();
    assert!((1..40).contains(&refused), "{refused} of 40");
    assert_eq!(http.get("/v1/ports").status, 200, "beside as many streams as there may be");
    drop(streams);
}

#[test]
fn a_token_says_what_a_caller_by_tcp_may() {
    let daemon = Daemon::start();
    let http = Http::start(&daemon);
    let [read, write] = [&http.read, &http.write].map(|token| Http::bearer(token));
    for path in ["/", "/app.js", "/style.css", "/openapi.json"] {
        assert_eq!(http.ask_tcp("GET", path, "", None).status, 200, "{path}");
    }
    for lines in ["", &Http::bearer("0123"), &read.replace("Bearer", "Basic"), &read.to_uppercase()]
    {
        let refused = http.ask_tcp("GET", "/v1/switches", lines, None);
        refused.problem(401, "token");
        assert!(refused.head.to_lowercase().contains("www-authenticate: bearer"), "{refused:?}");
    }
    assert_eq!(http.ask_tcp("GET", "/v1/switches", &read, None).status, 200);
    let add = || Some(json!({"switch": "vale0"}));
    for (method, path) in [
        ("POST", "/v1/switches"),
        ("POST", "/v1/calls"),
        ("PATCH", "/v1/switches/vale0"),
        ("DELETE", "/v1/switches/vale0"),
        ("PUT", "/v1/switches"),
    ] {
        http.ask_tcp(method, path, &read, add()).problem(403, "token");
    }
    assert_eq!(http.ask_tcp("POST", "/v1/switches", &write, add()).status, 201);
    let tokens = http.place.path().join("tokens");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o640)).unwrap();
    let words = ["--listen=127.0.0.1:0", "--tokens"];
    let output = program().args(words).arg(&tokens).output().unwrap();
    assert!(said(&output).contains("chmod 600"), "{output:?}");
    for (place, why) in [("127.0.0.1:0", "--tokens FILE"), ("0.0.0.0:0", "reverse proxy")] {
        let output = program().arg(format!("--listen={place}")).output().unwrap();
        assert!(said(&output).contains(why), "{output:?}");
    }
}

#[test]
fn another_user_gets_no_rights_by_the_socket() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let daemon = Daemon::start();
    let http = Http::start(&daemon);
    let as_user = || {
        std::thread::scope(|scope| {
            let socket = &http.socket;
            let ask = move || {
                rustix::thread::set_thread_uid(Uid::from_raw(USER)).expect("root may");
                let stream = UnixStream::connect(socket).ok()?;
                Some(exchange(stream, &request("GET", "/v1/switches", "", None)))
            };
            scope.spawn(ask).join().expect("no panic")
        })
    };
    assert!(as_user().is_none(), "the socket is its user's alone");
    // Also where its mode was changed.
    std::fs::set_permissions(&http.socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let refused = as_user().expect("a connection").problem(403, "permission");
    assert!(refused.contains(&USER.to_string()), "{refused}");
    assert_eq!(http.get("/v1/switches").status, 200);
}

#[test]
fn pages_of_other_servers_and_broken_requests_get_nothing() {
    let daemon = Setup::new("[switch.vale0.port.a]\n").start();
    let mut http = Http::start(&daemon);
    let write = Http::bearer(&http.write);
    let get = |lines: &str| http.ask_tcp("GET", "/v1/switches", &format!("{write}{lines}"), None);
    let own =
        format!("Host: {0}\r\nOrigin: http://{0}\r\nSec-Fetch-Site: same-origin\r\n", http.address);
    assert_eq!(get(&own).status, 200);
    // DNS rebinding, and requests across origins.
    get("Host: evil.example\r\n").problem(421, "host");
    get("Host: localhost.evil.example:80\r\n").problem(421, "host");
    get("Origin: http://evil.example\r\n").problem(403, "origin");
    get("Origin: null\r\n").problem(403, "origin");
    get("Sec-Fetch-Site: cross-site\r\n").problem(403, "origin");
    get("Host: localhost\r\nHost: localhost\r\n").problem(400, "bad_request");
    get(&format!("Host: localhost\r\n{write}")).problem(400, "bad_request");
    let proxied = format!(
        "GET http://evil.example/v1/switches HTTP/1.1\r\nHost: localhost\r\n{write}\
         Connection: close\r\n\r\n"
    );
    http.send(proxied).problem(400, "bad_request");
    // A form can send text, and nothing else.
    let form = format!(
        "POST /v1/ports HTTP/1.1\r\nHost: localhost\r\n{write}Content-Type: text/plain\r\n\
         Content-Length: 18\r\nConnection: close\r\n\r\n{{\"port\":\"vale0:x\"}}"
    );
    http.send(form).problem(415, "bad_request");
    // A page of this server loads nothing from others.
    let page = http.ask_tcp("GET", "/", "", None);
    assert!(page.head.contains("default-src 'none'") && page.head.contains("nosniff"), "{page:?}");
    // Bodies and heads that are too long.
    let long = Value::String("x".repeat(100_000));
    http.ask_tcp("POST", "/v1/ports", &write, Some(long)).problem(413, "bad_request");
    let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(50_000));
    assert_eq!(http.send(head).status, 431);
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let deep = format!(
        "POST /v1/ports HTTP/1.1\r\nHost: localhost\r\n{write}Content-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{deep}",
        deep.len()
    );
    http.send(deep).problem(400, "bad_request");
    // Paths that lead elsewhere.
    for path in
        ["/../v1/ports", "//v1/ports", "/%76%31/ports", "/.%2e/etc/passwd", "/app.js/", "/V1/ports"]
    {
        assert_eq!(http.ask_tcp("GET", path, "", None).status, 401, "{path}");
        assert_ne!(http.ask_tcp("GET", path, &write, None).status, 200, "{path}");
    }
    for path in
        ["/v1/ports/%00", "/v1/ports/..%2f..", "/v1/ports/%ff", "/v1/switches/vale0%0d%0aX:/fdb"]
    {
        let answer = http.ask_tcp("GET", path, &write, None);
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
    }
    // What is no request.
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01"[..],
        b"GET /\r\n\r\n",
        b"\0\0\0\0",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(&http.address).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_ne!(exchange(stream, b"").status, 200);
    }
    assert_eq!(daemon.ports(), ["vale0:a"]);
    assert!(!http.process.has_ended());
}

#[test]
fn slow_and_deaf_callers_keep_no_others_out() {
    let daemon = Daemon::start();
    let http = Http::start(&daemon);
    let open = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(&http.address).unwrap();
        let _ = stream.write_all(bytes);
        stream
    };
    let slow: Vec<_> = (0..200).map(|_| open(b"GET /v1/ports HTT")).collect();
    let [read, write] = [&http.read, &http.write].map(|token| Http::bearer(token));
    let head = format!(
        "POST /v1/ports HTTP/1.1\r\nHost: localhost\r\n{write}Connection: close\r\n\
         Content-Type: application/json\r\nContent-Length: 20\r\n\r\n{{"
    );
    let body = open(head.as_bytes());
    let get = || http.ask_tcp("GET", "/v1/ports", &read, None).status;
    assert_eq!(get(), 200, "beside callers that say no more");
    // They read nothing of many answers.
    let page = b"GET /views.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
    let deaf: Vec<_> = (0..100).map(|_| open(&page)).collect();
    assert_eq!(get(), 200, "beside callers that do not read");
    // A caller that was let in keeps its place.
    let mut stream = TcpStream::connect(&http.address).unwrap();
    let stay = format!("GET /v1/stats/stream HTTP/1.1\r\nHost: localhost\r\n{read}\r\n");
    stream.write_all(stay.as_bytes()).unwrap();
    let mut known = BufReader::new(stream);
    let mut line = String::new();
    known.read_line(&mut line).unwrap();
    assert!(line.contains("200 OK"), "{line}");
    let more: Vec<_> = (0..200).map(|_| open(b"GET /v1/ports HTT")).collect();
    for _ in 0..20 {
        line.clear();
        assert_ne!(known.read_line(&mut line).unwrap(), 0, "it was ended");
    }
    assert!(measure::descriptors(http.process.pid()).len() < 100);
    let late = exchange(body, b"").problem(408, "timeout");
    assert!(late.contains("too slowly"), "{late}");
    drop((slow, deaf, more));
}

#[test]
fn the_socket_goes_with_the_process_and_its_sandbox_is_whole() {
    let daemon = Daemon::start();
    let mut http = Http::start(&daemon);
    let mode = http.socket.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "{mode:o}");
    let second =
        program().arg(format!("--listen=unix:{}", http.socket.display())).output().unwrap();
    assert!(said(&second).contains("choose another --listen"), "{second:?}");
    assert_eq!(http.get("/v1/ports").status, 200);
    let status = std::fs::read_to_string(format!("/proc/{}/status", http.process.pid())).unwrap();
    assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
    http.process.signal(Signal::TERM);
    assert!(http.process.wait().success());
    wait::until("the end of the socket", || !http.socket.exists());
    let mut rest = String::new();
    http.log.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "a thread lacks a row in the table of calls");
    // Another process removes it, which has the right.
    let mut killed = Http::start(&daemon);
    killed.process.kill();
    wait::until("the end of the socket", || !killed.socket.exists());
}

#[test]
fn a_token_that_may_look_changes_nothing_by_any_operation() {
    let daemon = Setup::new("[switch.vale0.port.a]\n").start();
    let http = Http::start(&daemon);
    let read = Http::bearer(&http.read);
    let document = http.ask_tcp("GET", "/openapi.json", "", None).json();
    let mut refused = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.replace("{switch}", "vale0").replace("{port}", "vale0:a");
        let path = path.replace("{mac}", "02:00:00:00:00:01");
        for method in item.as_object().unwrap().keys().filter(|method| *method != "get") {
            let method = method.to_uppercase();
            http.ask_tcp(&method, &path, &read, Some(json!({}))).problem(403, "token");
            refused += 1;
        }
    }
    assert!(refused >= 10, "{refused} operations");
    // What looks like a look, and the frames of others.
    for method in ["POST", "DELETE", "PATCH", "PUT", "OPTIONS", "TRACE", "get"] {
        let lines = format!("{read}X-HTTP-Method-Override: GET\r\n");
        http.ask_tcp(method, "/v1/ports", &lines, None).problem(403, "token");
    }
    let frames = http.ask_tcp("GET", "/v1/ports/vale0:a/frames?limit=1", &read, None);
    assert!(frames.problem(403, "token").contains("--write"), "{frames:?}");
    assert_eq!(http.ask_tcp("GET", "/v1/ports/vale0:a/history", &read, None).status, 200);
    assert_eq!(daemon.ports(), ["vale0:a"]);
}

/// A body that is nearly one of the API: JSON with parts exchanged, or bytes of one changed.
fn body(random: &mut Random) -> Vec<u8> {
    const NAMES: [&str; 12] = [
        "port",
        "switch",
        "settings",
        "vlan",
        "kind",
        "mac",
        "machine",
        "rules",
        "switch_add",
        "isolated",
        "port_add",
        "chain_add",
    ];
    fn value(random: &mut Random, depth: usize) -> Value {
        match random.below(if depth == 0 { 6 } else { 9 }) {
            0 => Value::Null,
            1 => json!(random.any().is_multiple_of(2)),
            2 => json!(random.any()),
            3 => json!(-(random.below(1 << 40).cast_signed())),
            4 => json!(*random.one_of(&[
                "vale0:a",
                "vale0:b",
                "vale0",
                "\u{0}",
                "access:10",
                "learning"
            ])),
            5 => json!("x".repeat(random.index(300))),
            6 => (0..random.below(5)).map(|_| value(random, depth - 1)).collect(),
            _ => (0..random.below(5))
                .map(|_| (random.one_of(&NAMES).to_string(), value(random, depth - 1)))
                .collect(),
        }
    }
    let mut bytes = value(random, 4).to_string().into_bytes();
    for _ in 0..random.below(4) {
        if let at @ 1.. = bytes.len() {
            bytes[random.index(at)] = random.any().to_le_bytes()[0];
        }
    }
    bytes
}

#[test]
fn bodies_at_random_change_nothing_and_are_each_answered() {
    let daemon = Setup::new("[switch.vale0.port.a]\n").start();
    let mut http = Http::start(&daemon);
    let mut random = Random::seeded(20);
    let places = [
        ("POST", "/v1/switches"),
        ("PATCH", "/v1/switches/vale0"),
        ("POST", "/v1/switches/vale0/fdb"),
        ("POST", "/v1/ports"),
        ("PATCH", "/v1/ports/vale0:a"),
        ("POST", "/v1/calls"),
    ];
    for _ in 0..2000 {
        let (method, path) = *random.one_of(&places);
        let body = body(&mut random);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let stream = UnixStream::connect(&http.socket).expect("a server");
        let answer = exchange(stream, &[head.as_bytes(), &body].concat());
        let text = String::from_utf8_lossy(&body);
        assert!((200..500).contains(&answer.status), "{method} {path} {text}: {answer:?}");
        if answer.status >= 400 {
            let problem = answer.json();
            assert!(problem["detail"].as_str().is_some_and(|words| !words.is_empty()), "{text}");
        }
    }
    assert!(!http.process.has_ended());
    assert_eq!(http.get("/v1/ports/vale0:a").status, 200);
}

#[test]
fn paths_and_queries_at_random_are_refused_with_a_problem() {
    let daemon = Setup::new("[switch.vale0.port.a]\n").start();
    let mut http = Http::start(&daemon);
    let write = Http::bearer(&http.write);
    let mut random = Random::seeded(21);
    let parts = [
        "/",
        "//",
        ".",
        "..",
        "%2e%2e",
        "%2f",
        "%5c",
        "%00",
        "%",
        "%zz",
        "%c0%af",
        "v1",
        "ports",
        "switches",
        "vale0:a",
        "frames",
        "?",
        "&",
        "filter=",
        "limit=",
        "from=",
        "=",
        ";",
        "app.js",
        "etc/passwd",
        "\\",
    ];
    for _ in 0..2000 {
        let path: String = (0..random.below(8)).map(|_| *random.one_of(&parts)).collect();
        // A stream, which does not end.
        if path.contains("frames") {
            continue;
        }
        let answer = http.ask_tcp("GET", &format!("/{path}"), &write, None);
        assert!((200..500).contains(&answer.status), "/{path}: {answer:?}");
        assert!(!answer.body.contains("root:"), "/{path}: {answer:?}");
    }
    assert!(!http.process.has_ended());
}

#[test]
fn a_reverse_proxy_gives_it_tls_as_the_manual_says() {
    let has = |program: &str| Command::new(program).arg("-V").output().is_ok();
    if !has("nginx") || !has("curl") || !has("openssl") {
        return skip("no nginx, curl or openssl: apt install nginx-light curl openssl");
    }
    let daemon = Setup::new("[switch.vale0.port.a]\n").start();
    let http = Http::start_with(&daemon, None, &["--host=switch.example.org"]);
    let place = http.place.path();
    let run = |line: &str| {
        let output = Command::new("sh").args(["-c", line]).current_dir(place).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem \
         -subj /CN=switch.example.org -addext subjectAltName=DNS:switch.example.org");
    let manual = std::fs::read_to_string(root().join("docs/http.md")).unwrap();
    let location = manual.split("# nginx\n").nth(1).unwrap().split("```").next().unwrap();
    let location = location.replace("127.0.0.1:9777", &http.address);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let dir = place.display();
    let folders: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {dir}/{name};\n"))
        .concat();
    let user = if is_root() { "user root;\n" } else { "" };
    let config = format!(
        "{user}daemon off;\nmaster_process off;\npid {dir}/pid;\nerror_log {dir}/error.log;\n\
         events {{}}\nhttp {{\naccess_log off;\n{folders}server {{\nlisten 127.0.0.1:{port} ssl;\n\
         ssl_certificate {dir}/cert.pem;\nssl_certificate_key {dir}/key.pem;\n{location}}}\n}}\n"
    );
    std::fs::write(place.join("nginx.conf"), config).unwrap();
    let _nginx = Owned::spawn(Command::new("nginx").arg("-c").arg(place.join("nginx.conf")));
    wait::until("nginx", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let name = format!("switch.example.org:{port}");
    let curl = |token: &str, path: &str, pipe: &str| {
        run(&format!(
            "curl -sSN --cacert cert.pem --resolve {name}:127.0.0.1 -H 'Origin: https://{name}' \
             -H 'Authorization: Bearer {token}' https://{name}{path} {pipe}"
        ))
    };
    assert!(curl(&http.write, "/v1/ports", "").contains("vale0:a"));
    assert!(curl("0123", "/v1/ports", "").contains("no such token"));
    // Messages of a stream come as they are sent.
    let two = curl(&http.read, "/v1/stats/stream", "| head -n 3");
    assert!(two.matches("data: ").count() >= 2, "{two}");
}
