//! For how long a worker stops when its chains and rules change: what control makes on one thread
//! and a worker takes over on another, as in a daemon.
//!
//! `cargo run --release -p uvala-switch --example rule_change [RULES]`

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use packet::PortId;
use packet::fields::{Fields, Network};
use ring::table::HugeTable;
use switch::chain::rule::{Action, Rule};
use switch::chain::{Chain, Out, Plan, Planner, ServicePlan, Tables};
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, Forwarding, Notify, Now, Plug, PortConfig, Sent, Switch, SwitchConfig};

/// Samples of each change.
const SAMPLES: u32 = 200;
/// Flows that the switch may know.
const FLOWS: usize = 1 << 20;

fn main() {
    let rules = std::env::args().nth(1).map_or(4096, |text| text.parse().expect("a number"));
    let (to_worker, tables) = channel();
    let (to_control, taken) = channel();
    let worker = std::thread::spawn(move || worker(&tables, &to_control));
    let mut control = Control { planner: Planner::default(), to_worker, taken };
    println!("{rules} rules; microseconds, median and longest of {SAMPLES}");
    println!("{:32}{:>10}{:>10}{:>10}{:>10}", "change", "control", "", "worker", "");
    type Change = fn(&mut Plan, u32);
    let changes: [(&str, Change); 5] = [
        ("all rules are others", |plan, _| {
            plan.rules.iter_mut().for_each(|rule| rule.id += 1 << 16);
        }),
        ("all rules have another priority", |plan, turn| {
            plan.rules.iter_mut().for_each(|rule| rule.priority = turn);
        }),
        ("a rule comes", |plan, turn| plan.rules.push(rule((1 << 20) + turn))),
        ("a port enters a chain", |plan, turn| plan.ingress = vec![(port(turn % 999), 0)]),
        ("one of 64 instances comes or goes", |plan, turn| {
            let instances = (0..64 - turn % 2).map(instance).collect();
            plan.services[0] = Some(ServicePlan { instances, ..ServicePlan::default() });
        }),
    ];
    for (name, change) in changes {
        // Of one rule more, each time, as many as there are in the end.
        let first = rules - if name.starts_with("a rule") { SAMPLES } else { 0 };
        let mut plan = plan(first);
        control.change(&plan);
        let samples = (1..=SAMPLES).filter_map(|turn| {
            change(&mut plan, turn);
            control.change(&plan)
        });
        let (made, stopped): (Vec<_>, Vec<_>) = samples.unzip();
        println!("{name:32}{}{}", show(made), show(stopped));
    }
    lose_instances(&mut control);
    drop(control);
    worker.join().expect("no panic");
}

/// What the worker does by itself when a port goes.
fn lose_instances(control: &mut Control) {
    let all = ServicePlan { instances: (0..64).map(instance).collect(), ..ServicePlan::default() };
    let none = Plan { services: vec![None], ..plan(0) };
    let full = Plan { services: vec![Some(all)], ..plan(0) };
    let samples = (0..SAMPLES).map(|turn| {
        control.change(&none);
        control.change(&full);
        control.worker_does(Work::Lose(instance(turn % 64).0)).0
    });
    let samples = samples.collect();
    println!("{:32}{:20}{}", "one of 64 instances is lost", "", show(samples));
}

enum Work {
    Change(Box<Tables>),
    Lose(PortId),
}

struct Control {
    planner: Planner,
    to_worker: Sender<Work>,
    taken: Receiver<(Duration, Option<Tables>)>,
}

impl Control {
    /// How long control took, without what frees the old, and for how long the worker stopped.
    fn change(&mut self, plan: &Plan) -> Option<(Duration, Duration)> {
        let plan = plan.clone();
        let begin = Instant::now();
        let tables = self.planner.next(plan)?;
        let made = begin.elapsed();
        let (stopped, old) = self.worker_does(Work::Change(Box::new(tables)));
        drop(old);
        Some((made, stopped))
    }

    fn worker_does(&self, work: Work) -> (Duration, Option<Tables>) {
        self.to_worker.send(work).expect("a worker");
        self.taken.recv().expect("a worker")
    }
}

fn worker(work: &Receiver<Work>, taken: &Sender<(Duration, Option<Tables>)>) {
    let config = SwitchConfig {
        forwarding: Forwarding::Chain,
        fdb_capacity: FLOWS,
        ..SwitchConfig::default()
    };
    let mut switch = Switch::new(config, 7, HugeTable::new);
    for work in work {
        if let Work::Lose(port) = work {
            switch.add_port(port, Plug::adapter(Box::new(Nothing)), PortConfig::default());
        }
        let begin = Instant::now();
        let old = match work {
            Work::Change(tables) => Some(switch.steer(*tables, Now::START)),
            Work::Lose(port) => {
                switch.remove_port(port);
                None
            }
        };
        let stopped = begin.elapsed();
        if taken.send((stopped, old)).is_err() {
            return;
        }
    }
}

/// A port that only has a place.
struct Nothing;

impl Adapter for Nothing {
    fn send(&mut self, _batch: &Batch, _list: &[Delivery]) -> Sent {
        Sent::default()
    }
}

impl Notify for Nothing {}

fn plan(rules: u32) -> Plan {
    let service = ServicePlan { instances: vec![instance(0)], ..ServicePlan::default() };
    Plan {
        services: vec![Some(service)],
        chains: vec![Some(Chain { order: 0, services: vec![0], out: Out::Address })],
        rules: (0..rules).map(rule).collect(),
        ..Plan::default()
    }
}

fn rule(id: u32) -> Rule {
    let [_, a, b, c] = id.to_be_bytes();
    let src = Network { address: std::net::Ipv4Addr::new(10, a, b, c).into(), bits: 32 };
    let fields = Fields { src: Some(src), dst_ports: Some(80..=443), ..Fields::default() };
    Rule { id, priority: 0, fields, action: Action::Chain(0) }
}

fn instance(number: u32) -> (PortId, u16) {
    (port(1000 + number), u16::try_from(number).expect("few"))
}

fn port(number: u32) -> PortId {
    PortId::new(number as usize).expect("few ports")
}

fn show(mut samples: Vec<Duration>) -> String {
    samples.sort();
    let micros = |at: usize| samples[at].as_secs_f64() * 1e6;
    format!("{:>10.1}{:>10.1}", micros(samples.len() / 2), micros(samples.len() - 1))
}
