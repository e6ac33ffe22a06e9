//! Clients that may not be woken now: they are woken later, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use switch::Stage;

use super::*;

/// A doorbell that may ring only at times, and counts.
#[derive(Clone, Default)]
struct Doorbell {
    may_ring: Arc<AtomicBool>,
    rung: Arc<AtomicU32>,
}

impl Doorbell {
    fn allow(&self, may_ring: bool) {
        self.may_ring.store(may_ring, Ordering::Relaxed);
    }

    fn rung(&self) -> u32 {
        self.rung.load(Ordering::Relaxed)
    }
}

impl Wake for Doorbell {
    fn wake(&self) {
        self.rung.fetch_add(1, Ordering::Relaxed);
    }

    fn try_wake(&self, begin: &mut dyn FnMut(Stage)) -> bool {
        let may_ring = self.may_ring.load(Ordering::Relaxed);
        if may_ring {
            begin(Stage::Wake);
            self.wake();
        }
        may_ring
    }
}

impl Net {
    /// Two ports that know each other; the client of one is woken by the doorbell.
    fn with_doorbell(port: usize) -> (Self, Doorbell) {
        let (mut net, doorbell) = (Self::learning(2), Doorbell::default());
        net.introduce();
        net.switch.plug_mut(id(port)).expect("a port").set_wake(Arc::new(doorbell.clone()));
        (net, doorbell)
    }

    /// Port 1 sleeps, and gets a frame.
    fn rouse(&mut self) {
        self.received(1);
        assert!(self.clients[1].rx.arm(1));
        self.send(0, &[frame(mac(1), mac(0), 60, 7)]);
        assert_eq!(self.look(0).slots, 1);
    }

    /// Wakes the client of a port that is owed it; returns whether it is owed that still.
    fn wake_if_due(&mut self, port: usize) -> bool {
        self.switch.wake_if_due(id(port), self.scratch.heartbeat())
    }

    fn wakes(&self, port: usize) -> u64 {
        self.switch.stats(id(port)).expect("a port").wakes
    }
}

#[test]
fn a_receiver_that_may_not_be_woken_is_woken_later_and_once() {
    let (mut net, doorbell) = Net::with_doorbell(1);
    net.rouse();
    assert_eq!(net.scratch.owed_wakes(), [id(1)]);
    assert!(net.scratch.woken().is_empty() && net.wake_if_due(1));
    net.rouse();
    assert!(net.scratch.owed_wakes().is_empty(), "the worker knows");
    assert_eq!((doorbell.rung(), net.wakes(1)), (0, 0));
    doorbell.allow(true);
    assert!(!net.wake_if_due(1) && !net.wake_if_due(1));
    assert_eq!((doorbell.rung(), net.wakes(1)), (1, 1));
    doorbell.allow(false);
    net.rouse();
    assert_eq!(net.scratch.owed_wakes(), [id(1)], "it is told anew");
}

#[test]
fn a_sender_that_may_not_be_woken_for_its_room_is_woken_later_and_once() {
    let (mut net, doorbell) = Net::with_doorbell(0);
    net.send(0, &vec![frame(mac(1), mac(0), 60, 7); SLOTS as usize - 1]);
    assert!(net.clients[0].tx.arm(1), "it has no room");
    assert_eq!(net.look(0).slots, u32::from(BATCH));
    assert_eq!((net.scratch.owed_wakes(), doorbell.rung()), (&[id(0)][..], 0));
    assert!(net.wake_if_due(0));
    doorbell.allow(true);
    assert!(!net.wake_if_due(0) && !net.wake_if_due(0));
    assert_eq!((doorbell.rung(), net.wakes(0)), (1, 1));
}

#[test]
fn a_wake_up_by_a_later_turn_is_the_one_that_was_owed() {
    let (mut net, doorbell) = Net::with_doorbell(1);
    net.rouse();
    doorbell.allow(true);
    net.rouse();
    assert_eq!((net.scratch.woken(), doorbell.rung()), (&[id(1)][..], 1));
    assert!(!net.wake_if_due(1));
    assert_eq!((doorbell.rung(), net.wakes(1)), (1, 1));
}

#[test]
fn a_client_that_may_be_woken_is_woken_at_once() {
    let (mut net, doorbell) = Net::with_doorbell(1);
    doorbell.allow(true);
    net.rouse();
    assert_eq!((net.scratch.woken(), doorbell.rung()), (&[id(1)][..], 1));
    assert!(net.scratch.owed_wakes().is_empty() && !net.wake_if_due(1));
}

#[test]
fn a_wake_up_that_may_have_been_lost_is_owed() {
    let (mut net, doorbell) = Net::with_doorbell(1);
    net.switch.owe_wake(id(1));
    assert!(net.wake_if_due(1));
    net.rouse();
    assert!(net.scratch.owed_wakes().is_empty(), "the worker knows");
    doorbell.allow(true);
    assert!(!net.wake_if_due(1));
    assert_eq!(doorbell.rung(), 1);
}

#[test]
fn a_port_that_is_given_away_leaves_its_wake_up_with_the_worker_that_owes_it() {
    let mut workers = Switch::new(SwitchConfig::default(), 7, HugeTable::new).into_replicas(2);
    let (mut net, doorbell) = Net::with_doorbell(1);
    let plug = net.switch.remove_port(id(1)).expect("a port").into_common();
    workers[1].add_port(id(1), plug.for_delivery(), PortConfig::default());
    workers[0].add_port(id(1), plug, PortConfig::default());
    workers[0].owe_wake(id(1));
    let given = workers[0].give_port(id(1)).expect("a port");
    workers[1].take_port(id(1), given);
    doorbell.allow(true);
    for (worker, rung) in [(1, 0), (0, 1)] {
        assert!(!workers[worker].wake_if_due(id(1), net.scratch.heartbeat()));
        assert_eq!(doorbell.rung(), rung);
    }
}
