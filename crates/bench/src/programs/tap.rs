//! Opening a TAP.

// UNSAFETY: a TAP is made by an ioctl that no library wraps.
#![allow(unsafe_code)]

use std::fs::File;

use anyhow::{Context, Result};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

const TUNSETIFF: Opcode = opcode::write::<u32>(b'T', 202);
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;

/// `struct ifreq` of linux/if.h with its flags.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<Request>() == 40);

/// A TAP of this name, without a header in front of the frames.
pub fn open(name: &str) -> Result<File> {
    let tun = File::options().read(true).write(true).open("/dev/net/tun");
    let tun = tun.context("cannot open /dev/net/tun: modprobe tun, or ask for access to it")?;
    let mut request = Request { name: [0; 16], flags: IFF_TAP | IFF_NO_PI, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads a struct ifreq, whose layout is asserted above.
    unsafe { ioctl(&tun, Setter::<TUNSETIFF, Request>::new(request)) }
        .with_context(|| format!("cannot make the TAP {name}"))?;
    Ok(tun)
}
