//! `uvala-http`: its API, its page, and what hostile callers get.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use harness::browser::Browser;
use harness::daemon::{Daemon, Setup};
use harness::frames::announcement;
use harness::process::{Owned, Scratch, USER, uvala_path};
use harness::{is_root, measure, skip, wait};
use rustix::process::{Signal, Uid};
use serde_json::{Value, json};

/// A `uvala-http` of a daemon, at a socket and at an address.
struct Http {
    process: Owned,
    log: BufReader<std::process::ChildStderr>,
    socket: PathBuf,
    address: String,
    place: Scratch,
    /// Tokens: one that may look, one that may change things.
    read: String,
    write: String,
}

/// What a server answered.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The words of a problem of this status and code.
    fn problem(&self, status: u16, code: &str) -> String {
        let problem = self.json();
        assert!(self.head.contains("application/problem+json"), "{self:?}");
        assert_eq!((self.status, &problem["code"]), (status, &json!(code)), "{self:?}");
        assert_eq!(problem["status"], status);
        problem["detail"].as_str().expect("words").to_owned()
    }
}

fn program() -> Command {
    Command::new(uvala_path().with_file_name("uvala-http"))
}

fn token(file: &Path, words: &[&str]) -> String {
    let output = program().arg("token").args(words).arg(file).output().expect("a program");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

impl Http {
    fn start(daemon: &Daemon) -> Self {
        let place = Scratch::new("http");
        let tokens = place.path().join("tokens");
        let [read, write] = [&["a"][..], &["b", "--write"]].map(|words| token(&tokens, words));
        let socket = place.path().join("http.sock");
        let mut command = program();
        command.arg("--dir").arg(daemon.dir()).arg("--tokens").arg(&tokens);
        command.args(["--listen=127.0.0.1:0", &format!("--listen=unix:{}", socket.display())]);
        let mut process = Owned::spawn(command.stdin(Stdio::null()).stderr(Stdio::piped()));
        let mut log = BufReader::new(process.stderr());
        let mut line = || {
            let mut line = String::new();
            log.read_line(&mut line).expect("text");
            line.trim().strip_prefix("uvala-http: listens at ").expect(&line).to_owned()
        };
        let address = line().strip_prefix("http://").expect("an address").to_owned();
        assert_eq!(line(), format!("unix:{}", socket.display()));
        Self { process, log, socket, address, place, read, write }
    }

    /// Asks at the socket.
    fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        exchange(
            UnixStream::connect(&self.socket).expect("a server"),
            &request(method, path, "", body),
        )
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, None)
    }

    /// Asks at the address, with more lines in the head.
    fn ask_tcp(&self, method: &str, path: &str, lines: &str, body: Option<Value>) -> Answer {
        self.send(request(method, path, lines, body))
    }

    /// Sends bytes to the address.
    fn send(&self, bytes: impl AsRef<[u8]>) -> Answer {
        exchange(TcpStream::connect(&self.address).expect("a server"), bytes.as_ref())
    }

    /// Reads a stream of the API.
    fn listen(&self, path: &str) -> Messages {
        let mut stream = UnixStream::connect(&self.socket).expect("a server");
        stream.set_read_timeout(Some(wait::PATIENCE)).unwrap();
        stream.write_all(&request("GET", path, "", None)).unwrap();
        Messages(BufReader::new(stream))
    }

    fn bearer(&self, token: &str) -> String {
        format!("Authorization: Bearer {token}\r\n")
    }
}

/// The data of the messages of a stream.
struct Messages(BufReader<UnixStream>);

impl Messages {
    /// The first line of the answer.
    fn status(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a status");
        line
    }

    fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).expect("a message"), 0, "the stream ended");
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).expect(&line);
            }
        }
    }
}

fn request(method: &str, path: &str, lines: &str, body: Option<Value>) -> Vec<u8> {
    let host = if lines.contains("Host:") { "" } else { "Host: localhost\r\n" };
    let (kind, text) = match body {
        Some(body) => ("Content-Type: application/json\r\n", body.to_string()),
        None => ("", String::new()),
    };
    let length = text.len();
    format!(
        "{method} {path} HTTP/1.1\r\n{host}{lines}{kind}Content-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    )
    .into_bytes()
}

fn exchange(mut stream: impl Read + Write, request: &[u8]) -> Answer {
    // A server that refuses a request may close before it has read all of it.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

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
fn streams_have_counters_and_what_changes() {
    let mut daemon = Daemon::start();
    let (mut a, _b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let http = Http::start(&daemon);
    let mut events = http.listen("/v1/events?switch=vale0");
    let mut counters = http.listen("/v1/stats/stream?port=vale0:a");
    let sent = |message: &Value| message["items"][0]["tx"]["frames"].as_u64();
    assert_eq!(sent(&counters.next()), Some(0));
    a.send(&announcement(1)).unwrap();
    wait::until("a frame in the counters", || sent(&counters.next()) == Some(1));
    assert_eq!(events.next()["event"], "fdb_added");
    http.ask("POST", "/v1/ports", Some(json!({"port": "vale0:c"})));
    assert_eq!(events.next()["port"], "vale0:c");
    daemon.kill();
    wait::until("the end of events", || events.next()["code"] == "no_daemon");
    wait::until("no counters", || counters.next()["code"] == "no_daemon");
    let detail = http.get("/v1/ports").problem(503, "no_daemon");
    assert!(detail.contains("start one with"), "{detail}");
    daemon.restart();
    // The port went with its client.
    wait::until("the next daemon", || counters.next()["code"] == "not_found");
    let mut streams: Vec<_> = (0..40).map(|_| http.listen("/v1/stats/stream")).collect();
    let refused =
        streams.iter_mut().map(Messages::status).filter(|line| line.contains("503")).count();
    assert!((1..40).contains(&refused), "{refused} of 40");
    assert_eq!(http.get("/v1/ports").status, 200, "beside as many streams as there may be");
    drop(streams);
}

#[test]
fn the_document_describes_what_the_server_answers() {
    let daemon = Setup::new("[switch.vale0.port.a]\n").start();
    let http = Http::start(&daemon);
    let answer = http.ask_tcp("GET", "/openapi.json", "", None);
    let document = answer.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1."), "{}", document["openapi"]);
    for reference in answer.body.split(r#""$ref":""#).skip(1) {
        let reference = reference.split('"').next().unwrap();
        let found = document.pointer(reference.trim_start_matches('#'));
        assert!(found.is_some(), "{reference} leads nowhere");
    }
    let paths = document["paths"].as_object().unwrap();
    let mut names = Vec::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            names.push(operation["operationId"].as_str().unwrap().to_owned());
            assert!(operation["summary"].is_string(), "{method} {path} says nothing");
            assert!(operation["responses"]["default"].is_object(), "{method} {path}");
            let in_path = operation["parameters"].as_array().into_iter().flatten();
            let in_path = in_path.filter(|parameter| parameter["in"] == "path").count();
            assert_eq!(in_path, path.matches('{').count(), "{method} {path}");
        }
        let get = &item["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        let path = path.replace("{switch}", "vale0").replace("{port}", "vale0:a");
        if !get.is_null() {
            check(&document, get, &http.get(&path).json(), &path);
        }
    }
    names.sort_unstable();
    assert!(names.len() > 25 && names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
}

/// Checks that a value has the properties of its schema, as far as the schema says.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    let schema = match schema["$ref"].as_str() {
        Some(name) => document.pointer(name.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    if let Some(any) = schema["oneOf"].as_array() {
        let is = |schema: &&Value| (schema["type"] == "null") == value.is_null();
        let found = any.iter().find(is).unwrap_or_else(|| panic!("{at}: {value}"));
        return check(document, found, value, at);
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(value.get(name.as_str().unwrap()).is_some(), "{at} lacks {name}: {value}");
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        let at = format!("{at} {name}");
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Value::Null, Value::Object(_)) => {}
            (Value::Null, _) => assert!(schema["properties"].is_null(), "{at} is not described"),
            (schema, _) => check(document, schema, value, &at),
        }
    }
    for item in value.as_array().into_iter().flatten() {
        check(document, &schema["items"], item, at);
    }
}

#[test]
fn a_token_says_what_a_caller_by_tcp_may() {
    let daemon = Daemon::start();
    let http = Http::start(&daemon);
    let [read, write] = [&http.read, &http.write].map(|token| http.bearer(token));
    for path in ["/", "/app.js", "/style.css", "/openapi.json"] {
        assert_eq!(http.ask_tcp("GET", path, "", None).status, 200, "{path}");
    }
    for lines in ["", &http.bearer("0123"), &read.replace("Bearer", "Basic"), &read.to_uppercase()]
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
    let write = http.bearer(&http.write);
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
    let [read, write] = [&http.read, &http.write].map(|token| http.bearer(token));
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
    assert!(!http.socket.exists());
    let mut rest = String::new();
    http.log.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "a thread lacks a row in the table of calls");
}

#[test]
fn a_browser_shows_rates_finds_addresses_adds_ports_and_says_why_not() {
    let daemon = Setup::new("[switch.vale0.port.vm1]\n[switch.vale0.port.vm2]\n").start();
    let http = Http::start(&daemon);
    let Some(mut page) = Browser::start(1000) else {
        return skip("no Chromium: apt install chromium");
    };
    let sender = || {
        let (mut a, mut b) = (daemon.open("vale0:vm1"), daemon.open("vale0:vm2"));
        move || {
            let mut frame = Vec::new();
            for _ in 0..10 {
                a.send(&announcement(1)).unwrap();
                while b.recv_timeout(&mut frame, Some(std::time::Duration::ZERO)).unwrap() {}
            }
        }
    };
    let mut send = sender();
    page.open(&format!("http://{}/#token={}", http.address, http.write));
    page.until("document.querySelectorAll('tbody tr').length === 2");
    // A rate that changes.
    let row = "document.querySelector('tbody tr').innerText";
    page.until(&format!("{row}.includes('vale0:vm1') && {row}.includes('0/s')"));
    wait::until("a rate", || {
        send();
        page.value(&format!("/[1-9][0-9.]*( k)?\\/s/.test({row})")) == true
    });
    page.until("document.querySelector('polyline').getAttribute('points').includes(' ')");
    // A port, by the keyboard.
    page.fill("input[name=port]", "vale0:vm3");
    page.press("Enter");
    page.until("document.querySelector('main').innerText.includes('vale0:vm3')");
    assert!(daemon.port("vale0:vm3").is_some_and(|port| port.persistent));
    page.until("document.getElementById('status').innerText.includes('added')");
    // A name that is none, with the words of the command line.
    page.fill("input[name=port]", "eth0");
    page.press("Enter");
    page.until("document.querySelector('form [role=alert]').innerText !== ''");
    let alert = page.value("document.querySelector('form [role=alert]').innerText");
    let alert = alert.as_str().unwrap();
    assert!(said(&daemon.uvala(&["port", "add", "eth0"])).contains(alert), "{alert}");
    assert_eq!(page.value("document.activeElement.getAttribute('aria-invalid')"), "true");
    // An address.
    page.open(&format!("http://{}/#/addresses", http.address));
    page.until("document.querySelectorAll('tbody tr').length === 1");
    page.fill("input[type=search]", "no such address");
    page.until("document.querySelectorAll('tbody tr').length === 0");
    page.value("document.querySelector('input[type=search]').select()");
    page.fill("input[type=search]", "00:01");
    page.until("document.querySelector('tbody tr').innerText.includes('vale0:vm1')");
    // Each view has a title, and each field a label.
    let views = ["", "drops", "chains", "events", "port/vale0%3Avm1"];
    let titles = ["Ports", "Drops", "Chains", "Events", "vale0:vm1"];
    for (view, title) in views.into_iter().zip(titles) {
        page.open(&format!("http://{}/#/{view}", http.address));
        page.until(&format!("document.title === '{title} – uvala'"));
        let fields = "[...document.querySelectorAll('input,select')]";
        let unnamed = page.value(&format!("{fields}.filter((it) => !it.labels.length).length"));
        assert_eq!(unnamed, 0, "{view}");
    }
    page.until("document.querySelector('dl.facts').innerText.includes('shm')");
    // A phone: nothing is wider than the screen.
    let phone = json!({"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": true});
    page.call("Emulation.setDeviceMetricsOverride", phone);
    page.open(&format!("http://{}/#/", http.address));
    page.until("document.querySelectorAll('tbody tr').length === 3");
    page.until("document.documentElement.scrollWidth <= 360");
}
