//! What a port says in the log. Whoever may connect can make it say something, so there is an end
//! to that: what is too much is counted, and the number is said later.

use std::cell::Cell;
use std::fmt::Arguments;
use std::time::{Duration, Instant};

/// Lines in each [`PAUSE`]. A machine that comes and goes says three.
const LINES: u32 = 40;
/// After this there may be as many again.
const PAUSE: Duration = Duration::from_secs(60);

/// The voice of one port.
#[derive(Debug)]
pub(crate) struct Voice {
    name: String,
    since: Cell<Instant>,
    wanted: Cell<u32>,
}

impl Voice {
    pub(crate) fn new(name: String) -> Self {
        Self { name, since: Cell::new(Instant::now()), wanted: Cell::new(0) }
    }

    pub(crate) fn info(&self, what: Arguments<'_>) {
        if self.may_speak(Instant::now()) {
            tracing::info!("{}: {what}", self.name);
        }
    }

    pub(crate) fn warn(&self, what: Arguments<'_>) {
        if self.may_speak(Instant::now()) {
            tracing::warn!("{}: {what}", self.name);
        }
    }

    fn may_speak(&self, now: Instant) -> bool {
        if now.duration_since(self.since.get()) >= PAUSE {
            let unsaid = self.wanted.replace(0).saturating_sub(LINES);
            self.since.set(now);
            if unsaid > 0 {
                tracing::warn!("{}: {unsaid} lines like the last ones were left out", self.name);
            }
        }
        self.wanted.set(self.wanted.get().saturating_add(1));
        self.wanted.get() <= LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_an_end_to_what_is_said() {
        let voice = Voice::new("vale0:vm".to_owned());
        let start = voice.since.get();
        let said = |now| (0..1000).filter(|_| voice.may_speak(now)).count();
        assert_eq!([start, start + PAUSE / 2, start + PAUSE].map(said), [40, 0, 40]);
    }
}
