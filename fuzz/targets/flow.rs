//! See `fuzz_bodies::flow`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::flow(data));
