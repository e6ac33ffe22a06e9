//! Programs by hand: what each instruction and helper does, and what a program cannot do.

mod asm;

use asm::*;
use program::limits::STEPS_MAX;
use program::{Decision, FaultKind, Frame, Image, Looks, MapDef, Program};
use proptest::prelude::*;

fn image(code: &[Insn], maps: &[&str]) -> Image {
    let maps: Vec<MapDef> = maps.iter().map(|map| map.parse().unwrap()).collect();
    let (function, looks, data) = ("f".to_owned(), Looks::Packet, b"constants".to_vec());
    Image { function, looks, code: code.concat(), data, maps }
}

fn program(code: &[Insn], maps: &[&str]) -> Program {
    Program::new(&image(code, maps), 7).unwrap_or_else(|error| panic!("{error}"))
}

const FRAME: Frame<'_> =
    Frame { now_us: 5_000_000, port: 3, vlan: 9, bytes: b"abcdefghijklmnopqr" };

/// What a program returns, as the number of a port.
fn value(code: &[Insn], maps: &[&str]) -> u16 {
    let code = [code, &[alu(0x57, 0, 0xffff), alu(0x07, 0, 0x1_0000), exit()]].concat();
    match program(&code, maps).run(&FRAME) {
        Ok(Decision::To(port)) => port,
        other => panic!("{other:?}"),
    }
}

fn fault(code: &[Insn], maps: &[&str]) -> FaultKind {
    let mut program = program(&[code, &[mov(0, 1), exit()]].concat(), maps);
    let fault = program.run(&FRAME).unwrap_err();
    assert_eq!(program.counts().faults, 1);
    assert_eq!(program.counts().fault, Some(fault));
    fault.kind
}

fn refused(code: &[Insn], maps: &[&str]) -> String {
    Program::new(&image(code, maps), 7).map(drop).unwrap_err().to_string()
}

#[test]
fn arithmetic_is_that_of_the_standard() {
    for (code, result) in [
        (alu(0x07, 0, -1), 99),     // add
        (alu(0x17, 0, 1), 99),      // sub
        (alu(0x27, 0, 3), 300),     // mul
        (alu(0x37, 0, 7), 14),      // div
        (alu(0x37, 0, 0), 0),       // div by zero
        (alu(0x97, 0, 7), 2),       // mod
        (alu(0x97, 0, 0), 100),     // mod by zero
        (alu(0x47, 0, 3), 103),     // or
        (alu(0x57, 0, 6), 4),       // and
        (alu(0xa7, 0, 1), 101),     // xor
        (alu(0x67, 0, 65), 200),    // lsh, modulo 64
        (alu(0x77, 0, 2), 25),      // rsh
        (alu(0xc7, 0, 2), 25),      // arsh
        (alu(0x87, 0, 0), 0xff9c),  // neg
        (alu(0x04, 0, 1), 101),     // 32 bits
        (alu(0x64, 0, 33), 200),    // lsh, modulo 32
        (alu(0xdc, 0, 16), 0x6400), // to big-endian
        (alu(0xd4, 0, 16), 100),    // to little-endian
    ] {
        assert_eq!(value(&[mov(0, 100), code], &[]), result, "{code:?}");
    }
    // A result of 32 bits has zeros above.
    let wide = [mov(0, -1), alu(0x04, 0, 0), alu(0x77, 0, 32)];
    assert_eq!(value(&wide, &[]), 0);
}

#[test]
fn conditions_are_signed_or_not() {
    let taken = |opcode: u8, a: i32, b: i32| {
        let code = [mov(1, a), mov(0, 1), insn(opcode, 1, 0, 1, b), mov(0, 0)];
        value(&code, &[]) == 1
    };
    for (opcode, less, equal, more) in [
        (0x15, false, true, false), // ==
        (0x55, true, false, true),  // !=
        (0x25, true, false, false), // >: -1 and -3 are large numbers
        (0x65, false, false, true), // signed >
        (0xa5, false, false, true), // <
        (0xc5, true, false, false), // signed <
        (0x16, false, true, false), // 32 bits
        (0xc6, true, false, false),
    ] {
        assert_eq!(taken(opcode, -1, 5), less, "{opcode:#x}");
        assert_eq!(taken(opcode, 5, 5), equal, "{opcode:#x}");
        assert_eq!(taken(opcode, 7, -3), more, "{opcode:#x}");
    }
}

#[test]
fn a_frame_is_read_where_the_header_file_says() {
    for (opcode, offset, result) in
        [(0x69, 8, 3), (0x69, 10, 9), (0x71, 12, 18), (0x71, 16, u16::from(b'a')), (0x71, 34, 0)]
    {
        assert_eq!(value(&[insn(opcode, 0, 1, offset, 0)], &[]), result, "{offset}");
    }
    assert_eq!(value(&[insn(0x79, 0, 1, 0, 0), alu(0x37, 0, 1_000_000)], &[]), 5);
    assert_eq!(value(&[call(5), alu(0x37, 0, 1_000_000_000)], &[]), 5);
}

#[test]
fn memory_ends_where_it_ends() {
    for code in [
        insn(0x79, 0, 1, 105, 0), // behind the frame
        insn(0x71, 0, 1, -1, 0),  // before it
        insn(0x79, 0, 10, -4, 0), // across the end of the stack of this function
        insn(0x71, 0, 2, 0, 0),   // null
        insn(0x71, 0, 0, 0, 0),
    ] {
        let last = if code[1] >> 4 == 10 { STACK_TOP } else { code };
        assert_eq!(fault(&[last], &[]), FaultKind::Read, "{code:?}");
    }
    assert_eq!(fault(&[insn(0x72, 1, 0, 16, 1)], &[]), FaultKind::Write, "the frame");
    let constants = [load_64(1, 2, 0), [insn(0x72, 1, 0, 0, 1)].concat()].concat();
    assert_eq!(fault_of(&constants), FaultKind::Write, "constants");
    let handle = [load_64(1, 1, 0), insn(0x71, 0, 1, 0, 0).to_vec()].concat();
    assert_eq!(fault_in(&handle, &["m hash 4 4 4"]), FaultKind::Read, "a map itself");
    // Every address that can be computed.
    for shift in 0..64 {
        let code = [mov(1, 1), alu(0x67, 1, shift), insn(0x7b, 1, 1, 0, 0)];
        let mut program = program(&[&code[..], &[mov(0, 0), exit()]].concat(), &[]);
        let ran = program.run(&FRAME);
        assert!(ran.is_err() || shift == 33, "{shift}: {ran:?}");
    }
}

/// Reads eight bytes of which four are behind all stacks.
const STACK_TOP: Insn = insn(0x79, 0, 10, 3580, 0);

fn fault_of(code: &[u8]) -> FaultKind {
    fault_in(code, &[])
}

fn fault_in(code: &[u8], maps: &[&str]) -> FaultKind {
    let (code, _) = code.as_chunks::<8>();
    fault(code, maps)
}

#[test]
fn a_program_without_an_end_is_stopped() {
    assert_eq!(fault(&[insn(0x05, 0, 0, -1, 0)], &[]), FaultKind::Steps);
    // A helper costs what it looks at: 96 bytes are 52 steps.
    let hash = |times: usize| {
        let code = [&[mov(2, 96)][..], &vec![call(1001); times], &[mov(0, 1), exit()]].concat();
        let mut program = program(&code, &[]);
        program.run(&FRAME).map(|_| program.counts().steps).map_err(|fault| fault.kind)
    };
    assert_eq!(hash(40), Ok(3 + 40 * 53));
    assert_eq!(hash(80), Err(FaultKind::Steps));
    let deep = [insn(0x85, 0, 1, 0, -1)];
    assert_eq!(fault(&deep, &[]), FaultKind::Calls);
    assert_eq!(STEPS_MAX, 4096);
}

#[test]
fn what_is_no_decision_is_a_fault() {
    for returned in [4, 0xffff, 0x2_0000, -1] {
        let mut program = program(&[mov(0, returned), exit()], &[]);
        assert_eq!(program.run(&FRAME).unwrap_err().kind, FaultKind::Decision, "{returned}");
    }
    for (returned, decision) in [
        (0, Decision::Drop),
        (1, Decision::Learning),
        (2, Decision::Flood),
        (3, Decision::Set),
        (0x1_0007, Decision::To(7)),
    ] {
        assert_eq!(program(&[mov(0, returned), exit()], &[]).run(&FRAME), Ok(decision));
    }
}

#[test]
fn a_set_has_the_ports_that_were_added() {
    let add = |port| [mov(1, port), call(1002)];
    let code = [&add(4)[..], &add(2), &[mov(0, 3), exit()]].concat();
    let mut program = program(&code, &[]);
    for _ in 0..2 {
        assert_eq!(program.run(&FRAME), Ok(Decision::Set));
        assert_eq!(program.ports(), [4, 2]);
    }
    let without_end = [mov(1, 4), call(1002), insn(0x05, 0, 0, -3, 0)];
    assert_eq!(fault(&without_end, &[]), FaultKind::Ports);
}

#[test]
fn functions_keep_the_registers_and_the_stack_of_their_callers() {
    let code = [
        mov(6, 7),
        insn(0x7b, 10, 6, -8, 0), // the caller's stack
        insn(0x85, 0, 1, 0, 5),   // calls
        insn(0x79, 1, 10, -8, 0),
        insn(0x0f, 0, 1, 0, 0),
        insn(0x0f, 0, 6, 0, 0),
        insn(0x07, 0, 0, 0, 0x1_0000),
        exit(),
        mov(6, 100), // the function
        insn(0x7b, 10, 6, -8, 0),
        mov(0, 1),
        exit(),
    ];
    assert_eq!(program(&code, &[]).run(&FRAME), Ok(Decision::To(15)));
}

#[test]
fn atomics_give_the_old_value() {
    let at = |code: Insn| [mov(6, 5), insn(0x7b, 10, 6, -8, 0), mov(1, 3), mov(0, 5), code];
    let then = |code: Insn, read: Insn| value(&[&at(code)[..], &[read]].concat(), &[]);
    let new = insn(0x79, 0, 10, -8, 0);
    let old = insn(0xbf, 0, 1, 0, 0);
    for (imm, result) in [(0x00, 8), (0x40, 7), (0x50, 1), (0xa0, 6), (0xe1, 3), (0xf1, 3)] {
        assert_eq!(then(insn(0xdb, 10, 1, -8, imm), new), result, "{imm:#x}");
    }
    assert_eq!(then(insn(0xdb, 10, 1, -8, 0x01), old), 5);
    assert_eq!(then(insn(0xc3, 10, 1, -8, 0x01), old), 5, "of 32 bits");
}

#[test]
fn code_that_cannot_be_is_refused() {
    let end = [mov(0, 0), exit()];
    let before = |code: Insn| refused(&[&[code][..], &end].concat(), &["m hash 4 4 4"]);
    for (code, says) in [
        (insn(0xff, 0, 0, 0, 0), "instruction 0: unknown opcode 0xff; compile with"),
        (insn(0x06, 0, 0, 0, 0), "unknown opcode"),
        (insn(0x0d, 0, 1, 0, 0), "unknown opcode"), // an indirect jump, -mcpu=v4
        (insn(0x37, 0, 0, 1, 1), "unknown opcode"), // a signed division, -mcpu=v4
        (insn(0xb7, 11, 0, 0, 0), "cannot be written"),
        (insn(0xb7, 10, 0, 0, 0), "cannot be written"),
        (insn(0xbf, 0, 11, 0, 0), "no such register"),
        (insn(0xb7, 0, 1, 0, 0), "at once"),
        (insn(0x05, 0, 0, 2, 0), "leads to no instruction"),
        (insn(0x05, 0, 0, -2, 0), "leads to no instruction"),
        (insn(0x85, 0, 1, 0, 100), "leads to no instruction"),
        (insn(0x85, 0, 0, 0, 6), "there is no helper 6"),
        (insn(0x85, 0, 2, 0, 1), "unknown opcode"),
        (insn(0x18, 0, 0, 0, 0), "second half"),
        (insn(0xd3, 1, 1, 0, 0), "unknown opcode"), // atomic, 8 bits
        (insn(0xdb, 1, 10, 0, 1), "cannot be written"),
        (insn(0xdc, 0, 0, 0, 24), "byte order"),
    ] {
        let why = before(code);
        assert!(why.contains(says), "{code:?}: {why}");
    }
    assert!(refused(&[mov(0, 0)], &[]).contains("ends here without a return"));
    assert!(refused(&[], &[]).contains("no whole number"));
    let inside = [insn(0x05, 0, 0, 1, 0).to_vec(), load_64(0, 0, 1), end.concat()].concat();
    let (inside, _) = inside.as_chunks::<8>();
    assert!(refused(inside, &[]).contains("leads to no instruction"), "into a 64-bit load");
    for (pseudo, number, says) in [(1, 1, "no map"), (1, -1, "no map"), (2, 10, "no constants")] {
        let load = [load_64(0, pseudo, number), end.concat()].concat();
        let (load, _) = load.as_chunks::<8>();
        assert!(refused(load, &["m hash 4 4 4"]).contains(says), "{pseudo} {number}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Instructions that look like some, of which about one program in some runs.
    #[test]
    fn any_code_is_refused_or_comes_to_an_end(
        code in proptest::collection::vec(
            (0..OPCODES.len(), 0..11u8, 0..11u8, -20..20i16, -300..300i32), 1..40,
        ),
    ) {
        let mut code: Vec<Insn> = code
            .into_iter()
            .map(|(opcode, dst, src, offset, imm)| {
                insn(OPCODES[opcode], dst, src, offset, imm)
            })
            .collect();
        code.push(exit());
        let image = image(&code, &["m hash 4 4 4", "a array 4 8 2"]);
        if let Ok(mut program) = Program::new(&image, 1) {
            let first = program.run(&FRAME);
            prop_assert_eq!(program.counts().runs, 1);
            prop_assert_eq!(program.counts().faults, u64::from(first.is_err()));
        }
    }

    #[test]
    fn any_bytes_are_refused_or_come_to_an_end(
        code in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let code = [&code[..], &exit()[..]].concat();
        let image = Image { code, ..image(&[], &["m lpm 8 4 4"]) };
        if let Ok(mut program) = Program::new(&image, 1) {
            let _ = program.run(&FRAME);
        }
    }
}

/// Opcodes that exist; a few more often.
const OPCODES: [u8; 40] = [
    0xb7, 0xbf, 0x07, 0x0f, 0x17, 0x27, 0x37, 0x57, 0x67, 0x77, 0xc7, 0x04, 0x0c, 0xdc, 0x61, 0x69,
    0x71, 0x79, 0x62, 0x6a, 0x72, 0x7a, 0x63, 0x6b, 0x73, 0x7b, 0xdb, 0xc3, 0x05, 0x15, 0x1d, 0x25,
    0x55, 0xa5, 0xc5, 0x16, 0x85, 0x85, 0x95, 0x18,
];
