//! Ports without rings: frames that come from elsewhere and go elsewhere.

use ring::intake::Intake;
use switch::receive::batch::{Batch, Delivery, prologue};
use switch::{Adapter, Drops, Notify, Sent};

use super::*;

/// A port without rings, with nothing to receive.
struct Silent;

impl Adapter for Silent {
    fn send(&mut self, _: &Batch, _: &[Delivery]) -> Sent {
        Sent::default()
    }
}

impl Notify for Silent {}

/// A port that takes buffers in which nothing is that could be a frame, and gives them back.
struct Empties {
    waiting: u32,
    told: std::sync::mpsc::Sender<()>,
}

impl Adapter for Empties {
    fn send(&mut self, _: &Batch, _: &[Delivery]) -> Sent {
        Sent::default()
    }

    fn delivered(&mut self) -> bool {
        let any = self.waiting > 0;
        self.waiting = self.waiting.saturating_sub(1);
        any
    }

    fn flush(&mut self) {
        self.told.send(()).expect("the test looks");
    }
}

impl Notify for Empties {}

#[test]
fn whoever_waits_for_buffers_is_told_of_them_without_any_frame() {
    let mut net = Net::learning(1);
    let (told, seen) = std::sync::mpsc::channel();
    let port = Empties { waiting: 2, told };
    net.switch.add_port(id(1), Plug::adapter(Box::new(port)), PortConfig::default());
    for count in [1, 1, 0] {
        assert_eq!(net.turn(1), Moved::default());
        assert_eq!(seen.try_iter().count(), count);
    }
}

/// A port whose frames lie in memory of ours.
pub struct Wire {
    intake: Intake,
    arrived: Vec<Vec<u8>>,
    sent: std::sync::mpsc::Sender<Vec<u8>>,
}

impl Wire {
    pub fn new(arrived: Vec<Vec<u8>>) -> (Self, std::sync::mpsc::Receiver<Vec<u8>>) {
        let (sent, seen) = std::sync::mpsc::channel();
        (Self { intake: Intake::new(64, 1518).expect("memory"), arrived, sent }, seen)
    }
}

impl Adapter for Wire {
    fn recv(&mut self, batch: &mut Batch, _: &mut Drops) {
        self.intake.clear();
        batch.restart(self.intake.region());
        while batch.has_room() && self.arrived.first().is_some_and(|f| self.intake.fits(f.len())) {
            let (frame, first) = (self.arrived.remove(0), batch.frags().len());
            self.intake.push(&[&frame], batch.frags());
            batch.push_received(first, u32::try_from(frame.len()).expect("short"));
        }
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        for delivery in list {
            let entry = &batch.frames()[usize::from(delivery.frame)];
            let mut frame = Vec::new();
            let head = prologue(entry, delivery.tag);
            batch.frame(entry).append_to(head, &mut frame);
            self.sent.send(frame).expect("the test looks");
        }
        Sent::default()
    }
}

impl Notify for Wire {}

#[test]
fn frames_of_any_length_come_and_go() {
    let mut net = Net::learning(2);
    net.introduce();
    let frames: Vec<_> = [60, 1514, 9000, 14, 64].map(|len| frame(mac(1), mac(2), len, 7)).into();
    let (wire, seen) = Wire::new(frames.clone());
    net.switch.add_port(id(2), Plug::adapter(Box::new(wire)), PortConfig::default());
    while net.turn(2).slots > 0 {}
    assert_eq!(net.received(1), frames);
    assert!(net.received(0).is_empty());
    let answer = frame(mac(2), mac(1), 777, 9);
    net.send(1, std::slice::from_ref(&answer));
    net.turn(1);
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [answer]);
}

#[test]
fn tags_are_put_in_and_taken_out() {
    let mut net = Net::new(SwitchConfig::default());
    net.add(PortConfig { vlan: "access:10".parse().expect("a mode"), ..Default::default() });
    let trunk = PortConfig { vlan: "trunk:10".parse().expect("a mode"), ..Default::default() };
    let (wire, seen) = Wire::new(vec![tagged(ALL, mac(2), 10, 5), tagged(ALL, mac(2), 11, 5)]);
    net.switch.add_port(id(1), Plug::adapter(Box::new(wire)), trunk);
    net.turn(1);
    let mut plain = tagged(ALL, mac(2), 10, 5);
    plain.drain(12..16);
    assert_eq!(net.received(0), [plain.clone()]);
    net.send(0, &[plain]);
    net.turn(0);
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [tagged(ALL, mac(2), 10, 5)]);
}

#[test]
fn frames_from_outside_wait_for_nobody_and_none_is_lost_uncounted() {
    let mut net = Net::new(SwitchConfig::default());
    net.add(PortConfig { on_full: OnFull::Wait, ..PortConfig::default() });
    net.introduce();
    let (wire, _seen) = Wire::new(vec![frame(mac(0), mac(2), 60, 7); 50]);
    net.switch.add_port(id(1), Plug::adapter(Box::new(wire)), PortConfig::default());
    while net.turn(1) != Moved::default() {}
    let arrived = net.received(0).len() as u64;
    assert_eq!(arrived, u64::from(SLOTS) - 1);
    assert_eq!(net.drops(0, DropReason::NoRoom), 50 - arrived);
}

/// One whose frames can wait, and that has no room for others.
struct Patient(Wire);

impl Adapter for Patient {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        self.0.recv(batch, drops);
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        self.0.send(batch, list)
    }

    fn can_wait(&self) -> bool {
        true
    }

    fn room(&mut self) -> u32 {
        0
    }
}

impl Notify for Patient {}

#[test]
fn nobody_waits_for_a_port_that_a_station_has_left() {
    let mut net = Net::new(SwitchConfig::default());
    let hello = vec![frame(ALL, mac(0), 60, 1)];
    let (full, _seen) = Wire::new(hello.clone());
    let (sender, _back) = Wire::new(vec![frame(mac(0), mac(1), 60, 7); usize::from(BATCH) + 4]);
    let (standby, seen) = Wire::new(hello);
    let waited_for = PortConfig { on_full: OnFull::Wait, ..PortConfig::default() };
    net.switch.add_port(id(0), Plug::adapter(Box::new(Patient(full))), waited_for);
    net.switch.add_port(id(1), Plug::adapter(Box::new(Patient(sender))), PortConfig::default());
    net.turn(0);
    assert_eq!(net.turn(1).slots, BATCH.into(), "where the first go is not known");
    let moved = net.turn(1);
    assert_eq!((moved.slots, moved.blocked_on.map(switch::Full::port)), (0, Some(id(0))));
    net.switch.add_port(id(2), Plug::adapter(Box::new(standby)), PortConfig::default());
    net.turn(2);
    assert_eq!((net.turn(1).slots, seen.try_iter().count()), (4, 4));
}

#[test]
fn ports_that_get_nothing_are_many() {
    let mut net = Net::learning(2);
    net.introduce();
    for port in 2..packet::MAX_PORTS {
        let vlan = VlanMode::Access("2".parse().expect("a VLAN"));
        let config = PortConfig { vlan, ..PortConfig::default() };
        net.switch.add_port(id(port), Plug::adapter(Box::new(Silent)), config);
    }
    let sent = [frame(ALL, mac(0), 60, 1), frame(mac(1), mac(0), 60, 2)];
    net.send(0, &sent);
    net.turn(0);
    assert_eq!(net.received(1), sent);
}

#[test]
fn a_port_without_frames_does_not_repeat_those_of_others() {
    let mut net = Net::learning(2);
    net.introduce();
    net.switch.add_port(id(2), Plug::adapter(Box::new(Silent)), PortConfig::default());
    net.send(0, &[frame(ALL, mac(0), 60, 1)]);
    net.turn(0);
    assert_eq!(net.received(1).len(), 1);
    assert_eq!(net.turn(2), Moved::default());
    assert!(net.received(1).is_empty() && net.received(0).is_empty());
}

/// A port that changes the buffer of a sender as soon as it gets a frame.
struct Saboteur(TxRing);

impl Adapter for Saboteur {
    fn send(&mut self, _: &Batch, _: &[Delivery]) -> Sent {
        self.0.buffer(0)[..60].fill(0xee);
        Sent::default()
    }
}

impl Notify for Saboteur {}

#[test]
fn a_sender_changes_no_head_after_the_decision() {
    let mut net = Net::new(SwitchConfig::default());
    net.add(PortConfig::default());
    let layout = net.add_with(counts(), PortConfig::default(), DEFAULT_STRIDE);
    net.add(PortConfig::default());
    let mut ring = TxRing::new(&net.clients[1].region, &layout, 0);
    ring.refresh();
    net.switch.remove_port(id(0));
    net.switch.add_port(id(0), Plug::adapter(Box::new(Saboteur(ring))), PortConfig::default());
    let sent = frame(ALL, mac(1), 60, 7);
    net.send(1, std::slice::from_ref(&sent));
    net.turn(1);
    let got = net.received(2).remove(0);
    assert_eq!(got[..16], sent[..16]);
    assert_eq!(got[16..], [0xee; 44], "it was changed before it was copied");
}
