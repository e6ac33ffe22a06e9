//! A second machine, for tests: the plain one, which runs the eight bytes of an instruction as RFC
//! 9669 has it. Both must do the same to the last step.

use proptest::prelude::*;

use crate::code::{INSN, Limits, MAP, decode};
use crate::dispatch::low;
use crate::fault::{Fault, FaultKind};
use crate::limits::{CALLS_MAX, PORTS_MAX, STACK, STEPS_MAX};
use crate::machine::{Machine, hash, paid_for};
use crate::maps::{Key, Map, MapDef, Update};
use crate::memory::{FRAME, MAP_REGION, Memory, STACK_REGION, address, map_handle, map_of};
use crate::quicken::quicken;
use crate::store::{Reach, Touch};

type Ran<T> = Result<T, FaultKind>;

/// An instruction, by its fields.
#[derive(Clone, Copy, Debug)]
struct Insn {
    opcode: u8,
    dst: usize,
    src: usize,
    offset: i16,
    imm: i32,
}

impl Insn {
    fn bytes(self) -> [u8; INSN] {
        let ([a, b], [c, d, e, f]) = (self.offset.to_le_bytes(), self.imm.to_le_bytes());
        let registers = u8::try_from(self.src << 4 | self.dst).expect("registers are few");
        [self.opcode, registers, a, b, c, d, e, f]
    }
}

/// What comes after an instruction.
enum Then {
    Next,
    Jump(usize),
    Call(usize),
    Return,
}

struct Reference<'a> {
    /// Frame, stack and constants, behind a region without bytes.
    regions: [Vec<u8>; MAP_REGION],
    maps: &'a mut [Map],
    changed: bool,
    ports: Vec<u16>,
    calls: Vec<(usize, [u64; 4])>,
    steps: u32,
    registers: [u64; 11],
}

const NOW_US: u64 = 77;

impl<'a> Reference<'a> {
    fn new(frame: &[u8; FRAME], data: &[u8], maps: &'a mut [Map]) -> Self {
        let regions = [vec![], frame.to_vec(), vec![0; STACK * CALLS_MAX], data.to_vec()];
        let mut registers = [0; 11];
        registers[1] = address(1, 0);
        registers[10] = address(STACK_REGION, STACK);
        let (changed, ports, calls) = (false, vec![], vec![]);
        Self { regions, maps, changed, ports, calls, steps: STEPS_MAX, registers }
    }

    fn run(&mut self, code: &[Insn]) -> Result<u64, Fault> {
        let (mut begin, mut at) = (0, 0);
        loop {
            let is_wide = code[at].opcode == 0x18;
            let then = self.step(code[at], at, code.get(at + 1).map_or(0, |next| next.imm));
            if matches!(then, Ok(Then::Next)) {
                at += 1 + usize::from(is_wide);
                continue;
            }
            let fault = |kind| Fault { kind, at };
            let count = u32::try_from(at + 1 - begin).expect("a program is short");
            let left = self.steps.checked_sub(count);
            self.steps = left.unwrap_or(0);
            left.ok_or(fault(FaultKind::Steps))?;
            begin = match then.map_err(fault)? {
                Then::Next => unreachable!("the block goes on"),
                Then::Jump(place) => place,
                Then::Call(_) if self.calls.len() + 1 >= CALLS_MAX => {
                    return Err(fault(FaultKind::Calls));
                }
                Then::Call(place) => {
                    let kept = self.registers[6..10].try_into().expect("four");
                    self.calls.push((at + 1, kept));
                    place
                }
                Then::Return => {
                    let Some((back, kept)) = self.calls.pop() else {
                        return Ok(self.registers[0]);
                    };
                    self.registers[6..10].copy_from_slice(&kept);
                    back
                }
            };
            self.registers[10] = address(STACK_REGION, (self.calls.len() + 1) * STACK);
            at = begin;
        }
    }

    fn step(&mut self, insn: Insn, at: usize, next_imm: i32) -> Ran<Then> {
        let Insn { opcode, dst, src, offset, imm } = insn;
        let number = i64::from(imm).cast_unsigned();
        let size = [4, 2, 1, 8][usize::from(opcode >> 3 & 3)];
        let behind = |by: i64| usize::try_from(signed(at) + 1 + by).expect("it was checked");
        match opcode & 7 {
            0 => {
                let wide = u64::from(next_imm.cast_unsigned()) << 32 | number & 0xffff_ffff;
                let map = usize::try_from(number & 0xffff).expect("a short number");
                self.registers[dst] = if src == MAP.into() { map_handle(map) } else { wide };
            }
            1 => {
                let at = self.registers[src].wrapping_add_signed(offset.into());
                self.registers[dst] = self.load(at, size)?;
            }
            2 => self.store(dst, offset, size, number)?,
            3 if opcode & 0xe0 == 0xc0 => self.atomic(insn, size)?,
            3 => self.store(dst, offset, size, self.registers[src])?,
            class @ (4 | 7) => {
                let operand = if opcode & 8 != 0 { self.registers[src] } else { number };
                let old = self.registers[dst];
                self.registers[dst] = match (opcode >> 4, class) {
                    (13, 4) => ordered(opcode & 8 != 0, imm, old),
                    (op, 7) => arithmetic(op, old, operand),
                    (op, _) => arithmetic_32(op, low(old), low(operand)).into(),
                };
            }
            _ if opcode == 0x95 => return Ok(Then::Return),
            _ if opcode == 0x85 && src == 1 => return Ok(Then::Call(behind(imm.into()))),
            _ if opcode == 0x85 => self.registers[0] = self.help(imm)?,
            class => {
                let operand = if opcode & 8 != 0 { self.registers[src] } else { number };
                if holds(opcode >> 4, class == 5, self.registers[dst], operand) {
                    return Ok(Then::Jump(behind(offset.into())));
                }
            }
        }
        Ok(Then::Next)
    }

    /// All bytes of an address's region from there on.
    fn bytes(&self, address: u64) -> Option<&[u8]> {
        let region = usize::try_from(address >> 32).ok()?;
        let bytes = match region.checked_sub(MAP_REGION) {
            None => &self.regions[region],
            Some(map) => self.maps.get(map)?.values(),
        };
        bytes.get(usize::try_from(address & 0xffff_ffff).ok()?..)
    }

    fn copied(&self, address: u64, count: usize) -> Ran<Vec<u8>> {
        let bytes = self.bytes(address).and_then(|bytes| bytes.get(..count));
        bytes.map(<[u8]>::to_vec).ok_or(FaultKind::Read)
    }

    fn load(&self, address: u64, size: usize) -> Ran<u64> {
        let bytes = self.copied(address, size)?;
        Ok(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn store(&mut self, dst: usize, offset: i16, size: usize, number: u64) -> Ran<()> {
        let address = self.registers[dst].wrapping_add_signed(offset.into());
        let place = usize::try_from(address & 0xffff_ffff).expect("32 bits");
        let bytes = &number.to_le_bytes()[..size];
        let written = match usize::try_from(address >> 32).expect("32 bits") {
            STACK_REGION => self.regions[STACK_REGION]
                .get_mut(place..)
                .and_then(|rest| rest.get_mut(..size))
                .map(|rest| rest.copy_from_slice(bytes)),
            region => region
                .checked_sub(MAP_REGION)
                .and_then(|map| self.maps.get_mut(map))
                .and_then(|map| {
                    self.changed = true;
                    match size {
                        1 => map.write::<1>(place, number),
                        2 => map.write::<2>(place, number),
                        4 => map.write::<4>(place, number),
                        _ => map.write::<8>(place, number),
                    }
                }),
        };
        written.ok_or(FaultKind::Write)
    }

    fn atomic(&mut self, insn: Insn, size: usize) -> Ran<()> {
        let address = self.registers[insn.dst].wrapping_add_signed(insn.offset.into());
        let (old, with) = (self.load(address, size)?, self.registers[insn.src]);
        let low = |number: u64| if size == 4 { number & 0xffff_ffff } else { number };
        let new = match insn.imm & 0xf0 {
            0xe0 => with,
            0xf0 if old == low(self.registers[0]) => with,
            0xf0 => old,
            op => arithmetic(u8::try_from(op >> 4).expect("four bits"), old, with),
        };
        self.store(insn.dst, insn.offset, size, new)?;
        match insn.imm {
            0xf1 => self.registers[0] = old,
            imm if imm & 1 != 0 => self.registers[insn.src] = old,
            _ => {}
        }
        Ok(())
    }

    fn help(&mut self, helper: i32) -> Ran<u64> {
        let [_, a, b, c, d, ..] = self.registers;
        match helper {
            1..=3 => self.help_with_map(helper, [a, b, c, d]),
            5 => Ok(NOW_US * 1000),
            1001 => {
                let bytes = usize::try_from(b).expect("64 bits");
                self.steps = paid_for(self.steps, bytes)?;
                Ok(hash(c, &self.copied(a, bytes)?))
            }
            1002 if self.ports.len() == PORTS_MAX => Err(FaultKind::Ports),
            1002 => {
                self.ports.push(u16::try_from(a).map_err(|_| FaultKind::Decision)?);
                Ok(0)
            }
            _ => Err(FaultKind::Panic),
        }
    }

    fn help_with_map(&mut self, helper: i32, [map, key, value, flags]: [u64; 4]) -> Ran<u64> {
        let number = map_of(map).filter(|&map| map < self.maps.len()).ok_or(FaultKind::Map)?;
        let (key_bytes, value_bytes) =
            (self.maps[number].def().key_bytes(), self.maps[number].def().value_bytes());
        let before = self.steps;
        self.steps = paid_for(self.steps, key_bytes)?;
        // A look-up that fails takes no steps.
        let key = self.copied(key, key_bytes);
        if helper == 1 && key.is_err() {
            self.steps = before;
        }
        let key = Key::new(&key?);
        let mut steps = self.steps;
        if helper == 1 {
            let found = self.maps[number].find(&key, &mut steps);
            self.steps = if found.is_some() { steps } else { before };
            let start = |entry| address(MAP_REGION + number, self.maps[number].start(entry));
            return Ok(found.ok_or(FaultKind::Steps)?.map_or(0, start));
        }
        let changed = if helper == 2 {
            self.steps = paid_for(self.steps, value_bytes)?;
            steps = self.steps;
            let value = self.copied(value, value_bytes)?;
            let how = [Update::Any, Update::New, Update::Old];
            let how = usize::try_from(flags).ok().and_then(|flags| how.get(flags).copied());
            let Some(how) = how else { return Ok((-22_i64).cast_unsigned()) };
            let map = &mut self.maps[number];
            map.enter(&key, how, &mut steps)
                .map(|entered| entered.map(|entry| map.set_value(entry, &value)))
        } else {
            self.maps[number].remove(&key, &mut steps)
        };
        self.steps = steps;
        self.changed |= matches!(changed, Some(Ok(())));
        let changed = changed.ok_or(FaultKind::Steps)?;
        Ok(changed.map_or_else(|error| (-error.errno()).cast_unsigned(), |()| 0))
    }
}

/// A place, to go on from.
fn signed(place: usize) -> i64 {
    i64::try_from(place).expect("a program is short")
}

fn arithmetic(op: u8, a: u64, b: u64) -> u64 {
    match op {
        0 => a.wrapping_add(b),
        1 => a.wrapping_sub(b),
        2 => a.wrapping_mul(b),
        3 => a.checked_div(b).unwrap_or(0),
        4 => a | b,
        5 => a & b,
        6 => a << (b % 64),
        7 => a >> (b % 64),
        8 => 0_u64.wrapping_sub(a),
        9 => a.checked_rem(b).unwrap_or(a),
        10 => a ^ b,
        11 => b,
        _ => (a.cast_signed() >> (b % 64)).cast_unsigned(),
    }
}

fn arithmetic_32(op: u8, a: u32, b: u32) -> u32 {
    match op {
        3 => a.checked_div(b).unwrap_or(0),
        6 => a << (b % 32),
        7 => a >> (b % 32),
        9 => a.checked_rem(b).unwrap_or(a),
        12 => (a.cast_signed() >> (b % 32)).cast_unsigned(),
        // The lower half of the result is of the lower halves alone.
        op => low(arithmetic(op, a.into(), b.into())),
    }
}

fn ordered(to_big: bool, bits: i32, number: u64) -> u64 {
    match (to_big, bits) {
        (true, 16) => number.swap_bytes() >> 48,
        (true, 32) => low(number).swap_bytes().into(),
        (true, _) => number.swap_bytes(),
        (false, 16) => number & 0xffff,
        (false, 32) => number & 0xffff_ffff,
        (false, _) => number,
    }
}

fn holds(op: u8, is_wide: bool, a: u64, b: u64) -> bool {
    let (a, b) = if is_wide { (a, b) } else { (a & 0xffff_ffff, b & 0xffff_ffff) };
    let signed = |number: u64| {
        if is_wide { number.cast_signed() } else { low(number).cast_signed().into() }
    };
    let (c, d): (i64, i64) = (signed(a), signed(b));
    match op {
        0 => true,
        1 => a == b,
        2 => a > b,
        3 => a >= b,
        4 => a & b != 0,
        5 => a != b,
        6 => c > d,
        7 => c >= d,
        10 => a < b,
        11 => a <= b,
        12 => c < d,
        _ => c <= d,
    }
}

/// What a piece of a random program is made of.
type Seed = (usize, [usize; 3], i16, i32);

fn seed() -> impl Strategy<Value = Seed> {
    let numbers = prop_oneof![-3..40_i32, any::<i32>(), Just(0)];
    (0..34_usize, [0..10_usize, 0..10, 0..1000], -24..40_i16, numbers)
}

/// Conditions of jumps, all that there are: of 64 bits, and of 32.
const CONDITIONS: [u8; 22] = [
    0x15, 0x25, 0x35, 0x45, 0x55, 0x65, 0x75, 0xa5, 0xb5, 0xc5, 0xd5, 0x16, 0x26, 0x36, 0x46, 0x56,
    0x66, 0x76, 0xa6, 0xb6, 0xc6, 0xd6,
];

fn insn(opcode: u8, dst: usize, src: usize, offset: i16, imm: i32) -> Insn {
    Insn { opcode, dst, src, offset, imm }
}

fn plain(opcode: u8, dst: usize, imm: i32) -> Insn {
    insn(opcode, dst, 0, 0, imm)
}

/// Instructions that run as one, and such as only look like it.
fn pair((kind, [a, b, c], offset, imm): Seed, load: Insn, condition: u8) -> Vec<Insn> {
    let either = |to: usize| [a, b][to % 2];
    let bit = plain(0x57, a, 1 << (imm & 7));
    match kind {
        21 => {
            let [low, high] = [a, b].map(|to| insn(0x71, to, 6, load.offset.abs() / 2 + 16, 0));
            vec![low, plain(0x67, a, 8), high, insn(0x4f, a, b, 0, 0)]
        }
        22 => vec![load, bit, insn([0x55, condition][b % 2], a, 0, offset, imm & 1)],
        23 => vec![load, insn(condition, a, 0, offset, imm)],
        24 => vec![plain(0x67, a, 32), plain(0x77, a, 32)],
        25 => vec![plain(0x67, a, imm & 63), insn(0x4f, either(c), either(c / 2), 0, 0)],
        26 => vec![plain(0x67, a, 32), plain(0x77, either(c), 32)],
        27 => vec![Insn { opcode: 0x71, ..load }, plain(0x57, either(c), imm)],
        _ => vec![bit, insn(0x55, either(c), 0, offset, imm & 1)],
    }
}

/// Some instructions: any, or such as follow each other in what compilers write.
fn piece((kind, [a, b, c], offset, imm): Seed) -> Vec<Insn> {
    let any = |list: &[u8]| list[c / 10 % list.len()];
    let wide = |src: u8, imm| [insn(0x18, a, src.into(), 0, imm), insn(0, 0, 0, 0, 0)];
    let map = |dst, map| [insn(0x18, dst, MAP.into(), 0, map), insn(0, 0, 0, 0, 0)];
    let key = [insn(0xbf, 2, [10, 6, 10][c % 3], 0, 0), plain(0x07, 2, [-8, 16, -24][c % 3])];
    let load = any(&[0x71, 0x69, 0x61, 0x79]);
    let (near, near_at) = if c % 10 < 5 { (6, offset.abs()) } else { (10, -offset.abs() - 1) };
    let condition = any(&CONDITIONS);
    match kind {
        0..=1 => {
            let ops =
                [0x07, 0x17, 0x27, 0x37, 0x47, 0x57, 0x67, 0x77, 0x87, 0x97, 0xa7, 0xb7, 0xc7];
            vec![plain(any(&ops) & 0xf8 | [4, 7][b % 2], a, imm)]
        }
        2..=3 => {
            let ops = [0x0f, 0x1f, 0x2f, 0x3f, 0x4f, 0x5f, 0x6f, 0x7f, 0x9f, 0xaf, 0xbf, 0xcf];
            vec![insn(any(&ops) & 0xf8 | [4, 7][b % 2], a, b, 0, 0)]
        }
        4 => vec![plain(any(&[0xdc, 0xd4]), a, [16, 32, 64][b % 3])],
        5 => vec![insn(condition, a, 0, offset / 3, imm)],
        6 => vec![insn(condition | 8, a, b, offset / 3, 0)],
        7..=9 => vec![insn(load, a, near, near_at, 0)],
        10 => vec![insn(load, a, b, offset, 0)],
        11..=12 => vec![insn(any(&[0x73, 0x6b, 0x63, 0x7b]), 10, a, -offset.abs() - 1, 0)],
        13 => vec![insn(any(&[0x72, 0x6a, 0x62, 0x7a]), 10, 0, -offset.abs() - 1, imm)],
        14 => vec![insn(any(&[0x73, 0x6b, 0x63, 0x7b]), a, b, offset / 8, 0)],
        15 => vec![insn(0xbf, a, [10, 6, b][c % 3], 0, 0), plain(0x07, a, offset.into())],
        16..=18 => {
            let before = [&map(1, imm & 3)[..], &key].concat();
            let before = if b < 4 { before } else { [&key[..], &map(1, imm & 3)].concat() };
            let helper =
                insn(0x85, 0, 0, 0, [1, 1, 1, 1, 2, 3][offset.unsigned_abs() as usize % 6]);
            let value = [insn(0xbf, 3, 10, 0, 0), plain(0x07, 3, -16), plain(0xb7, 4, imm & 3)];
            let found = [insn(0x15, 0, 0, 1, 0), insn(load, a, 0, [0, 2, 7][b % 3], 0)];
            let kept = [insn(0xbf, 7, 0, 0, 0), plain(0xb7, 0, 0), insn(0x15, 7, 0, 1, 0)];
            let kept = [&kept[..], &[insn(load, 0, 7, 0, 0)]].concat();
            let last = if b % 2 == 0 { found.to_vec() } else { kept };
            [&value[..], &before, &[helper], &last].concat()
        }
        19 => map(a, imm & 3).to_vec(),
        20 => wide(0, imm).to_vec(),
        21..=28 => {
            pair((kind, [a, b, c], offset / 3, imm), insn(load, a, near, near_at, 0), condition)
        }
        29 => vec![insn(0x85, 0, 0, 0, [5, 1001, 1002, 1002, 1003][c % 5])],
        30 => {
            let how = i32::from(any(&[0, 1, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1]));
            vec![insn([0xc3, 0xdb][b % 2], 10, a, -offset.abs() - 1, how)]
        }
        31 => vec![insn(0x05, 0, 0, offset / 3, 0)],
        32 => vec![insn(0xb7, 0, 0, 0, imm), insn(0x95, 0, 0, 0, 0)],
        _ => vec![insn(0x85, 0, 1, 0, i32::from(offset) / 3)],
    }
}

/// A program of such pieces, whose jumps lead to instructions of it.
fn code(seeds: Vec<Seed>) -> Vec<Insn> {
    let keep = Insn { opcode: 0xbf, dst: 6, src: 1, offset: 0, imm: 0 };
    let mut code = vec![keep];
    code.extend(seeds.into_iter().flat_map(piece));
    code.push(Insn { opcode: 0x95, dst: 0, src: 0, ..keep });
    let holes: Vec<bool> = code.iter().map(|insn| insn.opcode == 0).collect();
    for (at, insn) in code.iter_mut().enumerate() {
        let leads = |by: i32| {
            let to = signed(at) + 1 + i64::from(by);
            usize::try_from(to).ok().and_then(|to| holes.get(to)) == Some(&false)
        };
        match insn.opcode {
            0x85 if insn.src == 1 && !leads(insn.imm) => insn.imm = 0,
            0x85 | 0x95 => {}
            opcode if matches!(opcode & 7, 5 | 6) && !leads(insn.offset.into()) => insn.offset = 0,
            _ => {}
        }
    }
    code
}

const MAPS: [&str; 4] = ["h hash 4 8 4", "a array 4 8 2", "l lpm 8 4 4", "w hash 13 2 4"];
const DATA: &[u8] = b"constants";

fn maps() -> Vec<Map> {
    let mut maps: Vec<Map> =
        MAPS.map(|map| Map::new(&map.parse::<MapDef>().expect("a map"), 7)).into();
    for (map, keys) in [(0, [0_u64, 0x0605_0403]), (2, [8 | 1 << 32, 0]), (3, [0, 1])] {
        for key in keys {
            let mut bytes = [0; 13];
            bytes[..8].copy_from_slice(&key.to_le_bytes());
            let key = Key::new(&bytes[..maps[map].def().key_bytes()]);
            let _ = maps[map].enter(&key, Update::Any, &mut u32::MAX.clone());
        }
    }
    maps
}

/// Runs a program on both machines, from the same memory.
fn compare(code: &[Insn], frame: [u8; FRAME]) -> Result<(), TestCaseError> {
    let bytes: Vec<u8> = code.iter().flat_map(|insn| insn.bytes()).collect();
    let limits = Limits { maps: MAPS.len(), data: DATA.len() };
    let insns = decode(&bytes, limits).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let mut plain_maps = maps();
    let mut plain = Reference::new(&frame, DATA, &mut plain_maps);
    let expected = plain.run(code);
    let mut memory = Memory::new(DATA);
    memory.frame = frame;
    let (mut ports, mut calls) = (vec![], Default::default());
    let mut its_maps: Vec<_> = maps().into_iter().map(Some).collect();
    let reach = Reach::Alone(&mut its_maps);
    let places: Vec<usize> = (0..MAPS.len()).collect();
    let mut machine = Machine::new(&mut memory, (reach, &places), &mut ports, &mut calls, NOW_US);
    let ran = machine.run(&quicken(insns));
    prop_assert_eq!(ran, expected);
    prop_assert_eq!(machine.steps, plain.steps);
    prop_assert_eq!(machine.touch == Touch::Changed, plain.changed);
    prop_assert_eq!(machine.ports.as_slice(), plain.ports);
    prop_assert_eq!(memory.region(STACK_REGION), Some(&*plain.regions[STACK_REGION]));
    let its_maps: Vec<Map> = its_maps.into_iter().flatten().collect();
    prop_assert_eq!(format!("{its_maps:?}"), format!("{plain_maps:?}"));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn test_both_machines_do_the_same(
        seeds in proptest::collection::vec(seed(), 1..30),
        bytes in proptest::collection::vec(prop_oneof![Just(0_u8), 0..9_u8, any::<u8>()], FRAME),
    ) {
        compare(&code(seeds), bytes.try_into().expect("as many"))?;
    }
}
