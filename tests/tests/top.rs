//! `uvala top` on a real terminal.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, fill, mac};
use harness::process::uvala_path;
use harness::pty::OnTerminal;
use harness::wait;
use rustix::process::Signal;

fn top(daemon: &Daemon, args: &[&str]) -> Command {
    let mut command = Command::new(uvala_path());
    command.arg("--dir").arg(daemon.dir()).arg("top").args(args);
    if !args.contains(&"-d") {
        command.args(["-d", "0.2"]);
    }
    command
}

/// Sends frames between two ports until it is told to stop.
fn send(daemon: &Daemon, is_over: &AtomicBool) {
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    b.send(&announcement(2)).expect("room");
    let (mut frame, mut got) = (Vec::new(), Vec::new());
    fill(&mut frame, mac(2), 1, 0, 100);
    while !is_over.load(Ordering::Relaxed) {
        a.send(&frame).expect("room");
        b.recv(&mut got).expect("it arrives");
        thread::sleep(Duration::from_millis(1));
    }
    // The ports stay, and are idle.
    while is_over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(5));
    }
}

/// The columns of the row of a port.
fn row(text: &str, port: &str) -> Option<Vec<String>> {
    let line = text.lines().find(|line| line.trim_start().starts_with(port))?;
    Some(line.split_whitespace().map(str::to_owned).collect())
}

/// The frames that a port sends in a second, as its row says.
fn tx_pps(text: &str, port: &str) -> Option<String> {
    row(text, port)?.get(1).cloned()
}

#[test]
fn rates_follow_the_traffic_and_keys_sort_filter_and_show_a_port() {
    let daemon = Setup::new("[switch.vale0.port.idle]\nkind = \"null\"\n").start();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| send(&daemon, &is_over));
        wait::until("frames", || daemon.port("vale0:b").is_some());
        let mut top = OnTerminal::start(&top(&daemon, &[]), [80, 24]);
        let sends = |text: &str| tx_pps(text, "vale0:a").is_some_and(|rate| rate != "0");
        let text = top.until("a rate", sends);
        assert!(text.contains("0: ") && text.contains("3 ports"), "{text}");
        is_over.store(true, Ordering::Relaxed);
        let rests = |text: &str| tx_pps(text, "vale0:a").is_some_and(|rate| rate == "0");
        top.until("no rate", rests);
        top.press(">");
        top.until_shown("by PORT, ascending");
        let text = top.until_shown("vale0:idle");
        let at = |port: &str| text.find(port).expect("a row");
        assert!(at("vale0:a ") < at("vale0:b ") && at("vale0:b ") < at("vale0:idle"), "{text}");
        top.press("r");
        top.until("the other order", |text| {
            text.find("vale0:idle") < text.find("vale0:a ") && text.contains("descending")
        });
        top.press("/idle\r");
        top.until("one row", |text| text.contains("vale0:idle") && !text.contains("vale0:a "));
        top.press("\x1b");
        top.until_shown("vale0:a ");
        top.press("r/vale0:a\r");
        top.until("one row", |text| text.contains("vale0:a ") && !text.contains("vale0:b "));
        top.press("\r");
        let text = top.until_shown("frames since start");
        assert!(text.contains("shm, program ") && text.contains("no frame was dropped"), "{text}");
        top.press("\x1b");
        top.until_shown("HISTORY");
        top.resize([200, 60]);
        let text = top
            .until("wide columns", |text| text.contains("PROGRAM") && text.contains(" Workers "));
        assert!(text.contains("no frame was dropped"), "{text}");
        top.press("q");
        assert!(top.process().wait().success());
        wait::until("the terminal", || top.is_given_back());
        is_over.store(false, Ordering::Relaxed);
    });
}

#[test]
fn drops_are_explained_with_what_to_do() {
    let daemon = Daemon::start();
    let mut a = daemon.open("vale0:a");
    let mut top = OnTerminal::start(&top(&daemon, &["--sort", "drops"]), [80, 24]);
    top.until_shown("vale0:a");
    top.press("2");
    // The only port of its switch: a flood reaches no other.
    a.send(&announcement(1)).expect("room");
    let text = top.until_shown("no_destination: The flood reached no other port.");
    assert!(text.contains("Attach another port to the switch."), "{text}");
    top.press("\r");
    top.until("the port that counts them", |text| {
        text.contains("no_destination ") && text.contains("frames since start")
    });
    let once = Command::new(uvala_path())
        .arg("--dir")
        .arg(daemon.dir())
        .args(["top", "--once", "-d", "0.2", "vale0"])
        .output()
        .expect("a program");
    let text = String::from_utf8_lossy(&once.stdout);
    assert!(once.status.success() && text.starts_with("PORT "), "{once:?}");
    assert!(text.contains("no_destination: The flood reached no other port. Attach"), "{text}");
}

#[test]
fn a_daemon_that_ends_is_waited_for() {
    let mut daemon = Setup::new("[switch.vale0.port.sink]\nkind = \"null\"\n").start();
    let mut top = OnTerminal::start(&top(&daemon, &[]), [80, 24]);
    top.until_shown("vale0:sink");
    daemon.kill();
    let text = top.until_shown("NO DAEMON, waiting for it");
    assert!(text.contains("vale0:sink"), "the last rows stay: {text}");
    top.press("?");
    top.until_shown("move the cursor");
    top.press("?");
    daemon.restart();
    top.until("the daemon", |text| !text.contains("NO DAEMON") && text.contains("1 ports"));
    daemon.kill();
    top.until_shown("NO DAEMON");
    top.press("q");
    assert!(top.process().wait().success());
    wait::until("the terminal", || top.is_given_back());
}

#[test]
fn a_daemon_that_is_stopped_is_said_to_be_silent_until_it_goes_on() {
    let daemon = Setup::new("[switch.vale0.port.sink]\nkind = \"null\"\n").start();
    let top = OnTerminal::start(&top(&daemon, &[]), [80, 24]);
    top.until_shown("vale0:sink");
    daemon.signal(Signal::STOP);
    top.until_shown("NO ANSWER from the daemon yet; see: uvala doctor");
    daemon.signal(Signal::CONT);
    top.until("an answer", |text| text.contains("1 ports") && !text.contains("NO ANSWER"));
}

#[test]
fn signals_give_the_terminal_back() {
    let daemon = Daemon::start();
    let _port = daemon.open("vale0:a");
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        let mut top = OnTerminal::start(&top(&daemon, &[]), [80, 24]);
        top.until_shown("vale0:a");
        assert!(!top.is_given_back());
        top.process().signal(signal);
        assert!(top.process().wait().success(), "{signal:?}");
        wait::until("the terminal", || top.is_given_back());
    }
    let mut top = OnTerminal::start(&top(&daemon, &[]), [80, 24]);
    top.until_shown("vale0:a");
    top.press("\x03");
    assert!(top.process().wait().success(), "Ctrl-C");
    wait::until("the terminal", || top.is_given_back());
}

#[test]
fn it_ends_with_its_terminal_where_no_signal_says_so() {
    let daemon = Daemon::start();
    let _port = daemon.open("vale0:a");
    // In another session than the one that has the terminal.
    let mut top = OnTerminal::start_elsewhere(&top(&daemon, &["-d", "3600"]), [80, 24]);
    // The sample that brings the first rates is the last one for an hour: nothing is drawn then.
    top.until_shown("DROPS 0/s");
    top.hang_up();
    top.process().wait();
}

#[test]
fn it_stops_as_a_job_of_a_shell_and_goes_on() {
    let daemon = Daemon::start();
    let _port = daemon.open("vale0:a");
    let mut shell = Command::new("bash");
    shell.args(["--norc", "--noprofile", "-i"]);
    let mut shell = OnTerminal::start(&shell, [80, 24]);
    let (program, dir) = (uvala_path().display(), daemon.dir());
    shell.press(&format!("{program} --dir {} top -d 0.2\r", dir.display()));
    shell.until_shown("vale0:a ");
    shell.press("\x1a");
    shell.until("the shell", |text| text.contains("Stopped") && !text.contains("HISTORY"));
    shell.press("fg\r");
    shell.until_shown("HISTORY");
    shell.press("q");
    shell.until("the shell", |text| !text.contains("HISTORY"));
    shell.press("echo all is $((40 + 2))\r");
    shell.until_shown("all is 42");
}

#[test]
fn wrong_uses_are_told_what_is_right() {
    let daemon = Daemon::start();
    let _port = daemon.open("vale0:a");
    for (args, code, why) in [
        (&[][..], 2, "`uvala stats --watch`"),
        (&["--once", "vale0:x"], 5, "no port vale0:x"),
        (&["--once", "vale7"], 5, "no switch vale7"),
        (&["--once", "-d", "0"], 2, "0.1 to 3600"),
        (&["--sort", "colour"], 2, "tx-pps"),
    ] {
        let output = daemon.uvala(&[&["top"], args].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(why), "{args:?}: {text}");
    }
}
