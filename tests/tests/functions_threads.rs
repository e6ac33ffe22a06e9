//! A function on several cores: instances of its service in threads of one process.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use client::Port;
use client::nf::{Action, Frame, Generated, Metric, MetricsReport, Threads};
use harness::chain::{audit, command, configuration, functions};
use harness::daemon::{Daemon, Setup};
use harness::process::{Owned, Scratch, outcome, uvala_path};
use harness::{is_root, skip, wait};
use packet::build;
use protocol::{ErrorCode, FunctionInfo};
use rustix::process::Signal;

/// A chain of one service, `s0`, between `valenf:a` and `valenf:b`; its first instance is made.
fn daemon() -> Daemon {
    Setup::new(&configuration(1)).start()
}

/// A function that passes everything on, at `valenf:f0` and those behind it.
fn start(daemon: &Daemon, more: &str, instances: usize) -> Owned {
    let words = format!("nf run bypass valenf:f0 --service s0 {more}");
    let process = Owned::spawn(&mut command(daemon, &words));
    wait::until("all instances", || running(daemon).len() == instances);
    process
}

fn running(daemon: &Daemon) -> Vec<FunctionInfo> {
    functions(daemon).into_iter().filter(|info| info.pid.is_some()).collect()
}

/// What a command that is refused says, and its exit status.
fn refused(daemon: &Daemon, words: &str) -> (i32, String) {
    let output = daemon.uvala(&words.split(' ').collect::<Vec<_>>());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.trim_end().lines().count(), 1, "{words}: {said:?}");
    (output.status.code().unwrap(), said)
}

/// A frame of a flow.
fn frame(flow: u8) -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, flow], &[0x88, 0xb5], &[flow; 46]].concat()
}

/// Frames of this many flows go by.
fn flows_pass(a: &mut Port, b: &mut Port, flows: u8) {
    let mut got = Vec::new();
    let mut left: Vec<_> = (0..flows).map(frame).collect();
    left.iter().for_each(|frame| a.send(frame).unwrap());
    while !left.is_empty() {
        assert!(b.recv_timeout(&mut got, Some(wait::PATIENCE)).unwrap(), "{} are lost", left.len());
        left.retain(|frame| *frame != got);
    }
}

/// Whether a function's thread is asleep, as the kernel says.
fn sleeps(info: &FunctionInfo) -> bool {
    let (pid, thread) = (info.pid.unwrap(), info.thread.unwrap());
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).unwrap();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

#[test]
fn both_threads_have_flows_sleep_when_there_are_none_and_end_in_order() {
    let daemon = daemon();
    let mut process = start(&daemon, "--threads 2", 2);
    let (mut a, mut b) = (daemon.open("valenf:a"), daemon.open("valenf:b"));
    flows_pass(&mut a, &mut b, 100);
    let seen = running(&daemon);
    let rows: Vec<_> = seen.iter().map(|info| (info.port.to_string(), info.instance)).collect();
    assert_eq!(rows, [("valenf:f0".to_owned(), 0), ("valenf:f0_1".to_owned(), 1)]);
    assert!(
        seen.iter().all(|info| info.frames_in >= 20 && info.trust_group.as_deref() == Some("nf"))
    );
    assert_eq!(seen.iter().map(|info| info.frames_in).sum::<u64>(), 100);
    assert!(seen[0].pid == seen[1].pid && seen[0].thread.is_some(), "{seen:?}");
    assert_ne!(seen[0].thread, seen[1].thread);
    wait::until("both to sleep", || seen.iter().all(sleeps));
    process.signal(Signal::TERM);
    assert_eq!(outcome(process.wait()), 0);
    wait::until("the ports to be free", || running(&daemon).is_empty());
    assert_eq!(functions(&daemon).len(), 2, "a port that was made stays");
}

#[test]
fn kill_9_frees_all_ports_and_loses_no_buffer() {
    let daemon = daemon();
    let mut process = start(&daemon, "--threads 3", 3);
    let open = |name: &str| daemon.options().group("nf").open(name).unwrap();
    let (mut a, mut b) = (open("valenf:a"), open("valenf:b"));
    flows_pass(&mut a, &mut b, 100);
    (0..100).for_each(|flow| a.send(&frame(flow)).unwrap());
    process.kill();
    wait::until("the ports to be free", || running(&daemon).is_empty());
    assert_eq!(audit(&daemon)[0].members.len(), 2);
    let _again = start(&daemon, "--threads 3", 3);
    while b.recv_timeout(&mut Vec::new(), Some(Duration::from_millis(50))).unwrap() {}
    flows_pass(&mut a, &mut b, 100);
    assert_eq!(audit(&daemon)[0].members.len(), 5);
}

#[test]
fn each_thread_has_its_core_and_what_cannot_be_is_refused_before_anything_is_made() {
    let daemon = daemon();
    let allowed = two_cores();
    let list = allowed.join(",");
    let mut process = start(&daemon, &format!("--cores {list}"), allowed.len());
    let cores: Vec<_> = running(&daemon).into_iter().filter_map(|info| info.cores).collect();
    assert_eq!(cores, allowed);
    let top = daemon.uvala(&["nf", "list", "valenf", "--json"]);
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&top.stdout).unwrap();
    assert_eq!(rows[0]["cores"], *allowed[0], "{rows:?}");
    process.signal(Signal::TERM);
    assert_eq!(outcome(process.wait()), 0);
    let ports = daemon.ports();
    let run = "nf run bypass valenf:g --service s0";
    for (more, says) in [
        ("--cores 1023", "no core 1023"),
        ("--cores 1-0", "0,2-3"),
        ("--cores 0,0", "twice"),
        ("--cores 0 --threads 2", "2 threads and 1 cores"),
        ("--threads 0", "--threads"),
    ] {
        let output = daemon.uvala(&format!("{run} {more}").split(' ').collect::<Vec<_>>());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(says), "{more}: {said}");
    }
    let (_, said) = refused(&daemon, &format!("{run} --threads 65"));
    assert!(said.contains("64 instances, the limit"), "{said}");
    let (_, said) = refused(&daemon, &format!("{run} --threads 2 --instance 65535"));
    assert!(said.contains("65535"), "{said}");
    assert_eq!(daemon.ports(), ports, "nothing stays");
}

/// The first two cores that this process may use, as the kernel lists those of a thread on one.
fn two_cores() -> Vec<String> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    let all = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core));
    all.take(2).map(|core| core.to_string()).collect()
}

#[test]
fn a_port_that_another_has_ends_all_and_is_named() {
    let daemon = daemon();
    let taken = daemon.open("valenf:f0_1");
    let (status, said) = refused(&daemon, "nf run bypass valenf:f0 --service s0 --threads 2");
    assert!(status == 6 && said.contains("thread 1, at valenf:f0_1"), "{status}: {said}");
    assert!(running(&daemon).is_empty());
    drop(taken);
    let _runs = start(&daemon, "--threads 1", 1);
}

#[test]
fn functions_that_can_have_one_instance_only_say_why() {
    let daemon = daemon();
    let place = Scratch::new("functions_threads");
    let (nat, limiter) = (place.path().join("nat.toml"), place.path().join("limiter.toml"));
    std::fs::write(&nat, "inside = [\"10.0.1.0/24\"]\noutside = [\"10.0.2.1\"]\n").unwrap();
    std::fs::write(&limiter, "[[limit]]\nframes_per_s = 1\nper = \"src\"\n").unwrap();
    let (nat, limiter) = (nat.display(), limiter.display());
    let two = |function: &str| format!("nf run {function} --threads 2");
    let (status, said) = refused(&daemon, &two(&format!("nat valenf:n -c {nat}")));
    assert!(status == 12 && said.contains("one port to two hosts"), "{said}");
    let (status, said) = refused(&daemon, &two(&format!("limiter valenf:l -c {limiter}")));
    assert!(status == 12 && said.contains("limit 1"), "{said}");
    // Nor do two that share a thread know each other.
    let with = format!("nf run nat valenf:n -c {nat} --with nat valenf:m {nat}");
    let (status, said) = refused(&daemon, &with);
    assert!(status == 12 && said.contains("take another service for valenf:m"), "{said}");
    let run = format!("nf run nat valenf:n -c {nat}");
    let mut first = Owned::spawn(&mut command(&daemon, &run));
    wait::until("the first", || running(&daemon).len() == 1);
    let (status, said) = refused(&daemon, &format!("nf run nat valenf:m --service nat -c {nat}"));
    assert!(status == 12 && said.contains("end the one at valenf:n first"), "{said}");
    first.kill();
    wait::until("its end", || running(&daemon).is_empty());
    let again = format!("nf run nat valenf:m --service nat -T 1 -c {nat}");
    assert!(Owned::spawn(&mut command(&daemon, &again)).wait().success());
}

/// What both see before they attach is an empty service: the daemon decides.
#[test]
fn of_two_that_start_at_one_moment_one_runs() {
    let daemon = daemon();
    let place = Scratch::new("functions_moment");
    let nat = place.path().join("nat.toml");
    std::fs::write(&nat, "inside = [\"10.0.1.0/24\"]\noutside = [\"10.0.2.1\"]\n").unwrap();
    let run = |port: &str| format!("nf run nat valenf:{port} --service nat -c {}", nat.display());
    for round in 0..5 {
        let mut both = ["n", "m"].map(|port| Owned::spawn(&mut command(&daemon, &run(port))));
        wait::until("the end of one", || both.iter_mut().any(Owned::has_ended));
        wait::until("the other", || running(&daemon).len() == 1);
        let [first, second] = &mut both;
        let (ended, other) = if first.has_ended() { (first, second) } else { (second, first) };
        // The daemon, or the program itself, which looked when the other was there already.
        let status = outcome(ended.wait());
        assert!([6, 12].contains(&status), "round {round}: {status}");
        assert!(!other.has_ended(), "round {round}");
        assert_eq!(functions(&daemon).len(), 2, "a refused function leaves no port");
        let port = running(&daemon).remove(0).port.to_string();
        other.signal(Signal::TERM);
        assert_eq!(outcome(other.wait()), 0);
        assert!(daemon.uvala(&["port", "del", &port]).status.success());
    }
}

/// As functions of the host are for a daemon in a container: the kernel gives them no number there.
#[test]
fn processes_of_another_pid_namespace_are_told_apart_and_threads_of_one_are_not() {
    if !is_root() {
        return skip("needs root, for a PID namespace");
    }
    let place = Scratch::new("pids");
    let (dir, config) = (place.path().join("run"), place.path().join("uvala.toml"));
    let second = "[switch.valenf.port.f1]\nservice = \"s0\"\n";
    std::fs::write(&config, configuration(1) + second).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(uvala_path());
    command.args(["daemon", "-c"]).arg(&config).arg("--dir").arg(&dir).stdin(Stdio::null());
    let _daemon = Owned::spawn(&mut command);
    let open = |port: &str| client::Options::new().dir(&dir).alone(true).open(port);
    let _first = wait::find("the daemon", || open("valenf:f0").ok());
    // Another connection of this process.
    drop(open("valenf:f1").unwrap());
    let mut other = Command::new(uvala_path());
    other.arg("--dir").arg(&dir).args(["nf", "run", "bypass", "valenf:f1"]);
    let mut other = Owned::spawn(other.stdin(Stdio::null()).stderr(Stdio::piped()));
    let status = other.wait();
    let mut said = String::new();
    other.stderr().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(protocol::exit::IN_USE.into()), "{said}");
    assert!(said.contains("runs at valenf:f0 of service s0"), "{said}");
}

#[test]
fn nobody_joins_a_function_that_has_to_be_alone_also_after_a_restart() {
    let mut daemon = daemon();
    let place = Scratch::new("functions_joins");
    let nat = place.path().join("nat.toml");
    std::fs::write(&nat, "inside = [\"10.0.1.0/24\"]\noutside = [\"10.0.2.1\"]\n").unwrap();
    let run = format!("nf run nat valenf:n --service nat -c {}", nat.display());
    let _nat = Owned::spawn(&mut command(&daemon, &run));
    wait::until("the NAT", || running(&daemon).len() == 1);
    let joins = "nf run bypass valenf:b --service nat";
    for _ in 0..2 {
        let (status, said) = refused(&daemon, joins);
        assert_eq!(status, 6, "{said}");
        assert!(said.contains("runs at valenf:n of service nat and allows one instance"), "{said}");
        daemon.kill();
        daemon.restart();
        wait::until("the NAT again", || running(&daemon).len() == 1);
    }
    // Nor may a program that does not ask first.
    assert!(daemon.uvala(&["port", "add", "valenf:x", "--service", "nat"]).status.success());
    let error = daemon.options().open("valenf:x").unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InUse));
    // Programs of the library ask for it themselves, and have several ports.
    assert!(daemon.uvala(&["port", "add", "valenf:y", "--service", "s0"]).status.success());
    let _ports = ["valenf:f0", "valenf:y"].map(|port| daemon.options().alone(true).open(port));
    let (status, said) = refused(&daemon, "nf run bypass valenf:z --service s0");
    assert!(status == 6 && said.contains("of service s0 and allows one instance"), "{said}");
}

/// The router's station; that of the host behind `valenf:b`, which answers for 10.0.2.2.
const ROUTER: [u8; 6] = [0x02, 0x75, 0x76, 0x61, 0x6c, 0x01];
const HOST: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

/// An UDP packet of a flow, from 10.0.1.2 to 10.0.2.2.
fn packet(flow: u8) -> Vec<u8> {
    let udp = build::udp(flow.into(), 9, &[0; 18]);
    let ip = build::ipv4(17, [10, 0, 1, 2].into(), [10, 0, 2, 2].into(), &udp);
    build::ethernet(ROUTER, [2, 0, 0, 0, 0, 0xa], 0x0800, &ip)
}

/// The answer to a question that is about 10.0.2.2.
fn answer(question: &[u8]) -> Option<Vec<u8>> {
    let asks = question[12..14] == [8, 6] && question[38..42] == [10, 0, 2, 2];
    let head = [0, 1, 8, 0, 6, 4, 0, 2];
    let packet = || [&head[..], &HOST, &[10, 0, 2, 2], &question[22..32], &[0; 18]].concat();
    asks.then(|| [&ROUTER[..], &HOST, &[8, 6], &packet()].concat())
}

#[test]
fn routers_in_threads_tell_each_other_where_neighbours_are() {
    let daemon = daemon();
    assert!(daemon.uvala(&["port", "set", "valenf:b", "--chain", "c"]).status.success());
    let place = Scratch::new("functions_threads_router");
    let file = place.path().join("router.toml");
    let interface = |net: u8| format!("[[interface]]\naddress = \"10.0.{net}.1/24\"\n");
    std::fs::write(&file, interface(1) + &interface(2)).unwrap();
    let words = format!("nf run router valenf:f0 --service s0 --threads 2 -c {}", file.display());
    let mut process = Owned::spawn(&mut command(&daemon, &words));
    wait::until("both", || running(&daemon).len() == 2);
    let (mut a, mut b) = (daemon.open("valenf:a"), daemon.open("valenf:b"));
    let (mut got, mut left) = (Vec::new(), (0..40).collect::<Vec<u8>>());
    wait::until("packets of all flows", || {
        left.iter().for_each(|flow| a.send(&packet(*flow)).unwrap());
        for _ in 0..100 {
            if !b.recv_timeout(&mut got, Some(Duration::from_millis(50))).unwrap() {
                break;
            }
            if let Some(answer) = answer(&got) {
                b.send(&answer).unwrap();
            } else if got[..6] == HOST {
                left.retain(|flow| *flow != got[35]);
            }
        }
        left.is_empty()
    });
    assert!(running(&daemon).iter().all(|info| info.frames_in > 5), "{:?}", running(&daemon));
    let (status, said) = refused(&daemon, &words.replace(":f0", ":g").replace(" --threads 2", ""));
    assert!(status == 12 && said.contains("end the one at valenf:f0 first"), "{said}");
    process.signal(Signal::TERM);
    assert_eq!(outcome(process.wait()), 0);
}

#[test]
fn threads_without_a_daemon_wait_for_the_next_one_and_can_be_stopped() {
    let mut daemon = daemon();
    let mut process = start(&daemon, "--threads 2", 2);
    daemon.kill();
    daemon.restart();
    wait::until("both again", || {
        running(&daemon).iter().filter(|f| f.thread.is_some()).count() == 2
    });
    daemon.kill();
    process.signal(Signal::TERM);
    assert_eq!(outcome(process.wait()), 0);
}

/// Signals that threads of this process with this name block.
fn blocked(name: &str) -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let read = |task: std::io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let value = |key| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let mask = u64::from_str_radix(value("SigBlk:")?, 16).unwrap();
        (value("Name:") == Some(name)).then_some(mask)
    };
    tasks.filter_map(read).collect()
}

#[test]
fn numbers_are_told_by_a_thread_that_takes_no_signal_and_ends_with_the_function() {
    const THREAD: &str = "uvala-numbers";
    let daemon = daemon();
    let port = daemon.open("valenf:f0");
    let mut shown = MetricsReport::of(&port);
    assert!(blocked(THREAD).is_empty(), "there is nothing to tell");
    assert!(!shown.update(|numbers| numbers.put("no name", Metric::Count(1))).unwrap());
    assert!(shown.update(|numbers| numbers.put("frames", Metric::Gauge(1))).unwrap());
    assert!(shown.update(|numbers| numbers.put("frames", Metric::Count(u64::MAX))).unwrap());
    wait::until("its number", || {
        let seen = functions(&daemon).remove(0);
        seen.counts == [("frames".to_owned(), u64::MAX)].into() && seen.gauges.is_empty()
    });
    // KILL and STOP cannot be blocked, and two are the C library's own.
    let those = [Signal::HUP, Signal::INT, Signal::USR1, Signal::TERM, Signal::CHILD];
    let wanted = those.iter().fold(0, |mask, signal| mask | 1 << (signal.as_raw() - 1));
    let masks = blocked(THREAD);
    assert!(masks.len() == 1 && masks[0] & wanted == wanted, "{masks:x?}");
    drop(shown);
    wait::until("its end", || blocked(THREAD).is_empty());
}

/// The library alone, without the command line.
#[test]
fn a_program_stops_its_threads_and_hears_why_they_end() {
    let mut daemon = daemon();
    let pass = |_| |_: &mut Frame<'_>, _: &mut Generated| Action::Next;
    let threads = Threads::new("valenf:f0".parse().unwrap()).count(2).service("s0", 0);
    let threads = threads.options(daemon.options().group("nf"));
    let stop = client::Stop::new().unwrap();
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| threads.run(&stop, pass));
        wait::until("both", || running(&daemon).len() == 2);
        flows_pass(&mut daemon.open("valenf:a"), &mut daemon.open("valenf:b"), 50);
        stop.stop();
        runs.join().unwrap().unwrap();
    });
    wait::until("their end", || running(&daemon).is_empty());
    // One that panics takes the others along, and the caller.
    let stop = client::Stop::new().unwrap();
    let broken = |thread| {
        assert_eq!(thread, 0, "on purpose");
        |_: &mut Frame<'_>, _: &mut Generated| Action::Next
    };
    let caught = std::panic::catch_unwind(|| threads.run(&stop, broken));
    assert!(caught.is_err() && stop.is_said());
    wait::until("their end", || running(&daemon).is_empty());
    // A lost daemon is an error for a function that did not ask to reconnect.
    let stop = client::Stop::new().unwrap();
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| threads.run(&stop, pass));
        wait::until("both", || running(&daemon).len() == 2);
        daemon.kill();
        let failed = runs.join().unwrap().unwrap_err().to_string();
        assert!(failed.starts_with("thread ") && failed.contains("at valenf:f0"), "{failed}");
    });
}

#[test]
fn several_functions_share_a_thread_and_end_together() {
    let daemon = Setup::new(&configuration(3)).start();
    let with = "--with bypass valenf:f1 - --with bypass valenf:f2 -";
    let mut process =
        Owned::spawn(&mut command(&daemon, &format!("nf run bypass valenf:f0 {with}")));
    wait::until("all three", || running(&daemon).len() == 3);
    let seen = running(&daemon);
    assert!(seen.iter().all(|info| (info.pid, info.thread) == (seen[0].pid, seen[0].thread)));
    let (mut a, mut b) = (
        daemon.options().group("nf").open("valenf:a").unwrap(),
        daemon.options().group("nf").open("valenf:b").unwrap(),
    );
    flows_pass(&mut a, &mut b, 100);
    let seen: Vec<_> = running(&daemon).iter().map(|f| (f.called_in, f.called_out)).collect();
    assert_eq!(seen, [(0, 0), (100, 100), (100, 100)]);
    wait::until("it to sleep", || running(&daemon).iter().all(sleeps));
    // It wakes for a frame of any of them: a rule sends these to the last.
    assert!(daemon.uvala(&["chain", "add", "valenf", "last", "s2"]).status.success());
    assert!(daemon.uvala(&["rule", "add", "valenf", "chain:last", "--in", "a"]).status.success());
    flows_pass(&mut a, &mut b, 10);
    assert_eq!(daemon.stats("valenf:f2").rx.frames, 10);
    process.signal(Signal::TERM);
    assert!(process.wait().success());
    wait::until("all to go", || running(&daemon).is_empty());
}

#[test]
fn what_cannot_share_a_thread_is_refused_and_nothing_is_left() {
    let daemon = Setup::new("[switch.valenf]\nforwarding = \"chain\"\n").start();
    for (words, code, why) in [
        ("valenf:x --threads 2 --with bypass valenf:y -", 2, "one instance each"),
        ("valenf:x --with nothing valenf:y -", 2, "no such function"),
        ("valenf:x --with bypass valenf -", 10, "valenf"),
        ("valenf:x --with bypass valenf:y /no/such/file", 9, "/no/such/file"),
        ("valenf:x --with bypass valenf:x -", 2, "valenf:x"),
        ("valenf:x --with bypass valeno:y -", 5, "valeno"),
    ] {
        let (status, said) = refused(&daemon, &format!("nf run bypass {words}"));
        assert!(status == code && said.contains(why), "{words}: {status} {said}");
        assert!(functions(&daemon).is_empty(), "{words}");
    }
}
