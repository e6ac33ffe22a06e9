//! Captures of what a switch drops. Real tcpdump and tshark read them.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use client::Stop;
use client::capture::Capture;
use harness::daemon::{Daemon, Setup};
use harness::frames::{Tally, announcement, changes, fill, mac, send_at_once};
use harness::process::{Owned, Scratch, USER, uvala, uvala_path};
use harness::role::Become;
use harness::{is_root, skip, wait};
use packet::dropped::Dropped;
use protocol::DropsOf;

/// A switch, and a socket that every user may connect to.
const OPEN: &str = "[socket]\nmode = \"666\"\n[switch.vale0]\nmode = \"666\"\n";

/// A port for each of three workers that run a switch.
const THREE: &[(&str, u32)] = &[("x", 0), ("y", 1), ("z", 2)];

/// A daemon with two ports that know each other, and what holds them.
fn pair() -> (Daemon, [client::Port; 2]) {
    let daemon = Daemon::start();
    let [mut a, mut b] = ["vale0:a", "vale0:b"].map(|name| daemon.open(name));
    let mut got = Vec::new();
    a.send(&announcement(1)).expect("room");
    b.recv(&mut got).expect("it arrives");
    b.send(&announcement(2)).expect("room");
    a.recv(&mut got).expect("it arrives");
    (daemon, [a, b])
}

fn isolate(daemon: &Daemon) {
    for port in ["vale0:a", "vale0:b"] {
        assert!(daemon.uvala(&["port", "set", port, "--isolated"]).status.success());
    }
}

/// A frame of this length from the first port to the second.
fn frame(len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    fill(&mut frame, mac(2), 1, 0, len);
    frame
}

/// Starts a capture, and waits until it runs.
fn capture(mut command: Command) -> Owned {
    let mut capture = Owned::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut said = String::new();
    BufReader::new(capture.stderr()).read_line(&mut said).expect("stderr");
    assert!(said.contains("capturing drops of vale0"), "{said}");
    capture
}

fn drops(daemon: &Daemon, args: &[&str]) -> Owned {
    let mut command = Command::new(uvala_path());
    command.arg("--dir").arg(daemon.dir()).args(["capture", "--drops"]).args(args);
    capture(command)
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skip(&format!("{program} is not installed"));
    }
    found
}

#[test]
fn tcpdump_and_tshark_read_dropped_frames_with_reason_and_port() {
    if !has("tcpdump") || !has("tshark") {
        return;
    }
    let (daemon, [mut a, _b]) = pair();
    isolate(&daemon);
    let place = Scratch::new("drops");
    let path = place.path().join("drops.pcapng");
    let mut running = drops(&daemon, &["vale0", "-c", "3", "-w", path.to_str().expect("UTF-8")]);
    for len in [64, 100, 1000] {
        a.send(&frame(len)).expect("room");
    }
    assert!(running.wait().success());
    let read = |program: &str, args: &[&str]| {
        let output = Command::new(program).arg("-r").arg(&path).args(args).output().expect("it");
        assert!(output.status.success(), "{program}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let fields = ["frame.len", "frame.interface_name", "frame.comment"];
    let fields: Vec<&str> = fields.iter().flat_map(|field| ["-e", field]).collect();
    let text = read("tshark", &[&["-T", "fields"], &fields[..]].concat());
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let expected =
        ["64", "100", "1000"].map(|len| vec![len, "vale0:a", "dropped: isolated, from vale0:a"]);
    assert_eq!(rows, expected, "{text}");
    let text = read("tcpdump", &["-nn", "-e"]);
    assert_eq!(text.lines().filter(|line| line.contains(" > ")).count(), 3, "{text}");
    assert_eq!(daemon.stats("vale0:a").drops["isolated"], 3);
}

#[test]
fn text_names_reason_and_ports_and_only_the_reason_that_is_asked_for_is_shown() {
    let (daemon, [mut a, _b]) = pair();
    let mut running = drops(&daemon, &["no_room", "vale0", "-c", "5"]);
    // One that goes back where it came from, and more than fit into the ring of a port that sleeps.
    let mut own = Vec::new();
    fill(&mut own, mac(1), 1, 0, 60);
    a.send(&own).expect("room");
    wait::until("drops", || {
        a.send(&frame(60)).expect("room");
        running.has_ended()
    });
    let mut text = String::new();
    running.stdout().read_to_string(&mut text).expect("text");
    assert_eq!(text.lines().count(), 5, "{text}");
    let says = |line: &str| {
        line.contains(" no_room at vale0:b, from vale0:a: 02:") && line.ends_with(", 60 bytes")
    };
    assert!(text.lines().all(says), "{text}");
    assert_eq!(daemon.stats("vale0:a").drops["same_port"], 1);
}

#[test]
fn a_capture_that_does_not_read_counts_its_own_loss() {
    let (daemon, [mut a, _b]) = pair();
    isolate(&daemon);
    let (switch, stop) = ("vale0".parse().expect("a name"), Stop::new().expect("an eventfd"));
    let of = DropsOf::default();
    let mut eye = Capture::of_drops(Some(&daemon.dir()), &switch, of, 64, &stop).expect("it may");
    for _ in 0..500 {
        a.send(&frame(60)).expect("room");
    }
    wait::until("all", || daemon.stats("vale0:a").drops.get("isolated") == Some(&500));
    assert_eq!(eye.missed().expect("an answer"), 500 - 63);
    let mut last = 0;
    let seen = eye.take(|seen| {
        let bytes: Vec<u8> = seen.frame.parts().flatten().copied().collect();
        let (dropped, bytes) = Dropped::split(&bytes).expect("a head");
        assert_eq!((dropped.reason, dropped.at, bytes.len()), ("isolated", dropped.from, 60));
        assert!(seen.time_ns >= last, "times go up");
        last = seen.time_ns;
        true
    });
    assert_eq!(seen.expect("the daemon is there"), 63);
}

#[test]
fn a_capture_of_drops_ends_with_the_switch_and_leaves_nothing_behind() {
    let (daemon, ports) = pair();
    let before = daemon.holdings();
    let (switch, stop) = ("vale0".parse().expect("a name"), Stop::new().expect("an eventfd"));
    let of = DropsOf::default();
    let open = || Capture::of_drops(Some(&daemon.dir()), &switch, of, 64, &stop).expect("it may");
    drop(open());
    daemon.assert_holds(before);
    let mut eye = open();
    drop(ports);
    let over = eye.wait(Some(wait::PATIENCE)).expect_err("the switch went with its last port");
    assert_eq!(over.exit_code(), 5, "{over}");
    assert!(over.to_string().contains("the capture of the drops of vale0 has ended"), "{over}");
    assert_eq!(eye.missed().expect("an answer"), 0);
}

/// A frame that goes back where it came from.
fn back(from: u32, seq: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    fill(&mut frame, mac(from), from, seq, 60);
    frame
}

#[test]
fn drops_at_workers_at_the_same_time_keep_their_order_and_times_go_up() {
    const FRAMES: u64 = 100;
    let daemon = Setup::spread(THREE).start();
    let mut ports = ["x", "y", "z"].map(|name| daemon.open(&format!("vale0:{name}")));
    let (switch, stop) = ("vale0".parse().expect("a name"), Stop::new().expect("an eventfd"));
    for (from, port) in (1..).zip(&mut ports) {
        port.send(&announcement(from)).expect("room");
        assert!(port.drain(Some(wait::PATIENCE)).expect("the daemon is there"));
    }
    let of = DropsOf::default();
    let mut eye = Capture::of_drops(Some(&daemon.dir()), &switch, of, 1024, &stop).expect("it may");
    let (mut mixed, mut rounds, mut last, mut tally) = (0, 0, 0, Tally::default());
    wait::until("drops of several workers between each other", || {
        let [x, y, z] = &mut ports;
        send_at_once(&mut [x, y, z], |at| {
            let from = u32::try_from(at).expect("three") + 1;
            (rounds * FRAMES..).take(100).map(|seq| back(from, seq)).collect()
        });
        rounds += 1;
        let mut frames = Vec::new();
        let seen = eye.take(|seen| {
            let bytes: Vec<u8> = seen.frame.parts().flatten().copied().collect();
            frames.push(Dropped::split(&bytes).expect("a head").1.to_vec());
            assert!(seen.time_ns >= last, "times go up");
            last = seen.time_ns;
            true
        });
        assert_eq!(seen.expect("the daemon is there"), 3 * FRAMES);
        mixed += changes(&frames) - 3;
        for frame in &frames {
            tally.count(frame, &mut Vec::new());
        }
        mixed >= 10
    });
    (1..=3).for_each(|from| tally.assert_whole(from, rounds * FRAMES));
}

#[test]
fn drops_at_any_worker_are_captured_and_missed_ones_are_counted() {
    let daemon = Setup::spread(THREE).start();
    let mut ports = ["x", "y", "z"].map(|name| daemon.open(&format!("vale0:{name}")));
    for (from, port) in (1..).zip(&mut ports) {
        port.send(&announcement(from)).expect("room");
        assert!(port.drain(Some(wait::PATIENCE)).expect("the daemon is there"));
    }
    let (switch, stop) = ("vale0".parse().expect("a name"), Stop::new().expect("an eventfd"));
    let of = DropsOf::default();
    let mut eye = Capture::of_drops(Some(&daemon.dir()), &switch, of, 64, &stop).expect("it may");
    for seq in 0..60 {
        for (from, port) in (1..).zip(&mut ports) {
            port.send(&back(from, seq)).expect("room");
            assert!(port.drain(Some(wait::PATIENCE)).expect("the daemon is there"));
        }
    }
    assert_eq!(eye.missed().expect("an answer"), 180 - 63);
    let mut at = Vec::new();
    let seen = eye.take(|seen| {
        let bytes: Vec<u8> = seen.frame.parts().flatten().copied().collect();
        let (dropped, frame) = Dropped::split(&bytes).expect("a head");
        assert_eq!((dropped.reason, dropped.at), ("same_port", dropped.from));
        at.push((dropped.at, frame.to_vec()));
        true
    });
    assert_eq!(seen.expect("the daemon is there"), 63);
    let frames: Vec<_> = at.iter().map(|(_, frame)| frame.clone()).collect();
    let sent = (0..21).flat_map(|seq| [1, 2, 3].map(|from| back(from, seq)));
    assert_eq!(frames, sent.collect::<Vec<_>>());
    assert!(at[0].0 != at[1].0 && at[1].0 != at[2].0 && at[0].0 == at[3].0);
}

#[test]
fn drops_are_for_the_owner_of_the_switch() {
    let daemon = Setup::new(OPEN).start();
    let refused = |args: &[&str], user: Option<u32>, code: i32, why: &str| {
        let output = daemon.uvala_as(&[&["capture", "--drops"], args].concat(), user);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(why), "{args:?}: {text}");
    };
    refused(&["vale7"], None, 5, "no switch vale7");
    refused(&["vale0:a"], None, 2, "--drops is for a switch, such as vale0");
    refused(&["no_rom", "vale0"], None, 2, "neither a switch nor a reason");
    refused(&["vale0", "--direction", "in"], None, 2, "--direction");
    if !is_root() {
        return skip("only root can be another user");
    }
    refused(&["vale0"], Some(USER), 4, "vale0");
    let owner = USER.to_string();
    // The name of a user that is in no file is its number.
    let set = |owner: &str| daemon.uvala(&["switch", "set", "vale0", "--owner", owner]);
    let given = set(&owner);
    assert!(given.status.success(), "{given:?}");
    let dir = daemon.dir();
    let args = ["--dir", dir.to_str().expect("UTF-8"), "capture", "--drops", "vale0"];
    let mut running = capture(uvala(Become::default(), &args, Some(USER)));
    assert!(set("root").status.success());
    assert_eq!(running.wait().code(), Some(5), "it is another user's switch now");
}
