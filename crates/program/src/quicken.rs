//! Instructions as they run fastest.
//!
//! Where two often follow each other in what compilers write, one operation does both. The second
//! stays where it is, as the operand of the first, and for jumps that lead to it. So each
//! instruction keeps its place, and steps and faults are those of instructions one by one.

use crate::dispatch::{Insn, Op, Register};

/// Gives the instructions of a program the operations that are the fastest for them. All together
/// do what they did.
pub(crate) fn quicken(mut insns: Box<[Insn]>) -> Box<[Insn]> {
    for insn in insns.iter_mut().filter(|insn| insn.src == Register::Immediate) {
        insn.op = insn.op.immediate();
    }
    for at in 1..insns.len() {
        let (first, second) = (insns[at - 1], insns[at]);
        insns[at - 1].op = pair(&first, &second).unwrap_or(first.op);
    }
    insns
}

/// The operation that does what two instructions do.
fn pair(first: &Insn, second: &Insn) -> Option<Op> {
    let is_same = first.dst == second.dst;
    Some(match (first.op, second.op) {
        // The address of a variable.
        (Op::Mov, Op::AddImm) if is_same => Op::MovAdd,
        (Op::Mov, Op::MovImm) => Op::MovMov,
        // Numbers that are read byte by byte, because of their alignment or order.
        (Op::Load1, Op::LshImm) if is_same => Op::LoadLsh,
        (Op::Load1, Op::Or) => Op::LoadOr,
        (Op::LshImm, Op::Or) if is_same => Op::LshOr,
        // The lower part of a register.
        (Op::LshImm, Op::RshImm) if is_same => Op::LshRsh,
        (Op::Load1, Op::AndImm) if is_same => Op::LoadAnd,
        (Op::AndImm, Op::NeImm) if is_same => Op::AndNe,
        (Op::MovImm, Op::EqImm) => Op::MovEq,
        _ => return None,
    })
}
