//! A pair of ports that sends one frame to and fro. Each hop takes a kick of the switch, a turn of
//! it and a wake-up, so what holds the switch up shows in the number of round trips.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use client::{Port, WaitPolicy};

use crate::daemon::{Daemon, open_when_free};
use crate::frames::{announcement, fill, mac};
use crate::wait::PATIENCE;

/// The stations of the two ports.
const STATIONS: [u32; 2] = [61, 62];
/// An attack may slow the pair down to one of so many round trips.
const SHARE: f64 = 20.0;

/// A thread that holds the two ports.
#[derive(Debug)]
pub struct RoundTrips {
    count: Arc<AtomicU32>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RoundTrips {
    /// Opens the ports `ping` and `pong` of a switch, which sleep whenever they wait, and begins.
    ///
    /// # Panics
    /// If the daemon refuses.
    #[must_use]
    pub fn start(daemon: &Daemon, switch: &str) -> Self {
        let options = daemon.options().wait(WaitPolicy { yields: 0, spin: false });
        let open = |name: &str| open_when_free(&options, &format!("{switch}:{name}"));
        let mut ports = ["ping", "pong"].map(open);
        for (port, station) in ports.iter_mut().zip(STATIONS) {
            port.send(&announcement(station)).expect("room");
            assert!(port.drain(Some(PATIENCE)).expect("a port"), "the switch takes it");
        }
        let (count, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, end) = (count.clone(), ended.clone());
        let run = move || {
            let [ping, pong] = &mut ports;
            for seq in 0.. {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                hop(ping, pong, STATIONS, seq);
                hop(pong, ping, [STATIONS[1], STATIONS[0]], seq);
                counter.fetch_add(1, Ordering::Relaxed);
            }
        };
        Self { count, ended, thread: Some(std::thread::spawn(run)) }
    }

    /// Does something, and says how many round trips per second the pair makes meanwhile.
    pub fn beside<T>(&self, work: impl FnOnce() -> T) -> (T, f64) {
        let (before, begin) = (self.count.load(Ordering::Relaxed), Instant::now());
        let result = work();
        let trips = self.count.load(Ordering::Relaxed).wrapping_sub(before);
        (result, f64::from(trips) / begin.elapsed().as_secs_f64())
    }

    /// During an attack, the pair goes on nearly as before, if not at the first look then at a
    /// second: other programs may have had the cores meanwhile.
    ///
    /// # Panics
    /// If it does not.
    pub fn look_twice(&self, attack: &str, before: f64, mut during: f64) {
        if !goes_on(before, during) {
            ((), during) = self.beside(|| std::thread::sleep(Duration::from_secs(3)));
        }
        assert_goes_on(attack, before, during);
    }

    /// Ends the pair.
    ///
    /// # Panics
    /// If a frame did not arrive.
    pub fn finish(mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("there until now");
        thread.join().expect("every frame arrives");
    }
}

impl Drop for RoundTrips {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The test is over already.
            let _ = thread.join();
        }
    }
}

/// Sends a frame, and waits until it arrives. Frames of others may come before it.
fn hop(from: &mut Port, to: &mut Port, [source, destination]: [u32; 2], seq: u64) {
    let (mut frame, mut received) = (Vec::new(), Vec::new());
    fill(&mut frame, mac(destination), source, seq, 60);
    assert!(from.send_timeout(&frame, Some(PATIENCE)).expect("a port"), "no room for {seq}");
    while received != frame {
        let came = to.recv_timeout(&mut received, Some(PATIENCE)).expect("a port");
        assert!(came, "frame {seq} of {source} is lost");
    }
}

/// Whether a pair goes on nearly as before: `before` and `during` are what it did in a second.
fn goes_on(before: f64, during: f64) -> bool {
    during * SHARE >= before
}

/// During an attack, a pair goes on nearly as before: `before` and `during` are what it did in a
/// second.
///
/// # Panics
/// If it does not.
pub fn assert_goes_on(attack: &str, before: f64, during: f64) {
    let share = during / before;
    eprintln!("{attack}: {before:.0} a second before, {during:.0} during the attack: {share:.3}");
    assert!(before > 0.0, "{attack}: nothing went on before");
    assert!(goes_on(before, during), "{attack}: {during:.0} a second, {before:.0} before");
}
