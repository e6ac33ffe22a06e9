//! A client holds up all accesses to the memory of its port, or a VMM to that of its guest, and so
//! the worker with all other ports. That costs the client or the VMM its port, and no other client
//! anything.

use std::time::Duration;

use harness::daemon::{Daemon, Setup};
use harness::frames::{fill, mac};
use harness::process::{Peer, USER};
use harness::role::{MemoryAttack, Report, Role, Send};
use harness::{is_root, wait};

const CONFIG: &str = "[socket]\nmode = \"666\"\n[switch.vale0]\nmode = \"666\"\n";
/// The address that the attacker receives by.
const STATION: u32 = 7;
/// When the attacker's thread gets a core is the kernel's choice, and each hole takes seconds where
/// other tests have the cores. Within a minute the switch must wait for three of them.
const PATIENCE: Duration = Duration::from_secs(900);

#[test]
fn a_port_whose_memory_is_slow_is_taken_away_and_others_go_on() {
    let daemon = Setup::new(CONFIG).start();
    let attack = MemoryAttack { at: daemon.at("vale0:hostile"), ..MemoryAttack::default() };
    assert_ends(&daemon, attack, "vale0:hostile: detached: stalls the switch");
    assert!(daemon.port("vale0:hostile").is_none());
}

#[test]
fn a_vmm_whose_guest_has_slow_memory_is_disconnected_and_others_go_on() {
    let daemon = Setup::new(CONFIG).start();
    let added = ["port", "add", "vale0:hostile", "--kind", "vhost-user", "--mode", "666"];
    assert!(daemon.uvala(&added).status.success());
    let port = daemon.port("vale0:hostile").and_then(|port| port.machine).expect("it was added");
    let machine = Some(port.socket.into());
    let attack = MemoryAttack { machine, ..MemoryAttack::default() };
    assert_ends(&daemon, attack, "vale0:hostile: disconnected its VMM: stalls the switch");
}

/// The attack ends with this line, after three stalls for which the attacker was blamed, and no
/// other port. Other ports go on.
fn assert_ends(daemon: &Daemon, attack: MemoryAttack, line: &str) {
    let (at, to, lens) = (daemon.at("vale0:sender"), mac(STATION), vec![60, 1514]);
    let send = Send { at, stream: 1, to, count: None, lens, batch: 16 };
    let mut sender = Peer::start(&Role::Send(send));
    let attack = MemoryAttack { seconds: PATIENCE.as_secs(), ..attack };
    let mut hostile = Peer::launch(&Role::Memory(attack), is_root().then_some(USER));
    assert_eq!(hostile.report(), Report::Ready);
    // No calls meanwhile: control may wait for the worker longer than a caller for control.
    wait::find_within(PATIENCE, "the attack to end", || daemon.log().contains(line).then_some(()));
    hostile.process().kill();
    let log = daemon.log();
    let blamed: Vec<_> = log.lines().filter(|line| line.contains("the memory of")).collect();
    assert!(blamed.len() >= 3, "{log}");
    let is_right = |line: &&str| line.contains("the memory of vale0:hostile held a thread up for");
    assert!(blamed.iter().all(is_right), "{blamed:#?}");
    assert!(daemon.port("vale0:sender").is_some());
    sender.finish();
    assert!(sender.sent() > 0);
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let (mut frame, mut got) = (Vec::new(), Vec::new());
    for seq in 0..100 {
        fill(&mut frame, mac(9), 1, seq, 1514);
        assert!(a.send_timeout(&frame, Some(wait::PATIENCE)).unwrap());
        assert!(b.recv_timeout(&mut got, Some(wait::PATIENCE)).unwrap(), "frame {seq}");
        assert_eq!(got, frame);
    }
}
