//! What the device counts, as `uvala port show` prints it.
//!
//! The daemon takes counters of the process that has a port (`function.note`); the client library
//! tells it of them once a second, in a thread of its own. A loop that goes to sleep with counters
//! that were not handed over wakes once more, a second later.

use client::Port;
use client::nf::{Metric, Metrics, MetricsReport};
use device::e1000::Traffic;
use terminal::say;

/// What was counted at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames, kicks and interrupts.
    pub traffic: Traffic,
    /// Reads and writes of registers by the guest, each of which is an exit and a message.
    pub accesses: u64,
    /// Frames of the guest that went nowhere.
    pub dropped: u64,
}

impl Counts {
    fn named(&self) -> [(&'static str, u64); 8] {
        let Traffic { tx_frames, rx_frames, tx_kicks, rx_kicks, interrupts, suppressed } =
            self.traffic;
        [
            ("tx_frames", tx_frames),
            ("rx_frames", rx_frames),
            ("tx_kicks", tx_kicks),
            ("rx_kicks", rx_kicks),
            ("interrupts", interrupts),
            ("interrupts_suppressed", suppressed),
            ("register_accesses", self.accesses),
            ("tx_dropped", self.dropped),
        ]
    }
}

/// The counters at the device's port.
#[derive(Debug)]
pub struct Shown {
    report: MetricsReport,
    last: Counts,
}

impl Shown {
    /// Begins with the counters of the device at this port, all 0.
    pub fn at(port: &Port) -> Self {
        let mut this = Self { report: MetricsReport::of(port), last: Counts::default() };
        this.hand_over(Counts::default());
        this
    }

    /// Hands counters over, if some have changed and the thread wants them.
    pub fn update(&mut self, now: impl FnOnce() -> Counts) {
        if self.report.is_due() {
            self.hand_over(now());
        }
    }

    fn hand_over(&mut self, now: Counts) {
        self.last = now;
        let put = |metrics: &mut Metrics| {
            for (name, count) in now.named() {
                metrics.put(name, Metric::Count(count));
            }
        };
        if let Err(error) = self.report.update(put) {
            say::remark(format_args!("uvala-device: no counters in `uvala port show`: {error}"));
        }
    }

    /// Whether these were handed over.
    pub fn are_known(&self, now: &Counts) -> bool {
        self.last == *now
    }
}
