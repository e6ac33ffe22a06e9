//! Pipes: two clients and one region, without a switch in between.
//!
//! Each end has a port block, and a client writes what it sends into the receive rings of the other
//! end. The daemon makes the region and the doorbell, a pair of sockets with one for each end, and
//! takes no part afterwards. It keeps both, so that a client can open an end again. So it may be
//! the last to close what a client had, which can take as long as the client likes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring::Region;
use ring::doorbell::WakeBy;
use ring::layout::{FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use ring::wake::PortWake;

use crate::reservation::{Reservation, ReservedPort};
use crate::sys::{ClosedElsewhere, Closer, doorbell_pair};

/// The daemon's part of a pipe.
#[derive(Debug)]
pub struct Pipe {
    reservation: Arc<Reservation>,
    fd: OwnedFd,
    ends: [End; 2],
}

#[derive(Debug)]
struct End {
    layout: PortLayout,
    extra_bufs: u32,
    socket: ClosedElsewhere,
}

/// One end, as its client gets it.
#[derive(Debug)]
pub struct OpenEnd {
    /// The region of both ends.
    pub region: Arc<Region>,
    /// The region's memfd.
    pub fd: OwnedFd,
    /// The structures of this end.
    pub layout: PortLayout,
    /// The structures of the other end.
    pub peer: PortLayout,
    /// The number of extra buffers of this end.
    pub extra_bufs: u32,
    /// The doorbell of both ends, as this end sees it.
    pub socket: OwnedFd,
}

impl Pipe {
    /// A pipe whose ends both have `counts` rings and `extra_bufs` extra buffers. The transmit
    /// rings of one end are the receive rings of the other, so there must be as many of both. The
    /// caller builds [`Pipe::reservation`] before it opens an end. What no client has had is left
    /// to `closer`.
    ///
    /// # Errors
    /// `ENOMEM`, too many files, or a region larger than 4 GiB; nothing is left behind.
    pub fn new(
        name: &str,
        counts: RingCounts,
        extra_bufs: u32,
        stride: u32,
        closer: &Closer,
    ) -> io::Result<Self> {
        let block = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
        let (region, fd) = Region::create(name, region_layout(counts, extra_bufs, stride)?)?;
        let ends = [FIRST_BLOCK, FIRST_BLOCK + block].map(|at| PortLayout::new(at, counts));
        let port = |layout| ReservedPort { layout, buffers: Vec::new(), extra_bufs };
        let reservation = Arc::new(Reservation::new(&region, name, ends.map(port).into(), true));
        let (a, b) = doorbell_pair()?;
        let sockets = [a, b].map(|socket| ClosedElsewhere::new(socket, closer));
        let ([a, b], [to_b, to_a]) = (ends, sockets);
        let end = |layout, socket| End { layout, extra_bufs, socket };
        Ok(Self { reservation, fd, ends: [end(a, to_b), end(b, to_a)] })
    }

    /// The pipe's memory.
    #[must_use]
    pub fn reservation(&self) -> &Arc<Reservation> {
        &self.reservation
    }

    /// Opens one end, 0 or 1, for a client. What the client gets is left to `closer`.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn open(&mut self, end: usize, closer: &Closer) -> io::Result<OpenEnd> {
        self.ends[end].socket.leave_to(closer);
        let (mine, other) = (&self.ends[end], &self.ends[1 - end]);
        let region = self.reservation.region();
        // The last client of this end may have died asleep.
        PortWake::new(region, &mine.layout).words().sleep_by(WakeBy::Descriptor);
        Ok(OpenEnd {
            region: region.clone(),
            fd: self.fd.try_clone()?,
            layout: mine.layout,
            peer: other.layout,
            extra_bufs: mine.extra_bufs,
            socket: mine.socket.get().try_clone()?,
        })
    }
}

/// The layout of a pipe's region.
///
/// # Errors
/// `InvalidInput` if the region would be larger than 4 GiB, or the stride is invalid.
pub fn region_layout(counts: RingCounts, extra_bufs: u32, stride: u32) -> io::Result<RegionLayout> {
    let block = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
    let each = counts.buffers().checked_add(extra_bufs);
    let both = each.and_then(|each| each.checked_mul(2));
    let layout = both.and_then(|buffers| RegionLayout::new(2 * block, stride, buffers));
    layout.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a region is at most 4 GiB"))
}
