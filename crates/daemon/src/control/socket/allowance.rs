//! How much of the control thread's time the calls of one user may take.
//!
//! The daemon does what a call asks for at its own priority, not at the caller's. Without a limit,
//! a program of the lowest priority could take half a core from workers and other programs by
//! calls. So each user has an allowance of [`BURST`], and gets back a tenth of the time that
//! passes. Calls of a user that has used it up wait, while others are served. What a hang-up costs
//! is charged, too, and what workers do for a call while the control thread waits for them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::model::policy::Caller;

/// Processor time that a user may take at once: some thousand calls.
const BURST: Duration = Duration::from_secs(1);
/// A user gets back one in so many seconds.
const SHARE: u32 = 10;
/// Users to remember before those with a full allowance are forgotten.
const USERS: usize = 256;

/// The user that is charged for what the daemon does for a client.
#[derive(Clone, Copy, Debug)]
pub struct Payer {
    /// Number of the user.
    pub uid: u32,
    /// Root, or the daemon's own user: it pays nothing.
    pub privileged: bool,
}

impl Payer {
    /// The user of this client.
    #[must_use]
    pub fn of(caller: &Caller) -> Self {
        Self { uid: caller.uid, privileged: caller.privileged }
    }
}

/// What each user has taken.
#[derive(Debug, Default)]
pub struct Allowance(HashMap<u32, Taken>);

#[derive(Clone, Copy, Debug)]
struct Taken {
    time: Duration,
    at: Instant,
}

impl Taken {
    fn left(self, now: Instant) -> Duration {
        self.time.saturating_sub(now.saturating_duration_since(self.at) / SHARE)
    }
}

impl Allowance {
    /// Charges a user for processor time.
    pub fn charge(&mut self, uid: u32, time: Duration, now: Instant) {
        let before = self.0.get(&uid).map_or(Duration::ZERO, |taken| taken.left(now));
        self.0.insert(uid, Taken { time: before + time, at: now });
        if self.0.len() > USERS {
            self.0.retain(|_, taken| !taken.left(now).is_zero());
        }
    }

    /// How long the next call of a user has to wait.
    #[must_use]
    pub fn wait(&self, uid: u32, now: Instant) -> Duration {
        let taken = self.0.get(&uid).map_or(Duration::ZERO, |taken| taken.left(now));
        taken.saturating_sub(BURST) * SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_burst_is_free_and_then_a_tenth_of_the_time() {
        let (mut allowance, mut now) = (Allowance::default(), Instant::now());
        allowance.charge(1, BURST, now);
        assert_eq!(allowance.wait(1, now), Duration::ZERO);
        let mut served = Duration::ZERO;
        let end = now + Duration::from_secs(60);
        while now < end {
            now += allowance.wait(1, now);
            allowance.charge(1, Duration::from_millis(2), now);
            served += Duration::from_millis(2);
        }
        let most = Duration::from_secs(6);
        assert!(served <= most + Duration::from_millis(4) && served >= most / 2, "{served:?}");
        assert_eq!(allowance.wait(2, now), Duration::ZERO, "others do not wait");
    }

    #[test]
    fn test_an_allowance_comes_back() {
        let (mut allowance, now) = (Allowance::default(), Instant::now());
        allowance.charge(1, 3 * BURST, now);
        assert_eq!(allowance.wait(1, now), 20 * BURST);
        assert_eq!(allowance.wait(1, now + 20 * BURST), Duration::ZERO);
    }

    #[test]
    fn test_users_that_took_little_are_forgotten() {
        let (mut allowance, now) = (Allowance::default(), Instant::now());
        allowance.charge(9999, 1000 * BURST, now);
        for uid in 0..2000 {
            let now = now + Duration::from_secs(u64::from(uid));
            allowance.charge(uid, Duration::from_millis(1), now);
        }
        assert!(allowance.0.len() <= USERS + 1);
        assert!(!allowance.wait(9999, now + Duration::from_secs(900)).is_zero());
    }
}
