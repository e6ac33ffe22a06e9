//! Programs that do whatever a client, a guest or the peer of a port can, at random from a seed,
//! beside a pair of clients that may lose nothing. `make soak` has them for longer.

use std::time::Duration;

use harness::Random;
use harness::daemon::Daemon;
use harness::round_trips::{RoundTrips, assert_goes_on};
use harness::siege::{self, Attacker, Pair, Siege, rate};

/// The pair loses nothing and goes on while the attackers are at work, and so does one that sends a
/// frame to and fro. The daemon is afterwards as before.
fn assert_costs_nothing(name: &str, seed: u64, attackers: fn(&Daemon) -> Vec<Attacker>) {
    let [alone, besieged] = besiege(name, seed, attackers);
    assert_goes_on(&format!("{name}, round trips"), alone, besieged);
}

/// As [`assert_costs_nothing`], but returns the number of round trips in a second, before the
/// attack and during it. They are made at another switch than that of the attackers.
fn besiege(name: &str, seed: u64, attackers: fn(&Daemon) -> Vec<Attacker>) -> [f64; 2] {
    let mut random = Random::seeded(seed);
    let daemon = siege::daemon();
    let before = daemon.holdings();
    let pair = Pair::start(&daemon);
    let trips = RoundTrips::start(&daemon, "vale1");
    let (alone, trips_alone) = trips.beside(|| rate(&daemon, Duration::from_millis(700)));
    let siege = Siege::start(attackers(&daemon), &mut random);
    let (besieged, trips_besieged) = trips.beside(|| rate(&daemon, Duration::from_secs(4)));
    let all = siege.end();
    trips.finish();
    let outcome = pair.finish();
    eprintln!("{name}: {all:?}");
    assert_goes_on(&format!("{name}, frames"), alone, besieged);
    outcome.assert_whole();
    assert!(outcome.sent > 500, "{} frames are not enough to say anything", outcome.sent);
    for lives in all {
        assert!(lives.attacks > 0, "no attack: {lives:?}");
    }
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    siege::clear(&daemon);
    daemon.assert_holds(before);
    [trips_alone, trips_besieged]
}

#[test]
fn a_hostile_client_costs_a_lossless_pair_no_frame() {
    assert_costs_nothing("client", 71, |daemon| vec![Attacker::client(daemon)]);
}

#[test]
fn a_hostile_guest_costs_a_lossless_pair_no_frame() {
    assert_costs_nothing("guest", 72, |daemon| vec![Attacker::guest(daemon)]);
}

#[test]
fn hostile_peers_of_stream_and_dgram_ports_cost_a_lossless_pair_no_frame() {
    assert_costs_nothing("peers", 75, |daemon| {
        vec![Attacker::stream_peer(daemon), Attacker::dgram_peer(daemon)]
    });
}

#[test]
fn hostile_clients_and_guests_together_cost_a_lossless_pair_no_frame() {
    assert_costs_nothing("both", 73, |daemon| {
        vec![Attacker::client(daemon), Attacker::guest(daemon), Attacker::client(daemon)]
    });
}

#[test]
fn a_user_that_comes_with_many_ports_and_floods_costs_a_lossless_pair_no_frame() {
    // Each of its ports has its turn, and the worker and the crowd take two cores. On a machine
    // with two, any pair of busy programs slows round trips down as much.
    let [alone, besieged] = besiege("crowd", 74, |daemon| vec![Attacker::crowd(daemon)]);
    eprintln!("crowd, round trips: {alone:.0} a second alone, {besieged:.0} besieged");
}
