//! One user's calls cost no more because others have ports.

use super::*;
use crate::control::state::index::take_visits;

/// How many ports the daemon looks at for some calls of one user, while another one has this many.
fn visits(others: u64) -> Vec<(&'static str, u64)> {
    let mut bench = Bench::new();
    for i in 0..others {
        let call = match i % 2 {
            0 => format!(r#"{{"attach":{{"port":"vale{}:p{i}"}}}}"#, i % 10),
            _ => format!(r#"{{"bind":{{"port":"vale{}:p{i}","kind":"port"}}}}"#, i % 10),
        };
        bench.ask(1000 + i, 2000, &call).unwrap_or_else(|error| panic!("{call}: {error}"));
    }
    bench.attach(1, 1000, "valeown:held").unwrap();
    bench.done(r#"{"port_add":{"port":"valeown:stays","kind":"shm"}}"#);
    let calls = [
        (1, 1000, r#"{"attach":{"port":"valeown:a"}}"#),
        (2, 1000, r#"{"bind":{"port":"valeown:b","kind":"port"}}"#),
        (2, 1000, r#""resume""#),
        (3, 1000, r#"{"attach":{"port":"valeown:a{1"}}"#),
        (4, 1000, r#"{"bind":{"port":"valeown:none","kind":"null","mem_id":1}}"#),
        (1, 1000, r#"{"port_show":{"port":"valeown:a"}}"#),
        (1, 1000, r#"{"port_set":{"port":"valeown:held","settings":{"on_full":"wait"}}}"#),
        (1, 1000, r#"{"stats":{"switch":"valeown"}}"#),
        (1, 1000, r#"{"switch_show":{"switch":"valeown"}}"#),
        (1, 1000, r#"{"port_del":{"port":"valeown:held"}}"#),
        (1, 1000, r#"{"detach":{"port":"valeown:a"}}"#),
    ];
    let mut cost = Vec::new();
    for (conn, uid, call) in calls {
        take_visits();
        bench.ask(conn, uid, call).unwrap_or_else(|error| panic!("{call}: {error}"));
        cost.push((call, take_visits()));
    }
    for conn in 1..5 {
        take_visits();
        bench.control.hang_up(ConnKey(conn));
        cost.push(("hang-up", take_visits()));
    }
    cost
}

#[test]
fn test_a_users_calls_look_at_no_more_ports_when_others_have_many() {
    assert_eq!(visits(10), visits(400));
}

#[test]
fn what_a_user_has_is_counted_in_one_look_at_each_port() {
    let mut bench = Bench::new();
    for i in 0..4 {
        bench.attach(1 + i, 1000, &format!("vale0:a{i}")).unwrap();
        let bind = format!(r#"{{"bind":{{"port":"vale0:b{i}","kind":"port"}}}}"#);
        bench.ask(10 + i, 1000, &bind).unwrap();
    }
    take_visits();
    bench.ask(1, 1000, r#"{"user_list":{}}"#).unwrap();
    assert_eq!(take_visits(), 8);
}
