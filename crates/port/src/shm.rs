//! Ports of processes: rings in a region that the daemon made.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring::Region;
use ring::krings::Krings;
use ring::layout::{FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use switch::{Plug, Wake};

use crate::reservation::{Reservation, ReservedPort};

/// The switch's side of a process's port whose rings were formatted just now.
#[must_use]
pub fn plug(region: &Arc<Region>, layout: &PortLayout, wake: impl Wake + 'static) -> Plug {
    Plug::Rings(Krings::new(region, layout), Box::new(wake))
}

/// Memory of a port: its part of a region, and the descriptor to hand out.
#[derive(Debug)]
pub struct PortMemory {
    /// Region and structures, to be [built](Reservation::build) before anybody uses them.
    pub reservation: Arc<Reservation>,
    /// The region's memfd.
    pub fd: OwnedFd,
}

impl PortMemory {
    /// A region for one port.
    ///
    /// # Errors
    /// `ENOMEM`, or too many files; nothing is left behind.
    pub fn reserve(
        name: &str,
        counts: RingCounts,
        extra_bufs: u32,
        stride: u32,
    ) -> io::Result<Self> {
        let layout = PortLayout::new(FIRST_BLOCK, counts);
        let (region, fd) = Region::create(name, region_layout(counts, extra_bufs, stride)?)?;
        let port = ReservedPort { layout, buffers: Vec::new(), extra_bufs };
        Ok(Self { reservation: Reservation::new(&region, name, vec![port], true).into(), fd })
    }
}

/// Size of a private region.
///
/// # Errors
/// `InvalidInput` where the region would be larger than 4 GiB or the stride is not a legal one.
pub fn region_layout(counts: RingCounts, extra_bufs: u32, stride: u32) -> io::Result<RegionLayout> {
    let block = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
    let buffers = counts.buffers().checked_add(extra_bufs);
    let layout = buffers.and_then(|buffers| RegionLayout::new(block, stride, buffers));
    layout.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a region is at most 4 GiB"))
}
