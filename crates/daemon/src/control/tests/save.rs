//! Which calls are saved, and which of them wait for the disk.

use std::path::PathBuf;

use super::*;
use crate::store::Store;
use crate::store::writer::Writer;

/// A control plane that keeps its state.
struct Written {
    dir: PathBuf,
    bench: Bench,
}

impl Written {
    fn new(name: &str) -> Self {
        let name = format!("uvala-kept-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let mut bench = Bench::new();
        let writer = Writer::start(Store::open(dir.join("state")).unwrap()).unwrap();
        bench.control.save_with(writer, &[]);
        Self { dir, bench }
    }

    /// Makes a call that is answered when it is written.
    fn change(&mut self, conn: u64, text: &str) {
        let request = serde_json::from_str(text).expect(text);
        let step = self.bench.control.call(&mut client(conn, 0), request);
        assert!(matches!(step, Step::Save), "{text}");
    }

    /// The calls that are answered once everything is written, with their answers.
    fn answers(&mut self) -> Vec<(u64, Result<Reply, Refusal>)> {
        let answers = self.bench.control.save_all().into_iter();
        answers.map(|(conn, answer)| (conn.0, answer.map(|(reply, _)| reply))).collect()
    }

    /// What the next daemon would make, port by port.
    fn next(&self) -> Vec<String> {
        let path = self.dir.join("state").join("vale0.json");
        let Ok(text) = std::fs::read(path) else { return Vec::new() };
        let record = crate::store::record::SwitchRecord::read(&text).unwrap();
        let text = |port: &crate::store::record::PortRecord| {
            let stations = port.now.stations.iter().map(ToString::to_string);
            (port.now.settings.max_macs.filter(|&most| most > 0), stations.collect::<Vec<_>>())
        };
        record.ports.iter().map(|(name, port)| format!("{name} {:?}", text(port))).collect()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.dir).ok();
    }
}

#[test]
fn test_changes_of_a_flood_are_written_together_while_others_are_answered() {
    let mut kept = Written::new("flood");
    kept.change(0, r#"{"switch_add":{"switch":"vale0"}}"#);
    assert_eq!(kept.answers().len(), 1);
    for conn in 0..500 {
        kept.change(conn, &format!(r#"{{"port_add":{{"port":"vale0:p{conn}"}}}}"#));
        // A client that changes nothing does not wait.
        let list = kept.bench.ask(1000, 1000, r#"{"port_list":{}}"#);
        assert!(matches!(list, Ok(Reply::Ports(_))));
    }
    // The writer has heard of the first alone: the others wait for each other and for no call.
    let first = kept.bench.control.writer_mut().wait();
    let answered = kept.bench.control.note_saved(first);
    assert_eq!(answered.len(), 1);
    let second = kept.bench.control.writer_mut().wait();
    assert_eq!(kept.bench.control.note_saved(second).len(), 499);
    assert!(kept.answers().is_empty());
    assert_eq!(kept.next().len(), 500);
}

#[test]
fn test_every_kind_of_change_is_kept() {
    let mut kept = Written::new("kinds");
    let station = "02:00:00:00:00:01";
    let fdb = |port: &str| format!(r#"{{"fdb_add":{{"port":"{port}","mac":"{station}"}}}}"#);
    let (on_a, on_b) = (fdb("vale0:a"), fdb("vale0:b"));
    let with = format!("(None, [\"{station}\"])");
    let steps = [
        (r#"{"port_add":{"port":"vale0:a"}}"#, vec!["vale0:a (None, [])".to_owned()]),
        (&on_a, vec![format!("vale0:a {with}")]),
        (
            r#"{"port_add":{"port":"vale0:b"}}"#,
            vec![format!("vale0:a {with}"), "vale0:b (None, [])".to_owned()],
        ),
        (&on_b, vec!["vale0:a (None, [])".to_owned(), format!("vale0:b {with}")]),
        (r#"{"port_del":{"port":"vale0:a"}}"#, vec![format!("vale0:b {with}")]),
        (
            r#"{"fdb_del":{"switch":"vale0","mac":"02:00:00:00:00:01"}}"#,
            vec!["vale0:b (None, [])".to_owned()],
        ),
        (
            r#"{"port_set":{"port":"vale0:b","settings":{"max_macs":3}}}"#,
            vec!["vale0:b (Some(3), [])".to_owned()],
        ),
        (r#"{"switch_del":{"switch":"vale0"}}"#, vec![]),
        (r#"{"port_add":{"port":"vale0:c"}}"#, vec!["vale0:c (None, [])".to_owned()]),
        (r#"{"port_del":{"port":"vale0:c"}}"#, vec![]),
    ];
    for (call, expected) in steps {
        kept.change(1, call);
        assert!(matches!(&kept.answers()[..], [(1, Ok(Reply::Done))]), "{call}");
        assert_eq!(kept.next(), expected, "{call}");
    }
}

/// The next daemon forgets those whose descriptors it does not get.
#[test]
fn test_interfaces_of_containers_are_saved_as_well() {
    let (mut kept, mut expected) = (Written::new("containers"), String::new());
    for (port, netns) in [("a", "/run/netns/cni-0815"), ("b", "4711"), ("c", "red")] {
        let host = format!(r#"{{"ifname":"eth0","netns":"{netns}"}}"#);
        let add = format!(r#"{{"port_add":{{"port":"vale0:{port}","kind":"tap","host":{host}}}}}"#);
        kept.change(1, &add);
        assert_eq!(kept.answers().len(), 1);
        expected += &format!("vale0:{port} (None, [])");
        assert_eq!(kept.next().concat(), expected, "{netns}");
    }
}

/// A switch that is deleted and made again before the writer has heard of either.
#[test]
fn test_what_was_deleted_meanwhile_does_not_come_back() {
    let mut kept = Written::new("again");
    kept.change(1, r#"{"port_add":{"port":"vale0:a"}}"#);
    kept.change(2, r#"{"port_add":{"port":"vale0:b"}}"#);
    kept.change(3, r#"{"switch_del":{"switch":"vale0"}}"#);
    kept.change(4, r#"{"port_add":{"port":"vale0:c"}}"#);
    assert_eq!(kept.answers().len(), 4);
    assert_eq!(kept.next(), ["vale0:c (None, [])"]);
}

#[test]
fn test_what_cannot_be_written_is_an_error_that_says_so() {
    let mut kept = Written::new("error");
    kept.change(1, r#"{"port_add":{"port":"vale0:a"}}"#);
    kept.answers();
    let (state, away) = (kept.dir.join("state"), kept.dir.join("away"));
    std::fs::rename(&state, &away).unwrap();
    std::fs::write(&state, "in the way").unwrap();
    kept.change(1, r#"{"port_set":{"port":"vale0:a","settings":{"max_macs":3}}}"#);
    let (_, refusal) = kept.answers().remove(0);
    let refusal = refusal.unwrap_err();
    assert_eq!(refusal.code(), ErrorCode::NotKept);
    let text = refusal.to_string();
    assert!(text.contains("state/vale0.json") && text.contains("not saved"), "{text}");
    // The next daemon would not have it.
    for call in [r#"{"hand_over":{}}"#, r#""end""#] {
        let (code, text) = kept.bench.refused(1, 0, call);
        assert!(code == ErrorCode::InUse && text.contains("could not save"), "{text}");
    }
    assert!(kept.bench.control.successor().is_none());
    std::fs::remove_file(&state).unwrap();
    std::fs::rename(&away, &state).unwrap();
    kept.change(1, r#"{"port_add":{"port":"vale0:b"}}"#);
    assert!(matches!(&kept.answers()[..], [(1, Ok(Reply::Done))]));
    assert_eq!(kept.next(), ["vale0:a (Some(3), [])", "vale0:b (None, [])"]);
    kept.bench.done(r#""end""#);
}

impl Control<Fake> {
    fn writer_mut(&mut self) -> &mut Writer {
        &mut self.saving.as_mut().unwrap().writer
    }
}

#[test]
fn test_a_machines_port_that_is_held_goes_with_its_connection_and_is_not_kept() {
    let mut kept = Written::new("held");
    let add = r#"{"port_add":{"port":"vale0:vm","kind":"vhost-user","machine":{"held":true}}}"#;
    kept.change(1, add);
    assert_eq!(kept.answers().len(), 1);
    assert!(kept.next().is_empty());
    let show = r#"{"port_show":{"port":"vale0:vm"}}"#;
    let Ok(Reply::Port(info)) = kept.bench.ask(0, 0, show) else { panic!("another answer") };
    assert!(!info.persistent && info.client.is_some());
    // Another of this name, when it was deleted, is not the first connection's.
    kept.change(0, r#"{"port_del":{"port":"vale0:vm"}}"#);
    kept.change(2, add);
    kept.answers();
    kept.bench.control.hang_up(ConnKey(1));
    let detach = r#"{"detach":{"port":"vale0:vm"}}"#;
    assert!(kept.bench.ask(3, 0, detach).is_err());
    assert!(kept.bench.ask(0, 0, show).is_ok());
    kept.bench.control.hang_up(ConnKey(2));
    assert!(kept.bench.is_empty());
}
