//! A part of a file that a VMM lends as guest memory.
//!
//! A mapping must be memory and nothing else: a file of a user-space file system, or one on a disk,
//! could block its user in the middle of a copy for as long as its owner likes. So only files of
//! tmpfs (memfds among them) and of hugetlbfs are mapped. [`super::lost`] handles files that are
//! truncated later.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::GuestMapping;

/// Why a part of a file is not mapped.
#[derive(Debug)]
pub enum BadFile {
    /// The file could block.
    NotMemory,
    /// The file ends before the part does.
    Small,
    /// The part is larger than an address space.
    TooMuch,
    /// All mappings that can be [guarded](super::lost) are in use.
    Full,
    /// A system call failed.
    System(io::Error),
}

impl From<Errno> for BadFile {
    fn from(errno: Errno) -> Self {
        Self::System(errno.into())
    }
}

/// A part of a file that can be mapped, extended to whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// Where the first page begins.
    begin: u64,
    bytes: u64,
    /// Where the part begins in the first page.
    into: usize,
}

impl FilePart {
    /// The part of `size` bytes from `offset` on.
    ///
    /// # Errors
    /// [`BadFile`]
    pub fn new(fd: impl AsFd, offset: u64, size: u64) -> Result<Self, BadFile> {
        // Other file systems have no seals; they are not asked anything, for they could block.
        rustix::fs::fcntl_get_seals(&fd).map_err(|_| BadFile::NotMemory)?;
        let place = rustix::fs::fstatfs(&fd)?;
        let file = rustix::fs::fstat(&fd)?;
        let end = offset.checked_add(size).ok_or(BadFile::Small)?;
        if !i64::try_from(end).is_ok_and(|end| end <= file.st_size) {
            return Err(BadFile::Small);
        }
        // Whole pages, of the huge page size on hugetlbfs.
        let page = u64::try_from(place.f_bsize).unwrap_or(4096).max(4096);
        let begin = offset / page * page;
        let into = usize::try_from(offset - begin).map_err(|_| BadFile::TooMuch)?;
        Ok(Self { begin, bytes: end.next_multiple_of(page) - begin, into })
    }

    /// The bytes of its pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps the part; also returns its offset in the mapping.
    ///
    /// # Errors
    /// [`BadFile`]
    pub fn map(&self, fd: impl AsFd) -> Result<(Arc<GuestMapping>, usize), BadFile> {
        let bytes = usize::try_from(self.bytes).map_err(|_| BadFile::TooMuch)?;
        let lent =
            GuestMapping::map(fd, self.begin, bytes).map_err(|error| match error.kind() {
                io::ErrorKind::StorageFull => BadFile::Full,
                _ => BadFile::System(error),
            })?;
        Ok((lent, self.into))
    }
}
