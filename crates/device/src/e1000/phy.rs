//! The PHY (13.4.7.1): the registers of an M88E1000 behind MDIC, and the state of the link.
//!
//! ```text
//!            cable and power                        CTRL.PHY_RST, PCTRL: reset, negotiate again
//!   down ───────────────────────► up               up ──────────► up, and PSTATUS says once that
//!        ◄───────────────────────                                 the link was lost
//!            either is gone
//! ```
//!
//! Negotiation takes no time and always finds the same partner: full duplex at 1000 Mb/s, no flow
//! control. Registers that steer analogue parts or count line errors only store what was written.

/// The registers that have a meaning here, and the bits of them (13.4.7.1).
mod pctrl {
    pub const NUMBER: usize = 0;
    pub const RESTART: u16 = 1 << 9;
    pub const POWER_DOWN: u16 = 1 << 11;
    pub const RESET: u16 = 1 << 15;
}
mod pstatus {
    pub const NUMBER: usize = 1;
    /// Latched low: once lost, it reads as 0 the next time.
    pub const LINK: u16 = 1 << 2;
    pub const NEGOTIATED: u16 = 1 << 5;
}
/// What reads as 0 without a link, by register: the partner's abilities, their expansion, the
/// state of 1000BASE-T, and the speed that was found.
const LINKED: [(usize, u16); 4] = [(5, 0x41e1), (6, 0x0001), (10, 0x7c00), (17, 0x2c00)];

/// Number, value after a reset, bits that can be written.
const TABLE: [(usize, u16, u16); 32] = {
    let mut table = [(0, 0, 0xffff); 32];
    let mut number = 0;
    while number < table.len() {
        table[number].0 = number;
        number += 1;
    }
    let known = [
        (pctrl::NUMBER, 0x1140, 0x7dc0),
        (pstatus::NUMBER, 0x7949, 0),
        (2, 0x0141, 0),      // identifier: Marvell
        (3, 0x0c20, 0),      // identifier: M88E1011
        (4, 0x01e1, 0xffff), // what is advertised
        (5, 0x0000, 0),
        (6, 0x0000, 0),
        (8, 0x0000, 0),      // the partner's next page
        (9, 0x0300, 0xff00), // 1000BASE-T control
        (10, 0x0000, 0),
        (15, 0x3000, 0),      // extended status: 1000BASE-T
        (16, 0x0068, 0xffff), // specific control
        (17, 0x8000, 0),
        (19, 0x0000, 0),      // interrupts
        (20, 0x0d60, 0xffff), // extended specific control 1
        (21, 0x0000, 0),      // receive errors
    ];
    let mut row = 0;
    while row < known.len() {
        table[known[row].0] = known[row];
        row += 1;
    }
    table
};

/// MDI Control (13.4.7).
mod mdic {
    pub const REGISTER_SHIFT: u32 = 16;
    pub const PHY_SHIFT: u32 = 21;
    pub const OP_SHIFT: u32 = 26;
    pub const WRITE: u32 = 1;
    pub const READ: u32 = 2;
    pub const READY: u32 = 1 << 28;
    pub const INTERRUPT: u32 = 1 << 29;
    pub const ERROR: u32 = 1 << 30;
}
/// The address of the one PHY.
const ADDRESS: u32 = 1;

/// What an access has caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    /// What MDIC reads from now on.
    pub mdic: u32,
    /// The driver wants to be told that the access is complete.
    pub interrupt: bool,
    /// The link is another, or was lost meanwhile.
    pub link_changed: bool,
}

#[derive(Debug)]
pub(super) struct Phy {
    registers: [u16; 32],
    /// There is a cable.
    cable: bool,
    /// The link was lost since PSTATUS was read.
    lost: bool,
}

impl Phy {
    /// A PHY after power-on, without a cable.
    pub fn new() -> Self {
        Self { registers: TABLE.map(|(_, reset, _)| reset), cable: false, lost: false }
    }

    /// Whether the link is up.
    pub fn link(&self) -> bool {
        self.cable && self.registers[pctrl::NUMBER] & pctrl::POWER_DOWN == 0
    }

    /// Plugs a cable in or pulls it; returns whether the link changed.
    pub fn set_cable(&mut self, cable: bool) -> bool {
        let before = self.link();
        self.cable = cable;
        self.changed_from(before)
    }

    /// The PHY's own reset; returns whether the link was lost meanwhile.
    pub fn reset(&mut self) -> bool {
        let before = self.link();
        self.registers = TABLE.map(|(_, reset, _)| reset);
        self.lost |= before;
        before || self.link()
    }

    /// Does what a write to MDIC asks for.
    pub fn access(&mut self, value: u32) -> Done {
        let number = (value >> mdic::REGISTER_SHIFT & 0x1f) as usize;
        let [low, high, ..] = value.to_le_bytes();
        let mut done = Done {
            mdic: value & !mdic::ERROR | mdic::READY,
            interrupt: value & mdic::INTERRUPT != 0,
            link_changed: false,
        };
        match (value >> mdic::PHY_SHIFT & 0x1f, value >> mdic::OP_SHIFT & 3) {
            (ADDRESS, mdic::READ) => {
                done.mdic = done.mdic & !0xffff | u32::from(self.read(number));
            }
            (ADDRESS, mdic::WRITE) => {
                done.link_changed = self.write(number, u16::from_le_bytes([low, high]));
            }
            _ => done.mdic |= mdic::ERROR,
        }
        done
    }

    fn read(&mut self, number: usize) -> u16 {
        let linked = LINKED.iter().find(|(at, _)| *at == number).map_or(0, |(_, bits)| *bits);
        let value = self.registers[number] | if self.link() { linked } else { 0 };
        if number != pstatus::NUMBER {
            return value;
        }
        let lost = std::mem::take(&mut self.lost);
        match self.link() {
            true if lost => value | pstatus::NEGOTIATED,
            true => value | pstatus::NEGOTIATED | pstatus::LINK,
            false => value,
        }
    }

    /// Returns whether the link changed.
    fn write(&mut self, number: usize, value: u16) -> bool {
        if number == pctrl::NUMBER && value & pctrl::RESET != 0 {
            return self.reset();
        }
        let before = self.link();
        let (_, _, writable) = TABLE[number];
        let register = &mut self.registers[number];
        *register = *register & !writable | value & writable;
        let again = number == pctrl::NUMBER && value & pctrl::RESTART != 0 && self.link();
        self.lost |= again && before;
        self.changed_from(before) || again
    }

    fn changed_from(&mut self, before: bool) -> bool {
        let now = self.link();
        self.lost |= before && !now;
        before != now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(phy: &mut Phy, number: u32) -> u32 {
        let done = phy.access(mdic::READ << 26 | ADDRESS << 21 | number << 16);
        assert_eq!(done.mdic & (mdic::READY | mdic::ERROR), mdic::READY);
        done.mdic & 0xffff
    }

    fn write(phy: &mut Phy, number: u32, value: u32) -> Done {
        phy.access(mdic::WRITE << 26 | ADDRESS << 21 | number << 16 | value)
    }

    fn plugged() -> Phy {
        let mut phy = Phy::new();
        assert!(phy.set_cable(true));
        phy
    }

    /// 13.4.7.1, PID and EPID: by this a driver knows the 82540EM's PHY.
    #[test]
    fn it_is_an_m88e1011() {
        let mut phy = Phy::new();
        assert_eq!(read(&mut phy, 2) << 16 | read(&mut phy, 3), 0x0141_0c20);
        write(&mut phy, 2, 0);
        assert_eq!(read(&mut phy, 2), 0x0141, "it cannot be written");
    }

    /// 13.4.7.
    #[test]
    fn an_address_without_a_phy_is_an_error() {
        let mut phy = plugged();
        for value in [mdic::READ << 26 | 2 << 21, mdic::WRITE << 26, ADDRESS << 21, u32::MAX] {
            let done = phy.access(value);
            let bits = mdic::READY | mdic::ERROR;
            assert_eq!(done.mdic & bits, bits, "{value:x}");
        }
        assert!(phy.access(mdic::INTERRUPT | mdic::READ << 26 | ADDRESS << 21).interrupt);
    }

    /// 13.4.7.1, PSTATUS: the bit is latched low.
    #[test]
    fn a_lost_link_is_seen_once_when_it_is_back() {
        let mut phy = plugged();
        let link = |phy: &mut Phy| read(phy, 1) & 0x24;
        assert_eq!(link(&mut phy), 0x24);
        assert!(phy.set_cable(false) && !phy.link() && !phy.set_cable(false));
        assert_eq!(link(&mut phy), 0);
        assert!(phy.set_cable(true));
        assert_eq!(link(&mut phy), 0x24, "it was seen while it was down");
        assert!(phy.set_cable(false) && phy.set_cable(true));
        assert_eq!((link(&mut phy), link(&mut phy)), (0x20, 0x24));
    }

    /// 13.4.7.1, PCTRL: bits that clear themselves.
    #[test]
    fn negotiation_and_reset_end_with_the_link_up() {
        let mut phy = plugged();
        for control in [0x1140 | 1 << 9, 1 << 15] {
            write(&mut phy, 16, 0x0808);
            assert!(write(&mut phy, 0, control).link_changed && phy.link());
            assert_eq!(read(&mut phy, 0), 0x1140);
            assert_eq!((read(&mut phy, 1) & 4, read(&mut phy, 1) & 4), (0, 4));
        }
        assert_eq!(read(&mut phy, 16), 0x0068, "the reset was of all registers");
        phy.set_cable(false);
        assert!(!write(&mut phy, 0, 0x1140 | 1 << 9).link_changed && !phy.link());
    }

    /// 13.4.7.1, PCTRL, PSSTAT, GSTATUS, LPA: power-down, and what a driver reads the speed from.
    #[test]
    fn a_phy_without_power_has_no_link() {
        let mut phy = plugged();
        assert_eq!(
            (read(&mut phy, 17), read(&mut phy, 10), read(&mut phy, 5)),
            (0xac00, 0x7c00, 0x41e1)
        );
        assert!(write(&mut phy, 0, 0x1140 | 1 << 11).link_changed && !phy.link());
        assert_eq!((read(&mut phy, 17), read(&mut phy, 10), read(&mut phy, 5)), (0x8000, 0, 0));
        assert!(write(&mut phy, 0, 0x1140).link_changed && phy.link());
    }
}
