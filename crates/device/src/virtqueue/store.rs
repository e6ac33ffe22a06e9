//! Stores into memory that outlives the device. A test lets a device die before any one of them.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A word of such memory.
pub(super) trait Put<Word> {
    fn put(&self, word: Word, ordering: Ordering);
}

macro_rules! put {
    ($atomic:ty, $word:ty) => {
        impl Put<$word> for $atomic {
            #[inline(always)]
            fn put(&self, word: $word, ordering: Ordering) {
                #[cfg(test)]
                death::before_a_store();
                self.store(word, ordering);
            }
        }
    };
}

put!(AtomicU16, u16);
put!(AtomicU32, u32);
put!(AtomicU64, u64);

#[cfg(test)]
pub(super) mod death {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        /// The stores that the device lives for; `None`: for ever.
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    pub(super) fn before_a_store() {
        match LEFT.get() {
            Some(0) => resume_unwind(Box::new("died")),
            left => LEFT.set(left.map(|left| left - 1)),
        }
    }

    /// Runs a device that dies after this many stores; whether it came to its end.
    pub fn outlives(stores: usize, run: impl FnOnce()) -> bool {
        LEFT.set(Some(stores));
        let result = catch_unwind(AssertUnwindSafe(run));
        LEFT.set(None);
        match result {
            Ok(()) => true,
            Err(why) if why.is::<&str>() && why.downcast_ref() == Some(&"died") => false,
            Err(fault) => resume_unwind(fault),
        }
    }
}
