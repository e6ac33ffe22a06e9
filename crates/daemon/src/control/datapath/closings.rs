//! Files of closed ports that are not closed yet.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use port::sys::Closer;

/// How many files of closed ports of a user are not closed yet. Relaxed: no data depends on it.
pub type Unclosed = Arc<AtomicU32>;

/// Files of closed ports that are not closed yet.
pub trait Closings {
    /// How many there are of a user, now and later. `None`: there are none now.
    fn unclosed(&self, user: u32) -> Option<Unclosed>;

    /// Closes descriptors of files that programs of this user have, too.
    fn closer_for(&self, user: u32) -> Closer;
}

#[cfg(test)]
mod fake {
    use port::sys::Closer;

    use super::{Closings, Unclosed};
    use crate::control::fake::Fake;

    impl Closings for Fake {
        fn unclosed(&self, user: u32) -> Option<Unclosed> {
            self.unclosed.get(&user).cloned()
        }

        fn closer_for(&self, user: u32) -> Closer {
            let closed = self.closed.clone();
            Closer::new(move |closing| {
                closed.lock().expect("no panic").push(user);
                closing();
            })
        }
    }
}
