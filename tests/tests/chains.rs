//! Chains under load: functions die, instances come and go, groups are apart. No buffer is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use client::Port;
use client::control::{Connection, PortFds};
use client::nf::{self, Action, Frame, Generated};
use harness::chain::{
    audit, chain, configuration, dropped, drops, function, functions, one_dies, receive, runs,
};
use harness::daemon::{Daemon, Setup};
use harness::frames::{Tally, announcement, fill, mac};
use harness::process::{Peer, USER};
use harness::role::{Hoard, Role};
use harness::{Random, is_root, skip, wait};
use protocol::{Attach, Attached, GroupAudit, MemberAudit, Request, SessionRequest};
use ring::Region;
use ring::abi::NetmapIf;
use ring::cursor::RingSize;
use ring::layout::{PortLayout, RegionLayout, RingCounts};
use ring::user::TxRing;

/// Frames that a function handles at once.
const BATCH: u64 = 128;

#[test]
fn kill_9_of_any_function_loses_what_it_held_and_no_buffer() {
    for seed in 0..2 {
        for count in [1, 2, 3, 5, 8] {
            let daemon = Setup::new(&configuration(count)).start();
            let all = (0..count).map(|n| function(&daemon, n)).collect();
            let account = |kills: &[u64], sent, tally: &_| account(&daemon, kills, sent, tally);
            one_dies(&daemon, all, (3, seed), account);
        }
    }
}

/// Every frame arrived, was dropped and counted, or was held by one that died.
fn account(daemon: &Daemon, kills: &[u64], sent: u64, tally: &Tally) {
    tally.assert_intact();
    let functions: Vec<_> =
        (0..kills.len()).map(|n| daemon.stats(&format!("valenf:f{n}"))).collect();
    let listed = harness::chain::functions(daemon);
    // What the receiver has announced itself with is in no chain.
    let first = daemon.stats("valenf:a");
    assert_eq!(first.tx.frames, sent, "all that was sent was taken");
    let mut before = (sent, drops(&first));
    for (n, stats) in functions.iter().enumerate() {
        let full = dropped(stats, "no_room");
        assert_eq!(before.0, before.1 + stats.rx.frames + full, "in front of f{n}: {stats:?}");
        // What it held is counted; of a last batch that it had sent on, it may have kept the slots.
        let (held, lost) = (stats.rx.frames - stats.tx.frames, listed[n].lost);
        assert!((held..=held + kills[n] * BATCH).contains(&lost), "f{n}: {held} held, {lost} lost");
        before = (stats.tx.frames, drops(stats) - full);
    }
    let lost = listed.iter().map(|info| info.lost).sum::<u64>();
    assert_eq!(chain(daemon).lost, lost, "all that its functions held");
    let last = daemon.stats("valenf:b");
    let arrived = before.0 - before.1 - dropped(&last, "no_room");
    assert_eq!(tally.stream(1).frames, arrived, "{last:?}");
}

/// Has an instance stand still.
#[derive(Default)]
struct Pause {
    wanted: AtomicBool,
    /// The function has seen that, and takes no frame.
    rests: AtomicBool,
}

impl Pause {
    fn begin(&self) {
        self.wanted.store(true, Ordering::Relaxed);
        wait::until("it to stand still", || self.rests.load(Ordering::Relaxed));
    }

    fn end(&self) {
        self.wanted.store(false, Ordering::Relaxed);
    }
}

/// An instance in a thread: notes which flows it sees.
fn instance(
    mut port: Port,
    number: usize,
    (stop, pause): (&AtomicBool, &Pause),
    seen: &Mutex<BTreeMap<u32, usize>>,
) {
    let mut note = |frame: &mut Frame<'_>, _: &mut Generated| {
        let stream = frame.bytes()[14..18].first_chunk().copied().map(u32::from_be_bytes);
        seen.lock().unwrap().insert(stream.unwrap(), number);
        Action::Next
    };
    while !stop.load(Ordering::Relaxed) {
        let wanted = pause.wanted.load(Ordering::Relaxed);
        pause.rests.store(wanted, Ordering::Relaxed);
        if wanted {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        nf::step(&mut port, &mut note, Some(Duration::from_millis(5))).unwrap();
    }
}

const FLOWS: u32 = 256;

/// A chain of one service that may have this many instances.
fn one_service(instances: usize) -> Daemon {
    let text = configuration(1).replace("[switch.valenf.port.f0]\nservice = \"s0\"\n", "");
    let each = |n| format!("[switch.valenf.port.f{n}]\nservice = \"s0\"\ninstance = {n}\n");
    Setup::new(&(text + &(0..instances).map(each).collect::<String>())).start()
}

/// The first function holds a frame while it is taken out of the chain: the frame meets the
/// firewall behind it all the same.
#[test]
fn a_frame_that_is_held_while_its_chain_changes_meets_all_functions() {
    for share_a_thread in [false, true] {
        let daemon = Setup::new(&configuration(2)).start();
        let open = |name: &str| daemon.options().rings(1).group("nf").open(name).unwrap();
        let (mut a, mut b) = (open("valenf:a"), open("valenf:b"));
        let mut ports = [open("valenf:f0"), open("valenf:f1")];
        let short = Some(Duration::from_millis(5));
        let seen = AtomicU64::new(0);
        let decide = |at: usize| {
            let seen = &seen;
            move |_: &mut Frame<'_>, _: &mut Generated| {
                seen.fetch_add(u64::try_from(at).unwrap(), Ordering::Relaxed);
                if at == 0 { Action::Next } else { Action::Drop }
            }
        };
        let mut handlers = [decide(0), decide(1)];
        let mut step = || {
            if share_a_thread {
                return nf::step_all(&mut ports, &mut handlers, short).unwrap();
            }
            let each = ports.iter_mut().zip(&mut handlers);
            each.map(|(port, handler)| nf::step(port, handler, short).unwrap()).sum()
        };
        for _ in 0..4 {
            step();
        }
        a.send(&announcement(9)).unwrap();
        wait::until("the first to have it", || functions(&daemon)[0].waiting == 1);
        assert!(daemon.uvala(&["chain", "add", "valenf", "c", "s1"]).status.success());
        let end = Instant::now() + wait::PATIENCE;
        while seen.load(Ordering::Relaxed) == 0 {
            step();
            assert!(Instant::now() < end, "it went past the second");
        }
        assert!(!b.recv_timeout(&mut Vec::new(), short).unwrap());
        assert_eq!(seen.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn flows_stay_where_they_are_and_in_order_when_instances_come_and_go() {
    let daemon = one_service(5);
    let open = |name: &str| daemon.options().rings(1).group("nf").open(name).unwrap();
    let (mut a, mut b) = (open("valenf:a"), open("valenf:b"));
    b.send(&announcement(9)).unwrap();
    let (seen, got) = (Mutex::default(), AtomicU64::new(0));
    let (stops, over): ([AtomicBool; 5], _) = Default::default();
    let never = Pause::default();
    let tally = std::thread::scope(|scope| {
        let _ended = Ended(&daemon, stops.iter().chain([&over]).collect());
        let start = |n: usize| {
            let (port, stop, seen) = (open(&format!("valenf:f{n}")), &stops[n], &seen);
            let never = &never;
            scope.spawn(move || instance(port, n, (stop, never), seen))
        };
        let receiver = scope.spawn(|| receive(&mut b, &got, &over));
        let mut running: Vec<_> = (0..4).map(start).collect();
        let mut round = Rounds { port: &mut a, got: &got, sent: 0, number: 0 };
        let map = |round: &mut Rounds<'_>| {
            (0..20).for_each(|_| round.send());
            round.await_all();
            (0..2).for_each(|_| round.send());
            round.await_all();
            seen.lock().unwrap().clone()
        };
        let four = map(&mut round);
        running.push(start(4));
        let five = map(&mut round);
        let moved: Vec<_> = four.iter().filter(|(flow, at)| five[*flow] != **at).collect();
        eprintln!("{} of {FLOWS} flows moved to the fifth", moved.len());
        assert!(moved.iter().all(|(flow, _)| five[*flow] == 4), "only to the one that came");
        assert!((20..90).contains(&moved.len()), "a fifth of them");
        stops[4].store(true, Ordering::Relaxed);
        running.pop().unwrap().join().unwrap();
        // What the switch gives it before it knows is lost with it.
        wait::until("the fifth to have left", || !runs(&daemon, 4));
        assert_eq!(map(&mut round), four, "it goes, and all is as it was");
        stops.iter().for_each(|stop| stop.store(true, Ordering::Relaxed));
        over.store(true, Ordering::Relaxed);
        receiver.join().unwrap()
    });
    // Frames in the ring of the one that went are lost; none has overtaken another.
    tally.assert_intact();
    assert!(tally.frames() > 0);
    assert_eq!(audit(&daemon).len(), 1);
}

/// What an instance held while it stalled comes behind what others got meanwhile: late, each frame
/// once, and no other frame is out of order.
#[test]
fn frames_of_a_stalled_instance_come_late_and_no_others() {
    const HELD: u64 = 3;
    let daemon = one_service(2);
    let open = |name: &str| daemon.options().rings(1).group("nf").open(name).unwrap();
    let (mut a, mut b) = (open("valenf:a"), open("valenf:b"));
    b.send(&announcement(9)).unwrap();
    let (seen, got) = (Mutex::default(), AtomicU64::new(0));
    let [stop, over] = [const { AtomicBool::new(false) }; 2];
    let [never, pause] = [Pause::default(), Pause::default()];
    let (tally, sent, first) = std::thread::scope(|scope| {
        let _ended = Ended(&daemon, vec![&stop, &over]);
        let start = |n: usize, pause| {
            let (port, stop, seen) = (open(&format!("valenf:f{n}")), &stop, &seen);
            scope.spawn(move || instance(port, n, (stop, pause), seen))
        };
        let receiver = scope.spawn(|| receive(&mut b, &got, &over));
        let running = [start(0, &pause), start(1, &never)];
        let mut round = Rounds { port: &mut a, got: &got, sent: 0, number: 0 };
        // Flows move to an instance that has just come, when the other has none of their frames.
        let (mut first, mut alike) = (BTreeMap::new(), 0);
        while alike < 10 {
            seen.lock().unwrap().clear();
            round.send();
            round.await_all();
            let now = seen.lock().unwrap().clone();
            alike = if now == first { alike + 1 } else { 0 };
            first = now;
        }
        pause.begin();
        (0..HELD).for_each(|_| round.push());
        let of_first = |info: &protocol::FunctionInfo| info.instance == 0;
        let stalled = || functions(&daemon).into_iter().find(of_first).unwrap();
        wait::until("a stall", || stalled().stalled);
        let waiting = u64::from(stalled().waiting);
        (0..HELD).for_each(|_| round.push());
        wait::until("what others have", || got.load(Ordering::Relaxed) + waiting >= round.sent);
        pause.end();
        round.await_all();
        (0..4).for_each(|_| round.send());
        round.await_all();
        stop.store(true, Ordering::Relaxed);
        running.into_iter().for_each(|instance| instance.join().unwrap());
        over.store(true, Ordering::Relaxed);
        (receiver.join().unwrap(), round.number, first)
    });
    assert_eq!(tally.corrupt, 0);
    let late = |flow: &u32| if first[flow] == 0 { HELD } else { 0 };
    for (flow, stream) in &tally.streams {
        assert_eq!((stream.frames, stream.disorder), (sent, late(flow)), "flow {flow}");
    }
    let late: u64 = tally.streams.keys().map(late).sum();
    eprintln!("{late} of {} frames came late", tally.frames());
    assert!(late > 0 && tally.streams.len() == FLOWS as usize);
}

/// A function may send a frame later: it is the same frame then, and not one of its own, which
/// would leave past the next function.
#[test]
fn a_frame_that_is_held_goes_on_in_its_chain() {
    const FRAMES: u64 = 300;
    let daemon = Setup::new(&configuration(2)).start();
    let open = |name: &str| daemon.options().rings(1).group("nf").open(name).unwrap();
    let (mut a, mut b, mut first) = (open("valenf:a"), open("valenf:b"), open("valenf:f0"));
    let _next = function(&daemon, 1);
    b.send(&announcement(9)).unwrap();
    let (got, [stop, over]) = (AtomicU64::new(0), [const { AtomicBool::new(false) }; 2]);
    let tally = std::thread::scope(|scope| {
        let _ended = Ended(&daemon, vec![&stop, &over]);
        let receiver = scope.spawn(|| receive(&mut b, &got, &over));
        let holder = scope.spawn(|| {
            let mut held = None;
            let mut hold = |frame: &mut Frame<'_>, made: &mut Generated| {
                if let Some(before) = held.replace(frame.to_held()) {
                    made.send_on(before);
                }
                Action::Hold
            };
            while !stop.load(Ordering::Relaxed) {
                nf::step(&mut first, &mut hold, Some(Duration::from_millis(5))).unwrap();
            }
        });
        let mut frame = Vec::new();
        for number in 0..=FRAMES {
            fill(&mut frame, mac(9), 1, number, 60);
            a.send(&frame).unwrap();
        }
        wait::until("all but the last", || got.load(Ordering::Relaxed) >= FRAMES);
        stop.store(true, Ordering::Relaxed);
        holder.join().unwrap();
        over.store(true, Ordering::Relaxed);
        receiver.join().unwrap()
    });
    tally.assert_whole(1, FRAMES);
    let next = functions(&daemon).into_iter().find(|info| info.service == "s1").unwrap();
    assert_eq!((next.frames_in, next.frames_out), (FRAMES, FRAMES));
    assert_eq!(audit(&daemon).len(), 1);
}

/// Ends all threads when it goes, also because of a panic.
struct Ended<'a>(&'a Daemon, Vec<&'a AtomicBool>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.1.iter().for_each(|stop| stop.store(true, Ordering::Relaxed));
        if std::thread::panicking() {
            ["valenf:a", "valenf:b", "valenf:f0"]
                .iter()
                .for_each(|port| eprintln!("{:?}", self.0.stats(port)));
            functions(self.0).iter().for_each(|function| eprintln!("{function:?}"));
        }
    }
}

/// Sends a frame of each flow, round after round.
struct Rounds<'a> {
    port: &'a mut Port,
    got: &'a AtomicU64,
    sent: u64,
    number: u64,
}

impl Rounds<'_> {
    /// Not so fast that the chain sheds.
    fn send(&mut self) {
        self.push();
        let enough = self.sent.saturating_sub(u64::from(FLOWS));
        wait::until("frames", || self.got.load(Ordering::Relaxed) >= enough);
    }

    /// Sends whether or not the chain takes the frames.
    fn push(&mut self) {
        let mut frame = Vec::new();
        for stream in 1000..1000 + FLOWS {
            fill(&mut frame, mac(9), stream, self.number, 60);
            self.port.send(&frame).unwrap();
        }
        self.number += 1;
        self.sent += u64::from(FLOWS);
    }

    /// Waits for all that will come.
    fn await_all(&mut self) {
        wait::until("all frames", || self.got.load(Ordering::Relaxed) >= self.sent);
    }
}

const SECRET: &[u8] = b"nobody else's business";

/// A frame with a secret for station 7, whose address is unknown.
fn secret() -> Vec<u8> {
    let mut frame = [&mac(7)[..], &mac(1), &[0x88, 0xb5]].concat();
    (0..20).for_each(|_| frame.extend_from_slice(SECRET));
    frame
}

fn has_secret(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|window| window == SECRET)
}

/// A client that has its port's memory and descriptors, and no manners.
struct Stranger {
    region: Arc<Region>,
    tx: TxRing,
    attached: Attached,
    fds: PortFds,
    _connection: Connection,
}

impl Stranger {
    fn attach(daemon: &Daemon, port: &str, group: &str) -> Self {
        let connection = daemon.connect().unwrap();
        let group = Some(group.to_owned());
        let attach = Attach { group, extra_bufs: Some(4), ..Attach::new(port.parse().unwrap()) };
        let (attached, fds) = connection.attach(attach).unwrap();
        let Attached { stride, buffers, .. } = attached;
        let pool = usize::try_from(attached.pool).unwrap();
        let region =
            Region::attach(fds.region.as_fd(), RegionLayout { stride, buffers, pool }).unwrap();
        let counts = RingCounts {
            tx_rings: attached.tx_rings,
            rx_rings: attached.rx_rings,
            tx_slots: RingSize::new(attached.tx_slots).unwrap(),
            rx_slots: RingSize::new(attached.rx_slots).unwrap(),
        };
        let layout = PortLayout::new(usize::try_from(attached.block).unwrap(), counts);
        let tx = TxRing::new(&region, &layout, 0);
        Self { region, tx, attached, fds, _connection: connection }
    }

    /// Broadcasts the contents of the buffer of this number.
    fn send(&mut self, buffer: u32) {
        wait::until("room", || self.tx.refresh() > 0);
        self.tx.set(0, 400, 0);
        self.tx.set_buffer_index(0, buffer);
        let _ = self.tx.submit(1);
        assert!(rustix::io::write(&self.fds.kick, &1_u64.to_ne_bytes()).is_ok());
    }

    /// The first extra buffer of its list is the next one, too, and so on.
    fn list_without_an_end(&self) {
        let head = self.attached.block + offset_of!(NetmapIf, ni_bufs_head) as u64;
        let mut number = [0; 4];
        rustix::io::pread(&self.fds.region, &mut number, head).unwrap();
        let buffer = u64::from(u32::from_ne_bytes(number)) * u64::from(self.attached.stride);
        rustix::io::pwrite(&self.fds.region, &number, self.attached.pool + buffer).unwrap();
    }

    /// Whether the secret is anywhere in the memory that the client was given.
    fn finds_a_secret(&self) -> bool {
        const PIECE: usize = 1 << 20;
        let mut bytes = vec![0; PIECE];
        // Those of the group have written into the first buffers of theirs.
        let pieces = (0..8).map(|piece| piece * (PIECE - SECRET.len()) as u64);
        pieces.chain([self.attached.pool]).any(|at| {
            let read = rustix::io::pread(&self.fds.region, &mut bytes[..], at).unwrap();
            has_secret(&bytes[..read])
        })
    }
}

#[test]
fn a_stranger_reaches_the_memory_of_a_group_by_no_interface() {
    let daemon = Daemon::start();
    let open =
        |name: &str, group: &str| daemon.options().extra_bufs(4).group(group).open(name).unwrap();
    let (mut one, mut other) = (open("vale0:one", "first"), open("vale0:other", "first"));
    other.send(&announcement(7)).unwrap();
    let mut stranger = Stranger::attach(&daemon, "vale1:stranger", "second");
    let mut second = open("vale1:second", "second");
    (0..50).for_each(|_| one.send(&secret()).unwrap());
    assert!(one.drain(Some(wait::PATIENCE)).unwrap());
    assert_eq!(one.region(), other.region());
    assert_eq!(stranger.region.id(), second.region());
    // What is held is held: to attach, and as netmap does.
    let name = || "vale0:one".parse().unwrap();
    assert!(daemon.connect().unwrap().attach(Attach::new(name())).is_err());
    let bind = serde_json::json!({ "port": "vale0:one" });
    assert!(
        daemon
            .call(Request::Session(SessionRequest::Bind(serde_json::from_value(bind).unwrap())))
            .is_err()
    );
    // The end of a pipe at one of the group's ports has another memory.
    let pipe = daemon.open("vale0:one{7");
    assert!(![one.region(), second.region()].contains(&pipe.region()));
    assert!(!stranger.finds_a_secret());
    // Numbers of buffers that the other region has, and that none has: they are those of the
    // stranger's own region, or refused.
    let buffers = (0..300_000u32).step_by(991).chain([u32::MAX, u32::MAX - 1]);
    let (mut frame, mut count) = (Vec::new(), 0);
    for buffer in buffers {
        stranger.send(buffer);
        count += 1;
        while second.try_recv(&mut frame).unwrap() {
            assert!(!has_secret(&frame), "buffer {buffer}");
        }
    }
    let stats = || daemon.stats("vale1:stranger");
    wait::until("all to be taken", || stats().tx.frames + drops(&stats()) >= count);
    assert!(dropped(&stats(), "bad_index") > 2, "{:?}", stats());
    let mut got = 0;
    while other.try_recv(&mut frame).unwrap() {
        got += usize::from(has_secret(&frame));
    }
    assert_eq!(got, 50, "the group has its frames");
    assert_eq!(audit(&daemon).len(), 2);
}

/// A hostile function sends buffers of others, and its own several times, beside a chain of its
/// group.
#[test]
fn a_function_that_sends_what_is_not_its_own_costs_its_neighbours_nothing() {
    const ROUNDS: u64 = 40;
    let hostile = "[switch.valenf.port.h]\nservice = \"other\"\n";
    let daemon = Setup::new(&(configuration(1) + hostile)).start();
    let open = |name: &str| daemon.options().rings(1).group("nf").open(name).unwrap();
    let (mut a, mut b, mut f0) = (open("valenf:a"), open("valenf:b"), open("valenf:f0"));
    let mut hostile = Stranger::attach(&daemon, "valenf:h", "nf");
    assert_eq!(hostile.region.id(), a.region());
    b.send(&announcement(9)).unwrap();
    assert!(b.drain(Some(wait::PATIENCE)).unwrap());
    let (stop, over, got) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let mut random = Random::seeded(6);
    let tally = std::thread::scope(|scope| {
        let _ended = Ended(&daemon, vec![&stop, &over]);
        let receiver = scope.spawn(|| receive(&mut b, &got, &over));
        scope.spawn(|| {
            let mut next = |_: &mut Frame<'_>, _: &mut Generated| Action::Next;
            while !stop.load(Ordering::Relaxed) {
                nf::step(&mut f0, &mut next, Some(Duration::from_millis(5))).unwrap();
            }
        });
        let mut rounds = Rounds { port: &mut a, got: &got, sent: 0, number: 0 };
        for _ in 0..ROUNDS {
            rounds.send();
            for _ in 0..32 {
                // Most of those of members are among the first.
                let any = u32::try_from(random.below(8192)).unwrap();
                (0..2).for_each(|_| hostile.send(any));
            }
        }
        rounds.await_all();
        over.store(true, Ordering::Relaxed);
        receiver.join().unwrap()
    });
    (1000..1000 + FLOWS).for_each(|flow| tally.assert_whole(flow, ROUNDS));
    assert!(dropped(&daemon.stats("valenf:h"), "bad_index") > ROUNDS);
    drop(hostile);
    wait::until("it to go", || audit(&daemon)[0].members.len() == 3);
    let group = audit(&daemon).remove(0);
    let whole = |member: &MemberAudit| member.wrong + member.kept == 0;
    assert!(group.members.iter().all(whole), "{group:?}");
    assert_eq!((group.owned, group.free + group.owned), (group.given, group.buffers), "{group:?}");
}

#[test]
fn an_audit_is_whole_also_of_many_members_and_of_a_list_without_an_end() {
    const MEMBERS: usize = 70;
    let daemon = Daemon::start();
    let stranger = Stranger::attach(&daemon, "vale1:stranger", "second");
    stranger.list_without_an_end();
    let open = |number: usize| {
        let options = daemon.options().rings(1).slots(8).extra_bufs(3).group("nf");
        options.open(&format!("vale0:m{number}")).unwrap()
    };
    let all: Vec<_> = (0..MEMBERS).map(open).collect();
    let groups = audit(&daemon);
    let [nf, second] = &groups[..] else { panic!("{groups:?}") };
    let ports: BTreeSet<_> = nf.members.iter().map(|member| &member.port).collect();
    assert_eq!((nf.members.len(), ports.len()), (MEMBERS, MEMBERS));
    let whole = |member: &MemberAudit| {
        (member.tx, member.rx, member.extra, member.kept, member.wrong) == (8, 8, 3, 0, 0)
    };
    assert!(nf.members.iter().all(whole), "{nf:?}");
    let [his] = &second.members[..] else { panic!("{second:?}") };
    assert_eq!((his.extra, his.kept), (1, 3), "{his:?}");
    assert!(his.wrong < his.owned, "{his:?}");
    drop(all);
    wait::until("all to have left", || audit(&daemon).len() == 1);
}

/// As a user without rights would do it.
#[test]
fn who_is_refused_or_loses_frames_is_told_why_and_what_helps() {
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
    let uvala = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let output = daemon.uvala_as(&words, is_root().then_some(USER));
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    for words in [
        "switch add valenf --forwarding chain",
        "switch add vale9",
        "port add valenf:f0 --service fw",
        "chain add valenf web fw",
        "port add valenf:a --chain web",
        "port add valenf:b",
        "rule add valenf chain:web --dport 80 --proto tcp",
        "rule add valenf forward --in b --dst 10.0.0.0/8 --priority 5",
    ] {
        let (done, _, why) = uvala(words);
        assert!(done, "{words}: {why}");
    }
    for (words, cure) in [
        ("chain add valenf x ids", "uvala port add PORT --service ids"),
        ("chain add valenf x fw,fw", "name it once"),
        ("chain add valenf x fw@best", "expected hash or least"),
        ("chain add valenf x fw,fw,fw,fw,fw,fw,fw,fw,fw", "1 to 8"),
        ("chain add valenf x fw --out z", "uvala port list"),
        ("chain add valenf x fw --out vale9:b", "no port vale9:b in this switch"),
        ("chain add valenf x-y fw", "only letters, digits"),
        ("chain add vale9 x fw", "--forwarding chain"),
        ("chain del valenf web", "change that first"),
        ("chain del valenf none", "uvala chain list valenf"),
        ("rule add valenf chain:none", "uvala chain list"),
        ("rule add valenf port:none --proto udp", "uvala port list"),
        ("rule add valenf pass", "drop, forward, chain:NAME or port:NAME"),
        ("rule add valenf drop --dport 1-100", "another priority"),
        ("rule add valenf drop --in b --dst 10.1.0.0/16", "higher priority, or delete one"),
        ("rule add valenf drop --dport 9-1", "such as 1000-1999"),
        ("rule add valenf drop --src 10.0.0.0/33", "such as 10.0.0.0/8"),
        ("rule del valenf 77", "uvala rule list valenf"),
        ("port set valenf:a --chain none", "uvala chain"),
    ] {
        let (done, _, why) = uvala(words);
        assert!(!done && why.contains(cure), "{words}: {why:?} does not say {cure:?}");
        assert_eq!(why.trim_end().lines().count(), 1, "{words}: {why:?}");
    }
    let (_, rules, _) = uvala("rule show valenf");
    assert!(rules.contains("no client holds port b: no frame arrives there"), "{rules}");
    let (_, chains, _) = uvala("chain show valenf");
    assert!(chains.contains("no process runs fw"), "{chains}");
    let open = |name: &str| daemon.options().rings(1).group("nf").open(name).unwrap();
    let (mut f0, mut a) = (open("valenf:f0"), open("valenf:a"));
    // An action out of range.
    let mut astray = |_: &mut Frame<'_>, _: &mut Generated| Action::Port(4000);
    a.send(&announcement(9)).unwrap();
    while nf::step(&mut f0, &mut astray, Some(Duration::from_millis(5))).unwrap() == 0 {}
    wait::until("the switch to have dropped it", || functions(&daemon)[0].refused() == 1);
    let (_, chains, _) = uvala("chain show valenf");
    assert!(chains.contains("1 dead_port"), "{chains}");
    assert!(
        chains.contains("dead_port: No client holds") && chains.contains("REFUSED"),
        "{chains}"
    );
    let (_, metrics, _) = uvala("metrics");
    let sample =
        r#"{switch="valenf",service="fw",service_instance="0",port="f0",reason="dead_port"} 1"#;
    assert!(metrics.contains(sample), "{metrics}");
}

#[test]
fn a_group_of_the_same_name_is_another_users_own() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n[switch.vale0]\nmode = \"666\"\n").start();
    let mine = daemon.options().group("nf").open("vale0:mine").unwrap();
    let mut at = daemon.at("vale0:his");
    at.group = Some("nf".to_owned());
    let hoard = Hoard { at, station: 3, ..Hoard::default() };
    let _his = Peer::launch(&Role::Hoard(hoard), Some(USER));
    wait::until("both groups", || audit(&daemon).len() == 2);
    let groups = audit(&daemon);
    assert!(groups.iter().all(|group| group.group == "nf" && group.members.len() == 1));
    assert_ne!(groups[0].uid, groups[1].uid);
    let output = daemon.uvala_as(&["audit", "--json"], Some(USER));
    let shown: Vec<GroupAudit> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown.iter().map(|group| group.uid).collect::<Vec<_>>(), [USER]);
    drop(mine);
}
