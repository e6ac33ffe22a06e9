//! Instructions as the machine runs them, and its arithmetic.

/// The lower half of a number.
#[inline(always)]
fn low(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

#[inline(always)]
fn signed(number: u64) -> i64 {
    number.cast_signed()
}

#[inline(always)]
fn low_signed(number: u64) -> i32 {
    low(number).cast_signed()
}

/// The lowest 16 bits, in the other byte order.
#[inline(always)]
fn swap_16(number: u64) -> u64 {
    u64::from(((number & 0xffff) as u16).swap_bytes())
}

/// Declares what instructions do: what each makes of two numbers, and the conditions of jumps. The
/// machine has one jump for each, to its arm of [`result`].
macro_rules! operations {
    (
        numbers { $($op:ident($a:pat, $b:pat) $result:expr,)* }
        conditions { $($condition:ident($c:pat, $d:pat) $holds:expr,)* }
    ) => {
        /// What an instruction does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Op {
            // `dst = op(dst, operand)`
            $($op,)*
            // `if op(dst, operand) goto offset`
            $($condition,)*
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
        }

        /// What an instruction makes of two numbers.
        #[inline(always)]
        pub(crate) fn result(op: Op, a: u64, b: u64) -> Outcome {
            match (op, a, b) {
                $((Op::$op, $a, $b) => Outcome::Number($result),)*
                $((Op::$condition, $c, $d) => Outcome::Condition($holds),)*
                _ => Outcome::Other,
            }
        }

        impl Op {
            /// Whether it is a jump, if its condition holds.
            pub(crate) fn is_jump(self) -> bool {
                matches!(self, $(Self::$condition)|*)
            }
        }
    };
}

/// A result of an instruction's two numbers.
pub(crate) enum Outcome {
    Number(u64),
    Condition(bool),
    /// No result: the numbers are addresses, or unused.
    Other,
}

/// The number that an operation makes of two.
pub(crate) fn apply(op: Op, a: u64, b: u64) -> u64 {
    match result(op, a, b) {
        Outcome::Number(number) => number,
        Outcome::Condition(_) | Outcome::Other => 0,
    }
}

// RFC 9669: a division by zero gives 0, its remainder is the dividend, and shifts count their
// distance modulo the width.
operations! {
    numbers {
        Mov(_, b) b,
        Add(a, b) a.wrapping_add(b),
        Sub(a, b) a.wrapping_sub(b),
        Mul(a, b) a.wrapping_mul(b),
        Div(a, b) a.checked_div(b).unwrap_or(0),
        Mod(a, b) a.checked_rem(b).unwrap_or(a),
        Or(a, b) a | b,
        And(a, b) a & b,
        Xor(a, b) a ^ b,
        Lsh(a, b) a.wrapping_shl(low(b)),
        Rsh(a, b) a.wrapping_shr(low(b)),
        Arsh(a, b) signed(a).wrapping_shr(low(b)).cast_unsigned(),
        Neg(a, _) a.wrapping_neg(),
        Mov32(_, b) low(b).into(),
        Add32(a, b) low(a).wrapping_add(low(b)).into(),
        Sub32(a, b) low(a).wrapping_sub(low(b)).into(),
        Mul32(a, b) low(a).wrapping_mul(low(b)).into(),
        Div32(a, b) low(a).checked_div(low(b)).unwrap_or(0).into(),
        Mod32(a, b) low(a).checked_rem(low(b)).unwrap_or(low(a)).into(),
        Or32(a, b) (low(a) | low(b)).into(),
        And32(a, b) (low(a) & low(b)).into(),
        Xor32(a, b) (low(a) ^ low(b)).into(),
        Lsh32(a, b) low(a).wrapping_shl(low(b)).into(),
        Rsh32(a, b) low(a).wrapping_shr(low(b)).into(),
        Arsh32(a, b) low_signed(a).wrapping_shr(low(b)).cast_unsigned().into(),
        Neg32(a, _) low(a).wrapping_neg().into(),
        Swap16(a, _) swap_16(a),
        Swap32(a, _) low(a).swap_bytes().into(),
        Swap64(a, _) a.swap_bytes(),
        Low16(a, _) a & 0xffff,
        Low32(a, _) low(a).into(),
        Same(a, _) a,
    }
    conditions {
        Always(_, _) true,
        Eq(a, b) a == b,
        Ne(a, b) a != b,
        Gt(a, b) a > b,
        Ge(a, b) a >= b,
        Lt(a, b) a < b,
        Le(a, b) a <= b,
        Set(a, b) a & b != 0,
        Sgt(a, b) signed(a) > signed(b),
        Sge(a, b) signed(a) >= signed(b),
        Slt(a, b) signed(a) < signed(b),
        Sle(a, b) signed(a) <= signed(b),
        Eq32(a, b) low(a) == low(b),
        Ne32(a, b) low(a) != low(b),
        Gt32(a, b) low(a) > low(b),
        Ge32(a, b) low(a) >= low(b),
        Lt32(a, b) low(a) < low(b),
        Le32(a, b) low(a) <= low(b),
        Set32(a, b) low(a) & low(b) != 0,
        Sgt32(a, b) low_signed(a) > low_signed(b),
        Sge32(a, b) low_signed(a) >= low_signed(b),
        Slt32(a, b) low_signed(a) < low_signed(b),
        Sle32(a, b) low_signed(a) <= low_signed(b),
    }
}

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
