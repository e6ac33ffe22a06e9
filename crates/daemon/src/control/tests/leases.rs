//! What a user has given back counts until the system has it.

use super::*;
use crate::control::datapath::ports::Ports;

/// A daemon with room for one port of each user, and not for two.
fn narrow() -> Bench {
    let mut bench = Bench::new();
    let rings = Config::default().rings;
    let memory = bench.control.datapath.memory_of(&rings).unwrap();
    bench.control.state.set_memory_quota(memory + memory / 2);
    bench
}

fn is_refused(bench: &mut Bench, conn: u64, port: &str) -> bool {
    match bench.attach(conn, 1000, port) {
        Ok(_) => false,
        Err(refusal) => {
            assert!(refusal.to_string().contains("quota.memory"), "{refusal}");
            true
        }
    }
}

#[test]
fn test_memory_counts_until_it_is_given_back() {
    let mut bench = narrow();
    bench.control.datapath.reclaims_late = true;
    bench.attach(1, 1000, "vale0:a").unwrap();
    bench.control.hang_up(ConnKey(1));
    assert!(is_refused(&mut bench, 2, "vale0:b"));
    // Not at the expense of another user.
    bench.attach(3, 1001, "vale1:b").unwrap();
    bench.control.datapath.ended.clear();
    assert!(!is_refused(&mut bench, 2, "vale0:b"));
}

#[test]
fn test_memory_of_a_deleted_port_counts_until_its_client_lets_go() {
    for let_go in ["hang up", "detach"] {
        let mut bench = narrow();
        bench.attach(1, 1000, "vale0:a").unwrap();
        bench.done(r#"{"port_del":{"port":"vale0:a"}}"#);
        assert!(is_refused(&mut bench, 2, "vale0:b"), "the client still has the memory");
        match let_go {
            "detach" => drop(bench.ask(1, 1000, r#"{"detach":{"port":"vale0:a"}}"#)),
            _ => bench.control.hang_up(ConnKey(1)),
        }
        assert!(!is_refused(&mut bench, 2, "vale0:b"), "{let_go}");
    }
}
