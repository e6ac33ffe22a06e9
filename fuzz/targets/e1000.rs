//! See `fuzz_bodies::e1000`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::e1000(data));
