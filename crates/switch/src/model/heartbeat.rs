//! Where a worker is in its turn, for a watchdog on another thread to read.
//!
//! One word holds a counter of steps, the stage of the current step, and the port that it is for. A
//! step that copies between the memory of two ports names both; any other step names its port
//! twice:
//!
//! ```text
//!  63        44 43        32 31   28 27            12 11        0
//! ┌────────────┬────────────┬───────┬────────────────┬───────────┐
//! │ steps      │ other port │ stage │ switch         │ port      │
//! └────────────┴────────────┴───────┴────────────────┴───────────┘
//! ```
//!
//! A client can hold up all accesses to its region, so no step may be under way in the name of one
//! port while the worker touches the memory of another. [`Stage::Forward`] by itself blames no
//! port: a thread then reads the memory of its ports to see which of them is slow.
//!
//! Writer: the worker, before each step that may wait for the kernel. Reader: the watchdog. All
//! accesses are relaxed: nothing else is published with the word, and an old value is only an
//! earlier step. A word that has not changed for a while, and is not [`Stage::Asleep`], means that
//! the worker stands still in that step.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use packet::PortId;

/// What a step does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// The worker sleeps on its doorbell.
    #[default]
    Asleep = 0,
    /// The worker looks at its doorbell and carries out what control asked for.
    Control = 1,
    /// The worker accesses the port's rings or buffers, and those of the other port if the step
    /// names one.
    Forward = 2,
    /// The worker reads frames from the port's socket, interface or guest.
    Receive = 3,
    /// The worker hands frames to the port's socket, interface or guest.
    Send = 4,
    /// The worker wakes the peer of the port.
    Wake = 5,
    /// The worker wakes the client of the port by futex: how long that takes, other users have a
    /// hand in.
    WakeByFutex = 6,
}

/// A step of a worker, as the watchdog sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Steps so far, modulo 2²⁰.
    pub steps: u32,
    /// What the step does.
    pub stage: Stage,
    /// Place of the switch at the worker.
    pub switch: usize,
    /// The port that the step is for. [`Stage::Asleep`] and [`Stage::Control`] have none.
    pub port: Option<PortId>,
    /// The port whose memory the step accesses, too: frames come from there.
    pub other: Option<PortId>,
}

/// The worker's side.
#[derive(Debug, Default)]
pub struct Heartbeat {
    word: Arc<Word>,
    /// The steps so far and the place of the switch, as they stand in the word.
    here: u64,
}

/// The watchdog's side.
#[derive(Clone, Debug)]
pub struct HeartbeatReader(Arc<Word>);

/// The word, on cache lines of its own: a neighbour that another core uses would slow each step.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Word(AtomicU64);

const STEPS_SHIFT: u32 = 44;
const OTHER_SHIFT: u32 = 32;
const STAGE_SHIFT: u32 = 28;
const SWITCH_SHIFT: u32 = 12;
const SWITCH_MASK: u64 = 0xffff << SWITCH_SHIFT;
/// One step more, in the word.
const STEP: u64 = 1 << STEPS_SHIFT;
const _: () = assert!(packet::port::MAX_PORTS == 1 << SWITCH_SHIFT, "a port fits its bits");
const _: () = assert!(STEPS_SHIFT - OTHER_SHIFT == SWITCH_SHIFT, "so does the other port");

impl Heartbeat {
    /// A handle for the watchdog.
    #[must_use]
    pub fn reader(&self) -> HeartbeatReader {
        HeartbeatReader(self.word.clone())
    }

    /// Steps so far, modulo 2²⁰.
    #[must_use]
    pub fn steps(&self) -> u32 {
        steps_in(self.here)
    }

    /// The next steps are for ports of the switch at this place of the worker; places above 65535
    /// share one number.
    #[inline(always)]
    pub fn enter(&mut self, switch: usize) {
        let switch = u16::try_from(switch).unwrap_or(u16::MAX);
        self.here = self.here & !SWITCH_MASK | u64::from(switch) << SWITCH_SHIFT;
    }

    /// The worker falls asleep, or looks around.
    #[inline(always)]
    pub fn rest(&mut self, stage: Stage) {
        debug_assert!(matches!(stage, Stage::Asleep | Stage::Control), "a stage without a port");
        self.beat(stage, PortId::from_low_bits(0));
    }

    /// Begins a step for a port.
    #[inline(always)]
    pub fn beat(&mut self, stage: Stage, port: PortId) {
        self.step(stage, port, port);
    }

    /// Begins a step that brings frames from one port to another, and accesses the memory of both.
    #[inline(always)]
    pub fn between(&mut self, from: PortId, to: PortId) {
        self.step(Stage::Forward, to, from);
    }

    /// The current step, for [`resume`](Self::resume).
    #[must_use]
    pub fn current(&self) -> u64 {
        self.word.0.load(Ordering::Relaxed)
    }

    /// Goes on with an earlier step, after others.
    pub fn resume(&mut self, step: u64) {
        self.here = self.here.wrapping_add(STEP);
        let (steps, what) = (self.here & !(STEP - 1), step & (STEP - 1));
        self.word.0.store(steps | what, Ordering::Relaxed);
    }

    #[inline(always)]
    fn step(&mut self, stage: Stage, port: PortId, other: PortId) {
        self.here = self.here.wrapping_add(STEP);
        let ports = u64::from(other.number()) << OTHER_SHIFT | u64::from(port.number());
        let what = (stage as u64) << STAGE_SHIFT | ports;
        self.word.0.store(self.here | what, Ordering::Relaxed);
    }
}

impl HeartbeatReader {
    /// The current step.
    #[must_use]
    pub fn read(&self) -> Beat {
        let word = self.0.0.load(Ordering::Relaxed);
        let low = |shift: u32, mask: u64| usize::try_from(word >> shift & mask).unwrap_or(0);
        let stage = match low(STAGE_SHIFT, 0xf) {
            1 => Stage::Control,
            2 => Stage::Forward,
            3 => Stage::Receive,
            4 => Stage::Send,
            5 => Stage::Wake,
            6 => Stage::WakeByFutex,
            _ => Stage::Asleep,
        };
        let has_port = !matches!(stage, Stage::Asleep | Stage::Control);
        let port = has_port.then(|| PortId::from_low_bits(word));
        let other = has_port.then(|| PortId::from_low_bits(word >> OTHER_SHIFT));
        Beat {
            steps: steps_in(word),
            stage,
            switch: low(SWITCH_SHIFT, 0xffff),
            port,
            other: other.filter(|_| other != port),
        }
    }
}

fn steps_in(word: u64) -> u32 {
    u32::try_from(word >> STEPS_SHIFT).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_sees_stage_switch_and_port() {
        let mut heartbeat = Heartbeat::default();
        let reader = heartbeat.reader();
        assert_eq!(reader.read().stage, Stage::Asleep);
        let stages = [Stage::Forward, Stage::Receive, Stage::Send, Stage::Wake, Stage::WakeByFutex];
        for (i, stage) in stages.into_iter().enumerate() {
            for (switch, seen) in [(0, 0), (7, 7), (65_535, 65_535), (70_000, 65_535)] {
                for port in [0, 1, 4095] {
                    let port = PortId::new(port).expect("a port's number");
                    heartbeat.enter(switch);
                    heartbeat.beat(stage, port);
                    let Beat { stage: shown, switch, port: at, other, .. } = reader.read();
                    assert_eq!((shown, switch, at), (stage, seen, Some(port)), "{i}");
                    assert_eq!(other, None);
                }
            }
        }
        heartbeat.rest(Stage::Control);
        assert_eq!(reader.read().stage, Stage::Control);
    }

    #[test]
    fn a_step_between_two_ports_names_both() {
        let mut heartbeat = Heartbeat { here: u64::MAX << STEPS_SHIFT, ..Heartbeat::default() };
        let reader = heartbeat.reader();
        let port = |index| PortId::new(index).expect("a port's number");
        for (from, to) in [(0, 4095), (4095, 0), (1, 2), (2730, 1365)] {
            heartbeat.enter(65_535);
            heartbeat.between(port(from), port(to));
            let Beat { steps, stage, switch, port: at, other } = reader.read();
            assert_eq!((stage, switch), (Stage::Forward, 65_535));
            assert_eq!((at, other), (Some(port(to)), Some(port(from))));
            assert_eq!(steps, heartbeat.steps());
        }
        heartbeat.beat(Stage::Wake, port(4095));
        assert_eq!((reader.read().port, reader.read().other), (Some(port(4095)), None));
        heartbeat.between(port(7), port(8));
        heartbeat.rest(Stage::Asleep);
        assert_eq!((reader.read().port, reader.read().other), (None, None));
    }

    #[test]
    fn a_step_goes_on_after_others() {
        let mut heartbeat = Heartbeat::default();
        let reader = heartbeat.reader();
        let port = |index| PortId::new(index).expect("a port's number");
        heartbeat.enter(7);
        heartbeat.between(port(1), port(2));
        let (before, step) = (reader.read(), heartbeat.current());
        heartbeat.between(port(2), port(3));
        heartbeat.resume(step);
        let steps = before.steps + 2;
        assert_eq!(reader.read(), Beat { steps, ..before });
    }

    #[test]
    fn each_step_changes_the_word_also_when_the_counter_wraps() {
        let mut heartbeat =
            Heartbeat { here: (u64::MAX << STEPS_SHIFT) - STEP, ..Heartbeat::default() };
        let reader = heartbeat.reader();
        let mut last = reader.read();
        for _ in 0..4 {
            heartbeat.rest(Stage::Asleep);
            assert_ne!(reader.read(), last);
            last = reader.read();
        }
    }
}
