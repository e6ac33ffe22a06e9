//! What can go wrong with a port, one clear line each.

use std::io;

use protocol::name::{NameError, PortName, SwitchName};
use protocol::{ErrorCode, exit};
use thiserror::Error;

use crate::control::ControlError;
use crate::registers::DeviceError;

/// The other side of a port is gone: the daemon, or the other end of a pipe. What had arrived can
/// still be read. Waits know whether it was the port alone, [`Error::Deleted`]; else
/// [`Port::reconnect`](crate::Port::reconnect) opens the port anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the other side of the port is gone (daemon stopped?); reconnect, or open the port again")]
pub struct Lost;

/// Why a call on a port failed.
#[derive(Debug, Error)]
pub enum Error {
    /// Not the name of a port.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The daemon is not there, or refused.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The port of a device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The other side is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The daemon is there, but an operator deleted the port or its switch: opening it again would
    /// undo that, so nothing does it by itself.
    #[error("{0} was deleted (uvala port del, uvala switch del)")]
    Deleted(PortName),
    /// The daemon is there, but what the capture looked at is not.
    #[error(
        "the capture of {0} has ended: the port went with its client, was deleted, or may no \
         longer be captured (another user's, or with vnet_header); see: uvala port list"
    )]
    CaptureEnded(PortName),
    /// The daemon is there, but the capture of drops is over.
    #[error(
        "the capture of the drops of {0} has ended: the switch was deleted or made anew, it is \
         no longer yours, or the capture stalled it; see: uvala switch list"
    )]
    DropsEnded(SwitchName),
    /// The daemon announced rings or memory that cannot be.
    #[error("invalid port layout from the daemon ({0}); is it another version of uvala?")]
    Geometry(&'static str),
    /// The port's memory could not be mapped.
    #[error("cannot map the memory of the port: {0}; check memory and mapping limits")]
    Map(#[source] io::Error),
    /// The doorbells could not be set up.
    #[error("cannot set up the doorbells of the port: {0}")]
    Doorbell(#[source] io::Error),
    /// Shorter than an Ethernet header.
    #[error("a frame of {len} bytes is too short: its header has {}", crate::FRAME_MIN)]
    TooShort {
        /// The frame's length in bytes.
        len: usize,
    },
    /// A wait was ended by the port's [`Stop`](crate::Stop).
    #[error("the program told this port to stop")]
    Stopped,
    /// Longer than a frame can be, or than the ring can hold.
    #[error("a frame of {len} bytes is too long: this port takes at most {max}")]
    TooLong {
        /// The frame's length in bytes.
        len: usize,
        /// The longest, in bytes.
        max: usize,
    },
    /// The switch found nonsense in the ring and started it afresh: said once for each time.
    #[error(
        "the switch found a broken index or buffer in a ring of this port and re-synchronised it \
         ({times} times); some frames are lost, the port goes on"
    )]
    Resynced {
        /// How often since the last report.
        times: u32,
    },
}

impl Error {
    /// The daemon's code, where it was the daemon that said no, or would have been.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Name(_) => Some(ErrorCode::BadName),
            Self::Control(error) => error.code(),
            Self::Device(error) => error.code(),
            _ => None,
        }
    }

    /// Exit status of a program that stops for this reason.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Name(_) => exit::BAD_NAME,
            Self::Control(error) => error.exit_code(),
            Self::Device(error) => error.code().map_or(exit::FAILURE, ErrorCode::exit_code),
            Self::Lost(_) => exit::NO_DAEMON,
            Self::Deleted(_) | Self::CaptureEnded(_) | Self::DropsEnded(_) => exit::NOT_FOUND,
            Self::Geometry(_) => exit::BAD_REQUEST,
            Self::Map(_) => exit::NO_MEMORY,
            Self::Doorbell(_) | Self::TooShort { .. } | Self::TooLong { .. } => exit::FAILURE,
            Self::Resynced { .. } | Self::Stopped => exit::FAILURE,
        }
    }
}
