//! Waiting with a deadline, never with a nap that is long enough on one machine only.

use std::time::{Duration, Instant};

/// Long enough for anything that works, on a machine that has much else to do.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `look` finds something.
///
/// # Panics
/// When [`PATIENCE`] is over, saying `what` was waited for.
pub fn find<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    find_within(PATIENCE, what, look)
}

/// Waits until `look` finds something that takes longer.
///
/// # Panics
/// When `patience` is over, saying `what` was waited for.
pub fn find_within<T>(patience: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {patience:?} in vain for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `look` says yes.
///
/// # Panics
/// As [`find`].
pub fn until(what: &str, mut look: impl FnMut() -> bool) {
    find(what, || look().then_some(()));
}

/// Waits without naps until `look` says yes.
///
/// # Panics
/// As [`find`].
pub fn spin(what: &str, mut look: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !look() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for: {what}");
        std::thread::yield_now();
    }
}
