//! What a worker does that has nothing to do: the idle strategy, a pure function of its work.
//!
//! ```text
//!          work                    `yields` turns without work
//!   Busy ◄──────── Yield ─────────────────────────────────────► Park
//!     └──────────────►  (a turn without work)                     │
//!     ◄───────────────────────────── a doorbell rings ────────────┘
//! ```
//!
//! Spinning pays only on a core that the worker owns: on a shared one it keeps those it waits for
//! from running. There, giving the core away a few times and then sleeping is fastest at every
//! load, and costs nothing when nobody sends.
//!
//! A busy worker gives its core away too when it had to drop frames of a client that takes frames:
//! if that client shares the core, delivering more is of no use before it has run. A client that
//! takes nothing cannot ask for this, so it costs the others nothing.

/// How long a worker keeps looking before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleStrategy {
    /// Turns without work in which it gives its core away.
    pub yields: u32,
    /// Never sleep, never give the core away.
    pub spin: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Another turn at once.
    Turn,
    /// Give the core away, then another turn.
    Yield,
    /// Sleep until a doorbell rings.
    Park,
}

/// A worker's idle turns so far.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    strategy: IdleStrategy,
    turns: u32,
}

impl Idle {
    /// Starts busy.
    #[must_use]
    pub fn new(strategy: IdleStrategy) -> Self {
        Self { strategy, turns: 0 }
    }

    /// After a turn that took `work` slots; `crowded`: some client has not kept up.
    #[inline]
    pub fn step(&mut self, work: u32, crowded: bool) -> Next {
        if work > 0 {
            self.turns = 0;
        }
        if self.strategy.spin || (work > 0 && !crowded) {
            return Next::Turn;
        }
        if work > 0 {
            return Next::Yield;
        }
        self.turns += 1;
        if self.turns <= self.strategy.yields {
            return Next::Yield;
        }
        self.turns = 0;
        Next::Park
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yields_then_parks_and_work_starts_over() {
        let mut idle = Idle::new(IdleStrategy { yields: 2, spin: false });
        assert_eq!(idle.step(5, false), Next::Turn);
        assert_eq!([idle.step(0, false), idle.step(0, false)], [Next::Yield, Next::Yield]);
        assert_eq!(idle.step(1, false), Next::Turn);
        let steps =
            [idle.step(0, false), idle.step(0, false), idle.step(0, false), idle.step(0, false)];
        assert_eq!(steps, [Next::Yield, Next::Yield, Next::Park, Next::Yield]);
    }

    #[test]
    fn a_client_that_has_not_kept_up_gets_the_core() {
        let mut idle = Idle::new(IdleStrategy { yields: 1, spin: false });
        assert_eq!([idle.step(5, true), idle.step(5, true)], [Next::Yield; 2]);
        assert_eq!([idle.step(0, false), idle.step(0, false)], [Next::Yield, Next::Park]);
        let mut idle = Idle::new(IdleStrategy { yields: 1, spin: true });
        assert_eq!(idle.step(5, true), Next::Turn);
    }

    #[test]
    fn spinning_never_gives_the_core_away() {
        let mut idle = Idle::new(IdleStrategy { yields: 2, spin: true });
        assert!((0..10).all(|_| idle.step(0, false) == Next::Turn));
    }
}
