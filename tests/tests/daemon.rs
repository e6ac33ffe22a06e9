//! The daemon's life: start, refusals, end, other users, and what it costs when nothing happens.

use std::os::unix::fs::chown;
use std::process::{Command, Stdio};
use std::time::Duration;

use client::control::Connection;
use client::{Error, Port};
use harness::daemon::{Daemon, Setup, launch};
use harness::frames::{BROADCAST, Tally, fill};
use harness::measure::{own_memory, switches};
use harness::process::{OTHER_USER, Owned, Peer, Scratch, USER, outcome, uvala, uvala_path};
use harness::role::{At, Become, Report, Role};
use harness::{is_root, skip, wait};
use protocol::paths;
use protocol::{ErrorCode, Request, SwitchRequest, SwitchSettings, SwitchSpec, exit};
use rustix::process::Signal;

const SOON: Option<Duration> = Some(wait::PATIENCE);

#[test]
fn sigterm_ends_it_in_good_order() {
    let mut daemon = Daemon::start();
    let mut receiver = daemon.open("vale0:b");
    let mut sender = daemon.open("vale0:a");
    let (mut frame, mut scratch, mut tally) = (Vec::new(), Vec::new(), Tally::default());
    for seq in 0..500 {
        fill(&mut frame, BROADCAST, 1, seq, 60);
        assert!(sender.try_send(&frame).unwrap());
    }
    daemon.terminate();
    assert_eq!(outcome(daemon.process().wait()), 0);
    assert!(!daemon.dir().join(paths::SOCKET_NAME).exists());
    // What was handed over before the end has arrived, then comes the news.
    let lost = loop {
        match receiver.recv_timeout(&mut frame, SOON) {
            Ok(true) => drop(tally.count(&frame, &mut scratch)),
            other => break other,
        }
    };
    assert!(matches!(lost, Err(Error::Lost(_))), "{lost:?}");
    tally.assert_whole(1, 500);
}

#[test]
fn sigterm_ends_it_under_load() {
    let mut daemon = Daemon::start();
    let _receiver = daemon.open("vale0:b");
    let (at, lens) = (daemon.at("vale0:a"), vec![60]);
    let send = harness::role::Send { at, stream: 1, to: BROADCAST, count: None, lens, batch: 64 };
    let sender = Peer::start(&Role::Send(send));
    daemon.terminate();
    assert_eq!(outcome(daemon.process().wait()), 0);
    assert!(matches!(sender.report(), Report::Failed { exit: exit::NO_DAEMON, .. }));
}

#[test]
fn sighup_is_noted_and_ends_nothing() {
    let daemon = Daemon::start();
    let _port = daemon.open("vale0:a");
    daemon.signal(Signal::HUP);
    wait::until("a line in the log", || daemon.log().contains("SIGHUP"));
    assert_eq!(daemon.ports(), ["vale0:a"]);
}

#[test]
fn workers_that_cannot_start_are_reported_with_what_to_do() {
    let run = |limits: Become, args: &[&str]| {
        let place = Scratch::new("workers");
        let dir = ["daemon", "--dir", place.path().to_str().unwrap()];
        let output = uvala(limits, &[&dir, args].concat(), None).output().unwrap();
        assert!(!place.path().join(paths::SOCKET_NAME).exists());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let few = Become { descriptors: Some(60), ..Become::default() };
    let (code, message) = run(few, &["--workers", "64"]);
    assert_eq!(code, Some(i32::from(exit::NO_MEMORY)), "{message}");
    assert!(message.contains("cannot start 64 workers"), "{message}");
    for cpu in ["5000", "1023"] {
        let (code, message) = run(Become::default(), &["--cpu", cpu]);
        assert_eq!(code, Some(i32::from(exit::BAD_CONFIG)), "{message}");
        assert!(message.contains(&format!("CPU {cpu} of --cpu")), "{message}");
        assert!(message.contains("the daemon may use CPUs 0"), "{message}");
    }
}

#[test]
fn a_second_daemon_is_refused() {
    let daemon = Daemon::start();
    let output = daemon.uvala(&["daemon"]);
    assert_eq!(output.status.code(), Some(i32::from(exit::EXISTS)));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains(&format!("process {}", daemon.pid())), "{message}");
    assert!(daemon.ports().is_empty(), "the first goes on");
}

#[test]
fn a_stale_socket_is_replaced() {
    let mut daemon = Daemon::start();
    daemon.kill();
    assert!(daemon.dir().join(paths::SOCKET_NAME).exists());
    daemon.restart();
    drop(daemon.open("vale0:a"));
}

/// A daemon that writes its log there, with at most this many descriptors.
fn daemon_with_log(place: &Scratch, log: Stdio, descriptors: Option<u64>) -> Owned {
    let limits = Become { descriptors, ..Become::default() };
    let mut daemon = launch(place.path(), &[], limits, log);
    wait::until("the daemon's first answer", || {
        assert!(!daemon.has_ended(), "it ended");
        Connection::open(Some(place.path())).is_ok_and(|call| call.hello("test").is_ok())
    });
    daemon
}

#[test]
fn a_log_that_takes_nothing_does_not_stop_it() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let place = Scratch::new("full");
    let mut daemon = daemon_with_log(&place, full.into(), None);
    daemon.signal(Signal::TERM);
    assert_eq!(outcome(daemon.wait()), 0);

    // The reader is gone when the daemon logs most.
    let (reader, writer) = std::io::pipe().unwrap();
    let place = Scratch::new("deaf");
    let mut daemon = daemon_with_log(&place, writer.into(), Some(40));
    drop(reader);
    let many: Vec<_> = (0..60).map(|_| harness::socket::connect(place.path())).collect();
    std::thread::sleep(Duration::from_millis(300));
    drop(many);
    wait::until("an answer after the crowd", || {
        assert!(!daemon.has_ended(), "it ended");
        Connection::open(Some(place.path())).is_ok_and(|call| call.hello("test").is_ok())
    });
}

#[test]
fn a_lack_of_descriptors_is_reported_once_in_a_while() {
    let daemon = Setup::new("").descriptors(40).start();
    let many: Vec<_> = (0..60).map(|_| harness::socket::connect(&daemon.dir())).collect();
    std::thread::sleep(Duration::from_secs(1));
    drop(many);
    let said = daemon.log().lines().filter(|line| line.contains("no descriptors")).count();
    assert_eq!(said, 1, "{}", daemon.log());
}

/// Runs a daemon with a configuration that is wrong; returns what it says.
fn wrong_config(config: &str) -> String {
    let place = Scratch::new("config");
    let file = place.path().join("uvala.toml");
    std::fs::write(&file, config).unwrap();
    let args = ["daemon", "-c", file.to_str().unwrap(), "--dir", place.path().to_str().unwrap()];
    let output = uvala(Become::default(), &args, None).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(i32::from(exit::BAD_CONFIG)), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

#[test]
fn a_typing_error_in_the_configuration_is_named_with_its_line() {
    let message = wrong_config("log = \"warn\"\n\n[workers]\ncuont = 2\n");
    assert!(message.contains("cuont") && message.contains('4'), "{message}");
    let message = wrong_config("[switch.vale0]\nforwarding = \"lerning\"\n");
    assert!(message.contains("lerning"), "{message}");
    let message = wrong_config("[switch.vale0.port.\"a{1\"]\n");
    assert!(message.contains("vale0:a{1 is the end of a pipe"), "{message}");
    let message = wrong_config("[quota]\nmemory = \"10 apples\"\n");
    assert!(message.contains("apples"), "{message}");
}

#[test]
fn no_daemon_is_an_exit_status_and_a_hint() {
    let place = Scratch::new("nobody");
    let dir = place.path().to_str().unwrap();
    for args in [["port", "list"], ["switch", "list"], ["stats", "--json"]] {
        let args = [&args[..], &["--dir", dir]].concat();
        let output = uvala(Become::default(), &args, None).output().unwrap();
        assert_eq!(output.status.code(), Some(i32::from(exit::NO_DAEMON)));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("start one with: uvala daemon"), "{message}");
    }
    let refused = client::Options::new().dir(place.path()).open("vale0:a").unwrap_err();
    assert_eq!(refused.exit_code(), exit::NO_DAEMON);
}

#[test]
fn it_runs_for_an_ordinary_user_in_their_runtime_directory() {
    let place = Scratch::new("runtime");
    let user = is_root().then_some(USER);
    if let Some(user) = user {
        chown(place.path(), Some(user), Some(user)).unwrap();
    }
    let run = |args: &[&str]| {
        let mut command = uvala(Become::default(), args, user);
        command.env("XDG_RUNTIME_DIR", place.path()).env_remove("UVALA_DIR");
        command
    };
    let _daemon = Owned::spawn(run(&["daemon", "--log", "error"]).stdin(Stdio::null()));
    let socket = place.path().join("uvala").join(paths::SOCKET_NAME);
    wait::until("the socket", || socket.exists());
    let at = At { dir: socket.parent().unwrap().into(), port: "vale0:a".into(), ..At::default() };
    let mut peer = Peer::launch(&Role::Hold(at), user);
    assert_eq!(peer.report(), Report::Ready);
    let output = run(&["port", "list", "--json"]).output().unwrap();
    let listing = String::from_utf8(output.stdout).unwrap();
    assert!(listing.contains("vale0:a"), "{listing}");
    peer.finish();
    assert_eq!(outcome(peer.process().wait()), 0);
}

/// Attaches as another user; returns the exit status of the refusal, if it is one.
fn attach_as(daemon: &Daemon, port: &str, user: u32) -> Option<u8> {
    match Peer::launch(&Role::Hold(daemon.at(port)), Some(user)).report() {
        Report::Ready => None,
        Report::Failed { exit, .. } => Some(exit),
        other => panic!("{other:?}"),
    }
}

#[test]
fn owner_group_and_mode_decide_who_may_attach() {
    if !is_root() {
        return skip("only root can be several users");
    }
    let daemon = Setup::new(&format!(
        "[socket]\nmode = \"666\"\n\
         [switch.vale0]\nowner = \"{USER}\"\ngroup = \"{OTHER_USER}\"\nmode = \"600\"\n"
    ))
    .start();
    assert_eq!(attach_as(&daemon, "vale0:a", USER), None);
    assert_eq!(attach_as(&daemon, "vale0:b", OTHER_USER), Some(exit::PERMISSION));
    let set_mode = |mode: u16| {
        let mode = protocol::Mode::new(mode);
        let settings = SwitchSettings { mode, ..SwitchSettings::default() };
        let set = SwitchSpec { switch: "vale0".parse().unwrap(), settings };
        daemon.call(Request::Switch(SwitchRequest::Set(set))).unwrap();
    };
    set_mode(0o660);
    assert_eq!(attach_as(&daemon, "vale0:b", OTHER_USER), None);
    set_mode(0o606);
    assert_eq!(attach_as(&daemon, "vale0:b", OTHER_USER), Some(exit::PERMISSION));
    set_mode(0o000);
    assert_eq!(attach_as(&daemon, "vale0:a", USER), Some(exit::PERMISSION));
}

/// On a switch that all users may attach to, a user gets the ports that were granted and no others,
/// also from the next daemon.
#[test]
fn ports_that_were_given_and_a_closed_switch_hold_users_to_their_vlans() {
    if !is_root() {
        return skip("only root can be several users");
    }
    let mut daemon = Setup::new(&format!(
        "[socket]\nmode = \"666\"\n[switch.vale0]\nmode = \"666\"\nnew_ports = \"owner\"\n\
         [switch.vale0.port.web]\nvlan = \"access:10\"\nowner = \"{USER}\"\n\
         [switch.vale0.port.uplink]\nvlan = \"trunk:all\"\n"
    ))
    .start();
    let other = OTHER_USER.to_string();
    let add = ["port", "add", "vale0:db", "--vlan", "access:20", "--owner", &other];
    assert!(daemon.uvala(&add).status.success());
    for _ in 0..2 {
        for (port, user) in [("vale0:web", USER), ("vale0:db", OTHER_USER)] {
            let other = USER + OTHER_USER - user;
            assert_eq!(attach_as(&daemon, port, user), None, "{port}");
            assert_eq!(attach_as(&daemon, port, other), Some(exit::PERMISSION), "{port}");
        }
        for port in ["vale0:uplink", "vale0:anything", "vale0:anything{1"] {
            assert_eq!(attach_as(&daemon, port, USER), Some(exit::PERMISSION), "{port}");
        }
        daemon.restart();
    }
}

#[test]
fn a_daemon_in_the_background_leaves_the_callers_stderr_alone() {
    let place = Scratch::new("background");
    let dir = place.path().join("run");
    let dir = dir.to_str().unwrap();
    let args = ["daemon", "--background", "--dir", dir, "--log", "info"];
    // Ends when the last process closes the pipes that it reads.
    let output = uvala(Become::default(), &args, None).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = format!("{dir}/uvala.log");
    let pid = std::fs::read_to_string(format!("{dir}/uvala.lock")).unwrap();
    let process = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(process, Signal::TERM).unwrap();
    assert!(output.status.success() && said.contains(&log), "{said}");
    wait::until("the daemon's last word", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("stopping"))
    });
    // The error goes to the stderr of the command that starts it.
    let args = ["daemon", "--background", "--dir", "/dev/null"];
    let output = uvala(Become::default(), &args, None).stdin(Stdio::null()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("/dev/null"), "{output:?}");
}

/// The variables of an environment.
fn sorted(environ: &[u8]) -> Vec<&[u8]> {
    let mut all: Vec<_> = environ.split(|&byte| byte == 0).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_daemon_is_upgraded_to_one_with_the_same_options_and_directory() {
    let place = Scratch::new("upgrade");
    let dir = place.path().join("run");
    let config = place.path().join("uvala.toml");
    std::fs::write(&config, "[switch.vale7]\n").unwrap();
    let run = |args: &[&str]| {
        let args = [&["--dir", dir.to_str().unwrap()], args].concat();
        uvala(Become::default(), &args, None).stdin(Stdio::null()).output().unwrap()
    };
    let args = ["daemon", "--dir", "run", "-c", "uvala.toml", "--background", "--forget"];
    let mut first = uvala(Become::default(), &args, None);
    let first = first.current_dir(place.path()).stdin(Stdio::null()).output().unwrap();
    assert!(first.status.success(), "{first:?}");
    let pid = || -> i32 {
        let text = std::fs::read_to_string(dir.join("uvala.lock")).unwrap();
        text.trim().parse().unwrap()
    };
    let old = pid();
    assert!(run(&["port", "add", "vale7:kept"]).status.success());
    let environ = |pid: i32| std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let before = environ(old);
    let mut upgrade = uvala(Become::default(), &["--dir", "run", "upgrade"], None);
    upgrade.current_dir(place.path()).env("UVALA_OTHER", "1").stdin(Stdio::null());
    let said = upgrade.output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let new = pid();
    assert_ne!(new, old);
    assert_eq!(sorted(&environ(new)), sorted(&before));
    let list = run(&["port", "list", "--json"]);
    assert!(String::from_utf8_lossy(&list.stdout).contains("vale7:kept"), "nothing is forgotten");
    let words = std::fs::read(format!("/proc/{new}/cmdline")).unwrap();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    let expected = "daemon --dir run -c uvala.toml --log-file run/uvala.log --replace ";
    assert!(words.ends_with(expected), "{words}");
    // One that cannot start changes nothing.
    std::fs::write(&config, "wrong = 1\n").unwrap();
    let refused = run(&["upgrade"]);
    assert_eq!(refused.status.code(), Some(exit::BAD_CONFIG.into()), "{refused:?}");
    assert_eq!(pid(), new);
    let process = rustix::process::Pid::from_raw(new).unwrap();
    rustix::process::kill_process(process, Signal::TERM).unwrap();
    wait::until("its end", || !std::fs::exists(dir.join("uvala.sock")).unwrap());
    assert_eq!(run(&["upgrade"]).status.code(), Some(exit::NO_DAEMON.into()));
}

#[test]
fn strangers_neither_see_nor_change_what_is_not_theirs() {
    if !is_root() {
        return skip("only root can be several users");
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
    let _ours = daemon.open("vale0:a");
    let as_other = |args: &[&str]| daemon.uvala_as(args, Some(USER));
    let list = String::from_utf8(as_other(&["port", "list", "--json"]).stdout).unwrap();
    assert_eq!(list.trim(), "[]");
    for args in
        [["port", "del", "vale0:a"], ["switch", "del", "vale0"], ["port", "show", "vale0:a"]]
    {
        let output = as_other(&args);
        assert_eq!(output.status.code(), Some(i32::from(exit::PERMISSION)), "{args:?}");
    }
    assert_eq!(daemon.ports(), ["vale0:a"]);
    // A switch of their own is theirs.
    assert_eq!(attach_as(&daemon, "vale1:x", USER), None);
    assert_eq!(attach_as(&daemon, "vale0:x", USER), Some(exit::PERMISSION));
}

#[test]
fn a_closed_socket_keeps_strangers_out() {
    if !is_root() {
        return skip("only root can be several users");
    }
    let daemon = Daemon::start();
    assert_eq!(attach_as(&daemon, "vale0:a", USER), Some(exit::PERMISSION));
}

#[test]
fn a_pipe_is_for_one_user_and_groups_of_several_do_not_meet() {
    if !is_root() {
        return skip("only root can be several users");
    }
    let config = "[socket]\nmode = \"666\"\n[switch.vale0]\nmode = \"666\"\n";
    let daemon = Setup::new(config).start();
    let _master = daemon.open("vale0:p{1");
    let _member = daemon.options().group("ours").open("vale0:m").unwrap();
    assert_eq!(attach_as(&daemon, "vale0:p}1", USER), Some(exit::PERMISSION));
    let mut at = daemon.at("vale0:n");
    at.group = Some("ours".to_owned());
    let theirs = Peer::launch(&Role::Hold(at), Some(USER));
    assert_eq!(theirs.report(), Report::Ready);
    let bytes = |port: &str| daemon.port(port).unwrap().memory;
    assert_eq!(bytes("vale0:m"), bytes("vale0:n"));
}

/// The time that the longest of many calls takes until `over`.
fn longest_call(daemon: &Daemon, over: impl Fn() -> bool) -> Duration {
    let mut longest = Duration::ZERO;
    while !over() {
        let start = std::time::Instant::now();
        drop(daemon.ports());
        longest = longest.max(start.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    longest
}

#[test]
fn memory_that_one_asks_for_keeps_nobody_waiting() {
    let daemon = Daemon::start();
    let before = daemon.holdings();
    let large = || daemon.options().extra_bufs(200_000).open("vale0:large").unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
    let (made, longest) = std::thread::scope(|scope| {
        let making = scope.spawn(|| {
            let start = std::time::Instant::now();
            let port = large();
            let made = start.elapsed();
            drop(daemon.open("vale0:small"));
            drop(port);
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            made
        });
        let longest = longest_call(&daemon, is_over);
        (making.join().unwrap(), longest)
    });
    assert!(longest < made / 4, "a call took {longest:?}, the port {made:?}");

    // A client that is gone before it has its port leaves nothing behind.
    let at = At { extra_bufs: Some(200_000), ..daemon.at("vale0:large") };
    let mut peer = Peer::launch(&Role::Hold(at), None);
    wait::until("the port's name", || daemon.port("vale0:large").is_some());
    peer.process().kill();
    wait::until("the end of the port", || daemon.ports().is_empty());
    daemon.assert_holds(before);
}

#[test]
fn ten_idle_ports_cost_next_to_nothing() {
    /// Nothing but the passing of time is what this test is about.
    const IDLE: Duration = Duration::from_secs(1);
    let daemon = Daemon::start();
    let ports: Vec<Port> = (0..10).map(|i| daemon.open(&format!("vale0:p{i}"))).collect();
    // Everything has come to rest when a frame has been everywhere and nothing moves any more.
    let mut ports = ports.into_iter();
    let (mut first, mut others) = (ports.next().unwrap(), ports.collect::<Vec<_>>());
    let mut frame = Vec::new();
    fill(&mut frame, BROADCAST, 1, 0, 60);
    first.send(&frame).unwrap();
    for port in &mut others {
        assert!(port.recv_timeout(&mut frame, SOON).unwrap());
    }
    wait::until("rest", || {
        let before = switches(daemon.pid());
        std::thread::sleep(IDLE);
        switches(daemon.pid()) == before
    });
    let memory = own_memory(daemon.pid());
    assert!(memory < 30 << 20, "{memory} bytes beside the memory of ports");
    for i in 0..10 {
        let port = daemon.port(&format!("vale0:p{i}")).unwrap();
        assert!(port.memory <= 6 << 20, "a default port has {} bytes", port.memory);
    }
}

#[test]
fn a_call_of_another_version_is_refused_with_both_versions() {
    let daemon = Daemon::start();
    let code = raw_call(&daemon, br#"{"v":99,"call":{"hello":{"client":"x"}}}"#);
    assert_eq!(code, ErrorCode::BadRequest);
    assert_eq!(raw_call(&daemon, b"{"), ErrorCode::BadRequest);
    let typo = br#"{"v":1,"call":{"attach":{"port":"vale0:a","slots":9}}}"#;
    assert_eq!(raw_call(&daemon, typo), ErrorCode::BadRequest);
    let name = br#"{"v":1,"call":{"attach":{"port":"eth0"}}}"#;
    assert!(matches!(raw_call(&daemon, name), ErrorCode::BadName | ErrorCode::BadRequest));
    assert!(daemon.ports().is_empty());
}

/// Sends bytes as a message; returns the code of the refusal.
fn raw_call(daemon: &Daemon, message: &[u8]) -> ErrorCode {
    let socket = harness::socket::connect(&daemon.dir());
    let reply = harness::socket::ask(&socket, message).expect("an answer before the end");
    let reply: protocol::ReplyMessage = serde_json::from_slice(&reply).unwrap();
    match reply.result {
        protocol::Outcome::Err(failure) => failure.code,
        protocol::Outcome::Ok(reply) => panic!("{reply:?}"),
    }
}

/// Whatever a client sends, what is logged of it and answered to it stays short and on one line.
#[test]
fn a_long_name_or_value_makes_no_long_line() {
    let daemon = Setup::new("log = \"debug\"\n").start();
    let long = "long\n".repeat(10_000);
    let hello = serde_json::json!({"v": 1, "call": {"hello": {"client": long}}}).to_string();
    let socket = harness::socket::connect(&daemon.dir());
    assert!(harness::socket::ask(&socket, hello.as_bytes()).is_some());
    let settings = serde_json::json!({"vlan": "\u{1}".repeat(10_000)});
    let add = serde_json::json!({"port_add": {"port": "vale0:a", "settings": settings}});
    let add = serde_json::json!({"v": 1, "call": add}).to_string();
    let answer = harness::socket::ask(&socket, add.as_bytes()).unwrap();
    assert!(answer.len() < 8000, "{}", String::from_utf8_lossy(&answer));
    assert!(String::from_utf8_lossy(&answer).contains("bad_request"));
    wait::until("the log", || daemon.log().contains("Hello"));
    let log = daemon.log();
    assert!(log.lines().all(|line| line.len() < 8000), "{log}");
    assert!(!log.contains("\nlong"), "{log}");
}

#[test]
fn the_log_says_who_did_what_and_who_was_refused() {
    let daemon = Setup::new("[socket]\nmode = \"666\"\n[quota]\nports = 1\n").start();
    let port = daemon.options().client("my program").open("vale0:a").unwrap();
    for _ in 0..5 {
        assert!(daemon.options().open("vale0:b").is_err());
    }
    drop(port);
    assert!(daemon.uvala(&["switch", "add", "vale1", "--mode", "620"]).status.success());
    assert!(daemon.uvala(&["switch", "del", "vale1"]).status.success());
    let pid = std::process::id();
    let counted = |text: &str| daemon.log().lines().filter(|line| line.contains(text)).count();
    let me = format!("INFO process {pid} of");
    wait::until("the log", || counted("deleted switch vale1") == 1);
    assert_eq!(counted(&me), 2, "attached and left: {}", daemon.log());
    assert_eq!(counted("(my program) attached vale0:a"), 1);
    assert_eq!(counted("(my program) left vale0:a"), 1);
    assert_eq!(counted(" refused: "), 1, "{}", daemon.log());
    assert_eq!(counted("raise quota.ports"), 1);
    assert_eq!(counted("added switch vale1 with {\"mode\":\"620\"}"), 1);
}

#[test]
fn a_log_in_json_is_an_object_on_each_line() {
    let mut daemon = Setup::new("log_format = \"json\"\n").start();
    drop(daemon.open("vale0:a"));
    daemon.terminate();
    daemon.process().wait();
    let log = daemon.log();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let said = |what: &str| {
        let found = lines.iter().find(|line| line["message"].as_str().unwrap().contains(what));
        found.unwrap_or_else(|| panic!("{what}: {log}"))
    };
    assert_eq!(said("ready")["level"], "info");
    assert!(said("ready")["socket"].as_str().unwrap().ends_with("/uvala.sock"), "{log}");
    assert_eq!(said("attached vale0:a")["thread"], "main");
    assert!(said("stopping")["timestamp"].as_str().unwrap().ends_with('Z'), "{log}");
}

/// As programs of the host are for a daemon in a container: the kernel gives them no number there.
#[test]
fn clients_of_another_pid_namespace_exchange_frames() {
    if !is_root() {
        return skip("needs root, for a PID namespace");
    }
    let place = Scratch::new("pids");
    let dir = place.path().join("run");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(uvala_path());
    let _daemon = Owned::spawn(command.args(["daemon", "--dir"]).arg(&dir).stdin(Stdio::null()));
    let open = |port: &str| client::Options::new().dir(&dir).open(port);
    let mut receiver = None;
    wait::until("the daemon", || {
        receiver = open("vale0:b").ok();
        receiver.is_some()
    });
    let (mut sender, mut receiver) = (open("vale0:a").unwrap(), receiver.unwrap());
    let (mut frame, mut got) = (Vec::new(), Vec::new());
    fill(&mut frame, BROADCAST, 1, 0, 60);
    sender.send(&frame).unwrap();
    assert!(receiver.recv_timeout(&mut got, SOON).unwrap() && got == frame);
}
