//! Ports of processes: rings in a region that the daemon made.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring::Region;
use ring::host::HostPort;
use ring::layout::{FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use switch::{Plug, Wake};

/// The switch's side of a process's port whose rings were formatted just now.
#[must_use]
pub fn plug(region: &Arc<Region>, layout: &PortLayout, wake: impl Wake + 'static) -> Plug {
    Plug::Rings(HostPort::new(region, layout), Box::new(wake))
}

/// Memory of a port: a region, the part of it that is the port's, and the descriptor to hand out.
#[derive(Debug)]
pub struct PortMemory {
    /// The region.
    pub region: Arc<Region>,
    /// Its memfd.
    pub fd: OwnedFd,
    /// The port's structures.
    pub layout: PortLayout,
}

impl PortMemory {
    /// A region for one port, with all its memory committed.
    ///
    /// # Errors
    /// `ENOMEM`, or too many files; nothing is left behind.
    pub fn private(
        name: &str,
        counts: RingCounts,
        extra_bufs: u32,
        stride: u32,
    ) -> io::Result<Self> {
        let layout = PortLayout::new(FIRST_BLOCK, counts);
        let (region, fd) = Region::create(name, region_layout(counts, extra_bufs, stride)?)?;
        let buffers = region.buffers();
        region.format_port(name, &layout, buffers, true)?;
        let extra: Vec<_> = region.buffers().skip(counts.buffers() as usize).collect();
        let first = region.buffers().next().expect("a port has buffers");
        region.populate_buffers(first, counts.buffers() + extra_bufs)?;
        region.format_extra(&layout, &extra);
        region.collapse();
        Ok(Self { region, fd, layout })
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
