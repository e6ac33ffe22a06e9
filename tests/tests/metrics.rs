//! Metrics: what Prometheus reads, and the small server of them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::chain::{configuration, function};
use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, fill, mac};
use harness::process::{Owned, Scratch, USER, uvala};
use harness::role::Become;
use harness::{is_root, measure, root, skip, wait};
use rustix::process::Signal;
use serde_json::Value;

/// Whether a program of Debian's package `prometheus` is there.
fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        skip(&format!("{tool} is missing: apt install prometheus"));
    }
    found
}

/// What `uvala metrics` prints.
fn metrics(daemon: &Daemon) -> String {
    let output = daemon.uvala(&["metrics"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Samples with their values.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let split = lines.map(|line| line.rsplit_once(' ').expect("a name and a value"));
    split.map(|(name, value)| (name, value.parse().expect("a number"))).collect()
}

/// A chain of two functions with traffic: something of everything that there is to see.
fn busy() -> (Daemon, Vec<Owned>) {
    let daemon = Setup::new(&configuration(2)).start();
    let functions = vec![function(&daemon, 0), function(&daemon, 1)];
    let (mut a, mut b) = (daemon.open("valenf:a"), daemon.open("valenf:b"));
    b.send(&announcement(9)).unwrap();
    let mut frame = Vec::new();
    for number in 0..100 {
        fill(&mut frame, mac(9), 1, number, 60);
        a.send(&frame).unwrap();
    }
    wait::until("the frames", || daemon.stats("valenf:b").rx.frames >= 100);
    (daemon, functions)
}

/// `uvala metrics --listen`, and its address.
fn server(daemon: &Daemon) -> (Owned, String) {
    let mut command = uvala(Become::default(), &["metrics", "--listen=127.0.0.1:0"], None);
    command.env("UVALA_DIR", daemon.dir()).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut server = Owned::spawn(&mut command);
    let mut line = String::new();
    BufReader::new(server.stderr()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("uvala: metrics at http://").expect(&line);
    (server, address.trim_end_matches("/metrics").to_owned())
}

/// Status and body of an answer.
fn get(address: &str, path: &str) -> (u16, String) {
    ask(address, format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"))
}

fn ask(address: &str, request: impl AsRef<[u8]>) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(wait::PATIENCE)).unwrap();
    stream.write_all(request.as_ref()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn promtool_accepts_the_text() {
    if !has("promtool") {
        return;
    }
    let (daemon, _functions) = busy();
    let text = metrics(&daemon);
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let (mut promtool, mut input) = Owned::spawn_with_input(&mut command);
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    let mut said = String::new();
    promtool.stderr().read_to_string(&mut said).unwrap();
    assert!(promtool.wait().success() && said.is_empty(), "{said}\n{text}");
}

#[test]
fn values_are_those_of_the_listings() {
    let (daemon, _functions) = busy();
    // A program that sleeps is woken for a frame.
    let mut sleeper = daemon.open("valenf:b");
    let text = metrics(&daemon);
    let seen = samples(&text);
    let list =
        |words: &[&str]| -> Value { serde_json::from_slice(&daemon.uvala(words).stdout).unwrap() };
    let value = |name: &str| *seen.get(name).unwrap_or_else(|| panic!("{name}: {text}"));
    let stats = list(&["stats", "--json"]);
    for port in stats["ports"].as_array().unwrap() {
        let (switch, name) = port["port"].as_str().unwrap().split_once(':').unwrap();
        let of = |family: &str| {
            value(&format!("uvala_port_{family}{{switch=\"{switch}\",port=\"{name}\"}}"))
        };
        for way in ["tx", "rx"] {
            assert_eq!(of(&format!("{way}_frames_total")), port[way]["frames"].as_f64().unwrap());
            assert_eq!(of(&format!("{way}_bytes_total")), port[way]["bytes"].as_f64().unwrap());
        }
        assert_eq!(of("resyncs_total"), port["resyncs"].as_f64().unwrap());
        for (reason, frames) in port["drops"].as_object().unwrap() {
            let labels = format!("switch=\"{switch}\",port=\"{name}\",reason=\"{reason}\"");
            let sample = format!("uvala_port_dropped_frames_total{{{labels}}}");
            assert_eq!(value(&sample), frames.as_f64().unwrap());
        }
        if let Some(fill) = port["rx_fill"].as_object() {
            assert_eq!(of("rx_ring_slots"), fill["capacity"].as_f64().unwrap());
        }
    }
    assert_eq!(value(r#"uvala_port_tx_frames_total{switch="valenf",port="a"}"#), 100.0);
    assert_eq!(value("uvala_up"), 1.0);
    // Then the command's connection was open, too, and the list of descriptors itself.
    let now = measure::descriptors(daemon.pid()).len() as f64;
    assert!((now..now + 4.0).contains(&value("uvala_daemon_open_fds")), "{now}: {text}");
    assert!(value("uvala_daemon_resident_memory_bytes") > 1e6);
    assert_eq!(value(r#"uvala_switch_ports{switch="valenf"}"#), 4.0);
    // A client kicks a worker that sleeps, which it may not have done so far.
    let mut sender = daemon.open("vale9:sender");
    wait::until("a kick", || {
        sender.try_send(&announcement(1)).expect("a daemon");
        list(&["worker", "list", "--json"])[0]["kicks"].as_u64().unwrap() > 0
    });
    let sent = r#"uvala_function_sent_frames_total{switch="valenf",service="s0""#;
    assert!(text.contains(sent), "{text}");
    let before = value(r#"uvala_port_wakeups_total{switch="valenf",port="b"}"#);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut frame = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                sleeper.recv_timeout(&mut frame, Some(Duration::from_millis(50))).unwrap();
            }
        });
        let mut a = daemon.open("valenf:a");
        wait::until("a wake-up", || {
            a.send(&announcement(8)).unwrap();
            daemon.stats("valenf:b").wakes as f64 > before
        });
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_user_sees_metrics_of_what_it_may_see() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let vale1 = "[switch.vale1]\nmode = \"666\"\n[switch.vale1.port.a]\n";
    let vale0 = "[switch.vale0]\nmode = \"600\"\n[switch.vale0.port.a]\n";
    let daemon = Setup::new(&format!("[socket]\nmode = \"666\"\n{vale0}{vale1}")).start();
    let output = daemon.uvala_as(&["metrics"], Some(USER));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("uvala_switch_ports{switch=\"vale1\"} 1\n"), "{text}");
    assert!(text.contains(&format!("uvala_user_connections{{user=\"{USER}\"}} 1\n")), "{text}");
    assert!(!text.contains("vale0") && !text.contains("user=\"root\""), "{text}");
    let all = metrics(&daemon);
    assert!(all.contains("vale0") && all.contains("uvala_user_switches{user=\"root\"} 2\n"));
}

#[test]
fn frames_that_a_program_does_not_read_fill_its_ring() {
    let daemon = Daemon::start();
    let (mut a, b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    (0..7).for_each(|_| a.send(&announcement(8)).unwrap());
    wait::until("seven frames", || daemon.stats("vale0:b").rx.frames == 7);
    let fill = daemon.stats("vale0:b").rx_fill.unwrap();
    assert!(fill.slots == 7 && fill.capacity > 500, "{fill:?}");
    let text = metrics(&daemon);
    let used = samples(&text)[r#"uvala_port_rx_ring_used_slots{switch="vale0",port="b"}"#];
    assert_eq!(used, 7.0);
    drop(b);
}

#[test]
fn a_server_answers_also_while_there_is_no_daemon() {
    let mut daemon = Daemon::start();
    let (_server, address) = server(&daemon);
    let up = |expected: &str| {
        let (status, text) = get(&address, "/metrics");
        assert_eq!(status, 200, "{text}");
        text.lines().any(|line| line == expected)
    };
    wait::until("a daemon", || up("uvala_up 1"));
    assert_eq!(get(&address, "/").0, 200);
    assert_eq!(get(&address, "/other").0, 404);
    daemon.kill();
    wait::until("no daemon", || up("uvala_up 0"));
    daemon.restart();
    wait::until("the next daemon", || up("uvala_up 1"));
}

#[test]
fn a_scrape_of_a_thousand_ports_has_them_all() {
    let ports: String = (0..1000).map(|n| format!("[switch.vale0.port.p{n}]\n")).collect();
    let config = format!("[quota]\nports = 2000\n[switch.vale0]\n{ports}");
    let daemon = Setup::new(&config).start();
    let (_server, address) = server(&daemon);
    let mut times: Vec<Duration> = (0..5)
        .map(|_| {
            // Older than an answer that is shared.
            std::thread::sleep(Duration::from_millis(300));
            let begin = Instant::now();
            let (status, text) = get(&address, "/metrics");
            let took = begin.elapsed();
            assert_eq!(status, 200);
            let count = |family: &str| {
                text.lines().filter(|line| line.starts_with(&format!("{family}{{"))).count()
            };
            assert_eq!(count("uvala_port_tx_frames_total"), 1000);
            assert_eq!(count("uvala_port_info"), 1000);
            took
        })
        .collect();
    times.sort_unstable();
    eprintln!("a scrape of 1,000 ports takes {:?} (median of 5)", times[2]);
}

#[test]
fn hostile_clients_get_no_answer_and_keep_none_from_others() {
    let daemon = Daemon::start();
    let (mut server, address) = server(&daemon);
    let slow: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            let _ = stream.write_all(b"GET /metrics HTT");
            stream
        })
        .collect();
    assert_eq!(get(&address, "/metrics").0, 200, "beside clients that say no more");
    wait::until("a few descriptors", || measure::descriptors(server.pid()).len() < 60);
    let mut long = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
    long.resize(20_000, b'a');
    assert_eq!(ask(&address, &long).0, 431);
    assert_eq!(ask(&address, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").0, 400, "TLS");
    assert_eq!(ask(&address, b"POST /metrics HTTP/1.1\r\n\r\n").0, 405);
    // A page whose name leads to this machine.
    let rebound = b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    assert_eq!(ask(&address, rebound).0, 421);
    // Clients that read nothing.
    let deaf: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
            stream
        })
        .collect();
    assert_eq!(get(&address, "/metrics").0, 200, "beside clients that do not read");
    drop((slow, deaf));
    wait::until("the clients to be forgotten", || measure::descriptors(server.pid()).len() < 12);
    assert!(!server.has_ended());
}

#[test]
fn the_socket_of_a_server_goes_with_it_however_it_ends() {
    let daemon = Daemon::start();
    let place = Scratch::new("metrics-socket");
    let socket = place.path().join("metrics.sock");
    let listen = format!("--listen=unix:{}", socket.display());
    for signal in [Signal::TERM, Signal::KILL] {
        let mut command = uvala(Become::default(), &["metrics", &listen], None);
        command.env("UVALA_DIR", daemon.dir()).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut server = Owned::spawn(&mut command);
        let mut line = String::new();
        BufReader::new(server.stderr()).read_line(&mut line).unwrap();
        assert!(line.contains("metrics at unix:") && socket.exists(), "{line}");
        server.signal(signal);
        assert!(!server.wait().success());
        wait::until("the end of the socket", || !socket.exists());
    }
}

#[test]
fn a_port_that_other_programs_have_is_refused_with_a_line() {
    let daemon = Daemon::start();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("--listen={}", taken.local_addr().unwrap());
    let output = daemon.uvala(&["metrics", &place]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("choose another place"), "{said}");
}

/// The expressions of all panels of the dashboard, as Grafana asks Prometheus.
fn dashboard() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("dist/uvala.grafana.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let asked = |target: &Value| {
        let text = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m");
        let text = text.replace("$instance", ".*").replace("$switch", ".*");
        assert!(!text.contains('$'), "{text}");
        text
    };
    targets.map(asked).collect()
}

/// What Prometheus answers to a question of its API.
fn api(address: &str, path: &str) -> Value {
    let (_, body) = get(address, path);
    // It may come in chunks, each behind a line with its length.
    let json = body.find('{').and_then(|from| Some(&body[from..=body.rfind('}')?]));
    let lines = json.expect(&body).split("\r\n");
    let is_length =
        |line: &str| line.len() < 8 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
    let json: String = lines.filter(|line| !is_length(line)).collect();
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {body}"))
}

fn query(address: &str, expression: &str) -> Value {
    let bytes = expression.bytes().map(|byte| format!("%{byte:02x}"));
    let answer = api(address, &format!("/api/v1/query?query={}", bytes.collect::<String>()));
    assert_eq!(answer["status"], "success", "{expression}: {answer}");
    answer["data"]["result"].clone()
}

/// A Prometheus that scrapes the server and has the alerts; its process and address.
fn prometheus(place: &Scratch, metrics: &str) -> (Owned, String) {
    let rules = root().join("dist/uvala.rules.yml");
    let config = format!(
        "global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\n\
         rule_files: [{rules:?}]\n\
         scrape_configs:\n- job_name: uvala\n  static_configs: [{{targets: [\"{metrics}\"]}}]\n"
    );
    let file = place.path().join("prometheus.yml");
    std::fs::write(&file, config).unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", place.path().join("data").display()))
        .arg(format!("--web.listen-address={free}"))
        .args(["--log.level=warn"])
        .stdin(Stdio::null());
    let process = Owned::spawn(&mut command);
    wait::until("Prometheus", || {
        TcpStream::connect(&free).is_ok() && get(&free, "/-/ready").0 == 200
    });
    (process, free)
}

#[test]
fn a_real_prometheus_loads_alerts_and_answers_what_the_dashboard_asks() {
    if !has("promtool") || !has("prometheus") {
        return;
    }
    let rules = root().join("dist/uvala.rules.yml");
    let checked = Command::new("promtool").args(["check", "rules"]).arg(rules).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let (mut daemon, _functions) = busy();
    let (server, address) = server(&daemon);
    let place = Scratch::new("prometheus");
    let (_prometheus, prometheus) = prometheus(&place, &address);
    wait::until("two scrapes", || {
        let seen = query(&prometheus, "count_over_time(uvala_up[1m])");
        seen[0]["value"][1].as_str().is_some_and(|count| count.parse::<u32>().unwrap() >= 2)
    });
    let asked = dashboard();
    assert!(asked.len() > 20);
    for expression in &asked {
        let result = query(&prometheus, expression);
        let is_rare = expression.contains("dropped") || expression.contains("link_up");
        assert!(is_rare || !result.as_array().unwrap().is_empty(), "nothing: {expression}");
    }
    let rule = |name: &str| {
        let answer = api(&prometheus, "/api/v1/rules");
        let rules = answer["data"]["groups"][0]["rules"].as_array().unwrap().clone();
        assert!(rules.iter().all(|rule| rule["lastError"].is_null()), "{answer}");
        assert!(rules.len() > 10, "{answer}");
        rules.into_iter().find(|rule| rule["name"] == name).unwrap()
    };
    let alert = |name: &str| (rule(name)["health"].clone(), rule(name)["state"].clone());
    wait::until("the rules", || alert("UvalaDown") == ("ok".into(), "inactive".into()));
    assert_eq!(alert("UvalaUnsaved"), ("ok".into(), "inactive".into()));
    daemon.kill();
    wait::until("an alert", || alert("UvalaDown").1 == "pending");
    drop(server);
    wait::until("the last scrape to be old", || {
        query(&prometheus, "up == 0 unless on () uvala_up") != Value::Array(Vec::new())
    });
    let fires = query(&prometheus, rule("UvalaDown")["query"].as_str().unwrap());
    assert_eq!(fires.as_array().unwrap().len(), 1, "also without the server: {fires}");
}

#[test]
fn one_page_without_a_daemon_says_so_and_fails() {
    let place = Scratch::new("none");
    let mut command = uvala(Become::default(), &["metrics"], None);
    let output = command.env("UVALA_DIR", place.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(samples(&said).into_iter().collect::<Vec<_>>(), [("uvala_up", 0.0)]);
    assert!(!output.stderr.is_empty());
}
