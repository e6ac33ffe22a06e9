//! Buffers that two threads hand to each other, and loops that really write and read them.
//!
//! The loops here are the yardstick of `limit`: they do what a sender, a switch and a receiver
//! cannot avoid (write, copy, read every byte) and nothing else, so they must be as fast as the
//! machine allows. A buffer belongs to one thread at a time; which one follows from the ring's
//! indexes. Plain loops over whole cache lines are compiled twice, for any x86-64 and for AVX2, and
//! chosen once a batch.

// UNSAFETY: two threads take turns on the same buffers, which `&mut` cannot express; the owner
// changes with the Release and Acquire of the ring indexes in `limit`. And functions compiled for
// AVX2 may only be called where the CPU has it.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;

/// Words in one cache line.
const LINE: usize = 8;

/// Distance of two buffers: 33 lines. A power of two would make all headers share a cache set.
pub const STRIDE: usize = 33 * LINE;

/// One cache line.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line([u64; LINE]);

/// `count` buffers of one stride each, to be touched from two threads in turns.
pub struct Pool {
    lines: Box<[UnsafeCell<Line>]>,
    count: usize,
    avx2: bool,
}

// SAFETY: the methods that touch the memory are unsafe and demand that the caller owns the buffers.
unsafe impl Sync for Pool {}

impl Pool {
    /// Buffers with every page present.
    pub fn new(count: usize) -> Pool {
        // Not zero, so that every page is really allocated here.
        let lines = (0..count * STRIDE / LINE).map(|_| UnsafeCell::new(Line([1; LINE])));
        Pool { lines: lines.collect(), count, avx2: has_avx2() }
    }

    /// Writes `length` bytes into `many` buffers from `first` on, wrapping around.
    ///
    /// # Safety
    /// The calling thread owns these buffers.
    pub unsafe fn write(&self, first: usize, many: usize, length: usize, value: u64) {
        for (from, many) in self.pieces(first, many) {
            // SAFETY: `pieces` are in range, and the caller owns them.
            let lines = unsafe { self.slice_mut(from, many) };
            if self.avx2 {
                // SAFETY: `has_avx2` said so.
                unsafe { write_avx2(lines, length, value) }
            } else {
                write_lines(lines, length, value);
            }
        }
    }

    /// Reads `length` bytes of `many` buffers from `first` on; the result depends on all of them.
    ///
    /// # Safety
    /// The calling thread owns these buffers.
    pub unsafe fn read(&self, first: usize, many: usize, length: usize) -> u64 {
        let mut sum = 0;
        for (from, many) in self.pieces(first, many) {
            // SAFETY: `pieces` are in range, and the caller owns them.
            let lines = unsafe { self.slice_mut(from, many) };
            sum ^= if self.avx2 {
                // SAFETY: `has_avx2` said so.
                unsafe { read_avx2(lines, length) }
            } else {
                read_lines(lines, length)
            };
        }
        sum
    }

    /// Reads three words of the first line of `many` buffers from `first` on, and writes one.
    ///
    /// # Safety
    /// The calling thread owns these buffers.
    pub unsafe fn change(&self, first: usize, many: usize) -> u64 {
        let mut sum = 0;
        for (from, many) in self.pieces(first, many) {
            // SAFETY: `pieces` are in range, and the caller owns them.
            let lines = unsafe { self.slice_mut(from, many) };
            for Line(words) in lines.iter_mut().step_by(STRIDE / LINE) {
                sum ^= words[0] ^ words[1] ^ words[7];
                words[3] = sum;
            }
        }
        sum
    }

    /// Copies `length` bytes of `many` buffers from `first` on to the same buffers of `to`.
    ///
    /// # Safety
    /// The calling thread owns these buffers in both pools.
    pub unsafe fn copy(&self, to: &Pool, first: usize, many: usize, length: usize) {
        assert_eq!(self.count, to.count);
        for (from, many) in self.pieces(first, many) {
            // SAFETY: in range in both pools, which are distinct, and owned by the caller.
            let (a, b) = unsafe { (self.slice_mut(from, many), to.slice_mut(from, many)) };
            if self.avx2 {
                // SAFETY: `has_avx2` said so.
                unsafe { copy_avx2(a, b, length) }
            } else {
                copy_lines(a, b, length);
            }
        }
    }

    /// A wrapping range of buffers as at most two straight ones, `(first, many)`.
    fn pieces(&self, first: usize, many: usize) -> [(usize, usize); 2] {
        assert!(first < self.count && many <= self.count, "a range of the ring");
        let straight = many.min(self.count - first);
        [(first, straight), (0, many - straight)]
    }

    /// # Safety
    /// The range is inside the pool and the calling thread owns it.
    #[allow(clippy::mut_from_ref)] // what the pool is for: see the head of the module
    unsafe fn slice_mut(&self, first: usize, many: usize) -> &mut [Line] {
        const LINES: usize = STRIDE / LINE;
        let cells = &self.lines[first * LINES..(first + many) * LINES];
        let start = UnsafeCell::raw_get(cells.as_ptr());
        // SAFETY: these lines are inside cells, and the caller promises that it alone uses them.
        unsafe { std::slice::from_raw_parts_mut(start, cells.len()) }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

/// # Safety
/// The CPU has AVX2.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
unsafe fn write_avx2(lines: &mut [Line], length: usize, value: u64) {
    write_lines(lines, length, value);
}

/// # Safety
/// The CPU has AVX2.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
unsafe fn read_avx2(lines: &[Line], length: usize) -> u64 {
    read_lines(lines, length)
}

/// # Safety
/// The CPU has AVX2.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
unsafe fn copy_avx2(from: &[Line], to: &mut [Line], length: usize) {
    copy_lines(from, to, length);
}

/// Calls a loop with the number of lines of one buffer, as a constant where it is one line: a loop
/// of variable length costs a short frame more than its copy.
macro_rules! with_lines {
    ($length:expr, $call:expr) => {
        if $length <= 64 { $call(1) } else { $call($length.div_ceil(64)) }
    };
}

#[inline(always)]
fn write_lines(lines: &mut [Line], length: usize, value: u64) {
    let mut write = |many: usize| {
        for (buffer, number) in lines.chunks_exact_mut(STRIDE / LINE).zip(value..) {
            for line in &mut buffer[..many] {
                *line = Line([number; LINE]);
            }
        }
    };
    with_lines!(length, write);
}

#[inline(always)]
fn read_lines(lines: &[Line], length: usize) -> u64 {
    let mut sum = [0; LINE];
    let mut read = |many: usize| {
        for buffer in lines.chunks_exact(STRIDE / LINE) {
            for line in &buffer[..many] {
                for (s, word) in sum.iter_mut().zip(line.0) {
                    *s ^= word;
                }
            }
        }
    };
    with_lines!(length, read);
    sum.iter().fold(0, |a, b| a ^ b)
}

#[inline(always)]
fn copy_lines(from: &[Line], to: &mut [Line], length: usize) {
    let mut copy = |many: usize| {
        let buffers = from.chunks_exact(STRIDE / LINE).zip(to.chunks_exact_mut(STRIDE / LINE));
        for (from, to) in buffers {
            to[..many].copy_from_slice(&from[..many]);
        }
    };
    with_lines!(length, copy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_pool_what_is_written_is_copied_and_read_around_the_end() {
        let (a, b) = (Pool::new(8), Pool::new(8));
        // SAFETY: one thread owns everything.
        unsafe {
            a.write(6, 4, 60, 100);
            a.copy(&b, 6, 4, 60);
            // Eight equal words a line cancel out; a single odd word must not.
            assert_eq!(b.read(6, 4, 60), 0);
            assert_eq!(b.slice_mut(7, 1)[0].0, [101; LINE]);
            assert_eq!(b.slice_mut(0, 1)[0].0, [100; LINE]);
            b.slice_mut(1, 1)[0].0[3] = 7;
            assert_eq!(b.read(6, 4, 60), 7 ^ a.slice_mut(1, 1)[0].0[3]);
        }
    }

    #[test]
    fn test_pool_length_is_respected() {
        let pool = Pool::new(2);
        // SAFETY: one thread owns everything.
        unsafe {
            pool.write(0, 1, 1514, 9);
            let lines = pool.slice_mut(0, 1);
            assert_eq!(lines[23].0, [9; LINE]);
            assert_eq!(lines[24].0, [1; LINE]);
        }
    }
}
