//! Null ports and monitors: which users may have them, and that nothing stays behind.

use protocol::{
    Bind, BindKind, Bound, BoundRings, CaptureOf, DropsOf, MonitorOf, RingChoice, SessionRequest,
};

use super::*;

const RX: MonitorOf = MonitorOf { tx: false, rx: true, zero_copy: false };
const ALL: MonitorOf = MonitorOf { tx: true, rx: true, zero_copy: false };
const ZERO_COPY: MonitorOf = MonitorOf { tx: true, rx: true, zero_copy: true };

fn monitor(port: &str, of: MonitorOf) -> Bind {
    Bind { kind: BindKind::Monitor(of), ..Bind::new(port.parse().unwrap()) }
}

fn null(mem_id: u16) -> Bind {
    let port = "netmap:any".parse().unwrap();
    Bind { kind: BindKind::Null, mem_id, ..Bind::new(port) }
}

impl Bench {
    pub(super) fn bind_unswitched(
        &mut self,
        conn: u64,
        uid: u32,
        bind: Bind,
    ) -> Result<Bound, ErrorCode> {
        match self.answer(conn, uid, Request::Session(SessionRequest::Bind(bind))) {
            Ok((Reply::Bound(bound), _)) => Ok(bound),
            Ok(_) => panic!("another answer"),
            Err(refusal) => Err(refusal.code()),
        }
    }

    fn plain(&mut self, conn: u64, uid: u32, port: &str) -> Bound {
        self.bind_unswitched(conn, uid, Bind::new(port.parse().unwrap())).unwrap()
    }

    fn leave(&mut self, conns: impl IntoIterator<Item = u64>) {
        conns.into_iter().for_each(|conn| self.control.hang_up(ConnKey(conn)));
    }
}

#[test]
fn test_a_monitor_has_a_region_of_its_own_and_a_zero_copy_one_its_ports() {
    let mut bench = Bench::new();
    assert_eq!(bench.bind_unswitched(2, 1000, monitor("vale0:a", RX)), Err(ErrorCode::BadRequest));
    assert!(bench.is_empty(), "nothing was made to look at");
    let rings =
        Bind { tx_rings: Some(3), rx_rings: Some(2), ..Bind::new("vale0:a".parse().unwrap()) };
    let a = bench.bind_unswitched(1, 1000, rings).unwrap();
    let copies = bench.bind_unswitched(2, 1000, monitor("vale0:a", ALL)).unwrap();
    assert_ne!(copies.mem_id, a.mem_id);
    assert_eq!((copies.attached.tx_rings, copies.attached.rx_rings), (1, 3));
    assert_eq!(copies.rx, BoundRings { first: 0, count: 3 });
    assert_eq!(
        bench.bind_unswitched(3, 1000, monitor("vale0:a", ZERO_COPY)).unwrap().mem_id,
        a.mem_id
    );
    let one = Bind { rings: RingChoice::One(2), ..monitor("vale0:a", ALL) };
    assert_eq!(bench.bind_unswitched(4, 1000, one).unwrap().rx, BoundRings { first: 2, count: 1 });
    let none = Bind { rings: RingChoice::One(3), ..monitor("vale0:a", ALL) };
    assert_eq!(bench.bind_unswitched(5, 1000, none), Err(ErrorCode::BadRequest));
    // One descriptor, one thing; it can be asked what it is.
    assert_eq!(bench.bind_unswitched(2, 1000, monitor("vale0:a", RX)), Err(ErrorCode::InUse));
    let Reply::Bound(again) = bench.ask(2, 1000, r#""resume""#).unwrap() else { panic!() };
    assert_eq!(again, copies);
    bench.leave([1]);
    assert_eq!(bench.bind_unswitched(1, 1000, monitor("vale0:a", RX)), Err(ErrorCode::BadRequest));
    bench.leave(2..5);
    assert!(bench.is_empty());
}

#[test]
fn test_only_the_ports_user_and_root_monitor_it() {
    let mut bench = Bench::new();
    bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"mode":"666"}}}"#);
    bench.plain(1, 1000, "vale0:a");
    bench.attach(2, 1000, "vale0:native").unwrap();
    for port in ["vale0:a", "vale0:native"] {
        assert_eq!(
            bench.bind_unswitched(3, 1001, monitor(port, RX)),
            Err(ErrorCode::Permission),
            "{port}"
        );
        bench.bind_unswitched(3, 0, monitor(port, RX)).unwrap();
        bench.leave([3]);
        bench.bind_unswitched(3, 1000, monitor(port, RX)).unwrap();
        bench.leave([3]);
    }
    // Root sees what passes, and not the memory.
    assert_eq!(
        bench.bind_unswitched(3, 0, monitor("vale0:a", ZERO_COPY)),
        Err(ErrorCode::Permission)
    );
    let native = bench.bind_unswitched(3, 1000, monitor("vale0:native", ZERO_COPY));
    assert_eq!(native, Err(ErrorCode::Unsupported));
    bench.leave([1, 2]);
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_a_null_port_lives_in_a_region_that_is_its_users() {
    let mut bench = Bench::new();
    assert_eq!(bench.bind_unswitched(1, 1000, null(0)), Err(ErrorCode::BadRequest));
    assert_eq!(bench.bind_unswitched(1, 1000, null(99)), Err(ErrorCode::BadRequest));
    let a = bench.plain(1, 1000, "vale0:a");
    assert_eq!(bench.bind_unswitched(2, 1001, null(a.mem_id)), Err(ErrorCode::Permission));
    assert_eq!(bench.bind_unswitched(2, 0, null(a.mem_id)), Err(ErrorCode::Permission));
    let rings = Bind { tx_rings: Some(10), tx_slots: Some(100), ..null(a.mem_id) };
    let null_port = bench.bind_unswitched(2, 1000, rings).unwrap();
    let Bound { attached, mem_id, tx, rx, .. } = null_port;
    assert_eq!((mem_id, tx.count, rx.count), (a.mem_id, 10, 0));
    assert_eq!((attached.tx_rings, attached.rx_rings, attached.tx_slots), (10, 0, 100));
    // It keeps the region, and the common one is had by it alone.
    bench.leave([1]);
    let join = Bind { mem_id: a.mem_id, ..Bind::new("vale1:b".parse().unwrap()) };
    assert_eq!(bench.bind_unswitched(3, 1000, join).unwrap().mem_id, a.mem_id);
    let common = bench.bind_unswitched(4, 1000, null(1)).unwrap().mem_id;
    assert_eq!(bench.bind_unswitched(5, 1000, null(1)).unwrap().mem_id, common);
    assert_ne!(bench.bind_unswitched(6, 1001, null(1)).unwrap().mem_id, common);
    let many = Bind { rx_rings: Some(65), ..null(1) };
    assert_eq!(bench.bind_unswitched(7, 1000, many), Err(ErrorCode::NoMemory));
    bench.leave(2..7);
    assert!(bench.is_empty());
}

#[test]
fn test_what_is_refused_leaves_nothing_and_all_is_counted() {
    let mut config = Config::default();
    config.quota.ports = 2;
    let mut bench = Bench { control: Control::new(&config, Fake::default()) };
    for step in 0..3 {
        bench.control.datapath.fails_after = Some(step);
        assert_eq!(bench.bind_unswitched(1, 1000, null(1)), Err(ErrorCode::NoMemory));
        assert!(bench.is_empty(), "step {step}");
    }
    bench.control.datapath.fails_after = None;
    bench.plain(1, 1000, "vale0:a");
    bench.bind_unswitched(2, 1000, monitor("vale0:a", RX)).unwrap();
    assert_eq!(bench.bind_unswitched(3, 1000, monitor("vale0:a", RX)), Err(ErrorCode::Quota));
    assert_eq!(bench.bind_unswitched(3, 1000, null(1)), Err(ErrorCode::Quota));
    bench.leave([2]);
    bench.bind_unswitched(3, 1000, null(1)).unwrap();
    bench.leave([1, 3]);
    assert!(bench.is_empty());
}

#[test]
fn test_a_capture_is_for_those_that_have_the_port_or_may_attach_to_it_by_name() {
    let mut bench = Bench::new();
    let of = CaptureOf { entering: true, leaving: true };
    let capture =
        |port: &str| Bind { kind: BindKind::Capture(of), ..Bind::new(port.parse().unwrap()) };
    bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"mode":"666"}}}"#);
    bench.attach(1, 1000, "vale0:a").unwrap();
    bench.done(r#"{"port_add":{"port":"vale0:null","kind":"null"}}"#);
    let bound = bench.bind_unswitched(2, 1000, capture("vale0:a")).unwrap();
    assert_eq!((bound.attached.tx_rings, bound.attached.rx_rings), (1, 1));
    assert_eq!(bench.ask(2, 1000, r#""missed""#).unwrap(), Reply::Missed(7));
    for port in ["vale0:a", "vale0:null"] {
        assert_eq!(bench.bind_unswitched(3, 1001, capture(port)), Err(ErrorCode::Permission));
        bench.bind_unswitched(3, 0, capture(port)).unwrap();
        bench.control.hang_up(ConnKey(3));
    }
    bench.done(r#"{"port_add":{"port":"vale0:shm","kind":"shm","settings":{"mode":"666"}}}"#);
    bench.attach(5, 1000, "vale0:shm").unwrap();
    bench.bind_unswitched(3, 1001, capture("vale0:shm")).unwrap();
    for (port, code) in [("vale0:gone", ErrorCode::NotFound), ("vale1:a", ErrorCode::NotFound)] {
        assert_eq!(bench.bind_unswitched(4, 0, capture(port)), Err(code), "{port}");
    }
    bench.done(r#"{"port_add":{"port":"vale0:idle","kind":"shm"}}"#);
    bench.bind_unswitched(4, 0, capture("vale0:idle")).expect("it waits for a client");
    let before = bench.control.datapath.resumed.len();
    bench.attach(5, 0, "vale0:idle").unwrap();
    assert_eq!(bench.control.datapath.resumed.len(), before + 1);
}

#[test]
fn test_a_capture_goes_on_with_the_next_client_of_a_permanent_port_if_its_user_may_see_that_one() {
    let mut bench = Bench::new();
    let kind = BindKind::Capture(CaptureOf { entering: true, leaving: true });
    let capture = |port: &str| Bind { kind, ..Bind::new(port.parse().unwrap()) };
    bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"mode":"666"}}}"#);
    bench.done(r#"{"port_add":{"port":"vale0:p","kind":"shm"}}"#);
    bench.done(r#"{"port_set":{"port":"vale0:p","settings":{"mode":"666"}}}"#);
    bench.attach(1, 1000, "vale0:p").unwrap();
    bench.attach(2, 1000, "vale0:e").unwrap();
    bench.bind_unswitched(3, 1000, capture("vale0:p")).unwrap();
    bench.bind_unswitched(4, 1000, capture("vale0:e")).unwrap();
    let key = |bench: &Bench, conn| bench.control.state.unswitched_of(ConnKey(conn)).unwrap().key;
    let [stays, ends] = [3, 4].map(|conn| key(&bench, conn));
    bench.control.datapath.resumed.clear();
    bench.leave([1, 2]);
    let fake = &mut bench.control.datapath;
    assert_eq!((&fake.ended_captures[..], &fake.resumed[..]), (&[ends][..], &[][..]));
    bench.attach(1, 1001, "vale0:p").unwrap();
    let fake = &mut bench.control.datapath;
    assert_eq!((fake.ended_captures.len(), &fake.resumed[..]), (1, &[stays][..]));
    bench.leave([1]);
    bench.done(r#"{"port_set":{"port":"vale0:p","settings":{"mode":"600"}}}"#);
    bench.attach(1, 0, "vale0:p").unwrap();
    assert!(bench.control.datapath.ended_captures.contains(&stays), "it is another user's");
    bench.leave(1..5);
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_a_capture_ends_when_the_switch_is_closed_to_its_user_or_given_to_another() {
    let mut bench = Bench::new();
    let kind = BindKind::Capture(CaptureOf { entering: true, leaving: true });
    let capture = |port: &str| Bind { kind, ..Bind::new(port.parse().unwrap()) };
    let set = |settings: &str| {
        format!(r#"{{"switch_set":{{"switch":"vale0","settings":{{{settings}}}}}}}"#)
    };
    bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"mode":"666","owner":1000}}}"#);
    bench.done(r#"{"port_add":{"port":"vale0:p","kind":"shm","settings":{"mode":"666"}}}"#);
    bench.attach(1, 1001, "vale0:p").unwrap();
    bench.attach(2, 1001, "vale0:e").unwrap();
    // The user of a port, the switch's owner, and one that may attach to the port.
    bench.bind_unswitched(3, 1001, capture("vale0:e")).unwrap();
    bench.bind_unswitched(4, 1000, capture("vale0:e")).unwrap();
    bench.bind_unswitched(5, 1002, capture("vale0:p")).unwrap();
    let key = |bench: &Bench, conn| bench.control.state.unswitched_of(ConnKey(conn)).unwrap().key;
    let [users, owners, others] = [3, 4, 5].map(|conn| key(&bench, conn));
    bench.control.datapath.resumed.clear();
    bench.done(&set(r#""age_s":9"#));
    let fake = &bench.control.datapath;
    assert!(fake.ended_captures.is_empty() && fake.resumed.is_empty(), "nothing of that");
    bench.done(&set(r#""mode":"644""#));
    assert_eq!(bench.control.datapath.ended_captures, [others]);
    bench.done(&set(r#""owner":1003"#));
    let ended = &bench.control.datapath.ended_captures;
    assert!(ended.contains(&owners) && !ended.contains(&users), "{ended:?}");
    bench.leave(1..6);
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_a_capture_ends_with_its_port_also_while_no_client_has_it() {
    let mut bench = Bench::new();
    let kind = BindKind::Capture(CaptureOf { entering: true, leaving: true });
    bench.done(r#"{"port_add":{"port":"vale0:p","kind":"shm"}}"#);
    bench.attach(1, 0, "vale0:p").unwrap();
    bench.bind_unswitched(2, 0, Bind { kind, ..Bind::new("vale0:p".parse().unwrap()) }).unwrap();
    bench.leave([1]);
    assert!(bench.control.datapath.ended_captures.is_empty());
    bench.done(r#"{"port_del":{"port":"vale0:p"}}"#);
    assert_eq!(bench.control.datapath.ended_captures.len(), 1);
    bench.leave([2]);
    assert!(bench.is_empty());
}

fn drops(switch: &str) -> Bind {
    let kind = BindKind::Drops(DropsOf { reason: Some("vlan".parse().unwrap()) });
    Bind { kind, ..Bind::new(format!("{switch}:d").parse().unwrap()) }
}

#[test]
fn test_drops_are_for_those_that_may_change_the_switch() {
    let mut bench = Bench::new();
    bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"mode":"666","owner":1000}}}"#);
    let all = r#"{"switch_add":{"switch":"vale1","settings":{"workers":"all","owner":1000}}}"#;
    bench.done(all);
    // The user of a port sees the frames of its port, not those of others.
    bench.attach(1, 1001, "vale0:a").unwrap();
    assert_eq!(bench.bind_unswitched(2, 1001, drops("vale0")), Err(ErrorCode::Permission));
    bench.bind_unswitched(4, 1000, drops("vale1")).unwrap();
    assert_eq!(bench.bind_unswitched(2, 0, drops("vale2")), Err(ErrorCode::NotFound));
    bench.bind_unswitched(2, 1000, drops("vale0")).unwrap();
    bench.bind_unswitched(3, 0, drops("vale0")).unwrap();
    assert_eq!(bench.ask(2, 1000, r#""missed""#).unwrap(), Reply::Missed(7));
    let key = bench.control.state.unswitched_of(ConnKey(2)).unwrap().key;
    bench.done(r#"{"switch_set":{"switch":"vale0","settings":{"age_s":9}}}"#);
    assert!(bench.control.datapath.ended_captures.is_empty());
    bench.done(r#"{"switch_set":{"switch":"vale0","settings":{"owner":1001}}}"#);
    assert_eq!(bench.control.datapath.ended_captures, [key], "root may see them still");
    bench.leave(1..5);
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
    bench.done(r#"{"switch_del":{"switch":"vale1"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_the_end_of_a_pipe_without_a_switch_is_neither_captured_nor_traced() {
    let mut bench = Bench::new();
    let kind = BindKind::Capture(CaptureOf { entering: true, leaving: true });
    bench.attach(1, 0, "vale0:a{1").unwrap();
    let capture = Bind { kind, ..Bind::new("vale0:a{1".parse().unwrap()) };
    let capture = Request::Session(SessionRequest::Bind(capture));
    let trace = r#"{"trace":{"port":"vale0:a{1","head":"0200","bytes":2}}"#;
    for request in [capture, serde_json::from_str(trace).unwrap()] {
        let refusal = bench.answer(2, 0, request).unwrap_err();
        assert_eq!(refusal.code(), ErrorCode::Unsupported);
        assert!(refusal.to_string().contains("pass no switch"), "{refusal}");
    }
    bench.leave([1, 2]);
    assert!(bench.is_empty());
}
