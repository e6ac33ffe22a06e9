//! Regions of bound ports: which user pays for them, how much, and until when.

use proptest::prelude::*;
use protocol::{Bind, BindKind, MonitorOf};

use super::netmap::bind;
use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn join(port: &str, mem_id: u16) -> Bind {
    Bind { mem_id, ..bind(port) }
}

fn null(mem_id: u16) -> Bind {
    Bind { kind: BindKind::Null, mem_id, ..bind("netmap:any") }
}

fn monitor(port: &str, zero_copy: bool) -> Bind {
    Bind { kind: BindKind::Monitor(MonitorOf { tx: true, rx: true, zero_copy }), ..bind(port) }
}

impl Bench {
    fn with_memory(memory: u64) -> Self {
        let mut config = Config::default();
        config.quota.memory = memory;
        Self { control: Control::new(&config, Fake::default()) }
    }

    fn charges<const N: usize>(&self, uids: [u32; N]) -> [u64; N] {
        uids.map(|uid| self.control.state.memory_of(uid))
    }

    /// What the regions have that there are.
    fn in_regions(&self) -> u64 {
        self.control.datapath.regions.values().map(|region| region.parts.bytes()).sum()
    }

    fn delete(&mut self, port: &str) {
        self.done(&format!(r#"{{"port_del":{{"port":"{port}"}}}}"#));
    }

    fn interface_call(&mut self, uid: u32, what: &str) -> Result<Reply, Refusal> {
        self.ask(9, uid, &format!(r#"{{"interface_{what}":{{"port":"netmap:v0"}}}}"#))
    }
}

#[test]
fn test_who_makes_a_region_pays_for_all_of_it_and_who_joins_for_nothing() {
    let mut bench = Bench::new();
    let mem_id = bench.bind(1, 1000, "vale0:a").unwrap().mem_id;
    let all = bench.in_regions();
    assert!(all > GIB - MIB && all <= GIB, "{all}");
    assert_eq!(bench.charges([1000, 0]), [all, 0]);
    let greedy = Bind { extra_bufs: 1 << 20, ..bind("vale0:a") };
    let others = [
        greedy,
        join("vale0:b", mem_id),
        bind("vale0:a{1"),
        bind("vale0:a}1"),
        null(mem_id),
        monitor("vale0:a", true),
    ];
    for (conn, other) in (2..).zip(others) {
        let name = format!("{other:?}");
        bench.bind_as(conn, 1000, other).unwrap();
        assert_eq!(bench.charges([1000, 0]), [all, 0], "{name}");
    }
    // One that copies has a region of its own, and its user need not be the port's.
    bench.bind_as(8, 0, monitor("vale0:a", false)).unwrap();
    assert_eq!(bench.charges([1000, 0]), [all, bench.in_regions() - all]);
    bench.hang_up([8]);
    // The region is charged as long as anything is in it.
    bench.hang_up((1..6).chain([7]));
    assert_eq!(bench.charges([1000, 0]), [all, 0], "a null port");
    bench.hang_up([6]);
    assert_eq!(bench.charges([1000, 0]), [0, 0]);
    assert!(bench.is_empty());
}

#[test]
fn test_a_region_that_an_interface_keeps_is_paid_by_who_made_the_interface() {
    let mut bench = Bench::new();
    bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"mode":"666"}}}"#);
    bench.interface_call(1000, "add").unwrap();
    let all = bench.in_regions();
    assert_eq!(bench.charges([1000, 0]), [all, 0]);
    let bound = bench.bind(1, 0, "netmap:v0").unwrap();
    bench.bind_as(2, 0, join("vale0:b", bound.mem_id)).unwrap();
    bench.bind_as(3, 0, null(bound.mem_id)).unwrap();
    assert_eq!(bench.charges([1000, 0]), [all, 0], "another user's ports are in it");
    bench.hang_up([1]);
    bench.interface_call(1000, "del").unwrap();
    assert_eq!(bench.charges([1000, 0]), [all, 0], "and keep it");
    bench.hang_up([2]);
    assert_eq!(bench.charges([1000, 0]), [all, 0]);
    bench.hang_up([3]);
    assert_eq!(bench.charges([1000, 0]), [0, 0]);
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_regions_get_smaller_and_are_many() {
    let mut bench = Bench::new();
    let quota = Config::default().quota;
    let mut before = u64::MAX;
    for conn in 0..300 {
        let held = bench.charges([1000])[0];
        bench.bind(conn, 1000, &format!("vale0:p{conn}")).unwrap();
        let size = bench.charges([1000])[0] - held;
        assert!(size <= before && size >= 8 * MIB, "{conn}: {size}");
        before = size;
    }
    assert!(bench.charges([1000])[0] <= quota.memory);
    bench.hang_up(0..300);
    assert!(bench.is_empty());
}

#[test]
fn test_a_region_has_what_its_first_port_needs_or_is_refused() {
    // A sixteenth of 10 MiB is less than a port takes: the region has room for two such ports.
    for (quota, expected) in [(10 * MIB, 8..10 * MIB), (6 * MIB, 4 * MIB..5 * MIB)] {
        let mut bench = Bench::with_memory(quota);
        bench.bind(1, 1000, "vale0:a").unwrap();
        assert!(expected.contains(&bench.in_regions()), "{}", bench.in_regions());
        let refused = bench.bind(2, 1000, "vale0:b").unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Quota);
        assert_eq!(bench.charges([1000])[0], bench.in_regions(), "nothing is left of it");
        // What is there can be joined.
        bench.bind(2, 1000, "vale0:a").unwrap();
        bench.hang_up([1, 2]);
        assert!(bench.is_empty());
    }
    let mut bench = Bench::with_memory(4 * MIB);
    let refused = bench.bind(1, 1000, "vale0:a").unwrap_err().to_string();
    assert!(refused.contains("more than one user may have in all: 4.0 MiB"), "{refused}");
    // A pipe and its parent come together, or not at all; so do extra buffers, but for these.
    let mut bench = Bench::with_memory(12 * MIB);
    assert_eq!(bench.bind(1, 1000, "vale0:a{1").unwrap_err().code(), ErrorCode::Quota);
    assert!(bench.is_empty());
    bench.bind_as(1, 1000, Bind { extra_bufs: 1 << 20, ..bind("vale0:a") }).unwrap();
    assert!((11 * MIB..=12 * MIB).contains(&bench.in_regions()));
    bench.hang_up([1]);
    for refused in [null(1), monitor("vale0:a", false)] {
        let mut bench = Bench::with_memory(9 * MIB);
        bench.bind_as(1, 1000, Bind { extra_bufs: 5000, ..bind("vale0:a") }).unwrap();
        let refused = Bind { extra_bufs: 100, tx_rings: Some(2), rx_rings: Some(2), ..refused };
        let refused = Bind { tx_slots: Some(1024), rx_slots: Some(1024), ..refused };
        assert_eq!(bench.bind_as(2, 1000, refused).unwrap_err().code(), ErrorCode::Quota);
        bench.hang_up([1]);
        assert!(bench.is_empty());
    }
    let mut bench = Bench::with_memory(4 * MIB);
    assert_eq!(bench.interface_call(1000, "add").unwrap_err().code(), ErrorCode::Quota);
    assert!(bench.is_empty());
}

#[test]
fn test_a_programs_own_memory_bounds_its_region() {
    let room = |mib| Some(protocol::Room { bytes: mib * MIB, stride: 2048 });
    let own = |port, mib| Bind { room: room(mib), ..bind(port) };
    let mut bench = Bench::with_memory(100 * MIB);
    assert_eq!(bench.bind_as(1, 1000, own("vale0:a", 3)).unwrap_err().code(), ErrorCode::NoMemory);
    bench.bind_as(1, 1000, own("vale0:a", 60)).unwrap();
    assert!((59 * MIB..=60 * MIB).contains(&bench.in_regions()));
    bench.bind_as(2, 1000, own("vale0:b", 60)).unwrap();
    assert!((99 * MIB..=100 * MIB).contains(&bench.in_regions()), "what the quota has");
    assert_eq!(bench.bind_as(3, 1000, own("vale0:c", 60)).unwrap_err().code(), ErrorCode::Quota);
    bench.hang_up([1, 2]);
    assert!(bench.is_empty());
}

/// As many as a quota allows, each in a region that its client keeps when the port is deleted.
#[test]
fn test_regions_of_deleted_ports_count_until_their_clients_let_go() {
    let mut bench = Bench::with_memory(20 * MIB);
    let mut kept = Vec::new();
    for conn in 0..100 {
        match bench.bind(conn, 0, "vale0:a") {
            Ok(_) => kept.push(conn),
            Err(refused) => {
                let text = refused.to_string();
                assert!(text.contains("until the programs that had them close"), "{text}");
                break;
            }
        }
        bench.delete("vale0:a");
        assert_eq!(bench.charges([0]), [0]);
    }
    assert_eq!(kept.len(), 2, "of 8.8 MiB each");
    bench.bind(101, 1000, "vale1:a").unwrap();
    bench.hang_up(kept);
    bench.bind(100, 0, "vale0:a").unwrap();
    bench.hang_up([100, 101]);
    assert!(bench.is_empty());
}

#[test]
fn test_of_a_region_that_stays_nothing_is_left_and_all_when_it_goes() {
    let mut bench = Bench::with_memory(14 * MIB);
    let mem_id = bench.bind(1, 0, "vale0:a").unwrap().mem_id;
    let other = bench.bind_as(2, 0, join("vale0:b", mem_id));
    other.unwrap();
    bench.delete("vale0:a");
    // Nothing of it is counted twice: what is not in the region can be had.
    let rest = r#"{"attach":{"port":"vale1:c"}}"#;
    bench.ask(3, 0, rest).unwrap();
    bench.hang_up([2, 3]);
    // The first client has all of the region, though its port went before.
    assert_eq!(bench.charges([0]), [0]);
    let refused = bench.bind(4, 0, "vale0:d").unwrap_err().to_string();
    assert!(refused.contains("until the programs that had them close"), "{refused}");
    bench.ask(3, 0, rest).unwrap();
    bench.hang_up([1, 3]);
    bench.bind(4, 0, "vale0:d").unwrap();
    bench.hang_up([4]);
    assert!(bench.is_empty());
}

#[test]
fn test_a_full_region_says_what_to_do() {
    let region = |bench: &Bench| {
        let port = bench.control.state.shared(&"vale0:a".parse().unwrap()).unwrap();
        port.region.clone()
    };
    let mut bench = Bench::with_memory(10 * MIB);
    bench.bind(1, 1000, "vale0:a").unwrap();
    let full = || std::io::Error::from(std::io::ErrorKind::StorageFull).into();
    let refused = crate::control::netmap::regions::refused(full(), &region(&bench));
    assert_eq!(refused.code(), ErrorCode::NoMemory);
    let text = refused.to_string();
    assert!(text.starts_with("memory region 2 has no room for this in its 8."), "{text}");
    bench.hang_up([1]);
}

proptest! {
    /// Whatever is bound and closed in whatever order: each region is paid for once.
    #[test]
    fn test_each_region_is_paid_for_once_by_its_user(
        steps in proptest::collection::vec((0u64..6, 0usize..7, 0u8..9), 0..60),
    ) {
        let names =
            ["vale0:a", "vale0:b", "vale1:a", "vale0:a{1", "vale0:a}1", "netmap:v0", "netmap:v0{x"];
        let mut bench = Bench::with_memory(100 * MIB);
        for (conn, name, what) in steps {
            let (name, uid) = (names[name], [0, 1000][(conn % 2) as usize]);
            match what {
                0 => bench.hang_up([conn]),
                1 => drop(bench.bind_as(conn, uid, null(1))),
                2 => drop(bench.bind_as(conn, uid, monitor(name, conn < 3))),
                3 => drop(bench.bind_as(conn, uid, join(name, 1))),
                4 => drop(bench.bind_as(conn, uid, join(name, 2))),
                5 => drop(bench.interface_call(uid, if conn < 4 { "add" } else { "del" })),
                6 => drop(bench.ask(9, 0, &format!(r#"{{"port_del":{{"port":"{name}"}}}}"#))),
                _ => drop(bench.bind(conn, uid, name)),
            }
            let charges = bench.charges([0, 1000]);
            prop_assert_eq!(charges.iter().sum::<u64>(), bench.in_regions());
            prop_assert!(charges.iter().all(|charge| *charge <= 100 * MIB));
        }
        bench.hang_up(0..6);
        drop(bench.ask(9, 0, r#"{"port_del":{"port":"netmap:v0"}}"#));
        prop_assert!(bench.is_empty());
        prop_assert_eq!((bench.charges([0, 1000]), bench.in_regions()), ([0, 0], 0));
    }
}
