//! Slow calls: clients, VMMs and other peers that make the kernel take long to wake them, to send
//! to them or to receive from them.
//!
//! A worker reports each one to the control thread, by the watchdog's bell, as a stall of its own.
//! All ports of a user share its [`Probation`].

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use port::sys::{Kick, Probation, SlowCalls, UserCount, Waker};
use protocol::{StallCause, StallStage};

use super::Workers;
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

/// The probations of users with ports. That of a user without ports is kept until it is over.
#[derive(Debug, Default)]
pub(super) struct Probations {
    of_users: BTreeMap<u32, Arc<Probation>>,
    /// Users with ports.
    users: UserCount,
}

impl Probations {
    fn of(&mut self, uid: u32) -> Arc<Probation> {
        self.of_users.retain(|_, probation| Arc::strong_count(probation) > 1 || probation.is_on());
        let new = || Arc::new(Probation::among(&self.users));
        self.of_users.entry(uid).or_insert_with(new).clone()
    }
}

/// A peer that calls are made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerOf {
    /// The port.
    pub port: PortKey,
    /// The user of the client or the VMM there.
    pub user: u32,
    /// The switch that the port is in.
    pub switch: Option<SwitchKey>,
}

impl Workers {
    /// A doorbell for the client of a port.
    pub(super) fn waker(&mut self, peer: PeerOf) -> io::Result<(OwnedFd, Waker)> {
        let slow = self.slow_calls(peer, StallStage::Wake);
        Waker::new(&self.reclaimer.closer(), slow)
    }

    /// The kick of a port at a worker: this eventfd, which its client has, too.
    pub(super) fn kick(&mut self, worker: usize, event: OwnedFd, peer: PeerOf) -> Kick {
        let slow = Arc::new(self.slow_calls(peer, StallStage::Wake));
        self.ringer_of(worker).kick(event, &self.reclaimer.closer_for(peer.user), slow)
    }

    /// Reports slow calls of this stage for a port's peer by the worker of its switch.
    pub(super) fn slow_calls(&mut self, peer: PeerOf, stage: StallStage) -> SlowCalls {
        let PeerOf { port, user, switch } = peer;
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
        SlowCalls::new(self.probations.of(user), report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_without_ports_are_forgotten() {
        let mut probations = Probations::default();
        let first = probations.of(1);
        drop(probations.of(2));
        assert!(Arc::ptr_eq(&first, &probations.of(1)));
        assert_eq!(probations.of_users.keys().collect::<Vec<_>>(), [&1]);
    }
}
