//! The status of a VM port, written by the port's thread and read by the control thread.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::sys::Waker;

/// How long a rejection is reported: longer than the pause between the attempts of a VMM.
const REJECTED_SHOWN: Duration = Duration::from_secs(10);

/// The state of the connection to a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No VMM is connected.
    Waiting,
    /// A VMM is connected, and the guest has no driver for the device yet.
    Connected,
    /// The guest's driver uses the device.
    Up,
}

/// The status of a VM port.
#[derive(Debug)]
pub struct Status {
    state: AtomicU8,
    /// The process ID of the VMM, 0 if there is none.
    process: AtomicU32,
    /// How often the port left the state `Up`, modulo 2^32. The port's thread writes it.
    ends: AtomicU32,
    /// Why the last VM is not up. The port's thread writes it, the control thread reads it.
    complaint: Mutex<Option<String>>,
    /// The process that was rejected last, and when. Written and read like the complaint.
    rejected: Mutex<Option<(u32, Instant)>>,
    bell: Arc<Waker>,
}

impl Status {
    pub(crate) fn new(bell: &Arc<Waker>) -> Self {
        let (state, process) = (AtomicU8::new(State::Waiting as u8), AtomicU32::new(0));
        let (ends, complaint) = (AtomicU32::new(0), Mutex::default());
        Self { state, process, ends, complaint, rejected: Mutex::default(), bell: bell.clone() }
    }

    /// The state of the connection.
    #[must_use]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Waiting,
            1 => State::Connected,
            _ => State::Up,
        }
    }

    /// The process ID of the VMM.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        Some(self.process.load(Ordering::Relaxed)).filter(|process| *process != 0)
    }

    /// Records the process ID of the VMM, 0 if there is none.
    pub(crate) fn note_process(&self, process: u32) {
        self.process.store(process, Ordering::Relaxed);
    }

    /// Records a new VMM, and clears what was recorded of the last one.
    pub(crate) fn welcome(&self, process: u32) {
        self.complain(None);
        let mut rejected = self.rejected.lock().expect("no code panics while it holds the lock");
        *rejected = rejected.filter(|(rejected, _)| *rejected != process);
        drop(rejected);
        self.note_process(process);
    }

    /// How often a VM that was up went away, or its driver did. A reader that looks seldom notices
    /// by this number that a VM has gone and come back.
    #[must_use]
    pub fn ends(&self) -> u32 {
        self.ends.load(Ordering::Relaxed)
    }

    /// Why the last VM that connected is not up, or why one of its queues is stopped.
    ///
    /// # Panics
    /// Never: no code panics while it holds the lock.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        self.complaint.lock().expect("no code panics while it holds the lock").clone()
    }

    pub(crate) fn complain(&self, of: Option<String>) {
        *self.complaint.lock().expect("no code panics while it holds the lock") = of;
    }

    /// The process that was rejected recently, because another one has the port.
    ///
    /// # Panics
    /// Never: no code panics while it holds the lock.
    #[must_use]
    pub fn rejected(&self) -> Option<u32> {
        let rejected = *self.rejected.lock().expect("no code panics while it holds the lock");
        rejected.filter(|(_, since)| since.elapsed() < REJECTED_SHOWN).map(|(process, _)| process)
    }

    pub(crate) fn note_rejected(&self, process: u32) {
        *self.rejected.lock().expect("no code panics while it holds the lock") =
            Some((process, Instant::now()));
    }

    /// Records a state.
    pub(crate) fn note(&self, state: State) {
        let before = self.state();
        if before == state {
            return;
        }
        if before == State::Up {
            self.ends.store(self.ends().wrapping_add(1), Ordering::Relaxed);
        }
        self.state.store(state as u8, Ordering::Relaxed);
        // The control thread may have read half of this change after an earlier wake-up.
        self.bell.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_has_gone_and_come_again_has_gone() {
        let (_, bell) = Waker::of_daemon().expect("descriptors");
        let status = Status::new(&Arc::new(bell));
        [State::Connected, State::Up, State::Up].into_iter().for_each(|state| status.note(state));
        assert_eq!(status.ends(), 0);
        let again = [State::Waiting, State::Connected, State::Up];
        again.into_iter().for_each(|state| status.note(state));
        assert_eq!((status.state(), status.ends()), (State::Up, 1));
    }

    #[test]
    fn what_was_said_of_a_machine_is_not_said_of_the_next() {
        let (_, bell) = Waker::of_daemon().expect("descriptors");
        let status = Status::new(&Arc::new(bell));
        status.complain(Some("it sent nonsense".to_owned()));
        status.note_rejected(7);
        status.welcome(6);
        assert_eq!((status.complaint(), status.rejected()), (None, Some(7)));
        status.welcome(7);
        assert_eq!((status.process(), status.rejected()), (Some(7), None));
    }
}
