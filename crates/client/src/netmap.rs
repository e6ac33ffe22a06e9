//! A netmap descriptor on the client's side: what a connection has bound, mapped and ready to sync.
//!
//! For the library that gives programs `/dev/netmap`. The program maps the region once more, where
//! it likes; here is the mapping that its syncs go through. Nothing here blocks, allocates or
//! takes a lock once a [`Binding`] is made, but that syncs of one ring take turns: one waits while
//! another is at work, for a bounded time.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::{Bound, BoundRings, HostBound};
use ring::sync::SyncRings;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::control::PortFds;
use crate::geometry::Geometry;
use crate::link::set_blocking;
use crate::seen::Seen;
use crate::{Error, Lost};

/// What a connection has bound.
#[derive(Debug)]
pub struct Binding {
    bound: Bound,
    rings: SyncRings,
    fds: PortFds,
    seen: Seen,
    /// What the rings had shown when a thread slept last, of a device. Relaxed: a hint.
    edition: AtomicU64,
}

impl Binding {
    /// Maps what [`Connection::bind`](crate::control::Connection::bind) or
    /// [`resume`](crate::control::Connection::resume) answered.
    ///
    /// # Errors
    /// Impossible numbers, or no memory to map the region.
    pub fn new(bound: Bound, fds: PortFds) -> Result<Self, Error> {
        let geometry = Geometry::of_any(&bound.attached)?;
        let counts = geometry.port.counts();
        let tx = range(bound.tx, counts.tx_rings)?;
        let rx = range(bound.rx, counts.rx_rings)?;
        for fd in [fds.kick.as_fd(), fds.wake.as_fd()] {
            set_blocking(fd, false).map_err(|error| Error::Doorbell(error.into()))?;
        }
        let region = fds.map(geometry.region).map_err(Error::Map)?;
        let peer = bound.peer_block.map(|at| geometry.facing(at)).transpose()?;
        let rings = SyncRings::new(&region, &geometry.port, tx, rx);
        let rings = match &peer {
            None => rings,
            Some(peer) => rings.facing(peer),
        };
        let rings = match &bound.host {
            None => rings,
            Some(host) => beside(rings, &geometry, host)?,
        };
        let (seen, edition) = (Seen::default(), AtomicU64::new(0));
        Ok(Self { bound, rings, fds, seen, edition })
    }

    /// Names, numbers and offsets.
    #[must_use]
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// The rings.
    #[inline]
    #[must_use]
    pub fn rings(&self) -> &SyncRings {
        &self.rings
    }

    /// The region, for the program to map.
    #[must_use]
    pub fn region(&self) -> BorrowedFd<'_> {
        self.fds.region.as_fd()
    }

    /// What becomes readable when the switch wakes this process; end of file: the daemon is gone.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.fds.wake.as_fd()
    }

    /// Whether one doorbell serves several processes: the timer of a device ([`crate::ptnet`]).
    #[must_use]
    pub fn shares_doorbell(&self) -> bool {
        self.fds.kick.is_device()
    }

    /// A thread is going to sleep on the doorbell: that of a device rings sooner if syncs have
    /// found something since the last time.
    #[inline]
    pub fn sleeps(&self) {
        if self.shares_doorbell() {
            let now = self.rings.edition(true, true);
            if self.edition.swap(now, Ordering::Relaxed) != now {
                self.fds.kick.quicken(&self.fds.wake);
            }
        }
    }

    /// Rings the switch's doorbell, and looks after the daemon now and then.
    ///
    /// # Errors
    /// [`Lost`]: the daemon is gone.
    #[cold]
    pub fn kick(&self) -> Result<(), Lost> {
        self.fds.kick.ring().map_err(|_| Lost)?;
        if self.seen.is_long_ago() { self.check() } else { Ok(()) }
    }

    /// Asks the kernel whether the daemon's end of the doorbell is open.
    ///
    /// # Errors
    /// [`Lost`]: it is not.
    pub fn check(&self) -> Result<(), Lost> {
        let mut bell = [PollFd::new(&self.fds.wake, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut bell, Some(&at_once)) {
            Ok(1) => Err(Lost),
            _ if self.fds.kick.is_lost() => Err(Lost),
            _ => Ok(()),
        }
    }

    /// Takes the kicks out of this process's doorbell; says whether there were any.
    ///
    /// # Errors
    /// [`Lost`]: the daemon is gone, or has taken the port away.
    pub fn acknowledge(&self) -> Result<bool, Lost> {
        let mut kicks = [0u8; 64];
        match rustix::io::read(&self.fds.wake, &mut kicks[..]) {
            Ok(1..) if !self.fds.kick.is_lost() => {
                self.fds.kick.slacken(&self.fds.wake);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Ok(_) | Err(_) => Err(Lost),
        }
    }
}

/// The rings, with those on the host's side.
fn beside(rings: SyncRings, nic: &Geometry, host: &HostBound) -> Result<SyncRings, Error> {
    let geometry = Geometry::of_any(&host.attached)?;
    if geometry.region != nic.region {
        return Err(Error::Geometry("region of the host's side"));
    }
    let counts = geometry.port.counts();
    let (tx, rx) = (range(host.tx, counts.tx_rings)?, range(host.rx, counts.rx_rings)?);
    Ok(rings.beside(&geometry.port, tx, rx))
}

fn range(bound: BoundRings, rings: u16) -> Result<Range<u16>, Error> {
    let end = bound.first.checked_add(bound.count).filter(|end| *end <= rings);
    Ok(bound.first..end.ok_or(Error::Geometry("bound rings"))?)
}
