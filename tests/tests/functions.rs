//! Functions of a chain: the README's firewall and router, and functions in C and Python.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness::daemon::Daemon;
use harness::lab::Lab;
use harness::net::{tcp, udp};
use harness::process::{Owned, Scratch, uvala};
use harness::role::Become;
use harness::{skip, wait};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The four commands of the README.
fn commands() -> Vec<String> {
    let page = std::fs::read_to_string(root().join("README.md")).unwrap();
    let mut blocks = page.split("```text\n").filter_map(|rest| rest.split("\n```").next());
    let block = blocks.find(|block| block.starts_with("uvala apply examples/nf")).unwrap();
    block.lines().map(str::to_owned).collect()
}

/// The files that they name, for these namespaces.
fn files(lab: &Lab) -> Scratch {
    let (place, from) = (Scratch::new("functions"), root().join("examples/nf"));
    let to = place.path().join("examples/nf");
    std::fs::create_dir_all(&to).unwrap();
    for name in ["two-namespaces.toml", "firewall.toml", "router.toml"] {
        let mut text = std::fs::read_to_string(from.join(name)).unwrap();
        for (guest, colour) in lab.guests.iter().zip(["red", "blue"]) {
            let namespace = format!("netns = \"{}\"", guest.name());
            text = text.replace(&format!("netns = \"{colour}\""), &namespace);
        }
        std::fs::write(to.join(name), text).unwrap();
    }
    place
}

fn start(daemon: &Daemon, place: &Scratch, command: &str) -> Owned {
    let words: Vec<&str> = command.trim_end_matches(" &").split(' ').skip(1).collect();
    let mut command = uvala(Become::default(), &words, None);
    command.env("UVALA_DIR", daemon.dir()).current_dir(place.path());
    Owned::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))
}

/// What `uvala` prints.
fn says(daemon: &Daemon, words: &str) -> String {
    let output = daemon.uvala(&words.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn drops(daemon: &Daemon, reason: &str) -> u64 {
    let red = daemon.stats("valenf:red");
    red.drops.get(reason).copied().unwrap_or(0)
}

#[test]
fn a_firewall_and_a_router_stand_between_two_namespaces() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = [&lab.guests[0], &lab.guests[1]];
        let (place, commands) = (files(lab), commands());
        let [apply, firewall, router, list] = &commands[..] else { panic!("{commands:?}") };
        assert!(start(daemon, &place, apply).wait().success());
        for (guest, network) in [(red, 1), (blue, 2)] {
            guest.ip("link set eth0 up");
            guest.ip(&format!("addr add 10.0.{network}.2/24 dev eth0"));
            guest.ip(&format!("route add default via 10.0.{network}.1"));
        }
        let mut first = start(daemon, &place, firewall);
        let _router = start(daemon, &place, router);
        // A person types the next command when both are there.
        let runs = || says(daemon, "nf list valenf").matches(" runs ").count();
        wait::until("both instances", || runs() == 2);
        let mut list = start(daemon, &place, list);
        let shown = BufReader::new(list.stdout()).lines().map_while(Result::ok);
        let mut running = shown.filter(|line| line.contains(" runs "));
        assert!(running.next().is_some_and(|line| line.contains("valenf:fw")));
        drop((running, list));
        red.within(|| udp(blue, "10.0.2.2", 100));
        tcp(red, blue, "10.0.2.2", 1 << 20);
        // Blue may answer, and not begin.
        let before = says(daemon, "nf list valenf");
        blue.within(|| {
            let socket = UdpSocket::bind("10.0.2.2:0").unwrap();
            wait::until("a drop by the firewall", || {
                socket.send_to(&[1; 64], "10.0.1.2:9").unwrap();
                dropped(daemon) > 0
            });
        });
        assert!(before.contains("valenf:r "), "{before}");
        red.within(|| {
            let socket = UdpSocket::bind("10.0.1.2:0").unwrap();
            let ping = || drop(socket.send_to(&[2; 64], "10.0.2.2:9"));
            (0..100).for_each(|_| ping());
            first.kill();
            wait::until("drops without a firewall", || {
                ping();
                drops(daemon, "no_instance") > 0
            });
        });
        let shown = says(daemon, "chain show valenf");
        assert!(shown.contains("nobody runs firewall"), "{shown}");
        let _again = start(daemon, &place, firewall);
        red.within(|| udp(blue, "10.0.2.2", 100));
        // The next version of the file has another name for the chain that its ports use.
        let file = place.path().join("examples/nf/two-namespaces.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("guarded", "kept")).unwrap();
        assert!(start(daemon, &place, apply).wait().success());
        let shown = says(daemon, "chain show valenf");
        assert!(shown.contains("kept") && !shown.contains("guarded"), "{shown}");
        red.within(|| udp(blue, "10.0.2.2", 100));
        tcp(red, blue, "10.0.2.2", 1 << 20);
        let shown = says(daemon, "chain list valenf");
        assert!(shown.contains("kept") && shown.contains(" ok"), "{shown}");
    });
}

/// Frames that the firewall wanted dropped, as `uvala nf list` has them.
fn dropped(daemon: &Daemon) -> u64 {
    let json: serde_json::Value =
        serde_json::from_str(&says(daemon, "nf list valenf --json")).unwrap();
    let all = json.as_array().unwrap().iter();
    let of = |row: &serde_json::Value| row["dropped"].as_u64().unwrap();
    all.filter(|row| row["service"] == "firewall").map(of).sum()
}

/// Directory with libuvala.so, built now: no Rust program needs it.
fn library() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "uvala-capi", "--lib", "--target-dir"])
        .arg(target)
        .current_dir(root())
        .status();
    assert!(status.unwrap().success(), "libuvala does not build");
    target.join("debug")
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

/// Sends frames of two types until a line of the program says that it has counted both.
fn frames_are_counted(daemon: &Daemon, command: &mut Command) {
    command.env("UVALA_DIR", daemon.dir()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut program = Owned::spawn(command);
    let lines = BufReader::new(program.stdout()).lines();
    wait::until("an instance", || says(daemon, "nf list valenf").contains(" runs "));
    let (mut a, mut b) = (daemon.open("valenf:a"), daemon.open("valenf:b"));
    for kind in [[0x88, 0xb5], [8, 6], [0x88, 0xb5]] {
        let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &kind, &[0; 46]].concat();
        a.send(&frame).unwrap();
        let mut got = Vec::new();
        assert!(b.recv_timeout(&mut got, Some(wait::PATIENCE)).unwrap(), "it passed nothing on");
        assert_eq!(got, frame);
    }
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.contains("0x88b5': 2") && line.contains("0x0806': 1")));
}

#[test]
fn a_function_in_python_counts_and_passes_on() {
    if Command::new("python3").arg("--version").output().is_err() {
        return skip("there is no python3");
    }
    let (library, daemon) = (library(), Daemon::start());
    chain_of_one(&daemon);
    let mut command = Command::new("python3");
    command.arg(root().join("examples/nf/count.py")).arg("valenf:count");
    frames_are_counted(&daemon, command.env("LD_LIBRARY_PATH", library));
}

#[test]
fn a_function_in_c_counts_and_passes_on() {
    if Command::new("cc").arg("--version").output().is_err() {
        return skip("there is no C compiler (apt-get install gcc)");
    }
    let (place, library, daemon) = (Scratch::new("nf_c"), library(), Daemon::start());
    chain_of_one(&daemon);
    let program = place.path().join("count");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]);
    compiler.arg(root().join("include")).arg(root().join("tests/c/count.c"));
    compiler.arg("-o").arg(&program).arg("-L").arg(&library).arg("-luvala");
    assert!(compiler.status().unwrap().success());
    let soname = place.path().join("libuvala.so.0");
    std::os::unix::fs::symlink(library.join("libuvala.so"), soname).unwrap();
    let mut command = Command::new(program);
    command.arg("valenf:count").env("LD_LIBRARY_PATH", place.path());
    frames_are_counted(&daemon, &mut command);
}
