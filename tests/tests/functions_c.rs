//! Functions of a chain in C and Python.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use client::nf::{Action, Frame, Generated, Threads};
use client::{Port, Stop};
use harness::c::{self, has_compiler};
use harness::chain::{audit, functions};
use harness::daemon::Daemon;
use harness::process::{Owned, Scratch, outcome};
use harness::python::python;
use harness::{root, wait};
use protocol::FunctionInfo;
use rustix::process::Signal;

/// What `uvala` prints.
fn says(daemon: &Daemon, words: &str) -> String {
    let output = daemon.uvala(&words.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Directory with libuvala.so.
fn library() -> PathBuf {
    c::library("uvala-capi", env!("CARGO_TARGET_TMPDIR"))
}

/// A chain `counted` of one service, between `valenf:a` and `valenf:b`.
fn chain_of_one(daemon: &Daemon) {
    for words in [
        "switch add valenf --forwarding chain",
        "port add valenf:count --service count",
        "chain add valenf counted count",
        "port add valenf:a --chain counted",
        "port add valenf:b",
    ] {
        says(daemon, words);
    }
}

/// Runs a function at `valenf:count`; the chain's ends, once it is there.
fn runs_in_the_chain(daemon: &Daemon, command: &mut Command) -> (Owned, Port, Port) {
    command.env("UVALA_DIR", daemon.dir()).stdin(Stdio::null()).stdout(Stdio::piped());
    let program = Owned::spawn(command);
    wait::until("an instance", || is_up(daemon, "count"));
    (program, daemon.open("valenf:a"), daemon.open("valenf:b"))
}

fn is_up(daemon: &Daemon, service: &str) -> bool {
    functions(daemon).iter().any(|info| info.service == service && info.pid.is_some())
}

/// Another member of the functions' group, so that it is audited when they have ended.
fn who_stays(daemon: &Daemon) -> Port {
    client::Options::new().dir(daemon.dir()).group("nf").open("valenf:stays").unwrap()
}

/// A broadcast frame of a type, with a payload.
fn saying(kind: [u8; 2], says: &[u8]) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &kind, says].concat();
    frame.resize(60, 0);
    frame
}

#[track_caller]
fn arrives(port: &mut Port, frame: &[u8]) {
    let mut got = Vec::new();
    assert!(port.recv_timeout(&mut got, Some(wait::PATIENCE)).unwrap(), "it passed nothing on");
    assert_eq!(got, frame);
}

/// Sends frames of two types until a line of the program says that it has counted both.
fn frames_are_counted(daemon: &Daemon, command: &mut Command) {
    let (mut program, mut a, mut b) = runs_in_the_chain(daemon, command);
    for kind in [[0x88, 0xb5], [8, 6], [0x88, 0xb5]] {
        let frame = saying(kind, &[]);
        a.send(&frame).unwrap();
        arrives(&mut b, &frame);
    }
    wait::until("its numbers", || {
        let seen = functions(daemon).remove(0);
        (seen.counts.get("type_88b5"), seen.gauges.get("types")) == (Some(&2), Some(&2))
    });
    assert!(says(daemon, "nf list valenf").contains("type_88b5 2"));
    let metrics = says(daemon, "metrics");
    let sample = r#"instance="0",port="count",name="type_88b5"} 2"#;
    let is_it =
        |line: &str| line.starts_with("uvala_function_events_total{") && line.ends_with(sample);
    assert!(metrics.lines().any(is_it), "{metrics}");
    let mut lines = BufReader::new(program.stdout()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("0x88b5': 2") && line.contains("0x0806': 1")));
}

/// Every frame comes, once and in order, and no buffer is lost.
fn frames_are_delayed(daemon: &Daemon, command: &mut Command) {
    let (mut program, mut a, mut b) = runs_in_the_chain(daemon, command);
    let _stays = who_stays(daemon);
    let frames: Vec<_> = (0..100).map(|number| saying([0x88, 0xb5], &[number])).collect();
    frames.iter().for_each(|frame| a.send(frame).unwrap());
    frames.iter().for_each(|frame| arrives(&mut b, frame));
    assert_eq!(audit(daemon).len(), 1);
    a.send(&frames[0]).unwrap();
    program.kill();
    wait::until("its end", || !says(daemon, "nf list valenf").contains(" up "));
    assert_eq!(audit(daemon).len(), 1);
}

#[test]
fn functions_in_python_count_and_delay() {
    let (place, library) = (Scratch::new("nf_python"), library());
    for (name, check) in [
        ("count.py", frames_are_counted as fn(&Daemon, &mut Command)),
        ("delay.py", frames_are_delayed),
    ] {
        let Some(mut command) = python(&library, &place) else { return };
        let daemon = Daemon::start();
        chain_of_one(&daemon);
        check(&daemon, command.arg(root().join("examples/nf").join(name)).arg("valenf:count"));
    }
}

/// A C program, compiled; it is to be told its ports.
fn c_program(source: &str, library: &Path, place: &Scratch) -> Command {
    let mut command = Command::new(c::compile(source, library, place));
    command.arg("valenf:count").env("LD_LIBRARY_PATH", place.path());
    command
}

#[test]
fn functions_in_c_count_and_delay() {
    if !has_compiler() {
        return;
    }
    let (place, library) = (Scratch::new("nf_c"), library());
    for (source, check) in [
        ("tests/c/count.c", frames_are_counted as fn(&Daemon, &mut Command)),
        ("examples/c/delay.c", frames_are_delayed),
    ] {
        let daemon = Daemon::start();
        chain_of_one(&daemon);
        check(&daemon, &mut c_program(source, &library, &place));
    }
}

/// Writes the functions' own bytes into the frame.
fn mark(frame: &mut Frame<'_>, _: &mut Generated) -> Action {
    let own = *frame.own().expect("a short frame");
    frame.bytes_mut()[30..46].copy_from_slice(&own);
    Action::Next
}

/// A service that does so.
fn marking(daemon: &Daemon) -> Threads {
    let threads = Threads::new("valenf:mark".parse().unwrap()).service("mark", 0);
    threads.options(daemon.options().group("nf"))
}

#[test]
fn a_function_in_c_holds_frames_and_sends_each_on_once() {
    if !has_compiler() {
        return;
    }
    let (place, library, daemon) = (Scratch::new("nf_hold"), library(), Daemon::start());
    chain_of_one(&daemon);
    let mut command = c_program("tests/c/hold.c", &library, &place);
    let (mut program, mut a, mut b) = runs_in_the_chain(&daemon, command.arg("valenf:other"));
    let _stays = who_stays(&daemon);
    let frame = |says: &[u8]| saying([0x88, 0xb5], says);
    let mut send = |says: &[u8]| a.send(&frame(says)).unwrap();
    send(b"hn");
    arrives(&mut b, &frame(b"hN"));
    send(b"hk");
    send(b"b");
    send(b"m");
    arrives(&mut b, &frame(b"b"));
    arrives(&mut b, &frame(b"mM"));
    beside_marks(&daemon, |marked| {
        let number = marked().unwrap().number;
        send(b"hs");
        send(&[b's', number]);
        arrives(&mut b, &frame(&[b's', number]));
        let mut marked = frame(b"hs");
        marked[30..46].fill(b'o');
        arrives(&mut b, &marked);
    });
    send(b"hk");
    send(b"e");
    arrives(&mut b, &frame(b"e"));
    arrives(&mut a, &frame(b"hk"));
    assert_eq!(audit(&daemon).len(), 1);
    let said = std::io::read_to_string(program.stdout()).unwrap();
    assert_eq!(outcome(program.wait()), 0, "{said}");
    assert_eq!(said.trim(), "8", "slots that its batches had");
    wait::until("its end", || !is_up(&daemon, "count"));
    assert_eq!(audit(&daemon).len(), 1);
}

/// With a service `mark`, which stands in no chain; `act` can ask for its row.
fn beside_marks(daemon: &Daemon, act: impl FnOnce(&dyn Fn() -> Option<FunctionInfo>)) {
    let (stop, marks) = (Stop::new().unwrap(), marking(daemon));
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| marks.run(&stop, |_| mark));
        let _stops = Stops(&stop);
        let marked = || functions(daemon).into_iter().find(|info| info.service == "mark");
        wait::until("another service", || marked().is_some_and(|info| info.pid.is_some()));
        act(&marked);
        stop.stop();
        runs.join().unwrap().unwrap();
    });
}

/// Also where something panics.
struct Stops<'a>(&'a Stop);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn a_function_in_c_finds_numbers_by_names_and_its_callback_calls_nothing_else() {
    if !has_compiler() {
        return;
    }
    let (place, library, daemon) = (Scratch::new("nf_names"), library(), Daemon::start());
    chain_of_one(&daemon);
    says(&daemon, "port add valenf:unheld");
    let mut out = daemon.open("valenf:out");
    beside_marks(&daemon, |marked| {
        let mut command = c_program("tests/c/names.c", &library, &place);
        command.args(["valenf:out", "mark", "counted"]);
        let (mut program, mut a, mut b) = runs_in_the_chain(&daemon, &mut command);
        for says in [b"s1", b"p2", b"r3", b"e4"] {
            a.send(&saying([0x88, 0xb5], says)).unwrap();
            let to = if says[0] == b'p' { &mut out } else { &mut b };
            // Both ports get a broadcast.
            while !came(to, says) {}
        }
        assert_eq!(marked().unwrap().frames_in, 1);
        assert_eq!(outcome(program.wait()), 0);
    });
}

/// Neither are they wanted drops, nor do such frames go anywhere.
#[test]
fn what_is_no_action_is_counted_as_that_of_a_function_in_c_and_in_rust() {
    if !has_compiler() {
        return;
    }
    let (place, library, daemon) = (Scratch::new("nf_wrong"), library(), Daemon::start());
    chain_of_one(&daemon);
    let mut command = c_program("tests/c/wrong.c", &library, &place);
    let (mut program, mut a, mut b) = runs_in_the_chain(&daemon, &mut command);
    for says in [b"a", b"b", b"c", b"d", b"e", b"z"] {
        a.send(&saying([0x88, 0xb5], says)).unwrap();
    }
    assert!(came(&mut b, b"z"), "the others go nowhere");
    assert_eq!(wrong_actions(&daemon), (5, 0));
    assert_eq!(outcome(program.wait()), 0);
    wait::until("its end", || !is_up(&daemon, "count"));
    let mut port = daemon.options().group("nf").open("valenf:count").unwrap();
    let mut wrong = |frame: &mut Frame<'_>, _: &mut Generated| match frame.bytes()[14] {
        b'a' => Action::Port(0x1001),
        b'b' => Action::Service(200),
        b'c' => Action::NONE,
        _ => Action::Next,
    };
    for says in [b"a", b"b", b"c", b"z"] {
        a.send(&saying([0x88, 0xb5], says)).unwrap();
    }
    let mut left = 4;
    while left > 0 {
        left -= client::nf::step(&mut port, &mut wrong, Some(wait::PATIENCE)).unwrap();
    }
    assert!(came(&mut b, b"z"), "the others go nowhere");
    assert_eq!(wrong_actions(&daemon), (8, 0));
    let shown = says(&daemon, "chain show valenf");
    assert!(
        shown.contains("8 bad_action") && shown.contains("Correct the function's program"),
        "{shown}"
    );
}

/// Frames that were to become what there is not, and those that were wanted dropped, of the chain;
/// the function has as many.
fn wrong_actions(daemon: &Daemon) -> (u64, u64) {
    let of = |drops: &BTreeMap<String, u64>| {
        let of = |reason| drops.get(reason).copied().unwrap_or_default();
        (of("bad_action"), of("function"))
    };
    let function = functions(daemon).into_iter().find(|info| info.service == "count").unwrap();
    let counted = of(&harness::chain::chain(daemon).drops);
    assert_eq!((of(&function.drops), function.refused()), (counted, counted.0));
    counted
}

#[test]
fn the_example_in_c_sends_tcp_to_another_service() {
    if !has_compiler() {
        return;
    }
    let (place, library, daemon) = (Scratch::new("nf_divert"), library(), Daemon::start());
    chain_of_one(&daemon);
    beside_marks(&daemon, |marked| {
        let mut command = c_program("examples/c/divert.c", &library, &place);
        let (_program, mut a, mut b) = runs_in_the_chain(&daemon, command.arg("mark"));
        for (protocol, diverted) in [(17, 0), (6, 1), (17, 1)] {
            let mut packet = [0; 46];
            (packet[0], packet[9]) = (0x45, protocol);
            a.send(&saying([8, 0], &packet)).unwrap();
            while !came(&mut b, &packet[..10]) {}
            assert_eq!(marked().unwrap().frames_in, diverted);
        }
        wait::until("its number", || says(&daemon, "nf list valenf").contains("diverted 1"));
    });
}

#[test]
fn a_function_in_python_finds_numbers_by_names() {
    const SCRIPT: &str = "import uvala\nf = uvala.Function('valenf:count')\n\
        print(f.port_number('valenf:out'), f.chain_number('counted'))\n\
        print(f.service_number('count'), f.service_number('nobody'))\n";
    let (place, library) = (Scratch::new("nf_python"), library());
    let Some(mut command) = python(&library, &place) else { return };
    let daemon = Daemon::start();
    chain_of_one(&daemon);
    let _out = daemon.open("valenf:out");
    let output = command.args(["-c", SCRIPT]).env("UVALA_DIR", daemon.dir()).output().unwrap();
    let [said, complaint] =
        [output.stdout, output.stderr].map(|all| String::from_utf8(all).unwrap());
    assert!(
        said.contains(" 0\n") && complaint.contains("no service \"nobody\""),
        "{said}{complaint}"
    );
}

/// Whether the next frame is that one; it may also be an earlier broadcast.
fn came(port: &mut Port, says: &[u8]) -> bool {
    let mut got = Vec::new();
    assert!(port.recv_timeout(&mut got, Some(wait::PATIENCE)).unwrap(), "it passed nothing on");
    got[14..].starts_with(says)
}

#[test]
fn a_function_in_c_has_threads_that_begin_and_end_together() {
    if !has_compiler() {
        return;
    }
    let (place, library, daemon) = (Scratch::new("nf_threads"), library(), Daemon::start());
    chain_of_one(&daemon);
    let mut command = c_program("tests/c/threads.c", &library, &place);
    command.env("UVALA_DIR", daemon.dir()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut program = Owned::spawn(&mut command);
    let (mut a, mut b) = (daemon.open("valenf:a"), daemon.open("valenf:b"));
    let counted = || functions(&daemon).iter().filter(|info| info.frames_out > 0).count() == 2;
    let mut sent = 0;
    wait::until("both threads to have flows", || {
        let mut flow = saying([0x88, 0xb5], &[]);
        flow[11] = sent;
        a.send(&flow).unwrap();
        sent += u8::from(b.recv_timeout(&mut Vec::new(), Some(Duration::from_secs(1))).unwrap());
        counted() && sent >= 20
    });
    program.signal(Signal::TERM);
    let said = std::io::read_to_string(program.stdout()).unwrap();
    assert_eq!(outcome(program.wait()), 0, "{said}");
    let counts: Vec<u32> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!(counts.len() == 2 && counts.iter().all(|count| *count > 0), "{said}");
    assert_eq!(counts.iter().sum::<u32>(), u32::from(sent), "{said}");
}
