//! Events: which are told to which listener, and that nothing is noted while no client listens.

use packet::{MacAddr, VlanId};
use protocol::{Change, Events};

use super::*;
use crate::model::replies::FdbChange;

const LOOK: std::time::Duration = std::time::Duration::from_millis(200);

impl Bench {
    fn listen(&mut self, conn: u64, uid: u32, switch: &str) -> Result<Reply, Refusal> {
        self.ask(conn, uid, &format!(r#"{{"events":{{{switch}}}}}"#))
    }

    /// What listeners that read are told at some moment.
    fn told_at(&mut self, at: Instant) -> BTreeMap<u64, Events> {
        let mut told = BTreeMap::new();
        for conn in self.control.find_events(at) {
            let events = self.control.next_events(conn).unwrap();
            self.control.note_told(conn, &events);
            told.insert(conn.0, events);
        }
        told
    }
}

fn changes(events: &Events) -> Vec<Change> {
    events.events.iter().map(|event| event.change.clone()).collect()
}

#[test]
fn test_nothing_is_noted_while_no_client_listens() {
    let mut bench = Bench::new();
    bench.done(r#"{"switch_add":{"switch":"vale0"}}"#);
    let mut at = Instant::now();
    assert!(bench.told_at(at).is_empty() && bench.control.next_look(at).is_none());
    assert!(bench.control.datapath.followed.is_empty());
    assert_eq!(bench.listen(1, 0, "").unwrap(), Reply::Done);
    assert_eq!(bench.control.datapath.followed.len(), 1);
    assert!(bench.control.next_look(at).is_some());
    assert!(bench.told_at(at).is_empty(), "what was there is no news");
    bench.done(r#"{"port_add":{"port":"vale0:a","kind":"shm"}}"#);
    at += LOOK;
    let told = bench.told_at(at);
    let port = "vale0:a".parse().unwrap();
    assert_eq!(changes(&told[&1]), [Change::PortAdded { port, kind: protocol::PortKind::Shm }]);
    bench.done(r#"{"port_del":{"port":"vale0:a"}}"#);
    bench.control.hang_up(ConnKey(1));
    assert!(bench.control.datapath.followed.is_empty());
    assert!(bench.told_at(at + LOOK).is_empty() && bench.control.next_look(at).is_none());
}

#[test]
fn test_a_client_that_comes_and_goes_between_two_messages_is_told_both_ways() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:a","kind":"shm"}}"#);
    bench.listen(1, 0, "").unwrap();
    let at = Instant::now();
    bench.told_at(at);
    bench.attach(2, 0, "vale0:a").unwrap();
    assert!(bench.told_at(at).is_empty());
    bench.control.hang_up(ConnKey(2));
    let told = changes(&bench.told_at(at + LOOK)[&1]);
    let [Change::ClientAttached { client, .. }, Change::ClientLeft { .. }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(client.name, "test 2");
}

#[test]
fn test_root_and_the_daemons_user_listen_to_the_switches_that_they_name() {
    let mut bench = Bench::new();
    bench.done(r#"{"switch_add":{"switch":"vale0"}}"#);
    bench.done(r#"{"switch_add":{"switch":"vale1"}}"#);
    assert_eq!(bench.listen(3, 1000, "").unwrap_err().code(), ErrorCode::Permission);
    bench.listen(1, 0, "").unwrap();
    let at = Instant::now();
    bench.done(r#"{"port_add":{"port":"vale0:a","kind":"shm"}}"#);
    bench.listen(2, 0, r#""switch":"vale1""#).unwrap();
    bench.done(r#"{"port_add":{"port":"vale1:a","kind":"shm"}}"#);
    let told = bench.told_at(at + LOOK);
    let switches = |conn: u64| -> Vec<String> {
        changes(&told[&conn]).iter().map(|change| change.switch().to_string()).collect()
    };
    assert_eq!(switches(1), ["vale0", "vale1"]);
    assert_eq!(switches(2), ["vale1"]);
    for conn in 3..17 {
        bench.listen(conn, 0, "").unwrap();
    }
    assert_eq!(bench.listen(17, 0, "").unwrap_err().code(), ErrorCode::Quota);
    assert_eq!(bench.listen(1, 0, "").unwrap(), Reply::Done, "it listens already");
}

#[test]
fn test_networks_of_vlans_are_told_of_and_remotes_of_a_routing_daemon_are_not() {
    let mut bench = Bench::new();
    let tunnel = r#""vxlan":{"vlan_vni":["10:1010"],"local":"10.0.0.1"}"#;
    let settings = r#""settings":{"vlan":"trunk:10,20"}"#;
    let port = r#""port":"vale0:v","kind":"vxlan""#;
    bench.done(&format!(r#"{{"port_add":{{{port},{settings},{tunnel}}}}}"#));
    bench.listen(1, 0, "").unwrap();
    let at = Instant::now();
    bench.told_at(at);
    let set = |change: &str| {
        format!(r#"{{"port_set":{{"port":"vale0:v","settings":{{}},"vxlan":{change}}}}}"#)
    };
    bench.done(&set(r#"{"add_extern_remote":["10=10.0.0.2"]}"#));
    assert!(bench.told_at(at + LOOK).is_empty());
    bench.done(&set(r#"{"add_vlan_vni":["20:1020"]}"#));
    let told = bench.told_at(at + 2 * LOOK);
    let port = "vale0:v".parse().unwrap();
    assert_eq!(changes(&told[&1]), [Change::PortChanged { port }]);
}

#[test]
fn test_a_listener_is_told_of_no_address_from_before_it_came() {
    let mut bench = Bench::new();
    bench.attach(1, 0, "vale0:a").unwrap();
    bench.listen(3, 0, r#""switch":"vale0""#).unwrap();
    let at = Instant::now();
    bench.told_at(at);
    let port = bench.control.state.find_port(&"vale0:a".parse().unwrap()).unwrap().key;
    let (mac, vlan) = (MacAddr::new([2, 0, 0, 0, 0, 1]), VlanId::DEFAULT);
    let change = FdbChange { mac, vlan, from: None, to: Some(port), is_static: false };
    bench.control.datapath.fdb_changes = (vec![change], 7);
    bench.listen(4, 0, "").unwrap();
    let told = bench.told_at(at + LOOK);
    assert_eq!((told[&3].events.len(), told[&3].lost), (1, 7));
    assert!(!told.contains_key(&4));
}

#[test]
fn test_events_of_a_listener_that_does_not_read_are_kept_and_then_counted() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:a","kind":"shm"}}"#);
    bench.listen(1, 0, "").unwrap();
    let mut at = Instant::now();
    for turn in 0..300 {
        let isolated = turn % 2 == 0;
        bench.done(&format!(
            r#"{{"port_set":{{"port":"vale0:a","settings":{{"isolated":{isolated}}}}}}}"#
        ));
        at += LOOK;
        assert_eq!(bench.control.find_events(at), [ConnKey(1)]);
    }
    let told = &bench.told_at(at + LOOK)[&1];
    assert_eq!((told.events.len(), told.lost), (256, 300 - 256));
    assert!(bench.told_at(at + 2 * LOOK).is_empty());
}

#[test]
fn test_addresses_are_told_with_the_names_of_their_ports_and_what_is_too_much_is_counted() {
    let mut bench = Bench::new();
    bench.attach(1, 0, "vale0:a").unwrap();
    bench.attach(2, 0, "vale0:b").unwrap();
    bench.listen(3, 0, "").unwrap();
    let at = Instant::now();
    bench.told_at(at);
    let key = |name: &str| bench.control.state.find_port(&name.parse().unwrap()).unwrap().key;
    let [a, b] = ["vale0:a", "vale0:b"].map(key);
    let (mac, vlan) = (MacAddr::new([2, 0, 0, 0, 0, 1]), VlanId::DEFAULT);
    let change = |from, to| FdbChange { mac, vlan, from, to, is_static: false };
    let all = vec![change(None, Some(a)), change(Some(a), Some(b)), change(Some(b), None)];
    bench.control.datapath.fdb_changes = (all, 4);
    let told = &bench.told_at(at + LOOK)[&3];
    let [port, other]: [PortName; 2] = ["vale0:a", "vale0:b"].map(|name| name.parse().unwrap());
    let (from, vlan) = (port, 1);
    let expected = [
        Change::FdbAdded { mac, vlan, port: from.clone(), is_static: false },
        Change::FdbMoved { mac, vlan, port: other.clone(), from },
        Change::FdbDeleted { mac, vlan, port: other },
    ];
    assert_eq!((changes(told), told.lost), (expected.to_vec(), 4));
}
