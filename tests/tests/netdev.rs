//! Ports that any card of a machine reaches, `stream` and `dgram`, without a machine: honest peers
//! and hostile ones.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::time::Duration;

use harness::Random;
use harness::byte_stream::{StreamPeer, is_up};
use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, fill, mac};
use harness::measure::holdings;
use harness::{socket, wait};
use protocol::MachineState;

const CONFIG: &str = "\
[switch.vale0.port.one]
kind = \"stream\"
[switch.vale0.port.two]
kind = \"stream\"
[switch.vale0.port.three]
kind = \"dgram\"
";

fn frame(to: u32, stream: u32, seq: u64, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    fill(&mut frame, mac(to), stream, seq, len);
    frame
}

fn state(daemon: &Daemon, port: &str) -> MachineState {
    daemon.port(port).unwrap().machine.unwrap().state
}

/// Frames of all lengths go from one to the other, and the other way round.
fn assert_connected(one: &mut StreamPeer, two: &mut StreamPeer, random: &mut Random) {
    one.send_cut(&announcement(1), random);
    assert_eq!(two.receive(), announcement(1));
    two.send_cut(&announcement(2), random);
    assert_eq!(one.receive(), announcement(2));
    for (seq, len) in (0..).zip([60, 61, 1514, 9000, 42].into_iter().cycle().take(500)) {
        let (there, back) = (frame(2, 1, seq, len.max(60)), frame(1, 2, seq, len.max(60)));
        one.send_cut(&there, random);
        assert_eq!(two.receive(), there, "frame {seq}");
        two.send_cut(&back, random);
        assert_eq!(one.receive(), back, "frame {seq}");
    }
}

#[test]
fn peers_exchange_frames_while_their_ports_move_between_workers() {
    let several = "[workers]\ncount = 3\n[switch.vale0]\nworkers = \"all\"\n";
    let daemon = Setup::new(&format!("{several}{CONFIG}")).start();
    let mut random = Random::seeded(2);
    let [mut one, mut two] =
        ["vale0:one", "vale0:two"].map(|port| StreamPeer::connect(&daemon, port));
    for round in 0..6 {
        for (port, worker) in [("vale0:one", round % 3), ("vale0:two", round % 2)] {
            let output = daemon.uvala(&["worker", "move", port, &worker.to_string()]);
            assert!(output.status.success(), "{output:?}");
            assert_eq!(daemon.port(port).unwrap().worker, Some(worker));
        }
        assert_connected(&mut one, &mut two, &mut random);
    }
}

#[test]
fn peers_of_both_kinds_exchange_frames() {
    let mut daemon = Setup::new(CONFIG).start();
    let mut random = Random::seeded(1);
    for round in 0..2 {
        let [mut one, mut two] =
            ["vale0:one", "vale0:two"].map(|port| StreamPeer::connect(&daemon, port));
        assert_connected(&mut one, &mut two, &mut random);
        let machine = daemon.port("vale0:three").unwrap().machine.unwrap();
        let three = machine.peer.unwrap();
        if round > 0 {
            std::fs::remove_file(&three).unwrap();
        }
        let peer = UnixDatagram::bind(three).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        is_up(&daemon, "vale0:three");
        peer.send_to(&announcement(3), &machine.socket).unwrap();
        assert_eq!(one.receive(), announcement(3));
        let (there, back) = (frame(3, 1, 0, 1514), frame(1, 3, 0, 9000));
        one.send_cut(&there, &mut random);
        let mut got = vec![0; 2000];
        assert_eq!(peer.recv(&mut got).unwrap(), 1514);
        assert_eq!(got[..1514], there);
        peer.send_to(&back, &machine.socket).unwrap();
        assert_eq!(one.receive(), back);
        // A VMM that connects again finds the port again.
        daemon.kill();
        daemon.restart();
    }
}

#[test]
fn hostile_peers_harm_themselves_only() {
    let daemon = Setup::new(CONFIG).start();
    let mut random = Random::seeded(2);
    let [mut one, mut two] =
        ["vale0:one", "vale0:two"].map(|port| StreamPeer::connect(&daemon, port));
    assert_connected(&mut one, &mut two, &mut random);
    drop(two);
    let socket = daemon.port("vale0:two").unwrap().machine.unwrap().socket;
    for round in 0..60 {
        wait::until("the last one's end", || state(&daemon, "vale0:two") == MachineState::Waiting);
        let mut hostile = UnixStream::connect(&socket).unwrap();
        let bytes: Vec<u8> = match round % 4 {
            0 => (0..random.below(5000)).map(|_| random.any().to_le_bytes()[0]).collect(),
            1 => u32::MAX.to_be_bytes().repeat(3),
            2 => [&65_553_u32.to_be_bytes()[..], &[1; 100]].concat(),
            _ => [0, 0, 0, 13].repeat(999),
        };
        // The daemon may have had enough of it.
        let _ = hostile.write_all(&bytes);
    }
    // One that sends frames without end, and reads none.
    let deaf = StreamPeer::connect(&daemon, "vale0:two");
    deaf.0.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut stream = deaf.0.try_clone().unwrap();
    let flood = [&1514_u32.to_be_bytes()[..], &frame(0xff_ffff, 2, 0, 1514)].concat().repeat(100);
    (0..20).for_each(|_| stream.write_all(&flood).unwrap());
    one.0.shutdown(std::net::Shutdown::Both).unwrap();
    wait::until("its end", || state(&daemon, "vale0:one") == MachineState::Waiting);
    let mut one = StreamPeer::connect(&daemon, "vale0:one");
    for seq in 0..2000 {
        one.send_cut(&frame(0xff_fffe, 1, seq, 1514), &mut random);
    }
    wait::until("frames that the deaf one lost", || {
        daemon.stats("vale0:one").drops.values().sum::<u64>() > 0
            || daemon.stats("vale0:two").drops.values().sum::<u64>() > 0
    });
    drop((deaf, stream));
    wait::until("its end", || state(&daemon, "vale0:two") == MachineState::Waiting);
    let socket = daemon.port("vale0:three").unwrap().machine.unwrap().socket;
    let anybody = UnixDatagram::unbound().unwrap();
    for len in [0, 1, 13, 65_554, 100_000] {
        anybody.send_to(&vec![9; len], &socket).unwrap();
    }
    wait::until("what is no frame", || {
        let drops = daemon.stats("vale0:three").drops;
        drops.get("too_short") == Some(&3) && drops.get("too_long") == Some(&2)
    });
    let log = daemon.log();
    let complaints = log.lines().filter(|line| line.contains("announced a frame of")).count();
    assert!((1..=60).contains(&complaints), "{log}");
    let mut process = daemon.open("vale0:process");
    process.send(&announcement(3)).unwrap();
}

#[test]
fn a_complaint_is_over_with_the_next_peer() {
    let daemon = Setup::new(CONFIG).start();
    let machine = || daemon.port("vale0:one").unwrap().machine.unwrap();
    let mut hostile = UnixStream::connect(machine().socket).unwrap();
    hostile.write_all(&[0xff; 100]).unwrap();
    let complaint = wait::find("a complaint", || machine().complaint);
    assert!(complaint.contains("announced a frame"), "{complaint}");
    drop(hostile);
    let mut good = StreamPeer::connect(&daemon, "vale0:one");
    good.send_cut(&announcement(1), &mut Random::seeded(4));
    assert_eq!((machine().state, machine().complaint), (MachineState::Up, None));
}

/// As many descriptors as the quota counts for a port (docs/limits.md).
#[test]
fn a_port_has_no_more_descriptors_than_its_user_is_charged_for() {
    const CHARGED: usize = 6;
    let daemon = Setup::new(CONFIG).start();
    let held = || holdings(daemon.pid()).descriptors;
    let before = held();
    let names: Vec<String> = (0..10).map(|number| format!("vale0:more{number}")).collect();
    let add = |name: &String| {
        let output = daemon.uvala(&["port", "add", name, "--kind", "stream"]);
        assert!(output.status.success(), "{output:?}");
        StreamPeer::connect(&daemon, name)
    };
    let peers: Vec<StreamPeer> = names.iter().map(add).collect();
    // The sixth is a second peer, which waits for a moment and is rejected. Commands have one, too.
    wait::until("few descriptors", || held() <= before + names.len() * (CHARGED - 1));
    drop(peers);
}

#[test]
fn the_daemon_connects_to_a_peer_that_listens() {
    let daemon = Daemon::start();
    let path = daemon.dir().join("theirs.sock");
    let text = path.to_str().unwrap();
    let add = ["port", "add", "vale0:vm", "--kind", "stream", "--connect", "--socket", text];
    assert!(daemon.uvala(&add).status.success());
    for _ in 0..2 {
        let listener = UnixListener::bind(&path).unwrap();
        let (stream, _) = listener.accept().unwrap();
        is_up(&daemon, "vale0:vm");
        StreamPeer(stream).send_cut(&announcement(1), &mut Random::seeded(3));
        std::fs::remove_file(&path).unwrap();
        wait::until("its end", || state(&daemon, "vale0:vm") == MachineState::Waiting);
    }
}

#[test]
fn monitors_are_told_what_to_say_and_mistakes_are_named() {
    let daemon = Setup::new(CONFIG).start();
    let said = |args: &[&str]| {
        let output = daemon.uvala(args);
        String::from_utf8(if output.status.success() { output.stdout } else { output.stderr })
            .unwrap()
    };
    let stream = said(&["vm-args", "vale0:one", "--nic", "e1000"]);
    assert!(stream.contains("-netdev stream,id=uvala,server=off"), "{stream}");
    assert!(stream.contains("-device e1000,netdev=uvala"), "{stream}");
    assert!(said(&["vm-args", "vale0:three"]).contains("-netdev dgram,"));
    let xml = said(&["vm-args", "vale0:one", "--vmm", "libvirt", "--nic", "e1000"]);
    assert!(xml.contains("<qemu:commandline>\n  <qemu:arg value='-netdev'/>\n"), "{xml}");
    assert!(xml.contains("<qemu:arg value='e1000,netdev=uvala,mac=52:54:00:"), "{xml}");
    let xml = said(&["vm-args", "vale0:three", "--vmm", "libvirt"]);
    assert!(xml.contains("<qemu:arg value='dgram,id=uvala,local.type=unix,"), "{xml}");
    let error = said(&["vm-args", "vale0:one", "--vmm", "crosvm"]);
    assert!(error.contains("--kind vhost-user"), "{error}");
    let error = said(&["port", "add", "vale0:x", "--kind", "stream", "--queues", "2"]);
    assert!(error.contains("queues: for kind vhost-user"), "{error}");
    let error = said(&["port", "add", "vale0:x", "--kind", "dgram", "--socket", "/no/dir/x"]);
    assert!(error.contains("mkdir -p /no/dir"), "{error}");
    let shown = said(&["port", "show", "vale0:three"]);
    assert!(shown.contains("frames go to") && shown.contains("waiting"), "{shown}");
}

/// A connection that lingers for minutes closes in the thread that receives it without room for it.
fn lingers_beside_a_frame(port: &str, connect: impl Fn(&Daemon) -> OwnedFd, bytes: &[u8]) {
    let daemon = Setup::new(CONFIG).start();
    let hostile = connect(&daemon);
    if port != "vale0:three" {
        is_up(&daemon, port);
    }
    let (stream, deaf) = socket::lingering(Duration::from_secs(300));
    let lingering = [stream.into()];
    let sent = socket::send_beside(&hostile, bytes, &lingering);
    // If the kernel refuses it, this is the last one to close it, and waits.
    std::thread::spawn(move || drop(lingering));
    eprintln!("a frame with a lingering connection beside it: {sent:?}");
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let (mut random, mut got) = (Random::seeded(3), Vec::new());
    for seq in 0..200 {
        let there = frame(2, 1, seq, 60 + usize::try_from(random.below(1400)).unwrap());
        a.send(&there).unwrap();
        let came = b.recv_timeout(&mut got, Some(wait::PATIENCE)).unwrap();
        assert!(came, "frame {seq} does not arrive");
        assert_eq!(got, there);
    }
    // While the connection lingers, the port can be deleted, and the daemon can end.
    drop((hostile, daemon));
    drop(deaf);
}

#[test]
fn stream_peer_with_a_lingering_connection_stops_no_frame() {
    let bytes = [&60_u32.to_be_bytes()[..], &announcement(1)].concat();
    let connect = |daemon: &Daemon| {
        let socket = daemon.port("vale0:one").unwrap().machine.unwrap().socket;
        UnixStream::connect(socket).unwrap().into()
    };
    lingers_beside_a_frame("vale0:one", connect, &bytes);
}

#[test]
fn dgram_peer_with_a_lingering_connection_stops_no_frame() {
    let connect = |daemon: &Daemon| {
        let peer = UnixDatagram::unbound().unwrap();
        peer.connect(daemon.port("vale0:three").unwrap().machine.unwrap().socket).unwrap();
        peer.into()
    };
    lingers_beside_a_frame("vale0:three", connect, &announcement(1));
}
