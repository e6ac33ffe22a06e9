//! Maps, as programs and control use them.

mod asm;

use std::collections::BTreeMap;

use asm::*;
use program::{Decision, FaultKind, Frame, Image, Looks, MapDef, MapError, Program};
use proptest::prelude::*;

const FRAME: Frame<'_> = Frame { now_us: 0, port: 3, vlan: 1, bytes: &[10, 1, 2, 3] };

fn image(code: &[u8], maps: &[&str]) -> Image {
    let maps: Vec<MapDef> = maps.iter().map(|map| map.parse().unwrap()).collect();
    let (function, looks, data) = ("f".to_owned(), Looks::Packet, Vec::new());
    Image { function, looks, code: code.to_vec(), data, maps }
}

fn idle(maps: &[&str]) -> Program {
    Program::new(&image(&[mov(0, 0), exit()].concat(), maps), 7).unwrap()
}

/// A program that calls a helper for map 0 with the number in the frame's first four bytes, and a
/// value of twice eight bytes; then it returns the result as a port.
fn helped(helper: i32, flags: i32) -> Vec<u8> {
    let before = [
        insn(0x61, 6, 1, 16, 0),
        insn(0x63, 10, 6, -4, 0),
        insn(0x7b, 10, 6, -16, 0),
        insn(0x7b, 10, 6, -24, 0),
        copy(2, 10),
        alu(0x07, 2, -4),
        copy(3, 10),
        alu(0x07, 3, -24),
        mov(4, flags),
    ];
    let after = [alu(0x57, 0, 0xffff), alu(0x07, 0, 0x1_0000), exit()];
    [before.concat(), load_64(1, 1, 0), call(helper).to_vec(), after.concat()].concat()
}

fn run(program: &mut Program, number: u32) -> u16 {
    match program.run(&Frame { bytes: &number.to_le_bytes(), ..FRAME }) {
        Ok(Decision::To(port)) => port,
        other => panic!("{other:?}"),
    }
}

/// Linux's number of an error, as the lower half of what a helper returns.
fn errno(number: u16) -> u16 {
    number.wrapping_neg()
}

#[test]
fn a_program_updates_and_deletes() {
    let map = ["m hash 4 16 2"];
    let mut program = Program::new(&image(&helped(2, 0), &map), 7).unwrap();
    assert_eq!([1, 2, 1, 3].map(|number| run(&mut program, number)), [0, 0, 0, errno(7)]);
    assert!(!program.has_changed_maps(), "the last call found no room");
    assert_eq!(program.get(0, &2u32.to_le_bytes()).unwrap()[..4], [2, 0, 0, 0]);
    assert_eq!(program.count(0), 2);
    for (flags, result) in [(1, [errno(17), errno(7)]), (2, [0, errno(2)]), (3, [errno(22); 2])] {
        let mut other = Program::new(&image(&helped(2, flags), &map), 7).unwrap();
        other.adopt(&mut program);
        assert_eq!([1, 3].map(|number| run(&mut other, number)), result, "{flags}");
        program.adopt(&mut other);
    }
    let mut other = Program::new(&image(&helped(3, 0), &map), 7).unwrap();
    other.adopt(&mut program);
    assert_eq!([1, 1].map(|number| run(&mut other, number)), [0, errno(2)]);
    assert_eq!(other.count(0), 1);
}

#[test]
fn a_value_is_written_where_it_is() {
    let look_up = [mov(2, 1), insn(0x63, 10, 2, -4, 0), copy(2, 10), alu(0x07, 2, -4)];
    let count = [insn(0x15, 0, 0, 2, 0), mov(1, 1), insn(0xdb, 0, 1, 0, 0), mov(0, 2), exit()];
    let code = [look_up.concat(), load_64(1, 1, 0), call(1).to_vec(), count.concat()].concat();
    let mut program = Program::new(&image(&code, &["m array 4 8 2"]), 7).unwrap();
    for _ in 0..3 {
        assert_eq!(program.run(&FRAME), Ok(Decision::Flood));
        assert!(program.has_changed_maps());
    }
    let values: Vec<_> = program.entries(0, 0, 9).into_iter().map(|(.., value)| value[0]).collect();
    assert_eq!(values, [0, 3]);
    // A number above the last entry is none.
    let beyond = code.clone();
    let mut small = Program::new(&image(&beyond, &["m array 4 8 1"]), 7).unwrap();
    small.run(&FRAME).unwrap();
    assert!(!small.has_changed_maps());
}

#[test]
fn the_longest_prefix_is_found() {
    let mut program = idle(&["m lpm 8 1 8"]);
    let key = |bits: u32, octets: [u8; 4]| [bits.to_le_bytes(), octets].concat();
    for (bits, octets, value) in
        [(0, [0; 4], 1), (8, [10, 0, 0, 0], 2), (13, [10, 8, 0, 0], 3), (32, [10, 8, 0, 1], 4)]
    {
        program.set(0, &key(bits, octets), &[value]).unwrap();
    }
    let find = |octets| program.get(0, &key(32, octets)).unwrap()[0];
    assert_eq!(
        [[9, 9, 9, 9], [10, 1, 0, 0], [10, 15, 1, 1], [10, 8, 0, 1]].map(find),
        [1, 2, 3, 4]
    );
    assert_eq!(program.set(0, &key(33, [0; 4]), &[0]), Err(MapError::Key));
    // What is behind the prefix is no part of it.
    program.set(0, &key(8, [10, 7, 7, 7]), &[9]).unwrap();
    assert_eq!(program.count(0), 4);
    program.delete(0, &key(0, [1, 2, 3, 4])).unwrap();
    assert_eq!(program.get(0, &key(32, [9, 9, 9, 9])), Err(MapError::Missing));
    assert_eq!(program.get(0, &key(9, [10, 8, 0, 1])).unwrap(), [9], "of a short prefix");
}

#[test]
fn control_sees_all_entries_in_pages() {
    let mut program = idle(&["m hash 2 2 100", "a array 4 1 3"]);
    for number in 0..100u16 {
        program.set(0, &number.to_le_bytes(), &[7, 7]).unwrap();
    }
    assert_eq!(program.set(0, &[200, 0], &[7, 7]), Err(MapError::Full));
    assert_eq!(program.set(0, &[200, 0], &[7]), Err(MapError::Value));
    assert_eq!(program.set(0, &[200], &[7, 7]), Err(MapError::Key));
    for number in (0..100u16).step_by(2) {
        program.delete(0, &number.to_le_bytes()).unwrap();
    }
    let (mut from, mut seen) = (0, Vec::new());
    loop {
        let page = program.entries(0, from, 7);
        let Some((next, ..)) = page.last() else { break };
        from = *next;
        seen.extend(page.iter().map(|(_, key, _)| key[0]));
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..100).step_by(2).collect::<Vec<u8>>());
    assert_eq!(program.delete(1, &[0; 4]), Err(MapError::Array));
    assert_eq!(program.set(1, &3u32.to_le_bytes(), &[1]), Err(MapError::Index));
    assert_eq!(program.entries(1, 0, 9).len(), 3);
}

#[test]
fn a_program_keeps_maps_that_it_has_alike() {
    let mut old = idle(&["same hash 4 4 4", "other hash 4 4 4"]);
    for map in 0..2 {
        old.set(map, &[1; 4], &[2; 4]).unwrap();
    }
    let mut new = idle(&["other hash 4 8 4", "same hash 4 4 4"]);
    new.adopt(&mut old);
    assert_eq!(new.get(1, &[1; 4]), Ok(vec![2; 4]));
    assert_eq!(new.get(0, &[1; 4]), Err(MapError::Missing));
}

/// Adds 1 to the first number of each map, and returns "to all" if these have been equal.
fn count_in_both() -> Vec<u8> {
    let look_up = |map: i32| {
        let key = [insn(0x62, 10, 0, -4, 0), copy(2, 10), alu(0x07, 2, -4)];
        [key.concat(), load_64(1, 1, map), call(1).to_vec()].concat()
    };
    let add = [insn(0x79, 3, 0, 0, 0), alu(0x07, 3, 1), insn(0x7b, 0, 3, 0, 0)].concat();
    let both = [look_up(0), add.clone(), insn(0x7b, 10, 3, -16, 0).to_vec(), look_up(1), add];
    let compare = [insn(0x79, 4, 10, -16, 0), mov(0, 2), insn(0x1d, 3, 4, 1, 0), mov(0, 0), exit()];
    [both.concat(), compare.concat()].concat()
}

const BOTH: [&str; 2] = ["one array 4 8 1", "other array 4 8 1"];

fn number(program: &Program, map: usize) -> u64 {
    let value = program.get(map, &[0; 4]).unwrap();
    u64::from_le_bytes(value.try_into().unwrap())
}

#[test]
fn a_run_sees_and_changes_common_maps_as_if_no_other_went_on() {
    const RUNS: u64 = 3000;
    let mut program = Program::new(&image(&count_in_both(), &BOTH), 7).unwrap().into_common();
    let others: Vec<Program> = (0..2).map(|_| program.handle()).collect();
    let begin = program.map_changes();
    std::thread::scope(|scope| {
        for mut other in others {
            scope.spawn(move || {
                (0..RUNS).for_each(|_| assert_eq!(other.run(&FRAME), Ok(Decision::Flood)));
                assert_eq!(other.counts().runs, RUNS);
            });
        }
        for _ in 0..RUNS {
            assert_eq!(program.run(&FRAME), Ok(Decision::Flood));
            assert!(program.has_changed_maps());
            assert!(program.map_changes_seen() <= program.map_changes());
        }
    });
    assert_eq!([0, 1].map(|map| number(&program, map)), [3 * RUNS; 2]);
    assert_eq!(program.map_changes(), begin + 3 * RUNS, "each change is counted once");
}

#[test]
fn a_change_by_one_worker_or_control_is_another_number_for_all() {
    let mut program = idle(&["m hash 4 4 4"]).into_common();
    let mut other = program.handle();
    other.run(&FRAME).unwrap();
    let before = (other.map_changes(), other.map_changes_seen());
    program.set(0, &[1; 4], &[5; 4]).unwrap();
    assert_eq!((other.map_changes(), other.map_changes_seen()), (before.0 + 1, before.1));
    assert_eq!(program.delete(0, &[2; 4]), Err(MapError::Missing));
    assert_eq!(other.map_changes(), before.0 + 1, "nothing has changed");
    other.run(&FRAME).unwrap();
    assert_eq!(other.map_changes_seen(), before.0 + 1);
    assert_eq!(other.get(0, &[1; 4]), Ok(vec![5; 4]));
}

/// All that is in a map, in the order of its entries.
fn all(program: &Program, map: usize) -> Vec<(u32, Vec<u8>, Vec<u8>)> {
    program.entries(map, 0, usize::MAX)
}

#[test]
fn a_look_at_a_run_changes_and_counts_nothing() {
    for common in [false, true] {
        let mut program = Program::new(&image(&count_in_both(), &BOTH), 7).unwrap();
        if common {
            program = program.into_common();
        }
        program.run(&FRAME).unwrap();
        program.set(1, &[0; 4], &9u64.to_le_bytes()).unwrap();
        let before = (program.counts(), program.map_changes(), all(&program, 0), all(&program, 1));
        for _ in 0..2 {
            assert_eq!(program.peek(&FRAME), (Ok(Decision::Drop), Vec::new()));
        }
        let after = (program.counts(), program.map_changes(), all(&program, 0), all(&program, 1));
        assert_eq!(before, after);
        assert_eq!(program.run(&FRAME), Ok(Decision::Drop), "2 and 10");
        assert_eq!([0, 1].map(|map| number(&program, map)), [2, 10]);
    }
}

#[test]
fn a_look_at_a_run_that_fails_takes_back_what_it_has_changed() {
    let mut code = helped(2, 0);
    code.truncate(code.len() - 24);
    code.extend([insn(0x79, 0, 0, 0, 0), exit()].concat());
    let mut program = Program::new(&image(&code, &["m hash 4 16 2"]), 7).unwrap();
    let (decided, _) = program.peek(&FRAME);
    assert_eq!(decided.map_err(|fault| fault.kind), Err(FaultKind::Read));
    assert_eq!(program.count(0), 0);
    program.run(&FRAME).unwrap_err();
    assert_eq!(program.count(0), 1, "a run leaves it");
}

#[test]
fn a_run_that_only_reads_at_first_counts_the_steps_of_both_attempts() {
    let code = count_in_both();
    let steps = |mut program: Program| {
        program.run(&FRAME).unwrap();
        let first = program.counts().steps;
        program.run(&FRAME).unwrap();
        (first, program.counts().steps - first)
    };
    let alone = steps(Program::new(&image(&code, &BOTH), 7).unwrap());
    let common = steps(Program::new(&image(&code, &BOTH), 7).unwrap().into_common());
    assert_eq!(alone.0, alone.1);
    assert_eq!(common.1, alone.1, "a worker whose last run wrote begins alone");
    assert!(common.0 > alone.0 && common.0 < 2 * alone.0, "{common:?}, {alone:?}");
}

#[test]
fn old_and_new_program_run_side_by_side_while_one_replaces_the_other() {
    let new = |maps: &[&str]| Program::new(&image(&count_in_both(), maps), 7).unwrap();
    let mut old = [new(&BOTH).into_common()].map(|first| [first.handle(), first]);
    let [[home, elsewhere]] = &mut old;
    home.run(&FRAME).unwrap();
    let mut next = new(&["new array 4 8 1", BOTH[0]]).into_common();
    next.adopt(home);
    let mut next_elsewhere = next.handle();
    assert_eq!(next.run(&FRAME), Ok(Decision::Drop), "one has counted before");
    assert_eq!(elsewhere.run(&FRAME), Ok(Decision::Drop));
    assert_eq!([number(&next, 1), number(&next, 0), number(elsewhere, 1)], [3, 1, 2]);
    next_elsewhere.adopt(elsewhere);
    drop(old);
    let gone: Vec<String> = next.sweep().iter().map(|map| map.def().name.clone()).collect();
    assert_eq!(gone, ["other", "one"], "and the new one that was not needed");
    next_elsewhere.run(&FRAME).unwrap();
    assert_eq!([number(&next, 1), number(&next, 0)], [4, 2]);
    // The places of those that went are used again.
    let mut last = new(&BOTH).into_common();
    last.adopt(&mut next);
    assert_eq!([number(&last, 0), number(&last, 1)], [4, 0]);
    assert_eq!(last.sweep().len(), 2);
}

#[test]
fn a_search_costs_the_entries_that_it_meets() {
    let look_up = |times: usize| {
        let one = [
            [insn(0x62, 10, 0, -4, 5), copy(2, 10), alu(0x07, 2, -4)].concat(),
            load_64(1, 1, 0),
            call(1).to_vec(),
        ];
        [one.concat().repeat(times), [mov(0, 1), exit()].concat()].concat()
    };
    let spent = |map: &str, times: usize, keys: u32| {
        let mut program = Program::new(&image(&look_up(times), &[map]), 7).unwrap();
        for key in 0..keys {
            program.set(0, &key.to_le_bytes(), &[0; 4]).unwrap();
        }
        program.run(&FRAME).map(|_| program.counts().steps).map_err(|fault| fault.kind)
    };
    // Two instructions; five, of which one is long, eight steps for the key, and four for a search
    // that ends at once.
    assert_eq!(spent("m hash 4 4 4", 1, 0), Ok(2 + 18));
    assert_eq!(spent("m hash 4 4 4", 100, 0), Ok(2 + 100 * 18));
    assert_eq!(spent("m hash 4 4 4", 300, 0), Err(FaultKind::Steps));
    assert_eq!(spent("m array 4 4 4", 100, 0), Ok(2 + 100 * 14), "an array is not searched");
    let full = spent("m hash 4 4 1024", 1, 1000).unwrap();
    assert!(full < 2 + 18 + 40, "1000 keys are spread: {full}");
}

/// A program that does with map 0 what the bytes of the frame say: three of them are an operation,
/// a key and a value.
fn obeying(operations: usize) -> Vec<u8> {
    let one = |at: usize| {
        let at = i16::try_from(16 + 3 * at).unwrap();
        let before = [
            insn(0x71, 3, 6, at + 1, 0),
            insn(0x73, 10, 3, -8, 0),
            insn(0x71, 3, 6, at + 2, 0),
            insn(0x73, 10, 3, -16, 0),
            copy(2, 10),
            alu(0x07, 2, -8),
            copy(3, 10),
            alu(0x07, 3, -16),
            mov(4, 0),
            insn(0x71, 5, 6, at, 0),
        ];
        let write = [insn(0x15, 0, 0, 1, 0), insn(0x72, 0, 0, 0, 77)];
        // 0 sets, 1 deletes, and any other looks up and writes where it has found something.
        let choice = [
            [insn(0x55, 5, 0, 2, 0), call(2), insn(0x05, 0, 0, 6, 0)].concat(),
            [insn(0x55, 5, 0, 2, 1), call(3), insn(0x05, 0, 0, 3, 0)].concat(),
            [&[call(1)][..], &write].concat().concat(),
        ];
        [before.concat(), load_64(1, 1, 0), choice.concat()].concat()
    };
    let all: Vec<Vec<u8>> = (0..operations).map(one).collect();
    [copy(6, 1).to_vec(), all.concat(), [mov(0, 0), exit()].concat()].concat()
}

proptest! {
    /// Whatever a run does to a map, a look at it leaves every entry where it is.
    #[test]
    fn a_look_at_any_run_changes_nothing(
        entries in proptest::collection::vec((0..8u8, any::<u8>()), 0..6),
        operations in proptest::collection::vec((0..3u8, 0..8u8, any::<u8>()), 30),
        gone in 0..8u8,
    ) {
        let image = image(&obeying(30), &["m hash 1 1 5"]);
        let [mut program, mut twin] = [7, 7].map(|seed| Program::new(&image, seed).unwrap());
        for program in [&mut program, &mut twin] {
            for (key, value) in &entries {
                let _ = program.set(0, &[*key], &[*value]);
            }
            let _ = program.delete(0, &[gone]);
        }
        let bytes: Vec<u8> = operations.into_iter().flat_map(<[u8; 3]>::from).collect();
        let frame = Frame { bytes: &bytes, ..FRAME };
        prop_assert_eq!(program.peek(&frame).0, Ok(Decision::Drop));
        prop_assert_eq!(all(&program, 0), all(&twin, 0));
        // Also what comes next gets the place that it would have got.
        for program in [&mut program, &mut twin] {
            prop_assert_eq!(program.run(&frame), Ok(Decision::Drop));
        }
        prop_assert_eq!(all(&program, 0), all(&twin, 0));
    }

    /// A map of the standard library is the measure.
    #[test]
    fn a_hash_is_a_map(
        operations in proptest::collection::vec((0..3u8, 0..20u8, any::<u8>()), 1..200),
    ) {
        let (mut program, mut model) = (idle(&["m hash 1 1 10"]), BTreeMap::new());
        for (what, key, value) in operations {
            match what {
                0 if model.len() == 10 && !model.contains_key(&key) => {
                    prop_assert_eq!(program.set(0, &[key], &[value]), Err(MapError::Full));
                }
                0 => {
                    model.insert(key, value);
                    prop_assert_eq!(program.set(0, &[key], &[value]), Ok(()));
                }
                1 => {
                    let expected = model.remove(&key).map(drop).ok_or(MapError::Missing);
                    prop_assert_eq!(program.delete(0, &[key]), expected);
                }
                _ => {
                    let found = program.get(0, &[key]).map(|value| value[0]);
                    prop_assert_eq!(found, model.get(&key).copied().ok_or(MapError::Missing));
                }
            }
            prop_assert_eq!(program.count(0) as usize, model.len());
        }
        let entries = program.entries(0, 0, 99).into_iter();
        let mut all: Vec<_> = entries.map(|(_, key, value)| (key[0], value[0])).collect();
        all.sort_unstable();
        prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
    }
}
