//! Frames in, messages of IPFIX out, read by the templates that are in them.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;
use packet::build::{ethernet, ipv4};

/// A collector, and an exporter that reports to it.
fn pair(more: &str) -> (UdpSocket, Exporter) {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let address = collector.local_addr().unwrap();
    let exporter = Exporter::new(&format!("collector = \"{address}\"\n{more}")).unwrap();
    (collector, exporter)
}

/// Fields of a record by their numbers.
type Fields = BTreeMap<u16, u128>;

/// Reads a message as any collector would: by its templates.
fn read(message: &[u8]) -> (u32, Vec<Fields>) {
    assert_eq!((u16_at(message, 0), usize::from(u16_at(message, 2))), (10, message.len()));
    let sequence = u32::from_be_bytes(message[8..12].try_into().unwrap());
    let (mut templates, mut records, mut at) = (HashMap::new(), Vec::new(), 16);
    while at < message.len() {
        let (id, len) = (u16_at(message, at), usize::from(u16_at(message, at + 2)));
        let mut rest = &message[at + 4..at + len];
        while !rest.is_empty() {
            if id == 2 {
                let (template, count) = (u16_at(rest, 0), usize::from(u16_at(rest, 2)));
                let field =
                    |i: usize| (u16_at(rest, 4 + 4 * i), usize::from(u16_at(rest, 6 + 4 * i)));
                templates.insert(template, (0..count).map(field).collect::<Vec<_>>());
                rest = &rest[4 + 4 * count..];
                continue;
            }
            let mut fields = Fields::new();
            for (field, len) in &templates[&id] {
                let (value, more) = rest.split_at(*len);
                let add = |sum: u128, byte: &u8| sum << 8 | u128::from(*byte);
                fields.insert(*field, value.iter().fold(0, add));
                rest = more;
            }
            records.push(fields);
        }
        at += len;
    }
    (sequence, records)
}

fn receive(collector: &UdpSocket) -> (u32, Vec<Fields>) {
    let mut buffer = [0; 2000];
    let len = collector.recv(&mut buffer).unwrap();
    assert!(len <= 1400);
    read(&buffer[..len])
}

fn udp(sport: u16, len: usize) -> Vec<u8> {
    let payload = [&sport.to_be_bytes()[..], &53u16.to_be_bytes(), &vec![0; len]].concat();
    let packet = ipv4(17, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), &payload);
    let mut frame = ethernet([2; 6], [4; 6], 0x0800, &packet);
    frame.resize(frame.len().max(60), 0);
    frame
}

fn come(exporter: &mut Exporter, frame: &[u8]) {
    let mut buffer = frame.to_vec();
    let action = exporter.frame(&mut Frame::new(&mut buffer), &mut Generated::default());
    assert_eq!((action, &buffer[..]), (Action::Next, frame));
}

fn pass_time(exporter: &mut Exporter, seconds: u64) {
    exporter.now += Duration::from_secs(seconds);
    (0..64).for_each(|_| exporter.look());
    exporter.reports.send(exporter.now);
}

#[test]
fn test_packets_are_as_long_as_they_say_and_no_longer_than_they_are() {
    let mut frame = udp(7000, 8);
    let mut long = |said: [u8; 2]| {
        frame[16..18].copy_from_slice(&said);
        length(&Frame::new(&mut frame.clone()))
    };
    assert_eq!([[0, 32], [0xff, 0xff], [0, 0]].map(&mut long), [32, 46, 46]);
    let mut ipv6 = ethernet([2; 6], [4; 6], 0x86dd, &[0; 60]);
    ipv6[18..20].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(length(&Frame::new(&mut ipv6)), 60);
}

#[test]
fn test_a_silent_flow_is_reported_with_what_it_was() {
    let (collector, mut exporter) = pair("");
    (0..3).for_each(|_| come(&mut exporter, &udp(7000, 8)));
    come(&mut exporter, &udp(7001, 100));
    come(&mut exporter, &ethernet([255; 6], [4; 6], 0x0806, &[0; 46]));
    pass_time(&mut exporter, 14);
    assert_eq!((exporter.flows.len(), exporter.reports.records), (2, 0));
    pass_time(&mut exporter, 1);
    let (sequence, mut records) = receive(&collector);
    records.sort();
    assert_eq!((sequence, records.len(), exporter.flows.len()), (0, 2, 0));
    let small = records.iter().find(|fields| fields[&7] == 7000).unwrap();
    assert_eq!((small[&2], small[&1]), (3, 3 * 32), "without padding");
    assert_eq!((small[&8], small[&12]), (0x0a00_0001, 0x0a00_0002));
    assert_eq!((small[&11], small[&4], small[&136]), (53, 17, 1));
    assert_eq!(small[&152], small[&153]);
    assert_eq!(exporter.counts()[1].1, 1, "an ARP packet");
}

#[test]
fn test_a_flow_that_goes_on_is_reported_from_time_to_time() {
    let (collector, mut exporter) = pair("idle_s = 10\nactive_s = 20");
    for _ in 0..5 {
        come(&mut exporter, &udp(7000, 8));
        pass_time(&mut exporter, 5);
    }
    let (_, records) = receive(&collector);
    assert_eq!((records[0][&136], records[0][&2]), (2, 4), "it goes on");
    assert_eq!(records[0][&153] - records[0][&152], 15_000);
    exporter.finish();
    let (sequence, records) = receive(&collector);
    assert_eq!((sequence, records[0][&136], records[0][&2]), (1, 4, 1), "the end, the rest");
}

#[test]
fn test_many_flows_make_many_messages_and_both_kinds_of_addresses() {
    let (collector, mut exporter) = pair("flows = 40");
    (0..50).for_each(|port| come(&mut exporter, &udp(port, 8)));
    assert_eq!(exporter.counts()[2].1, 10, "without room");
    pass_time(&mut exporter, 15);
    let v6 = [&[0x60, 0, 0, 0, 0, 8, 17, 64][..], &[0xfd; 16], &[0xfe; 16], &[0, 9, 0, 8]].concat();
    come(&mut exporter, &ethernet([2; 6], [4; 6], 0x86dd, &[v6, vec![0; 4]].concat()));
    come(&mut exporter, &udp(9, 8));
    exporter.finish();
    let (mut all, mut sequence) = (Vec::new(), 0);
    while all.len() < 42 {
        let (number, records) = receive(&collector);
        assert_eq!(number, sequence, "as many as were sent before");
        sequence += u32::try_from(records.len()).unwrap();
        all.extend(records);
    }
    let long = all.iter().find(|fields| fields.contains_key(&27)).unwrap();
    assert_eq!((long[&1], long[&7], long[&28]), (48, 9, u128::from_be_bytes([0xfe; 16])));
}

#[test]
fn test_nonsense_is_refused() {
    for (text, said) in [
        ("", "collector"),
        ("collector = \"here\"", "line 1"),
        ("collector = \"127.0.0.1:1\"\nidle_s = 0", "line 2"),
        ("collector = \"127.0.0.1:1\"\nidle = 9", "unknown key"),
    ] {
        let error = format!("{:#}", Exporter::new(text).err().expect(text));
        assert!(error.contains(said), "{error}");
    }
}

proptest! {
    #[test]
    fn test_any_bytes_are_counted_somewhere(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let (_collector, mut exporter) = pair("");
        come(&mut exporter, &bytes);
        let mut packet = udp(1, 60);
        packet.truncate(bytes.len());
        packet.iter_mut().zip(&bytes).skip(20).for_each(|(to, from)| *to = *from);
        come(&mut exporter, &packet);
        prop_assert_eq!(exporter.packets + exporter.other, 2);
    }
}
