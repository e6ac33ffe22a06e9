//! What a device is to its VMM: regions, interrupts, and accesses to them.

use std::os::fd::OwnedFd;

/// Numbers of a PCI device's regions (`linux/vfio.h`).
pub mod region {
    /// The first base address register; the other five follow.
    pub const BAR0: u32 = 0;
    /// Configuration space.
    pub const CONFIG: u32 = 7;
    /// The number of regions.
    pub const COUNT: usize = 9;
}

/// Numbers of a PCI device's kinds of interrupts (`linux/vfio.h`).
pub mod irq {
    /// The interrupt line.
    pub const INTX: u32 = 0;
    /// Messages with a table in a region.
    pub const MSIX: u32 = 2;
    /// The number of kinds.
    pub const COUNT: usize = 5;
}

/// A device, as accesses see it. The caller has bounded each access by the device's
/// [`Description`].
pub trait Device {
    /// Reads a region.
    fn read(&mut self, region: u32, offset: u64, to: &mut [u8]);
    /// Writes to a region.
    fn write(&mut self, region: u32, offset: u64, from: &[u8]);
    /// Resets the device.
    fn reset(&mut self);
    /// The level of the interrupt line, as the accesses so far have left it.
    fn line(&self) -> bool;
}

/// The regions and interrupts of a PCI device, which do not change.
#[derive(Debug, Default)]
pub struct Description {
    /// Regions, by number.
    pub regions: [Region; region::COUNT],
    /// Kinds of interrupts, by number.
    pub irqs: [Irq; irq::COUNT],
}

/// A region; by default it is not there.
#[derive(Debug, Default)]
pub struct Region {
    /// The number of bytes.
    pub size: u64,
    /// The part that the VMM may map, if any: accesses to that send no message.
    pub mappable: Option<Mappable>,
}

impl Region {
    /// A region without memory: each access is a message.
    #[must_use]
    pub fn of(size: u64) -> Self {
        Self { size, mappable: None }
    }
}

/// Memory behind a region.
#[derive(Debug)]
pub struct Mappable {
    /// The file of the memory.
    pub fd: OwnedFd,
    /// Where the region begins in the file.
    pub offset: u64,
    /// The parts that may be mapped, of whole pages. QEMU maps nothing where there are none.
    pub areas: Vec<Area>,
}

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// The offset in the region.
    pub offset: u64,
    /// The number of bytes.
    pub size: u64,
}

/// A kind of interrupts; by default there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Irq {
    /// None.
    #[default]
    None,
    /// The interrupt line: a level, which masks itself when it has been signalled.
    Line,
    /// Vectors, each of them an edge.
    Vectors(u16),
}

impl Irq {
    /// The number of vectors.
    #[must_use]
    pub fn count(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Line => 1,
            Self::Vectors(count) => count.into(),
        }
    }
}
