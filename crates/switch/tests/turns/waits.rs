//! Frames that wait for a full port: without end where its configuration says so, and briefly where
//! its client reads.

use super::*;

/// Frames from port 0 for the ring of port 1, numbered.
fn burst(numbers: std::ops::Range<u8>) -> Vec<Vec<u8>> {
    numbers.map(|number| frame(mac(1), mac(0), 60, number)).collect()
}

/// The ring of port 1 is full, and two more frames are there for it, of port 0, which waits.
fn full(ports: usize) -> Net {
    let mut net = Net::learning(ports);
    net.introduce();
    net.send(0, &burst(0..16));
    net.look(0);
    net.send(0, &burst(16..33));
    assert_eq!(net.look(0).slots, 15);
    net.now = net.now.after_us(1);
    assert!(waits(&mut net), "for 200 us from now on");
    net
}

/// Whether the next frame waits, and the worker yields.
fn waits(net: &mut Net) -> bool {
    let moved = net.look(0);
    let waits = moved.blocked_on.is_some_and(switch::Full::is_brief);
    assert_eq!((net.scratch.crowded(), moved.slots == 0), (waits, waits), "{moved:?}");
    waits
}

#[test]
fn frames_wait_briefly_for_a_client_that_reads() {
    let mut net = full(2);
    net.now = net.now.after_us(199);
    assert!(waits(&mut net));
    let mut got = net.received(1);
    assert!(!waits(&mut net), "there is room");
    got.extend(net.received(1));
    assert_eq!(got, burst(0..33));
    assert_eq!(net.drops(1, DropReason::NoRoom), 0);
}

#[test]
fn a_client_that_reads_nothing_is_waited_for_once() {
    let mut net = full(3);
    net.now = net.now.after_us(200);
    assert!(!waits(&mut net));
    assert_eq!(net.drops(1, DropReason::NoRoom), 2);
    for _ in 0..10 {
        // Also by another sender.
        for sender in [0, 2] {
            net.send(sender, &burst(0..1));
            assert_eq!(net.look(sender), Moved { slots: 1, blocked_on: None });
            net.now = net.now.after_us(1_000_000);
        }
    }
    assert_eq!(net.drops(1, DropReason::NoRoom), 22);
}

/// The client gets 200 us for each quarter of its ring that it has read: 7 frames.
#[test]
fn a_client_that_reads_slowly_is_waited_for_by_the_quarter() {
    let mut net = full(16);
    net.turn(0);
    let mut waited = 0;
    for read in 1..=70 {
        net.clients[1].rx.refresh();
        let _ = net.clients[1].rx.release(1);
        // One has room, and the other has not. Each sender has its first wait.
        let sender = 2 + waited;
        net.send(sender, &burst(0..2));
        waited += usize::from(net.look(sender).blocked_on.is_some());
        net.turn(sender);
        assert!(waited <= read / 7, "{waited} after {read}");
    }
    assert_eq!(waited, 10);
}

/// Port 2 keeps the ring of port 1 full, whose client reads all the time.
#[test]
fn a_sender_waits_once_for_so_many_frames_that_it_sends() {
    let mut net = Net::learning(3);
    net.introduce();
    let mut waited = [0, 0];
    for round in 0..2048 {
        for _ in 0..2 {
            net.send(2, &burst(0..16));
            net.turn(2);
        }
        net.send(0, &burst(0..1));
        waited[round / 1024] += u32::from(net.look(0).blocked_on.is_some());
        net.turn(0);
        assert!(net.received(1).len() >= 31);
    }
    assert_eq!(waited, [1, 1], "once for 1024 frames");
}

#[test]
fn a_batch_is_cut_where_a_frame_waits_and_goes_on_in_order() {
    let mut net = Net::learning(4);
    net.introduce();
    let mixed = |i: u8| frame(mac(1 + i % 3), mac(0), 60, i);
    let sent: Vec<_> = (0..250).map(mixed).collect();
    let (mut got, mut rest, mut waits) = (vec![Vec::new(); 3], &sent[..], 0);
    for round in 0.. {
        let free = usize::try_from(net.clients[0].tx.refresh()).expect("few");
        let (now, later) = rest.split_at(free.min(rest.len()));
        net.send(0, now);
        rest = later;
        // Time stands still, so that no wait ends.
        loop {
            let moved = net.look(0);
            waits += usize::from(moved.blocked_on.is_some());
            if moved.slots == 0 {
                break;
            }
        }
        // The receivers read in turn, and so seldom that their rings fill up.
        if round % 2 == 0 {
            let reader = round / 2 % 3;
            got[reader].extend(net.received(1 + reader));
        }
        if rest.is_empty() && net.clients[0].tx.is_drained() {
            break;
        }
    }
    assert!(waits > 0, "some ring was full");
    for (port, mut got) in got.into_iter().enumerate() {
        got.extend(net.received(1 + port));
        let expected: Vec<_> = sent.iter().skip(port).step_by(3).cloned().collect();
        assert!(got == expected, "port {port}: {} frames of {}", got.len(), expected.len());
        assert_eq!(net.drops(1 + port, DropReason::NoRoom), 0);
    }
}

#[test]
fn what_lies_behind_a_frame_that_waits_is_looked_at_again_and_counted_once() {
    let mut net = Net::learning(2);
    net.introduce();
    for half in [0..16, 16..31] {
        net.send(0, &burst(half));
        net.look(0);
    }
    let (unknown, short) = (frame(mac(9), mac(0), 60, 31), frame(mac(1), mac(0), 14, 0));
    net.send(0, &[unknown.clone(), short[..13].to_vec()]);
    net.send(0, &burst(32..34));
    (0..3).for_each(|_| assert!(waits(&mut net)));
    assert_eq!(net.drops(0, DropReason::TooShort), 0);
    let mut got = net.received(1);
    while net.look(0).slots > 0 {}
    got.extend(net.received(1));
    assert_eq!(net.drops(0, DropReason::TooShort), 1);
    assert_eq!(got, [burst(0..31), vec![unknown], burst(32..34)].concat());
    let (taken, gone) = net.balance();
    // The short frame was dropped, and the flood had one destination.
    assert_eq!(taken + 1, gone);
}

#[test]
fn a_flood_waits_for_all_full_clients_at_the_same_time() {
    let mut net = Net::learning(4);
    net.introduce();
    let flood = |net: &mut Net, count| net.send(0, &vec![frame(ALL, mac(0), 60, 1); count]);
    for count in [16, 15] {
        flood(&mut net, count);
        net.look(0);
    }
    assert_eq!(net.received(3).len(), 31);
    flood(&mut net, 1);
    assert!(waits(&mut net));
    net.now = net.now.after_us(1);
    assert!(waits(&mut net));
    net.now = net.now.after_us(200);
    assert_eq!(net.look(0).slots, 1, "the waits of both are over");
    assert_eq!([1, 2, 3].map(|port| net.drops(port, DropReason::NoRoom)), [1, 1, 0]);
    assert_eq!(net.received(3).len(), 1);
}

#[test]
fn a_third_port_loses_nothing_while_a_receiver_is_stopped() {
    for parity in [0, 1] {
        let mut net = full(3);
        net.turn(0);
        for number in 0..200 {
            let to = |i: u8| if i % 2 == parity { mac(1) } else { mac(2) };
            let sent: Vec<_> = (0..16).map(|i| frame(to(i), mac(0), 60, number)).collect();
            net.send(0, &sent);
            assert_eq!(net.look(0), Moved { slots: 16, blocked_on: None });
            assert_eq!(net.received(2).len(), 8);
        }
        assert_eq!(net.drops(2, DropReason::NoRoom), 0);
    }
}

#[test]
fn a_port_that_asks_to_be_waited_for_loses_nothing() {
    let mut net = Net::learning(1);
    net.add(PortConfig { on_full: OnFull::Wait, ..PortConfig::default() });
    net.introduce();
    let sent: Vec<_> = (0..40).map(|i| frame(mac(1), mac(0), 60, i)).collect();
    let mut got = Vec::new();
    for half in sent.chunks(20) {
        net.send(0, half);
        net.turn(0);
        net.turn(0);
    }
    let full = net.turn(0).blocked_on.expect("the ring is full");
    assert!(!net.switch.want_room(full, 0), "a client that fences");
    assert!(net.switch.is_full(full));
    got.extend(net.received(1));
    assert!(!net.switch.is_full(full), "there is room now");
    net.switch.found_room(full, 0);
    while net.turn(0).slots > 0 {
        got.extend(net.received(1));
    }
    assert_eq!(got, sent);
    assert_eq!(net.drops(1, DropReason::NoRoom), 0);
}

/// Four senders wait for port 0, with runs and with frames for others in between. Meanwhile others
/// get full batches in every round, and each sender that waits takes nothing and costs one look.
#[test]
fn a_stopped_receiver_stops_its_senders_and_no_others() {
    let mut net = Net::new(SwitchConfig::default());
    net.add(PortConfig { on_full: OnFull::Wait, ..PortConfig::default() });
    (0..4).for_each(|_| net.add(PortConfig::default()));
    let pairs = [(5, 6, OnFull::Drop), (7, 8, OnFull::Wait)];
    for (_, _, on_full) in pairs {
        net.add(PortConfig::default());
        net.add(PortConfig { on_full, ..PortConfig::default() });
    }
    net.introduce();
    for sender in 1..5u8 {
        let to = |i: u8| if sender < 3 || i.is_multiple_of(2) { mac(0) } else { mac(9) };
        let sent: Vec<_> = (0..30).map(|i| frame(to(i), mac(sender), 60, i)).collect();
        net.send(sender.into(), &sent);
    }
    while (1..5).map(|sender| net.turn(sender).slots).sum::<u32>() > 0 {}
    assert_eq!(net.switch.stats(id(0)).map(|it| it.total().rx.frames), Some(31 + 8));
    for round in 0..50 {
        for sender in 1..5 {
            let moved = net.turn(sender);
            assert_eq!((moved.slots, moved.blocked_on.map(switch::Full::port)), (0, Some(id(0))));
        }
        for (from, to, _) in pairs {
            let dst = mac(u8::try_from(to).expect("few"));
            let src = mac(u8::try_from(from).expect("few"));
            let sent: Vec<_> = (0..20).map(|_| frame(dst, src, 60, round)).collect();
            net.send(from, &sent);
            assert_eq!([net.turn(from).slots, net.turn(from).slots], [u32::from(BATCH), 4]);
            assert_eq!(net.received(to), sent);
        }
    }
}

#[test]
fn interleaved_destinations_are_waited_for_together() {
    let mut net = Net::learning(1);
    for _ in 0..2 {
        net.add(PortConfig { on_full: OnFull::Wait, ..PortConfig::default() });
    }
    net.introduce();
    let mixed = |i: u8| {
        let to = [mac(1), mac(2), mac(1), mac(2), mac(1), mac(2), mac(0), ALL];
        frame(to[usize::from(i % 8)], mac(0), 60, i)
    };
    let (mut next, mut got) = (0, [Vec::new(), Vec::new()]);
    while next < 240 {
        let sent: Vec<_> = (next..next + 12).map(mixed).collect();
        net.send(0, &sent);
        next += 12;
        // Every other time the receivers come late, and only one of them.
        while net.turn(0).slots > 0 {}
        let port = usize::from(next % 5 == 0);
        got[port].extend(net.received(1 + port));
        while !net.clients[0].tx.is_drained() {
            net.turn(0);
            (0..2).for_each(|port| got[port].extend(net.received(1 + port)));
        }
        (0..2).for_each(|port| got[port].extend(net.received(1 + port)));
    }
    for (port, got) in got.iter().enumerate() {
        let mine = |bytes: &Vec<u8>| bytes[..6] == mac(1 + u8::try_from(port).expect("few"));
        let unicast: Vec<_> = got.iter().filter(|bytes| mine(bytes)).cloned().collect();
        let expected: Vec<_> = (0..240).map(mixed).filter(mine).collect();
        assert!(unicast == expected, "port {port}: {} frames", unicast.len());
    }
}

#[test]
fn waiting_keeps_the_order_of_frames_of_any_shape() {
    let mut net = Net::learning(1);
    net.add(PortConfig { on_full: OnFull::Wait, ..PortConfig::default() });
    net.add(PortConfig::default());
    net.introduce();
    let long = frame(mac(1), mac(0), 3000, 9);
    let (mut sent, mut got) = (0, Vec::new());
    for _ in 0..8 {
        net.send_chain(0, &[&long[..2000], &long[2000..]]);
        net.send(0, &[frame(mac(2), mac(0), 60, 3)]);
        sent += 1;
    }
    while net.turn(0).slots > 0 {}
    got.extend(net.received(1));
    while net.turn(0).slots > 0 {}
    got.extend(net.received(1));
    assert_eq!(got, vec![long; sent]);
}

#[test]
fn a_flood_waits_for_no_stopped_client() {
    let mut net = Net::learning(2);
    net.add(PortConfig { on_full: OnFull::Wait, ..PortConfig::default() });
    net.introduce();
    let flood: Vec<_> = (0..12).map(|i| frame(ALL, mac(0), 60, i)).collect();
    for _ in 0..3 {
        net.send(0, &flood);
        while net.turn(0).slots > 0 {}
        assert_eq!(net.received(1), flood);
    }
    assert_eq!(net.received(2).len(), SLOTS as usize - 1);
    assert_eq!(net.drops(2, DropReason::NoRoom), 36 - 31);
}
