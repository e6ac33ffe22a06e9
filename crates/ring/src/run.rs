//! Moving frames from ring to ring: the loops that the project exists for.
//!
//! A *run* is the longest prefix of published frames that lie in one plain slot each and carry the
//! same header (addresses, type, VLAN tag): what was decided for the first holds for all of them,
//! so the loop does no look-up at all. Between regions the frame is copied; inside a region the
//! two slots swap their buffers.
//!
//! What does not fit that pattern (chains, tags to insert or strip, several destinations) goes
//! frame by frame through [`RxKring::put`](crate::put).

#![allow(unsafe_code)] // UNSAFETY: copies between buffers that were bounded just before.

use std::sync::Arc;

use crate::abi::slot_flag;
use crate::copy;
use crate::cursor::Index;
use crate::kring::{RxKring, Simple, SlotWord, TxKring};

/// The header that all frames of a run share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    want: u128,
    mask: u128,
}

impl Key {
    /// Frames whose first 16 bytes equal `header` where `mask` has ones.
    #[inline]
    #[must_use]
    pub fn new(header: u128, mask: u128) -> Self {
        Self { want: header & mask, mask }
    }

    #[inline(always)]
    fn matches(self, header: u128) -> bool {
        header & self.mask == self.want
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As many frames as allowed, or nothing more is published.
    Done,
    /// The next frame has another header.
    Other,
    /// The next frame is not plain, or does not fit a slot of the destination.
    Complex,
    /// The destination is full.
    Full,
    /// The destination's client spoilt the slot; that frame is not taken.
    BadSlot,
}

/// What a run has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Frames.
    pub frames: u32,
    /// Bytes.
    pub bytes: u64,
    /// Why it is over.
    pub end: End,
}

/// Moves a run of at most `max` frames from `tx` to `rx`: by swap inside a region, else by copy.
#[inline]
pub fn deliver_run(tx: &mut TxKring, rx: &mut RxKring, key: Key, max: u32) -> Run {
    if Arc::ptr_eq(tx.region(), rx.region()) {
        swap_run(tx, rx, key, max)
    } else {
        copy_run(tx, rx, key, max)
    }
}

/// Copies a run of at most `max` frames from `tx` to `rx`.
#[inline]
pub fn copy_run(tx: &mut TxKring, rx: &mut RxKring, key: Key, max: u32) -> Run {
    let limit = rx.region().stride();
    run(tx, key, max, |_, _, frame, header| {
        if rx.room() == 0 {
            return Err(End::Full);
        }
        if u32::from(frame.len) > limit {
            return Err(End::Complex);
        }
        let to = rx.free_buffer().map_err(|_| End::BadSlot)?;
        let data = rx.region().buffer(to);
        // SAFETY: both buffers are aligned to a line, `len` fits either's stride, which is a
        // whole number of lines; two regions do not overlap.
        unsafe { copy::copy_frame(data, frame.data, header, usize::from(frame.len)) };
        rx.fill(SlotWord::new(to.get(), frame.len, 0));
        Ok(())
    })
}

/// Swaps a run of at most `max` frames from `tx` to `rx`, which lie in one region.
#[inline]
pub fn swap_run(tx: &mut TxKring, rx: &mut RxKring, key: Key, max: u32) -> Run {
    debug_assert!(Arc::ptr_eq(tx.region(), rx.region()));
    run(tx, key, max, |tx, at, frame, _| {
        if rx.room() == 0 {
            return Err(End::Full);
        }
        let spare = rx.free_buffer().map_err(|_| End::BadSlot)?;
        tx.replace(at, spare.get());
        rx.fill(SlotWord::new(frame.buffer, frame.len, slot_flag::BUF_CHANGED));
        Ok(())
    })
}

/// Takes a run of at most `max` frames from `tx` and drops it.
#[inline]
pub fn drop_run(tx: &mut TxKring, key: Key, max: u32) -> Run {
    run(tx, key, max, |_, _, _, _| Ok(()))
}

#[inline(always)]
fn run(
    tx: &mut TxKring,
    key: Key,
    max: u32,
    mut put: impl FnMut(&TxKring, Index, Simple, u128) -> Result<(), End>,
) -> Run {
    let (span, max) = (tx.span(), max.min(tx.ready()));
    let (mut at, mut frames, mut bytes, mut end) = (tx.next_index(), 0, 0, End::Done);
    while frames < max {
        let Some(frame) = tx.simple(at) else {
            end = End::Complex;
            break;
        };
        // SAFETY: `simple` hands out aligned buffers of at least one line.
        let header = unsafe { copy::header(frame.data) };
        if !key.matches(header) {
            end = End::Other;
            break;
        }
        if let Err(why) = put(tx, at, frame, header) {
            end = why;
            break;
        }
        frames += 1;
        bytes += u64::from(frame.len);
        at = span.next(at);
    }
    tx.set_next(at);
    Run { frames, bytes, end }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::Span;
    use crate::host::HostPort;
    use crate::layout::{DEFAULT_STRIDE, FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
    use crate::region::Region;
    use crate::user::{RxRing, TxRing};

    struct End {
        host: HostPort,
        tx: TxRing,
        rx: RxRing,
    }

    fn counts() -> RingCounts {
        let slots = Span::new(16).expect("legal");
        RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots }
    }

    /// `ports` ports in one region.
    fn ends(ports: usize) -> Vec<End> {
        let size = PortLayout::new(FIRST_BLOCK, counts()).end() - FIRST_BLOCK;
        let buffers = counts().buffers() * u32::try_from(ports).expect("few");
        let layout = RegionLayout::new(size * ports, DEFAULT_STRIDE, buffers).expect("legal");
        let (region, fd) = Region::create("test", layout).expect("memory");
        let client = Region::attach(std::os::fd::AsFd::as_fd(&fd), layout).expect("sealed");
        let mut free = region.buffers();
        (0..ports)
            .map(|i| {
                let port = PortLayout::new(FIRST_BLOCK + i * size, counts());
                region.format_port("test", &port, &mut free, ports == 1).expect("memory");
                let (tx, rx) = (TxRing::new(&client, &port, 0), RxRing::new(&client, &port, 0));
                End { host: HostPort::new(&region, &port), tx, rx }
            })
            .collect()
    }

    fn fill(tx: &mut TxRing, frames: u32, len: u16, header: u8) {
        for i in 0..frames {
            let data = tx.frame(i, len);
            data.fill(header);
            data[20] = u8::try_from(i).expect("few");
        }
        let _ = tx.submit(frames);
    }

    fn key(byte: u8) -> Key {
        Key::new(u128::from_ne_bytes([byte; 16]), u128::MAX)
    }

    #[test]
    fn a_run_is_copied_with_its_payload_and_ends_at_another_header() {
        let (mut a, mut b) = (ends(1).remove(0), ends(1).remove(0));
        fill(&mut a.tx, 3, 300, 1);
        fill(&mut a.tx, 2, 60, 2);
        assert_eq!(a.host.sync_tx(), 5);
        b.host.rx[0].sync();
        let run = copy_run(&mut a.host.tx[0], &mut b.host.rx[0], key(1), 100);
        assert_eq!(run, Run { frames: 3, bytes: 900, end: super::End::Other });
        b.host.rx[0].publish();
        assert_eq!(b.rx.refresh(), 3);
        for i in 0..3 {
            assert_eq!(b.rx.frame(i).len(), 300);
            assert_eq!(u32::from(b.rx.frame(i)[20]), i);
            assert_eq!(b.rx.frame(i)[299], 1);
        }
        a.host.tx[0].publish();
        assert_eq!(a.tx.refresh(), 15 - 2);
    }

    #[test]
    fn a_full_destination_ends_the_run_without_losing_a_frame() {
        let (mut a, mut b) = (ends(1).remove(0), ends(1).remove(0));
        for _ in 0..2 {
            fill(&mut a.tx, 10, 60, 1);
            a.host.sync_tx();
            b.host.rx[0].sync();
            copy_run(&mut a.host.tx[0], &mut b.host.rx[0], key(1), 100);
            a.host.tx[0].publish();
            b.host.rx[0].publish();
            a.tx.refresh();
        }
        assert_eq!((b.rx.refresh(), b.host.rx[0].room()), (15, 0));
        assert_eq!(a.host.tx[0].ready(), 5);
        let _ = b.rx.release(15);
        assert_eq!(b.host.rx[0].sync(), 15);
    }

    #[test]
    fn a_swap_exchanges_the_buffers() {
        let mut ports = ends(2);
        let (mut b, mut a) = (ports.remove(1), ports.remove(0));
        let (sent, spare) = (a.tx.buffer_index(0), {
            fill(&mut a.tx, 1, 60, 1);
            a.host.sync_tx();
            b.host.rx[0].sync();
            swap_run(&mut a.host.tx[0], &mut b.host.rx[0], key(1), 100)
        });
        assert_eq!(spare.frames, 1);
        b.host.rx[0].publish();
        a.host.tx[0].publish();
        assert_eq!(b.rx.refresh(), 1);
        assert_eq!(b.rx.buffer_index(0), sent);
        assert_eq!(
            b.rx.frame(0)[20..60],
            [
                0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1
            ]
        );
    }

    #[test]
    fn dropping_takes_only_the_run() {
        let mut a = ends(1).remove(0);
        fill(&mut a.tx, 3, 60, 1);
        fill(&mut a.tx, 2, 60, 2);
        a.host.sync_tx();
        assert_eq!(drop_run(&mut a.host.tx[0], key(1), 100).frames, 3);
        assert_eq!(a.host.tx[0].ready(), 2);
    }
}
