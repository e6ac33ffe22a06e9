//! Ports of netmap programs: permissions, and that nothing stays behind.

use proptest::prelude::*;
use protocol::{Bind, Bound, BoundRings, PortGeometry, RingChoice, SessionRequest};

use super::*;

impl Bench {
    pub(super) fn bind(&mut self, conn: u64, uid: u32, port: &str) -> Result<Bound, Refusal> {
        self.bind_as(conn, uid, Bind::new(port.parse().unwrap()))
    }

    pub(super) fn bind_as(&mut self, conn: u64, uid: u32, bind: Bind) -> Result<Bound, Refusal> {
        let (reply, fds) = self.answer(conn, uid, Request::Session(SessionRequest::Bind(bind)))?;
        let Reply::Bound(bound) = reply else { panic!("another answer") };
        assert_eq!(fds.len(), 3);
        Ok(bound)
    }

    /// Binds, up to what has to be built.
    fn begin(&mut self, conn: u64, bind: Bind) -> Build {
        match self.control.call(&mut client(conn, 0), Request::Session(SessionRequest::Bind(bind)))
        {
            Step::Build(build) => build,
            Step::Answer(answer) => panic!("{answer:?}"),
            Step::Save => unreachable!("nothing is kept"),
        }
    }

    fn bind_refused(&mut self, conn: u64, uid: u32, bind: Bind) -> ErrorCode {
        self.bind_as(conn, uid, bind).unwrap_err().code()
    }

    pub(super) fn hang_up(&mut self, conns: impl IntoIterator<Item = u64>) {
        conns.into_iter().for_each(|conn| self.control.hang_up(ConnKey(conn)));
    }
}

pub(super) fn bind(port: &str) -> Bind {
    Bind::new(port.parse().unwrap())
}

fn one_ring(port: &str, ring: u16, exclusive: bool) -> Bind {
    let rings = RingChoice::One(ring);
    Bind { tx_rings: Some(4), rx_rings: Some(2), rings, exclusive, ..bind(port) }
}

#[test]
fn test_a_port_has_many_holders_and_goes_with_the_last() {
    let mut bench = Bench::new();
    let first = bench.bind(1, 1000, "vale0:a").unwrap();
    let second = bench.bind(2, 1000, "vale0:a").unwrap();
    assert_eq!(first.mem_id, second.mem_id);
    assert_ne!(first.nifp, second.nifp);
    assert_eq!(first.tx, BoundRings { first: 0, count: 1 });
    let Reply::Port(info) = bench.ask(0, 0, r#"{"port_show":{"port":"vale0:a"}}"#).unwrap() else {
        panic!("another answer")
    };
    assert_eq!((info.client.unwrap().name.as_str(), info.number), ("test 1", Some(3)));
    bench.hang_up([1]);
    assert!(!bench.is_empty());
    bench.hang_up([2]);
    assert!(bench.is_empty());
}

#[test]
fn test_what_is_built_is_taken_and_unseen_and_may_be_shared() {
    for port in ["vale0:a", "vale0:a{1", "netmap:a{1"] {
        let mut bench = Bench::new();
        let [first, second] = [1, 2].map(|conn| bench.begin(conn, bind(port)));
        assert_eq!(bench.bind_refused(1, 0, bind("vale0:b")), ErrorCode::InUse);
        let alone = Bind { exclusive: true, ..bind(port) };
        assert_eq!(bench.bind_refused(3, 0, alone), ErrorCode::InUse);
        let show = format!(r#"{{"port_show":{{"port":"{port}"}}}}"#);
        assert_eq!(bench.refused(9, 0, &show).0, ErrorCode::NotFound);
        assert!(bench.ask(9, 0, r#"{"stats":{}}"#).is_ok());
        // In another order than they were asked in.
        bench.finish(2, second()).unwrap();
        assert!(bench.ask(9, 0, &show).is_ok());
        bench.finish(1, first()).unwrap();
        bench.hang_up([1, 2]);
        assert!(bench.is_empty());
    }
}

#[test]
fn test_who_leaves_while_it_is_built_leaves_nothing() {
    for port in ["vale0:a", "vale0:a{1"] {
        let mut bench = Bench::new();
        let _build = bench.begin(1, bind(port));
        bench.hang_up([1]);
        assert!(bench.is_empty());
        let build = bench.begin(1, bind(port));
        bench.done(&format!(r#"{{"port_del":{{"port":"{port}"}}}}"#));
        let refusal = bench.finish(1, build()).unwrap_err();
        assert_eq!(refusal.code(), ErrorCode::NotFound);
        bench.hang_up([1]);
        assert!(bench.is_empty());
        bench.control.datapath.build_fails = true;
        assert_eq!(bench.bind_refused(1, 0, bind(port)), ErrorCode::NoMemory);
        assert!(bench.is_empty());
    }
}

#[test]
fn test_a_connection_binds_once_and_can_be_asked_what() {
    let mut bench = Bench::new();
    assert_eq!(bench.refused(1, 1000, r#""resume""#).0, ErrorCode::NotFound);
    let bound = bench.bind(1, 1000, "vale0:a").unwrap();
    assert_eq!(bench.bind_refused(1, 1000, bind("vale0:b")), ErrorCode::InUse);
    assert_eq!(bench.ask(1, 1000, r#""resume""#).unwrap(), Reply::Bound(bound));
    assert_eq!(bench.refused(2, 1000, r#""resume""#).0, ErrorCode::NotFound);
    bench.hang_up([1]);
    assert!(bench.is_empty());
}

#[test]
fn test_rings_are_picked_as_netmap_picks_them() {
    let mut bench = Bench::new();
    let rings = |first, count| BoundRings { first, count };
    let bound = bench.bind_as(1, 0, one_ring("vale0:a", 3, false)).unwrap();
    assert_eq!((bound.tx, bound.rx), (rings(3, 1), rings(0, 1)), "there are fewer to receive");
    let tx_only = Bind { tx_only: true, ..bind("vale0:a") };
    let bound = bench.bind_as(2, 0, tx_only).unwrap();
    assert_eq!((bound.tx, bound.rx), (rings(0, 4), rings(0, 0)));
    let rx_only = Bind { rx_only: true, ..bind("vale0:a") };
    let bound = bench.bind_as(3, 0, rx_only).unwrap();
    assert_eq!((bound.tx, bound.rx), (rings(0, 0), rings(0, 2)));
    let beyond = one_ring("vale0:a", 4, false);
    assert_eq!(bench.bind_refused(4, 0, beyond), ErrorCode::BadRequest);
    assert_eq!(bench.bind_refused(4, 0, one_ring("vale0:new", 4, false)), ErrorCode::BadRequest);
    bench.hang_up([1, 2, 3]);
    assert!(bench.is_empty());
}

#[test]
fn test_an_exclusive_ring_has_one_holder() {
    let mut bench = Bench::new();
    bench.bind_as(1, 0, one_ring("vale0:a", 0, true)).unwrap();
    assert_eq!(bench.bind_refused(2, 0, one_ring("vale0:a", 0, false)), ErrorCode::InUse);
    assert_eq!(bench.bind_refused(2, 0, bind("vale0:a")), ErrorCode::InUse);
    bench.bind_as(2, 0, one_ring("vale0:a", 1, false)).unwrap();
    assert_eq!(bench.bind_refused(3, 0, one_ring("vale0:a", 1, true)), ErrorCode::InUse);
    bench.hang_up([1]);
    bench.bind_as(1, 0, one_ring("vale0:a", 0, false)).unwrap();
    bench.hang_up([1, 2]);
    assert!(bench.is_empty());
}

#[test]
fn test_a_port_is_attached_or_bound_and_never_both() {
    let mut bench = Bench::new();
    bench.attach(1, 1000, "vale0:a").unwrap();
    bench.bind(2, 1000, "vale0:b").unwrap();
    assert_eq!(bench.bind_refused(3, 1000, bind("vale0:a")), ErrorCode::InUse);
    assert_eq!(bench.bind_refused(3, 1000, bind("vale0:a{1")), ErrorCode::InUse);
    assert_eq!(bench.attach(3, 1000, "vale0:b").unwrap_err().code(), ErrorCode::InUse);
    bench.attach(4, 1000, "vale0:c{1").unwrap();
    assert_eq!(bench.bind_refused(3, 1000, bind("vale0:c{1")), ErrorCode::InUse);
    assert_eq!(bench.bind_refused(3, 1000, bind("vale0:c}1")), ErrorCode::InUse);
    bench.bind(5, 1000, "vale0:d{1").unwrap();
    for port in ["vale0:d", "vale0:d{1", "vale0:d}1"] {
        assert_eq!(bench.attach(6, 1000, port).unwrap_err().code(), ErrorCode::InUse, "{port}");
    }
    bench.done(r#"{"port_add":{"port":"vale0:sink","kind":"null"}}"#);
    assert_eq!(bench.bind_refused(7, 0, bind("vale0:sink")), ErrorCode::Unsupported);
    bench.done(r#"{"port_del":{"port":"vale0:sink"}}"#);
    bench.hang_up(1..8);
    assert!(bench.is_empty());
}

#[test]
fn test_regions_are_joined_by_number_by_processes_of_one_user() {
    let mut bench = Bench::new();
    let a = bench.bind(1, 1000, "vale0:a").unwrap();
    let join = |port, mem_id| Bind { mem_id, ..bind(port) };
    assert_eq!(bench.bind_as(2, 1000, join("vale0:b", a.mem_id)).unwrap().mem_id, a.mem_id);
    assert_ne!(bench.bind(3, 1000, "vale0:c").unwrap().mem_id, a.mem_id);
    assert_eq!(bench.bind_refused(4, 1000, join("vale0:d", 999)), ErrorCode::BadRequest);
    assert_eq!(bench.bind_refused(4, 1000, join("vale0:c", a.mem_id)), ErrorCode::BadRequest);
    assert_eq!(bench.bind_refused(4, 1001, join("vale9:d", a.mem_id)), ErrorCode::Permission);
    bench.hang_up([1]);
    bench.bind_as(1, 1000, join("vale0:a", a.mem_id)).unwrap();
    let common = bench.bind_as(5, 1000, join("vale0:e", 1)).unwrap().mem_id;
    assert_eq!(bench.bind_as(6, 1000, join("vale0:f", 1)).unwrap().mem_id, common);
    assert_ne!(bench.bind_as(7, 1001, join("vale7:g", 1)).unwrap().mem_id, common);
    bench.hang_up(1..8);
    assert!(bench.is_empty());
}

#[test]
fn test_strangers_share_neither_port_nor_pipe() {
    let mut bench = Bench::new();
    bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"mode":"666"}}}"#);
    bench.bind(1, 1000, "vale0:a").unwrap();
    bench.bind(2, 1000, "vale0:p{x").unwrap();
    for port in ["vale0:a", "vale0:a{1", "vale0:p", "vale0:p{x", "vale0:p}x", "vale0:p{y"] {
        assert_eq!(bench.bind_refused(3, 1001, bind(port)), ErrorCode::Permission, "{port}");
    }
    bench.hang_up([1, 2]);
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_a_persistent_port_keeps_its_settings_and_not_its_region() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:a","settings":{"isolated":true}}}"#);
    bench.bind(1, 0, "vale0:a").unwrap();
    assert!(bench.control.datapath.ports.values().all(|(_, config)| config.isolated));
    bench.hang_up([1]);
    assert!(bench.control.datapath.ports.is_empty());
    bench.attach(1, 0, "vale0:a").unwrap();
    bench.hang_up([1]);
    bench.bind(1, 0, "vale0:a").unwrap();
    bench.done(r#"{"port_del":{"port":"vale0:a"}}"#);
    assert!(bench.is_empty(), "with its holder");
    assert_eq!(bench.refused(1, 0, r#""resume""#).0, ErrorCode::NotFound);
    bench.hang_up([1]);
}

#[test]
fn test_a_pipe_makes_its_parent_and_takes_it_along() {
    let mut bench = Bench::new();
    let master = bench.bind(1, 1000, "vale0:a{left").unwrap();
    let slave = bench.bind(2, 1000, "vale0:a}left").unwrap();
    assert_eq!(master.mem_id, slave.mem_id);
    // The parent, two ends, and the switch between them.
    let count =
        |bench: &Bench| (bench.control.datapath.ports.len(), bench.control.datapath.switches.len());
    assert_eq!(count(&bench), (3, 2));
    let parent = bench.bind(3, 1000, "vale0:a").unwrap();
    assert_eq!(parent.mem_id, master.mem_id);
    bench.hang_up([1, 3]);
    assert_eq!(count(&bench), (3, 2), "the slave is held");
    bench.bind(1, 1000, "vale0:a{left").unwrap();
    bench.hang_up([1, 2]);
    assert!(bench.is_empty());
}

#[test]
fn test_a_parent_that_is_deleted_takes_its_pipes_along() {
    let mut bench = Bench::new();
    bench.bind(1, 0, "vale0:a").unwrap();
    bench.bind(2, 0, "vale0:a{1").unwrap();
    bench.bind(3, 0, "vale0:a}2").unwrap();
    bench.bind(4, 0, "vale0:ab").unwrap();
    bench.done(r#"{"port_del":{"port":"vale0:a}1"}}"#);
    assert_eq!(bench.refused(2, 0, r#""resume""#).0, ErrorCode::NotFound);
    bench.ask(3, 0, r#""resume""#).unwrap();
    bench.done(r#"{"port_del":{"port":"vale0:a"}}"#);
    assert_eq!(bench.refused(3, 0, r#""resume""#).0, ErrorCode::NotFound);
    bench.bind(2, 0, "vale0:b{1").unwrap();
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_pipes_are_as_many_as_asked_for() {
    let mut bench = Bench::new();
    for pipe in 0..500 {
        bench.bind(2 * pipe, 0, &format!("vale0:a{{{pipe}")).unwrap();
        bench.bind(2 * pipe + 1, 0, &format!("vale0:a}}{pipe}")).unwrap();
    }
    assert_eq!(bench.control.datapath.ports.len(), 1001);
    bench.hang_up(0..1000);
    assert!(bench.is_empty());
}

#[test]
fn test_one_end_of_a_pipe_receives_what_the_other_sends() {
    let mut bench = Bench::new();
    let asked = Bind { tx_rings: Some(3), rx_slots: Some(64), ..bind("vale0:a{1") };
    let master = bench.bind_as(1, 0, asked).unwrap().attached;
    let slave = bench.bind(2, 0, "vale0:a}1").unwrap().attached;
    assert_eq!((master.tx_rings, master.rx_rings), (3, 1));
    assert_eq!((slave.tx_rings, slave.rx_rings), (1, 3));
    assert_eq!((slave.tx_slots, slave.rx_slots), (64, 1024));
    bench.hang_up([1, 2]);
    assert!(bench.is_empty());
}

#[test]
fn test_whatever_the_workers_refuse_nothing_is_left() {
    for port in ["vale0:a", "vale0:a{1"] {
        let mut refused = 0;
        for step in 0.. {
            let mut bench = Bench::new();
            bench.control.datapath.fails_after = Some(step);
            match bench.bind(1, 0, port) {
                Err(refusal) => assert_eq!(refusal.code(), ErrorCode::NoMemory),
                Ok(_) => break,
            }
            assert!(bench.is_empty(), "{port}, step {step}");
            bench.bind(1, 0, port).unwrap();
            bench.hang_up([1]);
            assert!(bench.is_empty());
            refused += 1;
        }
        assert!(refused >= 3, "{port}: {refused} steps");
    }
}

#[test]
fn test_memory_and_ports_are_counted() {
    let mut config = Config::default();
    config.quota.ports = 4;
    let mut bench = Bench { control: Control::new(&config, Fake::default()) };
    bench.bind(1, 1000, "vale0:a{1").unwrap();
    assert_eq!(bench.bind_refused(2, 1000, bind("vale0:a{2")), ErrorCode::Quota);
    assert_eq!(bench.control.state.counts().1, 3, "not half a pipe");
    bench.bind(2, 1000, "vale0:b").unwrap();
    bench.hang_up([1, 2]);
    config.quota.memory = 6 << 20;
    let mut bench = Bench { control: Control::new(&config, Fake::default()) };
    bench.bind(1, 1000, "vale0:a").unwrap();
    let refused = bench.bind(3, 1000, "vale0:b").unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Quota);
    assert!(refused.to_string().contains("MiB (quota.memory); close other ports"), "{refused}");
    bench.hang_up([1]);
    assert!(bench.is_empty());
}

#[test]
fn test_sizes_are_those_of_the_port_that_is_or_would_be() {
    let mut bench = Bench::new();
    let sizes = |bench: &mut Bench, text: &str| -> PortGeometry {
        match bench.ask(9, 0, &format!(r#"{{"port_geometry":{text}}}"#)).unwrap() {
            Reply::PortGeometry(geometry) => geometry,
            _ => panic!("another answer"),
        }
    };
    let planned = sizes(&mut bench, r#"{"port":"vale0:a","tx_rings":500,"tx_slots":1}"#);
    assert_eq!((planned.tx_rings, planned.tx_slots, planned.rx_slots), (64, 8, 1024));
    assert!(bench.is_empty(), "nothing was made");
    let asked = Bind { tx_slots: Some(100), ..bind("vale0:a") };
    let mem_id = bench.bind_as(1, 0, asked).unwrap().mem_id;
    let real = sizes(&mut bench, r#"{"port":"vale0:a"}"#);
    assert_eq!((real.mem_id, real.tx_slots), (mem_id, 100));
    let region = sizes(&mut bench, &format!(r#"{{"mem_id":{mem_id}}}"#));
    assert_eq!((region.mem_id, region.tx_rings), (mem_id, 0));
    assert_eq!(sizes(&mut bench, "{}").mem_id, 1);
    let unknown = bench.refused(9, 0, r#"{"port_geometry":{"mem_id":99}}"#);
    assert_eq!(unknown.0, ErrorCode::BadRequest);
    bench.hang_up([1]);
}

proptest! {
    /// Whatever is bound, attached and closed in whatever order, nothing is left at the end.
    #[test]
    fn test_nothing_is_left_when_everybody_left(
        steps in proptest::collection::vec((0u64..5, 0usize..7, 0u8..4), 0..80),
    ) {
        let names = [
            "vale0:a", "vale0:b", "vale1:a", "vale0:a{1", "vale0:a}1", "vale0:a{x", "vale0:b}1",
        ];
        let mut bench = Bench::new();
        for (conn, name, what) in steps {
            let name = names[name];
            match what {
                0 => bench.hang_up([conn]),
                1 => drop(bench.attach(conn, 1000, name)),
                2 => drop(bench.bind(conn, 1000, name)),
                _ => {
                    let delete = format!(r#"{{"port_del":{{"port":"{name}"}}}}"#);
                    drop(bench.ask(9, 0, &delete));
                }
            }
            let held = bench.control.datapath.bound.values().map(|port| port.holders.len());
            prop_assert!(held.sum::<usize>() <= 5);
        }
        bench.hang_up(0..5);
        prop_assert!(bench.is_empty());
    }
}
