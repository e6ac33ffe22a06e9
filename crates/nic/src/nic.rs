//! The device as its VMM sees it: configuration space and registers.
//!
//! An access changes registers and moves no frame: the VMM gets its reply first. Frames move
//! afterwards, in [`crate::frames`].

use device::e1000::{BAR0_LEN, CSB_SUBSYSTEM, Config, E1000, IO_LEN};
use packet::MacAddr;
use vfio::{Description, Device, Irq, Region, irq, region};

use crate::pci::{CONFIG_LEN, ConfigSpace, Identity};

/// The region of I/O ports.
const IO: u32 = region::BAR0 + 1;

/// An Intel 82540EM, as QEMU has it. By the subsystem, drivers know that it has a communication
/// status block; for all others it is a plain one.
const IDENTITY: Identity = Identity {
    device: [0x8086, 0x100e],
    subsystem: [0x8086, CSB_SUBSYSTEM],
    revision: 3,
    class: [2, 0, 0],
    regions: [BAR0_LEN, IO_LEN],
};

/// The regions and interrupts of the device.
pub fn description() -> Description {
    let mut description = Description::default();
    let regions = &mut description.regions;
    regions[region::BAR0 as usize] = Region::of(BAR0_LEN.into());
    regions[IO as usize] = Region::of(IO_LEN.into());
    regions[region::CONFIG as usize] = Region::of(CONFIG_LEN as u64);
    description.irqs[irq::INTX as usize] = Irq::Line;
    description
}

/// The device.
#[derive(Debug)]
pub struct Nic {
    config: ConfigSpace,
    pub model: E1000,
    /// Reads and writes of registers.
    pub accesses: u64,
    /// The time of the accesses, which the event loop keeps.
    pub now_ns: u64,
    /// The cable is plugged in.
    link: bool,
}

impl Nic {
    /// A device after its reset, whose cable is plugged in. Its interrupts are at least
    /// `coalesce_usecs` apart.
    pub fn new(mac: MacAddr, coalesce_usecs: u16) -> Self {
        let config = Config { mac: mac.octets(), coalesce_usecs, csb: true };
        let mut model = E1000::new(&config);
        model.set_link(true, 0);
        let config = ConfigSpace::new(IDENTITY);
        Self { config, model, accesses: 0, now_ns: 0, link: true }
    }

    /// Whether the device may reach the guest's memory.
    pub fn is_bus_master(&self) -> bool {
        self.config.is_bus_master()
    }

    /// Plugs the cable in, or pulls it out.
    pub fn set_link(&mut self, link: bool) {
        if std::mem::replace(&mut self.link, link) != link {
            self.model.set_link(link, self.now_ns);
        }
    }
}

impl Device for Nic {
    fn read(&mut self, region: u32, offset: u64, to: &mut [u8]) {
        if region == region::CONFIG {
            let offset = usize::try_from(offset).expect("bounded by the region");
            return self.config.read(offset, to, self.model.interrupt());
        }
        self.accesses += 1;
        for (at, part) in pieces(offset, to.len()) {
            let (width, now) = (u8::try_from(part.len()).expect("a word"), self.now_ns);
            let value = match region {
                IO => self.model.read_io(at, width, now),
                _ => self.model.read(at, width, now),
            };
            to[part.clone()].copy_from_slice(&value.to_le_bytes()[..part.len()]);
        }
    }

    fn write(&mut self, region: u32, offset: u64, from: &[u8]) {
        if region == region::CONFIG {
            let offset = usize::try_from(offset).expect("bounded by the region");
            return self.config.write(offset, from);
        }
        self.accesses += 1;
        for (at, part) in pieces(offset, from.len()) {
            let (width, now) = (u8::try_from(part.len()).expect("a word"), self.now_ns);
            let mut value = [0; 8];
            value[..part.len()].copy_from_slice(&from[part]);
            let value = u64::from_le_bytes(value);
            // Each turn looks for frames in both directions, whatever an access was about.
            let _ = match region {
                IO => self.model.write_io(at, width, value, now),
                _ => self.model.write(at, width, value, now),
            };
        }
    }

    fn reset(&mut self) {
        self.config.reset();
        self.model.reset();
    }

    fn line(&self) -> bool {
        self.config.may_interrupt() && self.model.interrupt()
    }
}

/// The accesses of a bus in `len` bytes: naturally aligned, of at most four bytes, as far as that
/// can be. Each has its offset in the region and its place among the bytes.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u32, std::ops::Range<usize>)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = u32::try_from(offset).expect("regions are small") + u32::try_from(from).ok()?;
        let width = [4, 2, 1].into_iter().find(|width| {
            at.is_multiple_of(u32::try_from(*width).expect("a width")) && from + width <= len
        })?;
        let part = from..from + width;
        from += width;
        Some((at, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_of_any_width_is_made_of_words_as_a_bus_has_them() {
        let of = |offset, len| pieces(offset, len).collect::<Vec<_>>();
        assert_eq!(of(8, 4), [(8, 0..4)]);
        assert_eq!(of(8, 8), [(8, 0..4), (12, 4..8)]);
        assert_eq!(of(9, 4), [(9, 0..1), (10, 1..3), (12, 3..4)]);
        assert_eq!(of(6, 7), [(6, 0..2), (8, 2..6), (12, 6..7)]);
        assert_eq!(of(3, 0), []);
    }

    #[test]
    fn the_card_is_an_82540em_with_its_address_in_the_registers() {
        let mut nic = Nic::new("52:54:00:01:02:03".parse().expect("an address"), 0);
        let mut id = [0; 4];
        nic.read(region::CONFIG, 0, &mut id);
        assert_eq!(id, [0x86, 0x80, 0x0e, 0x10]);
        // RAL0 and RAH0 (13.4.3 of Intel's manual).
        let mut address = [0; 8];
        nic.read(region::BAR0, 0x5400, &mut address);
        assert_eq!(address[..6], [0x52, 0x54, 0, 1, 2, 3]);
        assert!(!nic.line() && !nic.is_bus_master());
    }

    /// PCI 3.0, 6.2.3: the status shows the level, also where the command register holds it back.
    #[test]
    fn the_status_shows_an_interrupt_that_is_disabled() {
        let mut nic = Nic::new("52:54:00:01:02:03".parse().expect("an address"), 0);
        // IMS and ICS: a change of the link (13.4.20, 13.4.19).
        nic.write(region::BAR0, 0xd0, &4u32.to_le_bytes());
        nic.write(region::BAR0, 0xc8, &4u32.to_le_bytes());
        assert!(nic.line());
        nic.write(region::CONFIG, 4, &[0, 4]);
        let mut status = [0];
        nic.read(region::CONFIG, 6, &mut status);
        assert!(!nic.line() && status[0] & 8 != 0);
    }
}
