//! A hostile client attacks by the doorbell that it was given to kick the switch, or by what the
//! switch wakes it by. Its own port suffers, and nothing else: others lose no frame, the daemon
//! answers and ends when it is told to, and no thread of it hangs.

use std::time::{Duration, Instant};

use client::control::Connection;
use harness::daemon::{Daemon, Setup};
use harness::frames::{fill, mac};
use harness::measure::holdings;
use harness::process::{Peer, USER};
use harness::role::{
    Assault, At, ClosingAttack, DoorbellAttack, InterruptAttack, Receive, Report, ReturnAttack,
    Role, Send, SocketAttack, WakeAssault, WakeAttack,
};
use harness::round_trips::RoundTrips;
use harness::{is_root, skip, wait};
use protocol::{Attach, MachineState};
use rustix::process::Uid;

/// Honest receivers lose nothing, because their senders wait for room.
const CONFIG: &str = r#"
[socket]
mode = "666"
[switch.vale0]
mode = "666"
[switch.vale0.port.honest]
on_full = "wait"
[switch.vale0.port.ping]
on_full = "wait"
[switch.vale0.port.pong]
on_full = "wait"
"#;
/// The address of the machine that is attacked by.
const STATION: u32 = 7;
/// An attacker ends after so long. Where its attack works, the daemon answers no earlier.
const ATTACK: u64 = 20;
/// Far more than an answer of a daemon takes that no peer holds up.
const ANSWER: Duration = Duration::from_secs(10);

/// States of a daemon's threads, as letters. Not of the one that moves memory to huge pages: it
/// waits for threads of the kernel, and no client waits for it.
fn states(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map_while(Result::ok);
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let state = |stat: String| match stat.rsplit_once(") ")? {
        (name, _) if name.ends_with("(huge-pages") => None,
        (_, rest) => rest.chars().next(),
    };
    stats.filter_map(state).collect()
}

/// Whether a thread of the daemon hangs in the kernel. One that waits while memory is moved to huge
/// pages is there for a part of a second.
fn hangs(pid: u32) -> bool {
    (0..20).all(|_| {
        let waits = states(pid).contains('D');
        if waits {
            std::thread::sleep(Duration::from_millis(100));
        }
        waits
    })
}

fn attack(assault: Assault) {
    let user = is_root().then_some(USER);
    let attack = |at| Role::Doorbells(DoorbellAttack { at, assault, seconds: ATTACK });
    withstands(&format!("{assault:?}"), attack, user);
}

fn wake_attack(assault: WakeAssault) {
    let user = is_root().then_some(USER);
    let attack = |at| Role::WakeUps(WakeAttack { at, assault, seconds: ATTACK });
    withstands(&format!("{assault:?}"), attack, user);
}

/// Pairs of ports lose nothing and go on, and the daemon answers and ends, while a peer attacks.
fn withstands(assault: &str, attack: impl FnOnce(At) -> Role, user: Option<u32>) {
    let mut daemon = Setup::new(CONFIG).start();
    let at = daemon.at("vale0:honest");
    let receive = Receive { at, station: Some(9), ..Receive::default() };
    let mut receiver = Peer::start(&Role::Receive(receive));
    let (mut at, lens) = (daemon.at("vale0:sender"), vec![60, 1514]);
    // A pair that sleeps all the time needs every kick and every wake-up.
    at.sleepy = true;
    let send = Send { at, stream: 1, to: mac(9), count: None, lens, batch: 1 };
    let mut sender = Peer::start(&Role::Send(send));
    let trips = RoundTrips::start(&daemon, "vale0");
    let ((), before) = trips.beside(|| std::thread::sleep(Duration::from_secs(1)));
    let mut hostile = Peer::launch(&attack(daemon.at("vale0:hostile")), user);
    match hostile.report() {
        Report::Missing(what) => return skip(&what),
        report => assert_eq!(report, Report::Ready),
    }
    let ((), during) = trips.beside(|| assert_answers(&daemon, assault));
    trips.look_twice(assault, before, during);
    trips.finish();
    sender.finish();
    let sent = sender.sent();
    receiver.finish();
    receiver.received().assert_whole(1, sent);
    assert!(sent > 100, "{sent} frames are not enough to say anything");
    let asked = Instant::now();
    daemon.terminate();
    daemon.process().wait();
    assert!(asked.elapsed() < ANSWER, "{assault} held up the daemon's end: {:?}", asked.elapsed());
    hostile.process().kill();
}

/// For a while, the daemon answers and honest frames arrive.
fn assert_answers(daemon: &Daemon, assault: &str) {
    let (end, mut frames) = (Instant::now() + Duration::from_secs(3), 0);
    while Instant::now() < end {
        let (asked, before) = (Instant::now(), frames);
        assert!(daemon.uvala(&["stats"]).status.success());
        wait::until("honest frames", || {
            frames = daemon.stats("vale0:honest").rx.frames;
            frames > before
        });
        assert!(asked.elapsed() < ANSWER, "{assault} held up the daemon: {:?}", asked.elapsed());
        assert!(!hangs(daemon.pid()), "{assault}: {}", states(daemon.pid()));
    }
}

#[test]
fn modes_of_doorbells_are_nothing_to_the_switch() {
    attack(Assault::Flags);
}

#[test]
fn full_counters_hold_nobody_up() {
    attack(Assault::Fill);
}

#[test]
fn many_watches_of_doorbells_hold_nobody_up() {
    attack(Assault::Watch { watches: 20_000 });
}

#[test]
fn splicing_doorbells_holds_nobody_up() {
    attack(Assault::Splice);
}

#[test]
fn a_kick_that_outlives_its_client_holds_no_port_up() {
    attack(Assault::Pass);
}

#[test]
fn a_kick_that_was_closed_holds_no_port_up() {
    attack(Assault::Close);
}

#[test]
fn a_kick_by_slow_memory_holds_no_port_up() {
    if !is_root() {
        return skip("only root can hold up the kernel's faults");
    }
    let assault = Assault::SlowMemory;
    let attack = |at| Role::Doorbells(DoorbellAttack { at, assault, seconds: ATTACK });
    withstands("slow memory", attack, None);
}

/// Attaches and leaves as often, as an ordinary user.
fn come_and_go(daemon: &Daemon, times: u32) {
    let dir = daemon.dir();
    let run = move || {
        rustix::thread::set_thread_uid(Uid::from_raw(USER)).expect("root may");
        for time in 0..times {
            let asked = Instant::now();
            let connection = Connection::open(Some(&dir)).expect("a daemon");
            let name = format!("vale0:plain{time}").parse().expect("a name");
            let (tx_slots, rx_slots) = (Some(64), Some(64));
            let attach = Attach { tx_slots, rx_slots, ..Attach::new(name) };
            drop(connection.attach(attach).expect("another user"));
            assert!(asked.elapsed() < ANSWER, "{time}: {:?}", asked.elapsed());
        }
    };
    std::thread::spawn(run).join().expect("no panic");
}

#[test]
fn what_a_client_keeps_from_being_closed_holds_up_no_other_user() {
    /// Each leaves two files. The daemon admits one more port with 64 of them, not with 65.
    const PIPES: u32 = 40;
    if !is_root() {
        return skip("only root can hold up the kernel's faults");
    }
    let mut daemon = Setup::new(CONFIG).start();
    let pid = daemon.pid();
    come_and_go(&daemon, 1);
    wait::until("the first port to go", || daemon.port("vale0:plain0").is_none());
    let at_first = holdings(pid).descriptors;
    let at = daemon.at("vale0:hostile");
    let attack = ClosingAttack { at, pipes: PIPES, seconds: 3 * ATTACK };
    let mut hostile = Peer::launch(&Role::Closings(attack), None);
    assert_eq!(hostile.report(), Report::Ready);
    let held = holdings(pid).descriptors;
    assert!(hangs(pid) && held > at_first + 64, "{held} descriptors, {}", states(pid));
    come_and_go(&daemon, 300);
    wait::until("its descriptors to be closed", || holdings(pid).descriptors <= held + 8);
    hostile.process().kill();
    wait::until("all to be closed", || holdings(pid).descriptors <= at_first + 8);
    daemon.terminate();
    daemon.process().wait();
}

#[test]
fn what_a_client_keeps_from_being_closed_holds_up_no_replacement() {
    if !is_root() {
        return skip("only root can hold up the kernel's faults");
    }
    let mut daemon = Setup::new(CONFIG).start();
    let (pid, at) = (daemon.pid(), daemon.at("vale0:hostile"));
    let mut hostile =
        Peer::launch(&Role::Closings(ClosingAttack { at, pipes: 40, seconds: 3 * ATTACK }), None);
    assert_eq!(hostile.report(), Report::Ready);
    assert!(hangs(pid), "{}", states(pid));
    let mut before = daemon.begin_to_replace();
    wait::until("the next daemon", || daemon.log().matches("ready socket=").count() == 2);
    come_and_go(&daemon, 10);
    assert!(!before.has_ended(), "the kernel holds it up");
    hostile.process().kill();
    before.wait();
}

#[test]
fn splicing_the_wake_up_descriptor_holds_nobody_up() {
    wake_attack(WakeAssault::Splice);
}

// The attacks below, but for that with slow memory, did no harm when the descriptor was a pipe.
// They are here because it is a socket now, and a futex.

#[test]
fn wake_ups_that_no_process_reads_hold_nobody_up() {
    wake_attack(WakeAssault::Nothing);
}

#[test]
fn modes_of_the_wake_up_descriptor_are_nothing_to_the_switch() {
    wake_attack(WakeAssault::Flags);
}

#[test]
fn a_wake_up_descriptor_that_was_passed_on_holds_nobody_up() {
    wake_attack(WakeAssault::Pass);
}

#[test]
fn a_wake_up_descriptor_that_was_closed_holds_nobody_up() {
    wake_attack(WakeAssault::Close);
}

/// A client that makes its wake-ups slow loses its port, and its user may attach none for a while.
fn slow_wake_ups_cost_the_port_its_place(assault: WakeAssault) {
    let daemon = Setup::new(CONFIG).start();
    let (at, user) = (daemon.at("vale0:hostile"), is_root().then_some(USER));
    let mut hostile =
        Peer::launch(&Role::WakeUps(WakeAttack { at, assault, seconds: ATTACK }), user);
    assert_eq!(hostile.report(), Report::Ready);
    wait::until("the port to be taken away", || daemon.port("vale0:hostile").is_none());
    assert!(daemon.port("vale0:feeder").is_some());
    let log = daemon.log();
    assert!(log.contains("waking the client of vale0:hostile"), "{log}");
    assert!(log.contains("vale0:hostile: detached: stalls the switch"), "{log}");
    let again = daemon.uvala_as(&["gen", "-i", "vale0:again", "-f", "rx", "-T", "1"], user);
    let message = String::from_utf8_lossy(&again.stderr).into_owned();
    match user {
        Some(_) => assert!(message.contains("stalled its switch"), "{message}"),
        None => assert!(again.status.success(), "the daemon's user is not refused: {message}"),
    }
    hostile.process().kill();
}

#[test]
fn many_watches_of_the_wake_up_descriptor_cost_the_port_its_place() {
    slow_wake_ups_cost_the_port_its_place(WakeAssault::Watch { watches: 200_000 });
}

#[test]
fn slow_wake_ups_among_quick_ones_cost_the_port_its_place() {
    slow_wake_ups_cost_the_port_its_place(WakeAssault::Alternate { watches: 60_000 });
}

#[test]
fn a_client_that_leaves_after_two_slow_wake_ups_is_refused_after_the_third() {
    returns(false);
}

#[test]
fn a_client_that_leaves_while_its_kick_is_slow_holds_nobody_up() {
    returns(true);
}

/// A client that attaches again and again is refused, for what it makes slow.
fn returns(by_kicks: bool) {
    if !is_root() {
        return skip("only root can be another user, and the daemon's own is not refused");
    }
    let daemon = Setup::new(CONFIG).start();
    let trips = RoundTrips::start(&daemon, "vale0");
    let (at, watches) = (daemon.at("vale0:hostile"), 100_000);
    let attack = ReturnAttack { at, watches, by_kicks, seconds: ATTACK };
    let ((), during) = trips.beside(|| {
        let hostile = Peer::launch(&Role::Returns(attack), Some(USER));
        assert_eq!(hostile.report(), Report::Ready);
        match hostile.report() {
            Report::Failed { message, .. } => {
                assert!(message.contains("stalled its switch"), "{message}");
            }
            // The kernel takes the eventfd out, and may never meet the client's kick.
            Report::Ready if by_kicks => {}
            other => panic!("{other:?}"),
        }
    });
    assert!(during > 1.0, "{during} round trips a second");
    trips.finish();
}

#[test]
fn many_watches_of_an_interrupt_cost_the_vmm_its_place() {
    let daemon = Setup::new(CONFIG).start();
    let vhost = ["port", "add", "vale0:vm", "--kind", "vhost-user"];
    assert!(daemon.uvala(&vhost).status.success());
    let machine = || daemon.port("vale0:vm").unwrap().machine.unwrap();
    let attack = |watches| {
        let (socket, station) = (machine().socket.into(), STATION);
        Role::Interrupts(InterruptAttack { socket, station, watches })
    };
    let mut hostile = Peer::start(&attack(200_000));
    let mut feeder = daemon.open("vale0:feeder");
    let mut frame = Vec::new();
    fill(&mut frame, mac(STATION), 1, 0, 60);
    wait::until("the VMM to be disconnected", || {
        feeder.send(&frame).unwrap();
        machine().state == MachineState::Waiting
    });
    let complaint = wait::find("the reason", || machine().complaint);
    assert!(complaint.contains("stalls the switch (3 times within a minute)"), "{complaint}");
    let log = daemon.log();
    assert!(log.contains("vale0:vm: disconnected its VMM: stalls the switch"), "{log}");
    assert!(log.contains("waking the client of vale0:vm"), "{log}");
    hostile.process().kill();
    // Another VMM is not admitted.
    let mut again = Peer::launch(&attack(0), None);
    assert!(wait::find("its end", || again.process().has_ended().then_some(true)));
    assert_eq!(machine().state, MachineState::Waiting);
}

/// A peer of such a port watches its socket very often, and is evicted. It sends `quick` frames by
/// another socket before each that is slow.
fn watched_peer_is_evicted(kind: &str, sends: Option<usize>, quick: u32) {
    let daemon = Setup::new(CONFIG).start();
    let peer = daemon.dir().join("hostile.sock");
    let peer = (kind == "dgram").then_some(peer);
    let mut add = vec!["port", "add", "vale0:vm", "--kind", kind];
    let path = peer.as_deref().map(|peer| peer.to_str().expect("a text"));
    add.extend(path.into_iter().flat_map(|path| ["--peer", path]));
    assert!(daemon.uvala(&add).status.success());
    let machine = || daemon.port("vale0:vm").unwrap().machine.unwrap();
    let (socket, station) = (machine().socket.into(), STATION);
    // The first call that takes from a stream may call them all for each of very many messages.
    let watches = if sends.is_some() { 60_000 } else { 200_000 };
    let attack = SocketAttack { socket, peer, station, watches, sends, quick };
    let mut hostile = Peer::start(&Role::Sockets(attack));
    let mut feeder = daemon.open("vale0:feeder");
    let mut frame = Vec::new();
    fill(&mut frame, mac(STATION), 1, 0, 60);
    let complaint = wait::find("the port to complain", || {
        // A call that sends to the peer is slow, too.
        if quick == 0 {
            feeder.send(&frame).unwrap();
        }
        machine().complaint
    });
    assert!(complaint.contains("stalls the switch (3 times within a minute)"), "{complaint}");
    assert_eq!(machine().state, MachineState::Waiting);
    let log = daemon.log();
    assert!(sends.is_some() || log.contains("sending to vale0:vm"), "{log}");
    assert!(!log.contains("waking the client of vale0:vm"), "{log}");
    hostile.process().kill();
}

#[test]
fn many_watches_of_a_streams_peer_cost_it_its_place() {
    watched_peer_is_evicted("stream", None, 0);
    watched_peer_is_evicted("stream", Some(1), 0);
    watched_peer_is_evicted("stream", Some(1000), 0);
}

#[test]
fn many_watches_of_a_peer_by_datagrams_cost_it_its_place() {
    watched_peer_is_evicted("dgram", None, 0);
    watched_peer_is_evicted("dgram", Some(1000), 0);
}

#[test]
fn slow_datagrams_among_quick_ones_cost_the_peer_its_place() {
    watched_peer_is_evicted("dgram", Some(1000), 100);
}

#[test]
fn many_watches_of_the_wake_up_descriptor_hold_nobody_up() {
    wake_attack(WakeAssault::Watch { watches: 200_000 });
}

#[test]
fn many_waiters_in_the_bucket_of_the_futex_hold_nobody_up() {
    wake_attack(WakeAssault::Futex { waiters: 300_000 });
}

#[test]
fn random_numbers_in_the_words_of_wake_ups_hold_nobody_up() {
    wake_attack(WakeAssault::Scribble);
}

#[test]
fn a_wake_up_that_is_read_into_slow_memory_holds_nobody_up() {
    if !is_root() {
        return skip("only root can hold up the kernel's faults");
    }
    let assault = WakeAssault::SlowMemory;
    let attack = |at| Role::WakeUps(WakeAttack { at, assault, seconds: ATTACK });
    withstands("slow memory", attack, None);
}
