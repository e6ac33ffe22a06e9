//! What a host may say of multicast groups.

use std::net::IpAddr;

use packet::checksum::{Sum, checksum};
use packet::mcast::{self, GroupAddr, Message};
use packet::{MacAddr, build};

use crate::Input;

/// Messages of an input. More of them only take longer.
const MESSAGES: usize = 64;

/// Whatever hosts send, each group that is read is one, a report has no more records than bytes, a
/// frame that is read is known by its first bytes, and a query of the switch's own is read back.
pub fn mcast_message(data: &[u8]) {
    run(data);
}

/// Returns how many messages were read, and how many malformed.
fn run(data: &[u8]) -> [u64; 2] {
    let mut input = Input(data);
    let mut counts = [0; 2];
    for _ in 0..MESSAGES {
        if input.is_empty() {
            break;
        }
        let frame = frame(&mut input);
        match mcast::read(&frame) {
            Ok(None) => {}
            Ok(Some(message)) => {
                assert!(mcast::is_control(&frame), "known by its first bytes");
                check(message, frame.len());
                counts[0] += 1;
            }
            Err(_) => counts[1] += 1,
        }
    }
    counts
}

/// A frame with noise behind headers that are often right.
fn frame(input: &mut Input<'_>) -> Vec<u8> {
    let len = [0, 7, 8, 12, 24, 28, 40, 64][input.below(8)];
    let mut message: Vec<u8> = (0..len).map(|_| input.u8()).collect();
    let is_ipv6 = input.below(2) == 0;
    let kinds: [u8; 8] = match is_ipv6 {
        true => [130, 131, 132, 143, 143, 1, 58, 0x20],
        false => [0x11, 0x12, 0x16, 0x17, 0x22, 0x22, 0x20, 0],
    };
    if let Some(first) = message.first_mut() {
        *first = kinds[input.below(8)];
    }
    let group = [input.u8() | 0xe0, input.u8(), 1, 1];
    let has_group = input.below(4) > 0;
    let packet = match is_ipv6 {
        true => ipv6(&mut message, group, has_group, input.below(4) > 0),
        false => ipv4(&mut message, group, has_group, input.below(4) > 0),
    };
    let ethertype = if is_ipv6 { 0x86dd } else { 0x0800 };
    let [a, b, c, d] = group;
    let dst = if is_ipv6 { [0x33, 0x33, a, b, c, d] } else { [1, 0, 0x5e, b & 0x7f, c, d] };
    let mut frame = build::ethernet(dst, [2, 0, 0, 0, 0, 1], ethertype, &packet);
    if input.below(4) == 0 && !frame.is_empty() {
        let at = usize::from(input.u16()) % frame.len();
        frame[at] = input.u8();
    }
    frame.truncate(frame.len().saturating_sub([0, 0, 0, 1, 20][input.below(5)]));
    frame
}

fn ipv4(message: &mut [u8], group: [u8; 4], has_group: bool, is_right: bool) -> Vec<u8> {
    if has_group && message.len() >= 8 {
        message[4..8].copy_from_slice(&group);
    }
    if is_right && message.len() >= 4 {
        message[2..4].fill(0);
        let sum = checksum(message).to_be_bytes();
        message[2..4].copy_from_slice(&sum);
    }
    build::ipv4(2, [10, 0, 0, 1].into(), group.into(), message)
}

fn ipv6(message: &mut [u8], group: [u8; 4], has_group: bool, is_right: bool) -> Vec<u8> {
    let source = [&[0xfe, 0x80][..], &[0; 13], &[1]].concat();
    let dst = [&[0xff, 0x15][..], &[0; 10], &group].concat();
    if has_group && message.len() >= 24 {
        message[8..24].copy_from_slice(&dst);
    }
    let length = u16::try_from(message.len()).expect("short");
    let addresses = [source, dst].concat();
    if is_right && message.len() >= 4 {
        message[2..4].fill(0);
        let sum = Sum::pseudo_header(&addresses, 58, length).and(Sum::of(message));
        message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    }
    let [high, low] = (length + 8).to_be_bytes();
    let head = [0x60, 0, 0, 0, high, low, 0, 1];
    [&head[..], &addresses, &[58, 0, 5, 2, 0, 0, 1, 0], message].concat()
}

fn check(message: Message<'_>, len: usize) {
    match message {
        Message::Query(query) => {
            let Some(group) = query.group else { return };
            check_group(group);
            let own = mcast::query(MacAddr::new([2, 0, 0, 0, 0, 2]), query.source, Some(group));
            let Ok(Some(Message::Query(read))) = mcast::read(&own) else { panic!("a query") };
            assert_eq!((read.group, read.source), (query.group, query.source));
        }
        Message::Report(group) | Message::Leave(group) => check_group(group),
        Message::Records(records) => {
            let all: Vec<_> = records.collect();
            assert!(all.len() * 8 <= len, "each record has bytes of its own");
            all.iter().for_each(|record| check_group(record.group));
        }
        Message::Hello => {}
    }
}

fn check_group(group: IpAddr) {
    let mac = mcast::group_mac(group).expect("a group");
    assert!(mac.is_multicast() && !mac.is_broadcast() && mac.reserved_group().is_none());
    // An operator may name it, unless its frames reach every host.
    let named = group.to_string().parse::<GroupAddr>();
    assert_eq!(named.is_ok(), !mcast::is_for_all(mac), "{group}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_read_and_found_malformed() {
        let noise = crate::noise();
        let parts = noise.chunks(900).map(run);
        let [read, malformed] = parts.fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
        assert!(read > 200 && malformed > 200, "{read} {malformed}");
    }
}
