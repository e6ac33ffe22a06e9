//! A switch with a chain of functions, each in a process of its own.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use client::Port;
use protocol::{
    ChainInfo, ChainRequest, FunctionInfo, FunctionRequest, GroupAudit, PortStats, Reply, Request,
    SteeringQuery,
};

use crate::daemon::Daemon;
use crate::frames::{Tally, mac};
use crate::process::{Owned, Peer, uvala};
use crate::role::{At, Become, Receive, Role, Send};
use crate::{Random, wait};

/// A switch with a chain `c` of services `s0` to the last, each with an instance `f0`…, between
/// `valenf:a` and `valenf:b`.
#[must_use]
pub fn configuration(functions: usize) -> String {
    let mut text = "[switch.valenf]\nforwarding = \"chain\"\n".to_owned();
    text += "[switch.valenf.port.a]\nchain = \"c\"\n[switch.valenf.port.b]\n";
    for n in 0..functions {
        text += &format!("[switch.valenf.port.f{n}]\nservice = \"s{n}\"\n");
    }
    let services: Vec<_> = (0..functions).map(|n| format!("\"s{n}\"")).collect();
    let services = services.join(", ");
    text + &format!("[[switch.valenf.chain]]\nname = \"c\"\nservices = [{services}]\n")
}

/// A command of these words for a daemon, which says what it says to us.
#[must_use]
pub fn command(daemon: &Daemon, words: &str) -> Command {
    let words: Vec<&str> = words.split(' ').collect();
    let mut command = uvala(Become::default(), &words, None);
    command.env("UVALA_DIR", daemon.dir()).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// A function in a process of its own, which passes everything on.
#[must_use]
pub fn function(daemon: &Daemon, number: usize) -> Owned {
    let function = Owned::spawn(&mut command(daemon, &format!("nf run bypass valenf:f{number}")));
    wait::until("a function", || runs(daemon, number));
    function
}

/// All functions, as they are listed.
///
/// # Panics
/// If they are not.
#[must_use]
pub fn functions(daemon: &Daemon) -> Vec<FunctionInfo> {
    match daemon.call(Request::Function(FunctionRequest::List(query()))) {
        Ok(Reply::Functions(page)) => page.items,
        other => panic!("{other:?}"),
    }
}

/// The chain, as it is listed.
///
/// # Panics
/// If it is not.
#[must_use]
pub fn chain(daemon: &Daemon) -> ChainInfo {
    match daemon.call(Request::Chain(ChainRequest::List(query()))) {
        Ok(Reply::Chains(mut page)) => page.items.remove(0),
        other => panic!("{other:?}"),
    }
}

/// Kills functions of a chain at full load one after the other; each comes again, and is joined as
/// before. What became of the frames is for `account`, which is told how often each died, how many
/// were sent and what came out. No buffer is lost.
///
/// # Panics
/// If one is, or if anything else is wrong.
pub fn one_dies(
    daemon: &Daemon,
    mut all: Vec<Owned>,
    (rounds, seed): (u64, u64),
    account: impl FnOnce(&[u64], u64, &Tally),
) {
    let mut random = Random::seeded(seed * 100 + all.len() as u64);
    let mut kills = vec![0; all.len()];
    let [mut sender, mut receiver] = full_load(daemon);
    let flows = |more| flows(daemon, more);
    for _ in 0..rounds {
        flows(random.below(2000));
        let victim = usize::try_from(random.below(all.len() as u64)).expect("a few functions");
        all[victim].kill();
        kills[victim] += 1;
        wait::until("the port to be free", || !runs(daemon, victim));
        let group = audit(daemon);
        assert_eq!(group[0].members.len(), all.len() + 1, "a dead member has nothing: {group:?}");
        all[victim] = function(daemon, victim);
    }
    flows(1000);
    sender.finish();
    await_empty(daemon);
    receiver.finish();
    account(&kills, sender.sent(), &receiver.received());
    let group = audit(daemon).remove(0);
    let wrong = group.members.iter().any(|member| member.wrong + member.kept > 0);
    assert!(!wrong, "{group:?}");
    drop(all);
    wait::until("all ports to go", || audit(daemon).is_empty());
}

/// Processes of the functions' group that send as much as they can into the chain, and receive what
/// comes out.
#[must_use]
pub fn full_load(daemon: &Daemon) -> [Peer; 2] {
    let member = |name: &str| At { group: Some("nf".to_owned()), ..daemon.at(name) };
    let receive = Receive { at: member("valenf:b"), station: Some(9), ..Receive::default() };
    let receiver = Peer::start(&Role::Receive(receive));
    let (at, lens) = (member("valenf:a"), vec![60, 64]);
    let send = Send { at, stream: 1, to: mac(9), count: None, lens, batch: 64 };
    [Peer::start(&Role::Send(send)), receiver]
}

/// Waits until no frame waits for a function.
pub fn await_empty(daemon: &Daemon) {
    wait::until("the chain to be empty", || functions(daemon).iter().all(|f| f.waiting == 0));
}

/// Waits until this many frames more have come out.
pub fn flows(daemon: &Daemon, more: u64) {
    let frames = daemon.stats("valenf:b").rx.frames + more;
    wait::until("frames", || daemon.stats("valenf:b").rx.frames > frames);
}

/// Counts what arrives until it is over; `got` says how many frames.
///
/// # Panics
/// If the port fails.
pub fn receive(port: &mut Port, got: &AtomicU64, over: &AtomicBool) -> Tally {
    let (mut tally, mut frame, mut scratch) = (Tally::default(), Vec::new(), Vec::new());
    while !over.load(Ordering::Relaxed) {
        while port.recv_timeout(&mut frame, Some(Duration::from_millis(5))).expect("a port") {
            tally.count(&frame, &mut scratch);
            got.store(tally.frames(), Ordering::Relaxed);
        }
    }
    tally
}

fn query() -> SteeringQuery {
    SteeringQuery { switch: "valenf".parse().expect("a name"), from: None }
}

/// Whether a program runs this function.
#[must_use]
pub fn runs(daemon: &Daemon, number: usize) -> bool {
    let name = format!("valenf:f{number}");
    functions(daemon).iter().any(|info| info.port.to_string() == name && info.pid.is_some())
}

/// What `uvala audit` says, which fails where a buffer is lost.
///
/// # Panics
/// If one is.
#[must_use]
pub fn audit(daemon: &Daemon) -> Vec<GroupAudit> {
    let output = daemon.uvala(&["audit", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a listing")
}

/// All drops of a port.
#[must_use]
pub fn drops(stats: &PortStats) -> u64 {
    stats.drops.values().sum()
}

/// Frames dropped for one reason.
#[must_use]
pub fn dropped(stats: &PortStats, reason: &str) -> u64 {
    stats.drops.get(reason).copied().unwrap_or(0)
}
