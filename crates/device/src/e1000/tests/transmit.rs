//! Frames out of descriptors.

use packet::offload::{PendingOffload, Segmenter};

use super::*;

/// An IPv4 or IPv6 header and a TCP header, as Linux hands them to this device: of the fields that
/// the device fills in, none is right.
fn tcp(v6: bool, payload: usize) -> (Vec<u8>, usize) {
    let mut bytes = frame(MAC, if v6 { 0x86dd } else { 0x0800 }, 14);
    if v6 {
        bytes.extend([0x60, 0, 0, 0, 0, 0, 6, 64]);
        bytes.extend([[0xfd; 16], [0xfe; 16]].concat());
    } else {
        bytes.extend([0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    let l4 = bytes.len();
    bytes.extend([0, 80, 0, 81, 0, 0, 1, 0, 0, 0, 0, 9, 0x50, 0x19, 1, 0, 0, 0, 0, 0]);
    bytes.extend((0..251).cycle().take(payload));
    (bytes, l4)
}

/// A context descriptor (3.3.6).
#[derive(Clone, Copy)]
struct Fields {
    ip: (u64, u64, u64),
    transport: (u64, u64, u64),
    payload_len: u64,
    header_len: u64,
    mss: u64,
    /// TUCMD.
    command: u64,
}

impl Fields {
    /// The context of a TCP segment.
    fn tcp(v6: bool, l4: usize, payload: usize, mss: u64) -> Self {
        let l4 = l4 as u64;
        Self {
            ip: (14, if v6 { 0 } else { 24 }, if v6 { 0 } else { l4 - 1 }),
            transport: (l4, l4 + 16, 0),
            payload_len: payload as u64,
            header_len: l4 + 20,
            mss,
            command: if v6 { 1 } else { 3 } | u64::from(mss > 0) << 2,
        }
    }

    fn words(self) -> [u64; 2] {
        let three = |(start, at, end): (u64, u64, u64)| start | at << 8 | end << 16;
        let first = three(self.ip) | three(self.transport) << 32;
        let second = self.payload_len | self.command << 24 | DEXT | self.header_len << 40;
        [first, second | self.mss << 48]
    }
}

const IXSM: u64 = 1 << 40;
const TXSM: u64 = 2 << 40;

/// Sends a frame with this context and these options in its data descriptor.
fn send_with(driver: &mut Driver, fields: Fields, bytes: &[u8], bits: u64) -> Vec<Out> {
    driver.put(BUFFERS, bytes);
    driver.give(&[fields.words(), [BUFFERS, bytes.len() as u64 | DATA | EOP | RS | bits]]);
    driver.run()
}

/// The frames on a wire.
fn finished(out: &Out) -> Vec<Vec<u8>> {
    let mut bytes = out.bytes.clone();
    let Some(left) = PendingOffload::read(out.left, bytes.len()).expect("sound") else {
        return vec![bytes];
    };
    let mut segmenter = Segmenter::new(left, &mut bytes).expect("finishable");
    let mut frames = Vec::new();
    while let Some(pieces) = segmenter.next(&mut bytes) {
        frames.push(pieces.concat());
    }
    frames
}

/// Whether the checksums of a frame are right, and its lengths.
fn is_right(bytes: &[u8], v6: bool, l4: usize) -> bool {
    use packet::checksum::{Sum, checksum};
    let l4_len = u16::try_from(bytes.len() - l4).expect("short");
    let (addresses, length, header) = if v6 {
        (22..54, u16::from_be_bytes([bytes[18], bytes[19]]), 0)
    } else {
        (26..34, u16::from_be_bytes([bytes[16], bytes[17]]) - 20, checksum(&bytes[14..34]))
    };
    let pseudo = Sum::pseudo_header(&bytes[addresses], 6, l4_len);
    length == l4_len && header == 0 && pseudo.and(Sum::of(&bytes[l4..])).fold() == 0xffff
}

/// 3.3.3 and 3.4: a legacy descriptor, its write-back, TDH and the causes.
#[test]
fn a_legacy_frame_is_sent_and_reported() {
    let mut driver = Driver::new();
    let bytes = frame(MAC, 0x88b5, 300);
    driver.put(BUFFERS, &bytes);
    driver.give(&[[BUFFERS, 300 | EOP | RS]]);
    assert_eq!(driver.run(), [Out { bytes, left: [0; 10] }]);
    assert_eq!(driver.word(TX_RING, 0), 300 | EOP | RS | DD);
    assert_eq!((driver.get(TDH), driver.get(ICR)), (1, cause::TXDW | cause::TXQE));
    // Without RS nothing is written back.
    driver.give(&[[BUFFERS, 60 | EOP]]);
    assert_eq!(driver.run().len(), 1);
    assert_eq!((driver.word(TX_RING, 1), driver.get(ICR)), (60 | EOP, cause::TXQE));
}

/// 3.3.1: a frame in several buffers, one of them empty and one across a border of the guest's
/// memory. It ends with EOP, whatever TDT is moved to before.
#[test]
fn a_frame_is_what_its_descriptors_have_up_to_eop() {
    let mut driver = Driver::new();
    let bytes = frame(MAC, 0x88b5, 500);
    driver.put(BUFFERS, &bytes[..7]);
    driver.put(BORDER - 100, &bytes[7..307]);
    driver.put(BUFFERS + 1000, &bytes[307..]);
    driver.give(&[[BUFFERS, 7 | RS], [0, 0], [BORDER - 100, 300 | DATA]]);
    assert_eq!(driver.run(), []);
    assert_eq!((driver.get(TDH), driver.word(TX_RING, 0)), (0, 7 | RS), "it waits for the rest");
    driver.give(&[[BUFFERS + 1000, 193 | EOP | RS]]);
    assert_eq!(driver.run()[0].bytes, bytes);
    assert_eq!((driver.get(TDH), driver.word(TX_RING, 0)), (4, 7 | RS | DD));
}

/// 3.4: the ring is round.
#[test]
fn many_frames_go_round_the_ring() {
    let mut driver = Driver::new();
    for round in 0..5u8 {
        let bytes = [&frame(MAC, 0x88b5, 60)[..], &[round]].concat();
        driver.put(BUFFERS, &bytes);
        driver.give(&[[BUFFERS, 61 | EOP | RS]; 11]);
        assert_eq!(driver.run(), vec![Out { bytes, left: [0; 10] }; 11]);
    }
    assert_eq!((driver.get(TDH), driver.get(GPTC)), (55 % SLOTS, 55));
}

/// The longest frame is an IP packet, an Ethernet header and one tag. A second tag is too much.
#[test]
fn a_tag_on_the_longest_run_drops_it() {
    let mut driver = Driver::new();
    driver.set(CTRL, ctrl::VME);
    let (bytes, l4) = tcp(false, 65_495);
    let tagged = [&bytes[..12], &[0x81, 0, 0, 5], &bytes[12..]].concat();
    let mut fields = Fields::tcp(false, l4 + 4, 65_495, 1460);
    fields.ip = (18, 28, 37);
    driver.put(BUFFERS, &tagged);
    for (vle, sent) in [(0, 1), (VLE, 0)] {
        let (options, len) = (TSE | IXSM | TXSM | vle, tagged.len() as u64);
        driver.give(&[fields.words(), [BUFFERS, len | DATA | EOP | RS | options]]);
        let out = driver.run();
        assert_eq!(out.len(), sent);
        assert!(out.iter().all(|out| out.bytes.len() == 65_553));
    }
    assert_eq!((driver.device.counts().too_long, driver.get(TSCTC), driver.get(TSCTFC)), (1, 1, 1));
}

/// Where there is no room, the frame waits, and is not read again.
#[test]
fn a_frame_that_was_not_taken_is_offered_again() {
    let mut driver = Driver::new();
    let bytes = frame(MAC, 0x88b5, 60);
    driver.put(BUFFERS, &bytes);
    driver.give(&[[BUFFERS, 60 | EOP | RS]; 3]);
    let Driver { device, memory, .. } = &mut driver;
    let mut offered = 0;
    let progress = device.transmit(memory, 0, 100, |_| {
        offered += 1;
        if offered == 2 { Sent::Later } else { Sent::Taken }
    });
    assert_eq!((offered, progress), (2, Progress { descriptors: 2, more: true }));
    assert!(device.pending(memory));
    driver.put_words(TX_RING + 16, [u64::MAX, u64::MAX]);
    assert_eq!((driver.get(TDH), driver.get(ICR)), (1, cause::TXDW));
    assert_eq!(driver.run().len(), 2);
    assert_eq!((driver.get(TDH), driver.word(TX_RING, 1)), (3, 60 | EOP | RS | DD));
    let Driver { device, memory, .. } = &mut driver;
    assert!(!device.pending(memory));
}

#[test]
fn a_call_reads_no_more_descriptors_than_its_budget() {
    let mut driver = Driver::new();
    driver.put(BUFFERS, &frame(MAC, 0x88b5, 60));
    driver.give(&[[BUFFERS, 60 | EOP]; 5]);
    let Driver { device, memory, .. } = &mut driver;
    for (budget, descriptors, more) in [(0, 0, true), (2, 2, true), (2, 2, true), (2, 1, false)] {
        let progress = device.transmit(memory, 0, budget, |_| Sent::Taken);
        assert_eq!(progress, Progress { descriptors, more });
    }
}

/// 13.4.33 and 13.4.2: no transmission without TCTL.EN and a link.
#[test]
fn a_transmitter_that_is_off_or_without_link_keeps_its_frames() {
    let mut driver = Driver::new();
    driver.put(BUFFERS, &frame(MAC, 0x88b5, 60));
    driver.set(TCTL, 0);
    driver.give(&[[BUFFERS, 60 | EOP]]);
    assert_eq!(driver.run(), []);
    driver.device.set_link(false, 0);
    assert!(driver.set(TCTL, tctl::EN).transmit);
    assert_eq!(driver.run(), []);
    driver.device.set_link(true, 0);
    assert_eq!(driver.run().len(), 1);
}

/// 9.2, 3.3.3.1 and 3.3.7.1: VLE with CTRL.VME; in the last descriptor, in the first of a run.
#[test]
fn a_tag_is_inserted_where_the_driver_asks() {
    let mut driver = Driver::new();
    let bytes = frame(MAC, 0x88b5, 300);
    let tagged = [&bytes[..12], &[0x81, 0, 0x20, 0x64], &bytes[12..]].concat();
    let special = 0x2064 << 48;
    assert_eq!(driver.send(&bytes, VLE | special)[0].bytes, bytes, "no VLAN mode");
    driver.set(CTRL, ctrl::VME);
    assert_eq!(driver.send(&bytes, VLE | special)[0].bytes, tagged);
    assert_eq!(driver.send(&bytes, special)[0].bytes, bytes);
    driver.give(&[[BUFFERS, 100 | VLE | special], [BUFFERS + 100, 200 | EOP]]);
    assert_eq!(driver.run()[0].bytes, bytes, "not in the last one");
    driver.set(VET, 0x88a8);
    driver.give(&[[BUFFERS, 100], [BUFFERS + 100, 200 | VLE | EOP | special]]);
    assert_eq!(driver.run()[0].bytes[12..14], [0x88, 0xa8]);
    // What is left to do lies four bytes further behind then.
    driver.set(VET, 0x8100);
    let (bytes, l4) = tcp(false, 2000);
    let fields = Fields::tcp(false, l4, 2000, 1460);
    let out = send_with(&mut driver, fields, &bytes, TSE | IXSM | TXSM | VLE | special);
    assert_eq!(out[0].bytes[12..18], [0x81, 0, 0x20, 0x64, 8, 0]);
    assert_eq!(out[0].left, [1, 1, 58, 0, 0xb4, 5, 38, 0, 16, 0]);
    let untagged = |bytes: Vec<u8>| [&bytes[..12], &bytes[16..]].concat();
    let frames: Vec<_> = finished(&out[0]).into_iter().map(untagged).collect();
    assert!(frames.len() == 2 && frames.iter().all(|bytes| is_right(bytes, false, l4)));
}

/// 3.3.3 (IC, CSS, CSO): the checksum of all bytes from CSS on.
#[test]
fn a_legacy_checksum_is_left_or_inserted() {
    let mut driver = Driver::new();
    let (mut bytes, l4) = tcp(false, 600);
    bytes[16..18].copy_from_slice(&640u16.to_be_bytes());
    driver.put(BUFFERS, &bytes);
    let (css, cso) = ((l4 as u64) << 40, (l4 as u64 + 16) << 16);
    driver.give(&[[BUFFERS, bytes.len() as u64 | EOP | IC | css | cso]]);
    let out = driver.run();
    assert_eq!((out[0].left, &out[0].bytes), ([1, 0, 0, 0, 0, 0, 34, 0, 16, 0], &bytes));
    // In front of a transport header it is inserted, if the frame is short.
    let short = &bytes[..100];
    driver.put(BUFFERS, short);
    driver.give(&[[BUFFERS, 100 | EOP | IC | 14 << 40 | 24 << 16]]);
    let out = driver.run();
    assert_eq!(out[0].left, [0; 10]);
    assert_eq!(packet::checksum::checksum(&out[0].bytes[14..]), 0);
    assert_eq!(driver.device.counts(), Counts::default());
}

/// 3.6: IXSM and TXSM by the context.
#[test]
fn checksums_of_a_context_are_inserted_or_left() {
    for v6 in [false, true] {
        let mut driver = Driver::new();
        let (mut bytes, l4) = tcp(v6, 700);
        let length = u16::try_from(if v6 { 720 } else { 740 }).expect("short").to_be_bytes();
        let at = if v6 { 18 } else { 16 };
        bytes[at..at + 2].copy_from_slice(&length);
        let pseudo = if v6 { 22..54 } else { 26..34 };
        let sum = packet::checksum::Sum::pseudo_header(&bytes[pseudo], 6, 720).fold();
        bytes[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
        let fields = Fields::tcp(v6, l4, 0, 0);
        let options = if v6 { TXSM } else { IXSM | TXSM };
        let out = send_with(&mut driver, fields, &bytes, options);
        assert_eq!(out[0].left[..2], [1, 0]);
        assert_eq!(finished(&out[0]).len(), 1);
        assert!(is_right(&finished(&out[0])[0], v6, l4));
        // The context holds for later frames; without options the frame stays as it is.
        driver.put(BUFFERS, &bytes);
        driver.give(&[[BUFFERS, bytes.len() as u64 | DATA | EOP | options]]);
        assert_eq!(driver.run(), out);
        assert_eq!(driver.send(&bytes, 0)[0].bytes, bytes);
        // An end that is the frame's is no end; another one is obeyed in a short frame.
        let whole = Fields { transport: (l4 as u64, l4 as u64 + 16, 0xffff), ..fields };
        assert_eq!(send_with(&mut driver, whole, &bytes, options), out);
        let part = Fields { transport: (l4 as u64, l4 as u64 + 16, l4 as u64 + 19), ..fields };
        bytes[l4 + 16..l4 + 18].fill(0);
        let out = send_with(&mut driver, part, &bytes[..200], TXSM);
        assert_eq!(out[0].left, [0; 10]);
        assert_eq!(packet::checksum::checksum(&out[0].bytes[l4..l4 + 20]), 0);
    }
}

/// 3.5: TCP segmentation, as far as the device does it; the rest is done as a switch does.
#[test]
fn a_run_of_segments_is_handed_on_with_right_headers() {
    for (v6, payload, mss) in [(false, 4000, 1460), (true, 4000, 1440), (false, 64_000, 1448)] {
        let mut driver = Driver::new();
        let (bytes, l4) = tcp(v6, payload);
        let options = TSE | if v6 { TXSM } else { IXSM | TXSM };
        let fields = Fields::tcp(v6, l4, payload, mss);
        driver.put(BUFFERS, &bytes);
        let parts = bytes.chunks(20_000).enumerate();
        let mut descriptors: Vec<[u64; 2]> = parts
            .map(|(at, part)| [BUFFERS + 20_000 * at as u64, part.len() as u64 | DATA | options])
            .collect();
        descriptors.last_mut().expect("one")[1] |= EOP | RS;
        driver.give(&[&[fields.words()][..], &descriptors].concat());
        let out = driver.run();
        let kind = if v6 { 4 } else { 1 };
        assert_eq!((out.len(), &out[0].left[..2]), (1, &[1, kind][..]));
        assert!(v6 || packet::checksum::checksum(&out[0].bytes[14..34]) == 0);
        let frames = finished(&out[0]);
        let mss = usize::try_from(mss).expect("small");
        assert_eq!(frames.len(), payload.div_ceil(mss));
        assert!(frames.iter().all(|frame| is_right(frame, v6, l4)));
        let payloads: Vec<u8> = frames.iter().flat_map(|frame| frame[l4 + 20..].to_vec()).collect();
        assert!(payloads == bytes[l4 + 20..]);
        // 13.7.53 and 13.7.30: one context, and the frames that it becomes.
        let count = u32::try_from(frames.len()).expect("few");
        assert_eq!((driver.get(TSCTC), driver.get(GPTC)), (1, count));
        let octets = frames.iter().map(|frame| u32::try_from(frame.len() + 4).expect("short"));
        assert_eq!(driver.get(GOTCL), octets.sum::<u32>());
    }
}

/// 3.3.6.1: FreeBSD's driver sets IFCS in contexts, which is the bit of IPv4 there.
#[test]
fn a_run_over_ipv6_may_have_the_bit_of_ipv4() {
    let mut driver = Driver::new();
    let (bytes, l4) = tcp(true, 3000);
    let fields = Fields { command: 7, ..Fields::tcp(true, l4, 3000, 1440) };
    let out = send_with(&mut driver, fields, &bytes, TSE | TXSM);
    assert!(finished(&out[0]).iter().all(|frame| is_right(frame, true, l4)));
}

/// A ring that is not in the guest's memory has nothing to send: its owner would look for ever.
#[test]
fn a_ring_outside_of_memory_is_not_pending() {
    let mut driver = Driver::new();
    driver.set(TDBAH, 1);
    driver.give(&[[BUFFERS, 60 | EOP]; 3]);
    let Driver { device, memory, .. } = &mut driver;
    let progress = device.transmit(memory, 0, 100, |_| Sent::Taken);
    assert!(progress == Progress::default() && !device.pending(memory));
    driver.set(TDBAH, 0);
    let Driver { device, memory, .. } = &mut driver;
    assert!(device.pending(memory) && !device.pending(&GuestMemory::default()));
}

/// 3.5: a run that fits one segment is a frame with a checksum left; a mark of congestion is told.
#[test]
fn a_run_of_one_segment_is_none_and_cwr_is_told() {
    let mut driver = Driver::new();
    let (mut bytes, l4) = tcp(false, 1000);
    let one = Fields::tcp(false, l4, 1000, 1460);
    let out = send_with(&mut driver, one, &bytes, TSE | IXSM | TXSM);
    assert_eq!(out[0].left[..2], [1, 0]);
    assert!(is_right(&finished(&out[0])[0], false, l4));
    bytes[l4 + 13] |= 0x80;
    let two = Fields::tcp(false, l4, 1000, 500);
    let out = send_with(&mut driver, two, &bytes, TSE | IXSM | TXSM);
    assert_eq!(out[0].left[..2], [1, 0x81]);
    assert!(finished(&out[0]).iter().all(|frame| is_right(frame, false, l4)));
}

/// 3.5 and 13.7.54: what makes no sense is dropped, reported and counted, and the next frame goes.
#[test]
fn a_context_that_does_not_fit_the_frame_drops_it() {
    let (bytes, l4) = tcp(false, 3000);
    let good = Fields::tcp(false, l4, 3000, 1000);
    let at = l4 as u64;
    let bad = [
        Fields { mss: 0, ..good },
        Fields { mss: 1, ..good },
        Fields { header_len: at + 16, ..good },
        Fields { header_len: at + 24, payload_len: 2996, ..good },
        Fields { header_len: 255, payload_len: 2799, ..good },
        Fields { payload_len: 3001, ..good },
        Fields { payload_len: 0, ..good },
        Fields { command: 6, ..good },
        Fields { ip: (18, 28, at - 1), ..good },
        Fields { ip: (255, 255, 255), ..good },
        Fields { transport: (at - 4, at + 12, 0), ..good },
        Fields { transport: (at, at + 6, 0), ..good },
        Fields { transport: (255, 255, 255), ..good },
    ];
    for (number, fields) in bad.into_iter().enumerate() {
        let mut driver = Driver::new();
        assert_eq!(send_with(&mut driver, fields, &bytes, TSE | IXSM | TXSM), [], "{number}");
        assert_eq!((driver.get(TDH), driver.get(TSCTFC), driver.get(GPTC)), (2, 1, 0));
        assert_eq!(driver.word(TX_RING, 1) & DD, DD);
        assert_eq!(driver.device.counts().malformed, 1);
        let out = send_with(&mut driver, good, &bytes, TSE | IXSM | TXSM);
        assert_eq!(finished(&out[0]).len(), 3);
    }
}

/// 3.6: the same for checksums.
#[test]
fn a_checksum_outside_of_the_frame_drops_it() {
    let (bytes, l4) = tcp(false, 300);
    let at = l4 as u64;
    let good = Fields::tcp(false, l4, 0, 0);
    let bad = [
        (Fields { transport: (at, at - 2, 0), ..good }, TXSM),
        (Fields { transport: (at, at + 16, at + 300), ..good }, TXSM),
        (Fields { transport: (0, 16, 0), ..good }, TXSM),
        (Fields { ip: (14, 24, 0), ..good }, IXSM),
        (Fields { ip: (14, 34, 33), ..good }, IXSM),
        (Fields { ip: (34, 24, 33), ..good }, IXSM),
    ];
    for (number, (fields, options)) in bad.into_iter().enumerate() {
        let mut driver = Driver::new();
        assert_eq!(send_with(&mut driver, fields, &bytes, options), [], "{number}");
        assert_eq!((driver.device.counts().malformed, driver.get(TDH)), (1, 2));
    }
}

/// Frames that are too short or too long, and buffers that are not there.
#[test]
fn impossible_frames_are_dropped_and_counted_and_the_queue_goes_on() {
    let mut driver = Driver::new();
    driver.give(&[[BUFFERS, 13 | EOP | RS], [0, EOP | RS]]);
    driver.give(&[[END - 10, 60 | EOP | RS], [u64::MAX, 60 | DATA | EOP | RS]]);
    driver.give(&[[BUFFERS, 9000 | DATA | RS], [BUFFERS, 9000 | DATA], [BUFFERS, 60 | EOP | RS]]);
    driver.give(&[[BUFFERS, 0xf_ffff | DATA | TSE | EOP | RS]]);
    assert_eq!(driver.run(), []);
    let counts = Counts { too_short: 2, outside: 2, too_long: 2, malformed: 0 };
    assert_eq!((driver.device.counts(), driver.get(TDH)), (counts, 8));
    for index in [0, 1, 2, 3, 4, 6, 7] {
        assert_eq!(driver.word(TX_RING, index) & DD, DD, "{index}");
    }
    // A reserved type (3.3.5).
    driver.give(&[[BUFFERS, 60 | DEXT | 7 << 20 | EOP | RS]]);
    assert_eq!((driver.run(), driver.get(TDH)), (vec![], 9));
    assert_eq!(driver.send(&frame(MAC, 0x88b5, 60), 0).len(), 1);
}

/// A frame without an end costs no memory, and each call no more than its budget.
#[test]
fn descriptors_without_an_end_are_passed_over() {
    let mut driver = Driver::new();
    for _ in 0..100 {
        driver.give(&[[BUFFERS, 1]; 9]);
        assert_eq!(driver.run(), []);
    }
    driver.give(&[[BUFFERS, 1 | EOP]]);
    assert_eq!((driver.run(), driver.device.counts().too_long), (vec![], 1));
    // Contexts that want to be reported, in the middle of a frame.
    let context = Fields::tcp(false, 34, 0, 0).words();
    let reported = [context[0], context[1] | RS];
    for _ in 0..100 {
        driver.give(&[[BUFFERS, 20], reported, reported, reported]);
        assert_eq!(driver.run(), []);
    }
    driver.give(&[[BUFFERS, 20 | RS | EOP]]);
    assert_eq!((driver.run(), driver.device.counts().too_long), (vec![], 2));
}

/// 13.4.38 to 13.4.40: a ring that is none has nothing to send.
#[test]
fn a_head_or_tail_outside_of_the_ring_is_an_empty_ring() {
    for (offset, value) in [(TDT, SLOTS), (TDT, 0xffff), (TDH, SLOTS), (TDLEN, 0), (TDBAH, 1)] {
        let mut driver = Driver::new();
        driver.put(BUFFERS, &frame(MAC, 0x88b5, 60));
        driver.give(&[[BUFFERS, 60 | EOP]; 3]);
        driver.set(offset, value);
        let Driver { device, memory, .. } = &mut driver;
        device.transmit(memory, 0, 100, |_| unreachable!("there is none"));
        // The driver sets it right, from the beginning.
        for (offset, value) in [(TDBAH, 0), (TDLEN, SLOTS * 16), (TDH, 0), (TDT, 3)] {
            driver.set(offset, value);
        }
        assert_eq!(driver.run().len(), 3, "{offset:x}");
    }
}

/// 3.3.7.1: IDE delays TXDW by TIDV.
#[test]
fn ide_delays_the_interrupt() {
    let mut driver = Driver::new();
    driver.set(TIDV, 10);
    let bytes = frame(MAC, 0x88b5, 60);
    driver.send(&bytes, RS | IDE);
    assert_eq!(driver.get(ICR), cause::TXQE);
    assert_eq!(driver.device.deadline(), Some(10_240));
    driver.device.expire(10_240);
    assert_eq!((driver.get(ICR), driver.device.deadline()), (cause::TXDW, None));
    driver.send(&bytes, RS | IDE);
    driver.send(&bytes, RS);
    assert_eq!((driver.get(ICR), driver.device.deadline()), (cause::TXDW | cause::TXQE, None));
}
