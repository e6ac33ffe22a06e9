//! The memory of an AF_XDP port: its own, or its trust group's.
//!
//! The kernel gets the first buffers of a group's region as one range, because the port may get any
//! of them in exchange for another. They stay committed and locked while the port exists; therefore
//! it is not the whole region, which is seldom full. Frames to and from a member whose buffers lie
//! after the range are copied.
//!
//! If the kernel or the buffers do not allow it, the port has memory of its own, its frames are
//! copied, and its description says so.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use hostif::HostError;
use hostif::netlink::Interface;
use ring::exchange::Exchange;
use ring::umem::{Chunk, HEADROOM, Umem};
use rustix::io::Errno;

use super::SEND;
use crate::group::Share;
use crate::host::HEADERS;
use crate::sys::xdp::{SLOTS, register};

/// The bytes of a chunk of the port's own memory: for frames of the usual length, and for longer
/// ones.
const SMALL: u32 = 2048;
const LARGE: u32 = 4096;
/// The least number of a group's buffers that the kernel gets: enough for six members of the usual
/// size.
const COVER: u32 = 16384;

/// The memory that a port needs.
pub(super) struct Wanted<'a> {
    pub interface: &'a Interface,
    pub queues: u32,
}

impl Wanted<'_> {
    /// The number of chunks.
    fn chunks(&self) -> u32 {
        self.queues * SLOTS + SEND
    }
}

/// The memory of a port.
pub(super) struct Store {
    pub umem: Umem,
    /// The exchange of a group's buffers, if the memory is a group's.
    pub trader: Option<Exchange>,
    /// The description in `port show`.
    pub note: String,
    /// The share of the group's buffers. Returned after the kernel has unmapped the memory.
    share: Option<Arc<Share>>,
}

/// Why a port cannot use its group's memory.
enum Unshared {
    /// The kernel or the buffers do not allow it; the port uses its own memory.
    Unfit(String),
    /// A limit that an operator can raise.
    Failed(HostError),
}

impl Store {
    /// Registers memory with a socket, the group's if there is a share of one; returns the chunks.
    pub fn register(
        socket: &OwnedFd,
        wanted: &Wanted<'_>,
        share: Option<Arc<Share>>,
    ) -> Result<(Self, Vec<Chunk>), HostError> {
        let Some(share) = share else { return Self::own(socket, wanted, String::new()) };
        let group = share.group().to_owned();
        match Self::shared(socket, wanted, share) {
            Ok(shared) => Ok(shared),
            Err(Unshared::Failed(error)) => Err(error),
            Err(Unshared::Unfit(why)) => {
                let note = format!("; frames to and from trust group {group} are copied: {why}");
                Self::own(socket, wanted, note)
            }
        }
    }

    fn own(
        socket: &OwnedFd,
        wanted: &Wanted<'_>,
        note: String,
    ) -> Result<(Self, Vec<Chunk>), HostError> {
        let Interface { name, mtu, .. } = wanted.interface;
        let size = if mtu + HEADERS + HEADROOM > SMALL { LARGE } else { SMALL };
        let umem =
            Umem::new(size, wanted.chunks()).map_err(HostError::system("memory for", name))?;
        register(socket, &umem).map_err(|errno| refused(errno, name))?;
        let chunks = umem.chunks().collect();
        Ok((Self { umem, trader: None, note, share: None }, chunks))
    }

    fn shared(
        socket: &OwnedFd,
        wanted: &Wanted<'_>,
        share: Arc<Share>,
    ) -> Result<(Self, Vec<Chunk>), Unshared> {
        let name = &wanted.interface.name;
        let buffers = share.take(wanted.chunks());
        let buffers = buffers.map_err(|error| Unshared::Unfit(error.to_string()))?;
        let region = share.region();
        // Twice the buffers in use, for members that join later.
        let end = region.owners().end().saturating_mul(2).max(COVER).min(region.layout().buffers);
        let Some(umem) = Umem::shared(region, end) else {
            return Err(Unshared::Unfit("its buffers are too small to receive into".to_owned()));
        };
        register(socket, &umem).map_err(|errno| match errno {
            Errno::INVAL => {
                Unshared::Unfit("that takes Linux 5.4, with chunks that are not aligned".to_owned())
            }
            Errno::NOBUFS => Unshared::Failed(HostError::GroupLocked(
                name.clone(),
                share.group().to_owned(),
                umem.pool().1.div_ceil(1 << 20),
            )),
            errno => Unshared::Failed(refused(errno, name)),
        })?;
        let (group, mib) = (share.group(), umem.pool().1.div_ceil(1 << 20));
        let note = format!("; in the memory of trust group {group}, {mib} MiB of it locked");
        let trader = Some(Exchange::new(share.owner(), end));
        let chunks = buffers.into_iter().map(Chunk::from).collect();
        Ok((Self { umem, trader, note, share: Some(share) }, chunks))
    }

    /// Whether the memory is a trust group's.
    pub fn is_shared(&self) -> bool {
        self.share.is_some()
    }

    /// The share, for audits of the group's buffers.
    pub fn share(&self) -> Weak<Share> {
        self.share.as_ref().map(Arc::downgrade).unwrap_or_default()
    }

    /// Records the number of chunks that the kernel is sending.
    pub fn note_sending(&self, count: usize) {
        if let Some(share) = &self.share {
            share.note_sending(u32::try_from(count).expect("few"));
        }
    }
}

/// Why a socket cannot use the memory.
fn refused(errno: Errno, name: &str) -> HostError {
    match errno {
        Errno::NOBUFS => HostError::Locked(name.to_owned()),
        errno => HostError::system("give memory to an AF_XDP socket on", name)(errno.into()),
    }
}
