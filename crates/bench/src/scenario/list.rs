//! The scenarios: what is measured, in which unit, against which goal, limit and peers.
//!
//! Goals are those of the design for two shared cores. They are stated for the near regime; where a
//! goal for far exists it stands beside it.

use protocol::OnFull;

use super::{Limit, Peer, Ratio, Scenario, chains, of_round_trip, rate};
use crate::work::{
    Api, Batch, COPY, Card, Exchange, Forwarding, Path, Payload, Placement, Traffic, Unit, Wait,
    Work,
};

const SWITCHES: &[Peer] = &[Peer::Bridge, Peer::Memif, Peer::Vhost, Peer::Vde];
const ZERO_COPY: &[Peer] = &[Peer::MemifZeroCopy, Peer::Bridge];
const KERNEL: &[Peer] = &[Peer::Bridge, Peer::Vde];

fn round_trip(
    name: &'static str,
    what: &'static str,
    goal: f64,
    path: Path,
    wait: Wait,
) -> Scenario {
    let placement = if wait == Wait::Asleep { Placement::ONE } else { Placement::TWO };
    let work = Work { path, placement, batch: Batch::all(1), ..COPY };
    Scenario {
        unit: Unit::Microseconds,
        limit: of_round_trip(wait, path == Path::Isolated),
        ..rate(name, what, Some(goal), Work { traffic: Traffic::RoundTrip(wait), ..work })
    }
}

fn quiet(name: &'static str, what: &'static str, goal: f64, unit: Unit, t: Traffic) -> Scenario {
    let work = Work { traffic: t, idle_ports: 10, placement: Placement::ONE, ..COPY };
    rate(name, what, Some(goal), work).counts(unit)
}

/// What a rate loses by something that `work` has and `without` has not.
fn rate_lost(
    name: &'static str,
    what: &'static str,
    goal: f64,
    without: Work,
    work: Work,
) -> Scenario {
    let scenario = rate(name, what, Some(goal), work).counts(Unit::PercentLost);
    Scenario { baseline: Some(without), ..scenario }
}

/// Every scenario, in the order in which they run.
pub fn all() -> Vec<Scenario> {
    let mut all = throughput();
    all.extend(one_region());
    all.extend(chains::scenarios());
    all.extend(fan_out());
    all.extend(netmap());
    all.extend(guests());
    all.extend(kernels());
    all.extend(host());
    all.extend(latency_and_rest());
    all.extend(operation());
    all.extend(scale());
    all
}

fn throughput() -> Vec<Scenario> {
    let long = Work { frame_len: 1514, batch: Batch::all(64), ..COPY };
    let one = Work { placement: Placement::ONE, ..COPY };
    let untouched = Work { payload: Payload::Untouched, ..COPY };
    let both = Work { traffic: Traffic::Both, ..COPY };
    let sender1 = Work {
        batch: Batch { sender: 1, switch: 256, receiver: 256 },
        placement: Placement::APART,
        ..COPY
    };
    vec![
        Scenario {
            peers: SWITCHES,
            ..rate("copy-60", "60 B, sender, switch and receiver isolated", Some(120.0), COPY)
        },
        Scenario {
            peers: SWITCHES,
            goal_far: Some(13.0),
            far: Some(Placement::ONE),
            ..rate("copy-1514", "1514 B, isolated; all on one core when far", Some(18.0), long)
        },
        Scenario {
            peers: KERNEL,
            ..rate("one-core-60", "60 B, everything on one core", Some(85.0), one)
        },
        Scenario {
            peers: KERNEL,
            ..rate(
                "one-core-1514",
                "1514 B, everything on one core",
                Some(13.0),
                Work { placement: Placement::ONE, ..long },
            )
        },
        Scenario {
            peers: &[Peer::Memif],
            ..rate("untouched-60", "60 B, ends use slots only (pkt-gen)", Some(200.0), untouched)
        },
        Scenario {
            peers: &[Peer::Memif],
            ..rate(
                "batch1",
                "60 B, every party handles one frame at a time",
                Some(20.0),
                Work { batch: Batch::all(1), ..COPY },
            )
        },
        rate("sender-batch1", "60 B, the sender publishes every frame", Some(75.0), sender1),
        rate(
            "copy-60-drop",
            "60 B, sender, switch and receiver isolated, default --on-full",
            None,
            Work { on_full: OnFull::Drop, ..COPY },
        ),
        rate("both-60", "60 B, two ports, both directions at once", None, both),
        rate(
            "both-60-drop",
            "60 B, two ports, both directions, default --on-full",
            None,
            Work { on_full: OnFull::Drop, ..both },
        ),
    ]
}

fn one_region() -> Vec<Scenario> {
    let group = Work { path: Path::Group, ..COPY };
    let pipe = Work { path: Path::Pipe, placement: Placement::APART, ..COPY };
    vec![
        Scenario {
            peers: &[Peer::MemifZeroCopy],
            ..rate("group-60", "60 B inside a trust group: buffers are swapped", None, group)
        },
        Scenario {
            peers: ZERO_COPY,
            ..rate(
                "group-1514",
                "1514 B inside a trust group, read by the receiver",
                Some(25.0),
                Work { frame_len: 1514, batch: Batch::all(64), ..group },
            )
        },
        Scenario {
            peers: &[Peer::MemifZeroCopy],
            ..rate(
                "pipe",
                "a pipe, descriptors only",
                Some(600.0),
                Work { payload: Payload::Untouched, ..pipe },
            )
        },
        Scenario {
            peers: &[Peer::MemifZeroCopy],
            ..rate("pipe-60", "a pipe, 60 B written and read", Some(200.0), pipe)
        },
    ]
}

fn fan_out() -> Vec<Scenario> {
    let broadcast = Work {
        traffic: Traffic::Broadcast(8),
        payload: Payload::Untouched,
        placement: Placement { sender: 0, switch: 0, receiver: 1 },
        batch: Batch::all(64),
        ..COPY
    };
    let busy = Work { payload: Payload::Untouched, batch: Batch::all(64), ..COPY };
    vec![
        Scenario {
            unit: Unit::Deliveries,
            ..rate("broadcast-8", "60 B from one port to eight", Some(200.0), broadcast)
        },
        rate(
            "unicast-8",
            "60 B from one port to eight in turn, with backpressure",
            None,
            Work { traffic: Traffic::Unicast(8), ..broadcast },
        ),
        rate(
            "program-8",
            "60 B from one port to eight, a forwarding program decides about each",
            None,
            Work { traffic: Traffic::Unicast(8), forwarding: Forwarding::Program, ..broadcast },
        ),
        rate(
            "decision",
            "a forwarding program looks one of 256 stations up, nothing else",
            Some(30.0),
            Work { traffic: Traffic::Decision, placement: Placement::ONE, ..COPY },
        )
        .counts(Unit::Nanoseconds),
        rate_lost(
            "program-60",
            "rate lost when a forwarding program decides, 60 B to one port",
            5.0,
            COPY,
            Work { forwarding: Forwarding::Program, ..COPY },
        ),
        rate_lost(
            "idle-48",
            "rate lost when 48 idle ports are attached, 60 B untouched",
            10.0,
            busy,
            Work { idle_ports: 48, ..busy },
        ),
    ]
}

fn netmap() -> Vec<Scenario> {
    let touched = Work { api: Api::Netmap, ..COPY };
    let untouched = Work { payload: Payload::Untouched, ..touched };
    let small = Work { batch: Batch { sender: 64, switch: 256, receiver: 64 }, ..untouched };
    let poll = Work { placement: Placement::ONE, traffic: Traffic::Poll, ..touched };
    let peers = &[Peer::Native];
    vec![
        Scenario {
            peers,
            ..rate(
                "netmap-60",
                "60 B, ends are netmap programs, slots only",
                Some(150.0),
                untouched,
            )
        },
        Scenario {
            peers,
            ..rate(
                "netmap-60-touched",
                "60 B, ends are netmap programs, payload written and read",
                Some(100.0),
                touched,
            )
        },
        Scenario {
            peers,
            ..rate("netmap-60-batch64", "slots only, 64 slots a poll at either end", None, small)
        },
        rate(
            "netmap-poll",
            "poll of a netmap port and a pipe, nothing to do, above a bare poll",
            Some(400.0),
            poll,
        )
        .counts(Unit::Nanoseconds),
    ]
}

fn guests() -> Vec<Scenario> {
    const PEERS: &[Peer] = &[Peer::Vhost, Peer::OvsDpdk, Peer::GuestsLearning];
    const RATIOS: &[Ratio] = &[
        Ratio { ours: None, theirs: Peer::Vhost, times: 2.0 },
        Ratio { ours: Some(Peer::GuestsLearning), theirs: Peer::OvsDpdk, times: 4.0 },
    ];
    let short = Work {
        api: Api::Dpdk,
        path: Path::Guests,
        forwarding: Forwarding::Patch,
        traffic: Traffic::Both,
        batch: Batch::all(64),
        ..COPY
    };
    let scenario = |name, what, work| Scenario {
        limit: Limit::None,
        peers: PEERS,
        ratios: RATIOS,
        slow: true,
        ..rate(name, what, None, work)
    };
    let shared = Work { api: Api::Driver, traffic: Traffic::OneWay, ..short };
    let one = |traffic| Work { traffic, placement: Placement::ONE, ..shared };
    vec![
        scenario("vhost-60", "60 B between two virtio devices, which return them, by patch", short),
        scenario(
            "vhost-1514",
            "1514 B between two virtio devices, by patch",
            Work { frame_len: 1514, ..short },
        ),
        Scenario {
            limit: Limit::None,
            peers: &[Peer::Vhost, Peer::GuestsPollers],
            slow: true,
            ..rate(
                "vhost-shared-cores",
                "60 B, two machines share a core and sleep; peers: three programs that poll",
                Some(10.0),
                shared,
            )
        },
        rate(
            "vhost-full",
            "60 B to a guest that receives none: the daemon's time for each",
            None,
            Work { traffic: Traffic::Overrun, ..shared },
        )
        .counts(Unit::Nanoseconds),
        rate("vhost-idle", "the daemon with an idle machine", Some(0.2), one(Traffic::Quiet))
            .counts(Unit::PercentCpu),
        rate(
            "vhost-resume",
            "from kill -9 of the daemon to the first frame",
            Some(100.0),
            one(Traffic::Resume),
        )
        .counts(Unit::Milliseconds),
    ]
}

/// Guests that QEMU emulates.
fn kernels() -> Vec<Scenario> {
    use Card::{E1000, E1000Csb, Ptnet, Virtio};
    use Exchange::{Datagrams, Echo, Stream};
    const fn over(theirs: Peer, times: f64) -> Ratio {
        Ratio { ours: None, theirs, times }
    }
    const BRIDGE: &[Peer] = &[Peer::BridgeRelay];
    const OWN_VIRTIO: &[Peer] = &[Peer::GuestsVirtio];
    const MORE: &[Ratio] = &[over(Peer::BridgeRelay, 1.2)];
    const SOONER: &[Ratio] = &[over(Peer::BridgeRelay, 0.9)];
    const MUCH_MORE: &[Ratio] = &[over(Peer::BridgeRelay, 1.5)];
    const NEARLY: &[Ratio] = &[over(Peer::GuestsVirtio, 0.9)];
    const AS_SOON: &[Ratio] = &[over(Peer::GuestsVirtio, 1.0)];
    let scenario = |name, what, (card, exchange), peers, ratios| {
        let work =
            Work { path: Path::Kernels(card, exchange), placement: Placement::APART, ..COPY };
        let unit = match exchange {
            Stream => Unit::Gbit,
            Datagrams => Unit::Kpps,
            Echo => Unit::Microseconds,
        };
        let limit = Limit::None;
        Scenario { unit, limit, peers, ratios, slow: true, ..rate(name, what, None, work) }
    };
    let udp = "UDP in 64 B frames between two guests, emulated by QEMU";
    let tcp = "one TCP stream between two guests, emulated by QEMU";
    let ping = "ping between two guests, emulated by QEMU";
    vec![
        scenario("vhost-udp", udp, (Virtio, Datagrams), BRIDGE, &[]),
        scenario("vhost-tcp", tcp, (Virtio, Stream), BRIDGE, MORE),
        scenario("vhost-ping", ping, (Virtio, Echo), BRIDGE, SOONER),
        scenario(
            "e1000-udp",
            "UDP in 64 B frames between two guests with an e1000",
            (E1000, Datagrams),
            BRIDGE,
            MUCH_MORE,
        ),
        scenario(
            "e1000-csb-udp",
            "the same with a communication status block",
            (E1000Csb, Datagrams),
            OWN_VIRTIO,
            NEARLY,
        ),
        scenario(
            "ptnet-tcp",
            "one TCP stream between two guests with a ptnet",
            (Ptnet, Stream),
            OWN_VIRTIO,
            NEARLY,
        ),
        scenario(
            "ptnet-ping",
            "ping between two guests with a ptnet",
            (Ptnet, Echo),
            OWN_VIRTIO,
            AS_SOON,
        ),
    ]
}

fn host() -> Vec<Scenario> {
    const fn over(theirs: Peer, times: f64) -> Ratio {
        Ratio { ours: None, theirs, times }
    }
    const TCP: &[Ratio] = &[over(Peer::BridgeVeth, 0.9), over(Peer::BridgeRelay, 1.5)];
    const SMALL: &[Ratio] = &[over(Peer::OvsUser, 2.0), over(Peer::BridgeVeth, 1.5)];
    const TAP: &[Ratio] = &[over(Peer::BareTap, 0.8)];
    let scenario = |name, what, path, peers, ratios| Scenario {
        limit: Limit::None,
        peers,
        ratios,
        slow: true,
        ..rate(name, what, None, Work { path, placement: Placement::APART, ..COPY })
    };
    let tcp = "one TCP stream (iperf3) between two namespaces, by TAPs";
    vec![
        Scenario {
            unit: Unit::Gbit,
            ..scenario(
                "host-tcp",
                tcp,
                Path::HostTcp,
                &[Peer::BridgeVeth, Peer::BridgeRelay] as &[_],
                TCP,
            )
        },
        scenario(
            "host-small",
            "60 B from one veth to another",
            Path::HostSmall,
            &[Peer::BridgeVeth, Peer::OvsUser],
            SMALL,
        ),
        scenario(
            "host-xdp",
            "60 B from one veth to another, by AF_XDP",
            Path::HostXdp,
            &[Peer::BridgeVeth, Peer::OvsUser],
            SMALL,
        ),
        scenario(
            "host-tap",
            "60 B from the host by a TAP to a port of shared memory",
            Path::HostTap,
            &[Peer::BareTap],
            TAP,
        ),
    ]
}

fn latency_and_rest() -> Vec<Scenario> {
    use Path::{Group, Isolated};
    vec![
        Scenario {
            peers: KERNEL,
            ..round_trip("rtt-asleep", "round trip, clients asleep", 8.5, Isolated, Wait::Asleep)
        },
        Scenario {
            peers: &[Peer::Bridge],
            ..round_trip(
                "rtt-group",
                "round trip in a trust group, clients asleep",
                3.6,
                Group,
                Wait::Asleep,
            )
        },
        round_trip("rtt-yield", "round trip, all yielding", 3.0, Isolated, Wait::Yield),
        Scenario {
            goal_far: Some(1.2),
            ..round_trip("rtt-spin", "round trip, all spinning", 0.3, Isolated, Wait::Spin)
        },
        quiet("idle-cpu", "the daemon with ten idle ports", 1.0, Unit::PercentCpu, Traffic::Quiet),
        quiet(
            "memory",
            "the daemon with ten idle ports, beyond the ports' own memory",
            30.0,
            Unit::Megabytes,
            Traffic::DaemonMemory,
        ),
        quiet("memory-port", "one default port", 6.0, Unit::Megabytes, Traffic::PortMemory),
    ]
}

/// What an operator does meanwhile, and what the defaults are worth.
fn operation() -> Vec<Scenario> {
    let with_ports =
        |traffic, idle_ports| Work { traffic, idle_ports, placement: Placement::ONE, ..COPY };
    let captured = Work { captured: true, ..COPY };
    let burst = |kpps, work| Work { traffic: Traffic::Burst(kpps), ..work };
    let offered = |work| Work { traffic: Traffic::Offered(1000), ..work };
    vec![
        rate(
            "scrape-1000",
            "a scrape of uvala metrics --listen, 1000 null ports",
            Some(20.0),
            with_ports(Traffic::Scrape, 1000),
        )
        .counts(Unit::Milliseconds),
        Scenario {
            slow: true,
            ..rate(
                "page-200",
                "uvala-http and the daemon with one viewer of 200 null ports, without the browser",
                Some(5.0),
                with_ports(Traffic::Page, 200),
            )
            .counts(Unit::PercentCpu)
        },
        rate(
            "restart-100",
            "longest pause of a flow during uvala daemon --replace, 100 native ports",
            Some(20.0),
            // The flow has two.
            with_ports(Traffic::Replace, 98),
        )
        .counts(Unit::Milliseconds),
        rate_lost(
            "capture-60",
            "rate lost of a million frames a second when uvala capture runs at their port, 60 B",
            5.0,
            offered(COPY),
            offered(captured),
        ),
        Scenario {
            goal: None,
            ..rate_lost(
                "capture-full",
                "rate lost of as many frames as go when uvala capture runs at their port, 60 B",
                0.0,
                COPY,
                captured,
            )
        },
        rate(
            "capture-missed",
            "what uvala capture loses of a million frames in a second, 60 B",
            Some(0.0),
            burst(Some(1000), captured),
        )
        .counts(Unit::PercentLost),
        rate(
            "burst-asleep",
            "what a receiver that sleeps loses of a million frames at once, 60 B",
            Some(1.0),
            burst(None, COPY),
        )
        .counts(Unit::PercentLost),
    ]
}

/// Many stations, and many hosts.
fn scale() -> Vec<Scenario> {
    let work = Work { placement: Placement::ONE, ..COPY };
    let of = |traffic| Work { traffic, ..work };
    let tunnel = |name, what, traffic| {
        let scenario = rate(name, what, None, Work { path: Path::Tunnel, ..of(traffic) });
        Scenario { slow: true, ..scenario.counts(Unit::Microseconds) }
    };
    vec![
        rate(
            "learn-1m",
            "a frame of a new station, of a million: the daemon's time",
            None,
            of(Traffic::Learn),
        )
        .counts(Unit::Nanoseconds),
        rate(
            "memory-1m",
            "the daemon with a million stations, beyond one with none",
            None,
            of(Traffic::StationsMemory),
        )
        .counts(Unit::Megabytes),
        tunnel(
            "vxlan-flood",
            "an ARP request that a vxlan port floods to 256 hosts: the daemon's time",
            Traffic::Flooded,
        ),
        tunnel(
            "vxlan-answer",
            "the same, which the port answers by neigh_suppress",
            Traffic::Answered,
        ),
    ]
}

/// The scenario of a name.
pub fn find(name: &str) -> Option<Scenario> {
    all().into_iter().find(|s| s.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::probe::Regime;

    #[test]
    fn test_all_promised_scenarios_exist_once() {
        let promised = [
            "copy-60",
            "copy-1514",
            "one-core-60",
            "one-core-1514",
            "untouched-60",
            "batch1",
            "sender-batch1",
            "group-60",
            "group-1514",
            "pipe",
            "pipe-60",
            "broadcast-8",
            "idle-48",
            "netmap-60",
            "netmap-60-touched",
            "netmap-poll",
            "vhost-60",
            "vhost-1514",
            "vhost-shared-cores",
            "vhost-idle",
            "vhost-udp",
            "vhost-tcp",
            "vhost-ping",
            "e1000-udp",
            "e1000-csb-udp",
            "ptnet-tcp",
            "ptnet-ping",
            "host-tcp",
            "host-small",
            "host-xdp",
            "host-tap",
            "vhost-resume",
            "rtt-asleep",
            "rtt-group",
            "rtt-spin",
            "idle-cpu",
            "memory",
            "scrape-1000",
            "page-200",
            "restart-100",
            "capture-60",
            "capture-full",
            "capture-missed",
            "burst-asleep",
            "learn-1m",
            "memory-1m",
            "vxlan-flood",
            "vxlan-answer",
        ];
        let names: Vec<_> = all().iter().map(|s| s.name).collect();
        for name in promised {
            assert!(names.contains(&name), "{name}");
        }
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    }

    #[test]
    fn test_goal_in_far_is_another_or_none() {
        let long = find("copy-1514").unwrap();
        assert_eq!(long.goal_in(Regime::Near), Some(18.0));
        assert_eq!(long.goal_in(Regime::Far), Some(13.0));
        assert!(long.work_in(Regime::Far).placement.one_core());
        assert_eq!(find("copy-60").unwrap().goal_in(Regime::Far), None);
        assert_eq!(find("one-core-60").unwrap().goal_in(Regime::OneCore), Some(85.0));
    }

    #[test]
    fn test_reaches_knows_which_way_is_better() {
        let rate = find("copy-60").unwrap();
        assert!(rate.reaches(121.0, 120.0) && !rate.reaches(119.0, 120.0));
        let trip = find("rtt-asleep").unwrap();
        assert!(trip.reaches(8.4, 8.5) && !trip.reaches(8.6, 8.5));
    }

    #[test]
    fn test_limit_crosses_cores_only_where_the_work_does() {
        for s in all() {
            let crosses = matches!(s.limit, Limit::Exchange | Limit::LineTrips(_));
            assert!(!(s.one_core() && crosses), "{}", s.name);
        }
    }
}
