//! The EEPROM (chapter 5): 64 words, which a driver reads through EERD, or bit by bit through EECD.
//!
//! Through EECD the driver moves the pins of a Microwire device. A command is nine bits, each taken
//! when the clock rises while the device is selected; the answer comes the same way.
//!
//! ```text
//!   CS  ___/‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾\___
//!   DI      1  1  0  A5 A4 A3 A2 A1 A0
//!   DO                                 D15 D14 D13 …  D0, then the next word
//! ```
//!
//! Nothing can be written: other commands are taken, and do nothing.

/// How many words there are.
const WORDS: usize = 64;
/// What all words add up to (5.6.35).
const SUM: u16 = 0xbaba;
/// Where the word is that makes it so.
const CHECKSUM: usize = 0x3f;

/// Words that are not 0 (5.6), but for the address, which comes first, and the checksum.
const CONTENTS: [(usize, u16); 5] = [
    (0x0a, 0x4000), // initialization control 1: the signature of a valid EEPROM
    (SUBSYSTEM_ID, 0x100e),
    (0x0c, 0x8086), // subsystem vendor
    (0x0d, 0x100e), // device
    (0x0e, 0x8086), // vendor
];
const SUBSYSTEM_ID: usize = 0x0b;

/// EEPROM/Flash Control and Data (13.4.3).
mod eecd {
    /// Clock, chip select, data to the EEPROM.
    pub const SK: u32 = 1 << 0;
    pub const CS: u32 = 1 << 1;
    pub const DI: u32 = 1 << 2;
    /// Data from the EEPROM.
    pub const DO: u32 = 1 << 3;
    /// Flash writes: two bits, stored.
    pub const FWE: u32 = 3 << 4;
    /// The driver wants the pins, and has them.
    pub const REQ: u32 = 1 << 6;
    pub const GNT: u32 = 1 << 7;
    /// There is an EEPROM. Its size bit (9) is 0: 64 words.
    pub const PRES: u32 = 1 << 8;
    pub const WRITABLE: u32 = SK | CS | DI | FWE | REQ;
}

/// EEPROM Read (13.4.4).
mod eerd {
    pub const START: u32 = 1 << 0;
    pub const DONE: u32 = 1 << 4;
    pub const ADDRESS: u32 = 0xff00;
    pub const ADDRESS_SHIFT: u32 = 8;
    pub const DATA_SHIFT: u32 = 16;
}

/// Bits of a command, and the first three of them if it is a read.
const COMMAND_BITS: u32 = 9;
const READ: usize = 0b110;

/// The EEPROM, and what the driver has done with its pins.
#[derive(Debug)]
pub(super) struct Eeprom {
    words: [u16; WORDS],
    /// EECD, and EERD, as they read.
    eecd: u32,
    eerd: u32,
    /// Rising edges of the clock since the device was selected, and the bits that came with them.
    edges: u32,
    bits: usize,
}

impl Eeprom {
    /// An EEPROM that names this address.
    pub fn new(mac: [u8; 6], subsystem_id: Option<u16>) -> Self {
        let mut words = [0; WORDS];
        for (at, octets) in mac.as_chunks::<2>().0.iter().enumerate() {
            words[at] = u16::from_le_bytes(*octets);
        }
        for (at, word) in CONTENTS {
            words[at] = word;
        }
        words[SUBSYSTEM_ID] = subsystem_id.unwrap_or(words[SUBSYSTEM_ID]);
        let sum = words.iter().fold(0, |sum: u16, word| sum.wrapping_add(*word));
        words[CHECKSUM] = SUM.wrapping_sub(sum);
        Self { words, eecd: 0, eerd: 0, edges: 0, bits: 0 }
    }

    /// The address, as RAL and RAH hold it.
    pub fn address(&self) -> u64 {
        self.words[..3].iter().rev().fold(0, |all, word| all << 16 | u64::from(*word))
    }

    /// The pins are let go of, and no read is under way.
    pub fn reset(&mut self) {
        (self.eecd, self.eerd, self.edges, self.bits) = (0, 0, 0, 0);
    }

    pub fn read_eecd(&self) -> u32 {
        let granted = if self.eecd & eecd::REQ != 0 { eecd::GNT } else { 0 };
        let out = if self.data_out() { eecd::DO } else { 0 };
        self.eecd | eecd::PRES | granted | out
    }

    pub fn write_eecd(&mut self, value: u32) {
        let rises = value & !self.eecd;
        self.eecd = value & eecd::WRITABLE;
        if value & eecd::CS == 0 || rises & eecd::CS != 0 {
            (self.edges, self.bits) = (0, 0);
        } else if rises & eecd::SK != 0 {
            if self.edges < COMMAND_BITS {
                self.bits = self.bits << 1 | usize::from(value & eecd::DI != 0);
            }
            // Whatever is clocked out once all words have been is one of them again.
            let round = COMMAND_BITS + 16 * 64;
            self.edges = if self.edges == round { COMMAND_BITS + 1 } else { self.edges + 1 };
        }
    }

    /// The level of DO. It is high while the device is ready, low before the first bit of a word.
    fn data_out(&self) -> bool {
        if self.edges < COMMAND_BITS || self.bits >> 6 != READ {
            return true;
        }
        let Some(bit) = self.edges.checked_sub(COMMAND_BITS + 1) else { return false };
        let word = self.words[(self.bits + bit as usize / 16) % WORDS];
        word >> (15 - bit % 16) & 1 != 0
    }

    pub fn read_eerd(&self) -> u32 {
        self.eerd
    }

    /// A read is done as soon as it begins.
    pub fn write_eerd(&mut self, value: u32) {
        let address = value & eerd::ADDRESS;
        self.eerd = address;
        if value & eerd::START != 0 {
            let word = self.words[(address >> eerd::ADDRESS_SHIFT) as usize % WORDS];
            self.eerd |= eerd::DONE | u32::from(word) << eerd::DATA_SHIFT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];

    fn by_eerd(eeprom: &mut Eeprom, word: u32) -> u16 {
        eeprom.write_eerd(word << eerd::ADDRESS_SHIFT | eerd::START);
        assert_eq!(eeprom.read_eerd() & (eerd::DONE | eerd::START), eerd::DONE);
        u16::try_from(eeprom.read_eerd() >> 16).expect("16 bits")
    }

    /// 13.4.4, 5.6.1 and 5.6.35.
    #[test]
    fn eerd_reads_the_address_and_words_that_add_up() {
        let mut eeprom = Eeprom::new(MAC, None);
        let words: Vec<u16> = (0..64).map(|word| by_eerd(&mut eeprom, word)).collect();
        assert_eq!(words[..3], [0x5452, 0x1200, 0x5634]);
        assert_eq!(words.iter().fold(0, |sum: u16, word| sum.wrapping_add(*word)), 0xbaba);
        assert_eq!((words[0x0b], words[0x0d], words[0x0e]), (0x100e, 0x100e, 0x8086));
        assert_eq!(eeprom.address(), 0x5634_1200_5452);
        eeprom.write_eerd(3 << eerd::ADDRESS_SHIFT);
        assert_eq!(eeprom.read_eerd() & eerd::DONE, 0, "nothing was started");
    }

    #[test]
    fn a_subsystem_of_choice_leaves_the_sum_right() {
        let mut eeprom = Eeprom::new(MAC, Some(0x1101));
        assert_eq!(by_eerd(&mut eeprom, 0x0b), 0x1101);
        let sum = (0..64).fold(0, |sum: u16, word| sum.wrapping_add(by_eerd(&mut eeprom, word)));
        assert_eq!(sum, 0xbaba);
    }

    /// Moves the pins as a driver does.
    fn by_eecd(eeprom: &mut Eeprom, command: u32, words: usize) -> Vec<u16> {
        let held = eecd::REQ | eecd::CS;
        eeprom.write_eecd(eecd::REQ);
        assert_ne!(eeprom.read_eecd() & eecd::GNT, 0);
        for pins in [eecd::SK, eecd::SK | eecd::CS, eecd::CS] {
            eeprom.write_eecd(eecd::REQ | pins);
        }
        for bit in (0..9).rev() {
            let data = if command >> bit & 1 == 0 { held } else { held | eecd::DI };
            for pins in [data, data | eecd::SK, data] {
                eeprom.write_eecd(pins);
            }
        }
        let mut bit = || {
            eeprom.write_eecd(held | eecd::SK);
            let out = eeprom.read_eecd() & eecd::DO != 0;
            eeprom.write_eecd(held);
            u16::from(out)
        };
        let read = (0..words).map(|_| (0..16).fold(0, |word, _| word << 1 | bit())).collect();
        eeprom.write_eecd(0);
        assert_eq!(eeprom.read_eecd() & eecd::GNT, 0);
        read
    }

    /// 13.4.3 and 5.3.1.
    #[test]
    fn eecd_reads_words_bit_by_bit() {
        let mut eeprom = Eeprom::new(MAC, None);
        assert_eq!(by_eecd(&mut eeprom, 0b110_000000, 3), [0x5452, 0x1200, 0x5634]);
        assert_eq!(by_eecd(&mut eeprom, 0b110_001110, 1), [0x8086]);
        let checksum = by_eerd(&mut eeprom, 0x3f);
        assert_eq!(by_eecd(&mut eeprom, 0b110_111111, 2), [checksum, 0x5452], "it goes round");
        assert_eq!(by_eecd(&mut eeprom, 0b110_000000, 200)[128..131], [0x5452, 0x1200, 0x5634]);
    }

    #[test]
    fn other_commands_do_nothing() {
        let mut eeprom = Eeprom::new(MAC, None);
        // Enable, write, erase.
        for command in [0b100_110000, 0b101_000000, 0b111_000000] {
            assert_eq!(by_eecd(&mut eeprom, command, 1), [0xffff], "it is ready");
        }
    }
}
