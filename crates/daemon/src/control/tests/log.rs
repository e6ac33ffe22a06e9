//! What calls write to the log.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use packet::{MacAddr, VlanId};
use switch::Disabled;

use super::*;
use crate::control::datapath::security::Notice;
use crate::control::state::index::take_visits;

/// A log in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is logged while `act` runs.
pub(super) fn logged(act: impl FnOnce(&mut Bench)) -> Vec<String> {
    let lines = Lines::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false);
    tracing::subscriber::with_default(log.finish(), || act(&mut Bench::new()));
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn test_a_loop_of_attaches_does_not_fill_the_log() {
    let lines = logged(|bench| {
        for conn in 0..2000 {
            bench.attach(conn, 1000, "vale0:a").unwrap();
            if conn % 2 == 0 {
                bench.ask(conn, 1000, r#"{"detach":{"port":"vale0:a"}}"#).unwrap();
            }
            bench.control.hang_up(ConnKey(conn));
        }
        bench.attach(5000, 1001, "vale0:other").unwrap();
    });
    // A budget for the user, one line that it is spent, and how much was left out at the end.
    assert!(lines.len() < 60, "{} lines", lines.len());
    let attached = lines.iter().filter(|line| line.contains("attached vale0:a")).count();
    assert!((1..=40).contains(&attached), "{attached}");
    let suppressed = lines.iter().find(|line| line.contains("lines of calls were suppressed"));
    let suppressed = suppressed.expect("it is said").split_whitespace();
    let count = suppressed.filter_map(|word| word.parse::<u32>().ok()).next_back();
    assert!(count.is_some_and(|count| count >= 3960), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("vale0:other")), "another user's");
}

/// Machines may log nothing more, and no port may be added: time alone brings the report.
#[test]
fn test_suppressed_lines_of_a_users_machines_are_reported_when_their_minute_is_over() {
    let lines = logged(|bench| {
        let quota = bench.control.notes.allowances.of(1000);
        assert_eq!((0..100).filter(|_| quota.lines().allows_event()).count(), 40);
        let now = Instant::now();
        let left = bench.control.next_report(now).unwrap();
        bench.control.log_suppressed(now + left / 2);
        bench.control.log_suppressed(now + left);
        assert_eq!(bench.control.next_report(now + left), None);
    });
    let reports = lines.iter().filter(|line| line.contains(" lines of connects and disconnects"));
    let reports: Vec<_> = reports.collect();
    assert!(reports.len() == 2 && reports[1].contains("60 lines"), "{reports:?}");
}

/// The user does nothing more, so time alone brings the report.
#[test]
fn test_suppressed_lines_of_a_users_calls_are_reported_when_their_minute_is_over() {
    let lines = logged(|bench| {
        let refusal = QuotaRefusal::Count { uid: 1000, what: "ports", have: 1 }.into();
        for _ in 0..100 {
            bench.control.note_refusal(&client(0, 1000).caller, "test", &refusal);
        }
        let now = Instant::now();
        assert_eq!((0..100).filter(|_| bench.control.call_log.logs_change(1000, now)).count(), 40);
        let left = bench.control.next_report(now).unwrap();
        bench.control.log_suppressed(now + left / 2);
        tracing::info!("half a minute");
        bench.control.log_suppressed(now + Duration::from_secs(60));
        assert_eq!(bench.control.next_report(now), None);
        tracing::info!("one minute");
    });
    let place = |text: &str| lines.iter().position(|line| line.contains(text)).expect(text);
    for told in ["60 lines of calls were", "99 lines of refused calls were"] {
        let told = place(told);
        assert!((place("half a minute")..place("one minute")).contains(&told), "{lines:?}");
    }
}

#[test]
fn test_more_users_than_the_log_remembers_lose_no_count() {
    let users = 2000;
    let lines = logged(|bench| {
        let (log, start) = (&mut bench.control.call_log, Instant::now());
        for uid in 0..users {
            assert_eq!((0..42).filter(|_| log.logs_change(100_000 + uid, start)).count() % 40, 0);
        }
        assert!(log.logs_change(99_999, start + Duration::from_secs(60)));
    });
    let count = |line: &String| -> Option<u32> {
        let (before, _) = line.split_once(" lines of calls were suppressed")?;
        before.rsplit(' ').next()?.parse().ok()
    };
    let counts: Vec<u32> = lines.iter().filter_map(count).collect();
    assert_eq!(counts.len(), 1025, "of 1024 users, and of the others together");
    assert_eq!(counts.iter().sum::<u32>(), 42 * users - 40 * 1025);
    assert!(lines.iter().any(|line| line.contains("other users: more lines of calls are")));
}

/// A user can have its port disabled and enable it, and make loops, as often as it wants.
#[test]
fn test_notices_of_a_users_ports_do_not_fill_the_log_nor_look_at_all_ports() {
    let lines = logged(|bench| {
        bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"mode":"666"}}}"#);
        let names = ["vale0:a", "vale0:b", "vale0:other"];
        for (conn, (uid, name)) in (1..).zip([1000, 1000, 1001].into_iter().zip(names)) {
            bench.attach(conn, uid, name).unwrap();
        }
        let port = |bench: &Bench, name: &str| {
            bench.control.state.find_port(&name.parse().unwrap()).unwrap().clone()
        };
        let [a, b, other] = names.map(|name| port(bench, name).key);
        let (mac, vlan) = (MacAddr::new([2, 0, 0, 0, 0, 1]), VlanId::DEFAULT);
        let disabled = |key| Notice::Disabled(key, Disabled::BpduGuard);
        take_visits();
        for _ in 0..100 {
            let notices = vec![disabled(a), Notice::Loop { ports: [a, b], mac, vlan }];
            bench.control.datapath.notices = notices;
            bench.control.log_notices();
        }
        bench.control.datapath.notices = vec![disabled(other)];
        bench.control.log_notices();
        assert_eq!(take_visits(), 0);
        for name in ["vale0:a", "vale0:other"] {
            let state = port(bench, name).config.security_state;
            assert_eq!(state.disabled, Some(Disabled::BpduGuard), "{name}");
        }
    });
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    let (disabled, loops) = (count("vale0:a is disabled by bpdu_guard"), count("loop between"));
    assert!(disabled > 0 && loops > 0 && disabled + loops <= 40, "{disabled} and {loops}");
    assert_eq!(count("vale0:other is disabled by bpdu_guard"), 1, "another user's");
    assert!(lines.len() < 60, "{} lines", lines.len());
}

/// Either of two users may be the other's victim.
#[test]
fn test_loops_between_two_users_are_of_the_switchs_owner_in_the_log() {
    let lines = logged(|bench| {
        bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"mode":"666"}}}"#);
        bench.attach(1, 1000, "vale0:a").unwrap();
        bench.attach(2, 1001, "vale0:b").unwrap();
        let ports = ["vale0:a", "vale0:b"]
            .map(|name| bench.control.state.find_port(&name.parse().unwrap()).unwrap().key);
        let (mac, vlan) = (MacAddr::new([2, 0, 0, 0, 0, 1]), VlanId::DEFAULT);
        for _ in 0..100 {
            bench.control.datapath.notices = vec![Notice::Loop { ports, mac, vlan }];
            bench.control.log_notices();
        }
        bench.control.hang_up(ConnKey(1));
        bench.control.hang_up(ConnKey(2));
    });
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!((count("left vale0:a"), count("left vale0:b")), (1, 1));
    assert!((1..=40).contains(&count("loop between")), "{}", count("loop between"));
}

#[test]
fn test_the_operators_changes_are_all_in_the_log_and_refusals_beside_those_of_others() {
    let lines = logged(|bench| {
        bench.done(r#"{"switch_add":{"switch":"vale0"}}"#);
        for _ in 0..100 {
            bench.done(r#"{"switch_set":{"switch":"vale0","settings":{"age_s":77}}}"#);
            let refusal = QuotaRefusal::Count { uid: 1000, what: "ports", have: 1 }.into();
            bench.control.note_refusal(&client(0, 1000).caller, "test", &refusal);
        }
        let refusal = QuotaRefusal::Count { uid: 0, what: "ports", have: 1 }.into();
        bench.control.note_refusal(&client(0, 0).caller, "operator", &refusal);
    });
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!((count("set switch vale0"), count("(test) refused")), (100, 1));
    assert_eq!(count("(operator) refused"), 1);
}

#[test]
fn test_what_a_routing_daemon_finds_is_not_in_the_log() {
    let lines = logged(|bench| {
        bench.done(
            r#"{"port_add":{"port":"vale0:v","kind":"vxlan",
                "vxlan":{"vni":1,"local":"10.0.0.1"}}}"#,
        );
        for (change, remote) in [("add_extern", "10.0.0.2"), ("add", "10.0.0.3")] {
            bench.done(&format!(
                r#"{{"port_set":{{"port":"vale0:v","settings":{{}},
                    "vxlan":{{"{change}_remote":["{remote}"]}}}}}}"#
            ));
        }
        bench.done(r#"{"extern_learn":{"port":"vale0:v","add":["02:00:00:00:00:01=10.0.0.2"]}}"#);
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].contains("10.0.0.3"), "{lines:?}");
}

#[test]
fn test_a_clients_name_has_nothing_that_changes_the_line_around_it() {
    let bidi = ('\u{200e}'..='\u{200f}').chain('\u{202a}'..='\u{202e}');
    let bad = bidi.chain('\u{2066}'..='\u{2069}').chain(['\u{2028}', '\u{2029}', '\u{85}']);
    let bad: String = bad.chain("\n\r\t\u{1b}\u{7f}\u{feff}".chars()).collect();
    let name = format!("Zoë's \"{bad}web\" 漢");
    let hello = serde_json::json!({ "hello": { "client": name } });
    let mut seen = client(1, 1000);
    let step = Bench::new().control.call(&mut seen, serde_json::from_value(hello).unwrap());
    assert!(matches!(step, Step::Answer(Ok(_))));
    assert_eq!(seen.name, "Zoë's \"web\" 漢");
}
