//! Ports of netmap programs: many holders, descriptors that travel, pipes, regions, extra buffers.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use harness::Random;
use harness::daemon::{Daemon, Setup};
use harness::frames::{BROADCAST, fill, mac};
use harness::netmap::{Descriptor, code};
use harness::process::Peer;
use harness::role::{At, Receive, Report, Resume, Role, Send};
use harness::wait::{self, PATIENCE};
use protocol::{
    Bind, ErrorCode, GeometryQuery, PortRef, PortRequest, Request, RingChoice, SessionRequest,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};

const QUIET: Duration = Duration::from_millis(50);

fn bind(port: &str) -> Bind {
    Bind::new(port.parse().unwrap())
}

fn open(daemon: &Daemon, bind: Bind) -> Descriptor {
    let name = bind.port.clone();
    Descriptor::bind(&daemon.dir(), bind).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn refused(daemon: &Daemon, bind: Bind) -> ErrorCode {
    code(&Descriptor::bind(&daemon.dir(), bind).unwrap_err())
}

fn frame(to: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    fill(&mut frame, to, 1, 0, len);
    frame
}

/// Sends one frame and waits until it is there.
fn pass(from: &Descriptor, to: &Descriptor, len: usize) {
    let sent = frame(BROADCAST, len);
    from.send(&sent).unwrap();
    from.txsync().unwrap();
    assert_eq!(to.receive(PATIENCE).unwrap().as_ref(), Some(&sent));
}

#[test]
fn frames_go_between_programs_and_native_clients() {
    let daemon = Daemon::start();
    let before = daemon.holdings();
    let (a, b) = (open(&daemon, bind("vale0:a")), open(&daemon, bind("vale0:b")));
    let mut native = daemon.open("vale0:c");
    for len in [60, 64, 1514, 2112] {
        pass(&a, &b, len);
        pass(&b, &a, len);
    }
    let mut got = Vec::new();
    for _ in 0..8 {
        assert!(native.recv_timeout(&mut got, Some(PATIENCE)).unwrap());
    }
    native.send(&frame(BROADCAST, 100)).unwrap();
    assert_eq!(a.receive(PATIENCE).unwrap().unwrap().len(), 100);
    assert_eq!(daemon.stats("vale0:a").tx.frames, 4);
    drop((a, b, native));
    wait::until("all ports to go", || daemon.ports().is_empty());
    daemon.assert_holds(before);
}

#[test]
fn what_a_port_that_went_had_counted_can_be_read_for_a_while() {
    let daemon = Daemon::start();
    let (a, b) = (open(&daemon, bind("vale0:a")), open(&daemon, bind("vale0:b")));
    pass(&a, &b, 60);
    // More than the receiver's ring holds: its client does not read.
    for _ in 0..3000 {
        a.send(&frame(BROADCAST, 60)).unwrap();
    }
    a.txsync().unwrap();
    wait::until("all to be taken", || daemon.stats("vale0:a").tx.frames == 3001);
    drop(b);
    wait::until("the port to go", || daemon.port("vale0:b").is_none());
    let shown = daemon.uvala(&["stats", "vale0:b", "--gone", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let gone = &shown["ports"][0];
    let (received, dropped) = (gone["rx"]["frames"].as_u64(), gone["drops"]["no_room"].as_u64());
    assert_eq!(received.zip(dropped).map(|(a, b)| a + b), Some(3001), "{shown}");
    assert!(gone["port"] == "vale0:b" && dropped > Some(1900) && gone["gone_s"].is_u64());
    let table = daemon.uvala(&["stats", "--gone"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("vale0:b (") && !table.contains("vale0:a"), "{table}");
    let others = daemon.uvala(&["stats", "vale1", "--gone"]);
    assert!(!String::from_utf8(others.stdout).unwrap().contains("vale0"));
}

#[test]
fn streams_between_processes_arrive_whole() {
    let daemon = Setup::new("[switch.vale0.port.b]\non_full = \"wait\"\n").start();
    let count = 20_000;
    let receive =
        Receive { at: daemon.at("vale0:b"), station: Some(9), count: Some(count), echo: false };
    let receiver = Peer::start(&Role::NetmapReceive(receive));
    let lens = vec![60, 1514, 333];
    let at = daemon.at("vale0:a");
    let send = Send { at, stream: 1, to: mac(9), count: Some(count), lens, batch: 32 };
    let sender = Peer::start(&Role::NetmapSend(send));
    assert_eq!(sender.sent(), count);
    receiver.received().assert_whole(1, count);
}

#[test]
fn a_port_has_several_holders_who_all_wake_up() {
    let daemon = Daemon::start();
    let holders = [0, 1, 2].map(|_| open(&daemon, bind("vale0:a")));
    let ids: BTreeSet<_> = holders.iter().map(|h| h.binding().bound().nifp).collect();
    assert_eq!(ids.len(), 3, "each has a netmap_if of its own");
    let sender = open(&daemon, bind("vale0:s"));
    // All sleep; one frame wakes them, and all see it until one gives the slot back.
    std::thread::scope(|scope| {
        let sleepers = holders
            .each_ref()
            .map(|holder| scope.spawn(|| holder.poll(false, true, PATIENCE).unwrap()));
        std::thread::sleep(QUIET);
        sender.send(&frame(BROADCAST, 60)).unwrap();
        sender.txsync().unwrap();
        assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap()));
    });
    assert_eq!(holders[1].take(0).unwrap().len(), 60);
    assert!(holders[0].take(0).is_none());
    let [first, second, third] = holders;
    drop((first, third));
    pass(&sender, &second, 70);
    drop(second);
    wait::until("the port to go", || daemon.port("vale0:a").is_none());
}

#[test]
fn rings_are_bound_one_by_one_and_exclusively() {
    let daemon = Daemon::start();
    let one = |ring, exclusive| {
        let rings = RingChoice::One(ring);
        Bind { tx_rings: Some(3), rx_rings: Some(3), rings, exclusive, ..bind("vale0:a") }
    };
    let second = open(&daemon, one(1, true));
    // TX 0-2, host, RX 0-2, host.
    let bound = |d: &Descriptor| (0..8).filter(|i| d.ring_ofs(*i).is_some()).collect::<Vec<_>>();
    assert_eq!(bound(&second), [1, 5]);
    assert_eq!(refused(&daemon, bind("vale0:a")), ErrorCode::InUse);
    assert_eq!(refused(&daemon, one(1, false)), ErrorCode::InUse);
    let first = open(&daemon, one(0, true));
    let last = open(&daemon, Bind { tx_only: true, ..one(2, false) });
    assert_eq!(bound(&last), [2]);
    let peer = open(&daemon, Bind { tx_rings: Some(3), rx_rings: Some(3), ..bind("vale0:b") });
    for (from, ring) in [(&first, 0), (&second, 1), (&last, 2)] {
        assert!(from.put(ring, &frame(BROADCAST, 60), 0));
        from.txsync().unwrap();
        assert!(peer.poll(false, true, PATIENCE).unwrap());
        assert_eq!(peer.take(ring).map(|frame| frame.len()), Some(60), "ring {ring}");
    }
    drop(second);
    wait::until("the ring to be free", || Descriptor::bind(&daemon.dir(), one(1, true)).is_ok());
}

#[test]
fn a_connection_binds_once() {
    let daemon = Daemon::start();
    let a = open(&daemon, bind("vale0:a"));
    let again = client::control::Connection::from_fd(a.socket().as_fd(), &daemon.dir());
    assert_eq!(again.bind(bind("vale0:b")).unwrap_err().code(), Some(ErrorCode::InUse));
    assert_eq!(daemon.ports(), ["vale0:a"]);
}

#[test]
fn a_copy_of_a_descriptor_in_another_process_is_the_same_port() {
    let daemon = Daemon::start();
    let before = daemon.holdings();
    let a = open(&daemon, bind("vale0:a"));
    let path = daemon.dir().join("pass.sock");
    let listener = listen(&path);
    let at = At { dir: daemon.dir(), ..At::default() };
    let role = Role::NetmapResume(Resume { at, from: path, count: Some(40) });
    let heir = Peer::launch(&role, None);
    hand_over(&listener, a.socket());
    assert_eq!(heir.report(), Report::Ready);
    // The first holder is gone; the copy keeps the port.
    drop(a);
    let sender = open(&daemon, bind("vale0:s"));
    let mut next = Vec::new();
    for seq in 0..40 {
        fill(&mut next, BROADCAST, 1, seq, 60);
        sender.send(&next).unwrap();
    }
    sender.txsync().unwrap();
    heir.received().assert_whole(1, 40);
    drop((heir, sender));
    wait::until("both to go", || daemon.ports().is_empty());
    drop(listener);
    daemon.assert_holds(before);
}

fn listen(path: &std::path::Path) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    socket
}

fn hand_over(listener: &OwnedFd, fd: &OwnedFd) {
    let peer = rustix::net::accept(listener).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(&peer, &[IoSlice::new(b"here")], &mut ancillary, SendFlags::empty())
        .unwrap();
}

#[test]
fn extra_buffers_are_lent_and_come_back_whatever_became_of_the_list() {
    let daemon = Daemon::start();
    let extra = |count| Bind { extra_bufs: count, ..bind("vale0:a") };
    let keeper = open(&daemon, bind("vale0:a"));
    let a = open(&daemon, extra(58));
    let list = a.extra();
    assert_eq!((list.len(), a.binding().bound().attached.extra_bufs), (58, 58));
    let distinct: BTreeSet<_> = list.iter().copied().collect();
    assert_eq!(distinct.len(), 58);
    assert!(keeper.extra().is_empty());
    // One goes into a slot, what stood there into the list; the list ends in a circle.
    let ring = a.tx(0);
    let stood = a.buffer(ring, 5);
    a.set_word(a.slot_at(ring, 5), list[0]);
    a.set_word(a.binding().bound().nifp + 32, stood);
    a.set_word(a.buffer_at(stood), list[1]);
    a.set_word(a.buffer_at(list[57]), list[1]);
    drop(a);
    wait::until("the loan to end", || {
        let next = open(&daemon, extra(58));
        let again: BTreeSet<_> = next.extra().into_iter().collect();
        again.contains(&stood) && !again.contains(&list[0])
    });
    let many = open(&daemon, extra(100_000));
    assert_eq!(many.extra().len(), 100_000);
}

#[test]
fn regions_are_shared_by_number_and_frames_are_swapped_in_them() {
    let daemon = Daemon::start();
    let a = open(&daemon, bind("vale0:a"));
    let mem_id = a.binding().bound().mem_id;
    let b = open(&daemon, Bind { mem_id, ..bind("vale0:b") });
    assert_eq!(b.binding().bound().mem_id, mem_id);
    pass(&a, &b, 60);
    let unknown = Bind { mem_id: 60000, ..bind("vale0:c") };
    assert_eq!(refused(&daemon, unknown), ErrorCode::BadRequest);
    // To one port alone the frame itself is passed on.
    let learn = frame(BROADCAST, 60);
    let (mut from_b, mut to_b) = (learn.clone(), learn);
    from_b[6..12].copy_from_slice(&mac(7));
    to_b[..6].copy_from_slice(&mac(7));
    b.send(&from_b).unwrap();
    b.txsync().unwrap();
    assert!(a.receive(PATIENCE).unwrap().is_some());
    let (sent, at) = (a.buffer(a.tx(0), 1), b.indexes(b.rx(0))[2]);
    a.send(&to_b).unwrap();
    a.txsync().unwrap();
    assert!(b.poll(false, true, PATIENCE).unwrap());
    assert_eq!(b.buffer(b.rx(0), at), sent);
}

/// Bytes that the kernel has committed for the region of a port.
fn committed(port: &Descriptor) -> u64 {
    let blocks = rustix::fs::fstat(port.binding().region()).unwrap().st_blocks;
    512 * u64::try_from(blocks).unwrap()
}

/// Writes into every page of the region of a port.
fn write_all(port: &Descriptor) {
    let pages = 0..port.binding().bound().attached.region_bytes / 4096;
    pages.for_each(|page| port.set_word(4096 * page + 4000, 7));
}

/// Ports until one is refused for want of quota, all of whose regions is committed.
fn fill_quota(daemon: &Daemon) -> Vec<Descriptor> {
    let mut ports = Vec::new();
    loop {
        let next = Bind { extra_bufs: 100, ..bind(&format!("vale0:p{}", ports.len())) };
        match Descriptor::bind(&daemon.dir(), next) {
            Ok(port) => {
                write_all(&port);
                ports.push(port);
            }
            Err(refused) => {
                assert_eq!(code(&refused), ErrorCode::Quota);
                assert!(refused.to_string().contains("quota.memory"), "{refused}");
                return ports;
            }
        }
    }
}

#[test]
fn what_hostile_programs_commit_in_all_regions_is_within_the_quota_of_their_user() {
    let daemon = Setup::new("[quota]\nmemory = \"40MiB\"\n").start();
    let before = daemon.holdings();
    let ports = fill_quota(&daemon);
    let all: u64 = ports.iter().map(committed).sum();
    assert!((30 << 20..=40 << 20).contains(&all), "{all}");
    let mem_id = ports[0].binding().bound().mem_id;
    let joined = open(&daemon, Bind { mem_id, ..bind("vale1:joined") });
    assert_eq!(ports.iter().map(committed).sum::<u64>(), all, "it cost nothing");
    // Nor does a full region make a larger one.
    let full = Bind { mem_id, tx_slots: Some(16384), ..bind("vale1:large") };
    assert_eq!(refused(&daemon, full), ErrorCode::NoMemory);
    drop(joined);
    // A client that keeps the regions of deleted ports gets no others.
    for i in 0..ports.len() {
        let port = format!("vale0:p{i}").parse().unwrap();
        daemon.call(Request::Port(PortRequest::Del(PortRef { port }))).unwrap();
    }
    let more = Descriptor::bind(&daemon.dir(), bind("vale1:more"));
    assert!(more.unwrap_err().to_string().contains("until the programs"));
    ports.iter().for_each(write_all);
    assert_eq!(ports.iter().map(committed).sum::<u64>(), all, "all of it is still there");
    drop(ports);
    wait::until("all to go", || daemon.ports().is_empty());
    daemon.assert_holds(before);
    drop(fill_quota(&daemon));
}

#[test]
fn by_default_64_ports_have_regions_of_their_own() {
    let daemon = Daemon::start();
    let ports: Vec<_> = (0..64).map(|i| open(&daemon, bind(&format!("vale0:p{i}")))).collect();
    let bounds = ports.iter().map(|port| port.binding().bound());
    let (ids, sizes): (BTreeSet<_>, Vec<_>) =
        bounds.map(|bound| (bound.mem_id, bound.attached.region_bytes >> 20)).unzip();
    assert_eq!(ids.len(), 64);
    assert!(sizes[0] >= 1023 && sizes[63] >= 32 && sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    assert!(sizes.iter().sum::<u64>() < 16 << 10, "{sizes:?}");
    pass(&ports[0], &ports[63], 60);
}

#[test]
fn sizes_are_those_of_the_port_that_is_or_would_be() {
    let daemon = Daemon::start();
    let connection = daemon.connect().unwrap();
    let name = || Some("vale0:a".parse().unwrap());
    let ask = |port, mem_id| {
        connection.port_geometry(GeometryQuery { port, mem_id, ..GeometryQuery::default() })
    };
    let planned = ask(name(), 0).unwrap();
    assert!(daemon.ports().is_empty());
    let a = open(&daemon, bind("vale0:a"));
    let real = ask(name(), 0).unwrap();
    let bound = a.binding().bound();
    assert_eq!((planned.region_bytes, planned.tx_slots), (real.region_bytes, real.tx_slots));
    assert_eq!((real.region_bytes, real.mem_id), (bound.attached.region_bytes, bound.mem_id));
    let buffers = real.buffers;
    let attached = &bound.attached;
    assert_eq!(
        (buffers.offset, buffers.count, buffers.size),
        (attached.pool, attached.buffers, attached.stride)
    );
    assert!(bound.nifp >= real.ifs.offset);
    let region = ask(None, bound.mem_id).unwrap();
    assert_eq!((region.region_bytes, region.tx_rings), (real.region_bytes, 0));
    assert_eq!(ask(None, 0).unwrap().mem_id, 1);
    assert_eq!(ask(None, 60000).unwrap_err().code(), Some(ErrorCode::BadRequest));
}

#[test]
fn a_ring_out_of_order_starts_over_and_harms_nobody() {
    let daemon = Daemon::start();
    let (a, b) = (open(&daemon, bind("vale0:a")), open(&daemon, bind("vale0:b")));
    pass(&a, &b, 60);
    a.advance(a.tx(0), 5000);
    assert!(a.binding().rings().txsync(false).bad);
    assert_eq!(a.indexes(a.tx(0))[..2], [1, 1]);
    pass(&a, &b, 61);
    b.rxsync().unwrap();
    b.advance(b.rx(0), 900);
    assert!(b.binding().rings().rxsync([0, 0]).bad);
    pass(&a, &b, 62);
}

/// Random numbers all over the indexes, slots, lists and CSBs of everything in a region.
#[test]
fn a_program_that_scribbles_harms_its_own_ports_only() {
    let daemon = Daemon::start();
    let before = daemon.holdings();
    let (a, b) = (open(&daemon, bind("vale0:a")), open(&daemon, bind("vale0:b")));
    let mut random = Random::seeded(5);
    for _ in 0..4 {
        let small = |port: &str| {
            let slots = Some(64);
            Bind { tx_slots: slots, rx_slots: slots, extra_bufs: 20, ..bind(port) }
        };
        let ports = ["vale0:x", "vale0:x", "vale0:x{1", "vale0:x}1"];
        let wild = ports.map(|port| open(&daemon, small(port)));
        let pool = wild[0].binding().bound().attached.pool;
        let first = wild[0].binding().bound().attached.block;
        for round in 0..3000u64 {
            let one = &wild[usize::try_from(random.below(4)).unwrap()];
            let blocks = first..first + 64 * 4096;
            let place = [4096..4096 + 5 * 4096, blocks, pool..pool + 40 * 2112];
            let place = &place[usize::try_from(random.below(3)).unwrap()];
            let at = place.start + random.below(place.end - place.start) / 4 * 4;
            let value = u32::try_from(random.below(1 << 32)).unwrap();
            one.set_word(at, if round % 2 == 0 { value } else { value % 64 });
            let rings = one.binding().rings();
            let _ = (rings.txsync(false), rings.rxsync([0, 0]), rings.arm(true, true));
            one.binding().kick().unwrap();
        }
        // Whatever was learned of the wild ones, and whatever they sent, goes to them or to all.
        pass_among(&a, &b);
        pass_among(&b, &a);
        drop(wild);
        wait::until("them to go", || daemon.ports() == ["vale0:a", "vale0:b"]);
    }
    drop((a, b));
    wait::until("all to go", || daemon.ports().is_empty());
    daemon.assert_holds(before);
}

/// Sends one frame and waits until it is there, whatever else comes.
fn pass_among(from: &Descriptor, to: &Descriptor) {
    let sent = frame(BROADCAST, 600);
    from.send(&sent).unwrap();
    from.txsync().unwrap();
    while to.receive(PATIENCE).unwrap().expect("the frame") != sent {}
}

#[test]
fn a_pipe_is_made_with_its_parent_and_loses_nothing() {
    let daemon = Daemon::start();
    let before = daemon.holdings();
    let small = |port: &str| Bind { tx_slots: Some(64), rx_slots: Some(64), ..bind(port) };
    let (master, slave) =
        (open(&daemon, small("vale0:a{left_1")), open(&daemon, bind("vale0:a}left_1")));
    assert_eq!(daemon.ports(), ["vale0:a", "vale0:a{left_1", "vale0:a}left_1"]);
    pass(&master, &slave, 60);
    pass(&slave, &master, 1514);
    // More than both rings hold: what finds no room waits.
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut next = Vec::new();
            for seq in 0..1000 {
                fill(&mut next, mac(u32::try_from(seq % 7).unwrap()), 1, seq, 60);
                master.send(&next).unwrap();
            }
            master.txsync().unwrap();
        });
        std::thread::sleep(QUIET);
        for seq in 0..1000 {
            let mut expected = Vec::new();
            fill(&mut expected, mac(u32::try_from(seq % 7).unwrap()), 1, seq, 60);
            assert_eq!(slave.receive(PATIENCE).unwrap(), Some(expected), "frame {seq}");
        }
        sender.join().unwrap();
    });
    assert_eq!(slave.receive(QUIET).unwrap(), None);
    drop((master, slave));
    wait::until("pipe and parent to go", || daemon.ports().is_empty());
    daemon.assert_holds(before);
}

#[test]
fn what_goes_through_a_pipe_is_not_copied() {
    let daemon = Daemon::start();
    let (master, slave) = (open(&daemon, bind("vale0:a{1")), open(&daemon, bind("vale0:a}1")));
    let parent = open(&daemon, bind("vale0:a"));
    assert_eq!(parent.binding().bound().mem_id, master.binding().bound().mem_id);
    let sent = master.buffer(master.tx(0), 0);
    master.send(&frame(mac(3), 60)).unwrap();
    master.txsync().unwrap();
    assert!(slave.poll(false, true, PATIENCE).unwrap());
    assert_eq!(slave.buffer(slave.rx(0), 0), sent);
    // What came out of one port goes on by another of the region without a copy either.
    let peer = open(&daemon, bind("vale0:z"));
    let spare = parent.buffer(parent.tx(0), 0);
    parent.set_word(parent.slot_at(parent.tx(0), 0), sent);
    slave.set_word(slave.slot_at(slave.rx(0), 0), spare);
    parent.set_word(parent.slot_at(parent.tx(0), 0) + 4, 60);
    parent.advance(parent.tx(0), 1);
    slave.advance(slave.rx(0), 1);
    parent.txsync().unwrap();
    assert_eq!(peer.receive(PATIENCE).unwrap(), Some(frame(mac(3), 60)));
}

#[test]
fn five_hundred_pipes_are_open_at_once() {
    let daemon = Daemon::start();
    let before = daemon.holdings();
    let small = |port: &str| Bind { tx_slots: Some(16), rx_slots: Some(16), ..bind(port) };
    let pipes: Vec<_> = (0..500)
        .map(|id| ["{", "}"].map(|side| open(&daemon, small(&format!("vale0:p{side}{id}")))))
        .collect();
    assert_eq!(
        daemon
            .call(Request::Session(SessionRequest::Hello(Default::default())))
            .map(|_| pipes.len())
            .unwrap(),
        500
    );
    for [master, slave] in pipes.iter().step_by(50).chain(pipes.last()) {
        pass(master, slave, 60);
        pass(slave, master, 60);
    }
    for (left, pipe) in pipes.into_iter().enumerate().rev() {
        drop(pipe);
        // An unoptimised daemon takes some milliseconds for each, and is not to be asked for all
        // at once on a machine that has much else to do.
        if left.is_multiple_of(50) {
            wait::until("them to go", || daemon.ports().len() <= 1 + 2 * left);
        }
    }
    wait::until("the last to go", || daemon.ports().is_empty());
    daemon.assert_holds(before);
}

#[test]
fn a_program_that_is_killed_leaves_nothing() {
    let daemon = Daemon::start();
    let before = daemon.holdings();
    let mine = open(&daemon, bind("vale0:a"));
    for (port, role) in [("vale0:b", 0), ("vale0:a", 1), ("vale0:a{x", 0), ("vale0:q}y", 1)] {
        let at = daemon.at(port);
        let lens = vec![60];
        let send = Send { at: at.clone(), stream: 1, to: BROADCAST, count: None, lens, batch: 8 };
        let receive = Receive { at, ..Receive::default() };
        let roles = [Role::NetmapSend(send), Role::NetmapReceive(receive)];
        let mut victim = Peer::start(&roles[role]);
        std::thread::sleep(QUIET);
        victim.process().kill();
        wait::until("it to go", || daemon.ports() == ["vale0:a"]);
    }
    drop(mine);
    wait::until("all to go", || daemon.ports().is_empty());
    daemon.assert_holds(before);
}

#[test]
fn a_program_says_where_its_frame_goes_and_what_is_learned() {
    let daemon = Daemon::start();
    let [a, b, c] = ["vale0:a", "vale0:b", "vale0:c"].map(|port| open(&daemon, bind(port)));
    let number = daemon.port("vale0:c").unwrap().number.unwrap();
    assert!(number > 0 && a.put(0, &frame(BROADCAST, 60), number << 8));
    a.txsync().unwrap();
    assert!(c.receive(PATIENCE).unwrap().is_some());
    assert_eq!(b.receive(QUIET).unwrap(), None);
    let learned = || daemon.switch("vale0").unwrap().fdb_entries;
    let before = learned();
    let mut stranger = frame(BROADCAST, 60);
    stranger[11] = 0x55;
    assert!(a.put(0, &stranger, 0x0008));
    a.txsync().unwrap();
    assert!(b.receive(PATIENCE).unwrap().is_some());
    assert_eq!(learned(), before);
    assert!(a.put(0, &stranger, 0));
    a.txsync().unwrap();
    assert!(b.receive(PATIENCE).unwrap().is_some());
    assert_eq!(learned(), before + 1);
}

#[test]
fn a_port_that_is_deleted_or_a_daemon_that_dies_is_the_end_of_file() {
    let mut daemon = Daemon::start();
    let (a, b) = (open(&daemon, bind("vale0:a")), open(&daemon, bind("vale0:b{1")));
    let port = "vale0:a".parse().unwrap();
    daemon.call(Request::Port(PortRequest::Del(PortRef { port }))).unwrap();
    assert!(a.poll(false, true, PATIENCE).is_err());
    assert!(!b.poll(false, true, QUIET).unwrap());
    daemon.kill();
    assert!(b.poll(false, true, PATIENCE).is_err());
}
