//! The program's memory, read and written as a kernel would: a bad address is `EFAULT`.
//!
//! A request names addresses, and a program may have them wrong. The kernel copies on our behalf
//! (`process_vm_readv(2)` on this very process) and says where it cannot. In sandboxes that forbid
//! the call we copy ourselves, and a wrong address ends the program as any other would.

#![allow(unsafe_code)] // UNSAFETY: addresses that a program names.

use rustix::io::Errno;

use crate::abi::{Pod, bytes_of, bytes_of_mut};

/// Where requests come from and answers go to.
pub trait UserMemory {
    /// Fills `to` from `address`; `EFAULT` where that is not all readable.
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Errno>;

    /// Writes `from` to `address`; `EFAULT` where that is not all writable.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno>;

    /// A structure.
    fn read_struct<T: Pod>(&self, address: u64) -> Result<T, Errno> {
        let mut value = T::default();
        self.read(address, bytes_of_mut(&mut value))?;
        Ok(value)
    }

    /// A structure.
    fn write_struct<T: Pod>(&self, address: u64, value: &T) -> Result<(), Errno> {
        self.write(address, bytes_of(value))
    }
}

/// The memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct OwnMemory;

/// `process_vm_readv` and `process_vm_writev` have one type.
type Transfer = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// What a transfer came to.
enum Outcome {
    Done,
    Fault,
    /// The call is not allowed here.
    Forbidden,
}

fn transfer(call: Transfer, ours: *mut u8, theirs: u64, len: usize) -> Outcome {
    let Ok(address) = usize::try_from(theirs) else { return Outcome::Fault };
    let local = libc::iovec { iov_base: ours.cast(), iov_len: len };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: len };
    // SAFETY: `ours` is `len` live bytes of the caller's; the kernel checks the other side.
    let moved = unsafe { call(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    if usize::try_from(moved) == Ok(len) {
        return Outcome::Done;
    }
    let error = std::io::Error::last_os_error().raw_os_error();
    let forbidden = moved < 0 && matches!(error, Some(libc::ENOSYS | libc::EPERM));
    if forbidden { Outcome::Forbidden } else { Outcome::Fault }
}

impl UserMemory for OwnMemory {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Errno> {
        match transfer(libc::process_vm_readv, to.as_mut_ptr(), address, to.len()) {
            Outcome::Done => Ok(()),
            Outcome::Fault => Err(Errno::FAULT),
            Outcome::Forbidden => {
                let from = direct(address)?;
                // SAFETY: as good as the program's promise; `to` has room for it.
                unsafe { std::ptr::copy(from, to.as_mut_ptr(), to.len()) };
                Ok(())
            }
        }
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        let ours = from.as_ptr().cast_mut();
        match transfer(libc::process_vm_writev, ours, address, from.len()) {
            Outcome::Done => Ok(()),
            Outcome::Fault => Err(Errno::FAULT),
            Outcome::Forbidden => {
                let to = direct(address)?;
                // SAFETY: as good as the program's promise; `from` is live.
                unsafe { std::ptr::copy(from.as_ptr(), to, from.len()) };
                Ok(())
            }
        }
    }
}

/// An address that the program may at least have meant.
fn direct(address: u64) -> Result<*mut u8, Errno> {
    const FIRST_PAGE: usize = 4096;
    match usize::try_from(address) {
        Ok(address @ FIRST_PAGE..) => Ok(std::ptr::with_exposed_provenance_mut(address)),
        _ => Err(Errno::FAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::PortHdr;

    #[test]
    fn own_memory_is_read_and_written_and_faults_are_errors() {
        let mut header = PortHdr { nr_hdr_len: 12, pad1: 7 };
        let address = (&raw mut header).expose_provenance() as u64;
        assert_eq!(OwnMemory.read_struct::<PortHdr>(address), Ok(header));
        let new = PortHdr { nr_hdr_len: 10, pad1: 0 };
        assert_eq!(OwnMemory.write_struct(address, &new), Ok(()));
        assert_eq!(header, new);
        for bad in [0, 8, u64::MAX - 100] {
            assert_eq!(OwnMemory.read_struct::<PortHdr>(bad), Err(Errno::FAULT));
            assert_eq!(OwnMemory.write_struct(bad, &new), Err(Errno::FAULT));
        }
        let text = "constant".as_ptr().expose_provenance() as u64;
        assert_eq!(OwnMemory.write_struct(text, &new), Err(Errno::FAULT));
    }
}
