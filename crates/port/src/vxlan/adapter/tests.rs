//! Frames between the two ends of a tunnel, and what becomes of those that cannot go.

use std::net::{SocketAddr, UdpSocket};
use std::slice::from_ref;
use std::time::Duration;

use ::packet::MacAddr;
use protocol::{ExternNeigh, Vxlan};
use ring::intake::{Intake, STANDARD_FRAME};
use rustix::event::{PollFd, PollFlags};
use switch::TagAction;

use super::*;
use crate::sys::Doorbell;
use crate::sys::udp::{self, Message};
use crate::vxlan::LocalAddress::{Later, Present};
use crate::vxlan::address::Addresses;
use crate::vxlan::{Around, VxlanError, open, path_mtu};

const AROUND: Around = Around { ageing_ms: 300_000, learning: true, seed: 3 };

/// An address of the loopback interface that other processes with these tests do not use.
fn ip(last: u8) -> IpAddr {
    let [low, high, ..] = std::process::id().to_le_bytes();
    IpAddr::from([127, low, high, last])
}

/// The end of a tunnel at the address with this last byte, with these remotes.
fn end(of: u8, dst_port: u16, remotes: &[u8]) -> VxlanPort {
    let vxlan = tunnel(of, dst_port, remotes);
    open(&mut Addresses::default(), &vxlan, AROUND, Present).expect("a loopback interface")
}

fn tunnel(of: u8, dst_port: u16, remotes: &[u8]) -> Vxlan {
    let remote = remotes.iter().map(|&last| ip(last)).collect();
    let dst_port = Some(dst_port);
    let (vni, vlan_vni, local, fdb) = (Some(100), vec![], ip(of), vec![]);
    let (mtu, ttl, dscp, df, extern_remote) = (None, None, None, None, vec![]);
    let neigh_suppress = true;
    Vxlan {
        vni,
        vlan_vni,
        local,
        remote,
        dst_port,
        mtu,
        ttl,
        dscp,
        df,
        neigh_suppress,
        fdb,
        extern_remote,
    }
}

fn mac(last: u8) -> MacAddr {
    MacAddr::new([2, 0, 0, 0, 0, last])
}

fn frame(dst: MacAddr, src: MacAddr, len: usize) -> Vec<u8> {
    let head = packet::build::ethernet_header(dst, src, 0x88b5);
    let mut frame = head.to_vec();
    frame.resize(len, 7);
    frame
}

/// Sends frames in one batch.
fn send(port: &mut VxlanPort, frames: &[Vec<u8>]) -> Sent {
    let mut intake = Intake::new(256, STANDARD_FRAME).expect("memory");
    let mut batch = Batch::new(256);
    batch.restart(intake.region());
    for frame in frames {
        let first = batch.frags().len();
        intake.push(&[frame], batch.frags());
        batch.push_received(first, u32::try_from(frame.len()).expect("short"));
    }
    let count = u16::try_from(frames.len()).expect("few");
    let list: Vec<_> = (0..count).map(|frame| Delivery { frame, tag: TagAction::Keep }).collect();
    let sent = port.send(&batch, &list);
    port.flush();
    sent
}

/// The frames that arrive until there are `count`, or none for a while.
fn receive(port: &mut VxlanPort, count: usize) -> Vec<Vec<u8>> {
    let (mut batch, mut drops) = (Batch::new(256), Drops::default());
    let mut got = Vec::new();
    for _ in 0..200 {
        port.recv(&mut batch, &mut drops);
        for frame in 0..u16::try_from(batch.frames().len()).expect("few") {
            let mut out = Vec::new();
            batch.append(Delivery { frame, tag: TagAction::Keep }, &mut out);
            got.push(out);
        }
        if got.len() >= count && !port.pending() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(drops.total(), 0);
    got
}

#[test]
fn a_flood_reaches_all_remotes_and_an_answer_only_the_one_that_asked() {
    let [mut a, mut b, mut c] =
        [(1, [2, 3]), (2, [1, 3]), (3, [1, 2])].map(|(of, others)| end(of, 14_789, &others));
    let ask = frame(MacAddr::BROADCAST, mac(1), 60);
    assert_eq!(send(&mut a, from_ref(&ask)).delivered.frames, 1);
    assert_eq!(receive(&mut b, 1), from_ref(&ask));
    assert_eq!(receive(&mut c, 1), [ask]);
    let answer = frame(mac(1), mac(2), 60);
    assert_eq!(send(&mut b, from_ref(&answer)).delivered.frames, 1);
    assert_eq!(receive(&mut a, 1), [answer]);
    let more = frame(mac(2), mac(1), 1514);
    send(&mut a, from_ref(&more));
    assert_eq!(receive(&mut b, 1), [more]);
    assert!(receive(&mut c, 1).is_empty(), "neither the answer nor what follows");
    assert_eq!(a.remotes().learned()[0], (ip(2), 1));
    a.remotes().flush();
    send(&mut a, &[frame(mac(2), mac(1), 60)]);
    assert_eq!(receive(&mut c, 1).len(), 1, "it is not known any more");
}

#[test]
fn a_stream_of_segments_arrives_whole_and_in_order() {
    let [mut a, mut b] = [(1, 2), (2, 1)].map(|(of, other)| end(of, 14_790, &[other]));
    let mut frames: Vec<_> = (0..100).map(|_| frame(mac(2), mac(1), 1514)).collect();
    frames.push(frame(mac(2), mac(1), 300));
    for (number, frame) in (0..).zip(&mut frames) {
        frame[20] = number;
    }
    let sent = send(&mut a, &frames);
    assert_eq!((sent.delivered.frames, sent.drops.total()), (101, 0));
    assert_eq!(receive(&mut b, 101), frames);
}

#[test]
fn copies_of_a_turn_are_bounded_and_a_port_without_remotes_floods_to_none() {
    let others: Vec<u8> = (2..=201).collect();
    let mut a = end(1, 14_791, &others);
    let frames = vec![frame(MacAddr::BROADCAST, mac(1), 60); 7];
    let sent = send(&mut a, &frames);
    assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::NoRoom)), (5, 2));
    assert_eq!(send(&mut a, &frames[..5]).delivered.frames, 5, "the next turn has its own");
    a.set(&[], &RemoteVlans::default(), &[]);
    assert_eq!(send(&mut a, &frames).drops.get(DropReason::NoDestination), 7);
}

#[test]
fn bytes_of_copies_and_refused_messages_of_a_turn_are_bounded() {
    let others: Vec<u8> = (2..=201).collect();
    let mut a = end(1, 14_795, &others);
    let long = vec![frame(MacAddr::BROADCAST, mac(1), 9000); 3];
    let sent = send(&mut a, &long);
    assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::NoRoom)), (2, 1));
    // No interface has this address, so the kernel refuses every message.
    let local = IpAddr::from([192, 0, 2, 1]);
    let foreign = Vxlan { local, ..tunnel(1, 14_796, &others) };
    let mut waits = open(&mut Addresses::default(), &foreign, AROUND, Later)
        .expect("the address may come later");
    let sent = send(&mut waits, &[frame(MacAddr::BROADCAST, mac(1), 60)]);
    assert_eq!(sent.drops.get(DropReason::NoRoom), 1, "after so many refusals it is not tried");
    waits.set(&[ip(2)], &RemoteVlans::default(), &[]);
    let sent = send(&mut waits, &[frame(MacAddr::BROADCAST, mac(1), 60)]);
    assert_eq!(sent.drops.get(DropReason::LinkDown), 1);
}

#[test]
fn a_port_that_learns_no_more_forgets_what_it_has_learned() {
    let [mut a, mut b] = [(1, 2), (2, 1)].map(|(of, other)| end(of, 14_797, &[other]));
    let hello = frame(MacAddr::BROADCAST, mac(2), 60);
    send(&mut b, from_ref(&hello));
    assert_eq!(receive(&mut a, 1).len(), 1);
    assert_eq!(a.remotes().learned(), [(ip(2), 1)]);
    a.set_learning(false);
    send(&mut b, &[hello]);
    assert_eq!(receive(&mut a, 1).len(), 1);
    assert_eq!(a.remotes().learned(), [(ip(2), 0)]);
}

#[test]
fn a_frame_above_the_mtu_is_too_long() {
    let mut a = end(1, 14_792, &[2]);
    a.mtu = Some(1496);
    let frames = [1514, 1515].map(|len| frame(mac(2), mac(1), len));
    let sent = send(&mut a, &frames);
    assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::TooLong)), (1, 1));
    // The MTU of the loopback interface is longer than any of these.
    let tunnel = tunnel(1, 14_792, &[2]);
    assert!(path_mtu(&tunnel).expect("a route") > 9000);
    assert_eq!(path_mtu(&Vxlan { remote: vec![], ..tunnel }), None);
}

#[test]
fn the_sender_of_a_long_packet_to_a_known_station_is_told_a_few_times() {
    let mut a = end(1, 14_798, &[2]);
    a.mtu = Some(1400);
    let hosts = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let packet = packet::build::ipv4_header(17, packet::build::DONT_FRAGMENT, hosts, 1480);
    let ethernet = packet::build::ethernet_header(mac(2), mac(1), 0x0800);
    let long = [&ethernet[..], &packet, &[7; 1480]].concat();
    assert_eq!(send(&mut a, from_ref(&long)).drops.get(DropReason::TooLong), 1);
    assert!(!a.has_answers(), "the station may be at another port");
    let station = VxlanStation { mac: mac(2), remote: ip(2) };
    a.set(&[ip(2)], &RemoteVlans::default(), &[station]);
    let sent = send(&mut a, &vec![long; 200]);
    assert_eq!((sent.drops.get(DropReason::TooLong), a.has_answers()), (200, true));
    let answers = receive(&mut a, 100);
    assert!(answers.len() <= 200 && answers.len() >= 100, "{} answers", answers.len());
    assert_eq!(answers[0][..12], [mac(1).octets(), mac(2).octets()].concat());
    assert_eq!(answers[0][34..42][6..], 1400u16.to_be_bytes());
    assert!(!a.has_answers() && !a.pending());
}

#[test]
fn a_request_for_a_known_station_is_answered_and_crosses_no_tunnel() {
    let [mut a, mut b] = [(1, 2), (2, 1)].map(|(of, other)| end(of, 14_799, &[other]));
    let [own, far] = [1, 2].map(|last| std::net::Ipv4Addr::new(192, 168, 7, last));
    let packet = packet::build::arp(1, (mac(1), own), (MacAddr::ZERO, far));
    let ask = packet::build::ethernet(MacAddr::BROADCAST, mac(1), 0x0806, &packet);
    send(&mut a, from_ref(&ask));
    assert_eq!(receive(&mut b, 1), from_ref(&ask));
    assert_eq!(b.neighbour_page(None, 9).0, [], "the sender is not behind this one");
    a.remotes().add_external((VlanId::DEFAULT, mac(2)), ip(2));
    let known = ExternNeigh { address: far.into(), mac: mac(2), router: false };
    a.neighbours().add_external(VlanId::DEFAULT, known);
    let sent = send(&mut a, &[ask.clone(), frame(mac(2), mac(1), 60)]);
    assert_eq!((sent.delivered.frames, sent.drops.total(), a.has_answers()), (2, 0, true));
    let mut receiver = [PollFd::new(&a.receiver, PollFlags::IN)];
    let rung = rustix::event::poll(&mut receiver, None);
    assert_eq!(rung, Ok(1), "the port's own worker looks, though another one has sent");
    assert_eq!(receive(&mut b, 1), [frame(mac(2), mac(1), 60)]);
    let reply = packet::build::arp(2, (mac(2), far), (mac(1), own));
    let reply = packet::build::ethernet(mac(1), mac(2), 0x0806, &reply);
    assert_eq!(receive(&mut a, 1), from_ref(&reply));
    let info = a.neighbours().info().expect("it is on");
    assert_eq!((info.suppressed, info.local, info.extern_learned), (1, 1, 1));
    // An answer costs no copy of those that a turn may make.
    a.left.copies = 0;
    let sent = send(&mut a, &[frame(MacAddr::BROADCAST, mac(1), 60), ask.clone()]);
    assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::NoRoom)), (1, 1));
    assert_eq!(receive(&mut a, 1), from_ref(&reply));
    // What waits is bounded, and what finds no room is flooded.
    let sent = send(&mut a, &vec![ask; 256]);
    assert_eq!((sent.delivered.frames, receive(&mut a, 256).len()), (256, 256));
    // The far end says that another station has the address.
    let stolen = packet::build::arp(1, (mac(3), far), (MacAddr::ZERO, own));
    let stolen = packet::build::ethernet(MacAddr::BROADCAST, mac(3), 0x0806, &stolen);
    send(&mut b, from_ref(&stolen));
    assert_eq!(receive(&mut a, 1), [stolen]);
    assert!(a.neighbour_page(None, 9).0.iter().any(|entry| entry.disputed));
}

#[test]
fn a_request_in_the_network_of_a_vlan_is_answered_there_and_in_no_other() {
    let vlan_vni = ["10:1010", "20:1020"].map(|pair| pair.parse().expect("a pair")).to_vec();
    let vxlan = Vxlan { vni: None, vlan_vni, ..tunnel(1, 14_803, &[2]) };
    let mut a =
        open(&mut Addresses::default(), &vxlan, AROUND, Present).expect("a loopback interface");
    let ten = VlanId::new(10).expect("a VLAN");
    let [own, far] = [1, 2].map(|last| std::net::Ipv4Addr::new(192, 168, 7, last));
    let tagged = |vlan: u8, to, from, packet: &[u8]| {
        let whole = packet::build::ethernet(to, from, 0x0806, packet);
        [&whole[..12], &[0x81, 0, 0, vlan], &whole[12..]].concat()
    };
    let packet = packet::build::arp(1, (mac(1), own), (MacAddr::ZERO, far));
    let [ask, other] = [10, 20].map(|vlan| tagged(vlan, MacAddr::BROADCAST, mac(1), &packet));
    a.remotes().add_external((ten, mac(2)), ip(2));
    let known = ExternNeigh { address: far.into(), mac: mac(2), router: false };
    a.neighbours().add_external(ten, known);
    send(&mut a, &[other, ask]);
    let reply = packet::build::arp(2, (mac(2), far), (mac(1), own));
    assert_eq!(receive(&mut a, 1), [tagged(10, mac(1), mac(2), &reply)]);
    let info = a.neighbours().info().expect("it is on");
    assert_eq!((info.suppressed, info.local, a.has_answers()), (1, 2, false));
    let (entries, next) = a.neighbour_page(None, 2);
    assert_eq!(entries.iter().map(|it| it.vlan).collect::<Vec<_>>(), [Some(10); 2]);
    assert_eq!(a.neighbour_page(next, 2).0[0].vlan, Some(20));
    // A VLAN with another network knows none of what was in the one before.
    let vlan_vni = ["10:1011", "20:1020"].map(|pair| pair.parse().expect("a pair")).to_vec();
    a.set_networks(Networks::of(&Vxlan { vlan_vni, ..vxlan }));
    let info = a.neighbours().info().expect("it is on");
    assert_eq!((info.local, info.extern_learned), (1, 0));
}

#[test]
fn two_networks_at_one_address_get_their_own_frames_also_where_the_kernel_joins_them() {
    let mut addresses = Addresses::default();
    let mut of = |vni, end| {
        let vxlan = Vxlan { vni: Some(vni), ..tunnel(end, 14_800, &[3 - end]) };
        open(&mut addresses, &vxlan, AROUND, Present).expect("a loopback interface")
    };
    let [mut red, mut blue] = [100, 200].map(|vni| of(vni, 1));
    let [mut far_red, mut far_blue] = [100, 200].map(|vni| of(vni, 2));
    let long = |to| vec![frame(mac(to), mac(9), 1514); 100];
    send(&mut far_red, &long(1));
    send(&mut far_blue, &long(2));
    assert_eq!(receive(&mut red, 100), long(1));
    assert_eq!(receive(&mut blue, 100), long(2));
    // One message with datagrams of both, as of flows that have one source port.
    let (one, two) = (frame(mac(1), mac(9), 60), frame(mac(2), mac(9), 60));
    let datagram = |port: &VxlanPort, frame: &[u8]| {
        [&vxlan::header(port.inlet.networks.first())[..], frame].concat()
    };
    let joined = [datagram(&red, &one), datagram(&blue, &two)].concat().repeat(20);
    let to = SocketAddr::new(ip(1), 14_800).into();
    let message = Message { to: &to, bytes: &joined, segment: 68 };
    assert_eq!(udp::send(&far_red.senders[0], &[message]), Ok(1));
    assert!(!blue.pending());
    assert_eq!(receive(&mut red, 20), vec![one; 20]);
    assert!(blue.pending());
    let (doorbell, mut rung) = (Doorbell::new().expect("descriptors"), Vec::new());
    assert!(blue.watch(&doorbell.bell(5)));
    doorbell.poll(&mut rung);
    assert_eq!(rung, [5], "its own worker is woken");
    blue.unwatch(&doorbell.bell(5));
    assert_eq!(receive(&mut blue, 20), vec![two; 20]);
    assert!(!blue.pending() && receive(&mut red, 0).is_empty());
}

#[test]
fn vlans_of_a_trunk_travel_in_their_networks_and_others_not_at_all() {
    let map = |end: u8, pairs: [&str; 2]| {
        let vlan_vni = pairs.map(|pair| pair.parse().expect("a pair")).to_vec();
        let vxlan = Vxlan { vni: None, vlan_vni, ..tunnel(end, 14_802, &[3 - end]) };
        open(&mut Addresses::default(), &vxlan, AROUND, Present).expect("a loopback interface")
    };
    // The VNI says which VLAN a frame is of at each end.
    let (mut a, mut b) = (map(1, ["10:1010", "20:1020"]), map(2, ["11:1010", "20:1020"]));
    let tagged = |vlan: u8, len| {
        let whole = frame(mac(2), mac(1), len);
        [&whole[..12], &[0x81, 0, 0, vlan], &whole[12..]].concat()
    };
    let sent = send(&mut a, &[tagged(10, 60), tagged(20, 60), tagged(20, 1514)]);
    assert_eq!((sent.delivered.frames, sent.drops.total()), (3, 0));
    assert_eq!(receive(&mut b, 3), [tagged(11, 60), tagged(20, 60), tagged(20, 1514)]);
    let twice = [&tagged(10, 60)[..12], &[0x81, 0, 0, 10], &tagged(20, 60)[12..]].concat();
    let sent = send(&mut a, &[tagged(30, 60), frame(mac(2), mac(1), 60), twice]);
    let [network, nested] = [DropReason::VxlanVni, DropReason::NestedTag];
    assert_eq!((sent.drops.get(network), sent.drops.get(nested)), (2, 1));
    a.mtu = Some(1496);
    let sent = send(&mut a, &[tagged(10, 1510), tagged(10, 1511)]);
    assert_eq!((sent.delivered.frames, sent.drops.get(DropReason::TooLong)), (1, 1));
    assert_eq!(receive(&mut b, 1).len(), 1);
    // Stations are known in each VLAN, and in a changed one no more.
    assert_eq!(b.remotes().learned(), [(ip(1), 2)]);
    let networks = || Networks::of(&Vxlan { vni: Some(7), ..tunnel(2, 14_802, &[1]) });
    b.set_networks(networks());
    b.set_networks(networks());
    assert_eq!(b.remotes().learned(), [(ip(1), 0)]);
}

#[test]
fn a_flood_of_one_network_costs_the_other_nothing() {
    let mut addresses = Addresses::default();
    let mut of = |vni, end| {
        let vxlan = Vxlan { vni: Some(vni), ..tunnel(end, 14_801, &[3 - end]) };
        open(&mut addresses, &vxlan, AROUND, Present).expect("a loopback interface")
    };
    let [mut red, mut blue] = [100, 200].map(|vni| of(vni, 1));
    let mut far_blue = of(200, 2);
    // Nothing reads for the first network, whose queue overflows.
    let flood = [&vxlan::header(red.inlet.networks.first())[..], &[7; 1500]].concat();
    let host = UdpSocket::bind((ip(2), 0)).expect("loopback");
    (0..10_000).for_each(|_| drop(host.send_to(&flood, (ip(1), 14_801))));
    let frames = vec![frame(mac(2), mac(9), 1514); 100];
    send(&mut far_blue, &frames);
    assert_eq!(receive(&mut blue, 100), frames);
    // Nor does the one that goes take anything along.
    drop(red);
    send(&mut far_blue, &frames);
    assert_eq!(receive(&mut blue, 100), frames);
    red = of(100, 1);
    send(&mut far_blue, &frames);
    assert_eq!(receive(&mut blue, 100), frames);
    assert!(receive(&mut red, 0).is_empty());
}

#[test]
fn an_address_that_is_taken_or_not_there_is_refused_with_the_cure() {
    let _a = end(1, 14_793, &[2]);
    let refused = |vxlan: &Vxlan| {
        open(&mut Addresses::default(), vxlan, AROUND, Present).err().expect("refused")
    };
    let taken = refused(&tunnel(1, 14_793, &[2]));
    assert!(matches!(taken, VxlanError::InUse(_)), "{taken}");
    let said = format!("UDP port 14793 of {} is in use", ip(1));
    assert!(taken.to_string().contains(&said), "{taken}");
    let foreign = Vxlan { local: IpAddr::from([192, 0, 2, 1]), ..tunnel(1, 14_794, &[2]) };
    let missing = refused(&foreign);
    assert!(missing.to_string().contains("ip address add 192.0.2.1/"), "{missing}");
    let mut waits = open(&mut Addresses::default(), &foreign, AROUND, Later)
        .expect("the address may come later");
    let sent = send(&mut waits, &[frame(mac(2), mac(1), 60)]);
    assert_eq!(sent.drops.total(), 1, "and until then nothing is sent");
}
