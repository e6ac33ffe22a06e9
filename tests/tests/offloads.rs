//! Offloads between all kinds of ports: TCP between ports of all kinds, at two lengths of frames,
//! with stacks that look at each checksum which was not left to them.

use std::path::PathBuf;

use harness::daemon::Daemon;
use harness::machine::Machine;
use harness::net::{Namespace, ip, tcp, udp};
use harness::stack::Stack;
use harness::{lab, skip, wait};
use protocol::{HostIf, PortAdd, PortKind, PortRequest, PortSettings, Request};

const MEGABYTE: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Process,
    Tap,
    Packet,
    Xdp,
    Machine,
}

const KINDS: [Kind; 5] = [Kind::Process, Kind::Tap, Kind::Packet, Kind::Xdp, Kind::Machine];

/// All of them, but for AF_XDP where that cannot be had, which is said. Call it in a namespace.
fn kinds() -> Vec<Kind> {
    let mut kinds = KINDS.to_vec();
    let daemon = Daemon::start();
    ip("link add try type veth peer name tried");
    let tried = lab::add(&daemon, "vale0:try", PortKind::Xdp, HostIf::default());
    ip("link del try");
    if let Err(error) = tried {
        skip(&format!("root with AF_XDP is needed: {error}"));
        kinds.retain(|kind| *kind != Kind::Xdp);
    }
    kinds
}

/// A stack in a namespace of its own, behind a port.
struct Station {
    port: String,
    number: u8,
    namespace: Namespace,
    _stack: Option<Stack>,
}

impl Station {
    fn new(daemon: &Daemon, namespace: Namespace, kind: Kind, number: u8, mtu: u32) -> Self {
        let name = format!("p{number}");
        let port = format!("vale0:{name}");
        let add = |kind, host| {
            let (port, settings) = (port.parse().unwrap(), PortSettings::default());
            let add = PortAdd { port, kind, settings, host, machine: None, vxlan: None };
            daemon.call(Request::Port(PortRequest::Add(add.into()))).unwrap();
        };
        let stack = match kind {
            Kind::Process => Some(Stack::new(&namespace, daemon.open(&port))),
            Kind::Machine => {
                add(PortKind::VhostUser, None);
                let socket = daemon.port(&port).unwrap().machine.unwrap().socket;
                let machine = Machine::boot_unfinished(&PathBuf::from(socket));
                Some(Stack::new(&namespace, machine))
            }
            Kind::Tap => {
                let (ifname, netns) = (Some("eth0".to_owned()), Some(namespace.name()));
                let host = HostIf { ifname, netns, mtu: Some(mtu), ..HostIf::default() };
                add(PortKind::Tap, Some(host));
                None
            }
            Kind::Packet | Kind::Xdp => {
                let peer = format!("peer name eth0 netns {}", namespace.name());
                ip(&format!("link add name {name} type veth {peer}"));
                ip(&format!("link set {name} up mtu {mtu}"));
                namespace.ip("link set eth0 up");
                let kind = if kind == Kind::Xdp { PortKind::Xdp } else { PortKind::Packet };
                add(kind, Some(HostIf::default()));
                None
            }
        };
        namespace.ip(&format!("link set eth0 mtu {mtu}"));
        namespace.ip(&format!("addr add 10.0.0.{number}/24 dev eth0"));
        namespace.ip(&format!("addr add fd00::{number}/64 dev eth0 nodad"));
        Self { port, number, namespace, _stack: stack }
    }

    fn address(&self, v6: bool) -> String {
        if v6 { format!("fd00::{}", self.number) } else { format!("10.0.0.{}", self.number) }
    }
}

/// Two stations of each kind, all on one switch, all combinations of them.
fn matrix(mtu: u32) {
    let Some(home) = Namespace::new() else { return };
    let namespaces: Option<Vec<_>> = (0..2 * KINDS.len()).map(|_| Namespace::new()).collect();
    let Some(namespaces) = namespaces else { return };
    home.within(move || {
        let (kinds, daemon) = (kinds(), Daemon::start());
        let twice = kinds.iter().chain(&kinds).copied();
        let stations: Vec<_> = (1..)
            .zip(namespaces)
            .zip(twice)
            .map(|((number, namespace), kind)| Station::new(&daemon, namespace, kind, number, mtu))
            .collect();
        let (here, there) = stations.split_at(kinds.len());
        for from in here {
            for to in there {
                eprintln!("{} to {} and back", from.port, to.port);
                tcp(&from.namespace, &to.namespace, &to.address(false), MEGABYTE);
                tcp(&to.namespace, &from.namespace, &from.address(true), MEGABYTE);
                let datagram = mtu as usize - 100;
                from.namespace.within(|| udp(&to.namespace, &to.address(false), datagram));
            }
        }
        for station in &stations {
            let drops = daemon.stats(&station.port).drops;
            for why in ["offload", "too_long", "too_short"] {
                assert_eq!(drops.get(why), None, "{}: {drops:?}", station.port);
            }
        }
        // TAPs give and take runs, processes do not.
        let mean = |at: usize| {
            let tx = daemon.stats(&stations[at].port).tx;
            tx.bytes / tx.frames
        };
        assert!(mean(0) <= u64::from(mtu) + 18, "{}", mean(0));
    });
}

#[test]
fn all_kinds_of_ports_carry_tcp_at_1500() {
    matrix(1500);
}

#[test]
fn all_kinds_of_ports_carry_tcp_at_9000() {
    matrix(9000);
}

/// Headers with every field at its limits, in front of a broadcast: ports of every kind go on, and
/// what can be finished is right.
#[test]
fn headers_of_nonsense_cost_their_own_frames() {
    const LIMITS: [u16; 9] = [0, 1, 13, 14, 34, 54, 1448, 0x7fff, 0xffff];
    let Some(home) = Namespace::new() else { return };
    let namespaces: Option<Vec<_>> = KINDS.iter().map(|_| Namespace::new()).collect();
    let Some(namespaces) = namespaces else { return };
    home.within(move || {
        let (kinds, daemon) = (kinds(), Daemon::start());
        let stations: Vec<_> = (1..)
            .zip(namespaces)
            .zip(kinds)
            .map(|((number, namespace), kind)| Station::new(&daemon, namespace, kind, number, 1500))
            .collect();
        let add = |port: &str| {
            let (name, kind) = (port.parse().unwrap(), PortKind::VhostUser);
            let settings = PortSettings::default();
            let add =
                PortAdd { port: name, kind, settings, host: None, machine: None, vxlan: None };
            daemon.call(Request::Port(PortRequest::Add(add.into()))).unwrap();
            PathBuf::from(daemon.port(port).unwrap().machine.unwrap().socket)
        };
        let mut hostile = Machine::boot_unfinished(&add("vale0:hostile"));
        let run = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[8, 0, 0x45, 0, 0x0f, 0xd8], &[0; 30]];
        let mut run = run.concat();
        (run[23], run[46]) = (6, 0x50);
        run.resize(4070, 7);
        for frame in [&run[..], &run[..60], &run[..14]] {
            for (flags, gso) in
                [(0, 0), (1, 0), (1, 1), (1, 4), (1, 5), (3, 0x81), (0, 1), (1, 3), (0xff, 0xff)]
            {
                for (field, limit) in (1..5).flat_map(|f| LIMITS.map(|limit| (f, limit))) {
                    let mut header = [0; 12];
                    for (at, value) in [(1, 54), (2, 1448), (3, 34), (4, 16), (field, limit)] {
                        header[2 * at..2 * at + 2].copy_from_slice(&u16::to_ne_bytes(value));
                    }
                    (header[0], header[1]) = (flags, gso);
                    hostile.send_behind(header, frame);
                }
            }
        }
        assert!(!hostile.is_cut_off());
        let refused = || daemon.stats("vale0:hostile").drops.contains_key("offload");
        wait::until("a refusal", refused);
        for pair in stations.windows(2) {
            let (from, to) = (&pair[0], &pair[1]);
            tcp(&from.namespace, &to.namespace, &to.address(false), MEGABYTE / 4);
        }
    });
}
