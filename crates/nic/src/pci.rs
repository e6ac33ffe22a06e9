//! The configuration space of a PCI function: its regions, and an interrupt line or vectors.
//!
//! The VMM keeps a copy of its own and decides where the regions are; it passes each write on. A
//! bit that no driver may write stays as it is.

/// Offsets in the header (PCI 3.0, 6.1), and bits.
mod field {
    pub const VENDOR: usize = 0x00;
    pub const COMMAND: usize = 0x04;
    pub const STATUS: usize = 0x06;
    pub const REVISION: usize = 0x08;
    pub const CACHE_LINE: usize = 0x0c;
    pub const BARS: usize = 0x10;
    pub const SUBSYSTEM: usize = 0x2c;
    pub const CAPABILITIES: usize = 0x34;
    pub const INTERRUPT_LINE: usize = 0x3c;
    pub const INTERRUPT_PIN: usize = 0x3d;
}

/// Bits of the command register.
mod command {
    /// I/O, memory, bus master, memory write and invalidate, parity, SERR#, interrupt disable.
    pub const WRITABLE: u16 = 0x0557;
    pub const BUS_MASTER: u16 = 1 << 2;
    pub const INTERRUPT_DISABLE: u16 = 1 << 10;
}

/// The bit of the status register that shows the level of the line.
const INTERRUPT_STATUS: u8 = 1 << 3;
/// The bit that says that there are capabilities.
const HAS_CAPABILITIES: u8 = 1 << 4;
/// A base address register of I/O ports.
const IO_SPACE: u32 = 1;
/// Two base address registers of memory with 64-bit addresses, which may be prefetched.
const MEMORY_64: u64 = 0xc;

/// The capability of message-signalled interrupts with a table (PCI 3.0, 6.8.2), the only one.
mod msix {
    pub const AT: usize = 0x40;
    pub const ID: u8 = 0x11;
    /// Enable, and mask all.
    pub const WRITABLE: u16 = 0xc000;
}

/// Bytes of a conventional configuration space.
pub const CONFIG_LEN: usize = 256;

/// What a function is.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Vendor and device.
    pub device: [u16; 2],
    /// Vendor and device of the card.
    pub subsystem: [u16; 2],
    /// The revision.
    pub revision: u8,
    /// Base class, subclass, programming interface.
    pub class: [u8; 3],
    /// Bytes of the first region, of memory, and of the second, of I/O ports: powers of two, or 0
    /// for none.
    pub regions: [u32; 2],
}

/// A configuration space.
#[derive(Debug)]
pub struct ConfigSpace {
    /// After a reset.
    initial: [u8; CONFIG_LEN],
    bytes: [u8; CONFIG_LEN],
    /// The bits that a driver may write.
    writable: [u8; CONFIG_LEN],
}

impl ConfigSpace {
    /// The space of a function after its reset.
    pub fn new(identity: Identity) -> Self {
        let (mut bytes, mut writable) = ([0; CONFIG_LEN], [0; CONFIG_LEN]);
        let mut put = |at: usize, from: &[u8], mask: &[u8]| {
            bytes[at..at + from.len()].copy_from_slice(from);
            writable[at..at + mask.len()].copy_from_slice(mask);
        };
        let pair = |[a, b]: [u16; 2]| {
            let ([a0, a1], [b0, b1]) = (a.to_le_bytes(), b.to_le_bytes());
            [a0, a1, b0, b1]
        };
        let [base, sub, interface] = identity.class;
        put(field::VENDOR, &pair(identity.device), &[]);
        put(field::COMMAND, &[], &command::WRITABLE.to_le_bytes());
        put(field::REVISION, &[identity.revision, interface, sub, base], &[]);
        put(field::CACHE_LINE, &[], &[0xff; 2]);
        for (at, (size, kind)) in identity.regions.into_iter().zip([0, IO_SPACE]).enumerate() {
            if size > 0 {
                debug_assert!(size.is_power_of_two());
                put(field::BARS + 4 * at, &kind.to_le_bytes(), &(!(size - 1)).to_le_bytes());
            }
        }
        put(field::SUBSYSTEM, &pair(identity.subsystem), &[]);
        put(field::INTERRUPT_LINE, &[], &[0xff]);
        put(field::INTERRUPT_PIN, &[1], &[]);
        Self { initial: bytes, bytes, writable }
    }

    /// The space with one field more, which starts with these bytes.
    fn with(mut self, at: usize, from: &[u8], writable: &[u8]) -> Self {
        self.initial[at..at + from.len()].copy_from_slice(from);
        self.writable[at..at + writable.len()].copy_from_slice(writable);
        self.bytes = self.initial;
        self
    }

    /// The space with a region of `size` bytes, a power of two: I/O ports behind one base address
    /// register.
    pub fn with_io(self, bar: usize, size: u32) -> Self {
        debug_assert!(size.is_power_of_two());
        self.with(field::BARS + 4 * bar, &IO_SPACE.to_le_bytes(), &(!(size - 1)).to_le_bytes())
    }

    /// The space with a region of memory behind two.
    pub fn with_memory(self, bar: usize, size: u64) -> Self {
        debug_assert!(size.is_power_of_two());
        self.with(field::BARS + 4 * bar, &MEMORY_64.to_le_bytes(), &(!(size - 1)).to_le_bytes())
    }

    /// The space with so many vectors in place of the interrupt line. Their table and the bits that
    /// pend lie at these offsets of region `bar`.
    pub fn with_vectors(self, vectors: u16, bar: u8, [table, pending]: [u32; 2]) -> Self {
        let control = (vectors - 1).to_le_bytes();
        let places = [table, pending].map(|at| (at | u32::from(bar)).to_le_bytes());
        self.with(field::STATUS, &[HAS_CAPABILITIES], &[])
            .with(field::CAPABILITIES, &[u8::try_from(msix::AT).expect("low")], &[])
            .with(msix::AT, &[msix::ID], &[])
            .with(msix::AT + 2, &control, &msix::WRITABLE.to_le_bytes())
            .with(msix::AT + 4, places.as_flattened(), &[])
            .with(field::INTERRUPT_PIN, &[0], &[])
    }

    /// Resets the function.
    pub fn reset(&mut self) {
        self.bytes = self.initial;
    }

    /// Reads bytes that lie in the space; `line` is the level of the interrupt line.
    pub fn read(&self, offset: usize, to: &mut [u8], line: bool) {
        to.copy_from_slice(&self.bytes[offset..offset + to.len()]);
        let status = field::STATUS.checked_sub(offset);
        if let Some(status) = status.and_then(|at| to.get_mut(at)).filter(|_| line) {
            *status |= INTERRUPT_STATUS;
        }
    }

    /// Writes bytes that lie in the space.
    pub fn write(&mut self, offset: usize, from: &[u8]) {
        let masks = &self.writable[offset..offset + from.len()];
        let bytes = &mut self.bytes[offset..offset + from.len()];
        for ((byte, mask), new) in bytes.iter_mut().zip(masks).zip(from) {
            *byte = *byte & !mask | new & mask;
        }
    }

    /// Whether the function may reach memory.
    pub fn is_bus_master(&self) -> bool {
        self.command() & command::BUS_MASTER != 0
    }

    /// Whether the function may raise its line.
    pub fn may_interrupt(&self) -> bool {
        self.command() & command::INTERRUPT_DISABLE == 0
    }

    fn command(&self) -> u16 {
        u16::from_le_bytes([self.bytes[field::COMMAND], self.bytes[field::COMMAND + 1]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        device: [0x8086, 0x100e],
        subsystem: [0x8086, 0x001e],
        revision: 3,
        class: [2, 0, 0],
        regions: [0x20000, 0x40],
    };

    fn space() -> ConfigSpace {
        ConfigSpace::new(IDENTITY)
    }

    fn word(space: &ConfigSpace, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        space.read(offset, &mut bytes, false);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn a_driver_finds_the_card_and_the_sizes_of_its_regions() {
        let mut space = space();
        assert_eq!([0, 8, 0x2c].map(|at| word(&space, at)), [0x100e_8086, 0x0200_0003, 0x1e_8086]);
        assert_eq!(word(&space, 0x3c), 0x100, "pin A");
        for (at, size) in [(0x10, 0xfffe_0000), (0x14, 0xffff_ffc1), (0x18, 0), (0x30, 0)] {
            space.write(at, &[0xff; 4]);
            assert_eq!(word(&space, at), size, "{at:#x}");
        }
        space.write(0, &[0xff; 8]);
        assert_eq!(word(&space, 0), 0x100e_8086);
        assert_eq!(word(&space, 4), 0x0557, "the status is read only");
    }

    #[test]
    fn the_command_register_is_obeyed_and_reset_and_the_status_shows_the_line() {
        let mut space = space();
        assert!(!space.is_bus_master() && space.may_interrupt());
        space.write(4, &[6, 4]);
        assert!(space.is_bus_master() && !space.may_interrupt());
        for (offset, len, at) in [(6, 1, 0), (4, 4, 2), (0, 256, 6)] {
            let mut bytes = vec![0; len];
            space.read(offset, &mut bytes, true);
            assert_eq!(bytes[at], INTERRUPT_STATUS);
        }
        space.read(7, &mut [0; 2], true);
        space.reset();
        assert!(!space.is_bus_master() && word(&space, 4) == 0);
    }

    #[test]
    fn a_function_with_vectors_has_a_capability_for_them_and_no_line() {
        let identity = Identity { regions: [0, 0], ..IDENTITY };
        let mut space = ConfigSpace::new(identity)
            .with_io(0, 0x100)
            .with_memory(4, 1 << 33)
            .with_vectors(3, 2, [0, 0x800]);
        assert_eq!([0x04, 0x34, 0x3c].map(|at| word(&space, at)), [0x10_0000, 0x40, 0]);
        assert_eq!([0x40, 0x44, 0x48].map(|at| word(&space, at)), [0x2_0011, 2, 0x802]);
        for (at, size) in [(0x10, 0xffff_ff01), (0x14, 0), (0x20, 0xc), (0x24, 0xffff_fffe)] {
            space.write(at, &[0xff; 4]);
            assert_eq!(word(&space, at), size, "{at:#x}");
        }
        space.write(0x40, &[0xff; 4]);
        assert_eq!(word(&space, 0x40), 0xc002_0011);
        space.reset();
        assert_eq!([0x10, 0x20, 0x40].map(|at| word(&space, at)), [1, 0xc, 0x2_0011]);
    }
}
