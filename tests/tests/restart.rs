//! The daemon dies and comes back; its clients see it at once and go on under the same names.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use client::{Error, Port};
use harness::daemon::Daemon;
use harness::frames::{Tally, fill, mac};
use harness::process::Peer;
use harness::role::{Receive, Role, Send};
use harness::wait;

const SOON: Option<Duration> = Some(wait::PATIENCE);

#[test]
fn clients_that_reconnect_go_on_under_the_same_names() {
    let mut daemon = Daemon::start();
    let reconnecting = |port: &str| {
        let mut at = daemon.at(port);
        at.reconnect = true;
        at
    };
    let (from, at) = (reconnecting("vale0:a"), reconnecting("vale0:b"));
    let mut receiver = Peer::start(&Role::Receive(Receive { at, ..Receive::default() }));
    let (to, lens) = (mac(9), vec![60]);
    let send = Send { at: from, stream: 1, to, count: None, lens, batch: 1 };
    let mut sender = Peer::start(&Role::Send(send));
    for _ in 0..3 {
        wait::until("frames to arrive", || {
            daemon.port("vale0:b").is_some() && daemon.stats("vale0:b").rx.frames > 100
        });
        daemon.kill();
        daemon.restart();
    }
    wait::until("frames to arrive", || {
        daemon.port("vale0:b").is_some() && daemon.stats("vale0:b").rx.frames > 100
    });
    assert_eq!(daemon.ports(), ["vale0:a", "vale0:b"]);
    sender.finish();
    let sent = sender.sent();
    receiver.finish();
    let tally = receiver.received();
    // Frames on their way when the daemon dies are lost with it; the others are as they were.
    tally.assert_intact();
    let stream = tally.stream(1);
    assert!(stream.frames > 400 && stream.next <= sent, "{stream:?} of {sent}");
}

#[test]
fn waits_that_are_shorter_than_the_restart_are_no_errors() {
    let mut daemon = Daemon::start();
    let open = |daemon: &Daemon, name| daemon.options().reconnect(true).open(name).unwrap();
    let (mut a, mut b) = (open(&daemon, "vale0:a"), open(&daemon, "vale0:b"));
    let brief = Some(Duration::from_millis(5));
    let mut frame = Vec::new();
    daemon.kill();
    for _ in 0..20 {
        assert!(!b.recv_timeout(&mut frame, brief).unwrap());
    }
    daemon.restart();
    wait::until("both ports to be back", || {
        assert!(!a.recv_timeout(&mut frame, brief).unwrap());
        assert!(!b.recv_timeout(&mut frame, brief).unwrap());
        daemon.ports().len() == 2
    });
    let mut sent = [0xff; 60];
    sent[6..12].copy_from_slice(&mac(1));
    a.send(&sent).unwrap();
    assert!(b.recv_timeout(&mut frame, SOON).unwrap());
}

/// What a port that waits for ever hears when the daemon is killed.
fn hears_of_the_end(
    wait_for: impl FnOnce(&mut Port) -> Result<(), Error> + std::marker::Send + 'static,
) {
    let mut daemon = Daemon::start();
    let mut port = daemon.open("vale0:a");
    let (ready, is_ready) = channel();
    let waiter = std::thread::spawn(move || {
        ready.send(rustix::thread::gettid()).unwrap();
        wait_for(&mut port)
    });
    let thread = is_ready.recv().unwrap();
    let path = format!("/proc/self/task/{thread}/wchan");
    let sleeping = || std::fs::read_to_string(&path).is_ok_and(|at| at.contains("pipe"));
    // Where the kernel does not say where threads sleep, asleep or not is left to chance.
    let deadline = Instant::now() + Duration::from_millis(200);
    while !sleeping() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    let killed = Instant::now();
    daemon.kill();
    let heard = waiter.join().unwrap();
    assert!(matches!(heard, Err(Error::Lost(_))), "{heard:?}");
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
}

#[test]
fn a_blocked_receiver_wakes_at_once() {
    hears_of_the_end(|port| port.recv(&mut Vec::new()));
}

#[test]
fn a_receiver_with_a_deadline_wakes_at_once() {
    hears_of_the_end(|port| port.recv_timeout(&mut Vec::new(), SOON).map(drop));
}

#[test]
fn a_spinning_receiver_notices() {
    hears_of_the_end(|port| {
        port.set_wait_policy(client::WaitPolicy { yields: 0, spin: true });
        port.recv(&mut Vec::new())
    });
}

#[test]
fn a_sender_does_not_wait_for_ever() {
    hears_of_the_end(|port| {
        loop {
            port.send(&[0xff; 60])?;
        }
    });
}

#[test]
fn what_had_arrived_can_still_be_read() {
    let mut daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let (mut frame, mut scratch, mut tally) = (Vec::new(), Vec::new(), Tally::default());
    for seq in 0..100 {
        fill(&mut frame, mac(9), 1, seq, 60);
        a.send(&frame).unwrap();
    }
    assert!(a.drain(SOON).unwrap());
    daemon.kill();
    while let Ok(true) = b.recv_timeout(&mut frame, SOON) {
        tally.count(&frame, &mut scratch);
    }
    tally.assert_whole(1, 100);
    assert!(matches!(b.recv(&mut frame), Err(Error::Lost(_))));
    daemon.restart();
    b.reconnect(SOON).unwrap();
    assert_eq!(daemon.ports(), ["vale0:b"]);
}
