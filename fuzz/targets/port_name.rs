//! See `fuzz_bodies::port_name`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::port_name(data));
