//! What operators see of frames: traces and captures. Real tcpdump and tshark read what is
//! captured.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};

use client::Stop;
use client::capture::Capture;
use harness::daemon::{Daemon, Setup};
use harness::frames::{changes, fill, mac, send_at_once};
use harness::process::{Owned, Scratch, USER, uvala_path};
use harness::{skip, wait};
use protocol::{CaptureOf, MachineState};
use rustix::process::Signal;
use serde_json::Value;

const SWITCH: &str = "\
[switch.vale0]
[switch.vale0.port.a]
kind = \"null\"
[switch.vale0.port.b]
kind = \"null\"
vlan = \"trunk:1-9\"
[switch.vale0.port.c]
kind = \"null\"
isolated = true
";

fn trace(daemon: &Daemon, args: &[&str]) -> Value {
    let output = daemon.uvala(&[&["trace", "--json"], args].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn trace_tells_the_way_of_a_frame_and_changes_nothing() {
    let daemon = Setup::new(SWITCH).start();
    let (src, dst) = ("02:00:00:00:00:01", "02:00:00:00:00:02");
    let frame = ["vale0:a", "icmp 10.0.0.1 > 10.0.0.2", "--src", src, "--dst", dst];
    let flooded = trace(&daemon, &frame);
    let names = |trace: &Value| {
        let steps = trace["steps"].as_array().expect("steps").clone();
        steps
            .iter()
            .map(|step| step["step"].as_str().expect("a name").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&flooded), ["vlan", "learn", "lookup", "flood", "send", "send"]);
    assert_eq!(flooded["steps"][4]["tag"], "insert", "{flooded}");
    assert_eq!(trace(&daemon, &frame), flooded, "nothing was learned");
    let add = daemon.uvala(&["fdb", "add", "vale0:b", dst]);
    assert!(add.status.success(), "{add:?}");
    let known = trace(&daemon, &frame);
    assert_eq!(names(&known), ["vlan", "learn", "lookup", "send"]);
    assert_eq!(known["steps"][2]["entry"]["port"], "vale0:b");
    let output = daemon.uvala(&[&["trace"], &frame[..]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1. VLAN 1: no 802.1Q tag\n"), "{text}");
    assert!(text.contains("4. sent to vale0:b, tagged with VLAN 1"), "{text}");
    // The same frame by its bytes: too short, and on the way back to its own port.
    let short = trace(&daemon, &["vale0:a", "0200 0000"]);
    assert_eq!(
        (names(&short), &short["steps"][0]["reason"]),
        (vec!["drop".into()], &"too_short".into())
    );
    let payload = trace(&daemon, &["vale0:a", "020000000009 020000000001 8100 0007 0800 4500"]);
    let first = &payload["steps"][0];
    assert_eq!((&first["vlan"], &first["tagging"]), (&1.into(), &"payload".into()), "{payload}");
    let back = trace(&daemon, &["vale0:b", "020000000002 020000000001 8100 0001 0800 4500"]);
    assert_eq!(back["steps"][3]["reason"], "same_port", "{back}");
    let stats = daemon.stats("vale0:a");
    assert_eq!((stats.tx.frames, stats.drops.len()), (0, 0), "nothing was counted");
}

#[test]
fn trace_refuses_what_it_cannot_tell_and_those_that_may_not_look() {
    let daemon = Setup::new(SWITCH).start();
    for (args, code, why) in [
        (&["vale0:x", "0200"][..], 5, "no port vale0:x"),
        (&["vale0:a", "icmp 10.0.0.1 > 10.0.0.2"], 2, "--src MAC"),
        (&["vale0:a", "-r", "/etc/passwd"], 1, "neither pcap nor pcapng"),
        (&["vale0:a", "-r", "/dev/null"], 1, "cannot read /dev/null: the file is cut short"),
        (&["vale0:a", ""], 2, "is no frame: expected one such as 'icmp"),
        (&["vale0:a", "  "], 2, "is no frame: expected one such as 'icmp"),
    ] {
        let output = daemon.uvala(&[&["trace"], args].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(why), "{args:?}: {text}");
    }
    if harness::is_root() {
        let set = daemon.uvala(&["switch", "set", "vale0", "--mode", "600"]);
        assert!(set.status.success(), "{set:?}");
        let output = daemon.uvala_as(&["trace", "vale0:a", "0200"], Some(USER));
        assert_eq!(output.status.code(), Some(4), "{output:?}");
    }
}

/// A frame of this length from one station to another.
fn frame(to: u32, from: u32, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    fill(&mut frame, mac(to), from, 0, len);
    frame
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skip(&format!("{program} is not installed"));
    }
    found
}

/// Starts a capture, and waits until it runs.
fn capture(daemon: &Daemon, args: &[&str]) -> Owned {
    capture_with_log(daemon, args).0
}

/// Starts a capture likewise. Returns it with what it says from then on.
fn capture_with_log(daemon: &Daemon, args: &[&str]) -> (Owned, BufReader<ChildStderr>) {
    let mut command = Command::new(uvala_path());
    command.arg("--dir").arg(daemon.dir()).arg("capture").args(args);
    let mut capture = Owned::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let (mut said, mut log) = (String::new(), BufReader::new(capture.stderr()));
    log.read_line(&mut said).expect("stderr");
    assert!(said.contains("capturing"), "{said}");
    (capture, log)
}

fn read(program: &str, args: &[&str], file: &Path) -> String {
    let output = Command::new(program).arg("-r").arg(file).args(args).output().expect("it runs");
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Two ports that know each other, and have sent nothing else.
fn pair(daemon: &Daemon) -> [client::Port; 2] {
    let [mut a, mut b] = ["vale0:a", "vale0:b"].map(|name| daemon.open(name));
    let mut got = Vec::new();
    a.send(&frame(2, 1, 60)).expect("room");
    b.recv(&mut got).expect("it arrives");
    b.send(&frame(1, 2, 60)).expect("room");
    a.recv(&mut got).expect("it arrives");
    [a, b]
}

#[test]
fn tcpdump_and_tshark_read_what_is_captured_with_direction_time_and_name() {
    if !has("tcpdump") || !has("tshark") {
        return;
    }
    let daemon = Daemon::start();
    let place = Scratch::new("capture");
    let [mut a, mut b] = pair(&daemon);
    let path = place.path().join("a.pcapng");
    let start = std::time::SystemTime::now();
    let mut running =
        capture(&daemon, &["vale0:a", "-c", "3", "-s", "200", "-w", path.to_str().expect("UTF-8")]);
    let mut got = Vec::new();
    for len in [64, 1000] {
        a.send(&frame(2, 1, len)).expect("room");
        b.recv(&mut got).expect("it arrives");
    }
    b.send(&frame(1, 2, 99)).expect("room");
    a.recv(&mut got).expect("it arrives");
    assert!(running.wait().success());
    let fields =
        ["frame.len", "frame.cap_len", "frame.interface_name", "frame.packet_flags_direction"];
    let fields: Vec<&str> = fields.iter().flat_map(|field| ["-e", field]).collect();
    let text = read("tshark", &[&["-T", "fields"], &fields[..]].concat(), &path);
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let lengths: Vec<_> = rows.iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(lengths, [("64", "64"), ("1000", "200"), ("99", "99")]);
    assert!(rows.iter().all(|row| row[2] == "vale0:a"), "{text}");
    let directions: Vec<u32> = rows.iter().map(|row| direction(row[3])).collect();
    assert_eq!(directions, [1, 1, 2], "in, in, out");
    let times = read("tshark", &["-T", "fields", "-e", "frame.time_epoch"], &path);
    let start = start.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    for time in times.lines() {
        let (seconds, ns) = time.split_once('.').expect("a fraction");
        assert!(seconds.parse::<u64>().expect("a number") >= start && ns.len() == 9, "{time}");
    }
    let text = read("tcpdump", &["-nn", "-e"], &path);
    assert_eq!(text.lines().filter(|line| line.contains(" > ")).count(), 3, "{text}");
}

/// A direction as tshark prints it.
fn direction(text: &str) -> u32 {
    let text = text.trim_start_matches("0x");
    u32::from_str_radix(text, 16).expect("a number")
}

#[test]
fn a_port_without_rings_is_captured_filtered_and_piped_into_tcpdump() {
    if !has("tcpdump") {
        return;
    }
    let daemon = Setup::new("[switch.vale0.port.one]\nkind = \"stream\"\n").start();
    let mut b = daemon.open("vale0:b");
    let machine = daemon.port("vale0:one").expect("there").machine.expect("a machine");
    let mut peer = UnixStream::connect(machine.socket).expect("it listens");
    let state = || daemon.port("vale0:one").expect("there").machine.expect("a machine").state;
    wait::until("a peer", || state() == MachineState::Up);
    let mut running = capture(&daemon, &["vale0:one", "-c", "2", "-w", "-", "less", "100"]);
    let mut reader = Command::new("tcpdump");
    reader.args(["-nn", "-e", "-r", "-"]).stdin(running.stdout()).stdout(Stdio::piped());
    let mut reader = Owned::spawn(&mut reader);
    let mut got = Vec::new();
    for len in [500, 70] {
        let sent = frame(2, 1, len);
        let head = u32::try_from(len).expect("short").to_be_bytes();
        peer.write_all(&[&head[..], &sent].concat()).expect("it reads");
        b.recv(&mut got).expect("it arrives");
        assert_eq!(got, sent);
    }
    b.send(&frame(1, 2, 80)).expect("room");
    let mut arrived = [0; 84];
    peer.read_exact(&mut arrived).expect("it arrives");
    assert!(running.wait().success());
    let mut text = String::new();
    reader.stdout().read_to_string(&mut text).expect("text");
    let lengths: Vec<_> = ["length 70", "length 80"].map(|len| text.contains(len)).into();
    let frames = text.lines().filter(|line| line.contains(" > ")).count();
    assert_eq!((lengths, frames), (vec![true, true], 2), "{text}");
}

/// A capture of what enters by port a, with a ring of so many slots.
fn capture_of_a(daemon: &Daemon, slots: u32, stop: &Stop) -> Capture {
    let of = CaptureOf { entering: true, leaving: false };
    let name = "vale0:a".parse().expect("a name");
    Capture::open(Some(&daemon.dir()), name, of, slots, stop).expect("it may")
}

#[test]
fn a_capture_that_does_not_read_counts_its_own_loss_and_costs_the_port_none() {
    let daemon = Daemon::start();
    let [mut a, mut b] = pair(&daemon);
    let stop = Stop::new().expect("an eventfd");
    let mut eye = capture_of_a(&daemon, 64, &stop);
    let mut got = Vec::new();
    for _ in 0..500 {
        a.send(&frame(2, 1, 60)).expect("room");
        b.recv(&mut got).expect("it arrives");
    }
    assert_eq!(eye.missed().expect("an answer"), 500 - 63);
    let mut last = 0;
    let seen = eye.take(|seen| {
        assert!(seen.is_entering && seen.time_ns >= last && seen.frame.len() == 60);
        last = seen.time_ns;
        true
    });
    assert_eq!(seen.expect("the daemon is there"), 63);
    let drops = daemon.stats("vale0:b").drops;
    assert!(drops.is_empty(), "{drops:?}");
    drop(a);
    let over = eye.wait(Some(wait::PATIENCE));
    assert!(over.is_err(), "the port is gone: {over:?}");
}

#[test]
fn a_capture_has_a_ring_of_the_size_that_is_asked_for() {
    let daemon = Daemon::start();
    let [mut a, mut b] = pair(&daemon);
    for size in ["255", "32769", "x"] {
        let mut command = Command::new(uvala_path());
        command.arg("--dir").arg(daemon.dir()).args(["capture", "vale0:a", "-B", size]);
        let output = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(size), "{text}");
    }
    // 128 slots, of which one stays free.
    let args = ["vale0:a", "-B", "256", "-c", "127", "-w", "/dev/null"];
    let (mut running, mut log) = capture_with_log(&daemon, &args);
    running.signal(Signal::STOP);
    let stat = format!("/proc/{}/stat", running.pid());
    let is_stopped = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "));
    wait::until("it to stop", is_stopped);
    let mut got = Vec::new();
    for _ in 0..500 {
        a.send(&frame(2, 1, 60)).expect("room");
        b.recv(&mut got).expect("it arrives");
    }
    running.signal(Signal::CONT);
    assert!(running.wait().success());
    let mut said = String::new();
    log.read_to_string(&mut said).expect("stderr");
    assert_eq!(said, "uvala: 127 frames captured, 373 missed\n");
}

#[test]
fn a_capture_makes_room_while_it_looks_at_many_frames() {
    let daemon = Daemon::start();
    let [mut a, mut b] = pair(&daemon);
    let stop = Stop::new().expect("an eventfd");
    let mut eye = capture_of_a(&daemon, 512, &stop);
    let mut pass = |count| {
        let mut got = Vec::new();
        for _ in 0..count {
            a.send(&frame(2, 1, 60)).expect("room");
            b.recv(&mut got).expect("it arrives");
        }
    };
    pass(500);
    let mut seen = 0;
    let taken = eye.take(|_| {
        seen += 1;
        if seen == 300 {
            pass(200);
        }
        true
    });
    assert_eq!(taken.expect("the daemon is there"), 500);
    assert_eq!(eye.missed().expect("an answer"), 0);
    assert_eq!(eye.take(|_| true).expect("the daemon is there"), 200);
}

#[test]
fn a_capture_sees_what_all_workers_bring_to_a_port_also_after_it_has_moved() {
    let daemon = Setup::spread(&[("a", 0), ("b", 1), ("c", 2)]).start();
    let [mut a, mut b] = pair(&daemon);
    let mut c = daemon.open("vale0:c");
    let (of, stop) =
        (CaptureOf { entering: true, leaving: true }, Stop::new().expect("an eventfd"));
    let name = "vale0:a".parse().expect("a name");
    let mut eye = Capture::open(Some(&daemon.dir()), name, of, 1024, &stop).expect("it may");
    for worker in ["0", "1", "2"] {
        let moved = daemon.uvala(&["worker", "move", "vale0:a", worker]);
        assert!(moved.status.success(), "{moved:?}");
        let (mut expected, mut last) = (Vec::new(), 0);
        for len in 60..120 {
            let (from, station) = if len % 2 == 0 { (&mut b, 2) } else { (&mut c, 3) };
            let mut got = Vec::new();
            from.send(&frame(1, station, len)).expect("room");
            a.recv(&mut got).expect("it arrives");
            a.send(&frame(2, 1, len)).expect("room");
            b.recv(&mut got).expect("it arrives");
            expected.extend([(false, frame(1, station, len)), (true, frame(2, 1, len))]);
        }
        let mut seen = Vec::new();
        let count = eye.take(|it| {
            assert!(it.time_ns >= last, "times go up");
            last = it.time_ns;
            seen.push((it.is_entering, it.frame.parts().flatten().copied().collect::<Vec<u8>>()));
            true
        });
        assert_eq!(count.expect("the daemon is there"), 120);
        assert_eq!(seen, expected, "at worker {worker}");
    }
    assert_eq!(eye.missed().expect("an answer"), 0);
}

#[test]
fn a_capture_keeps_the_order_of_what_workers_bring_at_the_same_time() {
    let daemon = Setup::spread(&[("a", 0), ("b", 1), ("c", 2)]).start();
    let [mut a, mut b] = pair(&daemon);
    let mut c = daemon.open("vale0:c");
    let (of, stop) =
        (CaptureOf { entering: false, leaving: true }, Stop::new().expect("an eventfd"));
    let name = "vale0:a".parse().expect("a name");
    let mut eye = Capture::open(Some(&daemon.dir()), name, of, 1024, &stop).expect("it may");
    let (mut mixed, mut last) = (0, 0);
    wait::until("frames of two workers between each other", || {
        send_at_once(&mut [&mut b, &mut c], |at| {
            (0..100).map(|len| frame(1, 2 + u32::from(at == 1), 60 + len)).collect()
        });
        let (mut frames, mut got, mut seen) = (Vec::new(), Vec::new(), Vec::new());
        while a.try_recv(&mut got).expect("the daemon is there") {
            frames.push(got.clone());
        }
        let count = eye.take(|it| {
            assert!(it.time_ns >= last, "times go up");
            last = it.time_ns;
            seen.push(it.frame.parts().flatten().copied().collect::<Vec<u8>>());
            true
        });
        assert_eq!(count.expect("the daemon is there"), 200);
        assert_eq!(seen, frames, "the order in which the port has got them");
        mixed += changes(&frames) - 2;
        mixed >= 10
    });
}

#[test]
fn a_capture_of_a_permanent_port_outlives_its_clients_and_knows_what_it_lost() {
    let daemon = Setup::new("[switch.vale0.port.a]\nkind = \"shm\"\n").start();
    let [mut a, b] = pair(&daemon);
    let (of, stop) =
        (CaptureOf { entering: true, leaving: true }, Stop::new().expect("an eventfd"));
    let open = |name: &str| {
        let name = name.parse().expect("a name");
        Capture::open(Some(&daemon.dir()), name, of, 64, &stop).expect("it may")
    };
    let (mut stays, mut ends) = (open("vale0:a"), open("vale0:b"));
    let take = |eye: &mut Capture| eye.take(|_| true).expect("the daemon is there");
    for _ in 0..100 {
        a.send(&frame(9, 1, 60)).expect("room");
    }
    wait::until("all", || stays.missed().expect("an answer") == 100 - 63);
    drop((a, b));
    let has_client = || daemon.port("vale0:a").expect("it stays").client.is_some();
    wait::until("no client", || !has_client() && daemon.port("vale0:b").is_none());
    assert_eq!(stays.missed().expect("an answer"), 100 - 63);
    assert_eq!(take(&mut stays), 63);
    let [mut a, _b] = pair(&daemon);
    assert_eq!(take(&mut stays), 2, "the frames of the next client");
    a.send(&frame(9, 1, 60)).expect("room");
    assert!(stays.wait(Some(wait::PATIENCE)).expect("it goes on"));
    assert_eq!((take(&mut stays), stays.missed().expect("an answer")), (1, 100 - 63));
    take(&mut ends);
    let over = ends.wait(Some(wait::PATIENCE)).expect_err("the port went with its client");
    assert!(over.to_string().contains("the capture of vale0:b has ended"), "{over}");
    assert!(ends.missed().is_ok());
    let deleted = daemon.uvala(&["port", "del", "vale0:a"]);
    assert!(deleted.status.success(), "{deleted:?}");
    let over = stays.wait(Some(wait::PATIENCE)).expect_err("the port is gone");
    assert_eq!(over.exit_code(), 5, "{over}");
    assert_eq!(stays.missed().expect("an answer"), 100 - 63);
}

#[test]
fn text_is_one_line_a_frame_and_strangers_capture_nothing() {
    let daemon = Daemon::start();
    let ([mut a, _b], _pipe) = (pair(&daemon), daemon.open("vale0:p{1"));
    let mut running = capture(&daemon, &["vale0:a", "-c", "1", "--direction", "in"]);
    a.send(&frame(2, 1, 60)).expect("room");
    assert!(running.wait().success());
    let mut text = String::new();
    running.stdout().read_to_string(&mut text).expect("text");
    assert!(text.contains(" in  ") && text.ends_with(", 60 bytes\n"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    for (args, code, why) in [
        (&["vale0:x"][..], 5, "no port vale0:x"),
        (&["vale0:a", "prt 53"], 2, "syntax error"),
        (&["vale0:a", "-W", "3", "-w", "x"], 2, "-W is for -C or -G"),
        (&["vale0:p{1"], 12, "pass no switch"),
        (&["vale0:a", "-w", "/no/dir/x"], 1, "/no/dir/x: No such file or directory"),
        (&["vale0:a", "-w", "/dev/full"], 1, "/dev/full: No space left"),
    ] {
        let output = daemon.uvala(&[&["capture"], args].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(why), "{args:?}: {text}");
    }
    if harness::is_root() {
        let set = daemon.uvala(&["switch", "set", "vale0", "--mode", "666"]);
        assert!(set.status.success(), "{set:?}");
        let output = daemon.uvala_as(&["capture", "vale0:a"], Some(USER));
        assert_eq!(output.status.code(), Some(4), "{output:?}");
    }
}

#[test]
fn wireshark_lists_ports_as_interfaces_and_captures_them() {
    if !has("tshark") {
        return;
    }
    let daemon = Daemon::start();
    let place = Scratch::new("extcap");
    let program = place.path().join("uvala-extcap");
    std::os::unix::fs::symlink(uvala_path(), program).expect("a link");
    let [mut a, mut b] = pair(&daemon);
    let folders = Command::new("tshark").args(["-G", "folders"]).output().expect("it runs");
    let folders = String::from_utf8_lossy(&folders.stdout).into_owned();
    let folder = folders.lines().find_map(|line| line.strip_prefix("Extcap path:"));
    let folder = folder.expect("a folder").trim().to_owned();
    // In a mount namespace the folder is the test's: tshark is as it was installed.
    let tshark = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c"]);
        command.arg("mount --bind \"$0\" \"$1\" && shift && exec tshark \"$@\"");
        command.arg(place.path()).arg(&folder).args(args).env("UVALA_DIR", daemon.dir());
        command
    };
    let listed = tshark(&["-D"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(text.contains("vale0:a (uvala shm port)") && text.contains("vale0:b"), "{listed:?}");
    let mut command = tshark(&["-i", "vale0:a", "-c", "2", "-T", "fields", "-e", "frame.len"]);
    let mut running = Owned::spawn(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    let mut got = Vec::new();
    // It captures from some moment on: frames come until it has two.
    wait::until("two frames", || {
        a.send(&frame(2, 1, 77)).expect("room");
        b.recv(&mut got).expect("it arrives");
        running.has_ended()
    });
    let mut text = String::new();
    running.stdout().read_to_string(&mut text).expect("text");
    assert_eq!(text, "77\n77\n");
}

#[test]
fn a_capture_and_events_go_on_with_the_daemon_that_takes_over() {
    let mut daemon = Daemon::start();
    let [mut a, mut b] = pair(&daemon);
    let dir = daemon.dir();
    let watch = |words: &[&str]| {
        let mut command = Command::new(uvala_path());
        command.arg("--dir").arg(&dir).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Owned::spawn(&mut command);
        let mut said = BufReader::new(process.stderr()).lines().map(|line| line.expect("text"));
        assert!(said.next().is_some_and(|line| line.contains("Ctrl-C ends it")));
        (process, said)
    };
    let (mut capture, mut said) = watch(&["capture", "vale0:a", "--direction", "in", "-c", "2"]);
    let (mut events, mut heard) = watch(&["events"]);
    let mut got = Vec::new();
    a.send(&frame(2, 1, 60)).expect("room");
    b.recv(&mut got).expect("it arrives");
    for _ in 0..2 {
        daemon.replace();
        for said in [&mut said, &mut heard] {
            assert!(said.next().is_some_and(|line| line.contains("another daemon")));
        }
    }
    a.send(&frame(2, 1, 61)).expect("room");
    let lines = BufReader::new(capture.stdout()).lines().map(|line| line.expect("text"));
    assert_eq!(lines.count(), 2);
    assert!(capture.wait().success());
    assert!(said.next().is_some_and(|line| line.contains("2 frames captured, 0 missed")));
    assert!(daemon.uvala(&["port", "add", "vale0:new"]).status.success());
    let mut lines = BufReader::new(events.stdout()).lines().map(|line| line.expect("text"));
    assert!(lines.any(|line| line.contains("vale0:new")));
    daemon.kill();
    assert!(!events.wait().success());
}
