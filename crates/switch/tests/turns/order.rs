//! Order within flows while chains, rules, ports and services change: newer frames wait until older
//! ones have left.

use std::collections::BTreeMap;

use super::chain::{flow, line, net, service};
use super::random::Random;
use super::*;
use packet::fields::Fields;
use switch::chain::rule::{Action, Rule};
use switch::chain::service::Balance;
use switch::chain::{Chain, Out, Plan, ServicePlan};

/// Out by port 1.
fn chain(order: u8, services: &[u8]) -> Option<Chain> {
    Some(Chain { order, services: services.to_vec(), out: Out::Port(id(1)) })
}

/// Functions 0 and 1 on ports 2 and 3; what comes by port 0 goes through both.
fn two() -> (Net, Plan) {
    let mut net = net(2);
    let plan = Plan {
        services: vec![service(&[2]), service(&[3])],
        chains: vec![chain(0, &[0, 1])],
        ingress: vec![(id(0), 0)],
        ..Plan::default()
    };
    net.steer(plan.clone());
    (net, plan)
}

/// A chain without its first service.
fn shorter(plan: &Plan) -> Plan {
    let past = vec![(0, plan.chains[0].clone().expect("it is there"))];
    Plan { chains: vec![chain(1, &[1])], past, ..plan.clone() }
}

fn early(net: &Net) -> u64 {
    net.switch.steering().expect("it steers").chains[0].early
}

/// Frame 1 is on its way, 2 comes after the change: it is taken when each function in turn has
/// passed 1 on, and leaves behind it.
fn newer_ones_wait(net: &mut Net, stages: &[usize], after: &[usize]) {
    net.send(0, &[flow(7, 2)]);
    for &function in stages {
        assert_eq!(net.turn(0).slots, 0, "port {function} has the older one");
        assert_eq!(net.pass(function, |mark| mark), 1);
    }
    assert_eq!(net.turn(0).slots, 1);
    after.iter().for_each(|&function| assert_eq!(net.pass(function, |mark| mark), 1));
    assert_eq!(net.received(1), [flow(7, 1), flow(7, 2)]);
    assert_eq!(early(net), 0);
}

#[test]
fn newer_frames_of_a_chain_that_becomes_shorter_wait_for_older_ones() {
    let (mut net, plan) = two();
    net.enter(0, &[flow(7, 1)]);
    net.steer(shorter(&plan));
    newer_ones_wait(&mut net, &[2, 3], &[3]);
}

#[test]
fn newer_frames_of_a_port_without_its_chain_wait_for_older_ones() {
    let (mut net, plan) = two();
    net.enter(1, &[frame(ALL, mac(1), 60, 9)]);
    net.received(0);
    net.enter(0, &[flow(7, 1)]);
    net.steer(Plan { ingress: vec![], ..plan });
    newer_ones_wait(&mut net, &[2, 3], &[]);
}

#[test]
fn newer_frames_that_a_rule_leads_elsewhere_wait_for_older_ones() {
    let (mut net, plan) = two();
    net.enter(0, &[flow(7, 1)]);
    let rule = Rule { id: 1, priority: 0, fields: Fields::default(), action: Action::Port(id(1)) };
    net.steer(Plan { rules: vec![rule], ..plan });
    newer_ones_wait(&mut net, &[2, 3], &[]);
}

#[test]
fn frames_without_a_hash_leave_before_those_that_have_one() {
    let mut net = net(3);
    let mut plan = line(&[0, 1]);
    plan.chains = vec![chain(0, &[0, 1])];
    net.steer(plan.clone());
    net.enter(0, &[flow(7, 1)]);
    plan.services[1] = service(&[3, 4]);
    net.steer(plan);
    assert_eq!(net.turn(0).slots, 0);
    net.send(0, &[flow(7, 2)]);
    assert_eq!((net.turn(0).slots, net.pass(2, |mark| mark)), (0, 1));
    let (by_3, by_4) = (net.marks(3).len(), net.marks(4).len());
    assert_eq!((net.turn(0).slots, by_3 + by_4), (0, 1));
    let older = if by_3 > 0 { 3 } else { 4 };
    assert_eq!((net.pass(older, |mark| mark), net.turn(0).slots), (1, 1));
    net.pass(2, |mark| mark);
    assert_eq!(net.pass(3, |mark| mark) + net.pass(4, |mark| mark), 1);
    assert_eq!(net.received(1), [flow(7, 1), flow(7, 2)]);
}

#[test]
fn what_a_function_has_sent_is_waited_for_until_it_is_taken() {
    let (mut net, plan) = two();
    net.enter(0, &[flow(7, 1)]);
    net.work(2, 1, 0, |mark| mark);
    net.steer(shorter(&plan));
    net.send(0, &[flow(7, 2)]);
    assert_eq!((net.turn(0).slots, net.turn(2).slots, net.turn(0).slots), (0, 1, 0));
    net.work(3, 1, 0, |mark| mark);
    assert_eq!((net.turn(0).slots, net.turn(3).slots, net.turn(0).slots), (0, 1, 1));
    net.pass(3, |mark| mark);
    assert_eq!(net.received(1), [flow(7, 1), flow(7, 2)]);
}

#[test]
fn only_ports_that_could_enter_wait() {
    let (mut net, mut plan) = two();
    plan.ingress.push((id(1), 1));
    plan.chains.push(chain(0, &[1]));
    let fields = |port| Fields { port: Some(id(port)), ..Fields::default() };
    let drop = |number: u32, port| {
        vec![Rule { id: number, priority: 0, fields: fields(port), action: Action::Drop }]
    };
    net.steer(plan.clone());
    net.enter(0, &[flow(7, 1)]);
    net.enter(1, &[flow(8, 1)]);
    let other = |plan: &Plan| Plan {
        chains: [&shorter(plan).chains, &plan.chains[1..]].concat(),
        ..shorter(plan)
    };
    for (plan, waits) in [(plan.clone(), [0, 0]), (other(&plan), [1, 0]), (other(&plan), [1, 0])] {
        net.steer(plan);
        assert_eq!([0, 1].map(|port| net.is_shut(port)), waits.map(|waits| waits == 1));
    }
    net.steer(Plan { rules: drop(1, 1), ..other(&plan) });
    assert_eq!([0, 1].map(|port| net.is_shut(port)), [true, true]);
}

/// What a function has sent is never taken: no port waits longer because of that, however often
/// its chain changes.
#[test]
fn an_entrance_opens_although_frames_are_in_the_chain_and_that_is_counted() {
    let (mut net, mut plan) = two();
    let mut change = |net: &mut Net| {
        let old = plan.chains[0].clone().expect("it is there");
        let services: &[u8] = if old.services.len() == 1 { &[0, 1] } else { &[0] };
        plan.chains[0] = chain(old.order + 1, services);
        net.steer(plan.clone());
    };
    net.enter(0, &[flow(7, 1)]);
    net.work(2, 1, 0, |mark| mark);
    change(&mut net);
    net.now = Now::from_ms(20);
    assert!(net.is_shut(0));
    net.now = Now::from_ms(21);
    assert!(!net.is_shut(0));
    for (ms, waits) in [(22, false), (1000, false), (1001, true)] {
        net.work(2, SLOTS, 0, |mark| mark);
        net.now = Now::from_ms(ms);
        drop(net.switch.housekeep(net.now));
        for _ in 0..2 {
            change(&mut net);
            assert_eq!(net.is_shut(0), waits, "at {ms} ms");
        }
    }
    assert_eq!(early(&net), 1);
    net.switch.open_gate();
    assert!(!net.is_shut(0));
}

#[test]
fn nobody_waits_for_an_instance_that_stalls_or_has_gone() {
    for goes in [false, true] {
        let (mut net, plan) = two();
        net.enter(0, &[flow(7, 1)]);
        drop(net.switch.housekeep(net.now));
        match goes {
            true => drop(net.switch.remove_port(id(2))),
            false => {
                net.now = Now::from_ms(400);
                drop(net.switch.housekeep(net.now));
            }
        }
        net.steer(shorter(&plan));
        assert!(!net.is_shut(0));
        assert_eq!(early(&net), 0);
    }
}

impl Net {
    /// Whether a frame of this port has to wait.
    fn is_shut(&mut self, port: usize) -> bool {
        self.send(port, &[flow(9, 9)]);
        let (before, moved) = (self.switch.in_rings(id(port)), self.turn(port));
        if moved.slots == 0 {
            assert!(before > 0);
            return true;
        }
        false
    }
}

const SERVICES: usize = 3;
/// Most instances of each.
const INSTANCES: usize = 3;
const FLOWS: usize = 12;
/// The first port of functions, and the one behind the last.
const FUNCTIONS: std::ops::Range<usize> = 2..2 + SERVICES * INSTANCES;

/// Functions of any speed, an operator that changes what can be changed, and stations that send.
struct World {
    net: Net,
    random: Random,
    plan: Plan,
    /// Which instances there are, by service.
    instances: [[bool; INSTANCES]; SERVICES],
    changes: u64,
    /// By flow: frames that were sent, and the number of the last that came out.
    sent: [u32; FLOWS],
    got: BTreeMap<usize, u32>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            net: net(SERVICES * INSTANCES),
            random: Random(seed),
            plan: Plan {
                chains: vec![chain(0, &[0, 1, 2]), chain(0, &[1])],
                ingress: vec![(id(0), 0)],
                ..Plan::default()
            },
            instances: [[true, false, false]; SERVICES],
            changes: 0,
            sent: [0; FLOWS],
            got: BTreeMap::new(),
        };
        world.tell();
        world
    }

    fn tell(&mut self) {
        let service = |(service, there): (usize, &[bool; INSTANCES])| {
            let there = (0..INSTANCES).filter(|&instance| there[instance]);
            let port = |instance| id(FUNCTIONS.start + service * INSTANCES + instance);
            let instances = there.map(|it| (port(it), u16::try_from(it).expect("few"))).collect();
            let balance = if service == 2 { Balance::Least } else { Balance::Hash };
            Some(ServicePlan { balance, instances })
        };
        self.plan.services = self.instances.iter().enumerate().map(service).collect();
        self.net.steer(self.plan.clone());
        self.changes += 1;
    }

    fn step(&mut self) {
        match self.random.below(800) {
            0 => self.change_chain(),
            1 => self.change_port(),
            2 => self.change_rules(),
            3..6 => self.change_instances(),
            6..150 => self.send(),
            150..500 => drop(self.net.turn(self.random.below(FUNCTIONS.end))),
            _ => {
                let port = FUNCTIONS.start + self.random.below(FUNCTIONS.len());
                self.work(port, 12);
            }
        }
        self.receive();
    }

    /// A function passes some frames on, of as many as it has room for.
    fn work(&mut self, port: usize, most: usize) {
        let room = self.net.clients[port].tx.refresh();
        let most = u32::try_from(self.random.below(most)).expect("few");
        self.net.work(port, most.min(room), 0, |mark| mark);
    }

    /// Other services, or others first.
    fn change_chain(&mut self) {
        let mut services = Vec::new();
        for service in [0, 1, 2, 0, 1] {
            if !services.contains(&service) && self.random.one_in(2) {
                services.push(service);
            }
        }
        let number = self.random.below(2);
        let old = self.plan.chains[number].clone().expect("it is there");
        if services.is_empty() || services == old.services {
            return;
        }
        let order = old.order.wrapping_add(1);
        self.plan.past.insert(0, (u8::try_from(number).expect("few"), old));
        self.plan.past.truncate(16);
        self.plan.chains[number] = chain(order, &services);
        self.tell();
    }

    fn change_port(&mut self) {
        self.plan.ingress = vec![(id(0), u8::try_from(self.random.below(2)).expect("few"))];
        self.tell();
    }

    fn change_rules(&mut self) {
        self.plan.rules.clear();
        for number in 1..=u32::try_from(self.random.below(4)).expect("few") {
            let flow = u16::try_from(self.random.below(FLOWS)).expect("few");
            let fields = Fields { src_ports: Some(flow..=flow), ..Fields::default() };
            let action = match self.random.below(3) {
                0 => Action::Port(id(1)),
                one => Action::Chain(u8::try_from(one - 1).expect("few")),
            };
            self.plan.rules.push(Rule { id: number, priority: 0, fields, action });
        }
        self.tell();
    }

    /// One comes, or goes when it has nothing: what it had would be lost.
    fn change_instances(&mut self) {
        let (service, instance) = (self.random.below(SERVICES), self.random.below(INSTANCES));
        let others = self.instances[service].iter().filter(|there| **there).count();
        let client = &mut self.net.clients[FUNCTIONS.start + service * INSTANCES + instance];
        let is_idle = client.rx.refresh() == 0 && client.tx.is_drained();
        let there = &mut self.instances[service][instance];
        if is_idle && (!*there || others > 1) {
            *there ^= true;
            self.tell();
        }
    }

    fn send(&mut self) {
        for _ in 0..self.random.below(10) {
            if self.net.clients[0].tx.refresh() == 0 {
                return;
            }
            let number = self.random.below(FLOWS);
            self.sent[number] += 1;
            let mut bytes = flow(u16::try_from(number).expect("few"), 0);
            bytes[42..46].copy_from_slice(&self.sent[number].to_be_bytes());
            self.net.send(0, &[bytes]);
        }
    }

    fn receive(&mut self) {
        for bytes in self.net.received(1) {
            let number = usize::from(u16::from_be_bytes([bytes[34], bytes[35]]));
            let at = u32::from_be_bytes(bytes[42..46].try_into().expect("four"));
            let before = self.got.insert(number, at).unwrap_or(0);
            assert!(before < at, "{at} of flow {number} comes behind {before}");
        }
    }

    /// Everything comes to its end.
    fn finish(&mut self) {
        for _ in 0..1000 {
            for port in 0..FUNCTIONS.end {
                if FUNCTIONS.contains(&port) {
                    self.work(port, 64);
                }
                self.net.turn(port);
            }
            self.receive();
        }
        let rest: u64 = (0..FUNCTIONS.end).map(|port| self.net.switch.in_rings(id(port))).sum();
        assert_eq!(rest, 0, "all has been let in, and out");
    }
}

/// What is lost found no room and is counted; nothing is overtaken, whatever changes.
#[test]
fn no_frame_is_overtaken_whatever_is_changed_under_load() {
    let (mut changes, mut arrived) = (0, 0);
    for seed in 0..40 {
        let mut world = World::new(seed);
        (0..10_000).for_each(|_| world.step());
        world.finish();
        let chains = world.net.switch.steering().expect("it steers").chains;
        assert_eq!(chains.iter().map(|chain| chain.early).sum::<u64>(), 0);
        let (taken, gone) = world.net.balance();
        assert_eq!(taken, gone);
        let stats = |port| world.net.switch.stats(id(port)).expect("a port");
        let full = (0..FUNCTIONS.end).map(|port| stats(port).drops.get(DropReason::NoRoom));
        let lost = full.sum::<u64>() + stats(0).drops.get(DropReason::ChainFull);
        let sent: u64 = world.sent.iter().copied().map(u64::from).sum();
        let out = stats(1).total().rx.frames;
        assert_eq!(out + lost, sent, "seed {seed}");
        (changes, arrived) = (changes + world.changes, arrived + out);
    }
    println!("{changes} changes, {arrived} frames arrived");
    assert!(changes > 1000 && arrived > 40_000);
}
