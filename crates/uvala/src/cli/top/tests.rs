//! What keys and samples do to the state, and what is drawn of it.

use std::collections::BTreeMap;

use protocol::{
    ChainInfo, ChainSpec, Counter, Fill, FlowCacheInfo, FunctionInfo, PortInfo, PortStats,
    WorkerInfo,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::sample::{Known, Sample};
use super::state::{Action, Choices, Link, Sort, State};
use super::{draw, text};
use crate::cli::nf::top::function_for_tests;

/// What a port has counted: its name, frames sent and received, and drops.
type Counted<'a> = (&'a str, u64, u64, &'a [(&'a str, u64)]);

fn port(&(name, tx, rx, drops): &Counted<'_>) -> PortStats {
    let counter = |frames| Counter { frames, bytes: frames * 125 };
    let drops = drops.iter().map(|&(reason, frames)| (reason.to_owned(), frames)).collect();
    PortStats {
        port: name.parse().unwrap(),
        serial: 0,
        tx: counter(tx),
        rx: counter(rx),
        drops,
        tx_queues: vec![counter(tx)],
        rx_queues: vec![counter(rx)],
        resyncs: 0,
        abandoned: 0,
        wakes: rx / 10,
        longest_turn_ns: 0,
        rx_fill: Some(Fill { slots: 256, capacity: 1023 }),
        called_in: 0,
        called_out: 0,
        gone_s: None,
    }
}

fn worker(worker: u32, cpu_ms: u64) -> WorkerInfo {
    WorkerInfo {
        worker,
        cpu: Some(worker + 2),
        switches: 1,
        ports: 3,
        steps: 0,
        turns_ns_log2: Vec::new(),
        turns_ns: 0,
        batches_log2: vec![0, 4],
        batch_slots: 12,
        cpu_ms,
        kicks: 0,
        longest_turn_ns: 52_300,
        longest_turn_port: None,
        stalls: 0,
        last_stall: None,
    }
}

fn function(port: &str, frames_in: u64, cpu_ms: u64) -> FunctionInfo {
    let cores = Some("2-3".to_owned());
    FunctionInfo { waiting: 3, cores, ..function_for_tests(port, 7, frames_in, cpu_ms) }
}

/// A chain with one function, which gets as many frames as the first port sends.
fn with_chain(sample: Sample) -> Sample {
    let (switch, frames) = ("vale0".parse().unwrap(), sample.stats[0].tx.frames);
    let info = function("vale0:fw", frames, sample.at_ns / 2_000_000);
    let chain = ChainInfo {
        chain: ChainSpec { name: "web".to_owned(), services: vec!["fw".to_owned()], out: None },
        number: 0,
        ports: vec!["a".to_owned()],
        entered: frames,
        shed: 0,
        early: 0,
        drops: BTreeMap::new(),
        lost: 0,
        flow_cache: FlowCacheInfo::default(),
        broken: None,
    };
    Sample {
        functions: [(info.port.clone(), info)].into(),
        chains: vec![(switch, chain)],
        ..sample
    }
}

fn sample(at_s: u64, ports: &[Counted<'_>]) -> Sample {
    Sample {
        at_ns: at_s * 1_000_000_000,
        time_ns: (3600 + at_s) * 1_000_000_000,
        stats: ports.iter().map(port).collect(),
        workers: vec![worker(0, at_s * 430), worker(1, 0)],
        ..Sample::default()
    }
}

fn choices() -> Choices {
    Choices { sort: Sort::Total, reversed: false, hide_idle: false, filter: String::new() }
}

/// Ports with some past; of one, what is known besides its counters.
fn grown() -> State {
    let (mut now, mut state) = (later(), busy());
    for at in 3..12 {
        now[0].1 += (at % 5) * 300_000;
        now[1].2 += at * 90_000;
        let mut sample = sample(at, &now);
        let info: PortInfo = serde_json::from_value(serde_json::json!({
            "port": "vale0:a", "kind": "shm", "number": 1, "worker": 0, "persistent": false,
            "creator": 0, "client": {"pid": 42, "uid": 0, "name": "pkt-gen"}, "memory": 0,
            "trust_group": null, "settings": {"vlan": "access:7"},
        }))
        .unwrap();
        let program = Some((42, "pkt-gen".to_owned()));
        sample.ports.insert(info.port.clone(), Known { info, program });
        state.take(with_chain(sample));
    }
    state
}

/// Three ports: one is busy, one drops, one is idle.
fn busy() -> State {
    let mut state = State::new(choices(), None, sample(1, &at_first()));
    state.take(sample(2, &later()));
    state
}

fn at_first() -> [Counted<'static>; 3] {
    [("vale0:a", 0, 0, &[]), ("vale0:b", 0, 0, &[("no_room", 10)]), ("vale0:idle", 5, 5, &[])]
}

fn later() -> [Counted<'static>; 3] {
    let drops = &[("no_room", 1010), ("vlan", 3)];
    [("vale0:a", 1_230_000, 5, &[]), ("vale0:b", 0, 900_000, drops), ("vale0:idle", 5, 5, &[])]
}

fn press(state: &mut State, keys: &[KeyCode]) -> Action {
    let press = |key: &KeyCode| state.key(KeyEvent::new(*key, KeyModifiers::NONE));
    keys.iter().map(press).last().unwrap()
}

fn type_in(state: &mut State, text: &str) {
    for letter in text.chars() {
        press(state, &[KeyCode::Char(letter)]);
    }
}

fn names(state: &State) -> Vec<String> {
    state.ports().iter().map(|row| row.stats.port.port().to_owned()).collect()
}

/// What stands on a terminal of this size.
fn drawn(state: &State, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

#[test]
fn test_sorting_and_reversing_go_by_keys() {
    let mut state = busy();
    assert_eq!(names(&state), ["a", "b", "idle"], "by frames in both directions");
    press(&mut state, &[KeyCode::Char('r')]);
    assert_eq!(names(&state), ["idle", "b", "a"]);
    press(&mut state, &[KeyCode::Char('r'), KeyCode::Char('<')]);
    assert_eq!(
        (state.choices.sort, names(&state)),
        (Sort::Drops, ["b", "a", "idle"].map(str::to_owned).to_vec())
    );
    press(&mut state, &[KeyCode::Char('>'), KeyCode::Char('>')]);
    assert_eq!(state.choices.sort, Sort::Port, "after the last column comes the first");
}

#[test]
fn test_a_filter_is_typed_kept_and_cleared() {
    let mut state = busy();
    type_in(&mut state, "/VALE0 idq");
    assert!(names(&state).is_empty(), "q is a letter here");
    press(&mut state, &[KeyCode::Backspace, KeyCode::Enter]);
    assert_eq!(names(&state), ["idle"]);
    press(&mut state, &[KeyCode::Esc]);
    assert_eq!(names(&state).len(), 3);
    type_in(&mut state, "/b");
    press(&mut state, &[KeyCode::Esc]);
    assert_eq!((names(&state).len(), state.is_typing), (3, false));
}

#[test]
fn test_idle_ports_are_hidden_once_there_are_rates() {
    let mut state =
        State::new(Choices { hide_idle: true, ..choices() }, None, sample(1, &at_first()));
    assert_eq!(names(&state).len(), 3);
    state.take(sample(2, &later()));
    assert_eq!(names(&state), ["a", "b"]);
    press(&mut state, &[KeyCode::Char('i')]);
    assert_eq!(names(&state).len(), 3);
}

#[test]
fn test_the_cursor_follows_a_port_and_enter_shows_it() {
    let mut state = busy();
    press(&mut state, &[KeyCode::Down]);
    assert_eq!(state.cursor(), 1, "on b");
    press(&mut state, &[KeyCode::Char('r'), KeyCode::Down]);
    assert_eq!(state.cursor(), 2, "idle, b, a");
    press(&mut state, &[KeyCode::Up, KeyCode::Enter, KeyCode::Enter]);
    assert_eq!(state.single().unwrap().stats.port.port(), "b");
    press(&mut state, &[KeyCode::Down]);
    assert_eq!(state.single().unwrap().stats.port.port(), "a", "the next one");
    press(&mut state, &[KeyCode::Esc, KeyCode::End, KeyCode::PageUp]);
    assert_eq!((state.port.clone(), state.cursor()), (None, 0));
    // From a reason for drops to the port that has most of them.
    press(&mut state, &[KeyCode::Char('2'), KeyCode::Enter]);
    assert_eq!(state.single().unwrap().stats.port.port(), "b");
    press(&mut state, &[KeyCode::Char('4'), KeyCode::Enter]);
    assert_eq!(state.port, None, "a worker is no port");
}

#[test]
fn test_a_port_that_is_named_has_neighbours() {
    let port = Some("vale0:b".parse().unwrap());
    let mut state = State::new(choices(), port, sample(1, &at_first()));
    state.take(sample(2, &later()));
    press(&mut state, &[KeyCode::Enter]);
    assert_eq!(state.single().unwrap().stats.port.port(), "b");
    press(&mut state, &[KeyCode::Down]);
    assert_eq!(state.single().unwrap().stats.port.port(), "idle");
    press(&mut state, &[KeyCode::Esc]);
    assert_eq!((state.port.clone(), state.cursor()), (None, 2));
}

#[test]
fn test_the_cursor_stays_in_its_row_when_its_port_goes() {
    let mut state = busy();
    press(&mut state, &[KeyCode::Down]);
    state.take(sample(3, &[later()[0], later()[2]]));
    assert_eq!(state.cursor(), 1);
    state.take(sample(4, &[]));
    assert_eq!(state.cursor(), 0);
    assert_eq!(press(&mut state, &[KeyCode::Enter, KeyCode::Down]), Action::Draw);
}

#[test]
fn test_another_daemon_counts_from_zero() {
    let mut state = busy();
    state.lose(Link::Down("gone".to_owned()));
    assert_eq!(names(&state).len(), 3, "the last rows stay");
    assert!(drawn(&state, 80, 24)[0].contains("NO DAEMON"));
    state.begin(sample(1, &later()));
    assert!(!state.has_rates() && *state.link() == Link::Up);
    assert_eq!(state.ports()[0].tx.frames, 0.0);
}

#[test]
fn test_a_pause_keeps_the_rows_and_its_end_shows_what_came() {
    let mut state = busy();
    press(&mut state, &[KeyCode::Char('p')]);
    let mut more = later();
    (more[0].1, more[1].1) = (1_230_000, 4_000_000);
    state.take(sample(3, &more));
    state.take(sample(4, &more));
    assert_eq!(names(&state), ["a", "b", "idle"]);
    press(&mut state, &[KeyCode::Char('p')]);
    assert_eq!(names(&state), ["b", "a", "idle"]);
    assert_eq!(state.ports()[0].tx.frames, 2_000_000.0, "in two seconds");
    state.take(sample(5, &more));
    assert_eq!(state.ports()[0].tx.frames, 0.0);
}

#[test]
fn test_keys_end_stop_and_sample() {
    let mut state = busy();
    assert_eq!(press(&mut state, &[KeyCode::Char('q')]), Action::Quit);
    assert_eq!(press(&mut state, &[KeyCode::Char(' ')]), Action::Sample);
    let mut control =
        |letter| state.key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL));
    assert_eq!([control('c'), control('z')], [Action::Quit, Action::Suspend]);
    assert_eq!(press(&mut state, &[KeyCode::Char('?'), KeyCode::Char('q')]), Action::Draw);
    assert!(!state.shows_help, "any key closes the help");
    let mut with = |letter, modifier| state.key(KeyEvent::new(KeyCode::Char(letter), modifier));
    with('r', KeyModifiers::CONTROL);
    with('i', KeyModifiers::ALT);
    let Choices { reversed, hide_idle, .. } = state.choices;
    assert!(!reversed && !hide_idle, "no letters");
    type_in(&mut state, "/ab");
    let mut with = |letter| state.key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL));
    with('w');
    with('h');
    assert_eq!(state.choices.filter, "a");
}

/// The screen is what a file beside the tests has. `UPDATE_SNAPSHOT=1` writes the file.
fn assert_drawn(state: &State, width: u16, height: u16, name: &str) {
    let lines = drawn(state, width, height);
    assert!(lines[usize::from(height) - 1].ends_with("q quit"), "the keys have room: {lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("-0")), "{lines:#?}");
    let screen = lines.join("\n") + "\n";
    let path = format!("{}/src/cli/top/screens/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_SNAPSHOT").is_some() {
        std::fs::write(&path, &screen).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(screen == expected, "{path} has\n{expected}\nand this is\n{screen}");
}

#[test]
fn test_80_by_24() {
    let mut state = busy();
    assert_drawn(&state, 80, 24, "ports-80x24");
    press(&mut state, &[KeyCode::Char('2')]);
    assert_drawn(&state, 80, 24, "drops-80x24");
    press(&mut state, &[KeyCode::Enter]);
    assert_drawn(&state, 80, 24, "port-80x24");
    press(&mut state, &[KeyCode::Char('4'), KeyCode::Char('?')]);
    assert_drawn(&state, 80, 24, "help-80x24");
    press(&mut state, &[KeyCode::Esc]);
    state.lose(Link::Down("no daemon at /run/uvala/uvala.sock".to_owned()));
    assert_drawn(&state, 80, 24, "down-80x24");
}

#[test]
fn test_functions_80_by_24() {
    let mut state = grown();
    press(&mut state, &[KeyCode::Char('3')]);
    assert_drawn(&state, 80, 24, "functions-80x24");
}

#[test]
fn test_200_by_60() {
    let mut state = grown();
    assert_drawn(&state, 200, 60, "ports-200x60");
    press(&mut state, &[KeyCode::Down, KeyCode::Enter]);
    assert_drawn(&state, 200, 60, "port-200x60");
}

#[test]
fn test_no_screen_is_too_small_and_no_view_panics() {
    let mut state = grown();
    for (width, height) in
        [(0, 0), (1, 1), (3, 7), (20, 5), (79, 23), (80, 24), (200, 60), (400, 100)]
    {
        for keys in ["1", "2", "3", "4", "?", "x", "1\n", "/a"] {
            for key in keys.chars() {
                let code = if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) };
                press(&mut state, &[code]);
            }
            assert_eq!(drawn(&state, width, height).len(), usize::from(height));
        }
        press(&mut state, &[KeyCode::Esc, KeyCode::Esc]);
    }
}

#[test]
fn test_text_has_rates_reasons_and_workers() {
    let text = text::of(&busy());
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(words(lines[1]), ["vale0:a", "1.23M", "1.23G", "5", "5.00k", "0", "-"], "{text}");
    assert!(text.contains("\nno_room: The destination had no free slot. Give the port"), "{text}");
    assert_eq!(words(lines[lines.len() - 2]), ["0", "43", "%", "3", "0"], "{text}");
}

#[test]
fn test_text_without_rows_says_why() {
    let mut state = busy();
    state.choices.filter = "nothing".to_owned();
    assert!(text::of(&state).contains("\nno port has all words of the filter\n"));
}

#[test]
fn test_a_list_that_is_longer_than_the_screen_says_where_it_is() {
    let names: Vec<String> =
        (0..40).map(|at| format!("vale0:a_port_with_a_long_name_{at}")).collect();
    let ports: Vec<Counted<'_>> = names.iter().map(|name| (name.as_str(), 1, 0, &[][..])).collect();
    let mut state = State::new(choices(), None, sample(1, &ports));
    press(&mut state, &[KeyCode::End]);
    let lines = drawn(&state, 90, 24);
    assert!(lines[5].ends_with(" 24-40 of 40"), "{lines:#?}");
    assert!(lines[7].starts_with("vale0:a_por…ng_name_30 "), "{lines:#?}");
}
