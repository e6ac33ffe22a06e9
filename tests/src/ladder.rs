//! What a patched driver's frames cost, one way of telling the card of them after the other: the
//! ladder of "Speeding up packet I/O in virtual machines" (ANCS 2013).
//!
//! One guest is booted once. For each rung its driver is loaded with other parameters, and Linux'
//! packet generator sends single frames through it, each by a call of the driver as the stack makes
//! them. What is counted is the device's: frames, kicks, interrupts, register accesses.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::daemon::Daemon;
use crate::device::{Device, PORT};
use crate::guest::{DRIVER, Guest};
use crate::wait;

/// No moderation.
const NONE: &str = "InterruptThrottleRate=0 TxIntDelay=0 TxAbsIntDelay=0 RxIntDelay=0 \
                    RxAbsIntDelay=0";
/// Moderation by ITR: 4000 interrupts a second.
const SPACED: &str = "InterruptThrottleRate=4000 TxIntDelay=0 TxAbsIntDelay=0 RxIntDelay=0 \
                      RxAbsIntDelay=0";

/// A way of telling the card of frames.
#[derive(Clone, Copy, Debug)]
pub struct Rung {
    /// As the paper calls it.
    pub name: &'static str,
    moderation: &'static str,
    parameters: &'static str,
}

/// All of them, from the bottom.
pub const RUNGS: [Rung; 6] = [
    Rung { name: "base", moderation: NONE, parameters: "csb=0" },
    Rung { name: "moderation", moderation: SPACED, parameters: "csb=0" },
    Rung { name: "send combining", moderation: NONE, parameters: "csb=0 send_combining=1" },
    Rung { name: "both", moderation: SPACED, parameters: "csb=0 send_combining=1" },
    Rung { name: "CSB", moderation: NONE, parameters: "csb=1" },
    Rung { name: "CSB, moderation", moderation: SPACED, parameters: "csb=1" },
];

/// What a run cost.
#[derive(Clone, Debug)]
pub struct Cost {
    /// What the device counted.
    counts: BTreeMap<String, u64>,
    /// Frames a second that reached the switch, by the host's clock.
    pub rate: f64,
}

impl Cost {
    /// Frames.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.counts["tx_frames"]
    }

    /// How many of these there were for each frame.
    #[must_use]
    pub fn per_frame(&self, what: &str) -> f64 {
        number(self.counts[what]) / number(self.frames().max(1))
    }
}

fn number(count: u64) -> f64 {
    f64::from(u32::try_from(count).expect("few"))
}

/// Loads the driver anew, as this rung says.
pub fn load(guest: &mut Guest, rung: &Rung) {
    let Rung { moderation, parameters, .. } = rung;
    guest.run("rmmod e1000; true");
    guest.run(&format!("insmod {DRIVER} {moderation} {parameters}"));
    guest.configure(1, 1500);
    guest.run("n=0; until [ $(cat /sys/class/net/eth0/carrier) = 1 ]; do sleep 0.1; done");
}

/// Sends that many frames of 60 bytes to an address that no port has, by a loaded driver.
///
/// # Panics
/// If the guest cannot.
pub fn send(guest: &mut Guest, daemon: &Daemon, frames: u32) -> Cost {
    let before = Device::counts(daemon);
    guest.run("echo rem_device_all > /proc/net/pktgen/kpktgend_0");
    guest.run("echo add_device eth0 > /proc/net/pktgen/kpktgend_0");
    let count = format!("count {frames}");
    let set = [&count, "clone_skb 0", "pkt_size 60", "delay 0", "dst_mac 02:00:00:00:00:99"];
    for words in set.iter().chain(&["dst 10.0.0.99"]) {
        guest.run(&format!("echo {words} > /proc/net/pktgen/eth0"));
    }
    // Some frames are on their way before the shell has answered.
    let sent = daemon.stats(PORT).tx.frames;
    guest.run("(echo start > /proc/net/pktgen/pgctrl) >/dev/null 2>&1 &");
    let rate = rate(daemon, sent, frames);
    // The generator waits until its last frame is cleaned, which may take the driver two seconds.
    guest.run("until grep -q 'Result: OK' /proc/net/pktgen/eth0; do sleep 0.1; done");
    let after = Device::counts(daemon);
    let counts = after.iter().map(|(name, count)| (name.clone(), count - before[name])).collect();
    Cost { counts, rate }
}

/// Frames a second at the device's port, until it has sent that many, which had sent `before`.
fn rate(daemon: &Daemon, before: u64, frames: u32) -> f64 {
    let patience = Duration::from_secs(300);
    let look = || (Instant::now(), daemon.stats(PORT).tx.frames - before);
    let (start, first) = wait::find("a frame", || Some(look()).filter(|(_, sent)| *sent > 0));
    let (end, last) = wait::find_within(patience, "all frames", || {
        Some(look()).filter(|(_, sent)| *sent >= frames.into())
    });
    number(last - first) / (end - start).as_secs_f64()
}
