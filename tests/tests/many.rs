//! Hundreds of switches in one daemon: all work, none gets frames of another, and they come and go
//! fast.

use std::time::{Duration, Instant};

use client::Port;
use harness::daemon::Daemon;
use harness::frames::{BROADCAST, fill};
use harness::process::outcome;
use harness::wait;
use rustix::process::{Resource, getrlimit, setrlimit};

const SWITCHES: u64 = 300;
const PORTS: u64 = 4;
/// Descriptors of this process for each port: region, two doorbells, control connection.
const DESCRIPTORS: u64 = 4;
/// Far more than it takes, and far less than if every port cost a second of anything.
const QUICKLY: Duration = Duration::from_secs(30);

/// As many switches as descriptors allow; the soft limit of many systems would allow 60.
fn affordable() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("what the hard limit allows");
    let most = limit.maximum.unwrap_or(u64::MAX).saturating_sub(200) / (PORTS * DESCRIPTORS);
    most.min(SWITCHES)
}

/// Switches and ports of a daemon.
fn counts(daemon: &Daemon) -> (u64, u64) {
    let info = daemon.connect().unwrap().hello("test").unwrap();
    (info.switches.into(), info.ports.into())
}

fn open_all(daemon: &Daemon, switches: u64) -> Vec<Vec<Port>> {
    let open = |switch, port| {
        let options = daemon.options().slots(16);
        options.open(&format!("vale{switch}:p{port}")).unwrap()
    };
    (0..switches).map(|switch| (0..PORTS).map(|port| open(switch, port)).collect()).collect()
}

#[test]
fn hundreds_of_switches_come_work_and_go_quickly() {
    let (mut daemon, switches, start) = (Daemon::start(), affordable(), Instant::now());
    let before = daemon.holdings();
    let mut all = open_all(&daemon, switches);
    assert_eq!(counts(&daemon), (switches, switches * PORTS));

    // A broadcast on each switch, numbered by the switch: all its other ports get it, once.
    let mut frame = Vec::new();
    for (seq, ports) in (0..).zip(&mut all) {
        fill(&mut frame, BROADCAST, 1, seq, 60);
        ports[0].send(&frame).unwrap();
    }
    let mut got = Vec::new();
    for (seq, ports) in (0..).zip(&mut all) {
        fill(&mut frame, BROADCAST, 1, seq, 60);
        for port in &mut ports[1..] {
            assert!(port.recv_timeout(&mut got, Some(wait::PATIENCE)).unwrap(), "switch {seq}");
            assert_eq!(got, frame);
            assert!(!port.try_recv(&mut got).unwrap(), "a frame of another switch");
        }
        assert!(!ports[0].try_recv(&mut got).unwrap(), "no port gets back what it sent");
    }

    drop(all);
    wait::until("all to go", || counts(&daemon) == (0, 0));
    daemon.assert_holds(before);

    let all = open_all(&daemon, switches);
    daemon.terminate();
    assert_eq!(outcome(daemon.process().wait()), 0);
    assert!(all.iter().flatten().all(|port| port.check().is_err()));
    assert!(start.elapsed() < QUICKLY, "{:?}", start.elapsed());
}
