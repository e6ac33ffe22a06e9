//! Frames through chains of functions, of which the test plays each.

use std::net::{IpAddr, Ipv4Addr};

use super::*;
use packet::fields::{Fields, Network};
use packet::metadata::{self, Metadata};
use switch::DropReasons;
use switch::chain::rule::{Action, Rule};
use switch::chain::service::Balance;
use switch::chain::{Chain, Out, Plan, ServicePlan};

/// Two stations on ports 0 and 1, and `functions` functions of one trust group behind them.
pub fn net(functions: usize) -> Net {
    let mut net = Net::new(SwitchConfig { forwarding: Forwarding::Chain, ..Default::default() });
    (0..2).for_each(|_| net.add(PortConfig::default()));
    net.add_group(functions);
    net.steer(Plan::default());
    net
}

pub fn service(ports: &[usize]) -> Option<ServicePlan> {
    let instances = (0u16..).zip(ports).map(|(number, &port)| (id(port), number)).collect();
    Some(ServicePlan { balance: Balance::Hash, instances })
}

/// Service `n` is on port `n + 2`, alone; all that comes in by ports 0 and 1 goes through these.
pub fn line(services: &[u8]) -> Plan {
    let last = services.iter().copied().max().map_or(0, usize::from);
    Plan {
        services: (0..=last).map(|n| service(&[n + 2])).collect(),
        chains: vec![Some(Chain { order: 0, services: services.to_vec(), out: Out::Address })],
        ingress: vec![(id(0), 0), (id(1), 0)],
        ..Plan::default()
    }
}

fn udp(src: [u8; 4], dst: [u8; 4], ports: [u16; 2], fill: u8) -> Vec<u8> {
    let mut bytes = frame(mac(1), mac(0), 60, fill);
    bytes[14..34].fill(0);
    (bytes[14], bytes[23]) = (0x45, 17);
    bytes[26..30].copy_from_slice(&src);
    bytes[30..34].copy_from_slice(&dst);
    bytes[34..36].copy_from_slice(&ports[0].to_be_bytes());
    bytes[36..38].copy_from_slice(&ports[1].to_be_bytes());
    bytes
}

pub fn flow(port: u16, fill: u8) -> Vec<u8> {
    udp([10, 0, 0, 1], [10, 0, 0, 2], [port, 80], fill)
}

const ACTION: u64 = 3 << 60;

impl Net {
    pub fn steer(&mut self, plan: Plan) {
        let tables = self.planner.next(plan);
        drop(tables.map(|tables| self.switch.steer(tables, self.now)));
    }

    /// Steers with an open gate, as where functions take too long to wait for older frames.
    pub fn steer_at_once(&mut self, plan: Plan) {
        self.steer(plan);
        self.switch.open_gate();
    }

    /// The function on a port passes everything on, with marks as `change` makes them.
    pub fn pass(&mut self, port: usize, change: impl Fn(u64) -> u64) -> usize {
        self.pass_to(port, 0, change)
    }

    /// Passes everything on, with the number of a service for frames whose metadata asks for one.
    pub fn pass_to(&mut self, port: usize, named: u16, change: impl Fn(u64) -> u64) -> usize {
        let count = self.work(port, u32::MAX, named, change);
        while self.turn(port).slots > 0 {}
        count
    }

    /// Lets the function pass on this many frames at most. The switch has no turn.
    pub fn work(
        &mut self,
        port: usize,
        most: u32,
        named: u16,
        change: impl Fn(u64) -> u64,
    ) -> usize {
        let client = &mut self.clients[port];
        let count = client.rx.refresh().min(most);
        assert!(client.tx.refresh() >= count);
        for i in 0..count {
            let (full, len) = (client.rx.buffer_index(i), client.rx.frame(i).len());
            let spare = client.tx.buffer_index(i);
            client.tx.set(i, u16::try_from(len).expect("short"), named << 8);
            client.tx.set_buffer_index(i, full);
            client.rx.set_buffer_index(i, spare);
            client.tx.set_metadata(i, change(client.rx.metadata(i)));
        }
        let _ = (client.tx.submit(count), client.rx.release(count));
        count as usize
    }

    pub fn marks(&mut self, port: usize) -> Vec<Metadata> {
        let rx = &mut self.clients[port].rx;
        (0..rx.refresh()).filter_map(|i| Metadata::read(rx.metadata(i))).collect()
    }

    pub fn enter(&mut self, port: usize, frames: &[Vec<u8>]) {
        self.send(port, frames);
        while self.turn(port).slots > 0 {}
    }
}

#[test]
fn frames_pass_all_functions_in_order_and_leave_by_their_address() {
    for functions in 1..=8 {
        let mut net = net(functions);
        let all: Vec<u8> = (0..8).take(functions).collect();
        net.steer(line(&all));
        // Where station 1 is, is learned when it sends; its frame is flooded, but to no function.
        net.enter(1, &[frame(ALL, mac(1), 60, 9)]);
        (0..functions).for_each(|n| assert_eq!(net.pass(n + 2, |mark| mark), 1));
        assert_eq!(net.received(0).len(), 1);
        let sent: Vec<_> = (0..12).map(|i| flow(1000 + u16::from(i) % 3, i)).collect();
        net.enter(0, &sent);
        for n in 0..functions {
            let marks = net.marks(n + 2);
            assert!(marks.iter().all(|meta| meta.position() == n && meta.port() == id(0)));
            assert_eq!(net.pass(n + 2, |mark| mark), 12);
        }
        assert_eq!(net.received(1), sent);
        let (taken, gone) = net.balance();
        assert_eq!(taken, gone, "nothing is lost uncounted");
    }
}

#[test]
fn a_function_drops_jumps_and_names_a_port() {
    let mut net = net(3);
    net.steer(line(&[0, 1, 2]));
    let wish = |action: u64| move |mark: u64| mark & !ACTION | action << 60;
    net.enter(0, &[flow(1, 1), flow(2, 2)]);
    net.pass(2, wish(1));
    assert_eq!(net.drops(2, DropReason::Function), 2);
    net.enter(0, &[flow(1, 3)]);
    let to_port_1 = |mark: u64| mark & !(0xfff << 32) | 1 << 32 | 3 << 60;
    net.pass(2, to_port_1);
    assert_eq!(net.received(1).len(), 1, "past the others");
    // The instance of the last service, chosen by its port: the second is left out.
    net.enter(0, &[flow(1, 4)]);
    net.pass(2, |mark| mark & !(0xfff << 32) | 4 << 32 | 3 << 60);
    assert_eq!(
        net.marks(4).first().map(|meta| (meta.position(), meta.action())),
        Some((2, metadata::Action::Next))
    );
    assert_eq!(net.received(3).len(), 0);
}

/// The first of three functions chooses the instance of the second: the frame goes on as its own.
#[test]
fn a_frame_that_was_sent_to_an_instance_goes_through_the_rest_of_its_chain() {
    let mut net = net(3);
    net.steer(line(&[0, 1, 2]));
    net.enter(1, &[frame(ALL, mac(1), 60, 9)]);
    (2..5).for_each(|port| assert_eq!(net.pass(port, |mark| mark), 1));
    net.enter(0, &[flow(1, 1)]);
    net.pass(2, |mark| mark & !(0xfff << 32) | 3 << 32 | 3 << 60);
    assert_eq!(net.marks(3)[0].port(), id(2));
    assert_eq!(net.pass(3, |mark| mark) + net.pass(4, |mark| mark), 2);
    assert_eq!(net.received(1), [flow(1, 1)]);
}

#[test]
fn a_function_that_sends_frames_in_a_circle_ends() {
    let mut net = net(2);
    net.steer(line(&[0, 1]));
    net.enter(0, &[flow(1, 1)]);
    let to_first = |mark: u64| mark & !(0xfff << 32) | 2 << 32 | 3 << 60;
    let mut hops = 0;
    while net.pass(2, |mark| mark) + net.pass(3, to_first) > 0 {
        hops += 1;
        assert!(hops < 40, "it goes on for ever");
    }
    assert_eq!(net.drops(2, DropReason::ChainLoop) + net.drops(3, DropReason::ChainLoop), 1);
}

#[test]
fn frames_that_a_function_makes_go_where_their_address_is_also_back() {
    let mut net = net(1);
    net.steer(line(&[0]));
    net.enter(0, &[frame(ALL, mac(0), 60, 1)]);
    assert_eq!(net.received(2).len(), 1);
    net.enter(2, &[frame(mac(0), mac(77), 60, 2)]);
    assert_eq!(net.received(0).len(), 1);
    // Nothing is learned of functions: an answer is flooded to stations, after the chain.
    net.enter(0, &[frame(mac(77), mac(0), 60, 3)]);
    assert_eq!(net.pass(2, |mark| mark), 1);
    assert_eq!((net.received(1).len(), net.received(0).len()), (1, 0));
    // Back to where it came from goes only what the function has made another frame.
    for (turned, back) in [(0, 0), (1 << 62, 1)] {
        net.enter(0, &[frame(mac(0), mac(5), 60, 4)]);
        net.pass(2, |mark| mark | turned);
        assert_eq!(net.received(0).len(), back);
    }
    assert_eq!(net.drops(2, DropReason::SamePort), 1);
}

#[test]
fn rules_come_before_the_chain_of_a_port_and_change_between_two_frames() {
    let mut net = net(2);
    let mut plan = line(&[0, 1]);
    plan.chains = vec![
        Some(Chain { order: 0, services: vec![0], out: Out::Port(id(1)) }),
        Some(Chain { order: 0, services: vec![1], out: Out::Port(id(1)) }),
    ];
    let network =
        |last| Some(Network { address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), bits: 32 });
    let rule = |id, priority, fields, action| Rule { id, priority, fields, action };
    plan.rules = vec![
        rule(1, 5, Fields { dst_ports: Some(80..=80), ..Fields::default() }, Action::Chain(1)),
        rule(2, 9, Fields { src: network(9), ..Fields::default() }, Action::Drop),
        rule(3, 1, Fields { protocol: Some(1), ..Fields::default() }, Action::Forward),
    ];
    net.steer(plan.clone());
    let other = udp([10, 0, 0, 1], [10, 0, 0, 2], [5, 81], 2);
    let bad = udp([10, 0, 0, 9], [10, 0, 0, 2], [5, 80], 3);
    let frames = [flow(7, 1), other.clone(), bad, flow(7, 4)];
    for round in 1..=2 {
        net.enter(0, &frames);
        assert_eq!((net.received(2).len(), net.received(3).len()), (1, 2));
        assert_eq!(net.drops(0, DropReason::Rule), round);
    }
    let report = net.switch.steering().expect("it steers");
    let frames_of = |report: &switch::chain::Report| {
        report.rules.iter().map(|(id, counted)| (*id, counted.frames)).collect::<Vec<_>>()
    };
    assert_eq!(frames_of(&report), [(2, 2), (1, 4), (3, 0)]);
    // Five 5-tuples at most: the second round was found in the cache.
    assert_eq!((report.cache.misses, report.cache.hits), (3, 5));
    plan.rules.remove(0);
    net.steer(plan);
    net.enter(0, &frames);
    assert_eq!((net.received(2).len(), net.received(3).len()), (3, 0), "no flow is remembered");
    assert_eq!(frames_of(&net.switch.steering().expect("it steers")), [(2, 3), (3, 0)]);
}

#[test]
fn instances_share_by_flow_and_a_flow_stays_in_order() {
    let mut net = net(4);
    let mut plan = line(&[0]);
    plan.services = vec![service(&[2, 3, 4])];
    plan.chains = vec![Some(Chain { order: 0, services: vec![0], out: Out::Port(id(1)) })];
    net.steer(plan.clone());
    let (mut next, mut seen) = (0u8, std::collections::BTreeMap::<u16, Vec<u8>>::new());
    for round in 0..30 {
        let frames: Vec<_> = (0..10).map(|i| flow(i, next)).collect();
        next += 1;
        net.enter(0, &frames);
        if round == 10 {
            plan.services = vec![service(&[2, 3, 4, 5])];
            net.steer(plan.clone());
        }
        // Functions are of different speed.
        (2..6)
            .filter(|port| round % (port - 1) == 0)
            .for_each(|port| assert!(net.pass(port, |m| m) < SLOTS as usize));
        note(&mut seen, net.received(1));
    }
    (2..6).for_each(|port| assert!(net.pass(port, |mark| mark) < SLOTS as usize));
    note(&mut seen, net.received(1));
    assert_eq!(seen.len(), 10);
    for (flow, order) in &seen {
        assert!(order.is_sorted(), "flow {flow}: {order:?}");
    }
    let (taken, gone) = net.balance();
    assert_eq!(taken, gone);
}

fn note(seen: &mut std::collections::BTreeMap<u16, Vec<u8>>, frames: Vec<Vec<u8>>) {
    for frame in frames {
        seen.entry(u16::from_be_bytes([frame[34], frame[35]])).or_default().push(frame[59]);
    }
}

#[test]
fn load_is_shed_at_the_entrance_and_not_at_the_last_function() {
    let mut net = net(3);
    net.steer(line(&[0, 1, 2]));
    for _ in 0..20 {
        net.enter(0, &vec![flow(1, 1); 8]);
        // The last one does nothing.
        (2..4).for_each(|port| assert!(net.pass(port, |mark| mark) <= 31));
    }
    let lost: u64 = (2..5).map(|port| net.drops(port, DropReason::NoRoom)).sum();
    assert_eq!(lost, 0, "no work was done in vain");
    assert_eq!(net.drops(0, DropReason::ChainFull), 160 - 24);
    let report = net.switch.steering().expect("it steers");
    let chain = &report.chains[0];
    assert_eq!((chain.entered, chain.drops.get(DropReason::ChainFull)), (24, 160 - 24));
    net.pass(4, |mark| mark);
    net.enter(0, &[flow(1, 1)]);
    assert_eq!(net.marks(2).len(), 1, "it goes on");
}

#[test]
fn a_chain_without_an_instance_says_so() {
    let mut net = net(3);
    let mut plan = line(&[0, 1]);
    plan.services[1] = None;
    net.steer(plan);
    net.enter(0, &vec![flow(1, 1); 5]);
    assert_eq!(net.drops(0, DropReason::NoInstance), 5);
    let report = net.switch.steering().expect("it steers");
    assert_eq!(report.chains[0].drops.get(DropReason::NoInstance), 5);
}

#[test]
fn when_an_instance_goes_its_flows_are_the_others_from_the_next_frame_on() {
    let mut net = net(2);
    let services = vec![service(&[2, 3])];
    net.steer(Plan { services, ..line(&[0]) });
    let frames: Vec<_> = (0..20).map(|i| flow(i, 1)).collect();
    net.enter(0, &frames);
    let shares = [net.received(2).len(), net.received(3).len()];
    assert!(shares.iter().all(|&share| share > 0), "{shares:?}");
    assert!(net.switch.remove_port(id(3)).is_some());
    net.enter(0, &frames);
    assert_eq!((net.received(2).len(), net.drops(0, DropReason::DeadPort)), (20, 0));
}

#[test]
fn what_ends_in_a_chain_is_shown_as_it_is_counted() {
    let mut net = net(2);
    net.steer(line(&[0, 1]));
    let (_, eye) = net.watch_drops(DropReasons::ALL);
    // The first does nothing.
    net.enter(0, &vec![flow(1, 1); 31]);
    assert!(net.shown(eye).is_empty());
    net.enter(0, &vec![flow(1, 1); 9]);
    let shown = net.shown(eye);
    let lost = ("no_room".to_owned(), 2, 0, flow(1, 1));
    assert_eq!((shown.len() as u64, shown), (net.drops(2, DropReason::NoRoom), vec![lost; 9]));
}

#[test]
fn what_has_no_room_at_a_function_is_counted_there() {
    let mut net = net(2);
    net.steer(line(&[0, 1]));
    // The first does nothing.
    net.enter(0, &vec![flow(1, 1); 31]);
    net.enter(0, &vec![flow(1, 1); 9]);
    assert_eq!((net.marks(2).len(), net.drops(2, DropReason::NoRoom)), (31, 9));
    let (taken, gone) = net.balance();
    assert_eq!(taken, gone, "nothing is lost uncounted");
}

#[test]
fn no_more_frames_wait_at_an_instance_than_have_room() {
    let mut net = net(2);
    net.steer(Plan { services: vec![service(&[2, 3])], ..line(&[0]) });
    net.enter(0, &vec![flow(1, 1); 31]);
    net.enter(0, &vec![flow(1, 1); 15]);
    let report = net.switch.steering().expect("it steers");
    let waiting: Vec<_> = report.instances.iter().map(|it| (it.waiting, it.capacity)).collect();
    assert!(waiting.contains(&(31, 31)), "{waiting:?}");
}

#[test]
fn frames_leave_by_the_port_of_their_chain_without_being_looked_at_each() {
    let mut net = net(1);
    let chains = vec![Some(Chain { order: 0, services: vec![0], out: Out::Port(id(1)) })];
    net.steer(Plan { chains, ..line(&[0]) });
    let sent: Vec<_> = (0..9).map(|i| frame(mac(77), mac(0), 60, i)).collect();
    net.enter(0, &sent);
    assert_eq!(net.pass(2, |mark| mark), 9);
    assert_eq!(net.received(1), sent);
}

/// Two ports that neither learn nor look at tags, whose chain names the egress port: the switch
/// reads no frame, however it moves them.
#[test]
fn a_wire_carries_whatever_it_is_sent() {
    let wire = PortConfig { learning: false, ..Default::default() };
    let chains = vec![Some(Chain { order: 0, services: vec![0], out: Out::Port(id(1)) })];
    let fields = Fields { dst_ports: Some(81..=81), ..Fields::default() };
    let rule = Rule { id: 1, priority: 0, fields, action: Action::Drop };
    for rules in [vec![], vec![rule]] {
        let mut net = net(1);
        (0..2).for_each(|port| net.switch.set_port(id(port), wire.clone()));
        net.steer(Plan { chains: chains.clone(), rules, ..line(&[0]) });
        let mut tagged = frame(mac(1), mac(0), 60, 3);
        tagged[12..16].copy_from_slice(&[0x81, 0, 0, 7]);
        let pause = frame([1, 0x80, 0xc2, 0, 0, 1], mac(0), 60, 4);
        let sent = [frame(mac(1), mac(0), 60, 1), frame(ALL, mac(9), 60, 2), tagged, pause];
        net.enter(0, &sent);
        assert_eq!(net.pass(2, |mark| mark), 4);
        assert_eq!(net.received(1), sent);
        assert_eq!(
            net.switch.bridge().fdb().entries(0, Now::from_ms(1)).count(),
            0,
            "nothing is learnt"
        );
        let (taken, gone) = net.balance();
        assert_eq!(taken, gone);
    }
}

#[test]
fn a_wire_into_a_trunk_is_tagged_where_it_leaves() {
    let mut net = net(1);
    let of = |vlan: &str| PortConfig {
        learning: false,
        vlan: vlan.parse().expect("a mode"),
        ..Default::default()
    };
    net.switch.set_port(id(0), of("transparent:10"));
    net.switch.set_port(id(1), of("trunk:10-20"));
    let chains = vec![Some(Chain { order: 0, services: vec![0], out: Out::Port(id(1)) })];
    net.steer(Plan { chains, ..line(&[0]) });
    net.enter(0, &[frame(mac(1), mac(0), 60, 1)]);
    net.pass(2, |mark| mark);
    let received = net.received(1);
    assert_eq!(received.len(), 1);
    assert_eq!(received[0][12..16], [0x81, 0, 0, 10]);
    // A trunk looks at tags: what has none is in no VLAN there.
    net.enter(1, &[frame(mac(0), mac(1), 60, 2)]);
    assert_eq!(net.drops(1, DropReason::Vlan), 1);
}

/// In runs of equal wishes, each of its own length.
#[test]
fn what_functions_drop_or_send_to_ports_is_counted_where_it_ends() {
    let mut net = net(2);
    let chain = || Some(Chain { order: 0, services: vec![0, 1], out: Out::Address });
    let plan = Plan { chains: vec![chain(), chain()], ..line(&[0, 1]) };
    net.steer(Plan { ingress: vec![(id(0), 0), (id(1), 1)], ..plan });
    net.enter(0, &[flow(1, 1), flow(1, 2), flow(1, 3)]);
    net.enter(1, &[flow(1, 4), flow(1, 5)]);
    net.pass(2, |mark| mark & !ACTION | 1 << 60);
    assert_eq!(net.drops(2, DropReason::Function), 5);
    let report = net.switch.steering().expect("it steers");
    let dropped = report.chains.iter().map(|chain| chain.drops.get(DropReason::Function));
    assert_eq!(dropped.collect::<Vec<_>>(), [3, 2]);
    net.enter(0, &[flow(1, 6), flow(1, 7)]);
    net.enter(1, &[flow(1, 8)]);
    let out = |mark: u64| mark & !(0xfff << 32) | (!mark & 1 << 32) | 3 << 60;
    net.pass(2, out);
    assert_eq!([net.received(0).len(), net.received(1).len()], [1, 2]);
    let (taken, gone) = net.balance();
    assert_eq!(taken, gone);
}

/// A plan that changes no rule leaves the flows that are known; one of a chain that has gone, none
/// of its counters to the next.
#[test]
fn a_plan_changes_what_is_new_in_it_only() {
    let mut net = net(2);
    let fields = Fields { dst_ports: Some(81..=81), ..Fields::default() };
    let rules = vec![Rule { id: 1, priority: 0, fields, action: Action::Drop }];
    let plan = Plan { rules, ..line(&[0, 1]) };
    net.steer(plan.clone());
    net.enter(0, &[flow(1, 1)]);
    net.steer(Plan { ingress: vec![(id(0), 0)], ..plan.clone() });
    net.enter(0, &[flow(1, 1)]);
    let report = net.switch.steering().expect("it steers");
    assert_eq!((report.cache.misses, report.chains[0].entered), (1, 2));
    net.steer(Plan { chains: vec![None], ..plan.clone() });
    net.steer(plan);
    assert_eq!(net.switch.steering().expect("it steers").chains[0].entered, 0);
}

/// What the last function does, too, and what it asks for that is not there.
#[test]
fn what_ends_in_a_chain_is_counted_there_with_its_reason() {
    let mut net = net(1);
    net.steer(line(&[0]));
    let ended = |net: &Net, reason| {
        let report = net.switch.steering().expect("it steers");
        assert_eq!(net.drops(2, reason), report.chains[0].drops.get(reason));
        net.drops(2, reason)
    };
    net.enter(0, &[flow(1, 1)]);
    net.pass(2, |mark| mark & !(0xfff << 32) | 99 << 32 | 3 << 60);
    assert_eq!(ended(&net, DropReason::DeadPort), 1);
    net.enter(0, &[flow(1, 1)]);
    // Service 0 is itself.
    net.pass(2, |mark| mark & !ACTION | 2 << 60);
    assert_eq!(ended(&net, DropReason::SamePort), 1);
    net.enter(0, &[frame(mac(0), mac(5), 60, 4)]);
    net.pass(2, |mark| mark);
    assert_eq!(ended(&net, DropReason::SamePort), 2);
    let nowhere = vec![Some(Chain { order: 0, services: vec![0], out: Out::Nowhere })];
    net.enter(0, &[flow(1, 1), flow(1, 2)]);
    net.steer(Plan { chains: nowhere, ..line(&[0]) });
    net.pass(2, |mark| mark);
    assert_eq!(ended(&net, DropReason::DeadPort), 3);
}

/// Also the first, and also for a frame of several slots.
#[test]
fn a_function_names_a_service_by_its_number() {
    let mut net = net(3);
    net.steer(line(&[2, 1, 0]));
    for (named, port) in [(0, 2), (1, 3)] {
        net.enter(0, &[flow(1, 1)]);
        assert_eq!(net.marks(4).len(), 1);
        let mark = net.clients[4].rx.metadata(0);
        let _ = net.clients[4].rx.release(1);
        let tx = &mut net.clients[4].tx;
        assert!(tx.refresh() > 2);
        let frame = flow(1, 1);
        let (head, rest) = frame.split_at(30);
        for (i, piece, flags) in [(0, head, slot_flag::MOREFRAG), (1, rest, 0)] {
            let len = u16::try_from(piece.len()).expect("short");
            tx.frame(i, len).copy_from_slice(piece);
            tx.set(i, len, flags | named << 8);
        }
        tx.set_metadata(0, mark & !ACTION | 2 << 60);
        let _ = tx.submit(2);
        while net.turn(4).slots > 0 {}
        assert_eq!(net.received(port).len(), 1, "service {named}");
    }
}

#[test]
fn a_service_that_there_is_not_is_no_action_and_counted_as_that() {
    let mut net = net(2);
    net.steer(line(&[0, 1]));
    for (at, named) in [2, 3, 255].into_iter().enumerate() {
        net.enter(0, &[flow(1, 1), flow(1, 2)]);
        assert_eq!(net.pass_to(2, named, |mark| mark | 2 << 60), 2);
        let wrong = 2 * (u64::try_from(at).expect("few") + 1);
        assert_eq!(net.drops(2, DropReason::BadAction), wrong);
        let report = net.switch.steering().expect("a chain");
        assert_eq!(report.chains[0].drops.get(DropReason::BadAction), wrong);
    }
    // In no chain that there is: at the function alone.
    net.enter(0, &[flow(1, 1)]);
    net.pass_to(2, 255, |_| 1 << 63 | 2 << 60 | 255 << 44);
    assert_eq!(net.drops(2, DropReason::BadAction), 7);
    // A service without instances is another matter.
    let mut plan = line(&[0]);
    plan.services.push(service(&[]));
    net.steer(plan);
    net.enter(0, &[flow(1, 1)]);
    assert_eq!(net.pass_to(2, 1, |mark| mark | 2 << 60), 1);
    assert_eq!(net.drops(2, DropReason::BadAction), 7);
    assert_eq!(net.drops(2, DropReason::NoInstance), 1);
    let (taken, gone) = net.balance();
    assert_eq!(taken, gone, "nothing is lost uncounted");
}

/// Else all others of the worker wait until each of its frames was compared with all rules.
#[test]
fn a_sender_of_new_flows_has_shorter_turns_and_whom_everybody_knows_has_not() {
    let mut net = net(0);
    let rule = |id| {
        let fields = Fields { dst_ports: Some(1..=2), ..Fields::default() };
        Rule { id, priority: id, fields, action: Action::Drop }
    };
    net.steer(Plan { rules: (1..=4096).map(rule).collect(), ..Plan::default() });
    let mut port = 0;
    let mut turn = |net: &mut Net, is_new: bool| {
        let next = |_| {
            port += u16::from(is_new);
            flow(port, 1)
        };
        let frames: Vec<_> = (0..16).map(next).collect();
        net.send(0, &frames);
        let taken = net.turn(0).slots;
        while net.turn(0).slots > 0 {}
        net.received(1);
        taken
    };
    assert_eq!(turn(&mut net, true), u32::from(BATCH), "the cost is not known yet");
    assert!((0..5).all(|_| turn(&mut net, true) <= 8));
    assert!((0..5).all(|_| turn(&mut net, false) > 0));
    assert_eq!(turn(&mut net, false), u32::from(BATCH));
}

/// Rules see the frame, not its first slot.
#[test]
fn a_frame_in_pieces_is_classified_as_one_in_one_piece() {
    let mut net = net(0);
    let fields = Fields { dst_ports: Some(80..=80), ..Fields::default() };
    let rules = vec![Rule { id: 1, priority: 0, fields, action: Action::Drop }];
    net.steer(Plan { rules, ..Plan::default() });
    let frame = flow(1, 1);
    let (head, rest) = frame.split_at(18);
    net.send_chain(0, &[head, rest]);
    while net.turn(0).slots > 0 {}
    assert_eq!((net.drops(0, DropReason::Rule), net.received(1).len()), (1, 0));
}
