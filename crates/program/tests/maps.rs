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
    assert_eq!(program.maps()[0].count(), 2);
    for (flags, result) in [(1, [errno(17), errno(7)]), (2, [0, errno(2)]), (3, [errno(22); 2])] {
        let mut other = Program::new(&image(&helped(2, flags), &map), 7).unwrap();
        other.adopt(&mut program);
        assert_eq!([1, 3].map(|number| run(&mut other, number)), result, "{flags}");
        program.adopt(&mut other);
    }
    let mut other = Program::new(&image(&helped(3, 0), &map), 7).unwrap();
    other.adopt(&mut program);
    assert_eq!([1, 1].map(|number| run(&mut other, number)), [0, errno(2)]);
    assert_eq!(other.maps()[0].count(), 1);
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
    let values: Vec<_> = program.entries(0, 0).map(|(.., value)| value[0]).collect();
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
    assert_eq!(program.maps()[0].count(), 4);
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
        let page: Vec<_> = program.entries(0, from).take(7).collect();
        let Some((next, ..)) = page.last() else { break };
        from = *next;
        seen.extend(page.iter().map(|(_, key, _)| key[0]));
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..100).step_by(2).collect::<Vec<u8>>());
    assert_eq!(program.delete(1, &[0; 4]), Err(MapError::Array));
    assert_eq!(program.set(1, &3u32.to_le_bytes(), &[1]), Err(MapError::Index));
    assert_eq!(program.entries(1, 0).count(), 3);
}

#[test]
fn a_program_keeps_maps_that_it_has_alike() {
    let mut old = idle(&["same hash 4 4 4", "other hash 4 4 4"]);
    for map in 0..2 {
        old.set(map, &[1; 4], &[2; 4]).unwrap();
    }
    let mut new = idle(&["other hash 4 8 4", "same hash 4 4 4"]);
    new.adopt(&mut old);
    assert_eq!(new.get(1, &[1; 4]), Ok(&[2; 4][..]));
    assert_eq!(new.get(0, &[1; 4]), Err(MapError::Missing));
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
    // Two instructions; five, eight steps for the key, and four for a search that ends at once.
    assert_eq!(spent("m hash 4 4 4", 1, 0), Ok(2 + 17));
    assert_eq!(spent("m hash 4 4 4", 100, 0), Ok(2 + 100 * 17));
    assert_eq!(spent("m hash 4 4 4", 300, 0), Err(FaultKind::Steps));
    assert_eq!(spent("m array 4 4 4", 100, 0), Ok(2 + 100 * 13), "an array is not searched");
    let full = spent("m hash 4 4 1024", 1, 1000).unwrap();
    assert!(full < 2 + 17 + 40, "1000 keys are spread: {full}");
}

proptest! {
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
            prop_assert_eq!(program.maps()[0].count() as usize, model.len());
        }
        let entries = program.entries(0, 0).map(|(_, key, value)| (key[0], value[0]));
        let mut all: Vec<_> = entries.collect();
        all.sort_unstable();
        prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
    }
}
