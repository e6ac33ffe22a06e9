//! What a flood costs its sender, in copies.

use packet::offload::{Offloads, PendingOffload, VNET_LEN};
use ring::intake::Intake;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, Drops, Notify, Sent};

use super::*;

/// A port without rings that sends frames as long as it is asked to, and counts what it gets.
struct Source {
    intake: Intake,
    frame: Vec<u8>,
    left: Option<PendingOffload>,
    copies: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl Adapter for Source {
    fn recv(&mut self, batch: &mut Batch, _: &mut Drops) {
        self.intake.clear();
        batch.restart(self.intake.region());
        while !self.frame.is_empty() && batch.has_room() && self.intake.fits(self.frame.len()) {
            let first = batch.frags().len();
            self.intake.push(&[&self.frame], batch.frags());
            batch.push_received(first, u32::try_from(self.frame.len()).expect("short"));
            self.left.into_iter().for_each(|left| batch.push_offload(left).expect("right"));
        }
    }

    fn send(&mut self, _: &Batch, list: &[Delivery]) -> Sent {
        self.copies.fetch_add(list.len() as u64, std::sync::atomic::Ordering::Relaxed);
        Sent::each(list, |_| Ok(60))
    }

    fn accepts(&self) -> Offloads {
        Offloads::NONE
    }
}

impl Notify for Source {}

/// Copies that one turn makes when a port floods all it has to the other ports; and the switch.
fn copies(ports: usize, frame: &[u8], left: Option<PendingOffload>) -> (u64, Net) {
    let mut net = Net::new(SwitchConfig::default());
    let copies = std::sync::Arc::<std::sync::atomic::AtomicU64>::default();
    for port in 0..=ports {
        let (frame, intake) = (if port == 0 { frame } else { &[] }, Intake::new(64, 1518));
        let (intake, frame) = (intake.expect("memory"), frame.to_vec());
        let source = Source { intake, frame, left, copies: copies.clone() };
        net.switch.add_port(id(port), Plug::adapter(Box::new(source)), PortConfig::default());
    }
    net.turn(0);
    (copies.load(std::sync::atomic::Ordering::Relaxed), net)
}

#[test]
fn a_flood_to_many_ports_ends_a_turn() {
    let few = frame(ALL, mac(9), 60, 0);
    assert_eq!(copies(10, &few, None).0, 160, "a batch of this test has 16 frames");
    let (many, _) = copies(4000, &few, None);
    assert!((4000..=2 * 32_768).contains(&many), "{many}");
}

#[test]
fn a_ring_that_floods_waits_for_its_next_turn() {
    let mut net = Net::learning(1);
    for port in 1..=4000 {
        let source = Source {
            intake: Intake::new(1, 60).expect("memory"),
            frame: Vec::new(),
            left: None,
            copies: std::sync::Arc::default(),
        };
        net.switch.add_port(id(port), Plug::adapter(Box::new(source)), PortConfig::default());
    }
    net.scratch = Scratch::new(64, Intake::new(FRAMES, STANDARD_FRAME).expect("memory"));
    net.send(0, &vec![frame(ALL, mac(9), 60, 0); 31]);
    let taken = net.turn(0).slots;
    assert!((1..=2 * 32_768 / 4000).contains(&taken), "{taken}");
    assert_eq!(net.turn(0).slots, 31 - taken, "the others wait");
}

#[test]
fn segments_are_charged_for_each_destination() {
    let mut bytes = frame(ALL, mac(9), 60_000, 0);
    bytes[14] = 0x45;
    bytes[46] = 0x50;
    let mut head = [0; VNET_LEN];
    (head[0], head[1]) = (1, 1);
    for (field, value) in [(1, 54), (2, 32), (3, 34), (4, 16)] {
        head[2 * field..2 * field + 2].copy_from_slice(&u16::to_ne_bytes(value));
    }
    let left = PendingOffload::read(head, bytes.len()).expect("right");
    let (cut, net) = copies(100, &bytes, left);
    assert_eq!((cut, net.drops(0, DropReason::Offload)), (0, 1), "187,400 frames of one");
    let (cut, net) = copies(10, &bytes, left);
    assert_eq!((cut, net.drops(0, DropReason::Offload)), (18_740, 0));
}
