//! See `fuzz_bodies::netmap_request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::netmap_request(data));
