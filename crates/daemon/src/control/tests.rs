//! Calls and their answers, on workers that move no frame.

mod chains;
mod closings;
mod events;
mod followers;
mod grants;
mod groups;
mod hand_over;
mod host;
mod interfaces;
mod leases;
mod log;
mod mirrors;
mod moves;
mod multipart;
mod netmap;
mod programs;
mod quotas;
mod regions;
mod roles;
mod save;
mod stalls;
mod unswitched;
mod visits;
mod vxlan;

use protocol::{
    Attach, Counter, ErrorCode, PortInfo, PortList, PortRequest, PortSet, PortSettings,
    SessionRequest, StatsQuery, SwitchRequest, SwitchSettings, SwitchSpec,
};

use super::fake::Fake;
use super::refusal::QuotaRefusal;
use super::*;
use crate::model::policy::Process;
use protocol::Mode;

/// A control plane and callers by number of connection.
struct Bench {
    control: Control<Fake>,
}

fn client(conn: u64, uid: u32) -> Client {
    let groups = Vec::new();
    let process = Process::Number(1);
    let caller = Caller { pid: 1, process, uid, gid: uid, groups, privileged: uid == 0 };
    Client { conn: ConnKey(conn), caller, name: format!("test {conn}") }
}

impl Bench {
    fn new() -> Self {
        Self { control: Control::new(&Config::default(), Fake::default()) }
    }

    /// Answers a call, and builds what has to be built.
    fn answer(&mut self, conn: u64, uid: u32, request: Request) -> Answer {
        let step = self.control.call(&mut client(conn, uid), request);
        self.follow(conn, step)
    }

    fn follow(&mut self, conn: u64, mut step: Step) -> Answer {
        loop {
            match step {
                Step::Answer(answer) => return answer,
                Step::Build(build) => step = self.control.finish(ConnKey(conn), build()),
                Step::Save => unreachable!("nothing is kept"),
            }
        }
    }

    /// Answers a client whose port was built.
    fn finish(&mut self, conn: u64, built: std::io::Result<()>) -> Answer {
        let step = self.control.finish(ConnKey(conn), built);
        self.follow(conn, step)
    }

    /// Reserves a port whose client waits for it.
    fn reserve(&mut self, conn: u64, port: &str) -> Build {
        let attach = Request::Session(SessionRequest::Attach(Attach::new(port.parse().unwrap())));
        match self.control.call(&mut client(conn, 0), attach) {
            Step::Build(build) => build,
            Step::Answer(answer) => panic!("{answer:?}"),
            Step::Save => unreachable!("nothing is kept"),
        }
    }

    fn ask(&mut self, conn: u64, uid: u32, text: &str) -> Result<Reply, Refusal> {
        let request = serde_json::from_str(text).expect(text);
        self.answer(conn, uid, request).map(|(reply, _)| reply)
    }

    fn done(&mut self, text: &str) {
        assert_eq!(self.ask(0, 0, text).expect(text), Reply::Done);
    }

    fn refused(&mut self, conn: u64, uid: u32, text: &str) -> (ErrorCode, String) {
        let refusal = self.ask(conn, uid, text).expect_err(text);
        let message = refusal.to_string();
        assert!(!message.contains('\n'), "{message}");
        (refusal.code(), message)
    }

    fn attach(&mut self, conn: u64, uid: u32, port: &str) -> Result<Reply, Refusal> {
        self.ask(conn, uid, &format!(r#"{{"attach":{{"port":"{port}"}}}}"#))
    }

    fn is_empty(&self) -> bool {
        let fake = &self.control.datapath;
        let nothing = fake.ports.is_empty() && fake.switches.is_empty() && fake.pipes.is_empty();
        let nothing = nothing && fake.kept.is_empty() && fake.bound.is_empty();
        let nothing =
            nothing && fake.reserved.is_empty() && self.control.pending.building.is_empty();
        assert_eq!(nothing, self.control.state.counts() == (0, 0));
        nothing
    }
}

#[test]
fn test_attach_answers_with_geometry_and_three_descriptors() {
    let mut bench = Bench::new();
    let attach = Attach { tx_slots: Some(64), ..Attach::new("vale0:a".parse().unwrap()) };
    let answer = bench.answer(1, 1000, Request::Session(SessionRequest::Attach(attach)));
    let (Reply::Attached(geometry), fds) = answer.unwrap() else { panic!("another answer") };
    assert_eq!((geometry.tx_slots, geometry.rx_slots, fds.len()), (64, 1024, 3));
    bench.control.hang_up(ConnKey(1));
    assert!(bench.is_empty());
}

#[test]
fn test_out_of_memory_leaves_nothing_behind() {
    for port in ["vale0:a", "vale0:a{1"] {
        // The switch itself, the port or the pipe, the end of the pipe.
        for refuse_at in 0..2 {
            let mut bench = Bench::new();
            if refuse_at == 1 {
                bench.done(r#"{"switch_add":{"switch":"vale0"}}"#);
            }
            bench.control.datapath.out_of_memory = true;
            let refusal = bench.attach(1, 0, port).unwrap_err();
            assert_eq!(refusal.code(), ErrorCode::NoMemory);
            if refuse_at == 1 {
                bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
            }
            assert!(bench.is_empty());
        }
    }
}

#[test]
fn test_memory_that_cannot_be_built_leaves_nothing_behind() {
    for port in ["vale0:a", "vale0:a{1"] {
        let mut bench = Bench::new();
        bench.control.datapath.build_fails = true;
        assert_eq!(bench.attach(1, 0, port).unwrap_err().code(), ErrorCode::NoMemory);
        assert!(bench.is_empty());
    }
}

#[test]
fn test_a_port_that_is_built_is_taken_and_unseen_and_others_are_answered() {
    for port in ["vale0:a", "vale0:a{1"] {
        let mut bench = Bench::new();
        let build = bench.reserve(1, port);
        assert_eq!(bench.attach(2, 0, port).unwrap_err().code(), ErrorCode::InUse);
        let show = format!(r#"{{"port_show":{{"port":"{port}"}}}}"#);
        let unseen = bench.ask(9, 0, &show).unwrap_err();
        assert_eq!(unseen.code(), ErrorCode::NotFound, "to the caller it does not exist");
        bench.ask(9, 0, r#"{"stats":{}}"#).unwrap();
        bench.attach(3, 0, "vale0:b").unwrap();
        assert!(matches!(bench.finish(1, build()), Ok((Reply::Attached(_), _))));
        let Reply::Port(info) = bench.ask(9, 0, &show).unwrap() else { panic!("another answer") };
        assert!(info.memory > 0 && info.client.is_some());
        bench.control.hang_up(ConnKey(1));
        bench.control.hang_up(ConnKey(3));
        assert!(bench.is_empty());
    }
}

#[test]
fn test_a_client_that_leaves_before_its_port_is_built_leaves_nothing_behind() {
    for port in ["vale0:a", "vale0:a{1"] {
        let mut bench = Bench::new();
        let _build = bench.reserve(1, port);
        bench.control.hang_up(ConnKey(1));
        assert!(bench.is_empty());
    }
}

#[test]
fn test_a_port_that_is_deleted_before_it_is_built_is_not_attached() {
    let mut bench = Bench::new();
    let build = bench.reserve(1, "vale0:a");
    bench.done(r#"{"port_set":{"port":"vale0:a","settings":{"isolated":true}}}"#);
    bench.done(r#"{"port_del":{"port":"vale0:a"}}"#);
    bench.attach(2, 0, "vale0:a").unwrap();
    let refusal = bench.finish(1, build()).unwrap_err();
    assert_eq!(refusal.code(), ErrorCode::NotFound);
    bench.control.hang_up(ConnKey(1));
    assert_eq!(bench.control.state.counts(), (1, 1), "the other one's stays");
    bench.control.hang_up(ConnKey(2));
    assert!(bench.is_empty());
}

#[test]
fn test_settings_that_change_while_a_port_is_built_are_those_it_gets() {
    let mut bench = Bench::new();
    let build = bench.reserve(1, "vale0:a");
    bench.done(r#"{"port_set":{"port":"vale0:a","settings":{"isolated":true}}}"#);
    bench.finish(1, build()).unwrap();
    let (_, config) = bench.control.datapath.ports.values().next().unwrap();
    assert!(config.isolated);
}

#[test]
fn test_a_region_that_cannot_be_is_refused_as_such() {
    let mut bench = Bench::new();
    let (code, text) = bench.refused(
        1,
        0,
        r#"{"attach":{"port":"vale0:a","tx_rings":64,
        "rx_rings":64,"tx_slots":16384,"rx_slots":16384}}"#,
    );
    assert_eq!(code, ErrorCode::BadRequest);
    assert!(text.contains("more than 4 GiB"), "{text}");
    assert!(bench.is_empty());
}

#[test]
fn test_persistent_switch_and_port_keep_settings_and_stay() {
    let mut bench = Bench::new();
    bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"forwarding":"hub","age_s":7}}}"#);
    bench.done(r#"{"port_add":{"port":"vale0:a","settings":{"vlan":"access:7"}}}"#);
    bench.attach(1, 0, "vale0:a").unwrap();
    bench.done(r#"{"port_set":{"port":"vale0:a","settings":{"isolated":true}}}"#);
    let (_, config) = bench.control.datapath.ports.values().next().unwrap();
    assert!(config.isolated && config.vlan.to_string() == "access:7");
    bench.control.hang_up(ConnKey(1));
    assert!(bench.control.datapath.ports.is_empty());
    let Reply::Port(info) = bench.ask(0, 0, r#"{"port_show":{"port":"vale0:a"}}"#).unwrap() else {
        panic!("another answer")
    };
    assert!(info.persistent && info.client.is_none());
    assert_eq!(info.settings.vlan, "access:7".parse().ok());
    let show = r#"{"switch_show":{"switch":"vale0"}}"#;
    let Reply::Switch(info) = bench.ask(0, 0, show).unwrap() else { panic!("another answer") };
    assert_eq!((info.forwarding.as_str(), info.age_s, info.ports), ("hub", 7, 1));
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_null_port_is_served_and_not_attached() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:sink","kind":"null"}}"#);
    assert_eq!(bench.attach(1, 0, "vale0:sink").unwrap_err().code(), ErrorCode::Unsupported);
    bench.done(r#"{"port_del":{"port":"vale0:sink"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_refusals_have_codes_and_say_what_to_do() {
    let mut bench = Bench::new();
    bench.attach(1, 1000, "vale0:a").unwrap();
    let (code, text) = bench.refused(2, 1000, r#"{"attach":{"port":"vale0:a"}}"#);
    assert_eq!(code, ErrorCode::InUse);
    assert!(text.contains("taken by process 1"), "{text}");
    let (code, text) = bench.refused(2, 1001, r#"{"attach":{"port":"vale0:b"}}"#);
    assert_eq!(code, ErrorCode::Permission);
    assert!(text.contains("uvala switch set vale0 --group GROUP --mode 660"), "{text}");
    for (text, expected) in [
        (r#"{"switch_show":{"switch":"vale9"}}"#, ErrorCode::NotFound),
        (r#"{"port_del":{"port":"vale0:x"}}"#, ErrorCode::NotFound),
        (r#"{"detach":{"port":"vale0:a"}}"#, ErrorCode::NotFound),
        (r#"{"port_add":{"port":"vale0:a"}}"#, ErrorCode::Exists),
        (r#"{"port_add":{"port":"vale0:a{1"}}"#, ErrorCode::Unsupported),
        (r#"{"attach":{"port":"vale0:b","tx_rings":99}}"#, ErrorCode::BadRequest),
        (r#"{"attach":{"port":"vale0:b","group":"a b"}}"#, ErrorCode::BadRequest),
        (r#"{"attach":{"port":"vale0:b","group":"a{1"}}"#, ErrorCode::BadRequest),
        (r#"{"attach":{"port":"vale0:b{1","group":"a"}}"#, ErrorCode::Unsupported),
        (r#"{"attach":{"port":"vale0:b","existing":true}}"#, ErrorCode::NotFound),
        (r#"{"port_set":{"port":"vale0:a","settings":{"mac_lock":"?"}}}"#, ErrorCode::BadRequest),
        (r#"{"fdb_add":{"port":"vale0:a","mac":"ff:00:00:00:00:01"}}"#, ErrorCode::BadRequest),
        (r#"{"fdb_del":{"switch":"vale0","mac":"02:00:00:00:00:01"}}"#, ErrorCode::NotFound),
        (r#"{"fdb_list":{"switch":"vale0","from":"x"}}"#, ErrorCode::BadRequest),
        (r#"{"port_list":{"from":"x"}}"#, ErrorCode::BadRequest),
    ] {
        assert_eq!(bench.refused(3, 1000, text).0, expected, "{text}");
    }
    assert_eq!(bench.control.state.counts(), (1, 1));
}

#[test]
fn test_addresses_of_all_switches_of_a_user_are_bounded() {
    let mut bench = Bench::new();
    let largest = 1 << 20;
    let add = |i| {
        format!(
            r#"{{"switch_add":{{"switch":"vale{i}","settings":{{"fdb_capacity":{largest}}}}}}}"#
        )
    };
    for i in 0..63 {
        bench.ask(1, 1000, &add(i)).unwrap();
    }
    let set = |i, n| {
        format!(r#"{{"switch_set":{{"switch":"vale{i}","settings":{{"fdb_capacity":{n}}}}}}}"#)
    };
    bench.ask(1, 1000, r#"{"switch_add":{"switch":"vale63"}}"#).unwrap();
    let (code, text) = bench.refused(1, 1000, &add(64));
    assert_eq!(code, ErrorCode::Quota);
    assert!(text.contains("quota.addresses"), "{text}");
    bench.ask(1, 1000, &set(63, largest)).unwrap();
    assert_eq!(bench.attach(1, 1000, "vale64:a").unwrap_err().code(), ErrorCode::Quota);
    bench.ask(1, 1000, &set(63, 1000)).unwrap();
    bench.attach(1, 1000, "vale64:a").unwrap();
    bench.attach(2, 1001, "vale65:a").unwrap();
}

#[test]
fn test_strangers_see_nothing_of_a_private_switch() {
    let mut bench = Bench::new();
    bench.attach(1, 1000, "vale0:a").unwrap();
    let mut seen = |uid: u32| {
        let Reply::Ports(ports) = bench.ask(9, uid, r#"{"port_list":{}}"#).unwrap() else {
            panic!("another answer")
        };
        let Reply::Stats(stats) = bench.ask(9, uid, r#"{"stats":{}}"#).unwrap() else {
            panic!("another answer")
        };
        let list = bench.ask(9, uid, r#"{"switch_list":{}}"#).unwrap();
        let Reply::Switches(switches) = list else { panic!("another answer") };
        (ports.items.len(), stats.items.len(), switches.items.len())
    };
    assert_eq!(seen(1000), (1, 1, 1));
    assert_eq!(seen(1001), (0, 0, 0));
    assert_eq!(seen(0), (1, 1, 1));
}

#[test]
fn test_a_persistent_port_keeps_its_counters_and_a_pipe_has_none() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:a"}}"#);
    bench.attach(1, 0, "vale0:p{1").unwrap();
    bench.control.datapath.counted = Counter { frames: 5, bytes: 300 };
    let sent = |bench: &mut Bench| {
        let Reply::Stats(stats) = bench.ask(9, 0, r#"{"stats":{}}"#).unwrap() else {
            panic!("another answer")
        };
        stats.items.iter().map(|row| row.tx.frames).collect::<Vec<_>>()
    };
    for before in [0, 5, 10] {
        assert_eq!(sent(&mut bench), [before]);
        bench.attach(2, 0, "vale0:a").unwrap();
        assert_eq!(sent(&mut bench), [before + 5]);
        bench.control.hang_up(ConnKey(2));
    }
}

#[test]
fn test_pages_go_on_until_everything_was_listed() {
    let mut bench = Bench::new();
    bench.done(r#"{"switch_add":{"switch":"vale0"}}"#);
    for i in 0..1000 {
        let text = format!(r#"{{"port_add":{{"port":"vale0:p{i}"}}}}"#);
        bench.done(&text);
    }
    let (mut seen, mut pages, mut from) = (Vec::new(), 0, None);
    loop {
        let list = Request::Port(PortRequest::List(PortList { from, ..PortList::default() }));
        let (reply, _) = bench.answer(0, 0, list).unwrap();
        assert!(serde_json::to_vec(&reply).unwrap().len() < protocol::MAX_MESSAGE);
        let Reply::Ports(page) = reply else { panic!("another answer") };
        seen.extend(page.items.into_iter().map(|info| info.port));
        pages += 1;
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert!(pages > 1 && seen.len() == 1000 && seen.is_sorted());
}

/// The ports of a page, and where the next one begins.
fn listed(bench: &mut Bench, call: &str) -> (Vec<PortInfo>, Option<String>) {
    match bench.ask(0, 0, call).unwrap() {
        Reply::Ports(page) => (page.items, page.next),
        other => panic!("{other:?}"),
    }
}

#[test]
fn test_a_brief_list_has_of_the_settings_only_the_labels() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:a","settings":{"label":"web","isolated":true}}}"#);
    let (all, _) = listed(&mut bench, r#"{"port_list":{}}"#);
    let (brief, _) = listed(&mut bench, r#"{"port_list":{"brief":true}}"#);
    assert_eq!(all[0].settings.isolated, Some(true));
    let settings = PortSettings { label: Some("web".to_owned()), ..PortSettings::default() };
    assert_eq!(brief, [PortInfo { settings, ..all[0].clone() }]);
}

#[test]
fn test_a_list_of_a_switch_begins_with_its_first_port_and_ends_with_its_last() {
    let mut bench = Bench::new();
    for port in ["vale0:a", "vale1:a", "vale1:b", "vale2:a"] {
        bench.done(&format!(r#"{{"port_add":{{"port":"{port}"}}}}"#));
    }
    let mut names = |call: &str| -> Vec<String> {
        let (items, _) = listed(&mut bench, call);
        items.into_iter().map(|info| info.port.to_string()).collect()
    };
    assert_eq!(names(r#"{"port_list":{"switch":"vale1"}}"#), ["vale1:a", "vale1:b"]);
    assert_eq!(names(r#"{"port_list":{"switch":"vale1","from":"vale0:a"}}"#).len(), 2);
    assert_eq!(names(r#"{"port_list":{"switch":"vale1","from":"vale1:b"}}"#), ["vale1:b"]);
    assert_eq!(names(r#"{"port_list":{"from":"vale1:b"}}"#), ["vale1:b", "vale2:a"]);
}

#[test]
fn test_pages_of_counters_have_each_port_with_its_own() {
    let mut bench = Bench::new();
    for i in 0..500 {
        bench.done(&format!(r#"{{"port_add":{{"port":"vale0:p{i}"}}}}"#));
        if i % 3 == 0 {
            bench.attach(1, 0, &format!("vale0:p{i}")).unwrap();
        }
    }
    bench.control.datapath.counted = Counter { frames: 5, bytes: 300 };
    let (mut seen, mut pages, mut query) = (Vec::new(), 0, StatsQuery::default());
    while pages == 0 || query.from.is_some() {
        let call = Request::Port(PortRequest::Stats(query.clone()));
        let Reply::Stats(page) = bench.answer(0, 0, call).unwrap().0 else { panic!() };
        seen.extend(page.items);
        (pages, query.from) = (pages + 1, page.next);
    }
    assert!(pages > 1 && seen.len() == 500 && seen.is_sorted_by_key(|row| row.port.clone()));
    for row in seen {
        let number: u32 = row.port.port()[1..].parse().unwrap();
        assert_eq!(row.tx.frames, if number.is_multiple_of(3) { 5 } else { 0 }, "{}", row.port);
    }
}

#[test]
fn test_addresses_are_added_listed_and_forgotten() {
    let mut bench = Bench::new();
    bench.attach(1, 0, "vale0:a").unwrap();
    for i in 0..300u16 {
        let [high, low] = i.to_be_bytes();
        let mac = packet::MacAddr::new([2, 0, 0, 0, high, low]);
        bench.done(&format!(r#"{{"fdb_add":{{"port":"vale0:a","mac":"{mac}","vlan":5}}}}"#));
    }
    let list = r#"{"fdb_list":{"switch":"vale0"}}"#;
    let Reply::Fdb(page) = bench.ask(0, 0, list).unwrap() else { panic!("another answer") };
    assert_eq!((page.items.len(), page.next.as_deref()), (256, Some("256")));
    assert_eq!((page.items[0].vlan, page.items[0].is_static), (5, true));
    let rest = r#"{"fdb_list":{"switch":"vale0","from":"256"}}"#;
    let Reply::Fdb(page) = bench.ask(0, 0, rest).unwrap() else { panic!("another answer") };
    assert_eq!((page.items.len(), page.next), (44, None));
    bench.done(r#"{"fdb_del":{"switch":"vale0","mac":"02:00:00:00:00:01","vlan":5}}"#);
    bench.done(r#"{"fdb_flush":{"switch":"vale0","port":"vale0:a"}}"#);
    assert_eq!(bench.control.datapath.fdb.len(), 0);
}

impl Bench {
    /// The listed addresses, with the ports behind which they are.
    fn addresses(&mut self) -> Vec<String> {
        let list = r#"{"fdb_list":{"switch":"vale0"}}"#;
        let Reply::Fdb(page) = self.ask(0, 0, list).unwrap() else { panic!("another answer") };
        assert!(page.items.iter().all(|entry| entry.is_static));
        page.items.iter().map(|e| format!("{} {} {}", e.mac, e.vlan, e.port)).collect()
    }
}

#[test]
fn test_static_addresses_stay_while_their_port_does() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:a","settings":{"isolated":true}}}"#);
    bench.done(r#"{"fdb_add":{"port":"vale0:a","mac":"02:00:00:00:00:01","vlan":7}}"#);
    for _ in 0..2 {
        assert_eq!(bench.addresses(), ["02:00:00:00:00:01 7 vale0:a"]);
        let (_, config) = bench.control.datapath.ports.values().next().unwrap();
        assert!(config.isolated && !config.unicast_flood && !config.broadcast_flood);
        bench.attach(1, 0, "vale0:a").unwrap();
        assert_eq!(bench.control.datapath.ports.len(), 1, "the stand-in is gone");
        let (_, config) = bench.control.datapath.ports.values().next().unwrap();
        assert!(config.isolated && config.unicast_flood);
        assert_eq!(bench.addresses(), ["02:00:00:00:00:01 7 vale0:a"]);
        bench.control.hang_up(ConnKey(1));
    }
    bench.done(r#"{"port_set":{"port":"vale0:a","settings":{"isolated":false}}}"#);
    let (_, config) = bench.control.datapath.ports.values().next().unwrap();
    assert!(!config.isolated && !config.unicast_flood);
    bench.done(r#"{"port_del":{"port":"vale0:a"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_static_address_moves_to_another_port_and_is_deleted_there() {
    let mut bench = Bench::new();
    bench.done(r#"{"switch_add":{"switch":"vale0"}}"#);
    for port in ["a", "b"] {
        bench.done(&format!(r#"{{"port_add":{{"port":"vale0:{port}"}}}}"#));
        bench
            .done(&format!(r#"{{"fdb_add":{{"port":"vale0:{port}","mac":"02:00:00:00:00:01"}}}}"#));
    }
    assert_eq!(bench.addresses(), ["02:00:00:00:00:01 1 vale0:b"]);
    let small = r#"{"switch_set":{"switch":"vale0","settings":{"fdb_capacity":1}}}"#;
    bench.done(small);
    let one_more = r#"{"fdb_add":{"port":"vale0:b","mac":"02:00:00:00:00:02"}}"#;
    let (code, text) = bench.refused(0, 0, one_more);
    assert_eq!(code, ErrorCode::NoMemory);
    assert!(text.contains("--fdb-capacity"), "{text}");
    bench.done(r#"{"switch_set":{"switch":"vale0","settings":{"fdb_capacity":2}}}"#);
    bench.done(one_more);
    assert_eq!(bench.refused(0, 0, small).0, ErrorCode::BadRequest);
    bench.done(r#"{"fdb_del":{"switch":"vale0","mac":"02:00:00:00:00:02"}}"#);
    bench.done(r#"{"fdb_del":{"switch":"vale0","mac":"02:00:00:00:00:01"}}"#);
    assert!(bench.addresses().is_empty() && bench.control.datapath.ports.is_empty());
    bench.attach(1, 0, "vale0:a").unwrap();
    bench.done(r#"{"fdb_add":{"port":"vale0:a","mac":"02:00:00:00:00:01"}}"#);
    bench.control.hang_up(ConnKey(1));
    assert_eq!(bench.addresses(), ["02:00:00:00:00:01 1 vale0:a"]);
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
    assert!(bench.is_empty());
}

#[test]
fn test_static_addresses_of_an_ephemeral_port_go_with_it() {
    let mut bench = Bench::new();
    bench.attach(1, 0, "vale0:a").unwrap();
    bench.done(r#"{"fdb_add":{"port":"vale0:a","mac":"02:00:00:00:00:01"}}"#);
    bench.control.hang_up(ConnKey(1));
    assert!(bench.is_empty());
}

#[test]
fn test_static_addresses_follow_a_port_that_is_bound() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:a"}}"#);
    bench.done(r#"{"fdb_add":{"port":"vale0:a","mac":"02:00:00:00:00:01"}}"#);
    for _ in 0..2 {
        bench.ask(1, 0, r#"{"bind":{"port":"vale0:a"}}"#).unwrap();
        let key = bench.control.state.port_mut(&"vale0:a".parse().unwrap()).unwrap().key;
        assert!(bench.control.datapath.fdb.values().all(|entry| entry.1 == key));
        assert_eq!(bench.addresses(), ["02:00:00:00:00:01 1 vale0:a"]);
        bench.control.hang_up(ConnKey(1));
        assert_eq!(bench.addresses(), ["02:00:00:00:00:01 1 vale0:a"]);
    }
}

#[test]
fn test_attach_that_fails_leaves_static_addresses_in_place() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:a"}}"#);
    bench.done(r#"{"fdb_add":{"port":"vale0:a","mac":"02:00:00:00:00:01"}}"#);
    bench.control.datapath.out_of_memory = true;
    assert_eq!(bench.attach(1, 0, "vale0:a").unwrap_err().code(), ErrorCode::NoMemory);
    assert_eq!(bench.addresses(), ["02:00:00:00:00:01 1 vale0:a"]);
}

#[test]
fn test_owner_opens_a_switch_to_others() {
    let mut bench = Bench::new();
    bench.attach(1, 1000, "vale0:a").unwrap();
    let settings = SwitchSettings { mode: Mode::new(0o622), ..Default::default() };
    let spec = SwitchSpec { switch: "vale0".parse().unwrap(), settings };
    bench.answer(1, 1000, Request::Switch(SwitchRequest::Set(spec))).unwrap();
    bench.attach(2, 1001, "vale0:b").unwrap();
    let set = PortSet {
        port: "vale0:b".parse().unwrap(),
        settings: PortSettings::default(),
        vxlan: None,
    };
    let own = bench.answer(2, 1001, Request::Port(PortRequest::Set(Box::new(set))));
    assert_eq!(own.unwrap_err().code(), ErrorCode::Permission);
}

#[test]
fn test_a_switch_that_came_with_its_port_stays_when_its_owner_adds_it() {
    let mut bench = Bench::new();
    bench.attach(1, 1000, "vale0:a").unwrap();
    let add = r#"{"switch_add":{"switch":"vale0","settings":{"age_s":7}}}"#;
    assert_eq!(bench.refused(2, 1001, add).0, ErrorCode::Permission);
    assert_eq!(bench.ask(1, 1000, add).unwrap(), Reply::Done);
    assert_eq!(bench.refused(1, 1000, add).0, ErrorCode::Exists);
    bench.control.hang_up(ConnKey(1));
    let Reply::Switch(info) = bench.ask(1, 1000, r#"{"switch_show":{"switch":"vale0"}}"#).unwrap()
    else {
        panic!("another answer")
    };
    assert!(info.persistent && info.age_s == 7);
}

#[test]
fn test_detach_gives_back_and_only_what_the_connection_holds() {
    let mut bench = Bench::new();
    bench.attach(1, 0, "vale0:a").unwrap();
    let (code, _) = bench.refused(2, 0, r#"{"detach":{"port":"vale0:a"}}"#);
    assert_eq!(code, ErrorCode::NotFound);
    assert_eq!(bench.ask(1, 0, r#"{"detach":{"port":"vale0:a"}}"#).unwrap(), Reply::Done);
    assert!(bench.is_empty());
}

#[test]
fn test_planned_switches_come_with_their_ports() {
    let text = "[switch.vale0]\nmode = \"644\"\n[switch.vale0.port.a]\n\
        static = [\"02:00:00:00:00:01\", \"02:00:00:00:00:01@10\"]\n\
        [switch.vale0.port.b]\nkind = \"null\"\n";
    let config = Config::parse(text, std::path::Path::new("test.toml")).unwrap();
    let mut control = Control::new(&config, Fake::default());
    let daemon = client(0, 1000).caller;
    for plan in &config.switches {
        control.make_planned(&daemon, plan).unwrap();
    }
    assert_eq!(control.state.counts(), (1, 2));
    assert_eq!((control.datapath.ports.len(), control.datapath.fdb.len()), (2, 2));
}

/// What is done for an address does not grow with how many there are before it.
#[test]
fn test_many_static_addresses_are_loaded_one_by_one() {
    let many = protocol::MAX_STATIC;
    let stations = (0..many).map(|host| {
        let [.., high, low] = host.to_be_bytes();
        format!("\"02:00:00:00:{high:02x}:{low:02x}\"")
    });
    let list = stations.collect::<Vec<_>>().join(",");
    let text = format!("[switch.vale0.port.a]\nstatic = [{list}]\n");
    let config = Config::parse(&text, std::path::Path::new("test.toml")).unwrap();
    let mut control = Control::new(&config, Fake::default());
    control.make_planned(&client(0, 0).caller, &config.switches[0]).unwrap();
    assert_eq!(control.datapath.fdb.len(), many);
    assert_eq!(control.datapath.calls, many + 1, "each once, and one stand-in");
    // They go over to the client all together, and nothing is done to those of others.
    let mut bench = Bench { control };
    bench.attach(1, 0, "vale0:a").unwrap();
    assert_eq!(bench.control.datapath.calls, 2 * many + 1);
    bench.done(r#"{"fdb_del":{"switch":"vale0","mac":"02:00:00:00:00:01"}}"#);
    bench.done(r#"{"fdb_add":{"port":"vale0:a","mac":"02:00:00:00:00:01"}}"#);
    assert_eq!(bench.control.datapath.calls, 2 * many + 2);
}
