//! Structures that may be shorter or longer than this library knows them: `struct uvala_options`.
//!
//! One grows at its end, and a new field's 0 means what older libraries do. So a program that was
//! compiled for an older one has a shorter structure, the rest of which is 0; a program that was
//! compiled for a newer one is served as long as it asks for nothing new. Linux does the same with
//! the structures of `openat2` and `clone3`.

// UNSAFETY: pointers that C hands in; uvala.h states what they must be.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::{ptr, slice};

use client::{Options, Stop, WaitPolicy};

use crate::error::bad;

/// `struct uvala_options` of uvala.h, field by field. 0 and NULL stand for the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct COptions {
    size: usize,
    dir: *const c_char,
    group: *const c_char,
    tx_rings: u16,
    rx_rings: u16,
    tx_slots: u32,
    rx_slots: u32,
    extra_bufs: u32,
    yields: i32,
    flags: u32,
    client: *const c_char,
    stop: *const Stop,
    group_memory: u64,
}

/// A structure of C's that grows at its end.
///
/// # Safety
/// The structure begins with its size, a `usize`, and any bytes are a valid one.
pub unsafe trait Versioned: Copy {
    /// What it is called.
    const NAME: &str;
    /// How long it was in older versions.
    const OLDER: &[usize];
    /// The values of fields that an older program does not know.
    const DEFAULT: Self;
}

// SAFETY: numbers and pointers; `size` is the first.
unsafe impl Versioned for COptions {
    const NAME: &str = "uvala_options";
    const OLDER: &[usize] =
        &[offset_of!(Self, client), offset_of!(Self, stop), offset_of!(Self, group_memory)];
    const DEFAULT: Self = Self {
        size: size_of::<Self>(),
        dir: ptr::null(),
        group: ptr::null(),
        tx_rings: 0,
        rx_rings: 0,
        tx_slots: 0,
        rx_slots: 0,
        extra_bufs: 0,
        yields: 0,
        flags: 0,
        client: ptr::null(),
        stop: ptr::null(),
        group_memory: 0,
    };
}

/// Longer than any will ever be; a larger `size` was never set.
const SIZE_MAX: usize = 4096;

// tests/abi.c asserts the same numbers of uvala.h.
const _: () = assert!(size_of::<COptions>() == 72 && offset_of!(COptions, tx_rings) == 24);
const _: () = assert!(offset_of!(COptions, yields) == 40 && offset_of!(COptions, flags) == 44);
const _: () = assert!(offset_of!(COptions, client) == 48 && offset_of!(COptions, stop) == 56);
const _: () = assert!(offset_of!(COptions, group_memory) == 64);

/// `UVALA_EXISTING`, `UVALA_SPIN`, `UVALA_RECONNECT`.
const EXISTING: u32 = 1;
const SPIN: u32 = 2;
const RECONNECT: u32 = 4;

/// What a program has filled in.
#[derive(Debug, Default)]
pub struct Given {
    /// How to open a port.
    pub options: Options,
    /// Whether the port reconnects by itself.
    pub reconnects: bool,
    /// What ends its waits.
    pub stop: Option<Stop>,
}

/// Reads what a program filled in.
///
/// # Safety
/// `given` is NULL, or its first field says how many bytes it has; its texts are NULL or
/// zero-terminated, and `stop` is NULL or one of the library's.
pub unsafe fn read(given: *const COptions) -> Result<Given, c_int> {
    if given.is_null() {
        return Ok(Given::default());
    }
    // SAFETY: not NULL; as many bytes as it says.
    let given = unsafe { adopt(given) }?;
    let mut options = numbers(&given)?;
    // SAFETY: NULL or zero-terminated, as promised.
    if let Some(dir) = unsafe { bytes(given.dir) } {
        options = options.dir(OsStr::from_bytes(dir));
    }
    // SAFETY: NULL or zero-terminated, as promised.
    if let Some(group) = unsafe { bytes(given.group) } {
        let group = std::str::from_utf8(group).map_err(|_| bad("the group is not UTF-8"))?;
        options = options.group(group);
    }
    // SAFETY: NULL or zero-terminated, as promised.
    if let Some(client) = unsafe { bytes(given.client) } {
        options = options.client(String::from_utf8_lossy(client));
    }
    // SAFETY: NULL or a stop, as promised.
    let stop = unsafe { given.stop.as_ref() }.cloned();
    let options = stop.iter().fold(options, Options::stop);
    Ok(Given { options, reconnects: given.flags & RECONNECT != 0, stop })
}

/// What this version knows of a structure of any version.
///
/// # Safety
/// `given` is not NULL, and has as many bytes as its first field says.
pub unsafe fn adopt<T: Versioned>(given: *const T) -> Result<T, c_int> {
    // SAFETY: the first field is there in any version.
    let size = unsafe { given.cast::<usize>().read() };
    let (known, name) = (size_of::<T>(), T::NAME);
    if !(T::OLDER.contains(&size) || (known..=SIZE_MAX).contains(&size)) {
        let init = name.to_uppercase();
        return Err(bad(&format!("{name}.size is that of no version: start from {init}_INIT")));
    }
    let bytes = given.cast::<u8>();
    let mut adopted = T::DEFAULT;
    // SAFETY: this many bytes are there on both sides, and any bytes are such a structure.
    unsafe { ptr::copy_nonoverlapping(bytes, (&raw mut adopted).cast(), size.min(known)) };
    // SAFETY: nothing, or what lies behind the part that is known.
    let rest =
        unsafe { slice::from_raw_parts(bytes.add(size.min(known)), size.max(known) - known) };
    if rest.iter().any(|&byte| byte != 0) {
        return Err(bad(&format!(
            "{name} asks for something that only a newer libuvala knows: update the library, or \
             leave that field 0"
        )));
    }
    Ok(adopted)
}

fn numbers(given: &COptions) -> Result<Options, c_int> {
    if given.flags & !(EXISTING | SPIN | RECONNECT) != 0 {
        return Err(bad("uvala_options.flags has a bit that this version does not know"));
    }
    let mut options = Options::new()
        .existing(given.flags & EXISTING != 0)
        .reconnect(given.flags & RECONNECT != 0)
        .wait(wait_policy(given));
    if given.tx_rings != 0 {
        options = options.tx_rings(given.tx_rings);
    }
    if given.rx_rings != 0 {
        options = options.rx_rings(given.rx_rings);
    }
    if given.tx_slots != 0 {
        options = options.tx_slots(given.tx_slots);
    }
    if given.rx_slots != 0 {
        options = options.rx_slots(given.rx_slots);
    }
    if given.extra_bufs != 0 {
        options = options.extra_bufs(given.extra_bufs);
    }
    if given.group_memory != 0 {
        options = options.group_memory(given.group_memory);
    }
    Ok(options)
}

fn wait_policy(given: &COptions) -> WaitPolicy {
    let default = WaitPolicy::default();
    let yields = match given.yields {
        0 => default.yields,
        given => u32::try_from(given).unwrap_or(0),
    };
    WaitPolicy { yields, spin: given.flags & SPIN != 0 }
}

/// # Safety
/// NULL, or zero-terminated and alive for `'a`.
pub unsafe fn bytes<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: as promised by the caller.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// # Safety
/// NULL, or zero-terminated and alive for `'a`.
pub unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, c_int> {
    // SAFETY: as promised by the caller.
    let bytes = unsafe { bytes(text) };
    bytes.map(std::str::from_utf8).transpose().map_err(|_| bad("a text is not UTF-8"))
}
