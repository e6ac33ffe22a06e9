//! The command line: every subcommand, its JSON, its exit statuses.

use std::process::{Command, Output, Stdio};

use harness::daemon::{Daemon, Setup};
use harness::process::{Owned, Scratch, outcome, uvala};
use harness::role::Become;
use harness::wait;
use protocol::exit;
use serde_json::{Value, json};

/// What a command that works says.
fn said(daemon: &Daemon, args: &[&str]) -> String {
    text_of(args, daemon.uvala(args))
}

fn text_of(args: &[&str], output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "uvala {args:?}: {}: {error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The JSON that a command that works says.
fn json_of(daemon: &Daemon, args: &[&str]) -> Value {
    let args = [args, &["--json"]].concat();
    let text = said(daemon, &args);
    assert_eq!(text.lines().count(), 1, "one object on one line: {text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
}

/// A command fails with this status and one line.
fn fails(daemon: &Daemon, args: &[&str], status: u8) {
    let output = daemon.uvala(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(i32::from(status)), "uvala {args:?}: {error}");
    let lines = if status == exit::USAGE { 2..=9 } else { 1..=1 };
    assert!(lines.contains(&error.lines().count()), "uvala {args:?}: {error}");
}

#[test]
fn switches_are_made_shown_changed_and_deleted() {
    let daemon = Daemon::start();
    let add = ["switch", "add", "vale0", "--forwarding", "hub", "--age", "60", "--mode", "660"];
    assert_eq!(said(&daemon, &add), "");
    assert!(said(&daemon, &["switch", "list"]).contains("vale0"));
    let shown = json_of(&daemon, &["switch", "show", "vale0"]);
    assert_eq!(shown["forwarding"], "hub");
    assert_eq!(shown["age_s"], 60);
    assert_eq!(shown["persistent"], true);
    assert_eq!(shown["ports"], 0);
    assert_eq!(json_of(&daemon, &["switch", "list"]), json!([shown]));
    let set = ["switch", "set", "vale0", "--forwarding", "learning"];
    assert_eq!(json_of(&daemon, &set), json!({"done": true}));
    said(&daemon, &["switch", "set", "vale0", "--group-fwd-mask", "0x4008"]);
    assert!(said(&daemon, &["switch", "show", "vale0"]).contains("reserved groups 0x4008"));
    let now = json_of(&daemon, &["switch", "show", "vale0"]);
    assert_eq!(now["group_fwd_mask"], 0x4008);
    assert_eq!((&now["forwarding"], &now["mode"]), (&json!("learning"), &shown["mode"]));
    assert!(said(&daemon, &["switch", "show", "vale0"]).contains("learning"));
    said(&daemon, &["switch", "del", "vale0"]);
    assert_eq!(json_of(&daemon, &["switch", "list"]), json!([]));
}

#[test]
fn ports_are_made_shown_changed_and_deleted() {
    let daemon = Daemon::start();
    said(&daemon, &["port", "add", "vale0:vm1", "--vlan", "access:10", "--on-full", "wait"]);
    said(&daemon, &["port", "add", "vale0:sink", "--kind", "null"]);
    let shown = json_of(&daemon, &["port", "show", "vale0:vm1"]);
    assert_eq!(shown["settings"]["vlan"], "access:10");
    assert_eq!(shown["settings"]["on_full"], "wait");
    assert_eq!(shown["client"], Value::Null);
    said(&daemon, &["port", "set", "vale0:vm1", "--isolated", "--unicast-flood=false"]);
    let settings = &json_of(&daemon, &["port", "show", "vale0:vm1"])["settings"];
    assert_eq!((&settings["isolated"], &settings["unicast_flood"]), (&json!(true), &json!(false)));
    assert_eq!(settings["vlan"], "access:10", "what is not named stays");
    let client = daemon.open("vale0:vm1");
    let list = json_of(&daemon, &["port", "list", "vale0"]);
    let of =
        |name: &str| list.as_array().unwrap().iter().find(|port| port["port"] == name).cloned();
    assert_eq!(of("vale0:vm1").unwrap()["client"]["pid"], std::process::id());
    assert_eq!(of("vale0:sink").unwrap()["kind"], "null");
    assert!(said(&daemon, &["port", "list"]).contains("vale0:sink"));
    assert!(said(&daemon, &["port", "show", "vale0:vm1"]).contains("access:10"));
    drop(client);
    said(&daemon, &["port", "del", "vale0:vm1"]);
    said(&daemon, &["port", "del", "vale0:sink", "--json"]);
    assert_eq!(json_of(&daemon, &["port", "list"]), json!([]));
}

#[test]
fn addresses_are_added_learnt_flushed_and_deleted() {
    let daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    a.send(&harness::frames::announcement(7)).unwrap();
    assert!(b.recv_timeout(&mut Vec::new(), Some(wait::PATIENCE)).unwrap());
    said(&daemon, &["fdb", "add", "vale0:b", "02:00:00:00:00:99"]);
    let list = json_of(&daemon, &["fdb", "list", "vale0"]);
    let of = |mac: &str| list.as_array().unwrap().iter().find(|entry| entry["mac"] == mac).cloned();
    let learnt = of("02:00:00:00:00:07").expect("learnt");
    assert_eq!((&learnt["port"], &learnt["static"]), (&json!("vale0:a"), &json!(false)));
    let added = of("02:00:00:00:00:99").expect("added");
    assert_eq!((&added["port"], &added["static"]), (&json!("vale0:b"), &json!(true)));
    assert!(said(&daemon, &["fdb", "list", "vale0"]).contains("02:00:00:00:00:07"));
    b.send(&harness::frames::announcement(7)).unwrap();
    assert!(a.recv_timeout(&mut Vec::new(), Some(wait::PATIENCE)).unwrap());
    assert_eq!(json_of(&daemon, &["switch", "show", "vale0"])["fdb"]["moved"], json!(1));
    assert!(said(&daemon, &["switch", "show", "vale0"]).contains("1 moved, 0 evicted"));
    a.send(&harness::frames::announcement(7)).unwrap();
    assert!(b.recv_timeout(&mut Vec::new(), Some(wait::PATIENCE)).unwrap());
    said(&daemon, &["fdb", "flush", "vale0", "--port", "vale0:a"]);
    assert_eq!(json_of(&daemon, &["fdb", "list", "vale0"]), json!([added]));
    said(&daemon, &["fdb", "del", "vale0", "02:00:00:00:00:99"]);
    assert_eq!(json_of(&daemon, &["fdb", "list", "vale0"]), json!([]));
    fails(&daemon, &["fdb", "del", "vale0", "02:00:00:00:00:99"], exit::NOT_FOUND);
}

#[test]
fn counters_are_shown() {
    let daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    a.send(&harness::frames::announcement(7)).unwrap();
    assert!(b.recv_timeout(&mut Vec::new(), Some(wait::PATIENCE)).unwrap());
    let stats = json_of(&daemon, &["stats", "vale0:a"]);
    assert!(stats["at_ns"].is_u64());
    let port = &stats["ports"][0];
    assert_eq!((&port["port"], &port["tx"]["frames"]), (&json!("vale0:a"), &json!(1)));
    assert_eq!(port["tx"]["bytes"], 60);
    assert_eq!(json_of(&daemon, &["stats"])["ports"].as_array().unwrap().len(), 2);
    assert_eq!(json_of(&daemon, &["stats", "vale0"])["ports"][1]["rx"]["frames"], 1);
    assert!(said(&daemon, &["stats"]).contains("vale0:b"));
    assert!(said(&daemon, &["stats", "--queues"]).contains("vale0:b"));
}

#[test]
fn every_refusal_has_a_status_of_its_own_and_one_line() {
    let daemon = Daemon::start();
    said(&daemon, &["switch", "add", "vale1"]);
    let _held = daemon.open("vale0:a");
    for (args, status) in [
        (&["port", "show", "vale0:x"][..], exit::NOT_FOUND),
        (&["switch", "show", "vale9"], exit::NOT_FOUND),
        (&["fdb", "list", "vale9"], exit::NOT_FOUND),
        (&["stats", "vale9"], exit::NOT_FOUND),
        (&["port", "show", "eth0"], exit::BAD_NAME),
        (&["switch", "add", "br0"], exit::BAD_NAME),
        (&["switch", "add", "vale1"], exit::EXISTS),
        (&["port", "add", "vale0:a"], exit::EXISTS),
        (&["port", "add", "vale0:p{1"], exit::UNSUPPORTED),
        (&["port", "add", "vale0:c", "--instance", "3"], exit::BAD_REQUEST),
        (&["port", "list", "--nonsense"], exit::USAGE),
        (&["nonsense"], exit::USAGE),
        (&["gen", "-i", "vale0:a", "-f", "tx", "-n", "1"], exit::IN_USE),
        (&["gen", "-i", "eth0", "-f", "tx", "-n", "1"], exit::BAD_NAME),
        (&["bridge", "vale0:b", "vale0:a"], exit::IN_USE),
    ] {
        fails(&daemon, args, status);
    }
    assert_eq!(daemon.ports(), ["vale0:a"]);
}

#[test]
fn assets_are_written() {
    let place = Scratch::new("assets");
    let dir = place.path().join("out");
    let args = ["assets", dir.to_str().unwrap()];
    text_of(&args, uvala(Become::default(), &args, None).output().unwrap());
    for file in [
        "man/uvala.1",
        "man/uvala-port.1",
        "man/uvala-device.1",
        "man/uvala.toml.5",
        "completions/uvala.bash",
        "completions/_uvala",
    ] {
        let size = std::fs::metadata(dir.join(file)).map_or(0, |meta| meta.len());
        assert!(size > 100, "{file} has {size} bytes");
    }
}

/// `uvala` in the background, with its output to be read at the end.
fn background(daemon: &Daemon, args: &[&str]) -> (Owned, std::process::ChildStdout) {
    let dir = daemon.dir();
    let args = [args, &["--dir", dir.to_str().unwrap()]].concat();
    let mut command: Command = uvala(Become::default(), &args, None);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Owned::spawn(&mut command);
    let out = process.stdout();
    (process, out)
}

/// The summary of a program that ends well.
fn summary((mut process, out): (Owned, std::process::ChildStdout)) -> Value {
    let text = std::io::read_to_string(out).unwrap();
    assert_eq!(outcome(process.wait()), 0, "{text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn gen_sends_receives_and_measures() {
    let daemon = Daemon::start();
    said(&daemon, &["port", "add", "vale0:b", "--on-full", "wait"]);
    let receive = ["gen", "-i", "vale0:b", "-f", "rx", "--expect", "5000", "-T", "20", "--json"];
    let receiver = background(&daemon, &receive);
    wait::until("the receiver", || daemon.port("vale0:b").unwrap().client.is_some());
    said(&daemon, &["fdb", "add", "vale0:b", "02:00:00:00:00:02"]);
    let send = ["gen", "-i", "vale0:a", "-f", "tx", "-n", "5000", "-D", "02:00:00:00:00:02"];
    assert_eq!(json_of(&daemon, &send)["frames"], 5000);
    let received = summary(receiver);
    assert_eq!((&received["frames"], &received["checked"]["lost"]), (&json!(5000), &json!(0)));
    let mut pong = background(&daemon, &["gen", "-i", "vale0:pong", "-f", "pong"]);
    wait::until("pong", || daemon.port("vale0:pong").is_some());
    let ping =
        json_of(&daemon, &["gen", "-i", "vale0:ping", "-f", "ping", "-n", "100", "-R", "1k"]);
    assert_eq!((&ping["frames"], &ping["checked"]["lost"]), (&json!(100), &json!(0)));
    assert!(ping["latency_us"].is_object(), "{ping}");
    pong.0.signal(rustix::process::Signal::INT);
    assert_eq!(outcome(pong.0.wait()), 0);
}

/// What the switch dropped is in the summary also where the daemon that dropped it is gone.
#[test]
fn gen_counts_drops_of_all_daemons_that_it_saw() {
    let mut daemon = Daemon::start();
    let send = ["gen", "-i", "vale0:a", "-f", "tx", "-R", "100", "--report", "--json"];
    let sender = background(&daemon, &send);
    let dropped = |daemon: &Daemon| {
        let stats = daemon.port("vale0:a").map(|_| daemon.stats("vale0:a"));
        stats.map_or(0, |stats| stats.drops.values().sum::<u64>())
    };
    // It looks once a second.
    wait::until("drops that gen has seen", || dropped(&daemon) > 250);
    daemon.kill();
    daemon.restart();
    wait::until("drops of the second daemon", || dropped(&daemon) > 10);
    sender.0.signal(rustix::process::Signal::INT);
    let summary = summary(sender);
    assert_eq!(summary["reconnects"], 1, "{summary}");
    let drops = summary["drops"].as_object().unwrap_or_else(|| panic!("{summary}"));
    let drops: u64 = drops.values().filter_map(Value::as_u64).sum();
    assert!(drops > 110, "{summary}");
}

#[test]
fn gen_fails_where_frames_are_missing() {
    let daemon = Daemon::start();
    let args = ["gen", "-i", "vale0:b", "-f", "rx", "--expect", "10", "-T", "1"];
    assert_eq!(daemon.uvala(&args).status.code(), Some(1));
}

#[test]
fn gen_says_that_descriptors_are_short() {
    let daemon = Daemon::start();
    let dir = daemon.dir();
    let args = ["gen", "-i", "vale0:a", "-f", "tx", "-n", "1", "--dir", dir.to_str().unwrap()];
    // For none, one and two of the three that come with a port.
    for descriptors in [4, 5, 6] {
        let limits = Become { descriptors: Some(descriptors), ..Become::default() };
        let output = uvala(limits, &args, None).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(i32::from(exit::NO_MEMORY)), "{text}");
        assert!(text.contains("no descriptors left"), "{text}");
    }
}

#[test]
fn gen_fails_where_nothing_answers_comes_or_is_taken() {
    let daemon = Daemon::start();
    let fails = |args: &[&str], says: &str| {
        let args: Vec<_> = ["gen", "-f"].iter().chain(args).copied().collect();
        let output = daemon.uvala(&args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.lines().count() == 1 && text.contains(says), "{args:?}: {text}");
    };
    fails(&["ping", "-i", "vale0:a", "-n", "2", "-T", "0.2"], "no answer");
    fails(&["rx", "-i", "vale0:a", "-T", "0.1"], "no frame came to vale0:a within 0.1 s");
    fails(&["rx", "-i", "vale0:a", "-T", "0.1", "--untouched"], "no frame came");
    fails(&["pong", "-i", "vale0:a", "-T", "0.1", "--json"], "no frame came");
    fails(&["tx", "-i", "vale0:p{1", "-n", "3"], "were not taken in time");
    assert!(daemon.uvala(&["gen", "-f", "tx", "-i", "vale0:a", "-n", "3"]).status.success());
}

#[test]
fn bridge_joins_two_switches() {
    let daemon = Daemon::start();
    let bridge = background(&daemon, &["bridge", "vale0:x", "vale1:x", "--json"]);
    wait::until("the bridge", || daemon.port("vale1:x").is_some());
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale1:b"));
    let mut got = Vec::new();
    for (from, to) in [(7, 8), (8, 7)] {
        let frame = harness::frames::announcement(from);
        a.send(&frame).unwrap();
        assert!(b.recv_timeout(&mut got, Some(wait::PATIENCE)).unwrap(), "{from} to {to}");
        assert_eq!(got, frame);
        std::mem::swap(&mut a, &mut b);
    }
    bridge.0.signal(rustix::process::Signal::TERM);
    assert!(summary(bridge).is_object());
}

#[test]
fn demo_ends_well_and_leaves_nothing_behind() {
    let args = ["demo", "--seconds", "1", "--json"];
    let output = uvala(Become::default(), &args, None).output().unwrap();
    let result: Value = serde_json::from_str(&text_of(&args, output)).unwrap();
    assert!(result.is_object(), "{result}");
}

/// A command with stdout and stderr that take nothing: its status.
fn unheard(daemon: &Daemon, args: &[&str], stdout: Stdio, stderr: Stdio) -> i32 {
    let dir = daemon.dir();
    let args = [args, &["--dir", dir.to_str().unwrap()]].concat();
    let mut command = uvala(Become::default(), &args, None);
    let mut process = Owned::spawn(command.stdin(Stdio::null()).stdout(stdout).stderr(stderr));
    outcome(process.wait())
}

#[test]
fn output_that_nobody_reads_ends_quietly_and_a_full_disk_is_an_error() {
    let daemon = Daemon::start();
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let closed = || Stdio::from(std::io::pipe().unwrap().1);
    for args in [
        &["gen", "-i", "vale0:a", "-f", "tx", "-n", "10"][..],
        &["gen", "-i", "vale0:a", "-f", "tx", "-n", "10", "--json"],
        &["switch", "list"],
        &["stats", "--json", "--watch"],
    ] {
        assert_eq!(unheard(&daemon, args, closed(), Stdio::null()), 0, "{args:?}");
        assert_eq!(unheard(&daemon, args, full(), Stdio::null()), 1, "{args:?}");
        assert_eq!(unheard(&daemon, args, full(), full()), 1, "{args:?}");
    }
    let silent = ["gen", "-i", "vale0:a", "-f", "rx", "-T", "0.1"];
    assert_eq!(unheard(&daemon, &silent, closed(), closed()), 1, "a failure is one all the same");
    let remarks = ["gen", "-i", "vale0:a", "-f", "tx", "-R", "9", "-T", "1.2", "--report"];
    assert_eq!(unheard(&daemon, &remarks, Stdio::null(), closed()), 0);
    let bridge = ["bridge", "vale0:x", "vale1:x", "--report", "--dir"];
    let dir = daemon.dir();
    let args = [&bridge[..], &[dir.to_str().unwrap()]].concat();
    let mut command = uvala(Become::default(), &args, None);
    let mut bridge = Owned::spawn(command.stdin(Stdio::null()).stdout(closed()).stderr(full()));
    wait::until("the bridge", || daemon.port("vale1:x").is_some());
    bridge.signal(rustix::process::Signal::TERM);
    assert_eq!(outcome(bridge.wait()), 0);
}

#[test]
fn gen_counts_what_was_taken_and_takes_its_time_for_it() {
    let daemon = Daemon::start();
    said(&daemon, &["port", "add", "vale0:slow", "--on-full", "wait"]);
    let _stopped = daemon.open("vale0:slow");
    said(&daemon, &["fdb", "add", "vale0:slow", "02:00:00:00:00:02"]);
    let send = ["gen", "-i", "vale0:a", "-f", "tx", "-T", "0.5", "-D", "02:00:00:00:00:02"];
    let output = daemon.uvala(&[&send[..], &["--json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let not_taken = summary["not_taken"].as_u64().unwrap();
    assert!(error.contains(&format!("{not_taken} frames from vale0:a were not taken")), "{error}");
    assert!((700..=1023).contains(&not_taken), "a full ring, but for the last burst: {summary}");
    assert_eq!(summary["frames"], 1023, "what the other ring holds");
    assert_eq!(summary["bytes"], 1023 * 60);
    assert!(summary["seconds"].as_f64().unwrap() > 0.4, "{summary}");
    let all = json_of(&daemon, &["gen", "-i", "vale0:c", "-f", "tx", "-n", "50"]);
    assert_eq!((&all["frames"], &all["not_taken"]), (&json!(50), &json!(0)));
}

#[test]
fn gen_tags_frames_and_knows_its_own() {
    let daemon = Daemon::start();
    said(&daemon, &["port", "add", "vale0:t", "--vlan", "trunk:10,20", "--on-full", "wait"]);
    said(&daemon, &["port", "add", "vale0:u", "--vlan", "trunk:20", "--on-full", "wait"]);
    let to = ["-D", "02:00:00:00:00:02", "--vlan", "10"];
    let add = |port| said(&daemon, &["fdb", "add", port, "02:00:00:00:00:02", "--vlan", "10"]);
    for (receiver, len) in [("vale0:t", "64"), ("vale0:t", "1514"), ("vale0:t", "9000")] {
        let take = ["gen", "-i", receiver, "-f", "rx", "--expect", "500", "-T", "20", "--json"];
        let receiving = background(&daemon, &[&take[..], &["--vlan", "10"]].concat());
        wait::until("the receiver", || daemon.port(receiver).unwrap().client.is_some());
        add(receiver);
        said(&daemon, &["port", "add", "vale0:s", "--vlan", "trunk:10,20"]);
        let send = ["gen", "-i", "vale0:s", "-f", "tx", "-n", "500", "-l", len];
        json_of(&daemon, &[&send[..], &to].concat());
        assert_eq!(summary(receiving)["checked"]["lost"], 0);
        said(&daemon, &["port", "del", "vale0:s"]);
    }
    let mut pong = background(&daemon, &["gen", "-i", "vale0:t", "-f", "pong", "--vlan", "20"]);
    wait::until("pong", || daemon.port("vale0:t").unwrap().client.is_some());
    let ping = ["gen", "-i", "vale0:u", "-f", "ping", "-n", "20", "--vlan", "20"];
    assert_eq!(json_of(&daemon, &ping)["checked"]["lost"], 0);
    pong.0.signal(rustix::process::Signal::INT);
    assert_eq!(outcome(pong.0.wait()), 0);
}

#[test]
fn commands_say_what_is_wrong_with_them() {
    let daemon = Daemon::start();
    let says = |args: &[&str], status: u8, words: &str| {
        let output = daemon.uvala(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(i32::from(status)), "uvala {args:?}: {error}");
        assert!(error.contains(words), "uvala {args:?}: {error}");
    };
    let refused = |args: &[&str], words: &str| says(args, exit::USAGE, words);
    refused(&["gen", "-i", "vale0:a", "-f", "tx", "--check"], "--check is for -f rx only");
    refused(&["gen", "-i", "vale0:a", "-f", "rx", "-R", "5"], "--rate is for -f tx and -f ping");
    refused(&["gen", "-i", "vale0:a", "-f", "tx", "-d", "::1"], "'::1' is no IPv4 address");
    refused(&["demo"], "--dir is not for `uvala demo`");
    refused(&["bench", "list"], "--dir is not for `uvala bench`");
    let long = format!("vale{}", "x".repeat(58));
    says(&["switch", "add", &long], exit::BAD_NAME, "62 bytes are too many, at most 61");
    says(&["switch", "add", &long[..61]], exit::OK, "");
    for (args, words) in [
        (&["bench", "nosuch"][..], "no scenario nosuch"),
        (&["demo", "--seconds", "0"], "0 is too little"),
        (&["port", "list", "--dir", "/nonexistent"], "uvala daemon --dir /nonexistent"),
    ] {
        let output = uvala(Become::default(), args, None).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(words), "{args:?}: {error}");
        assert_ne!(output.status.code(), Some(0), "{args:?}");
    }
    let output = uvala(Become::default(), &["bench", "list", "--json"], None).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in text.lines() {
        assert!(serde_json::from_str::<Value>(line).unwrap()["name"].is_string(), "{line}");
    }
}

#[test]
fn listings_are_sorted_and_as_wide_as_a_screen() {
    let daemon = Daemon::start();
    let odd = (1..400).step_by(2).map(|vlan| vlan.to_string()).collect::<Vec<_>>().join(",");
    let trunk = format!("trunk:{odd}");
    said(&daemon, &["port", "add", "vale0:t", "--vlan", &trunk]);
    let _client = daemon.open("vale0:t");
    let table = said(&daemon, &["port", "list"]);
    assert!(table.lines().all(|line| line.chars().count() < 120) && table.contains('…'), "{table}");
    assert!(said(&daemon, &["port", "show", "vale0:t"]).contains(&trunk));
    let shown = said(&daemon, &["port", "show", "vale0:t"]);
    assert!(shown.contains("(permanent)\n") && shown.contains("\nowner  "), "{shown}");
    assert_eq!(json_of(&daemon, &["port", "list"])[0]["settings"]["vlan"], json!(trunk));
    let mut macs: Vec<_> = (0..40).map(|n| format!("02:00:00:00:00:{n:02x}")).collect();
    for mac in macs.iter().rev() {
        said(&daemon, &["fdb", "add", "vale0:t", mac, "--vlan", "3"]);
    }
    macs.push("02:00:00:00:00:05".to_owned());
    said(&daemon, &["fdb", "add", "vale0:t", "02:00:00:00:00:05", "--vlan", "5"]);
    let listed = json_of(&daemon, &["fdb", "list", "vale0"]);
    let order: Vec<_> =
        listed.as_array().unwrap().iter().map(|entry| entry["mac"].clone()).collect();
    assert_eq!(json!(order), json!(macs));
}

#[test]
fn values_that_mean_nothing_are_refused_with_their_status() {
    let daemon = Daemon::start();
    said(&daemon, &["switch", "add", "vale0", "--fdb-capacity", "1"]);
    said(&daemon, &["port", "add", "vale0:a"]);
    said(&daemon, &["fdb", "add", "vale0:a", "02:00:00:00:00:01"]);
    for (args, status, text) in [
        (&["switch", "set", "vale0", "--owner", "nobody there"][..], exit::USAGE, "/etc/passwd"),
        (&["port", "set", "vale0:a", "--group", "nobody there"], exit::USAGE, "/etc/group"),
        (&["switch", "set", "vale0", "--owner", "4294967295"], exit::BAD_REQUEST, "owner"),
        (&["switch", "set", "vale0", "--mode", "777"], exit::BAD_REQUEST, "660"),
        (&["switch", "set", "vale0", "--new-ports", "all"], exit::USAGE, "any or owner"),
        (&["bridge", "vale0:a", "vale0:a"], exit::USAGE, "with itself"),
        (
            &["fdb", "add", "vale0:a", "00:00:00:00:00:00"],
            exit::BAD_REQUEST,
            "not the address of a station",
        ),
        (&["fdb", "add", "vale0:a", "02:00:00:00:00:02"], exit::NO_MEMORY, "--fdb-capacity"),
        (&["daemon", "-c", "/dev/zero"], exit::BAD_CONFIG, "no configuration"),
    ] {
        let output = daemon.uvala(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(i32::from(status)), "{args:?}: {error}");
        assert!(error.contains(text), "{args:?}: {error}");
    }
}

#[test]
fn who_may_not_manage_is_not_sent_for_a_mode() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
    said(&daemon, &["switch", "add", "vale0", "--mode", "666"]);
    let set = ["switch", "set", "vale0", "--age", "5"];
    let output = daemon.uvala_as(&set, Some(harness::process::USER));
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(i32::from(exit::PERMISSION)), "{error}");
    assert!(error.contains("only its owner and root may, whatever the mode"), "{error}");
    assert!(!error.contains("--mode 666"), "{error}");
    // The doctor also says so to a user that may not connect at all.
    let closed = Setup::new("[socket]\nmode = \"600\"\n").start();
    let output = closed.uvala_as(&["doctor"], Some(harness::process::USER));
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(found.contains("PROBLEM  daemon: no permission for") && found.contains("cure: ask"));
}

#[test]
fn a_monitor_of_another_user_is_told_what_it_may_not() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
    said(&daemon, &["switch", "add", "vale0", "--mode", "666"]);
    said(&daemon, &["port", "add", "vale0:d", "--kind", "dgram"]);
    let args = ["vm-args", "vale0:d"];
    assert!(daemon.uvala(&args).stderr.is_empty());
    let output = daemon.uvala_as(&args, Some(harness::process::USER));
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(warning.contains("vale0:d.peer, and this user may not"), "{warning}");
    assert!(warning.contains("--peer in a directory of the VMM's user"), "{warning}");
}

#[test]
fn a_machine_runs_on_a_port_of_ones_own_in_anothers_switch() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let user = harness::process::USER;
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
    said(&daemon, &["switch", "add", "vale0", "--mode", "666"]);
    let (qemu, me) = (daemon.dir().join("qemu"), user.to_string());
    std::fs::write(&qemu, "#!/bin/sh\necho QEMU emulator version 11.1.3\n").expect("room");
    std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let port = ["port", "add", "--kind", "vhost-user"];
    said(&daemon, &[&port[..], &["vale0:mine", "--owner", &me]].concat());
    said(&daemon, &[&port[..], &["vale0:roots"]].concat());
    let qemu = qemu.to_str().expect("UTF-8");
    let run = |more: &[&str]| {
        let args = ["vm", "run", qemu, "--initrd", qemu, "--qemu", qemu, "--accel", "tcg"];
        let output = daemon.uvala_as(&[&args[..], more].concat(), Some(user));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap_or_default(), error)
    };
    assert_eq!(run(&["--name", "vale0:mine"]), (0, String::new()));
    let (refused, own) = (i32::from(exit::PERMISSION), format!("vale{me}:vm1"));
    let (status, error) = run(&["--name", "vale0:roots"]);
    assert!(status == refused && error.contains("is closed to this user"), "{error}");
    let (status, error) = run(&[]);
    assert!(status == refused && error.contains(&format!("--name {own}")), "{error}");
    assert_eq!(run(&["--name", &own]), (0, String::new()));
}

#[test]
fn the_doctor_says_what_the_daemon_may_not_have() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let daemon = Daemon::start();
    let said = || {
        let said = daemon.uvala(&["doctor"]);
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    let limit = |resource, most| {
        let pid = Pid::from_raw(daemon.pid().try_into().unwrap());
        let new = Rlimit { current: Some(most), maximum: Some(most) };
        prlimit(pid, resource, new).expect("our own child");
    };
    let usual = said();
    assert!(!usual.contains("descriptors") && !usual.contains("address space"), "{usual}");
    limit(Resource::Nofile, 400);
    limit(Resource::As, 8 << 30);
    let few = said();
    assert!(few.contains("note     daemon: it may have 400 descriptors: room for"), "{few}");
    assert!(few.contains("limited to 8192 MiB") && few.contains("ulimit -v unlimited"), "{few}");
    // Enough for the question itself.
    let most = daemon.holdings().descriptors as u64 + 4;
    limit(Resource::Nofile, most);
    let full = format!("of {most} descriptors open (hard limit {most})");
    wait::until("a full table", || said().contains(&full));
}

#[test]
fn a_machines_port_that_could_not_be_opened_says_why() {
    let mut daemon = Daemon::start();
    let (dir, port) = (daemon.dir().join("machines"), "vale0:vm1");
    std::fs::create_dir(&dir).expect("a new directory");
    let socket = dir.join("vm.sock");
    let add = ["port", "add", port, "--kind", "vhost-user", "--socket", socket.to_str().unwrap()];
    let added = daemon.uvala(&add);
    assert!(added.status.success(), "{added:?}");
    daemon.terminate();
    daemon.process().wait();
    std::fs::remove_dir_all(&dir).expect("it was made");
    daemon.restart();
    let said = |args: &[&str]| String::from_utf8(daemon.uvala(args).stdout).expect("UTF-8");
    let told = daemon.uvala(&["vm-args", port]);
    let warning = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(
        warning.contains("no VMM can connect to this port: no directory for socket"),
        "{warning}"
    );
    let (shown, found) = (said(&["port", "show", port]), said(&["doctor"]));
    assert!(shown.contains("machine          closed"), "{shown}");
    assert!(shown.contains("last error       no directory for socket"), "{shown}");
    assert!(found.contains("vale0:vm1: the daemon could not open it: no directory"), "{found}");
    assert!(found.contains("uvala port del vale0:vm1"), "{found}");
}

#[test]
fn what_a_monitor_cannot_be_told_is_refused_or_said() {
    let daemon = Daemon::start();
    let queues = ["port", "add", "vale0:vm1", "--kind", "vhost-user", "--queues", "2"];
    assert!(daemon.uvala(&queues).status.success());
    let args = |more: &[&str]| {
        let output = daemon.uvala(&[&["vm-args", "vale0:vm1"], more].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (_, plain, _) = args(&["--memory", "512"]);
    assert!(plain.contains("-m 512M\n") && plain.contains("size=512M,share=on"), "{plain}");
    for memory in ["foo", "", "0", "9999T"] {
        assert_eq!(args(&["--memory", memory]).0, Some(2), "{memory}");
    }
    for mac in ["01:00:5e:00:00:01", "00:00:00:00:00:00"] {
        assert_eq!(args(&["--mac", mac]).0, Some(2), "{mac}");
    }
    let (_, out, error) = args(&["--vmm", "crosvm", "--memory", "1G", "--mac", "52:54:00:1:2:3"]);
    assert!(out.is_empty() && error.contains("--mac"), "{out} {error}");
    let crosvm = ["--vmm", "crosvm", "--memory", "1G", "--mac", "52:54:00:01:02:03"];
    let (_, out, error) = args(&crosvm);
    assert!(out.starts_with("--mem 1024\n"), "{out}");
    assert!(error.contains("no option for the card's address and its queues"), "{error}");
    let own = ["port", "add", "vale0:d", "--kind", "dgram", "--socket", "/tmp/uvala-own.sock"];
    let own = daemon.uvala(&[&own[..], &["--peer", "/tmp/uvala-own.sock"]].concat());
    assert!(String::from_utf8_lossy(&own.stderr).contains("own socket"), "{own:?}");
    let blank = daemon.dir().join("a blank.sock");
    let blank = ["port", "add", "vale0:b", "--kind", "stream", "--socket", blank.to_str().unwrap()];
    said(&daemon, &blank);
    let output = daemon.uvala(&["vm-args", "vale0:b"]);
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(warning.contains("a blank.sock\" apart in $(uvala vm-args …)"), "{warning}");
    let netns = ["port", "add", "vale0:n", "--kind", "vhost-user", "--netns", "x"];
    let netns = daemon.uvala(&netns);
    let error = String::from_utf8_lossy(&netns.stderr).into_owned();
    assert!(error.contains("netns: not for kind vhost-user"), "{error}");
}

#[test]
fn the_doctor_misses_the_daemon_and_sees_its_sockets() {
    let mut daemon = Daemon::start();
    let add = ["port", "add", "vale0:vm1", "--kind", "vhost-user"];
    assert!(daemon.uvala(&add).status.success());
    let findings = |daemon: &Daemon| -> Value {
        let said = daemon.uvala(&["doctor", "--json"]);
        serde_json::from_slice(&said.stdout).expect("JSON")
    };
    let about = |findings: &Value, what: &str| {
        let all = findings.as_array().expect("a list").clone();
        all.iter().any(|one| one["level"] == "problem" && one["about"] == what)
    };
    assert!(!about(&findings(&daemon), "vale0:vm1"));
    std::fs::remove_file(daemon.dir().join("vale0:vm1.sock")).expect("it was there");
    assert!(about(&findings(&daemon), "vale0:vm1"));
    assert_eq!(daemon.uvala(&["doctor"]).status.code(), Some(1));
    daemon.kill();
    let said = daemon.uvala(&["doctor"]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(said.status.code(), Some(1));
    assert!(text.contains("no daemon") && text.contains("cure: "), "{text}");
}

#[test]
fn the_doctor_reads_what_monitors_were_told() {
    let daemon = Daemon::start();
    said(&daemon, &["port", "add", "vale0:a", "--kind", "vhost-user"]);
    let finds = |words: &str, wanted: &[&str]| {
        let _monitor = daemon.monitor(words);
        for wanted in wanted {
            wait::until(wanted, || {
                String::from_utf8_lossy(&daemon.uvala(&["doctor"]).stdout).contains(wanted)
            });
        }
    };
    let card = "-chardev socket,id=c,path=DIR/vale0:a.sock -netdev vhost-user,id=n,chardev=c";
    let memory = "-object memory-backend-memfd,id=m,size=1G,share=on";
    let idle = "PROBLEM  vale0:a: its machine does not use the shared memory m";
    finds(&format!("{memory} {card}"), &[idle, "cure: start QEMU with -numa node,memdev=m, too"]);
    let stream = "-netdev stream,id=n,addr.type=unix,addr.path=DIR/vale0:a.sock";
    finds(stream, &["uses -netdev stream, but the port is of kind vhost-user"]);
    let stray = "-chardev socket,id=c,path=DIR/vale0:aa.sock";
    finds(stray, &["PROBLEM  vale0:aa: process", "uvala port add vale0:aa --kind vhost-user"]);
}
