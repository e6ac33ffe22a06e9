//! Notices of workers for the control thread: loops, and ports that switches have disabled.
//!
//! ```text
//!  worker ── queue of QUEUE notices ──────────────────────────┐
//!    │                                                        ├──► control, AT_ONCE for each bell
//!    └─ (full: a disabled port) ── late, once for each port ──┘
//!       (full: a loop) ── lost; the switch goes on showing it
//! ```
//!
//! Clients cause notices: they make loops, and send BPDUs by ports that are guarded, enabled and
//! disabled again. So the queue is bounded. A disabled port is not lost, because control tells all
//! replicas of the switch of it. Control takes a few notices at a time, rings its own bell if there
//! may be more, and answers clients in between.

use std::collections::BTreeMap;
use std::iter::from_fn;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use packet::PortId;
use port::sys::Waker;
use switch::{Disabled, News};

/// Notices that wait for the control thread.
const QUEUE: usize = 1024;
/// Notices that it takes at once.
const AT_ONCE: usize = 64;

/// Disabled ports for which the queue had no room, by the places of their switches.
#[derive(Clone, Debug, Default)]
struct Late(Arc<Mutex<BTreeMap<(usize, PortId), Disabled>>>);

impl Late {
    /// Held for as long as an entry takes: workers do not wait.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(usize, PortId), Disabled>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a worker says of the switch at a place.
#[derive(Debug)]
struct Sent {
    at: usize,
    news: News,
}

/// A worker's end.
#[derive(Debug)]
pub struct NoticeSender {
    notices: SyncSender<Sent>,
    late: Late,
    bell: Arc<Waker>,
}

impl NoticeSender {
    /// Sends a notice about the switch at this place, and wakes the control thread.
    pub fn send(&self, at: usize, news: News) {
        match self.notices.try_send(Sent { at, news }) {
            Ok(()) => {}
            Err(TrySendError::Full(Sent { at, news: News::Disabled(port, why) })) => {
                self.late.lock().insert((at, port), why);
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => return,
        }
        self.bell.wake();
    }
}

/// The control thread's end.
#[derive(Debug)]
pub struct Notices {
    notices: Receiver<Sent>,
    sender: SyncSender<Sent>,
    late: Late,
}

impl Default for Notices {
    fn default() -> Self {
        let (sender, notices) = sync_channel(QUEUE);
        Self { notices, sender, late: Late::default() }
    }
}

impl Notices {
    /// The end for a worker, which rings this bell.
    pub fn sender(&self, bell: Arc<Waker>) -> NoticeSender {
        NoticeSender { notices: self.sender.clone(), late: self.late.clone(), bell }
    }

    /// What workers have sent: the place of a switch, and what happened there. Rings the bell if
    /// there may be more.
    pub fn take(&self, bell: &Waker) -> Vec<(usize, News)> {
        // First: there are few, and a full queue may stay full.
        let late = from_fn(|| self.late.lock().pop_first());
        let late = late.map(|((at, port), why)| (at, News::Disabled(port, why)));
        let sent = self.notices.try_iter().map(|Sent { at, news }| (at, news));
        let taken: Vec<_> = late.chain(sent).take(AT_ONCE).collect();
        if taken.len() == AT_ONCE {
            bell.wake();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use packet::{MacAddr, VlanId};
    use switch::{Loop, Now};

    use super::*;

    fn id(at: usize) -> PortId {
        PortId::new(at).expect("few")
    }

    #[test]
    fn a_full_queue_loses_loops_and_no_port_that_was_disabled() {
        let (read, bell) = port::host::bell().expect("descriptors");
        let rang = || {
            let mut rang = false;
            while rustix::io::read(&read, &mut [0; 256]).is_ok() {
                rang = true;
            }
            rang
        };
        let notices = Notices::default();
        let sender = notices.sender(bell.clone());
        let (mac, vlan, seen) = (MacAddr::new([2, 0, 0, 0, 0, 1]), VlanId::DEFAULT, Now::START);
        let found = News::Loop(Loop { ports: [id(1), id(2)], mac, vlan, seen });
        (0..2 * QUEUE).for_each(|_| sender.send(3, found));
        for _ in 0..3 {
            (0..100).for_each(|at| sender.send(3, News::Disabled(id(at), Disabled::BpduGuard)));
        }
        assert!(rang());
        let mut all = Vec::new();
        loop {
            let some = notices.take(&bell);
            all.extend(some.iter().copied());
            assert_eq!(rang(), some.len() == AT_ONCE, "for the rest");
            if some.len() < AT_ONCE {
                break;
            }
        }
        let disabled = (0..100).map(|at| (3, News::Disabled(id(at), Disabled::BpduGuard)));
        assert_eq!(all[..100], disabled.collect::<Vec<_>>());
        assert_eq!(all[100..], vec![(3, found); QUEUE]);
    }
}
