//! A C program sends to a C program, through a real daemon.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness::c::{self, compile, has_compiler};
use harness::daemon::Daemon;
use harness::process::{Owned, Scratch, outcome};
use harness::wait;

/// Directory with libuvala.so.
fn library() -> PathBuf {
    c::library("uvala-capi", env!("CARGO_TARGET_TMPDIR"))
}

fn example(name: &str, library: &Path, place: &Scratch) -> PathBuf {
    compile(&format!("examples/c/{name}.c"), library, place)
}

#[test]
fn c_programs_exchange_frames() {
    if !has_compiler() {
        return;
    }
    let (place, library) = (Scratch::new("c"), library());
    let (send, receive) = (example("send", &library, &place), example("receive", &library, &place));
    let daemon = Daemon::start();
    let run = |program: &Path, port: &str| {
        let mut command = Command::new(program);
        command.args([port, "200"]).env("UVALA_DIR", daemon.dir());
        command.env("LD_LIBRARY_PATH", place.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    };
    let mut receiver = Owned::spawn(&mut run(&receive, "vale0:c_receive"));
    wait::until("the receiver", || daemon.port("vale0:c_receive").is_some());
    let output = run(&send, "vale0:c_send").output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains("sent 200 frames"));
    let text = std::io::read_to_string(receiver.stdout()).unwrap();
    assert_eq!(outcome(receiver.wait()), 0, "{text}");
    let frames: Vec<&str> = text.lines().filter(|line| line.contains("60 bytes")).collect();
    assert_eq!(frames.len(), 200, "{text}");
    for (number, frame) in frames.iter().enumerate() {
        let [a, b, c, d] = u32::try_from(number).unwrap().to_be_bytes();
        let end = format!("88 b5 {a:02x} {b:02x} {c:02x} {d:02x}");
        assert!(frame.ends_with(&end), "frame {number}: {frame}");
    }
}

#[test]
fn a_c_program_keeps_frames_in_extra_buffers() {
    if !has_compiler() {
        return;
    }
    let (place, library) = (Scratch::new("c_extra"), library());
    let program = compile("tests/c/extra.c", &library, &place);
    let daemon = Daemon::start();
    let output = Command::new(program)
        .env("UVALA_DIR", daemon.dir())
        .env("LD_LIBRARY_PATH", place.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn c_programs_are_refused_the_impossible_and_told_of_a_deletion() {
    if !has_compiler() {
        return;
    }
    let (place, library) = (Scratch::new("c_refusals"), library());
    let program = compile("tests/c/refusals.c", &library, &place);
    let daemon = Daemon::start();
    let mut child = Command::new(program)
        .env("UVALA_DIR", daemon.dir())
        .env("LD_LIBRARY_PATH", place.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line == "ready\n" {
        assert!(daemon.uvala(&["port", "del", "vale0:a"]).status.success());
    }
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
