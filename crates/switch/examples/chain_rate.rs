//! What a frame costs that is looked up among flows: a switch with a thousand rules, whose clients
//! are played by the same thread. Only turns of the sender are timed.
//!
//! `cargo run --release -p uvala-switch --example chain_rate [FLOWS]`

mod net;

use std::time::{Duration, Instant};

use net::{BATCH, Net, frame, mac, port};
use packet::fields::Fields;
use switch::chain::rule::{Action, Rule};
use switch::chain::{Chain, Out, Plan, Planner, ServicePlan};
use switch::{Forwarding, Now, SwitchConfig};

/// Ports that receive; port 0 sends.
const RECEIVERS: u8 = 4;
const RULES: u16 = 1000;
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
    let forwarding = Forwarding::Chain;
    let config =
        SwitchConfig { forwarding, fdb_capacity: flows as usize, ..SwitchConfig::default() };
    let mut net = Net::new(config, RECEIVERS, shared);
    net.introduce();
    drop(
        net.switch.steer(Planner::default().next(plan.clone()).expect("a first plan"), Now::START),
    );
    // Every flow is known before it counts.
    round(&mut net, flows, stations);
    let each = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(flows);
    let mut rounds: Vec<_> = (0..ROUNDS).map(|_| each(round(&mut net, flows, stations))).collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name:32}{:>8.1}{:>8.1}", rounds[0], rounds[rounds.len() / 2]);
}

/// One frame of each flow; returns how long the switch took for all.
fn round(net: &mut Net, flows: u32, stations: u8) -> Duration {
    let (mut time, mut next) = (Duration::ZERO, 0);
    while next < flows {
        let count = net.send(0, u32::from(BATCH).min(flows - next), |slot| {
            let station = u8::try_from((next + slot) % u32::from(stations)).expect("few") + 1;
            frame(mac(station), mac(0), next + slot)
        });
        next += count;
        let begin = Instant::now();
        let moved = net.turn(0);
        time += begin.elapsed();
        assert_eq!(moved.slots, count, "all are taken");
        assert_eq!(net.receive(), count, "all arrive");
    }
    time
}
