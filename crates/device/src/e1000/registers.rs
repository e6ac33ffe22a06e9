//! The registers of the 82540EM: chapter 13 of the manual as one table.
//!
//! [`TABLE`] has a row for each register: where it is, what it holds after a reset, and which of
//! its bits a driver can write. A register that only stores what was written needs nothing else. A
//! write to one of the others has an effect besides; `E1000::write_word` lists those, and the bits
//! that their effects depend on are here, too.
//!
//! What is not in the table reads as zeros and ignores writes: registers that other members of the
//! family have, flexible filters (13.6.9 to 13.6.11) and the packet buffer memory (13.8.11).

/// What a read does to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing.
    Word,
    /// A counter: the read sets it to 0. It stays at its greatest value (13.7).
    Count,
    /// The lower half of a counter of 64 bits: nothing.
    Low,
    /// The upper half: the read sets both halves to 0.
    High,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Register {
    #[cfg(test)]
    pub name: &'static str,
    /// Byte offset in BAR 0.
    pub offset: u32,
    /// How many words there are, and how many bytes from one to the next.
    pub words: u32,
    pub stride: u32,
    pub kind: Kind,
    /// After a reset.
    pub reset: u32,
    /// The bits that a write changes.
    pub writable: u32,
}

macro_rules! registers {
    ($(
        $name:ident $offset:literal $words:literal $(/ $stride:literal)?
        $kind:ident $reset:literal $writable:expr;
    )*) => {
        $(pub(super) const $name: u32 = $offset;)*

        /// All registers, by section of the manual.
        pub(super) const TABLE: &[Register] = &[$(Register {
            #[cfg(test)]
            name: stringify!($name),
            offset: $name,
            words: $words,
            stride: stride(&[$($stride)?]),
            kind: Kind::$kind,
            reset: $reset,
            writable: $writable,
        },)*];
    };
}

/// Words follow each other, unless the table says otherwise.
const fn stride(given: &[u32]) -> u32 {
    if given.is_empty() { 4 } else { given[0] }
}

/// Bits that a write changes: all, none.
const ALL: u32 = u32::MAX;
const NONE: u32 = 0;

registers! {
// name    offset words kind  reset     writable
// 13.4: main registers. Those with an effect have no bits of their own to write.
CTRL       0x0000   1 Word  0x0000_0241 !(ctrl::RST | ctrl::PHY_RST);
STATUS     0x0008   1 Word  0x0000_0681 NONE;
EECD       0x0010   1 Word  0           NONE;
EERD       0x0014   1 Word  0           NONE;
CTRL_EXT   0x0018   1 Word  0           !ctrl_ext::EE_RST;
MDIC       0x0020   1 Word  0x1000_0000 NONE;
FCAL       0x0028   1 Word  0           ALL;
FCAH       0x002c   1 Word  0           0xffff;
FCT        0x0030   1 Word  0           0xffff;
VET        0x0038   1 Word  0x0000_8100 0xffff;
ICR        0x00c0   1 Word  0           NONE;
ITR        0x00c4   1 Word  0           0xffff;
ICS        0x00c8   1 Word  0           NONE;
IMS        0x00d0   1 Word  0           NONE;
IMC        0x00d8   1 Word  0           NONE;
RCTL       0x0100   1 Word  0           0x07ff_fffe;
FCTTV      0x0170   1 Word  0           0xffff;
TXCW       0x0178   1 Word  0           0xc000_ffff;
TCTL       0x0400   1 Word  0x0000_0008 0x07ff_fffe;
TIPG       0x0410   1 Word  0x0060_2008 0x3fff_ffff;
AIFS       0x0458   1 Word  0           0xffff;
LEDCTL     0x0e00   1 Word  0x0706_0302 ALL;
PBA        0x1000   1 Word  0x0010_0030 NONE;
FCRTL      0x2160   1 Word  0           0x8000_fff8;
FCRTH      0x2168   1 Word  0           0xfff8;
RDBAL      0x2800   1 Word  0           !0xf;
RDBAH      0x2804   1 Word  0           ALL;
RDLEN      0x2808   1 Word  0           0x000f_ff80;
RDH        0x2810   1 Word  0           0xffff;
RDT        0x2818   1 Word  0           0xffff;
RDTR       0x2820   1 Word  0           0xffff;
RXDCTL     0x2828   1 Word  0x0101_0000 0x013f_3f3f;
RADV       0x282c   1 Word  0           0xffff;
RSRPD      0x2c00   1 Word  0           0x0fff;
TXDMAC     0x3000   1 Word  0           1;
TDBAL      0x3800   1 Word  0           !0xf;
TDBAH      0x3804   1 Word  0           ALL;
TDLEN      0x3808   1 Word  0           0x000f_ff80;
TDH        0x3810   1 Word  0           0xffff;
TDT        0x3818   1 Word  0           0xffff;
TIDV       0x3820   1 Word  0           0xffff;
TXDCTL     0x3828   1 Word  0           0xff3f_3f3f;
TADV       0x382c   1 Word  0           0xffff;
TSPMT      0x3830   1 Word  0x0100_0400 ALL;
RXCSUM     0x5000   1 Word  0           0x07ff;
// No chapter has these two: the address of the communication status block. See `csb`.
CSBAL      0x2830   1 Word  0           ALL;
CSBAH      0x2834   1 Word  0           ALL;
// 13.5: filters.
MTA        0x5200 128 Word  0           ALL;
RAL        0x5400  16/8 Word 0          ALL;
RAH        0x5404  16/8 Word 0          0x8003_ffff;
VFTA       0x5600 128 Word  0           ALL;
// 13.6: wake-up. Stored; no packet wakes this device.
WUC        0x5800   1 Word  0           0x000f;
WUFC       0x5808   1 Word  0           0x000f_80ff;
WUS        0x5810   1 Word  0           NONE;
MANC       0x5820   1 Word  0           ALL;
IPAV       0x5838   1 Word  0           0x0001_000f;
IP4AT      0x5840   8 Word  0           ALL;
IP6AT      0x5880   4 Word  0           ALL;
WUPL       0x5900   1 Word  0           NONE;
WUPM       0x5a00  32 Word  0           NONE;
// 13.7: statistics. Of those that only a wire or a half-duplex link counts, each stays 0.
CRCERRS    0x4000   1 Count 0           NONE;
ALGNERRC   0x4004   1 Count 0           NONE;
SYMERRS    0x4008   1 Count 0           NONE;
RXERRC     0x400c   1 Count 0           NONE;
MPC        0x4010   1 Count 0           NONE;
SCC        0x4014   1 Count 0           NONE;
ECOL       0x4018   1 Count 0           NONE;
MCC        0x401c   1 Count 0           NONE;
LATECOL    0x4020   1 Count 0           NONE;
COLC       0x4028   1 Count 0           NONE;
DC         0x4030   1 Count 0           NONE;
TNCRS      0x4034   1 Count 0           NONE;
SEC        0x4038   1 Count 0           NONE;
CEXTERR    0x403c   1 Count 0           NONE;
RLEC       0x4040   1 Count 0           NONE;
XONRXC     0x4048   1 Count 0           NONE;
XONTXC     0x404c   1 Count 0           NONE;
XOFFRXC    0x4050   1 Count 0           NONE;
XOFFTXC    0x4054   1 Count 0           NONE;
FCRUC      0x4058   1 Count 0           NONE;
PRC64      0x405c   1 Count 0           NONE;
PRC127     0x4060   1 Count 0           NONE;
PRC255     0x4064   1 Count 0           NONE;
PRC511     0x4068   1 Count 0           NONE;
PRC1023    0x406c   1 Count 0           NONE;
PRC1522    0x4070   1 Count 0           NONE;
GPRC       0x4074   1 Count 0           NONE;
BPRC       0x4078   1 Count 0           NONE;
MPRC       0x407c   1 Count 0           NONE;
GPTC       0x4080   1 Count 0           NONE;
GORCL      0x4088   1 Low   0           NONE;
GORCH      0x408c   1 High  0           NONE;
GOTCL      0x4090   1 Low   0           NONE;
GOTCH      0x4094   1 High  0           NONE;
RNBC       0x40a0   1 Count 0           NONE;
RUC        0x40a4   1 Count 0           NONE;
RFC        0x40a8   1 Count 0           NONE;
ROC        0x40ac   1 Count 0           NONE;
RJC        0x40b0   1 Count 0           NONE;
MGTPRC     0x40b4   1 Count 0           NONE;
MGTPDC     0x40b8   1 Count 0           NONE;
MGTPTC     0x40bc   1 Count 0           NONE;
TORL       0x40c0   1 Low   0           NONE;
TORH       0x40c4   1 High  0           NONE;
TOTL       0x40c8   1 Low   0           NONE;
TOTH       0x40cc   1 High  0           NONE;
TPR        0x40d0   1 Count 0           NONE;
TPT        0x40d4   1 Count 0           NONE;
PTC64      0x40d8   1 Count 0           NONE;
PTC127     0x40dc   1 Count 0           NONE;
PTC255     0x40e0   1 Count 0           NONE;
PTC511     0x40e4   1 Count 0           NONE;
PTC1023    0x40e8   1 Count 0           NONE;
PTC1522    0x40ec   1 Count 0           NONE;
MPTC       0x40f0   1 Count 0           NONE;
BPTC       0x40f4   1 Count 0           NONE;
TSCTC      0x40f8   1 Count 0           NONE;
TSCTFC     0x40fc   1 Count 0           NONE;
// 13.8: diagnostics. Stored; there is no packet buffer behind them.
RDFH       0x2410   1 Word  0           0x1fff;
RDFT       0x2418   1 Word  0           0x1fff;
RDFHS      0x2420   1 Word  0           0x1fff;
RDFTS      0x2428   1 Word  0           0x1fff;
RDFPC      0x2430   1 Word  0           0x1fff;
TDFH       0x3410   1 Word  0           0x07ff;
TDFT       0x3418   1 Word  0           0x07ff;
TDFHS      0x3420   1 Word  0           0x1fff;
TDFTS      0x3428   1 Word  0           0x1fff;
TDFPC      0x3430   1 Word  0           0x1fff;
}

/// Behind the last word of the table.
const END: u32 = WUPM + 32 * 4;
const WORDS: usize = END as usize / 4;

/// For each word of BAR 0 up to [`END`], one more than the number of its row; 0: there is none.
const ROWS: [u8; WORDS] = rows();

const fn rows() -> [u8; WORDS] {
    assert!(TABLE.len() < u8::MAX as usize);
    let mut rows = [0; WORDS];
    let (mut row, mut number) = (0, 0);
    while row < TABLE.len() {
        number += 1;
        let Register { offset, words, stride, .. } = TABLE[row];
        let mut word = 0;
        while word < words {
            let at = (offset + word * stride) as usize / 4;
            assert!(rows[at] == 0, "two registers at one offset");
            rows[at] = number;
            word += 1;
        }
        row += 1;
    }
    rows
}

/// What all registers hold.
#[derive(Debug)]
pub(super) struct Registers(Box<[u32; WORDS]>);

impl Registers {
    /// As after a reset.
    pub fn new() -> Self {
        let mut this = Self(Box::new([0; WORDS]));
        this.reset();
        this
    }

    /// Sets each register to its value after a reset.
    pub fn reset(&mut self) {
        self.0.fill(0);
        for row in TABLE {
            self.set(row.offset, row.reset);
        }
    }

    /// The row of the word at a byte offset.
    fn row(offset: u32) -> Option<&'static Register> {
        let number = *ROWS.get(offset as usize / 4)?;
        TABLE.get(usize::from(number).checked_sub(1)?)
    }

    /// What a register holds. The offset is one of the table's.
    #[inline]
    pub fn get(&self, offset: u32) -> u32 {
        self.0[offset as usize / 4]
    }

    /// Whether any of these bits is set.
    #[inline]
    pub fn has(&self, offset: u32, bits: u32) -> bool {
        self.get(offset) & bits != 0
    }

    /// Sets a register of the table, from the device's side.
    #[inline]
    pub fn set(&mut self, offset: u32, value: u32) {
        self.0[offset as usize / 4] = value;
    }

    /// A counter of 64 bits, or another pair of a low and a high word.
    #[inline]
    pub fn pair(&self, low: u32) -> u64 {
        u64::from(self.get(low)) | u64::from(self.get(low + 4)) << 32
    }

    /// Sets such a pair.
    #[inline]
    pub fn set_pair(&mut self, low: u32, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        self.set(low, u32::from_le_bytes([a, b, c, d]));
        self.set(low + 4, u32::from_le_bytes([e, f, g, h]));
    }

    /// The driver reads a word.
    pub fn load(&mut self, offset: u32) -> u32 {
        let Some(row) = Self::row(offset) else { return 0 };
        let value = self.get(offset);
        match row.kind {
            Kind::Word | Kind::Low => {}
            Kind::Count => self.set(offset, 0),
            Kind::High => self.set_pair(offset - 4, 0),
        }
        value
    }

    /// The driver writes a word: those of its bits change that it may write.
    pub fn store(&mut self, offset: u32, value: u32) {
        let Some(row) = Self::row(offset) else { return };
        let kept = self.get(offset) & !row.writable;
        self.set(offset, kept | value & row.writable);
    }
}

/// Device Control (13.4.1).
pub(super) mod ctrl {
    pub const RST: u32 = 1 << 26;
    /// VLAN mode: tags are stripped and inserted.
    pub const VME: u32 = 1 << 30;
    pub const PHY_RST: u32 = 1 << 31;
}

/// Device Status (13.4.2). The rest of it never changes: full duplex, 1000 Mb/s.
pub(super) mod status {
    pub const LU: u32 = 1 << 1;
}

/// Extended Device Control (13.4.6).
pub(super) mod ctrl_ext {
    pub const EE_RST: u32 = 1 << 13;
}

/// Interrupt causes: ICR, ICS, IMS and IMC (13.4.17).
pub(super) mod cause {
    /// A transmit descriptor was written back.
    pub const TXDW: u32 = 1 << 0;
    /// The transmit queue is empty.
    pub const TXQE: u32 = 1 << 1;
    /// The link's state changed.
    pub const LSC: u32 = 1 << 2;
    /// Few receive descriptors are left.
    pub const RXDMT0: u32 = 1 << 4;
    /// A frame came and there was no buffer.
    pub const RXO: u32 = 1 << 6;
    /// The receive timer expired.
    pub const RXT0: u32 = 1 << 7;
    /// An access by MDIC is complete.
    pub const MDAC: u32 = 1 << 9;
    /// All that the 82540EM has.
    pub const ALL: u32 = 0x0001_ffff;
}

/// Receive Control (13.4.22).
pub(super) mod rctl {
    pub const EN: u32 = 1 << 1;
    /// Frames with errors are stored.
    pub const SBP: u32 = 1 << 2;
    /// Unicast and multicast promiscuous.
    pub const UPE: u32 = 1 << 3;
    pub const MPE: u32 = 1 << 4;
    /// Long packets.
    pub const LPE: u32 = 1 << 5;
    /// Receive descriptor minimum threshold: a half, a quarter, an eighth of the ring.
    pub const RDMTS_SHIFT: u32 = 8;
    /// Which bits of an address the multicast table is looked up by.
    pub const MO_SHIFT: u32 = 12;
    /// Broadcast.
    pub const BAM: u32 = 1 << 15;
    pub const BSIZE_SHIFT: u32 = 16;
    /// VLAN filter.
    pub const VFE: u32 = 1 << 18;
    /// The canonical form indicator is compared, with this.
    pub const CFIEN: u32 = 1 << 19;
    pub const CFI: u32 = 1 << 20;
    /// The buffer size is 16 times as large.
    pub const BSEX: u32 = 1 << 25;
    /// The FCS is not stored.
    pub const SECRC: u32 = 1 << 26;
}

/// Receive Delay Timer (13.4.30).
pub(super) mod rdtr {
    /// The timer expires now.
    pub const FPD: u32 = 1 << 31;
}

/// Transmit Control (13.4.33).
pub(super) mod tctl {
    pub const EN: u32 = 1 << 1;
}

/// Receive Checksum Control (13.4.47).
pub(super) mod rxcsum {
    /// Checksums of TCP and UDP are checked.
    pub const TUOFL: u32 = 1 << 9;
}

/// Receive Address High (13.5.3).
pub(super) mod rah {
    /// The address is valid.
    pub const AV: u32 = 1 << 31;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(name: &str) -> &'static Register {
        TABLE.iter().find(|row| row.name == name).expect("in the table")
    }

    #[test]
    fn after_a_reset_registers_hold_what_the_manual_says() {
        let mut registers = Registers::new();
        // 13.4.11, 13.4.16, 13.4.34, 13.4.2: full duplex, 1000 Mb/s, no link yet.
        for (name, value) in
            [("VET", 0x8100), ("PBA", 0x0010_0030), ("TIPG", 0x0060_2008), ("STATUS", 0x681)]
        {
            assert_eq!(registers.load(register(name).offset), value, "{name}");
        }
        registers.store(VFTA + 4 * 127, 7);
        registers.reset();
        assert_eq!(registers.load(VFTA + 4 * 127), 0);
    }

    /// 13.4.26 and 13.4.38: lengths are multiples of 128 bytes, ring addresses of 16.
    #[test]
    fn only_bits_that_exist_can_be_written() {
        let mut registers = Registers::new();
        for (name, value) in [
            ("TDLEN", 0x000f_ff80),
            ("RDBAL", 0xffff_fff0),
            ("RDT", 0xffff),
            ("STATUS", 0x681),
            ("GPRC", 0),
            ("CTRL", !(ctrl::RST | ctrl::PHY_RST)),
        ] {
            registers.store(register(name).offset, u32::MAX);
            assert_eq!(registers.load(register(name).offset), value, "{name}");
        }
    }

    /// What the self-test of Linux's driver (`ethtool -t`) writes, and finds again.
    #[test]
    fn the_patterns_of_a_self_test_are_stored() {
        let whole = [FCAL, RDBAH, TDBAH, RAL, RAL + 8 * 15, MTA, MTA + 4 * 127].map(|at| (at, ALL));
        let low = [FCAH, FCT, VET, RDTR, RDH, RDT, FCTTV, TIDV].map(|at| (at, 0xffff));
        let others = [
            (RDLEN, 0x000f_ff80),
            (TDLEN, 0x000f_ff80),
            (FCRTH, 0xfff8),
            (TIPG, 0x3fff_ffff),
            (RDBAL, 0xffff_fff0),
            (TDBAL, 0xffff_fff0),
            (TXCW, 0xc000_ffff),
            (RAH, 0x8003_ffff),
            (RAH + 8 * 15, 0x8003_ffff),
        ];
        let mut registers = Registers::new();
        for (offset, mask) in whole.into_iter().chain(low).chain(others) {
            for pattern in [0x5a5a_5a5a, 0xa5a5_a5a5, 0, ALL] {
                registers.store(offset, pattern);
                assert_eq!(registers.load(offset), pattern & mask, "{offset:x}");
            }
        }
    }

    /// 13.7: a read clears a counter, and the read of its upper half one of 64 bits.
    #[test]
    fn a_read_clears_a_counter() {
        let mut registers = Registers::new();
        registers.set(GPRC, 3);
        registers.set_pair(TORL, 0x1_0000_0002);
        assert_eq!((registers.load(GPRC), registers.load(GPRC)), (3, 0));
        assert_eq!((registers.load(TORL), registers.load(TORL)), (2, 2));
        assert_eq!((registers.load(TORH), registers.load(TORL)), (1, 0));
    }

    #[test]
    fn what_is_no_register_reads_as_zeros() {
        let mut registers = Registers::new();
        for offset in [0x0004, 0x0024, 0x4024, 0x5b50, END, 0x1_fffc, u32::MAX] {
            registers.store(offset, u32::MAX);
            assert_eq!(registers.load(offset), 0, "{offset:x}");
        }
    }
}
