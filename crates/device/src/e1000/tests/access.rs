//! Registers as a driver reads and writes them.

use super::*;

/// 13.2: registers are read by any bytes, and written by words.
#[test]
fn accesses_of_other_widths_read_a_part_and_write_nothing() {
    let mut driver = Driver::new();
    driver.set(FCAL, 0x8765_4321);
    let reads =
        [(FCAL, 1, 0x21), (FCAL + 1, 2, 0x6543), (FCAL + 3, 1, 0x87), (FCAL + 2, 8, 0x8765)];
    for (offset, width, value) in reads {
        assert_eq!(driver.device.read(offset, width, 0), value, "{offset:x} {width}");
    }
    assert_eq!(driver.device.read(u32::MAX, 8, 0), 0);
    for (offset, width) in [(FCAL, 1), (FCAL, 2), (FCAL + 2, 4), (FCAL, 0), (FCAL, 200)] {
        driver.device.write(offset, width, 0, 0);
        assert_eq!(driver.get(FCAL), 0x8765_4321);
    }
    let effects = driver.device.write(TDBAL, 8, 0x1_0000_2000, 0);
    assert_eq!((driver.get(TDBAL), driver.get(TDBAH), effects), (0x2000, 1, Effects::default()));
}

/// 13.4.17 to 13.4.21.
#[test]
fn reading_icr_clears_it_and_writes_clear_bits() {
    let mut driver = Driver::new();
    driver.set(ICS, cause::LSC | cause::RXO | cause::TXDW);
    assert!(driver.device.interrupt());
    assert_eq!(driver.get(ICS), cause::LSC | cause::RXO | cause::TXDW, "ICS shows it, too");
    driver.set(ICR, cause::RXO);
    assert_eq!((driver.get(ICR), driver.get(ICR)), (cause::LSC | cause::TXDW, 0));
    assert!(!driver.device.interrupt());
    driver.set(IMC, u32::MAX);
    driver.set(ICS, u32::MAX);
    assert!(!driver.device.interrupt() && driver.get(IMC) == 0);
    driver.set(IMS, cause::LSC);
    assert!(driver.device.interrupt() && driver.get(IMS) == cause::LSC);
    assert_eq!(driver.get(ICR), cause::ALL, "no more than there are");
}

/// 13.2.1 and 13.4.1: drivers reset the device through I/O space.
#[test]
fn a_reset_through_the_io_window_leaves_address_and_link() {
    let mut driver = Driver::new();
    driver.set(RAL, 0);
    driver.set(MTA, 7);
    driver.send(&frame(MAC, 0x88b5, 60), RS);
    assert_eq!((driver.device.write_io(0, 4, CTRL.into(), 0)), Effects::default());
    let value = driver.device.read_io(4, 4, 0);
    driver.device.write_io(4, 4, value | u64::from(ctrl::RST), 0);
    assert_eq!(driver.device.read_io(4, 4, 0), 0x241, "it is over");
    for offset in [MTA, TDBAL, TDT, TDH, ICR, IMS, GPTC] {
        assert_eq!(driver.get(offset), 0, "{offset:x}");
    }
    assert_eq!((driver.get(RAL), driver.get(RAL + 4)), (0x1200_5452, 0x8000_5634));
    assert!(driver.get(STATUS) & status::LU != 0 && !driver.device.interrupt());
    // What is outside of BAR 0, and what is no word, does nothing.
    driver.device.write_io(0, 4, BAR0_LEN.into(), 0);
    driver.device.write_io(4, 4, u64::MAX, 0);
    assert_eq!((driver.device.read_io(4, 4, 0), driver.device.read_io(0, 2, 0)), (0, 0));
    assert_eq!(driver.device.read_io(0, 4, 0), BAR0_LEN.into());
}

/// 13.4.4, 13.4.3 and 13.4.6: the EEPROM behind registers, and its address in RAL again.
#[test]
fn the_eeprom_is_read_through_registers() {
    let mut driver = Driver::new();
    driver.set(EERD, 2 << 8 | 1);
    assert_eq!(driver.get(EERD), 0x5634_0210);
    driver.set(EECD, 1 << 6);
    assert_eq!(driver.get(EECD) & 0x2c0, 0xc0, "granted, and of 64 words");
    driver.set(RAL, 0);
    driver.set(CTRL_EXT, ctrl_ext::EE_RST);
    assert_eq!((driver.get(RAL), driver.get(CTRL_EXT)), (0x1200_5452, 0));
}

/// 13.4.7: MDIC, with its interrupt, and a link that comes and goes.
#[test]
fn the_phy_is_reached_through_mdic_and_tells_of_the_link() {
    let mut driver = Driver::new();
    driver.set(MDIC, 1 << 29 | 2 << 26 | 1 << 21 | 2 << 16);
    assert_eq!(driver.get(MDIC), 0x3822_0141);
    assert_eq!(driver.get(ICR), cause::MDAC);
    driver.device.set_link(false, 0);
    driver.device.set_link(false, 0);
    assert_eq!((driver.get(STATUS) & status::LU, driver.get(ICR)), (0, cause::LSC));
    driver.device.set_link(true, 0);
    assert_eq!((driver.get(STATUS) & status::LU, driver.get(ICR)), (status::LU, cause::LSC));
    // PCTRL: negotiate again, and CTRL.PHY_RST.
    driver.set(MDIC, 1 << 26 | 1 << 21 | 0x1340);
    assert_eq!(driver.get(ICR), cause::LSC);
    driver.set(CTRL, ctrl::PHY_RST);
    assert_eq!((driver.get(CTRL), driver.get(ICR)), (0, cause::LSC));
}

/// 13.4.16: what the receiver does not get is the transmitter's.
#[test]
fn the_packet_buffer_is_divided() {
    let mut driver = Driver::new();
    for (value, divided) in [(0x28, 0x0018_0028), (0xffff_0040, 0x40), (0x7f, 0x40)] {
        driver.set(PBA, value);
        assert_eq!(driver.get(PBA), divided);
    }
}

/// 14.3: as after power-on, with the address and the cable.
#[test]
fn a_function_reset_is_a_new_device_with_the_same_cable() {
    let mut driver = Driver::new();
    driver.set(MDIC, 1 << 26 | 1 << 21 | 16 << 16 | 0x1234);
    driver.set(EECD, 1 << 6);
    driver.device.reset();
    let mut other = E1000::new(&Config { mac: MAC, ..Config::default() });
    other.set_link(true, 0);
    other.read(ICR, 4, 0);
    for offset in (0..0x6000).step_by(4) {
        let [one, two] = [&mut driver.device, &mut other].map(|device| device.read(offset, 4, 0));
        assert_eq!(one, two, "{offset:x}");
    }
    driver.set(MDIC, 2 << 26 | 1 << 21 | 16 << 16);
    assert_eq!(driver.get(MDIC) & 0xffff, 0x0068);
}

/// What Linux's driver (6.1) does from probe to the first link: it would give up at each of these.
#[test]
fn a_driver_comes_up_as_linux_does() {
    let mut driver = Driver::with(&Config { mac: MAC, ..Config::default() });
    driver.set(IMC, u32::MAX);
    driver.set(RCTL, 0);
    driver.set(TCTL, 0x8);
    driver.device.write_io(0, 4, CTRL.into(), 0);
    driver.device.write_io(4, 4, u64::from(0x241 | ctrl::RST), 0);
    let manc = driver.get(MANC);
    driver.set(MANC, manc & !0x2000);
    assert_eq!(driver.get(ICR), 0);
    // The EEPROM's checksum; here by EERD, in `eeprom` by EECD.
    let sum = (0..64).fold(0u32, |sum, word| {
        driver.set(EERD, word << 8 | 1);
        sum + (driver.get(EERD) >> 16)
    });
    assert_eq!(sum & 0xffff, 0xbaba);
    let mut phy = |number: u32, write: Option<u32>| {
        let operation = if write.is_some() { 1 } else { 2 };
        driver.set(MDIC, operation << 26 | 1 << 21 | number << 16 | write.unwrap_or(0));
        let mdic = driver.get(MDIC);
        assert_eq!(mdic & 0x5000_0000, 0x1000_0000, "ready, no error");
        mdic & 0xffff
    };
    assert_eq!(phy(2, None) << 16 | phy(3, None) & 0xfff0, 0x0141_0c20);
    for (number, value) in [(16, 0x0068), (20, 0x0d60), (4, 0x0de1), (9, 0x0200), (0, 0x1340)] {
        phy(number, Some(value));
    }
    phy(1, None);
    assert_eq!(phy(1, None) & 0x24, 0x24, "negotiated, and up");
    assert_eq!(phy(17, None) & 0xec00, 0xac00, "1000 Mb/s, full duplex, resolved, up");
    assert_eq!(driver.get(STATUS) & 0xc3, 0x83, "the same in STATUS");
    driver.set(ICS, cause::LSC);
    driver.set(IMS, 0x9d);
    assert!(driver.device.interrupt());
    assert_eq!(driver.get(ICR), cause::LSC);
}
