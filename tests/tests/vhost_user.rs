//! Virtual machines as ports, without a processor: frames, faults, and ends.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use client::Port;
use client::control::ControlError;
use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, fill, mac};
use harness::machine::Machine;
use harness::wait;
use protocol::{ErrorCode, MachineState, PortAdd, PortKind, PortRequest, PortSettings, Request};

fn add_with(
    daemon: &Daemon,
    port: &str,
    machine: Option<protocol::Machine>,
) -> Result<PathBuf, ControlError> {
    let (port, settings) = (port.parse().unwrap(), PortSettings::default());
    let add =
        PortAdd { port, kind: PortKind::VhostUser, settings, host: None, machine, vxlan: None };
    let name = add.port.to_string();
    daemon.call(Request::Port(PortRequest::Add(Box::new(add))))?;
    Ok(daemon.port(&name).unwrap().machine.unwrap().socket.into())
}

fn add(daemon: &Daemon, port: &str) -> PathBuf {
    add_with(daemon, port, None).unwrap()
}

fn state(daemon: &Daemon, port: &str) -> MachineState {
    daemon.port(port).unwrap().machine.unwrap().state
}

fn frame(to: u32, stream: u32, seq: u64, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    fill(&mut frame, mac(to), stream, seq, len);
    frame
}

/// Frames of all lengths go from one machine to another and come out as they went in.
fn assert_connected(from: &mut Machine, to: &mut Machine, stations: [u32; 2]) {
    to.send(&announcement(stations[1]));
    for (seq, len) in (0..).zip([60, 61, 1514, 64, 1000].into_iter().cycle().take(500)) {
        let sent = frame(stations[1], stations[0], seq, len);
        from.send(&sent);
        assert_eq!(to.receive(), sent, "frame {seq}");
    }
}

#[test]
fn machines_exchange_frames_with_each_other_and_with_processes() {
    let daemon = Daemon::start();
    let sockets = ["vale0:vm1", "vale0:vm2"].map(|port| add(&daemon, port));
    assert_eq!(state(&daemon, "vale0:vm1"), MachineState::Waiting);
    let [mut a, mut b] = sockets.map(|socket| Machine::boot(&socket));
    wait::until("two machines", || state(&daemon, "vale0:vm2") == MachineState::Up);
    assert_connected(&mut a, &mut b, [1, 2]);
    assert_connected(&mut b, &mut a, [2, 1]);
    let mut process = daemon.open("vale0:process");
    process.send(&announcement(3)).unwrap();
    let (to_process, to_machine) = (frame(3, 1, 7, 1514), frame(1, 3, 8, 9000));
    a.send(&to_process);
    let received = wait::find("a frame", || {
        let mut got = Vec::new();
        process
            .try_recv(&mut got)
            .unwrap()
            .then_some(got)
            .filter(|got| got[12..14] == to_process[12..14])
    });
    assert_eq!(received, to_process);
    process.send(&to_machine).unwrap();
    assert_eq!(a.receive(), to_machine, "9000 bytes fill several buffers");
    let stats = daemon.stats("vale0:vm1");
    assert!(stats.drops.values().all(|drops| *drops == 0), "{stats:?}");
}

#[test]
fn machines_exchange_frames_while_their_ports_move_between_workers() {
    let daemon = Setup::spread(&[]).start();
    let sockets = ["vale0:vm1", "vale0:vm2"].map(|port| add(&daemon, port));
    let [mut a, mut b] = sockets.map(|socket| Machine::boot(&socket));
    wait::until("two machines", || state(&daemon, "vale0:vm2") == MachineState::Up);
    for round in 0..6 {
        for (port, worker) in [("vale0:vm1", round % 3), ("vale0:vm2", round % 2)] {
            let output = daemon.uvala(&["worker", "move", port, &worker.to_string()]);
            assert!(output.status.success(), "{output:?}");
            assert_eq!(daemon.port(port).unwrap().worker, Some(worker));
        }
        assert_connected(&mut a, &mut b, [1, 2]);
        assert_connected(&mut b, &mut a, [2, 1]);
    }
}

#[test]
fn a_listing_says_which_vmm_is_at_a_port_and_whether_its_guest_is_up() {
    let daemon = Daemon::start();
    let socket = add(&daemon, "vale0:vm1");
    add(&daemon, "vale0:vm2");
    let _machine = Machine::boot(&socket);
    wait::until("a machine", || state(&daemon, "vale0:vm1") == MachineState::Up);
    let listed = String::from_utf8(daemon.uvala(&["port", "list"]).stdout).unwrap();
    let rows: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split_whitespace().collect()).collect();
    // A head of two words comes behind the others.
    let column = |name: &str| rows[0].iter().position(|head| *head == name).unwrap();
    let (pid, client) = (column("PID"), column("CLIENT"));
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(rows[1][pid], std::process::id().to_string(), "{listed}");
    assert_eq!(rows[1][client], comm.trim_end(), "{listed}");
    assert_eq!((rows[2][pid], rows[2][client]), ("-", "-"), "{listed}");
    assert!(rows[1].contains(&"up") && rows[2].contains(&"waiting"), "{listed}");
    let json = daemon.uvala(&["port", "list", "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json[0]["machine"]["state"], "up");
    assert_eq!(json[0]["machine"]["pid"], std::process::id());
    assert_eq!(json[1]["machine"]["state"], "waiting");
}

#[test]
fn frames_that_were_left_to_the_card_arrive_finished() {
    let daemon = Daemon::start();
    let mut machine = Machine::boot(&add(&daemon, "vale0:vm"));
    let mut process = daemon.open("vale0:process");
    process.send(&announcement(3)).unwrap();
    // UDP over IPv4 without a checksum of its own, but with the sum of its pseudo-header.
    let mut sent = [&mac(3)[..], &mac(1), &[8, 0, 0x45, 0, 0, 32], &[0; 4], &[9, 17]].concat();
    sent.extend([0, 0, 10, 0, 0, 1, 10, 0, 0, 3, 0, 7, 0, 7, 0, 12, 0, 0, 1, 2, 3, 4]);
    sent.resize(60, 0);
    let pseudo: u16 = 0x0a00 + 1 + 0x0a00 + 3 + 17 + 12;
    sent[40..42].copy_from_slice(&pseudo.to_be_bytes());
    let mut header = [0; 12];
    (header[0], header[6], header[8]) = (1, 34, 6);
    machine.send_behind(header, &sent);
    let received = wait::find("a frame", || {
        let mut got = Vec::new();
        process.try_recv(&mut got).unwrap().then_some(got).filter(|got| got[12] == 8)
    });
    let words = received[34..].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum::<u32>() + u32::from(pseudo);
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{received:02x?}");
}

#[test]
fn a_machine_that_goes_leaves_its_port_to_the_next() {
    let daemon = Daemon::start();
    let sockets = ["vale0:vm1", "vale0:vm2"].map(|port| add(&daemon, port));
    let mut stays = Machine::boot(&sockets[1]);
    for _ in 0..3 {
        let mut machine = Machine::boot(&sockets[0]);
        assert_connected(&mut machine, &mut stays, [1, 2]);
        assert_connected(&mut stays, &mut machine, [2, 1]);
        drop(machine);
        wait::until("its end", || state(&daemon, "vale0:vm1") == MachineState::Waiting);
    }
}

#[test]
fn machines_survive_the_daemon() {
    let mut daemon = Daemon::start();
    let sockets = ["vale0:vm1", "vale0:vm2"].map(|port| add(&daemon, port));
    let [mut a, mut b] = sockets.each_ref().map(|socket| Machine::boot(socket));
    for _ in 0..3 {
        assert_connected(&mut a, &mut b, [1, 2]);
        daemon.kill();
        daemon.restart();
        a.reconnect(&sockets[0]);
        b.reconnect(&sockets[1]);
    }
    assert_connected(&mut b, &mut a, [2, 1]);
}

#[test]
fn machines_with_packed_queues_survive_the_daemon_whatever_their_frontend_says() {
    let mut daemon = Daemon::start();
    let sockets = ["vale0:vm1", "vale0:vm2"].map(|port| add(&daemon, port));
    let mut a = Machine::boot_packed(&sockets[0]);
    let mut b = Machine::boot(&sockets[1]);
    for round in 0..4 {
        assert_connected(&mut a, &mut b, [1, 2]);
        assert_connected(&mut b, &mut a, [2, 1]);
        // Each restart is elsewhere in the ring, before or after a wrap.
        (0..7 * round).for_each(|seq| a.send(&frame(2, 1, seq, 60)));
        match round % 2 {
            0 => daemon.kill(),
            _ => {
                daemon.terminate();
                daemon.process().wait();
            }
        }
        daemon.restart();
        a.reconnect(&sockets[0]);
        b.reconnect(&sockets[1]);
        b.send(&announcement(2));
        while b.try_receive().is_some() {}
    }
    assert_connected(&mut a, &mut b, [1, 2]);
    let sent = daemon.stats("vale0:vm1");
    assert_eq!(sent.drops.values().sum::<u64>(), 0, "{sent:?}");
}

#[test]
fn a_daemon_that_is_killed_between_taking_and_returning_loses_nothing() {
    let mut daemon = Daemon::start();
    let sockets = ["vale0:vm1", "vale0:vm2"].map(|port| add(&daemon, port));
    let [mut a, mut b] = sockets.each_ref().map(|socket| Machine::boot(socket));
    a.track();
    b.track();
    for round in 0..10 {
        daemon.kill();
        daemon.restart();
        // Start the receiver first: the switch drops frames without one.
        b.reconnect(&sockets[1]);
        a.reconnect(&sockets[0]);
        b.send(&announcement(2));
        let mut frames: Vec<_> = (0..60).map(|seq| frame(2, 1, 100 * round + seq, 700)).collect();
        for frame in frames.drain(..30) {
            a.send(&frame);
            assert_eq!(b.receive(), frame);
        }
        daemon.signal(rustix::process::Signal::STOP);
        frames.iter().for_each(|frame| a.send(frame));
        daemon.kill();
        daemon.restart();
        b.reconnect(&sockets[1]);
        a.reconnect(&sockets[0]);
        for frame in frames {
            assert_eq!(b.receive(), frame);
        }
    }
}

#[test]
fn a_queue_that_is_stopped_says_where_it_was() {
    let daemon = Daemon::start();
    let mut machine = Machine::boot(&add(&daemon, "vale0:vm"));
    (0..70).for_each(|seq| machine.send(&frame(9, 1, seq, 60)));
    wait::until("70 frames", || daemon.stats("vale0:vm").tx.frames == 70);
    assert_eq!([machine.stop(1), machine.stop(0)], [70, 0]);
    wait::until("it rests", || state(&daemon, "vale0:vm") == MachineState::Connected);
}

#[test]
fn what_is_written_while_a_machine_moves_is_noted() {
    let daemon = Daemon::start();
    let sockets = ["vale0:vm1", "vale0:vm2"].map(|port| add(&daemon, port));
    let [mut a, mut b] = sockets.map(|socket| Machine::boot(&socket));
    assert_connected(&mut a, &mut b, [1, 2]);
    let pages = b.start_log();
    assert_connected(&mut a, &mut b, [1, 2]);
    assert_connected(&mut b, &mut a, [2, 1]);
    let [_, _] = [b.stop(0), b.stop(1)];
    let [noted, changed] = pages.noted_and_changed();
    assert!(pages.is_told() && changed.len() > 10);
    assert!(changed.iter().all(|page| noted.contains(page)), "{changed:?} of {noted:?}");
    // The log is memory of another process, too.
    a.start_log().truncate();
    let mut process = daemon.open("vale0:process");
    process.send(&frame(1, 3, 0, 60)).unwrap();
    wait::until("the end", || a.is_cut_off());
}

#[test]
fn how_interrupts_are_spaced_is_shown() {
    let daemon = Daemon::start();
    add(&daemon, "vale0:vm1");
    let (coalesce_usecs, coalesce_frames) = (Some(50), Some(32));
    let given =
        protocol::Machine { coalesce_usecs, coalesce_frames, ..protocol::Machine::default() };
    add_with(&daemon, "vale0:vm2", Some(given)).unwrap();
    let shown = ["vale0:vm1", "vale0:vm2"].map(|port| {
        let machine = daemon.port(port).unwrap().machine.unwrap();
        (machine.coalesce_usecs, machine.coalesce_frames)
    });
    assert_eq!(shown, [(None, None), (coalesce_usecs, coalesce_frames)]);
}

#[test]
fn a_machine_that_takes_nothing_costs_the_others_nothing_but_its_frames() {
    const FRAMES: u64 = 20_000;
    let daemon = Daemon::start();
    let sockets = ["vale0:vm1", "vale0:vm2", "vale0:vm3"].map(|port| add(&daemon, port));
    let [mut sender, mut slow, mut other] = sockets.map(|socket| Machine::boot(&socket));
    slow.send(&announcement(2));
    assert_connected(&mut sender, &mut other, [1, 3]);
    (0..FRAMES).for_each(|seq| sender.send(&frame(2, 1, seq, 60)));
    assert_connected(&mut sender, &mut other, [1, 3]);
    let stats = daemon.stats("vale0:vm2");
    assert!(stats.drops["no_room"] >= FRAMES - 64, "{stats:?}");
}

#[test]
fn a_machine_that_is_waited_for_loses_nothing() {
    const FRAMES: u64 = 3000;
    let daemon = Daemon::start();
    let mut sender = Machine::boot(&add(&daemon, "vale0:vm1"));
    let port = "vale0:vm2".parse().unwrap();
    let on_full = Some(protocol::OnFull::Wait);
    let settings = PortSettings { on_full, ..PortSettings::default() };
    let (kind, host, machine) = (PortKind::VhostUser, None, None);
    let add = PortAdd { port, kind, settings, host, machine, vxlan: None };
    daemon.call(Request::Port(PortRequest::Add(Box::new(add)))).unwrap();
    let socket = daemon.port("vale0:vm2").unwrap().machine.unwrap().socket;
    let mut slow = Machine::boot(&PathBuf::from(socket));
    slow.send(&announcement(2));
    sender.send(&frame(2, 1, 0, 60));
    assert_eq!(slow.receive(), frame(2, 1, 0, 60));
    let sending = std::thread::spawn(move || {
        (1..=FRAMES).for_each(|seq| sender.send(&frame(2, 1, seq, 60)));
        sender
    });
    for seq in 1..=FRAMES {
        if seq.is_multiple_of(1000) {
            // Long enough for the switch to fall asleep over a full queue.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(slow.receive(), frame(2, 1, seq, 60), "frame {seq}");
    }
    sending.join().unwrap();
    let stats = daemon.stats("vale0:vm2");
    assert!(stats.drops.values().all(|drops| *drops == 0), "{stats:?}");
}

/// Sends a burst to a guest that makes 16 buffers available and reads none of it meanwhile.
fn send_burst(sender: &mut Port, guest: &mut Machine, station: u32, count: u64) {
    guest.send(&announcement(station));
    // All get it, and then the switch knows where the guest is.
    wait::until("the announcement", || sender.try_recv(&mut Vec::new()).unwrap());
    sender.send(&frame(station, 9, 0, 60)).unwrap();
    assert_eq!(guest.receive(), frame(station, 9, 0, 60));
    for seq in 1..=count {
        let frame = frame(station, 9, seq, 1514);
        assert!(sender.send_timeout(&frame, Some(wait::PATIENCE)).unwrap());
    }
    assert!(sender.drain(Some(wait::PATIENCE)).unwrap());
}

#[test]
fn a_queue_holds_the_burst_that_a_short_ring_has_no_room_for() {
    const BURST: u64 = 100;
    let daemon = Daemon::start();
    let said = |args: &[&str]| {
        let output = daemon.uvala(args);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let mut sender = daemon.open("vale0:a");
    let add = ["port", "add", "vale0:vm2", "--kind", "vhost-user", "--queue-frames", "128"];
    assert_eq!(said(&add).0, Some(0));
    let short = Machine::boot_short(&add_with(&daemon, "vale0:vm1", None).unwrap(), 16);
    let path = daemon.port("vale0:vm2").unwrap().machine.unwrap().socket;
    let queued = Machine::boot_short(&PathBuf::from(path), 16);
    let mut guests = [(1, short), (2, queued)];
    for (station, guest) in &mut guests {
        let port = format!("vale0:vm{station}");
        wait::until("a machine", || state(&daemon, &port) == MachineState::Up);
        send_burst(&mut sender, guest, *station, BURST);
        let lost = daemon.stats(&port).drops.get("no_room").copied().unwrap_or(0);
        assert_eq!(lost > 0, *station == 1, "{port} lost {lost} of {BURST}");
    }
    let [(_, mut short), (_, mut queued)] = guests;
    for seq in 1..=BURST {
        assert_eq!(queued.receive(), frame(2, 9, seq, 1514), "frame {seq}");
    }
    // What is longer than the queue is lost, and so is what waits when the guest goes.
    send_burst(&mut sender, &mut queued, 2, 200);
    let lost = daemon.stats("vale0:vm2").drops["no_room"];
    assert!((1..=72).contains(&lost), "{lost}");
    queued.hang_up();
    let lost = || daemon.stats("vale0:vm2").drops.get("link_down").copied();
    wait::until("the end of the queue", || lost().is_some_and(|lost| lost >= 100));
    // A guest that is at work gets a queue, too; another kind of port has none.
    let (code, text) = said(&["port", "set", "vale0:vm1", "--queue-frames", "128"]);
    assert_eq!(code, Some(0), "{text}");
    (0..16).for_each(|_| drop(short.receive()));
    let before = daemon.stats("vale0:vm1").drops["no_room"];
    send_burst(&mut sender, &mut short, 1, BURST);
    assert_eq!(daemon.stats("vale0:vm1").drops["no_room"], before);
    let (_, shown) = said(&["port", "show", "vale0:vm1"]);
    assert!(shown.contains("queue-frames     128\n"), "{shown}");
    for (port, frames, why) in [("vale0:a", "8", "vhost-user"), ("vale0:vm1", "5000", "0 to 4096")]
    {
        let (code, text) = said(&["port", "set", port, "--queue-frames", frames]);
        assert!(code == Some(13) && text.contains(why), "{code:?}: {text}");
    }
}

#[test]
fn the_daemon_connects_where_it_is_told_to() {
    let daemon = Daemon::start();
    let path = daemon.dir().join("theirs.sock");
    let machine = protocol::Machine {
        socket: Some(path.to_str().unwrap().to_owned()),
        connect: true,
        ..protocol::Machine::default()
    };
    add_with(&daemon, "vale0:vm1", Some(machine)).unwrap();
    let mut other = Machine::boot(&add(&daemon, "vale0:vm2"));
    let listener = UnixListener::bind(&path).unwrap();
    for _ in 0..2 {
        let mut machine = Machine::boot_with(listener.accept().unwrap().0);
        assert_connected(&mut machine, &mut other, [1, 2]);
    }
}

#[test]
fn whoever_breaks_the_rules_harms_itself_only() {
    let daemon = Daemon::start();
    let ports = ["vale0:vm1", "vale0:vm2", "vale0:bad"];
    let [a, b, bad] = ports.map(|port| add(&daemon, port));
    let [mut a, mut b] = [a, b].map(|socket| Machine::boot(&socket));
    let mut hostile = Machine::boot(&bad);
    hostile.break_queue();
    wait::until("the log", || daemon.log().contains("its available index makes no sense"));
    assert_connected(&mut a, &mut b, [1, 2]);
    drop(hostile);
    // What was sent makes zeros nonsense.
    for (times, frames) in (1..).zip([100, 0]) {
        let mut hostile = Machine::boot(&bad);
        let to_itself = (0..).map(|seq| frame(8, 8, seq, 60));
        let sent = std::iter::once(announcement(8)).chain(to_itself).take(frames);
        sent.for_each(|frame| hostile.send(&frame));
        hostile.truncate_memory();
        wait::until("the end", || hostile.is_cut_off());
        let lost = || daemon.log().matches("truncated or taken away").count() == times;
        wait::until("the log", lost);
    }
    assert_connected(&mut b, &mut a, [2, 1]);
    let file = std::fs::File::open("/proc/self/status").unwrap();
    for (request, flags, payload, fds) in [
        (99, 1, vec![], 0),
        (1, 2, vec![], 0),
        (2, 1, vec![0; 7], 0),
        (2, 1, vec![0xff; 8], 0),
        (12, 1, vec![0; 8], 1),
        (13, 1, vec![0; 8], 1),
        (12, 1, vec![0; 8], 0),
        (18, 1, vec![0xff; 8], 0),
        (5, 1, [vec![1], vec![0; 39]].concat(), 1),
        (9, 1, [vec![0; 8], vec![0xff; 32]].concat(), 0),
        (1, 1, vec![], 8),
        (20, 1, vec![0; 8], 0),
        (1000, 1, vec![1; 600], 0),
    ] {
        let hostile = Machine::boot(&bad);
        let fds = vec![file.as_fd(); fds];
        hostile.say(request, flags, &payload, &fds).unwrap();
        wait::until("the end", || hostile.is_cut_off());
    }
    assert_connected(&mut a, &mut b, [1, 2]);
}

#[test]
fn the_machines_of_a_user_take_what_the_quota_says_and_no_more() {
    let config = "[quota]\nmachine_regions = 2\nmachine_descriptors = 24\n";
    let daemon = Setup::new(config).start();
    let [greedy, other] = ["vale0:vm1", "vale0:vm2"].map(|port| add(&daemon, port));
    let before = daemon.holdings();
    // Eight for each port, and four for each machine's queues.
    match add_with(&daemon, "vale0:vm3", None) {
        Err(ControlError::Refused(failure)) => panic!("{failure:?}"),
        made => drop(made.unwrap()),
    }
    match add_with(&daemon, "vale0:vm4", None) {
        Err(ControlError::Refused(failure)) => {
            assert_eq!(failure.code, ErrorCode::Quota);
            assert!(failure.message.contains("quota.machine_descriptors"), "{}", failure.message);
        }
        made => panic!("{made:?}"),
    }
    assert!(daemon.uvala(&["port", "del", "vale0:vm3"]).status.success());
    // A thread gives back what a deleted port had.
    daemon.assert_holds(before);
    let [mut a, mut b] = [&greedy, &other].map(|socket| Machine::boot(socket));
    assert_connected(&mut a, &mut b, [1, 2]);
    a.lend_more();
    wait::until("the end", || a.is_cut_off());
    let complaint = || daemon.port("vale0:vm1").unwrap().machine.unwrap().complaint;
    let complaint = wait::find("a complaint", complaint);
    assert!(complaint.contains("2 of 2 (quota.machine_regions)"), "{complaint}");
    assert!(daemon.log().contains(&complaint), "{}", daemon.log());
    let show = daemon.uvala(&["port", "show", "vale0:vm1"]);
    assert!(String::from_utf8(show.stdout).unwrap().contains(&complaint));
    let mut again = Machine::boot(&greedy);
    assert_connected(&mut b, &mut again, [2, 1]);
    let info = daemon.port("vale0:vm1").unwrap().machine.unwrap();
    assert_eq!((info.state, info.complaint), (MachineState::Up, None));
}

#[test]
fn a_second_machine_is_turned_away() {
    let daemon = Daemon::start();
    let socket = add(&daemon, "vale0:vm1");
    let mut first = Machine::boot(&socket);
    let second = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let read = Read::read(&mut &second, &mut [0; 1]);
    assert!(read.is_err() || read.unwrap() == 0);
    let peer = daemon.port("vale0:vm1").unwrap().machine.unwrap().rejected_peer;
    assert_eq!(peer, Some(std::process::id()));
    assert_connected(&mut first, &mut Machine::boot(&add(&daemon, "vale0:vm2")), [1, 2]);
}

/// One that tries again without a pause, as QEMU does, is let in seldom and told of once.
#[test]
fn a_second_machine_that_insists_costs_nothing_and_has_the_port_next() {
    let daemon = Daemon::start();
    let socket = add(&daemon, "vale0:vm1");
    let first = Machine::boot(&socket);
    let mut turned_away = 0;
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(1500) {
        let peer = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        peer.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
        while start.elapsed() < std::time::Duration::from_millis(1500) {
            match Read::read(&mut &peer, &mut [0; 1]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => {
                    turned_away += 1;
                    break;
                }
            }
        }
    }
    // Fewer where the daemon is slow; thousands without a pause.
    assert!((1..=5).contains(&turned_away), "{turned_away}");
    assert_eq!(daemon.log().matches("rejected process").count(), 1, "{}", daemon.log());
    let found = daemon.uvala(&["doctor"]);
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(found.contains("a second VMM"), "{found}");
    drop(first);
    assert_connected(
        &mut Machine::boot(&socket),
        &mut Machine::boot(&add(&daemon, "vale0:vm2")),
        [1, 2],
    );
}

/// A fault of one VMM is not reported for the next, and disconnecting is no fault.
#[test]
fn a_frontend_that_wants_more_queues_than_there_are_leaves_a_cure() {
    let daemon = Daemon::start();
    let socket = add(&daemon, "vale0:vm1");
    // GET_QUEUE_NUM; QEMU hangs up at an answer below its queues=.
    let mut frontend = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    frontend.write_all(&[17, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut answer = [0; 20];
    frontend.read_exact(&mut answer).unwrap();
    assert_eq!(answer[12], 1);
    drop(frontend);
    let text = |args: &[&str]| String::from_utf8(daemon.uvala(args).stdout).unwrap();
    wait::until("a complaint", || {
        let shown = text(&["port", "show", "vale0:vm1"]);
        shown.contains("the port has queues = 1; if it uses more, delete the port and add it")
    });
    let found = text(&["doctor"]);
    assert!(found.contains("vale0:vm1: its last VMM: it left when it heard"), "{found}");
    assert!(found.contains("delete the port and add it with --queues N"), "{found}");
    let _machine = Machine::boot(&socket);
    wait::until("a machine", || state(&daemon, "vale0:vm1") == MachineState::Up);
    assert!(!text(&["port", "show", "vale0:vm1"]).contains("queues = 1"));
}

#[test]
fn a_complaint_is_over_with_the_next_connection() {
    let daemon = Daemon::start();
    let socket = add(&daemon, "vale0:vm1");
    let complaint = || daemon.port("vale0:vm1").unwrap().machine.unwrap().complaint;
    let hostile = Machine::boot(&socket);
    hostile.say(99, 1, &[], &[]).unwrap();
    wait::until("the end", || hostile.is_cut_off());
    wait::until("a complaint", || complaint().is_some());
    let quiet = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    wait::until("a connection", || state(&daemon, "vale0:vm1") == MachineState::Connected);
    assert_eq!(complaint(), None);
    drop(quiet);
    wait::until("its end", || state(&daemon, "vale0:vm1") == MachineState::Waiting);
    // GET_FEATURES, many times, and no answer is read.
    let deaf = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let ask = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    while Write::write_all(&mut &deaf, &ask).is_ok() {}
    let why = wait::find("a complaint", complaint);
    assert!(why.contains("does not read"), "{why}");
}

/// As a VMM with `server=on` does it.
#[test]
fn a_socket_that_another_program_replaces_is_noticed() {
    let daemon = Daemon::start();
    let socket = add(&daemon, "vale0:vm1");
    let said = |args: &[&str]| {
        let output = daemon.uvala(args);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (_, shown) = said(&["port", "show", "vale0:vm1"]);
    assert!(shown.contains("mode             660"), "{shown}");
    assert!(!shown.contains("another program"), "{shown}");
    std::fs::remove_file(&socket).unwrap();
    let theirs = UnixListener::bind(&socket).unwrap();
    let (_, shown) = said(&["port", "show", "vale0:vm1"]);
    assert!(shown.contains("replaced by another program"), "{shown}");
    let (code, found) = said(&["doctor"]);
    assert!(code == Some(1) && found.contains("put its socket in the place of"), "{found}");
    drop(theirs);
    let (_, found) = said(&["doctor"]);
    assert!(found.contains("put its socket in the place of"), "no daemon listens there: {found}");
}

#[test]
fn sockets_that_cannot_be_made_are_explained() {
    let daemon = Daemon::start();
    let failure = |machine: protocol::Machine| match add_with(&daemon, "vale0:vm", Some(machine)) {
        Err(ControlError::Refused(failure)) => (failure.code, failure.message),
        other => panic!("{other:?}"),
    };
    let at = |path: &str| protocol::Machine {
        socket: Some(path.to_owned()),
        ..protocol::Machine::default()
    };
    let (code, message) = failure(at("/no/such/dir/vm.sock"));
    assert!(code == ErrorCode::NotFound && message.contains("mkdir -p /no/such/dir"), "{message}");
    let file = daemon.dir().join("file");
    std::fs::write(&file, "").unwrap();
    assert_eq!(failure(at(file.to_str().unwrap())).0, ErrorCode::Exists);
    assert_eq!(
        failure(protocol::Machine { queues: Some(0), ..protocol::Machine::default() }).0,
        ErrorCode::BadRequest
    );
    assert!(daemon.ports().is_empty());
    let mut taken = add(&daemon, "vale0:vm");
    assert!(taken.exists());
    assert!(daemon.uvala(&["port", "del", "vale0:vm"]).status.success());
    assert!(!taken.exists(), "it goes with its port");
    taken = add(&daemon, "vale0:vm");
    assert!(taken.exists());
}

#[test]
fn the_configuration_and_the_command_line_know_machines() {
    let config = "[switch.vale0.port.vm1]\nkind = \"vhost-user\"\nqueues = 2\nmode = \"666\"\n";
    let daemon = Setup::new(config).start();
    let info = daemon.port("vale0:vm1").unwrap().machine.unwrap();
    assert_eq!((info.queues, info.connect), (2, false));
    let args = daemon.uvala(&["vm-args", "vale0:vm1"]);
    let args = String::from_utf8(args.stdout).unwrap();
    assert!(args.contains(&info.socket) && args.contains("mq=on,vectors=6"), "{args}");
    let refused = daemon.uvala(&["port", "add", "vale0:x", "--queues", "2"]);
    assert!(!refused.status.success());
    let header = ["port", "add", "vale0:x", "--kind", "vhost-user", "--vnet-header", "12"];
    let refused = String::from_utf8(daemon.uvala(&header).stderr).unwrap();
    assert!(refused.contains("vnet_header: for ports that programs attach to"), "{refused}");
    drop(Machine::boot(info.socket.as_ref()));
}
