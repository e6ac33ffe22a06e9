//! Numbers for C and one line for people.

// UNSAFETY: names that C links to.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

use client::Error;
use client::control::ControlError;
use protocol::ErrorCode;

/// One row for each `UVALA_E…` of uvala.h: number and text.
macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        $(pub const $name: c_int = $number;)*

        fn text(code: c_int) -> &'static CStr {
            match code {
                $($number => $text,)*
                _ if code >= 0 => c"no error",
                _ => c"unknown error",
            }
        }
    };
}

codes! {
    EARG = -1, c"bad argument";
    ENAME = -2, c"bad port name";
    ENODAEMON = -3, c"no daemon; start one with: uvala daemon";
    ELOST = -4, c"the other side of the port is gone; reconnect";
    EPERM = -5, c"no permission";
    ENOTFOUND = -6, c"no such switch or port";
    EEXISTS = -7, c"exists already";
    EINUSE = -8, c"another client holds the port";
    EQUOTA = -9, c"the user's quota is used up";
    ENOMEM = -10, c"neither memory nor descriptors left";
    EREQUEST = -11, c"the daemon refused a value out of range";
    EUNSUPPORTED = -12, c"this daemon or this kind of port cannot do that";
    EINTERNAL = -13, c"a fault of the daemon";
    ETOOSHORT = -14, c"frame shorter than an Ethernet header";
    ETOOLONG = -15, c"frame longer than the port takes";
    ERESYNC = -16, c"a broken ring was re-synchronised; some frames are lost";
    EPROTOCOL = -17, c"the daemon speaks another version";
    ESYSTEM = -18, c"a system call failed";
    EDELETED = -19, c"the port was deleted by an operator";
    ESTOPPED = -20, c"uvala_stop() was called";
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Notes the message of `error` and returns its number.
#[cold]
pub fn fail(error: &Error) -> c_int {
    note(&error.to_string());
    code(error)
}

/// Notes what is wrong with an argument.
#[cold]
pub fn bad(what: &str) -> c_int {
    note(what);
    EARG
}

/// Keeps a failure's message for `uvala_error` and returns the error's number.
#[cold]
pub fn fail_as(code: c_int, message: &str) -> c_int {
    note(message);
    code
}

/// What this thread has noted last.
pub fn last() -> CString {
    LAST.with_borrow(Clone::clone)
}

fn note(message: &str) {
    // Messages quote names, in which zero bytes are escaped; without one, nothing is lost.
    let message = CString::new(message).unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = message);
}

fn code(error: &Error) -> c_int {
    match error {
        Error::Name(_) => ENAME,
        Error::Control(error) => control_code(error),
        Error::Device(error) => error.code().map_or(ESYSTEM, refusal_code),
        Error::Lost(_) => ELOST,
        Error::Deleted(_) | Error::CaptureEnded(_) | Error::DropsEnded(_) => EDELETED,
        Error::Geometry(_) => EPROTOCOL,
        Error::Map(_) => ENOMEM,
        Error::Doorbell(_) => ESYSTEM,
        Error::TooShort { .. } => ETOOSHORT,
        Error::TooLong { .. } => ETOOLONG,
        Error::Resynced { .. } => ERESYNC,
        Error::Stopped => ESTOPPED,
    }
}

fn control_code(error: &ControlError) -> c_int {
    match error {
        ControlError::NoDaemon(_) | ControlError::Timeout(_) => ENODAEMON,
        ControlError::Permission(_) | ControlError::Untrusted { .. } => EPERM,
        ControlError::Lost(_) => ELOST,
        ControlError::Refused(failure) => refusal_code(failure.code),
        ControlError::Protocol(_) => EPROTOCOL,
        ControlError::NoDescriptors => ENOMEM,
        ControlError::Io { .. } => ESYSTEM,
    }
}

fn refusal_code(code: ErrorCode) -> c_int {
    match code {
        ErrorCode::BadName => ENAME,
        ErrorCode::NotFound => ENOTFOUND,
        ErrorCode::Exists => EEXISTS,
        ErrorCode::InUse => EINUSE,
        ErrorCode::Permission => EPERM,
        ErrorCode::Quota => EQUOTA,
        ErrorCode::NoMemory => ENOMEM,
        ErrorCode::BadRequest => EREQUEST,
        ErrorCode::Unsupported => EUNSUPPORTED,
        ErrorCode::Internal => EINTERNAL,
        // No call of this library makes what is kept.
        ErrorCode::NotKept => ESYSTEM,
    }
}

/// What a number means; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn uvala_strerror(code: c_int) -> *const c_char {
    text(code).as_ptr()
}

/// The last failure of this thread in one line, with names and numbers; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn uvala_errmsg() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
