//! Forwarding programs, as their users write them: compiled, loaded, replaced under load, kept.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use client::Port;
use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, fill, mac};
use harness::process::{Scratch, USER, uvala_path};
use harness::{is_root, root, skip, wait};
use protocol::exit;
use serde_json::Value;

/// Object files of programs.
struct Objects(Scratch);

impl Objects {
    /// `None`, and said loudly: there is no compiler for them.
    fn new() -> Option<Self> {
        if Command::new("clang").arg("--version").output().is_err() {
            skip("there is no clang (apt-get install clang)");
            return None;
        }
        Some(Self(Scratch::new("programs")))
    }

    fn compile(&self, name: &str, source: &PathBuf) -> String {
        let to = self.0.path().join(format!("{name}.o"));
        let mut clang = Command::new("clang");
        clang.args(["-O2", "-target", "bpf", "-I"]).arg(root().join("include"));
        let status = clang.arg("-c").arg(source).arg("-o").arg(&to).status().unwrap();
        assert!(status.success(), "{name}");
        to.to_str().unwrap().to_owned()
    }

    fn example(&self, name: &str) -> String {
        self.compile(name, &root().join(format!("examples/forwarding/{name}.c")))
    }

    /// A program of this body.
    fn program(&self, name: &str, maps: &str, body: &str) -> String {
        let source = self.0.path().join(format!("{name}.c"));
        let text = format!(
            "#include \"uvala_program.h\"\n{maps}\nSEC(\"forward/header\") int f(struct \
             uvala_frame *frame)\n{{\n{body}\n}}\n"
        );
        std::fs::write(&source, text).unwrap();
        self.compile(name, &source)
    }
}

/// A place with the example in Rust, in which its users work.
struct Rust(Scratch);

impl Rust {
    /// `None`, and said loudly: there is no compiler for it. Each test gives another name: cargo
    /// takes packages of one name for the same one if they share a target directory.
    fn new(name: &str) -> Option<Self> {
        let rustc = Command::new("rustc").args(["+nightly", "--print", "target-libdir"]).output();
        let tools = rustc.map(|it| String::from_utf8(it.stdout).unwrap()).unwrap_or_default();
        if !Path::new(tools.trim()).join("../bin/llc").exists() {
            skip("rustup toolchain install nightly --component rust-src,llvm-tools");
            return None;
        }
        let place = Scratch::new("rust");
        let (from, to) = (root().join(EXAMPLE), place.path().join(EXAMPLE));
        std::fs::create_dir_all(&to).unwrap();
        for file in ["balance.rs", "uvala.rs"] {
            std::fs::copy(from.join(file), to.join(file)).unwrap();
        }
        let manifest = std::fs::read_to_string(from.join("Cargo.toml")).unwrap();
        let manifest = manifest.replace("name = \"balance\"", &format!("name = \"{name}\""));
        std::fs::write(to.join("Cargo.toml"), manifest).unwrap();
        Some(Self(place))
    }

    fn example(&self) -> PathBuf {
        self.0.path().join(EXAMPLE)
    }

    /// What docs/forwarding-programs.md tells its reader to type, but for the installation.
    fn build(&self) -> Output {
        let lines = block("sh", "cargo +nightly");
        let (install, lines) = lines.split_once('\n').unwrap();
        assert!(install.starts_with("rustup toolchain install nightly"), "{install}");
        self.type_in(lines)
    }

    fn type_in(&self, lines: &str) -> Output {
        let mut sh = shell(lines, self.0.path());
        // `core` is compiled once, and not by each test.
        sh.env("CARGO_TARGET_DIR", root().join("target/bpf"));
        sh.env_remove("RUSTFLAGS").output().unwrap()
    }

    /// The object file of another program in place of the example.
    fn program(&self, body: &str) -> String {
        let text = format!(
            "#![no_std]\nmod uvala;\nuse uvala::*;\n\
             map!(seen: Hash<u16, u64>, 4); map!(last: Array<[u8; 6]>, 1);\n\
             #[unsafe(no_mangle)]\n#[unsafe(link_section = \"forward/header\")]\n\
             extern \"C\" fn forward(frame: &Frame) -> u32 {{\n{body}\n}}\n"
        );
        std::fs::write(self.example().join("balance.rs"), text).unwrap();
        let output = self.build();
        assert!(output.status.success(), "{}", said(&output));
        self.example().join("balance.o").to_str().unwrap().to_owned()
    }
}

/// The directory of the example in Rust.
const EXAMPLE: &str = "examples/forwarding/rust";

/// The first block of docs/forwarding-programs.md in this language that has this in it.
fn block(language: &str, part: &str) -> String {
    let page = std::fs::read_to_string(root().join("docs/forwarding-programs.md")).unwrap();
    let fence = format!("```{language}\n");
    let mut blocks = page.split(&fence).skip(1).filter_map(|it| it.split("\n```").next());
    blocks.find(|block| block.contains(part)).expect("the lines").to_owned()
}

/// A shell that runs lines in a place, with this build of `uvala`.
fn shell(lines: &str, place: &Path) -> Command {
    let bin = uvala_path().parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut sh = Command::new("sh");
    sh.args(["-ec", lines]).current_dir(place).env("PATH", path);
    sh
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn run(daemon: &Daemon, line: &str) -> String {
    let output = daemon.uvala(&line.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{line}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn show(daemon: &Daemon) -> Value {
    serde_json::from_str(&run(daemon, "program show vale0 --json")).unwrap()
}

/// The next frame of a port.
fn next(port: &mut Port) -> Vec<u8> {
    let mut frame = Vec::new();
    assert!(port.recv_timeout(&mut frame, Some(wait::PATIENCE)).unwrap(), "a frame");
    frame
}

#[test]
fn the_first_steps_of_the_page_work_as_they_stand() {
    let Some(objects) = Objects::new() else { return };
    let place = objects.0.path();
    let examples = place.join("examples/forwarding");
    std::fs::create_dir_all(&examples).unwrap();
    // What the lines compile is the page's own listing.
    std::fs::write(examples.join("stations.c"), block("c", "UVALA_MAP(stations")).unwrap();
    std::os::unix::fs::symlink(root().join("include"), place.join("include")).unwrap();
    let daemon = Daemon::start();
    let mut sh = shell(&block("sh", "clang -O2"), place);
    let ran = sh.env("UVALA_DIR", daemon.dir()).output().unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    let info = show(&daemon);
    assert_eq!((info["function"].as_str(), info["faults"].as_u64()), (Some("forward"), Some(0)));
    assert!(info["runs"].as_u64().unwrap() > 0, "{info}");
}

#[test]
fn a_table_of_stations_is_filled_by_commands_and_survives_a_restart() {
    let Some(objects) = Objects::new() else { return };
    let mut daemon = Daemon::start();
    let file = objects.example("stations");
    run(&daemon, &format!("switch add vale0 --forwarding program:{file}"));
    run(&daemon, &format!("switch add vale0 --if-absent --forwarding program:{file}"));
    run(&daemon, "program map set vale0 stations 02:00:00:00:00:09 port:b");
    let exchange = |daemon: &Daemon| {
        let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
        let mut frame = Vec::new();
        fill(&mut frame, [2, 0, 0, 0, 0, 9], 1, 7, 60);
        a.send(&frame).unwrap();
        assert_eq!(next(&mut b), frame);
        fill(&mut frame, [2, 0, 0, 0, 0, 8], 1, 8, 60);
        a.send(&frame).unwrap();
        wait::until("the drop", || daemon.stats("vale0:a").drops.get("program") == Some(&1));
        let listed = run(daemon, "program map list vale0 stations");
        assert!(listed.contains("02:00:00:00:00:09  port:b\n"), "{listed}");
        let value = run(daemon, "program map get vale0 stations 02:00:00:00:00:09");
        assert_eq!(value, "port:b\n", "as it was set");
    };
    exchange(&daemon);
    wait::until("the ports to go", || daemon.ports().is_empty());
    let listed = run(&daemon, "program map list vale0 stations");
    assert!(listed.contains("port:b  (b carries no frames)"), "{listed}");
    let value = run(&daemon, "program map get vale0 stations 02:00:00:00:00:09");
    assert_eq!(value, "port:b  (b carries no frames)\n");
    daemon.terminate();
    daemon.restart();
    exchange(&daemon);
    let info = show(&daemon);
    assert_eq!(
        (info["function"].as_str(), info["maps"][0]["kind"].as_str()),
        (Some("forward"), Some("hash"))
    );
    assert!(info["runs"].as_u64().unwrap() >= 2 && info["faults"] == 0);
    let metrics = run(&daemon, "metrics");
    for sample in [
        "failures_total{switch=\"vale0\"} 0",
        "map_max_entries{switch=\"vale0\",map=\"stations\"} 1024",
    ] {
        assert!(metrics.contains(&format!("\nuvala_program_{sample}\n")), "{metrics}");
    }
    assert!(run(&daemon, "program list").contains("vale0"));
    run(&daemon, "program map del vale0 stations 02:00:00:00:00:09");
    run(&daemon, "switch set vale0 --forwarding learning");
    let gone = daemon.uvala(&["program", "show", "vale0"]);
    assert!(said(&gone).contains("vale0 has no program"), "{}", said(&gone));
}

/// Replaces the program of vale0 while these ports send; returns what its map has counted.
fn replace_under_load(daemon: &Daemon, objects: &Objects, senders: &[&str]) -> u64 {
    let maps = "UVALA_MAP(to, HASH, 4, 4, 4); UVALA_MAP(asked, ARRAY, 4, 8, 1);";
    let body = |more: &str| {
        format!(
            "__u32 zero = 0, *port = bpf_map_lookup_elem(&to, &zero);\n\
             __u64 *count = bpf_map_lookup_elem(&asked, &zero);\n\
             if (count) (*count)++;\n{more}\nreturn port ? UVALA_TO(*port) : UVALA_DROP;"
        )
    };
    let files = [
        objects.program("one", maps, &body("")),
        objects.program("two", maps, &body("if (frame->port > 4000) return UVALA_FLOOD;")),
    ];
    run(daemon, &format!("switch set vale0 --forwarding program:{}", files[0]));
    run(daemon, "port add vale0:b --on-full wait");
    run(daemon, "program map set vale0 to 0 port:b");
    let (mut b, stop, sent) = (daemon.open("vale0:b"), AtomicBool::new(false), AtomicU64::new(0));
    let received = std::thread::scope(|scope| {
        for name in senders {
            let (mut port, stop, sent) = (daemon.open(name), &stop, &sent);
            scope.spawn(move || {
                let (mut frame, mut count) = (Vec::new(), 0);
                while !stop.load(Ordering::Relaxed) {
                    // Other headers all the time, so that the program is asked.
                    fill(&mut frame, mac(u32::try_from(count % 5).unwrap()), 1, count, 60);
                    port.send(&frame).unwrap();
                    count += 1;
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                assert!(port.drain(Some(wait::PATIENCE)).unwrap());
            });
        }
        let receiver = scope.spawn(|| {
            let (mut frame, mut count) = (Vec::new(), 0u64);
            while b.recv_timeout(&mut frame, Some(Duration::from_millis(1500))).unwrap() {
                count += 1;
            }
            count
        });
        for round in 0..30 {
            let before = sent.load(Ordering::Relaxed);
            run(daemon, &format!("switch set vale0 --forwarding program:{}", files[round % 2]));
            wait::until("frames", || sent.load(Ordering::Relaxed) > before + 500);
        }
        stop.store(true, Ordering::Relaxed);
        receiver.join().unwrap()
    });
    assert_eq!(received, sent.into_inner());
    let asked = run(daemon, "program map get vale0 asked 0");
    asked.trim().parse().unwrap()
}

#[test]
fn programs_are_replaced_under_load_without_a_lost_frame() {
    let Some(objects) = Objects::new() else { return };
    let daemon = Daemon::start();
    run(&daemon, "switch add vale0");
    let asked = replace_under_load(&daemon, &objects, &["vale0:a"]);
    assert!(asked > 30, "it goes on counting: {asked}");
}

/// A port for each of three workers that run a switch.
const THREE: &[(&str, u32)] = &[("x", 0), ("y", 1), ("z", 2)];

#[test]
fn all_workers_of_a_switch_run_its_program_with_the_same_maps() {
    let Some(objects) = Objects::new() else { return };
    let daemon = Setup::spread(THREE).start();
    let names = ["vale0:x", "vale0:y", "vale0:z"];
    let asked = replace_under_load(&daemon, &objects, &names);
    assert!(asked > 30, "it goes on counting: {asked}");
    for name in names.iter().chain(&["vale0:b"]) {
        wait::until("a free port", || daemon.port(name).unwrap().client.is_none());
    }
    // Each decision is counted once, whichever worker makes it.
    let before = show(&daemon)["runs"].as_u64().unwrap();
    let (mut ports, mut b) = (names.map(|name| daemon.open(name)), daemon.open("vale0:b"));
    for (count, port) in (0..60).zip((0..3).cycle()) {
        let mut frame = Vec::new();
        fill(&mut frame, mac(count % 7), 1, count.into(), 60);
        ports[port].send(&frame).unwrap();
        assert_eq!(next(&mut b), frame);
    }
    let runs = show(&daemon)["runs"].as_u64().unwrap() - before;
    let counted = run(&daemon, "program map get vale0 asked 0").trim().parse::<u64>().unwrap();
    assert_eq!((runs, counted - asked), (60, 60));
}

#[test]
fn a_switch_goes_to_all_workers_with_its_program_and_what_commands_have_set() {
    let Some(objects) = Objects::new() else { return };
    let daemon = Setup::new("[workers]\ncount = 2\n").start();
    let file = objects.example("stations");
    run(&daemon, &format!("switch add vale0 --forwarding program:{file}"));
    run(&daemon, "program map set vale0 stations 02:00:00:00:00:09 port:b");
    for workers in ["all", "one", "all"] {
        run(&daemon, &format!("switch set vale0 --workers {workers}"));
        let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
        let mut frame = Vec::new();
        fill(&mut frame, [2, 0, 0, 0, 0, 9], 1, 7, 60);
        a.send(&frame).unwrap();
        assert_eq!(next(&mut b), frame);
        drop((a, b));
        wait::until("the ports to go", || daemon.ports().is_empty());
    }
}

#[test]
fn a_program_that_fails_costs_its_frames_and_says_why() {
    let Some(objects) = Objects::new() else { return };
    let daemon = Daemon::start();
    for (name, body, says) in [
        ("endless", "for (;;) asm volatile(\"\");", "took more than 4096 steps"),
        (
            "wild",
            "return *(volatile int *)(frame->bytes + frame->port * 4 + 4000);",
            "read outside",
        ),
        ("odd", "return 7;", "no decision"),
    ] {
        let file = objects.program(name, "", body);
        run(&daemon, &format!("switch add vale0 --forwarding program:{file}"));
        let mut a = daemon.open("vale0:a");
        a.send(&announcement(1)).unwrap();
        wait::until("the drop", || daemon.stats("vale0:a").drops.get("program_fault") == Some(&1));
        let text = run(&daemon, "program show vale0");
        assert!(text.contains("failures    1") && text.contains(says), "{text}");
        let doctor = String::from_utf8(daemon.uvala(&["doctor"]).stdout).unwrap();
        let what = "vale0: dropped 1 frames because the forwarding program failed";
        assert!(doctor.contains(what), "{doctor}");
        drop(a);
        // Other switches are as they were.
        let (mut c, mut d) = (daemon.open("vale1:c"), daemon.open("vale1:d"));
        c.send(&announcement(2)).unwrap();
        assert_eq!(next(&mut d), announcement(2));
        run(&daemon, "switch del vale0");
    }
}

#[test]
fn a_switch_whose_saved_program_is_refused_is_named_by_the_doctor() {
    let Some(objects) = Objects::new() else { return };
    let mut daemon = Daemon::start();
    let file = objects.example("stations");
    run(&daemon, &format!("switch add vale0 --forwarding program:{file}"));
    daemon.kill();
    let saved = daemon.dir().join("state/vale0.json");
    let text = std::fs::read_to_string(&saved).unwrap();
    let at = text.find("code ").expect("a program") + "code ".len();
    std::fs::write(&saved, text[..at].to_owned() + "ff" + &text[at + 2..]).unwrap();
    daemon.restart();
    let doctor = daemon.uvala(&["doctor"]);
    let said = String::from_utf8(doctor.stdout).unwrap();
    assert!(said.contains("vale0: drops all frames: it has no forwarding program"), "{said}");
    run(&daemon, &format!("switch set vale0 --forwarding program:{file}"));
    let said = String::from_utf8(daemon.uvala(&["doctor"]).stdout).unwrap();
    assert!(!said.contains("forwarding program"), "{said}");
}

#[test]
fn what_is_no_program_is_refused_before_anything_changes() {
    let Some(objects) = Objects::new() else { return };
    let daemon = Daemon::start();
    run(&daemon, "switch add vale0");
    let cpu = objects.0.path().join("text.o");
    std::fs::write(&cpu, "no object").unwrap();
    let file = objects.example("knock");
    for (forwarding, says) in [
        ("program", "program:FILE"),
        ("program:/no/such/file", "cannot read /no/such/file"),
        (&format!("program:{}", cpu.display()), "no object file for eBPF"),
        ("program:/dev/zero", "more than 1048576 bytes"),
    ] {
        let output = daemon.uvala(&["switch", "set", "vale0", "--forwarding", forwarding]);
        assert!(!output.status.success() && said(&output).contains(says), "{}", said(&output));
    }
    run(&daemon, &format!("program check {file}"));
    assert_eq!(daemon.switch("vale0").unwrap().forwarding, "learning");
}

#[test]
fn only_the_owner_of_a_switch_loads_programs() {
    let Some(objects) = Objects::new() else { return };
    if !is_root() {
        return skip("only root can become another user");
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
    let file = objects.example("stations");
    run(&daemon, &format!("switch add vale0 --mode 666 --forwarding program:{file}"));
    let forwarding = format!("program:{file}");
    for args in [
        &["switch", "set", "vale0", "--forwarding", &forwarding][..],
        &["program", "map", "set", "vale0", "stations", "02:00:00:00:00:01", "1"],
        &["program", "map", "del", "vale0", "stations", "02:00:00:00:00:01"],
    ] {
        let output = daemon.uvala_as(args, Some(USER));
        let code = output.status.code();
        assert_eq!(code, Some(exit::PERMISSION.into()), "{args:?}: {}", said(&output));
    }
    let output = daemon.uvala_as(&["program", "show", "vale0"], Some(USER));
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_configuration_names_the_file() {
    let Some(objects) = Objects::new() else { return };
    let file = objects.example("stations");
    let config = format!("[switch.vale0]\nforwarding = \"program:{file}\"\n");
    let daemon = Setup::new(&config).start();
    assert_eq!(show(&daemon)["function"], "forward");
    let other = objects.example("knock");
    let path = objects.0.path().join("new.toml");
    std::fs::write(&path, config.replace(&file, &other)).unwrap();
    run(&daemon, &format!("apply {}", path.display()));
    assert_eq!(show(&daemon)["looks"], "packet");
    std::fs::write(&path, config.replace(&file, "/no/such/file")).unwrap();
    let output = daemon.uvala(&["apply", path.to_str().unwrap()]);
    assert!(said(&output).contains("cannot read /no/such/file"), "{}", said(&output));
}

/// An IPv4 frame with a TCP or UDP header's first bytes, from this port of a client.
fn datagram(protocol: u8, dst: [u8; 4], src_port: u16) -> Vec<u8> {
    let mut frame = [&mac(2)[..], &mac(1), &[8, 0, 0x45, 0, 0, 46]].concat();
    frame.extend([0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1]);
    frame.extend([&dst[..], &src_port.to_be_bytes(), &80u16.to_be_bytes(), &[0; 22]].concat());
    frame
}

#[test]
fn the_example_in_rust_is_built_as_its_page_says_and_balances() {
    let Some(rust) = Rust::new("balance") else { return };
    let built = rust.build();
    assert!(built.status.success(), "{}", said(&built));
    assert!(!said(&built).contains("warning"), "{}", said(&built));
    let source = std::fs::read_to_string(rust.example().join("balance.rs")).unwrap();
    assert!(source.lines().count() <= 60, "a program is small");
    let file = rust.example().join("balance.o");
    let daemon = Daemon::start();
    run(&daemon, &format!("switch add vale0 --forwarding program:{}", file.display()));
    let [mut client, mut one, mut two, mut other] =
        ["client", "one", "two", "other"].map(|name| daemon.open(&format!("vale0:{name}")));
    run(&daemon, "program map set vale0 services 192.0.2.0/28 2");
    run(&daemon, "program map set vale0 servers 0 port:one");
    run(&daemon, "program map set vale0 servers 1 port:two");
    let mut received = [0; 2];
    for port in 1000..1100 {
        let frame = datagram([6, 17][usize::from(port % 2)], [192, 0, 2, 8], port);
        client.send(&frame).unwrap();
        client.send(&frame).unwrap();
        assert!(client.drain(Some(wait::PATIENCE)).unwrap());
        let mut got = Vec::new();
        for (server, count) in [&mut one, &mut two].into_iter().zip(&mut received) {
            if server.try_recv(&mut got).unwrap() {
                assert_eq!(got, frame);
                assert!(server.try_recv(&mut got).unwrap(), "a connection stays with its server");
                *count += 1;
            }
        }
    }
    assert!(received[0] + received[1] == 100 && received.iter().all(|&it| it > 20), "{received:?}");
    // What is for no service is learned, and so flooded here.
    for (protocol, dst) in [(6, [192, 0, 2, 16]), (1, [192, 0, 2, 8])] {
        client.send(&datagram(protocol, dst, 7)).unwrap();
        for port in [&mut one, &mut two, &mut other] {
            assert_eq!(next(port), datagram(protocol, dst, 7));
        }
    }
    assert_eq!(show(&daemon)["faults"], 0);
}

#[test]
fn a_program_in_rust_keeps_what_it_has_seen_and_a_panic_costs_its_frame() {
    let Some(rust) = Rust::new("panics") else { return };
    let file = rust.program(
        "let mut address = [0; 6];\n\
         address.copy_from_slice(&frame.bytes[6..12]);\n\
         if last.get(&0) == Some(address) { return DROP; }\n\
         let count = seen.get(&frame.vlan).unwrap_or(0) + 1;\n\
         if last.set(&0, &address).is_err() || seen.set(&frame.vlan, &count).is_err() {\n\
         return DROP; }\n\
         if last.set(&1, &address) != Err(-7) || seen.delete(&7) != Err(-2) { return DROP; }\n\
         let table = [FLOOD, FLOOD, FLOOD, PORTS];\n\
         add_port(1);\n\
         table[usize::from(frame.bytes[11]) % 16 / 2]",
    );
    let daemon = Daemon::start();
    run(&daemon, &format!("switch add vale0 --forwarding program:{file}"));
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let frames = [1, 1, 4, 9, 5].map(|station| {
        let mut frame = Vec::new();
        fill(&mut frame, mac(2), station, 0, 60);
        frame
    });
    for frame in &frames {
        a.send(frame).unwrap();
        assert!(a.drain(Some(wait::PATIENCE)).unwrap());
    }
    assert_eq!([0, 2, 4].map(|_| next(&mut b)), [0, 2, 4].map(|at| frames[at].clone()));
    let drops = daemon.stats("vale0:a").drops;
    assert_eq!(["program", "program_fault"].map(|it| drops.get(it)), [Some(&1); 2]);
    let text = run(&daemon, "program show vale0");
    assert!(text.contains("failures    1") && text.contains("panicked"), "{text}");
    assert_eq!(run(&daemon, "program map get vale0 seen 1"), "4\n", "also of the one that failed");
}

#[test]
fn bitcode_is_refused_with_the_cure() {
    let Some(rust) = Rust::new("bitcode") else { return };
    assert!(rust.build().status.success());
    let output = rust.type_in(&format!("cd {EXAMPLE}; uvala program check balance.bc"));
    assert!(said(&output).contains("llc -mcpu=v3 -filetype=obj"), "{}", said(&output));
}

/// Whatever three workers run at once, take back in a trace and replace meanwhile.
#[test]
fn programs_that_do_their_worst_cost_the_frames_of_their_switch_alone() {
    let Some(objects) = Objects::new() else { return };
    let daemon = Setup::spread(THREE).start();
    let maps = "UVALA_MAP(m, HASH, 8, 256, 8192); UVALA_MAP(n, ARRAY, 4, 8, 4);\n\
        static __attribute__((noinline)) __u64 deep(__u64 n)\n\
        { __u64 room[60]; room[n % 60] = n; asm volatile(\"\" :: \"r\"(room) : \"memory\");\n\
        return deep(n + 1) + room[n % 60]; }";
    let begin = "__u32 zero = 0; __u64 key = frame->now_us, room[32] = {};";
    let count = "__u64 *at = bpf_map_lookup_elem(&n, &zero);";
    let bodies = [
        "for (;; key++) bpf_map_update_elem(&m, &key, room, 0);",
        "for (;; key++) { bpf_map_update_elem(&m, &key, room, 0); bpf_map_delete_elem(&m, &key); }",
        "return deep(key);",
        "return uvala_hash(frame, 1 << 20, 0);",
        "for (;;) if (at) at[frame->now_us % 4]++;",
        "if (at) at[1 << 20] = 1; return 0;",
    ];
    let files: Vec<String> = (0..)
        .zip(&bodies)
        .map(|(at, body)| {
            objects.program(&format!("worst{at}"), maps, &format!("{begin}\n{count}\n{body}"))
        })
        .collect();
    run(&daemon, &format!("switch set vale0 --forwarding program:{}", files[0]));
    let (mut c, mut d) = (daemon.open("vale1:c"), daemon.open("vale1:d"));
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let names = ["vale0:x", "vale0:y", "vale0:z"];
    std::thread::scope(|scope| {
        for name in names {
            let (mut port, stop, sent) = (daemon.open(name), &stop, &sent);
            scope.spawn(move || {
                let mut frame = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let seq = sent.fetch_add(1, Ordering::Relaxed);
                    fill(&mut frame, mac(u32::try_from(seq % 99).unwrap()), 1, seq, 60);
                    port.send(&frame).unwrap();
                }
                assert!(port.drain(Some(wait::PATIENCE)).unwrap());
            });
        }
        for file in files.iter().chain(&files) {
            let before = sent.load(Ordering::Relaxed);
            run(&daemon, &format!("switch set vale0 --forwarding program:{file}"));
            wait::until("frames", || sent.load(Ordering::Relaxed) > before + 500);
            let args =
                ["trace", "vale0:x", "icmp 10.0.0.1 > 10.0.0.2", "--src", "02:00:00:00:00:09"];
            let trace = daemon.uvala(&[&args[..], &["--dst", "02:00:00:00:00:01"]].concat());
            let text = String::from_utf8_lossy(&trace.stdout).into_owned();
            assert!(text.contains("program_fault"), "{text}{}", said(&trace));
            c.send(&announcement(2)).unwrap();
            assert_eq!(next(&mut d), announcement(2), "other switches are as they were");
        }
        stop.store(true, Ordering::Relaxed);
    });
    let faults: u64 = names.map(|name| daemon.stats(name).drops["program_fault"]).iter().sum();
    assert_eq!(faults, sent.into_inner());
}
