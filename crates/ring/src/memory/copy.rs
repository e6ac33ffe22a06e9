//! Copies between buffers that others may write meanwhile.
//!
//! Payload is opaque to the switch: nothing is decided from bytes that these routines move, so a
//! peer that changes them during the copy only garbles its own frame. What is decided from, the
//! first [`HEADER`] bytes, is read once by [`header`] and written to the destination from that
//! snapshot.

#![allow(unsafe_code)] // UNSAFETY: raw copies between mapped buffers.

use crate::format::abi::LINE;

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

/// Whether `block` equals `want` in the bits that `mask` names.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn equal(block: Block, mask: Block, want: Block) -> bool {
    use core::arch::x86_64::{_mm_and_si128, _mm_cmpeq_epi8, _mm_movemask_epi8};
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(block, mask), want)) == 0xffff }
}

/// Whether `block` equals `want` in the bits that `mask` names.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn equal(block: Block, mask: Block, want: Block) -> bool {
    block & mask == want
}

/// Has the processor fetch the line of an address, whatever is there.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8, writes: bool) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
        // SAFETY: it is a hint, which has no effect that a program could see.
        unsafe {
            if writes {
                _mm_prefetch::<_MM_HINT_ET0>(at.cast());
            } else {
                _mm_prefetch::<_MM_HINT_T0>(at.cast());
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, writes);
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
/// Headers and short frames are a few loads and as many stores. The call that it takes to copy
/// longer ones is nothing beside them, and theirs is the better routine.
///
/// # Safety
/// `len` bytes are mapped at both.
#[inline(always)]
pub(crate) unsafe fn copy_bytes(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise, and the lengths that each of them takes.
    unsafe {
        match len {
            0..=3 => (0..len).for_each(|i| to.add(i).write(from.add(i).read())),
            4..=7 => copy_ends::<u32, 1>(to, from, len),
            8..=15 => copy_ends::<u64, 1>(to, from, len),
            16..=32 => copy_ends::<Block, 1>(to, from, len),
            33..=64 => copy_ends::<Block, 2>(to, from, len),
            65..=128 => copy_ends::<Block, 4>(to, from, len),
            _ => core::ptr::copy(from, to, len),
        }
    }
}

/// Copies `N` words from the beginning and `N` up to the end; where these overlap, they are the
/// same. All are read before the first is written.
///
/// # Safety
/// `len` bytes are mapped at both; they are at least `N` words, and at most twice as many.
#[inline(always)]
unsafe fn copy_ends<T: Copy, const N: usize>(to: *mut u8, from: *const u8, len: usize) {
    let (from, to, end) = (from.cast::<T>(), to.cast::<T>(), len - N * size_of::<T>());
    // SAFETY: the caller's promise.
    unsafe {
        let head = from.cast::<[T; N]>().read_unaligned();
        let tail = from.byte_add(end).cast::<[T; N]>().read_unaligned();
        to.cast::<[T; N]>().write_unaligned(head);
        to.byte_add(end).cast::<[T; N]>().write_unaligned(tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_bytes_are_copied_as_were_asked_for_and_no_others() {
        let from: Vec<u8> = (0..=255).collect();
        for len in 0..=200 {
            for at in [0, 1, 5] {
                let mut to = [0xaa; 256];
                // SAFETY: both have 256 bytes.
                unsafe { copy_bytes(to.as_mut_ptr().add(at), from.as_ptr().add(3), len) };
                assert_eq!(to[at..at + len], from[3..3 + len]);
                assert!(to[..at].iter().chain(&to[at + len..]).all(|&byte| byte == 0xaa));
            }
        }
    }

    #[test]
    fn a_buffer_may_be_copied_onto_itself() {
        for (len, skew) in [(7, 0), (60, 0), (60, 4), (128, 16), (200, 8)] {
            let mut bytes: [u8; 256] = core::array::from_fn(|i| u8::try_from(i).unwrap());
            let base = bytes.as_mut_ptr();
            // SAFETY: all of it lies in the array.
            unsafe { copy_bytes(base.add(skew), base, len) };
            assert!((0..len).all(|i| usize::from(bytes[skew + i]) == i), "{len} by {skew}");
        }
    }
}
