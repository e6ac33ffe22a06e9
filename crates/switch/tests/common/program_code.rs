//! Code of forwarding programs.
#![allow(dead_code, reason = "each test uses some of it")]

use program::{Image, Looks, MapDef, Program};

/// An instruction.
pub type Insn = [u8; 8];

/// Any instruction.
pub const fn insn(opcode: u8, dst: u8, src: u8, offset: i16, imm: i32) -> Insn {
    let ([o0, o1], [i0, i1, i2, i3]) = (offset.to_le_bytes(), imm.to_le_bytes());
    [opcode, src << 4 | dst, o0, o1, i0, i1, i2, i3]
}

/// Returns.
pub const EXIT: Insn = insn(0x95, 0, 0, 0, 0);

/// Returns this.
pub const fn result(returned: i32) -> [Insn; 2] {
    [insn(0xb7, 0, 0, 0, returned), EXIT]
}

/// Nowhere.
pub const DROP: i32 = 0;
/// As learning does.
pub const LEARNING: i32 = 1;
/// To the port of a number that is added.
pub const TO: i32 = 0x1_0000;

/// Looks up entry 0 of map 0.
pub const LOOK_UP: [Insn; 6] = [
    insn(0x62, 10, 0, -4, 0),
    insn(0xbf, 2, 10, 0, 0),
    insn(0x07, 2, 0, 0, -4),
    insn(0x18, 1, 1, 0, 0),
    insn(0, 0, 0, 0, 0),
    insn(0x85, 0, 0, 0, 1),
];

/// Adds 1 to that entry, and returns this.
pub fn count_and(returned: i32) -> Vec<Insn> {
    let add = [insn(0xb7, 1, 0, 0, 1), insn(0xdb, 0, 1, 0, 0)];
    [&LOOK_UP[..], &add, &result(returned)].concat()
}

/// Returns what is in that entry.
pub fn ask_map() -> Vec<Insn> {
    [&LOOK_UP[..], &[insn(0x79, 0, 0, 0, 0), EXIT]].concat()
}

/// Goes to the port that a byte of the frame names.
pub const fn by_byte(at: i16) -> [Insn; 3] {
    [insn(0x71, 0, 1, 16 + at, 0), insn(0x07, 0, 0, 0, TO), EXIT]
}

/// Sends to these ports.
pub fn to_set(ports: &[i32]) -> Vec<Insn> {
    let add = |&port: &i32| [insn(0xb7, 1, 0, 0, port), insn(0x85, 0, 0, 0, 1002)];
    ports.iter().flat_map(add).chain(result(3)).collect()
}

/// A program with one map, an array of one entry of eight bytes.
pub fn program(looks: Looks, code: &[Insn]) -> Program {
    let maps: Vec<MapDef> = vec!["m array 4 8 1".parse().expect("a map")];
    let (function, data) = ("f".to_owned(), Vec::new());
    let image = Image { function, looks, code: code.concat(), data, maps };
    Program::new(&image, 1).expect("a program")
}
