//! Instructions as the machine runs them, and its arithmetic.

/// In place of a source register: the operand is the immediate value.
pub(crate) const IMMEDIATE: u8 = 15;

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

/// Declares the operations: what each makes of two numbers. A condition makes 1 where it holds.
macro_rules! operations {
    ($($op:ident($a:pat, $b:pat) $result:expr,)*) => {
        /// What an instruction does to two numbers, or the size of its access to memory.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Op {
            $($op,)*
            Size1,
            Size2,
            Size4,
            Size8,
        }

        /// The result of an operation. A size has none.
        #[inline(always)]
        pub(crate) fn apply(op: Op, a: u64, b: u64) -> u64 {
            match (op, a, b) {
                $((Op::$op, $a, $b) => $result,)*
                _ => 0,
            }
        }
    };
}

// RFC 9669: a division by zero gives 0, its remainder is the dividend, and shifts count their
// distance modulo the width.
operations! {
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
    Always(_, _) 1,
    Eq(a, b) u64::from(a == b),
    Ne(a, b) u64::from(a != b),
    Gt(a, b) u64::from(a > b),
    Ge(a, b) u64::from(a >= b),
    Lt(a, b) u64::from(a < b),
    Le(a, b) u64::from(a <= b),
    Set(a, b) u64::from(a & b != 0),
    Sgt(a, b) u64::from(signed(a) > signed(b)),
    Sge(a, b) u64::from(signed(a) >= signed(b)),
    Slt(a, b) u64::from(signed(a) < signed(b)),
    Sle(a, b) u64::from(signed(a) <= signed(b)),
    Eq32(a, b) u64::from(low(a) == low(b)),
    Ne32(a, b) u64::from(low(a) != low(b)),
    Gt32(a, b) u64::from(low(a) > low(b)),
    Ge32(a, b) u64::from(low(a) >= low(b)),
    Lt32(a, b) u64::from(low(a) < low(b)),
    Le32(a, b) u64::from(low(a) <= low(b)),
    Set32(a, b) u64::from(low(a) & low(b) != 0),
    Sgt32(a, b) u64::from(low_signed(a) > low_signed(b)),
    Sge32(a, b) u64::from(low_signed(a) >= low_signed(b)),
    Slt32(a, b) u64::from(low_signed(a) < low_signed(b)),
    Sle32(a, b) u64::from(low_signed(a) <= low_signed(b)),
}

/// What a program may call, by the number in the call. Those of Linux have Linux's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Helper {
    /// `void *bpf_map_lookup_elem(map, key)`
    Lookup,
    /// `long bpf_map_update_elem(map, key, value, flags)`
    Update,
    /// `long bpf_map_delete_elem(map, key)`
    Delete,
    /// `__u64 bpf_ktime_get_ns()`
    Time,
    /// `__u64 uvala_hash(data, bytes, seed)`
    Hash,
    /// `long uvala_add_port(port)`
    AddPort,
    /// Ends the run in a fault: what LLVM's `__bpf_trap()` becomes.
    Trap,
}

/// The number of [`Helper::Trap`].
pub(crate) const TRAP: i32 = 1003;

impl Helper {
    pub(crate) fn of(number: i32) -> Option<Self> {
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

/// What an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The second half of an instruction of sixteen bytes, where nothing leads.
    Hole,
    /// `dst = imm`, and skips the second half.
    Wide,
    /// `dst = op(dst, operand)`
    Compute,
    /// `if op(dst, operand) goto offset`
    Branch,
    /// `dst = *(src + offset)`
    Load,
    /// `*(dst + offset) = operand`
    Store,
    /// `*(dst + offset) = op(*(dst + offset), src)`; gives the old value if `imm` is not 0. `Same`:
    /// compares with register 0 and exchanges.
    Atomic(Op),
    /// Calls a helper.
    Helper(Helper),
    /// Calls the function at `offset`.
    Call,
    /// Returns.
    Exit,
}

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Insn {
    pub(crate) kind: Kind,
    pub(crate) op: Op,
    pub(crate) dst: u8,
    /// The register of the operand, or [`IMMEDIATE`].
    pub(crate) src: u8,
    /// Bytes, of an access to memory; the place to which a jump leads.
    pub(crate) offset: i16,
    pub(crate) imm: u64,
}

impl Insn {
    /// No instruction.
    pub(crate) const HOLE: Self =
        Self { kind: Kind::Hole, op: Op::Same, dst: 0, src: 0, offset: 0, imm: 0 };
}

const _: () = assert!(size_of::<Insn>() == 16, "four instructions in a cache line");
