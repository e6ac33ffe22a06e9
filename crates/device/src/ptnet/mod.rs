//! ptnet: netmap's device for a port that is passed through to a guest (1b36:000d).
//!
//! # Theory of operation
//!
//! The guest has the port's region as BAR 4. Its driver fills and empties the rings there itself,
//! and talks to the switch by the CSB and the bell in the same memory: this device moves no frame.
//! It says where everything lies, starts and stops the rings, passes kicks on, and tells of two
//! things that end a port's rings: another region, and no switch at all.
//!
//! ```text
//!               CREATE                     the port is gone
//!   Stopped ─────────────► Running ──────────────────────────► Stopped, EPOCH + 1
//!      ▲        DELETE, reset │                                     │
//!      └──────────────────────┴─────────── interrupt ◄──────────────┘
//! ```
//!
//! A driver that finds another `EPOCH` than the one it began with stops its queues, writes `DELETE`
//! and `CREATE`, and takes all rings as new. `PTCTL` reads as the error number of the last command,
//! 0 for none. A command has ended when its write has.
//!
//! *Interrupts.* Vector `i` belongs to ring `i`, transmit rings first; the vector behind them says
//! that `STATUS` or `EPOCH` has changed.
//!
//! *Limits.* [`RINGS_MAX`] rings, those that have a doorbell in BAR 0. A kick of a ring that is not
//! there, or of one that does not run, is ignored.

mod registers;

pub use registers::IO_LEN;
pub use ring::ptnet::{KICK, command, feature, status};

use registers::{TABLE, WORDS};

/// Most rings of a device, of both directions.
pub const RINGS_MAX: u16 = 32;

/// Error numbers that `PTCTL` reads as.
mod error {
    pub const EINVAL: u32 = 22;
    pub const EBUSY: u32 = 16;
    pub const EOPNOTSUPP: u32 = 95;
}

/// Where everything lies in the region, and how much there is of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the region.
    pub region_len: u32,
    /// Buffers, the reserved ones included.
    pub buffers: u32,
    /// Offset of buffer 0.
    pub pool: u32,
    /// Size of the buffers, and their distance.
    pub stride: u32,
    /// Offset of the `netmap_if`.
    pub nifp: u32,
    /// Offset of the worker's need-kick word.
    pub bell: u32,
    /// Offset of the driver's CSB lines.
    pub atok: u32,
    /// Offset of the switch's.
    pub ktoa: u32,
    /// Transmit and receive rings.
    pub rings: [u16; 2],
    /// Slots of each transmit and of each receive ring.
    pub slots: [u32; 2],
}

/// What a write asks the process around the device to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// Nothing.
    None,
    /// Make the rings ready, before the write ends.
    Start,
    /// Leave them alone from now on.
    Stop,
    /// Ring the switch's doorbell.
    Kick,
}

/// The device.
#[derive(Clone, Debug)]
pub struct Ptnet {
    words: [u32; WORDS],
    rings: u16,
    is_running: bool,
}

impl Ptnet {
    /// A device after its reset, without a link.
    #[must_use]
    pub fn new(mac: [u8; 6], geometry: &Geometry) -> Self {
        let [tx, rx] = geometry.rings;
        debug_assert!(tx + rx <= RINGS_MAX);
        let [a, b, low @ ..] = mac;
        let mut device = Self { words: [0; WORDS], rings: tx + rx, is_running: false };
        for (register, value) in [
            (registers::MAC_HI, u16::from_be_bytes([a, b]).into()),
            (registers::MAC_LO, u32::from_be_bytes(low)),
            (registers::NIFP_OFS, geometry.nifp),
            (registers::NUM_TX_RINGS, tx.into()),
            (registers::NUM_RX_RINGS, rx.into()),
            (registers::NUM_TX_SLOTS, geometry.slots[0]),
            (registers::NUM_RX_SLOTS, geometry.slots[1]),
            (registers::REGION_LEN, geometry.region_len),
            (registers::NUM_BUFS, geometry.buffers),
            (registers::BUF_OFS, geometry.pool),
            (registers::BUF_SIZE, geometry.stride),
            (registers::BELL_OFS, geometry.bell),
            (registers::ATOK_OFS, geometry.atok),
            (registers::KTOA_OFS, geometry.ktoa),
        ] {
            device.set(register, value);
        }
        device
    }

    /// Resets the device. Link and epoch stay: they are the port's.
    pub fn reset(&mut self) {
        self.is_running = false;
        self.set(registers::PTFEAT, 0);
        self.set(registers::PTCTL, 0);
    }

    /// Whether the rings are the driver's.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// The vector of changes.
    #[must_use]
    pub fn status_vector(&self) -> u16 {
        self.rings
    }

    /// What the port is like now, bits of [`ring::ptnet::status`]. `true`: that has changed,
    /// interrupt the guest.
    #[must_use]
    pub fn set_status(&mut self, status: u32) -> bool {
        self.get(registers::STATUS) != status && {
            self.set(registers::STATUS, status);
            true
        }
    }

    /// The switch's side of the rings is gone: they stop, and what the driver knows of them holds
    /// no more. The caller interrupts the guest.
    pub fn lose_rings(&mut self) {
        self.is_running = false;
        self.set(registers::EPOCH, self.get(registers::EPOCH).wrapping_add(1));
    }

    /// A start has failed.
    pub fn refuse_start(&mut self, errno: u32) {
        self.is_running = false;
        self.set(registers::PTCTL, errno);
    }

    /// Reads `width` bytes of BAR 0. Only whole words are registers.
    #[must_use]
    pub fn read(&self, offset: u32, width: u8) -> u32 {
        let is_register = width == 4 && TABLE.iter().any(|row| row.offset == offset);
        if is_register { self.get(offset) } else { 0 }
    }

    /// Writes to BAR 0.
    pub fn write(&mut self, offset: u32, width: u8, value: u32) -> Effect {
        if width != 4 {
            return Effect::None;
        }
        if let Some(at) = offset.checked_sub(KICK) {
            return if at.is_multiple_of(4) { self.kick(at / 4) } else { Effect::None };
        }
        if let Some(row) = TABLE.iter().find(|row| row.offset == offset) {
            self.set(offset, self.get(offset) & !row.writable | value & row.writable);
        }
        if offset == registers::PTCTL { self.control(value) } else { Effect::None }
    }

    /// Rings the doorbell of a ring, from whatever BAR.
    pub fn kick(&self, ring: u32) -> Effect {
        let is_there = self.is_running && ring < self.rings.into();
        if is_there { Effect::Kick } else { Effect::None }
    }

    fn control(&mut self, value: u32) -> Effect {
        let acknowledged = self.get(registers::PTFEAT) & feature::REGION != 0;
        let (errno, effect) = match value {
            command::CREATE if self.is_running => (error::EBUSY, Effect::None),
            command::CREATE if !acknowledged => (error::EOPNOTSUPP, Effect::None),
            command::CREATE => (0, Effect::Start),
            command::DELETE if self.is_running => (0, Effect::Stop),
            command::DELETE => (0, Effect::None),
            _ => (error::EINVAL, Effect::None),
        };
        self.is_running = match effect {
            Effect::Start => true,
            Effect::Stop => false,
            Effect::None | Effect::Kick => self.is_running,
        };
        self.set(registers::PTCTL, errno);
        effect
    }

    fn get(&self, register: u32) -> u32 {
        self.words[register as usize / 4]
    }

    fn set(&mut self, register: u32, value: u32) {
        self.words[register as usize / 4] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Ptnet {
        let geometry = Geometry {
            region_len: 0x40_0000,
            buffers: 2050,
            pool: 0x1_0000,
            stride: 2112,
            nifp: 0x1000,
            bell: 0x1080,
            atok: 0x10c0,
            ktoa: 0x1140,
            rings: [1, 2],
            slots: [1024, 512],
        };
        Ptnet::new([0x52, 0x54, 0, 1, 2, 3], &geometry)
    }

    fn started() -> Ptnet {
        let mut device = device();
        assert_eq!(device.write(registers::PTFEAT, 4, u32::MAX), Effect::None);
        assert_eq!(device.write(registers::PTCTL, 4, command::CREATE), Effect::Start);
        device
    }

    /// The words of a driver's probe, in netmap's order of bytes for the address.
    #[test]
    fn a_driver_finds_address_rings_and_the_place_of_everything() {
        let device = device();
        for (register, value) in [
            (registers::MAC_HI, 0x5254),
            (registers::MAC_LO, 0x0001_0203),
            (registers::NIFP_OFS, 0x1000),
            (registers::NUM_TX_RINGS, 1),
            (registers::NUM_RX_RINGS, 2),
            (registers::NUM_TX_SLOTS, 1024),
            (registers::NUM_RX_SLOTS, 512),
            (registers::VNET_HDR_LEN, 0),
            (registers::REGION_LEN, 0x40_0000),
            (registers::NUM_BUFS, 2050),
            (registers::BUF_OFS, 0x1_0000),
            (registers::BUF_SIZE, 2112),
            (registers::BELL_OFS, 0x1080),
            (registers::ATOK_OFS, 0x10c0),
            (registers::KTOA_OFS, 0x1140),
        ] {
            assert_eq!(device.read(register, 4), value, "{register:#x}");
        }
        assert_eq!(device.status_vector(), 3);
    }

    #[test]
    fn the_table_is_in_order_and_in_front_of_the_doorbells() {
        let offsets: Vec<_> = TABLE.iter().map(|row| row.offset).collect();
        assert!(offsets.is_sorted() && offsets.iter().all(|at| at % 4 == 0 && *at < KICK));
        let last = TABLE.last().expect("rows");
        assert_eq!((last.name, last.offset), ("BUF_SIZE", 0x64));
    }

    #[test]
    fn a_driver_without_the_region_is_refused_and_one_with_it_starts_once() {
        let mut device = device();
        assert_eq!(device.write(registers::PTFEAT, 4, feature::VNET_HDR), Effect::None);
        assert_eq!(device.read(registers::PTFEAT, 4), 0, "no header");
        assert_eq!(device.write(registers::PTCTL, 4, command::CREATE), Effect::None);
        assert_eq!(device.read(registers::PTCTL, 4), error::EOPNOTSUPP);
        let mut device = started();
        assert_eq!((device.read(registers::PTCTL, 4), device.is_running()), (0, true));
        assert_eq!(device.write(registers::PTCTL, 4, command::CREATE), Effect::None);
        assert_eq!(device.read(registers::PTCTL, 4), error::EBUSY);
        assert_eq!(device.write(registers::PTCTL, 4, command::DELETE), Effect::Stop);
        assert_eq!(device.write(registers::PTCTL, 4, command::DELETE), Effect::None);
        assert_eq!(device.read(registers::PTCTL, 4), 0);
        assert_eq!(device.write(registers::PTCTL, 4, 3), Effect::None);
        assert_eq!(device.read(registers::PTCTL, 4), error::EINVAL);
        assert_eq!(device.write(registers::PTCTL, 4, command::CREATE), Effect::Start);
        device.refuse_start(12);
        assert_eq!((device.read(registers::PTCTL, 4), device.is_running()), (12, false));
    }

    #[test]
    fn a_kick_is_for_a_ring_that_runs() {
        let mut device = device();
        assert_eq!(device.write(KICK, 4, 0), Effect::None, "it is stopped");
        device = started();
        for (offset, width, effect) in [
            (KICK, 4, Effect::Kick),
            (KICK + 8, 4, Effect::Kick),
            (KICK + 12, 4, Effect::None),
            (KICK + 2, 4, Effect::None),
            (KICK, 2, Effect::None),
            (u32::MAX, 4, Effect::None),
        ] {
            assert_eq!(device.write(offset, width, 7), effect, "{offset:#x}, {width}");
        }
    }

    #[test]
    fn a_lost_port_ends_the_epoch_and_a_reset_does_not() {
        let mut device = started();
        assert!(device.set_status(status::LINK) && !device.set_status(status::LINK));
        device.lose_rings();
        assert!(device.set_status(0));
        assert_eq!((device.read(registers::EPOCH, 4), device.is_running()), (1, false));
        assert_eq!(device.write(KICK, 4, 0), Effect::None);
        device.reset();
        assert_eq!([registers::EPOCH, registers::PTFEAT].map(|at| device.read(at, 4)), [1, 0]);
    }
}
