//! See `fuzz_bodies::chain`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::chain(data));
