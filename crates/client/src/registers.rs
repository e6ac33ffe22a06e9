//! The registers of a ptnet device, in the files that sysfs has of it: see [`crate::ptnet`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::ErrorCode;
use ring::ptnet::{IDENTITY, KICK, command, feature, register};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use thiserror::Error;

use crate::seen::Seen;
use crate::ticks::Ticks;

const DEVICES: &str = "/sys/bus/pci/devices";

/// Why a device's port cannot be opened.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// There is no such device, or it is another one.
    #[error("{address} is no ptnet of uvala-device; this machine has: {}", list(.others))]
    Missing {
        /// What was asked for.
        address: String,
        /// What there is.
        others: Vec<String>,
    },
    /// A driver has the device.
    #[error(
        "{address} has a driver, {driver}; take it away: echo {address} > \
         {}/{address}/driver/unbind",
        DEVICES
    )]
    HasDriver {
        /// The device.
        address: String,
        /// The driver's name.
        driver: String,
    },
    /// Another program has the port.
    #[error("{0} is in use by another program, or by another descriptor of this one")]
    InUse(String),
    /// Only ordinary ports are here.
    #[error("{0} is a port of a device, without {1}")]
    Unsupported(String, &'static str),
    /// A file of sysfs cannot be used.
    #[error("cannot use {}: {error}{}", .path.display(), hint(.error))]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: Errno,
    },
    /// The device's own number of an error.
    #[error("{address} does not start its rings: {error}{}", hint(.error))]
    NotStarted {
        /// The device.
        address: String,
        /// The number.
        error: Errno,
    },
}

fn list(addresses: &[String]) -> String {
    if addresses.is_empty() { "none".to_owned() } else { addresses.join(", ") }
}

fn hint(error: &Errno) -> &'static str {
    match *error {
        Errno::ACCESS | Errno::PERM => "; devices are root's",
        Errno::NODEV => "; the memory of its trust group is gone: start the virtual machine anew",
        _ => "",
    }
}

impl DeviceError {
    /// The code with which a daemon would refuse that.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Missing { .. } => Some(ErrorCode::NotFound),
            Self::HasDriver { .. } | Self::InUse(_) => Some(ErrorCode::InUse),
            Self::Unsupported(..) => Some(ErrorCode::Unsupported),
            Self::File { error: Errno::ACCESS | Errno::PERM, .. } => Some(ErrorCode::Permission),
            Self::File { .. } | Self::NotStarted { .. } => None,
        }
    }

    /// What a netmap program is told.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Missing { .. } => Errno::NXIO,
            Self::HasDriver { .. } | Self::InUse(_) => Errno::BUSY,
            Self::Unsupported(..) => Errno::OPNOTSUPP,
            Self::File { error, .. } | Self::NotStarted { error, .. } => *error,
        }
    }
}

/// The addresses of all ptnet devices of this machine.
#[must_use]
pub fn devices() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(DEVICES) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<_> = names.filter(|address| is_ptnet(&directory(address))).collect();
    found.sort_unstable();
    found
}

/// What sysfs has of a device.
#[must_use]
pub fn directory(address: &str) -> PathBuf {
    Path::new(DEVICES).join(address)
}

fn is_ptnet(device: &Path) -> bool {
    let number = |file: &str| {
        let text = std::fs::read_to_string(device.join(file)).ok()?;
        u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    ["vendor", "device"].map(number) == IDENTITY.map(Some)
}

/// The registers of a device whose port this process has.
#[derive(Debug)]
pub struct Registers {
    address: String,
    /// `resource0`, locked.
    file: OwnedFd,
    /// `EPOCH` when the rings were started.
    epoch: u32,
    seen: Seen,
    /// `EPOCH` was another one at some look. Relaxed, as the other flag: hints.
    is_lost: AtomicBool,
    /// The process that started the rings.
    owner: Pid,
    is_released: AtomicBool,
    ticks: Ticks,
}

impl Registers {
    /// Opens those of a device without a driver, which may be another program's.
    pub(crate) fn open(address: &str) -> Result<Self, DeviceError> {
        let device = directory(address);
        let missing = || {
            let (address, others) = (address.to_owned(), devices());
            DeviceError::Missing { address, others }
        };
        if !is_ptnet(&device) {
            return Err(missing());
        }
        if let Ok(driver) = std::fs::read_link(device.join("driver")) {
            let driver = driver.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Err(DeviceError::HasDriver { address: address.to_owned(), driver });
        }
        enable(&device)?;
        let registers = Self {
            address: address.to_owned(),
            file: open(&device.join("resource0"))?,
            epoch: 0,
            seen: Seen::default(),
            is_lost: AtomicBool::new(false),
            owner: getpid(),
            is_released: AtomicBool::new(true),
            ticks: Ticks::default(),
        };
        // Behind the registers of other ptnets are none.
        if registers.read(register::REGION_LEN)? == 0 { Err(missing()) } else { Ok(registers) }
    }

    /// Takes the port, and has the device start its rings.
    pub(crate) fn start(&mut self) -> Result<(), DeviceError> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Err(DeviceError::InUse(self.address.clone())),
            Err(error) => return Err(self.failed(error)),
        }
        // A program that was killed has left them running.
        self.write(register::PTCTL, command::DELETE)?;
        self.write(register::PTFEAT, feature::REGION)?;
        self.epoch = self.read(register::EPOCH)?;
        self.write(register::PTCTL, command::CREATE)?;
        match self.read(register::PTCTL)? {
            0 => {
                *self.is_released.get_mut() = false;
                Ok(())
            }
            number => {
                let number = i32::try_from(number).ok().filter(|number| (1..4096).contains(number));
                let error = number.map_or(Errno::IO, Errno::from_raw_os_error);
                let address = self.address.clone();
                Err(DeviceError::NotStarted { address, error })
            }
        }
    }

    pub(crate) fn read(&self, register: u32) -> Result<u32, DeviceError> {
        let mut word = [0; 4];
        let count = rustix::io::pread(&self.file, &mut word[..], register.into());
        match count.map_err(|error| self.failed(error))? {
            4 => Ok(u32::from_le_bytes(word)),
            _ => Err(self.failed(Errno::IO)),
        }
    }

    fn write(&self, register: u32, value: u32) -> Result<(), DeviceError> {
        let written = rustix::io::pwrite(&self.file, &value.to_le_bytes(), register.into());
        written.map(drop).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: Errno) -> DeviceError {
        DeviceError::File { path: directory(&self.address).join("resource0"), error }
    }

    /// The file, to be put elsewhere.
    pub(crate) fn fd_mut(&mut self) -> &mut OwnedFd {
        &mut self.file
    }

    /// How often a thread looks at the rings.
    pub(crate) fn ticks(&self) -> &Ticks {
        &self.ticks
    }

    /// Rings the doorbell, which all rings share.
    pub(crate) fn ring(&self) -> Result<(), Errno> {
        if self.is_released.load(Ordering::Relaxed) {
            return Err(Errno::NXIO);
        }
        rustix::io::pwrite(&self.file, &[0; 4], KICK.into()).map(drop)
    }

    /// Whether the rings are no longer those that were started. It asks the device once in a while:
    /// that stops a processor of the guest.
    pub(crate) fn are_lost(&self) -> bool {
        if self.seen.is_long_ago() && !self.are_those_of_the_start() {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Asks the device that.
    pub(crate) fn are_those_of_the_start(&self) -> bool {
        self.read(register::EPOCH).ok() == Some(self.epoch)
    }

    /// Stops the rings and gives the port up, for this process to open it again; once. A child of
    /// `fork` leaves both alone.
    pub(crate) fn release(&self) {
        if self.owner == getpid() && !self.is_released.swap(true, Ordering::Relaxed) {
            // A device that is gone has nothing to stop.
            let _ = self.write(register::PTCTL, command::DELETE);
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }

    /// Gives this copy of the port up. The last one stops the rings: no process has the lock then.
    fn close(&mut self) {
        let Ok(file) = open(&directory(&self.address).join("resource0")) else { return };
        drop(std::mem::replace(&mut self.file, file));
        if rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = self.write(register::PTCTL, command::DELETE);
        }
    }
}

impl AsFd for Registers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        if !*self.is_released.get_mut() {
            self.close();
        }
    }
}

/// Has the kernel decode the device's addresses.
fn enable(device: &Path) -> Result<(), DeviceError> {
    let path = device.join("enable");
    let failed = |error| DeviceError::File { path: path.clone(), error };
    let file = open(&path)?;
    let mut count = [0; 16];
    let len = rustix::io::read(&file, &mut count[..]).map_err(failed)?;
    if count[..len].starts_with(b"0") {
        rustix::io::write(&file, b"1").map_err(failed)?;
    }
    Ok(())
}

/// Opens a file of sysfs.
pub(crate) fn open(path: &Path) -> Result<OwnedFd, DeviceError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| DeviceError::File { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_what_is_no_ptnet_is_said_with_those_that_are() {
        let error = Registers::open("0000:7f:1f.7").unwrap_err();
        assert!(matches!(error, DeviceError::Missing { .. }), "{error}");
        assert!(error.to_string().starts_with("0000:7f:1f.7 is no ptnet"), "{error}");
        assert_eq!(error.errno(), Errno::NXIO);
    }
}
