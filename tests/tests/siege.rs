//! Programs that do whatever a client, a guest or the peer of a port can, at random from a seed,
//! beside a pair of clients that may lose nothing. `make soak` has them for longer.

use std::time::Duration;

use harness::Random;
use harness::daemon::Daemon;
use harness::siege::{self, Attacker, Pair, Siege, rate};

/// The pair loses nothing while the attackers are at work, and the daemon is afterwards as before.
fn assert_costs_nothing(name: &str, seed: u64, attackers: fn(&Daemon) -> Vec<Attacker>) {
    let mut random = Random::seeded(seed);
    let daemon = siege::daemon();
    let before = daemon.holdings();
    let pair = Pair::start(&daemon);
    let alone = rate(&daemon, Duration::from_millis(700));
    let siege = Siege::start(attackers(&daemon), &mut random);
    let besieged = rate(&daemon, Duration::from_secs(4));
    let all = siege.end();
    let outcome = pair.finish();
    eprintln!("{name}: {all:?}");
    eprintln!("alone {alone:.0} frames/s, besieged {besieged:.0}: {:.2}", besieged / alone);
    outcome.assert_whole();
    assert!(outcome.sent > 500, "{} frames are not enough to say anything", outcome.sent);
    for lives in all {
        assert!(lives.attacks > 0, "no attack: {lives:?}");
    }
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    siege::clear(&daemon);
    daemon.assert_holds(before);
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
    assert_costs_nothing("crowd", 74, |daemon| vec![Attacker::crowd(daemon)]);
}
