//! See `fuzz_bodies::rules`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::rules(data));
