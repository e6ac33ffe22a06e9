//! Netmap programs under the preloaded library: the C conformance suite in `tests/netmap`, what
//! `uvala run` does, and what is left after a program is killed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use harness::c::{self, has_compiler};
use harness::daemon::Daemon;
use harness::process::{Owned, Scratch, USER};
use harness::{root, wait};

/// The library, built now: no Rust program needs it.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        c::library("uvala-netmap", env!("CARGO_TARGET_TMPDIR")).join("libuvala_netmap.so")
    })
}

/// Compiles a program of the suite.
fn compile(name: &str, place: &Scratch, options: &[&str]) -> PathBuf {
    let program = place.path().join(name);
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root().join("include"))
        .arg(root().join("tests/netmap").join(name).with_extension("c"))
        .args(options)
        .arg("-o")
        .arg(&program)
        .arg("-lpthread")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Builds libnetmap as `make libs` does; returns the directory that it is in.
fn libnetmap(place: &Scratch) -> PathBuf {
    let mut make = Command::new("make");
    make.args(["-s", "-C", root().to_str().unwrap(), "libnetmap", "CFLAGS=-Werror"]);
    let output = make.env("CARGO_TARGET_DIR", place.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    place.path().join("release")
}

/// A program with the library and the daemon.
fn preloaded(program: &Path, daemon: &Daemon) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library()).env("UVALA_DIR", daemon.dir()).stdin(Stdio::null());
    command
}

/// Runs every case of a program, each in a process of its own.
fn run_suite(name: &str, options: &[&str]) {
    if !has_compiler() {
        return;
    }
    let place = Scratch::new("netmap");
    let program = compile(name, &place, options);
    let list = Command::new(&program).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(!list.is_empty());
    let daemon = Daemon::start();
    let before = daemon.holdings();
    let failed: Vec<String> =
        list.lines().filter_map(|case| failure(&program, case, &daemon)).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    daemon.assert_holds(before);
    assert_eq!(daemon.ports(), [""; 0]);
}

/// The status of a case that cannot run here.
const SKIPPED: i32 = 77;

/// What a case that fails says.
fn failure(program: &Path, case: &str, daemon: &Daemon) -> Option<String> {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).arg(case);
    command.env("LD_PRELOAD", library()).env("UVALA_DIR", daemon.dir()).stdin(Stdio::null());
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = text(&stderr);
    if status.code() == Some(SKIPPED) {
        harness::skip(&format!("{case}: {}", said.trim()));
        return None;
    }
    (!status.success()).then(|| format!("{case}: {status}: {said}"))
}

#[test]
fn requests_are_answered_as_netmap_does() {
    run_suite("control", &[]);
}

#[test]
fn interfaces_come_and_go_as_vale_ctl_asks() {
    run_suite("interfaces", &[]);
}

#[test]
fn regions_are_shared_and_described() {
    run_suite("memory", &[]);
}

#[test]
fn monitors_see_what_passes_their_port() {
    run_suite("monitors", &[]);
}

#[test]
fn rings_and_waits_follow_netmap() {
    run_suite("wait", &[]);
}

#[test]
fn rings_and_waits_follow_netmap_in_fortified_programs() {
    run_suite("wait", &["-O2", "-D_FORTIFY_SOURCE=2"]);
}

#[test]
fn descriptors_go_where_programs_take_them() {
    run_suite("descriptors", &[]);
}

#[test]
fn sync_loops_run_in_the_place_of_syncs() {
    run_suite("csb", &[]);
}

#[test]
fn frames_begin_where_slots_say() {
    run_suite("offsets", &[]);
}

#[test]
fn event_loops_work_as_on_other_descriptors() {
    run_suite("events", &[]);
}

#[test]
fn a_programs_memory_becomes_the_region() {
    run_suite("extmem", &[]);
}

#[test]
fn programs_open_ports_by_libnetmaps_strings() {
    if !has_compiler() {
        return;
    }
    let place = Scratch::new("libnetmap");
    run_suite("libnetmap", &["-L", libnetmap(&place).to_str().unwrap(), "-lnetmap"]);
}

/// Waits until a program says a word.
fn hear(program: &mut Owned, word: &str) {
    use std::io::BufRead;
    let mut line = String::new();
    std::io::BufReader::new(program.stdout()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), word);
}

#[test]
fn a_killed_program_leaves_nothing() {
    if !has_compiler() {
        return;
    }
    let place = Scratch::new("netmap");
    let program = compile("sleeper", &place, &[]);
    let daemon = Daemon::start();
    let before = daemon.holdings();
    let mut command = preloaded(&program, &daemon);
    let mut sleeper = Owned::spawn(command.arg("poll").stdout(Stdio::piped()));
    hear(&mut sleeper, "ready");
    assert!(daemon.port("vale0:sleeper").is_some());
    sleeper.kill();
    wait::until("the port's end", || daemon.port("vale0:sleeper").is_none());
    daemon.assert_holds(before);
}

#[test]
fn a_program_notices_that_its_daemon_is_gone() {
    if !has_compiler() {
        return;
    }
    let place = Scratch::new("netmap");
    let program = compile("sleeper", &place, &[]);
    for how in ["poll", "select", "epoll", "edge", "nested", "spin", "sync", "loop"] {
        let mut daemon = Daemon::start();
        let mut command = preloaded(&program, &daemon);
        command.arg(how).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut sleeper = Owned::spawn(&mut command);
        hear(&mut sleeper, "ready");
        daemon.kill();
        assert!(sleeper.wait().success(), "{how}");
        let said = std::io::read_to_string(sleeper.stderr()).unwrap();
        assert!(said.starts_with("uvala: the daemon is gone"), "{how}: {said}");
        assert_eq!(said.lines().count(), 1, "{how}: {said}");
    }
}

/// `uvala run` with arguments.
fn uvala_run(daemon: Option<&Daemon>, args: &[&str]) -> Output {
    let words = [&["run"], args].concat();
    let mut command = harness::process::uvala(Default::default(), &words, None);
    command.env("UVALA_NETMAP_LIB", library());
    match daemon {
        Some(daemon) => command.env("UVALA_DIR", daemon.dir()),
        None => command.env("UVALA_DIR", "/nowhere/uvala"),
    };
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn uvala_run_sets_everything_up() {
    if !has_compiler() {
        return;
    }
    let place = Scratch::new("netmap");
    let control = compile("control", &place, &[]);
    let control = control.to_str().unwrap();
    let daemon = Daemon::start();
    let ran = uvala_run(Some(&daemon), &["--", control, "register_answers"]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let ran = uvala_run(None, &["--private", control, "register_answers"]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let ran = uvala_run(None, &["--private", "--", "sh", "-c", "exit 7"]);
    assert_eq!(ran.status.code(), Some(7), "{}", text(&ran.stderr));
    let ran = uvala_run(None, &["--", control, "register_answers"]);
    let said = text(&ran.stderr);
    assert_eq!(ran.status.code(), Some(3), "{said}");
    assert!(said.contains("--private") && said.lines().count() == 1, "{said}");
}

#[test]
fn uvala_run_says_what_it_cannot_run() {
    if !has_compiler() {
        return;
    }
    let place = Scratch::new("netmap");
    let fixed = compile("events", &place, &["-static"]);
    let ran = uvala_run(None, &["--private", fixed.to_str().unwrap()]);
    let said = text(&ran.stderr);
    assert!(!ran.status.success() && said.contains("linked statically"), "{said}");
    let ran = uvala_run(None, &["--private", "no-such-program-anywhere"]);
    assert!(text(&ran.stderr).contains("no program no-such-program-anywhere"));
    // As shells say it.
    assert_eq!(ran.status.code(), Some(127));
    for (program, status) in [("/nowhere/program", 127), ("/dev/null", 126), ("/etc/passwd", 126)] {
        let ran = uvala_run(None, &["--private", program]);
        assert_eq!(ran.status.code(), Some(status), "{program}: {}", text(&ran.stderr));
    }
}

/// As `dumpcap` is installed: with file capabilities.
#[test]
fn uvala_run_says_which_programs_the_loader_keeps_the_library_from() {
    let place = Scratch::new("capable");
    let program = place.path().join("capable");
    std::fs::copy("/bin/true", &program).unwrap();
    // Version 2, effective; CAP_NET_RAW permitted.
    let capabilities = [0x0200_0001u32, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat();
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(&program, "security.capability", &capabilities, flags).is_err() {
        return harness::skip("only root gives files capabilities");
    }
    let words = ["run", "--", program.to_str().unwrap()];
    let mut command = harness::process::uvala(Default::default(), &words, Some(USER));
    command.env("UVALA_NETMAP_LIB", library()).env("UVALA_DIR", "/nowhere/uvala");
    let said = text(&command.output().unwrap().stderr);
    assert!(said.contains("has file capabilities") && said.contains("run a copy"), "{said}");
    let ran = uvala_run(None, &["--private", "--", "env", "-i", "true"]);
    let said = text(&ran.stderr);
    assert!(ran.status.success() && said.contains("env -i before uvala run"), "{said}");
}

#[test]
fn scripts_see_the_device_while_a_daemon_is_there() {
    let daemon = Daemon::start();
    let look = "test -c /dev/netmap && test -r /dev/netmap && test ! -x /dev/netmap && \
        stat -c %F /dev/netmap";
    let ran = uvala_run(Some(&daemon), &["--", "sh", "-c", look]);
    assert_eq!(text(&ran.stdout), "character special file\n", "{}", text(&ran.stderr));
    let ran = uvala_run(Some(&daemon), &["--", "ls", "-l", "/dev/netmap", "/dev//netmap"]);
    assert_eq!((text(&ran.stdout).lines().count(), text(&ran.stderr)), (2, String::new()));
    let mut without = Command::new("sh");
    without.args(["-c", "test -e /dev/netmap"]);
    without.env("LD_PRELOAD", library()).env("UVALA_DIR", "/nowhere/uvala");
    assert_eq!(without.status().unwrap().code(), Some(1));
}

#[test]
fn the_lines_for_c_work_as_they_stand() {
    if !has_compiler() {
        return;
    }
    let page = std::fs::read_to_string(root().join("docs/netmap-programs.md")).unwrap();
    let source = page.split("```c\n").nth(1).and_then(|it| it.split("\n```").next());
    let place = Scratch::new("hello");
    let [file, program] = ["hello.c", "hello"].map(|name| place.path().join(name));
    std::fs::write(&file, source.unwrap()).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(root().join("include"));
    compiler.arg("-o").arg(&program).arg(file).arg("-L").arg(libnetmap(&place)).arg("-lnetmap");
    assert!(compiler.status().unwrap().success());
    let daemon = Daemon::start();
    let ran = uvala_run(Some(&daemon), &["--", program.to_str().unwrap()]);
    assert_eq!(text(&ran.stdout), "hello\n", "{}", text(&ran.stderr));
}

#[test]
fn the_lines_for_python_work_as_they_stand() {
    if Command::new("python3").arg("--version").output().is_err() {
        return harness::skip("there is no python3 (apt-get install python3)");
    }
    let page = std::fs::read_to_string(root().join("docs/netmap-programs.md")).unwrap();
    let program = page.split("```python\n").nth(1).and_then(|it| it.split("\n```").next());
    let daemon = Daemon::start();
    let ran = uvala_run(Some(&daemon), &["--", "python3", "-c", program.unwrap()]);
    assert_eq!(text(&ran.stdout), "hello\n", "{}", text(&ran.stderr));
}

/// As from netmap's own device; it does not wait for something to read.
#[test]
fn nobody_reads_or_writes_the_device() {
    let daemon = Daemon::start();
    let ran = uvala_run(Some(&daemon), &["--", "cat", "/dev/netmap"]);
    let said = text(&ran.stderr);
    assert!(!ran.status.success() && said.contains("Invalid argument"), "{said}");
    let ran = uvala_run(Some(&daemon), &["--", "sh", "-c", "echo x > /dev/netmap"]);
    assert!(!ran.status.success(), "{}", text(&ran.stderr));
}
