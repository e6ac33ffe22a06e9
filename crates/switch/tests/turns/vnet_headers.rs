//! Frames with a virtio-net header in front of them.

use super::*;

fn with_header(vnet_header: u8) -> PortConfig {
    PortConfig { vnet_header, ..PortConfig::default() }
}

/// Ports with headers of these lengths, whose clients know each other.
fn net(headers: &[u8]) -> Net {
    let mut net = Net::learning(headers.len());
    net.introduce();
    for (i, len) in headers.iter().enumerate() {
        net.switch.set_port(id(i), with_header(*len));
    }
    net
}

fn behind(header: &[u8], frame: &[u8]) -> Vec<u8> {
    [header, frame].concat()
}

const HEADER: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

#[test]
fn a_header_is_passed_on_to_ports_that_have_the_same_and_zeros_to_others() {
    let mut net = net(&[12, 12, 10, 0]);
    let frames: Vec<_> = (1..4).map(|i| frame(mac(i), mac(0), 60 + usize::from(i), i)).collect();
    let sent: Vec<_> = frames.iter().map(|frame| behind(&HEADER, frame)).collect();
    net.send(0, &sent);
    net.turn(0);
    assert_eq!(net.received(1), [behind(&HEADER, &frames[0])]);
    assert_eq!(net.received(2), [behind(&[0; 10], &frames[1])]);
    assert_eq!(net.received(3), [frames[2].clone()]);
    let sender = net.switch.stats(id(0)).expect("a port").total().tx;
    assert_eq!((sender.frames, sender.bytes), (1 + 3, 60 + 61 + 62 + 63), "headers do not count");
    let receiver = net.switch.stats(id(1)).expect("a port").total().rx;
    assert_eq!(receiver.bytes, 3 * 60 + 61);
}

#[test]
fn a_checksum_field_moves_with_the_tag_and_never_lies_in_one() {
    let mut net = Net::new(SwitchConfig::default());
    for mode in ["access:10", "trunk:10"] {
        let vlan = mode.parse().expect("a mode");
        net.add(PortConfig { vlan, ..with_header(12) });
    }
    let partial = |start: u8, head: u8| [1, 0, head, 0, 0, 0, start, 0, 16, 0, 0, 0];
    let plain = frame(ALL, mac(0), 80, 0);
    let ip = [&plain[..12], &[8, 0, 0x45], &plain[15..]].concat();
    net.send(0, &[34, 33, 14].map(|start| behind(&partial(start, 54), &ip)));
    net.turn(0);
    let received = net.received(1);
    let headers: Vec<_> = received.iter().map(|frame| &frame[..12]).collect();
    assert_eq!(headers, [&partial(38, 58)[..], &[0; 12], &[0; 12]]);
    assert!(received.iter().all(|frame| frame[24..28] == [0x81, 0, 0, 10]));
}

#[test]
fn runs_and_floods_get_their_headers() {
    let mut net = net(&[0, 10, 12, 0]);
    let run: Vec<_> = (0..12).map(|i| frame(mac(1), mac(0), 60, i)).collect();
    net.send(0, &run);
    net.turn(0);
    let expected: Vec<_> = run.iter().map(|frame| behind(&[0; 10], frame)).collect();
    assert_eq!(net.received(1), expected);
    let broadcast = frame(ALL, mac(0), 60, 9);
    net.send(0, std::slice::from_ref(&broadcast));
    net.turn(0);
    assert_eq!(net.received(1), [behind(&[0; 10], &broadcast)]);
    assert_eq!(net.received(2), [behind(&[0; 12], &broadcast)]);
    assert_eq!(net.received(3), [broadcast]);
}

#[test]
fn a_header_may_have_a_slot_of_its_own() {
    let mut net = net(&[12, 12, 0]);
    for port in [1, 2] {
        let payload = frame(mac(port), mac(0), 100, 7);
        net.send_chain(0, &[&HEADER, &payload[..40], &payload[40..]]);
        net.send_chain(0, &[&HEADER, &payload]);
        net.turn(0);
        let header = if port == 1 { &HEADER[..] } else { &[] };
        let expected = behind(header, &payload);
        assert_eq!(net.received(port.into()), [expected.clone(), expected]);
    }
}

#[test]
fn members_of_a_group_get_the_frame_that_was_sent_whatever_slot_it_was_in() {
    let mut net = Net::new(SwitchConfig::default());
    net.add_group(2);
    net.introduce();
    net.switch.set_port(id(0), with_header(12));
    let payload = frame(mac(1), mac(0), 100, 7);
    net.send_chain(0, &[&HEADER, &payload]);
    net.send(0, &[behind(&HEADER, &payload)]);
    net.turn(0);
    assert_eq!(net.received(1), [payload.clone(), payload]);
}

#[test]
fn tags_are_put_in_behind_the_header() {
    let mut net = net(&[12, 12]);
    let access = PortConfig { vlan: "access:5".parse().unwrap(), ..with_header(12) };
    let trunk = PortConfig { vlan: "trunk:5".parse().unwrap(), ..with_header(12) };
    net.switch.set_port(id(0), access);
    net.switch.set_port(id(1), trunk);
    let untagged = frame(ALL, mac(0), 64, 3);
    net.send(0, &[behind(&HEADER, &untagged)]);
    net.turn(0);
    let got = net.received(1).remove(0);
    // The numbers of bytes before the payload and before the checksummed part grow.
    assert_eq!(got[..12], [1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 11, 12]);
    assert_eq!((got.len(), &got[24..28]), (12 + 68, &[0x81, 0, 0, 5][..]));
}

#[test]
fn what_is_shorter_than_its_header_is_dropped_and_counted() {
    let mut net = net(&[12, 0]);
    let payload = frame(mac(1), mac(0), 60, 1);
    net.send(0, &[vec![1; 11], vec![1; 12], vec![1; 25]]);
    net.send_chain(0, &[&HEADER[..4], &payload]);
    net.send_chain(0, &[&HEADER, &payload[..10], &payload[10..]]);
    net.send(0, &[behind(&HEADER, &payload)]);
    net.turn(0);
    assert_eq!(net.received(1), [payload]);
    assert_eq!(net.drops(0, DropReason::TooShort), 5);
}

#[test]
fn a_frame_that_just_fits_takes_two_slots_behind_a_header() {
    let mut net = net(&[0, 10]);
    let stride = usize::try_from(DEFAULT_STRIDE).unwrap();
    let whole = frame(mac(1), mac(0), stride, 4);
    net.send(0, std::slice::from_ref(&whole));
    net.turn(0);
    assert_eq!(net.clients[1].rx.refresh(), 2);
    assert_eq!(net.received(1), [behind(&[0; 10], &whole)]);
}
