//! Hostile clients attack the memory, the doorbells, the socket. No other client notices.

use std::io::ErrorKind;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bench::frontend::{Frontend, request};
use client::control::{Connection, PortFds};
use client::{Port, WaitPolicy};
use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, fill, mac};
use harness::machine::Machine;
use harness::measure::{Holdings, median, own_memory, switches};
use harness::process::{Peer, USER};
use harness::role::{Flood, Receive, Report, Role, Scribble, Send};
use harness::{Random, is_root, skip, socket, wait};
use protocol::{
    Attach, Attached, FdbAdd, FdbRequest, MAX_MESSAGE, PageFrom, Request, SwitchRequest,
};
use rustix::event::EventfdFlags;
use rustix::fs::{FallocateFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

/// The honest receiver loses nothing, because its senders wait for room.
const CONFIG: &str = "[switch.vale0.port.honest]\non_full = \"wait\"\n";
/// Bytes of its own that a daemon may have in the end.
const MEMORY_MAX: u64 = 64 << 20;
const SOON: Option<Duration> = Some(wait::PATIENCE);

/// A hostile client that talks to the daemon without the library's manners.
struct Hostile {
    connection: Connection,
    attached: Attached,
    fds: PortFds,
}

impl Hostile {
    fn attach(daemon: &Daemon, port: &str) -> Self {
        let connection = daemon.connect().unwrap();
        let (attached, fds) = connection.attach(Attach::new(port.parse().unwrap())).unwrap();
        Self { connection, attached, fds }
    }
}

#[test]
fn random_bytes_all_over_a_region_harm_nobody_else() {
    let mut random = Random::seeded(9);
    let time = Duration::from_secs(5);
    let daemon = Setup::new(CONFIG).start();
    let at = daemon.at("vale0:honest");
    let receive = Receive { at, station: Some(9), ..Receive::default() };
    let mut receiver = Peer::start(&Role::Receive(receive));
    // A sender can claim any address, except that of a static entry.
    let port = "vale0:honest".parse().unwrap();
    let mac_of_nine = mac(9).into();
    daemon.call(Request::Fdb(FdbRequest::Add(FdbAdd { port, mac: mac_of_nine, vlan: 1 }))).unwrap();
    let (at, lens) = (daemon.at("vale0:sender"), vec![60, 1514, 5000]);
    let send = Send { at, stream: 1, to: mac(9), count: None, lens, batch: 16 };
    let mut sender = Peer::start(&Role::Send(send));
    let mut hostile: Vec<Peer> = [1, 3]
        .into_iter()
        .map(|rings| {
            let mut at = daemon.at(&format!("vale0:hostile{rings}"));
            at.rings = Some(rings);
            Peer::start(&Role::Scribble(Scribble { at, seed: random.any(), fill: false }))
        })
        .collect();
    let end = Instant::now() + time;
    let mut frames = 0;
    while Instant::now() < end {
        // The daemon answers, and the honest ones make progress.
        let before = std::mem::replace(&mut frames, daemon.stats("vale0:honest").rx.frames);
        wait::until("honest frames", || daemon.stats("vale0:honest").rx.frames > before);
        assert!(own_memory(daemon.pid()) < MEMORY_MAX);
    }
    let broken = daemon.stats("vale0:hostile1");
    eprintln!("the daemon says of the hostile one: {broken:?}");
    assert!(broken.resyncs > 0 && broken.drops.contains_key("bad_index"), "{broken:?}");
    hostile.iter_mut().for_each(Peer::finish);
    sender.finish();
    let sent = sender.sent();
    receiver.finish();
    let tally = receiver.received();
    eprintln!("{sent} honest frames, {} of no sender", tally.foreign);
    tally.assert_whole(1, sent);
    assert!(sent > 500, "{sent} frames are not enough to say anything");
}

/// A pair that always sleeps, so that a lost doorbell would be seen: each frame that one sends, the
/// other sends back. Returns the longest time a frame took.
fn ping_pong(a: &mut Port, b: &mut Port, count: u64) -> Duration {
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut frame = Vec::new();
            for _ in 0..count {
                assert!(b.recv_timeout(&mut frame, SOON).unwrap(), "a frame came in vain");
                b.send(&frame).unwrap();
            }
        });
        let (mut frame, mut back) = (Vec::new(), Vec::new());
        for seq in 0..count {
            fill(&mut frame, mac(2), 1, seq, 60);
            let sent = Instant::now();
            assert!(a.send_timeout(&frame, SOON).unwrap());
            assert!(a.recv_timeout(&mut back, SOON).unwrap(), "frame {seq} does not come back");
            longest = longest.max(sent.elapsed());
            assert_eq!(frame, back);
        }
    });
    longest
}

/// Two ports of a switch for two, whose threads go to sleep at once.
fn sleepers(daemon: &Daemon) -> (Port, Port) {
    let sleepy = WaitPolicy { yields: 0, spin: false };
    let open = |name: &str| daemon.options().wait(sleepy).open(name).unwrap();
    let set = protocol::SwitchSettings {
        forwarding: Some(protocol::Forwarding::Patch),
        ..Default::default()
    };
    let switch = "valepair".parse().unwrap();
    let add = protocol::SwitchSpec { switch, settings: set };
    daemon.call(Request::Switch(SwitchRequest::Add(add))).unwrap();
    (open("valepair:a"), open("valepair:b"))
}

#[test]
fn a_flood_of_kicks_loses_nobody_a_wake_up() {
    let daemon = Daemon::start();
    let (mut a, mut b) = sleepers(&daemon);
    let hostile = Hostile::attach(&daemon, "vale0:hostile");
    let enough = AtomicBool::new(false);
    let longest = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                let _ = rustix::io::write(&hostile.fds.kick, &1_u64.to_ne_bytes());
            }
        });
        let longest = ping_pong(&mut a, &mut b, 300);
        assert!(daemon.connect().unwrap().hello("in the flood").is_ok());
        enough.store(true, Ordering::Relaxed);
        longest
    });
    eprintln!("longest round trip in the flood: {longest:?}");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    assert_eq!(hostile.connection.hello("still there").unwrap().pid, daemon.pid());
}

#[test]
fn a_doorbell_that_nobody_empties_blocks_nobody() {
    let daemon = Daemon::start();
    // Its own doorbell is never read: the worker rings it until it is full, and goes on.
    let _deaf = Peer::start(&Role::Hold(daemon.at("vale0:deaf")));
    let (mut a, mut b) = sleepers(&daemon);
    let mut sender = daemon.open("vale0:a");
    let mut frame = Vec::new();
    for seq in 0..20_000 {
        fill(&mut frame, mac(9), 1, seq, 60);
        assert!(sender.send_timeout(&frame, SOON).unwrap());
    }
    ping_pong(&mut a, &mut b, 20);
}

#[test]
fn flags_of_descriptors_are_the_clients_own() {
    let daemon = Daemon::start();
    let hostile = Hostile::attach(&daemon, "vale0:hostile");
    let (mut a, mut b) = sleepers(&daemon);
    for flags in [OFlags::empty(), OFlags::NONBLOCK, OFlags::APPEND, OFlags::ASYNC] {
        let fds = &hostile.fds;
        for fd in [fds.kick.as_fd(), fds.wake.as_fd(), fds.region.as_fd()] {
            // What may be changed is changed; what may not is refused.
            let _ = rustix::fs::fcntl_setfl(fd, flags);
        }
        ping_pong(&mut a, &mut b, 20);
        assert!(daemon.connect().unwrap().hello("still there").is_ok());
    }
}

#[test]
fn a_region_cannot_be_cut_and_holes_in_it_harm_nobody() {
    let daemon = Setup::new(CONFIG).start();
    let hostile = Hostile::attach(&daemon, "vale0:hostile");
    let (region, size) = (&hostile.fds.region, hostile.attached.region_bytes);
    for length in [0, 4096, size - 1, size + 4096] {
        assert_eq!(rustix::fs::ftruncate(region, length), Err(Errno::PERM));
    }
    for seals in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
        assert_eq!(rustix::fs::fcntl_add_seals(region, seals), Err(Errno::PERM));
    }
    let (mut a, mut b) = sleepers(&daemon);
    let mut honest = daemon.open("vale0:a");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let mut frame = Vec::new();
    for seq in 0..50 {
        rustix::fs::fallocate(region, punch, 0, size).unwrap();
        let _ = rustix::io::write(&hostile.fds.kick, &1_u64.to_ne_bytes());
        fill(&mut frame, mac(9), 1, seq, 1514);
        assert!(honest.send_timeout(&frame, SOON).unwrap());
    }
    ping_pong(&mut a, &mut b, 100);
    assert!(daemon.port("vale0:hostile").is_some());
}

const HELLO: &[u8] = br#"{"v":1,"call":{"hello":{"client":"hostile"}}}"#;

#[test]
fn descriptors_sent_to_the_daemon_are_not_kept() {
    let daemon = Daemon::start();
    let before = daemon.holdings();
    let socket = socket::connect(&daemon.dir());
    let gifts: Vec<OwnedFd> =
        (0..64).map(|_| rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
    // Only now does the daemon know that we may send any.
    assert!(socket::ask(&socket, HELLO).is_some());
    for _ in 0..50 {
        socket::send_beside(&socket, HELLO, &gifts).unwrap();
        assert!(socket::ask(&socket, HELLO).is_some());
        // The answer to the call before.
        let mut answer = vec![0; MAX_MESSAGE];
        rustix::net::recv(&socket, &mut answer[..], rustix::net::RecvFlags::empty()).unwrap();
    }
    // A thread closes them.
    daemon.assert_holds(Holdings { descriptors: before.descriptors + 1, ..before });
    drop(socket);
    daemon.assert_holds(before);
}

#[test]
fn a_flood_of_the_socket_delays_others_and_no_more() {
    let daemon = Daemon::start();
    let before = daemon.holdings();
    let (mut a, mut b) = sleepers(&daemon);
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| flood_calls(&daemon, &enough));
        scope.spawn(|| flood_garbage(&daemon, &enough));
        for _ in 0..100 {
            let asked = Instant::now();
            daemon
                .connect()
                .unwrap()
                .call(Request::Switch(SwitchRequest::List(PageFrom::default())))
                .unwrap();
            assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        }
        ping_pong(&mut a, &mut b, 100);
        enough.store(true, Ordering::Relaxed);
    });
    drop((a, b));
    daemon.assert_holds(before);
    assert!(own_memory(daemon.pid()) < MEMORY_MAX);
}

/// However many connections a user has, with however many calls waiting, a call of another user
/// waits for one of them. The flood's own callers wait for all of them, which is the measure.
#[test]
fn a_flood_of_one_user_leaves_others_their_turn() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
    let before = daemon.holdings();
    let flood = Flood { dir: daemon.dir(), connections: 800 };
    let mut peer = Peer::launch(&Role::Flood(flood), Some(USER));
    assert_eq!(peer.report(), Report::Ready);
    let connection = daemon.connect().unwrap();
    let waits: Vec<Duration> = (0..100)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            let asked = Instant::now();
            connection.hello("another user").unwrap();
            asked.elapsed()
        })
        .collect();
    peer.finish();
    let Report::Waited { us } = peer.report() else { panic!("a flood says how long it waited") };
    let usual = Duration::from_secs_f64(median(waits.iter().map(Duration::as_secs_f64)));
    let theirs = Duration::from_micros(us);
    eprintln!("a call waits {usual:?}, one of the flooding user {theirs:?}");
    assert!(usual < theirs / 2, "{usual:?}, theirs {theirs:?}");
    drop((connection, peer));
    daemon.assert_holds(before);
}

/// Many callers that never read their answers.
fn flood_calls(daemon: &Daemon, enough: &AtomicBool) {
    while !enough.load(Ordering::Relaxed) {
        let sockets: Vec<OwnedFd> = (0..20).map(|_| socket::connect(&daemon.dir())).collect();
        for _ in 0..50 {
            for socket in &sockets {
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                // Full, or closed by the daemon.
                let _ = rustix::net::send(socket, HELLO, flags);
            }
        }
    }
}

fn flood_garbage(daemon: &Daemon, enough: &AtomicBool) {
    let mut random = Random::new(3);
    while !enough.load(Ordering::Relaxed) {
        let socket = socket::connect(&daemon.dir());
        let size = usize::try_from(1 + random.below(100_000)).unwrap();
        let message: Vec<u8> = (0..size).map(|_| random.any().to_le_bytes()[0]).collect();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = rustix::net::send(&socket, &message, flags);
    }
}

#[test]
fn an_idle_daemon_is_idle_again_after_an_attack() {
    let daemon = Daemon::start();
    let at = daemon.at("vale0:hostile");
    let mut hostile = Peer::start(&Role::Scribble(Scribble { at, seed: 4, fill: false }));
    let mut other = daemon.open("vale0:other");
    wait::until("an attack", || daemon.stats("vale0:hostile").resyncs > 0);
    // Stopped in the middle, its port as it is, not detached.
    hostile.process().signal(rustix::process::Signal::STOP);
    other.send(&announcement(5)).unwrap();
    wait::until("rest", || {
        let before = switches(daemon.pid());
        std::thread::sleep(Duration::from_millis(300));
        switches(daemon.pid()) == before
    });
    hostile.process().kill();
}

#[test]
fn what_a_client_keeps_of_a_port_that_it_gave_back_takes_no_memory() {
    let daemon = Daemon::start();
    for port in ["vale0:a", "vale0:a{1"] {
        let Hostile { connection, fds, .. } = Hostile::attach(&daemon, port);
        let blocks = || rustix::fs::fstat(&fds.region).unwrap().st_blocks;
        assert!(blocks() > 0);
        if port == "vale0:a" {
            // The client may be at work in it.
            assert!(daemon.uvala(&["port", "del", port]).status.success());
            assert!(blocks() > 0);
        }
        drop(connection);
        wait::until("the memory to be the system's", || blocks() == 0);
    }
}

/// A frontend that asks for descriptors until the switch hangs up, and reads none. `None`: the
/// switch does not admit it.
fn deaf_frontend(socket: &str) -> Option<Frontend> {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let frontend = Frontend(stream);
    // For two queues of 64 buffers.
    let shape = [0, 0, 2 | 64 << 16];
    let ask = || frontend.tell(request::GET_INFLIGHT_FD, &shape, &[]);
    let error = std::iter::repeat_with(ask).find_map(Result::err)?;
    (error.kind() != ErrorKind::WouldBlock).then_some(frontend)
}

/// The daemon runs as an ordinary user: for root the kernel bounds no descriptors in flight.
#[test]
fn vmms_that_read_no_descriptors_leave_other_users_theirs() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let config = "[switch.vale0.port.vm]\nkind = \"vhost-user\"\n";
    let daemon = Setup::new(config).user(USER).descriptors(1024).start();
    let machine = || daemon.port("vale0:vm").unwrap().machine.unwrap();
    let socket = machine().socket;
    let mut deaf = Vec::new();
    wait::until("no more to be admitted", || {
        deaf.extend(deaf_frontend(&socket));
        assert!(deaf.len() < 100, "each keeps descriptors on their way");
        machine().complaint.is_some_and(|why| why.contains("have not read"))
    });
    drop(daemon.open("vale0:client"));
    drop(deaf);
    let _next = Machine::boot(Path::new(&socket));
}
