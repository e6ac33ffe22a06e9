//! Small rings in small regions, for bodies that write all over them.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use ring::Region;
use ring::cursor::RingSize;
use ring::krings::Krings;
use ring::layout::{FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};

pub const STRIDE: u32 = 128;
pub const SLOTS: u32 = 8;

/// A region with this many ports, and its memory.
pub struct Small {
    pub ports: Vec<Krings>,
    pub file: File,
    pub region: Arc<Region>,
    /// A client's mapping of it.
    pub client: Arc<Region>,
}

impl Small {
    pub fn new(ports: usize) -> Self {
        let buffers = u32::try_from(ports).expect("few") * counts().buffers();
        let layout = RegionLayout::new(ports * block_size(), STRIDE, buffers).expect("legal");
        let (region, fd) = Region::create_shared("fuzz", layout).expect("memory");
        let client = Region::attach(fd.as_fd(), layout).expect("sealed as announced");
        let mut free = region.buffers();
        let host = |at: usize| {
            region.format_port("fuzz", &block(at), &mut free, ports == 1).expect("memory");
            Krings::new(&region, &block(at))
        };
        let ports = (0..ports).map(host).collect();
        Self { ports, file: File::from(fd), region, client }
    }
}

pub fn counts() -> RingCounts {
    let slots = RingSize::new(SLOTS).expect("a legal ring");
    RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots }
}

/// The layout of a port in its region.
pub fn block(index: usize) -> PortLayout {
    PortLayout::new(FIRST_BLOCK + index * block_size(), counts())
}

/// Bytes of a port's structures.
pub fn block_size() -> usize {
    PortLayout::new(FIRST_BLOCK, counts()).end() - FIRST_BLOCK
}
