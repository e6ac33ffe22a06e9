//! Instructions: from the eight bytes of eBPF (RFC 9669) to what the machine runs.
//!
//! All instructions of clang's `-mcpu=v1` to `v3` are known. An instruction keeps its place, also
//! behind one of sixteen bytes, so jumps mean what they meant. Maps and constants are named as the
//! kernel's loader has them: a 64-bit load whose source register is [`MAP`] or [`DATA`], with the
//! number of the map or the offset.

use thiserror::Error;

use crate::dispatch::{Insn, Op, Register};
use crate::memory::{DATA_REGION, address, map_handle};

/// Pseudo source register of a 64-bit load: the number of a map.
pub const MAP: u8 = 1;
/// Pseudo source register of a 64-bit load: an offset in the constants.
pub const DATA: u8 = 2;
/// Pseudo source register of a call: a helper.
pub const HELPER: u8 = 0;
/// Pseudo source register of a call: a function of the program.
pub const LOCAL: u8 = 1;
/// Bytes of an instruction.
pub const INSN: usize = 8;

/// Operations of the two arithmetic classes, by the upper four bits of the opcode.
const ARITHMETIC: [Option<[Op; 2]>; 16] = [
    Some([Op::Add32, Op::Add]),
    Some([Op::Sub32, Op::Sub]),
    Some([Op::Mul32, Op::Mul]),
    Some([Op::Div32, Op::Div]),
    Some([Op::Or32, Op::Or]),
    Some([Op::And32, Op::And]),
    Some([Op::Lsh32, Op::Lsh]),
    Some([Op::Rsh32, Op::Rsh]),
    Some([Op::Neg32, Op::Neg]),
    Some([Op::Mod32, Op::Mod]),
    Some([Op::Xor32, Op::Xor]),
    Some([Op::Mov32, Op::Mov]),
    Some([Op::Arsh32, Op::Arsh]),
    None,
    None,
    None,
];

/// Conditions of the two classes of jumps, likewise.
const CONDITIONS: [Option<[Op; 2]>; 16] = [
    Some([Op::Always, Op::Always]),
    Some([Op::Eq32, Op::Eq]),
    Some([Op::Gt32, Op::Gt]),
    Some([Op::Ge32, Op::Ge]),
    Some([Op::Set32, Op::Set]),
    Some([Op::Ne32, Op::Ne]),
    Some([Op::Sgt32, Op::Sgt]),
    Some([Op::Sge32, Op::Sge]),
    None,
    None,
    Some([Op::Lt32, Op::Lt]),
    Some([Op::Le32, Op::Le]),
    Some([Op::Slt32, Op::Slt]),
    Some([Op::Sle32, Op::Sle]),
    None,
    None,
];

/// An instruction that no program may have, and its place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("instruction {at}: {why}")]
pub struct CodeError {
    /// Counted from 0.
    pub at: usize,
    /// The fault and its cure.
    pub why: String,
}

/// The fields of an instruction, as they stand.
#[derive(Clone, Copy)]
struct Raw {
    opcode: u8,
    dst: u8,
    src: u8,
    offset: i16,
    imm: i32,
}

impl Raw {
    fn read(bytes: &[u8; INSN]) -> Self {
        let &[opcode, registers, o0, o1, i0, i1, i2, i3] = bytes;
        Self {
            opcode,
            dst: registers & 15,
            src: registers >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            imm: i32::from_le_bytes([i0, i1, i2, i3]),
        }
    }

    /// The operand of an arithmetic instruction or a jump: a register, or else the immediate.
    fn operand(self) -> Result<Register, &'static str> {
        const REGISTER: u8 = 8;
        match self.opcode & REGISTER {
            0 if self.src == 0 => Ok(Register::Immediate),
            0 => Err("a register and an immediate value at once"),
            _ => register(self.src),
        }
    }

    /// The one of four operations that is for the size of this access: 1, 2, 4 or 8 bytes.
    fn by_size(self, [one, two, four, eight]: [Op; 4]) -> Op {
        match self.opcode & 0x18 {
            0x00 => four,
            0x08 => two,
            0x10 => one,
            _ => eight,
        }
    }

    /// The sign of an immediate value counts.
    fn wide(self) -> u64 {
        i64::from(self.imm).cast_unsigned()
    }
}

/// What the code may refer to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of maps.
    pub maps: usize,
    /// Bytes of constants.
    pub data: usize,
}

/// Decodes and checks a program.
///
/// # Errors
/// The first instruction that cannot be.
pub(crate) fn decode(code: &[u8], limits: Limits) -> Result<Box<[Insn]>, CodeError> {
    let (raw, rest) = code.as_chunks::<INSN>();
    let error = |at, why: &str| CodeError { at, why: why.to_owned() };
    if !rest.is_empty() || raw.is_empty() {
        return Err(error(raw.len(), "the code is no whole number of instructions"));
    }
    let mut insns = Vec::with_capacity(raw.len());
    while insns.len() < raw.len() {
        let at = insns.len();
        let insn = Raw::read(&raw[at]);
        let next = raw.get(at + 1).map(Raw::read);
        let decoded = decode_one(insn, next, at, limits).map_err(|why| CodeError { at, why })?;
        insns.push(decoded);
        if insn.opcode == LOAD_64 {
            insns.push(Insn::HOLE);
        }
    }
    check_targets(&insns)?;
    Ok(insns.into())
}

/// Checks that jumps and calls lead to instructions, and that none is missing at the end.
fn check_targets(insns: &[Insn]) -> Result<(), CodeError> {
    let is_insn = |target: i16| {
        let insn = usize::try_from(target).ok().and_then(|target| insns.get(target));
        insn.is_some_and(|insn| insn.op != Op::Hole)
    };
    let leads = |insn: &Insn| match insn.op {
        op if op.is_jump() || op == Op::Call => is_insn(insn.offset),
        _ => true,
    };
    if let Some(at) = insns.iter().position(|insn| !leads(insn)) {
        return Err(CodeError { at, why: "it leads to no instruction of the program".to_owned() });
    }
    match insns.last() {
        Some(last) if matches!(last.op, Op::Exit | Op::Always | Op::Trap) => Ok(()),
        _ => {
            let why = "the program ends here without a return".to_owned();
            Err(CodeError { at: insns.len() - 1, why })
        }
    }
}

/// The only instruction of sixteen bytes.
const LOAD_64: u8 = 0x18;
/// Stores of each size.
const STORES: [Op; 4] = [Op::Store1, Op::Store2, Op::Store4, Op::Store8];

fn decode_one(insn: Raw, next: Option<Raw>, at: usize, limits: Limits) -> Result<Insn, String> {
    let wide = usize::from(insn.opcode & 7 == 7 || insn.opcode & 7 == 5);
    Ok(match insn.opcode & 7 {
        0 if insn.opcode == LOAD_64 => load_64(insn, next, limits)?,
        1 if insn.opcode & 0xe0 == 0x60 => {
            let (dst, src) = (target(insn.dst)?, register(insn.src)?);
            access(insn.by_size([Op::Load1, Op::Load2, Op::Load4, Op::Load8]), insn, dst, src)
        }
        2 if insn.opcode & 0xe0 == 0x60 => {
            access(insn.by_size(STORES), insn, register(insn.dst)?, Register::Immediate)
        }
        3 if insn.opcode & 0xe0 == 0x60 => {
            access(insn.by_size(STORES), insn, register(insn.dst)?, register(insn.src)?)
        }
        3 if insn.opcode & 0xe0 == 0xc0 => atomic(insn)?,
        4 | 7 => arithmetic(insn, wide)?,
        5 | 6 => jump(insn, at, wide)?,
        _ => return Err(unknown(insn)),
    })
}

fn unknown(insn: Raw) -> String {
    format!("unknown opcode {:#04x}; compile with: clang -target bpf -mcpu=v3", insn.opcode)
}

fn register(number: u8) -> Result<Register, &'static str> {
    Register::ALL.get(usize::from(number)).copied().ok_or("there is no such register")
}

/// A register that may be written.
fn target(number: u8) -> Result<Register, &'static str> {
    let known = register(number).ok().filter(|&register| register != Register::R10);
    known.ok_or("this register cannot be written")
}

fn access(op: Op, insn: Raw, dst: Register, src: Register) -> Insn {
    Insn { op, dst, src, offset: insn.offset, imm: insn.wide(), ..Insn::HOLE }
}

fn load_64(insn: Raw, next: Option<Raw>, limits: Limits) -> Result<Insn, String> {
    let dst = target(insn.dst)?;
    let next = next.filter(|it| it.opcode == 0 && it.dst == 0 && it.src == 0 && it.offset == 0);
    let next = next.ok_or("the second half of a 64-bit load is missing")?;
    let number = usize::try_from(insn.imm).ok().filter(|_| next.imm == 0);
    let imm = match insn.src {
        0 => u64::from(next.imm.cast_unsigned()) << 32 | u64::from(insn.imm.cast_unsigned()),
        MAP => {
            let number = number.filter(|&number| number < limits.maps);
            map_handle(number.ok_or("there is no map of this number")?)
        }
        DATA => {
            let offset = number.filter(|&offset| offset <= limits.data);
            address(DATA_REGION, offset.ok_or("there are no constants at this offset")?)
        }
        _ => return Err("this kind of address is unknown".to_owned()),
    };
    Ok(Insn { op: Op::Wide, dst, imm, ..Insn::HOLE })
}

fn arithmetic(insn: Raw, wide: usize) -> Result<Insn, String> {
    const BYTE_ORDER: u8 = 0xd0;
    let dst = target(insn.dst)?;
    if insn.offset != 0 {
        return Err(unknown(insn));
    }
    let (op, src, imm) = if insn.opcode & 0xf0 == BYTE_ORDER && wide == 0 {
        (byte_order(insn)?, Register::Immediate, 0)
    } else {
        let op = ARITHMETIC[usize::from(insn.opcode >> 4)].ok_or_else(|| unknown(insn))?;
        (op[wide], insn.operand()?, insn.wide())
    };
    Ok(Insn { op, dst, src, imm, ..Insn::HOLE })
}

/// A conversion of the byte order. The machine's is the little-endian one.
fn byte_order(insn: Raw) -> Result<Op, &'static str> {
    let is_big = insn.opcode & 8 != 0;
    Ok(match (is_big, insn.imm) {
        (true, 16) => Op::Swap16,
        (true, 32) => Op::Swap32,
        (true, 64) => Op::Swap64,
        (false, 16) => Op::Low16,
        (false, 32) => Op::Low32,
        (false, 64) => Op::Same,
        _ => return Err("numbers of this size have no byte order"),
    })
}

fn jump(insn: Raw, at: usize, wide: usize) -> Result<Insn, String> {
    const CALL: u8 = 0x85;
    const CALL_ADDRESS: u8 = 0x8d;
    const EXIT: u8 = 0x95;
    const GOTO: u8 = 0x05;
    match insn.opcode {
        EXIT => return Ok(Insn { op: Op::Exit, ..Insn::HOLE }),
        CALL if insn.src == LOCAL => {
            return Ok(Insn { op: Op::Call, offset: behind(at, insn.imm)?, ..Insn::HOLE });
        }
        CALL if insn.src == HELPER => {
            let op = Op::helper(insn.imm).ok_or_else(|| {
                format!("there is no helper {}; see uvala_program.h for those that are", insn.imm)
            })?;
            return Ok(Insn { op, ..Insn::HOLE });
        }
        CALL_ADDRESS => {
            return Err(
                "it calls a function by its address: call it by its name, and compile with \
                        -O2 (Rust: --release), which makes helpers plain calls"
                    .to_owned(),
            );
        }
        _ => {}
    }
    let condition = CONDITIONS[usize::from(insn.opcode >> 4)].ok_or_else(|| unknown(insn))?[wide];
    if condition == Op::Always && insn.opcode != GOTO {
        return Err(unknown(insn));
    }
    let (dst, src) = (register(insn.dst)?, insn.operand()?);
    let offset = behind(at, insn.offset.into())?;
    Ok(Insn { op: condition, dst, src, offset, imm: insn.wide(), ..Insn::HOLE })
}

/// The place `offset` instructions behind the next one.
fn behind(at: usize, offset: i32) -> Result<i16, &'static str> {
    let at = i32::try_from(at).ok().and_then(|at| at.checked_add(1)?.checked_add(offset));
    at.and_then(|at| i16::try_from(at).ok()).ok_or("it leads to no instruction of the program")
}

fn atomic(insn: Raw) -> Result<Insn, String> {
    const FETCH: i32 = 1;
    let (dst, src) = (register(insn.dst)?, register(insn.src)?);
    let op = insn.by_size([Op::Hole, Op::Hole, Op::Atomic4, Op::Atomic8]);
    if op == Op::Hole {
        return Err(unknown(insn));
    }
    let (how, fetches) = match insn.imm {
        0xe1 => (Op::Mov, true),
        0xf1 => (Op::Same, true),
        imm => {
            let how = match imm & !FETCH {
                0x00 => Op::Add,
                0x40 => Op::Or,
                0x50 => Op::And,
                0xa0 => Op::Xor,
                _ => return Err(unknown(insn)),
            };
            (how, imm & FETCH != 0)
        }
    };
    if fetches && how != Op::Same {
        target(insn.src)?;
    }
    let imm = u64::from(fetches);
    Ok(Insn { op, how, dst, src, offset: insn.offset, imm })
}
