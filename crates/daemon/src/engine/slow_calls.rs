//! Slow calls: clients, VMMs and other peers that make the kernel take long to wake them, to send
//! to them or to receive from them.
//!
//! A worker reports each one to the control thread, by the watchdog's bell, as a stall of its own.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};

use port::sys::{SlowCalls, Waker};
use protocol::{StallCause, StallStage};

use super::Workers;
use super::netmap::ServedBy;
use crate::control::datapath::workers::WorkerStall;
use crate::model::keys::{PortKey, SwitchKey};

/// Reports to the control thread: of slow calls by workers, and of slow memory by its reader.
#[derive(Debug)]
pub(super) struct SlowReports {
    sender: Sender<WorkerStall>,
    reports: Receiver<WorkerStall>,
}

impl Default for SlowReports {
    fn default() -> Self {
        let (sender, reports) = channel();
        Self { sender, reports }
    }
}

impl SlowReports {
    /// Where to send reports.
    pub fn sender(&self) -> Sender<WorkerStall> {
        self.sender.clone()
    }

    /// The reports since the last call.
    pub fn take(&self) -> impl Iterator<Item = WorkerStall> {
        self.reports.try_iter()
    }
}

impl Workers {
    /// A doorbell for the client of a port, which the worker of this switch rings.
    pub(super) fn waker(
        &self,
        port: PortKey,
        switch: Option<SwitchKey>,
    ) -> io::Result<(OwnedFd, Waker)> {
        Waker::new(&self.reclaimer.closer(), self.slow_calls(port, switch, StallStage::Wake))
    }

    /// Reports slow calls of this stage for a port's peer by the worker of this switch.
    pub(super) fn slow_calls(
        &self,
        port: PortKey,
        switch: Option<SwitchKey>,
        stage: StallStage,
    ) -> SlowCalls {
        // All workers of a switch may call for the peer; its home stands for them.
        let worker = switch.map(|switch| self.place(switch).home);
        let worker = worker.and_then(|worker| u32::try_from(worker).ok());
        let (sender, bell) = (self.slow_reports.sender(), self.watchdog.ringer());
        let report = move |lasted| {
            let (port, cause) = (Some(port), StallCause::Busy);
            let stall = WorkerStall { worker, port, stage, cause, lasted, is_over: false };
            if sender.send(stall).is_ok() {
                bell.ring();
            }
        };
        SlowCalls::new(report)
    }

    /// A doorbell for a holder of a bound port. Slow wake-ups of a monitor are reported for the
    /// port that it mirrors, those of a capture of drops for the capture itself.
    pub(super) fn bound_waker(&self, port: PortKey) -> io::Result<(OwnedFd, Waker)> {
        let (port, switch) = match &self.bound[&port].served_by {
            ServedBy::Switch(switch) => (port, Some(*switch)),
            ServedBy::Monitor { port, .. } => (*port, self.switch_of(*port).map(|at| at.0)),
            ServedBy::Drops { switch, .. } => (port, Some(*switch)),
            ServedBy::Reserved(..)
            | ServedBy::Null(_)
            | ServedBy::Waiting(_)
            | ServedBy::Orphaned(_) => (port, None),
        };
        self.waker(port, switch)
    }
}
