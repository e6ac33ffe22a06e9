//! Frames into buffers.

use super::*;

/// Status bits of a receive descriptor.
const RX_EOP: u64 = 1 << 33;
const IXSM: u64 = 1 << 34;
const VP: u64 = 1 << 35;
const TCPCS: u64 = 1 << 37;
const PIF: u64 = 1 << 39;

impl Driver {
    /// The second word of a receive descriptor.
    fn stored(&self, index: u32) -> u64 {
        self.word(RX_RING, index)
    }
}

/// 3.2.2, 3.2.3 and 3.2.5: bytes, descriptor, RDH and the cause.
#[test]
fn a_frame_is_stored_with_room_for_its_fcs() {
    let mut driver = Driver::new();
    driver.give_buffers(15, 2048);
    let bytes = frame(MAC, 0x88b5, 300);
    driver.put(BUFFERS + 300, &[0xaa; 8]);
    assert_eq!(driver.receive(&bytes), Received::Stored);
    assert_eq!(driver.stored(0), 304 | DD | RX_EOP | IXSM);
    assert_eq!(driver.peek(BUFFERS, 308), [&bytes[..], &[0; 4], &[0xaa; 4]].concat());
    assert_eq!((driver.get(RDH), driver.get(ICR)), (1, cause::RXT0));
    driver.set(RCTL, rctl::EN | rctl::SECRC);
    driver.put(BUFFERS + 2048 + 300, &[0xaa; 8]);
    assert_eq!(driver.receive(&bytes), Received::Stored);
    assert_eq!(driver.stored(1), 300 | DD | RX_EOP | IXSM);
    assert_eq!(driver.peek(BUFFERS + 2048, 304), [&bytes[..], &[0xaa; 4]].concat());
}

/// 3.2.2 and 13.4.22: every buffer size; a frame that does not fit fills several.
#[test]
fn a_long_frame_takes_as_many_buffers_as_it_needs() {
    let sizes = [
        (0, 2048),
        (1 << 16, 1024),
        (2 << 16, 512),
        (3 << 16, 256),
        (rctl::BSEX | 1 << 16, 16384),
        (rctl::BSEX | 2 << 16, 8192),
        (rctl::BSEX | 3 << 16, 4096),
    ];
    for (bits, size) in sizes {
        for bytes in [60, size - 5, size - 4, size - 3, 3 * size, 9000] {
            let mut driver = Driver::new();
            driver.set(RCTL, rctl::EN | rctl::LPE | bits);
            // Buffers lie one behind the other, across the border of the guest's memory.
            let step = size.min(12 * 1024) as u64;
            driver.give_buffers(15, step);
            let frame = frame(MAC, 0x88b5, bytes.min(16380));
            let needed = (frame.len() + 4).div_ceil(size);
            let fits = needed <= 15;
            assert_eq!(driver.receive(&frame) == Received::Stored, fits, "{bytes} in {size}");
            let mut read = Vec::new();
            for index in 0..if fits { needed } else { 0 } {
                let word = driver.stored(u32::try_from(index).expect("few"));
                assert_eq!(word & DD, DD);
                assert_eq!(word & RX_EOP != 0, index + 1 == needed);
                let len = usize::try_from(word & 0xffff).expect("16 bits");
                assert!(len == size || index + 1 == needed);
                read.extend(driver.peek(BUFFERS + step * index as u64, len));
            }
            assert!(!fits || read == [&frame[..], &[0; 4]].concat(), "{bytes} in {size}");
        }
    }
}

/// Shorter frames are padded, as their sender has to.
#[test]
fn a_short_frame_is_padded() {
    let mut driver = Driver::new();
    driver.give_buffers(15, 2048);
    driver.put(BUFFERS, &[0xaa; 80]);
    let bytes = frame(MAC, 0x0806, 42);
    assert_eq!(driver.receive(&bytes), Received::Stored);
    assert_eq!(driver.stored(0) & 0xffff, 64);
    assert_eq!(driver.peek(BUFFERS, 65), [&bytes[..], &[0; 22], &[0xaa]].concat());
    assert_eq!(driver.get(PRC64), 1);
    assert_eq!(driver.receive(&bytes[..13]), Received::Filtered);
    assert_eq!((driver.get(RUC), driver.get(RLEC)), (1, 1));
}

/// 9.2 and 3.2.3.3: with CTRL.VME the tag goes into the descriptor.
#[test]
fn a_tag_is_stripped_in_vlan_mode() {
    let plain = frame(MAC, 0x88b5, 300);
    let tagged = [&plain[..12], &[0x81, 0, 0x20, 0x64], &plain[12..]].concat();
    let mut driver = Driver::new();
    driver.give_buffers(15, 2048);
    driver.receive(&tagged);
    assert_eq!((driver.stored(0) & 0xffff, driver.stored(0) & VP), (308, 0));
    driver.set(CTRL, ctrl::VME);
    driver.receive(&tagged);
    assert_eq!(driver.stored(1), 304 | DD | RX_EOP | IXSM | VP | 0x2064 << 48);
    assert_eq!(driver.peek(BUFFERS + 2048, 300), plain);
    driver.receive(&plain);
    assert_eq!(driver.stored(2), 304 | DD | RX_EOP | IXSM);
    // 3.2.1: a frame that the filters refuse leaves no trace.
    driver.set(RCTL, rctl::EN | rctl::VFE);
    assert_eq!(driver.receive(&tagged), Received::Filtered);
    assert_eq!((driver.get(RDH), driver.get(GPRC)), (3, 3));
}

/// 3.2.9 and 3.2.3.1: checksum bits, and PIF.
#[test]
fn status_bits_say_what_is_known_of_the_frame() {
    let mut driver = Driver::new();
    driver.give_buffers(15, 2048);
    let bytes = frame(MAC, 0x0800, 60);
    for (index, (rxcsum, good, bits)) in
        [(0, true, IXSM), (rxcsum::TUOFL, true, TCPCS), (rxcsum::TUOFL, false, IXSM)]
            .into_iter()
            .enumerate()
    {
        driver.set(RXCSUM, rxcsum);
        driver.device.receive(&driver.memory, 0, &bytes, good);
        let word = driver.stored(u32::try_from(index).expect("few"));
        assert_eq!(word, 64 | DD | RX_EOP | bits);
    }
    let group = frame([1, 0, 0x5e, 0, 0, 0], 0x0800, 60);
    driver.set(MTA, 1);
    driver.receive(&group);
    assert_eq!(driver.stored(3) & PIF, PIF);
    driver.set(RCTL, rctl::EN | rctl::MPE);
    driver.receive(&group);
    assert_eq!(driver.stored(4) & PIF, 0);
}

/// 13.4.17 (RXO), 13.7.5 and 13.7.33.
#[test]
fn a_frame_without_buffers_is_missed() {
    let mut driver = Driver::new();
    driver.give_buffers(2, 2048);
    let bytes = frame(MAC, 0x88b5, 60);
    let long = frame(MAC, 0x88b5, 3 * 2048);
    driver.set(RCTL, rctl::EN | rctl::LPE);
    assert!(driver.device.has_buffers(&driver.memory));
    assert_eq!(driver.receive(&long), Received::NoBuffers, "it needs four");
    assert_eq!((driver.get(ICR), driver.get(RDH)), (cause::RXO, 0));
    assert_eq!([driver.receive(&bytes), driver.receive(&bytes)], [Received::Stored; 2]);
    assert!(!driver.device.has_buffers(&driver.memory));
    assert_eq!(driver.receive(&bytes), Received::NoBuffers);
    assert_eq!(
        (driver.get(MPC), driver.get(RNBC), driver.get(GPRC), driver.get(TPR)),
        (2, 2, 2, 4)
    );
    assert_eq!((driver.stored(0) & DD, driver.stored(2)), (DD, 0));
    driver.set(RDT, 3);
    assert_eq!(driver.receive(&bytes), Received::Stored);
}

/// A frame that needs several buffers can wait for them; one that needs more than the ring has
/// cannot.
#[test]
fn room_is_for_a_frame_of_a_length() {
    let mut driver = Driver::new();
    driver.set(RCTL, rctl::EN | rctl::LPE | 3 << 16);
    let room = |driver: &mut Driver, bytes| driver.device.has_room(&driver.memory, bytes);
    assert!(!room(&mut driver, 60) && !room(&mut driver, 10_000), "no buffer at all");
    driver.give_buffers(3, 256);
    assert!(room(&mut driver, 60) && room(&mut driver, 3 * 256 - 4));
    assert!(!room(&mut driver, 3 * 256 - 3) && !room(&mut driver, 10_000));
    driver.set(RCTL, rctl::EN | 3 << 16);
    driver.set(RDT, 6);
    assert!(room(&mut driver, 10_000), "it is not stored at all");
    driver.set(RCTL, rctl::EN | rctl::LPE | 3 << 16);
    driver.set(RDT, 15);
    assert!(room(&mut driver, 15 * 256 - 4) && room(&mut driver, 10_000), "it never will have");
    assert_eq!(driver.receive(&frame(MAC, 0x88b5, 10_000)), Received::NoBuffers);
    driver.set(RDBAH, 1);
    assert!(!room(&mut driver, 60), "the ring is not there");
}

/// 13.4.22 (EN) and 13.4.2 (LU).
#[test]
fn a_receiver_that_is_off_or_without_link_stores_nothing() {
    let mut driver = Driver::new();
    driver.give_buffers(15, 2048);
    let bytes = frame(MAC, 0x88b5, 60);
    driver.set(RCTL, 0);
    assert!(!driver.device.is_receiving());
    assert_eq!(driver.receive(&bytes), Received::Disabled);
    assert!(driver.set(RCTL, rctl::EN).receive);
    driver.device.set_link(false, 0);
    assert_eq!(driver.receive(&bytes), Received::Disabled);
    assert!(!driver.device.has_buffers(&driver.memory));
    driver.device.set_link(true, 0);
    assert_eq!(driver.receive(&bytes), Received::Stored);
}

/// 3.2.7.3 and 13.4.22: told once, when the free descriptors come down to the threshold.
#[test]
fn few_free_descriptors_are_told_at_the_threshold() {
    for (bits, threshold) in [(0, 8), (1 << 8, 4), (2 << 8, 2)] {
        let mut driver = Driver::new();
        driver.set(RCTL, rctl::EN | bits);
        driver.give_buffers(15, 2048);
        let told: Vec<u32> = (0..15)
            .filter_map(|at| {
                driver.receive(&frame(MAC, 0x88b5, 60));
                (driver.get(ICR) & cause::RXDMT0 != 0).then_some(14 - at)
            })
            .collect();
        assert_eq!(told, [threshold]);
    }
}

/// 3.2.5: descriptors without a buffer are done at once, and nothing else in them changes.
#[test]
fn null_descriptors_are_passed_over() {
    let mut driver = Driver::new();
    driver.set(RCTL, rctl::EN | 3 << 16);
    driver.give_buffers(15, 256);
    for index in [0, 2] {
        driver.put_words(RX_RING + 16 * index, [0, 0x1234]);
    }
    let bytes = frame(MAC, 0x88b5, 300);
    assert_eq!(driver.receive(&bytes), Received::Stored);
    assert_eq!(
        [0, 1, 2, 3].map(|at| driver.stored(at)),
        [0x1234 | DD, 256 | DD, 0x1234 | DD, 48 | DD | RX_EOP | IXSM]
    );
    assert_eq!(driver.get(RDH), 4);
    for index in 4..16 {
        driver.put_words(RX_RING + 16 * index, [0, 0]);
    }
    assert_eq!(driver.receive(&bytes), Received::NoBuffers);
}

/// Buffers and rings outside of the guest's memory.
#[test]
fn what_is_not_there_is_not_written() {
    let mut driver = Driver::new();
    driver.set(RCTL, rctl::EN | 3 << 16);
    driver.give_buffers(15, 256);
    for (index, buffer) in [(0, END - 100), (1, u64::MAX), (2, END)] {
        driver.put_words(RX_RING + 16 * index, [buffer, 0]);
    }
    driver.put(END - 100, &[0xaa; 100]);
    let bytes = frame(MAC, 0x88b5, 1000);
    assert_eq!(driver.receive(&bytes), Received::Stored);
    assert_eq!(driver.device.counts().outside, 3);
    assert_eq!(driver.peek(END - 100, 100), [0xaa; 100]);
    assert_eq!(driver.peek(BUFFERS + 768, 232), bytes[768..]);
    let values = [(RDT, SLOTS), (RDT, 0xffff), (RDH, 0xffff), (RDLEN, 0), (RDBAH, 1)];
    for (offset, value) in values {
        let mut driver = Driver::new();
        driver.give_buffers(15, 2048);
        driver.set(offset, value);
        assert_eq!(driver.receive(&bytes), Received::NoBuffers, "{offset:x}");
    }
}

/// 3.2.7.1: RDTR delays RXT0, and the operator's gap the line.
#[test]
fn interrupts_of_frames_are_moderated() {
    let mut driver = Driver::with(&Config { mac: MAC, coalesce_usecs: 100, csb: false });
    driver.give_buffers(15, 2048);
    let bytes = frame(MAC, 0x88b5, 60);
    driver.receive(&bytes);
    assert!(!driver.device.interrupt(), "the line rose at 0 for the link");
    assert_eq!(driver.device.deadline(), Some(100_000));
    driver.now = 200_000;
    driver.device.expire(200_000);
    assert!(driver.device.interrupt());
    assert_eq!(driver.get(ICR), cause::RXT0);
    driver.receive(&bytes);
    assert!(!driver.device.interrupt());
    assert_eq!(driver.device.deadline(), Some(300_000));
    driver.device.expire(300_000);
    assert!(driver.device.interrupt());
    driver.set(RDTR, 1000);
    driver.now = 1_000_000;
    driver.get(ICR);
    driver.receive(&bytes);
    assert_eq!((driver.get(ICR), driver.device.deadline()), (0, Some(2_024_000)));
    driver.set(RDTR, 1000 | rdtr::FPD);
    assert_eq!(driver.get(ICR), cause::RXT0);
}
