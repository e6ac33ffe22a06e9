//! A C program sends to a C program, through a real daemon.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness::daemon::Daemon;
use harness::process::{Owned, Scratch, outcome};
use harness::{skip, wait};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
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

fn example(name: &str, library: &Path, place: &Scratch) -> PathBuf {
    compile(&root().join("examples/c").join(name).with_extension("c"), library, place)
}

fn compile(source: &Path, library: &Path, place: &Scratch) -> PathBuf {
    let program = place.path().join(source.file_stem().unwrap());
    let status = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-I"])
        .arg(root().join("include"))
        .arg(source)
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(library)
        .args(["-luvala", "-lpthread"])
        .status();
    assert!(status.unwrap().success(), "{source:?} does not compile");
    // Programs ask for the library by its soname.
    let soname = place.path().join("libuvala.so.0");
    if !soname.exists() {
        std::os::unix::fs::symlink(library.join("libuvala.so"), soname).unwrap();
    }
    program
}

#[test]
fn c_programs_exchange_frames() {
    if Command::new("cc").arg("--version").output().is_err() {
        return skip("there is no C compiler (apt-get install gcc)");
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
    if Command::new("cc").arg("--version").output().is_err() {
        return skip("there is no C compiler (apt-get install gcc)");
    }
    let (place, library) = (Scratch::new("c_extra"), library());
    let program = compile(&root().join("tests/c/extra.c"), &library, &place);
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
    if Command::new("cc").arg("--version").output().is_err() {
        return skip("there is no C compiler (apt-get install gcc)");
    }
    let (place, library) = (Scratch::new("c_refusals"), library());
    let program = compile(&root().join("tests/c/refusals.c"), &library, &place);
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
