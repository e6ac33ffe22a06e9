//! `uvala bench` between guests: a record of what was measured, no process left, and words for what
//! is missing.

use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use harness::guest::Kit;
use harness::process::{Owned, Scratch, uvala};
use harness::role::Become;
use harness::{is_root, skip, wait};

/// Whether the benchmark can have a network namespace.
fn can_unshare() -> bool {
    let can = Command::new("unshare").args(["-Urn", "true"]).status();
    let can = is_root() || can.is_ok_and(|status| status.success());
    if !can {
        skip("needs root, or user namespaces");
    }
    can
}

/// The shortest run there is, in a process group of its own.
fn bench(kit: &Kit, more: &[&str]) -> Command {
    let args = [&["bench", "vhost-ping", "--quick"], more].concat();
    let mut command = uvala(Become::default(), &args, None);
    command.env("UVALA_VM_DIR", kit.place()).env("QEMU", kit.qemu()).process_group(0);
    command
}

/// Processes of a group that have not ended, by what they run.
fn members(group: u32) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("it is mounted").filter_map(Result::ok);
    let member = |dir: std::path::PathBuf| {
        let stat = std::fs::read_to_string(dir.join("stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let (state, of) = (fields.next()?, fields.nth(1)?);
        let is_one = state != "Z" && of == group.to_string();
        let words = std::fs::read(dir.join("cmdline")).ok().filter(|_| is_one)?;
        Some(String::from_utf8_lossy(&words).replace('\0', " "))
    };
    processes.filter_map(|process| member(process.path())).collect()
}

#[test]
fn a_short_run_between_guests_leaves_a_record_and_no_process() {
    let Some(kit) = Kit::find().filter(|_| can_unshare()) else { return };
    let place = Scratch::new("record");
    let mut command = bench(&kit, &["--save", place.path().to_str().expect("UTF-8")]);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("room");
    let group = process.id();
    let said = process.wait_with_output().expect("its end");
    assert!(said.status.success(), "{said:?}");
    let record = std::fs::read_dir(place.path()).unwrap().next().expect("a file").unwrap();
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(record.path()).unwrap()).expect("one line");
    assert_eq!((&record["scenario"], &record["unit"]), (&"vhost-ping".into(), &"us".into()));
    assert_eq!(record["problems"], serde_json::json!([]));
    assert!(record["value"].as_f64().unwrap() > 0.0, "{record}");
    assert_eq!(record["peers"][0]["name"], "linux-bridge-tap");
    assert!(record["peers"][0]["value"].as_f64().unwrap() > 0.0, "{record}");
    // Processes that had to be killed end a little later.
    wait::until("the end of all it started", || members(group).is_empty());
}

#[test]
fn guests_end_with_a_benchmark_that_is_killed() {
    let Some(kit) = Kit::find().filter(|_| can_unshare()) else { return };
    let mut process = Owned::spawn(bench(&kit, &[]).stderr(Stdio::null()));
    let group = process.pid();
    let is_guest = |line: &&String| line.contains(" -serial ");
    wait::until("two guests", || members(group).iter().filter(is_guest).count() >= 2);
    process.kill();
    wait::until("the end of all it started", || members(group).is_empty());
}

#[test]
fn a_benchmark_without_qemu_says_what_to_install() {
    if !can_unshare() {
        return;
    }
    let place = Scratch::new("path");
    symlink("/usr/bin/unshare", place.path().join("unshare")).expect("room");
    let mut command = uvala(Become::default(), &["bench", "vhost-ping", "--quick"], None);
    let said = command.env("PATH", place.path()).env_remove("QEMU").output().expect("room");
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(text.contains("qemu-system-x86_64 not found: apt install qemu-system-x86"), "{text}");
    assert!(!said.status.success(), "nothing was measured: {text}");
}
