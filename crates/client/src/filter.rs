//! Filters of captured frames in tcpdump's language, compiled and run by libpcap.
//!
//! The library is loaded when a filter is compiled, or before by [`load`], so that programs without
//! filters need no libpcap, neither to build nor to run. It stays until the program ends. Its calls
//! and its two structures are those of `pcap/pcap.h`, which have not changed since 1999.

#![allow(unsafe_code)] // UNSAFETY: libpcap is a C library.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Names under which systems have the library.
const LIBRARIES: [&CStr; 3] = [c"libpcap.so.0.8", c"libpcap.so.1", c"libpcap.so"];
/// `DLT_EN10MB`: Ethernet.
const ETHERNET: c_int = 1;
/// Longest frame in bytes.
const SNAP: c_int = 262_144;
/// `PCAP_NETMASK_UNKNOWN`.
const NO_NETMASK: c_uint = u32::MAX;

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type Compile =
    unsafe extern "C" fn(*mut c_void, *mut Program, *const c_char, c_int, c_uint) -> c_int;
type Error = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type Run = unsafe extern "C" fn(*const Program, *const Packet, *const u8) -> c_int;
type Close = unsafe extern "C" fn(*mut c_void);
type Free = unsafe extern "C" fn(*mut Program);

/// `struct bpf_program`.
#[repr(C)]
struct Program {
    len: c_uint,
    instructions: *mut c_void,
}

/// `struct pcap_pkthdr`.
#[repr(C)]
struct Packet {
    time: [c_long; 2],
    captured: u32,
    len: u32,
}

/// A compiled filter.
pub struct Filter {
    program: Program,
    run: Run,
    free: Free,
}

// SAFETY: the instructions belong to the filter alone, and no call changes them before it is
// dropped.
unsafe impl Send for Filter {}

impl Filter {
    /// Compiles an expression.
    ///
    /// # Errors
    /// There is no libpcap, or it does not understand the expression.
    pub fn compile(expression: &str) -> Result<Self, String> {
        /// The compiler of libpcap before 1.8 has one state for all threads.
        static COMPILER: Mutex<()> = Mutex::new(());
        let text = CString::new(expression).map_err(|_| "the filter has a zero byte".to_owned())?;
        let library = Library::get()?;
        let open: OpenDead = library.function(c"pcap_open_dead")?;
        let compile: Compile = library.function(c"pcap_compile")?;
        let error: Error = library.function(c"pcap_geterr")?;
        let run: Run = library.function(c"pcap_offline_filter")?;
        let close: Close = library.function(c"pcap_close")?;
        let free: Free = library.function(c"pcap_freecode")?;
        let _alone = COMPILER.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the function takes two numbers.
        let handle = unsafe { open(ETHERNET, SNAP) };
        let handle = NonNull::new(handle).ok_or("libpcap has no memory")?.as_ptr();
        let mut program = Program { len: 0, instructions: std::ptr::null_mut() };
        // SAFETY: the handle is open, the text ends with a zero, and the program is ours.
        let compiled = unsafe { compile(handle, &raw mut program, text.as_ptr(), 1, NO_NETMASK) };
        let result = match compiled {
            0 => Ok(Self { program, run, free }),
            _ => {
                // SAFETY: the handle is open; its text of the error ends with a zero.
                let why = unsafe { CStr::from_ptr(error(handle)) };
                Err(format!("filter {expression:?}: {}", why.to_string_lossy()))
            }
        };
        // SAFETY: the handle is used no more; a compiled program lives on without it.
        unsafe { close(handle) };
        result
    }

    /// Whether the filter lets a frame pass.
    #[must_use]
    pub fn passes(&self, frame: &[u8]) -> bool {
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let packet = Packet { time: [0; 2], captured: len, len };
        // SAFETY: the program was compiled, and `frame` has as many bytes as the packet says.
        unsafe { (self.run)(&raw const self.program, &raw const packet, frame.as_ptr()) != 0 }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // SAFETY: the program was compiled, and is used no more.
        unsafe { (self.free)(&raw mut self.program) };
    }
}

/// Loads the library: for programs that confine themselves before the first filter.
///
/// # Errors
/// There is none.
pub fn load() -> Result<(), String> {
    Library::get().map(drop)
}

/// The library, which is never unloaded.
struct Library(NonNull<c_void>);

// SAFETY: the handle is never written, and `dlsym` may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    fn get() -> Result<&'static Self, String> {
        static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
        let open = |name: &&CStr| {
            // SAFETY: a name that ends with a zero; what libpcap does when it is loaded is sound.
            NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) })
        };
        let library = LIBRARY.get_or_init(|| LIBRARIES.iter().find_map(open).map(Self));
        library.as_ref().ok_or_else(|| {
            "a filter needs libpcap, which is not installed (Debian: apt install libpcap0.8)"
                .to_owned()
        })
    }

    fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        assert!(size_of::<F>() == size_of::<*mut c_void>(), "a function is a pointer");
        // SAFETY: the library is loaded, and the name ends with a zero.
        let function = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) };
        if function.is_null() {
            return Err(format!("libpcap has no {}", name.to_string_lossy()));
        }
        // SAFETY: `F` is the type that `pcap/pcap.h` gives the function of this name.
        Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&function) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UDP from 10.0.0.1, port 1024, to 10.0.0.2, port 53.
    fn udp() -> Vec<u8> {
        let ips = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let packet = packet::build::ipv4(17, ips.0, ips.1, &packet::build::udp(1024, 53, &[]));
        packet::build::ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], 0x0800, &packet)
    }

    #[test]
    fn test_filters_are_those_of_tcpdump() {
        let frame = udp();
        for (expression, passes) in [
            ("udp port 53", true),
            ("tcp", false),
            ("host 10.0.0.2 and ether src 02:00:00:00:00:01", true),
            ("not ip", false),
            ("", true),
        ] {
            let filter = Filter::compile(expression).unwrap();
            assert_eq!(filter.passes(&frame), passes, "{expression}");
        }
        let filter = Filter::compile("udp port 53").unwrap();
        assert!((0..30).all(|end| !filter.passes(&frame[..end])), "too short to tell");
    }

    #[test]
    fn test_what_libpcap_does_not_understand_is_refused_in_its_words() {
        let error = Filter::compile("udp prt 53").err().unwrap();
        assert!(error.contains("syntax error"), "{error}");
    }
}
