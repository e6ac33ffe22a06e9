//! What several workers use, one at a time: receive rings, and ports without rings.
//!
//! # Theory of operation
//!
//! ```text
//!   the port's worker ──┐                    ┌── another worker, which delivers to the port
//!                       ▼                    ▼
//!        Sole: no lock, no other handle │ Common: a mutex, and a handle for each worker
//! ```
//!
//! A switch that one worker runs has no lock. In a switch of several workers, each of them has a
//! handle of each port, and takes the lock once for a run or a list of frames. A worker releases
//! one lock before it takes another, so no two wait for each other. (A port's own worker takes the
//! locks of all its rings for [`recover`](crate::krings::Krings::recover), and waits for such
//! workers only.) A worker that does not get the lock soon sleeps in the kernel, because the holder
//! may have lost its core.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::waiters::Waiters;

/// A handle of a value that one worker has for itself, or that several have in common.
pub struct Shared<T>(Access<T>);

enum Access<T> {
    /// The only handle there is.
    Sole(T),
    /// One of several.
    Common(Arc<Common<T>>),
}

struct Common<T> {
    value: Mutex<T>,
    waiters: Waiters,
}

/// Access to the value, until this is dropped.
pub enum Guard<'a, T> {
    /// Without a lock.
    Sole(&'a mut T),
    /// Under the lock.
    Common(MutexGuard<'a, T>),
}

impl<T> Shared<T> {
    /// A value with one handle.
    #[must_use]
    pub fn sole(value: T) -> Self {
        Self(Access::Sole(value))
    }

    /// Puts a lock around the value, so that there may be [other handles](Self::handle).
    #[must_use]
    pub fn into_common(self) -> Self {
        match self.0 {
            Access::Sole(value) => {
                let (value, waiters) = (Mutex::new(value), Waiters::default());
                Self(Access::Common(Arc::new(Common { value, waiters })))
            }
            common @ Access::Common(_) => Self(common),
        }
    }

    /// Another handle, for another worker.
    ///
    /// # Panics
    /// If the value has no lock: see [`Shared::into_common`].
    #[must_use]
    pub fn handle(&self) -> Self {
        match &self.0 {
            Access::Sole(_) => panic!("a value without a lock has one handle"),
            Access::Common(common) => Self(Access::Common(common.clone())),
        }
    }

    /// The value, when no other worker uses it.
    #[inline]
    pub fn lock(&mut self) -> Guard<'_, T> {
        match &mut self.0 {
            Access::Sole(value) => Guard::Sole(value),
            Access::Common(common) => Guard::Common(locked(&common.value)),
        }
    }

    /// Calls `read` with the value, when no other worker uses it.
    pub fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        match &self.0 {
            Access::Sole(value) => read(value),
            Access::Common(common) => read(&locked(&common.value)),
        }
    }

    /// The workers that wait for room here. None does where there is one handle.
    #[must_use]
    pub fn waiters(&self) -> Option<&Waiters> {
        match &self.0 {
            Access::Sole(_) => None,
            Access::Common(common) => Some(&common.waiters),
        }
    }

    /// Notes that a worker waits for room no more. The value, if no other one waits either.
    pub fn stop_waiting(&mut self, worker: u32) -> Option<Guard<'_, T>> {
        match &mut self.0 {
            Access::Sole(value) => Some(Guard::Sole(value)),
            Access::Common(common) => {
                // Under the lock, as `Waiters` asks for.
                let value = locked(&common.value);
                (!common.waiters.remove(worker)).then_some(Guard::Common(value))
            }
        }
    }
}

/// A worker that panics ends the process, so no other worker sees what it left behind.
fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match self {
            Self::Sole(value) => value,
            Self::Common(value) => value,
        }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Self::Sole(value) => value,
            Self::Common(value) => value,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Access::Sole(value) => f.debug_tuple("Sole").field(value).finish(),
            Access::Common(_) => f.debug_tuple("Common").finish(),
        }
    }
}

/// Tests with one thread use the rings without a lock.
#[cfg(test)]
impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Access::Sole(value) => value,
            Access::Common(_) => panic!("a value with a lock is locked"),
        }
    }
}

#[cfg(test)]
impl<T> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.0 {
            Access::Sole(value) => value,
            Access::Common(_) => panic!("a value with a lock is locked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_without_a_lock_becomes_one_with_handles_for_several_workers() {
        let mut value = Shared::sole(3);
        *value.lock() += 1;
        let mut value = value.into_common();
        let mut other = value.handle();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..1000).for_each(|_| *other.lock() += 1));
            (0..1000).for_each(|_| *value.lock() += 1);
        });
        assert_eq!(value.into_common().with(|value| *value), 2004);
    }

    #[test]
    #[should_panic(expected = "one handle")]
    fn a_value_without_a_lock_has_no_other_handle() {
        let _ = Shared::sole(3).handle();
    }
}
