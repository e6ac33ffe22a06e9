//! Copies between buffers that others may write meanwhile.
//!
//! Payload is opaque to the switch: nothing is decided from bytes that these routines move, so a
//! peer that changes them during the copy only garbles its own frame. What is decided from, the
//! first [`HEADER`] bytes, is read once by [`header`] and written to the destination from that
//! snapshot.

#![allow(unsafe_code)] // UNSAFETY: raw copies between mapped buffers.

use crate::abi::LINE;

/// Bytes of a frame that are read once and decided from: both addresses, type, VLAN tag.
pub const HEADER: usize = 16;

/// Reads the first [`HEADER`] bytes of a buffer, once.
///
/// # Safety
/// `buffer` is aligned to 16 and its first line is mapped.
#[inline(always)]
pub(crate) unsafe fn header(buffer: *const u8) -> Block {
    // SAFETY: the caller's promise; volatile, so that the value is read exactly once.
    unsafe { buffer.cast::<Block>().read_volatile() }
}

/// Sixteen bytes that move through one vector register.
#[cfg(target_arch = "x86_64")]
pub(crate) type Block = core::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) type Block = u128;

/// The bytes of a block as a number, in the machine's order.
#[inline(always)]
pub(crate) fn number(block: Block) -> u128 {
    // SAFETY: sixteen bytes of any pattern are valid for either type.
    unsafe { core::mem::transmute::<Block, u128>(block) }
}

/// The block with the bytes of a number.
#[inline(always)]
pub(crate) fn block(number: u128) -> Block {
    // SAFETY: sixteen bytes of any pattern are valid for either type.
    unsafe { core::mem::transmute::<u128, Block>(number) }
}

/// Are the bits of `block` that `mask` names those of `want`?
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn equal(block: Block, mask: Block, want: Block) -> bool {
    use core::arch::x86_64::{_mm_and_si128, _mm_cmpeq_epi8, _mm_movemask_epi8};
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(block, mask), want)) == 0xffff }
}

/// Are the bits of `block` that `mask` names those of `want`?
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn equal(block: Block, mask: Block, want: Block) -> bool {
    block & mask == want
}

/// Writes `header`, then copies bytes [`HEADER`]..`len`, rounded up to whole lines.
///
/// # Safety
/// `from` and `to` are aligned to 16, do not overlap, and `len` rounded up to [`LINE`] bytes are
/// mapped at both.
#[inline(always)]
pub(crate) unsafe fn copy_frame(to: *mut u8, from: *const u8, header: Block, len: usize) {
    // SAFETY: the caller's promise covers the first line and what `copy_lines` moves.
    unsafe {
        to.cast::<Block>().write(header);
        copy_blocks::<3>(to.add(HEADER), from.add(HEADER));
        if len > LINE {
            copy_lines(to.add(LINE), from.add(LINE), len - LINE);
        }
        clear_tail(to, len);
    }
}

/// Clears the rest of the last line: what the sender's buffer held before is not the receiver's.
#[inline(always)]
unsafe fn clear_tail(to: *mut u8, len: usize) {
    let (mut at, rest) = (len & !7, len & 7);
    // SAFETY: whole words of the frame's last line, which `copy_frame` may write.
    unsafe {
        if rest != 0 {
            let word = to.add(at).cast::<u64>();
            word.write(word.read() & ((1 << (8 * rest)) - 1));
            at += 8;
        }
        while !at.is_multiple_of(LINE) {
            to.add(at).cast::<u64>().write(0);
            at += 8;
        }
    }
}

/// Copies `len` bytes, rounded up to whole lines.
#[inline(always)]
unsafe fn copy_lines(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: `at` is below `len`, which rounds up to whole mapped lines.
        unsafe { copy_blocks::<4>(to.add(at), from.add(at)) };
        at += LINE;
    }
}

/// Copies `N` blocks of 16 bytes.
#[inline(always)]
unsafe fn copy_blocks<const N: usize>(to: *mut u8, from: *const u8) {
    for i in 0..N {
        // SAFETY: as promised to `copy_frame`; both sides are aligned to 16.
        unsafe { to.cast::<Block>().add(i).write(from.cast::<Block>().add(i).read()) };
    }
}

/// Copies exactly `len` bytes, of any alignment. The two may be one: members of a hostile group
/// can name one buffer twice.
///
/// # Safety
/// `len` bytes are mapped at both.
#[inline(always)]
pub(crate) unsafe fn copy_bytes(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy(from, to, len) }
}
