//! A client that stops reading: its frames drop and are counted, or its senders wait; others
//! keep receiving.

use std::time::Duration;

use harness::daemon::Daemon;
use harness::frames::{Tally, announcement, fill, mac};
use harness::process::Peer;
use harness::role::{Receive, Role, Send};
use harness::wait;
use protocol::{PortAdd, PortKind, PortRequest, PortSettings, Request};

const COUNT: u64 = 10_000;
/// Frames that a ring of 1024 slots holds: one slot stays empty.
const RING: u64 = 1023;
const SOON: Option<Duration> = Some(wait::PATIENCE);

fn add_port(daemon: &Daemon, port: &str, on_full: &str) {
    let settings = PortSettings { on_full: on_full.parse().ok(), ..PortSettings::default() };
    let add = PortAdd {
        port: port.parse().unwrap(),
        kind: PortKind::Shm,
        settings,
        host: None,
        machine: None,
        vxlan: None,
    };
    daemon.call(Request::Port(PortRequest::Add(Box::new(add)))).unwrap();
}

/// A stream to one station.
fn stream_to(daemon: &Daemon, station: u32) -> Peer {
    let (at, lens) = (daemon.at("vale0:sender"), vec![60, 200]);
    let send = Send { at, stream: 1, to: mac(station), count: Some(COUNT), lens, batch: 16 };
    Peer::start(&Role::Send(send))
}

#[test]
fn its_frames_drop_and_are_counted_and_others_receive_everything() {
    let daemon = Daemon::start();
    add_port(&daemon, "vale0:slow", "drop");
    add_port(&daemon, "vale0:good", "wait");
    let mut slow = daemon.open("vale0:slow");
    slow.send(&announcement(8)).unwrap();
    let at = daemon.at("vale0:good");
    let receive = Receive { at, station: Some(9), count: Some(COUNT), ..Receive::default() };
    let good = Peer::start(&Role::Receive(receive));
    while slow.try_recv(&mut Vec::new()).unwrap() {}
    // One frame for each of them in turn, from the same ring.
    let mut sender = daemon.open("vale0:sender");
    let mut frame = Vec::new();
    for seq in 0..COUNT {
        for station in [8, 9] {
            fill(&mut frame, mac(station), 100 + station, seq, 60);
            assert!(sender.send_timeout(&frame, SOON).unwrap());
        }
    }
    assert!(sender.drain(SOON).unwrap());
    let seen = daemon.stats("vale0:slow");
    good.received().assert_whole(109, COUNT);
    assert_eq!(seen.drops.get("no_room"), Some(&(COUNT - RING)), "{seen:?}");
}

#[test]
fn its_senders_wait_where_it_asked_for_that_and_nothing_is_lost() {
    let daemon = Daemon::start();
    add_port(&daemon, "vale0:slow", "wait");
    let mut slow = daemon.open("vale0:slow");
    slow.send(&announcement(8)).unwrap();
    assert!(slow.drain(SOON).unwrap());
    let sender = stream_to(&daemon, 8);
    wait::until("the port to be full", || daemon.stats("vale0:slow").rx.frames == RING);
    // Held back: its own ring is full too, and it says nothing.
    assert_eq!(sender.report_within(Duration::from_millis(100)), None);
    assert_eq!(daemon.stats("vale0:slow").rx.frames, RING);
    let (mut frame, mut scratch, mut tally) = (Vec::new(), Vec::new(), Tally::default());
    while tally.frames() < COUNT {
        assert!(slow.recv_timeout(&mut frame, SOON).unwrap(), "{tally:?}");
        tally.count(&frame, &mut scratch);
    }
    assert_eq!(sender.sent(), COUNT);
    tally.assert_whole(1, COUNT);
    assert!(!daemon.stats("vale0:slow").drops.contains_key("no_room"));
}

#[test]
fn senders_to_others_are_not_held_back() {
    let daemon = Daemon::start();
    add_port(&daemon, "vale0:slow", "wait");
    add_port(&daemon, "vale0:good", "wait");
    let mut slow = daemon.open("vale0:slow");
    slow.send(&announcement(8)).unwrap();
    let at = daemon.at("vale0:good");
    let receive = Receive { at, station: Some(9), count: Some(COUNT), ..Receive::default() };
    let good = Peer::start(&Role::Receive(receive));
    // Stuck for ever behind the slow one.
    let mut stuck = daemon.open("vale0:stuck");
    let mut frame = Vec::new();
    fill(&mut frame, mac(8), 7, 0, 60);
    while stuck.send_timeout(&frame, Some(Duration::from_millis(50))).unwrap() {}
    let (at, lens) = (daemon.at("vale0:sender"), vec![60]);
    let send = Send { at, stream: 1, to: mac(9), count: Some(COUNT), lens, batch: 16 };
    assert_eq!(Peer::start(&Role::Send(send)).sent(), COUNT);
    good.received().assert_whole(1, COUNT);
}

#[test]
fn a_slow_reader_that_wakes_up_gets_what_there_is() {
    let daemon = Daemon::start();
    let mut slow = daemon.options().slots(64).open("vale0:slow").unwrap();
    assert_eq!(stream_to(&daemon, 8).sent(), COUNT);
    let (mut frame, mut scratch, mut tally) = (Vec::new(), Vec::new(), Tally::default());
    while slow.try_recv(&mut frame).unwrap() {
        tally.count(&frame, &mut scratch);
    }
    // The oldest ones, in order, and nothing in between is missing.
    tally.assert_whole(1, 63);
}
