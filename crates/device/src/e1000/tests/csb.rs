//! The communication status block, from the driver's side.

use super::*;

const GUEST_TDT: u64 = CSB;
const GUEST_NEED_TXKICK: u64 = CSB + 0x04;
const GUEST_NEED_RXKICK: u64 = CSB + 0x08;
const GUEST_CSB_ON: u64 = CSB + 0x0c;
const GUEST_RDT: u64 = CSB + 0x10;
const GUEST_TXKICK_AT: u64 = CSB + 0x14;
const HOST_TDH: u64 = CSB + 0x40;
const HOST_NEED_TXKICK: u64 = CSB + 0x44;
const HOST_RDH: u64 = CSB + 0x50;
const HOST_NEED_RXKICK: u64 = CSB + 0x54;
const HOST_ISR: u64 = CSB + 0x58;
const HOST_RXKICK_AT: u64 = CSB + 0x5c;

impl Driver {
    fn with_csb() -> Self {
        let mut this = Self::with(&Config { mac: MAC, coalesce_usecs: 0, csb: true });
        this.write(GUEST_CSB_ON, 1);
        this.write(GUEST_TXKICK_AT, u32::MAX);
        this.set(CSBAH, 0);
        let effects = this.set(CSBAL, u32::try_from(CSB).expect("low"));
        assert_eq!(effects, Effects { transmit: true, receive: true });
        this
    }

    fn write(&self, at: u64, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    fn word_at(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.peek(at, 4).try_into().expect("four"))
    }

    /// Puts frames into the ring, without a write to TDT.
    fn publish(&mut self, frames: u32) {
        self.put(BUFFERS, &frame(MAC, 0x88b5, 60));
        for _ in 0..frames {
            self.put_words(TX_RING + 16 * u64::from(self.tail), [BUFFERS, 60 | EOP | RS]);
            self.tail = (self.tail + 1) % SLOTS;
        }
        self.write(GUEST_TDT, self.tail);
    }

    fn pending(&mut self) -> bool {
        self.device.pending(&self.memory)
    }
}

#[test]
fn the_tail_comes_from_memory_and_the_head_goes_there() {
    let mut driver = Driver::with_csb();
    assert!(!driver.pending());
    driver.publish(3);
    assert!(driver.pending());
    assert_eq!(driver.run().len(), 3);
    assert_eq!((driver.word_at(HOST_TDH), driver.get(TDH), driver.get(TDT)), (3, 3, 3));
    assert_eq!((driver.word(TX_RING, 2) & DD, driver.get(ICR)), (DD, 0), "it wanted no interrupt");
}

#[test]
fn a_driver_that_waits_for_descriptors_is_interrupted() {
    let mut driver = Driver::with_csb();
    driver.write(GUEST_NEED_TXKICK, 1);
    driver.publish(2);
    driver.run();
    assert!(driver.device.interrupt());
    assert_eq!((driver.word_at(HOST_ISR), driver.get(ICR)), (cause::TXDW, cause::TXDW));
    driver.run();
    assert_eq!(driver.get(ICR), 0, "nothing was done");
    // By an index instead: told when the head passes it.
    driver.write(GUEST_NEED_TXKICK, 0);
    driver.write(GUEST_TXKICK_AT, 5);
    driver.publish(2);
    driver.run();
    assert_eq!((driver.get(TDH), driver.get(ICR)), (4, 0));
    driver.publish(14);
    driver.run();
    assert_eq!((driver.get(TDH), driver.get(ICR)), (2, cause::TXDW));
}

#[test]
fn frames_interrupt_a_driver_that_waits_for_them_only() {
    let mut driver = Driver::with_csb();
    driver.give_buffers(15, 2048);
    driver.write(GUEST_RDT, 15);
    let bytes = frame(MAC, 0x88b5, 60);
    assert_eq!(driver.receive(&bytes), Received::Stored);
    assert_eq!((driver.word_at(HOST_RDH), driver.get(ICR)), (1, 0));
    driver.write(GUEST_NEED_RXKICK, 1);
    assert_eq!(driver.receive(&bytes), Received::Stored);
    assert_eq!((driver.word_at(HOST_RDH), driver.word_at(HOST_ISR)), (2, cause::RXT0));
    assert_eq!(driver.get(ICR), cause::RXT0);
}

#[test]
fn other_causes_are_always_told() {
    let mut driver = Driver::with_csb();
    driver.write(GUEST_RDT, 0);
    assert_eq!(driver.receive(&frame(MAC, 0x88b5, 60)), Received::NoBuffers);
    assert_eq!(driver.get(ICR), cause::RXO);
    driver.device.set_link(false, 0);
    assert_eq!(driver.get(ICR), cause::LSC);
}

#[test]
fn the_device_asks_for_kicks_before_it_sleeps() {
    let mut driver = Driver::with_csb();
    driver.device.want_kicks(&driver.memory, true);
    let wants = |driver: &Driver| {
        [HOST_NEED_TXKICK, HOST_NEED_RXKICK, HOST_RXKICK_AT].map(|at| driver.word_at(at))
    };
    assert_eq!(wants(&driver), [1, 1, 12], "frames wait for buffers");
    driver.device.want_none(&driver.memory);
    assert_eq!(wants(&driver), [0, 0, u32::MAX]);
    driver.give_buffers(15, 2048);
    driver.write(GUEST_RDT, 15);
    driver.device.want_kicks(&driver.memory, false);
    assert_eq!(wants(&driver), [1, 0, u32::MAX]);
    assert!(driver.device.has_room(&driver.memory, 0));
}

/// A long frame needs several buffers: what is left of them is no reason to sleep without a kick.
#[test]
fn a_device_whose_frame_needs_more_buffers_asks_for_a_kick() {
    let mut driver = Driver::with_csb();
    driver.set(RCTL, rctl::EN | rctl::BAM | rctl::LPE);
    driver.give_buffers(1, 2048);
    driver.write(GUEST_RDT, 1);
    assert!(driver.device.has_room(&driver.memory, 60));
    assert!(!driver.device.has_room(&driver.memory, 4000));
    driver.device.want_kicks(&driver.memory, true);
    assert_eq!(driver.word_at(HOST_NEED_RXKICK), 1);
}

#[test]
fn frames_kicks_and_interrupts_are_counted_and_so_are_those_that_were_not_wanted() {
    let mut driver = Driver::with_csb();
    driver.give_buffers(15, 2048);
    driver.write(GUEST_RDT, 15);
    let before = driver.device.traffic();
    driver.publish(3);
    driver.run();
    driver.receive(&frame(MAC, 0x88b5, 60));
    driver.set(TDT, 3);
    driver.write(GUEST_NEED_RXKICK, 1);
    driver.receive(&frame(MAC, 0x88b5, 60));
    driver.receive(&frame(MAC, 0x88b5, 60));
    let Traffic { tx_frames, rx_frames, tx_kicks, rx_kicks, interrupts, suppressed } =
        driver.device.traffic();
    assert_eq!((tx_frames, rx_frames), (3, 3));
    assert_eq!((tx_kicks - before.tx_kicks, rx_kicks - before.rx_kicks), (1, 0));
    assert_eq!(interrupts - before.interrupts, 1);
    assert_eq!(suppressed, 3, "a batch and a frame unwanted, and a frame behind the interrupt");
}

#[test]
fn without_the_page_it_is_a_plain_e1000() {
    // Switched off, unmapped, not aligned, outside of the guest's memory; or no such device.
    for (csb, on, page) in [
        (true, 0, CSB),
        (true, 1, 0),
        (true, 1, CSB + 4),
        (true, 1, END),
        (true, 1, 0xffff_f000),
        (false, 1, CSB),
    ] {
        let mut driver = Driver::with(&Config { mac: MAC, coalesce_usecs: 0, csb });
        let word = page + (GUEST_CSB_ON - CSB);
        if word < END {
            driver.write(word, on);
        }
        driver.set(CSBAL, u32::try_from(page).expect("low"));
        assert_eq!(driver.get(CSBAL), if csb { u32::try_from(page).expect("low") } else { 0 });
        driver.publish(2);
        driver.device.want_kicks(&driver.memory, false);
        assert!(!driver.pending() && driver.run().is_empty());
        driver.set(TDT, 2);
        assert_eq!(driver.run().len(), 2);
        assert_eq!(driver.get(ICR), cause::TXDW | cause::TXQE);
        // Where there is a page, the device asks for kicks, though they are not used yet.
        let asked = u32::from(csb && page == CSB);
        assert_eq!([HOST_TDH, HOST_NEED_TXKICK].map(|at| driver.word_at(at)), [0, asked]);
    }
}

/// Drivers name the page once, and reset the device whenever the interface comes up.
#[test]
fn a_reset_of_the_mac_leaves_the_page_and_one_of_the_function_does_not() {
    let mut driver = Driver::with_csb();
    driver.set(CTRL, ctrl::RST);
    assert_eq!(driver.get(CSBAL), u32::try_from(CSB).expect("low"));
    for (offset, value) in [(TDBAL, TX_RING), (TDLEN, 256), (TCTL, 2)] {
        driver.set(offset, u32::try_from(value).expect("low"));
    }
    driver.publish(1);
    assert!(driver.pending() && driver.run().len() == 1);
    driver.device.reset();
    assert_eq!(driver.get(CSBAL), 0);
}

/// lem can switch the block off and on while it runs.
#[test]
fn a_device_that_slept_while_the_block_was_off_is_kicked_when_it_is_on() {
    let mut driver = Driver::with_csb();
    driver.device.want_none(&driver.memory);
    driver.write(GUEST_CSB_ON, 0);
    driver.device.want_kicks(&driver.memory, false);
    driver.write(GUEST_CSB_ON, 1);
    assert_eq!(driver.word_at(HOST_NEED_TXKICK), 1);
    driver.write(GUEST_CSB_ON, 0);
    driver.device.want_none(&driver.memory);
    assert_eq!(driver.word_at(HOST_NEED_TXKICK), 1, "it is not the device's while it is off");
}

#[test]
fn an_index_that_is_none_is_not_taken() {
    let mut driver = Driver::with_csb();
    for index in [SLOTS, 0xffff, 0x1_0000, u32::MAX] {
        driver.write(GUEST_TDT, index);
        driver.write(GUEST_RDT, index);
        assert!(!driver.pending() && driver.run().is_empty(), "{index:x}");
        assert_eq!(driver.receive(&frame(MAC, 0x88b5, 60)), Received::NoBuffers);
    }
    driver.publish(1);
    assert_eq!(driver.run().len(), 1);
}
