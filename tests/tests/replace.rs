//! Programs that keep their ports when another daemon takes over.

use std::time::{Duration, Instant};

use client::Error;
use harness::daemon::{Daemon, Setup};
use harness::frames::{Tally, announcement, fill, mac};
use harness::process::Peer;
use harness::role::{Receive, Role, Send};
use harness::wait;
use protocol::{FdbList, FdbRequest, Reply, Request};

const SOON: Option<Duration> = Some(wait::PATIENCE);
/// The receiver's port drops nothing.
const LOSSLESS: &str = "confine = \"on\"\n[switch.vale0.port.b]\non_full = \"wait\"\n";

/// The addresses in the forwarding database of `vale0`.
fn stations(daemon: &Daemon) -> Vec<String> {
    let switch = "vale0".parse().unwrap();
    let list = FdbList { switch, from: None };
    match daemon.call(Request::Fdb(FdbRequest::List(list))) {
        Ok(Reply::Fdb(page)) => page.items.iter().map(|row| row.mac.to_string()).collect(),
        other => panic!("{other:?}"),
    }
}

/// Has one process send to another, and daemons take over meanwhile.
fn no_frame_is_lost(setup: Setup) {
    let mut daemon = setup.start();
    // Frames for an address that is not known wait for a moment only.
    let (at, station) = (daemon.at("vale0:b"), Some(9));
    let receive = Receive { at, station, ..Receive::default() };
    let mut receiver = Peer::start(&Role::Receive(receive));
    let (at, to, lens) = (daemon.at("vale0:a"), mac(9), vec![60, 1500, 200]);
    let send = Send { at, stream: 1, to, count: None, lens, batch: 16 };
    wait::until("the receiver to be known", || {
        daemon.switch("vale0").is_some() && stations(&daemon).len() == 1
    });
    let mut sender = Peer::start(&Role::Send(send));
    let arrive = |daemon: &Daemon| {
        let count = daemon.stats("vale0:b").rx.frames;
        wait::until("frames to arrive", || daemon.stats("vale0:b").rx.frames > count + 1000);
    };
    for _ in 0..5 {
        arrive(&daemon);
        let clients = ["vale0:a", "vale0:b"].map(|port| daemon.port(port).unwrap().client);
        daemon.replace();
        let now = ["vale0:a", "vale0:b"].map(|port| daemon.port(port).unwrap().client);
        assert_eq!(now, clients, "{}", daemon.log());
    }
    arrive(&daemon);
    sender.finish();
    let sent = sender.sent();
    receiver.finish();
    let tally = receiver.received();
    tally.assert_whole(1, sent);
    wait::until("the ports to go", || daemon.port("vale0:a").is_none());
    assert!(daemon.port("vale0:b").unwrap().client.is_none());
}

#[test]
fn two_programs_notice_nothing_and_no_frame_is_lost() {
    no_frame_is_lost(Setup::new(LOSSLESS));
}

#[test]
fn nor_in_a_switch_of_all_workers() {
    let config = format!("{LOSSLESS}[workers]\ncount = 3\n[switch.vale0]\nworkers = \"all\"\n");
    no_frame_is_lost(Setup::new(&config.replacen("confine = \"on\"\n", "", 1)));
}

#[test]
fn frames_that_were_not_read_and_those_that_were_not_taken_are_there() {
    let mut daemon = Setup::new(LOSSLESS).start();
    let mut b = daemon.options().slots(64).open("vale0:b").unwrap();
    let mut a = daemon.options().slots(64).open("vale0:a").unwrap();
    let (mut frame, mut scratch, mut tally) = (Vec::new(), Vec::new(), Tally::default());
    b.send(&announcement(9)).unwrap();
    assert!(a.recv_timeout(&mut frame, SOON).unwrap());
    // More than fits into the receiver's ring: the rest waits in the sender's.
    for seq in 0..100 {
        fill(&mut frame, mac(9), 1, seq, 60);
        a.send(&frame).unwrap();
    }
    for _ in 0..3 {
        daemon.replace();
    }
    for _ in 0..100 {
        assert!(b.recv_timeout(&mut frame, SOON).unwrap());
        tally.count(&frame, &mut scratch);
    }
    tally.assert_whole(1, 100);
    assert!(!b.recv_timeout(&mut frame, Some(Duration::from_millis(20))).unwrap());
}

#[test]
fn a_program_that_sleeps_is_woken_by_the_next_daemon_and_wakes_it() {
    let mut daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let mut frame = Vec::new();
    for round in 0..3 {
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| b.recv_timeout(&mut frame, SOON));
            // Long enough that it sleeps by its descriptor, and the worker, too.
            std::thread::sleep(Duration::from_millis(50));
            daemon.replace();
            std::thread::sleep(Duration::from_millis(50 * round));
            let begin = Instant::now();
            a.send(&announcement(1)).unwrap();
            assert!(heard.join().unwrap().unwrap());
            assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        });
    }
    // The connection is the next daemon's, too: a program that closes it gives the port back.
    drop(a);
    wait::until("the port to go", || daemon.ports() == ["vale0:b"]);
    daemon.kill();
    assert!(matches!(b.recv(&mut frame), Err(Error::Lost(_))));
}

#[test]
fn learned_addresses_are_known_to_the_next_daemon() {
    let mut daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let mut c = daemon.open("vale0:c");
    let mut frame = Vec::new();
    b.send(&announcement(2)).unwrap();
    assert!(c.recv_timeout(&mut frame, SOON).unwrap());
    daemon.replace();
    assert_eq!(stations(&daemon).len(), 1, "{}", daemon.log());
    fill(&mut frame, mac(2), 1, 0, 60);
    a.send(&frame).unwrap();
    assert!(b.recv_timeout(&mut frame, SOON).unwrap());
    assert!(!c.recv_timeout(&mut frame, Some(Duration::from_millis(20))).unwrap(), "a flood");
}

#[test]
fn ports_that_cannot_be_handed_over_are_attached_again() {
    let mut daemon = Daemon::start();
    let options = || daemon.options().reconnect(true);
    let (mut a, mut b) = (
        options().group("trusted").open("vale0:a").unwrap(),
        options().group("trusted").open("vale0:b").unwrap(),
    );
    // Its settings go with it.
    let mut c = options().open("vale0:c").unwrap();
    assert!(daemon.uvala(&["port", "set", "vale0:c", "--isolated"]).status.success());
    daemon.replace();
    let (mut frame, brief) = (Vec::new(), Some(Duration::from_millis(5)));
    wait::until("all to be back", || {
        for port in [&mut a, &mut b, &mut c] {
            assert!(!port.recv_timeout(&mut frame, brief).unwrap());
        }
        daemon.ports().len() == 3
    });
    a.send(&announcement(1)).unwrap();
    assert!(b.recv_timeout(&mut frame, SOON).unwrap());
    assert!(c.recv_timeout(&mut frame, SOON).unwrap());
}

#[test]
fn ports_that_the_next_configuration_refuses_are_lost() {
    let mut daemon = Daemon::start();
    let mut a = daemon.open("vale0:a");
    let mut b = daemon.open("vale0:b");
    daemon.reconfigure("[switch.vale0.port.a]\nkind = \"null\"\n");
    daemon.replace();
    assert!(matches!(a.recv_timeout(&mut Vec::new(), SOON), Err(Error::Lost(_))));
    b.send(&announcement(1)).unwrap();
    assert_eq!(daemon.ports(), ["vale0:a", "vale0:b"]);
}
