//! Traces, held against what becomes of the same frames.

use packet::fields::Fields;
use packet::{MacAddr, VlanId};
use switch::chain::rule::{Action, Rule};
use switch::chain::service::Balance;
use switch::chain::{Chain, Out, Plan, ServicePlan};
use switch::{PortSecurity, PortStats, TraceStep};

use super::random::Random;
use super::*;

const PORTS: usize = 8;

fn config(random: &mut Random) -> PortConfig {
    let vlans = ["transparent", "access:1", "access:2", "trunk:1-3", "trunk:2-4,native=1"];
    let limit = random.pick(&[None, None, Some(3)]);
    PortConfig {
        vlan: random.pick(&vlans).parse().expect("a mode"),
        isolated: random.pick(&[false, false, true]),
        learning: random.pick(&[true, true, false]),
        unicast_flood: random.pick(&[true, true, false]),
        security: PortSecurity {
            mac_lock: random.pick(&[None, None, Some("first:2")]).map(|it| it.parse().expect("")),
            max_macs: random.pick(&[None, Some(2)]),
            flood_limits: [limit; 3],
            bpdu_guard: random.pick(&[None, Some(true)]),
            ..PortSecurity::default()
        },
        ..PortConfig::default()
    }
}

fn some_frame(random: &mut Random) -> Vec<u8> {
    let group = [1, 0x80, 0xc2, 0, 0, random.pick(&[0, 1, 14])];
    let host = mac(random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
    let dst = random.pick(&[host, host, host, host, host, ALL, [1, 0, 0x5e, 0, 0, 5], group]);
    let src = random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let (len, fill) = (random.pick(&[14, 16, 17, 18, 60, 100]), random.pick(&[0, 0x81, 7]));
    let vlan = random.pick(&[0, 1, 2, 3, 4]);
    match random.pick(&[0, 0, 1, 2]) {
        0 => frame(dst, mac(src), len, fill),
        1 => {
            let mut short = tagged(dst, mac(src), vlan, fill);
            // Of a shorter one, the switch reads what its buffer held before.
            short.truncate(len.max(16));
            short
        }
        _ => {
            let mut double = tagged(dst, mac(src), vlan, fill);
            double[16..18].copy_from_slice(&[0x81, 0]);
            double
        }
    }
}

/// What has become of a frame: the ports that got it, and where it was dropped for which reason.
type Outcome = (Vec<usize>, Vec<(usize, DropReason)>);

fn foretold(steps: &[TraceStep]) -> Outcome {
    let first = steps.iter().find_map(|step| match step {
        TraceStep::Function(port) => Some(vec![port.index()]),
        _ => None,
    });
    let sent = steps.iter().filter_map(|step| match step {
        TraceStep::Send(port, _) => Some(port.index()),
        _ => None,
    });
    let dropped = steps.iter().filter_map(|step| match step {
        TraceStep::Drop(port, reason) => Some((port.index(), *reason)),
        _ => None,
    });
    match first {
        Some(first) => (first, Vec::new()),
        None => (sent.collect(), dropped.collect()),
    }
}

impl Net {
    /// Sends one frame, and says what becomes of it.
    fn outcome(&mut self, src: usize, bytes: &[u8]) -> Outcome {
        let before: Vec<PortStats> = self.all_stats();
        self.send(src, &[bytes.to_vec()]);
        self.turn(src);
        let got = (0..self.clients.len()).filter(|&port| !self.received(port).is_empty());
        let got = got.collect();
        let after = self.all_stats();
        let all = (0..before.len()).flat_map(|port| DropReason::ALL.map(|reason| (port, reason)));
        let count = |stats: &[PortStats], port: usize, reason| stats[port].drops.get(reason);
        let is_new = |&(port, reason): &(usize, DropReason)| {
            count(&after, port, reason) > count(&before, port, reason)
        };
        (got, all.filter(is_new).collect())
    }

    fn all_stats(&self) -> Vec<PortStats> {
        let stats = |port| self.switch.stats(id(port)).expect("a port").clone();
        (0..self.clients.len()).map(stats).collect()
    }

    /// Traces a frame twice, and sends it.
    pub fn check(&mut self, src: usize, bytes: &[u8], what: &str) -> Vec<TraceStep> {
        let len = u32::try_from(bytes.len()).expect("short");
        let steps = self.switch.trace(id(src), bytes, len, self.now);
        assert_eq!(self.switch.trace(id(src), bytes, len, self.now), steps, "nothing changes");
        let (mut got, mut dropped) = foretold(&steps);
        got.sort_unstable();
        dropped.sort_unstable();
        let outcome = self.outcome(src, bytes);
        assert_eq!((got, dropped), outcome, "{what}, port {src}: {bytes:02x?}\n{steps:#?}");
        steps
    }
}

#[test]
fn a_trace_foretells_what_becomes_of_frames_in_every_kind_of_switch() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..8 {
        for forwarding in Forwarding::ALL.into_iter().filter(|it| *it != Forwarding::Chain) {
            let mut random = Random(seed);
            let config_of = SwitchConfig { forwarding, ageing_ms: 3000, ..Default::default() };
            let mut net = Net::new(config_of);
            let ports = if forwarding == Forwarding::Patch { 2 } else { PORTS };
            (0..ports).for_each(|_| net.add(config(&mut random)));
            for host in 0..4 {
                let at = id(random.pick(&[0, 1]));
                let added = net.switch.bridge_mut().add_static(
                    VlanId::DEFAULT,
                    MacAddr::new(mac(host)),
                    at,
                );
                added.expect("there is room");
            }
            for _ in 0..600 {
                let pause = random.pick(&[0, 1, 100, 2000]);
                net.now = Now::from_ms(net.now.as_ms() + pause);
                let src = random.pick(&[0, 1, 2, 3, 4, 5, 6, 7]) % ports;
                let bytes = some_frame(&mut random);
                let steps = net.check(src, &bytes, &format!("{forwarding:?}, seed {seed}"));
                outcomes.extend(steps.iter().filter_map(|step| match step {
                    TraceStep::Drop(_, reason) => Some(*reason),
                    _ => None,
                }));
                // Disabled ports would be all that is left.
                net.switch.take_news();
                (0..ports).for_each(|port| net.switch.bridge_mut().enable_port(id(port)));
            }
        }
    }
    assert!(outcomes.len() >= 11, "the frames meet few reasons: {outcomes:?}");
}

#[test]
fn a_trace_foretells_rules_chains_and_the_instance_that_gets_a_frame() {
    let mut net = chain::net(4);
    let instances = |ports: &[usize]| {
        let instances = (0u16..).zip(ports).map(|(number, &port)| (id(port), number)).collect();
        Some(ServicePlan { balance: Balance::Hash, instances })
    };
    let rule = |number: u32, src: u8, action| Rule {
        id: number,
        priority: 0,
        fields: Fields { src_mac: Some(MacAddr::new(mac(src))), ..Fields::default() },
        action,
    };
    net.steer_at_once(Plan {
        services: vec![instances(&[2, 3, 4]), instances(&[5])],
        chains: vec![
            Some(Chain { order: 0, services: vec![0, 1], out: Out::Address }),
            Some(Chain { order: 0, services: vec![], out: Out::Nowhere }),
        ],
        rules: vec![
            rule(7, 1, Action::Drop),
            rule(8, 2, Action::Port(id(1))),
            rule(9, 3, Action::Forward),
            rule(10, 4, Action::Chain(1)),
        ],
        ingress: vec![(id(0), 0)],
        ..Plan::default()
    });
    let mut random = Random(1);
    let mut seen = [0; 4];
    for _ in 0..400 {
        let mut bytes = chain::flow(u16::try_from(random.next() % 60000).expect("below"), 1);
        bytes[6..12].copy_from_slice(&mac(random.pick(&[0, 1, 2, 3, 4])));
        bytes[..6].copy_from_slice(&random.pick(&[mac(9), mac(1), ALL]));
        for step in net.check(random.pick(&[0, 1]), &bytes, "chain") {
            match step {
                TraceStep::Rule(number) => seen[0] |= 1 << (number - 7),
                TraceStep::Function(port) => seen[1] |= 1 << port.index(),
                TraceStep::Drop(_, DropReason::Rule | DropReason::DeadPort) => seen[2] += 1,
                TraceStep::Send(..) => seen[3] += 1,
                _ => {}
            }
        }
    }
    assert_eq!(seen[..2], [0b1111, 0b11_1100], "every rule, every instance");
    assert!(seen[2] > 0 && seen[3] > 0);
}
