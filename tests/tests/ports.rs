//! Ports: on first use, persistent, in trust groups, as pipes; names, and quotas.

use std::process::Stdio;
use std::time::Duration;

use client::{Error, FRAME_MAX, Interest, Port};
use harness::daemon::{Daemon, Setup};
use harness::frames::{BROADCAST, Tally, announcement, fill, mac};
use harness::measure::on_huge_pages;
use harness::process::Peer;
use harness::role::{Become, Receive, Report, Role, Send};
use harness::{skip, wait};
use protocol::{
    ErrorCode, PortAdd, PortKind, PortRef, PortRequest, PortSettings, Request, SwitchRef,
    SwitchRequest, exit,
};
use ring::Region;
use ring::layout::{PAGE, RegionLayout};

const SOON: Option<Duration> = Some(wait::PATIENCE);

/// A receiver at which nothing is lost: its senders wait for room.
fn patient(daemon: &Daemon, port: &str) {
    let settings =
        PortSettings { on_full: Some(protocol::OnFull::Wait), ..PortSettings::default() };
    let add = PortAdd {
        port: port.parse().unwrap(),
        kind: PortKind::Shm,
        settings,
        host: None,
        machine: None,
        vxlan: None,
    };
    daemon.call(Request::Port(PortRequest::Add(Box::new(add)))).unwrap();
}

/// All frames of a stream between two processes.
fn exchange(daemon: &Daemon, lens: Vec<usize>, batch: usize, count: u64, rings: u16) {
    patient(daemon, "vale0:b");
    let mut at = [daemon.at("vale0:a"), daemon.at("vale0:b")];
    at.iter_mut().for_each(|at| at.rings = Some(rings));
    let [from, to] = at;
    let receive = Receive { at: to, station: Some(9), count: Some(count), ..Receive::default() };
    let receiver = Peer::start(&Role::Receive(receive));
    let send = Send { at: from, stream: 1, to: mac(9), count: Some(count), lens, batch };
    let sender = Peer::start(&Role::Send(send));
    assert_eq!(sender.sent(), count);
    receiver.received().assert_whole(1, count);
}

#[test]
fn switch_and_port_come_with_their_first_client_and_go_with_the_last() {
    let daemon = Daemon::start();
    let before = daemon.holdings();
    assert_eq!(daemon.switch("valelab"), None);
    let (a, b) = (daemon.open("valelab:a"), daemon.open("valelab:b"));
    assert_eq!(daemon.switch("valelab").unwrap().ports, 2);
    assert_eq!(daemon.port("valelab:a").unwrap().client.unwrap().pid, std::process::id());
    drop(a);
    wait::until("the port to go", || daemon.ports() == ["valelab:b"]);
    drop(b);
    wait::until("the switch to go", || daemon.switch("valelab").is_none());
    daemon.assert_holds(before);
}

#[test]
fn frames_arrive_in_order_and_intact() {
    exchange(&Daemon::start(), vec![60, 64, 65, 128, 1514, 333], 64, 30_000, 1);
}

#[test]
fn frames_arrive_one_at_a_time() {
    exchange(&Daemon::start(), vec![60], 1, 3000, 1);
}

#[test]
fn frames_of_every_length_arrive() {
    exchange(&Daemon::start(), (26..9001).step_by(7).collect(), 16, 3000, 1);
}

#[test]
fn the_longest_frames_arrive_as_chains() {
    exchange(&Daemon::start(), vec![65_000, 60, FRAME_MAX, 2112, 2113, 4224, 26], 4, 700, 1);
}

/// With the smallest buffers, frames are as long as a sender may make them, and no longer.
#[test]
fn frames_of_as_many_slots_as_there_may_be_arrive() {
    let daemon = Setup::new("[rings]\nbuffer_stride = 64\n").start();
    exchange(&daemon, vec![4096, 4097, 9000, 60, 64 * 255], 8, 2_000, 1);
    let mut port = daemon.open("vale0:c");
    let error = port.try_send(&vec![0; 64 * 255 + 1]).unwrap_err();
    assert!(matches!(error, Error::TooLong { max: 16_320, .. }), "{error}");
}

#[test]
fn frames_arrive_through_ports_of_several_rings() {
    exchange(&Daemon::start(), vec![60, 1514, 9000], 32, 5000, 4);
}

#[test]
fn the_shortest_frame_is_a_header() {
    let daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    for len in 14..26 {
        fill(&mut sent, BROADCAST, 1, 0, len);
        a.send(&sent).unwrap();
        assert!(b.recv_timeout(&mut got, SOON).unwrap());
        assert_eq!(got, sent);
    }
    assert!(matches!(a.send(&[0; 13]), Err(Error::TooShort { len: 13 })));
    assert!(matches!(a.send(&vec![0; FRAME_MAX + 1]), Err(Error::TooLong { .. })));
}

#[test]
fn every_ring_of_a_port_sends_and_receives() {
    let daemon = Daemon::start();
    let four = || daemon.options().rings(4);
    let (mut a, mut b) = (four().open("vale0:a").unwrap(), four().open("vale0:b").unwrap());
    let (mut frame, mut got) = (Vec::new(), Vec::new());
    for ring in 0..4 {
        fill(&mut frame, BROADCAST, 1, ring as u64, 100);
        a.tx(ring).send(&frame).unwrap();
        assert!(b.recv_timeout(&mut got, SOON).unwrap());
        assert_eq!(got, frame);
    }
    let queues = daemon.stats("vale0:a").tx_queues;
    assert_eq!(queues.iter().map(|queue| queue.frames).collect::<Vec<_>>(), [1; 4]);
}

#[test]
fn the_counters_of_a_persistent_port_outlive_its_clients() {
    let daemon = Daemon::start();
    patient(&daemon, "vale0:vm");
    let counted = || {
        let stats = daemon.stats("vale0:vm");
        (stats.tx.frames, stats.tx.bytes, stats.rx.frames)
    };
    assert_eq!(counted(), (0, 0, 0), "no client has held it yet");
    let mut other = daemon.open("vale0:other");
    let mut frame = Vec::new();
    fill(&mut frame, BROADCAST, 1, 0, 100);
    for round in 1..=3 {
        let mut port = daemon.options().rings(round).open("vale0:vm").unwrap();
        port.tx(usize::from(round) - 1).send(&frame).unwrap();
        assert!(other.wait(Interest::Rx, SOON).unwrap());
        other.rx(0).release(1).unwrap();
        other.send(&frame).unwrap();
        assert!(port.wait(Interest::Rx, SOON).unwrap());
        let n = u64::from(round);
        assert_eq!(counted(), (n, 100 * n, n));
        drop(port);
        wait::until("the port to be free", || daemon.port("vale0:vm").unwrap().client.is_none());
        assert_eq!(counted(), (n, 100 * n, n), "no client is attached");
    }
    let queues = daemon.stats("vale0:vm").tx_queues;
    assert_eq!(queues.iter().map(|queue| queue.frames).collect::<Vec<_>>(), [1, 1, 1]);
    let shown = daemon.uvala(&["stats", "vale0:vm", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["ports"][0]["tx"]["frames"], 3, "{shown}");
    let vm = PortRef { port: "vale0:vm".parse().unwrap() };
    daemon.call(Request::Port(PortRequest::Del(vm))).unwrap();
    patient(&daemon, "vale0:vm");
    assert_eq!(counted(), (0, 0, 0), "another port of that name");
}

#[test]
fn extra_buffers_keep_frames_and_come_back() {
    let daemon = Daemon::start();
    let open = |name: &str, group: Option<&str>| {
        let options = daemon.options().extra_bufs(3);
        group.map_or_else(|| options.clone(), |group| options.clone().group(group)).open(name)
    };
    let ends = [("vale0:a", "vale0:b", None), ("vale0:c", "vale0:d", Some("g"))];
    for (from, to, group) in ends.into_iter().chain([("vale1:p{1", "vale1:p}1", None)]) {
        let (mut a, mut b) = (open(from, group).unwrap(), open(to, group).unwrap());
        let mut kept: Vec<_> = std::iter::from_fn(|| b.extra_bufs().take()).collect();
        assert_eq!(kept.len(), 3, "{to}");
        for (seq, kept) in kept.iter_mut().enumerate() {
            let mut frame = Vec::new();
            fill(&mut frame, BROADCAST, 1, seq as u64, 100);
            a.send(&frame).unwrap();
            assert!(b.wait(Interest::Rx, SOON).unwrap());
            b.rx(0).available();
            assert!(b.rx(0).swap(0, kept));
            b.rx(0).release(1).unwrap();
            assert_eq!(kept[..100], frame);
        }
        // Sent on in the order of their coming, without another copy on this side.
        for mut kept in kept {
            assert!(b.tx(0).space() > 0 && b.tx(0).swap(0, &mut kept));
            b.tx(0).set(0, 100, 0);
            b.tx(0).submit(1).unwrap();
        }
        let (mut got, mut expected) = (Vec::new(), Vec::new());
        for seq in 0..3 {
            assert!(a.recv_timeout(&mut got, SOON).unwrap());
            fill(&mut expected, BROADCAST, 1, seq, 100);
            assert_eq!(got, expected, "{to}");
        }
        let again: Vec<_> = std::iter::from_fn(|| b.extra_bufs().take()).collect();
        assert_eq!(again.len(), 3, "they came back");
    }
    assert!(daemon.open("vale0:z").extra_bufs().take().is_none(), "none were asked for");
}

#[test]
fn a_persistent_port_outlives_its_clients_and_keeps_its_settings() {
    let daemon = Daemon::start();
    patient(&daemon, "vale0:vm");
    for _ in 0..2 {
        let port = daemon.options().existing(true).open("vale0:vm").unwrap();
        assert!(daemon.port("vale0:vm").unwrap().client.is_some());
        drop(port);
        wait::until("the port to be free", || daemon.port("vale0:vm").unwrap().client.is_none());
    }
    let info = daemon.port("vale0:vm").unwrap();
    assert!(info.persistent);
    assert_eq!(info.settings.on_full, Some(protocol::OnFull::Wait));
    let missing = daemon.options().existing(true).open("vale0:other").unwrap_err();
    assert_eq!(missing.code(), Some(ErrorCode::NotFound));
    assert_eq!(daemon.ports(), ["vale0:vm"]);
}

#[test]
fn a_static_address_waits_for_its_port_and_is_nobody_elses() {
    let daemon = Daemon::start();
    let done = |args: &[&str]| {
        let output = daemon.uvala(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
    };
    done(&["switch", "add", "vale0", "--forwarding", "static"]);
    done(&["port", "add", "vale0:a"]);
    let address = packet::MacAddr::new(mac(1)).to_string();
    done(&["fdb", "add", "vale0:a", &address]);
    let mut sender = daemon.open("vale0:b");
    let mut frame = [0u8; 60];
    frame[..6].copy_from_slice(&mac(1));
    for round in 1..=2 {
        frame[6..12].copy_from_slice(&mac(2));
        let mut a = daemon.open("vale0:a");
        sender.send(&frame).unwrap();
        assert!(a.recv_timeout(&mut Vec::new(), SOON).unwrap());
        drop(a);
        wait::until("the port to be free", || daemon.port("vale0:a").unwrap().client.is_none());
        done(&["switch", "set", "vale0", "--forwarding", "learning"]);
        // A port that claims that address changes nothing.
        frame[6..12].copy_from_slice(&mac(1));
        sender.send(&frame).unwrap();
        assert!(sender.drain(SOON).unwrap());
        assert_eq!(daemon.stats("vale0:b").drops["dead_port"], round, "and its sender is told");
        let list = daemon.uvala(&["fdb", "list", "vale0"]);
        let list = String::from_utf8(list.stdout).unwrap();
        assert!(list.contains("vale0:a") && list.contains("static"), "{list}");
        done(&["switch", "set", "vale0", "--forwarding", "static"]);
    }
}

#[test]
fn a_deleted_port_is_lost_to_its_client_which_does_not_come_back() {
    let daemon = Daemon::start();
    for call in [
        Request::Port(PortRequest::Del(PortRef { port: "vale0:a".parse().unwrap() })),
        Request::Switch(SwitchRequest::Del(SwitchRef { switch: "vale0".parse().unwrap() })),
    ] {
        let mut port = daemon.options().reconnect(true).open("vale0:a").unwrap();
        daemon.call(call).unwrap();
        for _ in 0..2 {
            let error = port.recv_timeout(&mut Vec::new(), SOON).unwrap_err();
            assert!(matches!(error, Error::Deleted(_)), "{error:?}");
            assert!(error.to_string().starts_with("vale0:a was deleted"), "{error}");
        }
        assert!(matches!(port.reconnect(SOON), Err(Error::Deleted(_))));
        assert!(daemon.ports().is_empty());
    }
}

#[test]
fn programs_end_when_their_port_is_deleted() {
    let daemon = Daemon::start();
    let dir = daemon.dir();
    let dir = ["--dir", dir.to_str().expect("UTF-8")];
    for args in [
        &["gen", "-i", "vale0:a", "-f", "tx"][..],
        &["gen", "-i", "vale0:a", "-f", "rx"],
        &["bridge", "vale0:a", "vale1:b"],
    ] {
        let args = [args, &dir].concat();
        let mut command = harness::process::uvala(Become::default(), &args, None);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let program = command.spawn().unwrap();
        wait::until("the port", || daemon.port("vale0:a").is_some());
        let output = daemon.uvala(&["port", "del", "vale0:a"]);
        assert!(output.status.success(), "{output:?}");
        let ended = program.wait_with_output().unwrap();
        let message = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(exit::NOT_FOUND.into()), "{args:?}: {message}");
        assert!(message.contains("vale0:a was deleted"), "{args:?}: {message}");
        assert!(daemon.port("vale0:a").is_none());
    }
}

#[test]
fn ports_say_which_program_holds_them() {
    let daemon = Daemon::start();
    let _a = daemon.open("vale0:a");
    let _b = daemon.options().client("my program").open("vale0:b").unwrap();
    let name = |port| daemon.port(port).unwrap().client.unwrap().name;
    let exe = std::env::current_exe().unwrap();
    assert_eq!(name("vale0:a"), exe.file_name().unwrap().to_str().unwrap());
    assert_eq!(name("vale0:b"), "my program");
}

#[test]
fn processes_of_a_trust_group_share_their_memory() {
    let daemon = Daemon::start();
    ["vale0:in", "vale1:sink"].iter().for_each(|port| patient(&daemon, port));
    let member = |name: &str| daemon.options().group("chain").open(name).unwrap();
    let (mut input, mut output) = (member("vale0:in"), member("vale1:out"));
    assert_eq!(input.region(), output.region());
    let mut at = [daemon.at("vale0:source"), daemon.at("vale1:sink")];
    at.iter_mut().for_each(|at| at.group = Some("chain".to_owned()));
    let [source, sink] = at;
    let count = 6000;
    let receive = Receive { at: sink, station: Some(9), count: Some(count), ..Receive::default() };
    let receiver = Peer::start(&Role::Receive(receive));
    input.send(&announcement(9)).unwrap();
    assert!(input.drain(SOON).unwrap());
    let (to, lens) = (mac(9), vec![60, 1514, 5000]);
    let send = Send { at: source, stream: 1, to, count: Some(count), lens, batch: 32 };
    let sender = Peer::start(&Role::Send(send));
    // The one in the middle swaps buffers, and the chains they are.
    let mut passed = 0;
    while passed < 5 * count / 3 {
        assert!(input.wait(Interest::Rx, SOON).unwrap(), "{passed} slots so far");
        assert!(output.wait(Interest::Tx(64), SOON).unwrap());
        passed += u64::from(input.rx(0).forward(output.tx(0), 64).unwrap());
    }
    assert_eq!(sender.sent(), count);
    receiver.received().assert_whole(1, count);
}

#[test]
fn a_pipe_goes_on_without_the_daemon() {
    let mut daemon = Daemon::start();
    let mut master = daemon.open("vale0:p{1");
    let at = daemon.at("vale0:p}1");
    let receive = Receive { at, count: Some(1000), ..Receive::default() };
    let slave = Peer::start(&Role::Receive(receive));
    assert_eq!(daemon.ports().len(), 2);
    let mut frame = Vec::new();
    for seq in 0..1000 {
        if seq == 500 {
            daemon.kill();
        }
        fill(&mut frame, mac(2), 1, seq, 60 + usize::try_from(seq).unwrap());
        assert!(master.send_timeout(&frame, SOON).unwrap());
    }
    slave.received().assert_whole(1, 1000);
}

#[test]
fn both_ends_of_a_pipe_send_and_receive() {
    let daemon = Daemon::start();
    let mut master = daemon.open("vale0:p{1");
    let echo = Receive { at: daemon.at("vale0:p}1"), echo: true, ..Receive::default() };
    let mut slave = Peer::start(&Role::Receive(echo));
    echoes(&mut master, 200);
    slave.finish();
    slave.received().assert_whole(1, 200);
}

/// Sends frames and expects each one back.
fn echoes(port: &mut Port, count: u64) {
    let (mut frame, mut back) = (Vec::new(), Vec::new());
    for seq in 0..count {
        fill(&mut frame, mac(2), 1, seq, 60);
        assert!(port.send_timeout(&frame, SOON).unwrap());
        assert!(port.recv_timeout(&mut back, SOON).unwrap(), "frame {seq} does not come back");
        assert_eq!(back, frame);
    }
}

#[test]
fn the_end_of_a_pipe_can_be_opened_again_after_its_client_died() {
    let daemon = Daemon::start();
    let mut master = daemon.open("vale0:p{1");
    for _ in 0..3 {
        let echo = Receive { at: daemon.at("vale0:p}1"), echo: true, ..Receive::default() };
        let mut slave = Peer::start(&Role::Receive(echo));
        echoes(&mut master, 20);
        slave.process().kill();
        wait::until("the end to be free", || daemon.port("vale0:p}1").is_none());
        // The next holder gets the frames that were left unread.
        while master.try_recv(&mut Vec::new()).unwrap_or(false) {}
    }
}

#[test]
fn a_null_port_takes_everything() {
    let daemon = Daemon::start();
    let port = "vale0:sink".parse().unwrap();
    let settings = PortSettings::default();
    daemon
        .call(Request::Port(PortRequest::Add(Box::new(PortAdd {
            port,
            kind: PortKind::Null,
            settings,
            host: None,
            machine: None,
            vxlan: None,
        }))))
        .unwrap();
    let mut a = daemon.open("vale0:a");
    let mut frame = Vec::new();
    for seq in 0..5000 {
        fill(&mut frame, BROADCAST, 1, seq, 60);
        assert!(a.send_timeout(&frame, SOON).unwrap());
    }
    assert!(a.drain(SOON).unwrap());
    assert_eq!(daemon.stats("vale0:sink").rx.frames, 5000);
    let refused = daemon.options().open("vale0:sink").unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Unsupported));
}

#[test]
fn a_port_that_is_taken_is_refused_and_its_holder_named() {
    let daemon = Daemon::start();
    let _holder = daemon.open("vale0:a");
    let second = Peer::launch(&Role::Hold(daemon.at("vale0:a")), None);
    let Report::Failed { exit, message } = second.report() else { panic!("two holders") };
    assert_eq!(exit, exit::IN_USE);
    let holder = format!("taken by process {}", std::process::id());
    assert!(message.contains(&holder), "{message}");
    let output = daemon.uvala(&["port", "add", "vale0:a"]);
    assert_eq!(output.status.code(), Some(i32::from(exit::EXISTS)));
}

#[test]
fn what_is_no_name_is_refused_with_an_example() {
    let daemon = Daemon::start();
    let long = format!("vale0:{}", "x".repeat(70));
    let bad =
        ["", "eth0", "vale0", "vale0:", "vale0:a-b", "vale0:a{", "vale0:a b", "vale/:a", &long];
    for name in bad {
        let error = daemon.options().open(name).unwrap_err();
        assert_eq!(error.exit_code(), exit::BAD_NAME, "{name}: {error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    assert!(daemon.ports().is_empty());
}

#[test]
fn a_quota_of_ports_is_kept() {
    let daemon = Setup::new("[quota]\nports = 3\n").start();
    let ports: Vec<Port> = (0..3).map(|i| daemon.open(&format!("vale0:p{i}"))).collect();
    let before = daemon.holdings();
    let refused = daemon.options().open("vale1:p3").unwrap_err();
    assert_eq!(refused.exit_code(), exit::QUOTA);
    assert!(refused.to_string().contains("quota.ports"), "{refused}");
    daemon.assert_holds(before);
    assert_eq!(daemon.switch("vale1"), None);
    drop(ports);
    wait::until("room again", || daemon.ports().is_empty());
    drop(daemon.open("vale1:p3"));
}

#[test]
fn a_quota_of_memory_is_kept() {
    let daemon = Setup::new("[quota]\nmemory = \"10MiB\"\n").start();
    let _first = daemon.open("vale0:a");
    let before = daemon.holdings();
    let refused = daemon.options().slots(8192).open("vale1:b").unwrap_err();
    assert_eq!(refused.exit_code(), exit::QUOTA);
    assert!(refused.to_string().contains("quota.memory"), "{refused}");
    daemon.assert_holds(before);
    assert_eq!(daemon.ports(), ["vale0:a"]);
    assert_eq!(daemon.switch("vale1"), None);
    drop(daemon.open("vale1:b"));
}

/// Whether this machine has huge pages to give, as a region of the test's own gets them.
fn has_huge_pages() -> bool {
    let layout = RegionLayout::new(PAGE, 4096, 1500).expect("legal");
    let (region, _fd) = Region::create("probe", layout).expect("memory");
    let first = region.buffers().next().expect("1500");
    region.populate_buffers(first, 1500).expect("memory");
    region.huge_pages().into_iter().for_each(|run| region.collapse(run));
    on_huge_pages(std::process::id()) > 0
}

/// No client waits for them, and no frame is lost when its memory moves.
#[test]
fn a_port_gets_huge_pages_while_it_is_in_use() {
    if !has_huge_pages() {
        return skip("this machine has no huge pages to give");
    }
    let daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    let (mut frame, mut got, mut seq) = (Vec::new(), Vec::new(), 0);
    wait::until("huge pages", || {
        for _ in 0..500 {
            fill(&mut frame, BROADCAST, 1, seq, 1514);
            seq += 1;
            a.send(&frame).unwrap();
            assert!(b.recv_timeout(&mut got, SOON).unwrap());
            assert_eq!(got, frame, "frame {seq}");
        }
        on_huge_pages(daemon.pid()) > 0
    });
}

#[test]
fn a_quota_of_connections_is_kept() {
    let daemon = Setup::new("[quota]\nconnections = 4\n").start();
    let before = daemon.holdings();
    // One more is the test's own.
    let mut held: Vec<_> = (0..3).map(|_| daemon.connect().unwrap()).collect();
    held.iter().for_each(|connection| drop(connection.hello("one").unwrap()));
    let refused = daemon.connect().and_then(|last| last.hello("too many")).unwrap_err();
    assert_eq!(refused.exit_code(), exit::QUOTA, "{refused}");
    held.pop();
    wait::until("room again", || {
        daemon.connect().and_then(|connection| connection.hello("again")).is_ok()
    });
    drop(held);
    daemon.assert_holds(before);
}

#[test]
fn two_senders_do_not_mix_their_streams() {
    let daemon = Daemon::start();
    patient(&daemon, "vale0:c");
    let count = 4000;
    let at = daemon.at("vale0:c");
    let receive = Receive { at, station: Some(9), count: Some(2 * count), ..Receive::default() };
    let receiver = Peer::start(&Role::Receive(receive));
    let senders: Vec<Peer> = [1, 2]
        .into_iter()
        .map(|stream| {
            let at = daemon.at(&format!("vale0:s{stream}"));
            let (to, lens) = (mac(9), vec![60, 700, 3000]);
            let send = Send { at, stream, to, count: Some(count), lens, batch: 16 };
            Peer::start(&Role::Send(send))
        })
        .collect();
    senders.iter().for_each(|sender| assert_eq!(sender.sent(), count));
    let tally: Tally = receiver.received();
    tally.assert_whole(1, count);
    tally.assert_whole(2, count);
}
