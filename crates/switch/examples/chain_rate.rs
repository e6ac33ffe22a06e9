//! What a frame costs that is looked up among flows: a switch with a thousand rules, whose clients
//! are played by the same thread. Only turns of the sender are timed.
//!
//! `cargo run --release -p uvala-switch --example chain_rate [FLOWS]`

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use packet::PortId;
use packet::fields::Fields;
use ring::Region;
use ring::cursor::RingSize;
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use ring::krings::Krings;
use ring::layout::{DEFAULT_STRIDE, FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use ring::owners::Owner;
use ring::table::HugeTable;
use ring::user::{RxRing, TxRing};
use switch::chain::rule::{Action, Rule};
use switch::chain::{Chain, Out, Plan, Planner, ServicePlan};
use switch::{Forwarding, Now, Plug, PortConfig, Scratch, Switch, SwitchConfig, Wake};

/// Ports that receive; port 0 sends.
const RECEIVERS: u8 = 4;
const RULES: u16 = 1000;
const BATCH: u16 = 256;
const SLOTS: u32 = 1024;
/// How often every flow is sent.
const ROUNDS: u32 = 9;

fn main() {
    let flows = std::env::args().nth(1).map_or(1 << 20, |text| text.parse().expect("a number"));
    println!("{flows} flows; nanoseconds a frame, best and median of {ROUNDS} rounds");
    let forward = plan(RULES, Action::Forward);
    let chain = plan(RULES, Action::Chain(0));
    let entry = Plan { ingress: vec![(port(0), 0)], ..plan(0, Action::Forward) };
    measure("rules, one station", flows, &forward, true, 1);
    measure("rules, four stations in turns", flows, &forward, true, RECEIVERS);
    measure("rules, one station, copied", flows, &forward, false, 1);
    measure("rules, four instances", flows, &chain, true, 1);
    measure("no rules, four instances", flows, &entry, true, 1);
}

/// The last rule, which all frames find, says what is done with them.
fn plan(rules: u16, action: Action) -> Plan {
    let rule = |number: u16| {
        let last = number == rules;
        let dst_ports = (!last).then(|| 20_000 + number..=20_000 + number);
        let fields = Fields { protocol: Some(17), dst_ports, ..Fields::default() };
        let action = if last { action } else { Action::Drop };
        Rule { id: number.into(), priority: u32::from(!last), fields, action }
    };
    let instances = (0..u16::from(RECEIVERS)).map(|n| (port(usize::from(n) + 1), n)).collect();
    let is_chain = rules == 0 || action == Action::Chain(0);
    let service = ServicePlan { instances, ..ServicePlan::default() };
    Plan {
        services: if is_chain { vec![Some(service)] } else { Vec::new() },
        chains: vec![Some(Chain { order: 0, services: vec![0], out: Out::Address })],
        rules: (1..=rules).map(rule).collect(),
        ..Plan::default()
    }
}

fn measure(name: &str, flows: u32, plan: &Plan, shared: bool, stations: u8) {
    let mut net = Net::new(flows, shared);
    net.introduce();
    drop(
        net.switch.steer(Planner::default().next(plan.clone()).expect("a first plan"), Now::START),
    );
    // Every flow is known before it counts.
    net.round(flows, stations);
    let each = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(flows);
    let mut rounds: Vec<_> = (0..ROUNDS).map(|_| each(net.round(flows, stations))).collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name:32}{:>8.1}{:>8.1}", rounds[0], rounds[rounds.len() / 2]);
}

struct Net {
    switch: Switch,
    scratch: Scratch,
    clients: Vec<(TxRing, RxRing)>,
}

impl Net {
    fn new(flows: u32, shared: bool) -> Self {
        let config = SwitchConfig {
            forwarding: Forwarding::Chain,
            fdb_capacity: flows as usize,
            ..SwitchConfig::default()
        };
        let switch = Switch::new(config, 7, HugeTable::new);
        let scratch = Scratch::new(BATCH, Intake::new(FRAMES, STANDARD_FRAME).expect("memory"));
        let mut net = Self { switch, scratch, clients: Vec::new() };
        let ports = usize::from(RECEIVERS) + 1;
        if shared {
            net.add_group(ports);
        } else {
            (0..ports).for_each(|_| net.add_group(1));
        }
        net
    }

    /// Ports in one region.
    fn add_group(&mut self, ports: usize) {
        let slots = RingSize::new(SLOTS).expect("legal");
        let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
        let size = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
        let buffers = counts.buffers() * u32::try_from(ports).expect("few");
        let layout = RegionLayout::new(size * ports, DEFAULT_STRIDE, buffers).expect("legal");
        let (region, fd) = Region::create_shared("bench", layout).expect("memory");
        let client = Region::attach(fd.as_fd(), layout).expect("sealed");
        let mut free = region.buffers();
        for i in 0..ports {
            let port = PortLayout::new(FIRST_BLOCK + i * size, counts);
            let own: Vec<_> = free.by_ref().take(counts.buffers() as usize).collect();
            for &buffer in &own {
                assert!(region.owners().pass(buffer, Owner::POOL, Owner::of(&port)));
            }
            region.format_port("bench", &port, own, false).expect("memory");
            let host = Plug::rings_with(Krings::new(&region, &port), NoDoorbell);
            self.switch.add_port(self::port(self.clients.len()), host, PortConfig::default());
            self.clients.push((TxRing::new(&client, &port, 0), RxRing::new(&client, &port, 0)));
        }
    }

    /// The switch learns where stations are.
    fn introduce(&mut self) {
        for number in 1..=RECEIVERS {
            let (tx, _) = &mut self.clients[usize::from(number)];
            tx.refresh();
            tx.frame(0, 60).copy_from_slice(&frame(mac(0), mac(number), 0));
            let _ = tx.submit(1);
            self.switch.turn(port(number.into()), NOW, &mut self.scratch);
            self.receive();
        }
    }

    /// One frame of each flow; returns how long the switch took for all.
    fn round(&mut self, flows: u32, stations: u8) -> Duration {
        let (mut time, mut next) = (Duration::ZERO, 0);
        while next < flows {
            let (tx, _) = &mut self.clients[0];
            let count = tx.refresh().min(BATCH.into()).min(flows - next);
            for slot in 0..count {
                let number = next + slot;
                let station = u8::try_from(number % u32::from(stations)).expect("few") + 1;
                tx.frame(slot, 60).copy_from_slice(&frame(mac(station), mac(0), number));
            }
            let _ = tx.submit(count);
            next += count;
            let begin = Instant::now();
            let moved = self.switch.turn(port(0), NOW, &mut self.scratch);
            time += begin.elapsed();
            assert_eq!(moved.slots, count, "all are taken");
            assert_eq!(self.receive(), count, "all arrive");
        }
        time
    }

    fn receive(&mut self) -> u32 {
        let take = |(_, rx): &mut (TxRing, RxRing)| {
            let count = rx.refresh();
            let _ = rx.release(count);
            count
        };
        self.clients.iter_mut().map(take).sum()
    }
}

/// Clients look at their rings themselves.
struct NoDoorbell;

impl Wake for NoDoorbell {
    fn wake(&self) {}
}

const NOW: Now = Now::from_ms(1);

/// A UDP packet of a flow.
fn frame(dst: [u8; 6], src: [u8; 6], flow: u32) -> [u8; 60] {
    let mut bytes = [0; 60];
    bytes[..6].copy_from_slice(&dst);
    bytes[6..12].copy_from_slice(&src);
    (bytes[12], bytes[14], bytes[23]) = (8, 0x45, 17);
    bytes[26..30].copy_from_slice(&[10, 0, 1, 2]);
    bytes[30..34].copy_from_slice(&[10, 0, 2, 2]);
    bytes[34..38].copy_from_slice(&flow.rotate_left(16).to_be_bytes());
    bytes
}

fn mac(station: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, station]
}

fn port(number: usize) -> PortId {
    PortId::new(number).expect("few ports")
}
