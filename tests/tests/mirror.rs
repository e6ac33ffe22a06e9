//! Mirror ports: copies of what other ports of the switch send and receive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::Port;
use harness::daemon::{Daemon, Setup};
use harness::frames::{Tally, changes, fill, mac, send_at_once};
use harness::process::{Scratch, USER};
use harness::{is_root, skip, wait};
use serde_json::{Value, json};

fn said(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.uvala(args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    text
}

fn refused(daemon: &Daemon, args: &[&str], code: i32, why: &str) {
    let output = daemon.uvala(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(code) && said.contains(why), "{args:?}: {said}");
}

fn mirrors(daemon: &Daemon) -> Value {
    serde_json::from_str(&said(daemon, &["mirror", "list", "--json"])).expect("JSON")
}

fn dropped(daemon: &Daemon, port: &str, reason: &str) -> u64 {
    daemon.stats(port).drops.get(reason).copied().unwrap_or(0)
}

/// A frame from one station to another, with a number in it.
fn frame(from: u32, to: u32, seq: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    fill(&mut frame, mac(to), from, seq, 64);
    frame
}

/// Sends frames, and waits until the switch has taken them.
fn send(port: &mut Port, frames: &[Vec<u8>]) {
    for frame in frames {
        assert!(port.send_timeout(frame, Some(wait::PATIENCE)).unwrap());
    }
    assert!(port.drain(Some(wait::PATIENCE)).unwrap());
}

fn heard(port: &mut Port) -> Vec<Vec<u8>> {
    let (mut frame, mut heard) = (Vec::new(), Vec::new());
    while port.try_recv(&mut frame).unwrap() {
        heard.push(frame.clone());
    }
    heard
}

/// Waits until no program holds the port.
fn free(daemon: &Daemon, port: &str) {
    wait::until("a free port", || daemon.port(port).is_none_or(|port| port.client.is_none()));
}

#[test]
fn a_mirror_port_gets_copies_whichever_port_comes_first_and_after_a_restart() {
    let mut daemon = Daemon::start();
    said(&daemon, &["port", "add", "vale0:ids"]);
    // The ports that it mirrors are not there yet.
    let add = ["mirror", "add", "vale0:ids", "--from", "vale0:a,vale0:b", "--direction", "in"];
    said(&daemon, &add);
    let one = json!([{"port": "vale0:ids", "from": ["vale0:a", "vale0:b"],
                      "direction": "in", "rate": 0}]);
    for _ in 0..2 {
        assert_eq!(mirrors(&daemon), one);
        let (mut a, mut ids) = (daemon.open("vale0:a"), daemon.open("vale0:ids"));
        let (mut b, mut c) = (daemon.open("vale0:b"), daemon.open("vale0:c"));
        send(&mut a, &[frame(1, 2, 0)]);
        send(&mut b, &[frame(2, 1, 1)]);
        send(&mut c, &[frame(3, 1, 2)]);
        assert_eq!(heard(&mut ids), [frame(1, 2, 0), frame(2, 1, 1)]);
        assert_eq!(heard(&mut a), [frame(2, 1, 1), frame(3, 1, 2)]);
        // What it mirrors, and the mirror port itself, go and come.
        drop((a, ids));
        free(&daemon, "vale0:a");
        free(&daemon, "vale0:ids");
        let (mut ids, mut a) = (daemon.open("vale0:ids"), daemon.open("vale0:a"));
        send(&mut a, &[frame(1, 2, 3)]);
        assert_eq!(heard(&mut ids), [frame(1, 2, 3)]);
        drop((a, b, c, ids));
        for port in ["a", "b", "c", "ids"] {
            free(&daemon, &format!("vale0:{port}"));
        }
        daemon.terminate();
        daemon.restart();
    }
    let shown = said(&daemon, &["port", "show", "vale0:ids"]);
    assert!(shown.contains("mirror of        a,b (in)\n"), "{shown}");
    let (mut a, mut ids) = (daemon.open("vale0:a"), daemon.open("vale0:ids"));
    said(&daemon, &["mirror", "del", "vale0:ids"]);
    assert_eq!(mirrors(&daemon), json!([]));
    send(&mut a, &[frame(1, 2, 0)]);
    send(&mut ids, &[frame(7, 1, 1)]);
    assert_eq!((heard(&mut ids), heard(&mut a)), (vec![frame(1, 2, 0)], vec![frame(7, 1, 1)]));
    refused(&daemon, &["mirror", "del", "vale0:ids"], 5, "vale0:ids is no mirror port; see");
}

#[test]
fn a_mirror_port_without_a_reader_holds_no_port_up_and_its_input_is_dropped() {
    let daemon = Daemon::start();
    said(&daemon, &["port", "add", "vale0:ids", "--on-full", "wait"]);
    said(&daemon, &["mirror", "add", "vale0:ids", "--from", "vale0:a"]);
    said(&daemon, &["port", "add", "vale0:sink", "--kind", "null"]);
    let add = ["mirror", "add", "vale0:sink", "--from", "vale0:a", "--direction", "out"];
    said(&daemon, &[&add[..], &["--rate", "1"]].concat());
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let mut ids = daemon.open("vale0:ids");
    send(&mut b, &[frame(2, 9, 0)]);
    heard(&mut a);
    let (count, mut arrived) = (5000, 0);
    for seq in 0..count {
        send(&mut a, &[frame(1, 2, seq)]);
        arrived += heard(&mut b).len() as u64;
    }
    assert_eq!(arrived, count, "no sender waits for a mirror");
    let lost = dropped(&daemon, "vale0:ids", "no_room");
    let copies = daemon.stats("vale0:ids").rx.frames;
    // The first frame of b was flooded to a.
    assert_eq!((copies + lost, lost > 0), (count + 1, true), "{copies} copies");
    let sent: Vec<_> = (0..30).map(|seq| frame(2, 1, seq)).collect();
    send(&mut b, &sent);
    let (copies, lost) =
        (daemon.stats("vale0:sink").rx.frames, dropped(&daemon, "vale0:sink", "mirror_rate"));
    assert_eq!((copies + lost, lost > 0), (31, true), "{copies} copies");
    heard(&mut a);
    heard(&mut b);
    send(&mut ids, &[frame(7, 1, 0)]);
    assert_eq!((heard(&mut a).len(), heard(&mut b).len()), (0, 0));
    assert_eq!(dropped(&daemon, "vale0:ids", "mirror_input"), 1);
}

#[test]
fn a_mirror_port_of_a_switch_of_all_workers_gets_what_each_of_them_moves() {
    let mut daemon = Setup::spread(&[("a", 0), ("b", 1), ("c", 2), ("ids", 1)]).start();
    said(&daemon, &["mirror", "add", "vale0:ids", "--from", "vale0:a"]);
    for restarted in [false, true] {
        let [mut a, mut b, mut c, mut ids] =
            ["a", "b", "c", "ids"].map(|name| daemon.open(&format!("vale0:{name}")));
        send(&mut b, &[frame(2, 9, 0)]);
        send(&mut c, &[frame(3, 9, 0)]);
        send(&mut a, &[frame(1, 9, 0)]);
        assert_eq!(heard(&mut ids), [frame(2, 9, 0), frame(3, 9, 0), frame(1, 9, 0)]);
        [&mut a, &mut b, &mut c].into_iter().for_each(|port| drop(heard(port)));
        let mut expected = Vec::new();
        for seq in 0..60 {
            // Ports of all workers send to a, and a sends to them.
            let (from, station) = if seq % 2 == 0 { (&mut b, 2) } else { (&mut c, 3) };
            send(from, &[frame(station, 1, seq)]);
            send(&mut a, &[frame(1, station, seq)]);
            expected.extend([frame(station, 1, seq), frame(1, station, seq)]);
        }
        assert_eq!(heard(&mut ids), expected, "{restarted}");
        assert_eq!([&mut a, &mut b, &mut c].map(|port| heard(port).len()), [60, 30, 30]);
        said(&daemon, &["worker", "move", "vale0:a", "2"]);
        said(&daemon, &["worker", "move", "vale0:ids", "0"]);
        send(&mut b, &[frame(2, 1, 99)]);
        send(&mut a, &[frame(1, 3, 99)]);
        assert_eq!(heard(&mut ids), [frame(2, 1, 99), frame(1, 3, 99)]);
        drop((a, b, c, ids));
        for port in ["a", "b", "c", "ids"] {
            free(&daemon, &format!("vale0:{port}"));
        }
        if !restarted {
            daemon.terminate();
            daemon.restart();
        }
    }
}

/// Three workers, and ports of a switch of all: `a` and `ids` of the first two, `b` and `c` of
/// others than `a`.
fn spread(more: &str) -> Setup {
    let config = "[workers]\ncount = 3\n[switch.vale0]\nworkers = \"all\"\n";
    let port = |(name, worker)| {
        format!("[switch.vale0.port.{name}]\nworker = {worker}\non_full = \"wait\"\n")
    };
    let ports: String = [("a", 0), ("b", 1), ("c", 2)].map(port).concat();
    Setup::new(&format!("{config}{ports}{more}"))
}

#[test]
fn a_mirror_port_gets_copies_of_workers_that_move_frames_at_the_same_time_in_their_order() {
    let daemon = spread("[switch.vale0.port.ids]\nworker = 1\n").start();
    said(&daemon, &["mirror", "add", "vale0:ids", "--from", "vale0:a"]);
    let [mut a, mut b, mut c, mut ids] =
        ["a", "b", "c", "ids"].map(|name| daemon.open(&format!("vale0:{name}")));
    send(&mut a, &[frame(1, 9, 0)]);
    [&mut b, &mut c, &mut ids].into_iter().for_each(|port| drop(heard(port)));
    let mut mixed = 0;
    wait::until("frames of two workers between each other", || {
        send_at_once(&mut [&mut b, &mut c], |at| {
            (0..100).map(|seq| frame(2 + u32::from(at == 1), 1, seq)).collect()
        });
        let frames = heard(&mut a);
        assert_eq!(frames.len(), 200);
        assert_eq!(heard(&mut ids), frames, "the order in which the port has got them");
        mixed += changes(&frames) - 2;
        mixed >= 10
    });
}

/// However a mirror port goes, no worker uses its rings from then on.
#[test]
fn mirror_ports_of_a_switch_of_all_workers_come_and_go_while_all_of_them_move_frames() {
    let daemon = spread("").start();
    let names = ["vale0:a", "vale0:b", "vale0:c"];
    let mut ports = names.map(|name| daemon.open(name));
    for (station, port) in (1..).zip(&mut ports) {
        send(port, &[frame(station, 9, 0)]);
    }
    ports.iter_mut().for_each(|port| drop(heard(port)));
    let (stop, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let (sent, tallies) = std::thread::scope(|scope| {
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for (station, port) in (1..).zip(ports) {
            let ((mut tx, mut rx), stop, done) = (port.split(), &stop, &done);
            senders.push(scope.spawn(move || {
                let mut seq = 0;
                while !stop.load(Ordering::Relaxed) {
                    tx.tx(0).send(&frame(station, station % 3 + 1, seq)).unwrap();
                    seq += 1;
                }
                assert!(tx.drain(Some(wait::PATIENCE)).unwrap());
                seq
            }));
            receivers.push(scope.spawn(move || {
                let (mut tally, mut got) = (Tally::default(), Vec::new());
                loop {
                    let is_last = done.load(Ordering::Acquire);
                    while rx.recv_timeout(&mut got, Some(Duration::from_millis(10))).unwrap() {
                        tally.count(&got, &mut Vec::new());
                    }
                    if is_last {
                        return tally;
                    }
                }
            }));
        }
        for (round, worker) in (0..12).zip(["0", "1", "2"].into_iter().cycle()) {
            said(&daemon, &["port", "add", "vale0:ids", "--worker", worker]);
            said(&daemon, &["mirror", "add", "vale0:ids", "--from", &names.join(",")]);
            let (mut ids, mut got) = (daemon.open("vale0:ids"), Vec::new());
            for _ in 0..200 {
                assert!(ids.recv_timeout(&mut got, Some(wait::PATIENCE)).unwrap(), "copies");
            }
            match round % 4 {
                0 => drop(said(&daemon, &["port", "del", "vale0:ids"])),
                1 => drop(said(&daemon, &["mirror", "del", "vale0:ids"])),
                2 => drop(said(&daemon, &["worker", "move", "vale0:ids", "1"])),
                _ => {}
            }
            drop(ids);
            if round % 4 != 0 {
                said(&daemon, &["port", "del", "vale0:ids"]);
            }
        }
        stop.store(true, Ordering::Relaxed);
        let sent: Vec<u64> = senders.into_iter().map(|it| it.join().unwrap()).collect();
        done.store(true, Ordering::Release);
        let tallies: Vec<Tally> = receivers.into_iter().map(|it| it.join().unwrap()).collect();
        (sent, tallies)
    });
    for (station, sent) in (1..).zip(sent) {
        tallies[station % 3].assert_whole(u32::try_from(station).unwrap(), sent);
    }
    assert_eq!(mirrors(&daemon), json!([]));
}

/// Until the port's own worker hears of the change, it learns the stations behind the port.
#[test]
fn a_port_of_a_switch_of_all_workers_becomes_a_mirror_port_while_it_sends_from_new_stations() {
    let daemon = Setup::spread(&[("p", 1), ("x", 2)]).start();
    let (mut port, stop) = (daemon.open("vale0:p"), AtomicBool::new(false));
    let add = ["mirror", "add", "vale0:p", "--from", "vale0:x"];
    let (answers, sent) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut station = 0;
            while !stop.load(Ordering::Relaxed) {
                station += 1;
                // A daemon that has died is what the answers say.
                let _ = port.send_timeout(&frame(station, u32::MAX, 0), Some(wait::PATIENCE));
            }
            station
        });
        let change = |args: &[&str]| daemon.uvala(args).status.success();
        let rounds = (0..40).map(|_| [change(&add), change(&["mirror", "del", "vale0:p"])]);
        let answers: Vec<_> = rounds.collect();
        stop.store(true, Ordering::Relaxed);
        (answers, sender.join().unwrap())
    });
    assert_eq!(answers, [[true; 2]; 40]);
    assert!(sent > 1000, "{sent} stations");
    let mut x = daemon.open("vale0:x");
    assert!(port.drain(Some(wait::PATIENCE)).unwrap());
    heard(&mut x);
    let last = frame(1, u32::MAX, 1);
    send(&mut port, std::slice::from_ref(&last));
    assert_eq!(heard(&mut x), [last]);
}

#[test]
fn what_cannot_be_mirrored_is_refused_with_the_reason() {
    let daemon = Setup::new("[socket]\nmode = \"666\"\n[switch.vale0]\nmode = \"666\"\n").start();
    for port in ["vale0:ids", "vale0:other", "vale0:fw", "vale0:static"] {
        said(&daemon, &["port", "add", port]);
    }
    said(&daemon, &["port", "set", "vale0:fw", "--service", "fw"]);
    said(&daemon, &["fdb", "add", "vale0:static", "02:00:00:00:00:01"]);
    said(&daemon, &["mirror", "add", "vale0:ids", "--from", "vale0:a"]);
    let transient = daemon.open("vale0:gone");
    for (port, from, code, why) in [
        ("vale0:other", "vale0:other", 6, "vale0:other is a mirror port"),
        ("vale0:other", "vale0:ids", 6, "mirror the ports that it mirrors"),
        ("vale0:a", "vale0:b", 5, "no port vale0:a"),
        ("vale0:fw", "vale0:b", 6, "a mirror port gets copies only"),
        ("vale0:static", "vale0:b", 6, "a mirror port gets copies only"),
        ("vale0:gone", "vale0:b", 12, "is deleted with its client"),
        ("vale0:other", "vale0:a{1", 12, "whose frames pass no switch"),
        ("vale0:other", "vale1:a", 2, "not a port of vale0, the switch of vale0:other"),
        ("vale0:other", "vale0:b,vale0:b", 13, "b is in `from` twice"),
    ] {
        refused(&daemon, &["mirror", "add", port, "--from", from], code, why);
    }
    drop(transient);
    // A port that is mirrored is no mirror port, which others would mirror.
    said(&daemon, &["port", "add", "vale0:a"]);
    let add = ["mirror", "add", "vale0:a", "--from", "vale0:other"];
    refused(&daemon, &add, 6, "vale0:a is mirrored to vale0:ids");
    let add = ["fdb", "add", "vale0:ids", "02:00:00:00:00:02"];
    refused(&daemon, &add, 6, "vale0:ids is a mirror port, which gets copies only");
    let set = ["port", "set", "vale0:a", "--vnet-header", "12"];
    refused(&daemon, &set, 12, "virtio-net header");
    assert_eq!(mirrors(&daemon).as_array().map(Vec::len), Some(1), "nothing has changed");
    if !is_root() {
        return skip("only root can be two users");
    }
    let list = daemon.uvala_as(&["mirror", "list"], Some(USER));
    assert!(list.status.success(), "it may look: {list:?}");
    let add = daemon.uvala_as(&["mirror", "add", "vale0:other", "--from", "vale0:b"], Some(USER));
    let why = String::from_utf8_lossy(&add.stderr);
    assert!(add.status.code() == Some(4) && why.contains("only its owner and root may"), "{why}");
}

#[test]
fn a_file_has_mirrors_and_wrong_ones_are_named_with_their_line() {
    let config = "[switch.vale0]\n[switch.vale0.port.ids]\n\
                  mirror = { from = [\"a\", \"b\"], direction = \"out\", rate = 500 }\n";
    let mut daemon = Setup::new(config).start();
    let row = json!([{"port": "vale0:ids", "from": ["vale0:a", "vale0:b"],
                      "direction": "out", "rate": 500}]);
    assert_eq!(mirrors(&daemon), row);
    said(&daemon, &["mirror", "del", "vale0:ids"]);
    daemon.terminate();
    daemon.restart();
    assert_eq!(mirrors(&daemon), json!([]), "a command came later");
    let place = Scratch::new("apply");
    let file = place.path().join("switches.toml");
    let path = file.to_str().expect("UTF-8");
    std::fs::write(&file, config).expect("room");
    said(&daemon, &["apply", path]);
    assert_eq!(mirrors(&daemon), row);
    for (from, why) in [
        ("from = [\"ids\"]", "mirror: ids is a mirror port"),
        ("from = [\"a\", \"a\"]", "mirror: a is in `from` twice"),
        ("from = [\"a\"], direction = \"up\"", "expected in, out or both"),
        ("from = [\"a\"], speed = 7", "speed"),
    ] {
        let table = format!("[switch.vale0.port.ids]\nmirror = {{ {from} }}\n");
        std::fs::write(&file, table).expect("room");
        refused(&daemon, &["apply", path], 9, why);
    }
}

#[test]
fn a_trace_of_a_switch_of_all_workers_tells_the_way_of_a_frame_at_any_of_them() {
    let config = "[workers]\ncount = 2\n[switch.vale0]\nworkers = \"all\"\n";
    let ports = |name: &str, worker: u32| {
        format!("[switch.vale0.port.{name}]\nkind = \"null\"\nworker = {worker}\n")
    };
    let daemon = Setup::new(&format!("{config}{}{}", ports("a", 0), ports("b", 1))).start();
    said(&daemon, &["fdb", "add", "vale0:b", "02:00:00:00:00:02"]);
    said(&daemon, &["fdb", "add", "vale0:a", "02:00:00:00:00:01"]);
    for (port, to, address) in [("a", "b", "02"), ("b", "a", "01")] {
        let (port, dst) = (format!("vale0:{port}"), format!("02:00:00:00:00:{address}"));
        let icmp = "icmp 10.0.0.1 > 10.0.0.2";
        let args = ["trace", "--json", &port, icmp, "--src", "02:00:00:00:00:09", "--dst", &dst];
        let trace: Value = serde_json::from_str(&said(&daemon, &args)).expect("JSON");
        let last = trace["steps"].as_array().and_then(|steps| steps.last()).expect("steps");
        assert_eq!((&last["step"], &last["port"]), (&"send".into(), &format!("vale0:{to}").into()));
    }
}
