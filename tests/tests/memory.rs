//! A daemon that has nothing left: it refuses, keeps nothing half-made, and goes on.

use client::Port;
use harness::daemon::{Daemon, Setup};
use harness::frames::{BROADCAST, Tally, fill};
use harness::netmap::Descriptor;
use harness::wait;
use protocol::{Bind, exit};

/// Opens ports until the daemon refuses; returns those that it granted.
fn open_until_refused(daemon: &Daemon, slots: u32) -> Vec<Port> {
    let mut ports = Vec::new();
    loop {
        let name = format!("vale0:p{}", ports.len());
        match daemon.options().slots(slots).open(&name) {
            Ok(port) => ports.push(port),
            Err(error) => {
                assert_eq!(error.exit_code(), exit::NO_MEMORY, "{error}");
                return ports;
            }
        }
        assert!(ports.len() < 500, "no limit is reached");
    }
}

/// A frame from the first port to all others.
fn still_switches(ports: &mut [Port]) {
    let (mut frame, mut scratch) = (Vec::new(), Vec::new());
    fill(&mut frame, BROADCAST, 1, 0, 1514);
    let (first, others) = ports.split_first_mut().expect("some ports");
    first.send(&frame).unwrap();
    for port in others {
        let mut tally = Tally::default();
        assert!(port.recv_timeout(&mut frame, Some(wait::PATIENCE)).unwrap());
        tally.count(&frame, &mut scratch);
        tally.assert_whole(1, 1);
    }
}

fn refuses_and_goes_on(daemon: &Daemon, slots: u32) {
    let empty = daemon.holdings();
    for _ in 0..2 {
        let mut ports = open_until_refused(daemon, slots);
        assert!(ports.len() >= 2, "{} ports", ports.len());
        let before = daemon.holdings();
        // Refused as often as asked, in whatever shape, and nothing stays of it.
        for name in ["vale0:more", "valeother:more", "vale0:pipe{1"] {
            let refused = daemon.options().slots(slots).open(name).unwrap_err();
            assert_eq!(refused.exit_code(), exit::NO_MEMORY, "{name}: {refused}");
        }
        let grouped = daemon.options().slots(slots).group("chain").open("vale0:more").unwrap_err();
        assert_eq!(grouped.exit_code(), exit::NO_MEMORY, "{grouped}");
        daemon.assert_holds(before);
        assert_eq!(daemon.switch("valeother"), None);
        assert_eq!(daemon.ports().len(), ports.len());
        still_switches(&mut ports);
        drop(ports);
        wait::until("all to go", || daemon.ports().is_empty());
        daemon.assert_holds(empty);
    }
}

#[test]
fn no_address_space_left() {
    // 100 MiB for ports of 17 MiB and more, beside what the program and its threads reserve.
    let daemon = Setup::new("").address_space(532 << 20).start();
    refuses_and_goes_on(&daemon, 4096);
}

#[test]
fn no_descriptors_left() {
    let daemon = Setup::new("").descriptors(60).start();
    // Its ports and connections share what there is: attach on few connections.
    let connection = daemon.connect().unwrap();
    connection.hello("one for all").unwrap();
    let empty = daemon.holdings();
    let attach =
        |name: &str| connection.attach(protocol::Attach::new(name.parse().expect("a name")));
    let mut granted = 0;
    let refused = loop {
        match attach(&format!("vale0:p{granted}")) {
            Ok(_) => granted += 1,
            Err(refused) => break refused,
        }
        assert!(granted < 60, "no limit is reached");
    };
    assert_eq!(refused.exit_code(), exit::NO_MEMORY, "{refused}");
    // A few of these may be of the attach that was refused: a thread closes them.
    let before = daemon.holdings();
    (0..8).for_each(|_| assert!(attach("valeother:more").is_err()));
    wait::until("what they opened to go", || {
        let now = daemon.holdings();
        now.descriptors <= before.descriptors && now.regions <= before.regions
    });
    assert_eq!(daemon.switch("valeother"), None);
    assert_eq!(daemon.ports().len(), granted);
    drop(connection);
    wait::until("all to go", || daemon.ports().is_empty());
    // What is left is the worker's own room, where frames are finished.
    wait::until("what they had to go", || {
        let after = daemon.holdings();
        (after.descriptors + 1, after.regions) == (empty.descriptors, empty.regions)
    });
    still_switches(&mut [daemon.open("vale0:a"), daemon.open("vale0:b")]);
}

#[test]
fn more_clients_than_descriptors_wait_for_those_that_leave() {
    let daemon = Setup::new("").descriptors(40).start();
    let held: Vec<_> = (0..60).map(|_| harness::socket::connect(&daemon.dir())).collect();
    // Earlier clients are served, and later ones are when there is room again.
    assert!(daemon.ports().is_empty());
    drop(held);
    wait::until("room again", || {
        daemon.connect().and_then(|connection| connection.hello("late")).is_ok()
    });
}

#[test]
fn impossible_sizes_are_refused() {
    let daemon = Daemon::start();
    let before = daemon.holdings();
    let options = || daemon.options();
    for options in [
        options().slots(7),
        options().slots(1 << 20),
        options().rings(0),
        options().rings(65),
        options().rings(64).slots(16384),
        options().extra_bufs(u32::MAX),
    ] {
        let refused = options.open("vale0:a").unwrap_err();
        let expected = [exit::BAD_REQUEST, exit::NO_MEMORY, exit::QUOTA];
        assert!(expected.contains(&refused.exit_code()), "{refused}");
    }
    daemon.assert_holds(before);
    assert!(daemon.ports().is_empty());
}

/// Pages of its own that the daemon has, beside the memory of ports.
fn own_pages(daemon: &Daemon) -> u64 {
    harness::measure::own_memory(daemon.pid()) / 4096
}

/// Opens ports, each in a region of its own, and closes them; returns the daemon's pages meanwhile.
fn open_and_close(daemon: &Daemon, count: u32) -> u64 {
    let open = |i| {
        let name = format!("vale{}:p{i}", i % 2);
        Descriptor::bind(&daemon.dir(), Bind::new(name.parse().unwrap())).unwrap()
    };
    let ports: Vec<_> = (0..count).map(open).collect();
    let pages = own_pages(daemon);
    drop(ports);
    wait::until("all to go", || daemon.ports().is_empty());
    pages
}

#[test]
fn what_closed_ports_took_of_the_daemons_own_memory_is_the_systems_again() {
    let daemon = Setup::new("[quota]\nmemory = \"1TiB\"\n").start();
    let empty = daemon.holdings();
    // What any port costs once, in code and in tables.
    open_and_close(&daemon, 4);
    daemon.assert_holds(empty);
    let before = own_pages(&daemon);
    for _ in 0..2 {
        let open = open_and_close(&daemon, 100);
        assert!(open < before + 100 * 40, "{before} pages, with 100 ports {open}");
        daemon.assert_holds(empty);
    }
    // Counters of ports that went stay for a minute, in the midst of the heap.
    wait::until("the memory to be the system's", || own_pages(&daemon) < before + 1024);
}
