//! Instructions by their fields.
#![allow(dead_code, reason = "each test uses some of them")]

/// An instruction.
pub type Insn = [u8; 8];

/// Any instruction.
pub const fn insn(opcode: u8, dst: u8, src: u8, offset: i16, imm: i32) -> Insn {
    let ([o0, o1], [i0, i1, i2, i3]) = (offset.to_le_bytes(), imm.to_le_bytes());
    [opcode, src << 4 | dst, o0, o1, i0, i1, i2, i3]
}

/// An operation on a register and a number.
pub const fn alu(opcode: u8, dst: u8, imm: i32) -> Insn {
    insn(opcode, dst, 0, 0, imm)
}

/// `dst = imm`
pub const fn mov(dst: u8, imm: i32) -> Insn {
    alu(0xb7, dst, imm)
}

/// `dst = src`
pub const fn copy(dst: u8, src: u8) -> Insn {
    insn(0xbf, dst, src, 0, 0)
}

/// Calls a helper.
pub const fn call(helper: i32) -> Insn {
    insn(0x85, 0, 0, 0, helper)
}

/// Returns.
pub const fn exit() -> Insn {
    insn(0x95, 0, 0, 0, 0)
}

/// A 64-bit load: of a number, a map (`src` 1) or constants (2).
pub fn load_64(dst: u8, src: u8, imm: i32) -> Vec<u8> {
    [insn(0x18, dst, src, 0, imm), insn(0, 0, 0, 0, 0)].concat()
}
