//! libuvala: the client library for C, documented in `include/uvala.h`.
//!
//! Nothing is decided here. Each function checks what can be checked about its arguments (NULL,
//! numbers out of range, text that is not UTF-8), calls its Rust counterpart in `client`, and turns
//! the result into a number. A panic would be a bug of the library: it stops the program, because
//! `extern "C"` lets none pass.
//!
//! ```text
//!  struct uvala_port    Handle: a client::Port, and a queue for every ring
//!  struct uvala_queue   Queue: what inline functions need to touch slots and buffers
//! ```
//!
//! One thread may use the sending side of a port while another uses the receiving side: functions
//! of one side borrow that side alone, never the whole handle.

// UNSAFETY: pointers that C hands in; uvala.h states what they must be.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // reason: the contract of every pointer is in uvala.h.

mod error;
mod nf;
mod options;
mod queue;
mod stop;

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use client::{Error, Interest, Lost, Port, Stop};
use ring::layout::MAX_RINGS;

use error::{bad, fail};
use options::{COptions, Given};
use queue::Queue;

/// The queues of one side.
type Queues = Box<[Queue; MAX_RINGS as usize]>;

/// `struct uvala_port`.
#[derive(Debug)]
pub struct Handle {
    port: Port,
    /// Fixed places: a queue's address holds until the port is closed, reconnected or not.
    tx: Queues,
    rx: Queues,
    reconnects: bool,
    /// What ends its waits.
    stop: Option<Stop>,
    /// Set while the port's batch is being handled: the port is lent until then.
    is_lent: bool,
    /// The function's.
    kept: nf::Kept,
}

/// `UVALA_RX` and `UVALA_TX`.
const RX: c_int = 1;
const TX: c_int = 2;

/// Refuses a null port, and one that is lent to the function whose callback calls.
///
/// # Safety
/// `port` is NULL or came from `uvala_open` and is not closed.
unsafe fn check(port: *const Handle) -> Result<(), c_int> {
    if port.is_null() {
        return Err(bad("the port is NULL"));
    }
    // SAFETY: as promised; the field is written by the thread alone that handles a batch.
    match unsafe { (*port).is_lent } {
        true => Err(bad(LENT)),
        false => Ok(()),
    }
}

/// A handle to look at.
///
/// # Safety
/// The port as [`check`] returns it, shared: no other thread changes it meanwhile.
unsafe fn seen<'a>(port: *const Handle) -> Result<&'a Handle, c_int> {
    // SAFETY: as promised.
    unsafe { check(port) }?;
    // SAFETY: as promised, not NULL, and not lent.
    Ok(unsafe { &*port })
}

const LENT: &str = "a callback of uvala_nf_step() calls nothing about its port but uvala_nf_held, \
                    _send_on, _send, _count and _gauge: do it when the step has returned";

/// A handle that C gave us, or a complaint.
///
/// # Safety
/// `port` is NULL or came from `uvala_open` and is not closed; no other thread uses it.
unsafe fn whole<'a>(port: *mut Handle) -> Result<&'a mut Handle, c_int> {
    // SAFETY: as promised by the caller.
    unsafe { check(port) }?;
    // SAFETY: as promised by the caller, and not NULL.
    Ok(unsafe { &mut *port })
}

/// The sending side of a port.
///
/// # Safety
/// As for [`whole`], but another thread may use the receiving side.
unsafe fn sending<'a>(
    port: *mut Handle,
) -> Result<(&'a mut client::Sender, &'a mut [Queue]), c_int> {
    // SAFETY: as promised by the caller.
    unsafe { check(port) }?;
    // SAFETY: as promised; these fields are those of the sending side.
    let (sender, queues) = unsafe { (&mut (*port).port.sender, &mut (*port).tx) };
    Ok((sender, &mut queues[..]))
}

/// The receiving side of a port.
///
/// # Safety
/// As for [`whole`], but another thread may use the sending side.
unsafe fn receiving<'a>(
    port: *mut Handle,
) -> Result<(&'a mut client::Receiver, &'a mut [Queue]), c_int> {
    // SAFETY: as promised by the caller.
    unsafe { check(port) }?;
    // SAFETY: as promised; these fields are those of the receiving side.
    let (receiver, queues) = unsafe { (&mut (*port).port.receiver, &mut (*port).rx) };
    Ok((receiver, &mut queues[..]))
}

/// Whether the port reconnects by itself.
///
/// # Safety
/// As for [`whole`], but other threads may use it too.
unsafe fn reconnects(port: *const Handle) -> bool {
    // SAFETY: as promised; the field never changes.
    !port.is_null() && unsafe { (*port).reconnects }
}

fn renew_tx(sender: &mut client::Sender, queues: &mut [Queue]) {
    let rings = sender.rings();
    for (i, queue) in queues.iter_mut().enumerate().take_while(|(i, q)| *i < rings || q.exists()) {
        *queue = if i < rings { Queue::of_tx(sender.tx(i)) } else { Queue::NONE };
    }
}

fn renew_rx(receiver: &mut client::Receiver, queues: &mut [Queue]) {
    let rings = receiver.rings();
    for (i, queue) in queues.iter_mut().enumerate().take_while(|(i, q)| *i < rings || q.exists()) {
        *queue = if i < rings { Queue::of_rx(receiver.rx(i)) } else { Queue::NONE };
    }
}

impl Handle {
    fn new(port: Port, reconnects: bool, stop: Option<Stop>) -> Box<Self> {
        let none = || Box::new([const { Queue::NONE }; MAX_RINGS as usize]);
        let (tx, rx, kept) = (none(), none(), nf::Kept::new(&port));
        let mut handle = Box::new(Self { port, tx, rx, reconnects, stop, is_lent: false, kept });
        handle.renew();
        handle
    }

    /// Brings all queues up to date.
    fn renew(&mut self) {
        renew_tx(&mut self.port.sender, &mut self.tx[..]);
        renew_rx(&mut self.port.receiver, &mut self.rx[..]);
    }
}

/// Negative for ever, else microseconds.
fn timeout(us: i64) -> Option<Duration> {
    u64::try_from(us).ok().map(Duration::from_micros)
}

/// 1 for yes, 0 for "the time is over", negative for an error.
fn outcome(result: Result<bool, Error>) -> c_int {
    match result {
        Ok(yes) => c_int::from(yes),
        Err(error) => fail(&error),
    }
}

/// Version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn uvala_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Opens a port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_open(
    name: *const c_char,
    options: *const COptions,
    port: *mut *mut Handle,
) -> c_int {
    if name.is_null() || port.is_null() {
        return bad("name and port must not be NULL");
    }
    // SAFETY: not NULL; zero-terminated by the contract in uvala.h.
    let Ok(name) = unsafe { CStr::from_ptr(name) }.to_str() else {
        return bad("the name is not UTF-8");
    };
    // SAFETY: NULL or as long as its `size` says, by the contract in uvala.h.
    let Given { options, reconnects, stop } = match unsafe { options::read(options) } {
        Ok(options) => options,
        Err(code) => return code,
    };
    let opened = match options.open(name) {
        Ok(opened) => opened,
        Err(error) => return fail(&error),
    };
    // SAFETY: not NULL; a place for a pointer by the contract in uvala.h.
    unsafe { port.write(Box::into_raw(Handle::new(opened, reconnects, stop))) };
    0
}

/// Closes a port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_close(port: *mut Handle) {
    // SAFETY: NULL or an open port, by the contract in uvala.h; if it is lent, it is in use.
    if unsafe { check(port) }.is_ok() {
        // SAFETY: made by `uvala_open` and not closed before, by the contract in uvala.h.
        drop(unsafe { Box::from_raw(port) });
    }
}

/// Transmit queue `i`, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_tx(port: *mut Handle, i: u32) -> *mut Queue {
    // SAFETY: an open port by the contract in uvala.h.
    let queues = unsafe { sending(port) }.map(|(_, queues)| queues);
    nth(queues, i)
}

/// Receive queue `i`, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_rx(port: *mut Handle, i: u32) -> *mut Queue {
    // SAFETY: an open port by the contract in uvala.h.
    let queues = unsafe { receiving(port) }.map(|(_, queues)| queues);
    nth(queues, i)
}

fn nth(queues: Result<&mut [Queue], c_int>, i: u32) -> *mut Queue {
    let queue = queues.ok().and_then(|queues| queues.get_mut(i as usize));
    queue.filter(|queue| queue.exists()).map_or(std::ptr::null_mut(), |queue| &raw mut *queue)
}

/// Whether two ports share their memory: 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_same_region(a: *const Handle, b: *const Handle) -> c_int {
    // SAFETY: NULL or open ports by the contract in uvala.h.
    let (a, b) = match unsafe { (seen(a), seen(b)) } {
        (Ok(a), Ok(b)) => (a, b),
        (Err(code), _) | (_, Err(code)) => return code,
    };
    c_int::from(a.port.region() == b.port.region())
}

/// Sends one frame.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_send(
    port: *mut Handle,
    frame: *const u8,
    len: usize,
    timeout_us: i64,
) -> c_int {
    if frame.is_null() || isize::try_from(len).is_err() {
        return bad("the frame is NULL or its length impossible");
    }
    // SAFETY: not NULL; `len` bytes by the contract in uvala.h.
    let frame = unsafe { std::slice::from_raw_parts(frame, len) };
    // SAFETY: an open port by the contract in uvala.h.
    if unsafe { reconnects(port) } {
        // SAFETY: a port that reconnects is for one thread, by the contract in uvala.h.
        let Ok(handle) = (unsafe { whole(port) }) else { return error::EARG };
        let sent = handle.port.send_timeout(frame, timeout(timeout_us));
        handle.renew();
        return outcome(sent);
    }
    // SAFETY: an open port by the contract in uvala.h.
    let (sender, queues) = match unsafe { sending(port) } {
        Ok(side) => side,
        Err(code) => return code,
    };
    let sent = sender.tx(0).send_timeout(frame, timeout(timeout_us));
    renew_tx(sender, queues);
    outcome(sent)
}

/// Receives one frame; returns its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_recv(
    port: *mut Handle,
    buffer: *mut u8,
    size: usize,
    timeout_us: i64,
) -> c_int {
    if buffer.is_null() || isize::try_from(size).is_err() {
        return bad("the buffer is NULL or its size impossible");
    }
    // SAFETY: not NULL; `size` bytes of the caller's own by the contract in uvala.h.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer, size) };
    // SAFETY: an open port by the contract in uvala.h.
    let received = if unsafe { reconnects(port) } {
        // SAFETY: a port that reconnects is for one thread, by the contract in uvala.h.
        let Ok(handle) = (unsafe { whole(port) }) else { return error::EARG };
        let received = handle.port.recv_into_timeout(buffer, timeout(timeout_us));
        handle.renew();
        received
    } else {
        // SAFETY: an open port by the contract in uvala.h.
        let (receiver, queues) = match unsafe { receiving(port) } {
            Ok(side) => side,
            Err(code) => return code,
        };
        let received = receiver.recv_into_timeout(buffer, timeout(timeout_us));
        renew_rx(receiver, queues);
        received
    };
    match received {
        Ok(len) => c_int::try_from(len.unwrap_or(0)).unwrap_or(c_int::MAX),
        Err(error) => fail(&error),
    }
}

/// Waits for frames or room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_wait(
    port: *mut Handle,
    what: c_int,
    count: u32,
    timeout_us: i64,
) -> c_int {
    let Some(what) = interest(what, count) else { return bad("wait for UVALA_RX or UVALA_TX") };
    // SAFETY: an open port by the contract in uvala.h.
    if let Err(code) = unsafe { possible(port, what) } {
        return code;
    }
    // SAFETY: an open port by the contract in uvala.h.
    if unsafe { reconnects(port) } {
        // SAFETY: a port that reconnects is for one thread, by the contract in uvala.h.
        let Ok(handle) = (unsafe { whole(port) }) else { return error::EARG };
        let ready = handle.port.wait(what, timeout(timeout_us));
        handle.renew();
        return outcome(ready);
    }
    match what {
        // SAFETY: an open port by the contract in uvala.h.
        Interest::Tx(count) => match unsafe { sending(port) } {
            Ok((sender, _)) => outcome(sender.wait(count, timeout(timeout_us))),
            Err(code) => code,
        },
        // SAFETY: an open port by the contract in uvala.h.
        Interest::Rx => match unsafe { receiving(port) } {
            Ok((receiver, _)) => outcome(receiver.wait(timeout(timeout_us))),
            Err(code) => code,
        },
    }
}

fn interest(what: c_int, count: u32) -> Option<Interest> {
    match what {
        RX => Some(Interest::Rx),
        TX => Some(Interest::Tx(count)),
        _ => None,
    }
}

/// Refuses to wait for an event that this port can never have.
///
/// # Safety
/// As for [`sending`].
unsafe fn possible(port: *mut Handle, what: Interest) -> Result<(), c_int> {
    let Interest::Tx(count) = what else { return Ok(()) };
    // SAFETY: as promised by the caller.
    let (sender, _) = unsafe { sending(port)? };
    queue::check_room(sender.tx(0), count)
}

/// Waits until the switch has taken everything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_drain(port: *mut Handle, timeout_us: i64) -> c_int {
    // SAFETY: an open port by the contract in uvala.h.
    match unsafe { sending(port) } {
        Ok((sender, _)) => outcome(sender.drain(timeout(timeout_us))),
        Err(code) => code,
    }
}

/// The doorbell to poll.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_fd(port: *mut Handle) -> c_int {
    // SAFETY: an open port by the contract in uvala.h.
    match unsafe { receiving(port) } {
        Ok((receiver, _)) => receiver.as_fd().as_raw_fd(),
        Err(code) => code,
    }
}

/// Asks for a kick.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_arm(port: *mut Handle, what: c_int, count: u32) -> c_int {
    let Some(what) = interest(what, count) else { return bad("arm UVALA_RX or UVALA_TX") };
    // SAFETY: an open port, used by one thread, by the contract in uvala.h.
    if let Err(code) = unsafe { possible(port, what) } {
        return code;
    }
    // SAFETY: an open port, used by one thread, by the contract in uvala.h.
    match unsafe { whole(port) } {
        Ok(handle) => c_int::from(handle.port.arm(what)),
        Err(code) => code,
    }
}

/// Takes requests and kicks back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_disarm(port: *mut Handle) -> c_int {
    // SAFETY: an open port, used by one thread, by the contract in uvala.h.
    match unsafe { whole(port) } {
        Ok(handle) => outcome(handle.port.disarm().map(|()| false).map_err(Error::from)),
        Err(code) => code,
    }
}

/// Checks that the daemon still holds the other side of the port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_check(port: *const Handle) -> c_int {
    // SAFETY: NULL or an open port by the contract in uvala.h.
    match unsafe { seen(port) } {
        Ok(Handle { port, .. }) => {
            outcome(port.check().map(|()| false).map_err(|Lost| port.why_lost()))
        }
        Err(code) => code,
    }
}

/// How often the switch re-synchronised a ring.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_resyncs(port: *const Handle) -> u32 {
    // SAFETY: NULL or an open port by the contract in uvala.h.
    unsafe { seen(port) }.map_or(0, |handle| handle.port.resyncs())
}

/// Opens the port once more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uvala_reconnect(port: *mut Handle, timeout_us: i64) -> c_int {
    // SAFETY: an open port, used by one thread, by the contract in uvala.h.
    let handle = match unsafe { whole(port) } {
        Ok(handle) => handle,
        Err(code) => return code,
    };
    let result = handle.port.reconnect(timeout(timeout_us));
    handle.renew();
    outcome(result.map(|()| false))
}
