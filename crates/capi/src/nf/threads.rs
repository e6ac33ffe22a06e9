//! A function on several cores: a C function in each of some threads, with a port of its own.

// UNSAFETY: pointers that C hands in; uvala.h states what they must be.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // reason: the contract of every pointer is in uvala.h.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::mem::offset_of;
use std::ptr;

use client::nf::{Failed, Instance, Threads};
use client::{Error, Stop};

use crate::Handle;
use crate::error::{ESTOPPED, ESYSTEM, bad, fail, fail_as, last};
use crate::options::{self, COptions, Given, Versioned, text};

/// `struct uvala_nf_threads`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CThreads {
    size: usize,
    port: *const c_char,
    service: *const c_char,
    cores: *const c_char,
    options: *const COptions,
    threads: u16,
    instance: u16,
    reserved: u32,
}

// tests/abi.c asserts the same numbers of uvala.h.
const _: () = assert!(size_of::<CThreads>() == 48 && offset_of!(CThreads, options) == 32);
const _: () = assert!(offset_of!(CThreads, instance) == 42);

// SAFETY: numbers and pointers, any bytes of which are some; `size` is the first.
unsafe impl Versioned for CThreads {
    const NAME: &str = "uvala_nf_threads";
    const OLDER: &[usize] = &[];
    const DEFAULT: Self = Self {
        size: size_of::<Self>(),
        port: ptr::null(),
        service: ptr::null(),
        cores: ptr::null(),
        options: ptr::null(),
        threads: 0,
        instance: 0,
        reserved: 0,
    };
}

/// `uvala_nf_body`.
type Body = unsafe extern "C" fn(*mut c_void, *mut Handle, u32) -> c_int;

/// Why a body ended.
struct Ended(c_int, CString);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.1.to_string_lossy())
    }
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        let code = fail(&error);
        Self(code, last())
    }
}

/// What the bodies share: C says that they may.
struct Shared {
    body: Body,
    context: *mut c_void,
    reconnects: bool,
}

// SAFETY: uvala.h asks for a body and a context that several threads may use at once.
unsafe impl Sync for Shared {}

impl Shared {
    /// Lends the body its port.
    fn run(&self, Instance { thread, port, .. }: Instance, stop: &Stop) -> Result<(), Ended> {
        let handle = Box::into_raw(Handle::new(port, self.reconnects, Some(stop.clone())));
        // SAFETY: a function by the contract in uvala.h, which does not close the port.
        let code = unsafe { (self.body)(self.context, handle, thread.into()) };
        let said = last();
        // SAFETY: made above, and not closed.
        drop(unsafe { Box::from_raw(handle) });
        if code >= 0 || code == ESTOPPED { Ok(()) } else { Err(Ended(code, said)) }
    }
}

/// Runs a function in several threads until all have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_nf_run(
    threads: *const CThreads,
    body: Option<Body>,
    context: *mut c_void,
) -> c_int {
    let Some(body) = body else { return bad("the body is NULL") };
    // SAFETY: NULL or as long as its `size` says, by the contract in uvala.h.
    let read = unsafe { read(threads) };
    let (threads, stop, reconnects) = match read {
        Ok(read) => read,
        Err(code) => return code,
    };
    let shared = Shared { body, context, reconnects };
    match threads.each(&stop, |instance| shared.run(instance, &stop)) {
        Ok(()) => 0,
        Err(failed) => complain(failed),
    }
}

/// # Safety
/// `given` is NULL, or its first field says how many bytes it has; its texts are NULL or
/// zero-terminated, and its options are NULL or like that too.
unsafe fn read(given: *const CThreads) -> Result<(Threads, Stop, bool), c_int> {
    if given.is_null() {
        return Err(bad("the threads are NULL"));
    }
    // SAFETY: as promised.
    let given = unsafe { options::adopt(given) }?;
    if given.reserved != 0 {
        return Err(bad("uvala_nf_threads.reserved is not 0"));
    }
    // SAFETY: as promised.
    let (port, service, cores) =
        unsafe { (text(given.port)?, text(given.service)?, text(given.cores)?) };
    // SAFETY: as promised.
    let Given { options, reconnects, stop } = unsafe { options::read(given.options) }?;
    let port = port.ok_or_else(|| bad("uvala_nf_threads.port is NULL"))?;
    let port = port.parse().map_err(|error| fail(&Error::Name(error)))?;
    let mut threads = Threads::new(port).options(options);
    if let Some(service) = service {
        threads = threads.service(service, given.instance);
    }
    if let Some(cores) = cores {
        threads = threads.cores(cores.parse().map_err(|error| bad(&format!("{error}")))?);
    }
    if given.threads != 0 {
        threads = threads.count(given.threads);
    }
    let stop = stop.map_or_else(Stop::new, Ok);
    Ok((threads, stop.map_err(|error| fail_as(ESYSTEM, &error.to_string()))?, reconnects))
}

fn complain(failed: Failed<Ended>) -> c_int {
    let text = failed.to_string();
    match failed {
        Failed::Start(Ended(code, _)) | Failed::Instance { error: Ended(code, _), .. } => {
            fail_as(code, &text)
        }
        Failed::Cores(_) => bad(&text),
        Failed::Thread(_) => fail_as(ESYSTEM, &text),
    }
}
