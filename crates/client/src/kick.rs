//! What rings the other side's doorbell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::registers::Registers;
use crate::sys;

/// One end of a doorbell.
#[derive(Debug)]
pub enum Kick {
    /// An eventfd of the daemon's, or the socket of a pipe's other end.
    Descriptor(OwnedFd),
    /// The registers of a ptnet device, in a guest.
    Device(Registers),
}

impl Kick {
    /// Rings. A bell that cannot be rung more has rung.
    pub(crate) fn ring(&self) -> Result<(), Errno> {
        match self {
            Self::Descriptor(event) => sys::ring(event),
            Self::Device(registers) => registers.ring(),
        }
    }

    /// Whether the other side is gone, as far as the descriptor to wait for does not tell it.
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            Self::Descriptor(_) => false,
            Self::Device(registers) => registers.are_lost(),
        }
    }

    /// Gives up what it has of the port.
    pub(crate) fn release(&self) {
        if let Self::Device(registers) = self {
            registers.release();
        }
    }

    /// A thread that has slept on the descriptor `wake` has found something.
    pub(crate) fn quicken(&self, wake: &OwnedFd) {
        if let Self::Device(registers) = self {
            registers.ticks().quicken(wake);
        }
    }

    /// A thread has taken a wake-up out of the descriptor `wake`, and has found nothing so far.
    pub(crate) fn slacken(&self, wake: &OwnedFd) {
        if let Self::Device(registers) = self {
            registers.ticks().slacken(wake);
        }
    }

    /// Whether the other side is outside of this machine.
    #[must_use]
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// The descriptor, to be put elsewhere.
    pub fn fd_mut(&mut self) -> &mut OwnedFd {
        match self {
            Self::Descriptor(fd) => fd,
            Self::Device(registers) => registers.fd_mut(),
        }
    }
}

impl AsFd for Kick {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Descriptor(fd) => fd.as_fd(),
            Self::Device(registers) => registers.as_fd(),
        }
    }
}
