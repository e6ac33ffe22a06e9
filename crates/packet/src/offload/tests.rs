//! Checksums and segments against the plainest way to compute them.

use super::*;
use proptest::prelude::*;

/// A frame with its network header at 14 and its transport header behind it.
fn run(ip: Ip, transport: Transport, payload: &[u8]) -> (Vec<u8>, usize) {
    let mut frame = vec![2; 12];
    let header = if transport == Transport::Tcp { 32 } else { 8 };
    match ip {
        Ip::V4 => {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend(u16::try_from(20 + header + payload.len()).unwrap_or(0).to_be_bytes());
            frame.extend([0xff, 0xfe, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        Ip::V6 => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64]);
            frame.extend([0xfd; 16]);
            frame.extend([0xfe; 16]);
        }
    }
    let l4 = frame.len();
    frame.extend([0x12, 0x34, 0x56, 0x78]);
    if transport == Transport::Tcp {
        frame.extend([0xff, 0xff, 0xff, 0xf0, 1, 2, 3, 4, 0x80, 0x99, 7, 7, 0, 0, 0, 0]);
        frame.extend([1; 12]);
    } else {
        frame.extend([0, 0, 0, 0]);
    }
    frame.extend(payload);
    (frame, l4)
}

fn header(gso: u8, size: u16, start: usize, offset: u16) -> [u8; VNET_LEN] {
    let mut header = [0; VNET_LEN];
    (header[0], header[1]) = (vnet::NEEDS_CSUM, gso);
    header[vnet::GSO_SIZE].copy_from_slice(&size.to_ne_bytes());
    let start = u16::try_from(start).unwrap();
    header[vnet::CSUM_START].copy_from_slice(&start.to_ne_bytes());
    header[vnet::CSUM_OFFSET].copy_from_slice(&offset.to_ne_bytes());
    header
}

/// The checksum over a transport header and what is behind it, in the plainest way.
fn plain_checksum(ip: Ip, transport: Transport, frame: &[u8], l4: usize) -> u16 {
    let addresses = if ip == Ip::V4 { &frame[26..34] } else { &frame[22..54] };
    let protocol = if transport == Transport::Tcp { 6 } else { 17 };
    let len = u16::try_from(frame.len() - l4).unwrap().to_be_bytes();
    let mut bytes = [addresses, &[0, protocol], &len, &frame[l4..]].concat();
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let mut total: u32 = words.sum();
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    !u16::try_from(total).unwrap()
}

#[test]
fn a_partial_checksum_lies_in_its_frame() {
    let partial = PendingOffload::partial(34, 16, 54).unwrap();
    assert_eq!(partial.bytes(), header(0, 0, 34, 16));
    for (start, offset) in [(13, 16), (34, 19), (54, 0), (usize::MAX / 2, 1)] {
        assert_eq!(PendingOffload::partial(start, offset, 54), Err(OffloadError));
    }
}

fn finish(header: [u8; VNET_LEN], mut frame: Vec<u8>) -> Result<Vec<Vec<u8>>, OffloadError> {
    let Some(left) = PendingOffload::read(header, frame.len())? else { return Ok(vec![frame]) };
    let mut work = Segmenter::new(left, &mut frame)?;
    let (longest, mut frames) = (work.longest(&frame), Vec::new());
    while let Some(pieces) = work.next(&mut frame) {
        frames.push(pieces.concat());
    }
    assert!(frames.iter().all(|frame| frame.len() <= longest));
    Ok(frames)
}

#[test]
fn a_finished_frame_is_given_as_it_is() {
    assert_eq!(finish([0; VNET_LEN], vec![7; 60]), Ok(vec![vec![7; 60]]));
}

#[test]
fn a_checksum_that_was_begun_is_completed() {
    for (ip, transport, offset) in
        [(Ip::V4, Transport::Tcp, 16), (Ip::V6, Transport::Udp, 6), (Ip::V4, Transport::Udp, 6)]
    {
        for payload in [&b""[..], b"odd", b"even"] {
            let (mut frame, l4) = run(ip, transport, payload);
            let at = l4 + usize::from(offset);
            // What the sender leaves in the field: the pseudo-header's part of the sum.
            let partial = !plain_checksum(ip, transport, &frame, l4);
            let mut rest = frame[l4..].to_vec();
            rest.resize(rest.len().next_multiple_of(2), 0);
            let words = rest.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
            let mut pseudo = u32::from(partial) + words.map(|word| 0xffff - word).sum::<u32>();
            while pseudo > 0xffff {
                pseudo = (pseudo & 0xffff) + (pseudo >> 16);
            }
            put(&mut frame, at, pseudo as usize);
            let frames = finish(header(0, 0, l4, offset), frame).unwrap();
            assert_eq!(plain_checksum(ip, transport, &frames[0], l4), 0);
        }
    }
}

#[test]
fn a_run_becomes_segments_that_hold_it() {
    let payload: Vec<u8> = (0..10_000u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
    for (ip, gso) in [(Ip::V4, vnet::GSO_TCPV4 | vnet::GSO_ECN), (Ip::V6, vnet::GSO_TCPV6)] {
        let (frame, l4) = run(ip, Transport::Tcp, &payload);
        let frames = finish(header(gso, 1448, l4, 16), frame).unwrap();
        assert_eq!(frames.len(), 7);
        let mut seq = 0xffff_fff0u32;
        for (i, frame) in frames.iter().enumerate() {
            assert_eq!(plain_checksum(ip, Transport::Tcp, frame, l4), 0);
            assert_eq!(frame[l4 + 4..l4 + 8], seq.to_be_bytes());
            seq = seq.wrapping_add(1448);
            let flags = 0x90 & if i == 0 { 0xff } else { !CWR };
            assert_eq!(frame[l4 + 13], flags | if i == 6 { 0x09 } else { 0 });
            if ip == Ip::V4 {
                assert_eq!(usize::from(big(&frame[16..18])), frame.len() - 14);
                assert_eq!(big(&frame[18..20]), 0xfffeu16.wrapping_add(u16::try_from(i).unwrap()));
                assert_eq!(Sum::of(&frame[14..34]).fold(), 0xffff);
            } else {
                assert_eq!(usize::from(big(&frame[18..20])), frame.len() - 54);
            }
        }
        let joined: Vec<u8> = frames.iter().flat_map(|frame| frame[l4 + 32..].to_vec()).collect();
        assert_eq!(joined, payload);
    }
}

#[test]
fn a_run_of_datagrams_becomes_datagrams() {
    let (frame, l4) = run(Ip::V4, Transport::Udp, &[9; 2500]);
    let frames = finish(header(vnet::GSO_UDP_L4, 1000, l4, 6), frame).unwrap();
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [1042, 1042, 542]);
    for frame in &frames {
        assert_eq!(usize::from(big(&frame[l4 + 4..l4 + 6])), frame.len() - l4);
        assert_eq!(plain_checksum(Ip::V4, Transport::Udp, frame, l4), 0);
    }
}

#[test]
fn what_we_do_not_know_is_refused() {
    let (frame, l4) = run(Ip::V4, Transport::Tcp, &[0; 3000]);
    for bad in [header(3, 1000, l4, 16), header(1, 0, l4, 16), header(1, 1000, 4000, 16)] {
        assert_eq!(finish(bad, frame.clone()), Err(OffloadError));
    }
    assert_eq!(finish(header(4, 1000, l4, 16), frame.clone()), Err(OffloadError), "it is no IPv6");
    assert_eq!(finish(header(0, 0, 14, 9999), frame), Err(OffloadError));
}

#[test]
fn a_checksum_in_front_of_the_transport_header_is_refused() {
    let (frame, l4) = run(Ip::V4, Transport::Udp, &[9; 40]);
    let tagged = |count: usize| {
        let mut tagged = frame.clone();
        tagged.splice(12..12, [0x81, 0, 0, 0].repeat(count));
        tagged
    };
    for tags in 0..4 {
        let l4 = l4 + 4 * tags;
        for start in 14..l4 {
            assert_eq!(finish(header(0, 0, start, 0), tagged(tags)), Err(OffloadError), "{start}");
        }
        assert!(finish(header(0, 0, l4, 6), tagged(tags)).is_ok());
    }
    let (v6, l4) = run(Ip::V6, Transport::Udp, &[9; 40]);
    assert_eq!(finish(header(0, 0, l4 - 1, 6), v6), Err(OffloadError));
    let mut options = frame;
    options[14] = 0x46;
    assert_eq!(finish(header(0, 0, l4 - 20, 6), options), Err(OffloadError), "IP options");
}

proptest! {
    /// Finishing a frame never changes its Ethernet header and tags.
    #[test]
    fn a_finished_frame_keeps_its_addresses_tags_and_type(
        mut header in any::<[u8; VNET_LEN]>(),
        gso in prop_oneof![Just(0u8), Just(1), Just(4), Just(5), Just(0x81)],
        tags in proptest::collection::vec((any::<bool>(), any::<[u8; 2]>()), 0..5),
        ethertype in prop_oneof![Just([8, 0]), Just([0x86, 0xdd]), Just([8, 6])],
        rest in proptest::collection::vec(any::<u8>(), 0..120),
        start in 0u16..90,
        offset in 0u16..20,
        plausible in any::<bool>(),
    ) {
        let mut frame = vec![2; 12];
        for (service, tci) in tags {
            frame.extend(if service { [0x88, 0xa8] } else { [0x81, 0] });
            frame.extend(tci);
        }
        frame.extend(ethertype);
        let end = frame.len();
        frame.extend(rest);
        (header[0], header[1]) = (vnet::NEEDS_CSUM, gso);
        header[vnet::CSUM_START].copy_from_slice(&start.to_ne_bytes());
        header[vnet::CSUM_OFFSET].copy_from_slice(&offset.to_ne_bytes());
        header[vnet::GSO_SIZE].copy_from_slice(&40u16.to_ne_bytes());
        if let (true, Some(first)) = (plausible, frame.get_mut(end)) {
            *first = 0x45;
        }
        for finished in finish(header, frame.clone()).unwrap_or_default() {
            prop_assert_eq!(&finished[..end], &frame[..end]);
        }
    }

    /// What is not unfinished need not be given to be finished.
    #[test]
    fn a_frame_of_which_nothing_is_missing_stays_as_it_is(
        mut header in any::<[u8; VNET_LEN]>(),
        frame in proptest::collection::vec(any::<u8>(), 14..90),
        unfinished in prop_oneof![Just((0, 0)), Just((1, 0)), Just((0, 1)), Just((3, 0x81))],
    ) {
        (header[0], header[1]) = (header[0] & !1 | unfinished.0, unfinished.1);
        prop_assert_eq!(needs_offload(&header), unfinished != (0, 0));
        if !needs_offload(&header) {
            prop_assert_eq!(finish(header, frame.clone()), Ok(vec![frame]));
        }
    }

    /// Whatever the header and the frame say, nothing is out of bounds and it ends.
    #[test]
    fn nonsense_harms_nobody(
        header in any::<[u8; VNET_LEN]>(),
        gso in 0u8..6,
        head in proptest::collection::vec(any::<u8>(), 14..90),
        ethertype in prop_oneof![Just([8, 0]), Just([0x86, 0xdd]), Just([0x81, 0])],
        start in 0u16..100,
    ) {
        let (mut header, mut frame) = (header, head);
        (header[0], header[1]) = (1, gso);
        header[vnet::CSUM_START].copy_from_slice(&start.to_ne_bytes());
        frame[12..14].copy_from_slice(&ethertype);
        if let Ok(frames) = finish(header, frame.clone()) {
            prop_assert!(frames.len() <= frame.len());
        }
    }
}
