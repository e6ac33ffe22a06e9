//! A running daemon is confined: each of its threads, and its files. What a confined thread tries
//! and does not get is in `crates/confine/tests/refused.rs`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use harness::chain::{command, configuration, functions, runs};
use harness::daemon::{Daemon, Setup};
use harness::process::{Owned, Scratch};
use harness::{is_root, skip, wait};
use rustix::process::Signal;

/// What `/proc` says of the threads of a process, by name.
fn threads(pid: u32) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten() {
        // A thread may have ended meanwhile.
        let Ok(text) = std::fs::read_to_string(entry.path().join("status")) else { continue };
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let fields: BTreeMap<_, _> =
            fields.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect();
        all.insert(fields["Name"].clone(), fields);
    }
    all
}

#[test]
fn every_thread_is_filtered_and_gets_no_new_privileges() {
    let place = Scratch::new("confinement");
    let socket = place.path().join("vm.sock");
    let daemon = Setup::new("[workers]\ncount = 2\n").start();
    let add = ["port", "add", "vale0:vm", "--kind", "vhost-user", "--socket"];
    let added = daemon.uvala(&[&add[..], &[socket.to_str().unwrap()]].concat());
    assert!(added.status.success(), "{added:?}");
    let _port = daemon.open("vale0:a");
    let threads = threads(daemon.pid());
    let names = ["uvala", "worker0", "worker1", "state-writer", "reclaimer", "huge-pages"];
    for name in names.into_iter().chain(["memory-reader", "vhost-user"]) {
        let fields = threads.get(name).unwrap_or_else(|| panic!("{name}: {:?}", threads.keys()));
        assert_eq!((&*fields["Seccomp"], &*fields["NoNewPrivs"]), ("2", "1"), "{name}");
        let filters: u32 = fields.get("Seccomp_filters").map_or(2, |n| n.parse().unwrap());
        assert!(filters >= if name == "uvala" { 1 } else { 2 }, "{name}: {filters}");
    }
    for (name, fields) in &threads {
        assert_eq!(fields["Seccomp"], "2", "{name}");
        if is_root() {
            assert_eq!(fields["CapBnd"].trim_matches('0'), "", "{name}");
        }
    }
    let log = daemon.log();
    assert!(log.contains("confined: ") || log.contains("confined in part: "), "{log}");
    assert!(!log.contains("was denied"), "{log}");
}

#[test]
fn an_operator_switches_it_on_and_off() {
    let mut daemon = Daemon::start();
    assert_eq!(threads(daemon.pid())["worker0"]["Seccomp"], "2", "without a word");
    for mode in ["off", "log", "on"] {
        daemon.terminate();
        wait::until("the end", || daemon.process().has_ended());
        daemon.restart_with(&["--confine", mode]);
        let seccomp = &threads(daemon.pid())["worker0"]["Seccomp"];
        assert_eq!(seccomp, if mode == "off" { "0" } else { "2" }, "{mode}");
    }
    assert!(daemon.log().contains("confinement only logs"), "{}", daemon.log());
}

/// A function reads its file again all the same, also one that was put in the place of the first.
#[test]
fn a_function_runs_in_a_sandbox_unless_an_operator_says_no() {
    let daemon = Setup::new(&configuration(2)).start();
    let place = Scratch::new("sandbox");
    let file = place.path().join("fw.toml");
    std::fs::write(&file, "default = \"accept\"\n").unwrap();
    let words = format!("nf run firewall valenf:f0 -c {}", file.display());
    let mut command = command(&daemon, &words);
    let mut firewall = Owned::spawn(command.stderr(std::process::Stdio::piped()));
    let _other = Owned::spawn(&mut self::command(&daemon, "nf run bypass valenf:f1 --sandbox=off"));
    wait::until("two functions", || runs(&daemon, 0) && runs(&daemon, 1));
    let pid_of = |number: usize| {
        let name = format!("valenf:f{number}");
        let all = functions(&daemon);
        let found = all.iter().find(|info| info.port.to_string() == name).and_then(|info| info.pid);
        found.expect("it runs")
    };
    for (name, fields) in threads(pid_of(0)) {
        assert_eq!((&*fields["Seccomp"], &*fields["NoNewPrivs"]), ("2", "1"), "{name}");
    }
    assert!(threads(pid_of(1)).values().all(|fields| fields["Seccomp"] == "0"));
    let next = place.path().join("next");
    std::fs::write(&next, "default = \"drop\"\n[[rule]]\naction = \"nonsense\"\n").unwrap();
    std::fs::rename(&next, &file).unwrap();
    firewall.signal(Signal::HUP);
    // The line that blames the new file.
    let mut said = BufReader::new(firewall.stderr()).lines().map_while(Result::ok);
    let line = said.find(|line| line.contains("fw.toml")).expect("a line about the file");
    assert!(line.contains("nonsense"), "{line}");
    firewall.signal(Signal::TERM);
    let rest: Vec<String> = said.collect();
    assert!(firewall.wait().success(), "{rest:?}");
    assert!(!rest.iter().any(|line| line.contains("was denied")), "{rest:?}");
}

/// A directory that is neither the daemon's nor one for temporary files.
#[test]
fn sockets_of_machines_are_made_where_the_configuration_says() {
    let dir = Path::new("/dev/shm").join(format!("uvala-confinement-{}", std::process::id()));
    if std::fs::create_dir(&dir).is_err() {
        return skip("no /dev/shm");
    }
    let socket = dir.join("vm.sock");
    let add = ["port", "add", "vale0:vm", "--kind", "vhost-user", "--socket"];
    let add = [&add[..], &[socket.to_str().unwrap()]].concat();
    let refused = Daemon::start().uvala(&add);
    let daemon = Setup::new(&format!("vm_sockets = [{:?}]\n", dir.to_str().unwrap())).start();
    let added = daemon.uvala(&add);
    let deleted = daemon.uvala(&["port", "del", "vale0:vm"]);
    let is_gone = !socket.exists();
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(added.status.success() && deleted.status.success() && is_gone, "{added:?}");
    if std::fs::read_to_string("/sys/kernel/security/lsm")
        .is_ok_and(|all| !all.contains("landlock"))
    {
        return skip("this kernel has no Landlock");
    }
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("list that in vm_sockets"), "{said}");
}
