//! Clients are killed in the middle of everything; the others lose nothing.

use std::time::Duration;

use harness::daemon::{Daemon, Setup};
use harness::frames::{BROADCAST, Tally, announcement, fill, mac};
use harness::process::Peer;
use harness::role::{Hoard, Receive, Role, Send};
use harness::{Random, wait};

const SOON: Option<Duration> = Some(wait::PATIENCE);

/// Every port at which nothing may be lost makes its senders wait.
const CONFIG: &str = "[switch.vale0.port.honest]\non_full = \"wait\"\n\
                      [switch.vale0.port.doomed]\non_full = \"wait\"\n";

/// A victim of round `round`: a sender or a receiver, waiting in one of the ways.
fn victim(daemon: &Daemon, random: &mut Random, round: u32) -> (Role, String) {
    let sends = random.below(2) == 0;
    // A receiver of a persistent port that makes others wait, or one that comes and goes.
    let name = match (sends, random.below(2)) {
        (false, 0) => "vale0:doomed".to_owned(),
        _ => format!("vale0:victim{round}"),
    };
    let mut at = daemon.at(&name);
    match random.below(3) {
        0 => at.spin = true,
        1 => at.sleepy = true,
        _ => {}
    }
    if sends {
        let to = if random.below(2) == 0 { mac(9) } else { BROADCAST };
        let lens = vec![60, 1514, 4000];
        let batch = 1 + usize::try_from(random.below(64)).unwrap();
        let send = Send { at, stream: 1000 + round, to, count: None, lens, batch };
        (Role::Send(send), name)
    } else {
        let station = Some(if name.ends_with("doomed") { 8 } else { 100 + round });
        (Role::Receive(Receive { at, station, ..Receive::default() }), name)
    }
}

fn sender(daemon: &Daemon, stream: u32, to: u32, lens: Vec<usize>) -> Peer {
    let at = daemon.at(&format!("vale0:s{stream}"));
    Peer::start(&Role::Send(Send { at, stream, to: mac(to), count: None, lens, batch: 16 }))
}

fn finish(mut peer: Peer) -> Peer {
    peer.finish();
    peer
}

#[test]
fn kill_9_of_clients_under_load_costs_the_others_nothing() {
    let mut random = Random::seeded(20);
    let daemon = Setup::new(CONFIG).start();
    let at = daemon.at("vale0:honest");
    let receive = Receive { at, station: Some(9), ..Receive::default() };
    let receiver = Peer::start(&Role::Receive(receive));
    let honest = [sender(&daemon, 1, 9, vec![60, 64]), sender(&daemon, 2, 9, vec![1514, 5000])];
    let before = daemon.holdings();
    let ports = daemon.ports();
    for round in 0..24 {
        let (role, name) = victim(&daemon, &mut random, round);
        let mut victim = Peer::start(&role);
        // Killed while it does something, which is at another point each time.
        let frames = daemon.stats("vale0:honest").rx.frames + random.below(3000);
        wait::until("the others to go on", || daemon.stats("vale0:honest").rx.frames > frames);
        victim.process().kill();
        wait::until("the dead port to be reclaimed", || {
            daemon.port(&name).is_none_or(|info| info.client.is_none())
        });
    }
    assert_eq!(daemon.ports(), ports);
    daemon.assert_holds(before);
    let sent = honest.map(|sender| finish(sender).sent());
    let tally: Tally = finish(receiver).received();
    tally.assert_whole(1, sent[0]);
    tally.assert_whole(2, sent[1]);
}

#[test]
fn a_sender_that_waits_for_a_dead_port_goes_on() {
    let daemon = Setup::new(CONFIG).start();
    let at = daemon.at("vale0:honest");
    let receive = Receive { at, station: Some(9), ..Receive::default() };
    let receiver = Peer::start(&Role::Receive(receive));
    let mut doomed = daemon.open("vale0:doomed");
    doomed.send(&announcement(8)).unwrap();
    assert!(doomed.drain(SOON).unwrap());
    // One frame for the one that never reads, then many for the honest one behind it.
    let mut sender = daemon.open("vale0:s1");
    let mut frame = Vec::new();
    for seq in 0..1100 {
        fill(&mut frame, mac(8), 2, seq, 60);
        assert!(sender.send_timeout(&frame, SOON).unwrap());
    }
    for seq in 0..500 {
        fill(&mut frame, mac(9), 1, seq, 60);
        assert!(sender.send_timeout(&frame, SOON).unwrap());
    }
    wait::until("the doomed port to be full", || daemon.stats("vale0:doomed").rx.frames == 1023);
    // Only the broadcast.
    assert_eq!(daemon.stats("vale0:honest").rx.frames, 1);
    drop(doomed);
    assert!(sender.drain(SOON).unwrap());
    finish(receiver).received().assert_whole(1, 500);
}

#[test]
fn a_crash_in_a_trust_group_leaves_the_others_their_memory() {
    let daemon = Setup::new(CONFIG).start();
    let before = daemon.holdings();
    let member = |name: &str| {
        let mut at = daemon.at(name);
        at.group = Some("chain".to_owned());
        at
    };
    let at = member("vale0:honest");
    let receive = Receive { at, station: Some(9), ..Receive::default() };
    let receiver = Peer::start(&Role::Receive(receive));
    let (at, lens) = (member("vale0:s1"), vec![60, 1514]);
    let send = Send { at, stream: 1, to: mac(9), count: None, lens, batch: 16 };
    let sender = Peer::start(&Role::Send(send));
    for round in 0..5 {
        let (at, lens) = (member("vale0:victim"), vec![1514]);
        let send = Send { at, stream: 50 + round, to: mac(9), count: None, lens, batch: 16 };
        let mut victim = Peer::start(&Role::Send(send));
        let frames = daemon.stats("vale0:honest").rx.frames + 500;
        wait::until("frames", || daemon.stats("vale0:honest").rx.frames > frames);
        victim.process().kill();
        wait::until("the port to go", || daemon.port("vale0:victim").is_none());
    }
    let sent = finish(sender).sent();
    finish(receiver).received().assert_whole(1, sent);
    wait::until("all clients to go", || daemon.ports().len() == 2);
    daemon.assert_holds(before);
}

#[test]
fn what_a_member_of_a_trust_group_held_comes_back_when_it_is_killed() {
    // A group has 248,000 buffers: they would be gone after a dozen.
    const EXTRA: u32 = 20_000;
    let daemon = Setup::new(CONFIG).start();
    let before = daemon.holdings();
    let member = |name: &str| {
        let mut at = daemon.at(name);
        at.group = Some("chain".to_owned());
        at
    };
    let send = |stream, to, count| {
        let (at, lens) = (member(&format!("vale0:s{stream}")), vec![60, 1514]);
        Peer::start(&Role::Send(Send { at, stream, to: mac(to), count, lens, batch: 16 }))
    };
    let at = member("vale0:honest");
    let receive = Receive { at, station: Some(9), ..Receive::default() };
    let receiver = Peer::start(&Role::Receive(receive));
    let sender = send(1, 9, None);
    for round in 0..18 {
        let at = member("vale0:hoarder");
        let hoard = Hoard { at, station: 100 + round, extra_bufs: EXTRA };
        let mut hoarder = Peer::start(&Role::Hoard(hoard));
        // It ends up with buffers that were the sender's, and the sender with some of its.
        let mut feeder = send(50, 100 + round, Some(500));
        assert_eq!(feeder.sent(), 500);
        feeder.process().wait();
        let frames = daemon.stats("vale0:honest").rx.frames + 500;
        wait::until("frames", || daemon.stats("vale0:honest").rx.frames > frames);
        assert!(daemon.stats("vale0:hoarder").rx.frames > 400);
        hoarder.process().kill();
        wait::until("the port to go", || daemon.port("vale0:hoarder").is_none());
    }
    let sent = finish(sender).sent();
    finish(receiver).received().assert_whole(1, sent);
    wait::until("all clients to go", || daemon.ports().len() == 2);
    daemon.assert_holds(before);
}
