//! The timer by which a program in a guest looks at its rings, for want of interrupts.
//!
//! ```text
//!   quick, 0.5 ms ── 8 ticks for nothing ──► 1 ms ── 8 more ──► 2 ms ──► 4 ms ──► slow, 8 ms
//!        ▲                                                                           │
//!        └────────── something has come before a thread sleeps again ◄───────────────┘
//! ```
//!
//! So a frame that ends a pause of less than 4 ms waits for 0.5 ms at most, one that ends a longer
//! pause for 8 ms at most, and a program that waits for nothing is woken 125 times a second, unless
//! it waits by `epoll`, whose descriptor looks at the rings more often. A timer that is not read
//! does not tick.
//!
//! Copies of the port in several processes have one timer, and each its own count of ticks: the
//! last that changes the timer is right. All stay within these bounds.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// How long a thread sleeps before it looks at its rings again.
pub const TICK: Duration = Duration::from_micros(500);
/// Ticks for nothing before the next ones are twice as long.
const PATIENCE: u32 = 8;
/// How often their length doubles.
const DOUBLINGS: u32 = 4;

/// A timer, readable once in a tick as long as it is read.
pub fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    set(&timer, TICK)?;
    Ok(timer)
}

fn set(timer: impl AsFd, tick: Duration) -> io::Result<()> {
    let tick = Timespec { tv_sec: 0, tv_nsec: tick.subsec_nanos().into() };
    let ticks = Itimerspec { it_interval: tick, it_value: tick };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &ticks)?;
    Ok(())
}

/// How long the ticks of a timer are.
#[derive(Debug, Default)]
pub struct Ticks {
    /// Ticks for nothing, one after the other. Relaxed: threads may step on each other's counts.
    idle: AtomicU32,
}

impl Ticks {
    /// Something has come: the next one is not far.
    pub fn quicken(&self, timer: impl AsFd) {
        if self.idle.swap(0, Ordering::Relaxed) >= PATIENCE {
            // What it was set to before it can be set to again.
            let _ = set(timer, TICK);
        }
    }

    /// A tick was for nothing so far.
    pub fn slacken(&self, timer: impl AsFd) {
        let idle = self.idle.load(Ordering::Relaxed) + 1;
        if idle > PATIENCE * DOUBLINGS {
            return;
        }
        self.idle.store(idle, Ordering::Relaxed);
        if idle.is_multiple_of(PATIENCE) {
            let _ = set(timer, TICK * (1 << (idle / PATIENCE)));
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::time::timerfd_gettime;

    use super::*;

    #[test]
    fn test_a_timer_ticks_while_it_is_read_and_once_while_it_is_not() {
        let timer = timer().unwrap();
        let mut count = [0; 8];
        for _ in 0..3 {
            let mut fds = [PollFd::new(&timer, PollFlags::IN)];
            assert_eq!(poll(&mut fds, None), Ok(1));
            assert_eq!(rustix::io::read(&timer, &mut count[..]), Ok(8));
            assert_ne!(u64::from_ne_bytes(count), 0);
        }
    }

    #[test]
    fn test_ticks_for_nothing_get_longer_up_to_a_bound_and_short_again_at_once() {
        let (timer, ticks) = (timer().unwrap(), Ticks::default());
        let tick = || timerfd_gettime(&timer).unwrap().it_interval.tv_nsec / 1000;
        for _ in 0..2 {
            let lengths: Vec<_> = (0..100)
                .map(|_| {
                    ticks.slacken(&timer);
                    tick()
                })
                .collect();
            assert_eq!(
                [6, 7, 15, 23, 31, 99].map(|n| lengths[n]),
                [500, 1000, 2000, 4000, 8000, 8000]
            );
            ticks.quicken(&timer);
            assert_eq!(tick(), 500);
        }
    }
}
