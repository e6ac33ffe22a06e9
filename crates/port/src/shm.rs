//! Ports of clients: rings in a region that the daemon made.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ring::Region;
use ring::krings::Krings;
use ring::layout::{FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use ring::wake::PortWake;
use switch::{Plug, Wake};

use crate::reservation::{Reservation, ReservedPort};
use crate::sys::{PortWaker, Waker};

/// The switch's side of a client's port whose rings have just been formatted.
#[must_use]
pub fn plug(region: &Arc<Region>, layout: &PortLayout, wake: impl Wake + 'static) -> Plug {
    Plug::rings_with(Krings::new(region, layout), wake)
}

/// Wakes the client of the port, by its socket or in its memory.
#[must_use]
pub fn port_waker(
    region: &Arc<Region>,
    layout: &PortLayout,
    waker: impl Into<Arc<Waker>>,
) -> PortWaker {
    PortWaker::new(PortWake::new(region, layout), waker)
}

/// The switch's side of a client's port that the daemon before this one has served up to where
/// these rings are.
#[must_use]
pub fn plug_resumed(rings: Krings, waker: impl Into<Arc<Waker>>) -> Plug {
    let wake = PortWake::new(rings.region(), rings.layout());
    Plug::rings_with(rings, PortWaker::resumed(wake, waker))
}

/// The memory of a client's port.
#[derive(Debug)]
pub struct PortMemory {
    /// The region and structures; they are [built](Reservation::build) before they are used.
    pub reservation: Arc<Reservation>,
    /// The region's memfd.
    pub fd: OwnedFd,
}

impl PortMemory {
    /// Reserves a region for one port.
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

    /// The memory of a port that the daemon before this one had: it is built, and in use.
    ///
    /// # Errors
    /// The descriptor is not that of a region for one port with these rings, or the memory cannot
    /// be had.
    pub fn take_over(
        name: &str,
        counts: RingCounts,
        extra_bufs: u32,
        stride: u32,
        fd: OwnedFd,
    ) -> io::Result<Self> {
        let layout = PortLayout::new(FIRST_BLOCK, counts);
        let region = Region::take_over(fd.as_fd(), region_layout(counts, extra_bufs, stride)?)?;
        let port = ReservedPort { layout, buffers: Vec::new(), extra_bufs };
        Ok(Self { reservation: Reservation::built(&region, name, port).into(), fd })
    }
}

/// The layout of a region with one port.
///
/// # Errors
/// `InvalidInput` if the region would be larger than 4 GiB, or the stride is invalid.
pub fn region_layout(counts: RingCounts, extra_bufs: u32, stride: u32) -> io::Result<RegionLayout> {
    let block = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
    let buffers = counts.buffers().checked_add(extra_bufs);
    let layout = buffers.and_then(|buffers| RegionLayout::new(block, stride, buffers));
    layout.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a region is at most 4 GiB"))
}
