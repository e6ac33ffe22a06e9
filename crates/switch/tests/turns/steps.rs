//! The ports that a worker names in its steps: whose memory it touches, and no other.

use std::sync::{Arc, Mutex};

use ring::intake::Intake;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, CopyRate, Drops, HeartbeatReader, MirrorPoint, Notify, Sent, Stage};

use super::*;

/// A call of the switch, and the step in which it came: the stage, the port and the other port.
type Call = (&'static str, Stage, Option<usize>, Option<usize>);

/// Notes the calls that the switch makes, and in which step.
#[derive(Clone)]
struct Notes {
    heartbeat: HeartbeatReader,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Notes {
    fn add(&self, call: &'static str) {
        let beat = self.heartbeat.read();
        let [port, other] = [beat.port, beat.other].map(|port| port.map(PortId::index));
        self.calls.lock().expect("no thread panics").push((call, beat.stage, port, other));
    }

    fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock().expect("no thread panics"))
    }
}

/// A port without rings that notes all calls. Its frames lie in memory of ours.
struct Noting {
    notes: Notes,
    intake: Intake,
    arrived: Vec<Vec<u8>>,
}

impl Adapter for Noting {
    fn recv(&mut self, batch: &mut Batch, _: &mut Drops) {
        self.notes.add("recv");
        self.intake.clear();
        batch.restart(self.intake.region());
        for frame in self.arrived.drain(..) {
            let first = batch.frags().len();
            self.intake.push(&[&frame], batch.frags());
            batch.push_received(first, u32::try_from(frame.len()).expect("short"));
        }
    }

    fn take_back(&mut self, _: &Batch) {
        self.notes.add("take_back");
    }

    fn delivered(&mut self) -> bool {
        self.notes.add("delivered");
        false
    }

    fn send(&mut self, _: &Batch, _: &[Delivery]) -> Sent {
        self.notes.add("send");
        Sent::default()
    }

    fn flush(&mut self) {
        self.notes.add("flush");
    }

    fn room(&mut self) -> u32 {
        self.notes.add("room");
        u32::MAX
    }
}

impl Notify for Noting {}

impl Wake for Notes {
    fn wake(&self) {
        self.add("wake");
    }
}

/// Two ports with rings, 0 and 1, and two without. A frame for all has arrived at port 2.
fn noted() -> (Net, Notes) {
    let mut net = Net::learning(2);
    net.introduce();
    let notes = Notes { heartbeat: net.scratch.heartbeat().reader(), calls: Arc::default() };
    for (port, arrived) in [(2, vec![frame(ALL, mac(2), 60, 7)]), (3, Vec::new())] {
        let intake = Intake::new(64, 1518).expect("memory");
        let port_without_rings = Noting { notes: notes.clone(), intake, arrived };
        let plug = Plug::adapter(Box::new(port_without_rings));
        net.switch.add_port(id(port), plug, PortConfig::default());
    }
    (net, notes)
}

#[test]
fn no_step_blames_a_port_for_the_memory_of_another() {
    let (mut net, notes) = noted();
    assert_eq!(net.look(2).slots, 1);
    // Between two ports without rings, the worker touches no memory but the daemon's.
    let expected = [
        ("recv", Stage::Receive, Some(2), None),
        ("send", Stage::Send, Some(3), None),
        ("take_back", Stage::Receive, Some(2), None),
        ("delivered", Stage::Receive, Some(2), None),
        ("flush", Stage::Send, Some(3), None),
    ];
    assert_eq!(notes.take(), expected);
    net.send(0, &[frame(mac(2), mac(0), 60, 7)]);
    assert_eq!(net.look(0).slots, 1);
    let expected = [
        ("room", Stage::Forward, Some(2), Some(0)),
        ("send", Stage::Forward, Some(2), Some(0)),
        ("flush", Stage::Send, Some(2), None),
    ];
    assert_eq!(notes.take(), expected);
}

#[test]
fn a_wake_up_is_for_one_port_and_the_turn_ends_with_its_sender() {
    let (mut net, notes) = noted();
    net.look(2);
    (0..2).for_each(|port| drop(net.received(port)));
    notes.take();
    net.switch.plug_mut(id(1)).expect("a port").set_wake(Arc::new(notes.clone()));
    assert!(net.clients[1].rx.arm(1));
    net.send(0, &[frame(mac(1), mac(0), 60, 7)]);
    assert_eq!(net.look(0).slots, 1);
    assert_eq!(notes.take(), [("wake", Stage::Wake, Some(1), None)]);
    notes.add("end");
    assert_eq!(notes.take(), [("end", Stage::Forward, Some(0), None)]);
}

#[test]
fn the_step_of_a_copy_names_the_mirror_port_and_the_port_that_has_the_frame() {
    let (mut net, notes) = noted();
    net.look(2);
    (0..2).for_each(|port| drop(net.received(port)));
    notes.take();
    for (point, other) in [(MirrorPoint::Sent, 0), (MirrorPoint::Received, 1)] {
        net.switch.set_mirror_port(id(3), CopyRate::new(0), &[(id(other), point)]);
        net.send(0, &[frame(mac(1), mac(0), 60, 7)]);
        assert_eq!(net.look(0).slots, 1);
        let expected =
            [("send", Stage::Forward, Some(3), Some(other)), ("flush", Stage::Send, Some(3), None)];
        assert_eq!(notes.take(), expected);
    }
}
