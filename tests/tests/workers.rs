//! Switches that all workers run. The tests of frames, crashes and attacks run with such switches,
//! too: `make end-to-end-workers`.

use std::time::Duration;

use harness::daemon::{Daemon, Setup, open_when_free};
use harness::frames::{announcement, fill, mac};
use harness::process::{Peer, Scratch, uvala};
use harness::role::{At, Become, Receive, Role, Send};
use harness::wait::PATIENCE;
use harness::{Random, wait};
use protocol::exit;
use serde_json::Value;

/// Long enough for workers to fall asleep.
const MOMENT: Duration = Duration::from_millis(200);
const THREE: &str = "[workers]\ncount = 3\n";

fn done(daemon: &Daemon, args: &[&str]) {
    let output = daemon.uvala(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn refused(daemon: &Daemon, args: &[&str], why: &str) {
    let output = daemon.uvala(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(why), "{args:?}: {said}");
}

fn json(daemon: &Daemon, args: &[&str]) -> Value {
    let output = daemon.uvala(&[args, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_switch_of_all_workers_has_its_ports_at_each_of_them() {
    let daemon = Setup::new(THREE).start();
    done(&daemon, &["switch", "add", "vale0", "--workers", "all"]);
    let open: Vec<_> = (0..6).map(|port| daemon.open(&format!("vale0:p{port}"))).collect();
    let ports = |workers: &Value| {
        let all = workers.as_array().expect("a list").iter();
        all.map(|worker| worker["ports"].as_u64().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(ports(&json(&daemon, &["worker", "list"])), [2; 3]);
    let listed = json(&daemon, &["switch", "list"]);
    assert_eq!((&listed[0]["workers"], &listed[0]["ports"]), (&"all".into(), &6.into()));
    let shown = daemon.uvala(&["switch", "show", "vale0"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("worker      all\n"), "{shown}");
    drop(open);
}

/// A pair that sleeps needs every kick, and one that spins finds each worker in the middle of work.
#[test]
fn ports_that_move_between_workers_under_load_lose_and_reorder_nothing() {
    for sleepy in [true, false] {
        let daemon = Setup::new(&format!("{THREE}[switch.vale0]\nworkers = \"all\"\n")).start();
        done(&daemon, &["port", "add", "vale0:r", "--on-full", "wait"]);
        let at = |port| At { sleepy, ..daemon.at(port) };
        let receive = Receive { at: at("vale0:r"), station: Some(9), ..Receive::default() };
        let mut receiver = Peer::start(&Role::Receive(receive));
        let lens = vec![60, 1514, 5000];
        let send = Send { at: at("vale0:s"), stream: 1, to: mac(9), count: None, lens, batch: 16 };
        let mut sender = Peer::start(&Role::Send(send));
        let mut random = Random::seeded(7);
        for _ in 0..40 {
            let port = ["vale0:s", "vale0:r"][usize::from(random.below(2) == 0)];
            let worker = random.below(3).to_string();
            done(&daemon, &["worker", "move", port, &worker]);
            assert_eq!(json(&daemon, &["port", "show", port])["worker"].to_string(), worker);
            let before = daemon.stats("vale0:r").rx.frames;
            wait::until("frames", || daemon.stats("vale0:r").rx.frames > before + 10);
        }
        sender.finish();
        let sent = sender.sent();
        receiver.finish();
        receiver.received().assert_whole(1, sent);
    }
}

#[test]
fn a_port_is_at_the_worker_that_its_settings_name() {
    let ports = "[switch.vale0.port.file]\nworker = 2\n[switch.vale0.port.gone]\nworker = 9\n";
    let config = format!("{THREE}[switch.vale0]\nworkers = \"all\"\n{ports}");
    let mut daemon = Setup::new(&config).start();
    done(&daemon, &["port", "add", "vale0:a", "--worker", "1"]);
    let at = |daemon: &Daemon, port: &str| daemon.port(port).expect("a port").worker;
    for _ in 0..2 {
        let open = ["vale0:a", "vale0:file", "vale0:gone"].map(|port| daemon.open(port));
        assert_eq!(["vale0:a", "vale0:file"].map(|port| at(&daemon, port)), [Some(1), Some(2)]);
        assert_eq!(at(&daemon, "vale0:gone"), Some(0), "the worker with the fewest ports");
        drop(open);
        daemon.restart();
    }
    let _open = daemon.open("vale0:a");
    done(&daemon, &["port", "set", "vale0:a", "--worker", "2"]);
    assert_eq!(at(&daemon, "vale0:a"), Some(2), "at once");
    done(&daemon, &["worker", "move", "vale0:a", "0"]);
    let shown = daemon.uvala(&["port", "show", "vale0:a"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("worker           2, now 0\n"), "{shown}");
    refused(&daemon, &["port", "set", "vale0:a", "--worker", "3"], "the daemon has 3, from 0 on");
    refused(&daemon, &["port", "add", "vale0:b", "--worker", "3"], "the daemon has 3, from 0 on");
    let output = daemon.uvala(&["port", "set", "vale0:a", "--worker", "any"]);
    assert_eq!(output.status.code(), Some(exit::USAGE.into()));
}

#[test]
fn a_port_that_cannot_move_says_why() {
    let daemon = Setup::new(&format!("{THREE}[switch.vale0]\nworkers = \"all\"\n")).start();
    done(&daemon, &["port", "add", "vale0:a"]);
    done(&daemon, &["port", "add", "vale1:a"]);
    refused(&daemon, &["worker", "move", "vale0:a", "1"], "no client has it");
    refused(&daemon, &["worker", "move", "vale0:b", "1"], "no port vale0:b");
    refused(&daemon, &["worker", "move", "vale1:a", "1"], "vale1 runs on one worker");
    let _client = daemon.open("vale0:a");
    refused(&daemon, &["worker", "move", "vale0:a", "3"], "the daemon has 3, from 0 on");
}

#[test]
fn a_frame_that_waits_goes_where_its_station_has_moved_though_its_worker_sleeps() {
    let config = format!("{THREE}[switch.vale0]\nworkers = \"all\"\n");
    let daemon = Setup::new(&config).start();
    done(&daemon, &["port", "add", "vale0:full", "--on-full", "wait"]);
    // One for each worker.
    let [mut sender, mut full, mut other] = ["vale0:a", "vale0:full", "vale0:b"]
        .map(|name| open_when_free(&daemon.options().slots(64), name));
    let mut frame = announcement(7);
    assert!(full.try_send(&frame).expect("a daemon"));
    assert!(other.recv_timeout(&mut frame, None).expect("a daemon"), "the station is at full");
    fill(&mut frame, mac(7), 1, 0, 60);
    while sender.send_timeout(&frame, Some(MOMENT)).expect("a daemon") {}
    // All workers sleep, and no call wakes them. The last one learns that the station has moved.
    std::thread::sleep(MOMENT);
    assert!(other.try_send(&announcement(7)).expect("a daemon"));
    assert!(other.recv_timeout(&mut frame, Some(PATIENCE)).expect("a daemon"), "the frame waits");
}

#[test]
fn workers_of_a_switch_change_while_it_has_no_port() {
    let daemon = Setup::new(THREE).start();
    done(&daemon, &["switch", "add", "vale0"]);
    done(&daemon, &["switch", "set", "vale0", "--workers", "all"]);
    done(&daemon, &["port", "add", "vale0:a"]);
    let client = daemon.open("vale0:a");
    refused(&daemon, &["switch", "set", "vale0", "--workers", "one"], "vale0 has ports");
    drop(client);
    done(&daemon, &["port", "del", "vale0:a"]);
    done(&daemon, &["switch", "set", "vale0", "--workers", "one"]);
    assert_eq!(json(&daemon, &["switch", "list"])[0]["workers"], "one");
}

#[test]
fn a_switch_of_all_workers_has_no_chains() {
    let daemon = Setup::new(THREE).start();
    let why = "chains run on one worker";
    let chains = ["--forwarding", "chain"];
    let both = [&["switch", "add", "vale0", "--workers", "all"][..], &chains].concat();
    refused(&daemon, &both, why);
    done(&daemon, &["switch", "add", "vale0", "--workers", "all"]);
    refused(&daemon, &[&["switch", "set", "vale0"][..], &chains].concat(), why);
    let output = daemon.uvala(&["switch", "add", "vale1", "--workers", "some"]);
    assert_eq!(output.status.code(), Some(exit::USAGE.into()));
}

#[test]
fn workers_of_a_switch_stay_over_a_restart_and_come_from_the_configuration() {
    let mut daemon = Setup::new(&format!("{THREE}[switch.vale7]\nworkers = \"all\"\n")).start();
    done(&daemon, &["switch", "add", "vale0", "--workers", "all"]);
    let workers = |daemon: &Daemon| {
        let listed = json(daemon, &["switch", "list"]);
        let all = listed.as_array().expect("a list").iter();
        all.map(|switch| switch["workers"].as_str().expect("a word").to_owned()).collect()
    };
    let before: Vec<String> = workers(&daemon);
    assert_eq!(before, ["all", "all"]);
    daemon.restart();
    assert_eq!(workers(&daemon), before);
}

#[test]
fn a_configuration_of_chains_on_all_workers_is_refused_at_the_start() {
    let place = Scratch::new("workers");
    let (config, dir) = (place.path().join("uvala.toml"), place.path().join("run"));
    let text = format!("{THREE}[switch.vale0]\nworkers = \"all\"\nforwarding = \"chain\"\n");
    std::fs::write(&config, text).expect("room");
    let args = ["daemon", "-c", config.to_str().unwrap(), "--dir", dir.to_str().unwrap()];
    let output = uvala(Become::default(), &args, None).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("chains run on one worker"), "{said}");
}
