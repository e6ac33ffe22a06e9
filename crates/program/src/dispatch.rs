//! Instructions as the machine runs them, and its arithmetic.

/// The lower half of a number.
#[inline(always)]
pub(crate) fn low(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

#[inline(always)]
pub(crate) fn signed(number: u64) -> i64 {
    number.cast_signed()
}

#[inline(always)]
pub(crate) fn low_signed(number: u64) -> i32 {
    low(number).cast_signed()
}

/// The lowest 16 bits, in the other byte order.
#[inline(always)]
pub(crate) fn swap_16(number: u64) -> u64 {
    u64::from(((number & 0xffff) as u16).swap_bytes())
}

/// What instructions do: what each makes of two numbers, and the conditions of jumps, given to the
/// macro `then`. Each has two names: the second is for an immediate operand.
//
// RFC 9669: a division by zero gives 0, its remainder is the dividend, and shifts count their
// distance modulo the width.
macro_rules! operations {
    ($then:ident! $($rest:tt)*) => {
        $then! {
            numbers {
                Mov MovImm(_, b) b,
                Add AddImm(a, b) a.wrapping_add(b),
                Sub SubImm(a, b) a.wrapping_sub(b),
                Mul MulImm(a, b) a.wrapping_mul(b),
                Div DivImm(a, b) a.checked_div(b).unwrap_or(0),
                Mod ModImm(a, b) a.checked_rem(b).unwrap_or(a),
                Or OrImm(a, b) a | b,
                And AndImm(a, b) a & b,
                Xor XorImm(a, b) a ^ b,
                Lsh LshImm(a, b) a.wrapping_shl(low(b)),
                Rsh RshImm(a, b) a.wrapping_shr(low(b)),
                Arsh ArshImm(a, b) signed(a).wrapping_shr(low(b)).cast_unsigned(),
                Neg NegImm(a, _) a.wrapping_neg(),
                Mov32 Mov32Imm(_, b) low(b).into(),
                Add32 Add32Imm(a, b) low(a).wrapping_add(low(b)).into(),
                Sub32 Sub32Imm(a, b) low(a).wrapping_sub(low(b)).into(),
                Mul32 Mul32Imm(a, b) low(a).wrapping_mul(low(b)).into(),
                Div32 Div32Imm(a, b) low(a).checked_div(low(b)).unwrap_or(0).into(),
                Mod32 Mod32Imm(a, b) low(a).checked_rem(low(b)).unwrap_or(low(a)).into(),
                Or32 Or32Imm(a, b) (low(a) | low(b)).into(),
                And32 And32Imm(a, b) (low(a) & low(b)).into(),
                Xor32 Xor32Imm(a, b) (low(a) ^ low(b)).into(),
                Lsh32 Lsh32Imm(a, b) low(a).wrapping_shl(low(b)).into(),
                Rsh32 Rsh32Imm(a, b) low(a).wrapping_shr(low(b)).into(),
                Arsh32 Arsh32Imm(a, b) low_signed(a).wrapping_shr(low(b)).cast_unsigned().into(),
                Neg32 Neg32Imm(a, _) low(a).wrapping_neg().into(),
                Swap16 Swap16Imm(a, _) swap_16(a),
                Swap32 Swap32Imm(a, _) low(a).swap_bytes().into(),
                Swap64 Swap64Imm(a, _) a.swap_bytes(),
                Low16 Low16Imm(a, _) a & 0xffff,
                Low32 Low32Imm(a, _) low(a).into(),
                Same SameImm(a, _) a,
            }
            conditions {
                Always AlwaysImm(_, _) true,
                Eq EqImm(a, b) a == b,
                Ne NeImm(a, b) a != b,
                Gt GtImm(a, b) a > b,
                Ge GeImm(a, b) a >= b,
                Lt LtImm(a, b) a < b,
                Le LeImm(a, b) a <= b,
                Set SetImm(a, b) a & b != 0,
                Sgt SgtImm(a, b) signed(a) > signed(b),
                Sge SgeImm(a, b) signed(a) >= signed(b),
                Slt SltImm(a, b) signed(a) < signed(b),
                Sle SleImm(a, b) signed(a) <= signed(b),
                Eq32 Eq32Imm(a, b) low(a) == low(b),
                Ne32 Ne32Imm(a, b) low(a) != low(b),
                Gt32 Gt32Imm(a, b) low(a) > low(b),
                Ge32 Ge32Imm(a, b) low(a) >= low(b),
                Lt32 Lt32Imm(a, b) low(a) < low(b),
                Le32 Le32Imm(a, b) low(a) <= low(b),
                Set32 Set32Imm(a, b) low(a) & low(b) != 0,
                Sgt32 Sgt32Imm(a, b) low_signed(a) > low_signed(b),
                Sge32 Sge32Imm(a, b) low_signed(a) >= low_signed(b),
                Slt32 Slt32Imm(a, b) low_signed(a) < low_signed(b),
                Sle32 Sle32Imm(a, b) low_signed(a) <= low_signed(b),
            }
            $($rest)*
        }
    };
}
pub(crate) use operations;

macro_rules! declare {
    (
        numbers { $($op:ident $op_imm:ident($a:pat, $b:pat) $result:expr,)* }
        conditions { $($condition:ident $condition_imm:ident($c:pat, $d:pat) $holds:expr,)* }
    ) => {
        /// What an instruction does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Op {
            // `dst = op(dst, operand)`
            $($op, $op_imm,)*
            // `if op(dst, operand) goto offset`
            $($condition, $condition_imm,)*
            // `dst = *(src + offset)`, of so many bytes.
            Load1,
            Load2,
            Load4,
            Load8,
            // `*(dst + offset) = operand`
            Store1,
            Store2,
            Store4,
            Store8,
            // `*(dst + offset) = how(*(dst + offset), src)`; gives the old value if `imm` is not 0.
            // With `Same` it compares with register 0 and exchanges.
            Atomic4,
            Atomic8,
            // `dst = imm`, and skips the second half, a `Hole`.
            Wide,
            Hole,
            // Calls the function at `offset`, and returns from it.
            Call,
            Exit,
            // Helpers. Those of Linux have Linux's numbers.
            Lookup,
            Update,
            Delete,
            Time,
            Hash,
            AddPort,
            // Ends the run in a fault: what LLVM's `__bpf_trap()` becomes.
            Trap,
            // Two instructions at once (`crate::quicken`): this one, and the next.
            MovAdd,
            MovMov,
            LshOr,
            LshRsh,
            LoadLsh,
            LoadOr,
            LoadAnd,
            AndNe,
            MovEq,
        }

        /// The number that an operation makes of two.
        #[inline(always)]
        pub(crate) fn apply(op: Op, a: u64, b: u64) -> u64 {
            match (op, a, b) {
                $((Op::$op | Op::$op_imm, $a, $b) => $result,)*
                _ => 0,
            }
        }

        impl Op {
            /// Whether it is a jump, if its condition holds.
            pub(crate) fn is_jump(self) -> bool {
                matches!(self, $(Self::$condition | Self::$condition_imm)|*)
            }

            /// The operation that does the same with the immediate value as operand.
            pub(crate) fn immediate(self) -> Self {
                match self {
                    $(Self::$op => Self::$op_imm,)*
                    $(Self::$condition => Self::$condition_imm,)*
                    other => other,
                }
            }
        }
    };
}

operations!(declare!);

/// Does what an instruction does, or two at once, in a loop that a fault ends: one jump leads to
/// what is to be done. `jump` is for instructions whose condition holds, and `others` are the arms
/// of the other operations.
macro_rules! execute {
    (
        numbers { $($op:ident $op_imm:ident($a:pat, $b:pat) $result:expr,)* }
        conditions { $($condition:ident $condition_imm:ident($c:pat, $d:pat) $holds:expr,)* }
        ($machine:ident, $insn:ident, $rest:ident, $registers:ident, $jump:expr)
        { $($others:tt)* }
    ) => {
        match $insn.op {
            $(
                Op::$op => {
                    let to = $insn.dst as usize;
                    let ($a, $b) = ($registers[to], $registers[$insn.src as usize]);
                    $registers[to] = $result;
                }
                Op::$op_imm => {
                    let to = $insn.dst as usize;
                    let ($a, $b) = ($registers[to], $insn.imm);
                    $registers[to] = $result;
                }
            )*
            $(
                Op::$condition => {
                    let $c = $registers[$insn.dst as usize];
                    let $d = $registers[$insn.src as usize];
                    if $holds {
                        $jump
                    }
                }
                Op::$condition_imm => {
                    let ($c, $d) = ($registers[$insn.dst as usize], $insn.imm);
                    if $holds {
                        $jump
                    }
                }
            )*
            Op::MovAdd => {
                let Some(second) = $rest.next() else { break FaultKind::Code };
                let number = $registers[$insn.src as usize];
                $registers[$insn.dst as usize] = number.wrapping_add(second.imm);
            }
            Op::MovMov => {
                let Some(second) = $rest.next() else { break FaultKind::Code };
                $registers[$insn.dst as usize] = $registers[$insn.src as usize];
                $registers[second.dst as usize] = second.imm;
            }
            Op::LshOr => {
                let Some(second) = $rest.next() else { break FaultKind::Code };
                let shifted = apply(Op::Lsh, $registers[$insn.dst as usize], $insn.imm);
                // Also where it is the operand of the second.
                $registers[$insn.dst as usize] = shifted;
                let other = $registers[second.src as usize];
                $registers[$insn.dst as usize] = shifted | other;
            }
            Op::LshRsh => {
                let Some(second) = $rest.next() else { break FaultKind::Code };
                let shifted = apply(Op::Lsh, $registers[$insn.dst as usize], $insn.imm);
                $registers[$insn.dst as usize] = apply(Op::Rsh, shifted, second.imm);
            }
            Op::LoadLsh => {
                let at = beside($insn, $registers[$insn.src as usize]);
                let Some(number) = $machine.load::<1>(at) else { break FaultKind::Read };
                let Some(second) = $rest.next() else { break FaultKind::Code };
                $registers[$insn.dst as usize] = apply(Op::Lsh, number, second.imm);
            }
            Op::LoadOr => {
                let at = beside($insn, $registers[$insn.src as usize]);
                let Some(number) = $machine.load::<1>(at) else { break FaultKind::Read };
                let Some(second) = $rest.next() else { break FaultKind::Code };
                $registers[$insn.dst as usize] = number;
                $registers[second.dst as usize] |= $registers[second.src as usize];
            }
            Op::LoadAnd => {
                let at = beside($insn, $registers[$insn.src as usize]);
                let Some(number) = $machine.load::<1>(at) else { break FaultKind::Read };
                let Some(second) = $rest.next() else { break FaultKind::Code };
                $registers[$insn.dst as usize] = number & second.imm;
            }
            Op::AndNe => {
                let Some(second) = $rest.next() else { break FaultKind::Code };
                let number = $registers[$insn.dst as usize] & $insn.imm;
                $registers[$insn.dst as usize] = number;
                if number != second.imm {
                    let $insn = second;
                    $jump
                }
            }
            Op::MovEq => {
                let Some(second) = $rest.next() else { break FaultKind::Code };
                $registers[$insn.dst as usize] = $insn.imm;
                if $registers[second.dst as usize] == second.imm {
                    let $insn = second;
                    $jump
                }
            }
            $($others)*
        }
    };
}
pub(crate) use execute;

/// The number of [`Op::Trap`].
pub(crate) const TRAP: i32 = 1003;

impl Op {
    /// The helper of a number in a call.
    pub(crate) fn helper(number: i32) -> Option<Self> {
        Some(match number {
            1 => Self::Lookup,
            2 => Self::Update,
            3 => Self::Delete,
            5 => Self::Time,
            1001 => Self::Hash,
            1002 => Self::AddPort,
            TRAP => Self::Trap,
            _ => return None,
        })
    }
}

/// A register of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    /// The end of the stack.
    R10,
    /// None: the operand is the immediate value.
    Immediate,
}

impl Register {
    /// All that a program can name.
    pub(crate) const ALL: [Self; 11] = [
        Self::R0,
        Self::R1,
        Self::R2,
        Self::R3,
        Self::R4,
        Self::R5,
        Self::R6,
        Self::R7,
        Self::R8,
        Self::R9,
        Self::R10,
    ];
}

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Insn {
    pub(crate) op: Op,
    /// The operation of an atomic one.
    pub(crate) how: Op,
    pub(crate) dst: Register,
    /// The register of the operand.
    pub(crate) src: Register,
    /// Bytes, of an access to memory; the place to which a jump leads.
    pub(crate) offset: i16,
    pub(crate) imm: u64,
}

impl Insn {
    /// No instruction.
    pub(crate) const HOLE: Self = Self {
        op: Op::Hole,
        how: Op::Same,
        dst: Register::R0,
        src: Register::Immediate,
        offset: 0,
        imm: 0,
    };
}

const _: () = assert!(size_of::<Insn>() == 16, "four instructions in a cache line");
