//! Mirror ports: what the workers hear when ports come and go, and queues in front of rings.

use port::queue::QueueMemory;
use switch::MirrorPoint;

use super::*;
use crate::model::keys::PortKey;

const MIRROR: &str =
    r#"{"port_set":{"port":"vale0:ids","settings":{"mirror":{"from":["a","b"],"rate":5}}}}"#;

impl Bench {
    fn key_of(&self, port: &str) -> PortKey {
        self.control.state.find_port(&port.parse().unwrap()).expect("a port").key
    }

    /// What the worker of the mirror port was told last: the rate, and the ports.
    fn mirrored(&self) -> Option<(u32, Vec<(PortKey, MirrorPoint)>)> {
        self.control.datapath.mirrors.get(&self.key_of("vale0:ids")).cloned()
    }
}

#[test]
fn test_a_worker_hears_which_ports_of_a_mirror_are_there() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:ids"}}"#);
    bench.done(MIRROR);
    bench.attach(1, 0, "vale0:a").unwrap();
    assert_eq!(bench.mirrored(), None, "the mirror port has no client");
    bench.attach(2, 0, "vale0:ids").unwrap();
    let both = |key| [(key, MirrorPoint::Sent), (key, MirrorPoint::Received)];
    let a = bench.key_of("vale0:a");
    assert_eq!(bench.mirrored(), Some((5, both(a).to_vec())));
    bench.attach(3, 0, "vale0:b").unwrap();
    let b = bench.key_of("vale0:b");
    assert_eq!(bench.mirrored(), Some((5, [both(a), both(b)].concat())));
    bench.attach(4, 0, "vale0:c").unwrap();
    bench.control.hang_up(ConnKey(1));
    assert_eq!(bench.mirrored(), Some((5, both(b).to_vec())));
    bench.control.hang_up(ConnKey(2));
    bench.attach(2, 0, "vale0:ids").unwrap();
    assert_eq!(bench.mirrored(), Some((5, both(b).to_vec())), "as before, under another key");
    let none = r#"{"port_set":{"port":"vale0:ids","settings":{"mirror":{"from":[]}}}}"#;
    bench.done(none);
    let config = &bench.control.datapath.ports[&bench.key_of("vale0:ids")].1;
    assert_eq!(config.mirror, None);
    assert!(bench.control.notes.mirrors.is_empty());
}

#[test]
fn test_a_mirror_goes_with_its_port_and_only_the_owner_of_the_switch_makes_one() {
    let mut bench = Bench::new();
    bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"mode":"666"}}}"#);
    bench.done(r#"{"port_add":{"port":"vale0:ids"}}"#);
    assert_eq!(bench.refused(7, 1000, MIRROR).0, ErrorCode::Permission);
    bench.done(MIRROR);
    bench.done(r#"{"port_del":{"port":"vale0:ids"}}"#);
    assert!(bench.control.notes.mirrors.is_empty());
    bench.done(r#"{"port_add":{"port":"vale0:ids"}}"#);
    bench.attach(1, 0, "vale0:a").unwrap();
    bench.attach(2, 0, "vale0:ids").unwrap();
    assert_eq!(bench.mirrored(), None);
}

#[test]
fn test_a_port_has_few_mirror_ports() {
    let mut bench = Bench::new();
    let set = |number: usize| {
        let settings = r#""settings":{"mirror":{"from":["a"]}}"#;
        format!(r#"{{"port_set":{{"port":"vale0:m{number}",{settings}}}}}"#)
    };
    for number in 0..9 {
        bench.done(&format!(r#"{{"port_add":{{"port":"vale0:m{number}"}}}}"#));
    }
    (0..8).for_each(|number| bench.done(&set(number)));
    assert_eq!(bench.refused(0, 0, &set(8)).0, ErrorCode::InUse);
    bench.done(&set(7));
    bench.done(r#"{"port_del":{"port":"vale0:m3"}}"#);
    bench.done(&set(8));
}

#[test]
fn test_a_queue_counts_against_the_memory_of_the_user_that_added_its_port() {
    let mut bench = Bench::new();
    let bytes = QueueMemory::bytes;
    bench.control.state.set_memory_quota(bytes(100));
    let add = |frames: u32| {
        let settings = format!(r#""settings":{{"queue_frames":{frames}}}"#);
        format!(r#"{{"port_add":{{"port":"vale0:vm","kind":"vhost-user",{settings}}}}}"#)
    };
    assert_eq!(bench.refused(1, 1000, &add(101)).0, ErrorCode::Quota);
    bench.ask(1, 1000, &add(60)).unwrap();
    assert_eq!(bench.control.state.memory_of(1000), bytes(60));
    let set = |frames: u32| {
        format!(r#"{{"port_set":{{"port":"vale0:vm","settings":{{"queue_frames":{frames}}}}}}}"#)
    };
    assert_eq!(bench.refused(1, 1000, &set(101)).0, ErrorCode::Quota);
    bench.ask(1, 1000, &set(100)).unwrap();
    assert_eq!(bench.refused(1, 0, &set(4097)).0, ErrorCode::BadRequest);
    bench.ask(1, 1000, &set(0)).unwrap();
    assert_eq!(bench.control.state.memory_of(1000), 0);
    let shm = r#"{"port_set":{"port":"vale0:a","settings":{"queue_frames":1}}}"#;
    bench.attach(2, 1000, "vale0:a").unwrap_err();
    bench.control.state.set_memory_quota(1 << 30);
    bench.attach(2, 1000, "vale0:a").unwrap();
    assert_eq!(bench.refused(1, 1000, shm).0, ErrorCode::BadRequest);
}
