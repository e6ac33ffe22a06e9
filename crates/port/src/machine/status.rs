//! What control knows of a machine's port.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use switch::Wake;

use crate::sys::Waker;

/// So long it is said that a monitor was turned away: longer than the pause of who tries again.
const REJECTED_SHOWN: Duration = Duration::from_secs(10);

/// Whether a machine can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No frontend.
    Waiting,
    /// A frontend, whose guest has no driver for the device yet.
    Connected,
    /// Its driver is at work.
    Up,
}

/// What control knows of a port.
#[derive(Debug)]
pub struct Status {
    state: AtomicU8,
    /// The process at the other end, 0 if there is none.
    process: AtomicU32,
    /// How often it was no longer up, modulo 2^32. Written by the port's thread alone.
    ends: AtomicU32,
    /// Why the last machine is not up. Written by the port's thread, read by control.
    complaint: Mutex<Option<String>>,
    /// The process that was turned away last, and when. Written and read like the complaint.
    rejected: Mutex<Option<(u32, Instant)>>,
    bell: Arc<Waker>,
}

impl Status {
    pub(crate) fn new(bell: &Arc<Waker>) -> Self {
        let (state, process) = (AtomicU8::new(State::Waiting as u8), AtomicU32::new(0));
        let (ends, complaint) = (AtomicU32::new(0), Mutex::default());
        Self { state, process, ends, complaint, rejected: Mutex::default(), bell: bell.clone() }
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Waiting,
            1 => State::Connected,
            _ => State::Up,
        }
    }

    /// The process at the other end.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        Some(self.process.load(Ordering::Relaxed)).filter(|process| *process != 0)
    }

    /// Notes the process at the other end, 0 if there is none.
    pub(crate) fn note_process(&self, process: u32) {
        self.process.store(process, Ordering::Relaxed);
    }

    /// Notes a monitor that has the port from now on. What was said of the last one is over.
    pub(crate) fn welcome(&self, process: u32) {
        self.complain(None);
        let mut rejected = self.rejected.lock().expect("nobody panics with it");
        *rejected = rejected.filter(|(rejected, _)| *rejected != process);
        drop(rejected);
        self.note_process(process);
    }

    /// How often a machine that was up went away, or its driver did. Whoever looks seldom sees by
    /// this that one has gone and come again meanwhile.
    #[must_use]
    pub fn ends(&self) -> u32 {
        self.ends.load(Ordering::Relaxed)
    }

    /// Why the last machine that connected is not up, or a queue of one that is.
    ///
    /// # Panics
    /// Never: nobody panics with it.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        self.complaint.lock().expect("nobody panics with it").clone()
    }

    pub(crate) fn complain(&self, of: Option<String>) {
        *self.complaint.lock().expect("nobody panics with it") = of;
    }

    /// The process that was turned away just now, because another has the port.
    ///
    /// # Panics
    /// Never: nobody panics with it.
    #[must_use]
    pub fn rejected(&self) -> Option<u32> {
        let rejected = *self.rejected.lock().expect("nobody panics with it");
        rejected.filter(|(_, since)| since.elapsed() < REJECTED_SHOWN).map(|(process, _)| process)
    }

    pub(crate) fn note_rejected(&self, process: u32) {
        *self.rejected.lock().expect("nobody panics with it") = Some((process, Instant::now()));
    }

    /// Notes a state.
    pub(crate) fn note(&self, state: State) {
        let before = self.state();
        if before == state {
            return;
        }
        if before == State::Up {
            self.ends.store(self.ends().wrapping_add(1), Ordering::Relaxed);
        }
        self.state.store(state as u8, Ordering::Relaxed);
        // Whoever was woken by an earlier change and saw half of this one is woken again.
        self.bell.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_has_gone_and_come_again_has_gone() {
        let (_, bell) = Waker::new().expect("descriptors");
        let status = Status::new(&Arc::new(bell));
        [State::Connected, State::Up, State::Up].into_iter().for_each(|state| status.note(state));
        assert_eq!(status.ends(), 0);
        let again = [State::Waiting, State::Connected, State::Up];
        again.into_iter().for_each(|state| status.note(state));
        assert_eq!((status.state(), status.ends()), (State::Up, 1));
    }

    #[test]
    fn what_was_said_of_a_machine_is_not_said_of_the_next() {
        let (_, bell) = Waker::new().expect("descriptors");
        let status = Status::new(&Arc::new(bell));
        status.complain(Some("it sent nonsense".to_owned()));
        status.note_rejected(7);
        status.welcome(6);
        assert_eq!((status.complaint(), status.rejected()), (None, Some(7)));
        status.welcome(7);
        assert_eq!((status.process(), status.rejected()), (Some(7), None));
    }
}
