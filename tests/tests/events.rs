//! Events: what changes, for clients that listen.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use client::control::Connection;
use harness::chain::{configuration, function};
use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, fill, mac};
use harness::process::{Owned, USER, uvala};
use harness::role::Become;
use harness::{is_root, skip, wait};
use protocol::{Change, EventsQuery};

/// A connection that listens, and what it has heard.
struct Listener {
    connection: Connection,
    heard: Vec<Change>,
    lost: u64,
}

impl Listener {
    fn new(daemon: &Daemon) -> Self {
        let connection = Connection::open(Some(&daemon.dir())).expect("a daemon");
        connection.listen(EventsQuery::default()).expect("it may");
        Self { connection, heard: Vec::new(), lost: 0 }
    }

    /// Waits for a change; returns all that came until then.
    fn until(&mut self, what: &str, is_it: impl Fn(&Change) -> bool) -> Vec<Change> {
        let at = wait::find(what, || {
            let found = self.heard.iter().position(&is_it);
            if found.is_none() {
                self.hear();
            }
            found
        });
        self.heard.drain(..=at).collect()
    }

    fn hear(&mut self) {
        let events = self.connection.events(std::time::Duration::ZERO).expect("a daemon");
        self.lost += events.lost;
        self.heard.extend(events.events.into_iter().map(|event| event.change));
    }

    /// Events that have come, or that it knows it has lost.
    fn count(&self) -> u64 {
        self.heard.len() as u64 + self.lost
    }
}

fn done(daemon: &Daemon, line: &str) {
    let output = daemon.uvala(&line.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{line}: {output:?}");
}

/// The kinds of changes, as JSON names them.
fn kinds(changes: &[Change]) -> Vec<String> {
    let json = changes.iter().map(|change| serde_json::to_value(change).expect("plain data"));
    json.map(|json| json["event"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn switches_ports_clients_and_addresses_are_told_as_they_change() {
    let daemon = Daemon::start();
    let mut listener = Listener::new(&daemon);
    done(&daemon, "switch add vale0");
    done(&daemon, "port add vale0:a");
    let [mut a, mut b] = ["vale0:a", "vale0:b"].map(|name| daemon.open(name));
    let came = listener.until("b's client", |change| {
        matches!(change, Change::ClientAttached { port, client }
            if port.port() == "b" && client.pid == std::process::id())
    });
    let expected =
        ["switch_added", "port_added", "client_attached", "port_added", "client_attached"];
    assert_eq!(kinds(&came), expected, "{came:?}");
    a.send(&announcement(3)).expect("room");
    listener.until("an address", |change| {
        matches!(change, Change::FdbAdded { mac: it, port, vlan: 1, is_static: false }
            if it.octets() == mac(3) && port.port() == "a")
    });
    b.send(&announcement(3)).expect("room");
    listener.until("a moved address", |change| {
        matches!(change, Change::FdbMoved { port, from, .. }
            if (port.port(), from.port()) == ("b", "a"))
    });
    done(&daemon, "fdb flush vale0");
    listener.until("an address less", |change| matches!(change, Change::FdbDeleted { .. }));
    done(&daemon, "port set vale0:a --isolated");
    done(&daemon, "switch set vale0 --age 60");
    drop((a, b));
    wait::until("no client", || {
        let has_client = |name| daemon.port(name).is_some_and(|port| port.client.is_some());
        !has_client("vale0:a") && !has_client("vale0:b")
    });
    done(&daemon, "switch del vale0");
    let mut came = listener.until("the end", |it| matches!(it, Change::SwitchDeleted { .. }));
    // Which of two clients hangs up first, the daemon decides.
    let order = |change: &Change| match change {
        Change::ClientLeft { .. } => 0,
        Change::PortDeleted { port } if port.port() == "b" => 1,
        Change::PortDeleted { .. } => 2,
        _ => 3,
    };
    came[2..].sort_by_key(order);
    let expected = [
        "port_changed",
        "switch_changed",
        "client_left",
        "port_deleted",
        "port_deleted",
        "switch_deleted",
    ];
    assert_eq!(kinds(&came), expected, "{came:?}");
    assert_eq!(listener.lost, 0);
}

#[test]
fn links_of_machines_and_chains_that_break_are_told() {
    let config = configuration(1) + "[switch.vale0.port.one]\nkind = \"stream\"\n";
    let daemon = Setup::new(&config).start();
    let mut listener = Listener::new(&daemon);
    let socket = daemon.port("vale0:one").expect("there").machine.expect("a machine").socket;
    let link = |listener: &mut Listener, wanted: &str| {
        listener.until(wanted, |change| {
            matches!(change, Change::Link { port, state }
                if port.port() == "one" && state == wanted)
        });
    };
    let peer = UnixStream::connect(socket).expect("it listens");
    link(&mut listener, "up");
    drop(peer);
    link(&mut listener, "waiting");
    let running = function(&daemon, 0);
    listener.until(
        "a chain",
        |change| matches!(change, Change::ChainRuns { chain, .. } if chain == "c"),
    );
    drop(running);
    let came = listener.until("a broken chain", |it| matches!(it, Change::ChainBroken { .. }));
    let Some(Change::ChainBroken { why, .. }) = came.last() else { panic!("{came:?}") };
    assert_eq!(why, "no process runs s0");
    done(&daemon, "chain add valenf d s0");
    listener
        .until("a new chain", |it| matches!(it, Change::ChainSet { chain, .. } if chain == "d"));
    done(&daemon, "chain del valenf d");
    listener.until("no new chain", |it| matches!(it, Change::ChainDeleted { .. }));
}

#[test]
fn a_listener_that_does_not_read_is_told_how_many_events_it_lost() {
    const ROUNDS: u32 = 30;
    const ADDRESSES: u32 = 300;
    let daemon = Daemon::start();
    let mut a = daemon.open("vale0:a");
    let (mut deaf, mut reader) = (Listener::new(&daemon), Listener::new(&daemon));
    for round in 1..=ROUNDS {
        for number in 0..ADDRESSES {
            a.send(&announcement(round * ADDRESSES + number)).expect("room");
        }
        wait::until("a round", || {
            reader.hear();
            reader.count() == u64::from(round * ADDRESSES)
        });
    }
    wait::until("all", || {
        deaf.hear();
        deaf.count() == u64::from(ROUNDS * ADDRESSES)
    });
    assert!(deaf.lost > reader.lost, "{} and {} lost", deaf.lost, reader.lost);
    // At least what the daemon keeps has come, whatever the socket holds.
    assert!(deaf.heard.len() >= 256, "{} lost", deaf.lost);
}

#[test]
fn an_ordinary_user_may_not_listen() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n[switch.vale0]\nmode = \"666\"\n").start();
    let output = daemon.uvala_as(&["events", "vale0"], Some(USER));
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("only root and the daemon's user may listen"), "{said}");
}

#[test]
fn text_is_a_line_for_each_event_and_drops_are_among_them() {
    let daemon = Daemon::start();
    let (mut a, _b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let mut command = uvala(Become::default(), &["events", "vale0", "--drops", "5"], None);
    command.env("UVALA_DIR", daemon.dir()).stdin(Stdio::null());
    let mut process = Owned::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let (mut remarks, mut said) = (BufReader::new(process.stderr()), String::new());
    remarks.read_line(&mut said).expect("stderr");
    done(&daemon, "port add vale1:other");
    done(&daemon, "port add vale0:c");
    let mut lines = BufReader::new(process.stdout()).lines().map(|line| line.expect("text"));
    let first = lines.next().expect("a line");
    assert!(first.ends_with(" port vale0:c added, kind shm"), "{first}");
    let mut frame = Vec::new();
    std::thread::scope(|scope| {
        let (ended, end) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            while end.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                fill(&mut frame, mac(9), 1, 0, 60);
                a.send(&frame).expect("room");
            }
        });
        let drops = lines.find(|line| line.contains(" port vale0:b drops "));
        drop(ended);
        let drops = drops.expect("a line");
        assert!(drops.ends_with(" frames/s: no_room"), "{drops}");
    });
    drop(daemon);
    remarks.read_to_string(&mut said).expect("stderr");
    assert_eq!(process.wait().code(), Some(3), "{said}");
}
