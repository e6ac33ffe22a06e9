//! The daemon dies and comes back; its clients see it at once and go on under the same names.

use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use client::{Error, Port};
use harness::daemon::{Daemon, Setup};
use harness::frames::{BROADCAST, Tally, announcement, fill, mac};
use harness::netmap::Descriptor;
use harness::process::{Owned, Peer, Scratch};
use harness::role::{Become, Receive, Role, Send};
use harness::wait;
use protocol::name::PortName;
use protocol::{Bind, InterfaceAdd, InterfaceAttach, InterfaceRequest, PortRef, Request};

const SOON: Option<Duration> = Some(wait::PATIENCE);

#[test]
fn clients_that_reconnect_go_on_under_the_same_names() {
    let mut daemon = Daemon::start();
    let reconnecting = |port: &str| {
        let mut at = daemon.at(port);
        at.reconnect = true;
        at
    };
    let (from, at) = (reconnecting("vale0:a"), reconnecting("vale0:b"));
    let mut receiver = Peer::start(&Role::Receive(Receive { at, ..Receive::default() }));
    let (to, lens) = (mac(9), vec![60]);
    let send = Send { at: from, stream: 1, to, count: None, lens, batch: 1 };
    let mut sender = Peer::start(&Role::Send(send));
    for _ in 0..3 {
        wait::until("frames to arrive", || {
            daemon.port("vale0:b").is_some() && daemon.stats("vale0:b").rx.frames > 100
        });
        daemon.kill();
        daemon.restart();
    }
    wait::until("frames to arrive", || {
        daemon.port("vale0:b").is_some() && daemon.stats("vale0:b").rx.frames > 100
    });
    assert_eq!(daemon.ports(), ["vale0:a", "vale0:b"]);
    sender.finish();
    let sent = sender.sent();
    receiver.finish();
    let tally = receiver.received();
    // Frames on their way when the daemon dies are lost with it; the others are as they were.
    tally.assert_intact();
    let stream = tally.stream(1);
    assert!(stream.frames > 400 && stream.next <= sent, "{stream:?} of {sent}");
}

#[test]
fn waits_that_are_shorter_than_the_restart_are_no_errors() {
    let mut daemon = Daemon::start();
    let open = |daemon: &Daemon, name| daemon.options().reconnect(true).open(name).unwrap();
    let (mut a, mut b) = (open(&daemon, "vale0:a"), open(&daemon, "vale0:b"));
    let brief = Some(Duration::from_millis(5));
    let mut frame = Vec::new();
    daemon.kill();
    for _ in 0..20 {
        assert!(!b.recv_timeout(&mut frame, brief).unwrap());
    }
    daemon.restart();
    wait::until("both ports to be back", || {
        assert!(!a.recv_timeout(&mut frame, brief).unwrap());
        assert!(!b.recv_timeout(&mut frame, brief).unwrap());
        daemon.ports().len() == 2
    });
    a.send(&announcement(1)).unwrap();
    assert!(b.recv_timeout(&mut frame, SOON).unwrap());
}

fn done(daemon: &Daemon, args: &[&str]) {
    let output = daemon.uvala(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
}

#[test]
fn what_commands_made_is_there_before_the_clients_are_back() {
    let config = "[switch.vale1]\nage_s = 5\n[switch.vale1.port.a]\n";
    let mut daemon = Setup::new(config).start();
    let station = "02:00:00:00:00:01";
    done(&daemon, &["switch", "add", "vale0", "--mode", "620", "--group", "7"]);
    for port in ["a", "b"] {
        done(&daemon, &["port", "add", &format!("vale0:{port}"), "--isolated", "--max-macs=3"]);
    }
    done(&daemon, &["port", "add", "vale2:a", "--kind", "null"]);
    done(&daemon, &["fdb", "add", "vale0:b", station, "--vlan", "9"]);
    done(&daemon, &["port", "set", "vale1:a", "--vlan", "access:10"]);
    done(&daemon, &["port", "add", "vale1:gone"]);
    done(&daemon, &["port", "del", "vale1:gone"]);
    let open = |daemon: &Daemon, name| daemon.options().reconnect(true).open(name).unwrap();
    let (mut a, mut b) = (open(&daemon, "vale0:a"), open(&daemon, "vale0:b"));
    let _c = open(&daemon, "vale0:c");
    for _ in 0..2 {
        let look = |daemon: &Daemon| {
            let ports = ["vale0:a", "vale0:b", "vale1:a", "vale2:a"].map(|name| {
                let info = daemon.port(name).unwrap();
                assert!(info.persistent);
                (info.kind, info.creator, info.settings)
            });
            let switches = ["vale0", "vale1", "vale2"].map(|name| {
                let info = daemon.switch(name).unwrap();
                let who = (info.owner, info.group, info.mode);
                (info.persistent, info.forwarding, info.age_s, info.fdb_capacity, who)
            });
            let list = daemon.uvala(&["fdb", "list", "vale0", "--json"]).stdout;
            (ports, switches, String::from_utf8(list).unwrap())
        };
        let before = look(&daemon);
        assert!(before.2.contains(station), "{}", before.2);
        daemon.kill();
        daemon.restart();
        assert_eq!(look(&daemon), before);
        let brief = Some(Duration::from_millis(5));
        wait::until("both ports to be back", || {
            for port in [&mut a, &mut b] {
                port.recv_timeout(&mut Vec::new(), brief).unwrap();
            }
            ["vale0:a", "vale0:b"].iter().all(|name| daemon.port(name).unwrap().client.is_some())
        });
        // Isolated from each other as before. No station is learned from a source of zeros.
        a.send(&[&BROADCAST[..], &[0; 54]].concat()).unwrap();
        assert!(a.drain(SOON).unwrap());
        assert!(!b.recv_timeout(&mut Vec::new(), Some(Duration::from_millis(50))).unwrap());
        assert_eq!(look(&daemon), before);
    }
    assert!(daemon.port("vale1:gone").is_none());
}

#[test]
fn a_configuration_that_was_edited_counts_more_than_older_commands() {
    let config = "[switch.vale0.port.a]\nisolated = false\n[switch.vale0.port.b]\n";
    let mut daemon = Setup::new(config).start();
    for port in ["vale0:a", "vale0:b"] {
        done(&daemon, &["port", "set", port, "--isolated", "--max-macs", "3"]);
    }
    daemon.reconfigure(&config.replace("false", "false\nlearning = false"));
    daemon.restart();
    let settings = |name| daemon.port(name).unwrap().settings;
    assert_eq!(settings("vale0:a").isolated, Some(false));
    assert_eq!(settings("vale0:b").isolated, Some(true));
    assert!(
        daemon.log().contains("vale0:a: settings taken from the edited configuration"),
        "{}",
        daemon.log()
    );
}

#[test]
fn a_broken_state_file_stops_the_start_until_it_is_forgotten() {
    let mut daemon = Daemon::start();
    done(&daemon, &["switch", "add", "vale0"]);
    daemon.kill();
    let file = daemon.dir().join("state/vale0.json");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    let output = daemon.uvala(&["daemon"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(protocol::exit::BAD_CONFIG.into()), "{message}");
    assert!(message.contains("state/vale0.json") && message.contains("--forget"), "{message}");
    daemon.restart_with(&["--forget"]);
    assert!(daemon.switch("vale0").is_none() && !file.exists());
}

#[test]
fn rules_that_only_an_older_daemon_took_do_not_stop_the_start() {
    let mut daemon = Daemon::start();
    done(&daemon, &["switch", "add", "vale0", "--forwarding", "chain"]);
    done(&daemon, &["rule", "add", "vale0", "drop", "--src", "10.0.0.0/8"]);
    done(&daemon, &["rule", "add", "vale0", "drop", "--proto", "udp", "--dport", "80"]);
    daemon.kill();
    let file = daemon.dir().join("state/vale0.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let older = text.replace("10.0.0.0/8", "10.0.0.1/8").replace("udp", "icmp");
    assert_ne!(text, older);
    std::fs::write(&file, older).unwrap();
    daemon.restart();
    let rules = String::from_utf8(daemon.uvala(&["rule", "list", "vale0"]).stdout).unwrap();
    assert!(rules.contains("10.0.0.0/8") && !rules.contains("icmp"), "{rules}");
    let log = daemon.log();
    assert!(log.contains("10.0.0.1/8") && log.contains("rule 2 is for no frame"), "{log}");
}

#[test]
fn a_change_that_cannot_be_written_is_an_error_until_it_can() {
    let mut daemon = Daemon::start();
    done(&daemon, &["port", "add", "vale0:a"]);
    let (state, away) = (daemon.dir().join("state"), daemon.dir().join("away"));
    std::fs::rename(&state, &away).unwrap();
    std::fs::write(&state, "in the way").unwrap();
    for args in [&["port", "set", "vale0:a", "--isolated"][..], &["switch", "add", "vale1"]] {
        let output = daemon.uvala(args);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(protocol::exit::NOT_KEPT.into()), "{message}");
        assert!(message.contains("state/vale") && message.contains("not saved"), "{message}");
    }
    // It holds, and it is written when that is possible, at the latest before the end.
    assert_eq!(daemon.port("vale0:a").unwrap().settings.isolated, Some(true));
    std::fs::remove_file(&state).unwrap();
    std::fs::rename(&away, &state).unwrap();
    daemon.terminate();
    wait::until("its end", || daemon.process().has_ended());
    daemon.restart();
    assert_eq!(daemon.port("vale0:a").unwrap().settings.isolated, Some(true));
    assert!(daemon.switch("vale1").is_some());
}

#[test]
fn a_daemon_that_ends_with_changes_it_cannot_write_says_which_and_fails() {
    let mut daemon = Daemon::start();
    done(&daemon, &["switch", "add", "vale0"]);
    let (state, away) = (daemon.dir().join("state"), daemon.dir().join("away"));
    std::fs::rename(&state, &away).unwrap();
    std::fs::write(&state, "in the way").unwrap();
    assert!(!daemon.uvala(&["switch", "add", "vale1"]).status.success());
    daemon.terminate();
    let status = daemon.process().wait();
    assert_eq!(status.code(), Some(protocol::exit::NOT_KEPT.into()), "{}", daemon.log());
    let log = daemon.log();
    let lost = log.lines().filter(|line| line.contains("is lost"));
    let lost: Vec<_> = lost.collect();
    assert!(lost.len() == 1 && lost[0].contains("vale1: "), "{log}");
    assert!(lost[0].contains("state/vale1.json"), "{log}");
    std::fs::remove_file(&state).unwrap();
    std::fs::rename(&away, &state).unwrap();
    daemon.restart();
    assert!(daemon.switch("vale0").is_some() && daemon.switch("vale1").is_none());
}

#[test]
fn a_second_daemon_does_not_write_over_the_state_of_the_first() {
    let daemon = Daemon::start();
    let (state, other) = (daemon.dir().join("state"), daemon.dir().join("other"));
    let args = ["daemon", "--state", state.to_str().unwrap(), "--dir", other.to_str().unwrap()];
    let output = harness::process::uvala(Become::default(), &args, None).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(protocol::exit::EXISTS.into()), "{message}");
    let owner = format!("another daemon (process {}) keeps its state in", daemon.pid());
    assert!(message.contains(&owner), "{message}");
}

#[test]
fn watched_listings_go_on_with_the_next_daemon() {
    let mut daemon = Daemon::start();
    done(&daemon, &["switch", "add", "vale0"]);
    let dir = daemon.dir();
    let place = Scratch::new("restart_watched");
    let path = |listing: &str| place.path().join(listing);
    let listings = ["stats", "port list"];
    let mut watchers = listings.map(|listing| {
        let args: Vec<&str> = listing.split(' ').collect();
        let args = [&args[..], &["vale0", "--watch", "--dir", dir.to_str().unwrap()]].concat();
        let mut command = harness::process::uvala(Become::default(), &args, None);
        let said = std::fs::File::create(path(listing)).unwrap();
        let out = std::fs::File::create(path(&format!("{listing}.out"))).unwrap();
        Owned::spawn(command.stdin(Stdio::null()).stdout(out).stderr(said))
    });
    let until = |what: &str, suffix: &str, words: &str| {
        let says = |listing: &&str| {
            let said = std::fs::read_to_string(path(&format!("{listing}{suffix}"))).unwrap();
            said.contains(words)
        };
        wait::until(what, || listings.iter().all(says));
    };
    until("both to list", ".out", "PORT");
    daemon.kill();
    until("both to miss it", "", "waiting for it");
    daemon.restart();
    until("both to find it", "", "is back");
    for watcher in &mut watchers {
        assert!(!watcher.has_ended(), "it ended");
        watcher.kill();
    }
}

/// What a port that waits for ever hears when the daemon is killed.
fn hears_of_the_end(
    wait_for: impl FnOnce(&mut Port) -> Result<(), Error> + std::marker::Send + 'static,
) {
    let mut daemon = Daemon::start();
    let mut port = daemon.open("vale0:a");
    let (ready, is_ready) = channel();
    let waiter = std::thread::spawn(move || {
        ready.send(rustix::thread::gettid()).unwrap();
        wait_for(&mut port)
    });
    let thread = is_ready.recv().unwrap();
    let path = format!("/proc/self/task/{thread}/wchan");
    let sleeping = || std::fs::read_to_string(&path).is_ok_and(|at| at.contains("pipe"));
    // Where the kernel does not say where threads sleep, asleep or not is left to chance.
    let deadline = Instant::now() + Duration::from_millis(200);
    while !sleeping() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    let killed = Instant::now();
    daemon.kill();
    let heard = waiter.join().unwrap();
    assert!(matches!(heard, Err(Error::Lost(_))), "{heard:?}");
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
}

#[test]
fn a_blocked_receiver_wakes_at_once() {
    hears_of_the_end(|port| port.recv(&mut Vec::new()));
}

#[test]
fn a_receiver_with_a_deadline_wakes_at_once() {
    hears_of_the_end(|port| port.recv_timeout(&mut Vec::new(), SOON).map(drop));
}

#[test]
fn a_spinning_receiver_notices() {
    hears_of_the_end(|port| {
        port.set_wait_policy(client::WaitPolicy { yields: 0, spin: true });
        port.recv(&mut Vec::new())
    });
}

#[test]
fn a_sender_does_not_wait_for_ever() {
    hears_of_the_end(|port| {
        loop {
            port.send(&announcement(1))?;
        }
    });
}

#[test]
fn what_had_arrived_can_still_be_read() {
    let mut daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let (mut frame, mut scratch, mut tally) = (Vec::new(), Vec::new(), Tally::default());
    for seq in 0..100 {
        fill(&mut frame, mac(9), 1, seq, 60);
        a.send(&frame).unwrap();
    }
    assert!(a.drain(SOON).unwrap());
    daemon.kill();
    while let Ok(true) = b.recv_timeout(&mut frame, SOON) {
        tally.count(&frame, &mut scratch);
    }
    tally.assert_whole(1, 100);
    assert!(matches!(b.recv(&mut frame), Err(Error::Lost(_))));
    daemon.restart();
    b.reconnect(SOON).unwrap();
    assert_eq!(daemon.ports(), ["vale0:b"]);
}

/// The rings that a netmap program gets by this name, and the name of the port.
fn bound(daemon: &Daemon, name: &str) -> (u16, u32, String) {
    let bind = Bind::new(name.parse().unwrap());
    let descriptor = Descriptor::bind(&daemon.dir(), bind).unwrap();
    let attached = &descriptor.binding().bound().attached;
    (attached.tx_rings, attached.rx_slots, attached.port.to_string())
}

#[test]
fn interfaces_are_there_again_in_the_switches_where_they_were() {
    let mut daemon = Daemon::start();
    for (name, rings) in [("alone", 2), ("inside", 3), ("taken_out", 4), ("gone", 5)] {
        let port = PortName::interface(name).unwrap();
        let (tx_rings, rx_slots) = (Some(rings), Some(64));
        let (rx_rings, tx_slots) = (None, None);
        let add = InterfaceAdd { port, tx_rings, rx_rings, tx_slots, rx_slots, mem_id: 0 };
        daemon.call(Request::Interface(InterfaceRequest::Add(add))).unwrap();
    }
    let attach = |daemon: &Daemon, port: &str| {
        let attach = InterfaceAttach { port: port.parse().unwrap(), host: false, mem_id: 0 };
        daemon.call(Request::Interface(InterfaceRequest::Attach(attach))).unwrap();
    };
    let detach = |daemon: &Daemon, port: &str| {
        let port = PortRef { port: port.parse().unwrap() };
        daemon.call(Request::Interface(InterfaceRequest::Detach(port))).unwrap();
    };
    attach(&daemon, "vale0:inside");
    attach(&daemon, "vale0:taken_out");
    detach(&daemon, "vale0:taken_out");
    let gone = PortRef { port: "netmap:gone".parse().unwrap() };
    daemon.call(Request::Interface(InterfaceRequest::Del(gone))).unwrap();
    for _ in 0..2 {
        daemon.kill();
        daemon.restart();
        assert_eq!(daemon.ports(), ["netmap:alone", "netmap:taken_out", "vale0:inside"]);
        assert_eq!(bound(&daemon, "netmap:alone"), (2, 64, "netmap:alone".to_owned()));
        assert_eq!(bound(&daemon, "netmap:taken_out"), (4, 64, "netmap:taken_out".to_owned()));
        for name in ["netmap:inside", "vale0:inside"] {
            assert_eq!(bound(&daemon, name), (3, 64, "vale0:inside".to_owned()));
        }
    }
    detach(&daemon, "vale0:inside");
    daemon.kill();
    daemon.restart();
    let all = ["netmap:alone", "netmap:inside", "netmap:taken_out"];
    assert_eq!(daemon.ports(), all);
    for name in all {
        let port = PortRef { port: name.parse().unwrap() };
        daemon.call(Request::Interface(InterfaceRequest::Del(port))).unwrap();
    }
    daemon.kill();
    daemon.restart();
    assert_eq!(daemon.ports(), [""; 0]);
}

/// What one user's switch names may be gone, or not be there yet: no reason to keep all others
/// waiting.
#[test]
fn chains_and_rules_of_ports_that_are_gone_do_not_keep_the_daemon_from_starting() {
    let mut daemon = Daemon::start();
    let run = |daemon: &Daemon, args: &[&str]| {
        let output = daemon.uvala(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
    };
    run(&daemon, &["switch", "add", "vale7", "--forwarding", "chain"]);
    run(&daemon, &["port", "add", "vale7:fw", "--service", "firewall"]);
    run(&daemon, &["chain", "add", "vale7", "web", "firewall"]);
    let client = daemon.open("vale7:vm");
    run(&daemon, &["rule", "add", "vale7", "chain:web", "--in", "vm"]);
    run(&daemon, &["port", "del", "vale7:fw"]);
    drop(client);
    daemon.kill();
    daemon.restart();
    assert_eq!(daemon.switch("vale7").map(|switch| switch.forwarding), Some("chain".to_owned()));
    assert!(daemon.log().contains("there is no service firewall"), "{}", daemon.log());
    // The rule returns with its port, and drops while the chain has no function.
    let (mut vm, mut other) = (daemon.open("vale7:vm"), daemon.open("vale7:other"));
    vm.send(&announcement(1)).unwrap();
    wait::until("the frame to be dropped", || {
        daemon.stats("vale7:vm").drops.get("no_instance").copied() == Some(1)
    });
    let brief = Some(Duration::from_millis(5));
    assert!(!other.recv_timeout(&mut Vec::new(), brief).unwrap());
}
