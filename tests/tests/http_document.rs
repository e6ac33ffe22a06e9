//! The description of the HTTP API: what the server answers, a linter and a generated client.

use std::path::PathBuf;
use std::process::Command;

use harness::daemon::{Daemon, Setup};
use harness::http::Http;
use harness::process::uvala_path;
use harness::{root, skip};
use serde_json::Value;

/// A program of `.ci/prepare`'s environment for Python.
fn tool(name: &str) -> Option<PathBuf> {
    let path = root().join("target/python/bin").join(name);
    if !path.exists() {
        skip(&format!("no {name}: run .ci/prepare"));
        return None;
    }
    Some(path)
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
        let is_there = ["/program", "/neigh", "/trace"].iter().all(|part| !path.contains(part));
        let path = path.replace("{switch}", "vale0").replace("{port}", "vale0:a");
        if !get.is_null() && is_there {
            check(&document, get, &http.get(&path).json(), &path);
        }
    }
    names.sort_unstable();
    assert!(names.len() > 27 && names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
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

/// Commands, and the operations that do the same.
const OPERATIONS: &[(&str, &[&str])] = &[
    ("switch list", &["get /v1/switches"]),
    ("switch show", &["get /v1/switches/{switch}"]),
    ("switch add", &["post /v1/switches"]),
    ("switch set", &["patch /v1/switches/{switch}"]),
    ("switch del", &["delete /v1/switches/{switch}"]),
    ("port list", &["get /v1/ports"]),
    ("port show", &["get /v1/ports/{port}"]),
    ("port add", &["post /v1/ports"]),
    ("port set", &["patch /v1/ports/{port}", "post /v1/calls"]),
    ("port enable", &["post /v1/ports/{port}/enable"]),
    ("port del", &["delete /v1/ports/{port}"]),
    ("fdb list", &["get /v1/switches/{switch}/fdb"]),
    ("fdb add", &["post /v1/switches/{switch}/fdb"]),
    ("fdb del", &["delete /v1/switches/{switch}/fdb/{mac}"]),
    ("fdb flush", &["delete /v1/switches/{switch}/fdb"]),
    ("neigh list", &["get /v1/ports/{port}/neigh"]),
    ("mdb list", &["get /v1/switches/{switch}/mdb"]),
    ("mdb add", &["post /v1/switches/{switch}/mdb"]),
    ("mdb del", &["delete /v1/ports/{port}/mdb/{group}"]),
    // A mirror is a setting of the port that gets the copies.
    ("mirror list", &["get /v1/ports"]),
    ("mirror add", &["post /v1/ports", "patch /v1/ports/{port}"]),
    ("mirror del", &["patch /v1/ports/{port}"]),
    ("chain list", &["get /v1/switches/{switch}/chains"]),
    ("chain add", &["post /v1/switches/{switch}/chains"]),
    ("chain del", &["delete /v1/switches/{switch}/chains/{chain}"]),
    ("rule list", &["get /v1/switches/{switch}/rules"]),
    ("rule add", &["post /v1/switches/{switch}/rules"]),
    (
        "rule del",
        &["delete /v1/switches/{switch}/rules", "delete /v1/switches/{switch}/rules/{rule}"],
    ),
    ("program list", &["get /v1/switches"]),
    ("program show", &["get /v1/switches/{switch}/program"]),
    ("program map list", &["get /v1/switches/{switch}/program/maps/{map}"]),
    ("program map get", &["get /v1/switches/{switch}/program/maps/{map}/{key}"]),
    ("program map set", &["put /v1/switches/{switch}/program/maps/{map}/{key}"]),
    ("program map del", &["delete /v1/switches/{switch}/program/maps/{map}/{key}"]),
    ("nf list", &["get /v1/switches/{switch}/functions"]),
    ("nf top", &["get /v1/switches/{switch}/functions"]),
    ("audit", &["get /v1/groups"]),
    ("stats", &["get /v1/stats", "get /v1/stats/stream", "get /v1/drop-reasons"]),
    ("top", &["get /v1/stats/stream", "get /v1/workers"]),
    ("worker list", &["get /v1/workers"]),
    ("worker move", &["put /v1/ports/{port}/worker"]),
    ("events", &["get /v1/events"]),
    ("capture", &["get /v1/ports/{port}/frames"]),
    ("trace", &["get /v1/ports/{port}/trace"]),
];

/// Commands that are no operations, and why.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("daemon", "starts the daemon, which the API is a client of"),
    ("ns", "opens a namespace of the caller's machine, by the caller's rights"),
    ("cni", "container runtimes start it"),
    ("apply", "reads a file, and is many calls of the API"),
    ("upgrade", "starts a program, as the daemon's user"),
    ("program check", "reads a file, and asks no daemon"),
    ("nf run", "runs a function in the caller's process"),
    ("metrics", "an endpoint of its own, for Prometheus"),
    ("extcap", "Wireshark starts it"),
    ("netavark", "podman starts it"),
    ("vm", "runs a machine of the caller"),
    ("vm-args", "prints the words of a command line"),
    ("internet", "runs passt for the caller"),
    ("doctor", "looks at the caller's machine"),
    ("gen", "sends frames from the caller's process"),
    ("bridge", "moves frames in the caller's process"),
    ("run", "runs a program of the caller"),
    ("demo", "has a daemon of its own"),
    ("bench", "has a daemon of its own"),
];

/// Commands behind these words without commands of their own, as the help lists them.
fn commands(words: &str) -> Vec<String> {
    let args: Vec<&str> = words.split_whitespace().chain(["--help"]).collect();
    let help = Command::new(uvala_path()).args(args).output().expect("it runs").stdout;
    let help = String::from_utf8(help).expect("text");
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return vec![words.to_owned()] };
    let lines = list.lines().take_while(|line| !line.is_empty());
    // Behind two spaces; with more, a line goes on.
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    let below = |name| {
        let command = format!("{words} {name}").trim().to_owned();
        let is_known = EXCEPTIONS.iter().any(|(known, _)| *known == command);
        if is_known { vec![command] } else { commands(&command) }
    };
    names.flat_map(below).collect()
}

#[test]
fn each_command_has_operations_or_a_reason_for_none() {
    let daemon = Daemon::start();
    let document = Http::start(&daemon).ask_tcp("GET", "/openapi.json", "", None).json();
    let commands = commands("");
    assert!(commands.len() > 50, "{commands:?}");
    let known = OPERATIONS.iter().map(|(name, _)| *name).chain(EXCEPTIONS.iter().map(|it| it.0));
    let known: Vec<&str> = known.collect();
    for command in &commands {
        assert!(known.contains(&command.as_str()), "uvala-http lacks what uvala {command} does");
    }
    for name in known {
        assert!(commands.iter().any(|command| command == name), "there is no uvala {name}");
    }
    for operation in OPERATIONS.iter().flat_map(|(_, operations)| *operations) {
        let (method, path) = operation.split_once(' ').expect("two words");
        assert!(document["paths"][path][method].is_object(), "there is no {operation}");
    }
}

#[test]
fn a_linter_finds_no_fault_in_the_document() {
    let Some(linter) = tool("openapi-spec-validator") else { return };
    let daemon = Daemon::start();
    let http = Http::start(&daemon);
    let path = http.place.path().join("openapi.json");
    std::fs::write(&path, http.ask_tcp("GET", "/openapi.json", "", None).body).unwrap();
    let lint = || Command::new(&linter).arg(&path).output().expect("it runs");
    let output = lint();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("OK"), "{output:?}");
    // The linter sees faults at all.
    std::fs::write(&path, r#"{"openapi": "3.1.0", "info": {"title": "x"}, "paths": {}}"#).unwrap();
    assert!(!lint().status.success());
}

#[test]
fn a_generated_client_makes_switches_and_ports_and_sees_errors() {
    let (Some(generator), Some(python)) = (tool("openapi-python-client"), tool("python3")) else {
        return;
    };
    let daemon = Daemon::start();
    let http = Http::start(&daemon);
    let place = http.place.path();
    let document = place.join("openapi.json");
    std::fs::write(&document, http.ask_tcp("GET", "/openapi.json", "", None).body).unwrap();
    let mut generate = Command::new(generator);
    generate.args(["generate", "--meta=none", "--path"]).arg(&document);
    let output = generate.arg("--output-path").arg(place.join("uvala_api")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    // It knows no variants of an object (Event, SocketPlace), and leaves out no operation for that.
    for (path, item) in http.get("/openapi.json").json()["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let [tag, name] = [&operation["tags"][0], &operation["operationId"]];
            let module = format!("{}/{}.py", tag.as_str().unwrap(), name.as_str().unwrap());
            assert!(place.join("uvala_api/api").join(module).exists(), "{path}: {said}");
        }
    }
    let mut drive = Command::new(python);
    drive.arg(root().join("tests/python/http_client.py")).env("PYTHONPATH", place);
    drive.args([format!("http://{}", http.address), http.write.clone(), http.read.clone()]);
    let output = drive.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // What the client has left.
    assert_eq!(daemon.ports(), ["vale0:kept"]);
    assert_eq!(daemon.port("vale0:kept").unwrap().settings.isolated, Some(true));
}
