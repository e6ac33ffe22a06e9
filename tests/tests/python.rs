//! The Python package: `tests/python` with a daemon of this build, and what outlives that.

use std::process::Stdio;

use harness::daemon::Daemon;
use harness::frames::BROADCAST;
use harness::process::{Owned, Scratch, uvala_path};
use harness::python::python;
use harness::{c, root, wait};

/// Directory with libuvala.so.
fn library() -> std::path::PathBuf {
    c::library("uvala-capi", env!("CARGO_TARGET_TMPDIR"))
}

#[test]
fn the_package_passes_its_tests() {
    let (place, library) = (Scratch::new("python"), library());
    let Some(mut command) = python(&library, &place) else { return };
    let daemon = Daemon::start();
    command.arg(root().join("tests/python/test_uvala.py")).env("UVALA", uvala_path());
    let output = command.env("UVALA_DIR", daemon.dir()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_program_in_python_goes_on_after_a_restart() {
    let (place, library) = (Scratch::new("python_echo"), library());
    let Some(mut command) = python(&library, &place) else { return };
    let mut daemon = Daemon::start();
    command.arg(root().join("examples/python/echo.py")).arg("vale0:echo");
    let _echo = Owned::spawn(command.env("UVALA_DIR", daemon.dir()).stderr(Stdio::null()));
    let frame = [&BROADCAST[..], &[2, 0, 0, 0, 0, 1, 0x88, 0xb5], &[7; 46]].concat();
    for round in 0..2 {
        if round > 0 {
            daemon.kill();
            daemon.restart();
        }
        wait::until("echo", || daemon.port("vale0:echo").is_some_and(|it| it.client.is_some()));
        let (mut port, mut answer) = (daemon.open("vale0:a"), Vec::new());
        port.send(&frame).unwrap();
        assert!(port.recv_timeout(&mut answer, Some(wait::PATIENCE)).unwrap(), "no answer");
        assert_eq!((&answer[..6], &answer[14..]), (&frame[6..12], &frame[14..]));
    }
}
