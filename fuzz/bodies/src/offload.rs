//! What a sender leaves to its card, finished in software: any bytes under any virtio-net header,
//! and the tag that the switch inserts or strips in between.

use packet::EtherType;
use packet::offload::partial::PartialChecksum;
use packet::offload::{PendingOffload, SEGMENTS_MAX, Segmenter, VNET_LEN};

use crate::Input;

/// Room for a tag is left in the longest frame.
const FRAME_MAX: usize = 65_531;
const ADDRESSES: usize = 12;
const TYPE: usize = 2;
const TAG: usize = 4;
/// Runs of UDP datagrams, in a virtio-net header.
const UDP_RUN: u8 = 5;

/// Finished frames have the addresses and tags of the one that was begun, and right checksums;
/// together they hold its payload; and a tag more or less changes nothing else.
pub fn frame_offload(data: &[u8]) {
    let mut input = Input(data);
    let (change, header): (u8, [u8; VNET_LEN]) = (input.u8(), input.bytes());
    let frame = &input.0[..input.0.len().min(FRAME_MAX)];
    if frame.len() < ADDRESSES + TYPE {
        return;
    }
    complete_partial(frame);
    let Ok(Some(left)) = PendingOffload::read(header, frame.len()) else { return };
    assert_eq!(PendingOffload::read(left.bytes(), frame.len()), Ok(Some(left)));
    let finished = finish(left, frame);
    assert!(left.is_behind(frame) || finished.is_none());
    let Some((growth, other)) = retagged(frame, change) else { return };
    if left.is_behind(frame) {
        let moved = left.moved(growth);
        assert!(moved.is_behind(&other), "a tag hides no header");
        assert_eq!(PendingOffload::pass_on(left.bytes(), frame, growth), moved.bytes());
        if let (Some(before), Some(after)) = (finished, finish(moved, &other)) {
            let before = before.iter().map(|frame| retagged(frame, change).expect("as before").1);
            assert!(before.eq(after));
        }
    }
}

/// The bytes that a frame has more with a tag more, or a tag less; and the frame.
fn retagged(frame: &[u8], change: u8) -> Option<(isize, Vec<u8>)> {
    let (addresses, rest) = frame.split_at(ADDRESSES);
    match change % 3 {
        0 => None,
        1 => Some((4, [addresses, &[0x81, 0, 0, 7], rest].concat())),
        _ if network(frame) == ADDRESSES + TYPE || rest.len() < TAG + TYPE => None,
        _ => Some((-4, [addresses, &rest[TAG..]].concat())),
    }
}

/// Where the network header begins, behind all tags. It may lie behind the frame.
fn network(frame: &[u8]) -> usize {
    let mut at = ADDRESSES;
    let is_tag = |&bytes: &[u8; 2]| EtherType(u16::from_be_bytes(bytes)).is_tag();
    while frame[at..].first_chunk().is_some_and(is_tag) {
        at = (at + TAG).min(frame.len());
    }
    at + TYPE
}

fn finish(left: PendingOffload, frame: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut work, network) = (frame.to_vec(), network(frame).min(frame.len()));
    let mut segmenter = Segmenter::new(left, &mut work).ok()?;
    let longest = segmenter.longest(&work);
    let (mut payload, mut finished) = (Vec::new(), Vec::new());
    while let Some([head, piece]) = segmenter.next(&mut work) {
        assert_eq!(head[..network], frame[..network], "addresses and tags");
        assert!(head.len() + piece.len() <= longest);
        payload.extend_from_slice(piece);
        finished.push([head, piece].concat());
        check_checksum(left, network, finished.last().expect("just added"));
    }
    assert!(frame.ends_with(&payload));
    let heads: usize = finished.iter().map(Vec::len).sum::<usize>() - payload.len();
    assert_eq!(heads, finished.len() * (frame.len() - payload.len()));
    assert!((1..=left.segments(frame.len()).min(SEGMENTS_MAX)).contains(&finished.len()));
    assert!(left.longest(frame.len()) <= longest);
    Some(finished)
}

/// The checksums of a segment, added up in the plainest way.
fn check_checksum(left: PendingOffload, network: usize, segment: &[u8]) {
    let [_, kind, .., start_low, start_high, _, _] = left.bytes();
    let transport = usize::from(u16::from_ne_bytes([start_low, start_high]));
    let is_run = kind & 0x7f != 0;
    if !is_run {
        return;
    }
    let protocol = if kind & 0x7f == UDP_RUN { 17 } else { 6 };
    let is_v4 = segment[network - TYPE..network] == [8, 0];
    let addresses = if is_v4 {
        assert_eq!(sum(&[&segment[network..transport]]), 0xffff);
        &segment[network + 12..network + 20]
    } else {
        &segment[network + 8..network + 40]
    };
    let len = u16::try_from(segment.len() - transport).expect("short").to_be_bytes();
    assert_eq!(sum(&[addresses, &[0, protocol], &len, &segment[transport..]]), 0xffff);
}

fn sum(pieces: &[&[u8]]) -> u32 {
    let word = |word: &[u8]| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
    let mut total: u32 = pieces.iter().flat_map(|piece| piece.chunks(2)).map(word).sum();
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total
}

/// A checksum that no header announces lies behind the headers, and is the same however the frame
/// is cut.
fn complete_partial(frame: &[u8]) {
    let Some(whole) = PartialChecksum::find(frame) else { return };
    let mut whole = whole;
    whole.add(frame);
    if let Some((at, _)) = whole.checksum() {
        assert!(at >= network(frame) && at + 2 <= frame.len());
    }
    for cut in [at_most(frame, 64), at_most(frame, 77)] {
        let Some(mut other) = PartialChecksum::find(cut) else { continue };
        other.add(cut);
        frame[cut.len()..].chunks(13).for_each(|piece| other.add(piece));
        assert_eq!(other.checksum(), whole.checksum());
    }
}

fn at_most(frame: &[u8], bytes: usize) -> &[u8] {
    &frame[..frame.len().min(bytes)]
}

/// Inputs that get far: runs of TCP segments and UDP datagrams over both IPs, with and without
/// tags; a partial checksum with and without its header.
#[must_use]
pub fn offload_samples() -> Vec<Vec<u8>> {
    let v4 = [&[8, 0, 0x45, 0, 0, 68, 1, 2, 0, 0, 64, 6, 0, 0][..], &[10, 0, 0, 1, 10, 0, 0, 2]];
    let v6 = [&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 48, 6, 64][..], &[0xfd; 32]];
    let tcp = [&[4, 0, 0, 80, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 0x99, 1, 1, 0, 0, 0, 0][..], &[7; 28]];
    let udp = [&[4, 0, 0, 80, 0, 48, 0, 0][..], &[7; 40]];
    let sample = |change: u8, kind: u8, offset: u8, tag: &[u8], ip: [&[u8]; 2], l4: [&[u8]; 2]| {
        let (ip, addresses) = (ip.concat(), [2; ADDRESSES]);
        let start = u8::try_from(ADDRESSES + tag.len() + ip.len()).expect("short");
        let header = [1, kind, 0, 0, 9, 0, start, 0, offset, 0];
        [&[change][..], &header, &addresses, tag, &ip, &l4.concat()].concat()
    };
    vec![
        sample(0, 1, 16, &[], v4, tcp),
        sample(1, 0x84, 16, &[0x81, 0, 0, 5], v6, tcp),
        sample(2, 5, 6, &[0x88, 0xa8, 0, 5], v4, udp),
        sample(2, 0, 6, &[0x81, 0, 0, 5], v6, udp),
        sample(1, 0, 16, &[], v4, tcp),
    ]
}
