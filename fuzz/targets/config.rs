//! See `fuzz_bodies::config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::config(data));
