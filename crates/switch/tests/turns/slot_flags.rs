//! Frames whose senders ask for something, in the flags of their slots.

use super::*;

impl Net {
    /// Sends frames, each with the flags that it has beside it.
    fn send_asking(&mut self, port: usize, frames: &[(Vec<u8>, u16)]) {
        let tx = &mut self.clients[port].tx;
        assert!(tx.refresh() as usize >= frames.len(), "room to send");
        for (i, (bytes, flags)) in (0..).zip(frames) {
            let len = u16::try_from(bytes.len()).expect("a slot");
            tx.frame(i, len).copy_from_slice(bytes);
            tx.set(i, len, *flags);
        }
        let _ = tx.submit(u32::try_from(frames.len()).expect("few"));
    }

    fn counts_of_arrivals(&mut self) -> Vec<usize> {
        (0..self.clients.len()).map(|port| self.received(port).len()).collect()
    }
}

/// The flags that ask for a port.
fn to_port(port: u16) -> u16 {
    port << slot_flag::RFRAGS_SHIFT
}

#[test]
fn a_frame_that_asks_not_to_be_learned_is_delivered_and_teaches_nothing() {
    let mut net = Net::learning(3);
    net.send_asking(0, &[(frame(ALL, mac(7), 60, 1), slot_flag::NO_LEARN)]);
    net.turn(0);
    assert_eq!(net.counts_of_arrivals(), [0, 1, 1]);
    net.send(1, &[frame(mac(7), mac(1), 60, 2)]);
    net.turn(1);
    assert_eq!(net.counts_of_arrivals(), [1, 0, 1], "7 is unknown");
    // The same frame without the flag, after the first in one batch: only it is learned.
    let both = [(frame(ALL, mac(8), 60, 1), slot_flag::NO_LEARN), (frame(ALL, mac(9), 60, 1), 0)];
    net.send_asking(0, &both);
    net.turn(0);
    net.counts_of_arrivals();
    net.send(1, &[frame(mac(8), mac(1), 60, 2), frame(mac(9), mac(1), 60, 2)]);
    net.turn(1);
    assert_eq!(net.counts_of_arrivals(), [2, 0, 1]);
}

#[test]
fn a_destination_in_the_slot_overrides_the_tables() {
    let mut net = Net::learning(4);
    net.introduce();
    let known = frame(mac(1), mac(0), 60, 1);
    let frames = [
        (known.clone(), to_port(2)),
        (known.clone(), to_port(2)),
        (known.clone(), to_port(3)),
        (known, 0),
        (frame(ALL, mac(0), 60, 2), to_port(3)),
        (frame(mac(0x77), mac(0), 60, 3), to_port(2)),
    ];
    let before = net.balance();
    net.send_asking(0, &frames);
    assert_eq!(net.turn(0).slots, 6);
    let fills = |net: &mut Net, port| -> Vec<u8> {
        net.received(port).iter().map(|frame| frame[59]).collect()
    };
    assert_eq!([1, 2, 3].map(|port| fills(&mut net, port)), [vec![1], vec![1, 1, 3], vec![1, 2]]);
    let (taken, gone) = net.balance();
    assert_eq!((taken - before.0, gone - before.1), (6, 6));
}

#[test]
fn a_destination_in_the_slot_opens_no_closed_door() {
    let mut net = Net::new(SwitchConfig::default());
    let vlan = |text: &str| text.parse::<VlanMode>().expect("a mode");
    net.add(PortConfig { isolated: true, vlan: vlan("access:7"), ..PortConfig::default() });
    net.add(PortConfig { isolated: true, vlan: vlan("access:7"), ..PortConfig::default() });
    net.add(PortConfig { vlan: vlan("access:8"), ..PortConfig::default() });
    net.add(PortConfig { vlan: vlan("access:7"), ..PortConfig::default() });
    let one = frame(mac(0x55), mac(0), 60, 1);
    let asked = [1, 2, 3, 99].map(|port| (one.clone(), to_port(port)));
    net.send_asking(0, &asked);
    net.turn(0);
    assert_eq!(net.counts_of_arrivals(), [0, 0, 0, 1]);
    for reason in [DropReason::Isolated, DropReason::Vlan, DropReason::DeadPort] {
        assert_eq!(net.drops(0, reason), 1, "{reason:?}");
    }
}

#[test]
fn forwarding_functions_that_restrict_take_no_orders() {
    let patch = SwitchConfig { forwarding: Forwarding::Static, ..SwitchConfig::default() };
    let mut net = Net::new(patch);
    (0..3).for_each(|_| net.add(PortConfig::default()));
    net.send_asking(0, &[(frame(mac(0x55), mac(0), 60, 1), to_port(2))]);
    net.turn(0);
    assert_eq!(net.counts_of_arrivals(), [0, 0, 0]);
}

#[test]
fn the_number_of_slots_of_a_received_chain_names_no_port() {
    let mut net = Net::learning(4);
    net.introduce();
    let tx = &mut net.clients[0].tx;
    let head = frame(mac(1), mac(0), 200, 1);
    assert!(tx.refresh() >= 2);
    tx.frame(0, 200).copy_from_slice(&head);
    tx.set(0, 200, slot_flag::MOREFRAG | to_port(2));
    tx.frame(1, 100).fill(2);
    tx.set(1, 100, to_port(2));
    let _ = tx.submit(2);
    net.turn(0);
    assert_eq!(net.counts_of_arrivals(), [0, 1, 0, 0]);
}

/// A frame of VLAN 5 with a tag of VLAN 9 as payload.
fn nested(dst: [u8; 6]) -> Vec<u8> {
    let mut bytes = tagged(dst, mac(0), 5, 7);
    bytes[16..22].copy_from_slice(&[0x81, 0, 0, 9, 8, 0]);
    bytes
}

#[test]
fn a_second_tag_does_not_become_the_first_of_a_trunk() {
    for dst in [ALL, mac(1)] {
        let mut net = Net::new(SwitchConfig::default());
        for mode in ["access:5", "trunk:9,native=5", "trunk:5", "access:5"] {
            let vlan = mode.parse().expect("a mode");
            net.add(PortConfig { vlan, ..PortConfig::default() });
        }
        net.send(1, &[frame(ALL, mac(1), 60, 0)]);
        net.turn(1);
        (0..4).for_each(|port| drop(net.received(port)));
        // Long runs go another way than short ones.
        let plain = tagged(dst, mac(0), 5, 7);
        let burst: Vec<_> =
            (0..12).map(|i| if i % 3 == 0 { nested(dst) } else { plain.clone() }).collect();
        net.send(0, &burst);
        net.turn(0);
        let received = net.received(1);
        assert_eq!((received.len(), received.iter().any(|f| f[12..14] != [8, 0])), (8, false));
        let counted_at = if dst == ALL { 1 } else { 0 };
        assert_eq!(net.drops(counted_at, DropReason::NestedTag), 4);
        if dst == ALL {
            assert!(net.received(2).iter().all(|f| f[12..16] == [0x81, 0, 0, 5]));
            assert_eq!(net.received(3).len(), 12, "it is payload to a station");
        }
    }
}
