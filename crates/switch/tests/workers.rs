//! A switch of several workers: replicas in threads of their own, and clients that count what
//! they get.

#[path = "common/no_doorbell.rs"]
mod no_doorbell;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use no_doorbell::NoDoorbell;
use packet::PortId;
use ring::Region;
use ring::cursor::RingSize;
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use ring::krings::Krings;
use ring::layout::{DEFAULT_STRIDE, FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use ring::table::HugeTable;
use ring::user::{RxRing, TxRing};
use switch::{Now, OnFull, Plug, PortConfig, Scratch, Switch, SwitchConfig};

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
        let first = Switch::new(SwitchConfig::default(), 7, HugeTable::new);
        let switches = first.into_replicas(workers);
        let mut crew = Self { switches, clients: Vec::new() };
        let config = PortConfig { on_full, ..PortConfig::default() };
        (0..ports).for_each(|port| crew.add(port, &config));
        crew
    }

    fn add(&mut self, port: usize, config: &PortConfig) {
        let (plug, client) = port_with_rings();
        let (plug, owner) = (plug.into_common(), port % self.switches.len());
        for (worker, switch) in self.switches.iter_mut().enumerate() {
            if worker != owner {
                switch.add_port(id(port), plug.for_delivery(), config.clone());
            }
        }
        self.switches[owner].add_port(id(port), plug, config.clone());
        self.clients.push(client);
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

    /// Frames that all workers have counted at a port: received, and dropped.
    fn counted(&self, port: usize) -> (u64, u64) {
        let stats = self.switches.iter().map(|switch| switch.stats(id(port)).expect("a port"));
        stats.fold((0, 0), |(rx, drops), stats| {
            (rx + stats.total().rx.frames, drops + stats.drops.total())
        })
    }
}

fn port_with_rings() -> (Plug, Client) {
    let slots = RingSize::new(64).expect("legal");
    let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
    let port = PortLayout::new(FIRST_BLOCK, counts);
    let size = port.end() - FIRST_BLOCK;
    let layout = RegionLayout::new(size, DEFAULT_STRIDE, counts.buffers()).expect("legal");
    let (region, fd) = Region::create("test", layout).expect("memory");
    region.format_port("test", &port, region.buffers(), true).expect("memory");
    let client = Region::attach(fd.as_fd(), layout).expect("sealed");
    let (tx, rx) = (TxRing::new(&client, &port, 0), RxRing::new(&client, &port, 0));
    (Plug::rings_with(Krings::new(&region, &port), NoDoorbell), Client { tx, rx })
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
    let looks = [1000, 1001, 1060, 1061].map(|us| waits(&mut crew, &mut scratch, 0, us));
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
