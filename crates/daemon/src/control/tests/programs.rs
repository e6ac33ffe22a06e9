//! Forwarding programs: which settings load and unload them, and their maps.

use program::{Image, Looks, Program};
use protocol::{ProgramEntry, ProgramInfo};

use super::*;
use crate::control::save::all_settings;
use crate::model::plan::SwitchPlan;
use crate::model::settings;
use switch::SwitchConfig;

/// A program that returns 1, with these maps.
fn text(maps: &[&str]) -> String {
    let code = vec![0xb7, 0, 0, 0, 1, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let maps = maps.iter().map(|map| map.parse().unwrap()).collect();
    let (function, data) = ("f".to_owned(), Vec::new());
    Image { function, looks: Looks::Header, code, data, maps }.to_string()
}

const MAPS: [&str; 2] = ["stations hash 2 4 4", "counts array 4 8 2"];

fn load(call: &str, maps: &[&str]) -> String {
    let image = serde_json::to_string(&text(maps)).unwrap();
    format!(
        r#"{{"{call}":{{"switch":"vale0","settings":{{"forwarding":"program",
            "program":{{"image":{image}}}}}}}}}"#
    )
}

fn settings_of(settings: &str) -> String {
    format!(r#"{{"switch_set":{{"switch":"vale0","settings":{{{settings}}}}}}}"#)
}

fn set(map: &str, key: &str, value: &str) -> String {
    let entry = format!(r#"{{"map":"{map}","key":"{key}","value":"{value}"}}"#);
    format!(r#"{{"program_map_set":{{"switch":"vale0","entry":{entry}}}}}"#)
}

fn of(call: &str, map: &str, key: &str) -> String {
    format!(r#"{{"{call}":{{"switch":"vale0","map":"{map}","key":"{key}"}}}}"#)
}

const SHOW: &str = r#"{"program_show":{"switch":"vale0"}}"#;

impl Bench {
    fn with_program() -> Self {
        let mut bench = Self::new();
        bench.done(&load("switch_add", &MAPS));
        bench
    }

    fn show(&mut self) -> ProgramInfo {
        match self.ask(0, 0, SHOW).unwrap() {
            Reply::Program(info) => info,
            other => panic!("{other:?}"),
        }
    }

    /// The program that the worker has.
    fn program(&self) -> Option<&Program> {
        self.control.datapath.programs.values().next()
    }

    fn value(&mut self, map: &str, key: &str) -> Result<String, String> {
        match self.ask(0, 0, &of("program_map_get", map, key)) {
            Ok(Reply::ProgramEntry(entry)) => Ok(entry.value),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal.to_string()),
        }
    }

    fn entries(&mut self, map: &str, from: Option<&str>) -> (Vec<ProgramEntry>, Option<String>) {
        let from = serde_json::to_string(&from).unwrap();
        let list =
            format!(r#"{{"program_map_list":{{"switch":"vale0","map":"{map}","from":{from}}}}}"#);
        match self.ask(0, 0, &list).unwrap() {
            Reply::ProgramEntries(page) => (page.items, page.next),
            other => panic!("{other:?}"),
        }
    }

    fn saved(&self) -> SwitchSettings {
        let switch = self.control.state.find_switch(&"vale0".parse().unwrap()).unwrap();
        all_settings(switch)
    }
}

#[test]
fn test_a_program_comes_and_goes_with_its_forwarding() {
    let mut bench = Bench::with_program();
    let info = bench.show();
    assert_eq!(
        (info.function.as_str(), info.looks.as_str(), info.instructions),
        ("f", "header", 2)
    );
    assert_eq!(info.maps.iter().map(|map| map.max_entries).collect::<Vec<_>>(), [4, 2]);
    assert!(bench.program().is_some());
    bench.done(&settings_of(r#""age_s":7"#));
    assert!(bench.program().is_some(), "other settings leave it");
    bench.done(&settings_of(r#""forwarding":"hub""#));
    assert!(bench.program().is_none());
    let (code, why) = bench.refused(0, 0, SHOW);
    assert!(code == ErrorCode::NotFound && why.contains("--forwarding program:FILE"), "{why}");
    let (_, why) = bench.refused(0, 0, &settings_of(r#""forwarding":"program""#));
    assert!(why.contains("no program"), "{why}");
    bench.done(&load("switch_set", &[]));
    assert!(bench.program().is_some() && bench.show().maps.is_empty());
    bench.done(r#"{"switch_del":{"switch":"vale0"}}"#);
}

#[test]
fn test_a_program_that_cannot_be_changes_nothing() {
    let mut bench = Bench::with_program();
    let code = "code b7000000010000009500000000000000";
    let good = load("switch_set", &[]);
    for (bad, says) in [
        (good.replace(code, "code b700000001000000"), "without a return"),
        (good.replace(code, "code 00"), "no whole number of instructions"),
        (good.replace("uvala-program 1", "uvala-program 9"), "line 1"),
        (good.replace(r#""program","#, r#""hub","#), "another forwarding function"),
    ] {
        let (code, why) = bench.refused(0, 0, &bad);
        assert!(code == ErrorCode::BadRequest && why.contains(says), "{why}");
    }
    assert_eq!(bench.show().maps.len(), 2, "the old one goes on");
}

#[test]
fn test_a_switch_that_goes_to_other_workers_keeps_its_program_and_what_commands_have_set() {
    let mut bench = Bench::with_program();
    bench.done(&set("stations", "0100", "09000000"));
    for workers in ["all", "one"] {
        // The workers that it comes to have nothing of it.
        bench.control.datapath.programs.clear();
        bench.done(&settings_of(&format!(r#""workers":"{workers}""#)));
        assert_eq!(bench.show().maps[0].entries, 1, "{workers}");
        assert_eq!(bench.value("stations", "0100").unwrap(), "09000000");
    }
    bench.control.datapath.programs.clear();
    bench.done(&settings_of(r#""workers":"all","forwarding":"hub""#));
    assert!(bench.program().is_none());
}

#[test]
fn test_only_the_owner_loads_a_program_and_writes_its_maps() {
    let mut bench = Bench::with_program();
    bench.done(&settings_of(r#""mode":"664""#));
    for call in [
        load("switch_set", &[]),
        set("stations", "0100", "05000000"),
        of("program_map_del", "stations", "0100"),
    ] {
        assert_eq!(bench.refused(1, 1000, &call).0, ErrorCode::Permission, "{call}");
    }
    bench.ask(1, 1000, SHOW).unwrap();
    bench.done(&settings_of(r#""mode":"660""#));
    for call in [SHOW.to_owned(), of("program_map_get", "counts", "00000000")] {
        assert_ne!(bench.refused(1, 1000, &call).0, ErrorCode::BadRequest, "{call}");
    }
}

#[test]
fn test_a_program_counts_against_the_memory_of_its_owner() {
    let mut bench = Bench::with_program();
    let owner = settings_of(r#""owner":1000"#);
    bench.done(&owner);
    let memory = bench.control.state.memory_of(1000);
    assert!(memory > 0 && memory == bench.show().memory);
    bench.done(&set("stations", "0100", "05000000"));
    assert_eq!(bench.control.state.memory_of(1000), memory + 1024, "an entry that is kept");
    bench.control.state.set_memory_quota(memory + 2000);
    let large = load("switch_set", &["large array 4 256 1000"]);
    assert_eq!(bench.refused(1, 1000, &large).0, ErrorCode::Quota);
    assert_eq!(bench.ask(1, 1000, &load("switch_set", &MAPS)).unwrap(), Reply::Done);
}

#[test]
fn test_maps_are_read_and_written() {
    let mut bench = Bench::with_program();
    bench.done(&set("stations", "0100", "05000000"));
    bench.done(&set("stations", "0100", "06000000"));
    bench.done(&set("counts", "01000000", "0900000000000000"));
    assert_eq!(bench.value("stations", "0100").unwrap(), "06000000");
    assert_eq!(bench.value("counts", "01000000").unwrap(), "0900000000000000");
    for (call, says) in [
        (set("stations", "01", "05000000"), "key: expected 2 bytes"),
        (set("stations", "0100", "0500"), "value: expected 4 bytes"),
        (set("other", "0100", "05000000"), "but stations, counts"),
        (set("counts", "02000000", "0900000000000000"), "the array has no such entry"),
        (set("counts", "00000000", "port:a"), "declare the map as a hash"),
        (of("program_map_del", "stations", "0200"), "no such entry"),
        (of("program_map_del", "counts", "00000000"), "cannot be deleted"),
    ] {
        let (_, why) = bench.refused(0, 0, &call);
        assert!(why.contains(says), "{why}");
    }
    bench.done(&of("program_map_del", "stations", "0100"));
    assert!(bench.value("stations", "0100").is_err());
    let (all, next) = bench.entries("counts", None);
    assert_eq!((all.len(), next), (2, None));
}

#[test]
fn test_entries_come_in_pages() {
    let mut bench = Bench::new();
    bench.done(&load("switch_add", &["m array 4 1 200"]));
    let (mut from, mut keys) = (None, Vec::new());
    loop {
        let (entries, next) = bench.entries("m", from.as_deref());
        keys.extend(entries.into_iter().map(|entry| entry.key));
        from = next;
        if from.is_none() {
            break;
        }
    }
    keys.dedup();
    assert_eq!((keys.len(), keys[199].as_str()), (200, "c7000000"));
}

#[test]
fn test_an_entry_that_names_a_port_is_there_while_the_port_is() {
    let mut bench = Bench::with_program();
    bench.done(r#"{"port_add":{"port":"vale0:web"}}"#);
    bench.done(&set("stations", "0100", "port:web"));
    bench.done(&set("stations", "port:web", "07000000"));
    let count = |bench: &mut Bench| bench.entries("stations", None).0.len();
    assert_eq!(count(&mut bench), 0, "no client holds it");
    // Entries that wait for a port are listed behind those that the map has.
    let (_, waits) = bench.entries("stations", None);
    let (entries, next) = bench.entries("stations", waits.as_deref());
    assert_eq!((entries.len(), entries[0].value.as_str(), next), (2, "port:web", None));
    assert_eq!(bench.value("stations", "0100").unwrap(), "port:web");
    bench.attach(2, 0, "vale0:web").unwrap();
    assert_eq!(count(&mut bench), 2);
    assert_eq!(bench.entries("stations", None).1, None);
    assert_eq!(bench.value("stations", "0100").unwrap(), "port:web", "as it was set");
    assert_eq!(bench.value("stations", "port:web").unwrap(), "07000000");
    // What the program has made of an entry is shown as it is.
    let program = bench.control.datapath.programs.values_mut().next().unwrap();
    program.set(0, &[1, 0], &[99, 0, 0, 0]).unwrap();
    assert_eq!(bench.value("stations", "0100").unwrap(), "63000000");
    bench.control.hang_up(ConnKey(2));
    assert_eq!(count(&mut bench), 0);
    assert_eq!(bench.value("stations", "port:web").unwrap(), "07000000", "it waits");
    assert_eq!(
        bench.value("stations", "port:other").unwrap_err(),
        "vale0, map stations: the map has no such entry"
    );
    bench.attach(3, 0, "vale0:web").unwrap();
    assert_eq!(count(&mut bench), 2);
    bench.done(&of("program_map_del", "stations", "port:web"));
    assert_eq!(count(&mut bench), 1);
}

#[test]
fn test_an_entry_that_names_a_port_without_a_client_comes_with_the_port() {
    let mut bench = Bench::with_program();
    bench.done(&set("stations", "0100", "port:sink"));
    let count = |bench: &mut Bench| bench.entries("stations", None).0.len();
    bench.done(r#"{"port_add":{"port":"vale0:sink","kind":"null"}}"#);
    assert_eq!(count(&mut bench), 1);
    bench.done(r#"{"port_del":{"port":"vale0:sink"}}"#);
    assert_eq!(count(&mut bench), 0);
    for name in ["", "a b", "x\\ny", "p{1", &"long".repeat(1000)] {
        let (code, _) = bench.refused(0, 0, &set("stations", "0200", &format!("port:{name}")));
        assert_eq!(code, ErrorCode::BadRequest, "{name}");
    }
}

#[test]
fn test_entries_that_name_a_port_cost_one_message_together() {
    let mut bench = Bench::new();
    bench.done(&load("switch_add", &["stations hash 2 4 200"]));
    for key in 0..100 {
        bench.done(&set("stations", &format!("{key:02x}00"), "port:web"));
    }
    let before = bench.control.datapath.map_changes;
    bench.attach(2, 0, "vale0:web").unwrap();
    assert_eq!(bench.show().maps[0].entries, 100);
    bench.control.hang_up(ConnKey(2));
    assert_eq!(bench.control.datapath.map_changes - before, 2);
}

/// The map is full: whenever a client takes the port, its entry finds no room.
#[test]
fn test_entries_that_find_no_room_do_not_fill_the_log() {
    let lines = log::logged(|bench| {
        bench.done(&load("switch_add", &MAPS));
        for key in ["0100", "0200", "0300", "0400"] {
            bench.done(&set("stations", key, "05000000"));
        }
        bench.done(&set("stations", "0500", "port:web"));
        for _ in 0..100 {
            bench.attach(2, 0, "vale0:web").unwrap();
            bench.control.hang_up(ConnKey(2));
        }
        // Root's changes are all in the log, and what they cause is not.
        for _ in 0..3 {
            bench.attach(2, 0, "vale0:web").unwrap();
            bench.done(&load("switch_set", &MAPS));
            bench.control.hang_up(ConnKey(2));
        }
    });
    let missing = lines.iter().filter(|line| line.contains("is missing")).count();
    assert!((1..=40).contains(&missing), "{missing}");
    assert!(lines.len() < 60, "{} lines", lines.len());
}

#[test]
fn test_a_replacement_leaves_what_the_program_has_made_of_entries() {
    let mut bench = Bench::with_program();
    bench.done(&set("counts", "00000000", "0900000000000000"));
    let program = bench.control.datapath.programs.values_mut().next().unwrap();
    program.set(1, &[0; 4], &[77, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    bench.done(&load("switch_set", &MAPS));
    assert_eq!(bench.value("counts", "00000000").unwrap(), "4d00000000000000");
}

#[test]
fn test_one_entry_has_one_text() {
    let mut bench = Bench::new();
    bench.done(&load("switch_add", &["m hash 2 1 4", "nets lpm 8 1 4"]));
    bench.done(&set("m", "AB00", "01"));
    bench.done(&set("m", "ab00", "02"));
    bench.done(&set("nets", "080000000a070707", "01"));
    bench.done(&of("program_map_del", "nets", "080000000a000000"));
    let saved = bench.saved().program.unwrap();
    assert_eq!(saved.entries.len(), 1, "{saved:?}");
    assert_eq!(bench.value("m", "ab00").unwrap(), "02");
    bench.done(&of("program_map_del", "m", "aB00"));
    assert!(bench.saved().program.unwrap().entries.is_empty());
    assert!(bench.refused(0, 0, &set("nets", "210000000a070707", "01")).1.contains("longer"));
}

#[test]
fn test_a_program_and_what_commands_have_set_survive_a_restart_and_a_replacement() {
    let mut bench = Bench::with_program();
    bench.done(&set("stations", "0100", "05000000"));
    bench.done(&set("counts", "00000000", "0900000000000000"));
    let settings = bench.saved();
    let plan = SwitchPlan {
        name: "vale0".parse().unwrap(),
        config: settings::change_switch(SwitchConfig::default(), &settings).unwrap(),
        program: settings.program.clone(),
        ..Config::parse("[switch.vale9]\n", std::path::Path::new("x")).unwrap().switches[0].clone()
    };
    let mut next = Bench::new();
    next.control.make_planned(&client(0, 0).caller, &plan).unwrap();
    assert_eq!(next.value("stations", "0100").unwrap(), "05000000");
    assert_eq!(next.saved().program, settings.program);
    // A map that the new program declares otherwise begins anew.
    next.done(&load("switch_set", &["stations hash 2 4 4", "counts array 4 8 3"]));
    assert_eq!(next.value("stations", "0100").unwrap(), "05000000");
    assert_eq!(next.value("counts", "00000000").unwrap(), "0000000000000000");
    assert_eq!(next.saved().program.unwrap().entries.len(), 1);
    // A saved program that this daemon refuses leaves a switch that drops all.
    let mut bad = settings.program.unwrap();
    bad.image = bad.image.replace("code b7", "code ff");
    let mut third = Bench::new();
    let plan = SwitchPlan { program: Some(bad), ..plan };
    third.control.make_planned(&client(0, 0).caller, &plan).unwrap();
    assert_eq!(third.refused(0, 0, SHOW).0, ErrorCode::NotFound);
    third.done(&settings_of(r#""age_s":7"#));
    assert_eq!(third.saved().program, plan.program, "kept for a daemon that accepts it");
    third.done(&load("switch_set", &MAPS));
    assert_ne!(third.saved().program, plan.program);
}
