//! A switch of several workers: replicas in threads of their own, and clients that count what
//! they get.

#[path = "common/no_doorbell.rs"]
mod no_doorbell;
#[path = "common/program_code.rs"]
mod program_code;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use no_doorbell::NoDoorbell;
use packet::PortId;
use program::{Looks, Program};
use program_code::{DROP, EXIT, Insn, LOOK_UP, TO, ask_map, count_and, insn, program};
use ring::Region;
use ring::cursor::RingSize;
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use ring::krings::Krings;
use ring::layout::{DEFAULT_STRIDE, FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use ring::table::HugeTable;
use ring::user::{RxRing, TxRing};
use switch::{
    CopyRate, DropReason, DropReasons, Forwarding, Mirror, MirrorPoint, MirrorSource, Now, OnFull,
    Plug, PortConfig, Scratch, Switch, SwitchConfig, UserFunction,
};

const LEN: u16 = 60;

struct Client {
    tx: TxRing,
    rx: RxRing,
}

/// The replicas of a switch, and the clients of its ports. Port `n` belongs to the worker `n`
/// modulo their number.
struct Crew {
    switches: Vec<Switch>,
    clients: Vec<Client>,
}

impl Crew {
    fn new(workers: usize, ports: usize, on_full: OnFull) -> Self {
        Self::with(SwitchConfig::default(), workers, ports, on_full)
    }

    fn with(config: SwitchConfig, workers: usize, ports: usize, on_full: OnFull) -> Self {
        let first = Switch::new(config, 7, HugeTable::new);
        let switches = first.into_replicas(workers);
        let mut crew = Self { switches, clients: Vec::new() };
        let config = PortConfig { on_full, ..PortConfig::default() };
        (0..ports).for_each(|port| crew.add(port, &config));
        crew
    }

    fn add(&mut self, port: usize, config: &PortConfig) {
        let (plug, client) = port_with_rings(64);
        self.plug(port, plug, client, config);
    }

    fn plug(&mut self, port: usize, plug: Plug, client: Client, config: &PortConfig) {
        let (plug, owner) = (plug.into_common(), port % self.switches.len());
        for (worker, switch) in self.switches.iter_mut().enumerate() {
            if worker != owner {
                switch.add_port(id(port), plug.for_delivery(), config.clone());
            }
        }
        self.switches[owner].add_port(id(port), plug, config.clone());
        self.clients.push(client);
    }

    /// A switch whose frames a program decides.
    fn programmed(workers: usize, ports: usize, code: &[Insn]) -> Self {
        let config = SwitchConfig { forwarding: Forwarding::Program, ..SwitchConfig::default() };
        let mut crew = Self::with(config, workers, ports, OnFull::Wait);
        crew.load(code);
        crew
    }

    /// Loads a program, at one worker after the other.
    fn load(&mut self, code: &[Insn]) {
        let first = UserFunction::new(program(Looks::Header, code).into_common());
        drop(self.switches[0].bridge_mut().set_function(Some(first)));
        for other in 1..self.switches.len() {
            let handle = self.switches[0].bridge().function().expect("it was loaded").handle();
            drop(self.switches[other].bridge_mut().set_function(Some(handle)));
        }
        drop(self.program(0).sweep());
    }

    fn program(&mut self, worker: usize) -> &mut Program {
        self.switches[worker].bridge_mut().program_mut().expect("it was loaded")
    }

    /// The number in the program's map, as a worker sees it.
    fn number(&mut self, worker: usize) -> u64 {
        let value = self.program(worker).get(0, &[0; 4]).expect("an entry");
        u64::from_le_bytes(value.try_into().expect("eight bytes"))
    }

    /// Lets the switch learn where all stations are.
    fn introduce(&mut self) {
        let mut scratch = scratch();
        for port in 0..self.clients.len() {
            assert!(self.clients[port].send(ALL, port, 0));
            assert_eq!(self.turn(port, &mut scratch).slots, 1);
        }
        let others = self.clients.len() - 1;
        assert!(self.clients.iter_mut().all(|client| client.receive().len() == others));
    }

    /// A turn of a port at its worker.
    fn turn(&mut self, port: usize, scratch: &mut Scratch) -> switch::Moved {
        let workers = self.switches.len();
        self.switches[port % workers].turn(id(port), Now::from_ms(1), scratch)
    }

    /// A mirror with a handle at each worker; returns its place, and its client.
    fn add_mirror(&mut self, slots: u32) -> (usize, Client) {
        let (krings, client) = rings(slots);
        // The daemon keeps a region for as long as its client has it.
        std::mem::forget(krings.region().clone());
        let mirror = Mirror::new(krings, Arc::new(NoDoorbell)).into_common();
        let add = |it: &mut Switch| it.add_mirror(mirror.handle());
        let places: Vec<usize> = self.switches.iter_mut().map(add).collect();
        assert!(places.iter().all(|&place| place == places[0]), "{places:?}");
        (places[0], client)
    }

    fn mirror_port(&mut self, port: usize, place: usize, point: MirrorPoint) {
        let source = MirrorSource { point, rings: 0..1 };
        self.switches.iter_mut().for_each(|it| it.mirror_port(id(port), place, source.clone()));
    }

    /// What all workers together could not put into a mirror.
    fn missed(&mut self, place: usize) -> u64 {
        self.switches.iter_mut().map(|it| it.mirror_mut(place).expect("a mirror").missed()).sum()
    }

    /// Frames that all workers have counted at a port: received, and dropped.
    fn counted(&self, port: usize) -> (u64, u64) {
        let stats = self.switches.iter().map(|switch| switch.stats(id(port)).expect("a port"));
        stats.fold((0, 0), |(rx, drops), stats| {
            (rx + stats.total().rx.frames, drops + stats.drops.total())
        })
    }
}

fn port_with_rings(slots: u32) -> (Plug, Client) {
    let (krings, client) = rings(slots);
    (Plug::rings_with(krings, NoDoorbell), client)
}

/// Rings of a port in a region of its own, of which the receive ring has so many slots.
fn rings(rx_slots: u32) -> (Krings, Client) {
    let [tx_slots, rx_slots] = [64, rx_slots].map(|slots| RingSize::new(slots).expect("legal"));
    let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots, rx_slots };
    let port = PortLayout::new(FIRST_BLOCK, counts);
    let size = port.end() - FIRST_BLOCK;
    let layout = RegionLayout::new(size, DEFAULT_STRIDE, counts.buffers()).expect("legal");
    let (region, fd) = Region::create("test", layout).expect("memory");
    region.format_port("test", &port, region.buffers(), true).expect("memory");
    let client = Region::attach(fd.as_fd(), layout).expect("sealed");
    let (tx, rx) = (TxRing::new(&client, &port, 0), RxRing::new(&client, &port, 0));
    (Krings::new(&region, &port), Client { tx, rx })
}

fn scratch() -> Scratch {
    Scratch::new(32, Intake::new(FRAMES, STANDARD_FRAME).expect("memory"))
}

fn id(port: usize) -> PortId {
    PortId::new(port).expect("few ports")
}

fn mac(port: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, u8::try_from(port).expect("few")]
}

const ALL: [u8; 6] = [0xff; 6];

impl Client {
    /// Sends a numbered frame, if there is room.
    fn send(&mut self, dst: [u8; 6], src: usize, number: u64) -> bool {
        if self.tx.refresh() == 0 {
            return false;
        }
        let frame = self.tx.frame(0, LEN);
        frame[..6].copy_from_slice(&dst);
        frame[6..12].copy_from_slice(&mac(src));
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[16..24].copy_from_slice(&number.to_le_bytes());
        self.tx.set(0, LEN, 0);
        let _ = self.tx.submit(1);
        true
    }

    /// The frames that have arrived: their senders and numbers.
    fn receive(&mut self) -> Vec<(usize, u64)> {
        let count = self.rx.refresh();
        let read = |at| {
            let frame = self.rx.frame(at);
            let number = frame[16..24].try_into().expect("eight bytes");
            (usize::from(frame[11]), u64::from_le_bytes(number))
        };
        let frames = (0..count).map(read).collect();
        let _ = self.rx.release(count);
        frames
    }
}

#[test]
fn a_frame_reaches_ports_of_all_workers_and_stations_are_known_to_all() {
    let (mut crew, mut scratch) = (Crew::new(3, 6, OnFull::Drop), scratch());
    crew.introduce();
    for (from, to) in [(0, 3), (0, 4), (4, 2), (5, 1)] {
        assert!(crew.clients[from].send(mac(to), from, 9));
        crew.turn(from, &mut scratch);
        let got: Vec<_> = crew.clients.iter_mut().map(Client::receive).collect();
        let expected = |port| if port == to { vec![(from, 9)] } else { vec![] };
        assert_eq!(got, (0..6).map(expected).collect::<Vec<_>>(), "{from} to {to}");
    }
}

#[test]
fn a_worker_that_waits_for_room_is_known_to_the_worker_of_the_port() {
    let (mut crew, mut scratch) = (Crew::new(2, 2, OnFull::Wait), scratch());
    crew.introduce();
    let full = loop {
        crew.clients[0].send(mac(1), 0, 1);
        if let Some(full) = crew.turn(0, &mut scratch).blocked_on {
            break full;
        }
    };
    assert_eq!((full.port(), full.is_brief()), (id(1), false));
    let [zero, one] = &mut crew.switches[..] else { panic!("two workers") };
    assert_eq!(one.take_waiting(id(1)), 0);
    zero.want_room(full, 0);
    assert!(zero.is_full(full));
    assert_eq!((one.take_waiting(id(1)), one.take_waiting(id(1))), (0b1, 0));
    crew.clients[1].receive();
    assert!(!crew.switches[0].is_full(full));
    assert!(crew.turn(0, &mut scratch).blocked_on.is_none());
}

#[test]
fn a_client_that_reads_what_another_worker_delivers_is_waited_for_again() {
    let (mut crew, mut scratch) = (Crew::new(2, 5, OnFull::Drop), scratch());
    crew.introduce();
    let fill = |crew: &mut Crew, scratch: &mut Scratch| {
        while crew.clients[3].send(mac(1), 3, 0) && crew.turn(3, scratch).blocked_on.is_none() {}
    };
    // Whether the next frame of a port at worker 0 waits for port 1.
    let waits = |crew: &mut Crew, scratch: &mut Scratch, from: usize, us| {
        crew.clients[from].send(mac(1), from, 0);
        let moved = crew.switches[0].turn(id(from), Now::from_us(us), scratch);
        moved.blocked_on.is_some_and(switch::Full::is_brief)
    };
    fill(&mut crew, &mut scratch);
    let looks = [1000, 1001, 1210, 1211].map(|us| waits(&mut crew, &mut scratch, 0, us));
    assert_eq!(looks, [true, true, false, false], "it has read nothing since");
    assert_eq!(crew.clients[1].receive().len(), 63);
    fill(&mut crew, &mut scratch);
    assert!(waits(&mut crew, &mut scratch, 2, 2000), "it has read a whole ring since");
}

#[test]
fn a_port_that_moves_keeps_its_guard_and_its_counters() {
    let mut crew = Crew::new(2, 2, OnFull::Drop);
    let mut config = PortConfig::default();
    config.security.mac_lock = Some("first:1".parse().expect("a lock"));
    crew.add(2, &config);
    let (mut scratch, now) = (scratch(), Now::from_ms(1));
    crew.clients[2].send(ALL, 2, 0);
    crew.turn(2, &mut scratch);
    let given = crew.switches[0].give_port(id(2)).expect("a port");
    crew.switches[1].take_port(id(2), given);
    for source in [2, 3] {
        crew.clients[2].send(ALL, source, 0);
        assert_eq!(crew.switches[0].turn(id(2), now, &mut scratch).slots, 0, "it has no ring");
        assert_eq!(crew.switches[1].turn(id(2), now, &mut scratch).slots, 1);
    }
    // The first address is locked at the new worker, too.
    assert_eq!(crew.clients[0].receive().len(), 2);
    assert_eq!(crew.counted(2), (0, 1));
    crew.clients[0].send(mac(2), 0, 5);
    crew.turn(0, &mut scratch);
    assert_eq!(crew.clients[2].receive(), [(0, 5)]);
}

#[test]
fn a_mirror_sees_what_any_worker_delivers_to_a_port_and_what_the_port_sends() {
    let (mut crew, mut scratch) = (Crew::new(3, 6, OnFull::Drop), scratch());
    crew.introduce();
    let (place, mut eye) = crew.add_mirror(64);
    for point in [MirrorPoint::Sent, MirrorPoint::Received] {
        crew.mirror_port(4, place, point);
    }
    let mut expected = Vec::new();
    for (number, from) in (0..20).zip((0..6).cycle()) {
        let to = if from == 4 { 1 } else { 4 };
        assert!(crew.clients[from].send(mac(to), from, number));
        crew.turn(from, &mut scratch);
        expected.push((from, number));
        crew.clients[to].receive();
    }
    assert_eq!(eye.receive(), expected, "each once, in the order of delivery");
    // A port that moves goes on where it was.
    crew.clients[4].send(mac(1), 4, 77);
    let given = crew.switches[1].give_port(id(4)).expect("a port");
    crew.switches[0].take_port(id(4), given);
    crew.switches[0].turn(id(4), Now::from_ms(1), &mut scratch);
    assert_eq!(eye.receive(), [(4, 77)]);
    // Each worker has counted what it could not show.
    for from in 0..3 {
        for number in 0..63 {
            assert!(crew.clients[from].send(mac(4), from, number));
        }
        while crew.turn(from, &mut scratch).slots > 0 {}
        crew.clients[4].receive();
    }
    assert_eq!((crew.missed(place), eye.receive().len()), (2 * 63, 63));
    let mirrors: Vec<_> = crew.switches.iter_mut().map(|it| it.remove_mirror(place)).collect();
    assert!(mirrors.iter().all(Option::is_some));
    crew.clients[0].send(mac(4), 0, 1);
    crew.turn(0, &mut scratch);
    assert_eq!((eye.receive().len(), crew.clients[4].receive().len()), (0, 1));
}

#[test]
fn a_mirror_of_drops_sees_those_of_all_workers() {
    let (mut crew, mut scratch) = (Crew::new(2, 4, OnFull::Drop), scratch());
    crew.introduce();
    let (place, mut eye) = crew.add_mirror(64);
    let reasons = DropReasons::only(DropReason::SamePort);
    crew.switches.iter_mut().for_each(|it| it.mirror_drops(place, reasons));
    for port in 0..4 {
        crew.clients[port].send(mac(port), port, 5);
        crew.turn(port, &mut scratch);
    }
    assert_eq!(eye.rx.refresh(), 4);
}

#[test]
fn a_mirror_port_gets_copies_from_all_workers_and_its_rate_is_one_for_all() {
    let (mut crew, mut scratch) = (Crew::new(3, 4, OnFull::Drop), scratch());
    crew.introduce();
    let ids: Vec<_> = (0..3).map(|port| (id(port), MirrorPoint::Sent)).collect();
    let set = |crew: &mut Crew, limit| {
        let rate = crew.switches[0].set_mirror_port(id(3), CopyRate::new(limit), &ids);
        for other in &mut crew.switches[1..] {
            drop(other.set_mirror_port(id(3), rate.handle(), &ids));
        }
    };
    let send = |crew: &mut Crew, scratch: &mut Scratch| {
        for from in 0..3 {
            assert!(crew.clients[from].send(mac((from + 1) % 3), from, 7));
            crew.turn(from, scratch);
        }
        (0..3).for_each(|to| assert_eq!(crew.clients[to].receive().len(), 1));
        crew.clients[3].receive()
    };
    set(&mut crew, 0);
    assert_eq!(send(&mut crew, &mut scratch), [(0, 7), (1, 7), (2, 7)]);
    set(&mut crew, 4);
    assert_eq!(send(&mut crew, &mut scratch).len(), 3);
    // The rate that is set again has been used.
    set(&mut crew, 5);
    assert_eq!(send(&mut crew, &mut scratch).len(), 2);
    let lost = crew
        .switches
        .iter()
        .map(|it| it.stats(id(3)).expect("a port").drops.get(DropReason::MirrorRate));
    assert_eq!(lost.sum::<u64>(), 1);
}

/// All send to one, whose frames go to a mirror port, of which a capture sees the copies.
#[test]
fn mirrors_of_mirrors_at_the_same_time_lose_and_reorder_nothing() {
    const FRAMES: u64 = 3000;
    let (workers, ports) = (3, 6);
    let mut crew = Crew::new(workers, ports, OnFull::Wait);
    let (plug, ids) = port_with_rings(1024);
    crew.plug(ports, plug, ids, &PortConfig::default());
    crew.introduce();
    let (place, eye) = crew.add_mirror(1024);
    let from = [(id(0), MirrorPoint::Received), (id(0), MirrorPoint::Sent)];
    let rate = crew.switches[0].set_mirror_port(id(ports), CopyRate::new(0), &from);
    for other in &mut crew.switches[1..] {
        drop(other.set_mirror_port(id(ports), rate.handle(), &from));
    }
    crew.mirror_port(ports, place, MirrorPoint::Received);
    let Crew { switches, mut clients } = crew;
    let watched = [clients.pop().expect("the mirror port"), eye];
    let [is_over, are_ended] = [false; 2].map(AtomicBool::new);
    let (switches, seen) = thread::scope(|scope| {
        let (is_over, are_ended) = (&is_over, &are_ended);
        let run =
            |(number, switch)| scope.spawn(move || work(switch, number, workers, ports, is_over));
        let threads: Vec<_> = switches.into_iter().enumerate().map(run).collect();
        let watchers = watched.map(|client| scope.spawn(move || watch(client, are_ended)));
        let mut clients = clients.into_iter();
        let mut reader = clients.next().expect("port 0");
        for (port, client) in (1..).zip(clients) {
            scope.spawn(move || all_to_one(client, port, FRAMES));
        }
        let mut got = 0;
        while got < FRAMES * 5 {
            got += u64::try_from(reader.receive().len()).expect("few");
            thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
        let switches: Vec<_> = threads.into_iter().map(|it| it.join().expect("it ends")).collect();
        are_ended.store(true, Ordering::Release);
        (switches, watchers.map(|it| it.join().expect("it ends")))
    });
    let mut crew = Crew { switches, clients: Vec::new() };
    let (missed, (copied, lost)) = (crew.missed(place), crew.counted(ports));
    assert_eq!(copied + lost, FRAMES * 5 + 6, "each frame once, and those that taught addresses");
    for (seen, missed) in seen.iter().zip([lost, missed + lost]) {
        let count = u64::try_from(seen.len()).expect("few");
        assert_eq!(count + missed, FRAMES * 5, "{missed} missed");
        let mut last = [None; 6];
        for &(src, number) in seen {
            assert!(last[src] < Some(number), "{src}: {number} after {:?}", last[src]);
            last[src] = Some(number);
        }
    }
}

/// What a client gets until all workers have ended.
fn watch(mut client: Client, are_ended: &AtomicBool) -> Vec<(usize, u64)> {
    let mut seen = Vec::new();
    while !are_ended.load(Ordering::Acquire) {
        seen.extend(client.receive());
        thread::yield_now();
    }
    seen.extend(client.receive());
    seen
}

/// Sends so many frames to port 0.
fn all_to_one(mut client: Client, port: usize, frames: u64) {
    let mut sent = 0;
    while sent < frames {
        sent += u64::from(client.send(mac(0), port, sent));
        thread::yield_now();
    }
}

#[test]
fn what_one_worker_or_control_writes_to_a_map_decides_at_all_workers() {
    let (mut crew, mut scratch) = (Crew::programmed(2, 4, &ask_map()), scratch());
    let arrives = |crew: &mut Crew, scratch: &mut Scratch, from: usize| {
        assert!(crew.clients[from].send(mac(9), from, 9));
        crew.turn(from, scratch);
        crew.clients.iter_mut().position(|client| client.receive().len() == 1)
    };
    for (writer, to) in [(0, 2), (1, 3), (0, 0), (0, 3), (1, 2)] {
        let value = u64::try_from(TO).expect("positive") + to;
        crew.program(writer).set(0, &[0; 4], &value.to_le_bytes()).expect("an entry");
        // Twice: the second time by the kept verdict.
        for _ in 0..2 {
            assert_eq!(arrives(&mut crew, &mut scratch, 1), usize::try_from(to).ok(), "{writer}");
        }
    }
    let runs = [0, 1].map(|worker| crew.program(worker).counts().runs);
    assert_eq!(runs, [0, 5], "once for each value");
}

#[test]
fn a_verdict_is_asked_for_again_when_another_worker_has_written_meanwhile() {
    // The program keeps in its map where it has sent the last frame, and sends the next elsewhere.
    let next = [
        insn(0x79, 6, 0, 0, 0),
        insn(0xbf, 1, 6, 0, 0),
        insn(0xa7, 1, 0, 0, 1),
        insn(0x7b, 0, 1, 0, 0),
        insn(0x57, 6, 0, 0, 1),
        insn(0xbf, 0, 6, 0, 0),
        insn(0x07, 0, 0, 0, TO + 2),
        EXIT,
    ];
    let (mut crew, mut scratch) =
        (Crew::programmed(2, 4, &[&LOOK_UP[..], &next].concat()), scratch());
    for round in 0..10 {
        let from = round % 2;
        assert!(crew.clients[from].send(mac(9), from, 9));
        crew.turn(from, &mut scratch);
        let got: Vec<_> = crew.clients.iter_mut().map(|client| client.receive().len()).collect();
        assert_eq!(got[2 + round % 2], 1, "{round}: {got:?}");
    }
}

#[test]
fn workers_count_in_one_map_and_replacements_keep_it() {
    const FRAMES: u64 = 3000;
    for workers in 1..=4 {
        let mut crew = Crew::programmed(workers, workers, &count_and(DROP));
        for round in 0..3 {
            let Crew { switches, clients } = crew;
            let pairs: Vec<_> = switches.into_iter().zip(clients).enumerate().collect();
            let back = thread::scope(|scope| {
                let run = |(port, (switch, client))| scope.spawn(move || ask(port, switch, client));
                let threads: Vec<_> = pairs.into_iter().map(run).collect();
                let ended = threads.into_iter().map(|thread| thread.join().expect("no panic"));
                ended.collect::<Vec<_>>()
            });
            let (switches, clients) = back.into_iter().unzip();
            crew = Crew { switches, clients };
            let asked: u64 = (0..workers).map(|at| crew.program(at).counts().runs).sum();
            assert_eq!(asked, FRAMES * u64::try_from(workers).expect("few"));
            for worker in 0..workers {
                assert_eq!(crew.number(worker), (round + 1) * asked, "{workers} workers");
            }
            crew.load(&count_and(DROP));
        }
    }

    /// Sends frames with other headers each time; the port belongs to the worker of its number.
    fn ask(port: usize, mut switch: Switch, mut client: Client) -> (Switch, Client) {
        let mut scratch = scratch();
        for number in 0..FRAMES {
            let dst = [2, 0, 0, 0, 1, u8::try_from(number & 0xff).expect("a byte")];
            assert!(client.send(dst, port, number));
            while switch.turn(id(port), Now::from_ms(1), &mut scratch).slots == 0 {}
            client.receive();
        }
        (switch, client)
    }
}

#[test]
fn what_is_reserved_for_a_list_no_other_worker_takes() {
    // Three ports of three workers send to a fourth in turn; frames of two flows are staged.
    let (mut crew, mut scratch) = (Crew::new(3, 4, OnFull::Wait), scratch());
    crew.introduce();
    let (mut sent, mut got) = ([0; 3], [0; 3]);
    for round in 0..4000 {
        let from = round % 3;
        for _ in 0..5 {
            let src = from + 10 * (sent[from] % 2);
            let dst = mac(3);
            if crew.clients[from].send(dst, src, u64::try_from(sent[from]).expect("few")) {
                sent[from] += 1;
            }
        }
        crew.turn(from, &mut scratch);
        if round % 7 == 0 {
            for (src, number) in crew.clients[3].receive() {
                assert_eq!(usize::try_from(number).expect("few"), got[src % 10], "in order");
                got[src % 10] += 1;
            }
        }
    }
    let dropped: u64 = (0..4).map(|port| crew.counted(port).1).sum();
    assert_eq!(dropped, 0);
    assert!(got.iter().all(|&got| got > 1000), "{got:?}");
}

/// The worker of a number, until all is over.
fn work(
    mut switch: Switch,
    number: usize,
    workers: usize,
    ports: usize,
    is_over: &AtomicBool,
) -> Switch {
    let (mut scratch, mut ms) = (scratch(), 0);
    while !is_over.load(Ordering::Relaxed) {
        ms += 1;
        let own = (number..ports).step_by(workers);
        let moved = own.map(|port| switch.turn(id(port), Now::from_us(ms), &mut scratch).slots);
        if moved.sum::<u32>() == 0 {
            thread::yield_now();
        }
    }
    switch
}

/// Workers in threads; every client sends to all others, and reads what comes.
#[test]
fn workers_at_the_same_time_lose_and_reorder_nothing() {
    const FRAMES: u64 = 20_000;
    let (ports, introduced) = (6, 5);
    for workers in 1..=4 {
        let mut crew = Crew::new(workers, ports, OnFull::Wait);
        // A flood would not wait for a thread that has no core.
        crew.introduce();
        let Crew { switches, clients } = crew;
        let is_over = AtomicBool::new(false);
        let switches = thread::scope(|scope| {
            let run = |(number, switch)| {
                let is_over = &is_over;
                scope.spawn(move || work(switch, number, workers, ports, is_over))
            };
            let threads: Vec<_> = switches.into_iter().enumerate().map(run).collect();
            let talks = clients.into_iter().enumerate();
            let talks: Vec<_> =
                talks.map(|(port, it)| scope.spawn(move || talk(it, port, ports))).collect();
            talks.into_iter().for_each(|talk| talk.join().expect("in order"));
            is_over.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let crew = Crew { switches, clients: Vec::new() };
        for port in 0..ports {
            let (received, dropped) = crew.counted(port);
            let expected = (FRAMES + introduced, 0);
            assert_eq!((received, dropped), expected, "{workers} workers, port {port}");
        }
    }

    fn talk(mut client: Client, port: usize, ports: usize) {
        let (mut sent, mut total) = (vec![0; ports], 0);
        let (mut next, mut got) = (vec![0; ports], 0);
        while total < FRAMES || got < FRAMES {
            let to = (port + 1 + usize::try_from(total).expect("few") % (ports - 1)) % ports;
            if total < FRAMES && client.send(mac(to), port, sent[to]) {
                sent[to] += 1;
                total += 1;
            } else {
                thread::yield_now();
            }
            for (src, number) in client.receive() {
                assert_eq!(number, next[src], "{src} to {port}");
                next[src] += 1;
                got += 1;
            }
        }
    }
}
