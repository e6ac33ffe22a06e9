//! Notification suppression of split virtqueues (2.7.7, 2.7.10).
//!
//! Driver and device each publish an index (`avail.idx`, `used.idx`) and each say when the other
//! is to tell them: by a flag, or, with `VIRTIO_F_EVENT_IDX`, by the index whose publication is to
//! be told. Each side stores first and looks second, with a fence between, so that at least one of
//! the two sees the other (Dekker's pattern, as in [`ring::doorbell`]):
//!
//! ```text
//!   driver                                device, before it sleeps
//!   STORE avail.idx (Release)             STORE avail_event = seen      (or flags = 0)
//!   fence               ◄────────────►    fence
//!   LOAD  avail_event                     LOAD  avail.idx (Acquire)
//!   seen is among the new: kick           moved: do not sleep
//!
//!   device                                driver, before it waits
//!   STORE used.idx (Release)              STORE used_event = seen
//!   fence               ◄────────────►    fence
//!   LOAD  used_event                      LOAD  used.idx (Acquire)
//!   seen is among the new: interrupt      moved: do not wait
//! ```
//!
//! The fences of the device's side are its worker's: one for all ports. The models at the end
//! check both drawings with loom.

use crate::atomic::{AtomicU16, Ordering};

/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY` are both bit 0.
pub const NO_NOTIFICATION: u16 = 1;

/// Whether the indexes that were passed on the way from `old` to `new` include `event` (2.7.10,
/// `vring_need_event`).
#[inline]
#[must_use]
pub fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// How the two sides of a queue say when they are to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suppression {
    /// A flag.
    Flags,
    /// An index, with `VIRTIO_F_EVENT_IDX`.
    EventIndex,
}

/// The device asks for kicks. It has seen the driver's index as `seen`; it fences and looks again.
#[inline]
pub fn want_kicks(how: Suppression, flags: &AtomicU16, avail_event: &AtomicU16, seen: u16) {
    match how {
        Suppression::Flags => flags.store(0, Ordering::Relaxed),
        Suppression::EventIndex => avail_event.store(seen.to_le(), Ordering::Relaxed),
    }
}

/// The device wants no kicks. With an index there is nothing to do: the last one asked for stays
/// behind, where the driver does not pass it again for 65536 buffers.
#[inline]
pub fn want_none(how: Suppression, flags: &AtomicU16) {
    if how == Suppression::Flags {
        flags.store(NO_NOTIFICATION.to_le(), Ordering::Relaxed);
    }
}

/// What the device remembers of the interrupts it owes.
#[derive(Debug, Default)]
pub struct Owed {
    /// The index up to which the driver has been told, or need not be. None: it is told in any
    /// case.
    told: Option<u16>,
}

impl Owed {
    /// Whether the driver must be told. Call after `used` was published and a fence.
    #[inline]
    pub fn must_tell(
        &mut self,
        how: Suppression,
        flags: &AtomicU16,
        used_event: &AtomicU16,
        used: u16,
    ) -> bool {
        let told = self.told.replace(used);
        if told == Some(used) {
            return false;
        }
        match (how, told) {
            (Suppression::Flags, _) => {
                u16::from_le(flags.load(Ordering::Relaxed)) & NO_NOTIFICATION == 0
            }
            (Suppression::EventIndex, None) => true,
            (Suppression::EventIndex, Some(told)) => {
                passes(u16::from_le(used_event.load(Ordering::Relaxed)), told, used)
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn section_2_7_10_an_event_is_passed_once_also_over_the_end() {
        for start in [0, 1, 0x7ffe, 0xfffe, 0xffff_u16] {
            let at = |n: u16| start.wrapping_add(n);
            assert!(passes(at(0), at(0), at(1)), "the next one");
            assert!(passes(at(2), at(0), at(3)) && !passes(at(3), at(0), at(3)));
            assert!(!passes(at(0), at(1), at(3)), "passed before");
            assert!(!passes(at(0), at(0), at(0)), "nothing is new");
        }
    }

    #[test]
    fn section_2_7_7_flags_are_obeyed_and_nothing_new_tells_nobody() {
        let (flags, event, mut owed) = (AtomicU16::new(0), AtomicU16::new(0), Owed::default());
        let mut must =
            |flags: &AtomicU16, used| owed.must_tell(Suppression::Flags, flags, &event, used);
        assert!(must(&flags, 1) && !must(&flags, 1));
        flags.store(NO_NOTIFICATION, Ordering::Relaxed);
        assert!(!must(&flags, 2));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::fence;
    use loom::thread;

    #[derive(Default)]
    struct Words {
        flags: AtomicU16,
        event: AtomicU16,
        index: AtomicU16,
    }

    /// The driver makes two buffers available, one at a time; returns how often it kicked.
    fn driver(words: &Words, how: Suppression) -> u32 {
        (1..=2)
            .map(|index: u16| {
                words.index.store(index, Ordering::Release);
                fence(Ordering::SeqCst);
                let kick = match how {
                    Suppression::Flags => words.flags.load(Ordering::Relaxed) == 0,
                    Suppression::EventIndex => {
                        passes(words.event.load(Ordering::Relaxed), index - 1, index)
                    }
                };
                u32::from(kick)
            })
            .sum()
    }

    fn a_sleeping_device_is_kicked(how: Suppression) {
        loom::model(move || {
            let words = Arc::new(Words::default());
            want_none(how, &words.flags);
            words.event.store(u16::MAX - 9, Ordering::Relaxed);
            let theirs = words.clone();
            let driver = thread::spawn(move || driver(&theirs, how));
            let seen = words.index.load(Ordering::Acquire);
            want_kicks(how, &words.flags, &words.event, seen);
            fence(Ordering::SeqCst);
            let sleeps = words.index.load(Ordering::Acquire) == seen;
            let kicks = driver.join().unwrap();
            assert!(!sleeps || seen == 2 || kicks > 0, "asleep without a kick");
        });
    }

    fn a_waiting_driver_is_told(how: Suppression) {
        loom::model(move || {
            let words = Arc::new(Words::default());
            words.flags.store(NO_NOTIFICATION, Ordering::Relaxed);
            let theirs = words.clone();
            let device = thread::spawn(move || {
                let mut owed = Owed { told: Some(0) };
                let mut told = 0;
                for used in 1..=2 {
                    theirs.index.store(used, Ordering::Release);
                    fence(Ordering::SeqCst);
                    told += u32::from(owed.must_tell(how, &theirs.flags, &theirs.event, used));
                }
                told
            });
            let seen = words.index.load(Ordering::Acquire);
            words.flags.store(0, Ordering::Relaxed);
            words.event.store(seen, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let waits = words.index.load(Ordering::Acquire) == seen;
            let told = device.join().unwrap();
            assert!(!waits || seen == 2 || told > 0, "it waits without an interrupt");
        });
    }

    #[test]
    fn kicks_by_flag() {
        a_sleeping_device_is_kicked(Suppression::Flags);
    }

    #[test]
    fn kicks_by_index() {
        a_sleeping_device_is_kicked(Suppression::EventIndex);
    }

    #[test]
    fn interrupts_by_flag() {
        a_waiting_driver_is_told(Suppression::Flags);
    }

    #[test]
    fn interrupts_by_index() {
        a_waiting_driver_is_told(Suppression::EventIndex);
    }
}
