//! A machine that is slow: what it gets done of what it is offered.
//!
//! The machine's processor is a thread that burns time: so much for each interrupt, so much for
//! each frame. Interrupts come first, as they do for a processor, and its driver cannot say that it
//! wants none: it is interrupted for whatever comes while it works. With as many interrupts as
//! frames nearly all its time goes into them, and if the switch went on to interrupt it for frames
//! that it has no room for, all would (receive livelock).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::driver::{Machine, SIZE};
use super::guests::{SECOND, Source, introduce};
use crate::machine;
use crate::work::{Offer, Work};

/// What an interrupt takes of its time: leaving the guest, entering it, the handler.
const INTERRUPT: Duration = Duration::from_micros(4);
/// What a frame takes: it has a stack of protocols.
const FRAME: Duration = Duration::from_micros(2);
/// Most frames that are offered at once, when time was lost.
const BURST: u64 = 64;

/// Thousand frames a second that it gets done.
pub fn run(work: &Work, offer: Offer, time: Duration) -> Result<f64> {
    let daemon = super::configuration::start(work)?;
    let path = |number: u8| daemon.dir().join(format!("vm{number}.sock"));
    let (mut sender, mut slow) = (Machine::boot(&path(0))?, Machine::boot_old(&path(1))?);
    introduce(&mut slow, SECOND)?;
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(work, offer, &mut sender, &ends));
        machine::pin(work.placement.receiver);
        let mut processor = Processor { machine: &mut slow, done: 0 };
        processor.work(time / 3);
        let (before, start) = (processor.done, Instant::now());
        processor.work(time);
        // The sender may sleep a while before it sees that it is over.
        let (done, time) = (processor.done - before, start.elapsed());
        ends.store(true, Ordering::Relaxed);
        sending.join().expect("no panic")?;
        let done = f64::from(u32::try_from(done)?);
        Ok(done / time.as_secs_f64() / 1e3)
    })
}

/// Offers frames at a steady rate.
fn send(work: &Work, offer: Offer, machine: &mut Machine, ends: &AtomicBool) -> Result<()> {
    machine::pin(work.placement.sender);
    let (mut source, start, mut sent) = (Source::new(work), Instant::now(), 0);
    while !ends.load(Ordering::Relaxed) {
        let due = u64::try_from(start.elapsed().as_micros())? * u64::from(offer.kpps) / 1000;
        if due == sent {
            std::thread::yield_now();
        } else if due - sent > BURST {
            // What cannot be offered in time is not made up for.
            sent = due - BURST;
        } else if source.turn(machine, 1)? {
            sent += 1;
        } else {
            machine.wait_for_room(SIZE / 2, Duration::from_millis(20))?;
        }
    }
    Ok(())
}

/// The slow one's.
struct Processor<'a> {
    machine: &'a mut Machine,
    /// Frames it is done with.
    done: u64,
}

impl Processor<'_> {
    fn work(&mut self, time: Duration) {
        let (end, mut frame) = (Instant::now() + time, [0; 2048]);
        while Instant::now() < end {
            let interrupts = u32::try_from(self.machine.interrupts()).unwrap_or(u32::MAX);
            if interrupts > 0 {
                burn(INTERRUPT * interrupts);
            } else if self.machine.next(&mut frame).is_some() {
                burn(FRAME);
                self.machine.give_back();
                self.done += 1;
            }
        }
    }
}

fn burn(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}
